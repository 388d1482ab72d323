"""Rows with holes and wrong entries, and what a robust tracker makes of them."""

import matplotlib.pyplot as plt
import numpy as np

from fedpca_sklearn import RobustSubspaceTracker

plt.style.use("tableau-colorblind10")
rng = np.random.default_rng(0)
hours = np.arange(600)
causes = np.column_stack([np.sin(hours / period) for period in (3, 4.3, 7)])
truth = causes @ rng.standard_normal((3, 40))
X = truth + 0.1 * rng.standard_normal(truth.shape)
wrong = rng.random(X.shape) < 0.05
X[wrong] += rng.choice([-5, 22], wrong.sum())
X[rng.random(X.shape) < 0.1] = np.nan
X[545:565, 22] = np.nan

tracker = RobustSubspaceTracker(3, batch_size=100).fit(X)
low_rank, outliers = tracker.decompose(X)
shown = slice(500, 600)
days, given = hours[shown], X[shown, 22]
found = outliers[shown, 22] != 0

fig, ax = plt.subplots(figsize=(4.5, 3.2), layout="constrained")
ax.axvspan(545, 564, color="0.9", label="silent")
ax.plot(days, truth[shown, 22], color="0.6", lw=4, label="truth")
ax.plot(days, low_rank[shown, 22], color="C0", label="what the tracker says")
ax.plot(days, np.where(found, np.nan, given), ".", color="k", ms=5, label="given")
ax.plot(days[found], given[found], "x", color="C1", mew=2, label="found to be wrong")
ax.set(xlabel="row", ylabel="one sensor of 40", title="Holes are filled, outliers set aside")
ax.set_ylim(top=11)
ax.legend(ncols=2, fontsize=9, loc="upper center")
