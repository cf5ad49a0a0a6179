"""Repeat findings by growth as warnings for the check's `hours`.

A counter that grew shows in one sweep; the next one sees no growth and says ok. An alert that waits
15 minutes could never fire, and whoever looks an hour later would see nothing. So such findings (a
check marks them with `lasts`) are stored in the state folder, and later sweeps of the same boot
report them again. Critical ones are repeated as warnings: nothing new happened, and their drain is
the business of `owed.py`. The history stores what each sweep itself found. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from rankscope.diagnose.severity import CRITICAL, OK, WARNING
from rankscope.diagnose.sweep.engine import Sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.text import minutes
from rankscope.probes.host.fair import group_by, interleave

ID = "warning.lasting"  # key among the stored texts; no check has this id
HOURS = "hours"  # the setting of a check that says how long
MOST_LASTING = 256
_TEXT_MOST = 400
_TEXTS = ("id", "instance", "read", "value", "why", "action")


@dataclass(frozen=True, slots=True)
class Lasting:
    """A finding by growth that later sweeps repeat.

    `value`: what had grown, with its unit; `since_s`: Unix time of the first such finding;
    `uptime_s`, `boot`: when the last one was made.
    """

    id: str
    instance: str
    read: str
    value: str
    why: str
    action: str
    since_s: float
    uptime_s: float
    boot: str

    @property
    def key(self) -> str:
        """Key of the entry in the store: check and instance."""
        return f"{self.id} {self.instance}"


def lasting(words: Mapping[tuple[str, str], str], done: Sweep, hours: Callable[[str], float]) -> tuple[Lasting, ...]:
    """Collect the entries to store after a sweep: its own, and earlier ones that have not expired.

    Never raises. `words`: stored by earlier sweeps; `hours`: how long findings of a check last.
    """
    earlier = {one.key: one for one in _earlier(words, done, hours)}
    found: dict[str, Lasting] = {}
    for finding in done.findings:
        if finding.lasts and finding.state in (WARNING, CRITICAL) and hours(finding.id) > 0:
            one = _entry(finding, done)
            before = earlier.get(one.key)
            found[one.key] = one if before is None else replace(one, since_s=min(one.since_s, before.since_s))
    for key, one in earlier.items():
        found.setdefault(key, one)
    return tuple(interleave(group_by(found.values(), lambda one: one.id), MOST_LASTING))


def as_words(entries: Iterable[Lasting]) -> tuple[tuple[str, str, str], ...]:
    """Encode the entries for the store, as (id, key, text)."""
    return tuple(
        (ID, one.key, json.dumps([one.uptime_s, one.boot, one.since_s, *(getattr(one, name) for name in _TEXTS)]))
        for one in entries
    )


def repeated(findings: Iterable[Finding], entries: Iterable[Lasting], done: Sweep, hours: Callable[[str], float]) -> (
    tuple[Finding, ...]
):  # fmt: skip
    """Add the entries to a sweep's findings as warnings.

    One that the sweep found again is not repeated; an ok finding of the same thing becomes the
    warning, and keeps what was read now.
    """
    found = list(findings)
    bad = {(one.id, one.instance) for one in found if one.state in (WARNING, CRITICAL)}
    fine = {(one.id, one.instance): place for place, one in enumerate(found) if one.state == OK}
    for entry in entries:
        key = (entry.id, entry.instance)
        if key in bad:
            continue
        place = fine.get(key)
        blank = Finding(entry.id, OK, entry.instance, entry.read, None, "", "", "", "")
        warning = replace(
            blank if place is None else found[place], state=WARNING, expected=f"none for {hours(entry.id):g} h",
            why=f"{entry.value} {minutes(done.uptime_s - entry.uptime_s)} ago: {entry.why}", action=entry.action,
            since_s=entry.since_s,
        )  # fmt: skip
        if place is None:
            found.append(warning)
        else:
            found[place] = warning
    return tuple(found)


def _entry(finding: Finding, done: Sweep) -> Lasting:
    """Make the entry of a finding by growth in this sweep."""
    value = f"{finding.value:.10g}" if isinstance(finding.value, (int, float)) else str(finding.value)
    return Lasting(
        finding.id, finding.instance, finding.read[:_TEXT_MOST], f"{value} {finding.unit}".strip()[:_TEXT_MOST],
        finding.why[:_TEXT_MOST], finding.action[:_TEXT_MOST],
        done.time_s if finding.since_s is None else finding.since_s, done.uptime_s, done.boot,
    )  # fmt: skip


def _earlier(words: Mapping[tuple[str, str], str], done: Sweep, hours: Callable[[str], float]) -> Iterator[Lasting]:
    """Yield the stored entries that were made in this boot and have not expired."""
    for (identifier, _), word in words.items():
        one = _parse(word) if identifier == ID else None
        if one is not None and one.boot == done.boot and 0 <= done.uptime_s - one.uptime_s < hours(one.id) * 3600:
            yield one


def _parse(word: str) -> Lasting | None:
    """Decode a stored entry; None if it is invalid."""
    try:
        uptime_s, boot, since_s, *texts = json.loads(word)
        identifier, instance, read, value, why, action = map(str, texts)
        return Lasting(
            identifier, instance, read, value, why, action, float(since_s), float(uptime_s), str(boot)
        )  # fmt: skip
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
