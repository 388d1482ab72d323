"""
=======================
Rows that do not belong
=======================

Forty sensors follow four causes. Three things go wrong: single rows are unlike the others, one
sensor breaks, and in the end the machine is rebuilt, so that all sensors follow the causes in
another way. `SubspaceMonitor` scores rows before they are learnt, says which entries make a row
unlike, and raises an alarm where more rows are unlike than its limits allow.
"""

import matplotlib.pyplot as plt
import numpy as np

from fedpca_sklearn import ControlChartDisplay, StreamingPCA, SubspaceMonitor

plt.style.use("tableau-colorblind10")
rng = np.random.default_rng(0)
N, D, K, BATCH = 3000, 40, 4, 20
before, after = rng.standard_normal((2, K, D))
X = rng.standard_normal((N, K))
X = np.concatenate([X[:2000] @ before, X[2000:] @ after]) + rng.standard_normal((N, D))
strange = rng.choice(np.arange(500, 1200), 12, replace=False)
X[strange] += 2 * rng.standard_normal((12, D))
broken = slice(1400, 1440)
X[broken, 17] -= 7

# %%
# Score, then learn
# -----------------
# The estimator forgets, so that it can follow. Limits are quantiles of the scores of recent rows:
# in the long run five in a hundred are flagged, strange or not. The first batch has no model before
# it. The broken sensor raises an alarm, after which its rows are judged among themselves, and so
# does the new machine.

monitor = SubspaceMonitor(StreamingPCA(K, forgetting_factor=0.5 ** (1 / 200)), contamination=0.05)
scores = []
for i in range(0, N, BATCH):
    monitor.partial_fit(X[i : i + BATCH])
    scores.append(monitor.recent_scores_)
scores = np.concatenate(scores)
flagged = scores < monitor.offset_
usual = np.ones(N, dtype=bool)
usual[strange] = usual[broken] = usual[:200] = usual[2000:] = False
print(f"flagged of the usual rows {flagged[usual].mean():.1%}, of 12 strange ones", end=" ")
print(f"{flagged[strange].sum()}, of 40 with a broken sensor {flagged[broken].sum()}")
print(f"alarms of drift after rows {monitor.drift_points_ + BATCH}")

# %%
# Which sensor
# ------------
# Contributions are deviations of an entry from what the others of the row say, in standard
# deviations. A fixed model, from the rows before, judges the rows around the defect.

fixed = SubspaceMonitor(StreamingPCA(K), contamination=0.01).fit(X[:1380])
shown = np.arange(1380, 1460)
deviations = fixed.contributions(X[shown])
named = np.abs(fixed.contributions(X[broken])).argmax(axis=1)
print(f"sensor 17 is named in {np.sum(named == 17)} of 40 rows")

chart, map_ = (plt.subplots(figsize=(5, 3.8), layout="constrained")[1] for _ in range(2))
ControlChartDisplay(scores, monitor.offset_).plot(ax=chart, linewidth=0.5, markersize=2)
chart.axvspan(1401, 1440, color="C1", alpha=0.3, label="sensor 17 broken")
chart.axvline(2001, color="k", linestyle=":", label="machine rebuilt")
chart.set(yscale="log", ylim=(0.2, None), title="Single rows, a broken sensor, a new machine")
chart.legend(loc="upper left")
image = map_.imshow(deviations.T, aspect="auto", cmap="RdBu_r", vmin=-6, vmax=6)
map_.set(xlabel="row", ylabel="sensor", title="Contributions: sensor 17 is too low")
map_.set_xticks(np.arange(0, 80, 20), shown[::20] + 1)
plt.colorbar(image, ax=map_, label="standard deviations")
plt.show()

# sphinx_gallery_thumbnail_number = 1
