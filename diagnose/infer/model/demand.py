"""CPU time that ranks want."""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.probes.base.arrays import Floats, Ints


def wanted_s(fleet: Fleet, ranks: Ints) -> Floats:
    """CPU seconds of each rank (row) with its loaders, in the window; NaN where not counted."""
    counters = fleet.counters
    return counters.total("cpu.process_run_s", ranks) + np.nan_to_num(counters.total("cpu.workers_run_s", ranks))
