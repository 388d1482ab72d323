"""Calls that are refused: the error names what is wrong, and nothing is changed.

Each line of `CALLS` is a call, or several, and the words of the error; of the other tables a model
or a class, a call of it, and the words. It is a ValueError unless a word is the name of another
kind. Wrong values of a parameter are in
test_refused_parameters.py, fields of a summary that do not fit together in summary/test_subspace.py
and files of strangers in summary/test_codec.py.
"""

from io import StringIO

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from golden_cases import NAMES
from helpers import assert_refused, kind_of_error, naming
from holders import FRAME
from numpy import eye, full, inf, nan, ones
from pair_helpers import rows_with_holes
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import (
    PAST,
    FederatedPCA,
    FederatedScaler,
    PairMoments,
    StreamingPCA,
    Subspace,
    make_spiked,
)
from fedpca_sklearn.base import Tracker
from fedpca_sklearn.privacy import ScalerNoise, private_scores

pytestmark = [
    pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning"),
    pytest.mark.filterwarnings("ignore:No entry of a batch is an outlier:UserWarning"),
    # numpy 2.5 warns where a duration without a unit, which is refused, is made
    pytest.mark.filterwarnings("ignore:The 'generic' unit:DeprecationWarning"),
]
SPIKED = make_spiked(600, 12, spikes=[9.0, 4.0], random_state=0)[0]
FLAT = [Subspace.from_rows(part * (np.arange(12) < 2)) for part in np.split(SPIKED, 6)]


def summaries(at=None, **fields):
    """Of two sites; the fields of one or of both are others."""
    one = {"components": eye(3)[:1], "singular_values": [1.0], "mean": np.zeros(3)}
    one |= {"n_samples": 5.0, "scatter": 1.0}
    return [
        Subspace(**(one | (fields if at in (None, i) else {})))._replace(site=name)
        for i, name in enumerate(("east", "south"))
    ]


