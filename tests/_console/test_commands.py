"""The commands between sites: columns matched by name, units, a site that leaves, JSON, codes."""

import csv
import json
import tomllib
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from console_helpers import NAMES, WRITERS, X, as_csv, assert_is_of, by_study, refused, run
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import (
    ConditionalFill,
    FederatedPCA,
    PairMoments,
    StreamingPCA,
    Subspace,
)
from fedpca_sklearn.__main__ import main
from fedpca_sklearn._console._units import unlike_units
from fedpca_sklearn.summary._scaling import select_columns

__all__ = ["run"]
PARTS = {"north": X[:20], "south": X[20:35], "west": X[35:]}


def site(name, rows, names=NAMES, n_components=None):
    pca = StreamingPCA(n_components, oversampling=0).fit(rows)
    named = None if names is None else tuple(names)
    pca.subspace_._replace(feature_names=named).save(f"{name}.fed", site=name)
    return f"{name}.fed"


@pytest.fixture
def sites(run):
    return [site(name, rows) for name, rows in PARTS.items()]


# ------------------------------------------------------------------------------ columns by name


def test_columns_in_another_order_are_aligned(run, sites):
    order = [2, 0, 3, 1]
    site("south", PARTS["south"][:, order], [NAMES[j] for j in order])
    message = refused(run, "merge", *sites, "-o", "model.fed")
    assert "another order: 'weight' at position 0" in message
    assert "--align matches columns by name" in message
    assert "subspaces[1] is south.fed" in message
    code, _, err = run("merge", *sites, "-o", "model.fed", "--align")
    assert (code, err) == (0, "")
    assert_is_of(Subspace.load("model.fed"), X)
    assert Subspace.load("model.fed").feature_names == tuple(NAMES)


@pytest.mark.parametrize("n_components", [None, 4])
def test_columns_that_some_sites_have_not_are_left_out_and_named(run, sites, n_components):
    more = np.column_stack([np.arange(15.0) ** 2, PARTS["south"][:, [3, 1, 2]]])
    site("south", more, ["salt", "pulse", "height", "weight"], n_components)
    message = refused(run, "merge", *sites, "-o", "model.fed")
    assert "lacks 'age' and has 'salt'" in message
    assert "--align" in message
    code, _, err = run("merge", *sites, "-o", "model.fed", "--align")
    assert code == 0
    assert "warning: north.fed has no 'salt': left out of all.\n" in err
    assert "warning: south.fed has no 'age': left out of all.\n" in err
    merged = Subspace.load("model.fed")
    assert merged.feature_names == ("height", "weight", "pulse")
    assert_is_of(merged, X[:, 1:])
    assert merged.sites == tuple(PARTS)


def test_columns_cannot_be_aligned_without_names_or_with_none_in_common(run, sites):
    site("south", PARTS["south"], None)
    assert "south.fed: it has no names" in refused(run, "merge", *sites, "-o", "x", "--align")
    site("south", PARTS["south"], ["a", "b", "c", "d"])
    assert "no column is in all of" in refused(run, "merge", *sites, "-o", "x", "--align")


def test_selected_columns_are_those_of_the_rows():
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((40, 7)) @ np.diag(np.arange(7, 0, -1)) + 1e3
    for chosen in ([4, 1], [6], [6, 5, 4, 3, 2, 1, 0]):
        selected = select_columns(Subspace.from_rows(rows), chosen)
        assert_is_of(selected, rows[:, chosen])
        assert_allclose(selected.scatter, np.sum((rows - rows.mean(0))[:, chosen] ** 2))
        assert_allclose(selected.column_scatter, np.var(rows[:, chosen], axis=0) * 40)
    narrow = select_columns(Subspace.from_rows(rows[:3]), [0, 1, 2])
    assert narrow.n_components == 2
    assert select_columns(Subspace.empty(3), [1]).n_components == 0


