"""Rows of a subspace that moves, incomplete and with outliers."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.utils import Bunch, check_random_state

from .._kernels.rotations import RandomWalk, SteadyRotation
from .._validation.checks import check_integer, check_number, float_array, nonnegative_float
from ..metrics import subspace_distance

# Default speed of each model of `make_subspace_stream`.
_DELTAS = {"walk": 4e-5, "rotation": 1e-4, "piecewise": 100.0}


def make_subspace_stream(
    n_samples: int = 3000,
    n_features: int = 1000,
    n_components: int = 30,
    *,
    model: str = "walk",
    delta: float | None = None,
    change_points: Any = None,
    variances: Any = None,
    noise_std: float = 0.0,
    missing: float = 0.1,
    missing_pattern: str = "bernoulli",
    outliers: float = 0.0,
    outlier_pattern: str = "bernoulli",
    outlier_range: tuple[float, float] = (10.0, 25.0),
    random_state: Any = None,
) -> Bunch:
    """Rows near a subspace that changes over time, with missing entries and outliers.

    Parameters
    ----------
    n_samples : int, default=3000
        Rows, one after another in time.
    n_features : int, default=1000
        Number of columns, d.
    n_components : int, default=30
        Dimension of the subspace.
    model : {"walk", "rotation", "piecewise"}, default="walk"
        "walk": the subspace of a row is that of the row before, rotated by exp(-delta B_t) for a
        random skew-symmetric B_t, drawn anew for each row, as in [1]_. "rotation": one B for all
        rows, so that the subspace of row t is that of row 0 rotated by exp(-t delta B).
        "piecewise": constant but for a rotation by exp(-delta B) at each of ``change_points``.
    delta : float, default=None
        None: 4e-5 for "walk", 1e-4 for "rotation", 100 for "piecewise", after which the subspace
        has nothing to do with the one before. B has the law of (G - G^T) / 2 with standard normal
        G: small rotations turn directions by about delta sqrt(n_features / 2).
    change_points : sequence of int, default=None
        First rows of new subspaces, for "piecewise" only. None: the middle.
    variances : array-like of shape (n_components,), default=None
        Of the coefficients, which are uniformly distributed. None: ones.
    noise_std : float, default=0.0
        Of white noise on all entries.
    missing : float in [0, 1], default=0.1
        Share of the entries that are missing (NaN).
    missing_pattern : {"bernoulli", "moving"}, default="bernoulli"
        "bernoulli": each entry by itself. "moving": an object over neighbouring features, which
        covers that share of a row and moves on by half its length every five rows.
    outliers : float in [0, 1], default=0.0
        Share of the entries to which an outlier is added.
    outlier_pattern : {"bernoulli", "moving"}, default="bernoulli"
        Which entries have outliers, as in ``missing_pattern``.
    outlier_range : tuple of float, default=(10.0, 25.0)
        Bounds of the absolute values of outliers, uniformly distributed, of either sign.
    random_state : int, RandomState instance or None, default=None
        Seed of all draws; an int gives the same stream in every call.

    Returns
    -------
    stream : Bunch
        ``X`` (ndarray of shape (n_samples, n_features), NaN where missing), ``low_rank`` (without
        noise), ``sparse`` (the outliers, also where missing), ``missing`` and ``outliers`` (bool
        masks), ``change_points`` (tuple), ``subspace_at(t)``, the orthonormal basis of row t, of
        shape (n_components, n_features), and ``subspace_changes(batch_size)``, the sines between
        the leading singular vectors of consecutive batches of ``low_rank``: Delta_j of [1]_, and
        their maximum Delta_tv.

    Notes
    -----
    B is diagonalised by a fast random rotation (see `make_power_law`) and has eigenvalues drawn
    from the semicircle law, to which those of (G - G^T) / 2 tend; each B_t of "walk" has a rotation
    of its own, and the same eigenvalues. No d x d matrix. Time O(n d log d), and O(n k d log d) for
    "walk", where ``subspace_at(t)`` repeats up to sqrt(n) steps.

    With the default sizes, batches of 60 rows and delta 4e-5 the subspace of "walk" changes by .010
    from batch to batch, which is the Delta_tv of about 1e-2 that [1]_ states for its experiments.
    The delta that it states with it, 1e-4, makes .025 with this B, and .05 with G - G^T; what its B
    is, it does not say. "rotation" adds up: delta 1e-4 makes .22, and 4.5e-6 about .010. A change
    of "piecewise" by the default delta has the sine 1 to three digits, Delta_large of [1]_.

    References
    ----------
    .. [1] P. Narayanamurthy, N. Vaswani, A. Ramamoorthy, "Federated over-air subspace tracking from
       incomplete and corrupted data", IEEE Transactions on Signal Processing 2022.

    Examples
    --------
    >>> from fedpca_sklearn import make_subspace_stream, subspace_distance
    >>> stream = make_subspace_stream(600, random_state=0)
    >>> print(stream.subspace_changes(60).mean().round(3))
    0.01
    >>> round(subspace_distance(stream.subspace_at(0), stream.subspace_at(599)), 3)
    0.025
    """
    n, d, k = n_samples, n_features, n_components
    for name, value in (("n_samples", n), ("n_features", d), ("n_components", k)):
        check_integer(name, value)
    for name, size in (("noise_std", noise_std), ("missing", missing), ("outliers", outliers)):
        nonnegative_float(name, size)
    if k > d:
        raise ValueError(f"n_components={k} must be at most n_features={d}.")
    if not (isinstance(model, str) and model in _DELTAS):
        raise ValueError(f"model must be 'walk', 'rotation' or 'piecewise', got {model!r}.")
    if model != "piecewise" and change_points is not None:
        raise ValueError(f"change_points must be None with model={model!r}.")
    default = [n // 2] if model == "piecewise" else []
    changes = np.asarray(default if change_points is None else change_points)
    if changes.ndim != 1 or (changes.size and changes.dtype.kind not in "iu"):
        raise ValueError(f"change_points must be a list of integers, got {change_points!r}.")
    if np.any(np.diff(changes, prepend=-1, append=n) <= 0):
        raise ValueError(
            f"change_points must increase and lie between 0 and {n}, got {change_points!r}."
        )
    delta = check_number("delta", _DELTAS[model] if delta is None else delta)
    variances = np.ones(k) if variances is None else float_array("variances", variances, 1)
    if variances.shape != (k,) or (variances < 0).any():
        raise ValueError(f"variances must be {k} non-negative numbers, got {variances!r}.")
    scale = np.sqrt(3 * variances)
    low, high = _bounds("outlier_range", outlier_range)

    rng = check_random_state(random_state)
    signs = rng.choice([-1.0, 1.0], size=(2, d))
    speeds = np.sqrt(2 * d) * np.abs(2 * rng.beta(1.5, 1.5, size=d // 2) - 1)
    start = np.linalg.qr(rng.standard_normal((d, k)))[0].T
    path: RandomWalk | SteadyRotation
    if model == "walk" and delta:
        frames = 2 * rng.randint(2, size=(2, n, d), dtype=np.int8) - 1
        path = RandomWalk(start, delta * speeds, frames)
    else:
        time = np.arange(n)
        if model == "piecewise":
            time = np.searchsorted(changes, time, "right")
        path = SteadyRotation(start, delta * time, speeds, signs)
    low_rank = path.rows(rng.uniform(-1, 1, (n, k)) * scale)
    X = low_rank + noise_std * rng.standard_normal((n, d)) if noise_std else low_rank.copy()
    gone = _mask("missing", (n, d), missing, missing_pattern, rng)
    hit = _mask("outliers", (n, d), outliers, outlier_pattern, rng)
    sparse = np.zeros((n, d))
    count = int(hit.sum())
    sparse[hit] = rng.uniform(low, high, count) * rng.choice([-1.0, 1.0], count)
    X += sparse
    X[gone] = np.nan
    return Bunch(
        X=X,
        low_rank=low_rank,
        sparse=sparse,
        missing=gone,
        outliers=hit,
        change_points=tuple(changes.tolist()),
        subspace_at=path.subspace_at,
        subspace_changes=partial(_subspace_changes, low_rank, k),
    )


def _bounds(name: str, value: Any) -> tuple[float, float]:
    """Two finite, non-negative, increasing numbers."""
    if np.shape(value) != (2,):
        raise ValueError(f"{name} must be two numbers, got {value!r}.")
    low, high = (nonnegative_float(name, bound) for bound in value)
    if low > high:
        raise ValueError(f"{name} must be two increasing numbers, got {value!r}.")
    return low, high


def _subspace_changes(rows: np.ndarray, k: int, batch_size: int) -> np.ndarray:
    """Sines between the k leading singular vectors of consecutive full batches."""
    check_integer("batch_size", batch_size)
    starts = range(0, len(rows) - batch_size + 1, batch_size)
    bases = [np.linalg.svd(rows[t : t + batch_size], full_matrices=False)[2][:k] for t in starts]
    return np.array([subspace_distance(a, b) for a, b in pairwise(bases)])


def _mask(name: str, shape: tuple, share: float, pattern: str, rng: np.random.RandomState):
    """Where entries are missing, or outliers."""
    if not 0 <= share <= 1:
        raise ValueError(f"{name} must be in [0, 1], got {share!r}.")
    n, d = shape
    if pattern == "bernoulli":
        return rng.uniform(size=shape) < share
    if pattern != "moving":
        kind = "missing" if name == "missing" else "outlier"
        raise ValueError(f"{kind}_pattern must be 'bernoulli' or 'moving', got {pattern!r}.")
    length = round(share * d)
    start = rng.randint(d) + np.arange(n) // 5 * max(1, -(-length // 2))
    return (np.arange(d) - start[:, None]) % d < length
