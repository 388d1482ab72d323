"""Channels: what arrives of the messages of many clients."""

import numpy as np
import pytest
from helpers import arrays_in, leading, sine
from numpy.testing import assert_allclose, assert_array_equal
from rounds_helpers import (
    EXACT,
    MARGIN,
    Recorder,
    about_origin,
    assert_equals_pca,
    exact,
    labels,
    record,
    rows,
)
from sklearn.base import clone

from fedpca_sklearn import (
    FadingChannel,
    FederatedPowerPCA,
    FixedPointChannel,
    GaussianChannel,
    PerfectChannel,
)
from fedpca_sklearn.communication import Channel


@pytest.fixture
def recorded():
    yield from record()


CHANNELS = {
    "perfect": PerfectChannel(),
    "fixed point": FixedPointChannel(),
    "gaussian": GaussianChannel(0.1),
    "fading": FadingChannel(0.1, pilot_std=0.1, max_power=2, max_delay=3, padding=1),
    "dropout": GaussianChannel(0.1, dropout=0.3),
}

every_channel = pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS)


# ------------------------------------------------------------------------------------- channels


@every_channel
def test_channels_repeat_themselves_with_random_state(channel):
    X, codes = rows(), labels(120, 4)
    model = FederatedPowerPCA(3, n_rounds=8, channel=channel, random_state=5)
    one, two = (clone(model).fit(X, clients=codes) for _ in range(2))
    assert_array_equal(one.components_, two.components_)
    assert one.communication_ == two.communication_
    assert_array_equal(model.fit(X, clients=codes).fit(X, clients=codes).mean_, one.mean_)
    if type(channel) not in (PerfectChannel, FixedPointChannel):
        other = clone(model).set_params(random_state=6).fit(X, clients=codes)
        assert not np.array_equal(other.mean_, one.mean_)


@every_channel
def test_channels_neither_keep_nor_write_messages(channel):
    messages = [np.arange(12.0).reshape(3, 4) + i for i in range(4)]
    before = [m.copy() for m in messages]
    total, _ = channel.receive(messages, np.random.RandomState(1))
    assert total.shape == (3, 4)
    assert_array_equal(messages, before)
    assert not any(np.shares_memory(total, m) for m in messages)
    assert not list(arrays_in(vars(channel)))


@every_channel
def test_nothing_is_received_from_nobody(channel):
    assert channel.receive([], np.random.RandomState(0)) == (None, 0)


def test_sums_of_float32_are_float64():
    total, _ = PerfectChannel().receive([np.ones(2, np.float32)] * 2, np.random.RandomState(0))
    assert total.dtype == np.float64


def test_a_channel_of_no_kind_is_refused():
    with pytest.raises(TypeError, match="abstract"):
        Channel()


def test_channels_may_be_added():
    class Half(Channel):
        def receive(self, messages, rng):
            messages = list(messages)
            return 0.5 * np.sum(messages, axis=0), len(messages)

    X = rows(mean=0.0)
    model = exact(center=False, channel=Half()).fit(X)
    assert sine(model.components_, leading(X, 3)) < 1e-8


def one_each(channel, n, size=1, seed=0):
    """What arrives of n clients with messages of ones: the sum, and how many sent."""
    return channel.receive((np.ones(size) for _ in range(n)), np.random.RandomState(seed))


@pytest.mark.parametrize("power", [0.3, 1.0, 10.0])
def test_share_of_clients_whose_power_suffices(power):
    n, p = 20_000, np.exp(-1 / power)
    total, n_sent = one_each(FadingChannel(0.0, max_power=power), n)
    assert abs(n_sent - n * p) < MARGIN * np.sqrt(n * p * (1 - p))
    assert_allclose(total, n_sent, rtol=1e-12)  # perfect pilots: the sum of those


def test_perfect_pilots_give_the_sum_of_those_that_send():
    # message i is 2^i: the sum tells who sent
    channel = FadingChannel(0.0, max_power=1.0)
    for seed in range(20):
        messages = [np.full((2, 3), 2.0**i) for i in range(12)]
        total, n_sent = channel.receive(messages, np.random.RandomState(seed))
        if total is not None:
            whole = round(total[0, 0])
            assert_allclose(total, whole, rtol=1e-12)
            assert whole.bit_count() == n_sent


