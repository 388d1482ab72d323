"""Callbacks of estimators that go by rounds, columns or iterations, and the log.

What a callback hears is counted against the fitted attributes; a callback that stops leaves what
was found until then.
"""

import logging

import numpy as np
import pytest
from golden_cases import made
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import FederatedPCA, FederatedPowerPCA, PerfectChannel, StreamingPCA

needs_callbacks = pytest.mark.skipif(
    not hasattr(FederatedPCA, "set_callbacks"), reason="callbacks need scikit-learn 1.9"
)


class Listener:
    """Writes down what it is told; asks to stop after some tasks."""

    def __init__(self, stop_after=None):
        self.events, self.stop_after = [], stop_after

    def setup(self, estimator, context):
        self.events.append("setup")

    def teardown(self, estimator, context):
        self.events.append("teardown")

    def on_fit_task_begin(self, estimator, context, **kwargs):
        self.events.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator, context, **kwargs):
        self.events.append(f"end {context.task_name}")
        return self.stop_after == sum(event.startswith("end") for event in self.events)


X = np.random.default_rng(0).standard_normal((60, 8)) * np.linspace(4, 1, 8) + 2
MODELS = """
FederatedPowerPCA(2, random_state=0)
FederatedPowerPCA(2, acceleration="krylov", random_state=0)
FederatedPowerPCA(2, n_rounds=3, random_state=0)
VerticalFederatedPCA(2, feature_groups=4, method="vfedpca", random_state=0)
VerticalFederatedPCA(2, feature_groups=4, method="merge", random_state=0)
VerticalFederatedPCA(2, feature_groups=4, method=PowerRounds(100), random_state=0)
VerticalFederatedKernelPCA(3, feature_groups=4, aggregation="exact", random_state=0)
VerticalFederatedKernelPCA(3, feature_groups=4, aggregation="paper", random_state=0)
AlternatingProjections(2)
""".strip().splitlines()


@needs_callbacks
@pytest.mark.parametrize("code", MODELS)
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_a_round_is_a_task_and_callbacks_can_stop_and_are_torn_down(code):
    listener, plain = Listener(), made(code).fit(X)
    model = made(code).set_callbacks(listener).fit(X)
    assert_array_equal(model.transform(X), plain.transform(X))
    n_tasks = getattr(model, "n_iter_", 1)
    name = "iterations" if "Alternating" in code else "rounds"
    begun = listener.events.count(f"begin {name}")
    # tasks of more than a round each where their number is large, or not known before
    assert n_tasks / 8 <= begun <= n_tasks
    assert begun == n_tasks or n_tasks > 8
    within = [f"begin {name}", f"end {name}"] * begun
    assert listener.events == ["setup", "begin fit", *within, "end fit", "teardown"]
    listener.events.clear()
    with pytest.raises(ValueError, match=r"NaN|infin|too large"):
        model.fit(X * np.where(np.arange(8) == 3, 1e200, 1.0))
    assert listener.events.count("setup") == listener.events.count("teardown")
    assert not listener.events or listener.events[-1] == "teardown"
    model.set_callbacks(Listener(stop_after=2)).fit(X)
    assert getattr(model, "n_iter_", 0) <= 2
    assert getattr(model, "stop_reason_", "callback") == "callback"
    k = model.n_components_
    assert k >= 1
    assert model.transform(X).shape == (60, k)
    if hasattr(model, "components_"):
        assert_allclose(model.components_ @ model.components_.T, np.eye(k), atol=1e-9)


def blocks_begun(pca, rows, stop_after=None, method="fit"):
    listener = Listener(stop_after)
    getattr(pca.set_callbacks(listener), method)(rows)
    begun, ended = (sum(e.startswith(word) for e in listener.events) for word in ("begin", "end"))
    assert (listener.events.count("begin fit"), begun) == (1, ended)
    return begun - 1


