"""Hosts whose windows begin apart, or whose clocks differ: the same iterations are compared with each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import builders
import numpy as np
import pytest
from builders import Job, build, columns

from rankscope.diagnose.infer.fleet.clocks.align import align, clock_notes
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.solve.judge import judge
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.folder import Window

STEP_S = 0.25  # about what a step of the builders takes


def moved(window: Window, late_s: float = 0.0, clock_s: float = 0.0) -> Window:
    """The window as it is when it begins `late_s` later and the host's clock is `clock_s` ahead."""
    rows = [row for row in window.steps.to_pylist() if row["start_s"] >= late_s]
    first = {row["rank"]: row["step"] for row in reversed(rows)}
    for row in rows:
        row["start_s"] -= late_s
        row["step"] -= first[row["rank"]]
    begins = window.manifest.start + late_s + clock_s
    return replace(columns(window, "steps", rows), manifest=replace(window.manifest, start=begins))


def slowing(window: Window) -> Window:
    """Steps become steadily longer, to twice as long at the end."""

    def later(second: float) -> float:
        return second + second**2 / (2 * window.manifest.seconds)

    rows = window.steps.to_pylist()
    for row in rows:
        begin, end = later(row["start_s"]), later(row["start_s"] + row["seconds"])
        factor = (end - begin) / row["seconds"]
        row |= {name: factor * row[name] for name in ("seconds", "own_s", "wait_s", "io_s", "sched_s", "sync_s")}
        row["start_s"] = begin
    return columns(window, "steps", rows)


def same(window: Window) -> Window:
    return window


def disagreement(windows: list[Window]) -> tuple[float, int]:
    """The largest difference, over columns, of the length of the step on the ranks (it is one length in truth); columns that
    all ranks have."""
    seconds = gather(windows).steps.seconds
    full = np.isfinite(seconds).all(axis=0)
    return float(np.ptp(seconds[:, full], axis=0).max(initial=0.0)), int(full.sum())


@pytest.mark.parametrize("shape", [same, slowing])
@pytest.mark.parametrize("clock_s", [0.0, 0.003, 0.11, -0.11])
@pytest.mark.parametrize("late_s", [0.0, 0.1, 1.3, 5.9])
def test_one_column_is_one_iteration(late_s: float, clock_s: float, shape: Callable[[Window], Window]) -> None:
    first, second = (shape(window) for window in build(Job(hosts=2, steps=70, leaving_s=0.0)))
    apart, common = disagreement([first, moved(second, late_s, clock_s)])
    assert apart < 1e-4
    assert common >= 70 - late_s / (0.8 * STEP_S) - 2
    # AND the same whichever host is the reference
    assert disagreement([moved(first, late_s, clock_s), second])[0] < 1e-4


def test_who_is_late_now_and_then_is_found_although_the_windows_begin_apart() -> None:
    # GIVEN a host whose window begins 1.3 s later, and a rank on it that is slow in every step by as much as steps differ
    job = builders.slow_python(6, 0.06, hosts=2, noise=0.1)
    first, second = build(job)
    together, apart = judge(gather([first, second])), judge(gather([first, moved(second, 1.3)]))
    assert [suspect.ranks for suspect in apart.suspects] == [suspect.ranks for suspect in together.suspects] == [(6,)]
    lost = [verdict.suspects[0].lost_seconds_per_step for verdict in (apart, together)]
    assert lost[0] == pytest.approx(lost[1], rel=0.15)


LATE_S = (0.0, 0.0, 0.0, 7.0, 14.0)  # of windows of 20 s


def apart(job: Job, late_s: Sequence[float] = LATE_S) -> list[Window]:
    return [moved(window, late) for window, late in zip(build(job), late_s, strict=True)]


def test_a_window_that_shares_steps_with_the_others_is_judged_with_them_however_late_it_began() -> None:
    slow = builders.slow_python(9, 0.1, ranks=10, hosts=5, steps=75)
    verdict = judge(gather(apart(slow)))
    assert [suspect.ranks for suspect in verdict.suspects] == [(9,)]
    assert not {NoteCode.OTHER_MOMENTS, NoteCode.HOSTS_MISSING} & {note.code for note in verdict.notes}
    (short,) = [note.text for note in verdict.notes if note.code is NoteCode.RANKS_SHORT]
    assert short.startswith("ranks 8, 9 ")


