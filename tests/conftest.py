"""What ``tasks.py`` asks of a run: no test left out unseen, or a few cases of each only.

With ``TESTS_NO_SKIPS=1`` (``tasks.py test``, whose environment has all that a test can ask for) a
skip is a failure, unless its reason is in ``MAY_BE_SKIPPED``. Hypothesis draws the same examples in
every run and with every release of it; ``--hypothesis-profile=default`` draws others each time.

A test of three or more lists of cases runs with a covering array of them: every two values of two
lists meet. A case that is named (``test_it[0-a]``) runs, and with ``TESTS_CASES=all`` all of them;
with ``TESTS_CASES=3`` (``tasks.py fast``) three cases of each test.

What collection has made (thousands of tests and the modules they import) lives until the end of the
run: the garbage collector, which walked through all of it again and again, is told to leave it out.
"""

import gc
import heapq
import os
import re
import tempfile
from collections import defaultdict
from itertools import combinations

import pytest
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")

# where commands keep the logs of what they have answered
_STATE = tempfile.TemporaryDirectory(prefix="fedpca-state-")
os.environ["XDG_STATE_HOME"] = _STATE.name

MAY_BE_SKIPPED = {
    "the data set .* is not beside the repository": "measured data that are not in the repository",
    "no BLAS whose threads can be set|a BLAS without threads": "Accelerate of macOS, for one",
    "SCIPY_ARRAY_API is not set": "tasks.py slow makes these checks in a process of their own",
}


def _refused(report):
    """Turn a skip without a good reason into a failure."""
    if "TESTS_NO_SKIPS" in os.environ and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[-1]
        if not any(re.search(good, reason) for good in MAY_BE_SKIPPED):
            report.outcome = "failed"
            report.longrepr = f"{reason}\n(skips that may be are listed in tests/conftest.py)"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport():
    return _refused((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report():
    return _refused((yield))


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(20_000)


def _values(item):
    """Which value an item has of each list of cases and of each fixture with parameters, by id."""
    of = {name: id(value) for name, value in item.callspec.params.items()}
    found = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        names = names.replace(",", " ").split() if isinstance(names, str) else names
        found.append(tuple(of.pop(name) for name in names))
    return [*found, *of.values()]


def _covering(items):
    """Items in which every two values of two lists meet, those with most new pairs first."""
    pairs = {item: set(combinations(enumerate(_values(item)), 2)) for item in items}
    left, queue = set().union(*pairs.values()), [(-len(pairs[i]), n) for n, i in enumerate(items)]
    kept = []
    while left:
        _, n = heapq.heappop(queue)
        new = pairs[items[n]] & left
        if new and queue and -len(new) > queue[0][0]:
            heapq.heappush(queue, (-len(new), n))
        elif new:
            kept.append(items[n])
            left -= new
    return kept


def _chosen(items, most, named):
    """The cases of one test that run."""
    if most.isdigit():
        return items[:: -(-len(items) // int(most))]  # spread over all cases
    if most == "all" or named or len(items) == 1 or len(_values(items[0])) < 3:
        return items
    return _covering(items)


@pytest.hookimpl(trylast=True)  # of what -k and -m leave
def pytest_collection_modifyitems(config, items):
    most, named = os.environ.get("TESTS_CASES", "pairs"), any("[" in word for word in config.args)
    cases = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    kept = {item for those in cases.values() for item in _chosen(those, most, named)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
