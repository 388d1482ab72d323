"""Sites that own columns: rows that all have, and rounds about them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from .._validation.feature_names import check_names
from ..communication._topology import as_topology
from ..rounds._client import Client
from ..rounds._queries import Query
from ..vertical._vfedpca import Operator, Product, local_power, operator_of, period
from ._messages import Answer
from ._questions import RefusedError
from ._rows import KEY_BYTES, MARK_BYTES, common_keys, sorted_keys
from ._secure_fits import Rounds
from ._sites import SecureSums, SiteLostError, Sites

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
    if len({row.tobytes() for row in keys}) < len(keys):
        raise answer.refused("one key twice")
    (n_columns,) = answer.array("columns", (1,))
    names = answer.config.get("columns")
    told = len(names) if isinstance(names, list) else n_columns // 1
    if not 1 <= n_columns <= _MOST_COLUMNS or n_columns != told:
        raise answer.refused(f"columns={n_columns:g}, expected the number of its columns")
    answer.agree("salt", answer.array("salt", (MARK_BYTES,), "|u1").tobytes().hex())
    return keys, int(n_columns)


@dataclass(frozen=True)
class SiteColumns(Client):
    """A site that owns columns; of its rows the server knows the shape."""


@dataclass(frozen=True)
class SiteOperator(Operator):
    """What happened to the matrix of a site, which does it again when it is asked."""

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


@operator_of.register
def _(client: SiteColumns) -> SiteOperator:
    return SiteOperator(client.label, len(client.rows))


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
    questions : dict
        By a function that `map` is called with, or the class of a query: ``question(function,
        calls)`` yields what the function would return for each site.
    sums : dict
        By the same, ``of(function)`` is the secure sum of that.
    """

    def __init__(self, sites: Sites):
        super().__init__(sites)
        self.keys, self.left_out, self.groups = match(sites)
        self.more: tuple[Any, ...] = ()
        self.landmarks = np.zeros(0, dtype=np.intp)
        self.questions: dict[Any, Callable[[Any, list], Iterable[Any]]] = {period: self._periods}
        self.sums: dict[Any, Callable[[Any], np.ndarray]] = {}
        if isinstance(sites, SecureSums):
            sites.begin_sums(sites.names.values())  # of columns all sites take part
            sites.announce("columns_bound", self.keys)

    @property
    def n_features(self) -> int:
        """Columns of all sites."""
        return sum(map(len, self.groups))

    @property
    def clients(self) -> list[Client]:
        """All sites, in the order of their columns."""
        rows = (np.broadcast_to(0.0, (len(group), len(self.keys))) for group in self.groups)
        return list(map(SiteColumns, self.sites.names.values(), rows))

    @property
    def widths(self) -> dict[str, int]:
        """Columns of each site."""
        groups = zip(self.sites.names.values(), self.groups, strict=True)
        return {site: len(columns) for site, columns in groups}

    def ask(self, kind: str, read: Callable[[Answer], Any], *arguments: Any) -> list[Any]:
        """Answers of all sites; an error if one is lost."""
        found = self.sites.ask(kind, read, self.keys, *arguments)
        if len(found) < len(self.groups):
            raise SiteLostError
        return list(found.values())

    def summed(self, kind: str, name: str, shape: tuple, *arguments: Any) -> np.ndarray:
        """The sum of what all sites send by a name."""
        return self.sites.sum(kind, {name: shape}, self.keys, *arguments)[name]

    def total(self, query: Any) -> np.ndarray:
        """A secure sum of what a function returns for each site."""
        return self.sums[_key(query)](query)

    def map(self, function: Any, clients: Any) -> Iterator[Any]:
        """Yield what each site answers in place of what ``function`` returns."""
        yield from self.questions[_key(function)](function, list(clients))

    def _periods(self, function: Any, calls: list) -> Iterator[tuple[SiteOperator, float, Any]]:
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
        (value,) = bounded(answer, "value", (1,))
        length = float(np.linalg.norm(vector)) if np.abs(vector).max() <= 2 else np.inf
        if length and abs(length - 1) > _UNIT_TOL:
            raise answer.refused(f"a vector of length {length:.2g}, expected 1")
        return float(value), vector


def _key(function: Any) -> Any:
    return type(function) if isinstance(function, Query) else function


def bounded(answer: Answer, name: str, shape: tuple) -> np.ndarray:
    """Array of an answer with numbers that can be multiplied and added up."""
    found = answer.array(name, shape)
    if np.abs(found).max() > LARGEST_NUMBER:
        raise answer.refused("values that are too large")
    return found


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
        if "subspace_" in vars(fitted):
            vars(fitted)["subspace_"] = fitted.subspace_._named(names)
    return fitted
