"""What leaving out parts of the rows says about statistics of all: spread, and angles."""

from __future__ import annotations

import numpy as np

# Draws of the largest root, of which a quantile is taken.
_DRAWS = 4000


def deviations_of(errors: np.ndarray, shares: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Deviations whose sum of squares is the variance of a statistic.

    Parameters
    ----------
    errors : ndarray of shape (m, q)
        By how much q statistics would move if the rows of a group were all like one of its parts.
    shares : ndarray of shape (m,)
        Share of a part in the rows of its group.
    groups : ndarray of shape (m,)
        Group of each part, 0, 1, ...; parts of one group, at least two, are samples of the same.

    Returns
    -------
    deviations : ndarray of shape (m, q)
        From the mean of the group, scaled.
    """
    member, free = _members(groups)
    means = (member * shares) @ errors
    return np.sqrt(shares / free[groups])[:, None] * (errors - means[groups])


def deviations_of_unlike(errors: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """The same of parts that differ by more than their rows, as sites with means of their own.

    A part counts by its share, not by the root of it, as more of its rows do not tell more of other
    parts. Its square is divided by the share of it that is expected to be left beside the mean of
    all, for parts of the same variance or for one that falls with the rows, whichever is less (a
    jackknife of MacKinnon and White, 1985, with leverages).
    """
    left = np.minimum(1 - shares, 1 - 2 * shares + shares @ shares)
    return (shares / np.sqrt(left))[:, None] * (errors - shares @ errors)


def freedom_of_unlike(shares: np.ndarray) -> float:
    """Degrees of freedom of their sum of squares, for parts of the same variance.

    Of the quadratic form, by Satterthwaite (Bell and McCaffrey 2002); m - 1 for equal shares.
    """
    D = deviations_of_unlike(np.eye(len(shares)), shares)
    gram = D @ D.T
    return float(np.trace(gram) ** 2 / np.sum(gram**2))


def freedom_of(squares: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Degrees of freedom of a sum of squared deviations, by Satterthwaite; of one group m - 1.

    Parameters
    ----------
    squares : ndarray of shape (m, q)
    groups : ndarray of shape (m,)

    Returns
    -------
    freedom : ndarray of shape (q,)
    """
    member, free = _members(groups)
    of_groups = member @ squares
    uncertain = np.sum(of_groups**2 / free[:, None], axis=0)
    freedom = np.full(len(uncertain), float(free.sum()))
    return np.divide(squares.sum(axis=0) ** 2, uncertain, out=freedom, where=uncertain > 0)


def _members(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which parts are in each group, and how many less one."""
    member = groups == np.arange(groups.max() + 1)[:, None]
    return member, member.sum(axis=1) - 1


def sine_bound(deviations: np.ndarray, freedom: float, confidence: float) -> float:
    """Quantile of the sine of the largest angle, from deviations of its tangents.

    Parameters
    ----------
    deviations : ndarray of shape (m, p, k)
        Tangents of k directions to p others; the sum of their outer products estimates the
        covariance of the p k numbers.
    freedom : float
        Degrees of freedom of the estimate; fewer than 2 are taken for 2.
    confidence : float in (0, 1)

    Returns
    -------
    sine : float
        From draws: the tangents are normal, of a few dimensions less than p k where these are
        unlike, and their products with each other a Wishart matrix. What it should be is known up
        to the error of an estimate with the degrees of freedom: its eigenvalues are spread too far,
        which is undone, and its size is off by the root of a chi-square. For k = 1 that is F.
    """
    if deviations.shape[2] > deviations.shape[1]:
        deviations = deviations.transpose(0, 2, 1)
    (_, p, k), f = deviations.shape, max(freedom, 2.0)
    second = np.einsum("mij,mik->jk", deviations, deviations)
    trace = float(np.trace(second))
    if not trace > 0:
        return 0.0
    flat = deviations.reshape(len(deviations), -1)
    of_square = float(np.sum((flat @ flat.T) ** 2)) - trace**2 / f
    of_square *= f**2 / ((f - 1) * (f + 2))  # unbiased, for normal deviations
    dimensions = trace**2 / max(of_square, trace**2 / (p * k))
    rows = max(k, dimensions * float(np.sum(second**2)) / trace**2)
    rng = np.random.default_rng(0)
    L = np.sqrt(_shrunk(np.linalg.eigvalsh(second), rows * f))[:, None] * _factors(rng, rows, k)
    largest = np.linalg.eigvalsh(L @ L.transpose(0, 2, 1))[:, -1]
    largest /= rng.chisquare(rows * f, _DRAWS) / (rows * f)
    square = float(np.quantile(largest, confidence))
    return float(np.sqrt(square / (1 + square)))


def _shrunk(values: np.ndarray, freedom: float) -> np.ndarray:
    """Eigenvalues of an estimated covariance, nearer to each other by what its errors spread them.

    Towards their mean, by the share that the error of a Wishart matrix has in their variance
    (Ledoit and Wolf 2004).
    """
    mean = float(values.mean())
    spread = float(np.sum((values - mean) ** 2))
    error = (float(values @ values) + float(values.sum()) ** 2) / freedom
    return mean + (values - mean) * max(0.0, 1 - error / spread if spread > 0 else 0.0)


def _factors(rng: np.random.Generator, freedom: float, order: int) -> np.ndarray:
    """Triangular factors of Wishart matrices with the mean 1."""
    L = np.tril(rng.standard_normal((_DRAWS, order, order)), -1)
    at = np.arange(order)
    L[:, at, at] = np.sqrt(rng.chisquare(freedom - at, (_DRAWS, order)))
    return L / np.sqrt(freedom)
