"""The rules of conftest.py, held against files of tests made here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SKIPS = """
import unittest
import pytest
def test_call(): pytest.skip('no time')
@pytest.mark.skipif(True, reason='no time')
def test_mark(): pass
def test_unittest(): raise unittest.SkipTest('no time')
"""


def outcome(folder, code, **settings):
    """Exit code and counts of a run over one file of tests, under this conftest.py."""
    shutil.copy(Path(__file__).with_name("conftest.py"), folder)
    (folder / "test_it.py").write_text(code)
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TESTS_", "PYTEST_"))}
    done = subprocess.run(
        call, cwd=folder, env={**environment, **settings}, capture_output=True, text=True
    )
    return done.returncode, done.stdout.splitlines()[-1].partition(" in ")[0]


def test_a_skip_fails_where_nothing_may_be_skipped(tmp_path):
    assert outcome(tmp_path, SKIPS) == (0, "3 skipped")
    assert outcome(tmp_path, SKIPS, TESTS_NO_SKIPS="1") == (1, "2 failed, 1 error")


def test_cases_are_spread(tmp_path):
    code = """
import pytest
@pytest.mark.parametrize('case', range(100))
def test_a(case): assert case in (0, 34, 68)
def test_b(): pass
"""
    assert outcome(tmp_path, code, TESTS_CASES="3") == (0, "4 passed, 97 deselected")


def test_every_two_values_of_two_lists_meet(tmp_path):
    code = """
import itertools
import pytest
seen = []
@pytest.mark.parametrize('a', range(4))
@pytest.mark.parametrize(('b', 'c'), [(0, 5), (1, 5), (2, 5)])
@pytest.mark.parametrize('d', 'xyz')
def test_a(a, b, c, d): seen.append((a, b, d))
def test_b():
    lists = range(4), range(3), 'xyz'
    for i, j in itertools.combinations(range(3), 2):
        assert {(s[i], s[j]) for s in seen} == set(itertools.product(lists[i], lists[j]))
"""
    assert outcome(tmp_path, code) == (0, "13 passed, 24 deselected")
    assert outcome(tmp_path, code, TESTS_CASES="all") == (0, "37 passed")
