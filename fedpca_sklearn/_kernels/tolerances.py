"""Tolerances that several files share, and where they come from; eps is 2.2e-16 in float64.

Those of one algorithm stand beside it.
"""

from __future__ import annotations

import numpy as np

# ---------------------------------------------------------------- orthonormal rows, |V V^T - I|

# A basis that was computed here and is off by more is computed in another way. By a Gram matrix a
# direction is off by up to eps (s_1 / s)^2: s above 1.5e-3 s_1 pass, in float32 above .11 s_1.
ORTHONORMALITY_TOL = {np.dtype(np.float64): 1e-10, np.dtype(np.float32): 1e-5}
# A summary is refused whose basis is off by more, or whose squared singular values exceed its
# scatter by such a share: variances along a basis are wrong by about as much as it is off.
VALID_BASIS_TOL = {np.dtype(np.float64): 1e-7, np.dtype(np.float32): 1e-4}
# A basis in float64 that a caller or a server gives: eight eps of float32, in which it may have
# been stored; this leaves about 3e-8.
GIVEN_BASIS_TOL = 1e-6

# ---------------------------------------------------------------- what is a rounding error

# Singular values up to so many eps of the largest: n roundings add up to about sqrt(n) eps, and
# stacks of up to 1024 rows are decomposed at once. Ranks of 1000 x 1000 products leave 5 eps.
RANK_EPS = 32
# Eigenvalues of a Gram or scatter matrix up to this share of the largest: 45 eps, as RANK_EPS
# rounded up. Singular values below 1e-7 of the largest are lost with them.
GRAM_ROUNDING = 1e-14
# The same for matrices that are results of several steps: kernels that are centred, means of
# projections that are added one at a time. As in scikit-learn's check of kernel matrices.
EIGENVALUE_ROUNDING = 1e-12

# ---------------------------------------------------------------- coordinates of rows with holes
# A is the part of a basis at a row's entries, l the least eigenvalue of A^T A, at most 1. The
# coordinates amplify the variance of noise by up to 1 / l, their gain.

# Eigenvalues up to this determine nothing: in float64 the coordinates lose ten of 16 digits.
UNDETERMINED = 1e-10
# Least squares by the SVD of A lose as many digits at these singular values, over the largest.
UNDETERMINED_RCOND = 1e-10
# Rows up to this gain count in a tracker's variances: noise 20 dB below the signal then adds at
# most 10 % to a row's variance.
MAX_GAIN_IN_VARIANCES = 10.0
# Rows up to this gain count in the r-SVD of STMiss, whose filled entries need only point the right
# way: noise 60 dB below the signal is then as large as it.
MAX_GAIN_IN_SVD = 1e3

# ---------------------------------------------------------------- outliers

# Robust standard deviations that an outlier exceeds: one of 5e8 normal entries does.
OUTLIER_DEVIATIONS = 6.0
