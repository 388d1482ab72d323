"""Parameters at the ends of what their types allow: a finite result, or an error by name."""

import importlib
import re
from numbers import Integral, Real
from operator import attrgetter

import numpy as np
import pytest
from sklearn.base import clone

import fedpca_sklearn
from fedpca_sklearn import (
    GROUSE,
    PAST,
    PETRELS,
    AlternatingProjections,
    AnalyzeGauss,
    DistributedPCA,
    FadingChannel,
    FederatedPCA,
    FederatedPowerPCA,
    FedPowerNoise,
    FixedPointChannel,
    ModSuLQ,
    OjaPCA,
    OnlineDistributedPCA,
    RobustSubspaceTracker,
    StreamingModSuLQ,
    StreamingPCA,
    StreamingPowerMethod,
    SubspaceMonitor,
    SubspaceTracker,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore::fedpca_sklearn.PrivacyNoiseWarning",
    "ignore:.*:sklearn.exceptions.ConvergenceWarning",
    "ignore:No entry of a batch is an outlier:UserWarning",
)
HUGE = [2**63, 10**40, 10**400]
TINY, LARGE = [5e-324, 1e-320, 1e-300, np.float32(1e-45)], [1e155, 1.7e308, np.float32(1e38)]
MONITOR = SubspaceMonitor(StreamingPCA(2), limits="quantile")
PRIVATE = [
    FederatedPCA(2, mechanism=kind(1.0, 1e-3, 20.0), random_state=0)
    for kind in (AnalyzeGauss, ModSuLQ, StreamingModSuLQ)
] + [FederatedPowerPCA(2, n_rounds=2, mechanism=FedPowerNoise(1.0, 1e-3, 20.0), random_state=0)]
POWER = FederatedPowerPCA(2, n_rounds=3, channel=FadingChannel(), random_state=0)
FIXED = FederatedPowerPCA(2, n_rounds=3, channel=FixedPointChannel(), random_state=0)
CASES = [
    (MONITOR, "contamination", TINY),
    (MONITOR, "drift_window", [2**31, *HUGE]),
    (StreamingPCA(2), "forgetting_factor", TINY),
    (StreamingPCA(2), "half_life", [1e-6, *TINY, *LARGE, 10**400]),
    *((kind(2, random_state=0), "forgetting_factor", [1e-17, *TINY]) for kind in (PAST, PETRELS)),
    *((kind(2, random_state=0), "half_life", [1e-6, 0.01, 1e155]) for kind in (PAST, PETRELS)),
    (PETRELS(2, random_state=0), "regularization", [*TINY, *LARGE, 10**400]),
    (GROUSE(2, random_state=0), "step_size", [*LARGE, 10**400]),
    (OjaPCA(2, random_state=0), "learning_rate", [*LARGE, 10**400]),
    (AlternatingProjections(2), "threshold_scale", [*LARGE, 10**400]),
    (RobustSubspaceTracker(2), "support_threshold", [*LARGE, 10**400]),
    (RobustSubspaceTracker(2), "absorb_after", HUGE),
    (VerticalFederatedKernelPCA(2, kernel="poly"), "gamma", [*LARGE, 10**400]),
    *((private, "mechanism__epsilon", [*LARGE, 10**400]) for private in PRIVATE),
    *((private, "mechanism__delta", TINY) for private in PRIVATE),
    *((private, "mechanism__mean_share", TINY) for private in PRIVATE),
    *((private, "mechanism__row_norm", [1e100, *LARGE]) for private in PRIVATE),
    (PRIVATE[0], "mechanism__n_releases", HUGE),
    (POWER, "channel__max_delay", HUGE),
    (POWER, "channel__noise_std", [*LARGE, 10**400]),
    (FIXED, "channel__scale", [*TINY, 1e17, 1e100, 1e290, np.float32(1e38)]),
]


def rows():
    return np.random.default_rng(0).standard_normal((60, 6)) * np.arange(6, 0, -1) + 1


@pytest.mark.parametrize(
    ("model", "name", "value"),
    [(model, name, value) for model, name, values in CASES for value in values],
    ids=lambda case: type(case).__name__ if hasattr(case, "fit") else repr(case)[:25],
)
def test_a_finite_result_or_an_error_that_names_the_parameter(model, name, value):
    X = rows()
    model = clone(model).set_params(**{name: value})
    before = set(vars(model))
    refused = None
    try:
        model.fit(X)
    except ValueError as error:
        refused = str(error)
    if refused is not None:
        assert re.search(rf"\b{name.split('__')[-1]}\b", refused), refused
        assert repr(value)[:20] in refused or str(value)[:20] in refused
        assert set(vars(model)) - before <= {"_accounts"}
    else:
        fitted = getattr(model, "estimator_", model)
        for found in (fitted.components_, model.score_samples(X)):
            assert np.isfinite(found).all()


