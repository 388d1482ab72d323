"""Power method by rounds of sums over the messages of clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from .._kernels import linalg
from .._kernels.rows import scatter_about, scatter_product
from .._kernels.tolerances import GRAM_ROUNDING
from .._kernels.too_large import too_large
from ..communication import Federation
from ..summary import Subspace
from ..summary._along import along

# A block below this share of the largest eigenvalue adds nothing to a Krylov space.
_EXHAUSTED = 1e-13
# Share of the last basis in a local one, which stays where a client has no variance.
_KEPT = 1e-8
# Share of the last basis in the next one, for directions without any variance.
_STAYING = 1e-10
# Rounds without any client after which an estimator gives up.
_PATIENCE = 100
# Blocks of directions that a Krylov space may hold before it is restarted.
_MAX_BLOCKS = 8
# Largest number in a message, so that those of very many clients can be added up.
LARGEST = 2.0**983


@dataclass(frozen=True)
class AnyClient(ABC):
    """A client: its rows, and the messages it computes of them, of which only sums are seen."""

    label: Any
    rows: Any

    @property
    @abstractmethod
    def n_samples(self) -> float:
        """Number or weight of the rows."""

    @abstractmethod
    def message(self, kind: str, turn: int, *arguments: Any) -> np.ndarray:
        """What the client sends in a round: of a kind, and of what the server sent before."""


@dataclass(frozen=True)
class Client(AnyClient):
    """A client whose messages are exact."""

    weight: np.ndarray | None = None

    @property
    def n_samples(self) -> float:
        """Weight of the rows."""
        return float(self.rows.shape[0] if self.weight is None else self.weight.sum())

    def message(self, kind: str, turn: int, *arguments: Any) -> np.ndarray:
        """What the client sends in a round: what a method of the name ``kind`` returns."""
        with np.errstate(over="ignore", invalid="ignore"):
            message = getattr(self, kind)(*arguments)
        if not np.abs(message).max() <= LARGEST:
            raise too_large("sum of products")
        return message

    def moments(self) -> np.ndarray:
        """Sum and number of the rows, whose squares must not overflow, as others work with both."""
        X, w = self.rows, self.weight
        with np.errstate(over="ignore"):
            squares = scatter_about(X, np.zeros(X.shape[1]), w)
        if not np.isfinite(squares):
            raise too_large("sum of products")
        total = X.sum(axis=0, dtype=np.float64) if w is None else w @ X
        return np.append(np.asarray(total).ravel(), self.n_samples)

    def times_scatter(self, V: np.ndarray, mean: np.ndarray, local_steps: int) -> np.ndarray:
        """The basis times the scatter matrix about a mean; after local steps a turned basis."""
        if local_steps == 1:
            return scatter_product(self.rows, mean, V, self.weight)
        B = V
        for _ in range(local_steps):
            W = scatter_product(self.rows, mean, B, self.weight)
            W += (_KEPT * float(np.linalg.norm(W)) or 1.0) * B
            B = linalg.orthonormalised(W)
        U, _, Q = scipy.linalg.svd(V @ B.T)
        return self.n_samples * (U @ Q @ B)

    def variances(self, V: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Scatter matrix within a basis, the whole scatter, and the number of rows."""
        inner = scatter_product(self.rows, mean, V, self.weight) @ V.T
        scatter = scatter_about(self.rows, mean, self.weight)
        return np.append(inner.ravel(), [scatter, self.n_samples])


