"""plan: what a budget of privacy is expected to give, without a row."""

from __future__ import annotations

import argparse
from typing import Any

from ..engines._parameters import constructed
from ..privacy import PrivacyPlan, SecondMomentMechanism
from ._output import Report
from ._texts import count


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("plan", help="tell what a budget of privacy gives, without a row")
    parser.add_argument(
        "mechanism",
        metavar="MECHANISM",
        help="in Python, as \"AnalyzeGauss(1.0, 1e-5, row_norm='private')\"",
    )
    parser.add_argument("--rows", type=count, required=True, help="of a site", metavar="N")
    parser.add_argument("--columns", type=count, required=True, metavar="N")
    parser.add_argument("-n", "--components", type=count, default=2, help="default: 2", metavar="N")
    parser.add_argument(
        "--spectrum",
        type=_numbers,
        help="variances that are believed, with commas (default: 1, 1/4, 1/9, ...)",
        metavar="NUMBERS",
    )
    parser.set_defaults(command=run)


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def run(options: argparse.Namespace) -> Report:
    """Plan with half of epsilon, all of it, and twice as much."""
    mechanism = constructed(options.mechanism)
    if not isinstance(mechanism, SecondMomentMechanism):
        raise ValueError(
            "MECHANISM must be one of FederatedPCA, such as AnalyzeGauss, got "
            f"{type(mechanism).__name__}."
        )
    n, d, k = options.rows, options.columns, options.components
    plan = mechanism.plan(n, d, k, spectrum=options.spectrum)
    plans = [one for one in (plan.half, plan, plan.twice) if one is not None]
    head = f"{n} rows, {d} columns, delta {mechanism.delta:g}\n   epsilon  error  above noise"
    return Report("\n".join([head, *map(_line, plans)]), {"plans": [_facts(one) for one in plans]})


def _line(plan: PrivacyPlan) -> str:
    return f"{plan.epsilon:10.4g}  {plan.error:5.3f}  {plan.n_components_above_noise:11.1f}"


def _facts(plan: PrivacyPlan) -> dict[str, float]:
    return {
        "epsilon": plan.epsilon,
        "error": plan.error,
        "n_components_above_noise": plan.n_components_above_noise,
    }
