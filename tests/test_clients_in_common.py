"""What holds for every estimator of rows at clients, however its clients are merged.

The oracle of each property is another fit of the same estimator, or scikit-learn's PCA of all rows
for the exact ones; that a fit is right is shown where the estimator is tested. Two fits differ by
rounding, and those that go in rounds by their tolerance of 1e-10, or by none where the number of
rounds is fixed: 1e-8 is above both, and far below any error in the algebra.
"""

import math
from itertools import product

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from golden_cases import made
from helpers import assert_same_summary, unlike_sites
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import PCA

pytestmark = pytest.mark.filterwarnings("ignore:.*:sklearn.exceptions.ConvergenceWarning")
SIZES = [40, 1, 70, 33, 50, 2, 64]
WRONG = [(np.nan, "NaN"), (-np.inf, "infinity"), (1e200, "too large")]
MODELS = """
FederatedPCA(3)
FederatedPCA(3, merge=SubspaceMerge("qr", fan_in=2))
FederatedPCA(3, merge=SubspaceMerge(fan_in=3))
FederatedPCA(3, merge=SubspaceMerge(center="site"))
FederatedPCA(3, merge=ProjectionAverage(4))
FederatedPCA(3, merge=ProjectionAverage(4, "rows"))
FederatedPCA(3, merge=NoiseAwareMerge())
FederatedPCA(3, merge=RobustMerge())
FederatedPCA(3, scale=True, partial_out=[0])
DistributedPCA(3)
TruncatedDistributedPCA(3, local_threshold=0.7)
OnlineDistributedPCA(3)
OnlineDistributedPCA(3, weighting="rows")
OnlineDistributedPCA(3, average="steps", center=False, variances="sent")
FederatedPowerPCA(3, n_rounds=2000, tol=1e-10, random_state=0)
FederatedPowerPCA(3, acceleration="krylov", tol=1e-10, random_state=0)
FederatedHeteroscedasticPCA(3, n_rounds=20, tol=0.0, random_state=0)
""".strip().splitlines()
# where sums of weights are compared with others
ALSO = ["FederatedPCA(3, n_refinements=2)", "FederatedPCA(9, missing=ConditionalFill())"]
every_model = pytest.mark.parametrize("code", MODELS)


def in_turn(name, *values):
    """Each estimator with one of the values, and the first with all of them."""
    turns = [(code, values[i % len(values)]) for i, code in enumerate(MODELS)]
    return pytest.mark.parametrize(("code", name), turns + [(MODELS[0], v) for v in values[1:]])


@pytest.fixture
def sites():
    """Seven unlike clients of 1 to 70 rows, a third of whose entries is zero."""
    rng = np.random.default_rng(0)
    X, clients = unlike_sites(rng, SIZES, 9)
    return X * (rng.random(X.shape) < 0.7), clients


def assert_same(a, b, tol=1e-8):
    assert_same_summary(a, b, tol)
    assert_allclose(a.components_, b.components_, atol=100 * tol)  # signs included
    assert_allclose(a.explained_variance_, b.explained_variance_, rtol=tol)


@pytest.mark.parametrize("k", [1, 4, 9])
@pytest.mark.parametrize("code", [*MODELS[:3], MODELS[9], *MODELS[-3:-1]])
def test_the_exact_ones_are_scikit_learns_pca_of_all_rows(code, sites, k):
    X, clients = sites
    model, want = made(code).set_params(n_components=k), PCA(k, svd_solver="full").fit(X)
    assert_same(model.fit(X, clients=clients), want)
    assert_allclose(model.explained_variance_ratio_, want.explained_variance_ratio_, rtol=1e-8)
    assert_allclose(model.transform(X), want.transform(X), atol=1e-6)
    assert_allclose(model.score_samples(X), want.score_samples(X), rtol=1e-7)
    assert_allclose(model.get_covariance(), want.get_covariance(), rtol=1e-6, atol=1e-6)
    assert_allclose(model.get_precision(), want.get_precision(), rtol=1e-6, atol=1e-6)
    assert (model.n_components_, model.n_samples_) == (want.n_components_, want.n_samples_)


