"""Reasons to drain a host, in one form for every scheduler: `rankscope: COMPONENT/CAUSE INSTANCE`. Pure.

For the schedulers' rules see scripts/deploy/README.md.

Only for faults that no restart of a job repairs and that the hardware itself reported: never a
hang, a slow function, a slow device, or an Xid that user code causes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rankscope.diagnose.text import clean
from rankscope.diagnose.xids import by_application

_BROKEN = frozenset(
    (
        ("gpu", "xid"), ("gpu", "lost"), ("gpu", "ecc-errors"), ("nvlink", "down"), ("pcie", "link-degraded"), ("nic", "down"),
        ("nic", "speed-degraded"),
    )
)  # fmt: skip
_XID = re.compile(r"Xid (\d{1,9}) on ")  # beginning of a hypothesis's text on an Xid


def reason_of(component: str, cause: str, instance: str = "") -> str:
    """Format a reason, e.g. 'rankscope: nic/down mlx5_3'."""
    return clean(f"rankscope: {component}/{cause} {instance}".rstrip(), 200)


def of_verdict(verdict: Mapping[str, Any]) -> tuple[str, str]:
    """Return the host to drain by a verdict's first suspect, and the reason; '' and '' if there is none."""
    if not verdict["suspects"]:
        return "", ""
    first = verdict["suspects"][0]
    if (first["component"], first["cause"]) not in _BROKEN or not first.get("host"):
        return "", ""
    if first["cause"] == "xid" and _of_application(first):
        return "", ""
    return clean(str(first["host"]), 100), reason_of(first["component"], first["cause"], first["instance"] or "")


def _of_application(suspect: Mapping[str, Any]) -> bool:
    """Tell whether a suspect's evidence names Xids, all of kinds that user code causes; other evidence is ignored.

    Such a suspect must drain no host: any user of a GPU could have its host drained.
    """
    told = [_XID.match(str(each.get("measure", ""))) for each in suspect.get("evidence") or ()]
    numbers = [int(found[1]) for found in told if found]
    return bool(numbers) and all(map(by_application, numbers))
