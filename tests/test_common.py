"""scikit-learn's checks and this library's own contract, over every public estimator.

A new estimator enters `CHECKED` (configurations for scikit-learn's checks) and `CASES` (for the
contract). Tolerances as in the tests of StreamingPCA: the results here are exact, and 1e-9 is far
above rounding and far below any error in the algebra.
"""

import gc
import inspect
import logging
import os
import pickle
import tracemalloc
from dataclasses import dataclass
from functools import cache
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers import arrays_in, fitted_attributes
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, clone
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import fedpca_sklearn
from fedpca_sklearn import (
    GROUSE,
    PAST,
    PETRELS,
    SPIRIT,
    AlternatingProjections,
    AnalyzeGauss,
    AvailablePairs,
    Complete,
    ConditionalFill,
    ContributionBounds,
    DistributedPCA,
    EnergyBounds,
    FederatedHeteroscedasticPCA,
    FederatedPCA,
    FederatedPowerPCA,
    FederatedScaler,
    FederatedSubspaceTracker,
    FedPowerNoise,
    FrequentDirections,
    Graph,
    LeftVectorMerge,
    MergeStrategy,
    NoiseAwareMerge,
    OjaPCA,
    OnlineDistributedPCA,
    PersonalizedPCA,
    PowerRounds,
    ProjectionAverage,
    RankRule,
    Ring,
    RobustMerge,
    RobustSubspaceTracker,
    Star,
    StreamingModSuLQ,
    StreamingPCA,
    StreamingPowerMethod,
    SubspaceMerge,
    SubspaceMonitor,
    SubspaceTracker,
    Topology,
    TruncatedDistributedPCA,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
    VerticalMethod,
    VFedPCA,
)

# the checks have small data: what a mechanism releases is mostly noise
pytestmark = [
    pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning"),
    # and more directions than three components, of which RobustSubspaceTracker warns
    pytest.mark.filterwarnings("ignore:No entry of a batch is an outlier:UserWarning"),
]

# their default suits rows of any number of features
TEN_OR_FEWER = [
    AlternatingProjections(),
    FrequentDirections(),
    GROUSE(random_state=0),
    OjaPCA(random_state=0),
    PAST(random_state=0),
    PETRELS(random_state=0),
    StreamingPowerMethod(random_state=0),
    SubspaceTracker(),
    RobustSubspaceTracker(),
    FederatedSubspaceTracker(random_state=0),
]
CHECKED = [
    StreamingPCA(),
    StreamingPCA(0.9),
    StreamingPCA(2, oversampling=0, block_size=3),
    StreamingPCA(2, rank_rule=ContributionBounds()),
    StreamingPCA(rank_rule=EnergyBounds(hold_off=1), block_size=5),
    StreamingPCA(forgetting_factor=0.99),
    StreamingPCA(forgetting_factor=0.9, forgetting="blocks"),
    StreamingPCA(center=False),
    StreamingPCA(svd_solver="qr"),
    StreamingPCA(2, svd_solver="gram", whiten=True),
    StreamingPCA(2, scale=True),
    FederatedPCA(1, scale=True, partial_out=[0]),
    FederatedPCA(),
    FederatedPCA(0.9, merge=SubspaceMerge(fan_in=2), n_clients=5),
    FederatedPCA(1, estimator=PCA(1)),
    FederatedPCA(1, estimator=IncrementalPCA(1)),
    FederatedPCA(1, estimator=TruncatedSVD(1, power_iteration_normalizer="none"), random_state=0),
    FederatedPCA(2, merge=ProjectionAverage()),
    FederatedPCA(1, merge=NoiseAwareMerge()),
    FederatedPCA(1, merge=RobustMerge(), n_clients=5),
    FederatedPCA(1, missing=AvailablePairs()),
    FederatedPCA(1, missing=ConditionalFill()),
    FederatedPCA(2, estimator=StreamingPCA(2, oversampling=0, block_size=3), n_refinements=2),
    PersonalizedPCA(1, 1, n_clients=3),
    PersonalizedPCA(1, 1, n_clients=1),
    FederatedPCA(1, mechanism=AnalyzeGauss(1.0, 0.1, 9.0, n_releases=99), random_state=0),
    FederatedPCA(
        mechanism=StreamingModSuLQ(1.0, 0.1, 9.0, trust="sum", n_releases=99), random_state=0
    ),
    DistributedPCA(),
    DistributedPCA(2, n_clients=5),
    TruncatedDistributedPCA(),
    TruncatedDistributedPCA(2, local_threshold=0.5, n_clients=3),
    TruncatedDistributedPCA(2, local_threshold=0.5, n_clients=1),
    OnlineDistributedPCA(),
    OnlineDistributedPCA(2, n_clients=3),
    OnlineDistributedPCA(1, projection_dim=2, weighting="equal"),
    OnlineDistributedPCA(2, n_clients=1),
    OnlineDistributedPCA(2, average="steps", center=False, variances="sent"),
    FrequentDirections(1, sketch_size=3, robust=True, center=False),
    OjaPCA(1, learning_rate=0.1, batch_size=3, random_state=0),
    GROUSE(2, step_size=0.1, center=False, random_state=0),
    PAST(1, deflation=True, forgetting_factor=1.0, random_state=0),
    SPIRIT(),
    SPIRIT(2, forgetting_factor=1.0, hold_off=0),
    PETRELS(1, forgetting_factor=1.0, center=False, random_state=0),
    SubspaceTracker(2, batch_size=3, center=True, forgetting_factor=0.9),
    SubspaceTracker(1, batch_size=3, n_iter=2, detect_changes=True, store_subspaces=True),
    RobustSubspaceTracker(1, init="svd", batch_size=5, center=True),
    # one client: repeated rows move the cut into shards, each of which has its own noise
    FederatedHeteroscedasticPCA(1, tol=0.01, n_clients=1, random_state=0),
    FederatedPowerPCA(1, random_state=0),
    FederatedPowerPCA(acceleration="krylov", random_state=0),
    FederatedPowerPCA(2, center=False, local_steps=2, n_clients=3, random_state=0),
    FederatedPowerPCA(1, n_rounds=2, mechanism=FedPowerNoise(1.0, 0.1, 9.0), random_state=0),
    VerticalFederatedKernelPCA(feature_groups=1, random_state=0),
    VerticalFederatedPCA(1, feature_groups=1, random_state=0),
    VerticalFederatedPCA(2, feature_groups=1, method="merge"),
    VerticalFederatedPCA(1, feature_groups=1, method="power", random_state=0),
    FederatedSubspaceTracker(2, batch_size=5, robust=False, random_state=0),
    AlternatingProjections(2, center=True),
    FederatedScaler(),
    FederatedScaler(with_mean=False, n_clients=3),
    SubspaceMonitor(StreamingPCA(1)),
    SubspaceMonitor(SubspaceTracker(1), limits="quantile"),
    *TEN_OR_FEWER,
]

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


