"""How the defaults of VFedPCA were chosen: its modes on data that Cheung et al. do not have.

Wine, breast cancer, diabetes and digits of scikit-learn, standardised, digits as they are, red
wines standardised, 1,000 images of MNIST, 2,000 rows of light sensors, 200 frames of a video; 3, 5
and 10 clients. Error: sine of the angle to the leading component of all columns, mean of two random
starts. Kernels are those of 300 rows of five of the sets: the error is that of the leading vector
beside the kernel's of all columns with gamma = 1 / d, of clients with gamma one over their own
number of columns ("own") or 1 / d ("one"); 3, 5 and 8 clients.
"""

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.metrics.pairwise import polynomial_kernel, rbf_kernel, sigmoid_kernel
from sklearn.preprocessing import scale

from benchmarks._columns import count
from benchmarks._tools import load, table
from fedpca_sklearn import (
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
    VFedPCA,
    subspace_distance,
)

CLIENTS = (3, 5, 10)
PRINTED = {"weighting": "eigenvalue", "update": "cumulative"}
AVERAGE = {"weighting": "eigenvalue"}
WAYS = {
    "printed": VFedPCA(**PRINTED),
    "printed, floor": VFedPCA(**PRINTED, weight_scaling=True),
    "printed, ceil": VFedPCA(**PRINTED, weight_scaling="ceil"),
    "printed, per column": VFedPCA(weighting="eigenvalue_per_column", update="cumulative"),
    "printed, equal": VFedPCA(weighting="equal", update="cumulative"),
    "original": VFedPCA(**AVERAGE),
    "original, ceil": VFedPCA(**AVERAGE, weight_scaling="ceil"),
    "projection": VFedPCA(),
    "projection, 3 periods": VFedPCA(n_rounds=3),
    "projection, floor": VFedPCA(weight_scaling=True),
}

# Functions of a client's columns, gamma one over their number.
OF_ROWS = {"rbf": rbf_kernel, "poly": polynomial_kernel, "sigmoid": sigmoid_kernel}


def data():
    for load_set in (load_wine, load_breast_cancer, load_diabetes):
        yield load_set.__name__[5:], scale(load_set().data)
    digits = load_digits().data
    digits = digits[:, digits.std(axis=0) > 0]
    yield "digits", scale(digits)
    yield "digits, raw", digits
    for name, rows, standardise in (
        ("wine_red", None, True),
        ("mnist_test", 1000, False),
        ("motes_light", 2000, False),
        ("video_person", 200, False),
    ):
        if (file := load(f"{name}.npz")) is not None:
            X = np.load(file)["X"][:rows].astype(float)
            X = X[:, ::10] if name == "video_person" else X
            yield name, scale(X) if standardise else X


def columns(quick):
    rows = []
    for name, X in data():
        truth = PCA(1, svd_solver="full").fit(X).components_
        for p in CLIENTS[:1] if quick else CLIENTS:
            row = {"data": name, "p": p}
            for way, method in WAYS.items():
                pca = VerticalFederatedPCA(1, feature_groups=p, method=method)
                row[way] = np.mean(
                    [
                        subspace_distance(pca.set_params(random_state=s).fit(X).components_, truth)
                        for s in range(1 if quick else 2)
                    ]
                )
            rows.append(row)
    table("vertical_defaults", rows)
    for way in WAYS:
        errors = np.maximum([row[way] for row in rows], 1e-6)
        mean = np.exp(np.mean(np.log(errors)))
        print(f"{way}: median error {np.median(errors):.2g}, geometric mean {mean:.2g}.")
    for first, second in (
        ("printed", "printed, floor"),
        ("printed, ceil", "printed, floor"),
        ("printed", "printed, per column"),
        ("original", "printed"),
        ("projection", "original"),
        ("projection, 3 periods", "original"),
        ("projection", "printed, floor"),
        ("projection", "projection, floor"),
    ):
        print(f"{count(rows, first, second)}.")


def kernels(quick):
    rows = []
    for name, X in data():
        if name not in ("wine", "breast_cancer", "diabetes", "digits", "wine_red"):
            continue
        X = X[:300]
        for kernel, of_rows in OF_ROWS.items():
            options = {"gamma": 1 / X.shape[1], "random_state": 0}
            whole = VerticalFederatedKernelPCA(1, kernel=kernel, **options).fit(X)
            truth = whole.eigenvectors_.T
            for p in (3,) if quick else (3, 5, 8):
                row = {"data": name, "kernel": kernel, "p": p}
                for way, its_kernel in (("own", of_rows), ("one", kernel)):
                    for mode, method in (("printed", VFedPCA(**PRINTED)), ("default", VFedPCA())):
                        pca = VerticalFederatedKernelPCA(
                            1, kernel=its_kernel, feature_groups=p, aggregation=method, **options
                        )
                        found = pca.fit(X).eigenvectors_.T
                        row[f"{mode}, {way}"] = subspace_distance(found, truth)
                rows.append(row)
    table("vertical_defaults_kernels", rows)
    for kernel in OF_ROWS:
        some = [row for row in rows if row["kernel"] == kernel]
        print(f"{kernel}: {count(some, 'default, own', 'default, one')};")
        print(f"{count(some, 'default, own', 'printed, own')};")
        print(f"{count(some, 'default, one', 'printed, one')}.")


def main(quick=False):
    columns(quick)
    kernels(quick)