def test_what_was_cut_stays_below_the_rows_and_their_scatter_is_exact():
    rows = np.random.default_rng(3).standard_normal((60, 6))
    cut = Subspace.from_rows(rows, 2)
    chosen = [0, 3, 5]
    selected = select_columns(cut, chosen)
    deviations = (rows - rows.mean(axis=0))[:, chosen]
    assert_allclose(selected.scatter, np.sum(deviations**2))
    V, s = selected.components, selected.singular_values
    assert_allclose(V @ V.T, np.eye(len(V)), atol=1e-12)
    left = np.linalg.eigvalsh(deviations.T @ deviations - (V.T * s**2) @ V)
    assert left.min() > -1e-9
    blind = cut._replace(column_scatter=None)
    with pytest.raises(ValueError, match="lacks the scatter of its columns"):
        select_columns(blind, chosen)
    assert select_columns(blind, [5, 4, 3, 2, 1, 0]).scatter == cut.scatter


# ------------------------------------------------------------------------------ units


def test_units_a_hundredfold_apart_are_named(run, sites):
    rows = PARTS["west"].copy()
    rows[:, 1] /= 100  # metres
    site("west", rows)
    code, out, err = run("merge", *sites, "-o", "model.fed", "--json")
    assert code == 0
    (warning,) = json.loads(out)["warnings"]
    south, west = (np.std(PARTS[name][:, 1], ddof=1) for name in ("south", "west"))
    assert warning == (
        f"column 'height': the deviation of 'south' is {south:.3g}, of 'west' {west / 100:.3g}; "
        "are the units the same?"
    )
    assert err == f"warning: {warning}\n"
    assert run("inspect", *sites)[2] == err
    site("west", PARTS["west"])
    assert run("merge", *sites, "-o", "model.fed", "--force")[2] == ""


def test_a_site_sees_that_its_units_are_not_those_of_others(run, sites):
    rows = PARTS["west"].copy()
    rows[:, 2] *= 1000
    as_csv("west.csv", rows)
    code, _, err = run("fit", "west.csv", "-o", "w.fed", "--site", "west", "--like", "north.fed")
    assert code == 0
    assert err.startswith("warning: column 'weight': the deviation of 'west' is ")
    np.save("west.npy", rows[:, :2])
    message = refused(run, "fit", "west.npy", "-o", "n.fed", "--like", "north.fed")
    assert "west.npy: it has 2 columns without names, not 4" in message


def units(*sites):
    return unlike_units([Subspace.from_rows(rows) for rows in sites], [f"s{i}" for i in range(9)])


def test_units_are_judged_by_what_sites_can_know():
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((4000, 3))
    assert units(rows[:2000] - rows[:2000].mean(0), rows[2000:] + 1e-3) == []  # means near zero
    assert units(rows, rows[:4] * 1000) == []  # few rows
    assert units(rows, np.full((9, 3), 0.1)) == []  # constant: no deviation
    assert units(rows, np.zeros((9, 3))) == []
    assert len(units(rows, np.full((9, 3), 1e6))) == 3  # means
    assert len(units(rows, rows * 1000)) == 3  # deviations
    assert len(units(rows, rows * 10)) == 0
    small = rng.standard_normal((5, 200_000))  # two of a million columns
    assert len(units(rng.standard_normal((5, 200_000)), small)) <= 4
    rare = rng.random((2000, 50)) < np.geomspace(1e-3, 0.3, 50)  # words
    assert units(rare[:1000].astype(float), rare[1000:].astype(float)) == []
    many = units(rng.standard_normal((50, 30)), 1e3 * rng.standard_normal((50, 30)))
    assert many[5:] == ["and 25 more columns like these."]
    assert "column 1: the deviation of s1 is" in many[0]
    assert units(rows) == []
    about_zero = Subspace.from_rows(rows, center=False)
    assert len(unlike_units([about_zero, about_zero], "ab")) == 0
    cut = Subspace.from_rows(rows, 1)._replace(column_scatter=None)
    assert unlike_units([cut, cut], "ab") == []


# ------------------------------------------------------------------------------ a site leaves


def test_a_site_leaves(run, sites):
    code, out, _ = run("remove", "south", *sites, "-o", "without.fed", "-n", "2")
    assert code == 0
    assert "sites      north, west\n  rows       35\n" in out
    left = np.concatenate([PARTS["north"], PARTS["west"]])
    want = PCA(2).fit(left)
    found = Subspace.load("without.fed")
    assert_allclose(found.singular_values, want.singular_values_, rtol=1e-10)
    sine = np.linalg.norm(
        want.components_ - want.components_ @ found.components.T @ found.components
    )
    assert sine < 1e-10
    run("merge", *sites, "-o", "all.fed", "-n", "2")
    before = Subspace.load("all.fed").components
    moved = json.loads(
        run("remove", "south", *sites, "-o", "without.fed", "-n", "2", "--json", "--force")[1]
    )["moved"]
    cosines = np.linalg.svd(before @ want.components_.T, compute_uv=False)
    assert_allclose(moved, np.sqrt(1 - cosines[-1] ** 2), rtol=1e-6)


