"""Withhold suspects that rest on a source which could not be observed.

Without an essential source (samples, run queue, collectives) the tables of a window look like those
of a job that hangs, or whose ranks never wait. Where all hosts lack one, nothing is judged; where
some hosts do, these are left out. A suspect that rests on another missing source is left out, and
if none remains the verdict is unknown. A job is not reported healthy while a source is missing:
without connections a slow link shows nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankscope.diagnose.budgets import NOTE_MOST, TOLD
from rankscope.diagnose.infer.causes.causes import rests_on, unseen_without
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.lacking import Lacking
from rankscope.diagnose.infer.verdict.contract import Suspect, Verdict
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.text import clean
from rankscope.observer.sources import ESSENTIAL, IN_WORDS


def nothing_to_judge_by(fleet: Fleet) -> Note | None:
    """Return a note if an essential source of evidence is missing, else None."""
    missing = [one for one in fleet.lacking if one.source in ESSENTIAL]
    if not missing:
        return None
    text = (
        f"{_sources(missing)} could not be observed on {_hosts(missing)} ({missing[0].why or 'refused'}); without that nothing is judged: "
        "run `rankscope doctor` there, it says what the kernel refuses and what to do"
    )
    return Note(NoteCode.UNSEEN, clean(text, NOTE_MOST))


def without_unseen(fleet: Fleet, verdict: Verdict) -> Verdict:
    """Return the verdict without suspects that rest on a missing source, with notes on these."""
    verdict = _with_hosts(fleet, verdict)
    if not fleet.lacking:
        return verdict
    missing = {one.source: one for one in fleet.lacking}
    kept, silenced = [], []
    for suspect in verdict.suspects:
        needed = [
            missing[source] for source in missing if source in rests_on(suspect.component, suspect.cause, suspect.scope)
        ]
        if needed:
            silenced.append(_silenced(suspect, needed))
        else:
            kept.append(suspect)
    parts = [_part(one) for one in fleet.lacking]
    if verdict.status == "healthy":
        return replace(verdict, status="unknown", notes=(*parts, *verdict.notes))
    notes = (*silenced, *verdict.notes, *parts)
    if silenced and not kept:
        return replace(verdict, status="unknown", suspects=(), slowdown_percent=0.0, notes=notes)
    return replace(verdict, suspects=tuple(kept), notes=notes)


def _with_hosts(fleet: Fleet, verdict: Verdict) -> Verdict:
    """Add a note on hosts that were left out; then healthy becomes unknown."""
    if not fleet.unseen:
        return verdict
    text = (
        f"the ranks on {_hosts(fleet.unseen)} are not judged: {_sources(fleet.unseen)} could not be observed there "
        f"({fleet.unseen[0].why or 'refused'}): run `rankscope doctor` there"
    )
    note = Note(NoteCode.UNSEEN, clean(text, NOTE_MOST))
    if verdict.status == "healthy":
        return replace(verdict, status="unknown", notes=(note, *verdict.notes))
    return replace(verdict, notes=(*verdict.notes, note))


def _silenced(suspect: Suspect, missing: Sequence[Lacking]) -> Note:
    """Make the note that replaces a suspect, as it rests on these missing sources."""
    text = (
        f"something seems wrong with {suspect.component} ({suspect.cause}), but {_sources(missing)} could not be observed on "
        f"{_hosts(missing)} ({missing[0].why or 'refused'}): run `rankscope doctor` there"
    )
    return Note(NoteCode.UNSEEN, clean(text, NOTE_MOST))


def _part(missing: Lacking) -> Note:
    """Make the note on a missing source, with the causes that cannot be named without it."""
    causes = list(dict.fromkeys(f"{row.component}/{row.cause}" for row in unseen_without(frozenset({missing.source}))))
    more = f" and {len(causes) - TOLD} more" if len(causes) > TOLD else ""
    named = f": {', '.join(causes[:TOLD])}{more} cannot be named" if causes else ""
    text = (
        f"{IN_WORDS[missing.source]} could not be observed on {_hosts([missing])} ({missing.why or 'refused'}){named}"
    )
    return Note(NoteCode.UNSEEN_PART, clean(text, NOTE_MOST))


def _sources(missing: Sequence[Lacking]) -> str:
    """Name missing sources in words."""
    return ", ".join(IN_WORDS[one.source] for one in missing)


def _hosts(missing: Sequence[Lacking]) -> str:
    """Name the hosts that lack these sources, the first few and how many more."""
    hosts = list(dict.fromkeys(host for one in missing for host in one.hosts))
    more = f" and {len(hosts) - TOLD} more hosts" if len(hosts) > TOLD else ""
    return f"{', '.join(hosts[:TOLD])}{more}"
