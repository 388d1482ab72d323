"""Run scenarios by name, or all: ``python -m benchmarks [--quick] [NAME ... | all]``.

``python -m benchmarks arrays --device cuda`` is for a machine with a GPU, and
``python -m benchmarks stream_batches --seed 1`` draws other rows.
"""

import os
import sys
from importlib import import_module
from pathlib import Path
from time import perf_counter, process_time

# One thread for everybody; set before numpy is imported.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

SCENARIOS = sorted(p.stem for p in Path(__file__).parent.glob("[a-z]*.py"))


def main(arguments):
    """Run what the arguments name; 1 if a part had to be left out, 2 for an unknown name."""
    quick, options = "--quick" in arguments, {}
    for name, kind in (("device", str), ("seed", int)):
        if f"--{name}" in arguments:
            at = arguments.index(f"--{name}")
            options[name] = kind("".join(arguments[at + 1 : at + 2]))
            arguments = arguments[:at] + arguments[at + 2 :]
    names = [a for a in arguments if not a.startswith("-")]
    unknown = [n for n in names if n not in SCENARIOS and n != "all"]
    if unknown:
        print("There is no scenario", *unknown)
    if unknown or not (names or quick):
        width = max(map(len, SCENARIOS))
        print(__doc__, "\nScenarios:")
        for name in SCENARIOS:
            print(f"  {name:{width}}  {title(import_module(f'benchmarks.{name}'))}")
        return 2 if unknown else 0
    tools = import_module("benchmarks._tools")  # imports numpy
    print(f"BLAS threads: {os.environ['OPENBLAS_NUM_THREADS']}")
    rows, not_whole = [], []
    for name in SCENARIOS if names in ([], ["all"]) else names:
        module = import_module(f"benchmarks.{name}")
        print(f"\n== {name}: {title(module)}", flush=True)
        start, cpu_start = perf_counter(), process_time()
        tools.LEFT_OUT.clear()
        module.main(quick, **options)
        if tools.LEFT_OUT:
            not_whole.append(f"{name} ({', '.join(tools.LEFT_OUT)})")
        seconds, cpu = perf_counter() - start, process_time() - cpu_start
        rows.append({"scenario": name, "seconds": seconds, "of the processor": cpu})
    print("\n== all")
    sums = {column: sum(row[column] for row in rows) for column in list(rows[0])[1:]}
    tools.table("seconds", [*rows, {"scenario": "sum", **sums}])
    if not_whole:
        print("NOT RUN IN FULL, for want of what is in brackets:", ", ".join(not_whole))
    return 1 if not_whole else 0


def title(module):
    """First line of a scenario's docstring."""
    return module.__doc__.splitlines()[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
