"""Dask: one merge tree over row chunks gives the fit of all rows; an oracle is numpy's SVD.

Arrays and data frames; estimators whose fit is not a tree take chunk after chunk.
"""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from golden_cases import NAMES
from helpers import peak_bytes, with_holes
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    PersonalizedPCA,
    StreamingPCA,
    StreamingPowerMethod,
    SubspaceTracker,
    TruncatedDistributedPCA,
    excess_error,
    make_power_law,
)

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")
pytest.importorskip("pyarrow")  # without it Dask's data frames cannot be imported
dd = pytest.importorskip("dask.dataframe")
import dask  # noqa: E402

# of older releases, where a test leaves a cluster aside
pytestmark = pytest.mark.filterwarnings("ignore:Running on a single-machine scheduler")

ESTIMATORS = [StreamingPCA(5), FederatedPCA(5), DistributedPCA(5)]
ESTIMATORS += [TruncatedDistributedPCA(5, local_threshold=1.0)]
every_estimator = pytest.mark.parametrize("pca", ESTIMATORS, ids=lambda e: type(e).__name__)


@pytest.fixture(scope="module")
def cluster():
    address = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, **address) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture
def threads():
    with dask.config.set(scheduler="threads"):
        yield


@pytest.fixture
def here():
    with dask.config.set(scheduler="synchronous"):
        yield


def rows(n=1000, d=40, seed=0):
    return make_power_law(n, d, random_state=seed) + np.arange(d) % 5


def chunked(X, *sizes):
    return da.from_array(X, chunks=sizes or (200, X.shape[1]))


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
    """And rows that are refused in a chunk change nothing of it."""
    X, more = rows(), rows(200, seed=1)
    fitted, alone = clone(pca).fit(chunked(X, 130, 40)), clone(pca).fit(X)
    assert_is_pca_of(fitted, X, 5)
    for name in ("components_", "explained_variance_", "noise_variance_"):
        assert_allclose(getattr(fitted, name), getattr(alone, name), atol=1e-10)
    fitted.partial_fit(chunked(more, 60, 40))
    assert_is_pca_of(fitted, np.concatenate([X, more]), 5)
    X[700, 3] = np.nan
    before = dict(vars(fitted))
    with pytest.raises(ValueError, match=r"(Chunk|Client) 3: Input X contains NaN"):
        fitted.partial_fit(chunked(X))
    assert vars(fitted).keys() == before.keys()
    assert all(vars(fitted)[name] is before[name] for name in before)
    with pytest.raises(ValueError, match=r"Chunk 3: .*NaN"):
        fitted.transform(chunked(X)).compute()


# ---------------------------------------------------------------------- kinds of chunks


KINDS = ["columns", "both", "one chunk", "unknown", "empty chunks", "one row", "integers"]
KINDS += ["sparse", "sparse csc", "sparse columns"]


def of_kind(kind):
    """Chunks, and the rows in them."""
    X = rows()
    if kind == "unknown":  # the third chunk has no row left
        keep = (X[:, 0] > 0) & ((np.arange(1000) < 400) | (np.arange(1000) >= 600))
        return chunked(X)[chunked(keep, 200)], X[keep]
    if kind == "integers":
        X = np.round(10 * X).astype(np.int64)
    if "sparse" in kind:
        X = X * (np.random.default_rng(0).random((1000, 40)) < 0.2)
        container = sp.csc_array if "csc" in kind else sp.csr_matrix
        return chunked(X, 200, 15 if "columns" in kind else 40).map_blocks(container), X
    chunks = {
        "columns": (1000, 7),
        "both": (310, 11),
        "one chunk": (1000, 40),
        "empty chunks": ((0, 300, 0, 0, 700, 0), (40,)),
        "one row": ((1, 997, 1, 1), (40,)),
    }
    return chunked(X, *chunks.get(kind, (200, 40))), X


