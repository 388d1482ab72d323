"""The majority among several parties, by how well each agrees with the others."""

from __future__ import annotations

import numpy as np

# Steps in which the majority is found, at most.
STEPS = 20


def agreement_with_majority(pairs: np.ndarray, n_core: int) -> tuple[np.ndarray, np.ndarray]:
    """Median agreement of each party with the ``n_core`` that agree best, and who these are.

    A minority that agrees within itself alone changes no median.

    Parameters
    ----------
    pairs : ndarray of shape (s, s)
        Agreement of i with j, s > 1; that with itself is not looked at.
    n_core : int
        At least 1.

    Returns
    -------
    typical : ndarray of shape (s,)
    core : ndarray of shape (n_core,)
    """
    pairs = pairs.copy()
    np.fill_diagonal(pairs, np.nan)
    core, typical = np.arange(len(pairs)), np.zeros(len(pairs))
    for _ in range(STEPS):
        chosen = pairs[:, core]
        alone = np.isnan(chosen).all(axis=1)  # a core of one
        typical = np.where(alone, np.inf, 0.0)
        typical[~alone] = np.nanmedian(chosen[~alone], axis=1)
        before, core = core, np.sort(np.argsort(-typical, kind="stable")[:n_core])
        if np.array_equal(before, core):
            break
    return typical, core
