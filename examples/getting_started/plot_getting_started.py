"""
==============================
Getting started in ten minutes
==============================

Install the library with the extra for pictures, in Python 3.11 or newer::

    pip install "fedpca-sklearn[plot]"

Then run this page: at its end it can be downloaded as a notebook or as a script. There are three
parts, for three kinds of users, and each ends with a result of your own. Read the one that is
about you:

- **One process**: you have all rows, and want to know what sites would find that may not share
  them.
- **Sites**: your rows are at several places, and have to stay there.
- **Streams**: your rows come in batches, or do not fit in memory.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    FederatedPCA,
    StreamingPCA,
    Subspace,
    SubspaceMonitor,
    excess_error,
    subspace_distance,
)

plt.style.use("tableau-colorblind10")

# %%
# The rows
# --------
# All three parts use scikit-learn's digits: 1,797 images of 8 x 8 pixels. A row is an image, a
# column is a pixel. Put your own rows in their place: an array with a row for each sample.

X, y = load_digits(return_X_y=True)
print(X.shape)

# %%
# One process
# -----------
# ``clients`` says which site each row belongs to. Here there are ten sites, and each has the images
# of one digit only. The estimator does what ten sites and a server would do: each site summarises
# its rows, and the server merges the summaries.

pca = FederatedPCA(n_components=10).fit(X, clients=y)
print(f"{pca.explained_variance_ratio_.sum():.3f}")

# %%
# Ten components have 74 % of the variance of all rows. How good is that? Real sites could not find
# out, as none may share its rows. You can, as you have them all:

pooled = PCA(n_components=10).fit(X)
alone = PCA(n_components=10).fit(X[y == 0])  # what the site with the zeros finds by itself
print(f"together: {subspace_distance(pca.components_, pooled.components_):.0e}")
print(f"one site: {subspace_distance(alone.components_, pooled.components_):.2f}")

# %%
# ``subspace_distance`` is the sine of the largest angle between two subspaces: 0 if they are equal,
# 1 if one has a direction that is at right angles to the other. So the sites together find what
# PCA of all rows finds, up to rounding, and one site alone finds something else.
#
# And what did they send?

print(pca.communication_)
print(f"the rows themselves: {X.size:,} floats")

# %%
# One round, and a third of the floats that the rows have. A site with many rows still sends no more
# than its summary, so the share falls as the rows grow.
#
# From here on the estimator is used as any other of scikit-learn:

scores = pca.transform(X)
fig, ax = plt.subplots(figsize=(5, 3.8), layout="constrained")
for digit, marker in zip((0, 1, 4), "os^", strict=True):
    ax.scatter(*scores[y == digit, :2].T, s=12, marker=marker, alpha=0.6, label=f"digit {digit}")
ax.set(xlabel="component 1", ylabel="component 2", title="Three of ten sites, on common components")
ax.legend()
plt.show()

# %%
# **Your own result**: put your rows and their sites in the place of ``X`` and ``y``, and look at
# the two distances. If one site alone is near to all, you need no federation.
#
# Sites
# -----
# This is what each site runs. A file has a summary of the rows: components, singular values, mean
# and count. It has no code, so that nobody has to trust the sender.

folder = tempfile.TemporaryDirectory()  # yours: where the coordinator gets files from
files = {site: Path(folder.name, f"{site}.subspace") for site in ("north", "south")}
for site, rows in {"north": X[y < 5], "south": X[y >= 5]}.items():
    StreamingPCA(n_components=20).fit(rows).subspace_.save(files[site], site=site)

# %%
# And this is what the coordinator runs, who has the files and no row:

merged = FederatedPCA.from_subspaces(map(Subspace.load, files.values()), n_components=10)
folder.cleanup()
print(merged.clients_, merged.n_samples_)
print(f"{subspace_distance(merged.components_, pooled.components_):.0e}")

# %%
# The coordinator knows who took part, and how many rows they have in all. The components are again
# those of all rows: with up to 256 features nothing is cut. With more, a file has the leading
# directions, and ``subspace_error_bound_`` tells how far off the result can be:

print(f"{merged.subspace_error_bound_:.0e}")

# %%
# A summary is not the rows, but it tells a lot about them. Where the rows are about people, let the
# sites add noise with a proven guarantee before they write the file.
#
# **Your own result**: run the two steps above on two of your computers. Over a network, sites are
# connected by Flower instead of files.
#
# Streams
# -------
# ``partial_fit`` takes the next batch and forgets its rows. What stays in memory is a summary; its
# size does not depend on the number of rows.

stream = StreamingPCA(n_components=10)
batches = np.array_split(X, 18)
errors = []
for batch in batches:
    stream.partial_fit(batch)
    errors.append(excess_error(X, stream.components_))
for n in 1, 9, 18:
    print(f"after {n:2} batches: {errors[n - 1]:.0e}")

# %%
# The excess error compares the components with the best ten for **all** rows: 0.1 would be a
# reconstruction error that is 10 % above the least possible. After one batch the components are
# those of 100 images; at the end they are the best ones, and no row was kept.
#
# What if a row does not fit? `SubspaceMonitor` goes around an estimator, and says which rows are
# unlike the others, before it learns them:

monitor = SubspaceMonitor(StreamingPCA(n_components=10), contamination=0.01)
for batch in batches:
    monitor.partial_fit(batch)
strange = X[:5].copy()
strange[2] = np.random.default_rng(0).permutation(strange[2])  # the pixels of one image are mixed
print(monitor.predict(strange))

# %%
# -1 is a row that does not fit, here the third one.
#
# **Your own result**: put an iterator over your files in the place of ``batches``. If what you
# measure changes with time, choose how fast old rows are forgotten:
# ``StreamingPCA(forgetting_factor=0.99)``.
#
# Where to go next
# ----------------
# - Which estimator is for my problem? :doc:`/choosing`
# - How do I do this task? :doc:`/howto/index`: parquet files, the number of components, privacy,
#   restarts
# - What goes wrong easily? :doc:`/howto/pitfalls`
# - What is computed, and from which paper? :doc:`/guide/index`
# - Longer examples, with other data: :doc:`/auto_examples/index`
