"""`VerticalFederatedPCA` at sites that own columns, by messages or by secure sums.

A secure sum is what all sites have of one shape and what only matters added up: products of left
vectors with X_i X_i^T, whose sum is that of all columns, and the scatter. The keys of rows are no
sum, they are intersected. Nor are a site's part of the components and its mean: side by side they
are the result, so that a sum of them, each at its columns, would be the parts themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from sklearn.utils import check_random_state

from .._kernels.rows import scatter_product
from .._validation.checks import check_at_most_features
from ..rounds._queries import TimesScatter
from ..summary import Subspace
from ..vertical import LeftVectorMerge, PowerRounds, VerticalFederatedPCA, VFedPCA
from ..vertical._vertical_federated_pca import along_parts, principal_turn
from ..vertical._vertical_method import left_factor
from ..vertical._vfedpca import Columns
from ._estimators import fit_estimator, refuse_channel, site_work
from ._matching import (
    KEYS,
    OF_ROWS,
    ColumnRounds,
    bounded,
    noted,
    own_keys,
    period_of,
    refuse_topology,
)
from ._messages import Answer
from ._questions import RefusedError, Task, check_basis
from ._secure import BOUNDS, Bounds, SecureAggregation, grids_of_sums
from ._secure_fits import secure_work
from ._sites import SecureSums, Sites
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


def _tasks_of(method: Any, center: bool, rank: int) -> dict[str, Task]:
    """Questions of a method of `VerticalFederatedPCA`."""

    def times_columns(site, X, V):
        check_basis(V, len(X), min(rank, len(X)))
        rows, _ = centred(X, center)
        return {"message": scatter_product(rows, np.zeros(len(X)), V)}

    def left_vectors(site, X):
        return summary_sent(left_factor(site, centred(X, center)[0], method.local_components))

    def period(site, X, found, updates, start):
        rows, _ = centred(X, center)
        return period_of(Columns(site, len(rows), rows), found, updates, start, method, rank)

    task = partial(Task, reads=OF_ROWS, matched=True)
    if isinstance(method, PowerRounds):
        refuse_channel(method.channel)
        return {"times_columns": task(times_columns, method.n_rounds)}
    if isinstance(method, LeftVectorMerge):
        return {"left_vectors": task(left_vectors)}
    if isinstance(method, VFedPCA):
        return {"period": task(period, rank * method.n_rounds)}
    raise TypeError(
        "method must be one of LeftVectorMerge, PowerRounds, VFedPCA over a network, got "
        f"{method!r}."
    )


# -------------------------------------------------------------------- at the server


def _rounds(sites: Sites) -> ColumnRounds:
    rounds = ColumnRounds(sites)
    n = len(rounds.keys)

    def products(query: TimesScatter, calls: list) -> list[np.ndarray]:
        """Products of left vectors with the columns of each site."""
        shape = query.shape
        return rounds.ask("times_columns", lambda a: a.summand("message", shape), query.V)

    def factors(function: Any, calls: list) -> list[Subspace]:
        """Left vectors and values of the columns of each site."""
        (_, _, size), *_ = calls
        return rounds.ask("left_vectors", partial(_left_factor, n, size or n))

    def summed(query: TimesScatter) -> np.ndarray:
        return rounds.summed("times_columns", "products", query.shape, query.V)

    rounds.questions |= {TimesScatter: products, left_factor: factors}
    rounds.sums |= {TimesScatter: summed}
    return rounds


def _left_factor(n: int, most: int, answer: Answer) -> Subspace:
    found = valid_summary(answer)
    if found.n_features != n or found.centered or found.n_components > most:
        raise answer.refused(f"another summary than of left vectors of {n} rows")
    return found


@fit_estimator.register
def _(estimator: VerticalFederatedPCA, sites: Sites) -> VerticalFederatedPCA:
    rounds = _rounds(sites)
    n, d = len(rounds.keys), rounds.n_features
    check_at_most_features(estimator.n_components, d)
    rounds.rng = check_random_state(estimator.random_state)
    rank = min(estimator.n_components, n)
    agreed = estimator._method().left_vectors(rounds, rounds.clients, rank)
    parts = Parts.of(rounds, agreed.vectors[0])
    total = Subspace.empty(d, centered=estimator.center, dtype=sites.dtype)
    total = total._replace(mean=parts.mean, n_samples=float(n), scatter=parts.scatter)
    turn = principal_turn(parts.V @ parts.V.T)
    if turn is not None:
        V = turn.T @ parts.V
        total = along_parts(total, V @ V.T, V, turn.T @ parts.scores)
    estimator.communication_ = sites.log
    estimator._show(total, agreed, rounds.groups, n)
    return noted(estimator, rounds)


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
        """Ask all sites, for what is not known of their sums."""
        U, widths = spanning(vectors), rounds.widths
        sums = {}
        if isinstance(rounds.sites, SecureSums):
            query = TimesScatter(U, np.zeros(U.shape[1]))
            sums = {
                "scores": rounds.sum(query, []),
                "scatter": rounds.summed("scatter", "scatter", (1,)),
            }

        def read(answer: Answer) -> dict[str, np.ndarray]:
            d = widths.get(answer.site)
            shapes = {"part": (len(U), d), "scores": U.shape, "mean": (d,), "scatter": (1,)}
            asked = (name for name in shapes if name not in sums)
            found = {name: bounded(answer, name, shapes[name]) for name in asked}
            if "scatter" in found and found["scatter"] < 0:
                raise answer.refused(f"scatter={found['scatter'][0]}, expected a sum of squares")
            return found

        found = rounds.ask("parts", read, U)
        parts, means = ([part[name] for part in found] for name in ("part", "mean"))
        scores, scatter = (
            sums.get(name, sum(part.get(name, 0.0) for part in found))
            for name in ("scores", "scatter")
        )
        V, mean = np.concatenate(parts, axis=1), np.concatenate(means)
        return cls(U, V, scores, mean, max(float(scatter[0]), 0.0))


def spanning(vectors: np.ndarray) -> np.ndarray:
    """Orthonormal rows with the span of some rows, one that is in no span where all are zero."""
    n = vectors.shape[1]
    _, sizes, W = scipy.linalg.svd(vectors, full_matrices=False)
    return W[sizes > _DEPENDENT * sizes[0]] if sizes[0] else np.full((1, n), n**-0.5)


# -------------------------------------------------------------------- secure sums


@secure_work.register
def _(estimator: VerticalFederatedPCA, secure: SecureAggregation) -> dict[str, Task]:
    if not isinstance(method := estimator._method(), PowerRounds):
        raise ValueError(
            'method must be "power" with secure sums: the vectors of other methods do not add up, '
            f"got {estimator.method!r}."
        )
    plain, center, rank = site_work(estimator), estimator.center, estimator.n_components

    def squares(X):
        return np.square(centred(X, center)[0]).sum()

    def times_columns(site, X, V):
        return {"products": plain["times_columns"].work(site, X, V)["message"]}

    def scatter(site, X):
        return {"scatter": np.array([squares(X)])}

    def parts(site, X, U):
        found = parts_of(X, U, center, rank)
        return {"part": found["part"], "mean": found["mean"]}

    summed = partial(Task, reads=OF_ROWS, matched=True, grids=grids_of_sums)
    return {
        **keys_and_bounds(squares),
        # one more than the rounds, for the scores
        "times_columns": summed(times_columns, method.n_rounds + 1),
        "scatter": summed(scatter),
        "parts": Task(parts, reads=OF_ROWS, matched=True, once=True),
    }


def keys_and_bounds(squares: Callable[[np.ndarray], float]) -> dict[str, Task]:
    """What begins secure sums over columns: keys, and bounds of a sum of squares of a site's."""

    def bounds(site, X):
        return {BOUNDS: Bounds.of_numbers(len(X), len(X), 0.0, squares(X), X.dtype).vector}

    return {
        "keys": Task(own_keys, reads=KEYS),
        "columns_bound": Task(bounds, reads=OF_ROWS, matched=True),
    }
