"""A fit over sites is that of one process: estimator x rows x transport x {plain, secure, private}.

That a fit of one process is right is shown where the estimator is tested, and of rows at clients in
test_clients_in_common.py, by scikit-learn's PCA of the pooled rows.
"""

import re
from pathlib import Path

import numpy as np
import pytest
from engines.site_helpers import (
    PARTS,
    ROWS,
    SALT,
    SECURE,
    assert_same,
    fit,
    grid_of,
    here,
    in_one_process,
    joined,
    kind_of,
    lost,
    made,
    sites_of,
    table,
    whole,
)
from engines.test_files import answered, by_files
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.decomposition import PCA

from fedpca_sklearn import make_subspace_stream, subspace_distance
from fedpca_sklearn._kernels.row_moments import SiteMoments
from fedpca_sklearn.engines._estimators import check_parameters, secure_tasks, site_work
from fedpca_sklearn.engines._parameters import construction_of
from fedpca_sklearn.engines._rounds import of_query
from fedpca_sklearn.engines.flower import (
    NoBatchError,
    SecureAggregation,
    SitePolicy,
    SiteRows,
    client_app,
    fit_sites,
    partial_fit_sites,
)
from fedpca_sklearn.rounds._queries import Moments

pytestmark = [
    pytest.mark.filterwarnings("ignore::fedpca_sklearn.PrivacyNoiseWarning"),
    pytest.mark.filterwarnings("ignore::fedpca_sklearn.privacy.PrivacyBoundWarning"),
]
PAGE = Path(__file__).resolve().parents[2] / "docs/promises.md"
TRACKER = (
    "FederatedSubspaceTracker(2, batch_size=20, init=FirstSubspace(n_rows=20, n_rounds=2),"
    " n_rounds=2, random_state=0, support_threshold=0.5, "
)

# Of the page, with the rows of each.
ESTIMATORS = table("""
FederatedPCA(3) | rows
FederatedPCA(3, n_refinements=2) | wide
FederatedPCA(3, missing=AvailablePairs()) | holes
FederatedPCA(3, missing=ConditionalFill(n_rounds=2)) | holes
FederatedScaler() | rows
DistributedPCA(3) | rows
TruncatedDistributedPCA(3) | rows
OnlineDistributedPCA(3) | rows
FederatedPowerPCA(3, n_rounds=4, random_state=0) | rows
FederatedSubspaceTracker(2, batch_size=40, init=FirstSubspace(n_rows=40, n_rounds=4), n_rounds=2,\
 robust=False, random_state=0) | stream
VerticalFederatedPCA(3, method="power", random_state=0) | owners
VerticalFederatedPCA(3, method="merge") | owners
VerticalFederatedPCA(3, method="vfedpca", random_state=0) | owners
VerticalFederatedKernelPCA(3, aggregation="exact") | owners
VerticalFederatedKernelPCA(3, aggregation=VFedPCA(), random_state=0) | owners
PersonalizedPCA(2) | rows
FederatedHeteroscedasticPCA(2, tol=1e-3, random_state=0) | strong
""")
MECHANISMS = {
    "FederatedPCA": made("AnalyzeGauss(4.0, 1e-3, 60.0)"),
    "FederatedPowerPCA": made("FedPowerNoise(4.0, 1e-3, 60.0)"),
    "FederatedScaler": made("ScalerNoise(4.0, 1e-3, bounds=(1.0, 16.0))"),
}
MODES = ["plain", "secure sums", "mechanism", "mechanism and secure sums"]

