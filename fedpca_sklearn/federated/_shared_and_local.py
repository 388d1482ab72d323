"""Shared components of all sites and components of each: the objective of PerPCA, on summaries."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import scipy.linalg
from scipy.special import gammaincc

from .._kernels import linalg
from .._kernels.row_moments import RowsAtHand
from .._kernels.rows import centred_product, scatter_product
from .._kernels.sizes import EXACT_ORDER
from .._kernels.tolerances import EIGENVALUE_ROUNDING
from .._validation.checks import AT_LEAST_ONE, allowed, check_rows, with_parameters
from ..communication import Federation
from ..summary import Subspace, merge_subspaces
from ..summary._projection_mean import ProjectionMean, factor_along, rayleigh_ritz
from ..summary._refinement import check_same_rows, products_of
from ..summary._updating import was_truncated
from ._merge import MergeStrategy, check_count, moments_and_factor

# Level of the test for all sites together.
LEVEL = 0.05
# Factor of what noise gains in components of sites up to which these are taken for noise.
NOISE = 1.25
# The Tracy-Widom law of order 1 as a shifted gamma distribution: shape, scale, shift (Chiani 2014).
_SHAPE, _SCALE, _SHIFT = 46.446, 0.186054, 9.84801


def p_values(parts: Sequence[Subspace], V: np.ndarray) -> np.ndarray:
    """P-value of each part: its scatter outside V is from the covariance of all others.

    The largest root of its scatter matrix in the metric of the others', for normal rows by
    Johnstone (2008), "Multivariate analysis and Jacobi ensembles". NaN where the others have no
    more rows than columns, a part too few, or where something was cut from one.
    """
    d, p = np.array([part.n_samples - 1 for part in parts]), np.full(len(parts), np.nan)
    n_features = parts[0].n_features
    unknown = len(parts) < 2 or n_features > EXACT_ORDER or len(V) >= n_features
    if unknown or any(map(was_truncated, parts)):
        return p
    outside = scipy.linalg.null_space(V)
    factors = [part.singular_values[:, None] * (part.components @ outside) for part in parts]
    total = sum(F.T @ F for F in factors)
    values, W = np.linalg.eigh(total)
    kept = values > EIGENVALUE_ROUNDING * values[-1]
    W = W[:, kept] / np.sqrt(values[kept])
    for i, F in enumerate(factors):
        others, size = float(d.sum() - d[i]), W.shape[1]
        if d[i] >= 1 and others > size > 0:
            share = scipy.linalg.svdvals(F @ W)[0] ** 2 if len(F) else 0.0
            p[i] = _beyond(min(share, 1.0), size, others, float(d[i]))
    return p


def _beyond(share: float, p: int, m: float, n: float) -> float:
    """Probability of a larger largest root of (A + B)^-1 B, A and B Wishart with m, n rows."""
    if share in (0.0, 1.0):
        return 1.0 - share
    angles = [2 * np.arcsin(np.sqrt((k - 0.5) / (m + n - 1))) for k in (min(p, n), max(p, n))]
    a, b = angles
    middle = 2 * np.log(np.tan((a + b) / 2))
    # roots one by one, as counts that are weights may have no square
    both, one, other = (np.cbrt(np.sqrt(m + n - 1) * np.sin(angle)) for angle in (a + b, a, b))
    spread = np.cbrt(16) / (both**2 * one * other)
    x = (np.log(share / (1 - share)) - middle) / spread
    return float(gammaincc(_SHAPE, max((x + _SHIFT) / _SCALE, 0.0)))


def significant(p: np.ndarray) -> np.ndarray:
    """Which p-values are significant together, by Holm (1979); NaN is not."""
    order = np.argsort(p)  # NaN last
    order = order[~np.isnan(p[order])]
    passed = p[order] <= LEVEL / np.arange(len(order), 0, -1)
    found = np.zeros(len(p), dtype=bool)
    found[order[np.cumprod(passed, dtype=bool)]] = True
    return found


def warn_of_alike_sites(
    parts: Sequence[Subspace], V: np.ndarray, local: Sequence[np.ndarray], rank: int
) -> None:
    """Warn where components of sites gain no more than noise lets them, over ``rank`` shared ones.

    Of white noise in n rows of d columns the leading directions explain (1 + (d / n)^(1/2))^2 each
    (Marchenko and Pastur 1967), where new rows have 1.
    """
    whole = merge_subspaces(parts, rank).components
    d, n = V.shape[1] - len(V), np.array([part.n_samples for part in parts])
    own, of_shared = (
        sum(_left(part, basis) for part, basis in zip(parts, bases, strict=True))
        for bases in ([np.concatenate([V, W]) for W in local], [whole] * len(parts))
    )
    beyond = (1 + np.sqrt(d / n)) ** 2 - 1
    noise = float(n @ (beyond * list(map(len, local)))) / float(n.sum()) / max(d, 1)
    if len(parts) > 1 and 0 < of_shared < np.inf and 1 - own / of_shared < NOISE * noise:
        warnings.warn(
            f"the components of sites leave {own / of_shared:.2f} times the squared residuals of "
            f"{rank} shared ones in the rows of the fit, which noise explains: {rank} shared ones, "
            "of SubspaceMerge, are better for new rows.",
            UserWarning,
            stacklevel=2,
        )


def _left(part: Subspace, basis: np.ndarray) -> float:
    """Squares of the rows of a part, about their mean, beyond a basis."""
    rows = part.singular_values[:, None] * (part.components @ basis.T)
    return max(part.scatter - float(np.sum(rows**2)), 0.0)


# Alternations at most, and the sine by which the shared components move in the last one.
_ITERATIONS, _TOL = 100, 1e-7
# Share of a sum of squares below which what is new in a product is a rounding error.
_NEW = 1e-14
# A scatter matrix S that is known by its trace ``squares``, and by ``multiply(B)`` and ``gram(B)``.
Scatter: TypeAlias = "FactorScatter | SiteScatter | PersonalRounds"


@with_parameters
class SharedAndLocal(MergeStrategy):
    """Merge to the components that all sites share, beside components of each site."""

    n_local_components: int = allowed(AT_LEAST_ONE, default=2)

    def directions_needed(self, n_components: int | float | None) -> int | float | None:
        """Return as many as both kinds of components together."""
        why = "the share of the variance that shared components explain depends on the others."
        return check_count(n_components, f"PersonalizedPCA: {why}") + self.n_local_components

    def _merge(self, parts, n_components, kept):
        rank = min(n_components, parts[0].n_features)
        n_local = self.n_local_components
        V, local = shared_and_local(parts, rank, n_local)
        p = p_values(parts, V)
        warn_of_alike_sites(parts, V, local, min(rank + n_local, V.shape[1]))
        self.local_components_ = dict(enumerate(local))
        self.site_means_ = {i: part.mean for i, part in enumerate(parts)}
        self.local_pvalues_ = dict(enumerate(p.tolist()))
        self.needs_local_ = dict(enumerate(significant(p).tolist()))
        total, factor = moments_and_factor(parts)
        return rayleigh_ritz(total, V, factor(V))


def shared_and_local(
    parts: Sequence[Subspace], rank: int, n_local: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Components V of all and W_i of each part that leave the least sum of squares.

    Rows of part i, about its mean, are projected on both; V W_i^T = 0. In turn V, towards the
    leading directions of what is outside all W_i, and W_i, towards those of part i outside V.
    """
    largest = max(float(part.singular_values.max(initial=0.0)) for part in parts) or 1.0
    factors = [part.singular_values[:, None] / largest * part.components for part in parts]
    V = _first_shared(parts, rank, rank + n_local)
    local = [local_directions(factor, V, n_local) for factor in factors]
    scatters = list(map(FactorScatter, factors))
    for _ in range(_ITERATIONS):
        pairs = list(zip(scatters, local, strict=True))
        rest = np.concatenate([S.factor - (S.factor @ W.T) @ W for S, W in pairs])
        before, V = V, improved(FactorScatter(rest), V)
        local = [improved(scatter, outside(W, V), V) for scatter, W in pairs]
        if np.linalg.norm(V - (V @ before.T) @ before) <= _TOL:
            break
    return V, [local_directions(factor, V, n_local) for factor in factors]


