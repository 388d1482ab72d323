"""The benchmarks: nothing public is left out, and their accuracies are those of the docs."""

import ast
import hashlib
import inspect
import io
import math
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import binom
from sklearn.base import BaseEstimator

import fedpca_sklearn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import WITHOUT_SCENARIO, __main__, _data, _originals, _tools  # noqa: E402

PAGE = (ROOT / "docs" / "benchmarks.md").read_text()


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


def names_used(path):
    """Names that a module imports from the library and then uses."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    imported = {
        alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module == "fedpca_sklearn"
        for alias in node.names
    }
    return imported & {node.id for node in nodes if isinstance(node, ast.Name)}


# ------------------------------------------------------------------------------ the audit


def test_every_public_name_is_in_a_scenario_or_has_a_reason():
    used = set().union(*(names_used(p) for p in (ROOT / "benchmarks").glob("[a-z]*.py")))
    public = set(fedpca_sklearn.__all__)
    assert public - used == set(WITHOUT_SCENARIO)


@pytest.mark.parametrize("name", WITHOUT_SCENARIO)
def test_no_estimator_or_strategy_is_excused(name):
    kind = getattr(fedpca_sklearn, name)
    runs = inspect.isclass(kind) and issubclass(kind, BaseEstimator)
    assert not runs or inspect.isabstract(kind)


@pytest.mark.parametrize("name", __main__.SCENARIOS)
def test_a_scenario_says_what_it_does_and_can_be_quick(name):
    module = scenario(name)
    assert 20 < len(__main__.title(module)) <= 100
    assert inspect.signature(module.main).parameters["quick"].default is False


def test_the_list_names_every_scenario_once_and_aligned(capsys):
    assert __main__.main([]) == 0
    lines = capsys.readouterr().out.split("Scenarios:\n")[1].splitlines()
    assert [line.split()[0] for line in lines] == __main__.SCENARIOS
    titles = [__main__.title(scenario(name)) for name in __main__.SCENARIOS]
    assert len({line.index(t) for line, t in zip(lines, titles, strict=True)}) == 1


def test_the_page_of_papers_names_all_scenarios_that_read_a_file_of_data():
    table = (ROOT / "docs" / "reproduction.md").read_text().split("## Data\n")[1].split("\n## ")[0]
    said = {}
    for line in table.splitlines():
        if line.startswith("| `"):
            name, _, needed_for = line.strip("|").split("|")
            said[name.split("`")[1]] = set(needed_for.replace("bench ", "").split("`")[1::2])
    found = {file: set() for file in said}
    for name in __main__.SCENARIOS:
        tree = ast.parse((ROOT / "benchmarks" / f"{name}.py").read_text())
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        if "structured" in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}:
            texts.update(scenario("_columns").STRUCTURED)
        named = {text.removesuffix(".npz") for text in texts if isinstance(text, str)}
        assert {text for text in texts if str(text).endswith(".npz")} <= {*said, ".npz"}
        for file in said:
            if file.removesuffix(".npz") in named:
                found[file].add(name)
    assert said == found


def test_an_unknown_scenario_is_named(capsys):
    assert __main__.main(["accuracy", "acuracy"]) == 2
    assert "no scenario acuracy\n" in capsys.readouterr().out


def test_every_scenario_is_on_the_page():
    missing = [name for name in __main__.SCENARIOS if f"`bench {name}`" not in PAGE]
    assert missing == []


# ------------------------------------------------------------------------------ public data


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """A clone without the folder of data beside it."""
    monkeypatch.setattr(_data, "BESIDE", tmp_path / "nowhere")


def openml(**arrays):
    """A stand-in for scikit-learn's fetcher: data and target by name and version."""

    def fetch(name, *, version, as_frame, parser):
        assert (version, as_frame, parser) == (1, False, "auto")
        data, target = arrays[name.replace("-", "_")]
        return SimpleNamespace(data=data, target=target)

    return fetch


