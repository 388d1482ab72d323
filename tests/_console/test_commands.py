"""The commands between sites: columns by name, units, models and their options, JSON, codes.

The oracle is scikit-learn on the pooled rows.
"""

import csv
import json
import os
import re
import shlex
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from console_helpers import (
    FILES,
    NAMES,
    PARTS,
    X,
    as_csv,
    assert_is_of,
    by_study,
    fitted,
    printed,
    refused,
    run,
    site,
)
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import AnalyzeGauss, FederatedPCA, PairMoments, Subspace
from fedpca_sklearn.__main__ import main
from fedpca_sklearn._console._row_files import Rows
from fedpca_sklearn._console._summaries import unlike_units
from fedpca_sklearn.privacy import PrivateNorm

__all__ = ["run"]
ADJUSTING = ["--scale", "--partial-out", "age"]


ADJUST = {
    "": lambda by, rows: rows,
    "--scale": lambda by, rows: rows / by.std(axis=0),
    "--scale --partial-out age": lambda by, rows: adjusted(by, rows),
}


def adjusted(by=X, rows=X):
    """What a linear model on the age leaves of the other columns, scaled by pooled rows."""
    model = LinearRegression().fit(by[:, :1], by[:, 1:])
    left = by[:, 1:] - model.predict(by[:, :1])
    return (rows[:, 1:] - model.predict(rows[:, :1])) / left.std(axis=0)


def scores_of(run, model, *options):
    command = "transform", model, "rows.csv", "-o", "s.npy", "--force", "--json"
    assert printed(run, *command, *options)["warnings"] == []
    return np.load("s.npy")


def assert_scores(found, want):
    assert found.shape == want.shape
    assert_allclose(found * np.sign(np.sum(found * want, axis=0)), want, atol=1e-9)


def in_order(name, order, **options):
    site(name, PARTS[name][:, order], [NAMES[j] for j in order], **options)


@pytest.fixture
def sites(run):
    as_csv("rows.csv")
    for name, rows in PARTS.items():
        site(name, rows)
    return FILES


# ------------------------------------------------------------------------------ what is refused

