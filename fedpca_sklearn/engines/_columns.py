"""`VerticalFederatedPCA` at sites that own columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, singledispatch
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from sklearn.base import clone
from sklearn.utils import check_random_state

from .._kernels.rows import scatter_product
from .._validation.checks import check_at_most_features
from ..rounds._queries import LARGEST, TimesScatter
from ..summary import Subspace
from ..vertical import LeftVectorMerge, PowerRounds, VerticalFederatedPCA, VFedPCA
from ..vertical._vertical_federated_pca import along_parts, principal_turn
from ..vertical._vertical_method import left_factor
from ..vertical._vfedpca import Columns
from ._estimators import (
    fit_estimator,
    refuse_channel,
    site_work,
    until_nobody_is_lost,
)
from ._matching import (
    KEYS,
    OF_ROWS,
    ColumnRounds,
    Matched,
    SiteColumns,
    bounded,
    match,
    noted,
    own_keys,
    period_of,
    refuse_topology,
)
from ._messages import Answer
from ._questions import RefusedError, Task, check_basis
from ._sites import Sites
from ._summaries import summary_sent, valid_summary

# Share of a single row that the vectors may have with which a site multiplies its columns to hand
# the products out: no combination of them is nearer to a row than 45 degrees.
_MOST_OF_A_ROW = 0.5
# Directions of left vectors below this share of the largest are rounding errors.
_DEPENDENT = 1e-9


# -------------------------------------------------------------------- at a site


def centred(X: np.ndarray, center: bool) -> tuple[np.ndarray, np.ndarray]:
    """Columns about their means, as rows of shape (d, n), and the means."""
    mean = X.mean(axis=0, dtype=np.float64) if center else np.zeros(X.shape[1])
    return np.ascontiguousarray((X - mean).T), mean


def parts_of(X: np.ndarray, U: np.ndarray, center: bool, rank: int) -> dict[str, Any]:
    """What orthonormal left vectors make of a site's columns, checked to be of many rows."""
    check_basis(U, len(X), min(rank, len(X)))
    if np.square(U).sum(axis=0).max() > _MOST_OF_A_ROW:
        raise RefusedError("a row has more than half of its length in the span of the vectors")
    rows, mean = centred(X, center)
    part = U @ rows.T
    scatter = np.einsum("ij,ij->", rows, rows)
    return {"part": part, "scores": part @ rows, "mean": mean, "scatter": [scatter]}


@site_work.register
def _(estimator: VerticalFederatedPCA) -> dict[str, Task]:
    refuse_topology(estimator)
    center, rank = estimator.center, estimator.n_components

    def parts(site, X, U):
        return parts_of(X, U, center, rank)

    return {
        "keys": Task(own_keys, reads=KEYS),
        **_tasks_of(estimator._method(), center, rank),
        "parts": Task(parts, reads=OF_ROWS, matched=True, once=True),
    }


@singledispatch
def _tasks_of(method: Any, center: bool, rank: int) -> dict[str, Task]:
    """Questions of a method of `VerticalFederatedPCA`."""
    names = sorted(kind.__name__ for kind in _tasks_of.registry if kind is not object)
    raise TypeError(f"method must be one of {', '.join(names)} over a network, got {method!r}.")


@_tasks_of.register
def _(method: PowerRounds, center: bool, rank: int) -> dict[str, Task]:
    refuse_channel(method.channel)

    def times_columns(site, X, V):
        check_basis(V, len(X), min(rank, len(X)))
        rows, _ = centred(X, center)
        return {"message": scatter_product(rows, np.zeros(len(X)), V)}

    return {"times_columns": Task(times_columns, method.n_rounds, reads=OF_ROWS, matched=True)}


@_tasks_of.register
def _(method: LeftVectorMerge, center: bool, rank: int) -> dict[str, Task]:
    def left_vectors(site, X):
        return summary_sent(left_factor(site, centred(X, center)[0], method.local_components))

    return {"left_vectors": Task(left_vectors, reads=OF_ROWS, matched=True)}


@_tasks_of.register
def _(method: VFedPCA, center: bool, rank: int) -> dict[str, Task]:
    def period(site, X, found, updates, start):
        rows, _ = centred(X, center)
        return period_of(Columns(site, len(rows), rows), found, updates, start, method, rank)

    return {"period": Task(period, rank * method.n_rounds, reads=OF_ROWS, matched=True)}


# -------------------------------------------------------------------- at the server


