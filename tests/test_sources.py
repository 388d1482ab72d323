"""Everything that holds batches of rows gives those batches, and estimators of streams take it."""

import tracemalloc
from collections import deque

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers import peak_bytes
from numpy.testing import assert_allclose, assert_array_equal

from fedpca_sklearn import (
    FederatedPCA,
    FederatedSubspaceTracker,
    OjaPCA,
    StreamingPCA,
    StreamingPowerMethod,
    SubspaceTracker,
    iter_batches,
)

NAMES = ["heat", "light", "noise", "wind"]
FRAME = pd.DataFrame(np.random.default_rng(0).standard_normal((60, 4)), columns=NAMES)
X = FRAME.to_numpy()


def table():
    return pytest.importorskip("pyarrow").table({n: FRAME[n].to_numpy() for n in NAMES})


def lazy_frame(folder):
    return pytest.importorskip("polars").DataFrame({n: FRAME[n].to_numpy() for n in NAMES}).lazy()


def relation(folder):
    connection = pytest.importorskip("duckdb").connect()
    connection.register("frame", table())
    return connection.sql("select * from frame")


def parquet(folder):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    pyarrow.parquet.write_table(table(), folder / "rows.parquet", row_group_size=25)
    return pyarrow.parquet.ParquetFile(folder / "rows.parquet")


def dataset(folder):
    parquet(folder)
    import pyarrow.dataset

    return pyarrow.dataset.dataset(folder / "rows.parquet")


def scanner(folder):
    return dataset(folder).scanner(batch_size=7)


def reader(folder):
    return table().to_reader(7)


def hugging_face(folder):
    return pytest.importorskip("datasets").Dataset.from_dict({n: FRAME[n] for n in NAMES})


def loader(folder):
    data = pytest.importorskip("torch.utils.data")
    torch = pytest.importorskip("torch")
    pairs = data.TensorDataset(torch.tensor(X), torch.arange(60))
    return data.DataLoader(pairs, batch_size=7)


SOURCES = [lazy_frame, relation, parquet, dataset, scanner, reader, hugging_face, loader]
NAMED = SOURCES[:6]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "model",
    [
        StreamingPCA(2),
        OjaPCA(2),
        SubspaceTracker(2, batch_size=9),
        FederatedSubspaceTracker(2, batch_size=60, random_state=0, n_clients=1),
    ],
    ids=lambda model: type(model).__name__,
)
def test_a_stream_is_fitted_of_it(source, model, tmp_path):
    want = model.fit(X).components_
    fitted = model.fit(source(tmp_path))
    assert_allclose(fitted.components_, want, atol=1e-12)
    if source in NAMED:
        assert list(fitted.feature_names_in_) == NAMES
    assert fitted.partial_fit(source(tmp_path)).n_samples_ == 120


@pytest.mark.parametrize("source", SOURCES)
def test_rows_come_in_their_order_in_batches(source, tmp_path):
    batches = list(iter_batches(source(tmp_path), batch_size=7))
    assert_array_equal(np.concatenate([np.asarray(b) for b in map(in_numpy, batches)]), X)
    if source is not relation:
        assert max(in_numpy(b).shape[0] for b in batches) <= 7


def in_numpy(batch):
    """A batch as an array; of Arrow through pandas."""
    return np.asarray(batch.to_pandas() if hasattr(batch, "to_pandas") else batch)


@pytest.mark.parametrize("source", [*SOURCES[:4], hugging_face])
def test_columns_are_chosen_by_name_and_order(source, tmp_path):
    batches = iter_batches(source(tmp_path), columns=["wind", "heat"])
    assert_array_equal(np.concatenate([*map(in_numpy, batches)]), FRAME[["wind", "heat"]])


def test_columns_of_frames_and_tables_in_an_iterable():
    for batches in ([FRAME[:9], FRAME[9:]], [table()]):
        chosen = iter_batches(iter(batches), columns=["wind", "heat"])
        assert_array_equal(np.concatenate([*map(in_numpy, chosen)]), FRAME[["wind", "heat"]])


