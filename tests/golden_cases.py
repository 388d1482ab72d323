"""The fits that `golden.py` keeps: estimators as code, how rows reach them, and sets of rows."""

import inspect
from functools import cache
from types import SimpleNamespace

import numpy as np
import scipy.sparse as sp
from scipy.linalg import hadamard
from sklearn.base import BaseEstimator
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD

import fedpca_sklearn

NAMES = {name: getattr(fedpca_sklearn, name) for name in fedpca_sklearn.__all__}
NAMES |= {"PCA": PCA, "IncrementalPCA": IncrementalPCA, "TruncatedSVD": TruncatedSVD, "np": np}
SETS = ("dense", "sparse", "float32", "weighted", "far", "missing")
# Distance of the far mean from the origin, in deviations of a column.
FAR = 1e5
# Rows of the calls of partial_fit, or of the batches of an iterator.
BATCHES = (1, 2, 40, 7, 50, 60)
# Rows of sites are cut in these shares, and mixed.
SITES = (0.4, 0.3, 0.2, 0.1)
# Parameters without two wrong values.
UNCHECKED = ("estimator", "copy", "n_jobs")
# Other versions of BLAS find others: two refinements leave the third direction open, and the local
# decompositions are about the origin.
UNCERTAIN = (
    "FederatedPCA(3, n_refinements=2) | wide | sparse",
    'FederatedPCA(2, estimator=TruncatedSVD(3, algorithm="arpack"), random_state=0) | fit | far',
)

