"""How a user wants the table of ranks: sorted by which column, or the help instead; changed key by key. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rankscope.diagnose.face.top.snapshot import OTHERS, OWN, RankNow

RANK, STEP, WORKS, WAITS = "rank", "step", "works", "waits"  # columns, by the words in their heads
KEYS = {"r": RANK, "s": STEP, "w": WORKS, "o": WAITS}
HELP = (
    ("q", "quit"),
    ("h ?", "this help; any key: back"),
    ("r", "sort by rank"),
    ("s", "sort by the length of a step, the longest first"),
    ("w", "sort by what a rank works itself in a step"),
    ("o", "sort by how long a rank waits for others; the one that waits least keeps them waiting"),
    ("", "the same key again: the other way round"),
)
_OF: dict[str, Callable[[RankNow], float]] = {
    RANK: lambda rank: rank.number,
    STEP: lambda rank: math.nan if rank.step_s is None else rank.step_s,
    WORKS: lambda rank: _time(rank, OWN),
    WAITS: lambda rank: _time(rank, OTHERS),
}


@dataclass(frozen=True, slots=True)
class View:
    """The table sorted by `column`, or the help is shown; `ended`: the user wants to quit."""

    column: str = RANK
    descending: bool = False
    help: bool = False
    ended: bool = False

    def after(self, key: str) -> View:
        """Return the view after a key was pressed; unknown keys change nothing but close the help."""
        if key == "q":
            return replace(self, ended=True)
        if self.help:
            return replace(self, help=False)
        if key in ("h", "?"):
            return replace(self, help=True)
        column = KEYS.get(key)
        if column is None:
            return self
        again = column == self.column
        return replace(self, column=column, descending=not self.descending if again else column != RANK)

    def order(self, ranks: Sequence[RankNow]) -> list[RankNow]:
        """Sort ranks by the column; those without a value come last, equal ones by number."""
        value = _OF[self.column]
        sign = -1 if self.descending else 1
        known = [(value(rank), rank) for rank in ranks]
        return [
            rank for _, rank in sorted(known, key=lambda each: (math.isnan(each[0]), sign * _or_0(each[0]), each[1].number))
        ]  # fmt: skip


def _or_0(value: float) -> float:
    """Return a number, 0 for NaN."""
    return 0.0 if math.isnan(value) else value


def _time(rank: RankNow, part: int) -> float:
    """Return the seconds per step of one part of a rank's time; NaN if unknown."""
    return math.nan if not rank.parts or rank.step_s is None else rank.parts[part] * rank.step_s
