"""Estimators on real sites over Flower: the apps, who takes part, and a deployment on loopback."""

import re
import runpy
import shutil
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from engines.site_helpers import (
    MEAN,
    PARTS,
    ROWS,
    SECURE,
    InProcessGrid,
    assert_same,
    fit,
    grid_of,
    here,
    in_one_process,
    lost,
    made,
    table,
)
from flwr.app import Context, Error, RecordDict
from numpy.testing import assert_allclose
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    FederatedSubspaceTracker,
    StreamingPCA,
    subspace_distance,
)
from fedpca_sklearn.base import ClientsTransformer
from fedpca_sklearn.engines.flower import (
    SecureAggregation,
    SitePolicy,
    SiteRows,
    Task,
    client_app,
    fit_sites,
    partial_fit_estimator,
    partial_fit_sites,
    server_app,
    site_work,
)
from fedpca_sklearn.privacy import DiscreteGaussian

KINDS = ["FederatedPCA(3)", "DistributedPCA(3)", "FederatedPowerPCA(3, random_state=0)"]
BIN = Path(sys.executable).parent
SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "flower" / "run_loopback.py"


def test_a_server_app_hands_on_what_was_fitted():
    found, pca = [], made(KINDS[0])
    app = server_app(pca, lambda fitted, context: found.append(fitted), wait=0)
    app(grid_of(pca), Context(1, 0, {}, RecordDict(), {}))
    assert_same(found[0], in_one_process(KINDS[0], "rows"))


def test_sub_estimators_with_a_random_state_differ_by_site_and_repeat():
    class Seeds(StreamingPCA):
        def __init__(self, n_components=None, random_state=None):
            super().__init__(n_components)
            self.random_state = random_state

        def fit(self, X, y=None):
            seeds.append(self.random_state)
            return super().fit(X)

    seeds, federated = [], type(made("FederatedPCA()"))
    for _ in range(2):
        fit(federated(5, estimator=Seeds(5), random_state=3))
    assert seeds[:3] == seeds[3:]
    assert len(set(seeds)) == 3


# -------------------------------------------------------------------- faults


@pytest.mark.parametrize("code", KINDS[1:])
def test_a_site_whose_process_fails_is_left_out_and_named(code):
    broken = np.where(np.arange(8) == 3, np.nan, PARTS["north"])
    reference = "calls itself 'north': ValueError, [0-9a-f]{8} in the log of the site"
    for parts, spoil, reason in (
        (PARTS, lost("north", how=Error(8, "crashed")), "Flower's error 8: crashed"),
        (PARTS, lost("north"), "no answer within 7 s"),
        ({**PARTS, "north": broken}, None, reference),
    ):
        with pytest.warns(UserWarning, match="Fitted without site 'node 2'"):
            found = fit(made(code), parts, spoil, options={"timeout": 7})
        assert list(found.missing_sites_) == ["node 2"]
        assert re.fullmatch(reason, found.missing_sites_["node 2"])
        assert_same(found, in_one_process(code, "rows", "east", "west"))


def test_what_a_site_cannot_load_is_in_its_log_alone(caplog):
    def broken(context):
        raise OSError("no such file")

    pca = made("DistributedPCA(3)")
    apps = [client_app(broken, pca), *grid_of(pca, {"b": ROWS, "c": ROWS[:0]}).apps.values()]
    with pytest.warns(UserWarning, match="Fitted without"):
        found = fit_sites(
            InProcessGrid(list(zip("abc", apps, strict=True))), pca, wait=0, min_sites=1
        )
    assert list(found.missing_sites_) == ["node 1", "node 3"]
    said = {"OSError": "no such file", "ValueError": "0 sample"}
    for reason, (kind, text) in zip(found.missing_sites_.values(), said.items(), strict=True):
        (reference,) = re.findall(f"{kind}, ([0-9a-f]+) in the log of the site", reason)
        (record,) = [r for r in caplog.records if reference in r.getMessage()]
        assert text in str(record.exc_info[1])
        assert text not in reason
    assert_same(found, here(pca, {"b": ROWS}))


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([], "must return a batch at least, got none"),
        ([ROWS[:20], ROWS[20:40, :5]], "must return batches with the same columns"),
        ([SiteRows(ROWS[:20], keys=range(20), salt=b"x" * 16)] * 2, "keys need rows in one piece"),
    ],
)
def test_batches_that_are_no_rows_of_a_site_are_named_in_its_log(parts, why, caplog):
    pca = made("DistributedPCA(3)")
    app = client_app(lambda context: iter(parts), pca)
    with pytest.raises(RuntimeError, match=r"'west': ValueError, [0-9a-f]+ in the log of the site"):
        fit_sites(InProcessGrid({"west": app}), pca, wait=0, min_sites=1)
    assert any(why in str(record.exc_info and record.exc_info[1]) for record in caplog.records)


