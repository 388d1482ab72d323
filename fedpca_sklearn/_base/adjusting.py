"""Estimators that adjust rows before their PCA: confounders taken out, columns scaled."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
from sklearn.decomposition import PCA
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from .._kernels.sizes import SMALL_DIMENSION, row_slices
from .._validation.checks import is_integer
from ..summary import Subspace
from ..summary._adjusted import Adjusting, Adjustment, adjusted
from ..summary._adjusted_refinement import AdjustedRefinement
from ..summary._refinement import Refinement
from ..summary._scaling import scatter_of_columns, shares_cut
from ..summary._updating import lacks_directions
from .transformer import SubspaceTransformer

# Where an estimator keeps how rows are adjusted and the summary of such rows; what it shows.
_HOW, _MODEL = "_adjustment", "_adjusted_summary"
# What to do where a parameter does not go with adjusted rows.
_INSTEAD = {
    "mechanism": " Scales and effects of the rows would need a budget of their own: divide the "
    "columns before by bounds that are public."
}
# Share of the variance of scaled columns, or of a confounder, whose lack is warned of, and how many
# times that of the columns as they are it must be: less is lost of a cut of scaled columns too.
_LOST, _TIMES = 0.05, 10
_SHOWN = ("scale_", "confounders_", "confounder_effects_")


class AdjustingMixin(SubspaceTransformer):
    """Parameters ``scale`` and ``partial_out``: a map from the summary of rows to that of others.

    ``subspace_`` stays that of the rows, so that it is merged, saved and continued as any other.
    """

    scale: bool = False
    partial_out: Any = None
    n_components: int | float | str | None
    # whether directions may be cut before rows are adjusted
    _may_cut = True

    _adjusting_constraints: ClassVar[dict[str, list]] = {
        "scale": ["boolean"],
        "partial_out": ["array-like", str, Integral, None],
    }

    def _asks(self) -> bool:
        """Whether rows are adjusted."""
        return self.scale or self.partial_out is not None

    def _wanted_of_factor(self) -> int | None:
        """Components of the unadjusted rows that will be read: all if None, none if adjusted."""
        if self._asks():
            return 0
        return int(self.n_components) if is_integer(self.n_components) else None

    @property
    def _reads_at_home(self) -> bool:
        """Whether rows on a device are brought to the host."""
        return self._asks() or getattr(self, "missing", None) is not None

    def _with_confounders(self, n_components: Any) -> Any:
        """Directions to keep of rows, so that as many are left without confounders."""
        if self.partial_out is None or not is_integer(n_components):
            return n_components
        return n_components + np.size(self.partial_out)

    def _check_adjusting(self) -> None:
        """Raise for a parameter that other rows than the adjusted ones would decide on."""
        if not self._asks():
            return
        for name, needed in (("center", True), ("rank_rule", None), ("mechanism", None)):
            value = getattr(self, name, needed)
            if (needed and not value) or (needed is None and value is not None):
                raise ValueError(
                    f"{name} must be {needed} with scale={self.scale} and "
                    f"partial_out={self.partial_out!r}, got {value!r}.{_INSTEAD.get(name, '')}"
                )

    def _adjusting(self, d: int, names: Sequence[str] | None = None) -> Adjusting:
        """What is asked for, with the columns as positions."""
        if names is None:
            names = getattr(self, "feature_names_in_", None)
        all_kept = d <= SMALL_DIMENSION and getattr(self, "oversampling", "auto") == "auto"
        share = self.n_components is not None and not is_integer(self.n_components)
        if self.partial_out is not None and share and self._may_cut and not all_kept:
            raise ValueError(
                f"n_components={self.n_components!r} must be an integer or None with partial_out "
                f"where directions are cut, as of {d} columns: a share of what confounders leave "
                "is known after the cut."
            )
        return Adjusting(bool(self.scale), confounders_of(self.partial_out, d, names))

    def _adjustments(self, d: int) -> dict[str, Any]:
        """The parameters for an estimator of rows whose columns have no names."""
        confounders = self._adjusting(d).confounders
        return {"scale": self.scale, "partial_out": list(confounders) or None}

    def _refinement(self, subspace: Subspace) -> Refinement:
        adjusting = self._adjusting(subspace.n_features, subspace.feature_names)
        return AdjustedRefinement(subspace, adjusting) if adjusting else Refinement(subspace)

    # ---------------------------------------------------------------- fitted attributes

    def _model_of(self, subspace: Subspace, n_components: Any) -> tuple[Subspace, dict[str, Any]]:
        for name in (_HOW, _MODEL, *_SHOWN):
            self.__dict__.pop(name, None)
        adjusting = self._adjusting(subspace.n_features, subspace.feature_names)
        if not adjusting:
            return super()._model_of(subspace, n_components)
        if subspace.privacy is not None:
            raise ValueError(
                f"scale={self.scale} and partial_out={self.partial_out!r} take variances for those "
                "of rows, and this summary has the noise of a privacy mechanism."
            )
        self._check_room(subspace.n_features, adjusting, n_components)
        most = n_components if is_integer(n_components) else None
        model, how, *_ = adjusted(subspace, adjusting, most)
        shown: dict[str, Any] = {_HOW: how, _MODEL: model}
        if adjusting.scale:
            shown["scale_"] = how.scale.copy()
        if adjusting.confounders:
            shown["confounders_"] = how.confounders.copy()
            shown["confounder_effects_"] = how.effects.copy()
        return model, shown

    def _check_columns(self, d: int) -> None:
        """Raise where confounders are no columns, or leave too few of d."""
        if self._asks():
            self._check_room(d, self._adjusting(d), self.n_components)

    def _check_room(self, d: int, adjusting: Adjusting, n_components: Any) -> None:
        """Raise where confounders leave fewer columns than components are asked for."""
        room = d - len(adjusting.confounders)
        if is_integer(n_components) and n_components > room:
            raise ValueError(
                f"n_components={n_components} must be at most {room}, the number of columns that "
                f"partial_out={self.partial_out!r} leaves."
            )

    def _model_summary(self) -> Subspace:
        model: Subspace | None = vars(self).get(_MODEL)
        return super()._model_summary() if model is None else model

    def _whole_model(self) -> Subspace:
        how = self._how()
        if how is None:
            return super()._whole_model()
        adjusting = Adjusting(hasattr(self, "scale_"), tuple(how.confounders.tolist()))
        return adjusted(self.subspace_, adjusting).model

    def _taken_off(self, model: Subspace) -> float:
        """What confounders explain, in the units of the adjusted rows."""
        how, columns = self._how(), self.subspace_.column_scatter
        if how is None or columns is None:
            return 0.0
        return max(float(np.sum(columns[how.others] / how.scale**2)) - model.scatter, 0.0)

    def _how(self) -> Adjustment | None:
        """How the rows of the fit were adjusted; None if they were not."""
        return vars(self).get(_HOW)

    def _warn_of_another_cut(self) -> None:
        """Warn where the rows' directions were cut as if nothing were done with the rows."""
        how, rows = self._how(), vars(self)["subspace_"]
        if how is None or not lacks_directions(rows):
            return
        of_all, of_columns = shares_cut(rows)
        scaled, lost = float(of_columns[how.others].mean()), of_columns[how.confounders]
        if self.scale and scaled > max(_LOST, _TIMES * of_all):
            what = f"scale=True: {scaled:.0%} of the variance of the scaled columns is"
        elif len(lost) and lost.max() > _LOST:
            share = f"{lost.max():.0%} of the variance of a confounder is"
            what = f"partial_out={self.partial_out!r}: {share}"
        else:
            return
        bound = getattr(self, "subspace_error_bound_", np.inf)
        warnings.warn(
            f"{what} missing in a summary that was cut to {rows.n_components} directions, and "
            f"{100 * of_all:.1g}% of that of the columns as they are (subspace_error_bound_="
            f"{bound:.2g}). Sites that keep all directions, or cut them with the same parameter, "
            "lose less; rounds of refine find what is missing.",
            UserWarning,
            stacklevel=3,
        )

    # ---------------------------------------------------------------- rows and coordinates

    def _coordinates(
        self,
        X: Any,
        V: np.ndarray,
        squared_norms: np.ndarray | None = None,
        scale: np.ndarray | None = None,
    ) -> np.ndarray:
        how = self._how()
        if how is None:
            return super()._coordinates(X, V, squared_norms, scale)
        if not len(how.confounders):
            scale = how.scale if scale is None else how.scale * scale
            return super()._coordinates(X, V, squared_norms, scale)
        if scale is not None:
            V = V / scale
        dtype = np.result_type(X.dtype, self.components_.dtype)
        Z = super()._coordinates(X, how.loadings(V)).astype(dtype, copy=False)
        if squared_norms is not None:
            for at in row_slices(*X.shape):
                rows = X[at].toarray() if sp.issparse(X) else X[at]
                Y = how.adjust(rows - self.mean_.astype(np.float64))
                Y = Y if scale is None else Y / scale
                squared_norms[at] = np.einsum("ij,ij->i", Y, Y)
        return Z

    def _from_model(self, Y: np.ndarray) -> np.ndarray:
        how = self._how()
        if how is None:
            return super()._from_model(Y)
        return (how.back(Y) + self.mean_).astype(Y.dtype, copy=False)

    # ---------------------------------------------------------------- the model of the rows

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-likelihood of each row under probabilistic PCA.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n, d)
            Rows with the columns of `fit`.

        Returns
        -------
        log_likelihood : ndarray of shape (n,)
            Tipping and Bishop (1999), eq. 4, by the Woodbury identity: O(n d k), no d x d matrix;
            of the normal distribution with the covariance of `get_covariance`, see there. With
            ``scale=True`` that of the rows in their own units, so that it can be compared with that
            of other parameters: by the sum of ``log(scale_)`` less than that of scaled rows. With
            ``partial_out`` that of the other columns, given the confounders.
        """
        return super().score_samples(X)

    def _log_likelihood(self, X: Any) -> np.ndarray:
        log_likelihood = super()._log_likelihood(X)
        how = self._how()
        return log_likelihood if how is None else log_likelihood - np.log(how.scale).sum()

    def get_covariance(self) -> np.ndarray:
        """Covariance of the probabilistic PCA model.

        With at most 256 features it is that of scikit-learn's PCA: components, and one variance
        for all that is outside them. With more, each column has the residual variance of its own,
        so that the diagonal is exact (up to the clipping of negative residuals, which only methods
        that are not PCA can have), if the summary knows the scatter of the columns.

        Returns
        -------
        covariance : ndarray of shape (d, d)
            In the squared units of the rows. With ``scale=True`` the model is that of the scaled
            rows. With ``partial_out`` of the other columns, given the confounders.
        """
        covariance = super().get_covariance()
        how = self._how()
        if how is not None:
            covariance = (covariance * how.scale * how.scale[:, None]).astype(covariance.dtype)
        return covariance

    def get_precision(self) -> np.ndarray:
        """Inverse of `get_covariance`, by the Woodbury identity.

        Variances are raised to eps times the largest, so that the inverse exists. Where the model
        has a residual variance for each column, one that is zero is raised to ``noise_variance_``,
        the mean over all, so that a column without variation so far may vary in a later row.

        Returns
        -------
        precision : ndarray of shape (d, d)
            In one over the squared units of the rows.
        """
        precision = super().get_precision()
        how = self._how()
        if how is not None:
            with np.errstate(over="ignore"):
                precision = (precision / how.scale / how.scale[:, None]).astype(precision.dtype)
        return precision

    def to_sklearn(self) -> PCA | Pipeline:
        """Return scikit-learn's PCA with the same components, for tools that know that class.

        Returns
        -------
        pca : sklearn.decomposition.PCA or sklearn.pipeline.Pipeline
            Fitted; it maps rows as this estimator does, and shares no array with it. ONNX, PMML and
            others read it. It cannot take more rows. Its likelihood is that of equal noise in all
            columns, which above 256 features ours is not. With ``scale=True`` a pipeline of a
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
        check_is_fitted(self, "components_")
        how, exported = self._how(), super().to_sklearn()
        if how is None:
            return exported
        if len(how.confounders):
            raise ValueError(
                f"partial_out={self.partial_out!r} has no counterpart in scikit-learn: to_sklearn "
                "needs partial_out=None."
            )
        scaler = StandardScaler()
        scaler.mean_, scaler.scale_ = self.mean_.astype(np.float64), how.scale.copy()
        scaler.var_ = scatter_of_columns(self.subspace_) / self.subspace_.n_samples
        scaler.n_samples_seen_ = self.n_samples_
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(self, name):
                setattr(scaler, name, copy.deepcopy(getattr(self, name)))
        vars(exported).pop("feature_names_in_", None)  # the scaler gives an array
        exported.mean_ = np.zeros_like(exported.mean_)
        return make_pipeline(scaler, exported)


def confounders_of(columns: Any, d: int, names: Sequence[str] | None) -> tuple[int, ...]:
    """Positions of the columns that ``partial_out`` names, of d."""
    if columns is None:
        return ()
    found = []
    for column in [columns] if isinstance(columns, (str, Integral)) else list(columns):
        if isinstance(column, str):
            if names is None or column not in list(names):
                known = "have no names" if names is None else f"are {list(names)}"
                raise ValueError(f"partial_out={column!r} must be a column; the columns {known}.")
            found.append(list(names).index(column))
        elif is_integer(column) and -d <= column < d:
            found.append(int(column) % d)
        else:
            raise ValueError(
                f"partial_out must hold names or positions of columns, from 0 to {d - 1}, got "
                f"{column!r}."
            )
    if not found or len(set(found)) < len(found) or len(found) >= d:
        raise ValueError(
            f"partial_out must name at least one column, none twice, and leave one of {d} "
            f"feature(s); got {columns!r}."
        )
    return tuple(found)
