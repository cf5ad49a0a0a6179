"""The JSON that `rankscope doctor --json` prints, from what was found out about a host. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rankscope.diagnose.infer.causes.registry import Cause
    from rankscope.observer.doctor import Requirement

SCHEMA = "rankscope.doctor/1"


def blocking(findings: Sequence[Requirement]) -> list[Requirement]:
    """Select the requirements without which nothing can be observed."""
    return [finding for finding in findings if finding.required and finding.ok is False]


def unnamed_causes(findings: Sequence[Requirement]) -> tuple[Cause, ...]:
    """Return the causes that cannot be named, as a source of evidence is missing here."""
    # Imported here: the table of causes is not needed to list findings.
    from rankscope.diagnose.infer.causes.causes import unseen_without
    from rankscope.observer.sources import Seen

    states = (one for finding in findings for one in finding.sources)
    return unseen_without(frozenset(one.source for one in states if one.seen is Seen.NOT))


def as_object(findings: Sequence[Requirement]) -> dict[str, Any]:
    """Return the findings as JSON, with the sources of evidence and the causes that cannot be named."""
    states = [one for finding in findings for one in finding.sources]
    return {
        "schema": SCHEMA,
        "observable": not blocking(findings),
        "sources": {one.source.value: {"seen": one.seen.value, "why": one.why} for one in states},
        "cannot_be_named": [f"{one.component}/{one.cause}" for one in unnamed_causes(findings)],
        "findings": [
            {"name": f.name, "ok": f.ok, "required": f.required, "detail": f.detail, "remedy": "" if f.ok else f.remedy}
            for f in findings
        ],
    }
