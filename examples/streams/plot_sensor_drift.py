"""
===========================
A sensor stream that drifts
===========================

Forty sensors follow three causes, and how they follow them turns slowly, as machines wear. PCA of
all rows averages over a past that is gone. `StreamingPCA` forgets: with ``half_life=h`` a row of
h rows ago has half the weight of a new one. Which half-life is best, and how can one tell without
knowing the truth?
"""

import matplotlib.pyplot as plt
import numpy as np

from fedpca_sklearn import StreamingPCA, evaluate_stream, make_subspace_stream, subspace_distance

plt.style.use("tableau-colorblind10")
N_ROWS, BATCH, RANK = 4000, 50, 3
half_lives = [25, 50, 100, 200, 400, 1000, 4000, np.inf]
speeds = {"no drift": 0.0, "slow drift": 1e-4, "fast drift": 3e-4}


def pca(half_life):
    """Components of the recent past; an infinite half-life forgets nothing."""
    return StreamingPCA(RANK, half_life=half_life if np.isfinite(half_life) else None)


def errors(half_life, stream):
    """Sine of the largest angle to the true subspace, after every batch."""
    model = pca(half_life)
    return [
        subspace_distance(
            model.partial_fit(stream.X[i : i + BATCH]).components_,
            stream.subspace_at(i + BATCH - 1),
        )
        for i in range(0, N_ROWS, BATCH)
    ]


# %%
# The truth, and what can be seen
# -------------------------------
# The error against the true subspace can be known only for made data. The prequential error of
# `evaluate_stream` needs no truth: how badly the components that have not seen a batch rebuild it,
# as mean squared error per entry. Noise alone, of variance 0.25, leaves 0.25 * 37 / 40 = 0.231.

over_time, true, seen = {}, {}, {}
for name, speed in speeds.items():
    options = {"model": "rotation", "delta": speed, "noise_std": 0.5, "missing": 0}
    stream = make_subspace_stream(N_ROWS, 40, RANK, **options, random_state=0)
    over_time[name] = {h: errors(h, stream) for h in half_lives}
    seen[name] = [
        evaluate_stream(pca(h), stream.X, batch_size=BATCH, n_checkpoints=2).prequential_errors[1]
        for h in half_lives
    ]
    true[name] = [np.mean(line[len(line) // 2 :]) for line in over_time[name].values()]
    best = [half_lives[np.argmin(values)] for values in (true[name], seen[name])]
    print(f"{name:11} best half-life by the truth {best[0]:g}, by prequential error {best[1]:g}")

print(f"\n{'half-life':>10}" + "".join(f"{name:>24}" for name in speeds))
for i, h in enumerate(half_lives):
    line = "".join(f"{true[name][i]:12.3f} ({seen[name][i]:.5f})" for name in speeds)
    print(f"{h:>10g}" + line)
print("in brackets: prequential error")

# %%
# Both errors are means over the second half of the stream, and their minima are at the same
# half-life or next to it. Too short a half-life averages too little noise; too long a one lags
# behind. Without drift every forgetting loses, so it is not a default. `SubspaceErrorDisplay` would
# not find this: it compares with the best subspace for all rows so far, the old ones included,
# which is what no forgetting gives.

left, right = (plt.subplots(figsize=(5, 3.8), layout="constrained")[1] for _ in range(2))
rows = np.arange(BATCH, N_ROWS + 1, BATCH)
for h, color in ((25, "C1"), (200, "C0"), (1000, "C3"), (np.inf, "k")):
    label = "nothing forgotten" if np.isinf(h) else f"half-life {h} rows"
    left.plot(rows, over_time["slow drift"][h], color=color, label=label)
left.set(
    xlabel="rows seen",
    ylabel="sine of the angle to the truth",
    title="Slow drift: what forgets nothing falls behind",
    ylim=(0, 1.02),
)
left.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))
shown = [*half_lives[:-1], 16000]  # where "nothing forgotten" is drawn
for (name, values), marker, color in zip(true.items(), "osD", ("C3", "C0", "C1"), strict=True):
    right.plot(shown, values, marker + "-", color=color, label=name, markersize=5)
    i = np.argmin(seen[name])
    right.plot(
        shown[i],
        values[i],
        "o",
        color="k",
        mfc="none",
        markersize=15,
        label="_" * (marker != "o") + "least prequential error",
    )
right.set(
    xscale="log",
    xlabel="half-life (rows)",
    ylabel="sine of the angle to the truth",
    title="The prequential error finds the best half-life",
    ylim=(0, 1.02),
)
right.set_xticks(shown, [*map(str, half_lives[:-1]), "none"])
right.minorticks_off()
right.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.2))
plt.show()

# sphinx_gallery_thumbnail_number = 1
