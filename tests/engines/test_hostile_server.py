"""A site and a server that asks what no honest one asks: it refuses, and says why."""

import logging
import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from engines.site_helpers import (
    MEAN,
    ROWS,
    SALT,
    SECURE,
    Array,
    Site,
    V,
    announcing,
    asked_in_turn,
    assert_refused,
    counted_products,
    made,
    sites_of,
    table,
)
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict

from fedpca_sklearn.engines.flower import SecureAggregation, SiteRows, client_app

RNG = np.random.default_rng(3)
POWER = "FederatedPowerPCA(3, n_rounds=4, random_state=0)"
TRACKER = (
    "FederatedSubspaceTracker(2, batch_size=20, random_state=0, n_rounds=4,"
    " init=FirstSubspace(n_rounds=6), "
)
FIRST = {"FederatedPCA(3)": "summary", "DistributedPCA(3)": "factor", POWER: "moments"}
each_first = pytest.mark.parametrize(("code", "kind"), FIRST.items())
OWN = SiteRows(ROWS[:40, :5], keys=range(40), salt=SALT)
W = np.linalg.qr(RNG.standard_normal((40, 3)))[0].T.copy()
U9 = np.linalg.qr(RNG.standard_normal((9, 2)))[0].T.copy()
NO40 = np.zeros((1, 40))
STREAM = sites_of("stream")["east"]
TV = np.linalg.qr(RNG.standard_normal((12, 2)))[0].T.copy()
MODEL, RIDGE = np.vstack([np.zeros(12), TV]), np.array([1.0, 0.1, 0.1])
NONE, ONES = np.zeros(13), np.ones(13)
FILL = np.vstack([np.full(8, 3.0), np.eye(8)[:2]])
SUMS = np.array([360.0, 1e4, 50.0, 30.0])  # rows, their scatter, singular values
THIRDS = np.split(ROWS[:90], 3)
GAPS = ROWS[:80].copy()
GAPS[0, 0] = np.nan  # the sums with and without column 0 differ by this row
ALONE = ROWS[:80].copy()
ALONE[1:, 1] = np.nan
UNWEIGHED = SiteRows(
    np.where(np.arange(80)[:, None] < [20] + [80] * 7, ROWS[:80], np.nan),
    np.r_[1.0, np.zeros(19), np.ones(60)],
)

