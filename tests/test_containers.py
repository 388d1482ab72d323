"""Whatever holds rows keeps the names of its columns, or is refused by a message that helps.

Everything that holds batches of rows gives those batches, and estimators of streams take it.
"""

from collections import deque

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from golden_cases import made
from helpers import peak_bytes
from holders import (
    FRAME,
    NAMED,
    NAMES,
    READERS,
    SOURCES,
    dataset,
    hugging_face,
    in_table,
    loader,
    module,
    relation,
)
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import PCA
from sklearn.utils import get_tags

from fedpca_sklearn import (
    FederatedPCA,
    StreamingPCA,
    StreamingPowerMethod,
    evaluate_stream,
    excess_error,
    iter_batches,
    reconstruction_error,
    subspace_distance,
)

X = FRAME.to_numpy()
STREAMS = """
StreamingPCA(2)
OjaPCA(2, random_state=0)
SubspaceTracker(2, batch_size=9)
RobustSubspaceTracker(2, batch_size=9, init="svd")
FederatedSubspaceTracker(2, batch_size=9, random_state=0)
OnlineDistributedPCA(2)
""".strip().splitlines()
ONE_ARRAY = """
FederatedPCA(2)
DistributedPCA(2)
FederatedPowerPCA(2, random_state=0)
AlternatingProjections(2)
VerticalFederatedPCA(2, random_state=0)
VerticalFederatedKernelPCA(2, random_state=0)
""".strip().splitlines()
MODELS = STREAMS + ONE_ARRAY
SAME_ORDER = "Feature names must be in the same order as they were in fit"
every_model = pytest.mark.parametrize("code", MODELS)


def held(codes):
    """Each estimator with one of the containers with names, and some with all."""
    turns = [(code, NAMED[i % len(NAMED)]) for i, code in enumerate(codes)]
    return [*turns, *((code, hold) for code in (codes[0], codes[-1]) for hold in NAMED)]


@pytest.mark.parametrize(("code", "hold"), held(MODELS))
def test_columns_in_another_order_are_refused_whatever_holds_them(code, hold):
    model, nameless = made(code).fit(hold(FRAME)), made(code).fit(X)
    assert list(model.feature_names_in_) == NAMES
    assert not hasattr(nameless, "feature_names_in_")
    before = model.transform(hold(FRAME))
    assert_allclose(before, nameless.transform(X), atol=1e-12)
    for name in ("partial_fit", "transform", "score"):
        if hasattr(model, name):
            with pytest.raises(ValueError, match=SAME_ORDER):
                getattr(model, name)(hold(FRAME[NAMES[::-1]]))
    with pytest.raises(ValueError, match="Feature names seen at fit time, yet now missing"):
        model.transform(hold(FRAME[NAMES[:3]]))
    assert_array_equal(model.transform(hold(FRAME)), before)


@pytest.mark.parametrize("code", ["StreamingPCA(2)", "OjaPCA(2, random_state=0)"])
@pytest.mark.parametrize("hold", NAMED)
def test_a_batch_in_another_order_ends_the_stream_without_a_trace(code, hold):
    parts = [hold(part) for part in (FRAME[:20], FRAME[20:40], FRAME[40:])]
    whole = made(code).fit(iter(parts))
    assert list(whole.feature_names_in_) == NAMES
    before = whole.transform(FRAME)
    for call in (made(code).fit, whole.partial_fit):
        with pytest.raises(ValueError, match=SAME_ORDER):
            call(iter([*parts[:2], hold(FRAME[40:][NAMES[::-1]])]))
    assert_array_equal(whole.transform(FRAME), before)


@pytest.mark.parametrize("hold", NAMED)
@pytest.mark.parametrize("code", ["StreamingPCA(2)", "DistributedPCA(2)", "SubspaceTracker(2)"])
def test_columns_of_texts_are_named(code, hold):
    with pytest.raises(ValueError, match=r"got texts in 'site': could not convert .*'east'"):
        made(code).fit(hold(FRAME.assign(site="east")))


# ------------------------------------------------------------------------------ what is refused


def on_a_device(folder):
    strict = module("array_api_strict")
    return strict.asarray(X, device=strict.Device("device1"))