class FactorScatter:
    """Scatter matrix ``factor.T @ factor``."""

    def __init__(self, factor: np.ndarray):
        self.factor, self.squares = factor, float(np.sum(factor**2))

    def multiply(self, B: np.ndarray) -> np.ndarray:
        """``B S``, for directions as rows of B."""
        return (self.factor @ B.T).T @ self.factor

    def gram(self, B: np.ndarray) -> np.ndarray:
        """``B S B^T``."""
        inner = self.factor @ B.T
        return inner.T @ inner


def beyond(rows: np.ndarray, V: np.ndarray) -> np.ndarray:
    """Rows without their part within an orthonormal basis."""
    return rows - (rows @ V.T) @ V


def outside(W: np.ndarray, V: np.ndarray) -> np.ndarray:
    """A basis made orthogonal to another."""
    return linalg.orthonormalised(W - (W @ V.T) @ V) if len(W) else W


def improved(scatter: Scatter, W: np.ndarray, V: np.ndarray | None = None) -> np.ndarray:
    """Leading directions of a scatter matrix outside V in the span of W and of its product."""
    Z, known = scatter.multiply(W), W if V is None else np.concatenate([V, W])
    Z -= (Z @ known.T) @ known
    _, sizes, new = np.linalg.svd(Z, full_matrices=False)
    new = new[sizes > _NEW * scatter.squares][: W.shape[1] - len(known)]
    new -= (new @ known.T) @ known  # what is hardly more than a rounding error has a part in it
    B = np.concatenate([W, linalg.orthonormalised(new)]) if len(new) else W
    return np.linalg.eigh(scatter.gram(B))[1][:, : -len(W) - 1 : -1].T @ B