# Site | estimator | rows | what is asked before | what is answered after a refusal
SITES = table(f"""
power | {POWER} | ROWS | moments | "variances", V, MEAN
steps | {POWER.replace("n_rounds", "local_steps")} | ROWS | moments | "times_scatter", V, MEAN, 4
origin | FederatedPowerPCA(3, center=False) | ROWS | moments | "variances", V, np.zeros(8)
not begun | {POWER} | ROWS | None | None
summary | FederatedPCA(3) | ROWS | None | "summary",
factor | DistributedPCA(3) | ROWS | None | "factor",
factors | DistributedPCA(2) | THIRDS | None | None
summaries | FederatedPCA(2) | THIRDS | None | None
keyed | DistributedPCA(3) | OWN | None | None
few scaled | FederatedScaler() | UNWEIGHED | None | None
light | DistributedPCA(3) | SiteRows(ROWS[:40], np.r_[np.ones(9), np.zeros(31)]) | None | None
lighter | DistributedPCA(3) | SiteRows(ROWS[:40], np.full(40, 1e-3)) | None | None
hetero | FederatedHeteroscedasticPCA(3, n_rounds=3, random_state=0) | ROWS | moments |\
 "scores", 2 * V, MEAN, 1.5
refined | FederatedPCA(3, n_refinements=3) | ROWS | summary | "products", MEAN, V
pairs | FederatedPCA(3, missing=AvailablePairs()) | GAPS | None | None
pairs of few | FederatedPCA(3, missing=AvailablePairs()) | UNWEIGHED | None | None
fill | FederatedPCA(2, missing=ConditionalFill()) | ROWS | None | "filled", FILL, SUMS
fill of few | FederatedPCA(2, missing=ConditionalFill()) | ROWS[:9] | None | None
fill of gaps | FederatedPCA(2, missing=ConditionalFill()) | GAPS | None | None
fill of one | FederatedPCA(2, missing=ConditionalFill()) | ALONE | None | None
new steps | OnlineDistributedPCA(2) | THIRDS | None | None
short steps | OnlineDistributedPCA(2) | [ROWS[:9], ROWS[9:]] | None | None
batches | OnlineDistributedPCA(2) | THIRDS | space 0 | "moments", 0, V
tracker | {TRACKER}robust=False) | STREAM | batch 0 | None
weighted | {TRACKER}robust=False) | SiteRows(STREAM, np.ones(80)) | None | None
robust | {TRACKER}support_threshold=0.5) | STREAM | batch 0 | None
paper | {TRACKER}center=False, forgetting_factor=0.0, fill='subspace') | STREAM | batch 0 | None
auto | {TRACKER}support_threshold='auto') | STREAM | batch 0 | None
altproj | {TRACKER.replace("n_rounds=6", "method='altproj'")}robust=False) | STREAM | batch 0 | None
owner | VerticalFederatedPCA(3, method=PowerRounds(n_rounds=4), random_state=0) | OWN | keys | None
new owner | VerticalFederatedPCA(3, method='power') | OWN | None | None
owner of few | VerticalFederatedPCA(3) | SiteRows(ROWS[:9], keys=range(9), salt=SALT) | None | None
owner without keys | VerticalFederatedPCA(3) | ROWS[:40] | None | None
weighing owner | VerticalFederatedPCA(3) |\
 SiteRows(ROWS[:40], np.ones(40), keys=range(40), salt=SALT) | None | None
agreed | VerticalFederatedPCA(2, method=VFedPCA(n_rounds=2), random_state=0) | OWN | keys | None
kernel | VerticalFederatedKernelPCA(3, kernel="linear", n_landmarks=12) | OWN | keys | None
kernels | VerticalFederatedKernelPCA(2, aggregation=VFedPCA(n_rounds=2), projection='features') |\
 OWN | keys | None
secure owner | VerticalFederatedPCA(3, method='power') | OWN | keys | None
new secure owner | VerticalFederatedPCA(3, method='power') | OWN | None | None
secure steps | OnlineDistributedPCA(3) | ROWS | bounds 0 | None
secure gaps | FederatedPCA(2, missing=ConditionalFill()) | GAPS | None | None
secure pairs | FederatedPCA(3, missing=AvailablePairs()) | ROWS | bounds | None
secure sums | FederatedPCA(3) | ROWS | None | None
secure refined | FederatedPCA(3, n_refinements=3) | ROWS | bounds | None
secure power | {POWER} | ROWS | None | None
secure tracker | {TRACKER}robust=False) | STREAM | batch 0 | None
""")
SITES = {
    name: (code, eval(rows), None if first == "None" else first, eval(honest))
    for name, code, rows, first, honest in SITES
}
# Site | kind of question | what an honest server asks; each argument is changed in each way below
QUESTIONS = table("""
power | times_scatter | basis=V, mean=MEAN, steps=1
power | variances | basis=V, mean=MEAN
steps | times_scatter | basis=V, mean=MEAN, steps=4
hetero | weighted_times_scatter | basis=V, mean=MEAN, steps=1, unit=1.0
hetero | scores | basis_of_any_length=2 * V, mean=MEAN, unit=1.5
hetero | scatter | mean=MEAN
refined | products | mean=MEAN, basis=V
new steps | space | batch=0
batches | moments | batch=0, basis=V
tracker | filled | batch=0, model=MODEL, other=MODEL, ridge=RIDGE, limits=NONE
tracker | times_scatter | batch=0, model=MODEL, other=MODEL, ridge=RIDGE, limits=NONE, basis=TV,\
 mean=MODEL[0]
altproj | low_rank | batch=0, basis=TV, first_mean=MODEL[0]
auto | filled | batch=0, model=MODEL, other=MODEL, ridge=RIDGE, thresholds=ONES
fill | filled | fill=FILL, sums=SUMS
owner | times_columns | keys=Array(K), basis=W
owner | parts | keys=Array(K), basis=W
owner | scores | keys=Array(K), basis=W
kernel | kernel_part | keys=Array(K), landmarks=np.arange(12)
agreed | period | keys=Array(K), deflated=NO40, agreed=NO40, start=W[0]
kernels | period | keys=Array(K), deflated=NO40, agreed=NO40, start=W[0], columns=6.0
kernels | energies | keys=Array(K), vectors=W[:2], columns=6.0
""")
# Argument | what is sent in its place | words of the refusal
WRONG = table(r"""
basis | it + 1e-5; it[[0, 0]]; 0 * it; it * 1e200 | orthonormal rows
basis | it * (1 + 1e-6) | orthonormal rows, they are off by 2.0e-06
basis | it[:, :-1]; it[0]; it[None] | shape (k, {d}
basis | np.eye({d} + 1)[:, :-1] | k <=
basis_of_any_length | np.eye({d}) | k <= 3
basis_of_any_length | it * 2.0**400; -abs(it) * 1e300 | factors must be numbers up to 2.6e+120
mean | np.zeros((200, {d})); it[None]; it[:, None]; 3.0; it[:-1] | the mean must have shape ({d},)
first_mean | np.zeros((200, 12)); it[:-1]; 3.0 | the mean must have shape (12,)
basis | it * np.nan | is NaN or infinity
mean | it * np.nan; it + np.inf | is NaN or infinity
steps | 2.0**53; it + 1; 0; -1; it + 0.5; [it] | local_steps must be {it}
unit | 0.0; -1.0; 1e200; [1.0, 2.0] | the unit must be one number
batch | -1; 0.5; 2.0**53; [0.0] | the number of a batch must be a whole num
batch | np.nan | argument 0 is NaN
model | np.vstack([it, TV[:1]]) | k <= 2
model | it[:, :-1] | the mean must have shape ({d},), got (11,)
other | it[:, :-1] | the mean must have shape ({d},), got (11,)
model | 2 * it | orthonormal rows
other | 2 * it | orthonormal rows
model | it[0] | a model must be a mean
other | it[0] | a model must be a mean
ridge | it[:2] | a model must be a mean
ridge | -it | must not be negative
ridge | 1e13 * it; it + 2.0**1000 | or above 1e+12
limits | ONES | those of the site's own estimator
thresholds | it[:-1]; -it; 3 * it | thresholds must be 0, 1 or 2 and 12 numbers
thresholds | 0 * it | thresholds are needed
thresholds | np.r_[1, -2.0, ONES[:11]]; np.r_[1, -1e-300, ONES[:11]] | numbers of at least 0, or -1
fill | it * [[1], [2], [1]] | orthonormal
fill | it * np.nan | NaN or infinity
fill | it[:, :7]; it[0] | shape
sums | it[:-1] | shape
sums | it * [1, 1, 1e3, 1]; it * [1, -1, 1, 1] | scatter
sums | it * [1, 1, -1, 1]; it[[0, 1, 3, 2]] | singular_values must be
keys | Array(K[::-1].copy()); Array(np.repeat(K[:20], 2, axis=0)) | must be sorted and differ
keys | Array(np.sort(RNG.integers(0, 256, K.shape).astype(np.uint8), axis=0)) | common keys must be
keys | Array(K[:, :16].copy()); Array(K.ravel()) | keys must have shape (n, 32), got
keys | W | argument 0 is
landmarks | np.arange(13); np.zeros(12); it + 0.5; it + 30; 3.0 | landmarks must be 12 different
deflated | np.zeros((3, 40)) | m <= 2
agreed | np.zeros((4, 40)) | m <= 2
agreed | NO40[:, :39] | shape (m, 40)
start | 2 * it | length 1
vectors | 2 * it; it * 1e200 | length 1
vectors | np.eye(3, 40); it[:, :39]; it[0] | vectors must have shape (m, 40), m <= 2
columns | 5.0; 1e300; [5.0] | the number of all columns must be
""")
# what a run has one of, so that an honest server needs another run then
PINNED = {"keys", "first_mean", "model", "other", "ridge", "limits", "thresholds"}
WRONG = [(role, code, why) for role, codes, why in WRONG for code in codes.split("; ")]
# Site and kind of question | arguments | words of the refusal
REFUSED = table(r"""
power times_scatter | np.eye(8)[:4], MEAN, 1 | k <= 3, got (4, 8)
power summary | () | no question of the kind 'summary'
origin times_scatter | V, MEAN, 1 | zero with center=False
summary summary | MEAN, | a question of this kind has 0 arguments, got 1
few scaled moments | () | a column with fewer than min_rows=10
keyed factor | () | the estimator takes no keys
light factor | () | fewer than min_rows=10 rows
lighter factor | () | sample_weight has a sum below 1
pairs pairs | () | fewer than 10 rows have a pair of columns
pairs of few pairs | () | fewer than 10 rows have a pair of columns
fill filled | np.vstack([FILL, np.eye(8)[2:3]]), np.append(SUMS, 1.0) | at most 2 directions
fill of few entries | () | fewer than min_rows=10 rows
fill of gaps entries | () | a column that fewer than min_rows=10 rows have, or have not
fill of gaps filled | FILL, SUMS | a column that fewer than min_rows=10 rows have, or have not
fill of one entries | () | a column that fewer than min_rows=10 rows have, or have not
short steps space | 0, | fewer than min_rows=10
batches moments | 1, V | batch 1 is out of turn
tracker misfits | 0, MODEL, np.vstack([MODEL, TV[:1]]), np.zeros(4), NONE | k <= 2
tracker filled | 0, MODEL, np.zeros((20, 12)), np.zeros(20), NONE | k <= 2
tracker moments | 1, MODEL, MODEL, RIDGE, NONE | batch 1 is out of turn
weighted batch | 0, | the estimator takes no sample_weight
robust filled | 0, MODEL, MODEL, RIDGE, ONES | those of the site's own estimator
robust sizes | 0, MODEL, NONE | finds no thresholds
paper filled | 0, MODEL + 1, MODEL, RIDGE, NONE | zero with center=False
owner times_columns | Array(K[:9]), U9 | fewer than min_rows=10 rows
owner times_columns | Array(K), np.concatenate([W, W[:1]]) | k <= 3
owner parts | Array(K), np.eye(40)[:1] | a row has more than half of its length in the span
owner parts | Array(K), (np.eye(40)[:1] + [[1], [-1]] * np.eye(40)[1]) / np.sqrt(2) |\
 a row has more than half
owner scores | Array(K), np.eye(40)[:1] | a row has more than half of its length in the span
owner of few keys | () | fewer
owner without keys parts | Array(K), W | rows without keys cannot be matched
weighing owner keys | () | the estimator takes no sample_weight
secure owner times_columns | Array(K), W | this site takes part in secure sums only
new secure owner parts | Array(K), W | keys
secure steps space | 0, MEAN[:3] | the mean must have shape
secure steps moments | 0, 2 * V, MEAN | orthonormal
secure steps totals | 0.5, | the number of a batch must be a whole number
secure gaps bounds | () | a column that fewer than min_rows=10 rows have, or have not
secure pairs pairs | np.full(8, 1e9), | takes part in secure sums only
secure pairs pairs | MEAN[:1], | the mean must have shape (8,), got (1,)
secure refined scatter | MEAN[:1], | the mean must have shape (8,), got (1,)
secure sums summary | () | no question of the kind 'summary'
secure sums moments | () | this site takes part in secure sums only
secure power times_scatter | np.eye(3, 8), np.zeros(8), 1 | takes part in secure sums only
secure tracker observed | 0, | secure sums only
""")


