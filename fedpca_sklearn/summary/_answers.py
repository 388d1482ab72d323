r"""A site's answer to the query of a refinement, and its binary form.

Little-endian, with a checksum, without pickle:

    offset  bytes    content
    0       8        magic ``b"FEDANSW"`` and the format version, 1
    8       4        CRC-32 of the directions that were asked about
    12      4        length l of the site's name (uint32)
    16      8        number of directions k (uint64)
    24      8        number of features d (uint64)
    32      8        sum of squares about the mean of all rows (float64)
    40      8        weight of the rows (float64)
    48      8 k d    products (float64), row by row
            8 d      deviation of the sum of the rows (float64)
            l        the site's name, UTF-8
    -4      4        CRC-32 of everything before
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .._kernels.device_rows import in_memory
from .._kernels.linalg import orthonormality_error
from .._kernels.row_moments import SiteMoments
from .._kernels.tolerances import GIVEN_BASIS_TOL
from .._validation.arrays import in_numpy
from .._validation.checks import check_rows, check_weight, float_array, nonnegative_float
from .._validation.feature_names import check_same_names, names_of
from .._validation.texts import NAME_BYTES, check_text
from . import _codec
from ._in_files import InFiles
from ._refinement import products_of
from ._subspace import Subspace

_MAGIC, _VERSION = b"FEDANSW", 1
_HEADER = struct.Struct("<7sBIIQQdd")
_CORRUPT = "Corrupt answer to a refinement"


@dataclass(frozen=True, eq=False)
class RefinementAnswer(InFiles):
    """What a site answers to `FederatedPCA.refinement_query`, for `FederatedPCA.refine_from`.

    Parameters
    ----------
    products : array-like of shape (k, d)
        The directions of the query times the scatter matrix of the site's rows about the mean of
        all rows.
    deviation : array-like of shape (d,)
        Sum of the rows less the mean of all.
    scatter : float
        Sum of squares of the rows less the mean of all.
    n_samples : float
        Weight of the rows.
    query : int
        Checksum of the directions that were asked about.
    site : str, default=None
        Who the rows belong to. Two answers of one site are refused.

    Raises
    ------
    ValueError
        If the fields do not fit together, or hold other values than finite numbers.

    Notes
    -----
    k d + d + 2 floats, of which the server needs the sums over sites. As `Subspace`, an answer is
    written without pickle, and may come from anybody.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import FederatedPCA, RefinementAnswer, StreamingPCA
    >>> X, y = load_digits(return_X_y=True)
    >>> parts = X[y < 5], X[y >= 5]
    >>> sites = [StreamingPCA(3, oversampling=2).fit(part).subspace_ for part in parts]
    >>> pca = FederatedPCA.from_subspaces(sites, 3)
    >>> query = pca.refinement_query()
    >>> answers = [RefinementAnswer.from_rows(query, part) for part in parts]
    >>> before = pca.explained_variance_.round()
    >>> before, pca.refine_from(answers).explained_variance_.round()
    (array([175., 160., 139.]), array([179., 164., 142.]))
    """

    products: np.ndarray
    deviation: np.ndarray
    scatter: float
    n_samples: float
    query: int
    site: str | None = None

    def __post_init__(self):
        fields: dict[str, Any] = {
            "products": float_array("products", self.products, 2, np.float64),
            "deviation": float_array("deviation", self.deviation, 1, np.float64),
            "scatter": nonnegative_float("scatter", self.scatter),
            "n_samples": nonnegative_float("n_samples", self.n_samples),
            "query": int(self.query),
            "site": None if self.site is None else check_text("site", self.site),
        }
        if fields["products"].shape[1] != len(fields["deviation"]):
            raise ValueError(
                f"deviation must have {fields['products'].shape[1]} values, got "
                f"{len(fields['deviation'])}."
            )
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def n_floats(self) -> int:
        """Floats that the answer carries."""
        return self.products.size + len(self.deviation) + 2

    @property
    def nbytes(self) -> int:
        """Length of `to_bytes`, without building it."""
        frame = _HEADER.size + _codec.CHECKSUM.size
        return frame + 8 * (self.n_floats - 2) + len((self.site or "").encode())

    @classmethod
    def from_rows(
        cls, query: Subspace, X: Any, *, sample_weight: Any = None, site: str | None = None
    ) -> RefinementAnswer:
        """Answer a query with the rows of a site.

        Parameters
        ----------
        query : Subspace
            Of `FederatedPCA.refinement_query`: orthonormal directions without variances. The answer
            tells its sender the product of the scatter matrix of the rows with each of them, so
            that a query of d directions asks for the scatter matrix.
        X : {array-like, sparse matrix} of shape (n, d)
            The rows that the site's summary is of.
        sample_weight : array-like of shape (n,), default=None
            Weight of each row, as in the summary; None: 1.
        site : str, default=None
            Who the rows belong to.

        Returns
        -------
        answer : RefinementAnswer
            From the number, mean and scatter matrix of the rows, in O(n d^2) time up to 2,048
            columns; above, from products of the rows about their own mean, with noise of 2^-40 of
            what an entry can be, in O(n d k) time.
        """
        return cls._from_batches(query, [(X, sample_weight)], site)

    @classmethod
    def _from_batches(
        cls, query: Subspace, batches: Iterable[tuple[Any, Any]], site: str | None
    ) -> RefinementAnswer:
        """Answer with the rows of all batches together; each comes with weights or None."""
        if not isinstance(query, Subspace):
            raise TypeError(f"query must be a Subspace, got {type(query).__name__}.")
        query = in_numpy(query)
        _check_question(query)
        own = SiteMoments.of_batches(_checked(query, X, weight) for X, weight in batches)
        if own is None:
            raise ValueError("X must hold at least one batch of rows, got none.")
        V = query.components.astype(np.float64)
        answer = products_of(own, query.mean, V)
        products, deviation, (scatter, count) = np.split(answer, [V.size, -2])
        return cls(products.reshape(V.shape), deviation, scatter, count, checksum(V), site)

    def vector(self) -> np.ndarray:
        """Return all numbers one after the other, of which those of several sites are added up.

        Returns
        -------
        vector : ndarray of shape (n_floats,)
            Products, deviation, scatter and weight.
        """
        return np.concatenate(
            [self.products.ravel(), self.deviation, [self.scatter, self.n_samples]]
        )

    def _replace(self, **changes: Any) -> RefinementAnswer:
        return replace(self, **changes)

    def to_bytes(self) -> bytes:
        """Serialise without pickle.

        Returns
        -------
        data : bytes
            ``nbytes`` of them.
        """
        site = (self.site or "").encode()
        k, d = self.products.shape
        sums = self.scatter, self.n_samples
        header = _HEADER.pack(_MAGIC, _VERSION, self.query, len(site), k, d, *sums)
        arrays = [np.asarray(a, "<f8").tobytes() for a in (self.products, self.deviation)]
        body = b"".join([header, *arrays, site])
        return _codec.sealed(body)

    @classmethod
    def _decoded(cls, data: Any, max_bytes: int) -> RefinementAnswer:
        view = _codec.view_of(data, max_bytes)
        what = "an answer to a refinement"
        query, n_site, k, d, scatter, n_samples = _codec.header_of(
            view, _HEADER, _MAGIC, _VERSION, what
        )
        expected = _HEADER.size + 8 * (k * d + d) + n_site + _codec.CHECKSUM.size
        if k > d or n_site > NAME_BYTES or len(view) != expected:
            raise ValueError(f"{_CORRUPT}: its header does not fit to its {len(view)} bytes.")
        body, at_site = view[: -_codec.CHECKSUM.size], expected - _codec.CHECKSUM.size - n_site
        _codec.check_seal(view, _CORRUPT)
        numbers = np.frombuffer(view, "<f8", k * d + d, _HEADER.size)
        try:
            site = bytes(view[at_site : len(body)]).decode() or None
        except UnicodeDecodeError:
            raise ValueError(f"{_CORRUPT}: the name of its site is no text.") from None
        products, deviation = numbers[: k * d].reshape(k, d), numbers[k * d :]
        with np.errstate(all="ignore"):  # hostile values are judged by the validation
            return cls(products, deviation, scatter, n_samples, query, site)


def _check_question(query: Subspace) -> None:
    """Raise unless a summary asks about directions, as `refinement_query` does."""
    if query.singular_values.any():
        raise ValueError(
            "query must ask about directions without variances, got singular values: it is a "
            "model, or the query of a round that fills rows in (FillAnswer, answer --fill)."
        )
    error = orthonormality_error(query.components.astype(np.float64))
    if not error <= GIVEN_BASIS_TOL:
        raise ValueError(f"query must have orthonormal components, they are off by {error:.1e}.")


def _checked(query: Subspace, X: Any, sample_weight: Any) -> tuple[Any, np.ndarray | None]:
    """Rows with the columns of a query, in memory, and their weights."""
    check_same_names(query.feature_names, names_of(X), "X")
    X = check_rows(X)
    if X.shape[1] != query.n_features:
        raise ValueError(f"X has {X.shape[1]} features, expected {query.n_features}.")
    return in_memory(X), check_weight(sample_weight, X.shape[0])


def checksum(directions: np.ndarray) -> int:
    """Tells the directions of one query from those of another."""
    return zlib.crc32(np.ascontiguousarray(directions, "<f8").tobytes())