@fit_estimator.register
def _(estimator: VerticalFederatedPCA, sites: Sites) -> VerticalFederatedPCA:
    return until_nobody_is_lost(lambda: fit_columns(clone(estimator), sites, _rounds, Parts.of))


def _rounds(sites: Sites, matched: Matched, rng: np.random.RandomState) -> ColumnRounds:
    rounds = ColumnRounds(sites, matched, rng)
    rounds.questions |= {
        TimesScatter: partial(_products, rounds),
        left_factor: partial(_left_factors, rounds),
    }
    return rounds


def fit_columns(
    estimator: VerticalFederatedPCA,
    sites: Sites,
    make_rounds: Callable[[Sites, Matched, np.random.RandomState], Any],
    parts_by: Callable[[Any, np.ndarray], Parts],
) -> VerticalFederatedPCA:
    """Fit by rounds about the rows that all sites have, and the parts that these make."""
    matched = match(sites)
    n, d = len(matched.keys), matched.n_features
    check_at_most_features(estimator.n_components, d)
    rounds = make_rounds(sites, matched, check_random_state(estimator.random_state))
    clients = SiteColumns.of(sites, matched)
    rank = min(estimator.n_components, n)
    agreed = estimator._method().left_vectors(rounds, clients, rank)
    parts = parts_by(rounds, agreed.vectors[0])
    total = Subspace.empty(d, centered=estimator.center, dtype=sites.dtype)
    total = total._replace(mean=parts.mean, n_samples=float(n), scatter=parts.scatter)
    turn = principal_turn(parts.V @ parts.V.T)
    if turn is not None:
        V = turn.T @ parts.V
        total = along_parts(total, V @ V.T, V, turn.T @ parts.scores)
    estimator.communication_ = sites.log
    estimator._show(total, agreed, matched.groups, n)
    return noted(estimator, sites, matched, d)


def _products(rounds: ColumnRounds, query: TimesScatter, calls: list) -> Iterator[np.ndarray]:
    """Products of left vectors with the columns of each site."""

    def read(answer: Answer) -> np.ndarray:
        message = answer.array("message", query.shape)
        if np.abs(message).max() > LARGEST:
            raise answer.refused("values that are too large: their sum would overflow")
        return message

    yield from rounds.ask("times_columns", read, query.V)


def _left_factors(rounds: ColumnRounds, function: Any, calls: list) -> Iterator[Subspace]:
    """Left vectors and values of the columns of each site."""
    (_, _, size), *_ = calls
    n = len(rounds.matched.keys)

    def read(answer: Answer) -> Subspace:
        found = valid_summary(answer)
        if found.n_features != n or found.centered or found.n_components > (size or n):
            raise answer.refused(f"another summary than of left vectors of {n} rows")
        return found

    yield from rounds.ask("left_vectors", read)


class Parts(NamedTuple):
    """What all sites have made of left vectors: of orthonormal ones with the same span.

    Parameters
    ----------
    vectors : ndarray of shape (k, n)
        These.
    V : ndarray of shape (k, d)
        Products with the columns of all sites, side by side.
    scores : ndarray of shape (k, n)
        Sum of products of the sites' parts with their columns.
    mean : ndarray of shape (d,)
    scatter : float
    """

    vectors: np.ndarray
    V: np.ndarray
    scores: np.ndarray
    mean: np.ndarray
    scatter: float

    @classmethod
    def of(cls, rounds: ColumnRounds, vectors: np.ndarray) -> Parts:
        """Ask all sites."""
        U, widths = spanning(vectors), rounds.widths

        def read(answer: Answer) -> list[np.ndarray]:
            d = widths.get(answer.site)
            shapes = {"part": (len(U), d), "scores": U.shape, "mean": (d,), "scatter": (1,)}
            found = [bounded(answer, name, shape) for name, shape in shapes.items()]
            if found[-1] < 0:
                raise answer.refused(f"scatter={found[-1][0]}, expected a sum of squares")
            return found

        parts, scores, means, scatters = zip(*rounds.ask("parts", read, U), strict=True)
        scatter = float(np.sum(scatters))
        return cls(U, np.concatenate(parts, axis=1), sum(scores), np.concatenate(means), scatter)


def spanning(vectors: np.ndarray) -> np.ndarray:
    """Orthonormal rows with the span of some rows, one that is in no span where all are zero."""
    n = vectors.shape[1]
    _, sizes, W = scipy.linalg.svd(vectors, full_matrices=False)
    return W[sizes > _DEPENDENT * sizes[0]] if sizes[0] else np.full((1, n), n**-0.5)
