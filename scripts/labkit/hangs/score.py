"""What was said of a hang, compared with the truth. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from labkit import verdicts
from labkit.faults.base import Truth
from labkit.hangs.cases import WITHIN_S, Answer

# How a rank ended, as the service words it, for the causes of a death.
_ENDS = {"exited": "killed by SIGKILL", "oom-kill": "out of memory"}


def of_command(printed: str, truth: Truth, after_s: float | None) -> Answer:
    """`rankscope diagnose --json`."""
    try:
        verdict = verdicts.parse(printed)
    except verdicts.BadVerdict as error:
        return Answer(verdicts.FAILED, f"no verdict: {error}", after_s)
    return Answer(_outcome(verdict, truth), _words(verdict), after_s)


def of_service(events: Sequence[dict[str, Any]], truth: Truth, last_step: float) -> Answer:
    """`rankscope watch --json`: the events since the hang; last_step: Unix time of the job's last step."""
    answers = [answer for event in events if (answer := _of_event(event, truth, last_step))]
    if truth.status != "hang":
        wrong = [answer for answer in answers if answer.outcome == verdicts.WRONG]
        return wrong[0] if wrong else Answer(verdicts.FIRST, answers[-1].said if answers else "nothing")
    return answers[0] if answers else Answer(verdicts.SILENT, "nothing")


def seconds_after(event: dict[str, Any], since: float) -> float:
    """When something was said, since a moment in Unix time."""
    return datetime.fromisoformat(str(event["time"]).replace("Z", "+00:00")).timestamp() - since


def _of_event(event: dict[str, Any], truth: Truth, last_step: float) -> Answer | None:
    after_s = seconds_after(event, last_step)
    if event["kind"] == "alarm" and event["alarm"] == "dead":
        words = str(event["words"])
        ends = [end for causes in truth.causes.values() for cause, end in _ENDS.items() if cause in causes]
        right = tuple(event["ranks"]) == truth.ranks and any(end in words for end in ends)
        return Answer(verdicts.FIRST if right else verdicts.WRONG, words, after_s)
    if event["kind"] != "verdict" or event["verdict"] is None:
        return None
    return of_command(json.dumps(event["verdict"]), truth, after_s)


def _outcome(verdict: verdicts.Verdict, truth: Truth) -> str:
    if truth.status == "hang":
        return verdicts.score(verdict, truth)
    # Whether the steps are healthy cannot be told while there are none.
    return verdicts.WRONG if verdict.accuses or verdict.status == "hang" else verdicts.FIRST


def _words(verdict: verdicts.Verdict) -> str:
    return f"{verdict.status}: " + ("; ".join(map(str, verdict.suspects[:3])) or "nobody")


def is_right(answer: Answer, truth: Truth | None) -> bool:
    """First and, where there is a hang, in time."""
    in_time = answer.after_s is not None and answer.after_s <= WITHIN_S
    return answer.outcome == verdicts.FIRST and (in_time or truth is None or truth.status != "hang")
