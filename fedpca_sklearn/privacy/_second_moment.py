"""Mechanisms that release a second moment once: their base, and the noise of each."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import KW_ONLY
from typing import Any

import numpy as np

from .._kernels import linalg
from .._kernels.sizes import SMALL_DIMENSION, rows_of_update, slices_of
from .._validation.checks import AT_LEAST_ONE, allowed, with_parameters
from ..summary import Subspace
from ..summary._updating import updated_by_block
from ._above_noise import FAR, PrivacyPlan, planned, without_noise_of_mean
from ._gaussian import DiscreteGaussian
from ._mechanism import NOISE, Mechanism, Terms
from ._rows import ClippedRows


@with_parameters
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
    trust : {"client", "sum"}, default="client"
        Whether each client's message is private, or their sum.
    ledger : PrivacyLedger or None, default=None
        Where all releases are counted.
    n_releases : int, default=1
        Calls over which the budget is split.
    """

    _: KW_ONLY
    n_releases: int = allowed(AT_LEAST_ONE, default=1)

    def column_blocks(self, n_features: int, max_rank: int | None) -> list[slice]:
        """Columns of the second moment that are released at a time.

        Parameters
        ----------
        n_features : int
            Number of columns of the second moment.
        max_rank : int or None
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
        rows of these variances, shortened to the norm, are expected to have. Of a private norm and
        centre the cost is counted, and not their error, so that a plan for few rows is too good.

        Examples
        --------
        >>> from fedpca_sklearn import AnalyzeGauss
        >>> plan = AnalyzeGauss(1.0, 1e-5, row_norm="private").plan(10_000, 50, 2)
        >>> round(plan.error, 2), round(plan.half.error, 2), round(plan.twice.error, 2)
        (0.02, 0.03, 0.01)
        >>> plan.n_components_above_noise
        15.85
        """
        return planned(self, n, d, n_components, spectrum)

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

    # what a subclass states of its noise
    _noise_cost = Mechanism._noise_cost

    def _noise_taken_off(self, length: float, t: float, n: float, row_norm: float, d: int) -> float:
        """Deviation of the noise that `summary` takes off a mean of this length; 0: none.

        That is, off one far from a public centre. ``t`` is that of the noise on a sum of n rows.
        """
        if self.searches or not self._SYMMETRIC:
            return 0.0
        std = min(t / n, row_norm / math.sqrt(d))  # longer means are shortened to row_norm
        return std if 0 < FAR * std * math.sqrt(d) <= length else 0.0

    def summary(
        self,
        columns: Iterator[np.ndarray],
        total: np.ndarray | None,
        n: int,
        terms: Terms,
        max_rank: int | None,
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
        max_rank : int or None
            Directions to keep at most; None: no bound.
        dtype : dtype
            Of the components.

        Returns
        -------
        subspace : Subspace
            Mean, components and scatter that follow from the release.
        """
        (M,) = columns
        d, origin, shape = len(M), terms.origin(len(M)), terms.shape
        size, shares, std = self._OFF_DIAGONAL * terms.product_std, math.sqrt(terms.n_shares), 0.0
        mean = np.zeros(d)
        if total is not None:
            mean, t = terms.within(total / n), terms.mean_std * shares
            std = self._noise_taken_off(float(np.linalg.norm(mean)), t, n, terms.row_norm, d)
        if shape is not None:
            M = shape.combined(M, size)
        if std:
            M, mean = without_noise_of_mean(M, mean, n, size * shares, std)
            mean = terms.within(mean)
        else:
            M -= n * np.outer(mean, mean)
        if shape is not None:
            M, mean = shape.moment(M), shape.mean(mean)
        trace = float(np.trace(M))
        values, vectors = linalg.eigh_top(M, len(M) if max_rank is None else max_rank)
        rounding = len(M) * np.finfo(float).eps * float(np.abs(values).max())
        keep = int(np.sum(values[:max_rank] > rounding))
        return summary_of(vectors[:, :keep].T, values[:keep], origin + mean, n, trace, dtype)


def summary_of(
    V: np.ndarray, energies: np.ndarray, mean: np.ndarray, n: int, trace: float, dtype: Any
) -> Subspace:
    """Summary of directions with their sums of squares; the rest of the trace is scatter."""
    V = linalg.flip_signs(np.array(V, order="C")).astype(dtype, copy=False)
    s = np.sqrt(energies)
    return Subspace._trusted(V, s, mean, n, max(trace, float(s @ s)), True)


@with_parameters
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
    n_releases : int, default=1
        Calls of ``partial_fit`` in which a client may take part; the budget is split evenly.

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
    product of the mean, negative eigenvalues cut, is post-processing. So is that a mean far from a
    public centre is moved, where nothing varies in its direction, until its noise hides no more
    than that of the second moment does.

    With a private norm the second moment is released twice, as in CoinPress [3]_. A quarter of its
    budget tells the directions with little variance. For the rest rows are stretched along these
    before they are shortened, so that noise is small where variances are: y becomes z = a (U^T y),
    U the eigenvectors and a^2 = v^-p for the variances v that are expected along them [4]_, p one
    of 0 to 0.4 by the turn of components that is expected. |z| is at most R, so that the bound and
    the noise are those above. Both releases are averaged, each entry by the variances of its noise.
    Where rows longer than R know other directions than the others, which turns the components, R
    becomes longer, and the first release does not count; what is compared for that costs 4 to 12 %
    of the budget of the second moment.

    Time O(n d^2 + d^3), memory O(d^2) at each client: the release is a d x d matrix by definition.
    A client sends k (d + 1) + d + 2 floats, or d (d + 1) with ``trust="sum"``.

    References
    ----------
    .. [1] C. Dwork, K. Talwar, A. Thakurta, L. Zhang, "Analyze Gauss: optimal bounds for
       privacy-preserving principal component analysis", STOC 2014.
    .. [2] B. Balle, Y.-X. Wang, "Improving the Gaussian mechanism for differential privacy:
       analytical calibration and optimal denoising", ICML 2018, Theorem 8.
    .. [3] S. Biswas, Y. Dong, G. Kamath, J. Ullman, "CoinPress: practical private mean and
       covariance estimation", NeurIPS 2020.
    .. [4] J. Bun, R. Allez, J.-P. Bouchaud, M. Potters, "Rotational invariant estimator for general
       noisy matrices", IEEE Transactions on Information Theory 62, 2016.

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
    array([181., 171., 145.])
    >>> PCA(3).fit(X).explained_variance_.round()
    array([179., 164., 142.])
    """

    _OFF_DIAGONAL = math.sqrt(0.5)
    _TWICE = True

    _: KW_ONLY
    noise: DiscreteGaussian | None = allowed(*NOISE, default=None)

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
    trust : {"client", "sum"}, default="client"
        "client": what each client sends is private. "sum": each of K clients adds noise of 1 / K of
        the variance, for when nobody sees more than the sum.
    ledger : PrivacyLedger or None, default=None
        Where all releases are counted, before they are computed. None: each fit has an account of
        its own, and so have copies of a fitted estimator.
    n_releases : int, default=1
        Calls of ``partial_fit`` in which a client may take part; the budget is split evenly.

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
    array([3654., 3270., 3152.])
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

    _noise_cost = AnalyzeGauss._noise_cost  # which is that of a second moment's change


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
    trust : {"client", "sum"}, default="client"
        "client": what each client sends is private. "sum": each of K clients adds noise of 1 / K of
        the variance, for when nobody sees more than the sum.
    ledger : PrivacyLedger or None, default=None
        Where all releases are counted, before they are computed. None: each fit has an account of
        its own, and so have copies of a fitted estimator.
    n_releases : int, default=1
        Calls of ``partial_fit`` in which a client may take part; the budget is split evenly.

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

    def column_blocks(self, n_features, max_rank):
        """Columns of the second moment that are released at a time."""
        size = n_features if n_features <= SMALL_DIMENSION else rows_of_update(max_rank)
        return list(slices_of(n_features, size))

    def _published_std(self, d):
        """Noise on the sum of outer products of rows of norm 1: n omega."""
        log = math.log(d**2 / (self.delta * math.sqrt(2 * math.pi)))
        return 4 * d / self.epsilon * math.sqrt(max(2 * log, 0.0)) + math.sqrt(2 / self.epsilon)

    def _noise(self, shape, std, rng):
        G = rng.standard_normal(shape)
        G *= std
        return G

    _noise_cost = ModSuLQ._noise_cost

    def summary(self, columns, total, n, terms, max_rank, dtype):
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
            found = updated_by_block(found, block.T, max_rank=max_rank)
            at = here.stop
        mean = terms.origin(d) + mean
        return summary_of(found.components, found.singular_values, mean, n, trace, dtype)


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
