#!/usr/bin/env python3
"""Development tasks; each makes the virtual environment it needs: python3 tasks.py TASK."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import venv
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = ROOT / ".venv"
OLDEST = ROOT / ".venv-oldest"
# Small problems and busy cores: several BLAS threads only get in each other's way.
SETTINGS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}

# Stems of words that newcomers search for, and a page that has to be found.
SEARCHED = {"anomali": "howto/anomalies", "correl": "glossary", "scale": "glossary"}


def run(*command, cwd=ROOT, **settings):
    """Run a command with these environment variables; stop with its exit code if it fails."""
    settings = {**os.environ, **SETTINGS, **settings}
    code = subprocess.run([str(c) for c in command], cwd=cwd, env=settings, check=False).returncode
    if code:
        sys.exit(code)


def python_of(environment):
    """Path of an environment's interpreter."""
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def install(python, *what):
    """Install packages quietly."""
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what)


def environment(extra="complete", folder=ENVIRONMENT, *options):
    """Interpreter of an environment with the project and an extra, made or renewed if needed."""
    python = python_of(folder)
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    stamp = folder / f"installed-{extra}"
    if not python.exists():
        print(f"making {folder.name} ...", flush=True)
        venv.create(folder, with_pip=True, clear=True)
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"installing fedpca-sklearn[{extra}] into {folder.name} ...", flush=True)
        install(python, "--editable", f".[{extra}]", *options)
        stamp.write_text(wanted)
    return python


def pytest(*arguments, python=None, **settings):
    """Run pytest on all cores."""
    command = (python or environment(), "-m", "pytest", "-n", "logical", "--dist", "worksteal")
    settings["PYTHONDONTWRITEBYTECODE"] = ""  # workers and the tests' own processes share it
    run(*command, *arguments, **settings)


def quickstart():
    """Run the main example: digits on ten clients, federated against pooled."""
    run(environment("plot"), "examples/sites/plot_federated_quickstart.py")


def flower():
    """Run a Flower server and two sites on this machine: digits, against pooled PCA."""
    run(environment("flower,plot"), "examples/flower/run_loopback.py")


def test(*arguments):
    """Run tests and doctests, all but the slow ones; further arguments go to pytest."""
    pytest("-m", "not slow", *arguments, TESTS_NO_SKIPS="1")


def slow(*arguments):
    """Run the tests that `test` leaves out: servers, memory of processes, benchmarks."""
    if not arguments:  # scipy reads this setting once in a process
        call = ("-m", "pytest", "-q", "-k", "check_array_api", "tests/test_common.py")
        run(environment(), *call, SCIPY_ARRAY_API="1")
    pytest("-q", "-m", "slow", *arguments, TESTS_NO_SKIPS="1")


def fast(*arguments):
    """Run three cases of each test, nothing slow: under two minutes; arguments go to pytest."""
    pytest("-q", "-m", "not slow", *arguments, TESTS_CASES="3")


def coverage(*arguments):
    """Run the tests and list the lines that none of them reaches; arguments go to pytest."""
    pytest("-q", "--cov", "--cov-report=term-missing:skip-covered", *arguments)


def mutants(*words):
    """Break the core in many ways, each of which a named test has to see; words choose some."""
    text = (ROOT / "tests" / "mutants.toml").read_text()
    chosen = [
        one
        for one in tomllib.loads(text)["mutant"]
        if all(w.lower() in one["says"].lower() + one["file"] for w in words)
    ]
    if not chosen:
        sys.exit(f"no mutant has the words {' '.join(words)}")
    command = (environment(), "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=line")
    with tempfile.TemporaryDirectory() as folder:
        folder = clone(Path(folder))
        print("all tests without a mutant ...", flush=True)
        run(*command, *dict.fromkeys(test for one in chosen for test in one["tests"]), cwd=folder)
        survived = [one["says"] for one in chosen if not killed(one, folder, command)]
    print(f"{len(chosen) - len(survived)} of {len(chosen)} killed")
    if survived:
        sys.exit("\n".join(["survived:", *survived]))


def killed(mutant, folder, command):
    """Whether the tests of a mutant fail in a copy of the project; print it."""
    file = folder / "fedpca_sklearn" / mutant["file"]
    whole, start = file.read_text(), time.monotonic()
    if whole.count(mutant["old"]) != 1:
        sys.exit(f"{mutant['file']}: the text of this mutant has to be there once: {mutant}")
    file.write_text(whole.replace(mutant["old"], mutant["new"]))
    call, settings = [str(c) for c in (*command, *mutant["tests"])], {**os.environ, **SETTINGS}
    done = subprocess.run(call, cwd=folder, env=settings, capture_output=True)
    file.write_text(whole)
    died = done.returncode == 1  # of failing tests; other codes are errors of the call
    seconds = time.monotonic() - start
    print(f"{'killed' if died else 'SURVIVED'} in {seconds:.0f} s: {mutant['says']}", flush=True)
    return died


