"""Secure sums over Flower: the fits, who may be lost, and what the server receives."""

import os

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import arrays_in
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.decomposition import PCA

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from test_flower import BY_NAME, PARTS, InProcessGrid, X, grid_of

from fedpca_sklearn import (
    AnalyzeGauss,
    DistributedPCA,
    FederatedPCA,
    FederatedPowerPCA,
    FedPowerNoise,
    FixedPointChannel,
    ProjectionAverage,
    StreamingPCA,
    subspace_distance,
)
from fedpca_sklearn.engines import _masks, _secure_sums
from fedpca_sklearn.engines._masks import key_pair
from fedpca_sklearn.engines._secure import Grid
from fedpca_sklearn.engines._secure_fits import MAX_FEATURES
from fedpca_sklearn.engines._secure_session import Session
from fedpca_sklearn.engines.flower import SecureAggregation, client_app, fit_sites

SECURE = SecureAggregation(threshold=2)
DIGITS = [FederatedPCA(5), DistributedPCA(5), FederatedPowerPCA(5, random_state=0)]
# rows on which a power method takes few rounds, none of whose entries is zero
ROWS = np.random.default_rng(0).standard_normal((120, 8)) * 4.0 ** -np.arange(8) + 1
SMALL = {"east": ROWS[:50], "north": ROWS[50:80], "west": ROWS[80:]}
LABELS = np.repeat(list(SMALL), [50, 30, 40])
PCA_2, POWER = FederatedPCA(2), FederatedPowerPCA(2, random_state=0)
STAGES = ("secure_keys", "secure_shares", "secure_unmask")


def secure_fit(estimator, parts=SMALL, spoil=None, secure=SECURE, of_site=None, **options):
    grid = grid_of(estimator, parts, spoil, secure=secure, **(of_site or {}))
    return fit_sites(grid, estimator, wait=0, secure=secure, **options)


def assert_pca(fitted, rows, tol=1e-6):
    pooled = PCA(fitted.n_components_, svd_solver="full").fit(rows)
    assert subspace_distance(fitted.components_, pooled.components_) <= tol
    assert_allclose(fitted.explained_variance_, pooled.explained_variance_, rtol=tol)
    deviation = np.sqrt(pooled.explained_variance_[0])
    assert_allclose(fitted.mean_, rows.mean(axis=0), rtol=0, atol=tol * deviation)
    assert fitted.n_samples_ == len(rows)


# -------------------------------------------------------------------- the fits


@pytest.mark.parametrize("estimator", DIGITS, **BY_NAME)
@pytest.mark.parametrize("far", [0.0, 1e4], ids=["digits", "far from zero"])
def test_secure_sums_give_pca_of_the_pooled_rows(estimator, far):
    shift = far * X.std() * np.cos(np.arange(X.shape[1]))
    fitted = secure_fit(estimator, {site: rows + shift for site, rows in PARTS.items()})
    assert type(fitted) is type(estimator)
    assert_pca(fitted, X + shift)
    assert fitted.clients_ == ["east", "north", "west"]
    assert fitted.missing_sites_ == {}


@pytest.mark.parametrize(
    "estimator",
    [
        FederatedPCA(0.8),
        DistributedPCA(),
        FederatedPowerPCA(3, acceleration=None, n_rounds=2, random_state=0),
        FederatedPowerPCA(3, local_steps=3, n_rounds=2, random_state=0),
        FederatedPowerPCA(3, center=False, n_rounds=2, random_state=0),
    ],
)
def test_secure_sums_give_what_clients_in_one_process_give(estimator):
    fitted, expected = secure_fit(estimator), clone(estimator).fit(ROWS, clients=LABELS)
    assert fitted.n_components_ == expected.n_components_
    assert_allclose(fitted.components_, expected.components_, atol=1e-6)
    assert_allclose(fitted.singular_values_, expected.singular_values_, rtol=1e-6)
    assert_allclose(fitted.noise_variance_, expected.noise_variance_, rtol=1e-6, atol=1e-9)


