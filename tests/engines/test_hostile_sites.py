"""A server and a hostile site among others: it is left out, named, with a reason."""

import re
import tracemalloc
import warnings

import numpy as np
import pandas as pd
import pytest
from engines.site_helpers import (
    PARTS,
    ROWS,
    SECURE,
    Array,
    announcing,
    arrays,
    as_bytes,
    assert_same,
    changed,
    fit,
    grid_of,
    here,
    in_one_process,
    kind_of,
    made,
    put,
    records,
    sending,
    sites_of,
    spoiling,
    table,
)
from flwr.app import ArrayRecord, Error, Message, MetricRecord, RecordDict
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from fedpca_sklearn import PairMoments, StreamingPCA, Subspace, subspace_distance
from fedpca_sklearn.engines._messages import Answer
from fedpca_sklearn.engines.flower import NoBatchError, fit_sites, partial_fit_sites

SUMMARY = StreamingPCA(3).fit(PARTS["west"]).subspace_
GOOD, HUGE = SUMMARY.to_bytes(), announcing((2**40,))
PICKLE = b"cos\nsystem\n(S'true'\ntR."
COLUMNS = [f"c{i}" for i in range(8)]


def summary(**changes):
    """Another summary of the site."""
    return arrays(summary=as_bytes(SUMMARY._replace(**changes).to_bytes()))


def summary_of(rows, *how, **more):
    return arrays(summary=as_bytes(Subspace.from_rows(rows, *how, **more).to_bytes()))


def pairs(rows, **changes):
    moments = PairMoments.from_rows(rows)._replace(**changes)
    return arrays(pairs=as_bytes(moments.to_bytes()))


def moved(name, at, to=lambda x: x * 1.1 + 500):
    return arrays(**{name: put(at, to)})


def garbled(texts):
    """Other texts of the same lengths; shares keep the number of their place."""
    return [text[:4] + bytes(b ^ 1 for b in text[4:]) for text in texts]


def empty(message, reply):
    return Message(RecordDict(), reply_to=message)


def replay():
    """The first answer to each question of the kind."""
    old = []

    def change(message, reply):
        old.append(reply.content)
        return Message(old[0], reply_to=message)

    return change


def flower_failed(message, reply):
    return Message(Error(2, "x\n" * 10**6), reply_to=message)


TRACKER = (
    "FederatedSubspaceTracker(2, batch_size=20, n_rounds=2, init=FirstSubspace(n_rounds=2),"
    " random_state=0)"
)
FITS = {
    name: fit_and_rows
    for name, *fit_and_rows in table(f"""
S | FederatedPCA(3) | rows
F | DistributedPCA(3) | rows
P | FederatedPowerPCA(3, random_state=0) | rows
F32 | DistributedPCA(3) | single
PW | FederatedPowerPCA(3, random_state=0) | weights
TD | TruncatedDistributedPCA(3) | rows
OD | OnlineDistributedPCA(3) | rows
scaler | FederatedScaler() | rows
refined | FederatedPCA(3, n_refinements=2) | rows
hetero | FederatedHeteroscedasticPCA(2, random_state=0) | strong
pairs | FederatedPCA(3, missing=AvailablePairs()) | holes
fill | FederatedPCA(3, missing=ConditionalFill()) | holes
tracker | {TRACKER} | short stream
power | VerticalFederatedPCA(3, method="power", random_state=0) | same owners
merge | VerticalFederatedPCA(3, method="merge") | same owners
agreed | VerticalFederatedPCA(2, method=VFedPCA(n_rounds=2), random_state=0) | same owners
kernel | VerticalFederatedKernelPCA(3, kernel="linear", n_landmarks=12) | same owners
kernels | VerticalFederatedKernelPCA(2, aggregation=VFedPCA(n_rounds=2), projection='features',\
 random_state=0) | same owners
scaled | FederatedPCA(3, scale=True) | rows
sum | FederatedPCA(2) | rows
sums | VerticalFederatedPCA(3, method="power", random_state=0) | same owners
""")
}

