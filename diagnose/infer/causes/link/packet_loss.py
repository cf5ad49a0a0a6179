"""Packet loss: most steps are as usual, but in some every rank waits for a retransmission.

held(s)  = median over ranks of the step's length - longest own time of any rank: what no rank's
           work explains. (Not the least stay: in a ring, a rank that has all of its packets goes on
           to its next step and waits there.)
usual    = 10th percentile of held over steps
long(s)  = held(s) - usual >= RTO_SECONDS; at least three such steps
lost     = mean over all steps of (held(s) - usual) where long(s), seconds per step
share(a) = retransmitted / sent bytes of all pairs of addresses that contain a
rest(a)  = the same of the pairs that do not contain a

Evidence for: share(a) of 0.5 % and five times rest(a); of several addresses the one with the
largest share(a) - rest(a), the common end of the losing pairs. Evidence against: no long steps (an
immediate retransmission costs nothing), pairs that all lose alike, and two hosts: they have no pair
without one of both.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import SEEN, Hypothesis
from rankscope.diagnose.infer.causes.link.shapers import shapers, tight_ends
from rankscope.diagnose.infer.causes.link.slow_flows import Cells, End, cells_of, end_at
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import LIMIT, Evidence
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import rate as rate_text
from rankscope.observer.sources import Source
from rankscope.probes.base.arrays import Bools, Floats


@cause("network", "loss", scope="link", witness="steps wait for what is sent again", rests_on=[Source.FLOWS],
       says="the network at {instance|its end} loses packets")  # fmt: skip
def judge(fleet: Fleet, held_s: Floats, step_s: float) -> tuple[Hypothesis, ...]:
    """Return at most one hypothesis of packet loss at one end of the network.

    `held_s`: seconds per step that no rank's own work explains, without NaN; `step_s`: the step, in
        seconds.
    """
    if len(held_s) < limits.STEPS_LEAST:
        return ()
    usual = float(np.percentile(held_s, 10))  # most steps may be affected
    late: Bools = held_s - usual >= limits.RTO_SECONDS
    lost_s = float(np.where(late, held_s - usual, 0.0).mean())
    if late.sum() < limits.SEVERAL or lost_s < max(limits.EFFECT_SHARE * step_s, limits.EFFECT_SECONDS):
        return ()
    cells = cells_of(fleet)
    # If a single pair loses packets, the end behind a tight shaper drops them.
    tight = tight_ends(shapers(fleet))
    found = max(lossy_ends(cells), key=lambda one: (one[1] in tight, one), default=None)
    if found is None:
        return ()
    _, address, share, rest = found
    evidence = (
        Evidence("tcp", f"packets sent again, to and from {address}", 1000 * share, 1000 * rest, "of 1000"),
        Evidence("steps", "steps in which a lost packet was waited for", float(late.sum()), 0.0, "steps"),
        Evidence("steps", "lost in each of these steps", median(held_s[late]), max(usual, 0.0), "s"),
    )
    ratio = share / max(rest, 0.2 * limits.LOSS_SHARE)
    return (_charge(end_at(fleet, address), tight.get(address), lost_s, ratio, SEEN, evidence),)


def lossy_ends(cells: Cells) -> Iterator[tuple[float, str, float, float]]:
    """Yield (weight, address, share, others' share) of addresses whose pairs lose far more than others.

    Shares: of the bytes sent, those sent again.
    """
    losing = cells.retransmitted >= limits.LOSS_SHARE
    if not losing.any():
        return
    source, peer, names = cells.sends, cells.receives, cells.addresses
    for number in sorted({*source[losing].tolist(), *peer[losing].tolist()}):
        mine = (source == number) | (peer == number)
        if mine.all():
            continue
        share, rest = _pooled(cells, mine), _pooled(cells, ~mine)
        if share < max(limits.LOSS_SHARE, limits.LINK_RATIO * rest):
            continue
        # If a single pair loses, its sender is slightly likelier.
        weight = 1 + limits.EFFECT_SHARE * bool((losing & (source == number)).any())
        yield (share - rest) * weight, names[number], share, rest


def _pooled(cells: Cells, which: Bools) -> float:
    """Return the share of all bytes of these pairs (mask) that was sent again."""
    return float(cells.retransmitted_bytes[which].sum() / max(cells.sent_bytes[which].sum(), 1.0))


def _charge(
    end: End, narrow: float | None, lost_s: float, ratio: float, support: float, evidence: tuple[Evidence, ...]
) -> Hypothesis:
    """Return network/loss at this end, or network/slow-link where its shaper drops the packets.

    `narrow`: rate of the shaper in bytes/s, None without one; `ratio`: its share of losses over the others'.
    """
    action = (
        f"Packets to and from {end} get lost: look at its errors and drops (ip -s link), its cable, its switch port."
    )
    if narrow is not None:
        evidence = (*evidence, Evidence("qdisc", f"shaper on {end.address}", rate_text(narrow), None, "", role=LIMIT))
        action = f"Raise or remove the shaper on {end} (`tc qdisc show`): what does not fit through it is dropped, and sent again."
    return end.charge(
        cause="loss" if narrow is None else "slow-link",
        lost_s=lost_s,
        times=ratio,
        support=support,
        evidence=evidence,
        action=action,
    )
