"""A thread that looks at its GPU again and again is inside a wait for it, whatever its Python code says; one that works is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rankscope.observer.tables.driver_spin import spun_s
from rankscope.observer.tables.raw import RawProcess
from rankscope.probes.bpf import ring

WINDOW_S, START_NS, HZ, TID = 8.0, 5_000_000_000, 99.0, 701
DRIVER, OTHER, CLOCK, VDSO = 0x7F00_0000_1000, 0x7F00_0000_2000, 0x7F00_0000_3000, 0x7FFF_0000_1000
KERNEL = 0xFFFF_FFFF_8100_0000


def raw(places: list[int], tid: int = TID) -> RawProcess:
    """A thread that is sampled all the time, at these instruction pointers, spread over the window."""
    events = np.zeros(len(places), ring.EVENT)
    events["type"], events["tid"], events["tgid"] = ring.SAMPLE, tid, tid
    events["arg"] = np.array(places, dtype=np.uint64).astype(events["arg"].dtype)
    events["ts_ns"] = START_NS + ((np.arange(len(places)) + 0.5) / len(places) * WINDOW_S * 1e9).astype(np.int64)
    return RawProcess(
        pid=TID, start_ns=START_NS, window_s=WINDOW_S, events=events, open_absences={}, open_calls=[], python_tids=frozenset({TID}),
        stacks={}, devices={}, throttled_s=0.0, hz=HZ, native={},
        libraries={DRIVER: "libcuda.so.580.159.04", OTHER: "libtorch_cpu.so", CLOCK: "libc.so.6"},
    )  # fmt: skip


def test_who_runs_in_the_driver_alone_waits_since_it_last_ran_elsewhere() -> None:
    assert spun_s(raw([DRIVER] * 792), TID) == WINDOW_S
    assert spun_s(raw([OTHER] * 198 + [DRIVER] * 594), TID) == pytest.approx(6.0, abs=0.02)


def test_the_clock_that_the_driver_reads_ends_no_wait() -> None:
    turn = [DRIVER] * 13 + [VDSO] * 3  # as on an H100
    assert spun_s(raw([*(turn * 24), CLOCK, KERNEL, *(turn * 24), CLOCK]), TID) == WINDOW_S


@pytest.mark.parametrize("places", [[VDSO] * 792, [CLOCK, KERNEL] * 396, [CLOCK] * 500 + [DRIVER] * 292])
def test_who_reads_clocks_waits_for_no_gpu(places: list[int]) -> None:
    assert spun_s(raw(places), TID) == 0.0


@pytest.mark.parametrize("places", [[], [OTHER] * 792, [DRIVER, OTHER] * 396, [DRIVER] * 15, [DRIVER] * 100])
def test_who_works_or_is_hardly_seen_does_not(places: list[int]) -> None:
    assert spun_s(raw(places), TID) < 0.1


def test_other_threads_and_unknown_places_say_nothing() -> None:
    assert spun_s(raw([DRIVER] * 792, tid=702), TID) == 0.0
    assert spun_s(replace(raw([DRIVER] * 792), libraries={}), TID) == 0.0
