"""Phrases of a verdict that terminal and browser share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.verdict.as_json import timestamp
from rankscope.diagnose.infer.verdict.contract import (
    GUESSED,
    LIKELY,
    LIMIT,
    WITHOUT,
    WITNESSED,
    Evidence,
    Suspect,
    Verdict,
)
from rankscope.diagnose.infer.verdict.phrases import HOST, WHOLE, count_of, readable
from rankscope.diagnose.infer.verdict.reasons import has_counter
from rankscope.diagnose.text import clean, rate, seconds, short

WORDS = budgets.TEXT_MOST  # characters of textual evidence: two files and a function
_SURE = {
    WITNESSED: "a counter or the kernel shows it",
    LIKELY: "it shows in what the ranks do; no counter tells why",
    GUESSED: "it fits, and so would other causes",
}
_COUNTED = "a counter fits; its cost is estimated from the steps"  # likely, by counters
_BESIDE = {LIMIT: "limit", WITHOUT: "without it"}
_ONE = re.compile(r"^(\w+)s$")  # a unit of several: events, links, steps


def sureness(suspect: Suspect, verbose: bool = False) -> str:
    """Say how sure a suspect is and since when: 'likely: it shows in …; it began at 2026-01-01T00:00:00Z'.

    `verbose`: with the number.
    """
    number = f" ({100 * suspect.confidence:.0f} %)" if verbose else ""
    since = f"; it began at {moment(suspect.since)}" if suspect.since is not None else ""
    why = _COUNTED if suspect.sure == LIKELY and has_counter(suspect) else _SURE[suspect.sure]
    return f"{suspect.sure}{number}: {why}{since}"


def evidence_line(evidence: Evidence) -> str:
    """Format evidence as one line, 'time in augment: 0.1 s/step; 3 peers 4 ms'."""
    text = f"{readable(clean(evidence.measure))}: {readable(measure(evidence.value, evidence.unit))}"
    expected = expected_of(evidence)
    return f"{text}; {expected}" if expected else text


def expected_of(evidence: Evidence) -> str:
    """Format what a value is compared with: '3 peers 4 ms', 'limit 4.6', 'without it 0.2 s'; '' if nothing.

    Nothing is shown where 0 is expected without peers.
    """
    if evidence.expected is None or (evidence.expected == 0 and not evidence.peers):
        return ""
    expected = measure(evidence.expected, "s" if evidence.unit == "s/step" else evidence.unit)
    if evidence.role in _BESIDE:
        return f"{_BESIDE[evidence.role]} {expected}"
    if evidence.peers > 1:
        return f"{evidence.peers} peers {expected}"
    return f"its peer {expected}" if evidence.peers == 1 else f"expected {expected}"


def measure(value: float | str, unit: str) -> str:
    """Format a value with its unit for people; texts are cleaned and cut."""
    if isinstance(value, str):
        return clean(value, WORDS)
    if unit in ("s", "s/step"):
        return seconds(value) + unit[1:]
    if unit.partition(" ")[0] == "share":
        return f"{100 * value:.3g} %{clean(unit, 30).removeprefix('share')}"
    if unit == "bytes/s":
        return rate(value)
    if value == 1 and (several := _ONE.match(unit)):
        return f"1 {clean(several[1], 30)}"
    number = f"{value:.3g}" if not 1000 <= abs(value) < 1e15 else f"{float(f'{value:.3g}'):,.0f}"  # 6.67e+04: 66,700
    return f"{number} {clean(unit, 30)}".rstrip()


def context(verdict: Verdict, verbose: bool = False) -> str:
    """Format job, ranks, hosts, step times and window time as one line."""
    steps = verdict.step_seconds
    where = f" on {_hosts(verdict.hosts)}" if verdict.hosts else ""
    where += f" (containers of {_hosts(verdict.machines)})" if where and verdict.machines else ""
    job = short(verdict.title or verdict.job, WHOLE if verbose else 120)
    if verbose and verdict.title:
        job += f" [{clean(verdict.job, 200)}]"
    parts = [f"{job}, {count_of(verdict)}{where}"]
    if steps.p50 is not None:
        p99 = f", p99 {seconds(steps.p99)}" if steps.p99 is not None else ""
        base = f", baseline {seconds(steps.baseline_p50)}" if steps.baseline_p50 is not None else ""
        parts.append(f"; {verdict.steps} steps, p50 {seconds(steps.p50)}{p99}{base}")
    if math.isfinite(verdict.start):
        parts.append(f"; window {moment(verdict.start)} + {verdict.end - verdict.start:.0f} s")
    return "".join(parts)


def moment(unix: float) -> str:
    """Format Unix time in UTC to the second; '?' for an invalid date."""
    return (timestamp(unix) or "?").replace(".000Z", "Z")


def _hosts(hosts: Iterable[str]) -> str:
    """Format names of hosts, at most four of them."""
    names = [short(host, HOST) for host in hosts]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
