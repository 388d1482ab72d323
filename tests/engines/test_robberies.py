"""Servers that read single rows by rounding: what a site answers depends on n, mean and scatter.

Two sites whose rows differ, but have the same number, mean and scatter matrix to the last bit, give
the same answers to the last bit, whatever a server asks: no question tells more of the rows.
"""

import hmac
from contextlib import suppress
from functools import cache, partial

import numpy as np
import pytest
import scipy.sparse as sp
from engines.secure_helpers import Server
from engines.site_helpers import (
    MEAN,
    ROWS,
    SALT,
    Array,
    Site,
    SiteByFiles,
    asked_in_turn,
    assert_refused,
    fit,
    here,
    made,
    table,
    whole,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpca_sklearn import FederatedPCA, Subspace
from fedpca_sklearn._console._main import main
from fedpca_sklearn.engines.flower import SecureAggregation, SitePolicy, SiteRows

N, D, K = 64, 8, 3
ORTHOGONAL = np.array([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]]) / 2


@pytest.fixture(autouse=True, params=["Flower", "files"])
def transport(request, monkeypatch, tmp_path_factory):
    """All robberies are tried over both."""
    if request.param == "files":
        by_files = partial(SiteByFiles, new_folder=partial(tmp_path_factory.mktemp, "site"))
        monkeypatch.setitem(globals(), "Site", by_files)
        monkeypatch.setattr("engines.secure_helpers.Site", by_files)


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
POWER = made("FederatedPowerPCA(3, n_rounds=1000, random_state=0)")
REFINED = made("FederatedPCA(3, n_refinements=1000)")


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


LOCAL = made("FederatedPowerPCA(3, n_rounds=1000, local_steps=3, random_state=0)")
SITES = {
    "rounds": (POWER, ["moments"], lambda V, mean: ("times_scatter", V, mean, 1)),
    "local steps": (LOCAL, ["moments"], lambda V, mean: ("times_scatter", V, mean, 3)),
    "variances": (POWER, ["moments"], lambda V, mean: ("variances", V, mean)),
    "refinements": (REFINED, ["summary"], lambda V, mean: ("products", mean, V)),
    "steps": (made("OnlineDistributedPCA(3)"), ["space", 0], lambda V, mean: ("moments", 0, V)),
}


@cache
def site_with(kind, twin, of_transport):
    """A site with these rows; runs follow each other, as processes are slow to start."""
    return of_transport(SITES[kind][0], (X, Y)[twin], min_rows=10)


def answers(kind, twin, asked):
    """What a site with these rows answers, as bytes, or why it does not."""
    _, first, question = SITES[kind]
    site = site_with(kind, twin, Site)
    site.context.run_id += 1
    assert site.answers(*first)
    found = []
    for V, mean in asked:
        config, arrays = site.ask(*question(V, mean))
        error = config.get("error", "").partition(",")[0]
        found.append((error, {name: a.tobytes() for name, a in arrays.items()}))
    return found


@pytest.mark.parametrize("kind", SITES)
@settings(max_examples=20)
@given(asked=questions())
def test_answers_depend_on_number_mean_and_scatter_alone(kind, asked):
    assert answers(kind, 0, asked) == answers(kind, 1, asked)


@pytest.mark.slow
@settings(max_examples=500)
@given(asked=questions(), kind=st.sampled_from(sorted(SITES)))
def test_five_hundred_sequences_of_hostile_questions(asked, kind):
    assert answers(kind, 0, asked) == answers(kind, 1, asked)


class SiteByCommand(SiteByFiles):
    """A site whose rows are in files, of which each question is answered by the command."""

    def reply(self, question, said):
        own = "--site", "north", "--log", f"{self.folder}/log", "--state", f"{self.folder}/state"
        assert main(["answer", str(question), *self.rows, *own, "--force", "-o", str(said)]) == 0


