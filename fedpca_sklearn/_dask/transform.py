"""Coordinates of a dask.array as a dask.array."""

from __future__ import annotations

from typing import Any

import numpy as np

from .chunks import _of_chunk, _whole_rows
from .detection import is_dask_frame
from .frames import as_dask_array, transformed_frame

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
    """Coordinates of the rows of a dask.array as one; of a data frame see `transformed_frame`."""
    kept = {*estimator.get_params(deep=False), *_FOR_TRANSFORM, "feature_names_in_"}
    small = estimator._with_only(kept)
    k, of_rows = small._n_features_out, as_dask_array(X).dtype
    dtype = np.result_type(
        np.float32 if of_rows == np.float32 else np.float64, small.components_.dtype
    )
    if is_dask_frame(X):
        return transformed_frame(estimator, small, X, dtype)
    X = _whole_rows(X)
    return X.map_blocks(
        _transform_chunk,
        small,
        dtype=dtype,
        chunks=(X.chunks[0], (k,)),
        meta=np.empty((0, 0), dtype),
    )


def _transform_chunk(rows: Any, estimator: Any, block_id: Any = (0, 0)) -> np.ndarray:
    if not rows.shape[0]:
        k, V = estimator._n_features_out, estimator.components_
        return np.empty((0, k), np.result_type(rows.dtype, V.dtype))
    from sklearn import config_context

    with config_context(transform_output="default"), _of_chunk(block_id[0]):
        return estimator.transform(rows)
