"""Hosts whose clocks are an hour off: their windows are found and put to the others', or said to be missing with their ranks."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import builders
import numpy as np
import pytest
from builders import Job, build, codes, said

from rankscope.diagnose.infer.fleet.clocks.align import far_offset
from rankscope.diagnose.infer.fleet.sources import load
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.folder import Window, write_window
from rankscope.observer.window.store import container, objects
from rankscope.observer.window.store.keys import key_of
from rankscope.observer.window.store.place import open_store

HOUR = 3600.37
NOW = 1_760_000_000.0


def off(window: Window, by_s: float) -> Window:
    """The window as a host writes it whose clock is that much ahead."""
    return replace(window, manifest=replace(window.manifest, start=window.manifest.start + by_s))


def put(place: Path, window: Window, at_s: float) -> None:
    """Into a store, which notes that time."""
    key = key_of(window.manifest)
    objects.put(open_store(place.as_uri()), key, container.encode([window]))
    os.utime(place / key, (at_s, at_s))


@pytest.mark.parametrize("by_s", [HOUR, -HOUR])
def test_the_slow_rank_on_a_host_whose_clock_is_an_hour_off_is_named(tmp_path: Path, by_s: float) -> None:
    # GIVEN a store with windows of three moments of four hosts, of which one has another clock and the slow rank
    for back in (600.0, 300.0, 0.0):
        for host, window in enumerate(build(builders.slow_python(6, 0.08, hosts=4, seed=int(back), start=NOW - back))):
            put(tmp_path, off(window, by_s) if host == 3 else window, NOW - back + 22 + host)
    loaded = load([tmp_path])
    assert sorted(window.manifest.host for window in loaded.windows) == [f"node-{host}" for host in range(4)]
    verdict = diagnose(loaded.windows, notes=loaded.notes)
    assert verdict.suspects[0].ranks == (6,)
    assert verdict.ranks == tuple(range(8))
    assert f"node-3 60 min {'ahead' if by_s > 0 else 'behind'}" in said(verdict, NoteCode.CLOCKS_DIFFER)
    assert NoteCode.HOSTS_MISSING not in codes(verdict)


def test_windows_that_are_given_are_put_together_as_well(tmp_path: Path) -> None:
    windows = build(builders.slow_python(6, 0.08, hosts=4))
    for window in (*windows[:3], off(windows[3], HOUR)):
        write_window(window, tmp_path)
    loaded = load([tmp_path])
    verdict = diagnose(loaded.windows, notes=loaded.notes)
    assert verdict.suspects[0].ranks == (6,)
    assert "node-3 60 min ahead" in said(verdict, NoteCode.CLOCKS_DIFFER)


def test_a_window_of_another_moment_is_not_taken_for_one_of_a_wrong_clock(tmp_path: Path) -> None:
    before, now = build(Job(hosts=4, seed=1, start=NOW - 300)), build(Job(hosts=4, seed=2, start=NOW))
    for window in (*before[:3], *now[:2], now[3]):
        put(tmp_path, window, NOW + 30)  # a store that was copied: all came at one time
    loaded = load([tmp_path])
    assert [window.manifest.start for window in loaded.windows] == [NOW] * 3
    [text] = [note.text for note in loaded.notes if note.code is NoteCode.HOSTS_MISSING]
    assert text.endswith("from: node-2 (ranks 4, 5)")


def test_who_began_later_by_a_clock_that_is_right_is_not_said_to_have_a_wrong_one(tmp_path: Path) -> None:
    windows = build(Job(hosts=4))
    rows = [row for row in windows[3].steps.to_pylist() if row["start_s"] >= 8.0]
    for row in rows:
        row["start_s"] -= 8.0
    for window in (*windows[:3], off(builders.columns(windows[3], "steps", rows), 8.0)):
        put(tmp_path, window, NOW + 30)
    assert [note.code for note in load([tmp_path]).notes] == [NoteCode.OTHER_MOMENTS, NoteCode.HOSTS_MISSING]


def test_steps_that_are_all_alike_tell_nothing() -> None:
    ends = np.arange(60) * 0.25
    assert far_offset(ends, ends - HOUR) is None
    wandering = ends + np.cumsum(np.random.default_rng(1).normal(0, 0.01, 60))
    assert far_offset(wandering, wandering[4:] - HOUR) == pytest.approx(HOUR)
    assert far_offset(wandering, wandering[:5] - HOUR) is None
    assert far_offset(wandering[:0], wandering) is None