@every_estimator
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weights", ["none", "numpy", "dask", "other chunks"])
def test_chunks_of_any_shape_with_weights_in_any(pca, kind, weights, threads):
    data, X = of_kind(kind)
    weight, given = None, None
    if weights != "none" and kind != "unknown":
        weight = np.random.default_rng(1).integers(0, 4, 1000).astype(float)
        weight[200:400] = 0  # a whole chunk
        given = {"numpy": weight, "dask": chunked(weight, 200)}.get(weights, chunked(weight, 130))
    elif weights == "dask":
        every = np.arange(1000.0) % 3
        data = chunked(rows())
        data, given = data[data[:, 0] > 0], chunked(every, 200)[data[:, 0] > 0]
        X, weight = rows()[rows()[:, 0] > 0], every[rows()[:, 0] > 0]
    fitted = clone(pca).fit(data, sample_weight=given)
    assert_is_pca_of(fitted, X.astype(float), 5, weight)
    Z = fitted.transform(data)
    assert isinstance(Z, da.Array)
    assert_allclose(Z.compute(), (X - fitted.mean_) @ fitted.components_.T, atol=1e-10)
    if "sparse" in kind and hasattr(fitted, "communication_") and weight is None:
        assert fitted.communication_.floats_pooled == np.count_nonzero(X)


def test_joined_columns_are_cut_into_chunks_of_the_size_that_dask_is_told(threads):
    X, seen = rows(), []
    with dask.config.set({"array.chunk-size": "32 kB"}):
        whole = chunked(X, 500, 10).map_blocks(lambda x: x, dtype=float)
        fitted = FederatedPCA(5, merge=None).fit(whole)
        seen += [rows.shape for rows in dask.compute(*fitted.transform(whole).to_delayed().ravel())]
    assert_is_pca_of(fitted, X, 5)
    assert max(n * X.shape[1] * 8 for n, _ in seen) <= 32_000


# ---------------------------------------------------------------------- what depends on the rows


def test_above_256_features_the_excess_is_that_of_one_pass(threads):
    X = make_power_law(5_000, 300, alpha=1.0, random_state=0)
    for pca in StreamingPCA(20), FederatedPCA(20):
        fitted = pca.fit(chunked(X, 1100, 300))
        # what StreamingPCA's documentation promises for this spectrum
        assert 0 <= excess_error(X, fitted.components_, fitted.mean_) < 1e-4
        assert_allclose(fitted.mean_, X.mean(axis=0), atol=1e-12)
        assert_allclose(fitted.subspace_.scatter, np.sum((X - X.mean(axis=0)) ** 2), rtol=1e-12)
    s2 = np.linalg.svd(X - X.mean(axis=0), compute_uv=False) ** 2
    wanted = 1 + np.searchsorted(np.cumsum(s2) / s2.sum(), 0.8, side="right")
    fitted = StreamingPCA(0.8).fit(chunked(X, 1100, 300))
    assert abs(fitted.n_components_ - wanted) <= 1  # the truncated tail costs at most one
    assert fitted.explained_variance_ratio_.sum() > 0.8


LOW = rows(90, 12) * np.r_[40.0, 30.0, np.ones(10)]  # chunks have fewer rows than features
HOLES = with_holes(rows(), 0.1)
UNEVEN = (100, 0, 250, 3, 300, 347)
# Estimator | rows | sizes of chunks | batches of the same fit in memory, where it has some
ALIKE = """
StreamingPCA("parallel") | LOW | 10 | None
FederatedPCA("mle") | LOW | 10 | None
DistributedPCA("parallel") | LOW | 10 | None
StreamingPCA(5, forgetting_factor=0.995) | rows() | UNEVEN | 1000
StreamingPCA(3, rank_rule=ContributionBounds(), block_size=10) | rows() | 130 | 130
GROUSE(3, random_state=0) | rows() | 130 | 130
PETRELS(2, random_state=0) | HOLES | 130 | 130
RobustSubspaceTracker(2) | HOLES | 130 | 130
DistributedPCA(2, missing=AvailablePairs()) | HOLES | 130 | None
""".strip().splitlines()


