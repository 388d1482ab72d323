"""What a budget leaves of five components, by the number of rows."""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from fedpca_sklearn import AnalyzeGauss, FederatedPCA, PrivacyNoiseWarning, make_power_law

plt.style.use("tableau-colorblind10")
warnings.simplefilter("ignore", PrivacyNoiseWarning)
epsilons = np.geomspace(0.05, 20, 6)
rows = make_power_law(50_000, 20, alpha=2.0, random_state=0)


def share(X, epsilon):
    """Variance of the rows along the private components, over the best; the mean of three draws."""
    S = np.cov(X.T)
    best = np.linalg.eigvalsh(S)[-5:].sum()
    found = []
    for seed in range(3):
        mechanism = AnalyzeGauss(epsilon, 1e-6, row_norm=3.0, center=[0.0] * 20)
        pca = FederatedPCA(5, mechanism=mechanism, random_state=seed).fit(X)
        found.append(np.trace(pca.components_ @ S @ pca.components_.T) / best)
    return np.mean(found)


fig, ax = plt.subplots(figsize=(4.5, 3.2), layout="constrained")
for n, color in ((1_000, "C1"), (10_000, "C4"), (50_000, "C0")):
    shares = [share(rows[:n], epsilon) for epsilon in epsilons]
    ax.plot(epsilons, shares, "o-", color=color, label=f"{n:,} rows")
ax.set(
    xscale="log",
    ylim=(0, 1.05),
    xlabel="epsilon (smaller: better protected)",
    ylabel="variance found, of the best",
    title="Noise matters less with more rows",
)
ax.legend()
