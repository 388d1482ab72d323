"""The column "over a network" of docs/promises.md: what each cell says is what travels."""

from collections import ChainMap, defaultdict
from pathlib import Path

import numpy as np
import pytest
from engines.site_helpers import PARTS, ROWS, SALT, arrays_of, fit, kind_of, made, table
from engines.test_private_sites import PARTS as SECURE_PARTS
from engines.test_private_sites import ROUNDS, SUMMARY, private_fit
from sklearn.base import clone

from fedpca_sklearn.engines import _estimators
from fedpca_sklearn.engines.flower import SecureAggregation, SiteRows, client_app
from fedpca_sklearn.privacy import DiscreteGaussian

pytestmark = pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning")
PAGE = (Path(__file__).resolve().parents[2] / "docs/promises.md").read_text()

OWNERS = {
    site: SiteRows(ROWS[at, columns], keys=np.arange(200)[at], salt=SALT)
    for site, at, columns in (
        ("bank", slice(0, 150), slice(0, 3)),
        ("clinic", slice(10, 160), slice(3, 5)),
        ("shop", slice(5, 155), slice(5, 8)),
    )
}


# Row of the page | an estimator | of each kind of question, the largest shapes that go and come
SENT = table("""
`FederatedPCA` | FederatedPCA(2) | summary summary=468
`FederatedPCA(merge=SubspaceMerge(fan_in=f))` | FederatedPCA(2, merge=SubspaceMerge(fan_in=2)) |\
 summary summary=468
`TruncatedDistributedPCA` | TruncatedDistributedPCA(2, local_threshold=0.5) | summary summary=260
`DistributedPCA` | DistributedPCA(2) | factor count=1 factor=36 mean=8 mean_rest=8
`missing=AvailablePairs()` | FederatedPCA(2, missing=AvailablePairs()) | pairs pairs=1188
`missing=ConditionalFill()` | FederatedPCA(2, missing=ConditionalFill(n_rounds=1)) |\
 entries count=1 counts=8 sum=8; filled 0=3x8 1=4 summary=468
`FederatedScaler` | FederatedScaler() | moments moments=4x8
`FederatedPowerPCA` | FederatedPowerPCA(2, n_rounds=3, random_state=0) | moments count=1 sum=8;\
 times_scatter 0=2x8 1=8 2= products=2x8; variances 0=2x8 1=8 count=1 scatter=5
`FederatedHeteroscedasticPCA` | FederatedHeteroscedasticPCA(2, random_state=0) |\
 moments count=1 sum=8; scatter 0=8 count=1 scatter=1; weighted_moments 0= count=1 sum=8;\
 weighted_times_scatter 0=2x8 1=8 2= 3= products=2x8;\
 weighted_variances 0=2x8 1=8 2= count=1 scatter=5; scores 0=2x8 1=8 2= message=21;\
 times_scatter 0=2x8 1=8 2= products=2x8; variances 0=4x8 1=8 count=1 scatter=17
`OnlineDistributedPCA` | OnlineDistributedPCA(2) | space 0= over=1 summary=324;\
 moments 0= 1=6x8 factor=6x6
`OnlineDistributedPCA` | OnlineDistributedPCA(2, variances='sent') | space 0= over=1 summary=260
`FederatedPCA(n_refinements=n)`, `refine` | FederatedPCA(2, n_refinements=1) |\
 summary summary=468; products 0=8 1=8x8 count=1 products=64 rest=8 scatter=1
`FederatedSubspaceTracker` | FederatedSubspaceTracker(2, robust=False, batch_size=30,\
 random_state=0) |\
 batch 0= bounds=4 over=1; observed 0= rows=9 total=8; filled 0= 1=3x8 2=3x8 3=3 4=9 count=1;\
 moments 0= 1=3x8 2=3x8 3=3 4=9 count=1 sum=8;\
 times_scatter 0= 1=3x8 2=3x8 3=3 4=9 5=2x8 6=8 products=2x8;\
 variances 0= 1=3x8 2=3x8 3=3 4=9 5=2x8 6=8 count=1 scatter=5;\
 misfits 0= 1=3x8 2=3x8 3=3 4=9 residual=1 rows=12 square=1
`VerticalFederatedPCA(method="vfedpca")` | VerticalFederatedPCA(2, random_state=0) |\
 keys columns=1 keys=150x32 salt=8; period 0=140x32 1=2x140 2=2x140 3=140 value=1 vector=140;\
 scores 0=140x32 1=2x140 products=2x140 scatter=1; parts 0=140x32 1=2x140 mean=3 part=2x3
`VerticalFederatedPCA(method="merge")` | VerticalFederatedPCA(2, method="merge") |\
 keys columns=1 keys=150x32 salt=8; left_vectors 0=140x32 summary=5676;\
 scores 0=140x32 1=2x140 products=2x140 scatter=1; parts 0=140x32 1=2x140 mean=3 part=2x3
`VerticalFederatedPCA(method="power")` | VerticalFederatedPCA(2, method="power", random_state=0) |\
 keys columns=1 keys=150x32 salt=8; times_columns 0=140x32 1=2x140 products=2x140;\
 scores 0=140x32 1=2x140 products=2x140 scatter=1; parts 0=140x32 1=2x140 mean=3 part=2x3
`VerticalFederatedKernelPCA(aggregation="exact")` |\
 VerticalFederatedKernelPCA(2, aggregation="exact") |\
 keys columns=1 keys=150x32 salt=8; kernel_part 0=140x32 1=140 part=140x140
`VerticalFederatedKernelPCA(aggregation=VFedPCA())` |\
 VerticalFederatedKernelPCA(2, aggregation=VFedPCA(), random_state=0) |\
 keys columns=1 keys=150x32 salt=8; period 0=140x32 1=2x140 2=2x140 3=140 4= value=1 vector=140;\
 energies 0=140x32 1=2x140 2= energies=2
""")
# Rows of the page that other tests are about; what is masked is below
ELSEWHERE = {
    '`FederatedPCA(mechanism=...)`, `trust="sum"`': "test_noise_of_a_secure_sum",
    "`VerticalFederatedPCA` without a server": "test_other_topologies",
}