def without_weights(estimator):
    """Checks of weights that fail where the estimator inside takes none."""
    inner = getattr(estimator, "estimator", None)
    if inner is None or "sample_weight" in inspect.signature(inner.fit).parameters:
        return {}
    reason = f"{type(inner).__name__}.fit takes no sample_weight, and the error says so"
    return dict.fromkeys(WEIGHT_CHECKS, reason)


COUNTS_OF_OUTLIERS = ["check_outliers_train", "check_outliers_fit_predict"]


def expected_failures(estimator):
    """Checks that cannot hold, with the reason."""
    if isinstance(estimator, FederatedScaler) and estimator.with_mean:
        reason = "sparse rows are not centred; scikit-learn 1.6 asks whatever the tag says"
        return {"check_sample_weight_equivalence_on_sparse_data": reason}
    if isinstance(estimator, SubspaceMonitor):
        # tests/monitoring has what these checks ask for beside the count
        reason = "limits hold for new rows; scikit-learn counts outliers among those of fit"
        failures = dict.fromkeys(COUNTS_OF_OUTLIERS, reason)
        return failures | expected_failures(estimator.estimator) | without_weights(estimator)
    if getattr(estimator, "mechanism", None) is not None:
        reason = "a row counts once, so that what it changes is bounded, and the error says so"
        return dict.fromkeys(WEIGHT_CHECKS, reason)
    if without_weights(estimator):
        return without_weights(estimator)
    equivalence = WEIGHT_CHECKS[-2:]
    averages = isinstance(getattr(estimator, "merge", None), (ProjectionAverage, RobustMerge))
    averages |= isinstance(
        estimator, (TruncatedDistributedPCA, OnlineDistributedPCA, PersonalizedPCA)
    )
    averages |= getattr(estimator, "local_steps", 1) > 1
    if averages and estimator.n_clients > 1:
        return dict.fromkeys(equivalence, "repeated rows are cut into other shards")
    by_rows = getattr(estimator, "forgetting", "rows") == "rows"
    if by_rows and getattr(estimator, "forgetting_factor", 1) not in (1, "growing"):
        return dict.fromkeys(equivalence, "every repetition of a row ages the rows before it")
    if isinstance(getattr(estimator, "block_size", "auto"), int):
        # the blocks are cut by rows; what a block drops, or its step of the rank, depends on them
        return dict.fromkeys(equivalence, "repeated rows fall into other blocks than weighted ones")
    return {}


