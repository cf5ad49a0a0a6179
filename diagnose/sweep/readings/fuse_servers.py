"""Find out who serves a FUSE file system: only the host's own root, or somebody else.

Only in the first case is a missing answer the host's fault: root also mounts FUSE file systems
whose servers run elsewhere, as when a CSI driver passes /dev/fuse to a pod. So the holders of the
connection's /dev/fuse are searched: the mount is the host's if all of them are root's, in the user,
process and mount namespaces of process 1. In: /proc/PID/fd, /proc/PID/fdinfo (`fuse_connection`;
Linux before 6.16 has none, there each holder counts for all mounts), /proc/PID/ns.
"""

from __future__ import annotations

import contextlib
import os
import time
from functools import partial
from pathlib import Path

from rankscope.probes.base.patience import ask, patiently
from rankscope.probes.host.mounts import Mount
from rankscope.probes.host.namespaces import namespace_inode
from rankscope.probes.host.procfs import pids, proc_path, read_file, read_link, read_status

LONGEST_S = 3.0  # 100,000 open files take 0.3 s
_DEVICE = "/dev/fuse"
_MINOR_BITS = 20  # MKDEV of include/linux/kdev_t.h
_FIRST = {"user": 0xEFFFFFFD, "pid": 0xEFFFFFFC}  # PROC_USER_INIT_INO, PROC_PID_INIT_INO of include/linux/proc_ns.h


def of_the_host(mount: Mount, root: Path) -> bool:
    """Whether all holders of a mount's connection are the host's root. Never raises.

    False if none is found, or the search exceeds `LONGEST_S`.
    """
    return patiently(
        partial(_of_the_host, mount.major << _MINOR_BITS | mount.minor, time.monotonic() + LONGEST_S, root)
    )


def _of_the_host(connection: int, until_s: float, root: Path) -> bool:
    """Tell whether all holders of this FUSE connection are the host's root; False in doubt or after `until_s`.

    `connection`: device number of the mount; `until_s`: time.monotonic.
    """
    found = False
    try:
        ours = _FIRST | {"mnt": _mount_namespace(root)}
        for pid in pids(root):
            if _holds(pid, connection, until_s, root):
                found = True
                if not _is_root_s(pid, ours, root):
                    return False
    except (OSError, ValueError):
        return False
    return found


def _mount_namespace(root: Path) -> int:
    """Inode of the host's mount namespace. Raises OSError."""
    try:
        return namespace_inode(1, "mnt", root)
    except PermissionError:  # process 1 may deny even root
        return namespace_inode("self", "mnt", root)


def _holds(pid: int, connection: int, until_s: float, root: Path) -> bool:
    """Whether a process has this FUSE connection open; one of unknown number counts.

    Raises OSError if that cannot be seen (except for process 1), TimeoutError after `until_s`.
    """
    refused = (PermissionError,) if pid == 1 else ()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError, *refused):
        for name in ask(pid, os.listdir, proc_path(root, pid, "fd")):
            if time.monotonic() >= until_s:
                raise TimeoutError
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if read_link(proc_path(root, pid, "fd", name)) == _DEVICE:
                    told = read_file(proc_path(root, pid, "fdinfo", name), 4096).split(b"fuse_connection:")
                    if len(told) < 2 or int(told[1].split()[0]) == connection:
                        return True
    return False


def _is_root_s(pid: int, ours: dict[str, int], root: Path) -> bool:
    """Whether a process is root's, in these namespaces (inode by kind). Raises OSError."""
    return read_status(pid, root).uid == 0 and all(
        namespace_inode(pid, kind, root) == inode for kind, inode in ours.items()
    )
