"""What estimators with a mechanism find, what can be read from them, and what they refuse.

Oracles are numpy's SVD of rows clipped by hand, clients without a mechanism, and every statistic of
the rows against every number of a fitted estimator.
"""

from contextlib import nullcontext
from functools import partial
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import kind_of_error
from numpy.testing import assert_allclose, assert_array_equal
from privacy_helpers import (
    ONE_ROUND,
    clipped_by_hand,
    every_container,
    every_mechanism,
    every_trust,
    inf,
    model_of,
    mostly_noise,
    nan,
    rows,
)
from sklearn.base import clone

import fedpca_sklearn
from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    FederatedPowerPCA,
    FedPowerNoise,
    GaussianChannel,
    PerfectChannel,
    ProjectionAverage,
    StreamingModSuLQ,
    SubspaceMerge,
    privacy,
    subspace_distance,
)
from fedpca_sklearn.communication import Federation
from fedpca_sklearn.privacy._rows import ClippedRows
from fedpca_sklearn.rounds._queries import Query

pytestmark = mostly_noise


def pca_by_hand(X, row_norm, center, mean, k):
    """Mean, leading right singular vectors, variances and scatter of clipped rows."""
    Y = clipped_by_hand(X, row_norm, center)
    shift = Y.mean(axis=0) if mean == "private" else np.zeros(X.shape[1])
    _, s, V = np.linalg.svd(Y - shift, full_matrices=False)
    origin = 0 if center is None else np.asarray(center)
    return origin + shift, V[:k], s[:k] ** 2 / (len(X) - 1), np.sum((Y - shift) ** 2)


def assert_pca(model, shift, V, variances, scatter):
    assert_allclose(model.mean_, shift, atol=1e-12)
    assert_allclose(model.explained_variance_, variances, rtol=1e-8)
    assert_allclose(np.abs(np.sum(model.components_ * V, axis=1)), 1, rtol=0, atol=1e-10)
    assert_allclose(model.subspace_.scatter, scatter, rtol=1e-10)
    assert model.privacy_spent_ == (inf, 1e-5)


# ------------------------------------------------------------------- without noise; clipped rows


@every_mechanism
@every_trust
@pytest.mark.parametrize("mean", ["private", "fixed"])
@pytest.mark.parametrize("center", [None, 0.5, np.linspace(-1, 2, 6)], ids=str)
@every_container
@pytest.mark.parametrize("n_clients", [1, 3])
def test_no_noise_is_pca_of_the_clipped_rows(kind, trust, mean, center, container, n_clients):
    X = rows()
    X[np.abs(X) < 0.3] = 0
    about = None if center is None else np.zeros(6) + center
    row_norm = float(np.median(np.linalg.norm(X - (0 if center is None else center), axis=1)))
    mechanism = kind(inf, 1e-5, row_norm, center=center, mean=mean, trust=trust)
    model = model_of(mechanism, n_clients=n_clients).fit(container(X))
    assert_pca(model, *pca_by_hand(X, row_norm, about, mean, 3))


@pytest.mark.parametrize("kind", [AnalyzeGauss, StreamingModSuLQ])
@pytest.mark.parametrize("n_clients", [1, 2])
def test_few_directions_of_many_features(kind, n_clients):
    """More than are kept: rows of rank 6 are found among 400 features."""
    X = rows(80, 6) @ np.linalg.qr(np.random.default_rng(1).standard_normal((400, 6)))[0].T
    model = model_of(kind(inf, 1e-5, 4.0), n_clients=n_clients).fit(X)
    assert_pca(model, *pca_by_hand(X, 4.0, None, "private", 3))


@pytest.mark.parametrize("merge", [SubspaceMerge(fan_in=2), ProjectionAverage(4)])
def test_merge_strategies_take_private_summaries(merge):
    X, mechanism = rows(), AnalyzeGauss(inf, 1e-5, 1e3)
    plain = FederatedPCA(2, merge=merge, n_clients=4).fit(X)
    model = clone(plain).set_params(mechanism=mechanism).fit(X)
    assert_allclose(model.explained_variance_, plain.explained_variance_, rtol=1e-8)
    assert subspace_distance(model.components_, plain.components_) < 1e-7


