"""The column "over a network" of docs/promises.md: what each cell says is what travels."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from engines.site_helpers import ROWS, InProcessGrid
from engines.test_private_sites import PARTS as SECURE_PARTS
from engines.test_private_sites import ROUNDS, SUMMARY, private_fit

from fedpca_sklearn import (
    AnalyzeGauss,
    AvailablePairs,
    ConditionalFill,
    DistributedPCA,
    FederatedHeteroscedasticPCA,
    FederatedPCA,
    FederatedPowerPCA,
    FederatedScaler,
    FederatedSubspaceTracker,
    FedPowerNoise,
    OnlineDistributedPCA,
    PairMoments,
    PowerRounds,
    Subspace,
    SubspaceMerge,
    TruncatedDistributedPCA,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
    VFedPCA,
)
from fedpca_sklearn.engines import _secure_fits
from fedpca_sklearn.engines.flower import (
    SecureAggregation,
    SitePolicy,
    SiteRows,
    client_app,
    fit_sites,
)
from fedpca_sklearn.privacy import DiscreteGaussian
from fedpca_sklearn.rounds._queries import Moments, TimesScatter, Variances

pytestmark = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
PARTS = {"east": ROWS[:80], "north": ROWS[80:140], "west": ROWS[140:]}
PAGE = (Path(__file__).resolve().parents[2] / "docs/promises.md").read_text()

# By the estimator of a row of the table: what its last cell says, and what tests that.
TESTED = {
    "`FederatedPCA`": (
        "the same, in one message of each site; a mechanism draws its noise at the site, whose "
        "ledger is on its disk; with secure sums the server learns the scatter matrix of all rows",
        ["test_summaries", "test_private_summaries", "test_secure_sums"],
    ),
    "`missing=AvailablePairs()`": (
        "the same, in one message of each site, which refuses if one of these moments is of fewer "
        "rows than `min_rows`; with secure sums the server learns the moments of all rows",
        ["test_moments_of_pairs", "test_secure_sums"],
    ),
    "`missing=ConditionalFill()`": (
        "the same; a site refuses if fewer than `min_rows` rows have a column, or have it not. A "
        "server that sends another model learns the sum of the rows that miss a column, and by "
        "several models single rows; with secure sums it learns sums over all sites",
        ["test_rows_that_are_filled_in", "test_secure_sums"],
    ),
    "`FederatedPCA(merge=SubspaceMerge(fan_in=f))`": (
        "server: every site's summary, as it makes the tree itself",
        ["test_summaries"],
    ),
    '`FederatedPCA(mechanism=...)`, `trust="sum"`': (
        "refused without secure sums, and so are the rounds of `FederatedPowerPCA`; with them the "
        "server learns noisy sums over at least `threshold` sites, each of which adds 1 / "
        "`threshold` of the noise's variance",
        ["test_noise_of_a_sum", "test_noise_of_a_secure_sum"],
    ),
    "`FederatedScaler`": (
        "server: the same, in one message of each site; a site refuses if a column has entries, "
        "but fewer than `min_rows` of them",
        ["test_moments_of_columns"],
    ),
    "`DistributedPCA`": (
        "server: every site's triangle, mean and count; other sites: nothing; with secure sums the "
        "server learns the scatter matrix of all rows",
        ["test_triangles", "test_secure_sums"],
    ),
    "`FederatedPowerPCA`": (
        "server: every site's sum and count, products and variances; sites: the mean and the "
        "bases; with secure sums the server learns sums over all sites",
        ["test_rounds", "test_secure_sums"],
    ),
    "`FederatedHeteroscedasticPCA`": (
        "the same, of every site, whose noise variance follows from its sums; sites: as in the "
        "column before; with secure sums the server learns sums over all sites, and no noise "
        "variance of one",
        ["test_expected_scores", "test_secure_sums"],
    ),
    "`TruncatedDistributedPCA`": (
        "server: the same, in one message of each site",
        ["test_cut_summaries"],
    ),
    "`OnlineDistributedPCA`": (
        "the same, in messages of each site and step; with secure sums the server learns the sums "
        "of projections and of moments over all sites",
        ["test_steps", "test_secure_sums"],
    ),
    "`FederatedPCA(n_refinements=n)`, `refine`": (
        "server: the products of every site; sites: the directions of each round; with secure sums "
        "the server learns their sum",
        ["test_refinements", "test_secure_sums"],
    ),
    "`FederatedSubspaceTracker`": (
        "server: the sums of every site; sites: the models that outliers and holes are filled "
        "with, and the bases; with secure sums the server learns sums over all sites, and which "
        "sites have a batch",
        ["test_batches_of_a_tracker", "test_secure_sums"],
    ),
    **dict.fromkeys(
        [
            '`VerticalFederatedPCA(method="vfedpca")`',
            '`VerticalFederatedPCA(method="merge")`',
            "`VerticalFederatedKernelPCA(aggregation=VFedPCA())`",
        ],
        (
            "the same, and the hashed keys of every site's rows; the keys of those that all have "
            "go to the sites",
            ["test_columns"],
        ),
    ),
    '`VerticalFederatedPCA(method="power")`': (
        "server: products of every site, not only their sums, and the hashed keys of its rows; "
        "sites: as in the column before, and the keys of the rows that all have; with secure sums "
        "the server learns sums of products, and each site's keys and part of the components",
        ["test_columns", "test_secure_sums"],
    ),
    "`VerticalFederatedPCA` without a server": ("refused", ["test_other_topologies"]),
    '`VerticalFederatedKernelPCA(aggregation="exact")`': (
        "server: the kernel of every site's columns, and the hashed keys of its rows; sites: as "
        "in the column before, and the keys of the rows that all have",
        ["test_columns"],
    ),
}


def test_every_cell_has_a_test():
    heading = "| estimator | server | other clients | over a network |\n|---|---|---|---|\n"
    lines = PAGE.split(heading)[1].split("\n\n")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert {first: last for first, *_, last in rows} == {
        first: text for first, (text, _) in TESTED.items()
    }
    named = {name for _, names in TESTED.values() for name in names}
    assert not [name for name in named if not callable(globals().get(name))]


def test_tests_that_the_page_names_are_there():
    """Names of files without a folder are of this one; of a test alone, in the file before it."""
    here, path, names = Path(__file__).parent, None, 0
    for folder, file, name in re.findall(
        r"`(?:(tests/[\w/]*/)?(test_\w+\.py))?(?:::(test_\w+))?`", PAGE
    ):
        if file:
            path = here.parents[1] / folder / file if folder else here / file
            assert path.is_file(), path
        if name:
            assert f"def {name}(" in path.read_text(), (path, name)
            names += 1
    assert names > 40


def travelled(estimator, **policies):
    """A fit, and of each question the site, its kind, and the arrays that went and came."""
    found = []

    def record(site, message, reply):
        there, back = (
            {name: a.numpy() for name, a in record.items()}
            for record in (
                message.content.array_records["arguments"],
                reply.content.array_records["arrays"],
            )
        )
        found.append((site, message.metadata.message_type.removeprefix("query."), there, back))
        return reply

    def load(rows):
        return lambda context: rows

    apps = [
        client_app(load(rows), estimator, policy=policies.get(site)) for site, rows in PARTS.items()
    ]
    fitted = fit_sites(InProcessGrid(apps, list(PARTS), record), estimator, wait=0)
    assert {site for site, *_ in found} == set(PARTS)
    return fitted, found


@pytest.mark.parametrize("merge", [None, SubspaceMerge(fan_in=2)])
def test_summaries(merge):
    _, found = travelled(FederatedPCA(2, merge=merge))
    assert len(found) == 3
    for site, _, there, back in found:
        assert there == {}
        assert list(back) == ["summary"]
        summary = Subspace.from_bytes(back["summary"])
        exact = Subspace.from_rows(PARTS[site])
        assert summary.n_samples == len(PARTS[site])
        np.testing.assert_allclose(summary.singular_values[:2], exact.singular_values[:2])


def test_private_summaries(tmp_path):
    private = FederatedPCA(2, mechanism=AnalyzeGauss(1.0, 1e-5, 20.0))
    policies = {site: SitePolicy(ledger=tmp_path / site) for site in PARTS}
    _, found = travelled(private, **policies)
    assert len(found) == 3
    for site, _, there, back in found:
        assert there == {}
        summary = Subspace.from_bytes(back["summary"])
        assert summary.privacy[:2] == pytest.approx((1.0, 1e-5))
        assert np.abs(summary.mean - PARTS[site].mean(axis=0)).max() > 0.1
        assert (tmp_path / site).stat().st_size > 0


def test_noise_of_a_sum(tmp_path):
    for estimator in (
        FederatedPCA(2, mechanism=AnalyzeGauss(1.0, 1e-5, 20.0, trust="sum")),
        FederatedPowerPCA(2, mechanism=FedPowerNoise(1.0, 1e-5, 20.0, trust="sum")),
    ):
        policies = {site: SitePolicy(ledger=tmp_path / site) for site in PARTS}
        with pytest.raises(ValueError, match="trust='sum' over a network needs secure sums"):
            travelled(estimator, **policies)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("estimator", [SUMMARY, ROUNDS], ids=lambda e: type(e).__name__)
def test_noise_of_a_secure_sum(estimator, tmp_path, monkeypatch):
    """Nothing but masked integers arrives; what is masked has a third of the variance."""
    found, scales = [], []

    def record(site, message, reply):
        found.extend(reply.content.array_records["arrays"])
        return reply

    noisy = DiscreteGaussian.noisy

    def drawn(self, values, std, rng):
        scales.append(std)
        return noisy(self, values, std, rng)

    monkeypatch.setattr(DiscreteGaussian, "noisy", drawn)
    fitted = private_fit(estimator, tmp_path, spoil=record)
    assert set(found) == {"bounds", "masked"}
    mechanism = fitted.mechanism
    n_products = 1 if estimator is SUMMARY else 3
    costs = mechanism.costs(5, n_products)
    in_all = mechanism.row_norm * costs.mean_std
    np.testing.assert_allclose(scales[:3], in_all / np.sqrt(3))
    with pytest.raises(RuntimeError, match=r"a sum of 2 sites needs a threshold|Too few sites: 2"):
        private_fit(estimator, tmp_path, parts=dict(list(SECURE_PARTS.items())[:2]))


def test_triangles():
    _, found = travelled(DistributedPCA(2))
    assert len(found) == 3
    for site, _, there, back in found:
        assert there == {}
        assert set(back) == {"factor", "mean", "mean_rest", "count"}
        R = np.zeros((8, 8))
        R[np.triu_indices(8)] = back["factor"]
        centred = PARTS[site] - PARTS[site].mean(axis=0)
        np.testing.assert_allclose(R.T @ R, centred.T @ centred, atol=1e-9)


@pytest.mark.parametrize("estimator", [FederatedPCA, DistributedPCA])
def test_moments_of_pairs(estimator):
    asked = estimator(2, missing=AvailablePairs())
    _, found = travelled(asked)
    assert len(found) == 3
    for site, _, there, back in found:
        assert there == {}
        assert list(back) == ["pairs"]
        sent, rows = PairMoments.from_bytes(back["pairs"]), PARTS[site]
        np.testing.assert_allclose(sent.products, np.cov(rows.T, bias=True) * len(rows))
    few = np.where(np.arange(len(ROWS))[:, None] == np.arange(8), np.nan, ROWS)
    app = client_app(lambda context: few, asked)  # each column is missing in one row
    with pytest.raises(RuntimeError, match="refused: fewer than 10 rows have a pair of columns"):
        fit_sites(InProcessGrid([app] * 2, ["east", "west"]), asked, wait=0)


def test_rows_that_are_filled_in():
    _, found = travelled(FederatedPCA(2, missing=ConditionalFill(n_rounds=1)))
    assert [kind for _, kind, *_ in found] == ["entries"] * 3 + ["filled"] * 6
    for site, kind, there, back in found:
        if kind == "entries":
            assert there == {}
            np.testing.assert_allclose(back["entries"][0], PARTS[site].mean(axis=0))
            continue
        np.testing.assert_allclose(there["0"][0], ROWS.mean(axis=0))
        assert list(back) == ["summary"]
        assert Subspace.from_bytes(back["summary"]).n_samples == len(PARTS[site])
    # the rest of the cell: tests/engines/test_hostile_server.py


def test_rounds():
    fitted, found = travelled(FederatedPowerPCA(2, n_rounds=3, random_state=0))
    kinds = [Moments.kind] * 3 + [TimesScatter.kind] * 3 * fitted.n_iter_ + [Variances.kind] * 3
    assert [kind for _, kind, *_ in found] == kinds
    for site, kind, there, back in found:
        rows, message = PARTS[site], back["message"]
        if kind == Moments.kind:
            assert there == {}
            np.testing.assert_allclose(message, [*rows.sum(axis=0), len(rows)])
            continue
        V, mean = there["0"], there["1"]
        np.testing.assert_allclose(mean, ROWS.mean(axis=0))
        product = V @ (rows - mean).T @ (rows - mean)
        if kind == Variances.kind:
            product = [*(product @ V.T).ravel(), np.square(rows - mean).sum(), len(rows)]
        np.testing.assert_allclose(message, product, atol=1e-8)


def test_cut_summaries():
    _, found = travelled(TruncatedDistributedPCA(2, local_threshold=0.5))
    assert len(found) == 3
    for site, _, there, back in found:
        assert there == {}
        assert list(back) == ["summary"]
        summary = Subspace.from_bytes(back["summary"])
        exact = Subspace.from_rows(PARTS[site])
        k = len(summary.singular_values)
        np.testing.assert_allclose(summary.singular_values, exact.singular_values[:k])


def test_moments_of_columns():
    _, found = travelled(FederatedScaler())
    assert len(found) == 3
    for site, _, there, back in found:
        assert there == {}
        count, mean, rest, squares = back["moments"]
        rows = PARTS[site]
        np.testing.assert_array_equal(count, len(rows))
        np.testing.assert_allclose(mean, rows.mean(axis=0))
        assert np.abs(rest).max() < 1e-14
        np.testing.assert_allclose(squares, len(rows) * rows.var(axis=0))
    # the other half of the cell: tests/engines/test_hostile_server.py


@pytest.mark.parametrize("variances", ["measured", "sent"])
def test_steps(variances):
    _, found = travelled(OnlineDistributedPCA(2, variances=variances))
    spaces = [one for one in found if one[1] == "space"]
    for _, _, there, back in spaces:
        assert there["0"].shape == ()  # the number of the step
        if "over" not in back:
            assert Subspace.from_bytes(back["summary"]).n_components <= 8
    rest = [one for one in found if one[1] != "space"]
    assert (rest == []) == (variances == "sent")
    assert all(there["1"].shape[1] == 8 for *_, there, _ in rest)  # the server's basis


SALT = b"agreed among the sites, not here"
OWNERS = {
    site: SiteRows(ROWS[at, columns], keys=np.arange(200)[at], salt=SALT)
    for site, at, columns in (
        ("bank", slice(0, 150), slice(0, 3)),
        ("clinic", slice(10, 160), slice(3, 5)),
        ("shop", slice(5, 155), slice(5, 8)),
    )
}


@pytest.mark.parametrize(
    ("estimator", "shape"),
    [  # what the first answer about columns holds, of 140 rows that all have
        (VerticalFederatedPCA(2, random_state=0), (140,)),
        (VerticalFederatedPCA(2, method="merge"), None),
        (VerticalFederatedPCA(2, method="power", random_state=0), (2, 140)),
        (VerticalFederatedKernelPCA(2, aggregation="exact"), (140, 140)),
        (VerticalFederatedKernelPCA(2, aggregation=VFedPCA(), random_state=0), (140,)),
    ],
)
def test_columns(estimator, shape):
    found = []

    def record(site, message, reply):
        kind = message.metadata.message_type.removeprefix("query.")
        found.append((site, kind, arrays_of(message, "arguments"), arrays_of(reply, "arrays")))
        return reply

    apps = [client_app(lambda context, rows=rows: rows, estimator) for rows in OWNERS.values()]
    fit_sites(InProcessGrid(apps, list(OWNERS), record), estimator, wait=0)
    for _, kind, there, back in found:
        if kind == "keys":
            assert there == {}
            assert next(v for v in back.values() if v.dtype == np.uint8).shape == (150, 32)
        else:
            assert there["0"].shape == (140, 32)
    first = next(back for _, kind, _, back in found if kind != "keys")
    assert shape is None or shape in {a.shape for a in first.values()}


def arrays_of(message, name):
    return {key: a.numpy() for key, a in message.content.array_records[name].items()}


@pytest.mark.parametrize("topology", ["ring", "complete"])
def test_other_topologies(topology):
    for kind in (VerticalFederatedPCA, VerticalFederatedKernelPCA):
        with pytest.raises(ValueError, match="topology must be 'server' over a network"):
            client_app(lambda context: ROWS, kind(2, topology=topology))


def test_expected_scores():
    """Of each round the sums of HePPCAT, which tell the noise of a site that goes on."""
    fitted, found = travelled(FederatedHeteroscedasticPCA(2, random_state=0))
    assert fitted.noise_variances_ == {}
    noise = {}
    for site, kind, there, back in found:
        if kind != "scores":
            assert set(back) == {"message"}
            continue
        rows, F, mean, unit = PARTS[site], there["0"], there["1"], float(there["2"])
        Z, (n, d) = (rows - mean) / unit, rows.shape
        if site in noise:  # the step of a site that has the noise of the round before
            W = np.linalg.inv(F @ F.T + noise[site] * np.eye(2))
            z = Z @ F.T @ W
            left = np.sum(Z**2) - 2 * np.sum(z * (Z @ F.T))
            left += np.trace(F @ F.T @ (z.T @ z + n * noise[site] * W))
            noise[site] = left / (n * d)
        else:
            outside = Z - Z @ np.linalg.pinv(F) @ F
            noise[site] = np.sum(outside**2) / (n * (d - 2))
        v = noise[site]
        W = np.linalg.inv(F @ F.T + v * np.eye(2))
        z = Z @ F.T @ W
        sums = (z.T @ Z / v).ravel(), (z.T @ z / v + n * W).ravel()
        np.testing.assert_allclose(back["message"][:-1], np.concatenate(sums), rtol=1e-8)
        covariance = unit**2 * (F.T @ F + v * np.eye(d))
        density = scipy.stats.multivariate_normal(mean, covariance).logpdf(rows).sum()
        np.testing.assert_allclose(back["message"][-1], density, rtol=1e-9)


def test_refinements():
    _, found = travelled(FederatedPCA(2, n_refinements=1))
    for site, kind, there, back in found:
        if kind == "summary":
            continue
        rows, V, mean = PARTS[site], there["1"], there["0"]
        np.testing.assert_allclose(mean, ROWS.mean(axis=0))
        products = V @ (rows - mean).T @ (rows - mean)
        np.testing.assert_allclose(back["message"][: V.size].reshape(V.shape), products, atol=1e-8)


def test_batches_of_a_tracker():
    estimator = FederatedSubspaceTracker(2, robust=False, batch_size=30, random_state=0)
    fitted, found = travelled(estimator)
    assert fitted.clients_ == list(PARTS)
    for _, _, there, back in found:
        assert there["0"].shape == ()  # the number of the batch
        # never as many numbers as a batch has entries
        assert all(a.size < 30 * 8 for a in back.values())


@pytest.mark.parametrize(
    ("estimator", "told", "learnt"),
    [
        (FederatedPCA(2), {}, {"moments", "second_moments"}),
        (DistributedPCA(2), {}, {"moments", "second_moments"}),
        (FederatedPCA(2, n_refinements=1), {}, {"moments", "scatter", "products"}),
        (FederatedPCA(2, missing=AvailablePairs()), {}, {"entries", "pairs"}),
        (FederatedPCA(2, missing=ConditionalFill(1)), {}, {"entries", "filled"}),
        (
            OnlineDistributedPCA(2),
            {"bounds": {"bounds", "over"}},
            {"totals", "space", "moments"},
        ),
        (
            FederatedPowerPCA(2, n_rounds=1, random_state=0),
            {},
            {"moments", "times_scatter", "variances"},
        ),
        (
            FederatedHeteroscedasticPCA(2, random_state=0),
            {},
            {"moments", "scatter", "weighted_moments", "weighted_variances", "scores", "variances"},
        ),
        (
            FederatedSubspaceTracker(2, batch_size=60, n_rounds=1, init_rounds=1, random_state=0),
            {"batch": {"count", "columns", "bounds", "over"}},
            {"observed", "low_rank", "filled", "misfits", "moments", "times_scatter", "variances"},
        ),
        (
            VerticalFederatedPCA(2, method=PowerRounds(n_rounds=1), random_state=0),
            {
                "keys": {"keys", "salt", "columns"},
                "columns_bound": {"bounds"},
                "parts": {"part", "mean"},
            },
            {"times_columns", "scatter"},
        ),
    ],
)
def test_secure_sums(estimator, told, learnt, monkeypatch):
    """What a site does not tell openly it sends masked, of the kinds that the cell names."""
    came = {}

    def record(site, message, reply):
        kind = message.metadata.message_type.removeprefix("query.")
        came.setdefault(kind, set()).update(arrays_of(reply, "arrays"))
        masked = arrays_of(reply, "arrays").get("masked")
        assert masked is None or masked.dtype == np.uint64
        return reply

    if getattr(estimator, "n_refinements", 0):
        monkeypatch.setattr(_secure_fits, "MAX_FEATURES", 7)
    parts = OWNERS if isinstance(estimator, VerticalFederatedPCA) else PARTS
    secure = SecureAggregation(threshold=3)
    apps = [
        client_app(lambda context, rows=rows: rows, estimator, secure=secure)
        for rows in parts.values()
    ]
    fitted = fit_sites(InProcessGrid(apps, list(parts), record), estimator, wait=0, secure=secure)
    assert fitted.clients_ == list(parts)
    for kind in ("secure_keys", "secure_shares", "secure_unmask"):
        assert came.pop(kind) == set()
    assert {kind for kind in came if kind not in told} >= learnt
    assert came.pop("bounds", {"bounds"}) <= told.get("bounds", {"bounds"})
    for kind, names in came.items():
        assert names <= told.get(kind, {"masked"}), kind
