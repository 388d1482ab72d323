"""Files of rows, a command in an empty folder, and what its failures must look like."""

import csv
import json
import multiprocessing
import os
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

from fedpca_sklearn import StreamingPCA, Subspace
from fedpca_sklearn.__main__ import main

NAMES = ["age", "height", "weight", "pulse"]
X = np.random.default_rng(0).standard_normal((50, 4)) * [4, 3, 2, 1] + [50, 170, 70, 80]
X = X + 0.5 * X[:, :1] * [0, 1, 1, 1]  # the others depend on the first
PARTS = {"north": X[:20], "south": X[20:35], "west": X[35:]}
FILES = [f"{name}.fed" for name in PARTS]


def as_csv(path, rows=X, names=NAMES, separator=","):
    with open(path, "w", newline="") as stream:
        writer = csv.writer(stream, delimiter=separator)
        writer.writerows([names, *rows.tolist()])


def as_npy(path, rows=X, names=NAMES):
    np.save(path, rows)


def as_parquet(path, rows=X, names=NAMES, **options):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.Table.from_arrays([pa.array(column) for column in rows.T], names=list(names))
    parquet.write_table(table, path, **{"row_group_size": 20, **options})


def as_h5ad(path, rows=X, names=NAMES):
    """As AnnData writes it: X, and the names of variables."""
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        if sp.issparse(rows):
            group = file.create_group("X")
            group.attrs.update({"encoding-type": "csr_matrix", "shape": rows.shape})
            for part in ("data", "indices", "indptr"):
                group[part] = getattr(rows, part)
        else:
            file["X"] = rows
        var = file.create_group("var")
        var.attrs["_index"] = "gene"
        var["gene"] = np.array(names, dtype=h5py.string_dtype())


def as_bytes(path, content):
    with open(path, "wb") as stream:
        stream.write(content if isinstance(content, bytes) else content.encode())


WRITERS = {"csv": as_csv, "npy": as_npy, "parquet": as_parquet, "h5ad": as_h5ad}


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Run a command in an empty folder; the code, what was printed, and the error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return call


def process_of(arguments, out=os.devnull):
    """A process that runs a command, as here; of a server, so that it has nothing to import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["console_helpers", "fedpca_sklearn.engines.files"])
    here = os.getcwd(), os.environ["XDG_STATE_HOME"], os.path.abspath(out)
    process = context.Process(target=_command, args=(*here, list(map(str, arguments))))
    process.start()
    return process


def _command(folder, state, out, arguments):
    os.chdir(folder)
    os.environ["XDG_STATE_HOME"] = state
    sys.stdout = open(out, "w")  # noqa: SIM115 until the process ends
    sys.exit(main(arguments))


def printed(run, *arguments):
    """What a command prints that succeeds without a warning, read where it is JSON."""
    code, out, err = run(*arguments)
    assert (code, err) == (0, ""), err
    return json.loads(out, parse_constant=pytest.fail) if "--json" in arguments else out


def fitted(run, file, *options):
    """The summary of a file of rows, by the command of a site."""
    printed(run, "fit", file, *options, "-o", "fitted.fed", "--force")
    return Subspace.load("fitted.fed")


def site(name, rows, names=NAMES, n_components=None):
    """The file of a site, which keeps some directions or all."""
    summary = StreamingPCA(n_components, oversampling=0).fit(rows).subspace_
    named = None if names is None else tuple(names)
    summary._replace(feature_names=named).save(f"{name}.fed", site=name)


def refused(run, *arguments):
    """The error of a command that fails, in one line, and leaves nothing."""
    before = {file: os.lstat(file).st_mtime_ns for file in os.listdir()}
    code, out, err = run(*arguments)
    assert code == 1
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert err.strip().isprintable()
    assert {file: os.lstat(file).st_mtime_ns for file in os.listdir()} == before
    return err


def by_study(run, estimator, sites, *options, kind="csv"):
    """What next says at the end of a study whose sites have a file of rows each."""
    assert run("ask", "study", estimator, "--sites", ",".join(sites))[0] == 0
    for number in range(1, 40):
        for site in sites:
            letter = f"study/{number:04}.{site}"
            rows = f"{letter}.question", f"{site}.{kind}", "-o", f"{letter}.answer"
            code, out, err = run("answer", *rows, *options)
            assert code == 0, out + err
        code, out, err = run("next", "study", "--json")
        assert code == 0, err
        if json.loads(out)["done"]:
            return json.loads(out)
    raise AssertionError("the study does not end")


def assert_is_of(summary, rows):
    _, s, V = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    assert_allclose(summary.singular_values, s, rtol=1e-10)
    assert_allclose(summary.mean, rows.mean(axis=0), rtol=1e-12)
    assert_allclose(np.abs(np.sum(summary.components * V, axis=1)), 1, rtol=1e-10)
    assert summary.n_samples == len(rows)
