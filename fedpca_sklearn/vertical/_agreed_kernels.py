"""Components that clients agree on by their own kernels: VFedKPCA, of Cheung, Jiang, Yu and Lou."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Any

import numpy as np

from .._kernels import linalg
from ..communication import Federation
from ..communication._sum_of_all import sum_of_all
from ._operators import Operator, Product
from ._periods import CommonVectors, common_vectors
from ._vertical_kernels import (
    ColumnClient,
    as_sent,
    centre,
    inverse_root,
    nonnegligible,
    rounding,
)
from ._vfedpca import VFedPCA


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
        return replace(self, client=self.client.updated(u - u.mean() if self.center else u))


@singledispatch
def kernel_operator(client: Any, label: int, center: bool, method: VFedPCA) -> Operator:
    """The kernel of a client; a function for each class of clients."""
    of_columns = method.update.endswith("_columns")
    return KernelMatrix(label, len(client.columns), client, center, of_columns)


def agreed_kernel_pca(
    method: VFedPCA,
    federation: Federation,
    clients: Sequence[ColumnClient],
    center: bool,
    rank: int,
    rounds: Callable[[int], Iterable[int]],
) -> tuple[np.ndarray, AgreedScores, CommonVectors]:
    """Eigenvalues, what gives scores, and the vectors that clients agreed on."""
    operators = [kernel_operator(client, i, center, method) for i, client in enumerate(clients)]
    n = len(clients[0].rows)
    found = common_vectors(method, federation, operators, n, rank, rounds)
    flipped = _with_fixed_signs(found)
    known = list(zip(clients, flipped, found.weights.T, strict=True))
    calls = [(i, *each, center) for i, each in enumerate(known)]
    offsets, energies = zip(*federation.map(energies_of, calls), strict=True)
    weights = list(enumerate(found.weights.T))
    total = found.weights.sum(axis=1)
    if found.own and not federation.gossip.complete:
        total = sum_of_all(federation, as_sent, weights)
    total = np.where(total > 0, total, 1.0)
    values = sum_of_all(federation, as_sent, list(enumerate(energies))) / total
    values = nonnegligible(values)
    scorer = AgreedScores(
        clients, offsets, found.weights.T, flipped, inverse_root(values) / total, center
    )
    return values, scorer, found


def _with_fixed_signs(found: CommonVectors) -> list[np.ndarray]:
    """Clients' vectors as columns, n x k, with the signs that fix those of the first client's."""
    first = found.vectors[0]
    signs = np.where(np.einsum("ij,ij->i", first, linalg.flip_signs(first.copy())) < 0, -1.0, 1.0)
    if not found.own:
        return [(first * signs[:, None]).T] * len(found.vectors)
    return [(vectors * signs[:, None]).T for vectors in found.vectors]


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
        known = zip(self.clients, self.offsets, self.vectors, self.weights, strict=True)
        calls = [
            (i, client, X, offset, (U - U.mean(axis=0) * self.center) * weights)
            for i, (client, offset, U, weights) in enumerate(known)
        ]
        return sum_of_all(federation, _local_scores, calls) * self.scale


def _local_scores(
    label: Any, client: ColumnClient, X: np.ndarray, offset: np.ndarray, turn: np.ndarray
) -> np.ndarray:
    return (client.local_kernel(X) - offset) @ turn
