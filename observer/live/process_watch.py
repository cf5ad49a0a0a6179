"""One watched process: its interpreter, its Python threads in the kernel's maps, names for its stacks."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.observer.live import limits
from rankscope.observer.live.kernel_probes import KernelProbes
from rankscope.observer.steps.markers import Call, CallPath
from rankscope.observer.thread.functions import NO_STACK, StackName
from rankscope.observer.window.stacks import LEFT_OUT, StackFrame
from rankscope.probes.base.patience import Silent
from rankscope.probes.base.text import named
from rankscope.probes.bpf.counters import MEMBER, RANK
from rankscope.probes.calls.probe import Library
from rankscope.probes.host import procfs
from rankscope.probes.host.fair import about
from rankscope.probes.host.maps import read_maps
from rankscope.unwinder.errors import UNSEEN, NotPython
from rankscope.unwinder.interpreter import gc, gil
from rankscope.unwinder.interpreter.find import Interpreter, find_interpreter
from rankscope.unwinder.interpreter.memory import ProcessMemory
from rankscope.unwinder.interpreter.threads import ThreadPairs, list_threads
from rankscope.unwinder.names.code import Frame, Symboliser
from rankscope.unwinder.walk.stack import KernelStack
from rankscope.unwinder.walk.still import walk_blocked

TRAINING, LOADER = "training", "loader"

_MAX_TEXT = 4096  # characters of one stack
# Files of optimisers: an iteration ends in one.
_OPTIMISER = re.compile(r"/(torch/optim|optax|apex/optimizers|bitsandbytes/optim|deepspeed/ops/(adam|lamb|lion))/")
_FRAME_TEXT = len(" (:2147483647);")  # characters that a frame takes besides its name and file
_MAX_STATES = 65536  # remembered per process; more than any honest process has


@dataclass(slots=True)
class ProcessWatch:
    """A watched process: a rank's, or one that belongs to it (a data-loader worker)."""

    pid: int
    owner: int  # pid of the rank it belongs to
    label: str
    interpreter: Interpreter | None
    reason: str
    start_ticks: int = 0  # with the pid, identifies this process for ever
    memory: ProcessMemory | None = None
    symbols: Symboliser | None = None
    threads: dict[int, int] = field(default_factory=dict)  # host tid -> PyThreadState address
    states: dict[int, int] = field(default_factory=dict)  # the reverse, including ended threads
    ended: dict[int, None] = field(default_factory=dict)  # the most recently ended Python threads
    pairs: ThreadPairs = field(default_factory=ThreadPairs)
    gone: bool = False
    lost_threads: int = 0  # number of threads for which there was no room

    def refresh(self, probes: KernelProbes, room: int = limits.PYTHON_THREADS) -> None:
        """Update the kernel's map of this process's Python threads, at most `room` of them. Never
        raises.

        A dead process is marked `gone`.
        """
        if self.gone:
            return
        if self.interpreter is None or self.memory is None:
            self._forget_if_ended(probes)
            return
        try:
            found = list_threads(self.interpreter, self.memory, pairs=self.pairs)
        except UNSEEN:
            self._forget_if_ended(probes)
            return
        found = tuple(thread for thread in found if thread.host_tid)
        room = min(room, limits.PYTHON_THREADS)
        self.lost_threads = max(self.lost_threads, len(found) - room)
        found = found[:room]
        now = {thread.host_tid: thread.tstate_address for thread in found}
        for thread in found:
            if self.threads.get(thread.host_tid) != thread.tstate_address:
                probes.set_thread(thread.host_tid, thread.tstate_address, thread.thread_id)
                if len(self.states) >= _MAX_STATES:
                    self.states.clear()
                self.states[thread.tstate_address] = thread.host_tid
        for tid in self.threads.keys() - now.keys():
            probes.forget_thread(tid, self.threads[tid])
        self._remember({**self.ended, **self.threads}, now)
        self.threads = now

    def _remember(self, known: Iterable[int], now: Container[int]) -> None:
        """Store those of the `known` threads that are not in `now` as ended, the last 256."""
        ended = [tid for tid in known if tid not in now]
        self.ended = dict.fromkeys(ended[-limits.PYTHON_THREADS :])

    def _forget_if_ended(self, probes: KernelProbes) -> None:
        """Stop observing the pid in the kernel if the process has ended, or its pid is reused."""
        try:
            if procfs.start_ticks(self.pid) == self.start_ticks:
                return
        except Silent:
            return
        except (OSError, ValueError):
            pass
        self.gone = True
        probes.forget_process(self.pid, self.threads or {self.pid: 0})

    def name_stack(self, stack: KernelStack) -> StackName:
        """Name a stack that the kernel walked; NO_STACK where nothing of it is readable any more."""
        if self.symbols is None:
            return NO_STACK
        named = []
        for frame in stack.frames:
            try:
                named.append(self.symbols.resolve(frame.code, frame.lasti, frame.checksum))
            except UNSEEN:
                break
        return name_frames(named, whole=not stack.truncated and len(named) == len(stack.frames))

    def blocked_stack(self, tid: int) -> StackName:
        """Read and name the stack of a blocked thread; NO_STACK where unreadable or the thread ran."""
        if self.symbols is None or self.memory is None or self.interpreter is None or tid not in self.threads:
            return NO_STACK
        try:
            stack = walk_blocked(self.memory, self.interpreter, self.threads[tid])
            named = [self.symbols.resolve(frame.code, frame.lasti) for frame in stack.frames]
        except UNSEEN:
            return NO_STACK
        return NO_STACK if stack.moved else name_frames(named)

    def forget(self) -> None:
        """Close a process that is gone, and free its names."""
        self.close()
        self.symbols = None
        self.pairs = ThreadPairs()

    def close(self) -> None:
        """Close the process's memory."""
        if self.memory is not None:
            self.memory.close()
            self.memory = None


