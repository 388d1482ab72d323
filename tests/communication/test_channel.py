"""Channels: what arrives of the messages of many clients; numbers as integers in a ring."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from helpers import arrays_in, leading, sine
from numpy.testing import assert_allclose, assert_array_equal
from rounds_helpers import (
    EXACT,
    MARGIN,
    Recorder,
    assert_equals_pca,
    exact,
    labels,
    record,
    rows,
)
from sklearn.base import clone
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    FadingChannel,
    FederatedPowerPCA,
    FixedPointChannel,
    GaussianChannel,
    PerfectChannel,
    VerticalFederatedPCA,
    make_power_law,
    subspace_distance,
)
from fedpca_sklearn.communication import Channel
from fedpca_sklearn.communication._channel import (
    LARGEST,
    LEAST,
    decode,
    encode,
    exponent_of,
)
from fedpca_sklearn.vertical import PowerRounds


@pytest.fixture
def recorded():
    yield from record()


def received(channel, *messages, seed=0):
    """What arrives, and how many sent."""
    arrays = (np.array(message, dtype=float) for message in messages)
    return channel.receive(arrays, np.random.RandomState(seed))


# ------------------------------------------------------------------------------------- channels

CHANNELS = {
    "perfect": PerfectChannel(),
    "fixed point": FixedPointChannel(),
    "gaussian": GaussianChannel(0.1),
    "fading": FadingChannel(0.1),
    "late": FadingChannel(0.1, pilot_std=0.1, max_power=2, max_delay=3, padding=1),
    "dropout": GaussianChannel(0.1, dropout=0.3),
}


@pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS)
def test_channels_repeat_themselves_and_neither_keep_nor_write_messages(channel):
    X, codes = rows(), labels(120, 4)
    model = FederatedPowerPCA(3, n_rounds=8, channel=channel, random_state=5)
    one, two = (clone(model).fit(X, clients=codes) for _ in range(2))
    assert_array_equal(one.components_, two.components_)
    assert one.communication_ == two.communication_
    assert_array_equal(model.fit(X, clients=codes).fit(X, clients=codes).mean_, one.mean_)
    if type(channel) not in (PerfectChannel, FixedPointChannel):
        other = clone(model).set_params(random_state=6).fit(X, clients=codes)
        assert not np.array_equal(other.mean_, one.mean_)
    messages = [np.arange(12.0).reshape(3, 4) + i for i in range(4)]
    before = [m.copy() for m in messages]
    total, _ = channel.receive(messages, np.random.RandomState(1))
    assert total.shape == (3, 4)
    assert_array_equal(messages, before)
    assert not any(np.shares_memory(total, m) for m in messages)
    assert not list(arrays_in(vars(channel)))
    assert channel.receive([], np.random.RandomState(0)) == (None, 0)


def test_channels_may_be_added_and_sums_of_float32_are_float64():
    class Half(Channel):
        def receive(self, messages, rng):
            messages = list(messages)
            return 0.5 * np.sum(messages, axis=0), len(messages)

    X = rows(mean=0.0)
    model = exact(center=False, channel=Half()).fit(X)
    assert sine(model.components_, leading(X, 3)) < 1e-8
    total, _ = PerfectChannel().receive([np.ones(2, np.float32)] * 2, np.random.RandomState(0))
    assert total.dtype == np.float64
    with pytest.raises(TypeError, match="abstract"):
        Channel()


def one_each(channel, n, size=1, seed=0):
    """What arrives of n clients with messages of ones: the sum, and how many sent."""
    return received(channel, *np.ones((n, size)), seed=seed)


@pytest.mark.parametrize(("power", "pilot"), [(0.3, 0), (10.0, 0), (2.0, 0.3)])
def test_share_of_clients_whose_power_suffices_and_what_pilot_errors_cost(power, pilot):
    # given the estimate g, the gain is normal about g / (1 + pilot^2), of mean square error
    # pilot^2 / (1 + pilot^2), half of it along g: that is the mean of what arrives, and its
    # variance is at most half of that over |g|^2 >= 1 / max_power
    n = 8000
    total, n_sent = one_each(FadingChannel(0.0, pilot_std=pilot, max_power=power), n)
    shrunk, square = 1 / (1 + pilot**2), pilot**2 / (1 + pilot**2)
    margin = MARGIN * np.sqrt(square / 2 * power / n_sent)
    assert abs(total[0] / n_sent - shrunk) <= margin + 1e-12
    p = np.exp(-1 / (power * (1 + pilot**2)))  # estimates are larger than gains
    assert abs(n_sent - n * p) < MARGIN * np.sqrt(n * p * (1 - p))


@pytest.mark.parametrize("padding", [None, 0, 1, 3, 4, 9])
def test_late_messages_lose_their_last_entries_without_padding(padding):
    delay, n = 4, 2000
    lost = max(0, delay - padding) if padding is not None else 0
    channel = FadingChannel(0.0, max_power=1e9, max_delay=delay, padding=padding)
    total, n_sent = one_each(channel, n, 12)
    assert n_sent == n
    assert_allclose(total[: 12 - lost], n, rtol=1e-12)
    # the j-th from the end is lost to delays of at least padding + j, of 5 equally likely
    for j in range(1, lost + 1):
        p = (delay + 1 - padding - j) / (delay + 1)
        assert abs(n - total[-j] - n * p) < MARGIN * np.sqrt(n * p * (1 - p))
    for seed in range(20):
        alone, _ = one_each(channel, 1, 12, seed)
        of_one = round(12 - alone.sum())
        assert of_one <= lost
        assert_allclose(alone, [1.0] * (12 - of_one) + [0.0] * of_one, rtol=1e-12)
    short, n_sent = one_each(FadingChannel(0.0, max_power=1e9, max_delay=3, padding=0), 500, 2)
    assert n_sent == 500  # of shorter messages than the delay nothing is left, for half of them
    assert np.all(short < 300)
    for order in "CF":
        channel = FadingChannel(0.0, max_power=1e9, max_delay=2, padding=0)
        message = np.asarray(np.ones((3, 4)), order=order)
        total, _ = channel.receive([message] * 300, np.random.RandomState(0))
        assert_allclose(total.ravel()[:10], 300.0, rtol=1e-12)
        assert np.all(np.diff(total.ravel()[9:]) < 0)


# -------------------------------------------------------------------------------------- dropout


def test_clients_drop_out_with_the_given_probability():
    rng, p, k, n = np.random.RandomState(0), 0.3, 7, 3000
    here = np.array([PerfectChannel(p).present(k, t, rng) for t in range(n)])
    margin = MARGIN * np.sqrt(p * (1 - p) / n)
    assert np.all(np.abs(here.mean(axis=0) - (1 - p)) < margin)
    # independently of each other and of the round before
    corr = np.corrcoef(np.concatenate([here[1:], here[:-1]], axis=1).T)
    assert np.abs(corr - np.eye(2 * k)).max() < (MARGIN + 1) / np.sqrt(n)
    for never in (0.0, 0):
        assert PerfectChannel(never).present(100, 0, rng).all()


def test_a_schedule_is_kept_and_begun_again(recorded):
    schedule = np.array([[0, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1]])
    X, codes = rows(), labels(120, 3)
    pca = FederatedPowerPCA(2, n_rounds=9, tol=0, channel=Recorder(schedule))
    log, here = pca.fit(X, clients=codes).communication_.table, 3 - schedule.sum(axis=1)
    here = [here[t % 4] for t in range(11)]
    assert [len(m) for m in recorded] == [row["messages_up"] for row in log] == here
    assert [row["messages_down"] for row in log] == [0, *here[1:]]  # a basis
    counts = np.bincount(codes)
    assert [m[-1] for m in recorded[0]] == [counts[0], counts[2]]  # the mean: labels in order


@pytest.mark.parametrize("method", EXACT)
def test_rounds_without_anybody_are_survived_unless_nobody_ever_comes(method):
    X, schedule = rows(), np.zeros((7, 2), dtype=bool)
    schedule[[0, 3, 4]] = True
    model = exact(method=method, channel=PerfectChannel(schedule)).fit(X)
    assert_equals_pca(model, X)
    assert model.n_iter_ == len(model.changes_)
    assert np.isnan(model.changes_).any()
    # the mean took two rounds: the first had nobody
    assert model.communication_.rounds >= model.n_iter_ + 3
    first = model.communication_.table[0]
    assert (first["messages_up"], first["floats_down"]) == (0, 0)
    for center in (True, False):
        model = exact(2, method, center=center, channel=PerfectChannel(np.ones((1, 2))))
        with pytest.raises(ValueError, match="channel: no client took part in 100 rounds"):
            model.fit(X)
        assert not hasattr(model, "components_")


# -------------------------------------------------------------------------------- fixed point


def test_numbers_are_rounded_to_the_nearest_multiple():
    """Against exact fractions."""
    for bits, exponent in product([22, 50, 60], [LEAST, -3, 0, 40, LARGEST]):
        x = np.random.default_rng(0).uniform(-1, 1, 50) * 2.0**exponent
        x[:3] = 0, 2.0**exponent, -(2.0**exponent)
        step = Fraction(2) ** (exponent - bits)
        expected = [round(Fraction(v) / step) for v in x.tolist()]
        integers = encode(x, exponent, bits)
        assert integers.dtype == np.uint64
        assert integers.view(np.int64).tolist() == expected, (bits, exponent)
        assert_array_equal(decode(integers, exponent, bits), [float(n * step) for n in expected])
    for value, least in {1: 0, 1.0001: 1, 0.5: -1, -3.0: 2, 0.0: LEAST, 1e-300: LEAST}.items():
        assert exponent_of(float(value)) == least


def test_what_does_not_fit_is_refused_and_not_clipped():
    for values in ([1.0, 2.0001], [-2.0001], [np.inf], [np.nan]):
        with pytest.raises(ValueError, match=r"a number is not within the scale$"):
            encode(np.array(values), 1, 50)
    with pytest.raises(ValueError, match=r"numbers above 2\^983 cannot be added up"):
        exponent_of(np.array([1.0, -(2.0**984)]))
    for wrong in ({"bits": 21}, {"scale": 0.0}):
        with pytest.raises(ValueError, match=f"'{next(iter(wrong))}' parameter"):
            FixedPointChannel(**wrong).validate()
    with pytest.raises(ValueError, match="bits=60 leaves no room to add up 8 messages in 64 bits"):
        received(FixedPointChannel(60), *[[1.0]] * 8)
    assert received(FixedPointChannel(60), *[[1.0]] * 7) == (7, 7)
    with pytest.raises(ValueError, match="a number is not within the scale"):
        received(FixedPointChannel(22, scale=5.0), [1.0], [8.1])
    coarse = FixedPointChannel(22, scale=2.0**30)  # multiples of 256
    with pytest.raises(
        ValueError, match="the last entry of a message, which counts rows, is round"
    ):
        received(coarse, [1024.0, 7.0])
    assert received(coarse, [7.0, 1024.0])[0].tolist() == [0.0, 1024.0]


def test_the_sum_is_that_of_the_rounded_messages():
    rng = np.random.default_rng(1)
    messages = [rng.standard_normal((3, 4)) * 10.0**i for i in range(5)]
    total, n = received(FixedPointChannel(bits=30), *messages)
    assert n == 5
    step = 2.0 ** (exponent_of(np.array(messages)) - 30)
    assert_array_equal(total, sum(np.rint(m / step) for m in messages) * step)
    # a count keeps its digits beside large sums
    total, _ = received(FixedPointChannel(), [3e30, 1e30, 100], [-1e30, 1.0, 17])
    assert total[-1] == 117
    assert_allclose(total[:2], [2e30, 1e30], rtol=1e-14)
    public = FixedPointChannel(22, scale=5.0)  # up to 8
    assert_array_equal(received(public, [8.0, -8.0], [0.0, -8.0])[0], [8.0, -16.0])
    assert received(public, [2.0**-21, 0.0])[0][0] == 2.0**-19 * round(2.0**-21 / 2.0**-19)


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_the_default_is_as_good_as_floats(shift):
    X = make_power_law(400, 30, alpha=1.0, random_state=0) + shift
    pooled, error = PCA(4, svd_solver="full").fit(X), []
    for channel in (PerfectChannel(), FixedPointChannel(), FixedPointChannel(22)):
        pca = FederatedPowerPCA(4, channel=channel, tol=1e-9, random_state=0).fit(X)
        error.append(subspace_distance(pca.components_, pooled.components_))
        assert (pca.stop_reason_ == "tol") == (getattr(channel, "bits", 50) > 22)
    perfect, default, coarse = error
    assert default < 1.1 * perfect + 1e-12
    assert 1e-8 < coarse < 1e-4
    methods = [PowerRounds(channel=c) for c in (None, FixedPointChannel())]
    one, two = (VerticalFederatedPCA(3, method=m, random_state=0).fit(X.T) for m in methods)
    assert subspace_distance(one.components_, two.components_) < 1e-8
