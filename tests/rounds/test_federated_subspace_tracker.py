"""The tracker of rows at clients, by rounds of sums."""

from itertools import combinations

import joblib
import numpy as np
import pytest
import scipy.sparse as sp
from helpers import PAPER, f1_score, random_basis, sine
from numpy.testing import assert_allclose, assert_array_equal
from rounds_helpers import MARGIN, Recorder, assert_same, labels, nan, record, rows
from sklearn.base import clone

from fedpca_sklearn import (
    FederatedSubspaceTracker,
    GaussianChannel,
    PerfectChannel,
    RobustSubspaceTracker,
    SubspaceTracker,
    make_subspace_stream,
)


@pytest.fixture
def recorded():
    yield from record()


ROUNDS = {"n_rounds": 60, "init_rounds": 200}


def stream(n=400, d=30, k=3, noise=0.01, holes=0.1, seed=0):
    """Rows of a subspace with noise and holes, and a basis of it."""
    rng = np.random.default_rng(seed)
    V = random_basis(rng, k, d)
    X = rng.standard_normal((n, k)) * np.linspace(4, 2, k) @ V
    X += noise * rng.standard_normal((n, d))
    return np.where(rng.random((n, d)) < holes, nan, X), V


def assert_same_tracker(model, other, tol=1e-8):
    assert_same(model, other, tol)
    assert model.n_samples_seen_ == other.n_samples_seen_


@pytest.mark.parametrize("k", [1, 3, 10, 40])
@pytest.mark.parametrize("given_init", [True, False])
@pytest.mark.parametrize("n_iter", [1, 3])
def test_tracker_equals_the_tracker_of_all_rows(k, given_init, n_iter):
    X, V = stream()
    init = V + 0.1 * np.random.default_rng(1).standard_normal(V.shape) if given_init else "svd"
    options = {"batch_size": 40, "init": init, "store_subspaces": True, "n_iter": n_iter}
    model = FederatedSubspaceTracker(
        3, robust=False, random_state=0, **{**PAPER, **ROUNDS, **options}
    )
    model.fit(X, clients=labels(400, k))
    pooled = SubspaceTracker(3, **{**PAPER, **options}).fit(X)
    assert_same_tracker(model, pooled)
    for a, b in zip(model.subspaces_, pooled.subspaces_, strict=True):
        assert sine(a, b) < 1e-8
    assert_allclose(model.transform(X[:50]), signed(model, pooled, pooled.transform(X[:50])))
    assert_allclose(model.impute(X[:50]), pooled.impute(X[:50]), atol=1e-7)


def signed(model, other, Z):
    """Coordinates along the axes of another model, with the signs of this one."""
    return Z * np.sign(np.sum(model.components_ * other.components_, axis=1))


def with_outliers(X, share=0.05, size=8.0, seed=3):
    rng = np.random.default_rng(seed)
    hit = (rng.random(X.shape) < share) & ~np.isnan(X)
    return np.where(hit, X + size * rng.choice([-1, 1], X.shape), X), hit


@pytest.mark.parametrize("k", [1, 4])
def test_robust_tracker_equals_that_of_all_rows(k):
    X, V = stream(240)
    X, hit = with_outliers(X)
    options = {"batch_size": 40, "init": V, "xi": 0.5, "support_threshold": 3.0}
    model = FederatedSubspaceTracker(3, random_state=0, **{**PAPER, **ROUNDS, **options})
    model.fit(X, clients=labels(240, k))
    pooled = RobustSubspaceTracker(3, **{**PAPER, **options}).fit(X)
    assert_same_tracker(model, pooled)
    assert_array_equal(model.outlier_mask_, pooled.outlier_mask_)
    assert_array_equal(model.outlier_mask_, hit)
    assert_allclose(model.support_threshold_, pooled.support_threshold_)
    for a, b in zip(model.decompose(X[:40]), pooled.decompose(X[:40]), strict=True):
        assert_allclose(a, b, atol=1e-6)
    assert_allclose(model.score(X[:40]), pooled.score(X[:40]), rtol=1e-5)


