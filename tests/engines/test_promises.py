"""The column "over a network" of docs/promises.md: what each cell says is what travels."""

from pathlib import Path

import numpy as np
import pytest
from engines.site_helpers import PARTS, ROWS, SALT, arrays_of, fit, kind_of, made, table, whole
from engines.test_private_sites import PARTS as SECURE_PARTS
from engines.test_private_sites import ROUNDS, SUMMARY, private_fit
from sklearn.base import clone

from fedpca_sklearn import PairMoments, Subspace
from fedpca_sklearn.engines import _estimators
from fedpca_sklearn.engines.flower import SecureAggregation, SitePolicy, SiteRows, client_app
from fedpca_sklearn.privacy import DiscreteGaussian

pytestmark = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
PAGE = (Path(__file__).resolve().parents[2] / "docs/promises.md").read_text()

# The estimator of each row of the page's table, and what tests the last cell of the row
TESTED = table("""
`FederatedPCA` | test_summaries test_private_summaries test_secure_sums
`missing=AvailablePairs()` | test_moments_of_pairs test_secure_sums
`missing=ConditionalFill()` | test_rows_that_are_filled_in test_secure_sums
`FederatedPCA(merge=SubspaceMerge(fan_in=f))` | test_summaries
`FederatedPCA(mechanism=...)`, `trust="sum"` | test_noise_of_a_sum test_noise_of_a_secure_sum
`FederatedScaler` | test_moments_of_columns
`DistributedPCA` | test_triangles test_secure_sums
`FederatedPowerPCA` | test_rounds test_secure_sums
`FederatedHeteroscedasticPCA` | test_expected_scores test_secure_sums
`TruncatedDistributedPCA` | test_summaries
`OnlineDistributedPCA` | test_steps test_secure_sums
`FederatedPCA(n_refinements=n)`, `refine` | test_refinements test_secure_sums
`FederatedSubspaceTracker` | test_batches_of_a_tracker test_secure_sums
`VerticalFederatedPCA(method="vfedpca")` | test_columns
`VerticalFederatedPCA(method="merge")` | test_columns
`VerticalFederatedKernelPCA(aggregation=VFedPCA())` | test_columns
`VerticalFederatedPCA(method="power")` | test_columns test_secure_sums
`VerticalFederatedPCA` without a server | test_other_topologies
`VerticalFederatedKernelPCA(aggregation="exact")` | test_columns
""")


def test_every_cell_has_a_test():
    heading = "| estimator | server | other clients | over a network |\n|---|---|---|---|\n"
    lines = PAGE.split(heading)[1].split("\n\n")[0].splitlines()
    firsts = [line.strip("|").split(" | ")[0].strip() for line in lines]
    assert sorted(firsts) == sorted(first for first, _ in TESTED)
    named = {name for _, names in TESTED for name in names.split()}
    assert not [name for name in named if not callable(globals().get(name))]


def travelled(code, parts=PARTS, secure=None, **of_grid):
    """A fit, and of each question the site, its kind, and the arrays that went and came."""
    found = []

    def record(site, message, reply):
        found.append((site, kind_of(message), arrays_of(message, "arguments"), arrays_of(reply)))
        return reply

    fitted = fit(made(code), parts, record, secure, **of_grid)
    assert fitted.clients_ == list(parts)
    return fitted, found


def sent_at_once(code, **of_grid):
    """The only message of each site, which was told nothing."""
    _, found = travelled(code, **of_grid)
    assert [there for _, _, there, _ in found] == [{}] * 3
    return {site: back for site, _, _, back in found}.items()


@pytest.mark.parametrize(
    "code",
    [
        "FederatedPCA(2)",
        "FederatedPCA(2, merge=SubspaceMerge(fan_in=2))",
        "TruncatedDistributedPCA(2, local_threshold=0.5)",
    ],
)
def test_summaries(code):
    for site, back in sent_at_once(code):
        assert list(back) == ["summary"]
        summary, exact = Subspace.from_bytes(back["summary"]), Subspace.from_rows(PARTS[site])
        assert summary.n_samples == len(PARTS[site])
        k = len(summary.singular_values) if "Truncated" in code else 2
        np.testing.assert_allclose(summary.singular_values[:k], exact.singular_values[:k])


