"""Mutated files of rows in ``fedpca fit``: an error in one line, or a summary that can be read.

Small csv, npy and parquet files, of which bytes are changed, cut off, repeated or filled with zeros
or ones; the ends of the file, where headers and footers are, more often. What comes in one line
that a terminal can show is "refused", a summary that can be read again "fitted".
"""

import io
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks._tools import left_out, table
from fedpca_sklearn import Subspace
from fedpca_sklearn.__main__ import main as fedpca

ENDS = 400


def originals(folder):
    """Files of the same rows in each format, by the end of their names."""
    rows = np.random.default_rng(0).standard_normal((40, 5)).round(3)
    names = ("age", "height", "weight", "Größe", "pulse")
    np.savetxt(folder / "a.csv", rows, "%s", ",", header=",".join(names), comments="")
    np.save(folder / "a.npy", rows)
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        left_out("pyarrow", "which is not installed")
    else:
        columns = pyarrow.table(dict(zip(names, rows.T, strict=True)))
        pyarrow.parquet.write_table(columns, folder / "a.parquet", row_group_size=15)
    return {path.suffix: path.read_bytes() for path in sorted(folder.iterdir())}


def mutated(data, rng):
    """The file with a few changes of one kind."""
    data, kind = bytearray(data), rng.integers(5)
    for _ in range(rng.choice([1, 1, 2, 4, 16])):
        near = min(ENDS, len(data))
        at = int(rng.choice([rng.integers(len(data)), rng.integers(near), -1 - rng.integers(near)]))
        at %= len(data)
        if kind == 0:
            data[at] = rng.integers(256)
        elif kind == 1:
            del data[max(at, 1) :]
        elif kind == 2:
            start = int(rng.integers(len(data)))
            data[at:at] = data[start : start + int(rng.integers(1, 40))]
        else:
            data[at : at + 8] = (b"\0" if kind == 3 else b"\xff") * 8
    return bytes(data)


def measured(n_files, seed=0):
    """One row for each format: what came of how many files."""
    rng, rows = np.random.default_rng(seed), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for suffix, data in originals(folder).items():
            row = {"format": suffix, "files": n_files, "refused": 0, "fitted": 0, "other": 0}
            for _ in range(n_files):
                path, out = folder / f"b{suffix}", folder / "b.subspace"
                path.write_bytes(mutated(data, rng))
                row[_what_came(["fit", str(path), "-o", str(out), "--force"], out)] += 1
            rows.append(row)
    return rows


def _what_came(command, out):
    error = io.StringIO()
    try:
        with redirect_stderr(error), redirect_stdout(io.StringIO()):
            code = fedpca(command)
        if code == 0:
            Subspace.load(out)
            return "fitted"
    except Exception as unexpected:
        print(command[1], repr(unexpected))
        return "other"
    line = error.getvalue()
    refused = code == 1 and line.startswith("error: ") and line[:-1].isprintable()
    return "refused" if refused else "other"


def main(quick=False):
    start = perf_counter()
    table("fuzz_rows", measured(300 if quick else 10_000))
    print(f"{perf_counter() - start:.0f} s")
