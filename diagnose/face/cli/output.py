"""Output shared by commands: terminal-wide lines, progress on stderr, tables, JSON, and result
files.

rich draws progress on a terminal; its import takes 50 ms, so it is imported only when something is
drawn."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, TextIO

from rankscope.diagnose.text import clean, clean_all, held, short
from rankscope.observer.window.staging import write_file
from rankscope.probes.base.errors import EXIT_CRITICAL, EXIT_MISSING, OutputFailed

WIDTH = 80
NARROWEST, WIDEST = 40, 200  # limits of the line width; wider lines are hard to read


def width_of(out: TextIO) -> int:
    """Line width: the terminal's, limited to NARROWEST .. WIDEST; WIDTH for no terminal."""
    if not out.isatty():
        return WIDTH
    return min(max(shutil.get_terminal_size((WIDTH, 24)).columns, NARROWEST), WIDEST)


def wrap(text: str, indent: str, width: int, whole: bool = False) -> list[str]:
    """Wrap a text to `width` columns.

    Overlong words lose their middle, or are continued if `whole`.
    """
    room = width - len(indent)
    if not whole:
        text = re.sub(rf"\S{{{room + 1},}}", lambda found: short(found[0], room), text)
    lines = textwrap.wrap(held(text), width, subsequent_indent=indent, break_long_words=True, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines] or [""]


def tell(text: str, indent: str = "") -> None:
    """Print a sentence: wrapped with `indent` on a terminal without breaking words, one line to a
    pipe."""
    if sys.stdout.isatty():
        width = width_of(sys.stdout)
        text = textwrap.fill(
            held(text), width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    print(text.replace("\N{NO-BREAK SPACE}", " "))


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that reports progress on stderr.

    A terminal shows it as one line, which disappears at the end.
    """
    if not sys.stderr.isatty():
        yield _say
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    began = time.monotonic()
    # Draw only on news: a redrawing thread would cost CPU time while a job is observed. Leave
    # stdout alone: it may be a pipe for the command's output.
    console = Console(stderr=True)
    with Live(
        console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as live:

        def draw(text: str) -> None:
            """Show a text, with the elapsed seconds, in place of the last one."""
            line = f"{time.monotonic() - began:4.0f} s  {clean(text, 200)}"
            live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)

        yield draw


_PATIENCE_S = 1.2  # with Python's start two seconds: the limit for a silent terminal


@contextmanager
def patience(what: str, lines: bool = True) -> Iterator[Callable[[str], None]]:
    """Report long work on stderr after a delay; a terminal also shows the elapsed time.

    For work that does not observe. Yields a function that sets the present activity. Uses a process
    timer, not a thread, as some work forks. `lines`: report to a pipe too (cron would mail it).
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda _: None
        return
    began, terminal = time.monotonic(), sys.stderr.isatty()
    doing, shown = [what], [""]

    def tick(*_: object) -> None:
        """Handle the timer: show activity and elapsed seconds on a terminal, a new activity as a line elsewhere."""
        if terminal:
            room = width_of(sys.stderr) - 1  # a wrapped line could not be erased
            shown[0] = short(f"{time.monotonic() - began:4.0f} s  {clean(doing[0], 70)}", room)
            with suppress(OSError):
                sys.stderr.write(f"\r{shown[0]}\x1b[K")
                sys.stderr.flush()
        elif lines and doing[0] != shown[0]:
            shown[0] = doing[0]
            _say(f"{doing[0]} …")

    def say(text: str) -> None:
        """Set the present activity."""
        doing[0] = text

    before = signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S, 1.0)
    try:
        yield say
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if terminal and shown[0]:
            with suppress(OSError):
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()


def _say(text: str, most: int = 200) -> None:
    """Write a line to stderr, cleaned and cut to `most` characters; nothing if stderr is closed."""
    with suppress(OSError):  # a closed stderr must not stop the work
        sys.stderr.write(f"{clean(text, most)}\n")
        sys.stderr.flush()


def complain(text: str) -> None:
    """Report a side failure in one line on stderr."""
    _say(f"rankscope: {text}", 300)


@dataclass
class Telling:
    """Whether all output could be written. A reader that is gone (head, less) is no failure."""

    failed: bool = False

    def code(self, code: int) -> int:
        """The exit code, given that of the command's result."""
        return EXIT_MISSING if self.failed and code != EXIT_CRITICAL else code


