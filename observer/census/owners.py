"""Assign GPUs and network ports to ranks.

A rank's GPUs, by the first of these sources with a result:

1. NVML's compute processes: those on which the rank, or a process below it, has most memory (at least a quarter of its
   most; ranks often leave a small context on the first GPU);
2. CUDA_VISIBLE_DEVICES in its environment, by its local rank where several are visible;
3. the one /dev/nvidiaN that it has open.

By 2 and 3, which are mere claims, a rank gets no GPU on which another user's rank has its memory.
Its ports are those nearest to its GPUs in the PCI tree; GPUs that are equally near to several take
them in turn.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rankscope.observer.census.candidates import Candidate
from rankscope.observer.census.found import FoundRank, user_of
from rankscope.observer.census.live_environ import read_live_environ
from rankscope.probes.base.text import printable
from rankscope.probes.gpu.model import GpuProcess
from rankscope.probes.gpu.nvml import read_gpus
from rankscope.probes.gpu.series import GpuRecording, ProcessUse
from rankscope.probes.host import procfs
from rankscope.probes.host.procfs import ROOT
from rankscope.probes.pci.tree import PcieTree
from rankscope.probes.sampling.thread import within

_OWN_SHARE = 0.25
_MAX_DEPTH = 64
_DEVICE = "/dev/nvidia"
_OPENED_MOST = 2048  # files of a rank searched for its GPUs: they are opened early
_NVML_S = 5.0  # seconds: a driver may hang
_XLA_DEVICES = re.compile(r"--xla_force_host_platform_device_count=(\d{1,4})(?!\d)")


@dataclass(frozen=True, slots=True)
class Foreign:
    """A process on a job's GPU that belongs to no rank of that job.

    `active`: its share of SM time, None unknown; `rank`: pid of the other job's rank that it
    belongs to.
    """

    gpu: int
    pid: int
    comm: str
    memory_bytes: int | None
    active: float | None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Owners:
    """GPUs (NVML indices), port names and notes by pid of the rank; foreign processes on those
    GPUs.
    """

    gpus: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    ports: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    foreign: tuple[Foreign, ...] = ()
    notes: Mapping[int, str] = field(default_factory=dict)

    def of(self, pids: set[int]) -> Owners:
        """Restrict the assignment to the ranks with these pids, and the foreign processes to those on their GPUs."""
        gpus = {pid: found for pid, found in self.gpus.items() if pid in pids}
        mine = {index for found in gpus.values() for index in found}
        return Owners(
            gpus,
            {pid: found for pid, found in self.ports.items() if pid in pids},
            tuple(one for one in self.foreign if one.gpu in mine and one.rank not in pids),
            {pid: note for pid, note in self.notes.items() if pid in pids},
        )

    def gpu_pid(self, index: int) -> int | None:
        """Return the pid of the rank that uses a GPU (NVML index), the first where several do; None if none does."""
        return next((pid for pid, found in self.gpus.items() if index in found), None)

    def port_pid(self, name: str) -> int | None:
        """Return the pid of the rank that a port is nearest to, the first of several; None if of none."""
        return next((pid for pid, found in self.ports.items() if name in found), None)


@dataclass(frozen=True, slots=True)
class Hint:
    """A live process's hints about its GPUs: CUDA_VISIBLE_DEVICES, numbers of the devices it has
    open.
    """

    visible: str = ""
    opened: frozenset[int] = frozenset()


def read_hints(ranks: Sequence[FoundRank], root: Path = ROOT) -> dict[int, Hint]:
    """Read the hints of ranks that use an accelerator, by pid.

    Best read early: a rank whose GPU falls off the bus soon ends.
    """
    return {
        rank.pid: Hint(_visible(rank.pid, root), _opened(rank.pid, root)) for rank in ranks if uses_accelerator(rank)
    }


def find_owners(
    ranks: Sequence[FoundRank], gpus: GpuRecording, tree: PcieTree, hints: Mapping[int, Hint], root: Path = ROOT
) -> Owners:
    """Assign GPUs and ports to ranks. Never raises: what cannot be determined is a note."""
    above = _Ancestry({rank.pid for rank in ranks}, root)
    found: dict[int, tuple[int, ...]] = {}
    notes: dict[int, str] = {}
    holds = _memory_by_rank(((growth.index, growth.processes) for growth in gpus.growth), above)
    known = {growth.index for growth in gpus.growth}
    by_uuid = {growth.uuid: growth.index for growth in gpus.growth if growth.uuid}
    held = {rank.pid: _most_memory(holds.get(rank.pid, {})) for rank in ranks}
    holders: dict[int, set[str]] = {}
    for rank in ranks:
        for index in held[rank.pid]:
            holders.setdefault(index, set()).add(user_of(rank))
    for rank in ranks:
        hint = hints.get(rank.pid, Hint())
        said = _given(hint.visible, rank.identity.local_rank, by_uuid, known)
        if not said and len(hint.opened) == 1:
            said = tuple(hint.opened & known)
        mine = held[rank.pid] or tuple(
            index for index in said if index not in holders or user_of(rank) in holders[index]
        )
        if mine:
            found[rank.pid] = mine
        elif known and uses_accelerator(rank):
            notes[rank.pid] = f"rank {rank.identity.rank}: it is unknown which GPU it uses"
    foreign = _foreign(ranks, gpus, found, above, root)
    return Owners(found, nearest_ports(found, gpus, tree), foreign, notes)


def uses_accelerator(process: FoundRank | Candidate) -> bool:
    """Tell whether a process has the libraries of an accelerator loaded."""
    libraries = process.libraries
    return bool(libraries.cuda or libraries.cudart or libraries.nccl)


def several_devices(processes: Sequence[FoundRank | Candidate], root: Path = ROOT) -> dict[int, str]:
    """Describe, by pid, the devices of processes that drive several: `GPUs 0, 1`, `8 devices of
    XLA`. Never raises.
    """
    found = {}
    gpus = _memory_used(processes, root) if any(map(uses_accelerator, processes)) else {}
    for one in processes:
        mine = _most_memory(gpus.get(one.pid, {}))
        made = _made_by_xla(one.pid, root) if one.libraries.framework == "jax" else 0
        if len(mine) > 1:
            found[one.pid] = f"GPUs {', '.join(map(str, mine))}"
        elif made > 1:
            found[one.pid] = f"{made} devices of XLA"
    return found


def _memory_used(processes: Sequence[FoundRank | Candidate], root: Path) -> dict[int, dict[int, float]]:
    """Read from NVML the memory that these processes, with those below them, use: pid -> GPU -> bytes.

    Empty where NVML does not answer in time.
    """
    try:
        reading = within(_NVML_S, lambda: read_gpus(root), "nvml")
    except (TimeoutError, OSError):
        return {}
    above = _Ancestry({one.pid for one in processes}, root)
    return _memory_by_rank(((gpu.index, gpu.processes) for gpu in reading.gpus), above)


def _made_by_xla(pid: int, root: Path) -> int:
    """Return the number of CPU devices that XLA_FLAGS requests; 0 if none.

    Read from the start environment, else from the current one.
    """
    try:
        flags = procfs.read_environ(pid, root).get("XLA_FLAGS", "")
    except OSError:
        flags = ""
    for text in (flags, read_live_environ(pid, root).get("XLA_FLAGS", "")):
        match = _XLA_DEVICES.search(text)
        if match:
            return int(match[1])
    return 0


class _Ancestry:
    """Finds the rank that a process is or descends from."""

    def __init__(self, ranks: set[int], root: Path) -> None:
        self._ranks, self._root = ranks, root

    def rank_of(self, pid: int) -> int | None:
        """Return the pid of the rank that this process is or descends from; None if of none."""
        for _ in range(_MAX_DEPTH):
            if pid in self._ranks:
                return pid
            if pid <= 1:
                return None
            try:
                pid = procfs.read_stat(pid, self._root).ppid
            except (OSError, ValueError):
                return None
        return None


def _memory_by_rank(
    gpus: Iterable[tuple[int, Sequence[GpuProcess] | Sequence[ProcessUse]]], above: _Ancestry
) -> dict[int, dict[int, float]]:
    """Sum the memory of the processes of each rank: its pid -> GPU -> bytes; unknown memory counts as 1 byte.

    `gpus`: (index, processes on it) of each GPU; `above` finds the rank of a process.
    """
    holds: dict[int, dict[int, float]] = {}
    for index, processes in gpus:
        for process in processes:
            pid = above.rank_of(process.pid)
            if pid is not None:
                mine = holds.setdefault(pid, {})
                mine[index] = mine.get(index, 0.0) + (process.memory_bytes or 1)
    return holds


def _most_memory(holds: Mapping[int, float]) -> tuple[int, ...]:
    """Return the GPUs that hold at least a quarter of a rank's most memory on one, in order; `holds`: GPU -> bytes."""
    most = max(holds.values(), default=0.0)
    return tuple(sorted(index for index, held in holds.items() if held >= _OWN_SHARE * most))