# Estimator | rows | secure sums or not | tolerance
MORE = table(f"""
FederatedPCA(0.8) | rows | secure | 1e-6
FederatedPCA(3) | far | plain | 1e-9
FederatedPCA(3) | far | secure | 1e-6
DistributedPCA(3) | far part weights | plain | 1e-9
FederatedPowerPCA(3, random_state=0) | far | plain | 1e-9
FederatedPowerPCA(3, random_state=0) | far | secure | 1e-6
FederatedPCA(5) | mixed | secure | 2e-6
FederatedPCA(5) | batches | plain | 1e-10
FederatedPCA() | part weights | plain | 1e-9
FederatedPCA(5, merge=SubspaceMerge(center="site")) | rows | plain | 1e-10
FederatedPCA(5, merge=ProjectionAverage()) | rows | plain | 1e-10
FederatedPCA(2, scale=True, partial_out=["age"]) | frames | plain | 1e-10
FederatedPCA(2, scale=True) | constant | secure | 1e-6
FederatedPCA(2) | all constant | secure | 1e-10
FederatedPCA(3, scale=True, partial_out=[5], n_refinements=3) | wide | plain | 1e-5
FederatedPCA(3, n_refinements=3) | wide weights | plain | 1e-9
FederatedPCA(3, n_refinements=2) | wide large | plain | 1e-9
FederatedPCA(3, missing=AvailablePairs()) | holes of units | secure | 1e-9
FederatedPCA(3, missing=AvailablePairs()) | holes and weights | secure | 1e-9
DistributedPCA(3, missing=AvailablePairs()) | far holes | secure | 1e-7
FederatedPCA(3, missing=ConditionalFill(3)) | far holes | secure | 1e-9
FederatedPCA(3, missing=ConditionalFill(3)) | holes and weights | secure | 1e-9
FederatedPCA(0.6, missing=ConditionalFill(n_rounds=2)) | holes | plain | 1e-10
FederatedPCA("held-out", missing=ConditionalFill()) | holes | secure | 1e-9
FederatedScaler() | holes | plain | 1e-12
FederatedScaler() | frames | secure | 1e-9
FederatedScaler(with_mean=False) | sparse | plain | 1e-12
DistributedPCA(5) | mixed | plain | 2e-6
DistributedPCA(2, scale=True, partial_out=["age"]) | frames | secure | 1e-8
TruncatedDistributedPCA(0.7, local_threshold=0.8) | rows | plain | 1e-10
OnlineDistributedPCA(3) | weights | plain | 1e-10
OnlineDistributedPCA(3, weighting="rows") | weights | secure | 1e-9
OnlineDistributedPCA(3, projection_dim=5) | rows | secure | 1e-9
OnlineDistributedPCA(3, center=False) | rows | secure | 1e-9
OnlineDistributedPCA(3) | all constant | plain | 1e-10
OnlineDistributedPCA(3) | all constant | secure | 1e-10
FederatedPowerPCA(3, acceleration="krylov", random_state=0) | batches | plain | 1e-10
FederatedPowerPCA(3, random_state=0) | weights | plain | 1e-10
FederatedPowerPCA(3, local_steps=3, n_rounds=5, random_state=0) | rows | plain | 1e-10
FederatedPowerPCA(3, local_steps=3, n_rounds=2, random_state=0) | rows | secure | 1e-6
FederatedPowerPCA(3, center=False, n_rounds=2, random_state=0) | rows | secure | 1e-6
{TRACKER}robust=False) | short stream | plain | 1e-7
{TRACKER}center=False, forgetting_factor=0.0, fill="subspace", n_iter=2) | short stream |\
 plain | 1e-7
{TRACKER}detect_changes=ChangeDetection(2)) | stream | plain | 1e-7
VerticalFederatedPCA(3, method=PowerRounds(tol=1e-13), center=False, random_state=0) | owners |\
 plain | 1e-8
VerticalFederatedPCA(2, method=LeftVectorMerge(2)) | owners | plain | 1e-8
VerticalFederatedPCA(2, method=VFedPCA(n_rounds=3, weighting="eigenvalue", update="cumulative",\
 warm_start=False), random_state=1) | owners | plain | 1e-8
VerticalFederatedPCA(2, method="power", random_state=0) | constant columns | plain | 1e-8
VerticalFederatedPCA(2, method="vfedpca", random_state=0) | constant columns | plain | 1e-8
VerticalFederatedPCA(3, method="merge") | single owners | plain | 1e-6
VerticalFederatedKernelPCA(3, kernel="linear", projection="features") | owners | plain | 1e-7
VerticalFederatedKernelPCA(2, kernel="poly", n_landmarks=40, random_state=1) | owners | plain | 1e-7
VerticalFederatedKernelPCA(2, aggregation=VFedPCA(n_rounds=3, update="original_columns"),\
 random_state=0) | owners | plain | 1e-7
VerticalFederatedKernelPCA(2, kernel="poly", degree=2, aggregation="paper", projection="features",\
 random_state=0) | owners | plain | 1e-7
""")