REFUSED = """
fit rows.csv -o x.fed --columns "age,size,\x1b[2J" | rows.csv: it has no column 'size', '\\x1b[2J'
fit rows.csv -o x.fed --without age,height,weight,pulse | no column is left
fit rows.csv few.csv -o x.fed | few.csv: it has no column 'pulse'; it has 'age', 'height', 'weight'
fit rows.csv -o x.fed --like nameless.fed | nameless.fed: it has no names of columns
fit two.npy -o x.fed --like north.fed | two.npy: it has 2 columns without names, not 4
fit rows.csv -o x.fed --site n\x1b[2J | --site must be valid text
fit rows.csv -o x.fed --site "" | --site must be a name, got ''
fit rows.csv -o x.fed --partial-out salt | partial_out='salt' must be a column
fit folder.csv -o x.fed | must be a regular file
fit pipe.csv -o x.fed | must be a regular file
fit none.csv -o x.fed | No such file
fit rows.xlsx -o x.fed | must end in one of .csv
fit one.csv -o x.fed | one.csv: 1 row, and --min-rows is 10 | --min-rows 1 allows it
fit holes.csv -o x.fed --drop-missing | 9 rows, and --min-rows is 10
fit rows.csv -o x.fed --min-rows 51 | --min-rows is 51
fit empty.csv -o x.fed | there is no row
fit rows.csv -o gone/z.fed | gone/z.fed cannot be written: there is no folder gone.
scale north.fed -o gone/z.fed | gone/z.fed cannot be written: there is no folder gone.
merge north.fed turned.fed -o x.fed | another order: 'weight' at position 0 | turned.fed
merge north.fed salt.fed -o x.fed | lacks 'age' and has 'salt' | --align
merge north.fed nameless.fed -o x --align | nameless.fed: it has no names
merge north.fed others.fed -o x --align | no column is in all of
merge blind.fed salt.fed -o x --align | lacks the scatter of its columns
merge north.fed -o x.fed --partial-out size | 'size' must be a column
merge plain.fed -o x.fed -n 3 | n_components=3 must be at most 2 | was cut, and keeps 2 of 4
transform plain.fed rows.csv -o x.npy -n 4 | n_components=4 must be at most 2
transform plain.fed rows.csv -o x.npy --scale | scale=True | scale=False | plain.fed | another model
show plain.fed --scale | scale=True | scale=False | plain.fed | another model by merge
show plain.fed --partial-out age | partial_out=['age'] | partial_out=None | another model by merge
show adjusted.fed --partial-out pulse | ['pulse'] | partial_out=['age'] | adjusted.fed
show adjusted.fed -n 3 | n_components=3 is asked for | has n_components=2
show plain.fed --plot picture.txt | --plot must end in one of .png, .pdf, .svg, got picture.txt
show plain.svg --plot plain.svg --force | one of the files
remove east north.fed west.fed -o x | no file is of the site 'east' alone: they are of
remove north plain.fed -o x | no file is of the site 'north' alone
remove north north.fed -o x | the last client
remove north plain.fed north.fed -o x | site 'north'
scale blind.fed -o x.csv | scatter
scale north.fed -o rows.csv | rows.csv exists
transform north.fed rows.csv -o rows.csv --force | rows.csv is one of the files to read
inspect pairs.fed | pairs.fed: Not a subspace summary: it is moments of pairs.
ask s print(1) --sites a,b | is no public class of fedpca_sklearn
ask s "FederatedPCA(2" --sites a,b | constructs no estimator
ask s FederatedPCA(2) --sites a | sites must be at least min_sites=2
next nowhere | nowhere
answer plain.fed rows.csv -o x | plain.fed: it is no question, and no answer to one
plan "FedPowerNoise(1.0, 1e-5, row_norm=1.0)" --rows 9 --columns 2 | one of FederatedPCA
plan "AnalyzeGauss(1.0, 1e-5, row_norm='data')" --rows 9 --columns 2 | a plan, got 'data'
plan "AnalyzeGauss(1.0, 1e-5, row_norm=4.0)" --rows 9 --columns 2 -n 3 | n_components=3
"""


@pytest.fixture
def odd_files(run, sites):
    holes = X[:15].copy()
    holes[:6, 1] = np.nan
    for name, rows in {"one": X[:1], "few": X[:9, :3], "holes": holes, "empty": X[:0]}.items():
        as_csv(f"{name}.csv", rows, NAMES[: rows.shape[1]])
    Path("folder.csv").mkdir()
    np.save("two.npy", X[:, :2])
    site("turned", X[:, [2, 0, 3, 1]], [NAMES[j] for j in (2, 0, 3, 1)])
    site("salt", X, ["salt", *NAMES[1:]])
    site("others", X, list("abcd"))
    site("nameless", X[:, :2], None)
    cut = Subspace.from_rows(X, 2)
    cut._replace(column_scatter=None)._named(NAMES).save("blind.fed")
    PairMoments.from_rows(X).save("pairs.fed")
    printed(run, "merge", *sites[:2], "-o", "plain.fed", "-n", "2")
    printed(run, "merge", *sites, "-o", "adjusted.fed", "-n", "2", *ADJUSTING)
    Path("plain.svg").write_bytes(Path("plain.fed").read_bytes())
    return run


def test_what_a_command_refuses_is_named_in_a_line_and_leaves_nothing(odd_files):
    os.mkfifo("pipe.csv")
    told = {}
    for line in REFUSED.strip("\n").split("\n"):
        command, *words = line.split(" | ")
        message = refused(odd_files, *shlex.split(command))
        if ".part" in message or not all(word in message for word in words):
            told[line] = message
    assert told == {}