def test_data_are_fetched_once_and_kept(elsewhere, monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    pixels, digits = rng.integers(0, 256, (70_000, 2)).astype(float), np.arange(70_000) % 10
    monkeypatch.setitem(
        _data.OPENML,
        "mnist_test.npz",
        ("mnist_784", 1, slice(60_000, None), (10_000, 2), pixels[60_000:].mean()),
    )
    fetch = openml(mnist_784=(pixels, digits.astype(str).astype(object)))
    monkeypatch.setattr(_data.datasets, "fetch_openml", fetch)
    path = _data.path_of("mnist_test.npz")
    assert path.parent.parent == tmp_path
    data = np.load(path)
    assert data["X"].dtype == np.uint8
    assert_array_equal(data["X"], pixels[60_000:])
    assert_array_equal(data["y"], digits[60_000:])
    monkeypatch.delattr(_data.datasets, "fetch_openml")
    assert _tools.load("mnist_test.npz") == path
    assert [file.name for file in path.parent.iterdir()] == ["mnist_test.npz"]


def test_wines_and_classes_are_those_of_the_folder(elsewhere, monkeypatch):
    rng = np.random.default_rng(1)
    red, white = rng.random((1_599, 11)), rng.random((4_898, 11))
    for name, X in (("wine_red.npz", red), ("wine_white.npz", white)):
        monkeypatch.setitem(_data.OPENML, name, (*_data.OPENML[name][:4], X.mean()))
    qualities = np.resize(np.arange(3, 9), 1_599), np.resize(np.arange(1, 8), 4_898)
    fetch = openml(
        wine_quality_red=(red, qualities[0].astype(str)), wine_quality_white=(white, qualities[1])
    )
    monkeypatch.setattr(_data.datasets, "fetch_openml", fetch)
    data = np.load(_data.path_of("wine_redwhite.npz"))
    assert_allclose(data["X"], np.concatenate([red, white]), rtol=1e-6)
    assert_array_equal(data["y"], np.concatenate([qualities[0], qualities[1] + 2]))
    assert_array_equal(np.bincount(data["colour"]), [1_599, 4_898])
    sonar = rng.random((208, 60))
    monkeypatch.setitem(_data.OPENML, "sonar.npz", (*_data.OPENML["sonar.npz"][:4], sonar.mean()))
    fetch = openml(sonar=(sonar, np.repeat(["Rock", "Mine"], [97, 111])))
    monkeypatch.setattr(_data.datasets, "fetch_openml", fetch)
    assert_array_equal(np.load(_data.path_of("sonar.npz"))["y"], np.repeat([1, 0], [97, 111]))


def test_counts_of_words_are_a_sparse_file(elsewhere, monkeypatch, capsys):
    counts = sp.csr_matrix(np.eye(3))

    def fetch(*, subset, normalize):
        assert (subset, normalize) == ("all", False)
        return SimpleNamespace(data=counts)

    monkeypatch.setattr(_data.datasets, "fetch_20newsgroups_vectorized", fetch)
    found = sp.load_npz(_data.path_of("newsgroups20_counts.npz"))
    assert found.dtype == np.int32
    assert_array_equal(found.toarray(), np.eye(3))
    assert "18,846 texts" in capsys.readouterr().out


def test_other_data_of_the_same_name_are_refused(elsewhere, monkeypatch, tmp_path):
    for X in (np.zeros((208, 60)), np.full((208, 59), 0.28132)):
        monkeypatch.setattr(_data.datasets, "fetch_openml", openml(sonar=(X, np.zeros(len(X)))))
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


LIGHT = "45.08000183\t0\t49.26181793\n0.460000008\t1847.359985\t0\n"
COLLEGES = """"","Private","Apps","S.F.Ratio","Grad.Rate"
"Abilene Christian University","Yes",1660,18.1,60
"University of Alabama, Birmingham",No,"1797",6.7,33
"""


def test_published_files_are_read_as_they_are(elsewhere, monkeypatch, tmp_path):
    light = np.array([[45.08, 0, 49.26182], [0.46, 1847.36, 0]], dtype=np.float32)
    colleges = np.array([[1660, 18.1, 60], [1797, 6.7, 33]], dtype=np.float32)
    found = []
    for name, text, X in (
        ("motes_light.npz", LIGHT, light),
        ("college.npz", COLLEGES, colleges),
    ):
        address, read, _ = _originals.ORIGINALS[name]
        digest = hashlib.sha256(read(text)["X"].tobytes()).hexdigest()
        monkeypatch.setitem(_originals.ORIGINALS, name, (address, read, digest))
        monkeypatch.setattr(
            _originals, "urlopen", lambda *_, text=text, **__: io.BytesIO(text.encode())
        )
        found.append(np.load(_data.path_of(name)))
        assert_allclose(found[-1]["X"], X, rtol=1e-7)
    assert found[1]["y"].tolist() == [1, 0]
    assert found[1]["names"].tolist() == ["Apps", "S.F.Ratio", "Grad.Rate"]


def test_published_files_may_be_put_beside_and_must_be_those_of_the_figures(elsewhere, tmp_path):
    folder = tmp_path / "fedpca_benchmarks"
    folder.mkdir()
    for text, words in (
        (LIGHT, "q8calibLight.dat is not what it was: the SHA-256 of its numbers"),
        ("<html>moved</html>", "could not convert string"),
    ):
        (folder / "q8calibLight.dat").write_text(text)
        with pytest.raises(_data.NotHadError, match=words):
            _data.path_of("motes_light.npz")
    (folder / "College.csv").write_text("a,b\n1,2\n")
    with pytest.raises(_data.NotHadError, match="expected Private among them"):
        _data.path_of("college.npz")
    assert {file.name for file in folder.iterdir()} == {"q8calibLight.dat", "College.csv"}


@pytest.mark.parametrize("name", _originals.ORIGINALS)
def test_published_files_are_those_of_the_folder(name, monkeypatch, tmp_path):
    """As they are published, with ten digits: the files of the folder were made of them."""
    if not (_data.BESIDE / name).exists():
        pytest.skip(f"the data set {name} is not beside the repository")
    data = dict(np.load(_data.BESIDE / name))
    rows = [[f"{x:.10g}" for x in row] for row in data["X"].tolist()]
    if name == "college.npz":
        kinds = ["Yes" if private else "No" for private in data["y"]]
        rows = [["", kind, *row] for kind, row in zip(kinds, rows, strict=True)]
        rows = [["", "Private", *data["names"]], *rows]
    tab = "," if name == "college.npz" else "\t"
    file = _originals.ORIGINALS[name][0].rsplit("/", 1)[1]
    (tmp_path / file).write_text("\n".join(map(tab.join, rows)))
    found = _originals.arrays_of(name, tmp_path)
    for key, array in data.items():
        assert_array_equal(found[key], array)


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


def test_all_files_of_data_can_be_asked_for(elsewhere, fetched, capsys):
    assert _data.main([]) == 1
    said = {line.split(":")[0] for line in capsys.readouterr().out.splitlines()}
    table = (ROOT / "docs" / "reproduction.md").read_text().split("## Data\n")[1].split("\n## ")[0]
    needed = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}
    assert said == needed | {"wine_white.npz"}
    assert len(fetched) == 9


