"""How much CPU ranks want."""

from __future__ import annotations

import numpy as np

from rankscope.diagnose.fleet.model import Fleet
from rankscope.probes.arrays import Floats, Ints


def wanted_s(fleet: Fleet, ranks: Ints) -> Floats:
    """CPU seconds of the window of each of these ranks (rows), its loaders with it; NaN where they are not counted."""
    counters = fleet.counters
    return counters.total("cpu.process_run_s", ranks) + np.nan_to_num(counters.total("cpu.workers_run_s", ranks))
