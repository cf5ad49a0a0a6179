"""A signal reaches the loop whichever thread gets it; a child that answers keeps nobody waiting."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import pytest

from rankscope.diagnose.service import signals
from rankscope.diagnose.service.child import Child
from rankscope.diagnose.service.signals import heard


def test_a_signal_that_another_thread_gets_ends_the_wait() -> None:
    """The main thread blocks it, as it is busy: the kernel gives it to a thread of a library."""
    done = threading.Event()
    library = threading.Thread(target=done.wait)
    library.start()
    before = signal.getsignal(signal.SIGHUP)
    with heard() as wait:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        try:
            os.kill(os.getpid(), signal.SIGHUP)
            assert wait(5.0) == {signal.SIGHUP}
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
            done.set()
            library.join()
    assert signal.getsignal(signal.SIGHUP) is before


def test_without_signals_it_waits_as_long_as_it_is_told() -> None:
    with heard() as wait:
        began = time.monotonic()
        assert wait(0.1) == frozenset()
        assert time.monotonic() - began >= 0.09
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGHUP)
        assert wait(5.0) == {signal.SIGTERM, signal.SIGHUP}


def _echo(line: socket.socket) -> None:
    with line.makefile("rb") as asked:
        for each in asked:
            if b"end" in each:
                return
            line.sendall(each)


def _answer(child: Child) -> object:
    deadline = time.monotonic() + 30
    while (said := child.next()) is None and child.runs and time.monotonic() < deadline:
        time.sleep(0.005)
    return said


def test_a_child_takes_what_the_line_does_not_take_at_once_and_is_started_again() -> None:
    child = Child(_echo)
    try:
        for content in ("short", "x" * (3 << 20), "after it"):
            assert child.send(content)
        assert [_answer(child) for _ in range(3)] == ["short", "x" * (3 << 20), "after it"]
        assert child.send("end") and _answer(child) is None and not child.runs
        assert child.send("again") and _answer(child) == "again"
        assert not child.send("x" * (9 << 20)), "more than may wait"
    finally:
        child.close()


def test_a_child_that_the_kernel_does_not_let_go_of_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a child that is held beyond SIGKILL, by a dead disk
    if not (child := os.fork()):
        time.sleep(60)
        os._exit(0)
    wait = os.waitpid
    with monkeypatch.context() as held:
        held.setattr(signals, "_LET_GO_S", 0.05)
        held.setattr(os, "waitpid", lambda pid, how: wait(pid, how) if how == 0 else (0, 0))
        began = time.monotonic()
        signals.end(child)
        assert time.monotonic() - began < 1
    # THEN it is cleared away with the next one
    if not (other := os.fork()):
        time.sleep(60)
        os._exit(0)
    signals.end(other)
    signals.end(other)
    assert not signals._HELD
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)
