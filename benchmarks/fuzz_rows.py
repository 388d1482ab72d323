"""Bombs and mutated files of rows in ``fedpca fit``: an error in one line, or a summary.

Half of the files are small ones of which bytes are changed, cut off, repeated or filled with zeros
or ones, at their ends more often. The others announce more than they hold: rows, columns, chunks,
names, lines without end. Each is read in a process of its own, which may take a GiB more address
space than it has when it starts, and half a minute of the processor.
"""

import io
import multiprocessing
import re
import resource
import signal
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from time import perf_counter

import numpy as np
import scipy.sparse as sp

from benchmarks._tools import RESULTS, left_out, table
from fedpca_sklearn import Subspace
from fedpca_sklearn.__main__ import main as fedpca

ENDS, NAMES = 400, ("age", "height", "weight", "Größe", "pulse")
SPACE, SECONDS = 2**30, 30
OUTCOMES = ("read", "refused", "bare errors", "over memory", "over time")
# Numbers of rows and columns that a bomb announces.
SIZES = (0, 1, 2, 3, 50, 10**4, 10**6, 10**7, 2**24, 2**31, 10**9, 2**32 + 1, 10**12, 2**60, 2**63)
NO_MEMORY = re.compile("MemoryError|Unable to allocate|bad_alloc")


# ------------------------------------------------------------------------------ files


def originals(folder):
    """Files of the same rows in each format, by the end of their names."""
    rows = np.random.default_rng(0).standard_normal((40, 5)).round(3)
    path = folder / "a.csv"
    np.savetxt(path, rows, "%s", ",", header=",".join(NAMES), comments="", encoding="utf-8")
    found = {".csv": [path.read_bytes()]}
    np.savetxt(path, rows, "%s", "\t", header="\t".join(NAMES), comments="", encoding="utf-8")
    found[".tsv"] = [path.read_bytes().replace(b".", b",")]
    for array in (rows, np.asfortranarray(rows.astype(np.float32))):
        np.save(folder / "a.npy", array)
        found.setdefault(".npy", []).append((folder / "a.npy").read_bytes())
    if has("pyarrow"):
        import pyarrow
        import pyarrow.parquet

        columns = pyarrow.table(dict(zip(NAMES, rows.T, strict=True)))
        pyarrow.parquet.write_table(columns, folder / "a.parquet", row_group_size=15)
        found[".parquet"] = [(folder / "a.parquet").read_bytes()]
    if has("h5py"):
        for X in (rows, sp.csr_array(rows * (rows > 0))):
            for packed in ({}, {"chunks": True, "compression": "gzip", "shuffle": True}):
                as_h5ad(folder / "a.h5ad", X, packed)
                found.setdefault(".h5ad", []).append((folder / "a.h5ad").read_bytes())
    return found


def has(library):
    """Whether a library is there; otherwise its formats are left out."""
    try:
        __import__(library)
    except ImportError:
        left_out(library, "which is not installed")
        return False
    return True


def as_h5ad(path, X, packed):
    """A file as AnnData writes it, of X and the names of its columns."""
    import h5py

    with h5py.File(path, "w") as file:
        if sp.issparse(X):
            group = file.create_group("X")
            group.attrs.update({"encoding-type": "csr_matrix", "shape": X.shape})
            for part in ("data", "indices", "indptr"):
                group.create_dataset(part, data=getattr(X, part), **packed)
        else:
            file.create_dataset("X", data=X, **packed)
        var = file.create_group("var")
        var.attrs["_index"] = "gene"
        var["gene"] = np.array(NAMES, dtype=h5py.string_dtype())


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


# ------------------------------------------------------------------------------ bombs


def bomb(suffix, path, rng):
    """Write a file that announces more than it holds."""
    {".csv": text_bomb, ".tsv": text_bomb, ".npy": npy_bomb, ".parquet": parquet_bomb}.get(
        suffix, h5ad_bomb
    )(path, rng)


