"""
======================================
Bags of words, too wide for dense rows
======================================

Twenty thousand made documents of 80 words, out of a hundred thousand words whose frequencies fall
like 1 / rank (Zipf's law). As dense rows they are 16 GB. One word in ten comes from the words of
the document's topic, and there are five topics. `StreamingPCA` takes the sparse rows in batches,
centres them without densifying, and keeps a few directions.
"""

import tracemalloc
from time import perf_counter

import matplotlib.pyplot as plt
import numpy as np
import scipy.sparse as sp
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfTransformer

from fedpca_sklearn import StreamingPCA

plt.style.use("tableau-colorblind10")
N_DOCUMENTS, N_WORDS, N_TOPICS = 20_000, 100_000, 5
WORDS_OF_TOPIC = 1000
rng = np.random.default_rng(0)


def zipf(n_words, size):
    """Words by Zipf's law, as their ranks."""
    frequency = 1 / np.arange(1, n_words + 1)
    return np.searchsorted(np.cumsum(frequency / frequency.sum()), rng.random(size))


topic = rng.integers(0, N_TOPICS, N_DOCUMENTS)
document = np.repeat(np.arange(N_DOCUMENTS), rng.poisson(80, N_DOCUMENTS))
word = zipf(N_WORDS, len(document))
on_topic = rng.random(len(document)) < 0.1
special = rng.choice(np.arange(200, N_WORDS), (N_TOPICS, WORDS_OF_TOPIC), replace=False)
word[on_topic] = special[topic[document[on_topic]], zipf(WORDS_OF_TOPIC, on_topic.sum())]
counts = sp.csr_array((np.ones(len(word)), (document, word)), shape=(N_DOCUMENTS, N_WORDS))
weighted = sp.csr_array(TfidfTransformer(sublinear_tf=True).fit_transform(counts))
print(f"{counts.nnz:,} non-zero counts, {counts.nnz / np.prod(counts.shape):.3%} of the entries")

# %%
# Counts, and counts weighted by how rare a word is
# -------------------------------------------------
# *told*: the share of a score's variance that lies between the topics, for each component.


def in_batches(X):
    """Components from batches of 1,000 documents."""
    return StreamingPCA(N_TOPICS).fit(X[i : i + 1000] for i in range(0, X.shape[0], 1000))


def told(scores):
    """Variance between topics over the whole."""
    means = np.array([scores[topic == t].mean(axis=0) for t in range(N_TOPICS)])
    return np.var(means[topic], axis=0) / np.var(scores, axis=0)


fits = {
    "counts": (in_batches, counts),
    "weighted": (in_batches, weighted),
    "weighted, TruncatedSVD": (TruncatedSVD(N_TOPICS, random_state=0).fit, weighted),
}
scores, peaks = {}, {}
print(f"{'':24}{'seconds':>8}{'peak MB':>9}   told by each component")
for name, (fit, rows) in fits.items():
    tracemalloc.start()
    start = perf_counter()
    fitted = fit(rows)
    seconds = perf_counter() - start
    peaks[name] = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    scores[name] = fitted.transform(rows)
    print(f"{name:24}{seconds:8.2f}{peaks[name] / 1e6:9.1f}   {told(scores[name]).round(2)}")

# %%
# Components of raw counts are about the commonest words and tell nothing of the topics. Weighted by
# rarity, four components tell five topics apart; a fifth has nothing left to tell, as deviations
# from the mean of five groups have four dimensions. TruncatedSVD of scikit-learn finds the same
# after a first component that is about the mean. While all sparse rows fit in memory it is faster
# and takes less; the peak of `StreamingPCA` does not grow with the number of documents, only with
# the number of words.

axes = [plt.subplots(figsize=(5, 3.8), layout="constrained")[1] for _ in range(3)]
shown = rng.permutation(N_DOCUMENTS)[:2500]
for ax, (name, title) in zip(
    axes,
    {"counts": "Counts: common words", "weighted": "Weighted: the five topics"}.items(),
    strict=False,
):
    for t, (color, marker) in enumerate(zip(("C0", "C1", "C2", "C3", "C5"), ".x+^s", strict=True)):
        rows = shown[topic[shown] == t]
        ax.scatter(
            *scores[name][rows, :2].T, s=12, c=color, marker=marker, lw=0.8, label=f"topic {t + 1}"
        )
    ax.set(xlabel="score 1", ylabel="score 2", title=title)
axes[1].legend(fontsize=8)
bytes_of = {
    "dense rows": 8 * N_DOCUMENTS * N_WORDS,
    "1,000 dense rows": 8 * 1000 * N_WORDS,
    "sparse rows": weighted.data.nbytes + weighted.indices.nbytes + weighted.indptr.nbytes,
    "StreamingPCA, peak": peaks["weighted"],
    "TruncatedSVD, peak": peaks["weighted, TruncatedSVD"],
}
bars = axes[2].barh(
    list(bytes_of), [n / 1e6 for n in bytes_of.values()], color=["0.7"] * 3 + ["C0", "C1"]
)
axes[2].bar_label(bars, [f"{n / 1e6:,.0f} MB" for n in bytes_of.values()], padding=3)
axes[2].set(xscale="log", xlabel="MB", title="Sparse rows stay sparse", xlim=(1, 1e6))
axes[2].invert_yaxis()
plt.show()

# sphinx_gallery_thumbnail_number = 2
