"""Judge several jobs independently: bad data of one does not prevent the verdict on another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from rankscope.diagnose.budgets import NOTE_MOST
from rankscope.diagnose.infer.fleet.labels import ints
from rankscope.diagnose.infer.fleet.roll_call import RollCall, of_job
from rankscope.diagnose.infer.fleet.step_matrix import NoRoomForSteps
from rankscope.diagnose.infer.verdict.contract import StepSeconds, Verdict
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.integers import distinct
from rankscope.diagnose.text import clean
from rankscope.observer.window.store.summary import WINDOW
from rankscope.probes.base.errors import BadData


def each_by_itself(
    jobs: Iterable[str], judged: Callable[[str], Verdict], refused: Callable[[str, Note], Verdict]
) -> Iterator[tuple[str, Verdict]]:
    """Yield the verdict of each job, then what `refused` makes of jobs with unusable data.

    Raises the first error where all jobs fail and none for lack of room for steps: then the request
    is wrong.
    """
    reasons: dict[str, BadData] = {}
    some = False
    for job in jobs:
        try:
            verdict = judged(job)
        except BadData as error:
            reasons[job] = error.with_traceback(None)  # its frames would retain all data that was read of the job
            continue
        some = True
        yield job, verdict
    if reasons and not some and not any(isinstance(reason, NoRoomForSteps) for reason in reasons.values()):
        raise next(iter(reasons.values()))
    for job, reason in reasons.items():
        yield job, refused(job, Note(NoteCode.NOT_JUDGED, clean(f"{reason}. {reason.help}", NOTE_MOST)))


def unjudged(roll: RollCall, job: str, windows: Sequence[int], notes: Sequence[Note]) -> Verdict:
    """Return the unknown verdict on a job whose windows cannot be used.

    `windows`: numbers of its windows; `notes`: the reason first.
    """
    about = [roll.manifests[number] for number in windows]
    mine = of_job(roll.ranks.select(["job", "rank", WINDOW]), job)
    numbers = ints(mine.filter(pa.array(np.isin(ints(mine, WINDOW), windows))), "rank")
    return Verdict(
        status="unknown",
        job=job,
        hosts=tuple(sorted({each.host for each in about})),
        ranks=tuple(distinct(numbers[numbers >= 0])[0].tolist()),
        start=min(each.start for each in about),
        end=max(each.start + each.seconds for each in about),
        baseline=None,
        step_seconds=StepSeconds(None, None, None),
        slowdown_percent=0.0,
        suspects=(),
        notes=tuple(notes),
    )


def is_unjudged(verdict: Verdict) -> bool:
    """Whether a verdict says that the job's windows cannot be used, so that no page can be made."""
    return any(note.code is NoteCode.NOT_JUDGED for note in verdict.notes)
