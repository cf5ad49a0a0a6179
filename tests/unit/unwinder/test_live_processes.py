"""The whole way, from a pid to names and lines, on live interpreters of every version that is installed."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hostwalk import HostWalk
from live import Program, Seen, look, look_until
from pythons import KNOWN, OLD

from rankscope.unwinder.errors import NotPython, TargetGone, UnsupportedInterpreter, UnwindError
from rankscope.unwinder.interpreter.find import find_interpreter
from rankscope.unwinder.interpreter.memory import ProcessMemory
from rankscope.unwinder.interpreter.threads import ThreadPairs, list_threads
from rankscope.unwinder.walk.still import walk_blocked

Start = Callable[..., Program]
HERE = Path(__file__).parent
ALL = {"wait_here", "numbers", "sleep_with_ünïcode_名前"}

FUTEX = "202" if os.uname().machine == "x86_64" else "98"

every_python = pytest.mark.parametrize("minor", KNOWN)


def line_of(text: str) -> int:
    lines = (HERE / "known_program.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def outline(seen: Seen, tid: int) -> list[str]:
    """Bare names from root to leaf, runs of one name counted."""
    names = [frame.name.rpartition(".")[2] for frame in reversed(seen.stack_of(tid))]
    runs = [(name, len(list(group))) for name, group in itertools.groupby(names)]
    return [f"{name}*{count}" if count > 1 else name for name, count in runs]


@every_python
def test_recursion_generator_and_threads_are_seen(start: Start, host_walk: HostWalk, minor: int) -> None:
    # GIVEN a program 23 calls deep in its main thread, and two more threads
    program = start(python=KNOWN[minor])
    # WHEN
    seen = look_until(host_walk, program.pid, ALL)
    # THEN
    assert seen.interpreter.version == (3, minor)
    assert {thread.host_tid for thread in seen.threads} == {int(t.name) for t in tasks(program.pid)}
    assert outline(seen, program.pid) == ["<module>", "main", "descend*23", "wait_here"]
    native = program.facts["native"]
    assert outline(seen, native["consumer"])[-2:] == ["consume", "numbers"]
    sleeper = outline(seen, native["sleeper"])
    assert "sleep_with_ünïcode_名前" in sleeper
    assert sleeper[-1] == "wait*2"
    assert not any(frame.stale for stack in seen.stacks for frame in stack)


@every_python
def test_first_and_current_lines_are_right(start: Start, host_walk: HostWalk, minor: int) -> None:
    program = start(python=KNOWN[minor])
    stack = look_until(host_walk, program.pid, ALL).stack_of(program.pid)
    assert {frame.file for frame in stack} == {str(HERE / "known_program.py")}
    leaf = stack[0]
    assert (leaf.first_line, leaf.line) == (line_of("def wait_here"), line_of("sys.stdin.read()"))
    recursion = {(frame.first_line, frame.line) for frame in stack[2:24]}
    assert recursion == {(line_of("def descend"), line_of("return descend("))}


@every_python
def test_a_thread_at_rest_is_walked_alike_without_the_kernel(start: Start, host_walk: HostWalk, minor: int) -> None:
    # GIVEN the frames as walk.bpf.h finds them
    program = start(python=KNOWN[minor])
    look_until(host_walk, program.pid, ALL)
    with ProcessMemory(program.pid) as memory:
        interpreter = find_interpreter(program.pid, memory=memory)
        main = list_threads(interpreter, memory)[0]
        walked = host_walk.walk(interpreter.kernel_record(), memory, main.tstate_address, main.thread_id)
        # WHEN
        still = walk_blocked(memory, interpreter, main.tstate_address)
    # THEN
    assert not still.moved
    assert [(frame.code, frame.lasti) for frame in still.frames] == [frame[:2] for frame in walked.frames]


@every_python
def test_a_forked_worker_has_its_own_thread_only(start: Start, host_walk: HostWalk, minor: int) -> None:
    # GIVEN children forked from the main thread and from another
    program = start("forking_program.py", KNOWN[minor])
    for child in program.facts["children"]:
        seen = look_until(host_walk, child, {"child_waits"})
        # THEN each has one thread, which carries the child's own pid
        alive = [thread for thread in seen.threads if thread.host_tid]
        assert [thread.host_tid for thread in alive] == [child]
        assert outline(seen, child)[-2:] == ["fork_one", "child_waits"]


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
@every_python
def test_a_container_is_seen_into(host_walk: HostWalk, minor: int) -> None:
    # GIVEN the program in pid and mount namespaces of its own
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", KNOWN[minor]]
    command.append(str(HERE / "known_program.py"))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as outer:
        try:
            assert outer.stdout is not None
            outer.stdout.readline()
            inner = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
            pid = int(inner[0])
            # WHEN
            seen = look_until(host_walk, pid, ALL)
            # THEN the target knows itself as 1, we know it by its tid here
            main = next(thread for thread in seen.threads if thread.host_tid == pid)
            assert main.inner_tid == 1
            assert {thread.host_tid for thread in seen.threads} == {int(t.name) for t in tasks(pid)}
            assert outline(seen, pid)[-2:] == ["descend*23", "wait_here"]
        finally:
            outer.kill()


def test_an_executable_that_was_deleted_is_still_read(start: Start, tmp_path: Path, host_walk: HostWalk) -> None:
    if os.geteuid() != 0:
        pytest.skip("map_files needs root")
    copy = tmp_path / "python3"
    shutil.copy2(Path(sys.executable).resolve(), copy)
    environment = {**os.environ, "PYTHONHOME": sys.base_prefix}
    command = [str(copy), str(HERE / "known_program.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            copy.unlink()
            assert "wait_here" in look_until(host_walk, process.pid, {"wait_here"}).names()
        finally:
            process.kill()


@pytest.mark.parametrize("minor", OLD)
def test_old_versions_are_refused_with_the_reason(start: Start, minor: int) -> None:
    program = start(python=OLD[minor])
    with pytest.raises(UnsupportedInterpreter, match=rf"3\.{minor}"):
        find_interpreter(program.pid)


def test_a_process_without_python_is_told() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            deadline = time.monotonic() + 5
            while b"sleep" not in Path(f"/proc/{process.pid}/comm").read_bytes():
                assert time.monotonic() < deadline
            with pytest.raises(NotPython):
                find_interpreter(process.pid)
        finally:
            process.kill()


def test_a_starting_interpreter_is_not_ready_rather_than_unsupported(host_walk: HostWalk) -> None:
    # GIVEN processes looked at from their first moment on
    kinds = set()
    for _ in range(5):
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.05)"]) as process:
            while process.poll() is None:
                try:
                    look(host_walk, process.pid)
                    kinds.add("seen")
                except UnwindError as error:
                    kinds.add(type(error).__name__)
    # THEN
    assert "seen" in kinds
    assert kinds <= {"seen", "InterpreterNotReady", "TargetGone", "MemoryNotPermitted"}


def test_a_process_that_ended_is_told(start: Start) -> None:
    program = start()
    program.process.kill()
    program.process.wait()
    with pytest.raises(TargetGone):
        find_interpreter(program.pid)


def test_threads_that_come_and_go_are_followed(start: Start) -> None:
    # GIVEN pairs remembered from an earlier look
    program = start("changing_program.py")
    interpreter, pairs = find_interpreter(program.pid), ThreadPairs()
    with ProcessMemory(program.pid) as memory:
        before = list_threads(interpreter, memory, pairs=pairs)
        assert len(before) == 4
        # WHEN three threads end and five begin
        assert program.process.stdin is not None
        assert program.process.stdout is not None
        program.process.stdin.write(b"go\n")
        program.process.stdin.flush()
        program.process.stdout.readline()
        deadline = time.monotonic() + 5
        while True:  # a thread that has said its last word is a task for a moment more
            after = list_threads(interpreter, memory, pairs=pairs)
            alike = {thread.host_tid for thread in after} == {int(t.name) for t in tasks(program.pid)}
            if alike or time.monotonic() > deadline:
                break
            time.sleep(0.01)
    # THEN
    assert {thread.host_tid for thread in after} == {int(t.name) for t in tasks(program.pid)}
    assert len(after) == 6


def test_the_main_thread_comes_first(start: Start) -> None:
    program = start("changing_program.py")
    with ProcessMemory(program.pid) as memory:
        assert list_threads(find_interpreter(program.pid), memory)[0].host_tid == program.pid


@pytest.mark.skipif(os.geteuid() != 0, reason="/proc/PID/task/TID/syscall needs root")
@every_python
def test_the_gil_is_where_threads_wait_for_it(start: Start, minor: int) -> None:
    # GIVEN three threads that never let go of the GIL by themselves
    program = start("busy_program.py", KNOWN[minor])
    interpreter = find_interpreter(program.pid)
    # WHEN most of them wait in futex
    found = 0
    for _ in range(200):
        for task in tasks(program.pid):
            call = (task / "syscall").read_text().split()
            if call[0] == FUTEX:
                inside = int(call[1], 16) - interpreter.gil_address
                found += 0 <= inside < interpreter.gil_bytes
        time.sleep(0.002)
        if found > 20:
            break
    # THEN the word they wait on is inside the GIL
    assert found > 20


def test_looking_writes_nothing_and_stops_nothing(start: Start, host_walk: HostWalk) -> None:
    program = start()
    look_until(host_walk, program.pid, ALL)
    status = Path(f"/proc/{program.pid}/status").read_text()
    look(host_walk, program.pid)
    assert "TracerPid:\t0" in status
    assert "(stopped)" not in Path(f"/proc/{program.pid}/status").read_text()


def tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())
