"""A guard that keeps the host running while probes wait for locks; argument: the command's pid, or `host`.

Its standard input ends with the command. With `host` in place of a pid it guards the whole host, whichever
process attaches probes, until it is ended: for commands that may not have the rights for this, as those of a
service or a pod that can be attacked. It then detects blocked forks by a child that forks regularly.

To insert a probe into a file or remove it, the kernel waits for the lock of the address space of every
process that maps the file, and as long as it waits no process of the host can fork (`dup_mmap_sem` in
register_for_each_vma). Any user can hold such a lock for ever: by a page of a file server of his own (FUSE)
that he reads through /proc/PID/mem. The waiting thread cannot be killed, so the holder is stopped: where a
thread of the command has waited for some seconds, FUSE connections with unanswered requests are aborted, as
root would by hand (/sys/fs/fuse/connections/N/abort), if they belong to users (not root) with a process whose
address space does not answer. Nothing else is ever touched, no other file server however slow it is, and it
is reported in the kernel's log.

As a program it needs the standard library alone (`python -I -S`), and four capabilities.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import resource
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

LOOKS_EVERY_S = 1.0
# looks that must find the same thread waiting: no healthy process holds its lock for two seconds
# while all forks of a host wait
LOOKS = 3
# after the command and all holders of its probes have ended, until the kernel removes them
_AFTER_S = 0.5
_UNANSWERED_S = 0.5
_WAITS = re.compile(rb"\b(?:register_for_each_vma|_*uprobe_(?:un)?register\w*)\b")
_HIGH = 4096  # beyond the descriptors of nearly every observer; a larger table takes time to fork
_MOUNTED = "/sys/fs/fuse/connections"
# The same numbers on x86-64 and aarch64, include/uapi/asm-generic/unistd.h; FSCONFIG_CMD_CREATE of include/uapi/linux/mount.h.
_FSOPEN, _FSCONFIG, _FSMOUNT, _CREATE = 430, 431, 432, 6
# CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, CAP_SYS_ADMIN: a user's file below /sys, stacks of the kernel, a mount of its own
_KEPT = (1, 2, 19, 21)
# Writable by root alone; containers share it. The guard of the host holds a lock in it as long as
# it lives.
PLACE = Path("/run/rankscope/observers/guard")
_LOCK = struct.Struct("hhqqi0q")  # type, whence, start, length, pid
_HOST = "host"
_FORKS_EVERY_S = 0.5
_ST_RDONLY = 1
_wardens: list[int] = []  # pids, started by this process


def start() -> int:
    """Start warden.py, which ends after the returned descriptor is closed, at the latest with this process.

    The descriptor has a high number: as a process ends its descriptors are closed in order, this one after
    the probes. Raises OSError.
    """
    # here, as the program itself imports nothing of ours
    from rankscope.probes.confine import credentials

    for pid in tuple(_wardens):
        with contextlib.suppress(ChildProcessError):
            if not os.waitpid(pid, os.WNOHANG)[0]:
                continue
        _wardens.remove(pid)
    ends, told = os.pipe2(os.O_CLOEXEC)
    try:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        kept = fcntl.fcntl(told, fcntl.F_DUPFD_CLOEXEC, max(min(most, _HIGH) - 16, 3))
        try:
            moves: list[tuple[object, ...]] = [(os.POSIX_SPAWN_DUP2, ends, 0)]
            # Else a reader of the command's output would wait for the warden too.
            moves += [(os.POSIX_SPAWN_OPEN, standard, os.devnull, os.O_WRONLY, 0) for standard in (1, 2)]
            confine, own = (Path(file).resolve() for file in (credentials.__file__, __file__))
            command = [
                sys.executable,
                "-I",
                "-S",
                str(confine),
                f"{credentials.mask(_KEPT):x}",
                "",
                str(own),
                str(os.getpid()),
            ]
            _wardens.append(os.posix_spawn(sys.executable, command, {"LC_ALL": "C"}, file_actions=moves, setpgroup=0))
        except BaseException:
            os.close(kept)
            raise
        return kept
    finally:
        os.close(ends)
        os.close(told)


def able() -> bool:
    """Tell whether a warden started by this process would have the rights, calls and writable files
    that it needs.
    """
    from rankscope.probes.confine import credentials

    try:
        _read("/proc/self/stack")
        folder = _connections()
    except OSError as error:
        # No FUSE file system has been mounted on this host so far: the kernel has the list once
        # there is one.
        possible = error.errno == errno.ENODEV
    else:
        possible = not os.statvfs(folder).f_flag & _ST_RDONLY
        os.close(folder)
    try:
        held = credentials.effective()
    except (OSError, ValueError):
        return False
    return possible and held & credentials.mask(_KEPT) == credentials.mask(_KEPT)


def guarded() -> bool:
    """Tell whether a program guards this whole host. Never raises."""
    try:
        folder = PLACE.parent.stat()
        if folder.st_uid != 0 or folder.st_mode & 0o022:
            return False
        file = os.open(PLACE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            asked = fcntl.fcntl(file, fcntl.F_GETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        finally:
            os.close(file)
    except OSError:
        return False
    return int(_LOCK.unpack(asked)[0]) != fcntl.F_UNLCK


def guard_host() -> NoReturn:
    """Replace this process by the program that guards this host. Raises OSError."""
    from rankscope.probes.confine import credentials

    program = [
        sys.executable,
        "-I",
        "-S",
        str(Path(credentials.__file__).resolve()),
        f"{credentials.mask(_KEPT):x}",
        "",
    ]
    os.execve(sys.executable, [*program, str(Path(__file__).resolve()), _HOST], os.environ)


def main() -> None:
    """Guard a command or the host, as the last argument says."""
    if sys.argv[-1] == _HOST:
        _guard_host()
    else:
        _guard_command(int(sys.argv[-1]))


def _guard_command(command: int) -> None:
    """Look for threads that block all forks each second, until a command has ended and none waits any more.

    `command`: its pid. While it runs only its own threads are checked; after that those of all processes.
    """
    ended = False
    waiting: dict[tuple[int, int], int] = {}
    while not ended or waiting:
        if not ended and select.select([0], [], [], LOOKS_EVERY_S)[0]:
            ended = True
            time.sleep(_AFTER_S)
        elif ended:
            time.sleep(LOOKS_EVERY_S)
        waiting = _look(waiting, _processes() if ended else [command])


def _guard_host() -> None:
    """Check all of root's processes whenever forks hang. Exits if another program guards this host
    already.
    """
    PLACE.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    place = os.open(PLACE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit("rankscope: another program guards this host already")
    ends, tells = os.pipe()
    if os.fork() == 0:
        os.close(ends)
        with contextlib.suppress(BrokenPipeError):
            _fork_again_and_again(tells)
        os._exit(0)
    os.close(tells)
    _notify()
    waiting: dict[tuple[int, int], int] = {}
    while True:
        if not select.select([ends], [], [], LOOKS_EVERY_S)[0]:
            waiting = _look(waiting, _processes())
        elif os.read(ends, 4096):
            waiting = {}
        else:
            sys.exit("rankscope: what forks has ended")


def _fork_again_and_again(tells: int) -> None:
    """Fork twice a second for ever, writing a byte to the pipe `tells` each time the call has returned.

    A fork refused at a limit of processes (EAGAIN) counts too: a pause in these bytes shows that forks are
    blocked. Raises BrokenPipeError when the reader has ended.
    """
    while True:
        with contextlib.suppress(BlockingIOError):  # no more processes available
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
        os.write(tells, b".")
        time.sleep(_FORKS_EVERY_S)


def _notify() -> None:
    """Tell systemd that the guard is ready (sd_notify(3))."""
    if name := os.environ.get("NOTIFY_SOCKET"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(b"READY=1", "\0" + name[1:] if name.startswith("@") else name)


def _look(before: dict[tuple[int, int], int], processes: list[int]) -> dict[tuple[int, int], int]:
    """Count in how many checks in a row each thread waited; after `LOOKS`, abort the FUSE connections at fault.

    `before`: result of the last check: that number by (pid, tid). Returns the new one, empty after aborting.
    """
    waiting = {one: before.get(one, 0) + 1 for one in set(waiting_threads(processes))}
    if max(waiting.values(), default=0) < LOOKS:
        return waiting
    for user, number in cut_off():
        _say(
            f"the file server of user {user} (FUSE connection {number}) blocked every fork of this host, and was disconnected"
        )
    return {}


def waiting_threads(processes: list[int]) -> Iterator[tuple[int, int]]:
    """Yield (pid, tid) of root's threads that wait for an address space to insert or remove a
    probe.
    """
    for pid in processes:
        with contextlib.suppress(OSError, ValueError):
            for tid in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                with contextlib.suppress(OSError, ValueError):
                    # The first of these files never blocks, whatever the process.
                    hangs = b"\nState:\tD" in _read(f"/proc/{pid}/task/{tid}/status") and _of_root(pid)
                    if hangs and _WAITS.search(_read(f"/proc/{pid}/task/{tid}/stack")):
                        yield pid, int(tid)


def _of_root(pid: int) -> bool:
    """Tell whether a process's real uid is 0. Raises OSError."""
    return b"\nUid:\t0\t" in _read(f"/proc/{pid}/status")


