"""What may be shown of single rows: how many of them are in each cell of a plane, with noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._validation.checks import is_integer
from ._gaussian import DiscreteGaussian
from ._ledger import Accounts, PrivacySpent
from ._mechanism import Mechanism, seeds_of

# Replaced, a row leaves one cell and comes into another.
_SENSITIVITY = math.sqrt(2)
# Half of the width of the plane, in standard deviations of the scores that were released.
_DEVIATIONS = 3.0
# Rows of a cell over the noise on them, if all cells had as many; cells along an axis.
_ABOVE, _MOST_CELLS = 3.0, 40


@dataclass(frozen=True, eq=False)
class ScoreCounts:
    """Rows in the cells of the plane of two components, with noise: `private_scores` returns it.

    Parameters
    ----------
    counts : ndarray of shape (b, b)
        Rows in each cell of the first component (axis 0) and the second, with noise: also below 0.
    edges : tuple of two ndarray of shape (b + 1,)
        Ends of the cells. Rows beyond are in the outermost ones.
    std : float
        Standard deviation of the noise on each count.
    spent : PrivacySpent
        (epsilon, delta) of the counts, or of all releases in the ledger of the mechanism.
    """

    counts: np.ndarray
    edges: tuple[np.ndarray, np.ndarray]
    std: float
    spent: PrivacySpent


def private_scores(
    estimator: Any,
    X: Any,
    mechanism: Mechanism,
    *,
    components: Sequence[int] = (0, 1),
    client: Any = 0,
    random_state: Any = None,
) -> ScoreCounts:
    """Count the rows in the cells of the plane of two components, with noise.

    Scores of single rows tell about them. How many rows are where can be shown instead, at a cost
    beside that of the components.

    Parameters
    ----------
    estimator : estimator
        Fitted with a mechanism: its components, mean and variances are seen by everybody.
    X : {array-like, sparse matrix} of shape (n, d)
        Rows of one client.
    mechanism : Mechanism
        Epsilon, delta and the ledger of the counts; its other parameters do not matter.
    components : sequence of two int, default=(0, 1)
        Which components, from 0.
    client : int or str, default=0
        Whose rows they are, in a ledger.
    random_state : int, RandomState or None, default=None
        Of the noise. None: from the operating system; anything else in tests only.

    Returns
    -------
    counts : ScoreCounts
        Counts, ends of the cells, and what they have cost.

    Notes
    -----
    The plane ends at three standard deviations of the released scores, and has at most 40 cells
    along an axis and so few that rows spread evenly would be three times the noise in each: both
    follow from what is public. A replaced row, which may be any, leaves one cell and comes into
    another: the counts move by sqrt(2) in the Euclidean norm. They are integers, and so is the
    noise on the grid of `DiscreteGaussian`, so that no rounding tells of a row. O(n d) time.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import AnalyzeGauss, FederatedPCA
    >>> from fedpca_sklearn.privacy import private_scores
    >>> X, y = load_digits(return_X_y=True)
    >>> private = AnalyzeGauss(4.0, 1e-5, row_norm=50, center=[5.0] * 64)
    >>> pca = FederatedPCA(2, mechanism=private, n_clients=1, random_state=0).fit(X)
    >>> found = private_scores(pca, X, AnalyzeGauss(1.0, 1e-5, row_norm=1), random_state=0)
    >>> found.counts.shape, round(found.std, 1), round(found.spent.epsilon, 3)
    ((10, 10), 5.3, 1.0)
    """
    check_is_fitted(estimator)
    if not hasattr(estimator, "privacy_spent_"):  # whatever its parameter is now
        raise ValueError(
            "estimator must be fitted with a mechanism, got one that has no privacy_spent_: its "
            "components would tell about the rows."
        )
    mechanism._validate_params()
    at = two_components(estimator, components)
    scores = np.asarray(estimator.transform(X), dtype=np.float64)[:, at]
    noise, mu2 = DiscreteGaussian(), mechanism.budget() / mechanism.n_releases
    std = _SENSITIVITY / math.sqrt(noise.gaussian_part(mu2, _MOST_CELLS**2))
    # so that even counts are above the noise
    even = math.sqrt(len(scores) / (_ABOVE * std)) if std else math.inf
    size = int(min(max(even, 2.0), _MOST_CELLS))
    half = _DEVIATIONS * np.sqrt(np.asarray(estimator.explained_variance_, dtype=float)[at])
    first, second = (np.linspace(-end, end, size + 1) for end in half)
    accounts = Accounts()
    accounts.charge(accounts.check([client], mechanism, mu2), mechanism, mu2)
    counts = counted(scores, (first, second))
    noisy = noise.noisy(counts, std, np.random.default_rng(seeds_of(random_state)))
    return ScoreCounts(noisy, (first, second), std, accounts.spent())


def two_components(estimator: Any, components: Sequence[int]) -> list[int]:
    """Positions of two components of a fitted estimator."""
    check_is_fitted(estimator)
    most, found = len(estimator.components_), list(components)
    if len(found) != 2 or not all(is_integer(i) and 0 <= i < most for i in found):
        raise ValueError(f"components must be two of 0 to {most - 1}, got {components!r}.")
    return found


def counted(scores: np.ndarray, edges: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Rows in each cell; each row is in one, whatever its scores are."""
    size = len(edges[0]) - 1
    first, second = (
        np.clip(np.searchsorted(ends[1:-1], scores[:, i], side="right"), 0, size - 1)
        for i, ends in enumerate(edges)
    )
    flat = np.bincount(first * size + second, minlength=size**2)
    return flat.reshape(size, size).astype(float)
