"""What a command leaves: a file that it may write, and a report."""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ._texts import one_line, plain


@dataclass
class Report:
    """What a command tells: text, or the same as JSON, and its exit code."""

    text: str
    facts: dict[str, Any]
    code: int = 0
    warnings: list[str] = field(default_factory=list)

    def show(self, as_json: bool) -> int:
        """Print it; the exit code is the result."""
        for warning in self.warnings:
            print(f"warning: {one_line(warning)}", file=sys.stderr)
        whole = {**self.facts, "warnings": self.warnings}
        print(json.dumps(plain(whole), allow_nan=False) if as_json else self.text)
        return self.code


def add_output(parser: argparse.ArgumentParser) -> None:
    """Options of commands that write a file."""
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="what is written")
    parser.add_argument("--force", action="store_true", help="replace the output if it exists")


def check_output(options: argparse.Namespace, files: Sequence[str], verb: str = "read") -> None:
    """Raise if a file would be written over one that is read, over any other, or into no folder.

    Parameters
    ----------
    options : Namespace
        Those of `add_output`.
    files : sequence of str
        What the command reads.
    verb : str
        What the command does with them.
    """
    output = options.output
    for file in files:
        if os.path.exists(file) and os.path.exists(output) and os.path.samefile(file, output):
            raise ValueError(f"{output} is one of the files to {verb}.")
    if not os.path.lexists(output):
        folder = os.path.dirname(output)
        if folder and not os.path.isdir(folder):
            raise ValueError(f"{output} cannot be written: there is no folder {folder}.")
        return
    if os.path.exists(output) and not stat.S_ISREG(os.stat(output).st_mode):
        raise ValueError(f"{output} is there and no regular file.")
    if not options.force:
        raise ValueError(f"{output} exists; --force replaces it.")
