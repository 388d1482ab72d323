"""Dask: one merge tree over row chunks gives the fit of all rows; an oracle is numpy's SVD."""

import os
import resource
import signal
from contextlib import contextmanager

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from helpers import with_holes
from numpy.testing import assert_allclose
from sklearn.base import clone

from fedpca_sklearn import (
    GROUSE,
    PETRELS,
    SPIRIT,
    AlternatingProjections,
    AnalyzeGauss,
    AvailablePairs,
    ContributionBounds,
    DistributedPCA,
    FederatedPCA,
    FederatedPowerPCA,
    FederatedSubspaceTracker,
    OnlineDistributedPCA,
    RobustSubspaceTracker,
    StreamingPCA,
    TruncatedDistributedPCA,
    VerticalFederatedPCA,
    excess_error,
    make_power_law,
)

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")
# of older releases, where a test leaves a cluster aside
pytestmark = pytest.mark.filterwarnings("ignore:Running on a single-machine scheduler")

ESTIMATORS = [
    StreamingPCA(5),
    FederatedPCA(5),
    DistributedPCA(5),
    TruncatedDistributedPCA(5, local_threshold=1.0),
]
every_estimator = pytest.mark.parametrize("pca", ESTIMATORS, ids=lambda e: type(e).__name__)


@contextmanager
def two_processes():
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def cluster():
    with two_processes() as client:
        yield client


@pytest.fixture
def threads():
    import dask

    with dask.config.set(scheduler="threads"):
        yield


def rows(n=1000, d=40, seed=0):
    return make_power_law(n, d, random_state=seed) + np.arange(d) % 5


def assert_is_pca_of(pca, X, k, weight=None):
    weight = np.ones(len(X)) if weight is None else weight
    mean = np.average(X, axis=0, weights=weight)
    M = np.sqrt(weight)[:, None] * (X - mean)
    _, s, V = np.linalg.svd(M, full_matrices=False)
    assert_allclose(pca.mean_, mean, atol=1e-10)
    assert_allclose(pca.singular_values_, s[:k], rtol=1e-10)
    assert_allclose(np.abs(np.sum(pca.components_ * V[:k], axis=1)), 1, atol=1e-10)
    assert_allclose(pca.components_ @ pca.components_.T, np.eye(k), atol=1e-10)
    assert_allclose(pca.n_samples_, weight.sum())
    if not isinstance(pca, TruncatedDistributedPCA):
        assert_allclose(pca.subspace_.scatter, np.sum(M * M), rtol=1e-10)
        kept = pca.explained_variance_ratio_
        assert_allclose(kept, s[:k] ** 2 / np.sum(s * s), rtol=1e-10)


# ---------------------------------------------------------------------- on a cluster of processes


@every_estimator
def test_a_fit_on_processes_is_that_of_one_process(pca, cluster):
    X = rows()
    on_dask = clone(pca).fit(da.from_array(X, chunks=(130, 40)))
    here = clone(pca).fit(X)
    assert_is_pca_of(on_dask, X, 5)
    for name in ("components_", "mean_", "singular_values_", "explained_variance_"):
        assert_allclose(getattr(on_dask, name), getattr(here, name), atol=1e-10)
    assert_allclose(on_dask.noise_variance_, here.noise_variance_, rtol=1e-10, atol=1e-14)
    assert on_dask.n_features_in_ == 40
    more = rows(200, seed=1)
    on_dask.partial_fit(da.from_array(more, chunks=(60, 40)))
    assert_is_pca_of(on_dask, np.concatenate([X, more]), 5)


def test_above_256_features_the_excess_is_that_of_one_pass(threads):
    X = make_power_law(10_000, 500, alpha=1.0, random_state=0)
    for pca in StreamingPCA(20), FederatedPCA(20):
        fitted = pca.fit(da.from_array(X, chunks=(1100, 500)))
        # what StreamingPCA's documentation promises for this spectrum
        assert 0 <= excess_error(X, fitted.components_, fitted.mean_) < 1e-4
        assert_allclose(fitted.mean_, X.mean(axis=0), atol=1e-12)
        centred = X - X.mean(axis=0)
        assert_allclose(fitted.subspace_.scatter, np.sum(centred * centred), rtol=1e-12)


def _slow_rows(chunk, flag=None, block_info=None):
    """Rows of a chunk; the first worker that comes to one in the middle dies."""
    if flag and block_info[0]["chunk-location"][0] == 6 and not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return chunk


