"""Build a fleet from windows: the hosts of one job in windows of the same time (roll_call.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

import numpy as np
import pyarrow as pa

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet import from_windows
from rankscope.diagnose.infer.fleet.collectives.slots import read_slots
from rankscope.diagnose.infer.fleet.collectives.stays import made_each
from rankscope.diagnose.infer.fleet.labels import distinct_texts, equals, floats, ints, labels
from rankscope.diagnose.infer.fleet.model import Fleet, Ranks, Steps
from rankscope.diagnose.infer.fleet.roll_call import choose, of_job, roll_call
from rankscope.diagnose.infer.fleet.step_matrix import Hosts, read_steps
from rankscope.diagnose.infer.lacking import Lacking, lacking_in, seeing
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.robust import median
from rankscope.diagnose.text import clean
from rankscope.observer.window.folder import Window
from rankscope.observer.window.manifest import EVENTS_DROPPED, Loss, Manifest
from rankscope.observer.window.store.users import rename_jobs
from rankscope.probes.base.arrays import Ints

DETAILS = ("patterns", "stacks", "pauses", "flows", "counters", "collectives")  # tables besides ranks and steps
_STACK_COLUMNS = {"patterns": "stack", "stacks": "parent"}  # columns that refer to rows of the table stacks

# What each loss counter means, in words for notes; names as in probes/bpf/counters.py.
_LOST = {
    "walk_failed": "Python stacks could not be read", "walk_stale": "Python stacks changed while they were read",
    "walk_disturbed": "Python stacks changed while they were read", "walk_truncated": "Python stacks were too deep to be read to their end",
    "leaving_unseen": "times of threads that left a CPU were not seen",
    "ring_full": "events came faster than they were taken", "call_share_full": "calls were more at once than one process may have",
    "takers_forgotten": "of processes that ran in the ranks' place some were forgotten",
    "thread_share_full": "threads were more than one process may have where there are many",
    "threads_without_room": "threads had no room in the kernel", "processes_without_room": "processes had no room in the kernel",
    "thrown_out": "windows were thrown out for want of room",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """Job, time span and observation quality of the selected windows."""

    job: str
    title: str
    start: float
    seconds: float
    windows: int
    sampling_s: float
    lost_events: int
    lacking: tuple[Lacking, ...] = ()


def gather(windows: Sequence[Window], job: str | None = None, agreed_s: float | None = None) -> Fleet:
    """Build the fleet of one job from the windows that cover the same time.

    roll_call.choose selects the windows and says what it raises. `agreed_s`: Unix time at which
    they were to begin, if that was agreed on.
    """
    (windows,) = rename_jobs(windows)
    notes: list[Note] = []
    chosen, mine = choose(roll_call(windows), job, notes, partial(_usual_step_s, windows), agreed_s)
    mine, unseen = seeing(mine, [window.manifest for window in windows])
    used = [windows[number] for number in mine]
    manifests = [window.manifest for window in used]
    tables = {name: joined(used, name) for name in ("ranks", "steps", *DETAILS)}
    setting = setting_of(chosen, manifests, tables["ranks"], notes)
    of_it = of_job(tables["ranks"], chosen)
    ranks = from_windows.ranks(of_it, notes)
    note_strangers(tables["ranks"], chosen, ranks.number, notes)
    rows = from_windows.rows_of(tables["steps"], ranks.number)
    steps = read_steps(tables["steps"], rows, ranks.number, _hosts(ranks, manifests), setting.seconds, notes)
    gone = from_windows.gone(of_it, tables["counters"], ranks, ranks.number)
    return replace(fleet_of(setting, ranks, steps, tables, notes), gone=gone, unseen=unseen)


def _usual_step_s(windows: Sequence[Window], job: str) -> float | None:
    """Median length in seconds of all steps in the windows with this job; None if there are none."""
    steps = [floats(window.steps, "seconds") for window in windows if job in window.manifest.jobs]
    seconds = np.concatenate(steps) if steps else np.empty(0)
    return median(seconds) if len(seconds) else None


def joined(windows: Sequence[Window], name: str) -> pa.Table:
    """Concatenate the table called `name` of all windows; add each row's host and renumber stacks.

    The host goes into the column `observed_on`.
    """
    pieces = []
    for window in windows:
        table = getattr(window, name)
        host = from_windows.constant(window.manifest.host, table.num_rows)
        pieces.append((table.append_column("observed_on", host), window.stacks.num_rows))
    return counted_on(name, pieces)


def counted_on(name: str, pieces: Iterable[tuple[pa.Table, int]]) -> pa.Table:
    """Concatenate pieces of the table called `name`, renumbering its references to rows of `stacks`.

    Each piece comes with the number of rows of its own window's table `stacks`.
    """
    column = _STACK_COLUMNS.get(name)
    moved, stacks = [], 0
    for table, more in pieces:
        moved.append(table if column is None else from_windows.shifted(table, column, stacks))
        stacks += more
    return from_windows.joined(moved)


def setting_of(job: str, manifests: Sequence[Manifest], ranks: pa.Table, notes: list[Note]) -> Setting:
    """Derive the `Setting` from the manifests and the table `ranks`.

    Adds the observers' own notes, and notes on lost events.
    """
    for about in manifests:
        if about.notes:
            notes.extend(Note(NoteCode.OBSERVER, clean(note, 300)) for note in about.notes)
        for loss in about.losses:
            if loss.count and not _is_little(loss, about):
                what = _LOST.get(loss.name, "things were lost")
                text = f"{about.host}: {loss.count} {what} ({clean(loss.source)}, {clean(loss.name)})"
                notes.append(Note(NoteCode.EVENTS_LOST, text))
    return Setting(
        job=job,
        title=_title(ranks, job),
        start=min(map(attrgetter("start"), manifests)),
        seconds=median(list(map(attrgetter("seconds"), manifests))),
        windows=len(manifests),
        sampling_s=1 / min(map(attrgetter("sampling_hz"), manifests)),
        lost_events=_lost_events(manifests),
        lacking=lacking_in(manifests),
    )


def note_strangers(ranks: pa.Table, job: str, numbers: Ints, notes: list[Note]) -> None:
    """Add a note if ranks of other jobs have some of these rank numbers.

    `ranks`: table of the ranks of all jobs.
    """
    strangers = ints(ranks, "rank")[~equals(ranks, "job", job)]
    if np.isin(strangers, numbers).any():
        text = "another job on these hosts has ranks of the same numbers: record with --job to tell them apart"
        notes.append(Note(NoteCode.SAME_NUMBERS, text))


def _hosts(ranks: Ranks, manifests: Sequence[Manifest]) -> Hosts:
    """Build `Hosts`: the host of each rank, and when the window of each host begins."""
    names, host = distinct_texts(ranks.observed_on)
    begins_s = {about.host: about.start for about in manifests}
    return Hosts(names, host, np.array([begins_s[name] for name in names]))


def fleet_of(
    setting: Setting, ranks: Ranks, steps: Steps, tables: Mapping[str, pa.Table], notes: Sequence[Note]
) -> Fleet:
    """Assemble the fleet from its ranks, steps and the other tables of the windows.

    `tables`: those named in DETAILS; rows of ranks not in `ranks` are dropped.
    """
    rows = {name: from_windows.rows_of(tables[name], ranks.number) for name in DETAILS if name != "stacks"}
    return Fleet(
        job=setting.job,
        title=setting.title,
        start=setting.start,
        seconds=setting.seconds,
        windows=setting.windows,
        ranks=ranks,
        steps=steps,
        patterns=from_windows.patterns(tables["patterns"], tables["stacks"], rows["patterns"]),
        pauses=from_windows.pauses(tables["pauses"], rows["pauses"]),
        flows=from_windows.flows(tables["flows"], rows["flows"]),
        counters=from_windows.counters(tables["counters"], rows["counters"]),
        slots=read_slots(tables["collectives"], rows["collectives"], steps),
        collectives=made_each(tables["collectives"], rows["collectives"], steps),
        notes=tuple(dict.fromkeys(notes)),
        sampling_s=setting.sampling_s,
        lost_events=setting.lost_events,
        lacking=setting.lacking,
    )


def _title(ranks: pa.Table, job: str) -> str:
    """The most frequent job title among the job's ranks: a learner and its actors may run different
    scripts."""
    title = labels(of_job(ranks.select(["job", "title"]), job), "title")
    counted = zip(np.bincount(title.codes, minlength=len(title.values)).tolist(), title.values, strict=True)
    return max(counted, default=(0, ""))[1]


def _is_little(loss: Loss, about: Manifest) -> bool:
    """Whether a loss is negligible: fewer unreadable stacks than 1 % of one training thread's samples.

    The kernel counts them for all threads of the host, those of libraries and loaders as well.
    False for other losses.
    """
    return loss.name.startswith("walk_") and loss.count < limits.NOTHING * about.sampling_hz * about.seconds


def _lost_events(manifests: Sequence[Manifest]) -> int:
    """Number of events dropped between kernel and observers.

    Each host counts once, since the windows of all its jobs repeat the number.
    """
    lost: dict[str, int] = {}
    for about in manifests:
        if not about.losses:
            continue
        dropped = sum(loss.count for loss in about.losses if loss.name == EVENTS_DROPPED)
        lost[about.host] = max(lost.get(about.host, 0), dropped)
    return sum(lost.values())
