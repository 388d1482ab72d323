"""The same 60 rows of four named columns in whatever holds rows; modules that lack are a skip."""

import numpy as np
import pandas as pd
import pytest

NAMES = ["heat", "light", "noise", "wind"]
FRAME = pd.DataFrame(np.random.default_rng(0).standard_normal((60, 4)), columns=NAMES)


def module(name):
    return pytest.importorskip(name)


def columns(frame):
    return {n: frame[n].to_numpy() for n in frame}


# ------------------------------------------------------------------------------ rows


def in_pandas(frame):
    return frame


def in_polars(frame):
    return module("polars").DataFrame(columns(frame))


def in_table(frame):
    return module("pyarrow").table(columns(frame))


def in_record_batch(frame):
    return in_table(frame).to_batches()[0]


NAMED = [in_pandas, in_polars, in_table, in_record_batch]

# ------------------------------------------------------------------------------ batches of rows


def lazy_frame(folder):
    return in_polars(FRAME).lazy()


def relation(folder):
    connection = module("duckdb").connect()
    connection.register("frame", in_table(FRAME))
    return connection.sql("select * from frame")


def parquet(folder):
    held, path = in_table(FRAME), folder / "rows.parquet"
    module("pyarrow.parquet").write_table(held, path, row_group_size=25)
    return module("pyarrow.parquet").ParquetFile(path)


def dataset(folder):
    parquet(folder)
    return module("pyarrow.dataset").dataset(folder / "rows.parquet")


def scanner(folder):
    return dataset(folder).scanner(batch_size=7)


def reader(folder):
    return in_table(FRAME).to_reader(7)


def of_parquet(folder):
    return parquet(folder).iter_batches(7)


def of_dataset(folder):
    return dataset(folder).to_batches(batch_size=7)


def hugging_face(folder):
    return module("datasets").Dataset.from_dict({n: FRAME[n] for n in NAMES})


def loader(folder):
    data = module("torch.utils.data")
    torch = module("torch")
    pairs = data.TensorDataset(torch.tensor(FRAME.to_numpy()), torch.arange(60))
    return data.DataLoader(pairs, batch_size=7)


READERS = [lazy_frame, relation, parquet, dataset, scanner]
SOURCES = [*READERS, reader, of_parquet, of_dataset, hugging_face, loader]