# ------------------------------------------------------------------------------ accuracy


def cells(heading, first):
    """Cells of the row that starts with ``first`` in the first table below a heading."""
    table = PAGE.split(heading)[1].split("\n|", 1)[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.split("\n")]
    (row,) = [row for row in rows if row[0] == first]
    return row[1:]


@pytest.mark.slow
def test_accuracy_lies_in_the_ranges_of_the_page():
    (row,) = scenario("accuracy").power_laws(quick=True)
    columns = ("StreamingPCA", "32 clients", "32 clients, tree", "Incremental")
    for column, cell in zip(columns, cells("## Accuracy", "1"), strict=True):
        low, high = map(float, cell.split(" to "))
        assert 0.95 * low <= row[column] <= 1.05 * high, column  # printed to two digits
    # what the extra directions are for
    assert 3 * row["StreamingPCA"] < row["oversampling=0"]


@pytest.mark.slow
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


@pytest.mark.slow
def test_noise_aware_merges_are_as_good_as_maximum_likelihood():
    for row in scenario("unlike").noise(quick=True):
        assert row["noise-aware"] <= 1.02 * row["likelihood"], row
        assert row["noise-aware"] <= 1.02 * min(row["plain"], row["best site"]), row
        if row["v"] == 1:
            assert row["to plain"] < 1e-3


@pytest.mark.slow
def test_own_components_are_those_of_the_papers_rounds():
    rows = scenario("unlike").own(quick=True)
    for ours, *rounds in zip(rows[::4], rows[1::4], rows[2::4], rows[3::4], strict=True):
        assert max(ours[k] / rounds[-1][k] for k in ("shared", "local")) <= 1.02
        assert ours["floats"] <= rounds[0]["floats"] / 5
    tens = [row for row in scenario("unlike").digits(quick=True) if row["rows a site"] == 9]
    for row in tens:
        assert row["personalized"] < min(row["shared"], row["local"])


def test_adjusted_fits_are_those_of_pooled_rows():
    adjusting = scenario("adjusting")
    found = adjusting.fits(((600, 60, 5),), 2) + adjusting.batches(((300, 40, 5, 20),), 1)
    assert all(row["sine"] < 1e-10 for row in found)
    assert {row["units"] for row in found} == {"like", "unlike"}