def _message(label: Any, client: AnyClient, kind: str, turn: int, *arguments: Any) -> np.ndarray:
    """Local work of one client: a message, which must be finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        message = client.message(kind, turn, *arguments)
    if not np.isfinite(message).all():
        raise too_large("sum of products")
    return message


def _calls(
    federation: Federation, clients: Sequence[AnyClient], kind: str, *arguments: Any
) -> list:
    """Calls of `_message` in the next round: of a method of each client."""
    turn = federation.n_rounds
    return [(client.label, client, kind, turn, *arguments) for client in clients]


def _positive(count: float) -> float:
    """Number of rows as received; 1 if noise has made it negative or zero."""
    return float(count) if count > 0 else 1.0


def awaited_sum(
    federation: Federation,
    clients: Sequence[AnyClient],
    kind: str,
    *arguments: Any,
    broadcast: np.ndarray | None = None,
) -> np.ndarray:
    """Sum of what a method of a client returns at each, once a round has a client in it."""
    for _ in range(_PATIENCE):
        calls = _calls(federation, clients, kind, *arguments)
        total = federation.sum(_message, calls, broadcast)
        if total is not None:
            return total
    raise ValueError(f"channel: no client took part in {_PATIENCE} rounds.")


def moments_by_sum(
    federation: Federation, clients: Sequence[AnyClient]
) -> tuple[np.ndarray, float]:
    """Mean and number of all rows, from one round."""
    total = awaited_sum(federation, clients, "moments")
    count = _positive(total[-1])
    return total[:-1] / count, count


@dataclass(frozen=True)
class PowerResult:
    """Result of `power_method`: the basis, its change in each round, and why it stopped."""

    basis: np.ndarray
    changes: list[float]
    stop_reason: str


def power_method(
    federation: Federation,
    clients: Sequence[AnyClient],
    mean: np.ndarray,
    V: np.ndarray,
    n_rounds: int,
    tol: float = 0.0,
    local_steps: int = 1,
    krylov: bool = False,
    rounds: Callable[[int], Iterable[int]] = range,
) -> PowerResult:
    """Subspace of the leading eigenvectors of a sum of scatter matrices, by rounds of sums.

    Parameters
    ----------
    federation : Federation
    clients : sequence of AnyClient
    mean : ndarray of shape (d,)
    V : ndarray of shape (r, d)
        First basis, orthonormal rows.
    n_rounds, tol, local_steps, krylov
        As in `FederatedPowerPCA`.
    rounds : callable
        ``rounds(m)`` yields numbers of m rounds; it may end early.
    """
    space = _Krylov(len(V)) if krylov else None
    changes: list[float] = []
    block = V
    for _ in rounds(n_rounds):
        calls = _calls(federation, clients, "times_scatter", block, mean, local_steps)
        W = federation.sum(_message, calls, broadcast=block)
        if W is None:  # nobody took part
            changes.append(np.nan)
            continue
        largest = float(np.abs(W).max())
        if not np.isfinite(largest):
            raise too_large("sum of products")
        if space is None:
            # directions without variance stay
            W = W / (largest or 1.0)
            W += _STAYING * float(np.linalg.norm(W)) * V
            moved = block = linalg.orthonormalised(W)
            changes.append(_sine(V, moved))
            V = moved
        else:
            V, moved, block = space.extended(block, W)
            changes.append(_sine(V, moved))
        if changes[-1] <= tol:
            return PowerResult(V, changes, "tol")
        if not len(block):
            return PowerResult(V, changes, "exhausted")
    return PowerResult(V, changes, "n_rounds" if len(changes) == n_rounds else "callback")


def _sine(A: np.ndarray, B: np.ndarray) -> float:
    rest = B - (B @ A.T) @ A
    return float(np.sqrt(max(linalg.eigh_top(rest @ rest.T, 1)[0][0], 0.0)))


class _Krylov:
    """Space of the blocks that a server has sent, and their products; restarted when large."""

    def __init__(self, rank: int):
        self.rank = rank
        self.Q: np.ndarray | None = None
        self.W: np.ndarray | None = None

    def extended(
        self, block: np.ndarray, product: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Best basis of the space with one more block, that multiplied, and the next block."""
        Q = block if self.Q is None else np.concatenate([self.Q, block])
        W = product if self.W is None else np.concatenate([self.W, product])
        T = W @ Q.T
        values, Y = linalg.eigh_top((T + T.T) / 2, self.rank)
        Y = Y[:, : self.rank]
        V, moved = Y.T @ Q, Y.T @ W
        if len(Q) >= _MAX_BLOCKS * self.rank:
            Q, W, product = V, moved, moved
        rest = product - (product @ Q.T) @ Q
        rest -= (rest @ Q.T) @ Q
        _, sizes, block = scipy.linalg.svd(rest, full_matrices=False, check_finite=False)
        room = Q.shape[1] - len(Q)
        block = block[: min(room, int(np.sum(sizes > _EXHAUSTED * abs(values[0]))))]
        if len(block):
            block = linalg.orthonormalised(block - (block @ Q.T) @ Q)
        self.Q, self.W = Q, W
        return V, linalg.orthonormalised(moved), block


def by_rayleigh_ritz(
    federation: Federation, clients: Sequence[AnyClient], total: Subspace, V: np.ndarray
) -> Subspace:
    """Summary along the principal axes of all rows within a basis, from one more round."""
    sums = awaited_sum(federation, clients, "variances", V, total.mean, broadcast=V)
    inner, (scatter, count) = sums[:-2].reshape(len(V), len(V)), sums[-2:]
    values, Y = np.linalg.eigh((inner + inner.T) / 2)
    factor = np.sqrt(np.maximum(values, 0.0))[:, None] * Y.T
    total = total._replace(scatter=max(float(scatter), 0.0), n_samples=_positive(count))
    found = along(total, V, factor)
    s = found.singular_values
    return found.truncate(int(np.sum(s**2 > GRAM_ROUNDING * max(s[0] ** 2, np.finfo(float).tiny))))
