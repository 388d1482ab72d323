"""Recognition of Dask input without an import of Dask."""

from __future__ import annotations

from typing import Any


def is_dask(X: Any) -> bool:
    """Whether X is a dask.array; a TypeError for a data frame of Dask's."""
    module = type(X).__module__
    if module.startswith(("dask.dataframe", "dask_expr")):
        raise TypeError("X is a Dask data frame; give X.to_dask_array(lengths=True).")
    return module.startswith("dask.array")


def is_delayed(value: Any) -> bool:
    """Whether a value is a task of Dask's."""
    return type(value).__module__.startswith("dask.delayed")


def refuse_dask(estimator: Any, X: Any) -> None:
    """Raise a TypeError for a dask.array, which the estimator would load as a whole."""
    if is_dask(X):
        raise TypeError(
            f"X is a dask.array, which {type(estimator).__name__} does not take; StreamingPCA, "
            "FederatedPCA, DistributedPCA and TruncatedDistributedPCA do. X.compute() makes it a "
            "numpy array, if it fits in memory."
        )
