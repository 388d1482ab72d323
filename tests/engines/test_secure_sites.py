"""Secure sums with a hostile site among others: it is left out, or the fit ends with an error."""

import os

import numpy as np
import pytest

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
pytest.importorskip("flwr")

from flwr.app import Array
from test_hostile_sites import changed, spoiling
from test_secure import PCA_2, ROWS, assert_pca, secure_fit

from fedpca_sklearn.engines._masks import key_pair
from fedpca_sklearn.engines.flower import SecureAggregation

# two sums a fit
SCALE = SecureAggregation(threshold=2)


def fitted_with(spoil):
    return secure_fit(PCA_2, spoil=spoil, secure=SCALE)


def config_with(**values):
    """A change of what is told beside the arrays."""

    def change(message, reply):
        config = reply.content.config_records["config"]
        new = {name: value(config[name]) for name, value in values.items()}
        return changed(reply, message, config_with=new)

    return change


def garbled(texts):
    """Other texts of the same lengths; shares keep the number of their place."""
    return [text[:4] + bytes(b ^ 1 for b in text[4:]) for text in texts]


LEFT_OUT = {
    "no key": ("secure_keys", config_with(mask_key=lambda key: None), "west"),
    "no public key": ("secure_keys", config_with(box_key=lambda key: b"key"), "west"),
    "one key for both": (
        "secure_keys",
        lambda message, reply: changed(
            reply,
            message,
            config_with={"box_key": reply.content.config_records["config"]["mask_key"]},
        ),
        "west",
    ),
    "a box too few": ("secure_shares", config_with(boxes=lambda boxes: boxes[1:]), "west"),
    "boxes that are texts": ("secure_shares", config_with(boxes=lambda b: ["x"] * 3), "west"),
    "boxes of any size": ("secure_shares", config_with(boxes=lambda b: [bytes(6000)] * 3), "west"),
    "boxes that do not open": ("secure_shares", config_with(boxes=garbled), "west"),
}


@pytest.mark.parametrize(("kind", "change", "name"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_site_that_breaks_the_protocol_is_left_out(kind, change, name):
    with pytest.warns(UserWarning, match=f"Fitted without site '{name}'"):
        fitted = fitted_with(spoiling(change, kind=kind))
    assert fitted.clients_ == ["east", "north"]
    assert_pca(fitted, ROWS[:80])


@pytest.mark.parametrize("kind", ["moments", "second_moments"])
@pytest.mark.parametrize(
    "numbers",
    [np.zeros(4), np.zeros(4, np.uint64), np.zeros((2, 5), np.uint64), np.array(["text"])],
    ids=["floats", "too few", "a matrix", "texts"],
)
def test_what_is_no_list_of_masked_numbers(kind, numbers):
    def change(message, reply):
        return changed(reply, message, arrays_with={"masked": Array(numbers)})

    with pytest.warns(UserWarning, match="Fitted without site 'west'"):
        assert_pca(fitted_with(spoiling(change, kind=kind)), ROWS[:80])


@pytest.mark.parametrize("first", [1, 2])
def test_wrong_shares_are_seen(first):
    spoil = spoiling(config_with(shares=garbled), "east", "secure_unmask", first)
    with pytest.raises(RuntimeError, match="masks of a secure sum do not cancel: a site, nobody"):
        fitted_with(spoil)


def test_numbers_without_masks_are_seen():
    def change(message, reply):
        numbers = reply.content.array_records["arrays"]["masked"].numpy()
        return changed(reply, message, arrays_with={"masked": Array(numbers + np.uint64(1))})

    with pytest.raises(RuntimeError, match="masks of a secure sum do not cancel"):
        fitted_with(spoiling(change, kind="moments"))


def test_a_site_that_withholds_or_miscounts_shares_changes_nothing():
    for change in (lambda s: [b""] * 3, lambda s: [b"\x09\0\0\0" + text[4:] for text in s]):
        spoil = spoiling(config_with(shares=change), "east", "secure_unmask")
        fitted = fitted_with(spoil)
        assert fitted.clients_ == ["east", "north", "west"]
        assert_pca(fitted, ROWS)


def test_a_key_that_another_site_has_sent_ends_the_fit():
    copied = key_pair()[1]

    def spoil(site, message, reply):
        if site == "north" or message.metadata.message_type != "query.secure_keys":
            return reply
        return changed(reply, message, config_with={"mask_key": copied})

    match = "refused: the lists of keys must hold two different public keys of each site"
    with pytest.raises(RuntimeError, match=match):
        fitted_with(spoil)
