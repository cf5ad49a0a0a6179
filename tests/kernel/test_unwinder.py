"""The in-kernel walk, live: known programs on every CPython of this machine, and programs that mean harm."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from watching import Watched, interpreters

from rankscope.probes.bpf import ring
from rankscope.unwinder.errors import UnsupportedInterpreter
from rankscope.unwinder.interpreter.find import find_interpreter

pytestmark = pytest.mark.beside(ranks=False)

Start = Callable[..., "subprocess.Popen[str]"]


RECURSION = """
    import sys, time
    def deep(n):
        if n: return deep(n - 1)
        end = time.time() + 1.0
        while time.time() < end: pass
    def nap():
        for _ in range(7): time.sleep(0.1)
    print("ready", flush=True); sys.stdin.readline()
    deep(22)
    nap()
    sys.stdin.readline()  # the end of the interpreter has no frames
"""


@pytest.mark.parametrize("python", interpreters())
def test_a_recursion_of_prime_depth_is_walked_whole_on_every_version(
    python: str, watched: Callable[..., Watched]
) -> None:
    one = watched(RECURSION, python=python)
    assert one.watch.reason == ""
    one.go()
    events = one.observe(2.2)
    samples = events[events["type"] == ring.SAMPLE]
    assert len(samples) > 60  # of 200, where others want the CPU as well
    assert int((samples["stack"] == 0).sum()) <= 2
    depths = Counter(one.stacks[int(s)].text.count("deep (") for s in samples["stack"] if int(s) in one.stacks)
    assert depths.most_common(1)[0][0] == 23
    assert depths[23] > 0.95 * len(samples)
    naps = [
        one.stacks[int(e["stack"])]
        for e in events[(events["type"] == ring.OFFCPU) & (events["dur_ns"] > 90_000_000)]
        if e["stack"]
    ]
    assert [stack.name for stack in naps].count("nap") >= 6


def test_each_thread_has_its_own_stack(watched: Callable[..., Watched]) -> None:
    one = watched(
        """
        import sys, threading, time
        def left():
            while time.time() < end: pass
        def right():
            while time.time() < end: pass
        print("ready", flush=True); sys.stdin.readline()
        end = time.time() + 1.5
        threads = [threading.Thread(target=f) for f in (left, right)]
        for t in threads: t.start()
        for t in threads: t.join()
        """
    )
    one.go()
    events = one.observe(2.0)
    samples = events[(events["type"] == ring.SAMPLE) & (events["stack"] != 0)]
    by_thread: dict[int, set[str]] = {}
    for tid, stack in zip(samples["tid"].tolist(), samples["stack"].tolist(), strict=True):
        name = one.stacks[stack].name
        if name in ("left", "right"):
            by_thread.setdefault(tid, set()).add(name)
    assert sorted(map(sorted, by_thread.values())) == [["left"], ["right"]]


def test_generators_and_coroutines_keep_their_callers(watched: Callable[..., Watched]) -> None:
    one = watched(
        """
        import asyncio, sys, time
        def spin(s):
            end = time.time() + s
            while time.time() < end: pass
        def numbers():
            for i in range(3): spin(0.2); yield i
        async def inner(): spin(0.2)
        async def outer():
            for _ in range(3): await inner()
        print("ready", flush=True); sys.stdin.readline()
        list(numbers())
        asyncio.run(outer())
        """
    )
    one.go()
    one.observe(1.8)
    texts = [stack.text for stack in one.stacks.values()]
    assert any(
        "numbers (" in text and text.index("numbers (") < text.index("spin (") for text in texts if "spin (" in text
    )
    assert any(
        "outer (" in text and "inner (" in text and text.index("outer (") < text.index("inner (") for text in texts
    )


def test_a_stack_deeper_than_the_limit_is_marked_and_keeps_its_leaf(watched: Callable[..., Watched]) -> None:
    one = watched(RECURSION.replace("deep(22)", "deep(210)"))
    before = one.probes.counted()["walk_truncated"]
    one.go()
    one.observe(1.2)
    assert one.probes.counted()["walk_truncated"] - before > 100
    deepest = max(one.stacks.values(), key=lambda stack: stack.text.count("deep ("))
    assert deepest.name == "deep"


def test_a_process_that_rewrites_itself_by_exec_is_not_followed_into_nonsense(watched: Callable[..., Watched]) -> None:
    one = watched(
        """
        import os, sys, time
        print("ready", flush=True); sys.stdin.readline()
        os.execv("/bin/sh", ["sh", "-c", "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"])
        """
    )
    one.go()
    one.observe(1.0)
    assert all(stack.text.count(";") < 8 for stack in one.stacks.values())


def test_frames_that_form_a_cycle_or_point_nowhere_end_the_walk(watched: Callable[..., Watched]) -> None:
    """The program forges its own frame chain through /proc/self/mem while it runs."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the forger knows the frame layout of 3.11 only")
    one = watched(
        """
        import ctypes, sys, time
        print("ready", flush=True); sys.stdin.readline()
        def forge(previous):
            tstate = ctypes.pythonapi.PyThreadState_Get
            tstate.restype = ctypes.c_void_p
            cframe = ctypes.c_uint64.from_address(tstate() + 56).value
            frame = ctypes.c_uint64.from_address(cframe + 8).value
            link = ctypes.c_uint64.from_address(frame + 48)
            saved, link.value = link.value, previous(frame)
            end = time.time() + 0.7
            while time.time() < end: pass
            link.value = saved
        forge(lambda frame: frame)
        forge(lambda frame: 0x4141414141414141)
        forge(lambda frame: 8)
        """
    )
    before = one.probes.counted()
    one.go()
    events = one.observe(2.6)
    after = one.probes.counted()
    assert after["walk_failed"] - before["walk_failed"] > 100
    assert len(events) > 0


def test_200_threads_are_all_known_and_the_walk_never_fails(watched: Callable[..., Watched]) -> None:
    one = watched(
        """
        import sys, threading, time
        def worker():
            while time.time() < end: time.sleep(0.01)
        print("ready", flush=True); sys.stdin.readline()
        end = time.time() + 2.5
        threads = [threading.Thread(target=worker) for _ in range(199)]
        for t in threads: t.start()
        for t in threads: t.join()
        """
    )
    one.go()
    time.sleep(0.5)
    one.observe(0.5)
    before = one.probes.counted()
    events = one.observe(1.0)
    after = one.probes.counted()
    walked = after["walk_ok"] - before["walk_ok"]
    failed = after["walk_failed"] - before["walk_failed"] + after["walk_stale"] - before["walk_stale"]
    assert len(np.unique(events["tid"])) >= 199
    assert walked > 1000
    assert failed <= walked * 0.001


def test_old_pythons_are_refused_by_name(program: Start) -> None:
    old = sorted((Path.home() / ".pyenv/versions").glob("3.[67].*"))
    for folder in old:
        process = program(
            'import sys\nprint("ready", flush=True); sys.stdin.readline()\n', python=str(folder / "bin/python")
        )
        with pytest.raises(UnsupportedInterpreter, match=r"3\.[67]"):
            find_interpreter(process.pid)
