"""How a monitor learns: rows scored, moved within limits, handed on; and what is kept."""

from __future__ import annotations

import warnings
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.special import chdtrc
from scipy.stats import betabinom
from sklearn.base import clone
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from .._base.adjusting import adjusts, untruncated_model
from .._base.batches import are_bounded_rows
from .._base.fitted import FittedState
from .._dask import refuse_dask
from .._validation.checks import check_finite, check_weight
from .._validation.containers import validate_data
from ..summary import Subspace
from ._model import MonitorModel

# T2 looks where single rows are the least surprising; of whole rows it is a part of the distance,
# too. So its p-value counts twice, as those of its family in a weighted Bonferroni correction.
_LESS = np.array([0.0, np.log(2), 0.0])
# Share of the scores that the tail stands for, and least number of them.
_TAIL, _LEAST_TAIL = 0.1, 10
# Where the line of the tail ends, in its means.
_FAR = 1e100
# Steps of the level, as a share of it: 0.005 at a level of 0.05. Rows that one limit has judged
# count as so many at most. The level falls so many times below zero at most, from where it takes as
# many rows to come back as scores are kept.
_STEP, _MOST_AT_ONCE, _FLOOR = 0.1, 200, 20
# Windows without drift whose numbers vary as those of independent rows, supposed before the first.
_WINDOWS = 8
# Quantile of the beta-binomial law, which takes half a row's time and changes once in many rows.
_most_of = lru_cache(maxsize=64)(betabinom.isf)
# Share of a window of which all rows may be flagged together: windows just below an alarm, one
# after the other, could otherwise raise the number until no change gives an alarm.
_TOGETHER = 0.1


@dataclass(frozen=True, eq=False)
class ByVariances:
    """p-values as the variances have them: those of Q and T2, either with the same ``limit``.

    Below it T2 counts less, as rows that are near in the subspace are not usual for that.
    """

    limit: float

    def combined(self, surprises: np.ndarray) -> np.ndarray:
        """One number for each row, from minus the logarithms of p-values, (n, 3)."""
        t2 = surprises[:, 1] * np.minimum(surprises[:, 1] / self.limit, 1.0) ** 2
        return np.maximum(surprises[:, 0], t2)

    def parts(self, combined: float) -> np.ndarray:
        """The surprise of each kind at which `combined` is this, which is the limit or more."""
        return np.array([combined, combined, np.inf])


@dataclass(frozen=True, eq=False)
class ByScores:
    """p-values by the ranks among those of recent rows, continued by an exponential tail.

    Each of the three kinds has a line of corners ``surprises`` (m, 3), 0 first and one far away
    last, and ``heights`` (m,), minus the logarithms of the shares of rows above.
    """

    surprises: np.ndarray
    heights: np.ndarray

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")  # of infinite ones
    def of(cls, values: np.ndarray) -> ByScores:
        """Of recent rows (m, 3)."""
        m = len(values)
        ordered = np.concatenate([np.zeros((1, 3)), np.sort(values, axis=0)])
        heights = -np.log(np.arange(m + 1, 0, -1) / (m + 1))
        first = m - min(max(int(_TAIL * m), _LEAST_TAIL), m - 1)
        before = max(2 * first - m, 0)  # not from the tail itself, in which there may be outliers
        mean = (ordered[first] - ordered[before]) / (heights[first] - heights[before])
        far = ordered[first] + np.where(mean > 0, mean, 1.0) * _FAR
        corners = np.concatenate([ordered[: first + 1], far[None]])
        return cls(corners, np.append(heights[: first + 1], heights[first] + _FAR))

    def combined(self, surprises: np.ndarray) -> np.ndarray:
        """The largest of the three for each row, as minus the logarithm of a p-value."""
        found = np.empty(surprises.shape)
        for j in range(3):
            found[:, j] = np.interp(surprises[:, j], self.surprises[:, j], self.heights)
        return np.where(surprises > 0, found - _LESS, 0.0).max(axis=1, initial=0.0)

    def parts(self, combined: float) -> np.ndarray:
        """The surprise of each kind at which `combined` is this."""
        heights, ordered = combined + _LESS, self.surprises
        return np.array([np.interp(heights[j], self.heights, ordered[:, j]) for j in range(3)])


