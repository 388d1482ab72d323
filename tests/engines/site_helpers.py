"""Sites over Flower in one process, a server that asks what it likes, and sites that lie."""

import hmac
import os
from functools import cache
from itertools import count
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from golden_cases import NAMES
from sklearn.base import clone

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedpca_sklearn import FirstSubspace, make_power_law, make_subspace_stream
from fedpca_sklearn._kernels.row_moments import SiteMoments
from fedpca_sklearn.engines import files
from fedpca_sklearn.engines._parameters import construction_of, stated
from fedpca_sklearn.engines.flower import (
    SecureAggregation,
    SitePolicy,
    SiteRows,
    client_app,
    fit_sites,
)
from fedpca_sklearn.engines.testing import InProcessGrid
from fedpca_sklearn.privacy import DiscreteGaussian

pd = pytest.importorskip("pandas")
NAMES = {**NAMES, "DiscreteGaussian": DiscreteGaussian}
ROWS = np.random.default_rng(7).standard_normal((200, 8)) * np.arange(1, 9) + 3
MEAN = ROWS.mean(axis=0)
PARTS = {"east": ROWS[:80], "north": ROWS[80:140], "west": ROWS[140:]}
LABELS = np.repeat(list(PARTS), [80, 60, 60])
V = np.linalg.qr(np.random.default_rng(1).standard_normal((8, 3)))[0].T.copy()
SALT = b"agreed by telephone, 32 bytes long"
SECURE = SecureAggregation(threshold=2)


@cache
def made(code):
    """The estimator that a line of code makes; a fit over sites leaves it as it is."""
    return eval(code, dict(NAMES))


def table(text):
    """Cells of the lines of a text table."""
    lines = text.strip().replace("\\\n", "").splitlines()
    return [[cell.strip() for cell in line.split(" | ")] for line in lines]


# -------------------------------------------------------------------- a network


def grid_of(estimator, parts=PARTS, spoil=None, sites=None, policies=None, run=1, **of_site):
    """A grid of sites with these rows, estimators (of all, or by site) and rules."""

    def app(site, rows):
        own = estimator[site] if isinstance(estimator, dict) else estimator
        more = {} if policies is None else {"policy": policies.get(site)}
        return client_app(lambda context: rows, own, **more, **of_site)

    apps = [app(site, rows) for site, rows in parts.items()]
    grid = InProcessGrid(list(zip(sites or parts, apps, strict=True)), spoil)
    for context in grid.contexts.values():
        context.run_id = run
    return grid


def fit(estimator, parts=PARTS, spoil=None, secure=None, server=None, options=None, **of_grid):
    """Fit over such a grid; ``options`` are those of `fit_sites`."""
    grid = grid_of(estimator, parts, spoil, secure=secure, **of_grid)
    server = estimator if server is None else server
    return fit_sites(grid, server, secure=secure, **{"wait": 0, **(options or {})})


class Array(FlowerArray):
    """Numbers as sites and servers send them, or what they announce of some bytes."""

    def __init__(self, *given):
        if len(given) == 1:
            values = np.asarray(*given)
            given = values.dtype.str, values.shape, "row by row", values.tobytes()
        super().__init__(*given)


def numpy_of(array):
    return np.frombuffer(array.data, array.dtype).reshape(array.shape)


def kind_of(message):
    return message.content.config_records["config"]["kind"]


def arrays_of(message, name="arrays"):
    """Arrays of a question ("arguments") or of a reply."""
    return {key: numpy_of(a) for key, a in message.content.array_records[name].items()}


def whole(found):
    """All parts of an answer, one after the other."""
    return np.concatenate([*found.values()])


# -------------------------------------------------------------------- replies that are spoilt


def spoiling(change, site="west", kind=None, first=1):
    """Spoil the replies of a site, of one kind or of all, from a number on."""
    seen = []

    def spoil(sender, message, reply):
        if sender == site and kind in (None, kind_of(message)):
            seen.append(message)
            if len(seen) >= first:
                return change(message, reply)
        return reply

    return spoil


def lost(site="west", kind=None, first=1, how=None):
    """From the n-th question of a kind on the site answers nothing, or Flower an error."""
    asked = []

    def spoil(sender, message, reply):
        if sender == site:
            asked.extend([True] * (kind in (None, kind_of(message))))
        if sender != site or len(asked) < first:
            return reply
        return None if how is None else Message(how, reply_to=message)

    return spoil