@every_model
def test_order_of_rows_and_names_of_clients_do_not_matter(code, sites):
    X, clients = sites
    rng = np.random.default_rng(1)
    shuffle, want = rng.permutation(len(X)), made(code).fit(X, clients=clients)
    texts = getattr(np.dtypes, "StringDType", lambda: object)  # of numpy 2
    spelled = np.where(rng.random(len(X)) < 0.5, "{}\u00e9", "{}e\u0301")  # one name, two ways
    for rows, labels in [
        (X[shuffle], clients[shuffle]),
        (X, rng.permutation(7)[clients]),
        (X, np.array(list("pzamkby"))[clients]),
        (X, np.array(list("pzamkby"), texts())[clients]),
        (X, -10 * clients),
        (X, list(map(str.format, spelled, clients))),
    ]:
        assert_same(made(code).fit(rows, clients=labels), want)


@every_model
def test_weights_are_repeated_rows_and_a_client_without_weight_is_absent(code, sites):
    X, clients = sites
    weight = np.random.default_rng(2).integers(0, 4, len(X)) * (clients != 2)
    weighted = made(code).fit(X, clients=clients, sample_weight=weight)
    rows, labels = np.repeat(X, weight, axis=0), np.repeat(clients, weight)
    repeated = made(code).fit(rows, clients=labels)
    assert_same(weighted, repeated)
    assert weighted.clients_ == repeated.clients_ == sorted(set(labels.tolist()))
    sent = weighted.communication_.table[0]["messages_up"]
    assert sent == repeated.communication_.table[0]["messages_up"]


@pytest.mark.parametrize("code", [*MODELS, *ALSO])
@pytest.mark.parametrize("factor", [7.0, 1e-30, 1e-250, 1e200])
def test_weights_times_a_number_are_no_other_weights(code, sites, factor):
    X, clients = sites
    weight = 2.0**-10 * np.random.default_rng(3).uniform(0.5, 1.5, len(X))
    if factor > 1 and any(word in code for word in ("Noise", "Hetero", "Robust")):
        return  # which count rows: of fewer than a few little is known
    a = made(code).fit(X, clients=clients, sample_weight=weight)
    b = made(code).fit(X, clients=clients, sample_weight=factor * weight)
    assert_allclose(b.components_, a.components_, atol=1e-8)
    assert_allclose(b.singular_values_ / math.sqrt(factor), a.singular_values_, rtol=1e-8)


@in_turn("kind", sp.csr_array, sp.csc_matrix, sp.coo_array)
def test_sparse_rows_are_the_dense_ones(code, sites, kind):
    X, clients = sites
    dense, sparse = made(code).fit(X, clients=clients), made(code).fit(kind(X), clients=clients)
    assert_same(sparse, dense)
    assert_allclose(sparse.transform(kind(X)), dense.transform(X), atol=1e-6)
    assert sparse.communication_.floats_pooled == np.count_nonzero(X)


@every_model
def test_clients_may_work_in_parallel(code, sites):
    X, clients = sites
    both = [made(code).set_params(n_jobs=n).fit(X, clients=clients) for n in (1, 2)]
    assert_same(*both, tol=1e-12)
    assert both[0].communication_ == both[1].communication_


@every_model
def test_what_is_given_is_read_and_not_kept(code, sites):
    X, clients = sites
    given = X.copy(), clients.copy(), np.ones(len(X))
    for array in given:
        array.flags.writeable = False
    model = made(code).fit(given[0], clients=given[1], sample_weight=given[2])
    before = joblib.hash(vars(model))
    for array, value in zip(given, (X, clients, 1.0), strict=True):
        assert_array_equal(array, value)
        array.flags.writeable = True
        array[:] = 0
    assert joblib.hash(vars(model)) == before


@every_model
def test_rows_without_weight_are_no_start_and_change_nothing(code, sites):
    X, clients = sites
    none = np.zeros(len(X))
    with pytest.raises(ValueError, match="sample_weight"):
        made(code).fit(X, clients=clients, sample_weight=none)
    model, want = (made(code).fit(X, clients=clients) for _ in range(2))
    if hasattr(model, "partial_fit"):
        model.partial_fit(X + 100, clients=clients, sample_weight=none)
        assert_same(model, want, 1e-12)
        assert model.n_samples_ == len(X)


