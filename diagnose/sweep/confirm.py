"""Confirm critical findings by a second pass some seconds later, before a host is drained.

Links retrain and drivers recover from a reset within seconds; a single odd answer is not repeated.
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
    """Repeat the checks with critical findings; downgrade what is not critical twice to a warning.

    Both passes compare counters with the same earlier sweep, so new errors show in both. A finding
    that could not be checked again becomes a warning, and its counters keep their old values, so
    that the next sweep sees the growth.
    """
    critical = _in_state(first, CRITICAL)
    if not critical:
        return first
    time.sleep(config.confirm_s)
    doubted = {identifier for identifier, _ in critical}
    second = sweep([check for check in checks if check.id in doubted], config, earlier, root)
    blind = _in_state(second, UNKNOWN) | {
        (identifier, "") for identifier, _ in second.skipped
    }  # such as an unloaded driver
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
    """(check, key) of the counters that differ from the earlier sweep in value or boot."""
    return {
        (identifier, key)
        for identifier, key, value in of.counters
        if (then := earlier.counters.get((identifier, key))) and (then.value, then.boot) != (value, of.boot)
    }


def _in_state(of: Sweep, state: str) -> set[tuple[str, str]]:
    """(check, instance) of the findings in this state."""
    return {(finding.id, finding.instance) for finding in of.findings if finding.state == state}


def _judged(finding: Finding, once: str) -> Finding:
    """Turn a critical finding into a warning if `once` says why it is in doubt; return others as they are."""
    if finding.state != CRITICAL or not once:
        return finding
    return replace(finding, state=WARNING, why=f"{finding.why} ({once})")
