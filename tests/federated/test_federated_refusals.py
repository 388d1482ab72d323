"""What cannot be together at clients, or in a second step, is named, and a refusal changes nothing.

Each line has a model or a class, a call of it, and words of the error. Wrong values of a parameter
are in tests/test_refused_parameters.py.
"""

import numpy as np
import scipy.sparse as sp
from golden_cases import NAMES
from helpers import assert_refused
from pair_helpers import rows_with_holes
from sklearn.datasets import load_wine

from fedpca_sklearn import PairMoments, StreamingPCA, Subspace

X, CLASS = load_wine(return_X_y=True)
WIDE = np.random.default_rng(0).standard_normal((60, 300)) + 1.0
SPOTS = rows_with_holes(11, 40, 3)
VALUES = {
    **NAMES,
    "sp": sp,
    "X": X,
    "CLASS": CLASS,
    "HOLES": np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X),
    "WIDE": WIDE,
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
TABLE = f"""
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
FederatedPCA(2, missing=AvailablePairs(), estimator=StreamingPCA(2)) | fit(SPOTS) | estimator must be
FederatedPCA(2, missing=AvailablePairs(), tol=0.1) | fit(SPOTS) | tol must be
OnlineDistributedPCA(2).fit(X).set_params(average="steps") | partial_fit(X) | average='steps' differs from 'shards' | call fit
OnlineDistributedPCA(2).fit(X).set_params(center=False) | partial_fit(X) | center=False differs from True | call fit
OnlineDistributedPCA(2).fit(X).set_params(variances="sent") | partial_fit(X) | variances='sent' differs from 'measured' | call fit
OnlineDistributedPCA(2).fit(X).set_params(weighting="rows") | partial_fit(X) | weighting='rows' differs from 'equal' | call fit
FederatedPCA(2, estimator=PCA(2)) | fit(X, sample_weight=np.ones(178)) | sample_weight | PCA
FederatedPCA(2) | fit(SPOTS) | missing=AvailablePairs
DistributedPCA(2) | fit(SPOTS) | missing=AvailablePairs
FederatedPCA(2, missing=AvailablePairs(min_rows=0)) | fit(SPOTS) | min_rows
FederatedPCA(2, missing=AvailablePairs()) | fit(np.ones((5, 300))) | d=300 | at most 256 | DistributedPCA
FederatedPCA(2, missing=AvailablePairs()) | fit(np.where(SPOTS > 1, np.inf, SPOTS)) | Client 0: | infinity
FederatedPCA(2, estimator=SubspaceTracker(2)) | fit(HALF, clients=np.arange(40) // 20) | Client 0: column 2 has no entries
FederatedPCA(2, estimator=SubspaceTracker(2)) | fit(sp.csr_array(HALF), clients=np.arange(40) // 20) | Client 0: column 2 has no entries
FederatedPCA(2, missing=AvailablePairs()).fit(SPOTS) | refine(SPOTS) | missing=AvailablePairs | refine
FederatedPCA(2, missing=AvailablePairs()).fit(FULL).set_params(missing=None) | partial_fit(FULL) | missing must not change
FederatedPCA(2).fit(FULL).set_params(missing=AvailablePairs()) | partial_fit(FULL) | missing must not change
DistributedPCA(2, missing=AvailablePairs()).fit(FULL).set_params(missing=None) | partial_fit(FULL) | missing must not change
FederatedPCA | from_pairs([PAIRS._replace(site="a")] * 2, 2) | of site 'a'
FederatedPCA | from_pairs([PairMoments.from_rows(WIDE)], 2) | d=300 | at most 256 | DistributedPCA
FederatedPCA | from_pairs([PAIRS, PairMoments.from_rows(HOLES)], 2) | pairs[1] has 13 features, pairs[0] has 3
FederatedPCA | from_pairs([PairMoments.from_rows(1.2e154 * FULL / np.linalg.norm(FULL - FULL.mean(axis=0), axis=0))] * 2, 2) | sum of all clients holds values that are too large
FederatedPCA | from_pairs(SITES, 2) | got ['Subspace'
FederatedPCA | from_pairs(PAIRS, 2) | pairs must be a sequence | got one PairMoments
FederatedPCA | from_pairs([PAIRS], 2, missing=ConditionalFill()) | missing must be AvailablePairs
PersonalizedPCA | from_pairs([PAIRS], 2) | PersonalizedPCA takes no moments of pairs
FederatedPCA(missing=ConditionalFill()) | fit(SPOTS) | n_components must be | got None
FederatedPCA(11, missing=ConditionalFill()) | fit(HOLES[:, :12]) | n_components=11 | too few entries
FederatedPCA(2, missing=ConditionalFill(n_rounds=0)) | fit(SPOTS) | n_rounds
FederatedPCA(2, missing=ConditionalFill(), tol=0.1) | fit(SPOTS) | tol must be None
FederatedPCA(2, missing=ConditionalFill()) | fit(np.where(SPOTS > 1, np.inf, SPOTS)) | Client 0 | infinity
FederatedPCA(2, missing=ConditionalFill()).fit(SPOTS) | remove(0) | remove
FederatedPCA(2, missing=ConditionalFill()).fit(SPOTS) | refine(SPOTS) | cannot be refined
StreamingPCA(3, scale=True, center=False) | fit(X) | center
StreamingPCA(3, scale=True, rank_rule=object()) | fit(X) | rank_rule
StreamingPCA(3, scale=True) | fit(X * 1e200) | too large
evaluate_stream | __call__(StreamingPCA(2, partial_out=[0]), X) | scale=False and partial_out
FederatedPCA(3, scale=True, mechanism=GAUSS) | fit(X) | mechanism must be None
FederatedPCA(2, scale=True, estimator=PCA(2)) | fit(X) | column_scatter=None
SubspaceMonitor(StreamingPCA(2, partial_out=[0])) | fit(X) | partial_out=None
FederatedPCA | from_subspaces([ORIGIN], scale=True) | center=True
FederatedPCA(2, partial_out=[0], merge=RobustMerge()) | fit(X, clients=CLASS) | merge must be None or SubspaceMerge with partial_out
FederatedPCA(2, partial_out=[0], merge=ProjectionAverage()) | fit(X, clients=CLASS) | merge must be None or SubspaceMerge with partial_out
FederatedPCA(3, merge=WITHIN).fit(X) | refine(X) | cannot be refined
FederatedPCA(3, merge=WITHIN, n_refinements=1) | fit(X) | cannot be refined
FederatedPCA(3, merge=WITHIN, estimator=StreamingPCA(3, center=False)) | fit(X) | center="site" needs summaries about their means
SubspaceMerge(center="column") | merge(SITES) | center
FederatedPCA(3, merge=WITHIN, mechanism=HIDDEN) | fit(X) | trust='sum' hides the sum
FederatedPCA(2, merge=RobustMerge(), mechanism=HIDDEN) | fit(X) | trust='sum' hides the summaries | Merge() compares
FederatedPCA(2, merge=RobustMerge(), n_clients=5, n_refinements=1) | fit(WIDE) | merge= | cannot be refined
FederatedPCA(2, merge=RobustMerge(), n_clients=5).fit(WIDE) | refine(WIDE) | merge= | cannot be refined
FederatedPCA(0.9, merge=RobustMerge()) | fit(X) | must be an integer with RobustMerge
FederatedPCA(merge=NoiseAwareMerge()) | fit(X) | must be an integer with NoiseAwareMerge
RobustMerge(max_bad=2) | merge(SITES, 2) | max_bad=2 must be fewer than half of the sites, of wh
FederatedPCA(0.9, merge=ProjectionAverage(3), mechanism=GAUSS) | partial_fit(X) | n_components=0.9 must be an integer or None
FederatedPCA(0.9, merge=SubspaceMerge(truncate=True)) | fit(X) | n_components=0.9 must be an integer or None
SubspaceMerge(truncate=True) | merge(SITES, 0.9) | n_components=0.9 must be an integer or None
FederatedPCA | from_subspaces([EMPTY, EMPTY], 2) | at least one row, all have n_samples=0
FederatedPCA.from_subspaces([ORIGIN], 2) | partial_fit(X, clients=CLASS) | Client 0: | center
FederatedPCA.from_subspaces(SITES, 2).set_params(estimator=IncrementalPCA(2)) | partial_fit(X, clients=CLASS) | Client 0: it was given as a summary, from which IncrementalPCA cannot go on
FederatedPCA | from_subspaces(SITES, 14) | n_components=14 | n_features=13
FederatedPCA(3).fit(X) | refine(X, n_rounds=0) | n_rounds must be an integer of at
FederatedPCA(3).fit(X) | refine(X, sample_weight=np.zeros(178)) | sample_weight must have a pos
FederatedPCA(2, mechanism=GAUSS, n_refinements=1) | fit(X) | with a mechanism: each round would need noise
FederatedPCA(3).fit(X).set_params(mechanism=GAUSS) | refine(X) | mechanism must be None to refine
FederatedPCA(tol=0.0) | fit(X) | 'tol' parameter
FederatedPCA() | refine(X) | not fitted
FederatedPCA(3).fit(WIDE) | refine(WIDE[:-1]) | weight of 60, got rows of weight 59
FederatedPCA(3).fit(WIDE) | refine(WIDE + 1e-3) | whose mean is another
FederatedPCA(3).fit(WIDE) | refine(WIDE.mean(axis=0) + 1.5 * (WIDE - WIDE.mean(axis=0))) | whose sum of squares is
FederatedPCA(3).fit(WIDE) | refine(WIDE[:, :-1]) | 299 features
FederatedPCA(3).fit(WIDE) | refine(np.where(np.arange(300) == 7, np.nan, WIDE)) | Client 0: Input X contains NaN
StreamingPCA(3, scale=True).fit(X).set_params(partial_out=[0, 13]) | partial_fit(X) | from 0 to 12, got 13
StreamingPCA(3, scale=True).fit(X).set_params(partial_out=["age"]) | partial_fit(X) | 'age' must be a column; the columns have no names
StreamingPCA(3, scale=True).fit(X).set_params(partial_out=[1, 1]) | partial_fit(X) | none twice
StreamingPCA(3, scale=True).fit(X).set_params(partial_out=[]) | partial_fit(X) | at least one column
StreamingPCA(3, scale=True).fit(X).set_params(partial_out=range(13)) | partial_fit(X) | leave one of 13
StreamingPCA(3, scale=True).fit(X).set_params(partial_out=[0.5]) | partial_fit(X) | names or positions
DistributedPCA(3, scale=True).fit(X).set_params(partial_out=False) | partial_fit(X) | names or positions | got False
FederatedPCA(3, scale=True).fit(X).set_params(partial_out=np.arange(13) == 2) | partial_fit(X) | names or positions | False
FederatedPCA(3, scale=True).fit(X).set_params(partial_out=range(11)) | partial_fit(X) | n_components=3 must be at most 2
FederatedPCA(3, scale=True).fit(X).set_params(scale="yes") | partial_fit(X) | scale
FederatedPCA(0.7, partial_out=2) | fit(WIDE) | n_components=0.7 must be an integer or None
PersonalizedPCA(2, 2).fit(X, clients=CLASS) | refine(X[:-1], clients=CLASS[:-1]) | Client 2 | weight
PersonalizedPCA(2, 2).fit(X, clients=CLASS) | refine(X + 1, clients=CLASS) | mean
PersonalizedPCA(2, 2).fit(X, clients=CLASS) | refine(X[CLASS != 1], clients=CLASS[CLASS != 1]) | 1
PersonalizedPCA(2, 2).fit(X, clients=CLASS) | refine(X, clients=np.where(CLASS == 1, 7, CLASS)) | 7
PersonalizedPCA(2, 2).fit(X, clients=CLASS) | inverse_transform(X) | X must have shape (n_samples, 4), got (178, 13)
FederatedSubspaceTracker(2) | fit(iter([X]), clients=CLASS) | clients cannot be given when X is an iterable
FederatedSubspaceTracker(2, random_state=0).fit(X) | partial_fit(iter([X]), clients=CLASS) | clients cannot be given when X is an iterable
FederatedScaler() | fit(X, clients=[0, 1]) | clients must have one label per row
FederatedScaler() | fit(X, clients="site") | one label per row, shape (178,), got 'site'.
FederatedScaler().fit(X) | partial_fit(X, sample_weight=np.zeros(177)) | sample_weight
FederatedScaler() | fit(X, sample_weight=np.zeros(178)) | sample_weight must have a positive sum
FederatedScaler().fit(X) | partial_fit(np.where(X > 1600, np.inf, X), clients=CLASS) | Client 0: | infinity
FederatedScaler().fit(X) | fit(np.where(X > 1600, 1e200, X), clients=list("abc"[c] for c in CLASS)) | 'a': | too large
FederatedScaler() | fit(sp.csr_array(X)) | Cannot center sparse
"""  # noqa: E501


def test_what_cannot_be_is_named_and_changes_nothing():
    assert_refused(TABLE, VALUES)
