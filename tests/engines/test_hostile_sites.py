"""A server over Flower and a hostile site among others: it is left out, named, with a reason."""

import os
import re
import tracemalloc
import warnings
from itertools import chain

import numpy as np
import pytest
from sklearn.base import clone

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from test_flower import KINDS, LABELS, PARTS, X, assert_same, grid_of, run

from fedpca_sklearn import (
    DistributedPCA,
    FederatedPCA,
    FederatedPowerPCA,
    FederatedSubspaceTracker,
    ProjectionAverage,
    StreamingPCA,
    Subspace,
)
from fedpca_sklearn.engines._messages import Answer, BadMessageError
from fedpca_sklearn.engines.flower import fit_sites

SUMMARY, FACTOR, POWER = KINDS
HONEST = LABELS != "west"


def spoiling(change, site="west", kind=None, first=1):
    """Spoil the replies of a site, of one kind or of all, from a number on."""
    seen = []

    def spoil(sender, message, reply):
        if sender == site and kind in (None, message.metadata.message_type.split(".")[1]):
            seen.append(message)
            if len(seen) >= first:
                return change(message, reply)
        return reply

    return spoil


def changed(reply, message, config_with=(), arrays_with=(), **records):
    """A reply with other entries, None for those that are taken out."""
    content = {
        "config": dict(reply.content.config_records["config"]) | dict(config_with),
        "arrays": dict(reply.content.array_records["arrays"]) | dict(arrays_with),
    }
    kept = {
        name: {key: value for key, value in record.items() if value is not None}
        for name, record in content.items()
    }
    found = {
        "config": ConfigRecord(kept["config"]),
        "arrays": ArrayRecord(kept["arrays"]),
    } | records
    found = {name: record for name, record in found.items() if record is not None}
    return Message(RecordDict(found), reply_to=message)


def sending(**entries):
    """A change of the configuration."""
    return lambda message, reply: changed(reply, message, config_with=entries)


def arrays(**entries):
    """A change of the arrays."""
    entries = {
        name: a if a is None or isinstance(a, Array) else Array(np.asarray(a))
        for name, a in entries.items()
    }
    return lambda message, reply: changed(reply, message, arrays_with=entries)


def records(**entries):
    """A change of the records."""
    return lambda message, reply: changed(reply, message, **entries)


def assert_left_out(estimator, spoil, reason, name="west", parts=PARTS):
    """The others are fitted as if the site were not there; if they are too few, it is named."""
    with pytest.warns(UserWarning, match=f"Fitted without site {name!r}"):
        fitted = run(estimator, parts, spoil=spoil())
    assert list(fitted.missing_sites_) == [name]
    assert re.search(reason, fitted.missing_sites_[name]), fitted.missing_sites_
    assert fitted.clients_ == ["east", "north"]
    assert_same(fitted, clone(estimator).fit(X[HONEST], clients=LABELS[HONEST]))
    with pytest.raises(RuntimeError, match=f"(?s)2, but min_sites=3. Left out: site {name!r}"):
        run(estimator, parts, spoil=spoil(), min_sites=3)


# -------------------------------------------------------------------- what is in a message


def announcing(shape, dtype="'<f8'", by_columns=False, data=bytes(16)):
    """An array of a few bytes with a header of its own."""
    header = f"{{'descr': {dtype}, 'fortran_order': {by_columns}, 'shape': {shape}, }}\n".encode()
    return raw(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data)


def raw(data, stype="numpy.ndarray"):
    return Array("float64", (2,), stype, data)


def as_bytes(data):
    return np.frombuffer(data, np.uint8)


def a_summary(**changes):
    return as_bytes(StreamingPCA(5).fit(X[700:]).subspace_._replace(**changes).to_bytes())


GOOD = StreamingPCA(5).fit(X[700:]).subspace_.to_bytes()
HUGE = announcing((2**40,))
OTHER = Subspace.from_rows(X[:50, :63], 5).to_bytes()
FLAT = Subspace.from_rows(X[:50], 5, center=False).to_bytes()
THOUSAND = np.full(2080, 1e154)

