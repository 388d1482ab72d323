"""More passes over the rows of a `StreamingPCA`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sklearn.utils.validation import check_is_fitted

from .._base.adjusting import certify, refinement_of
from .._base.sources import is_stream
from .._dask import RowChunks, is_dask
from .._kernels.row_moments import RowsAtHand
from .._kernels.threads import threads_for
from .._validation.checks import check_integer, finite_by_sums
from ..communication import Federation
from ..summary._refinement import Refinement, local_products, products_of
from ._blocks import check_call, validated_blocks


def refine(self: Any, X: Any, sample_weight: Any = None, *, n_rounds: int = 1) -> Any:
    """Take another pass over the rows of the fit, which brings the components closer to PCA's.

    The directions that are kept, k of them, and eight vectors at random are multiplied with the
    scatter matrix of all rows; the new ones are the best of their block Krylov space, by
    Nystroem's approximation. Mean, count and scatter, which are exact, stay.

    Parameters
    ----------
    X : {array-like, sparse matrix} of shape (n, d), or iterable of such batches
        All rows seen so far, in any order and in any batches. A memory map, an HDF5 or zarr
        array and a dask.array are read chunk by chunk.
    sample_weight : array-like of shape (n,), default=None
        Those of the fit. Not for iterables.
    n_rounds : int, default=1
        Passes over the rows. More than one is better than as many calls, as the space keeps all
        products; an iterator can be read once.

    Returns
    -------
    self : StreamingPCA
        Unchanged if an error is raised. `partial_fit` may go on from there.

    Raises
    ------
    ValueError
        If the rows have another weight, mean or sum of squares than those of the fit, or if the
        ``forgetting_factor`` is below 1 or a ``half_life`` is given: rows that have faded
        cannot be taken again.

    Notes
    -----
    A round costs 4 n d (k + 8) operations, 2 nnz (k + 8) of sparse rows, which stay sparse; r
    rounds take O(d r k) memory. ``subspace_error_bound_`` is then from the products. The part
    of the scatter matrix that they leave has at most the trace that is left, and at most the
    norm that the vectors at random show, unless these are all but orthogonal to its leading
    eigenvector: that has a probability of 1e-6 for rows that do not depend on them.

    Examples
    --------
    >>> from fedpca_sklearn import StreamingPCA, excess_error, make_power_law
    >>> X = make_power_law(2000, 600, alpha=1.0, random_state=1)
    >>> pca = StreamingPCA(5).fit(X[i : i + 200] for i in range(0, 2000, 200))
    >>> print(f"{excess_error(X, pca.components_, pca.mean_):.0e}")
    1e-05
    >>> pca = pca.refine(X)
    >>> excess_error(X, pca.components_, pca.mean_) < 1e-6
    True
    >>> pca.refine(X, n_rounds=4).subspace_error_bound_ < 1e-6
    True
    """
    check_is_fitted(self)
    stream = self._stream
    check_integer("n_rounds", n_rounds)
    _check_readable(self, X, n_rounds)
    self._check_parameters()
    with self._unchanged_on_error():
        check_call(self, X, sample_weight, None, stream.state)
        state = stream.after(self)
        if state.subspace.scatter:
            refinement = refinement_of(self, state.subspace)
            for _ in range(n_rounds):
                if len(refinement.block):
                    refinement.add(_products(self, X, sample_weight, refinement))
            self._keep(replace(state, subspace=refinement.summary()))
            certify(self, refinement.certificate(self.n_components_))
    return self


def _check_readable(pca: Any, X: Any, n_rounds: int) -> None:
    """Raise where rows cannot be taken again, or not so often."""
    for name, kept in (("forgetting_factor", 1), ("half_life", None)):
        value = getattr(pca, name)
        if value != kept:
            raise ValueError(
                f"{name}={value!r} must be {kept} to refine: rows that have faded cannot be "
                "taken again."
            )
    if n_rounds > 1 and is_stream(X) and hasattr(X, "__next__"):
        raise ValueError(f"n_rounds={n_rounds} must be 1 where X is an iterator, read once.")


def _products(pca: Any, X: Any, sample_weight: Any, refinement: Refinement) -> Any:
    """`products_of` all rows with the next block of a refinement."""
    mean, V = refinement.rows.mean, refinement.block
    if is_dask(X):
        chunks = RowChunks(pca, X, sample_weight, reset=False)
        weights = chunks.weights or [None] * len(chunks)
        calls = [(i, chunks[i], weights[i], mean, V) for i in range(len(chunks))]
        return Federation().sum(local_products, calls, V)
    total: Any = 0.0
    for rows, weight in validated_blocks(pca, X, sample_weight, refinement.before._dtype):
        with finite_by_sums(rows), threads_for(rows.shape[1] * (len(V) + rows.shape[0])):
            total = total + products_of(RowsAtHand(rows, weight), mean, V, weight)
    return total
