"""Analyze Gauss: symmetric noise, as little as exact accounting allows."""

from __future__ import annotations

import math
from typing import Any

from ._discrete_gaussian import DiscreteGaussian
from ._ledger import PrivacyLedger
from ._second_moment import SecondMomentMechanism

__all__ = ["AnalyzeGauss"]


class AnalyzeGauss(SecondMomentMechanism):
    """Gaussian noise on the second moment of the rows, as little as exact accounting allows.

    The mechanism to start with. Rows are clipped to ``row_norm`` about a public ``center``; each
    client (or, with ``trust="sum"``, all together) releases the sum of the outer products of its
    rows with a symmetric noise matrix, and the sum of its rows with noise. Mean and components
    follow from the two.

    Two data sets are neighbours if they differ by the replacement of one row. The number of rows of
    each client is public.

    Parameters
    ----------
    epsilon : float
        Above 0; budget of each client, in all. ``inf``: no noise, rows are still clipped.
    delta : float
        Between 0 and 1; should be far below one over the number of rows.
    row_norm : float, "private", PrivateNorm or "data"
        Bound R on the norms of the rows about ``center``; longer ones are shortened to it. A number
        must be known without a look at the rows. "private": each client finds its own within the
        budget, ``PrivateNorm()``. "data" takes the largest norm, is not private, and warns with
        `PrivacyLeakWarning`.
    center : float, array-like of shape (n_features,), "private", PrivateCenter or None, \
            default=None
        Public point about which rows are clipped, or a number for all features. None: the origin.
        "private": each client finds its own within the budget, ``PrivateCenter()``.
    mean : {"private", "fixed"}, default="private"
        "fixed": rows are centred at ``center``, which costs nothing.
    mean_share : float or None, default=None
        Share of the budget (of mu^2) for the mean, if it is private. None: 0.2, or 0.08 with a
        private centre, which is near the mean.
    n_releases : int, default=1
        Calls of ``partial_fit`` in which a client may take part; the budget is split evenly.
    trust : {"client", "sum"}, default="client"
        "client": what each client sends is private. "sum": each of K clients adds noise of 1 / K of
        the variance, for when nobody sees more than the sum; K - 1 clients that collude see the
        last one's with a K-th of the noise.
    ledger : PrivacyLedger or None, default=None
        Where all releases are counted, before they are computed. None: each fit has an account of
        its own, and so have copies of a fitted estimator; nothing adds them up.
    noise : DiscreteGaussian or None, default=None
        `DiscreteGaussian`: integer multiples of a grid, which secure aggregation needs with
        ``trust="sum"``. None: normal numbers.

    See Also
    --------
    ModSuLQ, StreamingModSuLQ : Published noise, which is larger.
    FedPowerNoise : Noise in each round of `FederatedPowerPCA`: O(d k) memory.

    Notes
    -----
    Dwork et al. [1]_, Algorithm 1, with two improvements. The noise is calibrated by the analytic
    Gaussian mechanism [2]_ instead of a bound. And it is scaled as the Gaussian orthogonal
    ensemble: standard deviation s on the diagonal, s / sqrt(2) off it. For a change D of the
    second moment the exponent of the privacy loss is then sum_i D_ii^2 / (2 s^2) + sum_{i < j}
    D_ij^2 / s^2 = |D|_F^2 / (2 s^2): the loss is that of one Gaussian with mu = |D|_F / s, and
    |D|_F is at most sqrt(2) R^2. Noise of standard deviation s in all entries, as in [1]_, protects
    no more where a row lies on an axis, and has sqrt(2) times the spectral norm.

    s = sqrt(2) R^2 / (mu sqrt(1 - mean_share)) with mu = ``mu_of(epsilon, delta)``, and the sum of
    the rows gets 2 R / (mu sqrt(mean_share)) on each feature. Second moment minus n times the outer
    product of the mean, negative eigenvalues cut, is post-processing.

    Time O(n d^2 + d^3), memory O(d^2) at each client: the release is a d x d matrix by definition.
    A client sends k (d + 1) + d + 2 floats, or d (d + 1) with ``trust="sum"``.

    References
    ----------
    .. [1] C. Dwork, K. Talwar, A. Thakurta, L. Zhang, "Analyze Gauss: optimal bounds for
       privacy-preserving principal component analysis", STOC 2014.
    .. [2] B. Balle, Y.-X. Wang, "Improving the Gaussian mechanism for differential privacy:
       analytical calibration and optimal denoising", ICML 2018, Theorem 8.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.decomposition import PCA
    >>> from fedpca_sklearn import AnalyzeGauss, FederatedPCA
    >>> X, y = load_digits(return_X_y=True)
    >>> private = AnalyzeGauss(epsilon=4.0, delta=1e-5, row_norm=50, center=[5.0] * 64)
    >>> pca = FederatedPCA(3, mechanism=private, random_state=0).fit(X)
    >>> print("epsilon = {:.3f}, delta = {:g}".format(*pca.privacy_spent_))
    epsilon = 4.000, delta = 1e-05
    >>> pca.explained_variance_.round()
    array([181., 171., 146.])
    >>> PCA(3).fit(X).explained_variance_.round()
    array([179., 164., 142.])
    """

    _OFF_DIAGONAL = math.sqrt(0.5)

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
        noise: DiscreteGaussian | None = None,
    ):
        super().__init__(
            epsilon,
            delta,
            row_norm,
            center=center,
            mean=mean,
            mean_share=mean_share,
            n_releases=n_releases,
            trust=trust,
            ledger=ledger,
        )
        self.noise = noise

    def noisy_columns(self, rows, columns, terms, rng):
        """A client's second moment, with its noise; see the base class."""
        if self.noise is None:
            return super().noisy_columns(rows, columns, terms, rng)
        return self.noise.noisy_symmetric(rows.products(columns), terms.product_std, rng)

    def _noise(self, shape, std, rng):
        G = rng.standard_normal(shape)
        G += G.T.copy()
        G *= std / 2
        return G

    def _noise_cost(self, std, n_features, n_shares):
        return self._gaussian_cost(math.sqrt(2), std, n_features**2, n_shares)
