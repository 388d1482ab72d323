"""PCA of rows at clients: of triangular factors (Bai, Chan and Luk), of local PCAs (Qu et al.)."""

from __future__ import annotations

from collections import Counter
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial, reduce
from numbers import Real
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils._param_validation import RealNotInt
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from .._base.adjusting import ADJUSTING, adjusted_attributes, n_certain_of_factor
from .._base.batches import count_rows
from .._base.fitted import of_one_state, shown_like
from .._base.missing_entries import impute
from .._dask import RowChunks, run
from .._kernels.sizes import rank_for_fraction
from .._kernels.too_large import largest_named
from .._validation.checks import (
    AT_LEAST_ONE,
    InstanceOf,
    Interval,
    allowed,
    check_rows,
    with_parameters,
)
from ..communication._federation import Message, clients_named, named
from ..communication._topology import merge_levels, update_pair
from ..streaming import StreamingPCA
from ..summary import Subspace, merge_subspaces
from ..summary._triangle import Triangle, merge_factors, pooled, subspace_of, triangle_of_rows
from ._available_pairs import AvailablePairs, check_missing, ridge_of
from ._clients import StreamingClientsTransformer, rows_of


@with_parameters
class DistributedPCA(StreamingClientsTransformer):
    """Exact principal component analysis of rows that belong to several clients.

    The result equals PCA of all rows in one place, up to rounding, for any rows, any number of
    features and clients, and clients with fewer rows than features. Each client sends one
    triangular matrix and its mean, about ``n_features ** 2 / 2`` floats. No row leaves its client.
    `FederatedPCA` sends less if there are many features, and is exact for up to 256.

    Parameters
    ----------
    n_components : int, float, "parallel", "held-out", "mle" or None, default=None
        As in `StreamingPCA`.
    missing : AvailablePairs or None, default=None
        How missing entries (NaN) are treated. None: they are refused. `AvailablePairs`: clients
        send moments of pairs of columns to the server, in one round, in place of factors.
    n_clients : int, default=2
        If ``clients`` is not given, the rows are cut into this number of contiguous shards, each of
        which counts as a client. Of a dask.array every row chunk is a client instead, at work where
        the chunk is.
    n_jobs : int or None, default=None
        Clients at work at the same time; threads, unless ``joblib.parallel_config`` says otherwise.
    scale : bool, default=False
        True: PCA of the correlation matrix of all rows, as in `StreamingPCA`; exact in one round.
    partial_out : str, int or sequence of these, default=None
        Columns whose linear effects on the others, over all rows, are taken out, as in
        `StreamingPCA`; exact in one round.

    Attributes
    ----------
    components_, mean_, singular_values_, explained_variance_, explained_variance_ratio_, \
            noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_, scale_, \
            confounders_, confounder_effects_
        As in `StreamingPCA`, for all rows of all clients.
    r_factor_ : ndarray of shape (min(n_rows, n_features), n_features)
        For n_rows rows with a weight above zero. Upper trapezoidal with a non-negative diagonal;
        ``r_factor_.T @ r_factor_`` is the scatter matrix of all rows about their mean. Not with
        ``missing``.
    negative_variance_ : float
        With ``missing``: size of the most negative eigenvalue, see `AvailablePairs`.
    clients_ : list
        Labels of the clients seen so far, sorted.
    communication_ : CommunicationLog
        A round for every level of the tree and one for the means; after the first call, one more
        if the merge with all rows before is at another client. For one call with s clients of at
        least p rows of p features, ``floats_busiest`` is T_b of [1]_: ceil(log2 s) p (p + 1) / 2
        + s (p + 1); ``floats_up`` also counts what travels at the same time,
        (s - 1) p (p + 1) / 2 + s (p + 1). Clients with fewer rows send less.

    See Also
    --------
    FederatedPCA : O(p k) floats a client instead of O(p^2), exact up to 256 features.
    TruncatedDistributedPCA : The baseline of [1]_.
    load_balanced_schedule : Who computes what, when rows keep arriving.

    Notes
    -----
    This is Algorithm 1 of [1]_. Each client reduces its rows, centred by their own mean, to the
    triangular factor of their QR decomposition. The factors are merged in a binary tree, the means
    of the clients are added at its root, and the SVD of the last factor is the PCA of all rows.
    Nothing is truncated or squared. `partial_fit` is section 4 of [1]_: new rows at any of the
    clients are a tree of their own, whose root is merged with the factor of all rows before (eq.
    22). Nothing depends on the order, so blocks that come late are included when they come (section
    5). Of two partners in the tree the one that merged less so far receives.

    A client works in time O(n_i p^2) and memory O(p^2) beyond its rows; a level of the tree takes
    O(p^3), about a third of a dense QR by the structured factorisation of two full triangles
    (LAPACK's tpqrt); the server O(s p^2 + p^3). Sparse rows are densified in blocks of
    max(1000, 3 p). Computation is in float64, also for float32 rows.

    Means are kept as two floats a feature, counted as one in ``floats_up`` and as 16 bytes in
    ``bytes_up``: with one float, two clients at 1e8 would differ by its rounding.

    Differences from scikit-learn's PCA: ``n_components`` may exceed the number of rows, sample
    weights, and constant data gives zeros, not NaN.

    References
    ----------
    .. [1] Z.-J. Bai, R. Chan, F. Luk, "Principal component analysis for distributed data sets with
       updating", APPT 2005.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import DistributedPCA
    >>> X, y = load_digits(return_X_y=True)
    >>> pca = DistributedPCA(3)
    >>> for digits in (y < 4, y == 9, (y >= 4) & (y < 9)):  # clients appear one after another
    ...     _ = pca.partial_fit(X[digits], clients=y[digits])
    >>> pca.singular_values_.round(4)
    array([567.0066, 542.2519, 504.6306])
    >>> import numpy as np
    >>> np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:3].round(4)
    array([567.0066, 542.2519, 504.6306])
    >>> DistributedPCA(3).fit(X, clients=y).communication_.floats_busiest
    8970
    """

    _takes_dask = True
    _keeps_clients = False
    _takes_arrays = True
    _may_cut = False

    scale_, confounders_, confounder_effects_ = adjusted_attributes()

    n_components: int | float | str | None = allowed(
        *StreamingPCA._parameter_constraints["n_components"], default=None
    )
    _: KW_ONLY
    missing: Any = allowed(InstanceOf(AvailablePairs), None, default=None)
    n_clients: int = 2
    n_jobs: int | None = None
    scale: bool = allowed(*ADJUSTING["scale"], default=False)
    partial_out: Any = allowed(*ADJUSTING["partial_out"], default=None)

    impute = available_if(attrgetter("_takes_missing"))(of_one_state(impute))
    _ridge = ridge_of

    @property
    def _takes_missing(self) -> bool:
        return self.missing is not None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.missing is not None or vars(self).get("_missing_of_fit"):
            check_missing(self)

    def _reset(self) -> None:
        self._state = _State()
        self._clients: dict[Any, Any] = {}
        missing = self.missing
        self._missing_of_fit = None if missing is None else type(missing).__name__
        self.__dict__.pop("negative_variance_", None)

    def _step(self, X: Any, weight: Any, shards: list[tuple[Any, Any]], method: str) -> list[Any]:
        if self.missing is not None:
            return self.missing._take(self, X, weight, shards)
        found, merged = self._factors(X, weight, shards)
        self._merge_step(found, merged)
        return list(found)

    def _merge_step(
        self, found: dict[Any, tuple[Triangle, int, np.dtype]], merged: np.ndarray | None = None
    ) -> None:
        """Merge what clients found in a step, factor, number and dtype of rows, with all before.

        ``merged`` is the factor of all of them, if it is known.
        """
        state = self._state
        parts, numbers, dtypes = zip(*found.values(), strict=True)
        n_rows, load = state.n_rows + sum(numbers), state.load.copy()
        dtype = state.dtype or np.result_type(*dtypes)

        # the tree of this step
        log = self.communication_
        d = len(parts[0].mean)
        mean_message = Message(d + 1, 16 * d + 8)
        levels, root = merge_levels(list(found), load)
        factors = {label: part.factor for label, part in zip(found, parts, strict=True)}
        for level in levels:
            senders, receivers = zip(*level, strict=True)
            log.record([factor_message(factors[one]) for one in senders], receivers=receivers)
            for sender, receiver in level:
                merge = merge_factors if merged is None else _merged_shape
                factors[receiver] = merge(factors[receiver], factors.pop(sender))
        log.record([mean_message] * len(parts))
        with largest_named(partial(clients_named, found), parts):
            whole = pooled(factors[root] if merged is None else merged, parts)

            # all steps before
            if state.whole is not None:
                sender, root = update_pair(state.holder, root, load)
                if sender != root:
                    moved = whole if root == state.holder else state.whole
                    log.record([factor_message(moved.factor), mean_message])
                factor = merge_factors(state.whole.factor, whole.factor)
                whole = pooled(factor, [state.whole, whole])
            self._state = _State(whole, n_rows, dtype, root, load)
            subspace = subspace_of(whole, dtype, n_certain=n_certain_of_factor(self))
            self._set_fitted(subspace, self.n_components, n_rows)

    def _factors(self, X: Any, weight: Any, shards: list) -> tuple[dict, np.ndarray | None]:
        """Local work of all clients; of a dask.array with the factors merged by its workers."""
        calls = rows_of(X, weight, shards)
        if not isinstance(X, RowChunks):
            return dict(self._map(_factor_rows, calls, shards)), None
        results, merged = run(_factor_chunk, calls, partial(reduce, merge_factors))
        self.communication_.floats_pooled += sum(n_floats for _, n_floats in results)
        found = zip(shards, results, strict=True)
        return {label: local for (label, _), (local, _) in found if local is not None}, merged

    @property
    def r_factor_(self) -> np.ndarray:
        """Triangular factor of all rows about their mean."""
        check_is_fitted(self)
        whole = self._state.whole
        if whole is None:
            raise AttributeError("r_factor_ is not known with missing=AvailablePairs().")
        R = whole.factor
        signs = np.where(np.diag(R) < 0, -1.0, 1.0)
        return shown_like(self, (signs[:, None] * R).astype(self._state.dtype))