def changed(reply, message, config_with=(), arrays_with=(), **records):
    """A reply with other entries, None for those that are taken out."""
    config = dict(reply.content.config_records["config"]) | dict(config_with)
    arrays = dict(reply.content.array_records["arrays"]) | dict(arrays_with)
    config, arrays = ({k: v for k, v in d.items() if v is not None} for d in (config, arrays))
    found = {"config": ConfigRecord(config), "arrays": ArrayRecord(arrays)} | records
    found = {name: record for name, record in found.items() if record is not None}
    return Message(RecordDict(found), reply_to=message)


def sending(**entries):
    """A change of the configuration; a function is given what was sent."""

    def change(message, reply):
        sent = reply.content.config_records["config"]
        new = {
            name: value(sent[name]) if callable(value) else value for name, value in entries.items()
        }
        return changed(reply, message, config_with=new)

    return change


def arrays(**entries):
    """A change of the arrays; a function is given a copy of what was sent."""

    def new(name, value, reply):
        if callable(value):
            value = value(numpy_of(reply.content.array_records["arrays"][name]).copy())
        return (
            value if value is None or isinstance(value, FlowerArray) else Array(np.asarray(value))
        )

    def change(message, reply):
        found = {name: new(name, value, reply) for name, value in entries.items()}
        return changed(reply, message, arrays_with=found)

    return change


def records(**entries):
    """A change of the records."""
    return lambda message, reply: changed(reply, message, **entries)


def put(at, value):
    """A function that changes a place of an array."""

    def change(array):
        array[at] = value(array[at]) if callable(value) else value
        return array

    return change


def announcing(shape, dtype="<f8", data=bytes(16)):
    """An array of a few bytes that announces something else."""
    return Array(dtype, shape, "row by row", data)


def as_bytes(data):
    return np.frombuffer(data, np.uint8)


# -------------------------------------------------------------------- the same in one process


def rows_and_weight(part):
    """Rows of a site as one array, and their weights."""
    if isinstance(part, list):
        rows, weights = zip(*map(rows_and_weight, part), strict=True)
        return np.concatenate(rows), np.concatenate(weights)
    X, weight = (part.X, part.sample_weight) if isinstance(part, SiteRows) else (part, None)
    X = X.toarray() if sp.issparse(X) else np.asarray(X)
    return X, np.ones(len(X)) if weight is None else np.asarray(weight, float)


def joined(parts):
    """Rows that all owners of columns have, in the order in which they are used."""
    common = set.intersection(*(set(part.keys) for part in parts.values()))
    common = sorted(common, key=lambda key: hmac.digest(SALT, f"key {key}".encode(), "sha256"))
    at = {site: [list(part.keys).index(key) for key in common] for site, part in parts.items()}
    return np.hstack([np.asarray(part.X)[at[site]] for site, part in parts.items()])


def here(estimator, parts, **changes):
    """The estimator fitted in one process to the rows of sites."""
    pca = clone(estimator).set_params(**changes)
    if hasattr(pca, "feature_groups"):
        ends = np.cumsum([0, *(part.X.shape[1] for part in parts.values())])
        groups = [list(range(*ends[i : i + 2])) for i in range(len(parts))]
        return pca.set_params(feature_groups=groups).fit(joined(parts))
    rows, weights = zip(*map(rows_and_weight, parts.values()), strict=True)
    labels = [np.full(len(X), site, dtype=object) for site, X in zip(parts, rows, strict=True)]
    if hasattr(pca, "detect_changes"):  # batches of all sites follow each other
        size, n = pca.batch_size, len(rows)
        start = clone(FirstSubspace._of(pca.init)).set_params(n_rows=n * size)
        pca.set_params(batch_size=n * size, init=start)
        cut = [[np.split(x, range(size, len(x), size)) for x in z] for z in (rows, labels)]
        X, labels = (np.concatenate([b for bs in zip(*z, strict=True) for b in bs]) for z in cut)
        return pca.fit(X, clients=labels)
    weight = np.concatenate(weights)
    weighted = {} if (weight == 1).all() else {"sample_weight": weight}
    frames = [part for part in parts.values() if isinstance(part, pd.DataFrame)]
    X = pd.concat(frames) if frames else np.concatenate(rows)
    return pca.fit(X, clients=np.concatenate(labels), **weighted)


