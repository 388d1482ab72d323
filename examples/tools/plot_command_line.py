"""
=======================================
From five parquet files to one biplot
=======================================

Five clinics measure the same ten quantities of their patients (scikit-learn's diabetes data). Each
has a parquet file, none has a Python programmer, and no row may leave. All that they run is the
command ``fedpca``; its output below is that of a real run. At the end the pooled rows are put
through scikit-learn, to compare. The script needs
``pip install pandas "fedpca-sklearn[parquet,plot]"``.
"""

import contextlib
import os
import shlex
import sys
import tempfile

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_diabetes
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import scale

from fedpca_sklearn import BiplotDisplay, FederatedPCA, LoadingsDisplay, Subspace
from fedpca_sklearn.__main__ import main

plt.style.use("tableau-colorblind10")
folder = tempfile.TemporaryDirectory()
started_in = os.getcwd()
os.chdir(folder.name)


def fedpca(line):
    """Run a command as a shell does, with errors and warnings in the same place."""
    print("$ fedpca", line)
    with contextlib.redirect_stderr(sys.stdout):
        main(shlex.split(line))


# %%
# The files
# ---------
# The clinics are unlike: the patients of one are younger than those of the next. Each has its own
# order of columns and a number for each patient. The west notes the day of the visit besides, and
# its laboratory gives cholesterol in mmol/l, where the others have mg/dl.

names = {"s1": "chol", "s2": "ldl", "s3": "hdl", "s4": "tch", "s5": "ltg", "s6": "glu"}
patients = load_diabetes(as_frame=True, scaled=False).data.rename(columns=names)
rng = np.random.default_rng(0)
ordered = patients.iloc[np.argsort(patients["age"] + 15 * rng.standard_normal(len(patients)))]
sites = ("north", "east", "south", "west", "centre")
parts = dict(zip(sites, np.array_split(np.arange(len(ordered)), 5), strict=True))
clinics = {site: ordered.iloc[rows] for site, rows in parts.items()}


def write(site, frame):
    """The clinic's own table."""
    frame = frame[rng.permutation(frame.columns)].assign(patient=np.arange(len(frame)))
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), f"{site}.parquet")


for site, frame in clinics.items():
    if site == "west":
        frame = frame.assign(day=pd.Timestamp("2024-01-01"))
        frame[["chol", "ldl", "hdl"]] /= 38.67
    write(site, frame)
print(pd.DataFrame({site: frame.mean() for site, frame in clinics.items()}).round(1))

# %%
# At each clinic
# --------------
# One pass over the file. A text, a date or a gap would be an error that names column and row.

for site in sites:
    fedpca(f"fit {site}.parquet -o {site}.subspace --site {site} --without patient")

# %%
# The date is refused, and the clinic leaves it out:

fedpca("fit west.parquet -o west.subspace --site west --without patient,day")

# %%
# At the coordinator
# ------------------
# Five files of some kB have come by mail. Columns in another order are an error; ``--align``
# matches them by name. Then the units of the west are asked about.

files = " ".join(f"{site}.subspace" for site in sites)
fedpca(f"merge {files} -o all.subspace")
fedpca(f"merge {files} -o all.subspace --align")

# %%
# The laboratory's unit is put right at the clinic, which sends another file:

write("west", clinics["west"])
fedpca("fit west.parquet -o west.subspace --site west --without patient --force")
fedpca(f"merge {files} -o all.subspace --align --force")

# %%
# Scaled, without the age
# -----------------------
# The columns have different units, so that the largest numbers would be the first component; and
# the clinics differ in the age of their patients, which is not what they look for. ``--scale`` and
# ``--partial-out age`` are exact from the same five files. ``-n parallel`` counts the components
# that explain more than chance would, as parallel analysis of the pooled rows does.

model = "--scale --partial-out age -n parallel"
fedpca(f"merge {files} -o model.subspace --align {model}")

# %%
# A clinic withdraws
# ------------------
# The model is made again without its file. What is printed last is the sine of the angle by which
# the components have moved.

fedpca(f"remove south {files} -o model.subspace --align {model} --force")

# %%
# Back at the clinics
# -------------------
# Each computes the scores of its patients. The file keeps the options of its model, so that none
# is named again. ``show`` prints the components that the scores are along.

left = [site for site in sites if site != "south"]
for site in left:
    fedpca(f"transform model.subspace {site}.parquet -o {site}_scores.parquet")

fedpca("show model.subspace --top 3")

# %%
# The biplot, and the same of pooled rows
# ---------------------------------------

summary = Subspace.load("model.subspace")
stated = summary.model
pca = FederatedPCA.from_subspaces(
    [summary], stated.n_components, scale=stated.scale, partial_out=stated.partial_out
)
pooled = pd.concat([clinics[site] for site in left])[list(pca.feature_names_in_)]
labels = np.repeat(left, [len(clinics[site]) for site in left])

age, others = pooled[["age"]], pooled.drop(columns="age")
residuals = others - LinearRegression().fit(age, others).predict(age)
want = PCA(pca.n_components_).fit_transform(scale(residuals))

scores = np.concatenate([pd.read_parquet(f"{site}_scores.parquet") for site in left])
off = np.abs(scores * np.sign(np.sum(scores * want, axis=0)) - want).max()
print(f"largest difference of a score from scikit-learn: {off:.0e}, of {np.abs(scores).max():.1f}")

fig, axes = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
circle = LoadingsDisplay.from_estimator(pca, ax=axes[0])
biplot = BiplotDisplay(
    scores[:, :2], circle.correlations, circle.names, labels=labels, axis_names=circle.axis_names
)
biplot.plot(axes[1])
axes[0].set(title="What the components are made of")
axes[1].set(title="Four clinics: scaled, without the age")
plt.show()
os.chdir(started_in)
folder.cleanup()
