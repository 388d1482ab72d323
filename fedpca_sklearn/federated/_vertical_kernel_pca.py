"""Kernel PCA of columns that belong to different clients: Cheung, Jiang, Yu and Lou."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data

from .. import _linalg
from ..base import SubspaceTransformer
from ._feature_groups import columns_of
from ._federation import CommunicationLog, Federation, Message, message_of

__all__ = ["VerticalFederatedKernelPCA"]

# Eigenvalues below this share of the largest are rounding errors; as in scikit-learn.
_ZERO = 1e-12


class VerticalFederatedKernelPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Kernel principal component analysis where columns belong to clients that share the rows.

    Clients send what they know of the similarity of rows, never columns: "exact" finds the
    components of the kernel of all columns, "paper" averages the leading eigenvectors of the
    clients' own kernels (VFedKPCA and VFedAKPCA of [1]_).

    Parameters
    ----------
    n_components : int, default=1
        Cut to the number of rows, or of landmarks, as no more exist.
    feature_groups : int or list of array-like, default=2
        Columns of each client: a number of contiguous groups, or positions or names of columns.
        Every column must belong to one client.
    kernel : {"rbf", "sigmoid", "poly", "linear"} or callable, default="rbf"
        As in scikit-learn. A callable ``kernel(X, Y)`` takes (n, f) and (m, f) columns of a client
        and returns (n, m); only with "paper", as parts of an unknown kernel do not add up.
    gamma : float or None, default=None
        None: one over the number of columns, of all with "exact", of the client with "paper".
    degree : float, default=3
    coef0 : float, default=1
    aggregation : {"exact", "paper"}, default="exact"
        "exact": squared distances (rbf) or inner products add up over clients on their way, and
        the kernel follows from the sum. "paper": one eigenvector and eigenvalue of each client.
    projection : {"samples", "features"}, default="samples"
        "samples": scores in the kernel's space, as `sklearn.decomposition.KernelPCA`. "features":
        rows are projected on the columns' combinations U^T X (AKPCA), of unit length.
    local_iterations : int, default=20
        "paper": power iterations at a client for each component; L of [1]_.
    n_landmarks : int or None, default=None
        "exact": kernels are computed against so many random rows only (Nystroem). None, or as many
        as there are rows: all.
    n_jobs : int or None, default=None
    random_state : int, RandomState instance or None, default=None
        Of the first vectors, common to all clients, and of the landmarks.

    Attributes
    ----------
    eigenvalues_ : ndarray of shape (n_components_,)
        In decreasing order with "exact"; zero where they are rounding errors or negative. With
        "paper" u^T K u for K the average of the clients' centred kernels, weighted by eigenvalues.
    eigenvectors_ : ndarray of shape (n, n_components_)
        U, orthonormal columns. Where the eigenvalue is zero any, or zeros; scores are zero then.
    components_ : ndarray of shape (n_components_, d)
        With "features": rows of unit length (zero if there is no variance), orthogonal for "linear"
        and "exact" only.
    mean_ : ndarray of shape (d,)
        With "features".
    gamma_ : float or ndarray of shape (n_clients,)
        As used: a number with "exact", each client's with "paper".
    n_components_ : int
    feature_groups_ : list of ndarray of int
        Positions of each client's columns.
    landmarks_ : ndarray of int
        Rows that kernels are computed against; all, unless ``n_landmarks`` is less.
    communication_ : CommunicationLog
        Of `fit`, with n rows, m landmarks (n if None), p clients and k components. "exact": p n m
        floats up in one round. "paper": p (n + 1) up and p n down for each component, then p k up
        for the eigenvalues. With "features" p k up once more, and with "exact" p n k down before.

    See Also
    --------
    VerticalFederatedPCA : Linear components for many rows.
    sklearn.decomposition.KernelPCA : The same of columns in one place.

    Notes
    -----
    A client works in O(n m f_i) and the server in O(n^3), or O(n m^2) with landmarks, and both in
    O(n m) memory, with "exact". With "paper" a client takes O(k n^2 (f_i + L)) time and O(n^2)
    memory, as it computes its kernel again for each component, and the server O(p n k) time and
    O(n (p + k)) memory. To transform q rows with "samples" clients send p q m floats with "exact",
    p q k with "paper"; they keep their columns of the training rows or landmarks for it.

    With "exact" the server sees the sum of the messages and nothing else, but that sum is the
    kernel of all rows. With "paper" it sees every client's vector.

    "paper" is VFedKPCA of [1]_, and with "features" VFedAKPCA: power iteration (eq. 5 and 6) of
    the centred local kernel from a common start, weights eta_i / sum of eta (eq. 13), and
    u = sum w_i a_i made a unit vector. Signs of the a_i are first aligned with that of the client
    with the largest eigenvalue. [1]_ treats the leading vector; here the next ones follow by
    deflation, K_i <- (I - u u^T) K_i (I - u u^T). All rows, those of `fit` too, score
    sum_i w_i k_i(x, X) u / sqrt(eigenvalue), centred, so that `fit_transform` is `fit` and
    `transform`; with a single client that is sqrt(eigenvalue) u. Where the kernel is not positive
    semi-definite (sigmoid), a client whose leading eigenvalue is negative has no weight.

    With landmarks the kernel is C W^+ C^T, with C that of all rows and W that of the landmarks
    against the landmarks [2]_, centred over all rows; of an indefinite W the positive part counts.

    Differences from scikit-learn's KernelPCA: ``n_components`` is a number, negative eigenvalues
    count as zero, no sparse rows, no ``inverse_transform``; results are those of its dense solver
    up to signs.

    References
    ----------
    .. [1] Y. Cheung, J. Jiang, F. Yu, J. Lou, "Vertical federated principal component analysis and
       its kernel extension on feature-wise distributed data", 2022, arXiv:2203.01752.
    .. [2] C. Williams, M. Seeger, "Using the Nystroem method to speed up kernel machines", NeurIPS
       2000.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.decomposition import KernelPCA
    >>> from sklearn.preprocessing import scale
    >>> from fedpca_sklearn import VerticalFederatedKernelPCA
    >>> X = scale(load_wine().data)
    >>> central = KernelPCA(2, kernel="rbf", eigen_solver="dense").fit(X)
    >>> pca = VerticalFederatedKernelPCA(2, feature_groups=4).fit(X)
    >>> pca.eigenvalues_.round(3)
    array([23.459, 15.836])
    >>> np.allclose(pca.eigenvalues_, central.eigenvalues_, rtol=1e-10)
    True
    >>> pca.communication_.floats_up == 4 * 178**2
    True
    >>> paper = pca.set_params(aggregation="paper", random_state=0).fit(X)
    >>> abs(np.sum(paper.eigenvectors_ * central.eigenvectors_, axis=0)).round(2)
    array([0.98, 0.98])
    >>> paper.communication_.floats_up == 4 * (2 * 179 + 2)
    True
    """

    _parameter_constraints: dict = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "feature_groups": [Interval(Integral, 1, None, closed="left"), list, tuple],
        "kernel": [StrOptions({"rbf", "sigmoid", "poly", "linear"}), callable],
        "gamma": [Interval(Real, 0, None, closed="left"), None],
        "degree": [Interval(Real, 0, None, closed="left")],
        "coef0": [Interval(Real, None, None, closed="neither")],
        "aggregation": [StrOptions({"exact", "paper"})],
        "projection": [StrOptions({"samples", "features"})],
        "local_iterations": [Interval(Integral, 1, None, closed="left")],
        "n_landmarks": [Interval(Integral, 1, None, closed="left"), None],
        "n_jobs": [Integral, None],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_components: int = 1,
        *,
        feature_groups: Any = 2,
        kernel: Any = "rbf",
        gamma: float | None = None,
        degree: float = 3,
        coef0: float = 1,
        aggregation: str = "exact",
        projection: str = "samples",
        local_iterations: int = 20,
        n_landmarks: int | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
    ):
        self.n_components = n_components
        self.feature_groups = feature_groups
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.aggregation = aggregation
        self.projection = projection
        self.local_iterations = local_iterations
        self.n_landmarks = n_landmarks
        self.n_jobs = n_jobs
        self.random_state = random_state

    _unchanged_on_error = SubspaceTransformer._unchanged_on_error

    def fit(self, X: Any, y: Any = None) -> VerticalFederatedKernelPCA:
        """Fit all clients.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : Ignored

        Returns
        -------
        self : object
        """
        self._validate_params()
        if self.aggregation == "exact" and callable(self.kernel):
            raise ValueError(f"kernel={self.kernel!r} needs aggregation='paper', got 'exact'.")
        if self.aggregation == "paper" and self.n_landmarks is not None:
            raise ValueError(f"n_landmarks={self.n_landmarks} needs aggregation='exact'.")
        with self._unchanged_on_error(), np.errstate(over="ignore", invalid="ignore"):
            for name in ("components_", "mean_"):  # of a fit with another projection
                vars(self).pop(name, None)
            X = validate_data(self, X, dtype=[np.float64, np.float32])
            n, d = X.shape
            groups = columns_of(self.feature_groups, d, getattr(self, "feature_names_in_", None))
            rng = check_random_state(self.random_state)
            self.communication_ = log = CommunicationLog(floats_pooled=X.size)
            federation = Federation(self.n_jobs, rng=rng, log=log)
            m = min(self.n_landmarks or n, n)
            self.landmarks_ = np.sort(rng.choice(n, m, replace=False)) if m < n else np.arange(n)
            exact = self.aggregation == "exact"
            rank = min(self.n_components, m)
            kernels = [self._kernel(d if exact else len(g)) for g in groups]
            clients = [
                _Client.of(X, g, self.landmarks_, kernel)
                for g, kernel in zip(groups, kernels, strict=True)
            ]
            if exact:
                values, U, scorer = self._exact(federation, clients, X, rank)
                self.gamma_ = kernels[0].gamma
            else:
                values, U, scorer = self._paper(federation, clients, rank)
                self.gamma_ = np.array([kernel.gamma for kernel in kernels])
            if self.projection == "features":
                scorer = _Linear.of(federation, clients, X, U * (values > 0), exact)
                self.mean_ = scorer.mean.astype(X.dtype)
                self.components_ = scorer.components.astype(X.dtype)
            self._scorer = scorer
            self.eigenvalues_, self.eigenvectors_ = values.astype(X.dtype), U.astype(X.dtype)
            self.feature_groups_, self.n_components_ = groups, rank
        return self

    def _kernel(self, n_columns: int) -> _Kernel:
        gamma = 1.0 / n_columns if self.gamma is None else self.gamma
        return _Kernel(self.kernel, gamma, self.degree, self.coef0)

    def _exact(self, federation, clients, X, rank):
        if len(self.landmarks_) == len(X):
            found = exact_kernel_pca(_summed_kernel(federation, clients, None), rank)
        else:
            C = _summed_kernel(federation, clients, X)
            found = nystroem_kernel_pca(C, self.landmarks_, rank)
        values, U, offset, turn = found
        return values, U, _Exact(clients, offset, turn)

    def _paper(self, federation, clients, rank):
        n, p = len(clients[0].rows), len(clients)
        U, etas = np.zeros((n, rank)), np.zeros((p, rank))
        for j in range(rank):
            start = federation.rng.standard_normal(n)
            calls = [(i, c, start, U[:, :j], self.local_iterations) for i, c in enumerate(clients)]
            local = list(federation.map(_leading, calls))
            etas[:, j] = [eta for eta, _ in local]
            vectors = np.array([vector for _, vector in local])
            signs = np.where(vectors @ vectors[np.argmax(etas[:, j])] < 0, -1.0, 1.0)
            u = (signs * etas[:, j]) @ vectors
            u /= float(np.linalg.norm(u)) or 1.0
            U[:, j] = _linalg.flip_signs(u[None])[0]
            federation.log.record([Message(n + 1, 8 * (n + 1))] * p, [message_of(u)] * p)
        calls = [(i, c, U, eta) for i, (c, eta) in enumerate(zip(clients, etas, strict=True))]
        offsets, energies = zip(*federation.map(_energies, calls), strict=True)
        total = np.maximum(etas.sum(axis=0), np.finfo(float).tiny)
        values = _nonzero(federation.sum(_sent, list(enumerate(energies))) / total)
        return values, U, _Paper(clients, offsets, etas, U, _inverse_root(values) / total)

    def fit_transform(self, X: Any, y: Any = None) -> np.ndarray:
        """Fit and return the rows' scores.

        Parameters
        ----------
        X : array-like of shape (n, d)
        y : Ignored

        Returns
        -------
        X_new : ndarray of shape (n, n_components_)
        """
        self.fit(X)
        if isinstance(self._scorer, _Exact):
            return self.eigenvectors_ * np.sqrt(self.eigenvalues_)
        return self.transform(X)

    def transform(self, X: Any) -> np.ndarray:
        """Return scores of rows.

        Parameters
        ----------
        X : array-like of shape (q, d)

        Returns
        -------
        X_new : ndarray of shape (q, n_components_)
        """
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        scores = self._scorer.scores(Federation(self.n_jobs), X)
        return scores.astype(np.result_type(X, self.eigenvectors_), copy=False)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


