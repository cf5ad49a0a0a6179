"""A thread that waits for its GPU as CUDA does by default: it looks again and again, and never sleeps. Pure.

Who entered such a wait before anybody looked makes no call and leaves no CPU, and its own code is where it was: only its samples tell, as
all of them lie in the library of the driver. A kernel launch is over in microseconds; to be there for seconds is to wait.
"""

from __future__ import annotations

import numpy as np

from rankscope.observer.tables.raw import RawProcess
from rankscope.probes.bpf import ring

_DRIVERS = ("libcuda.so", "libamdhip64.so", "libhsa-runtime64.so")
_LEAST_SAMPLES = 20
_LEAST_SAMPLED = 0.5  # of those that a thread that runs all the while would have


def spun_s(raw: RawProcess, tid: int) -> float:
    """For how many seconds until the window's end a thread has run in the driver's library and nowhere else; 0 where it has not."""
    mine = raw.of_thread(tid)
    mine = mine[mine["type"] == ring.SAMPLE]
    if len(mine) < _LEAST_SAMPLES or tid in raw.open_absences:
        return 0.0
    mine = mine[np.argsort(mine["ts_ns"], kind="stable")]
    inside = np.array(
        [raw.native.get(int(at), "").startswith(_DRIVERS) for at in mine["arg"].astype(np.uint64)], dtype=bool
    )
    outside = np.flatnonzero(~inside)
    last = int(outside[-1]) if len(outside) else -1
    since_s = float(raw.since_start_s(mine["ts_ns"][last : last + 1])[0]) if last >= 0 else 0.0
    count, spun = len(mine) - 1 - last, max(raw.window_s - since_s, 0.0)
    return spun if count >= max(_LEAST_SAMPLES, _LEAST_SAMPLED * raw.hz * spun) else 0.0
