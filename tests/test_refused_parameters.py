"""A wrong parameter is an error that names it, and changes nothing.

Each line of the table is a wrong parameter of the estimator above it and the words of the error.
Two values of each parameter are in the golden file (-7 and a text of no meaning); here are those
next to the allowed ones, those of objects in a parameter, and those that contradict the rows.
"""

import joblib
import numpy as np
import pytest
from golden_cases import NAMES
from numpy import eye, full, inf, nan, ones, zeros
from sklearn.base import clone
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import StandardScaler

VALUES = {**NAMES, "StandardScaler": StandardScaler, "rbf_kernel": rbf_kernel}
# Read when a stream starts; where they change later is in tests/streaming and tests/tracking.
AT_THE_START = {"init", "estimator", "rank_rule"}
VALUES |= {"eye": eye, "full": full, "inf": inf, "nan": nan, "ones": ones, "zeros": zeros}

TABLE = """
StreamingPCA(2)
    n_components=0 | 'n_components' | Got 0 | [1, inf)
    n_components=1.5 | 'n_components' | Got 1.5 | (0.0, 1.0)
    n_components="all" | 'n_components' | Got 'all' | int | 'mle' | 'parallel'
    n_components="mle", rank_rule=EnergyBounds() | n_components='mle' | integer
    n_components=10 | n_components=10 | at most | n_features=9
    oversampling=-1 | 'oversampling' | Got -1 | [0, inf)
    block_size=0 | 'block_size' | Got 0 | [1, inf)
    forgetting_factor=0 | 'forgetting_factor' | Got 0 | (0.0, 1.0]
    forgetting_factor=1.1 | 'forgetting_factor' | Got 1.1 | (0.0, 1.0]
    rank_rule="sapca" | 'rank_rule' | Got 'sapca' | RankRule
    center="no" | 'center' | Got 'no' | bool
    whiten=2 | 'whiten' | Got 2 | bool
    svd_solver="svd" | 'svd_solver' | Got 'svd' | 'gram'
    n_components=0.5, rank_rule=EnergyBounds() | n_components=0.5 | integer
    rank_rule=EnergyBounds(0.9, 0.8) | lower=0.9 | upper=0.8 | lower < upper
    rank_rule=ContributionBounds(-1) | 'lower' | Got -1 | [0.0, 1.0]
    rank_rule=ContributionBounds(lower="low") | lower | 'low'
    rank_rule=ContributionBounds(growth="e_r") | growth | 'e_r' | 'canonical'
    forgetting="weeks" | forgetting | 'weeks' | 'blocks'
    rank_rule=ContributionBounds(hold_off=-1) | hold_off | -1
    rank_rule=ContributionBounds(hold_off="no") | hold_off | 'no'
    rank_rule=ContributionBounds | rank_rule | ContributionBounds
FederatedPCA(2, n_clients=3)
    n_components=10 | n_components=10 | n_features=9
    n_components=0 | n_components | Got 0
    n_components=1.5 | n_components | Got 1.5
    n_clients=0 | n_clients | Got 0
    estimator=StandardScaler() | StandardScaler
    estimator="pca" | 'estimator' parameter | 'pca'
    estimator=StreamingPCA(-1) | Client 0 | n_components | -1
    merge="flat" | 'merge' | 'flat'
    merge=SubspaceMerge | merge | SubspaceMerge
    merge=SubspaceMerge("median") | method | 'median' | 'qr'
    merge=SubspaceMerge(fan_in=1) | 'fan_in' | Got 1 | [2, inf)
    merge=SubspaceMerge(fan_in=2.5) | fan_in | 2.5
    merge=SubspaceMerge(fan_in="two") | fan_in | 'two'
    merge=SubspaceMerge(truncate="yes") | truncate | 'yes'
    merge=SubspaceMerge(forgetting_factor=0) | forgetting_factor | Got 0
    merge=ProjectionAverage(0) | 'projection_dim' parameter of ProjectionAverage | Got 0
    merge=ProjectionAverage(-3) | 'projection_dim' | Got -3
    merge=ProjectionAverage(1.5) | 'projection_dim' | Got 1.5
    merge=ProjectionAverage("all") | 'projection_dim' | Got 'all'
    merge=ProjectionAverage(weighting="variance") | 'weighting' parameter of | Got 'variance'
    merge=ProjectionAverage(weighting=None) | 'weighting' | Got None
TruncatedDistributedPCA(1)
    local_threshold=0 | local_threshold | Got 0
    local_threshold=0.0 | local_threshold | Got 0.0
    local_threshold=-0.5 | local_threshold | Got -0.5
    local_threshold=1.5 | local_threshold | Got 1.5
    local_threshold=2 | local_threshold | Got 2
    local_threshold=nan | local_threshold | nan
    local_threshold="most" | local_threshold | Got 'most'
    local_threshold=None | local_threshold | Got None
OnlineDistributedPCA(2)
    n_components=0 | 'n_components' parameter of OnlineDistributedPCA | Got 0
    n_components=0.9 | 'n_components' | Got 0.9
    n_components=10 | n_components=10 | n_features=9
    projection_dim=0 | 'projection_dim' parameter of OnlineDistributedPCA | Got 0
    projection_dim=2.0 | 'projection_dim' | Got 2.0
    projection_dim=10 | projection_dim=10 must be at most n_features=9
    weighting="median" | 'weighting' | Got 'median'
    n_clients=0 | 'n_clients' | Got 0
    n_jobs="all" | 'n_jobs' | Got 'all'
    average="time" | 'average' parameter of OnlineDistributedPCA | Got 'time'
    center="no" | 'center' | Got 'no'
    variances="exact" | 'variances' | Got 'exact'
FederatedPowerPCA(2, n_clients=2, random_state=0)
    init=ones((3, 9)) | init must have shape (2, 9), got (3, 9)
    init=ones((2, 8)) | init must have shape (2, 9), got (2, 8)
    init=full((2, 9), nan) | init
    local_steps=0 | local_steps
    local_steps=2, acceleration="krylov" | acceleration='krylov' needs local_steps=1, got 2
    channel=PerfectChannel(1.0) | dropout
    channel=PerfectChannel(-0.1) | dropout
    channel=PerfectChannel([0, 1]) | dropout
    channel=PerfectChannel("often") | dropout
    channel=PerfectChannel(zeros((0, 2))) | dropout
    channel=PerfectChannel(zeros((4, 3))) | dropout must have a column for each of 2 clients | 4, 3
    channel=GaussianChannel(-1.0) | noise_std
    channel=GaussianChannel("loud") | noise_std
    channel=FadingChannel(-1.0) | noise_std
    channel=FadingChannel(pilot_std=-1) | pilot_std
    channel=FadingChannel(max_power=0) | max_power
    channel=FadingChannel(max_delay=-1) | max_delay
    channel=FadingChannel(max_delay=0.5) | max_delay
    channel=FadingChannel(padding=-1) | padding
    channel="gaussian" | channel
    channel=PerfectChannel | channel
    channel=zeros((1, 3)) | channel
FederatedSubspaceTracker(3, forgetting_factor=0.0, fill="subspace", center=False, random_state=0)
    n_rounds=0 | n_rounds
    init_rounds=0 | init_rounds
    robust="very" | robust
    init="altprojection" | init
    init_size=0 | init_size
    forgetting_factor=1.1 | forgetting_factor
    detect_changes="yes" | detect_changes
    n_updates=0 | n_updates
    change_threshold=-1.0 | change_threshold
    center="mean" | center
    init=ones((3, 8)) | init must have shape (k, 9)
    n_clients=0 | n_clients
    batch_size=0 | batch_size
    n_components=10 | n_components
    channel=PerfectChannel(1.0) | dropout
    channel=GaussianChannel("loud") | noise_std
    channel=FadingChannel(max_delay=0.5) | max_delay
    channel=PerfectChannel | channel
SubspaceTracker(3, forgetting_factor=0.0, fill="subspace", center=False)
    n_components=0 | n_components
    n_components=2.5 | n_components
    n_components=10 | n_components
    batch_size=0 | batch_size
    batch_size="all" | batch_size
    batch_size=10.0 | batch_size
    forgetting_factor=-0.1 | forgetting_factor
    forgetting_factor=1.1 | forgetting_factor
    forgetting_factor=nan | forgetting_factor
    n_iter=0 | n_iter
    fill="mean" | fill
    init="random" | init
    init=eye(3, 8) | init
    init=ones((10, 9)) | init
    init=ones(9) | init
    init=full((3, 9), nan) | init
    detect_changes="yes" | detect_changes
    n_updates=0 | n_updates
    change_threshold=-1.0 | change_threshold
    change_threshold="none" | change_threshold
    center=None | center
    store_subspaces=3.5 | store_subspaces
RobustSubspaceTracker(3, forgetting_factor=0.0, fill="subspace", center=False)
    init="random" | init
    init=eye(3, 8) | init
    init=ones(9) | init
    init=full((3, 9), nan) | init
    init_size=0 | init_size
    init_size=2.5 | init_size
    init_size="all" | init_size
    xi=-1.0 | xi
    xi=nan | xi
    xi="none" | xi
    support_threshold=-1.0 | support_threshold
    support_threshold=nan | support_threshold
    support_threshold="none" | support_threshold
AlternatingProjections(3)
    n_components=0 | n_components
    n_components=10 | n_components
    threshold_scale=0.0 | threshold_scale
    threshold_scale=-1.0 | threshold_scale
    threshold_scale=nan | threshold_scale
    threshold_scale="small" | threshold_scale
    tol=-1.0 | tol
    tol=nan | tol
    max_iter=0 | max_iter
    max_iter=1.5 | max_iter
    center="mean" | center
FrequentDirections(2)
    n_components=0 | n_components
    n_components=2.5 | n_components
    center="yes" | center
    sketch_size=0 | sketch_size
    robust=0.5 | robust
StreamingPowerMethod(2, random_state=0)
    n_components=0 | n_components
    n_components=2.5 | n_components
    center="yes" | center
    block_size=0 | block_size
    block_size="all" | block_size
OjaPCA(2, random_state=0)
    n_components=0 | n_components
    n_components=2.5 | n_components
    center="yes" | center
    learning_rate=0 | learning_rate
    learning_rate="optimal" | learning_rate
    batch_size=0 | batch_size
    random_state="x" | random_state
GROUSE(2, random_state=0)
    n_components=0 | n_components
    n_components=2.5 | n_components
    center="yes" | center
    step_size=0.0 | step_size
    step_size="fast" | step_size
PAST(2, random_state=0)
    n_components=0 | n_components
    n_components=2.5 | n_components
    center="yes" | center
    forgetting_factor=0 | forgetting_factor
    forgetting_factor=1.1 | forgetting_factor
    deflation=None | deflation
PETRELS(2, random_state=0)
    n_components=0 | n_components
    n_components=2.5 | n_components
    center="yes" | center
    forgetting_factor=-0.5 | forgetting_factor
    regularization=0 | regularization
SPIRIT(2)
    n_components=None | n_components
    n_components=0 | n_components
    n_components=2.5 | n_components
    center="yes" | center
    lower=-0.1 | lower
    upper=1.1 | upper
    lower=0.9, upper=0.8 | lower < upper
    hold_off=-1 | hold_off
    forgetting_factor=2 | forgetting_factor
VerticalFederatedPCA(2, feature_groups=3, random_state=0)
    n_components=10 | n_components
    n_components=0 | n_components
    feature_groups=[[0]] | feature_groups
    method="svd" | method
    method=VFedPCA | method
    method=VFedPCA(local_iterations=0) | local_iterations
    method=VFedPCA(n_rounds=0) | n_rounds
    method=VFedPCA(weighting="none") | weighting
    method=VFedPCA(weight_scaling="yes") | weight_scaling
    method=LeftVectorMerge(local_components=0) | local_components
    method=PowerRounds(n_rounds=0) | n_rounds
    method=PowerRounds(tol=-1.0) | tol
    method=PowerRounds(channel="gaussian") | channel
    topology=zeros((2, 2)) | topology
    topology=Ring(tol=-1.0) | tol
    topology=Ring | topology
    random_state="x" | random_state
VerticalFederatedPCA(2, feature_groups=3, method="power", random_state=0)
    n_components=10 | n_components
    feature_groups=[[0]] | feature_groups
    topology=Ring(tol=-1.0) | tol
    random_state="x" | random_state
VerticalFederatedPCA(2, feature_groups=3, method="merge")
    n_components=10 | n_components
    feature_groups=[[0]] | feature_groups
VerticalFederatedKernelPCA(2, feature_groups=2, random_state=0)
    n_components=0 | n_components
    n_components=1.5 | n_components
    kernel="cosine" | kernel
    gamma=-1.0 | gamma
    gamma="scale" | gamma
    degree=-1 | degree
    coef0="a" | coef0
    aggregation="mean" | aggregation
    projection="rows" | projection
    aggregation=VFedPCA | aggregation
    aggregation=VFedPCA(local_iterations=0) | local_iterations
    center=2 | center
    gamma=inf | gamma
    n_landmarks=0 | n_landmarks
    random_state="a" | random_state
    feature_groups=0 | feature_groups
    feature_groups=10 | feature_groups=10 must be between 1 and n_features=9
    feature_groups=[[0, 1], range(1, 9)] | feature_groups | column 1 is held by 2
    feature_groups=[range(8)] | feature_groups | column 8 is held by 0
    feature_groups=[[], range(9)] | feature_groups must not hold an empty group
    feature_groups=[[-1], range(8)] | feature_groups | got -1
    feature_groups=[["ash"], range(1, 9)] | feature_groups | got 'ash'
    feature_groups=[] | feature_groups
    kernel=rbf_kernel | kernel= | needs aggregation=VFedPCA
    aggregation=VFedPCA(), n_landmarks=5 | n_landmarks=5 needs aggregation='exact'
    kernel="poly", degree=0.5, gamma=9.0 | kernel='poly' is NaN or infinite
    kernel=lambda X, Y: X, aggregation=VFedPCA() | Client 0: kernel must return | got (60, 5)
    kernel=lambda *X: full((60, 60), nan), aggregation=VFedPCA() | Client 0: kernel= | is NaN
"""


