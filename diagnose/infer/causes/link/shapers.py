"""Traffic shapers on the interfaces of the ranks' flows, and those much tighter than the others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.model import Fleet

_Place = tuple[str, int | None, str | None]  # host; network namespace, None: any; interface, None: any


def shapers(fleet: Fleet) -> dict[str, float]:
    """Return the rate limit in bytes/s of each local address behind a shaper."""
    ranks, flows = fleet.ranks, fleet.flows
    least: dict[_Place, float] = {}
    for counter in fleet.counters.named("qdisc.rate_limit"):
        if counter.value > 0:
            # Every network namespace may have an interface of this name: ranks of one namespace
            # share the shaper.
            space = int(ranks.netns[counter.rank]) if counter.rank >= 0 else None
            for interface in (counter.instance, None):
                place = (counter.observed_on, space, interface)
                least[place] = min(least.get(place, counter.value), counter.value)
    found: dict[str, float] = {}
    if not least:
        return found
    for row, address, interface in zip(flows.rank.tolist(), flows.local, flows.interface, strict=True):
        for space in (int(ranks.netns[row]), None):
            value = least.get((ranks.observed_on[row], space, interface or None))
            if value is not None:
                found[address] = min(found.get(address, value), value)
    return found


def tight_ends(shaped: Mapping[str, float]) -> dict[str, float]:
    """Return the shapers (bytes/s by address) that are clearly tighter than the others, or the only one."""
    ordered = sorted(shaped.values())
    return {address: value for address, value in shaped.items() if _is_tight(value, ordered)}


def _is_tight(value: float, ordered: list[float]) -> bool:
    """Whether a limit is at most `limits.MOST` of the median of the others.

    `ordered`: all limits, including this one, ascending.
    """
    others = len(ordered) - 1
    if not others:
        return True
    own = bisect_left(ordered, value)
    low, high = (ordered[place + (place >= own)] for place in ((others - 1) // 2, others // 2))
    return value <= limits.MOST * ((low + high) / 2)
