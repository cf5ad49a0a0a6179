"""Detect drift from the history: error rates that doubled and temperatures that climbed.

The history stores changes, so values are weighted by their duration. The last day is compared with
all before it (three days at least). Links that negotiated down need no history: pcie.link,
net.speed and ib.port remember the best value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rankscope.diagnose import budgets
from rankscope.diagnose.severity import WARNING
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.store import Point

BASELINE_S = budgets.DAY_S * 3
FACTOR, LEAST_PER_HOUR, CLIMB_C = 2.0, 1.0, 8.0


def trends(points: Iterable[Point], now_s: float) -> tuple[Finding, ...]:
    """Findings `trend.rate` and `trend.temperature` from the history, warnings only. Never raises."""
    series: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        if point.value is not None and (point.unit.endswith("/h") or point.unit == "°C"):
            series.setdefault((point.id, point.instance), []).append(point)
    found = (_drift(entries, now_s) for entries in series.values())
    return tuple(finding for finding in found if finding is not None)


def _drift(entries: Sequence[Point], now_s: float) -> Finding | None:
    """A warning if one series of rates or temperatures drifted in the last day, else None."""
    began_s = entries[0].time_s
    if now_s - began_s < budgets.DAY_S + BASELINE_S:
        return None
    before = mean_between(entries, began_s, now_s - budgets.DAY_S)
    recent = mean_between(entries, now_s - budgets.DAY_S, now_s)
    last = entries[-1]

    def warning(kind: str, usual: str, why: str, action: str) -> Finding:
        """Make the warning; `kind`: its id, `usual`: the mean before, in words."""
        name = f"{last.id} {last.instance}".strip()
        expected = f"about {usual}, as in the days before"
        return Finding(kind, WARNING, name, "history", round(recent, 1), last.unit, expected, why, action)

    if last.unit == "°C":
        if recent - before < CLIMB_C:
            return None
        why = f"it climbed by {recent - before:.0f} °C"
        return warning("trend.temperature", f"{before:.0f} °C", why, "Check fans, filters and inlet temperature.")
    if recent < LEAST_PER_HOUR or recent < FACTOR * before:
        return None
    action = f"See what {last.id} says; plan a repair before it fails."
    return warning("trend.rate", f"{before:.1f} {last.unit}", "the rate at least doubled within a day", action)


def mean_between(points: Sequence[Point], start_s: float, end_s: float) -> float:
    """Mean of a stepwise constant series over an interval of Unix times.

    Points are sorted; the first is not after the start.
    """
    area, total = 0.0, 0.0
    for index, point in enumerate(points):
        following = points[index + 1].time_s if index + 1 < len(points) else end_s
        seconds = min(following, end_s) - max(point.time_s, start_s)
        if seconds > 0:
            area += (point.value or 0.0) * seconds
            total += seconds
    return area / total if total else 0.0
