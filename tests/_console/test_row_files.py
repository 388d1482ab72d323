"""Files of rows from anybody: what is read, in which columns, and what is refused.

The oracle is numpy's singular value decomposition of the rows that were written.
"""

import os
import sys
from decimal import Decimal
from unittest.mock import MagicMock

import numpy as np
import pytest
import scipy.sparse as sp
from console_helpers import (
    NAMES,
    WRITERS,
    X,
    as_bytes,
    as_csv,
    as_h5ad,
    as_parquet,
    assert_is_of,
    fitted,
    printed,
    refused,
    run,
)
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import StreamingPCA, Subspace
from fedpca_sklearn._console import _row_files
from fedpca_sklearn._validation import files

__all__ = ["run"]
# Fewer rows than a site tells of by default.
FEW = ("--min-rows", "2")


def reordered(kind, path, rows, order):
    WRITERS[kind](path, rows[:, order], [NAMES[j] for j in order])


# ------------------------------------------------------------------------------ what is read


@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_is_fitted_in_batches(kind, run, monkeypatch):
    monkeypatch.setattr(_row_files, "ROWS", 7)
    WRITERS[kind](f"rows.{kind}")
    out = printed(run, "fit", f"rows.{kind}", "-o", "north.fed", "--site", "north")
    assert "site       north\n  rows       50\n" in out
    summary = Subspace.load("north.fed")
    assert_is_of(summary, X)
    assert summary.feature_names == (None if kind == "npy" else tuple(NAMES))


@pytest.mark.parametrize("kind", ["csv", "parquet", "h5ad"])
def test_columns_are_matched_by_name(kind, run):
    rows, held = X, np.asarray
    if kind == "h5ad":  # cells
        rows, held = X * (np.random.default_rng(1).random(X.shape) < 0.3), sp.csr_matrix
    WRITERS[kind](f"a.{kind}", held(rows[:30]))
    reordered(kind, f"b.{kind}", held(rows[30:]), [2, 0, 3, 1])
    assert_is_of(fitted(run, f"a.{kind}", f"b.{kind}"), rows)
    two = fitted(run, f"a.{kind}", f"b.{kind}", "--columns", "pulse,age")
    assert_is_of(two, rows[:, [3, 0]])
    assert two.feature_names == ("pulse", "age")
    two.save("two.fed")
    assert_is_of(fitted(run, f"b.{kind}", "--like", "two.fed"), rows[30:, [3, 0]])
    less = fitted(run, f"b.{kind}", "--without", "weight,height")
    assert less.feature_names == ("age", "pulse")


def with_comma(separator, quote=""):
    rows = [NAMES, *[[repr(x).replace(".", ",") for x in row] for row in X.tolist()]]
    return "\n".join(separator.join(f"{quote}{x}{quote}" for x in row) for row in rows)


@pytest.mark.parametrize(
    ("file", "content", "options"),
    [
        ("rows.csv", with_comma(";").replace(",", "."), "--separator=;"),
        ("rows.csv", with_comma(";"), "--decimal=,"),
        ("rows.tsv", with_comma("\t"), "--decimal=,"),
        ("rows.csv", with_comma(",", '"'), "--decimal=, --separator=,"),
    ],
)
def test_csv_of_other_places(file, content, options, run):
    as_bytes(file, content)
    assert_is_of(fitted(run, file, *options.split()), X)


def test_names_of_columns_are_quoted_and_a_mark_of_bytes_is_left_out(run):
    as_csv("b.csv", names=["größe", 'a, "b"', " c", "d"], separator="\t")
    with open("b.csv", "rb") as stream:
        as_bytes("b.tsv", b"\xef\xbb\xbf" + stream.read() + b"\r\n\r\n")
    found = fitted(run, "b.tsv", "--columns", '"a, ""b""",größe')
    assert found.feature_names == ('a, "b"', "größe")
    assert_is_of(found, X[:, [1, 0]])


@pytest.mark.parametrize(
    "cell", [" 1.5 ", "+.5", "5.", "1E+3", "-0", "1e-400", "\t7", "\u00a07", "1,"]
)
def test_numbers_of_usual_kinds_are_read(cell, run):
    separator, options = (";", ["--decimal", ","]) if cell == "1," else (",", [])
    for text in ("a,b\n1,CELL\n1,1\n", "a,b\n1,CELL\nNA,3\n1,1\n"):
        as_bytes("rows.csv", text.replace(",", separator).replace("CELL", cell))
        found = fitted(run, "rows.csv", *FEW, "--drop-missing", *options)
        assert_allclose(found.mean, [1, (float(cell.replace(",", ".")) + 1) / 2])


