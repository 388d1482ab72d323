"""What is made of missing entries at clients: the covariances of available pairs."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterable
from functools import partial
from inspect import signature
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import clone

from .._base.batches import count_rows
from .._kernels import linalg
from .._kernels.observed import noise_ridge
from .._kernels.sizes import SMALL_DIMENSION
from .._kernels.tolerances import EIGENVALUE_ROUNDING
from .._kernels.too_large import largest_named, too_large
from .._validation.checks import (
    Interval,
    Strategy,
    allowed,
    check_at_most_features,
    check_rows,
    with_parameters,
)
from .._validation.containers import names_known
from ..communication._federation import Message, clients_named
from ..summary import PairMoments, Subspace
from ..summary._pair_moments import merged_pairs
from ..summary._provenance import check_each_site_once
from ._clients import label_order, rows_of
from ._local_fit import Site, labels_of_sites, rows_of_summary, with_label_as_site

# In the place of a client where only the sum over clients is kept.
_SUM = 0


class MissingStrategy(Strategy):
    """Base of what estimators take as ``missing``: how clients deal with rows that lack entries."""

    _parameter_constraints: dict = {}

    # Parameters of the estimator that mean the same for rows with missing entries.
    _leaves = frozenset({"n_components", "missing", "n_clients", "n_jobs", "random_state"})

    # Rules for ``n_components`` that know how many rows have what.
    _rules: frozenset[str] = frozenset()

    # Whether more rows may come after a fit; not where rounds need all of them at once.
    _goes_on = True

    @abstractmethod
    def _take(self, pca: Any, X: Any, weight: Any, shards: list[Any]) -> list[Any]:
        """Take rows through the clients and the server of an estimator; labels of the clients."""

    @abstractmethod
    def _merge_others(self, pca: Any) -> None:
        """Fit an estimator to what its clients have sent, after one of them was removed."""


def check_missing(pca: Any) -> None:
    """Raise where another parameter would play no part, or earlier calls had other rows."""
    kind = None if pca.missing is None else type(pca.missing).__name__
    if vars(pca).get("clients_") and pca._missing_of_fit != kind:
        raise ValueError(
            f"missing must not change between calls of partial_fit, got {pca.missing!r}; call fit."
        )
    if pca.missing is None:
        return
    pca.missing.validate()
    for name, parameter in signature(type(pca)).parameters.items():
        value, default = getattr(pca, name), parameter.default
        kept = name in pca.missing._leaves or value is default
        if not kept and not np.array_equal(value, default):
            hint = " FederatedScaler before it scales the entries." if name == "scale" else ""
            raise ValueError(
                f"{name} must be {default!r} with missing={pca.missing!r}, got {value!r}.{hint}"
            )


def ridge_of(pca: Any) -> np.ndarray | None:
    """Ridge of coordinates, as in probabilistic PCA; no variance is known below a negative one."""
    d, least = pca.components_.shape[1], getattr(pca, "negative_variance_", 0.0)
    variances = np.maximum(pca.explained_variance_, least)
    return noise_ridge(variances, max(float(pca.noise_variance_), least), d)


@with_parameters
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
    Covariances are unbiased, whatever the rows are like, where entries are missing completely at
    random: which ones depends on no value, seen or not, nor on the site if sites differ. Each pair
    has rows of its own, so that the matrix may have negative eigenvalues. They are set to zero,
    which is the nearest matrix without any, in the Frobenius norm; shares of the variance are of
    the sum of the others. The size of the most negative one is ``negative_variance_`` of the
    estimator: as the matrix is that far from any covariance, a warning tells if components of no
    more variance are shown. Rows without any entry count in ``n_samples_`` only.

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

    min_rows: float = allowed(Interval(Real, 0, None, closed="neither"), default=2)

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
        d, n = len(pairs.origin), pairs.n_samples
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
        V = V.astype(np.float32 if pairs.single else np.float64)
        moments = V, np.sqrt(squares), pairs.mean, n, float(columns.sum()), True
        return Subspace._trusted(*moments, sites=pairs.sites, column_scatter=columns), negative

    def _take(self, pca: Any, X: Any, weight: Any, shards: list[Any]) -> list[Any]:
        _check_features(pca, X.shape[1])
        return take_pairs(pca, pca._map(_pairs_of_client, rows_of(X, weight, shards), shards))

    def _merge_others(self, pca: Any) -> None:
        _merge_pairs(pca)


def take_pairs(pca: Any, found: Iterable[tuple[Any, Site]]) -> list[Any]:
    """Add what clients send to what they sent before, and set the fitted attributes.

    An estimator whose ``_keeps_clients`` is False keeps the sum of all only.
    """
    clients, sizes = dict(pca._clients), {}
    named = any(client.summary.sites for client in clients.values())
    for label, site in found:
        sizes[label] = Message(site.summary.n_floats, site.summary.nbytes)
        key = label if pca._keeps_clients else _SUM
        clients[key] = _added(clients[key], site) if key in clients else site
        if named:
            clients[key] = with_label_as_site(key, clients[key])
    pca.communication_.record(sizes.values())
    pca._clients = clients
    _merge_pairs(pca)
    return list(sizes)


def _merge_pairs(pca: Any) -> None:
    """Add the moments of all clients up, and set the fitted attributes."""
    parts: list[Any] = [site.summary for site in pca._clients.values()]
    _check_features(pca, len(parts[0].origin))
    names = getattr(pca, "feature_names_in_", None)
    with largest_named(partial(clients_named, pca._clients), parts):
        pairs = merged_pairs(parts)
        if names is not None:
            pairs = pairs._replace(feature_names=tuple(names))
        subspace, negative = clone(pca.missing).summary(pairs)
    n_rows = sum([site.n_rows for site in pca._clients.values()])
    pca._set_fitted(subspace, pca.n_components, n_rows)
    pca.negative_variance_ = negative
    unknown = int(np.sum(pca.explained_variance_ <= negative)) if negative else 0
    if unknown:
        warnings.warn(
            f"The covariance of available pairs has negative eigenvalues, down to "
            f"{-negative:.3g}, which are set to zero: {unknown} of {pca.n_components_} "
            "components have no more variance than that, as errors have. Ask for fewer.",
            UserWarning,
            stacklevel=2,
        )


def _check_features(pca: Any, d: int) -> None:
    if pca._keeps_clients and d > SMALL_DIMENSION:
        raise ValueError(
            f"X has d={d} features; FederatedPCA with missing=AvailablePairs() takes at most "
            f"{SMALL_DIMENSION}, as clients send 2 d^2 floats. DistributedPCA takes any number, "
            "and missing=ConditionalFill() sends directions only."
        )


def _pairs_of_client(label: Any, X: Any, weight: Any) -> Site:
    """Local work of one client: the moments of its rows."""
    pairs = PairMoments._of(check_rows(X, allow_nan=True), weight)
    return Site(None, count_rows(X, weight), pairs)


def _added(before: Site, more: Site) -> Site:
    """The moments of all rows of a client, or of all clients."""
    parts = [site.summary._replace(site=None) for site in (before, more)]
    pairs = merged_pairs(parts)._replace(single=parts[0].single)  # the dtype of the first rows
    return Site(None, before.n_rows + more.n_rows, pairs)


def from_pairs(
    cls: Any,
    pairs: Iterable[PairMoments],
    n_components: int | float | None = None,
    *,
    missing: AvailablePairs | None = None,
) -> Any:
    """Build a fitted estimator from moments of rows with missing entries elsewhere.

    Parameters
    ----------
    pairs : iterable of PairMoments
        One per site, for instance read with `PairMoments.load`.
    n_components : int, float or None, default=None
        As in the constructor.
    missing : AvailablePairs or None, default=None
        That of the estimator; None: ``AvailablePairs()``.

    Returns
    -------
    pca : FederatedPCA
        ``clients_`` are the sites, if all moments know theirs, or else the positions in the
        list. The numbers are those of a fit in one process, to the last bit.
    """
    if not isinstance(pairs, Iterable):
        kind = type(pairs).__name__
        raise TypeError(f"pairs must be a sequence of PairMoments objects, got one {kind}.")
    pairs = list(pairs)
    kinds = sorted({type(part).__name__ for part in pairs})
    if kinds != [PairMoments.__name__]:
        raise TypeError(f"pairs must be one PairMoments object or more, got {kinds or None}.")
    if "missing" not in signature(cls).parameters:
        raise TypeError(f"{cls.__name__} takes no moments of pairs.")
    missing = AvailablePairs() if missing is None else missing
    if not isinstance(missing, AvailablePairs):
        raise TypeError(f"missing must be AvailablePairs() for moments, got {missing!r}.")
    pca = cls(n_components, missing=missing)
    pca._check_parameters()
    pca.n_features_in_ = d = pairs[0].n_features
    check_at_most_features(n_components, d)
    names = names_known(pairs)
    check_each_site_once(pairs, "pairs")
    pca._start()
    sites = [Site(None, rows_of_summary(part), part) for part in pairs]
    take_pairs(pca, zip(labels_of_sites(pairs), sites, strict=True))
    pca.clients_ = sorted(pca._clients, key=label_order)
    if names is not None:
        pca.feature_names_in_ = np.array(names, dtype=object)
    return pca
