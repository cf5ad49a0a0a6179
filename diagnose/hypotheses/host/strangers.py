"""Strangers take the CPUs of a host from all of its ranks alike: no rank is odd, and no baseline is needed, for the kernel counts who ran.

taken(r,s) = queue(r,s) · strangers(r) / (strangers(r) + ours(r))      seconds of step s in which a stranger ran in place of rank r
lost       = trimmed mean over s of T(s) - T'(s),  T' with own - taken on all ranks of the host      (model/replay.py)
busy       = (CPU time of the host - that of the job's processes) / CPU time that there is

queue: ready behind others, without quotas; strangers, ours: who ran meanwhile over the window, processes of the job or not.

Convicts: lost >= 10 % of the step, busy >= a third, and one program took half of what strangers took: it is named. Acquits: less of any;
a crowd of small programs is what a busy host is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.hypotheses.hypothesis import CONVICTED, Hypothesis, suspect_from
from rankscope.diagnose.model.busy_host import programs, queued_s, strangers_shares, taken_share
from rankscope.diagnose.model.replay import shrink
from rankscope.diagnose.model.scene import Scene
from rankscope.diagnose.verdict.contract import Evidence, Suspect
from rankscope.probes.arrays import Floats, Ints

_BUSY, _ONE = 1 / 3, 0.5
_TOLD = 3
_CONFIDENCE = 0.9


def strangers(fleet: Fleet, scene: Scene) -> Iterator[Suspect]:
    """Hosts whose CPUs strangers take, the one that costs most first."""
    hosts = fleet.ranks.observed_on
    share, queue = taken_share(fleet), queued_s(fleet)[:, -scene.own.shape[1] :]
    if not share.any():
        return
    found, busy_of = [], strangers_shares(fleet)
    for host in sorted({hosts[row] for row in np.flatnonzero(share)}):
        rows: Ints = np.array([row for row in range(len(hosts)) if hosts[row] == host], dtype=np.int64)
        busy = busy_of.get(host)
        took = programs(fleet, rows.tolist())
        if busy is None or busy < _BUSY or took[0][1] < _ONE * sum(seconds for _, seconds, _ in took):
            continue
        better: Floats = scene.own.copy()
        better[rows] -= share[rows, None] * np.fmin(queue[rows], scene.own[rows])
        lost_s = shrink(scene.own, better, scene.pipelines, scene.busy_s)
        if lost_s >= max(limits.QUOTA_SHARE * scene.step_s, limits.EFFECT_SECONDS):
            found.append((lost_s, _suspect(fleet, scene, rows, lost_s, busy, took)))
    yield from (suspect for _, suspect in sorted(found, key=lambda each: -each[0]))


def _suspect(
    fleet: Fleet, scene: Scene, rows: Ints, lost_s: float, busy: float, took: Sequence[tuple[str, float, int]]
) -> Suspect:
    name, _, count = took[0]
    who = name if count == 1 else f"{name} ({count} processes)"
    host = fleet.ranks.host[int(rows[0])]
    evidence = [
        Evidence("host", "CPUs kept busy by processes that are not of the job", 100 * busy, None, "%"),
        *(
            Evidence("scheduler", f"CPU taken by {each}, all ranks of the host", seconds, None, "s")
            for each, seconds, _ in took[:_TOLD]
        ),
        Evidence("steps", "step, against one in which none of it was taken (what-if replay)", scene.step_s,
                 scene.step_s - lost_s, "s"),
    ]  # fmt: skip
    found = Hypothesis(
        scope="host",
        component="cpu",
        cause="contended",
        rows=tuple(rows.tolist()),
        lost_s=lost_s,
        support=CONVICTED,
        evidence=tuple(evidence),
        action=f"Move or stop {who} on {host}: it takes the CPUs of all ranks there alike.",
        host=host,
        instance=who,
    )
    return suspect_from(fleet, found, scene.step_s, _CONFIDENCE)