WRONG_USE = """

fitt
fit rows.csv
fit rows.csv -o b --separator ::
fit rows.csv -o b --separator '"'
fit rows.csv -o b --like a --columns b
fit rows.csv -o b --max-columns 0
fit rows.csv -o b --max-columns many | invalid int value: 'many'
fit rows.csv -o b --max-ratio nan
fit rows.csv -o b --min-rows 0 | must be at least 1, got 0
fit rows.csv -o b --min-rows -1
fit rows.csv -o b --min-rows 2.5
fit rows.csv -o b --min-rows few | invalid int value: 'few'
merge a -o b -n 2x
"""


def test_a_command_that_is_none_exits_with_2(run, capsys):
    for line in WRONG_USE.removeprefix("\n").removesuffix("\n").split("\n"):
        command, _, words = line.partition(" | ")
        with pytest.raises(SystemExit) as stop:
            run(*shlex.split(command))
        assert stop.value.code == 2, line
        told = capsys.readouterr().err
        assert "usage: fedpca" in told
        assert words in told


# ------------------------------------------------------------------------------ columns by name


@pytest.mark.parametrize("n_components", [None, 4, 2])
def test_columns_that_some_sites_have_not_are_left_out_and_named(run, sites, n_components):
    more = np.column_stack([np.arange(15.0) ** 2, PARTS["south"][:, [3, 1, 2]]])
    site("south", more, ["salt", "pulse", "height", "weight"], n_components)
    code, _, err = run("merge", *sites, "-o", "model.fed", "--align")
    assert code == 0
    assert "warning: north.fed has no 'salt': left out of all.\n" in err
    assert "warning: south.fed has no 'age': left out of all.\n" in err
    merged = Subspace.load("model.fed")
    assert merged.feature_names == ("height", "weight", "pulse")
    assert merged.sites == tuple(PARTS)
    squares = np.sum((X - X.mean(axis=0))[:, 1:] ** 2, axis=0)
    assert_allclose(merged.column_scatter, squares)
    assert_allclose(merged.scatter, squares.sum())  # exact after a cut
    if n_components != 2:
        assert_is_of(merged, X[:, 1:])


# ------------------------------------------------------------------------------ units


def test_units_a_hundredfold_apart_are_named(run, sites):
    rows = PARTS["west"] / [1, 100, 1, 1]  # metres
    site("west", rows)
    _, out, err = run("merge", *sites, "-o", "model.fed", "--json")
    (warning,) = json.loads(out)["warnings"]
    north, south, west = (np.std(rows[:, 1], ddof=1) for rows in PARTS.values())
    assert warning.startswith("column 'height': the deviation of ")
    assert f"of 'west' {west / 100:.3g}; are the units the same?" in warning
    assert f"{max(south, north):.3g}" in warning
    assert err == f"warning: {warning}\n"
    for command in (["inspect", *sites], ["scale", *sites, "-o", "scales.csv"]):
        assert run(*command)[2] == err
    as_csv("west.csv", rows)
    err = run("fit", "west.csv", "-o", "w.fed", "--site", "west", "--like", "north.fed")[2]
    assert err.startswith("warning: column 'height': the deviation of ")
    assert err.count("\n") == 1


def units(*sites):
    return unlike_units([Subspace.from_rows(rows) for rows in sites], [f"s{i}" for i in range(9)])


def test_units_are_judged_by_what_sites_can_know():
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((4000, 3))
    rare = (rng.random((2000, 50)) < np.geomspace(1e-3, 0.3, 50)).astype(float)  # words
    for told, *some in (
        (0, rows[:2000] - rows[:2000].mean(0), rows[2000:] + 1e-3),  # means near zero
        (0, rows, rows[:4] * 1000),  # few rows
        *((0, rows, np.full((9, 3), value)) for value in (0.1, 0.0)),  # constant: no deviation
        (3, rows, np.full((9, 3), 1e6)),  # means
        (3, rows, rows * 1000),  # deviations
        (0, rows, rows * 10),
        (0, rare[:1000], rare[1000:]),
        (0, rows),
    ):
        assert len(units(*some)) == told
    # two of a million columns
    assert len(units(*(rng.standard_normal((5, 200_000)) for _ in "ab"))) <= 4
    many = units(rng.standard_normal((50, 30)), 1e3 * rng.standard_normal((50, 30)))
    assert many[5:] == ["and 25 more columns like these."]
    assert "column 1: the deviation of s1 is" in many[0]
    about_zero = Subspace.from_rows(rows, center=False)
    cut = Subspace.from_rows(rows, 1)._replace(column_scatter=None)
    assert unlike_units([about_zero] * 2, "ab") == unlike_units([cut] * 2, "ab") == []
    named = zip((rows, rows * 1000), ("abc", "abd"), strict=True)
    assert not unlike_units([Subspace.from_rows(Y)._named(list(names)) for Y, names in named], "ab")