def test_one_late_window_takes_none_of_the_others_away_nor_their_steps() -> None:
    """That of the first rank, which says what the steps are, as well."""
    steps = gather(apart(Job(ranks=10, hosts=5, steps=75), LATE_S[::-1])).steps
    of_each = np.isfinite(steps.seconds).sum(axis=1)
    assert of_each[4:].tolist() == [75] * 6
    assert 10 < of_each[0] < 35 < of_each[2] < 60


def test_a_window_that_shares_no_steps_is_left_out_and_said_and_that_which_was_agreed_on_is_judged() -> None:
    job = builders.slow_python(1, 0.1, hosts=2, steps=75)
    first, second = apart(job, (0.0, 0.0))
    later = replace(second, manifest=replace(second.manifest, start=second.manifest.start + 19.0))
    agreed = gather([first, later], agreed_s=first.manifest.start)
    assert agreed.hosts == ("node-0",)
    (text,) = [note.text for note in agreed.notes if note.code is NoteCode.HOSTS_MISSING]
    assert text == "no window of this moment from: node-1 (its own began 19 s later)"
    assert gather([first, later]).hosts == ("node-1",), "else the newest of two"


def is_hanging(silent_s: Sequence[float | None], begins_s: Sequence[float], seconds: float = 4.0) -> list[Window]:
    """Of hosts that saw nothing move for so long at the end of their windows; None: all the time."""
    ranks = {rank: {"last_progress_s": silent_s[rank // 2]} for rank in range(2 * len(silent_s))}
    job = Job(ranks=2 * len(silent_s), hosts=len(silent_s), steps=1, window_s=seconds, ranks_columns=ranks)
    return [
        replace(columns(window, "steps", []), manifest=replace(window.manifest, start=window.manifest.start + begin))
        for window, begin in zip(build(job), begins_s, strict=True)
    ]


@pytest.mark.parametrize(
    ("silent_s", "begins_s", "judged"),
    [
        ((None, 3.9, None), (0.0, 0.0, 7.5), 3),
        ((None, 3.9, 3.0), (0.0, 0.0, 7.5), 2),  # something moved meanwhile
        ((None, 1.0, None), (0.0, 0.0, 7.5), 2),  # or did before
        ((None, None, None), (0.0, 0.0, 12.5), 2),  # nobody looked for longer than was seen
        ((None, None, 3.9), (7.5, 7.5, 0.0), 3),
    ],
)
def test_of_a_job_that_stands_still_a_later_look_shows_the_same(
    silent_s: tuple[float | None, ...], begins_s: tuple[float, ...], judged: int
) -> None:
    fleet = gather(is_hanging(silent_s, begins_s))
    assert len(fleet.hosts) == judged
    assert (NoteCode.HOSTS_MISSING in {note.code for note in fleet.notes}) == (judged < 3)


def test_clocks_that_agree_are_not_mentioned_and_others_are() -> None:
    first, second = build(Job(hosts=2))
    assert not [
        note for note in gather([first, moved(second, 1.3, 0.008)]).notes if note.code is NoteCode.CLOCKS_DIFFER
    ]
    (note,) = [note for note in gather([first, moved(second, 1.3, 0.07)]).notes if note.code is NoteCode.CLOCKS_DIFFER]
    assert "node-1 70 ms ahead" in note.text
    (note,) = [note for note in gather([first, moved(second, 1.3, -0.07)]).notes if note.code is NoteCode.CLOCKS_DIFFER]
    assert "node-1 70 ms behind" in note.text


def test_steps_too_alike_under_clocks_too_far_apart_are_said_to_be_unsure() -> None:
    alike = Job(hosts=2, noise=0.0, spread=0.0, stalls=0.0)
    first, second = build(alike)
    step_s = float(np.median(first.steps["seconds"].to_numpy()))
    notes = gather([first, moved(second, 0.0, 0.45 * step_s)]).notes
    assert any(note.code is NoteCode.STEPS_UNMATCHED and "node-1" in note.text for note in notes)
    assert not any(
        note.code is NoteCode.STEPS_UNMATCHED for note in gather([first, moved(second, 0.0, 0.2 * step_s)]).notes
    )


def test_windows_that_begin_together_are_judged_as_ever() -> None:
    windows = build(builders.slow_python(3, 0.08, hosts=2))
    late = [replace(each, manifest=replace(each.manifest, start=each.manifest.start + 40.0)) for each in windows]
    fleet = gather(windows)
    assert np.array_equal(fleet.steps.own_s, gather(late).steps.own_s)
    written = [row["own_s"] for window in windows for row in window.steps.to_pylist()]
    assert fleet.steps.own_s.reshape(-1).tolist() == pytest.approx(written)
    alone = judge(gather(build(builders.slow_python(3, 0.08, hosts=1))))
    assert [s.ranks for s in judge(fleet).suspects] == [s.ranks for s in alone.suspects]


def test_of_two_steps_for_one_column_the_nearer_stays() -> None:
    (window,) = build(Job(ranks=2, steps=20, noise=0.0, stalls=0.0))
    rows = window.steps.to_pylist()
    stray = dict(next(row for row in rows if row["rank"] == 1 and row["step"] == 7))
    stray |= {"start_s": stray["start_s"] + 0.02, "own_s": 9.0, "step": 20}
    steps = gather([columns(window, "steps", [*rows, stray])]).steps
    assert np.nanmax(steps.own_s) < 1.0


def test_no_common_step_and_single_steps_are_no_stumbling_block() -> None:
    reference = np.arange(10) * 0.25
    ends = np.array([reference + 100.0, np.full(10, np.nan), np.append(0.255, np.full(9, np.nan))])
    clocks = align(reference, ends, 0.25)
    assert clocks.offset_s[:2].tolist() == [0.0, 0.0] and clocks.offset_s[2] == pytest.approx(-0.005)
    assert align(np.empty(0), ends, 0.25).offset_s.tolist() == [0.0] * 3
    assert clock_notes(("a", "b", "c"), clocks) == []


def test_twelve_thousand_hosts_take_little_time() -> None:
    rng = np.random.default_rng(3)
    reference = np.cumsum(rng.normal(0.25, 0.01, 67))
    offset = rng.normal(0, 0.02, 12_500)
    ends = reference[None, :] - offset[:, None] + rng.normal(0, 0.001, (12_500, 67))
    begun = time.process_time()
    found = align(reference, ends, 0.25)
    assert time.process_time() - begun < 10
    assert np.abs(found.offset_s - offset).max() < 0.001 and not found.unsure.any()


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_whose_steps_begin_half_a_step_later_is_in_every_column(seed: int) -> None:
    # GIVEN a slow rank whose steps are told from another place of the loop: a little less, or a little more, than half a step away
    (window,) = build(Job(ranks=4, seed=seed, extra={2: [(builders.BUSY, 0.1)]}))
    rows = window.steps.to_pylist()
    usual = float(np.median([row["seconds"] for row in rows]))
    rng = np.random.default_rng(seed)
    for row in rows:
        if row["rank"] == 2:
            row["start_s"] += usual * (0.5 + float(rng.normal(0, 0.03)))
    # WHEN the windows become a fleet
    steps = gather([columns(window, "steps", rows)]).steps
    # THEN it has a step in each, but for the first or the last, and they follow each other
    assert np.isfinite(steps.own_s).sum(axis=1).tolist() == [70, 70, 69, 70]
    assert steps.number is not None
    shown = steps.number[2][steps.number[2] >= 0]
    assert (np.diff(shown) == 1).all()
    # AND a rank that shows two steps for each of the others' stays where it was: nearest
    doubled = [dict(row, start_s=row["start_s"] + part * row["seconds"] / 2, seconds=row["seconds"] / 2, step=2 * row["step"] + part)
               for row in window.steps.to_pylist() if row["rank"] == 2 for part in (0, 1)]  # fmt: skip
    others = [row for row in window.steps.to_pylist() if row["rank"] != 2]
    found = gather([columns(window, "steps", [*others, *doubled])]).steps
    assert np.isfinite(found.own_s[2]).sum() == 70


def test_a_rank_that_shows_many_steps_for_each_of_the_others_does_not_keep_theirs_apart() -> None:
    # GIVEN actors and a learner that shows eight steps for each of theirs, and an actor that begins a fifth of a step later
    (window,) = build(Job(ranks=3, noise=0.02))
    rows = window.steps.to_pylist()
    others = [
        dict(row, start_s=row["start_s"] + 0.2 * row["seconds"] * (row["rank"] == 2)) for row in rows if row["rank"]
    ]
    many = [dict(row, start_s=row["start_s"] + part * row["seconds"] / 8, seconds=row["seconds"] / 8, step=8 * row["step"] + part)
            for row in rows if row["rank"] == 0 for part in range(8)]  # fmt: skip
    # WHEN they become a fleet
    found = gather([columns(window, "steps", [*many, *others])]).steps
    # THEN the actors are compared in every step
    assert np.isfinite(found.own_s[1:]).sum(axis=1).tolist() == [70, 70]