@pytest.mark.parametrize("pilot", [0.05, 0.3])
def test_effect_of_pilot_errors(pilot):
    # given the estimate g, the gain is normal about g / (1 + pilot^2), of mean square error
    # pilot^2 / (1 + pilot^2), half of it along g: that is the mean of what arrives, and its
    # variance is at most half of that over |g|^2 >= 1 / max_power
    n, power = 20_000, 2.0
    channel = FadingChannel(0.0, pilot_std=pilot, max_power=power)
    total, n_sent = one_each(channel, n)
    shrunk, square = 1 / (1 + pilot**2), pilot**2 / (1 + pilot**2)
    margin = MARGIN * np.sqrt(square / 2 * power / n_sent)
    assert abs(total[0] / n_sent - shrunk) < margin
    p = np.exp(-1 / (power * (1 + pilot**2)))  # estimates are larger than gains
    assert abs(n_sent - n * p) < MARGIN * np.sqrt(n * p * (1 - p))


def test_pilot_errors_of_a_common_scatter_cancel():
    # all clients alike: the sum is a multiple of the scatter of one, and its subspace exact
    X = np.concatenate([rows(30, mean=0.0)] * 4)
    channel = FadingChannel(0.0, pilot_std=0.2, max_power=2)
    model = FederatedPowerPCA(3, center=False, n_rounds=50, channel=channel, random_state=0)
    model.fit(X, clients=np.repeat(range(4), 30))
    assert sine(model.components_, leading(X, 3)) < 1e-8


@pytest.mark.parametrize("padding", [None, 4, 9])
def test_late_messages_arrive_whole_with_enough_padding(padding):
    channel = FadingChannel(0.0, max_power=1e9, max_delay=4, padding=padding)
    total, n_sent = one_each(channel, 100, 7)
    assert n_sent == 100
    assert_allclose(total, np.full(7, 100.0), rtol=1e-12)


@pytest.mark.parametrize("padding", [0, 1, 3])
def test_late_messages_lose_their_last_entries_with_less(padding):
    delay, n = 4, 2000
    channel = FadingChannel(0.0, max_power=1e9, max_delay=delay, padding=padding)
    total, _ = one_each(channel, n, 12)
    assert_allclose(total[: 12 - (delay - padding)], n, rtol=1e-12)
    # the j-th from the end is lost to delays of at least padding + j, of 5 equally likely
    for j in range(1, delay - padding + 1):
        p = (delay + 1 - padding - j) / (delay + 1)
        assert abs(n - total[-j] - n * p) < MARGIN * np.sqrt(n * p * (1 - p))
    for seed in range(20):
        alone, _ = one_each(channel, 1, 12, seed)
        lost = round(12 - alone.sum())
        assert lost <= delay - padding
        assert_allclose(alone, [1.0] * (12 - lost) + [0.0] * lost, rtol=1e-12)


@pytest.mark.parametrize("order", ["C", "F"])
def test_late_messages_of_any_layout_lose_their_last_entries(order):
    channel = FadingChannel(0.0, max_power=1e9, max_delay=2, padding=0)
    message = np.asarray(np.ones((3, 4)), order=order)
    total, _ = channel.receive([message] * 300, np.random.RandomState(0))
    assert_allclose(total.ravel()[:10], 300.0, rtol=1e-12)
    assert np.all(np.diff(total.ravel()[9:]) < 0)


def test_messages_shorter_than_the_delay_are_lost():
    channel = FadingChannel(0.0, max_power=1e9, max_delay=50, padding=0)
    total, n_sent = one_each(channel, 500, 2)
    assert n_sent == 500
    assert np.all(total < 100)


def test_a_round_in_which_all_links_fade_is_survived():
    X, codes = rows(mean=0.0), labels(120, 2)
    channel = FadingChannel(0.0, max_power=0.4)  # both fade in 84 % of the rounds
    model = exact(3, "power", center=False, channel=channel).set_params(tol=0, n_rounds=60)
    model.fit(X, clients=codes)
    log = model.communication_.table
    assert np.isnan(model.changes_).sum() > 20
    silent = [row["messages_up"] == 0 for row in log[:60]]
    assert_array_equal(silent, np.isnan(model.changes_))
    assert all(row["floats_down"] == 2 * 24 for row in log)  # they do listen


# -------------------------------------------------------------------------------------- dropout


def test_clients_drop_out_with_the_given_probability():
    rng, p, k, n = np.random.RandomState(0), 0.3, 7, 3000
    here = np.array([PerfectChannel(p).present(k, t, rng) for t in range(n)])
    margin = MARGIN * np.sqrt(p * (1 - p) / n)
    assert np.all(np.abs(here.mean(axis=0) - (1 - p)) < margin)
    # independently of each other and of the round before
    corr = np.corrcoef(np.concatenate([here[1:], here[:-1]], axis=1).T)
    assert np.abs(corr - np.eye(2 * k)).max() < (MARGIN + 1) / np.sqrt(n)
    assert PerfectChannel(0.0).present(100, 0, rng).all()
    assert PerfectChannel(0).present(100, 0, rng).all()


