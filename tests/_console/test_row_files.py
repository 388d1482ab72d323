"""Files of rows from anybody: what is read, in which columns, and what is refused.

The oracle is numpy's singular value decomposition of the rows that were written.
"""

import json
import os
import sys
from decimal import Decimal

import numpy as np
import pytest
import scipy.sparse as sp
from console_helpers import (
    NAMES,
    WRITERS,
    X,
    as_csv,
    as_h5ad,
    as_parquet,
    assert_is_of,
    refused,
    run,
)
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import StreamingPCA, Subspace
from fedpca_sklearn._console import _h5ad, _progress, _row_files
from fedpca_sklearn._validation import files

__all__ = ["run"]


# ------------------------------------------------------------------------------ what is read


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_is_fitted_in_batches(kind, run, monkeypatch):
    monkeypatch.setattr(_row_files, "ROWS", 7)
    WRITERS[kind](f"rows.{kind}")
    code, out, err = run("fit", f"rows.{kind}", "-o", "north.fed", "--site", "north")
    assert (code, err) == (0, "")
    assert "site       north\n  rows       50\n" in out
    summary = Subspace.load("north.fed")
    assert_is_of(summary, X)
    assert summary.feature_names == (None if kind == "npy" else tuple(NAMES))


@pytest.mark.parametrize("kind", ["csv", "parquet", "h5ad"])
def test_columns_are_matched_by_name(kind, run):
    WRITERS[kind](f"a.{kind}", X[:30])
    order = [2, 0, 3, 1]
    WRITERS[kind](f"b.{kind}", X[30:, order], [NAMES[j] for j in order])
    assert run("fit", f"a.{kind}", f"b.{kind}", "-o", "both.fed")[0] == 0
    assert_is_of(Subspace.load("both.fed"), X)
    chosen = ["--columns", "pulse,age"]
    assert run("fit", f"a.{kind}", f"b.{kind}", "-o", "two.fed", *chosen)[0] == 0
    assert_is_of(Subspace.load("two.fed"), X[:, [3, 0]])
    assert Subspace.load("two.fed").feature_names == ("pulse", "age")
    assert run("fit", f"b.{kind}", "-o", "like.fed", "--like", "two.fed")[0] == 0
    assert_is_of(Subspace.load("like.fed"), X[30:, [3, 0]])
    assert run("fit", f"b.{kind}", "-o", "less.fed", "--without", "weight,height")[0] == 0
    assert Subspace.load("less.fed").feature_names == ("age", "pulse")


def test_sparse_cells_are_fitted(run):
    rows = X * (np.random.default_rng(1).random(X.shape) < 0.3)
    as_h5ad("cells.h5ad", sp.csr_matrix(rows))
    assert run("fit", "cells.h5ad", "-o", "cells.fed")[0] == 0
    assert_is_of(Subspace.load("cells.fed"), rows)


def test_csv_of_other_places(run):
    as_csv("a.csv", separator=";")
    assert "--separator" in refused(run, "fit", "a.csv", "-o", "x.fed")
    assert run("fit", "a.csv", "-o", "a.fed", "--separator", ";")[0] == 0
    assert "--separator" in refused(run, "fit", "a.csv", "-o", "x.fed", "--separator", "tab")
    as_csv("b.tsv", names=["größe", 'a, "b"', " c", "d"], separator="\t")
    with open("b.tsv", "rb") as stream:
        data = stream.read()
    with open("b.tsv", "wb") as stream:
        stream.write(b"\xef\xbb\xbf" + data + b"\r\n\r\n")
    assert run("fit", "b.tsv", "-o", "b.fed", "--columns", '"a, ""b""",größe')[0] == 0
    assert Subspace.load("b.fed").feature_names == ('a, "b"', "größe")
    assert_is_of(Subspace.load("b.fed"), X[:, [1, 0]])


def test_integers_single_precision_and_columns_first(run):
    counts = np.round(X).astype(np.int32)
    np.save("rows.npy", np.asfortranarray(counts))
    assert run("fit", "rows.npy", "-o", "counts.fed")[0] == 0
    assert_is_of(Subspace.load("counts.fed"), counts)
    as_parquet("rows.parquet", X.astype(np.float32))
    assert run("fit", "rows.parquet", "-o", "single.fed", "-n", "2")[0] == 0
    assert Subspace.load("single.fed").components.dtype == np.float32


def test_names_with_dots_are_names(run):
    as_parquet("rows.parquet", names=["age", "age.two", "c", "d"])
    assert run("fit", "rows.parquet", "-o", "rows.fed", "--columns", "age,d")[0] == 0
    assert_is_of(Subspace.load("rows.fed"), X[:, [0, 3]])


