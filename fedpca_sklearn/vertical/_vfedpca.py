"""VFedPCA: an average of the clients' own leading vectors, of Cheung, Jiang, Yu and Lou (2022)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar, NamedTuple

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from .._dask import refuse_dask
from .._kernels import linalg
from .._kernels.sizes import EXACT_ORDER
from .._validation.checks import (
    AT_LEAST_ONE,
    InstanceOf,
    Interval,
    Strategy,
    allowed,
    check_finite,
    is_integer,
    with_parameters,
)
from .._validation.containers import composed, validate_data
from ..communication import Channel, CommunicationLog, Federation
from ..communication._channel import check_channel
from ..communication._federation import Message, message_of
from ..communication._topology import federation_of
from ..rounds._power_method import power_method
from ..rounds._queries import Client
from ..summary import Subspace, merge_subspaces
from ..summary._updating import updated


class LeftVectors(NamedTuple):
    """Left vectors that the clients agreed on, with the number of rounds.

    Parameters
    ----------
    vectors : sequence of ndarray of shape (k, n)
        Left vectors of the pooled, centred columns, as each client has them.
    n_iter : int
        Rounds in which vectors were exchanged.
    disagreement : float, default=0.0
        Largest distance between the vectors of two clients.
    own : bool, default=False
        Whether clients keep vectors of their own, which the estimator then publishes.
    """

    vectors: Sequence[np.ndarray] | np.ndarray
    n_iter: int
    disagreement: float = 0.0
    own: bool = False


class VerticalMethod(Strategy):
    """Base of the methods of `VerticalFederatedPCA`: parameters in ``__init__``, one method.

    A subclass writes ``left_vectors(federation, clients, rank, rounds=range)``. It gets a
    `Federation`, the clients with their columns, the number of vectors, and a function for rounds.
    It returns `LeftVectors` with an array of shape (k, n) for each client, k at most ``rank``.

    Attributes
    ----------
    channel : Channel or None
        What the sums of the method pass, which the estimator hands to the federation. None:
        `PerfectChannel`. A method with a parameter of this name lets the user choose.
    """

    channel: Channel | None = None

    _parameter_constraints: ClassVar[dict] = {}

    def validate(self) -> None:
        """Raise a ValueError that names a wrong parameter; estimators call it before they start."""
        self._validate_params()
        check_channel(self.channel)

    @abstractmethod
    def left_vectors(
        self,
        federation: Federation,
        clients: Sequence[Client],
        rank: int,
        rounds: Callable[[int], Iterable[int]] = range,
    ) -> LeftVectors:
        """Let the clients agree on left vectors of all their columns.

        Parameters
        ----------
        federation : Federation
            Maps functions over clients (``map``), adds up their messages (``sum``) and counts what
            is sent (``log``). ``rng`` is the estimator's random state, ``gossip`` averages between
            neighbours, or is None with a server.
        clients : list of Client
            ``label`` and ``rows``: the client's centred columns, as rows of shape (d_i, n).
        rank : int
            Vectors that are wanted.
        rounds : callable, default=range
            ``rounds(m)`` yields numbers of m rounds. Callbacks hear of them and may end them early.

        Returns
        -------
        found : LeftVectors
            Vectors need not be orthonormal, as a Rayleigh-Ritz step over all columns follows; zeros
            where no variance is left. Fewer than ``rank`` if the rounds ended early.
        """


@with_parameters
class LeftVectorMerge(VerticalMethod):
    """Clients send their left singular vectors and values once, which are merged.

    Parameters
    ----------
    local_components : int or None, default=None
        Directions that a client sends. None: all, and the result is exact.

    See Also
    --------
    merge_subspaces : The merge of clients that hold rows.

    Notes
    -----
    (n + 1) k_i floats up for each client and p n k down with a server; without one (n + 1) k_i to
    every other client, passed on between neighbours.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.decomposition import PCA
    >>> from sklearn.preprocessing import scale
    >>> from fedpca_sklearn import LeftVectorMerge, VerticalFederatedPCA, subspace_distance
    >>> X = scale(load_wine().data)
    >>> exact = PCA(2).fit(X).components_
    >>> for local_components in 1, 2, None:
    ...     method = LeftVectorMerge(local_components)
    ...     pca = VerticalFederatedPCA(2, feature_groups=4, method=method).fit(X)
    ...     print(round(subspace_distance(pca.components_, exact), 4))
    0.8888
    0.0383
    0.0
    """

    local_components: int | None = allowed(AT_LEAST_ONE, None, default=None)

    def left_vectors(self, federation, clients, rank, rounds=range) -> LeftVectors:
        """Merge once; see `VerticalMethod.left_vectors`."""
        calls = [(c.label, c.rows, self.local_components) for c in clients]
        for _ in rounds(1):
            factors = list(federation.map(left_factor, calls))
        merged = merge_subspaces(factors, rank).components
        floats = [f.components.size + f.n_components for f in factors]
        sent = [Message(m, 8 * m) for m in floats]
        if federation.gossip is None:
            federation.log.record(sent, [message_of(merged)] * len(clients))
        else:
            pass_on(federation, sent)
        vectors = np.zeros((rank, clients[0].rows.shape[1]))
        vectors[: len(merged)] = merged
        return LeftVectors([vectors] * len(clients), 1)


def pass_on(federation: Federation, messages: list[Message]) -> None:
    """Log messages of the clients that are passed on between neighbours until all have them."""
    for senders, receivers in federation.gossip.relays():
        federation.log.record([messages[i] for i in senders], receivers=receivers)


def left_factor(label: int, rows: np.ndarray, size: int | None) -> Subspace:
    """Left singular vectors and values of a client's columns."""
    start = Subspace.empty(rows.shape[1], centered=False)
    at_once = max(rows.shape) if min(rows.shape) <= EXACT_ORDER else None
    return updated(start, rows, max_rank=size, block_size=at_once)