@pytest.mark.slow
def test_sites_count_as_many_components_as_all_rows_have():
    for row in scenario("how_many").ranks(1):
        assert row["parallel: as of all rows"] == row["mle: as scikit-learn's"] == 1
        assert row["as permuted"] == 1 or row["spikes"] == "none"


@pytest.mark.slow
def test_intervals_of_unlike_sites_have_the_populations_value():
    (row,) = scenario("intervals").coverage("unlike", 25, ["jackknife, blocks"])
    least = binom(25, 0.93).ppf(1e-4) / 25
    assert min(row["variance, least"], row["angle"]) >= least
    assert row["width / variance"] == pytest.approx(0.142, rel=0.05)


@pytest.mark.slow
def test_sites_that_lie_are_named_and_cost_nothing():
    module = scenario("byzantine")
    for row in module.attacks(quick=True):
        if row["attack"] == "none":
            assert max(row["directions"], row["variances"]) < 1e-2, row
        elif row["attack"] in module.ATTACKS:
            assert max(row["directions"], row["mean"], row["variances"]) <= 1.3, row
            assert min(row["recall"], row["precision"]) >= 0.95, row


def test_common_scales_and_centres_are_exact_and_those_of_a_site_are_not():
    of = {row.pop("way"): row for row in scenario("site_effects").angles(quick=True)}
    assert of['SubspaceMerge(center="site")']["means"] < 1e-10
    assert max(of["FederatedScaler"][kind] for kind in ("scales", "sorted")) < 1e-10
    assert min(of["each site scales"][kind] for kind in ("means", "sorted")) > 0.1
    assert min(of["as they are"].values()) > 0.1


def test_a_coreset_has_the_cost_of_all_points():
    coresets = import_module("benchmarks._coresets")
    rng = np.random.default_rng(0)
    nodes = [rng.standard_normal((n, 3)) * scale for n, scale in ((300, 1), (200, 5), (100, 0.1))]
    centres = rng.standard_normal((4, 3))

    def cost(points, weights):
        return weights @ np.min(((points[:, None] - centres) ** 2).sum(axis=2), axis=1)

    found = [coresets.coreset(nodes, 4, 60, seed) for seed in range(40)]
    for _, weights in found:
        assert_allclose(weights.sum(), 600)
    costs = [cost(*points_and_weights) for points_and_weights in found]
    exact = cost(np.concatenate(nodes), np.ones(600))
    assert abs(np.mean(costs) - exact) <= 4 * np.std(costs) / math.sqrt(len(costs))
    # by the costs, some 1 to 17: nearly all of the sample is of the second node
    sampled = [np.sum(np.linalg.norm(points, axis=1) > 4) for points, _ in found]
    assert min(sampled) > 20
    clusters = [rng.standard_normal((250, 2)) + mean for mean in (0, 10, 30)]
    mixed = rng.permutation(np.concatenate(clusters))
    model = coresets.distributed_k_means(np.split(mixed, 3), 3, 100)
    means = np.sort(model.cluster_centers_[:, 0])
    assert_allclose(means, [0, 10, 30], atol=1)  # eight standard deviations of a mean of 60


def test_projected_data_are_those_of_eq_5():
    module = scenario("federated_lemmas")
    X, rank = np.random.default_rng(0).standard_normal((230, 30)) @ np.diag(np.arange(30, 0, -1)), 6
    want = np.zeros((0, 30))
    for start in range(0, 230, 50):  # SVD_r of the last estimate beside the block
        U, s, Vt = np.linalg.svd(np.vstack([want, X[start : start + 50]]), full_matrices=False)
        want = (U[:, :rank] * s[:rank]) @ Vt[:rank]
    assert_allclose(module.projected_data(X, module.spca(rank)), want, atol=1e-9)