class Tensor:
    """A tensor that is on a device, as torch has it."""

    shape, dtype, ndim = (60, 4), "float64", 2

    def __dlpack__(self):
        raise BufferError

    def __array__(self, dtype=None, copy=None):
        raise TypeError("can't convert cuda:0 device type tensor to numpy.")


FILE = r'X\.npy.*np\.load\(path, mmap_mode="r"\)'
REFUSED = [
    (READERS[0], r"LazyFrame of polars.*X\.collect\(\)"),
    (READERS[1], r"DuckDBPyRelation of duckdb.*X\.df\(\).*iter_batches\(X\)"),
    (READERS[2], r"ParquetFile of pyarrow.*iter_batches\(X\)"),
    (READERS[3], r"Dataset of pyarrow.*iter_batches\(X\)"),
    (READERS[4], r"Scanner of pyarrow.*iter_batches\(X\)"),
    (lambda folder: module("h5py").File(folder / "X.h5", "w"), r"Group of h5py.*X\[name\]"),
    (lambda folder: str(folder / "X.npy"), FILE),
    (lambda folder: folder / "X.npy", FILE),
    (lambda folder: [str(folder / "X.npy")] * 2, FILE),
    (on_a_device, r"array_api_strict.*X\.detach\(\)\.cpu\(\)\.numpy\(\)"),
    (lambda folder: Tensor(), r"cuda:0 device.*X\.detach\(\)\.cpu\(\)\.numpy\(\)"),
]


@every_model
def test_what_holds_no_rows_yet_is_refused_with_what_to_call(code, tmp_path):
    fitted = made(code).fit(X)
    for hold, words in REFUSED:
        rows, model = hold(tmp_path), made(code)
        streams = hold in READERS and code in STREAMS  # tests/test_containers.py
        if not streams:
            with pytest.raises(TypeError, match=words):
                model.fit(rows)
            assert not [name for name in vars(model) if name.endswith("_")]
        for name in ("transform", "partial_fit")[: 2 - streams]:
            if hasattr(fitted, name):
                with pytest.raises(TypeError, match=words):
                    getattr(fitted, name)(rows)


@pytest.mark.parametrize("code", ONE_ARRAY)
def test_batches_and_arrays_of_sites_are_refused_where_one_array_is_needed(code):
    for several, kind in [
        (iter([X]), "an iterator"),
        ([X[:40], X[40:]], "a list of arrays"),
        ((X[:30], X[30:]), "a tuple of arrays"),
        ({"north": X[:40], "south": X[40:]}, "a dict of arrays"),
    ]:
        with pytest.raises(TypeError, match=f"rows in one array here, got {kind}"):
            made(code).fit(several)
    for names, words in [
        ({"a": 1.0, "b": 2}, r"got a dict of numbers; pandas.DataFrame\(\[X\]\)"),
        ([{"a": 1.0}, {"a": 2.0}], r"got a list of dicts of numbers; pandas.DataFrame\(X\)"),
    ]:
        with pytest.raises(TypeError, match=words):
            made(code).fit(names)


# ------------------------------------------------------------------------------ what is missing


@every_model
def test_what_is_masked_is_missing(code):
    kind = np.round(9 * X).astype(np.int16) if MODELS.index(code) % 2 else X.astype(np.float32)
    hidden = np.ma.array(kind.copy(), mask=np.arange(X.size).reshape(X.shape) % 7 == 3)
    hidden.data[hidden.mask] = 9_999
    if get_tags(made(code)).input_tags.allow_nan:
        seen = np.where(hidden.mask, np.nan, kind)
        fitted, expected = made(code).fit(hidden), made(code).fit(seen)
        assert_array_equal(fitted.components_, expected.components_)
        assert_array_equal(fitted.transform(hidden), expected.transform(seen))
    else:
        with pytest.raises(ValueError, match=r"X contains NaN. SubspaceTracker, .* missing"):
            made(code).fit(hidden)
    whole = np.ma.array(kind)
    assert_array_equal(made(code).fit_transform(whole), made(code).fit_transform(kind))


LENGTHS = np.random.default_rng(0).integers(-90, 90, (60, 4)).astype("m8[s]")


