"""A wrong parameter is an error that names it, and changes nothing; an extreme one as well.

Each line of the table is a wrong parameter of the estimator above it and the words of the error, or
wrong values of a parameter that the error names (`x as y: ...` where it names what x has inside).
Two values of each parameter are in the golden file (-7 and a text of no meaning), with the message
and so with the allowed interval; here are those of objects in a parameter, and those that
contradict the rows or another parameter. Of a type that has the constraint of another
(`_parameter_constraints`) one line is enough.
"""

import importlib
import pickle
import re
from functools import cache
from operator import attrgetter

import joblib
import numpy as np
import pytest
from golden_cases import NAMES, made
from numpy import eye, full, inf, nan, ones, zeros
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import StandardScaler

import fedpca_sklearn
from fedpca_sklearn import FederatedPCA, Subspace, merge_subspaces

pytestmark = pytest.mark.filterwarnings(
    "ignore::fedpca_sklearn.PrivacyNoiseWarning",
    "ignore:.*:sklearn.exceptions.ConvergenceWarning",
    "ignore:No entry of a batch is an outlier:UserWarning",
)
VALUES = {**NAMES, "StandardScaler": StandardScaler, "rbf_kernel": rbf_kernel}
VALUES |= {"eye": eye, "full": full, "inf": inf, "nan": nan, "ones": ones, "zeros": zeros}
# Read when a stream starts; where they change later is in tests/streaming and tests/tracking.
AT_THE_START = {"init", "estimator", "rank_rule"}

TABLE = """
StreamingPCA(2)
    n_components=0.5, rank_rule=EnergyBounds() | n_components=0.5 | integer
    n_components=10 | n_components=10 | at most | n_features=9
    rank_rule=EnergyBounds(0.9, 0.8) | lower=0.9 | upper=0.8 | lower < upper
    rank_rule=ContributionBounds(growth="e_r") | growth | 'e_r' | 'canonical'
    rank_rule=ContributionBounds | rank_rule | ContributionBounds
FederatedPCA(2, n_clients=3)
    n_components=10 | n_components=10 | n_features=9
    estimator=StreamingPCA(-1) | Client 0 | n_components | -1
    merge=SubspaceMerge | merge | SubspaceMerge
    merge=SubspaceMerge(fan_in=1) | 'fan_in' | Got 1 | [2, inf)
    merge=ProjectionAverage(weighting="variance") | 'weighting' parameter of | Got 'variance'
    estimator as StandardScaler: StandardScaler()
OnlineDistributedPCA(2)
    n_components=10 | n_components=10 | n_features=9
    projection_dim=10 | projection_dim=10 must be at most n_features=9
FederatedPowerPCA(2, n_clients=2, random_state=0)
    init=ones((3, 9)) | init must have shape (2, 9), got (3, 9)
    local_steps=2, acceleration="krylov" | acceleration='krylov' needs local_steps=1, got 2
    channel=PerfectChannel(zeros((4, 3))) | dropout must have a column for each of 2 clients | 4, 3
    init: full((2, 9), nan)
    channel as dropout: PerfectChannel(1.0); PerfectChannel(-0.1); PerfectChannel([0, 1])
    channel: PerfectChannel; zeros((1, 3))
FederatedSubspaceTracker(3, forgetting_factor=0.0, fill="subspace", center=False, random_state=0)
    init=ones((3, 8)) | init must have shape (k, 9)
    support_threshold as absorb_after: OutlierSupport(absorb_after=50)
    n_components: 10
SubspaceTracker(3, forgetting_factor=0.0, fill="subspace", center=False)
    n_components: 10
    init: eye(3, 8); ones((10, 9)); ones(9); full((3, 9), nan)
    detect_changes as threshold: ChangeDetection(threshold=-1.0)
RobustSubspaceTracker(3, forgetting_factor=0.0, fill="subspace", center=False)
    support_threshold as threshold: OutlierSupport(-1.0); OutlierSupport(nan)
AlternatingProjections(3)
    n_components: 10
SPIRIT(2)
    lower=0.9, upper=0.8 | lower < upper
VerticalFederatedPCA(2, feature_groups=3, random_state=0)
    method=PowerRounds(channel=GaussianChannel()), topology=Ring() | needs topology='server'
    method=PowerRounds(channel=PerfectChannel([[1, 1, 1]])) | channel: no client took part
    feature_groups=[range(8), [8.5]] | feature_groups | got 8.5
    feature_groups=[slice(2), range(2, 9)] | feature_groups | got slice(None, 2, None)
    feature_groups=[ones(9, bool), [1]] | feature_groups | got True
    n_components: 10
    method: VFedPCA
    method as channel: PowerRounds(channel="gaussian")
    topology: zeros((2, 2)); Ring
VerticalFederatedKernelPCA(2, feature_groups=2, random_state=0)
    feature_groups=10 | feature_groups=10 must be between 1 and n_features=9
    feature_groups=[[0, 1], range(1, 9)] | feature_groups | column 1 is held by 2
    feature_groups=[[], range(9)] | feature_groups must not hold an empty group
    feature_groups=[[-1], range(8)] | feature_groups | got -1
    feature_groups=[["ash"], range(1, 9)] | got 'ash', and the columns of X have no names.
    kernel=rbf_kernel | kernel= | needs aggregation=VFedPCA
    aggregation=VFedPCA(), n_landmarks=5 | n_landmarks=5 needs aggregation='exact'
    kernel="poly", degree=0.5, gamma=9.0 | kernel='poly' is NaN or infinite
    kernel=lambda X, Y: X, aggregation=VFedPCA() | Client 0: kernel must return | got (60, 5)
    kernel=lambda *X: full((60, 60), nan), aggregation=VFedPCA() | Client 0: kernel= | is NaN
    aggregation: VFedPCA
    feature_groups: 0; []
"""


