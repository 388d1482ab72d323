"""Defaults beside the best parameters of a grid, and beside a simple thing; docs/defaults.md.

A family of rows is a list of data sets, a score (less is better), methods with their grids, and the
simple thing. "over best" is the score by default over the least one of the grid, the default
included. Sections of light, numbers and wine are in an order that was drawn once.

- streams: 240 and 2,000 rows, rank 10 (5 of 11 features); error over that of the best subspace.
- changing: the same number of rows of one subspace and of another; error on the last 100 rows.
- holes: 10 and 30 % of the entries of standardised columns hidden, rank 5 (3 of 11); rms of their
  imputations over their own.
- rounds: seconds of a grid search over 5, 10 and 20 components at 5 sites.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from time import process_time

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits, make_low_rank_matrix
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale

from benchmarks._tools import load, table
from fedpca_sklearn import (
    GROUSE,
    PAST,
    PETRELS,
    FederatedPCA,
    FederatedPowerPCA,
    OjaPCA,
    StreamingPowerMethod,
    excess_error,
    make_power_law,
)


@dataclass(frozen=True)
class Family:
    """Rows of the table: data by name, a score of model and data, grids by estimator."""

    name: str
    data: dict[str, np.ndarray]
    score: Callable
    grids: Callable
    simple: tuple[str, Callable]

    def rows(self):
        """One row for each data set and method."""
        label, simple = self.simple
        for name, X in self.data.items():
            by_simple = simple(X)
            for default, grid in self.grids(X):
                scores = {}
                for values in ({}, *settings(grid)):
                    text = ", ".join(f"{k}={show(v)}" for k, v in values.items())
                    scores[text] = self.score(clone(default).set_params(**values), X)
                best = min(scores, key=scores.get)
                yield {
                    "data": name,
                    "method": type(default).__name__,
                    "by default": scores[""],
                    "best": scores[best],
                    "over best": scores[""] / scores[best],
                    label: by_simple,
                    "best parameters": best or "by default",
                }


def settings(grid):
    """All combinations of lists of values."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def show(value):
    return f"{value:.3g}" if isinstance(value, float) else str(value)


# --------------------------------------------------------------------------------------- streams


def measured(n, quick):
    """Streams of n rows: sensors at times drawn once, numbers, wine, a power law."""
    rng = np.random.default_rng(5)
    data = {"power law": make_power_law(n, 100, alpha=1.5, random_state=5) + 1}
    digits = load_digits().data
    data["digits"] = digits[rng.permutation(len(digits))[:n]]
    path = load("motes_light.npz")
    if path is not None:
        light = np.load(path)["X"].astype(np.float64)
        for at in (0, *rng.integers(0, len(light) - n, 1 if quick else 3)):
            data[f"light, from {at}"] = light[at : at + n]
    path = load("wine_redwhite.npz")
    if path is not None:
        wine = np.load(path)["X"].astype(np.float64)
        data["wine"] = wine[rng.permutation(len(wine))[:n]]
    return {f"{name}, {n} rows": X for name, X in data.items()}


def rank(X):
    """Components of a stream, half of them where entries are missing."""
    whole = 10 if X.shape[1] > 20 else 5
    return (whole + 1) // 2 if np.isnan(X).any() else whole


def trackers(X, holes=False):
    """Estimators by default, with grids around what the papers take."""
    k, seed = rank(X), {"random_state": 0}
    size = float(np.nanmean(X**2)) * X.shape[1]  # of a row, squared
    init = {"init": ["rows", "random"]}
    steps = ["averaged", "greedy", *(c / size for c in (0.01, 0.1, 1.0))]
    fading = ["growing", 1.0, 0.999, 0.99, 0.98]
    both = [
        (GROUSE(k, **seed), init | {"step_size": steps}),
        (PETRELS(k, **seed), init | {"forgetting_factor": fading}),
    ]
    if holes:
        return both
    rates = ["averaged", "adaptive", *(c / size for c in (1.0, 10.0, 100.0))]
    return [
        *both,
        (PAST(k, **seed), init | {"forgetting_factor": [1.0, 0.999, 0.99, 0.97]}),
        (OjaPCA(k, **seed), init | {"learning_rate": rates, "batch_size": [1, 4, 32]}),
        (StreamingPowerMethod(k, **seed), init | {"block_size": ["auto", 2 * k, X.shape[1], 120]}),
    ]


def over_best(model, X):
    """Error of a stream over that of its best subspace."""
    return 1 + excess_error(X, model.fit(X).components_)


def streams(quick):
    data = measured(240, quick) | ({} if quick else measured(1797, quick))
    incremental = "IncrementalPCA", lambda X: over_best(IncrementalPCA(rank(X), batch_size=50), X)
    return Family("streams", data, over_best, trackers, incremental)


def changed(n, seed):
    """Rows of two subspaces, one after the other, with noise."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(2):
        V = np.linalg.qr(rng.standard_normal((50, 10)))[0].T
        parts.append(rng.standard_normal((n // 2, 10)) * np.linspace(4, 1, 10) @ V)
    return np.concatenate(parts) + 0.2 * rng.standard_normal((n, 50))


def changing(quick):
    data = {f"two subspaces, {n} rows": changed(n, n) for n in ((600,) if quick else (600, 2000))}

    def late(model, X):
        return 1 + excess_error(X[-100:], model.fit(X).components_)

    def window(X):
        return 1 + excess_error(X[-100:], PCA(10).fit(X[-200:-100]).components_)

    return Family("changing", data, late, trackers, ("PCA of 100 rows", window))


# ----------------------------------------------------------------------------------------- holes


def holes(quick):
    data, hidden = {}, {}
    for name, X in measured(500, quick=True).items():
        for share in (0.1, 0.3):
            X0 = scale(X)
            lost = np.random.default_rng(6).random(X.shape) < share
            label = f"{name}, {share:.0%} hidden"
            data[label] = np.where(lost, np.nan, X0)
            hidden[data[label].tobytes()] = X0, lost

    def rms(X, found):
        true, lost = hidden[X.tobytes()]
        return float(np.sqrt(np.mean((found - true)[lost] ** 2) / np.mean(true[lost] ** 2)))

    def imputed(model, X):
        return rms(X, model.fit(X).impute(X))

    means = "column means", lambda X: rms(X, np.where(np.isnan(X), np.nanmean(X, axis=0), X))
    return Family("holes", data, imputed, lambda X: trackers(X, holes=True), means)


# ---------------------------------------------------------------------------------------- rounds


def searched(model, X):
    """Seconds of the processor for a grid search over the number of components."""
    start = process_time()
    GridSearchCV(model, {"n_components": [5, 10, 20]}, cv=3).fit(X)
    return process_time() - start


def rounds(quick):
    images = 100 * make_low_rank_matrix(400, 4096, effective_rank=30, random_state=7)
    data = {"digits": load_digits().data}
    if not quick:
        data["400 x 4096, effective rank 30"] = images
        path = load("mnist_test.npz")
        if path is not None:
            data["2000 of mnist"] = np.load(path)["X"][:2000].astype(np.float64)
    power = FederatedPowerPCA(n_clients=5, random_state=0)
    grid = {"acceleration": ["krylov", None], "tol": [1e-4, 1e-8]}
    merged = "FederatedPCA", lambda X: searched(FederatedPCA(n_clients=5), X)
    return Family("rounds", data, searched, lambda X: [(power, grid)], merged)


FAMILIES = (streams, changing, holes, rounds)


def main(quick=False):
    for family in FAMILIES:
        found = family(quick)
        print(f"\n{found.name}")
        table(f"defaults_{found.name}", list(found.rows()))
