"""Every fit of the golden file finds what it found, within margins; `golden.py` says which."""

import inspect
import json
from fnmatch import fnmatchcase
from itertools import groupby

import golden
import golden_cases as cases
import numpy as np
import pytest
from golden import golden as kept

CHANGES = golden.changes()
# Results do not depend on these, or another test decides.
NOT_VARIED = {"n_jobs", "copy"}


def accepted(name, what, now):
    """Whether a change is listed."""
    return any(
        fnmatchcase(name, entry["fits"]) and entry["what"] == what and entry["now"] == now
        for entry in CHANGES
    )


def differences(names):
    """What differs from the golden fits of these names, and is not listed."""
    for name in names:
        code, how, kind = name.split(" | ")
        given = cases.rows(cases.size_of(how), kind)
        now = golden.found(code, how, given.X, given)
        for line in golden.differences(kept()[name], now):
            if not accepted(name, line[0], line[2]):
                yield name, *line


def by_first(names, end):
    """Lists of names that begin alike up to this mark, by their beginning."""
    return {first: list(same) for first, same in groupby(sorted(names), lambda n: n.split(end)[0])}


FITS, WRONG = by_first(cases.fits(), " | "), by_first(cases.wrong_calls(), "(")


@pytest.mark.parametrize("code", FITS, ids=str)
def test_a_fit_is_what_it_was(code):
    assert list(differences(FITS[code])) == []


@pytest.mark.parametrize("estimator", WRONG)
def test_a_wrong_value_is_named_as_it_was(estimator):
    assert list(differences(WRONG[estimator])) == []


def test_the_file_holds_these_fits():
    assert set(kept()) == {*cases.fits(), *cases.wrong_calls()}
    assert golden.FILE.stat().st_size < 2e6


def test_every_parameter_is_varied():
    varied = {}
    for code in (name.split(" | ")[0] for name in cases.fits() if " | call | " not in name):
        model = cases.made(code)
        for name, parameter in inspect.signature(type(model)).parameters.items():
            if repr(getattr(model, name)) != repr(parameter.default):
                varied.setdefault(type(model).__name__, set()).add(name)
    missing = {
        name: sorted(set(inspect.signature(cases.NAMES[name]).parameters) - seen - NOT_VARIED)
        for name, seen in ((name, varied.get(name, set())) for name in WRONG)
    }
    assert {name: left for name, left in missing.items() if left} == {}


def test_changes_have_reasons_and_messages_get_smaller():
    assert json.loads(golden.CHANGES.read_text()) == CHANGES
    for entry in CHANGES:
        assert set(entry) == {"fits", "what", "now", "why"}
        assert len(entry["why"]) > 20
        named = [fit for name, fit in kept().items() if fnmatchcase(name, entry["fits"])]
        assert named, f"no fit is named {entry['fits']}"
        if entry["what"] in golden.SENT:
            assert any(entry["now"] < fit.whole.get(entry["what"], 0) for fit in named)


def stored(**arrays):
    """A golden fit with these numbers and margins of 1e-6."""
    fit = golden.SimpleNamespace(warnings=[], error=None, whole={}, spread={}, arrays={})
    fit.arrays = {f"{name}_": np.asarray(value, float) for name, value in arrays.items()}
    fit.margins = dict.fromkeys(fit.arrays, 1e-6)
    return fit


def test_signs_and_bases_of_equal_eigenvalues_do_not_count():
    a, turned = np.cos(0.3), np.sin(0.3)
    before = stored(components=np.eye(3), singular_values=[2.0, 2.0, 1.0])
    turn = [[a, turned, 0], [turned, -a, 0], [0, 0, -1]]
    same = stored(components=turn, singular_values=[2.0, 2.0, 1.0])
    assert golden.differences(before, same) == []
    for fit in before, same:
        fit.arrays["singular_values_"][0] = 2.1
    ((what, *_),) = golden.differences(before, same)
    assert what == "components_"


def test_what_is_further_off_than_its_margin_is_named():
    before, now = stored(mean=[1.0, 2.0]), stored(mean=[1.0, 2.0 + 3e-6])
    assert golden.differences(before, now) == [("mean_", "margin 1e-06", "is off by 3e-06")]
    now.arrays["mean_"][1] = np.nan
    assert golden.differences(before, now)
    assert golden.differences(before, stored()) == [("mean_", "kept", "missing")]
