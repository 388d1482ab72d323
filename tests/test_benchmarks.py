"""The benchmarks: nothing public is left out, and their accuracies are those of the docs."""

import ast
import inspect
import math
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import binom
from sklearn.base import BaseEstimator

import fedpca_sklearn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import WITHOUT_SCENARIO, __main__, _data, _originals, _tools  # noqa: E402

PAGE = (ROOT / "docs" / "benchmarks.md").read_text()
slow = pytest.mark.slow


def scenario(name):
    return import_module(f"benchmarks.{name}")


@pytest.fixture(autouse=True)
def fetched(monkeypatch, tmp_path):
    """No test downloads: the names that fetchers were asked for; they fail as without a network."""
    asked = []

    def unreachable(name=None, **_):
        asked.append(name)
        raise URLError("no network\nhere")

    monkeypatch.setattr(_data.datasets, "get_data_home", lambda: str(tmp_path))
    for fetcher in ("fetch_openml", "fetch_20newsgroups_vectorized"):
        monkeypatch.setattr(_data.datasets, fetcher, unreachable)
    monkeypatch.setattr(_originals, "urlopen", lambda address, timeout: unreachable(address))
    return asked


# ------------------------------------------------------------------------------ the audit


def names_used(path):
    """Names that a module imports from the library and then uses."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    froms = (n for n in nodes if isinstance(n, ast.ImportFrom) and n.module == "fedpca_sklearn")
    imported = {alias.name for node in froms for alias in node.names}
    return imported & {node.id for node in nodes if isinstance(node, ast.Name)}


def test_every_public_name_is_in_a_scenario_or_has_a_reason_and_no_estimator_is_excused():
    used = set().union(*(names_used(p) for p in (ROOT / "benchmarks").glob("[a-z]*.py")))
    assert set(fedpca_sklearn.__all__) - used == set(WITHOUT_SCENARIO)
    for kind in (getattr(fedpca_sklearn, name) for name in WITHOUT_SCENARIO):
        runs = inspect.isclass(kind) and issubclass(kind, BaseEstimator)
        assert not runs or inspect.isabstract(kind)


def test_every_scenario_says_what_it_does_can_be_quick_and_is_on_the_page(capsys):
    assert __main__.main([]) == 0
    lines = capsys.readouterr().out.split("Scenarios:\n")[1].splitlines()
    assert [line.split()[0] for line in lines] == __main__.SCENARIOS
    modules = [scenario(name) for name in __main__.SCENARIOS]
    titles = [__main__.title(module) for module in modules]
    assert all(20 < len(title) <= 100 for title in titles)
    assert len({line.index(t) for line, t in zip(lines, titles, strict=True)}) == 1
    for module in modules:
        assert inspect.signature(module.main).parameters["quick"].default is False
    assert [name for name in __main__.SCENARIOS if f"`bench {name}`" not in PAGE] == []
    assert __main__.main(["accuracy", "acuracy"]) == 2
    assert "no scenario acuracy\n" in capsys.readouterr().out


def files_of_the_page():
    """Files of data in the table of docs/reproduction.md, with the scenarios that read each."""
    table = (ROOT / "docs" / "reproduction.md").read_text().split("## Data\n")[1].split("\n## ")[0]
    lines = [line.split("|") for line in table.splitlines() if line.startswith("| `")]
    return {
        line[1].split("`")[1]: {*line[3].replace("bench ", "").split("`")[1::2]} for line in lines
    }


def test_the_page_of_papers_names_all_scenarios_that_read_a_file_of_data():
    said = files_of_the_page()
    found = {file: set() for file in said}
    for name in __main__.SCENARIOS:
        nodes = list(ast.walk(ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text())))
        texts = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        if "structured" in {node.id for node in nodes if isinstance(node, ast.Name)}:
            texts.update(scenario("_columns").STRUCTURED)
        assert {text for text in texts if text.endswith(".npz")} <= {*said, ".npz"}
        for file in said:
            if file.removesuffix(".npz") in {text.removesuffix(".npz") for text in texts}:
                found[file].add(name)
    assert said == found


# ------------------------------------------------------------------------------ public data


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """A clone without the folder of data beside it."""
    monkeypatch.setattr(_data, "BESIDE", tmp_path / "nowhere")


@pytest.mark.parametrize("X", [np.zeros((208, 60)), np.full((208, 59), 0.28132)])
def test_other_data_of_the_same_name_are_refused(elsewhere, monkeypatch, tmp_path, X):
    found = SimpleNamespace(data=X, target=np.zeros(len(X)))
    monkeypatch.setattr(_data.datasets, "fetch_openml", lambda *_, **__: found)
    with pytest.raises(_data.NotHadError, match="sonar of OpenML is not what it was"):
        _data.path_of("sonar.npz")
    assert not (tmp_path / "fedpca_benchmarks").exists()


def test_data_of_the_folder_are_what_a_fetcher_must_have():
    for name, (*_, shape, mean) in _data.OPENML.items():
        of_both = name == "wine_white.npz"
        file = _data.BESIDE / ("wine_redwhite.npz" if of_both else name)
        if not file.exists():
            pytest.skip(f"the data set {name} is not beside the repository")
        X = np.load(file)["X"][1_599 if of_both else 0 :]
        assert X.shape == shape
        assert_allclose(X.mean(dtype=np.float64), mean, rtol=1e-6)


def test_a_scenario_that_cannot_run_says_so_last_and_by_its_code(
    elsewhere, fetched, monkeypatch, capsys, tmp_path
):
    def main(quick=False):
        for name in ("sonar.npz", "college.npz", "video_person.npz"):
            assert _tools.load(name) is None

    monkeypatch.setattr(_tools, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(scenario("accuracy"), "main", main)
    monkeypatch.setattr(scenario("privacy"), "main", lambda quick=False: None)
    assert __main__.main(["accuracy", "privacy"]) == 1
    out = capsys.readouterr().out
    assert "skipped: sonar.npz, it cannot be fetched: <urlopen error no network here>\n" in out
    address = "https://www.statlearning.com/s/College.csv"
    kept = tmp_path / "fedpca_benchmarks" / "College.csv"
    assert f"no network here>; {address} may be put beside, as {kept}\n" in out
    assert "skipped: video_person.npz, nothing here fetches it, it is of github.com/" in out
    assert out.splitlines()[-1] == (
        "NOT RUN IN FULL, for want of what is in brackets: accuracy (sonar.npz, college.npz, "
        "video_person.npz)"
    )
    assert fetched == ["sonar", address]
    assert __main__.main(["privacy"]) == 0
    assert "NOT RUN" not in capsys.readouterr().out


# ------------------------------------------------------------------------------ claims of the page

# Calls of scenarios (the slow ones with `tasks.py slow`), and below each which of its rows r keep
# what.
CLAIMS = """
adjusting.fits(((600, 60, 5),), 2) + adjusting.batches(((300, 40, 5, 20),), 1)
    True | r["sine"] < 1e-10
    True | {x["units"] for x in rows} == {"like", "unlike"}