# Fit, kind of question (* is any) | changes | whom the reason names, and its words
ATTACKS = table(r"""
F * | empty; records(config=ArrayRecord()); sending(nonce=""); sending(nonce="0" * 32);\
 sending(nonce=7); sending(nonce=None) | node 3: no answer to this question
F * | records(arrays=None); records(arrays=MetricRecord({"count": 3.0})) | node 3: no array 'count'
F * | flower_failed | node 3: Flower's error 2: x\\nx
F * | sending(dtype="object"); sending(dtype=None); sending(dtype=["float64"]) | node 3: dtype=
F * | sending(site=None); sending(site=5); sending(site=""); sending(site="w" * 10**6);\
 sending(site=b"west"); sending(site=["west"]) | node 3: sent no name of 1 to 255 characters
F * | sending(site="node 1"); sending(site="node x") | node 3: calls itself 'node .': is node 3
F * | sending(site="we\x07st"); sending(site="west\n"); sending(site="\u202ewest");\
 sending(site="we\u200bst") | node 3: site must
F * | sending(site="east") | node 3: calls itself 'east': node 1 has this name
F * | sending(site="east", error="I give up"); sending(site="silent", error="I give up") |\
 node 3: calls itself '(east|silent)': I give up
F * | sending(error="x" * 10**7); sending(error="\x1b[2Jgone"); sending(error="\u202eabc");\
 sending(error="a\nsite 'east' (b)"); sending(error=7); sending(error=["a", "list"]) |\
 node 3: calls itself 'west'
F * | sending(columns="abc") | node 3: not a list of names
F * | sending(columns=["a"] * 10**6) | node 3: got 1000000 values
F * | sending(columns=["a"] * 8) | node 3: must differ, got 'a' twice
F * | sending(columns=COLUMNS) | west: its columns have names, unlike those of the others
F * | arrays(factor=np.ones(36, np.float32)) | node 3: dtype <f4
F * | arrays(factor=np.full(36, np.nan)); arrays(factor=np.full(36, -np.inf)) |\
 node 3: as 'factor' NaN or infinity
F * | arrays(factor=announcing((2, 1))) | node 3: shape .2, 1., expected .36,.
F * | arrays(factor=HUGE) | node 3: 16 bytes that announces
F * | arrays(factor=announcing((1,), "|O", data=PICKLE)) | node 3: announces dtype .O
F * | arrays(mean=np.ones((2, 4))); arrays(mean_rest=np.ones(7)) | node 3: shape
F * | arrays(count=np.array([-3.0])); arrays(count=np.array([2.5]));\
 arrays(count=np.array([1e300])) | node 3: count=
F * | arrays(count=np.array([3.0])) | node 3: expected .21,.
F * | arrays(factor=np.full(36, 1e154)); arrays(mean=np.full(8, 1e200));\
 arrays(mean_rest=np.full(8, 1e200)) | node 3: values that are too large
F * | arrays(factor=np.ones(6), mean=np.ones(3), mean_rest=np.zeros(3)) |\
 west: its number of features is 3, that of the others 8
F factor_of_batch | arrays(rows=[0.0, 9.0]) | node 3: count=0.0
F32 * | arrays(factor=np.full(36, 1e25)) | node 3: values that are too large
S * | arrays(summary=as_bytes(GOOD[:-1])) | node 3: no valid summary: Corrupt
S * | arrays(summary=as_bytes(GOOD[:60] + b"\x07" + GOOD[61:])) | node 3: checksum
S * | arrays(summary=np.ones(9)) | node 3: expected dtype .u1
S * | summary(scatter=np.nan); summary(n_samples=-1.0) | node 3: no valid summary
S * | summary(n_samples=0.25); summary(n_samples=1.7e308);\
 arrays(summary=as_bytes(Subspace.empty(8).to_bytes())) | node 3: count=
S * | summary(mean=np.full(8, 1e155)); summary(scatter=1e308);\
 summary(components=np.eye(3, 8, dtype=np.float32), singular_values=np.ones(3),\
 mean=np.full(8, 1e38), scatter=1e60) | node 3: values that are too large
S * | summary_of(ROWS[:, :7], 3) | west: its number of features is 7, that of the others 8
S * | summary_of(ROWS, 3, center=False) | west: its centring is False, that of the others True
scaled * | arrays(summary=as_bytes(SUMMARY.truncate(2)._replace(column_scatter=None).to_bytes())) |\
 node 3: its summary was cut and has column_scatter=None
S summary_of_batch | arrays(rows=[9.5, 9.0]) | node 3: rows=
PW moments | arrays(count=[2.0**53]) | node 3: expected a number of rows
P moments | arrays(sum=np.ones((8, 1))) | node 3: shape .8, 1., expected .None,.
P moments | arrays(count=[0.0]) | node 3: count=
P moments | arrays(sum=np.full(8, 1e200)) | node 3: values that are too large
P moments | arrays(sum=np.ones(7)) | west: number of features is 7
P times_scatter | arrays(products=np.full((3, 8), np.nan)) | west: NaN or infinity
P times_scatter | arrays(products=np.full((3, 8), 1e308)) | west: their sum would over
P times_scatter | replay() | west: no answer to this question
P variances | sending(site=""); sending(site=None) | west: sent no name
P variances | sending(site="north"); sending(dtype="float32"); sending(columns=["a"] * 8) |\
 west: another name, dtype or columns than before
P variances | arrays(scatter=np.r_[np.ones(9), -1.0]) | west: scatter=-1.0
P variances | arrays(scatter=np.r_[np.ones(9), 1e290]);\
 arrays(scatter=np.r_[np.full(9, -1e290), 1.0]); arrays(scatter=np.full(10, 1e308)) |\
 west: too large
P variances | arrays(count=[0.0]) | west: count=0.0
TD * | summary_of(ROWS, 3, center=False); summary_of(ROWS, 6) |\
 node 3: another summary than of leading components
OD space | summary_of(ROWS, 8) | node 3: 8 directions
OD moments | arrays(factor=np.ones((9, 8))) | west: a factor of 9 rows
OD moments | arrays(factor=np.full((4, 8), 1e200)) | west: too large
scaler * | arrays(moments=put((0, 0), -1.0)); arrays(moments=put((0, 0), 2.0**53));\
 arrays(moments=put((3, 0), -1.0)) | node 3: counts or sums of squares
scaler * | arrays(moments=put((2, 0), 1e9)) | node 3: rests are larger
scaler * | arrays(moments=put((0, 0), 0.0)) | node 3: columns without entries
scaler * | arrays(moments=put((1, 0), 1e300)) | node 3: values that are too large
refined products | moved("products", slice(0, 8)); moved("rest", -3); moved("scatter", 0);\
 moved("count", 0); moved("products", 0, 1e20); moved("rest", -3, 1e150);\
 moved("scatter", 0, 1e150); moved("count", 0, 1e290); moved("products", 0, 1e290);\
 moved("products", slice(None), lambda x: 1.3 * x) |\
 west: of other rows
refined products | sending(site="north"); sending(site="x") | west: another name, dtype
refined products | moved("count", 0, 1.7e308); moved("products", 0, 1.7e308) | west: too large
hetero scores | arrays(message=np.full(21, 1e300)) | west: too large: their sum would overflow
hetero scores | arrays(message=np.full(21, 1e140)); arrays(message=put(0, 2.0**52));\
 arrays(message=put(16, -1.0)); arrays(message=lambda a: -a); arrays(message=lambda a: 0 * a) |\
 west: scores of other rows
hetero weighted_moments | arrays(sum=np.full(8, 1e100)); arrays(sum=lambda a: 1e20 * a) |\
 west: another mean than its rows have
hetero weighted_moments | arrays(count=[0.0]); arrays(count=[-1.0]); arrays(count=[1e50]) |\
 west: a weight of rows
hetero weighted_variances | arrays(scatter=put(-1, -1.0)) | west: a sum of squares
hetero variances | arrays(scatter=[np.inf]) | west: as 'scatter'
pairs * | arrays(pairs=np.zeros(99, np.uint8)) | node 3: no valid moments
pairs * | pairs(ROWS, products=np.full((8, 8), 1e6) - 1e5 * np.eye(8)) | node 3: must not exceed
pairs * | pairs(ROWS, origin=np.full(8, 1e300)) | node 3: too large
fill entries | arrays(counts=np.full(8, -1.0)); arrays(counts=np.full(8, 61.0));\
 arrays(counts=np.full(7, 9.0)) | node 3: counts
fill entries | arrays(counts=put(0, 0.0)) | node 3: sums of columns without entries
fill entries | arrays(sum=np.full(8, 1e300)); arrays(counts=put(0, 1e-300)) |\
 node 3: values that are too large
fill filled | summary_of(ROWS[:50]) | west: other rows than
fill filled | summary_of(ROWS[:60, :2]) | west: its number of features is 2
tracker batch | arrays(bounds=put(1, 2.5)); arrays(bounds=np.zeros(3)) | node 3: whole numbers
tracker batch | arrays(bounds=put(1, 11.0)) | west: its number of features is 11
tracker observed | arrays(total=np.full(12, 1e200)) | west: values that are too large
tracker filled | arrays(count=[1e9]) | west: expected at most 20 rows
tracker misfits | arrays(rows=np.full(12, 1e155)); arrays(rows=put(0, -1.0));\
 arrays(rows=put(5, 1.0)); arrays(square=[-1.0]) | west: misfits that no entries have
tracker misfits | arrays(square=[1e290]) | west: too large
tracker times_scatter | arrays(products=np.full((2, 12), 1e300)) | west: too large
power keys | arrays(keys=np.zeros((60, 32), np.uint8)) | node 3: one key twice
power keys | arrays(salt=np.zeros(8, np.uint8)) | shop: its salt is 0000
power keys | arrays(columns=[1e15]) | node 3: columns=1e.15
power times_columns | arrays(products=np.full((3, 60), 1e300)) | shop: large
merge left_vectors | summary_of(np.random.default_rng(0).standard_normal((70, 59)), 5,\
 center=False) | shop: another s
merge scores | arrays(products=np.full((3, 60), 1e200)) | shop: too large
merge scores | arrays(scatter=[-1.0]) | shop: expected a sum of squares
agreed period | arrays(vector=np.full(60, 1e200)) | shop: a vector of length
agreed period | arrays(value=[1e300]) | shop: values that are too large
kernel kernel_part | arrays(part=np.ones((60, 60))) | shop: shape
kernels energies | arrays(energies=np.ones(3)) | shop: shape
sum secure_keys | sending(mask_key=None); sending(box_key=b"key"); one_key_for_both | west: .
sum secure_shares | sending(boxes=lambda boxes: boxes[1:]); sending(boxes=["x"] * 3);\
 sending(boxes=[bytes(6000)] * 3); sending(boxes=garbled) | west: .
sum secure_shares | sending(signature="x"); sending(signature=bytes(6000)) | west: as 'signature'
sum moments | arrays(masked=np.zeros(4)); arrays(masked=np.zeros((2, 5), np.uint64)) | west: .
sum second_moments | arrays(masked=np.zeros(4, np.uint64)); arrays(masked=np.array(["text"])) |\
 west: .
sums columns_bound | arrays(bounds=np.zeros(3)); arrays(bounds=None) | shop: bounds
""")


