"""Start the `rankscope` command; any failure to start ends with exit code 69 or 70.

Python itself exits with 1 or 2 on import errors and exceptions, which mean slow and critical here.
So only modules that every Python has are imported at the top.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from typing import TextIO

_CRITICAL, _MISSING, _INTERNAL, _INTERRUPTED = 2, 69, 70, 130


def main() -> None:
    """Run the command line and end the process with its exit code."""
    open_all()
    end_when_asked()
    spare_threads()
    gc.disable()  # enabled when the command begins (collector.py)
    try:
        from rankscope.diagnose.no_pandas import spare_pandas

        spare_pandas()
        make_room()
        from rankscope.diagnose.face.cli.main import run

        code = run(sys.argv[1:])
    except SystemExit as end:
        code = 0 if end.code is None else end.code if isinstance(end.code, int) else _INTERNAL
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except MemoryError as error:
        code = _complain(
            f"not enough memory to start{f': {error}' if str(error) else ''}. Raise the limit (ulimit -v)", _MISSING
        )
    except ImportError as error:
        code = _complain(f"cannot start: {error}. Run scripts/setup again", _MISSING)
    except BaseException as error:
        code = _complain(f"cannot start: {type(error).__name__}: {error}", _INTERNAL)
    sys.exit(_flushed(code))


def open_all() -> None:
    """Open closed standard streams (`>&-`) to nowhere, so that no file opened later gets their
    number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
            setattr(sys, name, open(nowhere, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def end_when_asked() -> None:
    """Let SIGTERM and SIGHUP, once, end a command like Ctrl-C: it prints results so far and cleans
    up.

    An ignored SIGHUP stays ignored (nohup). Forked children get the default handlers back."""
    heard = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]

    def end(*_: object) -> None:
        """Handle a signal: ignore further ones and raise KeyboardInterrupt."""
        for one in heard:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    def forget() -> None:
        """Restore the default handlers, in a forked child."""
        for one in heard:
            if signal.getsignal(one) is end:
                signal.signal(one, signal.SIG_DFL)

    for one in heard:
        signal.signal(one, end)
    os.register_at_fork(after_in_child=forget)


def spare_threads() -> None:
    """Disable threads for linear algebra, of which little is needed. Call before numpy is imported.

    OpenBLAS starts one per processor on import, and each spins for a while: 0.1 s of CPU on two
    processors, next to ranks that need them. Each takes 60 MB of address space or more; if that is
    limited (ulimit -v), scipy's OpenBLAS hangs.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def make_room() -> None:
    """Save address space where memory is limited."""
    from rankscope.probes.base import room

    if room.limited():
        room.save_addresses()


def _complain(line: str, code: int) -> int:
    """Write a line to stderr, if that is open; return `code`."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"rankscope: {line}\n")
    return code


def _flushed(code: int) -> int:
    """Flush the streams and return the exit code; Python's own would be 120 on a full disk, say."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _say_no_more(sys.stdout)  # the reader (head, less) is gone
    except (OSError, ValueError) as error:
        said = _complain(f"the output could not be written: {error}", _MISSING)
        code = code if code == _CRITICAL else said
        _say_no_more(sys.stdout)
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        _say_no_more(sys.stderr)  # stderr is closed: only the exit code remains
    return code


def _say_no_more(stream: TextIO) -> None:
    """Redirect a stream to nowhere; a copy of `output.say_no_more`, which may fail to import."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()
