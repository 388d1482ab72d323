"""What a site answers by files: the rules of its owner, against a coordinator that asks on."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from console_helpers import X, as_csv, refused, run

import fedpca_sklearn
from fedpca_sklearn import ConditionalFill, FederatedPCA, Subspace

__all__ = ["run"]
HOLES = np.where(np.random.default_rng(3).random(X.shape) < 0.3, np.nan, X)


@pytest.fixture
def state(tmp_path_factory, monkeypatch):
    """Where logs are, outside of the folder of a command."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture
def query(run, state):
    """Write a query about a direction, another one for each number."""
    as_csv("rows.csv")

    def write(number=0):
        V = np.random.default_rng(number).standard_normal((1, 4))
        V /= np.linalg.norm(V)
        mean, scatter = X.mean(axis=0), 50 * X.var(axis=0).sum()
        name = f"{number}.query"
        Subspace(V, [0.0], mean, 50, scatter).save(name)
        return name

    return write


def the_log(state):
    (path,) = state.glob("fedpca/*.log")
    return path


def events(path):
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


# -------------------------------------------------------------------- few rows


def test_few_rows_are_not_answered_about(run, query):
    as_csv("few.csv", X[:9])
    message = refused(run, "answer", query(), "few.csv", "-o", "a")
    assert "few.csv: 9 rows, and --min-rows is 10" in message
    assert message == refused(run, "answer", query(1), "few.csv", "-o", "a")
    assert run("answer", query(), "few.csv", "-o", "a", "--min-rows", "9")[0] == 0
    message = refused(run, "answer", query(), "rows.csv", "-o", "b", "--min-rows", "51")
    assert "rows.csv: 50 rows, and --min-rows is 51" in message
    as_csv("none.csv", X[:0])
    assert "there is no row in none.csv" in refused(run, "answer", query(), "none.csv", "-o", "b")


def test_rows_without_missing_entries_are_those_that_count(run, query):
    rows = X[:12].copy()
    rows[:3, 1] = np.nan
    as_csv("holes.csv", rows)
    command = "answer", query(), "holes.csv", "-o", "a", "--drop-missing"
    assert "holes.csv: 9 rows, and --min-rows is 10" in refused(run, *command)


@pytest.mark.parametrize(("there", "answers"), [(10, True), (9, False), (41, False), (40, True)])
def test_a_column_of_few_entries_is_not_summed(run, state, there, answers):
    """Its mean, or what the others lack, would tell these rows."""
    rows = X.copy()
    rows[there:, 2] = np.nan
    as_csv("holes.csv", rows)
    command = "fit", "holes.csv", "--fill", "-o", "means"
    if answers:
        assert run(*command)[0] == 0
        return
    message = refused(run, *command)
    assert "holes.csv: a column that fewer than min_rows=10 rows have, or have not" in message
    assert "--min-rows" in message
    assert run(*command, "--min-rows", "9")[0] == 0
    run("merge", "means", "--fill", "-n", "1", "-o", "model")
    run("refine", "model", "--fill", "-n", "1", "-o", "filled.query")
    command = "answer", "filled.query", "holes.csv", "--fill", "-o", "a"
    assert "fewer than min_rows=10 rows have, or have not" in refused(run, *command)
    assert run(*command, "--min-rows", "9")[0] == 0


# -------------------------------------------------------------------- how often


def test_a_question_too_many_is_refused(run, query):
    for number in range(2):
        command = "answer", query(number), "rows.csv", "-o", f"{number}.answer"
        assert run(*command, "--max-rounds", "2")[0] == 0
    command = "answer", query(2), "rows.csv", "-o", "2.answer"
    message = refused(run, *command, "--max-rounds", "2")
    assert "more than max_rounds=2 rounds, in all runs: --max-rounds allows more" in message
    assert run(*command, "--max-rounds", "3")[0] == 0


def test_by_default_as_many_as_three_fits_take(run, query):
    for number in range(60):
        assert run("answer", query(number), "rows.csv", "-o", f"{number}.answer")[0] == 0
    message = refused(run, "answer", query(60), "rows.csv", "-o", "60.answer")
    assert "more than max_rounds=60 rounds" in message
    as_csv("others.csv")  # of other rows each has a count of its own
    assert run("answer", query(60), "others.csv", "-o", "60.answer")[0] == 0


def test_the_same_question_again_is_free_and_has_the_same_bytes(run, query, state):
    most = "--max-rounds", "1"
    first = query()
    assert run("answer", first, "rows.csv", "-o", "a", *most)[0] == 0
    for again in "bc":
        assert run("answer", first, "rows.csv", "-o", again, *most)[0] == 0
        assert Path(again).read_bytes() == Path("a").read_bytes()
    assert "max_rounds=1" in refused(run, "answer", query(1), "rows.csv", "-o", "d", *most)
    # about other columns it is another question, and about rows that have changed
    message = refused(run, "answer", first, "rows.csv", "-o", "d", *most, "--drop-missing")
    assert "max_rounds=1" in message
    as_csv("rows.csv", X[::-1])
    assert "max_rounds=1" in refused(run, "answer", first, "rows.csv", "-o", "d", *most)
    assert events(the_log(state))[:6] == ["question", "answer"] * 3
    _, text, _ = run("audit", str(the_log(state)))
    assert "3 questions, 3 answered" in text


