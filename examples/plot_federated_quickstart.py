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
from time import perf_counter

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
raw_bytes = X.nbytes


def timed(estimator, *args, **kwargs):
    """Fit; return the estimator and the seconds it took (best of three)."""
    seconds = []
    for _ in range(3):
        start = perf_counter()
        estimator.fit(*args, **kwargs)
        seconds.append(perf_counter() - start)
    return estimator, min(seconds)


pooled, pooled_seconds = timed(PCA(RANK), X)
total = np.sum((X - X.mean(axis=0)) ** 2)


def row(name, components, sent, seconds):
    """One line of the table, as numbers."""
    return {
        "name": name,
        "explained": 1 - reconstruction_error(X, components) / total,
        "distance": subspace_distance(components, pooled.components_),
        "excess": excess_error(X, components),
        "sent": sent,
        "seconds": seconds,
    }


def best_single_client(clients):
    """PCA of the one client whose components serve all rows best."""
    models = [timed(PCA(RANK), X[clients == c]) for c in np.unique(clients)]
    return min(models, key=lambda m: excess_error(X, m[0].components_))


# %%
# Two ways to federate: the default keeps every direction of such small images and is exact; with
# ``oversampling`` a client sends only 25 directions.

results = {}
for title, options in {
    "by label": {"method": "label"},
    "by Dirichlet(0.3)": {"method": "dirichlet", "concentration": 0.3},
}.items():
    clients = partition_clients(y, 10, random_state=0, **options)
    federated, seconds = timed(FederatedPCA(RANK), X, clients=clients)
    thrifty, thrifty_seconds = timed(
        FederatedPCA(RANK, estimator=StreamingPCA(RANK, oversampling=15)), X, clients=clients
    )
    single, single_seconds = best_single_client(clients)
    results[title] = rows = [
        row("pooled PCA", pooled.components_, raw_bytes, pooled_seconds),
        row("federated", federated.components_, federated.communication_.bytes_up, seconds),
        row(
            "federated, 25 dirs",
            thrifty.components_,
            thrifty.communication_.bytes_up,
            thrifty_seconds,
        ),
        row("best single client", single.components_, 0, single_seconds),
    ]

    sizes = np.bincount(clients)
    print(f"digits split {title}: 10 clients of {sizes.min()} to {sizes.max()} rows, rank {RANK}")
    print(f"{'':20}{'explained':>10}{'distance':>10}{'excess':>10}{'bytes sent':>12}{'seconds':>9}")
    for r in rows:
        print(
            f"{r['name']:20}{r['explained']:10.4f}{r['distance']:10.1e}{r['excess']:10.1e}"
            f"{r['sent']:12,}{r['seconds']:9.4f}"
        )
    print(f"raw rows are {raw_bytes:,} bytes; ", end="")
    print(f"federated sends {rows[1]['sent'] / raw_bytes:.0%}", end=" ")
    print(f"or {rows[2]['sent'] / raw_bytes:.0%} of them\n")

# %%
# What the components look like (clients split by label), and what the errors cost in bytes.

clients = partition_clients(y, 10, method="label", random_state=0)
shown = {
    "pooled": pooled,
    "federated": FederatedPCA(RANK).fit(X, clients=clients),
    "best client": best_single_client(clients)[0],
}
fig = plt.figure(figsize=(10, 4.2), layout="constrained")
left, right = fig.subfigures(1, 2, width_ratios=[3, 2])
axes = left.subplots(3, 6)
for line, (name, model) in zip(axes, shown.items(), strict=True):
    for i, ax in enumerate(line):
        image = model.components_[i].reshape(8, 8)
        image = image * np.sign(np.sum(image * pooled.components_[i].reshape(8, 8)))
        limit = np.abs(image).max()
        ax.imshow(image, cmap="RdBu_r", vmin=-limit, vmax=limit)
        ax.set(xticks=[], yticks=[])
        if model is pooled:
            ax.set_title(f"PC {i + 1}", fontsize=9)
    line[0].set_ylabel(name)
ax = right.subplots()
for rows, marker in zip(results.values(), "os", strict=True):
    for r, color in zip(rows, ("0.5", "C0", "C4", "C1"), strict=True):
        label = r["name"] if marker == "o" else None
        ax.scatter(
            r["sent"] / 1e3, max(r["excess"], 1e-16), color=color, marker=marker, label=label
        )
ax.set(
    yscale="log",
    xlabel="sent (kB)",
    ylabel="excess reconstruction error",
    title="A third of the bytes, no error\n(circles: by label, squares: Dirichlet)",
)
ax.legend(fontsize=9, loc=(0.35, 0.45))
if "__file__" in globals():  # not in a notebook
    path = Path(__file__).with_suffix(".png")
    fig.savefig(path, dpi=120)
    print(f"picture: {path.name}")
plt.show()