def test_means_and_deviations_of_all_sites_for_another_tool(run, sites):
    in_order("south", [1, 0, 2, 3], n_components=1)
    found = printed(run, "scale", *sites, "-o", "scales.csv", "--align", "--json")
    with open("scales.csv", newline="") as stream:
        header, *lines = csv.reader(stream)
    assert header == ["column", "mean", "deviation"]
    names, means, deviations = zip(*lines, strict=True)
    assert list(names) == found["names"] == NAMES
    assert found["rows"] == len(X)
    scaler = StandardScaler().fit(X)
    assert_allclose(np.array(means, float), scaler.mean_)
    assert_allclose(np.array(deviations, float), scaler.scale_, rtol=1e-10)
    assert [float(m) for m in means] == found["mean"]
    out = printed(run, "scale", *sites, "-o", "scales.csv", "--align", "--force")
    assert f"age {X[:, 0].mean():>29.6g}" in out
    site("nameless", X, None)
    printed(run, "scale", "nameless.fed", "-o", "scales.csv", "--force")
    assert Path("scales.csv").read_text().splitlines()[1].startswith("1,")


# ------------------------------------------------------------------------------ a site leaves


def test_a_site_leaves(run, sites):
    printed(run, "merge", *sites, "-o", "all.fed", "-n", "2")
    out = printed(run, "remove", "south", *sites, "-o", "without.fed", "-n", "2")
    assert "sites      north, west\n  rows       35\n" in out
    left = PCA(2).fit(np.concatenate([PARTS["north"], PARTS["west"]])).components_
    cosines = np.linalg.svd(Subspace.load("all.fed").components @ left.T, compute_uv=False)
    again = "-o", "without.fed", "-n", "2", "--json", "--force"
    moved = printed(run, "remove", "south", *sites, *again)["moved"]
    assert_allclose(moved, np.sqrt(1 - cosines[-1] ** 2), rtol=1e-6)
    assert out.endswith(f"\n  moved      {moved:.2g}, of 2 components\n")
    # of a merged file, too
    printed(run, "merge", *sites[:2], "-o", "two.fed")
    printed(run, "remove", "west", "two.fed", sites[2], "-o", "x")
    assert_is_of(Subspace.load("x"), X[:35])


# ------------------------------------------------------------------------------ models


@pytest.mark.parametrize("adjusting", ADJUST)
def test_a_merged_file_needs_no_option_again(run, sites, adjusting):
    """Merged, a site removed, and transformed, beside scikit-learn."""
    options = [*adjusting.split(), "-n", "2"]
    for command, left_in in ((["merge"], np.arange(50)), (["remove", "south"], np.r_[:20, 35:50])):
        told = printed(run, *command, *sites, "-o", "m.fed", "--force", "--json", *options)["model"]
        assert told["scale"] == ("--scale" in options)
        assert told["partial_out"] == (["age"] if "age" in options else [])
        rows = ADJUST[adjusting](X[left_in], X)
        pca = PCA(2).fit(rows[left_in])
        if "--scale" in options:
            ratios = told["explained_variance_ratio"]
            assert_allclose(ratios, pca.explained_variance_ratio_, rtol=1e-10)
        for again, k in ([], 2), (options, 2), (["-n", "1"], 1):
            assert_scores(scores_of(run, "m.fed", *again), pca.transform(rows)[:, :k])
    out = printed(run, "merge", *sites, "-o", "m.fed", "--force", *options)
    assert f"components {4 if '--scale' in options else 2}, float64" in out
    if "age" in options:
        assert "model      2 components, scaled, without effects of 'age'\n" in out
        out = printed(run, "transform", "m.fed", "rows.csv", "-o", "s.csv")
        assert out.endswith("\n  components 2, scaled, without effects of 'age'\n")


