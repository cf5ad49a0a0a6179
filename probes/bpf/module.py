"""A compiled set of probes in the kernel: programs loaded and attached one by one, metered, always detached.

A program that the kernel refuses is reported and the others work. Nothing survives the process:
programs, maps and probes exist as long as their descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rankscope.probes.base import room
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.bpf import perf_events, programs, syscalls, tracepoints, warden
from rankscope.probes.bpf.compiler.compiled import Compiled
from rankscope.probes.bpf.compiler.variants import Variant, with_numbers
from rankscope.probes.bpf.functions import mappers, shared_uprobes, uprobes, walks
from rankscope.probes.bpf.programs import Program
from rankscope.probes.bpf.tables import Table
from rankscope.probes.elf.reader import FileBytes
from rankscope.probes.host.procfs import ROOT

_PAGE_BYTES = 4096
_CHILD_WAITS_S = 0.3  # until the parent has closed its descriptors
_PASSING = (errno.ENOMEM, errno.EAGAIN, errno.EINTR)
_PATIENCE_S, _PAUSE_S = 0.5, 0.1
_AT_ONCE = 8  # probes detached in parallel


@dataclass(frozen=True, slots=True)
class Tracepoint:
    """A program and the tracepoint that it is attached to."""

    function: str
    event: str  # category:name


@dataclass(frozen=True, slots=True)
class ProgramCost:
    """Run count and run time of one program since it was loaded."""

    program: str
    run_count: int
    run_time_ns: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A program that could not be attached, and why."""

    program: str
    reason: str


@dataclass(frozen=True, slots=True)
class _Attached:
    """Descriptors attached in one call, and `again`, which attaches the same once more.

    `file`: descriptor kept open for that, -1 for none.
    """

    function: str
    descriptors: tuple[int, ...]
    again: Callable[[], tuple[int, ...]]
    file: int = -1
    look: Callable[[], None] | None = None  # raises MappedTooOften where they should be detached
    inode: bytes = b""  # of the file, from mappers.inode_of


