"""Whatever holds rows keeps the names of its columns, or is refused by a message that helps."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.utils import get_tags

from fedpca_sklearn import (
    AlternatingProjections,
    DistributedPCA,
    FederatedPCA,
    FederatedPowerPCA,
    FederatedSubspaceTracker,
    OjaPCA,
    OnlineDistributedPCA,
    PairMoments,
    RobustSubspaceTracker,
    StreamingPCA,
    Subspace,
    SubspaceTracker,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
    evaluate_stream,
    excess_error,
    reconstruction_error,
    subspace_distance,
)
from fedpca_sklearn._validation import containers

NAMES = ["heat", "light", "noise", "wind"]
FRAME = pd.DataFrame(np.random.default_rng(0).standard_normal((60, 4)), columns=NAMES)


def in_pandas(frame):
    return frame


def in_polars(frame):
    return pytest.importorskip("polars").DataFrame({n: frame[n].to_numpy() for n in frame})


def in_table(frame):
    return pytest.importorskip("pyarrow").table({n: frame[n].to_numpy() for n in frame})


def in_record_batch(frame):
    return in_table(frame).to_batches()[0]


def in_numpy(frame):
    return frame.to_numpy()


NAMED = [in_pandas, in_polars, in_table, in_record_batch]
ONE_ARRAY = [
    FederatedPCA(2),
    DistributedPCA(2),
    OnlineDistributedPCA(2),
    FederatedPowerPCA(2, random_state=0),
    AlternatingProjections(2),
    VerticalFederatedPCA(2, random_state=0),
    VerticalFederatedKernelPCA(2, random_state=0),
]
STREAMS = [
    StreamingPCA(2),
    OjaPCA(2, random_state=0),
    SubspaceTracker(2, batch_size=9),
    RobustSubspaceTracker(2, batch_size=9, init="svd"),
    FederatedSubspaceTracker(2, batch_size=9, random_state=0),
]
TAKE_BATCHES = (*map(type, STREAMS), OnlineDistributedPCA)
SAME_ORDER = "Feature names must be in the same order as they were in fit"


def named(model):
    return type(model).__name__


@pytest.mark.parametrize("hold", NAMED)
@pytest.mark.parametrize("model", STREAMS + ONE_ARRAY, ids=named)
def test_columns_in_another_order_are_refused_whatever_holds_them(model, hold):
    model = clone(model).fit(hold(FRAME))
    assert list(model.feature_names_in_) == NAMES
    want = clone(model).fit(in_numpy(FRAME)).transform(in_numpy(FRAME))
    np.testing.assert_allclose(model.transform(hold(FRAME)), want, atol=1e-12)
    moved = hold(FRAME[NAMES[::-1]])
    before = model.transform(hold(FRAME))
    calls = [name for name in ("partial_fit", "transform", "score") if hasattr(model, name)]
    for name in calls:
        with pytest.raises(ValueError, match=SAME_ORDER):
            getattr(model, name)(moved)
    with pytest.raises(ValueError, match="Feature names seen at fit time, yet now missing"):
        model.transform(hold(FRAME[NAMES[:3]]))
    assert_array_equal(model.transform(hold(FRAME)), before)


@pytest.mark.parametrize("hold", NAMED)
@pytest.mark.parametrize("model", [*STREAMS, OnlineDistributedPCA(2)], ids=named)
def test_a_batch_in_another_order_ends_the_stream_without_a_trace(model, hold):
    parts = [FRAME[:20], FRAME[20:40], FRAME[40:]]
    whole = clone(model).fit(hold(part) for part in parts)
    assert list(whole.feature_names_in_) == NAMES
    listed = clone(model).fit([hold(part) for part in parts])
    assert_array_equal(listed.components_, whole.components_)
    with pytest.raises(ValueError, match=SAME_ORDER):
        clone(model).fit(hold(part) for part in [*parts[:2], parts[2][NAMES[::-1]]])
    before = whole.transform(FRAME)
    with pytest.raises(ValueError, match=SAME_ORDER):
        whole.partial_fit(hold(part) for part in [parts[0], parts[1][NAMES[::-1]]])
    assert_array_equal(whole.transform(FRAME), before)


@pytest.mark.parametrize("model", STREAMS + ONE_ARRAY, ids=named)
def test_rows_without_names_have_none(model):
    assert not hasattr(clone(model).fit(in_numpy(FRAME)), "feature_names_in_")


@pytest.mark.parametrize("hold", NAMED)
def test_summaries_take_the_names(hold):
    summary = Subspace.from_rows(hold(FRAME))
    assert summary.feature_names == tuple(NAMES)
    with pytest.raises(ValueError, match="same features in another order"):
        summary.update(hold(FRAME[NAMES[::-1]]))


def test_readers_of_arrow_are_streams_with_names(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow.dataset
    import pyarrow.parquet

    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(in_table(FRAME), path, row_group_size=25)
    want = StreamingPCA(2).fit(FRAME)
    for batches in (
        pyarrow.parquet.ParquetFile(path).iter_batches(10),
        pyarrow.dataset.dataset(path).to_batches(),
        in_table(FRAME).to_reader(7),
    ):
        pca = StreamingPCA(2).fit(batches)
        assert list(pca.feature_names_in_) == NAMES
        np.testing.assert_allclose(pca.components_, want.components_, atol=1e-12)


# ------------------------------------------------------------------------------ what is refused


def lazy_frame(folder):
    return in_polars(FRAME).lazy()


def relation(folder):
    connection = pytest.importorskip("duckdb").connect()
    connection.register("frame", in_table(FRAME))
    return connection.sql("select * from frame")


def written(folder):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(in_table(FRAME), folder / "rows.parquet")
    return folder / "rows.parquet"


def dataset(folder):
    path = written(folder)
    import pyarrow.dataset

    return pyarrow.dataset.dataset(path)


def scanner(folder):
    return dataset(folder).scanner()


def parquet_file(folder):
    path = written(folder)
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(path)


def hdf5_file(folder):
    return pytest.importorskip("h5py").File(folder / "rows.h5", "w")


def on_a_device(folder):
    strict = pytest.importorskip("array_api_strict")
    return strict.asarray(FRAME.to_numpy(), device=strict.Device("device1"))


class Tensor:
    """A tensor that is on a device, as torch has it."""

    shape, dtype, ndim = (60, 4), "float64", 2

    def __dlpack__(self):
        raise BufferError

    def __array__(self, dtype=None, copy=None):
        raise TypeError("can't convert cuda:0 device type tensor to numpy.")


READERS = [lazy_frame, relation, dataset, scanner, parquet_file]
REFUSED = [
    (lazy_frame, r"LazyFrame of polars.*X\.collect\(\)"),
    (relation, r"DuckDBPyRelation of duckdb.*X\.df\(\).*iter_batches\(X\)"),
    (dataset, r"Dataset of pyarrow.*iter_batches\(X\)"),
    (scanner, r"Scanner of pyarrow.*iter_batches\(X\)"),
    (parquet_file, r"ParquetFile of pyarrow.*iter_batches\(X\)"),
    (hdf5_file, r"Group of h5py.*X\[name\]"),
    (lambda folder: str(folder / "X.npy"), r'X\.npy.*np\.load\(path, mmap_mode="r"\)'),
    (lambda folder: folder / "X.npy", r'X\.npy.*np\.load\(path, mmap_mode="r"\)'),
    (lambda folder: [str(folder / "X.npy")] * 2, r'X\.npy.*np\.load\(path, mmap_mode="r"\)'),
    (on_a_device, r"array_api_strict.*X\.detach\(\)\.cpu\(\)\.numpy\(\)"),
    (lambda folder: Tensor(), r"cuda:0 device.*X\.detach\(\)\.cpu\(\)\.numpy\(\)"),
]


@pytest.mark.parametrize(("hold", "words"), REFUSED)
@pytest.mark.parametrize("model", STREAMS + ONE_ARRAY, ids=named)
def test_what_holds_no_rows_yet_is_refused_with_what_to_call(model, hold, words, tmp_path):
    held = hold(tmp_path)
    model = clone(model)
    streams = hold in READERS and isinstance(model, TAKE_BATCHES)  # tests/test_sources.py
    if not streams:
        with pytest.raises(TypeError, match=words):
            model.fit(held)
        assert not [name for name in vars(model) if name.endswith("_")]
    model.fit(in_numpy(FRAME))
    with pytest.raises(TypeError, match=words):
        model.transform(held)
    if hasattr(model, "partial_fit") and not streams:
        with pytest.raises(TypeError, match=words):
            model.partial_fit(held)


@pytest.mark.parametrize("model", ONE_ARRAY[:2] + ONE_ARRAY[3:], ids=named)
def test_batches_are_refused_where_rows_are_needed_at_once(model):
    with pytest.raises(TypeError, match="rows in one array here, got an iterator"):
        clone(model).fit(iter([in_numpy(FRAME)]))


@pytest.mark.parametrize("model", ONE_ARRAY[:2] + ONE_ARRAY[3:], ids=named)
def test_arrays_of_several_sites_are_refused_where_one_is_needed(model):
    X = in_numpy(FRAME)
    for several in ([X[:40], X[40:]], (X[:30], X[30:]), {"north": X[:40], "south": X[40:]}):
        kind = type(several).__name__
        with pytest.raises(TypeError, match=f"rows in one array here, got a {kind} of arrays"):
            clone(model).fit(several)


@pytest.mark.parametrize("model", STREAMS + ONE_ARRAY, ids=named)
def test_what_is_masked_is_missing(model):
    X = in_numpy(FRAME)
    for kind in (X.astype(np.float32), np.round(9 * X).astype(np.int16)):
        hidden = np.ma.array(kind.copy(), mask=np.arange(X.size).reshape(X.shape) % 7 == 3)
        hidden.data[hidden.mask] = 9_999
        seen = np.where(hidden.mask, np.nan, kind)
        if get_tags(model).input_tags.allow_nan:
            fitted = clone(model).fit(hidden)
            expected = clone(model).fit(seen)
            assert_array_equal(fitted.components_, expected.components_)
            assert_array_equal(fitted.transform(hidden), expected.transform(seen))
        else:
            with pytest.raises(ValueError, match=r"X contains NaN. SubspaceTracker, .* missing"):
                clone(model).fit(hidden)
        whole = np.ma.array(kind)
        assert_array_equal(clone(model).fit_transform(whole), clone(model).fit_transform(kind))


LENGTHS = np.random.default_rng(0).integers(-90, 90, (60, 4)).astype("m8[s]")


@pytest.mark.parametrize("start", [np.timedelta64(0, "s"), np.datetime64(0, "s")], ids=["m", "M"])
@pytest.mark.parametrize("model", STREAMS + ONE_ARRAY, ids=named)
def test_a_date_or_duration_that_is_not_there_is_missing(model, start):
    whole = start + LENGTHS
    gone = np.arange(whole.size).reshape(whole.shape) % 7 == 3
    X = whole.copy()
    X[gone] = "NaT"
    numbers = LENGTHS.astype(np.float64)
    seen = np.where(gone, np.nan, numbers)
    expected = clone(model).fit_transform(numbers)
    for held in (whole, pd.DataFrame(whole)):  # by columns, with other rounding errors
        assert_allclose(clone(model).fit_transform(held), expected, rtol=1e-9, atol=1e-9)
    for held in (X, pd.DataFrame(X), pd.DataFrame(X, columns=NAMES), list(map(list, X))):
        if get_tags(model).input_tags.allow_nan:
            found, filled = (clone(model).fit_transform(rows) for rows in (held, seen))
            assert_allclose(found, filled, rtol=1e-9, atol=1e-9)
        else:
            with pytest.raises(ValueError, match=r"X contains NaN\. SubspaceTracker"):
                clone(model).fit(held)
            fitted = clone(model).fit(numbers)
            with pytest.raises(ValueError, match="contains NaN"):
                fitted.transform(X)


@pytest.mark.parametrize("hold", [in_pandas, in_polars, in_table])
def test_a_date_that_is_not_there_is_missing_in_frames(hold):
    day = np.datetime64(0, "us") + LENGTHS[:, 0]
    day[7] = "NaT"
    days = pd.DataFrame({"day": day, "later": day + np.timedelta64(1, "D")})
    mixed, aware = FRAME.assign(day=day), days.apply(lambda column: column.dt.tz_localize("UTC"))
    for frame in (days, aware, mixed):
        frame = hold(frame) if frame is not aware else aware
        for fit in (StreamingPCA(2).fit, Subspace.from_rows):  # of numbers and dates numpy has none
            with pytest.raises(
                (ValueError, TypeError), match=r"X contains NaN|be promoted|not 'Timestamp'"
            ):
                fit(frame)
    assert PairMoments.from_rows(hold(days)).counts[0, 0] == 59


@pytest.mark.parametrize("measure", [reconstruction_error, excess_error])
def test_errors_of_rows_with_a_duration_that_is_not_there_are_refused(measure):
    V = np.eye(4)[:2]
    whole = measure(LENGTHS.astype(np.float64), V)
    assert measure(LENGTHS, V) == pytest.approx(whole)
    gone = LENGTHS.copy()
    gone[7, 2] = "NaT"
    for X in (gone, pd.DataFrame(gone)):
        with pytest.raises(ValueError, match="X contains NaN"):
            measure(X, V)
        with pytest.raises(ValueError, match="X contains NaN, so errors need the complete rows"):
            evaluate_stream(StreamingPCA(2), X)


def test_a_masked_weight_label_or_number_is_refused():
    X, hidden = in_numpy(FRAME), np.ma.array(np.ones(60), mask=np.arange(60) == 3)
    for call in (
        lambda: StreamingPCA(2).fit(X, sample_weight=hidden),
        lambda: FederatedPCA(2).fit(X, clients=hidden),
        lambda: FederatedPCA(2).fit(X, clients=np.ma.array(["a"] * 60, mask=hidden.mask)),
        lambda: reconstruction_error(np.ma.array(X, mask=X > 1), np.eye(4)[:2]),
        lambda: subspace_distance(np.ma.array(np.eye(4)[:2], mask=X[:2] > 0), np.eye(4)[:2]),
    ):
        with pytest.raises(ValueError, match=r"NaN|got a masked one"):
            call()


def test_arrays_of_other_libraries_are_read_where_numpy_can():
    strict = pytest.importorskip("array_api_strict")
    X = in_numpy(FRAME)
    for model in STREAMS + ONE_ARRAY:
        fitted = clone(model).fit(strict.asarray(X))
        assert_array_equal(fitted.transform(strict.asarray(X)), clone(model).fit(X).transform(X))


def test_nothing_is_imported_to_tell_containers_apart():
    code = (
        "import sys, numpy as np; from fedpca_sklearn import StreamingPCA;"
        "StreamingPCA(1).fit(np.eye(3)).transform(np.eye(3));"
        "libraries = 'polars', 'duckdb', 'h5py', 'zarr', 'torch', 'array_api_strict', 'jax';"
        "print([m for m in libraries if m in sys.modules])"
    )
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("as_rows", [np.asarray, sp.csr_array])
def test_rows_of_long_doubles_are_those_of_doubles(as_rows):
    X = FRAME.to_numpy()
    for model in (OnlineDistributedPCA(2), FederatedPowerPCA(2, random_state=0)):
        long = clone(model).fit(as_rows(X.astype(np.longdouble))).explained_variance_
        assert_allclose(long, clone(model).fit(as_rows(X)).explained_variance_, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_arrays_of_floats_are_not_read_again(dtype, monkeypatch):
    """Their width is all that is to be checked; whatever else is asked goes to scikit-learn."""
    X = np.random.default_rng(0).standard_normal((30, 4)).astype(dtype)
    frame = pd.DataFrame(X, columns=list("abcd"))
    pca, named = StreamingPCA(2).fit(X), StreamingPCA(2).fit(frame)
    with pytest.raises(ValueError, match="X has 3 features, but StreamingPCA is expecting 4"):
        pca.transform(X[:, :3])
    with pytest.raises(ValueError, match="0 sample"):
        pca.fit(X[:0])
    with pytest.raises(ValueError, match="infinity"):
        pca.transform(np.where(np.arange(4) == 2, np.inf, X))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        named.transform(X)
    assert not hasattr(named.fit(X), "feature_names_in_")
    monkeypatch.setattr(containers, "_validate_data", None)
    again = StreamingPCA(2).fit(X[:20]).partial_fit(X[20:])
    assert again.n_features_in_ == 4
    Z = X.astype(float) - X.mean(axis=0, dtype=float)
    assert_allclose(again.transform(X), Z @ again.components_.T, atol=32 * np.finfo(dtype).eps)
    for other in (frame, X.astype(">f8"), X.astype(int), X.tolist()):
        with pytest.raises(TypeError, match="not callable"):
            again.transform(other)
