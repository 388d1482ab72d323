"""Periods in which clients take power iterations and agree on a vector: Algorithms 2 to 5."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..communication import Federation
from ._agreement import Agreement
from ._operators import Operator, local_power, unit


@dataclass(frozen=True)
class CommonVectors:
    """Vectors that p clients agreed on.

    Parameters
    ----------
    vectors : list of ndarray of shape (k, n)
        As each client has them.
    values, weights : ndarray of shape (k, p)
        Eigenvalues of the first period, of the clients' own matrices; weights of the last.
    n_iter : int
    own : bool
        Whether clients have vectors of their own; otherwise all have the same array.
    """

    vectors: list[np.ndarray]
    values: np.ndarray
    weights: np.ndarray
    n_iter: int
    own: bool

    @property
    def disagreement(self) -> float:
        """Largest distance between the vectors of two clients."""
        if not self.own:
            return 0.0
        V = np.array(self.vectors)
        return max(float(np.linalg.norm(V - u, axis=-1).max()) for u in V)


def period(
    label: object, operator: Operator, u: np.ndarray | None, a: np.ndarray, iterations: int
) -> tuple[Operator, float, np.ndarray]:
    """A client's period: update by the common vector (None: there is none), power iteration."""
    if u is not None:
        operator = operator.updated(u)
    return operator, *local_power(operator, a, iterations)


def common_vectors(
    method: Any,
    federation: Federation,
    operators: Sequence[Operator],
    n: int,
    rank: int,
    rounds: Callable[[int], Iterable[int]] = range,
) -> CommonVectors:
    """Vectors that clients agree on, one component after the other.

    Parameters
    ----------
    method : VFedPCA
    federation : Federation
    operators : sequence of Operator
        The clients' matrices, n x n.
    n, rank : int
    rounds : callable, default=range
        As in `VerticalMethod.left_vectors`.
    """
    agreement = Agreement(method.weighting, method.weight_scaling, method.exchange == "neighbours")
    n_columns = np.array([operator.n_columns for operator in operators])
    p = len(operators)
    found: list[list[np.ndarray]] = []
    local: list[tuple[np.ndarray, np.ndarray]] = []
    n_iter = 0
    for turn in rounds(int(rank) * int(method.n_rounds)):
        first = turn % method.n_rounds == 0
        if first:  # the next component
            if found:
                pairs = zip(operators, found[-1], strict=True)
                operators = [operator.deflated(u) for operator, u in pairs]
            starts, current = [unit(federation.rng.standard_normal(n))] * p, operators
            found.append(starts)
            local.append((np.zeros(p), np.zeros(p)))
        calls = [
            (operator.label, operator, None if first else u, a, method.local_iterations)
            for operator, u, a in zip(current, found[-1], starts, strict=True)
        ]
        updated, values, vectors = zip(*federation.map(period, calls), strict=True)
        if method.update.startswith("cumulative"):
            current = updated
        weights = agreement.weights(np.array(values), n_columns)
        local[-1] = np.array(values) if first else local[-1][0], weights
        found[-1] = agreement.common(federation, weights, np.array(vectors))
        if method.warm_start:
            starts = found[-1]
        n_iter += 1
    own = agreement.neighbours_only and federation.gossip is not None
    common = [np.array([of_all[0] for of_all in found])] * p
    if own:
        each = [np.array(vectors) for vectors in zip(*found, strict=True)]
        common = agreement.aligned(federation, each)
    return CommonVectors(
        common,
        np.array([values for values, _ in local]),
        np.array([weights for _, weights in local]),
        n_iter,
        own,
    )
