r"""Binary form of summaries and moments of pairs: one layout, no pickle.

Little-endian:

    offset  bytes  content
    0       8      magic ``b"FEDPCA\x00"`` and the format version, 5
    8       1      kind: 1 summary, 4 moments of pairs
    9       1      flags: 1 centred, 2 with the scatter of each column, 4 float32, 8 with a triangle
    10             numbers of the kind, as `LAYOUTS` lists them: the length l of the labels, the
                   number of sites in them, numbers of features d and components k, and others
                   arrays of the kind, float64 but for components with flag 4
            l      labels
    -4      4      CRC-32 of everything before

A summary in float64 that keeps all d directions is stored as the upper triangle R of its scatter
matrix R^T R, row by row, with a positive diagonal (flag 8); any other as singular values and
components. In float32 a triangle would save nothing: its numbers need float64.

A reader knows the exact length from the numbers, and a bound on the labels from d and the number of
sites; it allocates nothing before it has compared them with the data and the caller's bound.

What earlier releases wrote is read as well (`_OLD`): summaries of versions 1 to 4, where the kind
is 4 or 8, the bytes of a component, and version 1 of moments, with a magic of its own.
"""

from __future__ import annotations

import math
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dpotrf

from .._kernels import linalg
from .._kernels.linalg import mirror
from .._kernels.threads import threads_for
from .._kernels.tolerances import RANK_EPS, VALID_BASIS_TOL
from .._validation.checks import float_array, nonnegative_float
from .._validation.containers import check_names, check_text
from .._validation.files import written
from ._exact import Factor, ScatterMatrix
from ._provenance import (
    MAX_NAMES,
    check_model,
    check_privacy,
    check_sites,
    decode_labels,
    max_bytes_of_labels,
)

_PIECE = 2**20


def write(file: Any, data: bytes) -> None:
    """Write to a path, as a whole or not at all, or to a binary file object."""
    if hasattr(file, "write"):
        file.write(data)
        return
    file = _path(file)
    new = not os.path.exists(file) or stat.S_ISREG(os.stat(file).st_mode)
    with written(file) if new else nullcontext(file) as path, open(path, "wb") as stream:
        stream.write(data)


def read(file: Any, max_bytes: int) -> Any:
    """Bytes of a path or of a binary file object; one more than allowed if there are more.

    Of a regular file the size is looked at first, all else is read in pieces.
    """
    if not hasattr(file, "read"):
        check_regular(_path(file))
        with open(file, "rb") as stream:
            return read(stream, max_bytes)
    size = _size_left(file)
    if size is not None and size > max_bytes:
        raise ValueError(too_large(size, max_bytes))
    data = bytearray()
    while len(data) <= max_bytes:
        piece = file.read(min(_PIECE, max_bytes + 1 - len(data)))
        if not isinstance(piece, bytes | bytearray | memoryview):
            return piece  # `view_of` names what it is
        if not piece:
            break
        data += piece
    return data


def _path(file: Any) -> Any:
    """What names a file; a number would be taken for a stream of the process, and close it."""
    try:
        return os.fspath(file)
    except TypeError as error:
        kind = type(file).__name__
        raise TypeError(f"file must be a path or a binary file object, got {kind}.") from error