@every_model
def test_a_date_or_duration_that_is_not_there_is_missing(code):
    gone, numbers = np.arange(240).reshape(60, 4) % 7 == 3, LENGTHS.astype(np.float64)
    seen, takes = np.where(gone, np.nan, numbers), get_tags(made(code)).input_tags.allow_nan
    model = made(code).fit(numbers)
    whole = LENGTHS + (np.datetime64(0, "s") if MODELS.index(code) % 2 else np.timedelta64(0, "s"))
    for rows in (whole, pd.DataFrame(whole)):  # by columns, with other rounding errors
        found = made(code).fit_transform(rows)
        assert_allclose(found, model.transform(numbers), rtol=1e-9, atol=1e-9)
    holes = whole.copy()
    holes[gone] = "NaT"
    filled = made(code).fit_transform(seen) if takes else None
    for rows in (holes, pd.DataFrame(holes, columns=NAMES), list(map(list, holes))):
        if takes:
            assert_allclose(made(code).fit_transform(rows), filled, rtol=1e-9, atol=1e-9)
            continue
        with pytest.raises(ValueError, match=r"X contains NaN\. SubspaceTracker"):
            made(code).fit(rows)
    if not takes:
        with pytest.raises(ValueError, match="contains NaN"):
            model.transform(holes)


@pytest.mark.parametrize("measure", [reconstruction_error, excess_error])
def test_errors_of_rows_with_a_duration_that_is_not_there_are_refused(measure):
    V, gone = np.eye(4)[:2], LENGTHS.copy()
    assert measure(LENGTHS, V) == pytest.approx(measure(LENGTHS.astype(np.float64), V))
    gone[7, 2] = "NaT"
    for rows in (gone, pd.DataFrame(gone)):
        with pytest.raises(ValueError, match="X contains NaN"):
            measure(rows, V)
        with pytest.raises(ValueError, match="X contains NaN, so errors need the complete rows"):
            evaluate_stream(StreamingPCA(2), rows)


def test_a_masked_weight_label_or_number_is_refused():
    hidden = np.ma.array(np.ones(60), mask=np.arange(60) == 3)
    for call in (
        lambda: StreamingPCA(2).fit(X, sample_weight=hidden),
        lambda: StreamingPCA(2, half_life="1h").fit(X, times=hidden.astype("M8[s]")),
        lambda: FederatedPCA(2).fit(X, clients=hidden),
        lambda: FederatedPCA(2).fit(X, clients=np.ma.array(["a"] * 60, mask=hidden.mask)),
        lambda: reconstruction_error(np.ma.array(X, mask=X > 1), np.eye(4)[:2]),
        lambda: subspace_distance(np.ma.array(np.eye(4)[:2], mask=X[:2] > 0), np.eye(4)[:2]),
    ):
        with pytest.raises(ValueError, match=r"NaN|NaT|got a masked one"):
            call()


# ------------------------------------------------------------------------------ how they are read


@pytest.mark.parametrize("as_rows", [np.asarray, sp.csr_array])
@pytest.mark.parametrize(
    "code", [STREAMS[-1], ONE_ARRAY[2], "FederatedPCA(2, missing=ConditionalFill())"]
)
def test_rows_of_long_doubles_are_those_of_doubles(as_rows, code):
    long, double = (made(code).fit(as_rows(X.astype(t))) for t in (np.longdouble, np.float64))
    assert_allclose(long.explained_variance_, double.explained_variance_, rtol=1e-12)


# ------------------------------------------------------------------------------ what holds batches


def in_numpy(batch):
    """A batch as an array; of Arrow through pandas."""
    return np.asarray(batch.to_pandas() if hasattr(batch, "to_pandas") else batch)


def joined(batches):
    return np.concatenate([in_numpy(batch) for batch in batches])


