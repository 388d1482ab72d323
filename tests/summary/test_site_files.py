"""Sites that exchange files: names, sites, faults on the way, and the command line.

The oracle is the singular value decomposition of all rows by numpy.
"""

import dataclasses
import json
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import peak_bytes
from numpy.testing import assert_allclose, assert_array_equal

import fedpca_sklearn
from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    PrivacyLeakWarning,
    RobustMerge,
    StreamingPCA,
    Subspace,
    merge_subspaces,
)
from fedpca_sklearn.__main__ import main
from fedpca_sklearn._validation.feature_names import check_names, check_same_names, names_of
from fedpca_sklearn.summary._provenance import StatedPrivacy

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
    names = ("Größe", "血压", "", 'a "quoted" \\ name')
    data = named(rows(), names)._replace(site="Zürich").to_bytes()
    summary = Subspace.from_bytes(data)
    assert (summary.feature_names, summary.site) == (names, "Zürich")


def test_the_file_tells_which_library_wrote_it():
    from fedpca_sklearn import __version__

    data = named(rows()).to_bytes()
    (length,) = struct.unpack_from("<I", data, 10)
    labels = json.loads(data[-4 - length : -4])
    assert labels["library"] == f"fedpca_sklearn {__version__}"


def test_a_summary_without_labels_has_no_bytes_for_them():
    data = Subspace.from_rows(rows()).to_bytes()
    assert data[:8] == b"FEDPCA\x00\x05"
    assert len(data) == 52 + 8 * (4 + 4 + 10)


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
    with pytest.warns(UserWarning, match=r"subspaces\[1\] has no site, unlike subspaces\[0\]"):
        both = merge_subspaces([summary, Subspace.from_rows(rows())])
    assert (both.feature_names, both.site) == (NAMES, None)
    assert both.sites == ("north",)


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


def relabelled(labels, data=None, n_sites=0):
    """A summary whose labels are these bytes, with a checksum that is right."""
    data = named(rows()).to_bytes() if data is None else data
    (length,) = struct.unpack_from("<I", data, 10)
    sizes = struct.pack("<IH", len(labels), n_sites)
    body = data[:10] + sizes + data[16 : -4 - length] + labels
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
    labels = {"feature_names": ["a\x1b[2J", "b", "c", "d"], "site": "n\x1b[2J\nrows  9"}
    path.write_bytes(relabelled(json.dumps(labels).encode()))
    assert main(["inspect", str(path)]) == 1  # refused, by a text that a terminal does not obey
    shown = "".join(capsys.readouterr())
    assert "\x1b" not in shown
    assert shown.count("\n") == 1
    path = tmp_path / "spaces.npz"
    named(rows()).save(path, site="n\u3000rows  9")
    assert main(["inspect", str(path)]) == 0
    assert "\u3000" not in capsys.readouterr().out


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


def test_marks_on_one_letter_take_no_time():
    """Composing them takes the square of their number: 200 KB that anybody sends were 20 s."""
    name, start = "a" + "\u0301\u0316" * 50_000, time.process_time()
    with pytest.raises(ValueError, match="feature_names must have at most 500 bytes"):
        check_names([name, "b"], 2)
    assert names_of(Table(np.eye(2), [name, "b"])) == (name, "b")
    assert time.process_time() - start < 1
    assert check_names(["a\u0301" * 250], 1) == ("\u00e1" * 250,)


# -------------------------------------------------------------------- what is said of the rows


def of_site(*sites, seed=0):
    return Subspace.from_rows(rows(seed=seed))._replace(sites=sites, site=None)


def test_a_merged_file_remembers_its_sites(files, tmp_path, capsys):
    paths, _ = files
    model, again = str(tmp_path / "model.npz"), str(tmp_path / "again.npz")
    assert main(["merge", *paths, "-o", model]) == 0
    merged = Subspace.load(model)
    assert (merged.site, merged.sites) == (None, ("north", "south"))
    assert main(["inspect", model]) == 0
    assert "sites      north, south" in capsys.readouterr().out
    assert main(["merge", model, paths[0], "-o", again]) == 1
    assert "subspaces[1] is of site 'north', as is subspaces[0]" in capsys.readouterr().err
    assert not Path(again).exists()
    for merge in (merge_subspaces, FederatedPCA.from_subspaces):
        with pytest.raises(ValueError, match="site 'north'"):
            merge([merged, Subspace.load(paths[0])])
    third = of_site("west")
    assert merge_subspaces([merged, third]).sites == ("north", "south", "west")
    for other in (
        merged.update(rows()),
        merged.update(rows(), forgetting_factor=0.9),
        merged.decay(0.5),
        merged.decay(0),
        merged.truncate(1),
        Subspace.from_bytes(merged.to_bytes()),
    ):
        assert other.sites == ("north", "south")