# estimator, what is changed, and the reason that is given
ATTACKS = {
    "no summary": (SUMMARY, arrays(summary=None), "no array 'summary'"),
    "junk": (SUMMARY, arrays(summary=as_bytes(b"junk" * 30)), "Not a subspace summary"),
    "cut": (SUMMARY, arrays(summary=as_bytes(GOOD[:-1])), "no valid summary: Corrupt"),
    "a changed byte": (
        SUMMARY,
        arrays(summary=as_bytes(GOOD[:60] + b"\x07" + GOOD[61:])),
        "checksum",
    ),
    "floats for bytes": (SUMMARY, arrays(summary=np.ones(9)), "expected dtype .u1"),
    "a giant summary": (SUMMARY, arrays(summary=announcing((2**40,), "'|u1'")), "announces"),
    "NaN in a summary": (SUMMARY, arrays(summary=a_summary(scatter=np.nan)), "no valid summary"),
    "a negative count": (SUMMARY, arrays(summary=a_summary(n_samples=-1.0)), "no valid summary"),
    "no rows": (
        SUMMARY,
        arrays(summary=as_bytes(Subspace.empty(64).to_bytes())),
        "count=0.0, expected a number of rows",
    ),
    "part of a row": (SUMMARY, arrays(summary=a_summary(n_samples=0.25)), "count=0.25"),
    "very many rows": (SUMMARY, arrays(summary=a_summary(n_samples=1.7e308)), "count=1.7e.308"),
    "a far mean": (
        SUMMARY,
        arrays(summary=a_summary(mean=np.full(64, 1e155))),
        "values that are too large: mean squares of inf",
    ),
    "a wide scatter": (SUMMARY, arrays(summary=a_summary(scatter=1e308)), "too large"),
    "float32 that overflows": (
        SUMMARY,
        arrays(
            summary=a_summary(
                components=np.eye(5, 64, dtype=np.float32),
                singular_values=np.ones(5),
                mean=np.full(64, 1e38),
                scatter=1e60,
            )
        ),
        "values that are too large",
    ),
    "other columns": (
        SUMMARY,
        arrays(summary=as_bytes(OTHER)),
        "its number of features is 63, that of the others 64",
    ),
    "about the origin": (
        SUMMARY,
        arrays(summary=as_bytes(FLAT)),
        "its centring is False, that of the others True",
    ),
    "single precision": (FACTOR, arrays(factor=np.ones(2080, np.float32)), "dtype <f4"),
    "NaN": (FACTOR, arrays(factor=np.full(2080, np.nan)), "as 'factor' NaN or infinity"),
    "infinity": (FACTOR, arrays(factor=np.full(2080, -np.inf)), "as 'factor' NaN or infinity"),
    "one number more": (FACTOR, arrays(factor=np.ones(2081)), r"shape .2081,., expected .2080,."),
    "a square": (FACTOR, arrays(factor=np.ones((64, 64))), r"shape .64, 64., expected .2080,."),
    "by columns": (
        FACTOR,
        arrays(factor=announcing((2, 1), by_columns=True)),
        "shape .2, 1. by columns",
    ),
    "a giant": (FACTOR, arrays(factor=HUGE), "16 bytes that announces"),
    "a giant by its product": (FACTOR, arrays(factor=announcing((2**30, 2**30))), "announces"),
    "of negative length": (FACTOR, arrays(factor=announcing((-1, -2))), "not a numpy"),
    "of nothing": (FACTOR, arrays(factor=announcing((0,), data=b"")), "announces"),
    "objects": (FACTOR, arrays(factor=announcing((2,), "'|O'")), "announces dtype .O"),
    "a pickle": (
        FACTOR,
        arrays(factor=raw(b"cos\nsystem\n(S'true'\ntR.", "pickle")),
        "not a numpy",
    ),
    "a pickle in an array": (
        FACTOR,
        arrays(factor=announcing((1,), "'|O'", data=b"cos\nsystem\n(S'true'\ntR.")),
        "announces dtype .O",
    ),
    "a deep header": (
        FACTOR,
        arrays(factor=raw(b"\x93NUMPY\x01\x00\x10\x27" + b"-" * 9999 + b"1")),
        "not",
    ),
    "a long header": (
        FACTOR,
        arrays(factor=raw(b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535)),
        "not",
    ),
    "a header that numpy fails on": (
        FACTOR,
        arrays(factor=raw(b"\x93NUMPY\x01\x00\x40\x00" + b"{'descr': '''".ljust(63) + b"\n")),
        "not a numpy array",
    ),
    "a header that takes long": (FACTOR, arrays(factor=announcing("1" * 5000)), "not a numpy"),
    "very many lengths": (FACTOR, arrays(factor=announcing((1,) * 5000)), "not a numpy array"),
    "no array": (FACTOR, arrays(factor=raw(b"junk")), "not a numpy array"),
    "a mean of two rows": (FACTOR, arrays(mean=np.ones((2, 32))), r"shape .2, 32."),
    "half a mean": (FACTOR, arrays(mean_rest=np.ones(63)), r"shape .63,., expected .64,."),
    "fewer than no rows": (FACTOR, arrays(count=np.array([-3.0])), "count=-3.0"),
    "half a row": (FACTOR, arrays(count=np.array([2.5])), "count=2.5"),
    "1e300 rows": (FACTOR, arrays(count=np.array([1e300])), "count=1e.300"),
    "fewer rows than it sends": (FACTOR, arrays(count=np.array([9.0])), r"expected .540,."),
    "a triangle that overflows": (FACTOR, arrays(factor=THOUSAND), "values that are too large"),
    "a mean that overflows": (FACTOR, arrays(mean=np.full(64, 1e200)), "values that are too large"),
    "its rest": (FACTOR, arrays(mean_rest=np.full(64, 1e200)), "values that are too large"),
    "fewer columns": (
        FACTOR,
        arrays(factor=np.ones(6), mean=np.ones(3), mean_rest=np.zeros(3)),
        "its number of features is 3, that of the others 64",
    ),
    "a dtype": (
        SUMMARY,
        sending(dtype="object"),
        "dtype='object', expected 'float32' or 'float64'",
    ),
    "no dtype": (FACTOR, sending(dtype=None), "dtype=None"),
    "a list of dtypes": (FACTOR, sending(dtype=["float64"]), "dtype="),
    "columns in one text": (FACTOR, sending(columns="abc"), "not a list of names"),
    "columns that are numbers": (FACTOR, sending(columns=[1] * 64), "must be 64 strings"),
    "too many columns": (FACTOR, sending(columns=["a"] * 10**6), "got 1000000 values"),
    "one column twice": (FACTOR, sending(columns=["a"] * 64), "must differ, got 'a' twice"),
    "columns where others have none": (
        FACTOR,
        sending(columns=[f"c{i}" for i in range(64)]),
        "its columns have names, unlike those of the others",
    ),
    "no arrays": (FACTOR, records(arrays=None), "no array 'count'"),
    "numbers for arrays": (
        FACTOR,
        records(arrays=MetricRecord({"count": 3.0})),
        "no array 'count'",
    ),
    "arrays for the configuration": (FACTOR, records(config=ArrayRecord()), "no answer to this"),
}


