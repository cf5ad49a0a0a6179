"""The NumPy array types that every layer shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Singles = npt.NDArray[np.float32]  # for millions of values that are compared, not added up
Reals = npt.NDArray[np.floating[Any]]  # single or double precision
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
