"""
======================================
Hospitals that may not pool their rows
======================================

Five hospitals have measured 30 features of tumours (scikit-learn's breast cancer data). They see
unlike patients: one screens healthy people, one is a cancer centre, one is small. No row may leave
its hospital, and each wants a classifier on two principal components. Should it take its own
components, or find common ones with the others?
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import FederatedPCA, subspace_distance

plt.style.use("tableau-colorblind10")
X, y = load_breast_cancer(return_X_y=True)
malignant = y == 0
names = np.array(["screening", "cancer centre", "city", "county", "rural"])
shares = {False: [0.55, 0.05, 0.2, 0.15, 0.05], True: [0.05, 0.55, 0.2, 0.15, 0.05]}


def admitted(rows, rng):
    """Hospital of each row: the shares of the benign and of the malignant tumours."""
    hospital = np.empty(len(X), dtype=names.dtype)
    for label, share in shares.items():
        patients = rng.permutation(rows[malignant[rows] == label])
        cuts = np.round(np.cumsum(share[:-1]) * len(patients)).astype(int)
        for name, part in zip(names, np.split(patients, cuts), strict=True):
            hospital[part] = name
    return hospital


# %%
# One round, rows that stay
# -------------------------
# Columns have unlike units. A scaler in front would see all rows, and hospitals that scale by
# themselves would have different units. With ``scale=True`` hospitals send summaries of their rows
# as they are, which hold the sum of squares of each column, and the server scales the merged one.


def federated(rows, hospital):
    """Common scales and components of some rows at their hospitals."""
    return FederatedPCA(2, scale=True).fit(X[rows], clients=hospital[rows])


splits = list(StratifiedShuffleSplit(10, test_size=0.4, random_state=0).split(X, malignant))
train, test = splits[0]
hospital = admitted(train, np.random.default_rng(0))
common = federated(train, hospital)
pooled = make_pipeline(StandardScaler(), PCA(2)).fit(X[train])

off = np.abs(common.scale_ / pooled[0].scale_ - 1).max()
print(f"scales, largest difference from those of pooled rows: {off:.0e}")
distance = subspace_distance(common.components_, pooled[1].components_)
print(f"sine of the angle between federated and pooled components: {distance:.0e}")
log = common.communication_
print(f"floats: {log.floats_up} sent; rows: {log.floats_pooled}")

# %%
# That is less than half, but no promise of privacy: the rural hospital's mean and its 16 directions
# with their lengths hold as many numbers as its 17 rows.
#
# What common components are good for
# -----------------------------------
# Each hospital trains a logistic regression on its own patients' scores. In common coordinates the
# hospitals can also average the coefficients. Balanced accuracy for held-out patients of all
# hospitals, mean of ten splits.


def classifier(model, rows):
    """Intercept and coefficients of a logistic regression on the scores of some rows."""
    fitted = LogisticRegression().fit(model.transform(X[rows]), malignant[rows])
    return np.append(fitted.intercept_, fitted.coef_)


def accuracy_of(model, line, test):
    """For the patients of all hospitals."""
    guess = line[0] + model.transform(X[test]) @ line[1:] > 0
    return balanced_accuracy_score(malignant[test], guess)


ways = ("own components", "common components", "classifiers averaged", "rows pooled")
accuracy = np.empty((len(splits), len(ways), len(names)))
for i, (train, test) in enumerate(splits):
    hospital = admitted(train, np.random.default_rng(i))
    rows_of = [train[hospital[train] == name] for name in names]
    common = federated(train, hospital)
    local = [classifier(common, rows) for rows in rows_of]
    averaged = np.average(local, axis=0, weights=[len(rows) for rows in rows_of])
    together = classifier(common, train)
    own = [make_pipeline(StandardScaler(), PCA(2)).fit(X[rows]) for rows in rows_of]
    for j, (pca, rows) in enumerate(zip(own, rows_of, strict=True)):
        accuracy[i, 0, j] = accuracy_of(pca, classifier(pca, rows), test)
        accuracy[i, 1, j] = accuracy_of(common, local[j], test)
    accuracy[i, 2] = accuracy_of(common, averaged, test)
    accuracy[i, 3] = accuracy_of(common, together, test)
accuracy = dict(zip(ways, accuracy.mean(axis=0), strict=True))
print(f"{'':22}" + "".join(f"{name:>15}" for name in names))
for way, values in accuracy.items():
    print(f"{way:22}" + "".join(f"{value:15.3f}" for value in values))

# %%
# Common components by themselves help the cancer centre only; elsewhere they change a point or so,
# either way. The average of the classifiers helps the two one-sided hospitals by some points. For
# the others it is a point more or less, and with other draws of the patients the sign changes.

left, right = (plt.subplots(figsize=(5, 4.6), layout="constrained")[1] for _ in range(2))
scores = common.transform(X[test])
for kind, name, marker, color in ((0, "benign", ".", "0.6"), (1, "malignant", "x", "C5")):
    points = scores[malignant[test] == kind].T
    left.scatter(*points, s=18, c=color, marker=marker, label=name)
x = np.array([-7, 14])
styles = [{"color": "C0", "lw": 1}] * len(local)
styles += [{"color": "k", "lw": 2.5}, {"color": "k", "ls": "--"}]
labels = ["each hospital", *[None] * (len(local) - 1), "their average", "rows pooled"]
for c, style, label in zip((*local, averaged, together), styles, labels, strict=True):
    left.plot(x, -(c[0] + c[1] * x) / c[2], label=label, **style)
left.set(
    xlim=x,
    ylim=(-9, 11),
    xlabel="common component 1",
    ylabel="common component 2",
    title="Each hospital draws its own line",
)
left.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))
for (way, values), marker, color in zip(accuracy.items(), "soD", ("0.6", "C0", "k"), strict=False):
    right.plot(values, names, marker, color=color, markersize=8, label=way)
right.axvline(accuracy["rows pooled"][0], color="k", ls="--", lw=1, label="rows pooled")
right.set(xlabel="balanced accuracy, all hospitals' patients", title="One-sided hospitals gain")
right.invert_yaxis()
right.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))
plt.show()

# sphinx_gallery_thumbnail_number = 1
