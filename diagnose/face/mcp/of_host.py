"""Answers about this host now: whether it can be observed, its training processes, and a verdict of them."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankscope.diagnose.face.documents import causes as causes_document
from rankscope.diagnose.face.documents import doctor as doctor_document
from rankscope.diagnose.face.documents import ranks as ranks_document
from rankscope.diagnose.face.mcp.envelope import Answer
from rankscope.diagnose.face.mcp.places import Places
from rankscope.diagnose.text import clean
from rankscope.probes.base.errors import MissingFeature, NotPermitted, UsageError

LIVE_EACH_HOUR = 12  # an agent that looks again and again would cost the jobs
_HOUR_S = 3600.0
_looks: deque[float] = deque(maxlen=LIVE_EACH_HOUR)  # when this host was observed


class LookedEnough(MissingFeature):
    """This host was observed too often in the last hour."""

    help = "Read the service's verdicts or recorded windows, or wait."


def doctor(_: Places, __: Mapping[str, Any]) -> Answer:
    """Answer whether this host can be observed, and what is missing."""
    from rankscope.observer.doctor import examine

    findings = examine(Path("/"))
    blocked = doctor_document.blocking(findings)
    said = "this host can be observed"
    if blocked:
        said = f"this host cannot be observed yet: {', '.join(clean(one.name, 40) for one in blocked)}"
    elif unnamed := doctor_document.unnamed_causes(findings):
        said += f" in part: {len(unnamed)} causes cannot be named"
    return Answer(doctor_document.as_object(findings), (said,))


def ranks(_: Places, question: Mapping[str, Any]) -> Answer:
    """Answer which training processes run on this host; of one job and with rejected processes, if the question asks."""
    from rankscope.observer.sight import see

    found = ranks_document.as_object(see(progress=_say))
    rejected = len(found["rejected"])
    if not question.get("rejected"):
        found["rejected"] = []
    if (job := question.get("job")) is not None:
        found["ranks"] = [one for one in found["ranks"] if one["job"].startswith(job) or one["title"].startswith(job)]
    jobs = {one["job"] for one in found["ranks"]}
    said = f"{len(found['ranks'])} ranks of {len(jobs)} jobs; {rejected} other processes were looked at"
    return Answer(found, (said,))


def diagnose_now(places: Places, question: Mapping[str, Any]) -> Answer:
    """Observe this host for some seconds and judge its jobs; keep nothing.

    Raises NotPermitted, NoRanks, MissingFeature, LookedEnough.
    """
    if os.geteuid() != 0:
        raise NotPermitted("observing other users' processes needs root")
    _count(time.monotonic())
    # Imported here: judging recorded windows and listing ranks need no recorder.
    from rankscope.diagnose.face.documents.verdicts import judge_all
    from rankscope.diagnose.face.mcp.of_windows import judged
    from rankscope.diagnose.infer.fleet.sources import Loaded
    from rankscope.diagnose.infer.past.history import History
    from rankscope.observer.recorder import RecordOptions, record

    job = question.get("job")
    recorded = record(RecordOptions(window_s=float(question.get("seconds", 20)), job=job, align_s=0.0), _say)
    history = History(places.history) if question.get("baseline_auto") else None
    return judged(judge_all(Loaded(tuple(one.window for one in recorded), ()), (), job, history, ()))


def _count(now_s: float) -> None:
    """Count one observation of this host. Raises LookedEnough above `LIVE_EACH_HOUR` within an hour."""
    if len(_looks) == LIVE_EACH_HOUR and now_s - _looks[0] < _HOUR_S:
        raise LookedEnough(f"this host was observed {LIVE_EACH_HOUR} times within an hour")
    _looks.append(now_s)


def causes(_: Places, question: Mapping[str, Any]) -> Answer:
    """Answer which causes can be named, if the question asks with this component or cause. Raises UsageError if none."""
    found = causes_document.as_object()
    for field in ("component", "cause"):
        if field in question:
            found["causes"] = [one for one in found["causes"] if one[field] == question[field]]
    if not found["causes"]:
        raise UsageError("no such cause can be named: ask for all of them")
    return Answer(found, (f"{len(found['causes'])} causes; right and wrong are of {found['cases']} recorded windows",))


def _say(text: str) -> None:
    """Print a progress message on stderr."""
    sys.stderr.write(f"rankscope: {clean(text, 300)}\n")
    sys.stderr.flush()
