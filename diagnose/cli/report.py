"""The verdict for a person at 3 a.m.: the first line is the answer. Lines of at most 80 columns, colour where wanted."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

from rankscope.diagnose.text import clean, rank_list, rate, seconds
from rankscope.diagnose.verdict.as_json import timestamp
from rankscope.diagnose.verdict.contract import AGAINST, DEVICES, Evidence, Suspect, Verdict
from rankscope.diagnose.verdict.function import Function
from rankscope.diagnose.verdict.note import NOTE_CAP

WIDTH = 80
_EVIDENCE_SHOWN = 5
_AGAINST_SHOWN = 2
_NOTES_SHOWN = 6
_WORDS = 300  # of evidence in words: two files and a function
_COLOURS = {"healthy": "32", "fault": "31", "imbalance": "33", "hang": "31;1", "unknown": "33"}


def print_reports(verdicts: Sequence[Verdict], out: TextIO, verbose: bool = False) -> None:
    """One report after the other. Of several jobs the first line says how each of them is."""
    if len(verdicts) > 1:
        said = "; ".join(f"{verdict.status.upper()} {clean(verdict.title or verdict.job, 100)}" for verdict in verdicts)
        out.write("\n".join(_wrap(f"{len(verdicts)} JOBS  {said}", "        ")) + "\n\n")
    for number, verdict in enumerate(verdicts):
        if number:
            out.write("\n")
        print_report(verdict, out, verbose)


def print_report(verdict: Verdict, out: TextIO, verbose: bool = False) -> None:
    """Write the report to `out`; coloured on a terminal unless NO_COLOR is set."""
    colour = out.isatty() and not os.environ.get("NO_COLOR")
    for number, line in enumerate(report(verdict, verbose)):
        if number == 0 and colour:
            word, _, rest = line.partition(" ")
            line = f"\033[{_COLOURS.get(verdict.status, '0')}m{word}\033[0m {rest}"  # noqa: PLW2901
        out.write(line + "\n")


def report(verdict: Verdict, verbose: bool = False) -> Iterator[str]:
    """Lines of the report, each at most 80 columns."""
    yield from _wrap(_answer(verdict), "       ")
    if verdict.suspects:
        yield from _evidence_lines(verdict.suspects[0], verbose)
        yield from _wrap(f"  do       {clean(verdict.suspects[0].action, 300)}", " " * 11)
    for number, suspect in enumerate(verdict.suspects[1:], 2):
        yield ""
        yield from _wrap(f"{number}. {_accusation(suspect, verdict.guessed)}", "   ")
        yield from _evidence_lines(suspect, verbose)
        yield from _wrap(f"  do       {clean(suspect.action, 300)}", " " * 11)
    yield ""
    yield from _wrap(_context(verdict, verbose), " " * 9)
    # The first note of an unknown verdict is its reason, and the headline has said it.
    notes = verdict.notes[1:] if verdict.status == "unknown" else verdict.notes
    shown = notes if verbose else notes[:_NOTES_SHOWN]
    for note in shown:
        yield from _wrap(f"  note   {clean(note.text, 300)}", " " * 9)
    if len(shown) < len(notes):
        yield f"  note   {len(notes) - len(shown)} more with -v"


def _wrap(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=indent, drop_whitespace=True, break_long_words=True, break_on_hyphens=False
    ) or [""]  # fmt: skip


def _answer(verdict: Verdict) -> str:
    count = _count(verdict)
    where = f" on {len(verdict.hosts)} hosts" if len(verdict.hosts) > 1 else f" on {clean(''.join(verdict.hosts), 40)}"
    if not verdict.hosts:
        where = ""
    if verdict.suspects:
        word = {"fault": "FAULT", "hang": "HANG", "imbalance": "IMBALANCE"}.get(verdict.status, verdict.status.upper())
        return f"{word}  {_accusation(verdict.suspects[0], verdict.guessed)}"
    if verdict.status == "healthy":
        p50 = verdict.step_seconds.p50
        return f"HEALTHY  {count}{where}, {verdict.steps} steps of {seconds(p50) if p50 else '?'}: nobody stands out"
    if verdict.status == "hang":
        return f"HANG  {count}{where} make no progress, and none of them stands out"
    return f"UNKNOWN  {clean(verdict.notes[0].text, NOTE_CAP) if verdict.notes else 'not enough was seen to judge'}"


def _count(verdict: Verdict) -> str:
    return f"{len(verdict.ranks)} ranks" if len(verdict.ranks) != 1 else "1 rank"


def _accusation(suspect: Suspect, guessed: tuple[int, ...]) -> str:
    """A number that is a guess is followed by '?'."""
    who = rank_list(suspect.ranks) if suspect.ranks else ""
    who += "?" if set(suspect.ranks) & set(guessed) else ""
    host = f"on {clean(suspect.host, 40)}" if suspect.host else ""
    what = f"{suspect.component}/{suspect.cause}"
    if suspect.component == "storage" and suspect.instance:
        what += f" {clean(suspect.instance, 60)}"
        if suspect.function is not None and suspect.function.file:
            what += f", called at {_file(suspect.function)}"
    elif suspect.function is not None and not (suspect.instance and suspect.component in DEVICES):
        what += f" {_place(suspect.function)}"
    elif suspect.instance:
        what += f" {clean(suspect.instance, 60)}"
    subject = " ".join(part for part in (who, host) if part)
    if suspect.lost_percent >= 100:  # a hang: the step in progress is lost altogether
        return f"{subject}: {what}, no progress for {seconds(suspect.lost_seconds_per_step)}"
    if suspect.lost_percent < 0.05:
        return f"{subject}: {what}, hidden behind the stalls of others for now"
    step_s = suspect.lost_seconds_per_step / max(suspect.lost_percent / 100, 1e-9)
    cost = (
        f"costs {seconds(suspect.lost_seconds_per_step)} of each {seconds(step_s)} step ({suspect.lost_percent:.0f} %)"
    )
    return f"{subject}: {what} {cost}"


def _place(function: Function) -> str:
    """'augment (train.py:88)'."""
    name = clean(function.name, 60)
    if not function.file:
        return name
    return f"{name} ({_file(function)})"


def _file(function: Function) -> str:
    return f"{clean(function.file.rpartition('/')[2], 60)}:{function.line}"


def _evidence_lines(suspect: Suspect, verbose: bool) -> Iterator[str]:
    against = [evidence for evidence in suspect.evidence if evidence.source.startswith(AGAINST)]
    because = [evidence for evidence in suspect.evidence if not evidence.source.startswith(AGAINST)]
    for word, said, most in (("because", because, _EVIDENCE_SHOWN), ("against", against, _AGAINST_SHOWN)):
        for number, evidence in enumerate(said if verbose else said[:most]):
            yield from _wrap(f"  {word if number == 0 else '       '}  {_evidence(evidence)}", " " * 13)
    since = f", since {timestamp(suspect.since)}" if suspect.since is not None else ""
    yield f"  sure     {100 * suspect.confidence:.0f} %{since}"


def _evidence(evidence: Evidence) -> str:
    text = f"{clean(evidence.measure, 80)}: {_measure(evidence.value, evidence.unit)}"
    if evidence.expected is None:
        return text
    # The unit is said once.
    expected = _measure(evidence.expected, "s" if evidence.unit == "s/step" else evidence.unit)
    if evidence.peers > 1:
        return f"{text}; {evidence.peers} peers {expected}"
    return f"{text}; its peer {expected}" if evidence.peers == 1 else f"{text}; expected {expected}"


def _measure(value: float | str, unit: str) -> str:
    if isinstance(value, str):
        return clean(value, _WORDS)
    if unit in ("s", "s/step"):
        return seconds(value) + unit[1:]
    if unit == "bytes/s":
        return rate(value)
    return f"{value:.3g} {clean(unit, 30)}".rstrip()


def _context(verdict: Verdict, verbose: bool) -> str:
    steps = verdict.step_seconds
    where = f" on {_hosts(verdict.hosts)}" if verdict.hosts else ""
    job = clean(verdict.title or verdict.job, 120)
    if verbose and verdict.title:
        job += f" [{clean(verdict.job, 200)}]"
    parts = [f"  job    {job}, {_count(verdict)}{where}"]
    if steps.p50 is not None:
        p99 = f", p99 {seconds(steps.p99)}" if steps.p99 is not None else ""
        base = f", baseline {seconds(steps.baseline_p50)}" if steps.baseline_p50 is not None else ""
        parts.append(f"; {verdict.steps} steps, p50 {seconds(steps.p50)}{p99}{base}")
    if math.isfinite(verdict.start):
        parts.append(
            f"; window {(timestamp(verdict.start) or '?').replace('.000Z', 'Z')} + {verdict.end - verdict.start:.0f} s"
        )
    return "".join(parts)


def _hosts(hosts: Iterable[str]) -> str:
    names = [clean(host, 40) for host in hosts]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
