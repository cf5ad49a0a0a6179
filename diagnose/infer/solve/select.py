"""Select the rows of the table that stand: admit, and ask again beside what was admitted.

1. Admit rows of the causes that depend on no other cause (causes/rows.py).
2. Ask the others beside the admitted rows: rare steps beside ranks that are slow in all, growth
   since the baseline beside everything. Admit again.
3. Repeat 2 while other rows stand than before, `ROUNDS` times at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rankscope.diagnose.infer.causes.rank.odd_ranks import OddRanks
from rankscope.diagnose.infer.causes.rows import Row, of_one_device, standing
from rankscope.diagnose.infer.causes.whole_job import Proposals, WholeJob, propose_again
from rankscope.diagnose.infer.verdict.note import Note

ROUNDS = 2  # rare steps and strangers beside slow ranks, then what grew beside all of these


@dataclass(frozen=True, slots=True)
class Found:
    """What stands in a view of a job: `rows` with lost time, largest first, and notes.

    `odd`: the comparison of single ranks. `proposals`: of all causes. `told`: comparisons whose
        ranks and notes are reported: `odd`, and another view's. `before`: what was found in another
        view first, where that was nothing.
    """

    odd: OddRanks
    proposals: Proposals
    rows: tuple[Row, ...]
    notes: tuple[Note, ...]
    told: tuple[OddRanks, ...]
    before: Found | None = None

    @property
    def job(self) -> WholeJob:
        """The job in this view."""
        return self.odd.job


def select(odd: OddRanks, proposals: Proposals, more: Sequence[Row] = (), notes: Sequence[Note] = ()) -> Found:
    """Select among the rows of all causes.

    `more`: rows from another view of the job. `notes`: about this view.
    """
    scene = odd.job.scene
    found = standing(scene, [*more, *_rows(proposals)])
    for _ in range(ROUNDS):
        before, proposals = _mechanisms(found), propose_again(odd.job, proposals, found)
        found = standing(scene, [*more, *_rows(proposals)])
        if _mechanisms(found) == before:
            break
    said = (each for of_one in proposals.values() for each in of_one if isinstance(each, Note))
    return Found(odd, proposals, tuple(of_one_device(found)), (*notes, *said), (odd,))


def select_again(found: Found, more: Sequence[Row]) -> Found:
    """Select again with rows of another view of the job."""
    return replace(select(found.odd, found.proposals, more), notes=found.notes, told=found.told)


def _rows(proposals: Proposals) -> list[Row]:
    return [each for of_one in proposals.values() for each in of_one if isinstance(each, Row)]


def _mechanisms(rows: Iterable[Row]) -> list[tuple[str, str, str, tuple[int, ...]]]:
    return sorted((row.found.component, row.found.cause, row.found.scope, row.found.rows) for row in rows)