@pytest.mark.parametrize("row", ALIKE)
def test_a_fit_of_chunks_is_that_of_rows_in_memory(row, threads):
    code, X, sizes, size = (eval(cell, {**NAMES, **globals()}) for cell in row.split(" | "))
    batches = X if size is None else (X[i : i + size] for i in range(0, len(X), size))
    alone, there = clone(code).fit(batches), clone(code).fit(chunked(X, sizes, X.shape[1]))
    assert there.n_components_ == alone.n_components_
    assert_allclose(there.mean_, alone.mean_, atol=1e-10)
    V = there.components_ * np.sign(np.sum(there.components_ * alone.components_, axis=1))[:, None]
    assert_allclose(V, alone.components_, atol=1e-9)
    few = X[:50]
    assert_allclose(there.transform(chunked(few)).compute(), there.transform(few), rtol=1e-12)


def test_rows_fade_by_their_number_whatever_they_weigh(threads):
    X, weight, pca = rows(), np.arange(1000.0) % 4, StreamingPCA(5, forgetting_factor=0.995)
    weight[300:400] = 0
    alone = clone(pca).fit(X, sample_weight=weight)
    there = clone(pca).fit(chunked(X, 100, X.shape[1]), sample_weight=weight)
    assert_allclose(there.explained_variance_, alone.explained_variance_)
    assert_allclose(there.mean_, alone.mean_, atol=1e-10)


def test_a_chunk_that_is_refused_is_named_where_the_order_counts(threads):
    X = rows()
    X[700, 3] = np.inf
    with pytest.raises(ValueError, match="Chunk 3: Input X contains infinity"):
        NAMES["GROUSE"](3, random_state=0).fit(chunked(X))


@every_estimator
def test_what_is_masked_or_no_date_is_missing_in_a_chunk(pca, threads):
    gone = np.zeros((1000, 40), dtype=bool)
    gone[700, 3] = True
    times = np.round(1e6 * rows()).astype("m8[us]")
    times[gone] = "NaT"
    for X in (np.ma.array(rows(), mask=gone), times):
        with pytest.raises(ValueError, match=r"(Chunk|Client) 3: Input X contains NaN"):
            clone(pca).fit(chunked(X))


def test_transform_is_lazy_and_carries_no_models(threads):
    X, computed = rows(), []
    fitted = FederatedPCA(5).fit(chunked(X, 100, 40))
    Z = fitted.transform(chunked(X, 100, 40).map_blocks(counting(computed), meta=X[:0]))
    assert not computed
    assert Z.shape == (1000, 5)
    assert_allclose(Z[:100].compute(), (X[:100] - fitted.mean_) @ fitted.components_.T, atol=1e-10)
    assert computed == [100]


@pytest.mark.parametrize(
    "options", [{}, {"whiten": True}, {"scale": True}, {"partial_out": [3]}], ids=str
)
def test_inverse_transform_is_lazy(options, threads):
    X, computed = rows(), []
    pca = StreamingPCA(5, **options).fit(X)
    for dtype in (np.float64, np.float32):
        Z = pca.transform(X).astype(dtype)
        lazy = pca.inverse_transform(
            chunked(Z, (250, 0, 750), (2, 3)).map_blocks(counting(computed), meta=Z[:0])
        )
        assert not computed
        assert lazy.shape == X.shape
        assert lazy.dtype == pca.inverse_transform(Z).dtype
        assert_allclose(lazy.compute(), pca.inverse_transform(Z), rtol=1e-6)
        computed.clear()
    named = dd.from_pandas(pd.DataFrame(Z), npartitions=3)
    assert_allclose(pca.inverse_transform(named).compute(), pca.inverse_transform(Z), rtol=1e-6)
    with pytest.raises(ValueError, match=r"X must have shape \(n_samples, 5\)"):
        pca.inverse_transform(chunked(X))
    Z[300] = np.nan
    with pytest.raises(ValueError, match=r"Chunk 1: Input X contains NaN"):
        pca.inverse_transform(chunked(Z, 250, 5)).compute()
    own = PersonalizedPCA(1, 1, n_clients=2).fit(X)  # a class with an inverse of its own
    Z = own.transform(X)
    assert_allclose(own.inverse_transform(chunked(Z)).compute(), own.inverse_transform(Z))


