"""The second look: what is critical must be so twice, some seconds apart, before anybody is drained or woken.

Links train again and drivers come back from a reset within seconds; a single odd answer of a driver is none the second time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rankscope.diagnose.severity import CRITICAL, UNKNOWN, WARNING
from rankscope.diagnose.sweep.config import Config
from rankscope.diagnose.sweep.context import Earlier
from rankscope.diagnose.sweep.engine import Sweep, sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.registry import Check
from rankscope.probes.host.procfs import ROOT


def confirmed(first: Sweep, checks: Sequence[Check], config: Config, earlier: Earlier, root: Path = ROOT) -> Sweep:
    """The sweep, with what was critical only once as a warning. Checks that found nothing critical are not asked again.

    Counters are held against the same earlier sweep as at the first look: an error that came since is there both times. What could not be
    looked at again is no critical finding and no false alarm: its counters stay as they were, for the next sweep to see them grow.
    """
    critical = _in_state(first, CRITICAL)
    if not critical:
        return first
    time.sleep(config.confirm_s)
    doubted = {identifier for identifier, _ in critical}
    second = sweep([check for check in checks if check.id in doubted], config, earlier, root)
    blind = _in_state(second, UNKNOWN) | {
        (identifier, "") for identifier, _ in second.skipped
    }  # a driver that went away, say
    once = critical - _in_state(second, CRITICAL)
    read = {counter[:2] for counter in second.counters}
    unread = {key for key in _grown(first, earlier) - read if key[0] in {one[0] for one in once}}
    in_part = {identifier for identifier, _ in unread}
    unseen = {key for key in once if key in blind or (key[0], "") in blind or key[0] in in_part}
    words = {
        key: f"{'could not be looked at again' if key in unseen else 'not so'} {config.confirm_s:g} s later"
        for key in once
    }
    in_whole = {identifier for identifier, _ in unseen if (identifier, "") in blind or identifier not in in_part}
    unjudged = {one[:2] for one in first.counters if one[0] in in_whole or one[:2] in unread}
    return replace(
        first,
        findings=tuple(_judged(finding, words.get((finding.id, finding.instance), "")) for finding in first.findings),
        counters=tuple(counter for counter in first.counters if counter[:2] not in unjudged),
        unread=(*first.unread, *sorted(unjudged)),
    )


def _grown(of: Sweep, earlier: Earlier) -> set[tuple[str, str]]:
    """(check, key) of the counters that are not what they were."""
    return {
        (identifier, key)
        for identifier, key, value in of.counters
        if (then := earlier.counters.get((identifier, key))) and (then.value, then.boot) != (value, of.boot)
    }


def _in_state(of: Sweep, state: str) -> set[tuple[str, str]]:
    return {(finding.id, finding.instance) for finding in of.findings if finding.state == state}


def _judged(finding: Finding, once: str) -> Finding:
    if finding.state != CRITICAL or not once:
        return finding
    return replace(finding, state=WARNING, why=f"{finding.why} ({once})")