ONE_SPARSE = sp.coo_array(np.ones(12))  # up to scipy 1.12 a matrix of one row
VALUES = {
    **{**NAMES, "StandardScaler": StandardScaler, "private_scores": private_scores},
    **{"eye": eye, "full": full, "inf": inf, "nan": nan, "ones": ones, "rows": SPIKED},
    **{"frame": FRAME, "summaries": summaries, "flat": FLAT, "empty": Subspace.empty},
    "parts": [Subspace.from_rows(part) for part in np.split(SPIKED, 6)],
    "pca": FederatedPCA(3).fit(SPIKED),
    "gauss": NAMES["AnalyzeGauss"](20.0, 1e-5, 10.0),
    "hidden": NAMES["AnalyzeGauss"](20.0, 1e-5, 10.0, trust="sum"),
    "noisy": FederatedPCA(3, mechanism=NAMES["AnalyzeGauss"](20.0, 1e-5, 10.0)).fit(SPIKED),
    "kernel": NAMES["VerticalFederatedKernelPCA"](1, feature_groups=1, random_state=0),
    "plane": lambda two: NAMES["ScoresDisplay"].from_estimator(
        VALUES["pca"], SPIKED, components=two
    ),
    "scaled": lambda bounds: FederatedScaler(mechanism=ScalerNoise(1.0, 1e-5, bounds=bounds)).fit(
        SPIKED
    ),
    "lost": np.where(np.arange(12) == 4, nan, SPIKED),
    "one_sparse": ONE_SPARSE if ONE_SPARSE.ndim == 1 else np.ones(12),
    **{"NOON": np.array(["2020-01-01T12:00"], dtype="datetime64[s]")},
    "texts": lambda: iter([{"text": ["a", "b"], "n": [1, 2]}]),
}
# Call | words of the error
CALLS = """
jackknife_intervals(parts, 0) | n_components must be an integer from 1 to 12 | got 0
jackknife_intervals(parts, 13) | n_components must be | from 1 to 12 | got 13
jackknife_intervals(parts, 0.5) | n_components must be an integer | got 0.5
jackknife_intervals(flat, 3) | n_components=3 must be at most the number of directions
jackknife_intervals(parts, 1, confidence=95) | confidence must be in (0, 1), got 95
jackknife_intervals([*parts[:2], empty(12)], 1) | at least three summaries | got 2
jackknife_intervals([parts[:3], parts[3:4]], 1) | two of each site | got 3 and 1
jackknife_intervals([], 1) | at least one Subspace
jackknife_intervals([parts[:3], [1, 2]], 1) | TypeError | all sequences of Subspace, got list as sub
jackknife_intervals([parts[:3], []], 1) | subspaces[1] must hold at least two blocks
load_balanced_schedule(0, 2); load_balanced_schedule(2, 0) | integer of at least 1, got 0
load_balanced_schedule(None, 2) | n_clients | None
load_balanced_schedule(2, [3]) | n_steps | [3]
load_balanced_schedule(2, 2, layout="interval") | layout | 'interval'
subspace_distance(eye(2, 4), eye(2, 5)) | columns, got 4 and 5
subspace_distance(ones((5, 3)), eye(2, 3)) | A must have at most | (5, 3)
subspace_distance(eye(2, 4), [[1, nan, 0, 0]]) | B contains NaN
subspace_distance(np.zeros((2, 4)), eye(2, 4)) | A must span at least one direction
subspace_distance(eye(2, 4), eye(3, 4), metric="cos") | metric must be one of | 'cos'
subspace_distance(eye(2, 4), eye(3, 4), metric="euclidean") | equal dimension, got dimensions 2
ERROR(ones((5, 3)), eye(2, 4)) | components | 3 | 4
ERROR(ones((5, 3)), ones((4, 3))) | components must have at most | (4, 3)
ERROR(ones((5, 3)), eye(2, 3), ones(2)); ERROR(ones((5, 3)), eye(2, 3), nan) | mean
ERROR(full((5, 3), nan), eye(2, 3)) | X contains NaN
ERROR(ones((5, 3)), [[inf, 0, 0]]) | components contains inf
ERROR(rows, pca); subspace_distance(eye(2, 12), pca) | TypeError | FederatedPCA: give components_
evaluate_stream(StreamingPCA(2), eye(9), n_checkpoints=2.5) | n_checkpoints must be an integer of
evaluate_stream({}, eye(9)); evaluate_stream(PCA(2), eye(9)) | TypeError |\
 estimator must have partial_fit, got
evaluate_stream(GROUSE(3), full((9, 4), nan)) | X contains NaN | give X_full
evaluate_stream(GROUSE(3), eye(9), eye(9)[:2]) | X_full must have the shape of X, (9, 9)
on_device(rows, "cuda") | TypeError |\
 xp must be a library of arrays such as torch or cupy, got 'cuda'
on_device(rows, np, batch_size=2.5) | batch_size must be an integer of at least 1, got 2.5
iter_batches(rows); iter_batches(frame); iter_batches(3); iter_batches("rows.parquet");\
 iter_batches({1, 2}); iter_batches({"a": rows}); iter_batches(rows.tolist()) | TypeError |\
 hold batches of rows
next(iter_batches([rows], batch_size=0)) | batch_size must be an integer of at least 1, got 0
next(iter_batches([rows], columns=-1)) | TypeError | columns must be a name or | got -1
next(iter_batches([rows], columns=2.5)) | TypeError | columns must be a name or | got 2.5
next(iter_batches([rows], columns=["heat"])) | TypeError |\
 columns can be chosen by name only, got ndarray
next(iter_batches(texts())) | TypeError | columns must name | 'text': (2,)
next(iter_batches(texts(), columns=["rain"])) | got 'rain'; one has 'text', 'n'
SubspaceMonitor(StreamingPCA(3)).predict(rows); SubspaceMonitor.from_estimator(StreamingPCA(3));\
 ScreeDisplay.from_estimator(FederatedPCA(2)); CommunicationDisplay.from_estimator(FederatedPCA(2))\
 | not fitted
SubspaceMonitor(StreamingPCA(3), contamination=0.0).partial_fit(rows) | 'contamination'
SubspaceMonitor(PCA(3)).partial_fit | AttributeError | partial_fit
StreamingPCA(2).partial_fit(np.array(3.0)) | 2D array
StreamingPCA(2).fit_transform(iter([rows, rows])) | TypeError |\
 got a list_iterator of batches; fit them
SubspaceTracker(2).fit_transform([rows, rows]) | TypeError | one array to be transformed, got a list
StreamingPCA(0.9).fit(eye(4), sample_weight=[1e308, 1e308, 1, 1]) | must have a finite sum
DistributedPCA(0.9).fit(eye(4), sample_weight=[1e308, 1e308, 1, 1]) | must have a finite sum
StreamingPCA(2).partial_fit(one_sparse) | 2D
StreamingPCA(2).fit(rows).transform(np.array(3.0)); pca.score(np.array(3.0)) | 2D array
StreamingPCA(2, half_life="1h").fit(rows[:0], times=NOON[:0]) | 0 sample(s)
StreamingPCA(2, half_life="1h").fit(None, times=NOON) | TypeError | got <class 'NoneType'>
StreamingPCA(12, partial_out=[0]).partial_fit(rows[:2]) | n_components=12 must be at most 11
GROUSE(2).fit(rows).score(rows, sample_weight=np.zeros(600)) | sample_weight must have a positive
SubspaceMonitor(StreamingPCA(3)).fit(lost); SubspaceMonitor(StreamingPCA(3)).partial_fit(lost) |\
 rows without NaN for StreamingPCA | got none
SubspaceMonitor(StandardScaler()).fit(rows) | TypeError | StandardScaler has no components_
SubspaceMonitor(kernel).fit(rows) | TypeError | has no components_
SubspaceMonitor.from_subspace(empty(9), 3) | at least one row
SubspaceMonitor.from_estimator(StreamingPCA(2, partial_out=[0]).fit(rows)) | partial_out=None
CommunicationDisplay.from_estimator(StreamingPCA(2).fit(rows)) | TypeError |\
 communication_, got StreamingPCA
ScoresDisplay.from_estimator(PCA(2), rows); BiplotDisplay.from_estimator(PCA(2), rows);\
 LoadingsDisplay.from_estimator(PCA(2)) | This PCA instance is not fitted yet
jackknife_intervals([*noisy.summaries_.values()] * 2, 2) | must not have the noise of a privacy
FederatedPCA(2, mechanism=hidden).fit(rows).summaries_ | AttributeError |\
 only the sum of all clients is known
plane((0, 3)); plane((0,)); plane((-1, 0)); plane((0, 1.7)) | components must be two of 0 to 2
ScoresDisplay.from_estimator(pca, rows, labels=["a"]) | labels must have shape (600,), got (1,).
RefinementDisplay.from_estimator(pca, rows, n_refinements=-1) | n_refinements must be an integer of
LoadingsDisplay.from_estimator(pca, kind="pie") | kind must be 'circle' or 'bars', got 'pie'
private_scores(pca, rows, gauss); private_scores(PCA(2).fit(rows), rows, gauss) | with a mechanism
VerticalFederatedPCA(1, feature_groups=[["x"]]).fit(frame) | feature_groups must | got 'x'.
FederatedPCA(2, mechanism=hidden).fit(rows).remove(0) | sum of all clients only; none can be
private_scores(noisy, rows, gauss, components=(0, 3)) | components must be two of 0 to 2, got (0, 3)
merge_subspaces(summaries(0, mean=[0, -1e155, 0])) | =5, scatter=1 and a mean of up to 1e+155
merge_subspaces(summaries(n_samples=1e300), weights=[1, 1e10]) | subspaces[1] (site 'south'): wei
merge_subspaces([empty(3), empty(4)._replace(site="south")]) | [1] (site 'south') has 4 feat
merge_subspaces([empty(3), empty(3, centered=False)._replace(site="a")]) | all not centred | 'a'
FederatedScaler.from_subspaces(flat, mechanism=ScalerNoise(inf, 1e-5)) | mechanism must be None for
scaled((1.0, 1.0)); scaled((0.0, 1.0)); scaled(3.0); scaled((1.0, inf)) | bounds
"""
EACH = [
    (call.replace("ERROR", function), words)
    for calls, *words in (line.split(" | ") for line in CALLS.strip().splitlines())
    for function in ("excess_error", "reconstruction_error")[: 1 + ("ERROR" in calls)]
    for call in calls.split("; ")
]


