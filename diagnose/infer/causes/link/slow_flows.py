"""A slow network link that prolongs the transfer, by the rates of TCP flows.

Rate of a flow = sent_bytes / (busy - rwnd_limited - sndbuf_limited): only the time in which the
                 network delayed data, so that a waiting peer process does not look like a slow
                 link. Flows between two addresses are one cell of C4's delay matrix
                 [source][destination]: one slow cell is a link, a slow row the sender, a slow
                 column the receiver.

lost(cell) = min(sending, transfer) / sending · (sending · (1 - rate / rate of the cells without
             either end) - late), seconds per step

Sending while ranks compute costs nothing: of a cell that sends longer than the transfer, the same
part of both is lost. `late`: run-queue wait of the processes at both ends (the longer) above that
of the compared cells, since a process that queues reads and acknowledges late.

Evidence for: a shaper with less than its peers' rate, retransmissions, a round trip far above its
least. A cell is slow below a fifth of its peers' rate, below half behind a shaper, or where all
pairs of one address, both ways, are twice as slow as all others and queue twice as much. Where
processes wait for a CPU, rates are uneven but packets do not queue: where, each way, the heaviest
pair of an address has round trips five times longer than any pair of others, it is that many times
slower.

Evidence against: flows that are small, or wait for the receiving process; a short transfer. Small
messages take a round trip each: cells with less than half of the others' bytes are slower by their
longer round trips, unless a shaper or losses show more.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.causes.hypothesis import Hypothesis
from rankscope.diagnose.infer.causes.link.shapers import shapers, tight_ends
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.fleet.labels import distinct_texts
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.verdict.contract import DETAIL, Evidence
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import after
from rankscope.diagnose.text import rate as rate_text
from rankscope.observer.sources import Source
from rankscope.probes.base.arrays import Bools, Floats, Ints

# Pairs, each compared with all others, which takes seconds; more slow ones have another cause.
_CELLS_EXAMINED = budgets.EXAMINED**2


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link: an address of a host, and the ranks that use it."""

    address: str
    interface: str  # '' if unknown
    host: str
    ranks: tuple[int, ...]  # rows in fleet.ranks

    @property
    def instance(self) -> str:
        """Interface and address, such as 'eth0 198.18.0.10'."""
        return f"{self.interface} {self.address}".strip()

    def charge(
        self, cause: str, lost_s: float, times: float, support: float, evidence: tuple[Evidence, ...], action: str
    ) -> Hypothesis:
        """Return the hypothesis that this end took a part of the transfer: clear = 1 - 1 / times².

        `times`: how many times slower than its peers it is, or loses more.
        """
        ratio = 1 / max(times, 1.0)
        return Hypothesis(
            scope="link",
            component="network", cause=cause, rows=self.ranks, lost_s=lost_s, support=support, evidence=evidence, action=action,
            host=self.host, instance=self.instance, ratio=ratio, clear=1 - ratio**2,
        )  # fmt: skip

    def __str__(self) -> str:
        """Return interface, address and host in words."""
        return f"{self.interface or 'the interface'} ({self.address}){after('of', self.host)}"


@dataclass(frozen=True, slots=True)
class Cells:
    """Totals per pair of addresses (source, peer); `sends`, `receives`: indices into `addresses`.

    `inflation`: round-trip time over the shortest, weighted by bytes.
    """

    source: tuple[str, ...]
    peer: tuple[str, ...]
    sends: Ints
    receives: Ints
    addresses: tuple[str, ...]
    interface: tuple[str, ...]
    sent_bytes: Floats
    sending_s: Floats
    retransmitted_bytes: Floats
    inflation: Floats

    @property
    def rate(self) -> Floats:
        """Bytes per second of each pair, while only the network delays it."""
        return self.sent_bytes / np.maximum(self.sending_s, 1e-6)

    @property
    def retransmitted(self) -> Floats:
        """Share of each pair's bytes that were sent again."""
        return self.retransmitted_bytes / np.maximum(self.sent_bytes, 1.0)

    def touching(self, number: int) -> Bools:
        """Mask of the pairs that contain an address (its number)."""
        return np.asarray((self.sends == number) | (self.receives == number), dtype=np.bool_)