# Of one configuration of each class: what has nothing to do with the values of parameters (names,
# tags and copies, and how rows and weights are held).
OF_THE_CLASS = {
    *("check_complex_data", "check_do_not_raise_errors_in_init_or_set_params"),
    *("check_dtype_object", "check_estimator_cloneable", "check_estimator_repr"),
    *("check_estimator_tags_renamed", "check_estimators_empty_data_messages"),
    *("check_estimators_fit_returns_self", "check_estimators_unfitted"),
    *("check_f_contiguous_array_estimator", "check_fit1d", "check_fit2d_predict1d"),
    *("check_fit_check_is_fitted", "check_fit_score_takes_y", "check_get_params_invariance"),
    *("check_mixin_order", "check_n_features_in", "check_n_features_in_after_fitting"),
    *("check_no_attributes_set_in_init", "check_parameters_default_constructible"),
    *("check_readonly_memmap_input", "check_set_params", "check_transformer_data_not_an_array"),
    *("check_transformer_n_iter", "check_transformers_unfitted", "check_valid_tag_types"),
    *WEIGHT_CHECKS[1:-2],  # all but those of repeated rows
}
FIRST = {type(estimator): estimator for estimator in reversed(CHECKED)}


def is_run(estimator, check):
    """Whether a check of scikit-learn's runs; those of the array API need a setting of scipy."""
    name, is_first = str(check), repr(estimator) == repr(FIRST[type(estimator)])
    if "check_array_api" in name:
        return "SCIPY_ARRAY_API" in os.environ and (is_first or "'numpy'" in name)
    return is_first or getattr(check, "func", check).__name__ not in OF_THE_CLASS


all_checks = parametrize_with_checks(CHECKED, expected_failed_checks=expected_failures).mark
each_check = pytest.mark.parametrize(
    all_checks.args[0],
    [p for p in all_checks.args[1] if is_run(*getattr(p, "values", p))],
    **all_checks.kwargs,
)


@each_check
def test_scikit_learns_checks(estimator, check, request):
    # a build of torch with CUDA, on a machine without a GPU: scikit-learn asks for the build
    if "cuda" in str(check) and not pytest.importorskip("torch").cuda.is_available():
        pytest.skip("no GPU")
    try:
        check(estimator)
    except (AssertionError, TypeError, ValueError) as error:
        if request.node.get_closest_marker("xfail") is None:
            raise
        # without a traceback, for which pytest parses all of scikit-learn's checks, every time
        pytest.fail(f"{type(error).__name__}: {error}", pytrace=False)


@pytest.mark.parametrize("estimator", TEN_OR_FEWER, ids=lambda e: type(e).__name__)
def test_ten_components_or_as_many_as_there_are_features(estimator):
    for d in (30, 10, 4, 1):
        X = rows(120, d)
        model, asked = clone(estimator).fit(X), clone(estimator).set_params(n_components=min(d, 10))
        assert model.n_components is None
        assert model.n_components_ == min(d, 10)
        assert_array_equal(model.components_, asked.fit(X).components_)
    with pytest.raises(ValueError, match="n_components=10 must be at most n_features=4"):
        clone(estimator).set_params(n_components=10).fit(rows(120, 4))


@pytest.mark.parametrize("estimator", CHECKED, ids=str)
def test_skops_keeps_estimators(estimator):
    skops = pytest.importorskip("skops.io")
    model = clone(estimator).fit(rows(60, 6))
    data = skops.dumps(model)
    loaded = skops.loads(data, trusted=skops.get_untrusted_types(data=data))
    X = rows(60, 6, seed=1)
    if isinstance(model, SubspaceMonitor):
        assert_array_equal(loaded.score_samples(X), model.score_samples(X))
        return
    assert_array_equal(loaded.transform(X), model.transform(X))
    if hasattr(model, "partial_fit") and getattr(model, "mechanism", None) is None:
        shown = "mean_" if isinstance(model, FederatedScaler) else "components_"
        loaded, model = loaded.partial_fit(X), model.partial_fit(X)
        assert_array_equal(getattr(loaded, shown), getattr(model, shown))


# ---------------------------------------------------------------------------------- the contract


@dataclass(frozen=True)
class Case:
    """An estimator that keeps three or more components, and what its result depends on."""

    estimator: BaseEstimator
    block: int = 1  # batches of a multiple of this many rows give the numbers of fit
    order_matters: bool = False
    batches_matter: bool = False

    def new(self) -> Any:
        return clone(self.estimator)


