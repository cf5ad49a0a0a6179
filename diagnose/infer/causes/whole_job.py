"""Call every registered cause for the rows that it proposes, whatever its scope.

A registered function of a `WholeJob` is called once, with the ranks as they were compared. A
function of a `WholeJob` and what is `Known` is called again whenever rows of others were admitted
(solve/select.py). The order of the calls does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rankscope.diagnose.infer.causes.registry import asked, proposers
from rankscope.diagnose.infer.causes.rows import Row, ranks_of
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.past.baseline import Reference
from rankscope.diagnose.infer.verdict.note import Note
from rankscope.probes.base.arrays import Ints

Proposal = Row | Note  # a note: why something odd is no cause
Ask = Callable[..., Iterable[Proposal]]  # a registered function
Proposals = Mapping[Ask, Sequence[Proposal]]  # by the function that was asked


@dataclass(frozen=True, slots=True)
class WholeJob:
    """The whole job, as causes receive it.

    `reference`: the baseline, if there is one. `slow`: rows about single ranks that are slower than
        their peers in all steps, admitted as ranks were compared. `asks`: the functions whose rows count in this view of the job;
        none: all.
    """

    fleet: Fleet
    scene: Scene
    reference: Reference | None = None
    slow: tuple[Row, ...] = ()
    asks: tuple[Ask, ...] = ()

    def functions(self, *given: type) -> tuple[Ask, ...]:
        """Return the registered functions whose parameters have these types; only those in `asks` if it has any."""
        return tuple(ask for ask in proposers(*given) if not self.asks or ask in self.asks)


@dataclass(frozen=True, slots=True)
class Known:
    """Rows that other functions proposed and that were admitted."""

    rows: tuple[Row, ...] = ()

    @property
    def odd(self) -> Ints:
        """Ranks (rows of the fleet) that are slower than their peers in all steps."""
        return ranks_of(row for row in self.rows if row.rank is not None)


def propose(job: WholeJob) -> Proposals:
    """Call every registered function of a WholeJob alone; return what each proposes, by function."""
    return {ask: tuple(ask(job)) for ask in job.functions(WholeJob)}


def propose_again(job: WholeJob, before: Proposals, found: Sequence[Row]) -> Proposals:
    """Call every registered function of a WholeJob and a Known; return all proposals, theirs replaced.

    `before`: all proposals so far; `found`: the rows of them that were admitted. Each function gets
    those of them that it did not propose itself.
    """
    now = dict(before)
    for ask in job.functions(WholeJob, Known):
        own = {id(each.taken) for each in before.get(ask, ()) if isinstance(each, Row)}
        now[ask] = tuple(ask(job, Known(tuple(row for row in found if id(row.taken) not in own))))
    return now


@asked
def slow_ranks(job: WholeJob) -> Sequence[Row]:
    """Return the rows about single slow ranks, which were proposed when ranks were compared with their peers."""
    return job.slow
