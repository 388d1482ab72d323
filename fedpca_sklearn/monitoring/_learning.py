"""How a monitor learns: rows are scored, moved within the limits, and handed to the estimator."""

from __future__ import annotations

from contextlib import contextmanager
from copy import copy, deepcopy
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, OutlierMixin, clone
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from .._base.adjusting import AdjustingMixin
from .._base.fitted import FittedState
from .._dask import refuse_dask
from .._kernels.tame import are_tame_rows
from .._validation.checks import check_finite, check_weight
from .._validation.containers import validate_data
from ..summary import Subspace
from ._judging import JudgingMixin
from ._model import MonitorModel
from ._recent import DriftTest, RecentScores

# Every so many-th row is held out, and so often, for quantiles of scores of new rows.
_FOLDS = 5
# Of single rows in a stream, so many are scored by one model; at first a 50th of those before.
_ROWS_A_MODEL = 50


def _apart(fitted: Any) -> Any:
    """A copy of an estimator that goes on without changing it."""
    return copy(fitted) if isinstance(fitted, FittedState) else deepcopy(fitted)


class LearningMixin(JudgingMixin, OutlierMixin, BaseEstimator):
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
    _shown: tuple[tuple[int, float] | None, MonitorModel]
    _scores: RecentScores
    _drift: DriftTest

    def _take(self, X: Any, y: Any, clients: Any, sample_weight: Any) -> None:
        first = not hasattr(self, "estimator_")
        self._validate_params()
        X = self._checked(X, reset=first)
        extra = self._handed_on(X.shape[0], clients, sample_weight)
        if first:
            fitted = clone(self.estimator).partial_fit(X, y, **extra)
            self._begin(fitted, self._model_of(fitted, X.shape[0]))
            self.recent_scores_ = np.full(X.shape[0], np.nan)
            return
        if self._behind >= min(_ROWS_A_MODEL, self._model.n_samples / _ROWS_A_MODEL):
            self._catch_up()
        unlike = self._model.shares(X).max(axis=1)
        rows, weight = self._within_limits(X, unlike), extra.get("sample_weight")
        if X.shape[0] == 1:
            self._note(unlike, weight)
            self.estimator_.partial_fit(rows, y, **extra)  # last, as only this is not undone
            self._behind += 1
            return
        learnt = _apart(self.estimator_)
        learnt.partial_fit(rows, y, **extra)
        self.estimator_ = learnt
        self._behind += X.shape[0]
        self._catch_up()
        self._note(unlike, weight)

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

    def _note(self, unlike: np.ndarray, weight: np.ndarray | None) -> None:
        """Keep what is to be known of rows that were scored."""
        self.recent_scores_ = -unlike
        counted = unlike if weight is None else unlike[weight > 0]
        quantile = self.limits == "quantile"
        m = len(self._scores.values) if quantile and self._has_quantile else self._model.n_samples
        self._drift = self._drift.after(counted > -self.offset_, self.contamination, m)
        if quantile:
            self._scores = self._scores.extended(counted)

    def _begin(self, fitted: Any, model: MonitorModel) -> None:
        self.estimator_ = fitted
        self._model, self._behind, self._shown = model, 0, (None, model)
        self._first_basis = fitted.components_.copy()
        self._scores = RecentScores(int(np.ceil(200 / self.contamination)))
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
        if isinstance(fitted, AdjustingMixin) and hasattr(fitted, "scale_"):
            subspace, scale = fitted._whole_model(), fitted.scale_
        return MonitorModel.of(fitted.components_, subspace, self.contamination, mean, scale)

    def _newest(self) -> MonitorModel:
        return self._model_of(self.estimator_, int(self._model.n_samples) + self._behind)

    def _catch_up(self) -> None:
        """Take the model from the estimator, if it has learnt rows since."""
        if self._behind:
            self._model = self._newest()
            self._behind, self._shown = 0, (None, self._model)

    def _within_limits(self, X: Any, unlike: np.ndarray) -> Any:
        """Rows, of which those above the limit are moved towards the mean until they are at it."""
        flagged = np.flatnonzero(unlike > -self.offset_)
        if not len(flagged):
            return X
        factor = np.sqrt(-self.offset_ / unlike[flagged])[:, None]
        mean = self._model.mean
        if not sp.issparse(X):
            X = X.copy()
            X[flagged] = mean + factor * (X[flagged] - mean)
            return X
        moved = sp.csr_array(mean + factor * (X[flagged].toarray() - mean))
        others = np.setdiff1d(np.arange(X.shape[0]), flagged)
        order = np.argsort(np.concatenate([others, flagged]))
        return sp.csr_array(sp.vstack([X[others], moved]))[order]

    def _held_out_scores(self, X: Any, extra: dict[str, Any]) -> np.ndarray:
        """Scores of rows by models of the others; none where there are too few rows."""
        n, size = X.shape[0], self._enough * 100
        step = max(_FOLDS, n // size)
        if n < self._enough:
            return np.empty(0)
        scores: list[np.ndarray] = []
        for first in range(min(step, int(np.ceil(size * step / n)))):
            out = np.arange(n) % step == first
            parts = {name: value[~out] for name, value in extra.items()}
            fitted = clone(self.estimator).fit(X[~out], None, **parts)
            scores.append(self._model_of(fitted, int((~out).sum())).shares(X[out]).max(axis=1))
        return np.concatenate(scores)

    @property
    def _enough(self) -> int:
        return int(np.ceil(2 / self.contamination))

    @property
    def _has_quantile(self) -> bool:
        return self.limits == "quantile" and len(self._scores.values) >= self._enough

    def _check_fitted(self) -> None:
        if "estimator_" not in vars(self):
            check_is_fitted(self)  # the error

    def _now(self) -> MonitorModel:
        """The model of all rows; rows to come are scored as if nobody had asked."""
        self._check_fitted()
        if not self._behind:
            return self._model
        behind, shown = (self._behind, self.contamination), self._shown
        if shown[0] != behind:
            shown = behind, self._newest()
            self._shown = shown
        return shown[1]

    def _handed_on(self, n: int, clients: Any, sample_weight: Any) -> dict[str, Any]:
        """What the estimator is given for each row beside the rows, as arrays."""
        weight = check_weight(sample_weight, n)
        if weight is not None and not weight.any():
            raise ValueError("sample_weight must have a positive sum, got zero weights only.")
        given = {"clients": clients, "sample_weight": weight}
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
            if "feature_names_in_" not in fitted and are_tame_rows(X, fitted["n_features_in_"]):
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
        check_finite(X, allow_nan=tags.allow_nan)
        return X