def test_a_site_that_cannot_leave(run, sites):
    message = refused(run, "remove", "east", *sites, "-o", "x")
    assert "no file is of the site 'east' alone: they are of 'north', 'south', 'west'" in message
    run("merge", *sites[:2], "-o", "two.fed")
    message = refused(run, "remove", "south", "two.fed", sites[2], "-o", "x")
    assert "two.fed is merged" in message
    assert "the last client" in refused(run, "remove", "north", sites[0], "-o", "x")
    assert "site 'north'" in refused(run, "remove", "north", "two.fed", sites[0], "-o", "x")
    assert run("remove", "west", "two.fed", sites[2], "-o", "x")[0] == 0
    assert_is_of(Subspace.load("x"), X[:35])


# ------------------------------------------------------------------------------ scales, confounders


def without_age(rows, left_in):
    """What a linear model on the age leaves of the other columns, scaled."""
    fitted = LinearRegression().fit(rows[left_in, :1], rows[left_in, 1:])
    left = rows[:, 1:] - fitted.predict(rows[:, :1])
    return left / left[left_in].std(axis=0)


def test_scaled_columns_without_a_confounder_are_those_of_pooled_rows(run, sites):
    """Merged, a site removed, and transformed, beside scikit-learn."""
    adjusting = ["--scale", "--partial-out", "age", "-n", "2"]
    mixed = X + 0.5 * X[:, :1]
    for name, rows in zip(PARTS, np.split(mixed, [20, 35]), strict=True):
        site(name, rows)
    for command, left_in in (
        (["merge"], np.arange(50)),
        (["remove", "south"], np.r_[:20, 35:50]),
    ):
        code, out, _ = run(*command, *sites, "-o", "m.fed", "--force", "--json", *adjusting)
        assert code == 0
        adjusted = without_age(mixed, left_in)
        want = PCA(2).fit(adjusted[left_in])
        told = json.loads(out)["model"]
        assert (told["scale"], told["partial_out"]) == (True, ["age"])
        ratios = told["explained_variance_ratio"]
        assert_allclose(ratios, want.explained_variance_ratio_, rtol=1e-10)
        as_csv("rows.csv", mixed)
        run("transform", "m.fed", "rows.csv", "-o", "s.npy", "--force", *adjusting)
        scores, found = want.transform(adjusted), np.load("s.npy")
        assert_allclose(found * np.sign(np.sum(found * scores, axis=0)), scores, atol=1e-10)
    out = run("merge", *sites, "-o", "m.fed", "--force", *adjusting)[1]
    assert "components 4, float64" in out  # of the columns as they are
    assert "model      2 components, scaled, without effects of 'age'\n" in out
    assert "'size' must be a column" in refused(
        run, "merge", *sites, "-o", "x.fed", "--partial-out", "size"
    )


def test_means_and_deviations_of_all_sites_for_another_tool(run, sites):
    site("south", PARTS["south"][:, [1, 0, 2, 3]], [NAMES[j] for j in (1, 0, 2, 3)], 1)
    assert "another order" in refused(run, "scale", *sites, "-o", "scales.csv")
    code, out, err = run("scale", *sites, "-o", "scales.csv", "--align", "--json")
    assert (code, err) == (0, "")
    with open("scales.csv", newline="") as stream:
        header, *lines = csv.reader(stream)
    assert header == ["column", "mean", "deviation"]
    names, means, deviations = zip(*lines, strict=True)
    found = json.loads(out)
    assert list(names) == found["names"] == NAMES
    assert found["rows"] == len(X)
    scaler = StandardScaler().fit(X)
    assert_allclose(np.array(means, float), scaler.mean_)
    assert_allclose(np.array(deviations, float), scaler.scale_, rtol=1e-10)
    assert [float(m) for m in means] == found["mean"]
    code, out, _ = run("scale", *sites, "-o", "scales.csv", "--align", "--force")
    assert code == 0
    assert f"age {X[:, 0].mean():>29.6g}" in out
    assert "scales.csv exists" in refused(run, "scale", *sites, "-o", "scales.csv")
    site("south", PARTS["south"] * [1, 100, 1, 1])
    _, _, err = run("scale", *sites, "-o", "other.csv")
    assert "warning: column 'height': the" in err


