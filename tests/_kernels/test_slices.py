"""Rows a block at a time."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from rounds_helpers import examples

from fedpca_sklearn._kernels.sizes import row_slices, rows_within, slices_of


@examples
@given(n=st.integers(0, 50), size=st.integers(1, 60))
def test_slices_are_the_parts_of_a_list_in_order(n, size):
    things = list(range(n))
    parts = [things[part] for part in slices_of(n, size)]
    assert [thing for part in parts for thing in part] == things
    assert all(len(part) == size for part in parts[:-1])
    assert all(1 <= len(part) <= size for part in parts)


@examples
@given(
    n=st.integers(0, 50),
    d=st.integers(0, 50),
    entries=st.integers(1, 300),
    least=st.integers(1, 5),
)
def test_slices_of_rows_hold_a_bounded_number_of_entries(n, d, entries, least):
    X = np.arange(n * d).reshape(n, d)
    parts = [X[rows] for rows in row_slices(n, d, entries, least)]
    assert np.array_equal(np.concatenate([X[:0], *parts]), X)
    for part in parts:
        assert len(part) <= least or part.size <= entries
    for part in parts[:-1]:  # one row more would be too much
        assert len(part) == rows_within(d, entries, least)
        assert (len(part) + 1) * max(d, 1) > entries