def rows_of_the_table():
    """Wrong parameters with words of the error, by the code of an estimator."""
    found = {}
    for line in TABLE.strip().splitlines():
        name, _, values = line.strip().partition(": ")
        if not line.startswith(" "):
            rows = found.setdefault(line, [])
        elif " | " in line:
            rows.append(line.strip().split(" | "))
        else:
            name, _, word = name.partition(" as ")
            rows += [(f"{name}={value}", word or name) for value in values.split("; ")]
    return found


def value_of(code):
    return eval(code, dict(VALUES))


def fitted(model):
    """What a model holds beside its parameters."""
    return joblib.hash({n: v for n, v in vars(model).items() if n not in model.get_params()})


def rows_of_size(d):
    return (np.random.default_rng(0).standard_normal((60, 9)) * np.linspace(3, 1, 9))[:, :d]


@cache
def kept(code, d):
    return pickle.dumps(value_of(code).fit(rows_of_size(d)))


def fitted_to(code, d):
    """A model of so many columns, each time a new one."""
    return pickle.loads(kept(code, d))


REFUSED = rows_of_the_table()


@pytest.mark.parametrize("code", REFUSED)
def test_a_wrong_parameter_is_named_and_changes_nothing(code):
    X = rows_of_size(9)
    for text, *words in REFUSED[code]:
        new, wrong = value_of(code), value_of(f"dict({text})")
        calls = [(new, "fit"), (new, "partial_fit"), (fitted_to(code, 8), "fit")]
        if not AT_THE_START & wrong.keys():
            calls += [(fitted_to(code, 9), "partial_fit")]
        for model, method in calls:
            model.set_params(**wrong)
            if not hasattr(model, method):
                continue
            before, names, refused = fitted(model), list(vars(model)), ""
            try:
                getattr(model, method)(X)
            except (ValueError, TypeError) as error:
                refused = str(error)
            assert refused, f"{method} takes {text}"
            assert all(word in refused for word in words), f"{text}: {refused}"
            assert (fitted(model), list(vars(model))) == (before, names), text


# ------------------------------------------------------------------------------ extreme values

