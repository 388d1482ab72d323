"""Who merges with whom: balanced trees and schedules."""

from collections import Counter

import numpy as np
import pytest
from triangle_helpers import levels_of

from fedpca_sklearn import DistributedPCA, load_balanced_schedule


def merges_of(pca, clients):
    return [pca._state.load[client] for client in range(clients)]


@pytest.mark.parametrize("s", [2, 3, 5, 8, 12])
def test_merges_are_those_of_the_schedule_and_balanced(s):
    K, rng = 40, np.random.default_rng(18)
    pca = DistributedPCA(1, n_clients=s)
    for _ in range(K):
        pca.partial_fit(rng.standard_normal((s, 2)))
    tasks = [t for phase in load_balanced_schedule(s, K) for t in phase.tasks if t.kind != "qr"]
    merges = merges_of(pca, s)
    assert merges == [Counter(t.client for t in tasks)[client] for client in range(s)]
    assert sum(merges) == K * (s - 1) + K - 1
    assert max(merges) - min(merges) <= levels_of(s) + 1


def test_merges_are_balanced_where_any_clients_have_rows():
    rng, pca = np.random.default_rng(19), DistributedPCA(1)
    for _ in range(150):
        clients = rng.permutation(10)[: rng.integers(2, 8)]
        pca.partial_fit(rng.standard_normal((len(clients), 2)), clients=clients)
    # of at most seven clients, one merges at every level of a step and in the update
    assert np.ptp(merges_of(pca, 10)) <= levels_of(7) + 1


class Run:
    """Executes a schedule on sets of (client, step) and asserts that it can be executed.

    A client does at most one task in a phase, or the tasks that ``one_of`` its kinds allows.
    """

    def __init__(self, s, K, one_of=lambda task: "any"):
        self.s, self.K, self.one_of = s, K, one_of
        self.at = [{} for _ in range(s)]  # what a client holds: (step, level) and owner -> set
        self.kinds, self.merges, self.qr = Counter(), Counter(), Counter()

    def run(self, phases):
        for phase in phases:
            working = [(task.client, self.one_of(task)) for task in phase.tasks]
            assert working  # no phase is idle
            assert len(set(working)) == len(working)
            made = set()
            for task in phase.tasks:
                rows = self.compute(task)
                self.at[task.client][task.step, task.level, task.client] = rows
                made.add((task.client, task.step, task.level))
            senders = [(m.sender, m.step, m.level) for m in phase.messages]
            assert len(set(senders)) == len(senders)
            for m in phase.messages:
                assert (m.sender, m.step, m.level) in made  # sent as soon as it is computed
                assert m.receiver != m.sender
                rows = self.at[m.sender].pop((m.step, m.level, m.sender))
                self.at[m.receiver][m.step, m.level, m.sender] = rows
        return self

    def compute(self, task):
        assert 0 <= task.client < self.s
        self.kinds[task.kind, task.step] += 1
        if task.kind == "qr":
            assert task.level == 0
            self.qr[task.client, task.step] += 1
            return {(task.client, task.step)}
        self.merges[task.client] += 1
        here = self.at[task.client]
        if task.kind == "merge":
            keys = sorted((k for k in here if k[0] == task.step), key=lambda k: k[2] != task.client)
            keys = [key for key in keys if key[1] < task.level][:2]
            assert keys[0][2] == task.client  # one of the two is its own
        else:
            assert task.kind == "update"
            new = {(client, task.step) for client in range(self.s)}
            old = {(client, step) for client in range(self.s) for step in range(task.step)}
            keys = [key for key, rows in here.items() if rows in (new, old)]
        assert len(keys) == 2
        assert task.level > max(level for step, level, _ in keys if step == task.step)
        first, second = (here.pop(key) for key in keys)
        assert not first & second
        return first | second


@pytest.mark.parametrize("s", [*range(1, 9), 13, 16, 33, 64])
@pytest.mark.parametrize("layout", [None, "intervals"])
def test_a_schedule_can_be_executed_and_misses_no_row(s, layout):
    if layout == "intervals" and s & (s - 1):
        with pytest.raises(ValueError, match=f"n_clients must be a power of two .* got {s}"):
            load_balanced_schedule(s, 2, layout=layout)
        return
    for K in (1, 2, 3, 10):
        phases = load_balanced_schedule(s, K, **({} if layout is None else {"layout": layout}))
        if layout is None:
            alone = levels_of(s) + 2  # a step with its update cannot be shorter
            work = 2 * K * s - 1  # K s factors of rows, K (s - 1) merges, K - 1 updates
            assert max(-(-work // s), alone - 1) <= len(phases) <= K * alone
            # clients are busy but while the first steps come in and the last ones go out
            assert len(phases) <= 2 * K + 2 * alone
            assert K > 1 or len(phases) == alone - 1
            done = Run(s, K).run(phases)
        else:
            assert len(phases) == K + levels_of(s)
            done = Run(s, K, one_of=lambda task: task.kind).run(phases)
        left = [rows for here in done.at for rows in here.values()]
        assert left == [{(client, step) for client in range(s) for step in range(K)}]
        assert done.qr == Counter({(client, step): 1 for client in range(s) for step in range(K)})
        for step in range(K):
            assert done.kinds["merge", step] == s - 1
            assert done.kinds["update", step] == (step > 0)
        # many steps are no more unequal than one, whose root merges once a level and once more
        assert np.ptp([done.merges[client] for client in range(s)]) <= levels_of(s) + 1


# ------------------------------------------------------------ intervals, as in the paper


def intervals(s, K):
    return load_balanced_schedule(s, K, layout="intervals")


def sent_from(phases, step, level):
    """Pairs (sender, receiver) of the factors of a step that were made at a level."""
    messages = [m for phase in phases for m in phase.messages]
    return {(m.sender, m.receiver) for m in messages if (m.step, m.level) == (step, level)}


def root_of(phases, step, depth):
    tasks = [t for phase in phases for t in phase.tasks]
    (root,) = [t.client for t in tasks if (t.kind, t.step, t.level) == ("merge", step, depth)]
    return root


def test_eight_clients_send_as_the_text_of_bai_chan_and_luk_says():
    phases = intervals(8, 6)
    # Algorithm 1 for the rows of step 0, that is X_n(0)
    assert sent_from(phases, 0, 0) == {(4, 0), (5, 1), (6, 2), (7, 3)}
    assert sent_from(phases, 0, 1) == {(2, 0), (3, 1)}
    assert sent_from(phases, 0, 2) == {(1, 0)}
    # "Processors 2, 3, 4, and 5", in the interval after
    assert sent_from(phases[1:2], 1, 0) == {(6, 2), (7, 3), (0, 4), (1, 5)}
    # R_n(0), R_n(1) and R_n(2) are formed at 0, 4 and 6, after three levels
    assert [root_of(phases, step, 3) for step in range(3)] == [0, 4, 6]
    assert [root_of(phases[step + 3 : step + 4], step, 3) for step in range(3)] == [0, 4, 6]
    # R_g(0), then R_g(1) are sent there, from one interval to the next
    assert sent_from(phases[3:4], 0, 3) == {(0, 4)}
    assert sent_from(phases[4:5], 1, 4) == {(4, 6)}
