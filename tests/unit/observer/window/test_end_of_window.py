"""The end of a window: what each process did is told of it whatever else was observed, and thousands of others cost it nothing."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pace import pace_s
from recorded import SECONDS, START_NS, Recorded, merged

from rankscope.observer.finish.by_process import events_by_process
from rankscope.observer.live import limits
from rankscope.observer.live.process_watch import LOADER, ProcessWatch
from rankscope.observer.window.folder import Window
from rankscope.observer.window.manifest import Loss
from rankscope.probes.bpf import ring

TABLES = ("ranks", "steps", "patterns", "stacks", "pauses", "collectives", "flows", "counters")


@pytest.fixture(autouse=True)
def memory_is_not_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "resident_bytes", lambda: 0)


def rows(window: Window) -> dict[str, list[dict[str, Any]]]:
    return {name: getattr(window, name).to_pylist() for name in TABLES}


def of_jobs(windows: list[Window]) -> dict[str, Window]:
    return {window.manifest.jobs[0]: window for window in windows}


def test_events_are_those_of_their_process_in_the_order_in_which_they_came() -> None:
    rng = np.random.default_rng(7)
    events = np.zeros(5000, ring.EVENT)
    events["tgid"], events["arg"] = rng.integers(1, 40, 5000), np.arange(5000)
    events["ts_ns"], events["dur_ns"] = rng.integers(0, 1000, 5000), rng.integers(0, 50, 5000)
    events["type"] = rng.choice([ring.OFFCPU, ring.EXIT], 5000)
    batches = [events[at : at + 700] for at in range(0, 5000, 700)]
    found = events_by_process(batches, 300, 800)
    assert batches == []
    ends = events["ts_ns"] + events["dur_ns"]
    kept = events[((ends > 300) | (events["type"] == ring.EXIT)) & (events["ts_ns"] < 800)]
    for pid in range(45):
        assert found.of(pid).tolist() == kept[kept["tgid"] == pid].tolist()
    assert len(events_by_process([], 0, 1).of(7)) == 0


def test_what_others_did_changes_no_row_of_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their events lie between its own, their processes between its processes."""
    alone, together = Recorded(), Recorded()
    alone.job("a", 1000, 10_000, 3)
    together.job("b", 1001, 300, 2)
    together.job("a", 1000, 10_000, 3)
    together.job("c", 1666, 90_000, 1, count=20_000)
    mine = rows(alone.end(tmp_path, monkeypatch)[0])
    assert rows(of_jobs(together.end(tmp_path, monkeypatch))["a"]) == mine
    assert {name: len(found) for name, found in mine.items()} == {
        "ranks": 3, "steps": 117, "patterns": 472, "stacks": 11, "pauses": 0, "collectives": 0, "flows": 3, "counters": 24,
    }  # fmt: skip
    assert [row["rank"] for row in mine["ranks"]] == [0, 1, 2]
    assert sum(row["samples"] for row in mine["ranks"]) == int(
        sum(
            ((part["type"] == ring.SAMPLE) & np.isin(part["tgid"], [10_000, 11_000, 12_000])).sum()
            for part in alone.parts
        )
    )


def test_whose_events_were_too_many_has_a_shorter_window_and_others_have_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, together = Recorded(), Recorded()
    for one in (alone, together):
        one.job("a", 1000, 10_000, 2, workers=0, count=200)
    together.job("heavy", 1666, 90_000, 2, count=6_000)
    honest = of_jobs(alone.end(tmp_path, monkeypatch))["a"]
    monkeypatch.setattr(limits, "EVENTS", 10_000)
    running, events = together.observation(tmp_path), merged(together.parts)
    batches = [events[at : at + 500] for at in range(0, len(events), 500)]
    running.probes.events.drain = lambda: batches.pop(0) if batches else events[:0]  # type: ignore[method-assign]
    together.parts = [events[:0]]
    monkeypatch.setattr("rankscope.observer.finish.last.sched.thread_times", lambda _: tuple(together.threads.values()))
    monkeypatch.setattr("rankscope.observer.finish.last.sched.process_times", lambda _: {})
    monkeypatch.setattr("rankscope.observer.finish.last.sched.takers", lambda _: {})
    monkeypatch.setattr("rankscope.observer.finish.last.sched.ended_children", lambda _: {})
    while batches:
        running.drain()
        assert not running.held.full
    windows = of_jobs(together.end(tmp_path, monkeypatch, running))
    assert rows(windows["a"]) == rows(honest)
    assert (windows["a"].manifest.notes, windows["a"].manifest.losses) == (
        honest.manifest.notes,
        honest.manifest.losses,
    )
    heavy = windows["heavy"]
    assert windows["a"].manifest.seconds == SECONDS and 2 < heavy.manifest.seconds < SECONDS - 1
    assert any("ended early" in said for said in heavy.manifest.notes)
    assert [loss.name for loss in heavy.manifest.losses] == ["events_over_budget"]
    steps = heavy.steps.to_pylist()
    assert heavy.manifest.seconds - 0.6 < max(row["start_s"] + row["seconds"] for row in steps) < heavy.manifest.seconds
    assert max(row["last_progress_s"] for row in heavy.ranks.to_pylist()) < 0.5, "it did not stand still"
    assert START_NS + int(heavy.manifest.seconds * 1e9) == running.held.ended_ns["user 1666"]


def test_what_the_kernel_loses_while_rows_are_made_is_of_no_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded, lost = Recorded(), [Loss("bpf", "ring_full", 7)]
    recorded.job("a", 1000, 10_000, 1, workers=0, count=100)
    recorded.job("b", 1001, 20_000, 1, workers=0, count=100)
    running = recorded.observation(tmp_path)
    running.probes.losses = lambda: (lost.pop(),)  # type: ignore[method-assign]
    windows = recorded.end(tmp_path, monkeypatch, running)
    assert [window.manifest.losses for window in windows] == [(Loss("bpf", "ring_full", 7),)] * 2


def test_hundreds_of_thousands_of_absences_of_one_thread_fill_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process may tell of 500,000, and what is observed has 512 MB."""
    recorded, count = Recorded(), 50_000
    recorded.job("a", 1000, 10_000, 1, workers=0, count=200)
    many = np.zeros(count, ring.EVENT)
    many["tgid"] = many["tid"] = 10_000
    many["type"], many["what"], many["aux"], many["dur_ns"] = ring.OFFCPU, 202, 1, 30_000
    many["ts_ns"] = START_NS + np.arange(count) * 150_000
    recorded.parts = [many]
    tracemalloc.start()
    try:
        recorded.end(tmp_path, monkeypatch)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 700 * count


def test_workers_that_have_ended_cost_nothing_for_each_event_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look for each of them in all events takes as long as so many passes over them."""
    recorded = Recorded()
    recorded.job("crowd", 1666, 90_000, 1)
    for worker in range(200_000, 201_000):
        recorded.processes[worker] = ProcessWatch(worker, 90_000, LOADER, None, "", gone=True)
    many = np.zeros(400_000, ring.EVENT)
    many["tgid"] = many["tid"] = 77  # watched no more: none of it is told
    many["type"], many["ts_ns"] = ring.NATIVE, START_NS + np.arange(400_000)
    few, times = list(recorded.parts), []
    for parts in (few, [*few, many]):
        recorded.parts = parts
        began = time.process_time()
        recorded.end(tmp_path, monkeypatch)
        times.append(time.process_time() - began)
    assert times[1] < times[0] + 6 * pace_s(), times
