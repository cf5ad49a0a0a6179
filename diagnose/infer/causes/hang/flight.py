"""Add evidence of PyTorch flight recorder dumps (diagnose/infer/flight) to a hang, or judge dumps alone.

Where a rank is stopped, gone or elsewhere, the dumps only confirm it. Where every rank waits, or
there is no window, a rank that did not enter a collective is `missing-collective`. A rank whose
device does not finish what the other devices finished is `gpu/lost`, with less support since no
counter confirms it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.causes.hang.silence import Standstill
from rankscope.diagnose.infer.causes.hypothesis import GUESS, NO_COUNTER, REPORTED, Hypothesis, suspect_from
from rankscope.diagnose.infer.fleet.counters import Counters
from rankscope.diagnose.infer.fleet.labels import Labels
from rankscope.diagnose.infer.fleet.model import Fleet, Flows, Patterns, Ranks, Steps
from rankscope.diagnose.infer.fleet.stacks import Stacks
from rankscope.diagnose.infer.flight.account import OTHER, SILENT, UNFINISHED, Blame, blames
from rankscope.diagnose.infer.flight.dumps import Dump
from rankscope.diagnose.infer.verdict.contract import Evidence, StepSeconds, Verdict
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.text import after, rank_list

SOURCE = "flight recorder"


def with_flight(fleet: Fleet, still: Standstill, found: Sequence[Blame]) -> Standstill:
    """Return the standstill with the evidence of the dumps added, or with their hypotheses if it has none."""
    row_of = {int(number): row for row, number in enumerate(fleet.ranks.number)}
    here = {row_of[blame.rank]: blame for blame in found if blame.rank in row_of}
    confirmed = tuple(
        replace(each, evidence=(*each.evidence, *(_evidence(here[row]) for row in each.rows if row in here)))
        for each in still.found
    )
    if confirmed:
        return replace(still, found=confirmed)
    return replace(
        still, found=tuple(_hypothesis(fleet, row, blame) for row, blame in here.items())[: budgets.INSTANCES_SHOWN]
    )


def verdict_of(dumps: Sequence[Dump], job: str) -> Verdict:
    """Return the verdict on dumps alone: "hang" if a collective is pending, else "unknown"."""
    fleet = _fleet(dumps, job)
    found = blames(dumps)
    row_of = {int(number): row for row, number in enumerate(fleet.ranks.number)}
    suspects = tuple(
        suspect_from(fleet, each, None, each.support)
        for each in (_hypothesis(fleet, row_of[blame.rank], blame) for blame in found)
    )
    pending = any(dump.pending for dump in dumps)
    notes = [
        Note(NoteCode.DUMPS_ALONE, "from the dumps of flight recorders alone: no process and no hardware was looked at")
    ]
    if not pending:
        notes.insert(0, Note(NoteCode.NO_STEPS, "no collective is pending in any dump: nobody is waited for"))
    elif not suspects:
        notes.insert(
            0, Note(NoteCode.ALL_WAIT, "all ranks have come to the collectives that are pending, and to the same ones")
        )
    return Verdict(
        status="hang" if pending else "unknown", job=job, hosts=(), ranks=tuple(map(int, fleet.ranks.number)), start=float("nan"),
        end=float("nan"), baseline=None, step_seconds=StepSeconds(None, None, None), slowdown_percent=0.0, suspects=suspects,
        notes=tuple(notes),
    )  # fmt: skip


def _hypothesis(fleet: Fleet, row: int, blame: Blame) -> Hypothesis:
    """Return gpu/lost where the rank's (row) device did not finish a collective, else process/missing-collective."""
    on_device = blame.how == UNFINISHED
    host, pid = fleet.ranks.host[row], int(fleet.ranks.pid[row])
    who = f"rank {blame.rank}" + (f" (pid {pid}{after('on', host)})" if pid else "")
    action = (
        f"Look at the GPU of {who}: `dmesg -T | grep Xid`, `nvidia-smi -q`; its process may also hang in the driver."
        if on_device
        else f"Find where {who} is (`rankscope diagnose` on its host, py-spy dump): the others wait for it."
    )
    return Hypothesis(
        component="gpu" if on_device else "process",
        cause="lost" if on_device else "missing-collective",
        rows=(row,),
        lost_s=float("nan"),
        support=NO_COUNTER if on_device else GUESS if blame.how == SILENT else REPORTED,
        evidence=(_evidence(blame),),
        action=action,
        host=host,
    )


def _evidence(blame: Blame) -> Evidence:
    """Return the evidence of a rank that blocks a collective: which one, what the rank did, how many wait."""
    where = f"{blame.operation} {blame.sequence} of {blame.group.words}"
    others = rank_list(blame.waiting)
    if blame.how == UNFINISHED:
        return Evidence(SOURCE, f"{where}, finished by {others}", "not finished here", None, "", len(blame.waiting))
    if blame.how == OTHER:
        return Evidence(SOURCE, f"{where}, in which {others} wait", blame.said, None, "", len(blame.waiting))
    said = "left no dump" if blame.how == SILENT else "did not come"
    return Evidence(SOURCE, f"{where}, in which {others} wait", said, None, "", len(blame.waiting))


def _fleet(dumps: Sequence[Dump], job: str) -> Fleet:
    """Build a fleet of the ranks in the dumps and their groups, without any measurement."""
    members = {rank for dump in dumps for group in dump.enqueued for rank in group.ranks}
    numbers = np.array(sorted(members | {dump.rank for dump in dumps}), dtype=np.int64)
    count = len(numbers)
    no, nothing, unnamed = np.zeros(count, np.int64), np.full(count, np.nan), ("",) * count
    ranks = Ranks(
        number=numbers, host=unnamed, observed_on=unnamed, netns=no, role=unnamed, world_size=no + count, pid=no,
        addresses=((),) * count, cpus=unnamed, state=("running",) * count, stopped_s=np.zeros(count), last_progress_s=nothing,
        in_collective_s=np.zeros(count), ended_s=nothing, exit_status=nothing,
    )  # fmt: skip
    rows, label, empty = np.empty(0, np.int64), Labels(np.empty(0, np.int64), ()), np.empty(0)
    patterns = Patterns(
        rank=rows, thread=label, kind=label, name=label, file=label, line=rows, detail=label, caller=label,
        stack=Stacks.none(0), beta=empty, count=rows, per_step_s=empty,
    )  # fmt: skip
    steps = Steps(empty, *(np.empty((count, 0)) for _ in range(6)))
    return Fleet(job, float("nan"), 0.0, 0, ranks, steps, patterns, Flows.none(), Counters(), ())
