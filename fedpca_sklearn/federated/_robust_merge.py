"""Merge strategy for sites of which some may be wrong, or lie."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral

import numpy as np
from sklearn.utils._param_validation import StrOptions

from .._validation.intervals import Interval
from ..summary import merge_subspaces
from ._lack_of_fit import warn_of_suspects
from ._merge import MergeStrategy
from ._projection_average import projection_average
from ._screening import evidence, for_each_pair, most_bad, shares_trusted, trusted_parts

__all__ = ["RobustMerge"]

# Steps of Weiszfeld's algorithm, and the change of weights that ends them.
_STEPS, _TOL = 200, 1e-8


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

    _parameter_constraints: dict = {
        "method": [StrOptions({"filter", "median"})],
        "max_bad": [Interval(Integral, 0, None, closed="left"), None],
    }

    compares_sites = True
    _counts = "RobustMerge, which compares so many directions of each site."

    def __init__(self, method: str = "filter", max_bad: int | None = None):
        self.method = method
        self.max_bad = max_bad

    def _merge(self, parts, n_components, kept):
        rank = min(self.directions_needed(n_components), parts[0].n_features)
        bad = most_bad(self.max_bad, len(parts), f"the sites, of which {len(parts)} have rows")
        found = evidence(parts, rank, bad)
        self.evidence_ = dict(enumerate(found))
        self.suspects_ = {i: one for i, one in self.evidence_.items() if max(one) > 1}
        trusted = trusted_parts(parts, shares_trusted(parts, found, bad))
        if self.method == "filter":
            merged = merge_subspaces(trusted, rank)
            if self.suspects_ and 0 < len(trusted) < len(parts):
                warn_of_suspects(parts, trusted, merged, self.suspects_.values())
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
        along = inner @ weights
        distances = np.sqrt(np.maximum(ranks - 2 * along + weights @ along, _TOL**2))
        before, weights = weights, 1 / distances / np.sum(1 / distances)
        if np.abs(weights - before).max() < _TOL:
            break
    return weights
