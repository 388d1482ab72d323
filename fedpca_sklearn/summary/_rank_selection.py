"""How many components a summary has: parallel analysis, entries held out, Minka's evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import gammaln
from sklearn.utils import check_random_state

from .._kernels.sizes import SMALL_DIMENSION, slices_of
from .._kernels.threads import TINY_CALL, threads_for
from .._validation.arrays import in_numpy
from .._validation.checks import is_integer, is_real
from ._adjusted import scatter_of_columns
from ._subspace import Subspace
from ._updating import lacks_directions

# Power of a share of rows that components of new rows lose: two for the coefficients of a column,
# one as the leading variances of a sample are too large.
_POWER = 3
# Noise in an entry that counts as none, as a share of the mean variance.
_NO_NOISE = 1e-12
# As in scikit-learn: a variance below this is none, and the noise has at least as much.
_LEAST = 1e-15
_EPS = np.finfo(np.float64).eps
# Entries of the matrices of draws that are made at once: 32 MB.
_ENTRIES = 2**22


# The rule's name, as ``n_components``.
HELD_OUT = "held-out"


def held_out_errors(subspace: Subspace, n_rows: float, most: int) -> np.ndarray:
    """Squared error of entries held out, by the number of components, from 0 to at most ``most``.

    The mean of an entry given the others of its row in probabilistic PCA of r components is off by
    ``(P x)_j / P_jj``, with the inverse P of the model's covariance. So the sum of squares over all
    rows of a summary is ``(P S P)_jj / P_jj^2``, for all r in O(k d) from the k directions. It is
    divided by ``(1 - (r + 1) / n)^3``, as these rows have made the model.

    Parameters
    ----------
    subspace : Subspace
    n_rows : float
        Rows that say as much of two columns as those of the summary.
    most : int

    Returns
    -------
    errors : ndarray of shape (m,)
        In a unit of the summary.
    """
    columns = _scatter_of_columns(subspace)
    used = columns > 0  # a constant column is predicted by its mean
    columns, d = columns[used], max(1, int(np.count_nonzero(used)))
    unit = float(columns.sum()) / d or 1.0
    columns = columns / unit
    variances = (subspace.singular_values / np.sqrt(unit)) ** 2
    last = min(most, len(variances), d - 1, int(np.ceil(n_rows)) - 2)
    variances = variances[: max(last, 0)]
    variances = variances[variances > _NO_NOISE * d]
    squares = subspace.components[: len(variances), used].astype(np.float64) ** 2

    def summed(terms: np.ndarray) -> np.ndarray:
        return np.cumsum(np.concatenate([np.zeros((1, len(columns))), terms]), axis=0)

    r, values = np.arange(len(variances) + 1), variances[:, None]
    beyond = np.maximum(columns - summed(values * squares), 0.0)
    noise = np.maximum(beyond.sum(axis=1) / (d - r), _NO_NOISE)[:, None]
    inside = noise * summed(squares / values)
    outside = np.maximum(1 - summed(squares), 0.0)
    off = (noise * inside + beyond) / np.maximum(inside + outside, _NO_NOISE) ** 2
    return off.sum(axis=1) / np.maximum(1 - (r + 1) / n_rows, _NO_NOISE) ** _POWER


def _scatter_of_columns(subspace: Subspace) -> np.ndarray:
    """Sum of squares of each column; where it is not known what was cut is alike in all."""
    if subspace.column_scatter is not None:
        return subspace.column_scatter
    rows = subspace._rows
    cut = max(subspace.scatter - float(np.sum(subspace.singular_values**2)), 0.0)
    return np.einsum("ij,ij->j", rows, rows) + cut / subspace.n_features


def held_out_components(
    subspace: Subspace, n_rows: float | None = None, most: int | None = None
) -> int:
    """Number of components, at least 1, with which entries held out are predicted best."""
    n_rows = subspace.n_samples if n_rows is None else n_rows
    errors = held_out_errors(subspace, n_rows, subspace.n_features if most is None else most)
    return max(1, int(np.argmin(errors)))


# Draws of the null, where an eigenproblem takes a few milliseconds, and where it takes more; and
# where a small level needs more, at most.
_DRAWS, _FEW_DRAWS, _MOST_DRAWS = 99, 19, 999


@dataclass(frozen=True)
class ParallelAnalysis:
    """Result of `parallel_analysis`.

    Attributes
    ----------
    n_components : int
        Leading components whose variances exceed their thresholds; 0 if not even the first does.
    explained_variance : ndarray of shape (m,)
        Variances along the components of the summary.
    thresholds : ndarray of shape (m,)
        Quantile of each variance where columns are independent.
    cut : bool
        Whether the summary lacks directions. Variances of merged summaries that were cut are at
        most those of all rows, so that ``n_components`` may then be too low.
    """

    n_components: int
    explained_variance: np.ndarray
    thresholds: np.ndarray
    cut: bool


def parallel_analysis(
    subspace: Subspace,
    *,
    level: float = 0.05,
    n_draws: int | None = None,
    random_state: Any = 0,
) -> ParallelAnalysis:
    """Count the components that explain more than those of independent columns would.

    The null hypothesis is that of Horn (1965): as many normal rows, whose columns are independent
    and have the variances of the data's columns. A component counts while its variance, and that of
    each before it, exceeds the (1 - level) quantile of the same eigenvalue under the null, as
    Glorfeld (1995) proposed; Horn took the mean. The null needs the number of rows and the
    variances of the columns, and no row, so that sites, files and streams give the number of the
    pooled rows.

    Parameters
    ----------
    subspace : Subspace
        Summary of all rows, for instance ``subspace_`` of an estimator.
    level : float in (0, 1), default=0.05
        Probability that a first component is found where columns are independent and normal, over
        draws of many seeds.
    n_draws : int, default=None
        Draws of the null; with ``level`` at least one must be expected above the threshold:
        ``level * (n_draws + 1) >= 1``. None: 99, or 19 where rows and features are more than 256,
        or as many as a level of .001 or more needs.
    random_state : int, RandomState instance or None, default=0
        Seed of the draws. With an integer, everybody finds the same thresholds.

    Returns
    -------
    analysis : ParallelAnalysis
        Number of components, with the variances and thresholds it follows from.

    Raises
    ------
    TypeError
        If ``subspace`` is anything else, such as rows.
    ValueError
        If the summary does not know the variances of its columns, if all directions that it keeps
        count although it lacks some, or if it has the noise of a privacy mechanism.

    See Also
    --------
    FederatedPCA : With ``n_components="parallel"`` shows as many components, at least one.

    Notes
    -----
    A draw is a Wishart matrix of n - 1 degrees of freedom by Bartlett's decomposition, rescaled to
    the variances of the columns. As sample correlations of independent normal columns do not depend
    on sample variances, and the threshold is the k-th smallest of n_draws values, k = ceil((1 -
    level) (n_draws + 1)), the test of the first component has exactly that level where level
    (n_draws + 1) is an integer. That is over seeds. With one seed, as by default, rows of one shape
    and of like variances have the same threshold. The level of that is off by some sqrt(level (1 -
    level) / n_draws), .02 with 99 draws and .05 with 19; with more draws by less. A draw takes time
    O(d^3) and memory O(d^2), with n < d rows O(n^2 d) and O(n d).

    In a summary of standardised columns the null is that of a correlation matrix. What the first
    components explain is in the variances of the columns too, so that weak components beside
    strong ones can be missed. Rows with heavy tails have larger eigenvalues than normal ones, and
    then too many are counted. Weighted rows count by the sum of their weights, as if these were
    numbers of like rows: of unequal weights that are not, noise counts as components.

    References
    ----------
    .. [1] J. Horn, "A rationale and test for the number of factors in factor analysis",
       Psychometrika 30, 1965.
    .. [2] L. Glorfeld, "An improvement on Horn's parallel analysis methodology for selecting the
       correct number of factors to retain", Educational and Psychological Measurement 55, 1995.

    Examples
    --------
    >>> from fedpca_sklearn import Subspace, make_spiked, merge_subspaces, parallel_analysis
    >>> X, _ = make_spiked(600, 20, spikes=[10, 6, 3], random_state=0)
    >>> sites = [Subspace.from_rows(X[i : i + 200]) for i in (0, 200, 400)]
    >>> analysis = parallel_analysis(merge_subspaces(sites))
    >>> analysis.n_components
    3
    >>> analysis.explained_variance[:4].round(2), analysis.thresholds[:4].round(2)
    (array([11.48,  6.35,  3.68,  1.29]), array([3.75, 3.4 , 3.12, 2.91]))
    """
    if not isinstance(subspace, Subspace):
        raise TypeError(
            "subspace must be a Subspace, such as Subspace.from_rows(X) or subspace_ of an "
            f"estimator, got {type(subspace).__name__}."
        )
    if not (is_real(level) and 0 < level < 1):
        raise ValueError(f"level must be in (0, 1), got {level!r}.")
    least = np.ceil(1 / level - 1e-9) - 1
    if not (least <= _MOST_DRAWS if n_draws is None else is_integer(n_draws) and n_draws >= least):
        raise ValueError(
            f"n_draws must be an integer of at least {least:.0f} with level={level!r}, got "
            f"{n_draws!r}."
        )
    subspace = in_numpy(subspace)
    _refuse_noise(subspace, "parallel")
    columns = scatter_of_columns(subspace) / (subspace.degrees_of_freedom or 1.0)
    columns = columns[columns > 0]
    rows = max(1, round(subspace.n_samples - subspace.centered))
    if n_draws is None:
        usual = _DRAWS if min(rows, len(columns)) <= SMALL_DIMENSION else _FEW_DRAWS
        n_draws = max(usual, int(least))
    seed = check_random_state(random_state).randint(2**31 - 1)
    with threads_for(16 * min(rows, len(columns)) ** 2, TINY_CALL):
        draws = null_variances(columns, rows, n_draws, np.random.default_rng(seed))
    at = int(np.ceil((1 - level) * (n_draws + 1) - 1e-9)) - 1
    size = min(subspace.n_components, draws.shape[1])
    thresholds = np.sort(draws, axis=0)[at, :size]
    variances = subspace.explained_variance[:size]
    found = int(np.argmin(np.append(variances > thresholds, False)))
    cut = lacks_directions(subspace)
    if cut and found == size:
        raise ValueError(
            f"The summary keeps {size} directions, all of which parallel analysis counts. A "
            "summary must keep more than there are components."
        )
    return ParallelAnalysis(found, variances, thresholds, cut)


def n_components_by(rule: str, subspace: Subspace) -> int:
    """Number of components by "parallel", "held-out" or "mle", at least 1."""
    _refuse_noise(subspace, rule)
    if rule == "mle":
        return _minka_components(subspace)
    if rule == "held-out":
        return held_out_components(in_numpy(subspace))
    return max(1, parallel_analysis(subspace).n_components)


def _minka_components(subspace: Subspace) -> int:
    """Number of components with the most evidence, as scikit-learn's PCA("mle") of all rows."""
    n, d = subspace.n_samples, subspace.n_features
    if n < d:
        raise ValueError(
            "n_components='mle' is only supported if n_samples >= n_features, got "
            f"n_samples={n:g} and n_features={d}."
        )
    if lacks_directions(subspace):
        raise ValueError(
            "n_components='mle' needs the variances along all directions, and the summary keeps "
            f"{subspace.n_components} of {d}."
        )
    spectrum = np.zeros(d)
    spectrum[: subspace.n_components] = subspace.explained_variance
    return 1 if d == 1 else 1 + int(np.argmax(minka_evidence(spectrum, n)))


