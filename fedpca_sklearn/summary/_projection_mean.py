"""Summaries along given directions, and means of projections: no d x d matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg

from .._kernels import linalg
from .._kernels.tolerances import EIGENVALUE_ROUNDING
from ._merging import in_float64
from ._subspace import Subspace


def rayleigh_ritz(total: Subspace, V: np.ndarray, factor: np.ndarray) -> Subspace:
    """Summary by given orthonormal directions, rotated to the principal axes among them.

    ``factor.T @ factor`` is the scatter matrix of the rows within the directions. All of them are
    kept, also those without variance; count, mean, scatter and dtype are those of ``total``.
    """
    if not len(V):
        return total
    few = max(len(V) - len(factor), 0)
    factor = np.concatenate([factor, np.zeros((few, len(V)))])
    _, s, W = scipy.linalg.svd(factor, full_matrices=False, check_finite=False)
    V = linalg.flip_signs(W @ V).astype(total.components.dtype, copy=False)
    known = {"scatter": max(total.scatter, float(s @ s)), "column_scatter": total.column_scatter}
    return total._replace(components=V, singular_values=s, **known)


def factor_along(parts: Sequence[Subspace], V: np.ndarray) -> np.ndarray:
    """Factor of the scatter matrix along directions, of the rows about the means of their parts.

    What lies beyond the components of a part counts as none.
    """
    return np.concatenate(
        [part.singular_values[:, None] * (part.components @ V.T) for part in parts]
    )


# Directions that are stacked at once.
ROWS_AT_ONCE = 1024
# Eigenvalues of a mean of projections, at most 1, that are taken for equal: a hundred times what
# is a rounding error in one.
_TIE = 1e-10


@dataclass(frozen=True, eq=False)
class ProjectionMean:
    """Weighted mean of projections on subspaces, by its leading eigenpairs.

    The mean of V_i^T V_i over bases V_i, which Fan et al. and online distributed PCA take in the
    place of a mean of covariances. No d x d matrix is formed, and any number of projections may be
    added in turn. ``vectors.T @ diag(values) @ vectors`` differs from the exact mean by a matrix of
    spectral norm at most ``dropped``; a positive semi-definite one where all projections are exact.

    Attributes
    ----------
    vectors : ndarray of shape (m, d)
        Orthonormal rows, the leading eigenvectors.
    values : ndarray of shape (m,)
        Their eigenvalues, at most 1, in decreasing order.
    weight : float
        Sum of the weights of the projections.
    dropped : float
        Bound on the spectral norm of what is missing.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import Subspace
    >>> from fedpca_sklearn.base import ProjectionMean
    >>> rng = np.random.default_rng(0)
    >>> parts = [Subspace.from_rows(rng.standard_normal((50, 4)), 2) for _ in range(3)]
    >>> mean = ProjectionMean.empty(4).add(parts, [1.0, 1.0, 2.0], max_rank=4)
    >>> exact = np.average([p.components.T @ p.components for p in parts], 0, [1, 1, 2])
    >>> bool(np.allclose(mean.vectors.T * mean.values @ mean.vectors, exact))
    True
    """

    vectors: np.ndarray
    values: np.ndarray
    weight: float = 0.0
    dropped: float = 0.0

    @classmethod
    def empty(cls, n_features: int) -> ProjectionMean:
        """Return the mean of no projections.

        Parameters
        ----------
        n_features : int
            Number of columns.

        Returns
        -------
        mean : ProjectionMean
            Of weight 0.
        """
        return cls(np.zeros((0, n_features)), np.zeros(0))

    def add(
        self, subspaces: Sequence[Subspace], weights: Sequence[float], max_rank: int
    ) -> ProjectionMean:
        """Mean with the projections on further subspaces, cut to ``max_rank`` eigenpairs.

        By the Gram matrix of the R scaled directions in all: O(R^2 d), and less where the new
        directions have few non-zero columns. Where they are more than these columns, by that of
        their triangular factor.

        Parameters
        ----------
        subspaces : sequence of Subspace
            Whose components are the bases.
        weights : sequence of float
            One for each, not negative.
        max_rank : int
            Eigenpairs to keep.

        Returns
        -------
        mean : ProjectionMean
            Of all projections so far; this one is unchanged.
        """
        group: list[Subspace] = []
        group_weights: list[float] = []
        mean, rows = self, 0
        for subspace, weight in zip(subspaces, weights, strict=True):
            if group and rows + subspace.n_components > ROWS_AT_ONCE:
                mean = mean._add(group, group_weights, max_rank)
                group, group_weights, rows = [], [], 0
            group.append(subspace)
            group_weights.append(weight)
            rows += subspace.n_components
        return mean._add(group, group_weights, max_rank) if group else mean

    def _add(self, subspaces, weights, max_rank):
        total = self.weight + float(sum(weights))
        k = len(self.vectors)
        bases = [in_float64(subspace).components for subspace in subspaces]
        used = np.any([V.any(axis=0) for V in bases], axis=0)
        columns = slice(None) if used.all() else np.flatnonzero(used)
        M = np.empty((sum(map(len, bases)), int(used.sum())))
        at = 0
        for V, weight in zip(bases, weights, strict=True):
            np.multiply(V[:, columns], np.sqrt(weight / total), out=M[at : at + len(V)])
            at += len(V)
        if len(M) > M.shape[1]:
            M = linalg.r_factor(M)  # as few rows as columns, of the same products
        old = np.sqrt(self.values * (self.weight / total))
        G = np.zeros((k + len(M), k + len(M)))
        G[np.arange(k), np.arange(k)] = old**2
        G[k:, :k] = (M @ self.vectors[:, columns].T) * old
        G[:k, k:] = G[k:, :k].T
        G[k:, k:] = M @ M.T
        if not len(G):
            return replace(self, weight=total)
        values, W = linalg.eigh_top(G, max_rank + 1)
        keep = min(max_rank, int(np.sum(values > EIGENVALUE_ROUNDING)))
        cut = float(values[max_rank:].max(initial=0))
        dropped = self.dropped * (self.weight / total) + (cut if cut > EIGENVALUE_ROUNDING else 0.0)
        W = W[:, :keep] / np.sqrt(values[:keep])
        vectors = (W[:k].T * old) @ self.vectors
        vectors[:, columns] += W[k:].T @ M
        return ProjectionMean(linalg.orthonormalised(vectors), values[:keep], total, dropped)

    def blurred(self, sine: float, weight: float) -> ProjectionMean:
        """The same mean where a projection in it, of some weight, was known up to an angle.

        Projections on two subspaces of one dimension are apart by the sine of their largest angle.

        Parameters
        ----------
        sine : float
            Bound on the sine of the largest angle.
        weight : float
            Of the projection.

        Returns
        -------
        mean : ProjectionMean
            With a larger ``dropped``.
        """
        return replace(self, dropped=self.dropped + sine * weight / self.weight)

    def sine_bound(self, k: int) -> float:
        """Bound on the sine of the largest angle to the k leading vectors of the exact mean.

        Davis and Kahan; for a mean from which nothing but eigenpairs was cut.

        Parameters
        ----------
        k : int
            Number of leading vectors.

        Returns
        -------
        bound : float
            At most 1.
        """
        if self.dropped == 0:
            return 0.0
        first, last = (self.values[i] if i < len(self.values) else 0.0 for i in (k - 1, k))
        return min(1.0, self.dropped / max(first - last, self.dropped))

    def leading(
        self, n_components: int | None, factor_along: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Leading directions, and the factor of the scatter matrix of the rows within them.

        Where the last eigenvalue is one of several equal ones, as with a single client that sends
        more directions than are wanted, those of them with the most variance are taken.

        Parameters
        ----------
        n_components : int or None
            Number of directions; None: all that are known.
        factor_along : callable
            Takes leading eigenvectors, of shape (k, d), and returns an array of shape (m, k).

        Returns
        -------
        directions : ndarray of shape (k, d)
            Orthonormal rows. Among equal eigenvalues those along which the rows vary most.
        factor : ndarray of shape (m, k)
            That of the rows along them.
        """
        found = len(self.values)
        k = found if n_components is None else min(n_components, found)
        if k == found:
            return self.vectors, factor_along(self.vectors)
        first, last = np.searchsorted(-self.values, -self.values[k - 1] + np.array([-_TIE, _TIE]))
        V = self.vectors[:last]
        factor = factor_along(V)
        if last == k:
            return V, factor
        W = scipy.linalg.svd(factor[:, first:], check_finite=False)[2][: k - first]
        return (
            np.concatenate([V[:first], W @ V[first:]]),
            np.concatenate([factor[:, :first], factor[:, first:] @ W.T], axis=1),
        )
