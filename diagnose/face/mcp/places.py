"""Select the folders that an agent may read: allowed ones of windows, and none that others could have changed.

A path is walked from an allowed folder part by part. Links are not followed below it, and every part
must belong to root or to us and be writable by nobody else (probes/base/folders.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rankscope.diagnose.text import clean
from rankscope.observer.window.folder import MANIFEST
from rankscope.observer.window.staging import PARTIAL
from rankscope.probes.base.errors import UsageError
from rankscope.probes.base.folders import UnsafePlace, why_not_ours

WINDOWS_MOST = 512  # folders of one question
WALKED_MOST = 20_000  # entries of folders that are looked at for windows
DEEPEST = 3  # folders below an allowed one
_FILES_MOST = 64  # in a window's folder there are ten
_PATH_MOST = 4096


class Refused(UsageError):
    """A path that an agent may not read."""

    help = "The tool `windows` lists what may be read; an operator allows more with `rankscope mcp --windows DIR`."


@dataclass(frozen=True, slots=True)
class Places:
    """Folders that may be read: of windows (absolute), of the history and of the service."""

    windows: tuple[Path, ...]
    history: Path
    state: Path

    @property
    def roots(self) -> tuple[Path, ...]:
        """The allowed folders, with that of the history's windows."""
        return (*self.windows, self.history / "windows")

    def folders(self, given: str) -> tuple[list[Path], list[str]]:
        """Return the window folders that a path means, itself or those in it, and why others were refused.

        `given`: an absolute path below an allowed folder, or a path relative to one. Raises Refused.
        """
        root, parts = self._parted(given)
        _must_be_ours(root, parts)
        place = root.joinpath(*parts)
        if _is_there(place / MANIFEST):
            _must_be_a_window(root, parts)
            return [place], []
        found: list[Path] = []
        refused: list[str] = []
        for inner in _windows_below(place, 1):
            try:
                _must_be_a_window(root, inner.relative_to(root).parts)
            except Refused as error:
                refused.append(str(error))
                continue
            found.append(inner)
            if len(found) > WINDOWS_MOST:
                raise Refused(f"{_shown(given)} holds more than {WINDOWS_MOST} windows: name some of them")
        if not found:
            raise Refused(refused[0] if refused else f"{_shown(given)} holds no window")
        return found, refused

    def all(self) -> Iterator[Path]:
        """Yield the window folders below all allowed folders that may be read."""
        for root in self.roots:
            try:
                _must_be_ours(root, ())
            except Refused:
                continue
            for place in _windows_below(root, DEEPEST):
                try:
                    _must_be_a_window(root, place.relative_to(root).parts)
                except Refused:
                    continue
                yield place

    def _parted(self, given: str) -> tuple[Path, tuple[str, ...]]:
        """Return the allowed folder above a path, and the parts below it. Raises Refused."""
        if not given or len(given) > _PATH_MOST or not given.isprintable() or "://" in given:
            raise Refused(f"{_shown(given)} is no path of a window folder")
        path = Path(given)
        if ".." in path.parts:
            raise Refused(f"{_shown(given)} leads out of its folder")
        if path.is_absolute():
            for root in self.roots:
                if path.is_relative_to(root):
                    return root, path.relative_to(root).parts
            raise Refused(f"{_shown(given)} is in no folder that may be read")
        for root in self.roots:
            if _is_there(root / path):
                return root, path.parts
        raise Refused(f"there is no {_shown(given)} in the folders that may be read")


def _must_be_ours(root: Path, parts: tuple[str, ...]) -> None:
    """Raise Refused if others could have put this there or changed it, or if it cannot be read."""
    place = root.joinpath(*parts)
    try:
        why = why_not_ours(root, parts)
    except UnsafePlace as error:
        why = str(error)
    except OSError as error:
        raise Refused(f"{_shown(str(place))} cannot be read: {error.strerror or error}") from None
    if why:
        raise Refused(f"not read, as others could have written it: {clean(why, 300)}")


def _must_be_a_window(root: Path, parts: tuple[str, ...]) -> None:
    """Raise Refused unless only root or this user can have written a window's folder and every file in it."""
    _must_be_ours(root, parts)
    names = os.listdir(root.joinpath(*parts))  # noqa: PTH208
    if len(names) > _FILES_MOST:
        raise Refused(f"{_shown(str(root.joinpath(*parts)))} holds {len(names)} files: it is no window")
    for name in names:
        _must_be_ours(root, (*parts, name))


def _windows_below(place: Path, deepest: int) -> Iterator[Path]:
    """Yield window folders below a folder, itself first, at most `deepest` levels down; links are not followed."""
    looked = 0
    waiting = [(place, 0)]
    while waiting:
        here, depth = waiting.pop(0)
        if _is_there(here / MANIFEST):
            yield here
            continue
        if depth >= deepest:
            continue
        try:
            with os.scandir(here) as entries:
                inner = sorted(
                    one.name
                    for one in entries
                    if one.is_dir(follow_symlinks=False) and not one.name.startswith(PARTIAL)
                )
        except OSError:
            continue
        looked += len(inner)
        if looked > WALKED_MOST:
            return
        waiting += [(here / name, depth + 1) for name in inner]


def _is_there(path: Path) -> bool:
    """Tell whether a path exists, be it a broken link."""
    return os.path.lexists(path)


def _shown(given: str) -> str:
    """Clean a path for an error message, and cut it."""
    return clean(given, 200)
