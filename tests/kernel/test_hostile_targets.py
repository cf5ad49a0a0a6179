"""The in-kernel walk, live, on targets that are awkward or mean harm: callbacks from C, forks, sudden ends, forged memory.

Never a crash, a hang or unbounded memory in the observer; what could not be walked is counted.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pace import pace_s
from watching import Watched, interpreters

from rankscope.observer.live import observation, process_watch
from rankscope.observer.live.kernel_probes import KernelProbes
from rankscope.observer.live.process_watch import TRAINING
from rankscope.probes.bpf import ring
from rankscope.unwinder.names.code import NAME_CAP

pytestmark = pytest.mark.beside

Start = Callable[..., "subprocess.Popen[str]"]
forged_in_3_11 = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the forger knows the memory layout of 3.11 only"
)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.mark.parametrize("python", interpreters())
def test_a_c_extension_that_calls_back_keeps_the_frames_on_both_sides(
    python: str, watched: Callable[..., Watched]
) -> None:
    """_ctypes: C that enters the interpreter anew; from 3.12 on there is a shim frame between the two sides."""
    one = watched(
        """
        import ctypes, functools, sys, time
        def spin(s):
            end = time.time() + s
            while time.time() < end: pass
        @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
        def compare(a, b):
            spin(0.15)
            return 0
        def sorts():
            ctypes.CDLL(None).qsort((ctypes.c_int * 5)(), 5, 4, compare)
        def reduces():
            functools.reduce(lambda a, b: spin(0.15), range(5))
        print("ready", flush=True); sys.stdin.readline()
        sorts(); reduces()
        sys.stdin.readline()
        """,
        python=python,
    )
    one.go()
    events = one.observe(2.0)
    samples = events[events["type"] == ring.SAMPLE]
    texts = [one.stacks[int(identity)].text for identity in samples["stack"] if int(identity) in one.stacks]
    spinning = [text.split(";") for text in texts if "spin (" in text]
    callers = [[frame.partition(" (")[0] for frame in frames] for frames in spinning]
    assert len(callers) > 100
    whole = [["<module>", "sorts", "compare", "spin"], ["<module>", "reduces", "<lambda>", "spin"]]
    found = [[name.rpartition(".")[2] for name in names] for names in callers]
    assert all(found.count(stack) > 20 for stack in whole), found[:3]
    assert sum(stack in whole for stack in found) >= 0.98 * len(found)


def test_a_fork_in_mid_window_gives_each_side_its_own_stacks(
    watched: Callable[..., Watched], probes: KernelProbes
) -> None:
    one = watched(
        """
        import os, sys, time
        def spin(s):
            end = time.time() + s
            while time.time() < end: pass
        def in_parent(): spin(1.2)
        def in_child(): spin(1.2)
        print("ready", flush=True); sys.stdin.readline()
        spin(0.3)
        child = os.fork()
        if not child:
            in_child()
            os._exit(0)
        in_parent()
        os.waitpid(child, 0)
        sys.stdin.readline()
        """
    )
    one.go()
    before = probes.counted()
    one.observe(0.45)
    (child,) = observation.children(one.process.pid)
    offspring = process_watch.watch(child, one.process.pid, process_watch.LOADER, probes)
    assert offspring.reason == ""
    theirs: set[str] = set()
    mine: set[str] = set()
    end = time.monotonic() + 1.6
    while time.monotonic() < end:
        time.sleep(0.1)
        events = probes.events.drain()
        for pid, identity in {(int(e["tgid"]), int(e["stack"])) for e in events[events["type"] == ring.SAMPLE]}:
            raw = probes.stack(identity)
            if raw is None or pid not in (child, one.process.pid):
                continue
            watch, into = (offspring, theirs) if pid == child else (one.watch, mine)
            into.add(watch.name_stack(raw).text)
        offspring.refresh(probes)
        one.watch.refresh(probes)
    after = probes.counted()
    assert offspring.gone
    assert any("in_child (" in text for text in theirs)
    assert not any("in_parent (" in text for text in theirs)
    assert any("in_parent (" in text for text in mine)
    assert not any("in_child (" in text for text in mine)
    walked = after["walk_ok"] - before["walk_ok"]
    assert after["walk_failed"] + after["walk_stale"] - before["walk_failed"] - before["walk_stale"] <= 0.02 * walked
    offspring.close()


def test_processes_that_end_in_mid_sample_are_forgotten_and_the_rest_goes_on(
    probes: KernelProbes, program: Start
) -> None:
    text = """
        import sys, threading, time
        def spin():
            while True: pass
        def nap():
            while True: time.sleep(0.001)
        threading.Thread(target=nap, daemon=True).start()
        print("ready", flush=True)
        spin()
        """
    survivor = program(text)
    kept = process_watch.watch(survivor.pid, survivor.pid, TRAINING, probes)
    for round_ in range(7):
        victim = program(text)
        watch = process_watch.watch(victim.pid, victim.pid, TRAINING, probes)
        time.sleep(0.05 + 0.013 * round_)
        victim.send_signal(signal.SIGKILL if round_ % 2 else signal.SIGTERM)
        victim.wait()
        events = probes.events.drain()
        for identity in np.unique(events[events["tgid"] == victim.pid]["stack"]).tolist():
            raw = probes.stack(identity) if identity else None
            if raw is not None:
                watch.name_stack(raw)  # the memory is gone: words or none, never an error
        watch.refresh(probes)
        assert watch.gone
        watch.close()
    time.sleep(0.3)
    events = probes.events.drain()
    alive = events[(events["type"] == ring.SAMPLE) & (events["tgid"] == survivor.pid)]
    assert len(alive) > 0
    assert int((alive["stack"] == 0).sum()) <= 0.01 * len(alive) + 1
    kept.refresh(probes)
    assert not kept.gone
    probes.forget_process(survivor.pid, kept.threads)
    kept.close()


@forged_in_3_11
@pytest.mark.parametrize("length", [1 << 30, 1 << 62, (1 << 64) - 1])
def test_names_that_claim_to_be_gigabytes_long_are_not_read(length: int, watched: Callable[..., Watched]) -> None:
    one = watched(
        """
        import ctypes, sys, time
        def victim():
            end = time.time() + 0.8
            while time.time() < end: pass
        print("ready", flush=True); sys.stdin.readline()
        name = victim.__code__.co_qualname
        size = ctypes.c_uint64.from_address(id(name) + 16)
        saved, size.value = size.value, int(sys.argv[1])
        victim()
        size.value = saved
        sys.stdin.readline()
        """,
        str(length),
    )
    one.go()
    resident, began = resident_bytes(), time.monotonic()
    events = one.observe(0.7)
    assert time.monotonic() - began < 3
    assert resident_bytes() - resident < 16 << 20
    assert int((events["type"] == ring.SAMPLE).sum()) > 50
    assert all(len(stack.text) <= 4096 for stack in one.stacks.values())
    assert "victim" not in {stack.name for stack in one.stacks.values()}


def test_a_name_of_a_megabyte_is_cut_and_control_characters_are_escaped(watched: Callable[..., Watched]) -> None:
    one = watched(
        """
        import sys, time
        def victim():
            end = time.time() + 0.8
            while time.time() < end: pass
        name = "\\x1b[31m\\n" + "x" * 1_000_000
        more = {"co_qualname": name} if sys.version_info >= (3, 11) else {}
        victim.__code__ = victim.__code__.replace(co_name=name, co_filename="/" + "f" * 1_000_000 + "\\r.py", **more)
        print("ready", flush=True); sys.stdin.readline()
        victim()
        sys.stdin.readline()
        """
    )
    one.go()
    one.observe(0.8)
    (stack,) = [stack for stack in one.stacks.values() if "xxx" in stack.name][:1]
    assert len(stack.name) < 8 * NAME_CAP
    assert len(stack.file) < 8 * NAME_CAP
    assert stack.name.startswith("\\x1b[31m\\n")
    assert all(
        stack.name.isprintable() and stack.file.isprintable() and stack.text.isprintable()
        for stack in one.stacks.values()
    )


FORGED_RUNTIME = """
    import ctypes, mmap, sys, time
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    runtime = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    get = ctypes.pythonapi.PyThreadState_Get
    get.restype = ctypes.c_void_p
    tstate = get()
    interpreters = ctypes.c_uint64.from_address(runtime + 40)
    interpreter = interpreters.value
    def unmapped():
        page = libc.mmap(None, 4096, 3, 0x22, -1, 0)
        libc.munmap(page, 4096)
        return page
    def many_threads():
        count = 20_000  # five times what a process may have
        block = (ctypes.c_uint64 * 32)
        page = libc.mmap(None, 256 * (count + 1), 3, 0x22, -1, 0)
        for number in range(count):
            state = block.from_address(page + 256 * number)
            state[1] = page + 256 * (number + 1)
            state[2], state[19], state[20] = interpreter, 0x1000 + number, number + 1
        return page
    def spin():
        end = time.time() + 0.8
        while time.time() < end: pass
    print("ready", flush=True); sys.stdin.readline()
    what = sys.argv[1]
    if what == "unmapped": place, value = interpreters, unmapped()
    elif what == "nonsense": place, value = interpreters, 0x4141414141414141
    elif what == "cycle": place, value = ctypes.c_uint64.from_address(tstate + 8), tstate
    elif what == "many": place, value = ctypes.c_uint64.from_address(interpreter + 16), many_threads()
    saved, place.value = place.value, value
    print("forged", flush=True)
    spin()
    place.value = saved
    print("restored", flush=True)
    spin()
    sys.stdin.readline()
