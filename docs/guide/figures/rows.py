"""Three sites see three parts of the rows; merged summaries give the direction of all rows."""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA

from fedpca_sklearn import FederatedPCA

plt.style.use("tableau-colorblind10")
rng = np.random.default_rng(3)
means = [[-4, -2], [0, 0.5], [4, 2]]
spreads = [[[0.5, -0.6], [0.6, 0.7]], [[0.4, 0.9], [-0.5, 0.6]], [[0.7, 0.1], [0.1, 0.9]]]
parts = [mean + rng.standard_normal((60, 2)) @ A for mean, A in zip(means, spreads, strict=True)]
X, site = np.concatenate(parts), np.repeat(range(3), 60)


def draw(pca, length, **style):
    """Draw the first component, through the mean."""
    line = pca.mean_ + np.outer([-length, length], pca.components_[0])
    ax.plot(*line.T, **style)


fig, ax = plt.subplots(figsize=(4.5, 3.6), layout="constrained")
for i, (color, marker) in enumerate((("C0", "o"), ("C1", "s"), ("C4", "^"))):
    ax.scatter(*parts[i].T, s=12, color=color, marker=marker, alpha=0.5, linewidths=0)
    draw(PCA(1).fit(parts[i]), 3, color=color, lw=2.5)
draw(PCA(1).fit(X), 7, color="0.75", lw=7, label="of all rows in one place")
draw(FederatedPCA(1).fit(X, clients=site), 7, color="k", lw=1.5, label="of the merged summaries")
ax.set(aspect="equal", xticks=[], yticks=[], ylim=(-5.5, 7.5))
ax.set_title("First component: of each site, and together")
ax.legend(loc="upper left")