# common scales and centres are exact, and those of a site are not
site_effects.angles(quick=True)
    r["way"] == 'SubspaceMerge(center="site")' | r["means"] < 1e-10
    r["way"] == "FederatedScaler" | max(r["scales"], r["sorted"]) < 1e-10
    r["way"] == "each site scales" | min(r["means"], r["sorted"]) > 0.1
    r["way"] == "as they are" | min(v for name, v in r.items() if name != "way") > 0.1
# many clients are merged exactly, and the tree spares the server: 19 directions of 50 features, 19
# values, mean, scatter of columns, count and scatter; at each level two of at most 50 directions
many_clients.measured(200, memory=False)
    r["method"].startswith("10 directions") | r["excess"] < 1e-4
    not r["method"].startswith("10 directions") | r["excess"] < 1e-12
    r["method"] == "FederatedPCA, flat" | isclose(r["MB, busiest"], 1600 * (19 * 51 + 102) / 1e6)
    r["method"] == "tree of 2" | r["rounds"] == 8
    r["method"] == "tree of 2" | r["MB, busiest"] < 8 * 16 * (50 * 51 + 102) / 1e6
# the power method is as near after so many rounds as Lemmas 4.1 and 4.2 say
federated_rounds.lemmas(quick=True)
    True | r["rounds without noise"] < r["L, random start"]
    True | r["within eps"] == r["in Lemma 4.2"] == 1
    True | r["most error / eps"] < 1