def test_a_schedule_is_kept_and_begun_again(recorded):
    schedule = np.array([[0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1]])
    X, codes = rows(), labels(120, 3)
    FederatedPowerPCA(2, n_rounds=9, tol=0, channel=Recorder(schedule)).fit(X, clients=codes)
    assert len(recorded) == 11
    assert [len(m) for m in recorded] == [(3 - schedule.sum(axis=1))[t % 4] for t in range(11)]
    counts = np.bincount(codes)
    assert [m[-1] for m in recorded[0]] == [counts[0], counts[2]]  # the mean: labels in order


def test_a_client_comes_back():
    X, codes = rows(mean=0.0), labels(120, 3)
    schedule = np.zeros((80, 3), dtype=bool)
    schedule[:30, 1] = True
    for method in EXACT:
        model = exact(3, method, center=False, channel=PerfectChannel(schedule))
        if method == "power":
            model.set_params(tol=0, n_rounds=79)
        model.fit(X, clients=codes)
        if method == "power":
            assert sine(model.components_, leading(X, 3)) < 1e-8
    away = about_origin(3, 29, channel=PerfectChannel(schedule), random_state=0)
    away.fit(X, clients=codes)  # what is found without it is the subspace of the others
    assert sine(away.components_, leading(X[codes != 1], 3)) < 1e-8


def test_rounds_without_anybody_are_survived():
    X = rows()
    schedule = np.zeros((7, 2), dtype=bool)
    schedule[[0, 3, 4]] = True
    for method in EXACT:
        model = exact(method=method, channel=PerfectChannel(schedule)).fit(X)
        assert_equals_pca(model, X)
        assert model.n_iter_ == len(model.changes_)
        assert np.isnan(model.changes_).any()
        # the mean took two rounds: the first had nobody
        assert model.communication_.rounds >= model.n_iter_ + 3
        assert model.communication_.table[0]["messages_up"] == 0
        assert model.communication_.table[0]["floats_down"] == 0


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("method", EXACT)
def test_everybody_always_away_is_an_error(center, method):
    channel = PerfectChannel(np.ones((1, 2)))
    model = FederatedPowerPCA(2, center=center, n_rounds=5, channel=channel)
    model.set_params(acceleration=EXACT[method].get("acceleration"))
    with pytest.raises(ValueError, match="channel: no client took part in 100 rounds"):
        model.fit(rows())
    assert not hasattr(model, "components_")


@pytest.mark.parametrize("seed", range(5))
def test_dropout_costs_no_more_than_what_is_missing_over_the_gap(seed):
    # A - E in place of A, ||E|| <= e: the tangent t <= 1 becomes at most
    # (lambda_{r+1} t + sqrt(2) e) / (lambda_r - sqrt(2) e), with the fixed point below
    k, rng = 10, np.random.default_rng(seed)
    X = rng.standard_normal((2000, 8)) * [9, 8.5, 8, *[1] * 5]
    codes = np.arange(2000) % k
    schedule = np.eye(k, dtype=bool)[rng.integers(0, k, 40)]  # one of ten is away in each round
    values, vectors = np.linalg.eigh(X.T @ X)
    V = vectors[:, ::-1][:, :3].T
    e = np.sqrt(2) * max(np.linalg.norm(X[codes == i], 2) ** 2 for i in range(k))
    assert e < (values[-3] - values[-4]) / 4
    fixed = e / (values[-3] - values[-4] - e)
    shrinks = (values[-4] + 0) / (values[-3] - e)
    start = V + 0.5 * vectors[:, :3].T
    model = about_origin(3, 20, init=start, channel=PerfectChannel(schedule))
    error = sine(model.fit(X, clients=codes).components_, V)
    assert 0 < error < fixed + 0.5 * shrinks**20


def test_random_dropout_of_like_clients_keeps_the_subspace_close():
    X = np.concatenate([rows(300, mean=0.0)] * 5)  # alike: whoever is there, the subspace is exact
    model = FederatedPowerPCA(3, n_rounds=60, center=False, random_state=0)
    model.set_params(channel=PerfectChannel(dropout=0.5))
    model.fit(X, clients=np.repeat(range(5), 300))
    assert sine(model.components_, leading(X, 3)) < 1e-8