# Each by `fit`, with the labels of four sites where it takes them.
BY_FIT = """
StreamingPCA()
StreamingPCA(3)
StreamingPCA(0.9)
StreamingPCA("mle")
StreamingPCA(2, oversampling=0, block_size=20)
StreamingPCA(3, oversampling=4, block_size=33)
StreamingPCA(3, forgetting_factor=0.98)
StreamingPCA(3, half_life=40.0)
StreamingPCA(3, forgetting_factor=0.8, forgetting="blocks", block_size=40)
StreamingPCA(3, rank_rule=ContributionBounds(0.02, 0.1), block_size=20)
StreamingPCA(3, rank_rule=ContributionBounds(0.02, 0.1, growth="canonical", hold_off=1), block_size=20)
StreamingPCA(3, rank_rule=EnergyBounds(0.9, 0.97), block_size=20)
StreamingPCA(3, center=False)
StreamingPCA(3, whiten=True)
StreamingPCA(3, svd_solver="qr")
StreamingPCA(3, svd_solver="gram")
StreamingPCA(3, scale=True)
StreamingPCA(2, partial_out=[0, 4])
StreamingPCA(2, scale=True, partial_out=[1], forgetting_factor=0.99)
FederatedPCA()
FederatedPCA(3)
FederatedPCA(0.9)
FederatedPCA("parallel")
FederatedPCA(3, estimator=StreamingPCA(3, oversampling=0, block_size=20))
FederatedPCA(3, estimator=StreamingPCA(center=False))
FederatedPCA(3, estimator=PCA(4))
FederatedPCA(3, estimator=IncrementalPCA(4))
FederatedPCA(3, estimator=SubspaceTracker(4))
FederatedPCA(3, estimator=FrequentDirections(4))
FederatedPCA(2, estimator=TruncatedSVD(3, algorithm="arpack"), random_state=0)
FederatedPCA(3, merge=SubspaceMerge("qr", fan_in=2))
FederatedPCA(3, merge=SubspaceMerge("gram"))
FederatedPCA(3, merge=SubspaceMerge("orthogonal"))
FederatedPCA(3, merge=SubspaceMerge(center="site"))
FederatedPCA(3, merge=SubspaceMerge(fan_in=2, truncate=True, forgetting_factor=0.9))
FederatedPCA(3, merge=ProjectionAverage(4))
FederatedPCA(3, merge=ProjectionAverage(weighting="rows"))
FederatedPCA(2, merge=NoiseAwareMerge())
FederatedPCA(2, merge=RobustMerge())
FederatedPCA(2, merge=RobustMerge("median", max_bad=1))
FederatedPCA(2, mechanism=AnalyzeGauss(4.0, 1e-3, 60.0), random_state=0)
FederatedPCA("above_noise", mechanism=AnalyzeGauss(9.0, 1e-3, "private", center="private"), random_state=0)
FederatedPCA(2, mechanism=StreamingModSuLQ(4.0, 1e-3, 60.0, trust="sum"), random_state=0)
FederatedPCA(3, missing=AvailablePairs())
FederatedPCA(3, missing=ConditionalFill(3))
FederatedPCA(2, estimator=StreamingPCA(2, oversampling=0, block_size=20), n_refinements=2)
FederatedPCA(2, estimator=StreamingPCA(2, oversampling=0), n_refinements=9, tol=1e-3)
FederatedPCA(3, scale=True)
FederatedPCA(2, partial_out=[0, 4])
FederatedPCA(2, scale=True, partial_out=[1], merge=SubspaceMerge(fan_in=2))
PersonalizedPCA(2, 1)
PersonalizedPCA(1, 2, estimator=StreamingPCA(4))
PersonalizedPCA(1, 1, random_state=1)
DistributedPCA()
DistributedPCA(3)
DistributedPCA(0.9)
DistributedPCA(3, missing=AvailablePairs(min_rows=3))
DistributedPCA(3, scale=True)
DistributedPCA(2, partial_out=[2])
TruncatedDistributedPCA(3)
TruncatedDistributedPCA(2, local_threshold=0.5)
TruncatedDistributedPCA(0.9, local_threshold=1.0)
OnlineDistributedPCA(3)
OnlineDistributedPCA(2, projection_dim=4, weighting="rows")
OnlineDistributedPCA(2, average="steps", center=False, variances="sent")
FrequentDirections(3)
FrequentDirections(2, sketch_size=5, robust=True, center=False)
OjaPCA(3, random_state=0)
OjaPCA(2, learning_rate=0.01, batch_size=10, random_state=0)
OjaPCA(2, learning_rate="adaptive", center=False, random_state=0)
OjaPCA(2, init="random", random_state=3)
GROUSE(3, random_state=0)
GROUSE(2, step_size=0.001, center=False, random_state=0)
GROUSE(2, step_size="greedy", init="random", random_state=0)
PAST(3, random_state=0)
PAST(2, deflation=True, forgetting_factor=0.98, random_state=0)
PAST(2, half_life=60.0, center=False, init="random", random_state=0)
SPIRIT()
SPIRIT(2, lower=0.9, upper=0.97, forgetting_factor=1.0, hold_off=2)
SPIRIT(2, half_life=50.0, center=False)
PETRELS(3, random_state=0)
PETRELS(2, forgetting_factor=0.98, regularization=0.1, random_state=0)
PETRELS(2, half_life=60.0, center=False, init="random", random_state=0)
StreamingPowerMethod(3, random_state=0)
StreamingPowerMethod(2, block_size=20, center=False, init="random", random_state=0)
SubspaceTracker(3)
SubspaceTracker(2, batch_size=20, forgetting_factor=0.9, n_iter=2)
SubspaceTracker(2, batch_size=20, half_life=80.0, center=False)
SubspaceTracker(2, batch_size=20, fill="subspace", init=np.eye(2, 10))
SubspaceTracker(2, batch_size=8, detect_changes=ChangeDetection(3, 0.5))
SubspaceTracker(2, batch_size=40, store_subspaces=True)
RobustSubspaceTracker(3)
RobustSubspaceTracker(2, init=FirstSubspace("svd", 40), batch_size=20)
RobustSubspaceTracker(2, support_threshold=OutlierSupport(15.0, 20.0, None), forgetting_factor=0.9)
RobustSubspaceTracker(2, half_life=80.0, n_iter=2, fill="subspace", center=False)
RobustSubspaceTracker(2, batch_size=8, detect_changes=ChangeDetection(3, 0.5))
RobustSubspaceTracker(2, batch_size=40, store_subspaces=True)
AlternatingProjections(3)
AlternatingProjections(2, threshold_scale=0.5, tol=1e-3, max_iter=30, center=True)
FederatedHeteroscedasticPCA(2, random_state=0)
FederatedHeteroscedasticPCA(2, n_rounds=5, tol=1e-2, center=False, random_state=0)
FederatedHeteroscedasticPCA(2, n_rounds=5, channel=FixedPointChannel(40), random_state=0)
FederatedPowerPCA(3, random_state=0)
FederatedPowerPCA(2, acceleration=None, tol=1e-5, random_state=0)
FederatedPowerPCA(2, acceleration="krylov", random_state=0)
FederatedPowerPCA(2, center=False, local_steps=2, random_state=0)
FederatedPowerPCA(2, n_rounds=3, init=np.eye(2, 10))
FederatedPowerPCA(2, n_rounds=3, channel=GaussianChannel(1e-3), random_state=0)
FederatedPowerPCA(2, n_rounds=3, channel=RobustSum(), random_state=0)
FederatedPowerPCA(2, n_rounds=3, mechanism=FedPowerNoise(4.0, 1e-3, 60.0), random_state=0)
FederatedSubspaceTracker(2, random_state=0)
FederatedSubspaceTracker(2, batch_size=20, n_rounds=4, init=FirstSubspace(n_rounds=6), robust=False, random_state=0)
FederatedSubspaceTracker(2, init=FirstSubspace("svd", 40), support_threshold=OutlierSupport(15.0, 20.0), random_state=0)
FederatedSubspaceTracker(2, forgetting_factor=0.9, n_iter=2, fill="subspace", center=False, random_state=0)
FederatedSubspaceTracker(2, half_life=80.0, batch_size=40, store_subspaces=True, random_state=0)
FederatedSubspaceTracker(2, batch_size=20, detect_changes=ChangeDetection(2, 0.5), random_state=0)
FederatedSubspaceTracker(2, n_rounds=3, channel=FixedPointChannel(40), random_state=0)
FederatedScaler()
FederatedScaler(with_mean=False)
FederatedScaler(with_std=False, copy=False)
VerticalFederatedPCA(2, feature_groups=3, random_state=0)
VerticalFederatedPCA(2, feature_groups=[range(4), range(4, 10)], method="merge")
VerticalFederatedPCA(2, feature_groups=3, method=LeftVectorMerge(2), center=False)
VerticalFederatedPCA(2, feature_groups=3, method=PowerRounds(40, tol=1e-6), random_state=0)
VerticalFederatedPCA(1, feature_groups=3, method=VFedPCA(5, 4, weighting="equal"), topology=Ring(1e-3), random_state=0)
VerticalFederatedKernelPCA(2, feature_groups=3, random_state=0)
VerticalFederatedKernelPCA(2, feature_groups=2, kernel="poly", gamma=0.1, degree=2, coef0=2, center=False, random_state=0)
VerticalFederatedKernelPCA(1, feature_groups=2, aggregation="paper", topology=Complete(), random_state=0)
VerticalFederatedKernelPCA(1, feature_groups=2, n_landmarks=20, random_state=0)
VerticalFederatedKernelPCA(1, feature_groups=3, aggregation="paper", projection="features", random_state=0)
SubspaceMonitor(StreamingPCA(2))
SubspaceMonitor(StreamingPCA(2), contamination=0.1, limits="chi2")
SubspaceMonitor(FederatedPCA(2), drift_window=20, drift_level=0.01)
"""  # noqa: E501

