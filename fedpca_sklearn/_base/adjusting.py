"""Estimators that adjust rows before their PCA: confounders taken out, columns scaled."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Any, ClassVar

import numpy as np

from .._kernels.sizes import SMALL_DIMENSION
from .._validation.checks import is_integer
from ..summary import Subspace
from ..summary._adjusted import Adjusting, adjusted
from ..summary._adjusted_refinement import AdjustedRefinement
from ..summary._refinement import Refinement
from ..summary._scaling import shares_cut
from ..summary._updating import lacks_directions
from .fitted import computed
from .transformer import SubspaceTransformer

# What to do where a parameter does not go with adjusted rows.
_INSTEAD = {
    "mechanism": " Scales and effects of the rows would need a budget of their own: divide the "
    "columns before by bounds that are public."
}
# Share of the variance of scaled columns, or of a confounder, whose lack is warned of, and how many
# times that of the columns as they are it must be: less is lost of a cut of scaled columns too.
_LOST, _TIMES = 0.05, 10


class AdjustingMixin(SubspaceTransformer):
    """Parameters ``scale`` and ``partial_out``: a map from the summary of rows to that of others.

    ``subspace_`` stays that of the rows, so that it is merged, saved and continued as any other.
    """

    scale_: Any = computed(when="scale")
    confounders_: Any = computed(when="partial_out")
    confounder_effects_: Any = computed(when="partial_out")

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
        shown: dict[str, Any] = {"_adjustment": how, "_model": model}
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
        model: Subspace | None = self._values().get("_model")
        return super()._model_summary() if model is None else model

    def _whole_model(self) -> Subspace:
        how = self._adjustment()
        if how is None:
            return super()._whole_model()
        adjusting = Adjusting(hasattr(self, "scale_"), tuple(how.confounders.tolist()))
        return adjusted(self.subspace_, adjusting).model

    def _taken_off(self, model: Subspace) -> float:
        """What confounders explain, in the units of the adjusted rows."""
        how, columns = self._adjustment(), self.subspace_.column_scatter
        if how is None or columns is None:
            return 0.0
        return max(float(np.sum(columns[how.others] / how.scale**2)) - model.scatter, 0.0)

    def _warn_of_another_cut(self) -> None:
        """Warn where the rows' directions were cut as if nothing were done with the rows."""
        how, rows = self._adjustment(), self._values()["subspace_"]
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
