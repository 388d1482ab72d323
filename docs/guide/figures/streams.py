"""A stream whose subspace turns: what forgets follows, what does not falls behind."""

import matplotlib.pyplot as plt
import numpy as np

from fedpca_sklearn import StreamingPCA, make_subspace_stream, subspace_distance

plt.style.use("tableau-colorblind10")
options = {"model": "rotation", "delta": 2.5e-4, "noise_std": 0.5, "missing": 0.0}
stream = make_subspace_stream(3000, 30, 3, **options, random_state=0)
ends = np.arange(50, 3001, 50)
fig, ax = plt.subplots(figsize=(4.5, 3.2), layout="constrained")
for label, color, factor, offset in (
    ("all rows count", "0.3", 1.0, -14),
    ("half-life of 100 rows", "C0", 0.5 ** (1 / 100), 10),
):
    pca = StreamingPCA(3, forgetting_factor=factor)
    errors = [
        subspace_distance(
            pca.partial_fit(stream.X[end - 50 : end]).components_, stream.subspace_at(end - 1)
        )
        for end in ends
    ]
    ax.plot(ends, errors, color=color)
    ax.annotate(
        label, (1700, np.interp(1700, ends, errors)), (6, offset), textcoords="offset points"
    )
ax.set(
    ylim=(0, 1.05),
    xlabel="rows seen",
    ylabel="error of the subspace (sine)",
    title="A subspace that turns",
)
