"""Phrases of a verdict that terminal and browser share."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.verdict.as_json import timestamp
from rankscope.diagnose.infer.verdict.contract import AGAINST, DEVICES, Evidence, Suspect, Verdict
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.infer.verdict.note import EXCUSES
from rankscope.diagnose.text import clean, rank_list, rate, seconds, short

NAME, HOST = 60, 40  # characters shown of a name
WHOLE = budgets.NAME_MOST
WORDS = budgets.TEXT_MOST  # characters of textual evidence: two files and a function
_STATUS = {"fault": "FAULT", "hang": "HANG", "imbalance": "IMBALANCE"}


def answer(verdict: Verdict, whole: bool = False) -> str:
    """The first line: status, suspect and cost. `whole`: do not shorten names."""
    count = count_of(verdict)
    where = (
        f" on {len(verdict.hosts)} hosts" if len(verdict.hosts) > 1 else f" on {short(''.join(verdict.hosts), HOST)}"
    )
    if not verdict.hosts:
        where = ""
    if verdict.status == "inefficient":
        also = f"; and {len(verdict.suspects) - 1} more" if len(verdict.suspects) > 1 else ""
        return f"INEFFICIENT  {comes_back(verdict)} would come back: {accusation(verdict.suspects[0], verdict.guessed, whole)}{also}"
    if verdict.suspects:
        word = _STATUS.get(verdict.status, verdict.status.upper())
        return f"{word}  {accusation(verdict.suspects[0], verdict.guessed, whole)}"
    if verdict.status == "healthy":
        p50 = verdict.step_seconds.p50
        excused = any(note.code in EXCUSES for note in verdict.notes)
        how = "nobody is to blame" if excused else "nobody stands out"
        if len(verdict.ranks) == 1:
            how = "nothing wrong was found"
        return f"HEALTHY  {count}{where}, {verdict.steps} steps of {seconds(p50) if p50 else '?'}: {how}"
    if verdict.status == "hang":
        return f"HANG  {count}{where} make no progress, and none of them stands out"
    return f"UNKNOWN  {clean(verdict.notes[0].text, budgets.NOTE_MOST) if verdict.notes else 'not enough was seen to judge'}"


def comes_back(verdict: Verdict) -> str:
    """Share of the time that all waste takes together, in words: '24 % of the time'."""
    share = sum(max(each.lost_percent, 0.0) for each in verdict.suspects if each.waste)
    return f"{min(share, 100.0):.0f} % of the time"


def count_of(verdict: Verdict) -> str:
    """Number of ranks in words, '8 ranks'."""
    return f"{len(verdict.ranks)} ranks" if len(verdict.ranks) != 1 else "1 rank"


def accusation(suspect: Suspect, guessed: tuple[int, ...], whole: bool = False) -> str:
    """Suspect, cause and price in one phrase; a guessed rank number gets '?'.

    `whole`: do not shorten names.
    """
    what, most = f"{suspect.component}/{suspect.cause}", WHOLE if whole else NAME
    if suspect.component == "storage" and suspect.instance:
        what += f" {short(suspect.instance, most)}"
        if suspect.function is not None and suspect.function.file:
            what += f", called at {file_of(suspect.function, most)}"
    elif suspect.function is not None and not (suspect.instance and suspect.component in DEVICES):
        what += f" {place_of(suspect.function, most)}"
    elif suspect.instance:
        what += f" {short(suspect.instance if whole else _few(suspect.instance), most)}"
    return f"{subject(suspect, guessed)}: {what}{price(suspect)}"


def _few(instances: str) -> str:
    """Shorten a list of names to 'mlx5_0, mlx5_1 and 6 more'."""
    names = instances.split(", ")
    return instances if len(names) <= 4 else f"{', '.join(names[:2])} and {len(names) - 2} more"


def subject(suspect: Suspect, guessed: tuple[int, ...]) -> str:
    """Ranks and host of a suspect, 'rank 3? on node-0'."""
    who = rank_list(suspect.ranks) if suspect.ranks else ""
    who += "?" if set(suspect.ranks) & set(guessed) else ""
    host = f"on {short(suspect.host, HOST)}" if suspect.host else ""
    return " ".join(part for part in (who, host) if part)


def price(suspect: Suspect) -> str:
    """Cost as a phrase, ' costs 0.1 s of each 0.3 s step (33 %)'.

    For a hang the time without progress; for a cost near 0 that it is hidden behind others' stalls.
    """
    if suspect.still:
        how_long = suspect.lost_seconds_per_step
        return f", no progress for {seconds(how_long)}" if how_long > 0 else ", no progress"
    if suspect.lost_percent < 0.05:
        return ", hidden behind the stalls of others for now"
    return f" costs {cost(suspect)}"


def cost(suspect: Suspect) -> str:
    """Cost of a suspect of a job that runs, '0.1 s of each 0.3 s step (33 %)'; at most the step."""
    step_s = suspect.lost_seconds_per_step / max(suspect.lost_percent / 100, 1e-9)
    lost_s, percent = min(suspect.lost_seconds_per_step, step_s), min(suspect.lost_percent, 100.0)
    return f"{seconds(lost_s)} of each {seconds(step_s)} step ({percent:.0f} %)"


def place_of(function: Function, most: int = NAME) -> str:
    """Function with location, 'augment (train.py:88)'."""
    name = short(function.words, most)
    return f"{name} ({file_of(function, most)})" if function.file else name


def file_of(function: Function, most: int = NAME) -> str:
    """Location of a function, 'train.py:88'."""
    name = short(function.file.rpartition("/")[2], most)
    return f"{name}:{function.line}" if function.line > 0 else name


def for_and_against(suspect: Suspect) -> tuple[list[Evidence], list[Evidence]]:
    """Split the evidence into that for and that against the suspect."""
    against = [evidence for evidence in suspect.evidence if evidence.source.startswith(AGAINST)]
    return [evidence for evidence in suspect.evidence if not evidence.source.startswith(AGAINST)], against


def sureness(suspect: Suspect) -> str:
    """Confidence and onset, '94 %; it began at 2026-01-01T00:00:00Z'."""
    since = f"; it began at {moment(suspect.since)}" if suspect.since is not None else ""
    return f"{100 * suspect.confidence:.0f} %{since}"


def evidence_line(evidence: Evidence) -> str:
    """Evidence as one line, 'time in augment: 0.1 s/step; 3 peers 4 ms'."""
    text = f"{clean(evidence.measure)}: {measure(evidence.value, evidence.unit)}"
    expected = expected_of(evidence)
    return f"{text}; {expected}" if expected else text


def expected_of(evidence: Evidence) -> str:
    """Expected value in words, '3 peers 4 ms'; '' if there is none."""
    if evidence.expected is None:
        return ""
    expected = measure(evidence.expected, "s" if evidence.unit == "s/step" else evidence.unit)
    if evidence.peers > 1:
        return f"{evidence.peers} peers {expected}"
    return f"its peer {expected}" if evidence.peers == 1 else f"expected {expected}"


def measure(value: float | str, unit: str) -> str:
    """Format a value with its unit for people."""
    if isinstance(value, str):
        return clean(value, WORDS)
    if unit in ("s", "s/step"):
        return seconds(value) + unit[1:]
    if unit.partition(" ")[0] == "share":
        return f"{100 * value:.3g} %{clean(unit, 30).removeprefix('share')}"
    if unit == "bytes/s":
        return rate(value)
    number = f"{value:.3g}" if not 1000 <= abs(value) < 1e15 else f"{float(f'{value:.3g}'):,.0f}"  # 6.67e+04: 66,700
    return f"{number} {clean(unit, 30)}".rstrip()


def context(verdict: Verdict, verbose: bool = False) -> str:
    """Job, ranks, hosts, step times and window time, as one line."""
    steps = verdict.step_seconds
    where = f" on {_hosts(verdict.hosts)}" if verdict.hosts else ""
    job = short(verdict.title or verdict.job, WHOLE if verbose else 120)
    if verbose and verdict.title:
        job += f" [{clean(verdict.job, 200)}]"
    parts = [f"{job}, {count_of(verdict)}{where}"]
    if steps.p50 is not None:
        p99 = f", p99 {seconds(steps.p99)}" if steps.p99 is not None else ""
        base = f", baseline {seconds(steps.baseline_p50)}" if steps.baseline_p50 is not None else ""
        parts.append(f"; {verdict.steps} steps, p50 {seconds(steps.p50)}{p99}{base}")
    if math.isfinite(verdict.start):
        parts.append(f"; window {moment(verdict.start)} + {verdict.end - verdict.start:.0f} s")
    return "".join(parts)


def moment(unix: float) -> str:
    """Format Unix time in UTC to the second; '?' for an invalid date."""
    return (timestamp(unix) or "?").replace(".000Z", "Z")


def _hosts(hosts: Iterable[str]) -> str:
    names = [short(host, HOST) for host in hosts]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