def rows_of_the_table():
    """Estimators as code, each with a wrong parameter and words."""
    found, code = [], ""
    for line in TABLE.strip().splitlines():
        if line.startswith(" "):
            found.append((code, *line.strip().split(" | ")))
        else:
            code = line
    return found


def value_of(code):
    return eval(code, dict(VALUES))


def fitted(model):
    """What a model holds beside its parameters."""
    return joblib.hash({n: v for n, v in vars(model).items() if n not in model.get_params()})


@pytest.mark.filterwarnings("ignore:No entry of a batch is an outlier:UserWarning")
@pytest.mark.parametrize("row", rows_of_the_table(), ids=" | ".join)
def test_a_wrong_parameter_is_named_and_changes_nothing(row):
    code, wrong, *words = row
    X = np.random.default_rng(0).standard_normal((60, 9)) * np.linspace(3, 1, 9)
    new, wrong = value_of(code), value_of(f"dict({wrong})")
    calls = [(new, "fit"), (new, "partial_fit"), (clone(new).fit(X[:, :8]), "fit")]
    if not AT_THE_START & wrong.keys():
        calls += [(clone(new).fit(X), "partial_fit")]
    for model, method in calls:
        model.set_params(**wrong)
        if not hasattr(model, method):
            continue
        before, names = fitted(model), list(vars(model))
        with pytest.raises((ValueError, TypeError)) as error:
            getattr(model, method)(X)
        for word in words:
            assert word in str(error.value)
        assert (fitted(model), list(vars(model))) == (before, names)