def test_a_client_that_is_in_a_merged_summary_is_refused():
    pca = FederatedPCA.from_subspaces([of_site("north", "south")])
    with pytest.raises(ValueError, match="is of site 'north'"):
        pca.partial_fit(rows(seed=5), clients=["north"] * 60)
    pca.partial_fit(rows(seed=5), clients=["west"] * 60)
    assert pca.subspace_.sites == ("north", "south", "west")


def test_two_spellings_of_a_site_are_one():
    composed, decomposed = "Z\u00fcrich", "Zu\u0308rich"
    one, other = (Subspace.from_rows(rows(seed=i)) for i in range(2))
    parts = [one._replace(site=composed), other._replace(site=decomposed)]
    for given in (parts, [Subspace.from_bytes(part.to_bytes()) for part in parts]):
        with pytest.raises(ValueError, match=f"is of site '{composed}'"):
            merge_subspaces(given)
    table = Table(rows(), ["Gr\u00f6\u00dfe", "b", "c", "d"])
    twin = Table(rows(), ["Gro\u0308\u00dfe", "b", "c", "d"])
    assert Subspace.from_rows(table).feature_names == Subspace.from_rows(twin).feature_names


@pytest.mark.parametrize(
    "text",
    [
        "no\x00rth",
        "north\n",
        "north\x7f",
        "\u202ehtron",  # right to left
        "no\u200brth",  # zero width
        "north\u2066",
        "\ufeffnorth",
        "no\u00adrth",  # soft hyphen
        "north\u2028",
        "north\ue000",
        "north\ufe0f",  # variation selector
        "no\u034frth",
        "\u3164",  # filler
        "no\u2065rth",  # not assigned, and not drawn
        "no\U000e0fffrth",
        "north\uffff",  # no character
        "n" * 501,
        "\u8840" * 167,  # 501 bytes
    ],
    ids=lambda text: ascii(text[:8]),
)
def test_names_that_cannot_be_told_apart_by_eye_are_refused(text, tmp_path):
    summary = Subspace.from_rows(rows())
    with pytest.raises(ValueError, match=r"^site must") as error:
        summary.save(tmp_path / "never", site=text)
    assert str(error.value).isprintable()
    with pytest.raises(ValueError, match=r"^feature_names must"):
        named(rows(), (text, "b", "c", "d"))
    labels = {"feature_names": None, "site": None, "sites": [text]}
    with pytest.raises(ValueError, match=r"labels|sites must"):
        Subspace.from_bytes(relabelled(json.dumps(labels).encode(), n_sites=1))
    table = pd.DataFrame(rows(), columns=[text, "b", "c", "d"])
    model = StreamingPCA(2).fit(table)  # harmless until it travels
    with pytest.raises(ValueError, match=r"^feature_names must"):
        model.subspace_.save(tmp_path / "never")
    assert not (tmp_path / "never").exists()


def fields_of(summary):
    return {field.name: getattr(summary, field.name) for field in dataclasses.fields(summary)}


def test_site_and_sites_must_fit():
    fields = fields_of(named(rows()))
    assert Subspace(**{**fields, "site": "a", "sites": None}).sites == ("a",)
    assert Subspace(**{**fields, "site": None, "sites": {"b", "a"}}).sites == ("a", "b")
    with pytest.raises(ValueError, match="site='a' must be the only one of sites"):
        Subspace(**{**fields, "site": "a", "sites": ["a", "b"]})
    with pytest.raises(TypeError, match="sites must be a collection"):
        Subspace(**{**fields, "sites": "north"})


BOMBS = {
    "lists": lambda: b'{"feature_names": [' + b"[]," * 7_000_000,
    "objects": lambda: b'{"a":' * 4_000_000,
    "strings": lambda: b'{"feature_names": [' + b'"",' * 7_000_000,
    "numbers": lambda: b'{"feature_names": [' + b"1," * 10_000_000,
    "digits": lambda: b'{"site": ' + b"9" * 20_000_000,
    "one string": lambda: b'{"site": "' + b"a" * 20_000_000 + b'"}',
    "escapes": lambda: b'{"site": "' + b"\\n" * 10_000_000,
    "depth": lambda: b"[" * 20_000_000,
    "spaces": lambda: b" " * 20_000_000,
}


@pytest.mark.parametrize("kind", BOMBS)
def test_20_megabytes_of_labels_are_refused_without_memory(kind):
    data = relabelled(BOMBS[kind]())

    def refuse():
        with pytest.raises(ValueError, match="labels"):
            Subspace.from_bytes(data)

    assert peak_bytes(refuse) <= 50_000


@pytest.mark.parametrize("kind", BOMBS)
def test_labels_are_refused_without_memory_where_their_size_is_allowed(kind):
    d = 25_000
    empty = Subspace.empty(d)._replace(site="north").to_bytes()
    data = relabelled(BOMBS[kind](), empty)

    def refuse():
        with pytest.raises(ValueError, match="labels"):
            Subspace.from_bytes(data)

    assert peak_bytes(refuse) <= 100 * d