def ask_first(site, first):
    kind, *numbers = first.split()
    return site.ask(kind, *map(float, numbers))[1]


def site_of(name, secure=None, **options):
    """A site that has been asked the first question, and the keys that it has sent."""
    code, rows, first, _ = SITES[name]
    secure = secure or (SECURE if "secure" in name else None)
    site = Site(made(code), rows, **options, **({"secure": secure} if secure else {}))
    site.keys = np.zeros((40, 32), np.uint8)
    if first is not None:
        sent = ask_first(site, first)
        site.keys = sent.get("keys", site.keys)
    return site


@pytest.mark.parametrize(("which", "arguments", "why"), REFUSED)
def test_questions_that_no_honest_server_asks_are_refused(which, arguments, why):
    """And nothing is in the way of an honest server then."""
    name, _, kind = which.rpartition(" ")
    site, (*_, first, honest) = site_of(name), SITES[name]
    assert_refused(site, kind, *eval(arguments, globals() | {"K": site.keys}), why=why)
    if honest is not None:  # a run begins anew
        assert first is None or ask_first(site, first)
        assert site.answers(*honest)


@pytest.mark.parametrize(("name", "kind", "honest"), QUESTIONS)
def test_an_argument_that_no_honest_server_sends_is_refused_without_a_product(
    name, kind, honest, monkeypatch
):
    products = counted_products(monkeypatch)
    first, tried, site = SITES[name][2], set(), site_of(name)
    asked = list(eval(f"dict({honest})", globals() | {"K": site.keys}).values())
    for given in (asked[:-1], [*asked, 1.0]):
        why = f"has {len(asked)} arguments, got {len(given)}"
        assert_refused(site_of(name), kind, *given, why=why)
    for role, code, why in WRONG:
        site = site_of(name)
        names = globals() | {"K": site.keys}
        asked = eval(f"dict({honest})", names)
        if role not in asked:
            continue
        it, (k, d) = asked[role], (*np.shape(asked[role]), 0, 0)[:2]
        d = k if role == "mean" else d
        sizes = {"it": it, "k": k, "d": d}
        wrong = eval(code.format(**sizes), names | {"it": it})
        products.clear()
        assert_refused(site, kind, *(asked | {role: wrong}).values(), why=why.format(**sizes))
        assert products == []
        if role in tried:
            continue
        tried.add(role)
        site.context.run_id += role in PINNED or kind in ("scores", "parts")
        assert first is None or ask_first(site, first)
        assert site.answers(kind, *asked.values()), (role, code)
        assert products or kind != "times_scatter"  # which are counted
    assert tried