slow fuzz_rows.measured(6, seed=1)
    True | [x["format"] for x in rows[:3]] == [".csv", ".tsv", ".npy"]
    True | r["bare errors"] == r["over memory"] == r["over time"] == 0 < r["refused"]
    True | r["read"] + r["refused"] == r["files"] == 6
    True | sum(x["read"] for x in rows) > 0
anomalies.false_alarms(500, 6, [(48, 4)], ("variances 1 / i", "fewer causes"))
    True | 4 <= r["chi2"] <= 6 and 4 <= r["quantile"] <= 6
    True | r["in-sample"] > r["chi2"] + 1
# rounding to the default bits costs nothing
secure_sums.rounding()
    r is rows[-2] | isclose(r["error"], rows[-1]["error"], rel_tol=0.01)
    r is rows[-2] | r["rounds"] == rows[-1]["rounds"]
    r not in rows[-2:] | r["error"] < 8 * 2.0 ** -r["bits"] + 1.01 * rows[-1]["error"]
slow unlike.noise(quick=True)
    True | r["noise-aware"] <= 1.02 * min(r["likelihood"], r["plain"], r["best site"])
    r["v"] == 1 | r["to plain"] < 1e-3
slow unlike.digits(quick=True)
    r["rows a site"] == 9 | r["personalized"] < min(r["shared"], r["local"])
slow how_many.ranks(1)
    True | r["parallel: as of all rows"] == r["mle: as scikit-learn's"] == 1
    r["spikes"] != "none" | r["as permuted"] == 1
slow byzantine.attacks(quick=True)
    r["attack"] == "none" | max(r["directions"], r["variances"]) < 1e-2
    r["attack"] in module.ATTACKS | max(r["directions"], r["mean"], r["variances"]) <= 1.3
    r["attack"] in module.ATTACKS | min(r["recall"], r["precision"]) >= 0.95
slow federated_lemmas.lemma_1(quick=True)
    True | r["singular values"] < 1e-13 and r["first 10 directions"] < 1e-11
slow federated_lemmas.lemma_21(quick=True)
    r is rows[-1] | r["projected / rho(least)"] < 1e-25
    r is not rows[-1] | r["projected / rho(greatest)"] >= 1 - 1e-12
    r["ranks"] == "10-10" and r is not rows[-1] | r["projected / rho(least)"] > 1
slow federated_lemmas.lemma_22(quick=True)
    r in rows[-2:] | r["singular values"] < 1e-13 and r["subspace"] < 1e-11
    r not in rows[-2:] | r["singular values"] > 1e-3 and r["subspace"] > 0.9
slow federated_lemmas.theorem_1(quick=True)
    True | r["tau"] >= r["least tau"] and r["error / residual"] >= 1 - 1e-12
    True | r["error"] <= r["eq. 10"] <= r["of no model"] and r["risk"] <= r["eq. 11"]
slow federated_lemmas.theorem_1_on_synth(quick=True)
    True | r["least tau"] > 4000
slow federated_lemmas.algorithm_2(quick=True)
    True | r['method="orthogonal"'] < 1e-14
    True | (r["as printed"] < 1e-14) == (r["lambda_2"] == 1)
# robust methods find what PCA does not; alternating projections stop at 1e-4 of the data
slow robust_tracking.at_once(quick=True)
    r["method"] == "PCA" | r["low rank"] > 1
    r["method"] != "PCA" | r["F1"] == 1 and r["low rank"] < 5e-3
    r["method"] not in ("PCA", "AlternatingProjections") | r["low rank"] < 1e-5
