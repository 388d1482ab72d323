"""ask, answer and next: studies of any estimator by files, one process a verb, killed at random."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from console_helpers import NAMES, X, as_csv, as_parquet, printed, process_of, refused, run
from numpy.testing import assert_allclose

from fedpca_sklearn import FederatedPCA, FederatedPowerPCA, Subspace
from fedpca_sklearn._console import _row_files
from fedpca_sklearn.engines._parameters import constructed
from fedpca_sklearn.engines.files import SiteRows, Study
from fedpca_sklearn.engines.files import answer as answer_of_site

__all__ = ["run"]
SITES = {"a": X[:17], "b": X[17:34], "c": X[34:]}
POWER = "FederatedPowerPCA(2, n_rounds=2, tol=0.0, random_state=0)"


@pytest.fixture
def ask(run, tmp_path_factory, monkeypatch):
    """Write the tables of the sites; a function begins a study."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    for name, rows in SITES.items():
        as_csv(f"{name}.csv", rows)

    def begin(estimator=POWER, *options):
        return printed(run, "ask", "study", estimator, "--sites", ",".join(SITES), *options)

    return begin


def answer_all(run, number, *options, sites=SITES):
    for name in sites:
        letter = f"study/{number:04}.{name}"
        command = f"{letter}.question", f"{name}.csv", "-o", f"{letter}.answer", *options
        code, _, err = run("answer", *command)
        assert code == 0, err


def test_a_study_from_ask_to_transform(ask, run, monkeypatch):
    assert ask(POWER, "--json")["awaited"] == [f"study/0001.{name}.answer" for name in SITES]
    monkeypatch.setattr(_row_files, "ROWS", 7)
    order = [3, 1, 0, 2]
    as_parquet("b.parquet", SITES["b"][:, order], [NAMES[j] for j in order])
    for number in range(1, 5):
        answer_all(run, number, sites="ac")
        letter = f"study/{number:04}.b"
        columns = "--columns", ",".join(NAMES)
        printed(
            run, "answer", f"{letter}.question", "b.parquet", "-o", f"{letter}.answer", *columns
        )
        assert printed(run, "next", "study", "--json")["done"] == (number == 4)
    model = Subspace.load("study/model.subspace")
    here = FederatedPowerPCA(2, n_rounds=2, tol=0.0, random_state=0)
    here.fit(X, clients=np.repeat(list(SITES), [17, 17, 16]))
    assert_allclose(model.singular_values, here.singular_values_, rtol=1e-12)
    assert tuple(model.feature_names) == tuple(NAMES)
    printed(run, "transform", "study/model.subspace", "a.csv", "-o", "scores.csv")
    message = refused(run, "next", "study")
    assert "study/model.subspace exists; --force replaces it" in message


def test_moments_of_columns_are_written_as_csv(ask, run):
    ask("FederatedScaler()")
    answer_all(run, 1)
    found = printed(run, "next", "study", "-o", "scales.csv", "--json")
    assert_allclose(found["mean"], X.mean(axis=0), rtol=1e-12)
    assert Path("scales.csv").read_text().startswith("column,mean,deviation\nage,")


def test_the_shares_are_those_of_the_model(ask, run):
    ask("FederatedPCA(2, scale=True)")
    answer_all(run, 1)
    shares = FederatedPCA(2, scale=True).fit(X).explained_variance_ratio_
    assert "explained  {:.3f} {:.3f}\n".format(*shares) in printed(run, "next", "study")
    found = printed(run, "next", "study", "--force", "--json")["model"]["explained_variance_ratio"]
    assert_allclose(found, shares, rtol=1e-12)


def test_a_fit_of_which_no_file_tells_is_an_error_that_says_where_it_is(run):
    estimator = constructed("VerticalFederatedKernelPCA(2, kernel='linear')")
    Study.begin("study", estimator, ["a", "b"]).next()
    while "error: " not in (said := run("next", "study")[2]):
        for path in Path("study").glob("*.question"):
            site, keys = path.stem[5:], {"keys": range(50), "salt": b"x" * 16}
            rows = SiteRows(X[:, :2] if site == "a" else X[:, 2:], **keys)
            if not (out := path.with_suffix(".answer")).exists():
                answer_of_site(path, out, rows, state=site)
    assert "no file holds a VerticalFederatedKernelPCA; Study('study').next()" in said
    assert not Path("study/model.subspace").exists()
    values = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:2] ** 2
    assert_allclose(Study("study").next().eigenvalues_, values, rtol=1e-9)


def test_a_study_that_cannot_go_on_ends_in_one_line(ask, run):
    ask("FederatedPCA(2)")
    for name in SITES:
        letter = f"study/0001.{name}"
        run("answer", f"{letter}.question", "a.csv", "-o", f"{letter}.answer", "--min-rows", "60")
    assert "Too few sites: 0, but min_sites=2. Left out: " in refused(run, "next", "study")
    begun = Path("study/study.json")
    good = json.loads(begun.read_text())
    for changes, why in (
        ({"estimator": "[]"}, "estimator must be one, got"),
        ({"estimator": "FederatedPCA(2, mechanism=5)"}, "The 'mechanism' parameter of"),
        ({"min_sites": np.inf}, "it is not what was written"),
    ):
        begun.write_text(json.dumps({**good, **changes}))
        assert why in refused(run, "next", "study")
    begun.write_text("[" * 100_000)
    assert "maximum recursion depth" in refused(run, "next", "study")


