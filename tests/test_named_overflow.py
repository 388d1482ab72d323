"""Sums over clients that overflow: the error names who holds the values."""

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose

from fedpca_sklearn import (
    DistributedPCA,
    FederatedHeteroscedasticPCA,
    FederatedPCA,
    FederatedPowerPCA,
    FederatedScaler,
    FederatedSubspaceTracker,
    NoiseAwareMerge,
    OnlineDistributedPCA,
    PairMoments,
    PersonalizedPCA,
    ProjectionAverage,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
    TruncatedDistributedPCA,
    VerticalFederatedPCA,
    merge_subspaces,
)

STRATEGIES = [
    None,
    SubspaceMerge("qr"),
    SubspaceMerge(fan_in=2),
    ProjectionAverage(),
    NoiseAwareMerge(),
]
EXTREMES = {
    "mean": {"mean": [0, -1e155, 0]},
    "count": {"n_samples": 1.7e308},
    "scatter": {"singular_values": [1e154], "scatter": 1.7e308},
}


def summaries(fields, at=3, n=6, **common):
    """Summaries of which the one at a position is valid, and too large to be added to others."""
    valid = {
        "components": np.eye(3)[:1],
        "singular_values": [1.0],
        "mean": np.zeros(3),
        "n_samples": 1e308 if "n_samples" in fields else 5.0,
        "scatter": 1e308 if "scatter" in fields else 1.0,
        **common,
    }
    return [Subspace(**(valid | (fields if i == at else {}))) for i in range(n)]


@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize("at", [0, 3, 5])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_merge_names_the_position_and_the_site(kind, at, strategy):
    parts = summaries(EXTREMES[kind], at)
    calls = [lambda parts: (strategy or SubspaceMerge()).merge(parts, 1)]
    if strategy is None:
        calls.append(lambda parts: merge_subspaces(parts, 1))
    for merge in calls:
        with pytest.raises(ValueError, match=rf"^subspaces\[{at}\]: .*too large to merge"):
            merge(parts)
        named = [part._replace(site=f"site {i}") for i, part in enumerate(parts)]
        with pytest.raises(ValueError, match=rf"^subspaces\[{at}\] \(site 'site {at}'\): .*"):
            merge(named)


@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_files_of_sites_are_named(kind, strategy):
    parts = summaries(EXTREMES[kind])
    with pytest.raises(ValueError, match=r"^Client 3: .*too large to merge"):
        FederatedPCA.from_subspaces(parts, 1, merge=strategy)
    parts = [part._replace(site=name) for part, name in zip(parts, "abcdef", strict=True)]
    with pytest.raises(ValueError, match=r"^Client 'd': .*too large to merge"):
        FederatedPCA.from_subspaces(parts, 1, merge=strategy)


def test_the_error_says_what_is_too_large():
    with pytest.raises(ValueError, match=r"n_samples=5, scatter=1 and a mean of up to 1e\+155"):
        merge_subspaces(summaries(EXTREMES["mean"]))


def test_a_weight_that_overflows_names_its_summary():
    parts = summaries({}, n_samples=1e300)
    names = "east", "south", "north", "west", "centre", "coast"
    parts = [part._replace(site=name) for part, name in zip(parts, names, strict=True)]
    with pytest.raises(ValueError, match=r"^subspaces\[2\] \(site 'north'\): weight=.*too large"):
        merge_subspaces(parts, weights=[1, 1, 1e10, 1, 1, 1])


def test_summaries_that_do_not_fit_are_named():
    a, b = Subspace.empty(3)._replace(site="north"), Subspace.empty(4)._replace(site="west")
    with pytest.raises(ValueError, match=r"subspaces\[1\] \(site 'west'\) has 4 features"):
        merge_subspaces([a, b])
    c = Subspace.empty(3, centered=False)._replace(site="west")
    with pytest.raises(ValueError, match=r"all not centred.*\(site 'west'\)"):
        merge_subspaces([a, c])
    with pytest.raises(TypeError, match=r"got int as subspaces\[1\]"):
        merge_subspaces([a, 5])


def rows(value):
    """Rows of three clients, of which 'b' holds a value everywhere."""
    X = np.random.default_rng(0).standard_normal((60, 4))
    X[20:40] = value
    return X, np.repeat(["a", "b", "c"], 20)