@with_parameters
class PowerRounds(VerticalMethod):
    """Rounds of a block Krylov method whose messages only add up; exact where rounds suffice.

    Parameters
    ----------
    n_rounds : int, default=200
        Rounds at most.
    tol : float, default=1e-10
        Stop when a round moves the subspace by less, by the sine of the largest angle.
    channel : Channel or None, default=None
        What the messages of the rounds pass, with a server. What components and their variances
        are made of in the end goes as plain numbers.

    See Also
    --------
    FederatedPowerPCA : The same for clients that hold rows.

    Notes
    -----
    The common vectors V, k x n, go down and each client's V X_i X_i^T up: p n k floats a round and
    direction with a server, 2 E m n k in m exchanges over the E edges of a topology.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.preprocessing import scale
    >>> from fedpca_sklearn import PowerRounds, VerticalFederatedPCA
    >>> X = scale(load_wine().data)
    >>> for tol in 1e-2, 1e-10:
    ...     method = PowerRounds(tol=tol)
    ...     pca = VerticalFederatedPCA(2, feature_groups=4, method=method, random_state=0).fit(X)
    ...     print(pca.n_iter_, pca.explained_variance_ratio_.round(6))
    5 [0.361988 0.192075]
    8 [0.361988 0.192075]
    """

    n_rounds: int = allowed(AT_LEAST_ONE, default=200)
    tol: float = allowed(Interval(Real, 0, None, closed="left"), default=1e-10)
    channel: Any = allowed(InstanceOf(Channel), None, default=None)

    def left_vectors(self, federation, clients, rank, rounds=range) -> LeftVectors:
        """Take rounds of sums; see `VerticalMethod.left_vectors`."""
        n = clients[0].rows.shape[1]
        V = linalg.orthonormalised(federation.rng.standard_normal((rank, n)))
        found = power_method(
            federation, clients, np.zeros(n), V, self.n_rounds, self.tol, krylov=True, rounds=rounds
        )
        if np.isnan(found.changes).all():
            raise ValueError("channel: no client took part in any round.")
        return LeftVectors(
            [found.basis] * len(clients), len(found.changes), federation.disagreement
        )


