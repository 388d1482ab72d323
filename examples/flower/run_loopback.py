"""A whole federation on this machine: a Flower server and sites, on 127.0.0.1 only.

    python examples/flower/run_loopback.py
    python examples/flower/run_loopback.py secure
    python examples/flower/run_loopback.py private

starts them, two sites or three, runs the app next to this file or that in a folder, compares its
result with PCA of all rows, draws it to digits.png, and ends them. "private" runs its app twice,
and prints what an auditor reads at the sites: the second time they have no budget left.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

import fedpca_sklearn
from fedpca_sklearn import Subspace, subspace_distance
from fedpca_sklearn.__main__ import main

APP = Path(__file__).resolve().parent
# No telemetry, no look for updates, no installation of what is there already.
SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def federate(home, n_sites=2, seconds=90.0, apps=(APP,)):
    """Run apps on sites of this machine, and return what the server of each saved: a `Subspace`.

    None of an app that saved nothing; the first one has to. Flower keeps its files and the logs of
    the processes in ``home``, and so do the sites what they have to remember. All processes are
    ended before this returns or raises, from ``seconds`` on at the latest.
    """
    home = Path(home)
    end = time.monotonic() + seconds
    environment = {
        **os.environ,
        **SETTINGS,
        "FLWR_HOME": str(home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        # sites import the same package as this script
        "PYTHONPATH": str(Path(fedpca_sklearn.__file__).parent.parent),
    }
    server, *ports = free_ports(1 + n_sites)
    link = f"127.0.0.1:{server}"
    (home / "config.toml").write_text(f'[superlink.lab]\naddress = "{link}"\ninsecure = true\n')
    outputs = [home / f"{number}.subspace" for number in range(len(apps))]
    with ExitStack() as stack:

        def start(log, *command, **more):
            return stack.enter_context(running(home / log, environment | more, *command))

        superlink = f"flower-superlink --insecure --host 127.0.0.1 --port {server}"
        start("server.log", *superlink.split())
        wait_for(server, end)
        for part, port in enumerate(ports):
            supernode = f"flower-supernode --insecure --superlink {link} --port {port}"
            config = f'part={part} parts={n_sites} site="site {part}"'
            own = home / f"site{part}"
            own.mkdir()
            arguments = *supernode.split(), "--node-config", config
            start(f"site{part}.log", *arguments, SITE_FOLDER=str(own))
        for number, (app, output) in enumerate(zip(apps, outputs, strict=True)):
            command = "flwr", "run", str(app), "lab", "--stream", "-c", f'output="{output}"'
            run = start(f"run{number}.log", *command)
            while run.poll() is None and time.monotonic() < end:
                time.sleep(0.2)
    if not outputs[0].exists():
        logs = "\n".join(log.read_text() for log in sorted(home.glob("*.log")))
        raise RuntimeError(f"No result within {seconds:g} s:\n{logs}")
    return [Subspace.load(output) if output.exists() else None for output in outputs]


@contextmanager
def running(log, environment, *command):
    """Run a command, and end it with all that it started."""
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        try:
            yield process
        finally:
            family = {process.pid}
            for how in (signal.SIGTERM, signal.SIGKILL):
                family = still_there(family)
                for pid in family:
                    with suppress(ProcessLookupError):
                        os.kill(pid, how)
                end = time.monotonic() + 5
                while process.poll() is None or still_there(family):
                    if time.monotonic() > end:
                        break
                    time.sleep(0.1)


def still_there(family):
    """Those of a set of processes that run, and all that they started, in any session."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,stat="], capture_output=True, text=True)
    rows = [line.split() for line in listed.stdout.splitlines()]
    parent = {int(pid): int(ppid) for pid, ppid, stat in rows if not stat.startswith("Z")}
    family = family & set(parent)
    while more := {pid for pid, ppid in parent.items() if ppid in family} - family:
        family |= more
    return family


def free_ports(n):
    """Ports of 127.0.0.1 that nobody listens on."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        return [free.getsockname()[1] for free in sockets]


def wait_for(port, end):
    """Return once somebody listens on a port of 127.0.0.1."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def draw(result, pooled, path):
    """Components that came over Flower, beside those of the pooled rows."""
    fig, axes = plt.subplots(2, 6, figsize=(8, 3), layout="constrained")
    for i, column in enumerate(axes.T):
        shown = pooled.components_[i]
        for ax, image in zip(column, (result.components[i], shown), strict=True):
            limit = np.abs(image).max() * np.sign(image @ shown)
            ax.imshow(image.reshape(8, 8) / limit, cmap="RdBu_r", vmin=-1, vmax=1)
            ax.set(xticks=[], yticks=[])
        column[0].set_title(f"PC {i + 1}")
    axes[0, 0].set_ylabel("sites,\nover Flower")
    axes[1, 0].set_ylabel("rows pooled")
    fig.suptitle("The same components, and no digit left its site")
    fig.savefig(path, dpi=90)


def show_private(home, result):
    """Show what the server and the auditors see of the last two runs, those of the private app."""
    for log in sorted(home.glob("run*.log"))[-2:]:
        shown = ("epsilon", "no budget")
        lines = [line for line in log.read_text().splitlines() if any(s in line for s in shown)]
        print(log.name, *lines[:1], sep=": ")
    whole = [main(["audit", str(log)]) == 0 for log in sorted(home.glob("site*/site.log"))]
    X = load_digits().data
    kept = ((X - X.mean(axis=0)) @ result.components.T).var(axis=0).sum()
    best = PCA(result.n_components).fit(X)
    share = kept / (best.explained_variance_.sum() * (len(X) - 1) / len(X))
    print(f"variance kept, of what PCA of the pooled rows keeps: {share:.3f}")
    return 0 if all(whole) and share > 0.9 else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["private"]:
        with tempfile.TemporaryDirectory() as folder:
            result, _ = federate(folder, apps=[APP / "private"] * 2)
            sys.exit(show_private(Path(folder), result))
    began = time.monotonic()
    app = APP.joinpath(*sys.argv[1:])
    n_sites, seconds = (2, 90.0) if app == APP else (3, 300.0)
    with tempfile.TemporaryDirectory() as folder:
        (result,) = federate(folder, n_sites, seconds, [app])
        print((Path(folder) / "run0.log").read_text())
    X = load_digits().data
    pooled = PCA(result.n_components).fit(X)
    distance = subspace_distance(result.components, pooled.components_)
    print(f"{result.n_samples:.0f} rows at {n_sites} sites, {result.n_features} features")
    print(f"distance to PCA of the pooled rows: {distance:.1e}")
    draw(result, pooled, app / "digits.png")
    print(f"seconds: {time.monotonic() - began:.0f}")
    sys.exit(distance > 1e-6)