@pytest.mark.parametrize("source", SOURCES)
def test_a_stream_is_fitted_of_it_in_batches_in_their_order(source, tmp_path):
    others = (
        "OjaPCA(2)",
        "SubspaceTracker(2, batch_size=9)",
        "FederatedSubspaceTracker(2, batch_size=60, random_state=0, n_clients=1)",
    )
    for code in ("StreamingPCA(2)", others[SOURCES.index(source) % 3]):
        want, fitted = made(code).fit(X), made(code).fit(source(tmp_path))
        assert_allclose(fitted.components_, want.components_, atol=1e-12)
        if source not in (hugging_face, loader):
            assert list(fitted.feature_names_in_) == NAMES
        assert fitted.partial_fit(source(tmp_path)).n_samples_ == 120
    batches = list(iter_batches(source(tmp_path), batch_size=7))
    assert_array_equal(joined(batches), X)
    assert source is relation or max(in_numpy(batch).shape[0] for batch in batches) <= 7
    if source is dataset:
        with pytest.raises(TypeError, match=r"iter_batches\(X\)"):
            FederatedPCA(2).fit(source(tmp_path))
    if source in (*READERS[:4], hugging_face):
        chosen = iter_batches(source(tmp_path), columns=["wind", "heat"])
        assert_array_equal(joined(chosen), FRAME[["wind", "heat"]])


class Sized:
    """Batches of a known number, as loaders that are not torch's hold them."""

    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        return iter(self.batches)


class Indexed(Sized):
    """Items that can be read in any order as well: batches, or rows."""

    def __getitem__(self, i):
        return self.batches[i]


PARTS = np.split(X, 4)
PAIRS = [(part, np.zeros(15)) for part in PARTS]


HELD = [PARTS, Sized(PARTS), Indexed(PARTS), deque(PARTS), dict(enumerate(PARTS)).values()]
HELD += [Sized(PAIRS), Indexed(PAIRS)]


@pytest.mark.parametrize("batches", HELD, ids=lambda batches: type(batches).__name__)
def test_batches_of_a_known_number_are_taken(batches):
    assert_array_equal(joined(iter_batches(batches)), X)
    for code in ("StreamingPCA(2)", "SubspaceTracker(2, batch_size=9)"):
        found, want = (made(code).fit(rows).components_ for rows in (batches, X))
        assert_allclose(found, want, atol=1e-12)


def test_items_of_an_object_that_are_rows_are_no_batches():
    held = Indexed(X.tolist())
    assert_allclose(StreamingPCA(2).fit(held).components_, StreamingPCA(2).fit(X).components_)
    with pytest.raises(TypeError, match="X must hold batches of rows, got Indexed"):
        iter_batches(held)


def test_pairs_dicts_frames_and_sparse_batches_and_their_columns():
    assert_array_equal(joined(iter_batches(iter(PAIRS))), X)
    for kind in (sp.csr_array, sp.dok_array):  # which is a dict, too
        assert sp.issparse(next(iter_batches(iter([(kind(X), 0)]))))
        pca = StreamingPCA(2).fit([kind(X[:40]), kind(X[40:])])
        assert_allclose(pca.singular_values_, PCA(2).fit(X).singular_values_)
    with pytest.raises(ValueError, match="Found array with dim 4"):  # pictures and targets
        StreamingPCA(2).fit(iter([(np.zeros((5, 3, 8, 8)), np.zeros(5))]))
    dicts = [{n: FRAME[n].to_numpy() for n in names} for names in (NAMES, NAMES[::-1])]
    assert_array_equal(next(iter_batches(iter(dicts))), X)
    rows = FRAME.to_dict("records")
    for one in (rows, [(row, 1) for row in rows]):
        assert_array_equal(joined(iter_batches(iter(one))), X)
    assert_array_equal(joined(iter_batches((row, {"y": 1}) for row in rows)), X)
    for kind in (list, tuple):  # of rows, of which the first is not all
        with pytest.raises(TypeError, match=f"got a {kind.__name__} of dicts of numbers"):
            StreamingPCA(2).fit(map(kind, (rows[:40], rows[40:])))
    with pytest.raises(ValueError, match="A batch that is a dict has the same features in another"):
        StreamingPCA(2).fit(iter_batches(iter(dicts)))
    for batch in (FRAME, in_table(FRAME), *dicts, *((one, np.zeros(60)) for one in dicts)):
        chosen = iter_batches(iter([batch]), columns=["wind", "heat"])
        assert_array_equal(joined(chosen), FRAME[["wind", "heat"]])


