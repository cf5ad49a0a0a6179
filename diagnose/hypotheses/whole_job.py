"""What a cause that touches more than one rank is asked about: the whole job, once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.hypotheses.registry import proposers
from rankscope.diagnose.hypotheses.rows import Row
from rankscope.diagnose.model.scene import Scene
from rankscope.probes.arrays import Ints


@dataclass(frozen=True, slots=True)
class WholeJob:
    """`ranks`: rows about single ranks that are slower than their peers. `odd`: the ranks (rows of the fleet) whose rows stand already."""

    fleet: Fleet
    scene: Scene
    ranks: Sequence[Row]
    odd: Ints


def rows_of(job: WholeJob) -> Iterator[Row]:
    """Ask every registered function that takes a whole job for its rows."""
    for propose in proposers(WholeJob):
        found: Iterable[Row] = propose(job)
        yield from found