def _refuse_noise(subspace: Subspace, rule: str) -> None:
    """Raise if a summary has the noise of a mechanism, which is no part of the rows' variances."""
    if subspace.privacy is not None:
        raise ValueError(
            f"n_components={rule!r} takes variances for those of rows, and this summary has the "
            "noise of a privacy mechanism."
        )


# ------------------------------------------------------------------ evidence, by Minka


def minka_evidence(spectrum: np.ndarray, n_samples: float) -> np.ndarray:
    """Logarithm of the evidence for 1 to d - 1 components, Minka (2000), eq. 30 and 31.

    Parameters
    ----------
    spectrum : ndarray of shape (d,)
        Variances along all d directions, decreasing, d > 1.
    n_samples : float
        Rows that they are from.

    Returns
    -------
    evidence : ndarray of shape (d - 1,)
        As scikit-learn's, in time and memory O(d^2) for all of them: products over pairs of
        directions are sums over a triangle of logarithms. Minus infinity where the last component
        has no variance. Equal variances count as an eps apart.
    """
    d, log_n = len(spectrum), np.log(n_samples)
    evidence = np.full(d - 1, -np.inf)
    last = int(np.sum(spectrum[:-1] >= _LEAST))
    if not last:
        return evidence
    ranks = np.arange(1, last + 1)
    kept, rest = spectrum[:last], np.cumsum(spectrum[::-1])[::-1][1 : last + 1]
    noise = np.maximum(rest / (d - ranks), _LEAST)
    logs, log_noise = np.log(kept), np.log(noise)

    halves = (d - ranks + 1) / 2
    uniform = np.cumsum(gammaln(halves) - np.log(np.pi) * halves - np.log(2.0))
    pairs = d * ranks - ranks * (ranks + 1) / 2
    differences = _log_differences(kept, spectrum)
    within = np.cumsum(np.triu(differences[:, :last], 1).sum(axis=0)) - (ranks - 1) * np.cumsum(
        logs
    )
    from_noise = np.tril(_log_differences(kept, noise).T).sum(axis=1)
    outside = from_noise - np.cumsum(logs)
    curvature = (
        np.cumsum(np.triu(differences, 1).sum(axis=1))
        + within
        + (d - ranks) * (outside - ranks * log_noise)
        + pairs * log_n
    )
    evidence[:last] = (
        uniform
        - n_samples / 2 * (np.cumsum(logs) + (d - ranks) * log_noise)
        + np.log(2 * np.pi) * (pairs + ranks) / 2
        - curvature / 2
        - ranks * log_n / 2
    )
    return evidence


