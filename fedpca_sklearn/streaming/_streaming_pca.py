"""Streaming PCA with fixed or adaptive rank: SPCA and SAPCA of Grammenos et al."""

from __future__ import annotations

from dataclasses import KW_ONLY
from numbers import Integral, Real
from typing import Any, Literal

from sklearn.utils._param_validation import RealNotInt, StrOptions

from .._base.adjusting import (
    ADJUSTING,
    adjusted_attributes,
    check_adjusting,
    explained_variance_interval,
    subspace_error_bound,
)
from .._base.batches import RowBuffer
from .._base.fitted import LEARNT, CallbackSupportMixin, Learnt, computed, with_callbacks
from .._base.transformer import SubspaceTransformer
from .._kernels.threads import TINY_CALL, threads_for
from .._validation.checks import AT_LEAST_ONE, InstanceOf, Interval, allowed, with_parameters
from ..rank import RankRule
from ..summary import Subspace
from ._blocks import (
    State,
    Stream,
    check_call,
    from_subspace,
    ready_for_few,
    stream_of,
    take,
    with_few,
)
from ._forgetting import HALF_LIFE, check_half_life, factor_of
from ._refining import refine
from ._sizes import is_few


@with_parameters
class StreamingPCA(CallbackSupportMixin, SubspaceTransformer):
    """Principal component analysis of rows that arrive in blocks, in one pass.

    `partial_fit` takes the next rows and need not see the earlier ones again. With up to 500
    features, or ``40 n_components + 200`` (2,048 at most) if that is more, the result is that of
    PCA of all rows, up to rounding; with more it is for up to 512 rows in one call. Else, where
    variances fall like 1 / i or faster, its reconstruction error is within 1e-4 of the least one if
    rows are many, and within some times that if they are as few as features in small batches.

    Parameters
    ----------
    n_components : int, float, "parallel", "held-out", "mle" or None, default=None
        Number of components. A float in (0, 1): as many as explain this fraction of the variance.
        "parallel": as many as `parallel_analysis` counts. "held-out": by which entries of new rows
        are best predicted. "mle": as in scikit-learn's PCA. None: all, min(n_samples, n_features).
    oversampling : int or "auto", default="auto"
        Directions that are kept beyond ``n_components``. "auto": all, with up to as many features
        as said above (of a fraction or a ``rank_rule`` 256), else ``max(10, 1.25 n_components)``.
    block_size : int or "auto", default="auto"
        Rows per update; larger batches are split. "auto": nearly the least work.
    forgetting_factor : float in (0, 1], default=1.0
        Factor on the (squared) weight of a row with every later row.
    half_life : float, str, timedelta or None, default=None
        The same in another unit, in the place of the factor: the number of later rows, at least
        0.01, after which a row has half its weight; or a time (numpy.timedelta64,
        datetime.timedelta, or a whole number of W, D, h, min, s, ms, us or ns, as "90min"). Rows
        then come with ``times``, and one of time t weighs ``2 ** -((newest - t) / half_life)``.
    forgetting : {"rows", "blocks"}, default="rows"
        "rows": the result does not depend on how the stream is cut. "blocks": lambda of [1]_, eq.
        1: before each block the singular values so far are multiplied by ``forgetting_factor``.
    rank_rule : RankRule or None, default=None
        Changes the rank, first ``n_components`` or 1, by one per block, as `ContributionBounds`.
    center : bool, default=True
        False: singular vectors of the rows themselves, as TruncatedSVD.
    whiten : bool, default=False
        Scale transformed columns to unit variance.
    svd_solver : {"auto", "gram", "qr"}, default="auto"
        "gram": eigenvectors of small Gram matrices. "qr": Householder QR, slower, and accurate for
        any spectrum. "auto": "qr" where "gram" would not be orthonormal to ten digits.
    scale : bool, default=False
        True: PCA of the correlation matrix, as of rows that StandardScaler has scaled; a constant
        column has scale 1. Only with ``center=True`` and without a ``rank_rule``.
    partial_out : str, int or sequence of these, default=None
        Confounders, by name or position: columns whose linear effects are taken out of the others,
        before these are scaled. Where and as ``scale``.

    Attributes
    ----------
    components_, mean_, singular_values_, explained_variance_, explained_variance_ratio_, \
            noise_variance_, n_components_, n_samples_, n_samples_seen_, n_features_in_
        As in scikit-learn's PCA; a weighted row counts as often as its weight, rounded up.
    subspace_ : Subspace
        The whole state: save it, send it, merge it.
    subspace_error_bound_, explained_variance_interval_ : float, ndarray (n_components_, 2)
        Bounds on the sine of the largest angle to the components of all rows, and on variances.
    scale_, confounders_, confounder_effects_ : ndarray
        Deviations of columns; positions of confounders, and effects of one unit of each.
    rank_history_, last_time_ : ndarray of shape (n_blocks,), numpy.datetime64
        With a ``rank_rule``: the last 10,000 ranks. With a time as ``half_life``: the latest one.

    Notes
    -----
    SPCA of [1]_ (Algorithm 3), centred; SAPCA with a ``rank_rule``. See the guide for its costs.

    References
    ----------
    .. [1] A. Grammenos et al., "Federated PCA with adaptive rank estimation", arXiv:1907.08059v1.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import StreamingPCA
    >>> X = load_digits().data
    >>> pca = StreamingPCA(3).partial_fit(X[:1000]).partial_fit(X[1000:])
    >>> pca.explained_variance_ratio_.round(4)
    array([0.1489, 0.1362, 0.1179])
    """

    # `times` travels through pipelines and searches without a request by the user
    __metadata_request__fit = {"times": True}
    __metadata_request__partial_fit = {"times": True}
    _takes_arrays = True
    refine = refine
    from_subspace = classmethod(from_subspace)
    rank_history_ = computed(when="rank_rule")
    last_time_ = computed(when="half_life")
    scale_, confounders_, confounder_effects_ = adjusted_attributes()
    subspace_error_bound_ = property(subspace_error_bound)
    explained_variance_interval_ = property(explained_variance_interval)

    n_components: int | float | str | None = allowed(
        AT_LEAST_ONE,
        Interval(RealNotInt, 0, 1, closed="neither"),
        StrOptions({"parallel", "held-out", "mle"}),
        None,
        default=None,
    )
    _: KW_ONLY
    oversampling: int | Literal["auto"] = allowed(
        StrOptions({"auto"}), Interval(Integral, 0, None, closed="left"), default="auto"
    )
    block_size: int | Literal["auto"] = allowed(StrOptions({"auto"}), AT_LEAST_ONE, default="auto")
    forgetting_factor: float = allowed(Interval(Real, 0, 1, closed="right"), default=1.0)
    half_life: Any = allowed(*HALF_LIFE, default=None)
    forgetting: str = allowed(StrOptions({"rows", "blocks"}), default="rows")
    rank_rule: Any = allowed(InstanceOf(RankRule), None, default=None)
    center: bool = allowed("boolean", default=True)
    whiten: bool = allowed("boolean", default=False)
    svd_solver: str = allowed(StrOptions({"auto", "gram", "qr"}), default="auto")
    scale: bool = allowed(*ADJUSTING["scale"], default=False)
    partial_out: Any = allowed(*ADJUSTING["partial_out"], default=None)

    @with_callbacks
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, times: Any = None) -> Any:
        """Fit from scratch.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
            A memory map, an HDF5 or zarr array is read slice by slice, the chunks of a dask.array
            by its workers. An iterator, or a list of 2-D arrays, is a stream of batches.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.
        sample_weight : array-like of shape (n,), default=None
            Integer weights equal repeated rows. Not for iterables.
        times : array-like of shape (n,), default=None
            Time of each row, for a ``half_life`` that is a time: datetime64, or what numpy reads as
            such, as a column of a data frame. Not for iterables.

        Returns
        -------
        self : StreamingPCA
            The fitted estimator; unchanged if an error is raised.
        """
        self._check_parameters()
        with self._unchanged_on_error():
            times = check_call(self, X, sample_weight, times, None)
            self._keep(take(self, X, sample_weight, times, None))
        return self

    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, times: Any = None
    ) -> Any:
        """Update the fit with more rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
            One row or more, the first time as well. A few rows go to a buffer, which counts
            in all attributes and is taken into the state when it is full.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.
        sample_weight : array-like of shape (n,), default=None
            Weight of each row; None: 1. Integer weights equal repeated rows. Not for iterables.
        times : array-like of shape (n,), default=None
            As in `fit`.

        Returns
        -------
        self : StreamingPCA
            Unchanged if an error is raised.
        """
        stream = self._state_without_checks()
        if stream is not None and stream.unchecked and stream.buffer is None:
            stream = ready_for_few(self, stream.state)
        longer = None if stream is None else stream.with_rows(X, times, sample_weight)
        if longer is None:
            return self._go_on(X, sample_weight, times)
        buffer = longer.buffer
        if buffer.n >= buffer.room:
            with self._unchanged_on_error():
                self._keep(longer.after(self), room=buffer.room)
        else:
            self.__dict__[LEARNT] = Learnt(longer)
        return self

    @with_callbacks
    def _go_on(self, X: Any, sample_weight: Any, times: Any) -> Any:
        """Take rows that are to be checked."""
        self._check_parameters()
        stream, longer = self._stream, None
        with self._unchanged_on_error():
            times = check_call(self, X, sample_weight, times, stream.state)
            if not self._by_batch and is_few(self, X):
                longer = with_few(self, stream, X, sample_weight, times)
            if longer is None:
                self._keep(take(self, X, sample_weight, times, stream.after(self)))
            elif longer.is_full:
                self._keep(longer.after(self))
            else:
                self._keep(longer.state, longer.buffer)
        return self

    @property
    def _by_batch(self) -> bool:
        """Whether a batch means something, so that none waits for another; "mle" may refuse it."""
        by_blocks = self.forgetting == "blocks"
        return self.rank_rule is not None or by_blocks or self.n_components == "mle"

    @property
    def _row_factor(self) -> float:
        """Factor on the weight of a row with each later row."""
        if self.half_life is not None:
            return factor_of(self.half_life)
        return self.forgetting_factor if self.forgetting == "rows" else 1.0

    def _check_parameters(self) -> None:
        self._validate_params()
        if self.rank_rule is not None:
            self.rank_rule.validate()
        check_adjusting(self)
        if self.half_life is not None:
            check_half_life(self, "forgetting_factor", "forgetting")

    @property
    def _stream(self) -> Any:
        return self._last_state() or Stream(None)

    @property
    def _state(self) -> Any:
        """State before the rows in the buffer."""
        return self._stream.state

    def _keep(self, state: State | None, buffer: RowBuffer | None = None, room: int = 0) -> None:
        """Keep the stream; attributes are computed when one is read."""
        self.__dict__[LEARNT] = Learnt(stream_of(self, state, buffer, room))
        if self._by_batch:
            self._values()  # which may be an error

    def _settle(self) -> None:
        values = self._values()
        self.__dict__[LEARNT] = Learnt(Stream(self._stream.after(self)), values)

    def _compute(self, stream: Stream) -> dict[str, Any]:
        with threads_for(16 * self.n_features_in_**2, TINY_CALL):
            state = stream.after(self)
            request = self.n_components if self.rank_rule is None else state.rank
            values = self._attributes(state.subspace, request, state.n_rows)
        if state.ranks is not None:
            values["rank_history_"] = state.ranks
        if state.last_time is not None:
            values["last_time_"] = state.last_time
        return values

    def _flush(self) -> Subspace:
        """Take the rows of the buffer into the state, and return the summary of all."""
        if self._stream.buffer is not None:
            with self._unchanged_on_error():
                self._keep(self._stream.after(self))
        return self._state.subspace._named(getattr(self, "feature_names_in_", None))

    def _never_exceeds(self) -> bool:  # a summary of another library may not know its scatter
        return self._values()["subspace_"].column_scatter is not None
