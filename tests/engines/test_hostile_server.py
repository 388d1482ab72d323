"""Sites over Flower whose server tries to rob them: a site refuses, and says why."""

import logging
import os
import tracemalloc
from itertools import count

import numpy as np
import pytest

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedpca_sklearn import DistributedPCA, FederatedPCA, FederatedPowerPCA, Subspace
from fedpca_sklearn.engines._parameters import stated
from fedpca_sklearn.engines.flower import client_app

ROWS = np.random.default_rng(7).standard_normal((200, 8)) * np.arange(1, 9) + 3
MEAN = ROWS.mean(axis=0)
V = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 3)))[0].T.copy()
POWER = FederatedPowerPCA(3, n_rounds=4, random_state=0)
FIRST = [(FederatedPCA(3), "summary"), (DistributedPCA(3), "factor"), (POWER, "moments")]
BY_KIND = {"ids": ["FederatedPCA", "DistributedPCA", "FederatedPowerPCA"]}
HONEST = {"times_scatter": (V, MEAN, 1), "variances": (V, MEAN)}


class Site:
    """A site, and a server that asks it what it likes."""

    def __init__(self, estimator, rows=ROWS, run=1, **options):
        self.app = client_app(lambda context: rows, estimator, **options)
        self.stated = stated(estimator)
        self.context = Context(run, 5, {"site": "north"}, RecordDict(), {})
        self.ids = count(1)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run, 1

    def ask(self, kind, *arguments, nonce="once", **records):
        """The configuration and the arrays of an answer."""
        arrays = [a if isinstance(a, Array) else Array(np.asarray(a, float)) for a in arguments]
        content = {
            "arguments": ArrayRecord({str(i): a for i, a in enumerate(arrays)}),
            "config": self.stated | ({} if nonce is None else {"nonce": nonce}),
            **records,
        }
        content = {name: record for name, record in content.items() if record is not None}
        if isinstance(content.get("config"), dict):
            content["config"] = ConfigRecord(content["config"])
        message = Message(RecordDict(content), 5, f"query.{kind}")
        message.metadata.__dict__["_message_id"] = str(next(self.ids))
        answer = self.app(message, self.context).content
        arrays = {name: a.numpy() for name, a in answer.array_records["arrays"].items()}
        return dict(answer.config_records["config"]), arrays

    def answers(self, kind, *arguments, **options):
        """Whether the site answers a question."""
        config, arrays = self.ask(kind, *arguments, **options)
        assert ("error" in config) == (not arrays)
        return bool(arrays)


def assert_refused(site, kind, *arguments, why, **options):
    """Nothing comes back but the reason, and nothing is in the way of an honest server."""
    config, arrays = site.ask(kind, *arguments, **options)
    assert arrays == {}
    assert set(config) <= {"site", "nonce", "error"}
    assert config["error"].startswith("refused: ")
    assert why in config["error"]


# -------------------------------------------------------------------- rows


@pytest.mark.parametrize("kind", ["times_scatter", "variances"])
def test_a_server_does_not_read_rows_out_of_products(kind):
    """A matrix in place of the mean is subtracted row by row: the change of a product is a row."""
    site = Site(FederatedPowerPCA(n_rounds=300, random_state=0))
    steps = (1,) * (kind == "times_scatter")

    def first_row_of_product(means):
        _, arrays = site.ask(kind, np.eye(8), means, *steps)
        return arrays["message"][:8].ravel()[:8] if arrays else np.zeros(8)

    means, t = np.zeros_like(ROWS), 16.0
    before = first_row_of_product(means)
    stolen = np.zeros_like(ROWS)
    for i in range(len(ROWS)):
        means[i, 0] = t
        change = first_row_of_product(means) - before
        stolen[i] = -change / t
        stolen[i, 0] = (t - change[0] / t) / 2
        means[i, 0] = 0.0
    error = np.abs(stolen - ROWS).max(axis=1)
    assert error.min() > 1e-3, f"rows read to {error.max():.0e}"


@pytest.mark.parametrize(("estimator", "kind"), FIRST, **BY_KIND)
def test_a_site_with_few_rows_answers_nothing(estimator, kind):
    """The summary of two rows is these rows: their mean, and half their difference."""
    first, second = ROWS[:2]
    summary = Subspace.from_rows(ROWS[:2])
    half = summary.singular_values[0] / np.sqrt(2) * summary.components[0]
    found = sorted([summary.mean + half, summary.mean - half], key=lambda row: row[0])
    np.testing.assert_allclose(found, sorted([first, second], key=lambda row: row[0]), atol=1e-12)
    for n in (1, 2, 9):
        assert_refused(Site(estimator, ROWS[:n]), kind, why="fewer than min_rows=10 rows")
    assert Site(estimator, ROWS[:10]).answers(kind)
    assert Site(estimator, ROWS[:2], min_rows=2).answers(kind)
    assert_refused(Site(estimator, min_rows=201), kind, why="fewer than min_rows=201 rows")