def _log_differences(larger: np.ndarray, smaller: np.ndarray) -> np.ndarray:
    """Logarithms of all differences; equal numbers are an eps apart."""
    least = _EPS * larger[:, None]
    return np.log(np.maximum(larger[:, None] - smaller, least))


# ------------------------------------------------------------------ independent columns


def null_variances(
    column_variances: np.ndarray, degrees_of_freedom: int, n_draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Draw eigenvalues of the covariance of independent normal columns with given variances.

    Parameters
    ----------
    column_variances : ndarray of shape (d,)
        Sample variances of the columns, positive, which every draw has.
    degrees_of_freedom : int
        m, at least 1: of n centred rows n - 1.
    n_draws : int
        Number of draws.
    rng : Generator
        Source of the draws.

    Returns
    -------
    variances : ndarray of shape (n_draws, min(m, d))
        Decreasing in each row. A draw takes O(min(m, d)^2 d) operations and no rows: where m >= d,
        it is Bartlett's triangle of a Wishart matrix. The correlations of independent normal
        columns do not depend on their sample variances, which are then set.
    """
    d, m = len(column_variances), degrees_of_freedom
    order = min(m, d)
    scale = np.sqrt(column_variances)
    found = np.empty((n_draws, order))
    for at in slices_of(n_draws, max(1, _ENTRIES // max(order * d, 1))):
        size = at.stop - at.start
        if m >= d:
            A = np.tril(rng.standard_normal((size, d, d)), -1)
            A[:, np.arange(d), np.arange(d)] = np.sqrt(
                rng.chisquare(float(m) - np.arange(d), (size, d))
            )
        else:
            A = rng.standard_normal((size, d, m))
        A *= (scale / np.linalg.norm(A, axis=2))[..., None]
        products = A @ A.transpose(0, 2, 1) if m >= d else A.transpose(0, 2, 1) @ A
        found[at] = np.linalg.eigvalsh(products)[:, ::-1]
    return np.maximum(found, 0.0)