CASES = {
    "streaming": Case(StreamingPCA(3)),
    "streaming-all": Case(StreamingPCA()),
    "streaming-fraction": Case(StreamingPCA(0.8)),
    "streaming-qr": Case(StreamingPCA(3, svd_solver="qr")),
    "streaming-gram": Case(StreamingPCA(3, svd_solver="gram")),
    "streaming-uncentred": Case(StreamingPCA(3, center=False)),
    "streaming-whitened": Case(StreamingPCA(3, whiten=True)),
    "streaming-forgetful": Case(StreamingPCA(3, forgetting_factor=0.99), order_matters=True),
    "streaming-sapca": Case(
        StreamingPCA(3, rank_rule=ContributionBounds(0.02, 0.1), block_size=20),
        block=20,
        order_matters=True,
    ),
    "streaming-canonical": Case(
        StreamingPCA(
            3,
            rank_rule=ContributionBounds(0.02, 0.1, growth="canonical"),
            block_size=20,
            forgetting_factor=0.9,
            forgetting="blocks",
        ),
        block=20,
        order_matters=True,
    ),
    "streaming-spirit": Case(
        StreamingPCA(3, rank_rule=EnergyBounds(), block_size=20), block=20, order_matters=True
    ),
    "federated": Case(FederatedPCA(3)),
    "federated-all": Case(FederatedPCA(n_clients=7)),
    "federated-fraction": Case(FederatedPCA(0.8)),
    "federated-tree": Case(FederatedPCA(3, merge=SubspaceMerge("qr", fan_in=2), n_clients=5)),
    "federated-truncated": Case(
        FederatedPCA(
            3,
            merge=SubspaceMerge(fan_in=2, truncate=True, forgetting_factor=0.9),
            n_clients=5,
        ),
        order_matters=True,
        batches_matter=True,
    ),
    "federated-orthogonal": Case(FederatedPCA(3, merge=SubspaceMerge("orthogonal"), n_clients=4)),
    "federated-uncentred": Case(FederatedPCA(3, estimator=StreamingPCA(center=False))),
    "federated-average": Case(
        FederatedPCA(3, merge=ProjectionAverage(4)), order_matters=True, batches_matter=True
    ),
    "federated-personalized": Case(PersonalizedPCA(3, 1), order_matters=True, batches_matter=True),
    "distributed": Case(DistributedPCA(3)),
    "distributed-all": Case(DistributedPCA(n_clients=5)),
    "distributed-fraction": Case(DistributedPCA(0.8, n_clients=3, n_jobs=2)),
    "truncated": Case(TruncatedDistributedPCA(3, local_threshold=1.0)),
    "online": Case(OnlineDistributedPCA(3, n_clients=2), order_matters=True, batches_matter=True),
    "online-steps": Case(
        OnlineDistributedPCA(3, average="steps", center=False, variances="sent"),
        order_matters=True,
        batches_matter=True,
    ),
    "frequent-directions": Case(FrequentDirections(3), order_matters=True),
    "power": Case(StreamingPowerMethod(3, block_size=20, random_state=0), order_matters=True),
    "oja": Case(OjaPCA(3, random_state=0), order_matters=True),
    "grouse": Case(GROUSE(3, random_state=0), order_matters=True),
    "past": Case(PAST(3, random_state=0), order_matters=True),
    "pastd": Case(PAST(3, deflation=True, random_state=0), order_matters=True),
    "spirit": Case(SPIRIT(3, lower=0.999, upper=0.9999), order_matters=True),
    "petrels": Case(PETRELS(3, random_state=0), order_matters=True),
    "tracker": Case(SubspaceTracker(3, center=True), order_matters=True),
    "norst": Case(SubspaceTracker(3, batch_size=7, detect_changes=True), order_matters=True),
    "robust": Case(RobustSubspaceTracker(3, center=True), order_matters=True),
    "robust-svd": Case(RobustSubspaceTracker(3, init="svd", batch_size=9), order_matters=True),
    "federated-tracker": Case(
        FederatedSubspaceTracker(3, n_rounds=2, random_state=0), order_matters=True
    ),
    "distributed-pairs": Case(DistributedPCA(3, missing=AvailablePairs(min_rows=1), n_clients=3)),
    "federated-threads": Case(FederatedPCA(3, n_clients=4, n_jobs=2)),
}
STRATEGIES = [
    ContributionBounds(),
    EnergyBounds(0.5, hold_off=2),
    SubspaceMerge("qr", fan_in=3),
    NoiseAwareMerge(),
    ProjectionAverage(4, weighting="rows"),
    RobustMerge("median", max_bad=1),
    VFedPCA(5, weighting="equal"),
    LeftVectorMerge(3),
    PowerRounds(tol=1e-6),
    Complete(),
    Ring(tol=1e-3),
    Star(),
    Graph([[0, 1], [1, 0]]),
]


def cases(holds):
    """Parametrize by the cases for which this holds."""
    chosen = {name: case for name, case in CASES.items() if holds(case)}
    return pytest.mark.parametrize("case", chosen.values(), ids=chosen.keys())


def takes_weights(case):
    return "sample_weight" in inspect.signature(case.new().fit).parameters


def takes_missing_entries(case):
    return case.new().__sklearn_tags__().input_tags.allow_nan


every_case = cases(lambda case: True)


def public(kind):
    members = (getattr(fedpca_sklearn, name) for name in fedpca_sklearn.__all__)
    return {c for c in members if inspect.isclass(c) and issubclass(c, kind)}


