"""Helpers for causes of devices: time on a device and counters, compared with the peers'."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import NO_COUNTER, SEEN, Hypothesis
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.fleet.counters import Counter
from rankscope.diagnose.infer.model.attribute import Located
from rankscope.diagnose.infer.model.functions import FunctionExcess, sample
from rankscope.diagnose.infer.verdict.contract import Evidence
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.stats.robust import median


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """Seconds per step in one kind of function, on the rank and on its peers."""

    kind: str
    own_s: float
    peers_s: float
    functions: tuple[FunctionExcess, ...]

    @property
    def excess_s(self) -> float:
        """Seconds per step above the peers'."""
        return self.own_s - self.peers_s

    @property
    def worst(self) -> FunctionExcess:
        """The function with the largest excess over the peers'."""
        return max(self.functions, key=lambda f: f.excess_s)

    @property
    def function(self) -> Function:
        """The function with the largest excess, as the verdict names functions."""
        return Function(self.worst.kind, self.worst.name, self.worst.file, self.worst.line)


@dataclass(frozen=True, slots=True)
class Beside:
    """One counter of the rank, and `expected`, the median of its peers; NaN without any."""

    counter: Counter
    value: float
    expected: float
    peers: int

    @property
    def known(self) -> bool:
        """Whether peers have such a counter, so that `expected` is a number."""
        return self.peers > 0 and math.isfinite(self.expected)

    def evidence(self, source: str, unit: str, measure: str, factor: float = 1.0) -> Evidence:
        """Return value and expected value, both times `factor`, as evidence; no expected value without peers'."""
        expected = self.expected * factor if self.known else None
        return Evidence(source, measure, self.value * factor, expected, unit, self.peers)


def device_time(case: Case, kind: str, detail: str | None = None) -> DeviceTime | None:
    """Return the time in functions of this kind; None without such functions or without an excess."""
    functions = tuple(f for f in case.functions if f.kind == kind and (detail is None or f.detail == detail))
    if not functions:
        return None
    found = DeviceTime(kind, sum(f.own_s for f in functions), sum(f.peers_s for f in functions), functions)
    return found if found.excess_s > 0 else None


def behaviour(case: Case, device: DeviceTime) -> tuple[Evidence, ...]:
    """Return the evidence of times alone: the worst function, the whole kind, how many functions are slower.

    More work slows what grows with it; a slow device slows every function on it.
    """
    worst, peers = device.worst, len(case.peers)
    evidence = [Evidence("functions", f"time in {worst.name}", worst.own_s, worst.peers_s, "s/step", peers)]
    if len(device.functions) == 1:
        return tuple(evidence)
    evidence.append(Evidence("functions", f"all {device.kind} time", device.own_s, device.peers_s, "s/step", peers))
    compared = [f for f in device.functions if f.own_s >= limits.NOTHING * case.own_s]
    if len(compared) > 1:
        slower = sum(f.own_s >= (1 + limits.ALONE_SHARE) * f.peers_s for f in compared)
        what = f"{device.kind} functions slower than the peers'"
        evidence.append(Evidence("functions", what, f"{slower} of {len(compared)}", None, ""))
    return tuple(evidence)


def slow(
    case: Case, device: DeviceTime, component: str, cause: str, action: str = "", instance: str = "",
    counters: Iterable[Evidence] = (),
) -> Hypothesis:  # fmt: skip
    """Return the hypothesis of a slow device for which no counter gives a reason.

    `counters`: evidence of counters that were read and show nothing.
    """
    evidence = (*behaviour(case, device), *counters)
    return case.charge(component, cause, device.excess_s, NO_COUNTER, evidence, action, instance, device.function)


def called_by(found: Located | None) -> tuple[Evidence, ...]:
    """Evidence of the user's functions that call the named one; empty without callers."""
    if found is None or not found.callers:
        return ()
    return (Evidence("stacks", "called by", " → ".join((*found.callers, found.function.name)), None, ""),)


def of_function(case: Case, kind: str, state: str, says: str) -> Hypothesis | None:
    """Return the hypothesis on a Python function that uses the device where its peers do not.

    Such use is no fault of the device. None where the peers use it there too, or no function is
    odd. A sample meets few short calls with a stack: a quarter of the excess is then taken to
    represent all of it. `state`: what the function does, in words. `says`: the sentence for readers.
    """
    found, device = case.profiles.locate(case.rank, case.beside, (kind,), 0.0, sampled=True), device_time(case, kind)
    if (
        found is None
        or device is None
        or found.excess_s < limits.LARGE_SHARE * device.excess_s
        or found.function.kind != "python"
        or found.spread
        or found.peers_s >= limits.NOTHING * found.own_s
    ):
        return None
    function = found.function
    met_s = sum(each.own_s for each in device.functions if each.caller or each.file)
    times = device.own_s / met_s if met_s > 0 else 1.0
    own_s, peers_s, lost_s = times * found.own_s, times * found.peers_s, times * found.excess_s
    unmet = round(100 * (1 - 1 / times))
    short = f", with calls too short for a stack ({unmet} % of it)" if unmet else ""
    evidence = [Evidence("stacks", f"time in {function.name}{short}", own_s, peers_s, "s/step", len(case.peers))]
    evidence += called_by(found)
    evidence.append(Evidence("stacks", "what it does there", state, None, ""))
    action = f"See why {function.place} {state} on this rank: its peers do not do so there."
    charged = case.charge("python", "blocking-call", lost_s, SEEN, tuple(evidence), action, function=function)
    return replace(charged, says=says)


def beside(case: Case, name: str, lowest: bool = False, instance: str = "") -> Beside | None:
    """Compare the rank's highest (or lowest) counter of this name with the median of all its peers' counters.

    None if the rank has none; `expected` is NaN without peers'. `instance` selects among the rank's only.
    """
    mine = [c for c in case.counters(name) if not instance or c.instance == instance]
    if not mine:
        return None
    worst = min(mine, key=lambda c: c.value if lowest else -c.value)
    expected, count = peers_value(case, name)
    return Beside(worst, worst.value, expected, count)


def total_beside(case: Case, name: str, instance: str) -> float:
    """Return the sum of the rank's counters on `instance`, less the median of its peers' sums over all theirs."""
    mine = sum(c.value for c in case.counters(name) if c.instance == instance)
    peers = sample(case.peers)
    counters = case.fleet.counters
    rows = counters.rows_of(name, peers)
    place = np.searchsorted(peers, counters.table.rank[rows])
    sums = np.bincount(place, weights=counters.table.value[rows], minlength=len(peers))
    return mine - (median(sums) if len(sums) else 0.0)


def peers_value(case: Case, name: str) -> tuple[float, int]:
    """Return (median of the peers' counters of this name, number of these counters); (NaN, 0) without any."""
    counters = case.fleet.counters
    values = counters.table.value[counters.rows_of(name, sample(case.peers))]
    return (median(values), len(values)) if len(values) else (float("nan"), 0)


def grown(case: Case, name: str, least: float) -> Beside | None:
    """Compare the rank's highest counter of events with its peers'; None below `least`, or if theirs moved alike.

    It must be limits.OTHER_KIND times the peers' median, where they have any.
    """
    found = beside(case, name)
    if found is None or found.value < least:
        return None
    if found.known and found.value < limits.OTHER_KIND * found.expected:
        return None
    return found