def test_private_summaries(tmp_path):
    policies = {site: SitePolicy(ledger=tmp_path / site) for site in PARTS}
    private = "FederatedPCA(2, mechanism=AnalyzeGauss(1.0, 1e-5, 20.0))"
    for site, back in sent_at_once(private, policies=policies):
        summary = Subspace.from_bytes(back["summary"])
        assert summary.privacy[:2] == pytest.approx((1.0, 1e-5))
        assert np.abs(summary.mean - PARTS[site].mean(axis=0)).max() > 0.1
        assert (tmp_path / site).stat().st_size > 0


def test_noise_of_a_sum(tmp_path):
    policies = {site: SitePolicy(ledger=tmp_path / site) for site in PARTS}
    for kind, noise in ("FederatedPCA", "AnalyzeGauss"), ("FederatedPowerPCA", "FedPowerNoise"):
        private = f"{kind}(2, mechanism={noise}(1.0, 1e-5, 20.0, trust='sum'))"
        with pytest.raises(ValueError, match="trust='sum' over a network needs secure sums"):
            travelled(private, policies=policies)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("trust", "shares"), [("sum", 3), ("client", 1)])
@pytest.mark.parametrize("estimator", [SUMMARY, ROUNDS], ids=lambda e: type(e).__name__)
def test_noise_of_a_secure_sum(estimator, trust, shares, tmp_path, monkeypatch):
    """Nothing but masked integers arrives; of a sum, what is masked has a third of the variance."""
    found, scales, noisy = [], [], DiscreteGaussian.noisy
    asked = clone(estimator).set_params(mechanism__trust=trust)
    n_products = 1 if estimator is SUMMARY else 3

    def record(site, message, reply):
        found.extend(arrays_of(reply))
        return reply

    def drawn(self, values, std, rng):
        scales.append(std)
        return noisy(self, values, std, rng)

    monkeypatch.setattr(DiscreteGaussian, "noisy", drawn)
    mechanism = private_fit(asked, tmp_path, spoil=record).mechanism
    assert set(found) == {"bounds", "masked"}
    in_all = mechanism.row_norm * mechanism.costs(5, n_products).mean_std
    np.testing.assert_allclose(scales[:3], in_all / np.sqrt(shares))
    with pytest.raises(RuntimeError, match=r"a sum of 2 sites needs a threshold|Too few sites: 2"):
        private_fit(asked, tmp_path, parts=dict(list(SECURE_PARTS.items())[:2]))


def test_triangles():
    for site, back in sent_at_once("DistributedPCA(2)"):
        assert set(back) == {"factor", "mean", "mean_rest", "count"}
        R = np.zeros((8, 8))
        R[np.triu_indices(8)] = back["factor"]
        centred = PARTS[site] - PARTS[site].mean(axis=0)
        np.testing.assert_allclose(R.T @ R, centred.T @ centred, atol=1e-9)


@pytest.mark.parametrize("kind", ["FederatedPCA", "DistributedPCA"])
def test_moments_of_pairs(kind):
    code = f"{kind}(2, missing=AvailablePairs())"
    for site, back in sent_at_once(code):
        assert list(back) == ["pairs"]
        sent, rows = PairMoments.from_bytes(back["pairs"]), PARTS[site]
        np.testing.assert_allclose(sent.products, np.cov(rows.T, bias=True) * len(rows))
    few = np.where(np.arange(len(ROWS))[:, None] == np.arange(8), np.nan, ROWS)
    with pytest.raises(RuntimeError, match="refused: fewer than 10 rows have a pair of columns"):
        fit(made(code), {"east": few, "west": few})  # each column is missing in one row