@pytest.mark.parametrize(
    "model",
    [
        FederatedPCA(2),
        FederatedPCA(2, merge=SubspaceMerge(fan_in=2)),
        FederatedPCA(2, merge=ProjectionAverage()),
        DistributedPCA(2),
        TruncatedDistributedPCA(2),
        OnlineDistributedPCA(2),
        FederatedPowerPCA(2, random_state=0),
        FederatedPowerPCA(2, local_steps=3, random_state=0),
        FederatedPowerPCA(2, center=False, random_state=0),
    ],
    ids=str,
)
@pytest.mark.parametrize("value", [1e155, -1e200, 1e300])
def test_rows_far_out_name_their_client(model, value):
    X, clients = rows(value)
    with pytest.raises(ValueError, match=r"^Client 'b': .*too large"):
        model.fit(X, clients=clients)


@pytest.mark.parametrize(
    "fit",
    [
        StreamingPCA(2).fit,
        StreamingPCA(2, svd_solver="qr").fit,
        StreamingPCA(2, svd_solver="qr", block_size=10).partial_fit,
        FederatedPCA(2).fit,
        FederatedScaler().fit,
        FederatedPowerPCA(2, random_state=0).fit,
        FederatedPowerPCA(2, acceleration="krylov", center=False, random_state=0).fit,
        FederatedHeteroscedasticPCA(2, random_state=0).fit,
        DistributedPCA(2).partial_fit,
        OnlineDistributedPCA(2).fit,
        PersonalizedPCA(2).fit,
        TruncatedDistributedPCA(2).fit,
        Subspace.from_rows,
        PairMoments.from_rows,
    ],
)
def test_weights_that_overflow_are_named(fit):
    """Of rows near 1e5 it is not the values that are too large."""
    X = 1e5 * np.random.default_rng(0).standard_normal((60, 4))
    weight = np.full(60, 1e300)
    for rows in (X, sp.csr_array(X)):
        if sp.issparse(rows) and isinstance(getattr(fit, "__self__", None), FederatedScaler):
            continue
        with pytest.raises(ValueError, match=r"sample_weight holds .* too large, up to 1\.0e\+300"):
            fit(rows, sample_weight=weight)
        with pytest.raises(ValueError, match=r"(^|: )X holds values"):
            fit(1e160 * rows, sample_weight=np.ones(60))


@pytest.mark.parametrize("unit", [1e30, 1e290])
def test_the_test_for_clients_that_differ_does_not_depend_on_the_unit_of_weights(unit):
    X = np.random.default_rng(0).standard_normal((90, 4)) * [4, 3, 2, 1]
    model = PersonalizedPCA(1, 1, n_clients=3)
    found = model.fit(X, sample_weight=np.full(90, unit)).components_
    assert_allclose(np.abs(found), np.abs(model.fit(X).components_), atol=1e-9)


@pytest.mark.parametrize("model", [FederatedPCA(2), DistributedPCA(2), OnlineDistributedPCA(2)])
def test_float32_that_overflows_names_the_largest_client(model):
    X, clients = rows(0.0)
    X[20:40] += 5e18 * np.sign(np.arange(20) - 9.5)[:, None]
    with pytest.raises(ValueError, match=r"^Client 'b': .*too large"):
        model.fit((8 * X).astype(np.float32), clients=clients)


@pytest.mark.parametrize("robust", [True, False])
@pytest.mark.parametrize("value", [1e155, 1e200])
def test_a_tracker_names_its_client(robust, value):
    X, clients = rows(value)
    tracker = FederatedSubspaceTracker(2, batch_size=60, robust=robust, random_state=0)
    with pytest.raises(ValueError, match=r"^Client 'b': .*too large"):
        tracker.fit(X, clients=clients)
    good = np.random.default_rng(1).standard_normal((60, 4))
    tracker.fit(good, clients=clients)
    with pytest.raises(ValueError, match=r"^Client 'b': .*too large"):
        tracker.partial_fit(X, clients=clients)


@pytest.mark.parametrize("method", ["vfedpca", "merge", "power"])
def test_columns_that_overflow_name_their_client(method):
    X = np.random.default_rng(0).standard_normal((30, 6))
    X[:, 2:4] *= 1e160
    with pytest.raises(ValueError, match=r"^Client 1: .*too large"):
        VerticalFederatedPCA(2, feature_groups=3, method=method, random_state=0).fit(X)
