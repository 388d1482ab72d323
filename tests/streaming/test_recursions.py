"""The trackers' rules against the algorithms of their papers, as printed, one row at a time.

Both compute the same numbers but for rounding errors, which the recursions amplify by their
condition: 1e-8 is far above that, and far below any error in the algebra.
"""

import numpy as np
import pytest
import tracker_helpers
from golden_cases import made
from helpers import sine, with_holes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import ortho_group
from tracker_helpers import fed, first_basis, planted, seen_by_the_rule, spirit

from fedpca_sklearn import SPIRIT, FrequentDirections, OjaPCA, StreamingPowerMethod
from fedpca_sklearn.streaming._forgetting import bound
from fedpca_sklearn.streaming._grouse import Steps

examples = settings(max_examples=100, derandomize=True, deadline=None, database=None)

N, D = 330, 12
PLAIN = planted(N, D, noise=0.6, mean=1.0)[0]
LATE = np.concatenate([np.zeros((65, D)), PLAIN])  # begins with blocks of zeros
HOLES = np.concatenate([PLAIN[:60], with_holes(PLAIN[60:], 0.3)])
POOR = with_holes(PLAIN, 0.3)
POOR[100:180, 5] = POOR[200:220, 3:] = POOR[230:240] = np.nan  # as few entries as components
MINUTES = np.cumsum(
    np.random.default_rng(0).choice([0, 1, 2, 5, 90], N, p=[0.2, 0.4, 0.2, 0.15, 0.05])
)
TIMES = np.datetime64("2026-03-01T12:00", "m") + MINUTES.astype("m8[m]")


def factors(h):
    """What is left of the past when each row comes, for a half-life of h minutes."""
    return 2.0 ** -(np.diff(MINUTES, prepend=MINUTES[0]) / h)


def power_method(X, Q, size):
    """Mitliagkas et al. 2013, Algorithm 1."""
    for start in range(0, len(X) - size + 1, size):
        S = np.zeros_like(Q)
        for x in X[start : start + size]:
            S += np.outer(Q @ x, x) / size
        Q = np.linalg.qr(S.T)[0].T
    return Q


def oja(X, Q, size, c=None):
    """Mini-batch Oja; AdaOja (Henriksen and Ward 2019, section 4) without a rate."""
    sums = np.zeros(len(Q))
    for t, start in enumerate(range(0, len(X), size), 1):
        batch = X[start : start + size]
        gradient = np.zeros_like(Q)
        for x in batch:
            gradient += np.outer(Q @ x, x) / len(batch)
        sums += np.array([g @ g for g in gradient])
        eta = 1 / np.sqrt(sums) if c is None else np.full(len(Q), c / t)
        Q, R = np.linalg.qr((Q + eta[:, None] * gradient).T)
        Q = (Q * np.sign(np.diag(R))).T
    return Q


def grouse(X, V, step="greedy"):
    """Balzano et al. 2010, Algorithm 1; the greedy angle of Balzano and Wright 2013."""
    U = V.T.copy()
    for x in X:
        there = ~np.isnan(x)
        if there.sum() <= U.shape[1]:
            continue
        w = np.linalg.pinv(U[there]) @ x[there]
        p, r = U @ w, np.zeros(len(U))
        r[there] = x[there] - U[there] @ w
        p_norm, r_norm = np.linalg.norm(p), np.linalg.norm(r)
        if r_norm < 1e-7 * np.linalg.norm(x[there]) or p_norm == 0:
            continue
        angle = np.arctan(r_norm / p_norm) if step == "greedy" else step * r_norm * p_norm
        turn = (np.cos(angle) - 1) * p / p_norm + np.sin(angle) * r / r_norm
        U = U + np.outer(turn, w / np.linalg.norm(w))
    return U.T


