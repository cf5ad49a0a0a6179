"""Settings that a look shares with those of other hosts, and the exchanged verdict. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankscope.diagnose.service.hosts.trigger import Pace, Trigger
from rankscope.diagnose.text import clean, clean_all

JUDGED_SCHEMA = "rankscope.judged/1"
_STATUSES = ("healthy", "inefficient", "fault", "imbalance", "hang", "unknown")


@dataclass(frozen=True, slots=True)
class Share:
    """Settings of a look that all hosts of a job take.

    `judges`: this host judges; `hosts`: number of hosts with ranks of the job; `earlier`: begin of
    the job's last window without a named cause, None if unknown; `called`: name of the job on all
    hosts, if it differs from this host's.
    """

    uri: str
    spool: Path
    trigger: Trigger
    judges: bool
    hosts: int
    host: str
    earlier: float | None = None
    pace: Pace = field(default_factory=Pace)
    called: str = ""

    @property
    def job(self) -> str:
        """The job's name on all hosts."""
        return self.called or self.trigger.job

    @property
    def longer_s(self) -> float:
        """Seconds that a look of all hosts may take longer than one of this host alone."""
        return 2 * self.pace.slot_s + self.pace.gather_s + self.pace.turn_s + self.hosts / 50


def judged_as_json(host: str, verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Make the message by which the judging host `host` sends its verdict to the others."""
    return {"schema": JUDGED_SCHEMA, "host": host, "verdict": verdict}


def judged_of(content: Mapping[str, Any], job: str) -> tuple[str, dict[str, Any]]:
    """Parse another host's message with its verdict; return that host's name and the verdict.

    Raises ValueError if it is malformed or not about this job, as anyone may have written it.
    """
    try:
        host, verdict = clean(str(content["host"]), 80).strip(), clean_all(dict(content["verdict"]))
        sound = content["schema"] == JUDGED_SCHEMA and verdict["job"] == clean(job) and verdict["status"] in _STATUSES
        verdict["summary"] = str(verdict.get("summary") or "")
        verdict["notes"] = [str(note) for note in verdict["notes"]]
        verdict["suspects"] = [_suspect(each) for each in verdict["suspects"]]
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
        raise ValueError("a verdict that cannot be read") from error
    if not sound or not host:  # one without a host would look like this host's own
        raise ValueError("a verdict on something else")
    return host, verdict


def _suspect(content: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a suspect of another host's verdict, with the fields that are printed converted, and all others as they are.

    Raises KeyError, TypeError, ValueError, AttributeError or OverflowError if it is malformed.
    """
    function = content["function"]
    found = dict(content)
    found["ranks"] = [int(rank) for rank in content["ranks"]]
    for name in ("component", "cause", "instance"):
        found[name] = str(content[name] or "")
    found["evidence"] = [{**each, "measure": str(each.get("measure", ""))} for each in content.get("evidence") or ()]
    found["lost_seconds_per_step"] = float(content["lost_seconds_per_step"] or 0.0)
    if function is not None:
        found["function"] = {
            "kind": str(function["kind"]), "name": str(function["name"]), "file": str(function["file"]), "line": int(function["line"] or 0)
        }  # fmt: skip
    return found