def test_an_entry_may_hold_whole_rows():
    pa, torch = module("pyarrow"), module("torch")
    rows = pa.FixedSizeListArray.from_arrays(X.ravel(), 4)
    embedded = pa.table({"text": ["a"] * 60, "embedding": rows})
    data = module("datasets").Dataset(embedded)
    dicts = [{"text": ["a"] * 30, "embedding": torch.tensor(part)} for part in (X[:30], X[30:])]
    for source in (embedded.to_reader(7), iter(embedded.to_batches()), data, iter(dicts)):
        pca = StreamingPCA(2).fit(iter_batches(source, columns="embedding"))
        assert_allclose(pca.components_, StreamingPCA(2).fit(X).components_, atol=1e-12)


# ------------------------------------------------------------------------------ memory

BATCH, WIDTH, MANY = 16_000, 40, 3  # a megabyte of which transform takes at once
TWO = 2 * BATCH * WIDTH * 8


def batch_of(number):
    return np.random.default_rng(number).standard_normal((BATCH, WIDTH))


def frame_of(number):
    names = [str(j) for j in range(WIDTH)]
    return pd.DataFrame(batch_of(number), columns=names, copy=False)


class Numbered:
    """Rows made where they are asked for, as a torch data set of batches."""

    def __len__(self):
        return MANY

    def __getitem__(self, number):
        if number == MANY:
            raise IndexError
        torch = module("torch")
        return torch.from_numpy(batch_of(number)), torch.zeros(BATCH)


MADE = {
    "arrays": lambda: (batch_of(i) for i in range(MANY)),
    "frames": lambda: (frame_of(i) for i in range(MANY)),
    "pairs": lambda: ((batch_of(i), np.zeros(BATCH)) for i in range(MANY)),
    "dicts": lambda: iter_batches(({"X": batch_of(i)} for i in range(MANY)), columns="X"),
    "torch": lambda: module("torch.utils.data").DataLoader(Numbered(), batch_size=None),
}


@pytest.mark.parametrize("source", MADE)
def test_a_fit_and_its_coordinates_hold_less_than_two_batches(source):
    model, seen = StreamingPCA(3).fit(MADE[source]()), []  # what is imported on the way

    def go():
        for Z in map(model.transform, iter_batches(MADE[source]())):
            seen.append(Z.shape)

    assert peak_bytes(go) < TWO
    assert seen == [(BATCH, 3)] * MANY
    for other in (model, StreamingPowerMethod(3))[: 1 + (source == "arrays")]:
        assert peak_bytes(lambda other=other: other.fit(MADE[source]())) < TWO
        assert other.n_samples_ == MANY * BATCH


@pytest.fixture(scope="module")
def large_file(tmp_path_factory):
    """A parquet file of a batch in each row group."""
    folder = tmp_path_factory.mktemp("large")
    columns = np.random.default_rng(0).standard_normal((WIDTH, MANY * BATCH))
    held = module("pyarrow").table({str(j): column for j, column in enumerate(columns)})
    options = {"row_group_size": BATCH, "use_dictionary": False}
    module("pyarrow.parquet").write_table(held, folder / "X", **options)
    return folder / "X"


FILES = {
    "polars": lambda path: module("polars").scan_parquet(path),
    "duckdb": lambda path: module("duckdb").connect().sql(f"select * from read_parquet('{path}')"),
    "groups": lambda path: module("pyarrow.parquet").ParquetFile(path),
    "dataset": lambda path: module("pyarrow.dataset").dataset(path),
    "hugging face": lambda path: module("datasets").Dataset.from_parquet(
        str(path), cache_dir=str(path.parent / "cache")
    ),
}


@pytest.mark.parametrize("source", FILES)
def test_of_a_file_python_holds_less_than_two_batches(source, large_file):
    """What a library itself reads ahead is not Python's."""
    held, model = FILES[source](large_file), StreamingPCA(3)
    model.fit(iter_batches(held, batch_size=BATCH))  # what is imported on the way
    assert peak_bytes(lambda: model.fit(iter_batches(held, batch_size=BATCH))) < TWO
    assert model.n_samples_ == MANY * BATCH
