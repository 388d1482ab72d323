"""Base class of the trackers by STMiss that find outliers."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from sklearn.utils._param_validation import StrOptions

from .._base.fitted import LEARNT, computed
from .._kernels.sizes import slices_of
from .._validation.intervals import Interval
from ._decomposition import DecompositionMixin
from ._outliers import find_outliers
from ._stmiss import State
from ._stmiss_tracker import STMissTracker

# Rows for each component from which on AltProj tells outliers well.
ALTPROJ_ROWS = 5
# Rows that are searched for outliers at once, outside `fit`.
_ROWS_AT_ONCE = 64


class OutlierTracker(DecompositionMixin, STMissTracker):
    """Base of the trackers that find outliers and then treat them as missing entries.

    A subclass marks them in `_without_outliers`, and notes mask and threshold in the state.
    """

    _parameter_constraints: dict = {
        **STMissTracker._parameter_constraints,
        "init": [StrOptions({"altproj", "svd"}), "array-like"],
        "init_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "xi": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
        "support_threshold": [StrOptions({"auto"}), Interval(Real, 0, None, closed="left")],
    }
    outlier_mask_: Any = computed()
    support_threshold_: Any = computed()
    init_size: int | Literal["auto"]
    xi: float | Literal["auto"]
    support_threshold: float | Literal["auto"]

    def _block_rows(self, d: int, first: bool = True) -> int:
        size = super()._block_rows(d, first)
        if not (first and self._by_altproj):
            return size
        if self.init_size == "auto":
            return max(size, ALTPROJ_ROWS * self._rank(d), 100)
        return self.init_size

    @property
    def _by_altproj(self) -> bool:
        """Whether the first basis is that of the first batch without its outliers."""
        return isinstance(self.init, str) and self.init == "altproj"

    def _begin_batch(self, stream: Any, n: int, labels: Any) -> State:
        self._masks: list[Any] = []  # of one block after the other
        return super()._begin_batch(stream, n, labels)

    def _after_block(self, state: State, full: bool) -> None:
        super()._after_block(state, full)
        self._masks = [*self._masks, state.outliers]

    def _show(self, state: State, n_rows: int, dtype: np.dtype) -> None:
        super()._show(state, n_rows, dtype)
        # of the rows of the last batch
        new = n_rows - vars(self)[LEARNT].state.n_before
        self.outlier_mask_ = np.concatenate(self._masks)[-new:]
        self.support_threshold_ = np.array(state.threshold)

    # ---------------------------------------------------------------- new rows

    def _usable(self, X: Any) -> np.ndarray:
        return self._outliers_removed(X)

    def _outliers_removed(self, X: Any) -> np.ndarray:
        U = X.toarray() if sp.issparse(X) else X.copy()
        V, mean = self._float64_model()
        least = known_thresholds(self.support_threshold_)
        with np.errstate(over="ignore", invalid="ignore"):  # of values near the largest float
            for at in slices_of(len(U), _ROWS_AT_ONCE):
                mask, _ = find_outliers(U[at] - mean, V, self.xi, self.support_threshold, least)
                U[at][mask] = np.nan
        return U


def known_thresholds(threshold: np.ndarray | None) -> np.ndarray | None:
    """Thresholds of the columns, None if no batch was searched yet."""
    return None if threshold is None or not threshold.any() else threshold