ARRAYS = [
    *map(announcing, [(2**40,), (2**20, 2**20, 2**20), (-1, -2), (2, 10**5000), (2,) * 5000]),
    *(announcing((2,), kind) for kind in ("|O", "[('a', '<f4'), ('b', '<f4')]", ">f8", "float64")),
    announcing((0, 8), data=b""),
    announcing((2,), data=bytes(15)),
    *(announcing((1,), data=data) for data in (b"junk", b"")),
    *map(Array, [MEAN.astype(np.float32), np.arange(8), MEAN.astype(complex)]),
    Array(np.array(["a"] * 8)),
]


@pytest.mark.parametrize("array", ARRAYS)
def test_arrays_that_are_none_are_refused_without_memory_for_them(array):
    sites = [site_of("power"), site_of("power")]
    tracemalloc.start()
    for i, site in enumerate(sites):
        arguments = [V, MEAN]
        arguments[i] = array
        assert_refused(site, "variances", *arguments, why=f"argument {i} is")
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def test_a_number_of_columns_takes_no_memory():
    """Of a kernel the number of all columns is a scale; no site has so many."""
    site, n = site_of("kernels"), 40
    keys = Array(site.keys)
    tracemalloc.start()
    assert site.answers("period", keys, NO40, NO40, np.eye(n)[0], 2.0**40)
    assert site.answers("energies", keys, np.eye(n)[:1], 2.0**52)
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def test_records_and_kinds_that_are_none():
    for kind in ("rows", "message", "", "x" * 2**20):
        why = f"the estimator has no question of the kind {kind[:300]!r}"[:300]
        assert_refused(site_of("power"), kind, why=why)
    for kind in (7, [b"a", b"b"]):
        config = {"kind": kind, "nonce": "once"}
        said = site_of("power").stated | config
        assert_refused(site_of("power"), "", config=said, why="no question of the kind")
    assert_refused(site_of("power"), "variances", arguments=None, why="has 2 arguments, got 0")
    names = ArrayRecord({f"{i}x": Array(np.ones(1)) for i in range(2)})
    assert_refused(site_of("power"), "variances", arguments=names, why="has 2 arguments, got 2")


