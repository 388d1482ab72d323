"""Maximum likelihood PCA of clients with unlike noise, by rounds of sums: HePPCAT."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any

import numpy as np
import scipy.linalg
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from .._base.batches import count_rows, float_dtype
from .._base.fitted import rounds_of
from .._kernels import linalg
from .._kernels.row_moments import RowMoments
from .._kernels.too_large import too_large
from .._validation.checks import AT_LEAST_ONE, InstanceOf, Interval, allowed, with_parameters
from ..communication import Channel, Federation
from ..communication._channel import check_channel
from ..federated._clients import ClientsTransformer, rows_of
from ..federated._lack_of_fit import warn_of_weights
from ..summary import Subspace
from ..summary._projection_mean import rayleigh_ritz
from ._power_method import awaited_sum, by_rayleigh_ritz, moments_by_sum, power_method
from ._queries import Client, Query, Scatter, Shapes, TimesScatter, Variances

# Smallest variance of a factor at the start, as a share of the noise.
_LEAST = 1e-3
# Rounds for the start, at most, and the change of the subspace that ends them.
ROUNDS, _TOL = 30, 1e-3
# Share of the largest product below which what is new in one is a rounding error.
_NEW = 1e-10

# Power of a client's total variance that its rows are divided by at the start: weights of the form
# 1 / (v (lambda + v)) lie between the powers 1 and 2.
_POWER = 1.5
# Smallest variance of noise in a unit of all rows: more weight than of its inverse changes nothing.
SMALLEST = 1e-8
# Mean square of a column in that unit up to which rows are equal.
_ROUNDING = float(np.finfo(float).eps)


@with_parameters
class FederatedHeteroscedasticPCA(ClientsTransformer):
    """Probabilistic PCA of clients with unlike noise: maximum likelihood by rounds of sums.

    Where clients measure the same directions with different noise, PCA of all rows follows the
    loud ones. Here the rows of client l have the covariance F F' + v_l I with common factors F and
    a noise variance v_l of its own, and F and all v_l maximise the likelihood (HePPCAT [1]_). In
    each round a client takes a step for its noise, and sends two sums over its rows, which add up;
    so any channel serves, and the noise of a client stays with it. `NoiseAwareMerge` comes within
    .2 % of the result in one exchange of summaries; take the rounds where summaries may not be
    seen, have cut much, or a likelihood is wanted.

    Noise is all that lies outside the factors, also what a client has there of its own.

    Parameters
    ----------
    n_components : int, default=2
        Number of factors, fewer than columns, or there is no noise to be seen.
    n_rounds : int, default=200
        Largest number of rounds of expectation maximisation; up to 30 for the start come before.
    tol : float, default=1e-4
        Stop when a round would change the factors by less, relatively, in the Frobenius norm. A
        ConvergenceWarning tells if ``n_rounds`` were not enough.
    channel : Channel or None, default=None
        The simulated network, as in `FederatedPowerPCA`; not `RobustSum`.
    center : bool, default=True
        Subtract the mean of all rows, which a first round finds. False: about the origin.
    n_clients : int, default=2
        If ``clients`` is not given, the rows are cut into this number of contiguous shards, each of
        which counts as a client.
    n_jobs : int or None, default=None
        Clients at work at the same time; threads, unless ``joblib.parallel_config`` says otherwise.
    random_state : int, RandomState instance or None, default=None
        Seed of the first subspace and of the channel.

    Attributes
    ----------
    components_, mean_, singular_values_, explained_variance_, explained_variance_ratio_, \
            noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`: of all rows, along the principal axes within the span of the factors.
    factors_ : ndarray of shape (n_components_, n_features)
        F': the rows of client l have the covariance ``factors_.T @ factors_ + v_l I``. Orthogonal,
        the longest first.
    factor_mean_ : ndarray of shape (n_features,)
        Mean of the rows in the model, in which loud clients count less than in ``mean_``.
    noise_variances_ : dict
        Label of a client -> v_l. The server does not see it; the simulation does. Empty where
        clients are sites of a network.
    log_likelihoods_ : ndarray of shape (n_iter_,)
        Sum of the log-likelihoods of all rows, with the factors and noise of each round; the last
        is that of the result.
    n_iter_ : int
        Rounds of expectation maximisation; the last one changed nothing more.
    clients_ : list
        Labels of the clients, sorted.
    communication_ : CommunicationLog
        With d features, r components and K clients a round is K (r d + r^2 + 1) floats up and K r d
        down; before it are those of `FederatedPowerPCA`, one for another mean and one of 2 K floats
        up, after it one of K r d floats up and down, and one of K (4 r^2 + 2) up for the variances.

    Warns
    -----
    UserWarning
        If the components leave more than 1.25 times the squared residuals of PCA in the rows of all
        clients, as where these see different things: of the best components in the span of those
        that are found and of one product with them.

    See Also
    --------
    NoiseAwareMerge : One exchange of summaries, nearly as likely.
    FederatedPowerPCA : PCA of all rows, each counting one.

    Notes
    -----
    Expectation maximisation of [1]_ in turns: F given all v_l, then each v_l given F. With scatter
    S, n rows and W = (F' F + v I)^-1 a client sends W F' S / v and W F' S F W / v + n W; the new F
    is one sum divided by the other. The likelihood never falls.
    It has other maxima than the largest, so the start matters: PCA of weighted rows by rounds of a
    power method, with the variance of a client to the power of -3/2, which is between the weights 1
    / v and 1 / v^2. The mean of the model is that of the same weighted rows: noise in the mean of
    all rows would be a factor of the quiet clients. Factors below the noise take many rounds, each
    of which changes a small part of what is missing.

    A client with no more rows than factors and one, or with equal rows, could explain these without
    noise, and has no maximum; its noise is the mean variance of a column of all rows, and noise
    below 1e-8 of that is taken for 1e-8 of it. A client that drops out keeps its noise until it is
    back; the likelihood of a round is that of the clients that took part.

    A round costs a client what one of `FederatedPowerPCA` does, O(n_l d r).

    References
    ----------
    .. [1] D. Hong, K. Gilman, L. Balzano, J. A. Fessler, "HePPCAT: probabilistic PCA for data with
       heteroscedastic noise", IEEE Transactions on Signal Processing 2021.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import FederatedHeteroscedasticPCA, FederatedPCA, subspace_distance
    >>> rng = np.random.default_rng(0)
    >>> true = np.linalg.qr(rng.standard_normal((50, 2)))[0].T
    >>> site = np.repeat(["quiet", "loud"], [200, 800])
    >>> noise = np.where(site == "quiet", 1.0, 4.0)[:, None]  # standard deviations
    >>> X = 3 * rng.standard_normal((1000, 2)) @ true + noise * rng.standard_normal((1000, 50))
    >>> plain = FederatedPCA(2).fit(X, clients=site)
    >>> pca = FederatedHeteroscedasticPCA(2, random_state=0).fit(X, clients=site)
    >>> [round(subspace_distance(p.components_, true), 2) for p in (plain, pca)]
    [0.43, 0.16]
    >>> {label: round(v, 1) for label, v in pca.noise_variances_.items()}
    {'loud': 16.1, 'quiet': 1.0}
    """

    n_components: int = allowed(AT_LEAST_ONE, default=2)
    _: KW_ONLY
    n_rounds: int = allowed(AT_LEAST_ONE, default=200)
    tol: float = allowed(Interval(Real, 0, None, closed="left"), default=1e-4)
    channel: Any = allowed(InstanceOf(Channel), None, default=None)
    center: bool = allowed("boolean", default=True)
    n_clients: int = 2
    n_jobs: int | None = None
    random_state: Any = allowed("random_state", default=None)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_channel(self.channel)

    def _random_states(self) -> tuple[np.random.RandomState, np.random.RandomState]:
        """Of the channel, and of the first subspace, whatever the channel draws before it."""
        rng = check_random_state(self.random_state)
        return rng, np.random.RandomState(rng.randint(2**31))

    def _step(self, X: Any, weight: Any, shards: list[tuple[Any, Any]], method: str) -> list[Any]:
        rng, start = self._random_states()
        channel = None if self.channel is None else clone(self.channel)
        network = self.n_jobs, channel, rng, self.communication_
        federation = Federation(*network)
        clients = list(federation.map(Client.with_rows, rows_of(X, weight, shards)))
        n_rows, zero = count_rows(X, weight), np.zeros(X.shape[1])
        mean = moments_by_sum(federation, clients)[0] if self.center else zero
        keeping = KeepingFederation(*network)
        unit = self._fit_rounds(federation, keeping, clients, mean, n_rows, float_dtype(X), start)
        self.noise_variances_ = {label: unit**2 * v for label, v in keeping.kept.items()}
        return [label for label, _ in shards]

    def _fit_rounds(
        self,
        federation: Federation,
        keeping: Federation,
        clients: Sequence[Client],
        pooled: np.ndarray,
        n_rows: int,
        dtype: np.dtype,
        rng: np.random.RandomState,
    ) -> float:
        """Fit by rounds of sums; return the unit of the noise that clients of ``keeping`` keep.

        ``pooled`` is the mean of all rows, or zero.
        """
        d = len(pooled)
        scatter, n = awaited_sum(federation, clients, Scatter(pooled), np.empty(0))
        n = float(n) if n > 0 else 1.0  # noise of a channel
        unit = math.sqrt(max(float(scatter), 0.0) / n / d) or 1.0

        V = linalg.orthonormalised(rng.standard_normal((min(self.n_components, d, n_rows), d)))
        weighted = WeightedSums(federation, unit, self.center, len(V) + 1)
        mean = moments_by_sum(weighted, clients)[0] if self.center else pooled
        start = _first_factors(weighted, clients, mean, unit, V)
        F = self._by_expectation(keeping, clients, mean, unit, start)
        total = Subspace.empty(d, centered=self.center, dtype=dtype)._replace(mean=pooled)
        found = _along_factors(federation, clients, total, linalg.orthonormalised(F))
        self._set_fitted(found, len(V), n_rows)
        _, lengths, directions = scipy.linalg.svd(F, full_matrices=False)
        factors = (unit * lengths)[:, None] * linalg.flip_signs(directions)
        self.factors_, self.factor_mean_ = (a.astype(total._dtype) for a in (factors, mean))
        return unit

    def _by_expectation(
        self,
        federation: Federation,
        clients: Sequence[Client],
        mean: np.ndarray,
        unit: float,
        new: np.ndarray,
    ) -> np.ndarray:
        """Factors of the last round, whose noise the clients keep."""
        calls = [(client.label, client, 0) for client in clients]
        likelihoods, change, F = [], math.inf, new
        for _ in rounds_of(self, self.n_rounds):
            F = new
            message = federation.sum(ExpectedScores(F, mean, unit), calls, F)
            if message is None:  # nobody took part
                continue
            left, right = np.split(message[:-1], [F.size])
            right = right.reshape(len(F), len(F))
            new = np.linalg.solve((right + right.T) / 2, left.reshape(F.shape))
            likelihoods.append(float(message[-1]))
            change = float(np.linalg.norm(new - F) / (np.linalg.norm(F) or 1.0))
            if change <= self.tol:
                break
        else:
            warnings.warn(
                f"n_rounds={self.n_rounds} were not enough: the last one changed by {change:.2g} "
                f"of the factors, above tol={self.tol}.",
                ConvergenceWarning,
                stacklevel=2,
            )
        self.n_iter_, self.log_likelihoods_ = len(likelihoods), np.array(likelihoods)
        return F


def _first_factors(
    federation: Federation, clients: Sequence[Client], mean: np.ndarray, unit: float, V: np.ndarray
) -> np.ndarray:
    """Factors of weighted rows as if they had one noise, from the span of V on."""
    krylov = not federation.channel.loses_clients
    V = power_method(federation, clients, mean, V, ROUNDS, tol=_TOL, krylov=krylov).basis
    k, d = V.shape
    sums = awaited_sum(federation, clients, Variances(V, mean), V)
    n = float(sums[-1]) if sums[-1] > 0 else 1.0  # noise of a channel
    inner, scatter = sums[:-2].reshape(k, k) / unit**2 / n, float(sums[-2]) / unit**2 / n
    values, Y = np.linalg.eigh((inner + inner.T) / 2)
    noise = max((scatter - float(values.sum())) / max(d - k, 1), SMALLEST)
    return np.sqrt(np.maximum(values - noise, _LEAST * noise))[:, None] * (Y.T @ V)


def _along_factors(
    federation: Federation, clients: Sequence[Client], total: Subspace, V: np.ndarray
) -> Subspace:
    """Summary of all rows within a basis; a warning if a step of PCA leaves much less of them."""
    W = awaited_sum(federation, clients, TimesScatter(V, total.mean), V)
    scale = float(np.abs(W).max()) or 1.0
    beyond = W / scale - (W / scale @ V.T) @ V
    _, sizes, new = scipy.linalg.svd(beyond, full_matrices=False, check_finite=False)
    new = new[sizes > _NEW][: V.shape[1] - len(V)]
    wide = linalg.orthonormalised(np.concatenate([V, new]))
    both = by_rayleigh_ritz(federation, clients, total, wide)
    found = rayleigh_ritz(both, V, both.singular_values[:, None] * (both.components @ V.T))
    left, least = (
        m.scatter - float(m.singular_values @ m.singular_values)
        for m in (found, both.truncate(len(V)))
    )
    if least > 0:
        warn_of_weights(left / least)
    return found


# -------------------------------------------------------------------- the expectation step


@dataclass(frozen=True)
class ExpectedScores(Query):
    """Question to a client: sums of its rows and expected scores, with its own noise.

    Rows y have the mean ``mean`` and are ``unit`` (F' z + noise), with ``F`` of shape (k, d). The
    client first takes one step for its noise, which it keeps. One with no more rows than there are
    factors and a mean, or with equal rows, has the noise 1.
    """

    F: np.ndarray
    mean: np.ndarray
    unit: float

    kind = "scores"

    @property
    def shapes(self) -> Shapes:
        """Those of the `message`."""
        k, d = self.F.shape
        return {"message": (k * (d + k) + 1,)}

    def keeping(
        self, label: Any, client: Client, turn: int, v: float | None
    ) -> tuple[np.ndarray, float]:
        """Message, and the noise variance that stays with the client."""
        found, v = self.sums(client, v)
        return self.message(found, client.n_samples), v

    @property
    def shapes_of_sums(self) -> Shapes:
        """Those of the `sums`, one after the other."""
        k, d = self.F.shape
        sizes = {"left": k * d, "right": k * k, "covariance": k * k, "logs": 1, "distances": 1}
        return {name: (size,) for name, size in sizes.items()}

    def sums(self, own: RowMoments, v: float | None) -> tuple[dict[str, np.ndarray], float]:
        """What is summed, in the units of the rows, and the noise."""
        (k, d), n, squared = self.F.shape, own.n_samples, self.unit**2
        with np.errstate(over="ignore", invalid="ignore"):
            P, scatter = own.products(self.mean, self.F), own.scatter_about(self.mean)
        if not np.isfinite(P).all():
            raise too_large("sum of products", weight=getattr(own, "weight", None))
        G, B = self.F @ self.F.T, P @ self.F.T
        known = n > k + 1 and own.own_scatter > _ROUNDING * n * d * squared
        v = max(self._noise(G, B / squared, scatter / squared, n, v), SMALLEST) if known else 1.0
        W = scipy.linalg.inv(G + v * np.eye(k))
        log_det = (d - k) * np.log(v) - np.linalg.slogdet(W)[1]
        found = {
            "left": W @ P / v,
            "right": W @ B @ W / v,
            "covariance": n * W,
            "logs": np.array([n * log_det]),
            "distances": np.array([(scatter - float(np.sum(W * B))) / v]),
        }
        return found, v

    def message(self, sums: Mapping[str, np.ndarray], n: float) -> np.ndarray:
        """Both sums over the scores, and the log-likelihood, of n rows."""
        d, squared = len(self.mean), self.unit**2
        likelihood = (
            n * d * np.log(2 * np.pi * squared) + sums["logs"] + sums["distances"] / squared
        )
        left, right = sums["left"] / squared, sums["right"] / squared + sums["covariance"]
        return np.concatenate([left.ravel(), right.ravel(), -likelihood / 2])

    def local(self, own: RowMoments) -> np.ndarray:
        """The message of a client that has kept nothing."""
        return self.message(self.sums(own, None)[0], own.n_samples)

    def _noise(
        self, G: np.ndarray, B: np.ndarray, scatter: float, n: float, v: float | None
    ) -> float:
        """One step for the noise; without one before, what the factors' directions leave."""
        k, d = self.F.shape
        if v is None:
            return (scatter - float(np.sum(np.linalg.pinv(G) * B))) / n / max(d - k, 1)
        W = scipy.linalg.inv(G + v * np.eye(k))
        scores = W @ B @ W + n * v * W
        return (scatter - 2 * float(np.sum(W * B)) + float(np.sum(G * scores))) / (n * d)


class KeepingFederation(Federation):
    """A federation whose clients keep something of their own from round to round.

    What is mapped has a function ``keeping`` of the client and of what it has kept, None at first,
    which returns the message and what it keeps now, in ``kept`` by label. Messages go further.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.kept: dict[Any, Any] = {}

    def map(self, function: Any, clients: Iterable[tuple]) -> Iterator[np.ndarray]:
        """Messages of the clients, in order; see `Federation.map`."""
        calls = [(*call, self.kept.get(call[0])) for call in clients]
        results = super().map(function.keeping, calls)
        for (label, *_), (message, own) in zip(calls, results, strict=True):
            self.kept[label] = own
            yield message


@dataclass(frozen=True)
class Weighted(Query):
    """Another question, about rows that count less, the larger their variance in a unit.

    Of no more rows than ``few``, or of equal ones, the variance is not known, and is 1.
    """

    query: Query
    unit: float
    center: bool
    few: int

    @property
    def kind(self) -> str:  # type: ignore[override]
        """That of the question, marked."""
        return f"weighted_{self.query.kind}"

    @property
    def shapes(self) -> Shapes:
        """Those of the question."""
        return self.query.shapes

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Those of the question, and the unit."""
        return (*self.query.arguments, self.unit)

    def local(self, own: RowMoments) -> np.ndarray:
        """The answer times the weight, as what is asked for are sums over rows."""
        n, total, variance = own.n_samples, own.total, 1.0
        if n > self.few and own.own_scatter > _ROUNDING * n * len(total) * self.unit**2:
            scatter = own.own_scatter
            if not self.center:
                scatter += float(total @ total) / n
            variance = max(scatter / n / len(total) / self.unit**2, SMALLEST)
        return variance**-_POWER * self.query.local(own)


class WeightedSums(Federation):
    """Sums of another federation, over rows whose weight is that of `Weighted` questions."""

    def __init__(self, federation: Federation, unit: float, center: bool, few: int):
        super().__init__(channel=federation.channel, log=federation.log)
        self.federation, self.weight = federation, (unit, center, few)

    def sum(self, function: Any, clients: Any, broadcast: Any = None) -> np.ndarray | None:
        """The sum of the weighted answers."""
        return self.federation.sum(Weighted(function, *self.weight), clients, broadcast)