# what is exact stays so however rows lie at sites; of broken ones PCA sees little but the noise
slow choosing.with_features(50, 2000)
    r["method"] in EXACT and r["sites"] in ("alike", "sorted", "own") | r["excess"] < 1e-10
    r["method"] in EXACT and r["sites"] == "broken" | r["excess"] > 0.1
slow fuzz_files.measured(3000, seed=1)
    True | sum(x["files"] for x in rows) == 3000
    True | r["other"] == r["over the bound"] == 0 < r["refused"]
    r["mutation"] == "labels" | r["valid"] > 0
    r["mutation"] == "cut" | r["valid"] == 0
slow vertical.methods(quick=True)
    True | r["vfedpca"] < min(r["isolated"], r["as printed"]) and r["power"] < 1e-4
# what is unlike is found while the subspace drifts and after a jump; it has no T2, only a p-value
slow anomalies.over_streams(1600, 1)
    True | r["SubspaceMonitor"] >= 0.97 and r["SubspaceMonitor"] > r["PCA of the first 500"]
"""
NAMES = {"isclose": math.isclose, "EXACT": ("DistributedPCA", "FederatedPCA")}


def claims():
    """Calls, and the claims about their rows."""
    found, call = {}, ""
    for line in CLAIMS.strip().splitlines():
        if line.startswith("    "):
            found[call].append(line.strip().split(" | "))
        elif not line.startswith("#"):
            call = line
            found[call] = []
    for call, kept in found.items():
        yield pytest.param(call.removeprefix("slow "), kept, marks=[slow] * call.startswith("slow"))


@pytest.mark.parametrize(("call", "kept"), list(claims()))
def test_rows_of_a_scenario_keep_what_the_page_says(call, kept):
    name = call.partition(".")[0]
    module = scenario(name)
    names = {**NAMES, "module": module, "rows": eval(call, {name: module})}
    for which, claim in kept:
        chosen = [r for r in names["rows"] if eval(which, {**names, "r": r})]
        assert chosen, which
        assert not [r for r in chosen if not eval(claim, {**names, "r": r})], claim


# ------------------------------------------------------------------------------ figures of the page


def cells(heading, first):
    """Cells of the row that starts with ``first`` in the first table below a heading."""
    table = PAGE.split(heading)[1].split("\n|", 1)[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")]
    (row,) = [row for row in rows if row[0] == first]
    return row[1:]


@slow
def test_accuracy_lies_in_the_ranges_of_the_page():
    (row,) = scenario("accuracy").power_laws(quick=True)
    columns = ("StreamingPCA", "32 clients", "32 clients, tree", "Incremental")
    for column, cell in zip(columns, cells("## Accuracy", "1"), strict=True):
        low, high = map(float, cell.split(" to "))
        assert 0.95 * low <= row[column] <= 1.05 * high, column  # printed to two digits
    # what the extra directions are for
    assert 3 * row["StreamingPCA"] < row["oversampling=0"]


@slow
def test_distributed_table_is_that_of_the_paper():
    module = scenario("distributed_table")
    found = module.simulations(quick=True)
    rows = [row for row in module.beside_paper(found) if row["paper"] != ""]
    assert len(rows) == 6 * 7
    for row in rows:
        # a mean of two runs and one of ten, four of their deviations, and both are rounded
        margin = 4 * row["paper, sd"] * math.sqrt(1 / 2 + 1 / 10) + module.LAST_DIGIT
        assert abs(row["mean"] - row["paper"]) < margin, row
    for s, values in found.items():
        assert (set(values["m_a"]), set(values["m_b"])) == ({2}, {6}), s
        as_many = np.array(values["d_a, m_b components"]) / values["d_b"]
        assert np.all((as_many > 0.98) & (as_many < 1.02)), s  # the paper's d_ba is .97
    assert_allclose(module.spectrum(), [1.04] * 2 + [0.04] * 18)


@slow
def test_own_components_are_those_of_the_papers_rounds():
    rows = scenario("unlike").own(quick=True)
    for ours, *rounds in zip(rows[::4], rows[1::4], rows[2::4], rows[3::4], strict=True):
        assert max(ours[k] / rounds[-1][k] for k in ("shared", "local")) <= 1.02
        assert ours["floats"] <= rounds[0]["floats"] / 5


@slow
def test_intervals_of_unlike_sites_have_the_populations_value():
    (row,) = scenario("intervals").coverage("unlike", 25, ["jackknife, blocks"])
    least = binom(25, 0.93).ppf(1e-4) / 25
    assert min(row["variance, least"], row["angle"]) >= least
    assert row["width / variance"] == pytest.approx(0.142, rel=0.05)


@slow
def test_trackers_and_frequent_directions_are_as_far_from_the_best_as_the_page_says():
    module = scenario("trackers")
    X = fedpca_sklearn.make_power_law(4000, 400, alpha=1.0, random_state=0)
    names = {
        "SAPCA": "SAPCA (`rank_rule=ContributionBounds()`)",
        "StreamingPCA(10)": "`StreamingPCA(10)`",
        "FrequentDirections": "`FrequentDirections`",
        "OjaPCA": "`OjaPCA`",
    }
    for row in module.measured("synth1", X, only=names)[0]:
        said = float(cells("## Trackers", names[row["method"]])[3])  # to three decimals
        assert_allclose(row["over best of rank 10"], said, rtol=2e-3, err_msg=row["method"])
    sapca = {"SAPCA": module.methods(400)["SAPCA"]}
    (row,) = module.sketches({"synth1": X - X.mean(axis=0)}, sapca, 10)
    halved, by_the_least = row["20 rows, halved"], row["20 rows, by the least"]
    assert row["SAPCA"] < by_the_least
    assert_allclose([halved, by_the_least], [1.17, 1.113], rtol=2e-3)


@slow
def test_secure_sums_cost_what_the_page_says():
    pytest.importorskip("flwr")
    section = PAGE.split("## Secure sums")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.split("\n") if "| 3 | 100 |" in line]
    rows = scenario("secure_sums").costs([(3, 100)])
    for row, said in zip(rows, lines, strict=True):
        *_, secure, exchanges, _, up, down = said
        assert (row["secure"], row["exchanges"]) == (secure, int(exchanges))
        assert_allclose(row["kB up a site"], float(up), rtol=0.05)
        assert_allclose(row["kB down a site"], float(down), rtol=0.05, atol=0.05)


# ------------------------------------------------------------------------------ parts of scenarios


def test_no_private_vector_with_a_number_a_row_is_near_the_exact_one():
    """Randomised response is private for each row; nothing private is above the bound."""
    module, rng = scenario("vertical_privacy"), np.random.default_rng(0)
    for epsilon in (0.5, 1.0, 4.0):
        bound = module.largest_cosine(epsilon, 0.0)
        kept = rng.random(20_000) < math.exp(epsilon) / (1 + math.exp(epsilon))
        cosine = np.mean(np.where(kept, 1, -1))  # of signs and reported signs
        assert cosine == pytest.approx(math.tanh(epsilon / 2), abs=0.02)
        assert cosine <= bound
    (row,) = module.main(quick=True)
    assert row["left vector"] < row["any mechanism"]


def test_a_replaced_row_moves_the_product_of_columns_by_no_more_than_stated():
    module, rng = scenario("vertical_privacy"), np.random.default_rng(0)
    largest = 0.0
    for n, size in ((3, 1.0), (40, 1.0), (40, 0.1), (400, 1.0)):
        for _ in range(50):
            v = np.sign(rng.standard_normal(module.D)) / math.sqrt(module.D)
            X = size * np.sign(rng.standard_normal((n, 1))) * v
            X[0] = v
            u = X @ v / np.linalg.norm(X @ v) if rng.random() < 0.5 else np.eye(n)[0]
            other = X.copy()
            other[0] = -v if rng.random() < 0.8 else 0 * v
            moved = np.linalg.norm(module.product(X, u) - module.product(other, u))
            largest = max(largest, moved / module.sensitivity(u))
    assert 0.3 < largest <= 1
