"""Parameters ``scale`` and ``partial_out``: a map from the summary of rows to that of others.

Confounders are taken out of the rows and columns are scaled before their PCA. ``subspace_`` stays
the summary of the rows, so that it is merged, saved and continued as any other. An estimator that
has the two parameters takes their constraints, `ADJUSTING`, and `adjusted_attributes`; all else
here are functions of it.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from .._kernels.certificates import Certificate, rounding_of
from .._kernels.sizes import SMALL_DIMENSION
from .._validation.checks import is_integer
from .._validation.containers import composed, composed_names
from ..summary import Subspace
from ..summary._adjusted import Adjusting, adjusted, shares_cut
from ..summary._refinement import AdjustedRefinement, Refinement, certificate_of_summary
from ..summary._updating import lacks_directions
from .fitted import computed, shown_like

# What to do where a parameter does not go with adjusted rows.
_INSTEAD = {
    "mechanism": " Scales need a budget of their own: FederatedScaler(mechanism=ScalerNoise(...)) "
    "before, or bounds that are public."
}
# Share of the variance of scaled columns, or of a confounder, whose lack is warned of, and how many
# times that of the columns as they are it must be: less is lost of a cut of scaled columns too.
_LOST, _TIMES = 0.05, 10


# Constraints of the two parameters.
ADJUSTING: dict[str, list] = {
    "scale": ["boolean"],
    "partial_out": ["array-like", str, Integral, None],
}


def adjusted_attributes() -> tuple[Any, Any, Any]:
    """Descriptors of ``scale_``, ``confounders_`` and ``confounder_effects_``."""
    return computed(when="scale"), computed(when="partial_out"), computed(when="partial_out")


def adjusts(estimator: Any) -> bool:
    """Whether an estimator, of whichever library, is asked to adjust rows."""
    known = "partial_out" in getattr(estimator, "_parameter_constraints", ())
    return known and (bool(estimator.scale) or estimator.partial_out is not None)


def n_certain_of_factor(estimator: Any) -> int | None:
    """Components of the unadjusted rows that will be read: all if None, none if adjusted."""
    if adjusts(estimator):
        return 0
    return int(estimator.n_components) if is_integer(estimator.n_components) else None


def with_confounders(estimator: Any, n_components: Any) -> Any:
    """Directions to keep of rows, so that as many are left without confounders."""
    if estimator.partial_out is None or not is_integer(n_components):
        return n_components
    return n_components + np.size(estimator.partial_out)


def check_adjusting(estimator: Any) -> None:
    """Raise for a parameter that other rows than the adjusted ones would decide on."""
    if not estimator.scale and estimator.partial_out is None:
        return
    for name, needed in (("center", True), ("rank_rule", None), ("mechanism", None)):
        if (value := getattr(estimator, name, needed)) != needed:
            raise ValueError(
                f"{name} must be {needed} with scale={estimator.scale} and "
                f"partial_out={estimator.partial_out!r}, got {value!r}.{_INSTEAD.get(name, '')}"
            )


def adjusting_of(estimator: Any, d: int, names: Sequence[str] | None = None) -> Adjusting:
    """What is asked for, with the columns as positions."""
    if names is None:
        names = getattr(estimator, "feature_names_in_", None)
    all_kept = d <= SMALL_DIMENSION and getattr(estimator, "oversampling", "auto") == "auto"
    all_kept = all_kept or not getattr(estimator, "_may_cut", True)
    asked = None if estimator.partial_out is None or all_kept else estimator.n_components
    if asked is not None and not is_integer(asked):
        raise ValueError(
            f"n_components={asked!r} must be an integer or None with partial_out "
            f"where directions are cut, as of {d} columns: a share of what confounders leave "
            "is known after the cut."
        )
    confounders = confounders_of(estimator.partial_out, d, names)
    if not estimator.scale:
        return Adjusting(False, confounders)
    takes_all = getattr(getattr(estimator, "merge", None), "_takes_all", True)
    return Adjusting(True, confounders, not takes_all)


def refinement_of(estimator: Any, subspace: Subspace) -> Refinement:
    """Rounds of products that bring a summary closer to that of all rows."""
    adjusting = adjusting_of(estimator, subspace.n_features, subspace.feature_names)
    return AdjustedRefinement(subspace, adjusting) if adjusting else Refinement(subspace)


def model_of(
    estimator: Any, subspace: Subspace, n_components: Any
) -> tuple[Subspace, dict[str, Any]]:
    """The summary of adjusted rows, whose directions are shown, and attributes that say how."""
    d = len(subspace.mean)
    adjusting = adjusting_of(estimator, d, subspace.feature_names)
    if subspace.privacy is not None:
        raise ValueError(
            f"scale={estimator.scale} and partial_out={estimator.partial_out!r} take variances for "
            "those of rows, and this summary has the noise of a privacy mechanism."
        )
    _check_room(estimator, d, adjusting, n_components)
    most = n_components if is_integer(n_components) else None
    model, how, *_ = adjusted(subspace, adjusting, most)
    shown: dict[str, Any] = {"_adjusting": adjusting, "_adjustment": how, "_model": model}
    if adjusting.scale:
        shown["scale_"] = how.scale.copy()
    if adjusting.confounders:
        shown["confounders_"] = how.confounders.copy()
        shown["confounder_effects_"] = how.effects.copy()
    return model, shown


def check_columns(estimator: Any, d: int) -> None:
    """Raise where confounders are no columns, or leave too few of d."""
    if adjusts(estimator):
        _check_room(estimator, d, adjusting_of(estimator, d), estimator.n_components)


def _check_room(estimator: Any, d: int, adjusting: Adjusting, n_components: Any) -> None:
    """Raise where confounders leave fewer columns than components are asked for."""
    room = d - len(adjusting.confounders)
    if is_integer(n_components) and n_components > room:
        raise ValueError(
            f"n_components={n_components} must be at most {room}, the number of columns that "
            f"partial_out={estimator.partial_out!r} leaves."
        )


def untruncated_model(fitted: Any) -> Subspace:
    """The summary whose directions are shown, with all that are known."""
    adjusting = fitted._values().get("_adjusting")
    return fitted.subspace_ if adjusting is None else adjusted(fitted.subspace_, adjusting).model


def taken_off(fitted: Any, model: Subspace) -> float:
    """What confounders explain, in the units of the adjusted rows; its rounding is in the model."""
    how, columns = fitted._adjustment(), fitted.subspace_.column_scatter
    if how is None or columns is None:
        return 0.0
    return max(float(np.sum(columns[how.others] / how.scale**2)) - model.scatter, 0.0)


def warn_of_another_cut(fitted: Any) -> None:
    """Warn where the rows' directions were cut as if nothing were done with the rows."""
    how, rows = fitted._adjustment(), fitted._values()["subspace_"]
    if how is None or not lacks_directions(rows):
        return
    of_all, of_columns = shares_cut(rows)
    scaled, lost = float(of_columns[how.others].mean()), of_columns[how.confounders]
    if fitted.scale and scaled > max(_LOST, _TIMES * of_all):
        what = f"scale=True: {scaled:.0%} of the variance of the scaled columns is"
    elif len(lost) and lost.max() > _LOST:
        share = f"{lost.max():.0%} of the variance of a confounder is"
        what = f"partial_out={fitted.partial_out!r}: {share}"
    else:
        return
    bound = getattr(fitted, "subspace_error_bound_", np.inf)
    warnings.warn(
        f"{what} missing in a summary that was cut to {rows.n_components} directions, and "
        f"{100 * of_all:.1g}% of that of the columns as they are (subspace_error_bound_="
        f"{bound:.2g}). Sites that keep all directions, or cut them with the same parameter, "
        "lose less; rounds of refine find what is missing.",
        UserWarning,
        stacklevel=3,
    )