def test_several_processes_count_together(run, query, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(fedpca_sklearn.__file__).parents[1]))
    start = [sys.executable, "-m", "fedpca_sklearn", "answer"]
    started = [
        subprocess.Popen(
            [*start, query(i), "rows.csv", "-o", f"{i}", "--max-rounds", "1"],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for i in range(3)
    ]
    errors = [process.communicate()[1] for process in started]
    assert sorted(process.returncode for process in started) == [0, 1, 1]
    assert sum(b"more than max_rounds=1 rounds" in error for error in errors) == 2
    assert sum(Path(f"{i}").exists() for i in range(3)) == 1


def test_what_fails_is_counted_before_it_is_tried(run, query, state):
    rows = X.copy()
    rows[30, 1] = np.inf
    as_csv("rows.csv", rows)
    assert "is infinite in row 31" in refused(run, "answer", query(), "rows.csv", "-o", "a")
    assert events(the_log(state)) == ["question", "refusal"]
    assert "ValueError" in the_log(state).read_text()
    assert "infinite" not in the_log(state).read_text()  # what is in the rows stays there


# -------------------------------------------------------------------- what is allowed


def test_kinds_of_questions_that_are_not_allowed(run, query, state):
    message = refused(run, "answer", query(), "rows.csv", "-o", "a", "--allow", "filled,means")
    assert "--allow names questions of filled or means, this one is of products" in message
    assert run("answer", query(), "rows.csv", "-o", "a", "--allow", "products")[0] == 0
    as_csv("rows.csv", HOLES)
    message = refused(run, "fit", "rows.csv", "--fill", "-o", "b", "--allow", "products")
    assert "this one is of means" in message
    message = refused(run, "answer", query(), "rows.csv", "-o", "b", "--allow", "all")
    assert "--allow must name some of products, filled, means, got 'all'" in message


def test_rules_without_a_question(run, query):
    for option in (("--log", "x.log"), ("--allow", "means"), ("--max-rounds", "3")):
        message = refused(run, "fit", "rows.csv", "-o", "a", *option)
        assert f"{option[0]} is of questions, here of --fill" in message


# -------------------------------------------------------------------- the log


def test_the_log_is_the_users_own(run, query, state, monkeypatch, tmp_path):
    code, text, _ = run("answer", query(), "rows.csv", "-o", "a")
    log = the_log(state)
    assert code == 0
    assert f"noted in {log}" in text
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    code, text, _ = run("audit", str(log))
    assert code == 0
    assert "fedpca, products  1 questions, 1 answered, 0 refused" in text
    assert f"{Path('a').stat().st_size} bytes sent" in text
    # as the specification of these folders has it: not relative, and in the home without one
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for i, value in enumerate(["", "relative"]):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert run("answer", query(), "rows.csv", "-o", f"a{i}")[0] == 0
    (log,) = (tmp_path / "home/.local/state/fedpca").glob("*.log")
    assert events(log) == ["question", "answer"] * 2


def test_a_log_of_ones_own(run, query, state):
    command = "answer", query(), "rows.csv", "--log", "site.log"
    assert run(*command, "-o", "a")[0] == 0
    assert events(Path("site.log")) == ["question", "answer"]
    assert stat.S_IMODE(os.stat("site.log").st_mode) == 0o600
    assert not list(state.iterdir())
    message = refused(run, *command, "-o", "site.log", "--force")
    assert "site.log is one of the files to read" in message


@pytest.mark.parametrize("where", ["option", "state"])
def test_without_a_log_nothing_is_answered(run, query, monkeypatch, where):
    question, option = query(), ()
    Path("file").write_text("")
    if where == "option":
        option = "--log", "file/site.log"
    else:
        monkeypatch.setenv("XDG_STATE_HOME", os.path.realpath("file"))
    message = refused(run, "answer", question, "rows.csv", "-o", "a", *option)
    assert "cannot be written (" in message
    assert "nothing is answered without one, --log FILE says where it is" in message


def test_a_log_that_was_changed_refuses_everything(run, query):
    command = "answer", query(), "rows.csv", "--log", "site.log", "-o"
    assert run(*command, "a")[0] == 0
    log = Path("site.log")
    whole = log.read_bytes()
    log.write_bytes(whole.replace(b'"products"', b'"filledup"', 1))
    assert "site.log is not whole from line 1 on" in refused(run, *command, "b")
    log.write_bytes(whole[: whole.index(b"\n") + 1])
    assert "lines are cut off" in refused(run, *command, "b")
    log.write_bytes(whole)
    assert run(*command, "b")[0] == 0


def test_other_files_are_no_logs_and_stay(run, query):
    """A log that is not whole is cut by nobody."""
    question, before = query(), Path("rows.csv").read_bytes()
    as_csv("others.csv")
    for file in ("rows.csv", "others.csv"):
        message = refused(run, "answer", question, "others.csv", "-o", "a", "--log", file)
        assert "error: " in message
        assert Path(file).read_bytes() == before


def test_rounds_that_fill_rows_in_are_in_one_log(run, state):
    as_csv("rows.csv", HOLES)
    assert run("fit", "rows.csv", "--fill", "-o", "means")[0] == 0
    assert run("merge", "means", "--fill", "-n", "1", "-o", "m.0")[0] == 0
    for i in range(3):
        assert run("refine", f"m.{i}", "--fill", "-n", "1", "-o", f"q.{i}")[0] == 0
        assert run("answer", f"q.{i}", "rows.csv", "--fill", "-o", f"a.{i}")[0] == 0
        assert run("refine", f"m.{i}", f"a.{i}", "--fill", "-n", "1", "-o", f"m.{i + 1}")[0] == 0
    _, text, _ = run("audit", str(the_log(state)))
    assert "fedpca, filled  3 questions, 3 answered, 0 refused" in text
    assert "fedpca, means  1 questions, 1 answered, 0 refused" in text
    expected = FederatedPCA(1, missing=ConditionalFill(n_rounds=2)).fit(HOLES, clients=[0] * 50)
    found = FederatedPCA.from_subspaces([Subspace.load("m.3")], 1)
    np.testing.assert_allclose(found.components_, expected.components_, rtol=1e-10)
