"""Timing, data and output shared by the scenarios."""

import csv
import tracemalloc
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks import _data

RESULTS = Path(__file__).resolve().parent / "results"
# What the scenario that runs has left out.
LEFT_OUT = []


def load(name):
    """Path of a file of public data, or None, after `left_out`, if it cannot be had."""
    try:
        return _data.path_of(name)
    except _data.NotHadError as error:
        left_out(name, str(error))
        return None


def left_out(what, why):
    """Say that a part of the scenario cannot run; it is then said at the end, too."""
    print(f"skipped: {what}, {why}")
    if what not in LEFT_OUT:
        LEFT_OUT.append(what)


def interleaved(calls, repeats=5, clock=perf_counter):
    """Median seconds of each call, timed in turn so that drift of the machine cancels.

    With the clock `time.process_time` other processes hardly count. Components of a fit are read,
    as some estimators compute them only then.

    Returns ``{name: (median, minimum)}`` and the last results by name.
    """
    seconds = {name: [] for name in calls}
    results = {}
    for _ in range(repeats):
        for name, call in calls.items():
            start = clock()
            results[name] = call()
            getattr(results[name], "components_", None)
            seconds[name].append(clock() - start)
    return {n: (float(np.median(s)), min(s)) for n, s in seconds.items()}, results


def peak_bytes(call):
    """Peak traced memory of a call, beyond what was there before."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def claim(what, held, figures):
    """Print a claim of a paper, whether it holds, and the figures that decide."""
    print(f"{what}: {'holds' if held else 'DOES NOT HOLD'} ({figures})")


def table(name, rows):
    """Print rows (a list of dicts) and write them to results/name.csv."""
    RESULTS.mkdir(exist_ok=True)
    columns = list(rows[0])
    cells = [[_text(row[c]) for c in columns] for row in rows]
    widths = [max(len(c), *(len(r[i]) for r in cells)) for i, c in enumerate(columns)]
    for line in [columns, *cells]:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))
    with open(RESULTS / f"{name}.csv", "w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(cells)


def _text(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def picture(name, draw):
    """Draw on a figure's axes and write it to results/name.png, if matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        print("no picture: matplotlib is not installed")
        return
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(6, 3.6), layout="constrained")
    draw(ax)
    RESULTS.mkdir(exist_ok=True)
    fig.savefig(RESULTS / f"{name}.png", dpi=110)
    plt.close(fig)
