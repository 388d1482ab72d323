"""Rows that are filled in at sites, by files: the numbers of one process, and who lies."""

import io
import struct
import zlib

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.testing import assert_allclose
from pair_helpers import rows_with_holes

from fedpca_sklearn import (
    AvailablePairs,
    ConditionalFill,
    FederatedPCA,
    FillAnswer,
    PersonalizedPCA,
    RobustMerge,
    Subspace,
    SubspaceMerge,
)

X = rows_with_holes(0, 300, 9, share=0.2, mean=30.0)
SITES = {"east": slice(0, 90), "north": slice(90, 200), "west": slice(200, 300)}
X[SITES["north"], 4] = np.nan  # nobody measures it there
LABELS = np.repeat(list(SITES), [90, 110, 100])
SHOWN = "components_", "explained_variance_", "mean_", "noise_variance_", "singular_values_"


def answers_to(query, rows=X, weight=None):
    """What sites send, as bytes."""
    found = []
    for site, at in SITES.items():
        w = None if weight is None else weight[at]
        answer = FillAnswer.from_rows(query, rows[at], sample_weight=w, site=site)
        found.append(FillAnswer.from_bytes(answer.to_bytes()))
    return found


def by_files(n_rounds=2, k=2, rows=X, weight=None, **parameters):
    pca = FederatedPCA.from_fills(answers_to(None, rows, weight), k, **parameters)
    for _ in range(n_rounds + 1):
        query = Subspace.from_bytes(pca.refinement_query().to_bytes())
        pca.refine_from(answers_to(query, rows, weight))
    return pca


def assert_equal(pca, expected, tol=1e-12):
    for name in SHOWN:
        assert_allclose(getattr(pca, name), getattr(expected, name), rtol=tol, atol=tol)
    assert pca.n_samples_ == expected.n_samples_
    assert pca.clients_ == expected.clients_
    if tol == 1e-12:  # in float32 it is rounding whether a direction without variance is sent
        for name in ("rounds", "floats_up", "floats_down"):
            assert getattr(pca.communication_, name) == getattr(expected.communication_, name)


@pytest.mark.parametrize("kind", ["dense", "weighted", "sparse", "float32", "share", "tree"])
def test_files_give_the_numbers_of_one_process(kind):
    rows = {"sparse": sp.csr_array(X), "float32": X.astype(np.float32)}.get(kind, X)
    weight = np.random.default_rng(1).integers(1, 4, len(X)).astype(float)
    weight = weight if kind == "weighted" else None
    k = 0.6 if kind == "share" else 2
    merge = SubspaceMerge(fan_in=2) if kind == "tree" else None
    expected = FederatedPCA(k, missing=ConditionalFill(), merge=merge)
    expected.fit(rows, clients=LABELS, sample_weight=weight)
    pca = by_files(k=k, rows=rows, weight=weight, merge=merge)
    assert_equal(pca, expected, 1e-6 if kind == "float32" else 1e-12)
    assert pca.components_.dtype == expected.components_.dtype
    assert pca.subspace_.sites == tuple(SITES)


def test_a_fit_in_one_process_goes_on_by_files():
    pca = FederatedPCA(2, missing=ConditionalFill(1)).fit(X, clients=LABELS)
    pca.refine_from(answers_to(pca.refinement_query()))
    expected = FederatedPCA(2, missing=ConditionalFill(2)).fit(X, clients=LABELS)
    for name in SHOWN:
        assert_allclose(getattr(pca, name), getattr(expected, name), rtol=1e-12, atol=1e-12)


def unchanged(pca, call, match, error=ValueError):
    before = {name: getattr(pca, name) for name in SHOWN}
    rounds = pca.communication_.rounds
    with pytest.raises(error, match=match):
        call()
    assert all(getattr(pca, name) is value for name, value in before.items())
    assert pca.communication_.rounds == rounds


def test_answers_to_another_question_are_refused():
    pca = by_files(n_rounds=0)
    stale = answers_to(None)
    first = FederatedPCA.from_fills(stale, 2).refinement_query()
    query = pca.refinement_query()
    good = answers_to(query)

    def given(answers):
        return lambda: pca.refine_from(answers)

    unchanged(pca, given(stale), r"answers\[0\] \(site 'east'\) answers another query")
    unchanged(pca, given(answers_to(first)), r"answers\[0\] .* answers another query")
    moved = query._replace(mean=query.mean + 1e-6)  # the same directions
    unchanged(pca, given([*good[:2], answers_to(moved)[2]]), r"answers\[2\] \(site 'west'\)")
    louder = query._replace(scatter=query.scatter * 1.5)
    unchanged(pca, given([*good[:2], answers_to(louder)[2]]), r"answers\[2\] \(site 'west'\)")
    unchanged(pca, given([*good, good[0]]), "second one of site 'east'")
    unchanged(pca, given(good[:2]), r"rows of the fit, .* weight of 300, got .* 200")
    unchanged(pca, given([]), "at least one FillAnswer")
    unchanged(pca, given([query]), "must be FillAnswer objects, got Subspace", TypeError)
    few = [FillAnswer.from_rows(None, X[at, :5], site=s) for s, at in SITES.items()]
    for mixed, why in (
        ([*stale[:2], few[2]], "features"),
        ([*stale[:2], good[2]], r"answers\[2\] .* answers another query"),
        ([*stale, stale[1]], "second one of site 'north'"),
        ([], "at least one FillAnswer"),
    ):
        with pytest.raises(ValueError, match=why):
            FederatedPCA.from_fills(mixed, 2)
    lost = X.copy()
    lost[:, 3] = np.nan
    with pytest.raises(ValueError, match="column 3 is observed in 0 rows"):
        FederatedPCA.from_fills(answers_to(None, lost), 2)