def _processes() -> list[int]:
    """List the pids of all processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def cut_off() -> list[tuple[int, int]]:
    """Abort the FUSE connections at fault; return (owner's uid, number) of each, [] where they cannot be listed."""
    try:
        folder = _connections()
    except OSError as error:
        _say(f"every fork of this host is blocked, and the list of FUSE file servers cannot be read: {error.strerror}")
        return []
    try:
        first = _unanswered(folder)
        began = time.monotonic()
        holders = _holders(set(first.values()))
        time.sleep(max(began + _UNANSWERED_S - time.monotonic(), 0))
        done = []
        for number, user in sorted(_unanswered(folder).items() & first.items()):
            if user not in holders:
                continue
            with contextlib.suppress(OSError):
                abort = os.open(f"{number}/abort", os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
                try:
                    os.write(abort, b"1")
                finally:
                    os.close(abort)
                done.append((user, number))
        return done
    finally:
        os.close(folder)


def _unanswered(folder: int) -> dict[int, int]:
    """Map numbers of FUSE connections with unanswered requests to their owners' uids, root's left out.

    `folder`: descriptor of the folder of all FUSE connections.
    """
    found = {}
    for name in os.listdir(folder):
        with contextlib.suppress(OSError, ValueError):
            user = os.stat(name, dir_fd=folder).st_uid
            file = os.open(f"{name}/waiting", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
            try:
                if user and int(os.read(file, 32)):
                    found[int(name)] = user
            finally:
                os.close(file)
    return found


def _holders(users: set[int]) -> set[int]:
    """Select the uids, of `users`, that have a process whose address space does not answer."""
    found: set[int] = set()
    for pid in _processes() if users else ():
        with contextlib.suppress(OSError, ValueError):
            uid = int(_read(f"/proc/{pid}/status").split(b"\nUid:\t")[1].split(b"\t")[0])
            if uid in users - found and not _answers(pid):
                found.add(uid)
    return found


def _answers(pid: int) -> bool:
    """Tell whether a process's address space answers, by reading a byte of it on a thread.

    The read waits for the lock, whether or not the byte exists. Starting a thread is no fork, and
    so is not blocked.
    """
    answered = threading.Event()

    def ask() -> None:
        """Read a byte of the process's memory, which may hang; then set `answered`, whether it worked or not."""
        with contextlib.suppress(OSError):
            memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.pread(memory, 1, 4096)
            finally:
                os.close(memory)
        answered.set()

    threading.Thread(target=ask, daemon=True).start()
    return answered.wait(_UNANSWERED_S)


def _connections() -> int:
    """Open the folder of all FUSE connections: a private mount, else the existing one. Return its descriptor.

    Raises OSError; ENODEV where this kernel has no FUSE.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    context = libc.syscall(_FSOPEN, b"fusectl", 1)
    if context < 0 and ctypes.get_errno() == errno.ENODEV:
        raise OSError(errno.ENODEV, "this kernel has no file systems in user space")
    if context >= 0:
        try:
            if libc.syscall(_FSCONFIG, context, _CREATE, None, None, 0) == 0:
                mounted = int(libc.syscall(_FSMOUNT, context, 1, 0))
                if mounted >= 0:
                    try:
                        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mounted)
                    finally:
                        os.close(mounted)
        finally:
            os.close(context)
    return os.open(_MOUNTED, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _say(text: str) -> None:
    """Write to the kernel's log: the command itself, whose thread waits, cannot report."""
    with contextlib.suppress(OSError):
        log = os.open("/dev/kmsg", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(log, f"<4>rankscope: {text}".encode())
        finally:
            os.close(log)


def _read(path: str) -> bytes:
    """Read the first 65,536 bytes of a file. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 65536)
    finally:
        os.close(file)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
