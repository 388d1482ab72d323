"""What a budget is expected to give, before it is spent."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._validation.checks import check_at_most_features, check_integer, float_array
from ._noise_warning import count_above, edge
from ._private_norm import PrivacyBoundWarning, aim_for_moments, found_norm

__all__ = ["PrivacyPlan"]

# Normal rows whose norms stand for those of all rows.
_ROWS = 2000
# Draws of the noise, and multiplications that all of them may take.
_DRAWS, _LARGEST = 20, 1e10


@dataclass(frozen=True)
class PrivacyPlan:
    """What a budget is expected to give: ``mechanism.plan`` returns it.

    Parameters
    ----------
    epsilon : float
        Of the budget.
    error : float
        Sine of the largest angle between the components with noise and those of the rows, the mean
        of the draws.
    n_components_above_noise : float
        Components that can be told from noise, the mean of the draws.
    half, twice : PrivacyPlan or None, default=None
        The same with half and with twice the epsilon.
    """

    epsilon: float
    error: float
    n_components_above_noise: float
    half: PrivacyPlan | None = None
    twice: PrivacyPlan | None = None


class _Expected:
    """What a mechanism asks of clipped rows: their second moment along the axes, a sum of zero."""

    def __init__(self, scatter: np.ndarray):
        self._scatter = scatter

    def products(self, columns: slice) -> np.ndarray:
        """Columns of the second moment."""
        return np.diag(self._scatter)[:, columns]

    def sum(self) -> np.ndarray:
        """Sum of the rows."""
        return np.zeros(len(self._scatter))


def planned(mechanism: Any, n: int, d: int, n_components: int, spectrum: Any) -> PrivacyPlan:
    """The plan of a mechanism, with those of half and twice its epsilon."""
    check_integer("n", n)
    check_integer("d", d)
    check_integer("n_components", n_components)
    check_at_most_features(n_components, d)
    mechanism.validate()
    if mechanism.row_norm == "data":
        raise ValueError("row_norm must be a number or 'private' for a plan, got 'data'.")
    variances = _variances(mechanism, d, spectrum)
    _warn_of_few_rows(mechanism, n)

    def of(factor: float) -> PrivacyPlan:
        other = type(mechanism)(
            **{**mechanism.get_params(deep=False), "epsilon": factor * mechanism.epsilon}
        )
        return _simulated(other, n, n_components, variances)

    return replace(of(1.0), half=of(0.5), twice=of(2.0))


def _warn_of_few_rows(mechanism: Any, n: int) -> None:
    """Warn if a private search may take any norm, which the number of rows and the budget say."""
    budget = mechanism.budget() / mechanism.n_releases
    for name, search in mechanism.searches.items():
        needed = search._rows_needed(budget)
        if n < needed:
            warnings.warn(
                f"A private search may take any norm of so few rows: {name} needs {needed:.0f} at "
                f"epsilon={mechanism.epsilon:g}, got n={n}. Give a {name} that is known.",
                PrivacyBoundWarning,
                stacklevel=4,
            )


def _variances(mechanism: Any, d: int, spectrum: Any) -> np.ndarray:
    if spectrum is None:
        found = np.arange(1.0, d + 1) ** -2
        if "row_norm" not in mechanism.searches:
            found *= float(mechanism.row_norm) ** 2 / found.sum()
        return found
    given = float_array("spectrum", spectrum, 1, np.float64)
    if not 0 < len(given) <= d or given.min() < 0 or not given.max() > 0:
        raise ValueError(
            f"spectrum must have 1 to d={d} variances of at least 0, got {spectrum!r}."
        )
    return np.r_[np.sort(given)[::-1], np.zeros(d - len(given))]


def _simulated(mechanism: Any, n: int, k: int, variances: np.ndarray) -> PrivacyPlan:
    d, rng = len(variances), np.random.default_rng(0)
    squares = rng.standard_normal((_ROWS, d)) ** 2 @ variances
    costs = mechanism.costs(d, 1, 1 / mechanism.n_releases, mechanism._searches_of(n, d))
    terms = mechanism.terms(np.empty((0, d)), costs)
    search = mechanism.searches.get("row_norm")
    if search is not None:
        aim = aim_for_moments(n, mechanism.budget() / mechanism.n_releases)
        R = found_norm(np.sqrt(squares), search.bounds, aim, math.inf, rng)
        terms = replace(terms, row_norm=R)
    if "center" in mechanism.searches:
        terms = replace(terms, center=None)
    left = np.minimum(squares, terms.row_norm**2).sum() / squares.sum()
    rows: Any = _Expected(n * left * variances)
    size = edge(mechanism._OFF_DIAGONAL * terms.product_std, d)
    errors, above = [], []
    for _ in range(max(3, min(_DRAWS, int(_LARGEST / d**3)))):
        total = None if terms.costs.mean is None else mechanism.noisy_sum(rows, terms, rng)
        blocks = mechanism.column_blocks(d, None)
        columns = (mechanism.noisy_columns(rows, block, terms, rng) for block in blocks)
        found = mechanism.summary(columns, total, n, terms, None, np.float64)
        within = np.linalg.svd(found.components[:k, :k], compute_uv=False)
        least = float(within.min()) if len(within) == k else 0.0
        errors.append(math.sqrt(max(0.0, 1 - least**2)))
        values = found.singular_values**2
        traces = [float(found.scatter)] if mechanism._SYMMETRIC else None
        above.append(count_above(values, [values], traces, size, d) if size else len(values))
    return PrivacyPlan(float(mechanism.epsilon), float(np.mean(errors)), float(np.mean(above)))