@every_model
def test_pooling_would_send_the_rows_of_all_calls(code, sites):
    X, clients = sites
    model = made(code).fit(X, clients=clients)
    assert model.communication_.floats_pooled == X.size
    if hasattr(model, "partial_fit"):
        model.partial_fit(X, clients=clients)
        assert model.communication_.floats_pooled == 2 * X.size


@every_model
def test_who_writes_into_what_is_shown_changes_no_later_call(code, sites):
    X, clients = sites
    model, want = (made(code).fit(X, clients=clients) for _ in range(2))
    if hasattr(model, "partial_fit"):
        for name in filter(lambda name: name.endswith("_"), dir(model)):
            shown = getattr(model, name, None)
            if isinstance(shown, np.ndarray) and shown.flags.writeable:
                shown[...] = 0
        for one in (model, want):
            one.partial_fit(X + 0.1, clients=clients)
        assert_same(model, want, 1e-12)


@every_model
def test_identical_rows_have_no_variance_and_a_mean(code):
    for value in (0.0, 3.0, 1e100):
        model = made(code).fit(np.full((12, 5), value), clients=np.arange(12) % 4)
        ratio = np.array([float("center=False" in code and value > 0), 0, 0])  # about the origin
        assert_allclose(model.explained_variance_ratio_, ratio)
        assert_allclose(model.singular_values_, np.sqrt(60) * value * ratio)
        assert model.noise_variance_ == 0
        assert_allclose(model.components_ @ model.components_.T, np.eye(3), atol=1e-12)
        assert_allclose(model.mean_, 0 if "center=False" in code else value, rtol=1e-15)


@in_turn("how", *product([1, 2], WRONG))
def test_a_wrong_entry_names_its_client_and_changes_nothing(code, sites, how):
    n_jobs, (bad, words) = how
    X, clients = sites
    names, wrong = np.array(list("abcdefg"))[clients], X.copy()
    wrong[np.flatnonzero(names == "c")[3], 1] = bad
    fitted, new = made(code).fit(X, clients=names), made(code)
    for model, method in [(fitted, "fit"), (fitted, "partial_fit"), (new, "fit")]:
        if not hasattr(model.set_params(n_jobs=n_jobs), method):
            continue
        before, attributes = joblib.hash(vars(model)), list(vars(model))
        with pytest.raises(ValueError, match=rf"(?s)^Client 'c': .*{words}"):
            getattr(model, method)(wrong, clients=names)
        assert (joblib.hash(vars(model)), list(vars(model))) == (before, attributes)


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")  # of a series
@in_turn("library", "pandas", "polars", "pyarrow")
def test_a_column_holds_the_labels(code, sites, library):
    X, clients = sites
    site = np.array(list("pzamkby"))[clients]
    columns = {f"x{i}": X[:, i] for i in range(9)}
    columns = {"x0": columns["x0"], "site": site.tolist(), **columns}  # not the last one
    module = pytest.importorskip(library)
    frame = module.table(columns) if library == "pyarrow" else module.DataFrame(columns)
    model, want = made(code).fit(frame, clients="site"), made(code).fit(X, clients=site)
    assert model.clients_ == want.clients_ == sorted("pzamkby")
    assert_same(model, want, 1e-12)
    assert model.n_features_in_ == 9
    if library == "pandas":
        with pytest.raises(ValueError, match=r"container but got.*Series"):
            model.transform(frame["x0"])
        assert list(model.feature_names_in_) == [f"x{i}" for i in range(9)]
    names = [f"x{i}" for i in range(9)]
    for rows in (frame, frame[names] if library == "pandas" else frame.select(names)):
        assert_allclose(model.transform(rows), want.transform(X), atol=1e-9)
        assert_allclose(model.score(rows), want.score(X), rtol=1e-9)
    if hasattr(model, "partial_fit"):
        assert_same(
            model.partial_fit(frame, clients="site"), want.partial_fit(X, clients=site), 1e-10
        )
    if library == "pandas":  # a later fit takes a column of that name for numbers
        numbers = frame.assign(site=X[:, 0])
        assert len(model.fit(numbers, clients=site).transform(numbers)) == len(X)
