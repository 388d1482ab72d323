"""Estimators on real sites over Flower: the apps in one process, and a deployment on loopback."""

import os
import re
import runpy
import shutil
import sys
import warnings
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA, TruncatedSVD

from fedpca_sklearn import (
    AnalyzeGauss,
    DistributedPCA,
    FederatedPCA,
    FederatedPowerPCA,
    FedPowerNoise,
    GaussianChannel,
    ProjectionAverage,
    StreamingPCA,
    SubspaceMerge,
    TruncatedDistributedPCA,
    subspace_distance,
)

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from flwr.app import (
    Context,
    Error,
    Message,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedpca_sklearn.engines.flower import (
    SitePolicy,
    client_app,
    fit_sites,
    server_app,
    site_work,
)

X, Y = load_digits(return_X_y=True)
PARTS = {"east": X[:600], "north": X[600:700], "west": X[700:]}
LABELS = np.repeat(list(PARTS), [len(rows) for rows in PARTS.values()])
BIN = Path(sys.executable).parent
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "flower" / "run_loopback.py"


class InProcessGrid(Grid):
    """Runs client apps, by node, where a network would be; `spoil` is what happens to a reply."""

    def __init__(self, apps, sites, spoil=None):
        self.apps, self.spoil = dict(enumerate(apps, start=1)), spoil
        self.contexts = {
            node: Context(1, node, {"site": site}, RecordDict(), {})
            for node, site in enumerate(sites, start=1)
        }
        self.asked = []
        self.ids = count(1)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    run = property(lambda self: None)

    def set_run(self, run):
        raise NotImplementedError

    create_message = push_messages = pull_messages = set_run

    def get_node_ids(self):
        return list(self.contexts)

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = str(next(self.ids))
            node = message.metadata.dst_node_id
            context = self.contexts[node]
            self.asked.append((context.node_config["site"], message.metadata.message_type))
            try:
                reply = self.apps[node](message, context)
            except Exception as error:  # as Flower's client process does
                reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
            if self.spoil is not None:
                reply = self.spoil(context.node_config["site"], message, reply)
            replies += [] if reply is None else [reply]
        return replies[::-1]


def grid_of(estimator, parts=PARTS, spoil=None, sites=None, **of_site):
    def load_rows(rows):
        return lambda context: rows

    apps = [client_app(load_rows(rows), estimator, **of_site) for rows in parts.values()]
    return InProcessGrid(apps, list(parts) if sites is None else sites, spoil)


def run(estimator, parts=PARTS, spoil=None, sites=None, **options):
    """What a ServerApp hands on."""
    found = []
    app = server_app(estimator, lambda pca, context: found.append(pca), wait=0, **options)
    app(grid_of(estimator, parts, spoil, sites), Context(1, 0, {}, RecordDict(), {}))
    return found[0]


def assert_same(a, b, tol=1e-10):
    scale = b.singular_values_[0]
    np.testing.assert_allclose(a.singular_values_, b.singular_values_, rtol=0, atol=tol * scale)
    np.testing.assert_allclose(a.components_, b.components_, rtol=0, atol=tol)
    np.testing.assert_allclose(a.mean_, b.mean_, rtol=0, atol=tol * np.abs(b.mean_).max())
    np.testing.assert_allclose(
        a.explained_variance_ratio_, b.explained_variance_ratio_, rtol=0, atol=tol
    )
    np.testing.assert_allclose(a.noise_variance_, b.noise_variance_, rtol=1e-8)
    assert a.n_samples_ == b.n_samples_


ESTIMATORS = [
    FederatedPCA(5),
    FederatedPCA(0.8),
    FederatedPCA("parallel"),
    FederatedPCA(5, merge=SubspaceMerge(fan_in=2)),
    FederatedPCA(5, merge=ProjectionAverage()),
    FederatedPCA(5, estimator=StreamingPCA(5, oversampling=4)),
    DistributedPCA(5),
    DistributedPCA(),
    DistributedPCA("mle"),
    TruncatedDistributedPCA(5),
    TruncatedDistributedPCA(0.7, local_threshold=0.8),
    FederatedPowerPCA(5, acceleration="krylov", random_state=0),
    FederatedPowerPCA(5, n_rounds=7, random_state=0),
    FederatedPowerPCA(5, local_steps=3, n_rounds=5, random_state=0),
    FederatedPCA(5, merge=SubspaceMerge(center="site")),
]
BY_NAME = {"ids": lambda e: type(e).__name__}
KINDS = [ESTIMATORS[0], ESTIMATORS[6], ESTIMATORS[11]]


# -------------------------------------------------------------------- equality


@pytest.mark.parametrize("estimator", ESTIMATORS, **BY_NAME)
def test_sites_give_what_clients_in_one_process_give(estimator):
    before = repr(estimator.get_params())
    fitted = run(estimator)
    expected = clone(estimator).fit(X, clients=LABELS)
    assert type(fitted) is type(estimator)
    assert_same(fitted, expected)
    assert fitted.clients_ == expected.clients_ == ["east", "north", "west"]
    assert fitted.missing_sites_ == {}
    assert fitted.n_features_in_ == 64
    assert repr(fitted.get_params()) == repr(estimator.get_params()) == before
    np.testing.assert_allclose(fitted.transform(X), expected.transform(X), atol=1e-7)
    for name in ("n_iter_", "stop_reason_"):
        assert getattr(fitted, name, None) == getattr(expected, name, None)


@pytest.mark.parametrize("estimator", KINDS, **BY_NAME)
def test_sites_give_pca_of_the_pooled_rows(estimator):
    fitted, pooled = run(estimator), PCA(5).fit(X)
    assert subspace_distance(fitted.components_, pooled.components_) < 1e-6
    np.testing.assert_allclose(fitted.explained_variance_, pooled.explained_variance_, rtol=1e-6)
    np.testing.assert_allclose(fitted.mean_, pooled.mean_, atol=1e-10)


def test_about_the_origin():
    estimator = FederatedPowerPCA(4, center=False, acceleration="krylov", random_state=1)
    fitted = run(estimator)
    V = np.linalg.svd(X, full_matrices=False)[2][:4]
    assert subspace_distance(fitted.components_, V) < 1e-6
    assert not fitted.mean_.any()
    svd = run(FederatedPCA(4, estimator=TruncatedSVD(10, algorithm="arpack"), random_state=0))
    # ten directions of each site stand for all
    assert subspace_distance(svd.components_, V) < 0.05


def test_a_site_with_few_rows_sparse_rows_and_float32():
    parts = {"a": X[:3].astype(np.float32), "b": sp.csr_array(X[3:900].astype(np.float32))}
    rows, labels = X[:900].astype(np.float32), np.repeat(["a", "b"], [3, 897])
    for estimator in (DistributedPCA(5), FederatedPowerPCA(5, n_rounds=9, random_state=0)):
        fitted = fit_sites(grid_of(estimator, parts, min_rows=3), estimator, wait=0)
        assert fitted.components_.dtype == np.float32
        assert_same(fitted, clone(estimator).fit(rows, clients=labels), tol=2e-6)
    grid = grid_of(FederatedPCA(5), parts, min_rows=3)
    assert fit_sites(grid, FederatedPCA(5), wait=0).components_.dtype == np.float32


def test_names_of_columns_travel():
    pd = pytest.importorskip("pandas")
    columns = [f"pixel{i}" for i in range(64)]
    parts = {site: pd.DataFrame(rows, columns=columns) for site, rows in PARTS.items()}
    for estimator in KINDS:
        assert run(estimator, parts).feature_names_in_.tolist() == columns
    parts["west"] = parts["west"][columns[::-1]]
    for estimator in KINDS:
        with pytest.warns(UserWarning, match=r"site 'west' .*in another order: 'pixel63' at pos"):
            fitted = run(estimator, parts)
        assert fitted.feature_names_in_.tolist() == columns
        assert fitted.clients_ == ["east", "north"]


def test_the_log_counts_what_was_sent():
    rounds = run(ESTIMATORS[10]).communication_
    assert rounds == clone(ESTIMATORS[10]).fit(X, clients=LABELS).communication_
    factors = run(DistributedPCA(5)).communication_
    # three triangles of 64 columns, three means in two floats, three counts
    assert (factors.rounds, factors.floats_up) == (1, 3 * (64 * 65 // 2 + 64 + 1))
    assert factors.bytes_up == 3 * 8 * (64 * 65 // 2 + 2 * 64 + 1)


def test_sub_estimators_with_a_random_state_differ_by_site_and_repeat():
    class Seeds(StreamingPCA):
        def __init__(self, n_components=None, random_state=None):
            super().__init__(n_components)
            self.random_state = random_state

        def fit(self, X, y=None):
            seeds.append(self.random_state)
            return super().fit(X)

    seeds = []
    for _ in range(2):
        run(FederatedPCA(5, estimator=Seeds(5), random_state=3))
    assert seeds[:3] == seeds[3:]
    assert len(set(seeds)) == 3


@pytest.mark.parametrize(
    "estimator",
    [
        FederatedPCA(3, mechanism=AnalyzeGauss(1.0, 1e-5, 1.0)),
        FederatedPowerPCA(3, mechanism=FedPowerNoise(1.0, 1e-5, 1.0)),
    ],
    ids=lambda e: type(e).__name__,
)
def test_a_mechanism_without_a_ledger_is_refused_at_a_site(estimator):
    with pytest.raises(ValueError, match="mechanism needs a ledger at a site"):
        client_app(lambda context: None, estimator)


def test_parameters_that_do_not_fit_together_are_refused_at_a_site(tmp_path):
    noise = FedPowerNoise(1.0, 1e-5, 1.0)
    policy = SitePolicy(ledger=tmp_path / "ledger")
    with pytest.raises(ValueError, match="mechanism needs local_steps=1"):
        client_app(
            lambda context: None,
            FederatedPowerPCA(3, local_steps=2, mechanism=noise),
            policy=policy,
        )
    with pytest.raises(ValueError, match="n_components"):
        client_app(lambda context: None, DistributedPCA(-1))


# -------------------------------------------------------------------- faults


def without(lost, kind=None, how="error"):
    """Spoil the replies of a site, from the first of a kind on."""
    gone = []

    def spoil(site, message, reply):
        if site == lost and (kind is None or message.metadata.message_type == f"query.{kind}"):
            gone.append(True)
        if site != lost or not gone:
            return reply
        return Message(Error(8, "crashed"), reply_to=message) if how == "error" else None

    return spoil


@pytest.mark.parametrize("how", ["error", "timeout"])
@pytest.mark.parametrize("estimator", KINDS, **BY_NAME)
def test_a_site_that_fails_is_left_out_and_named(estimator, how):
    with pytest.warns(UserWarning, match="Fitted without site 'node 2'"):
        fitted = run(estimator, spoil=without("north", how=how), timeout=7)
    reason = "Flower's error 8: crashed" if how == "error" else "no answer within 7 s"
    assert fitted.missing_sites_ == {"node 2": reason}
    assert fitted.clients_ == ["east", "west"]
    there = LABELS != "north"
    assert_same(fitted, clone(estimator).fit(X[there], clients=LABELS[there]))


@pytest.mark.parametrize("kind", ["times_scatter", "variances"])
def test_a_site_lost_between_rounds_leaves_no_trace(kind):
    estimator = KINDS[2]
    grid = grid_of(estimator, spoil=without("west", kind, "timeout"))
    with pytest.warns(UserWarning, match=r"Fitted without site 'west' \(no answer within 600 s\)"):
        fitted = fit_sites(grid, estimator, wait=0)
    assert list(fitted.missing_sites_) == ["west"]
    there = LABELS != "west"
    assert_same(fitted, clone(estimator).fit(X[there], clients=LABELS[there]))
    gone = grid.asked.index(("west", f"query.{kind}"))
    assert "west" not in {site for site, _ in grid.asked[gone + 1 :]}


@pytest.mark.parametrize("estimator", KINDS, **BY_NAME)
def test_rows_with_nan_at_a_site(estimator):
    parts = {**PARTS, "north": np.where(np.arange(64) == 3, np.nan, PARTS["north"])}
    reason = "calls itself 'north': ValueError, [0-9a-f]{8} in the log of the site"
    with pytest.warns(UserWarning, match=f"site 'node 2' .{reason}"):
        fitted = run(estimator, parts)
    assert fitted.clients_ == ["east", "west"]
    assert re.fullmatch(reason, fitted.missing_sites_["node 2"])
    match = f"(?s)2, but min_sites=3.*Left out: site 'node 2' .{reason}"
    with pytest.raises(RuntimeError, match=match):
        run(estimator, parts, min_sites=3)


def test_rows_that_cannot_be_loaded_and_no_rows(caplog):
    def broken(context):
        raise OSError("no such file")

    apps = [
        client_app(broken, DistributedPCA(2)),
        *(client_app(lambda context, rows=rows: rows, DistributedPCA(2)) for rows in (X, X[:0])),
    ]
    with pytest.warns(UserWarning, match="Fitted without"):
        fitted = fit_sites(InProcessGrid(apps, "abc"), DistributedPCA(2), wait=0, min_sites=1)
    assert list(fitted.missing_sites_) == ["node 1", "node 3"]
    for reason, kind, text in zip(
        fitted.missing_sites_.values(),
        ("OSError", "ValueError"),
        ("no such file", "0 sample"),
        strict=True,
    ):
        (reference,) = re.findall(f"{kind}, ([0-9a-f]+) in the log of the site", reason)
        (record,) = [
            r for r in caplog.records if r.name == "fedpca_sklearn" and reference in r.msg % r.args
        ]
        assert text in str(record.exc_info[1])
        assert text not in reason
    assert_same(fitted, DistributedPCA(2).fit(X))


@pytest.mark.parametrize("estimator", KINDS, **BY_NAME)
def test_too_few_sites(estimator):
    with pytest.raises(RuntimeError, match=r"Too few sites: 3, but min_sites=4\."):
        run(estimator, min_sites=4)
    with pytest.raises(
        RuntimeError, match=r"Too few sites: 2, but min_sites=3. Left out: site 'no"
    ):
        run(estimator, spoil=without("north"), min_sites=3)
    with pytest.raises(RuntimeError, match="Too few sites: 0"):
        run(estimator, {})


def test_more_components_than_features():
    for estimator in KINDS:
        with pytest.raises(ValueError, match="n_components=65"):
            run(clone(estimator).set_params(n_components=65))


def test_a_site_that_runs_another_estimator():
    grid = grid_of(FederatedPCA(5))
    with pytest.raises(RuntimeError, match="the estimator must be FederatedPCA, got Distributed"):
        fit_sites(grid, DistributedPCA(5), wait=0)


# -------------------------------------------------------------------- parameters


def test_parameters_are_checked_before_anybody_is_asked():
    class Untouched(InProcessGrid):
        def get_node_ids(self):
            raise AssertionError

    grid = Untouched([], [])
    expected = {
        "min_sites": (0, "min_sites must be an integer of at least 1, got 0"),
        "n_sites": (2.5, "n_sites must be an integer"),
        "wait": (-1, "wait must be finite and non-negative"),
        "timeout": (np.nan, "timeout must be finite"),
    }
    for name, (value, message) in expected.items():
        with pytest.raises(ValueError, match=message):
            fit_sites(grid, FederatedPCA(5), **{name: value})
    with pytest.raises(ValueError, match="n_components"):
        fit_sites(grid, FederatedPCA(-1))
    with pytest.raises(ValueError, match="channel must be None over a real network"):
        fit_sites(grid, FederatedPowerPCA(5, channel=GaussianChannel()))
    known = sorted(kind.__name__ for kind in site_work.registry if kind is not object)
    assert {"DistributedPCA", "FederatedPCA", "TruncatedDistributedPCA"} <= {*known}
    with pytest.raises(TypeError, match=f"one of {', '.join(known)}, got Projection"):
        fit_sites(grid, ProjectionAverage())
    with pytest.raises(TypeError, match="got PCA"):
        client_app(lambda context: X, PCA())
    for min_rows in (0, 2.5):
        with pytest.raises(ValueError, match=f"min_rows must be an integer of .* got {min_rows}"):
            client_app(lambda context: X, FederatedPCA(2), min_rows=min_rows)


def test_the_server_waits_for_sites(monkeypatch):
    grid = grid_of(FederatedPCA(5))
    there = iter([[1], [1, 2], [1, 2, 3], [1, 2, 3]])
    grid.get_node_ids = lambda: next(there)
    monkeypatch.setattr("fedpca_sklearn.engines._apps.time.sleep", lambda seconds: None)
    assert fit_sites(grid, FederatedPCA(5), n_sites=3).clients_ == list(PARTS)
    assert len(list(there)) == 1


class NoSite(dict):
    """A node configuration that does not name the site."""

    def get(self, key, default=None):
        return default


def test_a_site_names_itself_by_a_function_or_by_its_node():
    apps = [
        client_app(lambda context: X, FederatedPCA(2), site=lambda context: "mine"),
        client_app(lambda context: X, FederatedPCA(2)),
    ]
    grid = InProcessGrid(apps, ["x", "y"], spoil=lambda site, message, reply: reply)
    grid.contexts[2] = Context(1, 2, NoSite(site="unused"), RecordDict(), {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit_sites(grid, FederatedPCA(2), wait=0).clients_ == ["mine", "node 2"]


# -------------------------------------------------------------------- a deployment


needs_flowers_commands = pytest.mark.skipif(
    shutil.which("flower-superlink", path=BIN) is None, reason="Flower's commands needed"
)


@pytest.mark.slow
@needs_flowers_commands
@pytest.mark.parametrize(("variant", "n_sites"), [("plain", 2), ("secure", 3)])
def test_a_deployment_on_loopback_equals_pooled_pca(variant, n_sites, tmp_path):
    app = SCRIPT.parent / ("" if variant == "plain" else variant)
    federate = runpy.run_path(str(SCRIPT))["federate"]
    result = federate(tmp_path, n_sites, seconds=300, app=app)
    pooled = PCA(result.n_components).fit(X)
    assert result.n_samples == len(X)
    assert subspace_distance(result.components, pooled.components_) < 1e-6
    np.testing.assert_allclose(result.explained_variance, pooled.explained_variance_, rtol=1e-6)
    left = [p for p in Path("/proc").glob("[0-9]*/environ") if belongs_to(p, tmp_path)]
    assert not left, "processes that still run"


@pytest.mark.slow
@needs_flowers_commands
def test_a_private_deployment_spends_its_budget_once(capfd):
    assert runpy.run_path(str(SCRIPT))["show_private"]() == 0
    printed = capfd.readouterr().out
    first, second = (line for line in printed.splitlines() if "run.log: " in line)
    assert "epsilon" in first
    assert second.startswith("second_run.log: ")
    assert "no budget" in second


def belongs_to(environ, home):
    try:
        return f"FLWR_HOME={home}".encode() in environ.read_bytes().split(b"\0")
    except OSError:
        return False
