"""Data frames of Dask's: rows without names for the work, names without rows for the checks."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils._set_output import _get_output_config

from .detection import is_dask_frame


def as_dask_array(X: Any) -> Any:
    """Rows of a data frame as a dask.array, of which chunks have unknown sizes; others as is."""
    return X.to_dask_array() if is_dask_frame(X) else X


def header_of(X: Any) -> Any:
    """Frame of pandas without rows, for the names of a data frame's columns; others as is."""
    return X._meta if is_dask_frame(X) else X


def leave_as_it_is(estimator: Any) -> None:
    """Have ``set_output`` make nothing of what `transform` of this view of an estimator returns."""
    vars(estimator)["_sklearn_output_config"] = {"transform": "default"}


def transformed_frame(estimator: Any, small: Any, X: Any, dtype: Any) -> Any:
    """Coordinates of the rows of a data frame: one of Dask's if pandas' are asked for.

    ``estimator`` is a view of the one that was called, and no frame is made of the result any more;
    ``small`` is what goes to the workers.
    """
    wanted = _get_output_config("transform", estimator)["dense"]
    if wanted not in ("default", "pandas"):
        raise ValueError(
            f"set_output(transform={wanted!r}) cannot be had of a Dask data frame, whose parts are "
            'frames of pandas; take "pandas" or "default".'
        )
    names = [str(name) for name in estimator.get_feature_names_out()]
    meta = dict.fromkeys(names, dtype)
    frame = X.map_partitions(_transform_part, small, names, dtype, meta=meta)
    leave_as_it_is(estimator)
    return frame if wanted == "pandas" else frame.to_dask_array()


def _transform_part(rows: Any, estimator: Any, names: list[str], dtype: Any) -> Any:
    from sklearn import config_context

    Z = np.empty((0, len(names)))
    if len(rows):
        with config_context(transform_output="default"):
            Z = estimator.transform(rows)
    return type(rows)(Z.astype(dtype, copy=False), index=rows.index, columns=names)
