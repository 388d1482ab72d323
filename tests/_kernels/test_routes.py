"""Which rows go through one scatter matrix: what was measured, and that no row is lost."""

import numpy as np
import pytest

from fedpca_sklearn import StreamingPCA, excess_error, make_power_law
from fedpca_sklearn._kernels.routes import block_slices, scatter_pays


@pytest.mark.parametrize(
    ("n", "d", "k", "pays"),
    [
        # one core, excess about 1e-5 by updates: .12 s beside .26, .18 beside .20, 1.0 beside .30
        (10_000, 400, 15, True),
        (10_000, 1_000, 45, True),
        (10_000, 2_000, 45, False),
        (300, 400, 15, False),  # not above the number of rows
        (10**6, 2_049, 2_000, False),  # not above 32 MB
    ],
)
def test_the_choice_is_that_of_the_stopwatch(n, d, k, pays):
    assert scatter_pays(n, d, k) == pays


@pytest.mark.parametrize("n", [1, 399, 4_000, 41_943, 50_000, 84_000])
@pytest.mark.parametrize(("d", "k"), [(400, 15), (400, 400), (3_000, 15), (400, None)])
@pytest.mark.parametrize("sparse", [False, True])
def test_blocks_are_all_rows_in_their_order(n, d, k, sparse):
    at = 0
    for block in block_slices(n, d, k, sparse):
        assert block.start == at < block.stop
        at = block.stop
    assert at == n


def test_a_call_with_many_rows_is_exact_where_that_costs_less():
    X = make_power_law(6_000, 400, alpha=1.0, random_state=0)
    pca = StreamingPCA(5).fit(X)
    assert excess_error(X, pca.components_) < 1e-12
    assert pca.subspace_.n_components == 15
    pca.partial_fit(X[:300])  # few rows are an update
    assert excess_error(np.concatenate([X, X[:300]]), pca.components_) < 1e-4