def test_rows_that_are_filled_in():
    _, found = travelled("FederatedPCA(2, missing=ConditionalFill(n_rounds=1))")
    assert [kind for _, kind, *_ in found] == ["entries"] * 3 + ["filled"] * 6
    for site, kind, there, back in found:
        if kind == "entries":
            assert there == {}
            np.testing.assert_allclose(back["sum"] / back["counts"], PARTS[site].mean(axis=0))
            assert list(back) == ["sum", "counts", "count"]
            continue
        np.testing.assert_allclose(there["0"][0], ROWS.mean(axis=0))
        assert list(back) == ["summary"]
        assert Subspace.from_bytes(back["summary"]).n_samples == len(PARTS[site])
    # the rest of the cell: tests/engines/test_hostile_server.py


def test_rounds():
    fitted, found = travelled("FederatedPowerPCA(2, n_rounds=3, random_state=0)")
    kinds = ["moments", *["times_scatter"] * fitted.n_iter_, "variances"]
    assert [kind for _, kind, *_ in found] == [kind for kind in kinds for _ in PARTS]
    for site, kind, there, back in found:
        rows, message = PARTS[site], whole(back)
        if kind == "moments":
            assert there == {}
            np.testing.assert_allclose(message, [*rows.sum(axis=0), len(rows)])
            continue
        V, mean = there["0"], there["1"]
        np.testing.assert_allclose(mean, ROWS.mean(axis=0))
        product = V @ (rows - mean).T @ (rows - mean)
        if kind == "variances":
            product = [*(product @ V.T).ravel(), np.square(rows - mean).sum(), len(rows)]
        np.testing.assert_allclose(message, product, atol=1e-8)


def test_moments_of_columns():
    for site, back in sent_at_once("FederatedScaler()"):
        count, mean, rest, squares = back["moments"]
        rows = PARTS[site]
        np.testing.assert_array_equal(count, len(rows))
        np.testing.assert_allclose(mean, rows.mean(axis=0))
        assert np.abs(rest).max() < 1e-14
        np.testing.assert_allclose(squares, len(rows) * rows.var(axis=0))
    # the other half of the cell: tests/engines/test_hostile_server.py


@pytest.mark.parametrize("variances", ["measured", "sent"])
def test_steps(variances):
    _, found = travelled(f"OnlineDistributedPCA(2, variances={variances!r})")
    for _, kind, there, back in found:
        if kind != "space":
            assert there["1"].shape[1] == 8  # the server's basis
            continue
        assert there["0"].shape == ()  # the number of the step
        assert "over" in back or Subspace.from_bytes(back["summary"]).n_components <= 8
    assert ({kind for _, kind, *_ in found} == {"space"}) == (variances == "sent")


OWNERS = {
    site: SiteRows(ROWS[at, columns], keys=np.arange(200)[at], salt=SALT)
    for site, at, columns in (
        ("bank", slice(0, 150), slice(0, 3)),
        ("clinic", slice(10, 160), slice(3, 5)),
        ("shop", slice(5, 155), slice(5, 8)),
    )
}


@pytest.mark.parametrize(
    ("code", "shape"),
    [  # what the first answer about columns holds, of 140 rows that all have
        ("VerticalFederatedPCA(2, random_state=0)", (140,)),
        ('VerticalFederatedPCA(2, method="merge")', None),
        ('VerticalFederatedPCA(2, method="power", random_state=0)', (2, 140)),
        ('VerticalFederatedKernelPCA(2, aggregation="exact")', (140, 140)),
        ("VerticalFederatedKernelPCA(2, aggregation=VFedPCA(), random_state=0)", (140,)),
    ],
)
def test_columns(code, shape):
    _, found = travelled(code, OWNERS)
    for _, kind, there, back in found:
        if kind == "keys":
            assert there == {}
            assert back["keys"].shape == (150, 32)
        else:
            assert there["0"].shape == (140, 32)
    first = next(back for _, kind, _, back in found if kind != "keys")
    assert shape is None or shape in {a.shape for a in first.values()}


