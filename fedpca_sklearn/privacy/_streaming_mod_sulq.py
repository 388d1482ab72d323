"""Streaming MOD-SuLQ: columns of a noisy second moment, absorbed block by block."""

from __future__ import annotations

import math

import numpy as np

from .._kernels.sizes import SMALL_DIMENSION, rows_of_update, slices_of
from ..summary import Subspace
from ..summary._updating import updated_by_block
from ._mechanism import gaussian_cost
from ._mod_sulq import ModSuLQ
from ._second_moment import summary_of

__all__ = ["StreamingModSuLQ"]


class StreamingModSuLQ(ModSuLQ):
    """Gaussian noise on columns of the second moment, absorbed as they are made: O(d k) memory.

    As `ModSuLQ`, without a d x d matrix: a block of columns of the second moment gets its noise,
    independent in all entries, and updates the summary of the blocks before, as a block of rows
    does in `StreamingPCA`. The left singular vectors of the noisy matrix are the components.

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
    AnalyzeGauss : Less noise, where a d x d matrix is no problem.
    FedPowerNoise : The other mechanism in O(d k) memory.

    Notes
    -----
    Grammenos et al. [1]_, Streaming MOD-SuLQ: omega = 4 d / (n epsilon) sqrt(2 log(d^2 /
    (delta sqrt(2 pi)))) + sqrt(2) / (n sqrt(epsilon)) is the standard deviation on M / n for rows
    of norm 1; here times R^2. The blocks are parts of one release, with noise in every entry: mu =
    sqrt(2) R^2 over the noise on M. Singular values of a non-symmetric matrix overestimate small
    eigenvalues; the scatter is the noisy trace.

    Time O(n d^2), as d / b passes over the rows; memory O(d (k + b)) beyond them with b = max(64,
    7 k / 4) columns a block, for k directions kept (with at most 256 features, one block). A client
    sends k (d + 1) + d + 2 floats; with ``trust="sum"`` d^2 + d in ceil(d / b) + 1 rounds.

    References
    ----------
    .. [1] A. Grammenos, R. Mendoza-Smith, J. Crowcroft, C. Mascolo, "Federated principal component
       analysis", NeurIPS 2020.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import FederatedPCA, StreamingModSuLQ
    >>> X, y = load_digits(return_X_y=True)
    >>> published = StreamingModSuLQ(epsilon=float("inf"), delta=1e-5, row_norm=100)
    >>> FederatedPCA(3, mechanism=published).fit(X).explained_variance_.round()
    array([179., 164., 142.])
    >>> noisy = published.set_params(epsilon=1000.0)
    >>> FederatedPCA(2, mechanism=noisy, random_state=0).fit(X).explained_variance_.round()
    array([291., 282.])
    """

    _SYMMETRIC = False

    def column_blocks(self, n_features, max_keep):
        """Columns of the second moment that are released at a time."""
        size = n_features if n_features <= SMALL_DIMENSION else rows_of_update(max_keep)
        return list(slices_of(n_features, size))

    def _published_std(self, d):
        """Noise on the sum of outer products of rows of norm 1: n omega."""
        log = math.log(d**2 / (self.delta * math.sqrt(2 * math.pi)))
        return 4 * d / self.epsilon * math.sqrt(max(2 * log, 0.0)) + math.sqrt(2 / self.epsilon)

    def _noise(self, shape, std, rng):
        G = rng.standard_normal(shape)
        G *= std
        return G

    def _noise_cost(self, std, n_features, n_shares):
        return gaussian_cost(math.sqrt(2), std)

    def summary(self, columns, total, n, terms, max_keep, dtype):
        """Summary of n rows, from their noisy columns and sum; see the base class."""
        at, trace = 0, 0.0
        for block in columns:
            if not at:
                d = len(block)
                mean = np.zeros(d) if total is None else terms.within(total / n)
                found = Subspace.empty(d, centered=False)
            here = slice(at, at + block.shape[1])
            block -= n * np.outer(mean, mean[here])
            trace += float(np.trace(block[here]))
            found = updated_by_block(found, block.T, max_keep=max_keep)
            at = here.stop
        mean = terms.origin(d) + mean
        return summary_of(found.components, found.singular_values, mean, n, trace, dtype)
