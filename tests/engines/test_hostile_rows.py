"""Questions that read rows: what a server gives a site, it keeps to, whatever begins anew."""

import os

import numpy as np
import pytest
import scipy.sparse as sp

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from flwr.app import Array
from test_flower import assert_same, grid_of, without
from test_hostile_server import Site, assert_refused

from fedpca_sklearn import (
    ConditionalFill,
    FederatedPCA,
    FederatedSubspaceTracker,
    Subspace,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
    VFedPCA,
    subspace_distance,
)
from fedpca_sklearn.engines.flower import SitePolicy, SiteRows, fit_sites

RNG = np.random.default_rng(0)
N, D, K = 300, 5, 3
ROWS = RNG.standard_normal((N, K)) @ RNG.standard_normal((K, D)) * 2
ROWS = np.round(ROWS + RNG.standard_normal((N, D)) + 5, 3)
MEAN, T = ROWS.mean(axis=0), K  # the column whose threshold is searched
AXES = np.eye(D)[:K]
MODEL, NO_RIDGE, AXIS = np.vstack([MEAN, AXES]), np.zeros(K + 1), np.eye(D)[[T]]
HOLES = ROWS.copy()
HOLES[20:32, 1] = np.nan
AUTO = FederatedSubspaceTracker(K, robust=True, batch_size=N, random_state=0)
FILL = FederatedPCA(2, missing=ConditionalFill(n_rounds=1))


def is_a_row(difference, rows=ROWS, mean=MEAN, columns=slice(None)):
    """Whether a vector has the direction of a single centred row, or of a row, to 1e-6."""
    size = np.linalg.norm(difference[columns])
    if not size:
        return False
    for Z in (rows, rows - mean):
        Z = Z[:, columns]
        cosines = Z @ difference[columns] / (size * np.linalg.norm(Z, axis=1))
        if np.abs(cosines).max() > 1 - 1e-6:
            return True
    return False


# -------------------------------------------------------------------- thresholds of outliers


def limits_of(t, mode=1):
    """Thresholds that no entry exceeds, but in one column."""
    limits = np.full(1 + D, 1e6)
    limits[0], limits[1 + T] = mode, t
    return limits


def answers_by(site, t, mode=1, model=MODEL):
    """Sum of the rows, and their products with a column, by a threshold in a new beginning."""
    if not site.answers("batch", 0):
        return None
    question = (0, MODEL, model, NO_RIDGE, limits_of(t, mode))
    total = site.ask("moments", *question)[1]
    product = site.ask("times_scatter", *question, AXIS, MEAN)[1]
    if not (total and product):
        return None
    return total["message"], product["message"][0]


@pytest.mark.parametrize("mode", [1, 2])
def test_a_server_that_searches_for_a_threshold_does_not_read_a_row(mode):
    """Of two thresholds, one of which one row alone exceeds, the answers differ by this row."""
    low, high = 0.0, 4 * np.abs(ROWS[:, T] - MEAN[T]).max()
    stolen = []
    for run in range(1, 41):
        site, middle = Site(AUTO, ROWS, run=run), (low + high) / 2
        without_outliers, by_threshold = (answers_by(site, t, mode) for t in (1e6, middle))
        assert without_outliers is not None
        if by_threshold is None:
            why = "a batch has one set of thresholds in all its beginnings, got another"
            question = (0, MODEL, MODEL, NO_RIDGE, limits_of(middle, mode))
            assert_refused(site, "moments", *question, why=why)
            break
        total, product = (a - b for a, b in zip(without_outliers, by_threshold, strict=True))
        if np.abs(product).max() > 1e-9:
            low, found = middle, product / total[T]
            stolen.append(found)
        else:
            high = middle
    assert not any(map(is_a_row, stolen)), "a row is read"
    assert answers_by(site, 1e6, mode) is not None  # the first ones, in the last beginning
    assert not site.answers("batch", 0)


def test_thresholds_of_the_batches_before_are_one_set_in_all_questions():
    site = Site(AUTO, ROWS)
    assert site.answers("batch", 0)
    assert site.answers("sizes", 0, MODEL, limits_of(3.0))
    assert site.answers("sizes", 0, MODEL, np.zeros(1 + D))  # without any
    assert site.answers("batch", 0)
    why = "a batch has one set of thresholds of the batches before in all its beginnings"
    assert_refused(site, "sizes", 0, MODEL, limits_of(4.0), why=why)
    question = (0, MODEL, MODEL, NO_RIDGE)
    assert_refused(site, "filled", *question, limits_of(4.0), why=why)
    assert_refused(
        site, "sizes", 0, MODEL + 1, limits_of(3.0), why="one model by which outliers are found"
    )


