"""Labels of clients that are a column of a data frame."""

from __future__ import annotations

from typing import Any

from .._base.transformer import SubspaceTransformer


class LabelColumnMixin(SubspaceTransformer):
    """Let ``clients`` be the name of a column, which is taken out of the rows.

    A frame may hold the column in `transform` and `score` as well, where it is ignored.
    """

    # as given last; the rows seen so far did not hold it
    _label_column: str | None = None

    def _split_labels(self, X: Any, clients: Any) -> tuple[Any, Any]:
        """Rows without the column of the labels, and the labels."""
        if not isinstance(clients, str):
            return X, clients
        names = column_names(X)
        if names is None:
            raise ValueError(
                f"clients={clients!r} names a column, so X must be a data frame, got "
                f"{type(X).__name__}."
            )
        if clients not in names:
            raise ValueError(f"clients={clients!r} must be a column of X, got columns {names}.")
        self._label_column = clients
        labels = X[clients]
        labels = labels.to_pylist() if hasattr(labels, "to_pylist") else labels  # of pyarrow
        return without_column(X, clients), labels

    def _check_X(self, X: Any) -> Any:
        return super()._check_X(without_column(X, self._label_column))


def column_names(X: Any) -> list | None:
    """Names of the columns of a frame of pandas, polars or pyarrow; None for anything else."""
    if hasattr(X, "iloc"):
        return list(X.columns)
    names = getattr(getattr(X, "schema", None), "names", None)
    return list(names() if callable(names) else names) if names is not None else None


def without_column(X: Any, name: str | None) -> Any:
    """Return a frame without a column; whatever else as it is."""
    names = None if name is None else column_names(X)
    if names is None or name not in names:
        return X
    rest = [other for other in names if other != name]
    return X[rest] if hasattr(X, "iloc") else X.select(rest)
