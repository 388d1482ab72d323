"""What tests of sites do without: waiting for a disk."""

import os

import pytest


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)
