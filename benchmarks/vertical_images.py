"""Cheung et al., case studies on images: pixels at eight clients, images of the leading component.

The paper has medical images, faces, gait and persons, which are not here; these are ten parts of
1,000 images of MNIST: medians over the parts, least and most. An image is X^T u, u the leading left
vector: of all pixels ("unsplit"), of each client's own u ("isolated"), and of the common one
("common"), linear and with the sigmoid kernel of the authors' script (VFedAKPCA). Agreement with
unsplit of the same kernel: absolute cosine of the images, and adjusted Rand index of ten clusters
of pixels by their value.
"""

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from benchmarks._tools import load, picture, table
from fedpca_sklearn import StreamingPCA, VerticalFederatedKernelPCA, VerticalFederatedPCA

CLIENTS = 8


def unsplit(X, kernel):
    if kernel == "linear":
        pca = StreamingPCA(1).fit(X)
        return pca.singular_values_[0] * pca.components_[0]
    pca = VerticalFederatedKernelPCA(1, kernel=kernel, feature_groups=1).fit(X)
    return (X - X.mean(axis=0)).T @ pca.eigenvectors_[:, 0]


def isolated(X, kernel):
    parts = [unsplit(part, kernel) for part in np.array_split(X, CLIENTS, axis=1)]
    return np.concatenate([part * (1 if part.sum() > 0 else -1) for part in parts])


def common(X, kernel):
    if kernel == "linear":
        return VerticalFederatedPCA(1, feature_groups=CLIENTS, random_state=0).fit(X).components_[0]
    pca = VerticalFederatedKernelPCA(
        1,
        kernel=kernel,
        feature_groups=CLIENTS,
        aggregation="paper",
        projection="features",
        random_state=0,
    )
    return pca.fit(X).components_[0]


def clusters(image):
    return KMeans(10, n_init=4, random_state=0).fit_predict(np.abs(image)[:, None])


def agreement(X, kernel):
    """The images of a kernel by name, and cosine and clusters of the last two beside the first."""
    images = {"unsplit": unsplit(X, kernel)}
    whole, found = images["unsplit"], []
    for name, method in (("isolated", isolated), ("common", common)):
        image = images[name] = method(X, kernel)
        cosine = abs(image @ whole) / np.linalg.norm(image) / np.linalg.norm(whole)
        found.append((float(cosine), adjusted_rand_score(clusters(whole), clusters(image))))
    return images, found


def main(quick=False):
    if (file := load("mnist_test.npz")) is None:
        return
    X = np.load(file)["X"] / 255.0
    parts = [X[i : i + 300] for i in (0, 3000)] if quick else np.split(X, 10)
    rows, images = [], {}
    for kernel in ("linear", "sigmoid"):
        drawn, found = zip(*(agreement(part, kernel) for part in parts), strict=True)
        images |= {f"{name}, {kernel}": image for name, image in drawn[0].items()}
        for name, values in zip(("isolated", "common"), np.swapaxes(found, 0, 1), strict=True):
            rows.append(
                {
                    "kernel": kernel,
                    "image": name,
                    "cosine with unsplit": float(np.median(values[:, 0])),
                    "least": float(values[:, 0].min()),
                    "most": float(values[:, 0].max()),
                    "clusters of pixels": float(np.median(values[:, 1])),
                }
            )
        nearer = sum(common[0] > isolated[0] for isolated, common in found)
        print(
            f"{kernel}: the common image is nearer to the unsplit one than the isolated ones on "
            f"{nearer} of {len(parts)} parts."
        )
    table("vertical_images", rows)

    def draw(ax):
        fig = ax.figure
        ax.remove()
        for panel, (name, image) in zip(fig.subplots(2, 3).flat, images.items(), strict=True):
            panel.imshow(np.abs(image).reshape(28, 28), cmap="gray")
            panel.set_title(name, fontsize=8)
            panel.axis("off")

    picture("vertical_images", draw)