def test_gaps_and_kinds_of_numbers_in_parquet(run):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "whole": pa.array([1, 2, None, 2**60]),
        "yes": pa.array([True, False, True, None]),
        "money": pa.array([Decimal("1.5"), Decimal("2.5"), Decimal("0.5"), None]),
        "small": pa.array([1, 2, 3, 4], pa.uint8()),
        "single": pa.array([1.5, None, 3.0, 4.0], pa.float32()),
    }
    parquet.write_table(pa.table(columns), "rows.parquet")
    assert "column 'single' has no value in row 2" in refused(
        run, "fit", "rows.parquet", "-o", "x.fed"
    )
    options = "--drop-missing", "--min-rows", "1"
    assert run("fit", "rows.parquet", "-o", "x.fed", *options)[0] == 0
    assert_array_equal(Subspace.load("x.fed").mean, [1, 1, 1.5, 1, 1.5])


def test_an_index_of_a_frame_is_no_column(run):
    pd, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = pd.DataFrame(X, columns=NAMES, index=np.arange(50) * 3)
    frame.to_parquet("rows.parquet")
    assert run("fit", "rows.parquet", "-o", "rows.fed")[0] == 0
    assert Subspace.load("rows.fed").feature_names == tuple(NAMES)
    frame.to_csv("rows.csv")
    assert "column 1 has no name" in refused(run, "fit", "rows.csv", "-o", "x.fed")


def test_a_site_answers_in_batches(run, monkeypatch):
    as_csv("rows.csv")
    run("ask", "study", "DistributedPCA(4)", "--sites", "a,b")
    monkeypatch.setattr(_row_files, "ROWS", 7)
    order = [3, 1, 0, 2]
    as_parquet("rows.parquet", X[:, order], [NAMES[j] for j in order])
    for rows, site, *columns in (
        ("rows.csv", "a"),
        ("rows.parquet", "b", "--columns", ",".join(NAMES)),
    ):
        letter = f"study/0001.{site}"
        code, _, err = run("answer", f"{letter}.question", rows, "-o", f"{letter}.answer", *columns)
        assert (code, err) == (0, "")
    code, out, _ = run("next", "study", "--json")
    assert (code, json.loads(out)["rows"]) == (0, 100)
    want = np.linalg.svd(np.tile(X - X.mean(axis=0), (2, 1)), compute_uv=False)
    assert_allclose(Subspace.load("study/model.subspace").singular_values, want, rtol=1e-12)


# ------------------------------------------------------------------------------ scores


def read_scores(path):
    if path.endswith("npy"):
        return np.load(path)
    if path.endswith("csv"):
        return np.loadtxt(path, delimiter=",", skiprows=1)
    table = pytest.importorskip("pyarrow.parquet").read_table(path)
    return np.column_stack([column.to_numpy() for column in table.columns])


@pytest.mark.parametrize("kind", ["csv", "npy", "parquet"])
def test_scores_are_those_of_all_rows(kind, run, monkeypatch):
    monkeypatch.setattr(_row_files, "ROWS", 7)
    order = [3, 1, 0, 2]
    as_csv("rows.csv", X[:, order], [NAMES[j] for j in order])
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    summary = Subspace.from_rows(X)
    summary._named(NAMES).save("model.fed")
    code, out, _ = run("transform", "model.fed", "rows.csv", "-o", f"out.{kind}", "-n", "3")
    assert (code, out) == (0, f"out.{kind}\n  rows       50\n  components 3\n")
    scores = read_scores(f"out.{kind}")
    assert_allclose(scores, (X - summary.mean) @ summary.components[:3].T, atol=1e-10)
    if kind == "csv":
        with open("out.csv") as stream:
            assert stream.readline() == "federatedpca0,federatedpca1,federatedpca2\n"


def test_scores_of_no_known_format_are_refused_before_rows_are_read(run):
    as_csv("rows.csv")
    run("fit", "rows.csv", "-o", "model.fed")
    message = refused(run, "transform", "model.fed", "rows.csv", "-o", "scores.xls")
    assert "one of .csv, .npy, .parquet" in message


def test_a_failure_on_the_way_leaves_no_scores(run, monkeypatch):
    monkeypatch.setattr(_row_files, "ROWS", 7)
    rows = X.copy()
    rows[40, 2] = np.nan
    Subspace.from_rows(X).save("model.fed")
    as_csv("rows.csv", rows)
    for kind in ("csv", "npy"):
        message = refused(run, "transform", "model.fed", "rows.csv", "-o", f"out.{kind}")
        assert "rows.csv: column 'weight' has no value in row 41" in message


# ------------------------------------------------------------------------------ attacks


def csv_of(text):
    def write(path):
        with open(path, "wb") as stream:
            stream.write(text if isinstance(text, bytes) else text.encode())

    return write


