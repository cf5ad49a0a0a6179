"""The message by which one host makes all hosts of a job look, from when and for how long. Pure.

alarm ─► the next slot that is far enough off ─► `trigger=<UTC of its begin>.json`, put only where there is none
every host requests, before each slot, the trigger of this slot: one name, no listing
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rankscope.diagnose.service.alarms import Alarm, AlarmKind
from rankscope.diagnose.text import clean

TRIGGER_SCHEMA = "rankscope.trigger/1"


@dataclass(frozen=True, slots=True)
class Pace:
    """Time limits shared by all hosts of a job, in seconds.

    slot_s    windows begin at multiples of it, as those of `rankscope record`
    asked_s   a slot's trigger is requested this long before it: a beat, and the time for loading
    put_s     a slot's trigger must be put this long before it, with time for the store
    gather_s  wait for windows of other hosts after their end; longer if this host's own took long
    turn_s    then wait for a verdict, before another host judges
    """

    slot_s: float = 5.0
    asked_s: float = 2.5
    put_s: float = 3.5
    gather_s: float = 10.0
    turn_s: float = 20.0

    def slot_after(self, now: float) -> float:
        """Return the first slot whose trigger can still be put, in Unix time."""
        return math.ceil((now + self.put_s) / self.slot_s) * self.slot_s

    def slot_to_ask(self, now: float) -> float | None:
        """Return the slot (Unix time) whose trigger should be requested now; None if the next one is too far off yet."""
        slot = math.ceil(now / self.slot_s) * self.slot_s
        return slot if 0 < slot - now <= self.asked_s else None

    def gathered_by(self, trigger: Trigger, sent: float) -> float:
        """Return the Unix time until which to wait for other hosts' windows if this host's was sent at `sent`.

        Theirs may take twice as long, within limits.
        """
        end = trigger.start + trigger.seconds
        return end + min(max(self.gather_s, 2 * (sent - end)), self.gather_s + self.turn_s / 2)

    def gathered_within(self, trigger: Trigger, sent: float) -> float:
        """Return how many seconds after `sent` to wait for other hosts' windows; limited in case the clock was set."""
        return min(self.gathered_by(trigger, sent) - sent, self.gather_s + self.turn_s / 2)

    def late_s(self, trigger: Trigger, began: float) -> float:
        """Return how many seconds late a window began (`began`: Unix time); limited in case the clock was set."""
        return min(max(began - trigger.start, 0.0), 2 * self.slot_s)

    def turn_at(self, trigger: Trigger, host: str, hosts: int) -> float:
        """Return the Unix time at which a host takes the turn to judge if no verdict came.

        Random per host and look, over `hosts` seconds, at least two slots, at most three `turn_s`. `hosts`:
        number of hosts of the job.
        """
        chance = hashlib.sha256(f"{host} {trigger.start:.0f}".encode()).digest()[0] / 256
        judged_by = trigger.start + trigger.seconds + self.gather_s + self.turn_s + _judging_s(hosts)
        return judged_by + chance * min(max(2 * self.slot_s, hosts), 3 * self.turn_s)

    def given_up_at(self, trigger: Trigger, hosts: int) -> float:
        """Return the Unix time after which no verdict on this look is awaited; later the more hosts there are."""
        return trigger.start + trigger.seconds + 2 * self.gather_s + 6 * self.turn_s + 2 * _judging_s(hosts)


@dataclass(frozen=True, slots=True)
class Trigger:
    """Request for a look of all hosts.

    `start`: Unix time, a slot; `seconds`: length of the window; `host`: the one that put it, and judges;
    `words`: of its alarm.
    """

    job: str
    start: float
    seconds: float
    kind: AlarmKind
    words: str
    host: str

    def as_json(self) -> dict[str, Any]:
        """Return the trigger as the JSON object that is stored."""
        return {"schema": TRIGGER_SCHEMA, **asdict(self), "kind": self.kind.value}

    def alarm(self, at_s: float) -> Alarm:
        """Return this trigger as an alarm at `at_s`, for a host that received it."""
        return Alarm(self.kind, self.job, at_s, f"{self.words} (on {self.host})")


def trigger_of(content: Mapping[str, Any], job: str, start: float, most_s: float = 600.0) -> Trigger:
    """Parse the stored trigger of this job and slot; `most_s`: longest window accepted.

    Raises ValueError if it is none: anyone may have written it.
    """
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
    """Return the seconds that judging so many hosts may take: 12,500 took a minute on a busy machine."""
    return hosts / 100