def test_a_sub_estimator_without_weights_is_an_error_of_each_site():
    parts = {site: SiteRows(rows, np.ones(len(rows))) for site, rows in PARTS.items()}
    with pytest.raises(RuntimeError, match=r"Left out: .*TypeError"):
        fit(made("FederatedPCA(5, estimator=PCA(5))"), parts)


# -------------------------------------------------------------------- parameters

PRIVATE = "FederatedPCA(2, mechanism=AnalyzeGauss(1.0, 1e-5, 1.0"
ROUNDS = "mechanism=FedPowerNoise(1.0, 1e-5, 1.0)"
ONCE, RULES, LEDGER = SecureAggregation(restarts=0), SitePolicy(), SitePolicy(ledger="x")
# Estimator | options of the app | words of the error
APPS = table(f"""
PCA() | {{}} | got PCA
StreamingPCA() | {{"secure": SECURE}} | secure sums need FederatedPCA
DistributedPCA(-1) | {{}} | n_components
FederatedPCA(2) | {{"min_rows": 0}} | min_rows must be an integer of .* got 0
FederatedPCA(2) | {{"min_rows": 2.5}} | min_rows must be an integer of .* got 2.5
FederatedPCA(2) | {{"min_rows": 5, "policy": RULES}} | min_rows must be None beside a policy
{PRIVATE})) | {{}} | mechanism needs a ledger
FederatedPowerPCA(3, {ROUNDS}) | {{}} | needs a ledger
FederatedPowerPCA(3, local_steps=2, {ROUNDS}) | {{"policy": LEDGER}} |\
 mechanism needs local_steps=1
FederatedSubspaceTracker(2, channel=GaussianChannel()) | {{}} | channel must be None over a
VerticalFederatedKernelPCA(2, kernel=np.dot) | {{}} | needs aggregation=VFedPCA
VerticalFederatedKernelPCA(2, kernel=np.dot) | {{"secure": SECURE}} | needs aggregation=VFedPCA
VerticalFederatedKernelPCA(2, kernel=np.dot, aggregation=VFedPCA()) | {{"secure": SECURE}} |\
 aggregation must be "exact" with secure sums
FederatedPCA(2, missing="mean") | {{}} | 'missing' parameter of FederatedPCA must be
FederatedPCA(2, missing="mean") | {{"secure": SECURE}} | 'missing' parameter of FederatedPCA must be
VerticalFederatedKernelPCA(2, projection="features", kernel="linear") | {{"secure": SECURE}} |\
 projection must be "samples" with secure sums
VerticalFederatedPCA(2, method="merge") | {{"secure": SECURE}} | method must be "power"
VerticalFederatedPCA(2, method="vfedpca") | {{"secure": SECURE}} | method must be "power"
OnlineDistributedPCA(3, variances="sent") | {{"secure": SECURE}} |\
 variances must be "measured" with secure sums
FederatedPCA(5, merge=ProjectionAverage()) | {{"secure": SECURE}} | merge must be None with
FederatedPCA(5, estimator=StreamingPCA(5)) | {{"secure": SECURE}} | estimator must be None
{PRIVATE})) | {{"secure": ONCE, "policy": LEDGER}} | needs noise that survives int
{PRIVATE.replace("1.0, 1e-5, 1.0", "1.0, 1e-3, 'private'")}, noise=DiscreteGaussian())) |\
 {{"secure": ONCE}} | row_norm must be known in advance
{PRIVATE}, trust='sum', noise=DiscreteGaussian())) |\
 {{"secure": replace(SECURE, restarts=1), "policy": LEDGER}} | needs SecureAggregation.restarts=0
""")
# The same of the server
SERVERS = table(f"""
FederatedPCA(5) | {{"min_sites": 0}} | min_sites must be an integer of at least 1, got 0
FederatedPCA(5) | {{"n_sites": 2.5}} | n_sites must be an integer
FederatedPCA(5) | {{"wait": -1}} | wait must be finite and non-negative
FederatedPCA(5) | {{"timeout": np.nan}} | timeout must be finite
FederatedPCA(5) | {{"timeout": 0}} | timeout must be positive, got 0.0
FederatedPCA(-1) | {{}} | n_components
FederatedPowerPCA(5, channel=GaussianChannel()) | {{}} | channel must be None over a real
{PRIVATE}, trust='sum')) | {{}} | needs secure su
FederatedPowerPCA(5, {ROUNDS}) | {{"secure": ONCE}} | needs noise that survives integers
ProjectionAverage() | {{}} | one of .*DistributedPCA, .*FederatedPCA, .*, got Projection
""")