@pytest.mark.parametrize(
    "pca", [StreamingPCA(5), DistributedPCA(5)], ids=lambda e: type(e).__name__
)
def test_a_worker_that_is_killed_does_not_change_the_result(pca, cluster, tmp_path):
    X = rows(3000)
    flag = tmp_path / "killed"
    data = da.from_array(X, chunks=(250, 40)).map_blocks(
        _slow_rows, flag=str(flag), dtype=X.dtype, meta=np.empty((0, 0))
    )
    fitted = clone(pca).fit(data)
    assert flag.exists()
    assert_is_pca_of(fitted, X, 5)


@every_estimator
def test_nan_in_a_chunk_names_X_and_changes_nothing(pca, cluster):
    X = rows()
    bad = X.copy()
    bad[700, 3] = np.nan
    fitted = clone(pca).fit(da.from_array(X, chunks=(250, 40)))
    before = dict(vars(fitted))
    with pytest.raises(ValueError, match=r"(Chunk|Client) 2: Input X contains NaN"):
        fitted.partial_fit(da.from_array(bad, chunks=(250, 40)))
    assert vars(fitted).keys() == before.keys()
    assert all(vars(fitted)[name] is before[name] for name in before)
    with pytest.raises(ValueError, match=r"Chunk 2: .*NaN"):
        fitted.transform(da.from_array(bad, chunks=(250, 40))).compute()


@pytest.mark.parametrize("pca", [GROUSE(5), StreamingPCA(5, rank_rule=ContributionBounds())])
def test_infinity_in_a_chunk_that_comes_in_order_names_the_chunk(pca, threads):
    X = rows()
    X[700, 3] = np.inf
    with pytest.raises(ValueError, match="Chunk 2: Input X contains infinity"):
        clone(pca).fit(da.from_array(X, chunks=(250, 40)))


def _peak_rss(dask_worker):
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _random_rows(block_info=None):
    n, d = block_info[None]["chunk-shape"]
    return np.random.default_rng(block_info[None]["chunk-location"][0]).standard_normal((n, d))


@pytest.mark.slow
def test_a_worker_holds_a_few_chunks():
    n, d, n_chunks = 8000, 500, 24  # 32 MB each, 768 MB in all
    data = da.map_blocks(
        _random_rows, chunks=((n,) * n_chunks, (d,)), dtype=float, meta=np.empty((0, 0))
    )
    with two_processes() as client:  # peaks are those of processes, so they must be new
        StreamingPCA(5).fit(data[:8])  # what is imported is there
        before = client.run(_peak_rss)
        StreamingPCA(5).fit(data)
        after = client.run(_peak_rss)
    chunk = n * d * 8
    # the first chunk at work, the next one made, its generator's copy, and one on its way out; the
    # model's own memory is below a chunk
    assert StreamingPCA(5).memory_bytes(d) < chunk
    growth = [after[worker] - before[worker] for worker in before]
    assert len(growth) == 2
    assert max(growth) < 4 * chunk


@pytest.mark.parametrize("pca", [StreamingPCA, FederatedPCA, DistributedPCA])
def test_chunks_with_fewer_rows_than_features_count_components_together(pca, threads):
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((12, 12)))[0]
    X = rng.standard_normal((90, 12)) * ([4.0, 3.0] + [1.0] * 10) @ Q
    for rule in ("parallel", "mle"):
        on_dask = pca(rule).fit(da.from_array(X, chunks=(10, 12)))
        assert on_dask.n_components_ == pca(rule).fit(X).n_components_ == 2


def test_joblib_on_dask_around_federated_fits(cluster):
    X = rows()
    labels = np.arange(1000) % 4
    for pca in (
        FederatedPCA(5),
        DistributedPCA(5),
        TruncatedDistributedPCA(5, local_threshold=1.0),
        FederatedPowerPCA(5, n_rounds=3, random_state=0),
        OnlineDistributedPCA(5),
    ):
        here = clone(pca).fit(X, clients=labels)
        with joblib.parallel_config(backend="dask", n_jobs=2):
            there = clone(pca).set_params(n_jobs=2).fit(X, clients=labels)
        assert_allclose(there.components_, here.components_, atol=1e-12)
        assert_allclose(there.singular_values_, here.singular_values_, rtol=1e-12)
        assert there.communication_ == here.communication_


# ---------------------------------------------------------------------- kinds of chunks


