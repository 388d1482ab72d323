"""Sites with other means, columns with other units: what is scaled and centred by whom.

8,000 rows at eight sites, 30 columns, three common directions. "means": each site adds an offset of
its own to all columns; "scales": columns come in units from 1 to 1,000; "sorted": sites hold
unlike rows of one population, by its first direction. The error is the sine of the largest angle to
what is wanted: of "means" the common directions of the rows minus their site's mean, of the others
the PCA of the correlation matrix of all rows.
"""

import numpy as np
from sklearn.decomposition import PCA
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler, scale

from benchmarks._tools import table
from fedpca_sklearn import FederatedPCA, FederatedScaler, SubspaceMerge, subspace_distance

K, SITES, D = 3, 8, 30


def own(X, site, change):
    """Rows that each site has changed by itself."""
    return np.concatenate([change(X[site == s]) for s in range(SITES)])


def scenarios(n):
    """Yield name, rows, labels in order, and the rows whose components are wanted."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((n, K)) * [3, 2, 1.5]
    X = scores @ np.linalg.qr(rng.standard_normal((D, K)))[0].T + 0.5 * rng.standard_normal((n, D))
    site = np.arange(n) * SITES // n
    moved = X + 2 * rng.standard_normal((SITES, D))[site]
    yield "means", moved, site, own(moved, site, lambda rows: rows - rows.mean(axis=0))
    units = X * 10.0 ** np.linspace(0, 3, D)
    yield "scales", units, site, scale(units)
    by_first = units[np.argsort(scores[:, 0])]
    yield "sorted", by_first, site, scale(by_first)


def fits(X, site):
    """Components by the way to them, and floats that a site sends."""
    scaled = Pipeline([("scale", FederatedScaler()), ("pca", FederatedPCA(K))])
    scaled.fit(X, scale__clients=site, pca__clients=site)
    logs = [step.communication_.floats_up for _, step in scaled.steps]
    yield "as they are", FederatedPCA(K).fit(X, clients=site)
    within = FederatedPCA(K, merge=SubspaceMerge(center="site")).fit(X, clients=site)
    yield 'SubspaceMerge(center="site")', within
    yield "FederatedScaler", (scaled[-1], sum(logs))
    yield "each site scales", FederatedPCA(K).fit(own(X, site, scale), clients=site)
    pooled = PCA(K).fit(StandardScaler().fit_transform(X))
    yield "StandardScaler, pooled rows", (pooled, X.size)


def angles(quick=False):
    """One row for each way, a column for each kind of sites."""
    rows = {}
    for name, X, site, wanted in scenarios(1_600 if quick else 8_000):
        true = PCA(K).fit(wanted).components_
        for way, found in fits(X, site):
            model, floats = found if isinstance(found, tuple) else (found, None)
            floats = model.communication_.floats_up if floats is None else floats
            row = rows.setdefault(way, {"way": way})
            row[name] = float(subspace_distance(model.components_, true))
            row["floats a site"] = floats // SITES
    return list(rows.values())


def main(quick=False):
    table("site_effects", angles(quick))