@each_first
def test_a_site_with_few_rows_answers_nothing(code, kind):
    for n in (1, 2, 9):
        assert_refused(Site(made(code), ROWS[:n]), kind, why="fewer than min_rows=10 rows")
    assert Site(made(code), ROWS[:10]).answers(kind)
    assert Site(made(code), ROWS[:2], min_rows=2).answers(kind)
    assert_refused(Site(made(code), min_rows=201), kind, why="fewer than min_rows=201 rows")


def test_weights_whose_sum_is_one_are_enough():
    rows = SiteRows(ROWS[:64], np.full(64, 1 / 64))
    assert Site(made("DistributedPCA(3)"), rows).answers("factor")


def test_an_estimator_inside_that_forgets_counts_enough_rows():
    for factor, rows in ((0.5, None), (0.99, ROWS), (1.0, ROWS[:10])):
        inside = made(f"FederatedPCA(2, estimator=StreamingPCA(2, forgetting_factor={factor}))")
        if rows is not None:
            assert Site(inside, rows).answers("summary")
        else:
            why = "the estimator forgets all but fewer than min_rows=10 rows"
            assert_refused(Site(inside), "summary", why=why)


# -------------------------------------------------------------------- number of questions

# Site | kind | arguments | how often it is answered
COUNTED = table("""
power | times_scatter | V, MEAN, 1 | 4
power | variances | V, MEAN | 1
hetero | scores | 2 * V, MEAN, 1.5 | 3
fill | filled | FILL, SUMS | 3
batches | moments | 0, V | 1
tracker | filled | 0, MODEL, MODEL, RIDGE, NONE | 4
tracker | moments | 0, MODEL, MODEL, RIDGE, NONE | 2
tracker | variances | 0, MODEL, MODEL, RIDGE, NONE, TV, MODEL[0] | 2
auto | sizes | 0, MODEL, ONES | 2
owner | times_columns | Array(K), W | 4
owner | scores | Array(K), W | 1
owner | parts | Array(K), W | 1
agreed | period | Array(K), NO40, NO40, W[0] | 4
""")


