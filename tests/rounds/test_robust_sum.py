"""RobustSum: rounds of the clients that are no suspects, each held to its own summary."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.datasets import load_digits, load_wine

from fedpca_sklearn import (
    FederatedPCA,
    FederatedPowerPCA,
    RobustMerge,
    RobustSum,
    SiteEvidence,
    subspace_distance,
)

RNG = np.random.RandomState(0)
SITES, RANK = 20, 5


def unlike_sites(liars, lie, seed=0):
    """Digits, two sites a label; rows of liars changed."""
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    rows = [h for c in range(10) for h in np.array_split(rng.permutation(X[y == c]), 2)]
    return [lie(x, rng) if i in liars else x for i, x in enumerate(rows)]


def fitted(rows, channel, weights=None, **parameters):
    labels = np.repeat(np.arange(len(rows)), [len(x) for x in rows])
    weight = None if weights is None else np.concatenate(weights)
    pca = FederatedPowerPCA(RANK, channel=channel, random_state=0, **parameters)
    return pca.fit(np.concatenate(rows), clients=labels, sample_weight=weight)


def turned(x, rng):
    return x @ np.linalg.qr(rng.standard_normal((64, 64)))[0]


FALSE = np.linalg.qr(np.random.default_rng(1).standard_normal((64, 64)))[0]
LIES = {
    "scaled": lambda x, rng: 100 * x,
    "rotated": turned,
    "sign": lambda x, rng: -x,
    "colluding": lambda x, rng: x @ FALSE,
    "mean": lambda x, rng: x + 1e6,
}
LIARS = [1, 4, 7, 10, 15, 18]


def assert_same(pca, other, tol=1e-8):
    assert subspace_distance(pca.components_, other.components_) < 1e-5
    assert_allclose(pca.mean_, other.mean_, rtol=1e-9, atol=1e-9)
    assert_allclose(pca.explained_variance_, other.explained_variance_, rtol=tol)


def honest_rows(rows):
    """Pooled PCA of those that do not lie."""
    return FederatedPCA(RANK).fit(np.concatenate([x for i, x in enumerate(rows) if i not in LIARS]))


@pytest.mark.parametrize("lie", LIES)
def test_unlike_sites_are_left_as_if_the_liars_were_not_there(lie):
    rows = unlike_sites(LIARS, LIES[lie])
    pca = fitted(rows, RobustSum())
    assert sorted(pca.suspects_) == LIARS
    assert_same(pca, honest_rows(rows))


def test_a_claim_of_rows_counts_as_many_as_others_have():
    rows = unlike_sites([], None)
    weights = [np.ones(len(x)) for x in rows]
    weights[3] = np.full(len(rows[3]), 1e7)
    pca = fitted(rows, RobustSum(), weights)
    assert list(pca.suspects_) == [3]
    median = np.median([len(x) for x in rows])
    weights[3] = np.full(len(rows[3]), median / len(rows[3]))
    assert_same(pca, fitted(rows, None, weights))


# ------------------------------------------------------------- liars who know the rule


def lying(liars, answer, kind):
    """A channel to which some clients answer otherwise than their rows would."""

    class Lying(RobustSum):
        def taken(self, question, answers):
            here = np.flatnonzero(self.present(SITES, 0, RNG))
            false = (
                answer(a, question) if i in liars and question.kind == kind else a
                for i, a in zip(here, answers, strict=True)
            )
            return super().taken(question, false)

    return Lying()


def biased(share):
    """Products as if the rows had variance along one false direction, in every round."""
    f = FALSE[0]

    def answer(a, question):
        return a + share * 1e5 * np.outer(question.V @ f, f)

    return answer


SKEW = 1e6 * np.append(np.eye(5, k=1) - np.eye(5, k=-1), [0, 0])
ADAPTIVE = {
    "a small bias in each round": ("times_scatter", biased(0.05)),
    "less than nothing": ("times_scatter", biased(-0.05)),
    "another site's rows": ("times_scatter", lambda a, q: np.roll(a, 3, axis=1)),
    "many rows": ("times_scatter", lambda a, q: 5 * a),
    "nothing": ("times_scatter", lambda a, q: 0 * a),
    "not a number": ("times_scatter", lambda a, q: a * np.nan),
    "infinite": ("times_scatter", lambda a, q: np.full_like(a, np.inf)),
    "honest until the last round": ("variances", lambda a, q: np.append(3 * a[:-2], a[-2:])),
    "not symmetric in the last round": ("variances", lambda a, q: a + SKEW),
    "not a number in the last round": ("variances", lambda a, q: np.append(np.nan, a[1:])),
    "scatter alone": ("variances", lambda a, q: np.append(a[:-2], [1.005 * a[-2], a[-1]])),
    "count alone": ("variances", lambda a, q: np.append(a[:-1], 1.005 * a[-1])),
    "count is not a number": ("variances", lambda a, q: np.append(a[:-1], np.nan)),
}


@pytest.mark.parametrize("lie", ADAPTIVE)
def test_answers_that_contradict_the_own_summary_leave_the_client_out(lie):
    rows = unlike_sites([], None)
    kind, answer = ADAPTIVE[lie]
    pca = fitted(rows, lying(LIARS, answer, kind), acceleration="krylov")
    assert sorted(pca.suspects_) == LIARS
    assert max(map(max, pca.suspects_.values())) <= 1  # nothing was wrong with the summaries
    assert_same(pca, honest_rows(rows))


def test_what_a_summary_has_cut_bounds_what_a_liar_can_add():
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal((200, 300)) * np.r_[9, 8, 7, 6, 5, np.ones(295)] for _ in range(9)]
    f = np.eye(300)[-1]

    def channel(size):
        def answer(a, q):
            return a + size * np.outer(q.V @ f, f)

        return lying({2}, answer, "times_scatter")

    cut = 200 * 295 * (1 - 12 / 300)  # about; seven of the kept directions are noise
    assert list(fitted(rows, channel(1.3 * cut)).suspects_) == [2]
    plain = fitted(rows, None)
    inside = fitted(rows, channel(1.0))
    assert inside.suspects_ == {}
    assert subspace_distance(inside.components_, plain.components_) < 1e-3


def test_if_all_contradict_themselves_an_error_says_so():
    with pytest.raises(ValueError, match="each client has contradicted its own summary"):
        fitted(unlike_sites([], None), lying(range(SITES), lambda a, q: -a, "times_scatter"))


# --------------------------------------------------------------------- honest clients


WIDE = np.random.default_rng(0).standard_normal((600, 300)) * np.arange(1, 301.0) ** -0.7
HONEST = {
    "columns in unlike units": (np.random.default_rng(0).permutation(load_wine().data), {}),
    "float32": ((WIDE + 50).astype(np.float32), {}),
    "a mean of 1e8": (WIDE + 1e8, {}),
    "about the origin": (WIDE + 3, {"center": False}),
    "tiny": (1e-150 * WIDE, {}),
    "huge": (1e140 * WIDE, {}),
    "constant columns": (WIDE[:, :8] * [3, 2, 1, 1, 0.5, 0.2, 0, 0] + 1e6 * np.eye(8)[7], {}),
    "sites of one row": ([*np.array_split(WIDE[:, :8], 5), *WIDE[:3, None, :8]], {}),
}


@pytest.mark.parametrize("case", HONEST)
def test_honest_clients_are_no_suspects_and_the_sum_is_plain(case):
    X, parameters = HONEST[case]
    rows = X if isinstance(X, list) else np.array_split(X, 10)
    # one has no weight
    weights = [np.full(len(x), 1.5 * (i != 2)) for i, x in enumerate(rows)]
    pca, plain = (fitted(rows, channel, weights, **parameters) for channel in (RobustSum(), None))
    assert pca.suspects_ == {}
    assert subspace_distance(pca.components_, plain.components_) < 1e-5
    assert_allclose(pca.explained_variance_, plain.explained_variance_, rtol=1e-5)
    assert_allclose(pca.mean_, plain.mean_, rtol=1e-6, atol=1e-12 * np.abs(rows[0]).max())


def test_summaries_are_a_round_of_their_own_and_honest_messages_add_up():
    X, sites = site_rows()
    pca = FederatedPowerPCA(2, channel=RobustSum(), random_state=0).fit(X, clients=sites)
    first, *rounds = pca.communication_.table
    assert first["floats_up"] == 9 * (10 * 11 // 2 + 2 * 10 + 2)
    assert first["floats_down"] == 0
    plain = FederatedPowerPCA(2, random_state=0).fit(X, clients=sites)
    assert rounds == plain.communication_.table[1:]
    for sent in ([], [np.ones(3)], [np.ones(3), -np.ones(3)], [np.zeros(3)] * 5):
        total, n = RobustSum().receive(sent, RNG)
        assert n == len(sent)
        assert total is None if not sent else np.array_equal(total, np.sum(sent, axis=0))


# ----------------------------------------------------------------------- the estimator


def site_rows(liars=()):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((900, 10)) * [5, 4, 1, 1, 1, 1, 1, 1, 1, 1] + 3
    sites = np.repeat([f"s{i}" for i in range(9)], 100)
    for liar in liars:
        X[sites == liar] = 30 * X[sites == liar][:, ::-1]
    return X, sites


def test_evidence_is_that_of_one_exchange_and_a_refit_remembers_nothing():
    model = FederatedPowerPCA(2, channel=RobustSum(), n_rounds=20, random_state=0)
    liars = ["s1", "s4", "s5", "s8"]
    X, sites = site_rows(liars)
    pca = clone(model).fit(X, clients=sites)
    assert sorted(pca.suspects_) == liars
    assert not hasattr(model.channel, "suspects_")
    merged = FederatedPCA(2, merge=RobustMerge()).fit(X, clients=sites)
    assert pca.evidence_.keys() == merged.evidence_.keys()
    for site, one in pca.evidence_.items():  # as in one exchange, up to rounding
        assert_allclose(one, merged.evidence_[site], rtol=1e-10, atol=1e-12)
    assert all(isinstance(one, SiteEvidence) for one in pca.suspects_.values())
    again = pca.fit(*site_rows()[:1], clients=sites)  # refitted: nothing is remembered
    assert again.suspects_ == {}
    plain = pca.set_params(channel=None).fit(X, clients=sites)
    assert not hasattr(plain, "suspects_")
    assert not hasattr(plain, "evidence_")
