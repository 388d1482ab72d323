"""MOD-SuLQ: symmetric noise on the second moment, as published."""

from __future__ import annotations

import math

import numpy as np

from ._mechanism import gaussian_cost
from ._second_moment import SecondMomentMechanism

__all__ = ["ModSuLQ"]


class ModSuLQ(SecondMomentMechanism):
    """Symmetric Gaussian noise on the second moment, as published: for comparison.

    As `AnalyzeGauss`, with the noise of Chaudhuri, Sarwate and Sinha [1]_, which is about d times
    larger than what the same budget needs. ``privacy_spent_`` states what it really costs: far less
    than ``epsilon``.

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
        "private": the mean is released with noise. "fixed": rows are centred at ``center``, which
        costs nothing.
    mean_share : float or None, default=None
        Share of the budget (of mu^2) for the mean, if it is private. None: 0.2, or 0.08 with a
        private centre.
    n_releases : int, default=1
        Calls of ``partial_fit`` in which a client may take part; the budget is split evenly.
    trust : {"client", "sum"}, default="client"
        "client": what each client sends is private. "sum": each of K clients adds noise of 1 / K of
        the variance, for when nobody sees more than the sum.
    ledger : PrivacyLedger or None, default=None
        Where all releases are counted, before they are computed. None: each fit has an account of
        its own, and so have copies of a fitted estimator.

    See Also
    --------
    AnalyzeGauss : The same promise with less noise.

    Notes
    -----
    Algorithm 1 of [1]_: independent normal entries on and above the diagonal of M / n, mirrored
    below, with standard deviation beta = (d + 1) / (n epsilon) sqrt(2 log((d^2 + d) / (2 delta
    sqrt(2 pi)))) + 1 / (n sqrt(epsilon)), for rows of norm 1; times R^2 here. It is less than what
    exact accounting asks for only with one feature and a delta near one half, and is raised to that
    then. A part f of the budget, in mu^2, gets the noise over sqrt(f). The exact cost is mu =
    sqrt(2) R^2 over the noise on M, as for `AnalyzeGauss`: where two rows lie on two axes the
    change is all on the diagonal.

    Time and memory as `AnalyzeGauss`.

    References
    ----------
    .. [1] K. Chaudhuri, A. Sarwate, K. Sinha, "A near-optimal algorithm for differentially-private
       principal components", Journal of Machine Learning Research 14, 2013.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import warnings
    >>> from fedpca_sklearn import FederatedPCA, ModSuLQ
    >>> X, y = load_digits(return_X_y=True)
    >>> published = ModSuLQ(epsilon=4.0, delta=1e-5, row_norm=50, center=[5.0] * 64)
    >>> pca = FederatedPCA(3, mechanism=published, random_state=0)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     pca = pca.fit(X)
    >>> caught[0].category.__name__
    'PrivacyNoiseWarning'
    >>> pca.explained_variance_.round()  # noise: without it, 179, 164 and 142
    array([3655., 3270., 3153.])
    >>> print("epsilon = {:.5f}".format(pca.privacy_spent_.epsilon))  # nearly all for the mean
    epsilon = 1.61476
    """

    def _published_std(self, d):
        """Noise on the sum of outer products of rows of norm 1: n beta."""
        log = math.log((d**2 + d) / (2 * self.delta * math.sqrt(2 * math.pi)))
        first = (d + 1) / self.epsilon * math.sqrt(max(2 * log, 0.0))
        return first + 1 / math.sqrt(self.epsilon)

    def _product_budget(self, n_features):
        std = self._published_std(n_features)
        return min(self.budget(), 2 / std**2 if std else math.inf)

    def _noise(self, shape, std, rng):
        G = np.triu(rng.standard_normal(shape))
        G += np.triu(G, 1).T
        G *= std
        return G

    def _noise_cost(self, std, n_features, n_shares):
        return gaussian_cost(math.sqrt(2), std)
