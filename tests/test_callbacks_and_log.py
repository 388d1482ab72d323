"""Callbacks of estimators that go by rounds, columns or iterations, and the log.

What a callback hears is counted against the fitted attributes; a callback that stops leaves what
was found until then.
"""

import logging
import subprocess
import sys

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from fedpca_sklearn import (
    AlternatingProjections,
    FederatedPCA,
    FederatedPowerPCA,
    PerfectChannel,
    PowerRounds,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
)
from fedpca_sklearn._base import fitted

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


def rows(n=60, d=8):
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, d)) @ np.diag(np.linspace(4, 1, d)) + 2


def columns(method):
    return VerticalFederatedPCA(2, feature_groups=4, method=method, random_state=0)


def kernel(aggregation):
    options = {"feature_groups": 4, "aggregation": aggregation, "random_state": 0}
    return VerticalFederatedKernelPCA(3, **options)


MODELS = {
    "power": (FederatedPowerPCA(2, random_state=0), "n_iter_"),
    "krylov": (FederatedPowerPCA(2, acceleration="krylov", random_state=0), "n_iter_"),
    "few rounds": (FederatedPowerPCA(2, n_rounds=3, random_state=0), "n_iter_"),
    "columns, vfedpca": (columns("vfedpca"), "n_iter_"),
    "columns, merge": (columns("merge"), "n_iter_"),
    "columns, power": (columns(PowerRounds(100)), "n_iter_"),
    "kernel, exact": (kernel("exact"), 1),
    "kernel, paper": (kernel("paper"), "n_iter_"),
    "projections": (AlternatingProjections(2), "n_iter_"),
}
every_model = pytest.mark.parametrize(("model", "n_tasks"), MODELS.values(), ids=MODELS)


@needs_callbacks
@every_model
def test_a_round_is_a_task(model, n_tasks):
    X, listener = rows(), Listener()
    model = clone(model)
    plain = clone(model).fit(X)
    model.set_callbacks(listener).fit(X)
    assert_array_equal(model.transform(X), plain.transform(X))
    n_tasks = getattr(model, n_tasks) if isinstance(n_tasks, str) else n_tasks
    name = "iterations" if isinstance(model, AlternatingProjections) else "rounds"
    begun = listener.events.count(f"begin {name}")
    # tasks of more than a round each where their number is large, or not known before
    assert n_tasks / 8 <= begun <= n_tasks
    assert begun == n_tasks or n_tasks > 8
    assert listener.events == [
        "setup",
        "begin fit",
        *[f"begin {name}", f"end {name}"] * begun,
        "end fit",
        "teardown",
    ]


@needs_callbacks
@every_model
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
def test_callbacks_are_torn_down_after_errors(model, n_tasks):
    listener = Listener()
    model = clone(model).set_callbacks(listener)
    with pytest.raises(ValueError, match=r"NaN|infin|too large"):
        model.fit(rows() * np.where(np.arange(8) == 3, 1e200, 1.0))
    assert listener.events.count("setup") == listener.events.count("teardown")
    assert not listener.events or listener.events[-1] == "teardown"
    model.fit(rows())
    assert listener.events[-1] == "teardown"


@needs_callbacks
@every_model
def test_a_callback_can_stop_the_fit(model, n_tasks):
    X = rows()
    model = clone(model).set_callbacks(Listener(stop_after=2)).fit(X)
    if hasattr(model, "n_iter_"):
        assert model.n_iter_ <= 2
    if isinstance(model, FederatedPowerPCA):
        assert model.stop_reason_ == "callback"
    k = model.n_components_
    assert k >= 1
    assert model.transform(X).shape == (60, k)
    if hasattr(model, "components_"):
        assert_allclose(model.components_ @ model.components_.T, np.eye(k), atol=1e-9)


# ------------------------------------------------------------------------------------- the log


def test_nothing_is_printed_by_default():
    code = (
        "import logging, numpy as np, fedpca_sklearn as f;"
        "logger = logging.getLogger('fedpca_sklearn');"
        "assert logger.level == logging.NOTSET;"
        "assert not logger.handlers;"  # else what fails at a site would be shown nowhere
        "f.FederatedPowerPCA(1, random_state=0, channel=f.PerfectChannel(dropout=0.3))"
        ".fit(np.random.default_rng(0).standard_normal((30, 3)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("", "")


@pytest.mark.parametrize(
    "model",
    [FederatedPCA(2), *(model for model, _ in MODELS.values())][:-1],
    ids=lambda m: type(m).__name__,
)
def test_a_fit_is_a_line_and_a_round_a_line_below(model, caplog):
    model = clone(model)
    with caplog.at_level(logging.INFO, logger="fedpca_sklearn"):
        model.fit(rows())
    (line,) = caplog.records
    log = model.communication_
    assert line.levelname == "INFO"
    assert line.name.startswith("fedpca_sklearn")
    message = line.getMessage()
    assert message.startswith(f"{type(model).__name__}: ")
    assert f"{log.rounds} rounds" in message or f"{log.rounds} round," in message
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="fedpca_sklearn"):
        model.fit(rows())
    rounds = [record for record in caplog.records if record.levelname == "DEBUG"]
    assert len(rounds) == log.rounds
    assert "floats up" in rounds[0].getMessage()


def test_clients_that_are_left_out_are_named(caplog):
    X = rows()
    labels = np.repeat(["north", "south", "west"], 20)
    weight = np.where(labels == "south", 0.0, 1.0)
    with caplog.at_level(logging.INFO, logger="fedpca_sklearn"):
        FederatedPCA(2).fit(X, clients=labels, sample_weight=weight)
    assert "left out" in caplog.text
    assert "'south'" in caplog.text
    assert "'north'" not in caplog.text
    caplog.clear()
    channel = PerfectChannel(dropout=[[0, 0, 1], [0, 0, 0]])
    with caplog.at_level(logging.INFO, logger="fedpca_sklearn"):
        FederatedPowerPCA(2, n_rounds=2, channel=channel, random_state=0).fit(X, clients=labels)
    left_out = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert len(left_out) == 2
    assert all("'west'" in message for message in left_out)


def test_no_cell_of_the_rows_is_in_the_log(caplog):
    X = rows()
    X[7, 3] = 123456.789
    with caplog.at_level(logging.DEBUG, logger="fedpca_sklearn"):
        for model in FederatedPCA(2), FederatedPowerPCA(2, random_state=0), columns("merge"):
            model.fit(X)
    assert "123456" not in caplog.text


# ------------------------------------------------------------------------------ link to the pages


def test_no_link_without_an_address(monkeypatch):
    pca = FederatedPCA(2)
    assert fitted.DOCUMENTATION is None
    assert pca._get_doc_link() == ""
    assert "Documentation for" not in pca._repr_html_()
    assert "https://scikit-learn.org" not in pca._repr_html_()
    address = "https://docs.example.org/fedpca"
    monkeypatch.setattr(fitted, "DOCUMENTATION", address)
    for model in (
        pca,
        columns("vfedpca"),
        kernel("exact"),
        AlternatingProjections(),
    ):
        name = type(model).__name__
        want = f"{address}/generated/fedpca_sklearn.{name}.html"
        assert model._get_doc_link() == want
        assert want in model._repr_html_()


def test_classes_of_others_are_not_on_our_pages(monkeypatch):
    monkeypatch.setattr(fitted, "DOCUMENTATION", "https://docs.example.org")

    class Mine(FederatedPCA):
        pass

    assert Mine()._get_doc_link() == ""