def test_what_no_site_takes_part_in_is_refused_when_its_app_is_made():
    for code, options, why in APPS:
        with pytest.raises(
            TypeError if why in ("got PCA", "secure sums need FederatedPCA") else ValueError,
            match=why,
        ):
            pytest.fail(f"{code}: {client_app(lambda context: ROWS, made(code), **eval(options))}")


class Untouched(InProcessGrid):
    def get_node_ids(self):
        raise AssertionError


def test_parameters_are_checked_before_anybody_is_asked():
    for code, options, why in SERVERS:
        with pytest.raises(TypeError if "one of" in why else ValueError, match=why):
            pytest.fail(f"{code}: {fit_sites(Untouched({}), made(code), **eval(options))}")


def test_of_batches_an_estimator_that_goes_on_is_needed_and_a_number():
    grid = grid_of(made(KINDS[1]))
    with pytest.raises(TypeError, match=r"one of DistributedPCA, FederatedPCA, .*PowerPCA"):
        partial_fit_sites(grid, made(KINDS[2]), wait=0)
    for code in ("FederatedPCA(2, missing=ConditionalFill())", f"{PRIVATE}))"):
        with pytest.raises(ValueError, match="takes all rows of a site at once"):
            partial_fit_sites(grid, made(code), wait=0)
    for number in (-1, 1.5):
        with pytest.raises(ValueError, match="batch must be an integer of at least 0"):
            partial_fit_sites(grid, made(KINDS[1]), batch=number, wait=0)


TOO_MANY = table("""
FederatedPCA(9) | n_components=9
DistributedPCA(9) | n_components=9
FederatedPowerPCA(9, random_state=0) | n_components=9
FederatedPCA(9, missing=AvailablePairs()) | n_components=9
DistributedPCA(9, missing=AvailablePairs()) | n_components=9
FederatedPCA(9, missing=ConditionalFill()) | n_components=9
OnlineDistributedPCA(9) | n_components=9
TruncatedDistributedPCA(9) | n_components=9|has no secure sums
FederatedPCA(missing=ConditionalFill()) | n_components must be a number or a share
""")


@pytest.mark.parametrize(("code", "why"), TOO_MANY)
def test_more_components_than_features_end_the_fit(code, why):
    for secure in (None, SECURE):
        with pytest.raises(ValueError, match=why):
            fit(made(code), secure=secure)


def test_another_method_of_columns_is_refused():
    class Mine(type(made("PowerRounds()")).__base__):
        def left_vectors(self, federation, clients, rank, rounds=range):
            raise NotImplementedError

    pca = type(made("VerticalFederatedPCA()"))(2, method=Mine())
    with pytest.raises(TypeError, match="LeftVectorMerge, PowerRounds, VFedPCA over a network"):
        site_work(pca)


def test_no_row_in_common_ends_the_fit():
    parts = {
        site: SiteRows(rows[:60], keys=range(at, at + 60), salt=b"x" * 16)
        for at, (site, rows) in zip((0, 0, 100), PARTS.items(), strict=True)
    }
    with pytest.raises(RuntimeError, match="No key of a row is at all sites, east, north, west"):
        fit(made('VerticalFederatedPCA(3, method="power")'), parts)


def test_the_server_waits_for_sites(monkeypatch):
    grid, there = grid_of(made(KINDS[0])), iter([[1], [1, 2], [1, 2, 3], [1, 2, 3]])
    grid.get_node_ids = lambda: next(there)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    assert fit_sites(grid, made(KINDS[0]), n_sites=3).clients_ == list(PARTS)
    assert len(list(there)) == 1


def test_a_site_names_itself_by_a_function_or_by_its_node():
    class NoSite(dict):
        """A node configuration that does not name the site."""

        def get(self, key, default=None):
            return default

    names = count(1)
    apps = [
        client_app(
            lambda context: ROWS, made(KINDS[0]), site=lambda context: f"mine {next(names)}"
        ),
        client_app(lambda context: ROWS, made(KINDS[0])),
    ]
    grid = InProcessGrid(list(zip("xy", apps, strict=True)))
    grid.contexts[2] = Context(1, 2, NoSite(site="unused"), RecordDict(), {})
    assert fit_sites(grid, made(KINDS[0]), wait=0).clients_ == ["mine 1", "node 2"]


class Totals(ClientsTransformer):
    """A protocol of one's own, about one batch after the other."""

    def __init__(self, n_components=1):
        self.n_components = n_components

    _step = None

    def site_tasks(self):
        def total(site, own):
            return {"sum": own.total, "count": [own.n_samples]}

        return {"total": Task(total, reads="moments", batches=True)}


