"""`FederatedScaler` with `ScalerNoise`: sensitivity, cost, and what it finds of unknown rows."""

import math
import re

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from privacy_helpers import near_bounds
from sklearn.base import clone

from fedpca_sklearn import (
    FederatedScaler,
    PrivacyBudgetError,
    PrivacyLedger,
    make_spiked,
)
from fedpca_sklearn.privacy import DiscreteGaussian, PrivacyBoundWarning, ScalerNoise
from fedpca_sklearn.privacy._gaussian import mu_of

pytestmark = near_bounds
inf = math.inf
UNITS = np.array([1e-2, 1.0, 3.0, 500.0])
LEVELS = np.array([1.0, 0.0, -200.0, 4000.0])
FREE = ScalerNoise(inf, 1e-5)


def rows_of(n=20_000, seed=0):
    return LEVELS + UNITS * np.random.default_rng(seed).standard_normal((n, len(UNITS)))


def scaler_of(mechanism, n_clients=1, **options):
    return FederatedScaler(mechanism=mechanism, n_clients=n_clients, random_state=0, **options)


# ------------------------------------------------------------------------------ sensitivity

entries = st.one_of(st.floats(-1e5, 1e5), st.sampled_from([0.0, 1e-3, -1e4, 1e300, -1e300, 5e-324]))


@settings(max_examples=150)
@given(
    st.lists(st.tuples(entries, entries, entries), min_size=3, max_size=3),
    st.lists(st.floats(1e-3, 1e4), min_size=3, max_size=3),
    st.booleans(),
)
def test_a_replaced_row_moves_sums_no_further_than_is_stated(rows, w, one_scale):
    """Whatever a server chooses as point and lengths: counts sqrt(2 G), sums 2 sqrt(G)."""
    mechanism, (*both, point) = ScalerNoise(inf, 1e-5, one_scale=one_scale), np.array(rows)
    G = 1 if one_scale else 3
    for kind, more, most in (
        ("counts", (), math.sqrt(2 * G)),
        ("sums", (np.array(w[:G]),), 2 * G**0.5),
    ):
        given = {"n_shares": 1, "rng": np.random.default_rng(0)}
        here, there = (mechanism._message(kind, X[None], 0, point, *more, **given) for X in both)
        assert np.isfinite(here).all()
        assert np.linalg.norm(here - there) <= most * (1 + 1e-12)


@pytest.mark.parametrize("one_scale", [False, True])
def test_the_bounds_on_what_a_row_moves_are_reached(one_scale):
    mechanism, G = ScalerNoise(inf, 1e-5, one_scale=one_scale), 1 if one_scale else 3
    here = np.array([[2.0, 0.0, 0.0]]) if one_scale else np.full((1, 3), 2.0)
    given, at = {"n_shares": 1, "rng": np.random.default_rng(0)}, np.zeros(3)
    counts = [mechanism._message("counts", X, 0, at, **given) for X in (here, 9 * here)]
    assert_allclose(np.linalg.norm(counts[0] - counts[1]), math.sqrt(2 * G))
    sums = [mechanism._message("sums", X, 0, at, np.ones(G), **given) for X in (here, -here)]
    assert_allclose(np.linalg.norm(sums[0] - sums[1]), 2 * math.sqrt(G))


# ------------------------------------------------------------------------------ cost and noise


@pytest.mark.parametrize("noise", [None, DiscreteGaussian()])
@pytest.mark.parametrize("trust", ["client", "sum"])
@pytest.mark.parametrize("one_scale", [False, True])
def test_all_sums_together_cost_the_budget(noise, trust, one_scale, tmp_path):
    ledger = PrivacyLedger(tmp_path / "ledger")
    options = {"noise": noise, "trust": trust, "one_scale": one_scale, "ledger": ledger}
    scaler = scaler_of(ScalerNoise(2.0, 1e-5, **options), 4).fit(rows_of(400))
    epsilon, delta = scaler.privacy_spent_
    assert 1.99 < epsilon <= 2.0 * (1 + 1e-9)
    assert delta == 1e-5
    with pytest.raises(PrivacyBudgetError):
        clone(scaler).fit(rows_of(400))