def test_an_entry_may_hold_whole_rows():
    pa = pytest.importorskip("pyarrow")
    torch = pytest.importorskip("torch")
    rows = pa.FixedSizeListArray.from_arrays(X.ravel(), 4)
    embedded = pa.table({"text": ["a"] * 60, "embedding": rows})
    data = pytest.importorskip("datasets").Dataset(embedded)
    dicts = [{"text": ["a"] * 30, "embedding": torch.tensor(part)} for part in (X[:30], X[30:])]
    for source in (embedded.to_reader(7), embedded.to_batches(), data, iter(dicts)):
        pca = StreamingPCA(2).fit(iter_batches(iter_or(source), columns="embedding"))
        assert_allclose(pca.components_, StreamingPCA(2).fit(X).components_, atol=1e-12)


def iter_or(source):
    return iter(source) if isinstance(source, list) else source


def test_pairs_dicts_and_sparse_batches():
    pairs = [(X[:40], np.zeros(40)), (X[40:], np.zeros(20))]
    assert_array_equal(np.concatenate(list(iter_batches(iter(pairs)))), X)
    dicts = [{name: list(FRAME[name]) for name in NAMES}]
    assert_array_equal(next(iter_batches(iter(dicts))), X)
    sparse = [(sp.csr_array(X), 0)]
    assert sp.issparse(next(iter_batches(iter(sparse))))
    as_before = [X[:40], X[40:]]
    assert_array_equal(next(iter_batches(as_before)), X[:40])


def test_columns_of_dicts_stay_in_their_order():
    dicts = [{n: FRAME[n].to_numpy() for n in names} for names in (NAMES, NAMES[::-1])]
    with pytest.raises(ValueError, match="A batch that is a dict has the same features in another"):
        StreamingPCA(2).fit(iter_batches(iter(dicts)))
    chosen = [next(iter_batches(iter([one]), columns=NAMES)) for one in dicts]
    assert_array_equal(*chosen)
    with_targets = [(one, np.zeros(60)) for one in dicts]
    batches = list(iter_batches(iter(with_targets), columns=["wind", "heat"]))
    assert_array_equal(batches[1], FRAME[["wind", "heat"]])


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


@pytest.mark.parametrize(
    "batches",
    [
        Sized(PARTS),
        Indexed(PARTS),
        deque(PARTS),
        dict(zip("abcd", PARTS, strict=True)).values(),
        Sized([(part, np.zeros(15)) for part in PARTS]),
        Indexed([(part, np.zeros(15)) for part in PARTS]),
    ],
    ids=lambda batches: type(batches).__name__,
)
def test_batches_of_a_known_number_are_taken(batches):
    assert_array_equal(np.concatenate(list(iter_batches(batches))), X)
    for model in (StreamingPCA(2), SubspaceTracker(2, batch_size=9)):
        want = model.fit(X).components_
        assert_allclose(model.fit(batches).components_, want, atol=1e-12)


def test_items_of_an_object_that_are_rows_are_no_batches():
    held = Indexed(X.tolist())
    assert_allclose(StreamingPCA(2).fit(held).components_, StreamingPCA(2).fit(X).components_)
    with pytest.raises(TypeError, match="X must hold batches of rows, got Indexed"):
        iter_batches(held)


def test_what_is_no_stream_is_refused():
    for held in (X, FRAME, 3, "rows.parquet", {1, 2}, {"a": X}, X.tolist()):
        with pytest.raises(TypeError, match="X must hold batches of rows, got"):
            iter_batches(held)
    with pytest.raises(ValueError, match="batch_size must be an integer of at least 1, got 0"):
        iter_batches([X], batch_size=0)
    for columns in -1, 0, 2.5:
        with pytest.raises(TypeError, match=f"columns must be a name or .* got {columns!r}"):
            iter_batches([X], columns=columns)
    with pytest.raises(TypeError, match="columns can be chosen by name only, got ndarray"):
        list(iter_batches([X], columns=["heat"]))
    with pytest.raises(TypeError, match=r"columns must name.*'text': \(2,\)"):
        next(iter_batches(iter([{"text": ["a", "b"], "n": [1, 2]}])))
    with pytest.raises(KeyError, match="rain"):
        list(iter_batches(iter([{"heat": [1, 2]}]), columns=["rain"]))


def test_rows_of_several_clients_are_needed_at_once(tmp_path):
    with pytest.raises(TypeError, match=r"iter_batches\(X\)"):
        FederatedPCA(2).fit(dataset(tmp_path))