@cause("network", "slow-link", scope="link", witness="rate of flows, ports or messages", rests_on=[Source.FLOWS],
       says="the network at {instance|its end} is slower than between the others")  # fmt: skip
def judge(fleet: Fleet, steps: int, step_s: float, transfer_s: float) -> tuple[Hypothesis, ...]:
    """Return at most one hypothesis of a slow end of the network that prolongs the transfer.

    `steps`: in the whole window; `step_s`, `transfer_s`: seconds per step.
    """
    if transfer_s < max(limits.EFFECT_SHARE * step_s, limits.EFFECT_SECONDS) or steps < 1:
        return ()
    cells = cells_of(fleet)
    if len(cells.source) == 0:
        return ()
    slow: list[tuple[int, float, float]] = []  # cell, reference rate, lost
    besides: list[tuple[int, float, float]] = []  # cells of a slow end that cost little by themselves
    shaped, queued, ends = shapers(fleet), _queued_s(fleet), _slow_ends(cells)
    standing, tight = _standing(cells), tight_ends(shaped)
    shares = sorted(shaped.values())
    queue = np.array([max(queued.get(end, 0.0) for end in pair) for pair in zip(cells.source, cells.peer, strict=True)])
    for index in _slowest(cells, standing):
        others = _others(cells, index)
        if not len(others):  # the only link: nothing to compare it with
            continue
        reference = _usual_rate(cells, index, others)
        narrow = tight.get(cells.source[index]) or tight.get(cells.peer[index])
        late = max(float(queue[index] - np.median(queue[others])), 0.0) / steps
        if narrow is not None:
            wide = shares[bisect_right(shares, narrow) :]
            reference = min(reference, median(wide)) if wide else reference
        whole = index in standing or not ends.isdisjoint((cells.source[index], cells.peer[index]))
        needed = limits.CONCENTRATED if whole else _needed(cells, index, narrow)
        ratio = reference / float(cells.rate[index])
        if ratio < needed:
            ratio = standing.get(index, ratio)
        elif narrow is None and _small_messages(cells, index, others):
            ratio = min(ratio, _longer_trips(cells, index))
        sending = float(cells.sending_s[index]) / steps
        lost = (sending * (1 - 1 / max(ratio, 1.0)) - late) * min(transfer_s / max(sending, 1e-9), 1.0)
        share = limits.EFFECT_SHARE if narrow is not None else limits.ALONE_SHARE
        floor = max(share * step_s, limits.EFFECT_SECONDS)
        if ratio < needed:
            continue
        if lost >= floor:
            slow.append((index, reference, lost))
        elif whole:
            besides.append((index, reference, max(lost, 0.0)))
    if not slow:
        return ()
    return (_accuse(fleet, cells, slow + besides, shaped, tight),)


def cells_of(fleet: Fleet) -> Cells:
    """Sum flows between different addresses of the job's hosts by pair, without small ones."""
    flows = fleet.flows
    here = set(flows.local)
    # A quiet connection (the store, a heartbeat) shows no rate, however long it is busy.
    loud = max(limits.BYTES_LEAST, limits.FEW * float(flows.sent_bytes.max(initial=0.0)))
    totals: dict[tuple[str, str], list[float]] = {}
    interface: dict[tuple[str, str], str] = {}
    for index in range(len(flows)):
        pair = flows.local[index], flows.peer[index]
        if pair[0] == pair[1] or pair[1] not in here or flows.sent_bytes[index] < loud:
            continue
        least = float(flows.min_rtt_s[index])
        swollen = float(flows.rtt_s[index]) / least if least > 0 else 1.0
        sent = float(flows.sent_bytes[index])
        total = totals.setdefault(pair, [0.0, 0.0, 0.0, 0.0])
        for place, value in enumerate((sent, flows.sending_s[index], flows.retransmitted_bytes[index], sent * swollen)):
            total[place] += float(value)
        interface.setdefault(pair, flows.interface[index])
    pairs = sorted(totals)
    columns = np.array([totals[pair] for pair in pairs], dtype=np.float64).reshape(len(pairs), 4)
    addresses, ends = distinct_texts([*(pair[0] for pair in pairs), *(pair[1] for pair in pairs)])
    return Cells(
        source=tuple(pair[0] for pair in pairs),
        peer=tuple(pair[1] for pair in pairs),
        sends=ends[: len(pairs)],
        receives=ends[len(pairs) :],
        addresses=addresses,
        interface=tuple(interface[pair] for pair in pairs),
        sent_bytes=columns[:, 0],
        sending_s=columns[:, 1],
        retransmitted_bytes=columns[:, 2],
        inflation=columns[:, 3] / np.maximum(columns[:, 0], 1.0),
    )