def one_key_for_both(message, reply):
    key = reply.content.config_records["config"]["mask_key"]
    return changed(reply, message, config_with={"box_key": key})


@pytest.mark.parametrize(("which", "changes", "reason"), ATTACKS)
def test_what_a_site_sends_leaves_it_out(which, changes, reason):
    """The others are fitted as if the site were not there."""
    for change in changes.split("; "):
        assert_left_out(which, change, reason)


def assert_left_out(which, change, reason):
    (name, question), (who, words) = which.split(), reason.partition(":")[::2]
    code, kind = FITS[name]
    parts = sites_of(kind)
    spoil = spoiling(eval(change), list(parts)[-1], None if question == "*" else question)
    secure = SECURE if name.startswith("sum") else None
    grid = grid_of(made(code), parts, spoil, secure=secure, min_rows=1)
    if question in ("scores", "parts") and name == "merge":  # the others do not begin again
        why = f"(?s)Left out: site {who!r} .*{words.strip()}.*does not begin again after '"
        with pytest.raises(RuntimeError, match=why):
            fit_sites(grid, made(code), wait=0)
        return
    goes_on, more = fit_sites, {"secure": secure}
    if question.endswith("_of_batch"):
        goes_on, more = partial_fit_sites, {}
    with pytest.warns(UserWarning, match=f"Fitted without site {who!r}") as caught:
        found = goes_on(grid, made(code), wait=0, **more)
    others = list(parts)[:-1]
    assert found.clients_ == others
    ((left, told),) = found.missing_sites_.items()
    assert (left, bool(re.search(words.strip(), told))) == (who, True), told
    assert told.isprintable()
    assert str(caught[0].message).isprintable()
    assert len(told) < 1000
    expected = in_one_process(code, kind, *others)
    if name == "tracker" or question == "filled":  # some steps with the site are not taken back
        assert found.n_samples_ == expected.n_samples_
        assert subspace_distance(found.components_, expected.components_) < 0.1
    else:
        assert_same(found, expected, 1e-6)


