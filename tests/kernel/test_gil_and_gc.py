"""Seconds waited for the GIL, and seconds in garbage collection, against what the programs themselves measured."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rankscope.observer.live import kernel_probes, process_watch
from rankscope.observer.live.kernel_probes import KernelProbes
from rankscope.observer.live.process_watch import TRAINING
from rankscope.observer.tables.rank import find_rank
from rankscope.observer.tables.raw import RawProcess
from rankscope.observer.thread.patterns import MeasuredPattern
from rankscope.probes.bpf import ring
from rankscope.probes.calls.table import CALL_TABLE
from rankscope.unwinder.names.native import NativeNames

pytestmark = pytest.mark.beside(ranks=False)

Start = Callable[..., "subprocess.Popen[str]"]
HZ = 199


def interpreters() -> list[str]:
    """One program per minor version: the running one, the distribution's, and what pyenv has."""
    found = {sys.executable: None}
    for folder in sorted((Path.home() / ".pyenv/versions").glob("3.*")):
        if int(folder.name.split(".")[1]) >= 8:
            found[str(folder / "bin/python")] = None
    return [path for path in found if Path(path).exists()]


@pytest.fixture(scope="module")
def probes() -> Iterator[KernelProbes]:
    loaded = kernel_probes.load(hz=HZ)
    yield loaded
    loaded.close()


def observe(probes: KernelProbes, process: subprocess.Popen[str]) -> tuple[MeasuredPattern, ...]:
    """Lets the program go, observes it until it has said something, and returns all its threads' patterns."""
    watch = process_watch.watch(process.pid, process.pid, TRAINING, probes)
    assert watch.reason == ""
    probes.events.drain()
    start_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    batches, stacks = [], {}
    end = time.monotonic() + 20.0
    talked = False
    while time.monotonic() < end and not talked:
        talked = bool(select.select([process.stdout], [], [], 0.1)[0])
        time.sleep(0.15 if talked else 0.0)  # its last absence ends
        watch.refresh(probes)
        events = probes.events.drain()
        events = events[events["tgid"] == process.pid]
        for identity in np.unique(events["stack"]).tolist():
            raw = probes.stack(identity) if identity and identity not in stacks else None
            if raw is not None:
                stacks[identity] = watch.name_stack(raw)
        batches.append(events)
    events = np.concatenate(batches)
    seconds = (time.clock_gettime_ns(time.CLOCK_MONOTONIC) - start_ns) / 1e9
    pointers = np.unique(events["arg"][events["type"] == ring.SAMPLE]).astype(np.uint64)
    natives = NativeNames()
    tids = frozenset(watch.states.values())
    raw_process = RawProcess(
        pid=process.pid, start_ns=start_ns, window_s=seconds, events=events, open_absences={}, open_calls=(),
        python_tids=tids, stacks=stacks, devices={}, throttled_s=0.0, hz=HZ,
        thread_states=watch.states, thread_names={tid: "the main thread" if tid == process.pid else "a thread" for tid in tids},
        native=natives.names(process.pid, pointers),
    )  # fmt: skip
    natives.close()
    rows = find_rank(raw_process, CALL_TABLE)
    probes.forget_process(process.pid, watch.threads)
    watch.close()
    return (*rows.training, *rows.others)


def said(process: subprocess.Popen[str]) -> dict[str, float]:
    assert process.stdout is not None
    return dict(json.loads(process.stdout.readline()))


GIL_HOG = """
    import json, sys, threading, time
    print("ready", flush=True); sys.stdin.readline()
    stop = False
    def hog():
        while not stop: pass
    def work():
        # Each sleep lets go of the GIL, and getting it back takes a switch interval while the hog runs.
        waited = 0.0
        for _ in range(101):
            since = time.perf_counter()
            time.sleep(0.001)
            waited += time.perf_counter() - since - 0.001
        return waited
    thread = threading.Thread(target=hog, daemon=True)
    thread.start()
    waited = work()
    stop = True
    thread.join()
    print(json.dumps({"waited": waited}), flush=True)
    while True: time.sleep(0.05)
"""