def test_a_new_batch_has_thresholds_of_its_own():
    site = Site(AUTO, np.concatenate([ROWS, ROWS + 1]))
    for batch, t in ((0, 3.0), (1, 4.0)):
        assert site.answers("batch", batch)
        assert site.answers("filled", batch, MODEL, MODEL, NO_RIDGE, limits_of(t))
    assert not site.answers("batch", 0)


def test_the_mean_of_the_first_batch_stays():
    site = Site(AUTO, ROWS)
    assert site.answers("batch", 0)
    assert site.answers("low_rank", 0, AXES, MEAN)
    assert site.answers("batch", 0)
    why = "a batch has one mean of the first batch in all its beginnings, got another"
    assert_refused(site, "low_rank", 0, AXES, MEAN + 1e-9, why=why)
    assert site.answers("low_rank", 0, AXES, MEAN)


def test_the_first_batch_has_the_rank_of_the_sites_own_estimator():
    """What counts as an outlier does not follow from how many directions are asked about."""
    rows = ROWS.copy()
    rows[::50, 2] += 200.0
    site = Site(AUTO, rows)
    assert site.answers("batch", 0)
    V = np.linalg.qr(RNG.standard_normal((D, K)))[0].T.copy()
    products, alone = (site.ask("low_rank", 0, B, MEAN)[1]["message"] for B in (V, V[:1]))
    np.testing.assert_allclose(alone[0], products[0], rtol=1e-9)


@pytest.mark.parametrize("n_iter", [1, 2])
def test_a_tracker_fills_a_batch_by_as_many_models_as_a_fit_has(n_iter):
    estimator = FederatedSubspaceTracker(K, robust=False, batch_size=N, n_iter=n_iter)
    site, none = Site(estimator, ROWS), np.zeros(1 + D)
    models = [np.vstack([MEAN + shift, AXES]) for shift in range(n_iter + 2)]
    assert site.answers("batch", 0)
    for model in models[: n_iter + 1]:
        assert site.answers("filled", 0, MODEL, model, NO_RIDGE, none)
    why = f"a batch has {n_iter + 1} models that fill rows in all its beginnings, got another"
    assert_refused(site, "filled", 0, MODEL, models[-1], NO_RIDGE, none, why=why)
    assert site.answers("batch", 0)
    assert_refused(site, "filled", 0, MODEL, models[0], NO_RIDGE + 0.1, none, why=why)
    assert site.answers("filled", 0, MODEL, models[0], NO_RIDGE, none)


# What the pages say is not protected from, so that it is said no longer than it is true.


def test_within_the_rules_a_row_that_alone_is_an_outlier_is_told_by_two_models():
    """All but the entry that is one."""
    sizes = np.sort(np.abs(ROWS[:, T] - MEAN[T]))
    t, i = sizes[-2:].mean(), int(np.argmax(np.abs(ROWS[:, T] - MEAN[T])))
    other = MODEL.copy()
    other[0, T] += 1.0
    site = Site(AUTO, ROWS)
    found = [answers_by(site, t, model=model) for model in (MODEL, other)]
    told = found[1][1] - found[0][1]
    others = np.arange(D) != T
    np.testing.assert_allclose(told[others], (ROWS[i] - MEAN)[others], atol=1e-9)


def test_two_runs_with_thresholds_that_differ_tell_a_row():
    sizes = np.sort(np.abs(ROWS[:, T] - MEAN[T]))
    i = int(np.argmax(np.abs(ROWS[:, T] - MEAN[T])))
    found = [
        answers_by(Site(AUTO, ROWS, run=run), t) for run, t in ((1, 1e6), (2, sizes[-2:].mean()))
    ]
    total, product = (a - b for a, b in zip(*found, strict=True))
    np.testing.assert_allclose(product / total[T], ROWS[i] - MEAN, atol=1e-9)


def test_within_the_rules_a_server_learns_sums_of_the_entries_that_are_there():
    estimator = FederatedSubspaceTracker(K, robust=False, batch_size=N)
    site = Site(estimator, HOLES)
    assert site.answers("batch", 0)
    message = site.ask("observed", 0)[1]["message"]
    expected = [*np.nansum(HOLES, axis=0), *np.isfinite(HOLES).sum(axis=0), N]
    np.testing.assert_allclose(message, expected)


def test_within_the_rules_a_server_learns_how_many_entries_exceed_a_threshold():
    """Of each column, once a batch: what remains are sums of logarithms over many rows."""
    sizes = np.sort(np.abs(ROWS[:, T] - MEAN[T]))
    site = Site(AUTO, ROWS)
    assert site.answers("batch", 0)
    told = [site.ask("sizes", 0, MODEL, limits)[1]["message"] for limits in (np.zeros(1 + D),)]
    told.append(site.ask("sizes", 0, MODEL, limits_of(sizes[-8:-6].mean()))[1]["message"])
    assert [len(message) for message in told] == [2 * D + 3] * 2
    assert (told[0] - told[1])[D + T] == 7


