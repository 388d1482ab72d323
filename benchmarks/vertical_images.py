"""Cheung et al., Fig. 10 to 12: images of the leading component, linear and by kernels, at clients.

The paper has faces, gait and medical images, which are not here; parts of MNIST's test set take
their places, with the paper's numbers of images, clients and clusters, three parts each; and
"ours", ten parts of 1,000. An image is X^T u, u the leading left vector: of all pixels ("whole"),
of each client's own u ("isolated"), and of a common one, 100 local iterations, ten periods, or
three as printed, where nothing moves after the second; "kernel's space" is the other reading of
eq. 14 of kernels, see VFedPCA. "VFedAvg" has one period and equal weights.
One kernel for whole and clients: sigmoid, gamma .25, c 1, as the authors run it, and RBF with gamma
one over the pixels, or 15 as the authors; "raw" is not centred, as eq. 9. Agreement with the whole
of the same kernel: absolute cosine of the images, and adjusted Rand index of k clusters of pixels
by their value.
"""

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score

from benchmarks._columns import READINGS
from benchmarks._tools import claim, interleaved, load, picture, table
from fedpca_sklearn import VerticalFederatedKernelPCA, VFedPCA

# Images of a part, clients, k of k-means.
SETTINGS = {"faces": (165, 10, 15), "gait": (240, 16, 10), "medical": (100, 8, 10)}
OURS = {"ours": (1000, 8, 10)}
KERNELS = {
    "linear": {"kernel": "linear"},
    "sigmoid": {"kernel": "sigmoid", "gamma": 0.25},
    "sigmoid, raw": {"kernel": "sigmoid", "gamma": 0.25, "center": False},
    "rbf 1/784": {"kernel": "rbf", "gamma": 1 / 784},
    "rbf 15": {"kernel": "rbf", "gamma": 15.0},
}
FEW = {name: KERNELS[name] for name in ("linear", "sigmoid")}
WAYS = {
    "as printed": VFedPCA(100, 3, **READINGS["as printed"]),
    "eq. 15": VFedPCA(100, 3, **READINGS["as printed"], weight_scaling="ceil"),
    "kernel's space": VFedPCA(100, 3, weighting="eigenvalue", update="cumulative"),
    "original": VFedPCA(100, **READINGS["original"]),
    "defaults": VFedPCA(100),
    "VFedAvg": VFedPCA(100, 1, weighting="equal"),
}


def fitted(X, kernel, clients=1, aggregation="exact", projection="features"):
    return VerticalFederatedKernelPCA(
        1,
        **kernel,
        feature_groups=clients,
        aggregation=aggregation,
        projection=projection,
        random_state=0,
    ).fit(X)


def drawn(X, kernel):
    """Image of the leading component of some pixels, whose sum is not negative."""
    mean = X.mean(axis=0) * kernel.get("center", True)
    image = (X - mean).T @ fitted(X, kernel).eigenvectors_[:, 0]
    return image if image.sum() > 0 else -image


def images(X, kernel, p, ways):
    """Images of a kernel by name."""
    found = {"whole": drawn(X, kernel)}
    for way in ways:
        found[way] = fitted(X, kernel, p, WAYS[way]).components_[0]
    parts = np.array_split(X, p, axis=1)
    return found | {"isolated": np.concatenate([drawn(part, kernel) for part in parts])}


def cosine(a, b):
    return float(abs(a @ b) / np.linalg.norm(a) / np.linalg.norm(b))


def clusters(image, k):
    return KMeans(k, n_init=1, random_state=0).fit_predict(np.abs(image)[:, None])


def figures_10_and_11(X, settings, kernels, ways, n_parts, name):
    rows, first = [], {}
    for setting, (n, p, k) in settings.items():
        for title, kernel in kernels.items():
            found = []
            for part in range(n_parts):
                made = images(X[1000 * part :][:n], kernel, p, ways)
                first.setdefault(title, made)
                whole = clusters(made["whole"], k)
                found.append(
                    {
                        way: (
                            cosine(image, made["whole"]),
                            adjusted_rand_score(whole, clusters(image, k)),
                        )
                        for way, image in made.items()
                    }
                )
            for way in [*ways, "isolated"]:
                cosines, scores = zip(*(each[way] for each in found), strict=True)
                nearer = sum(each[way][0] > each["isolated"][0] for each in found)
                rows.append(
                    {
                        "in place of": setting,
                        "images": n,
                        "p": p,
                        "k": k,
                        "kernel": title,
                        "way": way,
                        "cosine": float(np.median(cosines)),
                        "least": min(cosines),
                        "most": max(cosines),
                        "nearer than isolated": nearer,
                        "clusters": float(np.median(scores)),
                    }
                )
    table(name, rows)
    for title in kernels:
        claims(title, [row for row in rows if row["kernel"] == title], n_parts)
    print()
    return first


