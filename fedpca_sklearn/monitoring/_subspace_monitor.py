"""An outlier detector around any estimator of a subspace."""

from __future__ import annotations

from contextlib import contextmanager
from copy import deepcopy
from dataclasses import KW_ONLY
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, OutlierMixin, clone
from sklearn.utils import get_tags
from sklearn.utils._param_validation import HasMethods, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from .._base.fitted import as_numpy
from .._validation.checks import Interval, allowed, with_parameters
from ..metrics import subspace_distance
from ..streaming import StreamingPCA
from ..summary import Subspace
from . import _learning as learning


@with_parameters
class SubspaceMonitor(OutlierMixin, BaseEstimator):
    """Finds rows that do not belong to the subspace of the others.

    This is anomaly detection (outlier or novelty detection): the monitor is put around an
    estimator, which is the model of the usual rows. `predict` returns -1 for a row that does not
    fit the model, else 1. Three distances of each row become p-values: Q, the squared distance of
    the row from the subspace; Hotelling's T2, the squared distance of its projection from the mean
    in units of the variances; and the squared distance of the whole row in units of its covariance.
    A row does not fit if the least of them is below its limit.

    Parameters
    ----------
    estimator : estimator
        An estimator of this library with ``components_``, or scikit-learn's PCA, IncrementalPCA or
        TruncatedSVD. It is copied; `from_estimator` takes a fitted one. With ``scale=True`` Q, T2
        and limits are those of columns in units of their deviations, as sensors in unlike units
        need it. ``partial_out`` and ``SubspaceMerge(center="site")`` are refused: adjust the rows
        before.
    contamination : float in (0, 0.5], default=0.05
        Share of new rows without anything unusual that are flagged, by the three distances.
    limits : {"quantile", "chi2"}, default="quantile"
        "quantile": p-values are ranks among recent rows, and the limit is the quantile of theirs,
        for rows of any distribution; as "chi2" until there are ``2 / contamination`` scores.
        "chi2": p-values of Q and T2 of normal rows, from variances alone, by Jackson and Mudholkar
        [1]_ and the F distribution, either at ``1 - sqrt(1 - contamination)``. No row is held out.
    drift_window : int, default=100
        Rows of a window of the test for drift, at most 1,000,000.
    drift_level : float in (0, 1), default=0.001
        Probability of a false alarm in a window without drift if rows come in any order. In a
        series it is larger until enough rows have shown how much numbers of flagged rows vary.

    Attributes
    ----------
    estimator_ : estimator
        The fitted estimator.
    offset_ : float
        ``decision_function(X)`` is ``score_samples(X) - offset_``: the limit of the logarithms of
        p-values as it is now.
    q_limit_, t2_limit_ : float
        Limits of whole rows, as they are scaled: a row above one is an outlier. Infinity where
        fewer than k + 4 rows have been seen, and of Q where nothing is outside the components.
    recent_scores_ : ndarray of shape (n,)
        `score_samples` of the rows of the last `partial_fit`, by the model before it; NaN if there
        was none.
    drift_points_ : ndarray of shape (n_alarms,)
        Numbers of rows of `partial_fit` scored when an alarm was raised, the last 1,000. One for
        each lasting change. Rows of `fit`, and of the first call if there was no `fit`, are not
        scored: add their number for the position in the stream.
    drift_angle_ : float
        Sine of the largest angle between the first subspace and the one now.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)

    See Also
    --------
    ControlChartDisplay : Rows and limits over time.
    RobustSubspaceTracker : Finds single entries that do not belong.

    Notes
    -----
    **Limits hold for new rows.** Rows that were fitted are nearer to the fit. Variances of new rows
    along and outside the components are estimated from the spectrum of the old ones (Ledoit and
    Péché 2011; Fisher, Sun and Gallagher 2010), and depend on their number. So of the rows of `fit`
    fewer than ``contamination`` are flagged, unlike in scikit-learn, where it is their share.

    **What limits need** is in `subspace_`: directions, singular values, mean, number of rows and
    scatter. Of eigenvalues that are not kept only the sum is known. Where some after the components
    are kept, the others are taken to fall geometrically from there; if none is, as with
    scikit-learn's estimators, they are taken to be equal, and the limit of Q is too low if
    they are not. The number of rows is taken to be the sum of their weights. Rows that fade are as
    exact as some twice that number, so that "chi2" flags fewer than ``contamination``. Of other
    unequal weights it flags more.

    **Quantiles** are of recent scores: in `partial_fit` of rows before they are learnt, the last
    half since the start or the last alarm, ``200 / contamination`` at most; in `fit` of rows held
    out from models of the others, at most five more fits, none with a mechanism, which has no
    account of them. Held out are runs of 2 sqrt(n) rows: a single one of a time series is as near
    to a model of its neighbours as no new row is. Where rows above the limit are in few of the
    runs, a warning says how few rows in any order would say as much. The level of the quantile
    grows while too few rows of a stream are flagged and falls while too many are [2]_, so that the
    share is right while scores change.

    **Streams.** `partial_fit` scores rows, and then learns them. A row above its limit is first
    moved towards the mean until it is at the limit, so that no row has more influence than one
    there, and a lasting change is still learnt. The rows of one call are scored by one model, with
    ``scale=True`` also in its scales; so are those of calls that follow until they are 50, or a
    50th of all before. `fit` learns rows as they are.

    **Drift** raises an alarm when more rows of a window of `partial_fit` are flagged than such
    limits allow, and than windows before, and the runs held out, let expect: in a series flagged
    rows come together, so that their numbers vary more than those of independent rows. Outliers
    beyond ``contamination`` count as drift. After an alarm limits start anew from the rows that
    follow, and there is no other alarm until a window is usual again. So who can send
    ``2 / contamination`` rows in a row decides what is usual, as a lasting change does; until then
    no row is learnt as more than the limit of before or the rows since the alarm.

    **Missing entries** are NaN. Q, T2 and the distance are then those of the marginal distribution
    of the entries that are there, and so are their p-values, of normal rows. Where the estimator
    takes no NaN, rows with NaN are scored, and those without are learnt.

    **The distance of whole rows** is by all directions that the estimator keeps, 64 at most and one
    for five rows. The p-value of T2 counts twice, as T2 is a part of it. "chi2" leaves it out.

    A row costs O(d k), with k the directions kept; rows with p patterns of missing entries
    O(p k^2 (d + k)) more.

    References
    ----------
    .. [1] J. E. Jackson and G. S. Mudholkar, "Control procedures for residuals associated with
       principal component analysis", Technometrics 21, 1979.
    .. [2] I. Gibbs and E. Candes, "Adaptive conformal inference under distribution shift", NeurIPS
       2021.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import StreamingPCA, SubspaceMonitor
    >>> X = np.random.default_rng(0).standard_normal((2000, 3)) @ np.eye(3, 20) * 5
    >>> X += np.random.default_rng(1).standard_normal(X.shape)
    >>> monitor = SubspaceMonitor(StreamingPCA(3)).fit(X[:1000])
    >>> round(float(np.mean(monitor.predict(X[1000:]) == -1)), 3)
    0.054
    >>> row = X[:1].copy()
    >>> row[0, 7] += 8
    >>> monitor.predict(row), monitor.contributions(row).round(1)[0, 6:8]
    (array([-1]), array([-0.5,  8.6]))
    """

    __metadata_request__fit = {"clients": True, "times": True}
    __metadata_request__partial_fit = {"clients": True, "times": True}

    estimator: Any = allowed(HasMethods(["fit"]))
    _: KW_ONLY
    contamination: float = allowed(Interval(Real, 0, 0.5, closed="right"), default=0.05)
    limits: str = allowed(StrOptions({"chi2", "quantile"}), default="quantile")
    drift_window: int = allowed(Interval(Integral, 1, 1_000_000, closed="both"), default=100)
    drift_level: float = allowed(Interval(Real, 0, 1, closed="neither"), default=0.001)

    @classmethod
    def from_estimator(cls, estimator: Any, **parameters: Any) -> SubspaceMonitor:
        """Build a monitor from a fitted estimator, without rows.

        Parameters
        ----------
        estimator : estimator
            Fitted; it is copied.
        **parameters
            Of the monitor.

        Returns
        -------
        monitor : SubspaceMonitor
            With limits from variances until `partial_fit` has scored enough rows.
        """
        check_is_fitted(estimator)
        monitor = cls(clone(estimator), **parameters)
        monitor._validate_params()
        fitted = deepcopy(estimator)
        fitted.__dict__ = as_numpy(vars(fitted))
        monitor.n_features_in_ = fitted.n_features_in_
        if hasattr(fitted, "feature_names_in_"):
            monitor.feature_names_in_ = fitted.feature_names_in_
            del fitted.feature_names_in_  # rows are handed on without names
        learning.begin(monitor, fitted, learning.model_of(monitor, fitted))
        return monitor

    @classmethod
    def from_subspace(
        cls, subspace: Subspace, n_components: int | float | None = None, **parameters: Any
    ) -> SubspaceMonitor:
        """Build a monitor from a summary, as a coordinator has it who has no rows.

        Parameters
        ----------
        subspace : Subspace
            Of the rows, from `merge_subspaces` for example. For scaled rows give `from_estimator`
            ``StreamingPCA.from_subspace(subspace, n_components, scale=True)``.
        n_components : int, float or None, default=None
            Components of the monitor. Further directions of the summary make the limit of Q better.
        **parameters
            Of the monitor.

        Returns
        -------
        monitor : SubspaceMonitor
            Around a `StreamingPCA` that goes on from the summary.
        """
        return cls.from_estimator(StreamingPCA.from_subspace(subspace, n_components), **parameters)

    # ---------------------------------------------------------------- fitting

    def fit(
        self,
        X: Any,
        y: Any = None,
        clients: Any = None,
        sample_weight: Any = None,
        times: Any = None,
    ) -> SubspaceMonitor:
        """Fit the estimator and find the limits.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows, which should be as the others are to be; NaN is a missing entry.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.
        clients : array-like of shape (n,), default=None
            Labels of the rows' clients, for estimators that take them.
        sample_weight : array-like of shape (n,), default=None
            Weights of the rows, for estimators that take them.
        times : array-like of shape (n,), default=None
            Times of the rows, for estimators with a ``half_life`` in time.

        Returns
        -------
        self : SubspaceMonitor
            The fitted monitor.
        """
        given = {"clients": clients, "sample_weight": sample_weight, "times": times}
        with self._unchanged_on_error():
            learning.take_all(self, X, y, **given)
        return self

    @available_if(lambda self: hasattr(getattr(self, "estimator_", self.estimator), "partial_fit"))
    def partial_fit(
        self,
        X: Any,
        y: Any = None,
        clients: Any = None,
        sample_weight: Any = None,
        times: Any = None,
    ) -> SubspaceMonitor:
        """Score rows, look for drift, and learn the rows; see Notes.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            The next rows of the stream. Sparse rows that are flagged are learnt as dense ones.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.
        clients : array-like of shape (n,), default=None
            Labels of the rows' clients, for estimators that take them.
        sample_weight : array-like of shape (n,), default=None
            Weights of the rows, for estimators that take them.
        times : array-like of shape (n,), default=None
            Times of the rows, for estimators with a ``half_life`` in time.

        Returns
        -------
        self : SubspaceMonitor
            With what the rows were, before they were learnt, in ``recent_scores_``.
        """
        given = {"clients": clients, "sample_weight": sample_weight, "times": times}
        with self._unchanged_on_error():
            learning.take(self, X, y, **given)
        return self

    # ---------------------------------------------------------------- what it says of rows

    def statistics(self, X: Any) -> np.ndarray:
        """Squared prediction error and T2 of rows, over limits of theirs.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows with the columns of `fit`.

        Returns
        -------
        shares : ndarray of shape (n, 2)
            Q and T2 over ``q_limit_`` and ``t2_limit_``; of rows with missing entries over limits
            for so many entries. A row with a number above 1 is an outlier. So is one whose squared
            distance as a whole is too large, which is measured beside them.
        """
        model = learning.model_now(self)
        distances, size = model.distances(learning.checked_rows(self, X))
        limits = learning.limits_of(self, model, size)
        with np.errstate(invalid="ignore"):
            return np.where(np.isinf(limits), 0.0, distances / limits)[:, :2]

    def score_samples(self, X: Any) -> np.ndarray:
        """How unlike rows are by their least p-value: the less, the more unlike.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows with the columns of `fit`.

        Returns
        -------
        scores : ndarray of shape (n,)
            Logarithm of the p-value: 0 for the mean, below ``offset_`` for outliers.
        """
        model = learning.model_now(self)
        return -learning.unlike_of(
            self, model.surprises(*model.distances(learning.checked_rows(self, X)))
        )

    def decision_function(self, X: Any) -> np.ndarray:
        """Score of rows less ``offset_``.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows with the columns of `fit`.

        Returns
        -------
        decisions : ndarray of shape (n,)
            Negative for outliers.
        """
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """Whether rows belong.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows with the columns of `fit`.

        Returns
        -------
        labels : ndarray of shape (n,)
            1, or -1 for outliers.
        """
        return np.where(self.score_samples(X) < self.offset_, -1, 1)

    def contributions(self, X: Any) -> np.ndarray:
        """By how much each entry makes its row unlike.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows with the columns of `fit`.

        Returns
        -------
        deviations : ndarray of shape (n, d)
            Entry less what the other entries of its row predict, in standard deviations of that
            prediction: standard normal for normal rows. Its square is what the squared distance of
            the row from the mean would lose without the entry (reconstruction-based contribution,
            Alcala and Qin 2009). NaN where the entry is missing. O(n d k^2).
        """
        return learning.model_now(self).deviations(learning.checked_rows(self, X))

    # ---------------------------------------------------------------- limits

    @property
    def offset_(self) -> float:
        """Least score of a row that is not an outlier."""
        learning.check_fitted(self)
        return -self._limit.value

    @property
    def q_limit_(self) -> float:
        """Limit of the squared prediction error of whole rows."""
        return self._limit_of(0)

    @property
    def t2_limit_(self) -> float:
        """Limit of Hotelling's T2 of whole rows."""
        return self._limit_of(1)

    def _limit_of(self, which: int) -> float:
        model = learning.model_now(self)
        return float(learning.limits_of(self, model, np.array([len(model.mean)]))[0, which])

    @property
    def drift_points_(self) -> np.ndarray:
        """Rows of `partial_fit` scored when alarms were raised."""
        check_is_fitted(self)
        return np.array(self._drift.points, dtype=np.int64)

    @property
    def drift_angle_(self) -> float:
        """Sine of the largest angle between the first subspace and the one now."""
        check_is_fitted(self)
        return subspace_distance(self._first_basis, self.estimator_.components_)

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
            state["estimator_"] = learning.independent_copy(state["estimator_"])
        return state

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator).input_tags
        tags.input_tags.sparse, tags.input_tags.allow_nan = inner.sparse, True
        return tags