def test_within_the_rules_a_server_learns_the_scatter_of_the_first_batch_without_outliers():
    """By bases of its choice, d / k questions; rows of low rank have few entries taken out."""
    rows = RNG.standard_normal((N, K)) @ RNG.standard_normal((K, D))
    site = Site(AUTO, rows)
    assert site.answers("batch", 0)
    asked = [site.ask("low_rank", 0, B, np.zeros(D)) for B in np.split(np.eye(D), [K])]
    scatter = np.concatenate([arrays["message"] for _, arrays in asked])
    assert np.linalg.norm(scatter - rows.T @ rows) < 0.02 * np.linalg.norm(rows.T @ rows)


# -------------------------------------------------------------------- models of a fill

COUNT = [float(N), 1e6]


def filled_by(site, shift):
    """Scatter of the rows about their mean, where holes of a column are filled by a value."""
    mean = np.full((1, D), 5.0)
    mean[0, 1] += shift
    found = site.ask("filled", mean, COUNT)[1]
    if not found:
        return None
    summary = Subspace.from_bytes(found["summary"].astype(np.uint8))
    return (summary.components.T * summary.singular_values**2) @ summary.components


def test_a_run_has_as_many_models_as_a_fit():
    """However often it begins; those of before are answered again."""
    site, answered = Site(FILL, HOLES), 0
    for beginning in range(3):
        assert site.answers("entries")
        for step in range(2):
            answered += filled_by(site, 10.0 * beginning + step) is not None
    assert answered == 2
    site = Site(FILL, HOLES)
    for _ in range(2):
        assert site.answers("entries")
        assert filled_by(site, 0.0) is not None
    assert filled_by(site, 1.0) is not None
    assert site.answers("entries")
    mean = np.full((1, D), 9.0)
    why = "a run has 2 models that fill rows in all its beginnings, got another"
    assert_refused(site, "filled", mean, COUNT, why=why)


def test_within_the_rules_two_models_tell_the_sum_over_the_rows_with_a_hole():
    site = Site(FILL, HOLES)
    told = (filled_by(site, 1e3) - filled_by(site, 0.0))[1] / 1e3
    others = [0, 2, 3, 4]
    expected = (HOLES[20:32] - HOLES.mean(axis=0)).sum(axis=0)
    np.testing.assert_allclose(told[others], expected[others], rtol=1e-8)
    assert not is_a_row(told, columns=others)


# -------------------------------------------------------------------- the owner's least rows


def test_patterns_of_few_rows_are_refused_where_the_owner_says_so():
    mean = np.full((1, D), 5.0)
    sparse = sp.csr_array(HOLES)
    few = HOLES.copy()
    few[20, 2] = np.nan
    few[40:60, 2] = np.nan
    for rows, least, answered in (
        (HOLES, 12, True),
        (HOLES, 13, False),
        (sparse, 12, True),
        (sparse, 13, False),
        (few, 12, False),  # one row lacks both columns, each of which enough rows lack
        (few, None, True),
        (ROWS, 300, True),
    ):
        policy = SitePolicy(min_rows_of_pattern=least)
        for kind, question in (("entries", ()), ("filled", (mean, COUNT))):
            site = Site(FILL, rows, policy=policy)
            if answered:
                assert site.answers(kind, *question)
            else:
                why = f"a pattern of missing entries that fewer than min_rows_of_pattern={least}"
                assert_refused(site, kind, *question, why=why)


def test_the_rows_of_a_tracker_have_patterns_too():
    whole = FederatedSubspaceTracker(K, robust=False, batch_size=N)
    question, none = (0, MODEL, MODEL, NO_RIDGE), np.zeros(1 + D)
    asked = {
        "observed": (0,),
        "filled": (*question, none),
        "misfits": (*question, none),
        "moments": (*question, none),
        "times_scatter": (*question, none, AXIS, MEAN),
        "variances": (*question, none, AXIS, MEAN),
    }
    for kind, arguments in asked.items():
        for least in (12, 13):
            site = Site(whole, HOLES, policy=SitePolicy(min_rows_of_pattern=least))
            assert site.answers("batch", 0)
            assert site.answers(kind, *arguments) == (least == 12)