def constraints():
    """Every declared interval of a public class, with its class and its parameter."""
    for public in map(vars(fedpca_sklearn).get, fedpca_sklearn.__all__):
        for name, declared in getattr(public, "_parameter_constraints", {}).items():
            for one in declared if isinstance(declared, list) else ():
                if hasattr(one, "closed"):
                    yield public.__name__, name, one


def test_no_interval_takes_numbers_that_arithmetic_does_not():
    found = [case for case in constraints() if case[0] != "FederatedScaler"]
    assert len(found) > 60
    for owner, name, interval in found:
        for value in [10**400, 2**63, -(10**400)] if interval.type is Integral else [10**400]:
            assert value not in interval, (owner, name)
        if issubclass(interval.type, Real) or interval.type is Real:
            assert 5e-324 not in interval or interval.left <= 0, (owner, name)
            assert -1e300 not in interval, (owner, name)


KINDS = [
    (FederatedPCA(), "merge", ["MergeStrategy"]),
    (FederatedPCA(), "mechanism", ["base.SecondMomentMechanism"]),
    (FederatedPCA(), "missing", ["AvailablePairs", "ConditionalFill"]),
    (DistributedPCA(), "missing", ["AvailablePairs"]),
    (FederatedPowerPCA(), "channel", ["Channel"]),
    (FederatedPowerPCA(), "mechanism", ["FedPowerNoise"]),
    (StreamingPCA(), "rank_rule", ["RankRule"]),
    (VerticalFederatedPCA(), "method", ["VerticalMethod"]),
    (VerticalFederatedKernelPCA(), "aggregation", ["VFedPCA"]),
    (AnalyzeGauss(1.0, 0.1, 1.0), "ledger", ["PrivacyLedger"]),
    (AnalyzeGauss(1.0, 0.1, 1.0), "noise", ["privacy.DiscreteGaussian"]),
]


@pytest.mark.parametrize("value", ["pairs", 5], ids=repr)
@pytest.mark.parametrize(("model", "name", "kinds"), KINDS, ids=lambda case: str(case)[:25])
def test_errors_name_classes_as_users_import_them(model, name, kinds, value):
    model = clone(model).set_params(**{name: value})
    with pytest.raises(ValueError, match=rf"'{name}' .* Got {value!r} instead") as error:
        model.fit(rows()) if hasattr(model, "fit") else model.validate()
    named = re.findall(r"'fedpca_sklearn\.([\w.]+)'", str(error.value))
    assert named == kinds
    for path in named:
        importlib.import_module(".".join(["fedpca_sklearn", *path.split(".")[:-1]]))
        assert attrgetter(path)(fedpca_sklearn)


def test_missing_that_is_no_strategy_says_which_there_are():
    words = r"'missing' .* 'fedpca_sklearn.AvailablePairs' or 'fedpca_sklearn.ConditionalFill' .*"
    with pytest.raises(ValueError, match=words + "Got 'pairs' instead"):
        FederatedPCA(2, missing="pairs").fit(rows())


NARROW = [
    *(
        (getattr(fedpca_sklearn, n)(), "n_components", 10)
        for n in fedpca_sklearn.__all__
        if "n_components" in getattr(getattr(fedpca_sklearn, n), "_parameter_constraints", ())
        and not n.startswith("Vertical")
    ),
    (VerticalFederatedPCA(feature_groups=2), "n_components", 13),
    (StreamingPCA(5), "block_size", 100),
    (StreamingPCA(5), "oversampling", 100),
    (StreamingPowerMethod(5), "block_size", 100),
    (SubspaceTracker(5), "batch_size", 100),
    (OnlineDistributedPCA(5), "projection_dim", 20),
    (DistributedPCA(5), "n_clients", 100),
]