def text_bomb(path, rng):
    """Many names, cells without end, rows of many lines, and numbers that only Python takes."""
    tab, many = "\t" if path.suffix == ".tsv" else ",", int(10 ** rng.uniform(3, 6.6))
    cell = str(
        rng.choice(["1_000", "\u0661\u0662", "\uff11", "0x10", "1e999", "9" * 5000, "1" * many])
    )
    texts = [
        "a" + tab * many + "\n1\n",
        tab.join(map(str, range(-1, many % 10**5))) + "\n1\n",
        f"a{tab}b\n" + f'"1\n"{tab}' * many,
        f'a{tab}b\n1{tab}"' + "2" * many,
        f"a{tab}b\n" + tab * many + "\n",
        f"a{tab}b\n" + "1" * many,
        f"a{tab}b\n1{tab}{cell}\n2{tab}3\n",
        f"a{tab}b\n" + "\n" * many,
        "\0" * many,
    ]
    path.write_text(texts[rng.integers(len(texts))], encoding="utf-8")


def npy_bomb(path, rng):
    """A header of a large, negative or broken shape, and few bytes or a file full of holes."""
    n, d = (SIZES[i] * int(rng.choice([1, 1, 1, -1])) for i in rng.integers(len(SIZES), size=2))
    shape = [f"({n}, {d})", f"({n}, 0)", f"(0, {d})", f"({n}.5, {d})", f"({n},)", "(" * 3000]
    descr = rng.choice(["<f8", "<f4", "|b1", ">i8", "<f2", "<f16", "|V0", "|O"])
    fortran = bool(rng.integers(2))
    head = f"{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {rng.choice(shape)}, }}"
    with open(path, "wb") as stream:
        stream.write(b"\x93NUMPY\x01\0" + len(head).to_bytes(2, "little") + head.encode())
        stream.write(bytes(int(rng.integers(100))))
        if rng.integers(4) == 0:
            stream.truncate(int(10 ** rng.uniform(2, 7.5)))


