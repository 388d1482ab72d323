"""
===================================
Chunks of a Dask array, in one pass
===================================

A Dask array is made of chunks that need not be in memory together. `StreamingPCA` takes each chunk
once, as a stream of its own, and merges the summaries in a tree. Dask's own ``svd_compressed``
multiplies the rows with a random matrix, and again in each iteration, so that chunks stay in memory
or are made again. Here they are random numbers, made when they are asked for. The script
needs ``pip install "fedpca-sklearn[dask,plot]"``.
"""

import tracemalloc
from time import perf_counter

import dask.array as da
import matplotlib.pyplot as plt
import numpy as np

from fedpca_sklearn import StreamingPCA

plt.style.use("tableau-colorblind10")
N_ROWS, N_FEATURES, RANK = 40_000, 400, 10
deviations = np.arange(1, N_FEATURES + 1) ** -0.5  # variances fall like 1 / i
normal = da.random.default_rng(0).standard_normal((N_ROWS, N_FEATURES), chunks=(2500, N_FEATURES))
lazy = 1 + deviations * normal
print(lazy)


def compressed(n_power_iter):
    """Components of the centred rows by Dask's randomised SVD."""

    def fit():
        centred = lazy - lazy.mean(axis=0)
        _, _, V = da.linalg.svd_compressed(centred, RANK, n_power_iter=n_power_iter, seed=0)
        return V.compute()

    return fit


# %%
# Error, time and memory
# ----------------------
# *excess*: reconstruction error over the best possible, minus one. Time and peak memory are those
# of Dask's threads, and include making the chunks.

rows = lazy.compute()
covariance = np.cov(rows.T)
best = np.linalg.eigvalsh(covariance)[:-RANK].sum()


def excess(V):
    """Variance that components leave, over the least possible, minus one."""
    return (np.trace(covariance) - np.sum((V @ covariance) * V)) / best - 1


ways = {f"svd_compressed, {q} iterations": compressed(q) for q in (0, 2, 4)}
ways["da.linalg.svd"] = lambda: da.linalg.svd(lazy - lazy.mean(axis=0))[2][:RANK].compute()
ways["StreamingPCA"] = lambda: StreamingPCA(RANK).fit(lazy).components_
figures = {}
print(f"{'':30}{'excess':>9}{'seconds':>9}{'peak MB':>9}")
for name, fit in ways.items():
    tracemalloc.start()
    start = perf_counter()
    components = fit()
    seconds = perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    figures[name] = max(excess(components), 1e-12), seconds, peak
    print(f"{name:30}{figures[name][0]:9.1e}{seconds:9.2f}{peak:9.0f}")

# %%
# Where all rows fit in memory and an error of some percent is small enough, ``svd_compressed`` is
# quickest. `StreamingPCA` keeps all directions of 400 features, so that it is as exact as
# ``da.linalg.svd``, and takes a quarter of its memory: it holds a few chunks, not all rows. With
# ``compute=True`` the randomised SVD makes its chunks again and again, and takes no less memory.

axes = [plt.subplots(figsize=(5, 3.8), layout="constrained")[1] for _ in range(2)]
axes[0].set(xlabel="seconds", title="Time, with that of making the chunks")
axes[1].set(xlabel="peak memory (MB)", title="Memory: a few chunks instead of all rows")
style = {"textcoords": "offset points", "ha": "center"}
for name, (error, *costs) in figures.items():
    group = name.split(",")[0]
    color, marker = {"svd_compressed": ("C1", "s"), "StreamingPCA": ("C0", "o")}.get(
        group, ("C3", "D")
    )
    for ax, cost in zip(axes, costs, strict=True):
        ax.plot(cost, error, marker, color=color, markersize=10)
        shift = -18 if name == "StreamingPCA" else 9
        label = name.replace("svd_compressed, ", "")
        ax.annotate(label, (cost, error), xytext=(0, shift), **style)
axes[1].axvline(rows.nbytes / 1e6, color="0.6", ls="--", zorder=0)
axes[1].text(rows.nbytes / 1e6, 1e-9, "all rows ", color="0.4", ha="right")
axes[0].plot([], [], "s", color="C1", label="svd_compressed")
axes[0].legend(loc="lower left")
for ax in axes:
    ax.set(ylabel="excess reconstruction error")
    ax.set(yscale="log", xlim=(0, 1.2 * ax.get_xlim()[1]), ylim=(1e-14, 4))
plt.show()

# sphinx_gallery_thumbnail_number = 2
