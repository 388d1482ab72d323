"""Power method by rounds of sums over the messages of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np
import scipy.linalg

from .._kernels import linalg
from .._kernels.tolerances import GRAM_ROUNDING
from ..communication import Federation
from ..summary import Subspace
from ..summary._projection_mean import rayleigh_ritz
from ._queries import AnyClient, Moments, Query, TimesScatter, Variances

# A block below this share of the largest eigenvalue adds nothing to a Krylov space.
_EXHAUSTED = 1e-13
# Share of the last basis in the next one, for directions without any variance.
_STAYING = 1e-10
# Rounds without any client after which an estimator gives up.
_PATIENCE = 100
# Blocks of directions that a Krylov space may hold before it is restarted, and the directions that
# it may hold in any case: few components alone would be restarted every few rounds.
_MAX_BLOCKS, _ANY_DIRECTIONS = 8, 64


def _positive(count: float) -> float:
    """Number of rows as received; 1 if noise has made it negative or zero."""
    return float(count) if count > 0 else 1.0


def awaited_sum(
    federation: Federation, clients: Sequence[AnyClient], query: Query, reply: np.ndarray | None
) -> np.ndarray:
    """Sum of the answers of the clients, once a round has a client in it.

    ``reply`` has the size of what the server sends for it, or in answer, for the log.
    """
    for _ in range(_PATIENCE):
        total = federation.sum(query, [(c.label, c, federation.n_rounds) for c in clients], reply)
        if total is not None:
            return total
    raise ValueError(f"channel: no client took part in {_PATIENCE} rounds.")


def moments_by_sum(
    federation: Federation, clients: Sequence[AnyClient], reply: np.ndarray | None = None
) -> tuple[np.ndarray, float]:
    """Mean and number of all rows, from one round; ``reply`` as in `awaited_sum`."""
    total = awaited_sum(federation, clients, Moments(), reply)
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
    own: np.ndarray | None = None,
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
    own : ndarray of shape (m, d) or None
        Rows about the mean that the server has: it adds their product to each sum.
    """
    space = _Krylov(V) if krylov else None
    changes: list[float] = []
    block, labels = V, [client.label for client in clients]
    for _ in rounds(n_rounds):
        query = TimesScatter(block, mean, local_steps)
        calls = list(zip(labels, clients, repeat(federation.n_rounds)))
        W = federation.sum(query, calls, block)
        if W is None:  # nobody took part
            changes.append(np.nan)
            continue
        if own is not None:
            W = W + (block @ own.T) @ own
        if space is None:
            # directions without variance stay
            W = W / (float(np.abs(W).max()) or 1.0)
            W += _STAYING * float(np.linalg.norm(W)) * V
            moved = block = linalg.orthonormalised(W)
        else:
            V, moved, block = space.extended(block, W)
        rest = moved - (moved @ V.T) @ V
        sine = float(np.linalg.eigvalsh(rest @ rest.T)[-1].clip(0)) ** 0.5
        changes.append(sine)
        V = moved if space is None else V
        # where a client was left out, whoever asked begins again
        if federation.channel.begins_again or changes[-1] <= tol:
            return PowerResult(V, changes, "tol")
        if not len(block):
            return PowerResult(V, changes, "exhausted")
    return PowerResult(V, changes, "n_rounds" if len(changes) == n_rounds else "callback")


class _Krylov:
    """Space of the blocks that a server has sent, and their products; restarted when large."""

    def __init__(self, V: np.ndarray):
        self.rank = len(V)
        self.Q = self.W = V[:0]
        self.T = np.zeros((0, 0))  # W Q^T

    def extended(
        self, block: np.ndarray, product: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Best basis of the space with one more block, that multiplied, and the next block."""
        n = len(self.T)
        Q, W = np.concatenate([self.Q, block]), np.concatenate([self.W, product])
        T = np.empty((len(Q), len(Q)))
        T[:n, :n], T[n:], T[:n, n:] = self.T, product @ Q.T, W[:n] @ block.T
        values, Y = linalg.eigh_top((T + T.T) / 2, self.rank)
        Y = Y[:, : self.rank]
        V, moved = Y.T @ Q, Y.T @ W
        if len(Q) >= max(_MAX_BLOCKS * self.rank, _ANY_DIRECTIONS):
            Q, W, product, T = V, moved, moved, moved @ V.T
        rest = product - (product @ Q.T) @ Q
        _, sizes, block = scipy.linalg.svd(rest, full_matrices=False, check_finite=False)
        room = Q.shape[1] - len(Q)
        block = block[: min(room, int(np.sum(sizes > _EXHAUSTED * abs(values[0]))))]
        if len(block):
            block = linalg.orthonormalised(block - (block @ Q.T) @ Q)
        self.Q, self.W, self.T = Q, W, T
        return V, linalg.orthonormalised(moved), block


def by_rayleigh_ritz(
    federation: Federation,
    clients: Sequence[AnyClient],
    total: Subspace,
    V: np.ndarray,
    own: np.ndarray | None = None,
) -> Subspace:
    """Summary along the principal axes of all rows within a basis, from one more round.

    Count and scatter of the clients' rows are added to those of ``total``, which are of ``own``.
    """
    sums = awaited_sum(federation, clients, Variances(V, total.mean), V)
    inner, (scatter, count) = sums[:-2].reshape(len(V), len(V)), sums[-2:]
    if own is not None:
        inner = inner + (V @ own.T) @ (own @ V.T)
    values, Y = np.linalg.eigh((inner + inner.T) / 2)
    factor = np.sqrt(np.maximum(values, 0.0))[:, None] * Y.T
    scatter = total.scatter + max(float(scatter), 0.0)
    total = total._replace(scatter=scatter, n_samples=total.n_samples + _positive(count))
    found = rayleigh_ritz(total, V, factor)
    s = found.singular_values
    return found.truncate(int(np.sum(s**2 > GRAM_ROUNDING * max(s[0] ** 2, np.finfo(float).tiny))))
