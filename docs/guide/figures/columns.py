"""Two owners of columns: the scores of each alone, and of both together."""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA

from fedpca_sklearn import VerticalFederatedPCA

plt.style.use("tableau-colorblind10")
rng = np.random.default_rng(1)
cause = rng.standard_normal((150, 1))
X = 0.45 * cause + rng.standard_normal((150, 24))
bank, shop = slice(0, 8), slice(8, 24)
pooled = PCA(1).fit_transform(X)[:, 0]
together = VerticalFederatedPCA(1, feature_groups=[range(8), range(8, 24)], method="merge")
scores = {
    "both, without\nshowing columns": together.fit_transform(X)[:, 0],
    "the bank alone": PCA(1).fit_transform(X[:, bank])[:, 0],
}

fig, axes = plt.subplots(1, 2, figsize=(4.5, 2.8), layout="constrained", sharey=True)
for ax, (title, score) in zip(axes, scores.items(), strict=True):
    score = score * np.sign(score @ pooled)
    correlation = np.corrcoef(score, pooled)[0, 1]
    ax.scatter(score, pooled, s=10, alpha=0.6, linewidths=0)
    ax.set(title=title, xlabel=f"score\n(correlation {correlation:.2f})", xticks=[], yticks=[])
axes[0].set_ylabel("score with all columns\nin one place")