@partial_fit_estimator.register
def _(estimator: Totals, sites, batch):
    def read(answer):
        return np.append(answer.array("sum", (None,)), answer.array("count", (1,)))

    found = sites.ask_batch("total", read, batch)
    if not found:
        return None
    estimator.total_ = getattr(estimator, "total_", 0.0) + sum(found.values())
    estimator.mean_ = estimator.total_[:-1] / estimator.total_[-1]
    estimator.clients_ = sorted(found)
    return estimator


def test_a_protocol_of_ones_own_takes_batches_in_turn():
    halves = {site: [rows[:30], rows[30:]] for site, rows in PARTS.items()}
    assert_allclose(fit(Totals(), halves).mean_, MEAN, rtol=1e-12)
    grid, totals = grid_of(Totals(), halves), Totals()
    for number in (0, 0, 2, 1):  # a batch may begin again
        if number == 2:
            with pytest.raises(RuntimeError, match="batch 2 is out of turn, the last one was 0"):
                partial_fit_sites(grid, totals, batch=number, wait=0)
        else:
            of_batch = partial_fit_sites(grid, Totals(), batch=number, wait=0)
            want = sum(of_site[number].sum(axis=0) for of_site in halves.values())
            assert_allclose(of_batch.total_[:-1], want, rtol=1e-12)


class Flipped(FederatedPCA):
    """A subclass with a parameter of its own, and other coordinates."""

    def __init__(self, n_components=2, *, sign=1.0, mechanism=None):
        super().__init__(n_components, mechanism=mechanism)
        self.sign = sign

    def transform(self, X):
        return self.sign * super().transform(X)


class FlippedTracker(FederatedSubspaceTracker):
    """The same of a tracker."""

    def __init__(self, n_components=2, *, sign=1.0):
        super().__init__(n_components, batch_size=20, robust=False, random_state=0)
        self.sign = sign

    def transform(self, X):
        return self.sign * super().transform(X)


@pytest.mark.parametrize("secure", [None, SECURE])
@pytest.mark.parametrize("mode", ["plain", "tracker", "mechanism"])
def test_a_subclass_is_fitted_as_what_it_is(mode, secure, tmp_path):
    estimator = FlippedTracker(2, sign=-3.0) if mode == "tracker" else Flipped(2, sign=-3.0)
    policies = None
    if mode == "mechanism":
        noise = {"trust": "client" if secure is None else "sum", "noise": DiscreteGaussian()}
        estimator.mechanism = AnalyzeGauss(1e4, 1e-5, 30.0, **noise)
        ledgers = {site: tmp_path / site for site in PARTS}
        policies = {s: SitePolicy(mechanism=estimator.mechanism, ledger=ledgers[s]) for s in PARTS}
    alone = replace(secure, threshold=3, restarts=0) if secure else None
    parts = {site: rows[:60] for site, rows in PARTS.items()}  # as many batches at each
    fitted = fit(estimator, parts, secure=alone, policies=policies)
    assert type(fitted) is type(estimator)
    assert fitted.sign == -3.0
    Z = (ROWS - fitted.mean_) @ fitted.components_.T
    assert_allclose(fitted.transform(ROWS), -3 * Z, rtol=1e-8, atol=1e-8)


# -------------------------------------------------------------------- a deployment


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("flower-superlink", path=BIN) is None, reason="Flower's commands needed"
)
def test_a_deployment_on_loopback(tmp_path, capfd):
    """Plain and by secure sums, beside pooled PCA; and twice with a budget for one fit."""
    script, app, X = runpy.run_path(str(SCRIPT)), SCRIPT.parent, load_digits().data
    apps = [app, app / "secure", app / "private", app / "private"]
    *exact, private, refused = script["federate"](tmp_path, 3, 500, apps)
    for result in exact:
        pooled = PCA(result.n_components).fit(X)
        assert result.n_samples == len(X)
        assert subspace_distance(result.components, pooled.components_) < 1e-6
        np.testing.assert_allclose(result.explained_variance, pooled.explained_variance_, rtol=1e-6)
    left = [p for p in Path("/proc").glob("[0-9]*/environ") if belongs_to(p, tmp_path)]
    assert not left, "processes that still run"
    assert refused is None
    assert script["show_private"](tmp_path, private) == 0
    first, second = [line for line in capfd.readouterr().out.splitlines() if ".log: " in line]
    assert "epsilon" in first
    assert "no budget" in second


def belongs_to(environ, home):
    try:
        return f"FLWR_HOME={home}".encode() in environ.read_bytes().split(b"\0")
    except OSError:
        return False