# -------------------------------------------------------------------------------- at the clients


@dataclass(frozen=True)
class _Kernel:
    """A kernel as a function of a sum over columns."""

    name: str | Callable
    gamma: float
    degree: float
    coef0: float

    def part(self, A: np.ndarray, B: np.ndarray | None) -> np.ndarray:
        """What adds up over columns, of rows A and B (None: A): distances or inner products."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.name == "rbf":
                return euclidean_distances(A, B, squared=True)
            B = A if B is None else B
            if not callable(self.name):
                return A @ B.T
        K = np.array(self.name(A, B), dtype=np.float64)
        if K.shape != (len(A), len(B)):
            raise ValueError(f"kernel must return shape {(len(A), len(B))}, got {K.shape}.")
        return K

    def of_sum(self, S: np.ndarray) -> np.ndarray:
        """The kernel, in place of the sum."""
        with np.errstate(all="ignore"):
            if self.name == "rbf":
                S *= -self.gamma
                np.exp(S, out=S)
            elif self.name in ("sigmoid", "poly"):
                S *= self.gamma
                S += self.coef0
                S = np.tanh(S, out=S) if self.name == "sigmoid" else np.power(S, self.degree, out=S)
        if not np.isfinite(S).all():
            raise ValueError(
                f"kernel={self.name!r} is NaN or infinite with gamma={self.gamma}, degree="
                f"{self.degree} and coef0={self.coef0}; X may hold too large values."
            )
        return S


@dataclass(frozen=True)
class _Client:
    """A client: its columns of the rows that kernels are computed against."""

    columns: np.ndarray
    shift: np.ndarray
    rows: np.ndarray
    kernel: _Kernel

    @classmethod
    def of(cls, X: np.ndarray, columns: np.ndarray, rows: np.ndarray, kernel: _Kernel) -> _Client:
        shift = np.zeros(len(columns))
        if kernel.name in ("rbf", "linear"):  # centred, that does not matter but for rounding
            shift = X[:, columns].mean(axis=0, dtype=np.float64)
        return cls(columns, shift, X[np.ix_(rows, columns)] - shift, kernel)

    def part(self, X: np.ndarray | None = None) -> np.ndarray:
        """What adds up over clients; None: of its rows among themselves."""
        if X is None:
            return self.kernel.part(self.rows, None)
        return self.kernel.part(X[:, self.columns] - self.shift, self.rows)

    def local_kernel(self, X: np.ndarray | None = None) -> np.ndarray:
        """Kernel of its columns alone."""
        return self.kernel.of_sum(self.part(X))


def _part(label: int, client: _Client, X: np.ndarray | None) -> np.ndarray:
    return client.part(X)


def _sent(label: int, message: np.ndarray) -> np.ndarray:
    return message


def _leading(
    label: int, client: _Client, a: np.ndarray, U: np.ndarray, iterations: int
) -> tuple[float, np.ndarray]:
    """Leading eigenpair of the centred local kernel, orthogonal to U, by power iteration."""
    K = client.local_kernel()
    floor = _rounding(K)
    _centre(K)
    for _ in range(iterations):
        a = K @ a
        a -= U @ (U.T @ a)
        a /= float(np.linalg.norm(a)) or 1.0
    eta = float(a @ K @ a)
    return (eta, a) if eta > floor else (0.0, np.zeros(len(a)))


def _energies(
    label: int, client: _Client, U: np.ndarray, eta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Means of the local kernel, which stay, and eta u^T K_i u, to be sent."""
    K = client.local_kernel()
    offset = _centre(K)
    return offset, eta * np.einsum("ij,ij->j", U, K @ U)