"""


@forged_in_3_11
@pytest.mark.parametrize("what", ["unmapped", "nonsense", "cycle", "many"])
def test_a_forged_or_unmapped_runtime_costs_nothing_and_is_survived(what: str, watched: Callable[..., Watched]) -> None:
    one, limit_s = watched(FORGED_RUNTIME, what), 6 * pace_s()
    assert one.process.stdout is not None
    one.go()
    assert one.process.stdout.readline().strip() == "forged"
    resident = resident_bytes()
    for _ in range(3):
        began = time.process_time()
        one.watch.refresh(one.probes)
        # As many threads as a process may have take two or three; all that are forged would take five times as long.
        assert time.process_time() - began < limit_s
    assert len(one.watch.threads) <= len(os.listdir(f"/proc/{one.process.pid}/task"))  # noqa: PTH208
    assert not one.watch.gone
    assert resident_bytes() - resident < 32 << 20
    assert one.process.stdout.readline().strip() == "restored"
    one.watch.refresh(one.probes)
    one.probes.events.drain()
    events = one.observe(0.5)
    samples = events[events["type"] == ring.SAMPLE]
    assert len(samples) > 50
    assert {one.stacks[int(s)].name for s in samples["stack"] if int(s) in one.stacks} >= {"spin"}


@forged_in_3_11
def test_a_process_whose_runtime_is_forged_before_it_is_found_is_refused_with_the_reason(
    program: Start, probes: KernelProbes
) -> None:
    process = program(FORGED_RUNTIME, "unmapped")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline().strip() == "forged"
    watch = process_watch.watch(process.pid, process.pid, TRAINING, probes)
    assert watch.interpreter is None
    assert watch.reason
    probes.forget_process(process.pid, {process.pid: 0})
    watch.close()
