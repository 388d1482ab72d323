"""Merge strategy that averages the projections on local eigenspaces: Fan, Wang, Wang and Zhu."""

from __future__ import annotations

from collections.abc import Sequence

from sklearn.utils._param_validation import StrOptions

from .._validation.intervals import AT_LEAST_ONE
from .._validation.parameters import allowed, with_parameters
from ..summary import Subspace
from ..summary._projection_mean import ROWS_AT_ONCE, ProjectionMean
from ..summary._rayleigh_ritz import along
from ._merge import MergeStrategy, check_count, moments_and_factor

__all__ = ["ProjectionAverage"]


@with_parameters
class ProjectionAverage(MergeStrategy):
    """Leading eigenvectors of the mean of the clients' projection matrices.

    Every client has the same weight, whatever its scale and number of rows: the directions do not
    depend on singular values. Suits sites that differ by one factor for all columns, or
    at different noise, and a broken site among several; where sites differ in what they see,
    `SubspaceMerge` is the better choice. What lies between the means of sites is in no site's
    components, and so not in the average.

    It does not correct for columns in different units, which change a site's own directions: bring
    each column to one unit before. Only directions are averaged: ``mean_`` and the variances of the
    result are plain sums over all rows, so that one site's wrong mean moves `transform` of every
    row. Where a site may be wrong, centre rows at a known point and take an estimator with
    ``center=False``.

    Parameters
    ----------
    projection_dim : int or None, default=None
        Directions that a client sends, the dimension of its projection. None: ``n_components`` of
        the estimator.
    weighting : {"equal", "rows"}, default="equal"
        Weight of a client in the mean: one as in [1]_, or its number of rows. The same for clients
        of equal size. "rows" is more accurate where sites are alike and of very different sizes,
        and lets a site that claims many rows decide.

    See Also
    --------
    SubspaceMerge : Merge with singular values, exact without truncation.
    OnlineDistributedPCA : The average over clients and time.

    Notes
    -----
    [1]_, Algorithm 1, if the clients' estimator finds their leading directions exactly. The default
    does up to 256 features, and with ten directions or more up to 40 times as many and 200, at most
    2,048; ``estimator=PCA(svd_solver="full")`` of scikit-learn always does. The mean is kept as
    eigenpairs, in O(R d) memory for R directions in all (512 of them where more than 1,024 come
    in), never as a d x d matrix. Time O(R d min(R, d)). The means, variances and the total scatter
    of the result are those of the merged summaries along the directions found; only for them do the
    singular values travel. Directions beyond the span of the local eigenspaces, if more are asked
    for, have a variance of zero in the result, whatever the rows have there. Among directions with
    equal eigenvalues, such as those of a single client with ``projection_dim`` above
    ``n_components``, the ones with the most variance come first.

    References
    ----------
    .. [1] J. Fan, D. Wang, K. Wang, Z. Zhu, "Distributed estimation of principal eigenspaces",
       Annals of Statistics 2019.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import FederatedPCA, ProjectionAverage, subspace_distance
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((400, 2)) @ rng.standard_normal((2, 6))
    >>> X += 0.1 * rng.standard_normal((400, 6))
    >>> true = np.linalg.svd(X)[2][:2]
    >>> X[380:] = 100 * rng.standard_normal((20, 6))  # one of twenty sites sends noise
    >>> for merge in None, ProjectionAverage():
    ...     pca = FederatedPCA(2, merge=merge, n_clients=20).fit(X)
    ...     print(round(subspace_distance(pca.components_, true), 2))
    0.85
    0.03
    """

    projection_dim: int | None = allowed(AT_LEAST_ONE, None, default=None)
    weighting: str = allowed(StrOptions({"rows", "equal"}), default="equal")

    def directions_needed(self, n_components: int | float | None) -> int | None:
        """Return ``projection_dim``, or ``n_components`` without one."""
        why = "a mean of projections has no variances."
        asked = check_count(n_components, f"ProjectionAverage: {why}", or_none=True)
        return asked if self.projection_dim is None else self.projection_dim

    def directions_sent(self, n_components: int | float | None) -> int | None:
        """Return as many as needed: every direction sent counts as much as the first."""
        return self.directions_needed(n_components)

    def _merge(self, parts, n_components, kept):
        if n_components is None:
            n_components = self.projection_dim
        return projection_average(parts, n_components, shares_of(parts, self.weighting))[0]


def projection_average(
    parts: Sequence[Subspace], n_components: int | None, weights: Sequence[float]
) -> tuple[Subspace, float]:
    """Summary of all rows along the leading directions of the mean of projections.

    Parameters
    ----------
    parts : sequence of Subspace
        All of them hold rows.
    n_components : int or None
        None: as many as the part with the most directions has.
    weights : sequence of float
        Those of the parts in the mean, positive.

    Returns
    -------
    summary : Subspace
    sine : float
        Bound on the sine of the largest angle to the directions of the mean without truncation; 0
        up to `ROWS_AT_ONCE` directions in all.
    """
    if n_components is None:
        n_components = max(part.n_components for part in parts)
    max_keep = max(ROWS_AT_ONCE // 2, 2 * n_components)
    mean = ProjectionMean.empty(parts[0].n_features)
    mean = mean.add(parts, weights, max_keep)
    total, factor = moments_and_factor(parts)
    found = along(total, *mean.leading(n_components, factor))
    return found, mean.sine_bound(n_components)


def shares_of(parts: Sequence[Subspace], weighting: str) -> list[float]:
    """Weights of the parts in a mean of their projections."""
    return [part.n_samples if weighting == "rows" else 1.0 for part in parts]
