"""What is made of missing entries at clients: the covariances of available pairs."""

from __future__ import annotations

from numbers import Real

import numpy as np
from sklearn.base import BaseEstimator

from .._kernels import linalg
from .._kernels.tolerances import EIGENVALUE_ROUNDING
from .._kernels.too_large import too_large
from .._validation.intervals import Interval
from ..summary import PairMoments, Subspace

__all__ = ["AvailablePairs"]


class MissingStrategy(BaseEstimator):
    """Base of what estimators take as ``missing``."""

    _parameter_constraints: dict = {}

    # Parameters of the estimator that mean the same for rows with missing entries.
    _leaves = frozenset({"n_components", "missing", "n_clients", "n_jobs", "random_state"})

    def validate(self) -> None:
        """Raise a ValueError that names a wrong parameter; estimators call it before they start."""
        self._validate_params()


class AvailablePairs(MissingStrategy):
    """PCA of the covariance matrix whose entries are those of all rows that have both columns.

    As ``missing`` of `FederatedPCA` and `DistributedPCA`. NaN in X is then a missing entry. Each
    client sends `PairMoments`, which add up: the covariance of columns i and j is that of the rows
    of all clients that have both, as in pandas' ``DataFrame.cov``, and the mean of a column that of
    its entries. Without missing entries that is PCA.

    Parameters
    ----------
    min_rows : float, default=2
        Rows (their weight) that each pair of columns needs, of all clients together. A pair with
        fewer is an error, as where no client measures both columns.

    See Also
    --------
    ConditionalFill : For rows with a few strong directions, of any number of columns, however few
        rows have a pair of them.

    Notes
    -----
    Unbiased where entries are missing at random, whatever the rows are like. Each pair has rows of
    its own, so that the matrix may have negative eigenvalues. They are set to zero, which is the
    nearest matrix without any, in the Frobenius norm; shares of the variance are of the sum of the
    others. The size of the most negative one is ``negative_variance_`` of the estimator: as the
    matrix is that far from any covariance, a warning tells if components of no more variance are
    shown. Rows without any entry count in ``n_samples_`` only.

    d features, n_i rows at client i: 6 n_i d^2 operations, three d x d arrays, 2 d^2 + 2 d + 1
    floats to the server, which takes O(d^3). The moments of few rows tell these rows, see
    `PairMoments`.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from fedpca_sklearn import AvailablePairs, FederatedPCA
    >>> X, y = load_iris(return_X_y=True)
    >>> holes = np.random.default_rng(0).random(X.shape) < 0.2
    >>> holes[y == 0, 1] = True  # nobody measured this at the first site
    >>> pca = FederatedPCA(2, missing=AvailablePairs()).fit(np.where(holes, np.nan, X), clients=y)
    >>> FederatedPCA(2).fit(X, clients=y).explained_variance_.round(2)
    array([4.23, 0.24])
    >>> pca.explained_variance_.round(2), round(pca.negative_variance_, 2)
    (array([4.23, 0.19]), 0.0)
    """

    _parameter_constraints: dict = {"min_rows": [Interval(Real, 0, None, closed="neither")]}

    def __init__(self, min_rows: float = 2):
        self.min_rows = min_rows

    def summary(self, pairs: PairMoments) -> tuple[Subspace, float]:
        """Summary of rows with the covariance of pairs, and the size of what was negative in it.

        Parameters
        ----------
        pairs : PairMoments
            Of all rows.

        Returns
        -------
        subspace : Subspace
            All directions of positive variance.
        negative : float
            Of the most negative eigenvalue; 0 if there is none beyond rounding.
        """
        d, n = pairs.n_features, pairs.n_samples
        values, vectors = linalg.eigh_top(pairs.covariance(self.min_rows), d)
        rounding = EIGENVALUE_ROUNDING * max(float(np.abs(values).max()), 0.0)
        negative = -float(values[-1]) if values[-1] < -rounding else 0.0
        rank = int(np.sum(values > rounding))
        V = linalg.flip_signs(np.array(vectors[:, :rank].T, order="C"))
        with np.errstate(over="ignore", invalid="ignore"):
            squares = values[:rank] * max(n - 1, n / 2)
            columns = squares @ V**2
        if not np.isfinite(columns.sum()):
            raise too_large("sum of squares")
        subspace = Subspace._trusted(
            V.astype(np.float32 if pairs.single else np.float64),
            np.sqrt(squares),
            pairs.mean,
            n,
            float(columns.sum()),
            True,
            sites=pairs.sites,
            column_scatter=columns,
        )
        return subspace, negative
