"""The error after each round of sums: over a perfect channel and a noisy one."""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from fedpca_sklearn import FederatedPowerPCA, GaussianChannel, subspace_distance

plt.style.use("tableau-colorblind10")
X, y = load_digits(return_X_y=True)
exact = PCA(4).fit(X).components_
rounds = range(1, 31, 2)
cases = {
    "with noise": ({"channel": GaussianChannel(100.0)}, "C1", 8, 8),
    "plain rounds": ({"acceleration": None}, "0.3", 7, -28),
    "Krylov, the default": ({}, "C0", 4, 4),
}

fig, ax = plt.subplots(figsize=(4.5, 3.2), layout="constrained")
for label, (options, color, place, up) in cases.items():
    errors = []
    for n in rounds:
        pca = FederatedPowerPCA(4, n_rounds=n, tol=0, random_state=0, **options)
        errors.append(subspace_distance(pca.fit(X, clients=y).components_, exact))
    ax.semilogy(rounds, errors, color=color)
    ax.annotate(label, (rounds[place], errors[place]), (4, up), textcoords="offset points")
ax.set(
    xlabel="rounds",
    ylabel="error of four components (sine)",
    title="Ten sites, of which only sums arrive",
)