@every_estimator
@pytest.mark.parametrize(
    "kind", ["columns", "both", "one chunk", "unknown", "empty chunks", "one row", "integers"]
)
def test_chunks_of_any_shape(pca, kind, threads):
    X = rows()
    data = da.from_array(X, chunks=(200, 40))
    if kind == "columns":
        data = da.from_array(X, chunks=(1000, 7))
    elif kind == "both":
        data = da.from_array(X, chunks=(310, 11))
    elif kind == "one chunk":
        data = da.from_array(X, chunks=-1)
    elif kind == "unknown":  # the third chunk has no row left
        keep = (X[:, 0] > 0) & ((np.arange(1000) < 400) | (np.arange(1000) >= 600))
        data, X = data[da.from_array(keep, chunks=200)], X[keep]
        assert np.isnan(data.shape[0])
    elif kind == "empty chunks":
        data = da.from_array(X, chunks=((0, 300, 0, 0, 700, 0), (40,)))
    elif kind == "one row":
        data = da.from_array(X, chunks=((1, 997, 1, 1), (40,)))
    elif kind == "integers":
        X = np.round(10 * X).astype(np.int64)
        data = da.from_array(X, chunks=(200, 40))
    fitted = clone(pca).fit(data)
    assert_is_pca_of(fitted, X.astype(float), 5)
    Z = fitted.transform(data)
    assert isinstance(Z, da.Array)
    assert_allclose(Z.compute(), (X - fitted.mean_) @ fitted.components_.T, atol=1e-10)


@every_estimator
@pytest.mark.parametrize("container", [sp.csr_matrix, sp.csr_array, sp.csc_array])
@pytest.mark.parametrize("columns", [40, 15])
def test_sparse_chunks(pca, container, columns, threads):
    X = rows() * (np.random.default_rng(0).random((1000, 40)) < 0.2)
    data = da.from_array(X, chunks=(200, columns)).map_blocks(container)
    fitted = clone(pca).fit(data)
    assert_is_pca_of(fitted, X, 5)
    assert_allclose(
        fitted.transform(data).compute(), (X - fitted.mean_) @ fitted.components_.T, atol=1e-10
    )
    if hasattr(fitted, "communication_"):
        assert fitted.communication_.floats_pooled == np.count_nonzero(X)


def test_sparse_chunks_of_many_features_stay_sparse(threads):
    S = sp.random(400, 20_000, density=2e-3, random_state=0, format="csr")
    S.data[:] = 1 + np.arange(len(S.data)) % 3
    data = da.from_array(np.arange(400)[:, None], chunks=100).map_blocks(
        lambda i: S[i[:, 0]], dtype=float, chunks=((100,) * 4, (20_000,)), meta=S[:0]
    )
    fitted = StreamingPCA(3, oversampling=400).fit(data)
    X = S.toarray()
    s = np.linalg.svd(X - X.mean(axis=0), compute_uv=False)
    assert_allclose(fitted.singular_values_, s[:3], rtol=1e-8)
    assert_allclose(fitted.mean_, X.mean(axis=0), atol=1e-14)


@every_estimator
def test_float32_is_kept(pca, threads):
    X = rows().astype(np.float32)
    data = da.from_array(X, chunks=(150, 40))
    fitted = clone(pca).fit(data)
    assert fitted.components_.dtype == np.float32
    assert fitted.transform(data).dtype == fitted.transform(data).compute().dtype == np.float32
    s = np.linalg.svd(X - X.mean(axis=0, dtype=float), compute_uv=False)
    assert_allclose(fitted.singular_values_, s[:5], rtol=1e-5)
    fitted.partial_fit(data.astype(np.float64))
    assert fitted.components_.dtype == np.float32


@every_estimator
@pytest.mark.parametrize("kind", ["numpy", "dask", "other chunks", "unknown"])
def test_weights(pca, kind, threads):
    X, weight = rows(), np.random.default_rng(1).integers(0, 4, 1000).astype(float)
    weight[200:400] = 0  # a whole chunk
    data = da.from_array(X, chunks=(200, 40))
    given = {
        "numpy": weight,
        "dask": da.from_array(weight, chunks=200),
        "other chunks": da.from_array(weight, chunks=130),
        "unknown": da.from_array(weight, chunks=200),
    }[kind]
    if kind == "unknown":
        keep = da.from_array(X[:, 0] > 0, chunks=200)
        data, given, weight, X = data[keep], given[keep], weight[X[:, 0] > 0], X[X[:, 0] > 0]
    assert_is_pca_of(clone(pca).fit(data, sample_weight=given), X, 5, weight)