@pytest.mark.parametrize("kind", ONE_ROUND)
@every_trust
@pytest.mark.parametrize("n_components", [None, 2, 0.9])
def test_calls_add_up(kind, trust, n_components):
    X, labels = rows(90), np.arange(90) % 3
    mechanism = kind(inf, 1e-5, 2.0, trust=trust, n_releases=3)
    whole = FederatedPCA(n_components, mechanism=mechanism).fit(X, clients=labels)
    parts = FederatedPCA(n_components, mechanism=mechanism)
    for part in np.split(np.arange(90), 3):
        parts.partial_fit(X[part], clients=labels[part])
    assert_allclose(parts.mean_, whole.mean_, atol=1e-12)
    assert_allclose(parts.explained_variance_, whole.explained_variance_, rtol=1e-9)
    assert (parts.n_samples_, parts.clients_) == (90, [0, 1, 2])


LOSSY = PerfectChannel(dropout=np.random.default_rng(0).random((7, 5)) < 0.4)


# noise of 1e-3 on sums of 300 rows and products of some hundreds
@pytest.mark.parametrize(("channel", "tolerance"), [(LOSSY, 1e-10), (GaussianChannel(1e-3), 1e-4)])
@pytest.mark.parametrize("center", [None, [-3.0] * 6])
def test_channels_compose_with_a_mechanism(channel, tolerance, center):
    """What arrives is that of clients without a mechanism, whoever takes part in a round."""
    X, noise = rows(300, mean=1.0), FedPowerNoise(inf, 0.1, 1e3, center=center)
    options = {"n_rounds": 25, "n_clients": 5, "channel": channel, "init": np.eye(6)[:2]}
    plain = FederatedPowerPCA(2, random_state=0, **options).fit(X)
    model = clone(plain).set_params(mechanism=noise).fit(X)
    assert_allclose(model.mean_, plain.mean_, atol=tolerance)
    assert subspace_distance(model.components_, plain.components_) < tolerance
    assert_allclose(model.singular_values_, plain.singular_values_, rtol=tolerance)


def test_the_same_seed_in_two_fits_gives_a_row_away():
    """Why docs/privacy.md says that a seed is for tests: the noise cancels."""
    X, row_norm = rows(), 3.0
    Y = X.copy()
    Y[7] = 1.0
    # so little noise that no eigenvalue of the release is negative, and all can be read
    mechanism = AnalyzeGauss(50.0, 1e-3, row_norm, mean="fixed", trust="sum")
    released = []
    for rows_ in (X, Y):
        made = FederatedPCA(mechanism=mechanism, random_state=0).fit(rows_).subspace_
        S = made.components * made.singular_values[:, None]
        released.append(S.T @ S)
    old, new = clipped_by_hand(X, row_norm)[7], clipped_by_hand(Y, row_norm)[7]
    want = np.outer(old, old) - np.outer(new, new)
    assert_allclose(released[0] - released[1], want, atol=1e-9)


@pytest.mark.parametrize("kind", [AnalyzeGauss, FedPowerNoise])
def test_the_number_of_non_zeros_is_not_told(kind):
    X = sp.random(40, 5, 0.5, "csr", random_state=0)
    assert model_of(kind(1.0, 1e-5, 1.0), 2).fit(X).communication_.floats_pooled == 200


# ------------------------------------------------------------------- what is hard to clip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("center", [None, np.array([0.0, 1.0, 0.0])])
def test_entries_that_are_stored_twice_are_clipped_as_their_sum(dtype, center):
    data, indices, indptr = np.array([1000, -999.5, 3, 1], dtype), [0, 0, 1, 2], [0, 2, 4]
    X = sp.csr_array((data.copy(), indices, indptr), shape=(2, 3))
    Y = clipped_by_hand(X.toarray(), 1.0, center)
    clipped = ClippedRows.of(X, center, 1.0)
    assert_allclose(clipped.sum(), Y.sum(axis=0), rtol=1e-12)
    assert_allclose(clipped.products(slice(0, 3)), Y.T @ Y, rtol=1e-12, atol=1e-15)
    assert_allclose(clipped.trace(), np.sum(Y**2), rtol=1e-12)
    assert_array_equal(X.data, data)
    assert len(X.indices) == 4


