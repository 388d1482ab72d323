"""Servers that read single rows by rounding: what a site answers depends on n, mean and scatter.

Two sites whose rows differ, but have the same number, mean and scatter matrix to the last bit, give
the same answers to the last bit, whatever a server asks: no question tells more of the rows.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from test_hostile_server import Site
from test_secure_server import Server

from fedpca_sklearn import (
    FederatedPCA,
    FederatedPowerPCA,
    OnlineDistributedPCA,
)
from fedpca_sklearn._console._main import main
from fedpca_sklearn.engines._letters import Letter, digest_of, read_letter
from fedpca_sklearn.engines._messages import arrays_of
from fedpca_sklearn.engines.files import Study, answer
from fedpca_sklearn.engines.flower import SecureAggregation
from fedpca_sklearn.engines.protocols import Message

N, D, K = 64, 8, 3
ORTHOGONAL = np.array([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]]) / 2


def twins(seed=0, n=N):
    """Rows of even numbers, and others with the same number, mean and scatter matrix, exactly.

    The rows of each four are turned by an orthogonal matrix whose rows have the sum 1. Columns 0
    and 2 are two dummies of one answer, and column 5 is constant.
    """
    rng = np.random.default_rng(seed)
    X = 2.0 * rng.integers(-40, 400, (n, D))
    X[:, 0] = 2.0 * (rng.random(n) < 0.4)
    X[:, 2] = 2.0 - X[:, 0]
    X[:, 5] = 6.0
    Y = np.einsum("ij,bjk->bik", ORTHOGONAL, X.reshape(-1, 4, D)).reshape(n, D)
    assert (X.sum(axis=0) == Y.sum(axis=0)).all()
    assert (X.T @ X == Y.T @ Y).all()
    assert (X != Y).any(axis=1).mean() > 0.9
    return X, Y


X, Y = twins()
POWER = FederatedPowerPCA(K, n_rounds=1000, random_state=0)
STEPS = FederatedPowerPCA(K, n_rounds=1000, local_steps=3, random_state=0)
REFINED = FederatedPCA(K, n_refinements=1000)


def basis_of(p, q, t, v, alone):
    """Orthonormal vectors, the first with two large entries, or one, and a small one."""
    V, others = np.zeros((K, D)), [j for j in range(D) if j not in (p, q, t)]
    large = np.sqrt(1 - v * v)
    V[0, p] = large if alone else large * np.sqrt(0.5)
    V[0, q] = 0.0 if alone else np.sign(v or 1) * large * np.sqrt(0.5)
    V[0, t] = v
    V[range(1, K), others[: K - 1]] = 1.0
    return V


def number(exponents):
    return st.builds(lambda e, sign: sign * 2.0**e, exponents, st.sampled_from([-1.0, 1.0]))


@st.composite
def questions(draw):
    """A basis and a mean, near those that robberies need, and others slightly changed."""
    p, q, t = draw(st.permutations(range(D)))[:3]
    if draw(st.booleans()):
        p, q = 0, 2  # the columns that depend on each other
    t = t if t not in (p, q) else next(j for j in range(D) if j not in (p, q))
    v = draw(number(st.integers(-1074, -1) | st.integers(-60, -40)))
    mean = X.mean(axis=0) if draw(st.booleans()) else np.zeros(D)
    if draw(st.booleans()):
        mean[[p, q]] = draw(number(st.integers(-1074, 500) | st.just(60)))
        mean[t] = draw(number(st.integers(-20, 20)))
    V = basis_of(p, q, t, v, draw(st.booleans()))
    found = [(V, mean)]
    for _ in range(draw(st.integers(0, 3))):
        W = basis_of(p, q, t, draw(st.sampled_from([0.0, v, v / 2, v * (1 + 2.0**-52)])), False)
        found.append((W, mean))
    return found


SITES = {
    "rounds": (POWER, "moments", lambda V, mean: ("times_scatter", V, mean, 1)),
    "local steps": (STEPS, "moments", lambda V, mean: ("times_scatter", V, mean, 3)),
    "variances": (POWER, "moments", lambda V, mean: ("variances", V, mean)),
    "refinements": (REFINED, "summary", lambda V, mean: ("products", mean, V)),
}


def answers(kind, rows, asked):
    """What a site with these rows answers, as bytes, or why it does not."""
    estimator, first, question = SITES[kind]
    site = Site(estimator, rows, min_rows=10)
    assert site.answers(first)
    found = []
    for V, mean in asked:
        config, arrays = site.ask(*question(V, mean))
        error = config.get("error", "").partition(",")[0]
        found.append((error, {name: a.tobytes() for name, a in arrays.items()}))
    return found


@pytest.mark.parametrize("kind", SITES)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(asked=questions())
def test_answers_depend_on_number_mean_and_scatter_alone(kind, asked):
    assert answers(kind, X, asked) == answers(kind, Y, asked)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, derandomize=True)
@given(asked=questions(), kind=st.sampled_from(sorted(SITES)))
def test_two_thousand_sequences_of_hostile_questions(asked, kind):
    assert answers(kind, X, asked) == answers(kind, Y, asked)


def asked_by_files(folder, asked, answered):
    """Bytes of the arrays that a site answers to hostile questions in files, or why it does not.

    ``answered(question, answer)`` answers the question in a file.
    """
    if not (folder / "study.json").exists():
        Study.begin(folder, REFINED, ["north", "south"]).next()
    first, _ = read_letter(folder / "0001.north.question")
    last, sent = folder / "0001.north.answer", []
    answered(folder / "0001.north.question", last)
    for number, (V, mean) in enumerate(asked, 2):
        arrays = arrays_of({"0": mean, "1": V})
        message = Message("products", first.message.config, arrays)
        after = {"north": digest_of(last.read_bytes())}
        question = folder / f"{number:04}.north.question"
        question.write_bytes(
            Letter({**first.about, "number": number, "after": after}, message).to_bytes()
        )
        last = question.with_suffix(".answer")
        answered(question, last)
        found = read_letter(last)[0].message
        sent.append(
            (
                found.config.get("error", "").partition(",")[0],
                {name: array.data for name, array in found.arrays.items()},
            )
        )
    return sent


@settings(max_examples=60, deadline=None, derandomize=True)
@given(asked=questions())
def test_files_depend_on_number_mean_and_scatter_alone(asked):
    told = []
    with TemporaryDirectory() as place:
        for i, rows in enumerate((X, Y)):
            state = Path(place) / f"state {i}"
            told.append(
                asked_by_files(
                    Path(place),
                    asked,
                    lambda q, a, rows=rows, state=state: answer(q, a, rows, state=state),
                )
            )
    assert told[0] == told[1]


def test_the_command_answers_from_all_rows_of_a_site(tmp_path):
    """Not batch by batch: the mean of a last batch of one row is that row."""
    mean = X.mean(axis=0)
    mean[[0, 2]] = -(2.0**60)
    V = basis_of(0, 2, 1, 2.0**-44, False)
    sent = []
    for rows, cut in ((X, N // 2), (Y, N // 2), (X, N - 1)):
        parts = [tmp_path / f"{len(sent)}{i}.csv" for i in range(2)]
        for part, of in zip(parts, np.split(rows, [cut]), strict=True):
            np.savetxt(part, of, delimiter=",", header=",".join("abcdefgh"), comments="")
        site = [*map(str, parts), "--site", "north", "--log", f"{parts[0]}.log", "--force"]

        def answered(question, out, site=site):
            assert main(["answer", str(question), *site, "-o", str(out)]) == 0

        sent += asked_by_files(tmp_path, [(V, mean)], answered)
    (error, told), *others = sent
    assert error == ""
    assert len(told["message"]) > 8 * (K * D + D + 2)
    assert all(other == (error, told) for other in others)


def test_moments_in_a_basis_depend_on_number_mean_and_scatter_alone():
    rng, factors = np.random.default_rng(0), []
    V = np.linalg.qr(rng.standard_normal((D, D)))[0][:K]
    V[0] = basis_of(0, 2, 1, 2.0**-44, False)[0]
    V = np.linalg.qr(V.T)[0].T.copy()
    for rows in (X, Y):
        site = Site(OnlineDistributedPCA(K, variances="measured"), rows)
        assert site.answers("space", 0)
        factors.append(site.ask("moments", 0, V)[1]["factor"].tobytes())
    assert factors[0] == factors[1]


# -------------------------------------------------------------------- the robberies themselves


def rounded_rows(seed, d=D, n=200):
    """Rows of like size, with two dummies of one answer."""
    rng = np.random.default_rng(seed)
    rows = np.round(rng.standard_normal((n, d)) * np.linspace(1, 8, d) + 3 * np.arange(d), 3)
    rows[:, 0] = rng.random(n) < 0.4
    rows[:, 2] = 1 - rows[:, 0]
    return rows


def nearest_row(rows, difference, columns):
    """How far a difference of answers is from the direction of the nearest row, as a sine."""
    Z = (rows - rows.mean(axis=0))[:, columns]
    Z /= np.linalg.norm(Z, axis=1)[:, None]
    difference = difference[columns]
    if not np.abs(difference).max() > 0:
        return 1.0
    unit = difference / np.abs(difference).max()
    unit /= np.linalg.norm(unit)
    return float(np.linalg.norm(Z - (Z @ unit)[:, None] * unit, axis=1).min())


@pytest.mark.parametrize("d", [D, 2100])
@pytest.mark.parametrize("kind", ["rounds", "refinements"])
def test_a_threshold_by_columns_that_depend_on_each_other(kind, d):
    """With the honest mean: a bisection for the least entry of a basis that changes the answer."""
    rows = rounded_rows(8, d)
    estimator, first, question = SITES[kind]
    site = Site(estimator, rows)
    assert site.answers(first)
    mean, columns = rows.mean(axis=0), [1, 3, 4, 5, 6, 7]

    def ask(v):
        V = np.zeros((K, d))
        V[:, :D] = basis_of(0, 2, 1, v, False)
        V[0, 2] = V[0, 0]  # the null vector of the two columns
        (message,) = site.ask(*question(V, mean))[1].values()
        return message.ravel()[: V.size].reshape(V.shape)[0][:D]

    base, low, high, nearest = ask(0.0), -60.0, -40.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        difference = ask(2.0**middle) - base
        nearest = min(nearest, nearest_row(rows[:, :D], difference, columns))
        if np.abs(difference[columns]).max() > 0:
            high = middle
        else:
            low = middle
    assert nearest > 1e-2


def test_a_threshold_by_a_mean_of_the_servers_choice():
    """A sum of rows above a threshold would be a whole number of them."""
    rows, big = rounded_rows(7), 2.0**60
    site = Site(POWER, rows)
    assert site.answers("moments")
    mean = np.zeros(D)
    mean[[0, 2]], mean[1] = -big, -1000.0
    counts, unit = [], 2.0 ** (np.floor(np.log2(np.sqrt(0.5) * big)) - 52)
    for threshold in np.linspace(rows[:, 1].min(), rows[:, 1].max(), 30):
        v = unit / 2 / (threshold - mean[1])
        V = basis_of(0, 2, 1, v, False)
        V[0, 2] = -V[0, 0]
        config, arrays = site.ask("times_scatter", V, mean, 1)
        assert "error" not in config
        counts.append(arrays["message"].reshape(K, D)[0, 0] / unit / big)
    assert len(np.unique(np.round(counts))) < 5


def test_a_denormal_beside_a_constant_column():
    """The product would round the entries of a column to whole numbers."""
    rows = rounded_rows(5)
    rows[:, 3], rows[:, 4:] = 1.0, np.round(1e4 * rows[:, 4:])
    rows[:, 1] = np.random.default_rng(5).uniform(0, 0.4, len(rows))
    rows[17, 1] = 1.3
    site = Site(REFINED, rows)
    assert site.answers("summary")
    V = np.zeros((K, D))
    V[0, 3], V[0, 1], V[1, 6], V[2, 7] = 1.0, 2.0**-1074, 1.0, 1.0
    (message,) = site.ask("products", rows.mean(axis=0), V)[1].values()
    found = message[:D] / 2.0**-1074
    assert nearest_row(rows, found, [4, 5, 6, 7]) > 1e-2


# -------------------------------------------------------------------- secure sums


def total_of(parts, kind, *arguments, **config):
    """Integers of a secure sum over sites with these rows, or why a site refuses."""
    server = Server(estimator=POWER, rows=np.stack(parts, axis=1).reshape(-1, D))
    server.keys().shares()
    answers = [server.tell(i, kind, *arguments, **server.question(i, **config)) for i in range(3)]
    errors = [told["error"] for told, _ in answers if "error" in told]
    return errors or server.unmasked_total([a["masked"] for _, a in answers], kind, arguments)


@pytest.mark.parametrize("exponents", [None, [60, 90], [90, 90, 90]])
def test_no_grid_of_the_servers_choice(exponents):
    """On a grid of 2^40 the sum would be a staircase, whose steps are single sites."""
    parts, others = zip(*(twins(seed) for seed in range(3)), strict=True)
    config = {} if exponents is None else {"exponents": exponents, "scale": 2.0**90}
    for far in (0.0, 1.0, 2.0**20, 2.0**60):
        mean = np.zeros(D)
        mean[0] = far
        arguments = np.eye(K, D), mean, 1
        found = total_of(parts, "times_scatter", *arguments, **config)
        assert found == total_of(others, "times_scatter", *arguments, **config)
        if far < 2.0**10:
            plain = total_of(parts, "times_scatter", *arguments)
            assert found == plain, "the grid is that of the bounds, whatever the server says"
        else:
            assert all("within the bounds" in why for why in found)


def test_a_refusal_does_not_depend_on_the_numbers():
    """Sites whose sums are above a public scale take no part; others answer everything."""
    parts = [twins(seed)[0] for seed in range(3)]
    secure = SecureAggregation(threshold=2, scale=2.0**30)
    server = Server(secure=secure, rows=np.stack(parts, axis=1).reshape(-1, D))
    server.keys().shares().masked()
    assert all(len(numbers) == D + 2 for numbers in server.numbers)
    small = Server(secure=SecureAggregation(threshold=2, scale=2.0**10), rows=parts[0])
    for i in range(3):
        small.refused(i, "bounds", why="the rows are not within the scale")
