"""Text of targets (names, paths, arguments, notes about them), as it comes in: one function for all of it."""

from __future__ import annotations

import shlex

_NAME_CAP = 64


def printable(text: str, most: int | None = None) -> str:
    """`text` with every control, format, direction and unpaired surrogate character as an escape; '…' where it is cut at `most`.

    What comes out can be printed, encoded as UTF-8, and given in again without changing.
    """
    if most is not None:
        text = text[: most + 1]
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return text if most is None or len(text) <= most else text[: max(most - 1, 0)] + "…"


def named(text: str) -> str:
    """A name of somebody's within a sentence of ours: cut, and quoted where it holds more than a name needs, a blank say."""
    return shlex.quote(printable(text, _NAME_CAP))
