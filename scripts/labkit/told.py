"""What a lab of single cases says while it runs, and how cases are chosen by name."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from labkit.machine.shell import EXIT_USAGE, LabError


def stage(case: str, words: str) -> None:
    """What goes on now, in a line that is written over; nothing where nobody looks on."""
    if sys.stderr.isatty():
        print(f"\r\033[K{case}: {words} …", end="", file=sys.stderr, flush=True)


def ended(began_s: float, place: str, case: str, outcome: str, line: str, wall_s: float) -> None:
    """A line for a case that ended. `began_s`: when the lab did (time.monotonic); `place`: 3/17."""
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    start = f"{time.monotonic() - began_s:5.0f} s [{place}] {case}: {outcome.upper()}"
    print(f"{start} {line} [{wall_s:.0f} s]", flush=True)


def names(what: str, text: str, known: Sequence[str]) -> list[str]:
    """Return the known names in a text with commas; all of them where it says all. LabError for one that is not known."""
    words = set(text.split(","))
    if unknown := sorted(words - {"all", *known}):
        why = f"no such {what}: {', '.join(unknown)} (there are: all, {', '.join(known)})"
        raise LabError(why, exit_code=EXIT_USAGE)
    return [name for name in known if words & {name, "all"}]