# -------------------------------------------------------------------- the table of the page


def in_mode(estimator, mode):
    """The estimator as a mode has it, and secure sums or None; None where it has no mechanism."""
    secure = SECURE if "secure" in mode else None
    if "mechanism" not in mode:
        return estimator, secure
    mechanism = MECHANISMS.get(type(estimator).__name__)
    if mechanism is None:
        return None, secure
    if secure is not None:
        secure = SecureAggregation(threshold=2, restarts=0)
        mechanism = clone(mechanism).set_params(trust="sum", noise=made("DiscreteGaussian()"))
    return clone(estimator).set_params(mechanism=mechanism), secure


def cell(estimator, mode):
    """ "yes", or why not."""
    wanted, secure = in_mode(estimator, mode)
    if wanted is None:
        return "no: it takes no mechanism"
    try:
        site_work(wanted) if secure is None else secure_tasks(wanted, secure)
        check_parameters(wanted)
    except TypeError:
        return "no: not written yet"
    except ValueError as error:
        return f"no: {re.split(', got|, because', str(error))[0].rstrip('.')}"
    return "yes"


def test_the_page_has_this_table():
    lines = [f"| estimator | {' | '.join(MODES)} |", "|---" * (1 + len(MODES)) + "|"]
    for code, _ in ESTIMATORS:
        cells = " | ".join(cell(made(code), mode) for mode in MODES)
        lines.append(f"| `{construction_of(made(code))}` | {cells} |")
    text = "\n".join(lines)
    assert text in PAGE.read_text(), f"docs/promises.md must have this table:\n{text}"


# By files each question repeats the fit so far; rounds of any number are below
FEWER = {
    "FederatedSubspaceTracker": {
        "n_rounds": 1,
        "batch_size": 80,
        "init": made("FirstSubspace(n_rows=80, n_rounds=1)"),
    },
    "FederatedPowerPCA": {"n_rounds": 2},
    "FederatedHeteroscedasticPCA": {"tol": 0.1, "n_rounds": 1},
    'method="vfedpca"': {"method": made("VFedPCA(n_rounds=2)")},
    'method="power"': {"method": made("PowerRounds(n_rounds=1)")},
    "aggregation=VFedPCA()": {"aggregation": made("VFedPCA(n_rounds=2)")},
}
CELLS = [
    (code, kind, mode, transport)
    for code, kind in ESTIMATORS
    for mode in MODES
    for transport in ("Flower", "files")
    if cell(made(code), mode) == "yes"
]


def assert_free_again(folder, site, parts, policies, secure):
    """What was asked last is asked again: the answer that was written comes, at no cost."""
    (*_, last), ledger = sorted(folder.glob(f"*.{site}.answer")), policies[site].ledger
    before = b"" if ledger is None else Path(ledger.path).read_bytes()
    how = {"policy": policies[site], "secure": secure}
    answered(last, parts[site], out=folder / "again", **how)
    assert (folder / "again").read_bytes() == last.read_bytes()
    assert ledger is None or Path(ledger.path).read_bytes() == before