@pytest.mark.parametrize(("trust", "n_clients"), [("client", 1), ("sum", 4)])
def test_noise_has_the_size_that_its_cost_is_stated_for(trust, n_clients):
    """mu^2 of Gaussian noise is (sensitivity / deviation)^2, with the deviation of all shares."""
    mechanism, d, cost = ScalerNoise(1.0, 1e-5, trust=trust), 4, 0.0
    given = {"n_shares": n_clients, "rng": np.random.default_rng(0)}
    for turn in range(3):
        for kind, more, moved in (("counts", (), 2 * d), ("sums", (np.ones(d),), 4 * d)):
            asked = (kind, np.zeros((1, d)), turn, np.zeros(d), *more)
            exact = FREE._message(*asked, **given)
            of_noise = np.ravel(
                [
                    sum(mechanism._message(*asked, **given) - exact for _ in range(n_clients))
                    for _ in range(max(30, 8000 // exact.size))
                ]
            )
            assert abs(of_noise.mean()) < 5 * of_noise.std() / math.sqrt(of_noise.size)
            cost += moved / of_noise.var()
    # five deviations of a variance
    assert_allclose(cost, mu_of(1.0, 1e-5) ** 2, rtol=5 * math.sqrt(2 / 8000))


def test_what_was_released_stays_charged_after_an_error():
    scaler = scaler_of(ScalerNoise(1.0, 1e-5), 2)
    rows = rows_of(100)
    rows[70] = np.nan
    with pytest.raises(ValueError, match="Client 1"):
        scaler.fit(rows)
    assert not hasattr(scaler, "scale_")
    scaler.fit(rows[:60])
    for mechanism in (scaler.mechanism, None):
        with pytest.raises(ValueError, match="does not go on"):
            scaler.set_params(mechanism=mechanism).partial_fit(rows[:60])
    with pytest.raises(ValueError, match="sample_weight"):
        scaler_of(FREE).fit(rows[:60], sample_weight=np.ones(60))
    assert not hasattr(FederatedScaler().fit(rows[:60]), "privacy_spent_")


# ------------------------------------------------------------------------------ what it finds


@pytest.mark.parametrize(("trust", "n_clients"), [("client", 1), ("client", 3), ("sum", 10)])
@pytest.mark.parametrize("seed", range(3))
def test_scales_of_columns_of_any_unit_and_level_are_found(trust, n_clients, seed):
    """Of normal columns few rows are beyond the lengths: 2 %, or what noise may look like."""
    X = rows_of(60_000, seed)
    scaler = scaler_of(ScalerNoise(2.0, 1e-6, trust=trust), n_clients).fit(X)
    assert_allclose(scaler.scale_, UNITS, rtol=0.1)
    assert (np.abs(scaler.mean_ - LEVELS) < 0.1 * UNITS).all()
    assert_array_equal(scaler.scale_, np.sqrt(scaler.var_))
    Z = scaler.transform(X)
    assert_allclose(Z, (X - scaler.mean_) / scaler.scale_)
    assert_allclose(scaler.inverse_transform(Z), X)


@pytest.mark.parametrize("of", [sp.csr_array, np.float32])
def test_sparse_and_float32_rows_are_as_dense_ones(of):
    dense = np.random.default_rng(0).poisson(0.5, (5000, 6)).astype(float)
    expected = scaler_of(ScalerNoise(1.0, 1e-5), with_mean=False).fit(dense)
    found = clone(expected).fit(of(dense) if of is sp.csr_array else dense.astype(of))
    assert_allclose(found.scale_, expected.scale_)
    assert found.mean_ is None or np.allclose(found.mean_, expected.mean_)


def test_edges_constant_columns_one_row_and_bounds():
    X = np.column_stack([np.full(20_000, 5.0), rows_of()[:, 1]])
    scaler = scaler_of(FREE).fit(X)
    assert scaler.scale_[0] == 1.0
    assert_allclose(scaler.mean_[0], 5.0)
    one = scaler_of(FREE).fit(X[:1])
    assert_allclose(one.mean_, X[0], atol=1e-3)
    with pytest.warns(PrivacyBoundWarning, match="upper one of its bounds"):
        scaler_of(ScalerNoise(inf, 1e-5, bounds=(1e-3, 1.0))).fit(rows_of())
    with pytest.warns(PrivacyBoundWarning, match="rows are too few"):
        scaler_of(ScalerNoise(0.5, 1e-5)).fit(rows_of(100))


def test_no_row_of_half_a_million_times_the_others_moves_a_scale():
    X = rows_of()
    wild = X.copy()
    wild[7] = 1e9
    found, expected = (scaler_of(FREE).fit(rows).scale_ for rows in (wild, X))
    assert_allclose(found, expected, rtol=1e-2)


def test_without_noise_only_cutting_is_left():
    """Lengths are at least where 2 % of normal entries are beyond: what is cut has .97 of it."""
    X = rows_of()
    scaler = scaler_of(FREE, 3).fit(X)
    assert (scaler.scale_ < X.std(axis=0) * (1 + 1e-9)).all()
    assert (scaler.scale_ > 0.97 * X.std(axis=0)).all()
    assert scaler.privacy_spent_.epsilon == inf
    assert_array_equal(scaler_of(FREE, 7).fit(X).scale_.round(9), scaler.scale_.round(9))


def test_one_scale_leaves_most_of_the_squares_of_rows():
    """Four fifths, where bins are half a doubling wide and norms are told to .84 to 1.19."""
    X, _ = make_spiked(20_000, 30, spikes=[9.0, 4.0], random_state=0)
    scaler = scaler_of(ScalerNoise(1.0, 1e-5, one_scale=True)).fit(7 * X + 100)
    assert len(np.unique(scaler.scale_)) == 1
    left = np.minimum(np.square(scaler.transform(7 * X + 100)).sum(axis=1) / 30, 1).mean()
    assert abs(left - 0.8) < 0.1
    Y = X / np.linalg.norm(X, axis=1, keepdims=True)  # equal norms, which are hardly cut
    scaler = scaler_of(ScalerNoise(inf, 1e-5, one_scale=True)).fit(7 * Y)
    assert 0.84 < scaler.scale_[0] * np.sqrt(30) / (7 * np.sqrt(1.25)) < 1.2


# ------------------------------------------------------------------------------ before a PCA


@pytest.mark.parametrize(("trust", "factor"), [("client", 2), ("sum", 1)])
def test_a_search_of_clients_with_noise_each_needs_rows_for_all_of_it(trust, factor):
    """Noise of four clients is twice that of one; with a sum they share that of one."""
    needed = []
    for n_clients in (1, 4):
        with pytest.warns(PrivacyBoundWarning, match="too few") as caught:
            scaler_of(ScalerNoise(1.0, 1e-5, trust=trust), n_clients).fit(rows_of(100))
        told = (re.search(r"needs some (\d+)", str(warning.message)) for warning in caught)
        needed += [float(found[1]) for found in told if found]
    assert_allclose(needed[1], factor * needed[0], rtol=0.01)


def test_noise_in_any_of_many_bins_is_no_entry():
    """Of 480 counts the largest noise is 3.5 deviations: taken for entries, it made scales of some
    columns 50 times too large. A quarter more or less is what few rows and short lengths leave.
    """
    rng = np.random.default_rng(0)
    X = rng.standard_normal((5000, 10)) * np.logspace(-1, 1, 10) + np.arange(10)
    for seed in range(8):
        scaler = FederatedScaler(mechanism=ScalerNoise(1.0, 1e-6), n_clients=1, random_state=seed)
        assert_allclose(np.log(scaler.fit(X).scale_ / X.std(axis=0)), 0, atol=np.log(1.25))


def test_a_call_that_goes_on_after_a_failed_fit_pays_for_both(monkeypatch):
    scaler = scaler_of(ScalerNoise(4.0, 1e-5))
    with monkeypatch.context() as fails:
        fails.setattr(FederatedScaler, "_show", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            scaler.fit(rows_of())
    with pytest.raises(PrivacyBudgetError, match="no budget left for one more release"):
        scaler.partial_fit(rows_of())
    assert scaler.fit(rows_of()).privacy_spent_.epsilon == pytest.approx(4.0)  # begins anew
