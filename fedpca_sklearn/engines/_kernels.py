"""`VerticalFederatedKernelPCA` at sites that own columns, by messages or by secure sums.

A kernel is a function of a sum over the columns, of squared distances or inner products, so that
its parts add up. The keys of rows are no sum, they are intersected.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from sklearn.utils import check_random_state

from ..communication import Federation
from ..vertical import VerticalFederatedKernelPCA
from ..vertical._vertical_kernels import (
    ColumnClient,
    LinearScores,
    energies_of,
    of_unit_length,
)
from ._columns import (
    KEYS,
    OF_ROWS,
    ColumnRounds,
    Parts,
    SiteOperator,
    check_vectors,
    keys_and_bounds,
    noted,
    own_keys,
    period_of,
    refuse_topology,
    task_of_parts,
)
from ._estimators import fit_estimator, site_work
from ._questions import BEGINNINGS, Given, RefusedError, Task
from ._secure import Grid, SecureAggregation
from ._secure_fits import check_needed, secure_work
from ._sites import Sites

# -------------------------------------------------------------------- at a site


@site_work.register
def _(estimator: VerticalFederatedKernelPCA) -> dict[str, Task]:
    refuse_topology(estimator)
    estimator._check_parameters()
    asked = _exact(estimator) if estimator.aggregation == "exact" else _agreed(estimator)
    parts = task_of_parts(estimator) if estimator.projection == "features" else {}
    return {"keys": Task(own_keys, reads=KEYS), **asked, **parts}


def _exact(estimator: VerticalFederatedKernelPCA) -> dict[str, Task]:
    """Questions of ``aggregation="exact"``."""

    def kernel_part(site, X, landmarks):
        n = len(X)
        m = min(estimator.n_landmarks or n, n)
        whole = landmarks.shape == (m,) and (landmarks == landmarks // 1).all()
        if not whole or (np.diff([-1, *landmarks, n]) <= 0).any():
            raise RefusedError(f"landmarks must be {m} different rows, in order")
        client = client_of(estimator, X, landmarks.astype(np.intp), X.shape[1])
        return {"part": client.part(None if m == n else X)}

    return {"kernel_part": Task(kernel_part, reads=OF_ROWS, matched=True)}


def _agreed(estimator: VerticalFederatedKernelPCA) -> dict[str, Task]:
    """Questions of ``aggregation=VFedPCA()``."""
    method, rank, center = estimator._method(), estimator.n_components, estimator.center

    def whole(X, n_columns):
        if n_columns.shape or not X.shape[1] < n_columns < 2**53:
            raise RefusedError("the number of all columns must be above that of the site")
        return client_of(estimator, X, np.arange(len(X)), int(n_columns))

    def period(site, X, found, updates, start, n_columns):
        client = whole(X, n_columns)
        operator = client.operator(site, center, method.update.endswith("_columns"))
        return period_of(operator, found, updates, start, method, rank)

    def energies(site, X, vectors, n_columns):
        check_vectors(vectors, len(X), rank)
        ones = np.ones(len(vectors))
        return {"energies": energies_of(site, whole(X, n_columns), vectors.T, ones, center)[1]}

    # it says what a kernel is, and changes with the sites only
    given = (Given("numbers of all columns", lambda *arguments: arguments[-1:], BEGINNINGS),)
    task = partial(Task, reads=OF_ROWS, matched=True, given=given)
    return {"period": task(period, rank * method.n_rounds), "energies": task(energies)}


def client_of(
    estimator: VerticalFederatedKernelPCA, X: np.ndarray, landmarks: np.ndarray, n_columns: int
) -> ColumnClient:
    """The client of the simulation that a site is, one of several with so many columns."""
    d = X.shape[1]
    groups = [np.arange(d), np.arange(n_columns - d)]
    kernel = estimator._kernels(groups)[0]
    return ColumnClient.of(X, groups[0], landmarks, kernel, estimator.center)


# -------------------------------------------------------------------- at the server


class SiteKernel(ColumnClient):
    """A site that owns columns; of its rows the server knows the number."""

    def operator(self, label: int, center: bool, of_columns: bool) -> SiteOperator:
        """Its kernel, which stays there."""
        return SiteOperator(label, len(self.columns))


class ScoresAtSites:
    """Scores of new rows, which take the sites' columns of the rows of the fit."""

    def scores(self, federation: Federation, X: np.ndarray) -> np.ndarray:
        """Raise: they are at the sites."""
        raise ValueError(
            "transform of an estimator that was fitted at sites needs projection='features': "
            "kernels of new rows take the rows of the fit, which are at the sites. Scores of these "
            "are eigenvectors_ * sqrt(eigenvalues_)."
        )


@fit_estimator.register
def _(estimator: VerticalFederatedKernelPCA, sites: Sites) -> VerticalFederatedKernelPCA:
    rounds = ColumnRounds(sites)
    n, d = len(rounds.keys), rounds.n_features
    rounds.more = (d,)
    rounds.rng = check_random_state(estimator.random_state)
    estimator._choose_landmarks(n, rounds)
    rounds.landmarks = estimator.landmarks_
    X = np.broadcast_to(np.zeros((), sites.dtype), (n, d))
    clients = [
        SiteKernel(columns, X[0, :0], X[:, :0], kernel)
        for columns, kernel in zip(rounds.groups, estimator._kernels(rounds.groups), strict=True)
    ]
    estimator.communication_ = sites.log
    linear = partial(_linear, rounds)
    estimator._fit_clients(rounds, clients, rounds.groups, X, linear)
    if estimator.projection != "features":
        estimator._scorer = ScoresAtSites()
    return noted(estimator, rounds)


def _linear(
    rounds: ColumnRounds, vectors: list[np.ndarray], known: np.ndarray, center: bool, sent: bool
) -> LinearScores:
    """Scores by combinations of the columns of all sites."""
    U = vectors[0].T
    parts = Parts.of(rounds, U)
    components = (U @ parts.vectors.T) @ parts.V * known[:, None]
    return LinearScores(parts.mean, of_unit_length(components, np.linalg.norm(components, axis=1)))


# -------------------------------------------------------------------- secure sums


@secure_work.register
def _(estimator: VerticalFederatedKernelPCA, secure: SecureAggregation) -> dict[str, Task]:
    why = ": the vectors of the sites' own kernels do not add up"
    check_needed(estimator, "aggregation", "exact", why)
    why = ": a combination of columns is the sites' parts side by side, which is no sum"
    check_needed(estimator, "projection", "samples", why)

    def squares(X):
        return np.square(client_of(estimator, X, np.arange(len(X)), X.shape[1]).rows).sum()

    def grids(bounds):
        # |x - y|^2 <= 2 |x|^2 + 2 |y|^2, both of which are in the scatter
        return {"part": Grid(int(bounds.scatter[0]) + 1)}

    part = site_work(estimator)["kernel_part"]
    return {**keys_and_bounds(squares), "kernel_part": replace(part, grids=grids)}
