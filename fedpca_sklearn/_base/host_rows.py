"""Rows in the memory of the host, or on its disk, sent to a device batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator

from .._kernels.sizes import rows_within, slices_of
from .._validation.checks import check_integer
from .batches import validated_batches

__all__ = ["on_device"]

# Entries of a batch: 256 MB of float32.
_ENTRIES = 2**26


class Rows(BaseEstimator):
    """Compares the columns of batches; errors about them name it."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.array_api_support = tags.input_tags.allow_nan = True
        return tags


def on_device(
    X: Any, xp: Any, device: Any = None, *, batch_size: int | None = None
) -> Iterator[Any]:
    """Batches of rows on a device, of rows in the memory of the host, on disk or in a stream.

    For a fit on a device of rows that are not there: ``StreamingPCA(r).fit(on_device(X, torch,
    "cuda"))`` sends the rows, and adds up their products there.

    Parameters
    ----------
    X : array-like of shape (n, d), or what holds batches of rows
        Dense rows as `StreamingPCA` takes them: an array, a memory map, an array on disk, a data
        frame, a tensor of the host, what `iter_batches` reads, or an iterable of such.
    xp : module
        The library, with ``asarray`` of the array API standard: torch, cupy, jax.numpy.
    device : str or device, default=None
        One of that library, such as "cuda"; None: its default.
    batch_size : int, default=None
        Rows of a batch, at most; None: as many as have 2^26 entries, 256 MB of float32. What
        comes in smaller batches is not put together.

    Returns
    -------
    batches : iterator of arrays of shape (m, d)
        On the device, in their order and in their dtype.

    Raises
    ------
    TypeError
        If the rows are sparse, or ``xp`` is no such library.
    ValueError
        If columns, or their names, differ from batch to batch.

    See Also
    --------
    iter_batches : Batches that stay where they are.

    Notes
    -----
    At most two batches are on the device: one that is worked on, and of torch the next one, which
    is copied meanwhile in a stream of its own, where torch has streams for the device. A copy of
    rows in pinned memory (``tensor.pin_memory()``) does not hold up the host; that of others
    does. Names of columns are compared, and then lost, as arrays have none.

    Results are where the batches are, with scikit-learn's ``array_api_dispatch``.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpca_sklearn import StreamingPCA, on_device
    >>> X = np.random.default_rng(0).standard_normal((1000, 5)) * [5, 4, 3, 2, 1]
    >>> batches = on_device(X, np, batch_size=400)  # xp=torch, device="cuda"
    >>> StreamingPCA(2).fit(batches).explained_variance_.round(2)
    array([25.56, 16.12])
    """
    if not hasattr(xp, "asarray") or not hasattr(xp, "empty"):
        raise TypeError(f"xp must be a library of arrays such as torch or cupy, got {xp!r}.")
    if batch_size is not None:
        check_integer("batch_size", batch_size)
    there = {} if device is None else {"device": device}
    parts, like = _parts(X, batch_size), xp.empty((0,), **there)
    if type(like).__module__ == "torch":
        import torch

        if hasattr(getattr(torch, like.device.type, None), "Stream"):
            return _one_ahead(parts, torch, like.device)
    return (xp.asarray(rows, **there) for rows in parts)


def _parts(X: Any, batch_size: int | None) -> Iterator[np.ndarray]:
    """Rows in the memory of the host, so many at a time."""

    def size(d: int) -> int:
        return batch_size or rows_within(d, _ENTRIES)

    for batch in validated_batches(Rows(), X, True, size):
        if sp.issparse(batch):
            raise TypeError("Sparse rows cannot be sent to a device: X.toarray() is dense.")
        for at in slices_of(batch.shape[0], size(batch.shape[1])):
            rows = np.asarray(batch[at])
            yield rows if rows.flags.writeable else rows.copy()  # torch takes no others
            del rows
        del batch  # before the next one is read


def _one_ahead(parts: Iterator[np.ndarray], torch: Any, device: Any) -> Iterator[Any]:
    """Tensors, of which the next one is on its way while one is worked on."""
    streams, ahead = getattr(torch, device.type), None
    copies = streams.Stream(device)
    for rows in parts:
        host = torch.asarray(rows)
        there = torch.empty(host.shape, dtype=host.dtype, device=device)
        copies.wait_stream(streams.current_stream(device))  # which may still read that memory
        with streams.stream(copies):
            there.copy_(host, non_blocking=True)
        if ahead is not None:
            yield ahead
        ahead = there
        streams.synchronize(device)  # before rows are written to the memory of these
    if ahead is not None:
        yield ahead