# -------------------------------------------------------------------- columns of clients


def started(
    estimator: Any, X: Any, channel: Channel | None = None
) -> tuple[np.ndarray, list[np.ndarray], Federation]:
    """Validated rows, each client's columns, and their federation with a new log."""
    refuse_dask(estimator, X)
    X = finite_rows(estimator, X)
    names = getattr(estimator, "feature_names_in_", None)
    groups = columns_of(estimator.feature_groups, X.shape[1], names)
    log = estimator.communication_ = CommunicationLog(floats_pooled=X.size)
    rng = check_random_state(estimator.random_state)
    topology, n_jobs = estimator.topology, estimator.n_jobs
    return X, groups, federation_of(topology, len(groups), n_jobs, rng, log, channel)


def finite_rows(estimator: Any, X: Any, reset: bool = True) -> np.ndarray:
    """Dense rows of finite floats."""
    checks = {"dtype": [np.float64, np.float32], "ensure_all_finite": False}
    X = validate_data(estimator, X, reset=reset, **checks)
    check_finite(X)
    return X


def columns_of(feature_groups: Any, n_features: int, names: Any = None) -> list[np.ndarray]:
    """Positions of the columns of each client: disjoint, and all of them.

    Parameters
    ----------
    feature_groups : int or list of array-like
        A number of contiguous groups, or the columns of each client, by position or by name.
    n_features : int
    names : array-like of str, default=None
        Names of the columns.
    """
    if is_integer(feature_groups):
        if not 1 <= feature_groups <= n_features:
            raise ValueError(
                f"feature_groups={feature_groups} must be between 1 and n_features={n_features}."
            )
        return np.array_split(np.arange(n_features), feature_groups)
    position = {} if names is None else {composed(name): i for i, name in enumerate(names)}
    groups = [_positions(group, n_features, position) for group in feature_groups]
    count = np.bincount(np.concatenate([*groups, []]).astype(int), minlength=n_features)
    for wrong in np.flatnonzero(count != 1):
        raise ValueError(
            f"feature_groups must hold each column once, column {wrong} is held by {count[wrong]}."
        )
    return groups


def _positions(group: Any, n_features: int, position: dict) -> np.ndarray:
    found = []
    for column in np.atleast_1d(np.asarray(group, dtype=object)).tolist():
        i = position.get(composed(column)) if isinstance(column, str) else column
        if not is_integer(i) or not 0 <= i < n_features:
            named = "" if position else ", and the columns of X have no names"
            raise ValueError(
                f"feature_groups must hold names of columns or positions below {n_features} for "
                f"each client, got {column!r}{named}."
            )
        found.append(int(i))
    if not found:
        raise ValueError("feature_groups must not hold an empty group.")
    return np.array(found)


Product = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Operator(ABC):
    """A symmetric matrix, n x n, that a client has: X_i X_i^T, or a kernel of its columns.

    Parameters
    ----------
    label : hashable
        The client's.
    n_columns : int
        Columns of the client; f_i of Cheung et al.
    """

    label: Any
    n_columns: int

    @abstractmethod
    def product(self) -> tuple[Product, float]:
        """Multiplication of a vector, and the largest eigenvalue that may be rounding errors.

        A client calls it once in a round; a large matrix lives as long as the function.
        """

    @abstractmethod
    def deflated(self, u: np.ndarray) -> Operator:
        """The client without the direction of a vector of unit length."""

    def updated(self, u: np.ndarray) -> Operator:
        """The client after the update of its data by a common vector (eq. 14).

        For X <- X m m^T with m the direction of X^T u, X X^T becomes A u u^T A / u^T A u with A =
        X X^T. That needs A alone, so it is the update of a kernel's features too.
        """
        times, floor = self.product()
        image = times(u)
        size = float(u @ image)
        scale = 1 / np.sqrt(abs(size)) if abs(size) > floor else 0.0
        rows = (image * scale)[None]
        return Columns(self.label, self.n_columns, rows, float(np.sign(size)), floor)


