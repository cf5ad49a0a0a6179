"""The probes of tier 0: calls of few functions, and ends of processes. Loaded once, attached on request.

Everything is released when this process ends, however it ends: programs, maps and probes exist as
long as its descriptors.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from rankscope.observer.apart.look import look
from rankscope.observer.live import sources
from rankscope.observer.live.kernel_probes import in_initial_pid_namespace
from rankscope.observer.watch.marker import MARKERS
from rankscope.observer.watch.shares import RANKS_MOST, Notes
from rankscope.observer.window.manifest import ProbeCost
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.bpf import loader, ring
from rankscope.probes.bpf.compiler.compiled import BpfUnavailable
from rankscope.probes.bpf.counters import COUNTERS, LOSSES, RANK
from rankscope.probes.bpf.functions.uprobes import LeftAlone
from rankscope.probes.bpf.functions.walks import Withdrawn
from rankscope.probes.bpf.module import Module, aside
from rankscope.probes.calls import in_progress
from rankscope.probes.calls import probe as calls
from rankscope.probes.calls.attached import FileKey
from rankscope.probes.calls.probe import (
    LIBRARIES_MOST,
    LOOK_MOST_S,
    Library,
    functions_of,
    libraries_of,
    mapped_libraries,
)
from rankscope.probes.calls.programs import enter_program, leave_program, programs
from rankscope.probes.elf.return_sites import leave_offsets
from rankscope.probes.mapped.reader import FileNotRead
from rankscope.probes.sched import exits

_RING_BYTES = (
    256 * 4096
    # 1 MiB, 16,384 events: 16 ranks while their markers are chosen, 500 calls a second each, for two
    # seconds
)
RING_EVENTS = _RING_BYTES // ring.STRIDE_BYTES
_FIND_MOST_S = 10.0  # seconds for one library: jaxlib, the largest, takes 1 s
_LIBRARIES_KNOWN = 4096  # files whose functions are cached
_AGAIN_S = 3600.0  # seconds until a library whose search failed is searched again for the same user
# Calls in progress of one process: 16 threads, 4 nested. The map has room for all (9 MB), so that
# no process can fill it.
_SOURCES = (calls.SOURCE, exits.SOURCE)
_NUMBERS = (*exits.NUMBERS, "RS_CALLS_EACH")  # constants that the host decides
_CALLS_EACH = 64
_TIDY_EACH_S = 60.0  # seconds between removals of calls that never return
# sooner after a process has ended: its pid may be reused by one with calls of its own
_TIDY_AFTER_END_S = 5.0
_OF_ANYBODY = ("ring_full", "call_map_full")
Place = tuple[int, FileKey]  # row of MARKERS, library file
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class _Function:
    """File offsets of the functions of a row. `ends`: their exits, where they must have no return
    probe.
    """

    offsets: tuple[int, ...]
    ends: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class _Functions:
    """Functions of a library by row. `identity`: of its file (MappedFile); `said`: why it has none."""

    of_row: dict[int, _Function]
    identity: tuple[int, ...] = ()
    said: str = ""


class _Replaced(Exception):
    """The device and inode belong to another file by now."""


@dataclass(slots=True)
class Pulse:
    """Loaded probes. `notes` says what is not seen.

    `put_off`: number of operations delayed because this host lacked resources (processes, memory,
    descriptors, map entries).
    """

    module: Module
    events: ring.Ring
    root: Path = Path("/")
    notes: Notes = field(default_factory=Notes)
    put_off: int = 0
    _links: dict[Place, tuple[int, ...]] = field(default_factory=dict)
    _functions: dict[FileKey, _Functions] = field(default_factory=dict)
    # (file, user) -> time to try again (CLOCK_MONOTONIC)
    _again_s: dict[tuple[FileKey, str], float] = field(default_factory=dict)
    # file -> time until which no probe is inserted (CLOCK_MONOTONIC)
    _costly_s: dict[FileKey, float] = field(default_factory=dict)
    _tidy_s: float = float("-inf")  # time of the next cleanup

    def watch(self, pid: int) -> None:
        """Count the calls of this process from now on, and report its end. OSError where the kernel
        has no room.
        """
        self.module.maps["rs_targets"][ctypes.c_uint32(pid)] = ctypes.c_uint32(RANK)

    def maps_a_library(self, pid: int) -> bool:
        """Tell whether the process maps a library of the call table; without one it is no rank, or
        not yet.
        """
        return bool(mapped_libraries(pid, _PREFIXES, self.root))

    def forget(self, pid: int) -> None:
        """Stop counting the calls of this process, if it is watched; probes stay attached."""
        with contextlib.suppress(KeyError):
            del self.module.maps["rs_targets"][ctypes.c_uint32(pid)]

    def listen(self, pid: int, rows: Collection[int] | None = None, user: str = "") -> frozenset[Place]:
        """Attach to functions in the libraries that this process maps; return the attached ones.

        `rows`: of `MARKERS`, None: all. Takes at most `LOOK_MOST_S` plus the time for one library
        (`_FIND_MOST_S`); what was skipped is a note for `user`.
        """
        found = set()
        mapped, until = libraries_of(pid, _PREFIXES, self.root), time.monotonic() + LOOK_MOST_S
        left_out = mapped.left_out
        for library in mapped.libraries:
            if library.key not in self._functions and time.monotonic() >= until:
                left_out += 1
                continue
            try:
                found |= self._attach_all(library, rows, user)
            # the cache is of a file that is gone: its offsets are meaningless in this one
            except _Replaced:
                del self._functions[library.key]
                with contextlib.suppress(_Replaced):
                    found |= self._attach_all(library, rows, user)
        if left_out:
            self.notes.add(
                f"{left_out} libraries of pid {pid} were not searched; limits per process: {LIBRARIES_MOST} libraries, {LOOK_MOST_S:g} s",
                user,
            )
        return frozenset(found)

    def detach_others(self, places: Collection[Place]) -> None:
        """Detach all functions but `places`: on a thread, as the kernel takes long."""
        dropped = [place for place in self._links if place not in places]
        descriptors = [descriptor for place in dropped for descriptor in self._links.pop(place)]
        if not descriptors:
            return
        gone = {row for row, _ in dropped} - {row for row, _ in self._links}

        def detach() -> None:
            """Remove the probes, and the open calls of functions that are attached nowhere now."""
            self.module.release(descriptors)
            # their returns will not be seen; `tidy` reports a lack of resources
            with contextlib.suppress(OSError):
                in_progress.take_out(self.module.maps, lambda call: call.row in gone)

        aside(self.module, detach)

    def tidy(self, now_s: float, ended: bool) -> None:
        """Drop withdrawn probes; at intervals, sooner after processes `ended`, remove calls of killed threads.

        `now_s`: CLOCK_MONOTONIC.
        """
        if (gone := self.module.withdrawn()).links:
            self._forget_withdrawn(gone)
        if now_s >= self._tidy_s:
            self._tidy_s = now_s + _TIDY_EACH_S
            try:
                in_progress.take_out_ended(self.module.maps, self.root)
            except OSError as error:
                self.postpone("calls in progress", error)
        if ended:
            self._tidy_s = min(self._tidy_s, now_s + _TIDY_AFTER_END_S)

    def _forget_withdrawn(self, gone: Withdrawn) -> None:
        """Detach functions whose probes were withdrawn, add a note, and insert none in their files for an hour."""
        places = [place for place, links in self._links.items() if not set(links).isdisjoint(gone.links)]
        for _, file in places:
            _put(self._costly_s, file, time.monotonic() + _AGAIN_S)
        self.notes.add(
            f"{len(places)} functions are no longer probed: a page of their file is mapped so often that "
            f"removing a probe would block every fork of this host{gone.by}"
        )
        self.detach_others([place for place in self._links if place not in places])

    def costs(self) -> tuple[ProbeCost, ...]:
        """Return run count and time of each program since it was loaded."""
        return tuple(ProbeCost(one.program, one.run_count, one.run_time_ns) for one in self.module.costs())

    def lost(self) -> int:
        """Count the events that were not seen, since the beginning."""
        return sum(count for name, count in self.module.counters(COUNTERS) if name in LOSSES)

    def missed(self) -> int:
        """Count the calls and ends lost in shared maps since the beginning: any user's may be among
        them.
        """
        return sum(count for name, count in self.module.counters(COUNTERS) if name in _OF_ANYBODY)

    def close(self) -> None:
        """Detach and free everything."""
        self.events.close()
        self.module.close()

    def _functions_in(self, library: Library, user: str = "") -> dict[int, _Function]:
        """Find the functions of a library by row, cached; empty where the search failed, with a note for `user`.

        Failures due to the process or the search itself are not cached for the file: others map it
        as well.
        """
        known = self._functions.get(library.key)
        if known is None:
            if time.monotonic() < self._again_s.get((library.key, user), 0.0):
                return {}
            try:
                known = look(partial(_find, library), _Functions, longest_s=_FIND_MOST_S)
            except FileNotRead as error:
                self.notes.add(f"{library.name} of pid {library.pid}: {error}", user)
                return {}
            except RankscopeError as error:
                self.notes.add(f"{library.name}: {error}", user)
                _put(self._again_s, (library.key, user), time.monotonic() + _AGAIN_S)
                return {}
            except OSError as error:  # no process available, say: try again at the next request
                self.postpone(library.name, error, user)
                return {}
            if known.said:
                self.notes.add(f"{library.name}: {known.said}", user)
            _put(self._functions, library.key, known)
        return known.of_row

    def postpone(self, what: str, error: OSError, user: str = "") -> None:
        """Count what failed for lack of resources, and add a note, once; `what`: its name in the note."""
        self.put_off += 1
        self.notes.add(f"{what}: not now ({error.strerror or error})", user)

    def _attach_all(self, library: Library, rows: Collection[int] | None, user: str) -> set[Place]:
        """Attach to the functions of a library (`rows` of `MARKERS`, None: all); return those. Raises _Replaced."""
        return {
            (row, library.key)
            for row, function in self._functions_in(library, user).items()
            if (rows is None or row in rows) and self._attach(library, row, function, user)
        }

    def _attach(self, library: Library, row: int, function: _Function, user: str) -> bool:
        """Attach probes to begin and end of a function, unless there; return whether it has them.

        Failures become notes for `user`. Raises _Replaced.
        """
        place = row, library.key
        if place in self._links:
            return True
        if time.monotonic() < self._costly_s.get(library.key, 0.0):
            return False
        links: list[int] = []
        try:
            with library.open() as file:
                if file.identity != self._functions[library.key].identity:
                    raise _Replaced
                links += self.module.attach_uprobes(enter_program(row), file, function.offsets)
                ends = function.offsets if function.ends is None else function.ends
                links += self.module.attach_uprobes(
                    leave_program(row, MARKERS[row]), file, ends, on_return=function.ends is None
                )
        except _Replaced:
            raise
        except Exception as error:
            self.module.release(links)
            if isinstance(error, LeftAlone):
                _put(self._costly_s, library.key, time.monotonic() + _AGAIN_S)
            reason = (str(error) or type(error).__name__).splitlines()[0]
            self.notes.add(f"{MARKERS[row].name} in {library.name}: {reason}", user)
            return False
        self._links[place] = tuple(links)
        return True


def _put(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Set a value; beyond `_LIBRARIES_KNOWN` entries the oldest is dropped."""
    known[key] = value
    if len(known) > _LIBRARIES_KNOWN:
        del known[next(iter(known))]


