"""Health events of a sweep: what differs from what NVSentinel was told before. Pure.

A finding is sent when it turns bad, changes between warning and critical, or is over. What a sweep
could not see keeps its earlier state.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from rankscope.diagnose.nvsentinel.health_event import (
    HealthEvent,
    action_of,
    check_name,
    component_class,
    entities_of,
    unix_of,
)
from rankscope.diagnose.severity import CRITICAL, UNKNOWN, WARNING, weight
from rankscope.diagnose.text import clean
from rankscope.diagnose.xids import number_of

Delivered = Mapping[tuple[str, str], str]  # (check, instance): warning or critical
_BAD = (WARNING, CRITICAL)
MOST = 200  # events of one call; what is more waits for the next sweep


def changes(sweep: Mapping[str, Any], delivered: Delivered, ran: Collection[str], node: str) -> tuple[HealthEvent, ...]:
    """Events for what differs between a sweep (rankscope.sweep/1) and what was delivered, at most `MOST`, worst first.

    `ran`: ids of the checks that ran; others keep their state, as do those that could not see or do not apply.
    `node`: this node's name.
    """
    at = unix_of(sweep.get("time"))
    worst: dict[tuple[str, str], Mapping[str, Any]] = {}
    blind = set()
    for one in sweep["findings"]:
        key = (one["id"], one["instance"])
        if key not in worst or weight(one["state"]) > weight(worst[key]["state"]):
            worst[key] = one
        if one["state"] == UNKNOWN:
            blind.add(one["id"])
    # Worst first: of too many the others wait.
    bad = sorted(
        (key for key, one in worst.items() if one["state"] in _BAD), key=lambda key: -weight(worst[key]["state"])
    )
    events = [_bad(worst[key], node, at) for key in bad if delivered.get(key) != worst[key]["state"]]
    absent = {one["id"] for one in sweep["summary"].get("not_applicable", ())}
    events += [
        _over(key, node, at)
        for key in delivered
        if key not in bad and key[0] in ran and key[0] not in blind and key[0] not in absent
    ]
    return tuple(events[:MOST])


def after(delivered: Delivered, events: Collection[HealthEvent]) -> dict[tuple[str, str], str]:
    """Return what is delivered once these events are."""
    now = dict(delivered)
    for one in events:
        key = one.metadata["check"], one.metadata["instance"]
        if one.healthy:
            now.pop(key, None)
        else:
            now[key] = one.metadata["state"]
    return now


def _bad(finding: Mapping[str, Any], node: str, at: float) -> HealthEvent:
    """Make the event of a finding that is a warning or critical; `at`: Unix time."""
    identifier, state = finding["id"], finding["state"]
    number = _xid(finding) if identifier == "gpu.xid" else None
    family = identifier.partition(".")[0]
    value = "" if finding["value"] is None else f"{finding['value']} {finding['unit']}".strip()
    metadata = {"check": identifier, "instance": finding["instance"], "state": state, "value": value}
    message = "; ".join(str(finding[name]) for name in ("why", "action") if finding[name])
    return HealthEvent(
        node, component_class(family), check_name(identifier), clean(message, 900), at,
        fatal=state == CRITICAL, action=action_of(identifier, state, number),
        codes=(identifier if number is None else str(number),), entities=entities_of(family, finding["instance"]),
        metadata=metadata,
    )  # fmt: skip


def _over(key: tuple[str, str], node: str, at: float) -> HealthEvent:
    """Make the healthy event that ends a delivered finding; `key`: (check, instance), `at`: Unix time."""
    identifier, instance = key
    family = identifier.partition(".")[0]
    return HealthEvent(
        node, component_class(family), check_name(identifier), "no longer so", at, healthy=True,
        entities=entities_of(family, instance), metadata={"check": identifier, "instance": instance, "state": "ok"},
    )  # fmt: skip


def _xid(finding: Mapping[str, Any]) -> int | None:
    """Number of the Xid that a finding of gpu.xid is about, None if it names none."""
    found = re.match(r"Xid (\d{1,9}):", str(finding["why"]))
    return number_of(found[1]) if found else None