def oldest():
    """Run all common checks and eight cases of each test with the oldest supported releases."""
    if sys.version_info >= (3, 12):
        print("left out: the oldest releases have no wheels for Python 3.12 and newer")
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = " ".join(project["dependencies"] + project["optional-dependencies"]["test"])
    pins = [f"{name}=={low}.*" for name, low in re.findall(r"([\w-]+)\S*>=([\d.]+)", needed)]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        # matplotlib 3.7 calls what pyparsing deprecated later
        constraints.write_text("\n".join([*pins, "pyparsing<3.1"]))
        python = environment("test", OLDEST, "--constraint", constraints)
    # some of scikit-learn's checks that are expected to fail did less in its old releases
    options, common = ("-q", "-m", "not slow", "-o", "xfail_strict=false"), "tests/test_common.py"
    pytest(*options, common, python=python)
    pytest(*options, "tests", f"--ignore={common}", python=python, TESTS_CASES="8")


def pythons():
    """Run three cases of each test with other Pythons: on the path, pyenv's, free-threaded ones."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    path = os.pathsep.join([*map(str, pyenv.glob("versions/*/bin")), os.environ["PATH"]])
    this = f"python3.{sys.version_info.minor}{sys.abiflags}"
    names = [f"python3.{minor}{kind}" for minor in range(11, 20) for kind in ("", "t")]
    found = [(name, shutil.which(name, path=path)) for name in names if name != this]
    others = [(name, at) for name, at in found if at and "shims" not in at]
    with ThreadPoolExecutor() as pool:  # each is made by one core
        made = list(pool.map(environment_of, *zip(*others, strict=True))) if others else []
    for (name, _), python in zip(others, made, strict=True):
        print(f"== {name}", flush=True)
        pytest("-q", "-m", "not slow", "tests", python=python, TESTS_CASES="3")
    print(f"ran with {', '.join(name for name, _ in others) or 'no other'} beside {this}")


def environment_of(name, interpreter):
    """Interpreter of an environment with what the tests need, of another Python."""
    folder = ROOT / f".venv-{name}"
    if not python_of(folder).exists():
        run(interpreter, "-m", "venv", folder)
    return environment("test", folder)


def lint():
    """Check style, format and types."""
    python = environment()
    run(python, "-m", "ruff", "check", ".")
    run(python, "-m", "ruff", "format", "--check", ".")
    run(python, "-m", "mypy")


def examples():
    """Run every example."""
    python = environment()
    for example in sorted((ROOT / "examples").rglob("plot_*.py")):
        print(f"== {example.name}", flush=True)
        run(python, example)


def docs():
    """Build the documentation in docs/_build/html; a warning is an error."""
    python = environment("docs")
    made = ROOT / "docs/auto_examples"
    for page in made.rglob("plot_*.rst"):  # of an example that was moved or removed
        if not (ROOT / "examples" / page.relative_to(made)).with_suffix(".py").exists():
            page.unlink()
    options = ("-W", "--keep-going", "-q", "-b", "html")
    run(python, "-m", "sphinx", *options, "docs", "docs/_build/html")
    searchable(ROOT / "docs/_build/html")
    linked(ROOT / "docs/_build/html")


def searchable(html):
    """Stop unless a search for what newcomers look for finds the pages about it."""
    text = (html / "searchindex.js").read_text()
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    for stem, page in SEARCHED.items():
        for kind in "titleterms", "terms":
            found = index[kind].get(stem, [])  # numbers of pages, or of the only one
            if index["docnames"].index(page) in (found if isinstance(found, list) else [found]):
                break
        else:
            sys.exit(f"a search for words in '{stem}' does not find docs/{page}.md")


def linked(html):
    """Stop unless each link between built pages leads to a file, and to a place in it."""
    pages = {p: p.read_text() for p in html.rglob("*.html") if "_static" not in p.parts}
    places = {page: set(re.findall(r'\bid="([^"]+)"', text)) for page, text in pages.items()}
    dead = set()
    for page, text in pages.items():
        for link in re.findall(r'(?:href|src)="(?!\w+:|//|#")([^"]+)"', text):
            path, _, place = unquote(unescape(link)).partition("#")
            file = (page.parent / path.partition("?")[0]).resolve() if path else page
            sources = "_modules" in page.parts  # Sphinx writes the module of the first name there
            if not file.exists() or (place and not sources and place not in places.get(file, ())):
                dead.add(f"{page.relative_to(html)}: {link}")
    if dead:
        sys.exit("dead links:\n" + "\n".join(sorted(dead)))


def screenshots():
    """Look at all built pages on a desktop and a phone; pictures in docs/_build/screenshots."""
    names = "chromium", "chromium-browser", "google-chrome"
    browser = next(filter(None, map(shutil.which, names)), None)
    if browser is None:
        sys.exit("No Chromium was found: install it by its package, then build the pages.")
    html, out = ROOT / "docs/_build/html", ROOT / "docs/_build/screenshots"
    out.mkdir(exist_ok=True)
    looked_at(browser, html)
    names = ["index", "choosing", "api", "howto/sites", "guide/streams", "auto_examples/index"]
    names.append("generated/fedpca_sklearn.FederatedPCA")
    for page in names:
        for device, size in (("desktop", "1366,1600"), ("phone", "390,1600")):
            picture = out / f"{page.replace('/', '_')}_{device}.png"
            size = f"--window-size={size}"
            headless(browser, size, f"--screenshot={picture}", f"file://{html}/{page}.html")


def headless(browser, *options):
    """What a browser without a window prints, with a profile of its own."""
    common = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    common += ["--disable-background-networking", "--virtual-time-budget=3000000"]
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, *common, f"--user-data-dir={profile}", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


def looked_at(browser, html):
    """Stop with the names of pages that are wider than their window, or cut a text."""
    every = sorted(path.relative_to(html).as_posix() for path in html.rglob("*.html"))
    pages = [page for page in every if not page.startswith("_")]
    text = (ROOT / "docs/widths.html").read_text().replace("PAGES", json.dumps(pages))
    (html / "_widths.html").write_text(text)
    handler = partial(QuietHandler, directory=html)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/_widths.html"
        page = headless(browser, "--dump-dom", address)
        server.shutdown()
    first, *found = re.search('id="found">(.*?)</pre>', page, re.DOTALL)[1].splitlines()
    print(f"{unescape(first)} at 1366 and 390 pixels: {len(found)} are cut or too wide")
    if found:
        sys.exit("\n".join(map(unescape, found)))


class QuietHandler(SimpleHTTPRequestHandler):
    """Files of a folder; nothing is printed."""

    def log_message(self, *arguments):
        """Print nothing."""


def built(source, folder):
    """Wheel and source archive of a folder with the project."""
    python = environment("release")
    run(python, "-m", "build", "--no-isolation", "--outdir", folder, source, cwd=folder.parent)
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, archive


def clone(folder):
    """Copy the files that git knows, as they are here; their times and place are new."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, names.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def wheel():
    """Build wheel and source archive twice, bit by bit the same; use them as README.md says."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        made = built(ROOT, folder / "first"), built(clone(folder / "copy"), folder / "second")
        for first, second in zip(*made, strict=True):
            digest = hashlib.sha256(first.read_bytes()).hexdigest()
            assert digest == hashlib.sha256(second.read_bytes()).hexdigest(), f"{first} differs"
            print(digest, first.name)
        wheel, _ = made[0]
        names = zipfile.ZipFile(wheel).namelist()
        assert any(name.endswith("py.typed") for name in names), "py.typed is missing in the wheel"
        assert any("/sboms/" in name for name in names), "the wheel has no bill of materials"
        assert not any("tests/" in name for name in names), "the wheel carries tests"
        stranger(folder, wheel)


def stranger(folder, wheel):
    """Do what README.md says: install the wheel, then run the code, and its commands in a clone."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    install_it, commands = (block for kind, block in blocks if not kind)
    code = [block for kind, block in blocks if kind == "python"]
    start = time.monotonic()
    venv.create(folder / "clean", with_pip=True)
    clean = python_of(folder / "clean")
    assert install_it == "pip install fedpca-sklearn\n", "README.md installs in another way"
    install(clean, wheel)
    run(clean, "-c", code[0], cwd=folder)
    print(f"from pip install to a first result: {time.monotonic() - start:.0f} s", flush=True)
    for block in code[1:]:  # each as it is pasted, without the others
        run(clean, "-c", block, cwd=folder)
    install(clean, "--dry-run", f"{wheel}[all]")
    start = time.monotonic()
    run(*commands.partition("#")[0].split(), cwd=folder / "copy")
    print(f"from a clone to a first result: {time.monotonic() - start:.0f} s", flush=True)


