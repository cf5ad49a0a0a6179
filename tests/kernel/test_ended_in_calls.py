"""Threads that end in a call leave it in the kernel's map: of each process so many, and not for ever."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bare_probes import Observed, load

from rankscope.probes.bpf import ring
from rankscope.probes.bpf.counters import COUNTERS
from rankscope.probes.calls import in_progress
from rankscope.probes.calls.probe import CallProbe
from rankscope.probes.calls.table import CallRow

pytestmark = pytest.mark.beside(ranks=False)

Start = Callable[..., "subprocess.Popen[str]"]
EACH = 16
LIBRARY = """
#include <sys/syscall.h>
#include <unistd.h>
int rs_lab_call(int end) { if (end) syscall(SYS_exit, 0); return usleep(1000); }
"""
TABLE = (CallRow("librslab", "rs_lab_call", "call", "collective", 1),)
CALLER = """
    import ctypes, sys, threading
    call, threads, calls = ctypes.CDLL(sys.argv[1]).rs_lab_call, int(sys.argv[2]), int(sys.argv[3])
    print("ready", flush=True)
    while sys.stdin.readline():
        for _ in range(threads): threading.Thread(target=call, args=(1,), daemon=True).start()
        for _ in range(calls): call(0)
        print("done", flush=True)
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    made = tmp_path / "librslab.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, "-xc", "-"], input=LIBRARY, text=True, check=True)
    return made


@pytest.fixture
def observed() -> Iterator[Observed]:
    found = load(TABLE, RS_CALLS_EACH=EACH)
    yield found
    found.close()


def _go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"
    time.sleep(0.05)


def _told(observed: Observed, pid: int) -> int:
    events = observed.ring.drain()
    return int(((events["type"] == ring.CALL) & (events["tgid"] == pid)).sum())


def _open(observed: Observed) -> dict[int, int]:
    return {int(key.value): int(number.value) for key, number in observed.module.maps["rs_calls_open"].items()}


def test_a_process_whose_threads_end_in_calls_takes_its_own_share_until_they_are_taken_out(
    program: Start, observed: Observed, library: Path
) -> None:
    ending, honest = program(CALLER, str(library), "57", "7"), program(CALLER, str(library), "0", "31")
    probe = CallProbe(observed.module, TABLE)
    probe.watch([ending.pid, honest.pid])
    assert probe.notes == []
    observed.watch(ending.pid)
    observed.watch(honest.pid)
    _go(ending)
    _go(honest)
    assert _told(observed, honest.pid) == 31
    counted = dict(observed.module.counters(COUNTERS))
    assert (counted["call_share_full"], counted["call_map_full"]) == (57 - EACH + 7, 0)
    assert _open(observed)[ending.pid] == len(observed.module.maps["rs_calls"].items()) == EACH

    assert in_progress.take_out_ended(observed.module.maps) == EACH
    assert not _open(observed)
    ending.communicate(timeout=60)
    assert not observed.module.maps["rs_calls"].items()


def test_calls_that_return_are_not_counted(program: Start, observed: Observed, library: Path) -> None:
    process = program(CALLER, str(library), "0", str(5 * EACH))
    probe = CallProbe(observed.module, TABLE)
    probe.watch([process.pid])
    observed.watch(process.pid)
    _go(process)
    assert _told(observed, process.pid) == 5 * EACH
    assert not any(_open(observed).values())
    assert dict(observed.module.counters(COUNTERS))["call_share_full"] == 0
