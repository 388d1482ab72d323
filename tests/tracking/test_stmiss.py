"""The functions of STMiss against the paper's formulas, and the trackers' steps as functions.

Oracles are formula (3) and Algorithm 1 of Narayanamurthy et al. 2022 with columns and
pseudoinverses as printed, numpy's SVD, and a tracker that never saw the rows before.
"""

from dataclasses import replace

import joblib
import numpy as np
import pytest
from helpers import PAPER, random_basis, sine
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from fedpca_sklearn import (
    FederatedSubspaceTracker,
    RobustSubspaceTracker,
    SubspaceTracker,
    make_subspace_stream,
)
from fedpca_sklearn.communication import CommunicationLog
from fedpca_sklearn.summary import Subspace
from fedpca_sklearn.tracking._stmiss import (
    State,
    complete,
    detect,
    fill,
    largest_square,
    r_svd,
    residuals,
)

nan = np.nan


def holes(Y, share, seed=0):
    return np.where(np.random.default_rng(seed).random(Y.shape) < share, nan, Y)


def batch(m=30, d=20, k=3, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    V = random_basis(rng, k, d)
    return rng.standard_normal((m, k)) @ V + noise * rng.standard_normal((m, d)), V


def test_fill_is_formula_3():
    Y, V = batch()
    Y = holes(Y, 0.2)
    P = V.T
    Psi = np.eye(len(P)) - P @ P.T
    for y, row in zip(Y, fill(Y, np.zeros(20), V).rows, strict=True):
        M = np.flatnonzero(np.isnan(y))
        y = np.nan_to_num(y)
        want = y - np.eye(20)[:, M] @ np.linalg.pinv(Psi[:, M]) @ (Psi @ y)
        assert_allclose(row, want, atol=1e-12)


def test_fill_is_about_the_mean():
    Y, V = batch()
    mean = 100.0 + np.arange(20)
    filled = fill(holes(Y, 0.2) + mean, mean, V)
    assert_allclose(filled.rows, fill(holes(Y, 0.2), np.zeros(20), V).rows + mean)


def test_without_a_basis_holes_are_the_mean():
    Y, mean = holes(batch()[0], 0.3), np.arange(20.0)
    filled = fill(Y, mean, np.empty((0, 20)))
    assert_array_equal(filled.rows, np.where(np.isnan(Y), mean, Y))
    assert filled.counts.all()


@pytest.mark.parametrize(("share", "counts"), [(1 / 500, True), (1 / 2000, False)])
def test_rows_that_amplify_noise_a_thousandfold_do_not_count(share, counts):
    V = np.array([[np.sqrt(1 - share), np.sqrt(share)]])
    filled = fill(np.array([[1.0, 1.0], [nan, 1.0]]), np.zeros(2), V)
    assert_array_equal(filled.counts, [True, counts])


def test_where_no_row_is_determined_those_with_enough_entries_count():
    V = np.array([[1.0, 0.0]])
    filled = fill(np.array([[nan, 1.0], [nan, nan]]), np.zeros(2), V)
    assert_array_equal(filled.counts, [True, False])
    assert_array_equal(filled.rows, [[0.0, 1.0], [0.0, 0.0]])


def test_r_svd_is_that_of_numpy():
    L, _ = batch()
    found = r_svd(L, 3, Subspace.empty(20, centered=False), len(L), 0.0)
    _, s, V = np.linalg.svd(L, full_matrices=False)
    assert_allclose(found.singular_values, s[:3])
    assert sine(found.components, V[:3]) < 1e-10


@pytest.mark.parametrize(
    ("m", "f", "weight"), [(40, 0.0, 0.0), (10, 0.0, 0.75), (40, 0.99, 0.99**40)]
)
def test_r_svd_keeps_what_counts_of_the_rows_before(m, f, weight):
    old, new = batch(40, seed=1)[0], batch(m, seed=2)[0]
    before = Subspace.from_rows(old, 20, center=False)
    found = r_svd(new, 20, before, 40, f)
    both = np.concatenate([np.sqrt(weight) * old, new])
    rank = min(np.linalg.matrix_rank(both), 20)
    assert_allclose(found.singular_values, np.linalg.svd(both, compute_uv=False)[:rank])


@pytest.mark.parametrize(("angle", "rank"), [(1e-5, 2), (1e-7, 1)])
def test_a_basis_is_completed_by_what_it_lacks(angle, rank):
    V, old = np.eye(1, 3), np.array([[np.cos(angle), np.sin(angle), 0.0]])
    found = complete(V, old, 2)
    assert_allclose(np.abs(found), np.eye(3)[:rank], atol=1e-9)
    assert_array_equal(complete(V, old, 1), V)
    assert_array_equal(complete(V, old[:0], 2), V)


def norst(Y, V, **fields):
    state = State(Subspace.from_rows(Y, 3, center=False), np.zeros(20), V, **fields)
    return state, fill(Y, state.mean, V)


def test_the_level_is_the_largest_eigenvalue_of_the_residuals():
    Y, V = batch()
    state, filled = norst(Y, V, updates_left=5)
    R = Y @ (np.eye(20) - V.T @ V)
    level = largest_square(residuals(state, Y, filled)) / 40
    assert_allclose(level, np.linalg.eigvalsh(R.T @ R)[-1] / 40)
    after, updates = detect(state, level, 40, 5, "auto")
    assert updates
    assert after.level == level
    assert (after.updates_left, after.change_points) == (4, ())


@pytest.mark.parametrize(("before", "changes"), [(0.51, ()), (0.49, (80,))])
def test_a_change_is_twice_the_level_of_the_last_update(before, changes):
    Y, V = batch()
    state, _ = norst(Y, V, updates_left=0, n_rows=80, level=before)
    after, updates = detect(state, 1.0, 30, 5, "auto")
    assert (after.change_points, updates) == (changes, bool(changes))
    assert after.updates_left == (4 if changes else 0)
    again = replace(state, n_rows=110, change_points=changes)
    assert detect(again, 1.0, 30, 5, "auto")[0].change_points == changes
    # what may be noise does not count
    unsure, _ = detect(state, 1.0, 30, 5, "auto", margin=0.05)
    assert unsure.change_points == ()


def test_the_functions_are_algorithm_1():
    X = make_subspace_stream(600, 100, 5, random_state=0).X
    r, alpha = 5, 40
    P = np.linalg.svd(np.nan_to_num(X[:alpha].T), full_matrices=False)[0][:, :r]  # line 2
    V = r_svd(fill(X[:alpha], np.zeros(100), np.empty((0, 100))).rows, r, nothing(), alpha, 0.0)
    V = V.components
    assert sine(V, P.T) < 1e-10
    for Y in np.split(X[alpha:], 14):
        Psi = np.eye(100) - P @ P.T  # line 5
        L = []
        for y in Y:  # lines 6 to 8
            M = np.flatnonzero(np.isnan(y))
            y = np.nan_to_num(y)
            y[M] -= np.linalg.pinv(Psi[:, M]) @ (Psi @ y)
            L.append(y)
        P = np.linalg.svd(np.array(L).T, full_matrices=False)[0][:, :r]  # lines 10 and 11
        V = r_svd(fill(Y, np.zeros(100), V).rows, r, nothing(), alpha, 0.0).components
        assert sine(V, P.T) < 1e-8
    assert sine(V, SubspaceTracker(r, batch_size=alpha, **PAPER).fit(X).components_) < 1e-10


def test_impute_before_and_after_an_update_is_both_estimates_of_algorithm_1():
    stream = make_subspace_stream(600, 100, 5, random_state=0)
    alpha = 40
    batches = list(zip(*(np.split(A, 15) for A in (stream.X, stream.low_rank)), strict=True))
    tracker = SubspaceTracker(5, batch_size=alpha, **PAPER).partial_fit(batches[0][0])
    for Y, truth in batches[1:]:
        errors = []
        for learnt in (False, True):
            if learnt:
                tracker.partial_fit(Y)
            P = tracker.components_.T
            Psi, want = np.eye(100) - P @ P.T, []
            for y in Y:  # lines 6 to 8 by the last subspace, 12 to 14 by that of the batch
                M = np.flatnonzero(np.isnan(y))
                y = np.nan_to_num(y)
                y[M] -= np.linalg.pinv(Psi[:, M]) @ (Psi @ y)
                want.append(y)
            assert_allclose(tracker.impute(Y), want, atol=1e-9)
            errors.append(np.linalg.norm(np.array(want) - truth))
        assert errors[1] < errors[0]  # "improved"


def nothing(d=100):
    return Subspace.empty(d, centered=False)


@pytest.mark.parametrize(
    "tracker",
    [
        SubspaceTracker(
            3, detect_changes=True, forgetting_factor=0.99, center=True, n_iter=2, fill="subspace"
        ),
        RobustSubspaceTracker(3, detect_changes=True, store_subspaces=True, **PAPER),
        FederatedSubspaceTracker(3, n_clients=3, random_state=0, store_subspaces=True, **PAPER),
    ],
    ids=lambda tracker: type(tracker).__name__,
)
def test_a_step_depends_on_its_arguments_alone(tracker, monkeypatch):
    kind, steps, absorb = type(tracker), [], type(tracker)._next_state

    def recorded(self, state, Y):
        given, before = joblib.hash((state, Y)), joblib.hash(shown(self))
        after = absorb(self, state, Y)
        assert joblib.hash((state, Y)) == given
        assert joblib.hash(shown(self)) == before
        steps.append((state, Y, after))
        return after

    def shown(model):
        beside = ("communication_", "_last_search")  # a log, and a result that is kept
        return {name: value for name, value in vars(model).items() if name not in beside}

    X = make_subspace_stream(330, 30, 3, outliers=0.02, random_state=0).X
    with monkeypatch.context() as patch:
        patch.setattr(kind, "_next_state", recorded)
        tracker.fit(X[:200]).partial_fit(X[200:])
    assert len(steps) > 5
    for state, Y, after in steps:
        stranger = clone(tracker)  # which never saw the stream
        if kind is FederatedSubspaceTracker:
            stranger.communication_ = CommunicationLog()  # a place to count messages
        assert joblib.hash(stranger._next_state(state, Y)) == joblib.hash(after)


def test_trackers_have_the_parameters_that_they_use():
    for kind in (SubspaceTracker, RobustSubspaceTracker, FederatedSubspaceTracker):
        names = set(kind().get_params())
        assert set(kind._parameter_constraints) == names
        for parent in kind.__mro__[1:]:
            declared = vars(parent).get("_parameter_constraints", {})
            if parent.__module__.startswith("fedpca_sklearn"):
                assert set(declared) <= names
        # none is a constant of the class
        assert not names & {name for base in kind.__mro__ for name in vars(base)}
