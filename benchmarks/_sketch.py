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
            sketch = np.sqrt(np.maximum(s**2 - s[lowest] ** 2, 0))[:, None] * V
            used = lowest
        sketch[used] = row
        used += 1
    return sketch


def sketches(X_of, models, rank):
    """Error over the best of its rank, of models and of sketches of 2 r rows in all."""
    rows = []
    for name, X in X_of.items():
        found = {method: model.fit(X).components_ for method, model in models.items()}
        for how, halved in ("halved", True), ("by the least", False):
            sketch = numpy_frequent_directions(X, 2 * rank, halved=halved)
            V = np.linalg.svd(sketch, full_matrices=False)[2][:rank]
            found[f"{2 * rank} rows, {how}"] = V
        squares = np.linalg.svd(X, compute_uv=False) ** 2
        own = {
            m: np.sum((X - X @ V.T @ V) ** 2) / squares[len(V) :].sum() for m, V in found.items()
        }
        rows.append({"data": name, **own})
    return rows