def test_few_rows_are_refused_in_every_round():
    for kind, arguments in HONEST.items():
        assert_refused(Site(POWER, ROWS[:9]), kind, *arguments, why="fewer than min_rows=10")


# What docs/promises.md says is not protected from, so that it is said no longer than it is true.


def test_within_the_rules_a_server_learns_the_scatter_matrix():
    site = Site(POWER)
    *total, n = site.ask("moments")[1]["message"]
    mean = np.divide(total, n)
    axes = np.split(np.eye(8), [3, 6])
    products = [site.ask("times_scatter", basis, mean, 1)[1]["message"] for basis in axes]
    expected = (ROWS - MEAN).T @ (ROWS - MEAN)
    np.testing.assert_allclose(np.concatenate(products), expected, rtol=1e-9, atol=1e-9)


def test_a_row_that_joins_between_two_runs_is_told():
    before = Site(POWER, ROWS[:-1]).ask("moments")[1]["message"]
    after = Site(POWER, ROWS).ask("moments")[1]["message"]
    np.testing.assert_allclose((after - before)[:-1], ROWS[-1], atol=1e-10)


# -------------------------------------------------------------------- arguments

MEANS = {
    "a row for each row": (np.zeros((200, 8)), "shape (8,), got (200, 8)"),
    "a matrix of one row": (MEAN[None], "shape (8,), got (1, 8)"),
    "a column": (MEAN[:, None], "shape (8,), got (8, 1)"),
    "one number": (3.0, "shape (8,), got ()"),
    "one more column": (np.zeros(9), "shape (8,), got (9,)"),
    "NaN": (np.full(8, np.nan), "argument 1 is NaN or infinity"),
    "infinity": (np.full(8, np.inf), "argument 1 is NaN or infinity"),
}
BASES = {
    "more directions than its own": (np.eye(8)[:4], "k <= 3, got (4, 8)"),
    "more directions than columns": (np.ones((9, 8)), "k <= 3, got (9, 8)"),
    "of other columns": (np.eye(9)[:3], "shape (k, 8)"),
    "one vector": (V[0], "got (8,)"),
    "three axes": (V[None], "got (1, 3, 8)"),
    "not orthonormal": (V + 1e-5, "orthonormal rows"),
    "scaled": (V * (1 + 1e-6), "orthonormal rows, they are off by 2.0e-06"),
    "one row twice": (V[[0, 0, 1]], "orthonormal rows"),
    "zero": (np.zeros((3, 8)), "orthonormal rows"),
    "huge": (np.full((3, 8), 1e200), "orthonormal rows"),
    "NaN": (V * np.nan, "argument 0 is NaN or infinity"),
}
STEPS = {
    "too many": 2.0**53,
    "many": 20_000,
    "two": 2,
    "none": 0,
    "less than none": -1,
    "a part": 1.5,
    "an array": [1.0],
}


@pytest.mark.parametrize("kind", list(HONEST))
@pytest.mark.parametrize("what", list(MEANS))
def test_means_that_are_none(kind, what, monkeypatch):
    mean, why = MEANS[what]
    refused_before_work(monkeypatch, kind, (HONEST[kind][0], mean, *HONEST[kind][2:]), why)


@pytest.mark.parametrize("kind", list(HONEST))
@pytest.mark.parametrize("what", list(BASES))
def test_bases_that_are_none(kind, what, monkeypatch):
    basis, why = BASES[what]
    refused_before_work(monkeypatch, kind, (basis, *HONEST[kind][1:]), why)


@pytest.mark.parametrize("what", list(STEPS))
def test_local_steps_that_are_not_its_own(what, monkeypatch):
    arguments = (V, MEAN, STEPS[what])
    refused_before_work(monkeypatch, "times_scatter", arguments, "local_steps must be 1")


def refused_before_work(monkeypatch, kind, arguments, why):
    """A site that does not multiply, and answers an honest server still."""
    name = "fedpca_sklearn.rounds._queries.Query.__call__"
    site = Site(POWER)
    with monkeypatch.context() as patch:
        patch.setattr(name, lambda *_: pytest.fail("the site worked"))
        assert_refused(site, kind, *arguments, why=why)
    assert site.answers("moments")
    assert site.answers(kind, *HONEST[kind])