@pytest.mark.parametrize("attack", list(ATTACKS))
def test_what_a_site_sends_leaves_it_out(attack):
    estimator, change, reason = ATTACKS[attack]
    assert_left_out(estimator, lambda: spoiling(change), reason, name_in(attack))


def name_in(attack):
    """A reply without a readable answer gives no name."""
    early = ("a dtype", "no dtype", "a list of dtypes", "arrays for the configuration")
    malformed = ATTACKS[attack][2].startswith(("its number", "its centring", "its columns"))
    return "west" if malformed and attack not in early else "node 3"


# moments and products, in rounds
ROUNDS = {
    "moments of NaN": ("moments", np.full(65, np.nan), "NaN or infinity"),
    "moments of a giant": ("moments", HUGE, "announces"),
    "a matrix of moments": ("moments", np.ones((65, 1)), r"shape .65, 1., expected .None,."),
    "moments of nothing": ("moments", np.ones(1), "no sum of rows"),
    "no rows": ("moments", np.zeros(65), "count=0.0"),
    "1e308 rows": ("moments", np.full(65, 1e308), "count=1e.308"),
    "a sum that overflows": ("moments", np.r_[np.full(64, 1e200), 1.0], "too large"),
    "moments of other columns": ("moments", np.ones(64), "number of features is 63"),
    "a product of NaN": ("times_scatter", np.full((5, 64), np.nan), "NaN or infinity"),
    "a flat product": ("times_scatter", np.ones(320), r"shape .320,., expected .5, 64."),
    "a turned product": ("times_scatter", np.ones((64, 5)), r"shape .64, 5., expected .5, 64."),
    "a product that overflows": ("times_scatter", np.full((5, 64), 1e308), "their sum would over"),
    "no product": ("times_scatter", None, "no array 'message'"),
    "variances of NaN": ("variances", np.full(27, np.nan), "NaN or infinity"),
    "too many variances": ("variances", np.ones(28), r"shape .28,., expected .27,."),
    "a negative scatter": ("variances", np.r_[np.ones(25), -1.0, 9.0], "scatter=-1.0"),
    "a scatter that overflows": ("variances", np.r_[np.ones(25), 1e308, 9.0], "too large"),
    "variances that overflow": ("variances", np.r_[np.full(25, -1e308), 1.0, 9.0], "too large"),
    "variances of no rows": ("variances", np.r_[np.ones(26), 0.0], "count=0.0"),
}