@pytest.mark.parametrize(("name", "kind", "arguments", "times"), COUNTED)
def test_questions_of_a_run_are_counted(name, kind, arguments, times):
    site, asked = site_of(name), f"{kind} {arguments}"
    more = f"2x {asked} ! more than {times} questions of the kind {kind!r}"
    asked_in_turn(site, f"{times}x {asked}; {more}", globals() | {"K": site.keys})


OTHER = np.nextafter(MEAN, np.inf)
IN_TURN = "; ".join(
    [
        *("{0} 0", "{0} 2 ! batch 2 is out of turn, the last one was 0", "{0} 1"),
        *("{0} 0 ! batch 0 is out of turn, the last one was 1", "2x {0} 1"),
        *("{0} 1 ! a batch begins again at most 2 times", "{0} 2", "{0} 3"),
    ]
)
# Site | questions, one after the other, with the refusal of those that are refused
RUNS = table(f"""
power | 3x times_scatter V, MEAN, 2 ! local_steps; times_scatter V, MEAN, 1;\
 times_scatter V, MEAN, 1 ! more than 4 questions
power | 2x moments; 2x moments ! a run begins again at most 2 times; run 2**64 - 1; moments
summary | 3x summary; 2x summary ! a run begins again at most 2 times; run 2**64 - 1; summary
factor | 3x factor; 2x factor ! a run begins again at most 2 times; run 2**64 - 1; factor
not begun | times_scatter V, MEAN, 1; moments; times_scatter V, MEAN + 1, 1; moments;\
 times_scatter V, MEAN + 2, 1; moments ! at most 2 times; times_scatter V, MEAN + 3, 1 ! argument 1
factors | factor; factor_of_batch 0; factor; factor_of_batch 1; factor; factor_of_batch 2;\
 factor ! a run begins again at most 2 times
power | times_scatter V, MEAN, 1; times_scatter V, OTHER, 1 ! argument 1 must stay the same;\
 moments; times_scatter V, OTHER, 1; variances V, MEAN ! argument 1 must stay the same
power | variances V, MEAN; times_scatter V, OTHER, 1 ! argument 1 must stay the same
refined | products MEAN, V; products OTHER, V ! must stay the same
factors | {IN_TURN.format("factor_of_batch")}
summaries | {IN_TURN.format("summary_of_batch")}
new steps | {IN_TURN.format("space")}
new steps | space 2
""")


