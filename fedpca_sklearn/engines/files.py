"""Protocols by files: a coordinator and sites exchange letters, for every estimator over a network.

A fit is plain code that asks its sites. By files the coordinator runs it from its beginning on the
answers that are there; where one is lacking, it writes the question and stops. Taken up again, it
comes to the same place, as all that it asks follows from the answers.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
from sklearn.base import clone

from .._validation.checks import check_integer
from .._validation.containers import check_text, composed
from ..privacy._ledger import locked
from ..summary._codec import check_regular
from ._messages import Array, Carrier, Context, Letter, Message, digest_of, read_letter, write_bytes
from ._parameters import constructed, construction_of
from ._questions import RefusedError, SiteRows
from ._secure import SecureAggregation
from ._site_policy import SitePolicy
from .protocols import SiteApp, Wanted, checked_tasks, fit_over

__all__ = ["RefusedError", "SecureAggregation", "SitePolicy", "SiteRows", "Study", "answer"]

_STUDY = "study.json"
# Bytes of a site's name: those of a file's, 255, without a number and ".question".
_LONGEST = 240
# Where a letter states its signature.
_SIGNATURE = "signature"
# What of secure sums is the same at all sites.
_SECURE = ("threshold", "bits", "scale", "restarts")


def _terms_of(secure: SecureAggregation | None) -> dict[str, Any] | None:
    """What a question says of secure sums."""
    return None if secure is None else {name: getattr(secure, name) for name in _SECURE}


# -------------------------------------------------------------------- signatures


def signed(letter: Letter, identity: tuple[bytes, Any] | None) -> Letter:
    """A letter with the signature of its author, who may have a key."""
    if identity is None:
        return letter
    from ._secure_sum import signature  # which needs an optional dependency

    text = signature(identity[0], _signed_of(letter), 0)
    return letter._replace(about={**letter.about, _SIGNATURE: text})


def unsigned(letter: Letter) -> Letter:
    """A letter without its signature, if it has one."""
    about = {name: value for name, value in letter.about.items() if name != _SIGNATURE}
    return letter._replace(about=about)


def check_signed(path: Any, letter: Letter, public: bytes) -> None:
    """Raise unless a letter has been signed with the key of a public one."""
    from ._secure_sum import signers

    text, of = letter.about.get(_SIGNATURE), _signed_of(unsigned(letter))
    if not isinstance(text, bytes) or signers(of, 1, [text, b""], [public]) is None:
        raise ValueError(f"{os.fspath(path)}: it is not signed with the key of its author.")


def check_own(path: Any, letter: Letter, signature: Any, identity: tuple[bytes, Any]) -> None:
    """Raise unless a letter has been signed with one's own key."""
    from ._secure_sum import public_of

    letter = letter._replace(about={**letter.about, _SIGNATURE: signature})
    check_signed(path, letter, public_of(identity[0]))


def _signed_of(letter: Letter) -> bytes:
    return hashlib.sha256(b"fedpca_sklearn: a letter" + letter.to_bytes()).digest()


def _check_keys(identity: tuple[bytes, Mapping[str, bytes]] | None, sites: list[str]) -> None:
    """Raise unless a coordinator who has a key has those of all sites."""
    if identity is not None and (odd := set(sites) ^ identity[1].keys()):
        raise ValueError(f"identity must have the public key of each of {sites}, not {min(odd)!r}.")


def _check_sites(sites: list[str], min_sites: int) -> None:
    """Raise unless names of sites are different, enough, and can be parts of file names."""
    for site in sites:
        check_text("sites", site)
        too_long = len(site.encode()) > _LONGEST
        if not site or set(site) & set('/\\:*?"<>|') or site[:1] in ".-" or too_long:
            raise ValueError(f"sites must be names that files can have, got {site!r}.")
    names = {*map(composed, sites)}
    if len(names) < len(sites) or len(sites) < check_integer("min_sites", min_sites):
        raise ValueError(
            f"sites must be at least min_sites={min_sites} different names, got {sites!r}."
        )


class AnswersAwaited(Exception):
    """The fit goes on once more answers are there."""


