"""Symmetric matrices, as processes have them."""

from __future__ import annotations

import numpy as np
from scipy import linalg

from convscope.prediction.shapes.sizes import Floats


def inverse(likeness: Floats) -> Floats:
    """Return the inverse of a symmetric matrix whose eigenvalues are above 0, by its Cholesky factor."""
    factor = linalg.cholesky(likeness, lower=True)
    found: Floats = np.asfortranarray(linalg.lapack.dpotri(factor, lower=1, overwrite_c=1)[0])  # type: ignore[attr-defined]
    for row in range(len(found)):  # of which only the lower half is written
        found[row, row + 1 :] = found[row + 1 :, row]
    return np.asarray(found, dtype=np.float64)
