"""What one host leaves for the others of a job: that all look, from when and for how long. Pure.

alarm ─► the next slot that is far enough off ─► `trigger=<UTC of its begin>.json`, put only where there is none
every host asks, before each slot, for the trigger of this slot: one name, no listing
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rankscope.diagnose.text import clean
from rankscope.diagnose.watch.alarms import Alarm, AlarmKind

TRIGGER_SCHEMA = "rankscope.trigger/1"


@dataclass(frozen=True, slots=True)
class Pace:
    """What all hosts of a job keep to without a word; seconds.

    slot_s    windows begin at multiples of it, as those of `rankscope record`
    asked_s   so long before a slot its trigger is asked for: a beat, and what loading takes
    put_s     so long before a slot its trigger must be put: what a store takes before that
    gather_s  windows of other hosts are waited for, after their end; longer where this host's own took long
    turn_s    then a verdict is waited for, before another host judges
    """

    slot_s: float = 5.0
    asked_s: float = 2.5
    put_s: float = 3.5
    gather_s: float = 10.0
    turn_s: float = 20.0

    def slot_after(self, now: float) -> float:
        """The first slot whose trigger can still be put; Unix time."""
        return math.ceil((now + self.put_s) / self.slot_s) * self.slot_s

    def slot_to_ask(self, now: float) -> float | None:
        """The slot whose trigger is to be asked for now; None between two."""
        slot = math.ceil(now / self.slot_s) * self.slot_s
        return slot if 0 < slot - now <= self.asked_s else None

    def gathered_by(self, trigger: Trigger, sent: float) -> float:
        """Until when windows of other hosts are waited for, by a host whose own was sent at `sent`: theirs may take twice as long."""
        end = trigger.start + trigger.seconds
        return end + min(max(self.gather_s, 2 * (sent - end)), self.gather_s + self.turn_s / 2)

    def gathered_within(self, trigger: Trigger, sent: float) -> float:
        """For how long they are waited for from then on: no longer than by a clock that was not set since the trigger."""
        return min(self.gathered_by(trigger, sent) - sent, self.gather_s + self.turn_s / 2)

    def late_s(self, trigger: Trigger, began: float) -> float:
        """How late a window began that began then by this host's clock: no later than one is begun, by a clock that was not set."""
        return min(max(began - trigger.start, 0.0), 2 * self.slot_s)

    def turn_at(self, trigger: Trigger, host: str, hosts: int) -> float:
        """When a host takes the turn, if nobody has judged by then: not all at one moment, and of many hosts not more than one a second."""
        chance = hashlib.sha256(f"{host} {trigger.start:.0f}".encode()).digest()[0] / 256
        judged_by = trigger.start + trigger.seconds + self.gather_s + self.turn_s + _judging_s(hosts)
        return judged_by + chance * min(max(2 * self.slot_s, hosts), 3 * self.turn_s)

    def given_up_at(self, trigger: Trigger, hosts: int) -> float:
        """When nobody waits any more."""
        return trigger.start + trigger.seconds + 2 * self.gather_s + 6 * self.turn_s + 2 * _judging_s(hosts)


@dataclass(frozen=True, slots=True)
class Trigger:
    """`start`: Unix time, a slot; `host`: who put it, and judges; `words`: of its alarm."""

    job: str
    start: float
    seconds: float
    kind: AlarmKind
    words: str
    host: str

    def as_json(self) -> dict[str, Any]:
        """As it lies in the store."""
        return {"schema": TRIGGER_SCHEMA, **asdict(self), "kind": self.kind.value}

    def alarm(self, at_s: float) -> Alarm:
        """The alarm as a host has it that heard of it."""
        return Alarm(self.kind, self.job, at_s, f"{self.words} (on {self.host})")


def trigger_of(content: Mapping[str, Any], job: str, start: float, most_s: float = 600.0) -> Trigger:
    """What lies where the trigger of this job and slot should be. ValueError where it is none: anybody may have written there."""
    try:
        found = Trigger(
            str(content["job"]), float(content["start"]), float(content["seconds"]), AlarmKind(content["kind"]),
            clean(str(content["words"]), 200), clean(str(content["host"]), 80),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError("a trigger that cannot be read") from error
    if content.get("schema") != TRIGGER_SCHEMA or found.job != job or found.start != start:
        raise ValueError("a trigger of something else")
    if not 1.0 <= found.seconds <= most_s:
        raise ValueError(f"a trigger for {found.seconds:g} s")
    return found


def _judging_s(hosts: int) -> float:
    """Room for judging many hosts: of 12,500 it took a minute on a busy machine."""
    return hosts / 100
