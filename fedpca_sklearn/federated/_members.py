"""Clients that come as summaries, and clients that leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._base.adjusting import (
    warn_of_another_cut,
)
from .._base.fitted import show_in
from .._validation.arrays import PLACE
from .._validation.checks import check_at_most_features
from ..summary import Subspace
from ..summary._merging import checked_with_place
from ._clients import label_order
from ._local_fit import Site, labels_of_sites, rows_of_summary


def from_subspaces(
    cls: Any,
    subspaces: Sequence[Subspace],
    n_components: int | float | str | None = None,
    *,
    merge: Any = None,
    scale: bool = False,
    partial_out: Any = None,
) -> Any:
    """Build a fitted estimator from summaries that were computed elsewhere.

    Where summaries know their ``sites``, two with a site in common are refused, and a warning
    tells if only some know them.

    Parameters
    ----------
    subspaces : sequence of Subspace
        One per site, for instance read with `Subspace.load`.
    n_components : int, float, "parallel", "mle" or None, default=None
        Number of components, or in (0, 1) the share of the variance that they explain, or the
        rule that counts them; None: all that the merged summaries hold. If directions were cut,
        a larger number than that is an error.
    merge : MergeStrategy or None, default=None
        Strategy that makes one summary of all; None: ``SubspaceMerge()``.
    scale : bool, default=False
        As in `FederatedPCA`. Sites need not know, unless they cut directions: the summaries are
        those of the rows. A warning tells if more than 5 % of the variance of scaled columns is
        missing in them, and ten times the share that is missing of the columns as they are.
    partial_out : str, int or sequence of these, default=None
        As in `FederatedPCA`. A warning tells if 5 % of a confounder's variance was cut.

    Returns
    -------
    pca : FederatedPCA
        ``clients_`` are the sites, if all summaries know theirs, or else the positions in the
        list. A later ``partial_fit`` adds clients with other labels, and goes on with more rows
        of these, as `StreamingPCA.from_subspace` does.

    Examples
    --------
    Sites that cannot share rows fit by themselves, and send a file:

    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import FederatedPCA, StreamingPCA
    >>> X, y = load_digits(return_X_y=True)
    >>> sites = [StreamingPCA(5).fit(X[y == digit]).subspace_ for digit in range(10)]
    >>> FederatedPCA.from_subspaces(sites, 5).explained_variance_.round(3)
    array([179.007, 163.718, 141.788, 101.1  ,  69.513])
    """
    pca = cls(n_components, merge=merge, scale=scale, partial_out=partial_out)
    return pca._fitted_on(subspaces)


def fitted_on(self: Any, subspaces: Sequence[Subspace]) -> Any:
    """The estimator, fitted on summaries."""
    self._check_parameters()
    subspaces, place = checked_with_place(subspaces)
    check_at_most_features(self.n_components, subspaces[0].n_features)
    if not any(s.n_samples > 0 for s in subspaces):
        raise ValueError("subspaces must hold at least one row, all have n_samples=0.")
    self._start()
    self._clients = {
        label: Site(None, rows_of_summary(s), s)
        for label, s in zip(labels_of_sites(subspaces), subspaces, strict=True)
    }
    self._merge_all()
    beyond = self._beyond_the_summary()
    if beyond is not None:
        raise ValueError(beyond)
    self.clients_ = sorted(self._clients, key=label_order)
    self.n_features_in_ = subspaces[0].n_features
    if self.subspace_.feature_names is not None:
        self.feature_names_in_ = np.array(self.subspace_.feature_names, dtype=object)
    warn_of_another_cut(self)
    show_in(place, self)
    return self


def remove(self: Any, label: Any) -> Any:
    """Take a client out: the fit is then that of the others, as if it had never come.

    Parameters
    ----------
    label : object
        One of ``clients_``.

    Returns
    -------
    self : FederatedPCA
        Unchanged if an error is raised. What a mechanism has charged stays charged.

    Raises
    ------
    ValueError
        For an unknown label, for the last client, and with ``trust="sum"``, where only the sum
        of all is known.

    Notes
    -----
    The others' summaries are merged anew, so that nothing of the client is left, not even a
    rounding error, nor a refinement. In a tree the merges on its path are made again.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import FederatedPCA
    >>> X, y = load_digits(return_X_y=True)
    >>> pca = FederatedPCA(5).fit(X, clients=y).remove(3)
    >>> others = FederatedPCA(5).fit(X[y != 3], clients=y[y != 3])
    >>> bool((pca.explained_variance_ == others.explained_variance_).all())
    True
    """
    check_is_fitted(self)
    if self._trust == "sum":
        raise ValueError("trust='sum' knows the sum of all clients only; none can be removed.")
    if label not in self._clients:
        raise ValueError(f"label must be one of clients_, {self.clients_}, got {label!r}.")
    others = {known: site for known, site in self._clients.items() if known != label}
    if not any(site.n_rows for site in others.values()):
        raise ValueError(f"label={label!r} is the last client; nothing would be left.")
    place = vars(self).get(PLACE)
    with self._unchanged_on_error():
        self.communication_ = self.communication_.copy()
        self._clients = others
        if self.missing is None:
            self._merge_all()
        else:
            self.missing._merge_others(self)
        self.clients_ = [known for known in self.clients_ if known in others]
        if place is not None:
            self.__dict__[PLACE] = place
    if self.missing is None:
        self._warn_of_cut()
    return self