class Study:
    """A fit at several sites that exchange files.

    It is made by `begin`, and taken up from its folder in any later process. `next` writes the next
    questions, one file for each site, ``0001.north.question``. Someone carries them to the sites,
    which write ``0001.north.answer`` (`answer`), and back into the folder. The result is that of
    the same fit over a network, to the last bit where all sites are the same.

    Parameters
    ----------
    folder : str or path-like
        Where the study was begun.
    known : sequence of type, default=()
        Classes of one's own that its estimator is made of.
    identity : tuple of bytes and dict, or None, default=None
        The coordinator's secret key, and the public key of each site by its name, which owners have
        handed over: PEM of keys on the curve P-384. The study and its questions are signed then,
        and an answer that its site has not signed is an error. It is kept nowhere, and needs the
        extra "flower".

    Attributes
    ----------
    sites : list of str
    estimator : object
        As it is fitted; a ``random_state`` of None was drawn once, when the study began.
    awaited : list of path
        Answers that `next` has found lacking.

    Notes
    -----
    Without ``identity`` who may write into the folder decides about the fit. A file
    ``0001.north.without`` beside a question, which `without` or a person writes, says that the fit
    goes on without this site; an answer that comes later is not looked at. Questions name the
    digests of all answers before them: a site refuses a question that follows from another answer
    than its own. All files are written as a whole or not at all. With ``identity`` each side knows
    who has written what it reads, whoever carries it. Each call of `next` computes all that the
    coordinator has computed so far, which for t questions is t (t + 1) / 2 times the server's
    small work of one.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_digits
    >>> from fedpca_sklearn import DistributedPCA
    >>> X = load_digits().data
    >>> folder = tempfile.mkdtemp()
    >>> study = Study.begin(folder, DistributedPCA(5), ["north", "south"])
    >>> study.next() is None, [path.name for path in study.awaited]
    (True, ['0001.north.answer', '0001.south.answer'])
    >>> for site, rows in ("north", X[::2]), ("south", X[1::2]):
    ...     paths = (f"{folder}/0001.{site}.{what}" for what in ("question", "answer"))
    ...     refusal = answer(*paths, rows, state=f"{folder}/{site}")
    >>> study.next().explained_variance_.round(3)
    array([179.007, 163.718, 141.788, 101.1  ,  69.513])
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        known: Sequence[type] = (),
        identity: tuple[bytes, Mapping[str, bytes]] | None = None,
    ):
        self.folder, self.identity = Path(folder), identity
        path = self.folder / _STUDY
        try:
            check_regular(path)
            found = json.loads(path.read_text(encoding="utf-8"))
            signature = bytes.fromhex(found.pop(_SIGNATURE, ""))
            self._run, self._seed = int(found["run"]), bytes.fromhex(found["seed"])
            self.sites, self._min_sites = list(found["sites"]), int(found["min_sites"])
            self._estimator, secure = str(found["estimator"]), found["secure"]
            self._secure = None if secure is None else SecureAggregation(**secure)
            _check_sites(self.sites, self._min_sites)
        except (AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as e:
            raise ValueError(f"{path}: it is not what was written ({e}).") from None
        _check_keys(identity, self.sites)
        if identity is not None:
            check_own(path, Letter(found, Message(_STUDY)), signature, identity)
        self.estimator = constructed(self._estimator, known)
        self.awaited: list[Path] = []

    @classmethod
    def begin(
        cls,
        folder: str | os.PathLike,
        estimator: Any,
        sites: Sequence[str],
        *,
        min_sites: int = 2,
        secure: SecureAggregation | None = None,
        known: Sequence[type] = (),
        identity: tuple[bytes, Mapping[str, bytes]] | None = None,
    ) -> Study:
        """Begin a study in a folder; `next` writes its first questions.

        Parameters
        ----------
        folder : str or path-like
            A folder without a study; it is made if it is not there.
        estimator : object
            That `fit_sites` takes. Its parameters are constants, lists, or objects of the public
            classes of the package, as they are written into each question.
        sites : sequence of str
            Names of the sites, each once, that can be parts of file names.
        min_sites : int, default=2
            With fewer the fit is an error.
        secure : SecureAggregation or None, default=None
            Fit by secure sums: each takes three letters of a site and one more for the first.
        known : sequence of type, default=()
            Classes of one's own that the estimator is made of.
        identity : tuple of bytes and dict, or None, default=None
            As in `Study`.

        Returns
        -------
        study : Study
        """
        sites = [str(site) for site in sites]
        _check_sites(sites, min_sites)
        if secure is not None and len(sites) < secure.threshold:
            least = f"threshold={secure.threshold}"
            raise ValueError(f"sites must be at least {least} different names, got {sites!r}.")
        _check_keys(identity, sites)
        checked_tasks(estimator, secure)  # before there is a file
        estimator = clone(estimator)
        if estimator.get_params(deep=False).get("random_state", 0) is None:
            estimator.set_params(random_state=secrets.randbelow(2**31))
        text, terms = construction_of(estimator, known), _terms_of(secure)
        study = {"estimator": text, "sites": sites, "min_sites": min_sites, "secure": terms}
        study |= {"run": secrets.randbits(62), "seed": secrets.token_hex(32)}
        path = Path(folder) / _STUDY
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            raise ValueError(f"{path} exists: a folder has one study.")
        if identity is not None:
            about = signed(Letter(study, Message(_STUDY)), identity).about
            study = {**study, _SIGNATURE: about[_SIGNATURE].hex()}
        part = path.with_name(f".{secrets.token_hex(8)}.part")
        write_bytes(part, json.dumps(study, indent=1).encode())
        try:
            os.link(part, path)  # which never replaces what another process has begun meanwhile
        except FileExistsError:
            raise ValueError(f"{path} exists: a folder has one study.") from None
        except OSError:  # of a file system without links
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
        return cls(folder, known, identity)

    def next(self) -> Any:
        """Go on with the answers that are there.

        Returns
        -------
        fitted : estimator or None
            As `fit_sites` returns it; None where answers are lacking, which ``awaited`` lists. Then
            all questions are written.

        Raises
        ------
        ValueError
            If a file is not whole or is no answer to its question; it can be deleted, and the site
            asked for it again.
        RuntimeError
            If fewer than ``min_sites`` are left, or if the answers lead to another question than
            was written, as with a library that rounds otherwise.
        """
        carrier, self.awaited = _Letters(self), []
        wanted = Wanted(self._min_sites, len(self.sites), 0.0)
        try:
            return fit_over(carrier, self.estimator, wanted, self._secure)
        except AnswersAwaited:
            return None

    def without(self, *sites: str) -> None:
        """Go on without sites whose answers are awaited.

        Parameters
        ----------
        *sites : str
        """
        awaited = {path.stem.partition(".")[2]: path for path in self.awaited}
        for site in sites:
            if site not in awaited:
                raise ValueError(f"site must be awaited, one of {sorted(awaited)}, got {site!r}.")
        for site in sites:
            path = awaited[site].with_suffix(".without")
            write_bytes(path, signed(self._going_on(path), self.identity).to_bytes())

    def _going_on(self, path: Path) -> Letter:
        """What the coordinator signs to go on without a site."""
        return Letter({"run": self._run, "file": path.name}, Message("without"))


class _Letters(Carrier):
    """Questions and answers in the folder of a study."""

    def __init__(self, study: Study):
        self.study, self._turn, self._n_nonces = study, 0, 0
        self._after: dict[str, str] = {}
        self._gone: dict[int, Any] = {}  # what stands for the answers of sites that are left out

    def nodes(self) -> list[int]:
        return list(range(1, len(self.study.sites) + 1))

    def name(self, node: int) -> str:
        return self.study.sites[node - 1]

    def nonce(self) -> str:
        """Of the study's own seed: taken up again, it asks the same."""
        self._n_nonces += 1
        return hmac.new(self.study._seed, b"%d" % self._n_nonces, "sha256").hexdigest()[:32]

    def exchange(self, questions: dict[int, Message], timeout: float) -> dict[int, Message]:
        self._turn += 1
        asked = [node for node in questions if node not in self._gone]
        for node in asked:
            self._ask(node, questions[node])
        there: dict[int, Any] = {**self._gone, **{node: self._found(node) for node in asked}}
        study = self.study
        study.awaited = [self._path(n, "answer") for n, found in there.items() if found is None]
        if study.awaited:
            raise AnswersAwaited
        self._after |= {study.sites[node - 1]: digest for node, (_, digest) in there.items()}
        return {node: message for node, (message, _) in there.items()}

    def _path(self, node: int, what: str) -> Path:
        return self.study.folder / f"{self._turn:04}.{self.study.sites[node - 1]}.{what}"

    def _ask(self, node: int, question: Message) -> None:
        """Write a question, or find that it is there as it was written."""
        study = self.study
        terms, site = _terms_of(study._secure), study.sites[node - 1]
        about = {"run": study._run, "number": self._turn, "site": site, "node": node}
        about |= {"estimator": study._estimator, "secure": terms, "after": self._after}
        letter, path = Letter(about, question), self._path(node, "question")
        if not path.exists():
            write_bytes(path, signed(letter, study.identity).to_bytes())
        elif unsigned(read_letter(path)[0]).to_bytes() != letter.to_bytes():
            raise RuntimeError(
                f"{path} is another question than follows from the answers before it: they were "
                "changed, or another release or another machine has asked it, which rounds "
                "otherwise."
            )

    def _found(self, node: int) -> tuple[Message, str] | None:
        """The reply of a site and the digest of its file, None where it is awaited."""
        study, path = self.study, self._path(node, "answer")
        without = path.with_suffix(".without")
        if without.exists():
            if study.identity is not None:
                sign = read_letter(without)[0].about.get(_SIGNATURE)
                check_own(without, study._going_on(without), sign, study.identity)
            error = f"the coordinator went on without it: {without.name}"
            return self._gone.setdefault(node, (Message("", error=error), ""))
        if not path.exists():
            return None
        letter, digest = read_letter(path)
        if study.identity is not None:
            check_signed(path, letter, study.identity[1][study.sites[node - 1]])
        if letter.about.get("asked") != digest_of(self._path(node, "question").read_bytes()):
            raise ValueError(f"{path} answers another question.")
        # whose file it is, whatever it says: under the name of another site it would replace that
        config = {**letter.message.config, "site": study.sites[node - 1]}
        return replace(letter.message, config=config), digest


