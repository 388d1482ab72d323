"""PCA from truncated local PCAs: Qu et al., the baseline of Bai, Chan and Luk."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any, NamedTuple

from sklearn.utils._param_validation import RealNotInt

from .._base.batches import count_rows
from .._kernels.sizes import rank_for_fraction
from .._kernels.too_large import largest_named
from .._validation.checks import check_rows
from .._validation.intervals import Interval
from ..communication._federation import Message, clients_named
from ..summary import Subspace, merge_subspaces
from ..summary._triangle import Triangle, merge_factors, pooled, subspace_of, triangle_of_rows
from ._clients import StreamingClientsTransformer, rows_of

__all__ = ["TruncatedDistributedPCA"]


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

    _parameter_constraints: dict = {
        **StreamingClientsTransformer._parameter_constraints,
        "n_components": [
            Interval(Integral, 1, None, closed="left"),
            Interval(RealNotInt, 0, 1, closed="neither"),
            None,
        ],
        "local_threshold": [Interval(Real, 0, 1, closed="right")],
    }

    def __init__(
        self,
        n_components: int | float | None = None,
        *,
        local_threshold: float = 0.9,
        n_clients: int = 2,
        n_jobs: int | None = None,
    ):
        self.n_components = n_components
        self.local_threshold = local_threshold
        self.n_clients = n_clients
        self.n_jobs = n_jobs

    def _reset(self) -> None:
        self._local: dict[Any, _Local] = {}

    def _step(self, X: Any, weight: Any, shards: list[tuple[Any, Any]], method: str) -> list[Any]:
        calls = (
            (label, self._local.get(label), rows, w)
            for label, rows, w in rows_of(X, weight, shards)
        )
        found = dict(self._map(_update_local, calls, shards))
        self._local = {**self._local, **found}
        sent = {c: _cut(local.summary, self.local_threshold) for c, local in self._local.items()}
        self._show(sent, list(found), sum(local.n_rows for local in self._local.values()))
        return list(found)

    def _show(self, sent: dict[Any, Subspace], new: list[Any], n_rows: int) -> None:
        """Set the fitted attributes by the last message of each client, of some a new one."""
        self.communication_.record(_without_scatter(sent[label]) for label in new)
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
    if threshold < 1 and summary.n_components:
        k = rank_for_fraction(summary.singular_values, summary.scatter, threshold)
        summary = summary.truncate(k)
    energy = float(summary.singular_values @ summary.singular_values)
    return replace(summary, scatter=energy, column_scatter=None)


def _without_scatter(summary: Subspace) -> Message:
    """Message with components, their variances, mean and count."""
    return Message(summary.n_floats - 1, summary.nbytes - 8)