# A tracker, its rows, what is left of the past, and the paper's algorithm from the first basis V
RULES = """
StreamingPowerMethod(3, block_size=5) | PLAIN | 1.0 | power_method(Z, V, 5)
StreamingPowerMethod(3, block_size=300) | PLAIN | 1.0 | power_method(Z, V, 300)
OjaPCA(3, learning_rate="adaptive", batch_size=1) | PLAIN | 1.0 | oja(Z, V, 1)
OjaPCA(3, learning_rate=0.05, batch_size=7) | PLAIN | 1.0 | oja(Z, V, 7, 0.05)
GROUSE(3, step_size="greedy") | PLAIN / 5 | 1.0 | grouse(Z, V)
GROUSE(3, step_size=0.3) | PLAIN / 5 | 1.0 | grouse(Z, V, 0.3)
GROUSE(3, step_size="greedy") | HOLES | 1.0 | grouse(Z, V)
GROUSE(3, step_size=0.01) | POOR | 1.0 | grouse(Z, V, 0.01)
PAST(3, forgetting_factor=1.0) | LATE[1 - center :] | 1.0 | past(Z, V, f)
PAST(3, forgetting_factor=0.9) | LATE[1 - center :] | 0.9 | past(Z, V, f)
PAST(3, half_life="30min") | PLAIN | factors(30) | past(Z, V, f)
PAST(3, forgetting_factor=1.0, deflation=True) | LATE[1 - center :] | 1.0 | pastd(Z, V, f)
PAST(3, forgetting_factor=0.9, deflation=True) | LATE[1 - center :] | 0.9 | pastd(Z, V, f)
PAST(3, half_life="300min", deflation=True) | PLAIN | factors(300) | pastd(Z, V, f)
PETRELS(3, forgetting_factor=1.0) | PLAIN | 1.0 | petrels(Z, V, f)[0].T
PETRELS(3, forgetting_factor=0.98, regularization=1.0) | HOLES | 0.98 | petrels(Z, V, f, 1.0)[0].T
PETRELS(3, forgetting_factor=0.9) | POOR | 0.9 | petrels(Z, V, f)[0].T
PETRELS(3, half_life="300min") | HOLES | factors(300) | petrels(Z, V, f)[0].T
PETRELS(3) | np.insert(HOLES, 60, np.zeros((50, D)), axis=0) | 1.0 | made("PETRELS(3, center=False)").set_params(init=V).fit(HOLES).components_
SPIRIT(1, lower=0.95, upper=0.98) | PLAIN | 0.96 | spirit(Z, 1, 0.95, 0.98, f)[0]
SPIRIT(6, lower=0.8, upper=0.9, forgetting_factor=1.0, hold_off=0) | PLAIN | 1.0 | spirit(Z, 6, 0.8, 0.9, f, 0)[0]
SPIRIT(3, lower=0.5, upper=0.99, half_life="30min") | PLAIN | factors(30) | spirit(Z, 3, 0.5, 0.99, f)[0]
"""  # noqa: E501
# about the mean, rules of rows with holes take it for a direction: test_trackers.py has that
CASES = [
    (*line.split(" | "), center)
    for line in RULES.strip().splitlines()
    for center in ([False] if line.startswith(("GROUSE", "PETRELS")) else [True, False])
]


@pytest.mark.parametrize(("code", "rows", "past_left", "oracle", "center"), CASES, ids=str)
def test_a_rule_is_the_loop_of_its_paper(code, rows, past_left, oracle, center):
    model, X = made(code).set_params(center=center), eval(rows)
    if hasattr(model, "init"):
        model.set_params(init="random", random_state=7)
    fed(model, X, **({"times": TIMES} if 'min"' in code else {}))
    f = np.broadcast_to(eval(past_left), len(X))
    given = {"Z": seen_by_the_rule(X, center, f), "V": first_basis(D, 3, 7), "f": f[center:]}
    assert sine(model.components_, eval(oracle, vars(tracker_helpers) | globals() | given)) < 1e-7
    if 'min"' in code:
        assert model.last_time_ == TIMES[-1]


# ------------------------------------------------------------------------------ power method


@pytest.mark.parametrize("size", [40, 150])
@pytest.mark.parametrize("center", [True, False])
def test_rows_of_an_unfinished_block_are_shown_only_before_the_first_is_full(size, center):
    Z, V = seen_by_the_rule(PLAIN, center), first_basis(D, 3)
    model = StreamingPowerMethod(3, block_size=size, center=center, init="random", random_state=0)
    for n in range(1, N + 1):
        model.partial_fit(PLAIN[n - 1 : n])
        m = n - center  # a first row that is centred has no weight
        if m > 3 and (m % size in (0, 1, size - 1) or m % 19 == 0):
            assert model.n_steps_ == m // size
            now = power_method(Z[:m], V, min(m, size))
            assert sine(model.components_, now) < 1e-7


# ------------------------------------------------------------------------------ Frequent Directions


def fast_frequent_directions(A, size):
    """Ghashami et al. 2016, section 3: an SVD whenever ``size`` rows have come."""
    B, lowered = np.zeros((0, A.shape[1])), 0.0
    for start in range(0, len(A), size):
        M = np.concatenate([B, A[start : start + size]])
        M = M[M.any(axis=1)]
        if len(M) <= size:
            B = M
            continue
        _, s, Vt = np.linalg.svd(M, full_matrices=False)
        low = s[size - 1] ** 2 if len(s) >= size else 0.0
        squares = np.maximum(s**2 - low, 0)
        B = (np.sqrt(squares)[:, None] * Vt)[squares > 0][:size]
        lowered += low
    return B, lowered


