"""Base class of the estimators whose fitted state is a `Subspace`, and of missing entries."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted

from .._dask import RowChunks, is_dask, lazy_inverse, lazy_transform
from .._kernels import linalg
from .._kernels.device_rows import DeviceRows, rows_of_coordinates
from .._kernels.observed import (
    GaussianModel,
    coordinates_of_rows,
    has_holes,
)
from .._kernels.rows import coordinates_and_norms
from .._kernels.sizes import SMALL_DIMENSION, rank_for_fraction, row_slices
from .._kernels.tolerances import RANK_EPS
from .._kernels.too_large import too_large
from .._validation.arrays import in_numpy
from .._validation.checks import NO_WEIGHT, check_finite, check_weight, is_integer
from .._validation.containers import validate_data
from ..summary import Subspace, n_components_by
from ..summary._adjusted import Adjustment, scatter_of_columns
from ..summary._updating import lacks_directions, unit_of
from .adjusting import adjusts, model_of
from .batches import are_bounded_rows
from .fitted import LEARNT, FittedState, Learnt, computed
from .sources import is_stream

# Fitted attributes that scikit-learn's PCA has too.
_EXPORTED = (
    *("components_", "explained_variance_", "explained_variance_ratio_", "singular_values_"),
    *("mean_", "noise_variance_", "n_samples_", "n_features_in_", "feature_names_in_"),
)


class SubspaceTransformer(
    FittedState, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC
):
    """Base of the estimators whose fitted state is a `Subspace`.

    A subclass writes ``fit(X, y=None)``, and ``partial_fit(X, y=None)`` if more rows may follow. In
    a block ``with self._unchanged_on_error():``, which undoes what was set if an error is raised,
    it validates X, of shape (n, d), computes a summary of the rows, and calls
    ``self._set_fitted(subspace, n_components, n_rows)``. It returns ``self``.

    transform, inverse_transform, the probabilistic-PCA likelihood, covariance and precision follow
    from the summary. Nothing here but `get_covariance` and `get_precision`, whose results are d x
    d, takes more than O(d k) memory beyond input and output.
    """

    whiten = False
    # whether rows may be arrays of other libraries, or lack entries (NaN)
    _takes_arrays = False
    _takes_missing: Any = False

    components_: Any = computed()
    mean_: Any = computed()
    singular_values_: Any = computed()
    explained_variance_: Any = computed()
    explained_variance_ratio_: Any = computed()
    noise_variance_: Any = computed()
    n_components_: Any = computed()
    n_samples_: Any = computed(in_state=True)
    n_samples_seen_: Any = computed(in_state=True)
    subspace_: Any = computed(in_state=True)

    @abstractmethod
    def fit(self, X: Any, y: Any = None) -> Any:
        """Fit from scratch.

        Parameters
        ----------
        X : array-like of shape (n, d)
            The rows.
        y : Ignored
            For pipelines, which hand it on.

        Returns
        -------
        self : object
            The estimator, with PCA's fitted attributes, which `_set_fitted` sets.
        """

    def __setattr__(self, name: str, value: Any) -> None:
        if LEARNT in vars(self) and not (name.startswith("_") or name.endswith("_")):
            self._settle()  # by the parameters of the fit
        super().__setattr__(name, value)

    def _settle(self) -> None:
        """Compute what depends on the parameters, before one of them is set."""
        self._values()

    def _set_fitted(self, subspace: Subspace, n_components: Any, n_rows: int) -> None:
        """Set PCA's fitted attributes from a summary.

        Parameters
        ----------
        subspace : Subspace
            Summary of the rows.
        n_components : int, float, "parallel", "held-out", "mle" or None
            The request: a number, a fraction of variance, a rule that counts components, or None
            for all that the summary still holds. More than ``min(n_rows, d)`` directions do not
            exist. Where the rows span fewer, the basis is completed by directions without variance.
        n_rows : int
            Number of rows, at least 1.
        """
        learnt = vars(self).get(LEARNT)
        values = self._attributes(subspace, n_components, n_rows)
        self.__dict__[LEARNT] = Learnt(learnt and learnt.state, values)

    def _attributes(self, subspace: Subspace, n_components: Any, n_rows: int) -> dict[str, Any]:
        """PCA's fitted attributes of a summary, see `_set_fitted`."""
        larger, total = self._with_usual_weights(subspace, n_rows)
        rows, d, adjusted = subspace, len(subspace.mean), dict[str, Any]()
        if "partial_out" in getattr(self, "_parameter_constraints", ()) and (
            self.scale or self.partial_out is not None
        ):
            subspace, adjusted = model_of(self, subspace, n_components)
            larger = subspace.decay(1 / unit_of(subspace.n_samples))
            d, total = len(subspace.mean), larger.total_variance
        exist = min(n_rows, d)
        if n_components is None:
            rank = max(1, subspace.n_components) if lacks_directions(larger) else exist
        elif isinstance(n_components, str):
            rank = n_components_by(n_components, subspace)
        elif n_components < 1:
            fraction = float(n_components)
            rank = max(1, rank_for_fraction(subspace.singular_values, subspace.scatter, fraction))
        else:
            rank = min(int(n_components), exist)
        shown = subspace._part(rank)
        larger = shown if larger is subspace else larger._part(rank)
        known, dtype = shown.components, shown.components.dtype
        variance, ratio = larger.explained_variance, larger.explained_variance_ratio
        missing = np.zeros(rank - len(known))
        rest = total - float(variance.sum())
        if rank == d or rest <= RANK_EPS * np.finfo(dtype).eps * total:
            rest = 0.0
        names = getattr(self, "feature_names_in_", None)
        return {
            "subspace_": rows if names is None else rows._named(names),
            "n_components_": rank,
            "n_samples_": n_rows,
            "n_samples_seen_": n_rows,
            "mean_": rows.mean.astype(dtype),
            "components_": linalg.complete_basis(known, rank) if len(missing) else known.copy(),
            "singular_values_": np.concatenate([shown.singular_values, missing]).astype(dtype),
            "explained_variance_": np.concatenate([variance, missing]).astype(dtype),
            "explained_variance_ratio_": np.concatenate([ratio, missing]).astype(dtype),
            "noise_variance_": dtype.type(rest / max(d - rank, 1)),
            **adjusted,
        }

    @staticmethod
    def _with_usual_weights(subspace: Subspace, n_rows: int) -> tuple[Subspace, float]:
        """A summary with the same variances, whose weights are not tiny, and their sum.

        Raise unless it holds rows, whose mean and variances have the dtype's range.
        """
        if n_rows < 1:
            raise ValueError(NO_WEIGHT)
        dtype, n = subspace._dtype, subspace.n_samples
        larger = subspace if n >= 1 else subspace.decay(1 / unit_of(n))
        total = larger.total_variance
        for name, size in ("mean", np.abs(subspace.mean).max()), ("variance", total):
            if size > float(np.finfo(dtype).max):
                raise too_large(name, dtype)
        return larger, total

    def _beyond_the_summary(self) -> str | None:
        """Say that more components are shown than a cut summary tells; None where it is not so."""
        wanted, rows = getattr(self, "n_components", None), self._values()["subspace_"]
        n_known = self._model_summary().n_components
        if not is_integer(wanted) or n_known >= self.n_components_ or not lacks_directions(rows):
            return None
        return (
            f"n_components={wanted} must be at most {n_known}: the summary was cut, and keeps "
            f"{rows.n_components} of {rows.n_features} directions."
        )

    def _warn_of_cut(self) -> None:
        """Warn where more components are shown than a cut summary tells."""
        beyond = self._beyond_the_summary()
        if beyond is not None:
            beyond += " The others are arbitrary, and have no variance."
            warnings.warn(beyond, UserWarning, stacklevel=3)

    def _model_summary(self) -> Subspace:
        """The summary whose directions are shown, with these at least."""
        values = self._values()
        return values.get("_model", values["subspace_"])

    # ---------------------------------------------------------------- transformer

    @property
    def _needs_host_rows(self) -> bool:
        """Whether rows on a device are brought to the host."""
        return adjusts(self) or getattr(self, "missing", None) is not None

    @property
    def _n_features_out(self) -> int:
        return self.components_.shape[0]

    def _check_X(self, X: Any) -> Any:
        fitted = vars(self)
        known = LEARNT in fitted and "feature_names_in_" not in fitted
        if known and are_bounded_rows(X, fitted["n_features_in_"]):  # nothing else is left
            return X
        check_is_fitted(self)
        checks = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}
        X = validate_data(self, X, reset=False, ensure_all_finite=False, **checks)
        check_finite(X, allow_nan=self._takes_missing)
        return X

    def _usable(self, X: Any) -> Any:
        """Rows with NaN at each entry that is missing or not to be used."""
        return X

    def _ridge(self) -> np.ndarray | None:
        """Ridge of the coordinates of rows with missing entries; None: least squares."""
        return None

    def _float64_model(self) -> tuple[np.ndarray, np.ndarray]:
        return self.components_.astype(np.float64), self.mean_.astype(np.float64)

    def _project(self, X: Any) -> Any:
        """Coordinates of validated rows."""
        X = self._usable(X)
        if not (self._takes_missing and has_holes(X)):
            return self._coordinates(X, self.components_)
        dtype = np.result_type(X, self.components_)
        return coordinates_of_rows(X, *self._float64_model(), self._ridge(), dtype)

    def _adjustment(self) -> Adjustment | None:
        """How the rows of the fit were adjusted; None if they were not."""
        return self._values().get("_adjustment")

    def _coordinates(
        self,
        X: Any,
        V: np.ndarray,
        squared_norms: np.ndarray | None = None,
        scale: np.ndarray | None = None,
    ) -> Any:
        """Coordinates in V of validated rows, centred, adjusted and divided by ``scale``.

        Optionally also the squared norms of these rows.
        """
        how, mean = self._adjustment(), self.mean_
        if how is None or not len(how.confounders):
            if how is not None:
                scale = how.scale if scale is None else how.scale * scale
            return coordinates_and_norms(X, V, mean, squared_norms, scale)
        if scale is not None:
            V = V / scale
        dtype = np.result_type(X.dtype, self.components_.dtype)
        Z = coordinates_and_norms(X, how.loadings(V), mean).astype(dtype, copy=False)
        if squared_norms is not None:
            for at in row_slices(*X.shape):
                rows = X[at].toarray() if sp.issparse(X) else X[at]
                Y = how.adjust(rows - mean.astype(np.float64))
                Y = Y if scale is None else Y / scale
                squared_norms[at] = np.einsum("ij,ij->i", Y, Y)
        return Z

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Any:
        """Fit to rows, and transform them.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            All rows in one array. Batches would be read by `fit`, and could not be read again: an
            error says so before anything is fitted.
        y : Ignored
            For pipelines, which hand it on.
        **fit_params
            Of `fit`, such as ``sample_weight``.

        Returns
        -------
        X_new : ndarray of shape (n, n_components_)
            What `transform` returns.
        """
        if is_stream(X):
            raise TypeError(
                f"X must be rows in one array to be transformed, got a {type(X).__name__} of "
                "batches; fit them, and transform batch by batch."
            )
        return super().fit_transform(X, y, **fit_params)

    def transform(self, X: Any) -> Any:
        """Project rows on the components.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            For a dask.array, or a data frame of Dask's, the result is a dask.array, and nothing is
            computed yet; with ``set_output(transform="pandas")`` of a data frame one of Dask's.

        Returns
        -------
        X_new : ndarray of shape (n, n_components_)
            Cost O(n d k); sparse rows are not densified. With ``whiten=True`` every coordinate has
            unit variance, or is zero where the training rows had no variance.
        """
        if is_dask(X):
            check_is_fitted(self)
            RowChunks(self, X, reset=False)
            return lazy_transform(self, X)
        Z = self._project(self._check_X(X))
        if self.whiten:
            scale = np.sqrt(self.explained_variance_)
            scale[scale == 0] = np.inf
            Z /= scale.astype(Z.dtype)
        return Z

    def inverse_transform(self, X: Any) -> Any:
        """Map coordinates back to the original space.

        Parameters
        ----------
        X : array-like of shape (n, n_components_)
            Coordinates of rows along the components, as `transform` returns them. Of a dask.array
            the result is one, and nothing is computed yet.

        Returns
        -------
        X_original : ndarray of shape (n, d)
            The rows in the plane of the components that have these coordinates.
        """
        check_is_fitted(self)
        if not (lazy := is_dask(X)) and not isinstance(X, DeviceRows):
            with np.errstate(over="ignore", invalid="ignore"):  # of sums of finite values
                X = check_array(X, dtype=[np.float64, np.float32], input_name="X")
        if X.shape[1:] != self.components_.shape[:1]:
            raise ValueError(
                f"X must have shape (n_samples, {self.components_.shape[0]}), got {X.shape}."
            )
        if lazy:
            return lazy_inverse(self, X)
        V, how = self.components_, self._adjustment()
        if self.whiten:
            V = V * np.sqrt(self.explained_variance_)[:, None]
        if isinstance(X, DeviceRows):
            return rows_of_coordinates(X, V, self.mean_)
        Y = X @ V
        if how is None:
            Y += self.mean_
            return Y
        rows = np.empty((len(Y), len(self.mean_)), Y.dtype)
        for at in row_slices(*rows.shape):  # copies in float64 of all took 10 times as long
            rows[at] = how.back(Y[at]) + self.mean_
        return rows

    # ---------------------------------------------------------------- probabilistic PCA

    def _parts_of_covariance(self) -> tuple[np.ndarray, Any]:
        """Variance along each component beyond the noise, and the noise of each column, or of all.

        Of many columns each has the noise that is left of its own variance, where that is known.
        """
        V, subspace, noise = self.components_, self._model_summary(), float(self.noise_variance_)
        beyond = (self.explained_variance_.astype(np.float64) - noise).clip(0)
        columns = subspace.column_scatter
        if columns is None or not noise > 0 or V.shape[1] <= SMALL_DIMENSION:
            return beyond, noise
        variances = columns / subspace.degrees_of_freedom
        rest = variances - beyond @ np.square(V, dtype=float)
        rest[rest <= RANK_EPS * np.finfo(V.dtype).eps * variances] = 0.0
        return beyond, rest

    def _model(self) -> GaussianModel:
        """The model with variances that can be inverted, found once for a fitted state.

        They are kept above eps times the largest, so that data of lower rank than the model has
        a finite likelihood; noise that is not known above that of the rows' dtype.
        """
        learnt = vars(self)[LEARNT]
        if learnt.model is not None:
            return learnt.model
        V, (beyond, rest) = self.components_, self._parts_of_covariance()
        variance, noise = self.explained_variance_.astype(np.float64), float(self.noise_variance_)
        largest = max(float(variance.max(initial=0.0)), noise)
        floor = max(np.finfo(np.float64).eps * largest, np.finfo(np.float64).tiny)
        noise = max(noise or float(np.finfo(V.dtype).eps) * largest, floor)
        if isinstance(rest, float):
            least = noise if V.shape[0] < V.shape[1] else floor
            learnt.model = GaussianModel(V, np.maximum(variance, least), noise)
        else:
            rest[rest == 0] = noise
            learnt.model = GaussianModel.per_column(V, beyond, np.maximum(rest, floor))
        return learnt.model

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-likelihood of each row under probabilistic PCA, of the entries that are there.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows with the columns of `fit`. Where the estimator takes missing entries (NaN), all
            that are there count, those that a robust one takes for outliers as well.

        Returns
        -------
        log_likelihood : ndarray of shape (n,)
            Tipping and Bishop (1999), eq. 4, by the Woodbury identity: O(n d k), no d x d matrix;
            of the normal distribution with the covariance of `get_covariance`, see there. With
            ``scale=True`` that of the rows in their own units, so that it can be compared with that
            of other parameters: by the sum of ``log(scale_)`` less than that of scaled rows. With
            ``partial_out`` that of the other columns, given the confounders.
            Of a row with missing entries the density of those that are there, without any 0; of
            unlike numbers of entries they are not on one scale. For rows with p patterns of missing
            entries O(p k^2 (d + k)) more, and a sort.
        """
        return self._log_likelihood(self._check_X(X))

    def _log_likelihood(self, X: Any) -> np.ndarray:
        """`score_samples` of rows that are checked."""
        if self._takes_missing and has_holes(X):
            X = X.toarray() if sp.issparse(X) else X
            holes, result = np.isnan(X).any(axis=1), np.empty(len(X))
            result[~holes] = self._log_likelihood(X[~holes])
            rows = X[holes] - self._float64_model()[1]
            result[holes] = self._model().log_density_of_seen(rows)
            return result
        norms, model = np.empty(X.shape[0]), self._model()
        Z = in_numpy(self._coordinates(X, model.basis, norms, model.scale))
        density = model.log_density(Z.astype(np.float64, copy=False), norms)
        how = self._adjustment()
        return density if how is None else density - np.log(how.scale).sum()

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Average log-likelihood of rows under probabilistic PCA.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows with the columns of `fit`.
        y : Ignored
            Not used; there because scikit-learn's pipelines pass it.
        sample_weight : array-like of shape (n,), default=None
            Weight of each row in the average; None: 1.

        Returns
        -------
        log_likelihood : float
            Weighted mean of `score_samples`, in natural logarithms.
        """
        log_likelihood = self.score_samples(X)
        weight = check_weight(sample_weight, len(log_likelihood), positive=True)
        return float(np.average(log_likelihood, weights=weight))

    def get_covariance(self) -> np.ndarray:
        """Covariance of the probabilistic PCA model.

        That of scikit-learn's PCA: what the variances along the components exceed the noise by, and
        the noise, with at most 256 features the same in all columns. With more, each column has the
        noise of its own, so that the diagonal is exact (up to the clipping of negative variances,
        which only methods that are not PCA can have), if the summary knows the scatter of the
        columns.

        Returns
        -------
        covariance : ndarray of shape (d, d)
            In the squared units of the rows. With ``scale=True`` the model is that of the scaled
            rows. With ``partial_out`` of the other columns, given the confounders.
        """
        check_is_fitted(self)
        V, (beyond, rest) = self.components_, self._parts_of_covariance()
        covariance = (V.T * beyond) @ V
        covariance[np.diag_indices_from(covariance)] += rest
        if (how := self._adjustment()) is not None:
            covariance *= how.scale * how.scale[:, None]
        return covariance.astype(V.dtype, copy=False)

    def get_precision(self) -> np.ndarray:
        """Inverse of `get_covariance`, by the Woodbury identity.

        Variances are raised to eps times the largest, so that the inverse exists. Where each
        column has noise of its own, one without any is raised to ``noise_variance_``,
        the mean over all, so that a column without variation so far may vary in a later row.

        Returns
        -------
        precision : ndarray of shape (d, d)
            In one over the squared units of the rows.
        """
        check_is_fitted(self)
        precision, how = self._model().precision(), self._adjustment()
        with np.errstate(over="ignore"):
            if how is not None:
                precision = precision / how.scale / how.scale[:, None]
            return precision.astype(self.components_.dtype, copy=False)

    def to_sklearn(self) -> PCA | Pipeline:
        """Return scikit-learn's PCA with the same components, for tools that know that class.

        Returns
        -------
        pca : sklearn.decomposition.PCA or sklearn.pipeline.Pipeline
            Fitted; it maps rows as this estimator does, and shares no array with it. ONNX, PMML and
            others read it. It cannot take more rows, takes no outliers out of them, and has no
            component of a single site. Its likelihood is that of equal noise in all columns, which
            above 256 features ours is not; it is an error where the covariance is singular, or a
            component's variance is no larger than the noise. With ``scale=True`` a pipeline of a
            StandardScaler and a PCA, whose likelihood is that of the scaled rows.

        Raises
        ------
        ValueError
            With ``partial_out``, which scikit-learn has no transformer for.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn.datasets import load_digits
        >>> from fedpca_sklearn import FederatedPCA
        >>> X, y = load_digits(return_X_y=True)
        >>> pca = FederatedPCA(5).fit(X, clients=y)
        >>> np.allclose(pca.to_sklearn().transform(X), pca.transform(X))
        True
        """
        check_is_fitted(self)
        how, exported = self._adjustment(), PCA(len(self.components_), whiten=self.whiten)
        fitted = {name: getattr(self, name) for name in _EXPORTED if hasattr(self, name)}
        vars(exported).update(copy.deepcopy(fitted), n_components_=len(self.components_))
        if how is None:
            return exported
        if len(how.confounders):
            raise ValueError(
                f"partial_out={vars(self)['partial_out']!r} has no counterpart in scikit-learn: "
                "to_sklearn needs partial_out=None."
            )
        scaler = StandardScaler()
        scaler.mean_, scaler.scale_ = self.mean_.astype(np.float64), how.scale.copy()
        scaler.var_ = scatter_of_columns(self.subspace_) / self.subspace_.n_samples
        scaler.n_samples_seen_, scaler.n_features_in_ = self.n_samples_, self.n_features_in_
        if (names := vars(exported).pop("feature_names_in_", None)) is not None:
            scaler.feature_names_in_ = names  # it gives an array
        exported.mean_ = np.zeros_like(exported.mean_)
        return make_pipeline(scaler, exported)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.allow_nan = self._takes_missing
        tags.array_api_support = self._takes_arrays
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