def _local_scores(label, client, X, offset, U):
    return (client.local_kernel(X) - offset) @ U


# --------------------------------------------------------------------------------- at the server


def _summed_kernel(
    federation: Federation, clients: Sequence[_Client], X: np.ndarray | None
) -> np.ndarray:
    """Kernel of rows (None: the clients') against those of the clients, from one sum."""
    with np.errstate(over="ignore", invalid="ignore"):  # seen once it is the kernel
        parts = federation.sum(_part, [(i, client, X) for i, client in enumerate(clients)])
    return clients[0].kernel.of_sum(parts)


def _centre(K: np.ndarray) -> np.ndarray:
    """Centre a symmetric kernel in place; its means before."""
    offset = K.mean(axis=0)
    K -= offset
    K -= K.mean(axis=1)[:, None]
    return offset


def _rounding(K: np.ndarray) -> float:
    """Eigenvalues that rounding errors of a kernel have once it is centred."""
    return len(K) * np.finfo(np.float64).eps * float(max(K.max(), -K.min()))


def _nonzero(values: np.ndarray, floor: float = 0.0) -> np.ndarray:
    """Eigenvalues without those that are rounding errors or negative."""
    return np.where(values > max(_ZERO * values.max(), floor), values, 0.0)


def _inverse_root(values: np.ndarray) -> np.ndarray:
    """One over the square root, of zero zero."""
    return np.where(values > 0, 1 / np.sqrt(np.where(values > 0, values, 1.0)), 0.0)