@pytest.mark.slow
def test_lemmas_hold_where_nothing_is_cut_and_not_as_they_are_printed():
    module = scenario("federated_lemmas")
    for row in module.lemma_1(quick=True):
        assert row["singular values"] < 1e-13
        assert row["first 10 directions"] < 1e-11
    *cut, whole = module.lemma_21(quick=True)
    assert whole["projected / rho(least)"] < 1e-25
    for row in cut:
        assert row["projected / rho(greatest)"] >= 1 - 1e-12  # eq. 16
        if row["ranks"] == "10-10":
            assert row["projected / rho(least)"] > 1  # against Lemma 2.1
    *cut, whole, clients = module.lemma_22(quick=True)
    for row in (whole, clients):
        assert row["singular values"] < 1e-13
        assert row["subspace"] < 1e-11
    for row in cut:
        assert row["singular values"] > 1e-3
        assert row["subspace"] > 0.9
    for row in module.theorem_1(quick=True):
        assert row["tau"] >= row["least tau"]
        assert row["error / residual"] >= 1 - 1e-12
        assert row["error"] <= row["eq. 10"] <= row["of no model"]
        assert row["risk"] <= row["eq. 11"]
    assert all(row["least tau"] > 4000 for row in module.theorem_1_on_synth(quick=True))
    for row in module.algorithm_2(quick=True):
        assert row['method="orthogonal"'] < 1e-14
        assert (row["as printed"] < 1e-14) == (row["lambda_2"] == 1)


def test_amortised_time_is_that_of_one_client_and_the_levels():
    module = scenario("federated_paper")
    S = module.rotation(20)
    found = module.clients_at_work(1.0, S, (16_000, 32_000), (1, 4))
    assert {key: len(clients) for key, clients in found.items()} == {
        (n, m): m for n in (16_000, 32_000) for m in (1, 4)
    }
    for (n, m), clients in found.items():
        assert [summary.n_samples for _, summary in clients] == [n // m] * m
        seconds, row = sum(s for s, _ in clients), module.times(clients)
        merge = row["a merge, ms"] / 1e3
        assert_allclose(row["real, one core"], seconds + (m - 1) * merge)
        assert_allclose(row["amortised"], seconds / m + math.log2(m) * merge)


def test_many_clients_are_merged_exactly_and_the_tree_spares_the_server():
    rows = {row["method"]: row for row in scenario("many_clients").measured(200, memory=False)}
    for method, row in rows.items():
        assert row["excess"] < (1e-4 if method.startswith("10 directions") else 1e-12), method
    flat = rows["FederatedPCA, flat"]
    # 19 directions of 50 features, 19 singular values, mean, scatter of columns, count and scatter
    assert_allclose(flat["MB, busiest"], 8 * 200 * (19 * 50 + 19 + 50 + 50 + 2) / 1e6)
    # at each of 8 levels of the tree two summaries of at most 50 directions
    assert rows["tree of 2"]["rounds"] == 8
    assert rows["tree of 2"]["MB, busiest"] < 8 * 8 * 2 * (50 * 50 + 50 + 50 + 50 + 2) / 1e6


@pytest.mark.slow
def test_trackers_are_as_far_from_the_best_as_the_page_says():
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


@pytest.mark.parametrize("halved", [True, False])
def test_sketches_in_so_many_rows_keep_the_bound_of_frequent_directions(halved):
    X = fedpca_sklearn.make_power_law(300, 30, alpha=0.5, random_state=0)
    sketch = import_module("benchmarks._sketch").numpy_frequent_directions(X, 12, halved=halved)
    assert sketch.shape == (12, 30)
    missing = np.linalg.eigvalsh(X.T @ X - sketch.T @ sketch)
    squares = np.linalg.svd(X, compute_uv=False) ** 2
    lowered = 6 if halved else 12  # directions that each lowering takes from, Ghashami et al.
    bound = min(squares[k:].sum() / (lowered - k) for k in range(lowered))
    assert -1e-9 * squares[0] <= missing[0]
    assert 0.1 * bound < missing[-1] <= bound


@pytest.mark.slow
def test_frequent_directions_in_20_rows_are_as_far_off_as_the_page_says():
    module = scenario("trackers")
    X = fedpca_sklearn.make_power_law(4000, 400, alpha=1.0, random_state=0)
    sapca = {"SAPCA": module.methods(400)["SAPCA"]}
    (row,) = module.sketches({"synth1": X - X.mean(axis=0)}, sapca, 10)
    assert row["SAPCA"] < row["20 rows, by the least"] < row["20 rows, halved"]
    assert_allclose(
        [row["20 rows, halved"], row["20 rows, by the least"]], [1.17, 1.113], rtol=2e-3
    )


@pytest.mark.slow
def test_robust_methods_find_what_pca_does_not():
    for row in scenario("robust_tracking").at_once(quick=True):
        if row["method"] == "PCA":
            assert row["low rank"] > 1
            continue
        assert row["F1"] == 1.0
        exact = row["method"] != "AlternatingProjections"  # which stops at tol=1e-4 of the data
        assert row["low rank"] < (1e-5 if exact else 5e-3), row["method"]


def test_the_power_method_is_as_near_after_so_many_rounds_as_lemmas_4_1_and_4_2_say():
    for row in scenario("federated_rounds").lemmas(quick=True):
        assert row["rounds without noise"] < row["L, random start"]
        assert row["within eps"] == 1
        assert row["most error / eps"] < 1
        assert row["in Lemma 4.2"] == 1


@pytest.mark.slow
def test_as_many_clients_send_as_the_channel_lets_through():
    rows = {row["channel"]: row for row in scenario("federated_rounds").losses(quick=True)}
    assert rows["0% drop out"]["median error"] < 1e-6
    for channel, share in {
        "10% drop out": 0.9,
        "50% drop out": 0.5,
        "Gaussian": 1.0,
        "fading": math.exp(-1 / 10),
        "fading, max_power=2": math.exp(-1 / 2),
    }.items():
        # four standard deviations of the mean of 120 rounds of 20 clients
        margin = 4 * 20 * math.sqrt(share * (1 - share) / 2400)
        assert abs(rows[channel]["clients"] - 20 * share) <= margin, channel


@pytest.mark.slow
def test_what_is_exact_stays_so_however_rows_lie_at_sites():
    for row in scenario("choosing").with_features(50, 2000):
        if row["method"] in ("DistributedPCA", "FederatedPCA"):
            if row["sites"] in ("alike", "sorted", "own"):
                assert row["excess"] < 1e-10, row
            elif row["sites"] == "broken":  # PCA of all rows sees little but the noise
                assert row["excess"] > 0.1, row


def test_exponent_of_a_power_law():
    sizes = np.array([100, 200, 400, 800])
    exponent = scenario("scaling").exponent
    assert_allclose(exponent(sizes, 3e-4 * sizes**1.7), (1.7, 0), atol=1e-12)
    noise = np.array([1.1, 1 / 1.1, 1.1, 1 / 1.1])
    slope, error = np.polyfit(np.log(sizes), np.log(sizes * noise), 1, cov=True)
    assert_allclose(exponent(sizes, sizes * noise), (slope[0], math.sqrt(error[0, 0])))


@pytest.mark.slow
def test_mutated_files_and_labels_end_in_value_errors_or_valid_summaries():
    rows = scenario("fuzz_files").measured(3000, seed=1)
    assert sum(row["files"] for row in rows) == 3000
    for row in rows:
        assert row["other"] == row["over the bound"] == 0, row
        assert row["refused"] > 0
    by_name = {row["mutation"]: row for row in rows}
    assert by_name["labels"]["valid"] > 0  # so that they were read
    assert by_name["cut"]["valid"] == 0


def test_every_way_to_feed_a_stream_leads_to_the_components():
    module = scenario("stream_batches")
    X = fedpca_sklearn.make_power_law(400, 20, alpha=1.0, random_state=3)
    weights = 2.0 ** -((module.TIMES[399] - module.TIMES[:400]) / np.timedelta64(1, "h"))
    faded = fedpca_sklearn.StreamingPCA(10).fit(X, sample_weight=weights).components_
    for size in (1, 10, 400):
        by_hand = module.Products()
        way = partial(module.by_partial_fit, by_hand)
        seconds, expected = module.fed(way, X, size, np.inf)
        assert 0 < by_hand.of_checks < 400 * seconds
        V = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)[2]
        assert fedpca_sklearn.subspace_distance(expected, V[:10]) < 1e-10
        for name in module.WAYS.keys() - {"IncrementalPCA"}:
            _, found = module.fed(module.WAYS[name], X, size, np.inf)
            target = faded if name == "half-life" else expected
            assert fedpca_sklearn.subspace_distance(found, target) < 1e-10, name