# ---------------------------------------------------------------------- order


def test_forgetting_fades_through_the_tree(threads):
    X, f = rows(), 0.995
    data = da.from_array(X, chunks=((100, 0, 250, 3, 300, 347), (40,)))
    fitted = StreamingPCA(5, forgetting_factor=f).fit(data)
    fitted.partial_fit(da.from_array(X[:70], chunks=(20, 40)))
    whole = np.concatenate([X, X[:70]])
    weight = f ** np.arange(1069, -1, -1)
    mean = weight @ whole / weight.sum()
    M = np.sqrt(weight)[:, None] * (whole - mean)
    assert_allclose(fitted.mean_, mean, atol=1e-10)
    assert_allclose(fitted.singular_values_, np.linalg.svd(M, compute_uv=False)[:5], rtol=1e-10)
    assert_allclose(fitted.subspace_.n_samples, weight.sum(), rtol=1e-12)


def test_what_depends_on_the_order_takes_chunk_after_chunk(threads):
    X = rows()
    data = da.from_array(X, chunks=(130, 17))
    for pca in (
        StreamingPCA(3, rank_rule=ContributionBounds(), block_size=10),
        GROUSE(3, random_state=0),
    ):
        batches = [X[i : i + 130] for i in range(0, 1000, 130)]
        here, there = clone(pca).fit(batches), clone(pca).fit(data)
        assert_allclose(there.components_, here.components_, atol=1e-12)
        if hasattr(here, "rank_history_"):
            assert there.rank_history_.tolist() == here.rank_history_.tolist()


# ---------------------------------------------------------------------- the fitted estimators


def test_chunks_are_clients(threads):
    X = rows()
    data = da.from_array(X, chunks=((250, 0, 500, 250), (40,)))
    labels = np.repeat([0, 2, 3], [250, 500, 250])
    for pca in FederatedPCA(5), DistributedPCA(5), TruncatedDistributedPCA(5):
        here, there = clone(pca).fit(X, clients=labels), clone(pca).fit(data)
        assert there.clients_ == here.clients_ == [0, 2, 3]
        assert there.communication_ == here.communication_
        assert there.communication_.floats_pooled == 40_000
        assert_allclose(there.components_, here.components_, atol=1e-10)
    R = DistributedPCA(5).fit(data).r_factor_
    centred = X - X.mean(axis=0)
    assert_allclose(R.T @ R, centred.T @ centred, atol=1e-9)
    federated = FederatedPCA(5).fit(data)
    assert_allclose(federated.estimators_[2].mean_, X[250:750].mean(axis=0), atol=1e-12)


def test_a_fraction_of_the_variance(threads):
    X = make_power_law(3000, 300, alpha=1.0, random_state=0)
    centred = X - X.mean(axis=0)
    s2 = np.linalg.svd(centred, compute_uv=False) ** 2
    wanted = 1 + np.searchsorted(np.cumsum(s2) / s2.sum(), 0.8, side="right")
    fitted = StreamingPCA(0.8).fit(da.from_array(X, chunks=(400, 300)))
    assert abs(fitted.n_components_ - wanted) <= 1  # the truncated tail costs at most one
    assert fitted.explained_variance_ratio_.sum() > 0.8


def test_transform_is_lazy_and_carries_no_models(threads):
    X = rows()
    fitted = FederatedPCA(5).fit(da.from_array(X, chunks=(100, 40)))
    computed = []

    def count(chunk):
        computed.append(len(chunk))
        return chunk

    Z = fitted.transform(da.from_array(X, chunks=(100, 40)).map_blocks(count, meta=X[:0]))
    assert not computed
    assert Z.shape == (1000, 5)
    assert_allclose(Z[:100].compute(), (X[:100] - fitted.mean_) @ fitted.components_.T, atol=1e-10)
    assert computed == [100]
    whitened = StreamingPCA(5, whiten=True).fit(X)
    Z = whitened.transform(da.from_array(X, chunks=(100, 40)))
    assert_allclose(Z.compute().var(axis=0, ddof=1), 1, rtol=1e-10)