@needs_callbacks
@pytest.mark.parametrize(("n_blocks", "tasks"), [(1, 1), (7, 7), (100, 100), (101, 51), (999, 100)])
def test_a_block_of_a_stream_is_a_task_and_there_are_at_most_a_hundred(n_blocks, tasks):
    rows = np.random.default_rng(0).standard_normal((4 * n_blocks, 5))
    pca, alone = StreamingPCA(2, block_size=4), StreamingPCA(2).fit(rows)
    assert blocks_begun(pca, rows) == tasks
    for data in np.split(rows, n_blocks), rows.tolist(), iter([rows]):  # of unknown length
        assert 1 <= blocks_begun(pca, data) <= 100
        assert_allclose(pca.components_, alone.components_, atol=1e-9)


@needs_callbacks
@pytest.mark.parametrize(
    "code",
    ["FederatedPCA(2, ", "DistributedPCA(2, ", "OnlineDistributedPCA(2, ", "FederatedScaler("],
)
def test_a_client_is_a_task_and_those_after_a_stop_are_not_in_the_fit(code):
    model = made(f"{code}n_clients=5)")
    assert blocks_begun(model, X) == 5
    assert blocks_begun(model, X, stop_after=2) == 2
    assert list(model.clients_) == [0, 1]


@needs_callbacks
def test_a_callback_can_stop_the_fit_of_a_stream_and_partial_fit_is_one_of_its_own():
    rows, pca = np.random.default_rng(0).standard_normal((400, 5)), StreamingPCA(2, block_size=4)
    assert blocks_begun(pca, rows, stop_after=30) == 30
    assert_allclose(pca.components_, StreamingPCA(2).fit(rows[:120]).components_, atol=1e-9)
    assert pca.set_callbacks().fit(rows[:360]).n_samples_ == 360  # the next is not affected
    assert blocks_begun(pca, rows[360:], method="partial_fit") == 10
    assert_allclose(pca.components_, StreamingPCA(2).fit(rows).components_, atol=1e-9)
    pytest.importorskip("rich")
    bar = pytest.importorskip("sklearn.callback").ProgressBar()
    assert pca.set_callbacks(bar).fit(rows).n_samples_ == 400


# ------------------------------------------------------------------------------------- the log


@pytest.mark.parametrize("code", ["FederatedPCA(2)", *MODELS[:-1]])
def test_a_fit_is_a_line_and_a_round_a_line_below_without_a_cell_of_the_rows(code, caplog):
    rows = X.copy()
    rows[7, 3] = 123456.789
    with caplog.at_level(logging.DEBUG, logger="fedpca_sklearn"):
        model = made(code).fit(rows)
    (line,) = (record for record in caplog.records if record.levelname == "INFO")
    rounds = [record for record in caplog.records if record.levelname == "DEBUG"]
    n = model.communication_.rounds
    assert line.name.startswith("fedpca_sklearn")
    assert line.getMessage().startswith(f"{type(model).__name__}: ")
    assert f"{n} rounds" in line.getMessage() or f"{n} round," in line.getMessage()
    assert len(rounds) == n
    assert "floats up" in rounds[0].getMessage()
    assert "123456" not in caplog.text


def test_clients_that_are_left_out_are_named(caplog):
    labels = np.repeat(["north", "south", "west"], 20)
    caplog.set_level(logging.INFO, logger="fedpca_sklearn")
    FederatedPCA(2).fit(X, clients=labels, sample_weight=np.where(labels == "south", 0.0, 1.0))
    assert "left out" in caplog.text
    assert "'south'" in caplog.text
    assert "'north'" not in caplog.text
    caplog.clear()
    channel = PerfectChannel(dropout=[[0, 0, 1], [0, 0, 0]])
    FederatedPowerPCA(2, n_rounds=2, channel=channel, random_state=0).fit(X, clients=labels)
    left_out = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert len(left_out) == 2
    assert all("'west'" in message for message in left_out)


# ------------------------------------------------------------------------------ link to the pages


def test_an_estimator_links_to_no_page_of_others():
    pca = FederatedPCA(2)
    assert pca._get_doc_link() == ""
    assert "Documentation for" not in pca._repr_html_()
    assert "https://scikit-learn.org" not in pca._repr_html_()