def test_a_site_checks_what_it_is_asked():
    """Whoever sends a query sends a `Subspace`, of which only one that rows can have is read."""
    query, rows = by_files(n_rounds=0).refinement_query(), X[:50]
    V, s = query.components, query.singular_values
    hostile = {
        "finite": {"mean": np.full(9, np.nan)},
        "orthonormal": {"components": V * 1e3},
        "decreasing": {"singular_values": s[::-1]},
        "at least the sum": {"singular_values": s * 1e3},
        "announces": {"mean": np.zeros(8)},
    }
    for why, fields in hostile.items():
        with pytest.raises(ValueError, match=why):
            Subspace.from_bytes(query._replace(column_scatter=None, **fields).to_bytes())
    with pytest.raises(ValueError, match="X has 7 features, expected 9"):
        FillAnswer.from_rows(query, rows[:, :7])
    with pytest.raises(TypeError, match="query must be a Subspace or None, got int"):
        FillAnswer.from_rows(3, rows)
    with pytest.raises(ValueError, match="about the mean"):
        FillAnswer.from_rows(Subspace(V, s, np.zeros(9), 50, 1e9, centered=False), rows)
    far = query._replace(mean=np.full(9, 1e200))
    with pytest.raises(ValueError, match="overflow"):
        FillAnswer.from_rows(far, rows)
    with pytest.raises(ValueError, match="infinity"):
        FillAnswer.from_rows(query, np.full((3, 9), np.inf))
    pd = pytest.importorskip("pandas")
    with pytest.raises(ValueError, match=r"X lacks .* features must be the same"):
        FillAnswer.from_rows(query._named(list("abcdefghi")), pd.DataFrame(rows).add_prefix("x"))


def test_files_of_strangers():
    answer = answers_to(by_files(n_rounds=0).refinement_query())[0]
    data = answer.to_bytes()
    assert len(data) == answer.nbytes
    stream = io.BytesIO()
    answer.save(stream, site="elsewhere")
    assert FillAnswer.load(io.BytesIO(stream.getvalue())).site == "elsewhere"

    def signed(body):
        return bytes(body) + struct.pack("<I", zlib.crc32(bytes(body)))

    body = bytearray(data[:-4])
    huge, negative, many = bytearray(body), bytearray(body), bytearray(body)
    huge[24:32] = struct.pack("<Q", 2**62)
    negative[56:64] = struct.pack("<d", -1.0)
    many[56:64] = struct.pack("<d", 1e9)
    other = signed(body[:56] + body[64:])
    for hostile, why in (
        (b"", "too few"),
        (data[:-1], "checksum|header"),
        (b"FEDNONE" + data[7:], "does not start as one"),
        (signed(huge), "header"),
        (signed(negative), "missing must"),
        (signed(many), "missing must"),
        (other, "header"),
        (data[:-4] + b"\0\0\0\0", "checksum"),
    ):
        with pytest.raises(ValueError, match=why):
            FillAnswer.from_bytes(hostile)
    with pytest.raises(ValueError, match="max_bytes"):
        FillAnswer.from_bytes(data, max_bytes=10)


def test_parameters_that_do_not_fit():
    first = answers_to(None)
    for parameters, why in (
        ({"n_components": None}, "n_components must be a number or a share"),
        ({"n_components": 2, "merge": RobustMerge()}, "compares sites"),
        ({"n_components": 10}, "at most n_features=9"),
    ):
        with pytest.raises(ValueError, match=why):
            FederatedPCA.from_fills(first, **parameters)
    with pytest.raises(TypeError, match="missing must be ConditionalFill"):
        FederatedPCA.from_fills(first, 2, missing=AvailablePairs())
    with pytest.raises(TypeError, match="PersonalizedPCA fills no rows in"):
        PersonalizedPCA.from_fills(first, 2)
    with pytest.raises(TypeError, match="missing must be ConditionalFill"):
        FederatedPCA.from_subspaces([first[0].summary], 2, missing=AvailablePairs())
    with pytest.raises(ValueError, match="cannot be refined"):
        FederatedPCA(2, missing=AvailablePairs()).fit(X[:90]).refinement_query()
