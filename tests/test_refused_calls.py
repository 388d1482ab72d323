"""Calls of functions, displays and monitors that are refused: the error names what is wrong."""

import numpy as np
import pytest
from golden_cases import NAMES
from holders import FRAME
from numpy import eye, full, inf, nan, ones
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import FederatedPCA, FederatedScaler, Subspace, make_spiked
from fedpca_sklearn.privacy import ScalerNoise, private_scores

pytestmark = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
X = make_spiked(600, 12, spikes=[9.0, 4.0], random_state=0)[0]
FLAT = [Subspace.from_rows(part * (np.arange(12) < 2)) for part in np.split(X, 6)]


def summaries(at=None, **fields):
    """Of two sites; the fields of one or of both are others."""
    one = {"components": eye(3)[:1], "singular_values": [1.0], "mean": np.zeros(3)}
    one |= {"n_samples": 5.0, "scatter": 1.0}
    return [
        Subspace(**(one | (fields if at in (None, i) else {})))._replace(site=name)
        for i, name in enumerate(("east", "south"))
    ]


VALUES = {
    **{**NAMES, "StandardScaler": StandardScaler, "private_scores": private_scores},
    **{"eye": eye, "full": full, "inf": inf, "nan": nan, "ones": ones, "rows": X},
    **{"frame": FRAME, "summaries": summaries, "flat": FLAT, "empty": Subspace.empty},
    "parts": [Subspace.from_rows(part) for part in np.split(X, 6)],
    "pca": FederatedPCA(3).fit(X),
    "gauss": NAMES["AnalyzeGauss"](20.0, 1e-5, 10.0),
    "hidden": NAMES["AnalyzeGauss"](20.0, 1e-5, 10.0, trust="sum"),
    "noisy": FederatedPCA(3, mechanism=NAMES["AnalyzeGauss"](20.0, 1e-5, 10.0)).fit(X),
    "kernel": NAMES["VerticalFederatedKernelPCA"](1, feature_groups=1, random_state=0),
    "plane": lambda two: NAMES["ScoresDisplay"].from_estimator(VALUES["pca"], X, components=two),
    "scaled": lambda bounds: FederatedScaler(mechanism=ScalerNoise(1.0, 1e-5, bounds=bounds)).fit(
        X
    ),
    "lost": np.where(np.arange(12) == 4, nan, X),
    "texts": lambda: iter([{"text": ["a", "b"], "n": [1, 2]}]),
}
# Call | words of the error
REFUSED = """
jackknife_intervals(parts, 0) | n_components must be an integer from 1 to 12 | got 0
jackknife_intervals(parts, 13) | n_components must be | from 1 to 12 | got 13
jackknife_intervals(parts, 0.5) | n_components must be an integer | got 0.5
jackknife_intervals(flat, 3) | n_components=3 must be at most the number of directions
jackknife_intervals(parts, 1, confidence=95) | confidence must be in (0, 1), got 95
jackknife_intervals(parts[:2], 1) | at least three summaries with rows | got 2
jackknife_intervals([*parts[:2], empty(12)], 1) | at least three summaries | got 2
jackknife_intervals([parts[:3], parts[3:4]], 1) | two of each site | got 3 and 1
jackknife_intervals([], 1) | at least one Subspace
jackknife_intervals([parts[:3], parts[3]], 1) | got Subspace as subspaces[1]
jackknife_intervals([parts[:3], [1, 2]], 1) | all sequences of Subspace, got list as sub
jackknife_intervals([parts[3], parts[:3]], 1) | got list as subspaces[1]
jackknife_intervals([parts[:3], []], 1) | subspaces[1] must hold at least two blocks
jackknife_intervals([*parts, empty(3)], 1) | has 3 features
jackknife_intervals(parts[0], 1) | got one Subspace
load_balanced_schedule(0, 2); load_balanced_schedule(2, 0) | integer of at least 1, got 0
load_balanced_schedule(2.0, 2) | n_clients | got 2.0
load_balanced_schedule(2, "two") | n_steps | got 'two'
load_balanced_schedule(None, 2) | n_clients | None
load_balanced_schedule(2, [3]) | n_steps | [3]
load_balanced_schedule(2, 2, layout="interval") | layout | 'interval'
subspace_distance(eye(2, 4), eye(2, 5)) | columns, got 4 and 5
subspace_distance(ones((5, 3)), eye(2, 3)) | A must have at most | (5, 3)
subspace_distance(eye(2, 3), ones((5, 3))) | B must have at most | (5, 3)
subspace_distance(ones(4), eye(2, 4)) | 2D array
subspace_distance(eye(2, 4), [[1, nan, 0, 0]]) | B contains NaN
subspace_distance(ones((0, 4)), eye(2, 4)) | 0 sample
subspace_distance(np.zeros((2, 4)), eye(2, 4)) | A must span at least one direction
subspace_distance(eye(2, 4), eye(3, 4), metric="cos") | metric must be one of | 'cos'
subspace_distance(eye(2, 4), eye(3, 4), metric="euclidean") | equal dimension, got dimensions 2
ERROR(ones((5, 3)), eye(2, 4)) | components | 3 | 4
ERROR(ones((5, 3)), ones((4, 3))) | components must have at most | (4, 3)
ERROR(ones((5, 3)), eye(2, 3), ones(2)); ERROR(ones((5, 3)), eye(2, 3), nan) | mean
ERROR(full((5, 3), nan), eye(2, 3)) | X contains NaN
ERROR(ones((5, 3)), [[inf, 0, 0]]) | components contains inf
evaluate_stream(StreamingPCA(2), eye(9), batch_size=0) | batch_size must be an integer of at | got 0
evaluate_stream(StreamingPCA(2), eye(9), n_checkpoints=2.5) | n_checkpoints must be an integer of
evaluate_stream(StreamingPCA(2), eye(9), batch_size="all") | batch_size must be an | got 'all'
evaluate_stream({}, eye(9)); evaluate_stream(PCA(2), eye(9)) | estimator must have partial_fit, got
evaluate_stream(GROUSE(3), full((9, 4), nan)) | X contains NaN | give X_full
evaluate_stream(GROUSE(3), eye(9), eye(9)[:2]) | X_full must have the shape of X, (9, 9)
iter_batches(rows); iter_batches(frame); iter_batches(3); iter_batches("rows.parquet");\
 iter_batches({1, 2}); iter_batches({"a": rows}); iter_batches(rows.tolist()) | hold batches of rows
next(iter_batches([rows], batch_size=0)) | batch_size must be an integer of at least 1, got 0
next(iter_batches([rows], columns=-1)) | columns must be a name or | got -1
next(iter_batches([rows], columns=2.5)) | columns must be a name or | got 2.5
next(iter_batches([rows], columns=["heat"])) | columns can be chosen by name only, got ndarray
next(iter_batches(texts())) | columns must name | 'text': (2,)
next(iter_batches(texts(), columns=["rain"])) | rain
SubspaceMonitor(StreamingPCA(3)).predict(rows); SubspaceMonitor.from_estimator(StreamingPCA(3));\
 ScreeDisplay.from_estimator(FederatedPCA(2)); CommunicationDisplay.from_estimator(FederatedPCA(2))\
 | not fitted
SubspaceMonitor(StreamingPCA(3), contamination=0.0).partial_fit(rows) | 'contamination'
SubspaceMonitor(PCA(3)).partial_fit | partial_fit
StreamingPCA(2).partial_fit(np.array(3.0)) | 2D array
StreamingPCA(12, partial_out=[0]).partial_fit(rows[:2]) | n_components=12 must be at most 11
GROUSE(2).fit(rows).score(rows, sample_weight=np.zeros(600)) | sample_weight must have a positive
SubspaceMonitor(StreamingPCA(3)).fit(lost); SubspaceMonitor(StreamingPCA(3)).partial_fit(lost) |\
 rows without NaN for StreamingPCA | got none
SubspaceMonitor(StandardScaler()).fit(rows) | StandardScaler has no components_
SubspaceMonitor(kernel).fit(rows) | has no components_
SubspaceMonitor.from_subspace(empty(9), 3) | at least one row
SubspaceMonitor(StreamingPCA(3, partial_out=[0])).fit(rows) | partial_out=None | give the monitor
SubspaceMonitor.from_estimator(StreamingPCA(2, partial_out=[0]).fit(rows)) | partial_out=None
CommunicationDisplay.from_estimator(StreamingPCA(2).fit(rows)) | communication_, got StreamingPCA
plane((0, 3)); plane((0,)); plane((-1, 0)) | components must be two of 0 to 2
LoadingsDisplay.from_estimator(pca, kind="pie") | kind must be 'circle' or 'bars', got 'pie'
private_scores(pca, rows, gauss); private_scores(PCA(2).fit(rows), rows, gauss) | with a mechanism
VerticalFederatedPCA(1, feature_groups=[["x"]]).fit(frame) | feature_groups must | got 'x'.
FederatedPCA(2, mechanism=hidden).fit(rows).remove(0) | sum of all clients only; none can be
private_scores(noisy, rows, gauss, components=(0, 3)) | components must be two of 0 to 2, got (0, 3)
merge_subspaces(summaries(0, mean=[0, -1e155, 0])) | =5, scatter=1 and a mean of up to 1e+155
merge_subspaces(summaries(n_samples=1e300), weights=[1, 1e10]) | subspaces[1] (site 'south'): wei
merge_subspaces([empty(3), empty(4)._replace(site="south")]) | [1] (site 'south') has 4 feat
merge_subspaces([empty(3), empty(3, centered=False)._replace(site="a")]) | all not centred | 'a'
merge_subspaces([empty(3), 5]) | got int as subspaces[1]
FederatedScaler.from_subspaces(flat, mechanism=ScalerNoise(inf, 1e-5)) | mechanism must be None for
scaled((1.0, 1.0)); scaled((0.0, 1.0)); scaled(3.0); scaled((1.0, inf)) | bounds
"""
CALLS = [
    (call.replace("ERROR", function), words)
    for calls, *words in (line.split(" | ") for line in REFUSED.strip().splitlines())
    for function in ("excess_error", "reconstruction_error")[: 1 + ("ERROR" in calls)]
    for call in calls.split("; ")
]


def test_what_is_wrong_is_named():
    for call, words in CALLS:
        refused = ""
        try:
            eval(call, dict(VALUES))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            refused = str(error)
        assert refused, f"{call} is taken"
        assert all(word in refused for word in words), f"{call}: {refused}"