def test_sparse_rows_float32_few_rows_and_constant_columns():
    single = X[:200].astype(np.float32)
    parts = {"a": single[:1], "b": sp.csr_array(single[1:20]), "c": single[20:]}
    for estimator in DIGITS[::2]:
        fitted = secure_fit(estimator, parts, of_site={"min_rows": 1})
        assert fitted.components_.dtype == np.float32
        assert_pca(fitted, X[:200], tol=2e-6)
    few = {site: rows[:1] for site, rows in SMALL.items()}
    fitted = secure_fit(FederatedPCA(), few, of_site={"min_rows": 1})
    assert fitted.components_.shape == (3, 8)
    assert_allclose(fitted.singular_values_[2], 0, atol=1e-7)
    constant = secure_fit(FederatedPCA(2), {site: rows * 0 + 3 for site, rows in SMALL.items()})
    assert not constant.explained_variance_.any()
    assert_allclose(constant.mean_, 3)


def test_names_of_columns_travel():
    pd = pytest.importorskip("pandas")
    columns = list("abcdefgh")
    frames = {site: pd.DataFrame(rows, columns=columns) for site, rows in SMALL.items()}
    frames["west"] = frames["west"][columns[::-1]]
    with pytest.warns(UserWarning, match=r"site 'west' .*in another order"):
        fitted = secure_fit(PCA_2, frames)
    assert fitted.feature_names_in_.tolist() == columns
    assert_pca(fitted, ROWS[:80])


def test_bounds_are_announced_once_and_no_sum_finds_a_scale():
    asked = []

    def note(site, message, reply):
        asked.append(message.metadata.message_type)
        return reply

    assert_pca(secure_fit(PCA_2, spoil=note), ROWS)
    for kind, n in (("bounds", 1), ("secure_keys", 1), ("secure_unmask", 2)):
        assert asked.count(f"query.{kind}") == n * len(SMALL), kind


def test_coarse_numbers_cost_what_the_channel_says():
    """Of 22 bits, over the network and in one process."""
    pooled = PCA(2).fit(ROWS)
    here = clone(POWER).set_params(channel=FixedPointChannel(22)).fit(ROWS, clients=LABELS)
    there = secure_fit(POWER, secure=SecureAggregation(threshold=2, bits=22))
    for pca in (here, there):
        error = subspace_distance(pca.components_, pooled.components_)
        assert 2.0**-29 < error < 2.0**-18


def test_sites_that_know_each_other():
    pairs = {site: key_pair() for site in SMALL}

    def identity(context):
        own = context.node_config["site"]
        return pairs[own][0], [public for site, (_, public) in pairs.items() if site != own]

    secure = SecureAggregation(threshold=2, identity=identity)
    assert_pca(secure_fit(PCA_2, secure=secure), ROWS)

    def stranger(context):
        return key_pair()[0], []

    mixed = SecureAggregation(threshold=2, identity=stranger)
    with pytest.raises(RuntimeError, match="refused: all other sites must have signed the keys"):
        secure_fit(PCA_2, secure=mixed)


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


@pytest.mark.parametrize("estimator", DIGITS[::2], **BY_NAME)
def test_the_decoded_sum_is_the_sum_of_integers_bit_by_bit(monkeypatch, estimator):
    totals = Totals(monkeypatch)
    secure_fit(estimator, PARTS)
    assert len(totals.sums) > 1
    for parts, total in totals.sums:
        integers = [np.concatenate([words for _, words in part]) for part in parts]
        assert np.add.reduce(integers).tolist() == total.tolist()


# -------------------------------------------------------------------- sites that are lost


def killed(site, kind, n=1):
    """The site answers nothing from the n-th question of a kind on."""
    asked = []

    def spoil(sender, message, reply):
        if sender == site and message.metadata.message_type == f"query.{kind}":
            asked.append(kind)
        return None if sender == site and len(asked) >= n else reply

    return spoil


LOST = [
    (PCA_2, "moments", 1),
    (PCA_2, "second_moments", 1),
    (PCA_2, "secure_shares", 2),
    (PCA_2, "secure_unmask", 1),
    (POWER, "secure_keys", 1),
    (POWER, "times_scatter", 3),
    (POWER, "secure_unmask", 3),
]


@pytest.mark.parametrize(("estimator", "kind", "n"), LOST)
def test_a_site_that_is_lost_leaves_no_trace(estimator, kind, n):
    with pytest.warns(UserWarning, match=r"Fitted without site 'west' \(no answer"):
        fitted = secure_fit(estimator, spoil=killed("west", kind, n))
    assert fitted.clients_ == ["east", "north"]
    assert list(fitted.missing_sites_) == ["west"]
    assert_pca(fitted, ROWS[:80])


