"""Online distributed PCA: projections averaged over clients and time. Tarzanagh et al."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from .._base.batches import count_rows, float_dtype, is_stream
from .._kernels import linalg
from .._kernels.rows import centred_product
from .._kernels.sizes import SMALL_DIMENSION
from .._validation.checks import check_at_most_features, check_rows
from .._validation.too_large import largest_named
from ..communication import Federation
from ..communication._federation import clients_named, message_of
from ..summary import Subspace
from ..summary._along import along
from ..summary._merging import pooled_moments
from ..summary._projection_mean import ProjectionMean
from ._clients import StreamingClientsTransformer, rows_of

__all__ = ["OnlineDistributedPCA"]


class OnlineDistributedPCA(StreamingClientsTransformer):
    """Principal eigenspaces averaged over clients and time steps (ODPCA).

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
    weighting : {"equal", "rows"}, default="equal"
        Weight of a shard in the mean: one as in [1]_, or its number of rows; see
        `ProjectionAverage`. The same for shards of equal size.
    n_clients : int, default=5
        Contiguous shards that stand in for clients where ``clients`` is not given; m of [1]_. There
        are fewer where they would have less than ``projection_dim`` + 1 rows.
    n_jobs : int or None, default=None
        Clients at work at the same time; threads, unless ``joblib.parallel_config`` says otherwise.

    Attributes
    ----------
    components_ : ndarray of shape (n_components_, n_features)
        Orthonormal basis of the leading eigenspace of the mean, rotated to the principal axes of
        the rows within it.
    singular_values_, explained_variance_, explained_variance_ratio_ : ndarray of shape \
            (n_components_,)
        Of the rows seen, projected on the basis of their own step, then from basis to basis. What
        lies between the bases is lost, so for rows of one distribution they are a few percent too
        low while the basis still moves; where a late step brings up a direction that was not in
        the basis, its variance in earlier steps is not known. Directions beyond the span of the
        local eigenspaces, if more are asked for, count as without variance.
    mean_, noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`; mean and total variance are exact.
    projection_values_ : ndarray of shape (n_kept,)
        Leading eigenvalues of the mean of the projections, between 0 and 1: the share of all
        shards (with ``weighting="rows"`` of all rows) whose eigenspace holds the direction.
    projection_error_ : float
        Bound on the largest eigenvalue of what was cut off the mean of the projections to keep it
        in O(d K) memory; 0 up to 256 features.
    n_steps_ : int
        Time steps seen.
    clients_ : list
        Labels of the clients seen so far, sorted.
    communication_ : CommunicationLog
        Two rounds a step: eigenspaces up; the server's basis down and the moments in it up.

    See Also
    --------
    ProjectionAverage : The average over clients, as the ``merge`` of `FederatedPCA`.
    StreamingPCA : Weighs directions by their variance.

    Notes
    -----
    Algorithm 1 of [1]_ for equal shards. The running mean is kept as its 2 K + 10 leading
    eigenpairs (all, up to 256 features), whatever the number of steps. Up to that truncation the
    components are those of Fan's DPCA with a client for every shard of every step, and do not
    depend on the order or on the grouping of shards into steps. Davis and Kahan bound the sine of
    the largest angle to the components that the mean of the same local eigenspaces would give
    without truncation by ``projection_error_ / (projection_values_[K - 1] -
    projection_values_[K])``. The local eigenspaces are exact up to 256 features, and above for
    shards of one block of `StreamingPCA`; else they are those of its single pass.

    For m shards of d features a step costs the clients the eigenvectors of their rows, in time
    O(n_i d K), and the server O((m K)^2 d) time and O(m K d) memory; shards of sparse rows use the
    columns they have. With k eigenpairs kept (2 K + 10, or up to d below 256 features), a client
    sends (K + Z) (d + 1) + 2 d + 2 floats, takes k d, and sends min(n_i, k) k. The second exchange
    serves the explained variances only.

    Local eigenspaces are about the mean of the shard, so a client with a single row in a step has
    none: it adds to mean and variances only.

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
    """

    _parameter_constraints: dict = {
        **StreamingClientsTransformer._parameter_constraints,
        "n_components": [Interval(Integral, 1, None, closed="left"), None],
        "projection_dim": [Interval(Integral, 1, None, closed="left"), None],
        "weighting": [StrOptions({"rows", "equal"})],
    }

    def __init__(
        self,
        n_components: int | None = None,
        *,
        projection_dim: int | None = None,
        weighting: str = "equal",
        n_clients: int = 5,
        n_jobs: int | None = None,
    ):
        self.n_components = n_components
        self.projection_dim = projection_dim
        self.weighting = weighting
        self.n_clients = n_clients
        self.n_jobs = n_jobs

    def _process(self, X: Any, clients: Any, sample_weight: Any, method: str) -> None:
        if not is_stream(X):
            super()._process(X, clients, sample_weight, method)
            return
        for name, value in (("clients", clients), ("sample_weight", sample_weight)):
            if value is not None:
                raise ValueError(f"{name} cannot be given when X is an iterable of time steps.")
        before = self._state
        for step in X:
            super()._process(step, None, None, method)
        if self._state is before:
            raise ValueError("X is a stream without time steps; at least one row is required.")

    @property
    def _least_rows(self) -> int:
        size = self.n_components if self.projection_dim is None else self.projection_dim
        return 2 if size is None else size + 1

    def _reset(self) -> None:
        self._state: _State | None = None

    def _step(self, X: Any, weight: Any, shards: list[tuple[Any, Any]], method: str) -> list[Any]:
        d = X.shape[1]
        check_at_most_features(self.projection_dim, d, "projection_dim")
        state = self._state or _State.empty(d, float_dtype(X))
        size = self.n_components if self.projection_dim is None else self.projection_dim
        calls = ((*call, size, state.dtype) for call in rows_of(X, weight, shards))
        found = dict(self._map(_local_eigenspace, calls, shards))
        spaces = {label: space for label, (space, _) in found.items()}
        n_rows = state.n_rows + sum(n for _, n in found.values())
        self.communication_.record(spaces.values())

        shares = [space.n_samples if self.weighting == "rows" else 1.0 for space in spaces.values()]
        max_keep = d
        if d > SMALL_DIMENSION and self.n_components is not None:
            max_keep = min(d, 2 * self.n_components + 10)
        mean = state.mean.add(list(spaces.values()), shares, max_keep)

        # the moments of this step in the new basis, and those of all steps before
        basis = np.ascontiguousarray(mean.vectors.T)
        again = ((*call, spaces[call[0]].mean, basis) for call in rows_of(X, weight, shards))
        moments = list(Federation(self.n_jobs).map(_moments, again))
        self.communication_.record(
            map(message_of, moments), map(message_of, [mean.vectors] * len(shards))
        )
        parts = [part for part in (state.total, *spaces.values()) if part.n_samples > 0]
        with largest_named(partial(clients_named, spaces), list(spaces.values())):
            total, corrections = pooled_moments(parts)
        before = state.moments @ (state.mean.vectors @ basis)
        seen = linalg.r_factor(np.concatenate([before, *moments, corrections @ basis]))

        self._state = _State(mean, seen, total, n_rows, state.n_steps + 1, state.dtype)
        with largest_named(partial(clients_named, spaces), list(spaces.values())):
            self._set_fitted(self._state.leading(self.n_components), self.n_components, n_rows)
        self.projection_values_ = mean.values.copy()
        self.projection_error_ = mean.dropped
        self.n_steps_ = self._state.n_steps
        return list(spaces)


@dataclass(frozen=True)
class _State:
    """State after all steps: mean of projections, and scatter of the rows in its basis.

    ``moments.T @ moments`` is the scatter matrix of the rows, projected on ``mean.vectors``;
    ``total`` has their count, mean and whole scatter.
    """

    mean: ProjectionMean
    moments: np.ndarray
    total: Subspace
    n_rows: int
    n_steps: int
    dtype: np.dtype

    @classmethod
    def empty(cls, d: int, dtype: np.dtype) -> _State:
        """State before the first step."""
        total = Subspace.empty(d, dtype=dtype)
        return cls(ProjectionMean.empty(d), np.zeros((0, 0)), total, 0, 0, dtype)

    def leading(self, n_components: int | None) -> Subspace:
        """Summary along the leading eigenvectors of the mean, turned to the principal axes."""
        found = self.mean.leading(n_components, lambda V: self.moments[:, : len(V)])
        return along(self.total, *found)


def _local_eigenspace(
    label: Any, X: Any, weight: Any, size: int | None, dtype: np.dtype
) -> tuple[Subspace, int]:
    """Local work of one client: the leading eigenspace of its rows, and their number."""
    X = check_rows(X, [dtype])
    return Subspace.from_rows(X, size, sample_weight=weight), count_rows(X, weight)


def _moments(label: Any, X: Any, weight: Any, mean: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Second local work: triangular factor of the rows about their mean, in a basis."""
    Z = centred_product(X, mean, basis)
    if weight is not None:
        Z *= np.sqrt(weight)[:, None]
    return linalg.r_factor(Z)