@dataclass(frozen=True)
class _State:
    """State after all rows so far: their factor, who holds it, how often each client merged."""

    whole: Triangle | None = None
    n_rows: int = 0
    dtype: Any = None
    holder: Any = None
    load: Counter = field(default_factory=Counter)


def factor_message(factor: np.ndarray) -> Message:
    """What is on and above the diagonal of a factor."""
    m, d = factor.shape
    n_floats = m * d - m * (m - 1) // 2
    return Message(n_floats, 8 * n_floats)


def _factor_rows(label: Any, X: Any, weight: Any) -> tuple[Triangle, int, np.dtype]:
    """Local work of one client: the factor of its rows, their number and dtype."""
    X = check_rows(X)
    return triangle_of_rows(X, weight), count_rows(X, weight), X.dtype


def _factor_chunk(label: Any, X: Any, weight: Any) -> tuple[np.ndarray, tuple]:
    """Local work of a row chunk: the factor goes up the tree, only its shape to the caller."""
    triangle, n_rows, dtype = named(_factor_rows, label, X, weight)
    shape = np.broadcast_to(0.0, triangle.factor.shape)
    return triangle.factor, (replace(triangle, factor=shape), n_rows, dtype)


def _merged_shape(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Array of zeros with the shape of the result of `merge_factors`."""
    (m, d), n = first.shape, len(second)
    return np.broadcast_to(0.0, (min(m + n, d), d))


@with_parameters
class TruncatedDistributedPCA(StreamingClientsTransformer):
    """Principal component analysis of several clients' rows, from their leading components only.

    Each client sends as many of its principal components as explain a given share of its own
    variance; the server assembles the covariance of all rows from them and from the means, and
    takes its principal components. What a client cuts off is lost: use `DistributedPCA` for the
    exact result, `FederatedPCA` for a better one at the same cost. This is the baseline that they
    are compared with.

    Parameters
    ----------
    n_components : int, float or None, default=None
        As in `StreamingPCA`; a float is the share of the variance of the assembled covariance (the
        global threshold of [1]_).
    local_threshold : float in (0, 1], default=0.9
        Share of a client's variance that the components it sends explain. 1: all components.
    n_clients : int, default=2
        Contiguous shards that stand in for clients where ``clients`` is not given. Of a dask.array
        every row chunk is a client instead, at work where the chunk is.
    n_jobs : int or None, default=None
        Clients at work at the same time; threads, unless ``joblib.parallel_config`` says otherwise.

    Attributes
    ----------
    components_, mean_, singular_values_, explained_variance_, explained_variance_ratio_, \
            noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`, but variances and their total are those of the assembled covariance:
        clients do not tell what they cut off.
    local_components_ : dict
        Label -> number of components that the client sent last.
    clients_ : list
        Labels of the clients seen so far, sorted.
    communication_ : CommunicationLog
        A client that sends k components of p features sends (k + 1) (p + 1) floats: k vectors and
        k singular values, its mean and its number of rows.

    See Also
    --------
    DistributedPCA : Exact.
    FederatedPCA : Sends a given number of directions and the exact scatter.

    Notes
    -----
    Clients keep the exact summary of their rows, in O(p min(n_i, p)) memory, so that `partial_fit`
    cuts the PCA of all their rows. The covariance is assembled in factored form. Time
    O(n_i p min(n_i, p)) for a client, O(R^2 p) for the server with R components received.

    In [2]_ a client of this method sends two floats more: T_a is the sum of all k_i (p + 1) and
    s (p + 3). The text does not say which two, and its results need none: its table comes out with
    ``n_components`` as a share of what the clients sent, as here, and not as a share of the
    variance of all rows, which a trace would tell.

    References
    ----------
    .. [1] Y. Qu, G. Ostrouchov, N. Samatova, A. Geist, "Principal component analysis for dimension
       reduction in massive distributed data sets", SIAM International Conference on Data Mining
       2002.
    .. [2] Z.-J. Bai, R. Chan, F. Luk, "Principal component analysis for distributed data sets with
       updating", APPT 2005.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import TruncatedDistributedPCA
    >>> X, y = load_digits(return_X_y=True)
    >>> pca = TruncatedDistributedPCA(3, local_threshold=0.6).fit(X, clients=y)
    >>> pca.singular_values_.round(1)  # 567.0, 542.3 and 504.6 without truncation
    array([553.7, 530.9, 492.8])
    >>> pca.local_components_[0], pca.communication_.floats_up
    (5, 3575)
    """

    _takes_dask = True

    n_components: int | float | None = allowed(
        AT_LEAST_ONE, Interval(RealNotInt, 0, 1, closed="neither"), None, default=None
    )
    _: KW_ONLY
    local_threshold: float = allowed(Interval(Real, 0, 1, closed="right"), default=0.9)
    n_clients: int = 2
    n_jobs: int | None = None

    def _reset(self) -> None:
        self._local: dict[Any, _Local] = {}

    def _step(self, X: Any, weight: Any, shards: list[tuple[Any, Any]], method: str) -> list[Any]:
        before = self._local.get
        calls = ((label, before(label), rows, w) for label, rows, w in rows_of(X, weight, shards))
        found = dict(self._map(_update_local, calls, shards))
        self._local = {**self._local, **found}
        sent = {c: _cut(local.summary, self.local_threshold) for c, local in self._local.items()}
        n_rows = sum([local.n_rows for local in self._local.values()])
        self._show(sent, list(found), n_rows)
        return list(found)

    def _show(self, sent: dict[Any, Subspace], new: list[Any], n_rows: int) -> None:
        """Set the fitted attributes by the last message of each client, of some a new one."""
        # components, their variances, mean and count: the scatter is not told
        sizes = [sent[label]._size() for label in new]
        self.communication_.record([Message(n - 1, m - 8) for n, m in sizes])
        self.local_components_ = {label: sent[label].n_components for label in sent}
        with largest_named(partial(clients_named, sent), list(sent.values())):
            self._set_fitted(merge_subspaces(list(sent.values())), self.n_components, n_rows)


class _Local(NamedTuple):
    """What a client keeps: the factor of its rows, and their PCA."""

    triangle: Triangle
    summary: Subspace
    n_rows: int


def _update_local(label: Any, before: _Local | None, X: Any, weight: Any) -> _Local:
    """Local work of one client: the exact PCA of all its rows."""
    X = check_rows(X)
    n_rows, triangle, dtype = count_rows(X, weight), triangle_of_rows(X, weight), X.dtype
    if before is not None:
        factor = merge_factors(before.triangle.factor, triangle.factor)
        triangle = pooled(factor, [before.triangle, triangle])
        n_rows, dtype = before.n_rows + n_rows, before.summary._dtype
    return _Local(triangle, subspace_of(triangle, dtype), n_rows)


def local_message(label: Any, X: Any, weight: Any, threshold: float) -> Subspace:
    """What a client sends that has seen no rows before."""
    return _cut(_update_local(label, None, X, weight).summary, threshold)


def _cut(summary: Subspace, threshold: float) -> Subspace:
    """What a client sends; the rest of its scatter is not told."""
    V, s = summary.components, summary.singular_values
    if threshold < 1 and len(s):
        k = rank_for_fraction(s, summary.scatter, threshold)
        V, s = V[:k].copy(), s[:k].copy()
    known = {"components": V, "singular_values": s, "scatter": float(s @ s)}
    return summary._replace(**known, column_scatter=None)
