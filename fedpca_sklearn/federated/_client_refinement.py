"""Rounds of products after the merge of `FederatedPCA`, and how far its components may be off."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from .._base.adjusting import adjusts, certify, refinement_of
from .._validation.checks import check_integer
from ..communication import Federation
from ..streaming import StreamingPCA
from ..summary._refinement import Refinement, local_products
from ._clients import rows_of
from ._lack_of_fit import warn_of_cuts
from ._local_fit import Site
from ._merge import takes_all
from ._summaries import Summarised

# A function of a mean and a block of directions.
Multiply: TypeAlias = Callable[[np.ndarray, np.ndarray], np.ndarray]
# Estimators whose directions are those of rows, or cut from them.
_DECOMPOSITIONS = (Summarised, StreamingPCA, PCA, IncrementalPCA, TruncatedSVD)
# Rounds at most where a tolerance is given and no number of rounds.
_MOST_ROUNDS = 20


def most_rounds(estimator: Any) -> int:
    """Rounds that the parameters of an estimator ask for at most."""
    return estimator.n_refinements or (0 if estimator.tol is None else _MOST_ROUNDS)


def refine(
    self: Any, X: Any, clients: Any = None, sample_weight: Any = None, *, n_rounds: int = 1
) -> Any:
    """Bring the components closer to those of all rows at once, by rounds of sums.

    In a round the server sends the directions that it keeps, k of them, and eight vectors at
    random; each client multiplies the scatter matrix of its rows about the mean of all with
    them, and the products are added up. The components are then the best of the block Krylov
    space of all rounds, by Nystroem's approximation. Mean, count and scatter, which are exact,
    stay.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n, d)
        All rows of the fit, also those of earlier calls of `partial_fit`, in any order.
    clients : array-like of shape (n,) or str, default=None
        Label of the client that owns each row, as in `fit`; the result does not depend on it.
    sample_weight : array-like of shape (n,), default=None
        Those of the fit.
    n_rounds : int, default=1
        Rounds. More than one is better than as many calls, as the server keeps all products.

    Returns
    -------
    self : FederatedPCA
        Unchanged if an error is raised. A later `partial_fit` merges the clients' summaries
        anew, without the refinement.

    Raises
    ------
    ValueError
        If the rows have another weight, mean or sum of squares than those of the fit, or with a
        ``mechanism``.

    Notes
    -----
    A round is (k + 8) d floats down and (k + 9) d + 2 up for each client, and O(n_i d k) work
    there. The shifted subspace iteration of Li, Zhang and Zhou (2025, arXiv 2503.03123) sends
    its r directions, and keeps the last product only.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.decomposition import PCA
    >>> from fedpca_sklearn import FederatedPCA, make_spiked, subspace_distance
    >>> X, _ = make_spiked(4000, 400, spikes=(3, 2), random_state=0)
    >>> sites, pooled = np.arange(4000) // 200, PCA(2, svd_solver="full").fit(X).components_
    >>> pca = FederatedPCA(2).fit(X, clients=sites)
    >>> round(subspace_distance(pca.components_, pooled), 3), pca.subspace_error_bound_
    (0.153, inf)
    >>> pca = pca.refine(X, clients=sites, n_rounds=3)
    >>> subspace_distance(pca.components_, pooled) <= pca.subspace_error_bound_ < 0.1
    True
    """
    check_is_fitted(self)
    with self._unchanged_on_error():
        self._check_parameters()
        check_integer("n_rounds", n_rounds)
        _check_refinable(self)
        X, weight, shards = self._shards(X, clients, sample_weight)
        if not shards:
            raise ValueError("sample_weight must have a positive sum, got only zeros.")
        self.communication_ = self.communication_.copy()
        _refine_by(self, products_of_clients(self, X, weight, shards), n_rounds)
    return self


def never_exceeds(pca: Any) -> bool:
    """Whether the summary never exceeds the scatter matrix of the rows."""
    return pca.missing is None and takes_all(pca.merge) and all(map(_is_cut, pca._clients.values()))


def warn_of_cut(pca: Any) -> None:
    """Warn where clients have cut more of what they send than the result can bear."""
    pca._warn_of_cut()
    if adjusts(pca) or most_rounds(pca) or (pca.merge and pca.merge.compares_sites):
        return
    if never_exceeds(pca):
        parts = [site.summary for site in pca._clients.values() if site.summary.n_samples]
        warn_of_cuts(parts, pca._values()["subspace_"], pca.n_components_)


def check_refinement(pca: Any) -> None:
    """Raise where noise, or another merge, leaves nothing to refine."""
    _check_merge(pca)
    if pca.mechanism is not None:
        for name, none in (("n_refinements", 0), ("tol", None)):
            if getattr(pca, name) != none:
                raise ValueError(
                    f"{name} must be {none} with a mechanism: each round would need noise of "
                    f"its own, got {getattr(pca, name)!r}."
                )


def _check_merge(pca: Any) -> None:
    if pca.missing is not None:
        raise ValueError(
            f"missing={pca.missing!r} cannot be refined: rows with missing entries have no "
            "products with directions."
        )
    if pca.merge is not None and pca.merge.compares_sites:
        raise ValueError(
            f"merge={pca.merge!r} cannot be refined: rounds lead to the components of all "
            "rows alike, whatever the merge made of unlike clients."
        )


def _check_refinable(pca: Any) -> None:
    """Raise where rounds would undo what a merge or a mechanism did."""
    _check_merge(pca)
    if pca.mechanism is not None:
        raise ValueError(
            f"mechanism must be None to refine, got {pca.mechanism!r}: products would need "
            "noise of their own; FederatedPowerPCA has rounds with noise."
        )
    if (stated := pca._values()["subspace_"].privacy) is not None:
        raise ValueError(
            f"The summaries must state no privacy to refine them, got {stated!r}: products "
            "would need noise of their own; FederatedPowerPCA has rounds with noise."
        )


def refine_as_asked(pca: Any, multiplies: Callable[[], Multiply], off: float = 0.0) -> None:
    """The refinements that the parameters ask for, by products wherever the rows are.

    ``off`` as in `Refinement`.
    """
    n_rounds, tol = most_rounds(pca), pca.tol
    if n_rounds and (tol is None or pca.subspace_error_bound_ > tol):
        _refine_by(pca, multiplies(), n_rounds, tol, off)
    if tol is not None and pca.subspace_error_bound_ > tol:
        warnings.warn(
            f"subspace_error_bound_ is {pca.subspace_error_bound_:.1e} after "
            f"{pca.n_refinements_} refinements, above tol={tol}; raise n_refinements.",
            ConvergenceWarning,
            stacklevel=2,
        )


def products_of_clients(
    pca: Any, X: Any, weight: Any, shards: Sequence[tuple[Any, Any]]
) -> Multiply:
    """Products with the rows of clients, each a round of sums."""
    federation = Federation(pca.n_jobs, log=pca.communication_)
    parts = list(rows_of(X, weight, list(shards)))

    def multiply(mean, block):
        return federation.sum(local_products, [(*part, mean, block) for part in parts], block)

    return multiply


def _refine_by(
    pca: Any, multiply: Multiply, n_rounds: int, tol: float | None = None, off: float = 0.0
) -> None:
    """Rounds over the rows of clients, until a bound is small enough if there is one.

    ``multiply(mean, block)`` returns the sum of `products_of` the rows of all clients, wherever
    they are; ``off`` as in `Refinement`.
    """
    subspace = pca._values()["subspace_"]
    if not subspace.scatter > 0:
        return
    pooled = pca.communication_.floats_pooled
    refinement = refinement_of(pca, subspace)
    refinement.off = off
    for _ in range(n_rounds):
        if not len(refinement.block):
            break
        refinement.add(multiply(subspace.mean, refinement.block))
        if tol is not None:
            _show_refined(pca, refinement)
            if pca.subspace_error_bound_ <= tol:
                break
    pca.communication_.floats_pooled = pooled  # no rows but those of the fit
    if tol is None:
        _show_refined(pca, refinement)
    pca.n_refinements_ += refinement.n_rounds


def _show_refined(pca: Any, refinement: Refinement) -> None:
    """Set the fitted attributes, and what is certain about them."""
    pca._set_fitted(refinement.summary(), pca.n_components, pca._values()["n_samples_"])
    certify(pca, refinement.certificate(pca.n_components_))


def _is_cut(site: Site) -> bool:
    """Whether a client's directions were cut from a decomposition whose scatter is known.

    Those of trackers were not, nor is noise; of a summary from elsewhere it is supposed.
    """
    of_summary = site.estimator is None and site.summary.column_scatter is not None
    known = of_summary or isinstance(site.estimator, _DECOMPOSITIONS)
    return known and site.summary.privacy is None
