"""numpydoc finds every parameter and every result of what is public described."""

import inspect
import re

import pytest

import fedpca_sklearn
from fedpca_sklearn import base

pytest.importorskip("flwr")
pytest.importorskip("numpydoc")

from numpydoc.validate import validate

from fedpca_sklearn.engines import flower

APPS = [getattr(flower, name) for name in flower.__all__]
BASES = [getattr(base, name) for name in base.__all__ if name != "Interval"]  # scikit-learn's own
# a docstring, its sections in order; parameters: no others, in order, with type and text; results
# with text
OF_OVERRIDES = frozenset({"GL06", "GL07", "GL08", "PR02", "PR03", "PR04", "PR07", "PR10", "RT03"})
# all parameters, and a section for the result, which an override need not repeat
CHECKS = OF_OVERRIDES | {"PR01", "RT01", "YD01"}


def public_things():
    """What is public, and the public members of classes, with the checks of each."""
    for cls in BASES:
        for name in sorted(getattr(cls, "__abstractmethods__", ())):
            owner = next(kind for kind in cls.__mro__ if name in vars(kind))
            yield owner, f".{name}", CHECKS
    for thing in [*(getattr(fedpca_sklearn, n) for n in fedpca_sklearn.__all__), *BASES, *APPS]:
        if inspect.isclass(thing) or inspect.isfunction(thing):
            yield thing, "", CHECKS
        for cls in inspect.getmro(thing) if inspect.isclass(thing) else ():
            for name, member in vars(cls).items():
                ours = cls.__module__.startswith(fedpca_sklearn.__name__) and name[0] != "_"
                if ours and (inspect.isroutine(member) or isinstance(member, property)):
                    above = any(name in vars(kind) for kind in inspect.getmro(cls)[1:])
                    whole = name == "fit" or not above
                    yield cls, f".{name}", CHECKS if whole else OF_OVERRIDES


def findings():
    """What numpydoc finds, in lines "name: code parameters", and all names."""
    lines, all_names = set(), set()
    for thing, member, asked in dict.fromkeys(public_things()):  # a base has many subclasses
        name = thing.__qualname__ + member
        all_names.add(name)
        found = validate(f"{thing.__module__}.{name}")
        # the parameters of a dataclass are documented as its attributes
        fields = re.findall(r"^(\w+) : ", found["docstring"].partition("Attributes\n")[2], re.M)
        for code, text in found["errors"]:
            parameters = sorted(set(re.findall(r"[\"'](\w+)[\"']", text)) - set(fields))
            if code in asked and (parameters or code != "PR01"):
                lines.add(" ".join([f"{name}: {code}", *(parameters if code != "PR03" else ())]))
    return lines, all_names


def test_docstrings_describe_every_parameter_and_result():
    found, names = findings()
    assert {"StreamingPCA", "StreamingPCA.fit", "merge_subspaces", "fit_sites"} <= names
    assert not found


def test_a_base_says_what_a_subclass_writes():
    abstract = [kind for kind in BASES if inspect.isabstract(kind)]
    assert {base.Tracker, base.SubspaceTransformer, base.SecondMomentMechanism} <= set(abstract)
    for kind in abstract:
        text = inspect.getdoc(kind)
        silent = [name for name in kind.__abstractmethods__ if not re.search(rf"`{name}\b", text)]
        assert not silent, f"the docstring of {kind.__name__} does not name {silent}"


@pytest.mark.parametrize("kind", [k for k in BASES if inspect.isabstract(k)])
def test_what_a_subclass_has_not_written_is_told(kind):
    unwritten = type("Unwritten", (kind,), {})
    with pytest.raises(TypeError, match=min(kind.__abstractmethods__)):
        unwritten()
