"""Suspects of a job as labels and values of metrics: who, where, what, and what it costs. Pure.

Every label is from a fixed list, or cleaned and cut: a verdict may come from another host, and names
of devices and hosts from whoever set them. Neither functions nor files are labels.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rankscope.diagnose.infer.verdict.contract import COMPONENTS, DEVICES
from rankscope.diagnose.text import clean, rank_spans

SUSPECTS_MOST = 4  # of a job at a time, most damaging first
_WITH_DEVICE = (*DEVICES, "network")
_SPANS_MOST, _HOST_MOST, _DEVICE_MOST = 4, 64, 48
_CAUSE = re.compile(r"[a-z][a-z0-9-]{0,39}")
STILL_STATUSES = ("hang", "dead")
_STATUSES = ("fault", "imbalance", "inefficient", *STILL_STATUSES)


@dataclass(frozen=True, slots=True)
class SuspectState:
    """One suspect of the last verdict.

    `status`: of the verdict, dead where a rank ended; `rank`: '3', '0-7', '' for none; `device`:
    'eth0', '' where the component has none; `lost_s`: seconds per step that mending it gives back,
    `lost_share`: of the step; both NaN in a standstill, which has no steps.
    """

    status: str
    component: str
    cause: str
    rank: str
    host: str
    device: str = ""
    lost_s: float = math.nan
    lost_share: float = math.nan

    @property
    def labels(self) -> dict[str, str]:
        return {
            "status": self.status, "component": self.component, "cause": self.cause, "rank": self.rank,
            "host": self.host, "device": self.device,
        }  # fmt: skip


def of_verdict(verdict: Mapping[str, Any]) -> tuple[SuspectState, ...]:
    """Read the most damaging suspects of a verdict's JSON; those with unknown words are left out."""
    found = (_of(str(verdict["status"]), one) for one in verdict["suspects"][:SUSPECTS_MOST])
    return tuple(one for one in found if one is not None)


def of_death(rank: int, host: str) -> SuspectState:
    """Describe a rank of this host that ended by failure."""
    return SuspectState("dead", "process", "exited", str(rank), clean(host, _HOST_MOST))


def _of(status: str, suspect: Mapping[str, Any]) -> SuspectState | None:
    """Read one suspect of a verdict's JSON; None if its status, component or cause is no known word.

    `status`: of the verdict.
    """
    component, cause = str(suspect["component"]), str(suspect["cause"])
    if status not in _STATUSES or component not in COMPONENTS or not _CAUSE.fullmatch(cause):
        return None
    if status == "hang" and (component, cause) == ("process", "exited"):
        status = "dead"
    names = [str(one["name"]) for one in suspect.get("instances") or ()] if component in _WITH_DEVICE else []
    ranks = tuple(int(rank) for rank in suspect["ranks"])
    still = status in STILL_STATUSES
    return SuspectState(
        status, component, cause, rank_spans(ranks, _SPANS_MOST) if ranks else "",
        clean(str(suspect.get("host") or ""), _HOST_MOST), clean(names[0], _DEVICE_MOST) if names else "",
        math.nan if still else _number(suspect.get("lost_seconds_per_step")),
        math.nan if still else _number(suspect.get("lost_percent")) / 100,
    )  # fmt: skip


def _number(value: object) -> float:
    """Return a number as float; NaN for any other value."""
    return float(value) if isinstance(value, (int, float)) else math.nan
