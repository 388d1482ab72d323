"""The list of mutants fits the code; ``tasks.py mutants`` runs it."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["mutant"]


def test_there_are_sixty_and_each_says_something_else():
    assert len(MUTANTS) >= 60
    assert len({one["says"] for one in MUTANTS}) == len(MUTANTS)
    rooms = {one["file"].split("/")[0] for one in MUTANTS}
    assert rooms >= {"_kernels", "summary", "streaming", "federated", "rounds"}


def test_a_mutant_replaces_a_text_that_is_there_once():
    for mutant in MUTANTS:
        assert set(mutant) == {"says", "file", "old", "new", "tests"}
        text = (ROOT / "fedpca_sklearn" / mutant["file"]).read_text()
        assert text.count(mutant["old"]) == 1, mutant["says"]
        ast.parse(text.replace(mutant["old"], mutant["new"]))


def test_the_tests_of_each_exist():
    nodes = {node.partition("[")[0] for one in MUTANTS for node in one["tests"]}
    assert all(one["tests"] for one in MUTANTS)
    for file in {node.partition("::")[0] for node in nodes}:
        there = re.findall(r"^def (test_\w+)", (ROOT / file).read_text(), re.MULTILINE)
        assert {node for node in nodes if node.startswith(f"{file}::")} <= {
            f"{file}::{name}" for name in there
        }