def name_frames(frames: Sequence[Frame], whole: bool = True) -> StackName:
    """Convert frames, leaf first, to the words of a stack; `whole`: none is missing.

    Of a very long stack the middle is left out: the leaf tells what is done, the root for whom;
    compilers and tracers call a hundred functions below the user's.
    """
    return _in_words(tuple(frames), whole)


@functools.lru_cache(maxsize=512)
def _in_words(frames: tuple[Frame, ...], whole: bool) -> StackName:
    """Convert frames as `name_frames`; cached for all ranks, which are in the same code at about the same time."""
    if not frames:
        return NO_STACK
    lengths = [len(frame.name) + len(frame.file) + _FRAME_TEXT for frame in frames]
    low = _fitting(lengths, _MAX_TEXT) if sum(lengths) <= _MAX_TEXT else max(_fitting(lengths, _MAX_TEXT // 2), 1)
    high = min(_fitting(lengths[::-1], _MAX_TEXT - sum(lengths[:low])), len(frames) - low)
    kept = [StackFrame(frame.name, frame.file, frame.first_line) for frame in frames]
    if low + high < len(kept):
        kept[low : len(kept) - high] = [LEFT_OUT]
    leaf = frames[0]
    in_optimiser = any(_OPTIMISER.search(frame.file) for frame in frames)
    return StackName(
        leaf.name,
        leaf.file,
        leaf.first_line,
        tuple(reversed(kept)),
        _site(frames),
        in_optimiser,
        _path(frames) if whole else (),
    )


def _fitting(lengths: Sequence[int], room: int) -> int:
    """Count how many of the first of these lengths fit into `room` together."""
    return sum(total <= room for total in itertools.accumulate(lengths))


def _path(frames: Sequence[Frame]) -> CallPath:
    """Return the calls of a stack, root first; () where some frame's code is gone or its instruction is unknown."""
    if any(frame.unit < 0 or frame.stale for frame in frames):
        return ()
    return tuple(_call(frame) for frame in reversed(frames))


@functools.lru_cache(maxsize=4096)
def _call(frame: Frame) -> Call:
    """Convert a frame to a call, cached: thousands of stacks, of up to a hundred frames each, share the same code."""
    return Call((frame.name, frame.file, frame.first_line), frame.unit, frame.loops)


def _site(frames: Sequence[Frame]) -> int:
    """Hash a call site to a nonzero number that is equal wherever the same lines call one another."""
    text = "\n".join(f"{frame.name}\t{frame.file}\t{frame.line}" for frame in frames)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big") | 1


def _time_collections(pid: int, interpreter: Interpreter, probes: KernelProbes, root: Path) -> None:
    """Time the garbage collector of this interpreter, once per file however many processes map it.
    Never raises.
    """
    try:
        mapping = next((mapping for mapping in read_maps(pid, root) if mapping.path == interpreter.path), None)
        if mapping is None or probes.calls.knows("gc", mapping.device, mapping.inode):
            return
        library = Library(pid, mapping, root)
        with library.open() as file:
            addresses = gc.find_collectors(file, interpreter.version)
    except UNSEEN as error:
        probes.notes.append(about((pid,), f"garbage collections of {named(interpreter.path)} are not timed: {error}"))
        return
    probes.calls.attach_at("gc", library, addresses)


def watch(
    pid: int, owner: int, label: str, probes: KernelProbes, root: Path = Path("/"), room: int = limits.PYTHON_THREADS
) -> ProcessWatch:
    """Begin to observe `pid`, with at most `room` Python threads.

    Where its interpreter is not supported, its main thread is timed without stacks.
    """
    process = ProcessWatch(pid, owner, label, None, "")
    with contextlib.suppress(OSError, ValueError):
        process.start_ticks = procfs.start_ticks(pid, root)
    try:
        process.interpreter = find_interpreter(pid, root)
        process.memory = ProcessMemory(pid, root, process.interpreter.start_ticks)
        process.symbols = Symboliser(process.memory, process.interpreter.offsets, process.interpreter.code_type_address)
        probes.set_interpreter(pid, process.interpreter.kernel_record())
        gil.register_gil(probes.maps, process.interpreter)
        _time_collections(pid, process.interpreter, probes, root)
    except UNSEEN as error:
        process.interpreter = None
        # Programs other than Python that a rank started (a daemon of MPI's, nvidia-smi) have no
        # Python stacks to miss.
        if label != TRAINING and isinstance(error, NotPython):
            process.reason = ""
        else:
            process.reason = procfs.reason(error) if isinstance(error, Silent) else str(error)
        probes.set_thread(pid, 0, 0)
    probes.watch_process(pid, RANK if label == TRAINING else MEMBER)
    process.refresh(probes, room)
    return process
