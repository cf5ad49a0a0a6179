"""Distinguish the user's code from libraries, by file.

Libraries: files in site-packages, dist-packages or Python's own lib folder, frozen and generated
code, and code without a known file. All else is the user's. Where a job is installed as a package
none of its frames would be: then the user's code is the distribution that the program starts in,
the first on its stacks after the starting code (`bin/train`, runpy, `python -c`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rankscope.observer.window.stacks import StackFrame

_NOBODY_KNOWS = r"^\?$"
_GENERATED = r"^<(frozen |__array_function__|attrs generated|eval_with_key|torch_package)|/torchinductor_"
_LIBRARY = re.compile(rf"/(site|dist)-packages/|/lib(64)?/python\d|{_GENERATED}|{_NOBODY_KNOWS}")
_DISTRIBUTION = re.compile(r"/(?:site|dist)-packages/([^/]+)")
_STARTER = re.compile(r"^<string>$|/bin/[^/.]+$")


@dataclass(frozen=True, slots=True)
class UsersCode:
    """Decides whether a frame is the user's. `distribution`: one in site-packages that is the
    user's, '' for none.
    """

    distribution: str = ""

    def has(self, file: str) -> bool:
        """Tell whether a file contains code of the user."""
        return not _LIBRARY.search(file) or bool(self.distribution and _distribution(file) == self.distribution)


def users_code(stacks: Iterable[tuple[Sequence[StackFrame], float]]) -> UsersCode:
    """Determine the user's code from the stacks of a rank, given root first, with the seconds of
    each.
    """
    entries: dict[str, float] = {}
    for frames, seconds in stacks:
        if any(not (_LIBRARY.search(frame.file) or _starts(frame)) for frame in frames):
            return UsersCode()
        entry = next(filter(None, (_distribution(frame.file) for frame in frames)), "")
        entries[entry] = entries.get(entry, 0.0) + seconds
    return UsersCode(max(entries, key=lambda name: entries[name], default=""))


def _distribution(file: str) -> str:
    """Return the folder or module in site-packages that a file belongs to; '' if it is in none."""
    found = _DISTRIBUTION.search(file)
    return found.group(1).removesuffix(".py") if found else ""


def _starts(frame: StackFrame) -> bool:
    """Tell whether a frame is code that starts a program: a script in bin/, or `python -c`."""
    return frame.name == "<module>" and bool(_STARTER.search(frame.file))