@pytest.mark.parametrize("k", [1, 4])
def test_outliers_are_found_from_a_given_start(k):
    made = make_subspace_stream(600, 100, 3, delta=0, outliers=0.1, random_state=0)
    init = made.subspace_at(0)
    init = init + 1e-3 * np.random.default_rng(0).standard_normal(init.shape)
    model = FederatedSubspaceTracker(3, init=init, batch_size=60, random_state=0, **PAPER)
    model.fit(made.X, clients=np.arange(600) % k)
    true = made.outliers & ~made.missing
    assert f1_score(model.outlier_mask_, true) >= 0.99
    assert sine(model.components_, made.subspace_at(599)) < 1e-6
    low_rank, sparse = model.decompose(made.X)
    assert f1_score(sparse != 0, true) >= 0.99
    there = ~made.missing
    assert_allclose((low_rank + sparse)[there], made.X[there], atol=1e-9)
    assert np.median(np.abs(low_rank - made.low_rank)) < 1e-6
    assert np.median(np.abs(model.impute(made.X) - made.low_rank)) < 1e-6
    assert np.isfinite(model.transform(made.X)).all()


@pytest.mark.parametrize(
    ("given_labels", "want"),
    [
        (np.arange(400) % 3, [0, 1, 2]),
        (np.array(["b", "a"])[np.arange(400) % 2], ["a", "b"]),
        ((np.arange(400) % 2).astype(bool).tolist(), [False, True]),
        (None, [0, 1]),
    ],
)
def test_tracker_takes_any_labels(given_labels, want):
    X, _ = stream()
    model = FederatedSubspaceTracker(3, robust=False, random_state=0, **{**PAPER, **ROUNDS})
    model.fit(X, clients=given_labels)
    assert model.clients_ == want
    assert_same_tracker(model, SubspaceTracker(3, **PAPER).fit(X))


def test_labels_are_dealt_round_robin_over_the_whole_stream(recorded):
    X, _ = stream(240, holes=0.0)
    dealt = FederatedSubspaceTracker(3, n_clients=7, channel=Recorder(), random_state=0, **PAPER)
    dealt.fit(X)
    parts, recorded[:] = list(recorded), []
    named = clone(dealt).fit(X, clients=np.arange(240) % 7)
    assert len(parts) == len(recorded)
    for a, b in zip(parts, recorded, strict=True):
        assert_array_equal(a, b)
    assert_array_equal(named.components_, dealt.components_)
    cut = clone(dealt)
    for part in np.split(X, [3, 50, 111]):
        cut.partial_fit(part)
    assert_allclose(cut.components_, dealt.components_, atol=1e-9)
    assert cut.clients_ == list(range(7))


def test_a_client_without_rows_in_a_batch_takes_no_part():
    X, _ = stream(120)
    codes = np.array([0] * 20 + [1] * 20 + [1] * 40 + [2] * 20 + [0] * 20)
    model = FederatedSubspaceTracker(
        3, robust=False, batch_size=40, random_state=0, **{**PAPER, **ROUNDS | {"n_rounds": 20}}
    )
    model.fit(X, clients=codes)
    assert model.clients_ == [0, 1, 2]
    messages = [row["messages_up"] for row in model.communication_.table]
    assert messages == [2] * 201 + [1] * 21 + [2] * 21
    assert_same_tracker(model, SubspaceTracker(3, batch_size=40, **PAPER).fit(X))


class Received(GaussianChannel):
    """A noisy channel that keeps what arrives."""

    sums: list = []

    def receive(self, messages, rng):
        total, count = super().receive(messages, rng)
        Received.sums.append(total.copy())
        return total, count


def test_noise_is_fresh_where_rows_that_waited_come_again():
    X, V = stream(61)
    Received.sums = []
    model = FederatedSubspaceTracker(3, init=V, robust=False, batch_size=50, n_clients=1, **PAPER)
    model.set_params(n_rounds=2, channel=Received(100.0), random_state=0)
    model.partial_fit(X[:60])
    model.partial_fit(X[60:])
    large = [total for total in Received.sums if total.ndim == 2]
    for a, b in combinations(large, 2):
        assert np.std(a - b) > 100  # sqrt(2) 100 without the signal, 0 with the same noise


