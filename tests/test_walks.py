"""How much of the package a whole fit walks through: its files, and calls of its functions.

Somebody who wants to know what an estimator computes reads these files. Counted are all calls of
functions of the package while an estimator is fitted and its result read, generators and
comprehensions included, after a first fit that has imported what is needed. The bounds are what the
code takes at present: they are lowered with it, and never raised. Python 3.12 and newer count less,
as comprehensions are no calls there.
"""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone

import fedpca_sklearn
from fedpca_sklearn import (
    GROUSE,
    PAST,
    PETRELS,
    SPIRIT,
    AlternatingProjections,
    AnalyzeGauss,
    AvailablePairs,
    DistributedPCA,
    FederatedHeteroscedasticPCA,
    FederatedPCA,
    FederatedPowerPCA,
    FederatedScaler,
    FederatedSubspaceTracker,
    FrequentDirections,
    OjaPCA,
    OnlineDistributedPCA,
    PersonalizedPCA,
    RobustSubspaceTracker,
    StreamingPCA,
    StreamingPowerMethod,
    SubspaceMonitor,
    SubspaceTracker,
    TruncatedDistributedPCA,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

PACKAGE = str(Path(fedpca_sklearn.__file__).parent)
ADJUSTED = {"scale": True, "partial_out": [0]}
PRIVATE = AnalyzeGauss(4.0, 1e-5, row_norm=50.0)

# estimator, method, files at most, calls at most
WALKS = [
    (StreamingPCA(3), "fit", 31, 259),
    (StreamingPCA(3), "partial_fit", 24, 164),
    (StreamingPCA(3, **ADJUSTED), "fit", 32, 284),
    (FederatedPCA(3, random_state=0), "fit", 40, 765),
    (FederatedPCA(3, **ADJUSTED, random_state=0), "fit", 45, 732),
    (FederatedPCA(3, mechanism=PRIVATE, random_state=0), "fit", 44, 910),
    (FederatedPCA(3, missing=AvailablePairs(), random_state=0), "fit", 29, 450),
    (PersonalizedPCA(2, 1, random_state=0), "fit", 44, 7236),  # a plain merge beside
    (DistributedPCA(3), "fit", 25, 296),
    (TruncatedDistributedPCA(3), "fit", 31, 664),
    (OnlineDistributedPCA(3), "fit", 33, 811),
    (FederatedPowerPCA(3, n_rounds=5, random_state=0), "fit", 25, 811),
    (FederatedHeteroscedasticPCA(3, n_rounds=5, random_state=0), "fit", 26, 1850),
    (FederatedSubspaceTracker(3, random_state=0), "fit", 40, 10257),
    (FederatedScaler(), "fit", 14, 127),
    (VerticalFederatedPCA(2, feature_groups=3, random_state=0), "fit", 22, 3470),
    (VerticalFederatedKernelPCA(2, feature_groups=3, random_state=0), "fit", 18, 192),
    # two models, one of which forgets
    (SubspaceTracker(3), "fit", 30, 2380),
    (SubspaceTracker(3), "partial_fit", 30, 1314),
    (RobustSubspaceTracker(3), "fit", 38, 2284),
    (AlternatingProjections(3), "fit", 25, 261),
    (GROUSE(3, random_state=0), "fit", 26, 2504),
    (OjaPCA(3, random_state=0), "fit", 24, 1472),
    (PAST(3, random_state=0), "fit", 24, 1020),
    (PETRELS(3, random_state=0), "fit", 25, 2328),
    (SPIRIT(), "fit", 23, 1022),
    (FrequentDirections(3), "fit", 23, 851),
    (StreamingPowerMethod(3, random_state=0), "fit", 23, 321),
    (SubspaceMonitor(StreamingPCA(3), limits="chi2"), "fit", 36, 325),
    (SubspaceMonitor(StreamingPCA(3)), "fit", 37, 1922),  # six fits
]
# Classes of the package in the method resolution order, at most.
OWN = {
    StreamingPCA: 3,
    FederatedPCA: 5,
    PersonalizedPCA: 6,
    DistributedPCA: 5,
    TruncatedDistributedPCA: 5,
    OnlineDistributedPCA: 5,
    FederatedPowerPCA: 4,
    FederatedHeteroscedasticPCA: 4,
    FederatedSubspaceTracker: 5,
    FederatedScaler: 2,
    VerticalFederatedPCA: 3,
    VerticalFederatedKernelPCA: 2,
    SubspaceTracker: 5,
    RobustSubspaceTracker: 5,
    AlternatingProjections: 5,
    GROUSE: 6,
    OjaPCA: 5,
    PAST: 5,
    PETRELS: 6,
    SPIRIT: 5,
    FrequentDirections: 5,
    StreamingPowerMethod: 5,
    SubspaceMonitor: 2,
}


def rows(missing):
    """400 rows of 30 features, a tenth of which may be missing, and the labels of four sites."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 30)) * np.arange(1, 31) ** -0.5
    holes = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    return holes if missing else X, np.repeat(range(4), 100)


def walked(action):
    """Files of the package that are walked through, and calls of its functions."""
    files, calls = set(), 0

    def note(frame, event, argument):
        nonlocal calls
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            files.add(frame.f_code.co_filename)
            calls += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)
    return len(files), calls


def walk(estimator, method):
    """Walk of a fit of 400 rows, or of an update by the second half of them, and a read."""
    X, clients = rows(
        missing=isinstance(estimator, (GROUSE, SubspaceTracker, FederatedSubspaceTracker))
    )
    options = {"clients": clients} if hasattr(estimator, "n_clients") else {}
    model = clone(estimator)
    if method == "partial_fit":
        model.fit(X[:200])
        X = X[200:]

    def action():
        getattr(model, method)(X, **options)
        return getattr(model, "components_", None)

    return walked(action)


@pytest.mark.parametrize(
    ("estimator", "method", "files", "calls"), WALKS, ids=lambda value: str(value).split("(")[0]
)
def test_a_fit_walks_through_no_more_than_before(estimator, method, files, calls):
    walk(estimator, method)
    found = walk(estimator, method)
    assert found[0] <= files
    assert found[1] <= calls


def test_every_public_estimator_walks():
    members = (getattr(fedpca_sklearn, name) for name in fedpca_sklearn.__all__)
    classes = {c for c in members if isinstance(c, type) and issubclass(c, BaseEstimator)}
    estimators = {c for c in classes if hasattr(c, "fit")}
    assert estimators == {type(estimator) for estimator, *_ in WALKS}
    assert estimators == set(OWN)


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.__name__)
def test_no_more_classes_stand_behind_an_estimator(kind):
    own = [c for c in kind.__mro__ if c.__module__.partition(".")[0] == "fedpca_sklearn"]
    own = [c for c in own if c.__name__ != "CallbackSupportMixin"]  # of scikit-learn, from 1.9 on
    assert len(own) <= OWN[kind]


def test_calls_of_the_package_are_counted():
    files, calls = walked(lambda: fedpca_sklearn.subspace_distance(np.eye(2), np.eye(2)))
    assert files >= 1
    assert calls >= 1
    assert walked(lambda: np.linalg.qr(np.eye(3))) == (0, 0)


def test_the_walk_to_the_first_product_is_the_one_that_the_page_has():
    X, clients = rows(missing=False)
    found = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_qualname == "row_scatter" and not found:
            while frame is not None:
                code = frame.f_code
                if code.co_filename.startswith(PACKAGE):
                    found.insert(0, (code.co_qualname, Path(code.co_filename)))
                frame = frame.f_back

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        FederatedPCA(3).fit(X, clients=clients)
    finally:
        sys.setprofile(before)
    package = Path(fedpca_sklearn.__file__).parent
    page = (package.parent / "docs/design.md").read_text()
    walk = page.partition("## A walk from")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(.+?)` \| `(.+?)` \|", walk, flags=re.M)
    assert listed == [(name, file.relative_to(package).as_posix()) for name, file in found]
