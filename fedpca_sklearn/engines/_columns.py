"""Sites that own columns, by messages or by secure sums: rows that all have, and rounds about them.

A secure sum is what all sites have of one shape and what only
matters added up: products of left vectors with X_i X_i^T, whose sum is that of all columns, and the
scatter. The keys of rows are no sum, they are intersected. Nor are a site's part of the components
and its mean: side by side they are the result, so that a sum of them, each at its columns, would be
the parts themselves. A kernel is a function of a sum over the columns, of squared distances or
inner products, so that its parts add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import scipy.linalg
import scipy.sparse as sp
from sklearn.utils import check_random_state

from .._kernels.rows import scatter_product
from .._validation.checks import check_at_most_features
from ..communication import Federation
from ..summary import Subspace
from ..vertical import PowerRounds, VerticalFederatedKernelPCA, VerticalFederatedPCA, VFedPCA
from ..vertical import _vertical_kernels as kernels
from ..vertical._vertical_federated_pca import along_parts, principal_turn
from ..vertical._vfedpca import Columns, LeftVectorMerge, Operator, left_factor, local_power, period
from . import _estimators as shared
from ._estimators import Secure, Tasks, fit_estimator, site_work
from ._messages import Answer
from ._questions import KEY_BYTES, MARK_BYTES, RESTARTS, Given, RefusedError, Task
from ._secure import Grid, announced, grids_of_sums
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


def own_keys(site: str, X: Any, *, keys: Any) -> dict[str, Any]:
    """Hashed keys of a site's rows, what it shares its salt by, and its number of columns."""
    if sp.issparse(X):
        raise TypeError("Rows must be dense where sites own columns.")
    hashes = np.unique(keys.hashes, axis=0)  # in an order that tells nothing about the rows'
    return {"keys": hashes, "salt": keys.mark, "columns": [float(X.shape[1])]}


def check_vectors(vectors: np.ndarray, n: int, most: int) -> None:
    """Raise unless rows are vectors of length 1, or zero, of n entries each."""
    if vectors.ndim != 2 or vectors.shape[1] != n or len(vectors) > most:
        raise RefusedError(f"vectors must have shape (m, {n}), m <= {most}, got {vectors.shape}")
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(vectors, axis=1)
    if not ((lengths == 0) | (np.abs(lengths - 1) <= _UNIT_TOL)).all():
        raise RefusedError("vectors must have length 1")


def period_of(operator: Operator, method: Any, rank: int, *sent: np.ndarray) -> dict[str, Any]:
    """A site's period of `VFedPCA`: power iteration without some directions, after updates.

    Directions that were found, updates and a start are sent; the first rows of the first two stand
    for none.
    """
    found, updates, start = sent
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
    if sites.common_keys is None:
        of_sites = np.concatenate([keys for keys, _ in found.values()])  # none twice at a site
        keys, n_sites = np.unique(of_sites, axis=0, return_counts=True)
        sites.common_keys = keys[n_sites == len(found)]
    if not len(common := sites.common_keys):
        raise RuntimeError(f"No key of a row is at all sites, {', '.join(found)}.")
    left_out = {site: len(keys) - len(common) for site, (keys, _) in found.items()}
    ends = np.cumsum([n_columns for _, n_columns in found.values()])
    return common, left_out, np.split(np.arange(ends[-1]), ends[:-1])


def _keys(answer: Answer) -> tuple[np.ndarray, int]:
    keys = answer.array("keys", (None, KEY_BYTES), "|u1")
    if len(np.unique(keys, axis=0)) < len(keys):
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
    product: ClassVar[Any] = None  # which the server does not have

    def deflated(self, u: np.ndarray) -> SiteOperator:
        """The same without a direction; see `Operator.deflated`."""
        return replace(self, found=(*self.found, u), updates=())

    def updated(self, u: np.ndarray) -> Any:
        """The same after an update; see `Operator.updated`."""
        return replace(self, updates=(*self.updates, u))


