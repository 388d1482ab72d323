"""PCA by rounds of sums: over-the-air, local and private power methods."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from functools import partial
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import StrOptions

from .._base.batches import count_rows, float_dtype
from .._base.fitted import rounds_of
from .._kernels import linalg
from .._kernels.device_rows import in_memory
from .._validation.checks import (
    AT_LEAST_ONE,
    InstanceOf,
    Interval,
    allowed,
    float_array,
    with_parameters,
)
from ..communication import Channel, Federation, FixedPointChannel, PerfectChannel
from ..communication._channel import check_channel
from ..federated._clients import ClientsTransformer, rows_of
from ..federated._private import privacy_spent, warn_at_the_end
from ..privacy import FedPowerNoise
from ..privacy._mechanism import seeds_of
from ..summary import Subspace
from ._power_method import PowerResult, by_rayleigh_ritz, moments_by_sum, power_method
from ._queries import AnyClient, Client, PrivateClient, check_private, message_of_noise, terms_of
from ._robust_sum import RobustSum


@with_parameters
class FederatedPowerPCA(ClientsTransformer):
    """Principal component analysis by rounds of a power method whose messages only add up.

    Take it where rows belong to clients (sites), and the server only receives the sum of their
    messages: radio, where signals add up in the air (FedOA-PM [1]_), secure aggregation, or clients
    that add noise for privacy (`FedPowerNoise`). In each round every client multiplies the scatter
    matrix of its rows with the current basis, the network adds the products up, with noise or
    without, and the server makes the sum orthonormal. Without noise the result is PCA of all rows.

    Parameters
    ----------
    n_components : int or None, default=None
        Number of components. None: ``min(n_samples, n_features)``.
    n_rounds : int, default=100
        Largest number of rounds, besides one for the mean and one for the variances.
    local_steps : int, default=1
        Multiplications at each client between two rounds; above 1 bases are averaged (LocalPower
        [2]_), which saves rounds where clients are alike and is biased where they are not.
    acceleration : {"auto", "krylov"} or None, default="auto"
        "krylov": the server takes the best basis of the space that all rounds span, for the same
        messages. None: the last round's, as in [1]_. "auto": "krylov" where the sum of all clients
        arrives without noise and ``local_steps`` is 1.
    tol : float, default=1e-6
        Stop when a multiplication moves the subspace by less, by the sine of the largest angle.
    channel : Channel or None, default=None
        The network. None: `PerfectChannel`, without noise. `RobustSum`: for clients that lie.
    mechanism : FedPowerNoise or None, default=None
        Differential privacy, of which the budget is split over ``n_rounds`` + 2 rounds.
    init : array-like of shape (n_components, n_features) or None, default=None
        Rows that span the first subspace. None: random.
    center : bool, default=True
        Subtract the mean of all rows, which a first round finds. False: about the origin.
    n_clients, n_jobs : int
        As in `FederatedPCA`.
    random_state : int, RandomState instance or None, default=None
        Seed of the first subspace, the channel and the mechanism.

    Attributes
    ----------
    components_, mean_, singular_values_, explained_variance_, explained_variance_ratio_, \
            noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        As in `StreamingPCA`, with the errors of the channel.
    n_iter_ : int
        Rounds of multiplications, since they last began.
    stop_reason_ : {"tol", "n_rounds", "exhausted", "callback"}
        Why the rounds ended; "exhausted": the Krylov space cannot grow.
    suspects_, evidence_ : dict
        With ``channel=RobustSum()``: label of a client -> `SiteEvidence`, of suspects, and of all.
    changes_ : ndarray of shape (n_iter_,)
        By how much each round moved the subspace; NaN if nobody took part.
    clients_, communication_, privacy_spent_
        As of `FederatedPCA`.

    See Also
    --------
    FederatedPCA : One round, more floats each.

    Notes
    -----
    FedOA-PM, Algorithm 2 of [1]_, is ``acceleration=None, tol=0, center=False``, from an
    orthonormal start. A client works in O(n_i d r) a round and O(d r) memory; sparse rows stay
    sparse. How fast the error falls, what noise and rounding leave, and what clients send, is on
    the page "Rounds of sums" of the guide.

    References
    ----------
    .. [1] P. Narayanamurthy, N. Vaswani, A. Ramamoorthy, "Federated over-air subspace tracking from
       incomplete and corrupted data", IEEE Transactions on Signal Processing 2022.
    .. [2] X. Li, S. Wang, K. Chen, Z. Zhang, "Communication-efficient distributed SVD via local
       power iterations", ICML 2021.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.decomposition import PCA
    >>> from fedpca_sklearn import FederatedPowerPCA, subspace_distance
    >>> X, y = load_digits(return_X_y=True)
    >>> pca = FederatedPowerPCA(3, random_state=0).fit(X, clients=y)
    >>> pca.n_iter_, pca.stop_reason_
    (9, 'tol')
    >>> subspace_distance(pca.components_, PCA(3).fit(X).components_) < 1e-5
    True
    """

    _takes_arrays = True

    privacy_spent_ = property(privacy_spent)

    n_components: int | None = allowed(AT_LEAST_ONE, None, default=None)
    _: KW_ONLY
    n_rounds: int = allowed(AT_LEAST_ONE, default=100)
    local_steps: int = allowed(AT_LEAST_ONE, default=1)
    acceleration: str | None = allowed(StrOptions({"auto", "krylov"}), None, default="auto")
    tol: float = allowed(Interval(Real, 0, None, closed="left"), default=1e-6)
    channel: Any = allowed(InstanceOf(Channel), None, default=None)
    mechanism: Any = allowed(InstanceOf(FedPowerNoise), None, default=None)
    init: Any = allowed("array-like", None, default=None)
    center: bool = allowed("boolean", default=True)
    n_clients: int = 2
    n_jobs: int | None = None
    random_state: Any = allowed("random_state", default=None)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_channel(self.channel, comparable=True)
        if self.channel is not None and self.channel.compares_clients and self.local_steps > 1:
            raise ValueError(
                f"channel={self.channel!r} needs local_steps=1, because what comes of more steps "
                f"cannot be compared with a client's summary, got {self.local_steps}."
            )
        if self.acceleration == "krylov" and self.local_steps > 1:
            raise ValueError(
                f"acceleration={self.acceleration!r} needs local_steps=1, got {self.local_steps}."
            )
        if self.mechanism is not None:
            check_private(self, self.mechanism)

    def _step(self, X: Any, weight: Any, shards: list[tuple[Any, Any]], method: str) -> list[Any]:
        rng = check_random_state(self.random_state)
        channel = PerfectChannel() if self.channel is None else clone(self.channel)
        federation = Federation(self.n_jobs, channel, rng, self.communication_)
        d, n_rows = X.shape[1], count_rows(X, weight)
        self._given_basis(d, n_rows)  # before anybody is charged
        plain = self.mechanism is None and not channel.compares_clients
        X = X if plain else in_memory(X)
        clients: Sequence[AnyClient]
        parts, terms = rows_of(X, weight, shards), None
        if self.mechanism is None:
            self.__dict__.pop("_accounts", None)
            clients = list(Federation(self.n_jobs).map(Client.with_rows, parts))
        else:
            terms = terms_of(self, X, weight, shards)
            # one of its own where none is given: the first basis tells about that of the others
            state = None if self.random_state is None else rng
            of_all = ((label, X, self.mechanism, terms, seeds_of(state)) for label, X, _ in parts)
            clients = list(Federation(self.n_jobs).map(PrivateClient.of, of_all))
        start = self._first_basis(d, n_rows, rng)
        labels = [label for label, _ in shards]
        if channel.compares_clients:
            channel.ask(federation, clients, len(start))
        rounds = partial(rounds_of, self)
        while True:
            released = self.center if terms is None else terms.costs.mean is not None
            mean = np.zeros(d) if terms is None else terms.origin(d)
            if self.center and channel.compares_clients:
                mean = channel.mean()
            elif released:
                mean = moments_by_sum(federation, clients)[0]
            found = power_method(
                federation, clients, mean, start, rounds=rounds, **self._power_parameters()
            )
            if not channel.begins_again:
                self._show(federation, clients, mean, found, n_rows, float_dtype(X))
            if not channel.begins_again:  # after its round as well
                break
            start, channel.begins_again = found.basis, False
        if terms is not None:
            warn_at_the_end(self, message_of_noise(self, terms, len(shards)))
        for name in ("evidence_", "suspects_"):
            self.__dict__.pop(name, None)
            if channel.compares_clients:
                found_of = getattr(channel, name)
                setattr(self, name, {labels[i]: one for i, one in found_of.items()})
        return labels

    def _power_parameters(self) -> dict[str, Any]:
        """Parameters of the power method."""
        own = {name: getattr(self, name) for name in ("n_rounds", "tol", "local_steps")}
        return {**own, "krylov": self._krylov()}

    def _krylov(self) -> bool:
        """Whether the server keeps the space of all rounds."""
        if self.acceleration != "auto":
            return self.acceleration == "krylov"
        channel = PerfectChannel() if self.channel is None else self.channel
        exact = type(channel) in (PerfectChannel, FixedPointChannel, RobustSum)
        whole = exact and not channel.loses_clients
        return whole and self.mechanism is None and self.local_steps == 1

    def _show(
        self,
        federation: Federation,
        clients: Sequence[AnyClient],
        mean: np.ndarray,
        found: PowerResult,
        n_rows: int,
        dtype: Any,
    ) -> None:
        """From what the power method found to the fitted attributes, by one more round."""
        total = Subspace.empty(len(mean), centered=self.center, dtype=dtype)._replace(mean=mean)
        summary = by_rayleigh_ritz(federation, clients, total, found.basis)
        self._set_fitted(summary, len(found.basis), n_rows)
        self.n_iter_, self.stop_reason_ = len(found.changes), found.stop_reason
        self.changes_ = np.array(found.changes)

    def _rank(self, d: int, n_rows: int) -> int:
        """Number of components that exist."""
        return min(self.n_components or d, d, n_rows)

    def _given_basis(self, d: int, n_rows: int) -> np.ndarray | None:
        """Rows of ``init``, if they are given and right."""
        if self.init is None:
            return None
        V = float_array("init", self.init, 2, np.float64)
        shape = self.n_components or self._rank(d, n_rows), d
        if V.shape != shape:
            raise ValueError(f"init must have shape {shape}, got {V.shape}.")
        return V

    def _first_basis(self, d: int, n_rows: int, rng: np.random.RandomState) -> np.ndarray:
        """Orthonormal rows to begin with, as many as components exist."""
        rank, V = self._rank(d, n_rows), self._given_basis(d, n_rows)
        return linalg.orthonormalised(rng.standard_normal((rank, d)) if V is None else V[:rank])
