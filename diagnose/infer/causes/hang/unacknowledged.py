"""A link that loses data, while every rank waits in a collective and none is missing.

stuck(flow):  its data was unacknowledged, and the receiver's window open, for 0.9 of the silence or
              more (busy - rwnd_limited), and some of it was sent again or none of it was
              acknowledged. (A kernel acknowledges at once even if its process does not read, and
              TCP doubles the time between retries, so that a short window may contain none.)
weight(a)  =  number of stuck pairs of addresses that contain a; then share(a) - rest(a) of
              ../link/packet_loss.py

Evidence for: the address in more stuck pairs than any other; of several, the one whose pairs lose
packets while the others do not. Where that does not decide it is the path between the two: the
sender is named, with less support. Evidence against: a receiver that does not read closes its
window, and is busy elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, GUESS, Hypothesis
from rankscope.diagnose.infer.causes.link.packet_loss import lossy_ends
from rankscope.diagnose.infer.causes.link.slow_flows import cells_of, end_at
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import median


def judge(fleet: Fleet, pairs: Mapping[tuple[str, str], float], silent_s: float) -> Hypothesis | None:
    """Return the hypothesis on the end of the network that a hang of `silent_s` seconds waits for.

    `pairs`: result of `stuck_pairs`. None where no pair has both ends in the fleet.
    """
    here = set(fleet.flows.local)
    stuck = {pair: long for pair, long in pairs.items() if pair[1] in here}
    if not stuck:
        return None
    losing = {address: (share, rest) for _, address, share, rest in lossy_ends(cells_of(fleet))}

    def weight(address: str) -> tuple[int, float]:
        """Return (number of stuck pairs with this address, its share of losses above the others'), the sort key."""
        share, rest = losing.get(address, (0.0, 0.0))
        return sum(address in pair for pair in stuck), share - rest

    # Data to be sent again waits at the sender: if nothing else decides, name the sender.
    senders = [source for source, _ in stuck]
    ordered = sorted({end for pair in stuck for end in pair}, key=lambda each: (*weight(each), each in senders))
    address = ordered.pop()
    sure = weight(address) > weight(ordered[-1])
    return _charge(fleet, address, stuck, sure, losing.get(address), silent_s)


def stuck_pairs(fleet: Fleet, silent_s: float) -> dict[tuple[str, str], float]:
    """Return seconds of unacknowledged data by (source, destination), for pairs stuck through the silence."""
    flows = fleet.flows
    unheard = (flows.retransmitted_bytes > 0) | (flows.sent_bytes == 0)
    stuck = (flows.unacknowledged_s >= limits.NEARLY_ALL * silent_s) & unheard
    found: dict[tuple[str, str], float] = {}
    for index in np.flatnonzero(stuck):
        pair = flows.local[index], flows.peer[index]
        if pair[0] != pair[1]:
            found[pair] = max(found.get(pair, 0.0), float(flows.unacknowledged_s[index]))
    return found


def _charge(
    fleet: Fleet,
    address: str,
    stuck: dict[tuple[str, str], float],
    sure: bool,
    loses: tuple[float, float] | None,
    silent_s: float,
) -> Hypothesis:
    """Return network/loss at the end with this address; `stuck`: seconds of each stuck pair.

    `sure`: no other end is as likely; else it is the path between two. `loses`: (its share of losses,
    the others'), None if it loses no more than others.
    """
    flows = fleet.flows
    mine = {pair: long for pair, long in stuck.items() if address in pair}
    (source, peer), longest = max(mine.items(), key=lambda item: item[1])
    others = [
        float(long)
        for long, local, far in zip(flows.unacknowledged_s, flows.local, flows.peer, strict=True)
        if local != far and (local, far) not in stuck
    ]
    evidence = [
        Evidence("tcp", f"not acknowledged {source} > {peer}", longest, median(others) if others else None, "s",
                 len(others)),
        Evidence("tcp", f"pairs that wait so, and touch {address}", f"{len(mine)} of {len(stuck)}", None, ""),
    ]  # fmt: skip
    if loses is not None:
        evidence.append(Evidence("tcp", f"sent again to and from {address}", 100 * loses[0], 100 * loses[1], "%"))
    end = end_at(fleet, address)
    other = peer if address == source else source
    action = (
        f"Packets to and from {end} get lost: look at its link, its errors and drops (ip -s link), its cable, its switch port."
        if sure
        else f"Packets between {address} and {other} get lost: look at the path, and at both ends (ip -s link)."
    )
    return end.charge("loss", silent_s, np.inf, CONVICTED if sure else GUESS, tuple(evidence), action)
