"""Fits of data that is larger than the memory they may take, each in a process of its own."""

import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from fedpca_sklearn import FederatedPCA, NpyRows, OjaPCA, StreamingPCA, Subspace
from fedpca_sklearn._base import batches as reader

LIMITED = """
import resource, sys
import numpy as np
import scipy.linalg
from fedpca_sklearn import NpyRows, StreamingPCA

path, kind, allowed = sys.argv[1], sys.argv[2], int(sys.argv[3])
StreamingPCA(2).fit(np.random.default_rng(0).standard_normal((300, 300)))  # BLAS has its buffers

def address_space():
    with open("/proc/self/status") as status:
        sizes = dict(line.split(":") for line in status)
    return 1024 * int(sizes["VmSize"].split()[0]), 1024 * int(sizes["VmPeak"].split()[0])

class OnDisk:
    '''What HDF5 and zarr arrays have in common.'''
    def __init__(self, path):
        self.rows = NpyRows(path)
        self.shape, self.dtype = self.rows.shape, self.rows.dtype
    def __getitem__(self, key):
        return self.rows[key]

def batches(path):
    rows = NpyRows(path)
    for start in range(0, rows.shape[0], 300):
        yield rows[start : start + 300]

X = np.load(path, mmap_mode="r") if kind == "memmap" else None
before, _ = address_space()
resource.setrlimit(resource.RLIMIT_AS, (before + allowed, before + allowed))
X = {"memmap": lambda: X, "npy": lambda: NpyRows(path), "HDF5, zarr": lambda: OnDisk(path),
     "batches": lambda: batches(path)}[kind]()
pca = StreamingPCA(10).fit(X)
try:
    np.load(path, mmap_mode="r")[:]
    np.ones(allowed // 8)
except (MemoryError, OSError):
    print("limited", address_space()[1] - before)
np.savez(path + ".fitted.npz", V=pca.components_, s=pca.singular_values_, mean=pca.mean_,
         n=pca.n_samples_)
"""


