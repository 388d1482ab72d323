"""Sites that exchange files: names, sites, faults on the way, and the command line.

The oracle is the singular value decomposition of all rows by numpy.
"""

import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import fedpca_sklearn
from fedpca_sklearn import FederatedPCA, StreamingPCA, Subspace, merge_subspaces
from fedpca_sklearn.__main__ import main
from fedpca_sklearn._feature_names import check_names, check_same_names

NAMES = ("age", "height", "weight", "pulse")


class Table:
    """As much of a data frame as scikit-learn looks at."""

    def __init__(self, values, columns):
        self.values, self.columns = values, columns
        self.shape, self.dtypes = values.shape, [values.dtype] * len(columns)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


def rows(n=60, seed=0):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 4)) * [4, 3, 2, 1] + [50, 170, 70, 80]


def named(X, names=NAMES):
    summary = Subspace.from_rows(X)
    return Subspace(
        summary.components,
        summary.singular_values,
        summary.mean,
        summary.n_samples,
        summary.scatter,
        feature_names=names,
    )


def assert_pooled(summary, X):
    A = X - X.mean(axis=0)
    _, s, V = np.linalg.svd(A, full_matrices=False)
    assert_allclose(summary.singular_values, s, rtol=1e-10)
    assert_allclose(summary.mean, X.mean(axis=0), rtol=1e-12)
    assert_allclose(np.abs(np.sum(summary.components * V, axis=1)), 1, rtol=1e-10)
    assert summary.n_samples == len(X)


@pytest.fixture
def files(tmp_path):
    """Two files of sites, and the rows in them."""
    parts = rows(60, 0), rows(40, 1)
    paths = []
    for site, X in zip(("north", "south"), parts, strict=True):
        path = tmp_path / f"{site}.npz"
        named(X).save(path, site=site)
        paths.append(str(path))
    return paths, np.concatenate(parts)


# -------------------------------------------------------------------------------- names and sites


def test_names_and_site_come_back(files):
    paths, _ = files
    summary = Subspace.load(paths[0])
    assert summary.feature_names == NAMES
    assert summary.site == "north"
    assert summary.nbytes == len(summary.to_bytes())


def test_labels_in_any_script_come_back():
    names = ("Größe", "血压", "", 'a "quoted" name\n')
    data = named(rows(), names)._replace(site="Zürich").to_bytes()
    summary = Subspace.from_bytes(data)
    assert (summary.feature_names, summary.site) == (names, "Zürich")


def test_the_file_tells_which_library_wrote_it():
    from fedpca_sklearn import __version__

    data = named(rows()).to_bytes()
    (length,) = struct.unpack_from("<I", data, 10)
    labels = json.loads(data[-4 - length : -4])
    assert labels["library"] == f"fedpca_sklearn {__version__}"


def test_a_summary_without_labels_is_written_as_version_1():
    data = Subspace.from_rows(rows()).to_bytes()
    assert data[:8] == b"FEDPCA\x00\x01"
    assert len(data) == 52 + 8 * (4 + 4 + 16)


def test_names_travel_from_a_table_through_an_estimator():
    X = rows()
    model = StreamingPCA(2).fit(pd.DataFrame(X, columns=NAMES))
    assert model.subspace_.feature_names == NAMES
    assert Subspace.from_rows(pd.DataFrame(X, columns=NAMES)).feature_names == NAMES
    merged = FederatedPCA.from_subspaces([model.subspace_, model.subspace_])
    assert_array_equal(merged.feature_names_in_, NAMES)
    merged.transform(pd.DataFrame(X, columns=NAMES))


def test_names_stay_with_a_summary():
    table = Table(rows(), list(NAMES))
    summary = Subspace.from_rows(table)._replace(site="north")
    for other in (
        summary.update(table, 3),
        summary.truncate(2),
        summary.decay(0.5),
        summary.decay(0),
    ):
        assert (other.feature_names, other.site) == (NAMES, "north")
    both = merge_subspaces([summary, Subspace.from_rows(rows())])
    assert (both.feature_names, both.site) == (NAMES, None)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("age", "size", "weight", "pulse"), r"lacks 'height' and has 'size'"),
        (("age", "weight", "height", "pulse"), r"another order: 'weight' at position 1, where"),
    ],
)
def test_other_columns_are_refused_by_name(names, message):
    one, other = named(rows()), named(rows(), names)
    with pytest.raises(ValueError, match=r"subspaces\[1\].*" + message):
        merge_subspaces([one, other])
    with pytest.raises(ValueError, match=r"subspaces\[1\].*" + message):
        FederatedPCA.from_subspaces([one, other])
    with pytest.raises(ValueError, match=r"X .*" + message):
        one.update(Table(rows(), list(names)))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("a", "b"), "must be 4 strings, got 2"),
        ((1, 2, 3, 4), "must be 4 strings"),
        (("a", "b", "a", "c"), "must differ, got 'a' twice"),
    ],
)
def test_bad_names_are_refused(names, message):
    with pytest.raises(ValueError, match=f"feature_names {message}"):
        named(rows(), names)