def test_every_row_of_the_page_has_a_test():
    heading = "| estimator | server | other clients | over a network |\n|---|---|---|---|\n"
    lines = PAGE.split(heading)[1].split("\n\n")[0].splitlines()
    firsts = {line.strip("|").split(" | ")[0].strip() for line in lines}
    assert firsts == {first for first, *_ in SENT} | {*ELSEWHERE}
    assert all(callable(globals()[name]) for name in ELSEWHERE.values())


def travelled(code, parts=PARTS, secure=None):
    """Of each question of a fit its kind, and the arrays that went and came."""
    found = []

    def record(site, message, reply):
        found.append((kind_of(message), arrays_of(message, "arguments"), arrays_of(reply)))
        return reply

    assert fit(made(code), parts, record, secure).clients_ == list(parts)
    return found


@pytest.mark.parametrize(("_", "code", "expected"), SENT)
def test_what_travels(_, code, expected):
    largest = defaultdict(dict)
    for kind, *both in travelled(code, OWNERS if "Vertical" in code else PARTS):
        for name, array in ChainMap(*both).items():
            largest[kind][name] = max(largest[kind].get(name, ()), array.shape)
    told = (
        " ".join([kind, *(f"{name}={'x'.join(map(str, of[name]))}" for name in sorted(of))])
        for kind, of in largest.items()
    )
    assert "; ".join(told) == expected


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


@pytest.mark.parametrize("kind", ["FederatedPCA", "DistributedPCA"])
def test_a_pair_of_columns_that_few_rows_have_ends_the_fit(kind):
    few = np.where(np.arange(len(ROWS))[:, None] == np.arange(8), np.nan, ROWS)
    with pytest.raises(RuntimeError, match="refused: fewer than 10 rows have a pair of columns"):
        # each column is missing in one row
        fit(made(f"{kind}(2, missing=AvailablePairs())"), {"east": few, "west": few})


@pytest.mark.parametrize("topology", ["ring", "complete"])
@pytest.mark.parametrize("kind", ["VerticalFederatedPCA", "VerticalFederatedKernelPCA"])
def test_other_topologies(kind, topology):
    with pytest.raises(ValueError, match="topology must be 'server' over a network"):
        client_app(lambda context: ROWS, made(f"{kind}(2, topology={topology!r})"))


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
    for kind, _, back in travelled(code, parts, SecureAggregation(threshold=3)):
        came.setdefault(kind, set()).update(back)
        assert "masked" not in back or back["masked"].dtype == np.uint64
    for kind in ("secure_keys", "secure_shares", "secure_unmask"):
        assert came.pop(kind) == set()
    assert {kind for kind in came if kind not in told} >= {*learnt.split()}
    assert came.pop("bounds", {"bounds"}) <= told.get("bounds", {"bounds"})
    for kind, names in came.items():
        assert names <= told.get(kind, {"masked"}), kind
