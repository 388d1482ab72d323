"""
=========================
Sites that exchange files
=========================

Three growers measure 13 properties of their wines (scikit-learn's wine data, a cultivar for each
grower). They have no network in common and send files. A file holds the summary of a site's rows
and no pickle; the coordinator looks into it before merging, and is told what is wrong.
"""

import contextlib
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA

from fedpca_sklearn import FederatedPCA, ScreeDisplay, StreamingPCA, Subspace, subspace_distance
from fedpca_sklearn.__main__ import main

plt.style.use("tableau-colorblind10")
wine = load_wine()
# Units that all growers agree on beforehand, so that no property drowns the others.
unit = np.array([1, 1, 0.3, 3, 15, 0.6, 1, 0.1, 0.6, 2, 0.2, 0.7, 300])
sites = {
    name: wine.data[wine.target == i] / unit for i, name in enumerate(("north", "south", "west"))
}
folder = tempfile.TemporaryDirectory()

# %%
# At each site
# ------------
# With 13 columns all 13 directions are sent, for these few rows about a third of their bytes. The
# file does not grow with the rows.

files = {}
for name, X in sites.items():
    files[name] = Path(folder.name, f"{name}.subspace")
    StreamingPCA().fit(X).subspace_.save(files[name], site=name)
    print(f"{name}: {files[name].stat().st_size:,} bytes for {len(X)} rows of {X.nbytes:,} bytes")

# %%
# At the coordinator
# ------------------
# The same on the command line: ``fedpca inspect north.subspace``, and ``merge``.

with contextlib.chdir(folder.name):
    main(["inspect", "north.subspace"])
common = FederatedPCA.from_subspaces([Subspace.load(f) for f in files.values()], n_components=6)
pooled = PCA(6).fit(np.vstack(list(sites.values())))
distance = subspace_distance(common.components_, pooled.components_)
print(f"sine of the angle to PCA of the pooled rows: {distance:.0e}")

# %%
# What goes wrong in practice: a file is damaged on its way, sent twice, or has other columns. What
# is *not* noticed are the same rows under two names, or wrong rows in the right form.

damaged = bytearray(files["south"].read_bytes())
damaged[-20] ^= 1  # a single bit
loaded = [Subspace.load(file) for file in files.values()]
other = StreamingPCA().fit(sites["west"][:, :12]).subspace_
for attempt in (
    lambda: Subspace.from_bytes(bytes(damaged)),
    lambda: FederatedPCA.from_subspaces([*loaded, loaded[0]]),
    lambda: FederatedPCA.from_subspaces([*loaded[:2], other]),
):
    try:
        attempt()
    except ValueError as error:
        print(f"refused: {error}")
folder.cleanup()

# %%
# Back at the sites
# -----------------
# The merged file goes back, and every site computes scores of its own rows. By its own components
# each site is about its own mean, so that nothing can be compared. What distinguishes the sites is
# in the merged components: the first explains 37 % of the variance, no site's own more than 28 %.

axes = [plt.subplots(figsize=(5, 3.8), layout="constrained")[1] for _ in range(3)]
own = {name: PCA(6).fit(X) for name, X in sites.items()}
ratios = {name: pca.explained_variance_ratio_ for name, pca in own.items()}
ScreeDisplay(common.explained_variance_ratio_, ratios, estimator_name="merged").plot(axes[0])
axes[0].set(title="One component stronger than at any site", ylim=(0, None))
for name, marker in zip(sites, "ox^", strict=True):
    axes[1].scatter(*own[name].transform(sites[name])[:, :2].T, marker=marker, s=22, label=name)
    axes[2].scatter(*common.transform(sites[name])[:, :2].T, marker=marker, s=22, label=name)
axes[1].set(title="Own components: all look alike")
axes[2].set(title="Common components: the sites differ")
for ax in axes[1:]:
    ax.set(xlabel="score 1", ylabel="score 2")
    ax.legend()
plt.show()

# sphinx_gallery_thumbnail_number = 3
