"""What each question reads: number, mean and scatter matrix of a site's rows, or the rows."""

import numpy as np
import pytest
from engines.site_helpers import SECURE, made, table

from fedpca_sklearn.engines._estimators import secure_tasks
from fedpca_sklearn.engines.flower import Task, site_work

WHY = dict(
    table("""
clipped | each is cut to the length that the mechanism's noise is made for
own | an estimator of one's own takes them
entries | each column has a mean of the entries that are there
holes | holes are filled by a model of all sites
pairs | each pair of columns has moments of the rows that have both
moments | each column has moments of the entries that are there
keys | what names them is hashed and sent
common | sites with different columns have the rows in common, whose vectors are asked about
median | each column has a mean or a median of the entries that are there
low rank | the outliers of the first batch are taken out by all of its rows together
sizes | the sizes of their residuals say which are outliers
filled | outliers and holes are filled by a model of all sites
""")
)
TRACKED = (
    "observed: median; low_rank: low rank; sizes: sizes; filled misfits moments times_scatter"
    " variances times_residuals residuals: filled"
)
# The documented list: estimator | plain, secure | questions that read rows, and why; - is none
READ_ROWS = table(f"""
FederatedPCA(3, n_refinements=2) | plain, secure | -
FederatedPCA(3, scale=True) | plain, secure | -
FederatedPCA(3, estimator=StreamingPCA(3)) | plain | summary summary_of_batch: own
FederatedPCA(3, mechanism=AnalyzeGauss(1.0, 1e-5, 20.0)) | plain | summary: clipped
FederatedPCA(3, mechanism=AnalyzeGauss(1.0, 1e-5, 20.0)) | secure | moments second_moments: clipped
FederatedPCA(3, missing=AvailablePairs()) | plain | pairs pairs_of_batch: pairs
FederatedPCA(3, missing=AvailablePairs()) | secure | bounds entries pairs: pairs
FederatedPCA(3, missing=ConditionalFill()) | plain | entries: entries; filled: holes
FederatedPCA(3, missing=ConditionalFill()) | secure | bounds entries: entries; filled: holes
FederatedScaler() | plain | moments moments_of_batch: moments
FederatedScaler() | secure | -
FederatedScaler(mechanism=ScalerNoise(1.0, 1e-5)) | plain, secure |\
 counts_1 sums_1 counts_2 sums_2 counts_3 sums_3: clipped
DistributedPCA(3) | plain, secure | -
TruncatedDistributedPCA(3) | plain | -
OnlineDistributedPCA(3) | plain, secure | -
FederatedHeteroscedasticPCA(3) | plain, secure | -
FederatedPowerPCA(3) | plain, secure | -
FederatedPowerPCA(3, local_steps=2) | plain | -
FederatedPowerPCA(3, n_rounds=2, mechanism=FedPowerNoise(1.0, 1e-5, 20.0)) | plain, secure |\
 moments times_scatter variances: clipped
FederatedSubspaceTracker(3) | plain, secure | {TRACKED}
FederatedSubspaceTracker(3, robust=False) | plain | {TRACKED}
VerticalFederatedPCA(3, method="power") | plain | keys: keys; times_columns scores parts: common
VerticalFederatedPCA(3, method="power") | secure |\
 keys: keys; columns_bound times_columns scores parts: common
VerticalFederatedPCA(3, method="merge") | plain | keys: keys; left_vectors scores parts: common
VerticalFederatedPCA(3, method="vfedpca") | plain | keys: keys; period scores parts: common
VerticalFederatedKernelPCA(3) | plain | keys: keys; kernel_part: common
VerticalFederatedKernelPCA(3) | secure | keys: keys; columns_bound kernel_part: common
VerticalFederatedKernelPCA(3, aggregation=VFedPCA(), projection="features") | plain |\
 keys: keys; period energies scores parts: common
""")
CASES = [(code, mode, why) for code, modes, why in READ_ROWS for mode in modes.split(", ")]


def test_questions_that_read_rows_say_why_and_no_others_do():
    for code, mode, expected in CASES:
        estimator = made(code)
        tasks = site_work(estimator) if mode == "plain" else secure_tasks(estimator, SECURE)
        groups = [part.split(": ") for part in expected.split("; ")] if expected != "-" else []
        why = {kind: f"rows: {WHY[word]}" for kinds, word in groups for kind in kinds.split()}
        read = {kind: task.reads for kind, task in tasks.items()}
        assert {kind: t for kind, t in read.items() if t.startswith("rows")} == why, (code, mode)
        assert {*read.values()} - {*why.values()} <= {"moments", "summary"}, (code, mode)


@pytest.mark.parametrize("mode", ["plain", "secure"])
def test_every_estimator_is_in_the_list(mode):
    known = {kind.__name__ for kind in site_work.registry if kind.__module__.startswith("fedpca")}
    if mode == "secure":  # summaries that were cut do not add up, and the error says so
        known.remove("TruncatedDistributedPCA")
    assert known <= {type(made(code)).__name__ for code, of, _ in CASES if of == mode}


def test_a_task_says_what_it_reads():
    def work(site, X):
        return {"n": np.ones(1)}

    with pytest.raises(TypeError, match="reads"):
        Task(work)
    for reads in ("", "row", "rows", "rows: ", None):
        with pytest.raises(ValueError, match="reads must be 'moments', 'summary' or"):
            Task(work, reads=reads)
    with pytest.raises(ValueError, match="'summary' is for questions without an argument"):
        Task(lambda site, X, V: work(site, X), reads="summary")
    assert Task(work, reads="rows: their order counts").reads == "rows: their order counts"