def test_integers_single_precision_columns_first_and_names_with_dots(run):
    counts = np.round(X).astype(np.int32)
    np.save("rows.npy", np.asfortranarray(counts))
    assert_is_of(fitted(run, "rows.npy"), counts)
    as_parquet("rows.parquet", X.astype(np.float32))
    assert fitted(run, "rows.parquet", "-n", "2").components.dtype == np.float32
    as_parquet("rows.parquet", names=["age", "age.two", "c", "d"])
    assert_is_of(fitted(run, "rows.parquet", "--columns", "age,d"), X[:, [0, 3]])
    as_bytes("rows.csv", b"a;b\n1\n2\n4\n")
    assert fitted(run, "rows.csv", *FEW, "--separator", ",").feature_names == ("a;b",)


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
    message = refused(run, "fit", "rows.parquet", "-o", "x.fed")
    assert "column 'single' has no value in row 2" in message
    found = fitted(run, "rows.parquet", "--drop-missing", "--min-rows", "1")
    assert_array_equal(found.mean, [1, 1, 1.5, 1, 1.5])


def test_an_index_of_a_frame_is_no_column(run):
    pd, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = pd.DataFrame(X, columns=NAMES, index=np.arange(50) * 3)
    frame.to_parquet("rows.parquet")
    assert fitted(run, "rows.parquet").feature_names == tuple(NAMES)
    frame.to_csv("rows.csv")
    assert "column 1 has no name" in refused(run, "fit", "rows.csv", "-o", "x.fed")


@pytest.mark.parametrize("kind", ["csv", "parquet", "npy"])
def test_rows_with_gaps_are_left_out_when_that_is_asked_for(kind, run):
    rows = X.copy()
    rows[[3, 40], [1, 2]] = np.nan
    WRITERS[kind](f"rows.{kind}", rows)
    assert "--drop-missing" in refused(run, "fit", f"rows.{kind}", "-o", "x.fed")
    command = "fit", f"rows.{kind}", "--drop-missing", "-o"
    assert "left out   2 rows with gaps" in printed(run, *command, "x.fed")
    assert printed(run, *command, "y.fed", "--json")["left_out"] == 2
    assert_is_of(Subspace.load("x.fed"), X[np.isfinite(rows).all(axis=1)])


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
    reordered("csv", "rows.csv", X, [3, 1, 0, 2])
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    summary = Subspace.from_rows(X)
    summary._named(NAMES).save("model.fed")
    out = printed(run, "transform", "model.fed", "rows.csv", "-o", f"out.{kind}", "-n", "3")
    assert out == f"out.{kind}\n  rows       50\n  components 3\n"
    scores = (X - summary.mean) @ summary.components[:3].T
    assert_allclose(read_scores(f"out.{kind}"), scores, atol=1e-10)
    if kind == "csv":
        with open("out.csv") as stream:
            assert stream.readline() == "federatedpca0,federatedpca1,federatedpca2\n"


@pytest.mark.parametrize("kind", ["csv", "npy", "xls"])
def test_a_failure_on_the_way_leaves_no_scores(kind, run, monkeypatch):
    monkeypatch.setattr(_row_files, "ROWS", 7)
    rows = X.copy()
    rows[40, 2] = np.nan
    Subspace.from_rows(X).save("model.fed")
    as_csv("rows.csv", rows)
    message = refused(run, "transform", "model.fed", "rows.csv", "-o", f"out.{kind}")
    gap = "rows.csv: column 'weight' has no value in row 41"
    assert ("one of .csv, .npy, .parquet" if kind == "xls" else gap) in message


# ------------------------------------------------------------------------------ attacks


def npy(shape, descr="<f8", data=b"", more=""):
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}{more}".encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data


def h5ad_of(write):
    """A file of the given X, which announces what is never written."""

    def written(path):
        with pytest.importorskip("h5py").File(path, "w") as file:
            write(file)

    return written


