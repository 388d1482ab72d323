"""A site refuses questions for an estimator that is not its own, and names what differs."""

import numpy as np
import pytest
from engines.site_helpers import SECURE, Site, assert_refused, fit, made, table
from sklearn.base import clone

from fedpca_sklearn import DistributedPCA, FederatedPCA, PrivacyLedger
from fedpca_sklearn.engines.flower import client_app

pytestmark = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
# Estimator of the server | of the site west | what the refusal names
OTHERS = table("""
FederatedPCA(3) | FederatedPCA(4) | n_components is 4, got 3
FederatedPCA(3) | FederatedPCA(3, scale=True) | scale is True, got False
FederatedPCA(3) | FederatedPCA(3, merge=ProjectionAverage(projection_dim=5)) |\
 directions of its merge is 5, got 3
FederatedPCA(3, estimator=StreamingPCA(5)) |\
 FederatedPCA(3, estimator=StreamingPCA(5, center=False)) | estimator__center is False, got True
FederatedPCA(3, estimator=StreamingPCA(5)) | FederatedPCA(3) |\
 estimator is None, got StreamingPCA()
FederatedPCA(3) | FederatedPowerPCA(3) | the estimator must be FederatedPowerPCA, got FederatedPCA
DistributedPCA(3) | DistributedPCA(3, missing=AvailablePairs()) |\
 missing is AvailablePairs(), got None
FederatedPCA(3, partial_out=[0, 1]) | FederatedPCA(3, partial_out=[0, 2]) |\
 partial_out is [0, 2], got [0, 1]
FederatedPowerPCA(3) | FederatedPowerPCA(3, n_rounds=7) | n_rounds is 7, got 100
FederatedPCA(3, missing=ConditionalFill()) | FederatedPCA(3, missing=ConditionalFill(n_rounds=5)) |\
 missing__n_rounds is 5, got 2
FederatedPCA(3, mechanism=AnalyzeGauss(1.0, 1e-5, 20.0)) |\
 FederatedPCA(3, mechanism=AnalyzeGauss(0.5, 1e-5, 20.0)) | mechanism__epsilon is 0.5, got 1.0
TruncatedDistributedPCA(3) | TruncatedDistributedPCA(3, local_threshold=0.8) |\
 local_threshold is 0.8, got 0.9
FederatedSubspaceTracker(2, robust=False, batch_size=60, init=np.eye(2, 8)) |\
 FederatedSubspaceTracker(2, robust=False, batch_size=60, init=np.eye(2, 8, 1)) |\
 init is [[0.0, 1.0
""")


@pytest.mark.parametrize(("asked", "own", "why"), OTHERS)
def test_a_site_with_another_estimator_refuses_and_names_what_differs(asked, own, why, tmp_path):
    """No question names a ledger, nor does a refusal: it is the file of whoever has it."""
    asked, texts = clone(made(asked)), []
    estimators = {"east": clone(asked), "north": clone(asked), "west": clone(made(own))}
    for site, estimator in {**estimators, "server": asked}.items():
        if getattr(estimator, "mechanism", None) is not None:
            estimator.mechanism.ledger = PrivacyLedger(tmp_path / f"{site}.ledger")

    def noted(site, message, reply):
        texts.extend([str(message.content), str(reply.content)])
        return reply

    with pytest.warns(UserWarning, match="Fitted without"):
        fitted = fit(estimators, spoil=noted, server=asked)
    assert fitted.clients_ == ["east", "north"]
    (reason,) = fitted.missing_sites_.values()
    assert "'west': refused: " in reason
    assert why in reason
    assert not any(str(tmp_path) in text or "ledger" in text for text in texts)


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
FederatedPCA(3, merge=RobustMerge()) | FederatedPCA(3)
FederatedPCA(3, estimator=StreamingPCA(3)) | FederatedPCA(3, estimator=StreamingPCA(3))
FederatedPCA(2, missing=AvailablePairs(), n_jobs=2) | FederatedPCA(3, missing=AvailablePairs())
DistributedPCA(3, scale=True) | DistributedPCA()
TruncatedDistributedPCA(3) | TruncatedDistributedPCA(4)
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