@pytest.mark.parametrize(("model", "name", "value"), NARROW, ids=lambda case: str(case)[:15])
def test_an_integer_of_few_bits_is_a_number(model, name, value):
    """Products of numpy's narrow integers overflow, and a grid or a table may hold such."""
    X = np.random.default_rng(0).standard_normal((150, 300)) * np.linspace(3, 1, 300)
    X = X if name != "n_components" else X[:24]
    seed = {"random_state": 0} if "random_state" in model.get_params() else {}
    models = [clone(model).set_params(**{name: k}, **seed) for k in (np.int8(value), value)]
    narrow, wide = (m.fit(X) for m in models)
    assert type(narrow.get_params()[name]) is np.int8
    assert type(narrow.n_components_) is int
    np.testing.assert_array_equal(narrow.components_, wide.components_)


def test_summaries_are_merged_to_an_integer_of_few_bits():
    part = fedpca_sklearn.Subspace.from_rows(np.random.default_rng(0).standard_normal((30, 300)))
    merged = fedpca_sklearn.merge_subspaces([part, part], np.int8(10))
    assert merged.n_components == 10
    assert FederatedPCA.from_subspaces([part, part], np.int8(10)).n_components_ == 10


def test_no_interval_takes_a_truth_for_a_number():
    for owner, name, interval in constraints():
        for value in (True, False, np.True_):
            assert not interval.is_satisfied_by(value), (owner, name)


@pytest.mark.parametrize("value", [True, np.True_], ids=repr)
@pytest.mark.parametrize(
    "kind",
    [
        getattr(fedpca_sklearn, n)
        for n in fedpca_sklearn.__all__
        if "n_components" in getattr(getattr(fedpca_sklearn, n), "_parameter_constraints", ())
    ],
)
def test_every_estimator_refuses_a_truth_as_n_components(kind, value):
    for method in ("fit", "partial_fit"):
        if hasattr(kind, method):
            model = kind(value)
            with pytest.raises(ValueError, match=rf"'n_components' .* Got {value!r} instead"):
                getattr(model, method)(rows())
            assert vars(model) == vars(kind(value))


SITES = [fedpca_sklearn.Subspace.from_rows(part) for part in np.array_split(rows(), 3)]


@pytest.mark.parametrize(
    "call",
    [
        lambda value: fedpca_sklearn.merge_subspaces(SITES, value),
        lambda value: fedpca_sklearn.jackknife_intervals(SITES, value),
        lambda value: fedpca_sklearn.Subspace.from_rows(rows(), value),
        SITES[0].truncate,
        lambda value: StreamingPCA.from_subspace(SITES[0], value),
        lambda value: FederatedPCA.from_subspaces(SITES, value),
        *(
            lambda value, merge=merge: merge().merge(SITES, value)
            for merge in map(vars(fedpca_sklearn).get, fedpca_sklearn.__all__)
            if isinstance(merge, type)
            and issubclass(merge, fedpca_sklearn.MergeStrategy)
            and merge is not fedpca_sklearn.MergeStrategy
        ),
    ],
)
def test_summaries_are_not_merged_or_cut_to_a_truth(call):
    with pytest.raises(ValueError, match=r"n_components.*True"):
        call(True)


X = np.random.default_rng(0).standard_normal((20, 5))
COUNTS = {
    "n_samples": fedpca_sklearn.make_power_law,
    "n_features": lambda n_features: fedpca_sklearn.make_spiked(9, n_features, spikes=[3]),
    "return_components": lambda return_components: fedpca_sklearn.make_power_law(
        9, 5, return_components=return_components
    ),
    "n_components": lambda n_components: fedpca_sklearn.make_subspace_stream(
        n_components=n_components
    ),
    "n_clients": lambda n_clients: fedpca_sklearn.partition_clients([0, 1], n_clients),
    "batch_size": lambda batch_size: fedpca_sklearn.iter_batches(X, batch_size=batch_size),
    "n_checkpoints": lambda n_checkpoints: fedpca_sklearn.evaluate_stream(
        StreamingPCA(2), X, n_checkpoints=n_checkpoints
    ),
    "n_rounds": lambda n_rounds: StreamingPCA(2).fit(X).refine(X, n_rounds=n_rounds),
    "max_iter": lambda max_iter: fedpca_sklearn.projected_sparse_recovery(
        X, np.eye(5)[:2], max_iter=max_iter
    ),
    "n_samples_seen": lambda n_samples_seen: StreamingPCA.from_subspace(
        SITES[0], n_samples_seen=n_samples_seen
    ),
}


@pytest.mark.parametrize("value", [True, 2.0, "2", -1], ids=repr)
@pytest.mark.parametrize("name", COUNTS)
def test_what_is_counted_is_an_integer(name, value):
    with pytest.raises(ValueError, match=f"{name} must be an integer .*, got {value!r}"):
        COUNTS[name](**{name: value})
