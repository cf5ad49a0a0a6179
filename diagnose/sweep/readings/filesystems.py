"""How full file systems are, and which do not answer.

statvfs(2) of a dead network mount never returns, and the thread that called it can never be ended. So a child process asks,
one mount after the other, and says after each; the mount it stands still at does not answer, the child is killed and
another one asks the rest. One child costs about 15 ms of CPU.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rankscope.diagnose.sweep.context import Context
from rankscope.probes.host.mounts import Mount, read_mounts
from rankscope.probes.host.namespaces import namespace_inode
from rankscope.probes.host.procfs import ROOT

_PSEUDO = frozenset(
    [
        "proc",
        "sysfs",
        "devtmpfs",
        "devpts",
        "cgroup",
        "cgroup2",
        "securityfs",
        "debugfs",
        "tracefs",
        "bpf",
        "pstore",
        "efivarfs",
        "mqueue",
        "hugetlbfs",
        "configfs",
        "fusectl",
        "binfmt_misc",
        "autofs",
        "rpc_pipefs",
        "nsfs",
        "ramfs",
        "selinuxfs",
        "fuse.gvfsd-fuse",
        "fuse.lxcfs",
        "squashfs",
        "iso9660",
        "erofs",
        "fuse.portal",
        "resctrl",
    ]
)
_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "ceph",
    "gpfs",
    "beegfs",
    "fuse",
    "9p",
    "wekafs",
    "glusterfs",
    "afs",
    "virtiofs",
)
_OWNER = re.compile(r"(?:^|,)user_id=(\d+)(?:,|$)")
MAX_MOUNTS = 200
_MAX_CHILDREN = 3
_SCRIPT = """
import os, sys
for line in sys.stdin.read().split("\\0"):
    try:
        v = os.statvfs(line)
        words = (v.f_frsize, v.f_blocks, v.f_bfree, v.f_bavail, v.f_files, v.f_ffree)
    except OSError as error:
        words = ("error", error.errno)
    print(*words, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """One mount. `answered` False: it did not in time. `error` an errno, 0 if none. Inodes 0: it does not count them."""

    mount: Mount
    answered: bool
    error: int = 0
    total_bytes: int = 0
    free_bytes: int = 0
    used_percent: float = 0.0
    inodes: int = 0
    inodes_percent: float = 0.0

    @property
    def network(self) -> bool:
        return is_network(self.mount.fs_type)


def is_network(fs_type: str) -> bool:
    """Whether a file system lives elsewhere."""
    return fs_type.startswith(_NETWORK)


def of_user(mount: Mount) -> bool:
    """Whether a user without root mounted it (fusermount): they decide whether it answers, is full or read-only."""
    owner = _OWNER.search(mount.super_options)
    return mount.fs_type.startswith("fuse") and owner is not None and owner[1].strip("0") != ""


def mounts(context: Context) -> tuple[Mount, ...]:
    """Mounts of real file systems, one per device, none of users: those of process 1, so that a pod or a sandboxed service
    sees the host's."""
    return context.shared.get("mounts", lambda: _mounts(context))


def usages(context: Context, patience_s: float = 1.0) -> tuple[Usage, ...]:
    """All of them asked, once per sweep; those that do not answer within `patience_s` are said so."""
    return context.shared.get("usages", lambda: _ask(context, mounts(context), patience_s))


def _mounts(context: Context) -> tuple[Mount, ...]:
    seen: dict[tuple[int, int], Mount] = {}
    for mount in read_mounts(1 if _foreign(context.root) else "self", context.root).mounts:
        if mount.fs_type in _PSEUDO or mount.mount_point.startswith(("/proc/", "/sys/", "/dev/", "/run/credentials")):
            continue
        if of_user(mount):
            continue
        key = (mount.major, mount.minor)
        if key not in seen or len(mount.mount_point) < len(seen[key].mount_point):
            seen[key] = mount
    return tuple(seen.values())[:MAX_MOUNTS]


def _foreign(root: Path) -> bool:
    """Whether process 1 lives in another mount namespace, and may be looked into (CAP_SYS_PTRACE)."""
    try:
        return (
            root == ROOT
            and namespace_inode(1, "mnt") != namespace_inode("self", "mnt")
            and Path("/proc/1/root/").is_dir()
        )
    except (OSError, ValueError):
        return False


def _ask(context: Context, wanted: tuple[Mount, ...], patience_s: float) -> tuple[Usage, ...]:
    found: list[Usage] = []
    for _ in range(_MAX_CHILDREN):
        left = wanted[len(found) :]
        if not left:
            break
        found += _ask_child(context.root, left, patience_s)
    return tuple(found)


def _ask_child(root: Path, wanted: tuple[Mount, ...], patience_s: float) -> list[Usage]:
    base = "/proc/1/root" if _foreign(root) else str(root).rstrip("/")
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _SCRIPT],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
    lines: list[bytes] = []
    buffer = b""
    try:
        child.stdin.write(
            "\0".join(f"{base}{mount.mount_point}" for mount in wanted).encode("utf-8", "surrogateescape")
        )
        child.stdin.close()
        deadline = time.monotonic() + patience_s
        while len(lines) < len(wanted):
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(child.stdout.fileno(), 65536) if ready else b""
            if not chunk:
                break
            buffer += chunk
            *complete, buffer = buffer.split(b"\n")
            lines += complete
            deadline = time.monotonic() + patience_s
    finally:
        child.kill()
        child.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel: it ends when its mount does
        child.wait(0.2)
    answers = [_usage(mount, line) for mount, line in zip(wanted, lines, strict=False)]
    return answers if len(answers) == len(wanted) else [*answers, Usage(wanted[len(answers)], False)]


def _usage(mount: Mount, line: bytes) -> Usage:
    words = line.split()
    if words[:1] == [b"error"]:
        return Usage(mount, True, int(words[1]))
    size, blocks, free, available, inodes, free_inodes = map(int, words)
    used = blocks - free
    return Usage(
        mount, True, 0, blocks * size, available * size,
        # As df shows it: of what unprivileged users may use.
        100.0 * used / (used + available) if used + available > 0 else 0.0,
        inodes, 100.0 * (inodes - free_inodes) / inodes if inodes > 0 else 0.0,
    )  # fmt: skip
