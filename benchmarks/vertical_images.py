"""Cheung et al., case studies on images: pixels at eight clients, images of the leading component.

The paper has medical images, faces, gait and persons, which are not here; these are 1,000 images
of MNIST. An image is X^T u, u the leading left vector: of all pixels ("unsplit"), of each client's
own u ("isolated"), and of the common one ("common"), linear and with the sigmoid kernel of the
authors' script (VFedAKPCA). Agreement with unsplit of the same kernel: absolute cosine of the
images, and adjusted Rand index of ten clusters of pixels by their value.
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


def main(quick=False):
    if (file := load("mnist_test.npz")) is None:
        return
    X = np.load(file)["X"][: 300 if quick else 1000] / 255.0
    rows, images = [], {}
    for kernel in ("linear", "sigmoid"):
        whole = unsplit(X, kernel)
        images[f"unsplit, {kernel}"] = whole
        for name, method in (("isolated", isolated), ("common", common)):
            image = images[f"{name}, {kernel}"] = method(X, kernel)
            cosine = image @ whole / np.linalg.norm(image) / np.linalg.norm(whole)
            rows.append(
                {
                    "kernel": kernel,
                    "image": name,
                    "cosine with unsplit": float(abs(cosine)),
                    "clusters of pixels": adjusted_rand_score(clusters(whole), clusters(image)),
                }
            )
    table("vertical_images", rows)
    for one, other in (rows[:2], rows[2:]):
        better = other["cosine with unsplit"] > one["cosine with unsplit"]
        print(
            f"{one['kernel']}: the common image is {'nearer to' if better else 'farther from'} the "
            "unsplit one than the isolated ones."
        )

    def draw(ax):
        fig = ax.figure
        ax.remove()
        for panel, (name, image) in zip(fig.subplots(2, 3).flat, images.items(), strict=True):
            panel.imshow(np.abs(image).reshape(28, 28), cmap="gray")
            panel.set_title(name, fontsize=8)
            panel.axis("off")

    picture("vertical_images", draw)
