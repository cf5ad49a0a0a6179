"""What the hook is owed: critical findings that no later sweep makes again, and that no hook ended well for yet.

An error that was counted is there at one sweep: the next one sees no growth. If its hook fails then (three nodes are drained already, the
controller is away), or there is none (a sweep by hand), the host would never be drained. So it is kept among the words of the state
folder, and told to the hook with the next sweep that has one. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from rankscope.diagnose import budgets
from rankscope.diagnose.severity import CRITICAL
from rankscope.diagnose.sweep.engine import Sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.probes.fair import group_by, interleave

ID = "hook.owed"  # among the words of checks; no check is called so
# What is critical by growth. All else (a port that is down) is found again while it is so, and owed to nobody when it is so no more.
OF_GROWTH = frozenset(("cpu.mce", "gpu.ecc", "ib.flap", "mem.ecc", "pcie.aer"))
# One alone drains the host: more make the reason longer, nothing else.
MOST_OWED = 16
# Of one boot and of a day: after that somebody has repaired the host, or will look at what the sweep said before they trust it.
OWED_S = budgets.DAY_S
_TEXTS = ("id", "instance", "read", "unit", "expected", "why", "action")


@dataclass(frozen=True, slots=True)
class Owed:
    """A critical finding, and when it was made (seconds since boot, and of which boot)."""

    finding: Finding
    uptime_s: float
    boot: str

    @property
    def key(self) -> str:
        return f"{self.finding.id} {self.finding.instance}"


def owed(words: Mapping[tuple[str, str], str], done: Sweep) -> tuple[Owed, ...]:
    """What is owed after a sweep, its own findings first; `words` are those of earlier sweeps. Never raises."""
    fresh = (
        Owed(replace(one, since_s=done.time_s if one.since_s is None else one.since_s), done.uptime_s, done.boot)
        for one in done.findings
        if one.state == CRITICAL and one.id in OF_GROWTH
    )
    found: dict[str, Owed] = {}
    for one in (*fresh, *_earlier(words, done)):
        found.setdefault(one.key, one)
    return tuple(interleave(group_by(found.values(), lambda one: one.finding.id), MOST_OWED))


def as_words(entries: Iterable[Owed]) -> tuple[tuple[str, str, str], ...]:
    """As the store keeps them."""
    return tuple((ID, one.key, json.dumps([one.uptime_s, one.boot, asdict(one.finding)])) for one in entries)


def again(entries: Iterable[Owed], done: Sweep) -> tuple[Finding, ...]:
    """What of it this sweep did not find itself, for the hook."""
    now = {(one.id, one.instance) for one in done.findings if one.state == CRITICAL}
    findings = (one.finding for one in entries)
    return tuple(
        replace(one, why=f"{one.why} (found by an earlier sweep, no hook has acted on it)")
        for one in findings
        if (one.id, one.instance) not in now
    )


def _earlier(words: Mapping[tuple[str, str], str], done: Sweep) -> Iterable[Owed]:
    for (identifier, _), word in words.items():
        one = _parse(word) if identifier == ID else None
        if one is not None and one.boot == done.boot and 0 <= done.uptime_s - one.uptime_s <= OWED_S:
            yield one


def _parse(word: str) -> Owed | None:
    """None for a word that is no entry of ours."""
    try:
        uptime_s, boot, told = json.loads(word)
        value = told["value"] if isinstance(told["value"], (float, str)) else None
        identifier, instance, read, unit, expected, why, action = (str(told[name]) for name in _TEXTS)
        since_s = float(told["since_s"])
        finding = Finding(identifier, CRITICAL, instance, read, value, unit, expected, why, action, since_s)
        return Owed(finding, float(uptime_s), str(boot))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
