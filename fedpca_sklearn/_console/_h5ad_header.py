"""What an .h5ad file announces, read in a process of its own, of which this is the program.

HDF5 never returns from some damaged heaps of texts, and nothing in the same process could end it. A
few bytes can also stand for many long names, for which this process gets 4 GiB of address space
where that can be limited. It prints JSON, with an error where the file is not to be read.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np

# Bytes of a name, padded, that are read, and names that are read at once.
_NAME, _AT_ONCE = 2000, 1024
_MEMORY = 2**32


def header(path: str, most: int) -> dict[str, Any]:
    """Shape of X, bytes that its rows and chunks take, and the names of up to so many columns."""
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        return {"error": f"it is no HDF5 file: {error}"}
    try:
        with file:
            X = _own(file, "X")
            sparse = not isinstance(X, h5py.Dataset)
            shape, parts, n_bytes = _sparse(X) if sparse else (X.shape, [X], 8 * math.prod(X.shape))
            if len(shape) != 2 or any(part.dtype.kind not in "biuf" for part in parts):
                raise ValueError(f"X must be a 2-D array of numbers, got shape {shape}.")
            chunks = [_chunk(part) for part in parts]
            names = _names(file, shape[1]) if shape[1] <= most else None
            return {"sparse": sparse, "shape": shape, "bytes": [n_bytes, *chunks], "names": names}
    except UnicodeDecodeError:
        return {"error": "it is no text in UTF-8."}
    except ValueError as error:
        return {"error": str(error)}
    except Exception as error:  # whatever h5py raises where a file is another
        return {"error": f"it is no .h5ad file: {error or type(error).__name__}"}


def _own(group: Any, name: str) -> Any:
    """A member of a group that is in this file, and not a link to another one."""
    link = group.get(name, getlink=True)
    if not isinstance(link, h5py.HardLink):
        raise ValueError(f"it must hold {name!r} itself, got {type(link).__name__}.")
    found = group[name]
    if isinstance(found, h5py.Dataset) and (found.is_virtual or found.external):
        raise ValueError(f"it must hold {name!r} itself, got a reference to another file.")
    return found


def _attribute(item: Any, *names: str) -> Any:
    """The first of these attributes that is there; one value, or two."""
    for name in names:
        if name in item.attrs:
            if math.prod(item.attrs.get_id(name).shape or ()) > 2:
                raise ValueError(f"the attribute {name!r} must hold one value, or two.")
            return item.attrs[name]
    return None


def _sparse(X: Any) -> tuple[tuple[int, ...], list[Any], int]:
    """Shape, parts and bytes of a sparse X: of its entries, and four for each not stored."""
    kind = _attribute(X, "encoding-type", "h5sparse_format")
    if not isinstance(kind, str) or kind not in ("csr_matrix", "csr"):
        raise ValueError(f"X must be dense or stored by rows (CSR), got {str(kind)[:40]!r}.")
    stated = np.asarray(_attribute(X, "shape", "h5sparse_shape"))
    if stated.dtype.kind not in "iu" or stated.shape != (2,) or np.any(stated < 0):
        got = str(stated.tolist())[:40]
        raise ValueError(f"the shape of X must be two integers of at least 0, got {got}.")
    n, d = map(int, stated)
    data, indices, indptr = parts = [_own(X, name) for name in ("data", "indices", "indptr")]
    if not all(len(part.shape) == 1 for part in parts) or len(data) != len(indices):
        raise ValueError(
            "X must have an index for each of its entries, got data of shape "
            f"{data.shape} and indices of shape {indices.shape}."
        )
    if "f" in indices.dtype.kind + indptr.dtype.kind:
        raise ValueError("indices and indptr of X must be integers.")
    if len(indptr) != n + 1:
        raise ValueError(f"X announces {n:,} rows, but indptr is of {len(indptr) - 1:,}.")
    return (n, d), parts, 16 * len(data) + 8 * n + 4 * n * d


def _chunk(part: Any) -> int:
    """Bytes of a chunk, of which HDF5 has a whole one in memory."""
    stored = part.id.get_create_plist()
    filters = [stored.get_filter(i)[0] for i in range(stored.get_nfilters())]
    if len(set(filters)) < len(filters):
        raise ValueError(f"{part.name} is packed twice by the same filter.")
    return math.prod(part.chunks) * part.dtype.itemsize if part.chunks else 0


def _names(file: Any, d: int) -> list[str] | None:
    if "var" not in file:
        return None
    var = _own(file, "var")
    if isinstance(var, h5py.Dataset):  # of AnnData before 0.7
        found = var.fields("index") if "index" in (var.dtype.names or ()) else None
        kind = None if found is None else var.dtype["index"]
    else:
        index = str(_attribute(var, "_index") or "_index")
        found = _own(var, index) if index in var else None
        kind = getattr(found, "dtype", None)
    if found is None:
        return None
    if len(found) != d:
        raise ValueError(f"X has {d} columns, but {len(found)} have names.")
    if kind is None:
        raise ValueError(f"names of columns must be texts, got {type(found).__name__}.")
    texts = kind.kind in "iuSU" or h5py.check_string_dtype(kind)
    if not texts or kind.itemsize > _NAME:
        raise ValueError(f"names of columns must be texts, got {str(kind)[:40]}.")
    return list(_texts(found))


def _texts(found: Any) -> Iterator[str]:
    """The names, some at a time."""
    for start in range(0, len(found), _AT_ONCE):
        for name in found[start : start + _AT_ONCE]:
            text = name.decode() if isinstance(name, bytes) else str(name)
            if len(text) > _NAME:
                raise ValueError(f"a name of a column has {len(text):,} characters.")
            yield text


def _limit_memory() -> None:
    try:
        import resource

        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        soft = _MEMORY if hard == resource.RLIM_INFINITY else min(hard, _MEMORY)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    except (ImportError, OSError, ValueError):
        pass


if __name__ == "__main__":
    _limit_memory()
    print(json.dumps(header(sys.argv[1], int(sys.argv[2]))))
