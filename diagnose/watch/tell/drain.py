"""Why a host should be drained, in one form for whoever drains: `rankscope: COMPONENT/CAUSE INSTANCE` (scripts/deploy/README.md). Pure.

Only what no restart of a job mends and what hardware itself told: never a hang, a slow function, a slow device, or an Xid that user
code causes.
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
_XID = re.compile(r"Xid (\d{1,9}) on ")  # how hypotheses begin what they say of one


def reason_of(component: str, cause: str, instance: str = "") -> str:
    """'rankscope: nic/down mlx5_3'."""
    return clean(f"rankscope: {component}/{cause} {instance}".rstrip(), 200)


def of_verdict(verdict: Mapping[str, Any]) -> tuple[str, str]:
    """The host that the first suspect of a verdict wants drained, and the reason; '' and '' where it is nothing of the kind."""
    if not verdict["suspects"]:
        return "", ""
    first = verdict["suspects"][0]
    if (first["component"], first["cause"]) not in _BROKEN or not first.get("host"):
        return "", ""
    if first["cause"] == "xid" and _of_application(first):
        return "", ""
    return clean(str(first["host"]), 100), reason_of(first["component"], first["cause"], first["instance"] or "")


def _of_application(suspect: Mapping[str, Any]) -> bool:
    """Whether a suspect is named for nothing but Xids that user code causes: whoever may use a GPU could have its host drained."""
    told = [_XID.match(str(each.get("measure", ""))) for each in suspect.get("evidence") or ()]
    numbers = [int(found[1]) for found in told if found]
    return bool(numbers) and all(map(by_application, numbers))
