"""Merges of sites that differ: without those that stand apart, or weighed by their noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from scipy.special import chdtri
from sklearn.utils._param_validation import StrOptions

from .._kernels import linalg
from .._validation.checks import Interval, allowed, with_parameters
from ..summary import Subspace, merge_subspaces
from ..summary._merging import pooled_moments
from ..summary._projection_mean import rayleigh_ritz
from . import _lack_of_fit
from ._merge import MergeStrategy, moments_and_factor
from ._online_distributed_pca import projection_average

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


# A site is apart where it is so many times as far from the middle as the majority reaches, or as
# the standard error of one site; in squares more.
_REACH, _REACH_OF_SQUARES = 8.0, 16.0
# Where the majority is alike, up to so many standard errors, so many of them are too far.
_ALIKE, _ERRORS = 2.0, 4.0
# Where it is not: of what the directions of others explain of a typical site, beyond chance, so
# much less is apart however far the majority reaches, and nobody within this factor of variance.
_LOST, _VARIANCES = 0.75, 4.0
# Shares that are equal but for rounding: of all directions, each explains all.
_ROUNDING = 1e-8
# Factor of rows within which nobody is apart.
_ROWS = 10.0


class SiteEvidence(NamedTuple):
    """How far a site stands apart, in units of the limit: a suspect is beyond 1 in some.

    Parameters
    ----------
    directions : float
        By how much less of its scatter the directions of others explain; negative: more.
    variance : float
        By the factor between its total variance and that of others, on a log scale.
    mean : float
        By its squared distance from the middle of the means.
    rows : float
        By the factor between its rows and those of others, on a log scale; 0: no more.

    See Also
    --------
    RobustMerge : Finds it.
    """

    directions: float
    variance: float
    mean: float
    rows: float


def evidence(parts: Sequence[Subspace], rank: int, max_bad: int) -> list[SiteEvidence]:
    """Evidence against each of the parts, of which at most ``max_bad`` are wrong."""
    n = np.array([part.n_samples for part in parts])
    n_core, found = len(parts) - max_bad, np.zeros((len(parts), 4))
    found[:, 3] = _rows(n, n_core)
    n = np.where(found[:, 3] > 1, np.median(n), n)  # a claim makes nothing more certain
    n = np.maximum(n, min(np.median(n), 1.0))  # nor does that of no row excuse anything
    spread = np.array([part.n_components > 0 and part.scatter > 0 for part in parts])
    if spread.sum() > 1:
        some = [part for part, there in zip(parts, spread, strict=True) if there]
        # twice the inverse of the number of equal directions with as uncertain a variance
        d = parts[0].n_features
        squares = [share @ share + cut**2 * (d - len(share)) for share, cut in map(_shares, some)]
        uncertain = 2 * float(np.median(squares))
        found[:, 2], is_homogeneous = _means(parts, n, n_core, uncertain)
        how = uncertain, is_homogeneous
        found[spread, 0] = _directions(some, n[spread], rank, min(n_core, len(some)), *how)
        found[:, 1] = _variances(parts, n, n_core, *how)
    return [SiteEvidence(*values) for values in found.tolist()]


def most_bad(max_bad: int | None, n_sites: int, of: str) -> int:
    """Sites that may be wrong, at most; of one or two nobody can be told. ``of``: for an error."""
    most = (n_sites - 1) // 2
    if max_bad is not None and max_bad > most:
        raise ValueError(f"max_bad={max_bad} must be fewer than half of {of}.")
    return most if max_bad is None else max_bad


def shares_trusted(
    parts: Sequence[Subspace], found: Sequence[SiteEvidence], max_bad: int
) -> np.ndarray:
    """Share of its rows with which each part counts: 0 for those left out, less than 1 for claims.

    A claim of rows alone leaves nobody out: then as many count as others have.
    """
    worst = np.array([max(one.directions, one.variance, one.mean) for one in found])
    out = [i for i in np.argsort(-worst, kind="stable")[:max_bad] if worst[i] > 1]
    n = np.array([part.n_samples for part in parts])
    shares = np.ones(len(parts))
    claims = [one.rows > 1 for one in found]
    shares[claims] = np.median(np.delete(n, out)) / n[claims]
    shares[out] = 0.0
    return shares


def trusted_parts(parts: Sequence[Subspace], shares: np.ndarray) -> list[Subspace]:
    """Parts without those left out, each with its share of its rows."""
    return [
        part if share == 1 else part.decay(share)
        for part, share in zip(parts, shares.tolist(), strict=True)
        if share
    ]


def _directions(
    parts: Sequence[Subspace],
    n: np.ndarray,
    rank: int,
    n_core: int,
    uncertain: float,
    is_homogeneous: bool,
) -> np.ndarray:
    """By the share of a site's scatter that the directions of a typical other site explain."""

    def explained(part: Subspace, U: np.ndarray) -> np.ndarray:
        """Share of the scatter of a part that each direction explains."""
        weights, cut = _shares(part)
        return cut + (weights - cut) @ (part.components @ U.T) ** 2

    every = np.ones(parts[0].n_features)
    columns = [every if p.column_scatter is None else p.column_scatter for p in parts]
    if rank >= np.count_nonzero(np.any(columns, axis=0)):
        return np.zeros(len(parts))  # a part of fewer directions explains less, and is right
    bases = [part.components[:rank] for part in parts]
    shares, sizes = for_each_pair(explained, parts, bases), np.array(list(map(len, bases)))
    few = sizes < np.sort(sizes)[(len(sizes) - 1) // 2]
    if few.any():  # they explain less, whoever is right: their say is that of the others
        np.fill_diagonal(shares, np.nan)
        shares[:, few] = np.nanmedian(shares[:, ~few], axis=1)[:, None]
    chance = rank / parts[0].n_features
    typical, core = agreement_with_majority(shares, n_core)
    middle = float(np.median(typical[core]))
    reach = middle - float(typical[core].min())
    error = np.sqrt(uncertain * max(middle * (1 - middle), 0.0) / n)
    limit = _ERRORS * error
    if not is_homogeneous or reach > _ALIKE * np.median(error):
        few = np.sqrt(np.maximum(np.median(n) / n, 1.0))
        wide = np.minimum(_LOST * (middle - chance), _REACH * (reach * few + error))
        limit = np.maximum(wide, limit)
    return (middle - typical) / np.maximum(limit, _ROUNDING)


def for_each_pair(
    of: Callable[[Any, np.ndarray], np.ndarray], parts: Sequence[Any], bases: Sequence[np.ndarray]
) -> np.ndarray:
    """Sum of ``of(part, V)``, a value for each row of V, for each part and each basis V."""
    U, ends = np.concatenate(bases), np.cumsum([0, *map(len, bases)])
    sums = np.stack([np.append(0.0, np.cumsum(of(part, U))) for part in parts])
    return sums[:, ends[1:]] - sums[:, ends[:-1]]


def _shares(part: Subspace) -> tuple[np.ndarray, float]:
    """Shares of the scatter along the components, and in each direction that was cut: the mean."""
    shares = part.singular_values**2 / part.scatter
    cut = max(1 - shares.sum(), 0.0) / max(part.n_features - len(shares), 1)
    return shares, float(cut)


def _variances(
    parts: Sequence[Subspace], n: np.ndarray, n_core: int, uncertain: float, is_homogeneous: bool
) -> np.ndarray:
    """By the factor between a site's total variance and that of a typical site."""
    v = np.array([part.total_variance if part.n_components else 0.0 for part in parts])
    distance = np.abs(np.log(np.maximum(v, np.finfo(float).tiny)) - np.log(np.median(v[v > 0])))
    distance[[part.n_samples < 2 and not part.scatter for part in parts]] = 0.0  # a row has none
    error = np.sqrt(uncertain / np.maximum(n - 1, 1.0))
    reach = float(np.sort(distance)[n_core - 1])
    limit = _REACH * np.maximum(reach, error)
    if not is_homogeneous or reach > _ALIKE * np.median(error):
        limit = np.maximum(limit, np.log(_VARIANCES))
    return distance / limit


def _means(
    parts: Sequence[Subspace], n: np.ndarray, n_core: int, uncertain: float
) -> tuple[np.ndarray, bool]:
    """By the squared distance of a site's mean from the middle of the means.

    In units of what is expected of it: the variance of the site's mean, and that between sites. The
    second result is whether the means of the majority differ by no more than the first.
    """
    means = np.stack([part.mean for part in parts])
    sampling = np.median([part.total_variance for part in parts]) / n
    centre, core = np.median(means, axis=0), np.arange(0)
    distance, between = np.zeros(len(parts)), 0.0
    for _ in range(STEPS):
        with np.errstate(over="ignore"):  # infinitely far
            squares = np.sum((means - centre) ** 2, axis=1)
            between = max(float(np.median(np.sort(squares - sampling)[:n_core])), 0.0)
            distance = squares / np.maximum(between + sampling, np.finfo(float).tiny)
        before, core = core, np.sort(np.argsort(distance, kind="stable")[:n_core])
        if np.array_equal(before, core):
            break
        centre = means[core].mean(axis=0)
    middle = float(np.median(distance[core]))
    reach = max(float(distance[core].max()) - middle, float(np.sqrt(uncertain)))
    is_homogeneous = bool(between <= _ALIKE * np.median(sampling))
    return distance / (middle + _REACH_OF_SQUARES * reach), is_homogeneous


def _rows(n: np.ndarray, n_core: int) -> np.ndarray:
    """By the factor between the rows that a site claims and those of a typical site."""
    distance = np.log(n) - np.log(np.median(n))
    limit = max(np.log(_ROWS), _REACH * np.sort(np.abs(distance))[n_core - 1])
    return np.maximum(distance, 0.0) / limit


# Steps of Weiszfeld's algorithm, and the change of weights that ends them.
_STEPS, _TOL = 200, 1e-8


@with_parameters
class RobustMerge(MergeStrategy):
    """Merge that leaves out the sites that stand apart from the majority, and names them.

    One wrong site is enough to turn a plain merge anywhere. Here sites are compared before they are
    merged, in what they say of directions, variance, mean and number of rows. Who is beyond the
    limits is a suspect and left out, in all: a wrong mean costs a site its directions too. A site
    that claims too many rows stays, with as many as others have.

    Parameters
    ----------
    method : {"filter", "median"}, default="filter"
        Directions of the sites that are left: "filter" merges them as `SubspaceMerge` does; where
        nobody is suspected the results are the same. "median" takes the geometric median of their
        projections, in which also a site just inside the limits turns little; it is less accurate
        where all are honest, and every site counts one.
    max_bad : int or None, default=None
        Sites that may be wrong, at most, fewer than half. None: as many as can be, (s - 1) // 2 of
        s sites. A smaller number lets unlike sites be more unlike.

    Attributes
    ----------
    suspects_ : dict
        Position of a summary -> `SiteEvidence`, for those beyond a limit. On `FederatedPCA` the
        keys are the labels of the clients.
    evidence_ : dict
        The same for all.

    Warns
    -----
    UserWarning
        By "filter", of suspects that may be honest: `SubspaceMerge` leaves clearly less of the rows
        of all sites (1.1 to 3 times), and they are within six limits, and it loses less in the rows
        of the others than it gains and less than a fifth; or they are half of the sites.

    See Also
    --------
    SuspectsDisplay : Draws the evidence.
    RobustSum : For the rounds of `FederatedPowerPCA`.
    NoiseAwareMerge : For honest sites with unlike noise.

    Notes
    -----
    What is compared, each with the s - max_bad sites that agree best:

    - directions: the share of a site's scatter that the leading directions of another explain, its
      median over the others, less what random directions explain. Who loses three quarters of what
      is typical is apart, or less where the majority is alike. Sites
      that agree among themselves only do not change a median while they are fewer than half.
    - variance: the factor to the median, 4 or eight times the reach. A row without any is excused,
      scatter of less than two rows is not.
    - mean: the squared distance from the middle, in units of its variance within and between sites.
    - rows: the factor to the median, 10 or eight times the reach.

    These find sites that are broken or crude. A site that knows the rule stays just inside: then
    what it can do is bounded by the limits, which are as wide as honest sites are unlike.
    Nobody can tell a minority of liars from a minority of honest sites that are as unlike: where
    most sites are of one kind and a few of another, those few are named. So are honest sites where
    tails are heavy, as of standardised columns that are rarely used: a few rows then turn the
    directions of a site with not many rows. Transform such columns first, and look at
    ``evidence_``. Needs an integer ``n_components``, fewer than there are columns, or directions
    are not compared.

    "median" is Weiszfeld's algorithm on projections, as the subspace median of [1]_. There are no
    trees: a node would hide its sites from the others. Time O(s^2 r k d) for s sites that send k
    directions, with r components, beyond that of the merge.

    References
    ----------
    .. [1] P. Singh, N. Vaswani, "Byzantine-resilient federated principal subspace estimation", IEEE
       International Symposium on Information Theory 2024.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import FederatedPCA, RobustMerge, subspace_distance
    >>> X = load_digits().data
    >>> site = np.random.default_rng(0).integers(20, size=len(X))
    >>> wrong = X.copy()
    >>> wrong[site == 3] = 100 * X[site == 3, ::-1]  # columns in another order and another unit
    >>> exact = FederatedPCA(5).fit(X[site != 3])
    >>> for merge in None, RobustMerge():
    ...     pca = FederatedPCA(5, merge=merge).fit(wrong, clients=site)
    ...     print(round(subspace_distance(pca.components_, exact.components_), 3))
    1.0
    0.0
    >>> {label: np.round(found, 1).tolist() for label, found in pca.suspects_.items()}
    {3: [2.3, 27.1, 282758.5, 0.0]}
    """

    _counts = "RobustMerge, which compares so many directions of each site."

    method: str = allowed(StrOptions({"filter", "median"}), default="filter")
    max_bad: int | None = allowed(Interval(Integral, 0, None, closed="left"), None, default=None)

    def _merge(self, parts, n_components, kept):
        rank = min(self.directions_needed(n_components), parts[0].n_features)
        bad = most_bad(self.max_bad, len(parts), f"the sites, of which {len(parts)} have rows")
        found = evidence(parts, rank, bad)
        self.evidence_ = dict(enumerate(found))
        self.suspects_ = {i: one for i, one in self.evidence_.items() if max(one) > 1}
        trusted = trusted_parts(parts, shares_trusted(parts, found, bad))
        if self.method == "filter":
            merged = merge_subspaces(trusted, rank)
            if len(trusted) < len(parts):
                _lack_of_fit.warn_of_suspects(parts, trusted, merged, self.suspects_.values())
            return merged
        weights = median_weights([part.components[:rank] for part in trusted])
        leading = [part.truncate(rank) for part in trusted]
        return projection_average(leading, rank, weights.tolist())[0]


def median_weights(bases: Sequence[np.ndarray]) -> np.ndarray:
    """Weights of projections in their geometric median, by Weiszfeld's algorithm."""
    ranks = np.array([len(V) for V in bases], dtype=float)
    inner = for_each_pair(lambda V, U: np.sum((V @ U.T) ** 2, axis=0), bases, bases)
    weights = np.full(len(bases), 1 / len(bases))
    for _ in range(_STEPS):
        overlaps = inner @ weights
        distances = np.sqrt(np.maximum(ranks - 2 * overlaps + weights @ overlaps, _TOL**2))
        before, weights = weights, 1 / distances / np.sum(1 / distances)
        if np.abs(weights - before).max() < _TOL:
            break
    return weights


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
    the weights are equal, and the result that of `SubspaceMerge`. The level is that of normal rows:
    skewed ones and heavy tails are mostly significant, and the weights then follow the estimates.

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

    _counts = "NoiseAwareMerge: noise is what lies outside the components."

    def _merge(self, parts, n_components, kept):
        rank = min(self.directions_needed(n_components), parts[0].n_features)
        v, V = noise_and_directions(parts, rank)
        self.noise_variances_ = dict(enumerate(v.tolist()))
        if V is None:
            return merge_subspaces(parts, rank)
        total, factor = moments_and_factor(parts)
        merged = rayleigh_ritz(total, V, factor(V))
        left = _lack_of_fit.times_as_much(parts, merged, merge_subspaces(parts, rank))
        _lack_of_fit.warn_of_weights(left)
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
        rest = _lack_of_fit.scatter_outside(parts, V)
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
    cuts, diagonal = _lack_of_fit.cut_scatters(parts) / unit, np.arange(len(basis))
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
