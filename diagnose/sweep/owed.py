"""Critical findings still to be delivered to the hook: no later sweep repeats them, and no hook succeeded yet.

A counted error shows in one sweep; the next sees no growth. If its hook fails (three nodes are drained already, the
controller is down) or there was none (a manual sweep), the host would never be drained. So the finding is stored in
the state folder and passed to the hook of the next sweep that has one. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace

from rankscope.diagnose import budgets
from rankscope.diagnose.severity import CRITICAL
from rankscope.diagnose.sweep.engine import Sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.probes.host.fair import group_by, interleave

ID = "hook.owed"  # key among the stored texts; no check has this id
# Checks with critical findings by growth. All others (a port that is down) repeat while the problem
# lasts.
OF_GROWTH = frozenset(("cpu.mce", "gpu.ecc", "ib.flap", "mem.ecc", "pcie.aer"))
# One alone drains the host: more only lengthen the reason.
MOST_OWED = 16
# Valid in one boot, for a day: by then the host was repaired, or somebody will read the sweep
# before using it.
OWED_S = budgets.DAY_S
_TEXTS = ("id", "instance", "read", "unit", "expected", "why", "action")


@dataclass(frozen=True, slots=True)
class Owed:
    """A critical finding, with the boot and the seconds since boot when it was made."""

    finding: Finding
    uptime_s: float
    boot: str

    @property
    def key(self) -> str:
        """Key of the entry in the store: check and instance."""
        return f"{self.finding.id} {self.finding.instance}"


def owed(words: Mapping[tuple[str, str], str], done: Sweep) -> tuple[Owed, ...]:
    """Entries to deliver after a sweep: its own critical findings by growth, then valid ones of earlier sweeps.

    Never raises. `words`: stored by earlier sweeps.
    """
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
    """Encode the entries for the store, as (id, key, text)."""
    return tuple((ID, one.key, json.dumps([one.uptime_s, one.boot, asdict(one.finding)])) for one in entries)


def again(entries: Iterable[Owed], done: Sweep) -> tuple[Finding, ...]:
    """Findings of these entries that this sweep did not make itself, for the hook."""
    now = {(one.id, one.instance) for one in done.findings if one.state == CRITICAL}
    findings = (one.finding for one in entries)
    return tuple(
        replace(one, why=f"{one.why} (found by an earlier sweep, no hook has acted on it)")
        for one in findings
        if (one.id, one.instance) not in now
    )


def _earlier(words: Mapping[tuple[str, str], str], done: Sweep) -> Iterable[Owed]:
    """Yield the stored entries that were made in this boot, at most a day ago."""
    for (identifier, _), word in words.items():
        one = _parse(word) if identifier == ID else None
        if one is not None and one.boot == done.boot and 0 <= done.uptime_s - one.uptime_s <= OWED_S:
            yield one


def _parse(word: str) -> Owed | None:
    """Decode a stored entry; None if it is invalid."""
    try:
        uptime_s, boot, told = json.loads(word)
        value = told["value"] if isinstance(told["value"], (float, str)) else None
        identifier, instance, read, unit, expected, why, action = (str(told[name]) for name in _TEXTS)
        since_s = float(told["since_s"])
        finding = Finding(identifier, CRITICAL, instance, read, value, unit, expected, why, action, since_s)
        return Owed(finding, float(uptime_s), str(boot))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