def test_what_is_wrong_is_named():
    for call, words in EACH:
        with naming(call), pytest.raises(kind_of_error(words)) as error:
            eval(call, dict(VALUES))
        assert all(word in error.exconly() for word in words), f"{call}: {error.exconly()}"


# ------------------------------------------------------------------------------ clients

X, CLASS = load_wine(return_X_y=True)
WIDE = np.random.default_rng(0).standard_normal((60, 300)) + 1.0
SPOTS = rows_with_holes(11, 40, 3)
OF_CLIENTS = {
    **NAMES,
    "sp": sp,
    "X": X,
    "CLASS": CLASS,
    "HOLES": np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X),
    "WIDE": WIDE,
    "TABLE": pd.DataFrame(X).add_prefix("x").assign(site=[None, *CLASS[1:].astype(str)]),
    "FAR": X * np.where(np.arange(13) == 4, 1e160, 1.0),
    "SPOTS": SPOTS,
    "FULL": np.nan_to_num(SPOTS),
    "HALF": np.where(np.arange(40)[:, None] < 20, SPOTS * [1, 1, np.nan], SPOTS),
    "PAIRS": PairMoments.from_rows(SPOTS),
    "PairMoments": PairMoments,
    "EMPTY": Subspace.empty(13),
    "ORIGIN": Subspace.from_rows(X, center=False),
    "SITES": [StreamingPCA().fit(X[c == CLASS]).subspace_ for c in range(3)],
    "GAUSS": NAMES["AnalyzeGauss"](1.0, 1e-5, 9.0),
    "HIDDEN": NAMES["AnalyzeGauss"](1.0, 1e-3, 9.0, trust="sum"),
    "WITHIN": NAMES["SubspaceMerge"](center="site"),
}
COUNTED = "n_components must be a number or a share with missing="
ALIKE = "compares sites, which missing=ConditionalFill() makes alike"
ADJUSTED = "estimator must have scale=False and partial_out=None"
CLIENTS = f"""
FederatedPCA(2, scale=True, missing=ConditionalFill()) | fit(X, clients=CLASS) | scale must be False with missing=ConditionalFill(), got True. FederatedScaler before it scales
FederatedPCA(2, partial_out=np.array([0, 3]), missing=AvailablePairs()) | fit(X, clients=CLASS) | partial_out must be None with missing=AvailablePairs(), got array([0, 3])
FederatedPCA("mle", missing=AvailablePairs()) | fit(X, clients=CLASS) | {COUNTED}AvailablePairs(), got 'mle'
FederatedPCA("parallel", missing=ConditionalFill()) | fit(X, clients=CLASS) | {COUNTED}ConditionalFill(), got 'parallel'
FederatedPCA(2, missing=ConditionalFill(), merge=RobustMerge()) | fit(X, clients=CLASS) | merge=RobustMerge() {ALIKE}
FederatedPCA(2, missing=ConditionalFill(), merge=WITHIN) | fit(X, clients=CLASS) | {ALIKE}
FederatedPCA(2, estimator=StreamingPCA(4, scale=True)) | fit(X, clients=CLASS) | {ADJUSTED}
PersonalizedPCA(2, 1, estimator=StreamingPCA(4, partial_out=0)) | fit(X, clients=CLASS) | {ADJUSTED}
FederatedPCA(2, estimator=StreamingPCA(4, half_life="1h")) | fit(X, clients=CLASS) | half_life='1h' needs times, one for each row, got None. Estimators that fit this one do not hand them on: give a number of rows there.
SubspaceMonitor(StreamingPCA(4, half_life="1h")) | fit(X) | give a number of rows there.
SubspaceMonitor(FederatedPCA(2, merge=WITHIN)) | fit(X) | estimator must have a merge with center='all'
SubspaceMonitor(FederatedPCA(2)) | fit(X, clients="site") | clients must have shape (178,), got 'site'.
OnlineDistributedPCA(2).fit(X).set_params(average="steps") | partial_fit(X) | average='steps' differs from 'shards' | call fit
OnlineDistributedPCA(2).fit(X).set_params(weighting="rows") | partial_fit(X) | weighting='rows' differs from 'equal' | call fit
FederatedPCA(2, estimator=PCA(2)) | fit(X, sample_weight=np.ones(178)) | TypeError | sample_weight | PCA
FederatedPCA(2) | fit(SPOTS) | missing=AvailablePairs
DistributedPCA(2) | fit(SPOTS) | missing=AvailablePairs
FederatedPCA(2, missing=AvailablePairs()) | fit(np.ones((5, 300))) | d=300 | at most 256 | DistributedPCA
FederatedPCA(2, missing=AvailablePairs()) | fit(np.where(SPOTS > 1, np.inf, SPOTS)) | Client 0: | infinity
FederatedPCA(2, estimator=SubspaceTracker(2)) | fit(sp.csr_array(HALF), clients=np.arange(40) // 20) | Client 0: column 2 has no entries
FederatedPCA(1, estimator=GROUSE(2)) | fit(sp.csr_array((40, 1)), clients=np.arange(40) // 20) | Client 0: n_components=2 must be at most n_features=1
FederatedScaler(with_std=False).fit(X).set_params(with_std=True) | partial_fit(X) | with_std was False in the calls before, got True; call fit.
FederatedScaler(with_mean=False, with_std=False).fit(X).set_params(with_mean=True) | partial_fit(X) | with_mean was False in the calls before
FederatedPCA(2).fit(FULL).set_params(missing=AvailablePairs()) | partial_fit(FULL) | missing must not change
DistributedPCA(2, missing=AvailablePairs()).fit(FULL).set_params(missing=None) | partial_fit(FULL) | missing must not change
FederatedPCA | from_pairs([PAIRS._replace(site="a")] * 2, 2) | of site 'a'
FederatedPCA | from_pairs([PairMoments.from_rows(WIDE)], 2) | d=300 | at most 256 | DistributedPCA
FederatedPCA | from_pairs([PAIRS, PairMoments.from_rows(HOLES)], 2) | pairs[1] has 13 features, pairs[0] has 3
FederatedPCA | from_pairs([PairMoments.from_rows(1.2e154 * FULL / np.linalg.norm(FULL - FULL.mean(axis=0), axis=0))] * 2, 2) | sum of all clients holds values that are too large
FederatedPCA | from_pairs(SITES, 2) | TypeError | got ['Subspace'
FederatedPCA | from_pairs(PAIRS, 2) | TypeError | pairs must be a sequence | got one PairMoments
FederatedPCA | from_pairs([PAIRS], 2, missing=ConditionalFill()) | TypeError | missing must be AvailablePairs
PersonalizedPCA | from_pairs([PAIRS], 2) | TypeError | PersonalizedPCA takes no moments of pairs
FederatedPCA(missing=ConditionalFill()) | fit(SPOTS) | n_components must be | got None
FederatedPCA(11, missing=ConditionalFill()) | fit(HOLES[:, :12]) | n_components=11 | too few entries
FederatedPCA(2, missing=ConditionalFill(n_rounds=0)) | fit(SPOTS) | n_rounds
FederatedPCA(2, missing=ConditionalFill(), tol=0.1) | fit(SPOTS) | tol must be None
FederatedPCA(2, missing=ConditionalFill()) | fit(np.where(SPOTS > 1, np.inf, SPOTS)) | Client 0 | infinity
FederatedPCA(2, missing=ConditionalFill()).fit(SPOTS) | remove(0) | remove
FederatedPCA(2, missing=ConditionalFill()).fit(SPOTS) | refine(SPOTS) | cannot be refined
StreamingPCA(3, scale=True, center=False) | fit(X) | center must be True | got False.
StreamingPCA(3, partial_out=[0], center=False) | fit(X) | center must be True | got False.
StreamingPCA(3, scale=True) | fit(X * 1e200) | too large
evaluate_stream | __call__(StreamingPCA(2, partial_out=[0]), X) | scale=False and partial_out
FederatedPCA(3, scale=True, mechanism=GAUSS) | fit(X) | mechanism must be None
FederatedPCA(2, scale=True, estimator=PCA(2)) | fit(X) | column_scatter=None
FederatedPCA | from_subspaces([ORIGIN], scale=True) | center=True
FederatedPCA(2, partial_out=[0], merge=ProjectionAverage()) | fit(X, clients=CLASS) | merge must be None or SubspaceMerge with partial_out
FederatedPCA(3, merge=WITHIN, n_refinements=1) | fit(X) | cannot be refined
FederatedPCA(3, merge=WITHIN, estimator=StreamingPCA(3, center=False)) | fit(X) | center="site" needs summaries about their means
FederatedPCA(3, merge=WITHIN, mechanism=HIDDEN) | fit(X) | trust='sum' hides the sum
FederatedPCA(2, merge=RobustMerge(), mechanism=HIDDEN) | fit(X) | trust='sum' hides the summaries | Merge() compares
FederatedPCA(2, merge=RobustMerge(), n_clients=5, n_refinements=1) | fit(WIDE) | merge= | cannot be refined
FederatedPCA(0.9, merge=RobustMerge()) | fit(X) | must be an integer with RobustMerge
RobustMerge(max_bad=2) | merge(SITES, 2) | max_bad=2 must be fewer than half of the sites, of wh
FederatedPCA(0.9, merge=ProjectionAverage(3), mechanism=GAUSS) | partial_fit(X) | n_components=0.9 must be an integer or None
FederatedPCA(0.9, merge=SubspaceMerge(truncate=True)) | fit(X) | n_components=0.9 must be an integer or None
SubspaceMerge(truncate=True) | merge(SITES, 0.9) | n_components=0.9 must be an integer or None
FederatedPCA | from_subspaces([EMPTY, EMPTY], 2) | at least one row, all have n_samples=0
FederatedScaler | from_subspaces([EMPTY, EMPTY]) | at least one row, all have n_samples=0
FederatedPCA.from_subspaces([ORIGIN], 2) | partial_fit(X, clients=CLASS) | Client 0: | center
FederatedPCA.from_subspaces(SITES, 2).set_params(estimator=IncrementalPCA(2)) | partial_fit(X, clients=CLASS) | Client 0: it was given as a summary, from which IncrementalPCA cannot go on
FederatedPCA | from_subspaces(SITES, 14) | n_components=14 | n_features=13
FederatedPCA(3).fit(X) | refine(X, n_rounds=0) | n_rounds must be an integer of at
FederatedPCA(3).fit(X) | refine(X, sample_weight=np.zeros(178)) | sample_weight must have a pos
FederatedPCA(2, mechanism=GAUSS, n_refinements=1) | fit(X) | with a mechanism: each round would need noise
FederatedPCA(3).fit(X).set_params(mechanism=GAUSS) | refine(X) | mechanism must be None to refine
FederatedPCA() | refine(X) | not fitted
FederatedPCA(3).fit(WIDE) | refine(WIDE[:-1]) | weight of 60, got rows of weight 59
FederatedPCA(3).fit(WIDE) | refine(WIDE.mean(axis=0) + 1.5 * (WIDE - WIDE.mean(axis=0))) | whose sum of squares is
FederatedPCA(3).fit(WIDE) | refine(WIDE[:, :-1]) | 299 features
FederatedPCA(3).fit(WIDE) | refine(np.where(np.arange(300) == 7, np.nan, WIDE)) | Client 0: Input X contains NaN
StreamingPCA(3, scale=True).fit(X).set_params(partial_out=[0, 13]) | partial_fit(X) | from 0 to 12, got 13
StreamingPCA(3, scale=True).fit(X).set_params(partial_out=["age"]) | partial_fit(X) | 'age' must be a column; the columns have no names
StreamingPCA(3, scale=True).fit(X).set_params(partial_out=[1, 1]) | partial_fit(X) | none twice
StreamingPCA(3, scale=True).fit(X).set_params(partial_out=range(13)) | partial_fit(X) | leave one of 13
StreamingPCA(3, scale=True).fit(X).set_params(partial_out=[0.5]) | partial_fit(X) | names or positions
DistributedPCA(3, scale=True).fit(X).set_params(partial_out=False) | partial_fit(X) | names or positions | got False
FederatedPCA(3, scale=True).fit(X).set_params(partial_out=np.arange(13) == 2) | partial_fit(X) | names or positions | False
FederatedPCA(3, scale=True).fit(X).set_params(partial_out=range(11)) | partial_fit(X) | n_components=3 must be at most 2
FederatedPCA(3, scale=True).fit(X).set_params(scale="yes") | partial_fit(X) | scale
FederatedPCA(0.7, partial_out=2) | fit(WIDE) | n_components=0.7 must be an integer or None
PersonalizedPCA(2, 2).fit(X, clients=CLASS) | refine(X[:-1], clients=CLASS[:-1]) | Client 2 | weight
PersonalizedPCA(2, 2).fit(X, clients=CLASS) | refine(X[CLASS != 1], clients=CLASS[CLASS != 1]) | 1
PersonalizedPCA(2, 2).fit(X, clients=CLASS) | refine(X, clients=np.where(CLASS == 1, 7, CLASS)) | 7
PersonalizedPCA(2, 2).fit(X, clients=CLASS) | inverse_transform(X) | X must have shape (n_samples, 4), got (178, 13)
FederatedPowerPCA(2, channel=RobustSum(), mechanism=FedPowerNoise(1.0, 1e-3, 30.0)) | fit(X, clients=CLASS) | mechanism adds noise to the messages | RobustSum() compares
FederatedPowerPCA(2, channel=RobustSum(), mechanism=FedPowerNoise(1.0, 1e-3, 30.0, trust="sum")) | fit(X, clients=CLASS) | trust='sum' hides the messages | RobustSum() compares
FederatedPowerPCA(2, channel=RobustSum(), local_steps=3) | fit(X, clients=CLASS) | RobustSum() needs local_steps=1 | got 3
FederatedPowerPCA(2, channel=RobustSum(2)) | fit(X, clients=CLASS) | max_bad=2 must be fewer than half of the 3 clients
FederatedSubspaceTracker(2, channel=RobustSum()) | fit(X, clients=CLASS) | RobustSum() compares | for FederatedPowerPCA
VerticalFederatedPCA(2, feature_groups=13, method="vfedpca") | fit(FAR) | Client 4: | too large
VerticalFederatedPCA(2, feature_groups=13, method="merge") | fit(FAR) | Client 4: | too large
VerticalFederatedPCA(2, feature_groups=13, method="power") | fit(FAR) | Client 4: | too large
FederatedHeteroscedasticPCA(3, channel=RobustSum()) | fit(X) | RobustSum() compares the messages
VerticalFederatedPCA(2, method=PowerRounds(channel=RobustSum())) | fit(X) | RobustSum() compares | for FederatedPowerPCA
FederatedSubspaceTracker(2, random_state=0).fit(X) | partial_fit(iter([X]), clients=CLASS) | clients cannot be given when X is an iterable
FederatedPCA(2) | fit(TABLE, clients="hospital") | clients='hospital' must be a column of X | 'site'
FederatedPCA(2) | fit(X, clients="site") | clients='site' names a column | got ndarray
FederatedPowerPCA(2) | fit(TABLE, clients="site") | all integers or all strings, without missing values
FederatedScaler() | fit(X, clients=[0, 1]) | clients must have one label per row
FederatedScaler() | fit(X.astype(str), clients="site") | one label per row, shape (n,), got 'site'.
FederatedScaler().fit(X) | partial_fit(X, sample_weight=np.zeros(177)) | sample_weight
FederatedScaler() | fit(X, sample_weight=np.zeros(178)) | sample_weight must have a positive sum
FederatedScaler().fit(X) | partial_fit(np.where(X > 1600, np.inf, X), clients=CLASS) | Client 0: | infinity
FederatedScaler().fit(X) | fit(np.where(X > 1600, 1e200, X), clients=list("abc"[c] for c in CLASS)) | 'a': | too large
FederatedScaler() | fit(sp.csr_array(X)) | Cannot center sparse
FederatedScaler(with_mean=False).fit(X) | inverse_transform(sp.csr_array(X[:, :1])) | X has 1 features, but FederatedScaler is expecting 13 features
"""  # noqa: E501


