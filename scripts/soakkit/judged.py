"""What of a soak is not as it must be, and what there is too little of to say. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from soakkit.figures import HELD, Interval, grown, settled, slowed

FLAT = 0.01  # growth after the first minutes
# The README's overhead table: 8 ranks on 2 cores +2.5 % in the median of their recordings, 11 % in one of them. Here more than a hundred
# rounds have one median, which noise moves by half a percent: twice the table's is no noise. The mean of steps has in it what is no
# step's: loading and writing, which take 0.1 to 0.6 s of CPU in the one process, 1.5 s in a command, 2 or 3 % of two cores that the ranks
# fill. With the table's 2.5 % that stays below what one recording has shown; a job that stalls as probes are loaded does not.
SLOWER, SLOWER_IN_MEAN = 0.05, 0.11
# Of the windows; others are cut off by an interrupt, or begin as the other job starts again.
_MOST = 0.9
# Settled windows of one process, those by a command, and rounds with pauses: fewer say nothing.
_LEAST_HELD, _LEAST_ONCE, _LEAST_ROUNDS = 30, 10, 10


@dataclass(frozen=True, slots=True)
class Job:
    """What there was to see: `ranks` of the job that is measured, whether one of them started `forks`, and whether others used the host."""

    ranks: int = 0
    forks: bool = False
    beside: bool = False


_ANY = Job()


def problems(intervals: Sequence[Interval], times: Sequence[float] = (), job: Job = _ANY) -> list[str]:
    """What is not as it must be."""
    found = list(dict.fromkeys(f"a window failed: {one.failed}" for one in intervals if one.failed))
    if ended := max((one.ended for one in intervals), default=0):
        found.append(f"{ended} ranks of the job ended")
    for once, words in ((False, "one process"), (True, "a command each")):
        part = settled(intervals, once)
        for name, value in HELD.items():
            if (more := grown(part, value)) > FLAT:
                found.append(f"{words}: {name} grew by {more:.1%}")
        if fewer := [one.ranks for one in part if one.ranks < job.ranks]:
            found.append(
                f"{words}: {len(fewer)} windows told of fewer than {job.ranks} ranks, of {min(fewer)} at least"
            )
    held = settled(intervals, once=False)
    if _too_few(one.stepped >= job.ranks for one in held):
        found.append("one process: windows told no steps of some ranks")
    if job.forks and _too_few(one.watched for one in held):
        found.append("one process: windows told of no process that a rank had started")
    for (ratios, limit), words in zip(
        _limits(intervals, times, job), ("median step", "mean of the steps"), strict=False
    ):
        if len(ratios) >= _LEAST_ROUNDS and (more := statistics.median(ratios)) > limit:
            found.append(f"the {words} was {more:.1%} longer while it was observed; {limit:.0%} are allowed")
    return found


def too_little(intervals: Sequence[Interval], times: Sequence[float], job: Job) -> list[str]:
    """What cannot be judged yet."""
    held, once = (len(settled(intervals, kind)) for kind in (False, True))
    wanted = [
        ("settled windows of one process", held, _LEAST_HELD),
        ("settled windows by a command", once, _LEAST_ONCE),
    ]
    wanted += [("rounds with pauses", len(ratios), _LEAST_ROUNDS) for ratios, _ in _limits(intervals, times, job)[:1]]
    return [f"too little to judge: {seen} {what}, {least} are needed" for what, seen, least in wanted if seen < least]


def _limits(intervals: Sequence[Interval], times: Sequence[float], job: Job) -> list[tuple[list[float], float]]:
    return [] if job.beside else list(zip(slowed(intervals, times), (SLOWER, SLOWER_IN_MEAN), strict=True))


def _too_few(said: Iterable[bool]) -> bool:
    values = list(said)
    return bool(values) and sum(values) < _MOST * len(values)
