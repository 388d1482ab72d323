"""Base of the mechanisms that release a second moment once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from numbers import Integral
from typing import Any

import numpy as np

from .._kernels import linalg
from .._validation.intervals import Interval
from ..summary import Subspace
from ._ledger import PrivacyLedger
from ._mechanism import Mechanism, Terms
from ._plan import PrivacyPlan, planned
from ._rows import ClippedRows

__all__ = ["SecondMomentMechanism"]


class SecondMomentMechanism(Mechanism):
    """Base of the mechanisms that release a noisy second moment, for `FederatedPCA`.

    A subclass writes two methods:

    - ``_noise(shape, std, rng)`` returns the noise on columns of the second moment, an array of
      that shape, (d, b) for b columns;
    - ``_noise_cost(std, n_features, n_shares)`` returns what that noise costs, mu^2, a float.

    It may write ``_product_budget(n_features)``, which returns the mu^2 that sets ``std``; a noise
    on the mean, `noisy_sum`, with its cost, ``_sum_cost``; and, where no d x d matrix may exist,
    `column_blocks`, the columns that are released at a time, and `summary`, which makes a summary
    of the noisy columns. Whoever adds the columns of several clients up does that with the sums.

    Parameters
    ----------
    epsilon : float
        As in `AnalyzeGauss`, like all others; a subclass without ``__init__`` has them all.
    delta : float
        Between 0 and 1.
    row_norm : float, "private", PrivateNorm or "data"
        Bound on the norms of the rows about ``center``.
    center : float, array-like of shape (n_features,), "private", PrivateCenter or None, \
            default=None
        Point about which rows are clipped.
    mean : {"private", "fixed"}, default="private"
        Whether the mean is released, or is ``center``.
    mean_share : float or None, default=None
        Share of the budget for the mean. None: 0.2, or 0.08 with a private centre.
    n_releases : int, default=1
        Calls over which the budget is split.
    trust : {"client", "sum"}, default="client"
        Whether each client's message is private, or their sum.
    ledger : PrivacyLedger or None, default=None
        Where all releases are counted.
    """

    _parameter_constraints: dict = {
        **Mechanism._parameter_constraints,
        "n_releases": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(
        self,
        epsilon: float,
        delta: float,
        row_norm: float | str,
        *,
        center: Any = None,
        mean: str = "private",
        mean_share: float | None = None,
        n_releases: int = 1,
        trust: str = "client",
        ledger: PrivacyLedger | None = None,
    ):
        self.epsilon = epsilon
        self.delta = delta
        self.row_norm = row_norm
        self.center = center
        self.mean = mean
        self.mean_share = mean_share
        self.n_releases = n_releases
        self.trust = trust
        self.ledger = ledger

    def column_blocks(self, n_features: int, max_keep: int | None) -> list[slice]:
        """Columns of the second moment that are released at a time.

        Parameters
        ----------
        n_features : int
            Number of columns of the second moment.
        max_keep : int or None
            Directions that the summary will have at most; None: no bound.

        Returns
        -------
        blocks : list of slice
            Consecutive blocks of columns, together all of them; here one block.
        """
        return [slice(0, n_features)]

    def plan(self, n: int, d: int, n_components: int, *, spectrum: Any = None) -> PrivacyPlan:
        """What this budget is expected to give, without a row: nothing is spent.

        Parameters
        ----------
        n : int
            Rows of a client.
        d : int
            Columns.
        n_components : int
            Components whose error is of interest.
        spectrum : array-like of shape (m,), default=None
            Variances that the rows are believed to have along their principal directions, m of them
            up to d, the others 0; not to be taken from the rows. None: 1 / i^2, in units in which
            rows are about as long as ``row_norm``.

        Returns
        -------
        plan : PrivacyPlan
            Expected error and components above noise, and the same for half and twice the epsilon.

        Notes
        -----
        Up to 20 draws of the mechanism's own noise, O(d^3) each, on the second moment that normal
        rows of these variances are expected to have. Of a private norm and centre the cost is
        counted, and not their error, so that a plan for few rows is too good.

        Examples
        --------
        >>> from fedpca_sklearn import AnalyzeGauss
        >>> plan = AnalyzeGauss(1.0, 1e-5, row_norm="private").plan(10_000, 50, 2)
        >>> round(plan.error, 2), round(plan.half.error, 2), round(plan.twice.error, 2)
        (0.02, 0.04, 0.01)
        >>> plan.n_components_above_noise
        10.45
        """
        return planned(self, n, d, n_components, spectrum)

    def noisy_sum(self, rows: ClippedRows, terms: Terms, rng: np.random.Generator) -> np.ndarray:
        """A client's sum of y, with its noise.

        Parameters
        ----------
        rows : ClippedRows
            Rows of the client, less the public centre and clipped.
        terms : Terms
            Bound of the rows, and the scale of the noise.
        rng : Generator
            Random numbers of the noise.

        Returns
        -------
        noisy : ndarray of shape (d,)
            The sum with noise of the scale ``terms.mean_std`` on each feature.
        """
        return self._noisy(rows.sum(), terms.mean_std, rng)

    def _sum_cost(self, std, n_features, n_shares):
        return self._gaussian_cost(2, std, n_features, n_shares)

    def noisy_columns(
        self, rows: ClippedRows, columns: slice, terms: Terms, rng: np.random.Generator
    ) -> np.ndarray:
        """A client's columns of the second moment, with its noise.

        Parameters
        ----------
        rows : ClippedRows
            Rows of the client, less the public centre and clipped.
        columns : slice
            One of `column_blocks`.
        terms : Terms
            Bound of the rows, and the scale of the noise.
        rng : Generator
            Random numbers of the noise.

        Returns
        -------
        noisy : ndarray of shape (d, b)
            The b columns with noise of the scale ``terms.product_std``.
        """
        products = rows.products(columns)
        products += self._noise(products.shape, terms.product_std, rng)
        return products

    @abstractmethod
    def _noise(self, shape: tuple[int, int], std: float, rng: np.random.Generator) -> np.ndarray:
        """Noise on columns of the second moment.

        Parameters
        ----------
        shape : tuple of int
            (d, b) for b columns; (d, d) unless `column_blocks` says otherwise.
        std : float
            Size of the noise: the standard deviation that Gaussian noise on the diagonal needs.
        rng : Generator
            The only source of randomness.

        Returns
        -------
        noise : ndarray of the shape asked for
            Symmetric where it is square, as the second moment is.
        """

    @abstractmethod
    def _noise_cost(self, std: float, n_features: int, n_shares: int) -> float:
        """What the noise on a second moment costs, or on a product of a basis with it.

        Parameters
        ----------
        std : float
            Size of the noise where rows have norm 1, which is the sum of ``n_shares`` of size ``std
            / sqrt(n_shares)``.
        n_features : int
            Number of features.
        n_shares : int
            Clients whose noise adds up.

        Returns
        -------
        mu2 : float
            mu^2 of the Gaussian that is no easier to see through, see `gaussian_cost`, where one
            row is replaced; ``math.inf`` where nothing is proven.
        """

    def summary(
        self,
        columns: Iterator[np.ndarray],
        total: np.ndarray | None,
        n: int,
        terms: Terms,
        max_keep: int | None,
        dtype: Any,
    ) -> Subspace:
        """Summary of n rows, from their noisy second moment and sum: post-processing.

        Parameters
        ----------
        columns : iterator of ndarray
            Noisy columns of the second moment about the public centre, in order.
        total : ndarray or None
            Noisy sum of y; None where the mean is fixed.
        n : int
            Number of rows.
        terms : Terms
            Bound of the rows, and the public centre.
        max_keep : int or None
            Directions to keep at most; None: no bound.
        dtype : dtype
            Of the components.

        Returns
        -------
        subspace : Subspace
            Mean, components and scatter that follow from the release.
        """
        (M,) = columns
        origin = terms.origin(len(M))
        mean = np.zeros(len(M)) if total is None else terms.within(total / n)
        M -= n * np.outer(mean, mean)
        trace = float(np.trace(M))
        values, vectors = linalg.eigh_top(M, len(M) if max_keep is None else max_keep)
        rounding = len(M) * np.finfo(float).eps * float(np.abs(values).max())
        keep = int(np.sum(values[:max_keep] > rounding))
        return summary_of(vectors[:, :keep].T, values[:keep], origin + mean, n, trace, dtype)


def summary_of(
    V: np.ndarray, energies: np.ndarray, mean: np.ndarray, n: int, trace: float, dtype: Any
) -> Subspace:
    """Summary of directions with their sums of squares; the rest of the trace is scatter."""
    V = linalg.flip_signs(np.array(V, order="C")).astype(dtype, copy=False)
    s = np.sqrt(energies)
    return Subspace._trusted(V, s, mean, n, max(trace, float(s @ s)), True)
