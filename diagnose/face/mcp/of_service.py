"""Answers from the service's folder: what it reported, what it recorded before hangs, and ledgers of jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from rankscope.diagnose.face.documents import blackbox as box_document
from rankscope.diagnose.face.documents import ledgers as ledgers_document
from rankscope.diagnose.face.mcp import contracts
from rankscope.diagnose.face.mcp.envelope import Answer
from rankscope.diagnose.face.mcp.places import Places
from rankscope.diagnose.service.place import LOG_BYTES
from rankscope.probes.base.folders import opened_folder, read_ours

_LOGS = ("events.jsonl", "events.jsonl.1")  # the newest first
_JOB_FIELDS = ("job", "title")


def verdicts(places: Places, question: Mapping[str, Any]) -> Answer:
    """Answer with events that the service reported, newest first. Raises NothingKept, UnsafePlace.

    The question selects kinds (usual: verdicts), job, time (`before`) and number.
    """
    box_document.opened_box(places.state)
    kinds, job, before = question.get("kinds", ["verdict"]), question.get("job"), question.get("before")
    limit = int(question.get("limit", 5))
    found: list[dict[str, Any]] = []
    strange = 0
    fits = _validator()
    for event in _events(places.state):
        wanted = event.get("kind") in kinds and (before is None or str(event.get("time")) < before)
        if not wanted or not (job is None or _is_of(event, job)):
            continue
        if not fits.is_valid(event):  # of another version
            strange += 1
            continue
        found.append(event)
        if len(found) == limit:
            break
    said = [f"{event['time']} {event['state']}: {event['words']}" for event in found]
    left = [f"{strange} events of another version are left out"] if strange else []
    return Answer(found, tuple([*said[:7], *left] or [f"the service reported no {', '.join(kinds)}"]))


def _validator() -> Draft202012Validator:
    """Make the validator of one event (schema rankscope.watch/1)."""
    return Draft202012Validator(
        contracts.of_tool("watch")["properties"]["data"] | {"$defs": contracts.of_tool("watch")["$defs"]}
    )


def _is_of(event: Mapping[str, Any], job: str) -> bool:
    """Tell whether an event is of this job: its name, or its verdict's title, begins so."""
    verdict = event.get("verdict")
    title = verdict.get("title") if isinstance(verdict, dict) else ""
    return any(str(name or "").startswith(job) for name in (event.get("job"), title))


def _events(state: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of the service's log, newest first; damaged lines are left out. Raises UnsafePlace."""
    for name in _LOGS:
        try:
            content = read_ours(state, [name], 2 * LOG_BYTES)
        except OSError:
            continue
        for line in reversed(content.splitlines()):
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                yield found


def blackbox_list(places: Places, _: Mapping[str, Any]) -> Answer:
    """Answer with the frozen recordings. Raises NothingKept, UnsafePlace."""
    found = box_document.frozen_list(box_document.opened_box(places.state))
    return Answer(found, (f"{len(found)} recordings are frozen; 'now' shows the minutes that run",))


def blackbox(places: Places, question: Mapping[str, Any]) -> Answer:
    """Answer with the end of a recording. Raises UsageError, NothingKept, UnsafePlace."""
    folder = box_document.recording(box_document.opened_box(places.state), question["name"])
    with opened_folder(folder):
        pass
    found = box_document.as_object(folder)
    lines = found["lines"]
    if (job := question.get("job")) is not None:
        lines = [one for one in lines if any(str(one.get(field) or "").startswith(job) for field in _JOB_FIELDS)]
    whole = len(lines)
    found["lines"] = _end_of(lines, float(question.get("last_seconds", 60)))
    said = [str(one["words"]) for one in (found["why"], found["verdict"]) if one and one.get("words")]
    return Answer(found, (*said, f"the last {len(found['lines'])} of {whole} lines"))


def _end_of(lines: list[dict[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """Select the lines of the last `seconds` before the latest line."""
    from datetime import datetime, timedelta

    dated = [(datetime.fromisoformat(one["time"].replace("Z", "+00:00")), one) for one in lines if one["time"]]
    if not dated:
        return []
    first = max(at for at, _ in dated) - timedelta(seconds=seconds)
    return [one for at, one in dated if at >= first]


def ledger(places: Places, question: Mapping[str, Any]) -> Answer:
    """Answer with the ledgers of all jobs, or of one. Raises UsageError, NothingKept, UnsafePlace."""
    box_document.opened_box(places.state)
    found = [
        ledgers_document.as_object(one) for one in ledgers_document.read_ledgers(places.state, question.get("job"))
    ]
    said = [
        f"{one['title'] or one['job']}: {one['lost_hours']:.3g} of {one['hours']:.3g} hours were not productive"
        for one in found[:7]
    ]
    return Answer(found, tuple(said or ["no job has a ledger yet"]))