FACTOR, POWER_4 = made(FITS["F"][0]), "FederatedPowerPCA(3, n_rounds=4, random_state=0)"


@pytest.mark.parametrize("name", "SFP")
def test_what_nobody_asked_for_changes_nothing(name):
    more = Array(np.ones(3))
    extra = records(more=ArrayRecord({"more": more}), numbers=MetricRecord({"more": 3.0}))
    for change in (arrays(more=more), sending(more="text"), extra):
        found = fit(made(FITS[name][0]), spoil=spoiling(change))
        assert found.missing_sites_ == {}
        assert_same(found, in_one_process(*FITS[name]))


def test_the_first_reply_of_a_node_counts():
    grid = grid_of(FACTOR)
    receive, wrong = grid.send_and_receive, sending(error="again")

    def twice(messages, **how):
        replies = receive(messages, **how)
        return replies + [wrong(m, r) for m, r in zip(messages, replies, strict=True)]

    grid.send_and_receive = twice
    assert fit_sites(grid, FACTOR, wait=0).missing_sites_ == {}


def test_too_few_sites_end_the_fit_and_the_others_are_named():
    with pytest.raises(RuntimeError, match=r"Too few sites: 3, but min_sites=4\."):
        fit(FACTOR, options={"min_sites": 4})
    with pytest.raises(RuntimeError, match="Too few sites: 0"):
        fit(FACTOR, {})


