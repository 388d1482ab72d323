"""The code in README.md and docs/ runs as it stands there; what pages name exists."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import fedpca_sklearn
from fedpca_sklearn import FederatedPCA, StreamingPCA, make_power_law

ROOT = Path(__file__).resolve().parent.parent
MADE = {"_build", "auto_examples", "generated"}
DOCS = [page for page in sorted((ROOT / "docs").rglob("*.md")) if not MADE & set(page.parts)]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *DOCS]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_code_of_a_page_runs_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = make_power_law(300, 30, random_state=0)
    StreamingPCA(20).fit(X).subspace_.save("site1.subspace", site="first")
    names = {
        "X": X,
        "X_site": X[:100],
        "batches": [X[:99], X[99:]],
        "hospital": np.arange(300) % 7,
        "files": ["site1.subspace", "site3.subspace"],
        "StreamingPCA": StreamingPCA,
        "FederatedPCA": FederatedPCA,
    }
    if page.name == "extending_flower.md":
        pytest.importorskip("flwr")
        names["grid_of"] = pytest.importorskip("engines.test_flower").grid_of
    for code in blocks(page):
        exec(compile(code, page.name, "exec"), names)
    if page.name == "README.md":
        assert sum(s.n_samples for s in names["summaries"]) == 400  # both sites


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
    listed = re.findall(r"^   (\w+)$", (ROOT / "docs/api.md").read_text(), flags=re.MULTILINE)
    apps = ["client_app", "fit_sites", "server_app"]
    assert sorted(listed) == sorted([*fedpca_sklearn.__all__, *apps])


def test_every_page_is_in_a_table_of_contents():
    entries = set()
    for page in DOCS:
        for tree in re.findall(r"```{toctree}\n(.*?)```", page.read_text(), flags=re.DOTALL):
            names = re.findall(r"([\w/.]+)>?$", tree, flags=re.MULTILINE)
            entries |= {(page.parent / name).resolve() for name in names}
    missing = {page.with_suffix("") for page in DOCS} - entries
    assert missing == {ROOT / "docs/index"}


def test_every_task_that_is_named_exists():
    tasks = runpy.run_path(str(ROOT / "tasks.py"))["TASKS"]
    calls = [*PAGES, ROOT / ".pre-commit-config.yaml", *(ROOT / ".github/workflows").iterdir()]
    named = {word for call in calls for word in re.findall(r"tasks\.py (\w+)", call.read_text())}
    (loop,) = re.findall(r"for task in ([\w ]+);", (ROOT / ".ci/run").read_text())
    assert {"lint", "test"} <= named | set(loop.split())
    assert named | set(loop.split()) <= set(tasks)