@pytest.mark.parametrize(("code", "kind", "mode", "transport"), CELLS)
def test_a_cell_of_the_table(code, kind, mode, transport, tmp_path):
    estimator, parts = made(code), sites_of(kind)
    if transport == "files":
        parts = dict(list(parts.items())[:2])
    for words, fewer in FEWER.items():
        if words in code:
            estimator = clone(estimator).set_params(**fewer)
    wanted, secure = in_mode(estimator, mode)
    policies = dict.fromkeys(parts, SitePolicy(min_rows=1))
    if "mechanism" in mode:
        rules = {"mechanism": wanted.mechanism}
        policies = {site: SitePolicy(ledger=tmp_path / f"{site}.ledger", **rules) for site in parts}
    sums = []

    def count(site, message, reply):
        sums.extend([site] * (kind_of(message) == "secure_unmask"))
        return reply

    if transport == "Flower":
        found = fit(wanted, parts, count, secure, policies=policies)
    else:
        found = by_files(tmp_path / "study", wanted, parts, policies, secure)
        assert_free_again(tmp_path / "study", next(iter(parts)), parts, policies, secure)
    assert found.clients_ == list(parts)
    assert not sums or found.communication_.rounds == sums.count(found.clients_[0])
    if "mechanism" in mode:  # the noise is the operating system's: its distribution is tested
        # in test_private_sites.py, which sees the same messages
        # of shares of noise, and of rounds that a fit did not need, less is spent
        assert 2.0 < found.privacy_spent_.epsilon <= 4.0 * (1 + 1e-9)
        return
    tol = 1e-6 if secure is not None or "Tracker" in code else 1e-8
    whole = in_one_process(code, kind, *parts) if estimator is made(code) else None
    expected = whole or here(estimator, parts)
    exact = secure is not None and "refine" in code
    assert_same(found, expected, tol, without=["components_"] if exact else [])
    if exact:  # sums of second moments need no round, and rounds come near
        assert_allclose(found.components_, expected.components_, atol=1e-3)


# -------------------------------------------------------------------- more rows and parameters


@pytest.mark.parametrize(("code", "kind", "mode", "tol"), MORE)
def test_a_fit_over_sites_is_that_of_one_process(code, kind, mode, tol):
    estimator, parts, expected = made(code), sites_of(kind), in_one_process(code, kind)
    before = repr(estimator.get_params())
    found = fit(estimator, parts, secure=SECURE if mode == "secure" else None, min_rows=1)
    assert_same(found, expected, float(tol))
    assert type(found) is type(estimator)
    assert repr(found.get_params()) == repr(estimator.get_params()) == before
    assert (found.clients_, found.missing_sites_) == (list(parts), {})
    first = next(iter(parts.values()))
    if "owners" in kind:
        assert found.n_rows_left_out_ == {"bank": 10, "clinic": 10, "shop": 10}
        assert found.feature_names_in_.tolist() == list("abcdefgh")
        if hasattr(found, "subspace_"):
            assert found.subspace_.feature_names == tuple("abcdefgh")
    elif kind == "frames":
        assert found.feature_names_in_.tolist() == list(first.columns)
    if "mixed" in kind or "single" in kind:
        assert found.components_.dtype == np.float32


def test_new_rows_are_scored_by_combinations_of_columns_and_not_by_kernels_at_sites():
    parts = sites_of("owners")
    rows = joined(parts)
    for code in (
        'VerticalFederatedPCA(3, method="power", random_state=0)',
        'VerticalFederatedKernelPCA(3, kernel="linear", projection="features")',
        'VerticalFederatedKernelPCA(3, kernel="linear", projection="samples")',
    ):
        found, expected = fit(made(code), parts), here(made(code), parts)
        found.__dict__.pop("feature_names_in_")
        if "samples" not in code:
            assert_allclose(found.transform(rows), expected.transform(rows), atol=1e-7)
            continue
        with pytest.raises(ValueError, match="fitted at sites needs projection='features'"):
            found.transform(rows)


def test_columns_of_one_name_at_two_owners_are_told_apart_by_the_owner():
    def renamed(own):
        return SiteRows(own.X.rename(columns={"h": "a"}), keys=own.keys, salt=SALT)

    parts = {site: renamed(own) for site, own in sites_of("owners").items()}
    found = fit(made('VerticalFederatedPCA(2, method="merge")'), parts)
    assert found.feature_names_in_[[0, -1]].tolist() == ["bank: a", "shop: a"]


