"""
==========================
Sensors that fail for days
==========================

Thirty thermometers in a building are read every hour for 60 days. Four causes move them together:
time of day, sun, weather and people; besides, each room has slow ups and downs of its own. Sensors
fail for an hour or for a week. `SubspaceTracker` fills the holes in from what the other sensors
show in the same hour. Here it has learned from all 60 days, as the line knows both ends of a hole.
When is it better than a straight line?
"""

import matplotlib.pyplot as plt
import numpy as np

from fedpca_sklearn import SubspaceTracker

plt.style.use("tableau-colorblind10")
rng = np.random.default_rng(0)
N_HOURS, N_SENSORS = 24 * 60, 30
LENGTHS = (1, 3, 6, 12, 24, 72, 168)  # hours that a sensor may be silent


def smooth(hours, n_columns=1):
    """Noise of variance one, averaged over some hours."""
    white = rng.standard_normal((N_HOURS + hours - 1, n_columns))
    kernel = np.ones(hours) / np.sqrt(hours)
    return np.column_stack([np.convolve(column, kernel, "valid") for column in white.T])


hours = np.arange(N_HOURS)
clock = hours % 24
causes = {
    "heating": np.sin(2 * np.pi * (clock - 4) / 24),
    "sun": 3
    * np.clip(np.sin(2 * np.pi * (clock - 6) / 24), 0, None)
    * (1 + 0.3 * smooth(12)[:, 0]),
    "weather": 3 * smooth(72)[:, 0],
    "people": 3 * (hours // 24 % 7 < 5) * np.exp(-(((clock - 13) / 4) ** 2)),
}
reach = rng.uniform(0.2, 1, (len(causes), N_SENSORS))  # of each cause at each sensor
true = 18 + np.column_stack(list(causes.values())) @ reach
true += 0.3 * smooth(12, N_SENSORS) + 0.1 * rng.standard_normal(true.shape)

hole = np.zeros(true.shape, dtype=int)  # length of the hole that an entry is in
for sensor in range(N_SENSORS):
    start = 24
    while (start := start + int(rng.exponential(120))) + max(LENGTHS) < N_HOURS:
        length = rng.choice(LENGTHS)
        hole[start : start + length, sensor] = length
        start += length + 1
seen = np.where(hole > 0, np.nan, true)
print(f"{np.isnan(seen).mean():.0%} of the entries are missing")


# %%
# The number of components, from what was seen
# --------------------------------------------
# ``score`` hides entries that were seen, and is the share of their variation that the rest of their
# row explains; the fit has seen them. With ``forgetting_factor=1`` all batches count alike; 0
# keeps the last batch only, which follows changes at once and is noisier. The default forgets where
# a batch does not fit what came before.

for rank in range(1, 8):
    tracker = SubspaceTracker(rank, forgetting_factor=1.0).fit(seen)
    print(f"{rank} components: score {tracker.score(seen):.4f}")

# %%
# There are four causes, but the fourth adds little: beyond three components the score gains .001.

filled = {
    "mean of the sensor": np.where(hole > 0, np.nanmean(seen, axis=0), seen),
    "straight line": np.column_stack(
        [
            np.interp(hours, hours[known], x[known])
            for x, known in zip(seen.T, (hole == 0).T, strict=True)
        ]
    ),
    "tracker, last batch": SubspaceTracker(4, forgetting_factor=0.0).fit(seen).impute(seen),
    "tracker": SubspaceTracker(4, forgetting_factor=1.0).fit(seen).impute(seen),
}
error = {
    name: [np.sqrt(np.mean((values - true)[hole == length] ** 2)) for length in LENGTHS]
    for name, values in filled.items()
}
print(
    f"root mean squared error (degrees)\n{'hours missing':20}" + "".join(f"{n:7}" for n in LENGTHS)
)
for name, values in error.items():
    print(f"{name:20}" + "".join(f"{value:7.2f}" for value in values))

# %%
# A room's own ups and downs cannot be seen from other rooms. So the straight line is better for a
# missing hour, and the tracker from three hours or so on; its error does not grow with the hole.

fig, axes = plt.subplots(3, 1, figsize=(5, 5.4), layout="constrained", sharex=True)
week = slice(24 * 30, 24 * 40)
busiest = np.argsort(-np.array([len(np.unique(column[week])) for column in hole.T]), kind="stable")
days = hours[week] / 24
for ax, sensor in zip(axes, busiest, strict=False):
    gone = hole[week, sensor] > 0
    ax.fill_between(
        days, 0, 1, where=gone, color="0.9", step="mid", transform=ax.get_xaxis_transform()
    )
    ax.plot(days, true[week, sensor], color="k", lw=1, label="true")
    for name, color, style in (("straight line", "C1", "--"), ("tracker", "C0", "-")):
        wanted = gone | np.roll(gone, 1) | np.roll(gone, -1)
        values = np.where(wanted, filled[name][week, sensor], np.nan)
        ax.plot(days, values, style, color=color, lw=2, label=name)
    ax.set(ylabel=f"room {sensor} (°C)")
axes[0].legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
axes[2].set(xlabel="days (grey: the sensor is silent)")
fig, ax = plt.subplots(figsize=(5, 3.8), layout="constrained")
for (name, values), style in zip(error.items(), ("^:", "s--", "v-", "o-"), strict=True):
    color = {"straight line": "C1", "tracker": "C0", "tracker, last batch": "C4"}.get(name, "0.5")
    ax.plot(LENGTHS, values, style, color=color, label=name)
ax.set(
    xscale="log", xlabel="hours that the sensor is silent", ylabel="error (°C, root mean square)"
)
ax.set_xticks(LENGTHS, LENGTHS)
ax.minorticks_off()
ax.set(title="A line fills an hour, other sensors fill a week")
ax.legend(fontsize=9, loc=(0.02, 0.42))
plt.show()

# sphinx_gallery_thumbnail_number = 2
