"""The code in README.md and docs/ runs as it stands there."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedpca_sklearn import FederatedPCA, StreamingPCA, make_power_law

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=lambda p: p.name)
def test_code_of_a_page_runs_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X = make_power_law(300, 30, random_state=0)
    StreamingPCA(20).fit(X).subspace_.save("site1.subspace")
    names = {
        "X": X,
        "X_site": X[:100],
        "batches": [X[:99], X[99:]],
        "hospital": np.arange(300) % 7,
        "files": ["site1.subspace", "site3.subspace"],
        "StreamingPCA": StreamingPCA,
        "FederatedPCA": FederatedPCA,
    }
    for code in blocks(page):
        exec(compile(code, page.name, "exec"), names)
    if page.name == "README.md":
        assert names["pca"].n_samples_ == 400  # both sites


def test_pages_link_to_files_that_exist():
    for page in PAGES:
        for target in re.findall(r"\]\(([\w/.-]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