def test_a_way_to_feed_a_stream_gets_no_batch_after_its_time():
    module, sizes = scenario("stream_batches"), []

    def way(batches):
        sizes.extend(len(rows) for rows in batches)

    module.fed(way, np.zeros((100, 3)), 20, -1.0)
    module.fed(way, np.zeros((100, 3)), 50, np.inf)
    assert sizes == [20, 50, 50]


def test_the_rows_of_a_scenario_follow_from_a_seed(monkeypatch, tmp_path, capsys):
    module, tables = scenario("stream_batches"), {}
    monkeypatch.setattr(_tools, "RESULTS", tmp_path)
    drawn = []

    def few(X, size, *_):
        drawn.append(X)
        return {"products": 2e-6, "read": 3e-6}, 0.25

    monkeypatch.setattr(module, "measured", few)
    monkeypatch.setattr(module, "table", lambda name, rows: tables.update({name: rows}))
    for seed in ("3", "4"):
        assert __main__.main(["--quick", "stream_batches", "--seed", seed]) == 0
        assert f"seed {seed}\n" in capsys.readouterr().out
    half = len(drawn) // 2
    assert [X.shape for X in drawn[:half]] == [X.shape for X in drawn[half:]]
    assert all(abs(X - Y).max() > 1 for X, Y in zip(drawn[:half], drawn[half:], strict=True))
    assert tables["stream_batches"][0]["products"] == 2.0
    assert tables["stream_batches"][0]["of it checks"] == 0.25
    assert tables["stream_batches_ratios"][0]["read"] == pytest.approx(1.5)