def _visible(pid: int, root: Path) -> str:
    """Read CUDA_VISIBLE_DEVICES from a process's start environment; '' where absent or unreadable."""
    try:
        return procfs.read_environ(pid, root).get("CUDA_VISIBLE_DEVICES", "")[:4096]
    except OSError:
        return ""


def _given(visible: str, local: int, by_uuid: Mapping[str, int], known: set[int]) -> tuple[int, ...]:
    """Return the GPUs (NVML indices) that CUDA_VISIBLE_DEVICES, `visible`, gives to the rank of local number `local`.

    Where it lists several, the one at that place. An entry is an index or an unambiguous beginning of a
    UUID. GPUs that are not in `known` are left out.
    """
    words = [word.strip() for word in visible.split(",")[:64] if word.strip()]
    if len(words) > 1:
        words = [words[local]] if 0 <= local < len(words) else []
    found = []
    for word in words:
        number = int(word) if word.isascii() and word.isdigit() and len(word) < 4 else None
        matches = [index for uuid, index in by_uuid.items() if uuid.startswith(word)] if number is None else [number]
        found += matches[:1] if len(matches) == 1 else []
    return tuple(index for index in found if index in known)


def _opened(pid: int, root: Path) -> frozenset[int]:
    """Return the numbers N of the devices /dev/nvidiaN that a process has open; empty where unreadable."""
    found = set()
    try:
        for target in procfs.open_files(pid, root, _OPENED_MOST).values():
            number = target.removeprefix(_DEVICE)
            if target.startswith(_DEVICE) and number.isascii() and number.isdigit() and len(number) < 4:
                found.add(int(number))
    except OSError:
        return frozenset()
    return frozenset(found)


