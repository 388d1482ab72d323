"""scikit-learn's checks and this library's own contract, over every public estimator.

A new estimator enters `CHECKED` (configurations for scikit-learn's checks) and `CASES` (for the
contract). Tolerances as in the tests of StreamingPCA: the results here are exact, and 1e-9 is far
above rounding and far below any error in the algebra.
"""

import inspect
import os
import pickle
from functools import cache
from unittest import SkipTest

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from golden_cases import made
from helpers import arrays_in, fitted_attributes
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, clone
from sklearn.decomposition import PCA
from sklearn.utils.estimator_checks import estimator_checks_generator

import fedpca_sklearn
from fedpca_sklearn import (
    ContributionBounds,
    FederatedPCA,
    FederatedScaler,
    MergeStrategy,
    OnlineDistributedPCA,
    PersonalizedPCA,
    ProjectionAverage,
    RankRule,
    RobustMerge,
    StreamingPCA,
    SubspaceMerge,
    SubspaceMonitor,
    Topology,
    TruncatedDistributedPCA,
    VerticalMethod,
)
from fedpca_sklearn.base import Tracker

# the checks have small data: what a mechanism releases is mostly noise
pytestmark = [
    pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning"),
    # and more directions than three components, of which RobustSubspaceTracker warns
    pytest.mark.filterwarnings("ignore:No entry of a batch is an outlier:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*:sklearn.exceptions.ConvergenceWarning"),
]

# their default suits rows of any number of features
TEN_OR_FEWER = """
AlternatingProjections()
FrequentDirections()
GROUSE(random_state=0)
OjaPCA(random_state=0)
PAST(random_state=0)
PETRELS(random_state=0)
StreamingPowerMethod(random_state=0)
SubspaceTracker()
RobustSubspaceTracker()
FederatedSubspaceTracker(random_state=0)
""".strip().splitlines()
# FederatedHeteroscedasticPCA has one client: repeated rows move the cut into shards, each of which
# has its own noise
CHECKED = """
StreamingPCA()
StreamingPCA(2, oversampling=0, block_size=3)
StreamingPCA(2, rank_rule=ContributionBounds())
StreamingPCA(rank_rule=EnergyBounds(hold_off=1), block_size=5)
StreamingPCA(forgetting_factor=0.9, forgetting="blocks")
StreamingPCA(2, svd_solver="gram", whiten=True)
StreamingPCA(2, scale=True)
FederatedPCA(1, scale=True, partial_out=[0])
FederatedPCA()
FederatedPCA(1, estimator=TruncatedSVD(1, power_iteration_normalizer="none"), random_state=0)
FederatedPCA(1, merge=NoiseAwareMerge())
FederatedPCA(1, merge=RobustMerge(), n_clients=5)
FederatedPCA(1, missing=AvailablePairs())
FederatedPCA(1, missing=ConditionalFill())
FederatedPCA(2, estimator=StreamingPCA(2, oversampling=0, block_size=3), n_refinements=2)
PersonalizedPCA(1, 1, n_clients=3)
PersonalizedPCA(1, 1, n_clients=1)
FederatedPCA(1, mechanism=AnalyzeGauss(1.0, 0.1, 9.0, n_releases=99), random_state=0)
FederatedPCA(mechanism=StreamingModSuLQ(1, 0.1, 9, trust="sum", n_releases=99), random_state=0)
DistributedPCA()
TruncatedDistributedPCA()
OnlineDistributedPCA()
OnlineDistributedPCA(1, projection_dim=2, weighting="equal")
OnlineDistributedPCA(2, average="steps", center=False, variances="sent")
FrequentDirections(1, sketch_size=3, robust=True, center=False)
OjaPCA(1, learning_rate=0.1, batch_size=3, random_state=0)
PAST(1, deflation=True, forgetting_factor=1.0, random_state=0)
SPIRIT()
PETRELS(1, forgetting_factor=1.0, center=False, random_state=0)
SubspaceTracker(1, batch_size=9, n_iter=2, detect_changes=True, store_subspaces=True)
RobustSubspaceTracker(1, init="svd", batch_size=9, center=True)
FederatedHeteroscedasticPCA(1, tol=0.01, n_clients=1, random_state=0)
FederatedPowerPCA(1, random_state=0)
FederatedPowerPCA(2, center=False, local_steps=2, n_clients=3, random_state=0)
FederatedPowerPCA(1, n_rounds=2, mechanism=FedPowerNoise(1.0, 0.1, 9.0), random_state=0)
VerticalFederatedKernelPCA(feature_groups=1, random_state=0)
VerticalFederatedKernelPCA(2, n_landmarks=5, random_state=0)
VerticalFederatedKernelPCA(1, kernel="linear", aggregation=VFedPCA(), projection="features")
VerticalFederatedPCA(1, feature_groups=1, random_state=0)
VerticalFederatedPCA(1, feature_groups=1, method="power", random_state=0)
FederatedSubspaceTracker(2, batch_size=20, robust=False, random_state=0)
AlternatingProjections(2, center=True)
FederatedScaler()
FederatedScaler(with_mean=False, n_clients=3)
SubspaceMonitor(StreamingPCA(1))
SubspaceMonitor(SubspaceTracker(1), limits="quantile")
""".strip().splitlines()
CHECKED = [made(code) for code in CHECKED + TEN_OR_FEWER]

