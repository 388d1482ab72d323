"""Refinements of `FederatedPCA` at sites: rounds of products with the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral

import numpy as np

from .._base.adjusting import with_confounders
from .._kernels.certificates import N_PROBES
from .._kernels.sizes import kept_directions
from ..communication._federation import message_of
from ..federated import FederatedPCA
from ..federated._client_refinement import most_rounds, refine_as_asked
from ..summary import Subspace
from ..summary._refinement import products_of
from ._messages import Answer
from ._questions import MOMENTS, Task, check_basis, check_mean
from ._sites import SiteLostError, Sites

# Share by which the rows of a product may differ from those of the site's summary, in float32.
_SAME = 1e-4


def refinement_tasks(estimator: FederatedPCA) -> dict[str, Task]:
    """What a site answers after its summary, if the estimator is to be refined."""
    n_rounds = most_rounds(estimator)
    wanted = with_confounders(estimator, estimator._directions_needed())

    def products(site, own, mean, block):
        d = len(own.mean)
        check_mean(mean, d, True)
        kept = kept_directions(min(int(wanted), d), d) if isinstance(wanted, Integral) else d
        check_basis(block, d, min(d, kept + N_PROBES))
        return {"message": products_of(own, mean, block)}

    return {"products": Task(products, n_rounds, fixed=0, reads=MOMENTS)} if n_rounds else {}


def refined(fitted: FederatedPCA, sites: Sites, sent: Mapping[str, Subspace]) -> FederatedPCA:
    """Refine what was fitted of the summaries that sites have sent.

    Raises
    ------
    SiteLostError
        If a site of the fit is left out.
    """
    if most_rounds(fitted):
        fitted.communication_ = sites.log
        refine_as_asked(fitted, lambda: _multiply(sites, sent))
    return fitted


def _multiply(
    sites: Sites, sent: Mapping[str, Subspace]
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Sums of products over the sites."""

    def multiply(mean: np.ndarray, block: np.ndarray) -> np.ndarray:
        def read(answer: Answer) -> np.ndarray:
            message = answer.array("message", (block.size + len(mean) + 2,))
            _check_rows(answer, message, sent[answer.site], mean, block)
            return message

        messages = sites.ask("products", read, mean, block)
        if len(messages) < len(sent):
            raise SiteLostError
        up, down = map(message_of, (next(iter(messages.values())), block))
        sites.log.record([up] * len(messages), [down] * len(messages), summed=True)
        return np.sum(list(messages.values()), axis=0)

    return multiply


def _check_rows(
    answer: Answer, message: np.ndarray, summary: Subspace, mean: np.ndarray, block: np.ndarray
) -> None:
    """Leave a site out whose products are of other rows than its summary."""
    products, deviation, (scatter, count) = np.split(message, [block.size, -2])
    n, apart = summary.n_samples, summary.mean.astype(np.float64) - mean
    about = summary.scatter + n * float(apart @ apart)
    reach = np.sqrt(about / n) + float(np.abs(mean).max(initial=0.0))
    with np.errstate(over="ignore"):  # as liars can make it
        size = float(np.linalg.norm(products))
    same = (
        abs(count - n) <= _SAME * n
        and float(np.abs(deviation / n - apart).max()) <= _SAME * reach
        and abs(scatter - about) <= _SAME * (about + n * float(mean @ mean) * _SAME)
        and size <= (1 + _SAME) * about * np.sqrt(len(block))
    )
    if not same:
        raise answer.refused("products of other rows than those of its summary")
