"""VFedPCA: an average of the clients' own leading vectors, of Cheung, Jiang, Yu and Lou (2022)."""

from __future__ import annotations

from numbers import Integral

from sklearn.utils._param_validation import StrOptions

from .._validation.intervals import Interval
from ._operators import operator_of
from ._periods import common_vectors
from ._vertical_method import LeftVectors, VerticalMethod

__all__ = ["VFedPCA"]


class VFedPCA(VerticalMethod):
    """Periods of an average of the clients' own leading vectors; few floats.

    Of columns, with `VerticalFederatedPCA`, or of kernels, with `VerticalFederatedKernelPCA`: a
    client is a symmetric matrix A_i, X_i X_i^T or its kernel. The defaults are not those of [1]_:
    with them each period comes nearer to the exact vector. [1]_ as printed is
    ``VFedPCA(weighting="eigenvalue", update="cumulative_columns")``.

    Parameters
    ----------
    local_iterations : int, default=20
        Power iterations at a client in a period; L of [1]_.
    n_rounds : int, default=10
        Periods for each component; T of [1]_.
    warm_start : bool, default=True
        Local iterations start from the last common vector (Algorithm 3).
    weighting : {"projection", "eigenvalue", "eigenvalue_per_column", "equal"}, \
            default="projection"
        How clients' vectors a_i become one. "eigenvalue": sum of w_i a_i with the eigenvalues as
        weights (eq. 13). "eigenvalue_per_column": those over the numbers of columns f_i, as section
        3.2 has A_i. "equal": one each (VFedAvgPCA). "projection" is not in [1]_: the leading vector
        of the sum of w_i a_i a_i^T, with the eigenvalues as weights; the same floats.
    weight_scaling : bool or "ceil", default=False
        Unless weights are equal: those of the half of the clients with the larger ones are raised
        by the share 1 / p, the others lowered (Algorithm 4). Of an odd number p the half is
        floor(p / 2) clients, as in the authors' code, or with "ceil" ceil(p / 2), as eq. 15. With
        neighbours p are those that a client hears, itself included.
    update : {"original", "cumulative", "original_columns", "cumulative_columns"}, \
            default="original"
        What eq. 14 updates after a period. "original": the client's own data, so that later periods
        see all of them again. "cumulative": the data as last updated, as printed. Of kernels these
        two update the data in the kernel's space; "original_columns" and "cumulative_columns"
        update the columns X_i, as printed, and the kernel is computed anew. Of columns there is no
        difference.
    exchange : {"consensus", "neighbours"}, default="consensus"
        Without a server. "consensus": vectors are passed on until each client has all; the result
        is that of a server. "neighbours": once to direct neighbours in each period (Algorithm 5),
        so that each client has a common vector of its own.

    See Also
    --------
    LeftVectorMerge, PowerRounds : Exact methods.

    Notes
    -----
    **Local work.** Power iteration (eq. 5 and 6 of [1]_), and before each period but the first the
    update X_i <- X_i m m^T with m = X_i^T u / |X_i^T u| (eq. 14), of A_i that to A_i u u^T A_i /
    u^T A_i u. It leaves each client one direction. So with "cumulative" vectors hardly change from
    the second period on, and in both a warm start has nothing to start and local iterations matter
    in the first period only. The kernel of updated columns is one of the numbers X_i m, and has
    more than one direction; with "cumulative_columns" m stays as it is from the second period on.
    All clients start from one random vector, and without a warm start do
    so in each period, where Algorithm 2 has one for each client; it makes no difference where local
    iterations have converged.

    **Why the defaults.** With "original", "projection" and no scaling a period takes the leading
    vector v of the sum M of all A_i u u^T A_i / u^T A_i u. No A_i is below its term (Nystroem), and
    u^T M u = u^T A u for A the sum of all A_i. So v^T A v >= v^T M v >= u^T A u: the variance along
    the common vector never falls, and it rests at eigenvectors of A only. An average of vectors
    rests elsewhere. (With neighbours alone, or negative eigenvalues, nothing of it is certain.)

    **Signs.** Eigenvectors have none, and [1]_ does not say what signs eq. 13 adds. Here they are
    those of the leading eigenvector of the products w_i w_j a_i^T a_j, in all topologies: of all
    pairs of clients, or with "neighbours" of all pairs of neighbours, whose products are passed on.
    With "neighbours" the signs of the clients' common vectors u_i are found so from u_i^T u_j in
    the end, as the parts that clients make of them must fit.

    **Near ties.** Where a client's first and second eigenvalue nearly tie, its leading vector may
    be either. The vectors of two clients are then at right angles; their sum lies between them and
    is right for neither, where "projection" follows the heavier.

    **Negative eigenvalues**, of kernels that are not positive semi-definite: a client whose leading
    eigenvalue by size is negative has weight zero.

    **More components.** [1]_ treats the leading vector; here the next ones follow by deflation, X_i
    <- X_i - u u^T X_i from the data as they were. (Its "k + 1 to 2k" could also mean later
    eigenvectors of each client.) In Algorithm 4 weights are eigenvalues, not shares of them; eta is
    then no share either and 1 - eta may be negative, so shares are meant here.

    **Messages.** With a server p (n + 1) floats up and p n down a period and component; one less
    for each client with equal weights. Without, p (p - 1) (n + 1) in any topology with
    "consensus", and with "neighbours" 2 E (n + 1) over E edges and the products, 2 E (p - 1), and
    in the end 2 E n and the products once more for each component.

    References
    ----------
    .. [1] Y. Cheung, J. Jiang, F. Yu, J. Lou, "Vertical federated principal component analysis and
       its kernel extension on feature-wise distributed data", 2022, arXiv:2203.01752.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> from sklearn.decomposition import PCA
    >>> from sklearn.preprocessing import scale
    >>> from fedpca_sklearn import VerticalFederatedPCA, VFedPCA, subspace_distance
    >>> X = scale(load_wine().data)
    >>> exact = PCA(1).fit(X).components_
    >>> pca = VerticalFederatedPCA(1, feature_groups=4, random_state=0)
    >>> for n_rounds in 1, 3, 10:
    ...     for options in {"weighting": "eigenvalue", "update": "cumulative"}, {}:
    ...         pca = pca.set_params(method=VFedPCA(n_rounds=n_rounds, **options)).fit(X)
    ...         print(n_rounds, round(subspace_distance(pca.components_, exact), 4))
    1 0.1292
    1 0.0836
    3 0.0718
    3 0.021
    10 0.0718
    10 0.0002
    """

    _parameter_constraints: dict = {
        "local_iterations": [Interval(Integral, 1, None, closed="left")],
        "n_rounds": [Interval(Integral, 1, None, closed="left")],
        "warm_start": ["boolean"],
        "weighting": [StrOptions({"eigenvalue", "eigenvalue_per_column", "equal", "projection"})],
        "weight_scaling": ["boolean", StrOptions({"ceil"})],
        "update": [
            StrOptions({"cumulative", "original", "cumulative_columns", "original_columns"})
        ],
        "exchange": [StrOptions({"consensus", "neighbours"})],
    }

    def __init__(
        self,
        local_iterations: int = 20,
        n_rounds: int = 10,
        warm_start: bool = True,
        weighting: str = "projection",
        weight_scaling: bool | str = False,
        update: str = "original",
        exchange: str = "consensus",
    ):
        self.local_iterations = local_iterations
        self.n_rounds = n_rounds
        self.warm_start = warm_start
        self.weighting = weighting
        self.weight_scaling = weight_scaling
        self.update = update
        self.exchange = exchange

    def left_vectors(self, federation, clients, rank, rounds=range) -> LeftVectors:
        """Take vectors one after the other; see `VerticalMethod.left_vectors`."""
        operators = [operator_of(client) for client in clients]
        found = common_vectors(self, federation, operators, clients[0].rows.shape[1], rank, rounds)
        return LeftVectors(found.vectors, found.n_iter, found.disagreement, found.own)
