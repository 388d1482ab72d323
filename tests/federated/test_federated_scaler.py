"""FederatedScaler is scikit-learn's StandardScaler of the pooled rows, whoever holds them."""

import pickle

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from helpers import client_sizes
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.base import clone
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import FederatedPCA, FederatedScaler, Subspace

EPS = np.finfo(np.float64).eps


def assert_same(scaler, pooled, tol=1e-10):
    for name in ("mean_", "var_", "scale_"):
        got, want = getattr(scaler, name), getattr(pooled, name)
        if want is None:
            assert got is None
        else:
            assert_allclose(got, want, rtol=tol, atol=tol, err_msg=name)
    assert_allclose(scaler.n_samples_seen_, pooled.n_samples_seen_)
    assert np.ndim(scaler.n_samples_seen_) == np.ndim(pooled.n_samples_seen_)


def rows(sizes, d=4, seed=0):
    """Rows and labels of clients that are far apart; a constant column."""
    rng = np.random.default_rng(seed)
    clients = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    X = rng.standard_normal((len(clients), d)) * 3.0 ** np.arange(d) + 5 * (clients % 3)[:, None]
    X[:, -1] = 0.1
    return X, clients


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(
    client_sizes,
    st.integers(0, 99),
    st.sampled_from(["dense", "holes", "sparse", "float32"]),
    st.sampled_from([None, "float", "integer"]),
    st.booleans(),
    st.integers(1, 3),
)
def test_it_is_the_scaler_of_the_pooled_rows(sizes, seed, kind, weights, with_std, n_calls):
    X, clients = rows(sizes, seed=seed)
    rng, weight = np.random.default_rng(seed), None
    if weights is not None:
        weight = rng.integers(1, 4, len(X)) if weights == "integer" else rng.uniform(0, 2, len(X))
    if kind == "holes":
        X[rng.random(X.shape) < 0.2] = np.nan
        X[0] = 1.0  # no column is empty
    if kind == "sparse":
        X = sp.csr_array(np.where(rng.random(X.shape) < 0.5, X, 0.0))
    X = X.astype(np.float32) if kind == "float32" else X
    options = {"with_mean": kind != "sparse", "with_std": with_std}
    with np.errstate(invalid="ignore"):  # its weighted variance of a constant may be below zero
        pooled = StandardScaler(**options).fit(X.astype(np.float64), sample_weight=weight)
    scaler = FederatedScaler(**options, n_clients=min(3, len(sizes)))
    for part in np.array_split(np.arange(X.shape[0]), n_calls):
        if len(part):
            w = None if weight is None else weight[part]
            scaler.partial_fit(X[part], clients=clients[part], sample_weight=w)
    assert_same(scaler, pooled)
    assert scaler.clients_ == sorted(set(clients.tolist()))
    whole = FederatedScaler(**options).fit(X, clients=clients, sample_weight=weight)
    assert_same(whole, pooled)
    got, want = whole.transform(X.copy()), pooled.transform(X.astype(np.float64))
    assert got.dtype == X.dtype
    got, want = (M.toarray() if sp.issparse(M) else M for M in (got, want))
    tol = 1e-9 if kind != "float32" else 1e-5
    assert_allclose(got, want, rtol=tol, atol=tol)


@pytest.mark.parametrize("kind", [np.asarray, sp.csr_array])
@pytest.mark.parametrize("hidden", [1e20, 1e200])
def test_rows_without_weight_are_absent_whatever_they_hold(hidden, kind):
    X, clients = rows([40, 60, 9], d=3)
    w = np.arange(len(X)) % 3.0
    expected = StandardScaler().fit(X[w > 0], sample_weight=w[w > 0])
    X[w == 0] = hidden
    scaler = FederatedScaler(with_mean=kind is np.asarray)
    scaler.fit(kind(X), clients=clients, sample_weight=w)
    assert_allclose(scaler.var_, expected.var_, rtol=1e-10, atol=1e-20)
    assert_allclose(scaler.n_samples_seen_, w.sum())


