"""All BPF probes of one observer together: load, watch processes, drain, meter, close.

What this kernel cannot do is left out with a note; the rest still works. Nothing survives the
process: programs, maps and probes exist as long as their descriptors, which the kernel closes in
any case.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankscope.observer.live import handed, sources
from rankscope.observer.live.handed import LoadedProbes
from rankscope.observer.window.manifest import Loss, ProbeCost
from rankscope.probes.base import rights
from rankscope.probes.bpf import btf, loader, ring
from rankscope.probes.bpf.compiler.compiled import BpfUnavailable
from rankscope.probes.bpf.compiler.variants import Generated, together
from rankscope.probes.bpf.counters import COUNTERS, LOSSES
from rankscope.probes.bpf.module import Module, Refused, Tracepoint
from rankscope.probes.bpf.tables import Table
from rankscope.probes.calls import probe as calls
from rankscope.probes.calls.probe import CallProbe
from rankscope.probes.calls.programs import programs as of_calls
from rankscope.probes.files import probe as files
from rankscope.probes.sched import probe as sched
from rankscope.unwinder.walk.stack import KernelStack, decode

_WALK = Path(__file__).resolve().parents[2] / "unwinder" / "walk"
_SOURCES = (_WALK / "sampler.bpf.c", sched.SOURCE, calls.SOURCE, files.SOURCE)
_NUMBERS = (*sched.NUMBERS, *files.NUMBERS, "RS_CALLS_EACH")  # constants that the host decides
_RING_PAGES = 512  # for up to 8 ranks (probes/bpf/common.bpf.h)
_MOST_RING_PAGES = 8192  # 32 MiB
_PAGE_BYTES = 4096
# Maps of what threads are doing at present, and their counts.
_OF_NOW = ("rs_threads", "rs_awake", "rs_calls", "rs_calls_open", "rs_file_entries")
_NUMBERS_OF_NOW = {"rs_file_pending": slice(None), "rs_thread_room": slice(1)}  # the same, in arrays
_MOST_ENTRIES = 1 << 18  # of a map: 40 MB in the kernel for the largest entries
# Sizes in the C.
_USUAL_ENTRIES = {
    "rs_targets": 1024, "rs_interpreters": 1024, "rs_gils": 1024, "rs_awake": 1024, "rs_pythreads": 8192, "rs_call_sums": 131072,
    "rs_file_sums": 40960, "rs_calls": 131072, "rs_calls_open": 2048, "rs_ended": 4096, "rs_threads": 32768,
    "rs_file_entries": 32768,
}  # fmt: skip
# Entries per process; where these are not counted (rs_pythreads), a typical number.
_EACH = {
    "rs_targets": 1, "rs_interpreters": 1, "rs_gils": 1, "rs_awake": 1, "rs_pythreads": 8, "rs_call_sums": 128, "rs_file_sums": 10,
    "rs_calls": 128, "rs_calls_open": 2, "rs_ended": 1,
}  # fmt: skip


@dataclass(slots=True)
class KernelProbes:
    """Loaded and attached probes. `notes` says what is missing."""

    module: Module
    calls: CallProbe
    events: ring.Ring
    notes: list[str] = field(default_factory=list)
    missing: list[Refused] = field(default_factory=list)  # programs that are not attached
    # entries that the kernel had no room for, by kind
    refused: Counter[str] = field(default_factory=Counter)
    _before: dict[str, int] = field(default_factory=dict)  # counters as the window began

    @property
    def maps(self) -> Mapping[str, Table]:
        """The maps in the kernel, by name."""
        return self.module.maps

    @property
    def remarks(self) -> list[str]:
        """Reasons why the compiler had to run again unexpectedly."""
        return self.module.remarks

    def room(self, table: str) -> int:
        """Return the capacity of a map."""
        return self.maps[table].shape.max_entries

    def watch_process(self, pid: int, role: int) -> None:
        """Observe the threads of `pid` from now on; `role`: RANK or MEMBER (probes/bpf/counters.py)."""
        self._enter("processes", "rs_targets", pid, ctypes.c_uint32(role))
        sched.look_again(self.module)

    def forget_process(self, pid: int, threads: Mapping[int, int]) -> None:
        """Stop observing `pid`, which has ended, with its `threads` (host tid -> PyThreadState):
        ids may be reused.

        Its sums remain: they belong to the window.
        """
        for table in ("rs_targets", "rs_interpreters", "rs_gils", "rs_calls_open"):
            _discard(self.maps[table], ctypes.c_uint32(pid))
        for tid, tstate in threads.items():
            self._forget_thread(tid, tstate)
        sched.look_again(self.module)

    def set_interpreter(self, pid: int, packed_offsets: bytes) -> None:
        """Give the walk the memory layout of the interpreter of `pid`."""
        table = self.maps["rs_interpreters"]
        table[ctypes.c_uint32(pid)] = table.Leaf.from_buffer_copy(packed_offsets)

    def set_thread(self, host_tid: int, tstate: int, expected: int) -> None:
        """Set a thread's PyThreadState, and the thread id `expected` in it; (0, 0) watches a thread that has none."""
        self._enter("threads", "rs_pythreads", host_tid, self.maps["rs_pythreads"].Leaf(tstate, expected))
        sched.look_again(self.module)

    def _enter(self, what: str, table: str, number: int, leaf: Any) -> None:
        """Set the entry `number` of a map to `leaf`; on any OSError (map full) count it in `refused[what]` instead."""
        try:
            self.maps[table][ctypes.c_uint32(number)] = leaf
        except OSError:
            self.refused[what] += 1

    def forget_thread(self, host_tid: int, tstate: int) -> None:
        """Remove a thread's Python state, unless the thread id belongs to another thread by now."""
        self._forget_thread(host_tid, tstate)
        sched.look_again(self.module)

    def _forget_thread(self, host_tid: int, tstate: int) -> None:
        """Remove a thread's entry from the map if it still has this PyThreadState."""
        table, key = self.maps["rs_pythreads"], ctypes.c_uint32(host_tid)
        with contextlib.suppress(KeyError):
            if int(table[key].tstate) == tstate:
                del table[key]

    def stack(self, identity: int) -> KernelStack | None:
        """Read the Python stack of an event, None where the map has dropped it."""
        try:
            return decode(bytes(self.maps["rs_stacks"][ctypes.c_uint64(identity)]))
        except KeyError:
            return None

    def losses(self) -> tuple[Loss, ...]:
        """Return nonzero counters of what was not observed, and entries refused by full maps."""
        counted = {name: count - self._before.get(name, 0) for name, count in self.counted().items()}
        lost = [Loss("bpf", name, counted[name]) for name in COUNTERS if name in LOSSES and counted[name]]
        if forgotten := sched.takers_forgotten(self.module, counted["taker_new"]):
            lost.append(Loss("bpf", "takers_forgotten", forgotten))
        return (*lost, *(Loss("observer", f"{what}_without_room", count) for what, count in self.refused.items()))

    def counted(self) -> dict[str, int]:
        """Return all counters by name."""
        return dict(self.module.counters(COUNTERS))

    def costs(self) -> tuple[ProbeCost, ...]:
        """Return run count and time of each program that ran since it was loaded."""
        return tuple(ProbeCost(c.program, c.run_count, c.run_time_ns) for c in self.module.costs() if c.run_count)

    def rest(self) -> None:
        """Detach everything until `wake`: no process pays for probes meanwhile."""
        self.module.rest()

    def renew(self) -> None:
        """Begin another window: what was lost before is no loss of it. What found no room is not observed in it either."""
        self._before = self.counted()

    def wake(self) -> None:
        """Attach everything again, and drop events, losses and calls in progress from before."""
        self.events.drain()
        counters = self.maps["rs_counters"]
        for slot in range(len(COUNTERS)):
            counters[ctypes.c_int(slot)] = type(counters[ctypes.c_int(slot)])()
        self._before.clear()
        for name in _OF_NOW:
            if name in self.maps:
                for key, _ in self.maps[name].items():
                    _discard(self.maps[name], key)
        for name, places in _NUMBERS_OF_NOW.items():
            for place, number in self.maps[name].items()[places] if name in self.maps else ():
                if number.value:
                    self.maps[name][place] = type(number)()
        refused = self.module.wake()
        self.missing += refused
        self.notes += [f"{one.program} is no longer attached: {one.reason}" for one in refused]

    def close(self) -> None:
        """Detach and free everything."""
        self.events.close()
        self.module.close()