def _slowest(cells: Cells, standing: Mapping[int, float]) -> list[int]:
    """Return the cells (indices, ascending) at most half as fast as the fastest, and the keys of `standing`.

    `standing`: cells that queue at a slow end, with their factors. At most _CELLS_EXAMINED, then the slowest.
    """
    slow = cells.rate.max() >= limits.CONCENTRATED * cells.rate
    slow[list(standing)] = True
    found = np.flatnonzero(slow)
    if len(found) > _CELLS_EXAMINED:
        found = np.sort(found[np.argsort(cells.rate[found], kind="stable")[:_CELLS_EXAMINED]])
    return [int(index) for index in found]


def _others(cells: Cells, index: int) -> Ints:
    """Return the cells to compare one with: without either of its ends, carrying half as much or more.

    If every cell has an end in common with it, all other cells.
    """
    touching = cells.touching(int(cells.sends[index])) | cells.touching(int(cells.receives[index]))
    apart = _alike(cells, index, ~touching)
    return apart if len(apart) else np.delete(np.arange(len(cells.source)), index)


def _alike(cells: Cells, index: int, others: Bools) -> Ints:
    """Return those of the cells `others` (mask) that carry at least half as much as this one; all if none does."""
    as_much = others & (limits.CONCENTRATED * cells.sent_bytes >= cells.sent_bytes[index])
    return np.flatnonzero(as_much if as_much.any() else others)


def _usual_rate(cells: Cells, index: int, others: Ints) -> float:
    """Return the median rate of the compared cells (`others`), in bytes/s.

    With fewer than three, one may be slow itself and one fast by chance: then the median of the
    cells without one of this cell's ends, for the end with the higher rate.
    """
    if len(others) >= 3:
        return median(cells.rate[others])
    beside = [_alike(cells, index, ~cells.touching(int(end))) for end in (cells.sends[index], cells.receives[index])]
    usual = [median(cells.rate[each]) for each in beside if len(each)]
    return max(usual) if usual else float(np.max(cells.rate[others]))


class _Elsewhere:
    """Find the first pair, in a given order, that does not contain an address."""

    def __init__(self, order: Ints, cells: Cells) -> None:
        self._pairs = list(
            zip(order.tolist(), cells.sends[order].tolist(), cells.receives[order].tolist(), strict=True)
        )

    def first(self, number: int) -> int:
        """Return the index of the first pair without this address; -1 if every pair contains it."""
        return next((pair for pair, *ends in self._pairs if number not in ends), -1)


def _slow_ends(cells: Cells) -> set[str]:
    """Return the addresses all of whose pairs, both ways, are slower and queue more than all other pairs.

    At least two pairs of each sort; without small messages, whose rate shows how fast they are
    read.
    """
    much = np.flatnonzero(limits.CONCENTRATED * cells.sent_bytes >= cells.sent_bytes.max())
    count, rate, inflation = len(cells.addresses), cells.rate, cells.inflation
    sent, received = (np.bincount(end[much], minlength=count) for end in (cells.sends, cells.receives))
    quickest, shortest = np.full(count, -np.inf), np.full(count, np.inf)
    for end in (cells.sends, cells.receives):
        np.maximum.at(quickest, end[much], rate[much])
        np.minimum.at(shortest, end[much], inflation[much])
    slowest_of = _Elsewhere(much[np.argsort(rate[much])], cells)
    longest_of = _Elsewhere(much[np.argsort(-inflation[much])], cells)
    found = set()
    enough = (sent + received >= 2) & (len(much) - sent - received >= 2)
    for number in np.flatnonzero((sent > 0) & (received > 0) & enough).tolist():
        slowest, longest = slowest_of.first(number), longest_of.first(number)
        slower = float(rate[slowest]) >= limits.CONCENTRATED * float(quickest[number])
        if slower and shortest[number] >= max(limits.LINK_RATIO, limits.CONCENTRATED * float(inflation[longest])):
            found.add(cells.addresses[number])
    return found