def rows(n=200, d=12, seed=0, rank=4, dtype=np.float64):
    """Four strong directions and weak noise, away from the origin."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, rank)) * [9, 6, 4, 3] @ rng.standard_normal((rank, d))
    return (X + rng.standard_normal((n, d)) + 5 * rng.standard_normal(d)).astype(dtype)


@cache
def turning(d):
    """Rows whose directions and mean change thirty times."""
    return np.concatenate([rows(20, d, seed) for seed in range(30)])


def assert_same_model(a, b, tol=1e-9):
    assert len(a.components_) == len(b.components_) == a.n_components_
    scale = a.singular_values_[0]
    assert_allclose(a.components_, b.components_, atol=tol)
    assert_allclose(a.singular_values_, b.singular_values_, atol=tol * scale)
    assert_allclose(a.explained_variance_ratio_, b.explained_variance_ratio_, atol=tol)
    assert_allclose(a.noise_variance_, b.noise_variance_, rtol=100 * tol, atol=tol)
    assert_allclose(a.mean_, b.mean_, atol=tol * scale)


def assert_not_aliased(arrays, values):
    for array in arrays:
        for value in values:
            assert not np.shares_memory(array, value)


def test_every_public_estimator_is_listed():
    estimators = {c for c in public(BaseEstimator) if hasattr(c, "fit")}
    assert estimators
    assert estimators == {type(e) for e in CHECKED}
    # no transformer, and one without components: their contracts are in tests/monitoring and
    # tests/federated/test_federated_scaler.py
    estimators -= {SubspaceMonitor, FederatedScaler}
    streaming = {c for c in estimators if hasattr(c, "partial_fit")}
    assert estimators - streaming == {
        AlternatingProjections,
        FederatedHeteroscedasticPCA,
        FederatedPowerPCA,
        VerticalFederatedKernelPCA,
        VerticalFederatedPCA,
    }
    assert streaming == {type(case.estimator) for case in CASES.values()}


def test_every_public_strategy_is_listed():
    kinds = RankRule, MergeStrategy, VerticalMethod, Topology
    strategies = {c for c in public(kinds) if not inspect.isabstract(c)}
    assert strategies == {type(s) for s in STRATEGIES}


# an average of projections depends on the shards and the time steps
@cases(lambda case: not case.batches_matter)
def test_partial_fit_equals_fit(case):
    X = rows()
    whole = case.new().fit(X)
    sizes = [20] * 10 if case.block > 1 else [1, 2, 1, 60, 100, 35, 1]
    parts = case.new()
    for batch in np.split(X, np.cumsum(sizes)[:-1]):
        parts.partial_fit(batch)
    assert_same_model(parts, whole)
    assert parts.n_samples_seen_ == whole.n_samples_seen_ == len(X)


@every_case
@pytest.mark.parametrize(("dtype", "tol"), [(np.float64, 1e-10), (np.float32, 1e-5)])
@pytest.mark.parametrize(("d", "batches"), [(12, 30), (300, 10)])
def test_components_are_orthonormal(case, dtype, tol, d, batches):
    model = case.new()
    for batch in np.split(turning(d).astype(dtype), batches):
        model.partial_fit(batch)
    V = model.components_.astype(np.float64)
    assert len(V) >= 3
    assert np.abs(V @ V.T - np.eye(len(V))).max() < tol


@every_case
def test_components_of_equal_columns_are_orthonormal(case):
    """Two directions of five have variance, and axes of equal columns differ along these only."""
    model = case.new()
    if "n_components" in model.get_params():
        model.set_params(n_components=5)
    V = model.fit(np.random.default_rng(0).standard_normal((40, 2))[:, [0, 0, 0, 1, 1]]).components_
    assert np.abs(V @ V.T - np.eye(len(V))).max() < 1e-10


@every_case
def test_scikit_learns_pca_of_it_maps_rows_alike(case):
    X = rows()
    model = case.new().fit(X)
    if not hasattr(model, "to_sklearn"):
        return
    exported = model.to_sklearn()
    assert type(exported) is PCA
    k = len(model.components_)  # PersonalizedPCA has more columns
    assert_allclose(exported.transform(X), model.transform(X)[:, :k], atol=1e-10)
    assert exported.get_params()["n_components"] == k
    exported.components_[:] = 0
    assert model.components_.any()


@every_case
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_is_kept(case, dtype):
    X = rows(dtype=dtype)
    model = case.new()
    assert model.fit_transform(X).dtype == dtype
    model.partial_fit(X[:20])
    for name in ("components_", "mean_", "singular_values_", "explained_variance_ratio_"):
        assert getattr(model, name).dtype == dtype
    assert model.inverse_transform(model.transform(X)).dtype == dtype
    exact = case.new().fit(X.astype(np.float64)).partial_fit(X[:20].astype(np.float64))
    # float32 rounds every direction by about eps times the ratio of the extreme values, 100
    assert_allclose(model.singular_values_, exact.singular_values_, rtol=1e-4)
    P, Q = model.components_[:3], exact.components_[:3]
    assert np.linalg.norm(P - P @ Q.T @ Q, 2) < 1e-4


@every_case
@pytest.mark.parametrize("d", [12, 300])
def test_sparse_equals_dense(case, d):
    X = rows(60, d) * (np.random.default_rng(1).random((60, d)) < 0.4)
    dense, sparse = case.new().fit(X), case.new().fit(sp.csr_array(X))
    if d > 256 and case.estimator.get_params().get("n_components") == 3:
        # directions are dropped, after blocks that need not be the same
        P, Q = dense.components_, sparse.components_
        assert np.linalg.norm(P - P @ Q.T @ Q, 2) < 0.3
    else:
        assert_same_model(sparse, dense, tol=1e-8)
    for model in (dense, sparse):
        assert_allclose(model.transform(sp.csc_array(X)), model.transform(X), atol=1e-9)
        if model.noise_variance_ > 0:  # without noise, the likelihood is that of rounding errors
            assert_allclose(model.score(sp.csr_array(X)), model.score(X), rtol=1e-9)


@every_case
def test_pandas_goes_in_and_comes_out(case):
    X = pd.DataFrame(rows(), columns=[f"sensor {i}" for i in range(12)])
    X.index = X.index + 1000
    model = case.new().set_output(transform="pandas")
    Z = model.fit_transform(X)
    prefix = type(model).__name__.lower()
    width = model.n_components_ + getattr(model, "n_local_components_", 0)
    assert list(Z.columns) == [f"{prefix}{i}" for i in range(width)]
    assert list(Z.index) == list(X.index)
    assert list(model.feature_names_in_) == list(X.columns)
    nameless = case.new().fit(X.to_numpy())
    assert_allclose(Z, nameless.transform(X.to_numpy()), atol=1e-9)
    for method in ("score_samples", "score"):  # without a warning that names were lost
        expected = getattr(nameless, method)(X.to_numpy())
        assert_allclose(getattr(model, method)(X), expected, rtol=1e-7, atol=1e-7)
    with pytest.raises(ValueError, match="feature names"):
        model.transform(X.iloc[:, ::-1])


def by_pickle(model, path):
    return pickle.loads(pickle.dumps(model))


def by_joblib(model, path):
    joblib.dump(model, path)
    return joblib.load(path)


@every_case
@pytest.mark.parametrize("through", [by_pickle, by_joblib])
def test_a_copy_on_disk_goes_on_where_the_stream_was(case, through, tmp_path):
    X = rows()
    model = through(case.new(), tmp_path / "new").partial_fit(X[:80])
    copy = through(model, tmp_path / "model")
    assert_array_equal(copy.transform(X), model.transform(X))
    copy.partial_fit(X[80:])
    assert model.n_samples_seen_ == 80
    assert_same_model(copy, model.partial_fit(X[80:]), tol=1e-12)


@every_case
def test_a_clone_shares_nothing(case):
    X = rows()
    model = case.new().fit(X)
    before = joblib.hash(vars(model))
    twin = clone(model)
    assert not [name for name in vars(twin) if name.endswith("_")]
    assert twin.get_params(deep=False).keys() == model.get_params(deep=False).keys()
    twin.fit(rows(seed=1)).partial_fit(rows(seed=2))
    assert joblib.hash(vars(model)) == before


@every_case
@pytest.mark.parametrize("sparse", [False, True])
def test_rows_are_neither_written_nor_kept(case, sparse):
    X = rows()
    data = sp.csr_array(X) if sparse else X.copy()
    model = case.new().fit(data).partial_fit(data[:40])
    model.transform(data)
    model.score(data)
    assert_array_equal(data.toarray() if sparse else data, X)
    values = [data.data, data.indices, data.indptr] if sparse else [data]
    assert_not_aliased(arrays_in(vars(model)), values)


@every_case
def test_a_buffer_may_be_reused_for_all_batches(case):
    X = rows()
    expected, reused, buffer = case.new(), case.new(), np.empty((40, 12))
    for i in range(0, 200, 40):
        expected.partial_fit(X[i : i + 40])
        buffer[:] = X[i : i + 40]
        reused.partial_fit(buffer)
    assert_same_model(reused, expected, tol=1e-12)


@every_case
def test_fitted_arrays_may_be_written_without_harm_to_the_stream(case):
    X = rows()
    model, spoilt = case.new().fit(X[:100]), case.new().fit(X[:100])
    for name, value in fitted_attributes(spoilt).items():
        if isinstance(value, np.ndarray) and value.dtype.kind == "f":
            setattr(spoilt, name, value)
            value[...] = 0
    assert_same_model(spoilt.partial_fit(X[100:]), model.partial_fit(X[100:]), tol=1e-12)


@pytest.mark.parametrize("case", ["streaming", "streaming-qr", "federated", "federated-tree"])
def test_a_grid_search_finds_the_rank(case):
    X = rows(300)
    grid = {"n_components": [1, 2, 3, 4, 5, 6, 8]}
    search = GridSearchCV(CASES[case].new(), grid, cv=3, error_score="raise").fit(X)
    assert search.best_params_ == {"n_components": 4}
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_strategies_can_be_searched():
    X = rows(300)
    rule = StreamingPCA(1, rank_rule=ContributionBounds(lower=0.0), block_size=20)
    grid = {"rank_rule__upper": [0.5, 0.07]}
    search = GridSearchCV(rule, grid, cv=3, error_score="raise").fit(X)
    assert search.best_params_ == {"rank_rule__upper": 0.07}
    grid = {"merge__method": ["svd", "qr", "orthogonal", "gram"], "merge__fan_in": [None, 2]}
    federated = FederatedPCA(4, merge=SubspaceMerge(), n_clients=4)
    search = GridSearchCV(federated, grid, cv=3, error_score="raise").fit(X)
    assert_allclose(search.cv_results_["mean_test_score"], search.best_score_, rtol=1e-9)


@every_case
def test_it_works_in_a_pipeline(case):
    X = rows()
    pipe = make_pipeline(StandardScaler(), case.new()).fit(X)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    assert_allclose(pipe.transform(X), case.new().fit_transform(scaled), atol=1e-8)
    assert_allclose(pipe.score(X), case.new().fit(scaled).score(scaled), rtol=1e-8)


@cache
def gone_on(case):
    """The model without a call that fails."""
    return case.new().fit(rows()).partial_fit(rows(40, seed=2))


def assert_no_trace_of_a_failed_call(case, method, X, message, **kwargs):
    fitted = case.new().fit(rows())
    of_width = X.ndim == 2 and X.shape[1] != 12
    for model in (fitted, case.new()):
        if of_width and method == "partial_fit" and model is not fitted:
            continue
        before = joblib.hash(vars(model))
        with pytest.raises(ValueError, match=message):
            getattr(model, method)(X, **kwargs)
        assert joblib.hash(vars(model)) == before
    assert_same_model(fitted.partial_fit(rows(40, seed=2)), gone_on(case), tol=1e-12)


@every_case
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize("bad", ["infinity", "1D", "no rows"])
def test_a_failed_call_leaves_no_trace(case, method, bad):
    X = rows(40, seed=1)
    if bad == "infinity":
        X[-1, -1] = np.inf
    else:
        X = X[0] if bad == "1D" else X[:0]
    assert_no_trace_of_a_failed_call(case, method, X, r"infinity|2D|0 sample")


@every_case
def test_rows_of_another_width_leave_no_trace(case):
    X = rows(40, seed=1)[:, :-1]
    assert_no_trace_of_a_failed_call(case, "partial_fit", X, "features")


@cases(lambda case: not takes_missing_entries(case))
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_a_missing_entry_leaves_no_trace(case, method):
    X = rows(40, seed=1)
    X[-1, -1] = np.nan
    assert_no_trace_of_a_failed_call(case, method, X, "NaN")


@cases(takes_weights)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_negative_weights_leave_no_trace(case, method):
    X, w = rows(40, seed=1), -np.ones(40)
    assert_no_trace_of_a_failed_call(case, method, X, "sample_weight", sample_weight=w)


@cases(lambda case: not case.order_matters)
def test_the_order_of_rows_does_not_matter(case):
    X = rows()
    shuffled = X[np.random.default_rng(0).permutation(len(X))]
    assert_same_model(case.new().fit(shuffled), case.new().fit(X))


@every_case
def test_memory_does_not_grow_with_the_stream(case, caplog):
    caplog.set_level(logging.WARNING, "fedpca_sklearn")  # pytest keeps the records of this test
    model, batches = case.new(), [rows(30, 60, seed=i) for i in range(4)]

    def go_on(n):
        for i in range(n):
            model.partial_fit(batches[i % 4])

    def traced():
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    def most(n):
        """Most memory after any of some calls, between which rows may be collected."""
        return max([go_on(4), traced()][1] for _ in range(n // 4))

    go_on(6)
    gc.freeze()  # what other tests have left is not walked through again and again
    tracemalloc.start()
    try:
        before = most(32)
        growth = most(32) - before
    finally:
        tracemalloc.stop()
    # a log of ranks or of messages may grow, by less than a quarter of the rows that went through
    assert growth < 32 * batches[0].nbytes / 4


@every_case
def test_a_refit_equals_a_fit(case):
    model = case.new().fit(rows(50, 7, seed=1)).fit(rows())
    fresh = case.new().fit(rows())
    assert_same_model(model, fresh, tol=1e-12)
    assert vars(model).keys() == vars(fresh).keys()
    params = {k: v for k, v in model.get_params().items() if not isinstance(v, BaseEstimator)}
    assert {k: case.estimator.get_params()[k] for k in params} == params


# ------------------------------------------------------------------------------------- strategies


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
def test_strategies_are_ordinary_parameters(strategy):
    copy = clone(strategy)
    assert copy is not strategy
    assert copy.get_params() == strategy.get_params()
    assert repr(copy) == repr(strategy)
    assert type(strategy).__name__ in repr(strategy)
    assert type(strategy)(**strategy.get_params()).get_params() == strategy.get_params()
    with pytest.raises(ValueError, match="nonsense"):
        copy.set_params(nonsense=1)
    assert pickle.loads(pickle.dumps(copy)).get_params() == strategy.get_params()


def test_parameters_of_strategies_are_reached_through_the_estimator():
    streaming = StreamingPCA(3, rank_rule=ContributionBounds())
    streaming.set_params(rank_rule__lower=0.02, rank_rule__hold_off=3)
    assert streaming.get_params()["rank_rule__lower"] == 0.02
    assert "lower=0.02" in repr(streaming)
    twin = clone(streaming)
    assert twin.rank_rule is not streaming.rank_rule
    assert twin.get_params()["rank_rule__hold_off"] == 3
    federated = FederatedPCA(2, estimator=StreamingPCA(5), merge=SubspaceMerge())
    federated.set_params(merge__fan_in=2, estimator__forgetting_factor=0.9)
    assert clone(federated).get_params()["merge__fan_in"] == 2
    assert clone(federated).estimator.forgetting_factor == 0.9


@pytest.mark.parametrize(
    ("model", "name", "message"),
    [
        (FederatedPCA(2), "merge__fan_in", "merge__fan_in needs an object as merge, which is None"),
        (FederatedPCA(2), "estimator__block_size", "an object as estimator, which is None"),
        (VerticalFederatedPCA(2), "method__n_rounds", "as method, which is 'vfedpca'"),
        (VerticalFederatedKernelPCA(2), "aggregation__n_rounds", "aggregation, which is 'exact'"),
        (StreamingPCA(2), "n_components__x", "as n_components, which is 2"),
        (StreamingPCA(2), "nonsense__x", "Invalid parameter 'nonsense'"),
    ],
    ids=str,
)
def test_parameters_of_what_is_no_object_are_named(model, name, message):
    with pytest.raises(ValueError, match=message):
        clone(model).set_params(**{name: 2})
    both = FederatedPCA(2).set_params(merge__fan_in=3, merge=SubspaceMerge())
    assert both.merge.fan_in == 3


def test_a_fit_does_not_touch_its_strategies():
    X = rows()
    rule, merge = ContributionBounds(), SubspaceMerge(fan_in=2)
    inner = StreamingPCA(4, rank_rule=rule, block_size=20)
    before = joblib.hash((rule, merge, inner))
    FederatedPCA(3, estimator=inner, merge=merge, n_clients=3).fit(X).partial_fit(X)
    assert joblib.hash((rule, merge, inner)) == before


@pytest.mark.parametrize("model", [DistributedPCA(1), StreamingPCA(1), OjaPCA(1)])
def test_variance_beyond_the_dtype_is_refused(model):
    X = np.random.default_rng(0).standard_normal((20, 3)).astype(np.float32)
    X *= np.float32(1e25)
    with pytest.raises(ValueError, match="too large: their variance overflows float32"):
        model.fit(X)
    assert not hasattr(model, "components_")


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize(
    "model",
    [
        *(estimator(2) for estimator in (AlternatingProjections, RobustSubspaceTracker)),
        *(estimator(2) for estimator in (SubspaceTracker, StreamingPCA, FederatedPCA, GROUSE)),
        FederatedHeteroscedasticPCA(2, random_state=0),
        FederatedPowerPCA(2, random_state=0),
        FederatedPowerPCA(2, acceleration="krylov", random_state=0),
        FederatedSubspaceTracker(2, random_state=0),
        *(VerticalFederatedPCA(2, method=m) for m in ("vfedpca", "merge", "power")),
    ],
    ids=str,
)
def test_squares_beyond_float64_are_refused_by_name(model):
    X = np.random.default_rng(0).standard_normal((100, 8)) * 1e200
    with pytest.raises(ValueError, match="X holds values that are too large"):
        model.fit(X)
    assert not hasattr(model, "components_")


@pytest.mark.parametrize("model", [DistributedPCA(1), StreamingPCA(1)])
def test_weights_with_an_infinite_sum_are_refused(model):
    with pytest.raises(ValueError, match="sample_weight must have a finite sum"):
        model.fit(np.eye(4), sample_weight=[1e308, 1e308, 1, 1])


@pytest.mark.parametrize("model", [DistributedPCA(0.9), StreamingPCA(0.9)])
@pytest.mark.parametrize("scale", [1e-150, 1e-160, 1e140])
def test_a_share_of_variance_does_not_depend_on_the_scale(model, scale):
    X = np.random.default_rng(0).standard_normal((50, 6)) * [9, 5, 3, 1, 1, 1]
    expected = clone(model).fit(X).n_components_
    assert clone(model).fit(X * scale).n_components_ == expected


@pytest.mark.parametrize("model", [StreamingPCA(3), FederatedPCA(3)])
def test_categories_of_equal_size_have_components(model):
    """Dummy columns, the last one dropped: all eigenvalues but one are equal."""
    X = np.eye(300)[:, :-1]
    X = np.vstack([X] * getattr(model, "n_clients", 1))
    Z = model.fit(X).transform(X)
    squares = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:3] ** 2
    assert_allclose(Z.T @ Z, np.diag(squares), atol=1e-9)
