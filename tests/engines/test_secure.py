"""Secure sums over Flower: who may be lost, what the server receives, and what they cost."""

import numpy as np
import pytest
from engines.secure_helpers import Server, pem_pair
from engines.site_helpers import (
    LABELS,
    PARTS,
    ROWS,
    SECURE,
    Site,
    arrays_of,
    assert_refused,
    assert_same,
    fit,
    grid_of,
    here,
    in_one_process,
    kind_of,
    lost,
    made,
    sites_of,
    table,
)
from helpers import arrays_in
from sklearn.base import clone

from fedpca_sklearn import FixedPointChannel, Subspace, make_power_law, subspace_distance
from fedpca_sklearn.engines import _estimators, _secure_sum, _sites
from fedpca_sklearn.engines._estimators import secure_tasks
from fedpca_sklearn.engines._secure import Bounds, Grid
from fedpca_sklearn.engines._secure_sum import Session
from fedpca_sklearn.engines.flower import RefusedError, SecureAggregation, fit_sites
from fedpca_sklearn.summary import PairMoments

CODE, ROUNDS = "FederatedPCA(2)", "FederatedPowerPCA(2, random_state=0)"
PCA_2, POWER = made(CODE), made(ROUNDS)
PAIRS = made("FederatedPCA(3, missing=AvailablePairs())")
FILLS = made("FederatedPCA(3, missing=ConditionalFill(3))")
TRACKER = made(
    "FederatedSubspaceTracker(2, batch_size=20, random_state=0, n_rounds=1,"
    " init=FirstSubspace(n_rounds=2),"
    " support_threshold='auto', detect_changes=ChangeDetection(2))"
)
PLAIN = clone(TRACKER).set_params(robust=False, support_threshold=0.5, detect_changes=False)


def assert_pca(found, *sites):
    assert_same(found, in_one_process(CODE, "rows", *sites), 1e-6)


# -------------------------------------------------------------------- what the server receives


class Totals:
    """What each site adds to a sum, as numbers and integers, and the integers of the sum."""

    def __init__(self, monkeypatch):
        self.sums, self._new = [], []
        encode, unmasked = Grid.encode, Session.unmasked

        def recorded(grid, numbers, *more):
            words = encode(grid, numbers, *more)
            self._new.append((np.array(numbers, dtype=np.float64).ravel(), words))
            return words

        def summed(session, masked):
            total = unmasked(session, masked)
            per_site = np.split(np.arange(len(self._new)), len(masked))
            self.sums.append(([[self._new[i] for i in at] for at in per_site], total))
            self._new = []
            return total

        monkeypatch.setattr(Grid, "encode", recorded)
        monkeypatch.setattr(Session, "unmasked", summed)


