"""Process: the rank was stopped for a part of the window and runs again.

Evidence for: time in state T (job control) that explains the excess. Hanging ranks:
../hang/standstill.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, SEEN, Hypothesis
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import after


def pauses(fleet: Fleet) -> Iterator[Hypothesis]:
    """Yield hypotheses on ranks that were stopped for a while and delayed a step by that.

    This is one long step, which no robust mean over steps shows: lost = time in state T / steps.
    """
    stopped = fleet.ranks.stopped_s
    least = max(limits.LOST_SECONDS, limits.EFFECT_SHARE * fleet.seconds)
    for row in np.flatnonzero(stopped >= least).tolist():
        own = fleet.steps.own_s[row]
        own = own[np.isfinite(own)]
        if len(own) and own.max() - np.median(own) >= 0.5 * min(float(stopped[row]), least):
            pid = int(fleet.ranks.pid[row])
            yield Hypothesis(
                component="process",
                cause="stopped",
                rows=(row,),
                lost_s=float(stopped[row]) / len(own),
                support=SEEN,
                evidence=(
                    Evidence("process", "stopped (state T)", float(stopped[row]), 0.0, "s", len(stopped) - 1),
                    Evidence("steps", "longest step, own time", float(own.max()), median(own), "s"),
                ),
                action=f"It runs again. Find who sent SIGSTOP to pid {pid}.",
                host=fleet.ranks.host[row],
                instance=f"pid {pid}",
            )


@cause("process", "stopped", witness="state T", says="the process was stopped")
def judge(case: Case) -> Iterator[Hypothesis]:
    """Propose process/stopped if the rank was stopped."""
    stopped = float(case.fleet.ranks.stopped_s[case.rank])
    if stopped > 0:
        yield case.charge(
            "process", "stopped", min(stopped / max(case.steps, 1), case.excess_s), CONVICTED,
            (Evidence("process", "stopped (state T)", stopped, 0.0, "s", len(case.peers)),),
            f"Find who sends SIGSTOP to pid {int(case.fleet.ranks.pid[case.rank])}{after('on', case.host)}.",
        )  # fmt: skip