def check_regular(path: Any) -> None:
    """Raise for a path of a directory, a pipe, a device or a socket."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe"}
        kind = kinds.get(stat.S_IFMT(mode), "a device or a socket")
        raise ValueError(f"file must be a regular file, {os.fspath(path)!r} is {kind}.")


def _size_left(file: Any) -> int | None:
    """Bytes from here to the end of a regular file; None where that is not known."""
    try:
        info = os.fstat(file.fileno())
        return info.st_size - file.tell() if stat.S_ISREG(info.st_mode) else None
    except (AttributeError, OSError, TypeError, ValueError):
        return None


def too_large(size: int, max_bytes: int) -> str:
    """The message of data beyond a bound."""
    return (
        f"A summary of {size} bytes exceeds max_bytes={max_bytes}; raise max_bytes if it comes "
        "from a trusted source."
    )


MAGIC, VERSION = b"FEDPCA\x00", 5
PREFIX, CHECKSUM = struct.Struct("<7sBBB"), struct.Struct("<I")
SUMMARY, PAIRS = 1, 4
CENTRED, COLUMNS, SINGLE, TRIANGLE = 1, 2, 4, 8
MAX_BYTES = 2**30
Value = TypeVar("Value", bound="InFiles")
_FLOAT32, _FLOAT64 = np.dtype("<f4"), np.dtype("<f8")


class Part(NamedTuple):
    """An array: its name and shape, the flag it is there with, and the flag it is not there with.

    The shape has names of numbers; "upper" and "lower" are triangles of d x d matrices.
    """

    name: str
    shape: str
    needs: int = 0
    unless: int = 0

    def count(self, numbers: dict[str, Any]) -> int:
        """Number of entries that are stored."""
        if self.shape in ("upper", "lower"):
            return numbers["d"] * (numbers["d"] + 1) // 2
        return math.prod([numbers[name] for name in self.shape.split()])

    def dtype(self, flags: int) -> np.dtype:
        """Of the entries."""
        return _FLOAT32 if flags & SINGLE and self.name == "components" else _FLOAT64

    def packed(self, array: np.ndarray, flags: int) -> bytes:
        """The entries of an array that are stored."""
        if self.shape in ("upper", "lower"):
            array = np.concatenate(list(self._rows(array)))
        return np.ascontiguousarray(array, self.dtype(flags)).tobytes()

    def unpacked(self, stored: np.ndarray, numbers: dict[str, Any]) -> np.ndarray:
        """The array of stored entries."""
        if self.shape not in ("upper", "lower"):
            shape = [numbers[name] for name in self.shape.split()]
            return stored.reshape(shape).astype(stored.dtype.newbyteorder("="), copy=False)
        array, at = np.zeros((numbers["d"],) * 2), 0
        for row in self._rows(array):
            row[:] = stored[at : at + len(row)]
            at += len(row)
        if self.shape == "lower":
            mirror(array)
        return array

    def _rows(self, array: np.ndarray) -> Iterator[np.ndarray]:
        """Parts of the rows in the triangle."""
        for i, row in enumerate(array):
            yield row[i:] if self.shape == "upper" else row[: i + 1]


class Layout:
    """What is stored of a kind.

    Parameters
    ----------
    what : str
        Its name in errors.
    numbers : str
        Names and types of the numbers, as "d:Q".
    parts : tuple of Part
    flags : int
        Those that may be set.
    labels : tuple of str
        What the labels tell.
    """

    def __init__(
        self, what: str, numbers: str, parts: tuple[Part, ...], flags: int, labels: tuple[str, ...]
    ):
        self.what, self.parts, self.flags, self.labels = what, parts, flags, labels
        self.corrupt = "Corrupt " + what.removeprefix("a ").removeprefix("an ")
        self.numbers, codes = zip(*(number.split(":") for number in numbers.split()), strict=True)
        self.header = struct.Struct("<" + "".join(codes))
        # bytes beside labels and the floats of a message, which are also those in the header
        self.frame = PREFIX.size + self.header.size - 8 * codes.count("d") + CHECKSUM.size

    def parts_of(self, flags: int) -> list[Part]:
        """Parts that are there with flags."""
        return [p for p in self.parts if flags & p.needs == p.needs and not flags & p.unless]

    def size(self, flags: int, numbers: dict[str, Any]) -> int:
        """Length of the data."""
        arrays = (p.count(numbers) * p.dtype(flags).itemsize for p in self.parts_of(flags))
        sizes = PREFIX.size, self.header.size, sum(arrays), numbers["labels"], CHECKSUM.size
        return sum(sizes)

    def read_labels(self, data: memoryview, numbers: dict[str, Any]) -> dict[str, Any]:
        """What the labels tell."""
        found = decode_labels(data, min(numbers["d"], MAX_NAMES), numbers["sites"])
        if numbers["sites"] not in (0, len(found.get("sites", ()))):  # 0 also of versions 1 and 2
            raise ValueError(f"{self.corrupt}: its labels are not of as many sites.")
        return {name: found[name] for name in self.labels if name in found}


_OF_SUMMARY = "labels:I sites:H d:Q k:Q n_samples:d scatter:d"
_PARTS = (
    Part("mean", "d"),
    Part("column_scatter", "d", needs=COLUMNS),
    Part("singular_values", "k", unless=TRIANGLE),
    Part("components", "k d", unless=TRIANGLE),
    Part("triangle", "upper", needs=TRIANGLE),
)
_OF_PAIRS = (
    *(Part("origin", "d"), Part("counts", "lower"), Part("products", "lower")),
    Part("means", "d d"),
)
_NAMES = ("feature_names", "site", "sites")
_LABELS = (*_NAMES, "privacy", "model")
_ALL = CENTRED | COLUMNS | SINGLE | TRIANGLE
LAYOUTS = {
    SUMMARY: Layout("a subspace summary", _OF_SUMMARY, _PARTS, _ALL, _LABELS),
    PAIRS: Layout(
        "moments of pairs", "sites:H labels:I d:Q n_samples:d", _OF_PAIRS, SINGLE, _NAMES
    ),
}
# By magic and version: kind, and flags that may be set.
_OLD: dict[tuple[bytes, int], tuple[int, int]] = {
    **{(MAGIC, old): (SUMMARY, CENTRED) for old in (1, 2)},
    **{(MAGIC, old): (SUMMARY, CENTRED | COLUMNS) for old in (3, 4)},
    (b"FEDPAIR", 1): (PAIRS, 0),
}


def encode(
    kind: int, flags: int, numbers: dict[str, Any], arrays: dict[str, np.ndarray], labels: bytes
) -> bytes:
    """Serialise what a layout lists."""
    layout = LAYOUTS[kind]
    numbers = {**numbers, "labels": len(labels)}
    body = b"".join(
        [
            PREFIX.pack(MAGIC, VERSION, kind, flags),
            layout.header.pack(*(numbers[name] for name in layout.numbers)),
            *(part.packed(arrays[part.name], flags) for part in layout.parts_of(flags)),
            labels,
        ]
    )
    return body + CHECKSUM.pack(zlib.crc32(body))


def decode(data: Any, kind: int, max_bytes: int) -> dict[str, Any]:
    """Numbers, arrays, labels and flags of what `encode` wrote; anything else is a ValueError.

    The arrays are as long as they should be; whether they are valid is not looked at.
    """
    view = view_of(data, max_bytes)
    layout, flags = LAYOUTS[kind], _recognised(view, kind)
    numbers = dict(zip(layout.numbers, layout.header.unpack_from(view, PREFIX.size), strict=True))
    _check_sizes(layout, flags, numbers, len(view))
    end = len(view) - CHECKSUM.size
    if zlib.crc32(view[:end]) != CHECKSUM.unpack(view[end:])[0]:
        raise ValueError(f"{layout.corrupt}: its checksum does not match.")
    labels = layout.read_labels(view[end - numbers["labels"] : end], numbers)
    found, at = {**numbers, "flags": flags, **labels}, PREFIX.size + layout.header.size
    for part in layout.parts_of(flags):
        stored = np.frombuffer(view, part.dtype(flags), part.count(numbers), at)
        found[part.name], at = part.unpacked(stored, numbers), at + stored.nbytes
    return found


def _recognised(view: memoryview, kind: int) -> int:
    """Flags of data that are of a kind."""
    layout = LAYOUTS[kind]
    what = layout.what
    if len(view) < PREFIX.size + CHECKSUM.size:
        raise ValueError(f"Not {what}: {len(view)} bytes are too few.")
    magic, version, tag, flags = PREFIX.unpack_from(view)
    if magic == MAGIC and not 0 < version <= VERSION:
        raise ValueError(
            f"Unknown format version {version} of {what}; this release reads versions 1 to "
            f"{VERSION}."
        )
    old = _OLD.get((magic, version))
    found = old[0] if old else tag * (magic == MAGIC)
    if found != kind:
        why = f"it is {LAYOUTS[found].what}" if found in LAYOUTS else "it does not start as one"
        raise ValueError(f"Not {what}: {why}.")
    if flags & ~(old[1] if old else layout.flags) or (old and tag not in (4, 8)):
        raise ValueError(f"{layout.corrupt}: invalid dtype or flags in its header.")
    if len(view) < PREFIX.size + layout.header.size + CHECKSUM.size:
        raise ValueError(f"Not {what}: {len(view)} bytes are too few.")
    return flags | SINGLE * bool(old and tag == 4)


def _check_sizes(layout: Layout, flags: int, numbers: dict[str, Any], size: int) -> None:
    """Raise unless the numbers announce data of this size."""
    k, d, n_labels = numbers.get("k", 0), numbers["d"], numbers["labels"]
    if flags & TRIANGLE and (flags & SINGLE or k != d):
        raise ValueError(f"{layout.corrupt}: invalid dtype or flags in its header.")
    if k > d:
        raise ValueError(f"{layout.corrupt}: {k} components of {d} features.")
    expected = layout.size(flags, numbers)
    if size != expected:
        raise ValueError(f"{layout.corrupt}: its header announces {expected} bytes, got {size}.")
    if n_labels > max_bytes_of_labels(min(d, MAX_NAMES), numbers["sites"]):
        raise ValueError(
            f"{layout.corrupt}: {n_labels} bytes of labels are too many for {d} features and "
            f"{numbers['sites']} sites."
        )


def view_of(data: Any, max_bytes: int) -> memoryview:
    """The bytes of what may be anything, if they are not too many."""
    try:
        view = memoryview(data).cast("B")
    except TypeError as error:
        raise TypeError(f"data must be bytes-like, got {type(data).__name__}.") from error
    if len(view) > max_bytes:
        raise ValueError(too_large(len(view), max_bytes))
    return view


class InFiles:
    """What is written to files, and read from files, by the layout of its kind.

    A subclass has its ``_kind`` in `LAYOUTS`; ``_head``, flags and numbers that are stored;
    ``_labels``, bytes of names and statements; ``_stored``, arrays, or a ValueError if a name may
    not stand in a file; ``_read``, the valid value of what `decode` has found, or a ValueError; and
    ``_replace``, the same with other values of some fields.
    """

    _kind: ClassVar[int]
    n_floats: Any
    _head: Any
    _labels: Any
    _stored: Any
    _read: Any
    _replace: Any

    @property
    def nbytes(self) -> int:
        """Length of `to_bytes`, without building it."""
        return LAYOUTS[self._kind].frame + 8 * self.n_floats + len(self._labels())

    def to_bytes(self) -> bytes:
        """Serialise without pickle.

        Returns
        -------
        data : bytes
            ``nbytes`` of them: arrays and numbers, names and sites if there are any, and a
            checksum.

        Raises
        ------
        ValueError
            If a name may not stand in a file, see `Subspace`: columns of a data frame have any.
        """
        arrays, (flags, numbers) = self._stored(), self._head()
        return encode(self._kind, flags, numbers, arrays, self._labels())

    @classmethod
    def from_bytes(cls: type[Value], data: Any, *, max_bytes: int = MAX_BYTES) -> Value:
        """Read what `to_bytes` wrote; the data need not be trusted.

        Parameters
        ----------
        data : bytes-like
            What `to_bytes` returned.
        max_bytes : int, default=2**30
            Larger data is refused before anything is allocated.

        Returns
        -------
        value : object of this class
            What was written.

        Raises
        ------
        ValueError
            If the data is anything but valid.
        """
        found = decode(data, cls._kind, max_bytes)
        with np.errstate(all="ignore"):  # hostile values are judged by the validation
            return cls._read(found)

    def save(self, file: str | os.PathLike | Any, *, site: str | None = None) -> None:
        """Write `to_bytes` to a path or a binary file object.

        A file at the path is there as a whole or not at all, also if something fails.

        Parameters
        ----------
        file : path or file object
            Where to write; a file at the path is replaced, and its permissions are kept.
        site : str, default=None
            Who the rows belong to, written into the file. None: the ``site`` that is known.
        """
        named = self if site is None else self._replace(site=check_text("site", site))
        write(file, named.to_bytes())

    @classmethod
    def load(
        cls: type[Value], file: str | os.PathLike | Any, *, max_bytes: int = MAX_BYTES
    ) -> Value:
        """Read from a path or a binary file object; see `from_bytes`.

        Parameters
        ----------
        file : path or file object
            Of a regular file; its size is looked at before it is read. A directory, a named pipe
            or a device is a ValueError.
        max_bytes : int, default=2**30
            A larger file is refused before anything is allocated.

        Returns
        -------
        value : object of this class
            What was written.
        """
        return cls.from_bytes(read(file, max_bytes), max_bytes=max_bytes)


def checked_arrays(kind: int, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Finite arrays of the shapes that the layout of a kind lists, or a ValueError that names one.

    Those that are not given are left out. Sizes are those of the first array that has them.
    """
    found: dict[str, np.ndarray] = {}
    sizes: dict[str, int] = {}
    parts = {part.name: part.shape for part in LAYOUTS[kind].parts}
    for name in filter(parts.__contains__, given):
        if given[name] is None:
            continue
        axes = ["d", "d"] if parts[name] in ("upper", "lower") else parts[name].split()
        dtype = None if name == "components" else np.float64
        array = float_array(name, given[name], len(axes), dtype)
        for axis, size in zip(axes, array.shape, strict=True):
            sizes.setdefault(axis, size)
        expected = tuple(map(sizes.__getitem__, axes))
        if array.shape != expected:
            raise ValueError(f"{name} must have shape {expected}, got {array.shape}.")
        if "k" in axes and sizes["k"] > sizes["d"]:
            raise ValueError(f"{name} must have at most d={sizes['d']} rows, got {sizes['k']}.")
        if parts[name] == "lower" and not np.array_equal(array, array.T):
            raise ValueError(f"{name} must be symmetric.")
        found[name] = array
    return found