def test_chunks_are_clients(threads):
    X, labels = rows(), np.repeat([0, 2, 3], [250, 500, 250])
    data = chunked(X, (250, 0, 500, 250), (40,))
    for pca in ESTIMATORS[1:]:
        alone, there = clone(pca).fit(X, clients=labels), clone(pca).fit(data)
        assert there.clients_ == alone.clients_ == [0, 2, 3]
        assert there.communication_ == alone.communication_
        assert there.communication_.floats_pooled == 40_000
        assert_allclose(there.components_, alone.components_, atol=1e-10)
    R, centred = DistributedPCA(5).fit(data).r_factor_, X - X.mean(axis=0)
    assert_allclose(R.T @ R, centred.T @ centred, atol=1e-9)
    federated = FederatedPCA(5).fit(data)
    assert_allclose(federated.estimators_[2].mean_, X[250:750].mean(axis=0), atol=1e-12)


def counting(computed):
    def seen(chunk):
        computed.append(len(chunk))
        return chunk

    return seen


# ---------------------------------------------------------------------- data frames

COLUMNS = ["heat", "light", "noise", "wind"]
FRAME = pd.DataFrame(
    np.random.default_rng(0).standard_normal((60, 4)) * [4, 3, 2, 1] + 5, columns=COLUMNS
)
FRAME.index = pd.date_range("2026-01-01", periods=60, freq="h", name="hour")


def of_dask(frame=FRAME):
    return dd.from_pandas(frame, npartitions=4)


MODELS = """
StreamingPCA(2)
FederatedPCA(2)
DistributedPCA(2)
TruncatedDistributedPCA(2, local_threshold=1.0)
StreamingPCA(2, forgetting_factor=0.9, forgetting="blocks")
SubspaceTracker(2, batch_size=9)
OjaPCA(2, random_state=0)
"""


@pytest.mark.parametrize("code", MODELS.strip().splitlines())
def test_a_fit_knows_the_names(code, here):
    pca, of_array = (
        eval(code, dict(NAMES)).fit(X) for X in (of_dask(), of_dask().to_dask_array(lengths=True))
    )
    assert list(pca.feature_names_in_) == COLUMNS
    assert_allclose(pca.components_, of_array.components_, atol=1e-12)
    assert pca.subspace_.feature_names == tuple(COLUMNS)
    turned = of_dask(FRAME[COLUMNS[::-1]])
    with pytest.raises(ValueError, match="Feature names"):
        pca.transform(turned)
    if not isinstance(pca, TruncatedDistributedPCA):
        with pytest.raises(ValueError, match="Feature names"):
            pca.partial_fit(turned)
    if type(pca) in (StreamingPCA, FederatedPCA, DistributedPCA) and "forget" not in code:
        want = PCA(2).fit(FRAME)
        assert_allclose(pca.explained_variance_, want.explained_variance_)
        assert_allclose(pca.score(of_dask()), want.score(FRAME))
        weights = pd.Series(np.arange(60.0) % 3, index=FRAME.index)
        weighted = clone(pca).fit(of_dask(), sample_weight=of_dask(weights))
        again = clone(pca).fit(FRAME, sample_weight=weights)
        assert_allclose(weighted.explained_variance_, again.explained_variance_)
    assert pca.partial_fit(of_dask()).n_samples_ == 120


def test_coordinates_are_lazy_and_have_names_where_frames_are_asked_for(here):
    pca, calls = StreamingPCA(2).fit(of_dask()), []
    frame = of_dask().map_partitions(counting(calls), meta=FRAME[:0])
    lazy = pca.transform(frame)
    assert type(lazy).__module__.startswith("dask.array")
    assert calls == []
    want = pca.transform(FRAME)
    assert_allclose(lazy.compute(), want)
    assert calls == [15] * 4
    named = pca.set_output(transform="pandas").transform(frame)
    assert type(named).__module__.startswith("dask.dataframe")
    assert calls == [15] * 4
    assert list(named.columns) == ["streamingpca0", "streamingpca1"]
    found = named.compute()
    assert_allclose(found, want)
    assert found.index.equals(FRAME.index)
    assert list(pca.transform(FRAME).columns) == list(named.columns)  # the estimator is as it was
    with pytest.raises(ValueError, match=r"polars.* cannot be had of a Dask data frame"):
        pca.set_output(transform="polars").transform(frame)
    own = PersonalizedPCA(1, 1).fit(of_dask()).set_output(transform="pandas")
    lazy = own.transform(of_dask())  # a class with a transform of its own
    assert type(lazy).__module__.startswith("dask.dataframe")
    assert_allclose(lazy.compute(), own.transform(FRAME))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        in_memory = own.transform(of_dask().to_dask_array(lengths=True))
    assert list(in_memory.columns) == list(lazy.columns)


