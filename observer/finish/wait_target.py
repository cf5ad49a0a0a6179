"""Find out what a blocked thread waits for: the file of its descriptor, a socket's peer, child processes.

flock, fcntl, read, recv, …   /proc/PID/fd/N of the call's first argument: a path as the process sees it, a socket, a pipe
poll                          the same, for the first descriptor in the array that its first argument points at (/proc/PID/mem),
                              while the thread is in it (/proc/PID/task/TID/syscall)
flock, fcntl on a path        /proc/PID/fdinfo/N, /proc/locks: the holder of the lock
a socket                      /proc/PID/net/tcp, tcp6: its peer
wait4, waitid, a pipe         /proc/PID/task/PID/children: the names of the child processes
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from rankscope.observer.census.kinship import NET_TCP, Pair, more_connections, parse_net_tcp
from rankscope.observer.thread import syscalls
from rankscope.observer.window.schema import ENDED, SOCKET_TO
from rankscope.probes.base.system_calls import known
from rankscope.probes.base.text import printable
from rankscope.probes.host import procfs
from rankscope.probes.host.common_tables import CommonTables
from rankscope.probes.host.fair import Fair, whose
from rankscope.probes.host.namespaces import namespace_inode

_NOT_OF_A_DESCRIPTOR = frozenset(
    ["open", "stat", "rename", "unlink", "sync", "mmap", "munmap", "madvise", "brk", "mremap", "mprotect"]
)
_BY_DESCRIPTOR = frozenset(
    number
    for table in (syscalls.FILE_CALLS, syscalls.SOCKET_CALLS)
    for number, word in table.items()
    if word not in _NOT_OF_A_DESCRIPTOR
)
_POLLS = frozenset(number for number, word in syscalls.SYNC_CALLS.items() if word == "poll")
_FILE_LOCK = "file lock"
_LONGEST = 256
_CHILDREN_TOLD = 3
_ZOMBIE = "Z"
_NET_TCP_CAP, _LOCKS_CAP = 16 << 20, 4 << 20
_FREELY_BYTES, _EACH_BYTES = (
    64 << 20,
    4 << 20,
)  # bytes of connection tables, 50 MB a second: for all network namespaces, and then per user
_MOST_CHILDREN = 1024


@dataclass(slots=True)
class WaitReadings:
    """Cached readings at the end of a window, shared by all waiting threads (there may be hundreds per process)."""

    root: Path
    notes: list[str] = field(default_factory=list)
    _children: dict[int, str] = field(default_factory=dict)
    _locks: list[list[str]] | None = None
    _fair: Fair = field(default_factory=lambda: Fair(_FREELY_BYTES, _EACH_BYTES))
    _connections: CommonTables[int, int, Pair] = field(init=False)

    def __post_init__(self) -> None:
        self._connections = CommonTables(self.root, NET_TCP, parse_net_tcp, _NET_TCP_CAP, self._fair, self._tell)

    def children(self, pid: int) -> str:
        """Describe the child processes of a process: 'child python, gcc'; '' if none. Cached."""
        if pid not in self._children:
            self._children[pid] = _children(pid, self.root)
        return self._children[pid]

    def connections(self, pid: int) -> Mapping[int, Pair]:
        """Return the connections of a process's network namespace, by inode."""
        try:
            space = namespace_inode(pid, "net", self.root)
        except (OSError, ValueError):
            space = -pid
        return self._connections.of(pid, space, partial(whose, pid, self.root))

    def _tell(self, user: str, pid: int) -> None:
        """Note that a connection table was not read completely, as this user's budget is used up."""
        self.notes.append(more_connections(user, pid))

    def locks(self) -> list[list[str]]:
        """Return each line of /proc/locks, split into words."""
        if self._locks is None:
            try:
                text = procfs.read_file(str(self.root / "proc/locks"), _LOCKS_CAP).decode("ascii", "replace")
            except OSError:
                text = ""
            self._locks = [line.split() for line in text.splitlines()]
        return self._locks