def fitted_under_a_limit(path, kind, allowed):
    """Run the fit; return what it found, and how much address space it took."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path), kind, str(allowed)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    word, used = done.stdout.split()
    assert word == "limited"
    return np.load(f"{path}.fitted.npz"), int(used)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "n", "allowed"),
    [  # files of 160 MB
        ("npy", 2000, 110),
        ("batches", 2000, 110),
        ("memmap", 2000, 110),
        ("HDF5, zarr", 2000, 110),
    ],
)
def test_a_fit_of_more_than_the_memory_it_may_take(kind, n, allowed, tmp_path):
    d, k = 20_000, 10
    rng = np.random.default_rng(0)
    scores = (rng.standard_normal((n, k)) * (2.0 ** -np.arange(k))).astype(np.float32)
    loadings = rng.standard_normal((k, d)).astype(np.float32)
    path = tmp_path / "X.npy"
    X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, d))
    for start in range(0, n, 1000):
        X[start : start + 1000] = scores[start : start + 1000] @ loadings + 3
    X.flush()
    del X
    assert path.stat().st_size > 4 / 3 * allowed * 10**6
    found, used = fitted_under_a_limit(path, kind, allowed * 10**6)
    path.unlink()
    # right singular vectors of (scores - mean) @ loadings, through two small triangles
    mean = scores.mean(axis=0, dtype=float)
    Q, R = np.linalg.qr(loadings.T.astype(float))
    _, s, W = np.linalg.svd((scores - mean) @ R.T, full_matrices=False)
    # entries are rounded to 2^-24 of about 5: a matrix of norm below 3e-7 (sqrt(n) + sqrt(d)); it
    # moves singular values by no more, and the last direction by that over the last value
    error = 3e-7 * (n**0.5 + d**0.5)
    assert_allclose(found["s"], s, atol=10 * error, rtol=1e-6)
    V = W @ Q.T
    outside = found["V"] - (found["V"] @ V.T) @ V
    assert np.linalg.norm(outside, axis=1).max() < 1e-5 + 10 * error / s[-1]
    assert_allclose(found["mean"], mean @ loadings + 3, atol=1e-6)
    assert found["n"] == n
    print(f"{kind}: {used / 1e6:.0f} MB")


def test_rows_of_a_file_are_those_of_numpy(tmp_path):
    X = np.random.default_rng(0).integers(-9, 9, (37, 5)).astype(">i2")
    np.save(tmp_path / "X.npy", X)
    read = NpyRows(tmp_path / "X.npy")
    assert read.shape == (37, 5)
    assert read.dtype == X.dtype
    assert len(read) == 37
    for key in (
        slice(None),
        slice(3, 9),
        slice(-4, None),
        slice(30, 99),
        slice(9, 3),
        slice(1, 30, 7),
    ):
        np.testing.assert_array_equal(read[key], X[key])
    s = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
    assert_allclose(StreamingPCA().fit(read).singular_values_, s, rtol=1e-10)


def test_a_file_of_another_kind_is_refused(tmp_path):
    for i, X in enumerate(
        (np.ones(3), np.asfortranarray(np.ones((3, 2))), np.array([["a"]], object))
    ):
        np.save(tmp_path / f"{i}.npy", X)
        with pytest.raises(ValueError, match=rf"{i}\.npy' must hold a 2-D array of numbers"):
            NpyRows(tmp_path / f"{i}.npy")
    header = str({"descr": "<f8", "fortran_order": False, "shape": (3, 2)}).ljust(20_000)
    for text, what in ((header, r"Header info length \(20000\)"), ("((((", "EOF|never closed")):
        start = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little")
        (tmp_path / "long.npy").write_bytes(start + text.encode() + bytes(48))
        with pytest.raises(
            ValueError, match=rf"long\.npy' has a damaged header: .*({what})"
        ) as error:
            NpyRows(tmp_path / "long.npy")
        assert "allow_pickle" not in str(error.value)  # which would run what is in the file
    np.savez(tmp_path / "X.npz", np.ones((3, 2)))
    with pytest.raises(ValueError, match=r"X\.npz' is not a \.npy file"):
        NpyRows(tmp_path / "X.npz")
    np.save(tmp_path / "X.npy", np.ones((3, 2)))
    with pytest.raises(TypeError, match="rows must be a slice, got 1"):
        NpyRows(tmp_path / "X.npy")[1]


def test_methods_that_need_an_array_say_how_to_read_one(tmp_path):
    X = np.random.default_rng(0).standard_normal((40, 5))
    np.save(tmp_path / "X.npy", X)
    rows, pca = NpyRows(tmp_path / "X.npy"), StreamingPCA(2).fit(X)
    for method in FederatedPCA(2).fit, pca.transform, pca.score, Subspace.from_rows:
        with pytest.raises(
            TypeError, match=r"NpyRows of fedpca_sklearn, .*X\[:\] reads them, X\[a:b\]"
        ):
            method(rows)
    np.testing.assert_array_equal(pca.transform(rows[:]), pca.transform(X))


@pytest.mark.parametrize("rows", [slice(None, None, -1), slice(5, 2, -2)])
def test_rows_in_reverse_are_refused(tmp_path, rows):
    np.save(tmp_path / "X.npy", np.eye(9))
    with pytest.raises(ValueError, match="positive step"):
        NpyRows(tmp_path / "X.npy")[rows]


@pytest.mark.parametrize("dtype", [complex, "datetime64[s]", "U3", [("a", float)]])
def test_what_is_not_numbers_is_refused(tmp_path, dtype):
    np.save(tmp_path / "X.npy", np.zeros((3, 3), dtype=dtype))
    with pytest.raises(ValueError, match="2-D array of numbers"):
        NpyRows(tmp_path / "X.npy")


def test_a_header_that_announces_more_than_the_file_holds_is_refused(tmp_path):
    for shape, message in {
        (10**9, 10**9): "announces 1000000000 rows of 1000000000 columns of 8 bytes, but holds 32",
        (-1, 2): "announces -1 rows",
        (2.5, 2): "has a damaged header: shape is not valid",
        "1" * 20_000: "has a damaged header: Header info length",
    }.items():
        head = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode()
        size = len(head).to_bytes(2, "little")
        (tmp_path / "X.npy").write_bytes(b"\x93NUMPY\x01\x00" + size + head + bytes(32))
        with pytest.raises(ValueError, match=r"X\.npy' " + message) as caught:
            NpyRows(tmp_path / "X.npy")
        assert "pickle" not in str(caught.value)


def test_a_file_that_was_cut_is_refused(tmp_path, monkeypatch):
    np.save(tmp_path / "X.npy", np.eye(9))
    monkeypatch.chdir(tmp_path)
    rows = NpyRows("X.npy")
    monkeypatch.chdir(tmp_path.parent)
    assert np.array_equal(rows[2:8:3], np.eye(9)[2:8:3])
    (tmp_path / "X.npy").write_bytes((tmp_path / "X.npy").read_bytes()[:-8])
    with pytest.raises(ValueError, match="shorter than its header says"):
        rows[:9]


# ------------------------------------------------------------------------------ chunks on disk


class Chunked:
    """An array on disk in compressed chunks, which counts how often each is read."""

    def __init__(self, X, chunks):
        self.X, self.chunks, self.shape, self.dtype = X, chunks, X.shape, X.dtype
        self.reads, self.biggest = np.zeros(-(-X.shape[0] // chunks[0]), dtype=int), 0

    def __getitem__(self, rows):
        start, stop, _ = rows.indices(self.shape[0])
        self.reads[start // self.chunks[0] : -(-stop // self.chunks[0])] += 1
        self.biggest = max(self.biggest, (stop - start) * self.shape[1] * self.dtype.itemsize)
        return self.X[rows]


def in_hdf5(X, chunks, path):
    file = pytest.importorskip("h5py").File(path / "X.h5", "w")
    return file.create_dataset("X", data=X, chunks=chunks, compression="lzf")


def in_zarr(X, chunks, path):
    zarr = pytest.importorskip("zarr")
    return zarr.create_array(path / "X.zarr", data=X, chunks=chunks)


def in_memory(X, chunks, path):
    return X


READERS = {
    "passes": StreamingPCA(3),
    "blocks": StreamingPCA(3, block_size=70),
    "rows": OjaPCA(3, random_state=0),
}


@cache
def rows_to_store():
    return np.random.default_rng(0).standard_normal((4000, 300)) / np.sqrt(1 + np.arange(300))


@cache
def components_in_memory(name, n):
    return clone(READERS[name]).fit(rows_to_store()[:n]).components_


@pytest.mark.parametrize("hold", [in_hdf5, in_zarr, in_memory])
@pytest.mark.parametrize("chunks", [(1000, 300), (333, 300), (4000, 300), (512, 7), (1, 300)])
def test_each_chunk_is_read_once(chunks, hold, tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_READ_AT_ONCE", 2**20)  # 436 rows, as 32 MB are of more columns
    n = 400 if chunks[0] == 1 else 4000
    array = hold(rows_to_store()[:n], chunks, tmp_path)
    for name, model in READERS.items():
        stored = Chunked(array, chunks)
        fitted = clone(model).fit(stored)
        assert stored.reads.max() == 1
        assert stored.biggest <= max(2**20, chunks[0] * 2400)
        assert_array_equal(fitted.components_, components_in_memory(name, n), err_msg=name)


def test_a_row_of_chunks_beyond_the_bound_is_read_in_parts(monkeypatch):
    monkeypatch.setattr(reader, "_READ_AT_ONCE", 2**16)
    monkeypatch.setattr(reader, "_MOST_AT_ONCE", 2**18)
    X = np.random.default_rng(0).standard_normal((3000, 30))
    stored = Chunked(X, (3000, 1))  # a chunk for each column: a row of chunks is all
    fitted = StreamingPCA(3).fit(stored)
    assert stored.biggest <= 2**18
    assert stored.reads.max() == -(-X.nbytes // 2**18)
    assert_array_equal(fitted.components_, StreamingPCA(3).fit(X).components_)


def test_weights_go_with_the_rows_of_chunks():
    X = np.random.default_rng(0).standard_normal((1000, 30))
    weight = np.arange(1000) % 3
    fitted = StreamingPCA(3).fit(Chunked(X, (7, 30)), sample_weight=weight)
    want = StreamingPCA(3).fit(X, sample_weight=weight)
    assert_array_equal(fitted.components_, want.components_)
