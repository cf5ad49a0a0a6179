"""Usage of file systems, and mounts that do not answer.

statvfs(2) on a dead network mount never returns, and its thread cannot be ended. So a child process
asks mount after mount and reports after each; if it stops at one, that mount does not answer, the
child is killed, and another child asks the rest. One child costs about 15 ms of CPU.

A user may mount over an own folder, and so over a mount of the host, or between its folders: then
the path leads to the user's server, which need not answer. So the child walks from folder to folder
without asking any server (O_PATH), checks after each step whether it is in a mount on the known way
(mnt_id in /proc/self/fdinfo), and asks the final descriptor.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankscope.diagnose.sweep.context import Context, Unreadable
from rankscope.diagnose.sweep.readings.attached import mount_is_attached
from rankscope.diagnose.sweep.readings.kernel_stacks import Held, held
from rankscope.probes.host.fair import group_by, interleave
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
# Each gives one or two of at most 512 findings; a host of many pods has thousands of mounts, mostly
# in memory.
MAX_MOUNTS = 400
_MAX_NESTED = 200
_MAX_CHILDREN = 3
# An interpreter starts in some 20 ms, but in seconds on a host short of memory or disk, which is no
# mount's fault.
_START_S = 2.0
_LOAD = "Look at the host's memory and disks: mem.pressure, disk.slow."
# Reads `way`, `base`, `point` for each mount: ids of the mounts allowed on the way to it, its own
# last ('' without ids), the folder to begin at, and the mount point. Nothing is looked up in a
# mount before its id was checked.
_SCRIPT = """
import os, sys

def asked(way, base, point):
    at = os.open(base, os.O_PATH)
    try:
        for name in filter(None, point.split("/")):
            outer, at = at, os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=at)
            os.close(outer)
            if way and mount_of(at) not in way:
                return ("covered",)
        if way and mount_of(at) != way[-1]:
            return ("covered",)
        v = os.fstatvfs(at)
        return (v.f_frsize, v.f_blocks, v.f_bfree, v.f_bavail, v.f_files, v.f_ffree)
    finally:
        os.close(at)

def mount_of(at):
    with open(f"/proc/self/fdinfo/{at}") as info:
        return next((line.split()[1] for line in info if line.startswith("mnt_id:")), "")

