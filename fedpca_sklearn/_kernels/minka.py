"""Evidence for a number of components: Minka's approximation, from eigenvalues alone."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

# As in scikit-learn: a variance below this is none, and the noise has at least as much.
_LEAST = 1e-15
_EPS = np.finfo(np.float64).eps


def minka_rank(spectrum: np.ndarray, n_samples: float) -> int:
    """Number of components with the most evidence, from 1 to d - 1; 1 for d = 1.

    The evidence is that of `minka_evidence`; of equal ones the fewest components.
    """
    if len(spectrum) == 1:
        return 1
    return 1 + int(np.argmax(minka_evidence(spectrum, n_samples)))


def minka_evidence(spectrum: np.ndarray, n_samples: float) -> np.ndarray:
    """Logarithm of the evidence for 1 to d - 1 components, Minka (2000), eq. 30 and 31.

    Parameters
    ----------
    spectrum : ndarray of shape (d,)
        Variances along all d directions, decreasing, d > 1.
    n_samples : float
        Rows that they are from.

    Returns
    -------
    evidence : ndarray of shape (d - 1,)
        As scikit-learn's, in time and memory O(d^2) for all of them: products over pairs of
        directions are sums over a triangle of logarithms. Minus infinity where the last component
        has no variance. Equal variances count as an eps apart.
    """
    d, log_n = len(spectrum), np.log(n_samples)
    evidence = np.full(d - 1, -np.inf)
    last = int(np.sum(spectrum[:-1] >= _LEAST))
    if not last:
        return evidence
    ranks = np.arange(1, last + 1)
    kept, rest = spectrum[:last], np.cumsum(spectrum[::-1])[::-1][1 : last + 1]
    noise = np.maximum(rest / (d - ranks), _LEAST)
    logs, log_noise = np.log(kept), np.log(noise)

    halves = (d - ranks + 1) / 2
    uniform = np.cumsum(gammaln(halves) - np.log(np.pi) * halves - np.log(2.0))
    pairs = d * ranks - ranks * (ranks + 1) / 2
    apart = _log_differences(kept, spectrum)
    within = np.cumsum(np.triu(apart[:, :last], 1).sum(axis=0)) - (ranks - 1) * np.cumsum(logs)
    from_noise = np.tril(_log_differences(kept, noise).T).sum(axis=1)
    outside = from_noise - np.cumsum(logs)
    curvature = (
        np.cumsum(np.triu(apart, 1).sum(axis=1))
        + within
        + (d - ranks) * (outside - ranks * log_noise)
        + pairs * log_n
    )
    evidence[:last] = (
        uniform
        - n_samples / 2 * (np.cumsum(logs) + (d - ranks) * log_noise)
        + np.log(2 * np.pi) * (pairs + ranks) / 2
        - curvature / 2
        - ranks * log_n / 2
    )
    return evidence


def _log_differences(larger: np.ndarray, smaller: np.ndarray) -> np.ndarray:
    """Logarithms of all differences; equal numbers are an eps apart."""
    least = _EPS * larger[:, None]
    return np.log(np.maximum(larger[:, None] - smaller, least))
