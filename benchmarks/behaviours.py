"""Behaviours on which docs/differences.md quotes numbers, beside PCA and IncrementalPCA."""

import warnings

import numpy as np
from sklearn.datasets import load_digits, load_iris
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD

from benchmarks._tools import peak_bytes, table
from fedpca_sklearn import StreamingPCA, excess_error, make_power_law, subspace_distance


def in_batches(estimator, X, size):
    """Fit by partial_fit."""
    for start in range(0, len(X), size):
        estimator.partial_fit(X[start : start + size])
    return estimator


def attempt(call):
    """Result of a call, or the name of its error."""
    try:
        return call()
    except Exception as error:
        return type(error).__name__


def main(quick=False):
    warnings.simplefilter("ignore")
    digits = load_digits().data
    rng = np.random.default_rng(0)
    far = 1000 + rng.standard_normal((5000, 50)) * np.linspace(2, 0.5, 50)
    true = PCA(5).fit(far - 1000).components_
    far = far.astype(np.float32)
    nine = np.full((9, 2), 3.0)
    square = rng.standard_normal((2000, 1000))
    kinds = {"PCA": PCA, "IncrementalPCA": IncrementalPCA, "StreamingPCA": StreamingPCA}
    streams = {name: kind for name, kind in kinds.items() if name != "PCA"}
    rows = []

    def add(behaviour, kinds, measure):
        rows.append({"behaviour": behaviour})
        for name in ("PCA", "IncrementalPCA", "StreamingPCA"):
            kind = kinds.get(name)
            rows[-1][name] = "" if kind is None else attempt(lambda k=kind: measure(k))

    add(
        "digits, r=10: excess error",
        kinds,
        lambda k: excess_error(digits, k(10).fit(digits).components_),
    )
    add(
        "digits in batches of 10: excess error",
        streams,
        lambda k: excess_error(digits, in_batches(k(10), digits, 10).components_),
    )
    add("digits, r=10: noise_variance_", kinds, lambda k: float(k(10).fit(digits).noise_variance_))
    for size in (18, 10):
        add(
            f"digits in batches of {size}: noise_variance_",
            streams,
            lambda k, size=size: float(in_batches(k(10), digits, size).noise_variance_),
        )
    add(
        "float32, mean 1000, deviation 0.5 to 2: distance",
        kinds,
        lambda k: subspace_distance(k(5).fit(far).components_, true),
    )
    lengths = np.random.default_rng(0).lognormal(0, 1, 400)
    units = make_power_law(2000, 400, random_state=0) * lengths
    variances = units.var(axis=0, ddof=1)
    for end in ("least", "largest"):
        add(
            f"2,000 x 400, unlike units, r=10: {end} of get_covariance's diagonal / variance",
            {name: kinds[name] for name in ("PCA", "StreamingPCA")},
            lambda k, at=np.min if end == "least" else np.max: float(
                at(np.diag(k(10).fit(units).get_covariance()) / variances)
            ),
        )
    iris = load_iris().data
    add(
        "iris, whiten: error of get_covariance",
        kinds,
        lambda k: float(np.abs(k(whiten=True).fit(iris).get_covariance() - np.cov(iris.T)).max()),
    )
    add(
        "first batch of one row, r=2",
        streams,
        lambda k: str(k(2).partial_fit(iris[:1]).singular_values_),
    )
    add(
        "n_components=5, three rows: n_components_",
        kinds,
        lambda k: k(5).fit(digits[:3]).n_components_,
    )
    add("nine equal rows: ratios", kinds, lambda k: str(k(2).fit(nine).explained_variance_ratio_))
    add(
        "nine equal rows, whiten: a row beside them",
        kinds,
        lambda k: float(np.abs(k(2, whiten=True).fit(nine).transform([[3.0, 4.0]])).max()),
    )
    add(
        "2,000 x 1,000, r=20: peak MB", kinds, lambda k: peak_bytes(lambda: k(20).fit(square)) / 1e6
    )
    table("behaviours", rows)
    print(
        "digits, no centring, first explained_variance_: "
        f"TruncatedSVD {TruncatedSVD(2, random_state=0).fit(digits).explained_variance_[0]:.1f}, "
        f"StreamingPCA {StreamingPCA(2, center=False).fit(digits).explained_variance_[0]:.0f}"
    )
