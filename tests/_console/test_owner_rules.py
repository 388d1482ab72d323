"""What a site answers by files: the rules of its owner, against a coordinator that asks on."""

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from console_helpers import X, as_csv, refused, run

from fedpca_sklearn.engines._messages import Letter, Message, numbered, read_letter

__all__ = ["run"]


@pytest.fixture
def state(tmp_path_factory, monkeypatch):
    """Where logs are, outside of the folder of a command."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture
def question(run, state):
    """Write a question of a study, of another one for each number."""
    as_csv("rows.csv")

    def write(number=0, estimator="FederatedPCA(2)"):
        folder = Path(f"study {number}")
        if not folder.exists():
            run("ask", str(folder), estimator, "--sites", "east,west")
        return str(folder / "0001.east.question")

    return write


def the_log(state):
    (path,) = state.glob("fedpca/*.log")
    return path


def events(path):
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


def refusal(run, *command):
    """Why a site refuses, as the coordinator is told."""
    code, out, err = run("answer", *command, "--json")
    assert (code, err) == (1, "")
    return json.loads(out)["refusal"]


# -------------------------------------------------------------------- few rows


def test_few_rows_are_not_answered_about(run, question):
    holes, infinite = X[:12].copy(), X.copy()
    holes[:3, 1], infinite[30, 1] = np.nan, np.inf
    for name, rows in {"few": X[:9], "holes": holes, "none": X[:0], "wrong": infinite}.items():
        as_csv(f"{name}.csv", rows)
    for number, (file, least, *options) in enumerate(
        [("few", 10), ("holes", 10, "--drop-missing"), ("rows", 51, "--min-rows", "51")]
    ):
        why = refusal(run, question(number), f"{file}.csv", "-o", f"{number}", *options)
        assert f"fewer than min_rows={least} rows" in why
    for file, words in (("none", "there is no row in none.csv"), ("wrong", "infinite in row 31")):
        assert words in refused(run, "answer", question(3), f"{file}.csv", "-o", "b")
    assert run("answer", question(3), "few.csv", "-o", "b", "--min-rows", "9")[0] == 0


def test_files_of_rows_are_no_batches(run, question):
    """All rows less those of a file are those of the other one, which may be few."""
    as_csv("first.csv", X[:40]), as_csv("one.csv", X[40:41])
    letter, _ = read_letter(question(0, "FederatedPCA(4)"))
    found = []
    for run_id, kind, *sent in (
        (1, "summary"),
        (2, "summary_of_batch", 0),
        (3, "summary_of_batch", 1),
    ):
        message = Message(kind, letter.message.config, numbered(sent))
        Path("asked").write_bytes(Letter({**letter.about, "run": run_id}, message).to_bytes())
        assert run("answer", "asked", "first.csv", "one.csv", "-o", "told", "--force")[0] == 0
        found.append(read_letter("told")[0].message.arrays)
    assert found[0] == found[1]
    assert set(found[2]) == {"over"}


# -------------------------------------------------------------------- how often


def test_a_question_too_many_is_refused(run, question):
    for number in range(2):
        command = "answer", question(number), "rows.csv", "-o", f"{number}.answer"
        assert run(*command, "--max-rounds", "2")[0] == 0
    command = question(2), "rows.csv", "-o", "2.answer", "--max-rounds", "2"
    assert "more than max_rounds=2 rounds, in all runs" in refusal(run, *command)
    # that one was counted as well
    assert run("answer", question(3), "rows.csv", "-o", "3.answer", "--max-rounds", "4")[0] == 0
    as_csv("others.csv")  # of other rows each has a count of its own
    command = "answer", question(4), "others.csv", "-o", "4.answer"
    assert run(*command, "--max-rounds", "1")[0] == 0


# -------------------------------------------------------------------- the log


def test_the_log_is_the_users_own(run, question, state, monkeypatch, tmp_path):
    code, text, _ = run("answer", question(), "rows.csv", "-o", "a")
    log = the_log(state)
    assert code == 0
    assert f"noted in {log}" in text
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    code, text, _ = run("audit", str(log))
    assert code == 0
    assert "FederatedPCA, summary  1 questions, 1 answered, 0 refused" in text
    # as the specification of these folders has it: not relative, and in the home without one
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for i, value in enumerate(["", "relative"]):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert run("answer", question(i + 1), "rows.csv", "-o", f"a{i}")[0] == 0
    (log,) = (tmp_path / "home/.local/state/fedpca").glob("*.log")
    assert events(log) == ["question", "answer"] * 2


def test_a_log_of_ones_own(run, question, state):
    command = "answer", question(), "rows.csv", "--log", "site.log"
    assert run(*command, "-o", "a")[0] == 0
    assert events(Path("site.log")) == ["question", "answer"]
    assert stat.S_IMODE(os.stat("site.log").st_mode) == 0o600
    assert not list(state.iterdir())
    message = refused(run, *command, "-o", "site.log", "--force")
    assert "site.log is one of the files to read" in message


@pytest.mark.skipif(os.name != "posix", reason="a home by the environment of POSIX")
def test_without_a_home_nothing_is_answered(run, question, monkeypatch):
    asked = question()
    for name in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(name, "relative")
    message = refused(run, "answer", asked, "rows.csv", "-o", "a")
    assert "nobody knows where the home folder is: --log FILE says where the log is" in message


@pytest.mark.parametrize("where", ["option", "state"])
def test_without_a_log_nothing_is_answered(run, question, monkeypatch, where):
    asked, option = question(), ()
    Path("file").write_text("")
    if where == "option":
        option = "--log", "file/site.log"
    else:
        monkeypatch.setenv("XDG_STATE_HOME", os.path.realpath("file"))
    message = refused(run, "answer", asked, "rows.csv", "-o", "a", *option)
    assert os.path.realpath("file") in message or "file/site.log" in message


@pytest.mark.parametrize(("there", "answers"), [(10, True), (9, False), (41, False), (40, True)])
def test_a_column_of_few_entries_is_not_summed(run, question, there, answers):
    """Its mean, or what the others lack, would tell these rows."""
    rows = X.copy()
    rows[there:, 2] = np.nan
    as_csv("holes.csv", rows)
    filling = "FederatedPCA(1, missing=ConditionalFill())"
    command = question(0, filling), "holes.csv", "-o", "a"
    if answers:
        assert run("answer", *command)[0] == 0
        return
    assert "a column that fewer than min_rows=10 rows have, or have not" in refusal(run, *command)
    command = question(1, filling), "holes.csv", "-o", "b"
    assert run("answer", *command, "--min-rows", "9")[0] == 0


def test_the_same_question_again_is_free_and_has_the_same_bytes(run, question, state):
    most = "--max-rounds", "1"
    for out in "abc":
        assert run("answer", question(), "rows.csv", "-o", out, *most)[0] == 0
        assert Path(out).read_bytes() == Path("a").read_bytes()
    assert events(the_log(state)) == ["question", "answer"]
    assert "max_rounds=1" in refusal(run, question(1), "rows.csv", "-o", "d", *most)
