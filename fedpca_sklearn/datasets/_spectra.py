"""Rows with a spectrum that is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from .._kernels.rotations import random_rotation
from .._validation.checks import check_integer, check_number, float_array, nonnegative_float


def make_power_law(
    n_samples: int = 4000,
    n_features: int = 400,
    *,
    alpha: float = 1.0,
    random_state: Any = None,
    return_components: int | None = None,
):
    """Zero-mean Gaussian rows whose covariance has the spectrum i^-alpha (Synth(alpha)).

    Parameters
    ----------
    n_samples : int, default=4000
        Number of rows.
    n_features : int, default=400
        Number of columns, d.
    alpha : float, default=1.0
        Decay of the variances; 0 is white noise.
    random_state : int, RandomState instance or None, default=None
        Seed of the rotation S and of the rows; an int gives the same rows in every call.
    return_components : int or None, default=None
        Return this many true principal directions as well.

    Returns
    -------
    X : ndarray of shape (n_samples, n_features)
        Rows of N(0, S diag(i^-alpha) S^T) for a random orthogonal S (Grammenos et al. 2019,
        section 4). S is a product of random signs and cosine transforms, so that no d x d matrix
        is formed.
    components : ndarray of shape (return_components, n_features)
        The first columns of S, as rows. Only with ``return_components``.

    Examples
    --------
    >>> from fedpca_sklearn import make_power_law
    >>> X = make_power_law(10_000, 50, alpha=2.0, random_state=0)
    >>> print(X.var(axis=0).sum().round(2))  # sum of 1 / i^2 up to 50: 1.63
    1.61
    """
    for name, value in (("n_samples", n_samples), ("n_features", n_features)):
        check_integer(name, value)
    alpha = check_number("alpha", alpha)
    if return_components is not None:
        check_integer("return_components", return_components, 0, n_features)
    rng = check_random_state(random_state)
    signs = rng.choice([-1.0, 1.0], size=(2, n_features))
    scale = np.arange(1, n_features + 1, dtype=np.float64) ** (-alpha / 2)
    X = random_rotation(rng.standard_normal((n_samples, n_features)) * scale, signs)
    if return_components is None:
        return X
    return X, random_rotation(np.eye(return_components, n_features), signs)


def make_spiked(
    n_samples: int = 1000,
    n_features: int = 200,
    *,
    spikes: Any = (20.0, 10.0, 5.0),
    noise_variance: float = 1.0,
    random_state: Any = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Zero-mean Gaussian rows with a few strong directions over white noise.

    Parameters
    ----------
    n_samples : int, default=1000
        Number of rows.
    n_features : int, default=200
        Number of columns, d.
    spikes : array-like of shape (k,), default=(20.0, 10.0, 5.0)
        Variance along each of k <= d directions, above that of the noise.
    noise_variance : float, default=1.0
        Variance of the noise along every direction.
    random_state : int, RandomState instance or None, default=None
        Seed of the directions and of the rows; an int gives the same rows in every call.

    Returns
    -------
    X : ndarray of shape (n_samples, n_features)
        Rows of N(0, V^T diag(spikes) V + noise_variance I).
    components : ndarray of shape (k, n_features)
        V, random orthonormal rows. It costs O(k d log d), and no d x d matrix is formed.

    Notes
    -----
    The spiked covariance model of Johnstone (2001). With d / n = g and noise of variance 1 a spike
    s is seen by PCA only above sqrt(g), and then at a squared cosine of (1 - g / s^2) / (1 + g / s)
    to its direction (Paul 2007).

    References
    ----------
    .. [1] I. M. Johnstone, "On the distribution of the largest eigenvalue in principal components
       analysis", Annals of Statistics 2001.
    .. [2] D. Paul, "Asymptotics of sample eigenstructure for a large dimensional spiked covariance
       model", Statistica Sinica 2007.

    Examples
    --------
    >>> from sklearn.decomposition import PCA
    >>> from fedpca_sklearn import make_spiked
    >>> X, V = make_spiked(2000, 100, spikes=[9, 4], random_state=0)
    >>> print(((PCA(2).fit(X).components_ * V).sum(axis=1) ** 2).round(3))  # limits: .994, .985
    [0.992 0.978]
    """
    for name, value in (("n_samples", n_samples), ("n_features", n_features)):
        check_integer(name, value)
    variances = float_array("spikes", spikes, 1, np.float64)
    if len(variances) > n_features or np.any(variances < 0):
        raise ValueError(
            f"spikes must be at most n_features={n_features} non-negative numbers, got {spikes!r}."
        )
    noise = np.sqrt(nonnegative_float("noise_variance", noise_variance))
    rng = check_random_state(random_state)
    signs = rng.choice([-1.0, 1.0], size=(2, n_features))
    V = random_rotation(np.eye(len(variances), n_features), signs)
    scores = rng.standard_normal((n_samples, len(variances))) * np.sqrt(variances)
    return scores @ V + noise * rng.standard_normal((n_samples, n_features)), V