WEIGHT_CHECKS = [
    "check_array_api_mixed_inputs",
    "check_sample_weights_pandas_series",
    "check_sample_weights_not_an_array",
    "check_sample_weights_list",
    "check_sample_weights_shape",
    "check_sample_weights_not_overwritten",
    "check_sample_weight_equivalence_on_dense_data",
    "check_sample_weight_equivalence_on_sparse_data",
]
EQUIVALENCE = WEIGHT_CHECKS[-2:]


def without_weights(estimator):
    """Checks of weights that fail where the estimator inside takes none."""
    inner = getattr(estimator, "estimator", None)
    if inner is None or "sample_weight" in inspect.signature(inner.fit).parameters:
        return {}
    reason = f"{type(inner).__name__}.fit takes no sample_weight, and the error says so"
    return dict.fromkeys(WEIGHT_CHECKS, reason)


def expected_failures(estimator):
    """Checks that cannot hold, with the reason."""
    if isinstance(estimator, FederatedScaler) and estimator.with_mean:
        reason = "sparse rows are not centred; scikit-learn 1.6 asks whatever the tag says"
        return {"check_sample_weight_equivalence_on_sparse_data": reason}
    if isinstance(estimator, SubspaceMonitor):
        # tests/monitoring has what these checks ask for beside the count
        reason = "limits hold for new rows; scikit-learn counts outliers among those of fit"
        failures = dict.fromkeys(["check_outliers_train", "check_outliers_fit_predict"], reason)
        return failures | expected_failures(estimator.estimator) | without_weights(estimator)
    if getattr(estimator, "mechanism", None) is not None:
        reason = "a row counts once, so that what it changes is bounded, and the error says so"
        return dict.fromkeys(WEIGHT_CHECKS, reason)
    if without_weights(estimator):
        return without_weights(estimator)
    averages = isinstance(getattr(estimator, "merge", None), (ProjectionAverage, RobustMerge))
    averages |= isinstance(
        estimator, (TruncatedDistributedPCA, OnlineDistributedPCA, PersonalizedPCA)
    )
    averages |= getattr(estimator, "local_steps", 1) > 1
    if averages and estimator.n_clients > 1:
        return dict.fromkeys(EQUIVALENCE, "repeated rows are cut into other shards")
    by_rows = getattr(estimator, "forgetting", "rows") == "rows"
    if by_rows and getattr(estimator, "forgetting_factor", 1) not in (1, "growing"):
        return dict.fromkeys(EQUIVALENCE, "every repetition of a row ages the rows before it")
    if isinstance(getattr(estimator, "block_size", "auto"), int):
        # the blocks are cut by rows; what a block drops, or its step of the rank, depends on them
        return dict.fromkeys(EQUIVALENCE, "repeated rows fall into other blocks than weighted ones")
    return {}