@contextmanager
def telling(what: str) -> Iterator[Telling]:
    """Print results before the rest of the work, which goes on if stdout fails.

    A failure to print `what` is reported on stderr; a closed pipe is not. Nothing more goes to
    stdout then.
    """
    told = Telling()
    try:
        yield told
        sys.stdout.flush()
    except BrokenPipeError:
        say_no_more(sys.stdout)
    except OSError as error:
        told.failed = True
        complain(f"{what} could not be printed: {error.strerror or error}")
        say_no_more(sys.stdout)


def say_no_more(stream: TextIO) -> None:
    """Redirect a stream to nowhere, so that Python does not fail with its own exit code when
    flushing at exit."""
    with suppress(OSError, ValueError):  # not a system file
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


def print_json(content: Any) -> None:
    print(json.dumps(clean_all(content), indent=2, ensure_ascii=False, allow_nan=False))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO | None = None) -> None:
    """Print a table: folded to the width of a terminal; whole rows, one per line, for a pipe."""
    out = sys.stdout if stream is None else stream
    cells = [[clean(cell) for cell in row] for row in rows]
    if out.isatty():
        _draw_table(heads, cells, out)
        return
    sizes = [max(len(line[column]) for line in [list(heads), *cells]) for column in range(len(heads))]
    for line in [list(heads), *cells]:
        out.write("  ".join(cell.ljust(size) for cell, size in zip(line, sizes, strict=True)).rstrip() + "\n")


def _draw_table(heads: Sequence[str], cells: Sequence[Sequence[str]], out: TextIO, least: int = 6) -> None:
    """Draw a table as wide as the terminal, folding the widest columns, none below `least`
    characters."""
    width, sizes = width_of(out), [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    gap = " " * (1 if width < WIDTH else 2)
    while sum(sizes) + len(gap) * (len(sizes) - 1) > width and max(sizes) > least:
        sizes[sizes.index(max(sizes))] -= 1
    bold = ("", "") if os.environ.get("NO_COLOR") else ("\033[1m", "\033[0m")
    for number, row in enumerate([heads, *cells]):
        begin, end = ("", "") if number else bold
        for line in zip_longest(*map(_folded, row, sizes), fillvalue=""):
            shown = gap.join(cell.ljust(size) for cell, size in zip(line, sizes, strict=True)).rstrip()
            out.write(f"{begin}{shown}{end}\n")


def _folded(cell: str, size: int) -> list[str]:
    """Fold a cell into lines of `size` characters.

    Overlong words break after punctuation if possible.
    """
    lines = [""]
    for word in cell.split(" "):
        parts = (
            [word]
            if len(word) <= size
            else re.findall(rf"[^/._=,:-]{{0,{size - 1}}}[/._=,:-]|[^/._=,:-]{{1,{size}}}", word)
        )
        for number, part in enumerate(parts or [""]):
            gap = " " if number == 0 and lines[-1] else ""
            if len(lines[-1]) + len(gap) + len(part) <= size:
                lines[-1] += gap + part
            else:
                lines.append(part)
    return lines


class OutputThere(OutputFailed):
    """The name for a result is taken."""

    help = "Remove it, or give another name: nothing that is there is ever written over."


_STDOUT = "-"  # what dash.py lets through


def free_place(place: Path) -> None:
    """Check that a file could be created, before observing. Raises OutputFailed."""
    if str(place) == _STDOUT:
        return
    if os.path.lexists(place):
        raise OutputThere(f"{place} is there already")
    if not place.parent.is_dir():
        raise OutputFailed(f"{place} cannot be written: {place.parent} is no folder")


def write_result(place: Path, content: bytes) -> None:
    """Write a new private file atomically, or to standard output where it is `-`. Raises OutputFailed."""
    if str(place) == _STDOUT:
        try:
            sys.stdout.flush()
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # the reader has seen enough
            say_no_more(sys.stdout)
        return
    try:
        write_file(place, content)
    except FileExistsError:
        raise OutputThere(f"{place} is there already") from None
    except OSError as error:
        raise OutputFailed(f"{place} cannot be written: {error.strerror or error}") from error
