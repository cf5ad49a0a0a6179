"""A terminal in use: keys are read one by one without echo, and all settings are restored at the end.

However the program ends: a process of its own waits for that, as nothing else could do it after `kill -9`.

However the program ends: a process of its own waits for that, since after `kill -9` nobody else could.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from typing import Any

ENTER, LEAVE = b"\x1b[?1049h\x1b[?25l", b"\x1b[?25h\x1b[?1049l"  # other screen, no cursor; and back
_READ_BYTES = 64
_ESCAPE = b"\x1b"
_IGNORED = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGTSTP", "SIGTTOU", "SIGTTIN")


@contextlib.contextmanager
def held(keys: int | None, screen: int, redraw: Callable[[], None]) -> Iterator[None]:
    """Read keys without echo from the terminal `keys` (None: there is none), and restore both descriptors at the end.

    `screen`: descriptor of the drawn terminal; `redraw`: called after Ctrl-Z and `fg`. Enter before threads are
    started.
    """
    before = termios.tcgetattr(keys) if keys is not None else None

    def put_back() -> None:
        """Restore the settings of the terminal that keys are read from."""
        if keys is not None and before is not None:
            termios.tcsetattr(keys, termios.TCSAFLUSH, before)

    def put_all_back() -> None:
        """Leave the drawn screen, and restore the settings of the keys' terminal."""
        os.write(screen, LEAVE)
        put_back()

    def take() -> None:
        """Let the terminal give keys one by one, without echo."""
        if keys is not None:
            tty.setcbreak(keys, termios.TCSANOW)

    def stopped(*_: object) -> None:
        """Handle Ctrl-Z: restore the terminal and stop; after `fg` take it again and redraw."""
        put_all_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)  # continues here
        signal.signal(signal.SIGTSTP, stopped)
        take()
        os.write(screen, ENTER)
        redraw()

    with _kept(put_all_back), _handled(signal.SIGTSTP, stopped):
        try:
            take()
            yield
        finally:
            put_back()


@contextlib.contextmanager
def _handled(number: signal.Signals, handler: Callable[..., None]) -> Iterator[None]:
    """Handle a signal by `handler` inside the block, unless it is ignored."""
    before: Any = signal.getsignal(number)
    if before is signal.SIG_IGN:
        yield
        return
    signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextlib.contextmanager
def _kept(put_back: Callable[[], None]) -> Iterator[None]:
    """Have another process call `put_back` if this one ends inside the block, even by `kill -9`."""
    try:
        ours = os.pidfd_open(os.getpid())
    except OSError:  # a kernel older than 5.3: only `kill -9` leaves the terminal as it is
        yield
        return
    pid = os.fork()
    if pid == 0:
        _wait_for(ours, put_back)
    os.close(ours)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _wait_for(process: int, put_back: Callable[[], None]) -> None:
    """Wait, in the child, for the end of a process (a pidfd), and call `put_back` then. Never returns."""
    try:
        for name in _IGNORED:
            signal.signal(getattr(signal, name), signal.SIG_IGN)
        select.select([process], [], [])
        put_back()
    finally:
        os._exit(0)


@contextlib.contextmanager
def pressed(keys: int | None, take: Callable[[str], None]) -> Iterator[None]:
    """Call `take`, from a thread, with each key that is pressed inside the block; nothing if `keys` is None."""
    if keys is None:
        yield
        return
    wakes, wake = os.pipe()
    thread = threading.Thread(target=_read, args=(keys, wakes, take), name="keys", daemon=True)
    try:
        with contextlib.suppress(RuntimeError):  # the host lets no thread be started: no keys
            thread.start()
        yield
    finally:
        os.write(wake, b"\0")
        if thread.ident is not None:
            thread.join()
        os.close(wakes)
        os.close(wake)


def _read(keys: int, wakes: int, take: Callable[[str], None]) -> None:
    """Read keys until a byte comes on `wakes` or the terminal is gone; call `take` with each character.

    Arrows and other escape sequences are ignored.
    """
    with contextlib.suppress(OSError):  # the terminal is gone
        while True:
            ready, _, _ = select.select([keys, wakes], [], [])
            if wakes in ready or not (typed := os.read(keys, _READ_BYTES)):
                return
            if not typed.startswith(_ESCAPE) or typed == _ESCAPE:  # arrows and the like mean nothing here
                for key in typed.decode("utf-8", "ignore"):
                    take(key)


def end_main_thread() -> None:
    """Interrupt the main thread as Ctrl-C does, also where that is ignored."""
    number = signal.SIGTERM if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else signal.SIGINT
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, number)
