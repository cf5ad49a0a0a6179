"""Run an observer's work in a confined process: start it, serve its requests, clean up.

command, all rights                            confined process, two capabilities
fork ──────────────────────────────────────►  gives its rights up
performs listed services only ◄── services ── requests; reads memory, /proc, maps and rings; parses, names
receives, as data ◄────────────── wire.py ──  reports its results, ends

What work to do and what its reports mean: windows.py, look.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rankscope.observer.apart import confined, memory_cap, wire
from rankscope.observer.apart.confined import Progress, Work
from rankscope.observer.apart.memory_cap import MemoryCap
from rankscope.observer.live import limits
from rankscope.probes.base.errors import EXIT_MISSING, MissingFeature, RankscopeError
from rankscope.probes.base.text import printable

if TYPE_CHECKING:
    from rankscope.probes.bpf.tables import Table

_END_S = 2.0
# seconds without a message; it sends one every 5 s while it observes, and the rows of the largest
# windows take half a minute
_QUIET_S = 120
_EXITS_S = 0.05  # seconds from its last message to its end
_SAID_CHARACTERS = 400
# All that hostile arguments can cause: endless numbers, text in place of lists, a host without
# threads.
REFUSALS = (
    RankscopeError, OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RuntimeError, struct.error,
)  # fmt: skip
Answer = tuple[dict[str, Any], Sequence[int]]
Heard = Callable[[dict[str, Any], Sequence[int]], bool]


class Services(Protocol):
    """Services for a confined process. `served`: its pid."""

    served: int

    def answer(self, asked: dict[str, Any], handed: Sequence[int]) -> Answer:
        """Perform a request; return the answer, with descriptors to send, which the caller closes.

        Raises one of REFUSALS.
        """
        ...

    def close(self) -> None:
        """Stop what was started for it. Never raises."""
        ...


class OutOfMemory(MissingFeature):
    """The observing process reached its memory limit. No window was made."""

    help = "Observe a shorter window (--window), or one job of several (--job)."


class ObserverEnded(RankscopeError):
    """The observing process ended unexpectedly."""

    help = "Run again; when memory is short the kernel kills observers first."
    exit_code = EXIT_MISSING


def run(
    work: Work, services: Services, heard: Heard, progress: Progress, *, trial: Table | None = None, gpus: bool = True,
    verbose: bool = False, longest_s: float,
) -> None:  # fmt: skip
    """Run `work` in a confined process until it is done.

    `heard`: called with each message, returns whether it was a report; else it is a request for
    `services`. `gpus`: whether it uses GPU libraries. Raises what `work` raises; OutOfMemory;
    ObserverEnded, also after two minutes of silence or after `longest_s`, as a compromised process
    may send messages for ever. In any case the process has ended afterwards and everything done for
    it is undone.
    """
    ours, theirs = wire.pair()
    cap = memory_cap.make(limits.MEMORY_BYTES)
    pid = 0
    try:
        pid = _fork(theirs, trial, work, gpus, verbose)
        services.served = pid
        theirs.close()
        if cap is not None:
            with contextlib.suppress(OSError):
                cap.add(pid)
        wire.send(ours, {"capped": cap is not None})
        _serve(ours, services, heard, progress, time.monotonic() + longest_s)
    except wire.Ended as error:
        status = _end(pid)
        pid = 0
        raise _why(status, cap) from error
    except MemoryError as error:
        raise _out_of_memory() from error
    finally:
        for end in (ours, theirs):
            end.close()
        if pid:
            _end(pid)
        services.close()
        if cap is not None:
            cap.close()


def _fork(theirs: socket.socket, trial: Table | None, work: Work, gpus: bool, verbose: bool) -> int:
    """Fork the confined process, which gets the socket `theirs` and never returns; return its pid."""
    parent = os.getpid()
    with warnings.catch_warnings():
        # Forking with threads: none of ours holds a lock that is needed in the child.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        confined.live(theirs, parent, trial, work, gpus=gpus, verbose=verbose)
    return pid


def _serve(channel: socket.socket, services: Services, heard: Heard, progress: Progress, until: float) -> None:
    """Receive messages until 'done': show progress, pass reports to `heard`, answer requests.

    `until`: deadline, CLOCK_MONOTONIC, s. Raises ObserverEnded after it or after two minutes of
    silence, wire.Ended, and the error that the process reports.
    """
    channel.settimeout(1.0)
    quiet = 0  # seconds, counted and not timed: time in which we were stopped ourselves does not count
    while True:
        try:
            asked, handed = wire.receive(channel)
        except TimeoutError:
            quiet += 1
            if quiet < _QUIET_S and time.monotonic() < until:
                continue
            raise ObserverEnded(f"the observing process sent nothing for {quiet} s; it was ended") from None
        quiet = 0
        try:
            if time.monotonic() > until:
                raise ObserverEnded("the observing process ran for too long; it was ended")
            what = asked.get("what")
            if what == "done":
                return
            if what == "failed":
                raise wire.raised(asked)
            if what == "say":
                progress(printable(wire.text(asked, "text"), _SAID_CHARACTERS))
            elif not heard(asked, handed):
                _answer(channel, services, asked, handed)
        finally:
            wire.close_all(handed)


def _answer(channel: socket.socket, services: Services, asked: dict[str, Any], handed: Sequence[int]) -> None:
    """Perform one request; send the answer, or the error that it raised, and close what was sent.

    Raises ObserverEnded where the process does not read it.
    """
    try:
        answer, sent = services.answer(asked, handed)
    except REFUSALS as error:
        answer, sent = wire.describe(error), ()
    try:
        try:
            wire.send(channel, answer, sent)
        except ValueError as error:  # more than a message can hold
            wire.send(channel, wire.describe(error))
    except OSError:
        raise ObserverEnded("the observing process does not read its answers; it was ended") from None
    finally:
        wire.close_all(sent)


def _end(pid: int) -> int | None:
    """Wait for the process to end, and kill it if it does not at once; return its wait status.

    None where not even SIGKILL ends it within two seconds (a dead file system).
    """
    until, patient = time.monotonic() + _END_S, time.monotonic() + _EXITS_S
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > patient:
            # without CAP_KILL: it ends by itself when its socket closes
            with contextlib.suppress(PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    return None


def _why(status: int | None, cap: MemoryCap | None) -> RankscopeError:
    """Build the error for a process that ended without a report; OutOfMemory if its group's limit killed it.

    `status`: its wait status, None unknown.
    """
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