@pytest.mark.parametrize("channel", [None, PerfectChannel()])
@pytest.mark.parametrize("robust", [True, False])
def test_how_the_stream_is_cut_does_not_matter(channel, robust):
    X, V = stream(90)
    codes = labels(90, 3)
    model = FederatedSubspaceTracker(
        3, init=V, robust=robust, batch_size=30, n_rounds=3, init_rounds=5, random_state=0, **PAPER
    ).set_params(channel=channel, store_subspaces=True)
    whole = clone(model).fit(X, clients=codes)
    one_by_one = clone(model)
    for i in range(90):
        one_by_one.partial_fit(X[i : i + 1], clients=codes[i : i + 1])
    parts = clone(model)
    for rows_ in np.split(np.arange(90), [7, 45, 46]):
        parts.partial_fit(X[rows_], clients=codes[rows_])
    for other in (one_by_one, parts):
        assert_same_tracker(other, whole, 1e-9)
        assert_allclose(other.subspaces_, whole.subspaces_, atol=1e-9)
        assert other.clients_ == whole.clients_


def test_a_stream_of_batches():
    X, _ = stream(240)
    model = FederatedSubspaceTracker(3, random_state=0, n_clients=3, **PAPER)
    whole = clone(model).fit(X)
    streamed = clone(model).fit(iter(np.split(X, [10, 90, 100])))
    assert_same_tracker(streamed, whole, 1e-9)
    assert_same_tracker(clone(model).partial_fit([X[:100], X[100:]]), whole, 1e-9)
    for method in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match="clients cannot be given when X is an iterable"):
            getattr(clone(model), method)(iter([X]), clients=np.zeros(240, int))


def test_sparse_rows_of_a_tracker():
    X, _ = stream(120, holes=0.0)
    X[np.abs(X) < 0.3] = 0.0
    model = FederatedSubspaceTracker(3, robust=False, random_state=0, **{**PAPER, **ROUNDS})
    assert_same_tracker(clone(model).fit(sp.csr_array(X)), clone(model).fit(X), 1e-10)


def test_a_change_is_followed():
    made = make_subspace_stream(1200, 60, 3, model="piecewise", random_state=0)
    model = FederatedSubspaceTracker(
        3, batch_size=60, random_state=0, store_subspaces=True, **PAPER
    )
    model.set_params(robust=False).fit(made.X, clients=labels(1200, 4))
    change = made.change_points[0]
    errors = np.array(
        [sine(V, made.subspace_at(60 * i + 59)) for i, V in enumerate(model.subspaces_)]
    )
    at = change // 60
    assert sine(made.subspace_at(0), made.subspace_at(change)) > 0.1
    assert errors[at - 1] < 1e-6  # before
    assert errors[-1] < 1e-6  # and after


def test_floor_of_the_tracker_is_proportional_to_the_noise():
    X, V = stream(400, noise=0.0)
    errors = []
    for noise in (1e-5, 1e-4, 1e-3):
        model = FederatedSubspaceTracker(
            3, init=V, robust=False, batch_size=80, random_state=0, **PAPER
        )
        model.set_params(channel=GaussianChannel(noise)).fit(X, clients=labels(400, 4))
        errors.append(sine(model.components_, V))
    assert_allclose(errors[1:], 10 * np.array(errors[:-1]), rtol=0.02)
    # without variance outside the subspace the floor is noise / lambda_r for each of d - r entries;
    # missing entries add their gain to it
    least = np.linalg.svd(np.nan_to_num(X[-80:]), compute_uv=False)[2] ** 2
    floor = 1e-4 * np.sqrt(27) / least
    assert floor / 3 < errors[1] < 3 * floor


def test_communication_of_a_tracker_is_as_said():
    X, _ = stream(120)
    d, r, k = 30, 3, 4
    model = FederatedSubspaceTracker(
        r, robust=False, batch_size=40, n_rounds=6, init_rounds=9, random_state=0, **PAPER
    ).fit(X, clients=np.arange(120) % k)
    up, down = [], []
    for rounds in (9, 6, 6):
        up += [k * r * d] * rounds + [k * (r**2 + 2)]
        down += [k * r * d] * (rounds + 1)
    log = model.communication_
    assert [row["floats_up"] for row in log.table] == up
    assert [row["floats_down"] for row in log.table] == down
    assert log.bytes_up == 8 * sum(up)
    assert log.floats_busiest == r * d * len(up)
    before = log.copy()
    model.partial_fit(X[:40], clients=np.arange(40) % k)
    assert log == before  # the old log is not written
    assert model.communication_.rounds == log.rounds + 7


