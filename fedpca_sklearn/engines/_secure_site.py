"""Secure sums at a site: keys, shares, masked numbers, and what takes off the masks of others."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from flwr.common.secure_aggregation.crypto.shamir import create_shares

from ..communication._fixed_point import check_room
from ._masks import (
    digest,
    is_public_key,
    key_pair,
    mask,
    opened,
    sealed,
    shared_key,
    signature,
    signed_masks,
    signers,
)
from ._messages import OVER, Context, Message
from ._questions import RUN, RefusedError
from ._secure import BOUNDS, KEYS, SHARES, UNMASK, Bounds, Open, SecureAggregation, Summed

# Zeros at the end of what is masked: anything else in the sum shows that masks are left on it.
N_ZEROS = 1
# Records of the site's own state: secrets and peers of the sum that goes on; how many fits have
# begun, and the sites of the last one. A process that is started for a message finds there what an
# earlier one knew.
_SUM, _FITS = "fedpca_sklearn.sum", "fedpca_sklearn.sums_begun"


def session_of(
    threshold: int,
    mask_keys: Sequence[bytes],
    box_keys: Sequence[bytes],
    bounds: Sequence[bytes],
) -> bytes:
    """Digest of who takes part in a sum, with which bounds; keys are new for each sum."""
    return digest([b"sum", threshold.to_bytes(8, "little"), *mask_keys, *box_keys, *bounds])


def question_of(session: bytes, kind: str, bits: int, arguments: Mapping[str, Any]) -> bytes:
    """Digest of what is asked of all sites: masks of different questions do not cancel."""
    numbers = repr((kind, bits)).encode()
    texts = (part for name in sorted(arguments) for part in (name.encode(), arguments[name].data))
    return digest([session, numbers, *texts])


class SiteSums:
    """The steps of a secure sum at a site: each returns arrays, and what else is told."""

    def __init__(self, secure: SecureAggregation, tasks: dict[str, Any]):
        self.secure, self.tasks = secure, tasks

    def step(self, kind: str) -> Callable[[Message, Context, dict], tuple[dict, dict]]:
        """The step that a kind of question asks for.

        ``step(message, context, numbers)`` takes the numbers of the task, before anything leaves
        the site, and returns the arrays that are sent, and what else is told.
        """
        steps = {KEYS: self.keys, SHARES: self.shares, UNMASK: self.unmask}
        work = self.open if isinstance(self.tasks[kind], Open) else self.masked
        return steps.get(kind, partial(work, kind))

    def open(
        self, kind: str, message: Message, context: Context, numbers: dict
    ) -> tuple[dict, dict]:
        """What was asked for, as it is; bounds hold for all sums until the fit begins again."""
        self._check_restarts(context, kind)
        if BOUNDS in numbers:
            bounds = Bounds.read(numbers[BOUNDS]).within(self.secure.scale).vector
            fits: dict[str, Any] = dict(context.state[_FITS])
            context.state[_FITS] = {**fits, "bounds": _bytes_of(bounds)}
            numbers = {**numbers, BOUNDS: bounds}
        return numbers, {}

    def keys(self, message: Message, context: Context, numbers: dict) -> tuple[dict, dict]:
        """New keys for one sum; what was left of another is forgotten."""
        (mask_secret, mask_key), (box_secret, box_key) = key_pair(), key_pair()
        public = {"mask_key": mask_key, "box_key": box_key}
        _keep(context, SHARES, {"mask_secret": mask_secret, "box_secret": box_secret, **public})
        return {}, public

    def shares(self, message: Message, context: Context, numbers: dict) -> tuple[dict, dict]:
        """A share of each of two secrets for every site, encrypted for it."""
        own, config = _taken(context, SHARES), message.config
        mask_keys, box_keys = _texts(config, "mask_keys"), _texts(config, "box_keys")
        threshold = self._checked_threshold(mask_keys, box_keys, config.get("threshold"))
        pairs = list(zip(mask_keys, box_keys, strict=True))
        public = own["mask_key"], own["box_key"]
        if public not in pairs:
            raise RefusedError("the keys of this site must be in the list of keys as it sent them")
        at, n = pairs.index(public), len(pairs)
        bounds = _texts(config, "bounds")
        common = _common_bounds(context, bounds, at, n)
        session, seed = session_of(threshold, mask_keys, box_keys, bounds), os.urandom(32)
        seed_shares, key_shares = (
            create_shares(secret, threshold, n) for secret in (seed, own["mask_secret"])
        )
        boxes = [b""] * n
        for to, pair in enumerate(zip(seed_shares, key_shares, strict=True)):
            if to != at:
                key = shared_key(own["box_secret"], box_keys[to])
                boxes[to] = sealed(key, session, at, to, pair)
        kept = {"at": at, "threshold": threshold, "session": session, "seed": seed}
        kept |= {"mask_secret": own["mask_secret"], "box_secret": own["box_secret"]}
        kept |= {"mask_keys": mask_keys, "box_keys": box_keys, "bounds": _bytes_of(common.vector)}
        for name, shares in (("seed_shares", seed_shares), ("key_shares", key_shares)):
            kept[name] = [share if to == at else b"" for to, share in enumerate(shares)]
        _keep(context, "masked", kept)
        signed = b""
        if self.secure.identity is not None:
            signed = signature(self.secure.identity(context.given)[0], session, at)
        return {}, {"boxes": boxes, "signature": signed}

    def _checked_threshold(self, mask_keys: list, box_keys: list, threshold: Any) -> int:
        """The number of sites that unmask a sum of those with these keys, if all are acceptable."""
        keys, n = [*mask_keys, *box_keys], len(mask_keys)
        different = n == len(box_keys) and 0 < 2 * n == len(set(keys))
        if not different or not all(map(is_public_key, keys)):
            raise RefusedError("the lists of keys must hold two different public keys of each site")
        if type(threshold) is not int or not self.secure.needed(n) <= threshold <= n:
            raise RefusedError(
                f"a sum of {n} sites needs a threshold from {self.secure.needed(n)} to {n}"
            )
        try:
            check_room(n, self.secure.bits)
        except ValueError as error:
            raise RefusedError(str(error)) from None
        return threshold

    def masked(
        self, kind: str, message: Message, context: Context, numbers: dict
    ) -> tuple[dict, dict]:
        """The numbers that were asked for, masked."""
        own = _taken(context, "masked")
        self._check_restarts(context, kind)
        if OVER in numbers:
            raise RefusedError("the site has no such batch")
        others = self._signers(own, message, context)
        self._open_boxes(own, message)
        bits, common = message.config.get("bits"), Bounds.read(np.frombuffer(own["bounds"], "<f8"))
        if bits != self.secure.bits:
            raise RefusedError(f"bits must be {self.secure.bits}")
        arguments: Mapping[str, Any] = message.arrays
        asked = question_of(b"", kind, bits, arguments)
        n_sites = len(own["mask_keys"])
        integers = self._integers(self.tasks[kind], numbers, common, n_sites, arguments, asked)
        integers = np.append(integers, np.zeros(N_ZEROS, np.uint64))
        question = question_of(own["session"], kind, bits, arguments)
        n, at = len(integers), own["at"]
        integers += mask(own["seed"], question, n)
        peers = (peer for peer in range(len(own["mask_keys"])) if peer != at)
        integers += signed_masks(own["mask_secret"], at, own["mask_keys"], peers, question, n)
        kept = ("at", "threshold", "seed_shares", "key_shares")
        _keep(context, UNMASK, {"signers": others, **{name: own[name] for name in kept}})
        return {"masked": integers}, {}

    def _check_restarts(self, context: Context, kind: str) -> None:
        """Raise if a fit has not begun, or begins once more than the owner of the site allows."""
        fits: dict[str, Any] = dict(context.state.get(_FITS, {}))
        first = next(iter(self.tasks))
        counted: dict[str, Any] = context.state[RUN]
        run = f"{context.run_id} {counted.get('number', '')}"  # each batch is a fit of its own
        begun = fits["begun"] if fits.get("run") == run else 0
        if kind != first and not begun:
            raise RefusedError(f"a fit begins with {first!r}")
        if kind != first:
            return
        context.state[_FITS] = {"run": run, "begun": begun + 1}
        if begun > self.secure.restarts:
            raise RefusedError(f"a fit begins again at most {self.secure.restarts} times")

    def _signers(self, own: dict[str, Any], message: Message, context: Context) -> list[bytes]:
        """Who the other sites are, by place; an empty list where nobody is known."""
        if self.secure.identity is None:
            return []
        signatures = _texts(message.config, "signatures")
        _, known = self.secure.identity(context.given)
        found = None
        if len(signatures) == len(own["mask_keys"]):
            found = signers(own["session"], own["at"], signatures, known)
        if found is None:
            raise RefusedError("all other sites must have signed the keys, with keys known here")
        return found

    def _open_boxes(self, own: dict[str, Any], message: Message) -> None:
        """Take the shares for this site out of the boxes of all others."""
        boxes = _texts(message.config, "boxes")
        at = own["at"]
        empty = [other for other, box in enumerate(boxes) if not box]
        if empty != [at] or len(boxes) != len(own["mask_keys"]):
            raise RefusedError("boxes must be those of all other sites whose keys were listed")
        for other, box in enumerate(boxes):
            if other != at:
                key = shared_key(own["box_secret"], own["box_keys"][other])
                # one that cannot be opened counts as a site of which there is no share here
                pair = opened(key, own["session"], other, at, box) or (b"", b"")
                own["seed_shares"][other], own["key_shares"][other] = pair
        if (good := sum(map(bool, own["seed_shares"]))) < own["threshold"]:
            raise RefusedError(f"shares of {good} sites open, the sum needs {own['threshold']}")

    def _integers(
        self,
        task: Summed,
        arrays: dict[str, Any],
        bounds: Bounds,
        n_sites: int,
        arguments: Mapping[str, Any],
        question: bytes,
    ) -> np.ndarray:
        """What is summed: integers in the ring, array after array, on the grids of the bounds."""
        if task.mean is not None:
            bounds.check_mean(arguments[str(task.mean)].numpy())
        grids, words, how = task.grids(bounds), [], (self.secure.bits, n_sites)
        for name, sent in sorted(arrays.items()):
            numbers = np.asarray(sent, dtype=np.float64)
            grid = grids[name]
            words.append(grid.encode(numbers, *how, question + name.encode()))
            if task.on_grid and (grid.decode(words[-1], numbers.shape, *how) != numbers).any():
                raise RefusedError("the grid of the noise is finer than the scale of secure sums")
        return np.concatenate(words)

    def unmask(self, message: Message, context: Context, numbers: dict) -> tuple[dict, dict]:
        """One share of each site: of its own mask if its numbers arrived, of its key if not.

        New keys come along, for the next sum.
        """
        own = _taken(context, UNMASK)
        at, n, threshold = own["at"], len(own["seed_shares"]), own["threshold"]
        sent = message.config.get("sent")
        if not isinstance(sent, list) or sorted(set(sent) & set(range(n))) != sorted(sent):
            raise RefusedError(f"those who sent numbers must be some of {n} sites, each once")
        if at not in sent or len(sent) < threshold:
            raise RefusedError(f"this site and {threshold - 1} others must have sent numbers")
        _check_same_sites(context, [own["signers"][i] for i in sent] if own["signers"] else [])
        shares = [
            own["seed_shares" if other in sent else "key_shares"][other] for other in range(n)
        ]
        arrays, keys = self.keys(message, context, numbers)
        return arrays, {"shares": shares, **keys}


def _bytes_of(bounds: np.ndarray) -> bytes:
    return bounds.astype("<f8").tobytes()


def _common_bounds(context: Context, bounds: list[bytes], at: int, n: int) -> Bounds:
    """The largest of the bounds that n sites have announced, this one its own."""
    fits: dict[str, Any] = dict(context.state.get(_FITS, {}))
    if len(bounds) != n or bounds[at] != fits.get("bounds"):
        raise RefusedError("the bounds of this site must be in the list as it has announced them")
    try:
        return Bounds.of_all([Bounds.read(np.frombuffer(text, "<f8")) for text in bounds])
    except ValueError as error:
        raise RefusedError(str(error)) from None


def _check_same_sites(context: Context, sites: list[bytes]) -> None:
    """Raise if a sum is of other sites than earlier ones of the fit; the difference is a site's."""
    fits: dict[str, Any] = dict(context.state[_FITS])
    if fits.setdefault("sites", sorted(sites)) != sorted(sites):
        raise RefusedError("a sum is over other sites than the fit began with")
    context.state[_FITS] = fits


def _keep(context: Context, stage: str, values: dict[str, Any]) -> None:
    """Keep what the next stage of a sum needs, in the state of the node, which stays there."""
    context.state[_SUM] = {"stage": stage, "run": str(context.run_id), **values}


def _taken(context: Context, stage: str) -> dict[str, Any]:
    """What was kept for a stage. It is there once: each question of a sum is asked once."""
    own: dict[str, Any] = dict(context.state.get(_SUM, {}))
    context.state[_SUM] = {}
    if own.get("stage") != stage or own.get("run") != str(context.run_id):
        raise RefusedError(
            "this site takes part in secure sums only: keys, shares, numbers, unmasking, each once"
        )
    return own


def _texts(config: Mapping[str, Any], name: str) -> list[bytes]:
    """A list of bytes in a question."""
    found = config.get(name)
    if not isinstance(found, list) or set(map(type, found)) - {bytes}:
        raise RefusedError(f"{name} must be a list of bytes")
    return found