def csr(shape, n_rows=50, n_entries=0):
    """CSR of rows without entries, of which nothing is written."""

    def write(file):
        X = file.create_group("X")
        X.attrs.update({"encoding-type": "csr_matrix", "shape": shape})
        X.create_dataset("data", (n_entries,), "f4")
        X.create_dataset("indices", (n_entries,), "i4")
        X.create_dataset("indptr", (n_rows + 1,), "i8")

    return h5ad_of(write)


def dense(*shape, **options):
    return h5ad_of(lambda file: file.create_dataset("X", shape, "f8", **options))


OTHERS = [("others.bin", 0, 288)]


def reference_to_another(file):
    """Rows that are those of another file on the machine."""
    h5py = pytest.importorskip("h5py")
    with h5py.File("others.h5", "w") as others:
        others["X"] = X
    layout = h5py.VirtualLayout(X.shape, "f8")
    layout[:] = h5py.VirtualSource("others.h5", "X", X.shape)
    file.create_virtual_dataset("X", layout)


def spoilt(change):
    """Cells of which a part is changed; h5py is handed over."""

    def write(path):
        h5py = pytest.importorskip("h5py")
        as_h5ad(path, sp.csr_matrix(X))
        with h5py.File(path, "a") as file:
            change(file, h5py)

    return write


def in_place(where, make):
    def change(file, h5py):
        del file[where]
        made = make(h5py)
        if made is dict:
            file.create_group(where)
        elif made is not None:
            file[where] = made

    return spoilt(change)


def other_entries(file, h5py):
    indptr = np.linspace(0, 999, 51).astype(int)
    for name, values in ("data", np.ones(999)), ("indices", np.zeros(999, int)), ("indptr", indptr):
        del file["X"][name]
        file["X"][name] = values


def damaged(change):
    """Parquet of which the bytes are changed."""

    def write(path):
        as_parquet(path)
        with open(path, "rb") as stream:
            data = stream.read()
        as_bytes(path, change(data))

    return write


def other_number(data):
    """Number of rows in the footer of Parquet: the field, 50 as a zigzag integer, the next one."""
    start, end = data.rsplit(b"\x16\x64\x19", 1)
    return start + b"\x16\x66\x19" + end


def table(**columns):
    def write(path):
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        columns.update({k: v(pa) for k, v in columns.items() if callable(v)})
        parquet.write_table(pa.table(columns), path, data_page_size=2**26)

    return write


def days(pa):
    return pa.array([0, 1], pa.timestamp("s"))


