"""Sites that own columns, by messages or by secure sums: rows that all have, and rounds about them.

`VerticalFederatedPCA` is here. A secure sum is what all sites have of one shape and what only
matters added up: products of left vectors with X_i X_i^T, whose sum is that of all columns, and the
scatter. The keys of rows are no sum, they are intersected. Nor are a site's part of the components
and its mean: side by side they are the result, so that a sum of them, each at its columns, would be
the parts themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from sklearn.utils import check_random_state

from .._base.certified import name_columns
from .._kernels.rows import scatter_product
from .._validation.checks import check_at_most_features
from .._validation.feature_names import check_names
from ..communication._topology import as_topology
from ..rounds._queries import TimesScatter
from ..summary import Subspace
from ..vertical import LeftVectorMerge, PowerRounds, VerticalFederatedPCA, VFedPCA
from ..vertical._vertical_federated_pca import along_parts, principal_turn
from ..vertical._vertical_kernels import as_sent, energies_of, part_of
from ..vertical._vertical_method import left_factor
from ..vertical._vfedpca import Columns, Operator, Product, local_power, period
from ._estimators import fit_estimator, refuse_channel, site_work, valid_summary, value_sent
from ._messages import Answer
from ._questions import RefusedError, Task, check_basis
from ._rows import KEY_BYTES, MARK_BYTES, common_keys, sorted_keys
from ._secure import BOUNDS, Bounds, SecureAggregation, grids_of_sums
from ._secure_fits import Rounds, names_in, secure_work
from ._sites import SecureSums, Sites

# Largest number in a message about columns, so that what is made of several does not overflow.
LARGEST_NUMBER = 2.0**480
# Columns of a site, so that a number alone takes no memory.
_MOST_COLUMNS = 2**20
# Rounding of the lengths of vectors that are asked about.
_UNIT_TOL = 1e-6
# What questions to sites that own columns read.
KEYS = "rows: what names them is hashed and sent"
OF_ROWS = (
    "rows: sites with different columns have the rows in common, whose vectors are asked about"
)


# -------------------------------------------------------------------- at a site


def refuse_topology(estimator: Any) -> None:
    """Raise unless the messages go to a server."""
    if as_topology(estimator.topology) is not None:
        raise ValueError(f"topology must be 'server' over a network, got {estimator.topology!r}.")


def own_keys(site: str, X: Any, *, keys: Any) -> dict[str, Any]:
    """Hashed keys of a site's rows, what it shares its salt by, and its number of columns."""
    if sp.issparse(X):
        raise TypeError("Rows must be dense where sites own columns.")
    return {"keys": sorted_keys(keys.hashes), "salt": keys.mark, "columns": [float(X.shape[1])]}


def check_vectors(vectors: np.ndarray, n: int, most: int) -> None:
    """Raise unless rows are vectors of length 1, or zero, of n entries each."""
    if vectors.ndim != 2 or vectors.shape[1] != n or len(vectors) > most:
        raise RefusedError(f"vectors must have shape (m, {n}), m <= {most}, got {vectors.shape}")
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(vectors, axis=1)
    if not ((lengths == 0) | (np.abs(lengths - 1) <= _UNIT_TOL)).all():
        raise RefusedError("vectors must have length 1")


def period_of(
    operator: Operator,
    found: np.ndarray,
    updates: np.ndarray,
    start: np.ndarray,
    method: Any,
    rank: int,
) -> dict[str, Any]:
    """A site's period of `VFedPCA`: power iteration without some directions, after updates.

    The first rows of ``found`` and of ``updates`` stand for none.
    """
    n = len(start)
    check_vectors(found, n, rank)
    check_vectors(updates, n, method.n_rounds)
    check_vectors(start[None], n, 1)
    for u in found[1:]:
        operator = operator.deflated(u)
    for u in updates[1:]:
        operator = operator.updated(u)
    value, vector = local_power(operator, start, method.local_iterations)
    return {"value": [value], "vector": vector}


# -------------------------------------------------------------------- at the server


