"""
===================================================
Columns of the same customers, at a bank and a shop
===================================================

A bank and a shop have the same 900 customers, and columns that they may not show each other. Two
causes are behind all columns: wealth, which the bank sees well, and the size of the household,
which the shop sees well. `VerticalFederatedPCA` finds the components of all columns together; each
owner keeps the part of the components that belongs to its columns.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import LeftVectorMerge, VerticalFederatedPCA, excess_error

plt.style.use("tableau-colorblind10")
rng = np.random.default_rng(0)
owners = {
    "bank": ["income", "savings", "shares", "loan", "card"],
    "shop": ["visits", "basket", "baby food", "wine", "pet food"],
}
groups = [np.arange(5), np.arange(5, 10)]  # the columns of each
# how a column follows wealth and household size; the rest of it is noise
wealth = [0.8, 0.8, 0.7, -0.2, 0.3, -0.1, 0.4, 0.0, 0.6, 0.0]
household = [0.1, -0.2, -0.2, 0.5, 0.3, 0.6, 0.7, 0.8, -0.1, 0.2]
N = 900
people = rng.integers(1, 4, N)  # in the household
causes = np.column_stack([rng.standard_normal(N), 1.2 * (people - 2)])
X = causes @ [wealth, household] + 0.5 * rng.standard_normal((N, 10))
X = StandardScaler().fit_transform(X)  # of each column by itself, so that its owner can do it

# %%
# Three methods
# -------------
# *excess*: reconstruction error over the best possible with two components, minus one. ``R2``: the
# share of wealth and of household size that the two scores tell.

pooled = PCA(2).fit(X)
methods = {
    "vfedpca": "vfedpca",
    "merge": "merge",
    "merge, 2 vectors": LeftVectorMerge(local_components=2),
    "power": "power",
}
scores = {
    owner: PCA(2).fit_transform(X[:, group]) for owner, group in zip(owners, groups, strict=True)
}
models, told = {}, {}
print(f"{'':17}{'excess':>9}{'floats':>9}{'R2 wealth':>11}{'R2 household':>14}")


def report(name, excess, floats):
    """A line of the table."""
    Z = scores[name]
    told[name] = [LinearRegression().fit(Z, cause).score(Z, cause) for cause in causes.T]
    print(f"{name:17}{excess:>9}{floats:>9}{told[name][0]:11.2f}{told[name][1]:14.2f}")


for owner in owners:
    report(owner, "-", "0")
for name, method in methods.items():
    pca = VerticalFederatedPCA(2, feature_groups=groups, method=method, random_state=0)
    models[name] = pca.fit(X)
    scores[name] = models[name].transform(X)
    log = models[name].communication_
    excess = excess_error(X, models[name].components_)
    report(name, f"{excess:.0e}", f"{log.floats_up + log.floats_down:,}")
scores["all columns"] = pooled.transform(X)
report("all columns", "0", f"{X.size:,}")

# %%
# Each owner tells its own cause better; together both are told. "merge" and "power" are exact. But
# with five columns each nothing is saved: every method sends more than the columns. A message has
# a number for each row, so they pay with hundreds of columns. Nor are columns hidden by themselves:
# all five left vectors of the bank, times their values, are its columns up to a rotation. With two
# vectors the bank tells two of its five dimensions.
#
# Everybody gets the scores; the loadings stay with the owners (``client_components_``).

axes = [plt.subplots(figsize=(5, 4), layout="constrained")[1] for _ in range(4)]
shown = {
    "bank": "the bank alone tells\n",
    "shop": "the shop alone tells\n",
    "merge, 2 vectors": "both together tell\n",
}
for ax, (name, title) in zip(axes, shown.items(), strict=False):
    for size, color, marker in ((1, "C1", "."), (2, "0.6", "x"), (3, "C0", "+")):
        points = scores[name][people == size].T
        ax.scatter(*points, s=14, c=color, marker=marker, label=f"household of {size}")
    ax.set(
        xlabel="score 1",
        ylabel="score 2",
        title=title + "{:.0%} of wealth, {:.0%} of household".format(*told[name]),
    )
    ax.legend(ncols=3, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.15))
parts = models["merge, 2 vectors"].client_components_
for i, (shift, hatch) in enumerate(((-0.2, None), (0.2, "////"))):
    for owner, part, group, color in zip(owners, parts, groups, ("C0", "C1"), strict=True):
        style = {"color": color, "hatch": hatch, "edgecolor": "w"}
        axes[3].barh(group + shift, part[i], 0.4, label=f"{owner}, component {i + 1}", **style)
axes[3].set_yticks(range(10), owners["bank"] + owners["shop"])
axes[3].invert_yaxis()
axes[3].axvline(0, color="k", lw=0.8)
axes[3].set(title="each owner keeps its own loadings", xlabel="loading")
axes[3].legend(ncols=2, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.15))
plt.show()

# sphinx_gallery_thumbnail_number = 3