def checked_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a `Subspace`, of its own or of `decode`, or a ValueError that names one."""
    arrays = checked_arrays(SUMMARY, given)
    mean, columns = arrays["mean"], arrays.get("column_scatter")
    n_samples = nonnegative_float("n_samples", given["n_samples"])
    scatter = nonnegative_float("scatter", given["scatter"])
    if "triangle" in arrays:
        directions, energy = _checked_triangle(arrays["triangle"], columns)
    else:
        directions, energy = _checked_directions(arrays["components"], arrays["singular_values"])
    dtype = np.dtype(np.float64) if "triangle" in arrays else directions["components"].dtype
    if not math.isfinite(energy) or energy > scatter * (1 + VALID_BASIS_TOL[dtype]):
        raise ValueError(
            f"scatter={scatter!r} must be at least the sum of the squared singular values, "
            f"{energy!r}."
        )
    if n_samples == 0 and (energy > 0 or scatter > 0):
        raise ValueError("A summary of n_samples=0 must have no energy.")
    centered = bool(given["centered"])
    if not centered and np.any(mean):
        raise ValueError("mean must be zero in a summary with centered=False.")
    _check_columns(columns, scatter)
    site, sites = check_sites(given.get("site"), given.get("sites"))
    return {
        **directions,
        "mean": mean,
        "n_samples": n_samples,
        "scatter": scatter,
        "centered": centered,
        "feature_names": check_names(given.get("feature_names"), len(mean)),
        "site": site,
        "sites": sites,
        "column_scatter": columns,
        "privacy": check_privacy(given.get("privacy")),
        "model": check_model(given.get("model"), len(mean), centered),
    }


def _checked_directions(V: np.ndarray, s: np.ndarray) -> tuple[dict[str, Any], float]:
    """Orthonormal directions with their singular values, and their energy."""
    error = linalg.orthonormality_error(V)
    if not error <= VALID_BASIS_TOL[V.dtype]:  # NaN where products overflow
        raise ValueError(f"components must be orthonormal rows, they are off by {error:.1e}.")
    if np.any(s < 0) or np.any(np.diff(s) > 0):
        raise ValueError("singular_values must be non-negative and in decreasing order.")
    return {"components": V, "singular_values": s}, float(s @ s)


def _checked_triangle(R: np.ndarray, columns: np.ndarray | None) -> tuple[dict[str, Any], float]:
    """The factor that a triangle is, of which directions are found when read, and its energy."""
    if not (R.diagonal() > 0).all():
        raise ValueError("triangle must have a positive diagonal.")
    squares = np.einsum("ij,ij->j", R, R)
    if not fits_columns(squares, columns):
        raise ValueError("column_scatter must be the sums of squares of the triangle's columns.")
    R.flags.writeable = False
    leading = Factor(R, np.dtype(np.float64))
    return {"components": None, "singular_values": None, "_leading": leading}, float(squares.sum())


def _check_columns(columns: np.ndarray | None, scatter: float) -> None:
    """Raise unless sums of squares of columns, where they are known, add up to that of all."""
    if columns is None:
        return
    if np.any(columns < 0):
        raise ValueError(f"column_scatter must be non-negative, got {columns.min()!r}.")
    total = float(columns.sum())
    # an update rounds either once more: 1e8 updates are 1e8 eps apart, and d tiny numbers
    if not abs(total - scatter) <= 1e8 * _EPS * scatter + len(columns) * np.finfo(np.float64).tiny:
        raise ValueError(
            f"column_scatter must add up to scatter={scatter!r}, its sum is {total!r}."
        )


# Share by which the sums of squares of a column may differ that are added up in two ways.
_SAME_SQUARES = 1e-6
_TINY, _EPS = np.finfo(np.float64).tiny, np.finfo(np.float64).eps
# A Subspace, whose own methods call this module
Summary: TypeAlias = Any


def fits_columns(squares: np.ndarray, columns: np.ndarray | None) -> bool:
    """Whether sums of squares of a factor's columns are those that are known, if any are."""
    return columns is None or bool((np.abs(squares - columns) <= _SAME_SQUARES * columns).all())


