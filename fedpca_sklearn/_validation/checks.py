"""Validation shared by the summary, the merge and the estimators."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, TypeGuard

import numpy as np
import scipy.sparse as sp
from sklearn.utils import assert_all_finite

from .._kernels.device_rows import DeviceRows
from .._kernels.too_large import TooLargeError
from .arrays import in_numpy, namespace_of
from .containers import checked_array

# Components of the estimators that follow a few directions, where nothing is said.
_DEFAULT_RANK = 10


def is_integer(value: Any) -> TypeGuard[int]:
    """Whether something is an integer, of Python or of numpy; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def plain_integer(value: Any) -> Any:
    """An integer of numpy as one of Python, which does not overflow; anything else as it is."""
    return int(value) if is_integer(value) else value


def check_integer(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """An integer of Python from ``least`` to ``most``, or a ValueError that names it."""
    if not is_integer(value) or value < least or (most is not None and value > most):
        range_ = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be an integer {range_}, got {value!r}.")
    return int(value)


def is_real(value: Any) -> TypeGuard[float]:
    """Whether something is a real number, of Python or of numpy."""
    return isinstance(value, Real)


def check_number(name: str, value: Any) -> float:
    """A finite real number as one of Python, or a ValueError that names it."""
    if not is_real(value) or isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, got {value!r}.")
    return float(value)


def float_array(name: str, value: Any, ndim: int, dtype: Any = None) -> np.ndarray:
    """Copy of an array as a finite, C-contiguous float array."""
    value = in_numpy(value)
    try:
        array = np.array(value, dtype=dtype, order="C")
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be real numbers, got {reprlib.repr(value)}.") from error
    if dtype is None and array.dtype not in (np.float32, np.float64):
        if array.dtype.kind not in "iufb":
            raise ValueError(f"{name} must be real numbers, got dtype {array.dtype}.")
        array = array.astype(np.float64)
    if array.ndim != ndim or (ndim == 2 and array.shape[1] == 0):
        raise ValueError(f"{name} must be a non-empty {ndim}-D array, got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity.")
    return array


def nonnegative_float(name: str, value: Any) -> float:
    """A finite number of at least zero."""
    if isinstance(value, str):
        raise TypeError(f"{name} must be a number, got {value!r}.")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}.") from None
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{name} must be finite and non-negative, got {value!r}.")
    return number


def check_rows(X: Any, dtypes: Any = (np.float64, np.float32), allow_nan: bool = False) -> Any:
    """Float rows, dense or CSR, or on a device; finite, but for NaN where that is allowed."""
    if type(X) is np.ndarray and X.ndim == 2 and X.size and X.dtype in dtypes:  # as many are
        check_finite(X, allow_nan)
        return X
    namespace = namespace_of(X)
    X = X if namespace is None else namespace.rows(X)
    if isinstance(X, DeviceRows):
        X = X.astype(X.dtype if X.dtype in dtypes else dtypes[0])
        check_finite(X, allow_nan)
        return X
    with np.errstate(over="ignore"):  # what overflows a dtype is not finite
        X = checked_array(X, accept_sparse="csr", dtype=list(dtypes))
    check_finite(X, allow_nan)
    return X


def check_finite(X: Any, allow_nan: bool = False) -> None:
    """Raise unless all entries of rows are finite, and say who takes missing ones."""
    if isinstance(X, DeviceRows):
        if X.is_finite():
            return
        X = X.in_numpy()  # which says what is wrong
    values = X.data if sp.issparse(X) else X
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # sums of finite values may be neither
            assert_all_finite(values, allow_nan=allow_nan, input_name="X")
    except ValueError as error:
        if "NaN" not in str(error) or allow_nan:
            raise
        raise ValueError(
            "Input X contains NaN. SubspaceTracker, RobustSubspaceTracker, GROUSE, PETRELS and "
            "FederatedSubspaceTracker take rows with missing entries, FederatedPCA and "
            "DistributedPCA with missing=AvailablePairs(), FederatedPCA with ConditionalFill()."
        ) from None


@contextmanager
def finite_by_sums(X: Any) -> Iterator[None]:
    """Look whether rows are finite only where their sums are not: sums of others never are."""
    try:
        yield
    except TooLargeError:
        check_finite(X)
        raise


def check_forgetting_factor(value: Any) -> None:
    """Raise unless ``0 < value <= 1``."""
    if not 0 < value <= 1:
        raise ValueError(f"forgetting_factor must be in (0, 1], got {value!r}.")


def check_weight(sample_weight: Any, n: int) -> np.ndarray | None:
    """Validated float64 weights, or None if there are none."""
    if sample_weight is None:
        return None
    weight = np.asarray(in_numpy(sample_weight))
    weight = float_array("sample_weight", np.full(n, weight) if weight.ndim == 0 else weight, 1)
    weight = weight.astype(np.float64, copy=False)
    if len(weight) != n:
        raise ValueError(f"sample_weight.shape == {weight.shape}, expected {(n,)}!")
    if weight.min(initial=0.0) < 0:
        raise ValueError(f"Negative values in sample_weight, such as {weight.min()}.")
    with np.errstate(over="ignore"):
        total = weight.sum()
    if not np.isfinite(total):
        raise ValueError(f"sample_weight must have a finite sum, got values up to {weight.max()}.")
    return weight


def check_at_most_features(value: Any, n_features: int, name: str = "n_components") -> None:
    """Raise if more components are asked for than there are features."""
    if number_or_none(value) is not None and value > n_features:
        raise ValueError(f"{name}={value!r} must be at most n_features={n_features}.")


def number_or_none(n_components: Any) -> Any:
    """What is asked of a summary: all directions, None, where a rule counts the components."""
    return None if isinstance(n_components, str) else plain_integer(n_components)


def rank_or_default(n_components: int | None, n_features: int) -> int:
    """Requested number of components; None: 10, or all features where there are fewer."""
    return min(_DEFAULT_RANK, n_features) if n_components is None else int(n_components)


def check_n_components(value: Any, *, fraction: bool = False, name: str = "n_components") -> None:
    """Raise unless value is None, a non-negative integer or, where allowed, in (0, 1)."""
    if value is None or (is_integer(value) and value >= 0):
        return
    if fraction and is_real(value) and 0 < value < 1:
        return
    expected = "None, a non-negative integer" + (" or a float in (0, 1)" if fraction else "")
    raise ValueError(f"{name} must be {expected}, got {value!r}.")
