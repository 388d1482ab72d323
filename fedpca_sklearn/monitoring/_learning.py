"""How a monitor learns: rows are scored, moved within the limits, and handed to the estimator."""

from __future__ import annotations

from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, OutlierMixin, clone
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from .._base.adjusting import adjusts, whole_model
from .._base.fitted import FittedState
from .._dask import refuse_dask
from .._kernels.bounded import are_bounded_rows
from .._validation.checks import check_finite, check_weight
from .._validation.containers import validate_data
from ..summary import Subspace
from ._model import MonitorModel
from ._recent import ByScores, ByVariances, DriftTest, Limit, RecentScores

# Every so many-th row is held out, and so often, for quantiles of scores of new rows.
_FOLDS = 5
# Of single rows in a stream, so many are scored by one model; at first a 50th of those before. The
# same of the scores on which limits rest.
_ROWS_A_MODEL = 50
# Limits of rows that come one by one wait for so many rows where many of these are flagged.
_HOLD = 20
# Scores are finite, also of rows whose squares overflow.
_MOST_UNLIKE = 1e200


def _apart(fitted: Any) -> Any:
    """A copy of an estimator that goes on without changing it."""
    return copy(fitted) if isinstance(fitted, FittedState) else deepcopy(fitted)


class LearningMixin(OutlierMixin, BaseEstimator):
    """The estimator of a monitor, and what is kept of the rows that it has scored."""

    _doc_link_module = FittedState._doc_link_module
    _doc_link_template = FittedState._doc_link_template
    estimator: Any
    contamination: float
    limits: str
    drift_window: int
    drift_level: float
    recent_scores_: np.ndarray
    estimator_: Any
    _behind: int
    _scores: RecentScores
    _drift: DriftTest
    # How p-values are combined, and the limit of what is combined.
    _scale: ByScores | ByVariances
    _limit: Limit

    def _unlike(self, surprises: np.ndarray) -> np.ndarray:
        """Minus the logarithms of combined p-values."""
        return np.minimum(self._scale.combined(surprises), _MOST_UNLIKE)

    def _limits(self, model: MonitorModel, size: np.ndarray) -> np.ndarray:
        """Limits of the three distances of rows with so many entries, (n, 3)."""
        return model.limits(self._scale.parts(self._limit.value), size)

    def _take(self, X: Any, y: Any, **given: Any) -> None:
        first = not hasattr(self, "estimator_")
        self._validate_params()
        X = self._checked(X, reset=first)
        extra = self._handed_on(X.shape[0], **given)
        if first:
            fitted, n = self._fitted("partial_fit", X, y, extra)
            self._begin(fitted, self._model_of(fitted, n))
            self.recent_scores_ = np.full(X.shape[0], np.nan)
            return
        if self._behind >= min(_ROWS_A_MODEL, self._model.n_samples / _ROWS_A_MODEL):
            self._catch_up()
        distances, size = self._model.distances(X)
        surprises = self._model.surprises(distances, size)
        unlike = self._unlike(surprises)
        rows = self._within_limits(X, unlike, distances, size)
        weight = extra.get("sample_weight")
        learnt = self._learnt(rows)
        rows, extra = rows[learnt], {name: value[learnt] for name, value in extra.items()}
        if X.shape[0] == 1:
            self._note(unlike, surprises, weight)
            if rows.shape[0]:
                self.estimator_.partial_fit(rows, y, **extra)  # last, as only this is not undone
                self._behind += 1
            return
        if rows.shape[0]:
            estimator = _apart(self.estimator_)
            estimator.partial_fit(rows, y, **extra)
            self.estimator_ = estimator
            self._behind += rows.shape[0]
            self._catch_up()
        self._note(unlike, surprises, weight)

    def _fitted(self, method: str, X: Any, y: Any, extra: dict[str, Any]) -> tuple[Any, int]:
        """A fitted clone of the estimator, and the number of rows it was given."""
        learnt = self._learnt(X)
        if isinstance(learnt, np.ndarray):
            if not learnt.any():
                raise ValueError(
                    f"X must have rows without NaN for {type(self.estimator).__name__}, which "
                    "takes no missing entries, got none. SubspaceTracker and PETRELS take them."
                )
            X, extra = X[learnt], {name: value[learnt] for name, value in extra.items()}
        return getattr(clone(self.estimator), method)(X, y, **extra), X.shape[0]

    def _learnt(self, X: Any) -> Any:
        """Which rows the estimator is given: those without NaN, or all if it takes missing ones."""
        values = X.data if sp.issparse(X) else X
        if get_tags(self.estimator).input_tags.allow_nan or not np.isnan(values).any():
            return slice(None)
        if not sp.issparse(X):
            return ~np.isnan(X).any(axis=1)
        holes = sp.csr_array((np.isnan(values), X.indices, X.indptr), X.shape)
        return np.asarray(holes.sum(axis=1)).ravel() == 0

    @contextmanager
    def _unchanged_on_error(self):
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def __getstate__(self):
        """Of a copy, whose estimator goes on without this one."""
        state = dict(super().__getstate__())
        if "estimator_" in state:
            state["estimator_"] = _apart(state["estimator_"])
        return state

    def _note(self, unlike: np.ndarray, surprises: np.ndarray, weight: np.ndarray | None) -> None:
        """Keep what is to be known of rows that were scored, and renew the limits."""
        self.recent_scores_ = -unlike
        if weight is not None:
            unlike, surprises = unlike[weight > 0], surprises[weight > 0]
        flagged = unlike > self._limit.value
        m = self._limit.n_rows if isinstance(self._scale, ByScores) else self._model.n_samples
        drift = self._drift.after(flagged, self.contamination, m)
        alarm = drift.points is not self._drift.points
        self._drift = drift
        if self.limits == "quantile":
            self._move_limits(flagged, surprises, alarm)

    def _move_limits(self, flagged: np.ndarray, surprises: np.ndarray, alarm: bool) -> None:
        """Keep the scores, those after an alarm if there was one, and move the limits."""
        at = len(flagged) - int(self._drift.since) if alarm else len(flagged)
        self._limit = self._limit.after(flagged[:at], self.contamination)
        if alarm:
            self._scores, surprises, flagged = self._no_scores(), surprises[at:], flagged[:0]
        self._scores = self._scores.extended(surprises, int(flagged.sum()))
        self._renew_limits()

    def _renew_limits(self) -> None:
        """Take p-values and their limit from the scores, if they are enough and many are new.

        Not where an alarm may be about to come: the first rows of a change would hide the others.
        After an alarm, until they are enough, a row is flagged that is above the limit of before
        and above all rows since.
        """
        values, n, new = self._scores.values, self._scores.n_rows, self._scores.n_new
        if len(values) >= self._enough:
            many = new < _HOLD and not self._drift.lasts and self._scores.n_flagged > 3 + new / 10
            if new >= min(_ROWS_A_MODEL, max(n / _ROWS_A_MODEL, 10)) and not many:
                self._scale = ByScores.of(values)
                self._limit = self._limit.by(self._scale.combined(values))
                self._scores = replace(self._scores, n_new=0, n_flagged=0)
        elif len(values) and self._drift.points:
            most = float(self._scale.combined(values).max())
            self._limit = replace(self._limit, value=max(self._limit.value, most))

    def _no_scores(self) -> RecentScores:
        return RecentScores(int(np.ceil(200 / self.contamination)), self._enough, np.empty((0, 3)))

    def _begin(self, fitted: Any, model: MonitorModel) -> None:
        self.estimator_ = fitted
        self._model, self._behind = model, 0
        self._first_basis = fitted.components_.copy()
        scale = ByVariances(-float(np.log(model.level)))
        self._scores, self._scale = self._no_scores(), scale
        self._limit = Limit(scale.limit, self.contamination, model.n_samples)
        self._drift = DriftTest(self.drift_window, self.drift_level)
        self.recent_scores_ = np.empty(0)

    def _model_of(self, fitted: Any, n_samples: int | None = None) -> MonitorModel:
        """The model of an estimator; ``n_samples`` is for those that do not know it."""
        if hasattr(fitted, "confounders_"):
            raise ValueError(
                f"estimator must have partial_out=None, got {self.estimator!r}; give the monitor "
                "rows without the effects of confounders."
            )
        if getattr(getattr(fitted, "merge", None), "center", "all") == "site":
            raise ValueError(
                f"estimator must have a merge with center='all', got {self.estimator!r}: limits "
                "within sites are not those of rows about the mean of all; give the monitor rows "
                "minus the mean of their site."
            )
        if any(hasattr(fitted, name) for name in ("subspace_", "n_samples_seen_", "n_samples_")):
            n_samples = None
        subspace, scale = Subspace.from_estimator(fitted, n_samples=n_samples), None
        mean = subspace.mean
        if adjusts(fitted) and fitted.scale:
            subspace, scale = whole_model(fitted), fitted.scale_
        return MonitorModel.of(fitted.components_, subspace, self.contamination, mean, scale)

    def _newest(self) -> MonitorModel:
        return self._model_of(self.estimator_, int(self._model.n_samples) + self._behind)

    def _catch_up(self) -> None:
        """Take the model from the estimator, if it has learnt rows since."""
        if self._behind:
            self._model = self._newest()
            self._behind = 0
            begins = isinstance(self._scale, ByVariances) and not self._drift.points
            if self.limits == "chi2" or begins:
                self._scale = ByVariances(-float(np.log(self._model.level)))
                self._limit = replace(self._limit, value=self._scale.limit)

    def _within_limits(
        self, X: Any, unlike: np.ndarray, distances: np.ndarray, size: np.ndarray
    ) -> Any:
        """Rows, of which those above the limit are moved towards the mean until they are at it."""
        flagged = np.flatnonzero(unlike > self._limit.value)
        if not len(flagged):
            return X
        limits = self._limits(self._model, size[flagged])
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.sqrt(np.fmin.reduce(limits / distances[flagged], axis=1))[:, None]
        mean, factor = self._model.mean, np.minimum(factor, 1.0)
        if not sp.issparse(X):
            X = X.copy()
            X[flagged] = mean + factor * (X[flagged] - mean)
            return X
        moved = sp.csr_array(mean + factor * (X[flagged].toarray() - mean))
        others = np.setdiff1d(np.arange(X.shape[0]), flagged)
        order = np.argsort(np.concatenate([others, flagged]))
        return sp.csr_array(sp.vstack([X[others], moved]))[order]

    def _held_out_scores(self, X: Any, extra: dict[str, Any], least: int) -> np.ndarray:
        """p-values of rows by models of the others; none where these are no more than ``least``."""
        n, enough = X.shape[0], self._enough
        step = max(_FOLDS, n // (100 * enough))
        if n < enough or n - n // step <= least:
            return np.empty((0, 3))
        scores: list[np.ndarray] = []
        for first in range(min(step, int(np.ceil(100 * enough * step / n)))):
            out = np.arange(n) % step == first
            parts = {name: value[~out] for name, value in extra.items()}
            try:
                fitted, m = self._fitted("fit", X[~out], None, parts)
                model = self._model_of(fitted, m)
            except ValueError:  # too few rows without NaN, of a site, or with a weight
                return np.empty((0, 3))
            counted = out & (extra["sample_weight"] > 0) if "sample_weight" in extra else out
            if counted.any():
                scores.append(model.surprises(*model.distances(X[counted])))
        return np.concatenate(scores)

    @property
    def _enough(self) -> int:
        return int(np.ceil(2 / self.contamination))

    def _check_fitted(self) -> None:
        if "estimator_" not in vars(self):
            check_is_fitted(self)  # the error

    def _now(self) -> MonitorModel:
        """The model of all rows; rows to come are scored as if nobody had asked."""
        self._check_fitted()
        return self._newest() if self._behind else self._model

    def _handed_on(self, n: int, **given: Any) -> dict[str, Any]:
        """What the estimator is given for each row beside the rows, as arrays."""
        weight = check_weight(given["sample_weight"], n)
        if weight is not None and not weight.any():
            raise ValueError("sample_weight must have a positive sum, got zero weights only.")
        given["sample_weight"] = weight
        taken = {name: np.asarray(value) for name, value in given.items() if value is not None}
        for name, value in taken.items():
            if not has_fit_parameter(self.estimator, name):
                kind = type(self.estimator).__name__
                raise ValueError(f"{name} is given, but fit of the estimator {kind} takes none.")
            if value.shape != (n,):
                got = value.shape if value.ndim else repr(given[name])
                raise ValueError(f"{name} must have shape ({n},), got {got}.")
        return taken

    def _checked(self, X: Any, reset: bool = False) -> Any:
        """Rows of floats, dense or CSR."""
        if not reset:
            fitted = vars(self)
            if "feature_names_in_" not in fitted and are_bounded_rows(X, fitted["n_features_in_"]):
                return X
        refuse_dask(self, X)
        tags = get_tags(self.estimator).input_tags
        X = validate_data(
            self,
            X,
            reset=reset,
            accept_sparse="csr" if tags.sparse else False,
            dtype=[np.float64, np.float32],
            ensure_all_finite=False,
        )
        check_finite(X, allow_nan=True)
        return X
