"""Select the hypotheses (rows) that explain the steps together: admit, then ask again beside these.

1. Admit rows of the causes that depend on no other cause (causes/rows.py).
2. Ask the others beside the admitted rows: rare steps beside ranks that are slow in all, growth
   since the baseline beside everything. Admit again.
3. Repeat 2 while other rows stand than before, `ROUNDS` times at most.
4. Select waste beside what stands (causes/waste/select.py). It changes nothing of the above.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rankscope.diagnose.infer.causes.rank.odd_ranks import OddRanks
from rankscope.diagnose.infer.causes.rows import Row, of_one_device, standing
from rankscope.diagnose.infer.causes.waste.select import select_waste
from rankscope.diagnose.infer.causes.waste.spending import Spending
from rankscope.diagnose.infer.causes.whole_job import Proposals, WholeJob, propose_again
from rankscope.diagnose.infer.verdict.note import Note

ROUNDS = 2  # rare steps and strangers beside slow ranks, then what grew beside all of these


@dataclass(frozen=True, slots=True)
class Found:
    """The hypotheses selected in a view of a job: `rows` with lost time, largest first, and notes.

    `odd`: the comparison of single ranks. `proposals`: of all causes. `told`: comparisons whose
    ranks and notes are reported: `odd`, and another view's. `before`: what was found in another
    view first, where that was nothing. `waste`: rows selected beside `rows`, of what the job is
    `spending` its time on; None: unknown, or not asked for in this view.
    """

    odd: OddRanks
    proposals: Proposals
    rows: tuple[Row, ...]
    notes: tuple[Note, ...]
    told: tuple[OddRanks, ...]
    before: Found | None = None
    waste: tuple[Row, ...] = ()
    spending: Spending | None = None

    @property
    def job(self) -> WholeJob:
        """The job in this view."""
        return self.odd.job


def select(
    odd: OddRanks,
    proposals: Proposals,
    more: Sequence[Row] = (),
    notes: Sequence[Note] = (),
    spending: Spending | None = None,
) -> Found:
    """Select the rows of all causes that explain the steps together, and then waste.

    `more`: rows from another view of the job. `notes`: about this view. `spending`: what the job
    spends its time on, of which waste is selected.
    """
    scene = odd.job.scene
    found = standing(scene, [*more, *_rows(proposals)])
    for _ in range(ROUNDS):
        before, proposals = _mechanisms(found), propose_again(odd.job, proposals, found)
        found = standing(scene, [*more, *_rows(proposals)])
        if _mechanisms(found) == before:
            break
    said = (each for of_one in proposals.values() for each in of_one if isinstance(each, Note))
    rows = tuple(of_one_device(found))
    waste = select_waste(spending, found) if spending is not None else ()
    return Found(odd, proposals, rows, (*notes, *said), (odd,), waste=waste, spending=spending)


def select_again(found: Found, more: Sequence[Row]) -> Found:
    """Select again with rows of another view of the job."""
    again = select(found.odd, found.proposals, more, spending=found.spending)
    return replace(again, notes=found.notes, told=found.told)


def _rows(proposals: Proposals) -> list[Row]:
    """All rows among the proposals; the others are notes."""
    return [each for of_one in proposals.values() for each in of_one if isinstance(each, Row)]


def _mechanisms(rows: Iterable[Row]) -> list[tuple[str, str, str, tuple[int, ...]]]:
    """What the rows are about, sorted, to compare selections: component, cause, scope, ranks."""
    return sorted((row.found.component, row.found.cause, row.found.scope, row.found.rows) for row in rows)