def test_what_is_announced_takes_no_memory():
    for name, change in {
        "S": arrays(summary=announcing((2**45,), "|u1")),
        "F": arrays(factor=HUGE),
        "P": arrays(sum=HUGE),
        "OD": sending(columns=["x" * 50] * 10),
    }.items():
        estimator = made(FITS[name][0])
        fit(estimator)
        tracemalloc.start()
        fit(estimator)
        honest = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        with pytest.warns(UserWarning, match="Fitted without"):
            fit(estimator, spoil=spoiling(change))
        assert tracemalloc.get_traced_memory()[1] < honest + 2**20
        tracemalloc.stop()


def test_an_array_of_another_shape_is_not_copied():
    answer = Answer("west", {}, {"factor": Array(np.zeros(2**21))})
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"shape .2097152,., expected .36,."):
        answer.array("factor", (36,))
    assert tracemalloc.get_traced_memory()[1] < 2**18
    tracemalloc.stop()


# -------------------------------------------------------------------- who it is


@pytest.mark.parametrize(
    "estimator", [FACTOR, *map(made, (POWER_4, "FederatedPCA(3, missing=ConditionalFill())"))]
)
@pytest.mark.parametrize(
    "sites", [["east", "north", "east"], ["Z\u00fcrich", "north", "Zu\u0308rich"]]
)
def test_of_two_nodes_of_one_name_the_first_takes_part(sites, estimator):
    """A name in two spellings of its letters is one name."""
    with pytest.warns(UserWarning, match="site 'node 3' .calls itself .*: node 1 has this name"):
        found = fit(estimator, sites=sites)
    assert sorted(found.clients_) == sorted(sites[:2])
    assert found.n_samples_ == 140


