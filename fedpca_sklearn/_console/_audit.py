"""audit: what a site was asked and answered."""

from __future__ import annotations

import argparse
from typing import Any

from ..engines._site_log import audit
from ._output import Report
from ._texts import printable


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("audit", help="tell what a site was asked and answered")
    parser.add_argument("log", metavar="LOG")
    parser.set_defaults(command=run)


def run(options: argparse.Namespace) -> Report:
    """Read the log; one that is not what was written is exit code 1."""
    text, whole = audit(options.log)
    lines = [line.strip() for line in text.splitlines()]
    report = {"log": options.log, "whole": whole, "lines": lines}
    return Report(f"{printable(options.log)}\n{text}", report, 0 if whole else 1)
