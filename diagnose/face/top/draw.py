"""Draw a snapshot as lines of 40 to 200 columns. Pure.

A bar shows where a rank's time goes, one character per class, with a legend at the bottom. If there
is no room for all ranks, suspects come first, then those that wait least: the others wait for them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from rankscope.diagnose.face.top.snapshot import OTHERS, OWN, PARTS, JobNow, RankNow, Snapshot, SuspectNow
from rankscope.diagnose.face.top.view import HELP, RANK, STEP, WAITS, WORKS, View
from rankscope.diagnose.text import held, rank_list, seconds, short

NARROWEST, WIDEST = 40, 200
_WIDE = 72  # from this width on, times fit next to the bar
_RANK, _STEP, _TIME = 6, 9, 9  # columns
_NAME = 14  # least width for what a rank works on
_HELD = "\N{NO-BREAK SPACE}"  # never broken across lines
_BARS = ("where its time goes", "time")  # column heads, by width


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters of a terminal: one for each of PARTS, the steps of a sparkline, a mark for suspects."""

    parts: str = "█▓▒░·"
    spark: str = "▁▂▃▄▅▆▇█"
    mark: str = "◄"
    cut: str = "…"
    down: str = "▼"
    up: str = "▲"


ASCII = Glyphs("#=+:.", "_.-:=+*#", "<", "~", "v", "^")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text. `tone`: title, bad, good, doubt, soft, or '' for plain."""

    text: str
    tone: str = ""


_TONES = {
    "healthy": "good",
    "inefficient": "doubt",
    "fault": "bad",
    "hang": "bad",
    "imbalance": "doubt",
    "unknown": "soft",
}


def lines(
    snapshot: Snapshot, width: int, height: int, glyphs: Glyphs | None = None, view: View | None = None
) -> list[Line]:
    """Draw the snapshot, at most `width` columns; ranks are left out to fit `height`.

    `view`: how ranks are sorted, if a user can press keys; else None.
    """
    signs = glyphs or Glyphs()
    width = min(max(width, NARROWEST), WIDEST)
    head = [Line(_heading(snapshot, width, signs), "title")]
    foot = [*_counters(snapshot, width), *_legend(width, signs, view is not None)]
    jobs = [_job(job, width, signs) for job in snapshot.jobs]
    if not jobs:
        return [*head, Line("no training process here yet", "soft"), *_counters(snapshot, width)]
    above = sum(len(one) + 1 for one in jobs)
    room = max((height - len(head) - 1 - len(foot) - above) // len(jobs) - 1, 3)
    body: list[Line] = []
    for job, told in zip(snapshot.jobs, jobs, strict=True):
        body += [Line(""), *told, *_ranks(job, width, room, signs, view or View())]
    return [*head, *body, Line(""), *foot]


def help_lines(width: int, glyphs: Glyphs | None = None) -> list[Line]:
    """Draw the help: what each key does, and what the bars mean."""
    width = min(max(width, NARROWEST), WIDEST)
    told = [Line("rankscope top: keys", "title"), Line("")]
    for key, what in HELP:
        told += [Line(text) for text in wrapped(f"  {key:5}".replace(" ", _HELD) + what, width, " " * 7)]
    return [*told, Line(""), *_legend(width, glyphs or Glyphs(), False)]


def plain(snapshot: Snapshot) -> list[str]:
    """Draw for output that is no terminal: a line per job, suspect and rank that does not run, and for the host."""
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.at))
    told = []
    for job in snapshot.jobs:
        least = _waits_least(job.ranks)
        who = f"; rank {least.number} waits least" if least is not None else ""
        told.append(f"{clock} {job.title}: {job.status or 'running'}, {len(job.ranks)} ranks, step {_step(job)}{who}")
        told += [f"{clock} {job.title}: {_suspect(one)}" for one in job.suspects]
        told += [f"{clock} {job.title}: rank {rank.number} is {rank.state}" for rank in job.ranks if rank.state]
    counters = ", ".join(f"{one.name} {one.amount}" for one in snapshot.counters)
    return (
        [*told, f"{clock} {snapshot.host}: {counters or 'nothing'}"] if told else [f"{clock} no training process here"]
    )


def _heading(snapshot: Snapshot, width: int, signs: Glyphs) -> str:
    """Format the first line: time, host, and the source if there is room."""
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.at))
    said = f"rankscope top {clock}  {snapshot.host}"
    whole = f"{said}  {snapshot.source}"
    return whole if len(whole) <= width else _fit(said, width, signs)


def _job(job: JobNow, width: int, signs: Glyphs) -> list[Line]:
    """Draw what is above a job's ranks: its title and status, sparkline of steps, suspects and remark."""
    title = f"{job.title}: {rank_list(tuple(rank.number for rank in job.ranks)) if job.ranks else 'no ranks'}"
    told = [Line(_fit(f"{title}  {job.status.upper()}".rstrip(), width, signs), _TONES.get(job.status, ""))]
    said = f"step {_step(job)}  "
    room = width - len(said)
    told.append(Line(said + sparkline(job.steps_s, min(room, 80), signs) if room >= 8 else said.rstrip()))
    for number, one in enumerate(job.suspects, 1):
        tone = "bad" if one.now else "soft"
        told += [Line(text, tone) for text in wrapped(f"{number}. {_suspect(one)}", width, "   ")]
    if job.remark:
        told += [Line(text, "soft") for text in wrapped(job.remark, width, "")]
    return told


