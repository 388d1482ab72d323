"""What clients have spent of their budgets; a charge is never taken back."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .._validation.feature_names import check_text
from ._gaussian import epsilon_of

# Relative excess over a budget that is rounding.
ROUNDING = 1e-9


class PrivacyBudgetError(ValueError):
    """A release would cost more than what is left of the stated budget."""


class PrivacySpent(NamedTuple("_Spent", [("epsilon", float), ("delta", float)])):
    """Privacy cost of releases, by exact composition: (epsilon, delta).

    Attributes
    ----------
    epsilon, delta : float
    account : str
        Which releases are counted: those "of this fit alone", those in a ledger, of which it is the
        path, or those in "the ledgers of the sites", as they state them. Without a ledger nothing
        adds up several fits, copies and estimators.

    Examples
    --------
    >>> from fedpca_sklearn.privacy import PrivacySpent
    >>> PrivacySpent(1.0, 1e-5)
    PrivacySpent(epsilon=1.0, delta=1e-05, account='of this fit alone')
    """

    account = "of this fit alone"

    def counted_in(self, account: str) -> PrivacySpent:
        """The same cost as one of another account.

        Parameters
        ----------
        account : str
            Where the cost is counted, for the text of the result.

        Returns
        -------
        spent : PrivacySpent
            Equal to this one but for ``account``.
        """
        spent = PrivacySpent(*self)
        spent.account = account
        return spent

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, account={self.account!r})"


def account_name(label: Any) -> str:
    """Name of a client's account: 1, "1" and " 1" have the same, in composed Unicode (NFC)."""
    if isinstance(label, str):
        return unicodedata.normalize("NFC", label).strip()
    return str(int(label))


def exceeds(mu2: float, budget: float) -> bool:
    """Whether mu^2 is above a budget by more than rounding."""
    return mu2 > budget * (1 + ROUNDING)


class Account(NamedTuple):
    """What one client has spent: releases, as shares of the budget, and mu^2."""

    label: Any
    share: float = 0.0
    mu2: float = 0.0


@dataclass
class Accounts:
    """Accounts of the clients of one estimator, by name, changed in place."""

    of: dict[str, Account] = field(default_factory=dict)
    n_calls: int = 0
    delta: float = 0.0
    where: str = PrivacySpent.account

    def names(self, labels: Iterable[Any]) -> dict[str, Any]:
        """Names of the accounts of some clients; an error if a client is written in two ways."""
        known = {name: account.label for name, account in self.of.items()}
        found: dict[str, Any] = {}
        for label in labels:
            first = next(iter(known.values()), label)
            name = check_text("clients", account_name(label))
            same = known.setdefault(name, label)
            if isinstance(first, str) != isinstance(label, str):
                raise ValueError(
                    "clients must be of one kind over all calls with a mechanism, integers or "
                    f"strings, because each has one account, got {first!r} and {label!r}."
                )
            if same != label:
                raise ValueError(
                    "clients must be written in one way over all calls with a mechanism, because "
                    f"each has one account, got {same!r} and {label!r}."
                )
            found[name] = label
        return found

    def check(self, labels: Iterable[Any], mechanism: Any, mu2: float) -> dict[str, Account]:
        """Accounts after one more release of some clients, or a `PrivacyBudgetError`.

        An infinite cost is not refused: it is shown, and nothing lowers it any more.
        """
        after, share = {}, 1 / mechanism.n_releases
        budget = mechanism.budget()
        for name, label in self.names(labels).items():
            before = self.of.get(name, Account(label))
            total = before.mu2 + mu2
            used_up = before.share + share > 1 + ROUNDING
            too_much = math.isfinite(total) and exceeds(total, budget)
            if not math.isinf(budget) and (used_up or too_much):
                raise PrivacyBudgetError(
                    f"Client {label!r} has no budget left for one more release: {before.share:.0%} "
                    f"of epsilon={mechanism.epsilon:g}, delta={mechanism.delta:g} is spent, and "
                    f"with n_releases={mechanism.n_releases} each takes {share:.0%}."
                )
            after[name] = Account(label, before.share + share, total)
        if mechanism.ledger is not None:
            mechanism.ledger._check(after, mechanism, mu2)
        return after

    def charge(self, labels: Iterable[Any], mechanism: Any, mu2: float) -> None:
        """Charge one more release of some clients, in a ledger too, or change nothing.

        With a ledger, what an account holds is at least what the ledger does.
        """
        after, self.where = self.check(labels, mechanism, mu2), PrivacySpent.account
        if mechanism.ledger is not None:
            totals = mechanism.ledger._charge(after, mechanism, mu2)
            after = {
                name: account._replace(mu2=max(account.mu2, totals[name]))
                for name, account in after.items()
            }
            self.where = str(mechanism.ledger.path)
        self.of.update(after)
        self.n_calls += 1
        self.delta = float(mechanism.delta)

    def numbers(self, label: Any) -> tuple[int, int]:
        """Numbers of a client and of the last call; no other noise from a seed has both."""
        return list(self.of).index(account_name(label)), self.n_calls - 1

    def mu2(self, label: Any = None) -> float:
        """mu^2 that a client has spent; None: the one that has spent most."""
        if label is not None:
            return self.of[account_name(label)].mu2
        return max(account.mu2 for account in self.of.values())

    def add(self, other: Accounts) -> None:
        """Charge what other calls of the same estimator have cost."""
        for name, account in other.of.items():
            before = self.of.get(name, Account(account.label))
            share, mu2 = before.share + account.share, before.mu2 + account.mu2
            self.of[name] = Account(before.label, share, mu2)
        self.n_calls += other.n_calls

    def after_error(self, before: Accounts | None) -> Accounts:
        """Accounts after a call that failed: what it has charged stays charged."""
        if before is None or before is self:
            return self
        before.add(self)
        return before

    def spent(self) -> PrivacySpent:
        """(epsilon, delta) of the client that has spent most."""
        spent = PrivacySpent(epsilon_of(math.sqrt(self.mu2()), self.delta), self.delta)
        return spent.counted_in(self.where)
