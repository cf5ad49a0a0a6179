"""Open and read targets' files through a child process, with a deadline.

A file system that has stopped answering (a dead NFS server or FUSE daemon) blocks its callers in
the kernel, for ever and deaf to SIGKILL. So a child makes the calls. One that does not answer in
time is abandoned, its device is not used again, and another child is started: what remains is one
small process, which ends when the file system answers or the host is restarted.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import functools
import mmap
import os
import socket
import struct
import sys
import threading
import time
from array import array
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.base import rights
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.base.patience import SILENT, Silent
from rankscope.probes.confine import credentials, seccomp
from rankscope.probes.host.fair import whose
from rankscope.probes.host.procfs import ROOT, process_of, read_file
from rankscope.probes.mapped import child
from rankscope.probes.mapped.child import FOUND, MEMORY_BYTES, OPEN, READ, REPLY, REQUEST
from rankscope.probes.mapped.waits import DEADLINE_S, Waits

_OWNERS_S = 60.0  # seconds for which the owner of a pid is cached
_DESCRIPTOR_BYTES = array("i").itemsize
_END = 1 << 62  # no file is larger
_abandoned: list[int] = []  # pids of abandoned children that may not have ended yet


class FileNotRead(RankscopeError, OSError):
    """A file of a target could not be opened or read, or is not the one that is mapped."""

    help = "This file is skipped; all else is observed. Check whether its file system responds."


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """An opened file. The caller owns `descriptor` (O_PATH).

    `identity`: device, inode, time of change (ctime, which nobody can set), size. `owner`: user of
    the process that maps it.
    """

    descriptor: int
    identity: tuple[int, ...]
    owner: str


@dataclass(slots=True)
class Waiting:
    """Seconds left to wait for a file's reads, all together: a file system may answer in time, but
    slowly.
    """

    left_s: float


class _Child:
    """A running child: its socket, and the memory in which it returns bytes."""

    def __init__(self, pid: int, channel: socket.socket, shared: int) -> None:
        """Map the shared memory by its descriptor `shared`, which the caller closes. `channel`: our end of the socket."""
        self.pid, self.socket = pid, channel
        self.memory = mmap.mmap(shared, MEMORY_BYTES)
        self.socket.settimeout(DEADLINE_S)
        # Seconds until the kernel found the file in the process, last time; None: not found yet.
        self.finding_s: float | None = None

    def ask(self, request: bytes, passed: int | None = None) -> tuple[tuple[int, ...], list[int]]:
        """Send a request (and descriptor `passed`); return the reply's numbers and the caller's new descriptors.

        TimeoutError where finding the file in its process, or the file system after that, exceeds
        `DEADLINE_S` (each); ConnectionError where the child has ended.
        """
        ancillary = [] if passed is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", passed))]
        self.finding_s = None
        self.socket.sendmsg([request], ancillary)
        sent_s = time.monotonic()
        reply, received = self._reply()
        if reply[0] == FOUND:
            self.finding_s = time.monotonic() - sent_s
            for descriptor in received:
                os.close(descriptor)
            reply, received = self._reply()
        return reply, received

    def _reply(self) -> tuple[tuple[int, ...], list[int]]:
        """Receive one reply: its numbers, and descriptors that came with it.

        Raises TimeoutError after `DEADLINE_S`, ConnectionResetError where the child has ended.
        """
        reply, told, _, _ = self.socket.recvmsg(
            REPLY.size, socket.CMSG_SPACE(_DESCRIPTOR_BYTES), socket.MSG_CMSG_CLOEXEC
        )
        received = array("i")
        for level, kind, data in told:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                received.frombytes(data[: len(data) // _DESCRIPTOR_BYTES * _DESCRIPTOR_BYTES])
        if len(reply) < REPLY.size:
            raise ConnectionResetError("the child has ended")
        return REPLY.unpack(reply), list(received)

    def end(self, kill: bool) -> None:
        """Close the socket and abandon the child, without waiting; `kill`: also send SIGKILL.

        On a file system that does not answer, not even SIGKILL ends it.
        """
        self.socket.close()
        asked = rights.delegate()
        if asked is None:
            end_child(self.pid, kill=kill)
        else:
            asked.ask("end_reader", pid=self.pid, kill=kill)


def start_child() -> tuple[int, socket.socket, int]:
    """Start a child; return its pid, our end of its socket, the descriptor of the shared memory.

    Raises OSError.
    """
    _reap()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    shared = os.memfd_create("rankscope-mapped", os.MFD_CLOEXEC)
    handed: list[int] = []
    try:
        os.ftruncate(shared, MEMORY_BYTES)
        # Duplicates with high numbers, so that moving one in the child overwrites neither another
        # nor itself.
        handed += [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 8) for one in (theirs.fileno(), shared)]
        actions = [(os.POSIX_SPAWN_OPEN, standard, "/dev/null", os.O_RDWR, 0) for standard in (0, 1, 2)]
        places = zip(handed, (child.SOCKET, child.MEMORY), strict=True)
        moves = [(os.POSIX_SPAWN_DUP2, old, new) for old, new in places]
        command = [sys.executable, "-I", "-S", *_confined(), str(Path(child.__file__).resolve())]
        pid = os.posix_spawn(sys.executable, command, {"LC_ALL": "C"}, file_actions=[*actions, *moves])
    except BaseException:
        ours.close()
        os.close(shared)
        raise
    finally:
        theirs.close()
        for descriptor in handed:
            os.close(descriptor)
    return pid, ours, shared


def _confined() -> list[str]:
    """Return the command words that confine the child before it runs.

    Three capabilities remain, needed to open what others have mapped.
    """
    held = credentials.effective()
    follow = credentials.CAP_CHECKPOINT_RESTORE  # /proc/PID/map_files
    if not held >> follow & 1:  # Linux before 5.9 needs more
        follow = credentials.CAP_SYS_ADMIN
    keep = credentials.mask((credentials.CAP_DAC_READ_SEARCH, credentials.CAP_SYS_PTRACE, follow))
    try:
        calls = seccomp.program(writing=False) if credentials.can_filter() else b""
    except ValueError:
        calls = b""
    return [str(Path(credentials.__file__).resolve()), f"{keep:x}", calls.hex()]


def end_child(pid: int, *, kill: bool) -> None:
    """End a child of this process whose socket is closed, without waiting; it is reaped later."""
    with contextlib.suppress(ProcessLookupError):
        if kill:
            os.kill(pid, 9)
    _abandoned.append(pid)
    _reap()


def _reap() -> None:
    """Reap abandoned children that have ended; the kernel keeps an entry for each until then."""
    for pid in tuple(_abandoned):
        with contextlib.suppress(ChildProcessError):
            if not os.waitpid(pid, os.WNOHANG)[0]:
                continue
        _abandoned.remove(pid)


class FileReader:
    """Sends requests to one child at a time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._waits = Waits()

    def open(self, path: str, device: str, inode: int) -> OpenedFile:
        """Open the regular file behind a link of /proc/PID/map_files, checking its device and
        inode.

        Raises FileNotRead. Time that the process itself takes is not counted against the file
        system or other users, who have mapped the same files.
        """
        major, _, minor = device.partition(":")
        try:
            numbers = int(major, 16), int(minor, 16), inode
            request = REQUEST.pack(OPEN, *numbers, 0, 0) + os.fsencode(path)
        except (ValueError, struct.error) as error:
            raise FileNotRead(f"no such device or inode: {device} {inode}") from error
        _must_answer(path)
        # Before taking the lock: a thread that reads from a process may be abandoned midway.
        owner = _owner(process_of(path), int(time.monotonic() // _OWNERS_S))
        reply, received = self._ask(device, owner, request, None)
        if reply[0] or len(received) != 1:
            for descriptor in received:
                os.close(descriptor)
            raise FileNotRead(_why(reply[0]))
        return OpenedFile(received[0], reply[2:], owner)

    def read(
        self, device: str, owner: str, handle: int, descriptor: int, size: int, at: int, waiting: Waiting
    ) -> bytes:
        """Read up to `size` bytes from `at` on of an opened file, fewer where it ends.

        `handle`: unique number of the file. `device`, `owner`: what the waiting is counted for. `waiting`:
        seconds left for this file, which are reduced. Raises FileNotRead.
        """
        if not 0 <= at < _END - size:
            raise FileNotRead("an impossible offset in it")
        data = bytearray()
        while len(data) < size:
            if waiting.left_s <= 0:
                raise FileNotRead("its file system answers too slowly")
            request = REQUEST.pack(READ, 0, 0, handle, at + len(data), min(size - len(data), MEMORY_BYTES))
            reply, _ = self._ask(device, owner, request, descriptor, data, waiting)
            if reply[0]:
                raise FileNotRead(_why(reply[0]))
            if not reply[1]:
                break
        return bytes(data)

    def _ask(
        self,
        device: str,
        owner: str,
        request: bytes,
        descriptor: int | None,
        into: bytearray | None = None,
        waiting: Waiting | None = None,
    ) -> tuple[tuple[int, ...], list[int]]:
        """Send a request to the child; return the reply's numbers and descriptors. Raises FileNotRead.

        `descriptor`: the file, passed on if the child does not have it open; None for a request to open.
        `into`: gets the bytes that it read. Time that others occupy the child is not taken from `waiting`.
        """
        with self._lock:
            if why := self._waits.why_not(device, owner):
                raise FileNotRead(why)
            if descriptor is None and not self._waits.may_find(owner):
                raise FileNotRead("the memory of its user's processes answers too slowly")
            try:
                self._child = child = self._child or self._start()
            except OSError as error:
                raise FileNotRead(f"no child can be started to read it: {error.strerror or error}") from error
            began_s = time.monotonic()
            try:
                answer = child.ask(request)
                if answer[0][0] == errno.EBADF and descriptor is not None:
                    answer = child.ask(request, descriptor)
            except TimeoutError as error:
                self._give_up()
                took_s = time.monotonic() - began_s
                if descriptor is None and child.finding_s is None:
                    self._waits.found(took_s, owner)
                    raise FileNotRead(SILENT) from error
                self._waits.did_not_come(device, took_s - (child.finding_s or 0.0), owner)
                raise FileNotRead(f"its file system did not answer for {DEADLINE_S:g} s") from error
            except OSError as error:
                self._give_up()
                raise FileNotRead(f"the child that reads files has ended: {error.strerror or error}") from error
            finally:
                took_s = time.monotonic() - began_s
                if waiting is not None:
                    waiting.left_s -= took_s
            finding_s = child.finding_s if descriptor is None else 0.0
            if descriptor is None:
                self._waits.found(took_s if finding_s is None else finding_s, owner)
            if finding_s is not None:  # else the process itself refused
                self._waits.came(device, took_s - finding_s, owner)
            if into is not None:
                into += child.memory[: min(answer[0][1], MEMORY_BYTES)]
            return answer

    def _start(self) -> _Child:
        """Start a child, through the delegate if this process gave up its rights. Raises OSError."""
        asked = rights.delegate()
        if asked is None:
            pid, channel, shared = start_child()
        else:
            answer, (handed, shared) = asked.ask("reader")
            pid, channel = int(answer["pid"]), socket.socket(fileno=handed)
        try:
            return _Child(pid, channel, shared)
        finally:
            os.close(shared)

    def _give_up(self) -> None:
        """Kill and abandon the child; the next request starts another one."""
        if self._child is not None:
            self._child.end(kill=True)
            self._child = None

    def forget(self) -> None:
        """Reset after a fork: the other process starts its own child."""
        self._lock = threading.Lock()
        self._child = None
        _abandoned.clear()

    def close(self) -> None:
        """End the child and forget what hung; another child is started when needed."""
        with self._lock:
            if self._child is not None:
                self._child.end(kill=False)
                self._child = None
            self._waits = Waits()


@functools.lru_cache(maxsize=1024)
def _owner(pid: int, _: int) -> str:
    """Return the user of a process; '' for pid 0.

    Cached by both arguments: the second changes every `_OWNERS_S` seconds, so that the cache expires.
    """
    return whose(pid, ROOT) if pid else ""


def _must_answer(path: str) -> None:
    """Raise FileNotRead where the process in a path below /proc blocks readers."""
    pid = process_of(path)
    if not pid:
        return
    try:
        read_file(f"/proc/{pid}/environ", 1)
    except Silent as error:
        raise FileNotRead(SILENT) from error
    except OSError:
        pass  # it has ended, or we lack the right: opening the file will say so


def _why(code: int) -> str:
    """Describe the errno of a failed request in words."""
    if code == errno.ESTALE:
        return "another file is mapped there now"
    if code == errno.EINVAL:
        return "not a regular file"
    return os.strerror(code).lower()


READER = FileReader()
atexit.register(READER.close)
