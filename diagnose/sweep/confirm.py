"""The second look: what is critical must be so twice, some seconds apart, before anybody is drained or woken.

Links train again and drivers come back from a reset within seconds; a single odd answer of a driver is none the second time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rankscope.diagnose.severity import CRITICAL, WARNING
from rankscope.diagnose.sweep.config import Config
from rankscope.diagnose.sweep.context import Earlier
from rankscope.diagnose.sweep.engine import Sweep, sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.registry import Check
from rankscope.probes.host.procfs import ROOT


def confirmed(first: Sweep, checks: Sequence[Check], config: Config, earlier: Earlier, root: Path = ROOT) -> Sweep:
    """The sweep, with what was critical only once as a warning. Checks that found nothing critical are not asked again.

    Counters are held against the same earlier sweep as at the first look: an error that came since is there both times.
    """
    doubted = {finding.id for finding in first.findings if finding.state == CRITICAL}
    if not doubted:
        return first
    time.sleep(config.confirm_s)
    second = sweep([check for check in checks if check.id in doubted], config, earlier, root)
    again = {(finding.id, finding.instance) for finding in second.findings if finding.state == CRITICAL}
    return replace(first, findings=tuple(_judged(finding, again, config.confirm_s) for finding in first.findings))


def _judged(finding: Finding, again: set[tuple[str, str]], seconds: float) -> Finding:
    if finding.state != CRITICAL or (finding.id, finding.instance) in again:
        return finding
    return replace(finding, state=WARNING, why=f"{finding.why} (not so {seconds:g} s later)")
