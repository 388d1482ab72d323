"""Validation shared by the summary, the merge and the estimators."""

from __future__ import annotations

import math
import reprlib
from abc import ABC
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from numbers import Integral, Real
from typing import Any, TypeGuard, TypeVar, dataclass_transform

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator
from sklearn.utils import _param_validation, assert_all_finite

from .._kernels.device_rows import DeviceRows
from .._kernels.too_large import TooLargeError
from .arrays import in_numpy, namespace_of
from .containers import checked_array

# Components of the estimators that follow a few directions, where nothing is said.
DEFAULT_RANK = 10


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
    if array.dtype not in (np.float32, np.float64):
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


NO_WEIGHT = "sample_weight must have a positive sum, got zero weights only."


def check_weight(sample_weight: Any, n: int, *, positive: bool = False) -> np.ndarray | None:
    """Validated float64 weights, of which not all may be zero if asked; None if there are none."""
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
    if positive and not total:
        raise ValueError(NO_WEIGHT)
    return weight


def check_at_most_features(value: Any, n_features: int, name: str = "n_components") -> None:
    """Raise if more components are asked for than there are features."""
    if value is not None and not isinstance(value, str) and value > n_features:
        raise ValueError(f"{name}={value!r} must be at most n_features={n_features}.")


def number_or_none(n_components: Any) -> Any:
    """What is asked of a summary: all directions, None, where a rule counts the components."""
    return None if isinstance(n_components, str) else plain_integer(n_components)


def check_n_components(value: Any, *, fraction: bool = False, name: str = "n_components") -> None:
    """Raise unless value is None, a non-negative integer or, where allowed, in (0, 1)."""
    if value is None or (is_integer(value) and value >= 0):
        return
    if fraction and is_real(value) and 0 < value < 1:
        return
    expected = "None, a non-negative integer" + (" or a float in (0, 1)" if fraction else "")
    raise ValueError(f"{name} must be {expected}, got {value!r}.")


# Floats count integers exactly up to here.
_LARGEST_COUNT = 2**53
# Squares and inverses of squares of such numbers are finite, with room for those of rows.
_LEAST, _LARGEST = 1e-100, 1e100


class Interval(_param_validation.Interval):
    """scikit-learn's, closed at numbers whose squares are finite where it would be open.

    An open end at zero is 1e-100, one at infinity 1e100, and 2**53 of integers. An end that is
    closed at infinity takes infinity, and no other number beyond 1e100. Squares are those in the
    precision of the number. True and False are no numbers.
    """

    def __init__(self, kind: type, left: Any, right: Any, *, closed: str):
        self.with_infinity = right is None and closed in ("right", "both")
        self._declared = str(_param_validation.Interval(kind, left, right, closed=closed))
        ends = {"left": closed in ("left", "both"), "right": closed in ("right", "both")}
        largest, its_name = (_LARGEST_COUNT, "2**53") if kind is Integral else (_LARGEST, "1e100")
        if left is None:
            left, ends["left"] = -largest, True
            self._declared += f", from -{its_name}"
        elif left == 0 and not ends["left"]:
            left, ends["left"] = _LEAST, True
            self._declared += ", from 1e-100"
        if right is None:
            right, ends["right"] = largest, True
            self._declared += f", up to {its_name}"
        at = [end for end, taken in ends.items() if taken]
        closed = "both" if len(at) == 2 else at[0] if at else "neither"
        super().__init__(kind, left, right, closed=closed)

    def __contains__(self, value: Any) -> bool:
        if isinstance(value, (bool, np.bool_)):
            return False
        if self.with_infinity and value == float("inf"):
            return True
        if isinstance(value, np.floating):  # where a float32 overflows, arithmetic with it does
            with np.errstate(over="ignore", under="ignore"):
                square = value * value
            if not np.isfinite(square) or (value and not square):
                return False
            value = float(value)
        return super().__contains__(value)

    def __str__(self) -> str:
        return self._declared + (" or infinity" if self.with_infinity else "")


class Strategy(BaseEstimator, ABC):
    """An object with parameters of its own that is a parameter of an estimator."""

    def validate(self) -> None:
        """Raise a ValueError that names a wrong parameter; estimators call it before they start."""
        self._validate_params()


AT_LEAST_ONE = Interval(Integral, 1, None, closed="left")


class InstanceOf(_param_validation.HasMethods):
    """An instance of a class, which errors call by the names that users import.

    Parameters
    ----------
    kind : type
        Also the subclasses.
    *names : str
        In `fedpca_sklearn`; that of the class by default.
    """

    def __init__(self, kind: type, *names: str):
        self.kind, self.names = kind, names or (kind.__name__,)
        self.hidden = False  # as in all that scikit-learn makes

    def is_satisfied_by(self, value: Any) -> bool:
        """Whether it is such an instance."""
        return isinstance(value, self.kind)

    def __str__(self) -> str:
        return "an instance of " + " or ".join(f"'fedpca_sklearn.{name}'" for name in self.names)


Class = TypeVar("Class")


def allowed(*kinds: Any, default: Any = MISSING, kw_only: Any = MISSING) -> Any:
    """A parameter and what it may be, as scikit-learn's validation of parameters has it."""
    return field(default=default, kw_only=kw_only, metadata={"allowed": list(kinds)})


@dataclass_transform(eq_default=False, field_specifiers=(allowed, field))
def with_parameters(cls: type[Class]) -> type[Class]:
    """Give a class an ``__init__`` that only keeps its parameters, and their constraints.

    A parameter without `allowed` may be what a base says of it, or anything.
    """
    before = getattr(cls, "_parameter_constraints", {})
    kept = [of for of in fields(dataclass(eq=False, repr=False)(cls)) if of.init]  # type: ignore[arg-type]
    kinds = {of.name: before.get(of.name, "no_validation") for of in kept}
    kinds |= {of.name: of.metadata["allowed"] for of in kept if of.metadata}
    cls._parameter_constraints = kinds  # type: ignore[attr-defined]
    return cls