HOSTILE_TEXT = {
    "empty": (b"", "first line must hold the names"),
    "no names": (b"1,2\n3,4\n", "first line must hold the names of the columns, got numbers"),
    "names only": (b"a,b\n", "there is no row"),
    "text": (b"a,b\n1,2\n3,x\x1b[2Jy\n", r"column 'b' must hold numbers, got 'x\x1b[2Jy' in row 2"),
    "decimal comma": (b'a,b\n1,"2,5"\n', "column 'b' must hold numbers, got '2,5' in row 1"),
    "a gap": (b"a,b\n1,2\n1,NA\n", "column 'b' has no value in row 2"),
    "infinite": (b"a,b\n1,2\n1,-inf\n", "column 'b' is infinite in row 2"),
    "overflow": (b"a,b\n1,2\n1,1e999\n", "column 'b' is infinite in row 2"),
    "short row": (b"a,b\n1,2\n1\n", "row 2 has 1 cells, expected 2"),
    "long row": (b"a,b\n1,2\n1,2,3\n", "row 2 has 3 cells, expected 2"),
    "twice": (b"a,a\n1,2\n", "columns must differ in their names, got 'a' twice"),
    "twice when composed": ("é,e\u0301\n1,2\n".encode(), "got 'é' twice"),
    "a terminal's orders": (b"a\x1b[2J,b\n1,2\n", "feature_names must be valid text"),
    "bidi": ("a\u202eb,c\n1,2\n".encode(), "feature_names must be valid text"),
    "a long name": (b"a" * 600 + b",b\n1,2\n", "at most 500 bytes"),
    "no text": (b"a,b\n\xff\xfe,1\n", "it is no text in UTF-8"),
    "open quote": (b'a,b\n"1,2\n' + b"3,4\n" * 40_000, "it is no csv: field larger"),
    "nul": (b"a,b\n1,\x002\n", "rows.csv"),
    "zip": (b"PK\x03\x04\n1,2,3\n", "rows.csv"),
}


@pytest.mark.parametrize("what", HOSTILE_TEXT)
def test_hostile_text_is_refused(what, run):
    data, message = HOSTILE_TEXT[what]
    csv_of(data)("rows.csv")
    assert message in refused(run, "fit", "rows.csv", "-o", "x.fed")


def test_a_line_without_end_is_not_read(run, monkeypatch):
    monkeypatch.setattr(_row_files, "_LINE", 1000)
    csv_of(b"a," * 1000 + b"b\n" + b"1," * 1000 + b"1\n")("rows.csv")
    assert "has a line of 1000 characters or more" in refused(run, "fit", "rows.csv", "-o", "x.fed")


def npy(header, data=b"", version=b"\x01\x00"):
    head = header.encode()
    return b"\x93NUMPY" + version + len(head).to_bytes(2, "little") + head + data


HOSTILE_ARRAYS = {
    "a huge header": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2, " + "1" * 20_000),
    "a huge shape": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999, 9999), }"),
    "an overflow": npy(
        "{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 8), }"
    ),
    "negative": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, 2), }", bytes(64)),
    "one axis": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (8,), }", bytes(64)),
    "objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1, 1), }", b"\x80\x04."),
    "text": npy("{'descr': '<U4', 'fortran_order': False, 'shape': (2, 2), }", bytes(64)),
    "complex": npy("{'descr': '<c16', 'fortran_order': False, 'shape': (2, 2), }", bytes(64)),
    "cut": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (4, 2), }", bytes(60)),
    "no end": npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2, ("),
    "zip": b"PK\x03\x04" + bytes(60),
    "code": npy("__import__('os').abort()"),
    "nothing": b"",
    "junk": b"\x93NUMPY" + bytes(9),
    "a pickle": b"\x80\x04K\x01.",
}


@pytest.mark.parametrize("what", HOSTILE_ARRAYS)
def test_hostile_arrays_are_refused(what, run):
    csv_of(HOSTILE_ARRAYS[what])("rows.npy")
    assert "rows.npy: " in refused(run, "fit", "rows.npy", "-o", "x.fed")


def test_arrays_in_an_archive_are_refused(run):
    np.savez("rows.npz", X)
    os.rename("rows.npz", "rows.npy")
    assert "it is not a .npy file" in refused(run, "fit", "rows.npy", "-o", "x.fed")
    header = str({"descr": "<f8", "fortran_order": False, "shape": (3, 2)}).ljust(20_000)
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
    with open("rows.npy", "wb") as file:
        file.write(start + header.encode() + bytes(48))
    message = refused(run, "fit", "rows.npy", "-o", "x.fed")
    assert "allow_pickle" not in message  # which would run what is in the file
    np.save("a.npy", X)
    message = refused(run, "fit", "a.npy", "-o", "x.fed", "--columns", "age")
    assert "has no names of columns" in message