LONG = "has a line of 1000 characters or more"
OVERWIDE = (
    "announces 1,000,000,000 columns, at most 1,048,576 are read; --max-columns raises the limit"
)
RATIO = "--max-ratio raises the limit"
# Words of the error: bytes of .csv files, that of the last one with options
TEXT = {
    "first line must hold the names": [b""],
    "first line must hold the names of the columns, got numbers": [b"1,2\n3,4\n"],
    "there is no row": [b"a,b\n"],
    r"column 'b' must hold numbers, got 'x\x1b[2Jy' in row 2": [b"a,b\n1,2\n3,x\x1b[2Jy\n"],
    "--drop-missing leaves such rows out, fedpca ask with missing=": [b"a,b\n1,\n"],
    "column 'b' is infinite in row 2": [
        *(b"a,b\n1,2\n1,1e999\n", b"a,b\n1,2\n1,-inf\n"),
        "--drop-missing",
    ],
    "row 2 has 1 cells, expected 2": [b"a,b\n1,2\n1\n"],
    "columns must differ in their names, got 'a' twice": [b"a,a\n1,2\n"],
    "got 'é' twice": ["é,e\u0301\n1,2\n".encode()],
    # a terminal's orders
    "feature_names must be valid text": [b"a\x1b[2J,b\n1,2\n", "a\u202eb,c\n1,2\n".encode()],
    "at most 500 bytes": [b"a" * 600 + b",b\n1,2\n"],
    "it is no text in UTF-8": [b"a,b\n\xff\xfe,1\n"],
    "it is no csv: field larger": [b'a,b\n"1,2\n' + b"3,4\n" * 40_000],
    "rows.csv": [b"a,b\n1,\x002\n", b"PK\x03\x04\n1,2,3\n"],
    LONG: [b"a," * 1000 + b"b\n" + b"1," * 1000 + b"1\n", b"a,b\n" + b'"1\n",' * 1000],
    "column 'b' must hold numbers": [b"a,b\n1," + b"1" * 900 + b"x\n"],
    "expected 1 as in the first line (line 2; --separator and": [with_comma(";").encode()],
    "(line 2; --separator and --decimal say": [with_comma(";").encode(), "--separator", ";"],
    "it has no column 'a'; it has 'a;b'": [b"a;b\n1;2\n", "--columns", "a"],
    "--separator": [b"a;b\n1;2\n", "--separator", "tab"],
    "column 'b' must hold numbers, got | in row 3 (line 4;": [
        b"a;b\n1,5;2\n;3\n1;1 234,5\n",
        *(
            f"a;b\n1;2\n2;3\n1;{cell}\n".encode()
            for cell in ("1.5", "1.234,5", "1,5,2", "1\u00a01,5", "1_0,5", "\u0661,5", "x")
        ),
        *("--decimal", ",", "--drop-missing", "--min-rows", "2"),
    ],
    "rows.csv: column 'größe' must hold numbers, got | in row 2 (line 4;": [
        f"a_b,größe\n1,2\n\n1,{cell}\n".encode()  # numbers of Python
        for cell in ("1_000", "1_0.5e1_0", "\u0661\u0662", "\uff11", "1e\u0663", "\u09e7.5")
    ],
}
ARRAYS = {  # of .npy files
    "": [
        *(npy("(2, " + "1" * 20_000), npy("(3, 2)", data=bytes(48), more=" " * 20_000)),
        *(npy("(4611686018427387904, 8)"), npy("(-1, 2)", data=bytes(64))),
        *(npy("(8,)", data=bytes(64)), npy("(1, 1)", "|O", b"\x80\x04.")),
        *(npy("(2, 2)", "<U4", bytes(64)), npy("(2, 2)", "<c16", bytes(64))),
        *(npy("(4, 2)", data=bytes(60)), npy("(2, ("), b"", b"\x93NUMPY" + bytes(9)),
        *(b"\x93NUMPY\x01\x00\x18\x00__import__('os').abort()", b"\x80\x04K\x01."),
    ],
    "it is not a .npy file": [b"PK\x03\x04" + bytes(60)],
    "has no names of columns": [npy("(4, 2)", data=bytes(64)), "--columns", "age"],
    **{
        f"announces {n} rows of {d} columns of 8 bytes, but hol": [npy(f"({n}, {d})")]
        for n, d in ((10**12, 2), (99999999999, 9999), (2, 10**12))
    },
    "it has no columns": [npy(f"({10**12}, 0)")],
    "--max-columns": [npy(f"(0, {10**12})")],
}
PARQUET = {
    "rows.parquet: it is no .parquet file, or damaged": [
        *(b"", b"PAR1" + bytes(40) + b"PAR1", damaged(lambda data: data[:-200])),
        damaged(lambda data: data[:-6] + b"\xff\xff" + data[-4:]),
    ],
    "": [damaged(lambda data: data[:30] + os.urandom(370) + data[400:])],
    "it announces 51 rows, but holds 50": [damaged(other_number)],
    "columns must hold numbers, but 'name', 'day', 'l' hold": [
        table(age=[1.0, 2.0], name=["a", "b"], day=days, l=[[1.0], [2.0]])
    ],
    "'name' holds string": [table(age=[1.0, 2.0], name=["a", "b"]), "--columns", "age,name"],
    "column 'a' has no value in row 2": [table(a=[1, None, 3], b=[1.0, 2.0, np.nan])],
    f"rows.parquet: it announces 10,000,000 rows of 2 columns, which take 1.6e+08 | {RATIO}": [
        table(a=lambda pa: np.zeros(10**7), b=lambda pa: np.zeros(10**7))
    ],
}
LETTER = np.array([["a"]], dtype="S1")
CELLS = {  # of .h5ad files
    "X must be dense or stored by rows": [
        spoilt(lambda f, h: f["X"].attrs.update({"encoding-type": "csc_matrix"}))
    ],
    "must be < 4": [spoilt(lambda f, h: f["X/indices"].__setitem__(0, 99))],
    "rows have no beginnings": [
        in_place("X/data", lambda h: np.ones(7)),
        spoilt(other_entries),
    ],
    "non-decreasing sequence": [spoilt(lambda f, h: f["X/indptr"].__setitem__(3, 99))],
    "it must hold 'X' itself": [
        in_place("X", lambda h: h.SoftLink("/var")),
        h5ad_of(reference_to_another),
        h5ad_of(lambda file: file.create_dataset("X", (9, 4), "f8", external=OTHERS)),
    ],
    "it must hold 'data' itself": [in_place("X/data", lambda h: h.SoftLink("/X/indptr"))],
    "no .h5ad file, or damaged": [
        in_place("X", lambda h: h.ExternalLink("other.h5", "/X")),
        in_place("X/data", lambda h: None),
        in_place("X/data", lambda h: dict),
        spoilt(lambda f, h: f["X"].attrs.pop("shape")),
        b"\x89HDF\r\n\x1a\n" + bytes(50),
    ],
    "4 columns, but 0 have names": [in_place("var/gene", lambda h: dict)],
    "4 columns, but 3 have names": [
        in_place("var/gene", lambda h: np.array(["a", "b", "c"], h.string_dtype()))
    ],
    "X must be a 2-D array of numbers": [h5ad_of(lambda file: file.__setitem__("X", LETTER))],
    "X must be two integers of at least 0, got [5.5, 4.0]": [csr((5.5, 4))],
    "two integers of at least 0, got [-50, 4]": [csr((-50, 4))],
    "integers of at least 0, got [4, 4, 4": [csr(np.full(3000, 4))],
    "X announces 51 rows, but indptr is of 50": [csr((51, 4))],
    # small files that announce much
    OVERWIDE: [dense(10**9, 10**9), dense(2, 10**9)],
    f"announces 1,000,000,000 rows of 4 columns | {RATIO}": [dense(10**9, 4)],
    f"which take 2.15e+09 bytes | {RATIO}": [  # one huge chunk
        dense(10, 4, maxshape=(None, 4), chunks=(2**26, 4), compression="gzip")
    ],
    "announces 2,147,483,648 columns | --max-columns raises the limit": [csr((50, 2**31))],
    f"announces 1,000,000,000 rows | {RATIO}": [csr((10**9, 4), 10**9)],
    f"which take 1.6e+10 bytes | {RATIO}": [csr((50, 4), n_entries=10**9)],
}
HOSTILE = [
    pytest.param(f"rows.{kind}", case, words, id=words)
    for kind, cases in {"csv": TEXT, "npy": ARRAYS, "parquet": PARQUET, "h5ad": CELLS}.items()
    for words, case in cases.items()
]