def test_files_and_merges_without_options_take_those_of_the_command(run, sites):
    """What releases before wrote, a site that scales, and a merge of a merge."""
    Subspace.from_rows(X)._named(NAMES).save("old.fed")
    want, plain = PCA(3).fit_transform(adjusted()), PCA(4).fit_transform(X)
    assert_scores(scores_of(run, "old.fed", *ADJUSTING, "-n", "2"), want[:, :2])
    assert_scores(scores_of(run, "old.fed"), plain)
    assert Subspace.load("north.fed").model is None
    fitted(run, "rows.csv", *ADJUSTING)
    assert_scores(scores_of(run, "fitted.fed"), want)
    printed(run, "merge", *sites[:2], "-o", "two.fed", *ADJUSTING, "-n", "2")
    code, _, err = run("merge", "two.fed", sites[2], "-o", "all.fed")
    assert code == 0
    assert err.startswith("warning: 'two.fed': made with '--scale', '--partial-out age', which no ")
    assert err.count("\n") == 1
    assert_scores(scores_of(run, "all.fed"), plain)
    with pytest.warns(UserWarning, match="of a model with scale and partial_out, which"):
        FederatedPCA.from_subspaces([Subspace.load("two.fed")], 2)
    printed(run, "merge", sites[2], "-o", "one.fed", *ADJUSTING, "-n", "2")
    err = run("merge", "two.fed", "one.fed", "-o", "three.fed")[2]
    assert "made with '--scale', '--partial-out age', which no " in err
    printed(run, "merge", "two.fed", sites[2], "-o", "all.fed", "--force", *ADJUSTING)
    assert_scores(scores_of(run, "all.fed"), want)
    printed(run, "scale", "two.fed", sites[2], "-o", "scales.csv")


def test_the_rank_that_a_rule_has_found_is_kept(run):
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((300, 2)) @ rng.standard_normal((2, 12)) * 3
    rows = (rows + rng.standard_normal((300, 12))) * 10.0 ** rng.integers(0, 3, 12)
    as_csv("rows.csv", rows, list("abcdefghijkl"))
    fitted(run, "rows.csv")
    out = printed(run, "merge", "fitted.fed", "-o", "m.fed", "--scale", "-n", "parallel")
    assert "model      2 components, scaled\n" in out
    assert_scores(scores_of(run, "m.fed"), PCA(2).fit_transform(rows / rows.std(axis=0)))


def test_a_file_of_few_columns_has_all_directions_and_of_many_some_more_until_it_is_cut(
    run, capsys
):
    as_csv("rows.csv")
    for n in ("2", "0.9", "parallel", "held-out"):
        assert fitted(run, "rows.csv", "--site", "east", "-n", n).n_components == 4
    printed(run, "merge", "fitted.fed", "-o", "two.fed", "-n", "2")
    two = Subspace.load("two.fed")
    assert (two.n_components, two.site) == (2, "east")
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    assert "of up to 500 columns all (default: all)" in " ".join(capsys.readouterr().out.split())
    rows = np.tile(np.random.default_rng(0).standard_normal((400, 300)), 8)
    np.save("rows.npy", rows[:, :300])
    assert fitted(run, "rows.npy", "-n", "3").n_components == 300
    for n, columns in (3, 600), (50, 2400):
        np.save("rows.npy", rows[:, :columns])
        assert fitted(run, "rows.npy", "-n", str(n)).n_components == n + max(10, round(1.26 * n))


# ------------------------------------------------------------------------------ show