def test_hostile_parquet_is_refused(run):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    as_parquet("good.parquet")
    with open("good.parquet", "rb") as stream:
        data = stream.read()
    for damaged in (
        b"",
        b"PAR1" + bytes(40) + b"PAR1",
        data[:-200],
        data[:-6] + b"\xff\xff" + data[-4:],
    ):
        csv_of(damaged)("rows.parquet")
        assert "rows.parquet: it is no parquet file" in refused(
            run, "fit", "rows.parquet", "-o", "x"
        )
    page = bytearray(data)
    page[30:400] = os.urandom(370)
    csv_of(bytes(page))("rows.parquet")
    refused(run, "fit", "rows.parquet", "-o", "x")
    columns = {"age": [1.0, 2.0], "name": ["a", "b"], "day": [0, 1]}
    table = pa.table({**columns, "day": pa.array([0, 1], pa.timestamp("s")), "l": [[1.0], [2.0]]})
    parquet.write_table(table, "rows.parquet")
    message = refused(run, "fit", "rows.parquet", "-o", "x")
    assert "columns must hold numbers, but 'name', 'day', 'l' hold" in message
    assert "'name' holds string" in refused(
        run, "fit", "rows.parquet", "-o", "x", "--columns", "age,name"
    )
    options = "--columns", "age", "--min-rows", "2"
    assert run("fit", "rows.parquet", "-o", "x", *options)[0] == 0
    parquet.write_table(pa.table({"a": [1, None, 3], "b": [1.0, 2.0, float("nan")]}), "gap.parquet")
    assert "column 'a' has no value in row 2" in refused(run, "fit", "gap.parquet", "-o", "y")


def test_hostile_h5ad_is_refused(run):
    h5py = pytest.importorskip("h5py")
    cases = {
        "X must be dense or stored by rows": lambda f: f["X"].attrs.update(
            {"encoding-type": "csc_matrix"}
        ),
        "entry is in no column": lambda f: f["X/indices"].__setitem__(0, 99),
        "rows have no beginnings": lambda f: f["X/indptr"].__setitem__(3, 99),
        "it must hold 'X' itself": lambda f: (
            f.pop("X"),
            f.__setitem__("X", h5py.ExternalLink("other.h5", "/X")),
        ),
        "must hold 'data' itself, got NoneType": lambda f: f["X"].pop("data"),
        "shape of X must be two integers of at least 0, got None": lambda f: f["X"].attrs.pop(
            "shape"
        ),
        "no .h5ad file": lambda f: (f["X"].pop("data"), f.create_group("X/data")),
        "4 columns, but 0 have names": lambda f: (f["var"].pop("gene"), f.create_group("var/gene")),
        "must hold 'var' itself": lambda f: (
            f.pop("var"),
            f.__setitem__("var", h5py.SoftLink("/X")),
        ),
        "4 columns, but 3 have names": lambda f: (
            f["var"].pop("gene"),
            f["var"].__setitem__("gene", np.array(["a", "b", "c"], h5py.string_dtype())),
        ),
        "other entries than": lambda f: (
            [f["X"].pop(p) for p in ("data", "indices", "indptr")],
            f["X"].__setitem__("data", np.ones(999)),
            f["X"].__setitem__("indices", np.zeros(999, int)),
            f["X"].__setitem__("indptr", np.linspace(0, 999, 51).astype(int)),
        ),
    }
    for message, spoil in cases.items():
        as_h5ad("rows.h5ad", sp.csr_matrix(X))
        with h5py.File("rows.h5ad", "a") as file:
            spoil(file)
        assert message in refused(run, "fit", "rows.h5ad", "-o", "x.fed")
    csv_of(b"\x89HDF\r\n\x1a\n" + bytes(50))("rows.h5ad")
    assert "it is no HDF5 file" in refused(run, "fit", "rows.h5ad", "-o", "x.fed")
    as_h5ad("rows.h5ad", np.array([["a"]], dtype="S1"))
    assert "X must be a 2-D array of numbers" in refused(run, "fit", "rows.h5ad", "-o", "x.fed")


# ------------------------------------------------------------------------------ announced sizes


def h5ad_of(write):
    """A file of the given X, which announces what is never written."""

    def written(path):
        with pytest.importorskip("h5py").File(path, "w") as file:
            write(file)

    return written


def csr(shape, n_rows=50, n_entries=0, **options):
    """CSR of rows without entries, of which nothing is written."""

    def write(file):
        X = file.create_group("X")
        X.attrs.update({"encoding-type": "csr_matrix", "shape": shape})
        X.create_dataset("data", (n_entries,), "f4", **options)
        X.create_dataset("indices", (n_entries,), "i4", **options)
        X.create_dataset("indptr", (n_rows + 1,), "i8", **options)

    return h5ad_of(write)


def dense(*shape, **options):
    return h5ad_of(lambda file: file.create_dataset("X", shape, "f8", **options))