@pytest.mark.parametrize("apart", [0.0, 3.0])
def test_means_of_1e8_lose_no_digits(apart):
    X, clients = rows([40, 60, 9], d=3)
    X = X[:, :2] - 5 * (clients % 3)[:, None] + apart * clients[:, None]
    near = StandardScaler().fit((X + 1e8) - 1e8)  # the rows as they are after rounding
    far, parts = FederatedScaler().fit(X + 1e8, clients=clients), FederatedScaler()
    holes = FederatedScaler().fit(np.vstack([X + 1e8, [[np.nan] * 2]]), clients=[*clients, 2])
    for part in np.array_split(np.arange(len(X)), 5):
        parts.partial_fit(X[part] + 1e8, clients=clients[part], sample_weight=[2.0] * len(part))
    for scaler in (far, parts, holes):
        assert_allclose(scaler.var_, near.var_, rtol=1e-10, atol=0)
        assert_allclose(scaler.mean_ - 1e8, near.mean_, atol=1e8 * EPS)


def test_columns_that_a_client_or_nobody_has_seen():
    X = np.array([[1.0, np.nan, np.nan], [2.0, 4.0, np.nan], [4.0, 8.0, np.nan]])
    scaler = FederatedScaler().fit(X, clients=[0, 1, 1])
    with np.errstate(all="ignore"):
        pooled = StandardScaler().fit(X)
    assert_array_equal(scaler.n_samples_seen_, [3, 2, 0])
    for name in ("mean_", "var_", "scale_"):
        assert_allclose(getattr(scaler, name), getattr(pooled, name))
    scaler.partial_fit([[3.0, 3.0, 5.0], [3.0, 3.0, 7.0]], clients=[2, 2])
    assert_allclose(scaler.mean_, [2.6, 4.5, 6.0])
    assert_allclose(scaler.var_, np.nanvar(np.vstack([X, [[3, 3, 5], [3, 3, 7]]]), axis=0))


@pytest.mark.parametrize(
    "model",
    [
        FederatedScaler(with_mean=False),
        *(FederatedPCA(2, estimator=local) for local in (PCA(2), TruncatedSVD(2, random_state=0))),
    ],
    ids=str,
)
def test_entries_stored_twice_are_their_sums(model):
    """What scikit-learn's estimators square as it is stored: variances below zero came of it."""
    X, clients = rows([30, 20], seed=3)
    csr = sp.csr_array(X)
    parts = np.repeat(csr.data / 2, 2), np.repeat(csr.indices, 2), 2 * csr.indptr
    twice, before = sp.csr_array(parts, shape=X.shape), [array.copy() for array in parts]
    found, expected = (clone(model).fit(given_rows, clients=clients) for given_rows in (twice, csr))
    for array, kept in zip((twice.data, twice.indices, twice.indptr), before, strict=True):
        assert_array_equal(array, kept)
    for name in {"scale_", "noise_variance_", "explained_variance_ratio_"} & set(dir(expected)):
        assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9)


def test_frames_and_tables_give_names_and_are_given_back():
    X, clients = rows([30, 50])
    frame = pd.DataFrame(X, columns=list("abcd"))
    scaler = FederatedScaler().set_output(transform="pandas").fit(frame, clients=clients)
    assert list(scaler.get_feature_names_out()) == list(scaler.transform(frame)) == list("abcd")
    assert_allclose(scaler.transform(frame), StandardScaler().fit_transform(X), atol=1e-12)
    assert_allclose(scaler.inverse_transform(scaler.transform(frame)), X)
    with pytest.raises(ValueError, match="Feature names"):
        scaler.transform(frame[list("dcba")])
    rows_of_dask = pytest.importorskip("dask.array").from_array(X, chunks=(40, -1))
    for given_rows, words in (("rows.npy", r"np\.load"), (rows_of_dask, "does not take")):
        with pytest.raises(TypeError, match=words):
            scaler.transform(given_rows)
    table = pytest.importorskip("pyarrow").table(dict(zip("abcd", X.T, strict=True)))
    of_table = FederatedScaler().fit(table.to_batches()[0])
    assert_allclose(of_table.transform(table), scaler.transform(frame))