@pytest.mark.parametrize("size", [1e100, 1e160, 1e300, 1.7e308])
@every_container
def test_a_huge_row_counts_as_a_row_of_the_bound(size, container):
    X = rows(40) / 100
    X[3] = [size, -size, 0, 0, 0, 0]
    exact = np.delete(X, 3, axis=0)
    exact = exact.T @ exact
    exact[:2, :2] += [[0.5, -0.5], [-0.5, 0.5]]
    clipped = ClippedRows.of(container(X), None, 1.0)
    V = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 2)))[0].T
    assert_allclose(clipped.products(slice(0, 6)), exact, rtol=1e-12, atol=1e-15)
    assert_allclose(clipped.times_second_moment(V), V @ exact, rtol=1e-12, atol=1e-15)
    assert_allclose(clipped.trace(), np.trace(exact), rtol=1e-12)
    model = model_of(FedPowerNoise(1.0, 1e-5, 1.0), 2, n_rounds=3).fit(container(X))
    assert np.isfinite([model.noise_variance_, *model.components_.ravel()]).all()


@every_container
@pytest.mark.parametrize("center", [None, np.full(3, 1e-24)], ids=["origin", "centre"])
@pytest.mark.parametrize("row_norm", [1e-60, 1e-23, 1e-18, 1e-11])
def test_no_row_counts_for_more_than_the_bound_however_much_it_is_shortened(
    row_norm, center, container
):
    """The attack: a factor below the normal floats has few digits, and shortens by too little."""
    for size in (1e240, 1e300, 1.1e300, 1.7e308):
        for row in ([size, -size / 3, size / 7], [size, 0.0, 0.0], [size / 2, size, 0.3]):
            clipped = ClippedRows.of(container([row]), center, row_norm)
            assert_allclose(np.linalg.norm(clipped.sum() / row_norm), 1, rtol=1e-12)


def test_a_far_centre_costs_no_digits_of_sparse_rows():
    X = np.full((4, 3), 1e8)
    X[0, 0] += 100
    assert ClippedRows.of(sp.csr_array(X), np.full(3, 1e8), 1e6).trace() == 100**2


# ----------------------------------------------------------------------------------------- leaks


def numbers_in(value, path, seen):
    """All arrays and floats that can be reached from an object, with where they are."""
    if id(value) in seen or isinstance(value, (bool, str, bytes, type(None))):
        return
    seen[id(value)] = value
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
        yield path, value.astype(float)
    elif isinstance(value, (int, float, np.number)):
        yield path, np.array([float(value)])
    elif sp.issparse(value):
        yield path, value.toarray()
    else:
        if isinstance(value, np.ndarray):
            value = value.ravel().tolist()
        if isinstance(value, (list, tuple, set, frozenset)):
            value = dict(enumerate(value))
        elif not isinstance(value, dict):
            kinds, fields = type(value).__mro__, getattr(value, "__dict__", {})
            slots = [name for kind in kinds for name in vars(kind).get("__slots__", ())]
            names = {*getattr(value, "__dataclass_fields__", {}), *fields}
            names |= {*filter(partial(hasattr, value), slots)}
            value = {name: getattr(value, name) for name in names}
        for key, item in value.items():
            yield from numbers_in(item, f"{path}[{key!r}]", seen)


def secrets_of(X, labels, row_norm, center):
    """Statistics of raw and of clipped rows, of each client and of all, as vectors and numbers."""
    for group in [X, *(X[labels == label] for label in np.unique(labels))]:
        clipped = clipped_by_hand(group, row_norm, center)
        for Y in (group, clipped, clipped + center):
            for shift in (0.0, Y.mean(axis=0)):
                _, s, V = np.linalg.svd(Y - shift, full_matrices=False)
                M = (Y - shift).T @ (Y - shift)
                yield from (s, s**2, s**2 / (len(Y) - 1), s**2 / len(Y))
                yield from (*V, *-V, *M, *(M / len(Y)), *(M / (len(Y) - 1)))
                yield from np.array([np.trace(M), np.trace(M) / (len(Y) - 1)])[:, None]
            yield from (Y.mean(axis=0), Y.sum(axis=0), *Y)


def assert_holds_no_secret(found, secrets):
    tables = {size: [s for s in secrets if s.size == size] for size in {s.size for s in secrets}}
    for path, array in found:
        for size, table in tables.items():
            for flat in (array.ravel(), array.T.ravel()):
                if flat.size < size:
                    continue
                windows = np.lib.stride_tricks.sliding_window_view(flat, size)[:, None]
                close = np.abs(windows - table) <= 1e-6 * np.abs(table)
                assert not np.any(np.all(close, axis=2)), path


