"""Ratios of a few telling shapes of five scenarios, one line a commit in benchmarks/gauges.csv.

A history of speed. From `bench solvers` some shapes and drawn ones, over the fastest good peer;
from `bench one_row` a call with one row over scikit-learn's `validate_data`, and small batches over
one; from `bench many_clients` fits of 1,000 clients over PCA of the pooled rows; from `bench
adjusting` scaled and adjusted fits over plain ones; from `bench stream_batches`, where there is
one, ways to feed a stream over products by hand. Lines of the same processor can be compared: what
takes 1.15 times the time of the line before is named. With ``--quick`` nothing is written.
"""

import csv
import platform
import subprocess
from datetime import date
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks import adjusting, many_clients, one_row, solvers
from benchmarks._tools import table
from fedpca_sklearn import OjaPCA, StreamingPCA, SubspaceTracker, make_power_law

FILE = Path(__file__).with_name("gauges.csv")
ROOT = FILE.parent.parent
# Ratio of two lines from which on a gauge is named.
SLOWER = 1.15
# As in `solvers.SHAPES`: a scatter matrix, few components, steps of float32, sketches, sparse rows.
SHAPES = (
    (20_000, 100, 10, 1.0, "f8", 1),
    (2_000, 500, 5, 1.0, "f8", 1),
    (10_000, 400, 5, 1.0, "f8", 1),
    (10_000, 600, 10, 1.0, "f8", 1),
    (3_000, 2_000, 20, 1.0, "f8", 1),
    (10_000, 400, 20, 2.0, "f4", 1),
    (20_000, 500, 10, 0.0, "f8", 0.05),
    (10_000, 5_000, 10, 0.0, "f8", 0.005),
)
DRAWN = 12
# Features and rows a call of a stream.
BATCHES = ((20, 10), (64, 100), (200, 10), (200, 100), (400, 1000))
BY_ROWS = {
    "StreamingPCA": StreamingPCA(one_row.RANK),
    "OjaPCA": OjaPCA(one_row.RANK, random_state=0),
    "SubspaceTracker": SubspaceTracker(one_row.RANK),
}


def of_solvers(quick):
    """Our time over that of the fastest peer which is as good."""
    shapes = [(1_000, 100, 5, 1.0, "f8", 1)] if quick else SHAPES
    found = {}
    for shape in shapes:
        n, d, r, alpha, dtype, density = shape
        name = f"{n}x{d},{r},{dtype}" + (f",{density:g}" if density < 1 else f",i^-{alpha:g}")
        found[name] = solvers.measured(shape, *((2, 0) if quick else (3, 0.3)))[0]["ratio"]
    some = [
        solvers.measured(shape, 2, 0.05)[0]["ratio"]
        for shape in solvers.drawn(2 if quick else DRAWN)
    ]
    return {**found, f"mean of {DRAWN} drawn": float(solvers.mean_of(np.array(some)))}


def of_one_row(quick):
    """Calls with one row over `validate_data`, and calls of 50 rows over one call."""
    n = one_row.BEFORE + (64 if quick else 1280)
    X = make_power_law(n, one_row.D, alpha=1.0, random_state=0)
    found = {}
    for name, model in BY_ROWS.items():
        seconds = one_row.measured(model, X, 1 if quick else 3)
        for call in ("partial_fit", "read", "transform"):
            found[f"{name} {call}"] = seconds[call] / seconds["validate_data"]
    found["50 rows a call"] = one_row.small_batches(600 if quick else 2_000)[0]["over one call"]
    return found


def of_many_clients(quick):
    """Fits of small clients over a PCA of all rows."""
    rows = many_clients.measured(100 if quick else 1_000, memory=False)
    seconds = {row["method"]: row["seconds"] for row in rows}
    pooled = seconds.pop("pooled PCA")
    return {method: time / pooled for method, time in seconds.items()}


def of_adjusting(quick):
    """Scaled and adjusted fits, and batches, over plain ones."""
    shapes, repeats = adjusting.SHAPES[: 1 if quick else 2], 1 if quick else 3
    rows = adjusting.fits(shapes, repeats) + adjusting.batches(adjusting.BATCHES[:1], repeats)
    return {
        f"{row.get('estimator', 'batches')} {row['n x d, k']} {row['units']} {asked}": row[asked]
        for row in rows
        for asked in ("scale", "both")
    }


def of_stream_batches(quick):
    """Ways to feed a stream over products by hand; nothing where there is no such scenario."""
    if find_spec("benchmarks.stream_batches") is None:
        return {}
    scenario, found = import_module("benchmarks.stream_batches"), {}
    for d, size in BATCHES[: 1 if quick else None]:
        X = make_power_law(1_000 if quick else 10_000, d, alpha=1.0, random_state=0)
        least = scenario.measured(X, size, *((0.01, 1) if quick else (0.25, 2)))[0]
        by_hand = least.pop("products")
        found |= {f"{d},{size} {way}": time / by_hand for way, time in least.items()}
    return found


GAUGES = {
    "solvers": of_solvers,
    "one_row": of_one_row,
    "many_clients": of_many_clients,
    "adjusting": of_adjusting,
    "stream_batches": of_stream_batches,
}


def processor():
    """Name of the processor, as the system tells it."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(iter(names), platform.processor() or platform.machine())


def commit():
    """Short hash of the commit, with a plus if the package differs from it."""
    commands = ["rev-parse", "--short=10", "HEAD"], ["status", "--porcelain", "fedpca_sklearn"]
    done = [
        subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True)
        for command in commands
    ]
    name, changed = (one.stdout.strip() for one in done)
    return (name or "unknown") + ("+" if changed else "")


def history():
    """Lines of the file, oldest first."""
    if not FILE.exists():
        return []
    with open(FILE, newline="") as stream:
        return list(csv.DictReader(stream))


def with_line(lines, line):
    """Lines with a new one, in place of that of the same commit and processor."""
    key = "commit", "processor"
    others = [old for old in lines if any(old[name] != line[name] for name in key)]
    return [*others, line]


def slower(lines, line):
    """Gauges of a line that take longer than those of the last one of its processor."""
    before = [old for old in lines if old["processor"] == line["processor"]]
    last = before[-1] if before else {}
    known = {name: value for name, value in line.items() if last.get(name) and ": " in name}
    times = {name: float(value) / float(last[name]) for name, value in known.items()}
    return {name: ratio for name, ratio in times.items() if ratio > SLOWER}


def main(quick=False):
    line = {"commit": commit(), "date": date.today().isoformat(), "processor": processor()}
    rows = []
    for scenario, measure in GAUGES.items():
        found = measure(quick)
        rows += [{"scenario": scenario, "gauge": n, "ratio": float(r)} for n, r in found.items()]
        line |= {f"{scenario}: {name}": f"{ratio:.3g}" for name, ratio in found.items()}
    table("gauges", rows)
    if quick:
        return
    lines = with_line(history(), line)
    for name, ratio in slower(lines[:-1], line).items():
        print(f"SLOWER than the line before, {ratio:.2f} times: {name}")
    with open(FILE, "w", newline="") as stream:
        names = list(dict.fromkeys(name for old in lines for name in old))
        writer = csv.DictWriter(stream, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