# Of every configuration; other checks have nothing to do with the values of parameters (names, tags
# and copies, how rows and weights are held) and are those of one configuration of each class.
# Sparse rows and float32 of each configuration are golden fits and, as a refit, in the contract.
OF_EACH_CONFIGURATION = {
    *("check_fit2d_1sample", "check_fit2d_1feature", "check_transformer_general"),
    *("check_estimators_nan_inf", "check_methods_subset_invariance", "check_dict_unchanged"),
    *EQUIVALENCE,
}
FIRST = {type(estimator): estimator for estimator in reversed(CHECKED)}


def is_run(estimator, check):
    """Whether a check of scikit-learn's runs."""
    held = "readonly_memmap" in getattr(check, "keywords", {})
    return estimator is FIRST[type(estimator)] or (
        not held and getattr(check, "func", check).__name__ in OF_EACH_CONFIGURATION
    )


@pytest.mark.parametrize("estimator", CHECKED, ids=str)
# those of the array API need a setting of scipy, and run in a process of their own
@pytest.mark.parametrize(
    "kind", ["check_array_api"] if "SCIPY_ARRAY_API" in os.environ else ["all"]
)
def test_scikit_learns_checks(estimator, kind, pytestconfig):
    fail, strict = expected_failures(estimator), pytestconfig.getini("xfail_strict")
    for instance, check in estimator_checks_generator(estimator):
        name = getattr(check, "func", check).__name__
        if ("check_array_api" in name) != (kind == "check_array_api"):
            continue
        if not is_run(estimator, check) and not (kind != "all" and "'numpy'" in str(check)):
            continue
        # a build of torch with CUDA, on a machine without a GPU: scikit-learn asks for the build
        if "cuda" in str(check) and not pytest.importorskip("torch").cuda.is_available():
            continue
        try:
            check(instance)
        except SkipTest:
            assert "check_array_api" in name, check  # of a library that is not there
        except Exception as error:
            if name not in fail:
                error.add_note(f"in {check}")
                raise
        else:
            assert name not in fail or not strict, f"{check} is expected to fail: {fail[name]}"


@pytest.mark.parametrize("code", TEN_OR_FEWER)
def test_ten_components_or_as_many_as_there_are_features(code):
    for d in (30, 10, 4, 1):
        X = rows(60, d)
        model, asked = made(code).fit(X), made(code).set_params(n_components=min(d, 10))
        assert model.n_components is None
        assert model.n_components_ == min(d, 10)
        assert_array_equal(model.components_, asked.fit(X).components_)
    with pytest.raises(ValueError, match="n_components=10 must be at most n_features=4"):
        made(code).set_params(n_components=10).fit(rows(60, 4))


@pytest.mark.parametrize("estimator", CHECKED, ids=str)
def test_skops_keeps_estimators(estimator):
    skops = pytest.importorskip("skops.io")
    model = clone(estimator).fit(rows(60, 6))
    data = skops.dumps(model)
    loaded = skops.loads(data, trusted=skops.get_untrusted_types(data=data))
    X = rows(60, 6, seed=1)
    look = "score_samples" if isinstance(model, SubspaceMonitor) else "transform"
    assert_array_equal(getattr(loaded, look)(X), getattr(model, look)(X))
    if hasattr(model, "partial_fit") and getattr(model, "mechanism", None) is None:
        loaded, model = loaded.partial_fit(X), model.partial_fit(X)
        assert_array_equal(getattr(loaded, look)(X), getattr(model, look)(X))


# ---------------------------------------------------------------------------------- the contract

