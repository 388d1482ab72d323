"""The code in README.md and docs/ runs as it stands there; what pages name exists."""

import ast
import codeop
import inspect
import json
import re
import runpy
import sys
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA

import fedpca_sklearn
from fedpca_sklearn import base
from fedpca_sklearn.engines import files, protocols

ROOT = Path(__file__).resolve().parent.parent
MADE = {"_build", "auto_examples", "generated"}
DOCS = [page for page in sorted((ROOT / "docs").rglob("*.md")) if not MADE & set(page.parts)]
EXAMPLES = sorted((ROOT / "examples").rglob("plot_*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS]

# what the environment of the oldest releases lacks
OPTIONAL = {"polars", "pyarrow", "skops", "torch"}
BASE = {"joblib", "numpy", "sklearn", "scipy", "threadpoolctl"}
HOW_TO = sorted((ROOT / "docs/howto").glob("*.md"))
GUIDES = [*sorted((ROOT / "docs/guide").glob("*.md")), ROOT / "docs/privacy.md"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RECIPES = [ROOT / "docs/extending.md", ROOT / "docs/extending_flower.md"]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def imports(page):
    """Packages that the code of a page imports."""
    trees = [ast.walk(ast.parse(code)) for code in blocks(page)]
    nodes = [node for tree in trees for node in tree]
    named = [a.name for node in nodes if isinstance(node, ast.Import) for a in node.names]
    named += [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in named}


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_code_of_a_page_runs_in_order(page, tmp_path, monkeypatch, capsys, caplog):
    """In an empty folder, with no names but its own; what it says that it prints, it prints.

    Those who paste a block of the first page have not pasted the others.
    """
    monkeypatch.chdir(tmp_path)
    caplog.set_level("WARNING", "fedpca_sklearn")  # a page may set another, which ends with it
    names = {}
    for package in sorted(OPTIONAL & imports(page)):
        pytest.importorskip(package)
    if page.name == "arrays.md":  # which sets it; undone afterwards
        monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    if page.name == "extending_flower.md":
        pytest.importorskip("flwr")
    for code in blocks(page):
        names = {} if page.name == "README.md" else names
        capsys.readouterr()
        exec(compile(code, page.name, "exec"), names)
        said = re.search(r"(?:^# .*\n)+\Z", code, flags=re.MULTILINE)
        if said:
            words = said[0].replace("#", " ").split(), capsys.readouterr().out.split()
            for told, printed in zip(*words, strict=True):
                assert printed == told or float(printed) == pytest.approx(float(told), rel=0.2)
        if "merged" in names and page.name == "README.md":
            oracle = PCA(20).fit(names["X"]).explained_variance_
            assert_allclose(names["merged"].explained_variance_, oracle)


def refused_at_the_prompt(code):
    """Lines of a block at which Python's prompt stops, as after a loop without an empty line."""
    compiles, typed = codeop.CommandCompiler(), []
    for line in f"{code}\n".split("\n"):
        typed.append(line)
        try:
            done = compiles("\n".join(typed), symbol="single") is not None
        except SyntaxError:
            yield line
            done = True
        typed = [] if done else typed


@pytest.mark.parametrize("page", [ROOT / "README.md", *HOW_TO, *GUIDES], ids=lambda p: p.name)
def test_code_can_be_pasted_at_the_prompt_of_python(page):
    loop = "for i in 1, 2:\n    i\n{}i += 1\n"
    assert list(refused_at_the_prompt(loop.format(""))) == ["i += 1"]
    assert not list(refused_at_the_prompt(loop.format("\n")))
    assert not [line for code in blocks(page) for line in refused_at_the_prompt(code)]


def installed_by(page):
    """Names in the lines of a page that say `pip install`, with the packages of extras."""
    said = re.findall(r"pip install ([^`\n]+)", page.read_text())
    words = {word for line in said for word in re.findall(r"[\w-]+", line)}
    extras = PROJECT["optional-dependencies"]
    needed = [line for word in words & set(extras) for line in extras[word]]
    return words | {re.match(r"[\w-]+", line)[0] for line in needed}


@pytest.mark.parametrize("page", [ROOT / "README.md", *HOW_TO], ids=lambda p: p.name)
def test_a_page_says_what_its_code_needs_beside_the_library(page):
    given = {*sys.stdlib_module_names, *BASE, "fedpca_sklearn"}
    assert imports(page) - given <= installed_by(page)


def test_pages_of_cases_open_with_a_few_lines_that_run():
    """From the first page a case leads to at most eight lines of code, the first of its page."""
    _, case, _ = re.split(
        r"^## Your .*\n", (ROOT / "docs/index.md").read_text(), flags=re.MULTILINE
    )
    pages = re.findall(r"\]\(([\w/]+\.md)\)", case)
    assert len(pages) >= 8
    for name in pages:
        first, *_ = blocks(ROOT / "docs" / name)
        assert len([line for line in first.splitlines() if line]) <= 8, name


def hidden_imports(code):
    """Names or modules with an underscore that code imports."""
    for node in ast.walk(ast.parse(code)):
        module = getattr(node, "module", None) or ""
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
            path = f"{module}.{alias.name}".strip(".")
            if any(part.startswith("_") and part != "__future__" for part in path.split(".")):
                yield path


@pytest.mark.parametrize("page", [ROOT / "README.md", *RECIPES], ids=lambda p: p.name)
def test_recipes_import_what_is_public(page):
    seen = hidden_imports("import a._b\nfrom a import _c, d\nfrom a._e.f import g")
    assert list(seen) == ["a._b", "a._c", "a._e.f.g"]
    assert not [path for code in blocks(page) for path in hidden_imports(code)]


def test_every_base_has_a_short_recipe():
    """A class of the pages has it as a base, or a class that has; at most 40 lines with imports."""
    trees = [ast.parse(code) for page in RECIPES for code in blocks(page)]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    assert not [node.name for node in classes if node.end_lineno > 40]
    names = {b.id for node in classes for b in node.bases}
    kinds = [getattr(base if hasattr(base, name) else protocols, name) for name in names]
    shown = {above for kind in kinds for above in kind.__mro__}
    abstract = {kind for kind in map(vars(base).get, base.__all__) if inspect.isabstract(kind)}
    assert abstract - shown == {base.StreamingClientsTransformer}  # one method more, `_reset`


def test_pages_link_to_files_and_headings_that_exist():
    for page in PAGES:
        for target, heading in re.findall(r"\]\(([\w/.-]*)(?:#([\w-]+))?\)", page.read_text()):
            file = page.parent / target if target else page
            assert file.exists(), f"{page.name} links to {target}"
            if heading:
                titles = re.findall(r"^#+ (.+)$", file.read_text(), flags=re.MULTILINE)
                anchors = [re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles]
                assert heading in anchors, f"{page.name} links to {target}#{heading}"


def test_every_public_name_is_on_the_page_of_the_api():
    page, listed, module = (ROOT / "docs/api.md").read_text(), defaultdict(list), None
    line = r"^(?:\.\. currentmodule:: ([\w.]+)|   (?:~fedpca_sklearn\.)?(\w+))$"
    for found in re.finditer(line, page, re.MULTILINE):
        module = found[1] or module
        listed[module] += [found[2]] if found[2] else []
    flower = (ROOT / "fedpca_sklearn/engines/flower.py").read_text()  # needs no Flower
    (names,) = re.findall(r"^__all__ = (\[.*?\])", flower, re.MULTILINE | re.DOTALL)
    flowers = set(ast.literal_eval(names))
    assert {module: sorted(names) for module, names in listed.items()} == {
        "fedpca_sklearn": sorted(fedpca_sklearn.__all__),
        "fedpca_sklearn.base": sorted(base.__all__),
        "fedpca_sklearn.engines.flower": sorted(ast.literal_eval(names)),
        "fedpca_sklearn.engines.files": sorted({*files.__all__} - flowers),
        "fedpca_sklearn.engines.protocols": sorted({*protocols.__all__} - flowers),
        "fedpca_sklearn.engines.testing": ["InProcessGrid"],
    }


def test_every_page_is_in_a_table_of_contents():
    entries = set()
    for page in DOCS:
        for tree in re.findall(r"```{toctree}\n(.*?)```", page.read_text(), flags=re.DOTALL):
            names = re.findall(r"([\w/.]+)>?$", tree, flags=re.MULTILINE)
            entries |= {(page.parent / name).resolve() for name in names}
    missing = {page.with_suffix("") for page in DOCS} - entries
    assert missing == {ROOT / "docs/index"}


def test_bill_of_materials_recipe_and_citation_are_those_of_the_project():
    bill, needed = (
        json.loads((ROOT / "fedpca_sklearn.cdx.json").read_text()),
        PROJECT["dependencies"],
    )
    itself, version = bill["metadata"]["component"], fedpca_sklearn.__version__
    assert (itself["name"], itself["version"]) == (PROJECT["name"], version)
    assert itself["licenses"] == [{"license": {"id": PROJECT["license"]}}]
    names = [re.match(r"[\w-]+", line)[0] for line in needed]
    assert [part["name"] for part in bill["components"]] == names
    (depends,) = bill["dependencies"]
    assert depends["ref"] == itself["purl"] == f"pkg:pypi/{itself['name']}@{itself['version']}"
    assert depends["dependsOn"] == [part["purl"] for part in bill["components"]]
    recipe = (ROOT / "recipe/recipe.yaml").read_text()  # for conda
    for name, value in (
        ("name", PROJECT["name"]),
        ("version", f'"{version}"'),
        ("python_min", f'"{PROJECT["requires-python"].removeprefix(">=")}"'),
    ):
        assert f"  {name}: {value}\n" in recipe
    (run,) = re.findall(r"^  run:\n((?:    - .*\n)+)", recipe, re.MULTILINE)
    first, *lines = re.findall(r"- (.*)", run)
    assert first == "python >=${{ python_min }}"
    assert [line.replace(" ", "") for line in lines] == needed
    contributing = (ROOT / "CONTRIBUTING.md").read_text()
    marked = re.findall(r": (\w+) # placeholder|- (\w+) # placeholder", recipe)
    assert all(f"`{''.join(name)}`" in contributing for name in marked)
    assert len(marked) == 3
    assert f"version = {{{version}}}" in (ROOT / "docs/about.md").read_text()


def test_the_first_page_is_short_and_narrow():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert max(len(line) for line in lines if line.startswith("|")) <= 60


def test_every_example_is_in_a_section_of_the_gallery():
    """A folder of examples/ with a header; a file beside the folders would be in none."""
    sections = {page.parent.name for page in EXAMPLES}
    conf = (ROOT / "docs/conf.py").read_text()
    assert sections == set(re.findall(r'"\.\./examples/(\w+)"', conf))
    for section in sections:
        title, line, *text = (
            (ROOT / "examples" / section / "GALLERY_HEADER.rst").read_text().split("\n")
        )
        assert line == "-" * len(title)
        assert any(text)


def test_getting_started_runs(capsys):
    pytest.importorskip("matplotlib")
    names = runpy.run_path(str(ROOT / "examples/getting_started/plot_getting_started.py"))
    printed = capsys.readouterr().out
    for told in ("0.738", "floats_up=34710", "['north', 'south'] 1797", "[ 1  1 -1  1  1]"):
        assert told in printed
    oracle = PCA(10).fit(names["X"]).explained_variance_
    for pca in names["pca"], names["merged"], names["stream"]:
        assert_allclose(pca.explained_variance_, oracle)


def test_a_notebook_of_an_example_knows_no_file():
    """Cells have no `__file__`, which scripts may use where they have asked for it."""
    for example in EXAMPLES:
        code = example.read_text()
        asked = code.partition('if "__file__" in globals():')
        assert "__file__" not in asked[0], example.name


GUIDE = ["streams", "rows", "missing_and_outliers", "columns", "rounds"]


@pytest.mark.parametrize("page", [*(f"guide/{name}.md" for name in GUIDE), "privacy.md"])
def test_a_page_opens_with_a_figure_that_the_build_draws(page):
    """Before its first heading or block of code, from code that runs, narrow enough for a phone."""
    plt = pytest.importorskip("matplotlib.pyplot")
    opening = re.split(
        r"^(?:## |```python)", (ROOT / "docs" / page).read_text(), flags=re.MULTILINE
    )
    (drawn,) = re.findall(r"^\.\. plot:: (\S+)\n   :alt: .{40,}\n\n   \S", opening[0], re.MULTILINE)
    plt.close("all")
    with plt.rc_context():
        runpy.run_path(str(ROOT / "docs" / drawn))
        (figure,) = map(plt.figure, plt.get_fignums())
        assert figure.get_figwidth() <= 4.5  # 324 points: letters of 10 points stay readable
        plt.close(figure)


def test_every_task_that_is_named_exists():
    tasks = runpy.run_path(str(ROOT / "tasks.py"))["TASKS"]
    calls = [*PAGES, ROOT / ".pre-commit-config.yaml", *(ROOT / ".github/workflows").iterdir()]
    for script in re.findall(r'"(examples/[\w/]+\.py)"', (ROOT / "tasks.py").read_text()):
        assert (ROOT / script).exists(), script
    named = {word for call in calls for word in re.findall(r"tasks\.py (\w+)", call.read_text())}
    lines = re.findall(r"^\(?tasks ([a-z ]+)", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    named |= {word for line in lines for word in line.split()}
    assert {"lint", "wheel", "docs", "oldest", "pythons", "slow", "test"} <= named <= set(tasks)


def test_tests_and_files_that_pages_name_are_there():
    """What a page says is held by a test; a test that goes takes its sentence with it."""
    folders = "fedpca_sklearn", "tests", "benchmarks", "examples"
    files = [path.as_posix() for name in folders for path in (ROOT / name).rglob("*.py")]
    for page in (ROOT / "CONTRIBUTING.md", ROOT / "docs/design.md"):  # others name other projects'
        for file in re.findall(r"`(\w+/[\w/]+\.py)`", page.read_text()):
            assert any(f"/{file}" in path for path in files), (page, file)
    named = {
        name for page in PAGES for name in re.findall(r"\btest_[a-z0-9_]+(?=`)", page.read_text())
    }
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    there = {name for text in texts for name in re.findall(r"def (test_\w+)", text)}
    there |= {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert len(named) > 20
    assert named <= there, named - there
