"""Readers and parsers of /proc/PID, shared by all observers of processes.

The `parse_*` functions are pure: bytes in, values out; they raise ValueError for what they cannot
use. The `read_*` functions do the reading and may raise OSError (the process ended, permission
denied) as well; `reason` turns either into words for the operator. All bytes come from other
people's processes: lengths are capped here.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.base.patience import SILENT, Silent, ask

ENVIRON_CAP = 256 * 1024
CMDLINE_CAP = 64 * 1024
FILE_CAP = 1024 * 1024
COMM_CAP = 64
CPUS_MOST = 65_536  # in one list: eight times what Linux can have
OPEN_FILES_MOST = 65_536  # read per process, 6 us each: a job may have millions
ROOT = Path("/")

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_MIN_STAT_FIELDS = 20
_MOST_DIGITS = 20  # of a 64-bit number


@dataclass(frozen=True, slots=True)
class ProcStat:
    """Parsed /proc/PID/stat. `start_s` is seconds since boot; `state` is one letter (R, S, D, T, t,
    Z, …).
    """

    pid: int
    comm: str
    state: str
    ppid: int
    pgrp: int
    session: int
    minor_faults: int
    major_faults: int
    user_s: float
    system_s: float
    threads: int
    start_ticks: int
    start_s: float
    processor: int


@dataclass(frozen=True, slots=True)
class ProcStatus:
    """Parsed /proc/PID/status."""

    name: str
    state: str
    tgid: int
    ppid: int
    uid: int
    nspids: tuple[int, ...]
    threads: int
    cpus_allowed: str
    rss_bytes: int
    tracer: int = 0  # pid of the process that traces it (a debugger), 0: none

    @property
    def inner_pid(self) -> int:
        """The pid in the innermost pid namespace, as the process itself sees it."""
        return self.nspids[-1] if self.nspids else self.tgid


# --- reading ---------------------------------------------------------------------------------------------------------


def read_file(path: str, cap: int = FILE_CAP) -> bytes:
    """Read at most `cap` bytes of a file.

    Raises OSError; its subclass Silent where a process blocks readers of its files.
    """
    pid = process_of(path)
    return ask(pid, _read, path, cap) if pid else _read(path, cap)


def process_of(path: str) -> int:
    """Return the pid in a path below /proc; 0 where there is none ('/proc/stat', other folders)."""
    if not path.startswith("/proc/"):
        return 0
    word = path[6 : path.find("/", 6)]
    return int(word) if word.isdigit() and len(word) < _MOST_DIGITS else 0


def _read(path: str, cap: int) -> bytes:
    """Read at most `cap` bytes of a file by plain system calls: thousands of files are read. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        first = os.read(descriptor, min(cap, 65536))
        if not first:
            return first
        chunks = [first]
        size = len(first)
        while size < cap:
            chunk = os.read(descriptor, min(cap - size, 1 << 20))
            if not chunk:
                break
            chunks.append(chunk)
            size += len(chunk)
        return first if len(chunks) == 1 else b"".join(chunks)
    finally:
        os.close(descriptor)


def read_memory(pid: int, size: int, address: int, root: Path = ROOT) -> bytes:
    """Read up to `size` bytes of a process's memory, once; `pid` may be a thread's. Raises OSError,
    OverflowError.
    """
    return ask(pid, _read_memory, proc_path(root, pid, "mem"), size, address)


def _read_memory(path: str, size: int, address: int) -> bytes:
    """Read up to `size` bytes at `address` of the file `path` (/proc/PID/mem), once. Raises OSError, OverflowError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, address)
    finally:
        os.close(descriptor)


def read_link(path: str) -> str:
    """Read the target of a symbolic link. Raises OSError; its subclass Silent where a process blocks readers."""
    pid = process_of(path)
    return ask(pid, os.readlink, path) if pid else os.readlink(path)  # noqa: PTH115 - Path.readlink costs three times as much


def names_in(folder: str) -> list[str]:
    """List a folder, sorted; empty where there is no such folder. Raises PermissionError."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208
    except PermissionError:
        raise
    except OSError:
        return []


