"""Rows with holes at sites: pairs, filling by rounds, and imputation by means or neighbours.

Four sites of rows in an order that was drawn once, columns standardised, 5 components (3 of fewer
than 20 columns). "at random": 20 % of the entries are hidden. "by site": each site lacks a quarter
of the columns, and 5 % of the others' entries. Excess error of the components for the whole rows,
and the first and the total variance over those of the whole rows.
"""

import warnings

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.preprocessing import scale

from benchmarks._tools import table
from fedpca_sklearn import (
    AvailablePairs,
    ConditionalFill,
    DistributedPCA,
    FederatedPCA,
    FederatedSubspaceTracker,
    SubspaceTracker,
    excess_error,
    make_power_law,
)

SITES = 4


def data(quick):
    """Standardised columns that vary, by name, and the number of components."""
    sets = {
        "wine": load_wine().data,
        "diabetes": load_diabetes().data,
        "breast cancer": load_breast_cancer().data,
        "digits": load_digits().data,
        "power law": make_power_law(1500, 300, alpha=1.0, random_state=11),
    }
    rng = np.random.default_rng(12)
    for name, X in sets.items():
        X = X[rng.permutation(len(X))]
        X = X[:150] if quick else X
        X = scale(X[:, X.std(axis=0) > 0])
        yield name, X, 5 if X.shape[1] > 20 else 3


def holes(X, sites):
    """Which entries are hidden, by name."""
    rng = np.random.default_rng(13)
    d = X.shape[1]
    yield "at random", rng.random(X.shape) < 0.2
    lost = rng.random(X.shape) < 0.05
    order = rng.permutation(d)
    for site in range(SITES):  # each pair of columns is there at two sites or more
        lost[np.ix_(sites == site, order[site::SITES])] = True
    yield "by site", lost


def models(k, by_site):
    """Estimators by name; a tracker at a site that lacks columns is refused."""
    yield "AvailablePairs", FederatedPCA(k, missing=AvailablePairs())
    yield "ConditionalFill", FederatedPCA(k, missing=ConditionalFill())
    yield "10 rounds", FederatedPCA(k, missing=ConditionalFill(n_rounds=10))
    yield (
        "FederatedSubspaceTracker",
        FederatedSubspaceTracker(k, robust=False, forgetting_factor=1.0, random_state=0),
    )
    if not by_site:
        yield "trackers at sites", FederatedPCA(k, estimator=SubspaceTracker(k))


def fits(X, lost, sites, k, by_site):
    """Fitted estimators by name."""
    Y = np.where(lost, np.nan, X)
    for name, imputer in (("means", SimpleImputer()), ("5 neighbours", KNNImputer())):
        yield name, FederatedPCA(k).fit(imputer.fit_transform(Y), clients=sites)  # pooled
    for name, model in models(k, by_site):
        if name == "AvailablePairs" and X.shape[1] > 256:
            model = DistributedPCA(k, missing=AvailablePairs())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The covariance of available pairs")
            yield name, model.fit(Y, clients=sites)


def measured(quick):
    """Rows of three tables: excess errors, and two variances over those of whole rows."""
    tables = {"excess": [], "first": [], "total": []}
    for name, X, k in data(quick):
        sites = np.arange(len(X)) % SITES
        whole = FederatedPCA(k).fit(X, clients=sites)
        for how, lost in holes(X, sites):
            rows = {what: {"data": name, "hidden": how} for what in tables}
            for model, pca in fits(X, lost, sites, k, how == "by site"):
                rows["excess"][model] = excess_error(X, pca.components_, pca.mean_)
                rows["first"][model] = pca.explained_variance_[0] / whole.explained_variance_[0]
                total = pca.subspace_.total_variance / whole.subspace_.total_variance
                rows["total"][model] = total
            for what, row in rows.items():
                row.setdefault("trackers at sites", "refused")
                tables[what].append(row)
    return tables


def main(quick=False):
    for what, rows in measured(quick).items():
        table(f"missing_sites_{what}", rows)