def warn_of_models(fitted: Any, summaries: Sequence[Any]) -> None:
    """Warn where summaries are of models that do with the rows what a new one does not."""
    models = [summary.model for summary in summaries if summary.model is not None]
    known = set(getattr(fitted, "confounders_", ()))
    lost = ["scale"] * (not fitted.scale and any(model.scale for model in models))
    lost += ["partial_out"] * any(set(model.partial_out) - known for model in models)
    if lost:
        warnings.warn(
            f"a summary is of a model with {' and '.join(lost)}, which the new one does not take "
            "over: state what it shall have.",
            UserWarning,
            stacklevel=3,
        )


def confounders_of(columns: Any, d: int, names: Sequence[str] | None) -> tuple[int, ...]:
    """Positions of the columns that ``partial_out`` names, of d."""
    if columns is None:
        return ()
    found, known = [], None if names is None else list(composed_names(names))
    for column in [columns] if isinstance(columns, (str, Integral)) else list(columns):
        if isinstance(column, str):
            if known is None or composed(column) not in known:
                there = "have no names" if known is None else f"are {known}"
                raise ValueError(f"partial_out={column!r} must be a column; the columns {there}.")
            found.append(known.index(composed(column)))
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


def name_columns(fitted: Any, names: Sequence[str]) -> None:
    """Set the names of the columns in a fitted summary, of which the same stays certain."""
    fitted._set_values({"subspace_": fitted.subspace_._named(names)})


def certify(fitted: Any, certificate: Certificate) -> None:
    """Keep the certificate of a refinement among the attributes that it is of."""
    fitted._set_values({**fitted._values(), "_certificate": certificate})


def _with_certificate(estimator: Any) -> tuple[Subspace, Certificate]:
    """The summary that is fitted, and what is certain about its first directions.

    The estimator says by ``_never_exceeds()`` whether the summary never exceeds the scatter matrix
    of the rows.
    """
    fitted = estimator._in_numpy()
    check_is_fitted(fitted)
    values = fitted._values()
    subspace: Subspace = values["subspace_"]
    if "_certificate" in values:
        return subspace, values["_certificate"]
    if not fitted._never_exceeds():
        nothing = np.tile([0.0, np.inf], (fitted.n_components_, 1))
        return subspace, Certificate(np.inf, nothing)
    model = untruncated_model(fitted)
    off = rounding_of(taken_off(fitted, model), model.n_samples, model.components.dtype)
    return subspace, certificate_of_summary(model, fitted.n_components_, off)


def subspace_error_bound(estimator: Any) -> float:
    """Bound on the sine of the largest angle to the components of all rows at once."""
    return float(_with_certificate(estimator)[1].sine)


def explained_variance_interval(estimator: Any) -> np.ndarray:
    """Two variances for each component, between which that of all rows at once is."""
    subspace, certificate = _with_certificate(estimator)
    return shown_like(estimator, certificate.eigenvalues / subspace.degrees_of_freedom)