def repeated_name(path):
    """A thousand names which are the same long one, stored once."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file["X"] = np.ones((3, 1000))
        var = file.create_group("var")
        var.attrs["_index"] = "gene"
        names = var.create_dataset("gene", (1000,), h5py.string_dtype(), fillvalue="a" * 9000)
        assert names[999] == b"a" * 9000


BOMBS = {
    "dense": (dense(10**9, 10**9), "announces 1,000,000,000 columns, at most 1,048,576", "columns"),
    "wide": (dense(2, 10**9), "announces 1,000,000,000 columns", "columns"),
    "long": (dense(10**9, 4), "announces 1,000,000,000 rows of 4 columns", "ratio"),
    "one huge chunk": (
        dense(10, 4, maxshape=(None, 4), chunks=(2**26, 4), compression="gzip"),
        "which take 2.15e+09 bytes",
        "ratio",
    ),
    "sparse and wide": (csr((50, 2**31)), "announces 2,147,483,648 columns", "columns"),
    "sparse and long": (csr((10**9, 4), 10**9), "announces 1,000,000,000 rows", "ratio"),
    "sparse and large": (csr((10**5, 10**6), 10**5), "1,000,000 columns, which take", "ratio"),
    "many entries": (csr((50, 4), n_entries=10**9), "which take 1.6e+10 bytes", "ratio"),
}


@pytest.mark.parametrize("what", BOMBS)
def test_a_small_file_that_announces_much_is_refused(what, run):
    write, message, option = BOMBS[what]
    write("rows.h5ad")
    assert os.stat("rows.h5ad").st_size < 10_000
    error = refused(run, "fit", "rows.h5ad", "-o", "x.fed")
    assert "error: rows.h5ad: " in error
    assert message in error
    assert f"--max-{option} raises the limit" in error


SHAPES = {
    "no integer": (csr((5.5, 4)), "shape of X must be two integers of at least 0, got [5.5, 4.0]"),
    "negative": (csr((-50, 4)), "two integers of at least 0, got [-50, 4]"),
    "one": (csr((50,)), "two integers of at least 0, got [50]"),
    "text": (csr("50, 4"), "two integers of at least 0, got 50, 4"),
    "many": (csr(np.full(3000, 4)), "attribute 'shape' must hold one value, or two"),
    "less": (csr((5, 4)), "X announces 5 rows, but indptr is of 50"),
    "more": (csr((51, 4)), "X announces 51 rows, but indptr is of 50"),
    "long names": (repeated_name, "a name of a column has 9,000 characters"),
}


@pytest.mark.parametrize("what", SHAPES)
def test_shapes_and_names_that_cannot_be_are_refused(what, run):
    write, message = SHAPES[what]
    write("rows.h5ad")
    assert message in refused(run, "fit", "rows.h5ad", "-o", "x.fed")


def test_a_data_set_that_is_packed_twice_is_refused(run):
    h5py = pytest.importorskip("h5py")
    with h5py.File("rows.h5ad", "w") as file:
        stored = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        stored.set_chunk((10, 4))
        stored.set_deflate(9)
        stored.set_deflate(9)
        space = h5py.h5s.create_simple((50, 4))
        h5py.h5d.create(file.id, b"X", h5py.h5t.IEEE_F64LE, space, stored)
    assert "X is packed twice by the same filter" in refused(run, "fit", "rows.h5ad", "-o", "x.fed")


def test_a_file_from_which_hdf5_never_returns_is_refused(run, monkeypatch):
    as_h5ad("rows.h5ad", sp.csr_matrix(X))
    with open("rows.h5ad", "rb") as stream:
        data = bytearray(stream.read())
    size = data.index(b"GCOL") + 24  # of the first text of a heap: with its header, 2^64
    data[size : size + 8] = (2**64 - 16).to_bytes(8, "little")
    csv_of(bytes(data))("rows.h5ad")
    monkeypatch.setattr(_h5ad, "_SECONDS", 3)
    assert "rows.h5ad: it is " in refused(run, "fit", "rows.h5ad", "-o", "x.fed")


def test_limits_are_raised_and_lowered(run):
    dense(10**5, 100)("rows.h5ad")
    message = refused(run, "fit", "rows.h5ad", "-o", "x.fed")
    assert "announces 100,000 rows of 100 columns, which take 8e+07 bytes" in message
    assert "at most 1000 times are read" in message
    options = ["--max-ratio", "1e9", "--columns", "1,2", "-n", "1"]
    with pytest.importorskip("h5py").File("rows.h5ad", "a") as file:
        var = file.create_group("var")
        var["_index"] = np.array([str(i) for i in range(100)], "S3")
    assert run("fit", "rows.h5ad", "-o", "x.fed", *options)[0] == 0
    assert Subspace.load("x.fed").n_samples == 10**5
    for kind in WRITERS:
        WRITERS[kind](f"few.{kind}")
        message = refused(run, "fit", f"few.{kind}", "-o", "y.fed", "--max-columns", "3")
        assert f"few.{kind}: it announces 4 columns, at most 3 are read; --max-columns" in message
    for wrong in (["--max-columns", "0"], ["--max-ratio", "nan"], ["--max-columns", "many"]):
        with pytest.raises(SystemExit, match="2"):
            run("fit", "few.csv", "-o", "y.fed", *wrong)


def test_parquet_of_few_bytes_and_many_rows_is_refused(run):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"a": np.zeros(10**7), "b": np.zeros(10**7)})
    parquet.write_table(table, "rows.parquet", data_page_size=2**26)
    message = refused(run, "fit", "rows.parquet", "-o", "x.fed")
    assert "rows.parquet: it announces 10,000,000 rows of 2 columns, which take 1.6e+08" in message
    assert "--max-ratio raises the limit" in message


@pytest.mark.parametrize("shape", ["(10**12, 0)", "(0, 10**12)", "(2, 10**12)", "(10**12, 2)"])
def test_arrays_that_announce_much_are_refused(shape, run):
    sizes = eval(shape)
    csv_of(npy(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {sizes}, }}"))("rows.npy")
    message = refused(run, "fit", "rows.npy", "-o", "x.fed")
    if sizes[0] and sizes[1]:
        assert f"it announces {sizes[0]} rows of {sizes[1]} columns of 8 bytes, but hol" in message
    else:
        assert ("it has no columns" if sizes[0] else "--max-columns") in message


def test_lines_of_many_columns_are_refused(run):
    csv_of(b"a," * 2**20 + b",\n1,2\n")("rows.csv")
    assert "line of 1,048,577 separators, at most 1,048,576 columns" in refused(
        run, "fit", "rows.csv", "-o", "x.fed"
    )


def test_a_row_of_lines_without_end_is_not_read(run, monkeypatch):
    monkeypatch.setattr(_row_files, "_LINE", 1000)
    csv_of(b"a,b\n" + b'"1\n",' * 1000)("rows.csv")
    assert "has a line of 1000 characters or more" in refused(run, "fit", "rows.csv", "-o", "x.fed")


def test_batches_of_long_texts_are_short(run, monkeypatch):
    monkeypatch.setattr(_row_files, "_TEXT", 1000)
    with open("rows.csv", "w") as stream:
        stream.write("age,height,weight,pulse,note\n")
        stream.writelines(",".join(map(str, row)) + f",{'a' * 200}\n" for row in X.tolist())
    sizes = []
    original = StreamingPCA.partial_fit
    monkeypatch.setattr(
        StreamingPCA,
        "partial_fit",
        lambda self, rows: (sizes.append(len(rows)), original(self, rows))[1],
    )
    assert run("fit", "rows.csv", "-o", "x.fed", "--without", "note")[0] == 0
    assert max(sizes) <= 5
    assert_is_of(Subspace.load("x.fed"), X)


# ------------------------------------------------------------------------------ numbers of csv


def with_comma(separator):
    lines = [separator.join(NAMES)]
    lines += [separator.join(repr(x).replace(".", ",") for x in row) for row in X.tolist()]
    return "\n".join(lines).encode()


def test_decimal_commas(run):
    csv_of(with_comma(";"))("rows.csv")
    message = refused(run, "fit", "rows.csv", "-o", "x.fed")
    assert "first line holds one name, 'age;height;weight;pulse', if ',' separates" in message
    assert "see --separator; --decimal , reads numbers with a decimal comma" in message
    message = refused(run, "fit", "rows.csv", "-o", "x.fed", "--separator", ";")
    assert "column 'age' must hold numbers, got '50,50292088437357'" in message
    assert "in row 1 (line 2; --decimal , reads" in message
    assert run("fit", "rows.csv", "-o", "x.fed", "--decimal", ",")[0] == 0
    assert_is_of(Subspace.load("x.fed"), X)
    csv_of(with_comma("\t"))("rows.tsv")
    assert run("fit", "rows.tsv", "-o", "y.fed", "--decimal", ",")[0] == 0
    assert_is_of(Subspace.load("y.fed"), X)
    quoted = with_comma(";").replace(b";", b'","').replace(b"\n", b'"\n"')
    csv_of(b'"' + quoted + b'"')("quoted.csv")
    options = ["--decimal", ",", "--separator", ","]
    assert run("fit", "quoted.csv", "-o", "z.fed", *options)[0] == 0
    assert_is_of(Subspace.load("z.fed"), X)


@pytest.mark.parametrize(
    "cell", ["1.5", "1.234,5", "1,5,2", "1 234,5", "1\u00a0234,5", "1_0,5", "\u0661,5", "1,", "x"]
)
def test_a_decimal_comma_is_all_that_is_new(cell, run):
    csv_of(f"a;b\n1,5;2\n;3\n1;{cell}\n".encode())("rows.csv")
    options = ["--decimal", ",", "--drop-missing", "--min-rows", "2"]
    if cell == "1,":  # as float has it
        assert run("fit", "rows.csv", "-o", "x.fed", *options)[0] == 0
        assert_array_equal(Subspace.load("x.fed").mean, [1.25, 1.5])
        return
    message = refused(run, "fit", "rows.csv", "-o", "x.fed", *options)
    assert "column 'b' must hold numbers, got " in message
    assert "in row 3 (line 4)" in message


# Fewer rows than a site tells of by default.
FEW = ("--min-rows", "2")


@pytest.mark.parametrize(
    "cell", ["1_000", "1_0.5e1_0", "\u0661\u0662", "\uff11", "1e\u0663", "\u09e7.5"]
)
def test_numbers_of_other_kinds_are_refused(cell, run):
    csv_of(f"a_b,größe\n1,2\n\n1,{cell}\n".encode())("rows.csv")
    message = refused(run, "fit", "rows.csv", "-o", "x.fed")
    assert "rows.csv: column 'größe' must hold numbers, got " in message
    assert "in row 2 (line 4)" in message
    assert float(cell) > 0  # of Python


@pytest.mark.parametrize("cell", [" 1.5 ", "+.5", "5.", "1E+3", "-0", "1e-400", "\t7", "\u00a07"])
def test_numbers_of_usual_kinds_are_read(cell, run):
    for text in (f"a,b\n1,{cell}\n1,1\n", f"a,b\n1,{cell}\nNA,3\n1,1\n"):
        csv_of(text.encode())("rows.csv")
        assert run("fit", "rows.csv", "-o", "x.fed", *FEW, "--drop-missing", "--force")[0] == 0
        assert_allclose(Subspace.load("x.fed").mean, [1, (float(cell) + 1) / 2])


def test_a_long_cell_of_digits_is_soon_refused(run):
    csv_of(b"a,b\n1," + b"1" * 100_000 + b"x\n")("rows.csv")
    assert "column 'b' must hold numbers" in refused(run, "fit", "rows.csv", "-o", "x.fed")


def test_hints_name_the_options_that_help(run):
    csv_of(b"a,b\n1,2\n1,\n")("rows.csv")
    message = refused(run, "fit", "rows.csv", "-o", "x.fed")
    assert "--drop-missing leaves such rows out, fedpca ask with missing=" in message
    csv_of(b"a;b\n1;2\n")("rows.csv")
    assert "see --separator" in refused(run, "fit", "rows.csv", "-o", "x.fed", "--columns", "a")
    csv_of(b"a;b\n1,5\n")("rows.csv")
    message = refused(run, "fit", "rows.csv", "-o", "x.fed", "--separator", ",")
    assert "row 1 has 2 cells, expected 1 as in the first line (line 2; one column, if" in message
    csv_of(b"a;b\n1\n2\n4\n")("rows.csv")
    assert run("fit", "rows.csv", "-o", "x.fed", *FEW, "--separator", ",")[0] == 0
    assert Subspace.load("x.fed").feature_names == ("a;b",)


def test_what_is_no_file_is_refused(run):
    os.mkdir("folder.csv")
    os.mkfifo("pipe.csv")
    for path in ("folder.csv", "pipe.csv"):
        assert "must be a regular file" in refused(run, "fit", path, "-o", "x.fed")
    assert "No such file" in refused(run, "fit", "none.csv", "-o", "x.fed")
    assert "must end in one of .csv" in refused(run, "fit", "rows.xlsx", "-o", "x.fed")


def test_rows_with_gaps_are_left_out_when_that_is_asked_for(run):
    rows = X.copy()
    rows[[3, 40], [1, 2]] = np.nan
    kept = np.isfinite(rows).all(axis=1)
    for kind in ("csv", "parquet", "npy"):
        WRITERS[kind](f"rows.{kind}", rows)
        assert "--drop-missing" in refused(run, "fit", f"rows.{kind}", "-o", "x.fed")
        code, out, _ = run("fit", f"rows.{kind}", "-o", f"{kind}.fed", "--drop-missing")
        assert code == 0
        assert "left out   2 rows with gaps" in out
        assert_is_of(Subspace.load(f"{kind}.fed"), X[kept])
    rows[0, 0] = np.inf
    as_csv("rows.csv", rows)
    assert "is infinite" in refused(run, "fit", "rows.csv", "-o", "x.fed", "--drop-missing")


def test_columns_that_are_not_there_are_named(run):
    as_csv("rows.csv")
    for option in ("--columns", "--without"):
        message = refused(run, "fit", "rows.csv", "-o", "x.fed", option, "age,size,\x1b[2J")
        assert r"rows.csv: it has no column 'size', '\x1b[2J'" in message
    as_csv("other.csv", X[:, :3], NAMES[:3])
    message = refused(run, "fit", "rows.csv", "other.csv", "-o", "x.fed")
    assert "other.csv: it has no column 'pulse'; it has 'age', 'height', 'weight'" in message
    assert "no column is left" in refused(
        run, "fit", "rows.csv", "-o", "x.fed", "--without", ",".join(NAMES)
    )


def test_the_columns_of_a_summary_without_names_are_not_taken(run):
    as_csv("rows.csv")
    Subspace.from_rows(X[:, :2]).save("two.fed")
    message = refused(run, "fit", "rows.csv", "-o", "x.fed", "--like", "two.fed")
    assert "two.fed: it has no names of columns" in message


def test_a_name_of_a_site_that_no_terminal_should_see(run):
    as_csv("rows.csv")
    assert "--site must be valid text" in refused(
        run, "fit", "rows.csv", "-o", "x.fed", "--site", "n\x1b[2J"
    )


# ------------------------------------------------------------------------------ what is written


def test_no_file_is_written_over(run):
    as_csv("rows.csv")
    os.link("rows.csv", "same.csv")
    assert "is one of the files to read" in refused(
        run, "fit", "rows.csv", "-o", "same.csv", "--force"
    )
    assert run("fit", "rows.csv", "-o", "x.fed")[0] == 0
    assert "x.fed exists; --force replaces it" in refused(run, "fit", "rows.csv", "-o", "x.fed")
    assert run("fit", "rows.csv", "-o", "x.fed", "--force", "-n", "1")[0] == 0
    assert Subspace.load("x.fed").n_components == 4  # with those that keep it exact
    os.mkdir("folder")
    assert "no regular file" in refused(run, "fit", "rows.csv", "-o", "folder", "--force")
    assert "there is no folder none" in refused(run, "fit", "rows.csv", "-o", "none/x.fed")
    os.symlink("nowhere", "link.fed")
    assert "link.fed exists" in refused(run, "fit", "rows.csv", "-o", "link.fed")


def test_others_cannot_have_the_place_of_what_is_being_written(run, monkeypatch):
    as_csv("rows.csv")
    monkeypatch.setattr(files.secrets, "token_hex", lambda n: "guessed")
    os.symlink("rows.csv", ".x.fed.guessed.part")
    assert "File exists" in refused(run, "fit", "rows.csv", "-o", "x.fed")


# ------------------------------------------------------------------------------ while it works


class Bar:
    def __init__(self):
        self.rows = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.closed = True

    def update(self, n):
        self.rows += n


def test_a_bar_is_drawn_on_a_terminal_only(run, monkeypatch):
    as_csv("rows.csv")
    tqdm = pytest.importorskip("tqdm")
    bar, asked = Bar(), []
    monkeypatch.setattr(tqdm, "tqdm", lambda **about: (asked.append(about), bar)[1])
    run("fit", "rows.csv", "-o", "x.fed")
    assert not asked
    monkeypatch.setattr(_progress, "on_terminal", lambda: True)
    run("fit", "rows.csv", "-o", "x.fed", "--force")
    assert bar.rows == 50
    assert bar.closed
    assert asked[0]["desc"] == "rows.csv"
    monkeypatch.setitem(sys.modules, "tqdm", None)
    assert run("fit", "rows.csv", "-o", "x.fed", "--force")[0] == 0


def test_a_format_whose_library_is_not_there_says_what_to_install(run, monkeypatch):
    for module, kind in (("pyarrow", "parquet"), ("h5py", "h5ad")):
        csv_of(b"")(f"rows.{kind}")
        monkeypatch.setitem(sys.modules, module, None)
        message = refused(run, "fit", f"rows.{kind}", "-o", "x.fed")
        assert f"need {module}: pip install 'fedpca-sklearn[{kind}]'" in message


def test_few_rows_of_a_file_are_in_memory(run, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr(_row_files, "ROWS", 500)
    rows = np.random.default_rng(0).standard_normal((20_000, 20))
    as_parquet("rows.parquet", rows, list(map(str, range(20))), row_group_size=500)
    before, most = pa.total_allocated_bytes(), []
    original = StreamingPCA.partial_fit

    def watched(self, batch):
        most.append(pa.total_allocated_bytes() - before)
        assert len(batch) <= 500
        return original(self, batch)

    monkeypatch.setattr(StreamingPCA, "partial_fit", watched)
    assert run("fit", "rows.parquet", "-o", "x.fed")[0] == 0
    assert len(most) >= 40
    assert max(most) < rows.nbytes / 4
    assert_array_equal(Subspace.load("x.fed").n_samples, 20_000)