def test_dropout_of_a_tracker():
    X, V = stream(400)
    model = FederatedSubspaceTracker(3, robust=False, batch_size=80, random_state=0, **PAPER)
    model.set_params(channel=PerfectChannel(dropout=0.3)).fit(X, clients=np.arange(400) % 5)
    # The last round sums over the clients that were there, at least those with the least variance:
    # noise of 27 features in 3 directions, over their singular value. Missing entries, a tenth,
    # pass on as much of the error before.
    there = model.communication_.table[-2]["messages_up"]
    last = [X[start::5] for start in range(320, 325)]
    last = [np.where(np.isnan(part), 0, part) @ V.T for part in last]
    least = np.sort([np.linalg.svd(part, compute_uv=False)[-1] ** 2 for part in last])
    noise = 0.01 * (np.sqrt(27) + np.sqrt(3) + MARGIN)
    assert 1 <= there < 5
    assert sine(model.components_, V) < noise / np.sqrt(least[:there].sum()) / (1 - 0.1)
    assert model.communication_.floats_up < 0.8 * 5 * 90 * (50 + 4 * 10)
    model.set_params(channel=PerfectChannel(np.ones((1, 5))))
    with pytest.raises(ValueError, match="channel: no client took part"):
        model.fit(X, clients=np.arange(400) % 5)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([0] * 79, "clients must have one label per row, 1 are missing"),
        ([0] * 81, "clients must have one label per row, 81 labels are 1 too many"),
        ([[0]] * 80, "clients must have one label per row"),
        ([0, "a"] * 40, "all integers or all strings"),
        ([0.5] * 80, "all integers or all strings"),
        ([None] * 80, "all integers or all strings"),
    ],
)
def test_wrong_labels_of_a_tracker_leave_no_trace(clients, message):
    X, _ = stream(80)
    new = FederatedSubspaceTracker(3, random_state=0, **PAPER)
    fitted = clone(new).fit(X)
    for model in (new, fitted):
        before = joblib.hash(vars(model))
        for method in ("fit", "partial_fit"):
            with pytest.raises(ValueError, match=message):
                getattr(model, method)(X, clients=clients)
        assert joblib.hash(vars(model)) == before


def test_jobs_of_a_tracker_do_not_matter():
    X, V = stream(80)
    model = FederatedSubspaceTracker(
        3, init=V, n_rounds=3, init_rounds=5, channel=GaussianChannel(0.01), random_state=0, **PAPER
    )
    one = clone(model).fit(X)
    assert_same_tracker(clone(model).set_params(n_jobs=2).fit(X), one, 1e-10)
    with joblib.parallel_config(backend="loky", n_jobs=2):
        there = clone(model).fit(X)
    assert_same_tracker(there, one, 1e-10)
    assert there.communication_ == one.communication_


class OnDisk:
    """An array that is read slice by slice, and knows how many rows were asked for."""

    def __init__(self, X):
        self.X, self.dtype, self.shape, self.asked = X, X.dtype, X.shape, []

    def __getitem__(self, rows_):
        self.asked.append(len(self.X[rows_]))
        return self.X[rows_]


def test_labels_for_an_array_on_disk():
    X = np.zeros((80, 2**17), dtype=np.float32)
    X[:, :6] = rows(80, 6, mean=0.0)
    model = FederatedSubspaceTracker(
        2, robust=False, n_rounds=40, init_rounds=40, random_state=0, **PAPER
    )
    data, codes = OnDisk(X), np.repeat([0, 1, 2], [20, 20, 40])
    model.fit(data, clients=codes)
    assert sum(data.asked) == 80
    assert max(data.asked) <= 40  # slices of 32 MB in float64, which are cut to batches
    assert model.clients_ == [0, 1, 2]
    # two clients have rows in the first batch and one in the second; a round more for variances
    assert [row["messages_up"] for row in model.communication_.table] == 41 * [2] + 41 * [1]
    # the last batch decides; a round leaves (30 / 40)^2 of the error, and the result is rounded
    _, s, V = np.linalg.svd(X[40:, :6].astype(np.float64), full_matrices=False)
    assert sine(model.components_[:, :6], V[:2]) < 10 * np.finfo(np.float32).eps
    assert_array_equal(model.components_[:, 6:], 0)
    assert_allclose(model.singular_values_, s[:2], rtol=1e-6)