def test_scales_that_a_summary_does_not_know_and_columns_without_names(run):
    site("east", X, None)
    assert run("scale", "east.fed", "-o", "scales.csv")[0] == 0
    assert Path("scales.csv").read_text().splitlines()[1].startswith("1,")
    blind = StreamingPCA().fit(X).subspace_.truncate(2)._replace(column_scatter=None)
    blind.save("blind.fed")
    assert "blind.fed" not in Path("scales.csv").read_text()
    assert "scatter" in refused(run, "scale", "blind.fed", "-o", "x.csv")
    assert not Path("x.csv").exists()


def test_a_site_keeps_digits_of_small_columns_and_confounders(run):
    rows = X * [1e9, 1, 1e-9, 1]
    for name, some in ("a", rows[:25]), ("b", rows[25:]):
        as_csv(f"{name}.csv", some)
        wanted = ["--scale", "--partial-out", "pulse"]
        assert run("fit", f"{name}.csv", "-o", f"{name}.fed", "--site", name, *wanted)[0] == 0
    merged = FederatedPCA.from_subspaces(
        [Subspace.load("a.fed"), Subspace.load("b.fed")], 2, scale=True, partial_out=["pulse"]
    )
    C, Y = X[:, 3:], X[:, :3]
    left = Y - LinearRegression().fit(C, Y).predict(C)
    expected = PCA(2).fit(StandardScaler().fit_transform(left))
    assert_allclose(merged.explained_variance_, expected.explained_variance_, rtol=1e-10)
    message = refused(run, "fit", "a.csv", "-o", "x.fed", "--partial-out", "salt")
    assert "partial_out='salt' must be a column" in message