def test_the_log_counts_what_was_sent():
    codes = ("FederatedPowerPCA(3, n_rounds=4, random_state=0)", "OnlineDistributedPCA(3)")
    refined = ("FederatedPCA(3, n_refinements=2)", "FederatedPCA(3, n_refinements=2, tol=0.9)")
    for code in codes + refined:
        assert fit(made(code)).communication_ == in_one_process(code, "rows").communication_
    code, kind = "VerticalFederatedKernelPCA(3, n_landmarks=20)", "owners"
    log, expected = fit(made(code), sites_of(kind)).communication_, in_one_process(code, kind)
    assert (log.rounds, log.floats_up) == (1, expected.communication_.floats_up) == (1, 3 * 50 * 20)
    code = "OnlineDistributedPCA(3)"
    with pytest.warns(UserWarning, match="Fitted without site 'west'"):
        log = fit(made(code), spoil=lost(kind="moments")).communication_
    assert log == in_one_process(code, "rows", "east", "north").communication_
    log = fit(made("DistributedPCA(3)")).communication_
    # three triangles of 8 columns, three means in two floats, three counts
    assert (log.rounds, log.floats_up, log.bytes_up) == (1, 3 * (36 + 9), 3 * 8 * (36 + 17))
    log = fit(made("DistributedPCA(3)"), secure=SECURE).communication_
    keys, boxes, shares, bounds = 2 * 49, 2 * 168, 3 * 70, 32  # of each site in each of two sums
    assert log.bytes_up == 8 * log.floats_up + 2 * 3 * (keys + boxes + shares)
    assert log.bytes_down == 8 * log.floats_down + 2 * 3 * (3 * keys + boxes + 3 * bounds)


# -------------------------------------------------------------------- batch by batch


def test_thresholds_stay_where_a_batch_lacks_a_site():
    """As in one process, where rows that are fewer than a batch find none."""
    code = TRACKER.replace("threshold=0.5", 'threshold="auto"') + ")"
    rows = sites_of("stream")
    parts = {site: part[: 20 if site == "west" else 40] for site, part in rows.items()}
    found = fit(made(code), parts)
    at = [("east", 0), ("north", 0), ("west", 0), ("east", 20), ("north", 20)]
    X = np.concatenate([parts[site][start : start + 20] for site, start in at])
    expected = clone(made(code)).set_params(batch_size=60, init__n_rows=60)
    expected.fit(X, clients=np.repeat([site for site, _ in at], 20))
    assert_same(found, expected, 1e-7)
    first = fit(made(code), {site: part[:20] for site, part in parts.items()})
    assert_allclose(found.support_threshold_, first.support_threshold_, rtol=1e-12)
    assert np.ptp(first.support_threshold_) > 0


@pytest.mark.parametrize("how", ["robust=False)", "support_threshold=0.5)"])
def test_a_site_without_an_entry_in_a_batch_takes_part_in_the_next(how):
    code = TRACKER.replace("support_threshold=0.5, ", how)
    parts = {site: rows[:60].copy() for site, rows in sites_of("stream").items()}
    parts["west"][20:40] = np.nan
    found, expected = fit(made(code), parts, min_rows=1), here(made(code), parts)
    assert found.missing_sites_ == {}
    assert_same(found, expected, 1e-7)


# The tracker takes no weights.
BATCHED = [
    *("FederatedPCA(3)", "FederatedPCA(0.8)", "DistributedPCA(3)", "OnlineDistributedPCA(3)"),
    'FederatedPCA(3, merge=SubspaceMerge(center="site"))',
    'OnlineDistributedPCA(3, average="steps", center=False, variances="sent")',
    "FederatedPCA(3, scale=True, partial_out=[0])",
    "DistributedPCA(3, scale=True, partial_out=[0])",
    "FederatedPCA(3, missing=AvailablePairs())",
    "DistributedPCA(3, missing=AvailablePairs())",
    "FederatedScaler()",
    f"{TRACKER}robust=False, store_subspaces=True)",
]