def test_an_error_in_the_name_of_a_site_that_is_silent_is_not_that_sites():
    spoil = spoiling(sending(site="north", error="I give up"))

    def silent(site, message, reply):
        return None if site == "north" else spoil(site, message, reply)

    with pytest.warns(UserWarning, match="Fitted without"):
        found = fit(FACTOR, spoil=silent, options={"min_sites": 1})
    assert found.missing_sites_["node 2"].startswith("no answer within")
    assert found.missing_sites_["node 3"] == "calls itself 'north': I give up"


def test_the_answer_of_another_site_is_none():
    """West sends what east sent, east's nonce and name with it."""
    sent = {}

    def spoil(site, message, reply):
        sent[site] = reply.content
        return Message(sent["east"], reply_to=message) if site == "west" else reply

    with pytest.warns(UserWarning, match="'node 3' .*no answer to this question"):
        assert fit(FACTOR, spoil=spoil).clients_ == ["east", "north"]


# -------------------------------------------------------------------- a transport that is hostile


def stamped(reply, **metadata):
    """A reply with other metadata."""
    for name, value in metadata.items():
        reply.metadata.__dict__[f"_{name}"] = value
    return reply


def damaged(reply, message, draw):
    """The reply with a bit of its arrays changed, or cut off; a number that is one stays."""
    (name, array), *_ = reply.content.array_records["arrays"].items()
    at = draw(st.integers(0, len(array.data) - 1))
    data = bytearray(array.data)
    data[at] ^= 1 << draw(st.integers(0, 7))
    data = bytes(data) if name == "summary" else array.data[:at]  # a summary has a checksum
    new = {name: Array(array.dtype, array.shape, array.stype, data)}
    return changed(reply, message, arrays_with=new)


class HostileTransport:
    """What comes of the replies to messages; those that are late come later, again and again."""

    def __init__(self, receive, draw):
        self.receive, self.draw, self.late = receive, draw, []

    def __call__(self, messages, *, timeout=None):
        asked, found = {m.metadata.dst_node_id: m for m in messages}, [*self.late]
        for reply in self.receive(messages, timeout=timeout):
            node = reply.metadata.src_node_id
            message, other = asked[node], asked[min(asked)]
            fates = {
                "come": [reply],
                "dropped": [],
                "late": [],
                "twice": [reply] * 2,
                "damaged": [],
                "unasked": [Message(reply.content, reply_to=message), reply],
                "of another": [Message(reply.content, reply_to=other), reply],
            }
            fate = self.draw(st.sampled_from(["come"] * 8 + list(fates)))
            stamped(fates["unasked"][0], reply_to_message_id="no")
            stamped(fates["of another"][0], src_node_id=node)
            found += [damaged(reply, message, self.draw)] if fate == "damaged" else fates[fate]
            self.late += [reply] * (fate == "late")
        return self.draw(st.permutations(found))


@settings(max_examples=40, phases=[Phase.generate])
@given(data=st.data(), code=st.sampled_from(["FederatedPCA(3)", POWER_4]))
def test_replies_that_are_lost_repeated_late_reordered_or_damaged(data, code):
    """The fit of the sites that are left, or an error that names those that are not."""
    grid = grid_of(made(code))
    grid.send_and_receive = HostileTransport(grid.send_and_receive, data.draw)
    found, told = None, ""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Fitted without site")
        try:
            found = fit_sites(grid, made(code), wait=0)
        except RuntimeError as error:
            told = str(error)
    if found is None:
        assert re.match(r"Too few sites: [01], but min_sites=2\. Left out: site", told)
        return
    assert {*found.clients_} <= {*PARTS}
    assert len(found.missing_sites_) == 3 - len(found.clients_)
    assert_same(found, in_one_process(code, "rows", *found.clients_))


# -------------------------------------------------------------------- who is like the others


def test_the_larger_group_stays_and_of_equal_ones_that_of_the_first_name():
    parts = dict(zip("abcd", np.split(ROWS, 4), strict=True))
    with pytest.warns(UserWarning, match="site 'a' .its number of features is 7"):
        assert fit(FACTOR, {**parts, "a": parts["a"][:, :7]}).clients_ == ["b", "c", "d"]
    for first, other in ("ab", "cb"):
        two = {first: ROWS[:90, :7], other: ROWS[90:]}
        gone = max(two)
        with pytest.warns(UserWarning, match=f"site {gone!r} .its number of features"):
            assert fit(FACTOR, two, options={"min_sites": 1}).clients_ == [min(two)]
        with pytest.raises(RuntimeError, match=f"1, but min_sites=2. Left out: site {gone!r}"):
            fit(FACTOR, two)


