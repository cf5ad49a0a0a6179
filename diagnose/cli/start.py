"""The way into the `rankscope` command: whatever keeps it from starting ends with 69 or 70.

Python itself ends with 1 and 2 where it cannot import a module or dies of an exception, and those are results here: 1 slow, 2 critical.
So nothing is imported above but what every Python has.
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
    """Run the command line and end the process."""
    open_all()
    end_when_asked()
    spare_threads()
    gc.disable()  # until the command begins (collector.py)
    try:
        from rankscope.diagnose.no_pandas import spare_pandas

        spare_pandas()
        make_room()
        from rankscope.diagnose.cli.main import run

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
    """A stream that is closed (`>&-`) is one to nowhere: the next file that is opened, a store say, would get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            setattr(sys, name, open(nowhere, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115


def end_when_asked() -> None:
    """SIGTERM and SIGHUP end a command as Ctrl-C does: it says what it found so far, and removes what it made. Once: not while it does so.

    SIGHUP stays ignored where it is (nohup). Forks get what they would have without this.
    """
    heard = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]

    def end(*_: object) -> None:
        for one in heard:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    def forget() -> None:
        for one in heard:
            if signal.getsignal(one) is end:
                signal.signal(one, signal.SIG_DFL)

    for one in heard:
        signal.signal(one, end)
    os.register_at_fork(after_in_child=forget)


def spare_threads() -> None:
    """No threads for linear algebra: there is little of it here. To be called before numpy is loaded.

    It starts one for each processor as it is loaded, and each spins for a while: 0.1 s of CPU on two processors, beside ranks that want
    them. Each takes 60 MB of addresses or more, and where those are limited (ulimit -v) the OpenBLAS in scipy waits for ever.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def make_room() -> None:
    """Where memory is limited, take less, and load nothing for which there is no room."""
    from rankscope.probes import room

    if room.limited():
        room.save_addresses()


def _complain(line: str, code: int) -> int:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"rankscope: {line}\n")
    return code


def _flushed(code: int) -> int:
    """The exit code once all is said. Python would end with 120 where what is left cannot be written (a full disk, say)."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _say_no_more(sys.stdout)  # the reader (head, less) has what it wants
    except (OSError, ValueError) as error:
        said = _complain(f"the output could not be written: {error}", _MISSING)
        code = code if code == _CRITICAL else said
        _say_no_more(sys.stdout)
    try:
        sys.stderr.flush()
    except (OSError, ValueError):
        _say_no_more(sys.stderr)  # nobody hears complaints: the code says it
    return code


def _say_no_more(stream: TextIO) -> None:
    """As `output.say_no_more`, which may be what cannot be imported."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()