def test_its_own_local_steps():
    site = Site(FederatedPowerPCA(3, local_steps=4))
    assert site.answers("times_scatter", V, MEAN, 4)
    assert_refused(site, "times_scatter", V, MEAN, 1, why="local_steps must be 4")


def test_a_mean_where_there_is_none():
    site = Site(FederatedPowerPCA(3, center=False))
    for kind, (_, _, *more) in HONEST.items():
        assert site.answers("moments")
        assert_refused(site, kind, V, MEAN, *more, why="zero with center=False")
        assert site.answers("moments")
        assert site.answers(kind, V, np.zeros(8), *more)
        site = Site(FederatedPowerPCA(3, center=False))


@pytest.mark.parametrize(("estimator", "kind"), FIRST, **BY_KIND)
def test_arguments_that_nobody_asked_for(estimator, kind):
    site = Site(estimator)
    assert_refused(site, kind, MEAN, why="a question of this kind has 0 arguments, got 1")
    assert site.answers(kind)


@pytest.mark.parametrize("kind", list(HONEST))
def test_another_number_of_arguments(kind):
    n = len(HONEST[kind])
    for arguments in ((), HONEST[kind][:-1], (*HONEST[kind], 1)):
        assert_refused(
            Site(POWER), kind, *arguments, why=f"has {n} arguments, got {len(arguments)}"
        )
    assert_refused(Site(POWER), kind, arguments=None, why=f"has {n} arguments, got 0")
    names = ArrayRecord({f"{i}x": Array(np.ones(1)) for i in range(n)})
    assert_refused(Site(POWER), kind, arguments=names, why=f"has {n} arguments, got {n}")


def npy(header, data=bytes(16)):
    """An array with a header of one's own."""
    return Array(
        "float64",
        (2,),
        "numpy.ndarray",
        b"\x93NUMPY\x01\x00" + bytes([len(header), 0]) + header + data,
    )


def head(shape, dtype="'<f8'", by_columns=False):
    return f"{{'descr': {dtype}, 'fortran_order': {by_columns}, 'shape': {shape}, }}\n".encode()


ARRAYS = {
    "a giant": npy(head((2**40,))),
    "a giant by its product": npy(head((2**20, 2**20, 2**20))),
    "of nothing": npy(head((0, 8)), b""),
    "of negative length": npy(head((-1, -2))),
    "objects": npy(head((2,), "'|O'")),
    "a pickle": Array("float64", (2,), "pickle", b"cos\nsystem\n(S'true'\ntR."),
    "single precision": Array(MEAN.astype(np.float32)),
    "integers": Array(np.arange(8)),
    "complex numbers": Array(MEAN.astype(complex)),
    "text": Array(np.array(["a"] * 8)),
    "records": npy(head((2,), "[('a', '<f4'), ('b', '<f4')]")),
    "of another byte order": npy(head((2,), "'>f8'")),
    "by columns": npy(head((2, 1), by_columns=True)),
    "a deep header": npy(b"-" * 200 + b"1\n"),
    "junk": Array("float64", (2,), "numpy.ndarray", b"junk"),
    "empty": Array("float64", (2,), "numpy.ndarray", b""),
}


@pytest.mark.parametrize("what", list(ARRAYS))
def test_arrays_that_are_none(what):
    site = Site(POWER)
    site.ask("moments")
    tracemalloc.start()
    for i in range(2):
        arguments = list(HONEST["variances"])
        arguments[i] = ARRAYS[what]
        assert_refused(Site(POWER), "variances", *arguments, why=f"argument {i} is")
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def test_a_kind_that_is_none():
    for kind in ("rows", "message"):
        with pytest.raises(ValueError, match="No query function registered"):
            Site(POWER).ask(kind)
    assert_refused(Site(POWER), "summary", why="no question of the kind 'summary'")


# -------------------------------------------------------------------- number of questions


def test_questions_are_counted():
    site = Site(POWER)
    assert site.answers("moments")
    for _ in range(4):
        assert site.answers("times_scatter", V, MEAN, 1)
    more = "more than 4 questions of the kind 'times_scatter'"
    assert_refused(site, "times_scatter", V, MEAN, 1, why=more)
    assert site.answers("variances", V, MEAN)
    assert_refused(site, "variances", V, MEAN, why="more than 1 questions of the kind 'variances'")
    assert_refused(site, "times_scatter", V, MEAN, 1, why=more)