@pytest.mark.parametrize(
    "model",
    [
        PETRELS(2, random_state=0),
        RobustSubspaceTracker(2),
        DistributedPCA(2, missing=AvailablePairs()),
    ],
    ids=lambda e: type(e).__name__,
)
def test_missing_entries_are_transformed_lazily(model, threads):
    X = with_holes(rows(), 0.1)
    chunks = da.from_array(X, chunks=(100, 40))
    fitted = model.fit(X)
    assert_allclose(fitted.transform(chunks).compute(), fitted.transform(X), rtol=1e-12)
    if isinstance(model, DistributedPCA):  # the workers take the moments
        assert_allclose(model.fit(chunks).mean_, np.nanmean(X, axis=0), rtol=1e-12)


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    "pca",
    [
        FederatedPowerPCA(3),
        FederatedSubspaceTracker(3),
        OnlineDistributedPCA(3),
        VerticalFederatedPCA(2),
        AlternatingProjections(2),
    ],
    ids=lambda e: type(e).__name__,
)
def test_others_refuse_a_dask_array(pca, threads):
    with pytest.raises(TypeError, match=rf"dask\.array, which {type(pca).__name__} does not take"):
        pca.fit(da.from_array(rows(), chunks=100))


def test_errors_come_before_any_chunk_is_computed(threads):
    X = rows()

    def fail(chunk):
        raise AssertionError("computed")

    data = da.from_array(X, chunks=(100, 40)).map_blocks(fail, meta=X[:0])
    fitted = StreamingPCA(3).fit(X)
    for call, kind, match in (
        (lambda: StreamingPCA(41).fit(data), ValueError, "n_components=41"),
        (lambda: FederatedPCA(41).fit(data), ValueError, "n_components=41"),
        (lambda: FederatedPCA(3).fit(data, clients=np.zeros(1000)), ValueError, "row chunk"),
        (lambda: StreamingPCA(3).fit(data[:, 0]), ValueError, "2 dimensions"),
        (lambda: StreamingPCA(3).fit(data[:, data[0] > 0]), ValueError, "number of columns"),
        (
            lambda: StreamingPCA(3).fit(data, sample_weight=np.ones(999)),
            ValueError,
            "sample_weight",
        ),
        (
            lambda: StreamingPCA(3).fit(data, sample_weight=da.ones(999)),
            ValueError,
            "sample_weight",
        ),
        (
            lambda: StreamingPCA(3).fit(data[data[:, 0] > 0], sample_weight=np.ones(9)),
            ValueError,
            "chunks of unknown size",
        ),
        (lambda: fitted.transform(data[:, :7]), ValueError, "7 features"),
        (lambda: fitted.partial_fit(data[:, :7]), ValueError, "7 features"),
    ):
        with pytest.raises(kind, match=match):
            call()


@every_estimator
def test_no_rows_at_all(pca, threads):
    data = da.from_array(rows(), chunks=(100, 40))
    with pytest.raises(ValueError, match="at least one row"):
        clone(pca).fit(data[data[:, 0] > 1e6])
    with pytest.raises(ValueError, match="Negative values in sample_weight"):
        clone(pca).fit(data, sample_weight=da.full(1000, -1.0, chunks=100))


def test_a_mechanism_is_refused():
    x = da.from_array(np.eye(8), chunks=(4, 8))
    model = FederatedPCA(2, mechanism=AnalyzeGauss(1.0, 1e-5, 1.0))
    with pytest.raises(ValueError, match=r"mechanism must be None when X is a dask\.array"):
        model.fit(x)
    assert not hasattr(model, "components_")


def test_a_chunk_of_another_width_is_refused():
    x = da.from_array(np.random.default_rng(0).standard_normal((8, 6)), chunks=(4, 6))
    wrong = x.map_blocks(lambda rows: rows[:, :5], dtype=float)
    for model in (StreamingPCA(2), FederatedPCA(2), DistributedPCA(2)):
        with pytest.raises(ValueError, match="X must have 6 columns in each chunk, one has 5"):
            model.fit(wrong)
        assert not hasattr(model, "components_")


def test_one_dimension_is_refused_by_trackers_too():
    x = da.from_array(np.arange(8.0), chunks=4)
    for model in (StreamingPCA(1), SPIRIT()):
        with pytest.raises(ValueError, match="X must have 2 dimensions"):
            model.fit(x)


def test_data_frames_of_dask_are_refused_where_arrays_are():
    frame = type("DataFrame", (), {"__module__": "dask.dataframe.dask_expr"})()
    for model in (FederatedPowerPCA(1), AlternatingProjections(1), VerticalFederatedPCA(1)):
        with pytest.raises(TypeError, match="X is a Dask data frame, which"):
            model.fit(frame)
