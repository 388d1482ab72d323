"""`FederatedScaler` over Flower: the numbers of one process, and what sites and server refuse."""

import os

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from sklearn.preprocessing import StandardScaler

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from test_flower import grid_of, run
from test_hostile_sites import arrays, spoiling

from fedpca_sklearn import FederatedScaler
from fedpca_sklearn.engines.flower import SiteRows, partial_fit_sites

RNG = np.random.default_rng(0)
X = RNG.standard_normal((90, 3)) * [1, 5, 9] + [0, 1e3, 2]
HOLES = np.where(RNG.random(X.shape) < 0.3, np.nan, X)
CUTS = {"east": slice(0, 30), "north": slice(30, 50), "west": slice(50, 90)}


def parts(rows):
    return {site: rows[at] for site, at in CUTS.items()}


def assert_same(scaler, pooled):
    for name in ("mean_", "var_", "scale_"):
        assert_allclose(getattr(scaler, name), getattr(pooled, name), rtol=1e-12, err_msg=name)
    assert_allclose(scaler.n_samples_seen_, pooled.n_samples_seen_)


def test_it_is_the_scaler_of_the_pooled_rows():
    for rows in (X, HOLES):
        fitted = run(FederatedScaler(), parts(rows))
        assert_same(fitted, StandardScaler().fit(rows))
        assert fitted.clients_ == list(CUTS)
        assert fitted.communication_.floats_up == 3 * (10 if rows is X else 12)
        assert fitted.missing_sites_ == {}
    sparse = sp.csr_array(np.where(RNG.random(X.shape) < 0.5, X, 0))
    options = {"with_mean": False}
    fitted = run(FederatedScaler(**options), parts(sparse))
    assert_same(fitted, StandardScaler(**options).fit(sparse))


def test_names_weights_and_batches():
    weight = RNG.integers(1, 4, len(X))
    frame = pd.DataFrame(X, columns=list("abc"))
    rows = {site: SiteRows(frame[at], weight[at]) for site, at in CUTS.items()}
    fitted = run(FederatedScaler(), rows)
    assert_same(fitted, StandardScaler().fit(X, sample_weight=weight))
    assert list(fitted.feature_names_in_) == list("abc")
    batches = {site: [X[at][:12], X[at][12:]] for site, at in CUTS.items()}
    grid, scaler = grid_of(FederatedScaler(), batches, min_rows=5), FederatedScaler()
    for _ in range(2):
        scaler = partial_fit_sites(grid, scaler, wait=0)
    assert_same(scaler, StandardScaler().fit(X))


def test_a_site_does_not_tell_single_entries():
    few = X.copy()
    few[31:50, 2] = np.nan  # one entry is left to "north"
    with pytest.warns(UserWarning, match=r"'north'.*a column with fewer than min_rows=10"):
        fitted = run(FederatedScaler(), parts(few))
    assert_same(fitted, StandardScaler().fit(np.delete(few, np.r_[CUTS["north"]], axis=0)))


@pytest.mark.parametrize(
    ("at", "value", "words"),
    [
        ((0, 0), -1.0, "counts or sums of squares"),
        ((0, 0), 2.0**60, "counts or sums of squares"),
        ((3, 0), -1.0, "counts or sums of squares"),
        ((2, 0), 1e9, "rests are larger"),
        ((0, 0), 0.0, "columns without entries"),
        ((1, 0), 1e300, "too large"),
        ((1, 0), np.inf, "NaN or infinity"),
    ],
)
def test_what_no_rows_have_is_refused(at, value, words):
    def change(message, reply):
        moments = reply.content.array_records["arrays"]["moments"].numpy().copy()
        moments[at] = value
        return arrays(moments=moments)(message, reply)

    with pytest.warns(UserWarning, match=f"'west'.*{words}"):
        fitted = run(FederatedScaler(), parts(X), spoil=spoiling(change))
    assert_same(fitted, StandardScaler().fit(X[:50]))
