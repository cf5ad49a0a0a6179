"""State of ranks and jobs for the metrics and the black box, from a beat of tier 0."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from rankscope.diagnose.service.tell.metrics import RankState
from rankscope.diagnose.stats.robust import median
from rankscope.observer.watch.ranks import RankPulse
from rankscope.observer.watch.tier0 import Beat


def usual_s(ranks: Sequence[RankPulse]) -> float:
    """Return the usual step time of the median rank; NaN while unknown."""
    known = [one.usual_s for one in ranks if one.usual_s is not None]
    return median(known) if known else float("nan")


def rank_state(rank: RankPulse, beat: Beat) -> RankState:
    """Describe one rank now for the metrics: stopped, seconds of silence, share of waiting in its last 20 steps."""
    recent = list(rank.recent)[-20:]
    took_s = sum(seconds for _, seconds, _ in recent)
    waited = sum(waited_s for _, _, waited_s in recent) / took_s if took_s else float("nan")
    stopped = rank.found.pid in beat.still
    return RankState(rank.found.identity.rank, True, stopped, max(beat.at_s - rank.last_s, 0.0), min(waited, 1.0))


def box_line(job: str, ranks: Sequence[RankPulse], beat: Beat, every_s: float) -> dict[str, object]:
    """Describe one job for the black box: per rank its steps of the last `every_s` seconds, silence, whether stopped."""
    rows = []
    for rank in ranks:
        recent = [row for row in rank.recent if row[0] > beat.at_s - every_s]
        state = rank_state(rank, beat)
        row: dict[str, object] = {"rank": state.rank, "pid": rank.found.pid, "silent_s": round(state.silent_s, 3)}
        row["steps_s"] = [round(seconds, 4) for _, seconds, _ in recent][-64:]
        if not math.isnan(state.waited_share):
            row["waited"] = round(state.waited_share, 3)
        if state.stopped:
            row["stopped"] = True
        rows.append(row)
    return {"time": round(time.time(), 3), "job": job, "ranks": rows}
