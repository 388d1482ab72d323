"""One row a call: `partial_fit` and `transform`, beside scikit-learn's `validate_data` of the row.

Rows of 64 features, ten components; 2,560 calls after 256 rows, blocks that fill included. Times
are of the processor; each is the least of three, in turn with `validate_data`. "Read" is
`partial_fit` and then `n_samples_seen_`, for which all fitted attributes are made. Then 5,000 x 600
by calls of 50 rows, which wait for each other as all directions are kept, beside one call.
"""

from time import process_time

from sklearn.utils.validation import validate_data

from benchmarks._tools import table
from fedpca_sklearn import (
    GROUSE,
    PAST,
    PETRELS,
    SPIRIT,
    FrequentDirections,
    OjaPCA,
    RobustSubspaceTracker,
    StreamingPCA,
    StreamingPowerMethod,
    SubspaceTracker,
    make_power_law,
)

RANK, D, BEFORE = 10, 64, 256
OF_A_BLOCK = {
    "StreamingPCA": StreamingPCA(RANK),
    "FrequentDirections": FrequentDirections(RANK),
    "StreamingPowerMethod": StreamingPowerMethod(RANK, random_state=0),
    "SubspaceTracker": SubspaceTracker(RANK),
    "RobustSubspaceTracker": RobustSubspaceTracker(RANK),
}
OF_A_ROW = {
    "OjaPCA": OjaPCA(RANK, random_state=0),
    "GROUSE": GROUSE(RANK, random_state=0),
    "PAST": PAST(RANK, random_state=0),
    "PETRELS": PETRELS(RANK, random_state=0),
    "SPIRIT": SPIRIT(),
}


def seconds_a_call(call, X):
    start = process_time()
    for i in range(len(X)):
        call(X[i : i + 1])
    return (process_time() - start) / len(X)


def measured(model, X, repeats):
    """Seconds of a call of each kind."""
    model.partial_fit(X[:BEFORE])
    calls = {
        "validate_data": lambda row: validate_data(model, row, reset=False),
        "partial_fit": model.partial_fit,
        "read": lambda row: model.partial_fit(row).n_samples_seen_,
        "transform": model.transform,
    }
    few = {"read": 10}  # times slower
    times = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(seconds_a_call(call, X[BEFORE :: few.get(name, 1)]))
    return {name: min(seconds) for name, seconds in times.items()}


def main(quick=False):
    X = make_power_law(BEFORE + (128 if quick else 2560), D, alpha=1.0, random_state=0)
    rows = []
    for rule, models in ("a block", OF_A_BLOCK), ("a row", OF_A_ROW):
        for name, model in models.items():
            seconds = measured(model, X, 1 if quick else 3)
            validation = seconds.pop("validate_data")
            rows.append(
                {
                    "method": name,
                    "moves with": rule,
                    "validate_data, us": 1e6 * validation,
                    **{f"{call}, us": 1e6 * time for call, time in seconds.items()},
                    "partial_fit over validate_data": seconds["partial_fit"] / validation,
                    "transform over validate_data": seconds["transform"] / validation,
                }
            )
    table("one_row", rows)
    print("\nBatches of StreamingPCA(10), 600 features:")
    table("one_row_batches", small_batches(1000 if quick else 5000))


def small_batches(n, repeats=3):
    """Seconds of the processor for n rows, by rows a call."""
    X = make_power_law(n, 600, alpha=1.0, random_state=0)
    rows = []
    for size in (50, 600, n):
        seconds = []
        for _ in range(repeats):
            model, start = StreamingPCA(RANK), process_time()
            for i in range(0, n, size):
                model.partial_fit(X[i : i + size])
            _ = model.n_samples_seen_
            seconds.append(process_time() - start)
        rows.append({"rows a call": size, "seconds": min(seconds)})
    for row in rows:
        row["over one call"] = row["seconds"] / rows[-1]["seconds"]
    return rows
