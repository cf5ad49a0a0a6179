"""Scan all processes of a host once: which of them could be ranks, and each one's parent.

Most processes cost three reads (stat, environ, the exe link; about 30 µs); the list of mapped
files, 1 ms for a process with torch, is read only where the environment claims a rank or the
program is Python.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rankscope.observer.census.identity import (
    MARKERS,
    Claim,
    completed,
    lacks_master,
    parse_claim,
    parse_later_claim,
    parse_local_rank,
)
from rankscope.observer.census.live_environ import read_live_environ
from rankscope.observer.census.titles import scheduler_job
from rankscope.probes.base.patience import SILENT, Silent, patiently
from rankscope.probes.base.text import printable
from rankscope.probes.host import procfs
from rankscope.probes.host.fair import Fair, whose
from rankscope.probes.host.maps import mapped_files
from rankscope.probes.host.namespaces import node_name, owner_uid
from rankscope.probes.host.procfs import ROOT, ProcStat, proc_path, read_file, reason

_PYTHON = re.compile(r"^(python|pypy|pt_main|pt_data|pt_elastic)")
_VERSION = re.compile(r"/(?:lib)?python(\d\.\d{1,2})t?(?:/|\.so|$)")
_KTHREADD = 2
# Children of one process with the same name and user: a host has fewer ranks, and a rank fewer
# loaders. Each costs 1 ms with torch, 26 ms where thousands of threads left their mappings in it; a
# program that forks without end must not delay the census, nor hide other users' ranks among its
# own.
ALIKE_MOST = 128
# CPU seconds per pass: 10,000 processes with 100 ranks among them take half a second, of which the
# ranks of one user take 0.2.
FREELY_S, EACH_S = 2.0, 0.5
FREELY, EACH = 2048, 256  # candidates (ranks and their loaders), which are compared pairwise
_COSTLY_TOLD = 8
_ARGUMENTS, _COMMAND_BYTES = 512, 16_384  # limits for a command line

MPI = "mpi"

# Framework → prefixes of its main library's name. Order matters: a process that loads torch trains
# with torch.
_FRAMEWORKS = (
    ("torch", ("libtorch_cpu.", "libtorch.", "libtorch_python.")),
    ("jax", ("xla_extension.", "libjax_common.", "_jax.")),
    ("tensorflow", ("libtensorflow_framework.", "libtensorflow_cc.", "_pywrap_tensorflow_internal.")),
    ("paddle", ("libpaddle.", "core_avx.")),
    ("mxnet", ("libmxnet.",)),
    ("mindspore", ("libmindspore_backend.", "_c_expression.")),
    ("nccl", ("libnccl.", "librccl.")),  # jobs that use it without any of the above
    (MPI, ("libmpi.", "libmpich.", "libmpi_")),  # jobs of mpi4py and numpy
)
_OTHERS = {
    "torch_cpu": ("libtorch_cpu.",),
    "torch_cuda": ("libtorch_cuda.", "libtorch_hip."),
    "nccl": ("libnccl.", "librccl."),
    "cudart": ("libcudart.", "libcudart-", "libamdhip64."),
    "cuda": ("libcuda.",),
    "mpi": ("libmpi.", "libmpich.", "libmpi_"),
    "libpython": ("libpython3",),
}

NOBODYS = "it ended, or did not respond, before its owner was determined"


@dataclass(frozen=True, slots=True)
class Libraries:
    """Paths (in the process's own mount namespace) of relevant libraries; '' where not mapped.

    `framework` is torch, jax, tensorflow, …, or '' where none is loaded. NCCL inside libtorch_cuda
    (pip wheels before 2.0, conda) shows no file of its own.
    """

    framework: str
    framework_path: str
    torch_cpu: str
    torch_cuda: str
    nccl: str
    cudart: str
    cuda: str
    mpi: str
    libpython: str
    python_version: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A process with a training library, or with an environment that claims a rank."""

    pid: int
    ppid: int
    comm: str
    start_ticks: int
    python: bool
    cmdline: tuple[str, ...]
    claim: Claim | None
    libraries: Libraries
    node: str
    scheduler: str = ""  # the scheduler's name for its job
    own_words: bool = False  # the process itself set the claim's variables after its start
    local_rank: int = -1  # its number on this host, if its own environment says that and no more
    owner: int = 0  # the user of the host who owns it


@dataclass(frozen=True, slots=True)
class Other:
    """A Python program that is no candidate. `loads`: MPI or numpy, '' if neither."""

    cmdline: tuple[str, ...]
    loads: str


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of a scan. `processes`: all living processes by pid (for kinship); the rest
    concerns candidates.
    """

    processes: dict[int, ProcStat]
    candidates: dict[int, Candidate]
    others: dict[int, Other]  # Python programs that are no candidates
    # (pid, comm, reason): environment claims a rank, but no access; or no answer
    unreadable: tuple[tuple[int, str, str], ...]
    denied: int  # number of Python processes whose environment may not be read
    notes: tuple[str, ...]


def scan(root: Path = ROOT, asked: frozenset[int] = frozenset()) -> Scan:
    """Inspect every process once. Never raises. `asked`: Python processes that are candidates anyway.

    Processes that end meanwhile are left out; those that block their readers are listed as
    unreadable.
    """
    try:
        looking = _Pass(procfs.pids(root), root, asked)
    except OSError as error:
        return Scan({}, {}, {}, (), 0, (f"processes: {reason(error)}",))
    patiently(looking.go_on)
    return looking.result()


class _Pass:
    """The state of a scan, which resumes with the next process after one blocked it."""

    def __init__(self, pids: list[int], root: Path, asked: frozenset[int]) -> None:
        self._root, self._asked = root, asked
        self._left = pids[::-1]
        self._at = 0  # pid being inspected
        self._processes: dict[int, ProcStat] = {}
        self._candidates: dict[int, Candidate] = {}
        self._others: dict[int, Other] = {}
        self._unreadable: list[tuple[int, str, str]] = []
        self._denied = 0
        self._alike: Counter[tuple[int, int, str]] = Counter()
        self._fair, self._room = Fair(FREELY_S, EACH_S), Fair(FREELY, EACH)
        # user -> number of processes skipped as his others took too long
        self._costly: Counter[str] = Counter()

    def go_on(self) -> None:
        """Inspect all processes that are left; first list the one that blocked the previous call as unreadable."""
        if self._at:  # the previous worker was abandoned while inspecting it
            self._say_silent(self._at)
        while self._left:
            self._at = self._left.pop()
            try:
                self._look(self._at)
            except Silent:
                self._say_silent(self._at)
            self._at = 0

    def result(self) -> Scan:
        """Return what was found so far."""
        notes = _not_looked_at(self._denied, self._alike, self._costly)
        return Scan(
            self._processes, self._candidates, self._others, tuple(self._unreadable), self._denied, notes,
        )  # fmt: skip

    def _say_silent(self, pid: int) -> None:
        """List a process that blocks its readers as unreadable, with what can be read of it without blocking."""
        with contextlib.suppress(OSError, ValueError):
            self._processes.setdefault(pid, procfs.stat_of_silent(pid, self._root))
            self._unreadable.append((pid, self._processes[pid].comm, SILENT))

    def _look(self, pid: int) -> None:
        """Inspect one process, if its user has time and room left; skip zombies and kernel threads. Raises Silent."""
        root = self._root
        try:
            stat = procfs.read_stat(pid, root)
        except Silent:
            raise
        except (OSError, ValueError):
            return
        if stat.state in "ZX" or _KTHREADD in (pid, stat.ppid):
            return
        self._processes[pid] = stat
        if any(each.left(lambda: whose(pid, root)) <= 0 for each in (self._fair, self._room)):
            self._costly[whose(pid, root)] += 1
            return
        began_s = time.thread_time()
        try:
            self._look_into(pid, stat)
        finally:
            self._fair.spend(time.thread_time() - began_s, lambda: whose(pid, root))

    def _look_into(self, pid: int, stat: ProcStat) -> None:
        """Add a living process to the candidates, the other Python programs or the unreadable ones, or to none.

        Raises Silent.
        """
        root = self._root
        try:
            environ = procfs.read_environ_bytes(pid, root)
        except PermissionError:
            self._denied += _is_python(pid, stat.comm, root)
            return
        except Silent:
            raise
        except OSError:
            return
        claims = any(marker in environ for marker in MARKERS)
        python = _is_python(pid, stat.comm, root)
        if not (claims or python):
            return
        owner, asked = owner_uid(pid, root), python and pid in self._asked
        family = stat.ppid, owner, stat.comm
        self._alike[family] += 1
        if self._alike[family] > ALIKE_MOST and not asked:
            return
        files = _files(stat, root, self._unreadable)
        if files is None:
            return
        libraries = find_libraries(files)
        if libraries.framework == MPI and not (claims and python):
            # MPI alone is no sign of training
            libraries = replace(libraries, framework="", framework_path="")
        if not (claims or libraries.framework or asked):
            numpy = "numpy" if any("/_multiarray_umath." in path for path in files) else ""
            self._others[pid] = Other(command_line(pid, root), "MPI" if libraries.mpi else numpy)
            return
        if owner < 0:  # then the owner of its job would be unknown too
            self._unreadable.append((pid, stat.comm, NOBODYS))
            return
        candidate = _candidate(stat, owner, environ, python, libraries, root)
        if candidate.claim is None and libraries.framework == MPI and not asked:
            self._others[pid] = Other(candidate.cmdline, "MPI")
            return
        if candidate.claim is not None or libraries.framework or asked:
            self._candidates[pid] = candidate
            self._room.spend(1, lambda: whose(pid, root))


def _files(stat: ProcStat, root: Path, unreadable: list[tuple[int, str, str]]) -> tuple[str, ...] | None:
    """List the files mapped into a process; None where unavailable, with a note where a right is
    missing.
    """
    try:
        return mapped_files(stat.pid, root)
    except PermissionError as error:
        unreadable.append((stat.pid, stat.comm, f"its mapped files cannot be read: {reason(error)}"))
    except Silent:
        raise
    except OSError:
        pass
    return None


def _not_looked_at(
    denied: int, alike: Mapping[tuple[int, int, str], int], costly: Mapping[str, int]
) -> tuple[str, ...]:
    """Write notes on processes that were not inspected.

    `alike`: (parent, user, name) -> number of processes; `costly`: user -> number of processes left
    out.
    """
    notes = [f"{denied} Python processes of other users could not be examined: run as root"] if denied else []
    for (parent, _, comm), count in alike.items():
        if count > ALIKE_MOST:
            more = f"{count - ALIKE_MOST} of them were not examined"
            notes.append(f"pid {parent} has {count} children called {printable(comm, 32)}: {more}")
    for user, count in list(costly.items())[:_COSTLY_TOLD]:
        notes.append(
            f"{printable(user, 80)}: {count} processes were not examined: there are too many, or they took too long"
        )
    return tuple(notes)


def find_libraries(paths: tuple[str, ...]) -> Libraries:
    """Select the relevant libraries among mapped files. Never raises."""
    by_name: dict[str, str] = {}
    version = ""
    for path in paths:
        by_name.setdefault(path.rpartition("/")[2], path)
        if not version:
            match = _VERSION.search(path)
            version = match[1] if match else ""
    framework, framework_path = "", ""
    for name, prefixes in _FRAMEWORKS:
        framework_path = _named(by_name, prefixes)
        if framework_path:
            framework = name
            break
    found = {field: _named(by_name, prefixes) for field, prefixes in _OTHERS.items()}
    return Libraries(framework, framework_path, python_version=version, **found)


def _named(by_name: dict[str, str], prefixes: tuple[str, ...]) -> str:
    """Return the first path whose file name begins with one of `prefixes` and has '.so'; '' if none.

    `by_name`: file name -> path. Earlier prefixes come first.
    """
    for prefix in prefixes:
        for name, path in by_name.items():
            if name.startswith(prefix) and ".so" in name:
                return path
    return ""


def _candidate(stat: ProcStat, owner: int, environ: bytes, python: bool, libraries: Libraries, root: Path) -> Candidate:
    """Build a candidate: its command line, its node name, and the rank that its environment claims.

    A process with a training library whose start environment names no rank, or no master address, may
    have set the variables later: then its current ones are read as well.
    """
    cmdline = command_line(stat.pid, root)
    node = node_name(stat.pid, root)
    said = procfs.parse_environ(environ)
    claim, later, local = parse_claim(said, node), None, -1
    if libraries.framework and (claim is None or lacks_master(said)):
        now = read_live_environ(stat.pid, root)
        if claim is None:
            later, local = parse_later_claim(now, node), parse_local_rank(now)
        else:
            claim = parse_claim(completed(said, now), node)
    claim = claim or later
    return Candidate(
        stat.pid,
        stat.ppid,
        stat.comm,
        stat.start_ticks,
        python or bool(libraries.libpython),
        cmdline,
        None if claim is None else claim.by(owner),
        libraries,
        node,
        scheduler_job(said),
        later is not None,
        local,
        owner,
    )


def command_line(pid: int, root: Path) -> tuple[str, ...]:
    """Read the first arguments of a process; () where unreadable.

    Capped, as those of thousands of processes are in memory at a time.
    """
    try:
        text = read_file(proc_path(root, pid, "cmdline"), _COMMAND_BYTES)
    except OSError:
        return ()
    return procfs.parse_cmdline(text)[:_ARGUMENTS]


def _is_python(pid: int, comm: str, root: Path) -> bool:
    """Tell whether a process runs Python, by its name, its executable or its first argument."""
    if _PYTHON.match(comm):
        return True
    try:
        return bool(_PYTHON.match(procfs.read_link(proc_path(root, pid, "exe")).rpartition("/")[2]))
    except OSError:
        pass
    try:
        first = read_file(proc_path(root, pid, "cmdline"), 4096).partition(b"\0")[0]
        return bool(_PYTHON.match(first.decode("utf-8", "replace").rpartition("/")[2]))
    except OSError:
        return False
