"""Select the rows of the table that stand: admit, and ask again beside what was admitted.

1. Ask the causes that depend on no other cause, and admit rows (causes/rows.py).
2. Ask the others beside the admitted rows: links beside slow ranks, growth since the baseline
   beside everything. Admit again.
3. Repeat 2 while other rows stand than before, `ROUNDS` times at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rankscope.diagnose.infer.causes.rows import Row, of_one_device, standing
from rankscope.diagnose.infer.causes.whole_job import Proposals, WholeJob, propose, propose_again
from rankscope.diagnose.infer.verdict.note import Note

ROUNDS = 2  # links and roles beside ranks, then what grew beside all of these


@dataclass(frozen=True, slots=True)
class Selected:
    """The rows that stand, with lost time, largest first, all proposals, and notes."""

    rows: list[Row]
    proposals: Proposals
    notes: list[Note]


def select(job: WholeJob, more: Sequence[Row] = ()) -> Selected:
    """Select among the rows of all causes; `more`: further rows, from another view of the job."""
    proposals = propose(job)
    found = standing(job.scene, [*more, *_rows(proposals)])
    for _ in range(ROUNDS):
        before, proposals = _mechanisms(found), propose_again(job, proposals, found)
        found = standing(job.scene, [*more, *_rows(proposals)])
        if _mechanisms(found) == before:
            break
    notes = [each for of_one in proposals.values() for each in of_one if isinstance(each, Note)]
    return Selected(of_one_device(found), proposals, notes)


def _rows(proposals: Proposals) -> list[Row]:
    return [each for of_one in proposals.values() for each in of_one if isinstance(each, Row)]


def _mechanisms(rows: Iterable[Row]) -> list[tuple[str, str, str, tuple[int, ...]]]:
    return sorted((row.found.component, row.found.cause, row.found.scope, row.found.rows) for row in rows)