# -------------------------------------------------------------------- a site


def answer(
    question: str | os.PathLike,
    output: str | os.PathLike,
    rows: Any,
    *,
    state: str | os.PathLike,
    estimator: Any = None,
    policy: SitePolicy | None = None,
    secure: SecureAggregation | None = None,
    known: Sequence[type] = (),
    identity: tuple[bytes, bytes] | None = None,
) -> str:
    """Answer a question of a study with the rows of a site.

    Parameters
    ----------
    question, output : str or path-like
        File of the question, and of the answer.
    rows : {array-like, sparse matrix} of shape (n, d), or SiteRows
        The same in all questions of a study.
    state : str or path-like
        Folder of the site, which nobody else may read: what was asked, answered, and released.
    estimator : object or None, default=None
        The owner's own, as in `client_app`: a question for another one is refused, and the refusal
        names what differs. None: that of the question, which the coordinator has chosen; one with
        another estimator inside is an error.
    policy : SitePolicy or None, default=None
        The owner's rules; None: ``SitePolicy()``, at least 10 rows. A mechanism needs its ledger,
        and a mechanism of the owner's in it or in ``estimator``: its budget is the one that counts.
    secure : SecureAggregation or None, default=None
        Of an owner who takes part in secure sums only, with this threshold or a larger one, and
        with this identity. None: as the question says. A mechanism with ``trust="sum"`` needs it,
        and the same threshold: the noise of a site is its share of that of so many.
    known : sequence of type, default=()
        Classes besides those of the package that the owner allows the estimator to be made of.
    identity : tuple of bytes or None, default=None
        The site's secret key and the coordinator's public one, as in `Study`: a question that the
        coordinator has not signed is an error, and the answer is signed.

    Returns
    -------
    refusal : str
        Why the site refuses, which the coordinator is told; empty where it answers.

    Raises
    ------
    ValueError
        If the question is none, or is out of turn.

    Notes
    -----
    The site checks and counts questions as over a network (`client_app`), and beyond that: a run
    has one estimator, one set of rows, and numbers that grow; a question that names the answers
    before it has to name the site's own. The same question again has the answer that was written
    before, for nothing. Questions that come at once are answered one after the other.
    """
    letter, digest = read_letter(question)
    if identity is not None:
        check_signed(question, letter, identity[1])
    about = letter.about
    os.makedirs(state, 0o700, exist_ok=True)
    # two questions at once would both be the next one: of a secret, shares of both kinds
    with locked(os.path.join(state, "lock")):
        site = _State(state, about, os.fspath(question))
        site.check_rows(rows)
        if site.known.get("question") != digest:
            site.check(about)
            asked = constructed(text := str(about.get("estimator")), known)
            if not hasattr(asked, "fit"):
                raise ValueError(f"{text[:80]!r} constructs no estimator.")
            estimator = asked if estimator is None else estimator
            policy = policy or SitePolicy()
            of_coordinator = getattr(asked, "mechanism", None) is not None and estimator is asked
            if of_coordinator and policy.mechanism is None:
                raise ValueError(
                    "the question is of a mechanism with a budget of the coordinator's choice: "
                    "SitePolicy(mechanism=..., ledger=...) or an estimator has the owner's."
                )
            if estimator is asked and getattr(asked, "estimator", None) is not None:
                raise ValueError(
                    "the question is of another estimator inside, which may weigh rows as the "
                    f"coordinator likes, {text[:80]!r}: estimator=... gives the owner's."
                )
            secure = _agreed(about.get("secure"), secure, estimator)
            try:
                app = SiteApp(lambda _: rows, estimator, lambda _: about["site"], policy, secure)
            except TypeError as error:  # of a class that has no part in studies
                raise ValueError(str(error)) from None
            context = Context(about["node"], about["run"], None, {}, site.records)
            reply = signed(Letter({"asked": digest}, app.reply(letter.message, context)), identity)
            site.keep(about, digest, reply.to_bytes())
        write_bytes(output, site.sent)
        return str(Letter.from_bytes(site.sent).message.config.get("error", ""))


