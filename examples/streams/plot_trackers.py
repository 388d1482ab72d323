"""
===================================
Following a stream: nine estimators
===================================

Scikit-learn's digits come as a stream of 50 images at a time, in the order of their labels, so that
the stream changes all the time. Every estimator sees every image once; seven keep five components.
The picture shows the error of its components on all images so far, over that of the best five
components, and how many components SPIRIT and SAPCA think are needed.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from fedpca_sklearn import (
    GROUSE,
    PAST,
    PETRELS,
    SPIRIT,
    ContributionBounds,
    FrequentDirections,
    OjaPCA,
    RankDisplay,
    StreamingPCA,
    StreamingPowerMethod,
    SubspaceErrorDisplay,
)

plt.style.use("tableau-colorblind10")
X, y = load_digits(return_X_y=True)
X = X[np.argsort(y, kind="stable")]

trackers = [
    StreamingPCA(5),
    FrequentDirections(5),
    StreamingPowerMethod(5, random_state=0),
    OjaPCA(5, random_state=0),
    GROUSE(5, random_state=0),
    PAST(5, random_state=0),
    PETRELS(5, random_state=0),
]

# %%
# Error and number of components
# ------------------------------
# First the error of each over the best possible, then the ranks of two that choose it: SPIRIT
# adds components until they hold 95 % of the energy; SAPCA looks at the share of the last singular
# value.
left, right = (plt.subplots(figsize=(5, 4.6), layout="constrained")[1] for _ in range(2))
for tracker, line in zip(trackers, ("-", "--", ":", "-.", "-", "--", "-."), strict=True):
    display = SubspaceErrorDisplay.from_estimator(tracker, X, ax=left, linestyle=line)
    print(
        f"{display.estimator_name:22} {1 + display.evaluation.excess[-1]:8.4f} times the best error"
    )
left.set(title="One pass is exact, or within 5 % of the best")
left.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))

sapca = StreamingPCA(5, rank_rule=ContributionBounds(), block_size=50)
for name, tracker in (("SPIRIT", SPIRIT(forgetting_factor=1.0)), ("SAPCA", sapca)):
    display = RankDisplay.from_estimator(tracker, X, ax=right, name=name)
    print(f"{name}: {display.evaluation.ranks[-1]} components at the end")
right.set(title="Two rules, two answers", ylim=(0, None))
right.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.15))
plt.show()

# sphinx_gallery_thumbnail_number = 1
