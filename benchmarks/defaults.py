"""Defaults beside the best parameters of a grid, and beside a simple thing; docs/defaults.md.

A family of rows is a list of data sets, a score (less is better), methods with their grids, and the
simple thing. "over best" is the score by default over the least one of the grid, the default
included. Sections of light, numbers and wine are in an order that was drawn once.

- streams: 240 and 2,000 rows, rank 10 (5 of 11 features); error over that of the best subspace.
- changing: the same number of rows of one subspace and of another; error on the last 100 rows.
- holes: 10 and 30 % of the entries of standardised columns hidden, rank 5 (3 of 11); rms of their
  imputations over their own.
- batches, batches of now: 30 % hidden, trackers that take batches; all rows by the last model, and
  each batch of 40 by the model that has just taken it.
- outliers: films with planted objects (`bench films`); entries found or planted over those that are
  both. Clients have every other frame.
- clean and planted: rows of unlike columns without outliers, and with one of ten deviations in 5 %
  of the entries; squared error of the clean rows over that of their PCA.
- rounds: seconds of a grid search over 5, 10 and 20 components at 5 sites.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from time import process_time

import numpy as np
from sklearn.base import clone
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_wine,
    make_low_rank_matrix,
)
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import scale

from benchmarks import films, missing_defaults
from benchmarks._tools import load, table
from fedpca_sklearn import (
    GROUSE,
    PAST,
    PETRELS,
    AlternatingProjections,
    FederatedPCA,
    FederatedPowerPCA,
    FederatedSubspaceTracker,
    OjaPCA,
    RobustSubspaceTracker,
    StreamingPowerMethod,
    SubspaceTracker,
    excess_error,
    make_power_law,
    reconstruction_error,
)

MOTIONS = ("moving", "lingering", "stopping")


@dataclass(frozen=True)
class Family:
    """Rows of the table: data by name, a score of model and data, grids by estimator."""

    name: str
    data: dict
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
                    with warnings.catch_warnings():  # of supports that other settings miss
                        warnings.simplefilter("ignore", UserWarning)
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


class Hidden:
    """Data sets with hidden entries, and the errors of imputations."""

    def __init__(self, sets, shares):
        self.data, self.truth = {}, {}
        for (name, X), share in product(sets, shares):
            lost = np.random.default_rng(6).random(X.shape) < share
            Y = np.where(lost, np.nan, X)
            self.data[f"{name}, {share:.0%} hidden"] = Y
            self.truth[Y.tobytes()] = X, lost

    def rms(self, Y, full):
        """Of the errors over that of the hidden entries."""
        X, lost = self.truth[Y.tobytes()]
        return float(np.sqrt(np.mean((full - X)[lost] ** 2) / np.mean(X[lost] ** 2)))

    def by_last(self, model, Y):
        """Of all rows imputed by the last model."""
        return self.rms(Y, model.fit(Y).impute(Y))

    def by_each(self, model, Y):
        """Of each batch imputed by the model of its time."""
        return self.rms(Y, missing_defaults.on_the_way(model, Y))

    def by_soft_impute(self, Y):
        """Of a soft SVD of all rows."""
        return self.rms(Y, missing_defaults.soft_impute(Y, rank(Y)))

    def by_means(self, Y):
        """Of the means of the columns."""
        return self.rms(Y, np.where(np.isnan(Y), np.nanmean(Y, axis=0), Y))


def holes(quick):
    sets = [(name, scale(X)) for name, X in measured(500, quick=True).items()]
    hidden = Hidden(sets, (0.1, 0.3))
    means = "column means", hidden.by_means
    return Family("holes", hidden.data, hidden.by_last, lambda X: trackers(X, holes=True), means)


def in_batches(X):
    """Trackers that take batches, and other memories; 0 is that of the papers."""
    k = rank(X)
    grid = {"forgetting_factor": [1.0, 0.99, 0.0]}
    models = (
        SubspaceTracker(k),
        RobustSubspaceTracker(k),
        FederatedSubspaceTracker(k, robust=False, random_state=0),
    )
    return [(model, grid) for model in models]


def batches(quick):
    hidden = Hidden(missing_defaults.data(quick), (0.3,))
    simple = "soft-impute", hidden.by_soft_impute
    return Family("batches", hidden.data, hidden.by_last, in_batches, simple)


def batches_of_now(quick):
    hidden = Hidden(missing_defaults.data(quick), (0.3,))
    simple = "soft-impute", hidden.by_soft_impute
    return Family("batches_of_now", hidden.data, hidden.by_each, in_batches, simple)


# -------------------------------------------------------------------------------------- outliers


def separated(model, film):
    """Entries found or planted over those that are both, in the frames after the first."""
    first, new = np.split(film.X, [film.n_train])
    model.fit(first)
    if isinstance(model, AlternatingProjections):
        found = model.decompose(new)[1] != 0
    else:
        found = model.partial_fit(new).outlier_mask_
    return 1 / films.overlap(found, film.mask[film.n_train :])


def separators(film):
    ranks = {"n_components": [3, 10]}
    thresholds = ranks | {"support_threshold": ["auto", 12, 20]}
    return [
        (RobustSubspaceTracker(), thresholds),
        (FederatedSubspaceTracker(random_state=0), thresholds),
        (AlternatingProjections(), ranks | {"threshold_scale": ["auto", 0.02]}),
    ]


def best_simple(film):
    """The same of median, PCA and pursuit, with the best of 12 thresholds in hindsight."""
    true = film.mask[film.n_train :]
    left = [films.median(film), *(films.pca(film, k) for k in (3, 6, 10)), films.pursuit(film)]
    return 1 / max(films.judged(rest, true)[1] for rest in left)


def outliers(quick):
    kinds = [("still", "moving")] if quick else product(("still", "waving"), MOTIONS)
    data = {f"{kind}, {motion}": films.make_film(kind, motion, seed=7) for kind, motion in kinds}
    return Family("outliers", data, separated, separators, ("best simple", best_simple))


class Planted:
    """Rows with or without outliers of ten deviations in 5 % of the entries."""

    def __init__(self, X, share):
        rng = np.random.default_rng(8)
        size = np.maximum(X.std(axis=0), 0.3 * X.std())
        self.X, self.k = X, rank(X)
        self.given = X + 10 * size * (rng.random(X.shape) < share) * rng.choice([-1, 1], X.shape)
        best = PCA(self.k).fit(X)
        self.best = reconstruction_error(X, best.components_, best.mean_)

    def over_pca(self, model):
        """Squared error of the rows over that of PCA of the rows without outliers."""
        return reconstruction_error(self.X, model.components_, model.mean_) / self.best

    def clipped(self):
        """The rows given, cut at three robust deviations of each column that has one."""
        middle = np.median(self.given, axis=0)
        deviation = 1.4826 * np.median(np.abs(self.given - middle), axis=0)
        limit = np.where(deviation > 0, 3 * deviation, np.inf)
        return self.given.clip(middle - limit, middle + limit)


def unlike_columns(quick):
    """Digits, also with columns that are blank, wine, cancer, counts, and columns of two units."""
    rng = np.random.default_rng(9)
    digits = load_digits().data
    blank = np.zeros((len(digits), 144))
    blank[:, np.arange(144).reshape(12, 12)[2:10, 2:10].ravel()] = digits
    rows = make_power_law(1000, 40, alpha=1.5, random_state=9) + 1
    data = {"digits": digits, "digits, blank border": blank}
    data["half of the columns in a unit of 1000"] = rows * np.where(np.arange(40) < 20, 1, 1e-3)
    if not quick:
        data["half of the columns constant"] = rows * (np.arange(40) < 20) + 1
        data["wine, standardised"] = scale(load_wine().data)
        data["cancer, standardised"] = scale(load_breast_cancer().data)
        rates = rng.gamma(0.3, 1, (1000, 5)) @ rng.gamma(0.3, 1, (5, 40))
        data["counts, 60 % zero"] = rng.poisson(rates).astype(float)
    return data


def robust(planted):
    trackers = (RobustSubspaceTracker, partial(FederatedSubspaceTracker, random_state=0))
    fading = {"forgetting_factor": [1.0, 0.99]}
    found = [(tracker(planted.k), fading) for tracker in trackers]
    return [*found, (AlternatingProjections(planted.k), {"center": [True]})]


def without_outliers(quick, share=0.0, name="clean"):
    data = {k: Planted(X, share) for k, X in unlike_columns(quick).items()}

    def error(model, planted):
        return planted.over_pca(model.fit(planted.given))

    def simple(planted):
        return planted.over_pca(PCA(planted.k).fit(planted.clipped()))

    return Family(name, data, error, robust, ("PCA of clipped columns", simple))


def with_outliers(quick):
    return without_outliers(quick, 0.05, "planted")


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


FAMILIES = (
    streams,
    changing,
    holes,
    batches,
    batches_of_now,
    outliers,
    without_outliers,
    with_outliers,
    rounds,
)


def main(quick=False):
    for family in FAMILIES:
        found = family(quick)
        print(f"\n{found.name}")
        table(f"defaults_{found.name}", list(found.rows()))