@pytest.mark.parametrize("attack", list(ROUNDS))
def test_what_a_site_sends_in_a_round_leaves_it_out(attack):
    kind, message, reason = ROUNDS[attack]
    name = "node 3" if kind == "moments" and "number" not in reason else "west"
    assert_left_out(POWER, lambda: spoiling(arrays(message=message), kind=kind), reason, name)


def test_what_nobody_asked_for_changes_nothing():
    more = Array(np.ones(3))
    for estimator in KINDS:
        extra = records(more=ArrayRecord({"more": more}), numbers=MetricRecord({"more": 3.0}))
        for change in (arrays(more=more), sending(more="text"), extra):
            fitted = run(estimator, spoil=spoiling(change))
            assert fitted.missing_sites_ == {}
            assert_same(fitted, clone(estimator).fit(X, clients=LABELS))


@pytest.mark.parametrize("estimator", KINDS, ids=lambda e: type(e).__name__)
def test_a_reply_without_records(estimator):
    def empty(message, reply):
        return Message(RecordDict(), reply_to=message)

    assert_left_out(estimator, lambda: spoiling(empty), "no answer to this question", "node 3")


def test_what_is_announced_takes_no_memory():
    attacks = [
        (SUMMARY, arrays(summary=announcing((2**45,), "'|u1'"))),
        (FACTOR, arrays(factor=HUGE)),
        (FACTOR, arrays(mean=HUGE)),
        (FACTOR, sending(columns=["x" * 50] * 10)),
        (POWER, arrays(message=HUGE)),
    ]
    for estimator, change in attacks:
        grid = grid_of(estimator)
        grid.spoil = spoiling(change)
        fit_sites(grid_of(estimator), estimator, wait=0)
        tracemalloc.start()
        fit_sites(grid_of(estimator), estimator, wait=0)
        honest = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        with pytest.warns(UserWarning, match="Fitted without"):
            fit_sites(grid, estimator, wait=0)
        assert tracemalloc.get_traced_memory()[1] < honest + 2**20
        tracemalloc.stop()