def test_bombs_and_damaged_files_of_rows_end_in_one_line():
    rows = scenario("fuzz_rows").measured(6, seed=1)
    assert [row["format"] for row in rows[:3]] == [".csv", ".tsv", ".npy"]
    for row in rows:
        assert row["bare errors"] == row["over memory"] == row["over time"] == 0, row
        assert row["read"] + row["refused"] == row["files"] == 6
        assert row["refused"] > 0
    assert sum(row["read"] for row in rows) > 0


def what_came_of(path, monkeypatch, fit):
    """The outcome that the benchmark counts where `fedpca` is another function."""
    module = scenario("fuzz_rows")
    monkeypatch.setattr(module, "fedpca", fit)
    monkeypatch.setattr(module.resource, "setrlimit", lambda *limit: None)
    sent = []
    module.what_came(str(path), "none", SimpleNamespace(send=sent.append))
    return sent[0][0]


@pytest.mark.parametrize(
    ("message", "outcome"),
    [
        ("error: rows.csv: it is no csv.\n", "refused"),
        ("error: MemoryError\n", "over memory"),
        ("error: Unable to allocate 7.45 GiB for an array with shape (9, 9)\n", "over memory"),
        ("error: rows.csv: two\nlines.\n", "bare errors"),
        ("Traceback\n", "bare errors"),
        (ValueError("text"), "bare errors"),
        (MemoryError(), "over memory"),
    ],
)
def test_what_comes_of_a_file_of_rows_is_counted_as_what_it_is(
    tmp_path, monkeypatch, message, outcome
):
    def fit(command):
        if isinstance(message, Exception):
            raise message
        sys.stderr.write(message)
        return 1

    assert what_came_of(tmp_path / "rows.csv", monkeypatch, fit) == outcome


@pytest.mark.slow
def test_columns_at_clients_are_as_the_page_says():
    module = scenario("vertical")
    rows = module.methods(quick=True)
    for row in rows:
        assert row["vfedpca"] < row["isolated"], row
        assert row["vfedpca"] < row["as printed"], row
        assert row["power"] < 1e-4, row
    ways = ("isolated", "vfedpca", "as printed", "merge", "power")
    found = {row["data"]: row for row in module.medians(rows, ways) if row["k"] == 1}
    for name in ("breast cancer", "spiked"):
        said = cells("## Columns at clients", name)
        assert said[0] == "1"
        for way, cell in list(zip(ways, said[1:], strict=True))[:3]:
            # printed to two digits, or to one
            assert_allclose(found[name][way], float(cell), rtol=0.25 if "e" in cell else 0.05)


def test_synthetic_columns_are_the_densities_of_section_4_2_1():
    density = scenario("vertical_synthetic").density
    n, m = 4000, 3
    single = density("single", m, n, np.random.default_rng(0))
    peak = 1 / math.sqrt(2 * math.pi)
    assert math.exp(-4.5) * peak <= single.min() < single.max() <= peak
    # the mean of the density at points uniform in six deviations, and of its square
    mean = math.erf(3 / math.sqrt(2)) / 6
    square = math.erf(3) / (12 * math.sqrt(math.pi))
    margin = 4 * math.sqrt((square - mean**2) / (n * m))  # four standard deviations
    assert abs(single.mean() - mean) < margin
    mixture = density("mixture", m, n, np.random.default_rng(0))
    deviations = peak / mixture.max(axis=0)
    assert_allclose(deviations, np.round(deviations), rtol=1e-3)
    assert set(np.round(deviations)) <= {1, 2, 3}


