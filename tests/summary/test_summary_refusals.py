"""What no summary can be, or take, is named and changes nothing.

Each line has a value, a call of it, and words of the error. Fields that do not fit together are in
test_subspace.py, files of strangers in test_codec.py.
"""

from io import StringIO

import numpy as np
from golden_cases import NAMES
from helpers import assert_refused
from summary_helpers import fields_of, make_rows

from fedpca_sklearn import Subspace

S, T = Subspace.from_rows(make_rows(20, 5)), Subspace.from_rows(make_rows(9, 5))
ORIGIN = Subspace.from_rows(make_rows(9, 5), center=False)
VALUES = {
    **NAMES,
    "nan": float("nan"),
    "inf": float("inf"),
    "ones": np.ones,
    "StringIO": StringIO,
    "S": S,
    "TWO": [S, T],
    "ORIGIN": ORIGIN,
    "FIVE": fields_of(S, "column_scatter"),
    "ABOUT_ZERO": fields_of(ORIGIN, "centered"),
}
FEW = "must be an integer from 0 to"
TABLE = f"""
Subspace | from_rows(ones((2, 5)), -1) | n_components must | got -1
S | update(ones((2, 5)), -40) | n_components must | got -40
S | truncate(-1) | n_components must | got -1
S | update(ones((2, 6))) | X has 6 features, expected 5
S | update(np.full((2, 5), nan)) | X contains NaN
S | update(np.full((2, 5), inf)) | X contains infinity
S | update(ones((0, 5))) | 0 sample
S | update(ones(5)) | Expected 2D array
S | update(ones((2, 5)), forgetting_factor=0) | forgetting_factor | got 0
S | update(ones((2, 5)), sample_weight=[1, -1]) | sample_weight
S | update(ones((2, 5)), sample_weight=[1]) | ample_weight
S | update(ones((2, 5)), sample_weight=[1, nan]) | NaN
S | decay(-0.5) | weight | got -0.5
S._replace(n_samples=1e300) | decay(1e10) | weight=10000000000.0 is too large
Subspace | empty(0) | n_features | got 0
Subspace | from_estimator(PCA()) | PCA has no components_
Subspace | from_estimator(object()) | object has no components_
merge_subspaces | __call__([]) | subspaces must | at least one Subspace, got none
merge_subspaces | __call__(Subspace.empty(3)) | a sequence of Subspace objects, got one Subspace
merge_subspaces | __call__([np.eye(3)]) | subspaces must be Subspace objects, got ndarray
merge_subspaces | __call__(3) | subspaces must be a sequence of Subspace objects, got one int
merge_subspaces | __call__([S, Subspace.empty(4)]) | subspaces[1] has 4 features | 5
merge_subspaces | __call__([S, ORIGIN]) | all centred or all not
merge_subspaces | __call__(TWO, method="svdd") | method must be | 'gram' | got 'svdd'
merge_subspaces | __call__(TWO, method=["svd"]) | method must be | 'gram' | got ['svd']
merge_subspaces | __call__(TWO, -1) | n_components must be | got -1
merge_subspaces | __call__(TWO, 1.5) | n_components must be | got 1.5
merge_subspaces | __call__(TWO, nan) | n_components must be | got nan
merge_subspaces | __call__(TWO, "mle") | n_components must be | got 'mle'
merge_subspaces | __call__(TWO, weights=[1.0]) | weights must | 2 subspaces, got 1
merge_subspaces | __call__(TWO, weights=[1.0, -1.0]) | weights must be non-negative
merge_subspaces | __call__(TWO, weights=[1.0, nan]) | weights must be finite
merge_subspaces | __call__(TWO, weights=1.0) | weights must | 1-D
merge_subspaces | __call__(TWO, weights=["one", 2]) | weights must be real numbers, got ['one', 2]
merge_subspaces | __call__(TWO, weights={{"a": 1}}) | weights must be real numbers, got {{'a': 1}}
SubspaceMerge("svdd") | merge(TWO) | 'method' | must be | 'gram' | Got 'svdd'
SubspaceMerge(fan_in=2.5) | merge(TWO) | 'fan_in' | must be | Got 2.5
Subspace | __call__(**FIVE, model=(6, False, (), 0.0)) | model.n_components {FEW} 5, got 6
Subspace | __call__(**FIVE, model=(-1, False, (), 0.0)) | model.n_components
Subspace | __call__(**FIVE, model=(nan, False, (), 0.0)) | model.n_components
Subspace | __call__(**FIVE, model=(4, False, (0, 1), 0.0)) | model.n_components {FEW} 3, got 4
Subspace | __call__(**FIVE, model=(3, 2, (), 0.0)) | model.scale must be True or False, got 2
Subspace | __call__(**FIVE, model=(3, False, (5,), 0.0)) | model.partial_out {FEW} 4, got 5
Subspace | __call__(**FIVE, model=(3, False, (1, 1), 0.0)) | model.partial_out must hold none of 5 columns twice
Subspace | __call__(**FIVE, model=(3, False, (), nan)) | model.error_bound
Subspace | __call__(**FIVE, model=(3, False, ())) | model must be
Subspace | __call__(**ABOUT_ZERO, model=(2, True, (), 0.0)) | centered=True
Subspace | __call__(**FIVE, feature_names=("a", "b")) | feature_names must be 5 strings, got 2
Subspace | __call__(**FIVE, feature_names=(1, 2, 3, 4, 5)) | feature_names must be 5 strings
Subspace | __call__(**FIVE, feature_names=tuple("abacd")) | feature_names must differ, got 'a' twice
Subspace | __call__(**FIVE, site="a", sites=["a", "b"]) | site='a' must be the only one of sites
Subspace | __call__(**FIVE, sites="north") | sites must be a collection
Subspace | __call__(**FIVE, sites=["north", 5]) | sites must be strings, got 5
Subspace | __call__(**FIVE, site=5) | site must be a string or None, got 5
Subspace | __call__(**FIVE, sites=map(str, range(65536))) | sites must be at most 65535, got 65536
Subspace | empty(2**20 + 1)._named([str(i) for i in range(2**20 + 1)]).to_bytes() | at most 1048576 in a file, got 1048577
Subspace | load(StringIO("text")) | data must be bytes-like, got str
Subspace | __call__(**FIVE, privacy=(1.0, 2.0, 3.0)) | privacy must be
Subspace | __call__(**FIVE, privacy=(nan, 1e-5, 3.0, "A", "client")) | privacy.epsilon
Subspace | __call__(**FIVE, privacy=(1.0, 2.0, 3.0, "A", "client")) | privacy.delta
Subspace | __call__(**FIVE, privacy=(1.0, 1e-5, -3.0, "A", "client")) | privacy.row_norm
Subspace | __call__(**FIVE, privacy=(1.0, 1e-5, 3.0, 7, "client")) | privacy.mechanism
Subspace | __call__(**FIVE, privacy=(1.0, 1e-5, 3.0, "A\\x1b", "client")) | privacy.mechanism
"""  # noqa: E501


def test_what_cannot_be_is_named_and_changes_nothing():
    assert_refused(TABLE, VALUES)
