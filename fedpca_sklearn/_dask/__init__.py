"""Dask: how its arrays are recognised, cut into row chunks, summarised and transformed."""

from .chunks import RowChunks, chunks_in_order, is_dask, is_delayed, refuse_dask, run
from .streams import summarise
from .transform import lazy_transform, leave_as_it_is

__all__ = [
    "RowChunks",
    "chunks_in_order",
    "is_dask",
    "is_delayed",
    "lazy_transform",
    "leave_as_it_is",
    "refuse_dask",
    "run",
    "summarise",
]