def upper(values: np.ndarray, level: float) -> float:
    """What another value like these exceeds with a probability of at most ``level``.

    The ceil((m + 1) (1 - level))-th smallest of m, which is exact for values without ties whose
    order is random, whatever their distribution is. Infinity where m is too small.
    """
    m = len(values)
    rank = max(int(np.ceil((m + 1) * (1 - level) * (1 - 1e-12))), 1)
    return float(np.partition(values, rank - 1)[rank - 1]) if rank <= m else np.inf


@dataclass(frozen=True)
class Limit:
    """Above which combined p-values are flagged; it rests on ``n_rows`` rows.

    ``level`` is that of the quantile. It grows while fewer rows are flagged than ``contamination``
    says, and falls while more are (adaptive conformal inference, Gibbs and Candes 2021), so that
    the share is right also while scores become smaller or larger.
    """

    value: float
    level: float
    n_rows: float

    def after(self, flagged: np.ndarray, contamination: float) -> Limit:
        """The same with the level after more rows, which were flagged or not by this limit."""
        counted = min(1.0, _MOST_AT_ONCE / max(len(flagged), 1))
        step = counted * _STEP * contamination * np.sum(contamination - flagged)
        return replace(self, level=float(np.clip(self.level + step, -_FLOOR * contamination, 0.5)))

    def by(self, combined: np.ndarray) -> Limit:
        """By recent rows: their quantile, or the largest where it is beyond them."""
        value = min(upper(combined, max(self.level, 0.0)), float(combined.max()))
        return Limit(value, self.level, len(combined))