def is_whole(summary: Summary) -> bool:
    """Whether a triangle stands for a summary of d directions: in float64, and all are certain.

    Given directions are where none is a rounding error beside the largest.
    """
    d, leading = len(summary.mean), summary._leading
    if (summary.components if leading is None else leading).dtype != np.float64:
        return False
    if isinstance(leading, ScatterMatrix):
        squares = leading.G.diagonal()
    else:
        rows = summary._rows
        with np.errstate(over="ignore", under="ignore"):
            squares = np.einsum("ij,ij->j", rows, rows)
    if leading is None:
        s = summary.singular_values
        if not s[-1] > d * RANK_EPS * _EPS * s[0]:
            return False
    return bool(squares.min() > _TINY) and fits_columns(squares, summary.column_scatter)


def triangle_of(summary: Summary) -> np.ndarray:
    """Upper triangle R, with a positive diagonal, of the scatter matrix R^T R of all directions."""
    leading, d = summary._leading, summary.n_features
    with threads_for(16 * d * d):
        if isinstance(leading, ScatterMatrix):
            L, failed = dpotrf(leading.G, lower=1, clean=1)
            if not failed:
                return L.T
        rows = summary._rows
        below = np.tri(d, k=-1, dtype=bool)
        if len(rows) == d and (rows.diagonal() > 0).all() and not rows[below].any():
            return rows
        (R,) = scipy.linalg.qr(rows, mode="r", check_finite=False)
    R = R[:d]
    return np.where(R.diagonal() < 0, -1.0, 1.0)[:, None] * R