def proc_path(root: Path, *parts: object) -> str:
    """Build `<root>/proc/<parts…>` as text."""
    base = str(root).rstrip("/")
    return "/".join((base + "/proc", *map(str, parts)))


def reason(error: BaseException) -> str:
    """Describe in a few words why a read failed."""
    if isinstance(error, Silent):
        return SILENT
    if isinstance(error, OSError) and error.errno is not None:
        if error.errno in (errno.ENOENT, errno.ESRCH):
            return "no such process or file"
        return os.strerror(error.errno).lower()
    return str(error)[:200] or type(error).__name__


def pids(root: Path = ROOT) -> list[int]:
    """List all process ids, in order. Raises OSError if there is no /proc."""
    with os.scandir(proc_path(root)) as entries:
        return sorted(int(entry.name) for entry in entries if entry.name.isascii() and entry.name.isdigit())


def threads(pid: int, root: Path = ROOT) -> tuple[int, ...]:
    """List the thread ids of a process, in order. Raises OSError."""
    with os.scandir(proc_path(root, pid, "task")) as entries:
        return tuple(sorted(int(entry.name) for entry in entries if entry.name.isascii() and entry.name.isdigit()))


def read_stat(pid: int, root: Path = ROOT, tid: int | None = None) -> ProcStat:
    """Read /proc/PID/stat, or that of one thread. Raises OSError, ValueError."""
    parts = (pid, "stat") if tid is None else (pid, "task", tid, "stat")
    return parse_stat(read_file(proc_path(root, *parts), 8192))


def read_status(pid: int, root: Path = ROOT, tid: int | None = None) -> ProcStatus:
    """Read /proc/PID/status, or that of one thread. Raises OSError, ValueError."""
    parts = (pid, "status") if tid is None else (pid, "task", tid, "status")
    return parse_status(read_file(proc_path(root, *parts), 65536))


def stat_of_silent(pid: int, root: Path = ROOT) -> ProcStat:
    """Read name, parent and state of a process that blocks readers, from the one file that never
    blocks.

    The other fields are 0. Raises OSError, ValueError.
    """
    status = parse_status(_read(proc_path(root, pid, "status"), 65536))
    return ProcStat(pid, status.name, status.state, status.ppid, 0, 0, 0, 0, 0.0, 0.0, status.threads, 0, 0.0, -1)


def read_environ_bytes(pid: int, root: Path = ROOT) -> bytes:
    """Read the raw environment that the process was started with; its later changes do not show.
    Raises OSError.
    """
    return read_file(proc_path(root, pid, "environ"), ENVIRON_CAP)


def read_environ(pid: int, root: Path = ROOT) -> dict[str, str]:
    """Read the environment that the process was started with. Raises OSError."""
    return parse_environ(read_environ_bytes(pid, root))


def read_cmdline(pid: int, root: Path = ROOT) -> tuple[str, ...]:
    """Read the arguments of a process; empty for kernel threads and zombies. Raises OSError."""
    return parse_cmdline(read_file(proc_path(root, pid, "cmdline"), CMDLINE_CAP))


def read_comm(pid: int, root: Path = ROOT, tid: int | None = None) -> str:
    """Read the short name (15 bytes) of a process or thread. Raises OSError."""
    parts = (pid, "comm") if tid is None else (pid, "task", tid, "comm")
    return read_file(proc_path(root, *parts), COMM_CAP).rstrip(b"\n").decode("utf-8", "replace")


def start_ticks(pid: int, root: Path = ROOT) -> int:
    """Read the start time since boot in clock ticks: with the pid, a permanent id of one process.

    Raises OSError, ValueError.
    """
    return read_stat(pid, root).start_ticks


