"""Releases beside the eigenvalues of noise alone: warnings, and plans of what is to be spent."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone

from .._validation.checks import check_at_most_features, check_integer, float_array
from ..summary import Subspace
from ._private_searches import PrivacyBoundWarning, aim_for_moments, found_norm

# Quantile of the noise that a component has to exceed: 97 %.
_ABOVE = 1.3
# The same of u g + |u| |g| over |u|, which has a variance of about 3/2.
_FLUCTUATION = 2.3
# Normal rows whose norms stand for those of all rows.
_ROWS_OF_A_PLAN = 2000
# Cosine of a component with those across the means from which on it is one of them.
_SAME = 2 / 3
# Deviations of noise beyond which a row along the mean has variance of its own.
_EVIDENT = 2.0
# Length of a mean, in that of its noise, below which its direction says little.
FAR = 1.5
# Draws of the noise, and multiplications that all of them may take.
_DRAWS, _LARGEST = 20, 1e10


class PrivacyNoiseWarning(UserWarning):
    """A release, or some of its components, cannot be told from noise, and mean little."""


def edge(size: float, d: int, spike: float = 0.0) -> float:
    """Largest eigenvalue of symmetric d x d noise with entries of a size off the diagonal.

    2 size sqrt(d) (Wigner); with a spike x beyond size sqrt(d), which here is what the noise of the
    mean makes, x + size^2 d / x (Baik, Ben Arous, Peche). So is the largest singular value of noise
    without symmetry.
    """
    x = max(size * math.sqrt(d), spike)
    return x + size**2 * d / x if x else 0.0


def spike_of_mean(distance: float, std: float, d: int) -> float:
    """What the noise of a mean adds to the largest eigenvalue, in 97 of 100 cases less.

    A mean u, of length ``distance`` from the centre, that has noise g of deviation ``std`` leaves
    u g^T + g u^T of the product that is taken off. Its largest eigenvalue is u g + |u| |g|.
    """
    return distance * std * (math.sqrt(d) + _FLUCTUATION)


def spike_of_means(size: float, d: int, spike: float, n: int) -> float:
    """Largest eigenvalue along a mean of n releases that have lost their negative eigenvalues.

    Without these noise is b = 4 / (3 pi) w along any direction, for w = size sqrt(d), and about
    sqrt(b^2 + x^2 / 4) along a mean that makes a spike x, which adds up as all have it there.
    Beside it, products of this direction with others are n entries of sqrt(w^2 + x^2) / 2.
    """
    w = size * math.sqrt(d)
    b = 4 / (3 * math.pi) * w
    return n * b + edge(math.hypot(w, spike) / 2, n, n * (math.hypot(b, spike / 2) - b))


def noise_of_means(
    std: float, d: int, n_rows: np.ndarray, row_norm: float, n_times: int = 1
) -> float:
    """Largest eigenvalue of what the noise of the means of K releases adds to their merge.

    Means of n_k rows have noise of deviation ``std`` / n_k, and less where it is longer than
    ``row_norm``, to which they are shortened. So between them are the products of a d x K matrix of
    normal numbers, times diag(std / sqrt(n_k)), about the mean with weights n_k. With a and f the
    spectral and the Frobenius norm of the other factors its norm is about a sqrt(d) + f (Chevet):
    of n rows each, std (sqrt(d) + sqrt(K - 1)) / sqrt(n).
    """
    variances = np.minimum(std, n_rows * (row_norm / math.sqrt(d))) ** 2 / n_rows
    left = variances @ (n_times - n_rows / n_rows.sum())  # of n_times releases of each
    f = math.sqrt(max(0.0, float(left)))
    return (min(f, math.sqrt(variances.max())) * math.sqrt(d) + f) ** 2


def across_mean(summary: Subspace, direction: np.ndarray) -> Subspace:
    """A summary without a direction, and without what varies with it.

    The largest second moment below that of the summary which has nothing along the direction: a
    Schur complement. Of x v v^T, which the noise of a mean makes, nothing is left.
    """
    rows = summary.components * summary.singular_values[:, None]
    y = rows @ direction
    y /= float(np.linalg.norm(y)) or 1.0
    lost = y @ rows
    _, s, V = np.linalg.svd(rows - np.outer(y, lost), full_matrices=False)
    s, V = s[: len(rows) - 1], V[: len(rows) - 1]
    scatter = max(summary.scatter - float(lost @ lost), float(s @ s))
    return Subspace._trusted(V, s, summary.mean, summary.n_samples, scatter, True)


def n_within(components: np.ndarray, others: np.ndarray, lean: float) -> int:
    """Number of first components that are within the span of others, which are across means.

    That is, with a cosine of 2/3, and more where means lean by their noise, of a length of ``lean``
    times their own: what is across them is then not the same.
    """
    cosines = np.linalg.norm(components @ others.T, axis=1)
    return int(np.argmax(np.r_[cosines < _SAME + min(lean, 1.0) ** 2 / 2, True]))


def edge_of_sum(
    largest: float, spectra: list[np.ndarray], d: int, of_spikes: float = 0.0, n_times: int = 1
) -> float:
    """Largest eigenvalue of a sum of noise matrices that have lost their negative eigenvalues.

    ``largest`` is that of each before, ``spectra`` what is left of them, ``n_times`` each. With K
    of mean b and variance v (of all d eigenvalues), as if they were free: K b + L - 2 b +
    2 sqrt((K - 1) v), exact for projections. By simulation 2 to 25 % too large for K from 2 to 50,
    d from 10 to 100. It is at least ``of_spikes``, that along a mean which all have: see
    `spike_of_means`.
    """
    K = n_times * len(spectra)
    if K == 1:
        return largest
    means = [values.sum() / d for values in spectra]
    b = float(np.mean(means))
    v = float(np.mean([values @ values / d for values in spectra]) - np.mean(np.square(means)))
    v = max(v, 0.0)  # rounding may leave less than nothing
    within = largest - 2 * b + 2 * math.sqrt((K - 1) * v)
    return max(K * b + max(largest - b, within), of_spikes)


def bulk(values: np.ndarray, n_above: int, d: int, scatter: float) -> float:
    """Median of all eigenvalues of a release but the largest ones, at least 0.

    Variances that the noise hides lift its eigenvalues by their mean. ``values`` are the positive
    ones, or, of many columns, the largest ones, where the trace ``scatter`` tells of the others.
    """
    middle = n_above + (d - n_above) // 2
    if middle < len(values):
        return float(values[middle] + values[middle - 1 + (d - n_above) % 2]) / 2
    rest = (scatter - float(values.sum())) / (d - n_above)
    return max(0.0, rest) if len(values) < d // 2 else 0.0


def fluctuating(edge: float, d: int, quantile: float = 1.0) -> float:
    """What the largest of d eigenvalues of noise stays below in 19 of 20 cases.

    It is edge + d^(-2/3) / 2 of that times a number of Tracy's and Widom's distribution, whose
    quantiles are 1 at 95 % and 1.3 at 97 %.
    """
    return edge * (1 + quantile * d ** (-2 / 3) / 2)


def without_noise_of_mean(
    M: np.ndarray, mean: np.ndarray, n: int, size: float, std: float
) -> tuple[np.ndarray, np.ndarray]:
    """A second moment about a noisy mean without most of the mean's noise, and such a mean.

    Parameters
    ----------
    M : ndarray of shape (d, d)
        Second moment of n rows about the centre, with symmetric noise of ``size`` off the diagonal.
    mean : ndarray of shape (d,)
        Mean of the rows less the centre, with noise of deviation ``std`` on each entry.
    n : int
    size, std : float

    Returns
    -------
    moment : ndarray of shape (d, d)
        M - n m m^T, m the second result.
    mean : ndarray of shape (d,)
        The mean about which the row of M - n m m^T in the direction of the mean has no more noise
        than others, unless it shows variance.

    Notes
    -----
    Noise g of a mean u leaves - n (u g^T + g u^T): a row and a column in the direction of the mean
    with noise n |u| ``std``, which have an eigenvalue of their own once that is beyond ``size``,
    and hide all below. M has none of it. So a shorter row is one about another mean, which M tells,
    and nothing of M is lost in a merge. A share of the row is kept where it shows variance in this
    direction: by its length over that of noise (James, Stein), in what is beyond the noise
    across the mean.
    """
    d, far = len(mean), float(np.linalg.norm(mean))
    about = M - n * np.outer(mean, mean)
    spread = n * std * math.sqrt(max(0.0, far**2 - d * std**2))
    e, noise = mean / far, math.hypot(size, spread)
    row = about @ e
    variance = float(e @ row)
    row -= variance * e
    kept, within = 0.0, np.zeros(d)
    if variance > 0:
        across = about - np.outer(e, row) - np.outer(row, e) - variance * np.outer(e, e)
        across -= np.outer(row, row) / (n * far**2)  # n g g^T, if the row is noise
        values, V = np.linalg.eigh(across)
        V = V[:, values > fluctuating(edge(size, d), d, _ABOVE) + max(0.0, np.median(values))]
        within = V @ (V.T @ row)
        # the variance has noise of twice the deviation
        length = math.hypot(variance / 2, float(np.linalg.norm(within))) / noise
        kept = max(0.0, 1 - ((math.sqrt(1 + V.shape[1]) + _EVIDENT) / length) ** 2)
    least = size / noise * math.sqrt(max(0.0, 1 - n * std**2 * math.sqrt(d) / size))
    factor = min(1.0, least * math.sqrt(1 + 2 * kept))
    shorter = factor * row + max(0.0, least + (1 - least) * kept - factor) * within
    shorter += variance * (least**2 + (1 - least**2) * kept) * e
    product = M @ e - shorter  # n (m e) m
    square = float(product @ e)
    if not square > 0:
        return about, mean
    mean = product / math.sqrt(n * square)
    return M - n * np.outer(mean, mean), mean


def count_above(
    merged: np.ndarray,
    spectra: list[np.ndarray],
    scatters: list[float] | None,
    noise: float,
    d: int,
    of_spikes: float = 0.0,
    within: np.ndarray | None = None,
    n_times: int = 1,
) -> int:
    """Eigenvalues of merged releases beyond the edge of noise; those before are taken off it.

    ``noise`` is the edge of each release, ``spectra`` are their eigenvalues and ``scatters`` their
    traces, ``n_times`` each; None where singular values stand for them. With j components found,
    d - j are left to the noise. ``of_spikes`` is that of `edge_of_sum`. ``within`` says of which
    components most is in the releases, and not in the spread of their means; None: all.
    """
    K = n_times * len(spectra)
    if scatters and K > 1 and all(len(values) >= d - 1 for values in spectra):
        # none was negative, but one along a mean: noise as it was drawn
        noise *= math.sqrt(K)
        spectra, scatters, within, K, n_times = [merged], [n_times * sum(scatters)], None, 1, 1
    for found, value in enumerate(merged[: d - 1]):
        here = found if within is None else int(within[:found].sum())
        lift = 0.0
        if scatters is not None:
            pairs = zip(spectra, scatters, strict=True)
            lift = float(np.mean([bulk(s, here, d, t) for s, t in pairs]))
        edge = noise * math.sqrt((d - found) / d)
        if K > 1:
            about = [np.pad(s[here:], (0, d - max(len(s), here))) - lift for s in spectra]
            edge = edge_of_sum(edge, about, d - here, of_spikes, n_times)
            lift *= K
        if value <= fluctuating(edge, d - found, _ABOVE) + lift:
            return found
    return min(len(merged), d - 1)


def noise_message(found: float, noise: float, d: int) -> str | None:
    """Text of a warning if a largest eigenvalue may be one of noise alone, else None."""
    if not noise or found > fluctuating(noise, d):
        return None
    return (
        "The release cannot be told from its noise: its signal-to-noise ratio, the largest "
        f"eigenvalue over that of noise alone, is {found / noise:.2g}. Little is left of the "
        "components; take more rows, fewer features, a smaller row_norm or a larger epsilon."
    )


def beyond_message(n_above: int, n_components: int) -> str:
    """Text of a warning that some components cannot be told from noise."""
    first = n_above + 1
    those = (
        f"Components {first} to {n_components}" if first < n_components else f"Component {first}"
    )
    return (
        f"{those} of {n_components} cannot be told from noise: n_components_above_noise_ is "
        f'{n_above}. Take fewer components, or n_components="above_noise".'
    )


# --------------------------------------------------------------------- plans


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
    """What a mechanism asks of clipped rows: their second moment, and a sum of zero."""

    def __init__(self, scatter: np.ndarray):
        self.scatter, self.n_features = scatter, len(scatter)

    def products(self, columns: slice) -> np.ndarray:
        """Columns of the second moment."""
        return self.scatter[:, columns].copy()

    def sum(self) -> np.ndarray:
        """Sum of the rows."""
        return np.zeros(self.n_features)


def planned(mechanism: Any, n: int, d: int, n_components: int, spectrum: Any) -> PrivacyPlan:
    """The plan of a mechanism, with those of half and twice its epsilon."""
    for name, number in ("n", n), ("d", d), ("n_components", n_components):
        check_integer(name, number)
    check_at_most_features(n_components, d)
    mechanism.validate()
    if mechanism.row_norm == "data":
        raise ValueError("row_norm must be a number or 'private' for a plan, got 'data'.")
    variances = _variances(mechanism, d, spectrum)
    _warn_of_few_rows(mechanism, n)

    def of(factor: float) -> PrivacyPlan:
        other = clone(mechanism).set_params(epsilon=factor * mechanism.epsilon)
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
    entries = rng.standard_normal((_ROWS_OF_A_PLAN, d)) ** 2
    squares = entries @ variances
    costs = mechanism.costs(d, 1, 1 / mechanism.n_releases, mechanism._searches_of(n, d))
    terms = mechanism.terms(np.empty((0, d)), costs)
    search, shaped = mechanism.searches.get("row_norm"), mechanism._shaped
    if search is not None:
        budget = mechanism.budget() / mechanism.n_releases
        aim = aim_for_moments(n, d, budget, not shaped)
        R = found_norm(np.sqrt(squares), search.bounds, aim, math.inf, rng)
        terms = replace(terms, row_norm=R)
    if "center" in mechanism.searches:
        terms = replace(terms, center=None)
    # longer rows, of which less is left, are those far along strong directions
    left = np.minimum(squares, terms.row_norm**2) / squares @ entries / entries.sum(axis=0)
    level = np.unique(variances, return_inverse=True)[1]  # equal variances lose equal shares
    left = (np.bincount(level, left) / np.bincount(level))[level]
    scatter, found_terms = np.diag(n * left * variances), terms
    errors, above = [], []
    for _ in range(max(3, min(_DRAWS, int(_LARGEST / d**3)))):
        terms, rows = found_terms, _Expected(scatter)
        if shaped:
            terms = mechanism._second_look(rows, terms, rng)
            rows = _Expected(terms.shape.matrix.T @ scatter @ terms.shape.matrix)
            longer = math.sqrt(np.trace(rows.scatter) / np.trace(scatter))
            terms = replace(terms, row_norm=longer * terms.row_norm)
        norm = mechanism.norm_of_noise(terms, n, d)
        std = replace(found_terms, row_norm=norm).product_std
        size = edge(mechanism._OFF_DIAGONAL * std, d)
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