# Estimators that keep three or more components, and what the result depends on: the order of rows,
# the cut into batches, or into blocks of 20.
CASES = """
StreamingPCA(3)
StreamingPCA()
StreamingPCA(0.8)
StreamingPCA(3, svd_solver="qr")
StreamingPCA(3, center=False)
StreamingPCA(3, whiten=True)
StreamingPCA(3, forgetting_factor=0.99) | order
StreamingPCA(3, rank_rule=ContributionBounds(0.02, 0.1), block_size=20) | order, blocks
StreamingPCA(3, rank_rule=EnergyBounds(), block_size=20) | order, blocks
StreamingPCA(3, block_size=20, forgetting_factor=0.9, forgetting="blocks") | order, blocks
FederatedPCA(3)
FederatedPCA(n_clients=7)
FederatedPCA(3, merge=SubspaceMerge("qr", fan_in=2), n_clients=5)
FederatedPCA(3, merge=SubspaceMerge(fan_in=2, truncate=True, forgetting_factor=0.9)) | order, batches
FederatedPCA(3, merge=SubspaceMerge("orthogonal"), n_clients=4)
FederatedPCA(3, estimator=StreamingPCA(center=False))
FederatedPCA(3, merge=ProjectionAverage(4)) | order, batches
PersonalizedPCA(3, 1) | order, batches
DistributedPCA(3)
DistributedPCA(0.8, n_clients=3, n_jobs=2)
DistributedPCA(3, missing=AvailablePairs(min_rows=1), n_clients=3)
TruncatedDistributedPCA(3, local_threshold=1.0)
OnlineDistributedPCA(3, n_clients=2) | order, batches
OnlineDistributedPCA(3, average="steps", center=False, variances="sent") | order, batches
FrequentDirections(3) | order
StreamingPowerMethod(3, block_size=20, random_state=0) | order
OjaPCA(3, random_state=0) | order
GROUSE(3, random_state=0) | order
PAST(3, random_state=0) | order
PAST(3, deflation=True, random_state=0) | order
SPIRIT(3, lower=0.999, upper=0.9999) | order
PETRELS(3, random_state=0) | order
SubspaceTracker(3, center=True) | order
SubspaceTracker(3, batch_size=7, detect_changes=True) | order
RobustSubspaceTracker(3, center=True) | order
RobustSubspaceTracker(3, init="svd", batch_size=60) | order
FederatedSubspaceTracker(3, n_rounds=2, random_state=0) | order
"""  # noqa: E501
CASES = {line.split(" | ")[0]: line.partition(" | ")[2] for line in CASES.strip().splitlines()}
# Those that take all rows at once.
BY_FIT = """
FederatedPowerPCA(3, random_state=0)
FederatedPowerPCA(3, n_rounds=2000, tol=1e-10, acceleration=None, random_state=0)
FederatedHeteroscedasticPCA(3, n_rounds=20, tol=0.0, random_state=0)
AlternatingProjections(3, center=True)
VerticalFederatedPCA(3, feature_groups=4, random_state=0)
VerticalFederatedPCA(3, feature_groups=4, method="merge")
VerticalFederatedPCA(3, feature_groups=4, method="power", random_state=0)
""".strip().splitlines()
STRATEGIES = """
ContributionBounds()
EnergyBounds(0.5, hold_off=2)
SubspaceMerge("qr", fan_in=3)
NoiseAwareMerge()
ProjectionAverage(4, weighting="rows")
RobustMerge("median", max_bad=1)
VFedPCA(5, weighting="equal")
LeftVectorMerge(3)
PowerRounds(tol=1e-6)
Complete()
Ring(tol=1e-3)
Star()
Graph([[0, 1], [1, 0]])
""".strip().splitlines()
every_case = pytest.mark.parametrize("code", CASES)
every_estimator = pytest.mark.parametrize("code", [*CASES, *BY_FIT])


def every_case_but(word):
    """Parametrize by the cases whose result does not depend on something."""
    return pytest.mark.parametrize("code", [code for code, on in CASES.items() if word not in on])


