"""Synthetic rows with a known spectrum or a moving subspace, and splits over clients."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from math import isqrt
from typing import Any

import numpy as np
import scipy.fft
from sklearn.utils import Bunch, check_random_state

from ._validation.checks import check_integer, check_number, float_array, is_real, nonnegative_float
from .metrics import subspace_distance

__all__ = ["make_power_law", "make_spiked", "make_subspace_stream", "partition_clients"]


def random_rotation(rows: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Multiply rows by a random orthogonal matrix: random signs and a cosine transform, twice.

    ``signs`` has the shape (2, d), or (2, n, d) for a matrix of its own for each row.
    """
    for sign in signs:
        rows = scipy.fft.dct(rows * sign, norm="ortho", axis=1)
    return rows


def turned_pairs(rows: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rows with neighbouring coordinates turned in their planes; angles are of (n, d // 2)."""
    pairs = 2 * angles.shape[-1]
    z = rows[:, 0:pairs:2] + 1j * rows[:, 1:pairs:2]
    z *= np.exp(1j * angles)
    rows = rows.copy()
    rows[:, 0:pairs:2], rows[:, 1:pairs:2] = z.real, z.imag
    return rows


class SteadyRotation:
    """Subspaces exp(-times[t] B) P of a skew-symmetric B, which turns all planes of a frame.

    Parameters
    ----------
    start : ndarray of shape (k, d)
        P, in the frame.
    times : ndarray of shape (n,)
    speeds : ndarray of shape (d // 2,)
        Angle of each plane in a unit of time.
    signs : ndarray of shape (2, d)
        Of the frame.
    """

    def __init__(self, start: np.ndarray, times: np.ndarray, speeds: np.ndarray, signs: np.ndarray):
        self.start, self.times, self.speeds, self.signs = start, times, speeds, signs

    def rows(self, coefficients: np.ndarray) -> np.ndarray:
        """Rows with these coefficients in the basis of their time."""
        angles = np.multiply.outer(self.times, self.speeds)
        return random_rotation(turned_pairs(coefficients @ self.start, angles), self.signs)

    def subspace_at(self, t: int) -> np.ndarray:
        """Orthonormal basis of row t."""
        return random_rotation(turned_pairs(self.start, self.times[t] * self.speeds), self.signs)


class RandomWalk:
    """Subspaces P_t = exp(-B_t) P_(t-1) with a skew-symmetric B_t in a frame of its own.

    Bases are carried on from row to row in the frame of the row, O(k d log d) each. Some sqrt(n) of
    them are kept, from which the others follow.

    Parameters
    ----------
    start : ndarray of shape (k, d)
        P_0, in the frame of row 0.
    angles : ndarray of shape (d // 2,)
        By which every B_t turns the planes of its frame.
    signs : ndarray of shape (2, n, d)
        Of the frames.
    """

    def __init__(self, start: np.ndarray, angles: np.ndarray, signs: np.ndarray):
        self.angles, self.signs = angles, signs
        self.spacing = isqrt(signs.shape[1])
        self.kept = [start]

    def _next(self, basis: np.ndarray, t: int) -> np.ndarray:
        """Basis of row t, in its frame, from that of the row before: one transform is its own."""
        (outer, inner), (new_outer, new_inner) = self.signs[:, t - 1], self.signs[:, t]
        basis = scipy.fft.dct(basis * outer, norm="ortho", axis=1) * (inner * new_inner)
        basis = scipy.fft.idct(basis, norm="ortho", axis=1) * new_outer
        return turned_pairs(basis, self.angles)

    def rows(self, coefficients: np.ndarray) -> np.ndarray:
        """Rows with these coefficients in the basis of their time."""
        rows = np.empty((len(coefficients), self.signs.shape[2]))
        basis = self.kept[0]
        self.kept = []
        for t, row in enumerate(coefficients):
            basis = self._next(basis, t) if t else basis
            if t % self.spacing == 0:
                self.kept.append(basis)
            rows[t] = row @ basis
        return random_rotation(rows, self.signs)

    def subspace_at(self, t: int) -> np.ndarray:
        """Orthonormal basis of row t."""
        t = range(self.signs.shape[1])[t]
        first = t - t % self.spacing
        basis = self.kept[first // self.spacing]
        for s in range(first + 1, t + 1):
            basis = self._next(basis, s)
        return random_rotation(basis, self.signs[:, t])


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
        that a client sees one or two labels, if no label has fewer rows than a client. "dirichlet":
        the shares of each label over the clients are drawn from a symmetric Dirichlet distribution.
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
    if y.ndim != 1 or not len(y):
        raise ValueError(f"y must be 1-D, of at least one label, got shape {y.shape}.")
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
    integers = changes.ndim == 1 and (not changes.size or changes.dtype.kind in "iu")
    if not integers or np.any(np.diff(changes, prepend=-1, append=n) <= 0):
        raise ValueError(
            f"change_points must increase, integers from 0 to {n - 1}, got {change_points!r}."
        )
    delta = check_number("delta", _DELTAS[model] if delta is None else delta)
    variances = np.ones(k) if variances is None else float_array("variances", variances, 1)
    if variances.shape != (k,) or (variances < 0).any():
        raise ValueError(f"variances must be {k} non-negative numbers, got {variances!r}.")
    scale = np.sqrt(3 * variances)
    if np.shape(outlier_range) != (2,):
        raise ValueError(f"outlier_range must be two numbers, got {outlier_range!r}.")
    low, high = (nonnegative_float("outlier_range", bound) for bound in outlier_range)
    if low > high:
        raise ValueError(f"outlier_range must be two increasing numbers, got {outlier_range!r}.")

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
        time = np.searchsorted(changes, time, "right") if model == "piecewise" else time
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
    stream = Bunch(X=X, low_rank=low_rank, sparse=sparse, missing=gone, outliers=hit)
    stream.change_points, stream.subspace_at = tuple(changes.tolist()), path.subspace_at
    stream.subspace_changes = partial(_subspace_changes, low_rank, k)
    return stream


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
