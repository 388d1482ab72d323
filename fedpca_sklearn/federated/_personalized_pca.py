"""Shared components of all sites, and components of each site: PerPCA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from .._dask import is_dask, lazy_inverse, leave_as_it_is
from .._validation.checks import AT_LEAST_ONE, allowed, check_integer, with_parameters
from ..communication import Federation
from ..summary import Subspace
from ..summary._merging import pooled_moments
from ..summary._projection_mean import rayleigh_ritz
from ._clients import labels_of, rows_of, shards_of, split_labels
from ._federated_pca import FederatedPCA
from ._shared_and_local import PersonalRounds, SharedAndLocal, local_directions
from ._summaries import fitted_on


@with_parameters
class PersonalizedPCA(FederatedPCA):
    """Components that all sites share, and components of each site, in one round.

    Where sites differ in what they see, a merge shows what is largest over all rows, and hides both
    what the sites have in common and what is special of each. Here the rows of site i are

        mean_i + shared components + components of site i + noise,

    with all components orthogonal [1]_. `transform` takes the labels of the sites and returns the
    coordinates along the shared components, then along the site's own. Of the same number of
    components a site, its own alone fit its rows better where it has many; shared ones help where
    it has few, and are the same for all.

    Parameters
    ----------
    n_components : int, default=2
        Shared components.
    n_local_components : int, default=2
        Components of each site; a site whose rows span fewer has fewer.
    estimator : estimator or None, default=None
        As in `FederatedPCA`; its ``n_components`` should be at least the sum of both numbers.
    n_clients : int, default=2
        As in `FederatedPCA`.
    n_jobs : int or None, default=None
        As in `FederatedPCA`.
    random_state : int, RandomState instance or None, default=None
        As in `FederatedPCA`.

    Attributes
    ----------
    components_, mean_, singular_values_, explained_variance_, explained_variance_ratio_, \
            noise_variance_, n_components_, n_samples_, n_samples_seen_, subspace_
        Of the shared components, for all rows about their common mean: `score`, `score_samples`
        and `get_covariance` know no sites.
    local_components_ : dict
        Label -> array of shape (k, n_features), k at most ``n_local_components``.
    n_local_components_ : int
        Columns of `transform` for them.
    site_means_ : dict
        Label -> array of shape (n_features,).
    local_pvalues_ : dict
        Label -> p-value of the test of whether the site needs components of its own; NaN where it
        cannot be told, and for a site that came by `adapt`.
    needs_local_ : dict
        Label -> whether it does, at a level of 5 % for all sites together (Holm).
    clients_, estimators_, communication_
        As in `FederatedPCA`.

    Warns
    -----
    UserWarning
        If the sites' own components explain hardly more of the rows of the fit, than as many shared
        ones more would, than noise lets them: shared ones, of `FederatedPCA`, are then better.

    See Also
    --------
    FederatedPCA : One set of components for all.
    NoiseAwareMerge : For sites that differ in noise only.

    Notes
    -----
    The objective of [1]_, every row counting one: the least sum of squares outside both kinds of
    components. The paper descends in many rounds, in each of which a site sends the shared
    components. Here the sites' summaries are all that is needed, and the coordinator takes in turn
    the components of each site outside the shared ones, and the shared ones outside those of the
    sites. It starts at the mean of the projections on the leading directions of each. What is found
    is a stationary point; where sites share little there are several. Exact where nothing was cut
    from summaries (up to 256 features by default), else that of what was sent, until `refine`. The
    coordinator learns the sites' own components, which it does not in the paper's rounds.

    The test: the scatter of a site outside the shared components is from the same covariance as
    that of all others. The largest root of the one in the metric of the other, for normal rows, by
    the Tracy-Widom approximation of [2]_. It needs summaries from which nothing was cut, more rows
    at the others than columns, and up to 1,024 columns; heavy tails make it reject too often.

    Time: O(s k d (r + q)) an alternation for s sites that send k directions, at most 100, and
    O(s k^2 d).

    References
    ----------
    .. [1] N. Shi, R. Al Kontar, "Personalized PCA: decoupling shared and unique features", Journal
       of Machine Learning Research 2024.
    .. [2] I. M. Johnstone, "Multivariate analysis and Jacobi ensembles: largest eigenvalue,
       Tracy-Widom limits and rates of convergence", Annals of Statistics 2008.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import PersonalizedPCA
    >>> rng = np.random.default_rng(0)
    >>> X = 0.1 * rng.standard_normal((300, 6))
    >>> X[:, 0] += rng.standard_normal(300)  # shared
    >>> site = np.repeat(["east", "west", "north"], 100)
    >>> X[:100, 1] += 3 * rng.standard_normal(100)  # only in the east
    >>> X[100:200, 2] += 3 * rng.standard_normal(100)  # only in the west
    >>> pca = PersonalizedPCA(1, 1).fit(X, clients=site)
    >>> abs(pca.components_).round(1)
    array([[1., 0., 0., 0., 0., 0.]])
    >>> abs(pca.local_components_["west"]).round(1)
    array([[0., 0., 1., 0., 0., 0.]])
    >>> pca.needs_local_
    {'east': True, 'north': False, 'west': True}
    >>> pca.transform(X, clients=site).std(axis=0).round(1)
    array([1. , 2.5])
    """

    __metadata_request__transform = {"clients": True}
    __metadata_request__inverse_transform = {"clients": True}

    _takes_arrays = False
    _takes_missing = False  # coordinates along components of a site are of whole rows

    n_components: Any = allowed(AT_LEAST_ONE, default=2)
    n_local_components: int = allowed(AT_LEAST_ONE, default=2)

    def _strategy(self) -> SharedAndLocal:
        """How summaries become one."""
        return SharedAndLocal(self.n_local_components)

    # what is no parameter here
    merge: Any = field(init=False, default=property(_strategy))
    mechanism: Any = field(init=False, default=None)
    missing: Any = field(init=False, default=None)
    partial_out: Any = field(init=False, default=None)
    scale: bool = field(init=False, default=False)
    n_refinements: int = field(init=False, default=0)
    tol: float | None = field(init=False, default=None)
    local_components_: dict[Any, np.ndarray] = field(init=False)
    site_means_: dict[Any, np.ndarray] = field(init=False)
    local_pvalues_: dict[Any, float] = field(init=False)
    needs_local_: dict[Any, bool] = field(init=False)

    @classmethod
    def from_subspaces(  # type: ignore[override]
        cls, subspaces: Sequence[Subspace], n_components: int = 2, n_local_components: int = 2
    ) -> PersonalizedPCA:
        """Build a fitted estimator from summaries that were computed elsewhere.

        Parameters
        ----------
        subspaces : sequence of Subspace
            One per site.
        n_components : int, default=2
            Shared components.
        n_local_components : int, default=2
            Components of each site.

        Returns
        -------
        pca : PersonalizedPCA
            As `FederatedPCA.from_subspaces` returns it.
        """
        return fitted_on(cls(n_components, n_local_components), subspaces)

    def _merge_all(self) -> None:
        super()._merge_all()
        room = self.components_.shape[1] - len(self.components_)
        self.n_local_components_ = min(self.n_local_components, room)

    def adapt(self, X: Any, clients: Any) -> PersonalizedPCA:
        """Fit components of new sites to the shared ones, which stay as they are.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows of sites that took no part in the fit.
        clients : array-like of shape (n,) or str
            Label of the site that owns each row, or the column of X that holds them.

        Returns
        -------
        self : PersonalizedPCA
            With ``local_components_`` and ``site_means_`` of the new sites, until the next `fit` or
            `partial_fit`, of which they are no part.
        """
        check_is_fitted(self)
        with self._unchanged_on_error():
            X, labels = self._rows_and_labels(X, clients)
            local, means = dict(self.local_components_), dict(self.site_means_)
            for label, rows in shards_of(X.shape[0], labels, 1):
                if label in local:
                    raise ValueError(f"clients must be new sites, {label!r} is known already.")
                site = Subspace.from_rows(X[rows])
                factor = site.singular_values[:, None] * site.components.astype(np.float64)
                V = self.components_.astype(np.float64)
                local[label] = local_directions(factor, V, self.n_local_components_)
                means[label] = site.mean
            new = {label: float("nan") for label in local if label not in self.local_components_}
            self.local_components_, self.site_means_ = local, means
            self.local_pvalues_ = {**self.local_pvalues_, **new}
            self.needs_local_ = {**self.needs_local_, **dict.fromkeys(new, False)}
        return self

    def refine(
        self, X: Any, clients: Any = None, sample_weight: Any = None, *, n_rounds: int = 1
    ) -> PersonalizedPCA:
        """Bring both kinds of components closer to those of whole rows, by rounds of sums.

        Where sites cut their summaries, components are those of what they sent. In a round each
        site improves its own components on its rows, and the shared ones are improved by sums over
        all sites. Those of a site stay there, other than in `fit`. No round makes the sum of
        squares outside the components larger. Mean, count and scatter, which are exact, stay.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            All rows of the fit, also those of earlier calls of `partial_fit`.
        clients : array-like of shape (n,) or str, default=None
            Label of the site that owns each row, as in `fit`.
        sample_weight : array-like of shape (n,), default=None
            Those of the fit.
        n_rounds : int, default=1
            Rounds.

        Returns
        -------
        self : PersonalizedPCA
            Unchanged if an error is raised; without sites that came by `adapt`. A later
            `partial_fit` merges the summaries anew, without the rounds.

        Raises
        ------
        ValueError
            If the rows of a site have another weight, mean or sum of squares than in the fit.

        Notes
        -----
        In a round of r shared components a site receives 2 r d floats and sends r d + 4 r^2; at the
        end it sends r^2. Its work is O(n_i d (r + q)).

        Examples
        --------
        >>> import numpy as np
        >>> from fedpca_sklearn import PersonalizedPCA, make_spiked, subspace_distance
        >>> X, V = make_spiked(4000, 400, spikes=(8, 6, 5), random_state=0)
        >>> sites = np.arange(4000) // 500
        >>> X[np.arange(4000), sites] *= 3  # a direction of each site
        >>> pca = PersonalizedPCA(3, 1).fit(X, clients=sites)
        >>> before = subspace_distance(pca.components_, V)
        >>> pca = pca.refine(X, clients=sites, n_rounds=3)
        >>> subspace_distance(pca.components_, V) < before
        True
        """
        check_is_fitted(self)
        if is_dask(X):
            raise TypeError("X is of Dask, whose rows refine does not take here; X.compute() does.")
        with self._unchanged_on_error():
            self._check_parameters()
            check_integer("n_rounds", n_rounds)
            X, weight, shards = self._shards(X, clients, sample_weight)
            self._check_sites([label for label, _ in shards])
            self.communication_ = self.communication_.copy()
            federation = Federation(self.n_jobs, log=self.communication_)
            summaries = {label: self._clients[label].summary for label, _ in shards}
            local = {label: self.local_components_[label] for label, _ in shards}
            parts = rows_of(X, weight, shards)
            rounds = PersonalRounds(federation, parts, summaries, self.components_, local)
            for _ in range(n_rounds):
                rounds.improve()
            total, corrections = pooled_moments(list(summaries.values()))
            factor = np.concatenate([rounds.finish(), corrections @ rounds.V.T])
            self._set_fitted(
                rayleigh_ritz(total, rounds.V, factor), self.n_components, self.n_samples_
            )
            self.local_components_ = rounds.local
            for name in ("site_means_", "local_pvalues_", "needs_local_"):
                setattr(self, name, {label: getattr(self, name)[label] for label in local})
            self.n_refinements_ += n_rounds
        return self

    def _check_sites(self, labels: Sequence[Any]) -> None:
        """Raise unless these are the sites of the fit."""
        for label in labels:
            if label not in self._clients:
                raise ValueError(f"clients must be sites of the fit, got {label!r}.")
        given = set(labels)
        for label in self._clients:
            if label not in given:
                raise ValueError(
                    f"X must hold the rows of all sites of the fit; of {label!r} none."
                )

    @property
    def _n_features_out(self) -> int:
        return len(self.components_) + self.n_local_components_

    def _rows_and_labels(self, X: Any, clients: Any) -> tuple[Any, np.ndarray]:
        X, labels, self._label_column = split_labels(X, clients, self._label_column)
        X = self._check_X(X)
        return X, labels_of(labels, X.shape[0])

    def _sites(self, labels: np.ndarray) -> list[tuple[Any, Any]]:
        """Known sites with the positions of their rows."""
        shards = shards_of(len(labels), labels, 1)
        unknown = [label for label, _ in shards if label not in self.site_means_]
        if unknown:
            raise ValueError(
                f"clients must be sites of the fit, got {unknown[0]!r}; `adapt` takes new ones, "
                "and without clients rows have shared coordinates only."
            )
        return shards

    def transform(self, X: Any, clients: Any = None) -> np.ndarray:
        """Coordinates along the shared components, and along those of the row's site.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows; of a dask.array without clients the result is one as well.
        clients : array-like of shape (n,) or str, default=None
            Label of the site of each row, or the column of X that holds them. None: of no known
            site; then rows are about the mean of all, and coordinates of sites are zero.

        Returns
        -------
        X_new : ndarray of shape (n, n_components_ + n_local_components_)
            With labels rows are about the mean of their site. Where a site has fewer components of
            its own, the last columns are zero.
        """
        if is_dask(X):
            if clients is not None:
                raise ValueError("clients cannot be given when X is a dask.array.")
            Z = super().transform(X)
            leave_as_it_is(self)  # as that method has seen to it
            return Z
        if clients is None:
            X = self._check_X(X)
            Z = np.zeros((X.shape[0], self._n_features_out), np.result_type(X, self.components_))
            Z[:, : len(self.components_)] = self._project(X)
            return Z
        X, labels = self._rows_and_labels(X, clients)
        Z = np.zeros((X.shape[0], self._n_features_out), np.result_type(X, self.components_))
        for label, rows in self._sites(labels):
            B, mean = self._basis_of(label), self.site_means_[label]
            Z[rows, : len(B)] = (
                X[rows] @ B.T - mean @ B.T if sp.issparse(X) else (X[rows] - mean) @ B.T
            )
        return Z

    def inverse_transform(self, X: Any, clients: Any = None) -> np.ndarray:
        """Map coordinates back to the original space.

        Parameters
        ----------
        X : array-like of shape (n, n_components_ + n_local_components_)
            Coordinates as `transform` returns them; of a dask.array without clients the result is
            one as well.
        clients : array-like of shape (n,), default=None
            Labels of the sites, as in `transform`.

        Returns
        -------
        X_original : ndarray of shape (n, d)
            The rows with these coordinates.
        """
        check_is_fitted(self)
        lazy = is_dask(X) and clients is None
        Z = X if lazy else check_array(X, dtype=[np.float64, np.float32], input_name="X")
        if Z.shape[1:] != (self._n_features_out,):
            raise ValueError(
                f"X must have shape (n_samples, {self._n_features_out}), got {Z.shape}."
            )
        if lazy:
            return lazy_inverse(self, X)
        if clients is None:
            return Z[:, : len(self.components_)] @ self.components_ + self.mean_
        X = np.empty((len(Z), self.components_.shape[1]), np.result_type(Z, self.components_))
        for label, rows in self._sites(labels_of(clients, len(Z))):
            B = self._basis_of(label)
            X[rows] = Z[rows, : len(B)] @ B + self.site_means_[label]
        return X

    def _basis_of(self, label: Any) -> np.ndarray:
        """Shared components and those of a site."""
        return np.concatenate([self.components_, self.local_components_[label]])

    def fit_transform(  # type: ignore[override]
        self, X: Any, y: Any = None, clients: Any = None, sample_weight: Any = None
    ) -> np.ndarray:
        """Fit, and transform the same rows with the same labels.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            The rows.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.
        clients : array-like of shape (n,) or str, default=None
            As in `fit`, and as in `transform`: without labels coordinates are shared ones only.
        sample_weight : array-like of shape (n,), default=None
            As in `fit`.

        Returns
        -------
        X_new : ndarray of shape (n, n_components_ + n_local_components_)
            What `transform` returns.
        """
        self.fit(X, y, clients=clients, sample_weight=sample_weight)
        return self.transform(X, clients=clients)