def test_clients_are_the_sites(files):
    paths, X = files
    pca = FederatedPCA.from_subspaces([Subspace.load(path) for path in reversed(paths)])
    assert pca.clients_ == ["north", "south"]
    assert_pooled(pca.subspace_, X)


def test_a_site_is_taken_once(files):
    paths, _ = files
    summaries = [Subspace.load(path) for path in (*paths, paths[0])]
    with pytest.raises(
        ValueError, match=r"subspaces\[2\] is of site 'north', as is subspaces\[0\]"
    ):
        FederatedPCA.from_subspaces(summaries)


# ---------------------------------------------------------------------------------------- faults


def test_what_arrives_in_any_order_is_all_rows():
    parts = [rows(n, seed) for seed, n in enumerate((30, 1, 50, 7))]
    summaries = [Subspace.from_rows(X)._replace(site=f"s{i}") for i, X in enumerate(parts)]
    for order in ((0, 1, 2, 3), (3, 1, 0, 2), (2, 3, 1, 0)):
        pca = FederatedPCA.from_subspaces([summaries[i] for i in order])
        assert_pooled(pca.subspace_, np.concatenate([parts[i] for i in order]))


def test_a_late_site_joins():
    first, late = rows(60, 0), rows(40, 1)
    pca = FederatedPCA.from_subspaces([Subspace.from_rows(first)._replace(site="north")])
    pca.partial_fit(late, clients=["south"] * 40)
    assert pca.clients_ == ["north", "south"]
    assert_pooled(pca.subspace_, np.concatenate([first, late]))


def test_a_missing_site_leaves_the_others(files):
    paths, X = files
    pca = FederatedPCA.from_subspaces([Subspace.load(paths[0])])
    assert_pooled(pca.subspace_, X[:60])


def test_an_empty_site_changes_nothing():
    X = rows()
    pca = FederatedPCA.from_subspaces([Subspace.from_rows(X), Subspace.empty(4)])
    assert_pooled(pca.subspace_, X)


def test_single_beside_double_precision():
    X, Y = rows(60, 0), rows(40, 1).astype(np.float32)
    pca = FederatedPCA.from_subspaces([Subspace.from_rows(X), Subspace.from_rows(Y)])
    pooled = np.concatenate([X, Y])
    assert pca.components_.dtype == np.float64
    s = np.linalg.svd(pooled - pooled.mean(axis=0), compute_uv=False)
    assert_allclose(pca.singular_values_, s, rtol=1e-6)  # of a float32 basis


def test_another_width_is_refused():
    with pytest.raises(ValueError, match=r"subspaces\[1\] has 3 features, subspaces\[0\] has 4"):
        FederatedPCA.from_subspaces([Subspace.from_rows(rows()), Subspace.from_rows(rows()[:, :3])])


def test_missing_entries_never_reach_a_file():
    X = rows()
    X[3, 2] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        Subspace.from_rows(X)


def relabelled(labels):
    """A summary whose labels are these bytes, with a checksum that is right."""
    data = named(rows()).to_bytes()
    (length,) = struct.unpack_from("<I", data, 10)
    body = data[:10] + struct.pack("<I", len(labels)) + data[14 : -4 - length] + labels
    return body + struct.pack("<I", zlib.crc32(body))


@pytest.mark.parametrize(
    "labels",
    [
        b"{",
        b"\xff\xfe",
        b"[]",
        b"7",
        b"{}",
        b'{"feature_names": "abcd", "site": null}',
        b'{"feature_names": ["a", "b"], "site": null}',
        b'{"feature_names": ["a", "b", "c", 4], "site": null}',
        b'{"feature_names": ["a", "b", "c", "c"], "site": null}',
        b'{"feature_names": null, "site": 7}',
        b'{"feature_names": null, "site": {"a": 1}}',
        b"[" * 100_000,
        b'{"feature_names": null, "site": ' + b"9" * 10_000 + b"}",
    ],
    ids=lambda b: b[:40].decode("latin1"),
)
def test_hostile_labels_are_refused(labels):
    with pytest.raises(ValueError, match=r"labels|feature_names"):
        Subspace.from_bytes(relabelled(labels))