@pytest.mark.parametrize(("file", "case", "words"), HOSTILE)
def test_hostile_files_are_refused(file, case, words, run, monkeypatch):
    for kind, package in {"parquet": "pyarrow", "h5ad": "h5py"}.items():
        if file.endswith(kind):
            pytest.importorskip(package)
    if words in (LONG, "column 'b' must hold numbers"):
        monkeypatch.setattr(_row_files, "_LINE", 1000)
    options = [one for one in case if isinstance(one, str)]
    for content in (one for one in case if not isinstance(one, str)):
        content(file) if callable(content) else as_bytes(file, content)
        message = refused(run, "fit", file, "-o", "x.fed", *options)
        assert f"error: {file}: " in message or file == "rows.csv"
        assert all(word in message for word in words.split(" | ")), (content, message)
        assert "allow_pickle" not in message  # which would run what is in the file


def test_lines_of_many_columns_are_refused(run):
    as_bytes("rows.csv", b"a," * 2**20 + b",\n1,2\n")
    message = refused(run, "fit", "rows.csv", "-o", "x.fed")
    assert "line of 1,048,577 separators, at most 1,048,576 columns" in message


def test_entries_of_one_place_add_up(run):
    """As a CSR matrix may have them: each entry in two halves."""
    dense = np.where(np.random.default_rng(1).random(X.shape) < 0.4, X, 0.0)
    rows = sp.csr_matrix(dense)
    halves = np.repeat(rows.data / 2, 2), np.repeat(rows.indices, 2), 2 * rows.indptr
    as_h5ad("rows.h5ad", sp.csr_matrix(halves, shape=X.shape))
    assert_is_of(fitted(run, "rows.h5ad"), dense)