HUGE = [2**63, 10**40, 10**400]
TINY, LARGE = [5e-324, 1e-320, 1e-300, np.float32(1e-45)], [1e155, 1.7e308, np.float32(1e38)]
LARGE = [*LARGE, 10**400]
PRIVATE = """
FederatedPCA(2, mechanism=AnalyzeGauss(1.0, 1e-3, 20.0), random_state=0)
FederatedPCA(2, mechanism=ModSuLQ(1.0, 1e-3, 20.0), random_state=0)
FederatedPCA(2, mechanism=StreamingModSuLQ(1.0, 1e-3, 20.0), random_state=0)
FederatedPowerPCA(2, n_rounds=2, mechanism=FedPowerNoise(1.0, 1e-3, 20.0), random_state=0)
""".strip().splitlines()
FADING = "FederatedPowerPCA(2, n_rounds=3, channel=FadingChannel(), random_state=0)"
FIXED = "FederatedPowerPCA(2, n_rounds=3, channel=FixedPointChannel(), random_state=0)"
EXTREME = [
    ('SubspaceMonitor(StreamingPCA(2), limits="quantile")', "contamination", TINY),
    ("SubspaceMonitor(StreamingPCA(2))", "drift_window", [2**31, *HUGE]),
    ("StreamingPCA(2)", "forgetting_factor", TINY),
    ("StreamingPCA(2)", "half_life", [1e-6, *TINY, *LARGE]),
    *(
        (f"{k}(2, random_state=0)", "forgetting_factor", [1e-17, *TINY])
        for k in ("PAST", "PETRELS")
    ),
    *((f"{k}(2, random_state=0)", "half_life", [1e-6, 0.01, 1e155]) for k in ("PAST", "PETRELS")),
    ("PETRELS(2, random_state=0)", "regularization", [*TINY, *LARGE]),
    ("GROUSE(2, random_state=0)", "step_size", LARGE),
    ("OjaPCA(2, random_state=0)", "learning_rate", LARGE),
    ("AlternatingProjections(2)", "threshold_scale", LARGE),
    ("RobustSubspaceTracker(2)", "support_threshold", LARGE),
    (
        "RobustSubspaceTracker(2, support_threshold=OutlierSupport())",
        "support_threshold__absorb_after",
        HUGE,
    ),
    ('VerticalFederatedKernelPCA(2, kernel="poly")', "gamma", LARGE),
    *((private, "mechanism__epsilon", LARGE) for private in PRIVATE),
    *((private, "mechanism__delta", TINY) for private in PRIVATE),
    *((private, "mechanism__mean_share", TINY) for private in PRIVATE),
    *((private, "mechanism__row_norm", [1e100, *LARGE[:-1]]) for private in PRIVATE),
    (PRIVATE[0], "mechanism__n_releases", HUGE),
    (FADING, "channel__max_delay", HUGE),
    (FADING, "channel__noise_std", LARGE),
    (FIXED, "channel__scale", [*TINY, 1e17, 1e100, 1e290, np.float32(1e38)]),
]


def rows():
    return np.random.default_rng(0).standard_normal((60, 6)) * np.arange(6, 0, -1) + 1


@pytest.mark.parametrize(("code", "name", "values"), EXTREME)
def test_a_finite_result_or_an_error_that_names_the_parameter(code, name, values):
    for value in values:
        model = made(code).set_params(**{name: value})
        before, refused = set(vars(model)), None
        try:
            model.fit(rows())
        except ValueError as error:
            refused = str(error)
        if refused is not None:
            assert re.search(rf"\b{name.split('__')[-1]}\b", refused), refused
            assert repr(value)[:20] in refused or str(value)[:20] in refused
            assert set(vars(model)) - before <= {"_accounts"}
            continue
        fitted = getattr(model, "estimator_", model)
        for found in (fitted.components_, model.score_samples(rows())):
            assert np.isfinite(found).all(), value


