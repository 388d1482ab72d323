"""Containers of rows, taken as they are, converted or refused, and the names of their columns."""

from __future__ import annotations

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_array, get_tags
from sklearn.utils.validation import validate_data as _validate_data

from .._kernels.device_rows import DeviceRows
from .arrays import NAMESPACE, ArrayNamespace, in_numpy, namespace_of

# The most bytes of UTF-8 in one name.
NAME_BYTES = 500
# Characters of one that an error shows.
_SHOWN = 80
# Characters beyond which no text is as short when it is composed: a letter is at most four of them.
_LONGEST = 4 * NAME_BYTES
# Controls, formats (bidi marks, zero-width joiners), surrogates, private use, line separators.
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
# Characters of other categories that fonts do not draw either: joiner, fillers, selectors, blank.
_NOT_DRAWN = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0}
_NOT_DRAWN |= {0x1107F, 0x16FE4, 0x1D159}  # number joiner, filler, note without a head
_NOT_DRAWN |= {*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0000, 0xE1000)}
# Not assigned, and not to be drawn if they ever are; and those that never are.
_NOT_DRAWN |= {0x2065, *range(0xFFF0, 0xFFF9), *range(0xFDD0, 0xFDF0)}
_NOT_DRAWN |= {plane << 16 | last for plane in range(17) for last in (0xFFFE, 0xFFFF)}


def composed(text: str) -> str:
    """The text in Unicode's composed form (NFC), so that what looks alike compares equal.

    Marks on one letter are sorted in a time that grows with the square of their number, minutes
    for a megabyte: a text that is too long for a name is left as it is.
    """
    return text if len(text) > _LONGEST else unicodedata.normalize("NFC", text)


def check_text(what: str, text: str) -> str:
    """Name in composed form, or a ValueError for one with invisible characters.

    Parameters
    ----------
    what : str
        Named in the error.
    text : str

    Returns
    -------
    text : str
    """
    text = composed(str(text))
    if len(text) > NAME_BYTES:
        raise _too_long(what, text, f"{len(text)} characters")
    if not (text.isascii() and text.isprintable()):
        for character in text:
            if unicodedata.category(character) in _INVISIBLE or ord(character) in _NOT_DRAWN:
                raise ValueError(
                    f"{what} must be valid text without control, bidi or other invisible "
                    f"characters, got {character!a} in {text[:NAME_BYTES]!a}."
                )
    if (size := len(text.encode())) > NAME_BYTES:
        raise _too_long(what, text, str(size))
    return text


def _too_long(what: str, text: str, size: str) -> ValueError:
    return ValueError(f"{what} must have at most {NAME_BYTES} bytes, got {size}: {text[:40]!a}...")


def composed_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names in Unicode's composed form (NFC)."""
    return tuple(map(composed, names))


def names_of(X: Any) -> tuple[str, ...] | None:
    """Column names of a data frame, if all are strings, as scikit-learn takes them."""
    arrow = type(X).__module__.startswith("pyarrow")  # its columns are arrays
    names = getattr(X, "column_names" if arrow else "columns", None)
    names = () if names is None else tuple(names)
    known = names and all(isinstance(name, str) for name in names)
    return composed_names(names) if known else None


def check_names(names: Any, d: int) -> tuple[str, ...] | None:
    """Names of d columns as a tuple of strings."""
    if names is None:
        return None
    names = tuple(names)
    if len(names) != d or not all(isinstance(name, str) for name in names):
        raise ValueError(f"feature_names must be {d} strings, got {len(names)} values.")
    names = tuple(check_text("feature_names", name) for name in names)
    if len(set(names)) < d:
        ((name, _),) = Counter(names).most_common(1)
        raise ValueError(f"feature_names must differ, got {name!r} twice.")
    return names


def names_known(parts: Iterable[Any]) -> Any:
    """Names of the columns of all parts, by the first of them that has names; None without any."""
    return next((part.feature_names for part in parts if part.feature_names is not None), None)


def check_same_names(expected: Any, got: Any, who: str) -> None:
    """Raise a ValueError that tells by name how the columns differ, where both are known."""
    if expected is None or got is None or tuple(expected) == tuple(got):
        return
    ours, theirs = set(expected), set(got)
    missing = [name for name in expected if name not in theirs]
    extra = [name for name in got if name not in ours]
    if missing or extra:
        unlike = {"lacks": missing, "has": extra}
        parts = [f"{word} {listed(names)}" for word, names in unlike.items() if names]
        raise ValueError(f"{who} {' and '.join(parts)}; features must be the same.")
    i = next(i for i, pair in enumerate(zip(expected, got, strict=True)) if pair[0] != pair[1])
    raise ValueError(
        f"{who} has the same features in another order: {got[i]!r} at position {i}, where "
        f"{expected[i]!r} is expected."
    )