def _step(job: JobNow) -> str:
    """Format a job's recent step time (median of the last nine steps), and the usual one if it is known."""
    if not job.steps_s:
        return "not seen yet"
    last = sorted(job.steps_s[-9:])[len(job.steps_s[-9:]) // 2]
    return seconds(last) + (f", usually {seconds(job.usual_s)}" if job.usual_s is not None else "")


def _suspect(one: SuspectNow) -> str:
    """Format a suspect, with how many of the last looks saw it."""
    if one.looks <= 1:
        return one.words
    return f"{one.words} [{one.seen} of the last {one.looks} looks{'' if one.now else ', not the last one'}]"


def sparkline(values: Sequence[float], room: int, signs: Glyphs) -> str:
    """Draw the last values, one character each, scaled from 0 to the largest; '' if none is above 0."""
    last = list(values)[-room:]
    most = max(last, default=0.0)
    if most <= 0:
        return ""
    top = len(signs.spark) - 1
    return "".join(signs.spark[min(round(top * max(value, 0.0) / most), top)] for value in last)


def _ranks(job: JobNow, width: int, room: int, signs: Glyphs, view: View) -> list[Line]:
    """Draw the table of a job's ranks, at most `room` lines without its head."""
    shown, left = _chosen(job.ranks, room, view)
    wide = width >= _WIDE
    bar = min(max((width - _RANK - _STEP - (2 * _TIME if wide else 0) - _NAME) * 3 // 5, 8), 60)
    rank, step, works, waits = (_head(column, view, signs) for column in (RANK, STEP, WORKS, WAITS))
    times = f"{works:>{_TIME}}{waits:>{_TIME}}" if wide else ""
    heads = [Line(f"{rank:>{_RANK - 1}} {_BARS[bar < len(_BARS[0])]:<{bar}}{step:>{_STEP}}{times}", "soft")]
    told = [_rank(rank, width, bar, wide, signs) for rank in shown]
    if left:
        why = ", which wait longer" if view.column == RANK else ""
        told.append(Line(f"{'':>{_RANK}}{left} more{why}", "soft"))
    return [*heads, *told]


def _head(column: str, view: View, signs: Glyphs) -> str:
    """Format the head of a column, with a sign where the table is sorted by it; by rank, as at first, without one."""
    if column != view.column or view == View():
        return column
    return f"{column}{signs.down if view.descending else signs.up}"


def _chosen(ranks: Sequence[RankNow], room: int, view: View) -> tuple[list[RankNow], int]:
    """Choose the ranks that fit into `room`, in the wanted order; return them and how many are left out.

    Sorted by rank, these are the suspects and those that wait least, else the first.
    """
    if len(ranks) <= room:
        return view.order(ranks), 0
    most = max(room - 1, 1)
    if view.column == RANK:
        worst = sorted(ranks, key=lambda rank: (not rank.accused, not rank.state, _waiting(rank), rank.number))
        kept = view.order(worst[:most])
    else:
        kept = view.order(ranks)[:most]
    return kept, len(ranks) - len(kept)


def _rank(rank: RankNow, width: int, bar: int, wide: bool, signs: Glyphs) -> Line:
    """Draw the row of a rank; `bar`: columns of its bar, `wide`: with times next to the bar."""
    number = f"{rank.number}{'?' if rank.guessed else ''}"
    step = seconds(rank.step_s) if rank.step_s is not None else "-"
    text = f"{number:>{_RANK - 1}} {_bar(rank.parts, bar, signs):<{bar}}{step:>{_STEP}}"
    if wide:
        own, others = (_time(rank, part) for part in (OWN, OTHERS))
        text += f"{own:>{_TIME}}{others:>{_TIME}}"
    mark = f" {signs.mark}" if rank.accused else ""
    rest = width - len(text) - len(mark) - 1
    whole = f"{rank.most} ({rank.place})" if rank.place else rank.most
    said = rank.state or (whole if len(whole) <= rest else rank.most)
    text = f"{text} {_fit(said, rest, signs)}" if said and rest >= 3 else text
    return Line(f"{text.rstrip()}{mark}", "bad" if rank.accused or rank.state else "")


def _time(rank: RankNow, part: int) -> str:
    """Format the seconds per step of one part of a rank's time; '-' if unknown."""
    if not rank.parts or rank.step_s is None:
        return "-"
    return seconds(rank.parts[part] * rank.step_s)


def _bar(parts: Sequence[float], room: int, signs: Glyphs) -> str:
    """Draw shares as characters; rounding the end of each class keeps the total width exact."""
    whole = max(sum(parts), 1.0)
    ends = [round(room * end / whole) for end in accumulate(parts, initial=0.0)]
    return "".join(sign * (end - begin) for sign, (begin, end) in zip(signs.parts, pairwise(ends), strict=False))


def _waiting(rank: RankNow) -> float:
    """Return the share of time in which a rank waits for others, 0..1; 2 if unknown, so that it sorts last."""
    return rank.parts[OTHERS] if rank.parts else 2.0


def _waits_least(ranks: Sequence[RankNow]) -> RankNow | None:
    """Return the rank that waits least for others; None with fewer than two known."""
    known = [rank for rank in ranks if rank.parts]
    return min(known, key=_waiting) if len(known) > 1 else None


def _counters(snapshot: Snapshot, width: int) -> list[Line]:
    """Draw the host's counters, in as many lines as needed; [] without any."""
    if not snapshot.counters:
        return []
    said = ", ".join(f"{one.name} {one.amount}" for one in snapshot.counters)
    tone = "doubt" if any(one.sick for one in snapshot.counters) else "soft"
    return [Line(text, tone) for text in wrapped(f"host: {said}", width, "      ")]


def _legend(width: int, signs: Glyphs, keys: bool) -> list[Line]:
    """Draw the legend of the bars; `keys`: with a hint at the keys."""
    whole = (part.replace(" ", _HELD) for part in PARTS)
    said = " ".join(f"{sign}{_HELD}{part} " for sign, part in zip(signs.parts, whole, strict=True))
    hint = "; h: help, q: quit" if keys else ""
    return [Line(text, "soft") for text in wrapped(f"{said} (all wait for the rank that waits least{hint})", width, "")]


def wrapped(text: str, width: int, indent: str) -> list[str]:
    """Wrap to `width` columns, keeping numbers with their units; further lines begin with `indent`.

    Overlong words lose their middle.
    """
    told: list[str] = []
    for word in _words(text, width - len(indent)):
        if told and len(told[-1]) + 1 + len(word) <= width:
            told[-1] += f" {word}"
        else:
            told.append(f"{indent if told else ''}{word}")
    return told


def _words(text: str, room: int) -> Iterable[str]:
    """Yield the words of a text, each shortened to `room` characters; a number and its unit are one word."""
    return (short(word.replace(_HELD, " "), room) for word in held(text).split(" ") if word)


def _fit(text: str, room: int, signs: Glyphs) -> str:
    """Shorten a text to `room` characters, by the terminal's own sign for an ellipsis."""
    return short(text, room).replace("…", signs.cut)