def test_components_are_shown_with_names_variances_and_error(run, sites):
    printed(run, "merge", *sites, "-o", "m.fed", *ADJUSTING, "-n", "2")
    found, pca = printed(run, "show", "m.fed", "--json")["model"], PCA(2).fit(adjusted())
    ratio = pca.explained_variance_ratio_
    assert (found["names"], found["partial_out"]) == (NAMES[1:], ["age"])
    assert_scores(np.array(found["loadings"]).T, pca.components_.T)
    assert_allclose(found["explained_variance"], pca.explained_variance_, rtol=1e-10)
    assert_allclose(found["explained_variance_ratio"], ratio, rtol=1e-10)
    assert found["error_bound"] < 1e-9
    out = printed(run, "show", "m.fed")
    assert "model      2 components, scaled, without effects of 'age'\n" in out
    assert "error      at most " in out
    listed = out[out.index("component 1:") :].splitlines()
    assert listed[0] == (
        f"component 1: variance {pca.explained_variance_[0]:.6g}, share {ratio[0]:.3f}, with those "
        f"before {ratio[0]:.3f}"
    )
    by_size = np.argsort(-np.abs(pca.components_[0]))
    assert [line.split()[0] for line in listed[1:4]] == [NAMES[1:][j] for j in by_size]
    assert f"with those before {ratio.sum():.3f}" in listed[4]
    short = printed(run, "show", "m.fed", "--top", "1", "-n", "1").splitlines()
    assert short[-1] == "    and 2 more columns"
    assert "more columns" not in printed(run, "show", "m.fed", "--top", "3")
    assert "model      1 components" in short[-5]
    # columns without names have numbers
    np.save("rows.npy", np.random.default_rng(0).standard_normal((60, 14)))
    fitted(run, "rows.npy")
    out = printed(run, "show", "fitted.fed").splitlines()
    first = next(i for i, line in enumerate(out) if "component 1:" in line)
    largest = np.abs(PCA(1).fit(np.load("rows.npy")).components_[0]).argmax()
    assert out[first + 1].split()[0] == str(largest + 1)
    assert out[-2:] == ["    and 4 more columns", "  and 4 more components"]


@pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
def test_the_error_is_the_one_before_a_cut_or_is_not_known(run, sites):
    """Of two directions without the others nothing could be known any more."""
    printed(run, "merge", *sites, "-o", "m.fed", "-n", "2")
    assert Subspace.load("m.fed").n_components == 2
    assert printed(run, "show", "m.fed", "--json")["model"]["error_bound"] < 1e-9
    stated = "to the components of all rows, as the file states\n"
    assert stated in printed(run, "show", "m.fed")
    assert "as the file states" not in printed(run, "show", "m.fed", "-n", "1")
    Subspace.from_rows(np.eye(8) + 1, 2).save("cut.fed")
    assert "error      not known, as directions were cut" in printed(run, "show", "cut.fed")
    assert printed(run, "show", "cut.fed", "--json")["model"]["error_bound"] is None
    private = AnalyzeGauss(4.0, 1e-5, row_norm=9.0, center=X.mean(axis=0).round().tolist())
    pca = FederatedPCA(2, mechanism=private, random_state=0).fit(X, clients=["a"] * 50)
    pca.subspace_.save("noisy.fed")
    printed(run, "merge", "noisy.fed", "-o", "merged.fed")
    for file in ("noisy.fed", "merged.fed"):
        assert "not known, as the summary has the noise" in printed(run, "show", file)


