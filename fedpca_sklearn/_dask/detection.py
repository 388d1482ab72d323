"""Recognition of Dask input without an import of Dask."""

from __future__ import annotations

from typing import Any


def is_dask(X: Any) -> bool:
    """Whether X is a dask.array or a data frame of Dask's."""
    return type(X).__module__.startswith("dask.array") or is_dask_frame(X)


def is_dask_frame(X: Any) -> bool:
    """Whether X is a data frame, or a column, of Dask's."""
    return type(X).__module__.startswith(("dask.dataframe", "dask_expr"))


def is_delayed(value: Any) -> bool:
    """Whether a value is a task of Dask's."""
    return type(value).__module__.startswith("dask.delayed")


def refuse_dask(estimator: Any, X: Any) -> None:
    """Raise a TypeError for rows of Dask's, which the estimator would load as a whole."""
    if is_dask(X):
        kind = "Dask data frame" if is_dask_frame(X) else "dask.array"
        raise TypeError(
            f"X is a {kind}, which {type(estimator).__name__} does not take; StreamingPCA, "
            "FederatedPCA, DistributedPCA and TruncatedDistributedPCA do. X.compute() loads its "
            "rows, if they fit in memory."
        )
