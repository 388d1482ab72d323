"""Rows on disk: fits of more than the memory they may take, files of numpy, arrays in chunks."""

from functools import cache

import numpy as np
import pytest
from helpers import peak_bytes, sine
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from fedpca_sklearn import FederatedPCA, NpyRows, OjaPCA, StreamingPCA, Subspace
from fedpca_sklearn._base import batches as reader

# ------------------------------------------------------------------------------ files of numpy


def test_rows_of_a_file_are_those_of_numpy(tmp_path, monkeypatch):
    X = np.random.default_rng(0).integers(-9, 9, (37, 5)).astype(">i2")
    np.save(tmp_path / "X.npy", X)
    monkeypatch.chdir(tmp_path)
    read = NpyRows("X.npy")
    monkeypatch.chdir(tmp_path.parent)
    assert (read.shape, read.dtype, len(read)) == ((37, 5), X.dtype, 37)
    for key in [(None,), (3, 9), (-4, None), (30, 99), (9, 3), (1, 30, 7)]:
        assert_array_equal(read[slice(*key)], X[slice(*key)])
    s = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
    pca = StreamingPCA().fit(read)
    assert_allclose(pca.singular_values_, s, rtol=1e-10)
    for method in FederatedPCA(2).fit, pca.transform, pca.score, Subspace.from_rows:
        with pytest.raises(
            TypeError, match=r"NpyRows of fedpca_sklearn, .*X\[:\] reads them, X\[a:b\]"
        ):
            method(read)
    with pytest.raises(TypeError, match="rows must be a slice, got 1"):
        read[1]
    with pytest.raises(ValueError, match="positive step"):
        read[::-1]
    (tmp_path / "X.npy").write_bytes((tmp_path / "X.npy").read_bytes()[:-8])
    with pytest.raises(ValueError, match="shorter than its header says"):
        read[:37]


def announced(shape, descr="<f8"):
    """A file that announces an array of a shape, and holds 48 bytes."""
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + bytes(48)


NUMBERS = r"X\.npy' must hold a 2-D array of numbers"
DAMAGED = r"X\.npy' has a damaged header: .*"
FILES = [
    (np.ones(3), NUMBERS),
    (np.asfortranarray(np.ones((3, 2))), NUMBERS),
    (np.array([["a"]], object), NUMBERS),
    *((np.zeros((3, 3), dtype), NUMBERS) for dtype in (complex, "M8[s]", "U3", [("a", float)])),
    (announced((10**9, 10**9)), "announces 1000000000 rows of 1000000000 columns of 8 bytes, but"),
    (announced((7, 1)), "announces 7 rows of 1 columns of 8 bytes, but"),  # of which six are there
    (announced((-1, 2)), "announces -1 rows"),
    (announced((2.5, 2)), DAMAGED + "shape is not valid"),
    (announced("1" * 20_000), DAMAGED + "Header info length"),
    (b"\x93NUMPY\x01\x00\x04\x00((((" + bytes(48), DAMAGED + "(EOF|never closed)"),
    (b"PK\x03\x04" + bytes(90), r"X\.npy' is not a \.npy file"),
]


@pytest.mark.parametrize(("content", "words"), FILES, ids=lambda v: str(v)[:30])
def test_a_file_of_another_kind_or_a_wrong_header_is_refused(content, words, tmp_path):
    if isinstance(content, bytes):
        (tmp_path / "X.npy").write_bytes(content)
    else:
        np.save(tmp_path / "X.npy", content)
    with pytest.raises(ValueError, match=words) as error:
        NpyRows(tmp_path / "X.npy")
    assert "pickle" not in str(error.value)  # which would run what is in the file


# ------------------------------------------------------------------------------ arrays on disk


class OnDisk:
    """The part of an HDF5 or zarr array that a reader may rely on; rows are made when read."""

    def __init__(self, n, d, dtype="f8"):
        self.shape, self.dtype, self.ndim, self.biggest = (n, d), np.dtype(dtype), 2, 0

    def __getitem__(self, key):
        start, stop, step = key.indices(self.shape[0])
        assert step == 1
        self.biggest = max(self.biggest, (stop - start) * self.shape[1] * self.dtype.itemsize)
        i = np.arange(start, stop)[:, None]  # rows of a sinusoid span two directions
        return (np.sin(i * 1.7 + np.arange(self.shape[1])) * (1 + i % 7)).astype(self.dtype)


