"""List an interpreter's threads, each paired with its kernel thread id.

CPython names its threads by pthread_self() (`thread_id`) and, from 3.11, by gettid() inside the
target's pid namespace (`native_thread_id`). Before 3.11 the tid is read from the C library's own
record, struct pthread: `thread_id` is its address, and the tid lies at a fixed offset. That offset
is not assumed but searched, as the one where all threads' values are thread ids of the process.
Inner tids become host tids through NSpid in /proc/PID/task/TID/status.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.probes.host import procfs
from rankscope.unwinder.errors import TargetGone, UnreadableMemory
from rankscope.unwinder.interpreter.find import Interpreter
from rankscope.unwinder.interpreter.memory import Memory, read_u64
from rankscope.unwinder.interpreter.offsets import ABSENT

INTERPRETERS_CAP = 64
THREADS_CAP = 4096
# glibc x86-64 keeps the tid at 720, glibc aarch64 at 208, musl at 48 (1.2) or 56 (1.1).
_LIKELY_TID_PLACES = (720, 208, 48, 56)
_PTHREAD_BYTES = 1024

_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class PythonThread:
    """A thread with Python state. `host_tid` and `inner_tid` are 0 where they could not be found."""

    host_tid: int
    inner_tid: int  # gettid() as the target itself sees it
    tstate_address: int
    thread_id: int  # pthread_self(); rs_walk compares it with the thread state
    native_thread_id: int  # as CPython stores it; 0 before 3.11
    interpreter_address: int


@dataclass(slots=True)
class ThreadPairs:
    """Cache of inner tid -> host tid of one process, so that each second only new threads are looked up.

    Use one per process for as long as it lives.
    """

    inner_to_host: dict[int, int] = field(default_factory=dict)
    known: frozenset[int] = frozenset()
    nested: bool | None = None  # whether the process lives in a pid namespace of its own
    tid_place: int = -1  # offset of the tid in struct pthread; -1 not searched yet


@dataclass(frozen=True, slots=True)
class _State:
    """One thread state: its address, its interpreter's, pthread_self() and native thread id (0 before 3.11)."""

    address: int
    interpreter: int
    thread_id: int
    native: int


def list_threads(
    interpreter: Interpreter,
    memory: Memory,
    root: Path = procfs.ROOT,
    pairs: ThreadPairs | None = None,
) -> tuple[PythonThread, ...]:
    """List all threads with Python state, oldest first, each once.

    A thread with state in several interpreters appears with that of the main one, whose threads come first;
    without a known thread id it appears with each. Raises TargetGone; UnreadableMemory where an interpreter
    of the list cannot be read. A list that changes while it is read, or an unreadable thread state, may make
    it short: the next call has the rest.
    """
    pairs = pairs if pairs is not None else ThreadPairs()
    states = _states(interpreter, memory)
    _update_pairs(interpreter.pid, pairs, root)
    inner = [state.native if state.native in pairs.inner_to_host else 0 for state in states]
    if not all(inner):
        # Before 3.11, or a native id that was not updated after a fork.
        inner = _inner_from_libc(interpreter, memory, states, pairs)
    threads: list[PythonThread] = []
    taken: set[int] = set()
    for state, tid in zip(reversed(states), reversed(inner), strict=True):
        host_tid = pairs.inner_to_host.get(tid, 0)
        if host_tid and host_tid in taken:
            continue
        taken.add(host_tid)
        threads.append(PythonThread(host_tid, tid, state.address, state.thread_id, state.native, state.interpreter))
    return tuple(threads)


def _u64(data: bytes, at: int) -> int:
    """Decode the unsigned 64-bit integer at byte `at`."""
    return int(_U64.unpack_from(data, at)[0])


def _states(interpreter: Interpreter, memory: Memory) -> list[_State]:
    """Read the thread states of all interpreters, newest first, as CPython links them.

    A thread state that is unreadable or torn ends its interpreter's list. Threads that have not begun
    are left out. Raises UnreadableMemory, TargetGone.
    """
    offsets = interpreter.offsets
    last = max(
        offsets.tstate_next,
        offsets.tstate_interp,
        offsets.tstate_thread_id,
        offsets.tstate_native_thread_id if offsets.tstate_native_thread_id != ABSENT else 0,
    )
    states: list[_State] = []
    seen: set[int] = set()
    current = read_u64(memory, interpreter.runtime_address + offsets.runtime_interpreters_head)
    for _ in range(INTERPRETERS_CAP):
        if not current or current in seen:
            break
        seen.add(current)
        tstate = read_u64(memory, current + offsets.interpreter_threads_head)
        while tstate and tstate not in seen and len(states) < THREADS_CAP:
            seen.add(tstate)
            try:
                data = memory.read(tstate, last + 8)
            except UnreadableMemory:
                break  # freed meanwhile
            if _u64(data, offsets.tstate_interp) != current:
                break  # torn: no thread state of this interpreter any more
            native = 0
            if offsets.tstate_native_thread_id != ABSENT:
                native = _u64(data, offsets.tstate_native_thread_id)
            thread_id = _u64(data, offsets.tstate_thread_id)
            if thread_id:  # 0 for a thread that was created but has not begun
                states.append(_State(tstate, current, thread_id, native))
            tstate = _u64(data, offsets.tstate_next)
        current = read_u64(memory, current + offsets.interpreter_next)
    return states


