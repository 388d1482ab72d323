"""Principal components from left vectors of columns at several clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._kernels.tolerances import GRAM_ROUNDING
from ..communication import Federation
from ..communication._federation import message_of
from ..communication._sum_of_all import sum_of_all
from ..rounds._client import Client
from ..summary import Subspace
from ..summary._rayleigh_ritz import along


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
    *inner, scatter = sum_of_all(federation, _inner_products, calls)
    total = total._replace(scatter=float(scatter))
    k = len(U[0])
    turn = principal_turn(np.reshape(inner, (k, k)))
    if turn is None:
        return total
    calls = [(label, turn.T @ part, rows) for label, part, rows in calls]
    sums = sum_of_all(federation, _scores, calls, broadcast=turn)
    gram, scores = sums[:, : len(sums)], sums[:, len(sums) :]
    V = np.empty((len(sums), total.n_features))
    for (_, part, _), columns in zip(calls, groups, strict=True):
        V[:, columns] = part
    federation.log.record((), [message_of(gram)] * len(clients))
    return along_parts(total, gram, V, scores)


def principal_turn(inner: np.ndarray) -> np.ndarray | None:
    """Turn of directions with these inner products to orthonormal principal ones, if any."""
    values, Y = np.linalg.eigh(inner)
    keep = values > GRAM_ROUNDING * max(values.max(initial=0.0), np.finfo(float).tiny)
    return Y[:, keep][:, ::-1] / np.sqrt(values[keep][::-1]) if keep.any() else None


def along_parts(total: Subspace, gram: np.ndarray, V: np.ndarray, scores: np.ndarray) -> Subspace:
    """Summary along directions V, nearly orthonormal, by their inner products and scores."""
    root = np.linalg.cholesky(gram)  # the first sum's rounding errors, over the smallest variance
    return along(total, np.linalg.solve(root, V), np.linalg.solve(root, scores).T)


def _inner_products(label: int, part: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """A client's share of the inner products of directions, and of the scatter."""
    return np.append((part @ part.T).ravel(), np.einsum("ij,ij->", rows, rows))


def _scores(label: int, part: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """A client's share of the inner products of directions, and of the rows' scores."""
    return np.concatenate([part @ part.T, part @ rows], axis=1)