def _agreed(asked: Any, secure: SecureAggregation | None, of: Any) -> SecureAggregation | None:
    """Secure sums of an estimator as a question says, if the owner allows them so."""
    shares = getattr(getattr(of, "mechanism", None), "trust", None) == "sum"
    try:
        found = None if asked is None else SecureAggregation(**asked)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a question of secure sums that are none: {error}") from None
    if secure is None:
        if shares:
            raise ValueError(
                "trust='sum' needs secure sums of the owner's threshold, as noise is shared among "
                "so many sites: secure=SecureAggregation(...), got None."
            )
        return found
    if found is None:
        raise ValueError("the site takes part in secure sums only, and the question is of none.")
    for name in ("bits", "scale", *["threshold"] * shares):
        own, got = getattr(secure, name), getattr(found, name)
        if got != own:
            raise ValueError(
                f"secure sums of {name}={own!r} are allowed, the question is of {got!r}."
            )
    threshold = max(found.threshold, secure.threshold)
    return replace(secure, threshold=threshold, restarts=min(found.restarts, secure.restarts))


class _State:
    """What a site knows of the run that a question is of, in a file that nobody else reads."""

    def __init__(self, folder: str | os.PathLike, about: dict[str, Any], question: str):
        for name, kind in {"run": int, "number": int, "node": int, "site": str}.items():
            if type(about.get(name)) is not kind:
                raise ValueError(f"{question}: a question states {name!r}, this one does not.")
        check_text("site", about["site"])
        name = digest_of(f"{about['run']} {about['site']}".encode())[:32]
        self.path, self.sent = Path(folder) / f"{name}.state", b""
        self.records: dict[str, dict[str, Any]] = {}
        self.known: dict[str, Any] = {}
        if not self.path.exists():
            return
        letter, _ = read_letter(self.path)
        self.known, self.sent = letter.about, letter.message.arrays[""].data
        self.records = self.known.pop("records")

    def check_rows(self, rows: Any) -> None:
        """Raise unless the rows are those of the run."""
        self._rows = joblib.hash(rows, hash_name="sha1")
        if self.known.get("rows", self._rows) != self._rows:
            raise ValueError("the rows are others than in earlier questions of this study.")

    def check(self, about: dict[str, Any]) -> None:
        """Raise unless a question is the next one about the estimator of the run."""
        last = self.known
        if not last:
            return
        number, answered = about["number"], last["number"]
        if number <= answered:
            raise ValueError(f"question {number} is out of turn: {answered} was answered.")
        for name in ("estimator", "secure"):
            if about.get(name) != last[name]:
                raise ValueError(f"the {name} is another than in earlier questions of this study.")
        after = about.get("after")
        named = after.get(about["site"]) if isinstance(after, dict) else None
        if named != last["answer"]:
            raise ValueError("the question does not follow from the answer of this site before it.")

    def keep(self, about: dict[str, Any], question: str, sent: bytes) -> None:
        """Keep what the run has become, before the answer is written."""
        self.known = {name: about.get(name) for name in ("number", "estimator", "secure")}
        self.known |= {"question": question, "answer": digest_of(sent), "rows": self._rows}
        self.sent = sent
        arrays = {"": Array(sent, (len(sent),), "|u1")}
        letter = Letter({**self.known, "records": self.records}, Message("state", {}, arrays))
        write_bytes(self.path, letter.to_bytes(), 0o600)
