"""What commands share: progress on stderr, tables, JSON on stdout, results that are one file.

rich draws what a terminal shows; its import takes 50 ms, so it is made where something is drawn, never at the start.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from rankscope.diagnose.text import clean, clean_all
from rankscope.observer.window.staging import write_file
from rankscope.probes.errors import OutputFailed


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


_PATIENCE_S = 2.0  # longer than that nobody looks at a terminal on which nothing moves


@contextmanager
def patience(what: str) -> Iterator[Callable[[str], None]]:
    """For work that may take long and does not observe: from two seconds on stderr says what goes on, on a terminal with the time that
    it has taken. The function that is given tells what is done now. By a timer of the process: no thread, as some of the work forks."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda _: None
        return
    began, terminal = time.monotonic(), sys.stderr.isatty()
    doing, shown = [what], [""]

    def tick(*_: object) -> None:
        if terminal:
            shown[0] = f"{time.monotonic() - began:4.0f} s  {clean(doing[0], 70)}"
            sys.stderr.write(f"\r{shown[0]}\x1b[K")
            sys.stderr.flush()
        elif doing[0] != shown[0]:
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
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _say(text: str) -> None:
    sys.stderr.write(f"{clean(text, 200)}\n")
    sys.stderr.flush()


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


def _draw_table(heads: Sequence[str], cells: Sequence[Sequence[str]], out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        drawn.add_column(Text(head, no_wrap=True), overflow="fold", min_width=min(len(head), 12))
    for row in cells:
        drawn.add_row(*map(Text, row))
    Console(file=out).print(drawn)


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