CENTER = np.array([0.1, 0.2, 0.3, 0.4, 0.7])


@every_trust
@pytest.mark.parametrize(
    ("kind", "epsilon", "options"),
    [
        *[(kind, 200.0, {}) for kind in ONE_ROUND],
        *[(FedPowerNoise, 500.0, {"acceleration": how}) for how in (None, "krylov")],
    ],
)
def test_nothing_unperturbed_survives_or_is_sent(kind, epsilon, options, trust, monkeypatch):
    """Every number that can be reached from the fitted estimator, and every message of a client."""
    X, labels = rows(40, 5), np.arange(40) % 3
    mechanism = kind(epsilon, 1e-3, 4.0, trust=trust, center=CENTER)
    if kind is FedPowerNoise:
        options = {"n_rounds": 4, "tol": 1e-6, **options}
    else:
        mechanism.n_releases = 2
    messages, map_ = [], Federation.map

    def recording(self, function, clients):
        for message in map_(self, function, clients):
            if isinstance(function, Query) or function.__name__ in ("_message", "private_summary"):
                messages.append(message)
            yield message

    model = model_of(mechanism, 2, **options)
    with monkeypatch.context() as patch:
        patch.setattr(Federation, "map", recording)
        for _ in range(1 if kind is FedPowerNoise else 2):
            (model.fit if kind is FedPowerNoise else model.partial_fit)(X, clients=labels)
    assert len(messages) >= 3
    attributes = {k: v for k, v in vars(model).items() if k not in model.get_params(deep=False)}
    found = list(numbers_in(attributes, "model", {}))
    if kind is not FedPowerNoise:
        assert any("_clients" in path and "components" in path for path, _ in found)
    assert any("communication_" in path for path, _ in found)
    secrets = list(secrets_of(X, labels, 4.0, CENTER))
    assert_holds_no_secret(found, secrets)
    assert_holds_no_secret(numbers_in(messages, "messages", {}), secrets)
    # the walk does find what is there: the same without noise
    clear = clone(model).set_params(mechanism__epsilon=inf).fit(X, clients=labels)
    with pytest.raises(AssertionError):
        assert_holds_no_secret(numbers_in(vars(clear), "model", {}), secrets)


# ---------------------------------------------------------------------------------------- errors

