"""Files that are written: as a whole or not at all, with the permissions that were there."""

import os
import stat
import sys
import threading

import numpy as np
import pytest

from fedpca_sklearn import PairMoments, Subspace
from fedpca_sklearn.__main__ import main
from fedpca_sklearn._validation import files

ROWS = np.random.default_rng(0).standard_normal((40, 5))
SUMMARIES = [Subspace.from_rows(ROWS[:n]) for n in (20, 40)]
POSIX = pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "site.fedpca"
    SUMMARIES[0].save(file)
    return file


def mode_of(file):
    return stat.S_IMODE(os.stat(file).st_mode)


@pytest.mark.parametrize("value", [SUMMARIES[1], PairMoments.from_rows(ROWS)])
@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_file_that_cannot_be_replaced_stays(file, monkeypatch, value, error):
    before = file.read_bytes()

    def fail(*args):
        raise error

    monkeypatch.setattr(files.os, "replace", fail)
    with pytest.raises(error):
        value.save(file)
    assert file.read_bytes() == before
    assert os.listdir(file.parent) == [file.name]


def test_who_reads_while_others_write_finds_one_of_them(file):
    whole, seen = {summary.to_bytes() for summary in SUMMARIES}, set()

    def write(summary):
        for _ in range(30):
            summary.save(file)

    writers = [threading.Thread(target=write, args=(summary,)) for summary in SUMMARIES]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for writer in writers:
            writer.start()
        while any(writer.is_alive() for writer in writers):
            seen.add(file.read_bytes())
    finally:
        sys.setswitchinterval(interval)
    assert seen <= whole
    assert os.listdir(file.parent) == [file.name]


def test_the_error_of_a_folder_names_the_file_that_was_asked_for(tmp_path):
    file = tmp_path / "gone" / "site.fedpca"
    with pytest.raises(FileNotFoundError) as caught:
        SUMMARIES[0].save(file)
    assert caught.value.filename == str(file)


@POSIX
def test_permissions_and_links_are_kept(file):
    new, link = file.with_name("new"), file.with_name("link")
    SUMMARIES[1].save(new)
    with open(file.with_name("usual"), "wb"):
        assert mode_of(new) == mode_of(file.with_name("usual"))
    os.chmod(file, 0o660)
    os.symlink(file, link)
    SUMMARIES[1].save(link)
    assert mode_of(file) == 0o660
    assert os.path.islink(link)
    assert file.read_bytes() == SUMMARIES[1].to_bytes()


@POSIX
def test_what_is_no_file_is_written_to(tmp_path):
    SUMMARIES[0].save(os.devnull)
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@POSIX
def test_a_command_keeps_the_permissions_of_what_it_replaces(tmp_path, capsys):
    output, other = tmp_path / "all.fedpca", tmp_path / "site.fedpca"
    SUMMARIES[0].save(other, site="a")
    output.write_bytes(b"private")
    os.chmod(output, 0o600)
    assert main(["merge", str(other), "-o", str(output), "--force"]) == 0
    assert mode_of(output) == 0o600
    assert Subspace.load(output).n_samples == 20