COMPARED = """
components_ singular_values_ eigenvalues_ eigenvectors_ explained_variance_ mean_ var_ scale_
noise_variance_ explained_variance_ratio_ projection_values_ support_threshold_ factors_
factor_mean_ log_likelihoods_ changes_ n_samples_seen_ gamma_
"""
EQUAL = (
    "clients_ n_samples_ n_iter_ stop_reason_ n_steps_ n_components_ change_points_ n_features_in_"
)


def assert_same(found, expected, tol=1e-10, without=()):
    """All that a fit has found, to a share of the largest number of each."""
    for name in {*COMPARED.split(), *EQUAL.split()} - {*without}:
        if not hasattr(expected, name):
            continue
        a, b = getattr(found, name), getattr(expected, name)
        if name in EQUAL.split() or b is None:
            np.testing.assert_array_equal(a, b, err_msg=name)
            continue
        b = np.asarray(b, float)
        size = max(np.abs(b[np.isfinite(b)]).max(initial=0), 1e-300)
        if name in ("scale_", "var_"):  # columns of any size
            size = np.abs(b) + 1e-300
        elif name == "noise_variance_":  # what is left of the sum of squares
            size = max(size, expected.explained_variance_.max(initial=0))
        off = np.abs(np.nan_to_num(a - b))
        assert (off <= tol * size).all(), (name, off.max())


# -------------------------------------------------------------------- rows


@cache
def sites_of(kind):
    """Rows of three sites."""
    rng = np.random.default_rng(3)
    weight = rng.integers(0, 3, 200).astype(float)
    X = ROWS + (1e5 if "far" in kind else 0)
    X = X * 10.0 ** np.linspace(-4, 4, 8) if "units" in kind else X
    X = X * 10.0 ** np.linspace(-6, 4, 8) if kind == "frames" else X
    X = np.where(rng.random(X.shape) < 0.15, np.nan, X) if "holes" in kind else X
    if "holes" in kind:
        X[LABELS == "north", 2] = np.nan  # nobody measures it there
    if "wide" in kind:
        X = make_power_law(200, 300, alpha=1.5, random_state=0) + 3.0
        X = X * 1e100 if "large" in kind else X
    if kind == "strong":  # few rounds are enough
        X = 3 + (X - 3) / np.arange(1, 9) * np.r_[8, 4, np.full(6, 0.3)]
    if "sparse" in kind:
        X = np.where(rng.random(X.shape) < 0.6, 0.0, X)
    if "constant" in kind:
        X = 3 + 0 * X if "all" in kind else np.c_[X, 0 * X[:, :3] + [7.0, 0.0, 1e8]]
    parts = {site: X[site == LABELS] for site in PARTS}
    if "weights" in kind:
        weight = np.full(200, 0.06) if "part" in kind else weight
        return {s: SiteRows(part, weight[s == LABELS]) for s, part in parts.items()}
    if "sparse" in kind:
        return {site: sp.csr_array(part) for site, part in parts.items()}
    if kind == "frames":
        return {s: pd.DataFrame(part, columns=["age", *"abcdefg"]) for s, part in parts.items()}
    if kind == "mixed":
        e, n, w = (part.astype(np.float32) for part in parts.values())
        return {"east": e[:3], "north": sp.csr_array(n), "west": w}
    if kind == "batches":
        halves = {s: [part[:35], part[35:]] for s, part in parts.items()}
        halves["east"] = [
            sp.csr_array(parts["east"][:35]),
            SiteRows(parts["east"][35:], weight[35:80]),
        ]
        return halves
    if "stream" in kind:
        stream = make_subspace_stream(
            120 if "short" in kind else 240,
            12,
            2,
            delta=0,
            missing=0.1,
            noise_std=0.05,
            outliers=0.02,
            random_state=1,
        )
        return dict(zip(PARTS, np.split(stream.X, 3), strict=True))
    if kind == "single":
        return {site: part.astype(np.float32) for site, part in parts.items()}
    if "owners" in kind or kind == "constant columns":
        return owners_of(X[:, :8], kind)
    return parts


def owners_of(X, kind):
    """Each owner has other columns and rows, in an order of its own, and some that nobody has."""
    rng, found = np.random.default_rng(5), {}
    X = (
        0 * X + 7.0
        if kind == "constant columns"
        else X.astype(np.float32 if "single" in kind else float)
    )
    columns = {"bank": slice(0, 4), "clinic": slice(4, 5), "shop": slice(5, 8)}
    names = np.array(list("abcdefgh"))
    starts = (0, 0, 0) if "same" in kind else (0, 10, 5)
    for start, (site, at) in zip(starts, columns.items(), strict=True):
        rows = rng.permutation(np.arange(start, start + 60))
        frame = pd.DataFrame(X[rows][:, at], columns=names[at])
        found[site] = SiteRows(frame, keys=[f"person {i}" for i in rows], salt=SALT)
    return found


