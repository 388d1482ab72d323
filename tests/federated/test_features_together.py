"""Parameters that meet in one estimator, and summaries that were cut: what serves together."""

import pickle
import re
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import sine
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import scale

from fedpca_sklearn import (
    PETRELS,
    AnalyzeGauss,
    ConditionalFill,
    ContributionBounds,
    FederatedPCA,
    PersonalizedPCA,
    PrivacyNoiseWarning,
    ProjectionAverage,
    StreamingPCA,
    Subspace,
    SubspaceMerge,
)

X, CLASS = load_wine(return_X_y=True)
HOLES = np.where(np.random.default_rng(0).random(X.shape) < 0.1, np.nan, X)


@pytest.mark.parametrize(
    ("dtype", "merge"), [(np.float64, ProjectionAverage()), (np.float32, SubspaceMerge(fan_in=2))]
)
def test_sparse_rows_are_filled_as_dense_ones_and_stay_sparse(dtype, merge, monkeypatch):
    rows = np.where(np.abs(X - X.mean(axis=0)) < 0.5 * X.std(axis=0), 0, HOLES).astype(dtype)
    dense = FederatedPCA(2, missing=ConditionalFill(), merge=merge).fit(rows, clients=CLASS)
    monkeypatch.setattr("fedpca_sklearn._kernels.sizes.ENTRIES_AT_ONCE", 100)
    shapes, toarray = [], sp.csr_array.toarray
    monkeypatch.setattr(
        sp.csr_array, "toarray", lambda self: shapes.append(self.shape) or toarray(self)
    )
    given = sp.csr_array(rows)
    sparse = FederatedPCA(2, missing=ConditionalFill(), merge=merge).fit(given, clients=CLASS)
    tol = 1e-9 if dtype == np.float64 else 1e-3
    assert sine(sparse.components_, dense.components_) < tol
    assert_allclose(sparse.explained_variance_, dense.explained_variance_, rtol=tol)
    assert_allclose(sparse.noise_variance_, dense.noise_variance_, rtol=1e2 * tol)
    assert np.isnan(given.data).sum() == np.isnan(rows).sum()
    assert len(shapes) > 3


def test_a_tracker_at_clients_lets_the_fit_take_rows_with_missing_entries():
    rng = np.random.default_rng(0)
    V, sites = np.linalg.qr(rng.standard_normal((20, 2)))[0].T, np.repeat(range(3), 200)
    rows = rng.standard_normal((600, 2)) * [3, 2] @ V + 0.3 * rng.standard_normal((600, 20))
    lost = rng.random(rows.shape) < 0.2
    holes = np.where(lost, np.nan, rows)
    pca = FederatedPCA(2, estimator=PETRELS(2)).fit(holes, clients=sites)
    assert np.abs(pca.transform(holes) - pca.transform(rows)).mean() < 0.3
    full = pca.impute(holes)
    assert np.array_equal(full[~lost], rows[~lost])
    assert np.square(full - rows)[lost].mean() < 0.2 < 0.5 < np.square(rows)[lost].mean()
    assert np.isfinite(pca.score_samples(holes)).all()
    assert not hasattr(FederatedPCA(2, estimator=StreamingPCA(2)).fit(rows), "impute")
    with pytest.raises(ValueError, match="NaN"):  # coordinates of sites are of whole rows
        PersonalizedPCA(1, 1, estimator=PETRELS(2)).fit(holes, clients=sites).transform(holes)


@pytest.mark.parametrize("k", [8, 12])
def test_what_large_units_hide_of_a_cut_is_missed(k):
    """Beside proline directions 11 to 13 are 7e-7 of the variance, and hue is hardly more."""
    with pytest.raises(ValueError, match="column_scatter=None"):
        FederatedPCA(2, estimator=PCA(k), scale=True).fit(X, clients=CLASS)
    cut = StreamingPCA().fit(X).subspace_.truncate(k)
    with pytest.raises(ValueError, match=f"the summary keeps {k} of 13"):
        FederatedPCA.from_subspaces([cut], "mle")
    whole = FederatedPCA(2, estimator=PCA(), scale=True).fit(X, clients=CLASS)
    assert sine(whole.components_, PCA(2).fit(scale(X)).components_) < 1e-10


