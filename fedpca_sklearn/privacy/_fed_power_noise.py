"""FedPower: noise on the product of each round."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY

import numpy as np

from .._validation.intervals import allowed, with_parameters
from ._gaussian import DiscreteGaussian
from ._mechanism import NOISE, Mechanism, Terms


@with_parameters
class FedPowerNoise(Mechanism):
    """Gaussian noise in each round of `FederatedPowerPCA`: O(d k) memory, no d x d matrix.

    Clients send nothing but noisy products of the basis with the second moment of their clipped
    rows, a noisy sum of rows in the first round, and noisy variances in the last. The number of
    rounds, ``n_rounds`` + 2, is known in advance, and the budget is split over it: choose a few.

    Two data sets are neighbours if they differ by the replacement of one row. The number of rows of
    each client is public.

    Parameters
    ----------
    epsilon : float
        Above 0; budget of each client, for all rounds of a fit together. ``inf``: no noise, rows
        are still clipped.
    delta : float
        Between 0 and 1; should be far below one over the number of rows.
    row_norm : float or "data"
        Bound R on the norms of the rows about ``center``; longer ones are shortened to it. Must be
        known without a look at the rows. "data" takes the largest norm, is not private, and warns
        with `PrivacyLeakWarning`.
    center : float, array-like of shape (n_features,) or None, default=None
        Public point about which rows are clipped, or a number for all features. None: the origin.
    mean : {"private", "fixed"}, default="private"
        "private": the mean is released with noise. "fixed": rows are centred at ``center``, which
        costs nothing.
    mean_share : float, default=0.2
        Share of the budget (of mu^2) for the mean, if it is private.
    trust : {"client", "sum"}, default="client"
        "client": what each client sends is private. "sum": each of K clients adds noise of 1 / K of
        the variance, for when nobody sees more than the sum. That needs a channel that loses
        nobody: noise that does not arrive does not protect.
    ledger : PrivacyLedger or None, default=None
        Where all releases are counted, before they are computed. None: each fit has an account of
        its own, and so have copies of a fitted estimator.
    noise : DiscreteGaussian or None, default=None
        `DiscreteGaussian`: integer multiples of a grid, which secure aggregation needs with
        ``trust="sum"``. None: normal numbers.

    See Also
    --------
    AnalyzeGauss : One round.

    Notes
    -----
    FedPower [1]_ with exact composition: mu^2 adds up over rounds, also though each basis depends
    on the rounds before. With orthonormal rows V and a change D of the second moment, |V D|_F <=
    |D|_F <= sqrt(2) R^2. The last round releases V M V^T with noise as in `AnalyzeGauss` and the
    trace of M with the same s. The trace is free: with p = |y|^2 and q = |z|^2 the two together
    change by at most p^2 + q^2 + (p - q)^2 in the square, which is convex and hence largest in a
    corner, 2 R^4, as the matrix alone. A client centres its products by the mean of all and by its
    own sum as it released it, which is post-processing.

    ``privacy_spent_`` is the budget of all rounds, also where a fit stops early: a stop by ``tol``
    depends on what was released, and composition with such a stop promises no more.

    References
    ----------
    .. [1] X. Guo, X. Li, X. Chang, S. Wang, Z. Zhang, "FedPower: privacy-preserving distributed
       eigenspace estimation", Machine Learning 2024.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import FederatedPowerPCA, FedPowerNoise
    >>> X, y = load_digits(return_X_y=True)
    >>> private = FedPowerNoise(4.0, 1e-5, row_norm=50, center=[5.0] * 64, trust="sum")
    >>> pca = FederatedPowerPCA(3, n_rounds=5, mechanism=private, random_state=0).fit(X)
    >>> print("epsilon = {:.3f}, delta = {:g}".format(*pca.privacy_spent_))
    epsilon = 4.000, delta = 1e-05
    >>> pca.explained_variance_.round()  # without noise 179, 164 and 142
    array([145., 133., 127.])
    """

    _OFF_DIAGONAL = math.sqrt(0.5)  # of the last round

    _: KW_ONLY
    mean_share: float | None = 0.2
    noise: DiscreteGaussian | None = allowed(*NOISE, default=None)

    def noisy_sum(self, total: np.ndarray, terms: Terms, rng: np.random.Generator) -> np.ndarray:
        """A client's sum of y, with its noise.

        Parameters
        ----------
        total : ndarray of shape (d,)
            Sum of the client's clipped rows less the public centre.
        terms : Terms
            Bound of the rows, and the scale of the noise.
        rng : Generator
            Random numbers of the noise.

        Returns
        -------
        noisy : ndarray of shape (d,)
            The sum with noise of the scale ``terms.mean_std`` on each feature.
        """
        return self._noisy(total, terms.mean_std, rng)

    def _sum_cost(self, std, n_features, n_shares):
        return self._gaussian_cost(2, std, n_features, n_shares)

    def noisy_product(
        self, product: np.ndarray, terms: Terms, rng: np.random.Generator
    ) -> np.ndarray:
        """A client's product of a basis with its second moment, with its noise.

        Parameters
        ----------
        product : ndarray of shape (k, d)
            Orthonormal rows times the second moment of the client's clipped rows.
        terms : Terms
            Bound of the rows, and the scale of the noise.
        rng : Generator
            Random numbers of the noise.

        Returns
        -------
        noisy : ndarray of shape (k, d)
            The product with independent noise of the scale ``terms.product_std`` on each entry.
        """
        return self._noisy(product, terms.product_std, rng)

    def noisy_variances(
        self, inner: np.ndarray, trace: float, terms: Terms, rng: np.random.Generator
    ) -> tuple[np.ndarray, float]:
        """A client's second moment within a basis and its trace, with their noise.

        Parameters
        ----------
        inner : ndarray of shape (k, k)
            Second moment of the client's clipped rows within an orthonormal basis.
        trace : float
            Sum of the squared norms of these rows.
        terms : Terms
            Bound of the rows, and the scale of the noise.
        rng : Generator
            Random numbers of the noise.

        Returns
        -------
        inner : ndarray of shape (k, k)
            With symmetric noise: of the scale ``terms.product_std`` on the diagonal, and of that
            over sqrt(2) off it.
        trace : float
            With noise of the scale ``terms.product_std``.
        """
        if self.noise is not None:
            inner = self.noise.noisy_symmetric(inner, terms.product_std, rng)
            return inner, float(self._noisy(np.array([trace]), terms.product_std, rng)[0])
        G = rng.standard_normal(inner.shape)
        inner = inner + terms.product_std / 2 * (G + G.T)
        return inner, trace + terms.product_std * float(rng.standard_normal())

    def _noise_cost(self, std, n_features, n_shares):
        return self._gaussian_cost(math.sqrt(2), std, n_features**2 + 1, n_shares)
