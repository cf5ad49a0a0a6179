"""The confined process: what it gives up before it looks at anything, and how it tells what it found.

It is a fork of the command, another user with two capabilities: to read the memory (CAP_SYS_PTRACE) and the files below /proc
(CAP_DAC_READ_SEARCH) of other users' processes. It can write to no process, file, socket or device of anybody, and start nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import resource
import signal
import socket
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rankscope.observer.apart import memory_cap, wire
from rankscope.observer.apart.wire import Client
from rankscope.observer.live import limits
from rankscope.probes import rights
from rankscope.probes.confine import credentials, seccomp
from rankscope.probes.mapped.reader import READER

if TYPE_CHECKING:
    from rankscope.probes.bpf.tables import Table

Progress = Callable[[str], None]
Work = Callable[[Client], None]  # tells what it found

KEPT = (credentials.CAP_SYS_PTRACE, credentials.CAP_DAC_READ_SEARCH)
_DEVICES = ("nvidiactl", "nvidia[0-9]*", "nvidia-caps/*", "kfd", "dri/*")


def live(channel: socket.socket, parent: int, trial: Table | None, work: Work, *, verbose: bool) -> NoReturn:
    """All that the process does: confine itself, work, tell, end. `trial`: a map to see whether maps can be read without CAP_BPF."""
    client = Client(channel)
    gc.freeze()  # what is loaded stays: to look through it for what nobody needs takes 30 ms each time, and makes a copy of it
    try:
        READER.forget()
        _be_alone(channel, trial, verbose)
        capped, _ = wire.receive(channel)
        if not capped["capped"]:
            memory_cap.limit_data(limits.MEMORY_BYTES)
        remarks = confine(trial, parent)
        rights.ask_from_now_on(client)
        for remark in remarks:
            client.tell("say", text=remark)
        work(client)
        client.tell("done")
    except BaseException as error:
        if verbose:
            traceback.print_exc()
        with contextlib.suppress(Exception):
            client.tell("failed", **wire.describe(error))
    finally:
        os._exit(0)


def _be_alone(channel: socket.socket, trial: Table | None, verbose: bool) -> None:
    """Nothing that the command holds open is held here: a lock, a terminal, a place to write to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which then ends this
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    last = 3
    for kept in sorted({channel.fileno(), *([trial.map_fd] if trial is not None else [])}):
        os.closerange(last, kept)
        last = kept + 1
    os.closerange(last, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1) if verbose else (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)


def confine(trial: Table | None, parent: int) -> list[str]:
    """Give up what reading does not need. Returns what could not be given up, and why. OSError where not even the rest can be."""
    remarks: list[str] = []
    held = credentials.effective()
    keep, more = (held & credentials.mask(one) for one in (KEPT, (*KEPT, credentials.CAP_BPF)))
    credentials.no_core_dump()
    credentials.close_the_bounds(more)
    devices = _devices()
    writing = bool(devices)  # as who it was it could write to what is his: for a GPU alone it is let open anything so
    try:
        if os.geteuid() == 0:  # whoever is not root has no right to give up here
            credentials.become(credentials.NOBODYS_USER, _groups(devices))
            writing = True
    except OSError as error:
        remarks.append(f"the observer stays user {os.geteuid()}: {error.strerror}")
    credentials.set_capabilities(keep, more)
    if trial is not None and not _readable(trial):  # Linux before 5.19, where BPF is closed to users without rights
        keep = more
    credentials.set_capabilities(keep)
    credentials.hide_memory()
    credentials.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    credentials.no_new_rights()
    try:
        credentials.filter_calls(seccomp.program(writing=writing))
    except (OSError, ValueError) as error:
        remarks.append(f"the observer's system calls are not filtered: {error}")
    if trial is not None:
        os.close(trial.map_fd)
    return remarks


def _devices() -> list[Path]:
    """GPUs of this host."""
    return [device for pattern in _DEVICES for device in Path("/dev").glob(pattern)]


def _groups(devices: Sequence[Path]) -> list[int]:
    """Groups, root's left out, that they are kept for where not everybody may open them."""
    groups = set()
    for device in devices:
        with contextlib.suppress(OSError):
            status = device.stat()
            if status.st_gid and status.st_mode & 0o006 != 0o006:
                groups.add(status.st_gid)
    return sorted(groups)


def _readable(trial: Table) -> bool:
    try:
        trial[ctypes.c_int(0)]
    except PermissionError:
        return False
    return True
