"""Private releases of a site: charged to its ledger before they are computed, repeated for free."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone

from ..privacy import Mechanism, PrivacyBudgetError
from ..privacy._accounts import ROUNDING, Account
from ..privacy._gaussian import epsilon_of
from ..privacy._seeds import seeds_of
from ._records import Array, Context
from ._site_policy import Exchange, RefusedError, SitePolicy

# Name of the one account of a ledger: a site that calls itself something else has spent the same.
ACCOUNT = "this site"
# Records of the site's own state: what was released in a run, and of which arguments.
_RELEASED, _OF = "fedpca_sklearn.released", "fedpca_sklearn.released_of"


@dataclass
class Site:
    """Who is asked, and what it has released.

    Attributes
    ----------
    name : str
        Name of the site.
    context : Context
        Of the site, whose state lasts for a run.
    exchange : Exchange
        What is noted of the question.
    privacy : dict
        mu2, epsilon and delta of all releases of the site so far; empty without a mechanism.
    """

    name: str
    context: Context
    exchange: Exchange
    privacy: dict[str, float] = field(default_factory=dict)

    def release(
        self,
        kind: str,
        mechanism: Mechanism,
        mu2: float,
        make: Callable[[np.random.Generator], np.ndarray],
        *arguments: np.ndarray,
    ) -> np.ndarray:
        """Charge and compute an array with noise; the last one of a kind comes again for nothing.

        Parameters
        ----------
        kind : str
            What is released.
        mechanism : Mechanism
            With a ledger.
        mu2 : float
            What it costs.
        make : callable
            ``make(rng)`` computes it, with noise of a generator that nobody else can know.
        *arguments : ndarray
            What it depends on besides the rows. In one run the same ones have the same release.

        Returns
        -------
        released : ndarray
            As ``make`` returned it, for this or for an earlier question of the run.

        Raises
        ------
        RefusedError
            If it does not fit into the owner's budget.
        """
        state = self.context.state
        arrays, of = dict(state.get(_RELEASED, {})), dict(state.get(_OF, {}))
        stamp = self._stamp(arguments)
        if of.get(kind) != stamp:
            self._charge(mechanism, mu2)
            made = make(np.random.default_rng(seeds_of(None)))
            arrays[kind], of[kind] = Array.of(made), stamp
            state[_RELEASED], state[_OF] = arrays, of
        self.state_spent(mechanism)
        return arrays[kind].numpy()

    def state_spent(self, mechanism: Mechanism) -> None:
        """Take from the ledger what all releases have cost so far."""
        mu2, delta = mechanism.ledger._total(ACCOUNT), float(mechanism.delta)
        epsilon = epsilon_of(math.sqrt(mu2), delta)
        self.privacy = {"mu2": mu2, "epsilon": epsilon, "delta": delta}

    def _stamp(self, arguments: tuple[np.ndarray, ...]) -> str:
        """A text for the run and some arrays, which no other has."""
        digest = hashlib.sha256(str(self.context.run_id).encode())
        for array in arguments:
            digest.update(repr(array.shape).encode() + array.tobytes())
        return digest.hexdigest()

    def _charge(self, mechanism: Mechanism, mu2: float) -> None:
        """Write a release to the ledger, on the disk when this returns."""
        owner, ledger = self.exchange.policy.owner_of(mechanism), mechanism.ledger
        spent = self.exchange.spent()
        if spent and ledger._total(ACCOUNT) < spent * (1 - ROUNDING):
            raise RefusedError("the ledger of the site holds less than its log says was spent")
        try:
            ledger._charge({ACCOUNT: Account(ACCOUNT)}, mechanism, mu2, owner)
        except PrivacyBudgetError as error:
            budget = owner or mechanism
            raise RefusedError(
                "no budget is left for one more release: the owner's is "
                f"epsilon={budget.epsilon:g}, delta={budget.delta:g}"
            ) from error


def with_ledger(estimator: Any, policy: SitePolicy, secure: Any = None) -> Any:
    """The estimator as a site runs it: its mechanism has the ledger of the site.

    Raises
    ------
    ValueError
        If a mechanism has no ledger, or leaves its noise to others.
    """
    mechanism = getattr(estimator, "mechanism", None)
    if mechanism is None:
        return estimator
    check_trust(mechanism, secure)
    ledger = mechanism.ledger if policy.ledger is None else policy.ledger
    if ledger is None:
        raise ValueError(
            "mechanism needs a ledger at a site, which remembers what it has spent: "
            f"SitePolicy(ledger=...) or the mechanism's own, got {mechanism!r}."
        )
    kept = clone(estimator)
    return kept.set_params(mechanism=clone(mechanism).set_params(ledger=ledger))


def check_trust(mechanism: Mechanism, secure: Any = None) -> None:
    """Raise if a site's share of the noise would be all that protects its message.

    ``secure`` is what secure sums agree on, None without them.
    """
    if secure is None and mechanism.trust == "sum":
        raise ValueError(
            "trust='sum' over a network needs secure sums: here the server sees the message of "
            f"each site, which has a part of the noise only, got {mechanism!r}."
        )
    if secure is not None:
        mechanism.refuse_searches("secure sums have one norm and centre for all sites")
    if secure is not None and mechanism.noise is None:
        raise ValueError(
            "a mechanism over secure sums needs noise that survives integers: "
            f"noise=DiscreteGaussian(), got {mechanism!r}."
        )
    if secure is not None and mechanism.trust == "sum" and secure.restarts:
        raise ValueError(
            "trust='sum' needs SecureAggregation(restarts=0): two sums with and without a site "
            f"tell its message with its part of the noise only, got restarts={secure.restarts}."
        )