@pytest.mark.parametrize("name", "SP")
def test_the_names_of_columns_that_most_have_stay(name):
    frames = {site: pd.DataFrame(rows, columns=COLUMNS) for site, rows in PARTS.items()}
    for west, reason in (
        (frames["west"].to_numpy(), "its columns have no names, unlike those of the others"),
        (frames["west"].rename(columns={"c3": "x"}), "it lacks 'c3' and has 'x'"),
        (frames["west"][COLUMNS[::-1]], "in another order: 'c7' at position 0"),
    ):
        with pytest.warns(UserWarning, match=f"site 'west' .*{reason}"):
            found = fit(made(FITS[name][0]), {**frames, "west": west})
        assert found.feature_names_in_.tolist() == COLUMNS
        assert_same(found, in_one_process(*FITS[name], "east", "north"))


def test_sites_whose_batches_have_ended_say_nothing_of_the_others():
    """They are more than those that go on, and know no number of features of the batch."""
    parts = {site: [rows[:30]] for site, rows in PARTS.items()}
    parts["east"].append(ROWS[30:60])
    grid = grid_of(made("FederatedScaler()"), parts)
    found = partial_fit_sites(grid, made("FederatedScaler()"), batch=1, wait=0)
    assert found.clients_ == ["east"]
    np.testing.assert_allclose(found.mean_, ROWS[30:60].mean(axis=0), rtol=1e-12)


def test_a_batch_is_of_sites_like_those_of_the_batches_before():
    """All send summaries of another kind: they are named, and the estimator stays as it is."""
    parts = {site: [rows[:30], rows[30:60]] for site, rows in PARTS.items()}
    grid = grid_of(made("FederatedPCA(3)"), parts)
    pca = partial_fit_sites(grid, made("FederatedPCA(3)"), wait=0)
    before = pca.components_
    other = summary_of(ROWS[:30], 3, center=False)
    grid.spoil = lambda site, message, reply: other(message, reply)
    with pytest.raises(RuntimeError, match=r"west.* .its centring is False, that of the others Tr"):
        partial_fit_sites(grid, pca, wait=0)
    np.testing.assert_array_equal(pca.components_, before)


def test_names_and_privacy_within_a_summary_do_not_count():
    spoil = spoiling(summary(feature_names=tuple(COLUMNS), site="east"))
    found = fit(made("FederatedPCA(3)"), spoil=spoil)
    assert found.clients_ == list(PARTS)
    assert not hasattr(found, "feature_names_in_")
    spoil = spoiling(summary(privacy=(1.0, 1e-5, 1.0, "AnalyzeGauss", "client")))
    found = fit(made("FederatedPCA(3)"), {"west": ROWS}, spoil, options={"min_sites": 1})
    assert found.subspace_.privacy is None


# -------------------------------------------------------------------- several at once


def test_sites_that_fail_one_after_another_in_rounds():
    """A run begins again twice; a site refuses the fourth beginning, and the error says why."""
    parts = {f"site {i}": ROWS[i::6] for i in range(6)}
    estimator = made("FederatedPowerPCA(3, n_rounds=30, acceleration='krylov', random_state=0)")
    bad = sending(error="I give up")

    def failing(*sites):
        spoils = [spoiling(bad, s, "times_scatter", 1 + i) for i, s in enumerate(sites)]

        def spoil(site, message, reply):
            for change in spoils:
                reply = change(site, message, reply)
            return reply

        return spoil

    with pytest.warns(UserWarning, match="site 'site 1' .I give up.; site 'site 4' .I give up"):
        found = fit(estimator, parts, failing("site 1", "site 4"))
    assert found.clients_ == ["site 0", "site 2", "site 3", "site 5"]
    assert_same(found, here(estimator, {site: parts[site] for site in found.clients_}))
    why = r"Too few sites: 0.*refused: a run begins again at most 2 times"
    with pytest.raises(RuntimeError, match=why):
        fit(estimator, parts, failing("site 1", "site 4", "site 5"))