def _standing(cells: Cells) -> dict[int, float]:
    """Map the pairs that queue at a slow end to how many times: inflation over the longest of the other pairs.

    For each address its heaviest pair each way, if both factors reach LINK_RATIO: a slow end has
    two queues, and a queue of one flow is that flow's own.
    """
    found: dict[int, float] = {}
    heaviest = np.full((2, len(cells.addresses)), -1, dtype=np.int64)
    order = np.argsort(-cells.sent_bytes, kind="stable")[::-1]
    for of_way, end in zip(heaviest, (cells.sends, cells.receives), strict=True):
        of_way[end[order]] = order  # the last one written carries most
    touching = np.bincount(cells.sends, minlength=len(cells.addresses)) + np.bincount(
        cells.receives, minlength=len(cells.addresses)
    )
    longest_of = _Elsewhere(np.argsort(-cells.inflation), cells)
    enough = (len(cells.source) - touching >= 2) & (heaviest >= 0).all(axis=0)
    for number in np.flatnonzero(enough).tolist():
        longest = cells.inflation[longest_of.first(number)]
        times = {each: float(cells.inflation[each] / longest) for each in heaviest[:, number].tolist()}
        if min(times.values()) >= limits.LINK_RATIO:
            found.update(times)
    return found


def _queued_s(fleet: Fleet) -> dict[str, float]:
    """Return, by address, the seconds that its worst process was in the run queue, all its threads together."""
    most: dict[int, float] = {}
    for counter in fleet.counters.moved("cpu.process_ready_s"):
        most[counter.rank] = max(most.get(counter.rank, 0.0), counter.value)
    found: dict[str, float] = {}
    for rank, address in zip(fleet.flows.rank.tolist(), fleet.flows.local, strict=True):
        if rank in most:
            found[address] = max(found.get(address, 0.0), most[rank])
    return found


def _needed(cells: Cells, index: int, narrow: float | None) -> float:
    """Return how many times slower than its peers a cell must be to count as slow; `narrow`: its shaper, or None."""
    if narrow is not None:
        return limits.CONCENTRATED
    if len(cells.addresses) == 2 and not _loses(cells, index):
        return limits.OTHER_KIND
    return limits.LINK_RATIO


def _loses(cells: Cells, index: int) -> bool:
    """Return whether a cell retransmits 1 %, and LINK_RATIO times the lower median of the others (two may lose)."""
    share = cells.retransmitted
    others, middle = np.delete(share, index), (len(share) - 2) // 2
    usual = float(np.partition(others, middle)[middle]) if len(others) else 0.0
    return bool(share[index] >= max(limits.NOTHING, limits.LINK_RATIO * usual))


def _small_messages(cells: Cells, index: int, others: Ints) -> bool:
    """Whether a cell carries less than half as much as these, and does not lose packets."""
    little = cells.sent_bytes[index] * limits.CONCENTRATED < np.median(cells.sent_bytes[others])
    return bool(little) and not _loses(cells, index)


def _queues(cells: Cells, index: int) -> bool:
    """Whether a cell's packets queue longer than those of the compared pairs."""
    return bool(cells.inflation[index] >= limits.LINK_RATIO and _longer_trips(cells, index) >= limits.CONCENTRATED)


def _longer_trips(cells: Cells, index: int) -> float:
    """Return a cell's round-trip inflation over the median of the compared pairs."""
    usual = median(cells.inflation[_others(cells, index)]) if len(cells.source) > 1 else 1.0
    return float(cells.inflation[index]) / max(usual, 1.0)


