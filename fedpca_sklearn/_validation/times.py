"""Rows of dates and durations, of which those that are not there are missing entries."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import scipy.sparse as sp

# How numpy, pandas, polars and Arrow begin the names of such types.
_NAMES = re.compile("date|time|duration", re.IGNORECASE)
# What numpy makes of NaT in a float.
_NOT_A_TIME = float(np.iinfo(np.int64).min)


def with_missing_times(rows: Any, held: Any) -> Any:
    """Rows that scikit-learn has read from a container: numbers, and NaN where that has NaT."""
    if not _holds_times(held):
        return rows
    rows = rows.astype(np.float64) if rows.dtype.kind in "mM" else rows
    return np.where(rows == _NOT_A_TIME, rows.dtype.type(np.nan), rows)


def _holds_times(held: Any) -> bool:
    """Whether a column is of dates, times of a day or durations."""
    if isinstance(held, np.ndarray):
        return held.dtype.kind in "mM"
    if isinstance(held, (list, tuple)):
        return np.asarray(held[:1]).dtype.kind in "mM"
    if sp.issparse(held):
        return False
    types = getattr(getattr(held, "schema", None), "types", getattr(held, "dtypes", ()))
    return any(_NAMES.match(str(kind)) for kind in types)