def private(**parameters):
    mechanism = AnalyzeGauss(2.0, 1e-5, 100.0, **parameters)
    return FederatedPCA(2, mechanism=mechanism, random_state=0)


@pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
def test_a_file_made_with_a_mechanism_says_so(tmp_path, capsys):
    path = str(tmp_path / "private.npz")
    pca = private().fit(rows(200), clients=np.arange(200) % 2)
    stated = pca.subspace_.privacy
    assert_allclose(stated[:3], (2.0, 1e-5, 100.0), rtol=1e-6)
    assert stated[:2] == pca.privacy_spent_
    assert stated[3:] == ("AnalyzeGauss", "client")
    pca.subspace_.save(path)
    assert Subspace.load(path).privacy == stated
    assert main(["inspect", path]) == 0
    shown = capsys.readouterr().out
    assert "privacy    epsilon 2, delta 1e-05, rows up to 100, AnalyzeGauss, trust: client" in shown


def test_a_merge_states_what_holds_for_every_row():
    strong, weak = (
        Subspace.from_rows(rows(seed=i))._replace(site=f"s{i}", privacy=StatedPrivacy(*stated))
        for i, stated in enumerate(
            [(1.0, 1e-6, 3.0, "AnalyzeGauss", "client"), (0.5, 1e-5, 9.0, "ModSuLQ", "sum")]
        )
    )
    both = merge_subspaces([strong, weak])
    assert both.privacy == (1.0, 1e-5, 9.0, "AnalyzeGauss, ModSuLQ", "client, sum")
    assert Subspace.from_bytes(both.to_bytes()).privacy == both.privacy
    plain = of_site("plain")
    assert merge_subspaces([both, plain]).privacy is None
    assert strong.update(rows()).privacy is None, "rows that no mechanism has seen"
    assert strong.truncate(1).privacy == strong.decay(0.5).privacy == strong.privacy
    # a site that was left out has had its part in the choice
    merge = RobustMerge()
    liar = Subspace.from_rows(1e6 + 100 * rows(seed=9))._replace(site="liar")
    kept = merge.merge([strong, weak, liar], 2)
    assert list(merge.suspects_) == [2]
    assert kept.privacy is None


def test_rounds_without_noise_are_refused_where_summaries_state_privacy():
    """Products of the rows would be behind an epsilon that says nothing of them."""
    private = AnalyzeGauss(4.0, 1e-5, row_norm=9.0, center=[50.0, 170.0, 70.0, 80.0])
    summary = FederatedPCA(2, mechanism=private).fit(rows(2000), clients=["a"] * 2000).subspace_
    model = FederatedPCA.from_subspaces([summary], 2)
    with pytest.raises(ValueError, match="must state no privacy to refine"):
        model.refine(rows(2000))


@pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
def test_what_is_not_private_states_no_epsilon(tmp_path):
    with pytest.warns(PrivacyLeakWarning):
        pca = FederatedPCA(2, mechanism=AnalyzeGauss(1.0, 1e-5, "data")).fit(rows(200))
    stated = Subspace.from_bytes(pca.subspace_.to_bytes()).privacy
    assert stated == (np.inf, 1e-5, None, "AnalyzeGauss", "client")
    assert FederatedPCA(2).fit(rows()).subspace_.privacy is None


@pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
def test_releases_of_one_client_add_up_in_what_is_stated():
    pca = private(n_releases=2)
    for seed in range(2):
        pca.partial_fit(rows(200, seed), clients=["a"] * 200)
    assert pca.subspace_.privacy[:2] == pca.privacy_spent_
    assert_allclose(pca.subspace_.privacy.epsilon, 2.0, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
@pytest.mark.parametrize("trust", ["client", "sum"])
def test_trust_is_stated(trust):
    pca = private(trust=trust).fit(rows(200), clients=np.arange(200) % 2)
    assert pca.subspace_.privacy.trust == trust


@pytest.mark.parametrize(
    ("privacy", "message"),
    [
        ((1.0, 2.0, 3.0), "privacy must be"),
        ((-1.0, 1e-5, 3.0, "A", "client"), "privacy.epsilon"),
        ((np.nan, 1e-5, 3.0, "A", "client"), "privacy.epsilon"),
        ((1.0, 2.0, 3.0, "A", "client"), "privacy.delta"),
        ((1.0, 1e-5, -3.0, "A", "client"), "privacy.row_norm"),
        ((1.0, 1e-5, 3.0, 7, "client"), "privacy.mechanism"),
        ((1.0, 1e-5, 3.0, "A\x1b", "client"), "privacy.mechanism"),
    ],
)
def test_statements_that_say_nothing_are_refused(privacy, message):
    with pytest.raises(ValueError, match=message):
        Subspace(**{**fields_of(named(rows())), "privacy": privacy})