def _update_pairs(pid: int, pairs: ThreadPairs, root: Path) -> None:
    """Update the cache of inner tid -> host tid from /proc/PID/task, if its threads changed. Raises TargetGone."""
    try:
        tids = frozenset(procfs.threads(pid, root))
        if tids == pairs.known and pairs.nested is not None:
            return
        if pairs.nested is None:
            pairs.nested = len(procfs.read_status(pid, root).nspids) > 1
    except (OSError, ValueError) as error:
        raise TargetGone(f"process {pid}: {procfs.reason(error)}") from error
    if not pairs.nested:
        pairs.inner_to_host = {tid: tid for tid in tids}
        pairs.known = tids
        return
    host_to_inner = {host: inner for inner, host in pairs.inner_to_host.items() if host in tids}
    for tid in tids - host_to_inner.keys():
        try:
            host_to_inner[tid] = procfs.read_status(pid, root, tid).inner_pid
        except (OSError, ValueError):
            continue  # ended meanwhile
    pairs.inner_to_host = {inner: host for host, inner in host_to_inner.items()}
    pairs.known = tids


def _inner_from_libc(interpreter: Interpreter, memory: Memory, states: list[_State], pairs: ThreadPairs) -> list[int]:
    """Return each state's tid, as its pid namespace numbers it, from struct pthread of the C library.

    In the order of `states`; 0 where not found. The main thread's is the pid instead, where it is known which
    that is; where struct pthread is unreadable or has no known offset, CPython's native id if the process has it.
    """
    records = {state.thread_id: _pthread(memory, state.thread_id) for state in states}
    if pairs.tid_place < 0:
        pairs.tid_place = _find_tid_place(list(records.values()), set(pairs.inner_to_host))
    main = _main_thread(interpreter, memory, states)
    host_to_inner = {host: inner for inner, host in pairs.inner_to_host.items()}
    main_inner = host_to_inner.get(interpreter.pid, 0)
    tids = []
    for state in states:
        record, tid = records[state.thread_id], 0
        if state.thread_id == main:
            tid = main_inner
        elif pairs.tid_place >= 0 and record:
            value = struct.unpack_from("<I", record, pairs.tid_place)[0]
            tid = value if value in pairs.inner_to_host else 0
        elif state.native in pairs.inner_to_host:
            tid = state.native
        tids.append(tid)
    return tids


def _pthread(memory: Memory, address: int) -> bytes:
    """Read the first 1,024 bytes of struct pthread at `address`; b'' if unreadable.

    Where only the first 256 can be read, the rest is zeros.
    """
    try:
        return memory.read(address, _PTHREAD_BYTES)
    except UnreadableMemory:
        pass
    try:
        return memory.read(address, 256).ljust(_PTHREAD_BYTES, b"\0")
    except UnreadableMemory:
        return b""


def _find_tid_place(records: list[bytes], tids: set[int]) -> int:
    """Find the offset of the thread id in struct pthread; -1 where no offset is convincing.

    `records`: struct pthread of each thread; `tids`: thread ids of the process. The offset of a known C
    library is accepted if most threads have different thread ids of the process there (the state of a
    dead thread may linger); any other only if all have, and there are at least two.
    """
    usable = [record for record in records if record]
    places: list[int] = [*_LIKELY_TID_PLACES, *range(0, _PTHREAD_BYTES, 4)]
    for index, place in enumerate(places):
        values = [int(struct.unpack_from("<I", record, place)[0]) for record in usable]
        valid = [value for value in values if value in tids]
        if len(valid) != len(set(valid)):
            continue
        likely = index < len(_LIKELY_TID_PLACES)
        if (likely and 2 * len(valid) > len(usable)) or (len(valid) == len(usable) >= 2):
            return place
    return -1


def _main_thread(interpreter: Interpreter, memory: Memory, states: list[_State]) -> int:
    """Return pthread_self() of the thread that started the interpreter; 0 if unreadable.

    From 3.13, which does not store it, that of the oldest state; 0 without any.
    """
    if interpreter.offsets.runtime_main_thread != ABSENT:
        try:
            return read_u64(memory, interpreter.runtime_address + interpreter.offsets.runtime_main_thread)
        except UnreadableMemory:
            return 0
    return states[-1].thread_id if states else 0