def test_a_site_that_is_lost_after_its_last_numbers_has_taken_part():
    fitted = secure_fit(PCA_2, spoil=killed("west", "secure_unmask", 2))
    assert fitted.clients_ == ["east", "north", "west"]
    assert_pca(fitted, ROWS)


def test_below_the_threshold_the_fit_ends():
    spoil = killed("west", "times_scatter", 2)
    with pytest.raises(RuntimeError, match=r"Too few sites: 2, but threshold=3\. .*'west'"):
        secure_fit(POWER, spoil=spoil, secure=SecureAggregation())
    with pytest.raises(RuntimeError, match=r"Too few sites: 2, but min_sites=3\."):
        secure_fit(PCA_2, spoil=killed("west", "moments"), min_sites=3)


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("moments", r"4 of 7 have sent their numbers, a secure sum of so many needs 5\. Left out"),
        ("secure_unmask", r"4 of 7 have helped to unmask it, a secure sum of so many needs 5\.$"),
    ],
)
def test_more_sites_need_a_larger_threshold(kind, match):
    seven = {f"site {i}": ROWS[10 * i : 10 * i + 10] for i in range(7)}

    def spoil(site, message, reply):
        return None if site > "site 3" and kind in message.metadata.message_type else reply

    with pytest.raises(RuntimeError, match=match):
        secure_fit(PCA_2, seven, spoil=spoil, secure=SecureAggregation(threshold=2))


def test_sites_that_allow_no_restart_end_the_fit():
    secure = SecureAggregation(threshold=2, restarts=0)
    with pytest.raises(RuntimeError, match="refused: a fit begins again at most 0 times"):
        secure_fit(PCA_2, spoil=killed("west", "second_moments"), secure=secure)


def test_a_site_with_much_larger_numbers_takes_part():
    parts = {**SMALL, "west": SMALL["west"] * 1e6}
    assert_pca(secure_fit(PCA_2, parts), np.concatenate(list(parts.values())))


def test_rows_that_change_in_a_run_change_no_answer():
    """So that no difference of answers is a row that has changed."""
    grown = dict.fromkeys(SMALL, 1.0)

    def grow(site, message, reply):
        if (site, message.metadata.message_type) == ("west", "query.moments"):
            grown["west"] = 1e3
        return reply

    def app(site):
        return client_app(lambda context: SMALL[site] * grown[site], POWER, secure=SECURE)

    fitted = fit_sites(InProcessGrid(map(app, SMALL), SMALL, grow), POWER, wait=0, secure=SECURE)
    assert grown["west"] == 1e3
    assert_pca(fitted, ROWS)


def test_a_site_with_another_number_of_features_is_left_out():
    parts = {**SMALL, "west": SMALL["west"][:, :7]}
    with pytest.warns(UserWarning, match=r"'west' .its number of features is 7, that of the"):
        fitted = secure_fit(PCA_2, parts)
    assert_pca(fitted, ROWS[:80])


def test_values_that_are_too_large_are_refused_at_the_site():
    parts = {**SMALL, "west": (SMALL["west"] * 2.0**63).astype(np.float32)}
    with pytest.warns(UserWarning, match=r"'west': refused: values that are too large\)"):
        fitted = secure_fit(PCA_2, parts)
    assert_pca(fitted, ROWS[:80])


# -------------------------------------------------------------------- what the server receives