def _accuse(
    fleet: Fleet, cells: Cells, slow: list[tuple[int, float, float]], shaped: dict[str, float], tight: dict[str, float]
) -> Hypothesis:
    """Return the hypothesis on the end that most of the slow cells have in common.

    `slow`: (cell, reference rate, lost seconds); `shaped`, `tight`: limits by address.
    """
    address = _common_end(cells, slow, tight)
    mine = [item for item in slow if address in (cells.source[item[0]], cells.peer[item[0]])]
    worst, reference, _ = max(mine, key=lambda item: item[2])
    sending = {cells.source[index] == address for index, _, _ in mine}
    way = "both ways" if len(sending) == 2 else "sending" if True in sending else "receiving"
    named = [cells.interface[i] for i, _, _ in mine if cells.source[i] == address]
    end = end_at(fleet, address, next((name for name in named if name), ""))
    loses = any(_loses(cells, index) for index, _, _ in mine)
    queues = any(_queues(cells, index) for index, _, _ in mine)
    narrow = tight.get(address)
    action = f"Check {end}: its cable, its switch port, its speed."
    if narrow is not None:
        action = (
            f"Raise or remove the shaper on {end} (`tc qdisc show`); then check its cable, its switch port, its speed."
        )
    if len(mine) == 1 and narrow is None:
        other = cells.peer[worst] if cells.source[worst] == address else cells.source[worst]
        action = f"Check the path between {address} and {other}: only this one is slow."
    evidence = list(_evidence(cells, worst, reference, address, shaped, narrow))
    evidence.insert(1, Evidence("tcp", f"{address} slow", way, None, ""))
    return end.charge(
        cause="loss" if loses and not queues and narrow is None else "slow-link",
        lost_s=max(item[2] for item in mine),
        times=reference / float(cells.rate[worst]),
        support=1.0 if narrow is not None else 0.9 if loses or queues else 0.75,
        evidence=tuple(evidence),
        action=action,
    )


def _common_end(cells: Cells, slow: list[tuple[int, float, float]], tight: dict[str, float]) -> str:
    """Return the address that the slow cells with most lost time have in common.

    `slow`: (cell, reference rate, lost seconds); senders and addresses behind a tight shaper weigh more.
    """
    weight: dict[str, float] = {}
    for index, _, lost in slow:
        # A sender is slightly likelier than the receiver: a rate is enforced in its queue.
        for address, part in ((cells.source[index], 1 + limits.EFFECT_SHARE), (cells.peer[index], 1.0)):
            convicted = 1.5 if address in tight else 1.0
            weight[address] = weight.get(address, 0.0) + lost * part * convicted
    return max(sorted(weight), key=lambda each: weight[each])


def _evidence(
    cells: Cells, worst: int, reference: float, address: str, shaped: dict[str, float], narrow: float | None
) -> Iterable[Evidence]:
    """Yield the evidence of the worst cell: its rate, shaper, retransmissions and round trips against the others'.

    `reference`: rate of the compared cells; `narrow`: rate of the shaper at `address`, None without one.
    """
    count = len(cells.source) - 1
    name = f"{cells.source[worst]} > {cells.peer[worst]}"
    yield Evidence("tcp", f"rate while sending {name}", float(cells.rate[worst]), reference, "bytes/s", count)
    if narrow is not None:
        rest = [value for other, value in shaped.items() if other != address]
        yield Evidence("qdisc", f"shaper on {address}", rate_text(narrow), rate_text(median(rest)) if rest else None,
                       "", len(rest))  # fmt: skip
    share = cells.retransmitted
    others_share = np.delete(share, worst)
    yield Evidence("tcp", "retransmitted", 100 * float(share[worst]),
                   100 * median(others_share) if count else None, "%", count)  # fmt: skip
    inflation = np.delete(cells.inflation, worst)
    yield Evidence("tcp", "round-trip time over the shortest seen", float(cells.inflation[worst]),
                   median(inflation) if count else None, "x", count, DETAIL)  # fmt: skip


def end_at(fleet: Fleet, address: str, interface: str = "") -> End:
    """Return the end with this address, local to some flow; `interface`: its name if known."""
    flows = fleet.flows
    mine = [index for index, local in enumerate(flows.local) if local == address]
    rows = tuple(dict.fromkeys(int(flows.rank[index]) for index in mine))
    named = interface or next((flows.interface[index] for index in mine if flows.interface[index]), "")
    return End(address, named, fleet.ranks.host[rows[0]], rows)