@dataclass(frozen=True)
class Columns(Operator):
    """X_i X_i^T of the columns of a client, as rows of shape (f_i, n), or the negative of it."""

    rows: np.ndarray
    sign: float = 1.0
    floor: float = 0.0

    def product(self) -> tuple[Product, float]:
        """Two products with the columns; see `Operator.product`."""
        rows, sign = self.rows, self.sign
        return lambda a: sign * ((rows @ a) @ rows), self.floor

    def deflated(self, u: np.ndarray) -> Columns:
        """X_i - u u^T X_i; see `Operator.deflated`."""
        return replace(self, rows=self.rows - np.outer(self.rows @ u, u))


def local_power(operator: Operator, a: np.ndarray, iterations: int) -> tuple[float, np.ndarray]:
    """Leading eigenvalue and vector of a client's matrix, by power iteration (eq. 5, 6).

    Leading by size: the eigenvalue is negative where an indefinite matrix has it so. Zeros where
    there are rounding errors only. Iterations that change no digit are left out: after an update
    the matrix has one direction.
    """
    times, floor = operator.product()
    for _ in range(iterations):
        before, a = a, times(a)
        a = a / (np.abs(a).max() or 1.0)  # squares might overflow
        a = a / (np.linalg.norm(a) or 1.0)
        if np.array_equal(a, before):
            break
    value = float(a @ times(a))
    return (value, a) if abs(value) > floor else (0.0, np.zeros_like(a))


def unit(vector: np.ndarray) -> np.ndarray:
    """Vector of unit length, of zeros zeros."""
    largest = float(np.abs(vector).max(initial=0.0))
    if not largest:
        return vector
    vector = vector / largest  # squares might overflow
    return vector / np.linalg.norm(vector)


# ---------------------------------------------------------------------- how clients agree


def _weights(weighting: str, values: np.ndarray, n_columns: np.ndarray) -> np.ndarray:
    """Weights of the clients, over the largest, as only ratios count (eq. 13).

    A client whose leading eigenvalue is not positive has none.
    """
    if weighting == "equal":
        return np.where(values > 0, 1.0, 0.0)
    weights = np.maximum(values, 0.0)
    if weighting == "eigenvalue_per_column":
        weights = weights / n_columns
    return weights / (weights.max() or 1.0)


def _common(
    method: VFedPCA,
    federation: Federation,
    heard: np.ndarray,
    weights: np.ndarray,
    vectors: np.ndarray,
) -> list[np.ndarray]:
    """Average of the vectors, (p, n), that a client has heard of, of unit length, as each has it.

    It is the same array for all clients that have heard of all. What is sent is logged.
    """
    (p, n), gossip = vectors.shape, federation.gossip
    size = n if method.weighting == "equal" else n + 1
    sent = [Message(size, 8 * size)] * p
    if gossip is None:
        federation.log.record(sent, [Message(n, 8 * n)] * p)
    elif heard.all():
        pass_on(federation, sent)
    else:
        _send_to_neighbours(federation, heard, size, 1)
    signs = common_signs(weights, vectors, heard)
    if heard.all():
        return [_average(method, weights, vectors, signs)] * len(vectors)
    return [_average(method, weights[h], vectors[h], signs[h]) for h in heard]


def _send_to_neighbours(federation: Federation, heard: np.ndarray, size: int, k: int) -> None:
    """Log vectors, once to neighbours, and then their k products with those, to all."""
    federation.gossip.record(federation.log, size, 1)
    products = (k * (heard.sum(axis=1) - 1)).tolist()
    pass_on(federation, [Message(m, 8 * m) for m in products])


def _average(
    method: VFedPCA, weights: np.ndarray, vectors: np.ndarray, signs: np.ndarray
) -> np.ndarray:
    if method.weight_scaling and method.weighting != "equal" and len(weights) > 1:
        weights = _scaled(weights, method.weight_scaling == "ceil")
    turned = signs[:, None] * vectors
    if method.weighting != "projection":
        return unit(weights @ turned)
    rooted = np.sqrt(weights)[:, None] * turned
    return unit(leading(rooted @ rooted.T) @ rooted)