def public(kind):
    members = (getattr(fedpca_sklearn, name) for name in fedpca_sklearn.__all__)
    return {c for c in members if inspect.isclass(c) and issubclass(c, kind)}


def rows(n=200, d=12, seed=0, rank=4, dtype=np.float64):
    """Four strong directions and weak noise, away from the origin."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, rank)) * [9, 6, 4, 3] @ rng.standard_normal((rank, d))
    return (X + rng.standard_normal((n, d)) + 5 * rng.standard_normal(d)).astype(dtype)


@cache
def fitted(code):
    """A model of `rows`, for those who do not change it."""
    return made(code).fit(rows())


def go_on(model, X):
    """A model after more rows, or after these alone where it takes all at once."""
    return getattr(model, "partial_fit", model.fit)(X)


def assert_same_model(a, b, tol=1e-9):
    assert len(a.components_) == len(b.components_) == a.n_components_
    scale = a.singular_values_[0]
    assert_allclose(a.components_, b.components_, atol=tol)
    assert_allclose(a.singular_values_, b.singular_values_, atol=tol * scale)
    assert_allclose(a.explained_variance_ratio_, b.explained_variance_ratio_, atol=tol)
    assert_allclose(a.noise_variance_, b.noise_variance_, rtol=100 * tol, atol=tol)
    assert_allclose(a.mean_, b.mean_, atol=tol * scale)


def assert_orthonormal(V, tol):
    V = V.astype(np.float64)
    assert np.abs(V @ V.T - np.eye(len(V))).max() < tol


def test_every_public_estimator_and_strategy_is_listed():
    estimators = {c for c in public(BaseEstimator) if hasattr(c, "fit")}
    assert estimators
    assert estimators == {type(e) for e in CHECKED}
    # no transformer, and one without components: their contracts are in tests/monitoring and
    # tests/federated/test_federated_scaler.py
    estimators -= {SubspaceMonitor, FederatedScaler}
    streaming = {c for c in estimators if hasattr(c, "partial_fit")}
    assert {c.__name__ for c in estimators - streaming} == {
        "AlternatingProjections",
        "FederatedHeteroscedasticPCA",
        "FederatedPowerPCA",
        "VerticalFederatedKernelPCA",
        "VerticalFederatedPCA",
    }
    assert streaming == {type(made(code)) for code in CASES}
    strategies = public((RankRule, MergeStrategy, VerticalMethod, Topology))
    strategies = {c for c in strategies if not inspect.isabstract(c)}
    assert strategies == {type(made(code)) for code in STRATEGIES}


@every_case_but("batches")
def test_partial_fit_equals_fit(code):
    X, sizes = rows(), [20] * 10 if "blocks" in CASES[code] else [1, 2, 1, 60, 100, 35, 1]
    parts = made(code)
    for batch in np.split(X, np.cumsum(sizes)[:-1]):
        parts.partial_fit(batch)
    assert_same_model(parts, fitted(code))
    assert parts.n_samples_seen_ == fitted(code).n_samples_seen_ == len(X)


@every_case_but("order")
def test_the_order_of_rows_does_not_matter(code):
    shuffled = rows()[np.random.default_rng(0).permutation(200)]
    assert_same_model(made(code).fit(shuffled), fitted(code))


@every_estimator
def test_units_do_not_matter(code):
    for power in (-400, 230):  # fourth powers of larger ones overflow
        model = made(code).fit(np.ldexp(rows(), power))
        assert_allclose(model.components_, fitted(code).components_, atol=1e-9)
        for name, of in (("singular_values_", 1), ("mean_", 1), ("noise_variance_", 2)):
            found = np.ldexp(getattr(model, name), -of * power)
            assert_allclose(found, getattr(fitted(code), name), rtol=1e-9, atol=1e-9)


@every_case
def test_rounding_decides_nothing(code):
    """Of rows without noise all that is left is rounding, which is another in each unit."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((200, 3)) * [4, 2, 1] @ rng.standard_normal((3, 12))
    X += 5 * rng.standard_normal(12)
    for unit in (1 / 3, 1e9):
        found, want = (made(code).fit(rows).singular_values_[:3] for rows in (unit * X, X))
        assert_allclose(found / unit, want, rtol=1e-9)