def exact_kernel_pca(K: np.ndarray, rank: int) -> tuple[np.ndarray, ...]:
    """Leading eigenpairs of a kernel (destroyed), and what gives scores: (k - offset) @ turn.

    Parameters
    ----------
    K : ndarray of shape (n, n)
    rank : int

    Returns
    -------
    eigenvalues, eigenvectors, offset, turn : ndarray of shape (rank,), (n, rank), (n,), (n, rank)
    """
    floor = _rounding(K)
    offset = _centre(K)
    values, U = _linalg.eigh_top(K, rank)
    values = _nonzero(values[:rank], floor)
    U = _linalg.flip_signs(np.ascontiguousarray(U[:, :rank].T)).T
    turn = U * _inverse_root(values)
    return values, U, offset, turn - turn.mean(axis=0)


def nystroem_kernel_pca(C: np.ndarray, landmarks: np.ndarray, rank: int) -> tuple[np.ndarray, ...]:
    """As `exact_kernel_pca`, of C W^+ C^T with W the rows of the landmarks.

    Parameters
    ----------
    C : ndarray of shape (n, m)
    landmarks : ndarray of shape (m,), int
    rank : int
        At most m.

    Returns
    -------
    eigenvalues, eigenvectors, offset, turn : ndarray of shape (rank,), (n, rank), (m,), (m, rank)
    """
    W = C[landmarks]
    floor = len(C) / len(W) * _rounding(C)
    values, Q = np.linalg.eigh((W + W.T) / 2)
    root = Q * _inverse_root(_nonzero(values, _rounding(W)))
    offset = C.mean(axis=0)
    F = (C - offset) @ root
    values, V = _linalg.eigh_top(F.T @ F, rank)
    values = _nonzero(values[:rank], floor)
    inverse = _inverse_root(values)
    turn = root @ V[:, :rank] * (values > 0)
    U = (F @ V[:, :rank]) * inverse
    flipped = _linalg.flip_signs(np.ascontiguousarray(U.T)).T
    signs = np.where(np.einsum("ij,ij->j", U, flipped) < 0, -1.0, 1.0)
    return values, flipped, offset, turn * signs


