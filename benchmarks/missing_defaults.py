"""Trackers of rows with holes by default, beside their best of a grid and simple things.

Rms of what is imputed over that of the column means' errors, 30 % hidden, rank 5 (3 of 11), columns
standardised: "at the end" all rows by the model after the last, "on the way" each batch of 40 by
the model that has just taken it. Sections of light as they were recorded; numbers and wine in an
order that was drawn once. Soft-impute: 30 rounds of the SVD of rank k, lowered by the next singular
value.
"""

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.impute import KNNImputer
from sklearn.preprocessing import scale

from benchmarks._tools import load, table
from fedpca_sklearn import (
    GROUSE,
    PETRELS,
    FederatedSubspaceTracker,
    RobustSubspaceTracker,
    SubspaceTracker,
)

BATCH = 40
GRID = {
    "by default": {},
    "batches of 30": {"batch_size": 30},
    "all count": {"forgetting_factor": 1.0},
    ".99": {"forgetting_factor": 0.99},
    "last batch": {"forgetting_factor": 0.0},
    "least squares": {"fill": "subspace"},
    "paper": {"forgetting_factor": 0.0, "fill": "subspace"},
}


def data(quick):
    """Standardised columns that vary, by name."""
    rng = np.random.default_rng(5)
    digits = load_digits().data
    sets = {"digits": digits[rng.permutation(len(digits))]}
    if (path := load("wine_redwhite.npz")) is not None:
        wine = np.load(path)["X"].astype(np.float64)
        sets["wine"] = wine[rng.permutation(len(wine))[:2000]]
    if (path := load("motes_light.npz")) is not None:
        light = np.load(path)["X"].astype(np.float64)
        for at in (0, 2500, 5000):
            sets[f"light, from {at}"] = light[at : at + 2000]
    for name, X in sets.items():
        X = X[:500] if quick else X
        yield name, scale(X[:, X.std(axis=0) > 0])


def soft_impute(Y, k, rounds=30):
    """Missing entries by a soft SVD."""
    lost, mean = np.isnan(Y), np.nanmean(Y, axis=0)
    Z = np.where(lost, 0.0, Y - mean)
    for _ in range(rounds):
        centre = Z.mean(axis=0)
        U, s, V = np.linalg.svd(Z - centre, full_matrices=False)
        Z[lost] = ((U[:, :k] * (s[:k] - s[k])) @ V[:k] + centre)[lost]
    return Z + mean


def interpolated(Y):
    """Missing entries by straight lines in time."""
    Y, t = Y.copy(), np.arange(len(Y))
    for y in Y.T:
        there = ~np.isnan(y)
        y[~there] = np.interp(t[~there], t[there], y[there])
    return Y


def on_the_way(model, Y):
    """Each batch as imputed by the model that has taken it."""
    model, parts = clone(model), []
    for at in range(0, len(Y), BATCH):
        rows = Y[at : at + BATCH]
        parts.append(model.partial_fit(rows).impute(rows))
    return np.concatenate(parts)


def measured(quick):
    ends, ways, grid = [], [], []
    for name, X in data(quick):
        k = 5 if X.shape[1] > 20 else 3
        lost = np.random.default_rng(6).random(X.shape) < 0.3
        Y = np.where(lost, np.nan, X)
        by_means = np.linalg.norm((X - np.nanmean(Y, axis=0))[lost])

        def error(full, X=X, lost=lost, by_means=by_means):
            return float(np.linalg.norm((full - X)[lost]) / by_means)

        models = {
            "SubspaceTracker": SubspaceTracker(k),
            "RobustSubspaceTracker": RobustSubspaceTracker(k),
            "FederatedSubspaceTracker": FederatedSubspaceTracker(k, robust=False, random_state=0),
            "PETRELS": PETRELS(k, random_state=0),
            "GROUSE": GROUSE(k, random_state=0),
        }
        simple = {
            "soft-impute": error(soft_impute(Y, k)),
            "interpolation": error(interpolated(Y)),
            "5 neighbours": error(KNNImputer().fit_transform(Y)),
        }
        ends.append(
            {"at the end": name}
            | {m: error(clone(model).fit(Y).impute(Y)) for m, model in models.items()}
            | simple
        )
        ways.append(
            {"on the way": name}
            | {m: error(on_the_way(model, Y)) for m, model in models.items()}
            | simple
        )
        for how, impute in (
            ("at the end", lambda model, Y: model.fit(Y).impute(Y)),
            ("on the way", on_the_way),
        ):
            scores = {
                s: error(impute(SubspaceTracker(k, **options), Y)) for s, options in GRID.items()
            }
            best = min(scores, key=scores.get)
            grid.append({how: name, **scores, "over best": scores["by default"] / scores[best]})
    return ends, ways, grid


def main(quick=False):
    ends, ways, grid = measured(quick)
    table("missing_defaults_end", ends)
    table("missing_defaults_way", ways)
    for how in ("at the end", "on the way"):
        table(f"missing_defaults_{how.replace(' ', '_')}", [row for row in grid if how in row])