@dataclass(slots=True)
class Module:
    """A compiled set of probes in the kernel with its `maps`; programs are loaded on first use.
    Close it.

    `remarks`: irregularities that cost the window nothing. `before_close`: called at the start of
    `close`.
    `held`: descriptors of attached probes. `at_once`: whether a program can be attached to many
    functions in one call (not on older kernels). `patience_s`: seconds left, in total, for retrying
    attachments that fail for the time being. `may_rest`: whether `rest` may be called; attached
    files are then kept open. `rests`: nothing is attached since `rest` was called.
    """

    compiled: Compiled
    maps: dict[str, Table]
    root: Path = ROOT
    remarks: list[str] = field(default_factory=list)
    variants: Mapping[str, Variant] = field(default_factory=dict)  # by name
    numbers: Sequence[int] = ()  # constants that this host decides
    refused: list[Refused] = field(default_factory=list)
    left_out: frozenset[str] = frozenset()  # programs not to load, as if the kernel refused them
    before_close: list[Callable[[], None]] = field(default_factory=list)
    held: set[int] = field(default_factory=set)
    at_once: bool = True
    patience_s: float = _PATIENCE_S
    may_rest: bool = False
    rests: bool = False
    _attached: dict[int, _Attached] = field(default_factory=dict)  # by descriptor
    _programs: dict[tuple[str, int | None], Program] = field(default_factory=dict)  # by function and place
    _withdrawn: set[int] = field(default_factory=set)
    _mapped_by: str = ""
    _trials: walks.Trials | None = None
    _looking: threading.Thread | None = None
    _ended: threading.Event = field(default_factory=threading.Event)
    _changes: threading.RLock = field(
        default_factory=threading.RLock
    )  # guards what is attached, while another thread checks it
    _stats_fd: int = -1
    _guard: int = -1  # the warden ends when this is closed, by us and by whoever inherited it

    def attach(self, tracepoints: Sequence[Tracepoint]) -> None:
        """Load and attach each program; failures are added to `refused`."""
        for point in tracepoints:
            try:
                program = self.program(point.function, programs.TRACEPOINT)
                self._attach_and_store(point.function, partial(_attach_tracepoint, program.fd, point.event, self.root))
            except (OSError, ValueError) as error:
                self.refused.append(Refused(point.function, f"{point.event}: {_one_line(error)}"))

    def attach_clock(self, function: str, hz: int) -> None:
        """Run a program `hz` times a second on each CPU. Raises OSError, ValueError from the
        kernel.
        """
        program = self.program(function, programs.PERF_EVENT)
        self._attach_and_store(function, partial(perf_events.attach_clock, program.fd, hz, self.root))

    def _attach_and_store(self, function: str, attach: Callable[[], tuple[int, ...]]) -> None:
        """Call `attach`, which attaches the program `function`; store its descriptors, and `attach` itself for `wake`."""
        descriptors = attach()
        self.held.update(descriptors)
        self._remember(_Attached(function, descriptors, attach))

    def _remember(self, one: _Attached) -> None:
        """Store the result of one attach call under each of its descriptors."""
        self._attached.update(dict.fromkeys(one.descriptors, one))

    def program(
        self, function: str, kind: int = programs.KPROBE, attach_type: int = -1, place: int | None = None
    ) -> Program:
        """Return the program `function`, loaded on first use, once for each `place`. `costs` includes it.

        `kind`: enum bpf_prog_type. `attach_type`: enum bpf_attach_type, -1 for none. `place`: value of
        RS_PLACE, the index under which hits are counted; None for the program's default. Raises OSError,
        ValueError, NotCompiled.
        """
        if (function, place) not in self._programs:
            self._programs[function, place] = self._load(function, kind, attach_type, place)
        return self._programs[function, place]

    def _load(self, function: str, kind: int, attach_type: int, place: int | None) -> Program:
        """Patch constants, field offsets and map descriptors into a program's compiled code, and load it.

        Raises PermissionError for a program in `left_out`, FileNotFoundError where it was not compiled,
        ValueError where it has no RS_PLACE but `place` is given, NotCompiled, other errors of the kernel as
        OSError.
        """
        variant = self.variants.get(function) or Variant(function, function, ())
        if {function, variant.of} & self.left_out:
            raise PermissionError(errno.EACCES, f"{function} is left out")
        compiled = next((one.code for one in self.compiled.programs if one.name == variant.of), None)
        if compiled is None:
            raise FileNotFoundError(f"{function} was not compiled")
        if place is not None and variant.place < 0:
            raise ValueError(f"{function} is the same in all places")
        code = with_numbers(compiled, variant.numbers, variant.place if place is None else place, self.numbers)
        code = tracepoints.placed(code, self.root)
        descriptors = [self.maps[shape.name].map_fd for shape in self.compiled.maps]
        return programs.load(function, programs.with_maps(code, descriptors), kind, self.compiled.license, attach_type)

    def attach_uprobes(
        self,
        function: str,
        library: FileBytes,
        offsets: Sequence[int],
        *,
        on_return: bool = False,
        place: int | None = None,
    ) -> tuple[int, ...]:
        """Attach a program to functions at these file offsets; return descriptors for `release`.

        `on_return`: when they return, not when they are entered. `place`: value of RS_PLACE; the program is
        loaded once for each. Transient failures (no memory, another tool that is about to end) are retried.
        Raises OSError, ValueError, FileNotRead, PlaceTaken, LeftAlone.
        """
        for page in {offset // _PAGE_BYTES for offset in offsets}:
            # The kernel reads the instruction while it holds locks, and would wait for ever for a
            # dead file system: attach only if the page is in memory.
            library.pread(1, page * _PAGE_BYTES)
        while True:
            try:
                links = self._attach_uprobes(function, library, offsets, on_return, place)
            except (OSError, shared_uprobes.PlaceTaken) as error:
                if self.patience_s <= 0 or (isinstance(error, OSError) and error.errno not in _PASSING):
                    raise
                self.patience_s -= _PAUSE_S
                time.sleep(_PAUSE_S)
                continue
            self.held.update(links)
            return links

    def _attach_uprobes(
        self, function: str, library: FileBytes, offsets: Sequence[int], on_return: bool, place: int | None
    ) -> tuple[int, ...]:
        """Attach once, without retries; adopt reference counters of other tools' probes where the kernel demands it."""
        return shared_uprobes.attach(
            lambda counters: self.attach_functions(
                function, library.path, offsets, counters, on_return=on_return, place=place
            ),
            library,
            offsets,
        )

    def attach_functions(
        self,
        function: str,
        path: Path,
        offsets: Sequence[int],
        counters: Mapping[int, int],
        *,
        on_return: bool,
        place: int | None = None,
    ) -> tuple[int, ...]:
        """Attach the program `function` once, at file `offsets` of an open file; return the descriptors.

        `counters`: reference counter's file offset by probe offset, which must equal other tools'. `place`:
        index under which hits are counted. Raises OSError, ValueError (also while the probes rest),
        LeftAlone.
        """
        if self.rests:
            raise ValueError("nothing is attached while the probes rest")
        self._require_guard(path)
        links = self._attach_once(function, path, offsets, counters, on_return, place)
        if self.may_rest or self._trials is not None:
            file = os.open(path, os.O_PATH | os.O_CLOEXEC)
            kept = Path(f"/proc/self/fd/{file}")
            again = partial(self._attach_once, function, kept, tuple(offsets), dict(counters), on_return, place)
            look = partial(self._trial, function, kept, tuple(offsets), dict(counters), place, math.inf)
            with self._changes:
                self._remember(
                    _Attached(function, links, again, file, look if self.at_once else None, mappers.inode_of(kept))
                )
            self._check_periodically()
        return links

    def _trial(
        self,
        function: str,
        path: Path,
        offsets: Sequence[int],
        counters: Mapping[int, int],
        place: int | None,
        waits_most_s: float,
    ) -> None:
        """Measure the cost of probes at these offsets. Raises MappedTooOften where forks would wait too long.

        `waits_most_s`: limit of the trial's wall seconds; its CPU time is always limited. Also raises OSError.
        """
        if self._trials is None:
            self._trials = walks.Trials(self.root)
        program = self.program(function, attach_type=uprobes.TRACE_UPROBE_MULTI, place=place)
        self._trials.need_few(program.fd, path, offsets, counters, waits_most_s)

    def _first_trial(
        self, function: str, path: Path, offsets: Sequence[int], counters: Mapping[int, int], place: int | None
    ) -> None:
        """Run the trial that precedes attaching. Its MappedTooOften also names the user who maps the file most.

        A file that was refused before, and is still mapped so often, is refused without another trial.
        """
        mappers.REFUSED.check(path, self.root)
        try:
            self._trial(function, path, offsets, counters, place, walks.WAITS_MOST_S)
        except uprobes.MappedTooOften as error:
            by = mappers.find_mapper(mappers.inode_of(path), self.root)
            mappers.REFUSED.add(path, by)
            raise uprobes.MappedTooOften(f"{error}{by}") from error

    def _check_periodically(self) -> None:
        """Start the thread that runs `_look`, unless it runs already or this kernel has no uprobe_multi."""
        if self._looking is None and self.at_once:
            looking = threading.Thread(target=self._look, name="mappings", daemon=True)
            with contextlib.suppress(RuntimeError):  # no thread available: the next probe tries again
                looking.start()
                self._looking = looking

    def _look(self) -> None:
        """Call `withdraw` again and again, on a thread, whenever mappings have grown or time has passed, until closed."""
        growth = walks.Growth(self.root)
        while not self._ended.wait(walks.LOOKS_EVERY_S):
            if growth.is_due():
                began_s = time.thread_time()
                self.withdraw()
                growth.looked(time.thread_time() - began_s)

    def withdraw(self) -> None:
        """Detach probes whose files are now mapped so often that detaching later would block every
        fork of the host.
        """
        for one in self._all_attached():
            with self._changes:
                if self.rests or one.look is None or not self._is_attached(one):
                    continue
                try:
                    one.look()
                except uprobes.MappedTooOften:
                    with walks.going_first():
                        self._withdraw(one.inode)
                except (OSError, ValueError, RankscopeError):
                    continue

    def _is_attached(self, one: _Attached) -> bool:
        """Tell whether any of its descriptors still belongs to `one`: was not released or withdrawn."""
        return any(self._attached.get(each) is one for each in one.descriptors)

    def _withdraw(self, inode: bytes) -> None:
        """Detach all probes of one file, whose other pages may be next; descriptors keep their
        numbers.
        """
        ours = [one for one in self._all_attached() if one.look is not None and one.inode == inode]
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for one in ours:
                for descriptor in one.descriptors:
                    if self._attached.get(descriptor) is one:
                        os.dup2(nothing, descriptor, inheritable=False)
                        del self._attached[descriptor]
                        self._withdrawn.add(descriptor)
            by = mappers.find_mapper(inode, self.root)
            self._mapped_by = str(by)
            mappers.REFUSED.add(Path(f"/proc/self/fd/{ours[0].file}"), by)
        finally:
            os.close(nothing)
            for one in ours:
                os.close(one.file)

    def withdrawn(self) -> walks.Withdrawn:
        """Return probes detached since the last call as their files were mapped too often.

        The caller closes their descriptors with `release`. `by` names the user who maps the file so often.
        """
        with self._changes:
            found, self._withdrawn = self._withdrawn & self.held, set()
        return walks.Withdrawn(tuple(found), self._mapped_by if found else "")

    def _all_attached(self) -> tuple[_Attached, ...]:
        """List all that is attached, or rests, as one entry per attach call."""
        with self._changes:
            return tuple({id(one): one for one in self._attached.values()}.values())

    def _require_guard(self, path: Path) -> None:
        """Start the warden before the first probe in a file; without one, require that one user
        alone maps the file.

        The warden ensures that no process blocks the forks of the host. Raises MappedByOthers.
        """
        if self._guard < 0 and warden.able():
            with contextlib.suppress(OSError):
                self._guard = warden.start()
        if self._guard < 0 and not warden.guarded():
            mappers.need_one_user(path, self.root)

    def _attach_once(
        self,
        function: str,
        path: Path,
        offsets: Sequence[int],
        counters: Mapping[int, int],
        on_return: bool,
        place: int | None,
    ) -> tuple[int, ...]:
        """Attach with one link for all offsets, or, on kernels without uprobe_multi, one perf event for each.

        Sets `at_once` to False in the second case. Raises OSError, ValueError, MappedTooOften, NotCompiled.
        """
        if self.at_once:
            program: Program | None = None
            try:
                program = self.program(function, attach_type=uprobes.TRACE_UPROBE_MULTI, place=place)
                self._first_trial(function, path, offsets, counters, place)
                return uprobes.attach_many(program.fd, path, offsets, on_return=on_return, counters=counters)
            except Exception:
                if program is not None:
                    if uprobes.knows_many(program.fd):
                        raise
                    os.close(self._programs.pop((function, place)).fd)
        fd = self.program(function, place=place).fd
        links = uprobes.attach_each(fd, path, offsets, on_return=on_return, counters=counters)
        self.at_once = False  # one by one works: Linux before 6.6
        return links

    def release(self, descriptors: Sequence[int]) -> None:
        """Detach probes now by closing their descriptors; skip numbers that are not in `held`."""
        for descriptor in descriptors:
            with self._changes:
                if descriptor not in self.held:
                    continue
                self.held.discard(descriptor)
                self._withdrawn.discard(descriptor)
                one = self._attached.pop(descriptor, None)
                os.close(descriptor)
                if (
                    one is not None
                    and one.file >= 0
                    and not any(self._attached.get(each) is one for each in one.descriptors)
                ):
                    os.close(one.file)

    def rest(self) -> None:
        """Detach everything but keep what is needed to attach it again with `wake`; no process pays
        for probes meanwhile.

        Descriptors keep their numbers, so `release` works meanwhile. Each detach waits for all CPUs
        of the kernel: several in parallel share such a wait.
        """
        if self.rests:
            return
        with self._changes:  # waits for a check in progress
            self.rests = True
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

        def release_one(descriptor: int) -> None:
            """Detach by putting /dev/null in the descriptor's place; its number stays in use."""
            os.dup2(nothing, descriptor, inheritable=False)

        try:
            try:
                with ThreadPoolExecutor(_AT_ONCE) as several:
                    list(several.map(release_one, self.held))
            except RuntimeError as error:
                if not room.refused_a_thread(error):
                    raise
                for descriptor in self.held:  # any user can use up the host's threads
                    release_one(descriptor)
        finally:
            os.close(nothing)

    def wake(self) -> tuple[Refused, ...]:
        """Attach again what `rest` detached; return what the kernel now refuses."""
        if not self.rests:
            return ()
        self.rests = False
        refused: list[Refused] = []
        for one in self._all_attached():
            try:
                fresh = one.again()
            except (OSError, ValueError, uprobes.MappedTooOften) as error:
                refused.append(Refused(one.function, _one_line(error)))
                continue
            with self._changes:
                for old, new in zip(one.descriptors, fresh, strict=False):
                    # it may have been released, and its number reused
                    if self._attached.get(old) is one:
                        os.dup2(new, old, inheritable=False)
            for descriptor in fresh:
                os.close(descriptor)
        return tuple(refused)

    @property
    def metered(self) -> bool:
        """Tell whether the kernel counts the run time of programs."""
        return self._stats_fd >= 0

    def costs(self) -> tuple[ProgramCost, ...]:
        """Return run count and time of every loaded program, summed over places; empty where not
        metered.
        """
        if self._stats_fd < 0:
            return ()
        counts, times_ns = Counter[str](), Counter[str]()
        for (name, _), program in [*self._programs.items()]:
            stats = syscalls.program_stats(program.fd)
            counts[name] += stats.run_count
            times_ns[name] += stats.run_time_ns
        return tuple(ProgramCost(name, counts[name], times_ns[name]) for name in sorted(counts))

    def counters(self, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
        """Read the slots of rs_counters, summed over CPUs, as (name, count); `names`: of slot 0, 1, and so on."""
        table = self.maps["rs_counters"]
        return tuple((name, int(sum(table[ctypes.c_int(slot)]))) for slot, name in enumerate(names))

    def close(self) -> None:
        """Detach everything and free the programs. Safe to call twice."""
        for end in self.before_close:
            end()
        self.before_close.clear()
        self._ended.set()
        if self._looking is not None:
            self._looking.join()
            self._looking = None
        if self.held and not self.rests:
            _let_a_child_detach()
        self.release(tuple(self.held))
        for descriptor in (*(one.fd for one in self._programs.values()), *(one.map_fd for one in self.maps.values())):
            os.close(descriptor)
        self._programs.clear()
        self.maps.clear()
        if self._trials is not None:
            self._trials.close()
            self._trials = None
        if self._stats_fd >= 0:
            os.close(self._stats_fd)
            self._stats_fd = -1
        if self._guard >= 0:
            os.close(self._guard)
            self._guard = -1


def aside(module: Module, work: Callable[[], None]) -> None:
    """Do `work` on a thread, which is awaited before the probes are closed; here where no thread is available.

    Detaching takes 20 ms, or 0.3 s a function before Linux 6.6, while the ring must be drained.
    """
    thread = threading.Thread(target=work, name="detach", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        work()
        return
    module.before_close.append(thread.join)


def _let_a_child_detach() -> None:
    """Let a short-lived child hold every attached probe, so that closing them here costs nothing.

    The last close of a uprobe or tracepoint waits for RCU grace periods (0.14 and 0.07 s each, one
    after the other under the kernel's event_mutex: 5 s for all probes, measured), and a verdict
    must not wait for that. The child only exits a little later; the kernel then detaches what it
    held. A second fork leaves no zombie in a parent that lives on.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads: the child only exits
        child = os.fork()
    if child == 0:
        try:
            for standard in (0, 1, 2):  # else a pipe that our caller reads would stay open
                os.close(standard)
            if os.fork() == 0:
                time.sleep(_CHILD_WAITS_S)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _attach_tracepoint(program_fd: int, event: str, root: Path) -> tuple[int, ...]:
    """Attach a loaded program to a tracepoint category:name; return its one descriptor. Raises OSError, ValueError."""
    return (perf_events.attach_tracepoint(program_fd, event, root),)


def _one_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 300 characters; its class name if it has no message."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]
