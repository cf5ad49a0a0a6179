"""Detect a thread that waits for its GPU by polling, as CUDA does by default, and never sleeps.
Pure.

A thread that entered such a wait before observation began makes no call and leaves no CPU, and its
Python code does not change: only its samples show it. They lie in the driver's library, and in what
that calls for the time: on an H100 81 % in libcuda, 17 % in the kernel's vdso, 1 % in the C
library. A kernel launch is over in microseconds; seconds there, and in no other library, are a
wait.
"""

from __future__ import annotations

import numpy as np

from rankscope.observer.tables.raw import RawProcess
from rankscope.probes.bpf import ring
from rankscope.probes.elf.c_library import is_c_library

_DRIVERS = ("libcuda.so", "libamdhip64.so", "libhsa-runtime64.so")
_LEAST_SAMPLES = 20
_LEAST_SAMPLED = 0.5  # share of the samples of a thread that runs all the time


def spun_s(raw: RawProcess, tid: int) -> float:
    """Return the seconds until the window's end that a thread ran only in the driver's library and
    its callees; else 0.

    Samples in no file (vdso, kernel, generated code) and in the C library belong to their caller:
    they neither end nor make a wait.
    """
    mine = raw.of_thread(tid)
    mine = mine[mine["type"] == ring.SAMPLE]
    if len(mine) < _LEAST_SAMPLES or tid in raw.open_absences:
        return 0.0
    mine = mine[np.argsort(mine["ts_ns"], kind="stable")]
    places = [raw.libraries.get(int(at), "") for at in mine["arg"].astype(np.uint64)]
    inside = np.array([place.startswith(_DRIVERS) for place in places], dtype=bool)
    neither = np.array([not place or is_c_library(place) for place in places], dtype=bool)
    outside = np.flatnonzero(~inside & ~neither)
    last = int(outside[-1]) if len(outside) else -1
    since_s = float(raw.since_start_s(mine["ts_ns"][last : last + 1])[0]) if last >= 0 else 0.0
    count, spun = int(np.count_nonzero(inside[last + 1 :])), max(raw.window_s - since_s, 0.0)
    return spun if count >= max(_LEAST_SAMPLES, _LEAST_SAMPLED * raw.hz * spun) else 0.0