def test_what_is_refused_and_what_is_asked_again_counts():
    site = Site(POWER)
    for _ in range(3):
        assert_refused(site, "times_scatter", V, MEAN, 2, why="local_steps", nonce="again")
    assert site.answers("times_scatter", V, MEAN, 1, nonce="again")
    assert_refused(site, "times_scatter", V, MEAN, 1, nonce="again", why="more than 4 questions")


@pytest.mark.parametrize(("estimator", "kind"), FIRST, **BY_KIND)
def test_a_run_begins_three_times(estimator, kind):
    site = Site(estimator)
    for _ in range(3):
        assert site.answers(kind)
    for _ in range(2):
        assert_refused(site, kind, why="a run begins at most 3 times")


@pytest.mark.parametrize("kind", list(HONEST))
def test_the_mean_stays_the_same_until_the_run_begins_anew(kind):
    site = Site(POWER)
    other = np.nextafter(MEAN, np.inf)
    assert site.answers("moments")
    assert site.answers(kind, *HONEST[kind])
    assert_refused(site, "times_scatter", V, other, 1, why="argument 1 must stay the same")
    assert site.answers("moments")
    assert site.answers("times_scatter", V, other, 1)
    assert_refused(site, "variances", V, MEAN, why="argument 1 must stay the same")


def test_another_run_starts_from_zero():
    """What docs/promises.md says: the count does not bind a server that starts another run."""
    site = Site(DistributedPCA(3))
    for _ in range(3):
        assert site.answers("factor")
    assert not site.answers("factor")
    site.context.run_id = 2**64 - 1  # in the same series, whose state it shares
    assert site.answers("factor")


def test_the_state_of_a_site_is_small_and_can_be_stored():
    site = Site(POWER)
    for _ in range(300):
        site.ask("times_scatter", V, MEAN, 1)
    state = site.context.state
    stored = {name: type(record).inflate(record.deflate()) for name, record in state.items()}
    assert stored == dict(state.items())
    assert sum(len(record.deflate()) for record in state.values()) < 1000


# -------------------------------------------------------------------- nonces and texts


@pytest.mark.parametrize("nonce", [None, "", "x" * 65, 7, b"bytes", ["list"]])
def test_a_question_without_a_nonce(nonce):
    assert_refused(Site(POWER), "moments", nonce=nonce, why="needs a nonce of 1 to 64 characters")


def test_an_answer_carries_the_nonce_of_its_question():
    site = Site(POWER)
    assert site.ask("moments", nonce="first")[0]["nonce"] == "first"
    assert site.ask("times_scatter", V, MEAN, 2, nonce="second")[0]["nonce"] == "second"


@pytest.mark.parametrize(("estimator", "kind"), FIRST, **BY_KIND)
def test_an_exception_does_not_tell_what_is_in_the_rows(estimator, kind, caplog):
    rows = np.array([["Ann Smith HIV+", "1.0"]] * 20, dtype=object)
    config, arrays = Site(estimator, rows).ask(kind)
    assert arrays == {}
    assert "Ann" not in repr(config)
    said, reference = config["error"].split(" in the log")[0].split(", ")
    assert said == "ValueError"
    (record,) = [record for record in caplog.records if record.name == "fedpca_sklearn"]
    assert record.levelno == logging.ERROR
    assert reference in record.getMessage()
    assert "Ann Smith HIV+" in str(record.exc_info[1])


def test_an_exception_of_the_function_that_names_the_site():
    def name(context):
        raise KeyError("Ann Smith HIV+")

    config, _ = Site(POWER, site=name).ask("moments")
    assert config["error"].startswith("KeyError, ")
    assert "Ann" not in repr(config)


def test_a_refusal_is_in_the_log_of_the_site(caplog):
    Site(POWER, run=12).ask("times_scatter", V, MEAN, 2)
    (record,) = [record for record in caplog.records if record.name == "fedpca_sklearn"]
    assert record.levelno == logging.WARNING
    assert (
        record.getMessage() == "Refused a question 'times_scatter' of run 12: local_steps must be 1"
    )


def test_what_is_asked_before_a_fit_begins_counts_as_a_beginning():
    """Else there would be a fourth mean in a run, and as many products with it."""
    site, means = Site(POWER), iter(range(9))
    answered = 0
    for begins in (False, True, True, True):
        if begins:
            site.ask("moments")
        answered += site.answers("times_scatter", V, MEAN + next(means), 1)
    assert answered == 3
