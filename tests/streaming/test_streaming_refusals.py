"""What a stream cannot be given, or what cannot change on the way, is named and changes nothing.

Each line has a model or a class, a call of it, and words of the error.
"""

import numpy as np
import pandas as pd
from golden_cases import NAMES
from helpers import assert_refused

from fedpca_sklearn import PAST, StreamingPCA, Subspace
from fedpca_sklearn.base import Tracker


class Unbegun(Tracker):
    """A rule that does not say how it begins."""

    def __init__(self, n_components=1, *, center=True):
        self.n_components = n_components
        self.center = center

    def _updated(self, state, Z):
        return state

    def _basis(self, state):
        return state


X = np.random.default_rng(0).standard_normal((200, 6)) * [6, 5, 4, 3, 2, 1] + 7
TIMES = np.datetime64("2026-03-01T12:00:00", "s") + np.arange(200).astype("m8[m]")
HOUR, FRAME = {"half_life": "1h"}, pd.DataFrame(X[:, :3], columns=list("abc"))
TIMED = StreamingPCA(3, **HOUR).fit(X[:100], times=TIMES[:100])
VALUES = {
    **NAMES,
    "pd": pd,
    "Unbegun": Unbegun,
    "X": X,
    "FRAME": FRAME,
    "TIMES": TIMES,
    "NAT": np.where(np.arange(200) == 7, np.datetime64("NaT", "s"), TIMES),
    "TIMED": TIMED.partial_fit(X[100:101], times=TIMES[100:101]),  # a row that waits
    "TIMED_PAST": PAST(3, **HOUR).fit(X[:100], times=TIMES[:100]),
    "WHOLE": Subspace.from_rows(np.eye(3)),
}
TABLE = """
StreamingPCA(3, half_life="1 hour") | fit(X, times=TIMES) | half_life must be | got '1 hour'
PAST(3, half_life="0h") | fit(X, times=TIMES) | half_life must be
PETRELS(3, half_life=np.timedelta64("NaT", "s")) | fit(X, times=TIMES) | half_life must be
SPIRIT(3, half_life=-3) | fit(X) | 'half_life' parameter
StreamingPCA(3, half_life=3, forgetting_factor=0.5) | fit(X) | forgetting_factor must be | a half_life
StreamingPCA(3, half_life=3, forgetting="blocks") | fit(X) | forgetting must be 'rows' with
StreamingPCA(3, half_life="1h") | fit(X) | half_life='1h' needs times, one for each row, got None
PAST(3, half_life="1h") | partial_fit(X) | half_life='1h' needs times, one for each row, got None
StreamingPCA(3, half_life="1h") | fit(X, times=TIMES[1:]) | one time per row, shape (200,), got (199,)
PAST(3, half_life="1h") | partial_fit(X, times=TIMES[:, None]) | one time per row
StreamingPCA(3, half_life="1h") | fit(X, times=NAT) | times must not be missing, got NaT at row 7
StreamingPCA(3, half_life="1h") | fit(X, times=np.arange(200.0)) | times must be datetime64 | got float64
StreamingPCA(3, half_life="1h") | fit(X, times=pd.PeriodIndex(TIMES, freq="min")) | must be datetime64 | got Period
StreamingPCA(3, half_life="1h") | fit(X, times=["noon"] * 200) | times must be datetime64
PAST(3, half_life="1h") | fit(X, times=TIMES[::-1]) | times must not decrease | at row
PAST(3, half_life=5) | fit(X, times=TIMES) | half_life=5 is not a time, as '1h' is
StreamingPCA(3) | fit(X, times=TIMES) | half_life=None is not a time
TIMED | fit(iter([X]), times=TIMES) | X is an iterable of batches
TIMED | partial_fit(X[:1]) | needs times
TIMED | partial_fit(X[:1], times=NAT[7:8]) | got NaT at row 0
TIMED | partial_fit(X[:1], times=TIMES[:2]) | shape (1,), got (2,)
TIMED | refine(X) | half_life='1h' must be None to refine
TIMED_PAST | partial_fit(X[:1], times=TIMES[:1]) | not decrease | at row 0
TIMED_PAST | partial_fit(X[:1]) | needs times
TIMED_PAST | partial_fit(iter([X]), times=TIMES) | X is an iterable of batches
StreamingPCA(3).fit(X).set_params(half_life="1h") | partial_fit(X, times=TIMES) | rows seen before came without times
PAST(3).fit(X).set_params(half_life="1h") | partial_fit(X, times=TIMES) | rows seen before came without times
SubspaceTracker(3, half_life="1h") | fit(X) | half_life must be a number of rows | count the same
RobustSubspaceTracker(3, half_life="1h") | partial_fit(X, times=TIMES) | times cannot be given to RobustSubspaceTracker: | half_life must be a number of rows | got half_life='1h'.
FederatedSubspaceTracker(3, half_life="1h") | fit(X, times=TIMES) | times cannot be given to FederatedSubspaceTracker: | got half_life='1h'.
StreamingPCA | from_subspace(np.eye(3)) | must be Subspace objects, got ndarray
StreamingPCA | from_subspace(Subspace.empty(3)) | at least one row
StreamingPCA | from_subspace(WHOLE, 4) | n_components=4 must be at most
StreamingPCA | from_subspace(WHOLE, -1) | n_components | -1
StreamingPCA | from_subspace(WHOLE, center=False) | center=False differs | the mean
StreamingPCA | from_subspace(WHOLE, n_samples_seen=0) | n_samples_seen | 0
StreamingPCA | from_subspace(WHOLE, rank_rule="a") | rank_rule
StreamingPCA | from_subspace(WHOLE, decay=1) | decay
StreamingPCA.from_subspace(Subspace.from_rows(FRAME), 2) | partial_fit(FRAME[["b", "a", "c"]]) | same order
OjaPCA(3).fit(X).set_params(n_components=4) | partial_fit(X) | n_components=4 differs from
OjaPCA(3).fit(X).set_params(batch_size=5) | partial_fit(X) | batch_size=5 differs from
GROUSE(3).fit(X).set_params(center=False) | partial_fit(X) | center=False differs from
StreamingPowerMethod(3).fit(X).set_params(block_size=7) | partial_fit(X) | block_size=7 differs from
FrequentDirections(3).fit(X).set_params(sketch_size=9) | partial_fit(X) | sketch_size=9 differs from
PAST(3).fit(X).set_params(deflation=True) | partial_fit(X) | deflation=True differs from
PETRELS(3).fit(X).set_params(init=np.eye(3, 6)) | partial_fit(X) | differs from 'rows' for the rows seen
FrequentDirections(5, sketch_size=5) | partial_fit(X) | sketch_size=5
PAST(3, init=np.eye(3, 19)) | partial_fit(X) | init must have shape (3, 6), got (3, 19)
GROUSE(3, init=np.full((3, 6), np.nan)) | partial_fit(X) | init must be finite
OjaPCA(3, init="svd") | partial_fit(X) | 'init' parameter
Unbegun() | fit(np.eye(5)) | Unbegun must write _begin, or _begin_at
StreamingPCA(3).fit(X) | refine(X + 1e-3, n_rounds=2) | whose mean is another
StreamingPCA(3).fit(X) | refine(iter([X]), n_rounds=2) | must be 1 where X is an iterator
StreamingPCA(3).fit(X) | refine(X, n_rounds=0) | n_rounds must be an integer of at least 1, got 0
StreamingPCA(3).fit(X) | refine([X], np.ones(200)) | sample_weight cannot be given
StreamingPCA(2, forgetting_factor=0.9).fit(X) | refine(X) | must be 1 to refine: rows that have faded
StreamingPCA() | refine(X) | not fitted
"""  # noqa: E501


def test_what_cannot_be_is_named_and_changes_nothing():
    assert_refused(TABLE, VALUES)