@dataclass(frozen=True)
class _Exact:
    """Scores by the kernel of all columns."""

    clients: Sequence[_Client]
    offset: np.ndarray
    turn: np.ndarray

    def scores(self, federation: Federation, X: np.ndarray) -> np.ndarray:
        K = _summed_kernel(federation, self.clients, X)
        K -= self.offset
        return K @ self.turn


@dataclass(frozen=True)
class _Paper:
    """Scores by the weighted local kernels."""

    clients: Sequence[_Client]
    offsets: Sequence[np.ndarray]
    etas: np.ndarray
    U: np.ndarray
    scale: np.ndarray

    def scores(self, federation: Federation, X: np.ndarray) -> np.ndarray:
        known = zip(self.clients, self.offsets, self.etas, strict=True)
        centred = self.U - self.U.mean(axis=0)
        calls = [(i, c, X, offset, centred * eta) for i, (c, offset, eta) in enumerate(known)]
        return federation.sum(_local_scores, calls) * self.scale


@dataclass(frozen=True)
class _Linear:
    """Scores by combinations of columns."""

    mean: np.ndarray
    components: np.ndarray

    def scores(self, federation: Federation, X: np.ndarray) -> np.ndarray:
        return (X - self.mean) @ self.components.T

    @classmethod
    def of(cls, federation, clients, X, U, broadcast) -> _Linear:
        """Combinations U^T X of the columns, made of unit length by one sum."""
        mean, components = np.empty(X.shape[1]), np.empty((U.shape[1], X.shape[1]))
        squares = []
        for i, client in enumerate(clients):
            Z = X[:, client.columns].astype(np.float64)
            mean[client.columns] = local_mean = Z.mean(axis=0)
            Z -= local_mean
            part = U.T @ Z
            components[:, client.columns] = part
            squares.append((i, np.sum(part**2, axis=1)))
        lengths = np.sqrt(federation.sum(_sent, squares, U if broadcast else None))
        return cls(mean, components / np.where(lengths > 0, lengths, 1.0)[:, None])
