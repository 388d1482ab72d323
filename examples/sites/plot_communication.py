"""
=========================
How much must sites send?
=========================

Eight sites hold 1,000 rows of 400 features each. Sending all rows is 3.2 million floats. The
estimators of this library send less, for an error that depends on whether the sites are alike. In
the second data set each site has a strong direction of its own, which the others do not see.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.base import clone

from fedpca_sklearn import (
    CommunicationDisplay,
    DistributedPCA,
    FederatedPCA,
    FederatedPowerPCA,
    OnlineDistributedPCA,
    ProjectionAverage,
    StreamingPCA,
    make_power_law,
)

plt.style.use("tableau-colorblind10")
N_SITES, N_ROWS, N_FEATURES, RANK = 8, 1000, 400, 10
STEPS = 5  # of the online estimator
sites = np.repeat(np.arange(N_SITES), N_ROWS)
alike = make_power_law(N_SITES * N_ROWS, N_FEATURES, alpha=1.0, random_state=0)
rng = np.random.default_rng(0)
own = np.linalg.qr(rng.standard_normal((N_FEATURES, N_SITES)))[0].T  # a direction for each site
unlike = alike + rng.standard_normal((len(alike), 1)) * own[sites]


def power(n_rounds):
    """Rounds of products, in the Krylov space of all rounds."""
    return FederatedPowerPCA(RANK, n_rounds=n_rounds, tol=0, acceleration="krylov", random_state=0)


def sending(n_directions):
    """One round, in which each site sends this many directions."""
    local = StreamingPCA(RANK, oversampling=n_directions - RANK)
    return FederatedPCA(RANK, estimator=local)


def fit(estimator, X):
    """Fit at once, or step by step where a step is a share of each site's rows."""
    if not isinstance(estimator, OnlineDistributedPCA):
        return estimator.fit(X, clients=sites)
    step = np.arange(len(X)) % N_ROWS * STEPS // N_ROWS
    for i in range(STEPS):
        estimator.partial_fit(X[step == i], clients=sites[step == i])
    return estimator


# %%
# Floats and errors
# -----------------
# *excess*: reconstruction error of all rows over the best possible, minus one. The power method has
# a round for the mean and one for the variances besides.

directions, rounds = (15, 25, 50, 100), (2, 3, 4, 5, 6)
ways = {
    "ProjectionAverage": [FederatedPCA(RANK, merge=ProjectionAverage())],
    "FederatedPCA": [sending(n) for n in directions],
    "FederatedPowerPCA": [power(n) for n in rounds],
    "DistributedPCA": [DistributedPCA(RANK)],
    "OnlineDistributedPCA": [OnlineDistributedPCA(RANK)],
}
covariances = [np.cov(X.T) for X in (alike, unlike)]


def excess(C, V):
    """Variance that components leave, over the least possible, minus one."""
    return (np.trace(C) - np.sum((V @ C) * V)) / np.linalg.eigvalsh(C)[:-RANK].sum() - 1


results, logs = {}, {}
print(f"{'':22}{'rounds':>7}{'floats':>11}{'alike':>9}{'unlike':>9}")
for name, estimators in ways.items():
    results[name] = []
    for estimator in estimators:
        models = [fit(clone(estimator), X) for X in (alike, unlike)]
        errors = [excess(C, m.components_) for C, m in zip(covariances, models, strict=True)]
        log = models[0].communication_
        floats = log.floats_up + log.floats_down
        results[name].append((floats, *errors))
        logs.setdefault(name, log)
        print(f"{name:22}{log.rounds:7}{floats:11,}{errors[0]:9.0e}{errors[1]:9.0e}")

# %%
# The average of projections is cheap, good where sites are alike, and wrong where they are not: it
# does not know how strong a site's directions are. One round of 25 directions, a fortieth of the
# rows, has an error below 0.1 % in both. Rounds of products catch up late, and then reach any
# accuracy, if everybody stays in touch. The exact triangles are a sixth of the rows. The online
# estimator sends most, as each of its steps goes up and down; what it saves is keeping rows. Those
# of one round and the exact one leave the components at the server: sending them back, 4,000 floats
# a site, is not counted.

axes = [plt.subplots(figsize=(5, 4.6), layout="constrained")[1] for _ in range(3)]
colors = ("C5", "C0", "C1", "k", "C2")
EXACT = 1e-8  # where an error of rounding is drawn
for name, color, marker in zip(ways, colors, "^osDv", strict=True):
    CommunicationDisplay(logs[name]).plot(axes[0], color=color, marker=marker)
    floats, *errors = np.transpose(results[name])
    for ax, values in zip(axes[1:], errors, strict=True):
        ax.plot(floats, values.clip(EXACT), marker + "-", color=color, label=name)
axes[0].set(title="What the cheapest of each sends")
for i, title in ((1, "Sites alike: an average is enough"), (2, "Sites unlike: it is not enough")):
    axes[i].axvline(alike.size, color="grey", ls="--", label="the rows themselves")
    axes[i].set(xscale="log", yscale="log", ylim=(EXACT / 3, 1), title=title, xlabel="floats sent")
    axes[i].set_yticks([EXACT, 1e-6, 1e-4, 1e-2, 1], ["exact", "1e-6", "1e-4", "1e-2", "1"])
    axes[i].minorticks_off()
    style = {"textcoords": "offset points", "fontsize": 9}
    for n, point in zip(directions, results["FederatedPCA"], strict=True):
        axes[i].annotate(n, (point[0], point[i]), xytext=(-6, -15), color="C0", **style)
    for n, point in zip(rounds, results["FederatedPowerPCA"], strict=True):
        axes[i].annotate(f"{n} rounds", (point[0], point[i]), xytext=(7, 2), **style)
    axes[i].set(ylabel="excess error")
    axes[i].legend(ncols=2, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.15))
axes[1].text(3.2e4, 4e-8, "numbers: directions\nthat a site sends", color="C0", fontsize=9)
plt.show()

# sphinx_gallery_thumbnail_number = 3
