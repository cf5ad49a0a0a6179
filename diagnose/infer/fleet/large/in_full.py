"""Read all tables of selected hosts: workers read them and concatenate the tables of each group.

Thirty hosts' tables in one piece transfer faster than window by window, and leave few pieces to
join.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import pyarrow as pa

from rankscope.diagnose.infer.fleet.gather import DETAILS, counted_on, joined
from rankscope.diagnose.infer.fleet.large.survey import Survey
from rankscope.diagnose.infer.fleet.sources import Source, Unread, left_out, read_each
from rankscope.diagnose.infer.verdict.note import Note
from rankscope.observer.window.folder import Window
from rankscope.observer.window.manifest import Manifest
from rankscope.observer.window.store.same_names import plain_name
from rankscope.observer.window.store.users import by_user
from rankscope.probes.base.errors import BadData

_TABLES = ("ranks", "steps", *DETAILS)
_HOSTS = 32  # hosts per task: some megabytes, a tenth of a second
_Whose = tuple[str, str, float]  # a window's own host name, machine, and start by its own clock


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A source, and those of its windows to read.

    `windows`: by the window's own name, machine and start, the host name and start that the survey
    gives it.
    """

    source: Source
    windows: Mapping[_Whose, tuple[str, float]]


def read_in_full(
    sources: Sequence[Source], seen: Survey, numbers: Iterable[int], notes: list[Note], pool: Executor
) -> dict[str, pa.Table]:
    """Read all tables of these windows of the survey, by name, on the workers of `pool`.

    Adds a note on windows that could not be read. Raises BadData if none could.
    """
    of_source: dict[int, dict[_Whose, tuple[str, float]]] = {}
    for number in numbers:
        about = seen.manifests[number]
        whose = (plain_name(about), about.machine, seen.begins_s[number])
        of_source.setdefault(seen.source[number], {})[whose] = (about.host, about.start)
    wanted = [_Wanted(sources[place], of_source[place]) for place in sorted(of_source)]
    parts = list(pool.map(_read, [wanted[at : at + _HOSTS] for at in range(0, len(wanted), _HOSTS)]))
    unread = [each for _, failed in parts for each in failed]
    notes += [left_out(unread)] if unread else []
    there = [tables for tables, _ in parts if tables]
    if not there:
        raise BadData(f"none of {len(wanted)} windows can be read: {unread[0] if unread else 'they are gone'}")
    return _together(there)


def _read(wanted: Sequence[_Wanted]) -> tuple[dict[str, pa.Table], Unread]:
    """Read the tables of a group of hosts on a worker; none if nothing can be read.

    Also lists the unreadable.
    """
    unread: Unread = []
    windows: list[Window] = []
    for each, found in zip(wanted, read_each([each.source for each in wanted], unread), strict=True):
        for window in found:
            about = window.manifest
            if (meant := each.windows.get((about.host, about.machine, about.start))) is not None:
                windows.append(by_user(replace(window, manifest=_named(about, *meant))))
    if not windows:
        return {}, unread
    return {name: joined(windows, name).combine_chunks() for name in _TABLES}, unread


def _named(about: Manifest, host: str, start: float) -> Manifest:
    """Copy a manifest with this host name and start (Unix time)."""
    return replace(about, host=host, start=start)


def _together(parts: Sequence[Mapping[str, pa.Table]]) -> dict[str, pa.Table]:
    """Concatenate each table of several groups of hosts, renumbering references to stacks."""
    return {name: counted_on(name, [(part[name], part["stacks"].num_rows) for part in parts]) for name in _TABLES}