WITH = {"epsilon": 1.0, "delta": 0.1, "row_norm": 2.0}
PUBLIC = {name: getattr(fedpca_sklearn, name) for name in fedpca_sklearn.__all__}
VALUES = {**vars(privacy), **PUBLIC, "np": np, "inf": inf, "nan": nan} | {
    "gauss": lambda **options: FederatedPCA(2, mechanism=AnalyzeGauss(**WITH | options)),
    "power": lambda of={}, **options: FederatedPowerPCA(
        2, mechanism=FedPowerNoise(**WITH | options), **of
    ),
    "plan": lambda n, d, k, **options: AnalyzeGauss(1.0, 1e-5, 4.0).plan(n, d, k, **options),
}
# Parameter | words of the error | wrong values, of either mechanism
WRONG = """
epsilon | epsilon | 0.0; -1.0; nan; "1"; 1e-7
delta | delta | 0.0; 1.0
row_norm | row_norm | 0.0; inf; "max"; None; 1e-170; 1e160
mean | mean | "public"
mean_share | mean_share | 1.0
trust | trust | "server"
ledger | ledger | "file"
center | center must have shape (6,), got (3,) | np.zeros(3)
center | center must be finite | [nan] * 6; nan
center | center | "mean"; np.zeros((2, 3))
row_norm | row_norm must be known in advance | "private", trust="sum"
center | center must be known in advance | "private", trust="sum"
"""
# Call | words of the error
REFUSED = """
gauss(n_releases=0); gauss(n_releases=-1); gauss(n_releases=1.5) | n_releases
power(row_norm="private") | row_norm must be known in advance
power(center="private") | center must be known in advance
power(of=dict(init=np.eye(3))) | shape
power(of=dict(local_steps=2)) | local_steps=1 | got 2
power(of=dict(center=False)); power(of=dict(center=False), mean="fixed", center=np.ones(6)) |\
 center=False needs
power(of=dict(channel=FadingChannel()), trust="sum") | trust='sum' needs a channel that loses no
power(of=dict(channel=GaussianChannel(dropout=0.1)), trust="sum") | trust='sum' needs a channel
power(of=dict(channel=PerfectChannel(dropout=[[1, 0]])), trust="sum") | trust='sum' needs a channel
AnalyzeGauss(1.0, 0.1); FedPowerNoise(1.0, 0.1) | TypeError | row_norm
FederatedPCA(2, estimator=StreamingPCA(2), mechanism=AnalyzeGauss(1.0, 0.1, 2.0)) | estimator must
FederatedPCA(2, mechanism=FedPowerNoise(1.0, 0.1, 2.0)) | mechanism
FederatedPowerPCA(2, mechanism=AnalyzeGauss(1.0, 0.1, 2.0)) | mechanism
FederatedPCA("above_noise") | needs a mechanism, whose noise it is
PrivateNorm((1.0,)); PrivateNorm((2.0, 1.0)); PrivateNorm((0.0, 1.0)); PrivateNorm((1.0, inf)) |\
 bounds must be two numbers
PrivateCenter("ab"); PrivateCenter(3) | bounds must be two numbers
PrivateNorm(share=0.0); PrivateNorm(share=nan) | share must be
PrivateCenter(share=0.5); PrivateCenter(share=-1.0) | share must be
PrivacyLedger("ledger").spent(1.0) | delta must be between 0 and 1
plan(0, 5, 2) | n must be
plan(10, 5, 6) | n_components=6 must be at most
plan(10, 5, 2, spectrum=[1.0, -1.0]); plan(10, 5, 2, spectrum=np.ones(6)) |\
 spectrum must have 1 to d=5
AnalyzeGauss(1.0, 1e-5, "data").plan(10, 5, 2) | row_norm must be a number or 'private' for a plan
DiscreteGaussian(9); DiscreteGaussian(31); DiscreteGaussian(20.0) |\
 bits must be an integer from 10 to 30
DiscreteGaussian(10).gaussian_part(0.1, 10**6) | too coarse for 1000000 numbers
DiscreteGaussian(30).noisy(np.array([1e9]), 1.0, np.random.default_rng(0)) | take fewer bits
"""
WRONG = [
    ("; ".join(f"{kind}({name}={value})" for value in values.split("; ")), [words])
    for name, words, values in (line.split(" | ") for line in WRONG.strip().splitlines())
    for kind in ("gauss", "power")
]
REFUSED = [
    (calls, words) for calls, *words in (line.split(" | ") for line in REFUSED.strip().splitlines())
]


@pytest.mark.parametrize(("calls", "words"), WRONG + REFUSED)
def test_what_is_refused_is_named_and_costs_nothing(calls, words):
    def call(code):
        made.append(eval(code, dict(VALUES)))
        made[-1].fit(rows())

    made = []
    for code in calls.split("; "):
        with pytest.raises(kind_of_error(words)) as error:
            call(code)
        assert all(word in error.exconly() for word in words), (code, error.value)
    assert not any(hasattr(model, "privacy_spent_") for model in made)


@pytest.mark.parametrize("model", [VALUES["gauss"](), VALUES["power"]()], ids=repr)
def test_wrong_rows_labels_and_weights_cost_nothing(model):
    labels, bad = np.repeat(["a", "b"], 30), rows()
    bad[40, 2] = nan
    for X, more, words in (
        (bad, {"clients": labels}, "Client 'b'.*NaN"),
        (rows(), {"clients": ["1", " 1"] * 30}, "' 1' and '1'"),
        (rows(), {"sample_weight": np.ones(60)}, "sample_weight must be None with a mechanism"),
    ):
        with pytest.raises(ValueError, match=words):
            model.fit(X, **more)
        assert not hasattr(model, "privacy_spent_")


def test_a_mechanism_cannot_come_go_or_change_its_trust_between_calls():
    private = AnalyzeGauss(1.0, 0.1, 2.0, n_releases=5)
    for first, second in product([None, private, clone(private).set_params(trust="sum")], repeat=2):
        model = FederatedPCA(2, mechanism=first, random_state=0).fit(rows())
        model.set_params(mechanism=second)
        with nullcontext() if first is second else pytest.raises(ValueError, match="not change"):
            model.partial_fit(rows())
