"""What all mechanisms share: the budget, how it is split, and who has spent how much of it."""

from __future__ import annotations

import math
import warnings
from abc import ABC
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import Interval, StrOptions

from .._checks import check_rows, float_array
from ._gaussian import epsilon_of, mu_of
from ._rows import row_norms

__all__ = ["Mechanism", "PrivacyBudgetError", "PrivacyLeakWarning", "PrivacySpent"]


class PrivacyLeakWarning(UserWarning):
    """Something that a mechanism needs to know in advance was taken from the data."""


class PrivacyBudgetError(ValueError):
    """A release would cost more than what is left of the stated budget."""


class PrivacySpent(NamedTuple):
    """What releases have cost, after exact composition: (epsilon, delta)."""

    epsilon: float
    delta: float


class Costs(NamedTuple):
    """mu^2 of one release of a second moment or a product with it, and of one of the mean."""

    product: float
    mean: float | None  # None: no release, the mean is fixed


@dataclass(frozen=True)
class Terms:
    """Bounds of the rows, and the noise that a client adds.

    With y = x - center and |y| <= R, replacing a row changes the second moment sum y y^T by a D =
    y y^T - z z^T of Frobenius norm at most sqrt(2) R^2, for |D|^2 = |y|^4 + |z|^4 - 2 (y.z)^2, and
    the sum of y by at most 2 R.
    """

    row_norm: float
    center: np.ndarray | None
    costs: Costs
    n_shares: int = 1  # clients whose noise adds up to what is needed

    @property
    def product_std(self) -> float:
        """Scale of the noise of a client on a second moment, or on a product with it."""
        return math.sqrt(2 / (self.costs.product * self.n_shares)) * self.row_norm**2

    @property
    def mean_std(self) -> float:
        """Scale of the noise of a client on each feature of the sum of its rows."""
        return 2 * self.row_norm / math.sqrt(self.costs.mean * self.n_shares)

    def origin(self, d: int) -> np.ndarray:
        """The public centre."""
        return np.zeros(d) if self.center is None else self.center

    def within(self, mean: np.ndarray) -> np.ndarray:
        """A mean of clipped rows brought back to where it must be, within R of the centre."""
        return mean * min(1.0, self.row_norm / (float(np.linalg.norm(mean)) or 1.0))


class Mechanism(BaseEstimator, ABC):
    """Base of the mechanisms: parameters that all have, and the split of the budget."""

    _parameter_constraints: dict = {
        "epsilon": [Interval(Real, 1e-6, None, closed="both")],
        "delta": [Interval(Real, 0, 1, closed="neither")],
        "row_norm": [Interval(Real, 1e-100, 1e100, closed="both"), StrOptions({"data"})],
        "center": ["array-like", Real, None],
        "mean": [StrOptions({"private", "fixed"})],
        "mean_share": [Interval(Real, 0, 1, closed="neither")],
        "trust": [StrOptions({"client", "sum"})],
    }

    def validate(self) -> None:
        """Raise a ValueError that names a wrong parameter; estimators call it before they start."""
        self._validate_params()

    def budget(self) -> float:
        """mu^2 of the whole budget."""
        return mu_of(float(self.epsilon), float(self.delta)) ** 2

    def _product_budget(self, n_features: int) -> float:
        """mu^2 that the noise would cost if the second moment had the whole budget."""
        return self.budget()

    def costs(self, n_features: int, n_products: int, fraction: float = 1.0) -> Costs:
        """What the releases of a fraction of the budget cost, one mean and some products."""
        share = self.mean_share if self.mean == "private" else 0.0
        product = self._product_budget(n_features) * fraction * (1 - share) / n_products
        return Costs(product, self.budget() * fraction * share if share else None)

    def terms(self, X: Any, costs: Costs, n_shares: int = 1) -> Terms:
        """Bounds and noise for rows; looks at them only with ``row_norm="data"``."""
        d = X.shape[1]
        center, row_norm = self._center_of(d), self.row_norm
        if row_norm == "data":
            warnings.warn(
                "row_norm='data' takes the largest norm of the rows, which depends on one of them: "
                "the result is not differentially private. Give a number known in advance.",
                PrivacyLeakWarning,
                stacklevel=2,
            )
            row_norm = row_norms(check_rows(X), center).max() or 1.0
        return Terms(float(row_norm), center, costs, n_shares if self.trust == "sum" else 1)

    def _center_of(self, d: int) -> np.ndarray | None:
        """The public point as an array; a number stands for all features."""
        if self.center is None:
            return None
        center = np.full(d, self.center) if isinstance(self.center, Real) else self.center
        center = float_array("center", center, 1, np.float64)
        if len(center) != d:
            raise ValueError(f"center must have shape ({d},), got {center.shape}.")
        return center

    def spent(self, mu2: float) -> PrivacySpent:
        """(epsilon, delta) of releases with a total mu^2; no promise for a bound from the data."""
        if self.row_norm == "data":
            return PrivacySpent(math.inf, float(self.delta))
        return PrivacySpent(epsilon_of(math.sqrt(mu2), float(self.delta)), float(self.delta))


class Account(NamedTuple):
    """What one client has spent: releases, as shares of the budget, and mu^2."""

    share: float = 0.0
    mu2: float = 0.0


def charged(
    accounts: Mapping[Hashable, Account],
    clients: Iterable[Hashable],
    mechanism: Any,
    costs: Costs,
) -> dict[Hashable, Account]:
    """Accounts after one more of ``n_releases`` of some clients, or a `PrivacyBudgetError`."""
    after, share = dict(accounts), 1 / mechanism.n_releases
    mu2, budget = sum(cost or 0.0 for cost in costs), mechanism.budget()
    for client in clients:
        before = after.get(client, Account())
        used_up = before.share + share > 1 + 1e-9 or before.mu2 + mu2 > budget * (1 + 1e-9)
        if not math.isinf(mechanism.epsilon) and used_up:
            raise PrivacyBudgetError(
                f"Client {client!r} has no budget left for one more release: {before.share:.0%} of "
                f"epsilon={mechanism.epsilon:g}, delta={mechanism.delta:g} is spent, and with "
                f"n_releases={mechanism.n_releases} each takes {share:.0%}."
            )
        after[client] = Account(before.share + share, before.mu2 + mu2)
    return after
