"""The name `-` for a file: standard output where a command makes one file and nothing else, refused elsewhere.

A file called `-` is never made: whoever types it means standard output.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rankscope.diagnose.face.cli.output import tell
from rankscope.probes.base.errors import UsageError

STDOUT = Path("-")
WRITES = (("report", "--html"), ("export", "--out"), ("bundle", "--out"))
PATHS = ("FILE", "DIR", "STORE")  # metavars of options whose value is a place


def refuse(command: str, given: Iterable[tuple[Any, Any]]) -> None:
    """Check the options (click's) of a command with their values. Raises UsageError for a `-` that it cannot serve."""
    for option, value in given:
        values = value if isinstance(value, (list, tuple)) else (value,)
        if option.param_type_name != "option" or option.metavar not in PATHS or "-" not in map(str, values):
            continue
        name = next(each for each in option.opts if each.startswith("--"))
        if (command, name) not in WRITES:
            able = ", ".join(f"`{one} {each} -`" for one, each in WRITES)
            raise UsageError(f"{command} {name} takes a path and not -; to standard output write {able}")


def sensible(place: Path, as_json: bool, binary: bool = False) -> None:
    """Check that standard output is free for the result, if it goes there. Raises UsageError."""
    if place != STDOUT:
        return
    if as_json:
        raise UsageError("--json prints to standard output, and so would - : give one of them a file name")
    if binary and sys.stdout.isatty():
        raise UsageError("what is written here is no text for a terminal: give a file name, or a pipe")


def remark(text: str, place: Path) -> None:
    """Print a sentence about a result: on stderr if the result itself is on stdout."""
    if place == STDOUT:
        sys.stderr.write(f"{text}\n")
    else:
        tell(text)