@pytest.mark.parametrize("adjusting", [{"scale": True}, {"partial_out": 0}])
def test_summaries_with_noise_of_privacy_are_not_adjusted(adjusting):
    mechanism = AnalyzeGauss(epsilon=10, delta=1e-3, row_norm=4)
    rows = (X - X.mean(axis=0)) / X.std(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyNoiseWarning)
        private = FederatedPCA(2, mechanism=mechanism, random_state=0).fit(rows, clients=CLASS)
    files = [Subspace.from_bytes(s.to_bytes()) for s in private.summaries_.values()]
    plain = StreamingPCA().fit(rows).subspace_
    for make in (
        lambda: FederatedPCA.from_subspaces(files, 2, **adjusting),
        lambda: FederatedPCA.from_subspaces([files[0], plain], 2, **adjusting),
        lambda: StreamingPCA.from_subspace(files[0], 2, **adjusting),
        lambda: private.set_params(mechanism=None, **adjusting).remove(0),
    ):
        with pytest.raises(ValueError, match="has the noise of a privacy mechanism"):
            make()
    assert private.clients_ == [0, 1, 2]
    for rule in ("parallel", "mle"):
        with pytest.raises(ValueError, match="has the noise of a privacy mechanism"):
            FederatedPCA.from_subspaces([files[0], plain], rule)


def test_rounds_of_chunks_of_dask_say_what_to_do():
    rows = pytest.importorskip("dask.array").from_array(X, chunks=(60, -1))
    pca = PersonalizedPCA(2, 1).fit(rows)
    before = pickle.dumps(vars(pca))
    with pytest.raises(TypeError, match=re.escape("X.compute()")):
        pca.refine(rows)
    assert pickle.dumps(vars(pca)) == before


# ------------------------------------------------------------------------------ cut summaries

CANCER = load_breast_cancer().data  # of 30 columns, the first explains 98 % of the variance
CUT = Subspace.from_rows(CANCER, 3)
HALVES = np.arange(len(CANCER)) % 2


@pytest.mark.parametrize("k", [3, 10, 20])  # twenty leave 5e-10 of the scatter
def test_components_that_were_cut_are_refused(k):
    cut = Subspace.from_rows(CANCER, k)
    message = f"n_components={k + 1} must be at most {k}: .* was cut, and keeps {k} of 30"
    with pytest.raises(ValueError, match=message):
        FederatedPCA.from_subspaces([cut], k + 1)
    assert FederatedPCA.from_subspaces([cut], k).n_components_ == k
    assert FederatedPCA.from_subspaces([cut]).n_components_ == k
    with pytest.warns(UserWarning, match=f"{message} .* arbitrary"):
        pca = StreamingPCA.from_subspace(cut, k + 1)
    assert pca.n_components_ == k + 1
    assert StreamingPCA.from_subspace(cut).n_components_ == k


def test_directions_of_all_sites_count_and_those_of_no_row_are_completed():
    sites = [Subspace.from_rows(CANCER[i::2], 3) for i in range(2)]  # and what tells means apart
    assert FederatedPCA.from_subspaces(sites, 7).explained_variance_[-1] > 0
    with pytest.raises(ValueError, match="n_components=8 must be at most 7"):
        FederatedPCA.from_subspaces(sites, 8)
    rows = CANCER[:100] @ np.diag(np.r_[np.ones(5), np.zeros(25)])  # nothing was cut
    for summary in Subspace.from_rows(rows), Subspace.from_rows(rows.astype(np.float32), 5):
        of_files = FederatedPCA.from_subspaces([summary], 8)
        for pca in (of_files, StreamingPCA.from_subspace(summary, 8)):
            assert (pca.n_components_, summary.n_components) == (8, 5)
            assert_array_equal(pca.explained_variance_[5:], 0)
    rows = np.repeat(CANCER[:2, :4], 8, axis=0)
    parts = [Subspace.from_rows(rows[::2]), Subspace.from_rows(rows[1::2] + np.eye(4)[1])]
    pca = FederatedPCA.from_subspaces(parts, 4, merge=ProjectionAverage())  # leaves some out itself
    assert pca.subspace_.n_components < pca.n_components_ == 4


SHORT = StreamingPCA(3, oversampling=0)
WARNED = {
    "n_components=5 must be at most 3": lambda: StreamingPCA.from_subspace(
        CUT, 5, rank_rule=ContributionBounds()
    ),
    "n_components=7 must be at most 3": lambda: (
        FederatedPCA(7, estimator=PCA(3)).fit(CANCER, clients=HALVES).remove(0)
    ),
    "scale=True: .* scaled columns is missing": lambda: FederatedPCA(
        3, estimator=SHORT, scale=True
    ).fit(CANCER, clients=HALVES),
    "partial_out=4: 93% of the variance of a confounder": lambda: FederatedPCA.from_subspaces(
        [CUT], 2, partial_out=4
    ),
}


@pytest.mark.parametrize("words", WARNED)
def test_what_was_cut_and_is_needed_is_warned_of(words):
    with pytest.warns(UserWarning, match=words):
        WARNED[words]()
