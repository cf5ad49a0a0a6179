"""Causes that touch more than one rank: each registered function is called once for the
whole job.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rankscope.diagnose.infer.causes.registry import proposers
from rankscope.diagnose.infer.causes.rows import Row
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.probes.base.arrays import Ints


@dataclass(frozen=True, slots=True)
class WholeJob:
    """The whole job, as causes that touch several ranks receive it.

    `ranks`: rows about single ranks that are slower than their peers. `odd`: ranks (rows of the
        fleet) whose rows were already selected.
    """

    fleet: Fleet
    scene: Scene
    ranks: Sequence[Row]
    odd: Ints


def rows_of(job: WholeJob) -> Iterator[Row]:
    """Collect the rows of every registered function whose parameter is a `WholeJob`."""
    for propose in proposers(WholeJob):
        found: Iterable[Row] = propose(job)
        yield from found