def listed(names: Iterable[str]) -> str:
    """The first names, quoted and cut, and how many more there are."""
    names = list(names)
    shown = ", ".join(repr(name[:_SHOWN]) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


# How numpy, pandas, polars and Arrow begin the names of types of dates and durations.
_TIMES = re.compile("date|time|duration", re.IGNORECASE)
# What numpy makes of NaT in a float.
_NOT_A_TIME = float(np.iinfo(np.int64).min)
# The estimators whose rows may be arrays of other libraries, in an error.
TAKE_ARRAYS = (
    "StreamingPCA, FederatedPCA, DistributedPCA, FederatedPowerPCA, FrequentDirections, OjaPCA and "
    "StreamingPowerMethod"
)
# Library and class of what holds rows that it has not read, and how to get at them.
_READ_BY = {
    ("polars", "LazyFrame"): "X.collect() reads them, iter_batches(X) in batches",
    ("duckdb", "DuckDBPyRelation"): "X.df() reads them, iter_batches(X) in batches",
    ("pyarrow", "Dataset"): "X.to_table() reads them, iter_batches(X) in batches",
    ("pyarrow", "Scanner"): "X.to_table() reads them, iter_batches(X) in batches",
    ("pyarrow", "ParquetFile"): "X.read() reads them, iter_batches(X) in batches",
    ("datasets", "Dataset"): "iter_batches(X, columns=...) reads them in batches",
    ("datasets", "IterableDataset"): "iter_batches(X, columns=...) reads them in batches",
    ("torch", "DataLoader"): "iter_batches(X) reads them in batches",
    ("fedpca_sklearn", "NpyRows"): "X[:] reads them, X[a:b] some of them",
    ("h5py", "Group"): "X[name] is one of its arrays",
    ("zarr", "Group"): "X[name] is one of its arrays",
}


_CSR = (sp.csr_array, sp.csr_matrix)


def validate_data(estimator: Any, X: Any, **checks: Any) -> Any:
    """scikit-learn's `validate_data` for any container that `as_rows` takes.

    The entries of X are not to be refused where they are not finite, as NaT is found afterwards. An
    estimator that takes arrays of other libraries remembers where they are. Floats in numpy's
    arrays or CSR are as scikit-learn would return them, which takes longer to find out than a
    small product.
    """
    if _is_plain(X, **checks) and "feature_names_in_" not in vars(estimator):
        if checks.get("reset", True):
            estimator.n_features_in_ = X.shape[1]
        if vars(estimator).get("n_features_in_") == X.shape[1]:
            return X
    namespace = namespace_of(X)
    if namespace is not None:
        check_takes_arrays(estimator, namespace)
        vars(estimator)[NAMESPACE], X = namespace, namespace.rows(X, estimator)
    if isinstance(X, DeviceRows):  # which have two dimensions and are numbers
        return _validate_data(estimator, X, reset=checks.get("reset", True), skip_check_array=True)
    X = as_rows(X)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # sums of finite values may be neither
            rows = _validate_data(estimator, X, **checks)
        if rows.dtype.kind == "O" and names_of(X):  # of polars and Arrow, with a text
            rows = rows.astype(np.float64)
    except ValueError as error:
        if "could not convert" not in str(error):
            raise
        texts = [name for name in names_of(X) or () if _is_text(X[name])]
        named = f"X must hold numbers, got texts in {listed(texts)}: " if texts else ""
        raise ValueError(f"{named}{error}") from error
    return with_missing_times(rows, X)


def _is_text(column: Any) -> bool:
    """Whether a column of a frame has a text that is no number."""
    try:
        np.asarray(column).astype(np.float64)
    except (TypeError, ValueError) as error:  # a TypeError for pandas.NA, which is no text
        return isinstance(error, ValueError)
    return False


def _is_plain(
    X: Any,
    dtype: Any = "numeric",
    ensure_all_finite: Any = True,
    accept_sparse: Any = None,
    reset: bool = True,
    **others: Any,
) -> bool:
    """Whether X is an array of floats, or CSR, in which nothing is to be looked for."""
    known = type(X) is np.ndarray or (accept_sparse == "csr" and type(X) in _CSR)
    floats = known and X.dtype in (np.float64, np.float32)
    asked = floats and (dtype == "numeric" or (isinstance(dtype, list) and X.dtype in dtype))
    some = asked and X.ndim == 2 and all(X.shape)
    return bool(some) and ensure_all_finite is False and not others


def checked_array(X: Any, **checks: Any) -> Any:
    """scikit-learn's `check_array` of X, finite or not, for any container that `as_rows` takes."""
    X = as_rows(X)
    rows = check_array(X, input_name="X", ensure_all_finite=False, **checks)
    return with_missing_times(rows, X)


def check_takes_arrays(estimator: Any, namespace: ArrayNamespace | None) -> None:
    """Raise a TypeError where who takes arrays of numpy only is given others."""
    if namespace is not None and not get_tags(estimator).array_api_support:
        raise TypeError(
            f"{type(estimator).__name__} takes arrays of numpy, got one of {namespace} while "
            "array_api_dispatch=True. X.detach().cpu().numpy() is a numpy array of a tensor, "
            f"X.get() one of a CuPy array. {TAKE_ARRAYS} take arrays of other libraries."
        )


def is_by_name(X: Any) -> bool:
    """Whether X has entries by name. A sparse array of keys is a dict, too."""
    return isinstance(X, Mapping) and not sp.issparse(X)


def as_rows(X: Any) -> Any:
    """X as scikit-learn can read it with the names of its columns, or a TypeError that says how."""
    if isinstance(X, np.ndarray):
        return in_numpy(X)
    if hasattr(X, "__next__"):
        raise TypeError("X must be rows in one array here, got an iterator; go batch by batch.")
    first = X[0] if isinstance(X, (list, tuple)) and X else X
    if isinstance(first, (str, os.PathLike)):
        raise TypeError(
            f"X must be rows, got {first!r}, which may be the path of a file; "
            'np.load(path, mmap_mode="r") reads a .npy file slice by slice, '
            "pandas.read_csv(path, chunksize=10_000) a csv file."
        )
    for library, kind in library_and_class(X):
        if (library, kind) in _READ_BY:
            raise TypeError(
                f"X must be rows, got a {kind} of {library}, which has not read them; "
                f"{_READ_BY[library, kind]}."
            )
        if (library, kind) == ("pyarrow", "RecordBatch"):
            import pyarrow

            return pyarrow.Table.from_batches([X])  # whose names scikit-learn reads
        if library in ("dask", "dask_expr") and kind == "DataFrame":
            return X.compute()  # a frame of pandas, whose names scikit-learn reads
    by_name = is_by_name(first)
    if by_name and not any(map(np.ndim, first.values())):
        what, frame = ("dict", "[X]") if first is X else (f"{type(X).__name__} of dicts", "X")
        raise TypeError(
            f"X must be rows in an array or a frame, got a {what} of numbers; "
            f"pandas.DataFrame({frame}) is a frame of them."
        )
    if by_name or (first is not X and len(getattr(first, "shape", ())) == 2):
        raise TypeError(
            f"X must be rows in one array here, got a {type(X).__name__} of arrays; np.concatenate "
            "makes one of them, of frames pandas.concat, and clients= says whose each row is."
        )
    if not hasattr(X, "__dlpack__"):
        return X
    try:
        return np.asarray(X)
    except Exception as error:  # of torch, JAX, CuPy and alike
        raise TypeError(
            f"X must be rows that numpy can read, got an array of {type(X).__module__} that it "
            f"cannot read: {error} X.detach().cpu().numpy() is a numpy array of a tensor (of "
            "bfloat16 after X.float()), X.get() one of a CuPy array."
        ) from error


def library_and_class(X: Any) -> Iterator[tuple[str, str]]:
    """Names of X's class and those above it, with the libraries they are from; nothing imported."""
    for kind in type(X).__mro__:
        yield kind.__module__.partition(".")[0].lstrip("_"), kind.__name__


def with_missing_times(rows: Any, container: Any) -> Any:
    """Rows that scikit-learn has read from a container: numbers, and NaN where that has NaT."""
    if not _holds_times(container):
        return rows
    rows = rows.astype(np.float64) if rows.dtype.kind in "mM" else rows
    return np.where(rows == _NOT_A_TIME, rows.dtype.type(np.nan), rows)


def _holds_times(container: Any) -> bool:
    """Whether a column is of dates, times of a day or durations."""
    if isinstance(container, np.ndarray):
        return container.dtype.kind in "mM"
    if isinstance(container, (list, tuple)):
        return np.asarray(container[:1]).dtype.kind in "mM"
    if sp.issparse(container):
        return False
    types = getattr(getattr(container, "schema", None), "types", getattr(container, "dtypes", ()))
    return any(_TIMES.match(str(kind)) for kind in types)