@pytest.mark.parametrize("estimator", [PCA_2, made("DistributedPCA(3)"), POWER, TRACKER])
def test_nothing_that_the_server_holds_is_of_one_site(estimator, monkeypatch):
    """Sums bit by bit, and neither numbers nor integers of a site, in what arrives or is kept."""
    received, kept, begin = [], [], _sites.SecureSums.__init__

    def init(self, *arguments):
        kept.append(self)
        begin(self, *arguments)

    def note(site, message, reply):
        received.extend(arrays_of(reply).values())
        for value in reply.content.config_records["config"].values():
            texts = value if isinstance(value, list) else [value]
            texts = [text for text in texts if isinstance(text, bytes)]
            received.extend(np.frombuffer(t[: len(t) // 8 * 8], np.uint64) for t in texts)
        return reply

    monkeypatch.setattr(_sites.SecureSums, "__init__", init)
    totals, parts, expected = Totals(monkeypatch), PARTS, estimator
    if estimator is TRACKER:
        parts = {site: rows[:40] for site, rows in sites_of("stream").items()}
        expected = clone(estimator).set_params(channel=FixedPointChannel())
    found = fit(estimator, parts, note, SECURE)
    assert_same(found, here(expected, parts), 1e-6)
    held = [*received, *arrays_in(vars(kept[0])), *arrays_in(vars(found))]
    held += [total for _, total in totals.sums]
    held = (np.ravel(a) for a in held if a.dtype.itemsize == 8 and a.dtype.kind in "fiu")
    words = {w for a in held for w in a.astype(a.dtype).view(np.uint64).tolist()}
    assert len(totals.sums) > 1
    for parts, total in totals.sums:
        integers = [np.concatenate([own for _, own in part]) for part in parts]
        assert np.add.reduce(integers).tolist() == total.tolist()
        for numbers, own in (pair for part in parts for pair in part):
            told = numbers[numbers != np.rint(numbers)]  # numbers of rows are whole, as others are
            assert not {*told.view(np.uint64).tolist()} & words
            assert not {*own[np.abs(own.view(np.int64)) > 2**20].tolist()} & words


def test_bounds_are_announced_once_and_no_sum_finds_a_scale():
    grid = grid_of(PCA_2, secure=SECURE)
    assert_pca(fit_sites(grid, PCA_2, wait=0, secure=SECURE))
    asked = [kind for _, kind in grid.asked]
    for kind, n in (("bounds", 1), ("secure_keys", 1), ("secure_unmask", 2)):
        assert asked.count(kind) == n * len(PARTS), kind


def test_flowers_masks_are_not_used():
    """Flower reduces a key to 32 bits, so that a server can try all: here every bit counts."""
    secret = bytes(range(32))
    other = bytes([secret[4], *secret[1:4], secret[0], *secret[5:]])  # the same after its xor
    folded = secret[4:8] + secret[:4] + secret[8:]
    masks = [_secure_sum.mask(key, b"question", 100) for key in (secret, other, folded)]
    masks.append(_secure_sum.mask(secret, b"another", 100))
    assert all(not (masks[0] == mask).any() for mask in masks[1:])


def test_sites_that_know_each_other_sum_and_strangers_do_not():
    pairs = {site: pem_pair() for site in PARTS}

    def identity(context):
        own = context.node_config["site"]
        return pairs[own][0], [public for site, (_, public) in pairs.items() if site != own]

    assert_pca(fit(PCA_2, secure=SecureAggregation(threshold=2, identity=identity)))
    strange = SecureAggregation(threshold=2, identity=lambda context: (pem_pair()[0], []))
    with pytest.raises(RuntimeError, match="refused: all other sites must have signed the keys"):
        fit(PCA_2, secure=strange)


# -------------------------------------------------------------------- who takes part


def test_a_site_that_is_lost_after_its_last_numbers_has_taken_part():
    assert_pca(fit(PCA_2, spoil=lost("west", "secure_unmask", 2), secure=SECURE))


SEVEN = {f"site {i}": ROWS[20 * i : 20 * i + 20] for i in range(7)}


def four_of_seven(kind):
    return lambda site, message, reply: (
        None if site > "site 3" and kind in kind_of(message) else reply
    )


NONE, COARSE, SMALL = (
    SecureAggregation(threshold=2, **how) for how in ({"restarts": 0}, {"bits": 22}, {"scale": 8.0})
)
TINY_PARTS = {site: 1e-6 * rows for site, rows in PARTS.items()}
WIDE = make_power_law(200, 60, alpha=1.5, random_state=0) + 3.0
WIDE_PARTS = {site: WIDE[site == LABELS] for site in PARTS}


@pytest.fixture
def few_features(monkeypatch):
    """More features than second moments are summed of."""
    monkeypatch.setattr(_estimators, "MAX_FEATURES", 20)


def no_batch(site, message, reply):
    if site != "east" and kind_of(message) == "batch":
        arrays = reply.content.array_records["arrays"]
        arrays["over"] = arrays.pop("bounds")
    return reply


def with_column(i, values):
    """The rows of all sites with other values in a column."""
    rows = ROWS.copy()
    rows[:, i] = values
    return {site: rows[site == LABELS] for site in PARTS}


NORMAL = np.random.default_rng(0).standard_normal(200)
NEAR = ROWS[:, 0] + 1e-6 * NORMAL * ROWS[:, 0].std()
# Estimator | rows | what is lost | secure sums | words of the error: a column, and no number
ENDS = table(r"""
FederatedPCA(2) | PARTS | lost("west", "second_moments") | SecureAggregation() |\
 Too few sites: 2, but threshold=3\. .*'west'
FederatedPCA(2) | PARTS | lost("west", "second_moments") | NONE | a run begins again at most 0 times
FederatedPCA(2) | SEVEN | four_of_seven("moments") | SECURE |\
 4 of 7 have sent their numbers, a secure sum of so many needs 5\. Left out
FederatedPCA(2) | SEVEN | four_of_seven("secure_unmask") | SECURE |\
 4 of 7 have helped to unmask it, a secure sum of so many needs 5\.$
PLAIN | sites_of("stream") | no_batch | SECURE |\
 Too few sites: 1 have rows for a batch, but min_sites
FederatedPCA(2, scale=True, partial_out=[0]) | with_column(1, ROWS[:, 0]) | None | SECURE |\
 leaves less of column 1
DistributedPCA(2, scale=True, partial_out=[0]) | with_column(1, NEAR) | None | SECURE |\
 leaves less of column 1
FederatedPCA(2, scale=True) | with_column(1, 1e13 + NORMAL) | None | COARSE |\
 column 1 varies too little beside its mean
DistributedPCA(3, missing=AvailablePairs()) | with_column(4, np.nan) | None | SECURE |\
 column 4 is observed in 0 rows of all
FederatedPCA(2) | TINY_PARTS | None | SMALL | the rows are not within the scale
FederatedPCA(3) | WIDE_PARTS | None | SECURE |\
 up to 20 features, got 60. Rounds of products, of FederatedPowerPCA
FederatedPCA(0.5, n_refinements=1) | WIDE_PARTS | None | SECURE |\
 n_components must be an integer to refine .* got
FederatedPCA(2, scale=True, n_refinements=1) | WIDE_PARTS | None | SECURE |\
 take up to 20 feat.*FederatedScaler
DistributedPCA(2, scale=True) | WIDE_PARTS | None | SECURE |\
 take up to 20 .* got 60.*FederatedScaler
""")


@pytest.mark.usefixtures("few_features")
@pytest.mark.parametrize(("code", "parts", "spoil", "secure", "why"), ENDS)
def test_what_ends_a_fit_by_secure_sums(code, parts, spoil, secure, why):
    """Of 22 bits, a deviation of one in 10^12 of the mean has less than four digits."""
    estimator = PLAIN if code == "PLAIN" else made(code)
    with pytest.raises((RuntimeError, ValueError), match=why):
        fit(estimator, eval(parts), eval(spoil), eval(secure))


def test_sums_about_a_batch_that_is_not_there_are_refused():
    server = Server(2, SECURE, PLAIN, sites_of("stream")["east"][:40])
    assert set(server.tell(0, "batch", 1)[1]) == {"over"}
    server.tell(1, "batch", 1)
    server.bounds = [b""] * 2  # none was announced
    server.keys(begin=False)
    server.refused(0, "secure_shares", **server.lists(), why="the bounds of this site must be")


TWO = np.where((np.arange(60) < 2)[:, None] | (np.arange(8) != 2), PARTS["west"], np.nan)
# Estimator | rows of a site | why it is left out
OTHER_ROWS = table("""
PCA_2 | PARTS["west"][:, :7] | its number of features is 7, that of the
PCA_2 | (PARTS["west"] * 2.0**63).astype(np.float32) | refused: values that are too large
PAIRS | PARTS["west"] * np.r_[1e150, np.ones(7)] | values that are too large
PAIRS | TWO | fewer than
FILLS | TWO | fewer than min
""")


@pytest.mark.parametrize(("estimator", "west", "why"), OTHER_ROWS)
def test_a_site_whose_rows_do_not_fit_takes_no_part(estimator, west, why):
    """Columns of another number, entries that overflow, or sums that would tell few rows."""
    estimator = eval(estimator)
    with pytest.warns(UserWarning, match=f"'west'.*{why}"):
        found = fit(estimator, {**PARTS, "west": eval(west)}, secure=SECURE)
    assert_same(found, here(estimator, {site: PARTS[site] for site in ("east", "north")}), 1e-6)


def test_a_site_with_much_larger_numbers_takes_part():
    parts = {**PARTS, "west": PARTS["west"] * 1e6}
    assert_same(fit(PCA_2, parts, secure=SECURE), here(PCA_2, parts), 1e-6)


def test_rows_that_change_in_a_run_change_no_answer():
    """So that no difference of answers is a row that has changed."""
    rows = ROWS.copy()
    parts = {site: rows[site == LABELS] if site != "west" else rows[140:] for site in PARTS}

    def grow(site, message, reply):
        if (site, kind_of(message)) == ("west", "moments"):
            parts["west"] *= 1e3
        return reply

    assert_same(fit(POWER, parts, grow, SECURE), in_one_process(ROUNDS, "rows"), 1e-6)
    assert rows[-1, 0] == ROWS[-1, 0] * 1e3


def test_a_batch_that_a_site_has_no_more_is_in_no_sum():
    parts = {site: [rows[:20], rows[20:40]] for site, rows in sites_of("stream").items()}
    first, asked = {**parts, "west": parts["west"][:1]}, []

    def end(site, message, reply):
        asked.extend([True] * ((site, kind_of(message)) == ("west", "batch")))
        del parts["west"][1 if len(asked) > 1 else 2 :]
        return reply

    with pytest.warns(UserWarning, match=r"'west' .refused: the site has no such batch"):
        found = fit(PLAIN, parts, end, SECURE)
    assert_same(found, fit(PLAIN, first, secure=SECURE), 1e-6)


@pytest.mark.parametrize(
    ("asked", "own", "why"),
    [
        (SECURE, SecureAggregation(threshold=2, bits=40), "refused: bits must be 40"),
        (SECURE, SecureAggregation(), "refused: a sum of 3 sites needs a threshold from 3"),
        (None, SECURE, "refused: this site takes part in secure sums only"),
        (SECURE, None, "no question of the kind 'bounds' without secure sums"),
    ],
)
def test_sites_and_servers_that_differ(asked, own, why):
    with pytest.raises(RuntimeError, match=why):
        fit_sites(grid_of(POWER, secure=own), POWER, wait=0, secure=asked)


# -------------------------------------------------------------------- sums that tell too little


HOLES = np.concatenate(list(sites_of("holes").values()))[:, [0, 1, 3, 4, 5, 6, 7]]


def test_what_a_site_adds_for_pairs_depends_on_its_moments_alone():
    """For any mean that a server asks about: numbers, means and products of pairs tell it all."""
    work, own = secure_tasks(PAIRS, SECURE)["pairs"].work, PairMoments.from_rows(HOLES)
    for mean in (np.zeros(7), own.mean, np.linspace(-50, 50, 7)):
        sent = work("east", HOLES, mean, weight=None, min_rows=5)
        gaps = own.means + (own.origin - mean)[:, None]
        expected = own.products + own.counts * gaps * gaps.T
        np.testing.assert_array_equal(sent["products"], expected[np.triu_indices(7)])


@pytest.mark.parametrize(
    ("estimator", "kind", "arguments"),
    [
        (PAIRS, "pairs", (np.zeros(8),)),
        (FILLS, "entries", ()),
        (FILLS, "filled", (np.vstack([np.zeros(8), np.eye(3, 8)]), [150.0, 9.0, 1.0, 1.0, 1.0])),
    ],
)
def test_rows_that_have_changed_since_the_first_question_are_checked_again(
    estimator, kind, arguments
):
    """One entry of a column that was whole: with it missing, the sum of the others tells it."""
    rows = ROWS[:150].copy()
    rows[0, 3] = np.nan
    given = [np.asarray(a, dtype=float) for a in arguments]
    with pytest.raises(RefusedError, match="would tell them"):
        secure_tasks(estimator, SECURE)[kind].work("east", rows, *given, weight=None, min_rows=4)


# -------------------------------------------------------------------- many features


@pytest.mark.usefixtures("few_features")
def test_secure_sums_refine_random_directions_as_one_process_does():
    found = fit(made("FederatedPCA(3, n_refinements=3, random_state=0)"), WIDE_PARTS, secure=SECURE)
    n, mean = found.subspace_.n_components, WIDE.mean(axis=0)
    start = np.linalg.qr(np.random.RandomState(0).standard_normal((60, n)))[0].T
    scatter = float(np.sum((WIDE - mean) ** 2))
    subspace = Subspace(start, np.full(n, np.sqrt(scatter / 60)), mean, 200, scatter)
    expected = type(found).from_subspaces([subspace], 3).refine(WIDE, clients=LABELS, n_rounds=3)
    assert_same(found, expected, 1e-6, without=["clients_"])
    bound = found.subspace_error_bound_
    np.testing.assert_allclose(bound, expected.subspace_error_bound_, rtol=1e-3)
    assert found.n_refinements_ == expected.n_refinements_ >= 1


@pytest.mark.usefixtures("few_features")
def test_a_site_of_many_features_sends_no_second_moments():
    why = "second moments are summed of up to 20 features, not 60"
    steps = Site(made("OnlineDistributedPCA(3)"), WIDE, secure=SECURE)
    assert steps.answers("bounds", 0)
    assert_refused(steps, "space", 0, WIDE.mean(axis=0), why=why)
    site = Site(PCA_2, WIDE, secure=SECURE)
    assert site.answers("bounds")
    assert_refused(site, "second_moments", WIDE.mean(axis=0), why=why)
    most = {name: rows[:, :20] for name, rows in WIDE_PARTS.items()}
    assert_same(fit(PCA_2, most, secure=SECURE), here(PCA_2, most), 1e-6)


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("bits", [22, 50, 59])  # more than one word of eight sites has room for
def test_the_ring_has_room_for_a_number_at_the_bound_from_each_site(n, bits):
    for more in range(64):
        grid = Grid(5 - more).wider(more)
        least = 2.0 ** (5 - more)  # as numbers are as a rule, to which the sum is precise
        assert grid.step(bits, n) <= 2 * least * 2.0**-bits
        for number in (-(2.0**5), 2.0**5, least / 3, -least):
            words = [grid.encode([number], bits, n, b"%d" % i) for i in range(n)]
            total = grid.decode(np.add.reduce(words), (1,), bits, n)
            assert abs(total - n * number) <= n * grid.step(bits, n), more


@pytest.mark.parametrize("d", [1, 3])
def test_sums_about_any_mean_that_a_site_accepts_are_within_their_bound(d):
    own = np.full(d, -4.0)  # the mean of eight rows
    bounds = Bounds(3, d, np.full(d, 2), np.full(d, 5))
    with pytest.raises(RefusedError, match="within the bounds"):
        bounds.check_mean(np.full(d, 8.001))
    bounds.check_mean(np.full(d, 8.0))
    assert np.all(8 * (own - 8.0) ** 2 <= 2.0**bounds.about_mean)


def test_what_exceeds_the_bound_is_right_in_sums_and_roundings_are_so_on_average():
    grid, bits = Grid(0), 50
    for size in np.ldexp([0.3, 0.4, 0.6, 0.7, 0.9], 64 - bits):
        for sign in (-1, 1):
            words = [grid.encode([x], bits, 2, b"") for x in (sign * size, 0.2 - sign * size)]
            total = grid.decode(np.add.reduce(words), (1,), bits, 2)
            assert abs(total - 0.2) <= 2 * np.spacing(size)
    number = np.ldexp(3.25, -bits)
    words = [grid.encode([number], bits, 2, b"%d" % i).view(np.int64) for i in range(1000)]
    assert set(np.ravel(words)) == {3, 4}
    assert abs(np.mean(words) - 3.25) < 4 * (0.25 * 0.75 / 1000) ** 0.5


@pytest.mark.parametrize("bits", [22, 50])
@pytest.mark.parametrize(
    "code", ["FederatedPCA(3)", "FederatedPCA(3, n_refinements=3)", "FederatedPCA(3, scale=True)"]
)
def test_a_bound_allows_for_integers(bits, code, request):
    """Numbers of few bits leave an error, and none that the bound does not cover."""
    if "refine" in code:
        request.getfixturevalue("few_features")
    found = fit(made(code), WIDE_PARTS, secure=SecureAggregation(threshold=2, bits=bits))
    rows = WIDE - WIDE.mean(axis=0)
    rows = rows / rows.std(axis=0) if "scale" in code else rows
    _, s, V = np.linalg.svd(rows, full_matrices=False)
    error = subspace_distance(found.components_, V[:3])
    assert 1e-16 < error <= found.subspace_error_bound_ < 1
    low, high = found.explained_variance_interval_.T
    assert ((low <= s[:3] ** 2 / 199) & (s[:3] ** 2 / 199 <= high)).all()


def test_of_effects_of_confounders_in_any_unit_secure_sums_promise_nothing():
    asked, units = made("FederatedPCA(2, partial_out=0)"), np.ones(ROWS.shape[1])
    units[0] = 1e-9
    found = fit(asked, {site: rows * units for site, rows in PARTS.items()}, secure=SECURE)
    assert subspace_distance(found.components_, here(asked, PARTS).components_) < 1e-9
    assert found.subspace_error_bound_ == np.inf
    assert found.explained_variance_interval_.tolist() == [[0.0, np.inf]] * 2


# -------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("name", "wrong", "why"),
    table("""
threshold | 1 | must be an integer from 2 to .*, got 1
bits | 21 | must be an integer from 22 to 60, got 21
scale | 0.0 | must be None or in .0, 2.983., got 0.0
restarts | 3 | must be an integer from 0 to 2, got 3
identity | b"key" | must be callable or None, got b'key'
"""),
)
def test_parameters_are_checked(name, wrong, why):
    with pytest.raises(ValueError, match=f"{name} {why}"):
        SecureAggregation(**{name: eval(wrong)})


def test_a_server_that_names_different_lost_sites_gets_one_sum():
    """n sites give shares of m keys each, and a key takes n - m: at most m keys are found."""
    for n in range(2, 200):
        needed = SecureAggregation(threshold=2).needed(n)
        m = n - needed
        assert n * m // needed <= m
        assert n * (m + 1) // (needed - 1) > m + 1, "one lost site more could be allowed"
        assert 2 * needed > n, "the two secrets of a site are never found both"
        assert SecureAggregation(threshold=n).needed(n) == n
