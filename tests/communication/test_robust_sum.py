"""RobustSum: messages that do not agree with the majority are left out of a round."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from fedpca_sklearn import (
    FederatedPowerPCA,
    FederatedSubspaceTracker,
    FedPowerNoise,
    PowerRounds,
    RobustSum,
    VerticalFederatedPCA,
    subspace_distance,
)

RNG = np.random.RandomState(0)


def messages(seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    common = rng.standard_normal((3, 20))
    return [
        n * (common + noise * rng.standard_normal((3, 20))) for n in (1.0, 2, 1, 3, 1, 0.5, 1, 1, 4)
    ]


LIES = {
    "sign": lambda m: -m,
    "length": lambda m: 1e9 * m,
    "other": lambda m: np.roll(m, 7, axis=1),
    "zero": lambda m: 0 * m,
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("liars", [{2}, {0, 2, 3, 8}])
def test_lies_are_left_out(lie, liars):
    sent = [LIES[lie](m) if i in liars else m for i, m in enumerate(messages())]
    channel = RobustSum()
    total, n_sent = channel.receive(iter(sent), RNG)
    assert_allclose(total, sum(m for i, m in enumerate(sent) if i not in liars), rtol=1e-12)
    assert n_sent == 9
    assert set(channel.suspects_) == liars


def test_honest_messages_add_up_whatever_their_lengths():
    for seed in range(20):
        sent, channel = messages(seed, noise=0.5), RobustSum()
        assert_allclose(channel.receive(sent, RNG)[0], sum(sent), rtol=1e-12)
        assert channel.suspects_ == {}
    for sent in ([], [np.ones(3)], [np.ones(3), -np.ones(3)], [np.zeros(3)] * 5):
        total, n = RobustSum().receive(sent, RNG)
        assert n == len(sent)
        assert total is None if not sent else np.array_equal(total, np.sum(sent, axis=0))


def test_who_was_apart_in_most_rounds_stays_out():
    honest, channel = messages(), RobustSum()
    lying = [-m if i == 3 else m for i, m in enumerate(honest)]
    for _ in range(2):
        channel.receive(lying, RNG)
    total, _ = channel.receive(honest, RNG)
    assert_allclose(total, sum(m for i, m in enumerate(honest) if i != 3), rtol=1e-12)
    channel.receive(honest, RNG)  # two of four: believed again
    assert channel.suspects_ == {}


def site_rows(liars=()):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((900, 10)) * [5, 4, 1, 1, 1, 1, 1, 1, 1, 1] + 3
    sites = np.repeat([f"s{i}" for i in range(9)], 100)
    for liar in liars:
        X[sites == liar] = 30 * X[sites == liar][:, ::-1]
    return X, sites


def test_rounds_hold_without_the_liars():
    model = FederatedPowerPCA(2, channel=RobustSum(), n_rounds=20, random_state=0)
    liars = ["s1", "s4", "s5", "s8"]
    X, sites = site_rows(liars)
    pca = clone(model).fit(X, clients=sites)
    assert sorted(pca.suspects_) == liars
    left = ~np.isin(sites, liars)
    alone = clone(model).set_params(channel=None).fit(X[left], clients=sites[left])
    assert subspace_distance(pca.components_, alone.components_) < 1e-5
    assert_allclose(pca.mean_, alone.mean_)
    assert_allclose(pca.explained_variance_, alone.explained_variance_, rtol=1e-6)
    assert not hasattr(model.channel, "suspects_")
    again = pca.fit(*site_rows()[:1], clients=sites)  # refitted: nothing is remembered
    assert again.suspects_ == {}
    assert not hasattr(pca.set_params(channel=None).fit(X, clients=sites), "suspects_")


def test_sums_that_hide_or_are_not_alike_refuse_it():
    X, sites = site_rows()
    noise = FedPowerNoise(1.0, 1e-3, 30.0, trust="sum")
    with pytest.raises(ValueError, match=r"trust='sum' hides the messages.*RobustSum\(\) compares"):
        FederatedPowerPCA(2, channel=RobustSum(), mechanism=noise).fit(X, clients=sites)
    for model in (
        FederatedSubspaceTracker(2, channel=RobustSum()),
        VerticalFederatedPCA(2, method=PowerRounds(channel=RobustSum())),
    ):
        with pytest.raises(ValueError, match=r"RobustSum\(\) compares .* for FederatedPowerPCA"):
            model.fit(X)
    with pytest.raises(ValueError, match="max_bad=5 must be fewer than half of the 9 clients"):
        FederatedPowerPCA(2, channel=RobustSum(5)).fit(X, clients=sites)
    assert_array_equal(RobustSum(0).receive([np.ones(2), -9 * np.ones(2)], RNG)[0], [-8, -8])