# -------------------------------------------------------------------- by files, and what is sent


def test_by_files(tmp_path):
    X, clients = rows([30, 50, 1])
    files = []
    for site in range(3):
        files.append(tmp_path / f"{site}.subspace")
        Subspace.from_rows(X[clients == site], 0).save(files[-1], site=f"site {site}")
    scaler = FederatedScaler.from_subspaces([Subspace.load(file) for file in files])
    assert_same(scaler, StandardScaler().fit(X))
    assert scaler.clients_ == ["site 0", "site 1", "site 2"]
    assert scaler.communication_.floats_up == 3 * (2 * 4 + 2)
    scaler.partial_fit(X, clients=clients)
    assert_same(scaler, StandardScaler().fit(np.vstack([X, X])))
    eye = np.eye(3)
    about_zero = Subspace.from_rows(eye, center=False)
    unknown, mine = Subspace.from_estimator(PCA(2).fit(eye)), Subspace.from_rows(eye)
    know = r"subspaces\[0\] must be about its mean and know"
    for bad, words in (
        ([about_zero], know),
        ([unknown], know),
        ([mine._replace(site="a")] * 2, "'a'"),
    ):
        with pytest.raises(ValueError, match=words):
            FederatedScaler.from_subspaces(bad)


def test_sums_are_sent_and_nothing_else():
    """Rows with the same sums lead to the same bits, and to messages of a known size."""
    X, clients = rows([30, 50, 20])
    scaler = FederatedScaler().fit(X, clients=clients)
    log, before = scaler.communication_, pickle.dumps(scaler)
    scaler.partial_fit(X, clients=clients, sample_weight=np.zeros(100))
    assert pickle.dumps(scaler) == before  # rows without weight are none
    assert scaler.partial_fit(X, clients=clients).communication_.rounds == 2
    assert (log.rounds, log.floats_up, log.floats_down) == (1, 3 * (3 * 4 + 1), 0)
    assert (log.bytes_up, log.floats_pooled) == (8 * log.floats_up, X.size)
    X[clients == 1, 0] = np.nan
    X[np.flatnonzero(clients == 0)[0], 0] = np.nan
    log = FederatedScaler().fit(X, clients=clients).communication_
    assert log.floats_up == 2 * 4 * 4 + (3 * 4 + 1)
    swapped = X.copy()
    swapped[clients == 2] = swapped[clients == 2][::-1]
    both = (FederatedScaler().fit(part, clients=clients) for part in (X, swapped))
    assert_same(*both, tol=0)


@pytest.mark.parametrize("routing", [False, True])
def test_clients_reach_every_step_of_a_pipeline_and_a_search(routing):
    X, clients = rows([30, 50, 20])
    pipe = make_pipeline(FederatedScaler(), FederatedPCA(2))
    names = ["clients"] if routing else ["federatedscaler__clients", "federatedpca__clients"]
    labels = dict.fromkeys(names, clients)
    with config_context(enable_metadata_routing=routing):
        pipe.fit(X, **labels)
        search = GridSearchCV(
            pipe, {"federatedscaler__with_std": [True]}, cv=2, error_score="raise"
        )
        search.fit(X, **labels)
    assert pipe[0].clients_ == pipe[1].clients_ == search.best_estimator_[0].clients_ == [0, 1, 2]
    want = PCA(2).fit(StandardScaler().fit_transform(X))
    assert_allclose(pipe[1].explained_variance_, want.explained_variance_, rtol=1e-10)
