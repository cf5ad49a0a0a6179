"""Time library calls by uprobe, in the libraries that the watched processes map.

In: pids. Out: CALL events in the ring, sums per process, open calls, hits per row of the call
table. A row that is called more often than its budget allows is detached, with a note: a probe must
never cost the job more than its information is worth.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.base.text import named
from rankscope.probes.bpf.functions.uprobes import LeftAlone
from rankscope.probes.bpf.module import Module, aside
from rankscope.probes.calls import in_progress
from rankscope.probes.calls.attached import FileKey, Places, Row, Untimed, processes_of, too_often
from rankscope.probes.calls.launches import LaunchMeter
from rankscope.probes.calls.programs import enter_program, launch_site_program, leave_program
from rankscope.probes.calls.row import LAUNCH, SITED
from rankscope.probes.calls.table import CALL_TABLE, CallRow
from rankscope.probes.elf.exports import Symbol, file_offsets, find_functions, find_names
from rankscope.probes.elf.reader import FileBytes
from rankscope.probes.elf.return_sites import Leaves
from rankscope.probes.host import maps
from rankscope.probes.host.fair import about, group_by, least_first, whose
from rankscope.probes.host.maps import read_maps
from rankscope.probes.mapped.file import MappedFile, open_mapped

SOURCE = Path(__file__).parent / "calls.bpf.c"
_MAX_OVERLOADS = 4
LIBRARIES_MOST = 16  # opened per process: the timed functions lie in ten files at most
LOOK_MOST_S = 10.0  # seconds for the libraries of one process; the largest, jaxlib, takes 1 s
_TIDY_EACH_S = 10.0  # seconds between removals of calls of ended processes, which may be very many
# seconds for the libraries of all: an observer that is silent for two minutes is considered dead
_LOOK_ALL_MOST_S = 60.0


@dataclass(frozen=True, slots=True)
class Library:
    """A library file as one process maps it; (device, inode) distinguishes copies in different
    containers.
    """

    pid: int
    mapping: maps.Mapping
    root: Path = Path("/")

    @property
    def name(self) -> str:
        """The file's name without folders."""
        return self.mapping.path.rpartition("/")[2]

    @property
    def key(self) -> tuple[str, int]:
        """Device and inode."""
        return self.mapping.device, self.mapping.inode

    def open(self) -> MappedFile:
        """Open the file. Raises FileNotRead."""
        return open_mapped(self.pid, self.mapping, self.root)


