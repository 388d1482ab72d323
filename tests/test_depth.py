"""How far it is from an estimator's fit to the first product with a client's rows.

Counted are the frames of the package on the stack, from ``fit`` to the function that multiplies,
both included: what somebody reads who wants to know what the estimator computes.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

import fedpca_sklearn
from fedpca_sklearn import FederatedPCA, FederatedPowerPCA, FederatedSubspaceTracker

PACKAGE = str(Path(fedpca_sklearn.__file__).parent)

# estimator, the function in which a client first multiplies its rows, frames at most, shape of X
CASES = [
    (FederatedPCA(3), "_by_scatter", 10, (2000, 400)),
    (FederatedPowerPCA(3, random_state=0), "scatter_product", 10, (80, 20)),
    (FederatedSubspaceTracker(3, random_state=0), "scatter_product", 12, (80, 20)),
]


def walk(action, function):
    """Names of the package's frames on the stack when a function of it is first called."""
    found = []

    def profile(frame, event, argument):
        if event != "call" or found or frame.f_code.co_name != function:
            return
        while frame is not None:
            if frame.f_code.co_filename.startswith(PACKAGE):
                found.insert(0, frame.f_code.co_qualname)
            frame = frame.f_back

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(before)
    return found


@pytest.mark.parametrize(
    ("estimator", "function", "most", "shape"),
    CASES,
    ids=[type(case[0]).__name__ for case in CASES],
)
def test_the_first_product_is_near(estimator, function, most, shape):
    X = np.random.default_rng(0).standard_normal(shape)
    frames = walk(lambda: estimator.fit(X, clients=np.arange(len(X)) % 3), function)
    assert frames[0].endswith(".fit")
    assert len(frames) <= most, " > ".join(frames)