@pytest.mark.parametrize(("name", "questions"), RUNS)
def test_questions_are_answered_in_turn_about_one_mean_and_so_many_times(name, questions):
    """Else there would be a fourth mean in a run, and as many products with it."""
    asked_in_turn(site_of(name), questions, globals())


def test_how_often_a_fit_of_secure_sums_begins_again_is_the_owners():
    once = SecureAggregation(threshold=2, restarts=0)
    for name, kind, *batch in (
        ("secure owner", "keys"),
        ("secure pairs", "bounds"),
        ("secure tracker", "batch", 0),
    ):
        site = site_of(name, once)
        assert_refused(site, kind, *batch, why="begins again at most 0 times")
    assert site.answers("batch", 1)
    assert_refused(site, "batch", 0, why="batch 0 is out of turn")


def test_what_the_function_of_the_rows_keeps_between_questions_is_its_own():
    def load(context):
        before = context.state.config_records.get("mine", {"loads": 0})
        context.state["mine"] = ConfigRecord({"loads": before["loads"] + 1})
        return ROWS

    site = Site(made("FederatedPCA(3)"))
    site.app = client_app(load, made("FederatedPCA(3)"))
    for run in (1, 2, 3):
        site.context.run_id = run
        assert site.answers("summary")
    assert dict(site.context.state["mine"]) == {"loads": 3}


def test_the_state_of_a_site_is_small_and_can_be_stored():
    site = Site(made(POWER))
    for _ in range(300):
        site.ask("times_scatter", V, MEAN, 1)
    state = site.context.state
    stored = {name: type(record).inflate(record.deflate()) for name, record in state.items()}
    assert stored == dict(state.items())
    assert sum(len(record.deflate()) for record in state.values()) < 1000


def test_the_noise_of_a_round_follows_from_the_round_before_in_the_same_fit():
    def scores(site, factors=2 * V):
        return site.ask("scores", factors, MEAN, 1.5)[1]["message"]

    site, other = site_of("hetero"), site_of("hetero")
    first, second = scores(site), scores(site, 2.2 * V)
    np.testing.assert_array_equal(scores(other), first)
    np.testing.assert_array_equal(scores(other), first)  # a question that came twice
    np.testing.assert_array_equal(scores(other, 2.2 * V), second)
    assert np.abs(second - scores(site_of("hetero"), 2.2 * V)).max() > 1e-6  # which kept nothing
    assert site.answers("moments")  # a fit that begins again
    np.testing.assert_array_equal(scores(site), first)


# -------------------------------------------------------------------- nonces, texts and keys


@pytest.mark.parametrize("nonce", [None, "", "x" * 65, 7, b"bytes", ["list"]])
def test_a_question_without_a_nonce_is_refused(nonce):
    why = "needs a nonce of 1 to 64 characters"
    assert_refused(Site(made(POWER)), "moments", nonce=nonce, why=why)


