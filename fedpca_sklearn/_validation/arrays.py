"""Arrays of other libraries: where they are, how numpy reads them, and how results go back.

The only module that calls scikit-learn's helpers for such arrays, which are private. It does so
only for an array that is not numpy's, so that whoever has no other pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
from sklearn import config_context, get_config

from .._kernels.device_rows import DeviceRows
from .._kernels.threads import computed_once

# Device type of DLPack for memory of the host.
_HOST = 1
# Where an estimator, or a summary, keeps the namespace of its arrays if they are not numpy's.
NAMESPACE = "_namespace"


@dataclass(frozen=True, eq=False)
class ArrayNamespace:
    """A library of arrays, and the device on which they are.

    Parameters
    ----------
    like : array
        One of that library on that device, without entries.
    """

    like: Any

    @property
    def library(self) -> str:
        """Name of the library."""
        return type(self.like).__module__.partition(".")[0]

    def __str__(self):
        return f"{self.library} on {self.like.device}"

    def same(self, other: ArrayNamespace | None) -> bool:
        """Whether another place is of the same library and the same device."""
        if other is None or self.library != other.library:
            return False
        return bool(self.like.device == other.like.device)

    def array(self, values: np.ndarray) -> Any:
        """Numbers of numpy as an array here, with memory of its own."""
        if values.dtype == np.float64 and self.widest == self.xp.float32:
            values = values.astype(np.float32)
        return self.xp.asarray(values.copy(), device=self.like.device)

    @computed_once
    def xp(self) -> Any:
        """Namespace of the array API standard."""
        return _namespace_and_device(self.like)[0]

    @computed_once
    def widest(self) -> Any:
        """The widest floating type of the device."""
        from sklearn.utils._array_api import _max_precision_float_dtype

        return _max_precision_float_dtype(self.xp, self.like.device)

    def __getstate__(self):
        return {"like": self.like}  # modules cannot be pickled

    @property
    def is_on_host(self) -> bool:
        """Whether numpy reads what is here without a copy."""
        if self.like.__dlpack_device__()[0] != _HOST:
            return False
        try:
            np.asarray(self.like)
        except Exception:  # each library has its own
            return False
        return True

    def numpy(self, array: Any) -> np.ndarray:
        """An array here as one of numpy that may be written to."""
        found = in_numpy(array)
        return found if found.flags.writeable else found.copy()  # JAX's may not

    def rows(self, X: Any, reader: Any = None) -> Any:
        """Rows as estimators take them: an array of numpy, or what stays on its device.

        A reader with a true ``_needs_host_rows`` has kernels for arrays of numpy only.
        """
        if self.is_on_host or getattr(reader, "_needs_host_rows", False):
            return in_numpy(X)
        shape = tuple(X.shape)
        if len(shape) != 2 or 0 in shape:
            raise ValueError(f"Expected 2D array with at least one row and column, got {shape}.")
        xp = self.xp
        if not xp.isdtype(X.dtype, "real floating"):
            if not xp.isdtype(X.dtype, ("bool", "integral")):
                raise ValueError(f"X must be real numbers, got dtype {X.dtype}.")
            X = xp.astype(X, self.widest)
        return DeviceRows(_readable(xp, X), self)

    def shown(self, value: Any) -> Any:
        """An array of numbers of numpy, or a summary of such, as one here; else the value."""
        if isinstance(value, np.ndarray):
            return self.array(value) if value.dtype.kind in "biuf" else value
        return value._shown_in(self) if hasattr(value, "_shown_in") else value


def namespace_of(X: Any) -> ArrayNamespace | None:
    """Where an array of another library is, while ``array_api_dispatch`` is on; else None."""
    if not _is_foreign(X) or not get_config()["array_api_dispatch"]:
        return None
    try:
        xp, device = _namespace_and_device(X)
    except TypeError:  # a column of Arrow: numpy reads it
        return None
    return _namespace(xp, device)


def namespace_by(converter: Callable[[np.ndarray], Any]) -> ArrayNamespace | None:
    """Where a function puts arrays of numpy; None where it leaves them."""
    moved = converter(np.zeros(0, dtype=np.float32))
    return _namespace(*_namespace_and_device(moved)) if _is_foreign(moved) else None


def in_numpy(value: Any) -> Any:
    """An array of another library, or a summary of such, in numpy; else the value.

    What is in the memory of the host is not copied. What is masked becomes NaN, in a copy.
    """
    if isinstance(value, np.ma.MaskedArray):
        hidden = np.ma.getmaskarray(value)
        return np.where(hidden, np.nan, value.data) if hidden.any() else value.data
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "_shown_in"):
        return value._in_numpy()
    if not _is_foreign(value):
        return value
    with suppress(Exception):  # each library has its own
        return np.asarray(value)  # what is on the host, whatever scikit-learn is set to
    from sklearn.utils._array_api import _convert_to_numpy

    xp, _ = _namespace_and_device(value)
    value = _readable(xp, value)
    with config_context(array_api_dispatch=True):
        return np.asarray(_convert_to_numpy(value, xp))


def namespace_among(values: Iterable[Any]) -> ArrayNamespace | None:
    """Where the first summary of another library is; None if all are of numpy."""
    return next(filter(None, [vars(value).get(NAMESPACE) for value in values]), None)


def where_rows_are(method: Callable) -> Callable:
    """Let a method of rows take arrays of other libraries; what it returns is where they are."""

    @wraps(method)
    def call(self, X, *args, **kwargs):
        namespace = namespace_of(X)
        if namespace is None:
            return method(self, X, *args, **kwargs)
        return namespace.shown(method(self, namespace.rows(X), *args, **kwargs))

    return call


def refuse_other_namespaces(
    fitted: ArrayNamespace | None, given: ArrayNamespace | None, who: str
) -> None:
    """Raise unless rows are where those of the fit were, while ``array_api_dispatch`` is on."""
    if not get_config()["array_api_dispatch"]:
        return
    if fitted is given or (fitted is not None and fitted.same(given)):
        return
    raise ValueError(
        f"Inputs passed to {who}() must use the same namespace and the same device as those passed "
        f"to fit(): it got arrays of {given or 'numpy'}, and was fitted with those of "
        f"{fitted or 'numpy'}. sklearn.utils._array_api.move_estimator_to moves an estimator."
    )


def _readable(xp: Any, array: Any) -> Any:
    """The array without gradients, and of a type that numpy has."""
    array = array.detach() if hasattr(array, "detach") else array
    return xp.astype(array, xp.float32) if "bfloat16" in str(array.dtype) else array


def _is_foreign(value: Any) -> bool:
    """Whether something may be an array of another library than numpy."""
    return hasattr(value, "__dlpack__") and not isinstance(value, (np.ndarray, np.generic))


def _namespace(xp: Any, device: Any) -> ArrayNamespace:
    return ArrayNamespace(xp.zeros((0,), dtype=xp.float32, device=device))


def _namespace_and_device(array: Any) -> tuple[Any, Any]:
    from sklearn.utils._array_api import get_namespace_and_device

    with config_context(array_api_dispatch=True):
        xp, _, device = get_namespace_and_device(array)
    return xp, device