@dataclass(frozen=True, slots=True)
class MappedLibraries:
    """Libraries that a process maps, at most `LIBRARIES_MOST`; `left_out`: how many more it has."""

    libraries: tuple[Library, ...]
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that a thread entered and has not left."""

    tid: int
    row: int
    since_ns: int


@dataclass(frozen=True, slots=True)
class CallSum:
    """Calls of one summed row in one process since the probes were loaded, brief ones included; of
    copies, per direction.
    """

    tgid: int
    row: int
    aux: int
    count: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Hits:
    """Calls of the functions of one place, in watched processes and in all others."""

    watched: int
    others: int

    def since(self, before: Hits) -> Hits:
        """Subtract an earlier count."""
        return Hits(self.watched - before.watched, self.others - before.others)


@dataclass(slots=True)
class CallProbe:
    """Attached rows of the call table. `notes` says what is not timed, and why.

    `launches` counts the rows that are never timed.
    """

    module: Module
    table: tuple[CallRow, ...] = CALL_TABLE
    budget_hz: float = 1000.0
    site_budget_hz: float = 300.0  # per row: a stack of 10-40 frames costs the process 5-15 µs more
    notes: list[str] = field(default_factory=list)
    untimed: list[Untimed] = field(default_factory=list)
    launches: LaunchMeter | None = None
    _rows: dict[int, Row] = field(default_factory=dict)
    _mapped_by: dict[FileKey, set[int]] = field(default_factory=dict)
    _names: dict[FileKey, str] = field(default_factory=dict)
    _looked_at: set[tuple[str, int]] = field(default_factory=set)
    # reasons, for files that no process has given yet
    _unopened: dict[FileKey, str] = field(default_factory=dict)
    _refused: set[FileKey] = field(default_factory=set)  # files that get no more probes
    _placed: set[tuple[str, str, int]] = field(default_factory=set)
    _hits: dict[int, Hits] = field(default_factory=dict)
    _places: Places = field(default_factory=Places)
    _users: dict[int, str] = field(default_factory=dict)
    _hits_at: float = 0.0
    _tidy_s: float = float("inf")  # time of the next cleanup
    _exported: set[int] = field(default_factory=set)

    def watch(self, pids: Iterable[int], root: Path = Path("/")) -> None:
        """Attach to every library of the table that these processes map.

        Users take turns, the least served first, so that one user's many large files do not use up
        the time of others.
        """
        of_users = group_by(watched := list(pids), lambda pid: whose(pid, root))
        self._users.update((pid, user) for user, mine in of_users.items() for pid in mine)
        left_out: dict[int, int] = {}
        until = time.monotonic() + _LOOK_ALL_MOST_S
        for pid in least_first(of_users):
            mapped = libraries_of(pid, _prefixes(self.table), root)
            for one in mapped.libraries:
                self._mapped_by.setdefault(one.key, set()).add(pid)
                self._names[one.key] = one.name
            fresh = [one for one in mapped.libraries if one.key not in self._looked_at]
            left = mapped.left_out + len(fresh) - self._look_at(fresh, min(until, time.monotonic() + LOOK_MOST_S))
            if left:
                left_out[pid] = left
        if left_out:
            first, *more = left_out
            others = f" and {len(more)} more processes" if more else ""
            said = (
                f"{sum(left_out.values())} libraries of pid {first}{others} were not searched, so calls into them are not "
                f"timed; limits: {LIBRARIES_MOST} libraries and {LOOK_MOST_S:g} s per process, {_LOOK_ALL_MOST_S:g} s in all"
            )
            self.notes.append(about(tuple(left_out), said))
        for key, why in self._unopened.items():
            self._lose(key, self._rows_in(key), why)
        self._unopened.clear()
        if self.launches is not None:
            self.launches.begin(len(watched))

    def _look_at(self, libraries: Sequence[Library], until: float) -> int:
        """Attach to libraries until the time `until` (CLOCK_MONOTONIC, s); return how many were
        done.
        """
        for count, library in enumerate(libraries):
            if time.monotonic() >= until:
                return count
            try:
                self._attach_library(library)
            # for this process: another one may map the same file
            except (OSError, RankscopeError) as error:
                self._unopened[library.key] = f"calls into {named(library.name)} are not timed: {error}"
                continue
            self._unopened.pop(library.key, None)
            self._looked_at.add(library.key)
        return len(libraries)

    def _lose(self, file: FileKey, rows: Iterable[CallRow], why: str) -> None:
        """Record in `notes` and `untimed` why the functions of `rows` in `file` are not timed."""
        self._note(file, why)
        self.untimed.append(Untimed(file, frozenset(row.role for row in rows), why))

    def _note(self, file: FileKey, why: str) -> None:
        """Add a note for the processes that map `file`."""
        self.notes.append(about(self._mapped_by.setdefault(file, set()), why))

    def _rows_in(self, file: FileKey) -> list[CallRow]:
        """List the rows whose functions a file may export, by its name."""
        name = self._names.get(file, "")
        return [row for row in self.table if name.startswith(row.libraries or "/")]

    def untimed_of(self, pids: Collection[int]) -> tuple[Untimed, ...]:
        """Return the entries of `untimed` about files that these processes map."""
        return tuple(one for one in self.untimed if not self._mapped_by.get(one.file, set()).isdisjoint(pids))

    def _user_of(self, library: Library) -> str:
        """Name the user whose process maps a library; cached by pid."""
        if library.pid not in self._users:
            self._users[library.pid] = whose(library.pid, library.root)
        return self._users[library.pid]

    def _attach_library(self, library: Library) -> None:
        """Attach the rows of the table to one library. Raises errors of opening it; others become
        notes.
        """
        rows = [(index, row) for index, row in enumerate(self.table) if library.name.startswith(row.libraries or "/")]
        file = library.open()
        try:
            found = functions_of(file, [row for _, row in rows])
        except (OSError, RankscopeError) as error:
            self._lose(
                library.key, [row for _, row in rows], f"calls into {named(library.name)} are not timed: {error}"
            )
            return
        taken: set[int] = set()  # two names of one function: the first row has it
        leaves = Leaves(file)
        for index, row in rows:
            symbols = [symbol for symbol in found[row] if symbol.address not in taken]
            taken.update(symbol.address for symbol in symbols)
            if row.role == LAUNCH:
                self._count_launches(file, index, symbols)
                continue
            try:
                ends = leaves.offsets(symbols) if row.throws and symbols else None
            except (OSError, RankscopeError) as error:
                self._lose(library.key, [row], f"{row.name} in {named(library.name)} is not timed: {error}")
                continue
            self._attach(file, library, index, [symbol.offset for symbol in symbols], ends)
        if not any(found.values()) and any(library.name.startswith(row.library) for _, row in rows if row.library):
            self._note(library.key, f"{named(library.name)} has none of the functions that are timed")

    def _count_launches(self, library: MappedFile, index: int, symbols: list[Symbol]) -> None:
        """Have the launch meter count these functions of launch row `index`; create the meter if needed."""
        if not symbols:
            return
        if self.launches is None:
            self.launches = LaunchMeter(self.module, self.notes, self.budget_hz)
        self.launches.add(index, launch_site_program(self.table[index]), library, [symbol.offset for symbol in symbols])

    def knows(self, name: str, device: str, inode: int) -> bool:
        """Tell whether `attach_at` opened this file before for the row of that name."""
        return (name, device, inode) in self._placed

    def attach_at(self, name: str, library: Library, addresses: Iterable[int]) -> None:
        """Time the row `name`, whose functions another search found at `addresses` (as linked) of
        this file. Once per file.
        """
        if self.knows(name, *library.key):
            return
        index = next((index for index, row in enumerate(self.table) if row.name == name and not row.library), None)
        if index is None:
            return
        try:
            file = library.open()
            self._placed.add((name, *library.key))
            offsets = file_offsets(file, addresses)
        except (OSError, RankscopeError) as error:
            self._lose(library.key, [self.table[index]], f"{name} in {named(library.name)} is not timed: {error}")
            return
        self._mapped_by.setdefault(library.key, set()).add(library.pid)
        self._attach(file, library, index, offsets)

    def _attach(
        self, file: MappedFile, library: Library, index: int, offsets: Sequence[int], ends: Sequence[int] | None = None
    ) -> None:
        """Attach probes of row `index` to functions at file `offsets` and to their exits. Failures become notes.

        `ends`: file offsets of the exits; None: use return probes.
        """
        if not offsets or library.key in self._refused:
            return
        row, held, key = self.table[index], self._rows.setdefault(index, Row()), library.key
        held.seen.add(key)
        links = held.links.setdefault(key, [])
        if key not in held.places:
            held.places[key] = self._places.take(index, partial(self._user_of, library))
        try:
            links += self.module.attach_uprobes(enter_program(index), file, offsets, place=held.places[key])
            if row.role in SITED:
                sites = held.sites.setdefault(key, [])
                sites += self.module.attach_uprobes("rs_call_site", file, offsets)
            leave = leave_program(index, row)
            if ends is None:
                links += self.module.attach_uprobes(leave, file, offsets, on_return=True)
            else:
                links += self.module.attach_uprobes(leave, file, ends)
        except LeftAlone as error:
            self._refused.add(key)
            self.module.release(held.take((key,)))
            self._note(library.key, f"calls into {named(library.name)} are not timed: {error}")
            return
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            self._lose(key, [row], f"{row.name} in {named(library.name)} is not timed: {reason}")
            return
        self._exported.add(index)

    def rows_attached(self) -> frozenset[int]:
        """Return the numbers of the rows that are timed in at least one library."""
        return frozenset(self._exported)

    def enforce_budget(self, processes: int) -> None:
        """Detach rows from files where they were called more than `budget_hz` times a second per
        process since the last call.

        Processes that are not watched pay for the trap too. Their calls are counted separately and
        have the same allowance, that of `processes` processes, as how many of them call is not
        known.
        """
        table = self.module.maps["rs_call_hits"]
        now = time.monotonic()
        places = {place for index in self._exported for place in self._counted_in(index)}
        hits = {place: _sums(table[ctypes.c_int(place)]) for place in places}
        before, self._hits = self._hits, hits
        seconds, self._hits_at = now - self._hits_at, now
        self._tidy(now)
        self._forget_withdrawn()
        for index in sorted(self._exported):
            counted = {place: hits[place].since(before[place]) for place in self._counted_in(index) if place in before}
            if counted:
                self._enforce_budget(index, counted, max(processes, 1) * seconds, seconds)
        if self.launches is not None:
            self.launches.processes = max(processes, 1)

    def _tidy(self, now: float) -> None:
        """Remove calls of processes no longer watched from the kernel's maps, every `_TIDY_EACH_S` at most.

        `now`: time.monotonic().
        """
        due = now >= self._tidy_s
        self._tidy_s = now + _TIDY_EACH_S if due else min(self._tidy_s, now + _TIDY_EACH_S)
        if due:
            with contextlib.suppress(OSError):
                in_progress.take_out_unwatched(self.module.maps)

    def _forget_withdrawn(self) -> None:
        """Detach all rows from files that a user now maps too often: other pages may be next."""
        withdrawn = self.module.withdrawn()
        if not withdrawn.links:
            return
        gone = set(withdrawn.links)
        files = {
            file
            for row in self._rows.values()
            for links in (row.links, row.sites)
            for file, mine in links.items()
            if gone.intersection(mine)
        }
        why = (
            f"calls into {len(files) or 1} libraries are no longer timed: a page of them is mapped so often that "
            f"removing a probe would block every fork of this host{withdrawn.by}"
        )
        for index in sorted(self._exported):
            if mine := tuple(file for file in self._rows[index].links if file in files):
                self._detach(index, mine)
                # Unseen calls look like no calls at all: the same as never timed.
                self.untimed += [Untimed(file, frozenset({self.table[index].role}), why) for file in mine]
        self._refused |= files
        self.notes.append(why)

    def _counted_in(self, index: int) -> set[int]:
        """Return the places under which the calls of row `index` are counted, one per attached file or shared."""
        row = self._rows[index]
        return {row.places[file] for file in row.links}

    def _enforce_budget(self, index: int, counted: Mapping[int, Hits], process_s: float, seconds: float) -> None:
        """Detach a row, or its call sites, from files where it is called too often.

        `counted`: calls by place within `seconds`; `process_s`: `seconds` times the number of
        processes.
        """
        row, name = self._rows[index], self.table[index].name
        watched = {place: hits.watched for place, hits in counted.items()}
        others = {place: hits.others for place, hits in counted.items()}
        least = min(self.budget_hz, self.site_budget_hz) * process_s
        if len(row.links) == len(row.seen) and max(sum(watched.values()), sum(others.values())) <= least:
            return
        parts = row.parts(self._mapped_by)
        mine = too_often(watched, parts, self.budget_hz * process_s)
        theirs = too_often(others, parts, self.budget_hz * process_s)
        if mine or theirs:
            files, had = row.in_places({*mine, *theirs}), len(row.links)
            where = "" if len(files) == had else f" in {len(files)} files of {had}"
            self._detach(index, files)
            why = f"{name} is called too often to be timed"
            self.untimed += [Untimed(file, frozenset({self.table[index].role}), why, refused=False) for file in files]
            called = f"{sum(others[place] for place in theirs) / seconds:.0f} times a second by processes that are not watched"
            self.notes.append(
                f"{name} is called more than {self.budget_hz:.0f} times a second per process: no longer timed{where}"
                if mine
                else f"{name} is called {called}, which pay for the probe too: no longer timed{where}"
            )
        sited = {row.places[file] for file in row.sites}
        often = too_often(
            {place: calls for place, calls in watched.items() if place in sited}, parts, self.site_budget_hz * process_s
        )
        if often:
            had, files = len(row.sites), tuple(file for file in row.in_places(often) if file in row.sites)
            where = "" if len(files) == had else f", in {len(files)} files of {had}"
            aside(self.module, partial(self.module.release, row.take_sites(files)))
            self.notes.append(
                f"{name} is called more than {self.site_budget_hz:.0f} times a second per process: "
                f"it is timed, but its callers are no longer recorded{where}"
            )

    def _detach(self, index: int, files: Sequence[FileKey]) -> None:
        """Detach row `index` from these files, on a thread; drop the row where none remains."""
        row = self._rows[index]
        links = row.take(files)
        whose: Collection[int] | None = processes_of(files, self._mapped_by)
        if not row.links:
            self._exported.discard(index)
            del self._rows[index]
            whose = None
        aside(self.module, partial(self._detach_links, index, links, whose))

    def _detach_links(self, index: int, links: Sequence[int], whose: Collection[int] | None) -> None:
        """Close the descriptors of detached probes of row `index`, and remove its calls in progress.

        `whose`: only the calls of these processes; None for all.
        """
        self.module.release(links)
        # `whose`: processes concerned, None for all. Their returns will not be seen, so open calls
        # would hide the next call of their role.
        in_progress.take_out(self.module.maps, lambda call: call.row == index and (whose is None or call.tgid in whose))

    def open_calls(self) -> tuple[OpenCall, ...]:
        """List all calls in progress now, without those that ended by an exception."""
        return tuple(
            OpenCall(int(key.tid), int(entry.row), int(entry.ts_ns))
            for key, entry in self.module.maps["rs_calls"].items()
            if not (
                self.table[int(entry.row)].throws
                and in_progress.ended_by_exception(int(key.tid), int(entry.sp), int(entry.caller))
            )
        )

    def sums(self) -> tuple[CallSum, ...]:
        """Read calls, bytes and seconds per process, row and (of copies) direction, for rows that the kernel sums up.

        Launches are left out: their counts are valid only while they are counted.
        """
        return tuple(
            CallSum(int(key.tgid), int(key.row), int(key.aux), int(s.count), int(s.bytes), int(s.ns) / 1e9)
            for key, s in self.module.maps["rs_call_sums"].items()
            if self.table[int(key.row)].role != LAUNCH
        )


def _sums(cpus: Iterable[Any]) -> Hits:
    """Sum the hits of one place over all CPUs."""
    return Hits(sum(int(cpu.watched) for cpu in cpus), sum(int(cpu.others) for cpu in cpus))


def _prefixes(table: tuple[CallRow, ...]) -> tuple[str, ...]:
    """Return the beginnings of library file names in the call table, each once, in no set order."""
    return tuple({prefix for row in table for prefix in row.libraries})


def functions_of(library: FileBytes, rows: Iterable[CallRow]) -> dict[CallRow, tuple[Symbol, ...]]:
    """Find the functions of each row in a library, exported or not, each address once. Raises NotElf, OSError.

    Of each prefix of a name at most `_MAX_OVERLOADS` functions.
    """
    wanted = list(rows)
    by_name = find_names(library, [name for row in wanted if row.whole for name in row.names])
    by_prefix = find_functions(library, [prefix for row in wanted if not row.whole for prefix in row.prefixes])
    found: dict[CallRow, tuple[Symbol, ...]] = {}
    for row in wanted:
        symbols = [one for prefix in row.prefixes if not row.whole for one in by_prefix[prefix][:_MAX_OVERLOADS]]
        symbols += [symbol for name in row.names if row.whole for symbol in by_name[name]]
        found[row] = tuple({symbol.address: symbol for symbol in reversed(symbols)}.values())
    return found


def libraries_of(pid: int, prefixes: tuple[str, ...], root: Path = Path("/")) -> MappedLibraries:
    """List the files a process maps whose names start with one of `prefixes`; none when the process
    is gone.

    A process may map thousands of such files, and each takes time to open: only the first ones are
    returned.
    """
    found: dict[tuple[str, int], Library] = {}
    try:
        mappings = read_maps(pid, root, wanted=lambda path: path.rpartition("/")[2].startswith(prefixes))
    except OSError:
        return MappedLibraries(())
    for mapping in mappings:
        key = (mapping.device, mapping.inode)
        if key not in found:
            found[key] = Library(pid, mapping, root)
    libraries = tuple(found.values())
    return MappedLibraries(libraries[:LIBRARIES_MOST], max(len(libraries) - LIBRARIES_MOST, 0))


def mapped_libraries(pid: int, prefixes: tuple[str, ...], root: Path = Path("/")) -> tuple[Library, ...]:
    """List the files that a process maps whose names start with one of `prefixes`, at most `LIBRARIES_MOST`.

    None when the process is gone.
    """
    return libraries_of(pid, prefixes, root).libraries
