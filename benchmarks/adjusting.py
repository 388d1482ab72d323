"""What `scale=True` and `partial_out` cost beside the same fit without them, and pooled rows.

Rows of `make_power_law`, n = 10 d or more, in "like" units, where all columns have a variance of 1,
and in "unlike" ones, 10^-3 to 10^3 times that. Seconds of the processor for a fit, least of some in
turn; the others over them: `scale=True`, `partial_out` of two columns, both, and scikit-learn's
pipeline of StandardScaler and PCA, which needs all rows in one place. Then the largest sine between
the scaled components and those of the pipeline. Batches are calls of `partial_fit`. Last, what it
takes to read the directions of the rows themselves after a scaled fit in unlike units.
"""

from time import process_time

import numpy as np
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks._tools import interleaved, table
from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    StreamingPCA,
    make_power_law,
    subspace_distance,
)

SITES = 4
KINDS = {
    "StreamingPCA": StreamingPCA(),
    "FederatedPCA": FederatedPCA(n_clients=SITES),
    "DistributedPCA": DistributedPCA(n_clients=SITES),
}
# rows, features and components, of which all but the last keep all directions of a stream
SHAPES = ((5000, 100, 10), (2560, 256, 10), (6000, 600, 20), (10_000, 1000, 20))
BATCHES = ((2000, 100, 10, 50), (2560, 256, 10, 128), (4000, 400, 10, 100))
ASKED = {
    "plain": {},
    "scale": {"scale": True},
    "partial_out": {"partial_out": [0, 1]},
    "both": {"scale": True, "partial_out": [0, 1]},
}


def drawn(n, d, units):
    """Rows in like or unlike units, about another mean than the origin."""
    X = make_power_law(n, d, alpha=1.0, random_state=0)
    spread = {"like": 0.0, "unlike": 3.0}[units]
    return (X / X.std(axis=0) + 1) * 10 ** np.random.default_rng(0).uniform(-spread, spread, d)


def in_batches(model, X, size):
    """A model that has taken a few rows a call, and shown its components."""
    for start in range(0, len(X), size):
        model.partial_fit(X[start : start + size])
    return model.components_ is not None and model


def measured(model, X, k, repeats, size=None):
    """Seconds of a fit, what others take times that, and the sine."""

    def fitted(asked):
        pca = model.__class__(**{**model.get_params(), "n_components": k, **asked})
        return pca.fit(X) if size is None else in_batches(pca, X, size)

    calls = {name: lambda asked=asked: fitted(asked) for name, asked in ASKED.items()}
    pipeline = make_pipeline(StandardScaler(), PCA(k, svd_solver="covariance_eigh"))
    calls["pipeline"] = lambda: pipeline.fit(X)
    seconds, results = interleaved(calls, repeats, clock=process_time)
    plain = seconds["plain"][1]
    ratios = {name: least / plain for name, (_, least) in seconds.items() if name != "plain"}
    sine = subspace_distance(results["scale"].components_, results["pipeline"][-1].components_)
    return {"seconds": plain, **ratios, "sine": sine}


def fits(shapes, repeats):
    """A row for each estimator, shape and kind of units."""
    return [
        {"estimator": name, "n x d, k": f"{n} x {d}, {k}", "units": units}
        | measured(model, drawn(n, d, units), k, repeats)
        for name, model in KINDS.items()
        for n, d, k in shapes
        for units in ("like", "unlike")
    ]


def batches(shapes, repeats):
    """A row for each shape and kind of units."""
    return [
        {"batches": size, "n x d, k": f"{n} x {d}, {k}", "units": units}
        | measured(KINDS["StreamingPCA"], drawn(n, d, units), k, repeats, size)
        for n, d, k, size in shapes
        for units in ("like", "unlike")
    ]


def reading(shapes, repeats):
    """A row for each shape: seconds of directions that are read, over those of an eigenproblem."""
    rows = []
    for n, d, k in shapes:
        X = drawn(n, d, "unlike")
        S = np.corrcoef(X.T)
        fitted = iter([StreamingPCA(k, scale=True).fit(X) for _ in range(repeats)])
        calls = {
            "read": lambda fitted=fitted: next(fitted).subspace_.components,
            "eigenproblem": lambda S=S: np.linalg.eigh(S),
        }
        (_, read), (_, solved) = interleaved(calls, repeats, clock=process_time)[0].values()
        rows.append({"n x d, k": f"{n} x {d}, {k}", "seconds": read, "times": read / solved})
    return rows


def main(quick=False):
    table("adjusting_fits", fits(SHAPES[:1] if quick else SHAPES, 2 if quick else 3))
    print()
    table("adjusting_batches", batches(BATCHES[:1] if quick else BATCHES, 1 if quick else 2))
    print("\nreading subspace_, in seconds and times an eigenproblem of all columns")
    table("adjusting_reading", reading(SHAPES[:1] if quick else SHAPES, 2))
