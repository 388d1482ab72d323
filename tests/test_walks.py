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
from golden_cases import NAMES, made
from sklearn.base import BaseEstimator

import fedpca_sklearn
from fedpca_sklearn import FederatedPCA

pytestmark = [
    pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

PACKAGE = str(Path(fedpca_sklearn.__file__).parent)

# estimator | method | files at most | calls at most
WALKS = """
StreamingPCA(3) | fit | 19 | 132
StreamingPCA(3) | partial_fit | 14 | 98
StreamingPCA(3, scale=True, partial_out=[0]) | fit | 22 | 163
FederatedPCA(3, random_state=0) | fit | 24 | 406
FederatedPCA(3, scale=True, partial_out=[0], random_state=0) | fit | 27 | 406
FederatedPCA(3, mechanism=AnalyzeGauss(4.0, 1e-5, row_norm=50.0), random_state=0) | fit | 32 | 760
FederatedPCA(3, missing=AvailablePairs(), random_state=0) | fit | 21 | 237
PersonalizedPCA(2, 1, random_state=0) | fit | 30 | 3920
DistributedPCA(3) | fit | 18 | 158
TruncatedDistributedPCA(3) | fit | 22 | 298
OnlineDistributedPCA(3) | fit | 23 | 493
FederatedPowerPCA(3, n_rounds=5, random_state=0) | fit | 19 | 416
FederatedHeteroscedasticPCA(3, n_rounds=5, random_state=0) | fit | 20 | 940
FederatedSubspaceTracker(3, random_state=0) | fit | 28 | 5206
FederatedScaler() | fit | 10 | 72
VerticalFederatedPCA(2, feature_groups=3, random_state=0) | fit | 14 | 1237
VerticalFederatedKernelPCA(2, feature_groups=3, random_state=0) | fit | 13 | 72
SubspaceTracker(3) | fit | 17 | 754
SubspaceTracker(3) | partial_fit | 17 | 417
RobustSubspaceTracker(3) | fit | 19 | 1800
AlternatingProjections(3) | fit | 12 | 103
GROUSE(3, random_state=0) | fit | 17 | 1212
OjaPCA(3, random_state=0) | fit | 17 | 543
PAST(3, random_state=0) | fit | 16 | 289
PETRELS(3, random_state=0) | fit | 17 | 416
SPIRIT() | fit | 17 | 659
FrequentDirections(3) | fit | 17 | 368
StreamingPowerMethod(3, random_state=0) | fit | 16 | 172
SubspaceMonitor(StreamingPCA(3), limits="chi2") | fit | 22 | 195
SubspaceMonitor(StreamingPCA(3)) | fit | 23 | 1157
""".strip().splitlines()
# Classes of the package in the method resolution order, at most.
OWN = """
2: FederatedScaler VerticalFederatedKernelPCA SubspaceMonitor
3: StreamingPCA VerticalFederatedPCA
4: FederatedPowerPCA FederatedHeteroscedasticPCA
5: FederatedPCA DistributedPCA TruncatedDistributedPCA OnlineDistributedPCA SubspaceTracker
5: RobustSubspaceTracker AlternatingProjections OjaPCA PAST SPIRIT FrequentDirections
5: StreamingPowerMethod
6: PersonalizedPCA FederatedSubspaceTracker GROUSE PETRELS
""".strip().splitlines()
OWN = {name: int(line[0]) for line in OWN for name in line[3:].split()}


def rows(missing):
    """400 rows of 30 features, a tenth of which may be missing, and the labels of four sites."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 30)) * np.arange(1, 31) ** -0.5
    holes = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    return holes if missing else X, np.repeat(range(4), 100)


def profiled(note, action):
    """Call an action, and ``note(frame, event, argument)`` at each event of it."""
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(before)


def walked(action):
    """Files of the package that are walked through, and calls of its functions."""
    files, calls = set(), 0

    def note(frame, event, argument):
        nonlocal calls
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            files.add(frame.f_code.co_filename)
            calls += 1

    profiled(note, action)
    return len(files), calls


def walk(code, method):
    """Walk of a fit of 400 rows, or of an update by the second half of them, and a read."""
    model = made(code)
    with_holes = ("GROUSE", "SubspaceTracker", "FederatedSubspaceTracker")
    X, clients = rows(missing=type(model).__name__ in with_holes)
    options = {"clients": clients} if hasattr(model, "n_clients") else {}
    if method == "partial_fit":
        model.fit(X[:200])
        X = X[200:]

    def action():
        getattr(model, method)(X, **options)
        return getattr(model, "components_", None)

    return walked(action)


@pytest.mark.parametrize("row", WALKS)
def test_a_fit_walks_through_no_more_than_before(row):
    code, method, files, calls = row.split(" | ")
    walk(code, method)
    found = walk(code, method)
    assert found[0] <= int(files)
    assert found[1] <= int(calls)


def test_every_public_estimator_walks():
    members = (getattr(fedpca_sklearn, name) for name in fedpca_sklearn.__all__)
    classes = {c for c in members if isinstance(c, type) and issubclass(c, BaseEstimator)}
    estimators = {c for c in classes if hasattr(c, "fit")}
    assert estimators == {type(made(row.split(" | ")[0])) for row in WALKS}
    assert estimators == {NAMES[name] for name in OWN}


@pytest.mark.parametrize("name", OWN)
def test_no_more_classes_stand_behind_an_estimator(name):
    own = [c for c in NAMES[name].__mro__ if c.__module__.partition(".")[0] == "fedpca_sklearn"]
    own = [c for c in own if c.__name__ != "CallbackSupportMixin"]  # of scikit-learn, from 1.9 on
    assert len(own) <= OWN[name]


def test_calls_of_the_package_are_counted():
    files, calls = walked(lambda: fedpca_sklearn.subspace_distance(np.eye(2), np.eye(2)))
    assert files >= 1
    assert calls >= 1
    assert walked(lambda: np.linalg.qr(np.eye(3))) == (0, 0)


def test_four_secure_sites_take_no_more_calls_to_the_first_product_than_before():
    pytest.importorskip("flwr")
    from engines.site_helpers import SECURE, fit

    parts = {f"site {i}": rows(missing=False)[0][i::4] for i in range(4)}
    calls, products = 0, []

    def note(frame, event, argument):
        nonlocal calls
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            if frame.f_code.co_qualname == "SiteMoments.products":
                products.append(calls)
            calls += 1

    def walk():
        fit(made("FederatedPowerPCA(3, n_rounds=5, random_state=0)"), parts, secure=SECURE)

    walk()
    profiled(note, walk)
    assert products[0] <= 1_479


def test_the_walk_to_the_first_product_is_the_one_that_the_page_has():
    X, clients = rows(missing=False)
    X, clients = np.tile(X, (4, 1)), np.tile(clients, 4)  # more than are multiplied together
    found = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_qualname == "row_scatter" and not found:
            while frame is not None:
                code = frame.f_code
                if code.co_filename.startswith(PACKAGE):
                    found.insert(0, (code.co_qualname, Path(code.co_filename)))
                frame = frame.f_back

    profiled(note, lambda: FederatedPCA(3).fit(X, clients=clients))
    package = Path(fedpca_sklearn.__file__).parent
    page = (package.parent / "docs/design.md").read_text()
    walk = page.partition("## A walk from")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `(.+?)` \| `(.+?)` \|", walk, flags=re.M)
    assert listed == [(name, file.relative_to(package).as_posix()) for name, file in found]
