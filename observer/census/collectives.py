"""Determine which collectives of a job can be timed, from its ranks' libraries and the call table.

Reported before a window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rankscope.observer.census.found import FoundRank
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.calls.probe import Library, functions_of, mapped_libraries
from rankscope.probes.calls.row import COLLECTIVE, ENQUEUE
from rankscope.probes.calls.table import CALL_TABLE

_ROWS = tuple(row for row in CALL_TABLE if row.role in (COLLECTIVE, ENQUEUE))


@dataclass(frozen=True, slots=True)
class SeenCollectives:
    """One job's libraries whose collectives can be timed, as (family, file), and files that should
    have some but have none.
    """

    job: str
    seen: tuple[tuple[str, str], ...]
    hidden: tuple[str, ...]

    @property
    def text(self) -> str:
        """Summary for display: 'nccl in libnccl.so.2; not seen in libother.so, which exports no functions'."""
        told = [f"{family} in {file}" for family, file in self.seen]
        told += [f"not seen in {file}, which exports no functions" for file in self.hidden]
        return "; ".join(told) or "not visible: waiting for other ranks cannot be separated from own time"


def seen_collectives(ranks: Sequence[FoundRank], root: Path = Path("/")) -> tuple[SeenCollectives, ...]:
    """Inspect the libraries of ranks; return one result per job, in the order of the ranks. Never
    raises.

    Each file is opened once, however many ranks map it.
    """
    looked_at: dict[tuple[str, int], frozenset[str]] = {}
    found: dict[str, tuple[set[tuple[str, str]], set[str]]] = {}
    prefixes = tuple({prefix for row in _ROWS for prefix in row.libraries})
    for rank in ranks:
        seen, hidden = found.setdefault(rank.identity.job, (set(), set()))
        for library in mapped_libraries(rank.pid, prefixes, root):
            if library.key not in looked_at:
                looked_at[library.key] = _families(library)
            seen |= {(family, library.name) for family in looked_at[library.key]}
            if not looked_at[library.key] and any(library.name.startswith(row.library) for row in _ROWS):
                hidden.add(library.name)
    return tuple(
        SeenCollectives(job, tuple(sorted(seen)), tuple(sorted(hidden))) for job, (seen, hidden) in found.items()
    )


def _families(library: Library) -> frozenset[str]:
    """Return the families of collectives (of the call table) whose functions this library has; empty if unreadable."""
    rows = [row for row in _ROWS if library.name.startswith(row.libraries)]
    try:
        with library.open() as file:
            return frozenset(row.family for row, functions in functions_of(file, rows).items() if functions)
    except (OSError, RankscopeError):
        return frozenset()