INTERVALS = """
I[0, inf), up to 2**53 | hold_off max_bad max_delay n_refinements oversampling padding
I[1, inf), up to 2**53 | absorb_after batch_size block_size feature_groups local_components n_rows
I[1, inf), up to 2**53 | local_iterations local_steps max_iter n_clients n_components n_iter
I[1, inf), up to 2**53 | n_landmarks n_local_components n_releases n_rounds n_updates projection_dim
I[1, inf), up to 2**53 | sketch_size
I[1, 1000000] | drift_window
I[2, inf), up to 2**53 | fan_in
I[22, 60] | bits
R(-inf, inf), from -1e100, up to 1e100 | coef0 gamma
R(0.0, 0.5], from 1e-100 | contamination
R(0.0, 1.0), from 1e-100 | delta drift_level mean_share n_components
R(0.0, 1.0], from 1e-100 | forgetting_factor local_threshold
R(0.0, 8.174961907854212e+295], from 1e-100 | scale
R(0.0, inf), from 1e-100, up to 1e100 | learning_rate max_power min_rows regularization step_size
R(0.0, inf), from 1e-100, up to 1e100 | threshold_scale tol
R[0.0, 1.0) | dropout
R[0.0, 1.0] | forgetting_factor lower upper
R[0.0, 1e+200] | threshold
R[0.0, inf), up to 1e100 | degree noise_std pilot_std support_threshold threshold tol xi
R[0.01, inf), up to 1e100 | half_life
R[1e-06, inf], up to 1e100 or infinity | epsilon
R[1e-60, 1e+60] | row_norm
""".strip().splitlines()


def test_declared_intervals_are_these_and_take_no_truth_nor_what_arithmetic_does_not():
    """Of integers and reals; of every public class."""
    expected = {
        (name, row.split(" | ")[0]) for row in INTERVALS for name in row.split(" | ")[1].split()
    }
    found = set()
    for owner in fedpca_sklearn.__all__:
        declared = getattr(NAMES[owner], "_parameter_constraints", {}).items()
        for name, constraints in declared:
            for interval in constraints if isinstance(constraints, list) else ():
                if not hasattr(interval, "closed"):
                    continue
                text = interval.type.__name__[0] + str(interval).partition(" range ")[2]
                found.add((name, text))
                for value in (True, False, np.True_):
                    assert not interval.is_satisfied_by(value), (owner, name)
                assert 10**400 not in interval, (owner, name)
                assert -1e300 not in interval, (owner, name)
    assert found == expected


KINDS = [
    ("FederatedPCA()", "merge", ["MergeStrategy"]),
    ("FederatedPCA()", "mechanism", ["base.SecondMomentMechanism"]),
    ("FederatedPCA()", "missing", ["AvailablePairs", "ConditionalFill"]),
    ("DistributedPCA()", "missing", ["AvailablePairs"]),
    ("FederatedPowerPCA()", "channel", ["Channel"]),
    ("FederatedPowerPCA()", "mechanism", ["FedPowerNoise"]),
    ("FederatedScaler()", "mechanism", ["ScalerNoise"]),
    ("StreamingPCA()", "rank_rule", ["RankRule"]),
    ("VerticalFederatedPCA()", "method", ["VerticalMethod"]),
    ("VerticalFederatedKernelPCA()", "aggregation", ["VFedPCA"]),
    ("AnalyzeGauss(1.0, 0.1, 1.0)", "ledger", ["PrivacyLedger"]),
    ("AnalyzeGauss(1.0, 0.1, 1.0)", "noise", ["privacy.DiscreteGaussian"]),
]


@pytest.mark.parametrize(("code", "name", "kinds"), KINDS)
def test_errors_name_classes_as_users_import_them(code, name, kinds):
    for value in ("pairs", 5, ones(2)):
        model = made(code).set_params(**{name: value})
        words = rf"'{name}' .* Got {re.escape(repr(value))} instead"
        with pytest.raises(ValueError, match=words) as error:
            model.fit(rows()) if hasattr(model, "fit") else model.validate()
        assert re.findall(r"'fedpca_sklearn\.([\w.]+)'", str(error.value)) == kinds
    for path in kinds:
        importlib.import_module(".".join(["fedpca_sklearn", *path.split(".")[:-1]]))
        assert attrgetter(path)(fedpca_sklearn)


