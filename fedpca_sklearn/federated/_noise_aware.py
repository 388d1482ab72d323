"""Merge strategy that weighs sites by their noise: Hong, Balzano and Fessler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.linalg
from scipy.special import chdtri

from .._kernels import linalg
from ..summary import Subspace, merge_subspaces
from ..summary._merging import pooled_moments
from ..summary._projection_mean import rayleigh_ritz
from ._lack_of_fit import cut_scatters, scatter_outside, times_as_much, warn_of_weights
from ._merge import MergeStrategy, moments_and_factor

_ITERATIONS = 2
# Level of the test that all sites have one noise.
_LEVEL = 0.01
# Degrees of freedom that a site borrows from all: those by which E[1 / chi2] differs from 1 / df.
_BORROWED = 2.0
# Directions beyond those wanted that the two extreme weightings contribute, each.
_EXTRA = 10
# Smallest noise variance, as a share of the largest: beyond it more weight changes nothing.
_SMALLEST = 1e-8


class NoiseAwareMerge(MergeStrategy):
    """Merge that gives a site a say by its noise, for each component: optimally weighted PCA.

    Where sites measure the same directions with different noise, the rows of a noisy site count as
    much as others in a plain merge, which can be worse than the best site alone. Here the rows of a
    site with noise variance v have the weight 1 / (v (lambda + v)) in a component of variance
    lambda [1]_. The noise variances are estimated from the summaries, so that no float more is
    sent, and a site needs no more than before.

    Noise is what lies outside the components: what a site has there of its own counts as noise. The
    model is one set of components for all sites, and noise of one variance in all columns of a
    site. Where sites differ in what they see, `SubspaceMerge` is the better choice; so it is where
    nothing is wanted but the largest variance of the pooled rows.

    Attributes
    ----------
    noise_variances_ : dict
        Position of a summary -> variance of its noise per direction outside the components. On
        `FederatedPCA` the keys are the labels of the clients.

    Warns
    -----
    UserWarning
        If the components leave more than 1.25 times the squared residuals of `SubspaceMerge` in the
        rows of all sites, as where sites see different things.

    See Also
    --------
    SubspaceMerge : Merge in which every row counts one.

    Notes
    -----
    The scatter of a site outside the common components, over its degrees of freedom
    (n - 1 - k share) (d - k), with the site's share in the components taken off; two degrees of
    freedom more with the noise of all sites, so that a site with few rows claims no noise of zero.
    With the noise go the weights, with the weights the components and their variances: twice. A
    site that cut its summary is taken to have, in each direction that it did not send, the mean of
    the scatter that it cut.

    Where a likelihood ratio test (Bartlett 1937) of one noise for all is not significant at 1 %,
    the weights are equal, and the result that of `SubspaceMerge`.

    Only directions depend on weights: count, mean, scatter and the variances along the components
    are those of all rows. ``n_components`` must be an integer. There are no trees: a node would
    merge the noise of its sites.

    Time: that of four merges, and O(s k^2 (d + k) + k^4) for s sites and k components.

    References
    ----------
    .. [1] D. Hong, F. Yang, J. A. Fessler, L. Balzano, "Optimally weighted PCA for high-dimensional
       heteroscedastic data", SIAM Journal on Mathematics of Data Science 2023.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import FederatedPCA, NoiseAwareMerge, subspace_distance
    >>> rng = np.random.default_rng(0)
    >>> true = np.linalg.qr(rng.standard_normal((50, 2)))[0].T
    >>> site = np.repeat(["quiet", "loud"], [200, 800])
    >>> noise = np.where(site == "quiet", 1.0, 4.0)[:, None]  # standard deviations
    >>> X = 3 * rng.standard_normal((1000, 2)) @ true + noise * rng.standard_normal((1000, 50))
    >>> for merge in None, NoiseAwareMerge():
    ...     pca = FederatedPCA(2, merge=merge).fit(X, clients=site)
    ...     print(round(subspace_distance(pca.components_, true), 2))
    0.43
    0.16
    >>> {label: round(v, 1) for label, v in pca.noise_variances_.items()}
    {'loud': 16.1, 'quiet': 1.0}
    """

    compares_sites = True
    _counts = "NoiseAwareMerge: noise is what lies outside the components."

    def _merge(self, parts, n_components, kept):
        rank = min(self.directions_needed(n_components), parts[0].n_features)
        v, V = noise_and_directions(parts, rank)
        self.noise_variances_ = dict(enumerate(v.tolist()))
        if V is None:
            return merge_subspaces(parts, rank)
        total, factor = moments_and_factor(parts)
        merged = rayleigh_ritz(total, V, factor(V))
        warn_of_weights(times_as_much(parts, merged, merge_subspaces(parts, rank)))
        return merged


def noise_and_directions(
    parts: Sequence[Subspace], rank: int
) -> tuple[np.ndarray, np.ndarray | None]:
    """Noise variance of each part, and the directions that follow.

    The directions are None where the noise of all is the same.
    """
    d, n = parts[0].n_features, np.array([part.n_samples for part in parts])
    V, share = merge_subspaces(parts, rank).components, n / n.sum()
    if rank >= d or len(V) < rank:
        return np.zeros(len(parts)), None
    for _ in range(_ITERATIONS):
        rest = scatter_outside(parts, V)
        df = np.maximum((n - 1 - rank * share) * (d - rank), 0.0)
        pooled = rest.sum() / max(df.sum(), 1.0)
        if _one_noise(rest, df):
            return np.full(len(parts), pooled), None
        v = (rest + _BORROWED * pooled) / (df + _BORROWED)
        v = np.maximum(v, _SMALLEST * v.max())
        V, share = _weighted_directions(parts, v, V)
    return v, V


def _one_noise(rest: np.ndarray, df: np.ndarray) -> bool:
    """Whether a likelihood ratio test finds no difference of variances."""
    known = df >= 1
    rest, df = rest[known], df[known]
    if len(df) < 2 or not np.all(rest > 0):
        return len(df) < 2 or not np.any(rest > 0)
    statistic = df.sum() * np.log(rest.sum() / df.sum()) - float(df @ np.log(rest / df))
    # Bartlett's factor, with which small samples have the size of the test
    factor = 1 + (np.sum(1 / df) - 1 / df.sum()) / (3 * (len(df) - 1))
    return bool(statistic / factor < chdtri(len(df) - 1, _LEVEL))


def _weighted_directions(
    parts: Sequence[Subspace], v: np.ndarray, V: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Components of rows weighted by noise and component, and the share of each site in them.

    Weights of the form 1 / (v (lambda + v)) lie between 1 / v and 1 / v^2, so that the components
    are looked for among the leading directions of these two.
    """
    unit = v.max()
    rank, v, n = len(V), v / unit, np.array([part.n_samples for part in parts])
    ends = [merge_subspaces(parts, rank + _EXTRA, weights=v**p) for p in (-0.5, -1.0)]
    basis = linalg.orthonormalised(np.concatenate([V, *(end.components for end in ends)]))
    scatters, means = _within(parts, basis, unit)
    Y = V @ basis.T
    for _ in range(_ITERATIONS):
        squares = np.einsum("srj,rj->sr", Y @ scatters, Y) + n[:, None] * (means @ Y.T) ** 2
        precision = n / v**2
        variances = np.maximum(((squares / n[:, None]).T - v) @ precision / precision.sum(), 0.0)
        w = v.min() / v[:, None] * v.min() / (variances + v[:, None])
        said = n[:, None] * w
        Y = np.stack([_component(i, w[:, i], said[:, i], scatters, means) for i in range(rank)])
        left, _, right = scipy.linalg.svd(Y, full_matrices=False, check_finite=False)
        Y = left @ right  # the nearest orthonormal rows
    return Y @ basis, (said / said.sum(axis=0)).mean(axis=1)


def _within(
    parts: Sequence[Subspace], basis: np.ndarray, unit: float
) -> tuple[np.ndarray, np.ndarray]:
    """Scatter matrices within a basis, and means about that of all; in a unit of variance."""
    cuts, diagonal = cut_scatters(parts) / unit, np.arange(len(basis))
    scatters = np.empty((len(parts), len(basis), len(basis)))
    for i, part in enumerate(parts):
        own = part.components @ basis.T
        np.matmul(own.T * (part.singular_values**2 / unit - cuts[i]), own, out=scatters[i])
    scatters[:, diagonal, diagonal] += cuts[:, None]
    mean = pooled_moments(parts)[0].mean
    means = [(part.mean - mean) @ basis.T for part in parts]
    return scatters, np.stack(means) / np.sqrt(unit)


def _component(
    i: int, weights: np.ndarray, said: np.ndarray, scatters: np.ndarray, means: np.ndarray
) -> np.ndarray:
    """Component number i of rows of which those of a part have a weight; ``said``: it times n."""
    about = means - (said / said.sum()) @ means
    S = np.tensordot(weights, scatters, axes=1) + (about.T * said) @ about
    return linalg.eigh_top(S, i + 1)[1][:, i]
