"""Compare ports with their peers: rates, cost of a slow one, events; and the hypothesis about a port."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.causes.hypothesis import REPORTED, Hypothesis
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.fleet.ports import Ports, classes, grown, peers_of
from rankscope.diagnose.infer.model.evidence.event_words import event_words
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.stats.robust import trimmed_mean
from rankscope.probes.base.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Scale:
    """Lengths for comparison: steps in the window, step and window in seconds, transfer in each judged step."""

    steps: int  # in the whole window
    step_s: float
    window_s: float
    transfer: Floats

    @property
    def transfer_s(self) -> float:
        """Trimmed mean of the transfer over the judged steps, in seconds."""
        return float(trimmed_mean(self.transfer[None, :])[0])

    def counts(self, lost_s: float, share: float) -> bool:
        """Whether a loss exceeds `share` of the step and the least effect in seconds."""
        return lost_s >= max(share * self.step_s, limits.EFFECT_SECONDS)


@dataclass(frozen=True, slots=True)
class Found:
    """All ports of one kind, compared with their peers: arrays of one entry per port.

    Times in seconds per step, rates in bytes/s.
    """

    ports: Ports
    prefix: str
    scale: Scale
    group: Ints  # class of nominal speed
    rate: Floats
    peers_rate: Floats
    spread: Floats  # spread of the peers' rates
    peers: Ints
    ratio: Floats  # rate / peers' rate; NaN where either is unknown
    sending_s: Floats
    lost_s: Floats  # NaN where the ratio is NaN

    @classmethod
    def of(cls, seen: Ports, prefix: str, scale: Scale) -> Found:
        """Compare ports of one kind by their rate while moving data.

        The rate is burst_hz; where that is not measured, utilisation in collectives x speed. Ports
        that carry under a tenth of the busiest have none.
        """
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
            capability = seen.limit("nvlink.links_down")  # number of links of the GPU
        group = classes(capability)
        middle, spread, count = peers_of(rate, group)
        ratio = rate / middle
        sending = np.fmin(moved / rate / scale.steps, scale.transfer_s)
        lost = sending * (1 - np.minimum(ratio, 1.0))
        return cls(seen, prefix, scale, group, rate, middle, spread, count, ratio, sending, lost)

    def grown(self, name: str, least: float) -> Bools:
        """Mask the ports whose counter grew by at least `least` events, and far more than on the peers."""
        return grown(self.ports.value(name), self.group, least)

    def moved(self, names: Iterable[str]) -> Bools:
        """Mask the ports on which one of these error counters grew at limits.EVENTS_HZ or more, unlike the peers'."""
        found = np.zeros(len(self.ports), dtype=np.bool_)
        for name in names:
            found |= self.grown(name, limits.EVENTS_HZ * self.scale.window_s)
        return found

    def slower(self) -> Bools:
        """Mask the ports that are clearly slower than their peers by enough to matter, if a counter gives the reason.

        Rate at most 90 % of theirs and outside their spread, and 5 % of the step lost.
        """
        floor = max(limits.EFFECT_SHARE * self.scale.step_s, limits.EFFECT_SECONDS)
        clear = self.rate <= self.peers_rate - limits.Z_HINT * self.spread
        return np.asarray((self.ratio <= limits.NEARLY_ALL) & clear & (self.lost_s >= floor), dtype=np.bool_)

    def candidates(self, moved: Bools, gone: Bools | None = None) -> Ints:
        """Indices of ports whose counter moved and that are slow or of unknown rate, worst first.

        `moved`: mask of ports whose counter moved. `gone`: mask of ports that were absent for a
            while, which are candidates at any rate.
        """
        chosen = moved & (self.slower() | ~np.isfinite(self.ratio))
        rows = np.flatnonzero(chosen if gone is None else chosen | gone)
        order = np.argsort(-np.nan_to_num(self.lost_s[rows]), kind="stable")
        return np.asarray(rows[order][: budgets.EXAMINED], dtype=np.int64)

    def evidence(self, index: int) -> tuple[Evidence, ...]:
        """Evidence of one port's rate, and its utilisation in collectives, against the peers'."""
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
        """Evidence of the error counters of one port that grew far more than the peers'."""
        for name in names:
            if self.grown(name, limits.EVENTS_HZ * self.scale.window_s)[index]:
                values = self.ports.value(name)
                middle = float(np.nan_to_num(peers_of(values, self.group)[0][index]))
                what = f"{event_words(name)} on {self.ports.instance[index]}"
                yield Evidence("counters", what, float(values[index]), middle, "events", int(self.peers[index]))

    def charge(
        self, fleet: Fleet, index: int, component: str, cause: str, support: float, evidence: Iterable[Evidence], action: str,
        instance: str = "", lost_s: float | None = None, ratio: float | None = None,
    ) -> Hypothesis:  # fmt: skip
        """Return the hypothesis that one port or link took a part of the transfer.

        `index`: of the port; `lost_s`, `ratio`, `instance`: those of the port where not given.
        """
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
    """Return the hypothesis that a link of these ranks (rows) took `lost_s` seconds per step of the transfer.

    `ratio`: its rate over its peers'. clear = 1 - ratio², or 1 - ratio²/2 if `support` is at least
    REPORTED (a counter confirms it).
    """
    doubt = min(ratio, 1.0) ** 2
    return Hypothesis(
        scope="link",
        component=component, cause=cause, rows=rows, lost_s=lost_s, support=support, evidence=evidence, action=action,
        host=host, instance=instance, ratio=ratio, clear=1 - (0.5 * doubt if support >= REPORTED else doubt),
    )  # fmt: skip


def users(fleet: Fleet, rank: int, port: str) -> tuple[int, ...]:
    """Return the ranks (rows) that use a port: `rank`, and others of its host that list the port as their own."""
    ranks = fleet.ranks
    on_host = (
        row for row, nics in enumerate(ranks.nics) if port in nics and ranks.observed_on[row] == ranks.observed_on[rank]
        and ranks.netns[row] == ranks.netns[rank]
    )  # fmt: skip
    return tuple(sorted({rank, *on_host}))