@every_estimator
def test_a_refit_equals_a_fit(code):
    model = made(code).fit(rows(50, 7, seed=1)).fit(rows())
    assert_same_model(model, fitted(code), tol=1e-12)
    assert vars(model).keys() == vars(fitted(code)).keys()
    assert repr(model) == repr(made(code))


@pytest.mark.parametrize("kind", FIRST, ids=lambda kind: kind.__name__)
def test_a_fit_with_other_parameters_leaves_nothing_of_the_one_before(kind):
    every, X = [*CHECKED, *map(made, [*CASES, *BY_FIT])], rows(60)
    some = [one for one in every if type(one) is kind]
    model = clone(some[0])
    for one in [*some, some[0]]:
        model.set_params(**clone(one).get_params(deep=False)).fit(X)
        assert vars(model).keys() == vars(clone(one).fit(X)).keys()


@cache
def turning(d):
    """Rows whose directions and mean change twelve times."""
    return np.concatenate([rows(20, d, seed) for seed in range(12)])


@every_case
@pytest.mark.parametrize(("dtype", "tol", "d", "n"), [("f8", 1e-10, 12, 12), ("f4", 1e-5, 300, 4)])
def test_components_are_orthonormal(code, dtype, tol, d, n):
    model = made(code)
    for batch in np.split(turning(d).astype(dtype), n):
        model.partial_fit(batch)
    assert len(model.components_) >= 3
    assert_orthonormal(model.components_, tol)
    if "n_components" in model.get_params():  # of five two have variance: the columns are equal
        model.set_params(n_components=5)
    X = np.random.default_rng(0).standard_normal((40, 2))[:, [0, 0, 0, 1, 1]]
    assert_orthonormal(model.fit(X).components_, 1e-10)


@pytest.mark.parametrize("code", [code for code in CASES if hasattr(made(code), "to_sklearn")])
def test_scikit_learns_pca_of_it_maps_rows_alike(code):
    model, exported = fitted(code), fitted(code).to_sklearn()
    assert type(exported) is PCA
    k = len(model.components_)  # PersonalizedPCA has more columns
    assert_allclose(exported.transform(rows()), model.transform(rows())[:, :k], atol=1e-10)
    assert exported.get_params()["n_components"] == k
    exported.components_[:] = 0
    assert model.components_.any()


@every_estimator
def test_dtype_is_kept(code):
    X = rows(dtype=np.float32)
    model, exact = made(code), made(code)
    for pca, given in ((model, X), (exact, X.astype(float))):
        assert pca.fit_transform(given).dtype == given.dtype
        more = float if hasattr(pca, "partial_fit") else given.dtype  # rows after the first
        go_on(pca, given[:20].astype(more))
        for name in ("components_", "mean_", "singular_values_", "explained_variance_ratio_"):
            assert getattr(pca, name).dtype == given.dtype
        assert pca.inverse_transform(pca.transform(given)).dtype == given.dtype
    # float32 rounds every direction by about eps times the ratio of the extreme values, 100
    assert_allclose(model.singular_values_, exact.singular_values_, rtol=1e-4)
    P, Q = model.components_[:3], exact.components_[:3]
    assert np.linalg.norm(P - P @ Q.T @ Q, 2) < 1e-4


@every_case
def test_sparse_equals_dense(code):
    for d in (12, 300):
        X = rows(60, d) * (np.random.default_rng(1).random((60, d)) < 0.4)
        dense, sparse = made(code).fit(X), made(code).fit(sp.csr_array(X))
        if d > 256 and dense.get_params().get("n_components") == 3:
            # directions are dropped, after blocks that need not be the same
            P, Q = dense.components_, sparse.components_
            assert np.linalg.norm(P - P @ Q.T @ Q, 2) < 0.3
        else:
            assert_same_model(sparse, dense, tol=1e-8)
        assert_allclose(dense.transform(sp.csc_array(X)), dense.transform(X), atol=1e-9)
        if dense.noise_variance_ > 0:  # without noise, the likelihood is that of rounding errors
            assert_allclose(dense.score(sp.csr_array(X)), dense.score(X), rtol=1e-9)