class ColumnRounds(shared.Rounds):
    """Rounds about the rows that all sites have: what a client would compute is asked for.

    Attributes
    ----------
    keys : ndarray of shape (n, 32), uint8
        Hashed keys of these rows.
    left_out : dict of str to int
        Other rows of each site.
    groups : list of ndarray of int
        Positions of the columns of each site.
    n_features : int
        Columns of all sites.
    more : tuple of array-like
        Further arguments of each question about a period.
    landmarks : ndarray of shape (m,)
        Rows that kernels are computed against.
    """

    def __init__(self, sites: Sites, estimator: Any):
        super().__init__(sites)
        self.rng = check_random_state(estimator.random_state)
        self.keys, self.left_out, self.groups = match(sites)
        self.n_features = estimator.n_features_in_ = sum(map(len, self.groups))
        estimator.n_rows_left_out_ = self.left_out
        self.more: tuple[Any, ...] = ()
        self.landmarks = np.zeros(0, dtype=np.intp)
        sites.begin(sites.names.values())  # of columns all sites take part
        if isinstance(sites, SecureSums):
            sites.announce("columns_bound", self.keys)

    @property
    def clients(self) -> list[Any]:
        """All sites, in the order of their columns."""
        of_sites, n = zip(self.sites.names.values(), self.groups, strict=True), len(self.keys)
        return [SiteOperator(s, len(g), np.broadcast_to(0.0, (len(g), n))) for s, g in of_sites]

    def ask(self, kind: str, read: Callable[[Answer], Any], *arguments: Any) -> list[Any]:
        """Answers of all sites; an error if one is lost."""
        found = self.sites.ask(kind, read, self.keys, *arguments, there=self.left_out)
        return list(found.values())

    def map(self, function: Any, clients: Any) -> Any:
        """What each site answers in place of what ``function`` returns."""
        calls, n = list(clients), len(self.keys)
        if function is period:
            return self._periods(calls)
        if function is left_factor:
            return self.ask("left_vectors", partial(_left_factor, n, calls[0][2] or n))
        if function is kernels.energies_of:
            return self._energies(calls)
        return [message for _, message in calls]  # as sent

    def sum(self, function: Any, clients: Any, broadcast: np.ndarray | None = None) -> np.ndarray:
        """Return the sum of what sites answer, or have answered before."""
        of = Federation if function is kernels.as_sent else shared.Rounds
        return of.sum(self, function, clients, broadcast)

    def check(self, query: Any, answer: Answer, *parts: np.ndarray) -> None:
        """Raise unless what is made of several parts does not overflow."""
        answer.check_size(*parts, largest=LARGEST_NUMBER)

    def asked(self, query: Any) -> tuple[str, shared.Shapes, tuple[Any, ...]]:
        """What is asked about products of left vectors with the columns of each site.

        Or about parts of a kernel: of squared distances or inner products of rows and landmarks.
        """
        if query is kernels.part_of:
            shape = len(self.keys), len(self.landmarks)
            return "kernel_part", {"part": shape}, (self.keys, self.landmarks)
        return "times_columns", query.shapes, (self.keys, query.V)

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
        found, updates = (np.vstack([none, *u]) for u in (operators[0].found, operators[0].updates))
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


# Share of a single row that the vectors may have with which a site multiplies its columns to hand
# the products out: no combination of them is nearer to a row than 45 degrees.
_MOST_OF_A_ROW = 0.5
# Directions of left vectors below this share of the largest are rounding errors.
_DEPENDENT = 1e-9


# -------------------------------------------------------------------- VerticalFederatedPCA: a site


def centred(X: np.ndarray, center: bool) -> tuple[np.ndarray, np.ndarray]:
    """Columns about their means, as rows of shape (d, n), and the means."""
    mean = X.mean(axis=0, dtype=np.float64) if center else np.zeros(X.shape[1])
    return np.ascontiguousarray((X - mean).T), mean


def tasks_of_parts(estimator: Any, secure: Any = None) -> Tasks:
    """The last questions: what orthonormal left vectors make of a site's columns.

    Scores add up; a part of the components is the site's own. Vectors are checked to be of many
    rows, and are the same in both questions where a server sees both answers.
    """

    def checked(X, U):
        if np.square(U).sum(axis=0).max() > _MOST_OF_A_ROW:
            raise RefusedError("a row has more than half of its length in the span of the vectors")
        return centred(X, estimator.center)

    def scores(site, X, V):
        rows, _ = checked(X, V)
        return {"products": V @ rows.T @ rows, "scatter": [np.einsum("ij,ij->", rows, rows)]}

    def parts(site, X, V):
        rows, mean = checked(X, V)
        return {"part": V @ rows.T, "mean": mean}

    given = () if secure else (Given("set of last vectors", lambda V: [V]),)
    rank = partial(min, estimator.n_components)
    task = partial(Task, reads=OF_ROWS, matched=True, given=given, rank=rank)
    last = task(scores, once=secure is None, grids=grids_of_sums)
    return {"scores": last, "parts": task(parts, once=True)}


@site_work.register
def _(estimator: VerticalFederatedPCA, secure: Secure = None) -> Tasks:
    method, center = estimator._method(), estimator.center
    if secure and not isinstance(method, PowerRounds):
        raise ValueError(
            'method must be "power" with secure sums: the vectors of other methods do not add up, '
            f"got {estimator.method!r}."
        )
    asked = _tasks_of(method, center, estimator.n_components)
    first = first_of_columns(secure, lambda X: np.square(centred(X, center)[0]).sum())
    return {**first, **asked, **tasks_of_parts(estimator, secure)}


