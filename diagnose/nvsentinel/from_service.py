"""Health events of the service: one for each alarm, verdict and hardware event of this host. Pure.

What ends is sent as healthy with the check and entities it was sent with; `Open` remembers these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rankscope.diagnose.nvsentinel.health_event import (
    NONE,
    HealthEvent,
    action_of,
    check_name,
    component_class,
    entities_of,
    unix_of,
)
from rankscope.diagnose.severity import CRITICAL, OK
from rankscope.diagnose.text import clean
from rankscope.diagnose.xids import number_of

_XID = re.compile(r"Xid (\d{1,9})")
_OPEN_MOST = 256


@dataclass(slots=True)
class Open:
    """Remembers events that are not over yet, by what their end has in common with them (`_key`)."""

    _of: dict[tuple[str, str], list[HealthEvent]] = field(default_factory=dict)

    def events(self, content: Mapping[str, Any], state: str, node: str) -> tuple[HealthEvent, ...]:
        """Return the health events of one event of the service (rankscope.watch/1); `state`: its severity.

        Of an event that ends a trouble: healthy ones for all that were sent for it, maybe none. `node`: this node's
        name.
        """
        at = unix_of(content.get("time"))
        key = _key(content)
        if content.get("kind") == "over" or (content.get("kind") == "hardware" and state == OK):
            ended = self._of.pop(key, [])
            return tuple(_healed(one, str(content["words"]), at) for one in ended)
        event = _event(content, state, node, at)
        same = self._of.setdefault(key, [])
        same[:] = [one for one in same if (one.check, one.entities) != (event.check, event.entities)] + [event]
        while len(self._of) > _OPEN_MOST:
            self._of.pop(next(iter(self._of)))
        return (event,)


def _key(content: Mapping[str, Any]) -> tuple[str, str]:
    """Return what begin and end of a trouble have in common: the hardware, or job and kind of alarm."""
    if content.get("kind") == "hardware":
        parts = (str(content.get(name) or "") for name in ("component", "cause", "instance"))
        return "hardware", " ".join(parts).strip() or str(content["words"])
    return str(content.get("job") or ""), str(content.get("alarm") or "")


def _event(content: Mapping[str, Any], state: str, node: str, at: float) -> HealthEvent:
    """Make the health event of a trouble that begins or goes on; `at`: Unix time."""
    component, cause, instance = _subject(content)
    identifier = f"{component}/{cause}"
    # Fatal is what a hook would drain this host for, and nothing else.
    fatal = bool(content.get("drain_reason")) and content.get("drain_host") == content.get("host")
    number = _number(content, component, cause)
    metadata = {"kind": str(content["kind"]), "state": state, "job": str(content.get("job") or "")}
    if content.get("ranks"):
        metadata["ranks"] = clean(",".join(map(str, content["ranks"])), 200)
    return HealthEvent(
        node, component_class(component), check_name(identifier), clean(str(content["words"]), 900), at,
        fatal=fatal, action=action_of(identifier, CRITICAL, number) if fatal else NONE,
        codes=(identifier if number is None else str(number),), entities=entities_of(component, instance),
        metadata={name: value for name, value in metadata.items() if value},
    )  # fmt: skip


def _subject(content: Mapping[str, Any]) -> tuple[str, str, str]:
    """Component, cause and instance that an event is about; ('job', kind of alarm, '') where none is named."""
    if content.get("component"):
        return str(content["component"]), str(content.get("cause") or ""), str(content.get("instance") or "")
    suspects = (content.get("verdict") or {}).get("suspects") or ()
    if suspects:
        first = suspects[0]
        here = not first.get("host") or first["host"] == content.get("host")
        return str(first["component"]), str(first["cause"]), str(first.get("instance") or "") if here else ""
    if content.get("kind") == "hardware":
        return ("gpu", "xid", "") if _XID.search(str(content["words"])) else ("host", "hardware", "")
    return "job", str(content.get("alarm") or content["kind"]), ""


def _number(content: Mapping[str, Any], component: str, cause: str) -> int | None:
    """Xid that an event names, None without one."""
    if (component, cause) != ("gpu", "xid"):
        return None
    texts = [str(content["words"])]
    suspects = (content.get("verdict") or {}).get("suspects") or ()
    texts += [str(one.get("measure", "")) for one in (suspects[0].get("evidence") or ())] if suspects else []
    return next((number_of(found[1]) for text in texts if (found := _XID.search(text))), None)


def _healed(event: HealthEvent, words: str, at: float) -> HealthEvent:
    """Make the event that ends another one, with its check and entities; `words`: message, `at`: Unix time."""
    return replace(
        event, healthy=True, fatal=False, action=NONE, codes=(), message=clean(words, 900), at=at,
        metadata={**event.metadata, "state": OK},
    )  # fmt: skip
