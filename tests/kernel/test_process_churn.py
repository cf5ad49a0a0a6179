"""Ten thousand short-lived processes a minute below a rank: nothing is lost, and nothing grows."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from rankscope.observer.live import process_watch
from rankscope.observer.live.kernel_probes import KernelProbes
from rankscope.observer.live.observation import Observation
from rankscope.observer.live.process_watch import TRAINING
from rankscope.probes.bpf.counters import COUNTERS

SECONDS, A_SECOND = 9, 170
FULL = {name for name in COUNTERS if name.endswith("_full")}
CHURN = """
    import os, sys, time
    seconds, hz = int(sys.argv[1]), int(sys.argv[2])
    print("ready", flush=True); sys.stdin.readline()
    began, done = time.monotonic(), 0
    while (spent := time.monotonic() - began) < seconds:
        while done < spent * hz:
            child = os.fork()
            if not child:
                end = time.monotonic() + 0.02
                while time.monotonic() < end and done % 3: pass  # one in three ends at once
                os._exit(0)
            done += 1
        try:
            while os.waitpid(-1, os.WNOHANG)[0]: pass
        except ChildProcessError: pass
        time.sleep(0.001)
    try:
        while os.wait(): pass
    except ChildProcessError: pass
    print(done, flush=True); sys.stdin.readline()
"""


def targets(probes: KernelProbes) -> set[int]:
    return {int(key.value) for key, _ in probes.maps["rs_targets"].items()}


def test_a_storm_of_forks_below_a_rank_loses_nothing(
    probes: KernelProbes, program: Callable[..., subprocess.Popen[str]]
) -> None:
    process = program(CHURN, str(SECONDS), str(A_SECOND))
    assert process.stdin is not None
    assert process.stdout is not None
    watch = process_watch.watch(process.pid, process.pid, TRAINING, probes)
    nothing = cast(Any, SimpleNamespace(sample=lambda: None))
    ranks = cast(Any, [SimpleNamespace(pid=process.pid, owner=os.getuid(), cgroup="")])
    running = Observation(ranks, probes, {process.pid: watch}, nothing, nothing, Path("/"), nothing)
    probes.events.drain()
    before, open_before = probes.counted(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    process.stdin.write("go\n")
    process.stdin.flush()
    running.run_until(time.monotonic() + SECONDS + 1)
    assert int(process.stdout.readline()) >= 0.9 * SECONDS * A_SECOND
    counted = {name: count - before[name] for name, count in probes.counted().items()}
    assert {name: count for name, count in counted.items() if count and name in FULL} == {}
    # A child whose memory goes while its stack is walked.
    assert counted["walk_failed"] + counted["walk_stale"] <= 0.02 * counted["walk_ok"]
    assert running.losses() == ()
    running.refresh()
    running.refresh()
    assert len(os.listdir("/proc/self/fd")) <= open_before + 4  # noqa: PTH208
    assert process.pid in targets(probes)
    assert all(Path(f"/proc/{pid}").exists() for pid in targets(probes))
    assert all(one.gone and one.memory is None for one in running.processes.values() if one is not watch)
    probes.forget_process(process.pid, watch.threads)
    watch.close()


def test_a_process_that_ends_is_not_observed_by_its_number_any_more(
    probes: KernelProbes, program: Callable[..., subprocess.Popen[str]]
) -> None:
    """At once, and not when user space hears of it: the number may be another's by then."""
    process = program("import sys\nprint('ready', flush=True); sys.stdin.readline()")
    watch = process_watch.watch(process.pid, process.pid, TRAINING, probes)
    assert process.pid in targets(probes)
    process.kill()
    process.wait()
    time.sleep(0.1)
    assert process.pid not in targets(probes)
    watch.refresh(probes)
    assert watch.gone
    watch.close()