def _first_shared(parts: Sequence[Subspace], rank: int, n_sent: int) -> np.ndarray:
    """Directions that the sites' leading ones have in common: the mean of their projections.

    Of directions that are as common the ones with the most variance.
    """
    leading = [part.truncate(n_sent) for part in parts]
    mean = ProjectionMean.empty(parts[0].n_features)
    mean = mean.add(leading, [part.n_samples for part in parts], max(2 * n_sent, rank))
    common, _ = mean.leading(rank, partial(factor_along, parts))
    return linalg.complete_basis(common, rank)


def local_directions(factor: np.ndarray, V: np.ndarray, n_local: int) -> np.ndarray:
    """Leading directions of ``factor.T @ factor`` outside V: as many as there are, at most."""
    W = _leading(beyond(factor, V), min(n_local, V.shape[1] - len(V)), float(np.sum(factor**2)))
    return outside(W, V)


def _leading(factor: np.ndarray, rank: int, squares: float) -> np.ndarray:
    """Leading right singular vectors, without those of roundings of a given sum of squares."""
    tall = factor.shape[0] > factor.shape[1]
    if not factor.size or not rank:
        return np.zeros((0, factor.shape[1]))
    G = factor.T @ factor if tall else factor @ factor.T
    values, Y = linalg.eigh_top(G, rank)
    least = max(EIGENVALUE_ROUNDING * squares, np.finfo(float).tiny)
    found = int(np.sum(values[:rank] > least))
    Y = Y[:, :found].T
    return np.ascontiguousarray(Y) if tall else linalg.orthonormalised(Y @ factor)


# -------------------------------------------------------------------- rounds over rows


@dataclass(frozen=True)
class SiteScatter:
    """Scatter matrix of a site's rows about its mean, of which only products are formed.

    The rows are in units of ``unit``, so that squares neither overflow nor underflow.
    """

    rows: Any
    weight: np.ndarray | None
    mean: np.ndarray
    unit: float
    squares: float

    def multiply(self, B: np.ndarray) -> np.ndarray:
        """``B S``, for directions as rows of B."""
        return scatter_product(self.rows, self.mean, B / self.unit, self.weight) / self.unit

    def gram(self, B: np.ndarray) -> np.ndarray:
        """``B S B^T``."""
        inner = centred_product(self.rows, self.mean, B.T / self.unit)
        return (inner if self.weight is None else self.weight[:, None] * inner).T @ inner


