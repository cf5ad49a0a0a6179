"""What commands share: progress on stderr, plain tables, JSON on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rankscope.diagnose.text import clean


def progress() -> Callable[[str], None]:
    """A function that tells the operator on stderr what is going on: one line that is rewritten on a terminal."""
    terminal = sys.stderr.isatty()

    def say(text: str) -> None:
        line = clean(text, 78)
        sys.stderr.write(f"\r\033[K{line}" if terminal else f"{line}\n")
        sys.stderr.flush()

    return say


def progress_done() -> None:
    """Clear the progress line."""
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()


def print_json(content: Any) -> None:
    print(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int = 80) -> Iterator[str]:
    """Lines of a table of at most `width` columns; the last column is cut to what is left."""
    cells = [[clean(cell) for cell in row] for row in rows]
    sizes = [max(len(line[column]) for line in [list(heads), *cells]) for column in range(len(heads))]
    room = width - sum(sizes[:-1]) - 2 * (len(sizes) - 1)
    sizes[-1] = max(room, 8)
    for line in [list(heads), *cells]:
        last = line[-1] if len(line[-1]) <= sizes[-1] else line[-1][: sizes[-1] - 1] + "…"
        yield "  ".join([cell.ljust(size) for cell, size in zip(line[:-1], sizes, strict=False)] + [last]).rstrip()[
            :width
        ]