def _foreign(
    ranks: Sequence[FoundRank], gpus: GpuRecording, owners: Mapping[int, tuple[int, ...]], above: _Ancestry, root: Path
) -> tuple[Foreign, ...]:
    """List the processes on the GPUs of ranks that belong to no rank, or not to the only job that uses the GPU.

    `owners`: GPUs of each rank's pid.
    """
    jobs = {rank.pid: rank.identity.job for rank in ranks}
    found = []
    for growth in gpus.growth:
        own = {jobs[pid] for pid, mine in owners.items() if growth.index in mine}
        if not own:
            continue
        for process in growth.processes:
            rank = above.rank_of(process.pid)
            if rank is None or own != {jobs[rank]}:
                comm = _comm(process.pid, root)
                found.append(Foreign(growth.index, process.pid, comm, process.memory_bytes, process.active, rank))
    return tuple(found)


def _comm(pid: int, root: Path) -> str:
    """Read the name of a process, made printable; '?' where unreadable."""
    try:
        return printable(procfs.read_comm(pid, root), 32)
    except (OSError, ValueError):
        return "?"


def nearest_ports(
    owners: Mapping[int, tuple[int, ...]], gpus: GpuRecording, tree: PcieTree
) -> dict[int, tuple[str, ...]]:
    """Assign to each rank the ports nearest to its GPUs in the PCI tree, by pid; `owners`: GPUs by pid.

    GPUs that are equally near to several ports take them in turn.
    """
    bus = {growth.index: growth.bus for growth in gpus.growth}
    near = {index: tree.nearest_nics(bus[index]) for index in _all(owners.values()) if bus.get(index)}
    chosen: dict[int, str] = {}
    for names in set(near.values()):
        alike = sorted(index for index, one in near.items() if one == names)
        for turn, index in enumerate(alike if names else ()):
            chosen[index] = names[turn % len(names)]
    return {
        pid: tuple(dict.fromkeys(chosen[index] for index in mine if index in chosen)) for pid, mine in owners.items()
    }


def _all(groups: Iterable[tuple[int, ...]]) -> list[int]:
    """Return all distinct indices of the groups, in order."""
    return sorted({index for group in groups for index in group})