print("begun", flush=True)
words = sys.stdin.read().split("\\0")
for way, base, point in zip(words[::3], words[1::3], words[2::3]):
    try:
        said = asked(way.split(), base, point)
    except OSError as error:
        said = ("error", error.errno)
    print(*said, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of one mount.

    `answered`: in time; `waits`: what of the host its request waited for, in words; `error`: errno, 0 if none;
    `inodes`: 0 if not counted; `covered`: another mount covers it or its path, so that it was not asked.
    """

    mount: Mount
    answered: bool
    error: int = 0
    total_bytes: int = 0
    free_bytes: int = 0
    used_percent: float = 0.0
    inodes: int = 0
    inodes_percent: float = 0.0
    covered: bool = False
    waits: str = ""

    @property
    def network(self) -> bool:
        """Whether the mount is served by another host or process."""
        return is_network(self.mount.fs_type)


def is_network(fs_type: str) -> bool:
    """Whether a file system type is served by another host or process."""
    return fs_type.startswith(_NETWORK)


def of_user(mount: Mount) -> bool:
    """Whether an unprivileged user mounted it (fusermount).

    Such a user decides whether it answers, is full or read-only.
    """
    owner = _OWNER.search(mount.super_options)
    return mount.fs_type.startswith("fuse") and owner is not None and owner[1].strip("0") != ""


def mounts(context: Context) -> tuple[Mount, ...]:
    """Mounts of real file systems, one per device, without those of users; at most MAX_MOUNTS.

    Read from process 1, so that a pod or a sandboxed service sees the host's. If there are too many, disks and
    network come first, in turns by type.
    """
    return _all_of_host(context)[:MAX_MOUNTS]


def left_out(context: Context) -> int:
    """Number of mounts of real file systems beyond MAX_MOUNTS, which are not asked."""
    return max(0, len(_all_of_host(context)) - MAX_MOUNTS)


def usages(context: Context, patience_s: float = 1.0) -> tuple[Usage, ...]:
    """Ask all reachable mounts for their usage, once per sweep.

    Raises Unreadable if they cannot be asked. A mount without an answer within `patience_s` has
    `answered` False.
    """
    return context.shared.get("usages", lambda: _ask(context, mounts(context), patience_s))


def _all_mounts(context: Context) -> tuple[Mount, ...]:
    """All mounts of the host, of any kind, read once per sweep."""
    return context.shared.get(
        "mountinfo", lambda: read_mounts(1 if _foreign(context.root) else "self", context.root).mounts
    )


def _all_of_host(context: Context) -> tuple[Mount, ...]:
    """Mounts of real file systems, also beyond MAX_MOUNTS, selected once per sweep."""
    return context.shared.get("mounts", lambda: _mounts(context))


def _mounts(context: Context) -> tuple[Mount, ...]:
    """Select the mounts of real file systems, one per device (its shortest path), without users'.

    If there are more than MAX_MOUNTS, disks and network come first, in turns by type.
    """
    seen: dict[tuple[int, int], Mount] = {}
    for mount in _all_mounts(context):
        if mount.fs_type in _PSEUDO or mount.mount_point.startswith(("/proc/", "/sys/", "/dev/", "/run/credentials")):
            continue
        if of_user(mount) or mount_is_attached(context, mount):
            continue
        key = (mount.major, mount.minor)
        if key not in seen or len(mount.mount_point) < len(seen[key].mount_point):
            seen[key] = mount
    if len(seen) <= MAX_MOUNTS:
        return tuple(seen.values())
    by_type = interleave(group_by(seen.values(), lambda mount: mount.fs_type))
    return tuple(sorted(by_type, key=lambda mount: not (is_network(mount.fs_type) or mount.source.startswith("/dev/"))))


def _foreign(root: Path) -> bool:
    """Whether process 1 has another mount namespace that may be read (CAP_SYS_PTRACE)."""
    try:
        return (
            root == ROOT
            and namespace_inode(1, "mnt") != namespace_inode("self", "mnt")
            and Path("/proc/1/root/").is_dir()
        )
    except (OSError, ValueError):
        return False


def _ask(context: Context, wanted: tuple[Mount, ...], patience_s: float) -> tuple[Usage, ...]:
    """Ask these mounts for their usage, in up to three children, as each ends at one without an answer.

    Covered mounts, and those beyond the last child, are left out. Raises Unreadable if none could be asked.
    """
    base = "/proc/1/root" if _foreign(context.root) else str(context.root)
    # Below another root (a recorded tree) the ids in mountinfo are not those of the folders.
    known = {mount.mount_id: mount for mount in _all_mounts(context)} if context.root == ROOT else {}
    questions = [(_way(mount, known), base, mount.mount_point) for mount in wanted]
    found: list[Usage] = []
    for _ in range(_MAX_CHILDREN):
        left = slice(len(found), None)
        if not wanted[left]:
            break
        try:
            found += _ask_child(questions[left], wanted[left], patience_s)
        except Unreadable:
            if all(usage.answered for usage in found):
                raise
            break  # report the hanging mount in any case
    return tuple(usage for usage in found if not usage.covered)


def _way(mount: Mount, known: Mapping[int, Mount]) -> str:
    """Ids of the mounts on the way to a mount, its own last, separated by blanks, without users' mounts; '' if unknown.

    `known`: mounts by id.
    """
    way: list[str] = []
    at = known.get(mount.mount_id)
    while at is not None and len(way) < _MAX_NESTED:  # a namespace that changes during reading may contain a cycle
        if not of_user(at):
            way.append(str(at.mount_id))
        at = known.get(at.parent_id)
    return " ".join(reversed(way))


def _ask_child(questions: Sequence[tuple[str, str, str]], wanted: tuple[Mount, ...], patience_s: float) -> list[Usage]:
    """Ask mounts in a child process, up to the first without an answer.

    `questions`: way, base and mount point of each of the mounts `wanted`. Raises Unreadable if the child fails.
    """
    with os.fdopen(os.memfd_create("mounts"), "w+b") as asked:  # a full pipe would block
        asked.write("\0".join(itertools.chain.from_iterable(questions)).encode("utf-8", "surrogateescape"))
        asked.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _SCRIPT],
            stdin=asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    assert child.stdout is not None
    lines: list[bytes] = []
    buffer, waits, ended = b"", Held("", False), False
    try:
        deadline = time.monotonic() + _START_S
        while len(lines) <= len(wanted):
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(child.stdout.fileno(), 65536) if ready else b""
            if not chunk:
                ended = bool(ready)  # killed, for lack of memory, say
                break
            buffer += chunk
            *complete, buffer = buffer.split(b"\n")
            lines += complete
            deadline = time.monotonic() + patience_s
        if len(lines) <= len(wanted):
            with contextlib.suppress(OSError):
                waits = held(child.pid)
    finally:
        child.kill()
        child.stdout.close()
    with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel until its mount recovers
        child.wait(0.2)
    if ended:
        raise Unreadable("the program that asks the mounts ended before it had asked them all", _LOAD)
    if not lines:
        raise Unreadable(f"the program that asks the mounts did not begin within {_START_S:g} s: none was asked", _LOAD)
    answers = [_usage(mount, line) for mount, line in zip(wanted, lines[1:], strict=False)]
    return answers if len(answers) == len(wanted) else [*answers, Usage(wanted[len(answers)], False, waits=waits.by)]


def _usage(mount: Mount, line: bytes) -> Usage:
    """Convert the child's answer on a mount: usage, error number, or covered."""
    words = line.split()
    if words[:1] == [b"covered"]:
        return Usage(mount, True, covered=True)
    if words[:1] == [b"error"]:
        return Usage(mount, True, int(words[1]))
    size, blocks, free, available, inodes, free_inodes = map(int, words)
    used = blocks - free
    return Usage(
        mount, True, 0, blocks * size, available * size,
        # As in df: relative to what unprivileged users may use.
        100.0 * used / (used + available) if used + available > 0 else 0.0,
        inodes, 100.0 * (inodes - free_inodes) / inodes if inodes > 0 else 0.0,
    )  # fmt: skip
