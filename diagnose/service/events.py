"""Messages of the service: one line for people and one JSON object for programs per event. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from rankscope.diagnose.infer.verdict.contract import word_of
from rankscope.diagnose.service.alarms import Alarm, AlarmKind, Relief
from rankscope.diagnose.service.looks.look import Seen
from rankscope.diagnose.service.tell import drain
from rankscope.diagnose.severity import CRITICAL, OK, UNKNOWN, WARNING
from rankscope.diagnose.text import clean, clean_all, rank_list

EVENT_SCHEMA = "rankscope.watch/1"
_WORDS_MOST = 600  # characters of an event: two sentences on suspects
_STATES = {"healthy": OK, "inefficient": OK, "fault": WARNING, "imbalance": WARNING, "hang": CRITICAL}


@dataclass(frozen=True, slots=True)
class Event:
    """One event of the service.

    `kind`: started, ended, job, gone, alarm, verdict, over, hardware, note, frozen. `state`: as in
    a sweep. `at`: Unix time. `drain`: the host to drain ('' for this one) and the reason
    (drain.py), or None. `user`: owner of the job.
    """

    kind: str
    at: float
    words: str
    job: str = ""
    state: str = OK
    details: dict[str, Any] = field(default_factory=dict)
    drain: tuple[str, str] | None = None
    user: str = ""

    @property
    def line(self) -> str:
        """The event as a line, e.g. '03:12:07 WARNING job: step 0.104 → 0.154 s'."""
        mark = "" if self.state == OK else f"{self.state.upper()} "
        whose = f"{clean(self.job, 80)}: " if self.job else ""
        return f"{clock(self.at)} {mark}{whose}{clean(self.words, _WORDS_MOST)}"

    def as_json(self, host: str) -> dict[str, Any]:
        """Return the event as strictly valid JSON, without control characters of targets."""
        content: dict[str, Any] = clean_all(
            {
                "schema": EVENT_SCHEMA, "time": iso(self.at), "host": host, "kind": self.kind, "state": self.state,
                "job": self.job or None, "words": self.words, **self.details, **self._drained(host),
            }
        )  # fmt: skip
        return content

    def _drained(self, host: str) -> dict[str, str]:
        """Return `drain_reason` and `drain_host` (`host` if the event names none); {} if nothing is to be drained."""
        return {} if self.drain is None else {"drain_reason": self.drain[1], "drain_host": self.drain[0] or host}


def clock(unix: float) -> str:
    """Format Unix seconds as the local time of day, HH:MM:SS."""
    return datetime.fromtimestamp(unix).astimezone().strftime("%H:%M:%S")


def iso(unix: float) -> str:
    """Format Unix seconds as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(unix, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def of_alarm(alarm: Alarm, at: float, why_not: str) -> Event:
    """Make the event of an alarm at Unix time `at`; `why_not`: why no window is recorded, '' where one is."""
    state = CRITICAL if alarm.kind is AlarmKind.DEAD else WARNING
    if alarm.kind in (AlarmKind.ASKED, AlarmKind.ROUTINE):
        state = OK
    then = f"; no window: {why_not}" if why_not else ""
    return Event(
        "alarm", at, f"{alarm.words}{then}", alarm.job, state,
        {"alarm": alarm.kind.value, "ranks": list(alarm.ranks), "window": not why_not},
    )  # fmt: skip


def of_look(seen: Seen, at: float) -> Event:
    """Make the event of a look's verdict, or of why there is none; `at`: Unix time.

    Another host's verdict drains only this host, and only for a reason that this host's own window shows too.
    """
    alarm = seen.alarm
    details: dict[str, Any] = {
        "alarm": alarm.kind.value, "verdict": seen.verdict, "window": seen.kept or None,
        "window_began_after_s": None if seen.after_s is None else round(seen.after_s, 3), "took_s": round(seen.took_s, 3),
        "judged_by": seen.judged_by or None,
    }  # fmt: skip
    if seen.verdict is None:
        return Event("verdict", at, f"not judged: {seen.trouble}", alarm.job, UNKNOWN, details)
    words = verdict_words(seen.verdict)
    if alarm.kind is AlarmKind.SLOWER and not seen.accuses:
        words = f"slower, and nobody is named for it ({words})"
    state = _STATES.get(seen.verdict["status"], UNKNOWN)
    also = "; ".join(each for each in (seen.judged_by and f"judged on {seen.judged_by}", seen.trouble) if each)
    host, reason = drain.of_verdict(seen.verdict)
    drained = (host, reason) if reason else None
    # another host's verdict drains no third host, and this one only for what its own window shows
    if seen.judged_by:
        drained = ("", reason) if reason in seen.broken else None
    return Event("verdict", at, words + (f" ({also})" if also else ""), alarm.job, state, details, drained)


def waste_words(verdict: dict[str, Any]) -> str:
    """Name causes and functions in the verdict (JSON) of an inefficient job, without figures; '' for any other status."""
    if verdict["status"] != "inefficient":
        return ""
    told = [
        f"{one['component']}/{one['cause']} {(one['function'] or {}).get('name', '')}" for one in verdict["suspects"]
    ]
    return "; ".join(sorted(told))


def verdict_words(verdict: dict[str, Any]) -> str:
    """Return the first line of a verdict in JSON: 'FAULT Rank 1 on node-0: tokenize (train.py:14) takes longer …
    (python/slow-function)'.

    A verdict of another host may come from an older version, which has no summary.
    """
    first = verdict["suspects"][0] if verdict["suspects"] else {"component": "", "cause": ""}
    word = word_of(str(verdict["status"]), first["component"], first["cause"])
    return f"{word} {verdict.get('summary') or _short(verdict)}"


def _short(verdict: dict[str, Any]) -> str:
    """Summarise a verdict without a sentence: 'python/slow-function on rank 1'."""
    if not verdict["suspects"]:
        return str(verdict["notes"][0]) if verdict["notes"] else "nobody is to blame"
    first = verdict["suspects"][0]
    who = f" on {rank_list(tuple(first['ranks']))}" if first["ranks"] else ""
    return f"{first['component']}/{first['cause']}{who}"


def of_relief(relief: Relief, at: float, since: float, named: str) -> Event:
    """Make the event of a trouble's end at Unix time `at`; `since`: its begin; `named`: its named cause, '' if none."""
    words = relief.words
    details: dict[str, Any] = {"alarm": relief.kind.value, "since": iso(since), "named": named or None}
    if relief.before_s is not None and relief.after_s is not None:
        regained = relief.before_s - relief.after_s
        details |= {"regained_seconds_per_step": round(regained, 6)}
        words = f"regained {regained:.3f} s/step: {relief.words}, since {clock(since)}"
    return Event("over", at, words + (f"; it was {named}" if named else ""), relief.job, OK, details)