def _discard(table: Any, key: Any) -> None:
    """Remove an entry from a map; do nothing where it has none."""
    with contextlib.suppress(KeyError):
        del table[key]


def in_initial_pid_namespace(root: Path = Path("/")) -> bool:
    """Tell whether the pids in /proc are those of the kernel's probes (PROC_PID_INIT_INO,
    include/linux/proc_ns.h).
    """
    try:
        return (root / "proc/self/ns/pid").readlink().name == "pid:[4026531836]"
    except OSError:
        return True


def load(
    *, hz: int, ranks: int = 1, processes: int = 0, threads: int = 0, root: Path = Path("/"), verbose: bool = False
) -> KernelProbes:
    """Load and attach everything that this kernel allows, here or in the process with the rights.

    Raises as `load_module`.
    """
    asked = rights.delegate()
    if asked is None:
        loaded = load_module(hz=hz, ranks=ranks, processes=processes, threads=threads, root=root, verbose=verbose)
    else:
        loaded = handed.take(asked, root, hz=hz, ranks=ranks, processes=processes, threads=threads, verbose=verbose)
    try:
        events = ring.Ring(loaded.module.maps["rs_events"].map_fd, loaded.ring_bytes)
    except BaseException:
        loaded.module.close()
        raise
    return KernelProbes(loaded.module, CallProbe(loaded.module), events, [*loaded.notes], [*loaded.refused])


