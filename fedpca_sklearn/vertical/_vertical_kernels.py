"""Kernels of columns at clients: of their sum, and components agreed on by their own kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.metrics.pairwise import euclidean_distances

from .._kernels import linalg
from .._kernels.tolerances import EIGENVALUE_ROUNDING
from ..communication import Federation
from ._vfedpca import LeftVectors, Operator, Product, VFedPCA, common_vectors, unit

# -------------------------------------------------------------------------------- at the clients


@dataclass(frozen=True)
class Kernel:
    """A kernel as a function of a sum over columns."""

    name: str | Callable
    gamma: float
    degree: float
    coef0: float

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
class ColumnClient:
    """A client: its columns of the rows that kernels are computed against."""

    columns: np.ndarray
    shift: np.ndarray
    rows: np.ndarray
    kernel: Kernel

    @classmethod
    def of(
        cls, X: np.ndarray, columns: np.ndarray, rows: np.ndarray, kernel: Kernel, center: bool
    ) -> ColumnClient:
        shift = np.zeros(len(columns))
        # does not matter but for rounding
        if kernel.name == "rbf" or (kernel.name == "linear" and center):
            shift = X[:, columns].mean(axis=0, dtype=np.float64)
        return cls(columns, shift, X[np.ix_(rows, columns)] - shift, kernel)

    def updated(self, u: np.ndarray, center: bool) -> ColumnClient:
        """With X m m^T in place of its columns X, for m the direction of X^T u (eq. 14).

        ``center``: the entries of u have the sum zero.
        """
        m = unit(u @ self.rows + (0.0 if center else u.sum() * self.shift))
        return replace(self, rows=np.outer(self.rows @ m, m), shift=m * (m @ self.shift))

    def local_kernel(self, X: np.ndarray | None = None) -> np.ndarray:
        """Kernel of its columns alone."""
        return self.kernel.of_sum(part_of(None, self, X))

    def operator(self, label: int, center: bool, of_columns: bool) -> Operator:
        """That kernel as a matrix."""
        return KernelMatrix(label, len(self.columns), self, center, of_columns)


def part_of(label: object, client: ColumnClient, X: np.ndarray | None) -> np.ndarray:
    """Squared distances or inner products, which add up over clients; None: of its own rows."""
    A, B, name = client.rows, client.rows, client.kernel.name
    if X is not None:
        A = X[:, client.columns] - client.shift
    with np.errstate(over="ignore", invalid="ignore"):
        if name == "rbf":
            return euclidean_distances(A, None if X is None else B, squared=True)
        if not callable(name):
            return A @ B.T
    K = np.array(name(A, B), dtype=np.float64)
    if K.shape != (len(A), len(B)):
        raise ValueError(f"kernel must return shape {(len(A), len(B))}, got {K.shape}.")
    return K


def as_sent(label: int, message: np.ndarray) -> np.ndarray:
    return message


# --------------------------------------------------------------------------------- at the server


def summed_kernel(
    federation: Federation, clients: Sequence[ColumnClient], X: np.ndarray | None
) -> np.ndarray:
    """Kernel of rows (None: the clients') against those of the clients, from one sum."""
    with np.errstate(over="ignore", invalid="ignore"):  # seen once it is the kernel
        parts = federation.sum(part_of, [(i, client, X) for i, client in enumerate(clients)])
    return clients[0].kernel.of_sum(parts)


def centre(K: np.ndarray) -> np.ndarray:
    """Centre a symmetric kernel in place; its means before."""
    offset = K.mean(axis=0)
    K -= offset
    K -= K.mean(axis=1)[:, None]
    return offset


def rounding(K: np.ndarray) -> float:
    """Eigenvalues that rounding errors of a kernel have once it is centred."""
    return len(K) * np.finfo(np.float64).eps * float(max(K.max(), -K.min()))


def has_negative_trace(K: np.ndarray, center: bool) -> bool:
    """Whether the eigenvalues of a kernel, centred or not, have a sum below zero."""
    trace = float(np.trace(K)) - (K.mean() * len(K) if center else 0.0)
    return trace < -4 * rounding(K)


def nonnegligible(values: np.ndarray, floor: float = 0.0) -> np.ndarray:
    """Eigenvalues without those that are rounding errors or negative."""
    return np.where(values > max(EIGENVALUE_ROUNDING * values.max(), floor), values, 0.0)


def inverse_root(values: np.ndarray) -> np.ndarray:
    """One over the square root, of zero zero."""
    return np.where(values > 0, 1 / np.sqrt(np.where(values > 0, values, 1.0)), 0.0)


def exact_kernel_pca(K: np.ndarray, rank: int, center: bool = True) -> tuple[np.ndarray, ...]:
    """Leading eigenpairs of a kernel (destroyed), and what gives scores: (k - offset) @ turn.

    Parameters
    ----------
    K : ndarray of shape (n, n)
    rank : int
    center : bool, default=True
        Of the centred kernel.

    Returns
    -------
    eigenvalues, eigenvectors, offset, turn : ndarray of shape (rank,), (n, rank), (n,), (n, rank)
    """
    floor = rounding(K)
    offset = centre(K) if center else np.zeros(len(K))
    values, U = linalg.eigh_top(K, rank)
    values = nonnegligible(values[:rank], floor)
    U = linalg.flip_signs(np.ascontiguousarray(U[:, :rank].T)).T
    turn = U * inverse_root(values)
    return values, U, offset, turn - turn.mean(axis=0) * center


def nystroem_kernel_pca(
    C: np.ndarray, landmarks: np.ndarray, rank: int, center: bool = True
) -> tuple[np.ndarray, ...]:
    """As `exact_kernel_pca`, of C W^+ C^T with W the rows of the landmarks.

    Parameters
    ----------
    C : ndarray of shape (n, m)
    landmarks : ndarray of shape (m,), int
    rank : int
        At most m.
    center : bool, default=True
        As in `exact_kernel_pca`.

    Returns
    -------
    eigenvalues, eigenvectors, offset, turn : ndarray of shape (rank,), (n, rank), (m,), (m, rank)
    """
    W = C[landmarks]
    floor = len(C) / len(W) * rounding(C)
    values, Q = np.linalg.eigh((W + W.T) / 2)
    root = Q * inverse_root(nonnegligible(values, rounding(W)))
    offset = C.mean(axis=0) if center else np.zeros(C.shape[1])
    F = (C - offset) @ root
    values, V = linalg.eigh_top(F.T @ F, rank)
    values = nonnegligible(values[:rank], floor)
    turn = root @ V[:, :rank] * (values > 0)
    U = (F @ V[:, :rank]) * inverse_root(values)
    signs = fixing_signs(U.T)
    return values, U * signs, offset, turn * signs


def fixing_signs(V: np.ndarray) -> np.ndarray:
    """Signs, 1 or -1, by which `linalg.flip_signs` multiplies rows."""
    return np.where(np.einsum("ij,ij->i", V, linalg.flip_signs(V.copy())) < 0, -1.0, 1.0)


@dataclass(frozen=True)
class ExactScores:
    """Scores by the kernel of all columns."""

    clients: Sequence[ColumnClient]
    offset: np.ndarray
    turn: np.ndarray

    def scores(self, federation: Federation, X: np.ndarray) -> np.ndarray:
        K = summed_kernel(federation, self.clients, X)
        K -= self.offset
        return K @ self.turn


@dataclass(frozen=True)
class LinearScores:
    """Scores by combinations of columns."""

    mean: np.ndarray
    components: np.ndarray

    def scores(self, federation: Federation, X: np.ndarray) -> np.ndarray:
        return (X - self.mean) @ self.components.T

    @classmethod
    def of(cls, federation, clients, X, vectors, known, center, broadcast) -> LinearScores:
        """Combinations U^T X of the columns, made of unit length by one sum.

        ``vectors`` are U as each client has it, ``known`` tells which of them have variance, and
        ``broadcast`` that a server sent them.
        """
        k = vectors[0].shape[1]
        mean, components = np.zeros(X.shape[1]), np.empty((k, X.shape[1]))
        squares = []
        for i, (client, U) in enumerate(zip(clients, vectors, strict=True)):
            Z = X[:, client.columns].astype(np.float64)
            if center:
                mean[client.columns] = local_mean = Z.mean(axis=0)
                Z -= local_mean
            part = (U.T @ Z) * known[:, None]
            components[:, client.columns] = part
            squares.append((i, np.sum(part**2, axis=1)))
        lengths = np.sqrt(federation.sum(as_sent, squares, vectors[0] if broadcast else None))
        return cls(mean, of_unit_length(components, lengths))


def of_unit_length(components: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Rows over their lengths; of zero zero."""
    return components / np.where(lengths > 0, lengths, 1.0)[:, None]


@dataclass(frozen=True)
class KernelMatrix(Operator):
    """The kernel of a client's columns, without directions; computed when it is needed.

    Parameters
    ----------
    client : ColumnClient
    center : bool
    of_columns : bool
        Whether eq. 14 updates the columns, not the data in the kernel's space.
    taken : tuple of ndarray of shape (n,)
        The directions.
    """

    client: ColumnClient
    center: bool
    of_columns: bool
    taken: tuple[np.ndarray, ...] = ()

    def product(self) -> tuple[Product, float]:
        """The kernel times a vector; see `Operator.product`."""
        K = self.client.local_kernel()
        floor = rounding(K)
        if self.center:
            centre(K)
        for u in self.taken:
            K -= np.outer(u, u @ K)
            K -= np.outer(K @ u, u)
        return lambda a: K @ a, floor

    def deflated(self, u: np.ndarray) -> KernelMatrix:
        """(I - u u^T) K_i (I - u u^T); see `Operator.deflated`."""
        return replace(self, taken=(*self.taken, u))

    def updated(self, u: np.ndarray) -> Operator:
        """The kernel of updated columns, or of updated data; see `Operator.updated`."""
        if not self.of_columns:
            return super().updated(u)
        for taken in reversed(self.taken):
            u = u - taken * (taken @ u)
        return replace(self, client=self.client.updated(u, self.center))


def agreed_kernel_pca(
    method: VFedPCA,
    federation: Federation,
    clients: Sequence[ColumnClient],
    center: bool,
    rank: int,
    rounds: Callable[[int], Iterable[int]],
) -> tuple[np.ndarray, np.ndarray, AgreedScores, LeftVectors]:
    """Eigenvalues, those of the clients' own kernels, what gives scores, and the vectors."""
    of_columns = method.update.endswith("_columns")
    operators = [client.operator(i, center, of_columns) for i, client in enumerate(clients)]
    n = len(clients[0].rows)
    found, own_values, weights = common_vectors(method, federation, operators, n, rank, rounds)
    signs = fixing_signs(found.vectors[0])[:, None]
    flipped = [(vectors * signs).T for vectors in found.vectors]
    known = list(zip(clients, flipped, weights.T, strict=True))
    calls = [(i, *each, center) for i, each in enumerate(known)]
    offsets, energies = zip(*federation.map(energies_of, calls), strict=True)
    total = weights.sum(axis=1)
    if found.own and not federation.gossip.complete:
        total = federation.sum(as_sent, list(enumerate(weights.T)))
    total = np.where(total > 0, total, 1.0)
    values = nonnegligible(federation.sum(as_sent, list(enumerate(energies))) / total)
    scale = inverse_root(values) / total
    scorer = AgreedScores(clients, offsets, weights.T, flipped, scale, center)
    return values, own_values, scorer, found


def energies_of(
    label: int, client: ColumnClient, U: np.ndarray, weight: np.ndarray, center: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Means of the local kernel, which stay, and the weighted u^T K_i u, to be sent."""
    K = client.local_kernel()
    offset = centre(K) if center else np.zeros(len(K))
    return offset, weight * np.einsum("ij,ij->j", U, K @ U)


@dataclass(frozen=True)
class AgreedScores:
    """Scores by the weighted local kernels."""

    clients: Sequence[ColumnClient]
    offsets: Sequence[np.ndarray]
    weights: np.ndarray
    vectors: Sequence[np.ndarray]
    scale: np.ndarray
    center: bool

    def scores(self, federation: Federation, X: np.ndarray) -> np.ndarray:
        """Scores of rows, from one sum over clients."""

        def local(
            label: int, client: ColumnClient, offset: Any, U: Any, weights: Any
        ) -> np.ndarray:
            turn = (U - U.mean(axis=0) * self.center) * weights
            return (client.local_kernel(X) - offset) @ turn

        known = zip(self.clients, self.offsets, self.vectors, self.weights, strict=True)
        calls = [(i, *of_client) for i, of_client in enumerate(known)]
        return federation.sum(local, calls) * self.scale