_PREFIXES = tuple({prefix for row in MARKERS for prefix in row.libraries})


def _find(library: Library) -> _Functions:
    """Find the functions of a library; run in a process without rights.

    FileNotRead where the process gives no file; errors in the file are returned in `said`.
    """
    rows = {place: row for place, row in enumerate(MARKERS) if row.library and library.name.startswith(row.libraries)}
    found: dict[int, _Function] = {}
    taken: set[int] = set()
    with library.open() as file:
        try:
            symbols = functions_of(file, rows.values())
            for place, row in rows.items():
                mine = [symbol for symbol in symbols[row] if symbol.address not in taken]
                taken.update(symbol.address for symbol in mine)
                if mine:
                    ends = tuple(leave_offsets(file, mine)) if row.throws else None
                    found[place] = _Function(tuple(symbol.offset for symbol in mine), ends)
        except FileNotRead:  # its file system does not answer now, say: not a property of the file
            raise
        except (RankscopeError, OSError) as error:
            return _Functions({}, file.identity, str(error))
        return _Functions(found, file.identity)


def text() -> str:
    """Return the C source of the BPF programs, the same on all hosts."""
    return loader.text_of(_SOURCES, generated=programs(MARKERS), names=_NUMBERS)


def load(root: Path = Path("/")) -> Pulse:
    """Load the probes of tier 0. Raises as rankscope.probes.bpf.loader.load."""
    if not in_initial_pid_namespace(root):
        raise BpfUnavailable(
            "this process is in a pid namespace of its own, where threads have other numbers than in the kernel"
        )
    module = loader.load(
        _SOURCES, numbers={**exits.numbers(root), "RS_CALLS_EACH": _CALLS_EACH}, generated=programs(MARKERS),
        entries={"rs_events": _RING_BYTES, "rs_calls": _CALLS_EACH * RANKS_MOST, "rs_call_sums": 1}, root=root,
    )  # fmt: skip
    try:
        module.left_out = sources.left_out()
        module.attach(exits.TRACEPOINTS)
        events = ring.Ring(module.maps["rs_events"].map_fd, _RING_BYTES)
    except BaseException:
        module.close()
        raise
    pulse = Pulse(module, events, root)
    for refused in module.refused:
        pulse.notes.add(f"{refused.program} is not attached: {refused.reason}")
    return pulse
