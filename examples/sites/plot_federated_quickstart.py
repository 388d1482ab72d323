"""
=====================================
Ten clients, one round, pooled result
=====================================

Scikit-learn's digits are split over ten clients that see different things: by label (each client
knows one or two digits) and by a Dirichlet draw (shares of every digit differ wildly). The clients
may not share their images. Each sends one subspace summary; the server merges them. The result is
compared with PCA of the pooled images, which nobody was allowed to compute, and with the client
whose own PCA serves all images best.
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    FederatedPCA,
    StreamingPCA,
    excess_error,
    partition_clients,
    reconstruction_error,
    subspace_distance,
)

plt.style.use("tableau-colorblind10")
RANK = 10
X, y = load_digits(return_X_y=True)
pooled = PCA(RANK).fit(X)
total = np.sum((X - X.mean(axis=0)) ** 2)

# %%
# Two ways to federate: the default keeps every direction of such small images and is exact; with
# ``oversampling`` a client sends only 25 directions.

results = {}
for title, options in {
    "by Dirichlet(0.3)": {"method": "dirichlet", "concentration": 0.3},
    "by label": {"method": "label"},
}.items():
    clients = partition_clients(y, 10, random_state=0, **options)
    few = StreamingPCA(RANK, oversampling=15)
    singles = [PCA(RANK).fit(X[clients == c]) for c in range(10)]
    models = {
        "pooled PCA": pooled,
        "federated": FederatedPCA(RANK).fit(X, clients=clients),
        "federated, 25 dirs": FederatedPCA(RANK, estimator=few).fit(X, clients=clients),
        "best single client": min(singles, key=lambda pca: excess_error(X, pca.components_)),
    }
    sent = dict.fromkeys(models, 0) | {"pooled PCA": X.nbytes}
    sizes = np.bincount(clients)
    print(f"digits split {title}: 10 clients of {sizes.min()} to {sizes.max()} rows, rank {RANK}")
    print(f"{'':20}{'explained':>10}{'distance':>10}{'excess':>10}{'bytes sent':>12}")
    for name, model in models.items():
        if isinstance(model, FederatedPCA):
            sent[name] = model.communication_.bytes_up
        V = model.components_
        explained = 1 - reconstruction_error(X, V) / total
        excess = excess_error(X, V)
        results[title, name] = sent[name], excess
        distance = subspace_distance(V, pooled.components_)
        print(f"{name:20}{explained:10.4f}{distance:10.1e}{excess:10.1e}{sent[name]:12,}")
    shares = [f"{sent[name] / X.nbytes:.0%}" for name in ("federated", "federated, 25 dirs")]
    print(f"raw rows are {X.nbytes:,} bytes; federated sends {' or '.join(shares)} of them\n")

# %%
# What the components look like (clients split by label), and what the errors cost in bytes.

fig = plt.figure(figsize=(5, 5.2), layout="constrained")
top, bottom = fig.subfigures(2, 1, height_ratios=[1, 1])
axes = top.subplots(3, 6)
shown = {"pooled": "pooled PCA", "federated": "federated", "best client": "best single client"}
for line, (label, name) in zip(axes, shown.items(), strict=True):
    for i, ax in enumerate(line):
        V = models[name].components_[i]
        V = V * np.sign(V @ pooled.components_[i])
        limit = np.abs(V).max()
        ax.imshow(V.reshape(8, 8), cmap="RdBu_r", vmin=-limit, vmax=limit)
        ax.set(xticks=[], yticks=[])
        if name == "pooled PCA":
            ax.set_title(f"PC {i + 1}", fontsize=9)
    line[0].set_ylabel(label)
ax = bottom.subplots()
colors = dict(zip(models, ("0.5", "C0", "C4", "C1"), strict=True))
for (title, name), (n_bytes, excess) in results.items():
    marker, label = ("o", name) if title == "by label" else ("s", None)
    ax.scatter(n_bytes / 1e3, max(excess, 1e-16), color=colors[name], marker=marker, label=label)
ax.set(
    yscale="log",
    xlabel="sent (kB); circles: split by label, squares: Dirichlet",
    ylabel="excess error",
    title="A third of the bytes, no error",
)
ax.legend(fontsize=9, loc=(0.4, 0.3))
if "__file__" in globals():  # not in a notebook
    path = Path(__file__).with_suffix(".png")
    fig.savefig(path, dpi=144)
    print(f"picture: {path.name}")
plt.show()