def release():
    """Check that version, changelog, citation and bill of materials agree; fill dist/."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    wheel, archive = built(ROOT, ROOT / "dist")
    version = wheel.name.split("-")[1]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## (\S+) (.*)$", changelog, re.MULTILINE)
    if newest[1] != version or not re.fullmatch(r"\(\d{4}-\d\d-\d\d\)", newest[2]):
        sys.exit(f"CHANGELOG.md must begin with '## {version} (YYYY-MM-DD)', got '{newest[0]}'.")
    run(environment("release"), "-m", "twine", "check", "--strict", wheel, archive)
    docs()
    print("dist/ is ready; .ci/run must have passed at this commit")


def bench(*arguments):
    """Run the benchmarks; further arguments go to ``python -m benchmarks``."""
    run(environment("benchmark"), "-m", "benchmarks", *arguments)


TASKS = {
    f.__name__: f
    for f in (
        *(quickstart, flower, test, slow, fast, coverage, mutants, oldest, pythons),
        *(lint, examples, docs, screenshots, wheel, release, bench),
    )
}

if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036, run by whatever python3 is there
        sys.exit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}.")
    if len(sys.argv) < 2 or sys.argv[1] not in TASKS:
        print(__doc__, *(f"  {n:11}{f.__doc__}" for n, f in TASKS.items()), sep="\n")
        sys.exit(2)
    TASKS[sys.argv[1]](*sys.argv[2:])
