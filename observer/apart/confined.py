"""The confined process: it gives up its rights before it reads anything, works, and reports its results.

It is a fork of the command, another user with two capabilities: to read the memory (CAP_SYS_PTRACE)
and the files below /proc (CAP_DAC_READ_SEARCH) of other users' processes. It can write to no
process, file, socket or device of anybody, and start nothing.
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
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from rankscope.observer.apart import devices, memory_cap, wire
from rankscope.observer.apart.wire import Client
from rankscope.observer.live import limits
from rankscope.probes.base import rights
from rankscope.probes.confine import credentials, seccomp
from rankscope.probes.mapped.reader import READER

if TYPE_CHECKING:
    from rankscope.probes.bpf.tables import Table

Progress = Callable[[str], None]
Work = Callable[[Client], None]  # reports its results to the client

KEPT = (credentials.CAP_SYS_PTRACE, credentials.CAP_DAC_READ_SEARCH)


def live(
    channel: socket.socket, parent: int, trial: Table | None, work: Work, *, gpus: bool, verbose: bool
) -> NoReturn:
    """Run the confined process: give up rights, work, report, exit.

    `trial`: a map to test whether maps can be read without CAP_BPF. `gpus`: let it use GPU
    libraries.
    """
    client = Client(channel)
    gc.freeze()  # loaded objects remain: scanning them takes 30 ms each time, and copies their pages
    try:
        READER.forget()
        _be_alone(channel, trial, verbose)
        capped, _ = wire.receive(channel)
        if not capped["capped"]:
            memory_cap.limit_data(limits.MEMORY_BYTES)
        remarks = confine(trial, parent, client if gpus else None)
        rights.set_delegate(client)
        for remark in remarks:
            client.tell("say", text=remark)
        work(client)
        client.tell("done")
    except BaseException as error:
        if verbose:
            with contextlib.suppress(OSError):  # who reads it is gone, its disk is full: the command still hears why
                traceback.print_exc()
        with contextlib.suppress(Exception):
            client.tell("failed", **wire.describe(error))
    finally:
        os._exit(0)


def _be_alone(channel: socket.socket, trial: Table | None, verbose: bool) -> None:
    """Ignore Ctrl-C and hang-ups; close all inherited files but `channel`, the map `trial`, and with `verbose` stderr.

    Locks and files open for writing end with that. Standard files become /dev/null.
    """
    for one in (
        signal.SIGINT,
        signal.SIGHUP,
    ):  # Ctrl-C and a closed terminal are for the command, which then ends this
        signal.signal(one, signal.SIG_IGN)
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


def confine(trial: Table | None, parent: int, client: Client | None) -> list[str]:
    """Give up all rights that reading does not need; return what could not be given up, and why.

    `trial`: a BPF map to test whether reading maps needs CAP_BPF; closed here. `client`: opens GPUs on
    request, None where none are needed. Exits where `parent` has ended. Raises OSError where
    capabilities cannot be reduced.
    """
    remarks: list[str] = []
    held = credentials.effective()
    keep, more = (held & credentials.mask(one) for one in (KEPT, (*KEPT, credentials.CAP_BPF)))
    credentials.no_core_dump()
    credentials.close_the_bounds(more)
    gpus = devices.present() if client is not None else []
    was_root = os.geteuid() == 0
    try:
        if was_root:  # other users have no right to switch users
            credentials.become(credentials.NOBODYS_USER, devices.groups(gpus))
    except OSError as error:
        remarks.append(f"the observer remains user {os.geteuid()}: {error.strerror}")
    credentials.set_capabilities(keep, more)
    # Linux before 5.19, where BPF is closed to users without rights
    if trial is not None and not _readable(trial):
        keep = more
    credentials.set_capabilities(keep)
    credentials.hide_memory()
    credentials.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    credentials.no_new_rights()
    if client is None or not gpus or not was_root or not _ask_for_devices(client, remarks):
        try:
            # Without root no other process may supervise this one's calls: if there are GPUs, allow
            # opening anything for writing.
            credentials.filter_calls(seccomp.program(writing=bool(gpus)))
        except (OSError, ValueError) as error:
            remarks.append(f"the observer's system calls are not filtered: {error}")
    if trial is not None:
        os.close(trial.map_fd)
    return remarks


def _ask_for_devices(client: Client, remarks: list[str]) -> bool:
    """Filter system calls so that another process opens GPUs for this one, and nothing else is writable.

    Returns False where such a filter is impossible. What failed is added to `remarks`.
    """
    try:
        listener = devices.listen()
    except (OSError, ValueError) as error:
        remarks.append(f"the observer may open files for writing, as the libraries of GPUs do: {error}")
        return False
    try:
        client.ask("open_devices", (listener,))
    except (OSError, ValueError) as error:
        remarks.append(f"the observer cannot open GPUs: {error}")
    finally:
        os.close(listener)
    return True


def _readable(trial: Table) -> bool:
    """Test whether this process may still read a BPF map."""
    try:
        trial[ctypes.c_int(0)]
    except PermissionError:
        return False
    return True
