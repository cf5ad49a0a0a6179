"""Windows in, fleet out: the hosts of one job at one moment (roll_call.py), one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankscope.diagnose.fleet import from_windows
from rankscope.diagnose.fleet.counters import Counters
from rankscope.diagnose.fleet.model import Fleet, Flows, Ranks, Steps
from rankscope.diagnose.fleet.roll_call import choose, roll_call
from rankscope.diagnose.fleet.slots import read_slots
from rankscope.diagnose.fleet.step_matrix import read_steps
from rankscope.diagnose.text import clean
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.observer.window.folder import Window
from rankscope.observer.window.manifest import EVENTS_DROPPED, Manifest

DETAILS = ("patterns", "stacks", "pauses", "flows", "counters", "collectives")  # the tables beside ranks and steps
_STACK_COLUMNS = {"patterns": "stack", "stacks": "parent"}  # that hold numbers of rows of the table stacks


def gather(windows: Sequence[Window], job: str | None = None) -> Fleet:
    """Concatenate the windows of one job at one moment: which ones, says roll_call.choose, which also says what it raises."""
    notes: list[Note] = []
    chosen, mine = choose(roll_call(windows), job, notes)
    used = [windows[number] for number in mine]
    tables = {name: joined(used, name) for name in ("ranks", "steps")}
    fleet = people(chosen, [window.manifest for window in used], tables, notes)
    return detailed(fleet, fleet.ranks, fleet.steps, {name: joined(used, name) for name in DETAILS})


def joined(windows: Sequence[Window], name: str) -> pa.Table:
    """One table of all windows, with the host in each row; numbers of stacks count on from window to window."""
    pieces, stacks = [], 0
    for window in windows:
        table = getattr(window, name)
        if name in _STACK_COLUMNS:
            table = from_windows.shifted(table, _STACK_COLUMNS[name], stacks)
        pieces.append(table.append_column("observed_on", from_windows.constant(window.manifest.host, table.num_rows)))
        stacks += window.stacks.num_rows
    return from_windows.joined(pieces)


def people(job: str, manifests: Sequence[Manifest], tables: Mapping[str, pa.Table], notes: list[Note]) -> Fleet:
    """The fleet of a job, ranks and steps alone. `tables`: ranks and steps of these windows."""
    for about in manifests:
        notes.extend(Note(NoteCode.OBSERVER, clean(note, 300)) for note in about.notes)
        for loss in about.losses:
            if loss.count:
                text = f"{about.host}: {clean(loss.source)} lost {loss.count} ({clean(loss.name)})"
                notes.append(Note(NoteCode.EVENTS_LOST, text))
    everyone = tables["ranks"]
    ranks = from_windows.ranks(everyone.filter(pc.equal(everyone["job"], job)), notes)
    strangers = everyone.filter(pc.not_equal(everyone["job"], job))["rank"].to_pylist()
    if set(strangers) & set(ranks.number.tolist()):
        text = "another job on these hosts has ranks of the same numbers: record with --job to tell them apart"
        notes.append(Note(NoteCode.SAME_NUMBERS, text))
    seconds = float(np.median([about.seconds for about in manifests]))
    begins_s = {about.host: about.start for about in manifests}
    rows = from_windows.rows_of(tables["steps"], ranks.number)
    steps = read_steps(tables["steps"], rows, ranks.observed_on, begins_s, seconds, notes)
    return Fleet(
        job=job,
        title=_title(everyone, job),
        start=min(about.start for about in manifests),
        seconds=seconds,
        windows=len(manifests),
        ranks=ranks,
        steps=steps,
        patterns=from_windows.no_patterns(),
        flows=Flows.none(),
        counters=Counters(),
        notes=tuple(dict.fromkeys(notes)),
        sampling_s=1 / min(about.sampling_hz for about in manifests),
        lost_events=_lost_events(manifests),
    )


def detailed(fleet: Fleet, ranks: Ranks, steps: Steps, tables: Mapping[str, pa.Table]) -> Fleet:
    """The fleet with all other tables. `ranks`, `steps`: of the ranks that these tables are about."""
    rows = {name: from_windows.rows_of(tables[name], ranks.number) for name in DETAILS if name != "stacks"}
    return replace(
        fleet,
        ranks=ranks,
        steps=steps,
        patterns=from_windows.patterns(tables["patterns"], tables["stacks"], rows["patterns"]),
        pauses=from_windows.pauses(tables["pauses"], rows["pauses"]),
        flows=from_windows.flows(tables["flows"], rows["flows"]),
        counters=from_windows.counters(tables["counters"], rows["counters"]),
        slots=read_slots(tables["collectives"], rows["collectives"], steps),
    )


def _title(ranks: pa.Table, job: str) -> str:
    """What most ranks of the job call it: a learner and its actors may run different scripts."""
    counted = pc.value_counts(ranks.filter(pc.equal(ranks["job"], job))["title"].combine_chunks()).to_pylist()
    return str(max(counted, key=lambda each: (each["counts"], each["values"]))["values"]) if counted else ""


def _lost_events(manifests: Sequence[Manifest]) -> int:
    """Events dropped between the kernel and the observers. A host says the same in the windows of all its jobs: it counts once."""
    lost: dict[str, int] = {}
    for about in manifests:
        dropped = sum(loss.count for loss in about.losses if loss.name == EVENTS_DROPPED)
        lost[about.host] = max(lost.get(about.host, 0), dropped)
    return sum(lost.values())
