"""
====================================
PCA over a network that only adds up
====================================

Ten sites hold one digit each of scikit-learn's digits. Their messages reach the server as a sum:
exactly, with noise, or over fading links on which a weak site drops out of a round. The picture
shows the error of five components, round by round.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    FadingChannel,
    FederatedPowerPCA,
    GaussianChannel,
    PerfectChannel,
    subspace_distance,
)

plt.style.use("tableau-colorblind10")
X, y = load_digits(return_X_y=True)
exact = PCA(5).fit(X)
n_rounds = range(1, 31)


def errors(**options):
    """Error after each number of rounds."""
    options = {"acceleration": None, **options}
    pca = FederatedPowerPCA(5, tol=0, random_state=0, **options)
    return [
        subspace_distance(
            pca.set_params(n_rounds=n).fit(X, clients=y).components_, exact.components_
        )
        for n in n_rounds
    ]


# %%
# Channels, and what they cost
# ----------------------------
# In the Krylov space of all rounds, ten rounds of a perfect sum are enough. Noise sets a floor, on
# which further rounds do nothing. Plain rounds are slow here because the fifth and the sixth
# variance are not far apart; in the first 30 that hides the noise. The numbers of rows and their
# sums go through the same channel. With ten times this noise the mean can be so far off that it
# takes the place of a component, and the error is 1 for some seeds.

ways = {
    "sum": {"channel": PerfectChannel()},
    "sum, Krylov": {"channel": PerfectChannel(), "acceleration": "krylov"},
    "noise 10": {"channel": GaussianChannel(10.0)},
    "noise 10, Krylov": {"channel": GaussianChannel(10.0), "acceleration": "krylov"},
    "fading, noise 1": {"channel": FadingChannel(1.0, max_power=50)},
}
fig, ax = plt.subplots(figsize=(5, 3.8), layout="constrained")
for (name, options), style in zip(ways.items(), ("C0-", "C0--", "C1:", "C1--", "C3-"), strict=True):
    line = errors(**options)
    print(f"{name:18} error after 10 rounds {line[9]:.1e}, after 30 {line[-1]:.1e}")
    ax.semilogy(n_rounds, np.maximum(line, 1e-15), style, label=name)
ax.set(
    xlabel="rounds",
    ylabel="sine of the largest angle",
    title="Noise sets a floor that rounds do not pass",
)
ax.legend()

pca = FederatedPowerPCA(5, n_rounds=10, tol=0, random_state=0).fit(X, clients=y)
print(pca.communication_)
plt.show()