def match(sites: Sites) -> tuple[np.ndarray, dict[str, int], list[np.ndarray]]:
    """Ask for the keys of all sites: those that all have, how many others, columns of each site.

    Where a site is lost, they stay those that it has, too: the others take no second list.
    """
    sites.own_columns = True
    found = sites.ask("keys", _keys)
    common = sites.common_keys
    if common is None:
        common = common_keys([keys for keys, _ in found.values()])
    if not len(common):
        raise RuntimeError(f"No key of a row is at all sites, {', '.join(found)}.")
    sites.common_keys = common
    left_out = {site: len(keys) - len(common) for site, (keys, _) in found.items()}
    ends = np.cumsum([n_columns for _, n_columns in found.values()])
    return common, left_out, np.split(np.arange(ends[-1]), ends[:-1])


def _keys(answer: Answer) -> tuple[np.ndarray, int]:
    keys = answer.array("keys", (None, KEY_BYTES), "|u1")
    if len(sorted_keys(keys)) < len(keys):
        raise answer.refused("one key twice")
    (n_columns,) = answer.array("columns", (1,))
    names = answer.config.get("columns")
    described = len(names) if isinstance(names, list) else n_columns // 1
    if not 1 <= n_columns <= _MOST_COLUMNS or n_columns != described:
        raise answer.refused(f"columns={n_columns:g}, expected the number of its columns")
    answer.agree("salt", answer.array("salt", (MARK_BYTES,), "|u1").tobytes().hex())
    return keys, int(n_columns)


@dataclass(frozen=True)
class SiteOperator(Operator):
    """A site, and what happened to its matrix, which it does again when it is asked.

    Of its columns, ``rows``, the server knows the shape.
    """

    rows: Any = None
    found: tuple[np.ndarray, ...] = ()
    updates: tuple[np.ndarray, ...] = ()

    def product(self) -> tuple[Product, float]:
        """There is none at the server."""
        raise NotImplementedError

    def deflated(self, u: np.ndarray) -> SiteOperator:
        """The same without a direction; see `Operator.deflated`."""
        return replace(self, found=(*self.found, u), updates=())

    def updated(self, u: np.ndarray) -> Any:
        """The same after an update; see `Operator.updated`."""
        return replace(self, updates=(*self.updates, u))


