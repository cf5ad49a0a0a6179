"""Ports beside their peers: rates, what a slow one costs, events; and the hypothesis about one of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.fleet.ports import Ports, classes, grown, peers_of
from rankscope.diagnose.hypotheses.hypothesis import REPORTED, Hypothesis
from rankscope.diagnose.stats.robust import trimmed_mean
from rankscope.diagnose.verdict.contract import Evidence
from rankscope.probes.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Scale:
    """How long things are: seconds, and `transfer` per step."""

    steps: int  # of the whole window
    step_s: float
    window_s: float
    transfer: Floats

    @property
    def transfer_s(self) -> float:
        return float(trimmed_mean(self.transfer[None, :])[0])

    def counts(self, lost_s: float, share: float) -> bool:
        """Whether a loss is large enough to matter."""
        return lost_s >= max(share * self.step_s, limits.EFFECT_SECONDS)


@dataclass(frozen=True, slots=True)
class Found:
    """All ports of one kind, compared. One entry per port; seconds per step, bytes/s."""

    ports: Ports
    prefix: str
    scale: Scale
    group: Ints  # class of nominal speed
    rate: Floats
    peers_rate: Floats
    spread: Floats  # of the peers' rates
    peers: Ints
    ratio: Floats  # rate / peers' rate; NaN where either is unknown
    sending_s: Floats
    lost_s: Floats  # NaN where the ratio is

    @classmethod
    def of(cls, seen: Ports, prefix: str, scale: Scale) -> Found:
        """Compare the ports. The rate is burst_hz; where it is not measured, utilisation in collectives x speed."""
        speed, nominal = seen.value(f"{prefix}speed_hz"), seen.limit(f"{prefix}speed_hz")
        burst, usual = seen.value(f"{prefix}burst_hz"), seen.limit(f"{prefix}burst_hz")
        mu = seen.value(f"{prefix}collective_mu")
        rate = np.where(burst > 0, burst, mu * np.where(speed > 0, speed, usual))
        rate = np.where(rate > 0, rate, np.nan)
        moved = seen.bytes
        quiet = moved < limits.FEW * (float(np.nanmax(moved)) if np.isfinite(moved).any() else 0.0)
        rate = np.where(quiet, np.nan, rate)
        capability = np.where(nominal > 0, nominal, usual)
        if prefix == "nvlink.":
            capability = seen.limit("nvlink.links_down")  # how many links the GPU has
        group = classes(capability)
        middle, spread, count = peers_of(rate, group)
        ratio = rate / middle
        sending = np.fmin(moved / rate / scale.steps, scale.transfer_s)
        lost = sending * (1 - np.minimum(ratio, 1.0))
        return cls(seen, prefix, scale, group, rate, middle, spread, count, ratio, sending, lost)

    def grown(self, name: str, least: float) -> Bools:
        """Ports on which the events of this counter grew by `least`, and far more than on the peers."""
        return grown(self.ports.value(name), self.group, least)

    def moved(self, names: Iterable[str]) -> Bools:
        """Ports on which any of these error counters grew at EVENTS_HZ or more, and far more than on the peers."""
        found = np.zeros(len(self.ports), dtype=np.bool_)
        for name in names:
            found |= self.grown(name, limits.EVENTS_HZ * self.scale.window_s)
        return found

    def slower(self) -> Bools:
        """Ports that are slower than their peers by enough to matter if a counter says why."""
        floor = max(limits.EFFECT_SHARE * self.scale.step_s, limits.EFFECT_SECONDS)
        clear = self.rate <= self.peers_rate - limits.Z_HINT * self.spread
        return np.asarray((self.ratio <= limits.NEARLY_ALL) & clear & (self.lost_s >= floor), dtype=np.bool_)

    def candidates(self, moved: Bools, gone: Bools | None = None) -> Ints:
        """Ports to be charged, the most damaging first: their counter moved and they are slow, or nobody measured the rate.

        `gone`: ports that are not there all the time; while they are, their rate may be as their peers'.
        """
        chosen = moved & (self.slower() | ~np.isfinite(self.ratio))
        rows = np.flatnonzero(chosen if gone is None else chosen | gone)
        order = np.argsort(-np.nan_to_num(self.lost_s[rows]), kind="stable")
        return np.asarray(rows[order][: budgets.EXAMINED], dtype=np.int64)

    def evidence(self, index: int) -> tuple[Evidence, ...]:
        """Rate and flatness beside the peers'."""
        found = []
        count = int(self.peers[index])
        name = self.ports.instance[index]
        if np.isfinite(self.ratio[index]):
            rate, expected = float(self.rate[index]), float(self.peers_rate[index])
            found.append(Evidence("counters", f"rate of {name} while moving", rate, expected, "bytes/s", count))
        for what in ("mu", "sigma"):
            values = self.ports.value(f"{self.prefix}collective_{what}")
            middle = peers_of(values, self.group)[0][index]
            if np.isfinite(values[index]) and np.isfinite(middle):
                long = (
                    "share of its speed that is used"
                    if what == "mu"
                    else "how much that goes up and down (little: held down)"
                )
                text = f"{long}, in collectives"
                found.append(Evidence("counters", text, 100 * float(values[index]), 100 * float(middle), "%", count))
        return tuple(found)

    def events(self, index: int, names: Iterable[str]) -> Iterator[Evidence]:
        """Error counters of one port that grew far more than the peers'."""
        for name in names:
            if self.grown(name, limits.EVENTS_HZ * self.scale.window_s)[index]:
                values = self.ports.value(name)
                middle = float(np.nan_to_num(peers_of(values, self.group)[0][index]))
                what = f"{name.partition('.')[2].replace('_', ' ')} on {self.ports.instance[index]}"
                yield Evidence("counters", what, float(values[index]), middle, "events", int(self.peers[index]))

    def charge(
        self, fleet: Fleet, index: int, component: str, cause: str, support: float, evidence: Iterable[Evidence], action: str,
        instance: str = "", lost_s: float | None = None, ratio: float | None = None,
    ) -> Hypothesis:  # fmt: skip
        """The hypothesis that one port or link took a part of the transfer."""
        rank, port = int(self.ports.rank[index]), self.ports.instance[index]
        return link_charge(
            component, cause, fleet.ranks.host[rank], instance or port, users(fleet, rank, port),
            float(self.lost_s[index]) if lost_s is None else lost_s,
            float(self.ratio[index]) if ratio is None else ratio, support, tuple(evidence), action,
        )  # fmt: skip


def link_charge(
    component: str, cause: str, host: str, instance: str, rows: tuple[int, ...], lost_s: float, ratio: float, support: float,
    evidence: tuple[Evidence, ...], action: str,
) -> Hypothesis:  # fmt: skip
    """The hypothesis that a link of these ranks (rows) took a part of the transfer. `ratio`: its rate over the peers'.

    clear = 1 - ratio², half the doubt where a counter convicts
    """
    doubt = min(ratio, 1.0) ** 2
    return Hypothesis(
        scope="link",
        component=component, cause=cause, rows=rows, lost_s=lost_s, support=support, evidence=evidence, action=action,
        host=host, instance=instance, ratio=ratio, clear=1 - (0.5 * doubt if support >= REPORTED else doubt),
    )  # fmt: skip


def users(fleet: Fleet, rank: int, port: str) -> tuple[int, ...]:
    """Ranks (rows) that use a port: the one its counters name, and those of the host that name the port among their own."""
    ranks = fleet.ranks
    on_host = (
        row for row, nics in enumerate(ranks.nics) if port in nics and ranks.observed_on[row] == ranks.observed_on[rank]
        and ranks.netns[row] == ranks.netns[rank]
    )  # fmt: skip
    return tuple(sorted({rank, *on_host}))