@pytest.mark.parametrize(
    ("code", "weighted"),
    [*((code, i % 3 == 0) for i, code in enumerate(BATCHED)), (BATCHED[0], False)],
)
def test_batches_of_sites_are_calls_of_partial_fit(code, weighted):
    """Each a new estimator; in one process the same goes on."""
    estimator, tracks = made(code), "Tracker" in code
    kind = "stream" if tracks else "holes" if "missing" in code else "rows"
    rng, width = np.random.default_rng(0), 20
    parts = {site: rows[:60] for site, rows in sites_of(kind).items()}
    weights = {site: rng.integers(1, 4, 60).astype(float) for site in parts}
    ends = [7, 33] if tracks else [20, 40]
    streams = {site: np.split(rows, ends) for site, rows in parts.items()}
    if weighted:
        streams = {
            s: [SiteRows(b, w) for b, w in zip(bs, np.split(weights[s], 3), strict=True)]
            for s, bs in streams.items()
        }
    grid, found, expected = grid_of(estimator, streams, min_rows=1), estimator, clone(estimator)
    if tracks:
        expected.set_params(batch_size=60, init__n_rows=60)
    for number in range(3):
        before, found = found, partial_fit_sites(grid, found, wait=0)
        at = slice(width * number, width * (number + 1))
        own = np.concatenate([w[at] for w in weights.values()])
        more = {"sample_weight": own} if weighted else {}
        rows = np.concatenate([part[at] for part in parts.values()])
        expected.partial_fit(rows, clients=np.repeat(list(parts), width), **more)
        assert_same(found, expected, 1e-7 if tracks else 1e-9)
        assert found is not before
        assert found.n_batches_ == number + 1
        assert len(getattr(found, "subspaces_", range(number + 1))) == number + 1
    with pytest.raises(NoBatchError, match="No site has batch 3"):
        partial_fit_sites(grid, found, wait=0)
    assert not hasattr(estimator, "mean_")


def test_one_process_goes_on_where_sites_ended_and_only_what_is_asked_for_is_read():
    made_so_far = []

    def batches(context):
        for batch in np.split(ROWS, 4):
            made_so_far.append(len(batch))
            yield batch

    pca = made("DistributedPCA(3)")
    grid = grid_of(pca, {"east": ROWS[:100]})
    found = partial_fit_sites(grid, pca, wait=0, min_sites=1)
    found.partial_fit(ROWS[100:], clients=["west"] * 100)
    assert_same(found, PCA(3).fit(ROWS), without=["n_samples_"])
    grid.apps[1] = client_app(batches, pca)
    partial_fit_sites(grid, pca, wait=0, min_sites=1)
    assert made_so_far == [50]


def test_a_scaler_does_not_go_on_without_variances():
    estimator = made("FederatedScaler(with_std=False)")
    grid = grid_of(estimator, {site: np.split(rows, [20]) for site, rows in PARTS.items()})
    found = partial_fit_sites(grid, estimator, wait=0).set_params(with_std=True)
    with pytest.raises(ValueError, match="with_std was False in the calls before"):
        partial_fit_sites(grid, found, wait=0)


@pytest.mark.parametrize(
    "code", ["FederatedPCA(3)", "DistributedPCA(3)", "OnlineDistributedPCA(3)"]
)
def test_sites_that_end_join_or_fail(code):
    streams = {site: np.split(rows, [20, 40]) for site, rows in PARTS.items()}
    streams["east"] = streams["east"][:1]
    estimator = made(code)
    grid = grid_of(estimator, streams)
    found = partial_fit_sites(grid, estimator, wait=0)
    grid.spoil = lost()
    with pytest.warns(UserWarning, match=r"Fitted without site 'node 3' \(no answer"):
        found = partial_fit_sites(grid, found, wait=0)
    assert found.clients_ == ["east", "north", "west"]
    assert list(found.missing_sites_) == ["node 3"]
    grid.spoil = None
    found = partial_fit_sites(grid, found, wait=0)
    assert found.missing_sites_ == {}
    expected = clone(estimator)
    for number, sites in enumerate((PARTS, ["north"], ["north", "west"])):
        rows = [streams[site][number] for site in sites]
        labels = np.repeat(list(sites), [len(part) for part in rows])
        expected.partial_fit(np.concatenate(rows), clients=labels)
    assert_same(found, expected)


def test_the_number_of_the_batch_of_a_fit_of_all_rows_must_be_given():
    streams = {site: np.split(rows, [20, 40]) for site, rows in PARTS.items()}
    grid = grid_of(made("DistributedPCA(3)"), streams)
    whole = fit_sites(grid, made("DistributedPCA(3)"), wait=0)
    with pytest.raises(ValueError, match="batch must be given: the estimator was fitted in anoth"):
        partial_fit_sites(grid, whole, wait=0)
    later = partial_fit_sites(grid, whole, batch=2, wait=0)
    assert (later.n_batches_, later.n_samples_) == (3, 200 + 40 + 20 + 20)