def test_an_array_of_another_shape_is_not_copied():
    answer = Answer("west", {}, {"factor": Array(np.zeros(2**21))})
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"shape .2097152,., expected .2080,."):
        answer.array("factor", (2080,))
    assert tracemalloc.get_traced_memory()[1] < 2**18
    tracemalloc.stop()


# -------------------------------------------------------------------- who it is


@pytest.mark.parametrize("estimator", KINDS, ids=lambda e: type(e).__name__)
def test_two_nodes_of_one_name(estimator):
    with pytest.warns(
        UserWarning, match="site 'node 3' .calls itself 'east': node 1 has this name"
    ):
        fitted = run(estimator, sites=["east", "north", "east"])
    assert fitted.clients_ == ["east", "north"]
    assert_same(fitted, clone(estimator).fit(X[HONEST], clients=LABELS[HONEST]))


def test_one_name_in_two_spellings():
    with pytest.warns(UserWarning, match="site 'node 3' .calls itself .*: node 1 has this name"):
        fitted = run(FACTOR, sites=["Z\u00fcrich", "north", "Zu\u0308rich"])
    assert fitted.clients_ == ["Z\u00fcrich", "north"]


@pytest.mark.parametrize("kind", ["times_scatter", "variances"])
@pytest.mark.parametrize("name", ["north", "another", "", 7, None])
def test_another_name_in_a_later_round(kind, name):
    change = sending(site=name)
    reason = "another name, dtype or columns than before|sent no name"
    assert_left_out(POWER, lambda: spoiling(change, kind=kind), reason)


def test_another_dtype_or_other_columns_in_a_later_round():
    for entry in ({"dtype": "float32"}, {"columns": ["a"] * 64}):
        change = sending(**entry)
        reason = "another name, dtype or columns than before"
        assert_left_out(POWER, lambda change=change: spoiling(change, kind="variances"), reason)


NAMES = {
    "none": None,
    "a number": 5,
    "empty": "",
    "very long": "w" * 10**6,
    "bytes": b"west",
    "a list": ["west"],
    "another node": "node 1",
    "no node": "node x",
}


@pytest.mark.parametrize("name", list(NAMES))
def test_names_that_are_none(name):
    change = sending(site=NAMES[name])
    reason = "sent no name of 1 to 255 characters|calls itself 'node .': is node 3"
    for estimator in KINDS:
        assert_left_out(estimator, lambda: spoiling(change), reason, "node 3")


@pytest.mark.parametrize("name", ["we\x07st", "west\n", "\u202ewest", "we\u200bst", "west\x00"])
def test_names_with_characters_that_are_not_seen(name):
    assert_left_out(FACTOR, lambda: spoiling(sending(site=name)), "site must", "node 3")


@pytest.mark.parametrize("estimator", KINDS, ids=lambda e: type(e).__name__)
def test_an_error_under_another_name_is_not_that_sites(estimator):
    """West fails in the name of east, who answers, and of a site that does not."""
    for name in ("east", "silent"):
        change = sending(site=name, error="I give up")
        reason = f"^calls itself '{name}': I give up$"
        assert_left_out(estimator, lambda change=change: spoiling(change), reason, "node 3")
    spoil = spoiling(sending(site="north", error="I give up"))

    def silent(site, message, reply):
        return None if site == "north" else spoil(site, message, reply)

    with pytest.warns(UserWarning, match="Fitted without"):
        fitted = run(estimator, spoil=silent, min_sites=1)
    assert fitted.missing_sites_["node 2"].startswith("no answer within")
    assert fitted.missing_sites_["node 3"] == "calls itself 'north': I give up"


def test_an_error_in_a_later_round_is_that_of_the_node():
    change = sending(site="east", error="I give up")
    assert_left_out(POWER, lambda: spoiling(change, kind="variances"), "^I give up$")