def proportional_bytes(pid: int, root: Path = ROOT) -> int:
    """Return the proportional set size of a process in bytes (shared pages count in part); 0 where
    unknown.
    """
    try:
        lines = read_file(proc_path(root, pid, "smaps_rollup")).splitlines()
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(b"Pss:"))
    except (OSError, ValueError, IndexError):
        return 0


def newest_pid(root: Path = ROOT) -> int:
    """Return the pid or thread id assigned last; -1 where unknown. If it is unchanged, nothing was
    started.
    """
    try:
        return number(read_file(proc_path(root, "loadavg"), 256).split()[-1])
    except (OSError, ValueError, IndexError):
        return -1


def children(pid: int, root: Path = ROOT) -> tuple[int, ...]:
    """List the live processes that the main thread of `pid` started; empty where it has ended."""
    try:
        return tuple(int(word) for word in read_file(proc_path(root, pid, "task", pid, "children")).split())
    except (OSError, ValueError):
        return ()


def cpus_allowed(pid: int, root: Path = ROOT, tid: int | None = None) -> str:
    """Read the CPUs a process or thread may run on, as in taskset (0-3,8). Raises OSError,
    ValueError.
    """
    return read_status(pid, root, tid).cpus_allowed


def socket_inodes(pid: int, root: Path = ROOT, most: int = OPEN_FILES_MOST) -> frozenset[int]:
    """List the inodes of the sockets that a process has open. Raises OSError."""
    return sockets(open_files(pid, root, most))


def sockets(files: Mapping[str, str]) -> frozenset[int]:
    """Select the inodes of the sockets among open files: link targets by descriptor, as from `open_files`."""
    found = (target for target in files.values() if target.startswith("socket:["))
    return frozenset(int(target[8:-1]) for target in found if target[8:-1].isdigit())


def open_files(pid: int, root: Path = ROOT, most: int = OPEN_FILES_MOST) -> dict[str, str]:
    """Return the link targets of a process's descriptors by number: {'3': 'socket:[123]'}. Raises OSError.

    Of the first `most` descriptors only.
    """
    folder = proc_path(root, pid, "fd")
    return ask(pid, _links, folder, most) if process_of(folder) else _links(folder, most)


def _links(folder: str, most: int) -> dict[str, str]:
    """Read the symbolic links in a folder, the first `most`: targets by name. Raises OSError.

    Links that vanish meanwhile are left out.
    """
    found = {}
    with os.scandir(folder) as entries:
        for entry in itertools.islice(entries, most):
            try:
                found[entry.name] = os.readlink(entry.path)  # noqa: PTH115
            except OSError:
                continue  # closed meanwhile
    return found


# --- parsing ---------------------------------------------------------------------------------------------------------


def number(word: bytes) -> int:
    """Parse a decimal whole number of at most 64 bits, so that no later sum overflows. Raises ValueError."""
    digits = word.removeprefix(b"-")
    if len(digits) > _MOST_DIGITS or not digits.isdigit() or (value := int(word)) >> 64 not in (0, -1):
        raise ValueError(f"no number of 64 bits: {word[:_MOST_DIGITS]!r}")
    return value


def parse_stat(data: bytes) -> ProcStat:
    """Parse /proc/PID/stat. The name may hold spaces, newlines and ')': the last ')' ends it.
    Raises ValueError.
    """
    opening, closing = data.find(b"("), data.rfind(b")")
    if opening < 0 or closing < opening:
        raise ValueError("stat: no process name")
    fields = data[closing + 1 :].split()
    if len(fields) < _MIN_STAT_FIELDS:
        raise ValueError("stat: too few fields")
    start = number(fields[19])
    return ProcStat(
        pid=number(data[:opening].strip()),
        comm=data[opening + 1 : closing].decode("utf-8", "replace"),
        state=fields[0][:1].decode("ascii", "replace"),
        ppid=number(fields[1]),
        pgrp=number(fields[2]),
        session=number(fields[3]),
        minor_faults=number(fields[7]),
        major_faults=number(fields[9]),
        user_s=number(fields[11]) / TICKS_PER_S,
        system_s=number(fields[12]) / TICKS_PER_S,
        threads=number(fields[17]),
        start_ticks=start,
        start_s=start / TICKS_PER_S,
        processor=number(fields[36]) if len(fields) > 36 else -1,
    )


