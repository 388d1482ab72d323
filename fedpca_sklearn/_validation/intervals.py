"""What parameters may be: finite ranges, instances of classes; parameters as fields."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from numbers import Integral
from typing import Any, TypeVar, dataclass_transform

import numpy as np
from sklearn.utils import _param_validation

# Floats count integers exactly up to here.
_LARGEST_COUNT = 2**53
# Squares and inverses of squares of such numbers are finite, with room for those of rows.
_LEAST, _LARGEST = 1e-100, 1e100


class Interval(_param_validation.Interval):
    """scikit-learn's, closed at numbers whose squares are finite where it would be open.

    An open end at zero is 1e-100, one at infinity 1e100, and 2**53 of integers. An end that is
    closed at infinity takes infinity, and no other number beyond 1e100. Squares are those in the
    precision of the number. True and False are no numbers.
    """

    def __init__(self, kind: type, left: Any, right: Any, *, closed: str):
        self.with_infinity = right is None and closed in ("right", "both")
        self._declared = str(_param_validation.Interval(kind, left, right, closed=closed))
        ends = {"left": closed in ("left", "both"), "right": closed in ("right", "both")}
        largest, its_name = (_LARGEST_COUNT, "2**53") if kind is Integral else (_LARGEST, "1e100")
        if left is None:
            left, ends["left"] = -largest, True
            self._declared += f", from -{its_name}"
        elif left == 0 and not ends["left"]:
            left, ends["left"] = _LEAST, True
            self._declared += ", from 1e-100"
        if right is None:
            right, ends["right"] = largest, True
            self._declared += f", up to {its_name}"
        at = [end for end, taken in ends.items() if taken]
        closed = "both" if len(at) == 2 else at[0] if at else "neither"
        super().__init__(kind, left, right, closed=closed)

    def __contains__(self, value: Any) -> bool:
        if isinstance(value, (bool, np.bool_)):
            return False
        if self.with_infinity and value == float("inf"):
            return True
        if isinstance(value, np.floating):  # where a float32 overflows, arithmetic with it does
            with np.errstate(over="ignore", under="ignore"):
                square = value * value
            if not np.isfinite(square) or (value and not square):
                return False
            value = float(value)
        return super().__contains__(value)

    def __str__(self) -> str:
        return self._declared + (" or infinity" if self.with_infinity else "")


AT_LEAST_ONE = Interval(Integral, 1, None, closed="left")


class InstanceOf(_param_validation.HasMethods):
    """An instance of a class, which errors call by the names that users import.

    Parameters
    ----------
    kind : type
        Also the subclasses.
    *names : str
        In `fedpca_sklearn`; that of the class by default.
    """

    def __init__(self, kind: type, *names: str):
        self.kind, self.names = kind, names or (kind.__name__,)
        self.hidden = False  # as in all that scikit-learn makes

    def is_satisfied_by(self, value: Any) -> bool:
        """Whether it is such an instance."""
        return isinstance(value, self.kind)

    def __str__(self) -> str:
        return "an instance of " + " or ".join(f"'fedpca_sklearn.{name}'" for name in self.names)


Class = TypeVar("Class")


def allowed(*kinds: Any, default: Any = MISSING, kw_only: Any = MISSING) -> Any:
    """A parameter and what it may be, as scikit-learn's validation of parameters has it."""
    return field(default=default, kw_only=kw_only, metadata={"allowed": list(kinds)})


@dataclass_transform(eq_default=False, field_specifiers=(allowed, field))
def with_parameters(cls: type[Class]) -> type[Class]:
    """Give a class an ``__init__`` that only keeps its parameters, and their constraints.

    A parameter without `allowed` may be what a base says of it, or anything.
    """
    before = getattr(cls, "_parameter_constraints", {})
    kept = [of for of in fields(dataclass(eq=False, repr=False)(cls)) if of.init]  # type: ignore[arg-type]
    kinds = {of.name: before.get(of.name, "no_validation") for of in kept}
    kinds |= {of.name: of.metadata["allowed"] for of in kept if of.metadata}
    cls._parameter_constraints = kinds  # type: ignore[attr-defined]
    return cls