def load_module(
    *, hz: int, ranks: int = 1, processes: int = 0, threads: int = 0, root: Path = Path("/"), verbose: bool = False
) -> LoadedProbes:
    """Load and attach all programs in this process. Raises as rankscope.probes.bpf.loader.load.

    The ring has room for the events of so many `ranks`, the maps for their `processes` (workers
    too) and `threads`.
    """
    if not in_initial_pid_namespace(root):
        raise BpfUnavailable(
            "this process is in a pid namespace of its own, where threads have other numbers than in the kernel"
        )
    here, ring_bytes = _here(root), ring_pages(ranks) * _PAGE_BYTES
    module = loader.load(
        _SOURCES,
        numbers={**here.numbers, "RS_CALLS_EACH": calls_each(processes)},
        folders=(_WALK,),
        generated=_generated(),
        entries={"rs_events": ring_bytes, **map_sizes(processes, threads)},
        root=root,
        verbose=verbose,
    )
    try:
        module.left_out = sources.left_out()
        sched.share_threads(module)
        module.attach(here.tracepoints)
        unsampled = _sample_at(module, hz)
        refused = (*here.refused, *module.refused, *(Refused(sources.SAMPLE, why) for why in unsampled))
        notes = [*here.notes, *(f"running threads are not sampled: {why}" for why in unsampled)]
        if not module.metered:
            notes.append("the cost of the probes in the kernel is unknown: it does not measure programs for us")
        notes += [f"{one.program} is not attached: {one.reason}" for one in module.refused]
    except BaseException:
        module.close()
        raise
    return LoadedProbes(module, ring_bytes, tuple(notes), refused)


def text() -> str:
    """Return the C of all these BPF programs, the same on all hosts."""
    return loader.text_of(_SOURCES, folders=(_WALK,), generated=_generated(), names=_NUMBERS)


def _generated() -> Generated:
    """Generate the C of the BPF programs for timed library calls and for file calls, as one."""
    return together((of_calls(), files.programs()))


@dataclass(frozen=True, slots=True)
class _Here:
    """Constants and tracepoints for this kernel. `notes` says what is left out."""

    numbers: dict[str, int]
    tracepoints: tuple[Tracepoint, ...]
    notes: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()


def map_sizes(processes: int, threads: int) -> dict[str, int]:
    """Return sizes of maps for so many processes and threads of ranks, where those in the C are too
    small.

    Twice what the census found, as workers come and go and threads are started.
    """
    found = {name: each * processes for name, each in _EACH.items()} | {
        "rs_threads": threads,
        "rs_file_entries": threads,
    }
    return {name: min(2 * count, _MOST_ENTRIES) for name, count in found.items() if 2 * count > _USUAL_ENTRIES[name]}


def calls_each(processes: int) -> int:
    """Return how many calls in progress each process may have, so that twice as many processes
    cannot fill the map.
    """
    return max(min(_EACH["rs_calls"], _MOST_ENTRIES // max(2 * processes, 1)), 1)


def ring_pages(ranks: int) -> int:
    """Return the ring's pages for so many ranks: as much per rank as with 8. A power of two, as the
    kernel requires.
    """
    return min(_RING_PAGES << max((ranks - 1) // 8, 0).bit_length(), _MOST_RING_PAGES)


def _here(root: Path) -> _Here:
    """Determine constants and tracepoints for this kernel; without BTF file calls are left out.

    Raises BpfUnavailable.
    """
    numbers = dict.fromkeys(_NUMBERS, 0)
    try:
        numbers.update(sched.numbers(root))
    except btf.NoBtf as error:
        raise BpfUnavailable(f"this kernel has neither the helper bpf_task_pt_regs nor BTF: {error}") from error
    except OSError as error:
        raise BpfUnavailable(f"this kernel loads no BPF program: {error.strerror}") from error
    try:
        numbers.update(files.numbers(root))
    except btf.NoBtf as error:
        without = tuple(Refused(variant.name, str(error)) for variant in files.programs().variants[:1])
        return _Here(numbers, sched.TRACEPOINTS, (f"file calls are not timed: {error}",), without)
    return _Here(numbers, (*sched.TRACEPOINTS, *files.tracepoints()))


def _sample_at(module: Module, hz: int) -> list[str]:
    """Sample running threads `hz` times a second on each CPU; return the kernel's reasons if it
    refuses.
    """
    try:
        module.attach_clock(sources.SAMPLE, hz)
    except (OSError, ValueError) as error:
        return [str(error).splitlines()[0]]
    return []