def test_components_are_drawn(run, monkeypatch):
    settings = pytest.importorskip("matplotlib").rcParams
    Subspace.from_rows(X)._named(["$x$", "{a", "c" * 90, "_d"]).save("odd.fed")
    for kind, start in {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}.items():
        printed(run, "show", "odd.fed", "--plot", f"picture.{kind}")
        assert Path(f"picture.{kind}").read_bytes().startswith(start)
    monkeypatch.setitem(settings, "svg.fonttype", "none")
    options = "--plot", "picture.svg", "--force", "-n", "2", "--top", "3", "--json"
    loadings = printed(run, "show", "odd.fed", *options)["model"]["loadings"]
    picture = ElementTree.parse("picture.svg").getroot()
    texts = [node for node in picture.iter() if node.tag.endswith("}text")]
    written = sorted((round(float(n.get("y"))), float(n.get("x")), n.text) for n in texts)
    shown = [text for *_, text in written if not re.fullmatch(r"\W?[\d.]+", text)]
    ratios = PCA(2).fit(X).explained_variance_ratio_
    titles = [f"component {i} ({100 * r:.0f} %)" for i, r in enumerate(ratios, start=1)]
    largest = np.argsort(-np.abs(loadings), axis=1)[:, :3].T  # a line of the picture is a rank
    names = np.array(["$x$", "{a", "c" * 40, "_d"])[largest].ravel().tolist()
    assert shown == [*titles, *names, "loading", "loading"]
    assert "picture.png exists" in refused(run, "show", "odd.fed", "--plot", "picture.png")
    printed(run, "show", "odd.fed", "--plot", "picture.png", "--force", "-n", "1")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = refused(run, "show", "odd.fed", "--plot", "x.png")
    assert "matplotlib: pip install 'fedpca-sklearn[plot]'" in message
    printed(run, "show", "odd.fed")


# ------------------------------------------------------------------------------ plans


@pytest.mark.filterwarnings("default::fedpca_sklearn.privacy.PrivacyBoundWarning")
@pytest.mark.parametrize("options", [["-n", "3", "--spectrum", "9,4,1,.1"], []])
def test_a_plan_is_that_of_the_mechanism(run, options):
    norm = "4.0" if options else "PrivateNorm(bounds=(0.1, 100.0), share=0.1)"
    code = f"AnalyzeGauss(1.0, 1e-5, row_norm={norm})"
    mechanism = eval(code, {"AnalyzeGauss": AnalyzeGauss, "PrivateNorm": PrivateNorm})
    given = {"n_components": 3, "spectrum": [9, 4, 1, 0.1]} if options else {"n_components": 2}
    plan = mechanism.plan(5000, 20, **given)
    command = "plan", code, "--columns", "20", *options, "--rows"
    names = "epsilon", "error", "n_components_above_noise"
    plans = [{name: getattr(p, name) for name in names} for p in (plan.half, plan, plan.twice)]
    assert printed(run, *command, "5000", "--json")["plans"] == plans
    lines = printed(run, *command, "5000").splitlines()
    assert lines[0] == "5000 rows, 20 columns, delta 1e-05"
    assert lines[3].split()[:2] == ["1", f"{plan.error:.3f}"]
    assert [line.split()[0] for line in lines[2:]] == ["0.5", "1", "2"]
    if not options:
        code, _, err = run(*command, "200")
        assert (code, err.count("warning: A private search may take any norm")) == (0, 1)


# ------------------------------------------------------------------------------ JSON and codes


def test_names_of_files_are_not_obeyed_by_a_terminal(run):
    """Who sends a file chooses its name: escapes, forged lines, bytes that are no text."""
    odd, safe = "\x1b[2J\n  rows  9\udcff.fed", ascii("\x1b[2J\n  rows  9\udcff.fed")[1:-1]
    as_csv("rows.csv"), as_csv(f"{odd}.csv")
    site("model", X)
    Path("model.fed").rename(odd)
    for command, *arguments in (
        ("inspect", odd),
        ("merge", odd, "-o", f"{odd}.2"),
        ("ask", f"{odd}.study", "FederatedPCA(2)", "--sites", "a,b"),
        ("answer", f"{odd}.study/0001.a.question", "rows.csv", "-o", f"{odd}.answer"),
        ("transform", odd, "rows.csv", "-o", f"{odd}.csv", "--force"),
        ("fit", "rows.csv", "-o", f"{odd}.4"),
    ):
        code, out, err = run(command, *arguments)
        assert code == 0, err
        first, *rest = out.splitlines()
        assert safe in (rest[0] if command == "ask" else first)
        assert all(line.startswith("  ") and line.isprintable() for line in rest)
    Path(f"{odd}.log").write_text("x")
    out = run("audit", f"{odd}.log")[1]
    assert out.isascii()
    assert "\x1b" not in out