@dataclass(frozen=True, eq=False)
class RecentScores:
    """The p-values of the last half of the rows since limits began, at most ``size`` of them.

    Half of the rows, so that what was scored while the model was still learning is forgotten as
    fast as it was learnt; ``enough`` of them, if there are as many. ``n_new`` rows have come, of
    which ``n_flagged`` were flagged, since limits were last taken from these.
    """

    size: int
    enough: int
    values: np.ndarray
    n_rows: int = 0
    n_new: int = 0
    n_flagged: int = 0

    def extended(self, values: np.ndarray, n_flagged: int = 0) -> RecentScores:
        """These and the values of more rows."""
        more, n_rows = len(values), self.n_rows + len(values)
        kept = max(min(n_rows // 2, self.size), self.enough)
        values = np.concatenate([self.values, values])[-kept:]
        n_flagged += self.n_flagged
        return RecentScores(self.size, self.enough, values, n_rows, self.n_new + more, n_flagged)

    def begun(self, values: np.ndarray) -> RecentScores:
        """With values of rows that one model has scored, all of which count."""
        n = 2 * len(values)
        return replace(self, values=values[-self.size :], n_rows=n, n_new=n)


@dataclass(frozen=True)
class DriftTest:
    """Whether more rows of a window are flagged than a limit that holds would flag.

    Windows of ``window`` rows follow each other. Where a limit rests on m rows, the number of
    flagged rows in a window is beta-binomial, and a window without drift gives an alarm with a
    probability of at most ``level``. Where flagged rows come together, numbers vary more: then m is
    what makes their variance that of the windows so far, ``n_windows`` without an alarm of which
    ``spread`` is the sum of squared deviations, over the variance of rows that are independent. An
    alarm comes as soon as the number is reached. It lasts until a window is without one; meanwhile
    there is no other.
    """

    window: int
    level: float
    n_rows: int = 0
    n_flagged: int = 0
    n_total: int = 0
    lasts: bool = False
    points: tuple[int, ...] = ()
    n_windows: int = 0
    spread: float = 0.0

    def after(
        self, flagged: np.ndarray, contamination: float, m: float, n: int | None = None
    ) -> DriftTest:
        """The state after n rows, of which the first were flagged or not by a limit of m rows.

        The others are not counted, and rows after an alarm not taken, as their limit is that of
        before.
        """
        n = len(flagged) if n is None else n
        most = self._most(contamination, m)
        now = replace(self, n_total=self.n_total + n)
        rows, n_flagged, lasts = self.n_rows, self.n_flagged, self.lasts
        for i, row in enumerate(flagged, 1):
            rows, n_flagged = rows + 1, n_flagged + int(row)
            if n_flagged > most and not lasts:
                at = self.n_total + i
                points = (*self.points, at)[-1000:]
                return replace(now, n_total=at, n_rows=0, n_flagged=0, lasts=True, points=points)
            if rows == self.window:
                lasts = lasts and n_flagged > most
                if not lasts:  # a window without an alarm
                    usual = contamination * self.window
                    square = (n_flagged - usual) ** 2 / (usual * (1 - contamination))
                    now = replace(now, n_windows=now.n_windows + 1, spread=now.spread + square)
                rows = n_flagged = 0
        return replace(now, n_rows=rows, n_flagged=n_flagged, lasts=lasts)

    def _most(self, contamination: float, m: float) -> int:
        """Flagged rows of a window up to which there is no alarm."""
        times = (_WINDOWS + self.spread) / (_WINDOWS + self.n_windows)
        times = min(times, _TOGETHER * self.window)
        if times > 1:
            m = min(m, max((self.window - times) / (times - 1), 0.0))
        alpha, beta = contamination * (m + 1), (1 - contamination) * (m + 1)
        return int(_most_of(self.level, self.window, alpha, beta))


# Every so many-th run of rows is held out, and so often, for quantiles of scores of new rows; and
# roots of the number of rows in a run. A row by itself is too near to rows before and after it.
_FOLDS, _RUN = 5, 2
# Probability with which rows in any order are said to come in bursts.
_ALIKE = 1e-3
# Of rows in a stream that come a few at a time, so many are scored by one model; at first a 50th of
# those before. The same of the scores on which limits rest.
_ROWS_A_MODEL = 50
# Limits of rows that come one by one wait for so many rows where many of these are flagged.
_HOLD = 20
# After an alarm rows are scored so many at a time, or a tenth of those since it, so that the model
# learns what has changed as it would by small calls.
_SINCE = 10
# Scores are finite, also of rows whose squares overflow.
_MOST_UNLIKE = 1e200


def independent_copy(fitted: Any) -> Any:
    """A copy of an estimator that goes on without changing it."""
    return copy(fitted) if isinstance(fitted, FittedState) else deepcopy(fitted)


def unlike_of(monitor: Any, surprises: np.ndarray) -> np.ndarray:
    """Minus the logarithms of combined p-values."""
    return np.minimum(monitor._scale.combined(surprises), _MOST_UNLIKE)


def limits_of(monitor: Any, model: MonitorModel, size: np.ndarray) -> np.ndarray:
    """Limits of the three distances of rows with so many entries, (n, 3)."""
    return model.limits(monitor._scale.parts(monitor._limit.value), size)


def take_all(monitor: Any, X: Any, y: Any, **given: Any) -> None:
    """Fit a clone of the estimator to rows, and find the limits."""
    monitor._validate_params()
    X = checked_rows(monitor, X, reset=True)
    extra = _handed_on(monitor, X.shape[0], **given)
    fitted, n = _fitted(monitor, "fit", X, y, extra)
    model, scores = model_of(monitor, fitted, n), []
    # a mechanism has no account of more fits
    if monitor.limits == "quantile" and getattr(monitor.estimator, "mechanism", None) is None:
        scores = _held_out_scores(monitor, X, extra, len(fitted.components_))
    begin(monitor, fitted, model)
    if scores:
        of_all = np.concatenate(scores)
        monitor._scores = monitor._scores.begun(of_all)
        _renew_limits(monitor)
        flagged = unlike_of(monitor, of_all) > monitor._limit.value
        n_windows, spread = _bursts(monitor.contamination, flagged, np.array([*map(len, scores)]))
        monitor._drift = replace(monitor._drift, n_windows=n_windows, spread=spread)


def take(monitor: Any, X: Any, y: Any, **given: Any) -> None:
    """Score rows by the model of those before, and hand them to the estimator."""
    first = not hasattr(monitor, "estimator_")
    monitor._validate_params()
    for name in () if first else ("window", "level"):
        was, value = getattr(monitor._drift, name), getattr(monitor, f"drift_{name}")
        if value != was:
            raise ValueError(
                f"drift_{name}={value!r} differs from {was!r} for the rows seen before; call fit "
                "to start again."
            )
    X = checked_rows(monitor, X, reset=first)
    extra = _handed_on(monitor, X.shape[0], **given)
    if first:
        fitted, n = _fitted(monitor, "partial_fit", X, y, extra)
        begin(monitor, fitted, model_of(monitor, fitted, n))
        monitor.recent_scores_ = np.full(X.shape[0], np.nan)
        return
    scores: list[np.ndarray] = []
    while X.shape[0]:
        drift, most = monitor._drift, X.shape[0]
        if drift.points:
            most = max(_HOLD, (drift.n_total - drift.points[-1]) // _SINCE)
        few = slice(most)
        known = {name: value[few] for name, value in extra.items()}
        scores.append(_taken(monitor, X[few], y, known))
        n = len(scores[-1])
        X, extra = X[n:], {name: value[n:] for name, value in extra.items()}
    monitor.recent_scores_ = np.concatenate(scores)


def _taken(monitor: Any, X: Any, y: Any, extra: dict[str, Any]) -> np.ndarray:
    """Score rows and hand them on, up to one that gives an alarm; their scores."""
    if monitor._behind >= min(_ROWS_A_MODEL, monitor._model.n_samples / _ROWS_A_MODEL):
        _catch_up(monitor)
    distances, size = monitor._model.distances(X)
    surprises = monitor._model.surprises(distances, size)
    unlike = unlike_of(monitor, surprises)
    rows = _within_limits(monitor, X, unlike, distances, size)
    counts = extra.get("sample_weight", np.ones(len(unlike))) > 0
    taken = slice(_note(monitor, unlike, surprises, counts))
    rows, extra = rows[taken], {name: value[taken] for name, value in extra.items()}
    learnt = _learnt(monitor, rows)
    rows, extra = rows[learnt], {name: value[learnt] for name, value in extra.items()}
    if rows.shape[0]:
        monitor.estimator_ = independent_copy(monitor.estimator_)
        monitor.estimator_.partial_fit(rows, y, **extra)
        monitor._behind, monitor._newest = monitor._behind + rows.shape[0], {}
    return -unlike[taken]


def _fitted(monitor: Any, method: str, X: Any, y: Any, extra: dict[str, Any]) -> tuple[Any, int]:
    """A fitted clone of the estimator, and the number of rows it was given."""
    learnt = _learnt(monitor, X)
    if isinstance(learnt, np.ndarray):
        if not learnt.any():
            raise ValueError(
                f"X must have rows without NaN for {type(monitor.estimator).__name__}, which "
                "takes no missing entries, got none. SubspaceTracker and PETRELS take them."
            )
        X, extra = X[learnt], {name: value[learnt] for name, value in extra.items()}
    return getattr(clone(monitor.estimator), method)(X, y, **extra), X.shape[0]


def _learnt(monitor: Any, X: Any) -> Any:
    """Which rows the estimator is given: those without NaN, or all if it takes missing ones."""
    values = X.data if sp.issparse(X) else X
    if not np.isnan(values).any() or get_tags(monitor.estimator).input_tags.allow_nan:
        return slice(None)
    if not sp.issparse(X):
        return ~np.isnan(X).any(axis=1)
    holes = sp.csr_array((np.isnan(values), X.indices, X.indptr), X.shape)
    return np.asarray(holes.sum(axis=1)).ravel() == 0


def _note(monitor: Any, unlike: np.ndarray, surprises: np.ndarray, counts: np.ndarray) -> int:
    """Keep what is to be known of rows that were scored, and renew the limits.

    The number of rows up to an alarm, or of all; those that do not count have no weight.
    """
    rows = np.flatnonzero(counts)
    unlike, surprises = unlike[rows], surprises[rows]
    flagged = unlike > monitor._limit.value
    by_scores = isinstance(monitor._scale, ByScores)
    m = monitor._limit.n_rows if by_scores else monitor._model.n_samples
    counted = flagged
    if monitor.limits == "quantile" and not by_scores:  # one row later there were quantiles
        counted = flagged[: max(monitor._scores.enough - len(monitor._scores.values), 0)]
    drift = monitor._drift.after(counted, monitor.contamination, m, len(flagged))
    alarm = drift.points is not monitor._drift.points
    n = drift.n_total - monitor._drift.n_total
    monitor._drift = drift
    if monitor.limits == "quantile":
        monitor._limit = monitor._limit.after(flagged[:n], monitor.contamination)
        if alarm:
            monitor._scores, surprises, flagged = _no_scores(monitor), surprises[:0], flagged[:0]
        monitor._scores = monitor._scores.extended(surprises, int(flagged.sum()))
        _renew_limits(monitor)
    return int(rows[n - 1]) + 1 if alarm else len(counts)


def _renew_limits(monitor: Any) -> None:
    """Take p-values and their limit from the scores, if they are enough and many are new.

    Not where an alarm may be about to come: the first rows of a change would hide the others.
    After an alarm, until they are enough, a row is flagged that is above the limit of before
    and above all rows since.
    """
    values, n, new = monitor._scores.values, monitor._scores.n_rows, monitor._scores.n_new
    if len(values) >= monitor._scores.enough:
        many = new < _HOLD and not monitor._drift.lasts and monitor._scores.n_flagged > 3 + new / 10
        if new >= min(_ROWS_A_MODEL, max(n / _ROWS_A_MODEL, 10)) and not many:
            monitor._scale = ByScores.of(values)
            monitor._limit = monitor._limit.by(monitor._scale.combined(values))
            monitor._scores = replace(monitor._scores, n_new=0, n_flagged=0)
    elif len(values) and monitor._drift.points:
        most = float(monitor._scale.combined(values).max())
        monitor._limit = replace(monitor._limit, value=max(monitor._limit.value, most))


def _no_scores(monitor: Any) -> RecentScores:
    size = int(np.ceil(200 / monitor.contamination))
    return RecentScores(size, _enough(monitor), np.empty((0, 3)))


def begin(monitor: Any, fitted: Any, model: MonitorModel) -> None:
    monitor.estimator_ = fitted
    monitor._model, monitor._behind, monitor._newest = model, 0, {}
    monitor._first_basis = fitted.components_.copy()
    scale = ByVariances(-float(np.log(model.level)))
    monitor._scores, monitor._scale = _no_scores(monitor), scale
    monitor._limit = Limit(scale.limit, monitor.contamination, model.n_samples)
    monitor._drift = DriftTest(monitor.drift_window, monitor.drift_level)
    monitor.recent_scores_ = np.empty(0)


def model_of(monitor: Any, fitted: Any, n_samples: int | None = None) -> MonitorModel:
    """The model of an estimator; ``n_samples`` is for those that do not know it."""
    if hasattr(fitted, "confounders_"):
        raise ValueError(
            f"estimator must have partial_out=None, got {monitor.estimator!r}; give the monitor "
            "rows without the effects of confounders."
        )
    if getattr(getattr(fitted, "merge", None), "center", "all") == "site":
        raise ValueError(
            f"estimator must have a merge with center='all', got {monitor.estimator!r}: limits "
            "within sites are not those of rows about the mean of all; give the monitor rows "
            "minus the mean of their site."
        )
    for name in ("n_samples_seen_", "n_samples_"):
        n_samples = getattr(fitted, name, n_samples)
    subspace, scale = Subspace.from_estimator(fitted, n_samples=n_samples), None
    mean = subspace.mean
    if adjusts(fitted) and fitted.scale:
        subspace, scale = untruncated_model(fitted), fitted.scale_
    return MonitorModel.of(fitted.components_, subspace, monitor.contamination, mean, scale)


def _catch_up(monitor: Any) -> None:
    """Take the model from the estimator, which has learnt rows since."""
    monitor._model, monitor._behind, monitor._newest = model_now(monitor), 0, {}
    begins = isinstance(monitor._scale, ByVariances) and not monitor._drift.points
    if monitor.limits == "chi2" or begins:
        monitor._scale = ByVariances(-float(np.log(monitor._model.level)))
        monitor._limit = replace(monitor._limit, value=monitor._scale.limit)


def _within_limits(
    monitor: Any, X: Any, unlike: np.ndarray, distances: np.ndarray, size: np.ndarray
) -> Any:
    """Rows, of which those above the limit are moved towards the mean until they are at it."""
    flagged = np.flatnonzero(unlike > monitor._limit.value)
    if not len(flagged):
        return X
    limits = limits_of(monitor, monitor._model, size[flagged])
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.sqrt(np.fmin.reduce(limits / distances[flagged], axis=1))[:, None]
    mean, factor = monitor._model.mean, np.minimum(factor, 1.0)
    if not sp.issparse(X):
        X = X.copy()
        X[flagged] = mean + factor * (X[flagged] - mean)
        return X
    moved = sp.csr_array(mean + factor * (X[flagged].toarray() - mean))
    others = np.setdiff1d(np.arange(X.shape[0]), flagged)
    order = np.argsort(np.concatenate([others, flagged]))
    return sp.csr_array(sp.vstack([X[others], moved]))[order]


def _held_out_scores(monitor: Any, X: Any, extra: dict[str, Any], least: int) -> list[np.ndarray]:
    """p-values of each run of rows by a model of others; none if these are at most ``least``."""
    n, enough = X.shape[0], _enough(monitor)
    step = max(_FOLDS, n // (100 * enough))
    if n < enough or n - n // step <= least:
        return []
    scores: list[np.ndarray] = []
    runs = np.arange(n) // round(min(_RUN * np.sqrt(n), n / step))
    weight = extra.get("sample_weight", np.ones(n))
    for first in range(min(step, int(np.ceil(100 * enough * step / n)))):
        out = runs % step == first
        parts = extra and {name: value[~out] for name, value in extra.items()}
        try:
            fitted, m = _fitted(monitor, "fit", X[~out], None, parts)
            model = model_of(monitor, fitted, m)
        except ValueError:  # too few rows without NaN, of a site, or with a weight
            return []
        counted = np.flatnonzero(out & (weight > 0))
        if len(counted):
            found = model.surprises(*model.distances(X[counted]))
            scores += np.split(found, np.flatnonzero(np.diff(runs[counted])) + 1)
    return scores


def _bursts(contamination: float, above: np.ndarray, sizes: np.ndarray) -> tuple[int, float]:
    """Degrees of freedom of the runs that were held out, and the spread of numbers above the limit.

    As windows and spread of a `DriftTest`. Warns where rows above come together in some runs.
    """
    flagged = np.add.reduceat(above, np.cumsum(sizes) - sizes, dtype=int)
    n, share, degrees = len(above), above.mean(), len(sizes) - 1
    if not degrees or not 0 < share < 1:
        return 0, 0.0
    spread = np.sum((flagged - share * sizes) ** 2 / (share * (1 - share) * sizes))
    if chdtrc(degrees, spread) < _ALIKE:
        warnings.warn(
            f"rows that differ from the others come together in X: for the limits its {n} rows say "
            f"as much as {max(n * degrees / spread, 1):.0f} would in any order, and of new ones "
            f"more or fewer than contamination={contamination:g} may be flagged. Fit more rows.",
            UserWarning,
            stacklevel=2,
        )
    return degrees, float(spread)


def _enough(monitor: Any) -> int:
    return int(np.ceil(2 / monitor.contamination))


def check_fitted(monitor: Any) -> None:
    if "estimator_" not in vars(monitor):
        check_is_fitted(monitor)  # the error


def model_now(monitor: Any) -> MonitorModel:
    """The model of all rows; rows to come are scored as if nobody had asked."""
    check_fitted(monitor)
    if not monitor._behind:
        return monitor._model
    by, known = monitor.contamination, monitor._newest
    if by not in known:
        n_samples = int(monitor._model.n_samples) + monitor._behind
        known[by] = model_of(monitor, monitor.estimator_, n_samples)
    return known[by]


def _handed_on(monitor: Any, n: int, **given: Any) -> dict[str, Any]:
    """What the estimator is given for each row beside the rows, as arrays."""
    given["sample_weight"] = check_weight(given["sample_weight"], n, positive=True)
    taken = {name: np.asarray(value) for name, value in given.items() if value is not None}
    for name, value in taken.items():
        if not has_fit_parameter(monitor.estimator, name):
            kind = type(monitor.estimator).__name__
            raise ValueError(f"{name} is given, but fit of the estimator {kind} takes none.")
        if value.shape != (n,):
            got = value.shape if value.ndim else repr(given[name])
            raise ValueError(f"{name} must have shape ({n},), got {got}.")
    return taken


def checked_rows(monitor: Any, X: Any, reset: bool = False) -> Any:
    """Rows of floats, dense or CSR."""
    if not reset:
        fitted = vars(monitor)
        if "feature_names_in_" not in fitted and are_bounded_rows(X, fitted["n_features_in_"]):
            return X
    refuse_dask(monitor, X)
    sparse = "csr" if get_tags(monitor.estimator).input_tags.sparse else False
    checks = {"accept_sparse": sparse, "dtype": [np.float64, np.float32]}
    X = validate_data(monitor, X, reset=reset, ensure_all_finite=False, **checks)
    check_finite(X, allow_nan=True)
    return X
