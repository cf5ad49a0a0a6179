"""Tables of /proc that many processes share (connections of a network, mounts of a view), read once.

In: files of a process below /proc, and a key that is equal for processes that see the same. Out:
the parsed rows. Bytes are limited per user (`fair.py`); a table truncated for that reason serves
only that user: others read it for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from rankscope.probes.host import procfs
from rankscope.probes.host.fair import Fair

_View = TypeVar("_View", bound=Hashable)
_Key = TypeVar("_Key", bound=Hashable)
_Row = TypeVar("_Row")


@dataclass(slots=True)
class CommonTables(Generic[_View, _Key, _Row]):
    """Parsed tables by view (what processes see alike), read within a byte budget and cached.

    `files`: names below /proc/PID that make one table. `file_cap`: bytes of each, for anybody.
    `fair`: bytes of all, and of a user. `tell` is called once for a user whose table was truncated:
    user and pid.
    """

    root: Path
    files: tuple[str, ...]
    parse: Callable[[bytes], Mapping[_Key, _Row]]
    file_cap: int
    fair: Fair
    tell: Callable[[str, int], None]
    _whole: dict[_View, Mapping[_Key, _Row]] = field(default_factory=dict)
    _cut: dict[_View, dict[str, Mapping[_Key, _Row]]] = field(default_factory=dict)
    _noted: set[str] = field(default_factory=set)

    def of(self, pid: int, view: _View, user: Callable[[], str]) -> Mapping[_Key, _Row]:
        """Return the table of `view`, read through process `pid` if not cached. Never raises OSError.

        `user`: names the owner of `pid`, called only where needed. Unreadable files give an empty table,
        and are read again next time.
        """
        if view in self._whole:
            return self._whole[view]
        if view in self._cut and (who := user()) in self._cut[view]:
            return self._cut[view][who]
        return self._read(pid, view, user)

    def _read(self, pid: int, view: _View, user: Callable[[], str]) -> Mapping[_Key, _Row]:
        """Read and parse the files of process `pid` into one table; cache it if any file could be read.

        A table that this user's byte budget truncated is cached for that user only, others for all.
        """
        table: dict[_Key, _Row] = {}
        is_read, is_whole = False, True
        for name in self.files:
            most = min(max(int(self.fair.left(user)), 0), self.file_cap)
            try:
                data = procfs.read_file(procfs.proc_path(self.root, pid, name), most)
            except OSError:
                continue  # a kernel without IPv6 has no tcp6
            is_read = True
            self.fair.spend(len(data), user)
            if len(data) >= most:
                data = data[: data.rfind(b"\n") + 1]
                # the cap applies to everybody: the truncated table may be shared
                is_whole = is_whole and most == self.file_cap
                self._tell(user(), pid)
            table.update(self.parse(data))
        if is_read and is_whole:
            self._whole[view] = table
            self._cut.pop(view, None)
        elif is_read:
            self._cut.setdefault(view, {})[user()] = table
        return table

    def _tell(self, user: str, pid: int) -> None:
        """Report that a table of `user` was truncated, by `tell`; only the first time for each user."""
        if user not in self._noted:
            self._noted.add(user)
            self.tell(user, pid)