def test_nothing_that_the_server_holds_is_of_one_site(monkeypatch):
    """Neither as numbers nor as integers, in what arrives and in what the server keeps."""
    received, kept = [], []
    begin = _secure_sums.SecureSums.__init__

    def init(self, *arguments):
        kept.append(self)
        begin(self, *arguments)

    monkeypatch.setattr(_secure_sums.SecureSums, "__init__", init)
    totals = Totals(monkeypatch)

    def note(site, message, reply):
        for record in reply.content.array_records.values():
            received.extend(array.numpy() for array in record.values())
        for record in reply.content.config_records.values():
            received.extend(
                np.frombuffer(text[: len(text) // 8 * 8], np.uint64)
                for value in record.values()
                for text in (value if isinstance(value, list) else [value])
                if isinstance(text, bytes)
            )
        return reply

    fitted = secure_fit(PCA_2, spoil=note)
    held = [*received, *arrays_in(vars(kept[0])), *arrays_in(vars(fitted))]
    held += [total for _, total in totals.sums]
    words = {w for a in held for w in np.ravel(a).astype(a.dtype).view(np.uint64).tolist()}
    for i, (parts, _) in enumerate(totals.sums):
        for site, part in zip(SMALL, parts, strict=True):
            for numbers, integers in part:
                own = {*numbers.view(np.uint64).tolist(), *integers.tolist()} - {0}
                assert not own & words, (i, site)


def test_flowers_masks_are_not_used():
    """Flower reduces a key to 32 bits, so that a server can try all: here every bit counts."""
    secret = bytes(range(32))
    other = bytes([secret[4], *secret[1:4], secret[0], *secret[5:]])  # the same after its xor
    masks = [_masks.mask(key, b"question", 100) for key in (secret, other)]
    assert not (masks[0] == masks[1]).any()
    assert not (masks[0] == _masks.mask(secret, b"another", 100)).any()


# -------------------------------------------------------------------- parameters


def test_parameters_are_checked():
    expected = {
        "threshold": (1, "threshold must be an integer from 2 to .*, got 1"),
        "bits": (21, "bits must be an integer from 22 to 60, got 21"),
        "scale": (0.0, r"scale must be None or in \(0, 2\^983\], got 0.0"),
        "restarts": (3, "restarts must be an integer from 0 to 2, got 3"),
        "identity": (b"key", "identity must be callable or None, got b'key'"),
    }
    for name, (value, message) in expected.items():
        with pytest.raises(ValueError, match=message):
            SecureAggregation(**{name: value})
    with pytest.raises(ValueError, match="merge must be None with secure sums"):
        client_app(lambda context: X, FederatedPCA(5, merge=ProjectionAverage()), secure=SECURE)
    with pytest.raises(ValueError, match="estimator must be None with secure sums"):
        secure_fit(FederatedPCA(5, estimator=StreamingPCA(5)))
    with pytest.raises(ValueError, match="needs noise that survives integers"):
        secure_fit(FederatedPCA(5, mechanism=AnalyzeGauss(1.0, 1e-5, 1.0)))
    with pytest.raises(ValueError, match="needs noise that survives integers"):
        secure_fit(FederatedPowerPCA(5, mechanism=FedPowerNoise(1.0, 1e-5, 1.0)))
    with pytest.raises(TypeError, match="secure sums need FederatedPCA"):
        client_app(lambda context: X, StreamingPCA(5), secure=SECURE)
    with pytest.raises(ValueError, match="n_components=65"):
        secure_fit(FederatedPCA(65))


def test_too_many_features_for_second_moments():
    wide = {site: np.eye(12, MAX_FEATURES + 1) for site in PARTS}
    match = f"up to {MAX_FEATURES} features, got {MAX_FEATURES + 1}. FederatedPowerPCA takes any"
    with pytest.raises(ValueError, match=match):
        secure_fit(FederatedPCA(5), wide)


def test_sites_and_servers_that_differ():
    grid = grid_of(POWER, secure=SecureAggregation(threshold=2, bits=40))
    with pytest.raises(RuntimeError, match="refused: bits must be 40"):
        fit_sites(grid, POWER, wait=0, secure=SECURE)
    with pytest.raises(RuntimeError, match="refused: a sum of 3 sites needs a threshold from 3"):
        fit_sites(grid_of(POWER, secure=SecureAggregation()), POWER, wait=0, secure=SECURE)
    with pytest.raises(RuntimeError, match="refused: this site takes part in secure sums only"):
        fit_sites(grid_of(POWER, secure=SECURE), POWER, wait=0)
    with pytest.raises(RuntimeError, match="no question of the kind 'bounds'"):
        fit_sites(grid_of(POWER), POWER, wait=0, secure=SECURE)


def test_a_server_that_names_different_lost_sites_gets_one_sum():
    """n sites give shares of m keys each, and a key takes n - m: at most m keys are found."""
    for n in range(2, 200):
        needed = SecureAggregation(threshold=2).needed(n)
        m = n - needed
        assert n * m // needed <= m
        assert n * (m + 1) // (needed - 1) > m + 1, "one lost site more could be allowed"
        assert 2 * needed > n, "the two secrets of a site are never found both"
        assert SecureAggregation(threshold=n).needed(n) == n
