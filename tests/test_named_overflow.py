"""Sums over clients that overflow: the error names who holds the values."""

import numpy as np
import pytest
import scipy.sparse as sp
from golden_cases import NAMES, made
from numpy.testing import assert_allclose

from fedpca_sklearn import (
    FederatedPCA,
    FederatedScaler,
    PersonalizedPCA,
    Subspace,
    SubspaceMerge,
    merge_subspaces,
)

STRATEGIES = ["None", 'SubspaceMerge("qr")', "SubspaceMerge(fan_in=2)", "ProjectionAverage()"]
STRATEGIES += ["NoiseAwareMerge()"]
SITES = ["east", "south", "north", "west", "centre", "coast"]
EXTREMES = {
    "mean": {"mean": [0, -1e155, 0]},
    "count": {"n_samples": 1.7e308},
    "scatter": {"singular_values": [1e154], "scatter": 1.7e308},
}


def summaries(fields, at=3, **common):
    """Summaries of which the one at a position is valid, and too large to be added to others."""
    valid = {
        "components": np.eye(3)[:1],
        "singular_values": [1.0],
        "mean": np.zeros(3),
        "n_samples": 1e308 if "n_samples" in fields else 5.0,
        "scatter": 1e308 if "scatter" in fields else 1.0,
        **common,
    }
    return [Subspace(**(valid | (fields if i == at else {}))) for i in range(6)]


def of_sites(parts):
    return [part._replace(site=name) for part, name in zip(parts, SITES, strict=False)]


@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize("at", [0, 3, 5])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_merge_names_the_position_and_the_site(kind, at, strategy):
    parts, strategy = summaries(EXTREMES[kind], at), made(strategy)
    for merge in ((strategy or SubspaceMerge()).merge, merge_subspaces)[: 2 - bool(strategy)]:
        with pytest.raises(ValueError, match=rf"^subspaces\[{at}\]: .*too large to merge"):
            merge(parts, 1)
        named = rf"^subspaces\[{at}\] \(site '{SITES[at]}'\): .*"
        with pytest.raises(ValueError, match=named):
            merge(of_sites(parts), 1)
    for files, name in ((parts, at), (of_sites(parts), f"'{SITES[at]}'")):
        with pytest.raises(ValueError, match=f"^Client {name}: .*too large to merge"):
            FederatedPCA.from_subspaces(files, 1, merge=strategy)


CLIENTS = np.repeat(["a", "b", "c"], 20)


def rows(value):
    """Rows of three clients, of which 'b' holds a value everywhere."""
    X = np.random.default_rng(0).standard_normal((60, 4))
    X[20:40] = value
    return X


MODELS = """
FederatedPCA(2)
FederatedPCA(2, merge=SubspaceMerge(fan_in=2))
FederatedPCA(2, merge=ProjectionAverage())
DistributedPCA(2)
TruncatedDistributedPCA(2)
OnlineDistributedPCA(2)
FederatedPowerPCA(2, random_state=0)
FederatedPowerPCA(2, local_steps=3, random_state=0)
FederatedPowerPCA(2, center=False, random_state=0)
FederatedSubspaceTracker(2, batch_size=60, robust=True, random_state=0)
FederatedSubspaceTracker(2, batch_size=60, robust=False, random_state=0)
""".strip().splitlines()


@pytest.mark.parametrize("code", MODELS)
def test_rows_far_out_name_their_client(code):
    model, X = made(code), rows(0.0)
    X[20:40] += 5e18 * np.sign(np.arange(20) - 9.5)[:, None]
    wrong = [rows(value) for value in (1e155, -1e200, 1e300)]
    if code in ("FederatedPCA(2)", "DistributedPCA(2)", "OnlineDistributedPCA(2)"):
        wrong.append((8 * X).astype(np.float32))
    for of_b in wrong:
        with pytest.raises(ValueError, match=r"^Client 'b': .*too large"):
            model.fit(of_b, clients=CLIENTS)
    if "Tracker" in code:
        model.fit(np.random.default_rng(1).standard_normal((60, 4)), clients=CLIENTS)
        with pytest.raises(ValueError, match=r"^Client 'b': .*too large"):
            model.partial_fit(wrong[0], clients=CLIENTS)


@pytest.mark.parametrize(
    "call",
    """
StreamingPCA(2).fit
StreamingPCA(2, svd_solver="qr").fit
StreamingPCA(2, svd_solver="qr", block_size=10).partial_fit
FederatedPCA(2).fit
FederatedScaler().fit
FederatedPowerPCA(2, random_state=0).fit
FederatedPowerPCA(2, acceleration="krylov", center=False, random_state=0).fit
FederatedHeteroscedasticPCA(2, random_state=0).fit
DistributedPCA(2).partial_fit
OnlineDistributedPCA(2).fit
PersonalizedPCA(2).fit
TruncatedDistributedPCA(2).fit
Subspace.from_rows
PairMoments.from_rows
""".strip().splitlines(),
)
def test_weights_that_overflow_are_named(call):
    """Of rows near 1e5 it is not the values that are too large."""
    X, fit = 1e5 * np.random.default_rng(0).standard_normal((60, 4)), eval(call, dict(NAMES))
    dense_alone = isinstance(getattr(fit, "__self__", None), FederatedScaler)
    for part in (X, sp.csr_array(X))[: 2 - dense_alone]:
        with pytest.raises(ValueError, match=r"sample_weight holds .* too large, up to 1\.0e\+300"):
            fit(part, sample_weight=np.full(60, 1e300))
        with pytest.raises(ValueError, match=r"(^|: )X holds values"):
            fit(1e160 * part, sample_weight=np.ones(60))


@pytest.mark.parametrize("unit", [1e30, 1e290])
def test_the_test_for_clients_that_differ_does_not_depend_on_the_unit_of_weights(unit):
    X = np.random.default_rng(0).standard_normal((90, 4)) * [4, 3, 2, 1]
    model = PersonalizedPCA(1, 1, n_clients=3)
    found = model.fit(X, sample_weight=np.full(90, unit)).components_
    assert_allclose(np.abs(found), np.abs(model.fit(X).components_), atol=1e-9)


@pytest.mark.parametrize("code", [code for code in MODELS if code.endswith("PCA(2)")])
def test_a_sum_that_overflows_names_the_largest_client(code):
    """No client's sum of squares does."""
    Z = np.random.default_rng(0).standard_normal((40, 4))
    Z -= Z.mean(axis=0)
    Z *= 1.2e154 / np.linalg.norm(Z)
    with pytest.raises(ValueError, match=r"^Client 'b': .*too large"):
        made(code).fit(np.concatenate([Z, 1.05 * Z]), clients=np.repeat(["a", "b"], 40))