@every_estimator
def test_pandas_goes_in_and_comes_out(code):
    X = pd.DataFrame(rows(), columns=[f"sensor {i}" for i in range(12)])
    X.index = X.index + 1000
    model, nameless = made(code).set_output(transform="pandas"), fitted(code)
    Z = model.fit_transform(X)
    prefix = type(model).__name__.lower()
    width = model.n_components_ + getattr(model, "n_local_components_", 0)
    assert list(Z.columns) == [f"{prefix}{i}" for i in range(width)]
    assert list(Z.index) == list(X.index)
    assert list(model.feature_names_in_) == list(X.columns)
    assert_allclose(Z, nameless.transform(X.to_numpy()), atol=1e-9)
    for method in ("score_samples", "score"):  # without a warning that names were lost
        expected = getattr(nameless, method)(X.to_numpy())
        assert_allclose(getattr(model, method)(X), expected, rtol=1e-7, atol=1e-7)
    with pytest.raises(ValueError, match="feature names"):
        model.transform(X.iloc[:, ::-1])


@every_estimator
def test_a_copy_on_disk_goes_on_where_the_stream_was_and_a_clone_shares_nothing(code, tmp_path):
    X = rows()
    model = go_on(pickle.loads(pickle.dumps(made(code))), X[:80])
    joblib.dump(model, tmp_path / "model")
    copies = pickle.loads(pickle.dumps(model)), joblib.load(tmp_path / "model")
    before, twin = joblib.hash(vars(model)), clone(model)
    assert not [name for name in vars(twin) if name.endswith("_")]
    assert twin.get_params(deep=False).keys() == model.get_params(deep=False).keys()
    go_on(twin.fit(rows(seed=1)), rows(seed=2))
    for copy in copies:
        assert_array_equal(copy.transform(X), model.transform(X))
        go_on(copy, X[80:])
    assert joblib.hash(vars(model)) == before
    go_on(model, X[80:])
    for copy in copies:
        assert_same_model(copy, model, tol=1e-12)


@every_estimator
def test_rows_are_neither_written_nor_kept(code):
    X = rows()
    sparse = [sp.csr_array(X)] * made(code).__sklearn_tags__().input_tags.sparse
    for data in (X.copy(), *sparse):
        model = go_on(made(code).fit(data), data[:40])
        model.transform(data)
        model.score(data)
        values = [data.data, data.indices, data.indptr] if sp.issparse(data) else [data]
        assert_array_equal(data.toarray() if sp.issparse(data) else data, X)
        for array in arrays_in(vars(model)):
            assert not any(np.shares_memory(array, value) for value in values)


@every_case
def test_what_is_the_callers_may_be_written_without_harm_to_the_stream(code):
    X = rows()
    expected, reused, buffer = made(code), made(code), np.empty((40, 12))
    for batch in np.split(X, 5):
        expected.partial_fit(batch)
        buffer[:] = batch
        reused.partial_fit(buffer)
        for name, value in fitted_attributes(reused).items():
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                setattr(reused, name, value)
                value[...] = 0
    for model in (expected, reused):
        model.partial_fit(X[:10])
    assert_same_model(reused, expected, tol=1e-12)


def wrong_calls(model):
    """Rows, options and the words of the error."""
    X = rows(40, seed=1)
    yield np.where(np.arange(12) == 11, np.inf, X), {}, "infinity"
    yield X[0], {}, "2D"
    yield X[:0], {}, "0 sample"
    if not model.__sklearn_tags__().input_tags.allow_nan:
        yield np.where(np.arange(40)[:, None] == 39, np.nan, X), {}, "NaN"
    if "sample_weight" in inspect.signature(model.fit).parameters:
        yield X, {"sample_weight": np.r_[-1.0, np.ones(39)]}, "sample_weight"