def test_an_answer_carries_the_nonce_of_its_question():
    site = Site(made(POWER))
    assert site.ask("moments", nonce="first")[0]["nonce"] == "first"
    assert site.ask("times_scatter", V, MEAN, 2, nonce="second")[0]["nonce"] == "second"


@each_first
def test_an_exception_does_not_tell_what_is_in_the_rows(code, kind, caplog):
    rows = np.array([["Ann Smith HIV+", "1.0"]] * 20, dtype=object)
    config, sent = Site(made(code), rows).ask(kind)
    assert sent == {}
    assert "Ann" not in repr(config)
    said, reference = config["error"].split(" in the log")[0].split(", ")
    assert said == "ValueError"
    (record,) = [record for record in caplog.records if record.name == "fedpca_sklearn"]
    assert record.levelno == logging.ERROR
    assert reference in record.getMessage()
    assert "Ann Smith HIV+" in str(record.exc_info[1])


def test_an_exception_of_the_function_that_names_the_site_tells_its_kind():
    def name(context):
        raise KeyError("Ann Smith HIV+")

    config, _ = Site(made(POWER), site=name).ask("moments")
    assert config["error"].startswith("KeyError, ")
    assert "Ann" not in repr(config)


def test_a_refusal_is_in_the_log_of_the_site(caplog):
    Site(made(POWER), run=12).ask("times_scatter", V, MEAN, 2)
    (record,) = [record for record in caplog.records if record.name == "fedpca_sklearn"]
    assert record.levelno == logging.WARNING
    said = "Refused a question 'times_scatter' of run 12: local_steps must be 1"
    assert record.getMessage() == said


NAMES = [f"Ann Smith {i}" for i in range(40)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"keys": [*NAMES[:-1], NAMES[0]]}, "refused: keys must differ, and some come more"),
        ({"keys": [*range(39), "38"]}, "refused: keys must differ"),
        ({"keys": [*NAMES[:-1], None]}, "ValueError"),
        ({"keys": [*range(39), np.nan]}, "ValueError"),
        ({"keys": [*range(39), 1.5]}, "ValueError"),
        ({"keys": NAMES[:-1]}, "ValueError"),
        ({"keys": None}, "refused: rows without keys cannot be matched"),
        ({"salt": None}, "refused: the salt of the keys must have 16 bytes at least"),
        ({"salt": "short"}, "refused: the salt of the keys must have 16 bytes at least"),
        ({"X": sp.csr_array(ROWS[:40])}, "TypeError"),
        ({"X": np.c_[ROWS[:40, :1], np.full(40, np.nan)]}, "ValueError"),
    ],
)
def test_keys_and_salts_that_are_none_end_in_an_error_without_names(changes, why, caplog):
    caplog.set_level(logging.WARNING, "fedpca_sklearn")
    rows = SiteRows(**({"X": ROWS[:40], "keys": NAMES, "salt": SALT} | changes))
    config, sent = Site(made(SITES["owner"][0]), rows).ask("keys")
    assert sent == {}
    assert config["error"].startswith(why)
    assert "Ann" not in repr(config)
    assert "Ann" not in caplog.text


def test_a_salt_from_the_server_is_refused():
    site = Site(made(SITES["owner"][0]), OWN)
    for salt in (SALT, SALT.decode()):
        site.context = Context(1, 5, {"site": "north"}, RecordDict(), {"salt": salt, "n": [3]})
        assert_refused(site, "keys", why="the salt of the keys comes from the server")


def test_hashed_keys_tell_nothing_without_the_salt():
    def hashed(keys, salt):
        site = Site(made(SITES["owner"][0]), SiteRows(ROWS[:40], keys=keys, salt=salt))
        return {row.tobytes() for row in site.ask("keys")[1]["keys"]}

    first = hashed(range(40), SALT)
    assert not first & hashed(range(40), SALT[::-1])
    assert first == hashed([str(i) for i in range(40)], SALT.decode())
    assert hashed([f"\xe9{i}" for i in range(40)], SALT) == hashed(
        [f"e\u0301{i}" for i in range(40)], SALT
    )
