#!/usr/bin/env python3
"""Development tasks; each makes the virtual environment it needs: python3 tasks.py TASK."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
ENVIRONMENT = ROOT / ".venv"
OLDEST = ROOT / ".venv-oldest"
# Small problems and busy cores: several BLAS threads only get in each other's way.
SETTINGS = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}


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
    run(*command, *arguments, **settings)


def quickstart():
    """Run the main example: digits on ten clients, federated against pooled."""
    run(environment("plot"), "examples/plot_federated_quickstart.py")


def flower():
    """Run a Flower server and two sites on this machine: digits, against pooled PCA."""
    run(environment("flower,plot"), "examples/flower/run_loopback.py")


def test(*arguments):
    """Run all tests and doctests; further arguments go to pytest."""
    if not arguments:  # scipy reads this setting once in a process
        pytest("-q", "-k", "check_array_api", "tests/test_common.py", SCIPY_ARRAY_API="1")
    pytest(*arguments, TESTS_NO_SKIPS="1")


def fast(*arguments):
    """Run three cases of each test, nothing slow: under two minutes; arguments go to pytest."""
    pytest("-q", "-m", "not slow", *arguments, TESTS_CASES="3")


def coverage(*arguments):
    """Run the tests and list the lines that none of them reaches; arguments go to pytest."""
    pytest("-q", "--cov", "--cov-report=term-missing:skip-covered", *arguments)


def oldest():
    """Run the tests with the oldest supported release of all that they need."""
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
    pytest("-q", "-m", "not slow", "-o", "xfail_strict=false", "tests", python=python)


def lint():
    """Check style, format and types."""
    python = environment()
    run(python, "-m", "ruff", "check", ".")
    run(python, "-m", "ruff", "format", "--check", ".")
    run(python, "-m", "mypy")


def examples():
    """Run every example."""
    python = environment()
    for example in sorted((ROOT / "examples").glob("plot_*.py")):
        print(f"== {example.name}", flush=True)
        run(python, example)


def docs():
    """Build the documentation in docs/_build/html; a warning is an error."""
    python = environment("docs")
    options = ("-W", "--keep-going", "-q", "-b", "html")
    run(python, "-m", "sphinx", *options, "docs", "docs/_build/html")


def wheel():
    """Build the wheel, use it in a clean environment from another folder, resolve its extras."""
    script = (
        "import fedpca_sklearn as f, importlib.metadata as m;"
        "assert m.version('fedpca-sklearn') == f.__version__;"
        "X = f.make_power_law(200, 20, random_state=0);"
        "print('wheel', f.__version__, f.FederatedPCA(3).fit(X).communication_)"
    )
    python = environment()
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ".")
        (built,) = folder.glob("*.whl")
        names = subprocess.run(
            [str(python), "-m", "zipfile", "-l", str(built)], capture_output=True, text=True
        ).stdout
        assert "py.typed" in names, "py.typed is missing in the wheel"
        assert "tests/" not in names, "the wheel carries tests"
        venv.create(folder / "clean", with_pip=True)
        clean = python_of(folder / "clean")
        install(clean, built)
        run(clean, "-c", script, cwd=folder)
        install(clean, "--dry-run", f"{built}[all]")
    shutil.rmtree(ROOT / "build", ignore_errors=True)


def bench(*arguments):
    """Run the benchmarks; further arguments go to ``python -m benchmarks``."""
    run(environment("benchmark"), "-m", "benchmarks", *arguments)


TASKS = {
    f.__name__: f
    for f in (
        *(quickstart, flower, test, fast, coverage, oldest),
        *(lint, examples, docs, wheel, bench),
    )
}

if __name__ == "__main__":
    if sys.version_info < (3, 11):  # noqa: UP036, run by whatever python3 is there
        sys.exit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}.")
    if len(sys.argv) < 2 or sys.argv[1] not in TASKS:
        print(__doc__, *(f"  {n:11}{f.__doc__}" for n, f in TASKS.items()), sep="\n")
        sys.exit(2)
    TASKS[sys.argv[1]](*sys.argv[2:])