def test_outliers_are_holes_to_the_owner():
    """One threshold that one row alone exceeds: no model is filled by."""
    t = np.sort(np.abs(ROWS[:, T] - MEAN[T]))[-2:].mean()
    site = Site(AUTO, ROWS, policy=SitePolicy(min_rows_of_pattern=10))
    assert site.answers("batch", 0)
    question = (0, MODEL, MODEL, NO_RIDGE, limits_of(t))
    why = "a pattern of missing entries that fewer than min_rows_of_pattern=10 rows have"
    assert_refused(site, "sizes", 0, MODEL, limits_of(t), why=why)
    for kind, more in (("filled", ()), ("moments", ()), ("times_scatter", (AXIS, MEAN))):
        assert_refused(site, kind, *question, *more, why=why)
    site = Site(AUTO, ROWS, policy=SitePolicy(min_rows_of_pattern=10))
    assert answers_by(site, 1e6) is not None


def test_a_fit_whose_patterns_have_enough_rows():
    parts = {name: ROWS[i::3].copy() for i, name in enumerate(("east", "north", "west"))}
    for rows in parts.values():
        rows[:20, 1] = rows[20:40, 2] = np.nan
    labels = np.repeat(list(parts), [len(rows) for rows in parts.values()])
    expected = FederatedPCA(2, missing=ConditionalFill())
    expected.fit(np.concatenate(list(parts.values())), clients=labels)
    policy = SitePolicy(min_rows_of_pattern=15)
    grid = grid_of(expected, parts, policy=policy)
    assert_same(fit_sites(grid, expected, wait=0), expected)


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "ten", True])
def test_least_rows_that_are_none(wrong):
    with pytest.raises((TypeError, ValueError), match="min_rows_of_pattern"):
        SitePolicy(min_rows_of_pattern=wrong)


# -------------------------------------------------------------------- keys

SALT = b"0123456789abcdef of the owners"
OWN = SiteRows(ROWS[:40], keys=range(40), salt=SALT)
COLUMNS = [
    (VerticalFederatedPCA(2, method="power"), "times_columns"),
    (VerticalFederatedPCA(2, method="merge"), "left_vectors"),
    (VerticalFederatedKernelPCA(2), "kernel_part"),
]


@pytest.mark.parametrize(("estimator", "kind"), COLUMNS, ids=[kind for _, kind in COLUMNS])
def test_a_run_has_one_list_of_keys(estimator, kind):
    """Of two lists that differ by one key, what the site sends tells that row."""

    def question(keys):
        n = len(keys)
        U = np.linalg.qr(np.random.default_rng(1).standard_normal((n, 2)))[0].T.copy()
        arguments = {"times_columns": (U,), "kernel_part": (np.arange(float(n)),)}
        return (Array(keys), *arguments.get(kind, ()))

    site = Site(estimator, OWN)
    keys = site.ask("keys")[1]["keys"]
    assert site.answers(kind, *question(keys))
    assert site.answers("keys")  # the run begins anew
    why = "a run has one list of keys in all its beginnings, got another"
    assert_refused(site, kind, *question(keys[1:]), why=why)
    assert site.answers("keys")
    assert site.answers(kind, *question(keys))
    site.context.run_id = 2  # as the pages say, another run has another list
    assert site.answers("keys")
    assert site.answers(kind, *question(keys[1:]))


def test_a_run_has_few_kernels():
    """The number of all columns, by which a kernel is scaled, is one for each beginning."""
    estimator = VerticalFederatedKernelPCA(2, aggregation=VFedPCA(n_rounds=4), random_state=0)
    site = Site(estimator, OWN)
    keys = Array(site.ask("keys")[1]["keys"])
    none, start = np.zeros((1, 40)), np.eye(40)[0]
    for n_columns in (6, 7, 8, 6):
        assert site.answers("period", keys, none, none, start, n_columns)
    why = "a run has 3 numbers of all columns in all its beginnings, got another"
    assert_refused(site, "period", keys, none, none, start, 9, why=why)
    assert_refused(site, "energies", keys, start[None], 9, why=why)
    assert site.answers("period", keys, none, none, start, 8)


@pytest.mark.parametrize(("kind", "n"), [("keys", 60), ("times_columns", 50)])
def test_keys_stay_those_of_an_owner_that_is_lost(kind, n):
    """Once they were sent; an owner that is lost before has no part in them."""
    parts = {"bank": ROWS[:60, :2], "clinic": ROWS[:60, 2:4], "shop": ROWS[:50, 4:]}
    owned = {name: SiteRows(X, keys=range(len(X)), salt=SALT) for name, X in parts.items()}
    estimator = VerticalFederatedPCA(2, method="power", random_state=0)
    grid = grid_of(estimator, owned, without("shop", kind, "timeout"))
    with pytest.warns(UserWarning, match="Fitted without site '(shop|node 3)'"):
        fitted = fit_sites(grid, estimator, wait=0)
    pooled = FederatedPCA(2).fit(ROWS[:n, :4], clients=np.zeros(n))
    assert subspace_distance(fitted.components_, pooled.components_) < 1e-6
    assert fitted.n_rows_left_out_ == {"bank": 60 - n, "clinic": 60 - n}