def test_a_length_of_labels_that_is_not_there_is_refused():
    data = bytearray(named(rows()).to_bytes())
    struct.pack_into("<I", data, 10, 2**32 - 1)
    with pytest.raises(ValueError, match="announces"):
        Subspace.from_bytes(bytes(data))


# ---------------------------------------------------------------------------------- command line


def test_merge_and_inspect(files, tmp_path, capsys):
    paths, X = files
    model = str(tmp_path / "model.npz")
    assert main(["merge", *paths, "-o", model]) == 0
    assert_pooled(Subspace.load(model), X)
    assert main(["inspect", model, paths[0]]) == 0
    shown = capsys.readouterr().out
    assert "site       north" in shown
    assert "rows       100" in shown
    assert "names      age, height, weight, pulse" in shown


def test_fewer_components_are_kept(files, tmp_path):
    paths, X = files
    model = str(tmp_path / "model.npz")
    assert main(["merge", *paths, "-o", model, "-n", "2"]) == 0
    s = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
    assert_allclose(Subspace.load(model).singular_values, s[:2], rtol=1e-10)


def test_a_share_of_the_variance_is_kept(files, tmp_path):
    paths, X = files
    model = str(tmp_path / "model.npz")
    s = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
    share = np.cumsum(s**2) / np.sum(s**2)
    assert main(["merge", *paths, "-o", model, "-n", str((share[1] + share[2]) / 2)]) == 0
    assert_allclose(Subspace.load(model).singular_values, s[:3], rtol=1e-10)


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.strip() == fedpca_sklearn.__version__


def test_errors_name_the_file_and_write_nothing(files, tmp_path, capsys):
    paths, _ = files
    bad, model = tmp_path / "bad.npz", tmp_path / "model.npz"
    bad.write_bytes(b"PK\x03\x04" + bytes(100))
    named(rows(), ("a", "b", "c", "d")).save(tmp_path / "other.npz")
    for extra, message in (
        (bad, "bad.npz: Not a subspace summary"),
        (tmp_path / "none.npz", "none.npz"),
        (paths[0], "site 'north'"),
        (tmp_path / "other.npz", "lacks 'age', 'height', 'weight', 'pulse'"),
    ):
        assert main(["merge", *paths, str(extra), "-o", str(model)]) == 1
        assert message in capsys.readouterr().err
        assert not model.exists()


def test_it_runs_as_a_module(files):
    paths, _ = files
    call = [sys.executable, "-m", "fedpca_sklearn", "inspect", *paths]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stdout.count("rows") == 2


def test_what_a_terminal_would_obey_is_not_printed(tmp_path, capsys):
    path = tmp_path / "hostile.npz"
    named(rows(), ("a\x1b[2J", "b", "c", "d")).save(path, site="n\x1b[2J\nrows  9")
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown.count("rows ") == 2  # the line, and the name of the site in quotes


def test_what_is_described_is_what_was_written(files, tmp_path, capsys):
    paths, _ = files
    assert main(["merge", *paths, "-o", str(tmp_path / "model.npz"), "-n", "2"]) == 0
    assert "components 2, float64" in capsys.readouterr().out


def test_a_file_that_is_merged_is_not_overwritten(files, capsys):
    paths, _ = files
    before = Path(paths[0]).read_bytes()
    assert main(["merge", *paths, "-o", paths[0]]) == 1
    assert "is one of the files to merge" in capsys.readouterr().err
    assert Path(paths[0]).read_bytes() == before


@pytest.mark.parametrize(
    "labels", [{"site": "\ud800"}, {"feature_names": ["a", "b", "c", "\ud800"]}]
)
def test_text_that_no_file_can_hold_is_refused(labels):
    labels = {"feature_names": None, "site": None, **labels}
    with pytest.raises(ValueError, match=r"must be valid text"):
        Subspace.from_bytes(relabelled(json.dumps(labels).encode()))
    with pytest.raises(ValueError, match=r"must be valid text"):
        Subspace.from_rows(rows()).save("never written", site="\ud800")


def test_many_other_names_are_compared_in_a_moment():
    ours, theirs = ([f"f{i}" for i in range(k, k + 200_000)] for k in (0, 1))
    with pytest.raises(ValueError, match="lacks 'f0' and has 'f200000'"):
        check_same_names(ours, theirs, "X")
    with pytest.raises(ValueError, match="must differ, got 'f7' twice"):
        check_names([*ours, "f7"], 200_001)