# -------------------------------------------------------------------- values that are too large


@pytest.mark.parametrize(
    "code", [*(FITS[name][0] for name in "SFP"), "FederatedPCA(3, merge=ProjectionAverage())"]
)
def test_large_values_that_fit_are_taken_and_a_site_with_larger_ones_is_left_out(code):
    parts = {site: rows * 1e100 for site, rows in PARTS.items()}
    values = fit(made(code), parts).singular_values_
    np.testing.assert_allclose(values, here(made(code), parts).singular_values_, rtol=1e-9)
    for scale in (1e140, 1e150, 1e154, 1e300):
        with pytest.warns(UserWarning, match="Fitted without site '(west|node 3)'"):
            found = fit(made(code), {**PARTS, "west": PARTS["west"] * scale})
        assert_same(found, in_one_process(code, "rows", "east", "north"))


def test_a_fit_without_any_batch_is_an_error():
    over = arrays(bounds=None, over=np.ones(1))
    with pytest.raises(NoBatchError, match="No site has any batch"):
        fit(made(TRACKER), sites_of("stream"), lambda site, message, reply: over(message, reply))


# -------------------------------------------------------------------- in secure sums


@pytest.mark.parametrize(
    ("kind", "change", "first"),
    [
        ("secure_unmask", sending(shares=garbled), 1),
        ("secure_unmask", sending(shares=garbled), 2),
        ("moments", arrays(masked=lambda numbers: numbers + np.uint64(1)), 1),
    ],
)
def test_masks_that_do_not_cancel_are_seen(kind, change, first):
    """Wrong shares, or numbers without the masks: nobody knows of which site."""
    with pytest.raises(RuntimeError, match="masks of a secure sum do not cancel: a site, nobody"):
        fit(made("FederatedPCA(2)"), spoil=spoiling(change, "east", kind, first), secure=SECURE)


def test_shares_of_the_key_of_a_lost_site_that_are_garbled_are_seen():
    parts = {f"site {i}": ROWS[i::4] for i in range(4)}
    garble = spoiling(sending(shares=garbled), "site 0", "secure_unmask")

    def spoil(site, message, reply):
        gone = (site, kind_of(message)) == ("site 3", "moments")
        return None if gone else garble(site, message, reply)

    with pytest.raises(RuntimeError, match="masks of a secure sum do not cancel"):
        fit(made("FederatedPCA(2)"), parts, spoil, SECURE)


@pytest.mark.parametrize(
    "change", [lambda s: [b""] * 3, lambda s: [*"xyz"], lambda s: [b"\t\0\0\0" + t[4:] for t in s]]
)
def test_a_site_that_withholds_or_miscounts_shares_changes_nothing(change):
    spoil = spoiling(sending(shares=change), "east", "secure_unmask")
    found = fit(made("FederatedPCA(2)"), spoil=spoil, secure=SECURE)
    assert_same(found, in_one_process("FederatedPCA(2)", "rows"), 1e-6)


def test_a_key_that_another_site_has_sent_ends_the_fit():
    keys = []

    def spoil(site, message, reply):
        if site == "north" or kind_of(message) != "secure_keys":
            return reply
        keys.append(reply.content.config_records["config"]["mask_key"])
        return changed(reply, message, config_with={"mask_key": keys[0]})

    why = "refused: the lists of keys must hold two different public keys of each site"
    with pytest.raises(RuntimeError, match=why):
        fit(made("FederatedPCA(2)"), spoil=spoil, secure=SECURE)


def test_a_site_does_not_say_how_many_rows_a_batch_has():
    """The server would make an array of as many."""
    change = arrays(masked=put(slice(1), lambda n: n + np.uint64(2**62)))
    parts = {site: rows[:20] for site, rows in sites_of("stream").items()}
    short = made(TRACKER.replace("n_rounds=2,", "n_rounds=1,"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Fitted without site 'east'")  # at the end
        found = fit(short, parts, spoiling(change, "east", "filled"), SECURE)
    assert_same(found, fit(short, parts, secure=SECURE), 1e-6, without=["clients_"])
