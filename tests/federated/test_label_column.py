"""Labels of clients in a column of a data frame; oracles are arrays and a vector of labels."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    FederatedPowerPCA,
    FederatedSubspaceTracker,
    OnlineDistributedPCA,
    TruncatedDistributedPCA,
)

MODELS = [
    FederatedPCA(2),
    DistributedPCA(2),
    TruncatedDistributedPCA(2),
    OnlineDistributedPCA(2),
    FederatedPowerPCA(2, random_state=0),
    FederatedSubspaceTracker(2, random_state=0),
]
every_model = pytest.mark.parametrize("model", MODELS, ids=lambda m: type(m).__name__)
NAMES = ["a", "b", "c", "d"]


def data(n=90):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 2)) @ rng.standard_normal((2, 4)) * 5
    X += rng.standard_normal((n, 4))
    return X, rng.choice(["east", "north", "west"], n)


def frame_of(library, X, labels):
    columns = {name: X[:, i] for i, name in enumerate(NAMES)}
    columns = {"a": columns.pop("a"), "site": labels.tolist(), **columns}  # not the last one
    if library == "pandas":
        return pd.DataFrame(columns)
    module = pytest.importorskip(library)
    if library == "polars":
        return module.DataFrame(columns)
    return module.table({name: module.array(values) for name, values in columns.items()})


@every_model
@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_column_holds_the_labels(model, library):
    X, labels = data()
    frame = frame_of(library, X, labels)
    want = clone(model).fit(X, clients=labels)
    model = clone(model).fit(frame, clients="site")
    assert model.clients_ == want.clients_ == ["east", "north", "west"]
    assert_allclose(model.components_, want.components_, atol=1e-12)
    assert model.n_features_in_ == 4
    if library == "pandas":
        assert list(model.feature_names_in_) == NAMES
    # new rows may come with their labels, or without
    for rows in frame, frame.select(NAMES) if library != "pandas" else frame[NAMES]:
        assert_allclose(model.transform(rows), want.transform(X), atol=1e-9)
        assert_allclose(model.score(rows), want.score(X), rtol=1e-9)
    if hasattr(model, "partial_fit"):
        model.partial_fit(frame, clients="site")
        want.partial_fit(X, clients=labels)
        assert_allclose(model.components_, want.components_, atol=1e-10)


def test_columns_may_have_the_names_of_methods():
    X, labels = data()
    frame = frame_of("pandas", X, labels).set_axis(["select", "columns", *"abc"], axis=1)
    model = FederatedPCA(2).fit(frame, clients="columns")
    assert_array_equal(model.feature_names_in_, ["select", *"abc"])
    assert_allclose(model.transform(frame), FederatedPCA(2).fit(X).transform(X), atol=1e-9)


@every_model
def test_what_names_no_column_is_named(model):
    X, labels = data()
    frame = frame_of("pandas", X, labels)
    model = clone(model)
    with pytest.raises(ValueError, match=r"clients='hospital' must be a column of X.*'site'"):
        model.fit(frame, clients="hospital")
    with pytest.raises(ValueError, match=r"clients='site' names a column.*got ndarray"):
        model.fit(X, clients="site")
    with pytest.raises(ValueError, match="missing values, got None"):
        model.fit(frame.replace({"site": {"west": None}}).astype(object), clients="site")
    assert not hasattr(model, "components_")
    # the column is one of the rows' where nobody says otherwise
    with pytest.raises(ValueError, match="could not convert"):
        model.fit(frame)
    numbers = frame.assign(site=pd.factorize(frame["site"])[0])
    assert model.fit(numbers).n_features_in_ == 5
    assert model.fit(numbers, clients="site").n_features_in_ == 4
    assert model.fit(numbers).n_features_in_ == 5
    assert model.transform(numbers).shape == (90, 2)


def test_a_search_and_pandas_out():
    X, labels = data()
    frame = frame_of("pandas", X, labels)
    model = FederatedPCA(1).set_output(transform="pandas")
    search = GridSearchCV(model, {"n_components": [1, 2]}, cv=3, error_score="raise")
    search.fit(frame, clients="site")
    assert search.best_params_ == {"n_components": 2}
    assert list(search.transform(frame).columns) == ["federatedpca0", "federatedpca1"]
    folds = cross_val_score(model, frame, params={"clients": "site"}, error_score="raise", cv=3)
    assert np.isfinite(folds).all()
    assert_array_equal(model.fit_transform(frame, clients="site").index, frame.index)


@pytest.mark.parametrize("routing", [False, True])
def test_a_pipeline_whose_steps_keep_the_column(routing):
    X, labels = data()
    frame = frame_of("pandas", X, labels)
    scaler = make_column_transformer(
        (StandardScaler(), NAMES), remainder="passthrough", verbose_feature_names_out=False
    ).set_output(transform="pandas")
    pipeline = make_pipeline(scaler, FederatedPCA(2))
    with sklearn.config_context(enable_metadata_routing=routing):
        pipeline.fit(frame, **{"clients" if routing else "federatedpca__clients": "site"})
    want = FederatedPCA(2).fit(StandardScaler().fit_transform(X), clients=labels)
    assert pipeline[-1].clients_ == want.clients_
    assert_allclose(pipeline[-1].components_, want.components_, atol=1e-12)
    assert pipeline.transform(frame).shape == (90, 2)