def test_the_command_answers_from_all_rows_of_a_site(tmp_path):
    """Not batch by batch: the mean of a last batch of one row is that row."""
    mean, sent = X.mean(axis=0), []
    mean[[0, 2]] = -(2.0**60)
    for rows, cut in ((X, N // 2), (Y, N // 2), (X, N - 1)):
        folder = tmp_path / f"{len(sent)}"
        folder.mkdir()
        parts = [f"{folder}/{i}.csv" for i in range(2)]
        for part, of in zip(parts, np.split(rows, [cut]), strict=True):
            np.savetxt(part, of, delimiter=",", header=",".join("abcdefgh"), comments="")
        site = SiteByCommand(REFINED, parts, new_folder=lambda folder=folder: folder)
        assert site.answers("summary")
        told = site.ask("products", mean, basis_of(0, 2, 1, 2.0**-44, False))[1]
        sent.append({name: array.tobytes() for name, array in told.items()})
    assert sum(map(len, sent[0].values())) == 8 * (K * D + D + 2)
    assert sent[1] == sent[2] == sent[0]


# -------------------------------------------------------------------- the robberies themselves


def rounded_rows(seed, d=D, n=200):
    """Rows of like size, with two dummies of one answer."""
    rng = np.random.default_rng(seed)
    rows = np.round(rng.standard_normal((n, d)) * np.linspace(1, 8, d) + 3 * np.arange(d), 3)
    rows[:, 0] = rng.random(n) < 0.4
    rows[:, 2] = 1 - rows[:, 0]
    return rows


def nearest_row(rows, difference, columns=slice(None)):
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
    assert site.answers(*first)
    mean, columns = rows.mean(axis=0), [1, 3, 4, 5, 6, 7]

    def ask(v):
        V = np.zeros((K, d))
        V[:, :D] = basis_of(0, 2, 1, v, False)
        V[0, 2] = V[0, 0]  # the null vector of the two columns
        message = np.concatenate([a.ravel() for a in site.ask(*question(V, mean))[1].values()])
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
        counts.append(arrays["products"][0, 0] / unit / big)
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
    message = whole(site.ask("products", rows.mean(axis=0), V)[1])
    found = message[:D] / 2.0**-1074
    assert nearest_row(rows, found, [4, 5, 6, 7]) > 1e-2


# -------------------------------------------------------------------- secure sums


def total_of(parts, kind, *arguments, estimator=POWER, **config):
    """Integers of a secure sum over sites with these rows, or why a site refuses."""
    server = Server(estimator=estimator, rows=np.stack(parts, axis=1).reshape(-1, D))
    server.keys().shares()
    answers = [server.tell(i, kind, *arguments, **server.question(i, **config)) for i in range(3)]
    errors = [told["error"].partition(",")[0] for told, _ in answers if "error" in told]
    return errors or server.unmasked_total([a["masked"] for _, a in answers], kind, arguments)


SUMS = {
    "rounds": (POWER, lambda V, mean: ("times_scatter", V, mean, 1)),
    "local steps": (LOCAL, lambda V, mean: ("times_scatter", V, mean, 3)),
    "variances": (POWER, lambda V, mean: ("variances", V, mean)),
    "refinements": (REFINED, lambda V, mean: ("products", mean, V)),
    "scatter": (REFINED, lambda V, mean: ("scatter", mean)),
    "second moments": (REFINED, lambda V, mean: ("second_moments", mean)),
}


@pytest.mark.parametrize("kind", SUMS)
@settings(max_examples=5)
@given(asked=questions())
def test_secure_sums_depend_on_number_mean_and_scatter_alone(kind, asked):
    estimator, question = SUMS[kind]
    both, asks = zip(*(twins(seed) for seed in range(3)), strict=True), question(*asked[-1])
    first, second = (total_of(parts, *asks, estimator=estimator) for parts in both)
    assert first == second


@pytest.mark.parametrize("exponents", [None, [60, 90], [90, 90, 90]])
def test_no_grid_of_the_servers_choice(exponents):
    """On a grid of 2^40 the sum would be a staircase, whose steps are single sites."""
    parts, others = zip(*(twins(seed) for seed in range(3)), strict=True)
    config = {} if exponents is None else {"exponents": exponents, "scale": 2.0**90}
    for far in (0.0, 1.0, 2.0**60):
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


# -------------------------------------------------------------------- rows one by one

# What docs/promises.md says is not protected from, so that it is said no longer than it is true.


def test_within_the_rules_a_server_learns_the_scatter_matrix():
    site = Site(POWER, ROWS)
    *total, n = whole(site.ask("moments")[1])
    mean = np.divide(total, n)
    axes = np.split(np.eye(8), [3, 6])
    products = [whole(site.ask("times_scatter", basis, mean, 1)[1]) for basis in axes]
    expected = (ROWS - MEAN).T @ (ROWS - MEAN)
    np.testing.assert_allclose(np.concatenate(products), expected, rtol=1e-9, atol=1e-9)


def test_a_row_that_joins_between_two_runs_is_told():
    before, after = (whole(Site(POWER, rows).ask("moments")[1]) for rows in (ROWS[:-1], ROWS))
    np.testing.assert_allclose((after - before)[:-1], ROWS[-1], atol=1e-10)


def test_within_the_rules_a_category_of_one_row_tells_that_row():
    """Its products with the other columns are the differences of the row from the mean."""
    rows = ROWS.copy()
    rows[:, 2] = 0.0
    rows[17, 2] = 1.0
    summary = summary_in(Site(made("FederatedPCA(8)"), rows).ask("summary")[1])
    F = summary.singular_values[:, None] * summary.components
    np.testing.assert_allclose(summary.mean + F[:, 2] @ F, rows[17], atol=1e-10)


def test_within_the_rules_a_row_with_nearly_all_of_the_weight_is_told():
    weight = np.full(200, 1e-9)
    weight[17] = 1.0
    *total, n = whole(Site(POWER, SiteRows(ROWS, weight)).ask("moments")[1])
    np.testing.assert_allclose(np.divide(total, n), ROWS[17], atol=1e-5)


def test_a_row_that_changes_between_two_questions_that_read_rows_is_told():
    """A summary is of the rows as they are: by files other rows are refused in a run."""
    there = ROWS.copy()
    site = Site(made("FederatedScaler()"), there)
    first = site.ask("moments")[1]["moments"]
    there[17] += 1e3
    with suppress(ValueError):
        second = site.ask("moments")[1]["moments"]
        np.testing.assert_allclose(200 * (second[1] - first[1]), 1e3)


def test_the_models_before_and_after_a_site_leaves_tell_its_moments():
    sites = [Subspace.from_rows(part) for part in np.split(ROWS, 4)]
    named = [site._replace(site=f"{i}") for i, site in enumerate(sites)]
    pca = FederatedPCA.from_subspaces(named)
    models = [pca.subspace_, pca.remove("2").subspace_]
    n, total, squares = [], [], []
    for model in models:
        F, mean = model.singular_values[:, None] * model.components, model.mean
        n.append(model.n_samples), total.append(n[-1] * mean)
        squares.append(F.T @ F + n[-1] * np.outer(mean, mean))
    rows = ROWS[100:150]
    assert n[0] - n[1] == len(rows)
    np.testing.assert_allclose(total[0] - total[1], rows.sum(axis=0), atol=1e-9)
    np.testing.assert_allclose(squares[0] - squares[1], rows.T @ rows, atol=1e-7)


def test_a_run_is_about_the_rows_that_are_there_when_it_begins():
    """One process answers in both runs, and has kept the moments of the first."""
    there = ROWS.copy()
    site = Site(POWER, there)
    first = whole(site.ask("moments")[1])
    np.testing.assert_allclose(first[:-1], there.sum(axis=0))
    there += 1
    with suppress(ValueError):  # other rows are refused by files; elsewhere the run begins anew
        assert (whole(site.ask("moments")[1]) == first).all()
    site.context.run_id += 1
    second = whole(site.ask("moments")[1])
    np.testing.assert_allclose(second[:-1], there.sum(axis=0))


def test_a_batch_that_is_too_small_is_told_by_all_rows_and_the_others():
    site = Site(made("FederatedPCA(8)"), [ROWS[:60], ROWS[60:61]])
    told = [site.ask("summary")[1], site.ask("summary_of_batch", 0)[1]]
    assert_refused(site, "summary_of_batch", 1, why="fewer than min_rows=10 rows")
    whole, first = map(summary_in, told)
    row = whole.n_samples * whole.mean - first.n_samples * first.mean
    np.testing.assert_allclose(row, ROWS[60], rtol=1e-9)


def summary_in(arrays):
    return Subspace.from_bytes(arrays["summary"].astype(np.uint8))


def scatter_in(arrays):
    summary = summary_in(arrays)
    return (summary.components.T * summary.singular_values**2) @ summary.components


# -------------------------------------------------------------------- thresholds of outliers

RNG = np.random.default_rng(0)
LOW = RNG.standard_normal((300, 3)) @ RNG.standard_normal((3, 5)) * 2
LOW = np.round(LOW + RNG.standard_normal((300, 5)) + 5, 3)
CENTRE, T = LOW.mean(axis=0), 3  # the column whose threshold is searched
AXES, AXIS = np.eye(5)[:3], np.eye(5)[[T]]
MODEL, NO_RIDGE, NO_LIMITS = np.vstack([CENTRE, AXES]), np.zeros(4), np.zeros(6)
SIZES = np.abs(LOW[:, T] - CENTRE[T])
FARTHEST, BELOW_IT = int(np.argmax(SIZES)), np.sort(SIZES)[-2:].mean()
GAPS = LOW.copy()
GAPS[20:32, 1] = np.nan
AUTO = made("FederatedSubspaceTracker(3, robust=True, batch_size=300, random_state=0)")
WHOLE = made("FederatedSubspaceTracker(3, robust=False, batch_size=300)")
PATTERN = "a pattern of missing entries that fewer than min_rows_of_pattern="


def limits_of(t, mode=1):
    """Thresholds that no entry exceeds, but in one column."""
    limits = np.full(6, 1e6)
    limits[0], limits[1 + T] = mode, t
    return limits


def begun(estimator=AUTO, rows=LOW, **options):
    site = Site(estimator, rows, **options)
    assert site.answers("batch", 0)
    return site


def answers_by(site, t, mode=1, model=MODEL):
    """Sum of the rows, and their products with a column, by a threshold in a new beginning."""
    if not site.answers("batch", 0):
        return None
    question = (0, MODEL, model, NO_RIDGE, limits_of(t, mode))
    total = site.ask("moments", *question)[1]
    product = site.ask("times_scatter", *question, AXIS, CENTRE)[1]
    return (whole(total), product["products"][0]) if total and product else None


@pytest.mark.parametrize("mode", [1, 2])
def test_a_server_that_searches_for_a_threshold_does_not_read_a_row(mode):
    """Of two thresholds, one of which one row alone exceeds, the answers differ by this row."""
    low, high, nearest = 0.0, 4 * SIZES.max(), 1.0
    for run in range(1, 41):
        site, middle = Site(AUTO, LOW, run=run), (low + high) / 2
        without_outliers, by_threshold = (answers_by(site, t, mode) for t in (1e6, middle))
        assert without_outliers is not None
        if by_threshold is None:
            why = "a batch has one set of thresholds in all its beginnings, got another"
            question = (0, MODEL, MODEL, NO_RIDGE, limits_of(middle, mode))
            assert_refused(site, "moments", *question, why=why)
            break
        total, product = (a - b for a, b in zip(without_outliers, by_threshold, strict=True))
        if np.abs(product).max() > 1e-9:
            low, nearest = middle, min(nearest, nearest_row(LOW, product / total[T]))
        else:
            high = middle
    assert nearest > 1e-3, "a row is read"
    assert answers_by(site, 1e6, mode) is not None  # the first ones, in the last beginning
    assert not site.answers("batch", 0)


def test_the_first_batch_has_the_rank_of_the_sites_own_estimator():
    """What counts as an outlier does not follow from how many directions are asked about."""
    rows = LOW.copy()
    rows[::50, 2] += 200.0
    site, basis = begun(rows=rows), np.linalg.qr(RNG.standard_normal((5, 3)))[0].T.copy()
    products, alone = (whole(site.ask("low_rank", 0, B, CENTRE)[1]) for B in (basis, basis[:1]))
    np.testing.assert_allclose(alone[0], products[0], rtol=1e-9)


def test_a_basis_does_not_single_out_rows_with_the_same_holes():
    """Rows count whose entries determine their coordinates: of an axis, those that have it."""
    rows = LOW.copy()
    rows[:, 0] = np.nan
    rows[3, 0] = 1.0
    alone = np.vstack([np.zeros(5), np.eye(5)[:1]])
    site, models = begun(WHOLE, rows), (alone, alone, np.zeros(2), NO_LIMITS)
    assert site.ask("filled", 0, *models)[1]["count"] == 0
    assert not whole(site.ask("moments", 0, *models)[1]).any()
    observed = whole(begun(WHOLE, rows).ask("observed", 0)[1])
    assert observed[0] == observed[5] == 0  # a feature that one row has
    message = whole(begun(AUTO, rows).ask("sizes", 0, MODEL, NO_LIMITS)[1])
    assert message[0] == message[5] == 0
    assert message[1:5].all()


def test_within_the_rules_a_row_that_alone_is_an_outlier_is_told_by_two_models():
    """All but the entry that is one."""
    other = MODEL.copy()
    other[0, T] += 1.0
    site = Site(AUTO, LOW)
    found = [answers_by(site, BELOW_IT, model=model) for model in (MODEL, other)]
    told, others = found[1][1] - found[0][1], np.arange(5) != T
    np.testing.assert_allclose(told[others], (LOW[FARTHEST] - CENTRE)[others], atol=1e-9)


def test_two_runs_with_thresholds_that_differ_tell_a_row():
    found = [answers_by(Site(AUTO, LOW, run=i), t) for i, t in ((1, 1e6), (2, BELOW_IT))]
    total, product = (a - b for a, b in zip(*found, strict=True))
    np.testing.assert_allclose(product / total[T], LOW[FARTHEST] - CENTRE, atol=1e-9)


def test_within_the_rules_a_server_learns_sums_of_the_entries_that_are_there():
    message = whole(begun(WHOLE, GAPS).ask("observed", 0)[1])
    expected = [*np.nansum(GAPS, axis=0), *np.isfinite(GAPS).sum(axis=0), 300]
    np.testing.assert_allclose(message, expected)


@pytest.mark.parametrize("there", [9, 10])
def test_sums_over_fewer_entries_or_rows_than_the_owner_wants_are_zero(there):
    """Those of a column, and of all rows that a model can fill; of ten they are sent."""
    told = there >= 10
    one, all_of_them = LOW.copy(), LOW.copy()
    one[there:, T] = all_of_them[there:] = np.nan
    observed = whole(begun(WHOLE, one).ask("observed", 0)[1])
    expected = told * np.array([one[:there, T].sum(), there])
    np.testing.assert_allclose(observed[[T, 5 + T]], expected)
    np.testing.assert_allclose(observed[[0, 5]], [LOW[:, 0].sum(), 300])
    sizes = whole(begun(AUTO, one).ask("sizes", 0, MODEL, NO_LIMITS)[1])
    assert (sizes[[T, 5 + T]] != 0).tolist() == [told] * 2
    assert sizes[5] == 300
    site, models = begun(WHOLE, all_of_them), (0, MODEL, MODEL, NO_RIDGE, NO_LIMITS)
    assert site.ask("filled", *models)[1]["count"] == there * told
    sent = [whole(site.ask("moments", *models)[1])]
    sent.append(whole(site.ask("times_scatter", *models, AXIS, CENTRE)[1])[0])
    rows = all_of_them[:there]
    expected = [*rows.sum(axis=0), there], (rows - CENTRE).T @ (rows - CENTRE)[:, T]
    for message, wanted in zip(sent, expected, strict=True):
        np.testing.assert_allclose(message, np.multiply(wanted, told), atol=1e-9)


def test_within_the_rules_a_server_learns_how_many_entries_exceed_a_threshold():
    """Of each column, once a batch: what remains are sums of logarithms over many rows."""
    site, limits = begun(), limits_of(np.sort(SIZES)[-8:-6].mean())
    told = [whole(site.ask("sizes", 0, MODEL, by)[1]) for by in (NO_LIMITS, limits)]
    assert [len(message) for message in told] == [13] * 2
    assert (told[0] - told[1])[5 + T] == 7


@pytest.mark.parametrize("mode", [1, 2])
def test_thresholds_of_sizes_are_one_set_whatever_they_are_called(mode):
    """By six of them a server would search for the size of one row."""
    site = begun()
    assert site.answers("sizes", 0, MODEL, limits_of(1.0, mode))
    for _ in range(2):
        why = "a batch has one set of thresholds of the batches before in all its beginnings"
        assert_refused(site, "sizes", 0, MODEL, limits_of(2.0, mode), why=why)
        assert site.answers("batch", 0)
    assert site.answers("sizes", 0, MODEL, limits_of(1.0, mode))


def test_within_the_rules_a_server_learns_the_scatter_of_the_first_batch_without_outliers():
    """By bases of its choice, in d / k questions."""
    rng = np.random.default_rng(0)
    low = rng.standard_normal((300, 2)) @ rng.choice([-1.0, 1.0], (2, 40))
    outliers = 20 * rng.choice([-1, 1], low.shape) * (rng.random(low.shape) < 0.01)
    site = begun(rows=low + outliers)
    bases = np.array_split(np.eye(40), 14)
    asked = [site.ask("low_rank", 0, B, np.zeros(40)) for B in bases]
    scatter = np.concatenate([arrays["products"] for _, arrays in asked]).reshape(40, 40)
    np.testing.assert_allclose(scatter, low.T @ low, atol=1e-9)


# -------------------------------------------------------------------- models of a fill

FILL = made("FederatedPCA(2, missing=ConditionalFill(n_rounds=1))")
COUNT, OTHERS = [300.0, 1e6], [0, 2, 3, 4]


def filled_by(site, shift):
    """Scatter of the rows about their mean, where holes of a column are filled by a value."""
    mean = np.full((1, 5), 5.0)
    mean[0, 1] += shift
    found = site.ask("filled", mean, COUNT)[1]
    return scatter_in(found) if found else None


def test_within_the_rules_two_models_tell_the_sum_over_the_rows_with_a_hole():
    site = Site(FILL, GAPS)
    told = (filled_by(site, 1e3) - filled_by(site, 0.0))[1] / 1e3
    expected = (GAPS[20:32] - GAPS.mean(axis=0)).sum(axis=0)
    np.testing.assert_allclose(told[OTHERS], expected[OTHERS], rtol=1e-8)
    assert nearest_row(LOW, told, OTHERS) > 1e-3


def test_what_a_server_learns_of_a_pair_that_one_row_alone_has():
    """The product of two deviations of that row, from honest means; the pages say so."""
    rows, alone = LOW.copy(), 60
    rows[:alone, 0] = rows[alone + 1 :, 1] = np.nan
    mean = np.nanmean(rows, axis=0)
    site = Site(FILL, rows)
    found = site.ask("entries")[1]
    means = found["sum"] / found["counts"]
    np.testing.assert_allclose(means, mean)
    found = site.ask("filled", means[None], COUNT)[1]
    shift = summary_in(found).mean - mean
    told = scatter_in(found) + 300 * np.outer(shift, shift)
    np.testing.assert_allclose(told[0, 1], np.prod((rows[alone] - mean)[:2]), rtol=1e-9)


# -------------------------------------------------------------------- rounding, where rows are read

LACKING = LOW.copy()
LACKING[:, 1] = np.nan  # of which the site has no entry


def alone_above(column):
    """A threshold that one row alone exceeds in a column."""
    return np.sort(LOW[:, column])[-2:].mean()


def model_far_away(far=2.0**60):
    """A mean and a direction by which an entry is a threshold of column 0 after rounding."""
    V, mean = np.zeros(5), CENTRE.copy()
    V[:3] = 3**-0.5
    mean[1], mean[2] = 0.0, -far
    mean[0] = alone_above(0) - np.spacing(V[2] * far) / 2 / V[0]
    return np.vstack([mean, V])


def filled_about(model, ridge, about):
    """Products of column 1, as a tracker's model fills it, with all columns."""
    site = begun(WHOLE, LACKING, policy=SitePolicy(min_rows_of_pattern=50))
    found = site.ask("times_scatter", 0, model, model, ridge, NO_LIMITS, np.eye(5)[[1]], about)[1]
    return found["products"][0] if found else np.zeros(5)


def test_no_mean_far_away_reads_a_row_that_is_filled():
    """All rows have one pattern, so that no owner's rule is in the way."""
    model = model_far_away()
    site = Site(FILL, LACKING, policy=SitePolicy(min_rows_of_pattern=50))
    assert site.answers("entries")
    told = scatter_in(site.ask("filled", model, [300.0, 1e6 + 4e-3, 1e3])[1])[1]
    assert nearest_row(LOW, told, OTHERS) > 1e-3
    assert nearest_row(LOW, filled_about(model, np.zeros(2), CENTRE), OTHERS) > 1e-3


def test_no_denormal_that_a_ridge_leaves_reads_a_row():
    """Divided by a huge ridge, coordinates would be rounded to whole numbers."""
    for e in range(-63, -50):
        V, mean = np.eye(5)[1], CENTRE.copy()
        V[T], mean[1] = 2.0**e, 0.0
        mean[T] = alone_above(T) - 2.0 ** (-52 - e)
        told = filled_about(np.vstack([mean, V]), np.array([1.0, 2.0**1023]), mean)
        assert not told.any()


def test_a_question_that_is_repeated_has_the_same_noise():
    model = model_far_away(8.0)
    first, second = (filled_about(model, np.zeros(2), CENTRE) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    other = model_far_away(8.0 * (1 + 2.0**-52))
    assert (filled_about(other, np.zeros(2), CENTRE) != first).any()


def test_no_mean_far_away_reads_a_row_by_a_residual():
    """Of whole rows; columns of whole numbers with a whole mean cancel where they are summed."""
    rng = np.random.default_rng(2)
    half = rng.integers(-9, 10, (150, 5)).astype(float)
    rows = np.concatenate([half, -half])
    rows[:, 0] = rng.uniform(-7, 7, 300)
    rows[17, 0] = 18.0  # above half a step of the rounding
    code = "FederatedSubspaceTracker(3, robust=False, batch_size=300, detect_changes=True)"
    site, axes = begun(made(code), rows, policy=SitePolicy(min_rows_of_pattern=50)), np.eye(5)
    model = np.vstack([np.zeros(5), axes[4]])
    model[0, 0] = -(2.0**57)
    question = 0, model, model, np.zeros(2), NO_LIMITS, axes[[0]], np.zeros(5)
    told = site.ask("times_residuals", *question)[1]["products"][0]
    assert nearest_row(rows, told, [1, 2, 3]) > 1e-3


def test_no_overflow_tells_the_largest_product_with_a_row():
    """Of many columns rows are multiplied for each question, before their products are added."""
    rows = np.random.default_rng(0).standard_normal((40, 2100)) * 1e-6
    code, told = "FederatedHeteroscedasticPCA(1, n_rounds=30, random_state=0)", []
    for far in (5e-4, 2e-3):
        rows[7], rows[8] = far, -far
        site = Site(made(code), rows)
        assert site.answers("moments")
        factors = [np.full((1, 2100), 2.0**e) for e in range(995, 1024)]
        asked = (site.ask("scores", F, np.zeros(2100), 1.0)[0] for F in factors)
        told.append([config.get("error", "").partition(",")[0] for config in asked])
    assert told[0] == told[1]


# -------------------------------------------------------------------- the owner's least rows

FEW = GAPS.copy()
FEW[20, 2] = FEW[40:60, 2] = np.nan  # one row lacks two columns, each of which enough rows lack


@pytest.mark.parametrize(
    ("rows", "least", "answered"),
    [
        *((GAPS, 12, True), (GAPS, 13, False), (FEW, 12, False), (FEW, None, True)),
        *((sp.csr_array(GAPS), 12, True), (sp.csr_array(GAPS), 13, False), (LOW, 300, True)),
    ],
)
def test_patterns_of_few_rows_are_refused_where_the_owner_says_so(rows, least, answered):
    for kind, question in (("entries", ()), ("filled", (np.full((1, 5), 5.0), COUNT))):
        site = Site(FILL, rows, policy=SitePolicy(min_rows_of_pattern=least))
        if answered:
            assert site.answers(kind, *question)
        else:
            assert_refused(site, kind, *question, why=f"{PATTERN}{least}")


def test_the_rows_of_a_tracker_have_patterns_too():
    models = (0, MODEL, MODEL, NO_RIDGE, NO_LIMITS)
    about = dict.fromkeys(("times_scatter", "variances"), (*models, AXIS, CENTRE))
    same = dict.fromkeys(("filled", "misfits", "moments"), models)
    for kind, arguments in {"observed": (0,), **same, **about}.items():
        for least in (12, 13):
            site = begun(WHOLE, GAPS, policy=SitePolicy(min_rows_of_pattern=least))
            assert site.answers(kind, *arguments) == (least == 12)


def test_outliers_are_holes_to_the_owner():
    """One threshold that one row alone exceeds: no model is filled by."""
    policy = SitePolicy(min_rows_of_pattern=10)
    site, question = begun(policy=policy), (0, MODEL, MODEL, NO_RIDGE, limits_of(BELOW_IT))
    why = f"{PATTERN}10 rows have"
    assert_refused(site, "sizes", 0, MODEL, limits_of(BELOW_IT), why=why)
    for kind, more in (("filled", ()), ("moments", ()), ("times_scatter", (AXIS, CENTRE))):
        assert_refused(site, kind, *question, *more, why=why)
    assert answers_by(Site(AUTO, LOW, policy=policy), 1e6) is not None


def test_a_fit_whose_patterns_have_enough_rows():
    parts = {name: LOW[i::3].copy() for i, name in enumerate(("east", "north", "west"))}
    for rows in parts.values():
        rows[:20, 1] = rows[20:40, 2] = np.nan
    pca = made("FederatedPCA(2, missing=ConditionalFill())")
    policies = dict.fromkeys(parts, SitePolicy(min_rows_of_pattern=15))
    found, expected = fit(pca, parts, policies=policies), here(pca, parts)
    np.testing.assert_allclose(found.components_, expected.components_, atol=1e-10)


# -------------------------------------------------------------------- owners of columns

COLUMNS = np.random.default_rng(3).standard_normal((40, 5)) * np.arange(1, 6) + 3
CENTRED = COLUMNS - COLUMNS.mean(axis=0)
OWN = SiteRows(COLUMNS, keys=range(40), salt=SALT)
OWNER = made("VerticalFederatedPCA(3, method=PowerRounds(n_rounds=4), random_state=0)")
U = np.linalg.qr(np.random.default_rng(4).standard_normal((40, 6)))[0].T.copy()


def owner(estimator=OWNER, **options):
    """A site with columns, and the keys that it has sent."""
    site = Site(estimator, OWN, **options)
    return site, site.ask("keys")[1]["keys"]


def order_of_rows():
    """Rows of the site in the order of its hashed keys, by their lengths."""
    site, keys = owner(made('VerticalFederatedPCA(3, method="merge")'))
    summary = summary_in(site.ask("left_vectors", Array(keys))[1])
    F = summary.singular_values[:, None] * summary.components
    G = CENTRED @ CENTRED.T
    at = [int(np.argmin(np.abs(np.diag(G) - value))) for value in np.square(F).sum(axis=0)]
    np.testing.assert_allclose(F.T @ F, G[np.ix_(at, at)], atol=1e-9)
    return at


def test_within_the_rules_a_server_learns_the_inner_products_of_rows():
    """Products with as many directions as a site has columns tell G = X X^T."""
    at = order_of_rows()
    site, keys = owner()
    halves = [whole(site.ask("times_columns", Array(keys), part)[1]) for part in (U[:3], U[3:])]
    UG = np.concatenate(halves)
    G = UG.T @ np.linalg.pinv(UG @ U.T, rcond=1e-10) @ UG
    np.testing.assert_allclose(G, (CENTRED @ CENTRED.T)[np.ix_(at, at)], atol=1e-7)


def test_two_runs_with_keys_that_differ_by_one_tell_a_row():
    at, means = order_of_rows(), []
    for run, n in ((1, 40), (2, 39)):
        site, keys = owner(run=run)
        basis = np.linalg.qr(U[:3, :n].T)[0].T.copy()
        means.append(site.ask("parts", Array(keys[:n]), basis)[1]["mean"])
    np.testing.assert_allclose(40 * means[0] - 39 * means[1], COLUMNS[at[-1]], atol=1e-10)


def test_as_many_components_as_columns_tell_the_columns():
    at = order_of_rows()
    site, keys = owner(made('VerticalFederatedPCA(5, method="merge")'))
    summary = summary_in(site.ask("left_vectors", Array(keys))[1])
    part = site.ask("parts", Array(keys), summary.components)[1]["part"]
    np.testing.assert_allclose(summary.components.T @ part, CENTRED[at], atol=1e-9)


def test_within_the_rules_a_combination_of_zeros_and_ones_tells_each_of_them():
    """No row has half of the length of the vectors, and the numbers of rows are told."""
    rows, rng = COLUMNS.copy(), np.random.default_rng(5)
    rows[:, 0] = rng.random(40) < 0.4
    site = Site(OWNER, SiteRows(rows, keys=range(40), salt=SALT))
    keys, weights = site.ask("keys")[1]["keys"], np.zeros((1, 40))
    weights[0, :12] = rng.uniform(1, 2, 12)
    weights /= np.linalg.norm(weights)
    found = site.ask("parts", Array(keys), weights)[1]
    sums = (found["part"] + weights.sum() * found["mean"])[0, 0]
    choices = np.array(list(np.ndindex((2,) * 12)))
    (told,) = np.nonzero(np.abs(choices @ weights[0, :12] - sums) < 1e-9)
    hashes = [hmac.digest(SALT, f"key {i}".encode(), "sha256") for i in range(40)]
    at = [hashes.index(key.tobytes()) for key in keys[:12]]
    assert choices[told].tolist() == [rows[at, 0].tolist()]


# -------------------------------------------------------------------- what a run is given stays


def by(shift, ridge=0.0):
    """By which a tracker fills rows."""
    return 0, MODEL, np.vstack([CENTRE + shift, AXES]), NO_RIDGE + ridge, NO_LIMITS


def filling(shift):
    return np.full((1, 5), 5.0 + shift), COUNT


def about(kind, keys):
    """A question about the rows with these keys."""
    n = len(keys)
    basis = np.linalg.qr(np.random.default_rng(1).standard_normal((n, 2)))[0].T.copy()
    more = {"left_vectors": (), "kernel_part": (np.arange(float(n)),)}
    return Array(keys), *more.get(kind, (basis,))


def kernel(keys, n_columns):
    none, start = np.zeros((1, 40)), np.eye(40)[0]
    return Array(keys), none, none, start, n_columns


TWO = np.concatenate([LOW, LOW + 1])
FILLED_ONCE = "FederatedSubspaceTracker(3, robust=False, batch_size=300, n_iter=1)"
E1, REST = np.eye(40)[:1], np.r_[0, np.ones(39)] / np.sqrt(39)
ADD, TAKE = 0.6 * E1 + 0.8 * REST, 0.6 * E1 - 0.8 * REST  # each of many rows, their sum of one
ONE_LIST = "a run has one list of keys in all its beginnings, got another"
KEYS = "; ".join(
    [
        "{0} *about('{0}', K); keys",  # the run begins anew
        "{0} *about('{0}', K[1:]) ! " + ONE_LIST,
        # as the pages say, another run has another list
        "keys; {0} *about('{0}', K); run 2; keys; {0} *about('{0}', K[1:])",
    ]
)
# Site | questions, one after the other, with the refusal of those that are refused: of two
# thresholds, models, means or lists of keys that one row tells apart, answers would tell the row
GIVEN = table(f"""
begun() | sizes 0, MODEL, limits_of(3.0); sizes 0, MODEL, NO_LIMITS; batch 0;\
 sizes 0, MODEL, limits_of(4.0) ! one set of thresholds of the batches before in all;\
 filled 0, MODEL, MODEL, NO_RIDGE, limits_of(4.0) ! one set of thresholds of the batches before;\
 sizes 0, MODEL + 1, limits_of(3.0) ! one model by which outliers are found
begun(rows=TWO) | filled 0, MODEL, MODEL, NO_RIDGE, limits_of(3.0); batch 1;\
 filled 1, MODEL, MODEL, NO_RIDGE, limits_of(4.0); batch 0 ! batch 0 is out of turn
begun() | low_rank 0, AXES, CENTRE; batch 0;\
 low_rank 0, AXES, CENTRE + 1e-9 ! one mean of the first batch in all its beginnings, got another;\
 low_rank 0, AXES, CENTRE
begun(made(FILLED_ONCE)) | filled *by(0); filled *by(1); filled *by(2) ! a batch has 2 models;\
 batch 0; filled *by(0, ridge=0.1) ! a batch has 2 models that fill rows in all; filled *by(0)
begun(made(FILLED_ONCE.replace("1)", "2)"))) | filled *by(0); filled *by(1); filled *by(2);\
 filled *by(3) ! a batch has 3 models that fill rows in all its beginnings, got another; batch 0
Site(FILL, GAPS) | entries; filled *filling(0); filled *filling(1); entries;\
 filled *filling(2) ! a run has 2 models that fill rows in all its beginnings, got another;\
 entries; filled *filling(3) ! a run has 2 models
Site(FILL, GAPS) | entries; filled *filling(0); entries; filled *filling(0); filled *filling(1)
owner() | parts Array(K), ADD; parts Array(K), TAKE ! more than 1 questions of the kind 'parts';\
 keys ! a run does not begin again after 'parts'
owner() | scores Array(K), ADD;\
 parts Array(K), TAKE ! a run has one set of last vectors in all its beginnings, got another;\
 keys ! a run does not begin again after 'parts'
owner(POWER_2) | {KEYS.format("times_columns")}
owner(POWER_2) | times_columns *about('parts', K); keys; parts *about('parts', K[1:]) ! {ONE_LIST}
owner(made('VerticalFederatedPCA(2, method="merge")')) | {KEYS.format("left_vectors")}
owner(made("VerticalFederatedKernelPCA(2)")) | {KEYS.format("kernel_part")}
owner(KERNELS) | period *kernel(K, 6); period *kernel(K, 7); period *kernel(K, 8);\
 period *kernel(K, 6);\
 period *kernel(K, 9) ! a run has 3 numbers of all columns in all its beginnings, got another;\
 energies Array(K), E1, 9 ! a run has 3 numbers of all columns; period *kernel(K, 8)
""")
POWER_2 = made('VerticalFederatedPCA(2, method="power")')
KERNELS = made("VerticalFederatedKernelPCA(2, aggregation=VFedPCA(n_rounds=4), random_state=0)")


@pytest.mark.parametrize(("of", "questions"), GIVEN)
def test_what_a_run_is_given_stays_in_all_its_beginnings(of, questions):
    found = eval(of)
    site, keys = found if isinstance(found, tuple) else (found, None)
    asked_in_turn(site, questions, globals() | {"K": keys})
