"""What other threads see of a model that is being fitted: the one before or the one after."""

import copy
import pickle
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from golden_cases import made
from numpy.testing import assert_array_equal

import fedpca_sklearn
from fedpca_sklearn import (
    AnalyzeGauss,
    FederatedPCA,
    RobustSubspaceTracker,
    StreamingPCA,
)

MODELS = """
StreamingPCA(2, whiten=True, block_size=50)
StreamingPCA(1, rank_rule=EnergyBounds(), block_size=20)
OjaPCA(2, random_state=0)
SubspaceTracker(2, center=True)
RobustSubspaceTracker(2, center=True)
FederatedPCA(2)
FederatedSubspaceTracker(2, n_rounds=2, random_state=0)
DistributedPCA(2)
OnlineDistributedPCA(2)
VerticalFederatedPCA(2, random_state=0)
FederatedScaler()
VerticalFederatedKernelPCA(2, random_state=0)
""".strip().splitlines()
# Rows, and others with another mean and in other directions.
RNG = np.random.default_rng(0)
X = RNG.standard_normal((120, 6)) * [5, 4, 3, 2, 1, 1]
Y = RNG.standard_normal((120, 6)) * [1, 2, 3, 9, 5, 6] + 100
ROW = X[:3]


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


def go_on(model, rows):
    return getattr(model, "partial_fit", model.fit)(rows)


@pytest.mark.parametrize("code", MODELS)
def test_beside_a_fit_one_model_is_read_and_a_second_fit_is_refused(code):
    """It would take a half of the first for the state before, and could leave that for good."""
    model = made(code).fit(X)
    before, alone = model.transform(ROW), go_on(copy.deepcopy(model), Y)

    def look():
        Z, text = model.transform(ROW), None
        if "_before_fit" in vars(model):
            try:
                go_on(model, X)
            except RuntimeError as error:
                text = str(error)
        return Z, text

    seen = at_every_change(model, lambda: go_on(model, Y), look)
    after = model.transform(ROW)
    assert_array_equal(after, alone.transform(ROW))
    assert before.shape != after.shape or not np.allclose(before, after)
    # the line that ends the fit may be followed by others
    is_after = [np.array_equal(Z, after) for Z, _ in seen]
    n_before = is_after.index(True) if True in is_after else len(seen)
    assert all(np.array_equal(Z, before) for Z, _ in seen[:n_before])
    assert all(is_after[n_before:])
    refused = [text for _, text in seen if text]
    assert len(refused) > 1
    assert {text.partition(" is being fitted")[0] for text in refused} == {type(model).__name__}
    assert "_before_fit" not in vars(model)


def test_every_reader_beside_a_fit_is_by_one_model():
    model = RobustSubspaceTracker(2, center=True, batch_size=40).fit(X)

    def look():
        one = copy.copy(model)
        V, mean = one.components_, one.mean_
        Z = model.transform(ROW)
        back, precision = model.inverse_transform(Z * 0), model.get_precision()
        pickled = pickle.loads(pickle.dumps(model)).mean_
        found = model.impute(ROW), model.decompose(ROW)[0]
        return [V, mean, Z, back, model.score(ROW), precision, *found, pickled]

    before = look()
    seen = at_every_change(model, lambda: model.partial_fit(Y), look)
    for value, old, new in (v for values in seen for v in zip(values, before, look(), strict=True)):
        assert np.array_equal(value, old) or np.array_equal(value, new)


def test_a_fit_that_fails_is_never_seen():
    model = StreamingPCA(2).fit(X)
    before, wrong = model.transform(ROW), Y.copy()
    wrong[-1, -1] = np.nan

    def fail():
        with pytest.raises(ValueError, match="NaN"):
            model.fit([wrong[:60], wrong[60:]])

    for Z in at_every_change(model, fail, lambda: model.transform(ROW)):
        assert_array_equal(Z, before)


def test_the_thread_that_fits_reads_what_it_has_set():
    class Measured(StreamingPCA):
        def fit(self, X, y=None):
            with self._unchanged_on_error():
                super().fit(X)
                self.largest_ = np.abs(self.transform(X)).max()
            return self

    model = Measured(2).fit(X)
    assert model.largest_ == np.abs(model.transform(X)).max()


def test_two_threads_do_not_both_release_the_last_of_a_budget():
    told = []

    class Hostile(AnalyzeGauss):
        def noisy_columns(self, *args):
            if not told:
                told.append(None)
                with ThreadPoolExecutor(1) as other:
                    error = other.submit(pca.partial_fit, X).exception()
                told.append(f"{type(error).__name__}: {error}")
            return super().noisy_columns(*args)

        def _noise_cost(self, *args):
            return super()._noise_cost(*args)

    pca = FederatedPCA(2, mechanism=Hostile(1.0, 1e-5, 9.0), n_clients=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of noise
        pca.partial_fit(X)
    assert told[1].startswith("RuntimeError")
    assert "in another thread" in told[1]
    assert pca.privacy_spent_.epsilon == pytest.approx(1.0)
    assert pca.n_samples_ == len(X)
