"""Sparse 20 Newsgroups (19,997 x 169,241, log1p, row-normalised, r = 10) beside gensim's LsiModel.

gensim does not centre, so StreamingPCA is run in both ways, and the excess error is given about the
mean (PCA) and about the origin (what gensim approximates). "gensim, matrix" hands gensim one sparse
matrix, its fastest input; "gensim, corpus" is its documented streaming input.
"""

from importlib.util import find_spec

import numpy as np
import scipy.sparse as sp
from sklearn.decomposition import TruncatedSVD

from benchmarks._tools import interleaved, left_out, load, peak_bytes, picture, table
from fedpca_sklearn import StreamingPCA, excess_error

RANK = 10


def text_matrix(path):
    """log1p of the counts, rows of norm 1, shuffled."""
    X = sp.load_npz(path).astype(np.float64)
    X.data = np.log1p(X.data)
    norms = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    X = sp.csr_array(sp.diags_array(1 / np.where(norms > 0, norms, 1)) @ X)
    return X[np.random.default_rng(0).permutation(X.shape[0])]


def in_batches(X, size, **parameters):
    """Stream by partial_fit."""
    model = StreamingPCA(RANK, **parameters)
    for start in range(0, X.shape[0], size):
        model.partial_fit(X[start : start + size])
    return model


def main(quick=False):
    path = load("newsgroups20_counts.npz")
    if path is None:
        return
    X = text_matrix(path)
    if quick:  # words of at least three of 1,000 texts
        X = X[:1000]
        X = X[:, (X != 0).sum(axis=0) > 2]
    calls = {
        "StreamingPCA": lambda: StreamingPCA(RANK).fit(X),
        "StreamingPCA(center=False)": lambda: StreamingPCA(RANK, center=False).fit(X),
        "StreamingPCA, 1,000 rows a time": lambda: in_batches(X, 1000),
        "StreamingPCA(block_size=64)": lambda: StreamingPCA(RANK, block_size=64).fit(X),
        "TruncatedSVD('randomized')": lambda: TruncatedSVD(RANK, random_state=0).fit(X),
        "TruncatedSVD('arpack')": lambda: TruncatedSVD(RANK, algorithm="arpack").fit(X),
    }
    for name, corpus in (("gensim, matrix", False), ("gensim, corpus", True)):
        if has_gensim():
            calls[name] = lambda corpus=corpus: Gensim(RANK, corpus).fit(X)
    seconds, models = interleaved(calls, repeats=1 if quick else 3)
    ours = seconds["StreamingPCA"][0]
    rows = [
        {
            "estimator": name,
            "seconds": median,
            "over StreamingPCA": median / ours,
            "excess (mean)": excess_error(X, models[name].components_),
            "excess (origin)": excess_error(X, models[name].components_, 0.0),
            "peak MB": peak_bytes(calls[name]) / 1e6,
        }
        for name, (median, _) in seconds.items()
    ]
    table("sparse_text", rows)

    def draw(ax):
        for row in rows:
            best = min(row["excess (mean)"], row["excess (origin)"])
            ax.loglog(row["seconds"], max(best, 1e-9), "o", label=row["estimator"])
        ax.set(xlabel="seconds", ylabel="excess error, about mean or origin", title="20 Newsgroups")
        ax.legend(fontsize=7)

    picture("sparse_text", draw)


def has_gensim():
    """Whether gensim is installed; it is said where it is not."""
    there = find_spec("gensim") is not None
    if not there:
        left_out("gensim", "which is not installed")
    return there


class Gensim:
    """LsiModel in scikit-learn's terms, of one sparse matrix or of its documents one by one."""

    def __init__(self, n_components, corpus=False):
        self.n_components, self.corpus = n_components, corpus

    def fit(self, X):
        """Find components about the origin."""
        from gensim.matutils import Sparse2Corpus
        from gensim.models import LsiModel

        corpus = Sparse2Corpus(X, documents_columns=False) if self.corpus else None
        words = {X.shape[1] - 1: "last"}
        model = LsiModel(corpus, num_topics=self.n_components, id2word=words)
        if not self.corpus:
            model.add_documents(sp.csc_matrix(X.T))
        self.components_ = model.projection.u.T
        return self