def wait_target(pid: int, tid: int, syscall: int, argument: int, seen: WaitReadings) -> str:
    """Describe what a thread in this system call waits for; '' where unknown."""
    root = seen.root
    if syscalls.reason(syscall, argument) == "wait child":
        return seen.children(pid)
    descriptor = (
        _polled(pid, tid, argument, root) if syscall in _POLLS else argument if syscall in _BY_DESCRIPTOR else -1
    )
    if not 0 <= descriptor < 1 << 20:
        return ""
    link = procfs.proc_path(root, pid, "fd", descriptor)
    try:
        target = procfs.read_link(link)
    except OSError:
        return ""
    if target.startswith("pipe:"):
        return f"a pipe, {seen.children(pid)}".removesuffix(", ")
    if target.startswith("socket:"):
        return _socket(target, seen.connections(pid))
    if not target.startswith("/"):
        return ""
    held = _holder(pid, descriptor, seen) if syscalls.reason(syscall, argument) == _FILE_LOCK else ""
    return _shown(target) + held


def _polled(pid: int, tid: int, address: int, root: Path) -> int:
    """Read the first descriptor of the poll whose array is at `address`.

    -1 where unreadable, or the thread has left that poll.
    """
    try:
        now = procfs.read_file(procfs.proc_path(root, pid, "task", tid, "syscall"), 256).split()
        if len(now) < 2 or known(int(now[0])) not in _POLLS or int(now[1], 16) != address:
            return -1
        return int.from_bytes(procfs.read_memory(pid, 4, address, root), "little", signed=True)
    except (OSError, OverflowError, ValueError):
        return -1


def _socket(link: str, connections: Mapping[int, Pair]) -> str:
    """Describe a socket: `a socket to 10.0.0.7:443`; without the peer unless it is an established
    TCP connection.
    """
    inode = link.removeprefix("socket:[").removesuffix("]")
    if inode.isdigit() and int(inode) in connections:
        return f"{SOCKET_TO}{_endpoint(connections[int(inode)][1])}".removesuffix(" to ")
    return "a socket"


def _endpoint(words: bytes) -> str:
    """Format an endpoint from the kernel's `0100007F:1F90` (32-bit words in the machine's byte
    order).
    """
    address, _, port = words.decode("ascii", "replace").partition(":")
    try:
        raw = bytes.fromhex(address)
        host = ipaddress.ip_address(b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4)))
        return f"[{host}]:{int(port, 16)}" if host.version == 6 else f"{host}:{int(port, 16)}"
    except ValueError:
        return ""


def _holder(pid: int, descriptor: int, seen: WaitReadings) -> str:
    """Describe the lock holder of a file: `, held by python (pid 77)`; '' where no process of this
    host has a lock.

    The inode comes from fdinfo: stat would hang on a server that does not answer.
    """
    try:
        told = procfs.read_file(procfs.proc_path(seen.root, pid, "fdinfo", descriptor), 4096).split()
        inode = told[told.index(b"ino:") + 1].decode("ascii")
    except (OSError, ValueError, IndexError):
        return ""
    # 1: FLOCK ADVISORY WRITE 708 fe:00:1234 0 EOF; waiters have "->" after the number
    for words in seen.locks():
        if len(words) >= 6 and words[1] != "->" and words[5].rpartition(":")[2] == inode and words[4].isdigit():
            try:
                name = f"{_shown(procfs.read_comm(int(words[4]), seen.root))} (pid {words[4]})"
            except (OSError, ValueError):
                name = f"pid {words[4]}"
            return f", held by {name}"
    return ""


def _children(pid: int, root: Path) -> str:
    """Name up to three child processes, those that have ended first: 'child python that has ended, gcc'; '' if none."""
    try:
        pids = procfs.read_file(procfs.proc_path(root, pid, "task", pid, "children")).split()
    except OSError:
        return ""
    names: list[str] = []
    for child in pids[:_MOST_CHILDREN]:
        try:
            found = procfs.read_stat(int(child), root)
        except (OSError, ValueError):
            continue
        name = _shown(found.comm)
        if found.state == _ZOMBIE:  # its parent has not reaped it yet: waiting on it lasts for ever
            names.insert(0, f"{name} {ENDED}")
        elif name not in names:
            names.append(name)
    names = list(dict.fromkeys(names))
    return f"child {', '.join(names[:_CHILDREN_TOLD])}" if names else ""


def _shown(text: str) -> str:
    """Make a text printable; where longer than `_LONGEST` characters, keep its end, after '…'."""
    shown = printable(text)
    return shown if len(shown) <= _LONGEST else "…" + shown[1 - _LONGEST :]
