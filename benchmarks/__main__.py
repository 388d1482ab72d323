"""Run scenarios by name, or all: ``python -m benchmarks [--quick] [NAME ...]``."""

import os
import sys
from importlib import import_module
from pathlib import Path

# One thread for everybody; set before numpy is imported.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

SCENARIOS = sorted(p.stem for p in Path(__file__).parent.glob("[a-z]*.py"))


def main(arguments):
    """Run what the arguments name."""
    quick = "--quick" in arguments
    names = [a for a in arguments if not a.startswith("-")]
    unknown = [n for n in names if n not in SCENARIOS and n != "all"]
    if unknown or not (names or quick):
        print(__doc__, "\nScenarios:")
        for name in SCENARIOS:
            print(f"  {name:16}{import_module(f'benchmarks.{name}').__doc__.splitlines()[0]}")
        return 2 if unknown else 0
    print(f"BLAS threads: {os.environ['OPENBLAS_NUM_THREADS']}")
    for name in SCENARIOS if names in ([], ["all"]) else names:
        module = import_module(f"benchmarks.{name}")
        print(f"\n== {name}: {module.__doc__.splitlines()[0]}", flush=True)
        module.main(quick)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
