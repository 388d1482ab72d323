"""What other threads see of a model that is being fitted: the one before or the one after."""

import copy
import pickle
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import fedpca_sklearn
from fedpca_sklearn import (
    AnalyzeGauss,
    DistributedPCA,
    EnergyBounds,
    FederatedPCA,
    FederatedScaler,
    FederatedSubspaceTracker,
    OjaPCA,
    OnlineDistributedPCA,
    RobustSubspaceTracker,
    StreamingPCA,
    SubspaceTracker,
    VerticalFederatedKernelPCA,
    VerticalFederatedPCA,
)

MODELS = {
    "streaming": StreamingPCA(2, whiten=True, block_size=50),
    "sapca": StreamingPCA(1, rank_rule=EnergyBounds(), block_size=20),
    "oja": OjaPCA(2, random_state=0),
    "tracker": SubspaceTracker(2, center=True),
    "robust": RobustSubspaceTracker(2, center=True),
    "federated": FederatedPCA(2),
    "federated-tracker": FederatedSubspaceTracker(2, n_rounds=2, random_state=0),
    "distributed": DistributedPCA(2),
    "online": OnlineDistributedPCA(2),
    "vertical": VerticalFederatedPCA(2, random_state=0),
    "scaler": FederatedScaler(),
    "kernel": VerticalFederatedKernelPCA(2, random_state=0),
}


