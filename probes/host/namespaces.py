"""Namespaces of a process: their ids, and how to run one function inside them.

A thread, not the process, enters a namespace (setns(2)): a fresh thread enters, runs the function
and ends, so nothing of the observer remains inside. That works for network and UTS namespaces;
mount, user and pid namespaces refuse threads, and are never needed: /proc/PID/root and
/proc/PID/mountinfo show them from outside.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from rankscope.probes.base import rights
from rankscope.probes.base.patience import ask
from rankscope.probes.host.procfs import ROOT, proc_path, read_environ, read_file, read_link, read_status, reason

CLONE_NEWUTS = 0x04000000
CLONE_NEWNET = 0x40000000
_FLAGS = {"uts": CLONE_NEWUTS, "net": CLONE_NEWNET}
_FIRST_USER_NAMESPACE = 0xEFFFFFFD  # PROC_USER_INIT_INO, include/linux/proc_ns.h
_GET_OWNER = 0xB704  # NS_GET_OWNER_UID, include/uapi/linux/nsfs.h
KINDS = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")

_libc = ctypes.CDLL(None, use_errno=True)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Namespaces:
    """Inode numbers of a process's namespaces; 0 where unreadable, and `missing` says why."""

    cgroup: int
    ipc: int
    mnt: int
    net: int
    pid: int
    user: int
    uts: int
    missing: tuple[str, ...] = ()


def namespaces(pid: int | str, root: Path = ROOT) -> Namespaces:
    """Read the namespace ids of a process. Never raises."""
    found: dict[str, int] = {}
    missing: list[str] = []
    for kind in KINDS:
        try:
            found[kind] = namespace_inode(pid, kind, root)
        except (OSError, ValueError) as error:
            found[kind] = 0
            missing.append(f"{kind} namespace of pid {pid}: {reason(error)}")
    return Namespaces(**found, missing=tuple(missing))


def namespace_inode(pid: int | str, kind: str, root: Path = ROOT) -> int:
    """Read the inode number of one namespace of a process. Raises OSError, ValueError."""
    target = read_link(proc_path(root, pid, "ns", kind))
    name, _, inode = target.partition(":[")
    if name != kind or not inode.rstrip("]").isdigit():
        raise ValueError(f"not a namespace: {target[:80]!r}")
    return int(inode.rstrip("]"))


def _open(pid: int, kind: str, root: Path) -> int:
    """Open a process's namespace file /proc/PID/ns/`kind`; return the descriptor. Raises OSError."""
    path = proc_path(root, pid, "ns", kind)
    return ask(pid, os.open, path, os.O_RDONLY | os.O_CLOEXEC)


def owner_uid(pid: int, root: Path = ROOT) -> int:
    """Return the host's uid that owns a process; in a user namespace, of the user that created it.

    So pods with user ids of their own all belong to the container runtime's user. -1 where unknown.
    """
    try:
        if namespace_inode(pid, "user", root) != _FIRST_USER_NAMESPACE:
            descriptor = _open(pid, "user", root)
            try:
                return int(struct.unpack("I", fcntl.ioctl(descriptor, _GET_OWNER, bytes(4)))[0])
            finally:
                os.close(descriptor)
    except (OSError, ValueError):
        pass  # a kernel without user namespaces
    try:
        with suppress(ValueError):
            if (uid := read_status(pid, root).uid) >= 0:
                return uid
        return Path(proc_path(root, pid)).stat().st_uid
    except OSError:
        return -1


class _Visit(threading.Thread, Generic[_Result]):
    """A thread that enters the namespace behind a descriptor, calls the function and ends.

    `results` then holds the returned value, else `error` what was raised.
    """

    def __init__(self, descriptor: int, flag: int, function: Callable[[], _Result]) -> None:
        super().__init__(name="namespace-visit", daemon=True)
        self._descriptor, self._flag, self._function = descriptor, flag, function
        self.results: list[_Result] = []
        self.error: Exception | None = None

    def run(self) -> None:
        """Enter the namespace and call the function; store its result, or the error. Never raises."""
        try:
            if _libc.setns(self._descriptor, self._flag) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number))
            self.results.append(self._function())
        except Exception as error:
            self.error = error


def in_namespace(pid: int, kind: str, function: Callable[[], _Result], root: Path = ROOT) -> _Result:
    """Run `function` on a fresh thread inside the `net` or `uts` namespace of a process; return its
    result.

    Raises OSError if the namespace cannot be entered (no such process, not root), and whatever the
    function raises.
    """
    descriptor = _open(pid, kind, root)
    try:
        visit = _Visit(descriptor, _FLAGS[kind], function)
        visit.start()
        visit.join()
    finally:
        os.close(descriptor)
    if visit.error is not None:
        raise visit.error
    return visit.results[0]


def host_name(root: Path = ROOT) -> str:
    """Return the node name in our own UTS namespace (uname); of a recorded tree its host's, '' where it has none."""
    if root == ROOT:
        return os.uname().nodename
    try:
        return read_file(proc_path(root, "sys/kernel/hostname"), 256).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def uts_name(pid: int) -> str:
    """Return the node name in the UTS namespace of a process. Raises OSError."""
    return in_namespace(pid, "uts", lambda: os.uname().nodename)


def node_name(pid: int, root: Path = ROOT) -> str:
    """Return the node name that a process sees. Never raises.

    From its UTS namespace, else from HOSTNAME in its environment, else the host's.
    """
    try:
        inside = namespace_inode(pid, "uts", root)
    except (OSError, ValueError):
        return host_name(root)
    try:
        if inside == namespace_inode("self", "uts", root):
            return host_name(root)
        if root == ROOT:
            asked = rights.delegate()
            return uts_name(pid) if asked is None else str(asked.ask("uts_name", pid=pid)[0]["name"])
    except (OSError, ValueError):
        pass
    try:
        return read_environ(pid, root).get("HOSTNAME", "")[:64] or host_name(root)
    except OSError:
        return host_name(root)
