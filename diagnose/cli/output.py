"""What commands share: lines as wide as the terminal, progress on stderr, tables, JSON on stdout, results that are one file.

rich draws progress on a terminal; its import takes 50 ms, so it is made where something is drawn, never at the start.
"""

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
from rankscope.probes.errors import EXIT_CRITICAL, EXIT_MISSING, OutputFailed

WIDTH = 80
NARROWEST, WIDEST = 40, 200  # what is narrower is wrapped by the terminal; what is wider nobody reads


def width_of(out: TextIO) -> int:
    """Columns of a line: the terminal's, within reason."""
    if not out.isatty():
        return WIDTH
    return min(max(shutil.get_terminal_size((WIDTH, 24)).columns, NARROWEST), WIDEST)


def wrap(text: str, indent: str, width: int, whole: bool = False) -> list[str]:
    """The text in lines of `width` columns. What is longer than a line loses its middle; `whole`: it goes on in the next line."""
    room = width - len(indent)
    if not whole:
        text = re.sub(rf"\S{{{room + 1},}}", lambda found: short(found[0], room), text)
    lines = textwrap.wrap(held(text), width, subsequent_indent=indent, break_long_words=True, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines] or [""]


def tell(text: str, indent: str = "") -> None:
    """A sentence on stdout, its further lines behind `indent`: no terminal gets a cut word or path; a pipe gets one line."""
    if sys.stdout.isatty():
        width = width_of(sys.stdout)
        text = textwrap.fill(
            held(text), width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    print(text.replace("\N{NO-BREAK SPACE}", " "))


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A function that tells the operator on stderr what is going on: on a terminal in one line that is gone at the end."""
    if not sys.stderr.isatty():
        yield _say
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    began = time.monotonic()
    # Drawn only when there is something to say: a thread that redraws would cost CPU time while a job is observed.
    # stdout stays what it is: it may be a pipe, and what a command prints belongs there.
    console = Console(stderr=True)
    with Live(
        console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
    ) as live:

        def draw(text: str) -> None:
            line = f"{time.monotonic() - began:4.0f} s  {clean(text, 200)}"
            live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)

        yield draw


_PATIENCE_S = 1.2  # with the start of Python two seconds: longer nobody looks at a terminal on which nothing moves


@contextmanager
def patience(what: str, lines: bool = True) -> Iterator[Callable[[str], None]]:
    """For work that may take long and does not observe: soon stderr says what goes on, on a terminal with the time that it has taken.
    The function that is given tells what is done now. By a timer of the process: no thread, as some of the work forks.

    `lines`: whether who reads a pipe is told, too; cron makes a mail of it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda _: None
        return
    began, terminal = time.monotonic(), sys.stderr.isatty()
    doing, shown = [what], [""]

    def tick(*_: object) -> None:
        if terminal:
            room = width_of(sys.stderr) - 1  # a line that the terminal wraps could not be taken back
            shown[0] = short(f"{time.monotonic() - began:4.0f} s  {clean(doing[0], 70)}", room)
            with suppress(OSError):
                sys.stderr.write(f"\r{shown[0]}\x1b[K")
                sys.stderr.flush()
        elif lines and doing[0] != shown[0]:
            shown[0] = doing[0]
            _say(f"{doing[0]} …")

    def say(text: str) -> None:
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
    with suppress(OSError):  # who has gone need not be told, and what is done goes on
        sys.stderr.write(f"{clean(text, most)}\n")
        sys.stderr.flush()


def complain(text: str) -> None:
    """What went wrong beside what was asked for, in one line on stderr."""
    _say(f"rankscope: {text}", 300)


@dataclass
class Telling:
    """Whether all could be said. A reader that has gone (head, less) is no failure."""

    failed: bool = False

    def code(self, code: int) -> int:
        """The exit code of a command whose result was this one."""
        return EXIT_MISSING if self.failed and code != EXIT_CRITICAL else code


@contextmanager
def telling(what: str) -> Iterator[Telling]:
    """For what is printed before all is done: where stdout does not take it, what is left is done nevertheless, and `what` is complained
    of. Nothing more is said on stdout then."""
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
    """What it still holds, and what comes, goes nowhere: Python, at its end, would complain of it with an exit code of its own."""
    with suppress(OSError, ValueError):  # no file of the system
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


def print_json(content: Any) -> None:
    print(json.dumps(clean_all(content), indent=2, ensure_ascii=False, allow_nan=False))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], stream: TextIO | None = None) -> None:
    """A table as wide as it must be. A terminal folds what is too long for it; a pipe gets a row a line, whole."""
    out = sys.stdout if stream is None else stream
    cells = [[clean(cell) for cell in row] for row in rows]
    if out.isatty():
        _draw_table(heads, cells, out)
        return
    sizes = [max(len(line[column]) for line in [list(heads), *cells]) for column in range(len(heads))]
    for line in [list(heads), *cells]:
        out.write("  ".join(cell.ljust(size) for cell, size in zip(line, sizes, strict=True)).rstrip() + "\n")


def _draw_table(heads: Sequence[str], cells: Sequence[Sequence[str]], out: TextIO, least: int = 6) -> None:
    """As wide as the terminal: the widest columns are folded until all fit, none to less than `least` characters."""
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
    """A cell in lines of so many characters. A word that is too long for a line is parted behind a sign, if it has one."""
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
    """There is something under the name that a result was to get."""

    help = "Remove it, or give another name: nothing that is there is ever written over."


def free_place(place: Path) -> None:
    """See that a file could be made there, before it costs a window. OutputFailed where it could not."""
    if os.path.lexists(place):
        raise OutputThere(f"{place} is there already")
    if not place.parent.is_dir():
        raise OutputFailed(f"{place} cannot be written: {place.parent} is no folder")


def write_result(place: Path, content: bytes) -> None:
    """A new file, whole or not at all, for nobody else to read. OutputFailed where that cannot be."""
    try:
        write_file(place, content)
    except FileExistsError:
        raise OutputThere(f"{place} is there already") from None
    except OSError as error:
        raise OutputFailed(f"{place} cannot be written: {error.strerror or error}") from error
