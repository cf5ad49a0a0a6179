"""Live Python programs to look at, and waiting for them to get where the tests want them."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass
from typing import Any

from hostwalk import OK, HostWalk

from rankscope.unwinder.errors import InterpreterNotReady
from rankscope.unwinder.interpreter.find import Interpreter, find_interpreter
from rankscope.unwinder.interpreter.memory import ProcessMemory
from rankscope.unwinder.interpreter.threads import PythonThread, list_threads
from rankscope.unwinder.names.code import Frame, Symboliser


@dataclass
class Program:
    process: subprocess.Popen[bytes]
    facts: dict[str, Any]

    @property
    def pid(self) -> int:
        return self.process.pid


@dataclass(frozen=True)
class Seen:
    interpreter: Interpreter
    threads: tuple[PythonThread, ...]
    stacks: tuple[tuple[Frame, ...], ...]  # one per thread, innermost first; empty where it could not be walked

    def stack_of(self, tid: int) -> tuple[Frame, ...]:
        return next(s for t, s in zip(self.threads, self.stacks, strict=True) if t.host_tid == tid)

    def names(self) -> list[str]:
        return [frame.name for stack in self.stacks for frame in stack]


def look(walk: HostWalk, pid: int) -> Seen:
    """All stacks of a process, read from outside in user space."""
    with ProcessMemory(pid) as memory:
        interpreter = find_interpreter(pid, memory=memory)
        symbols = Symboliser(memory, interpreter.offsets, interpreter.code_type_address)
        threads = list_threads(interpreter, memory)
        stacks = []
        for thread in threads:
            walked = walk.walk(interpreter.kernel_record(), memory, thread.tstate_address, thread.thread_id)
            frames = walked.frames if walked.status == OK else ()
            stacks.append(tuple(symbols.resolve(*frame) for frame in frames))
        return Seen(interpreter, threads, tuple(stacks))


def look_until(walk: HostWalk, pid: int, names: set[str], timeout_s: float = 20.0) -> Seen:
    """Looks until all the functions `names` are on some stack."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            seen = look(walk, pid)
        except InterpreterNotReady:
            seen = None
        if seen is not None and names <= {name.rpartition(".")[2] for name in seen.names()}:
            return seen
        assert time.monotonic() < deadline, f"never on a stack: {names - set(seen.names() if seen else ())}"
        time.sleep(0.05)