@pytest.mark.parametrize("python", interpreters())
def test_waits_for_the_gil_are_timed_and_say_who_held_it(python: str, probes: KernelProbes, program: Start) -> None:
    process = program(GIL_HOG, python=python)
    found = observe(probes, process)
    waited = said(process)["waited"]
    mine = [p for p in found if p.function.name == "gil" and p.function.caller == "work"]
    assert [p.function.kind for p in mine] == ["sync"]
    queued = sum(p.total_s for p in found if p.function.kind == "sched" and p.function.caller == "work")
    # Who else uses this machine is not the GIL's doing.
    assert 0.8 * waited - queued <= mine[0].total_s <= 1.05 * waited
    holder = mine[0].function.holder
    assert holder is not None
    assert (holder.name, holder.file.endswith("/program0.py"), holder.thread) == ("hog", True, "a thread")
    assert not [p for p in found if p.function.name == "futex" and p.function.caller == "work"]


COLLECTIONS = """
    import gc, json, sys, time
    gc.disable()
    heap = [[i] for i in range(300_000)]
    took, since = 0.0, 0.0
    def measure(phase, info):
        global took, since
        if phase == "start": since = time.perf_counter()
        else: took += time.perf_counter() - since
    gc.callbacks.append(measure)
    def compute():
        end = time.perf_counter() + 0.3
        while time.perf_counter() < end: pass
    def burden():
        for _ in range(19): gc.collect()
    print("ready", flush=True); sys.stdin.readline()
    begin = time.perf_counter()
    compute()
    burden()
    print(json.dumps({"took": took, "all": time.perf_counter() - begin}), flush=True)
    while True: time.sleep(0.05)
"""


@pytest.mark.parametrize("python", interpreters())
def test_garbage_collections_are_counted_timed_and_taken_from_the_function(
    python: str, probes: KernelProbes, program: Start
) -> None:
    process = program(COLLECTIONS, python=python)
    found = observe(probes, process)
    truth = said(process)
    mine = [p for p in found if p.function.detail == "gc"]
    ready = sum(p.total_s for p in found if p.function.kind == "sched")
    assert sum(p.count for p in mine) == 19
    assert {(p.function.kind, p.function.name, p.function.caller) for p in mine} == {("python", "gc", "burden")}
    assert sum(p.total_s for p in mine) + ready >= 0.9 * truth["took"]
    assert sum(p.total_s for p in mine) <= 1.05 * truth["took"]
    burden = sum(p.total_s for p in found if p.function.name == "burden" and p.function.detail == "")
    assert burden < 0.15 * truth["took"]
    compute = sum(p.total_s for p in found if p.function.name == "compute" and p.function.detail == "")
    assert compute + ready >= 0.2 and compute <= 0.4


AUTOMATIC = """
    import gc, json, sys, time
    gc.set_threshold(0)
    old = [[i] for i in range(50_000)]
    count = 0
    def measure(phase, info):
        global count
        count += phase == "start"
    gc.callbacks.append(measure)
    class Knot: pass
    print("ready", flush=True); sys.stdin.readline()
    count = 0
    gc.set_threshold(700, 10, 10)
    kept = []
    for _ in range(40_009):
        knot = Knot(); knot.me = knot; kept.append(knot)
    gc.set_threshold(0)
    print(json.dumps({"count": count}), flush=True)
    while True: time.sleep(0.05)
"""


@pytest.mark.parametrize("python", interpreters())
def test_automatic_collections_are_seen_as_well(python: str, probes: KernelProbes, program: Start) -> None:
    process = program(AUTOMATIC, python=python)
    found = observe(probes, process)
    count = said(process)["count"]
    assert count > 50
    assert sum(p.count for p in found if p.function.detail == "gc") == count