# ------------------------------------------------------------------------------ streams


class Unbegun(Tracker):
    """A rule that does not say how it begins."""

    def __init__(self, n_components=1, *, center=True):
        self.n_components = n_components
        self.center = center

    def _updated(self, state, Z):
        return state

    def _basis(self, state):
        return state


ROWS = np.random.default_rng(0).standard_normal((200, 6)) * [6, 5, 4, 3, 2, 1] + 7
TIMES = np.datetime64("2026-03-01T12:00:00", "s") + np.arange(200).astype("m8[m]")
HOUR = {"half_life": "1h"}
TIMED = StreamingPCA(3, **HOUR).fit(ROWS[:100], times=TIMES[:100])
OF_STREAMS = {
    **NAMES,
    "pd": pd,
    "Unbegun": Unbegun,
    "X": ROWS,
    "FRAME": pd.DataFrame(ROWS[:, :3], columns=list("abc")),
    "TIMES": TIMES,
    "NAT": np.where(np.arange(200) == 7, np.datetime64("NaT", "s"), TIMES),
    "TIMED": TIMED.partial_fit(ROWS[100:101], times=TIMES[100:101]),  # a row that waits
    "TIMED_PAST": PAST(3, **HOUR).fit(ROWS[:100], times=TIMES[:100]),
    "WHOLE": Subspace.from_rows(np.eye(3)),
    "SINGLE": ROWS[:40].astype(np.float32),
    "FAR": np.full((40, 6), 1e39),  # a mean beyond the first rows' dtype
}
STREAMS = """
StreamingPCA(3, half_life="1 hour") | fit(X, times=TIMES) | half_life must be | got '1 hour'
PAST(3, half_life="0h") | fit(X, times=TIMES) | half_life must be
PETRELS(3, half_life=np.timedelta64("NaT", "s")) | fit(X, times=TIMES) | half_life must be
PETRELS(3, half_life=np.timedelta64(1, "M")) | fit(X, times=TIMES) | half_life must be
PETRELS(3, half_life=np.timedelta64(1)) | fit(X, times=TIMES) | half_life must be
SPIRIT(3, half_life=-3) | fit(X) | 'half_life' parameter
StreamingPCA(3, half_life=3, forgetting_factor=0.5) | fit(X) | forgetting_factor must be | a half_life
StreamingPCA(3, half_life=3, forgetting="blocks") | fit(X) | forgetting must be 'rows' with
PAST(3, half_life="1h") | partial_fit(X, times=TIMES[:, None]) | one time per row
StreamingPCA(3, half_life="1h") | fit(X, times=NAT) | times must not be missing, got NaT at row 7
StreamingPCA(3, half_life="1h") | fit(X, times=np.arange(200.0)) | TypeError | times must be datetime64 | got float64
StreamingPCA(3, half_life="1h") | fit(X, times=pd.PeriodIndex(TIMES, freq="min")) | TypeError | must be datetime64 | got Period
StreamingPCA(3, half_life="1h") | fit(X, times=["noon"] * 200) | TypeError | times must be datetime64
PAST(3, half_life="1h") | fit(X, times=TIMES[::-1]) | times must not decrease | at row
PAST(3, half_life=5) | fit(X, times=TIMES) | half_life=5 is not a time, as '1h' is
StreamingPCA(3) | fit(X, times=TIMES) | half_life=None is not a time
TIMED | fit(iter([X]), times=TIMES) | X is an iterable of batches
TIMED | partial_fit(X[:1]) | needs times
TIMED | partial_fit(X[:1], times=NAT[7:8]) | got NaT at row 0
TIMED | partial_fit(X[:1], times=TIMES[:2]) | shape (1,), got (2,)
TIMED | refine(X) | half_life='1h' must be None to refine
TIMED_PAST | partial_fit(X[:1], times=TIMES[:1]) | not decrease | at row 0
StreamingPCA(3).fit(X).set_params(half_life="1h") | partial_fit(X, times=TIMES) | rows seen before came without times
PAST(3).fit(X).set_params(half_life="1h") | partial_fit(X, times=TIMES) | rows seen before came without times
SubspaceTracker(3, half_life="1h") | fit(X) | half_life must be a number of rows | count the same
RobustSubspaceTracker(3, half_life="1h") | partial_fit(X, times=TIMES) | TypeError | times cannot be given to RobustSubspaceTracker: | half_life must be a number of rows | got half_life='1h'.
FederatedSubspaceTracker(3, half_life="1h") | fit(X, times=TIMES) | TypeError | times cannot be given to FederatedSubspaceTracker: | got half_life='1h'.
StreamingPCA | from_subspace(np.eye(3)) | TypeError | must be Subspace objects, got ndarray
StreamingPCA | from_subspace(WHOLE, 4) | n_components=4 must be at most
StreamingPCA | from_subspace(WHOLE, center=False) | center=False differs | the mean
StreamingPCA | from_subspace(WHOLE, n_samples_seen=0) | n_samples_seen | 0
StreamingPCA | from_subspace(WHOLE, rank_rule="a") | rank_rule
StreamingPCA | from_subspace(WHOLE, decay=1) | TypeError | decay
StreamingPCA.from_subspace(Subspace.from_rows(FRAME), 2) | partial_fit(FRAME[["b", "a", "c"]]) | same order
OjaPCA(3).fit(X).set_params(n_components=4) | partial_fit(X) | n_components=4 differs from
PAST(3).fit(X).set_params(deflation=True) | partial_fit(X) | deflation=True differs from
PETRELS(3).fit(X).set_params(init=np.eye(3, 6)) | partial_fit(X) | differs from 'rows' for the rows seen
FrequentDirections(5, sketch_size=5) | partial_fit(X) | sketch_size=5
PAST(3, init=np.eye(3, 19)) | partial_fit(X) | init must have shape (3, 6), got (3, 19)
GROUSE(3, init=np.full((3, 6), np.nan)) | partial_fit(X) | init must be finite
SubspaceTracker(2, batch_size=10).fit(SINGLE) | partial_fit(FAR) | too large | float32
RobustSubspaceTracker(2, batch_size=10, init="svd").fit(SINGLE) | partial_fit(FAR) | too large | float32
OjaPCA(2, random_state=0).fit(SINGLE) | partial_fit(FAR) | too large | float32
FederatedSubspaceTracker(2, batch_size=10, random_state=0).fit(SINGLE) | partial_fit(FAR) | too large | float32
OnlineDistributedPCA(2).fit(SINGLE) | partial_fit(FAR) | too large | float32
SubspaceTracker(2, fill="zeros", detect_changes=True) | fit(X) | detect_changes needs fill='conditional'
Unbegun() | fit(np.eye(5)) | TypeError | Unbegun must write _begin, or _begin_at
StreamingPCA(3).fit(X) | refine(X + 1e-3, n_rounds=2) | whose mean is another
StreamingPCA(3).fit(X) | refine(iter([X]), n_rounds=2) | must be 1 where X is an iterator
StreamingPCA(3).fit(X) | refine(X, n_rounds=0) | n_rounds must be an integer of at least 1, got 0
StreamingPCA(3).fit(X) | refine([X], np.ones(200)) | sample_weight cannot be given
StreamingPCA(2, forgetting_factor=0.9).fit(X) | refine(X) | must be 1 to refine: rows that have faded
StreamingPCA() | refine(X) | not fitted
"""  # noqa: E501


