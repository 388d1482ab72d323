"""Names that others chose, of sites and columns, in pictures."""

from __future__ import annotations

from typing import Any

# Properties of such texts: dollars begin no formula, of which a wrong one ends the drawing.
AS_IT_IS: Any = {"parse_math": False}


def in_legend(label: Any) -> str:
    """A label as a legend shows it, which leaves out what begins with an underscore."""
    text = str(label)
    return f" {text}" if text.startswith("_") else text
