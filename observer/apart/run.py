"""Work of an observer in a process of its own, confined: started, served and cleared away.

command, all rights                            confined process, two capabilities
fork ──────────────────────────────────────►  gives its rights up
loads and attaches probes ◄── broker.py ────   asks; reads maps and rings, memory, /proc; parses, names
windows, as files in memory ◄──── wire.py ──   tells what it found, ends
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rankscope.observer.apart import confined, memory_cap, wire
from rankscope.observer.apart.broker import REFUSALS, Broker
from rankscope.observer.apart.confined import Progress, Work
from rankscope.observer.apart.memory_cap import MemoryCap
from rankscope.observer.live import limits
from rankscope.observer.window.folder import Window, read_files
from rankscope.probes.bpf import tables
from rankscope.probes.bpf.compiled import MapShape
from rankscope.probes.bpf.tables import Table
from rankscope.probes.errors import EXIT_MISSING, BadData, MissingFeature, RankscopeError
from rankscope.probes.text import printable

_END_S = 2.0
_QUIET_S = 120  # it says something every 5 s while it observes; the rows of the largest windows take half a minute
_EXITS_S = 0.05  # from its last word to its end
_ARRAY = 2  # enum bpf_map_type
_TRIAL = MapShape("rs_trial", _ARRAY, 4, 4, 1, 0, "int", "int")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


class OutOfMemory(MissingFeature):
    """The observing process reached the limit of its memory. No window was made."""

    help = "Observe a shorter window (--window), or one job of several (--job)."


class ObserverEnded(RankscopeError):
    """The observing process ended by itself."""

    help = "Run again; where memory is short the kernel ends what observes first."
    exit_code = EXIT_MISSING


def apart(work: Work, progress: Progress, root: Path = Path("/"), *, verbose: bool = False) -> list[Window]:
    """The windows that `work` makes, in a confined process of its own. Raises what it raises; OutOfMemory, ObserverEnded.

    Whatever happens, the process is gone afterwards and nothing is attached any more.
    """
    windows: list[Window] = []
    apart_each(work, windows.append, progress, root, verbose=verbose)
    return windows


def apart_each(
    work: Work, take: Callable[[Window], None], progress: Progress, root: Path = Path("/"), *, verbose: bool = False
) -> None:
    """The same; `take` gets each window as soon as it is made, while the process goes on."""
    ours, theirs = wire.pair()
    cap = memory_cap.make(limits.MEMORY_BYTES)
    trial = _trial(root)
    broker = Broker(root)
    pid = 0
    try:
        pid = _fork(theirs, trial, work, verbose)
        broker.served = pid
        theirs.close()
        if cap is not None:
            with contextlib.suppress(OSError):
                cap.add(pid)
        wire.send(ours, {"capped": cap is not None})
        _serve(ours, broker, take, progress)
    except wire.Ended as error:
        status = _end(pid)
        pid = 0
        raise _why(status, cap) from error
    except MemoryError as error:
        raise _out_of_memory() from error
    finally:
        for end in (ours, theirs):
            end.close()
        if trial is not None:
            os.close(trial.map_fd)
        if pid:
            _end(pid)
        broker.close()
        if cap is not None:
            cap.close()


def _trial(root: Path) -> Table | None:
    try:
        return Table(_TRIAL, tables.possible_cpus(root))
    except (OSError, ValueError):
        return None  # no BPF here: what loads the probes says so


def _fork(theirs: socket.socket, trial: Table | None, work: Work, verbose: bool) -> int:
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # forking with threads: none of ours holds a lock that is needed there
        pid = os.fork()
    if pid == 0:
        confined.live(theirs, parent, trial, work, verbose=verbose)
    return pid


def _serve(channel: socket.socket, broker: Broker, take: Callable[[Window], None], progress: Progress) -> None:
    channel.settimeout(1.0)
    quiet_s = 0  # counted, not timed: who was stopped himself has not waited
    while True:
        try:
            asked, handed = wire.receive(channel)
        except TimeoutError:
            quiet_s += 1
            if quiet_s < _QUIET_S:
                continue
            raise ObserverEnded(f"nothing was heard of the observing process for {_QUIET_S} s; it was ended") from None
        quiet_s = 0
        try:
            what = asked.get("what")
            if what == "done":
                return
            if what == "failed":
                raise wire.raised(asked)
            if what == "say":
                progress(printable(str(asked.get("text")), 400))
            elif what == "window":
                take(_window(asked, handed))
            else:
                _answer(channel, broker, asked, handed)
        finally:
            wire.close_all(handed)


def _answer(channel: socket.socket, broker: Broker, asked: dict[str, Any], handed: Sequence[int]) -> None:
    try:
        answer, sent = broker.answer(asked, handed)
    except REFUSALS as error:
        answer, sent = wire.describe(error), ()
    try:
        wire.send(channel, answer, sent)
    finally:
        wire.close_all(sent)


def _window(told: dict[str, Any], handed: Sequence[int]) -> Window:
    """What the confined process made of the bytes of others: read as what comes from anywhere. BadData."""
    names = told.get("files")
    if not isinstance(names, list) or len(names) != len(handed):
        raise BadData("the observing process told of no window")
    for descriptor in handed:
        try:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)  # it cannot change what we have looked at
        except OSError as error:
            raise BadData(f"the observing process still holds its window: {error.strerror}") from error
    files = {str(name): Path(f"/proc/self/fd/{descriptor}") for name, descriptor in zip(names, handed, strict=True)}
    return read_files(Path("the observed window"), lambda name: files.get(name, Path("/nonexistent")))


def _end(pid: int) -> int | None:
    """Its exit status, however it has to be ended; None where not even SIGKILL ends it (a file system that does not answer)."""
    until, patient = time.monotonic() + _END_S, time.monotonic() + _EXITS_S
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > patient:
            with contextlib.suppress(PermissionError):  # without CAP_KILL it ends as its socket does, by itself
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    return None


def _why(status: int | None, cap: MemoryCap | None) -> RankscopeError:
    if cap is not None and cap.killed():
        return _out_of_memory()
    how = "without a word"
    if status is not None and os.WIFSIGNALED(status):
        how = f"by {signal.Signals(os.WTERMSIG(status)).name}"
    return ObserverEnded(f"the observing process ended {how}; nothing was written")


def _out_of_memory() -> OutOfMemory:
    return OutOfMemory(
        f"the observing process got no more memory (its limit is {limits.MEMORY_BYTES >> 20} MB); nothing was written"
    )