@pytest.mark.parametrize(
    "options", ["average='steps', weighting='rows'", "average='steps'", "weighting='equal'"]
)
def test_steps_of_unlike_numbers_of_rows_by_secure_sums(options):
    """Each batch of the sites that have one is one call of partial_fit."""
    estimator = made(f"OnlineDistributedPCA(3, {options})")
    streams = {site: [rows[:31], rows[31:]] for site, rows in PARTS.items()}
    if options == "weighting='equal'":
        del streams["east"][1]
    found, expected = fit(estimator, streams, secure=SECURE), clone(estimator)
    for step in range(2):
        rows = {site: own[step] for site, own in streams.items() if len(own) > step}
        clients = np.repeat(list(rows), list(map(len, rows.values())))
        expected.partial_fit(np.concatenate(list(rows.values())), clients=clients)
    assert_same(found, expected, 1e-9)


def test_batches_with_other_columns_end_the_fit():
    frames = sites_of("frames")
    columns = list(frames["east"].columns)
    for second, why in (
        (lambda rows: rows[columns[::-1]], "the same features in another order: 'g'"),
        (lambda rows: rows.to_numpy()[:, :7], "its number of features is 7, that of the others"),
    ):
        for code in ("FederatedPCA(3)", "OnlineDistributedPCA(3)"):
            streams = {s: [rows[:30], second(rows[30:])] for s, rows in frames.items()}
            found = partial_fit_sites(grid_of(made(code), streams), made(code), wait=0)
            assert found.feature_names_in_.tolist() == columns
            with pytest.raises(RuntimeError, match=why):
                partial_fit_sites(grid_of(made(code), streams), found, wait=0)


def test_directions_that_a_site_had_sent_do_not_add_up():
    rows = np.random.default_rng(0).standard_normal((180, 300))
    streams = {"a": np.split(rows[:90], 3), "b": np.split(rows[90:], 3)}
    grid, found, sizes = grid_of(made("FederatedPCA(4)"), streams), made("FederatedPCA(4)"), []
    for _ in range(3):
        found = partial_fit_sites(grid, found, wait=0)
        sizes.append(found.subspace_.n_components)
    assert sizes[1:] == sizes[:1] * 2


# -------------------------------------------------------------------- sites that are lost

# Estimator | rows | the n-th question of a kind from which on a site is lost | secure sums or not
LOST = table("""
FederatedPowerPCA(3, random_state=0) | rows | times_scatter 2 | plain
FederatedPCA(3, n_refinements=3) | wide | products 1 | plain
FederatedPCA(2, missing=ConditionalFill(n_rounds=30)) | holes | filled 1 | plain
FederatedHeteroscedasticPCA(2, random_state=0) | strong | weighted_moments 1 | plain
FederatedHeteroscedasticPCA(2, random_state=0) | strong | scores 2 | plain
FederatedPCA(2) | rows | second_moments 1 | secure
FederatedPCA(2) | rows | secure_shares 2 | secure
FederatedPCA(2) | rows | secure_unmask 1 | secure
FederatedPowerPCA(2, random_state=0) | rows | secure_keys 1 | secure
FederatedPowerPCA(2, random_state=0) | rows | times_scatter 3 | secure
FederatedPowerPCA(2, random_state=0) | rows | secure_unmask 3 | secure
FederatedPCA(3, missing=ConditionalFill(3)) | holes | filled 1 | secure
OnlineDistributedPCA(3) | rows | space 1 | secure
OnlineDistributedPCA(3) | rows | moments 1 | secure
""")


@pytest.mark.parametrize(("code", "kind", "when", "mode"), LOST)
def test_a_site_that_is_lost_leaves_no_trace(code, kind, when, mode):
    """The others begin again, and are fitted as if it had never been there."""
    secure = SECURE if mode == "secure" else None
    question, first = when.split()
    spoil = lost("west", question, int(first))
    grid = grid_of(made(code), sites_of(kind), spoil, secure=secure, min_rows=1)
    with pytest.warns(UserWarning, match=r"without site '(west|node 3)' \(no answer within 7 s"):
        found = fit_sites(grid, made(code), wait=0, timeout=7, secure=secure)
    assert len(found.missing_sites_) == 1
    asked = [kind for site, kind in grid.asked if site == "west"]
    assert asked.count(question) == int(first)
    assert secure is not None or asked[-1] == question
    expected = in_one_process(code, kind, "east", "north")
    tol = 1e-10 if secure is None else 1e-6
    assert_same(found, expected, 1e-5 if "n_rounds=30" in code or "wide" in kind else tol)