def test_secure_sums_at_the_prompt(ask, run):
    pytest.importorskip("flwr")
    ask("DistributedPCA(2)", "--secure", "3")
    number = 0
    while not Path("study/model.subspace").exists():
        number += 1
        answer_all(run, number, "--secure", "3")
        assert run("next", "study")[0] == 0
    model = Subspace.load("study/model.subspace")
    oracle = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)[:2]
    assert_allclose(model.singular_values, oracle, rtol=1e-6)
    assert number == 1 + 1 + 2 * 3  # bounds, keys, and two sums


@pytest.mark.filterwarnings("default:The release cannot be told")
def test_a_ledger_at_the_prompt(ask, run):
    owner = "AnalyzeGauss(1.0, 1e-3, 300.0)"
    ask(f"FederatedPCA(2, mechanism={owner})")
    command = "answer", "study/0001.a.question", "a.csv", "-o", "out"
    assert "a budget of the coordinator's choice" in refused(run, *command)
    assert "ledger" in refused(run, *command, "--mechanism", owner)
    for own in ("--ledger", "--log"):  # which would be made, and written over
        assert "out is one of the files to read" in refused(run, *command, own, "out")
    state = Path("own.log.studies/of_study.state")
    state.parent.mkdir()
    state.touch()
    over = refused(run, *command[:-1], str(state), "--force", "--log", "own.log")
    assert "of_study.state is one of the files to read" in over
    for name in SITES:
        answer_all(run, 1, "--ledger", f"{name}.ledger", "--mechanism", owner, sites=[name])
        assert Path(f"{name}.ledger").exists()
    assert run("next", "study")[0] == 0
    assert Subspace.load("study/model.subspace").privacy.epsilon == pytest.approx(1.0)
    letter = "next", "study", "-o", "study/0001.a.answer", "--force"
    assert "0001.a.answer is one of the files to read" in refused(run, *letter)
    told = "privacy    epsilon 1, delta 0.001, rows up to 300, AnalyzeGauss, trust: client\n"
    assert told in printed(run, "inspect", "study/model.subspace")


# Options | words of the error; "out": in the answer, for the coordinator to read
REFUSED = """
--site b | it is for site 'a', not 'b'
--site " " | --site must be a name, got ' '
--secure 3 | the site takes part in secure sums only
--allow nobody | --allow must name estimators of fedpca_sklearn, got
--allow FederatedPCA | estimator must be FederatedPCA, got FederatedPower | out
--estimator FederatedPowerPCA(3) | n_components is 3, got 2 | out
""".strip().splitlines()


def test_what_sites_do_not_know_is_refused_before_there_is_a_study(run):
    said = refused(run, "ask", "study", "SubspaceTracker(2)", "--sites", "a,b")
    assert "must be one of DistributedPCA" in said
    assert not Path("study").exists()


@pytest.mark.parametrize("line", REFUSED)
def test_what_a_site_refuses(line, ask, run):
    ask()
    options, says, *out = line.split(" | ")
    command = "answer", "study/0001.a.question", "a.csv", "-o", "out", *shlex.split(options)
    if out:
        code, told, _ = run(*command, "--state", "state")
        assert code == 1
    assert says in (told if out else refused(run, *command))


@pytest.mark.filterwarnings("default:Fitted without")
@pytest.mark.parametrize("turn", [1, 2])
def test_without_a_site(turn, ask, run):
    ask()
    if turn == 2:
        answer_all(run, 1)
        printed(run, "next", "study")
    assert "site must be awaited" in refused(run, "next", "study", "--without", "c,nobody")
    assert not [*Path("study").glob("*.without")]
    for number in (1, 2, 3, 4) if turn == 1 else (2, 3, 4, 5, 6):
        answer_all(run, number, sites=["a", "b"])
        without = ["--without", "c"] if number == turn else []
        code, out, _ = run("next", "study", *without, "--json")
        assert code == 0
    found = json.loads(out)
    assert (found["done"], list(found["missing"]), found["rows"]) == (True, ["c"], 34)


# -------------------------------------------------------------------- processes that are killed

ROUNDS = "FederatedPowerPCA(3, n_rounds=1, tol=0.0, random_state=0)"


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [ROUNDS, "OnlineDistributedPCA(3)"])
def test_sites_whose_processes_are_killed(estimator, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    parts = {f"site{i}": rng.standard_normal((40, 6)) * [6, 5, 4, 3, 2, 1] for i in range(3)}
    for name, rows in parts.items():
        np.save(f"{name}.npy", rows)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def process(*arguments, killed_after=None):
        running = process_of(arguments)
        running.join(killed_after)
        if killed_after is not None:
            running.kill()
            running.join()
        return running.exitcode

    assert process("ask", "killed", estimator, "--sites", ",".join(parts)) == 0
    killed = 0
    while Study("killed").next() is None:
        killed += process("next", "killed", killed_after=rng.uniform(0, 0.1)) < 0
        for path in sorted(Path("killed").glob("*.question")):
            out = path.with_suffix(".answer")
            answer = ("answer", path, f"{path.stem[5:]}.npy", "-o", out)
            if not out.exists() and rng.random() < 0.5:
                killed += process(*answer, killed_after=rng.uniform(0, 0.1)) < 0
            if not out.exists():
                assert process(*answer) == 0
        assert process("next", "killed") == 0
    assert killed
    model, fit = Subspace.load("killed/model.subspace"), constructed(estimator)
    fit.fit(np.concatenate(list(parts.values())), clients=np.repeat(list(parts), 40))
    assert_allclose(model.singular_values[:3], fit.singular_values_, rtol=1e-10)
    assert_allclose(np.abs(model.components[:3] @ fit.components_.T), np.eye(3), atol=1e-7)