class ColumnRounds(Rounds):
    """Rounds about the rows that all sites have: what a client would compute is asked for.

    Attributes
    ----------
    keys : ndarray of shape (n, 32), uint8
        Hashed keys of these rows.
    left_out : dict of str to int
        Other rows of each site.
    groups : list of ndarray of int
        Positions of the columns of each site.
    more : tuple of array-like
        Further arguments of each question about a period.
    landmarks : ndarray of shape (m,)
        Rows that kernels are computed against.
    """

    def __init__(self, sites: Sites):
        super().__init__(sites)
        self.keys, self.left_out, self.groups = match(sites)
        self.more: tuple[Any, ...] = ()
        self.landmarks = np.zeros(0, dtype=np.intp)
        if isinstance(sites, SecureSums):
            sites.begin_sums(sites.names.values())  # of columns all sites take part
            sites.announce("columns_bound", self.keys)

    @property
    def n_features(self) -> int:
        """Columns of all sites."""
        return sum(map(len, self.groups))

    @property
    def clients(self) -> list[Any]:
        """All sites, in the order of their columns."""
        of_sites, n = zip(self.sites.names.values(), self.groups, strict=True), len(self.keys)
        return [SiteOperator(s, len(g), np.broadcast_to(0.0, (len(g), n))) for s, g in of_sites]

    def ask(self, kind: str, read: Callable[[Answer], Any], *arguments: Any) -> list[Any]:
        """Answers of all sites; an error if one is lost."""
        found = self.sites.ask(kind, read, self.keys, *arguments, there=self.left_out)
        return list(found.values())

    def summed(self, kind: str, name: str, shape: tuple, *arguments: Any) -> np.ndarray:
        """The sum of what all sites send by a name."""
        return self.sites.sum(kind, {name: shape}, self.keys, *arguments)[name]

    def total(self, query: Any) -> np.ndarray:
        """A secure sum of what a function returns for each site."""
        kind, _, name, shape, argument = self._summand(query)
        return self.summed(kind, name, shape, argument)

    def map(self, function: Any, clients: Any) -> Any:
        """What each site answers in place of what ``function`` returns."""
        calls, n = list(clients), len(self.keys)
        if function is period:
            return self._periods(calls)
        if function is left_factor:
            return self.ask("left_vectors", partial(_left_factor, n, calls[0][2] or n))
        if function is energies_of:
            return self._energies(calls)
        if function is as_sent:
            return [message for _, message in calls]
        kind, name, _, shape, argument = self._summand(function)
        return self.ask(kind, lambda a: a.summand(name, shape, LARGEST_NUMBER), argument)

    def _summand(self, function: Any) -> tuple[str, str, str, tuple, np.ndarray]:
        """Kind of a question whose answers add up, their names, shape, and what is sent.

        Products of left vectors with the columns of each site, or parts of a kernel: of squared
        distances or inner products of rows and landmarks.
        """
        if function is part_of:
            shape = len(self.keys), len(self.landmarks)
            return "kernel_part", "part", "part", shape, self.landmarks
        return "times_columns", "message", "products", function.shape, function.V

    def _energies(self, calls: list) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Weighted values of the sites' kernels along the common vectors; offsets stay there."""
        vectors = calls[0][2].T
        size = (len(vectors),)
        read = partial(Answer.summand, name="energies", shape=size, largest=LARGEST_NUMBER)
        found = self.ask("energies", read, vectors, *self.more)
        for (*_, weight, _), energies in zip(calls, found, strict=True):
            yield np.zeros(0), weight * energies

    def _periods(self, calls: list) -> Iterator[tuple[SiteOperator, float, Any]]:
        """Periods of `VFedPCA`, with the same vectors at all sites."""
        operators = [operator if u is None else operator.updated(u) for _, operator, u, *_ in calls]
        start = calls[0][3]
        none = np.zeros((1, len(start)))
        found, updates = (
            np.concatenate([none, np.reshape(vectors, (-1, len(start)))])
            for vectors in (operators[0].found, operators[0].updates)
        )
        answers = self.ask("period", self._read_period, found, updates, start, *self.more)
        for operator, (value, vector) in zip(operators, answers, strict=True):
            yield operator, value, vector

    def _read_period(self, answer: Answer) -> tuple[float, np.ndarray]:
        vector = answer.array("vector", (len(self.keys),))
        (value,) = answer.summand("value", (1,), LARGEST_NUMBER)
        length = float(np.linalg.norm(vector)) if np.abs(vector).max() <= 2 else np.inf
        if length and abs(length - 1) > _UNIT_TOL:
            raise answer.refused(f"a vector of length {length:.2g}, expected 1")
        return float(value), vector


def noted(fitted: Any, rounds: ColumnRounds) -> Any:
    """Note on an estimator what its columns are called, and which rows are not in the fit.

    Where two sites have columns of one name, the name of the site stands before all of them.
    """
    fitted.n_features_in_ = d = rounds.n_features
    fitted.n_rows_left_out_ = rounds.left_out
    of_sites = rounds.sites.columns_of
    names = [name for columns in of_sites.values() for name in columns or ()]
    if len(names) == d:
        if len(set(names)) < d:
            names = [f"{site}: {name}" for site, own in of_sites.items() for name in own or ()]
        fitted.feature_names_in_ = np.array(check_names(names, d), dtype=object)
        if hasattr(fitted, "subspace_"):
            name_columns(fitted, names)
    return fitted


# Share of a single row that the vectors may have with which a site multiplies its columns to hand
# the products out: no combination of them is nearer to a row than 45 degrees.
_MOST_OF_A_ROW = 0.5
# Directions of left vectors below this share of the largest are rounding errors.
_DEPENDENT = 1e-9
# What a site makes of left vectors.
_PARTS = ("part", "scores", "mean", "scatter")


