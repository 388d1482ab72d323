"""Every import inside the package goes to a room that stands earlier in docs/design.md."""

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import fedpca_sklearn

PACKAGE = Path(fedpca_sklearn.__file__).parent


def rooms_of_the_page(page):
    """Names at the beginning of the lines under "Rooms", in order: from the floor up."""
    block = re.search(r"^## Rooms\n(.*?)(?:^## |\Z)", page, re.MULTILINE | re.DOTALL)[1]
    lines = re.findall(r"^    ((?:\w+(?:/|\.py)(?:, | (?! ))?)+)", block, re.MULTILINE)
    names = re.findall(r"(\w+)(?:/|\.py)", " ".join(lines))
    assert len(names) == len(set(names)), "a room is listed twice"
    return names


@cache
def nodes_of(file):
    return list(ast.walk(ast.parse(file.read_text())))


def imported_rooms(file, package):
    """Rooms that a file imports, wherever in the file: relatively, absolutely, by the root."""
    place = (package.name, *file.relative_to(package).parent.parts)
    for node in nodes_of(file):
        if isinstance(node, ast.ImportFrom):
            base = place[: len(place) + 1 - node.level] if node.level else ()
            path = (*base, *(node.module.split(".") if node.module else ()))
            paths = [(*path, alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            paths = [tuple(alias.name.split(".")) for alias in node.names]
        else:
            continue
        yield from ("".join(path[1:2]) for path in paths if path[0] == package.name)


def wrong_arrows(package, rooms):
    """Lines "file imports room" where the room does not stand below the file's own."""
    files = [f for f in sorted(package.rglob("*.py")) if f != package / "__init__.py"]
    floor = {name: number for number, name in enumerate(rooms)}
    for file in files:
        room = file.relative_to(package).with_suffix("").parts[0]
        if room not in floor:
            yield f"{file.relative_to(package)} is in no room"
            continue
        for other in sorted(set(imported_rooms(file, package)) - {room}):
            if floor.get(other, len(floor)) >= floor[room]:
                yield f"{file.relative_to(package)} imports {other or 'the root'}"


def test_every_arrow_goes_down():
    page = (Path(__file__).resolve().parents[1] / "docs/design.md").read_text()
    rooms = rooms_of_the_page(page)
    there = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert set(rooms) == there - {"__init__"}, "docs/design.md lists other rooms than there are"
    assert not list(wrong_arrows(PACKAGE, rooms))


def test_wrong_arrows_are_seen(tmp_path):
    package = tmp_path / "house"
    for path, code in {
        "_floor.py": "import numpy\ndef f():\n    from .roof import x",  # where it is used
        "rank.py": "import house._floor.a\nfrom . import _floor\nimport house",
        "roof.py": "from .rank import r\nimport housekeeping, house.attic",
        "attic.py": "from . import roof",
    }.items():
        package.mkdir(exist_ok=True)
        (package / path).write_text(code)
    page = (
        "## Rooms\n\n    _floor.py   arrays\n    rank.py, roof.py  all\n\n## Around\n\n    x.py\n"
    )
    assert rooms_of_the_page(page) == ["_floor", "rank", "roof"]
    assert list(wrong_arrows(package, rooms_of_the_page(page))) == [
        "_floor.py imports roof",
        "attic.py is in no room",
        "rank.py imports the root",
        "roof.py imports attic",
    ]


def test_a_public_name_is_that_of_its_module():
    assert set(fedpca_sklearn.__all__) <= set(dir(fedpca_sklearn))
    for name in fedpca_sklearn.__all__:
        module = importlib.import_module(f"fedpca_sklearn.{fedpca_sklearn._MODULES[name]}")
        assert getattr(fedpca_sklearn, name) is getattr(module, name), name


def test_a_module_is_imported_when_it_is_asked_for_and_nothing_is_printed():
    code = """
import logging, sys
import numpy as np
import fedpca_sklearn as f
logger = logging.getLogger("fedpca_sklearn")
assert logger.level == logging.NOTSET
assert not logger.handlers  # else what fails at a site would be shown nowhere
X = np.random.default_rng(0).standard_normal((30, 3))
f.StreamingPCA(1).fit(X).transform(X)
loaded = {name.partition(".")[2] for name in sys.modules if "fedpca" in name}
assert "streaming" in loaded
assert not loaded & {"federated", "privacy", "rounds", "engines", "tracking", "vertical"}
assert not loaded & {"monitoring", "plotting"}
channel = f.PerfectChannel(dropout=0.3)
f.FederatedPowerPCA(1, random_state=0, channel=channel).fit(X).transform(X)
others = "polars", "duckdb", "h5py", "zarr", "torch", "array_api_strict", "jax"
assert not [name for name in others if name in sys.modules]  # to tell containers apart
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_is_no_name_of_the_package_is_an_error():
    with pytest.raises(AttributeError, match="no attribute 'StreamingPC'"):
        fedpca_sklearn.StreamingPC  # noqa: B018
    assert fedpca_sklearn.base.MergeStrategy is fedpca_sklearn.MergeStrategy


def identifiers(file):
    """Names of functions, classes, parameters, attributes and variables."""
    for node in nodes_of(file):
        for kind in ("name", "arg", "id", "attr"):
            if isinstance(name := getattr(node, kind, None), str):
                yield name


def test_words_that_the_glossary_has_replaced_are_no_names():
    page = (Path(__file__).resolve().parents[1] / "docs/glossary.md").read_text()
    table = page.partition("## Names in the code")[2]
    rows = re.findall(r"^\| `.*\|.*\|(.*)\|$", table, re.MULTILINE)
    replaced = {word for row in rows for word in re.findall(r"`(\w+)`", row)}
    assert len(rows) > 10
    for file in PACKAGE.rglob("*.py"):
        assert not replaced.intersection(identifiers(file)), file
