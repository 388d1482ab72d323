"""What ``tasks.py`` asks of a run: no test left out unseen, or a few cases of each only.

With ``TESTS_NO_SKIPS=1`` (``tasks.py test``, whose environment has all that a test can ask for) a
skip is a failure, unless its reason is in ``MAY_BE_SKIPPED``. With ``TESTS_CASES=3`` (``tasks.py
fast``) a parametrized test runs with three of its cases. Hypothesis draws the same examples in
every run and with every release of it; ``--hypothesis-profile=default`` draws others each time.

What collection has made (18,000 tests and the modules they import) lives until the end of the run:
the garbage collector, which walked through all of it again and again, is told to leave it out.
"""

import gc
import os
import re
import tempfile
from collections import defaultdict

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
    "SCIPY_ARRAY_API is not set": "tasks.py test makes these checks in a process of their own",
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


@pytest.hookimpl(trylast=True)  # of what -k and -m leave
def pytest_collection_modifyitems(config, items):
    most = int(os.environ.get("TESTS_CASES", len(items)))
    cases = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    kept = set()
    for those in cases.values():
        step = -(-len(those) // most)  # spread over all cases
        kept.update(those[::step])
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
