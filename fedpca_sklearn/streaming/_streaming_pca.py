"""Streaming PCA with fixed or adaptive rank: SPCA and SAPCA of Grammenos et al."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
from sklearn.utils._param_validation import RealNotInt, StrOptions
from sklearn.utils.validation import check_is_fitted

from .._base.adjusting import AdjustingMixin
from .._base.callbacks import CallbackSupportMixin, progress, with_callbacks
from .._base.certified import CertifiedMixin
from .._base.fitted import LEARNT, Learnt, computed, show_in
from .._base.row_buffer import RowBuffer
from .._base.sources import is_stream
from .._dask import is_dask
from .._kernels.tame import is_tame, is_tame_state
from .._validation.arrays import in_numpy
from .._validation.checks import check_at_most_features, check_integer
from .._validation.intervals import InstanceOf, Interval
from ..rank import RankRule
from ..summary import Subspace
from ..summary._merging import checked_with_place
from ._blocks import (
    State,
    Stream,
    check_readable,
    is_few,
    merge_chunks,
    products,
    take_buffer,
    take_rows,
    take_with_times,
    validated_blocks,
)
from ._half_life import (
    CAME_WITHOUT_TIMES,
    HALF_LIFE,
    check_half_life,
    duration_of,
    forgetting_of,
    times_of,
    times_of_rows,
)
from ._sizes import Sizes


class StreamingPCA(CertifiedMixin, AdjustingMixin, CallbackSupportMixin):
    """Principal component analysis of rows that arrive in blocks, in one pass.

    Take it where rows do not fit in memory, or arrive over time: `partial_fit` takes the next rows
    and need not see the earlier ones again. With up to 256 features the result is that of PCA of
    all rows, up to rounding; with ten components or more this holds up to
    ``40 n_components + 200`` features, but not above 2,048. With more features it is exact for up
    to 512 rows in one call (with ``scale`` and ``partial_out`` if they are dense), and an
    approximation for more, see Notes.

    Parameters
    ----------
    n_components : int, float, "parallel", "held-out", "mle" or None, default=None
        Number of components. A float in (0, 1): as many as explain this fraction of the variance.
        "parallel": as many as `parallel_analysis` counts, at least one. "held-out": the number by
        which an entry is best predicted from the others of its row, in rows that were not fitted.
        "mle": the most likely number by Minka's method, as in scikit-learn's PCA; from the first
        batch on there must be as many rows as features. All three keep all directions, and look at
        them at the end of each call. None: all, min(n_samples, n_features). With a ``rank_rule``:
        the rank to start from, 1 for None.
    oversampling : int or "auto", default="auto"
        Directions that are kept between blocks beyond ``n_components``. "auto": all of them, with
        up to as many features as said above, so that the result is exact (with a fraction or a
        ``rank_rule``, up to 256); with more features ``max(10, 1.25 n_components)``.
    block_size : int or "auto", default="auto"
        Number of rows of an update; larger batches are cut. "auto": nearly the least work, and up
        to 512 rows in one call are one block.
    forgetting_factor : float in (0, 1], default=1.0
        Factor by which the (squared) weight of a row shrinks with every later row. With
        ``forgetting="blocks"`` it multiplies the singular values instead.
    half_life : float, str, timedelta or None, default=None
        Says how fast rows are forgotten in another unit; ``forgetting_factor`` must be 1 then. A
        number h, at least 0.01: a row has half its weight after h later rows, which is a factor of
        ``0.5 ** (1 / h)``. A time, a numpy.timedelta64 or datetime.timedelta, or a whole number
        with W, D, h, min, s, ms, us or ns, as "90min": rows come with ``times``, and one of time t
        has the weight ``2 ** -((newest - t) / half_life)``, where ``newest`` is the latest time so
        far, see Notes.
    forgetting : {"rows", "blocks"}, default="rows"
        "rows": all rows fade, those of one block too, and the result does not depend on how the
        stream is cut. "blocks": lambda of [1]_, eq. 1: before each block the past singular values
        are multiplied by the ``forgetting_factor``, count and scatter by its square. A block is at
        most ``block_size`` rows of one batch.
    rank_rule : RankRule or None, default=None
        Strategy that changes the rank by at most one per block, such as `ContributionBounds`.
    center : bool, default=True
        False: singular vectors of the rows themselves, as TruncatedSVD.
    whiten : bool, default=False
        Scale transformed columns to unit variance.
    svd_solver : {"auto", "gram", "qr"}, default="auto"
        "gram": eigenvectors of a small Gram matrix; all large operations are matrix products.
        "qr": Householder QR, about six times slower, and accurate for any spectrum. "auto":
        "gram", and "qr" for the blocks where the result would not be orthonormal to ten digits.
        Sparse rows go through Gram matrices and Krylov spaces only, unless all directions are kept.
    scale : bool, default=False
        True: PCA of the correlation matrix, as of rows that StandardScaler has scaled, without a
        pass of its own; a constant column has scale 1. Only with ``center=True`` and without a
        ``rank_rule``.
    partial_out : str, int or sequence of these, default=None
        Confounders, by name or position: columns whose linear effects are taken out of the others.
        The components are those of what is left, which is scaled after that. Where and as
        ``scale``.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
        Orthonormal rows, by decreasing variance; the largest loading of each is positive.
    mean_ : ndarray of shape (n_features,)
    singular_values_, explained_variance_, explained_variance_ratio_ : ndarray of shape \
            (n_components_,)
    noise_variance_ : float
        Mean variance across the components, (total - explained) / (n_features - n_components_).
    n_components_ : int
        At most the number of rows and of features.
    scale_ : ndarray of shape (n_features,)
        With ``scale=True``: standard deviation of each column, as StandardScaler's; of what
        confounders leave of the other columns.
    confounders_ : ndarray of shape (n_confounders,)
        With ``partial_out``: the positions of its columns.
    confounder_effects_ : ndarray of shape (n_confounders, n_features - n_confounders)
        With ``partial_out``: what one unit of each adds to each of the other columns.
    n_samples_seen_, n_samples_ : int
        Rows seen; a weighted row counts as often as its weight, rounded up.
    subspace_ : Subspace
        The whole state: save it, send it, merge it.
    last_time_ : numpy.datetime64
        The latest time so far, with a ``half_life`` that is a time.
    rank_history_ : ndarray of shape (n_blocks,)
        Rank after each block, of the last 10,000 ones, with a ``rank_rule``.
    subspace_error_bound_ : float
        The sine of the largest angle between the components and those of all rows at once is at
        most this; inf where nothing is known. It is computed from what was cut, or after `refine`
        from products.
    explained_variance_interval_ : ndarray of shape (n_components_, 2)
        The variance of all rows at once along a component lies between these two.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)

    See Also
    --------
    FederatedPCA : PCA of rows that belong to several clients.
    sklearn.decomposition.IncrementalPCA : Keeps no extra directions.

    Notes
    -----
    The model is a `Subspace` of ``n_components`` and some extra directions. Each block of rows is
    stacked under it, and the leading right singular vectors of the stack are the next model. Where
    not all directions are kept, the reconstruction error is within 1e-4 of the best one if
    variances fall like 1 / i or faster (10,000 rows, 500 features, 20 components and 25 extra
    directions). This is SPCA of [1]_ (Algorithm 3), which is MOSES [2]_ for a fixed rank; with
    ``rank_rule=ContributionBounds()`` it is SAPCA.

    With k directions kept and b rows a block, a row costs O(d (k + b + k^2 / b)) operations; memory
    is O(d k), see `memory_bytes`. More than 512 dense rows in one call, at least 4 k of them, of at
    least 8 k features, are multiplied with .75 k vectors in each of two passes instead, and what is
    kept of them is Nystroem's approximation of their scatter matrix, which never exceeds it. Sparse
    rows cost O(nnz k), no block is densified while n_features > 256; below, blocks of 8 n_features
    rows are. Where all directions are kept, a row costs d^2 operations, and sparse rows their
    products with each other, or, where more than 8 % of the entries are there, those of chunks of
    512 kB as dense rows. Only the ``n_components`` are found; the others when somebody reads
    ``subspace_``. Very few components of some hundred rows and columns, up to 2^20 entries, come
    from products of the rows with some dozens of vectors: they are exact, and what is kept beyond
    them is as close as these products tell, without an eigenvalue above twice the least one kept
    that is missed.

    Where all directions are kept, a batch adds its scatter matrix to that of the rows before, and
    the fitted attributes are found when one of them is read, in one eigenproblem. A sum that is not
    certain to tell the wanted directions to ten digits (of float32 rows to five), as of spectra
    that fall by 1e-5 or more, is replaced by directions, and the batch goes through QR.

    A few dense rows without weights go to a buffer and are taken as one batch, after 1,024 of them
    or as many as 2 MB hold, but at least as many as features if all directions are kept, or before
    anything else; with ``scale`` or ``partial_out`` up to 4 n_features rows, in at most 32 MB. So
    do batches of an iterable. Attributes are computed when one is read, of all rows; that changes
    no later number.

    With times, a late row gets the weight of its own time, so that the result does not depend on
    the order of the rows; rows of one time fade alike; in a gap nothing fades by itself, but the
    first row after it finds the others that much lighter. The mean, ``subspace_.n_samples`` and
    the variances are weighted alike. Time zones are compared as UTC.

    With ``scale`` or ``partial_out``, and all directions kept, the components follow from the
    scatter matrix of the rows in one eigenproblem, and the directions of ``subspace_`` are found
    when more rows come or somebody reads them: 5 to 14 times the time of an eigenproblem where
    columns differ by more than a factor of 1,000, so that calls with many rows are cheaper.

    What was cut leaves the trace t of the scatter matrix unexplained, and with the gap g between
    the last component's and the next squared singular value, sin(2 angle) <= t / g (Davis and
    Kahan): tight where hardly anything was cut, and inf for t >= g.

    Differences from scikit-learn's IncrementalPCA and PCA: batches of any size, one row included;
    ``n_components`` may exceed the number of rows, and ``n_components_`` says how many exist;
    sample weights; ``noise_variance_`` is right; a constant column or constant data gives zeros,
    not NaN.

    References
    ----------
    .. [1] A. Grammenos, R. Mendoza-Smith, C. Mascolo, J. Crowcroft, "Federated PCA with adaptive
       rank estimation", arXiv:1907.08059v1, 2019.
    .. [2] A. Eftekhari, R. Hauser, A. Grammenos, "MOSES: a streaming algorithm for linear
       dimensionality reduction", IEEE TPAMI 2019.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import StreamingPCA
    >>> X = load_digits().data
    >>> pca = StreamingPCA(3)
    >>> for batch in X[:1000], X[1000:1001], X[1001:]:
    ...     _ = pca.partial_fit(batch)
    >>> pca.explained_variance_ratio_.round(4)
    array([0.1489, 0.1362, 0.1179])
    >>> pca.transform(X[:1]).round(2)
    array([[ -1.26, -21.27,   9.46]])
    """

    # `times` travels through pipelines and searches without a request by the user
    __metadata_request__fit = {"times": True}
    __metadata_request__partial_fit = {"times": True}
    _takes_arrays = True

    rank_history_: Any = computed(when="rank_rule")
    last_time_: Any = computed(when="half_life")

    _parameter_constraints: dict = {
        "n_components": [
            Interval(Integral, 1, None, closed="left"),
            Interval(RealNotInt, 0, 1, closed="neither"),
            StrOptions({"parallel", "held-out", "mle"}),
            None,
        ],
        "oversampling": [StrOptions({"auto"}), Interval(Integral, 0, None, closed="left")],
        "block_size": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
        "forgetting_factor": [Interval(Real, 0, 1, closed="right")],
        "half_life": HALF_LIFE,
        "forgetting": [StrOptions({"rows", "blocks"})],
        "rank_rule": [InstanceOf(RankRule), None],
        "center": ["boolean"],
        "whiten": ["boolean"],
        "svd_solver": [StrOptions({"auto", "gram", "qr"})],
        **AdjustingMixin._adjusting_constraints,
    }

    def __init__(
        self,
        n_components: int | float | str | None = None,
        *,
        oversampling: int | Literal["auto"] = "auto",
        block_size: int | Literal["auto"] = "auto",
        forgetting_factor: float = 1.0,
        half_life: Any = None,
        forgetting: str = "rows",
        rank_rule: Any = None,
        center: bool = True,
        whiten: bool = False,
        svd_solver: str = "auto",
        scale: bool = False,
        partial_out: Any = None,
    ):
        self.n_components = n_components
        self.oversampling = oversampling
        self.block_size = block_size
        self.forgetting_factor = forgetting_factor
        self.half_life = half_life
        self.forgetting = forgetting
        self.rank_rule = rank_rule
        self.center = center
        self.whiten = whiten
        self.svd_solver = svd_solver
        self.scale = scale
        self.partial_out = partial_out

    @classmethod
    def from_subspace(
        cls,
        subspace: Subspace,
        n_components: int | float | str | None = None,
        *,
        n_samples_seen: int | None = None,
        last_time: Any = None,
        **parameters: Any,
    ) -> StreamingPCA:
        """Build a fitted estimator that continues the stream of a summary.

        With the parameters of the estimator that the whole `subspace_` is from, `partial_fit` gives
        the numbers that this estimator would have given, up to rounding; of a pickled estimator
        they are the same bit by bit.

        Parameters
        ----------
        subspace : Subspace
            Of at least one row. Directions that were cut from it are lost: a warning tells if fewer
            are left than ``n_components``.
        n_components : int, float, "parallel", "mle" or None, default=None
            With a ``rank_rule`` the rank to go on from: ``n_components_`` then.
        n_samples_seen : int, default=None
            Rows that the summary stands for. None: its ``n_samples``, rounded up, which is their
            number unless they were weighted or forgotten.
        last_time : numpy.datetime64, default=None
            ``last_time_`` of the stream, for a ``half_life`` that is a time.
        **parameters
            Of the estimator. Without ``center``, that of the summary.

        Returns
        -------
        pca : StreamingPCA

        Notes
        -----
        A summary knows neither ``rank_history_``, which starts anew, nor how many blocks ago a
        ``rank_rule`` changed the rank: its ``hold_off`` starts anew as well. Rows that wait for
        others are in it, so that it goes on as from the end of a batch. "auto" as ``block_size``
        depends on the first rank, so above 256 features give it as a number.

        Examples
        --------
        >>> import numpy as np
        >>> from fedpca_sklearn import StreamingPCA, Subspace
        >>> X = np.random.default_rng(0).standard_normal((100, 5))
        >>> pca = StreamingPCA(2).fit(X[:60])
        >>> message = pca.subspace_.to_bytes()
        >>> elsewhere = StreamingPCA.from_subspace(Subspace.from_bytes(message), 2)
        >>> goes_on, stays = elsewhere.partial_fit(X[60:]), pca.partial_fit(X[60:])
        >>> np.allclose(goes_on.components_, stays.components_, rtol=0, atol=1e-13)
        True
        """
        (subspace,), place = checked_with_place([subspace])
        pca = cls(n_components, **{"center": subspace.centered, **parameters})
        pca._check_parameters()
        if pca.center != subspace.centered:
            raise ValueError(
                f"center={pca.center!r} differs from the summary, which is about the "
                f"{'mean' if subspace.centered else 'origin'}."
            )
        check_at_most_features(n_components, subspace.n_features)
        if not subspace.n_samples > 0:
            raise ValueError("subspace must hold at least one row, it has n_samples=0.")
        if n_samples_seen is None:
            n_samples_seen = max(math.ceil(subspace.n_samples), subspace.n_components)
        else:
            check_integer("n_samples_seen", n_samples_seen)
        pca.n_features_in_ = subspace.n_features
        if subspace.feature_names is not None:
            pca.feature_names_in_ = np.array(subspace.feature_names, dtype=object)
        rank = pca._sizes.start_rank
        ranks = None if rank is None else np.zeros(0, dtype=int)
        last_time = None if last_time is None else times_of([last_time], 1)[0]
        pca._keep(State(subspace, int(n_samples_seen), rank, ranks=ranks, last_time=last_time))
        pca._warn_of_cut()
        pca._warn_of_another_cut()
        show_in(place, pca)
        return pca

    @with_callbacks
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, times: Any = None
    ) -> StreamingPCA:
        """Fit from scratch.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
            A memory map, an HDF5 or zarr array is read slice by slice. An iterator (or a list of
            2-D arrays) is a stream of batches of any size. The chunks of a dask.array are
            summarised by its workers and merged, or with a ``rank_rule`` or
            ``forgetting="blocks"`` taken in order.
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
        with self._processing(X, sample_weight, None, times) as (take, _):
            self._keep(take(self, X, sample_weight, None))
        return self

    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, times: Any = None
    ) -> StreamingPCA:
        """Update the fit with more rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
            One row or more, the first time as well. Dense rows that come one by one, or few at a
            time, wait for each other, see Notes.
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
        if sample_weight is None and self._buffered(X, times):
            return self
        return self._go_on(X, sample_weight, times)

    @with_callbacks
    def _go_on(self, X: Any, sample_weight: Any, times: Any) -> StreamingPCA:
        state, buffer, _ = self._stream
        with self._processing(X, sample_weight, state, times) as (take, times):
            longer = None
            if sample_weight is None and not self._sizes.by_batch and is_few(self, X):
                longer = self._longer(buffer, X, times, state)
            if longer is not None and longer.n < longer.room:
                self._keep(state, longer)
                return self
            if longer is not None or buffer is not None:
                state = self._after(state, longer or buffer)
            if longer is None:
                state = take(self, X, sample_weight, state)
            self._keep(state)
        return self

    def refine(self, X: Any, sample_weight: Any = None, *, n_rounds: int = 1) -> StreamingPCA:
        """Take another pass over the rows of the fit, which brings the components closer to PCA's.

        The directions that are kept, k of them, and eight vectors at random are multiplied with the
        scatter matrix of all rows; the new ones are the best of their block Krylov space, by
        Nystroem's approximation. Mean, count and scatter, which are exact, stay.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
            All rows seen so far, in any order and in any batches. A memory map, an HDF5 or zarr
            array and a dask.array are read chunk by chunk.
        sample_weight : array-like of shape (n,), default=None
            Those of the fit. Not for iterables.
        n_rounds : int, default=1
            Passes over the rows. More than one is better than as many calls, as the space keeps all
            products; an iterator can be read once.

        Returns
        -------
        self : StreamingPCA
            Unchanged if an error is raised. `partial_fit` may go on from there.

        Raises
        ------
        ValueError
            If the rows have another weight, mean or sum of squares than those of the fit, or if the
            ``forgetting_factor`` is below 1 or a ``half_life`` is given: rows that have faded
            cannot be taken again.

        Notes
        -----
        A round costs 4 n d (k + 8) operations, 2 nnz (k + 8) of sparse rows, which stay sparse; r
        rounds take O(d r k) memory. ``subspace_error_bound_`` is then from the products. The part
        of the scatter matrix that they leave has at most the trace that is left, and at most the
        norm that the vectors at random show, unless these are all but orthogonal to its leading
        eigenvector: that has a probability of 1e-6 for rows that do not depend on them.

        Examples
        --------
        >>> from fedpca_sklearn import StreamingPCA, excess_error, make_power_law
        >>> X = make_power_law(2000, 600, alpha=1.0, random_state=1)
        >>> pca = StreamingPCA(5).fit(X[i : i + 200] for i in range(0, 2000, 200))
        >>> print(f"{excess_error(X, pca.components_, pca.mean_):.0e}")
        1e-05
        >>> pca = pca.refine(X)
        >>> excess_error(X, pca.components_, pca.mean_) < 1e-6
        True
        >>> pca.refine(X, n_rounds=4).subspace_error_bound_ < 1e-6
        True
        """
        check_is_fitted(self)
        state, buffer, _ = self._stream
        check_integer("n_rounds", n_rounds)
        check_readable(self, X, n_rounds)
        with self._processing(X, sample_weight, state):
            state = self._after(state, buffer)
            if not state.subspace.scatter:
                return self
            refinement = self._refinement(state.subspace)
            for _ in range(n_rounds):
                if len(refinement.block):
                    refinement.add(products(self, X, sample_weight, refinement))
            self._keep(replace(state, subspace=refinement.summary()))
            self._certify(refinement.certificate(self.n_components_))
        return self

    def memory_bytes(self, n_features: int, *, dtype: Any = np.float64) -> int:
        """Predict the peak memory of a fit on dense rows; the rows themselves are not counted.

        Parameters
        ----------
        n_features : int
            Number of columns of the rows.
        dtype : dtype, default=float64
            Of the rows.

        Returns
        -------
        n_bytes : int
            Two bases of k directions, one stack or a chunk of it, and small matrices; where all
            directions are kept, three d x d matrices, of at most 32 MB each, and in a stream of
            several blocks the basis before them as well. If fewer than d / 4 components are asked
            of more than 256 features, the first block takes two and leaves one, which is what is
            stated; the other directions, which the next block or a look at ``subspace_`` needs,
            take four, and a call with fewer rows than features up to five. A stack has up to 512
            new rows, or ``block_size`` of them. Rows of up to 2^20 entries, of which very few
            components are asked, are copied. Passes over more rows than that in one call take a
            sample of up to 16 MB and nine bases of .75 k vectors instead (or 1.2 ``n_components``,
            or 12, if that is more), two bases for the k directions before, and for each thread
            that BLAS may use now two of as many vectors and 2 MB. Up to 1,024 features each of
            these threads has two d x d matrices and a chunk of 1,024 rows, or of 4,096 in float32,
            but all have at most 128 MB of matrices. But for those four or five, a fit takes at most
            1.05 times this, the work space of LAPACK included, which not all releases of numpy and
            scipy show to tracemalloc.
            Only for an ``n_components`` that is a number (otherwise k depends on the data) or where
            all directions are kept. If ``svd_solver="auto"`` has to fall back to QR, the peak is
            that of ``svd_solver="qr"``.
            With ``scale`` two copies of a block come on top, with ``partial_out`` three, each of at
            most all rows of a call in float64, and 32 MB at most of small batches that wait.
        """
        return self._sizes.memory_bytes(n_features, dtype)

    # ---------------------------------------------------------------- parameters

    @property
    def _sizes(self) -> Sizes:
        return Sizes(self)

    @property
    def _half_life_in_time(self) -> Any:
        """The half-life as a time; None if it is not one."""
        return duration_of(self.half_life)

    @property
    def _row_factor(self) -> float:
        """Factor on the weight of a row with each later row."""
        return forgetting_of(self) if self.forgetting == "rows" else 1.0

    @property
    def _blocks_forget(self) -> bool:
        return self.forgetting == "blocks" and self.forgetting_factor < 1

    def _check_parameters(self) -> None:
        self._validate_params()
        if self.rank_rule is not None:
            self.rank_rule.validate()
        self._check_adjusting()
        check_half_life(self, "forgetting_factor", "forgetting")

    @contextmanager
    def _processing(
        self, X: Any, sample_weight: Any, state: State | None, times: Any = None
    ) -> Iterator[tuple[Any, np.ndarray | None]]:
        """How the rows of a call are taken, and their times; an error leaves no trace."""
        self._check_parameters()
        with self._unchanged_on_error():
            if sample_weight is not None and is_stream(X):
                raise ValueError("sample_weight cannot be given when X is an iterable of batches.")
            if state is not None and state.subspace.centered != self.center:
                raise ValueError(
                    f"center={self.center!r} differs from the rows seen before; call fit to start "
                    "again."
                )
            in_order = not is_dask(X) or self.rank_rule is not None or self.forgetting == "blocks"
            take: Any = take_rows if in_order else merge_chunks
            times = times_of_rows(self.half_life, times, X)
            if times is not None and state is not None and state.last_time is None:
                raise ValueError(CAME_WITHOUT_TIMES)
            yield take if times is None else partial(_timed, take, times), times

    # ---------------------------------------------------------------- the stream

    @property
    def _stream(self) -> Stream:
        """State, and rows in the buffer."""
        return self._last_state() or Stream(None)

    @property
    def _state(self) -> State | None:
        """State before the rows in the buffer."""
        return self._stream.state

    def _buffered(self, X: Any, times: Any) -> bool:
        """Take few rows, if they need no other check than that of their numbers."""
        stream = self._state_without_checks()
        if stream is None or not stream.unchecked:
            return False
        state, buffer, unchecked = stream
        if not buffer.takes(X, times, buffer.rows.dtype, unchecked):
            return False
        buffer = buffer.with_rows(X, times)
        if buffer.n < buffer.room:
            self.__dict__[LEARNT] = Learnt(Stream(state, buffer, unchecked))
            return True
        with self._unchanged_on_error():
            self._keep(take_buffer(self, buffer, state), room=buffer.room)
        return True

    def _longer(
        self, buffer: RowBuffer | None, X: Any, times: np.ndarray | None, state: State | None
    ) -> RowBuffer | None:
        """The buffer with few rows that are validated; None if they cannot wait for others."""
        dtype = buffer.rows.dtype if buffer is not None else None
        parts = list(validated_blocks(self, X, None, dtype))
        rows = in_numpy(parts[0][0])
        self._check_columns(rows.shape[1])
        room = self._sizes.buffer(rows.shape[1])
        if len(parts) > 1 or room == 1 or not is_tame(rows.ravel()) or not _is_tame(state):
            return None
        for _ in progress(self, [rows], 1, "blocks"):
            pass
        if buffer is None or not buffer.n:
            return RowBuffer(rows.copy(), room, times)
        if times is None:
            return buffer.with_rows(rows)
        both = np.concatenate([buffer.times, times])  # of whichever unit
        return RowBuffer(np.concatenate([buffer.rows, rows]), room, both)

    def _after(self, state: State | None, buffer: RowBuffer | None) -> Any:
        """The state after the rows of a buffer."""
        return take_buffer(self, buffer, state) if buffer is not None and buffer.n else state

    def _keep(self, state: State | None, buffer: RowBuffer | None = None, room: int = 0) -> None:
        """Keep the state of a stream; attributes are computed when one is read.

        ``room`` of the buffer, if rows like those before need no other check.
        """
        sizes, is_tame = self._sizes, _is_tame(state)
        if state is not None:
            if not (room and is_tame):
                self._with_usual_weights(state.subspace, state.n_rows)
            buffer = buffer or self._empty_buffer(state, room)
        assert buffer is not None
        unchecked = 0
        if is_tame and (room or not (hasattr(self, "feature_names_in_") or sizes.by_batch)):
            unchecked = sizes.few(buffer.rows.shape[1], buffer.room) - 1
        self.__dict__[LEARNT] = Learnt(Stream(state, buffer, unchecked))
        if sizes.by_batch:
            self._values()  # which may be an error

    def _settle(self) -> None:
        state, buffer, _ = self._stream
        values, state = self._values(), self._after(state, buffer)
        buffer = None if state is None else self._empty_buffer(state)
        self.__dict__[LEARNT] = Learnt(Stream(state, buffer), values)

    def _empty_buffer(self, state: State, room: int = 0) -> RowBuffer:
        d, last = state.subspace.n_features, state.last_time
        times = None if last is None else np.empty(0, last.dtype)
        nothing = np.empty((0, d), state.subspace._dtype)
        return RowBuffer(nothing, room or self._sizes.buffer(d), times)

    def _compute(self, stream: Stream) -> dict[str, Any]:
        state = self._after(*stream[:2])
        request = self.n_components if self.rank_rule is None else state.rank
        values = self._attributes(state.subspace, request, state.n_rows)
        if state.ranks is not None:
            values["rank_history_"] = state.ranks
        if state.last_time is not None:
            values["last_time_"] = state.last_time
        return values

    def _flush(self) -> Subspace:
        """Take the rows of the buffer into the state, and return the summary of all."""
        state, buffer, _ = self._stream
        if buffer is not None and buffer.n:
            with self._unchanged_on_error():
                state = self._after(state, buffer)
                self._keep(state)
        return state.subspace._named(getattr(self, "feature_names_in_", None))  # type: ignore

    def _fitted_later(self, subspace: Subspace, n_rows: int) -> StreamingPCA:
        """A copy of this estimator, not fitted so far, that shows a summary when it is read."""
        fitted = self._twin()
        fitted.__dict__.update(
            {"n_features_in_": subspace.n_features, LEARNT: Learnt(Stream(State(subspace, n_rows)))}
        )
        return fitted

    def _never_exceeds(self) -> bool:
        # a summary of another library may not know its scatter
        return self._values()["subspace_"].column_scatter is not None


def _timed(
    take: Any, times: np.ndarray, pca: StreamingPCA, X: Any, sample_weight: Any, state: Any
) -> State:
    return take_with_times(pca, take, times, X, sample_weight, state)


def _is_tame(state: State | None) -> bool:
    """Whether no sum over what has been seen and over rows of moderate size can overflow."""
    if state is None:
        return True
    subspace = state.subspace
    return is_tame_state(subspace.mean, subspace.total_variance, subspace._dtype)
