"""Frequent Directions with numpy alone, in as many rows as the sketch is said to have in all."""

import numpy as np


def numpy_frequent_directions(X, n_rows, *, halved):
    """Sketch of at most so many rows, the next of X included.

    A full sketch has its squared singular values lowered. ``halved``: by the one in the middle,
    which makes room for half as many rows (Liberty 2013, Algorithm 1). Otherwise by the least,
    which makes room for one.
    """
    lowest = n_rows // 2 - 1 if halved else n_rows - 1
    sketch = np.zeros((n_rows, X.shape[1]))
    used = 0
    for row in X:
        if used == n_rows:
            s, V = np.linalg.svd(sketch, full_matrices=False)[1:]
            used = min(lowest, len(s) - 1)
            sketch[:used] = np.sqrt(s[:used] ** 2 - s[used] ** 2)[:, None] * V[:used]
        sketch[used] = row
        used += 1
    return sketch


class SketchOfRows:
    """Leading directions of a sketch of 2 r rows in all, with ``fit`` and ``components_``."""

    def __init__(self, rank, *, halved):
        self.rank, self.halved = rank, halved

    def fit(self, X):
        sketch = numpy_frequent_directions(X, 2 * self.rank, halved=self.halved)
        self.components_ = np.linalg.svd(sketch, full_matrices=False)[2][: self.rank]
        return self


def sketches(X_of, models, rank):
    """Error over the best of its rank, of models and of sketches of 2 r rows in all."""
    for how, halved in ("halved", True), ("by the least", False):
        models = models | {f"{2 * rank} rows, {how}": SketchOfRows(rank, halved=halved)}
    rows = []
    for name, X in X_of.items():
        found = {method: model.fit(X).components_ for method, model in models.items()}
        squares = np.linalg.svd(X, compute_uv=False) ** 2
        own = {
            m: np.sum((X - X @ V.T @ V) ** 2) / squares[len(V) :].sum() for m, V in found.items()
        }
        rows.append({"data": name, **own})
    return rows
