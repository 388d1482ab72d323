"""Rows on a device that numpy cannot read: array_api_strict's, torch's own, and a GPU if any."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn import config_context

from fedpca_sklearn import make_power_law
from fedpca_sklearn._kernels import linalg, scatter, stack
from fedpca_sklearn._validation.arrays import ArrayNamespace
from fedpca_sklearn.summary import _exact

strict = pytest.importorskip("array_api_strict")
torch = pytest.importorskip("torch")
ON_A_DEVICE = strict.Device("device1")
# How rows are put on a GPU, by each library that finds one.
ON_A_GPU = {}
if torch.cuda.is_available():
    ON_A_GPU["cuda"] = lambda X: torch.asarray(X, device="cuda")
    cupy = pytest.importorskip("cupy")
    ON_A_GPU["cupy"] = cupy.asarray


@pytest.fixture(autouse=True)
def dispatch(monkeypatch):
    """scikit-learn asks for this variable; scipy, which reads it once, is given numpy's arrays."""
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    torch.set_num_threads(1)
    with config_context(array_api_dispatch=True):
        yield


@pytest.fixture
def eigenproblems(monkeypatch):
    """Orders of the eigenproblems that were solved at home."""
    found, eigh_top = [], linalg.eigh_top

    def counted(G, *arguments, **options):
        found.append(len(G))
        return eigh_top(G, *arguments, **options)

    for module in (_exact, scatter, stack):
        monkeypatch.setattr(module, "eigh_top", counted)
    return found


@pytest.fixture
def come(monkeypatch):
    """Sizes of what comes home."""
    home, sizes = ArrayNamespace.numpy, []

    def counted(place, array):
        sizes.append(int(np.prod(array.shape)))
        return home(place, array)

    monkeypatch.setattr(ArrayNamespace, "numpy", counted)
    return sizes


def on_strict(X):
    """Rows on a device of array_api_strict."""
    return strict.asarray(X, device=ON_A_DEVICE)


def as_if_on_a_device(monkeypatch):
    """Take tensors in the memory of the host for rows on a device."""
    monkeypatch.setattr(ArrayNamespace, "is_on_host", False)


def as_numpy(array):
    """An array of another library in numpy; numpy's is refused, so that none is there by chance."""
    assert not isinstance(array, np.ndarray)
    if isinstance(array, torch.Tensor):
        return array.cpu().numpy()
    if ON_A_GPU and isinstance(array, cupy.ndarray):
        return array.get()
    return np.asarray(strict.asarray(array, device=strict.Device("CPU_DEVICE")))


def close(found, expected, tol=1e-12):
    """Assert that an array of another library is as expected."""
    assert_allclose(as_numpy(found), expected, rtol=tol, atol=tol * np.abs(expected).max())


def power_law(n, d, seed=1):
    return make_power_law(n, d, random_state=seed) + np.linspace(-5, 5, d)
