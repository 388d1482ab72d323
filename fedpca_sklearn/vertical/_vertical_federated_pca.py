"""PCA of columns that belong to different clients: Cheung, Jiang, Yu and Lou."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from functools import partial
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._base.fitted import CallbackSupportMixin, rounds_of, with_callbacks
from .._base.transformer import SubspaceTransformer
from .._kernels.threads import TINY_CALL, threads_for
from .._kernels.tolerances import GRAM_ROUNDING
from .._kernels.too_large import too_large
from .._validation.checks import (
    AT_LEAST_ONE,
    InstanceOf,
    allowed,
    check_at_most_features,
    with_parameters,
)
from ..communication import Federation
from ..communication._federation import log_fit, message_of
from ..rounds._queries import Client
from ..summary import Subspace
from ..summary._projection_mean import rayleigh_ritz
from ._vfedpca import LeftVectorMerge, LeftVectors, PowerRounds, VerticalMethod, VFedPCA, started


def along_left_vectors(
    federation: Federation,
    clients: Sequence[Client],
    groups: list[np.ndarray],
    U: Sequence[np.ndarray] | np.ndarray,
    total: Subspace,
) -> Subspace:
    """Summary along the principal axes of all rows within the span of U X, from two sums.

    Variances are those of the scores, as left vectors may be inexact.
    """
    calls = [(c.label, u @ c.rows.T, c.rows) for u, c in zip(U, clients, strict=True)]
    *inner, scatter = federation.sum(_inner_products, calls)
    total = total._replace(scatter=float(scatter))
    k = len(U[0])
    turn = principal_turn(np.reshape(inner, (k, k)))
    if turn is None:
        return total
    calls = [(label, turn.T @ part, rows) for label, part, rows in calls]
    sums = federation.sum(_scores, calls, broadcast=turn)
    gram, scores = sums[:, : len(sums)], sums[:, len(sums) :]
    V = np.empty((len(sums), total.n_features))
    for (_, part, _), columns in zip(calls, groups, strict=True):
        V[:, columns] = part
    federation.log.record((), [message_of(gram)] * len(clients))
    return along_parts(total, gram, V, scores)


def principal_turn(inner: np.ndarray) -> np.ndarray | None:
    """Turn of directions with these inner products to orthonormal principal ones, if any."""
    values, Y = np.linalg.eigh(np.asarray_chkfinite(inner))  # a method of one's own may fail
    keep = values > GRAM_ROUNDING * max(values.max(initial=0.0), np.finfo(float).tiny)
    return Y[:, keep][:, ::-1] / np.sqrt(values[keep][::-1]) if keep.any() else None


def along_parts(total: Subspace, gram: np.ndarray, V: np.ndarray, scores: np.ndarray) -> Subspace:
    """Summary along directions V, nearly orthonormal, by their inner products and scores."""
    root = np.linalg.cholesky(gram)  # the first sum's rounding errors, over the smallest variance
    return rayleigh_ritz(total, np.linalg.solve(root, V), np.linalg.solve(root, scores).T)


def _inner_products(label: int, part: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """A client's share of the inner products of directions, and of the scatter."""
    return np.append((part @ part.T).ravel(), np.einsum("ij,ij->", rows, rows))