@pytest.mark.parametrize("error", ["x" * 10**7, "\x1b[2Jgone", "a\nsite 'east' (b)", "\u202eabc"])
def test_an_error_is_shown_in_one_short_line(error):
    with pytest.warns(UserWarning, match="Fitted without") as caught:
        fitted = run(FACTOR, spoil=spoiling(sending(error=error)))
    shown = fitted.missing_sites_["node 3"]
    assert shown.isprintable()
    assert len(shown) < 400
    assert str(caught[0].message).isprintable()


def test_an_error_of_another_type():
    for error in (7, b"bytes", ["a", "list"]):
        with pytest.warns(UserWarning, match="calls itself 'west'"):
            run(FACTOR, spoil=spoiling(sending(error=error)))


def test_flowers_own_errors_are_shown_in_one_short_line():
    def failed(message, reply):
        return Message(Error(2, "x\n" * 10**6), reply_to=message)

    with pytest.warns(UserWarning, match="Fitted without"):
        fitted = run(FACTOR, spoil=spoiling(failed))
    assert fitted.missing_sites_["node 3"].startswith("Flower's error 2: x\\nx")
    assert len(fitted.missing_sites_["node 3"]) < 1000


# -------------------------------------------------------------------- which question it answers


def stamped(reply, **metadata):
    """A reply with other metadata."""
    for name, value in metadata.items():
        reply.metadata.__dict__[f"_{name}"] = value
    return reply


@pytest.mark.parametrize("nonce", ["", "0" * 32, 7, None])
def test_an_answer_to_another_question(nonce):
    for estimator in KINDS:
        reason = "no answer to this question"
        assert_left_out(estimator, lambda: spoiling(sending(nonce=nonce)), reason, "node 3")


def test_a_product_that_was_sent_before():
    def replay():
        old = []

        def change(message, reply):
            old.append(reply.content)
            return Message(old[0], reply_to=message)

        return spoiling(change, kind="times_scatter")

    assert_left_out(POWER, replay, "no answer to this question")


def test_the_answer_of_another_site():
    """West sends what east sent, east's nonce and name with it."""
    sent = {}

    def spoil(site, message, reply):
        if site == "east":
            sent["east"] = reply.content
        return Message(sent["east"], reply_to=message) if site == "west" else reply

    for estimator in KINDS:
        assert_left_out(estimator, lambda: spoil, "no answer to this question", "node 3")


def grid_with(estimator, extra):
    """A grid on which further replies come in before the others."""
    grid = grid_of(estimator)
    receive = grid.send_and_receive

    def send_and_receive(messages, *, timeout=None):
        replies = list(receive(messages, timeout=timeout))
        return [*extra(messages, replies), *replies]

    grid.send_and_receive = send_and_receive
    return grid


def fitted_with(estimator, extra):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return fit_sites(grid_with(estimator, extra), estimator, wait=0)


@pytest.mark.parametrize("estimator", KINDS, ids=lambda e: type(e).__name__)
def test_replies_that_are_nobodys(estimator):
    """Sent twice, late, unasked for, or by another node than was asked: the others count."""
    expected, late = clone(estimator).fit(X, clients=LABELS), []

    def twice(messages, replies):
        return replies

    def before(messages, replies):
        late.extend(replies)
        return late[:-3]

    def unasked(messages, replies):
        return [
            stamped(Message(r.content, reply_to=m), reply_to_message_id="no")
            for r, m in zip(replies, messages, strict=True)
        ]

    def by_another(messages, replies):
        answers = {reply.metadata.src_node_id: reply for reply in replies}
        forged = Message(answers[3].content, reply_to=messages[0])
        return [stamped(forged, src_node_id=3)]

    for extra in (twice, before, unasked, by_another):
        assert_same(fitted_with(estimator, extra), expected)


# -------------------------------------------------------------------- who is like the others


def test_the_larger_group_stays():
    cut = X[:, :63]
    parts = {"a": cut[:500], "b": X[500:900], "c": X[900:1300], "d": X[1300:]}
    for estimator in KINDS:
        with pytest.warns(UserWarning, match="site 'a' .its number of features is 63"):
            assert run(estimator, parts).clients_ == ["b", "c", "d"]


def test_of_equal_groups_the_one_of_the_first_name_stays():
    for first, _d, other in (("a", 63, "b"), ("c", 64, "b")):
        parts = {first: X[:900, :63], other: X[900:]}
        gone = max(first, other)
        for estimator in KINDS:
            with pytest.warns(UserWarning, match=f"site {gone!r} .its number of features"):
                assert run(estimator, parts, min_sites=1).clients_ == [min(first, other)]
            with pytest.raises(RuntimeError, match=f"1, but min_sites=2. Left out: site {gone!r}"):
                run(estimator, parts)


def test_names_of_columns_that_most_have():
    pd = pytest.importorskip("pandas")
    columns = [f"pixel{i}" for i in range(64)]
    parts = {site: pd.DataFrame(rows, columns=columns) for site, rows in PARTS.items()}
    for west, reason in (
        (parts["west"].to_numpy(), "its columns have no names, unlike those of the others"),
        (parts["west"].rename(columns={"pixel3": "x"}), "it lacks 'pixel3' and has 'x'"),
        (parts["west"][columns[::-1]], "in another order: 'pixel63' at position 0"),
    ):
        for estimator in KINDS:
            assert_left_out(estimator, lambda: None, reason, parts={**parts, "west": west})


def test_names_within_a_summary_do_not_count():
    named = a_summary(feature_names=tuple(f"c{i}" for i in range(64)), site="east")
    fitted = run(SUMMARY, spoil=spoiling(arrays(summary=named)))
    assert fitted.clients_ == ["east", "north", "west"]
    assert not hasattr(fitted, "feature_names_in_")


# -------------------------------------------------------------------- several at once


def test_several_hostile_sites_are_all_named():
    parts = {f"site {i}": X[i::6] for i in range(6)}
    changes = {
        "site 1": arrays(factor=HUGE),
        "site 2": sending(site="site 0"),
        "site 3": lambda message, reply: None,
        "site 4": arrays(mean=np.full(64, 1e200)),
    }

    def spoil(site, message, reply):
        return changes[site](message, reply) if site in changes else reply

    with pytest.warns(UserWarning, match="Fitted without"):
        fitted = run(FACTOR, parts, spoil=spoil, timeout=7)
    assert fitted.clients_ == ["site 0", "site 5"]
    assert list(fitted.missing_sites_) == ["node 2", "node 3", "node 4", "node 5"]
    assert fitted.missing_sites_["node 3"] == "calls itself 'site 0': node 1 has this name"
    rows = np.concatenate([parts["site 0"], parts["site 5"]])
    assert_same(fitted, DistributedPCA(5).fit(rows))
    with pytest.raises(RuntimeError, match=r"(?s)min_sites=3.*node 2.*node 3.*node 4.*node 5"):
        run(FACTOR, parts, spoil=spoil, min_sites=3)


def test_sites_that_fail_one_after_another_in_rounds():
    """A run begins again twice; a site refuses the fourth beginning, and the error says why."""
    parts = {f"site {i}": X[i::6] for i in range(6)}
    estimator = FederatedPowerPCA(5, n_rounds=30, acceleration="krylov", random_state=0)
    bad = sending(error="I give up")

    def failing(sites):
        spoils = [spoiling(bad, s, "times_scatter", 1 + 3 * i) for i, s in enumerate(sites)]

        def spoil(site, message, reply):
            for change in spoils:
                reply = change(site, message, reply)
            return reply

        return spoil

    with pytest.warns(UserWarning, match="site 'site 1' .I give up.; site 'site 4' .I give up"):
        fitted = run(estimator, parts, spoil=failing(["site 1", "site 4"]))
    assert fitted.clients_ == ["site 0", "site 2", "site 3", "site 5"]
    rows = np.concatenate([parts[site] for site in fitted.clients_])
    labels = np.repeat(fitted.clients_, [len(parts[site]) for site in fitted.clients_])
    assert_same(fitted, clone(estimator).fit(rows, clients=labels))
    with pytest.raises(
        RuntimeError, match=r"Too few sites: 0.*refused: a run begins at most 3 times"
    ):
        run(estimator, parts, spoil=failing(["site 1", "site 4", "site 5"]))


# -------------------------------------------------------------------- values that are too large


def test_large_values_that_fit_are_taken():
    for estimator in (FederatedPCA(3), DistributedPCA(3), FederatedPowerPCA(3, random_state=0)):
        rows, labels = X[:900] * 1e100, LABELS[:900]
        parts = {site: rows[labels == site] for site in PARTS}
        fitted = run(estimator, parts)
        np.testing.assert_allclose(
            fitted.singular_values_,
            clone(estimator).fit(rows, clients=labels).singular_values_,
            rtol=1e-9,
        )


@pytest.mark.parametrize("scale", [1e140, 1e150, 1e154, 1e300])
def test_a_site_with_rows_that_are_too_large(scale):
    for estimator in [*KINDS, FederatedPCA(5, merge=ProjectionAverage())]:
        parts = {**PARTS, "west": PARTS["west"] * scale}
        with pytest.warns(UserWarning, match="Fitted without site '(west|node 3)'"):
            fitted = run(estimator, parts)
        assert fitted.clients_ == ["east", "north"]
        assert_same(fitted, clone(estimator).fit(X[HONEST], clients=LABELS[HONEST]))


def test_a_site_of_single_precision_does_not_overflow_the_others():
    parts = {site: rows.astype(np.float32) for site, rows in PARTS.items()}
    huge = np.r_[np.full(64, 1e20), 1.0]
    estimator = FederatedPowerPCA(5, n_rounds=9, random_state=0)
    with pytest.warns(UserWarning, match="site 'node 3' .*too large"):
        fitted = run(estimator, parts, spoil=spoiling(arrays(message=huge), kind="moments"))
    assert fitted.components_.dtype == np.float32
    with pytest.warns(UserWarning, match="site 'node 3' .*too large"):
        fitted = run(FACTOR, parts, spoil=spoiling(arrays(factor=np.full(2080, 1e25))))
    assert fitted.components_.dtype == np.float32


def test_a_client_in_one_process_whose_products_overflow_is_named():
    for scale in (1e153, 1e160, 1e300):
        rows = np.where(LABELS[:, None] == "north", X * scale, X)
        with pytest.raises(ValueError, match=r"^Client 'north': X holds values that are too large"):
            FederatedPowerPCA(5, center=False, random_state=0).fit(rows, clients=LABELS)
        with pytest.raises(ValueError, match=r"^Client 'north': X holds values that are too large"):
            FederatedSubspaceTracker(5, random_state=0).fit(rows, clients=LABELS)


def test_there_are_enough_attacks():
    assert len(list(chain(ATTACKS, ROUNDS))) >= 41


def test_changed_bytes_of_an_array_are_refused_or_an_array():
    rng = np.random.default_rng(0)
    data = Array(np.arange(12.0).reshape(3, 4)).data
    for _ in range(3000):
        hostile = bytearray(data)
        i = int(rng.integers(128))
        n = int(rng.integers(3))
        hostile[i : i + n] = rng.integers(0, 256, int(rng.integers(3)), dtype=np.uint8).tobytes()
        try:
            found = Answer("west", {}, {"a": raw(bytes(hostile))}).array("a", (3, None))
        except BadMessageError:
            continue
        np.testing.assert_array_equal(found.ravel()[:10], np.arange(10.0))
