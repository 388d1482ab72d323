"""Online distributed PCA: projections averaged over clients and time. Tarzanagh et al."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils._param_validation import StrOptions

from .._base.batches import count_rows, float_dtype
from .._base.sources import is_stream, iter_batches
from .._kernels import linalg
from .._kernels.rows import centred_product
from .._kernels.sizes import EXACT_ORDER, SMALL_DIMENSION, auto_block_size, kept_directions
from .._kernels.too_large import largest_named
from .._validation.checks import (
    AT_LEAST_ONE,
    allowed,
    check_at_most_features,
    check_rows,
    number_or_none,
    with_parameters,
)
from ..communication import Federation
from ..communication._federation import Message, clients_named, message_of
from ..summary import Subspace, merge_subspaces
from ..summary._merging import pooled_moments
from ..summary._projection_mean import ROWS_AT_ONCE, ProjectionMean, factor_along, rayleigh_ritz
from ..summary._updating import updated, updated_by_block
from ._clients import StreamingClientsTransformer, rows_of
from ._merge import MergeStrategy, check_count, moments_and_factor

# Parameters that hold for all steps of a fit.
_SETTINGS = ("average", "weighting", "center", "variances")


@with_parameters
class OnlineDistributedPCA(StreamingClientsTransformer):
    """Principal eigenspaces averaged over clients and time steps.

    Every `partial_fit` is a time step. Each client sends the leading eigenspace of its rows of this
    step, of dimension ``projection_dim``; the server averages the projections on them with those of
    all earlier steps, and the leading eigenvectors of the mean are the components. Singular values
    play no part, so the result does not depend on the scale of a client or of a step. Local
    problems are small, nothing is sent twice, and no rows are kept.

    Parameters
    ----------
    n_components : int or None, default=None
        K of [1]_. None: all that the local eigenspaces span, for few features only.
    projection_dim : int or None, default=None
        Dimension K + Z of a local eigenspace, which may also be below K. None: ``n_components``.
    average : {"shards", "steps"}, default="shards"
        What the mean is of. "shards": the projections on all local eigenspaces, U* of Lemma 1 in
        [1]_. "steps": the projections on the K leading eigenvectors of the mean of each step, which
        is Algorithm 1 (ODPCA) of [1]_.
    weighting : {"equal", "rows"}, default="equal"
        Weight of a shard in the mean, and of a step with ``average="steps"``: one as in [1]_, or
        its number of rows; see `ProjectionAverage`. The same for shards of equal size.
    center : bool, default=True
        False: eigenvectors of the second moments about the origin, as in [1]_, whose rows have mean
        zero; ``mean_`` is zero, and a single row has a direction.
    variances : {"measured", "sent"}, default="measured"
        Where the explained variances come from; the components do not depend on it. "measured": a
        second exchange in each step, in which clients measure their rows in the basis of the
        server. "sent": the singular values that come with the local eigenspaces, so that a client
        sends one message a step, as in [1]_, and nothing comes down. Shards then count as without
        variance beyond what they sent, so the explained variances are lower bounds.
    n_clients : int, default=5
        Contiguous shards that stand in for clients where ``clients`` is not given; m of [1]_. There
        are fewer where they would have less than ``projection_dim`` + 1 rows (``projection_dim``
        with ``center=False``).
    n_jobs : int or None, default=None
        Clients at work at the same time; threads, unless ``joblib.parallel_config`` says otherwise.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
        Orthonormal basis of the leading eigenspace of the mean, rotated to the principal axes of
        the rows within it, as far as the variances are known.
    singular_values_, explained_variance_, explained_variance_ratio_ : ndarray of shape \
            (n_components_,)
        Measured: of the rows seen, projected on the basis of their own step, then from basis to
        basis. What lies between the bases is lost, so for rows of one distribution they are a few
        percent too low while the basis still moves; where a late step brings up a direction that
        was not in the basis, its variance in earlier steps is not known. Sent: of the local
        eigenspaces of all steps, merged; never above the variance of the rows. In both, directions
        beyond the span of the local eigenspaces, if more are asked for, count as without variance.
    mean_, noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`; mean and total variance are exact.
    projection_values_ : ndarray of shape (n_kept,)
        Leading eigenvalues of the mean of the projections, between 0 and 1: the share of all
        shards, or steps (with ``weighting="rows"`` of all rows), whose eigenspace holds the
        direction.
    projection_error_ : float
        Bound on the spectral norm of what is missing of the mean of the projections, because it was
        cut off to keep the mean in O(d K) memory; 0 up to 256 features.
    n_steps_ : int
        Time steps seen.
    clients_ : list
        Labels of the clients seen so far, sorted.
    communication_ : CommunicationLog
        A round a step: eigenspaces up. With ``variances="measured"`` a second one: the server's
        basis down, and the moments in it up.

    See Also
    --------
    ProjectionAverage : The average over clients, as the ``merge`` of `FederatedPCA`.
    StreamingPCA : Weighs directions by their variance.

    Notes
    -----
    **Which average.** ``OnlineDistributedPCA(K, average="steps", center=False, variances="sent")``
    is Algorithm 1 of [1]_, to the letter up to 256 features, and beyond but for the truncation
    below. It forgets within each step how sure a direction was: one that nearly all clients have
    and one that leads by chance count the same afterwards. "shards" keeps the shares, and was the
    more accurate one wherever the two differed, for the same messages, hence the default: for five
    clients with 50 rows of 100 features in each of 64 steps and variances of 2 above 1, the
    distance of the projections to the truth is .45, with "steps" .53; with 200 rows and variances
    of 5 above 1 both have .14 (``python -m benchmarks
    online_distributed_steps``). Up to truncation it is Fan's DPCA [2]_ with a client for every
    shard of every step, and does not depend on the order or on the grouping of shards into steps;
    "steps" depends on the grouping, not on the order of the steps or within them.

    **Truncation.** The running mean is kept as its 2 K + 10 leading eigenpairs (all, up to 256
    features), whatever the number of steps; "steps" adds K directions to it each time, "shards"
    those of all clients. Davis and Kahan bound the sine of the largest angle to the components that
    the mean of the same local eigenspaces would give without truncation by ``e /
    (projection_values_[K - 1] - projection_values_[K])`` with ``e = projection_error_``; with
    "steps" and more than 1,024 local directions in a step, where that mean is cut as well, ``e`` is
    to be subtracted from the denominator. The bound is known after the fact only: where the
    subspace of the rows changes for good after many steps, what is new may be cut off again and
    again, and ``projection_error_`` grows. It says nothing of the local eigenspaces. These are
    exact for dense shards with up to 1,024 rows or 1,024 features, and for sparse ones with up to
    512 rows, or up to 1,024 features and at least as many rows. Those of larger shards are of one
    pass of `StreamingPCA`, or of a Krylov space of sparse rows: near where variances fall, far off
    where they are flat.

    **Messages.** With ``variances="sent"`` a client sends (K + Z) (d + 1) + 2 floats a step, and d
    more for its mean with ``center=True``. With "measured" it sends d further floats for the
    scatter of the columns, takes k d for k eigenpairs kept (2 K + 10, or up to d below 256
    features), and sends min(n_i, k) k.

    For m shards of d features a step costs the clients the eigenvectors of their rows, in time
    O(n_i d min(n_i, d)) where these are exact, beyond that O(n_i d K), and the server
    O((m K)^2 d) time and O(m K d) memory; shards of sparse rows use the columns they have. Exact
    eigenvectors take the memory of two matrices of order min(n_i, d) beside O(d K).

    Centred local eigenspaces are about the mean of the shard, so a client with a single row in a
    step has none: it adds to mean and variances only.

    ``average``, ``weighting``, ``center`` and ``variances`` hold for all steps of a fit.

    `fit` and `partial_fit` of a matrix are a single step; of a list of matrices, or an iterator, a
    step for each, without ``clients`` or ``sample_weight``.

    References
    ----------
    .. [1] D. A. Tarzanagh, M. K. S. Faradonbeh, G. Michailidis, "Online distributed estimation of
       principal eigenspaces", 2019, arXiv:1905.07389.
    .. [2] J. Fan, D. Wang, K. Wang, Z. Zhu, "Distributed estimation of principal eigenspaces",
       Annals of Statistics 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import OnlineDistributedPCA, excess_error, make_power_law
    >>> X = make_power_law(10_000, 100, alpha=1.0, random_state=0)
    >>> pca = OnlineDistributedPCA(5, projection_dim=8)
    >>> for step in np.split(X, 10):
    ...     _ = pca.partial_fit(step)
    >>> round(excess_error(X, pca.components_), 5)
    0.0004

    Algorithm 1 of [1]_, with one message of a client in each of ten steps:

    >>> odpca = OnlineDistributedPCA(5, average="steps", center=False, variances="sent")
    >>> odpca.fit(np.split(X, 10)).communication_
    CommunicationLog(rounds=10, floats_up=25350, floats_down=0, bytes_up=204600, bytes_down=0)
    >>> round(excess_error(X, odpca.components_), 5)
    0.0001
    """

    n_components: int | None = allowed(AT_LEAST_ONE, None, default=None)
    _: KW_ONLY
    projection_dim: int | None = allowed(AT_LEAST_ONE, None, default=None)
    average: str = allowed(StrOptions({"shards", "steps"}), default="shards")
    weighting: str = allowed(StrOptions({"rows", "equal"}), default="equal")
    center: bool = allowed("boolean", default=True)
    variances: str = allowed(StrOptions({"measured", "sent"}), default="measured")
    n_clients: int = 5
    n_jobs: int | None = None

    def _process(self, X: Any, clients: Any, sample_weight: Any, method: str) -> None:
        if not is_stream(X):
            super()._process(X, clients, sample_weight, method)
            return
        for name, value in (("clients", clients), ("sample_weight", sample_weight)):
            if value is not None:
                raise ValueError(f"{name} cannot be given when X is an iterable of time steps.")
        before = self._state
        for step in iter_batches(X):
            super()._process(step, None, None, method)
        if self._state is before:
            raise ValueError("X is a stream without time steps; at least one row is required.")

    @property
    def _size(self) -> int | None:
        """Dimension of a local eigenspace."""
        asked = self.n_components if self.projection_dim is None else self.projection_dim
        return number_or_none(asked)

    @property
    def _least_rows(self) -> int:
        return (self._size or 1) + self.center

    def _reset(self) -> None:
        self._state: State | None = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        before = getattr(self, "_state", None)
        for name, value in before.settings.items() if before else ():
            if value != getattr(self, name):
                raise ValueError(
                    f"{name}={getattr(self, name)!r} differs from {value!r} of the steps seen "
                    "before; call fit to start again."
                )

    def _step(self, X: Any, weight: Any, shards: list[tuple[Any, Any]], method: str) -> list[Any]:
        state = self._state_before(X.shape[1], float_dtype(X))
        start = Subspace.empty(X.shape[1], centered=self.center, dtype=state.dtype)
        options = start, self._size, self.variances == "measured"
        calls = ((*call, *options) for call in rows_of(X, weight, shards))
        found = dict(self._map(local_eigenspace, calls, shards))

        def measure(basis: np.ndarray) -> list[np.ndarray]:
            means = {label: space.mean for label, (space, _) in found.items()}
            rows = rows_of(X, weight, shards)
            again = ((*call, means[call[0]], basis) for call in rows if call[0] in means)
            return list(Federation(self.n_jobs).map(local_moments, again))

        self._take_step(found, state, measure)
        return list(found)

    def _state_before(self, d: int, dtype: np.dtype) -> State:
        """State that a step goes on from."""
        check_at_most_features(self.projection_dim, d, "projection_dim")
        settings = {name: getattr(self, name) for name in _SETTINGS}
        return self._state or State.empty(d, dtype, settings)

    def _take_step(
        self,
        found: dict[Any, tuple[Subspace, int]],
        state: State,
        measure: Callable[[np.ndarray], list[np.ndarray]],
        average: Callable[[ProjectionMean, list[Subspace]], ProjectionMean] | None = None,
    ) -> None:
        """Take the eigenspaces of a step, and numbers of rows, into the state before.

        ``measure(basis)`` is the second exchange: the factors of the clients' rows in a basis.
        ``average(mean, spaces)`` is the mean with theirs, where only sums of them are known.
        """
        spaces = {label: space for label, (space, _) in found.items()}
        n_rows = state.n_rows + sum(n for _, n in found.values())
        self.communication_.record(map(_message, spaces.values()))

        mean = (average or self._next_mean)(state.mean, list(spaces.values()))
        with largest_named(partial(clients_named, spaces), list(spaces.values())):
            if self.variances == "sent":
                asked, d = number_or_none(self.n_components), state.total.n_features
                keep = None if asked is None else kept_directions(max(asked, self._size or 1), d)
                total, moments = merge_subspaces([state.total, *spaces.values()], keep), None
            else:
                total, moments = self._measured(state, mean, spaces, measure)
            self.n_steps_ = n_steps = state.n_steps + 1
            self._state = State(state.settings, mean, moments, total, n_rows, n_steps, state.dtype)
            self._set_fitted(self._state.leading(self.n_components), self.n_components, n_rows)
        self.projection_values_ = mean.values.copy()
        self.projection_error_ = mean.dropped

    def _eigenpairs_kept(self, d: int) -> int:
        """Eigenpairs of the mean that are kept at most."""
        if d <= SMALL_DIMENSION or self.n_components is None:
            return d
        return min(d, 2 * int(self.n_components) + 10)

    def _next_mean(self, mean: ProjectionMean, spaces: list[Subspace]) -> ProjectionMean:
        """Mean of projections after one more step."""
        max_rank = self._eigenpairs_kept(mean.vectors.shape[1])
        shares = shares_of(spaces, self.weighting)
        if self.average == "shards":
            return mean.add(spaces, shares, max_rank)
        step, sine = projection_average(
            spaces, number_or_none(self.n_components) or self._size, shares
        )
        (share,) = shares_of([step], self.weighting)
        return mean.add([step], [share], max_rank).blurred(sine, share)

    def _measured(
        self,
        state: State,
        mean: ProjectionMean,
        spaces: dict[Any, Subspace],
        measure: Callable[[np.ndarray], list[np.ndarray]],
    ) -> tuple[Subspace, np.ndarray]:
        """Moments of all rows, and the factor of their scatter matrix in the basis of the mean.

        The clients measure those of this step in a second exchange.
        """
        basis = np.ascontiguousarray(mean.vectors.T)
        moments = measure(basis) if basis.size else [np.zeros((0, 0))] * len(spaces)
        down = [message_of(mean.vectors)] * len(spaces)
        self.communication_.record(map(message_of, moments), down)
        parts = [part for part in (state.total, *spaces.values()) if part.n_samples > 0]
        total, corrections = pooled_moments(parts)
        before = state.moments @ (state.mean.vectors @ basis)
        return total, linalg.r_factor(np.concatenate([before, *moments, corrections @ basis]))


def _message(space: Subspace) -> Message:
    """Size of a local eigenspace as it is sent: without a mean where there is none."""
    unsent = 0 if space.centered else space.n_features
    n_floats, n_bytes = space._size()
    return Message(n_floats - unsent, n_bytes - 8 * unsent)


@dataclass(frozen=True)
class State:
    """State after all steps: mean of projections, and what is known of the scatter of the rows.

    ``total`` has their count, mean and whole scatter. With ``variances="measured"``
    ``moments.T @ moments`` is the scatter matrix of the rows, projected on ``mean.vectors``; else
    ``moments`` is None, and ``total`` has the directions of what was sent.
    """

    settings: dict[str, Any]
    mean: ProjectionMean
    moments: np.ndarray | None
    total: Subspace
    n_rows: int
    n_steps: int
    dtype: np.dtype

    @classmethod
    def empty(cls, d: int, dtype: np.dtype, settings: dict[str, Any]) -> State:
        """State before the first step."""
        total = Subspace.empty(d, centered=settings["center"], dtype=dtype)
        moments = np.zeros((0, 0)) if settings["variances"] == "measured" else None
        return cls(settings, ProjectionMean.empty(d), moments, total, 0, 0, dtype)

    def leading(self, n_components: int | None) -> Subspace:
        """Summary along the leading eigenvectors of the mean, turned to the principal axes."""
        total, moments = self.total, self.moments

        def factor(V: np.ndarray) -> np.ndarray:
            """Of the scatter matrix along the first vectors of the mean."""
            return factor_along([total], V) if moments is None else moments[:, : len(V)]

        return rayleigh_ritz(total.truncate(0), *self.mean.leading(n_components, factor))


def local_eigenspace(
    label: Any, X: Any, weight: Any, start: Subspace, size: int | None, columns: bool
) -> tuple[Subspace, int]:
    """Local work of one client: the leading eigenspace of its rows, and their number.

    Rows or features up to `EXACT_ORDER` are one block, of which nothing is cut before the end.
    ``start`` is a summary of no rows, and ``columns`` whether the scatter of columns is sent.
    """
    X = check_rows(X, [start._dtype])
    n, d = X.shape
    max_rank = None if size is None else kept_directions(size, d)
    if max_rank is not None and d <= min(n, EXACT_ORDER):
        max_rank = d
    how: Any = {"max_rank": max_rank, "n_certain": size}
    if min(n, d) <= EXACT_ORDER:
        space = updated_by_block(start, X, weight, **how)
    else:
        at_once = auto_block_size(max_rank, d, sp.issparse(X))
        space = updated(start, X, weight, block_size=at_once, **how)
    space = space.truncate(size)
    if not columns:
        space = space._replace(column_scatter=None)
    return space, count_rows(X, weight)


def local_moments(
    label: Any, X: Any, weight: Any, mean: np.ndarray, basis: np.ndarray
) -> np.ndarray:
    """Second local work: triangular factor of the rows about their mean, in a basis."""
    Z = centred_product(X, mean, basis)
    if weight is not None:
        Z *= np.sqrt(weight)[:, None]
    return linalg.r_factor(Z)


# -------------------------------------------------------------------- in one exchange


@with_parameters
class ProjectionAverage(MergeStrategy):
    """Leading eigenvectors of the mean of the clients' projection matrices.

    Every client has the same weight, whatever its scale and number of rows: the directions do not
    depend on singular values. Suits sites that differ by one factor for all columns, or
    at different noise, and a broken site among several; where sites differ in what they see,
    `SubspaceMerge` is the better choice. What lies between the means of sites is in no site's
    components, and so not in the average.

    It does not correct for columns in different units, which change a site's own directions: bring
    each column to one unit before. Only directions are averaged: ``mean_`` and the variances of the
    result are plain sums over all rows, so that one site's wrong mean moves `transform` of every
    row. Where a site may be wrong, centre rows at a known point and take an estimator with
    ``center=False``.

    Parameters
    ----------
    projection_dim : int or None, default=None
        Directions that a client sends, the dimension of its projection. None: ``n_components`` of
        the estimator.
    weighting : {"equal", "rows"}, default="equal"
        Weight of a client in the mean: one as in [1]_, or its number of rows. The same for clients
        of equal size. "rows" is more accurate where sites are alike and of very different sizes,
        and lets a site that claims many rows decide.

    See Also
    --------
    SubspaceMerge : Merge with singular values, exact without truncation.
    OnlineDistributedPCA : The average over clients and time.

    Notes
    -----
    [1]_, Algorithm 1, if the clients' estimator finds their leading directions exactly. The default
    does up to 500 features, or 40 times as many as directions and 200 if that is more, at most
    2,048; ``estimator=PCA(svd_solver="full")`` of scikit-learn always does. The mean is kept as
    eigenpairs, in O(R d) memory for R directions in all (512 of them where more than 1,024 come
    in), never as a d x d matrix. Time O(R d min(R, d)). The means, variances and the total scatter
    of the result are those of the merged summaries along the directions found; only for them do the
    singular values travel. Directions beyond the span of the local eigenspaces, if more are asked
    for, have a variance of zero in the result, whatever the rows have there. Among directions with
    equal eigenvalues, such as those of a single client with ``projection_dim`` above
    ``n_components``, the ones with the most variance come first.

    References
    ----------
    .. [1] J. Fan, D. Wang, K. Wang, Z. Zhu, "Distributed estimation of principal eigenspaces",
       Annals of Statistics 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import FederatedPCA, ProjectionAverage, subspace_distance
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((400, 2)) @ rng.standard_normal((2, 6))
    >>> X += 0.1 * rng.standard_normal((400, 6))
    >>> true = np.linalg.svd(X)[2][:2]
    >>> X[380:] = 100 * rng.standard_normal((20, 6))  # one of twenty sites sends noise
    >>> for merge in None, ProjectionAverage():
    ...     pca = FederatedPCA(2, merge=merge, n_clients=20).fit(X)
    ...     print(round(subspace_distance(pca.components_, true), 2))
    0.85
    0.03
    """

    compares_sites = False

    projection_dim: int | None = allowed(AT_LEAST_ONE, None, default=None)
    weighting: str = allowed(StrOptions({"rows", "equal"}), default="equal")

    def directions_needed(self, n_components: int | float | None) -> int | None:
        """Return ``projection_dim``, or ``n_components`` without one."""
        why = "a mean of projections has no variances."
        asked = check_count(n_components, f"ProjectionAverage: {why}", or_none=True)
        return asked if self.projection_dim is None else self.projection_dim

    def directions_sent(self, n_components: int | float | None) -> int | None:
        """Return as many as needed: every direction sent counts as much as the first."""
        return self.directions_needed(n_components)

    def _merge(self, parts, n_components, kept):
        if n_components is None:
            n_components = self.projection_dim
        return projection_average(parts, n_components, shares_of(parts, self.weighting))[0]


def projection_average(
    parts: Sequence[Subspace], n_components: int | None, weights: Sequence[float]
) -> tuple[Subspace, float]:
    """Summary of all rows along the leading directions of the mean of projections.

    Parameters
    ----------
    parts : sequence of Subspace
        All of them hold rows.
    n_components : int or None
        None: as many as the part with the most directions has.
    weights : sequence of float
        Those of the parts in the mean, positive.

    Returns
    -------
    summary : Subspace
    sine : float
        Bound on the sine of the largest angle to the directions of the mean without truncation; 0
        up to `ROWS_AT_ONCE` directions in all.
    """
    if n_components is None:
        n_components = max(part.n_components for part in parts)
    max_rank = max(ROWS_AT_ONCE // 2, 2 * n_components)
    mean = ProjectionMean.empty(parts[0].n_features)
    mean = mean.add(parts, weights, max_rank)
    total, factor = moments_and_factor(parts)
    found = rayleigh_ritz(total, *mean.leading(n_components, factor))
    return found, mean.sine_bound(n_components)


def shares_of(parts: Sequence[Subspace], weighting: str) -> list[float]:
    """Weights of the parts in a mean of their projections."""
    return [part.n_samples if weighting == "rows" else 1.0 for part in parts]
