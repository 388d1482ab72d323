"""The subspace summary, which stands for blocks, clients, merges and models alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .._kernels.sizes import exact_dimension, kept_directions
from .._kernels.threads import TINY_CALL, threads_for
from .._validation.arrays import ArrayNamespace, in_numpy, where_rows_are
from .._validation.checks import (
    check_forgetting_factor,
    check_integer,
    check_n_components,
    check_rows,
    check_weight,
    float_array,
    nonnegative_float,
)
from .._validation.containers import check_same_names, composed_names, names_of
from ._codec import (
    CENTRED,
    COLUMNS,
    LAYOUTS,
    SINGLE,
    SUMMARY,
    TRIANGLE,
    InFiles,
    checked_fields,
    is_whole,
    triangle_of,
)
from ._exact import ScatterMatrix
from ._provenance import StatedModel, StatedPrivacy, check_stored_names, encode_labels
from ._updating import updated

# Sum of squares below which a scatter matrix loses digits.
_LEAST_SCATTER = 2.0**-900
# Fields that need not be made before they are read.
_DIRECTIONS = {"components", "singular_values"}
# Fields that say nothing of the rows' numbers.
_LABELS = {"feature_names", "site", "sites", "privacy", "model"}
# Fields that need not be given.
_UNKNOWN = {
    **dict.fromkeys(("site", "sites", "column_scatter", "_leading", "privacy", "model")),
    "feature_names": None,
    "_mean_low": 0.0,
}
# Sums of squares below which a square loses digits.
_FEW_DIGITS = np.finfo(np.float64).tiny / np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False, repr=False)
class Subspace(InFiles):
    """Immutable summary of a set of rows by their leading principal directions.

    It is what a site sends in place of its rows, and all that `StreamingPCA` remembers of a stream:
    k directions, singular values, the mean, the number of rows and their total sum of squares (the
    scatter). Its size does not depend on the number of rows. Make it of rows by `from_rows`, or
    take ``subspace_`` of a fitted estimator; `update` adds rows, `merge_subspaces` merges summaries
    in any order, `save` and `load` use files without pickle. Mean, count and scatter are exact; the
    directions are exact as long as none was cut.

    Parameters
    ----------
    components : array-like of shape (k, d)
        Orthonormal rows, float32 or float64 (kept).
    singular_values : array-like of shape (k,)
        Singular values of the mean-centred (weighted) rows along the components, decreasing.
    mean : array-like of shape (d,)
        Weighted mean of the rows, float64; zero in a summary that is not centred.
    n_samples : float
        Number of rows: the sum of their weights.
    scatter : float
        Total (weighted) sum of squares about the mean, the part outside the components included.
    centered : bool, default=True
        Whether the summary is about the mean (PCA) or about the origin (truncated SVD).
    feature_names : sequence of str, default=None
        Names of the columns, where they are known. They travel with the summary, and summaries
        whose names differ are not merged.
    site : str, default=None
        Who the rows belong to, if all belong to one.
    sites : collection of str, default=()
        Those whose rows are in the summary, as far as they are known; kept as a sorted tuple. A
        merged summary has the sites of all its parts, and two summaries with a site in common are
        not merged.
    column_scatter : array-like of shape (d,), default=None
        Sum of squares of each column about the mean, float64; they add up to ``scatter``. None
        where it is not known, as in a summary of another library's estimator.
    privacy : tuple (epsilon, delta, row_norm, mechanism, trust), default=None
        The promise about the privacy of each row, set by `FederatedPCA` with a ``mechanism``. It
        is a statement, not a proof. A merged summary states the largest epsilon and delta, as each
        row is in one of its parts, or nothing if a part states nothing.
    model : tuple (n_components, scale, partial_out, error_bound), default=None
        The model that a file is of, as ``fedpca merge`` writes it: the parameters of
        `FederatedPCA.from_subspaces` by which its components are computed from the summary, with
        confounders as positions, and its ``subspace_error_bound_``. Merges and estimators make
        another model by parameters of their own; a summary with other numbers has no ``model``.

    Raises
    ------
    ValueError
        If the fields do not fit together: shapes, finiteness, orthonormality, order and sign of
        the singular values, a scatter below the energy of the components. If a name is not valid
        text of at most 500 bytes without control, bidi and zero-width characters.

    See Also
    --------
    merge_subspaces : Merge any number of summaries.
    StreamingPCA : The estimator around it.

    Notes
    -----
    The summary is the tuple that Bai, Chan and Luk (2005), Theorem 1, need for an exact merge, cut
    to k directions as in Grammenos et al. (2019), with the scatter added so that explained
    variance ratios and the noise variance stay exact after a cut, and the scatter of each column
    so that variances of columns do.

    Names of columns and sites are kept in Unicode's composed form (NFC), so that two spellings of
    one name are the same name.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import Subspace, merge_subspaces
    >>> X = load_digits().data
    >>> first, second = Subspace.from_rows(X[:700]), Subspace.from_rows(X[700:])
    >>> pooled = merge_subspaces([first, second], n_components=3)
    >>> pooled
    Subspace(n_components=3, n_features=64, n_samples=1797, explained=40.3%)
    >>> pooled.singular_values.round(2)
    array([567.01, 542.25, 504.63])
    """

    components: np.ndarray
    singular_values: np.ndarray
    mean: np.ndarray
    n_samples: float
    scatter: float
    centered: bool = True
    feature_names: tuple[str, ...] | None = None
    site: str | None = None
    sites: tuple[str, ...] = ()
    column_scatter: np.ndarray | None = None
    privacy: StatedPrivacy | None = None
    model: StatedModel | None = None
    _kind = SUMMARY
    if TYPE_CHECKING:
        # `Factor` or a `ScatterMatrix`, which has the directions when they are read, or None.
        _leading: ClassVar[Any]
        _mean_low: ClassVar[Any]  # what the mean is more than ``mean``, of digits below

    def __post_init__(self):
        self._set(checked_fields(vars(self)))

    def _set(self, values: dict[str, Any]) -> None:
        for value in values.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False
        known = {**_UNKNOWN, **values}
        site = known["site"]
        known["sites"] = known["sites"] or (() if site is None else (site,))
        known["n_samples"], known["scatter"] = float(known["n_samples"]), float(known["scatter"])
        if known["_leading"] is not None:
            for name in _DIRECTIONS:
                known.pop(name, None)
        vars(self).update(known)

    @classmethod
    def _trusted(cls, *fields, **named):
        """Build without validation from arrays that nobody else will write to."""
        self = object.__new__(cls)
        self._set({**dict(zip(cls.__dataclass_fields__, fields, strict=False)), **named})
        return self

    def _replace(self, **changes: Any) -> Subspace:
        """Build a summary that differs in some fields, without validation.

        A new ``site`` sets ``sites`` to it alone; a new ``scatter`` drops ``column_scatter``, and
        any new number the ``model``.
        """
        if "site" in changes:
            changes.setdefault("sites", None)
        if changes.get("scatter", self.scatter) != self.scatter:
            changes.setdefault("column_scatter", None)
        if changes.keys() - _LABELS:
            changes.setdefault("model", None)
        if "mean" in changes:
            changes.setdefault("_mean_low", 0.0)
        now, new = dict(vars(self)), object.__new__(type(self))
        given = _DIRECTIONS & changes.keys()
        if given:
            now["_leading"] = None
            for name in _DIRECTIONS - given:
                now[name] = getattr(self, name)
        new._set({**now, **changes})
        return new

    if not TYPE_CHECKING:  # which would take every name for a field

        def __getattr__(self, name: str) -> Any:
            leading = vars(self).get("_leading")
            if leading is not None and name in _DIRECTIONS:
                return getattr(leading, name)
            return object.__getattribute__(self, name)  # the error

    def __deepcopy__(self, memo):
        return self

    def __setstate__(self, state):
        self._set(state)

    def _shown_in(self, namespace: ArrayNamespace) -> Subspace:
        """The summary with arrays of another library, on the device of rows."""
        return NamespaceSubspace(self, namespace)

    def _in_numpy(self) -> Subspace:
        """The summary with arrays of numpy."""
        return self

    def _named(self, names: Any) -> Subspace:
        """Summary with the names of the columns, if they are known."""
        return self if names is None else self._replace(feature_names=composed_names(names))

    def __repr__(self):
        explained = float(self.explained_variance_ratio.sum())
        return (
            f"Subspace(n_components={self.n_components}, n_features={self.n_features}, "
            f"n_samples={self.n_samples:.6g}, explained={explained:.1%})"
        )

    # ---------------------------------------------------------------- what follows from the fields

    @property
    def n_components(self) -> int:
        """Number of directions kept."""
        return len(self.components) if self._leading is None else self._leading.n_components

    @property
    def _rows(self) -> np.ndarray:
        """Rows R with the scatter matrix R^T R of the directions, at most d; not to be written."""
        if self._leading is not None:
            return self._leading.rows
        return self.singular_values[:, None] * self.components.astype(np.float64)

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return len(self.mean)

    @property
    def _dtype(self) -> np.dtype:
        """That of the components."""
        return (self.components if self._leading is None else self._leading).dtype

    @property
    def degrees_of_freedom(self) -> float:
        """Divisor of variances: n - 1 as in scikit-learn, n / 2 below two (effective) samples."""
        return max(self.n_samples - 1, self.n_samples / 2)

    @property
    def explained_variance(self) -> np.ndarray:
        """Variance along each component."""
        return self.singular_values**2 / (self.degrees_of_freedom or 1.0)

    @property
    def total_variance(self) -> float:
        """Sum of the variances of all features."""
        return self.scatter / (self.degrees_of_freedom or 1.0)

    @property
    def explained_variance_ratio(self) -> np.ndarray:
        """Share of the total variance along each component; zero where there is no variance."""
        with np.errstate(over="ignore"):  # numpy 1.25 warns where nothing overflows
            s = self.singular_values
            if len(s) and s[0] > 0 and self.scatter < _FEW_DIGITS:
                squares = (s / s[0]) ** 2
                return squares / max(self.scatter / s[0] / s[0], squares.sum())
            return s**2 / (self.scatter or 1.0)

    # ---------------------------------------------------------------- construction

    @classmethod
    def empty(cls, n_features: int, *, centered: bool = True, dtype: Any = np.float64) -> Subspace:
        """Return the summary of no rows, the identity of `merge_subspaces`.

        Parameters
        ----------
        n_features : int
            Number of columns, d.
        centered : bool, default=True
            Whether the scatter of rows to come is taken about their mean; False: about the origin.
        dtype : dtype, default=float64
            Of the components.

        Returns
        -------
        subspace : Subspace
            A summary with ``n_samples`` 0 and no components.
        """
        check_integer("n_features", n_features)
        zero = np.zeros
        components = zero((0, n_features), dtype)
        if components.dtype not in (np.float32, np.float64):
            components = float_array("components", components, 2)
        moments = zero(0), zero(n_features), 0.0, 0.0
        return cls._trusted(components, *moments, bool(centered), column_scatter=zero(n_features))

    @classmethod
    @where_rows_are
    def from_rows(
        cls,
        X: Any,
        n_components: int | None = None,
        *,
        center: bool = True,
        sample_weight: Any = None,
    ) -> Subspace:
        """Summarise rows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Finite rows, which are not changed.
        n_components : int, default=None
            Directions to keep; None keeps all that the rows span.
        center : bool, default=True
            Whether the scatter is taken about the mean of the rows; False: about the origin.
        sample_weight : array-like of shape (n,), default=None
            Weight of each row; None: 1. Integer weights equal repeated rows.

        Returns
        -------
        subspace : Subspace
            Summary of the rows, with the dtype of X if that is float32 or float64.
        """
        names = names_of(X)
        X = check_rows(X)
        start = cls.empty(X.shape[1], centered=center, dtype=X.dtype)._named(names)
        return start.update(X, n_components, sample_weight=sample_weight)

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, n_samples: float | None = None, scatter: float | None = None
    ) -> Subspace:
        """Read the summary off a fitted PCA-like estimator.

        Parameters
        ----------
        estimator : object
            Fitted, with ``subspace_`` (this library) or ``components_`` and ``singular_values_``
            (scikit-learn's PCA, IncrementalPCA, TruncatedSVD and alike). Without ``mean_`` the
            summary is about the origin.
        n_samples : float, default=None
            Number of rows seen, where the estimator has neither ``n_samples_seen_`` nor
            ``n_samples_`` (TruncatedSVD).
        scatter : float, default=None
            Total sum of squares, where it cannot be recovered from
            ``explained_variance_ratio_``. Without it, the energy of the components.

        Returns
        -------
        subspace : Subspace
        """
        ready = getattr(estimator, "subspace_", None)
        if isinstance(ready, Subspace):
            return ready
        name = type(estimator).__name__
        for attribute in ("components_", "singular_values_"):
            if not hasattr(estimator, attribute):
                raise TypeError(
                    f"estimator must be a fitted PCA-like estimator, but {name} has no {attribute}."
                )
        components = np.asarray(in_numpy(estimator.components_))
        singular_values = np.asarray(in_numpy(estimator.singular_values_), dtype=np.float64)
        if n_samples is None:
            for attribute in ("n_samples_seen_", "n_samples_"):
                n_samples = getattr(estimator, attribute, n_samples)
        if n_samples is None:
            raise ValueError(f"{name} does not know how many rows it saw: give n_samples.")
        mean = in_numpy(getattr(estimator, "mean_", None))
        energy = float(singular_values @ singular_values)
        if scatter is None:
            scatter = energy
            ratio = in_numpy(getattr(estimator, "explained_variance_ratio_", None))
            if mean is not None and ratio is not None and len(ratio) and ratio[0] > 0:
                scatter = max(energy, float(singular_values[0] ** 2 / ratio[0]))
        order = np.argsort(-singular_values, kind="stable")  # TruncatedSVD's may be out of order
        return cls(
            components[order] if len(order) == len(components) else components,  # an error
            singular_values[order],
            np.zeros(components.shape[1]) if mean is None else mean,
            n_samples,
            max(scatter, energy),
            centered=mean is not None,
            feature_names=getattr(estimator, "feature_names_in_", None),
        )

    # ---------------------------------------------------------------- operations

    @where_rows_are
    def update(
        self,
        X: Any,
        n_components: int | None = None,
        *,
        forgetting_factor: float = 1.0,
        sample_weight: Any = None,
    ) -> Subspace:
        """Return the summary of the rows seen before and of new ones.

        Rows are processed in blocks. With ``n_components``, more directions than asked are kept
        between blocks and cut at the end.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Finite new rows, with the columns of those before.
        n_components : int, default=None
            Directions to keep; None keeps all.
        forgetting_factor : float in (0, 1], default=1.0
            Factor by which the (squared) weight of a row shrinks with every later row.
        sample_weight : array-like of shape (n,), default=None
            Weight of each new row; None: 1. Integer weights equal repeated rows.

        Returns
        -------
        subspace : Subspace
            A new summary; this one is not changed.
        """
        check_n_components(n_components)
        check_same_names(self.feature_names, names_of(X), "X")
        X = check_rows(X)
        if X.shape[1] != self.n_features:
            raise ValueError(f"X has {X.shape[1]} features, expected {self.n_features}.")
        check_forgetting_factor(forgetting_factor)
        weight = check_weight(sample_weight, X.shape[0])
        max_rank, d = None, self.n_features
        if n_components is not None:
            max_rank = d if d <= exact_dimension(n_components) else kept_directions(n_components, d)
        n = X.shape[0]
        with threads_for(d * max(n, 16 * (d if self.n_samples else min(n, d))), TINY_CALL):
            result = updated(
                self,
                X,
                weight,
                max_rank=max_rank,
                n_certain=n_components,
                forgetting_factor=float(forgetting_factor),
            )
            return result.truncate(n_components)

    def decay(self, weight: float) -> Subspace:
        """Return the same summary with every row's weight multiplied by ``weight``.

        Count and scatter, also of columns, scale by ``weight``, singular values by its square root,
        mean and components stay.

        Parameters
        ----------
        weight : float
            Factor on the weight of every row, at least 0.

        Returns
        -------
        subspace : Subspace
            A new summary; this one is not changed.
        """
        if type(weight) is float and weight == 1.0:
            return self
        weight = nonnegative_float("weight", weight)
        n_samples = self.n_samples * weight
        if n_samples == 0.0:  # also where the number of rows is too small for a float
            empty = Subspace.empty(self.n_features, centered=self.centered, dtype=self._dtype)
            return empty._replace(
                feature_names=self.feature_names,
                site=self.site,
                sites=self.sites,
                privacy=self.privacy,
            )
        if not math.isfinite(max(self.n_samples, self.scatter) * weight):
            raise ValueError(f"weight={weight!r} is too large for {self!r}.")
        directions: dict[str, Any]
        summed = isinstance(self._leading, ScatterMatrix)
        if self._leading and (not summed or self.scatter * weight > _LEAST_SCATTER):
            directions = {"_leading": self._leading.times(weight)}
        else:
            directions = {"singular_values": self.singular_values * math.sqrt(weight)}
        return self._replace(
            **directions,
            n_samples=n_samples,
            scatter=self.scatter * weight,
            column_scatter=None if self.column_scatter is None else self.column_scatter * weight,
        )

    def truncate(self, n_components: int | None) -> Subspace:
        """Keep at most ``n_components`` directions; the energy of the others stays in scatter.

        Parameters
        ----------
        n_components : int or None
            At least 0; None keeps all.

        Returns
        -------
        subspace : Subspace
            A summary of the same rows with fewer components; this one is not changed.
        """
        check_n_components(n_components)
        return self._part(n_components, copy=True)

    def _part(self, n_components: int | None, copy: bool = False) -> Subspace:
        """What `truncate` returns, in the memory of this summary unless in a copy."""
        if n_components is None or n_components >= len(self.mean):
            return self
        leading: Any = self._leading
        found: Any = None if leading is None else leading.first
        if found is None or n_components > len(found[1]):
            known = self.__dict__.get
            found = leading._made if leading else (known("components"), known("singular_values"))
            if n_components >= len(found[1]):
                return self
        V, s = found[0][:n_components], found[1][:n_components]
        V, s = (V.copy(), s.copy()) if copy else (V, s)
        return self._replace(components=V, singular_values=s)

    # ---------------------------------------------------------------- storage

    @property
    def n_floats(self) -> int:
        """Floats that a message with this summary carries.

        They are d (d + 1) / 2 + 2 d + 2 where all d directions are kept in float64, k d + k + 2 d +
        2 for k others, or d fewer where ``column_scatter`` is not known.
        """
        return self._size()[0]

    @property
    def nbytes(self) -> int:
        """Length of `to_bytes`, without building it."""
        return self._size()[1]

    def _size(self) -> tuple[int, int]:
        """Floats and bytes of a message with this summary."""
        k = self.n_components
        return self._size_with(k, k == len(self.mean) and is_whole(self))

    def _size_with(self, k: int, whole: bool | None = None) -> tuple[int, int]:
        """Floats and bytes of a message like this with k directions, a triangle if ``whole``."""
        d, single = len(self.mean), self._dtype == np.float32
        whole = k == d and not single if whole is None else whole
        n_floats = d * (d + 1) // 2 if whole else k * (d + 1)
        n_floats += (d if self.column_scatter is None else 2 * d) + 2
        n_bytes = LAYOUTS[SUMMARY].frame + 8 * n_floats - 4 * k * d * single + len(self._labels())
        return n_floats, n_bytes

    def _head(self) -> tuple[int, dict[str, Any]]:
        flags = CENTRED * bool(self.centered) + COLUMNS * (self.column_scatter is not None)
        flags += SINGLE * (self._dtype == np.float32)
        whole = self.n_components == self.n_features and is_whole(self)
        flags += TRIANGLE * whole
        k = self.n_features if whole else len(self.components)
        sizes = {"d": self.n_features, "k": k, "sites": len(self.sites)}
        sums = {"n_samples": self.n_samples, "scatter": self.scatter}
        return flags, sizes | sums

    def _labels(self) -> bytes:
        return encode_labels(self.feature_names, self.site, self.sites, self.privacy, self.model)

    def _stored(self) -> dict[str, Any]:
        check_stored_names(self)
        if self.n_components == self.n_features and is_whole(self):
            directions = {"triangle": triangle_of(self)}
        else:
            names = "singular_values", "components"
            directions = {name: getattr(self, name) for name in names}
        return {"mean": self.mean, "column_scatter": self.column_scatter, **directions}

    @classmethod
    def _read(cls, found: dict[str, Any]) -> Subspace:
        centered = found["flags"] & CENTRED
        return cls._trusted(**checked_fields({**found, "centered": centered}))


# What is not that of the summary in numpy, shown elsewhere.
_OWN = {"_home", "_namespace", "_shown_in", "_in_numpy", "update"}


class NamespaceSubspace(Subspace):
    """A summary in another library: what it shows are arrays there, what it computes is numpy's.

    It keeps a summary in numpy, whose directions may not be known yet. Attributes and methods are
    those of this one, and what they return is shown in the other library.
    """

    if TYPE_CHECKING:
        _home: Subspace
        _namespace: ArrayNamespace

    def __init__(self, home: Subspace, namespace: ArrayNamespace):
        vars(self).update(_home=home, _namespace=namespace)

    def _shown_in(self, namespace: ArrayNamespace) -> Subspace:
        return self._home._shown_in(namespace)

    def _in_numpy(self) -> Subspace:
        return self._home

    @wraps(Subspace.update)
    def update(self, *args, **kwargs):
        """Return the summary of the rows seen before and of new ones, where these are."""
        return self._home.update(*args, **kwargs)

    def __getattribute__(self, name: str) -> Any:
        if name in _OWN or name.startswith("__"):
            return object.__getattribute__(self, name)
        known = vars(self)
        if name not in known:
            value, shown = getattr(known["_home"], name), known["_namespace"].shown
            if not callable(value):
                return known.setdefault(name, shown(value))
            return wraps(value)(lambda *args, **kwargs: shown(value(*args, **kwargs)))
        return known[name]

    def __repr__(self):
        return repr(self._home)

    def __getstate__(self):
        return {"_home": self._home, "_namespace": self._namespace}

    def __setstate__(self, state):
        vars(self).update(state)
