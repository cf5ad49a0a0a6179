"""Timing library calls by uprobe: which libraries the watched processes map, which rows of the call table they export.

In: pids. Out: CALL events in the ring, open calls, hits per row. A row that is hit more often than its budget is detached,
with a word about it: a probe must never cost the job more than it tells.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from probes.call_table import CALL_TABLE, CallRow
from probes.errors import RankscopeError
from probes.loader import Module
from probes.symbols import find_functions

SOURCE = Path(__file__).parent / "calls.bpf.c"
_MAPPED_FILE = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ [0-9a-f]+ ([0-9a-f:]+) (\d+) +(/.*)$")


@dataclass(frozen=True, slots=True)
class Library:
    """A library file as one process maps it; (device, inode) tells copies in different containers apart."""

    name: str
    path: Path  # through /proc/PID/root, so that it opens whatever mount namespace we are in
    device: str
    inode: int


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that has been entered and not left."""

    tid: int
    row: int
    since_ns: int


@dataclass(slots=True)
class CallProbe:
    """Attached rows of the call table. `notes` says what is not timed, and why."""

    module: Module
    table: tuple[CallRow, ...] = CALL_TABLE
    budget_hz: float = 1000.0
    notes: list[str] = field(default_factory=list)
    _attached: dict[tuple[str, int, int], list[tuple[str, int]]] = field(default_factory=dict)
    _looked_at: set[tuple[str, int]] = field(default_factory=set)
    _placed: set[tuple[str, str, int]] = field(default_factory=set)
    _hits: list[int] = field(default_factory=list)
    _hits_at: float = 0.0
    _exported: set[int] = field(default_factory=set)

    def watch(self, pids: Iterable[int], root: Path = Path("/")) -> None:
        """Attach to every library of the table that these processes map and that is not attached yet."""
        prefixes = tuple({row.library for row in self.table if row.library})
        for pid in pids:
            for library in mapped_libraries(pid, prefixes, root):
                if (library.device, library.inode) not in self._looked_at:
                    self._looked_at.add((library.device, library.inode))
                    self._attach_library(library)

    def _attach_library(self, library: Library) -> None:
        rows = [
            (index, row) for index, row in enumerate(self.table) if row.library and library.name.startswith(row.library)
        ]
        try:
            found = find_functions(library.path, [row.symbol for _, row in rows])
        except (OSError, RankscopeError) as error:
            self.notes.append(f"calls into {library.name} are not timed: {error}")
            return
        for index, row in rows:
            for symbol in found[row.symbol][:4]:
                try:
                    self._attach(library, index, symbol.address)
                except Exception as error:
                    self.notes.append(f"{row.name} in {library.name} is not timed: {str(error).splitlines()[0]}")
        if not any(found.values()):
            self.notes.append(f"{library.name} exports none of the functions that are timed")

    def knows(self, name: str, device: str, inode: int) -> bool:
        """Whether `attach_at` was called for this row and file."""
        return (name, device, inode) in self._placed

    def attach_at(self, name: str, library: Library, addresses: Iterable[int]) -> None:
        """Time the row `name`, whose functions somebody else found at `addresses` (as linked) of this file. Once per file."""
        if self.knows(name, library.device, library.inode):
            return
        self._placed.add((name, library.device, library.inode))
        index = next((index for index, row in enumerate(self.table) if row.name == name and not row.library), None)
        if index is None:
            return
        for address in addresses:
            try:
                self._attach(library, index, address)
            except Exception as error:
                self.notes.append(f"{name} in {library.name} is not timed: {str(error).splitlines()[0]}")

    def _attach(self, library: Library, index: int, address: int) -> None:
        self.module.program(f"rs_enter_{index}")
        self.module.program(f"rs_leave_{index}")
        path = str(library.path)
        self.module.bpf.attach_uprobe(name=path, addr=address, fn_name=f"rs_enter_{index}")
        self.module.bpf.attach_uretprobe(name=path, addr=address, fn_name=f"rs_leave_{index}")
        self._attached.setdefault((library.device, library.inode, index), []).append((path, address))
        self._exported.add(index)

    def rows_attached(self) -> frozenset[int]:
        """Rows of the table that are timed in at least one library."""
        return frozenset(self._exported)

    def enforce_budget(self, processes: int) -> None:
        """Detach rows called more than `budget_hz` times a second per process since the last call of this method."""
        table = self.module.bpf["rs_call_hits"]
        now = time.monotonic()
        hits = [int(sum(table[ctypes.c_int(index)])) for index in range(len(self.table))]
        if self._hits:
            allowed = self.budget_hz * max(processes, 1) * (now - self._hits_at)
            for index, row in enumerate(self.table):
                if hits[index] - self._hits[index] > allowed and index in self._exported:
                    self._detach(index)
                    self.notes.append(
                        f"{row.name} is called more than {self.budget_hz:.0f} times a second per process: no longer timed"
                    )
        self._hits, self._hits_at = hits, now

    def _detach(self, index: int) -> None:
        self._exported.discard(index)
        for key in [key for key in self._attached if key[2] == index]:
            for path, address in self._attached.pop(key):
                self.module.bpf.detach_uprobe(name=path, addr=address)
                self.module.bpf.detach_uretprobe(name=path, addr=address)

    def open_calls(self) -> tuple[OpenCall, ...]:
        """Calls in progress now, in which a thread may be waiting for ever."""
        return tuple(
            OpenCall(int(key.tid), int(key.row), int(entry.ts_ns)) for key, entry in self.module.bpf["rs_calls"].items()
        )


def programs(table: tuple[CallRow, ...] = CALL_TABLE) -> str:
    """The C of the two programs of every row, to be compiled behind calls.bpf.c."""
    lines = []
    for index, row in enumerate(table):
        argument = f"PT_REGS_PARM{row.argument}(ctx)" if row.argument else "0"
        lines.append(f"int rs_enter_{index}(struct pt_regs *ctx) {{ return rs_enter(ctx, {index}, (s64){argument}); }}")
        lines.append(f"int rs_leave_{index}(struct pt_regs *ctx) {{ return rs_return(ctx, {index}); }}")
    return "\n".join(lines) + "\n"


def mapped_libraries(pid: int, prefixes: tuple[str, ...], root: Path = Path("/")) -> tuple[Library, ...]:
    """Files whose name starts with one of `prefixes`, as /proc/PID/maps shows them; empty when the process is gone."""
    found: dict[tuple[str, int], Library] = {}
    try:
        with (root / "proc" / str(pid) / "maps").open("r", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                match = _MAPPED_FILE.match(line)
                if match is None:
                    continue
                path = match.group(3).removesuffix(" (deleted)")
                name = path.rpartition("/")[2]
                key = (match.group(1), int(match.group(2)))
                if name.startswith(prefixes) and key not in found:
                    inside = root / "proc" / str(pid) / "root" / path.lstrip("/")
                    found[key] = Library(name, inside, *key)
    except OSError:
        return ()
    return tuple(found.values())