def test_partitions_without_rows_float32_and_missing_entries(here):
    early = FRAME.index[20]
    first = of_dask().map_partitions(lambda part: part[part.index < early], meta=FRAME[:0])
    pca = StreamingPCA(2).fit(first)
    assert_allclose(pca.explained_variance_, PCA(2).fit(FRAME[:20]).explained_variance_)
    assert pca.transform(first).compute().shape == (20, 2)
    single = of_dask(FRAME.astype(np.float32))
    pca = StreamingPCA(2).fit(single)
    assert pca.components_.dtype == pca.transform(single).dtype == np.float32
    holes = of_dask(FRAME.mask(FRAME > 11))
    with pytest.raises(ValueError, match=r"Chunk .*NaN"):
        StreamingPCA(2).fit(holes)
    assert SubspaceTracker(2, batch_size=9).fit(holes).n_samples_ == 60
    nullable = FRAME.mask(FRAME > 11).astype("Float64")
    pca = FederatedPCA(2, missing=NAMES["AvailablePairs"]()).fit(of_dask(nullable))
    assert_allclose(pca.mean_, nullable.mean().to_numpy(float))
    in_order = StreamingPCA(2, forgetting="blocks", forgetting_factor=0.9)
    with pytest.raises(ValueError, match=r"Chunk 0: Input X contains NaN"):
        in_order.fit(of_dask(nullable))
    weight = FRAME.iloc[:, 0].abs()
    pca = StreamingPCA(2).fit(of_dask(), sample_weight=of_dask(weight.astype("Float64")))
    assert_allclose(pca.mean_, np.average(FRAME, axis=0, weights=weight))


def test_two_partitions_are_more_than_is_in_memory(here):
    n, d, parts = 4_000, 40, 6

    def part(i):
        rows = np.random.default_rng(i).standard_normal((n, d))
        return pd.DataFrame(rows, columns=[f"x{j}" for j in range(d)], copy=False)

    X = dd.from_map(part, range(parts), meta=part(0)[:0])
    for pca in (StreamingPCA(3), StreamingPowerMethod(3, random_state=0)):
        pca.fit(X.partitions[:2])  # what is imported on the way
        assert peak_bytes(lambda pca=pca: pca.fit(X)) < 2 * n * d * 8
        assert pca.n_samples_ == n * parts
        assert peak_bytes(lambda pca=pca: pca.transform(X)) < n * d * 8


# ---------------------------------------------------------------------- what is refused


def _fail(chunk):
    raise AssertionError("computed")


