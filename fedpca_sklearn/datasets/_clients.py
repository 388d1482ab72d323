"""Ways to split rows over clients."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from .._validation.checks import check_integer, is_real


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
        Seed of the draws; an int gives the same clients in every call.

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
    if not len(y):
        raise ValueError("y must hold at least one label, got none.")
    if y.dtype.kind == "f" and np.isnan(y).any():
        raise ValueError("y must be labels without missing values, got NaN.")
    n = len(y)
    check_integer("n_clients", n_clients, 1, n)
    if not (is_real(concentration) and 0 < concentration < np.inf):
        raise ValueError(f"concentration must be positive and finite, got {concentration!r}.")
    rng = check_random_state(random_state)
    shuffled = rng.permutation(n)
    clients = np.empty(n, dtype=np.intp)
    if method == "iid":
        clients[shuffled] = np.arange(n) * n_clients // n
    elif method == "label":
        by_label = shuffled[np.argsort(y[shuffled], kind="stable")]
        clients[by_label] = np.arange(n) * n_clients // n
    elif method == "dirichlet":
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