@cache
def in_one_process(code, kind, *sites):
    parts = sites_of(kind)
    return here(made(code), {site: parts[site] for site in sites or parts})


# -------------------------------------------------------------------- a server of one's own


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
        sent = [a if isinstance(a, FlowerArray) else Array(np.asarray(a, float)) for a in arguments]
        content = {
            "arguments": ArrayRecord({str(i): a for i, a in enumerate(sent)}),
            "config": self.stated | ({} if nonce is None else {"nonce": nonce}),
            **records,
        }
        content = {name: record for name, record in content.items() if record is not None}
        if isinstance(content.get("config"), dict):
            content["config"] = ConfigRecord({"kind": kind, **content["config"]})
        message = Message(RecordDict(content), 5, "query")
        message.metadata.__dict__["_message_id"] = str(next(self.ids))
        reply = self.app(message, self.context)
        return dict(reply.content.config_records["config"]), arrays_of(reply)

    def answers(self, kind, *arguments, **options):
        """Whether the site answers a question."""
        config, arrays = self.ask(kind, *arguments, **options)
        assert ("error" in config) == (not arrays)
        return bool(arrays)


class SiteByFiles(Site):
    """The same by letters in a folder, to which the server says what it likes."""

    def __init__(
        self, estimator, rows=ROWS, run=1, min_rows=None, policy=None, *, new_folder, **options
    ):
        rules = {} if min_rows is None else {"min_rows": min_rows}
        self.options = {"policy": policy or SitePolicy(**rules), **options}
        self.rows, self.stated, self.code = rows, stated(estimator), construction_of(estimator)
        self.context, self.after, self.ids = SimpleNamespace(run_id=run), {}, count(1)
        self.folder = new_folder()

    def reply(self, question, said):
        """Answer a letter."""
        files.answer(question, said, self.rows, state=self.folder / "state", **self.options)

    def ask(self, kind, *arguments, nonce="once", config=None):
        """The configuration and the arrays of an answer."""
        run, question, said = self.context.run_id, self.folder / "question", self.folder / "answer"
        sent = [a if isinstance(a, FlowerArray) else Array(np.asarray(a, float)) for a in arguments]
        sent = {str(i): files.Array(a.data, tuple(a.shape), a.dtype) for i, a in enumerate(sent)}
        about = {"run": run, "number": next(self.ids), "site": "north", "node": 5}
        about |= {"estimator": self.code, "after": {"north": self.after.get(run)}}
        about["secure"] = files._terms_of(self.options.get("secure"))
        message = files.Message(kind, {**self.stated, "nonce": nonce, **(config or {})}, sent)
        question.write_bytes(files.Letter(about, message).to_bytes())
        self.reply(question, said)
        letter, self.after[run] = files.read_letter(said)
        return dict(letter.message.config), {
            name: numpy_of(array) for name, array in letter.message.arrays.items()
        }


def assert_refused(site, kind, *arguments, why, **options):
    """Nothing comes back but the reason, and nothing is in the way of an honest server."""
    config, arrays = site.ask(kind, *arguments, **options)
    assert arrays == {}
    assert set(config) <= {"site", "nonce", "error"}
    assert config["error"].startswith("refused: ")
    assert why in config["error"]


def asked_in_turn(site, questions, names):
    """Ask "kind arguments; ..." one after the other: "2x ..." twice, "... ! words" is refused."""
    for question in questions.split("; "):
        asked, _, why = question.partition(" ! ")
        times, _, once = asked.partition("x ") if asked[1:3] == "x " else ("1", "", asked)
        kind, _, arguments = once.partition(" ")
        given = eval(f"[{arguments}]", names)
        if kind == "run":  # in the same series, whose state it shares
            (site.context.run_id,) = given
            continue
        for _ in range(int(times)):
            if why:
                assert_refused(site, kind, *given, why=why)
            else:
                assert site.answers(kind, *given), question


def counted_products(monkeypatch):
    """Names of the products with scatter matrices of rows that sites make from now on."""
    products = []

    def counted(of):
        return lambda *given: (products.append(of.__name__), of(*given))[1]

    for name in ("products", "matrix_about"):
        monkeypatch.setattr(SiteMoments, name, counted(getattr(SiteMoments, name)))
    return products