ROWS = rows()
VALUES = {
    **NAMES,
    "da": da,
    "np": np,
    "NEVER": chunked(ROWS, 100, 40).map_blocks(_fail, meta=ROWS[:0]),
    "FITTED": StreamingPCA(3).fit(ROWS),
    "X": chunked(ROWS),
    "NARROW": chunked(ROWS).map_blocks(lambda rows: rows[:, :5], dtype=float),
    "FRAME": FRAME,
    "of_dask": of_dask,
}
GAUSS = "mechanism=AnalyzeGauss(1.0, 1e-5, 1.0)"
WRONG = f"""
StreamingPCA(41).fit(NEVER) | n_components=41
FederatedPCA(41).fit(NEVER) | n_components=41
FederatedPCA(3).fit(NEVER, clients=np.zeros(1000)) | row chunk
StreamingPCA(3).fit(NEVER[:, 0]) | X must have 2 dimensions
SPIRIT().fit(NEVER[:, 0]) | X must have 2 dimensions
StreamingPCA(3).fit(NEVER[:, NEVER[0] > 0]) | number of columns
StreamingPCA(3).fit(NEVER, sample_weight=np.ones(999)) | sample_weight
StreamingPCA(3).fit(NEVER, sample_weight=da.ones(999)) | sample_weight
StreamingPCA(3).fit(NEVER[NEVER[:, 0] > 0], sample_weight=np.ones(9)) | chunks of unknown size
FITTED.transform(NEVER[:, :7]) | 7 features
FITTED.partial_fit(NEVER[:, :7]) | 7 features
FederatedPCA(2, {GAUSS}).fit(NEVER) | mechanism must be None when X is a dask.array
StreamingPCA(2).fit(of_dask(FRAME.assign(site="a"))) | could not convert string
FederatedPCA(2).fit(of_dask(FRAME.assign(site=1)), clients="site") | every row chunk is a client
StreamingPCA(1).fit(of_dask()["heat"]) | X must have 2 dimensions
StreamingPCA(2, half_life="1h").fit(of_dask(), times=FRAME.index) | need a known number of rows
"""
EACH = """
(NARROW) | X must have 40 columns in each chunk, one has 5
(X[X[:, 0] > 1e6]) | at least one row
(X, sample_weight=da.full(1000, -1.0)) | Negative values in sample_weight
"""


@pytest.mark.parametrize("row", WRONG.strip().splitlines())
def test_what_does_not_fit_is_refused_before_any_chunk_is_computed(row, here):
    code, words = row.split(" | ")
    with pytest.raises(ValueError, match=words):
        eval(code, dict(VALUES))


@every_estimator
@pytest.mark.parametrize("row", EACH.strip().splitlines())
def test_wrong_chunks_and_weights_are_refused_by_each(pca, row, here):
    arguments, words = row.split(" | ")
    pca = clone(pca)
    with pytest.raises(ValueError, match=words):
        eval(f"pca.fit{arguments}", {**VALUES, "pca": pca})
    assert not hasattr(pca, "components_")


def of_doubled_rows(kind):
    """A class of others that fits twice the rows, and returns other multiples."""

    class Doubled(kind):
        def fit(self, X, y=None, **given):
            return super().fit(2 * X, y, **given)

        def transform(self, X):
            return 3 * super().transform(X)

        def inverse_transform(self, X):
            return 5 * super().inverse_transform(X)

    return Doubled


@pytest.mark.parametrize("kind", [StreamingPCA, FederatedPCA, DistributedPCA, SubspaceTracker])
def test_what_a_subclass_overrides_is_applied_once(kind, here):
    X, exact = rows(), PCA(3, svd_solver="full")
    pca, close = of_doubled_rows(kind)(3), {"rtol": 0.05 if kind is SubspaceTracker else 1e-8}
    exact.fit(2 * X)
    pca.fit(chunked(X))
    assert_allclose(pca.explained_variance_, exact.explained_variance_, **close)
    Z = (X - pca.mean_) @ pca.components_.T
    assert_allclose(pca.transform(chunked(X)).compute(), 3 * Z, atol=1e-9)
    frame = dd.from_pandas(pd.DataFrame(X), npartitions=2)
    assert_allclose(pca.transform(frame).compute(), 3 * Z, atol=1e-9)
    back = 5 * (Z @ pca.components_ + pca.mean_)
    assert_allclose(pca.inverse_transform(da.from_array(Z, chunks=(200, 3))).compute(), back)


OTHERS = "FederatedPowerPCA FederatedSubspaceTracker OnlineDistributedPCA VerticalFederatedPCA"


@pytest.mark.parametrize("name", [*OTHERS.split(), "AlternatingProjections"])
def test_others_refuse_what_is_dasks(name):
    model = NAMES[name](2)
    with pytest.raises(TypeError, match=rf"dask\.array, which {name} does not take"):
        model.fit(VALUES["NEVER"])
    frame = type("DataFrame", (), {"__module__": "dask.dataframe.dask_expr"})()
    if name not in ("FederatedSubspaceTracker", "OnlineDistributedPCA"):
        with pytest.raises(TypeError, match="X is a Dask data frame, which"):
            model.fit(frame)