def _scores(label: int, part: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """A client's share of the inner products of directions, and of the rows' scores."""
    return np.concatenate([part @ part.T, part @ rows], axis=1)


METHODS = {"vfedpca": VFedPCA, "merge": LeftVectorMerge, "power": PowerRounds}


@with_parameters
class VerticalFederatedPCA(CallbackSupportMixin, SubspaceTransformer):
    """Principal component analysis where columns belong to clients that share the rows.

    Take it where several owners (clients) have different columns of the same rows, such as a bank
    and a shop that know the same persons. They agree on scores of the rows, and each then has its
    own columns' part of the components. Columns do not leave their owner; but the message of an
    owner with a single column reveals that column, up to its scale. `fit` simulates this in one
    process.

    Parameters
    ----------
    n_components : int, default=1
        At most the number of columns; cut to the number of rows, as no more exist.
    feature_groups : int or list of array-like, default=2
        Columns of each client: a number of contiguous groups, or positions or names of columns.
        Every column must belong to one client.
    method : VFedPCA, LeftVectorMerge, PowerRounds or other VerticalMethod, or {"vfedpca", \
            "merge", "power"}, default="vfedpca"
        How clients agree, with the parameters that belong to it; a string stands for the object
        with its defaults. `VFedPCA` ("vfedpca"): the average of the clients' own leading vectors
        [1]_; cheap and inexact. `LeftVectorMerge` ("merge"): clients send their left singular
        vectors and values once, which are merged; exact if they send all. `PowerRounds` ("power"):
        rounds of a block Krylov method whose messages only add up, exact too.
    topology : Topology, None, {"server", "complete", "ring", "star"}, array of shape (p, p) or \
            graph, default="server"
        Who exchanges messages. None or "server": all with a server. `Complete`: each with all
        others. `Ring`, `Star`, `Graph`: each with its neighbours. Vectors of "vfedpca" and factors
        of "merge" are passed on, sums of "power" found by gossip; the results are those with a
        server. With ``VFedPCA(exchange="neighbours")`` nothing is passed on (Algorithm 5 of [1]_),
        and each client has a result of its own: ``components_`` are made of each client's part
        X_i^T u_i by its own u_i. A string stands for the object with its
        defaults, an array, a sparse array or a networkx graph for ``Graph(array)``.
    center : bool, default=True
        Whether columns are centred by their owners; False: components are about the origin, as [1]_
        writes them.
    n_jobs : int or None, default=None
        Clients at work at the same time; threads, unless ``joblib.parallel_config`` says otherwise.
    random_state : int, RandomState instance or None, default=None
        Seed of the first vectors and of a method's channel.

    Attributes
    ----------
    components_, mean_, singular_values_, explained_variance_, explained_variance_ratio_, \
            noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`, over all columns in their order. Variances are those of the scores,
        exact whether or not the components are; directions with singular values below 1e-7 of the
        largest are lost.
    client_components_ : list of ndarray of shape (n_components_, n_columns)
        Each client's part of ``components_``.
    client_vectors_ : list of ndarray of shape (n_components_, n)
        Left vectors that each client has, with ``VFedPCA(exchange="neighbours")`` only. Those of a
        client with a single column tell that column, up to its scale.
    feature_groups_ : list of ndarray of int
        Positions of each client's columns.
    disagreement_ : float
        Without a server, largest distance between the last common vectors of two clients
        ("vfedpca" between neighbours), or largest difference of their last sums over the largest of
        them ("power"); otherwise zero.
    n_iter_ : int
        Rounds in which vectors were exchanged, over all components.
    communication_ : CommunicationLog
        What the method sends (see there), and then, with n rows, p clients and k components, to one
        place in any topology, p (k^2 + 1) and p (n k + k^2) up and twice p k^2 down.

    See Also
    --------
    VFedPCA, LeftVectorMerge, PowerRounds : Methods.
    Complete, Ring, Star, Graph : Topologies.
    FederatedPCA : Clients that hold rows.

    Notes
    -----
    With X_i the centred columns of client i, clients agree on the leading eigenvectors u of the sum
    of X_i X_i^T, the left singular vectors of all columns. Each has length n_samples, and the part
    of client i is X_i^T u. Nobody forms the n x n sum: a client works in O(n f_i k) a product and
    O(n f_i) memory. The server takes O(n k p) memory for "vfedpca" and "merge", O(n k) for "power".

    A Rayleigh-Ritz step over all columns follows the method. In gossip ("power" on a ring, a star,
    a graph) clients average over neighbours with Metropolis weights, by Chebyshev's iteration in as
    many exchanges as the topology and its ``tol`` ask for: 20 of a ring of five for the default,
    278 of a ring of 60.

    Callbacks are called in each round of the method; if one asks to stop, the components found so
    far are the result.

    Products lose what is below 1e-14 of the largest eigenvalue to rounding: variances down there
    are shown as zero, and near it lose digits, as of columns in units 1e6 apart: scale such ones.

    Noise of a channel, few rounds or few local components make components inexact, but never their
    orthonormality or variances. A sum over a noisy channel could tell neither: it adds its noise's
    variance to that of the scores.

    References
    ----------
    .. [1] Y. Cheung, J. Jiang, F. Yu, J. Lou, "Vertical federated principal component analysis and
       its kernel extension on feature-wise distributed data", 2022, arXiv:2203.01752.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.decomposition import PCA
    >>> from sklearn.preprocessing import scale
    >>> from fedpca_sklearn import VerticalFederatedPCA, subspace_distance
    >>> X = scale(load_wine().data)
    >>> exact = PCA(2).fit(X).components_
    >>> for method in "vfedpca", "merge", "power":
    ...     pca = VerticalFederatedPCA(2, feature_groups=4, method=method, random_state=0).fit(X)
    ...     print(method, round(subspace_distance(pca.components_, exact), 4))
    vfedpca 0.0011
    merge 0.0
    power 0.0
    """

    n_components: int = allowed(AT_LEAST_ONE, default=1)
    _: KW_ONLY
    feature_groups: Any = allowed(AT_LEAST_ONE, list, tuple, default=2)
    method: Any = allowed(StrOptions(set(METHODS)), InstanceOf(VerticalMethod), default="vfedpca")
    topology: Any = "server"
    center: bool = allowed("boolean", default=True)
    n_jobs: int | None = allowed(Integral, None, default=None)
    random_state: Any = allowed("random_state", default=None)

    @with_callbacks
    def fit(self, X: Any, y: Any = None) -> VerticalFederatedPCA:
        """Fit all clients.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Rows, with the columns of all clients side by side.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.

        Returns
        -------
        self : object
            The fitted estimator; unchanged if an error is raised.
        """
        self._validate_params()
        method = self._method()
        with self._unchanged_on_error():
            self.__dict__.pop("client_vectors_", None)  # of a fit with another method
            X, groups, federation = started(self, X, method.channel)
            n, d = X.shape
            check_at_most_features(self.n_components, d)
            with np.errstate(over="ignore", invalid="ignore"):
                mean = X.mean(axis=0, dtype=np.float64) if self.center else np.zeros(d)
                clients = [
                    Client(i, np.ascontiguousarray((X[:, columns] - mean[columns]).T))
                    for i, columns in enumerate(groups)
                ]
                scatters = [float(np.einsum("ij,ij->", c.rows, c.rows)) for c in clients]
            if not np.isfinite(sum(scatters)):
                raise too_large("variance", holder=f"Client {int(np.argmax(scatters))}: X")
            rounds = partial(rounds_of, self)
            with threads_for(max(X.size, 16 * min(X.shape) ** 2), TINY_CALL):
                agreed = method.left_vectors(federation, clients, min(self.n_components, n), rounds)
                total = Subspace.empty(d, centered=self.center, dtype=X.dtype)
                total = total._replace(mean=mean, n_samples=float(n))
                last = Federation(self.n_jobs, log=self.communication_)
                found = along_left_vectors(last, clients, groups, agreed.vectors, total)
            if agreed.own:
                self.client_vectors_ = list(agreed.vectors)
            self._show(found, agreed, groups, n)
        log_fit(self, len(groups))
        return self

    def _method(self) -> VerticalMethod:
        """The method with its parameters, which are right."""
        method = METHODS[self.method]() if isinstance(self.method, str) else self.method
        method.validate()
        return method

    def _show(
        self, found: Subspace, agreed: LeftVectors, groups: list[np.ndarray], n_rows: int
    ) -> None:
        """Set the fitted attributes."""
        self.n_iter_, self.disagreement_ = agreed.n_iter, agreed.disagreement
        self._set_fitted(found, min(len(agreed.vectors[0]), self.n_components), n_rows)
        self.feature_groups_ = groups
        self.client_components_ = [self.components_[:, columns] for columns in groups]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags
