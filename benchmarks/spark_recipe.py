"""A summary and an associative merge on Spark: the recipe of the guide, run where it is installed.

Needs ``pip install pyspark`` and Java. Rows of 20 partitions are summarised where they are, and the
summaries merged in a tree; compared with a fit in this process.
"""

import os
import sys
from functools import partial
from importlib.util import find_spec
from time import perf_counter

import numpy as np

from benchmarks._tools import left_out, table
from fedpca_sklearn import StreamingPCA, excess_error, make_power_law, merge_subspaces

KEPT = 45  # 20 components and as many again and a quarter, as StreamingPCA keeps


def summarise(rows):
    """The summary of a partition, if it has rows."""
    X = np.array(list(rows))
    if len(X):
        yield StreamingPCA(20).fit(X).subspace_


def merge(a, b):
    """The summary of the rows of both."""
    return merge_subspaces([a, b], KEPT)


def make_partition(d, seed):
    """Rows as a partition of a data source would hold them."""
    return list(make_power_law(1000, d, alpha=1.0, random_state=seed))


def main(quick=False):
    if find_spec("pyspark") is None:
        left_out("pyspark", "which is not installed: nothing to compare")
        return
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        d, parts = (60 if quick else 300), (4 if quick else 20)
        rows = session.sparkContext.parallelize(range(parts), parts).flatMap(
            partial(make_partition, d)
        )
        rows.cache().count()
        start = perf_counter()
        summary = rows.mapPartitions(summarise).treeReduce(merge)
        seconds = perf_counter() - start
    finally:
        session.stop()
    X = np.concatenate([make_partition(d, seed) for seed in range(parts)])
    start = perf_counter()
    here = StreamingPCA(20).fit(X)
    seconds_here = perf_counter() - start
    table(
        "spark_recipe",
        [
            {
                "rows": len(X),
                "features": d,
                "seconds on Spark": seconds,
                "seconds here": seconds_here,
                "excess error on Spark": excess_error(X, summary.components[:20], summary.mean),
                "excess error here": excess_error(X, here.components_, here.mean_),
                "mean, largest error": np.abs(summary.mean - X.mean(axis=0)).max(),
            }
        ],
    )