@every_estimator
def test_a_failed_call_leaves_no_trace(code):
    model, new = made(code).fit(rows()), made(code)
    expected = go_on(made(code).fit(rows()), rows(40, seed=2))
    calls = [
        (m, method, *call)
        for call in wrong_calls(new)
        for m in (model, new)
        for method in ("fit", "partial_fit")
        if hasattr(m, method)
    ]
    if hasattr(model, "partial_fit"):
        calls.append((model, "partial_fit", rows(40)[:, :-1], {}, "features"))
    for of, method, X, options, words in calls:
        before = joblib.hash(vars(of))
        with pytest.raises(ValueError, match=words):
            getattr(of, method)(X, **options)
        assert joblib.hash(vars(of)) == before
    assert_same_model(go_on(model, rows(40, seed=2)), expected, tol=1e-12)


def size_of(model):
    """Bytes of the arrays that can be reached, and of all that a pickle holds."""
    arrays = {id(array): array.nbytes for array in arrays_in(vars(model))}
    return sum(arrays.values()) + len(pickle.dumps(model))


@every_case
def test_memory_does_not_grow_with_the_stream(code):
    model = made(code)
    # more rows than a block or a batch has
    n = 60 if isinstance(model, Tracker) or "Tracker" in code else 300
    batches = [rows(n, 30, seed=i) for i in range(4)]
    first, second = (max(size_of(model.partial_fit(batch)) for batch in batches) for _ in range(2))
    # a log of ranks or of messages may grow, by less than a quarter of the rows that went through
    assert second - first < 4 * batches[0].nbytes / 4


# ------------------------------------------------------------------------------------- strategies


@pytest.mark.parametrize("code", STRATEGIES)
def test_strategies_are_ordinary_parameters(code):
    strategy = made(code)
    params = strategy.get_params()
    copy = clone(strategy)
    assert copy is not strategy
    for other in (copy, type(strategy)(**params), pickle.loads(pickle.dumps(copy))):
        assert other.get_params() == params
    assert repr(copy) == repr(strategy)
    assert type(strategy).__name__ in repr(strategy)
    with pytest.raises(ValueError, match="nonsense"):
        copy.set_params(nonsense=1)


def test_parameters_of_strategies_are_reached_through_the_estimator_and_not_touched_by_a_fit():
    rule, merge = ContributionBounds(), SubspaceMerge()
    inner = StreamingPCA(4, rank_rule=rule, block_size=20)
    model = FederatedPCA(3, estimator=inner, merge=merge, n_clients=3)
    model.set_params(estimator__rank_rule__lower=0.02, merge__fan_in=2)
    assert (rule.lower, merge.fan_in) == (0.02, 2)
    assert model.get_params()["estimator__rank_rule__lower"] == 0.02
    twin = clone(model)
    assert twin.merge is not merge
    assert twin.get_params().keys() == model.get_params().keys()
    assert "lower=0.02" in repr(twin)
    before = joblib.hash((rule, merge, inner))
    model.fit(rows()).partial_fit(rows())
    assert joblib.hash((rule, merge, inner)) == before
    both = FederatedPCA(2).set_params(merge__fan_in=3, merge=SubspaceMerge())
    assert both.merge.fan_in == 3


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        ("FederatedPCA(2)", "merge__fan_in", "merge__fan_in needs an object as merge, which is No"),
        ("VerticalFederatedPCA(2)", "method__n_rounds", "as method, which is 'vfedpca'"),
        ("StreamingPCA(2)", "n_components__x", "as n_components, which is 2"),
        ("StreamingPCA(2)", "nonsense__x", "Invalid parameter 'nonsense'"),
    ],
)
def test_parameters_of_what_is_no_object_are_named(code, name, message):
    with pytest.raises(ValueError, match=message):
        made(code).set_params(**{name: 2})