@pytest.mark.parametrize("kind", ["both, tie .98", "one of two, tie .98", "one of two, tie .8"])
def test_near_ties_have_the_ratio_that_they_name(kind):
    clients = scenario("vertical").near_tie(kind, p=4, seed=0)
    s = np.linalg.svd(np.concatenate([c.rows for c in clients]), compute_uv=False)
    # noise of 20 columns has a spectral norm of .02 (1 + sqrt(20 / 300)), about; beside 1
    assert abs(s[1] / s[0] - float(kind.split()[-1])) < 0.02 * (1 + math.sqrt(20 / 300))
    assert s[2] < 0.03


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


def test_clean_rows_are_flagged_as_often_as_the_page_says():
    sizes, shapes = [(48, 4)], ("variances 1 / i", "fewer causes")
    for row in scenario("anomalies").false_alarms(500, 6, sizes, shapes):
        assert 4 <= row["chi2"] <= 6
        assert 4 <= row["quantile"] <= 6
        assert row["in-sample"] > row["chi2"] + 1


@pytest.mark.slow
def test_what_is_unlike_is_found_while_the_subspace_drifts_and_after_a_jump():
    for row in scenario("anomalies").over_streams(1600, 1):
        assert row["SubspaceMonitor"] >= 0.97  # such rows have no T2, whose p-value counts as well
        assert row["SubspaceMonitor"] > row["PCA of the first 500"]


@pytest.mark.slow
def test_secure_sums_cost_what_the_page_says():
    pytest.importorskip("flwr")
    section = PAGE.split("## Secure sums")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.split("\n") if "| 3 | 100 |" in line]
    rows = scenario("secure_sums").costs((3,), (100,))
    for row, said in zip(rows, lines, strict=True):
        *_, secure, exchanges, _, up, down = said
        assert (row["secure"], row["exchanges"]) == (secure, int(exchanges))
        assert_allclose(row["kB up a site"], float(up), rtol=0.05)
        assert_allclose(row["kB down a site"], float(down), rtol=0.05, atol=0.05)


def test_rounding_to_the_default_bits_costs_nothing():
    *coarse, default, floats = scenario("secure_sums").rounding()
    assert_allclose(default["error"], floats["error"], rtol=0.01)
    assert default["rounds"] == floats["rounds"]
    for row in coarse:
        assert row["error"] < 8 * 2.0 ** -row["bits"] + 1.01 * floats["error"]


@pytest.mark.parametrize("on_host", [True, False])
def test_rows_reach_a_device_in_each_way_and_lead_to_the_same(on_host, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    if not on_host:  # the kernels of a GPU, on the processor
        monkeypatch.setattr("fedpca_sklearn._validation.arrays.Place.is_on_host", False)
    module = scenario("arrays")
    rows = module.on_a_device(torch, "cpu", quick=True)
    ours = [row for row in rows if row["way"].startswith("StreamingPCA")]
    assert len(ours) == 4
    r = module.QUICK[1]
    gap = 1 / r - 1 / (r + 1)  # of variances 1 / i, and as much for the sample
    for row in ours:
        assert row["distance"] < 2 * np.finfo(np.float32).eps / gap, row
        assert row["excess"] < 1e-6, row


def line_of(commit, processor="a", **gauges):
    """A line of the history of speed."""
    named = {f"solvers: {name}": str(ratio) for name, ratio in gauges.items()}
    return {"commit": commit, "date": "2026-01-01", "processor": processor, **named}


def test_what_got_slower_on_a_processor_is_named():
    gauges = scenario("gauges")
    lines = [line_of("1", x=1.0, y=2.0), line_of("2", processor="b", x=9.0)]
    assert gauges.slower(lines, line_of("3", x=1.2, y=2.2)) == {"solvers: x": 1.2}
    assert gauges.slower(lines, line_of("3", x=1.1, z=7.0)) == {}
    assert gauges.slower(lines, line_of("3", processor="c", x=5.0)) == {}


def test_a_commit_has_one_line_for_each_processor(monkeypatch, tmp_path):
    gauges, measured = scenario("gauges"), {"x": 0.5}
    monkeypatch.setattr(gauges, "FILE", tmp_path / "gauges.csv")
    monkeypatch.setattr(gauges, "GAUGES", {"solvers": lambda quick: measured})
    monkeypatch.setattr(gauges, "commit", lambda: "1")
    monkeypatch.setattr(_tools, "RESULTS", tmp_path / "results")
    gauges.main()
    measured |= {"x": 0.6, "y": 3.0}
    gauges.main()
    (line,) = gauges.history()
    assert (line["commit"], line["solvers: x"], line["solvers: y"]) == ("1", "0.6", "3")
    gauges.main(quick=True)
    assert len(gauges.history()) == 1