BATCH = {
    "robust": (f"{TRACKER})", ["observed", "low_rank", "filled", "misfits"]),
    "changes": (f"{TRACKER}detect_changes=ChangeDetection(2))", ["times_scatter"]),
    "auto": (
        TRACKER.replace("threshold=0.5", 'threshold="auto"') + ")",
        ["sizes", "filled", "moments"],
    ),
}


@pytest.mark.parametrize(
    ("code", "kind"), [(code, kind) for code, kinds in BATCH.values() for kind in kinds]
)
def test_a_site_that_is_lost_in_a_batch(code, kind):
    """The others are given the same thresholds and models again, and their rows alone count."""
    stream = make_subspace_stream(
        120, 12, 2, delta=0, missing=0.1, noise_std=0.05, outliers=0.02, random_state=1
    )
    parts = dict(zip(PARTS, np.split(stream.X, 3), strict=True))
    with pytest.warns(UserWarning, match="Fitted without site '(west|node 3)'"):
        found = fit(made(code), parts, lost("west", kind))
    assert found.n_samples_ == 80
    assert len(found.missing_sites_) == 1
    assert subspace_distance(found.components_, stream.subspace_at(0)) < 0.04


def test_sites_of_a_tracker_that_end():
    """Batches of the sites that are left; in secure sums those of too few sites are left out."""
    tracker = made(f"{TRACKER}robust=False)")
    parts = sites_of("stream")
    parts = {**parts, "north": parts["north"][:35]}  # 15 rows fill no batch
    found = fit(tracker, parts)
    assert found.n_samples_ == 80 + 20 + 80
    assert found.clients_ == list(parts)
    assert_same(fit(tracker, parts, secure=SECURE), found, 1e-5)
    with pytest.warns(UserWarning, match="Rows from batch 1 on are left out: 2 sites have them"):
        short = fit(tracker, parts, secure=SecureAggregation(threshold=3))
    assert short.n_samples_ == 60
    with pytest.warns(
        UserWarning, match="a batch has 20 rows, there are fewer; batch_size says how many"
    ):
        fit(tracker, {**parts, "north": parts["north"][:19]})


@pytest.mark.parametrize(("kind", "n"), [("keys", 60), ("times_columns", 50)])
def test_keys_stay_those_of_an_owner_that_is_lost(kind, n):
    """Once they were sent; an owner that is lost before has no part in them."""
    rows = {"bank": ROWS[:60, :2], "clinic": ROWS[:60, 2:4], "shop": ROWS[:50, 4:]}
    parts = {site: SiteRows(X, keys=range(len(X)), salt=SALT) for site, X in rows.items()}
    power = made('VerticalFederatedPCA(2, method="power", random_state=0)')
    for secure in (None, SECURE):
        if secure is not None and kind == "keys":
            continue
        with pytest.warns(UserWarning, match="Fitted without site '(shop|node 3)'"):
            found = fit(power, parts, lost("shop", kind), secure)
        assert found.clients_ == ["bank", "clinic"]
        assert subspace_distance(found.components_, PCA(2).fit(ROWS[:n, :4]).components_) < 1e-6
        assert found.n_rows_left_out_ == {"bank": 60 - n, "clinic": 60 - n}


def test_rows_of_a_site_weigh_one_where_they_are_too_few_for_a_variance():
    """Of k factors k + 1 rows are, as in one process."""
    X = np.random.default_rng(0).standard_normal((4, 5))
    task = of_query(Moments, center=True, rank=lambda d: 2, weighted=True)
    few, enough = (task.work("west", SiteMoments.of(Y), np.array(0.1)) for Y in (X[:3], X))
    assert_allclose(whole(few), [*X[:3].sum(axis=0), 3])
    assert enough["count"] < 4