def test_arrays_on_disk_are_read_in_bounded_slices():
    n = 700
    data, weight = OnDisk(n, 8000), np.arange(n) % 3
    pca = StreamingPCA(2, block_size=100)  # slices of 524 rows end inside a block
    peak = peak_bytes(lambda: pca.fit(data, sample_weight=weight))
    assert data.biggest <= 2**25
    # a slice, the temporaries of this test's reader, and a stack of a block
    assert peak < 4 * 2**25 + 4 * 8 * 8000 * 114
    X = data[:n]
    Z = np.sqrt(weight)[:, None] * (X - weight @ X / weight.sum())
    squares, U = np.linalg.eigh(Z @ Z.T)  # of which all but two are zero
    assert_allclose(pca.singular_values_, np.sqrt(squares[:-3:-1]), rtol=1e-9)
    assert sine(pca.components_, U[:, :-3:-1].T @ Z) < 1e-9


@pytest.mark.parametrize("dtype", ["f8", "i2"])
def test_a_memory_map_is_not_copied(dtype, tmp_path):
    file = np.memmap(tmp_path / "X.dat", dtype=dtype, mode="w+", shape=(3000, 1000))
    file[:] = np.random.default_rng(0).integers(0, 100, file.shape)
    file.flush()
    pca = StreamingPCA(3)
    peak = peak_bytes(lambda: pca.fit(np.memmap(file.filename, dtype, "r", shape=file.shape)))
    # at most a block's own copy of 64 rows, in float64, comes on top, and a slice of integers
    as_floats = 8 * file.size if dtype == "i2" else 0
    assert peak < 1.2 * 8.4e6 + 2 * 8 * 64 * 1000 + as_floats


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


READERS = [StreamingPCA(3), StreamingPCA(3, block_size=70), OjaPCA(3, random_state=0)]
STORED = np.random.default_rng(0).standard_normal((2000, 300)) / np.sqrt(1 + np.arange(300))


@cache
def components_in_memory(i, n):
    return clone(READERS[i]).fit(STORED[:n]).components_


@pytest.mark.parametrize(
    ("hold", "chunks"),
    [
        (in_hdf5, (333, 300)),
        (in_hdf5, (1, 300)),
        (in_zarr, (2000, 300)),
        (in_zarr, (512, 7)),
        (in_memory, (1000, 300)),
    ],
)
def test_each_chunk_is_read_once(chunks, hold, tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_READ_AT_ONCE", 2**20)  # 436 rows, as 32 MB are of more columns
    n = 400 if chunks[0] == 1 else 2000
    array = hold(STORED[:n], chunks, tmp_path)
    for i, model in enumerate(READERS):
        stored = Chunked(array, chunks)
        fitted = clone(model).fit(stored)
        assert stored.reads.max() == 1
        assert stored.biggest <= max(2**20, chunks[0] * 2400)
        assert_array_equal(fitted.components_, components_in_memory(i, n))


def test_a_row_of_chunks_beyond_the_bound_is_read_in_parts_with_its_weights(monkeypatch):
    monkeypatch.setattr(reader, "_READ_AT_ONCE", 2**16)
    monkeypatch.setattr(reader, "_MOST_AT_ONCE", 2**18)
    X, weight = np.random.default_rng(0).standard_normal((3000, 30)), np.arange(3000) % 3
    stored = Chunked(X, (3000, 1))  # a chunk for each column: a row of chunks is all
    fitted = StreamingPCA(3).fit(stored, sample_weight=weight)
    assert stored.biggest <= 2**18
    assert stored.reads.max() == -(-X.nbytes // 2**18)
    want = StreamingPCA(3).fit(X, sample_weight=weight)
    assert_array_equal(fitted.components_, want.components_)