def first_of_columns(secure: Any, squares: Callable[[np.ndarray], float]) -> Tasks:
    """What begins a fit over columns: keys, and of secure sums bounds of a sum of squares."""

    def bounds(site, X):
        return announced(len(X), len(X), 0.0, squares(X), X.dtype)

    keys = {"keys": Task(own_keys, reads=KEYS)}
    return keys | ({"columns_bound": Task(bounds, reads=OF_ROWS, matched=True)} if secure else {})


def _tasks_of(method: Any, center: bool, rank: int) -> Tasks:
    """Questions of a method of `VerticalFederatedPCA`."""

    def times_columns(site, X, V):
        rows, _ = centred(X, center)
        return {"products": scatter_product(rows, np.zeros(len(X)), V)}

    def left_vectors(site, X):
        factor = left_factor(site, centred(X, center)[0], method.local_components)
        return shared.value_sent("summary", factor)

    def period(site, X, found, updates, start):
        rows, _ = centred(X, center)
        return period_of(Columns(site, len(rows), rows), method, rank, found, updates, start)

    task = partial(Task, reads=OF_ROWS, matched=True)
    if isinstance(method, PowerRounds):
        how: Any = {"rank": partial(min, rank), "grids": grids_of_sums}
        return {"times_columns": task(times_columns, method.n_rounds, **how)}
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
    found = shared.summary_received(answer)
    if found.n_features != n or found.centered or found.n_components > most:
        raise answer.refused(f"another summary than of left vectors of {n} rows")
    return found


@fit_estimator.register
def _(estimator: VerticalFederatedPCA, sites: Sites) -> VerticalFederatedPCA:
    rounds = ColumnRounds(sites, estimator)
    n, d = len(rounds.keys), rounds.n_features
    check_at_most_features(estimator.n_components, d)
    rank = min(estimator.n_components, n)
    agreed = estimator._method().left_vectors(rounds, rounds.clients, rank)
    _, V, scores, mean, scatter = parts_of(rounds, agreed.vectors[0])
    total = Subspace.empty(d, centered=estimator.center, dtype=sites.dtype)
    total = total._replace(mean=mean, n_samples=float(n), scatter=scatter)
    turn = principal_turn(V @ V.T)
    if turn is not None:
        V = turn.T @ V
        total = along_parts(total, V @ V.T, V, turn.T @ scores)
    estimator._show(total, agreed, rounds.groups, n)
    return estimator


def parts_of(rounds: ColumnRounds, vectors: np.ndarray) -> tuple[Any, ...]:
    """What all sites make of left vectors: of orthonormal ones U with the same span.

    Returns
    -------
    U : ndarray of shape (k, n)
    V : ndarray of shape (k, d)
        Products with the columns of all sites, side by side.
    scores : ndarray of shape (k, n)
        Sum of products of the sites' parts with their columns.
    mean : ndarray of shape (d,)
    scatter : float
    """
    U, widths = spanning(vectors), {c.label: c.n_columns for c in rounds.clients}

    def check(answer: Answer, scores: np.ndarray, scatter: np.ndarray) -> None:
        rounds.check(None, answer, scores, scatter)
        if scatter < 0:
            raise answer.refused(f"scatter={scatter[0]}, expected a sum of squares")

    def read(answer: Answer) -> tuple[np.ndarray, np.ndarray]:
        d = widths.get(answer.site)
        part = answer.summand("part", (len(U), d), LARGEST_NUMBER)
        return part, answer.summand("mean", (d,), LARGEST_NUMBER)

    shapes = {"products": U.shape, "scatter": (1,)}
    sums = rounds.sites.added("scores", shapes, (rounds.keys, U), check)
    parts, means = zip(*rounds.ask("parts", read, U), strict=True)
    scatter = max(float(sums["scatter"][0]), 0.0)
    return U, np.hstack(parts), sums["products"], np.concatenate(means), scatter


def spanning(vectors: np.ndarray) -> np.ndarray:
    """Orthonormal rows with the span of some rows, one that is in no span where all are zero."""
    n = vectors.shape[1]
    _, sizes, W = scipy.linalg.svd(vectors, full_matrices=False)
    return W[sizes > _DEPENDENT * sizes[0]] if sizes[0] else np.full((1, n), n**-0.5)


# ------------------------------------------------------------ VerticalFederatedKernelPCA: a site


@site_work.register
def _(estimator: VerticalFederatedKernelPCA, secure: Secure = None) -> Tasks:
    estimator._check_parameters()
    if secure:
        why = ": the vectors of the sites' own kernels do not add up"
        shared.check_needed(estimator, "aggregation", "exact", why)
        why = ": a combination of columns is the sites' parts side by side, which is no sum"
        shared.check_needed(estimator, "projection", "samples", why)

    def squares(X):
        return np.square(client_of(estimator, X, np.arange(len(X)), X.shape[1]).rows).sum()

    asked = _exact(estimator) if estimator.aggregation == "exact" else _agreed(estimator)
    parts = tasks_of_parts(estimator) if estimator.projection == "features" else {}
    return {**first_of_columns(secure, squares), **asked, **parts}


