"""The list of mutants fits the code; ``tasks.py mutants`` runs it."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text())["mutant"]


def test_there_are_sixty_and_each_says_something_else():
    assert len(MUTANTS) >= 60
    assert len({one["says"] for one in MUTANTS}) == len(MUTANTS)
    rooms = {one["file"].split("/")[0] for one in MUTANTS}
    assert rooms >= {"_kernels", "summary", "streaming", "federated", "rounds"}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one["says"])
def test_a_mutant_replaces_a_text_that_is_there_once(mutant):
    assert set(mutant) == {"says", "file", "old", "new", "tests"}
    text = (ROOT / "fedpca_sklearn" / mutant["file"]).read_text()
    assert text.count(mutant["old"]) == 1
    ast.parse(text.replace(mutant["old"], mutant["new"]))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one["says"])
def test_its_tests_exist(mutant):
    assert mutant["tests"]
    for node in mutant["tests"]:
        file, _, name = node.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        assert name.partition("[")[0] in functions