BATCH, WIDTH, MANY = 16_000, 40, 3  # a megabyte of which transform takes at once


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
        torch = pytest.importorskip("torch")
        return torch.from_numpy(batch_of(number)), torch.zeros(BATCH)


def torch_loader():
    return pytest.importorskip("torch.utils.data").DataLoader(Numbered(), batch_size=None)


MADE = {
    "arrays": lambda: (batch_of(i) for i in range(MANY)),
    "frames": lambda: (frame_of(i) for i in range(MANY)),
    "pairs": lambda: ((batch_of(i), np.zeros(BATCH)) for i in range(MANY)),
    "dicts": lambda: iter_batches(({"X": batch_of(i)} for i in range(MANY)), columns="X"),
    "torch": torch_loader,
}


@pytest.mark.parametrize(
    ("model", "source"),
    [*((StreamingPCA(3), source) for source in MADE), (StreamingPowerMethod(3), "arrays")],
    ids=str,
)
def test_a_fit_holds_less_than_two_batches(model, source):
    model.fit(MADE[source]())  # what is imported on the way
    assert peak_bytes(lambda: model.fit(MADE[source]())) < 2 * BATCH * WIDTH * 8
    assert model.n_samples_ == MANY * BATCH


@pytest.fixture(scope="module")
def large_file(tmp_path_factory):
    """A parquet file of a batch in each row group."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet

    folder = tmp_path_factory.mktemp("large")
    columns = np.random.default_rng(0).standard_normal((WIDTH, MANY * BATCH))
    held = pa.table({str(j): column for j, column in enumerate(columns)})
    pyarrow.parquet.write_table(held, folder / "X", row_group_size=BATCH, use_dictionary=False)
    return folder / "X"


def scanned(path):
    return pytest.importorskip("polars").scan_parquet(path)


def queried(path):
    return pytest.importorskip("duckdb").connect().sql(f"select * from read_parquet('{path}')")


def by_groups(path):
    return pytest.importorskip("pyarrow.parquet").ParquetFile(path)


def as_dataset(path):
    return pytest.importorskip("pyarrow.dataset").dataset(path)


def hugging_face_file(path):
    cache = str(path.parent / "cache")
    return pytest.importorskip("datasets").Dataset.from_parquet(str(path), cache_dir=cache)


@pytest.mark.parametrize("source", [scanned, queried, by_groups, as_dataset, hugging_face_file])
def test_of_a_file_python_holds_less_than_two_batches(source, large_file):
    """What a library itself reads ahead is not Python's."""
    held, model = source(large_file), StreamingPCA(3)
    model.fit(iter_batches(held, batch_size=BATCH))  # what is imported on the way
    assert (
        peak_bytes(lambda: model.fit(iter_batches(held, batch_size=BATCH))) < 2 * BATCH * WIDTH * 8
    )
    assert model.n_samples_ == MANY * BATCH


@pytest.mark.parametrize("source", MADE)
def test_coordinates_of_a_stream_come_one_batch_after_the_other(source):
    pca, seen = StreamingPCA(3).fit(MADE[source]()), []

    def go():
        for Z in map(pca.transform, iter_batches(MADE[source]())):
            seen.append(Z.shape)

    assert peak_bytes(go) < 2 * BATCH * WIDTH * 8
    assert seen == [(BATCH, 3)] * MANY


def test_few_batches_of_a_file_are_in_memory(tmp_path):
    """Of twenty: Python holds less than two, Arrow what its threads read ahead, not half."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.dataset
    import pyarrow.parquet

    n, d, rows = 20_000, 50, 1_000
    columns = np.random.default_rng(0).standard_normal((d, n))
    held, path = pa.table({str(j): column for j, column in enumerate(columns)}), tmp_path / "X"
    pyarrow.parquet.write_table(held, path, row_group_size=rows, use_dictionary=False)
    del held
    for source in (pyarrow.parquet.ParquetFile(path), pyarrow.dataset.dataset(path)):
        before, most = pa.total_allocated_bytes(), 0
        tracemalloc.start()
        try:
            for _ in iter_batches(source, batch_size=rows):
                most = max(most, pa.total_allocated_bytes() - before)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert most < 10 * rows * d * 8
        assert peak < 2 * rows * d * 8