# -------------------------------------------------------------------- VerticalFederatedPCA: a site


def centred(X: np.ndarray, center: bool) -> tuple[np.ndarray, np.ndarray]:
    """Columns about their means, as rows of shape (d, n), and the means."""
    mean = X.mean(axis=0, dtype=np.float64) if center else np.zeros(X.shape[1])
    return np.ascontiguousarray((X - mean).T), mean


def task_of_parts(estimator: Any, names: Collection[str] = _PARTS) -> dict[str, Task]:
    """The last question: what orthonormal left vectors make of a site's columns, by these names.

    They are checked to be of many rows.
    """

    def parts(site, X, U):
        check_basis(U, len(X), min(estimator.n_components, len(X)))
        if np.square(U).sum(axis=0).max() > _MOST_OF_A_ROW:
            raise RefusedError("a row has more than half of its length in the span of the vectors")
        rows, mean = centred(X, estimator.center)
        part, scatter = U @ rows.T, np.einsum("ij,ij->", rows, rows)
        found = {"part": part, "scores": part @ rows, "mean": mean, "scatter": [scatter]}
        return {name: found[name] for name in names}

    return {"parts": Task(parts, reads=OF_ROWS, matched=True, once=True)}


@site_work.register
def _(estimator: VerticalFederatedPCA) -> dict[str, Task]:
    refuse_topology(estimator)
    asked = _tasks_of(estimator._method(), estimator.center, estimator.n_components)
    return {"keys": Task(own_keys, reads=KEYS), **asked, **task_of_parts(estimator)}


def _tasks_of(method: Any, center: bool, rank: int) -> dict[str, Task]:
    """Questions of a method of `VerticalFederatedPCA`."""

    def times_columns(site, X, V):
        check_basis(V, len(X), min(rank, len(X)))
        rows, _ = centred(X, center)
        return {"message": scatter_product(rows, np.zeros(len(X)), V)}

    def left_vectors(site, X):
        return value_sent(
            "summary", left_factor(site, centred(X, center)[0], method.local_components)
        )

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


# -------------------------------------------------------------------- and the server


def _left_factor(n: int, most: int, answer: Answer) -> Subspace:
    found = valid_summary(answer)
    if found.n_features != n or found.centered or found.n_components > most:
        raise answer.refused(f"another summary than of left vectors of {n} rows")
    return found


@fit_estimator.register
def _(estimator: VerticalFederatedPCA, sites: Sites) -> VerticalFederatedPCA:
    rounds = ColumnRounds(sites)
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
        U, widths = spanning(vectors), {c.label: c.n_columns for c in rounds.clients}
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
            found = {name: answer.summand(name, shapes[name], LARGEST_NUMBER) for name in asked}
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
    plain, center = site_work(estimator)["times_columns"], estimator.center

    def squares(X):
        return np.square(centred(X, center)[0]).sum()

    def scatter(site, X):
        return {"scatter": np.array([squares(X)])}

    products = partial(names_in, TimesScatter.parts)
    return {
        **keys_and_bounds(squares),
        # one more than the rounds, for the scores
        "times_columns": replace(plain, times=method.n_rounds + 1, parts=products),
        "scatter": Task(scatter, reads=OF_ROWS, matched=True, grids=grids_of_sums),
        **task_of_parts(estimator, ("part", "mean")),
    }


def keys_and_bounds(squares: Callable[[np.ndarray], float]) -> dict[str, Task]:
    """What begins secure sums over columns: keys, and bounds of a sum of squares of a site's."""

    def bounds(site, X):
        return {BOUNDS: Bounds.of_numbers(len(X), len(X), 0.0, squares(X), X.dtype).vector}

    return {
        "keys": Task(own_keys, reads=KEYS),
        "columns_bound": Task(bounds, reads=OF_ROWS, matched=True),
    }