def parquet_bomb(path, rng):
    """Constant columns, of which a page holds millions of rows in a few bytes."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    n, d = ((10, 2000), (10**6, 9), (10**7, 1), (10**7, 2), (0, 3), (3 * 10**6, 3))[rng.integers(6)]
    column = np.full(n, rng.integers(2), rng.choice(["f8", "f4", "i1", "?"]))
    packed = {"compression": str(rng.choice(["none", "snappy", "gzip", "zstd"]))}
    options = {"data_page_size": int(rng.choice([2**20, 2**28])), "write_statistics": False}
    columns = pa.table({str(j): column for j in range(d)})
    parquet.write_table(columns, path, use_dictionary=bool(rng.integers(2)), **packed, **options)
    if rng.integers(2):
        path.write_bytes(mutated(path.read_bytes(), rng))


def h5ad_bomb(path, rng):
    """Data sets that were never written, and chunks that are unpacked to gigabytes."""
    import h5py

    n, d, m = (min(SIZES[i], 2**62) for i in rng.integers(len(SIZES), size=3))
    packed = [
        {},
        {"chunks": True, "compression": "gzip"},
        {"chunks": (2**20,), "compression": "gzip", "maxshape": (None,)},
        {"chunks": (2**27,), "compression": "gzip", "maxshape": (None,)},
    ][rng.integers(4)]
    with h5py.File(path, "w") as file:
        if rng.integers(2):
            create(file, "X", (n, d), "f8", packed)
        else:
            X = file.create_group("X")
            odd = [(n, d), (5.5, d), (-n, d), (n,), "9", np.full(999, d), True, (n, d, 2)]
            shape = odd[rng.integers(len(odd))] if rng.integers(3) == 0 else (n, d)
            X.attrs.update({"encoding-type": "csr_matrix", "shape": shape})
            create(X, "data", (m,), "f4", packed)
            create(X, "indices", (m,), "i4", packed)
            create(X, "indptr", (n + 1 if rng.integers(4) else m,), "i8", packed)
        kind = rng.integers(4)
        if kind:
            var = file.create_group("var")
            var.attrs["_index"] = ["gene", ["gene"] * 2000, "a" * 60_000][rng.integers(3)]
            kinds = h5py.string_dtype(), "S60000", "f8"
            create(var, "gene", (d,), kinds[kind - 1], {"fillvalue": "a" * 9} if kind == 1 else {})


def create(group, name, shape, dtype, options):
    """A data set, without options where its shape cannot have them."""
    wide = {key: value * len(shape) for key, value in options.items() if isinstance(value, tuple)}
    if len(shape) == 2 and "maxshape" in wide:
        wide = {"maxshape": (None, shape[1]), "chunks": (options["chunks"][0], min(4, shape[1]))}
    try:
        group.create_dataset(name, shape, dtype, **{**options, **wide})
    except (OSError, ValueError, TypeError, OverflowError, MemoryError):
        group.create_dataset(name, tuple(min(size, 2**31) for size in shape), "f4")


# ------------------------------------------------------------------------------ what comes


def what_came(path, out, pipe):
    """In a process of its own: limit it, fit, and send what came of it."""
    with open("/proc/self/statm") as stream:
        held = int(stream.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + SPACE, held + SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    error = io.StringIO()
    try:
        decimal = ["--decimal", ","] if path.endswith("tsv") else []
        with redirect_stderr(error), redirect_stdout(io.StringIO()):
            code = fedpca(["fit", path, "-o", out, "--force", *decimal])
        if code == 0:
            Subspace.load(out)
        line = error.getvalue()
    except BaseException as unexpected:
        code, line = -1, repr(unexpected)
    if code == 0:
        outcome = "read"
    elif NO_MEMORY.search(line):
        outcome = "over memory"
    elif code == 1 and re.match(r"error: .*[ .]", line) and line[:-1].isprintable():
        outcome = "refused"
    else:
        outcome = "bare errors"
    pipe.send((outcome, line))


def outcome_of(path, out, context):
    """What came of a file, and the line that was printed."""
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=what_came, args=(str(path), str(out), theirs))
    child.start()
    theirs.close()
    try:
        waited = ours.poll(20 * SECONDS)
        outcome = ours.recv() if waited else ("over time", "")
    except EOFError:  # it was ended: by the limit of its time, or by a fault
        child.join()
        late = child.exitcode in (-signal.SIGXCPU, -signal.SIGKILL)
        outcome = ("over time" if late else "bare errors", f"exit code {child.exitcode}")
    child.kill()
    child.join()
    return outcome


def measured(n_files, seed=0):
    """One row for each format: what came of how many files."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.fuzz_rows"])
    rng, rows = np.random.default_rng(seed), []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for suffix, data in originals(folder).items():
            row = {"format": suffix, "files": n_files, **dict.fromkeys(OUTCOMES, 0), "s": 0.0}
            for i in range(n_files):
                path = folder / f"b{suffix}"
                if i % 2:
                    bomb(suffix, path, rng)
                else:
                    path.write_bytes(mutated(data[rng.integers(len(data))], rng))
                start = perf_counter()
                outcome, line = outcome_of(path, folder / "b.subspace", context)
                row["s"] += perf_counter() - start
                row[outcome] += 1
                if outcome not in ("read", "refused"):
                    RESULTS.mkdir(exist_ok=True)
                    kept = RESULTS / f"fuzz_rows_{i}{suffix}"
                    kept.write_bytes(path.read_bytes())
                    print(f"{outcome}: {line[:300]!r} of {kept}")
                path.unlink()
            rows.append(row)
    return rows


def main(quick=False):
    start = perf_counter()
    table("fuzz_rows", measured(40 if quick else 300))
    print(f"{perf_counter() - start:.0f} s")