def test_limits_are_raised_and_lowered(run):
    dense(10**5, 100)("rows.h5ad")
    message = refused(run, "fit", "rows.h5ad", "-o", "x.fed")
    assert "announces 100,000 rows of 100 columns, which take 8e+07 bytes" in message
    assert "at most 1000 times are read" in message
    with pytest.importorskip("h5py").File("rows.h5ad", "a") as file:
        file.create_group("var")["_index"] = np.array([str(i) for i in range(100)], "S3")
    options = ["--max-ratio", "1e9", "--columns", "1,2", "-n", "1"]
    assert fitted(run, "rows.h5ad", *options).n_samples == 10**5
    for kind in WRITERS:
        WRITERS[kind](f"few.{kind}")
        message = refused(run, "fit", f"few.{kind}", "-o", "y.fed", "--max-columns", "3")
        assert f"few.{kind}: it announces 4 columns, at most 3 are read; --max-columns" in message
        assert fitted(run, f"few.{kind}", "--max-columns", "4").n_features == 4


# ------------------------------------------------------------------------------ while it works


def batches(monkeypatch, watch):
    """Call a function with each batch that a site fits."""
    original = StreamingPCA.partial_fit
    monkeypatch.setattr(
        StreamingPCA, "partial_fit", lambda self, rows: (watch(rows), original(self, rows))[1]
    )


def test_batches_of_long_texts_are_short(run, monkeypatch):
    monkeypatch.setattr(_row_files, "_TEXT", 1000)
    monkeypatch.setattr(_row_files, "_LINE", 1000)  # of a row, not of all
    lines = [",".join(map(str, row)) + f",{'a' * 200}\n" for row in X.tolist()]
    as_bytes("rows.csv", "age,height,weight,pulse,note\n" + "".join(lines))
    sizes = []
    batches(monkeypatch, lambda rows: sizes.append(len(rows)))
    assert_is_of(fitted(run, "rows.csv", "--without", "note"), X)
    assert max(sizes) <= 5


def test_few_rows_of_a_file_are_in_memory(run, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    monkeypatch.setattr(_row_files, "ROWS", 500)
    rows = np.random.default_rng(0).standard_normal((20_000, 20))
    as_parquet("rows.parquet", rows, list(map(str, range(20))), row_group_size=500)
    before, seen = pa.total_allocated_bytes(), []
    batches(monkeypatch, lambda batch: seen.append((len(batch), pa.total_allocated_bytes())))
    assert fitted(run, "rows.parquet").n_samples == sum(n for n, _ in seen) == 20_000
    assert max(n for n, _ in seen) <= 500
    assert max(held for _, held in seen) - before < rows.nbytes / 4


def test_a_bar_is_drawn_on_a_terminal_only(run, monkeypatch):
    as_csv("rows.csv")
    bar = MagicMock()
    monkeypatch.setattr(pytest.importorskip("tqdm"), "tqdm", bar)
    fitted(run, "rows.csv")
    assert bar.call_args.kwargs["disable"] is None  # by what tqdm says of terminals
    drawn = bar.return_value.__enter__.return_value
    assert sum(call.args[0] for call in drawn.update.call_args_list) == 50
    assert bar.call_args.kwargs["desc"] == "rows.csv"
    bar.return_value.__exit__.assert_called_once()
    monkeypatch.setitem(sys.modules, "tqdm", None)
    fitted(run, "rows.csv")


@pytest.mark.parametrize(("module", "kind"), [("pyarrow", "parquet"), ("h5py", "h5ad")])
def test_a_format_whose_library_is_not_there_says_what_to_install(module, kind, run, monkeypatch):
    as_bytes(f"rows.{kind}", b"")
    monkeypatch.setitem(sys.modules, module, None)
    message = refused(run, "fit", f"rows.{kind}", "-o", "x.fed")
    assert f"need {module}: pip install 'fedpca-sklearn[{kind}]'" in message


# ------------------------------------------------------------------------------ what is written


def test_no_file_is_written_over(run, monkeypatch):
    as_csv("rows.csv")
    as_bytes("x.fed", b"")
    os.link("rows.csv", "same.csv")
    os.mkdir("folder")
    os.symlink("nowhere", "link.fed")
    for output, words, *force in (
        ("same.csv", "is one of the files to read", "--force"),
        ("x.fed", "x.fed exists; --force replaces it"),
        ("link.fed", "link.fed exists"),
        ("folder", "no regular file", "--force"),
    ):
        assert words in refused(run, "fit", "rows.csv", "-o", output, *force)
    # nobody else can have the place of what is being written
    monkeypatch.setattr(files.secrets, "token_hex", lambda n: "guessed")
    os.symlink("rows.csv", ".y.fed.guessed.part")
    assert "File exists" in refused(run, "fit", "rows.csv", "-o", "y.fed")
