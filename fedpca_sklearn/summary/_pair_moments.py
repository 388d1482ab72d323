"""First and second moments of rows with missing entries, pair by pair of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .._kernels.row_moments import moments_of_pairs, settle
from .._kernels.tolerances import VALID_BASIS_TOL
from .._kernels.too_large import too_large
from .._validation.checks import check_finite, check_weight, nonnegative_float
from .._validation.containers import (
    check_names,
    check_same_names,
    checked_array,
    names_known,
    names_of,
)
from ._codec import PAIRS, SINGLE, InFiles, checked_arrays
from ._provenance import check_sites, check_stored_names, encode_labels, pooled_sites

# What rounding may add to an inequality that holds for all rows, as a share of its larger side.
_SLACK = VALID_BASIS_TOL[np.dtype(np.float64)]
_ARRAYS = ("origin", "counts", "means", "products")


@dataclass(frozen=True, eq=False, repr=False)
class PairMoments(InFiles):
    """Moments of each pair of columns over the rows that have both, of rows with missing entries.

    What a site sends in place of a `Subspace` where entries of its rows are missing. Moments of
    disjoint rows add up, so that those of all sites give the covariances of all rows.

    Parameters
    ----------
    counts : array-like of shape (d, d)
        Entry (i, j): weight of the rows that have columns i and j; symmetric.
    means : array-like of shape (d, d)
        Entry (i, j): weighted mean of column i less ``origin[i]``, over the rows that have columns
        i and j; 0 where there are none.
    products : array-like of shape (d, d)
        Entry (i, j): weighted sum of products of the deviations of columns i and j from their means
        over the rows that have both; symmetric.
    origin : array-like of shape (d,)
        Near the mean of each column. Means are kept as this and what is beyond it, so that nothing
        is lost where they are far from zero.
    n_samples : float
        Weight of all rows.
    feature_names : sequence of str, default=None
        Names of the columns, where they are known.
    site : str, default=None
        Who the rows belong to, if all belong to one.
    sites : collection of str, default=()
        Those whose rows are in the moments, as far as they are known.
    single : bool, default=False
        Whether the rows are float32, and results are to be.

    Raises
    ------
    ValueError
        If no rows have such moments: counts that are not symmetric or exceed those of one of the
        two columns, means or products beyond what the sums of squares of the columns allow.

    See Also
    --------
    AvailablePairs : PCA of them.

    Notes
    -----
    2 d^2 + 2 d + 1 floats: counts and products d (d + 1) / 2 each, means d^2, as that of column i
    depends on the rows that have j. `from_rows` takes 6 n d^2 operations, three d x d arrays
    and a block of rows.

    The moments of few rows give them away: where one row has both columns of a pair, the means are
    its entries, and so is the difference of two sums where a column is missing in one row only.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import PairMoments
    >>> X = np.array([[1.0, 2.0], [3.0, 6.0], [2.0, 7.0], [10.0, np.nan]])
    >>> PairMoments.from_rows(X).covariance().round(2)
    array([[16.67,  2.  ],
           [ 2.  ,  7.  ]])
    """

    _kind = PAIRS
    counts: np.ndarray
    means: np.ndarray
    products: np.ndarray
    origin: np.ndarray
    n_samples: float
    feature_names: tuple[str, ...] | None = None
    site: str | None = None
    sites: tuple[str, ...] = ()
    single: bool = False

    def __post_init__(self):
        checked: dict[str, Any] = checked_arrays(PAIRS, vars(self))
        checked["n_samples"] = nonnegative_float("n_samples", self.n_samples)
        _check_rows_exist(*(checked[name] for name in ("counts", "means", "products", "n_samples")))
        checked["site"], checked["sites"] = check_sites(self.site, self.sites)
        checked["feature_names"] = check_names(self.feature_names, len(checked["origin"]))
        self._set(checked)

    def _set(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
            object.__setattr__(self, name, value)

    @classmethod
    def _trusted(cls, **values: Any) -> PairMoments:
        """Build without validation from arrays that nobody else will write to."""
        self = object.__new__(cls)
        self._set(values)
        return self

    def __setstate__(self, state):
        self._set(state)

    def __repr__(self):
        own = np.diag(self.counts).sum() / ((self.n_samples or 1.0) * self.n_features)
        return (
            f"PairMoments(n_features={self.n_features}, n_samples={self.n_samples:.6g}, "
            f"observed={own:.1%})"
        )

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self.origin)

    @property
    def n_floats(self) -> int:
        """Floats that a message with these moments carries."""
        d = len(self.origin)
        return 2 * d * (d + 1) + 1

    @property
    def mean(self) -> np.ndarray:
        """Mean of each column over the rows that have it."""
        return self.origin + np.diag(self.means)

    @property
    def scatter(self) -> float:
        """Sum of squares of all columns about their means."""
        with np.errstate(over="ignore"):
            return float(np.trace(self.products))

    def covariance(self, min_rows: float = 2) -> np.ndarray:
        """Covariance of each pair of columns over the rows that have both.

        Parameters
        ----------
        min_rows : float, default=2
            Weight of the rows that each pair needs.

        Returns
        -------
        covariance : ndarray of shape (d, d)
            Divided by the weight of the pair less one, as pandas' ``DataFrame.cov`` does, or by
            half of it below two. It may have negative eigenvalues.

        Raises
        ------
        ValueError
            If a pair has fewer rows; the message names it.
        """
        few = np.argwhere(self.counts < min_rows)
        if len(few):
            i, j = min(few.tolist(), key=lambda pair: (pair[0] != pair[1], pair))
            raise ValueError(
                f"{self._pair_named(i, j)} in {self.counts[i, j]:g} rows of all clients "
                f"(n_samples={self.n_samples:g}), fewer than min_rows={min_rows:g}: available "
                "pairs do not tell the covariance. Leave a column out, or fill entries in before."
            )
        return self.products / np.maximum(self.counts - 1, self.counts / 2)

    def _pair_named(self, i: int, j: int) -> str:
        names = self.feature_names
        a, b = (repr(int(c) if names is None else names[c]) for c in (i, j))
        return f"column {a} is observed" if i == j else f"columns {a} and {b} are observed together"

    # ---------------------------------------------------------------- construction

    @classmethod
    def from_rows(cls, X: Any, *, sample_weight: Any = None) -> PairMoments:
        """Take the moments of rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows, where NaN is a missing entry; sparse ones are densified block by block, and what
            they do not store is zero.
        sample_weight : array-like of shape (n,), default=None
            Weight of each row; None: 1. Integer weights equal repeated rows.

        Returns
        -------
        moments : PairMoments
            With the names of the columns of a data frame.
        """
        names = names_of(X)
        checks = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}
        with np.errstate(over="ignore"):
            X = checked_array(X, **checks)
        check_finite(X, allow_nan=True)
        return cls._of(X, check_weight(sample_weight, X.shape[0]), names)

    @classmethod
    def _of(cls, X: Any, weight: np.ndarray | None, names: Any = None) -> PairMoments:
        """The same of checked rows and weights."""
        with np.errstate(over="ignore", invalid="ignore"):
            counts, means, products, origin = moments_of_pairs(X, weight)
        if not all(map(np.all, map(np.isfinite, (means, products, origin)))):
            raise too_large("sum of squares", weight=weight)
        return cls._trusted(
            counts=counts,
            means=means,
            products=products,
            origin=origin,
            n_samples=float(X.shape[0] if weight is None else weight.sum()),
            feature_names=names,
            site=None,
            sites=(),
            single=X.dtype == np.float32,
        )

    def _replace(self, **changes: Any) -> PairMoments:
        """Build moments that differ in names or site, which sets ``sites`` to it alone."""
        if "site" in changes:
            changes["sites"] = () if changes["site"] is None else (changes["site"],)
        return self._trusted(**vars(self) | changes)

    # ---------------------------------------------------------------- storage

    def _head(self) -> tuple[int, dict[str, Any]]:
        numbers = {"d": self.n_features, "n_samples": self.n_samples, "sites": len(self.sites)}
        return SINGLE * bool(self.single), numbers

    def _labels(self) -> bytes:
        return encode_labels(self.feature_names, self.site, self.sites, None)

    def _stored(self) -> dict[str, np.ndarray]:
        check_stored_names(self)
        return {name: getattr(self, name) for name in _ARRAYS}

    @classmethod
    def _read(cls, found: dict[str, Any]) -> PairMoments:
        known = {field.name: found[field.name] for field in fields(cls) if field.name in found}
        return cls(**known, single=bool(found["flags"] & SINGLE))


def _check_rows_exist(
    counts: np.ndarray, means: np.ndarray, products: np.ndarray, n_samples: float
) -> None:
    """Raise unless rows can have such moments, as far as pairs of columns tell.

    The rows that have columns i and j are some of those that have i, so that the scatter of column
    i bounds that within them and that of their mean.
    """
    own, squares, at = np.diag(counts), np.diag(products), np.diag(means)
    if (counts < 0).any() or (counts > np.minimum(own[:, None], own) * (1 + _SLACK)).any():
        raise ValueError(
            "counts must be non-negative, and of pairs at most those of their columns."
        )
    if own.max() > n_samples * (1 + _SLACK):
        raise ValueError(
            f"n_samples={n_samples!r} must be at least the counts, up to {own.max()!r}."
        )
    if (squares < 0).any() or (products[counts == 0] != 0).any():
        raise ValueError("products must be sums of squares on the diagonal, and 0 without rows.")
    lengths = np.sqrt((1 + _SLACK) * squares)  # whose products are finite, and not zero
    if (np.abs(products) > lengths[:, None] * lengths + np.finfo(np.float64).tiny).any():
        raise ValueError("products must not exceed those of their columns.")
    rounding = _SLACK * (squares + own * at**2)
    if (counts * (means - at[:, None]) ** 2 > (squares + rounding)[:, None]).any():
        raise ValueError("means of pairs must be as near to those of columns as these vary.")
    if means[counts == 0].any():
        raise ValueError("means must be 0 where there are no rows.")


def merged_pairs(parts: Sequence[PairMoments]) -> PairMoments:
    """Moments of all rows, from those of disjoint parts of them.

    Raises
    ------
    ValueError
        If columns differ.
    """
    names, d = names_known(parts), len(parts[0].origin)
    for i, part in enumerate(parts):
        who = f"pairs[{i}]" + (f" (site {part.site!r})" if part.site is not None else "")
        if len(part.origin) != d:
            raise ValueError(f"{who} has {part.n_features} features, pairs[0] has {d}.")
        check_same_names(names, part.feature_names, f"{who}, unlike others,")
    if len(parts) == 1:
        return parts[0]
    # the origin of a column where it has most rows, which is exact
    most = np.argmax([np.diag(part.counts) for part in parts], axis=0)
    origin = np.stack([part.origin for part in parts])[most, np.arange(d)]
    counts, sums = np.zeros((d, d)), np.zeros((d, d))
    with np.errstate(over="ignore", invalid="ignore"):
        for part in parts:
            counts += part.counts
            sums += part.counts * (part.means + (part.origin - origin)[:, None])
        means = np.divide(sums, counts, out=sums, where=counts > 0)
        products = np.zeros((d, d))
        for part in parts:
            beyond = part.means + (part.origin - origin)[:, None] - means
            products += part.products
            products += part.counts * beyond * beyond.T
    settle(products)
    n_samples = float(sum([part.n_samples for part in parts]))
    if not (np.isfinite(products).all() and np.isfinite(n_samples)):
        raise too_large("sum of squares", holder="The sum of all clients")
    return PairMoments._trusted(
        counts=counts,
        means=means,
        products=products,
        origin=origin,
        n_samples=n_samples,
        feature_names=names,
        site=None,
        sites=pooled_sites(parts),
        single=all(part.single for part in parts),
    )
