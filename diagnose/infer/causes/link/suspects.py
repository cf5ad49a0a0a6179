"""Links of the ranks as rows: flows, packet loss, ports, and messages of pipelines.

Links are judged on the transfer, ranks on their own time: never the same time twice. Each row
removes what the link lost from the step; z = what all ports, or that flow, lost / 1.4 % of the
step; the certainty that the link is slow at all is a factor of its support. A port with a counter
of its own also explains the flows of its ranks. A device that delays its rank (copies over a narrow
PCIe link) and prolongs the transfer is one cause, told once (../rows.py, of_one_device).
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, Hypothesis
from rankscope.diagnose.infer.causes.link.packet_loss import judge as judge_loss
from rankscope.diagnose.infer.causes.link.slow_flows import judge as judge_links
from rankscope.diagnose.infer.causes.link.slow_messages import slow_links_of_pipelines
from rankscope.diagnose.infer.causes.link.slow_ports import judge as judge_hardware
from rankscope.diagnose.infer.causes.registry import asked
from rankscope.diagnose.infer.causes.rows import Clear, Floor, Row, Taken, gain_s
from rankscope.diagnose.infer.causes.whole_job import WholeJob
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.scene import Scene
from rankscope.diagnose.infer.model.slots import least_stay
from rankscope.diagnose.infer.verdict.contract import WITHOUT, Evidence
from rankscope.diagnose.stats.robust import nan_median, trimmed_mean
from rankscope.probes.base.arrays import Floats

TRANSFER = "transfer (the least time of any rank in collectives)"


@asked
def slow_links(job: WholeJob) -> list[Row]:
    """Return rows about links, compared with the step as it would be without slow ranks."""
    fleet, scene = job.fleet, job.scene
    least = least_stay(scene.wait, None, scene.slots)
    least = least[np.isfinite(least)]
    transfer_s = float(trimmed_mean(least[None, :])[0]) if len(least) else 0.0
    steps = int(np.median(np.isfinite(fleet.steps.seconds).sum(axis=1)))
    rest_s = scene.step_s - gain_s(scene, job.slow)
    transfer_s = min(transfer_s, rest_s)
    ports = () if fleet.timed else judge_hardware(fleet, steps, rest_s, least)
    behind_ports = {row for port in ports for row in port.rows}
    held = np.zeros(0) if fleet.timed else _held_up(scene)
    losing = judge_loss(fleet, held, rest_s)
    links = judge_links(fleet, steps, rest_s, transfer_s)
    # What is sent only in every fourth step is in the mean, but not in the trimmed mean.
    whole_s = min(max(float(least.mean()), transfer_s), rest_s) if len(least) else 0.0
    told = (
        {(one.cause, one.instance): one.lost_s for one in judge_links(fleet, steps, rest_s, whole_s)} if links else {}
    )
    # Waiting for retransmissions makes both ends look slow: besides a loss, only a shaper shows a
    # slow link as well. What does not fit through a shaper is lost and due to the shaper: take the
    # one that costs more.
    links = (*losing, *(link for link in links if not losing or link.support >= CONVICTED))
    links = tuple({(one.cause, one.instance): one for one in sorted(links, key=lambda link: link.lost_s)}.values())
    flows = [link for link in links if not behind_ports & set(link.rows)]
    behaviour = (TRANSFER, transfer_s)
    if losing:  # a trimmed mean and the least stay both leave out the cost of losses
        behaviour = ("of each step, what no rank's own time explains", max(float(held.mean()), 0.0))
    of_ports_s = sum(port.lost_s for port in ports)
    return [
        *(_row(fleet, scene, port, *behaviour, of_ports_s, rest_s) for port in ports),
        *(
            replace(
                _row(fleet, scene, flow, *behaviour, flow.lost_s, rest_s),
                price=Taken(max(told.get((flow.cause, flow.instance), 0.0), flow.lost_s)),
            )
            for flow in flows
        ),
        *slow_links_of_pipelines(fleet, scene),
    ]


def _held_up(scene: Scene) -> Floats:
    """Return the seconds of each step that no rank's work explains: median length - longest own time.

    Steps where that is unknown are left out. Not the least stay: a rank that has all of its packets goes
    on to its next step, and waits there.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        held = nan_median(scene.own + scene.wait, 0) - np.nanmax(scene.own, axis=0)
    return np.asarray(held[np.isfinite(held)], dtype=np.float64)


def _row(
    fleet: Fleet, scene: Scene, link: Hypothesis, measure: str, measured_s: float, together_s: float, rest_s: float
) -> Row:
    """Return the row about one link: z = together_s / (scale floor · rest_s).

    `measure`, `measured_s`: the behaviour to report. `together_s`: what it and links slow with it
        cost; noise and effect floor are compared with that, since each port has a share of one wait
        (slow_ports.py). `rest_s`: the step without the excess of ranks.
    """
    behaviour = Evidence("steps", measure, measured_s, max(measured_s - link.lost_s, 0.0), "s/step", role=WITHOUT)
    onset = scene.onset
    longer = onset is not None and onset.after_s > onset.before_s and np.isfinite(fleet.start)
    since = fleet.start + float(fleet.steps.start_s[onset.column]) if onset is not None and longer else None
    shown = replace(link, support=link.support * link.clear, evidence=(*link.evidence, behaviour), since=since)
    floor = Floor(limits.EFFECT_SHARE * rest_s / scene.step_s, link.lost_s / together_s)
    return Row(shown, Taken(link.lost_s), Clear(together_s / (limits.SCALE_FLOOR * rest_s)), floor)
