"""A site refuses questions for an estimator that is not its own, and names what differs."""

import numpy as np
import pytest
from engines.site_helpers import SECURE, Site, assert_refused, fit, made, table
from sklearn.base import clone

from fedpca_sklearn import DistributedPCA, FederatedPCA, PrivacyLedger
from fedpca_sklearn.engines.flower import client_app

pytestmark = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
PRIVATE = "FederatedPCA(3, mechanism=AnalyzeGauss({}, 1e-5, 20.0))"
# Estimator of the server | of a site | what the refusal names
OTHERS = table("""
FederatedPCA(3) | FederatedPCA(3, merge=ProjectionAverage(projection_dim=5)) |\
 directions of its merge is 5, got 3
FederatedPCA(3, estimator=StreamingPCA(5)) |\
 FederatedPCA(3, estimator=StreamingPCA(5, center=False)) | estimator__center is False, got True
FederatedPCA(3, estimator=StreamingPCA(5)) | FederatedPCA(3) |\
 estimator is None, got StreamingPCA()
FederatedPCA(3) | FederatedPowerPCA(3) | the estimator must be FederatedPowerPCA, got FederatedPCA
DistributedPCA(3) | DistributedPCA(3, missing=AvailablePairs()) |\
 missing is AvailablePairs(), got None
FederatedPCA(3, missing=ConditionalFill()) | FederatedPCA(3, missing=ConditionalFill(n_rounds=5)) |\
 missing__n_rounds is 5, got 2
FederatedSubspaceTracker(2, robust=False, batch_size=60, init=np.eye(2, 8)) |\
 FederatedSubspaceTracker(2, robust=False, batch_size=60, init=np.eye(2, 8, 1)) |\
 init is [[0.0, 1.0
""")


@pytest.mark.parametrize(("asked", "own", "why"), OTHERS)
def test_a_site_with_another_estimator_refuses_and_names_what_differs(asked, own, why):
    said = Site(made(asked)).stated | {"nonce": "once"}
    assert_refused(Site(made(own)), "summary", config=said, why=why)


def test_no_question_names_a_ledger(tmp_path):
    """Nor does a refusal: it is the file of whoever has it."""
    asked, own = (clone(made(PRIVATE.format(e))) for e in (1.0, 0.5))
    for site, estimator in ("server", asked), ("west", own):
        estimator.mechanism.ledger = PrivacyLedger(tmp_path / f"{site}.ledger")
    config, _ = Site(own).ask("summary", config=Site(asked).stated | {"nonce": "once"})
    assert "mechanism__epsilon is 0.5, got 1.0" in config["error"]
    assert not any("ledger" in str(text) for text in (config, Site(asked).stated))


def test_many_differences_are_named_in_one_short_line():
    own = FederatedPCA(7, n_refinements=1, scale=True, tol=0.5, partial_out=["x" * 99])
    config, arrays = Site(FederatedPCA(3)).ask("summary", config=Site(own).stated | {"nonce": "a"})
    assert not arrays
    assert config["error"].endswith("and 3 more")
    assert len(config["error"]) < 300


@pytest.mark.parametrize(
    ("own", "other"),
    [
        (["x" * 200], ["x" * 199 + "y"]),
        ({"a": 1, "b": ["c"]}, {"a": 1, "b": ["d"]}),
        (np.mean, np.std),
    ],
)
def test_values_of_any_kind_are_told_apart_by_short_texts(own, other):
    class Own(FederatedPCA):
        def __init__(self, n_components=None, options=None):
            super().__init__(n_components)
            self.options = options

    site = Site(Own(3, own))
    assert max(map(len, site.stated["parameters"])) <= 150
    site.stated = Site(Own(np.int64(3), other)).stated
    config, arrays = site.ask("summary")
    assert not arrays
    assert config["error"].startswith("refused: the parameters must be those of the site: options")
    site.stated = Site(Own(np.int64(3), own)).stated
    assert site.answers("summary")


# -------------------------------------------------------------------- what need not be

SAME = table("""
FederatedPCA(3, n_jobs=1, n_clients=3, random_state=1) | FederatedPCA(3, random_state=2)
FederatedPCA(2, missing=AvailablePairs(), n_jobs=2) | FederatedPCA(3, missing=AvailablePairs())
DistributedPCA(3, scale=True) | DistributedPCA()
FederatedPowerPCA(2, tol=0.1, acceleration=None, init=np.eye(2, 8), random_state=0) |\
 FederatedPowerPCA(2)
FederatedScaler(with_std=False) | FederatedScaler(copy=False)
OnlineDistributedPCA(3, weighting="rows") | OnlineDistributedPCA(3)
FederatedSubspaceTracker(2, robust=False, batch_size=60, forgetting_factor=0.9,\
 detect_changes=True, store_subspaces=True, random_state=0) |\
 FederatedSubspaceTracker(2, robust=False, batch_size=60)
""")


@pytest.mark.parametrize(("asked", "own"), SAME)
def test_what_only_the_server_reads_may_differ(asked, own):
    asked, own = made(asked), made(own)
    fitted, expected = fit(own, server=asked), fit(asked)
    assert fitted.missing_sites_ == {}
    name = "components_" if hasattr(expected, "components_") else "mean_"
    np.testing.assert_allclose(getattr(fitted, name), getattr(expected, name), atol=1e-10)


@pytest.mark.parametrize(
    ("own", "asked", "why"),
    [
        ("DistributedPCA(3)", "DistributedPCA(3, scale=True)", "scale is False, got True"),
        (
            "OnlineDistributedPCA(3)",
            "OnlineDistributedPCA(3, weighting='rows')",
            "weighting is 'equal', got 'rows'",
        ),
    ],
)
def test_what_a_site_reads_for_secure_sums_must_be_the_same(own, asked, why):
    with pytest.raises(RuntimeError, match=why):
        fit(made(own), server=made(asked), secure=SECURE)


# -------------------------------------------------------------------- what is stated at all


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"protocol": None}, "of no version of the protocol, the site speaks version 3"),
        ({"protocol": 1}, "of version 1 of the protocol, the site speaks version 3"),
        ({"protocol": True}, "of version True of the protocol"),
        ({"protocol": "3"}, "of version '3' of the protocol"),
        ({"estimator": None}, "the estimator must be DistributedPCA, got nothing"),
        ({"estimator": "x\n" * 999}, "the estimator must be DistributedPCA, got x\\nx\\n"),
        ({"parameters": None}, "a question states at most 200 parameters, as texts"),
        ({"parameters": "missing=None"}, "a question states at most 200 parameters"),
        ({"parameters": ["a=1"] * 201}, "a question states at most 200 parameters"),
        ({"parameters": ["missing"]}, "a parameter is a name, = and at most 120 characters"),
        ({"parameters": ["a=" + "1" * 121]}, "a parameter is a name, = and at most 120"),
        ({"parameters": []}, "missing is None, got nothing"),
        ({"parameters": [1, 2]}, "a parameter is a name, ="),
    ],
)
def test_a_question_that_states_something_else(change, why):
    site = Site(DistributedPCA())
    config = {**site.stated, "nonce": "once", **change}
    config = {name: value for name, value in config.items() if value is not None}
    assert_refused(site, "factor", config=config, why=why)
    assert site.answers("factor")


def test_rows_are_not_loaded_for_another_estimator():
    def load_rows(context):
        raise AssertionError

    site = Site(made("DistributedPCA(missing=AvailablePairs())"))
    site.app = client_app(load_rows, DistributedPCA())
    assert_refused(site, "factor", why="missing is None, got AvailablePairs()")
