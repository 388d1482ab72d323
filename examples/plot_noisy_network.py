"""
====================================
PCA over a network that only adds up
====================================

Ten sites hold one digit each of scikit-learn's digits. Their messages reach the server as a sum:
exactly, with noise, or over fading links on which a weak site drops out of a round. The picture
shows the error of five components, round by round.
"""

from pathlib import Path

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from fedpca_sklearn import (
    FadingChannel,
    FederatedPowerPCA,
    GaussianChannel,
    PerfectChannel,
    subspace_distance,
)

X, y = load_digits(return_X_y=True)
exact = PCA(5).fit(X)
n_rounds = range(1, 31)


def errors(**options):
    """Error after each number of rounds."""
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
ways = {
    "sum": {"channel": PerfectChannel()},
    "sum, Krylov": {"channel": PerfectChannel(), "acceleration": "krylov"},
    "noise 100": {"channel": GaussianChannel(100.0)},
    "noise 100, Krylov": {"channel": GaussianChannel(100.0), "acceleration": "krylov"},
    "fading, noise 1": {"channel": FadingChannel(1.0, max_power=50)},
}
fig, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
for name, options in ways.items():
    line = errors(**options)
    print(f"{name:18} error after 10 rounds {line[9]:.1e}, after 30 {line[-1]:.1e}")
    ax.semilogy(n_rounds, [max(error, 1e-15) for error in line], label=name)
ax.set(xlabel="rounds", ylabel="sine of the largest angle", title="ten sites, a digit each")
ax.legend(fontsize=8)
fig.savefig(Path(__file__).with_suffix(".png"), dpi=110)

pca = FederatedPowerPCA(5, n_rounds=10, tol=0, random_state=0).fit(X, clients=y)
print(pca.communication_)