def test_scaled_columns_are_refined(run):
    """With the bound on the error, beside PCA of the pooled rows in equal units."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((600, 40)) * np.geomspace(1, 0.2, 40) @ rng.standard_normal((40, 40))
    rows = rows * 10.0 ** rng.integers(-2, 3, 40)
    for name, part in zip("abc", np.split(rows, 3), strict=True):
        np.save(f"{name}.npy", part)
    want = PCA(3).fit(rows / rows.std(axis=0))
    found = by_study(run, "FederatedPCA(3, scale=True, n_refinements=1)", "abc", kind="npy")
    model = Subspace.load(found["output"])
    assert model.model.error_bound < 1e-6
    fitted = FederatedPCA.from_subspaces([model], 3, scale=True)
    assert_allclose(fitted.explained_variance_, want.explained_variance_, rtol=1e-6)


def test_components_that_a_file_has_cut_are_refused(run, sites):
    run("merge", *sites, "-o", "model.fed", "-n", "2")
    message = refused(run, "merge", "model.fed", "-o", "more.fed", "-n", "3")
    assert "n_components=3 must be at most 2: the summary was cut, and keeps 2 of 4" in message
    as_csv("rows.csv")
    message = refused(run, "transform", "model.fed", "rows.csv", "-o", "scores.csv", "-n", "4")
    assert "n_components=4 must be at most 2" in message
    assert not Path("scores.csv").exists()


@pytest.mark.parametrize("n", ["2", "0.9", "parallel", "held-out"])
def test_a_file_of_few_columns_has_all_directions_until_it_is_cut(run, capsys, n):
    as_csv("rows.csv")
    assert run("fit", "rows.csv", "-o", "all.fed", "--site", "east", "-n", n)[0] == 0
    assert Subspace.load("all.fed").n_components == 4
    assert run("merge", "all.fed", "-o", "two.fed", "-n", "2")[0] == 0
    two = Subspace.load("two.fed")
    assert (two.n_components, two.site) == (2, "east")
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    assert "of up to 256 columns all (default: all)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("n", [3, 50])
def test_a_file_of_many_columns_has_some_more_directions(run, n):
    rows = np.random.default_rng(0).standard_normal((400, 300))
    np.save("rows.npy", np.tile(rows, 8)[:, : 300 if n == 3 else 2400])
    assert run("fit", "rows.npy", "-o", "some.fed", "-n", str(n))[0] == 0
    assert Subspace.load("some.fed").n_components == n + max(10, round(1.25 * n + 0.01))


def test_a_rule_that_counts_components_is_the_estimators(run, sites):
    assert "'n_components'" in refused(run, "merge", *sites, "-o", "x.fed", "-n", "few")
    out = run("merge", *sites, "-o", "model.fed", "-n", "parallel", "--json")[1]
    assert json.loads(out)["components"] == FederatedPCA("parallel").fit(X).n_components_


# ------------------------------------------------------------------------------ JSON and codes


def test_everything_that_prints_prints_json(run, sites):
    as_csv("rows.csv")
    done = {
        ("fit", "rows.csv", "-o", "all.fed"): "rows",
        ("inspect", *sites): "summaries",
        ("merge", *sites, "-o", "model.fed", "-n", "2"): "explained_variance_ratio",
        ("remove", "west", *sites, "-o", "less.fed"): "moved",
        ("ask", "study", "FederatedPCA(2)", "--sites", "a,b"): "awaited",
        ("answer", "study/0001.a.question", "rows.csv", "-o", "a.answer"): "refusal",
        ("next", "study"): "awaited",
        ("transform", "model.fed", "rows.csv", "-o", "scores.npy"): "components",
    }
    for command, key in done.items():
        code, out, err = run(*command, "--json")
        assert (code, err) == (0, "")
        found = json.loads(out, parse_constant=pytest.fail)
        assert key in found
        assert found["warnings"] == []
    shown = json.loads(run("inspect", "model.fed", "--json")[1])["summaries"][0]
    assert shown["sites"] == list(PARTS)
    assert shown["site"] is None
    assert shown["names"] == NAMES
    assert_allclose(shown["explained_variance"], PCA(2).fit(X).explained_variance_)
    code, out, err = run("inspect", "none.fed", "--json")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1


def test_names_of_files_are_not_obeyed_by_a_terminal(run):
    """Who sends a file chooses its name: escapes, forged lines, bytes that are no text."""
    odd = "\x1b[2J\n  rows  9\udcff.fed"
    as_csv("rows.csv"), as_csv(f"{odd}.csv")
    site("model", X)
    Path("model.fed").rename(odd)
    for command in (
        ("inspect", odd),
        ("merge", odd, "-o", f"{odd}.2"),
        ("ask", f"{odd}.study", "FederatedPCA(2)", "--sites", "a,b"),
        ("answer", f"{odd}.study/0001.a.question", "rows.csv", "-o", f"{odd}.answer"),
        ("transform", odd, "rows.csv", "-o", f"{odd}.csv", "--force"),
        ("fit", "rows.csv", "-o", f"{odd}.4"),
    ):
        code, out, err = run(*command)
        assert code == 0, err
        first, *rest = out.splitlines()
        assert ascii(odd)[1:-1] in (rest[0] if command[0] == "ask" else first)
        assert all(line.startswith("  ") and line.isprintable() for line in rest)
    Path(f"{odd}.log").write_text("x")
    _, out, _ = run("audit", f"{odd}.log")
    assert out.isascii()
    assert "\x1b" not in out


def test_json_has_no_infinity_and_nothing_that_a_terminal_obeys(run, sites):
    Subspace.from_rows(X)._replace(site="n\u3000\u00e9").save("odd.fed")
    out = run("inspect", "odd.fed", "--json")[1]
    assert out.isascii()
    assert json.loads(out)["summaries"][0]["site"] == "n\u3000\u00e9"
    # two equal variances at the cut: nothing is certain
    Subspace.from_rows(np.kron(np.eye(3), [[1.0], [-1.0]]), 1)._named("abc").save("tie.fed")
    code, out, _ = run("show", "tie.fed", "-n", "1", "--json")
    assert code == 0
    json.loads(out, parse_constant=pytest.fail)


def test_a_command_that_is_none_exits_with_2(run, capsys):
    rows = ["fit", "rows.csv", "-o", "b"]
    for wrong in (
        [],
        ["fitt"],
        rows[:2],
        [*rows, "--separator", "::"],
        [*rows, "--separator", '"'],
        [*rows, "--like", "a", "--columns", "b"],
        ["merge", "a", "-o", "b", "-n", "2x"],
    ):
        with pytest.raises(SystemExit) as stop:
            run(*wrong)
        assert stop.value.code == 2
        assert "usage: fedpca" in capsys.readouterr().err


def test_the_script_that_is_installed_is_this_one():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert EntryPoint("fedpca", project["scripts"]["fedpca"], "console_scripts").load() is main


def test_a_warning_of_the_library_is_one_line(run, sites):
    Subspace.from_rows(X)._named(NAMES).save("nobody.fed")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, _, err = run("merge", *sites, "nobody.fed", "-o", "model.fed")
    assert code == 0
    assert err.startswith("warning: subspaces[3] has no site")
    assert err.count("\n") == 1


@pytest.mark.parametrize("kind", ["csv", "parquet", "h5ad"])
def test_from_files_of_sites_to_scores(kind, run):
    """The whole way, beside scikit-learn on the pooled rows."""
    orders = ([0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2])
    for order, (name, rows) in zip(orders, PARTS.items(), strict=True):
        WRITERS[kind](f"{name}.{kind}", rows[:, order], [NAMES[j] for j in order])
        assert run("fit", f"{name}.{kind}", "-o", f"{name}.fed", "--site", name)[0] == 0
    files = [f"{name}.fed" for name in PARTS]
    assert run("merge", *files, "-o", "model.fed", "--align")[0] == 0
    for name in PARTS:
        output = f"{name}.npy"
        assert run("transform", "model.fed", f"{name}.{kind}", "-o", output, "-n", "3")[0] == 0
    found = np.concatenate([np.load(f"{name}.npy") for name in PARTS])
    want = PCA(3).fit_transform(X)
    signs = np.sign(np.sum(found * want, axis=0))
    assert_allclose(found * signs, want, atol=1e-10)


@pytest.mark.parametrize("more", [[], ["--force"]])
def test_a_folder_that_is_not_there_is_named(run, sites, more):
    as_csv("rows.csv")
    for command in (["fit", "rows.csv"], ["merge", *sites], ["scale", *sites]):
        message = refused(run, *command, "-o", "gone/z.fed", *more)
        assert "gone/z.fed cannot be written: there is no folder gone." in message
        assert ".part" not in message


@pytest.mark.parametrize("name", ["", " "])
def test_a_site_without_a_name_is_refused(run, sites, name):
    as_csv("rows.csv")
    run("ask", "study", "FederatedPCA(2)", "--sites", "a,b")
    for command in (["fit", "rows.csv"], ["answer", "study/0001.a.question", "rows.csv"]):
        message = refused(run, *command, "-o", "z.fed", "--site", name)
        assert f"--site must be a name, got {name!r}" in message


# ------------------------------------------------------------------------------ missing entries


def test_a_file_of_another_kind_says_what_it_is(run):
    PairMoments.from_rows(X).save("pairs.fed")
    for command in ["inspect"], ["merge", "-o", "z.fed"], ["scale", "-o", "z.csv"]:
        message = refused(run, *command, "pairs.fed")
        assert "pairs.fed: Not a subspace summary: it is moments of pairs." in message


def test_rows_are_filled_in_at_sites_in_rounds(run, tmp_path_factory, monkeypatch):
    """The numbers of one process, and those that sites without missing entries lead to."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    rows = X.copy()
    rows[np.random.default_rng(3).random(X.shape) < 0.3] = np.nan
    parts = {"north": rows[:20], "south": rows[20:35], "west": rows[35:]}
    for name, part in parts.items():
        as_csv(f"{name}.csv", part)
    found = by_study(run, "FederatedPCA(1, missing=ConditionalFill())", parts, "--min-rows", "1")
    expected = FederatedPCA(1, missing=ConditionalFill(n_rounds=2))
    expected.fit(rows, clients=np.repeat(list(parts), [20, 15, 15]))
    model = Subspace.load(found["output"])
    fitted = FederatedPCA.from_subspaces([model], 1)
    for name in ("components_", "mean_", "explained_variance_", "noise_variance_"):
        assert_allclose(getattr(fitted, name), getattr(expected, name), rtol=1e-12)
    assert model.sites == tuple(parts)