class PersonalRounds:
    """Rounds that improve shared components, and those of each site, on the rows themselves.

    They are the alternations of `shared_and_local`. The server has the shared components V, and
    receives sums over the sites: ``V P S P``, and then ``B P S P B^T`` in the span B of V and of
    that, with the scatter matrix S of a site and P beyond the site's own components, which the
    site improves before. The objective never gets worse.

    Parameters
    ----------
    federation : Federation
        Which adds up what sites send.
    parts : iterable of tuple (label, rows, weight)
        The sites.
    summaries : mapping
        Label -> summary of these rows; with exact count, mean and scatter.
    V : ndarray of shape (r, d)
        Shared components to start with.
    local : mapping
        Label -> components of the site.
    """

    def __init__(
        self,
        federation: Federation,
        parts: Iterable[tuple[Any, Any, np.ndarray | None]],
        summaries: Mapping[Any, Subspace],
        V: np.ndarray,
        local: Mapping[Any, np.ndarray],
    ):
        self._federation = federation
        largest = max(float(s.singular_values.max(initial=0.0)) for s in summaries.values())
        self.unit = largest or 1.0
        calls = [(*part, summaries[part[0]], self.unit) for part in parts]
        self._sites = dict(zip(summaries, federation.map(_site, calls), strict=True))
        self.squares = sum(site.squares for site in self._sites.values())
        self.V = V.astype(np.float64)
        self.local = {label: W.astype(np.float64) for label, W in local.items()}

    def _calls(self, B: np.ndarray) -> list[tuple]:
        """Calls with what a site keeps for itself."""
        return [(label, site, B, self.local[label]) for label, site in self._sites.items()]

    def improve(self) -> None:
        """One alternation."""
        self._improve_local()
        self.V = improved(self, self.V)
        self.local = {label: outside(W, self.V) for label, W in self.local.items()}

    def _improve_local(self) -> None:
        found = self._federation.map(_own, self._calls(self.V))
        self.local = dict(zip(self.local, found, strict=True))

    def finish(self) -> np.ndarray:
        """Improve the sites' own components once more; a factor of the scatter along V."""
        self._improve_local()
        values, Y = np.linalg.eigh(self.gram(self.V))
        return self.unit * np.sqrt(np.maximum(values, 0))[:, None] * Y.T

    # the sum of all sites' matrices P S P, of which only products are sent

    def multiply(self, B: np.ndarray) -> np.ndarray:
        """``B`` times the sum."""
        return self._sum(_products, B, B)

    def gram(self, B: np.ndarray) -> np.ndarray:
        """``B`` times the sum times ``B^T``."""
        return self._sum(_gram, B, B[len(self.V) :])

    def _sum(self, function: Callable, B: np.ndarray, new: np.ndarray) -> np.ndarray:
        total = self._federation.sum(function, self._calls(B), new)
        assert total is not None  # all sites are there
        return total


def _site(label: Any, rows: Any, weight: Any, summary: Subspace, unit: float) -> SiteScatter:
    """A site's scatter matrix, if its rows are those of its summary."""
    rows, none = check_rows(rows), np.empty((0, summary.n_features))
    answer = products_of(RowsAtHand(rows, weight), summary.mean, none, weight)
    check_same_rows(summary, answer[-1], answer[:-2], answer[-2])
    return SiteScatter(rows, weight, summary.mean, unit, summary.scatter / unit / unit)


def _own(label: Any, site: SiteScatter, V: np.ndarray, W: np.ndarray) -> np.ndarray:
    """A site's own components, improved outside the shared ones."""
    return improved(site, W, V)


def _products(label: Any, site: SiteScatter, B: np.ndarray, W: np.ndarray) -> np.ndarray:
    return beyond(site.multiply(beyond(B, W)), W)


def _gram(label: Any, site: SiteScatter, B: np.ndarray, W: np.ndarray) -> np.ndarray:
    return site.gram(beyond(B, W))
