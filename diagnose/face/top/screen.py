"""Draw snapshots on the whole terminal, as pressed keys ask; at the end restore it and print the last snapshot."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from rankscope.diagnose.face.top import draw, terminal
from rankscope.diagnose.face.top.snapshot import Snapshot
from rankscope.diagnose.face.top.view import View
from rankscope.diagnose.text import clean

Show = Callable[[Snapshot], None]
Say = Callable[[str], None]
_STYLES = {"title": "bold", "bad": "red", "good": "green", "doubt": "yellow", "soft": "dim"}


class Picture:
    """The content of the screen: the last snapshot, or a line before the first, sorted as pressed keys ask.

    Drawn by the main thread (new snapshots) and by the one that reads keys.
    """

    def __init__(self, console: Console, live: Live) -> None:
        self._console, self._live = console, live
        self._glyphs = None if (console.encoding or "").lower().replace("-", "") == "utf8" else draw.ASCII
        self._view, self._said = View(), ""
        self._lock = threading.RLock()
        self.last: Snapshot | None = None

    def show(self, snapshot: Snapshot) -> None:
        """Draw a new snapshot."""
        with self._lock:
            self.last = snapshot
            self.redraw()

    def say(self, text: str) -> None:
        """Show a line of text, as long as there is no snapshot."""
        with self._lock:
            self._said = clean(text, 200)
            self.redraw()

    def press(self, key: str) -> None:
        """Change the view by a pressed key; end the program for `q`."""
        with self._lock:
            self._view = self._view.after(key)
            if self._view.ended:
                terminal.end_main_thread()
            else:
                self.redraw()

    def redraw(self) -> None:
        """Draw the last snapshot, or the line before the first, anew."""
        with self._lock:
            self._live.update(self._drawn(self._view), refresh=True)

    def _drawn(self, view: View | None) -> Group:
        """Build what is to be drawn: the help, the last snapshot, or the line before the first.

        `view`: None to draw the snapshot without hints at keys.
        """
        size = shutil.get_terminal_size((80, 24))
        if view is not None and view.help:
            lines = draw.help_lines(size.columns, self._glyphs)
        elif self.last is not None:
            lines = draw.lines(self.last, size.columns, size.lines - 1, self._glyphs, view)
        else:
            lines = [draw.Line(self._said)]
        return Group(*(Text(line.text, _STYLES.get(line.tone, ""), no_wrap=True, overflow="crop") for line in lines))

    def print_last(self) -> None:
        """Print the last snapshot below the prompt."""
        if self.last is not None:
            self._console.print(self._drawn(None))


@contextlib.contextmanager
def screen() -> Iterator[tuple[Show, Say]]:
    """Yield a function that shows a snapshot, and one that shows a line before the first."""
    console = Console(highlight=False)
    live = Live(console=console, auto_refresh=False, screen=True, vertical_overflow="crop")
    picture = Picture(console, live)
    keys = _terminal_of_keys()
    with terminal.held(keys, sys.stdout.fileno(), picture.redraw), live, terminal.pressed(keys, picture.press):
        try:
            yield picture.show, picture.say
        finally:
            live.update(Text(""))
    picture.print_last()


def _terminal_of_keys() -> int | None:
    """Return the descriptor of standard input if keys can be read from it: a terminal, in the foreground; else None."""
    try:
        descriptor = sys.stdin.fileno()
        if not os.isatty(descriptor) or os.tcgetpgrp(descriptor) != os.getpgrp():
            return None  # in the background: keys are the shell's
    except (OSError, ValueError, AttributeError):
        return None
    return descriptor