def test_what_another_command_has_written_meanwhile_is_not_replaced(run, monkeypatch):
    as_csv("rows.csv"), site("model", X)
    output, checked = Path("scores.csv"), Rows._checked
    monkeypatch.setattr(Rows, "_checked", lambda *of: (output.touch(), checked(*of))[1])
    for command in (["fit"], ["transform", "model.fed"]):
        code, _, err = run(*command, "rows.csv", "-o", "scores.csv")
        assert (code, "scores.csv exists" in err, output.read_bytes()) == (1, True, b"")
        output.unlink()


def test_an_output_without_room_letters_or_reader(run, monkeypatch, capsys):
    """A name that the encoding lacks is escaped, a full disk an error in a line."""
    read, write = os.pipe()
    os.close(read)
    site("Zürich", X)
    for file, code, error in (
        ("letters", 0, ""),
        ("/dev/full", 1, "error: [Errno 28] No space left on device\n"),
        (write, 0, ""),
    ):
        with open(file, "w", encoding="ascii") as out, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            assert main(["inspect", "Zürich.fed"]) == code
        assert capsys.readouterr().err == error
    assert r"Z\xfcrich" in Path("letters").read_text()


def test_json_has_no_infinity_and_nothing_that_a_terminal_obeys(run):
    Subspace.from_rows(X)._replace(site="n\u3000\u00e9").save("odd.fed")
    out = run("inspect", "odd.fed", "--json")[1]
    assert out.isascii()
    assert json.loads(out)["summaries"][0]["site"] == "n\u3000\u00e9"
    # two equal variances at the cut: nothing is certain
    Subspace.from_rows(np.kron(np.eye(3), [[1.0], [-1.0]]), 1)._named("abc").save("tie.fed")
    printed(run, "show", "tie.fed", "-n", "1", "--json")


def test_the_script_that_is_installed_is_this_one():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert EntryPoint("fedpca", project["scripts"]["fedpca"], "console_scripts").load() is main


# ------------------------------------------------------------------------------ studies


@pytest.mark.parametrize(("n_refinements", "bound"), [(1, 1e-6), (2, 0.1)])
def test_a_refined_file_keeps_its_model(run, n_refinements, bound):
    """Scaled; cut by the sites: the bound on the error is that of the last round."""
    rng, d = np.random.default_rng(5), 40 if n_refinements == 1 else 400
    rows = rng.standard_normal((900, 3)) @ rng.standard_normal((3, d)) * 0.3
    rows = (rows + 0.05 * rng.standard_normal((900, d))) * 10.0 ** rng.integers(0, 3, d)
    for name, part in zip("ab", np.split(rows, 2), strict=True):
        np.save(f"{name}.npy", part)
    estimator = f"FederatedPCA(3, scale=True, n_refinements={n_refinements})"
    model = by_study(run, estimator, "ab", kind="npy")["output"]
    pca, shown = PCA(3).fit(rows / rows.std(axis=0)), printed(run, "show", model, "--json")["model"]
    cosine = np.linalg.norm(pca.components_ @ np.array(shown["loadings"]).T, -2)
    assert 1 - cosine**2 < 1e-6
    assert shown["scale"] is True
    assert_allclose(shown["explained_variance"], pca.explained_variance_, rtol=1e-3)
    assert shown["error_bound"] < bound
    told = f"error      at most {shown['error_bound']:.1e}, sine of the angle"
    assert told in printed(run, "show", model)


@pytest.mark.parametrize("d", [5, 6])
def test_the_first_five_shares_are_printed(run, d):
    np.save("wide.npy", np.random.default_rng(0).standard_normal((40, d)))
    (line,) = re.findall("explained .*", printed(run, "fit", "wide.npy", "-o", "wide.fed"))
    assert line.endswith(" ...") == (d > 5)
