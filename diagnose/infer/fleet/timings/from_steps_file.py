"""Convert timings into a fleet, so that the same rules apply to observed windows and to timings.

own(r,s)  = sum of the seconds of rank r in step s that contain no waiting
wait(r,s) = the other seconds
T(s)      = median over ranks of own + wait where ranks agree (within 10 %), as they do without
            overlap; else own + wait of the rank with most own time, since the rank for which all
            others wait does not wait itself
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.counters import Counters
from rankscope.diagnose.infer.fleet.labels import Labels, distinct_texts
from rankscope.diagnose.infer.fleet.model import Fleet, Flows, Patterns, Pipelines, Ranks, Steps
from rankscope.diagnose.infer.fleet.stacks import Stacks
from rankscope.diagnose.infer.fleet.timings.not_timed import NAME, not_timed
from rankscope.diagnose.infer.fleet.timings.steps_file import ROWS_MOST, Timings
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.stats.robust import nan_median, peers_median
from rankscope.observer.window.schema import KINDS
from rankscope.probes.base.arrays import Bools, Floats, Ints
from rankscope.probes.base.errors import BadData

_COLLECTOR = re.compile(r"(python[-_. ]*)?(gc([-_. ]*collect\w*)?|garbage[-_ ]*collect\w*)", re.IGNORECASE)
_P2P = ("send", "recv", "receive", "isend", "irecv", "p2p")


def fleet_of(timings: Timings, job: str) -> Fleet:
    """Build the fleet from timings. Raises BadData if its matrices would be too large."""
    notes = [*timings.notes, Note(NoteCode.TIMINGS_ALONE, "from timings alone: no counters, no stacks, no clock")]
    numbers, row = np.unique(timings.rank, return_inverse=True)
    labels, column = _steps_of(timings, row, len(numbers), notes)
    if len(numbers) * max(len(labels), 1) > ROWS_MOST:
        raise BadData(f"{len(numbers)} ranks x {len(labels)} steps are too many: give fewer steps")
    shape = (len(numbers), len(labels))
    inside, cell, waits = column >= 0, row * shape[1] + column, timings.waits

    def matrix(rows: Bools) -> Floats:
        """Sum the seconds of these timings by rank and step (ranks x steps)."""
        chosen = rows & inside
        total = np.bincount(cell[chosen], weights=timings.seconds[chosen], minlength=shape[0] * shape[1])
        return np.asarray(total, dtype=np.float64).reshape(shape)

    own, wait = matrix(~waits), matrix(waits)
    seen = _seen(timings, numbers, labels, cell[inside], shape, notes)
    parts = [matrix(~waits & (timings.kind == KINDS.index(kind))) for kind in ("io", "sched", "sync")]
    for each in (own, wait, *parts):
        each[~seen] = np.nan
    step = _step_seconds(own, wait, notes)
    seconds = np.where(seen, step[None, :], np.nan)
    start = np.concatenate(([0.0], np.cumsum(np.nan_to_num(step))[:-1])) if len(step) else step
    usable = inside & seen.reshape(-1)[np.where(inside, cell, 0)] if seen.size else inside
    ranks = _ranks(timings, numbers, row, notes)
    window_s = float(np.nansum(step))
    return Fleet(
        job=job,
        start=float("nan"),
        seconds=max(window_s, 1e-9),
        windows=1,
        ranks=ranks,
        steps=Steps(start, seconds, own, wait, *parts),
        patterns=_patterns(timings, row, column, usable, seen.sum(axis=1), window_s),
        flows=Flows.none(),
        counters=Counters(),
        notes=tuple(dict.fromkeys(notes)),
        timed=True,
        pipelines=_pipelines(timings, row, column, ranks, matrix),
    )


def with_untimed(timings: Timings, fleet: Fleet) -> Timings | None:
    """Return the timings with the untimed parts of steps as rows of a function of their own.

    None if no rank is waited for meanwhile. `fleet`: made of these timings.
    """
    more = not_timed(fleet.steps.own_s, fleet.steps.wait_s, distinct_texts(fleet.ranks.role)[1])
    if not more.any():
        return None
    labels, _ = _steps_of(timings, np.unique(timings.rank, return_inverse=True)[1], len(fleet.ranks), [])
    return _with(timings, more, fleet.ranks.number, labels)


def _with(timings: Timings, more: Floats, numbers: Ints, labels: Ints) -> Timings:
    """Append rows for untimed seconds as executions of one function, with a note.

    `more`: untimed seconds, ranks x steps; `numbers`, `labels`: their rank and step numbers.
    """
    rank, step = np.nonzero(more)
    count = len(rank)
    first = {int(number): index for index, number in reversed(list(enumerate(timings.rank.tolist())))}
    like = np.array([first[int(numbers[row])] for row in rank], dtype=np.int64)
    name = (*timings.function.values, NAME)
    text = "on some ranks a part of each step was not timed, and others wait for them meanwhile: it counts as their own time"
    return replace(
        timings,
        rank=np.append(timings.rank, numbers[rank]),
        step=np.append(timings.step, labels[step]),
        function=Labels(np.append(timings.function.codes, np.full(count, len(name) - 1)), name),
        kind=np.append(timings.kind, np.full(count, KINDS.index("python"))),
        seconds=np.append(timings.seconds, more[rank, step]),
        count=np.append(timings.count, np.ones(count, dtype=timings.count.dtype)),
        waits=np.append(timings.waits, np.zeros(count, dtype=bool)),
        role=Labels(np.append(timings.role.codes, timings.role.codes[like]), timings.role.values),
        host=Labels(np.append(timings.host.codes, timings.host.codes[like]), timings.host.values),
        notes=(*timings.notes, Note(NoteCode.PARTLY_TIMED, text)),
    )


def apart(timings: Timings, begin: int, end: int) -> tuple[Timings, Timings]:
    """Split timings into those outside and inside columns `begin` to `end` - 1 of their fleet."""
    inside = _inside(timings, begin, end)
    return timings.taken(~inside), timings.taken(inside)


def between(timings: Timings, begin: int, end: int) -> Timings:
    """Timings of columns `begin` to `end` - 1 of their fleet."""
    return timings.taken(_inside(timings, begin, end))


def _inside(timings: Timings, begin: int, end: int) -> Bools:
    """Return the mask of the timings in columns `begin` to `end` - 1 of the fleet made of them."""
    numbers, row = np.unique(timings.rank, return_inverse=True)
    labels, _ = _steps_of(timings, row, len(numbers), [])
    return np.asarray((timings.step >= labels[begin]) & (timings.step <= labels[end - 1]))


# ---- steps -----------------------------------------------------------------------------------------------------------


def _steps_of(timings: Timings, row: Ints, ranks: int, notes: list[Note]) -> tuple[Ints, Ints]:
    """Select the steps known for at least half of the ranks; adds a note on others.

    `row`: rank (row) of each timing; `ranks`: number of ranks. Returns the step numbers, rising,
    and the column of every timing (-1: a step that is left out).
    """
    labels, column = np.unique(timings.step, return_inverse=True)
    pairs = np.unique(row.astype(np.int64) * len(labels) + column)
    holders = np.bincount(pairs % len(labels), minlength=len(labels))
    common = holders >= 0.5 * ranks
    if not common.all():
        text = (
            f"{int((~common).sum())} of {len(labels)} steps are known of fewer than half of the ranks and were left out"
        )
        notes.append(Note(NoteCode.STEPS_MISSING, text))
    place = np.where(common, np.cumsum(common) - 1, -1)
    return labels[common], place[column.reshape(-1)].astype(np.int64)


def _seen(
    timings: Timings, numbers: Ints, labels: Ints, cell: Ints, shape: tuple[int, int], notes: list[Note]
) -> Bools:
    """Mark complete cells (ranks x steps): no bad row, and at least half of the rank's usual number of rows.

    `numbers`, `labels`: rank and step numbers; `cell`: rank · steps + column of each timing. Adds
    notes on the other cells.
    """
    rows = np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    there = rows > 0
    usual = (
        nan_median(np.where(there, rows, np.nan).astype(np.float64), 1)[:, None] if shape[1] else np.ones((shape[0], 1))
    )
    whole: Bools = there & (rows >= 0.5 * usual)
    bad = np.isin(timings.bad_rank, numbers) & np.isin(timings.bad_step, labels)
    whole[np.searchsorted(numbers, timings.bad_rank[bad]), np.searchsorted(labels, timings.bad_step[bad])] = False
    absent, partial = int((~there).sum()), int((there & ~whole).sum())
    if absent:
        notes.append(Note(NoteCode.STEPS_MISSING, f"{absent} of {there.size} steps of ranks are missing"))
    if partial:
        notes.append(
            Note(NoteCode.STEPS_MISSING, f"{partial} of {there.size} steps of ranks are incomplete and were left out")
        )
    return whole


def _step_seconds(own: Floats, wait: Floats, notes: list[Note]) -> Floats:
    """Return the length of each step in seconds: the median over ranks of own + wait (ranks x steps).

    If some rank's sums are typically over 10 % off that, take the rank with most own time in the
    step, and add a note.
    """
    total = own + wait
    if total.size == 0:
        return np.empty(0)
    middle = nan_median(total, 0)
    spread = nan_median(np.abs(total - middle) / np.maximum(middle, 1e-12), 1)
    if float(np.nanmax(spread, initial=0.0)) <= limits.FEW:
        return middle
    text = (
        "the times of a step add up to different sums on different ranks (overlap, or waiting that was not timed): "
        "the sum of the busiest rank is taken as the length of the step"
    )
    notes.append(Note(NoteCode.SUMS_DIFFER, text))
    busiest = np.argmax(np.nan_to_num(own, nan=-1.0), axis=0)
    step: Floats = total[busiest, np.arange(total.shape[1])]
    return step


# ---- ranks and patterns ----------------------------------------------------------------------------------------------


def _ranks(timings: Timings, numbers: Ints, row: Ints, notes: list[Note]) -> Ranks:
    """Build the table of ranks from the file; what it does not say is unknown.

    `numbers`: rank numbers; `row`: rank (row) of each timing. Adds notes on missing ranks, and on
    missing or several roles.
    """
    count = len(numbers)
    strides = np.unique(np.diff(numbers))
    if len(strides) > 1:
        missing = int(numbers[-1]) + 1 - count
        notes.append(
            Note(NoteCode.RANKS_MISSING, f"{missing} ranks between 0 and {int(numbers[-1])} are not in the file")
        )
    host, role = _first(timings.host, row, count), _first(timings.role, row, count)
    said = sum(1 for each in role if each)
    if 0 < said < count:
        notes.append(
            Note(
                NoteCode.ROLES_PARTLY,
                f"{count - said} ranks have no role while others have: they are compared with each other",
            )
        )
    mixed = _mixed(timings.role, row, count)
    if mixed:
        notes.append(Note(NoteCode.ROLES_PARTLY, f"{mixed} ranks have more than one role; the first of each is used"))
    nothing: tuple[str, ...] = ("",) * count
    return Ranks(
        number=numbers,
        host=host,
        observed_on=host,
        netns=np.zeros(count, np.int64),
        role=role,
        world_size=np.full(count, count, np.int64),
        pid=np.zeros(count, np.int64),
        addresses=((),) * count,
        cpus=nothing,
        state=("running",) * count,
        stopped_s=np.zeros(count),
        last_progress_s=np.zeros(count),
        in_collective_s=np.zeros(count),
        ended_s=np.full(count, np.nan),
        exit_status=np.full(count, np.nan),
    )


def _first(labels: Labels, row: Ints, count: int) -> tuple[str, ...]:
    """Return the first non-empty text of each rank; '' if it has none.

    `row`: rank (row) of each label; `count`: number of ranks.
    """
    if labels.values == ("",):
        return ("",) * count
    named = np.flatnonzero(labels.codes != labels.code(""))
    owners, first = np.unique(row[named], return_index=True)
    found = [""] * count
    for owner, index in zip(owners.tolist(), named[first].tolist(), strict=True):
        found[owner] = labels.values[int(labels.codes[index])]
    return tuple(found)


def _mixed(labels: Labels, row: Ints, count: int) -> int:
    """Number of ranks with more than one distinct non-empty label; `row`: rank of each label."""
    named = labels.codes != labels.code("")
    pairs = np.unique(row[named] * len(labels.values) + labels.codes[named])
    return int((np.bincount(pairs // len(labels.values), minlength=count) > 1).sum())


def _patterns(timings: Timings, row: Ints, column: Ints, usable: Bools, steps: Ints, window_s: float) -> Patterns:
    """Build one pattern per rank, function and kind: seconds per step over the rank's usable steps.

    `row`, `column`: rank (row) and step column of each timing; `usable`: mask of timings; `steps`:
    usable steps by rank.
    """
    rows = np.flatnonzero(usable)
    collective = KINDS.index("collective")
    # Rows that wait count as collectives. A collective that does not wait is transfer: own time.
    kind = np.where(timings.waits, collective, timings.kind)[rows]
    moved = (~timings.waits & (timings.kind == collective))[rows]
    names = len(timings.function.values)
    key = ((row[rows] * names + timings.function.codes[rows]) * len(KINDS) + kind) * 2 + moved
    unique, inverse = np.unique(key, return_inverse=True)
    inverse = inverse.reshape(-1)
    total = np.bincount(inverse, weights=timings.seconds[rows], minlength=len(unique))
    happened = np.where(timings.seconds[rows] > 0, timings.count[rows], 0)  # 0 s: other ranks have this function
    count = np.bincount(inverse, weights=happened, minlength=len(unique))
    rank, name = unique // 2 // len(KINDS) // names, unique // 2 // len(KINDS) % names
    none = Labels(np.zeros(len(unique), np.int64), ("",))
    return Patterns(
        rank=rank,
        thread=Labels(np.zeros(len(unique), np.int64), ("training",)),
        kind=Labels(unique // 2 % len(KINDS), KINDS),
        name=Labels(name, timings.function.values),
        file=none,
        line=np.zeros(len(unique), np.int64),
        detail=Labels(np.where(_collects(timings)[name], 2, unique % 2), ("", "transfer", "gc")),
        caller=none,
        stack=Stacks.none(len(unique)),
        beta=np.asarray(total / max(window_s, 1e-9), dtype=np.float64),
        count=count.astype(np.int64),
        per_step_s=np.asarray(total / np.maximum(steps[rank], 1), dtype=np.float64),
        sd_s=_deviation(timings, rows, inverse, column, steps[rank]),
    )


def _collects(timings: Timings) -> Bools:
    """Mark functions that are garbage collection by their name."""
    return np.array([bool(_COLLECTOR.fullmatch(value)) for value in timings.function.values], dtype=bool)


def _deviation(timings: Timings, rows: Ints, inverse: Ints, column: Ints, steps: Ints) -> Floats:
    """Standard deviation in seconds of each pattern over the rank's usable steps; a step without it is 0.

    `rows`: usable timings; `inverse`: pattern of each of them; `column`: step column by timing;
    `steps`: usable steps of each pattern's rank.
    """
    width = int(column.max(initial=0)) + 1
    cells, cell = np.unique(inverse * width + column[rows], return_inverse=True)
    seconds = np.bincount(cell.reshape(-1), weights=timings.seconds[rows], minlength=len(cells))
    square = np.bincount(cells // width, weights=seconds**2, minlength=len(steps))
    total = np.bincount(cells // width, weights=seconds, minlength=len(steps))
    count = np.maximum(steps, 1)
    return np.asarray(np.sqrt(np.maximum(square / count - (total / count) ** 2, 0.0)), dtype=np.float64)


# ---- pipelines -------------------------------------------------------------------------------------------------------


def _pipelines(
    timings: Timings, row: Ints, column: Ints, ranks: Ranks, matrix: Callable[[Bools], Floats]
) -> Pipelines | None:
    """Pipelines of equal roles that exchange messages: the k-th rank of every role; None if there are none.

    `row`, `column`: rank (row) and step column of each timing; `matrix`: sums masked timings by
    rank and step. The time in a message includes filling the pipeline, so the transfer is taken
    from the other collectives.
    """
    roles, code = distinct_texts(ranks.role)
    sizes = np.bincount(code)
    if len(roles) < 2 or "" in roles or len(set(sizes.tolist())) > 1:
        return None
    names = [any(word in value.lower() for word in _P2P) for value in timings.function.values]
    between = np.array(names, dtype=bool)[timings.function.codes] & timings.waits
    if len(np.unique(code[row[between]])) < len(roles):
        return None
    position = np.empty(len(code), dtype=np.int64)
    for role in range(len(roles)):
        members = np.flatnonzero(code == role)
        position[members] = np.arange(len(members))
    batches, repeated = _micro_batches(timings, row, column)
    if batches < 2:
        return None
    once = matrix(~timings.waits & ~repeated[timings.function.codes])
    least = np.zeros(int(column.max()) + 1)
    for name in np.unique(timings.function.codes[timings.waits & ~between]):
        stay = matrix(timings.waits & (timings.function.codes == name))
        stay[stay <= 0] = np.inf
        least += np.where(np.isfinite(stay).any(axis=0), stay.min(axis=0), 0.0)
    usual = np.fmin(peers_median(once, code), nan_median(once, 1)[:, None])
    return Pipelines(position, batches, once, usual, least)


def _micro_batches(timings: Timings, row: Ints, column: Ints) -> tuple[int, Bools]:
    """Return the micro-batches per step, and a mask of the functions that run about as often.

    Micro-batches: executions per rank and step of the longest own function; 1 if unknown.
    """
    names = len(timings.function.values)
    own = np.flatnonzero(~timings.waits & (column >= 0))
    if len(own) == 0:
        return 1, np.zeros(names, dtype=bool)
    codes = timings.function.codes[own]
    steps = len(np.unique(column[own]))
    each = np.zeros(names)
    for code in np.unique(codes):
        chosen = own[codes == code]
        each[code] = timings.count[chosen].sum() / (len(np.unique(row[chosen])) * steps)
    largest = int(np.argmax(np.bincount(codes, weights=timings.seconds[own], minlength=names)))
    batches = max(round(float(each[largest])), 1)
    return batches, each >= 0.75 * batches
