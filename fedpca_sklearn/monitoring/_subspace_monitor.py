"""An outlier detector around any estimator of a subspace."""

from __future__ import annotations

from copy import deepcopy
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import get_tags
from sklearn.utils._param_validation import HasMethods, StrOptions
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from .._base.fitted import at_home
from .._validation.intervals import Interval
from ..metrics import subspace_distance
from ..streaming import StreamingPCA
from ..summary import Subspace
from ._learning import LearningMixin


def _can_go_on(monitor: Any) -> bool:
    return hasattr(getattr(monitor, "estimator_", monitor.estimator), "partial_fit")


class SubspaceMonitor(LearningMixin):
    """Finds rows that do not belong to the subspace of the others.

    This is anomaly detection (outlier or novelty detection): the monitor is put around an
    estimator, which is the model of the usual rows. `predict` returns -1 for a row that does not
    fit the model, else 1. Two numbers of each row are compared with their limits: Q, the squared
    distance of the row from the subspace, and Hotelling's T2, the squared distance of its
    projection from the mean in units of the variances. A row does not fit if one of them is above
    its limit.

    Parameters
    ----------
    estimator : estimator
        An estimator of this library with ``components_``, or scikit-learn's PCA, IncrementalPCA or
        TruncatedSVD. It is copied; `from_estimator` takes a fitted one. With ``scale=True`` Q, T2
        and limits are those of columns in units of their deviations, as sensors in unlike units
        need it. ``partial_out`` and ``SubspaceMerge(center="site")`` are refused: adjust the rows
        before.
    contamination : float in (0, 0.5], default=0.05
        Share of new rows without anything unusual that are flagged, by Q and T2 together.
    limits : {"chi2", "quantile"}, default="chi2"
        "chi2": limits for normal rows, from variances alone: Jackson and Mudholkar's [1]_ for Q, by
        the F distribution for T2, either at ``1 - sqrt(1 - contamination)``. "quantile": the same
        limits times the factor that this share of recent rows exceeded, for rows of any
        distribution.
    drift_window : int, default=100
        Rows of a window of the test for drift, at most 1,000,000.
    drift_level : float in (0, 1), default=0.001
        Probability of a false alarm in a window without drift.

    Attributes
    ----------
    estimator_ : estimator
        The fitted estimator.
    offset_ : float
        ``decision_function(X)`` is ``score_samples(X) - offset_``: -1, or minus the factor.
    q_limit_, t2_limit_ : float
        Limits of whole rows, as they are scaled. Infinity where fewer than k + 4 rows have been
        seen, and of Q where there is nothing outside the components.
    recent_scores_ : ndarray of shape (n,)
        `score_samples` of the rows of the last `partial_fit`, by the model before it; NaN if there
        was none.
    drift_points_ : ndarray of shape (n_alarms,)
        Numbers of rows of `partial_fit` scored when an alarm was raised, the last 1,000.
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
    they are not. The number of rows is the sum of their weights, also with forgetting.

    **Quantiles** are of the last ``200 / contamination`` scores: in `partial_fit` of rows before
    they are learnt, in `fit` of rows held out from models of the others, at most five more fits.
    Until there are ``2 / contamination`` scores the factor is 1.

    **Streams.** `partial_fit` scores rows, and then learns them. A row above its limit is first
    moved towards the mean until it is at the limit, so that no row has more influence than one
    there, and a lasting change is still learnt. The rows of one call are scored by one model, with
    ``scale=True`` also in its scales; where rows come one by one, 50 of them at most. `fit` learns
    rows as they are.

    **Drift** raises an alarm when more rows of a window of `partial_fit` are flagged than such
    limits allow. Outliers beyond ``contamination`` count as drift.

    **Missing entries** are taken if the estimator takes them. Q and T2 are then those of the
    marginal distribution of the entries that are there, with limits for that number of entries.

    A row costs O(d k); rows with p patterns of missing entries O(p k^2 (d + k)) more.

    References
    ----------
    .. [1] J. E. Jackson and G. S. Mudholkar, "Control procedures for residuals associated with
       principal component analysis", Technometrics 21, 1979.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import StreamingPCA, SubspaceMonitor
    >>> X = np.random.default_rng(0).standard_normal((2000, 3)) @ np.eye(3, 20) * 5
    >>> X += np.random.default_rng(1).standard_normal(X.shape)
    >>> monitor = SubspaceMonitor(StreamingPCA(3)).fit(X[:1000])
    >>> round(float(np.mean(monitor.predict(X[1000:]) == -1)), 3)
    0.049
    >>> row = X[:1].copy()
    >>> row[0, 7] += 8
    >>> monitor.predict(row), monitor.contributions(row).round(1)[0, 6:8]
    (array([-1]), array([-0.5,  8.6]))
    """

    __metadata_request__fit = {"clients": True}
    __metadata_request__partial_fit = {"clients": True}

    _parameter_constraints: dict = {
        "estimator": [HasMethods(["fit"])],
        "contamination": [Interval(Real, 0, 0.5, closed="right")],
        "limits": [StrOptions({"chi2", "quantile"})],
        "drift_window": [Interval(Integral, 1, 1_000_000, closed="both")],
        "drift_level": [Interval(Real, 0, 1, closed="neither")],
    }

    def __init__(
        self,
        estimator: Any,
        *,
        contamination: float = 0.05,
        limits: str = "chi2",
        drift_window: int = 100,
        drift_level: float = 0.001,
    ):
        self.estimator = estimator
        self.contamination = contamination
        self.limits = limits
        self.drift_window = drift_window
        self.drift_level = drift_level

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
            With the limits "chi2" until `partial_fit` has scored enough rows.
        """
        check_is_fitted(estimator)
        monitor = cls(clone(estimator), **parameters)
        monitor._validate_params()
        fitted = deepcopy(estimator)
        fitted.__dict__ = at_home(vars(fitted))
        monitor.n_features_in_ = fitted.n_features_in_
        if hasattr(fitted, "feature_names_in_"):
            monitor.feature_names_in_ = fitted.feature_names_in_
            del fitted.feature_names_in_  # rows are handed on without names
        monitor._begin(fitted, monitor._model_of(fitted))
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
        self, X: Any, y: Any = None, clients: Any = None, sample_weight: Any = None
    ) -> SubspaceMonitor:
        """Fit the estimator and find the limits.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows, which should be as the others are to be; NaN if the estimator takes it.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.
        clients : array-like of shape (n,), default=None
            Labels of the rows' clients, for estimators that take them.
        sample_weight : array-like of shape (n,), default=None
            Weights of the rows, for estimators that take them.

        Returns
        -------
        self : SubspaceMonitor
            The fitted monitor.
        """
        with self._unchanged_on_error():
            self._validate_params()
            X = self._checked(X, reset=True)
            extra = self._handed_on(X.shape[0], clients, sample_weight)
            if self.limits == "quantile" and getattr(self.estimator, "mechanism", None) is not None:
                raise ValueError(
                    'limits="quantile" fits the estimator to parts of the rows several times, for '
                    'which its mechanism has no account; take limits="chi2".'
                )
            fitted = clone(self.estimator).fit(X, y, **extra)
            model = self._model_of(fitted, X.shape[0])
            scores = self._held_out_scores(X, extra) if self.limits == "quantile" else np.empty(0)
            self._begin(fitted, model)
            self._scores = self._scores.extended(scores)
        return self

    @available_if(_can_go_on)
    def partial_fit(
        self, X: Any, y: Any = None, clients: Any = None, sample_weight: Any = None
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

        Returns
        -------
        self : SubspaceMonitor
            With what the rows were, before they were learnt, in ``recent_scores_``.
        """
        with self._unchanged_on_error():
            self._take(X, y, clients, sample_weight)
        return self

    # ---------------------------------------------------------------- limits

    @property
    def offset_(self) -> float:
        """Least score of a row that is not an outlier."""
        self._check_fitted()
        return -self._scores.limit(self.contamination) if self._has_quantile else -1.0

    @property
    def q_limit_(self) -> float:
        """Limit of the squared prediction error of whole rows."""
        return -self.offset_ * self._now().q_limit

    @property
    def t2_limit_(self) -> float:
        """Limit of Hotelling's T2 of whole rows."""
        return -self.offset_ * float(self._now().t2_limits[-1])

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

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        inner = get_tags(self.estimator).input_tags
        tags.input_tags.sparse, tags.input_tags.allow_nan = inner.sparse, inner.allow_nan
        return tags
