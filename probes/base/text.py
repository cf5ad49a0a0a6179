"""Sanitise text of targets (names, paths, arguments, notes about them)."""

from __future__ import annotations

import shlex

_NAME_CAP = 64


def printable(text: str, most: int | None = None) -> str:
    """Escape control, format, direction and unpaired surrogate characters; cut at `most` with '…'.

    The result can be printed, encoded as UTF-8, and passed in again without changing.
    """
    if most is not None:
        text = text[: most + 1]
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if most is None or len(text) <= most else text[: max(most - 1, 0)] + "…"


def named(text: str) -> str:
    """Format a target's name for use in a sentence: cut, and quoted if it holds unusual characters
    such as blanks.
    """
    return shlex.quote(printable(text, _NAME_CAP))