def _scaled(weights: np.ndarray, ceil: bool) -> np.ndarray:
    """Weights of the larger half raised by the share 1 / p, the others lowered by it (eq. 15).

    Of an odd number the smaller half is raised, or with ``ceil``, as eq. 15 has it, the larger.
    """
    p = len(weights)
    factors = np.full(p, 1 - 1 / p)
    factors[np.argsort(-weights, kind="stable")[: -(-p // 2) if ceil else p // 2]] = 1 + 1 / p
    return weights * factors


def common_signs(weights: np.ndarray, vectors: np.ndarray, heard: np.ndarray) -> np.ndarray:
    """Signs of the clients' vectors, 1 or -1, as eigenvectors have none of their own.

    Those of the leading eigenvector of the products of the weighted vectors, of all pairs of
    clients that have heard of each other: of all signs about those that make the sum longest.
    """
    weighted = weights[:, None] * vectors
    return np.where(leading(np.where(heard, weighted @ weighted.T, 0.0)) < 0, -1.0, 1.0)


def leading(G: np.ndarray) -> np.ndarray:
    """Eigenvector of the largest eigenvalue of a symmetric matrix."""
    return np.linalg.eigh(G)[1][:, -1]


def _as_each_has_them(
    method: VFedPCA,
    federation: Federation,
    heard: np.ndarray,
    found: list[list[np.ndarray]],
    n_iter: int,
) -> LeftVectors:
    """Vectors by component and client as the clients have them.

    Clients' own ones get signs that fit each other by a last exchange between neighbours.
    """
    p = len(found[0])
    if method.exchange == "consensus" or federation.gossip is None:
        return LeftVectors([np.array([of_all[0] for of_all in found])] * p, n_iter)
    V = np.swapaxes(np.array(found), 0, 1)
    if not heard.all():
        _send_to_neighbours(federation, heard, V[0].size, V.shape[1])
        for j in range(V.shape[1]):
            V[:, j] *= common_signs(np.ones(p), V[:, j], heard)[:, None]
    disagreement = max(float(np.linalg.norm(V - u, axis=-1).max()) for u in V)
    return LeftVectors(list(V), n_iter, disagreement, own=True)


# ---------------------------------------------------------------------- rounds


def period(
    label: object, operator: Operator, u: np.ndarray | None, a: np.ndarray, iterations: int
) -> tuple[Operator, float, np.ndarray]:
    """A client's period: update by the common vector (None: there is none), power iteration."""
    if u is not None:
        operator = operator.updated(u)
    return operator, *local_power(operator, a, iterations)


def common_vectors(
    method: VFedPCA,
    federation: Federation,
    operators: Sequence[Operator],
    n: int,
    rank: int,
    rounds: Callable[[int], Iterable[int]] = range,
) -> tuple[LeftVectors, np.ndarray, np.ndarray]:
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

    Returns
    -------
    found : LeftVectors
    values, weights : ndarray of shape (k, p)
        Eigenvalues of the first period, of the clients' own matrices; weights of the last.
    """
    n_columns = np.array([operator.n_columns for operator in operators])
    p, n_iter = len(operators), 0
    heard = np.ones((p, p), dtype=bool)  # whose vectors each client gets
    if method.exchange == "neighbours" and federation.gossip is not None:
        heard = federation.gossip.distances <= 1
    found: list[list[np.ndarray]] = []
    first_values: list[np.ndarray] = []
    last_weights: list[np.ndarray] = []
    for turn in rounds(int(rank) * int(method.n_rounds)):
        first = turn % method.n_rounds == 0
        if first:  # the next component
            if found:
                pairs = zip(operators, found[-1], strict=True)
                operators = [operator.deflated(u) for operator, u in pairs]
            starts, current = [unit(federation.rng.standard_normal(n))] * p, operators
            found.append(starts)
        calls = [
            (operator.label, operator, None if first else u, a, method.local_iterations)
            for operator, u, a in zip(current, found[-1], starts, strict=True)
        ]
        updated, values, vectors = zip(*federation.map(period, calls), strict=True)
        if method.update.startswith("cumulative"):
            current = updated
        weights = _weights(method.weighting, np.array(values), n_columns)
        if first:
            first_values.append(np.array(values))
        last_weights[len(found) - 1 :] = [weights]
        found[-1] = _common(method, federation, heard, weights, np.array(vectors))
        if method.warm_start:
            starts = found[-1]
        n_iter += 1
    agreed = _as_each_has_them(method, federation, heard, found, n_iter)
    return agreed, np.array(first_values), np.array(last_weights)


@with_parameters
class VFedPCA(VerticalMethod):
    """Periods of an average of the clients' own leading vectors; few floats.

    Of columns, with `VerticalFederatedPCA`, or of kernels, with `VerticalFederatedKernelPCA`: a
    client is a symmetric matrix A_i, X_i X_i^T or its kernel. The defaults are not those of [1]_:
    with them each period comes nearer to the exact vector. [1]_ as printed is
    ``VFedPCA(weighting="eigenvalue", update="cumulative_columns")``.

    Parameters
    ----------
    local_iterations : int, default=20
        Power iterations at a client in a period, fewer where one changes nothing; L of [1]_.
    n_rounds : int, default=10
        Periods for each component; T of [1]_.
    warm_start : bool, default=True
        Local iterations start from the last common vector (Algorithm 3).
    weighting : {"projection", "eigenvalue", "eigenvalue_per_column", "equal"}, \
            default="projection"
        How clients' vectors a_i become one. "eigenvalue": sum of w_i a_i with the eigenvalues as
        weights (eq. 13). "eigenvalue_per_column": those over the numbers of columns f_i, as section
        3.2 has A_i. "equal": one each (VFedAvgPCA). "projection" is not in [1]_: the leading vector
        of the sum of w_i a_i a_i^T, with the eigenvalues as weights; the same floats.
    weight_scaling : bool or "ceil", default=False
        Unless weights are equal: those of the half of the clients with the larger ones are raised
        by the share 1 / p, the others lowered (Algorithm 4). Of an odd number p the half is
        floor(p / 2) clients, as in the authors' code, or with "ceil" ceil(p / 2), as eq. 15. With
        neighbours p are those that a client hears, itself included.
    update : {"original", "cumulative", "original_columns", "cumulative_columns"}, \
            default="original"
        What eq. 14 updates after a period. "original": the client's own data, so that later periods
        see all of them again. "cumulative": the data as last updated, as printed. Of kernels these
        two update the data in the kernel's space; "original_columns" and "cumulative_columns"
        update the columns X_i, as printed, and the kernel is computed anew. Of columns there is no
        difference.
    exchange : {"consensus", "neighbours"}, default="consensus"
        Without a server. "consensus": vectors are passed on until each client has all; the result
        is that of a server. "neighbours": once to direct neighbours in each period (Algorithm 5),
        so that each client has a common vector of its own.

    See Also
    --------
    LeftVectorMerge, PowerRounds : Exact methods.

    Notes
    -----
    **Local work.** Power iteration (eq. 5 and 6 of [1]_), and before each period but the first the
    update X_i <- X_i m m^T with m = X_i^T u / |X_i^T u| (eq. 14), of A_i that to A_i u u^T A_i /
    u^T A_i u. It leaves each client one direction. So with "cumulative" vectors hardly change from
    the second period on, and in both a warm start has nothing to start and local iterations matter
    in the first period only. The kernel of updated columns is one of the numbers X_i m, and has
    more than one direction; with "cumulative_columns" m stays as it is from the second period on.
    All clients start from one random vector, and without a warm start do
    so in each period, where Algorithm 2 has one for each client; it makes no difference where local
    iterations have converged.

    **Why the defaults.** With "original", "projection" and no scaling a period takes the leading
    vector v of the sum M of all A_i u u^T A_i / u^T A_i u. No A_i is below its term (Nystroem), and
    u^T M u = u^T A u for A the sum of all A_i. So v^T A v >= v^T M v >= u^T A u: the variance along
    the common vector never falls, and it rests at eigenvectors of A only. An average of vectors
    rests elsewhere. (With neighbours alone, or negative eigenvalues, nothing of it is certain.)

    **Signs.** Eigenvectors have none, and [1]_ does not say what signs eq. 13 adds. Here they are
    those of the leading eigenvector of the products w_i w_j a_i^T a_j, in all topologies: of all
    pairs of clients, or with "neighbours" of all pairs of neighbours, whose products are passed on.
    With "neighbours" the signs of the clients' common vectors u_i are found so from u_i^T u_j in
    the end, as the parts that clients make of them must fit.

    **Near ties.** Where a client's first and second eigenvalue nearly tie, its leading vector may
    be either. The vectors of two clients are then at right angles; their sum lies between them and
    is right for neither, where "projection" follows the heavier.

    **Negative eigenvalues**, of kernels that are not positive semi-definite: a client whose leading
    eigenvalue by size is negative has weight zero.

    **More components.** [1]_ treats the leading vector; here the next ones follow by deflation, X_i
    <- X_i - u u^T X_i from the data as they were. (Its "k + 1 to 2k" could also mean later
    eigenvectors of each client.) In Algorithm 4 weights are eigenvalues, not shares of them; eta is
    then no share either and 1 - eta may be negative, so shares are meant here.

    **Messages.** With a server p (n + 1) floats up and p n down a period and component; one less
    for each client with equal weights. Without, p (p - 1) (n + 1) in any topology with
    "consensus", and with "neighbours" 2 E (n + 1) over E edges and the products, 2 E (p - 1), and
    in the end 2 E n and the products once more for each component.

    References
    ----------
    .. [1] Y. Cheung, J. Jiang, F. Yu, J. Lou, "Vertical federated principal component analysis and
       its kernel extension on feature-wise distributed data", 2022, arXiv:2203.01752.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.decomposition import PCA
    >>> from sklearn.preprocessing import scale
    >>> from fedpca_sklearn import VerticalFederatedPCA, VFedPCA, subspace_distance
    >>> X = scale(load_wine().data)
    >>> exact = PCA(1).fit(X).components_
    >>> pca = VerticalFederatedPCA(1, feature_groups=4, random_state=0)
    >>> for n_rounds in 1, 3, 10:
    ...     for options in {"weighting": "eigenvalue", "update": "cumulative"}, {}:
    ...         pca = pca.set_params(method=VFedPCA(n_rounds=n_rounds, **options)).fit(X)
    ...         print(n_rounds, round(subspace_distance(pca.components_, exact), 4))
    1 0.1292
    1 0.0836
    3 0.0718
    3 0.021
    10 0.0718
    10 0.0002
    """

    local_iterations: int = allowed(AT_LEAST_ONE, default=20)
    n_rounds: int = allowed(AT_LEAST_ONE, default=10)
    warm_start: bool = allowed("boolean", default=True)
    weighting: str = allowed(
        StrOptions({"eigenvalue", "eigenvalue_per_column", "equal", "projection"}),
        default="projection",
    )
    weight_scaling: bool | str = allowed("boolean", StrOptions({"ceil"}), default=False)
    update: str = allowed(
        StrOptions({"cumulative", "original", "cumulative_columns", "original_columns"}),
        default="original",
    )
    exchange: str = allowed(StrOptions({"consensus", "neighbours"}), default="consensus")

    def left_vectors(self, federation, clients, rank, rounds=range) -> LeftVectors:
        """Take vectors one after the other; see `VerticalMethod.left_vectors`."""
        operators: list[Any] = [
            c if isinstance(c, Operator) else Columns(c.label, len(c.rows), c.rows) for c in clients
        ]
        n = clients[0].rows.shape[1]
        return common_vectors(self, federation, operators, n, rank, rounds)[0]