# Each by calls of `partial_fit`, of very unlike numbers of rows.
BY_BATCHES = """
StreamingPCA(3)
StreamingPCA(3, forgetting_factor=0.98)
StreamingPCA(3, half_life=40.0)
StreamingPCA(2, oversampling=0, block_size=20)
StreamingPCA(3, center=False, svd_solver="qr")
StreamingPCA(2, scale=True, partial_out=[1])
FederatedPCA(3)
FederatedPCA(3, merge=SubspaceMerge(fan_in=2))
FederatedPCA(2, scale=True, partial_out=[1])
DistributedPCA(3)
TruncatedDistributedPCA(2)
OnlineDistributedPCA(2)
FrequentDirections(2, sketch_size=5)
OjaPCA(2, random_state=0)
PAST(2, random_state=0)
GROUSE(2, random_state=0)
PETRELS(2, random_state=0)
SPIRIT(2)
StreamingPowerMethod(2, block_size=20, random_state=0)
SubspaceTracker(2, batch_size=20)
RobustSubspaceTracker(2, batch_size=20)
FederatedSubspaceTracker(2, batch_size=20, n_rounds=3, random_state=0)
FederatedScaler()
SubspaceMonitor(StreamingPCA(2))
"""

# Each by `fit` of an iterator of the same batches.
BY_ITERATOR = """
StreamingPCA(3)
StreamingPCA(3, forgetting_factor=0.98)
StreamingPCA(2, scale=True)
FrequentDirections(2, sketch_size=5)
SubspaceTracker(2, batch_size=20)
"""