@pytest.mark.parametrize("topology", ["ring", "complete"])
@pytest.mark.parametrize("kind", ["VerticalFederatedPCA", "VerticalFederatedKernelPCA"])
def test_other_topologies(kind, topology):
    with pytest.raises(ValueError, match="topology must be 'server' over a network"):
        client_app(lambda context: ROWS, made(f"{kind}(2, topology={topology!r})"))


def test_expected_scores():
    """Of two factors: sums by eight columns and by two, and the likelihood; no row, no variance."""
    fitted, found = travelled("FederatedHeteroscedasticPCA(2, random_state=0)")
    assert fitted.noise_variances_ == {}
    sizes = {kind: whole(back).size for _, kind, _, back in found}
    assert max(sizes.values()) == sizes["scores"] == 2 * 8 + 2 * 2 + 1


def test_refinements():
    _, found = travelled("FederatedPCA(2, n_refinements=1)")
    for site, kind, there, back in found:
        if kind == "summary":
            continue
        rows, V, mean = PARTS[site], there["1"], there["0"]
        np.testing.assert_allclose(mean, ROWS.mean(axis=0))
        products = V @ (rows - mean).T @ (rows - mean)
        np.testing.assert_allclose(back["products"].reshape(V.shape), products, atol=1e-8)


def test_batches_of_a_tracker():
    _, found = travelled("FederatedSubspaceTracker(2, robust=False, batch_size=30, random_state=0)")
    for _, _, there, back in found:
        assert there["0"].shape == ()  # the number of the batch
        # never as many numbers as a batch has entries
        assert all(a.size < 30 * 8 for a in back.values())


# What a site tells openly, by the kind of question, and the kinds whose sums the server learns
SECURE_SUMS = table("""
FederatedPCA(2) | {} | moments second_moments
DistributedPCA(2) | {} | moments second_moments
FederatedPCA(2, n_refinements=1) | {} | moments scatter products
FederatedPCA(2, missing=AvailablePairs()) | {} | entries pairs
FederatedPCA(2, missing=ConditionalFill(1)) | {} | entries filled
OnlineDistributedPCA(2) | {"bounds": {"bounds", "over"}} | totals space moments
FederatedPowerPCA(2, n_rounds=1, random_state=0) | {} | moments times_scatter variances
FederatedHeteroscedasticPCA(2, tol=1e-2, random_state=0) | {} |\
 moments scatter weighted_moments weighted_variances scores variances
FederatedSubspaceTracker(2, batch_size=60, n_rounds=1, init=FirstSubspace(n_rounds=1),\
 random_state=0) |\
 {"batch": {"bounds", "over"}} |\
 observed low_rank filled misfits moments times_scatter variances
VerticalFederatedPCA(2, method=PowerRounds(n_rounds=1), random_state=0) |\
 {"keys": {"keys", "salt", "columns"}, "columns_bound": {"bounds"}, "parts": {"part", "mean"}} |\
 times_columns scores
""")


@pytest.mark.parametrize(("code", "told", "learnt"), SECURE_SUMS)
def test_secure_sums(code, told, learnt, monkeypatch):
    """What a site does not tell openly it sends masked, of the kinds that the cell names."""
    if "refine" in code:
        monkeypatch.setattr(_estimators, "MAX_FEATURES", 7)
    parts, told, came = OWNERS if "Vertical" in code else PARTS, eval(told), {}
    for _, kind, _, back in travelled(code, parts, SecureAggregation(threshold=3))[1]:
        came.setdefault(kind, set()).update(back)
        assert "masked" not in back or back["masked"].dtype == np.uint64
    for kind in ("secure_keys", "secure_shares", "secure_unmask"):
        assert came.pop(kind) == set()
    assert {kind for kind in came if kind not in told} >= {*learnt.split()}
    assert came.pop("bounds", {"bounds"}) <= told.get("bounds", {"bounds"})
    for kind, names in came.items():
        assert names <= told.get(kind, {"masked"}), kind