# ------------------------------------------------------------------------------ summaries

S, T = (Subspace.from_rows(ROWS[:n, :5]) for n in (20, 9))
ABOUT_ZERO = Subspace.from_rows(ROWS[:9, :5], center=False)
FIELDS = ["components", "singular_values", "mean", "n_samples", "scatter"]
OF_SUMMARIES = {
    **NAMES,
    "nan": nan,
    "inf": inf,
    "ones": ones,
    "StringIO": StringIO,
    "S": S,
    "TWO": [S, T],
    "ORIGIN": ABOUT_ZERO,
    "FIVE": {name: getattr(S, name) for name in [*FIELDS, "column_scatter"]},
    "ABOUT_ZERO": {name: getattr(ABOUT_ZERO, name) for name in [*FIELDS, "centered"]},
}
FEW = "must be an integer from 0 to"
SUMMARIES = f"""
Subspace | from_rows(ones((2, 5)), -1) | n_components must | got -1
S | truncate(-1) | n_components must | got -1
S | update(ones((2, 6))) | X has 6 features, expected 5
S | update(np.full((2, 5), nan)) | X contains NaN
S | update(ones(5)) | Expected 2D array
S | update(ones((2, 5)), forgetting_factor=0) | forgetting_factor | got 0
S | update(ones((2, 5)), sample_weight=[1, -1]) | sample_weight
S | update(ones((2, 5)), sample_weight=[1, nan]) | NaN
S | decay(-0.5) | weight | got -0.5
S._replace(n_samples=1e300) | decay(1e10) | weight=10000000000.0 is too large
Subspace | empty(0) | n_features | got 0
Subspace | from_estimator(object()) | TypeError | object has no components_
merge_subspaces | __call__([]) | subspaces must | at least one Subspace, got none
merge_subspaces | __call__(Subspace.empty(3)) | TypeError | a sequence of Subspace objects, got one Subspace
merge_subspaces | __call__([np.eye(3)]) | TypeError | subspaces must be Subspace objects, got ndarray
merge_subspaces | __call__([S, ORIGIN]) | all centred or all not
merge_subspaces | __call__(TWO, method=["svd"]) | method must be | 'gram' | got ['svd']
merge_subspaces | __call__(TWO, 1.5) | n_components must be | got 1.5
merge_subspaces | __call__(TWO, "mle") | n_components must be | got 'mle'
merge_subspaces | __call__(TWO, weights=[1.0]) | weights must | 2 subspaces, got 1
merge_subspaces | __call__(TWO, weights=[1.0, -1.0]) | weights must be non-negative
merge_subspaces | __call__(TWO, weights=[1.0, nan]) | weights must be finite
merge_subspaces | __call__(TWO, weights=1.0) | weights must | 1-D
merge_subspaces | __call__(TWO, weights={{"a": 1}}) | weights must be real numbers, got {{'a': 1}}
SubspaceMerge("svdd") | merge(TWO) | 'method' | must be | 'gram' | Got 'svdd'
Subspace | __call__(**FIVE, model=(6, False, (), 0.0)) | model.n_components {FEW} 5, got 6
Subspace | __call__(**FIVE, model=(nan, False, (), 0.0)) | model.n_components
Subspace | __call__(**FIVE, model=(4, False, (0, 1), 0.0)) | model.n_components {FEW} 3, got 4
Subspace | __call__(**FIVE, model=(3, 2, (), 0.0)) | model.scale must be True or False, got 2
Subspace | __call__(**FIVE, model=(3, False, (5,), 0.0)) | model.partial_out {FEW} 4, got 5
Subspace | __call__(**FIVE, model=(3, False, (1, 1), 0.0)) | model.partial_out must hold none of 5 columns twice
Subspace | __call__(**FIVE, model=(0, False, range(5), 0.0)) | model.partial_out must | leave one, got 5
Subspace | __call__(**FIVE, model=(3, False, (), nan)) | model.error_bound
Subspace | __call__(**FIVE, model=(3, False, ())) | model must be
Subspace | __call__(**ABOUT_ZERO, model=(2, True, (), 0.0)) | centered=True
Subspace | __call__(**FIVE, feature_names=("a", "b")) | feature_names must be 5 strings, got 2
Subspace | __call__(**FIVE, feature_names=(1, 2, 3, 4, 5)) | feature_names must be 5 strings
Subspace | __call__(**FIVE, feature_names=tuple("abacd")) | feature_names must differ, got 'a' twice
Subspace | __call__(**FIVE, site="a", sites=["a", "b"]) | site='a' must be the only one of sites
Subspace | __call__(**FIVE, sites="north") | TypeError | sites must be a collection
Subspace | __call__(**FIVE, sites=["north", 5]) | sites must be strings, got 5
Subspace | __call__(**FIVE, site=5) | TypeError | site must be a string or None, got 5
Subspace | __call__(**FIVE, sites=map(str, range(65536))) | sites must be at most 65535, got 65536
Subspace | empty(2**20 + 1)._named([str(i) for i in range(2**20 + 1)]).to_bytes() | at most 1048576 in a file, got 1048577
Subspace | load(StringIO("text")) | TypeError | data must be bytes-like, got str
Subspace | __call__(**FIVE, privacy=(1.0, 2.0, 3.0)) | privacy must be
Subspace | __call__(**FIVE, privacy=(nan, 1e-5, 3.0, "A", "client")) | privacy.epsilon
Subspace | __call__(**FIVE, privacy=(1.0, 2.0, 3.0, "A", "client")) | privacy.delta
Subspace | __call__(**FIVE, privacy=(1.0, 1e-5, -3.0, "A", "client")) | privacy.row_norm
Subspace | __call__(**FIVE, privacy=(1.0, 1e-5, 3.0, 7, "client")) | privacy.mechanism
Subspace | __call__(**FIVE, privacy=(1.0, 1e-5, 3.0, "A\\x1b", "client")) | privacy.mechanism
"""  # noqa: E501


@pytest.mark.parametrize(
    ("table", "values"),
    [(CLIENTS, OF_CLIENTS), (STREAMS, OF_STREAMS), (SUMMARIES, OF_SUMMARIES)],
    ids=["clients", "streams", "summaries"],
)
def test_what_cannot_be_is_named_and_changes_nothing(table, values):
    assert_refused(table, values)
