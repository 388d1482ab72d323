"""What each question reads: number, mean and scatter matrix of a site's rows, or the rows."""

import os

import numpy as np
import pytest

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from fedpca_sklearn import (
    AnalyzeGauss,
    AvailablePairs,
    ConditionalFill,
    DistributedPCA,
    FederatedHeteroscedasticPCA,
    FederatedPCA,
    FederatedPowerPCA,
    FederatedScaler,
    FederatedSubspaceTracker,
    FedPowerNoise,
    OnlineDistributedPCA,
    PowerRounds,
    StreamingPCA,
    TruncatedDistributedPCA,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
    VFedPCA,
)
from fedpca_sklearn.engines import _secure_fits
from fedpca_sklearn.engines._secure_fits import secure_tasks
from fedpca_sklearn.engines.flower import SecureAggregation, Task, site_work

CLIPPED = "each is cut to the length that the mechanism's noise is made for"
ENTRIES = "each column has a mean of the entries that are there"
HOLES = "holes are filled by a model of all sites"
PAIRS = "each pair of columns has moments of the rows that have both"
MOMENTS = "each column has moments of the entries that are there"
KEYS = "what names them is hashed and sent"
IN_COMMON = "sites with different columns have the rows in common, whose vectors are asked about"
FILLED = "outliers and holes are filled by a model of all sites"
TRACKED = {
    "observed": "each column has a mean or a median of the entries that are there",
    "low_rank": "the outliers of the first batch are taken out by all of its rows together",
    "sizes": "the sizes of their residuals say which are outliers",
    **dict.fromkeys(
        [
            *("filled", "misfits", "moments", "times_scatter"),
            *("variances", "times_residuals", "residuals"),
        ],
        FILLED,
    ),
}
GAUSS, NOISE = AnalyzeGauss(1.0, 1e-5, 20.0), FedPowerNoise(1.0, 1e-5, 20.0)

# The documented list: questions that read rows, by the estimator, and why.
READ_ROWS = [
    (FederatedPCA(3, n_refinements=2), {}),
    (FederatedPCA(3, scale=True), {}),
    (
        FederatedPCA(3, estimator=StreamingPCA(3)),
        dict.fromkeys(("summary", "summary_of_batch"), "an estimator of one's own takes them"),
    ),
    (FederatedPCA(3, mechanism=GAUSS), {"summary": CLIPPED}),
    (FederatedPCA(3, missing=AvailablePairs()), {"pairs": PAIRS, "pairs_of_batch": PAIRS}),
    (FederatedPCA(3, missing=ConditionalFill()), {"entries": ENTRIES, "filled": HOLES}),
    (FederatedScaler(), {"moments": MOMENTS, "moments_of_batch": MOMENTS}),
    (DistributedPCA(3), {}),
    (TruncatedDistributedPCA(3), {}),
    (OnlineDistributedPCA(3), {}),
    (FederatedHeteroscedasticPCA(3), {}),
    (FederatedPowerPCA(3), {}),
    (FederatedPowerPCA(3, local_steps=2), {}),
    (
        FederatedPowerPCA(3, n_rounds=2, mechanism=NOISE),
        dict.fromkeys(("moments", "times_scatter", "variances"), CLIPPED),
    ),
    (FederatedSubspaceTracker(3), TRACKED),
    (FederatedSubspaceTracker(3, robust=False), TRACKED),
    *(
        (
            VerticalFederatedPCA(3, method=method),
            {"keys": KEYS, kind: IN_COMMON, "parts": IN_COMMON},
        )
        for method, kind in (
            (PowerRounds(), "times_columns"),
            ("merge", "left_vectors"),
            (VFedPCA(), "period"),
        )
    ),
    (VerticalFederatedKernelPCA(3), {"keys": KEYS, "kernel_part": IN_COMMON}),
    (
        VerticalFederatedKernelPCA(3, aggregation=VFedPCA(), projection="features"),
        {"keys": KEYS, **dict.fromkeys(("period", "energies", "parts"), IN_COMMON)},
    ),
]
SECURE = [
    (
        FederatedPCA(3, missing=AvailablePairs()),
        dict.fromkeys(("bounds", "entries", "pairs"), PAIRS),
    ),
    (
        FederatedPCA(3, missing=ConditionalFill()),
        {"bounds": ENTRIES, "entries": ENTRIES, "filled": HOLES},
    ),
    (OnlineDistributedPCA(3), {}),
    (FederatedHeteroscedasticPCA(3), {}),
    (FederatedPCA(3, n_refinements=2), {}),
    (FederatedPCA(3, scale=True), {}),
    (DistributedPCA(3), {}),
    (FederatedPowerPCA(3), {}),
    (
        FederatedPCA(3, mechanism=GAUSS),
        dict.fromkeys(("moments", "second_moments"), CLIPPED),
    ),
    (
        FederatedPowerPCA(3, n_rounds=2, mechanism=NOISE),
        dict.fromkeys(("moments", "times_scatter", "variances"), CLIPPED),
    ),
    (FederatedSubspaceTracker(3), TRACKED),
    (
        VerticalFederatedPCA(3, method="power"),
        {
            "keys": KEYS,
            **dict.fromkeys(("columns_bound", "times_columns", "scatter", "parts"), IN_COMMON),
        },
    ),
    (
        VerticalFederatedKernelPCA(3),
        {"keys": KEYS, **dict.fromkeys(("columns_bound", "kernel_part"), IN_COMMON)},
    ),
    (FederatedScaler(), {}),
]


def reading_rows(tasks):
    """Kinds that read rows, and why; the others say what they read as well."""
    assert all(
        task.reads in ("moments", "summary", "nothing") or task.reads.startswith("rows: ")
        for task in tasks.values()
    )
    return {
        kind: task.reads.removeprefix("rows: ")
        for kind, task in tasks.items()
        if task.reads.startswith("rows: ")
    }


@pytest.mark.parametrize(("estimator", "expected"), READ_ROWS, ids=repr)
def test_questions_that_read_rows(estimator, expected):
    assert reading_rows(site_work(estimator)) == expected


@pytest.mark.parametrize(("estimator", "expected"), SECURE, ids=repr)
def test_numbers_of_secure_sums_that_read_rows(estimator, expected):
    tasks = secure_tasks(estimator, SecureAggregation(threshold=2))
    assert reading_rows(tasks) == expected
    assert {kind for kind, task in tasks.items() if task.reads == "nothing"} == {
        *("secure_keys", "secure_shares", "secure_unmask")
    }


def test_every_estimator_is_in_the_list():
    registered = [
        (site_work, READ_ROWS),
        (_secure_fits.secure_work, SECURE),
    ]
    for function, cases in registered:
        known = {
            kind
            for kind in function.registry
            if kind is not object and kind.__module__.startswith("fedpca_sklearn.")
        }
        # summaries that were cut do not add up, and the error says so
        known -= {TruncatedDistributedPCA} if function is _secure_fits.secure_work else set()
        assert known <= {type(estimator) for estimator, _ in cases}


def test_a_task_says_what_it_reads():
    def work(site, X):
        return {"n": np.ones(1)}

    with pytest.raises(TypeError, match="reads"):
        Task(work)
    for reads in ("", "row", "rows", "rows: ", None):
        with pytest.raises(ValueError, match="reads must be 'moments', 'summary', 'nothing'"):
            Task(work, reads=reads)
    with pytest.raises(ValueError, match="'summary' is for questions without an argument"):
        Task(lambda site, X, V: work(site, X), reads="summary")
    assert Task(work, reads="rows: their order counts").reads == "rows: their order counts"
