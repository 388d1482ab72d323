"""Synthetic streams, and ways to split rows over clients."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
import scipy.fft
from sklearn.utils import check_random_state

__all__ = ["make_power_law", "partition_clients"]


def _random_rotation(rows: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Multiply rows by a random orthogonal matrix: random signs and a cosine transform, twice.

    O(d log d) a row, no d x d matrix.
    """
    for sign in signs:
        rows = scipy.fft.dct(rows * sign, norm="ortho", axis=1)
    return rows


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
    n_features : int, default=400
    alpha : float, default=1.0
        Decay of the variances; 0 is white noise.
    random_state : int, RandomState instance or None, default=None
    return_components : int or None, default=None
        Return this many true principal directions as well.

    Returns
    -------
    X : ndarray of shape (n_samples, n_features)
        Rows of N(0, S diag(i^-alpha) S^T) for a random orthogonal S (Grammenos et al. 2020,
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
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} must be a positive integer, got {value!r}.")
    if not np.isfinite(alpha):
        raise ValueError(f"alpha must be finite, got {alpha!r}.")
    if return_components is not None and not (
        isinstance(return_components, Integral) and 0 <= return_components <= n_features
    ):
        raise ValueError(
            f"return_components must be None or an integer between 0 and n_features={n_features}, "
            f"got {return_components!r}."
        )
    rng = check_random_state(random_state)
    signs = rng.choice([-1.0, 1.0], size=(2, n_features))
    scale = np.arange(1, n_features + 1, dtype=np.float64) ** (-alpha / 2)
    X = _random_rotation(rng.standard_normal((n_samples, n_features)) * scale, signs)
    if return_components is None:
        return X
    return X, _random_rotation(np.eye(return_components, n_features), signs)


def partition_clients(
    y: Any,
    n_clients: int,
    *,
    method: str = "iid",
    concentration: float = 0.5,
    random_state: Any = None,
) -> np.ndarray:
    """Assign rows to clients.

    Parameters
    ----------
    y : array-like of shape (n,)
        Labels of the rows; "iid" uses only their number.
    n_clients : int
        At most n.
    method : {"iid", "label", "dirichlet"}, default="iid"
        "iid": equal shards at random. "label": rows sorted by label and cut into equal shards, so
        that a client sees one or two labels. "dirichlet": the shares of each label over the clients
        are drawn from a symmetric Dirichlet distribution.
    concentration : float, default=0.5
        Of the Dirichlet distribution: small is unlike, large is alike.
    random_state : int, RandomState instance or None, default=None

    Returns
    -------
    clients : ndarray of shape (n,)
        Numbers from 0 to n_clients - 1; every client has at least one row.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import partition_clients
    >>> partition_clients(["a", "b", "a", "b"], 2, method="label", random_state=0)
    array([0, 1, 0, 1])
    """
    y = np.asarray(y)
    if y.ndim != 1:
        raise ValueError(f"y must be 1-D, got shape {y.shape}.")
    if y.dtype.kind == "f" and np.isnan(y).any():
        raise ValueError("y must be labels without missing values, got NaN.")
    n = len(y)
    if not isinstance(n_clients, Integral) or not 1 <= n_clients <= n:
        raise ValueError(f"n_clients must be between 1 and n_samples={n}, got {n_clients!r}.")
    rng = check_random_state(random_state)
    shuffled = rng.permutation(n)
    clients = np.empty(n, dtype=np.intp)
    if method == "iid":
        clients[shuffled] = np.arange(n) * n_clients // n
    elif method == "label":
        by_label = shuffled[np.argsort(y[shuffled], kind="stable")]
        clients[by_label] = np.arange(n) * n_clients // n
    elif method == "dirichlet":
        if not 0 < concentration < np.inf:
            raise ValueError(f"concentration must be positive and finite, got {concentration!r}.")
        for label in np.unique(y):
            rows = shuffled[y[shuffled] == label]
            shares = rng.dirichlet(np.full(n_clients, concentration))
            if not np.isfinite(shares).all():  # underflow: the limit is all at one client
                shares = np.eye(n_clients)[rng.randint(n_clients)]
            bounds = np.round(np.cumsum(shares) * len(rows))
            clients[rows] = np.minimum(
                np.searchsorted(bounds, np.arange(len(rows)), side="right"), n_clients - 1
            )
        counts = np.bincount(clients, minlength=n_clients)
        for empty in np.flatnonzero(counts == 0):  # take a row from the largest
            row = shuffled[np.flatnonzero(clients[shuffled] == counts.argmax())[0]]
            counts[clients[row]] -= 1
            clients[row] = empty
            counts[empty] += 1
    else:
        raise ValueError(f"method must be one of 'iid', 'label', 'dirichlet', got {method!r}.")
    return clients
