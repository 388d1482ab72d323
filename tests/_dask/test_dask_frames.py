"""Data frames of Dask's: fits and coordinates with the names of columns, partition by partition."""

import numpy as np
import pandas as pd
import pytest
from helpers import peak_bytes
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    OjaPCA,
    PersonalizedPCA,
    StreamingPCA,
    StreamingPowerMethod,
    SubspaceTracker,
    TruncatedDistributedPCA,
)

pytest.importorskip("pyarrow")  # without it Dask's data frames cannot be imported
dd = pytest.importorskip("dask.dataframe")
import dask  # noqa: E402

NAMES = ["heat", "light", "noise", "wind"]
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.standard_normal((60, 4)) * [4, 3, 2, 1] + 5, columns=NAMES)
FRAME.index = pd.date_range("2026-01-01", periods=60, freq="h", name="hour")


@pytest.fixture(autouse=True)
def in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def of_dask(frame=FRAME, npartitions=4):
    return dd.from_pandas(frame, npartitions=npartitions)


MODELS = [
    StreamingPCA(2),
    FederatedPCA(2),
    DistributedPCA(2),
    TruncatedDistributedPCA(2, local_threshold=1.0),
    StreamingPCA(2, forgetting_factor=0.9, forgetting="blocks"),
    SubspaceTracker(2, batch_size=9),
    OjaPCA(2, random_state=0),
]


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_fit_knows_the_names(model):
    pca = clone(model).fit(of_dask())
    assert list(pca.feature_names_in_) == NAMES
    of_array = clone(model).fit(of_dask().to_dask_array(lengths=True))
    assert_allclose(pca.components_, of_array.components_, atol=1e-12)
    assert pca.subspace_.feature_names == tuple(NAMES)
    with pytest.raises(ValueError, match="Feature names"):
        pca.transform(of_dask(FRAME[NAMES[::-1]]))
    if not isinstance(model, TruncatedDistributedPCA):
        with pytest.raises(ValueError, match="Feature names"):
            pca.partial_fit(of_dask(FRAME[NAMES[::-1]]))
    assert pca.partial_fit(of_dask()).n_samples_ == 120


def test_it_is_the_pca_of_the_rows_with_weights_too():
    want = PCA(2).fit(FRAME)
    for model in MODELS[:3]:
        fitted = clone(model).fit(of_dask())
        assert_allclose(fitted.explained_variance_, want.explained_variance_)
        assert_allclose(fitted.score(of_dask()), want.score(FRAME))
        weights = pd.Series(np.arange(60.0) % 3, index=FRAME.index)
        weighted = clone(model).fit(of_dask(), sample_weight=of_dask(weights))
        again = clone(model).fit(FRAME, sample_weight=weights)
        assert_allclose(weighted.explained_variance_, again.explained_variance_)


def test_coordinates_are_lazy_and_have_names_where_frames_are_asked_for():
    pca = StreamingPCA(2).fit(of_dask())
    calls = []

    def seen(part):
        calls.append(len(part))
        return part

    frame = of_dask().map_partitions(seen, meta=FRAME[:0])
    lazy = pca.transform(frame)
    assert type(lazy).__module__.startswith("dask.array")
    assert calls == []
    want = pca.transform(FRAME)
    assert_allclose(lazy.compute(), want)
    assert calls == [15] * 4
    pca.set_output(transform="pandas")
    named = pca.transform(frame)
    assert type(named).__module__.startswith("dask.dataframe")
    assert calls == [15] * 4
    assert list(named.columns) == ["streamingpca0", "streamingpca1"]
    found = named.compute()
    assert_allclose(found, want)
    assert found.index.equals(FRAME.index)
    assert isinstance(pca.transform(FRAME), pd.DataFrame)  # the estimator is as it was
    assert list(pca.transform(FRAME).columns) == list(named.columns)
    with pytest.raises(ValueError, match=r"polars.* cannot be had of a Dask data frame"):
        pca.set_output(transform="polars").transform(frame)


def test_a_class_with_a_transform_of_its_own_is_lazy_too():
    pca = PersonalizedPCA(1, 1).fit(of_dask()).set_output(transform="pandas")
    lazy = pca.transform(of_dask())
    assert type(lazy).__module__.startswith("dask.dataframe")
    assert_allclose(lazy.compute(), pca.transform(FRAME))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        in_memory = pca.transform(of_dask().to_dask_array(lengths=True))
    assert list(in_memory.columns) == list(lazy.columns)


def test_partitions_without_rows_float32_and_missing_entries():
    first = of_dask().map_partitions(
        lambda part: part[part.index < FRAME.index[20]], meta=FRAME[:0]
    )
    pca = StreamingPCA(2).fit(first)
    assert_allclose(pca.explained_variance_, PCA(2).fit(FRAME[:20]).explained_variance_)
    assert pca.transform(first).compute().shape == (20, 2)
    single = StreamingPCA(2).fit(of_dask(FRAME.astype(np.float32)))
    assert single.components_.dtype == np.float32
    assert single.transform(of_dask(FRAME.astype(np.float32))).dtype == np.float32
    holes = FRAME.mask(FRAME > 11)
    with pytest.raises(ValueError, match=r"Chunk .*NaN"):
        StreamingPCA(2).fit(of_dask(holes))
    assert SubspaceTracker(2, batch_size=9).fit(of_dask(holes)).n_samples_ == 60


def test_what_does_not_fit_is_refused():
    text = FRAME.assign(site="a")
    with pytest.raises(ValueError, match="could not convert string"):
        StreamingPCA(2).fit(of_dask(text))
    with pytest.raises(ValueError, match="every row chunk is a client"):
        FederatedPCA(2).fit(of_dask(FRAME.assign(site=1)), clients="site")
    with pytest.raises(ValueError, match="X must have 2 dimensions"):
        StreamingPCA(1).fit(of_dask()["heat"])
    with pytest.raises(ValueError, match="times need a known number of rows"):
        StreamingPCA(2, half_life="1h").fit(of_dask(), times=FRAME.index)


def test_two_partitions_are_more_than_is_in_memory():
    n, d, parts = 4_000, 40, 6

    def part(i):
        rows = np.random.default_rng(i).standard_normal((n, d))
        return pd.DataFrame(rows, columns=[f"x{j}" for j in range(d)], copy=False)

    X = dd.from_map(part, range(parts), meta=part(0)[:0])
    for pca in (StreamingPCA(3), StreamingPowerMethod(3, random_state=0)):
        pca.fit(X.partitions[:2])  # what is imported on the way
        assert peak_bytes(lambda pca=pca: pca.fit(X)) < 2 * n * d * 8
        assert pca.n_samples_ == n * parts
        assert list(pca.feature_names_in_[:2]) == ["x0", "x1"]
        assert peak_bytes(lambda pca=pca: pca.transform(X)) < n * d * 8