def before_and_after():
    """Rows, and others with another mean and in other directions."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 6)) * [5, 4, 3, 2, 1, 1]
    return X, rng.standard_normal((120, 6)) * [1, 2, 3, 9, 5, 6] + 100


def at_every_change(model, work, look):
    """Run ``work``; at every line after which the model differs, ``look`` in another thread."""
    folder = fedpca_sklearn.__path__[0]
    seen, outer, last = [], sys.gettrace(), None
    with ThreadPoolExecutor(1) as other:

        def trace(frame, event, argument):
            if not frame.f_code.co_filename.startswith(folder):
                return None
            nonlocal last
            now = {name: id(value) for name, value in vars(model).items()}
            if now != last:
                last = now
                sys.settrace(None)
                seen.append(other.submit(look).result())
                sys.settrace(trace)
            return trace

        sys.settrace(trace)
        try:
            work()
        finally:
            sys.settrace(outer)
    return seen


def go_on(model, X):
    getattr(model, "partial_fit", model.fit)(X)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_transform_beside_a_fit_is_by_one_model(model):
    X, Y = before_and_after()
    model = model.fit(X)
    row = X[:3]
    before = model.transform(row)
    seen = at_every_change(model, lambda: go_on(model, Y), lambda: model.transform(row))
    after = model.transform(row)
    assert before.shape != after.shape or not np.allclose(before, after)
    assert len(seen) > 1
    # the line that ends the fit may be followed by others
    is_after = [np.array_equal(Z, after) for Z in seen]
    n_before = is_after.index(True) if True in is_after else len(seen)
    for Z in seen[:n_before]:
        assert_array_equal(Z, before)
    assert all(is_after[n_before:])


def test_every_reader_beside_a_fit_is_by_one_model():
    X, Y = before_and_after()
    model = RobustSubspaceTracker(2, center=True, batch_size=40).fit(X)
    row = X[:2].copy()

    def look():
        one = copy.copy(model)
        V, mean = one.components_, one.mean_
        Z = model.transform(row)
        return [
            V,
            mean,
            Z,
            model.inverse_transform(Z * 0),
            model.score(row),
            model.get_precision(),
            model.impute(row),
            model.decompose(row)[0],
            pickle.loads(pickle.dumps(model)).mean_,
        ]

    before = look()
    seen = at_every_change(model, lambda: model.partial_fit(Y), look)
    after = look()
    for values in seen:
        expected = [
            b if np.array_equal(v, b) else a for v, b, a in zip(values, before, after, strict=True)
        ]
        for value, one in zip(values, expected, strict=True):
            assert_array_equal(value, one)


def test_a_fit_that_fails_is_never_seen():
    X, Y = before_and_after()
    model = StreamingPCA(2).fit(X)
    before = model.transform(X[:3])
    Y[-1, -1] = np.nan

    def fail():
        with pytest.raises(ValueError, match="NaN"):
            model.fit([Y[:60], Y[60:]])

    for Z in at_every_change(
        model, fail, lambda: (model.transform(X[:3]), model.components_[0, 0])
    ):
        assert_array_equal(Z[0], before)


def test_names_of_the_output_fit_its_columns():
    X, Y = before_and_after()
    model = StreamingPCA(1, rank_rule=EnergyBounds(), block_size=20).set_output(transform="pandas")
    model.fit(X)
    shapes = at_every_change(
        model, lambda: model.partial_fit(Y), lambda: model.transform(X[:3]).shape
    )
    assert {shape[1] for shape in shapes} <= {
        model.fit(X).n_components_,
        model.partial_fit(Y).n_components_,
    }


def test_the_thread_that_fits_reads_what_it_has_set():
    class Measured(StreamingPCA):
        def fit(self, X, y=None):
            with self._unchanged_on_error():
                super().fit(X)
                self.largest_ = np.abs(self.transform(X)).max()
            return self

    X, _ = before_and_after()
    model = Measured(2).fit(X)
    assert model.largest_ == np.abs(model.transform(X)).max()


def test_threads_never_see_two_models():
    """An old mean with new components, or the other way round, would be one of neither."""
    X, Y = before_and_after()
    row = X[:1]
    one, other = StreamingPCA(2).fit(X), StreamingPCA(2).fit(Y)
    allowed = {one.transform(row).tobytes(), other.transform(row).tobytes()}
    model, done, seen = copy.copy(one), threading.Event(), set()

    def read():
        while not done.is_set():
            seen.add(model.transform(row).tobytes())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        for _ in range(60):
            model.fit(Y)
            model.fit(X)
    finally:
        sys.setswitchinterval(interval)
        done.set()
        for reader in readers:
            reader.join()
    assert seen <= allowed


def in_another_thread(function, *arguments):
    with ThreadPoolExecutor(1) as other:
        return other.submit(function, *arguments).result()


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_second_fit_meanwhile_is_refused_and_leaves_the_first_alone(model):
    """It would take a half of the first for the state before, and could leave that for good."""
    X, Y = before_and_after()
    model = copy.deepcopy(model).fit(X)
    alone = copy.deepcopy(model)
    go_on(alone, Y)

    def second():
        try:
            go_on(model, X)
        except RuntimeError as error:
            return str(error)
        return "fitted"

    last = "_before_fit"
    seen = at_every_change(model, lambda: go_on(model, Y), lambda: last in vars(model) and second())
    told = [text for text in seen if text]
    assert len(told) > 1
    assert {text.partition(" is being fitted")[0] for text in told} == {type(model).__name__}
    assert last not in vars(model)
    assert_array_equal(model.transform(X[:3]), alone.transform(X[:3]))


def test_two_threads_do_not_both_release_the_last_of_a_budget():
    X, told = before_and_after()[0], []

    class Hostile(AnalyzeGauss):
        def noisy_columns(self, *args):
            if not told:
                told.append(None)
                with pytest.raises(RuntimeError, match="in another thread"):
                    in_another_thread(pca.partial_fit, X)
                told.append("refused")
            return super().noisy_columns(*args)

        def _noise_cost(self, *args):
            return super()._noise_cost(*args)

    pca = FederatedPCA(2, mechanism=Hostile(1.0, 1e-5, 9.0), n_clients=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of noise
        pca.partial_fit(X)
    assert told == [None, "refused"]
    assert pca.privacy_spent_.epsilon == pytest.approx(1.0)
    assert pca.n_samples_ == len(X)
