"""Numbers as integers in a ring: how they are rounded, added and refused."""

from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    FederatedPowerPCA,
    FixedPointChannel,
    PerfectChannel,
    VerticalFederatedPCA,
    make_power_law,
    subspace_distance,
)
from fedpca_sklearn.communication._fixed_point import (
    LARGEST,
    LEAST,
    OutOfRangeError,
    decode,
    encode,
    exponent_of,
)
from fedpca_sklearn.vertical import PowerRounds

RNG = np.random.RandomState(0)


def received(channel, *messages):
    return channel.receive([np.array(m, dtype=float) for m in messages], RNG)[0]


@pytest.mark.parametrize("bits", [22, 50, 60])
@pytest.mark.parametrize("exponent", [LEAST, -3, 0, 40, LARGEST])
def test_numbers_are_rounded_to_the_nearest_multiple(bits, exponent):
    """Against exact fractions."""
    x = np.random.default_rng(0).uniform(-1, 1, 50) * 2.0**exponent
    x[:3] = 0, 2.0**exponent, -(2.0**exponent)
    step = Fraction(2) ** (exponent - bits)
    expected = [round(Fraction(v) / step) for v in x.tolist()]
    integers = encode(x, exponent, bits)
    assert integers.dtype == np.uint64
    assert integers.view(np.int64).tolist() == expected
    assert_array_equal(decode(integers, exponent, bits), [float(n * step) for n in expected])


def test_what_does_not_fit_is_refused_and_not_clipped():
    for values in ([1.0, 2.0001], [-2.0001], [np.inf], [np.nan]):
        with pytest.raises(OutOfRangeError, match=r"a number is not within the scale$"):
            encode(np.array(values), 1, 50)
    with pytest.raises(OutOfRangeError, match=r"numbers above 2\^983 cannot be added up"):
        exponent_of(np.array([1.0, -(2.0**984)]))


def test_the_least_exponent():
    for value, expected in {1.0: 0, 1.0001: 1, 0.5: -1, -3.0: 2, 0.0: LEAST, 1e-300: LEAST}.items():
        assert exponent_of(value) == expected


def test_the_sum_is_that_of_the_rounded_messages():
    rng = np.random.default_rng(1)
    messages = [rng.standard_normal((3, 4)) * 10.0**i for i in range(5)]
    total, n = FixedPointChannel(bits=30).receive(iter(messages), RNG)
    assert n == 5
    step = 2.0 ** (exponent_of(np.array(messages)) - 30)
    assert_array_equal(total, sum(np.rint(m / step) for m in messages) * step)


def test_a_count_keeps_its_digits_beside_large_sums():
    total = received(FixedPointChannel(), [3e30, 1e30, 100], [-1e30, 1.0, 17])
    assert total[-1] == 117
    assert_allclose(total[:2], [2e30, 1e30], rtol=1e-14)
    assert received(FixedPointChannel(), [5.0]) == 5


def test_a_public_scale():
    channel = FixedPointChannel(22, scale=5.0)  # up to 8
    assert_array_equal(received(channel, [8.0, -8.0], [0.0, -8.0]), [8.0, -16.0])
    assert received(channel, [2.0**-21, 0.0])[0] == 2.0**-19 * round(2.0**-21 / 2.0**-19)
    with pytest.raises(ValueError, match="a number is not within the scale"):
        received(channel, [1.0], [8.1])
    assert channel.receive([], RNG) == (None, 0)


def test_parameters_are_checked():
    for name, value in {"bits": 21, "scale": 0.0}.items():
        with pytest.raises(ValueError, match=f"'{name}' parameter"):
            FixedPointChannel(**{name: value}).validate()
    with pytest.raises(ValueError, match="bits=60 leaves no room to add up 8 messages in 64 bits"):
        received(FixedPointChannel(60), *[[1.0]] * 8)
    assert received(FixedPointChannel(60), *[[1.0]] * 7) == 7


@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_the_default_is_as_good_as_floats(shift):
    X = make_power_law(400, 30, alpha=1.0, random_state=0) + shift
    exact = PCA(4, svd_solver="full").fit(X)
    error = {}
    for channel in (PerfectChannel(), FixedPointChannel(), FixedPointChannel(22)):
        pca = FederatedPowerPCA(4, channel=channel, tol=1e-9, random_state=0).fit(X)
        error[repr(channel)] = subspace_distance(pca.components_, exact.components_)
        assert (pca.stop_reason_ == "tol") == (repr(channel) != "FixedPointChannel(bits=22)")
    perfect, default, coarse = error.values()
    assert default < 1.1 * perfect + 1e-12
    assert 1e-8 < coarse < 1e-4


def test_columns_at_clients_over_the_channel():
    X = make_power_law(200, 20, alpha=1.0, random_state=0)
    methods = [PowerRounds(channel=c) for c in (None, FixedPointChannel())]
    one, two = (VerticalFederatedPCA(3, method=m, random_state=0).fit(X) for m in methods)
    assert subspace_distance(one.components_, two.components_) < 1e-8