# Each by `fit` without labels: rows are cut into as many shards.
BY_SHARDS = """
FederatedPCA(3, n_clients=7, n_jobs=2)
FederatedPCA(0.8, merge=SubspaceMerge(fan_in=2), n_clients=5)
DistributedPCA(3, n_clients=5)
TruncatedDistributedPCA(3, local_threshold=0.6, n_clients=3)
OnlineDistributedPCA(2, n_clients=3)
PersonalizedPCA(1, 1, n_clients=3)
FederatedPowerPCA(2, n_clients=3, random_state=0)
FederatedSubspaceTracker(2, n_clients=3, n_rounds=3, random_state=0)
FederatedHeteroscedasticPCA(1, n_clients=3, random_state=0)
FederatedScaler(n_clients=3)
FederatedScaler(n_clients=2, mechanism=ScalerNoise(9.0, 1e-3, one_scale=True), random_state=0)
"""

# Each by `fit` of rows of 300 features, where three components are a sketch and ten are exact.
BY_WIDE = """
StreamingPCA(3, oversampling=10)
StreamingPCA(10)
StreamingPCA(3, oversampling=10, block_size=64)
StreamingPCA(3, oversampling=10, scale=True, partial_out=[1])
FederatedPCA(3)
FederatedPCA(10)
FederatedPCA(3, n_refinements=2)
FederatedPCA(3, scale=True)
DistributedPCA(3)
FederatedPowerPCA(3, random_state=0)
"""
WIDE_BATCHES = """
StreamingPCA(3, oversampling=10)
StreamingPCA(10)
"""

# Each by `fit` of rows whose variances are equal in pairs.
BY_TIES = """
StreamingPCA(4)
StreamingPCA(2, oversampling=0)
FederatedPCA(4)
DistributedPCA(4)
SubspaceMonitor(StreamingPCA(2), limits="chi2")
"""

HOWS = {
    "fit": BY_FIT,
    "batches": BY_BATCHES,
    "iterator": BY_ITERATOR,
    "shards": BY_SHARDS,
    "wide": BY_WIDE,
    "wide batches": WIDE_BATCHES,
    "ties": BY_TIES,
}


def made(code):
    """The estimator that a line of code makes."""
    return eval(code, dict(NAMES))


def _takes(estimator, method, name):
    return name in inspect.signature(getattr(estimator, method)).parameters


