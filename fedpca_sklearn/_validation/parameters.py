"""Parameters as fields of a class: name, default and what is allowed, each stated once."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform

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
