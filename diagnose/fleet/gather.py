"""Windows in, fleet out: pick one job and one moment out of any number of windows, and concatenate its hosts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankscope.diagnose.fleet import from_windows
from rankscope.diagnose.fleet.model import Fleet
from rankscope.diagnose.fleet.slots import read_slots
from rankscope.diagnose.fleet.step_matrix import read_steps
from rankscope.diagnose.text import clean
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.observer.window.bundle import is_bundle, read_bundle
from rankscope.observer.window.folder import Window, find_windows, read_window
from rankscope.observer.window.jobs import matching, names
from rankscope.observer.window.manifest import EVENTS_DROPPED
from rankscope.observer.window.schema import TABLES
from rankscope.probes.errors import BadData, NoRanks

_STACK_COLUMNS = {"patterns": "stack", "stacks": "parent"}  # that hold numbers of rows of the table stacks


def load(places: Iterable[Path]) -> list[Window]:
    """Read window folders, folders of them, or bundles. Raises BadData, one clear line, for anything else."""
    found: list[Window] = []
    for given in places:
        found += read_bundle(given).windows if is_bundle(given) else map(read_window, find_windows(given))
    return found


def load_baseline(given: Sequence[Path], places: Iterable[Path] = ()) -> list[Window]:
    """The windows of a baseline: those that are given, else those that came with the bundles among `places`."""
    if given:
        return load(given)
    return [window for place in places if is_bundle(place) for window in read_bundle(place).baseline]


def jobs_in(windows: Sequence[Window], wanted: str | None = None) -> dict[str, str]:
    """The jobs in windows with their titles: all, or those that are meant by a name.

    Raises NoRanks where there is none, BadData where none of them is meant.
    """
    sizes: dict[str, int] = {}
    titles: dict[str, dict[str, int]] = {}
    for window in windows:
        for name, count in _jobs(window).items():
            sizes[name] = sizes.get(name, 0) + count
            of_job = titles.setdefault(name, {})
            title = _title(_table(window, "ranks"), name)
            of_job[title] = of_job.get(title, 0) + count
    if not sizes:
        raise NoRanks("no rank was found in the window")
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))
    found = {name: max(titles[name], key=lambda title: (titles[name][title], title)) for name in largest}
    if wanted is None:
        return found
    meant = matching(wanted, found)
    if not meant:
        known = ", ".join(clean(name, 100) for name in list(names(found).values())[:5])
        raise BadData(f"job {clean(wanted, 60)!r} is not in these windows (jobs seen: {known})")
    return {name: title for name, title in found.items() if name in meant}


def gather(windows: Sequence[Window], job: str | None = None) -> Fleet:
    """Concatenate the windows of one job at one moment.

    The job is the one with most ranks of those that `job` means, or of all. The moment is the newest at which most hosts of the job were
    observed. Raises BadData if no window holds the job, NoRanks if no window holds any rank.
    """
    notes: list[Note] = []
    chosen = _choose_job(windows, job, notes)
    mine = [window for window in windows if chosen in _jobs(window)]
    mine = _of_one_owner(_choose_moment(mine, notes), chosen, notes)
    for window in mine:
        notes.extend(Note(NoteCode.OBSERVER, clean(note, 300)) for note in window.manifest.notes)
        for loss in window.manifest.losses:
            if loss.count:
                text = f"{window.manifest.host}: {clean(loss.source)} lost {loss.count} ({clean(loss.name)})"
                notes.append(Note(NoteCode.EVENTS_LOST, text))
    return _assemble(chosen, mine, notes)


# ---- choosing ---------------------------------------------------------------------------------------------------


def _jobs(window: Window) -> dict[str, int]:
    """Ranks per job."""
    counted = pc.value_counts(_table(window, "ranks")["job"].combine_chunks())
    return {entry["values"]: entry["counts"] for entry in counted.to_pylist() if entry["values"] is not None}


def _choose_job(windows: Sequence[Window], job: str | None, notes: list[Note]) -> str:
    found = jobs_in(windows, job)
    best, *others = found
    if others:
        called = names(found)
        text = f"{len(found)} jobs were seen; the largest is judged, use --job for: "
        notes.append(Note(NoteCode.OTHER_JOBS, text + ", ".join(clean(called[name], 100) for name in others)))
    return best


def _choose_moment(windows: Sequence[Window], notes: list[Note]) -> list[Window]:
    hosts = {window.manifest.host for window in windows}
    moments: list[list[Window]] = []
    for window in sorted(windows, key=lambda each: -each.manifest.start):
        length = window.manifest.seconds
        if moments and abs(moments[-1][0].manifest.start - window.manifest.start) < length / 2:
            moments[-1].append(window)
        else:
            moments.append([window])
    best = max(moments, key=lambda group: len({window.manifest.host for window in group}))  # the first is the newest
    if len(moments) > 1:
        text = f"{len(moments)} moments were given; the newest common one is judged, the others are left out"
        notes.append(Note(NoteCode.OTHER_MOMENTS, text))
    missing = sorted(hosts - {window.manifest.host for window in best})
    if missing:
        text = f"no window of this moment from: {', '.join(clean(host, 60) for host in missing[:8])}"
        notes.append(Note(NoteCode.HOSTS_MISSING, text))
    return best


def _of_one_owner(windows: Sequence[Window], job: str, notes: list[Note]) -> list[Window]:
    """Without the windows of users who claim ranks that a user with more of them has: somebody gave his job the same name."""
    found: dict[int, list[Window]] = {}
    numbers: dict[int, list[int]] = {}
    for window in windows:
        ranks = window.ranks.filter(pc.equal(window.ranks["job"], job))
        owner = max(ranks["owner"].to_pylist(), default=-1)
        found.setdefault(owner, []).append(window)
        numbers.setdefault(owner, []).extend(ranks["rank"].to_pylist())
    main = max(found, key=lambda owner: len(set(numbers[owner])))
    others = [owner for owner in found if owner not in (main, -1) and set(numbers[owner]) & set(numbers[main])]
    if others:
        hosts = sorted({window.manifest.host for owner in others for window in found[owner]})
        text = "ranks that others have are claimed by another user, and left out, on: "
        notes.append(Note(NoteCode.OTHER_USERS, text + ", ".join(clean(host, 60) for host in hosts[:8])))
    left_out = {id(window) for owner in others for window in found[owner]}
    return [window for window in windows if id(window) not in left_out]


# ---- assembling ----------------------------------------------------------------------------------------------------


def _table(window: Window, name: str) -> pa.Table:
    table: pa.Table = getattr(window, name)
    return table


def _pieces(windows: Sequence[Window], name: str) -> list[pa.Table]:
    """One table of each window, with its host; numbers of stacks count on from window to window."""
    pieces, stacks = [], 0
    for window in windows:
        table = _table(window, name)
        if name in _STACK_COLUMNS:
            table = from_windows.shifted(table, _STACK_COLUMNS[name], stacks)
        pieces.append(table.append_column("observed_on", from_windows.constant(window.manifest.host, table.num_rows)))
        stacks += window.stacks.num_rows
    return pieces


def _title(ranks: pa.Table, job: str) -> str:
    """What most ranks of the job call it: a learner and its actors may run different scripts."""
    counted = pc.value_counts(ranks.filter(pc.equal(ranks["job"], job))["title"].combine_chunks()).to_pylist()
    return str(max(counted, key=lambda each: (each["counts"], each["values"]))["values"]) if counted else ""


def _lost_events(windows: Sequence[Window]) -> int:
    """Events dropped between the kernel and the observers. A host says the same in the windows of all its jobs: it counts once."""
    lost: dict[str, int] = {}
    for window in windows:
        dropped = sum(loss.count for loss in window.manifest.losses if loss.name == EVENTS_DROPPED)
        lost[window.manifest.host] = max(lost.get(window.manifest.host, 0), dropped)
    return sum(lost.values())


def _assemble(job: str, windows: Sequence[Window], notes: list[Note]) -> Fleet:
    parts = {name: from_windows.joined(_pieces(windows, name)) for name in TABLES}
    everyone = parts["ranks"]
    ranks = from_windows.ranks(everyone.filter(pc.equal(everyone["job"], job)), notes)
    strangers = everyone.filter(pc.not_equal(everyone["job"], job))["rank"].to_pylist()
    if set(strangers) & set(ranks.number.tolist()):
        text = "another job on these hosts has ranks of the same numbers: record with --job to tell them apart"
        notes.append(Note(NoteCode.SAME_NUMBERS, text))
    seconds = float(np.median([window.manifest.seconds for window in windows]))
    rows = {
        name: from_windows.rows_of(parts[name], ranks.number)
        for name in ("steps", "patterns", "pauses", "flows", "counters", "collectives")
    }
    begins_s = {window.manifest.host: window.manifest.start for window in windows}
    steps = read_steps(parts["steps"], rows["steps"], ranks.observed_on, begins_s, seconds, notes)
    return Fleet(
        job=job,
        title=_title(everyone, job),
        start=min(window.manifest.start for window in windows),
        seconds=seconds,
        windows=len(windows),
        ranks=ranks,
        steps=steps,
        patterns=from_windows.patterns(parts["patterns"], parts["stacks"], rows["patterns"]),
        pauses=from_windows.pauses(parts["pauses"], rows["pauses"]),
        flows=from_windows.flows(parts["flows"], rows["flows"]),
        counters=from_windows.counters(parts["counters"], rows["counters"]),
        notes=tuple(dict.fromkeys(notes)),
        sampling_s=1 / min(window.manifest.sampling_hz for window in windows),
        lost_events=_lost_events(windows),
        slots=read_slots(parts["collectives"], rows["collectives"], steps),
    )