@cache
def fits():
    """Names of all fits: code, how, set of rows."""
    found = []
    for how, codes in HOWS.items():
        for code in codes.strip().splitlines():
            estimator = made(code)
            tags = estimator.__sklearn_tags__().input_tags
            method = "partial_fit" if "batches" in how else "fit"
            takes = dict.fromkeys(SETS, True) | {
                "sparse": tags.sparse,
                "missing": tags.allow_nan,
                "far": getattr(estimator, "center", True),
                "weighted": how != "iterator" and _takes(estimator, method, "sample_weight"),
            }
            sets = ("dense",) if how == "ties" else [name for name in SETS if takes[name]]
            found += [f"{code} | {how} | {name}" for name in sets]
    return tuple(name for name in found if name not in UNCERTAIN)


def wrong_calls():
    """Names of fits that have to fail: each parameter of each estimator with two wrong values."""
    found = []
    for name in fedpca_sklearn.__all__:
        kind = NAMES[name]
        if not (inspect.isclass(kind) and issubclass(kind, BaseEstimator) and hasattr(kind, "fit")):
            continue
        first = "StreamingPCA(2), " if name == "SubspaceMonitor" else ""
        names = [p for p in inspect.signature(kind).parameters if p not in UNCHECKED]
        values = "-7", "'no such value'"
        found += [f"{name}({first}{p}={value}) | wrong | dense" for p in names for value in values]
    return tuple(found)


@cache
def rows(size, name):
    """Rows of a size and a set, with the weights and the labels of four sites."""
    rng = np.random.default_rng(20261123)
    if size == "ties":
        X = np.array([8, 8, 4, 4, 2, 2, 1, 1])[:, None] * hadamard(8)
        X = np.vstack([X, -X] * 5).astype(float)
    else:
        n, d = (400, 300) if size == "wide" else (160, 10)
        first = 10.0 / np.arange(1, d + 1) if size == "wide" else 9.0 * 0.7 ** np.arange(d)
        Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
        X = rng.standard_normal((n, d)) * first @ Q + 3.0 * rng.standard_normal(d)
        X = np.round(X * 2.0**20) / 2.0**20  # the same bits however the product was rounded
    clients = rng.permutation(
        np.repeat(np.arange(4), np.round(len(X) * np.array(SITES)).astype(int))
    )
    weight = None
    if name == "sparse":
        X = sp.csr_array(np.where(rng.random(X.shape) < 0.4, X, 0.0))
    elif name == "float32":
        X = X.astype(np.float32)
    elif name == "weighted":
        weight = np.round(rng.uniform(0.1, 3.0, len(X)), 3)
    elif name == "far":
        X = X + np.round(FAR * X.std(axis=0))
    elif name == "missing":
        X = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    return SimpleNamespace(X=X, clients=clients, weight=weight)


def size_of(how):
    """Which rows are read."""
    return {"wide": "wide", "ties": "ties"}.get(how.split()[0], "small")


def fitted(code, how, X, given):
    """The estimator of a line of code after the fit of rows, and their weights and labels."""
    model = made(code)
    method = "partial_fit" if "batches" in how else "fit"
    more = {}
    if given.weight is not None:
        more["sample_weight"] = given.weight
    if how not in ("shards", "iterator", "wrong") and _takes(model, method, "clients"):
        inner = getattr(model, "estimator", None)
        if not isinstance(model, fedpca_sklearn.SubspaceMonitor) or _takes(inner, "fit", "clients"):
            more["clients"] = given.clients
    if method == "fit" and how != "iterator":
        return model.fit(X, **more)
    ends = np.cumsum(BATCHES) * X.shape[0] // sum(BATCHES)
    parts = [slice(a, b) for a, b in zip([0, *ends[:-1]], ends, strict=True)]
    if how == "iterator":
        return model.fit(iter([X[part] for part in parts]))
    for part in parts:
        model.partial_fit(X[part], **{name: value[part] for name, value in more.items()})
    return model