def claims(kernel, rows, n_parts):
    by = {
        way: [r for r in rows if r["way"] == way] for way in dict.fromkeys(r["way"] for r in rows)
    }

    def shown(way, column="cosine"):
        return ", ".join(f"{row[column]:.2f}" for row in by[way])

    for way in [way for way in by if way not in ("VFedAvg", "isolated")]:
        nearer = sum(row["nearer than isolated"] for row in by[way])
        cosines = np.array([row["cosine"] for row in by[way]])
        average = np.array([row["cosine"] for row in by["VFedAvg"]])
        alone = np.array([row["cosine"] for row in by["isolated"]])
        claim(
            f'{kernel}, {way}: "much better than VFedAvg and isolated, nearly the whole"',
            bool(np.all(cosines >= 0.9) and np.all(cosines > alone) and np.all(cosines > average)),
            f"median cosines {shown(way)}, VFedAvg {shown('VFedAvg')}, isolated "
            f"{shown('isolated')}; nearer than isolated on {nearer} of {n_parts * len(by[way])}; "
            f"clusters {shown(way, 'clusters')}, isolated {shown('isolated', 'clusters')}",
        )


def scores_agree(X, p):
    """Fig. 12: KPCA's scores of the images: of the whole, of clients and of each by itself."""
    kernel = KERNELS["sigmoid"]
    whole = fitted(X, kernel, projection="samples").transform(X)[:, 0]
    found = {}
    for way in ("as printed", "defaults"):
        found[way] = cosine(fitted(X, kernel, p, WAYS[way], "samples").transform(X)[:, 0], whole)
    alone = [
        cosine(fitted(part, kernel, projection="samples").transform(part)[:, 0], whole)
        for part in np.array_split(X, p, axis=1)
    ]
    return found | {"isolated": float(np.mean(alone))}


def ratios(these, those):
    return ", ".join(f"{a / b:.2g}" for a, b in zip(these, those, strict=True))


def figure_12(X, quick):
    rows = []
    for times in (1,) if quick else (1, 2, 4):
        images = X[:165].reshape(-1, 28, 28)
        Z = images.repeat(times, axis=1).repeat(times, axis=2).reshape(165, -1)
        kernel = KERNELS["sigmoid"] | {"gamma": 0.25 / times**2}  # the kernel does not change
        calls = {
            "PCA": lambda Z=Z: PCA(1).fit(Z),
            "AKPCA": lambda Z=Z, kernel=kernel: fitted(Z, kernel),
            "KPCA, of images": lambda Z=Z, kernel=kernel: fitted(Z, kernel, projection="samples"),
            "VFedAKPCA, 8 clients": lambda Z=Z, kernel=kernel: fitted(
                Z, kernel, 8, WAYS["as printed"]
            ),
        }
        if times < 4:  # a matrix of all pairs of pixels
            calls["KPCA, of pixels"] = lambda Z=Z, kernel=kernel: fitted(
                Z.T, kernel, projection="samples"
            )
        seconds, _ = interleaved(calls, 3)
        rows.append(
            {"pixels": Z.shape[1]}
            | {f"ms, {name}": 1e3 * seconds[name][1] if name in seconds else "" for name in COLUMNS}
        )
    table("vertical_images_seconds", rows)
    linear, kernel, of_images = (
        [row[f"ms, {name}"] for row in rows] for name in ("PCA", "AKPCA", "KPCA, of images")
    )
    claim(
        '"AKPCA is as fast as PCA"',
        all(a < 3 * b for a, b in zip(kernel, linear, strict=True)),
        f"takes {ratios(kernel, linear)} times PCA's time; KPCA of images "
        f"{ratios(of_images, kernel)} times AKPCA's, of pixels "
        f"{ratios([row['ms, KPCA, of pixels'] for row in rows[:2]], kernel[:2])}",
    )
    found = [scores_agree(X[1000 * i :][:165], 10) for i in range(2 if quick else 10)]
    medians = {way: float(np.median([each[way] for each in found])) for way in found[0]}
    claim(
        '"VFedKPCA gives the whole one\'s scores"',
        medians["as printed"] > 0.9,
        "median cosine of the scores, sigmoid: "
        + ", ".join(f"{way} {value:.2f}" for way, value in medians.items()),
    )


COLUMNS = ("PCA", "AKPCA", "VFedAKPCA, 8 clients", "KPCA, of images", "KPCA, of pixels")


def draw(ax, made):
    fig = ax.figure
    ax.remove()
    shown = ("whole", "as printed", "defaults", "VFedAvg", "isolated")
    panels = fig.subplots(len(made), len(shown))
    for (kernel, found), line in zip(made.items(), panels, strict=True):
        for panel, way in zip(line, shown, strict=True):
            panel.imshow(np.abs(found[way]).reshape(28, 28), cmap="gray")
            panel.set_title(f"{kernel}, {way}", fontsize=7)
            panel.axis("off")


def main(quick=False):
    if (file := load("mnist_test.npz")) is None:
        return
    X = np.load(file)["X"] / 255.0
    if quick:
        figures_10_and_11(X, {"medical": SETTINGS["medical"]}, FEW, WAYS, 1, "vertical_images")
    else:
        figures_10_and_11(X, SETTINGS, KERNELS, WAYS, 3, "vertical_images")
        ways = ("as printed", "kernel's space", "defaults", "VFedAvg")
        made = figures_10_and_11(X, OURS, FEW, ways, 10, "vertical_images_ours")
        picture("vertical_images", lambda ax: draw(ax, made))
    figure_12(X, quick)
