"""Coordinates of a dask.array as a dask.array, and of a data frame as its like."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import config_context
from sklearn.utils._set_output import _get_output_config

from .chunks import _of_chunk, _whole_rows, as_dask_array, is_dask_frame

# Fitted attributes that transform needs, and nothing else of a model goes to the workers.
_FOR_TRANSFORM = (
    "components_",
    "mean_",
    "explained_variance_",
    "noise_variance_",
    "_entry_noise",
    "support_threshold_",
    "n_features_in_",
    "n_local_components_",
    "_adjustment",
)


def lazy_transform(estimator: Any, X: Any) -> Any:
    """Coordinates of the rows of a dask.array as one; of a data frame see `_transformed_frame`."""
    kept = {*estimator.get_params(deep=False), *_FOR_TRANSFORM, "feature_names_in_"}
    small = estimator._with_only(kept)
    k, of_rows = small._n_features_out, as_dask_array(X).dtype
    dtype = np.result_type(
        np.float32 if of_rows == np.float32 else np.float64, small.components_.dtype
    )
    if is_dask_frame(X):
        return _transformed_frame(estimator, small, X, dtype)
    X = _whole_rows(X)
    chunks, meta = (X.chunks[0], (k,)), np.empty((0, 0), dtype)
    return X.map_blocks(_of_block, small, dtype, dtype=dtype, chunks=chunks, meta=meta)


def _of_block(rows: Any, estimator: Any, dtype: Any, block_id: Any = (0, 0)) -> np.ndarray:
    with _of_chunk(block_id[0]):
        return _coordinates(rows, estimator, dtype)


def _coordinates(rows: Any, estimator: Any, dtype: Any) -> np.ndarray:
    """Coordinates of the rows of a chunk, of which there may be none."""
    if not rows.shape[0]:
        return np.empty((0, estimator._n_features_out), dtype)
    with config_context(transform_output="default"):
        return estimator.transform(rows).astype(dtype, copy=False)


def leave_as_it_is(estimator: Any) -> None:
    """Have ``set_output`` make nothing of what `transform` of this view of an estimator returns."""
    vars(estimator)["_sklearn_output_config"] = {"transform": "default"}


def _transformed_frame(estimator: Any, small: Any, X: Any, dtype: Any) -> Any:
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
    frame = X.map_partitions(_of_part, small, names, dtype, meta=dict.fromkeys(names, dtype))
    leave_as_it_is(estimator)
    return frame if wanted == "pandas" else frame.to_dask_array()


def _of_part(rows: Any, estimator: Any, names: list[str], dtype: Any) -> Any:
    Z = _coordinates(rows, estimator, dtype)
    return type(rows)(Z, index=rows.index, columns=names)