def parse_status(data: bytes) -> ProcStatus:
    """Parse /proc/PID/status; lines that are absent (old kernels) give defaults. Raises ValueError."""
    found: dict[bytes, bytes] = {}
    for line in data.split(b"\n"):
        key, separator, value = line.partition(b":")
        if separator:
            found.setdefault(key, value.strip())
    if b"Tgid" not in found:
        raise ValueError("status: no Tgid")
    tgid = number(found[b"Tgid"])
    uids = found.get(b"Uid", b"").split()
    rss = found.get(b"VmRSS", b"").split()
    return ProcStatus(
        name=found.get(b"Name", b"").decode("utf-8", "replace"),
        state=found.get(b"State", b"?")[:1].decode("ascii", "replace"),
        tgid=tgid,
        ppid=number(found.get(b"PPid", b"0")),
        uid=number(uids[0]) if uids else -1,
        nspids=tuple(number(pid) for pid in found.get(b"NSpid", b"").split()) or (tgid,),
        threads=number(found.get(b"Threads", b"1")),
        cpus_allowed=found.get(b"Cpus_allowed_list", b"").decode("ascii", "replace"),
        rss_bytes=number(rss[0]) * 1024 if rss else 0,
        tracer=number(found.get(b"TracerPid", b"0")),
    )


def parse_environ(data: bytes) -> dict[str, str]:
    """Parse NUL-separated NAME=value; the first of a repeated name counts, as for getenv. Never
    raises.
    """
    environ: dict[str, str] = {}
    for entry in data[:ENVIRON_CAP].split(b"\0"):
        name, separator, value = entry.partition(b"=")
        if separator and name:
            environ.setdefault(name.decode("utf-8", "replace"), value.decode("utf-8", "replace"))
    return environ


def parse_cmdline(data: bytes) -> tuple[str, ...]:
    """Parse NUL-separated arguments. Never raises."""
    data = data[:CMDLINE_CAP]
    if not data:
        return ()
    if data.endswith(b"\0"):
        data = data[:-1]
    return tuple(argument.decode("utf-8", "replace") for argument in data.split(b"\0"))


def parse_cpu_list(text: str) -> frozenset[int]:
    """Parse a CPU list such as '0-3,8'. Raises ValueError for anything else."""
    return frozenset(itertools.chain.from_iterable(cpu_ranges(text)))


def cpu_ranges(text: str) -> tuple[range, ...]:
    """Parse a CPU list such as '0-3,8' into ascending ranges that do not touch.

    Raises ValueError for anything else, and for lists that name more than CPUS_MOST CPUs, repeated
    ones included.
    """
    found: list[range] = []
    named = 0
    for part in text.strip().split(","):
        if not part:
            continue
        first, dash, last = part.partition("-")
        start = int(first)
        stop = int(last) + 1 if dash else start + 1
        named += stop - start
        if not 0 <= start < stop <= CPUS_MOST or named > CPUS_MOST:
            raise ValueError(f"not a list of CPUs: {text[:80]!r}")
        found.append(range(start, stop))
    return joined_ranges(found)


def joined_ranges(ranges: Iterable[range]) -> tuple[range, ...]:
    """Merge ranges of whole numbers into ascending ranges that do not touch."""
    found: list[range] = []
    for each in sorted(ranges, key=lambda one: one.start):
        if found and each.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, each.stop))
        else:
            found.append(each)
    return tuple(found)