@pytest.mark.parametrize("code", ["1, sketch_size=2", "1, sketch_size=10", "4"])
@pytest.mark.parametrize("center", [True, False])
def test_the_sketch_is_that_of_the_paper_at_any_time(code, center):
    A = seen_by_the_rule(PLAIN, center)
    model = made(f"FrequentDirections({code}, center={center})")
    size = model.sketch_size or 8  # twice the components
    for n in range(1, 76):
        model.partial_fit(PLAIN[n - 1 : n])
        B, lowered = fast_frequent_directions(A[: n - center], size)
        scale = np.sum(A[:n] ** 2) + 1
        assert_allclose(model.sketch_.T @ model.sketch_, B.T @ B, atol=1e-11 * scale)
        assert_allclose(model.shrinkage_, lowered, atol=1e-11 * scale)


STREAMS = {
    "noise": lambda rng, n, d: rng.standard_normal((n, d)),
    "axes in turn": lambda rng, n, d: np.eye(d)[np.arange(n) % d],
    "axes one after the other": lambda rng, n, d: np.eye(d)[np.arange(n) * d // n],
    "small, then large": lambda rng, n, d: np.logspace(-3, 3, n)[:, None] * rng.random((n, d)),
    "one direction": lambda rng, n, d: rng.standard_normal((n, 1)) * rng.standard_normal(d),
    "zeros between": lambda rng, n, d: rng.standard_normal((n, d)) * (rng.random((n, 1)) < 0.3),
    "zeros": lambda rng, n, d: np.zeros((n, d)),
}


@settings(examples, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(list(STREAMS)),
    n=st.integers(1, 80),
    d=st.integers(1, 12),
    size=st.integers(2, 10),
    k=st.integers(1, 10),
    center=st.booleans(),
    robust=st.booleans(),
)
def test_the_guarantee_of_the_sketch_holds_for_every_stream(
    seed, kind, n, d, size, k, center, robust
):
    X = STREAMS[kind](np.random.default_rng(seed), n, d) + (3.0 if center else 0.0)
    k = min(k, size - 1, d)
    model = fed(FrequentDirections(k, sketch_size=size, center=center, robust=robust), X)
    A = X - X.mean(axis=0) if center else X
    s = np.concatenate([np.linalg.svd(A, compute_uv=False), np.zeros(size)])
    tol = 1e-12 * np.sum(s**2) + 1e-13
    least = min(np.sum(s[i:] ** 2) / (size - i) for i in range(size))
    B = model.sketch_
    error = np.linalg.eigvalsh(A.T @ A - B.T @ B)
    assert error[0] >= -tol
    assert error[-1] <= model.shrinkage_ + tol
    assert model.shrinkage_ <= least + tol
    assert len(B) <= size
    G = B @ B.T
    assert_allclose(G, np.diag(np.diag(G)), atol=tol)
    assert model.alpha_ == (model.shrinkage_ / 2 if robust else 0)
    if robust:
        assert np.abs(error - model.alpha_).max() <= least / 2 + tol
    assert len(model.components_) == min(k, n)


# ------------------------------------------------------------------------------ PETRELS and PAST


@given(
    st.lists(st.lists(st.floats(-6, 4), min_size=3, max_size=3), min_size=1, max_size=4),
    st.sampled_from([1.0, 1e-170, 1e150]),
    st.integers(0, 9),
)
def test_what_is_added_to_the_covariance_bounds_its_inverse(powers, most, seed):
    rng, sizes = np.random.default_rng(seed), most * 10.0 ** np.array(powers)
    E = np.stack([ortho_group.rvs(3, random_state=rng) for _ in sizes])
    P = (E * sizes[:, None, :]) @ E.swapaxes(1, 2)
    above = np.abs(P / most).max(axis=(1, 2)) > 1
    bound(P, most)
    covariance = 1 / sizes + np.where(above, 1 / most, 0)[:, None]
    expected = (E / covariance[:, None, :]) @ E.swapaxes(1, 2)
    assert_allclose(P / most, expected / most, atol=1e-11)


# ------------------------------------------------------------------------------ SPIRIT


def ranks(model, X):
    """Number of components after each row."""
    return np.array([model.partial_fit(x[None]).n_components_ for x in X])


@pytest.mark.parametrize(("f", "hold_off"), [(1.0, 0), (0.96, 10), (1.0, 25)])
@pytest.mark.parametrize(("k", "lower", "upper"), [(1, 0.95, 0.98), (6, 0.8, 0.9)])
@pytest.mark.parametrize("center", [True, False])
def test_the_rank_of_spirit_is_that_of_the_paper_after_every_row(
    f, hold_off, k, lower, upper, center
):
    X, rule = PLAIN[:90], (k, lower, upper, f, hold_off)
    _, history, ratio = spirit(seen_by_the_rule(X, center, f), *rule)
    model = SPIRIT(k, lower=lower, upper=upper, forgetting_factor=f, hold_off=hold_off)
    found = ranks(model.set_params(center=center), X)
    # the first row has no mean before it, and k rows are needed to show k components
    assert_array_equal(found, np.minimum([k] * center + history, np.arange(1, 91)))
    assert_allclose(model.energy_ratio_, ratio, rtol=1e-9)


def test_the_rank_of_spirit_stays_without_news_and_ignores_constant_columns():
    X = planted(200, 8, noise=0.5)[0]
    wide = np.concatenate([np.zeros((200, 50)), X], axis=1)
    for center in (True, False):
        plain, model = (SPIRIT(2, center=center).fit(rows) for rows in (X, wide))
        assert model.n_components_ == plain.n_components_
        assert np.abs(model.components_[:, :50]).max() < 1e-14
        assert sine(model.components_[:, 50:], plain.components_) < 1e-10
    silent = SPIRIT(lower=0.5, upper=0.99, forgetting_factor=0.5, center=False).fit(X)
    before = silent.n_components_
    assert silent.partial_fit(np.zeros((1500, 8))).n_components_ == before
    start = SPIRIT(2, center=False).fit(np.zeros((50, 8)))
    assert (start.energy_ratio_, start.n_components_) == (1, 2)
    # a row of zeros has no axis, and no entries whose energy a new component could start from
    X[10:50:3] = 0
    growth = np.diff(ranks(SPIRIT(center=False, hold_off=0), X[:60]), prepend=1)
    assert growth[~X[:60].any(axis=1)].max() <= 0


def test_rounding_drops_no_component_of_spirit_and_makes_none_dependent():
    for seed in range(10):  # components that hold everything may seem to hold more
        X = np.random.default_rng(seed).standard_normal((50, 8))
        assert SPIRIT(8, lower=0.9999, upper=1.0).fit(X).n_components_ == 8
        # the energy of rows before is still missing when there is no other direction
        few = SPIRIT(1, lower=0.999, upper=1.0, forgetting_factor=1.0, hold_off=0).fit(X[:, :3])
        assert few.n_components_ == 3
    # nearly repeated columns drive deflation into the same direction twice
    rng = np.random.default_rng(0)
    X = rng.standard_normal((800, 1)) + 1e-3 * rng.standard_normal((800, 15))
    model = SPIRIT(5, lower=0.9999999, upper=0.99999999, center=False).fit(X)
    assert np.linalg.cond(model.components_) < 1 + 1e-10


@pytest.mark.parametrize("size", [1, 5])
def test_averaged_steps_of_oja_weigh_the_rows_before_a_batch_by_their_number(size):
    """Steps over the sum of squares, of which m of n rows keep the share m / n."""
    X = np.random.default_rng(0).standard_normal((15, 4)) * [3, 2, 1, 1]
    Q, sizes, m = np.eye(2, 4), np.zeros(2), 0
    for rows in X.reshape(-1, size, 4):
        C, n = rows @ Q.T, m + size
        sizes, m = sizes * m / n + np.sum(C**2, axis=0), n
        order = np.argsort(-sizes, kind="stable")
        Q, sizes, steps = Q[order], sizes[order], (C.T @ rows)[order]
        Q = np.linalg.qr((Q + steps / sizes[:, None]).T)[0].T
    oja = OjaPCA(2, batch_size=size, center=False, init=np.eye(2, 4)).fit(X)
    assert sine(oja.components_, Q) < 1e-8


def test_the_inverse_covariance_of_grouse_is_that_of_coordinates_in_the_basis_of_moved_rows():
    rng = np.random.default_rng(0)
    C, R = rng.standard_normal((20, 3)), np.triu(rng.standard_normal((3, 3)))
    P, moved = (np.linalg.inv(A.T @ A) for A in (C, C @ R.T))
    assert_allclose(Steps("averaged", P).turned(R).P, moved)
