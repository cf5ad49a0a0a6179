"""A signal reaches the loop whichever thread gets it."""

from __future__ import annotations

import os
import signal
import threading
import time

from rankscope.diagnose.watch.signals import heard


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
