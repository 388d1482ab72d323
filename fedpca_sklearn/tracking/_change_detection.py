"""When a tracker keeps its subspace, and when it begins to update again (NORST)."""

from __future__ import annotations

from dataclasses import replace
from numbers import Real
from typing import Literal

from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import StrOptions

from .._validation.intervals import AT_LEAST_ONE, Interval
from .._validation.parameters import allowed, with_parameters
from ._stmiss import State

__all__ = ["ChangeDetection"]

# A change: the residuals' largest eigenvalue against that of the last update, and against the
# largest eigenvalue of the rows, below which residuals are rounding errors.
_CHANGE = 2.0
_ROUNDING = 1e-16
# Changes that are remembered.
_CHANGES_KEPT = 1000


@with_parameters
class ChangeDetection(BaseEstimator):
    """Detection of changes of the subspace, for the parameter ``detect_changes`` of a tracker.

    After some updates the subspace is kept, until rows do not fit it any more, much as NORST [1]_
    does. Parameters are searched as ``detect_changes__n_updates``.

    Parameters
    ----------
    n_updates : int, default=20
        Updates after the first batch and after each change; K of [1]_.
    threshold : float or "auto", default="auto"
        Largest eigenvalue of the residuals' second-moment matrix, in units of the rows squared,
        from which on a change is detected; omega_evals of [1]_. "auto": twice that of the last
        update, which is also looked for between updates.

    See Also
    --------
    SubspaceTracker, RobustSubspaceTracker, FederatedSubspaceTracker : Use it.

    References
    ----------
    .. [1] P. Narayanamurthy et al., "Provable subspace tracking from missing data and matrix
       completion", IEEE Transactions on Signal Processing 2019 (NORST).

    Examples
    --------
    >>> from fedpca_sklearn import ChangeDetection, SubspaceTracker, make_subspace_stream
    >>> stream = make_subspace_stream(2000, 200, 5, model="piecewise", random_state=0)
    >>> changes = ChangeDetection(n_updates=10)
    >>> SubspaceTracker(5, detect_changes=changes).fit(stream.X).change_points_
    array([1000])
    """

    n_updates: int = allowed(AT_LEAST_ONE, default=20)
    # of squares of rows, which may be as large as 1e100
    threshold: float | Literal["auto"] = allowed(
        StrOptions({"auto"}), Interval(Real, 0, 1e200, closed="both"), default="auto"
    )

    def validate(self) -> None:
        """Raise a ValueError that names a wrong parameter; trackers call it before they start."""
        self._validate_params()

    def _after(
        self, state: State, level: float, batch_size: int, margin: float = 0.0
    ) -> tuple[State, bool]:
        """Look for a change: the next state, and whether to update.

        ``level`` is the largest eigenvalue of the residuals' second-moment matrix, which may be too
        large by ``margin``.
        """
        noted = state
        if self._has_changed(state, level - margin):
            changes = state.change_points
            if not changes or state.n_rows - changes[-1] > batch_size:  # not the rest of the last
                changes = (*changes, state.n_rows)[-_CHANGES_KEPT:]
            noted = replace(state, change_points=changes, updates_left=self.n_updates)
        elif not state.updates_left:
            return state, False
        return replace(noted, updates_left=noted.updates_left - 1, level=level), True

    def _has_changed(self, state: State, level: float) -> bool:
        if not isinstance(self.threshold, str):
            return not state.updates_left and level > self.threshold
        s, n = state.summary.singular_values, state.summary.n_samples
        rounding = _ROUNDING * float(s[0]) ** 2 / n if len(s) else 0.0
        return state.level is not None and level > max(_CHANGE * state.level, rounding)