# ------------------------------------------------------------------------------ numbers

COUNTED = [
    name
    for name in fedpca_sklearn.__all__
    if "n_components" in getattr(NAMES[name], "_parameter_constraints", ())
]
NARROW = [
    *((f"{name}()", "n_components", 10) for name in COUNTED if not name.startswith("Vertical")),
    ("VerticalFederatedPCA(feature_groups=2)", "n_components", 13),
    ("StreamingPCA(5)", "block_size", 100),
    ("StreamingPCA(5)", "oversampling", 100),
    ("StreamingPowerMethod(5)", "block_size", 100),
    ("SubspaceTracker(5)", "batch_size", 100),
    ("OnlineDistributedPCA(5)", "projection_dim", 20),
    ("DistributedPCA(5)", "n_clients", 100),
]


@pytest.mark.parametrize(("code", "name", "value"), NARROW)
def test_an_integer_of_few_bits_is_a_number(code, name, value):
    """Products of numpy's narrow integers overflow, and a grid or a table may hold such."""
    X = np.random.default_rng(0).standard_normal((150, 300)) * np.linspace(3, 1, 300)
    X = X if name != "n_components" else X[:24]
    narrow, wide = (made(code).set_params(**{name: k}) for k in (np.int8(value), value))
    for model in (narrow, wide):
        model.set_params(**({"random_state": 0} if "random_state" in model.get_params() else {}))
        model.fit(X)
    assert type(narrow.get_params()[name]) is np.int8
    assert type(narrow.n_components_) is int
    np.testing.assert_array_equal(narrow.components_, wide.components_)


def test_summaries_are_merged_to_an_integer_of_few_bits():
    part = Subspace.from_rows(np.random.default_rng(0).standard_normal((30, 300)))
    assert merge_subspaces([part, part], np.int8(10)).n_components == 10
    assert FederatedPCA.from_subspaces([part, part], np.int8(10)).n_components_ == 10


SITES = [Subspace.from_rows(part) for part in np.array_split(rows(), 3)]
# Of a count: True, 2.0, "2" and -1 are none; of components True is none, as 0.5 is a share.
COUNTS = """
make_power_law(n_samples=value)
make_spiked(9, n_features=value, spikes=[3])
make_power_law(9, 5, return_components=value)
make_subspace_stream(n_components=value)
partition_clients([0, 1], n_clients=value)
iter_batches(rows(), batch_size=value)
evaluate_stream(StreamingPCA(2), rows(), n_checkpoints=value)
StreamingPCA(2).fit(rows()).refine(rows(), n_rounds=value)
projected_sparse_recovery(rows(), np.eye(6)[:2], max_iter=value)
StreamingPCA.from_subspace(SITES[0], n_samples_seen=value)
""".strip().splitlines()
TRUTHS = """
merge_subspaces(SITES, n_components=value)
jackknife_intervals(SITES, n_components=value)
Subspace.from_rows(rows(), n_components=value)
SITES[0].truncate(n_components=value)
StreamingPCA.from_subspace(SITES[0], n_components=value)
FederatedPCA.from_subspaces(SITES, n_components=value)
SubspaceMerge().merge(SITES, n_components=value)
NoiseAwareMerge().merge(SITES, n_components=value)
ProjectionAverage().merge(SITES, n_components=value)
RobustMerge().merge(SITES, n_components=value)
""".strip().splitlines()


@pytest.mark.parametrize("call", COUNTS + TRUTHS)
def test_what_is_counted_is_an_integer(call):
    (name,) = re.findall(r"(\w+)=value", call)
    for value in (True, 2.0, "2", -1)[: 4 if call in COUNTS else 1]:
        must = "must be an integer .*, got" if call in COUNTS else ".*"
        with pytest.raises(ValueError, match=f"{name} ?{must} ?{value!r}"):
            eval(call, {**NAMES, "SITES": SITES, "rows": rows, "value": value})
