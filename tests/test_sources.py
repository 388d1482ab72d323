"""Everything that holds batches of rows gives those batches, and estimators of streams take it."""

from collections import deque

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from golden_cases import made
from helpers import peak_bytes
from holders import (
    FRAME,
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

from fedpca_sklearn import FederatedPCA, StreamingPCA, StreamingPowerMethod, iter_batches

X = FRAME.to_numpy()


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
    assert sp.issparse(next(iter_batches(iter([(sp.csr_array(X), 0)]))))
    dicts = [{n: FRAME[n].to_numpy() for n in names} for names in (NAMES, NAMES[::-1])]
    assert_array_equal(next(iter_batches(iter(dicts))), X)
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
