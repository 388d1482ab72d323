"""
===========================
What a privacy budget costs
===========================

Differential privacy promises each person that nobody can tell from the result whether a row was
theirs, up to epsilon and delta. The promise is kept by noise, and the noise has a size of its own:
the more rows there are, the less it matters. Here are scikit-learn's 1,797 digits, and more images
made with the same mean and covariance.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    FederatedPowerPCA,
    FedPowerNoise,
    PrivacyBudgetError,
    PrivacyNoiseWarning,
    StreamingPCA,
)

plt.style.use("tableau-colorblind10")
warnings.simplefilter("ignore", PrivacyNoiseWarning)  # the left of the figure shows why it warns
RANK, DELTA = 5, 1e-6  # delta is far below one over the number of rows
# Public knowledge: pixels are from 0 to 16 and mostly dark. Rows are clipped to a ball about this
# grey image; its radius would be that of an image that is 6.25 off in each of the 64 pixels.
public = {"center": np.full(64, 5.0), "row_norm": 50.0}

digits = load_digits().data
rng = np.random.default_rng(0)
made = rng.multivariate_normal(digits.mean(axis=0), np.cov(digits.T), 50_000).clip(0, 16)
data = {1797: digits, 10_000: made[:10_000], 50_000: made}


def share_kept(covariance, components):
    """Variance along private components, over that along the best ones."""
    best = np.linalg.eigvalsh(covariance)[-RANK:].sum()
    return np.sum((components @ covariance) * components) / best


def analyze_gauss(X, epsilon, seed=None):
    """One release with noise on the second moment."""
    noise = AnalyzeGauss(epsilon, DELTA, **public)
    return FederatedPCA(RANK, mechanism=noise, n_clients=1, random_state=seed).fit(X)


def fed_power(X, epsilon, seed=None):
    """Noise in each of four rounds, for when a d x d matrix is too large."""
    noise = FedPowerNoise(epsilon, DELTA, **public)
    pca = FederatedPowerPCA(RANK, n_rounds=4, mechanism=noise, n_clients=1, random_state=seed)
    return pca.fit(X)


# %%
# Variance that is kept
# ---------------------
# Seeds are fixed for this page only: who knows the seed can take the noise off.

epsilons = [0.1, 0.3, 1, 3, 10]
covariances = {n: np.cov(X.T) for n, X in data.items()}
kept = {}
for fit in (analyze_gauss, fed_power):
    for n, X in data.items():
        kept[fit.__name__, n] = [
            np.mean([share_kept(covariances[n], fit(X, e, i).components_) for i in range(3)])
            for e in epsilons
        ]
print(
    f"share of the best variance kept, mean of three\n{'epsilon':>23}"
    + "".join(f"{e:7g}" for e in epsilons)
)
for (name, n), values in kept.items():
    print(f"{name:14}{n:9,}" + "".join(f"{value:7.3f}" for value in values))
by_chance = share_kept(covariances[1797], np.eye(64) * np.sqrt(RANK / 64))
print(f"five directions at random keep {by_chance:.3f} on average")

# %%
# What has been spent
# -------------------
# The account is exact. A budget of epsilon = 1 for four calls of ``partial_fit`` is spent in four
# calls, the first of which costs nearly half of it, as sums of Gaussian releases cost about the
# square root of their number. A fifth is refused before it looks at the rows.

noise = AnalyzeGauss(1.0, DELTA, n_releases=4, **public)
pca = FederatedPCA(RANK, mechanism=noise, n_clients=1, random_state=0)
try:
    for part in np.array_split(digits, 5):
        pca.partial_fit(part)
        print(
            "after {} rows: epsilon {:.3f}, delta {:g}".format(
                pca.n_samples_seen_, *pca.privacy_spent_
            )
        )
except PrivacyBudgetError as error:
    print(f"refused: {error}")

# %%
# For 1,797 people epsilon = 1 costs a quarter of the variance, and components that do not look like
# anything; 50,000 have the same promise for a thousandth. Noise in each round costs more than noise
# in one release. And the clipping, which is part of the price, is the same at any epsilon.

fig, ax = plt.subplots(figsize=(5, 3.8), layout="constrained")
for (name, n), values in kept.items():
    style = "o-" if name == "analyze_gauss" else "s--"
    ax.plot(
        epsilons,
        values,
        style,
        color={1797: "C1", 10_000: "C0", 50_000: "C3"}[n],
        label=f"{n:,} rows" if style == "o-" else None,
    )
ax.axhline(by_chance, color="0.5", ls=":", label="at random")
ax.plot([], [], "s--", color="0.5", label="FedPowerNoise")
ax.set(
    xscale="log",
    xlabel="epsilon (small: private)",
    ylabel="share of the best variance",
    title="Five times the rows, a fifth of the epsilon",
    ylim=(0, 1.03),
)
ax.legend(loc="lower right", fontsize=9)
fig, axes = plt.subplots(3, 5, figsize=(5, 3.8), layout="constrained")
exact = StreamingPCA(RANK).fit(digits)
for column, e in zip(axes.T, (0.3, 1, 3, 10, np.inf), strict=True):
    model = analyze_gauss(digits, e, 0)
    column[0].set_title("no noise" if np.isinf(e) else f"epsilon {e:g}", fontsize=9)
    for i, ax in enumerate(column):
        image = model.components_[i] * np.sign(model.components_[i] @ exact.components_[i])
        limit = np.abs(image).max()
        ax.imshow(image.reshape(8, 8), cmap="RdBu_r", vmin=-limit, vmax=limit)
        ax.set(xticks=[], yticks=[])
fig.suptitle("Components of 1,797 digits")
plt.show()

# sphinx_gallery_thumbnail_number = 1
