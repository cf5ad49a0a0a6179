"""What a thread that is blocked at the end of the window waits for: the file behind its descriptor, or the child processes of its process.

flock, fcntl, read, recv, …   /proc/PID/fd/N of the call's first argument: a path as the process sees it, a socket, a pipe
wait4, waitid, a pipe         /proc/PID/task/PID/children: the names of the child processes
"""

from __future__ import annotations

from pathlib import Path

from rankscope.observer.thread import syscalls
from rankscope.probes.host import procfs

_NOT_OF_A_DESCRIPTOR = ("open", "stat", "rename", "unlink", "mmap", "munmap", "madvise", "sync")
_BY_DESCRIPTOR = frozenset(
    number
    for table in (syscalls.FILE_CALLS, syscalls.SOCKET_CALLS)
    for number, word in table.items()
    if word not in _NOT_OF_A_DESCRIPTOR
)
_LONGEST = 256
_CHILDREN_TOLD = 3


def wait_target(pid: int, syscall: int, argument: int, root: Path) -> str:
    """In words, '' where it cannot be told."""
    if syscalls.reason(syscall, argument) == "wait child":
        return _children(pid, root)
    if syscall not in _BY_DESCRIPTOR or not 0 <= argument < 1 << 20:
        return ""
    try:
        target = procfs.read_link(procfs.proc_path(root, pid, "fd", argument))
    except OSError:
        return ""
    if target.startswith("pipe:"):
        return f"a pipe, {_children(pid, root)}".removesuffix(", ")
    if target.startswith("socket:"):
        return "a socket"
    return _shown(target) if target.startswith("/") else ""


def _children(pid: int, root: Path) -> str:
    try:
        pids = procfs.read_file(procfs.proc_path(root, pid, "task", pid, "children")).split()
    except OSError:
        return ""
    names: list[str] = []
    for child in pids:
        try:
            name = procfs.read_comm(int(child), root)
        except (OSError, ValueError):
            continue
        if name not in names:
            names.append(_shown(name))
    return f"child {', '.join(names[:_CHILDREN_TOLD])}" if names else ""


def _shown(text: str) -> str:
    printable = "".join(character if character.isprintable() else "?" for character in text)
    return printable if len(printable) <= _LONGEST else "…" + printable[1 - _LONGEST :]
