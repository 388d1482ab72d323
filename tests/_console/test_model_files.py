"""Files that keep the options of their model, what is shown of it, and sites of few rows.

The oracle is scikit-learn on the pooled rows.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from console_helpers import NAMES, X, as_csv, by_study, refused, run
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression

from fedpca_sklearn import AnalyzeGauss, FederatedPCA, Subspace

__all__ = ["run"]
MIXED = X + 0.5 * X[:, :1]
PARTS = {"north": MIXED[:20], "south": MIXED[20:35], "west": MIXED[35:]}
ADJUSTING = ["--scale", "--partial-out", "age"]
FILES = [f"{name}.fed" for name in PARTS]


def adjusted(rows, by=MIXED):
    """What a linear model on the age leaves of the other columns, scaled by pooled rows."""
    fitted = LinearRegression().fit(by[:, :1], by[:, 1:])
    left = by[:, 1:] - fitted.predict(by[:, :1])
    return (rows[:, 1:] - fitted.predict(rows[:, :1])) / left.std(axis=0)


def scores_of(run, model, *options):
    code, _, err = run("transform", model, "rows.csv", "-o", "s.npy", "--force", *options)
    assert (code, err) == (0, "")
    return np.load("s.npy")


def assert_scores(found, pca, rows):
    want = pca.transform(rows)
    assert found.shape == want.shape
    assert_allclose(found * np.sign(np.sum(found * want, axis=0)), want, atol=1e-9)


@pytest.fixture
def sites(run):
    as_csv("rows.csv", MIXED)
    for name, rows in PARTS.items():
        as_csv(f"{name}.csv", rows)
        assert run("fit", f"{name}.csv", "-o", f"{name}.fed", "--site", name)[0] == 0
    return FILES


# ------------------------------------------------------------------------------ options of a model


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ([*ADJUSTING, "-n", "2"], adjusted(MIXED)),
        (["--scale", "-n", "2"], MIXED / MIXED.std(axis=0)),
        (["-n", "2"], MIXED),
    ],
)
def test_a_merged_file_needs_no_option_again(run, sites, options, rows):
    assert run("merge", *sites, "-o", "m.fed", *options)[0] == 0
    pca = PCA(2).fit(rows)
    assert_scores(scores_of(run, "m.fed"), pca, rows)
    assert_scores(scores_of(run, "m.fed", "-n", "1"), PCA(1).fit(rows), rows)
    assert_scores(scores_of(run, "m.fed", *options), pca, rows)  # the same ones again
    run("remove", "west", *sites, "-o", "left.fed", *options)
    assert scores_of(run, "left.fed").shape == (50, 2)


def test_the_rank_that_a_rule_has_found_is_kept(run):
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((300, 2)) @ rng.standard_normal((2, 12)) * 3
    rows = (rows + rng.standard_normal((300, 12))) * 10.0 ** rng.integers(0, 3, 12)
    names = [f"c{j}" for j in range(12)]
    as_csv("rows.csv", rows, names)
    run("fit", "rows.csv", "-o", "all.fed")
    out = run("merge", "all.fed", "-o", "m.fed", "--scale", "-n", "parallel")[1]
    assert "model      2 components, scaled\n" in out
    scaled = rows / rows.std(axis=0)
    assert_scores(scores_of(run, "m.fed"), PCA(2).fit(scaled), scaled)


def test_what_contradicts_a_file_names_both_values(run, sites):
    run("merge", *sites, "-o", "adjusted.fed", *ADJUSTING, "-n", "2")
    run("merge", *sites, "-o", "plain.fed", "-n", "2")
    for model, options, words in (
        ("plain", ["--scale"], ["scale=True", "scale=False"]),
        ("plain", ["--partial-out", "age"], ["partial_out=['age']", "partial_out=None"]),
        ("adjusted", ["--partial-out", "pulse"], ["['pulse']", "partial_out=['age']"]),
        ("adjusted", ["-n", "3"], ["asks for 3 components", "has 2"]),
        ("adjusted", ["-n", "0.999"], ["asks for 3 components", "has 2"]),
    ):
        for command in (
            ["transform", f"{model}.fed", "rows.csv", "-o", "x.npy"],
            ["show", f"{model}.fed"],
        ):
            message = refused(run, *command, *options)
            assert all(word in message for word in [*words, f"{model}.fed"]), message
            assert "another model by merge" in message
    assert "'size' must be a column" in refused(run, "show", "plain.fed", "--partial-out", "size")


def test_files_without_options_take_those_of_the_command(run, sites):
    """Summaries of sites, and what releases before wrote."""
    Subspace.from_rows(MIXED)._named(NAMES).save("old.fed")
    rows = adjusted(MIXED)
    assert_scores(scores_of(run, "old.fed", *ADJUSTING, "-n", "2"), PCA(2).fit(rows), rows)
    assert_scores(scores_of(run, "old.fed"), PCA(4).fit(MIXED), MIXED)
    assert Subspace.load("north.fed").model is None


def test_a_site_that_scales_has_scaled_scores(run):
    as_csv("rows.csv", MIXED)
    assert run("fit", "rows.csv", "-o", "site.fed", *ADJUSTING)[0] == 0
    assert_scores(scores_of(run, "site.fed"), PCA(3).fit(adjusted(MIXED)), adjusted(MIXED))


def test_a_merge_has_the_options_of_its_command_and_says_which_it_left_out(run, sites):
    run("merge", *sites[:2], "-o", "two.fed", *ADJUSTING, "-n", "2")
    code, _, err = run("merge", "two.fed", sites[2], "-o", "all.fed")
    assert code == 0
    assert err.startswith("warning: 'two.fed': made with '--scale', '--partial-out age', which no ")
    assert err.count("\n") == 1
    assert_scores(scores_of(run, "all.fed"), PCA(4).fit(MIXED), MIXED)
    code, _, err = run("merge", "two.fed", sites[2], "-o", "all.fed", "--force", *ADJUSTING)
    assert (code, err) == (0, "")
    assert_scores(scores_of(run, "all.fed"), PCA(3).fit(adjusted(MIXED)), adjusted(MIXED))
    assert run("scale", "two.fed", sites[2], "-o", "scales.csv")[2] == ""


def test_a_refined_file_keeps_its_model(run):
    """Cut by the sites; the bound on the error is that of the last round."""
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((900, 3)) @ rng.standard_normal((3, 400)) * 0.3
    rows = (rows + 0.05 * rng.standard_normal((900, 400))) * 10.0 ** rng.integers(0, 3, 400)
    for name, part in zip("ab", np.split(rows, 2), strict=True):
        np.save(f"{name}.npy", part)
    estimator = "FederatedPCA(3, scale=True, n_refinements=2)"
    model = by_study(run, estimator, "ab", kind="npy")["output"]
    scaled = rows / rows.std(axis=0)
    pca = PCA(3).fit(scaled)
    shown = json.loads(run("show", model, "--json")[1])["model"]
    sine = np.linalg.norm(pca.components_ @ np.array(shown["loadings"]).T, -2)
    assert 1 - sine**2 < 1e-6
    assert shown["scale"] is True
    assert_allclose(shown["explained_variance"], pca.explained_variance_, rtol=1e-3)
    assert shown["error_bound"] < 0.1
    out = run("show", model)[1]
    assert f"error      at most {shown['error_bound']:.1e}, sine of the angle" in out


# ------------------------------------------------------------------------------ show


def test_components_are_shown_with_names_variances_and_error(run, sites):
    run("merge", *sites, "-o", "m.fed", *ADJUSTING, "-n", "2")
    code, out, err = run("show", "m.fed", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)["model"]
    pca = PCA(2).fit(adjusted(MIXED))
    assert found["names"] == NAMES[1:]
    assert found["partial_out"] == ["age"]
    signs = np.sign(np.sum(np.array(found["loadings"]) * pca.components_, axis=1))
    assert_allclose(np.array(found["loadings"]), signs[:, None] * pca.components_, atol=1e-9)
    assert_allclose(found["explained_variance"], pca.explained_variance_, rtol=1e-10)
    assert_allclose(found["explained_variance_ratio"], pca.explained_variance_ratio_, rtol=1e-10)
    assert found["error_bound"] < 1e-9
    code, out, _ = run("show", "m.fed")
    assert code == 0
    assert "model      2 components, scaled, without effects of 'age'\n" in out
    assert "error      at most " in out
    listed = out[out.index("component 1:") :].splitlines()
    ratio = pca.explained_variance_ratio_
    assert listed[0] == (
        f"component 1: variance {pca.explained_variance_[0]:.6g}, share {ratio[0]:.3f}, with those "
        f"before {ratio[0]:.3f}"
    )
    by_size = np.argsort(-np.abs(pca.components_[0]))
    names = [line.split()[0] for line in listed[1:4]]
    assert names == [NAMES[1:][j] for j in by_size]
    assert f"with those before {ratio.sum():.3f}" in listed[4]
    short = run("show", "m.fed", "--top", "1", "-n", "1")[1].splitlines()
    assert short[-1] == "    and 2 more columns"
    assert "model      1 components" in short[-5]


def test_the_error_of_a_cut_file_is_the_one_before_the_cut(run, sites):
    """Of two directions without the others nothing could be known any more."""
    run("merge", *sites, "-o", "m.fed", "-n", "2")
    assert Subspace.load("m.fed").n_components == 2
    assert json.loads(run("show", "m.fed", "--json")[1])["model"]["error_bound"] < 1e-9
    assert "to the components of all rows, as the file states\n" in run("show", "m.fed")[1]
    assert "as the file states" not in run("show", "m.fed", "-n", "1")[1]
    Subspace.from_rows(np.eye(8) + 1, 2).save("cut.fed")
    code, out, _ = run("show", "cut.fed")
    assert code == 0
    assert "error      not known, as directions were cut" in out
    assert json.loads(run("show", "cut.fed", "--json")[1])["model"]["error_bound"] is None


@pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
def test_noise_is_no_error_that_is_known(run):
    private = AnalyzeGauss(4.0, 1e-5, row_norm=9.0, center=[50.0, 170.0, 70.0, 80.0])
    pca = FederatedPCA(2, mechanism=private, random_state=0).fit(X, clients=["a"] * 50)
    pca.subspace_.save("noisy.fed")
    assert "not known, as the summary has the noise" in run("show", "noisy.fed")[1]
    run("merge", "noisy.fed", "-o", "m.fed")
    assert "not known, as the summary has the noise" in run("show", "m.fed")[1]


def test_columns_without_names_have_numbers_and_long_lists_an_end(run):
    rows = np.random.default_rng(0).standard_normal((60, 14))
    np.save("rows.npy", rows)
    run("fit", "rows.npy", "-o", "rows.fed")
    out = run("show", "rows.fed")[1].splitlines()
    largest = np.abs(PCA(1).fit(rows).components_[0]).argmax()
    assert out[out.index(next(line for line in out if "component 1:" in line)) + 1].split()[0] == (
        str(largest + 1)
    )
    assert out[-2:] == ["    and 4 more columns", "  and 4 more components"]


def test_components_are_drawn(run, sites):
    pytest.importorskip("matplotlib")
    Subspace.from_rows(X)._named(["$x$", "{a", "c" * 90, "_d"]).save("odd.fed")
    starts = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    for kind, start in starts.items():
        assert run("show", "odd.fed", "--plot", f"picture.{kind}")[0] == 0
        assert Path(f"picture.{kind}").read_bytes().startswith(start)
    assert "picture.png exists" in refused(run, "show", "odd.fed", "--plot", "picture.png")
    assert run("show", "odd.fed", "--plot", "picture.png", "--force", "-n", "1")[0] == 0
    message = refused(run, "show", "odd.fed", "--plot", "picture.txt")
    assert "--plot must end in one of .png, .pdf, .svg, got picture.txt" in message
    Path("odd.fed").rename("odd.svg")
    assert "one of the files" in refused(run, "show", "odd.svg", "--plot", "odd.svg", "--force")


def test_a_picture_without_matplotlib_says_what_is_missing(run, sites, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    message = refused(run, "show", "north.fed", "--plot", "x.png")
    assert "matplotlib: pip install 'fedpca-sklearn[plot]'" in message
    assert run("show", "north.fed")[0] == 0


# ------------------------------------------------------------------------------ few rows


@pytest.mark.parametrize("options", [[], ["--drop-missing"], ["--scale"]])
def test_a_site_of_few_rows_writes_nothing_unless_it_is_allowed(run, options):
    as_csv("one.csv", X[:1])
    message = refused(run, "fit", "one.csv", "-o", "one.fed", *options)
    assert "one.csv: 1 row, and --min-rows is 10" in message
    assert "--min-rows 1 allows it" in message
    as_csv("nine.csv", X[:9])
    message = refused(run, "fit", "nine.csv", "-o", "nine.fed", *options)
    assert "9 rows, and --min-rows is 10" in message
    assert run("fit", "nine.csv", "-o", "nine.fed", "--min-rows", "9", *options)[0] == 0
    assert run("fit", "one.csv", "nine.csv", "-o", "ten.fed", *options)[0] == 0
    assert "--min-rows is 51" in refused(
        run, "fit", "one.csv", "nine.csv", "-o", "x.fed", "--min-rows", "51", *options
    )


def test_rows_that_are_left_out_do_not_count(run):
    rows = X[:15].copy()
    rows[:6, 1] = np.nan
    as_csv("rows.csv", rows)
    message = refused(run, "fit", "rows.csv", "-o", "x.fed", "--drop-missing")
    assert "9 rows, and --min-rows is 10" in message
    as_csv("none.csv", X[:0])
    assert "there is no row" in refused(run, "fit", "none.csv", "-o", "x.fed")


@pytest.mark.parametrize("least", ["0", "-1", "2.5", "few"])
def test_least_rows_are_a_number(run, least, capsys):
    with pytest.raises(SystemExit) as stop:
        run("fit", "a.csv", "-o", "x.fed", "--min-rows", least)
    assert stop.value.code == 2
    assert "--min-rows" in capsys.readouterr().err