def _exact(estimator: VerticalFederatedKernelPCA) -> Tasks:
    """Questions of ``aggregation="exact"``."""

    def kernel_part(site, X, landmarks):
        n = len(X)
        m = min(estimator.n_landmarks or n, n)
        whole = landmarks.shape == (m,) and (landmarks == landmarks // 1).all()
        if not whole or (np.diff([-1, *landmarks, n]) <= 0).any():
            raise RefusedError(f"landmarks must be {m} different rows, in order")
        client = client_of(estimator, X, landmarks.astype(np.intp), X.shape[1])
        return {"part": kernels.part_of(site, client, None if m == n else X)}

    def grids(bounds):
        # |x - y|^2 <= 2 |x|^2 + 2 |y|^2, both of which are in the scatter
        return {"part": Grid(int(bounds.scatter[0]) + 1)}

    return {"kernel_part": Task(kernel_part, reads=OF_ROWS, matched=True, grids=grids)}


def _agreed(estimator: VerticalFederatedKernelPCA) -> Tasks:
    """Questions of ``aggregation=VFedPCA()``."""
    method, rank, center = estimator._method(), estimator.n_components, estimator.center

    def whole(X, n_columns):
        if n_columns.shape or not X.shape[1] < n_columns < 2**53:
            raise RefusedError("the number of all columns must be above that of the site")
        return client_of(estimator, X, np.arange(len(X)), int(n_columns))

    def period(site, X, found, updates, start, n_columns):
        operator = whole(X, n_columns).operator(site, center, method.update.endswith("_columns"))
        return period_of(operator, method, rank, found, updates, start)

    def energies(site, X, vectors, n_columns):
        check_vectors(vectors, len(X), rank)
        client, ones = whole(X, n_columns), np.ones(len(vectors))
        return {"energies": kernels.energies_of(site, client, vectors.T, ones, center)[1]}

    # it says what a kernel is, and changes with the sites only
    given = (Given("numbers of all columns", lambda *arguments: arguments[-1:], 1 + RESTARTS),)
    task = partial(Task, reads=OF_ROWS, matched=True, given=given)
    return {"period": task(period, rank * method.n_rounds), "energies": task(energies)}


def client_of(
    estimator: VerticalFederatedKernelPCA, X: np.ndarray, landmarks: np.ndarray, n_columns: int
) -> kernels.ColumnClient:
    """The client of the simulation that a site is, one of several with so many columns."""
    d = X.shape[1]
    kernel = estimator._kernel(d, n_columns)
    return kernels.ColumnClient.of(X, np.arange(d), landmarks, kernel, estimator.center)


# -------------------------------------------------------------------- and the server


class SiteKernel(kernels.ColumnClient):
    """A site that owns columns; of its rows the server knows the number."""

    def operator(self, label: int, center: bool, of_columns: bool) -> SiteOperator:
        """Its kernel, which stays there."""
        return SiteOperator(label, len(self.columns))


class ScoresAtSites:
    """Scores of new rows, which take the sites' columns of the rows of the fit."""

    def scores(self, federation: Federation, X: np.ndarray) -> np.ndarray:
        """Raise: they are at the sites."""
        raise ValueError(
            "transform of an estimator that was fitted at sites needs projection='features': "
            "kernels of new rows take the rows of the fit, which are at the sites. Scores of these "
            "are eigenvectors_ * sqrt(eigenvalues_)."
        )


@fit_estimator.register
def _(estimator: VerticalFederatedKernelPCA, sites: Sites) -> VerticalFederatedKernelPCA:
    rounds = ColumnRounds(sites, estimator)
    n, d = len(rounds.keys), rounds.n_features
    rounds.more = (d,)
    estimator._choose_landmarks(n, rounds)
    rounds.landmarks = estimator.landmarks_
    X = np.broadcast_to(np.zeros((), sites.dtype), (n, d))
    clients = [
        SiteKernel(columns, X[0, :0], X[:, :0], estimator._kernel(len(columns), d))
        for columns in rounds.groups
    ]

    def linear(vectors: list[np.ndarray], known: np.ndarray, *how: bool) -> kernels.LinearScores:
        """Scores by combinations of the columns of all sites."""
        U, parts, _, mean, _ = parts_of(rounds, vectors[0].T)
        V = (vectors[0].T @ U.T) @ parts * known[:, None]
        return kernels.LinearScores(mean, kernels.of_unit_length(V, np.linalg.norm(V, axis=1)))

    estimator._fit_clients(rounds, clients, rounds.groups, X, linear)
    if estimator.projection != "features":
        estimator._scorer = ScoresAtSites()
    return estimator
