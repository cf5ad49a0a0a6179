"""A job says how many threads it has and when they work: none of that keeps the end of a window busy."""

from __future__ import annotations

import time

import numpy as np
import pytest

from rankscope.observer.tables import training_thread, turns
from rankscope.observer.tables.turns import Spans, ThreadEdges, in_turn, taking_turns, together
from rankscope.probes.base.arrays import Floats
from rankscope.probes.bpf import ring

WINDOW_S = 20.0
NOBODY = Spans(np.empty(0), np.empty(0))


def thread(tid: int, starts: Floats, ends: Floats) -> ThreadEdges:
    """One that rests in these stretches, and works between."""
    rests = np.ones(len(starts), dtype=bool)
    return ThreadEdges(tid, starts, ends, ends, rests, rests, np.zeros(len(starts), dtype=np.int64), 0.0, WINDOW_S)


def crowd(threads: int, turns_of_each: int) -> list[ThreadEdges]:
    """One thread that works in the first 50 ms, and others that all work side by side after the first 100 ms."""
    found = [thread(1, np.array([0.05]), np.array([WINDOW_S]))]
    for tid in range(2, threads + 1):
        edges = np.linspace(0.1 + 1e-5 * tid, WINDOW_S - 0.1, turns_of_each + 1)
        starts = np.concatenate(([0.0], edges[:-1]))
        ends = np.concatenate(([0.1], edges[:-1] + 0.3 * np.diff(edges)))
        found.append(thread(tid, starts, ends))
    return found


def test_hundreds_of_threads_that_work_side_by_side_take_seconds_and_not_hours() -> None:
    threads = crowd(256, 400)
    began = time.process_time()
    chosen = taking_turns(threads, [one.tid for one in threads], NOBODY, WINDOW_S)
    assert time.process_time() - began < 20
    assert len(chosen) == 2 and chosen[0] == 1


def one_by_one(works: dict[int, Spans], chosen: list[int]) -> list[int]:
    """The same in so many words: who works with the others together as often as chance makes it goes, who does so for longest first."""
    left = list(chosen)
    while len(left) > 2:
        shared = {}
        for tid in left[1:]:
            rest = together([works[one] for one in left if one != tid])
            if not in_turn(works[tid], rest, WINDOW_S):
                shared[tid] = works[tid].together_s(rest)
        if not shared:
            break
        left.remove(max(shared, key=lambda tid: shared[tid]))
    return left


@pytest.mark.parametrize("seed", range(20))
def test_intruders_are_those_who_work_with_all_others_together_as_chance_makes_it(seed: int) -> None:
    chance = np.random.default_rng(seed)
    slots = np.sort(chance.uniform(0, WINDOW_S, 301))
    works = {}
    for tid in range(1, 7):
        mine = chance.random(300) < (0.15 if tid < 4 else chance.uniform(0.05, 0.6))
        works[tid] = Spans(slots[:-1][mine], slots[1:][mine])
    works[7] = NOBODY
    assert turns._without_intruders(works, list(works), WINDOW_S) == one_by_one(works, list(works))


def passes(chance: np.random.Generator, count: int, threads: int) -> ring.Events:
    found = np.zeros(count, dtype=ring.EVENT)
    found["tid"] = chance.integers(1, threads + 1, count)
    found["ts_ns"] = np.sort(chance.integers(10**9, 10**9 + 20 * count, count))
    found["dur_ns"] = chance.integers(0, 60, count)
    return chance.permutation(found)


@pytest.mark.parametrize("seed", range(10))
def test_passes_inside_anothers_are_those_that_begin_and_end_within_one_of_another_thread(seed: int) -> None:
    calls = passes(np.random.default_rng(seed), 200, 4)
    begin, end = calls["ts_ns"].astype(np.int64), (calls["ts_ns"] + calls["dur_ns"]).astype(np.int64)
    inside = (
        (begin[None, :] <= begin[:, None])
        & (end[:, None] <= end[None, :])
        & (calls["tid"][None, :] != calls["tid"][:, None])
    )
    assert training_thread._inside_another(calls).tolist() == inside.any(axis=1).tolist()
    assert 0 < inside.any(axis=1).sum() < 200


def test_passes_of_hundreds_of_threads_are_compared_in_one_pass() -> None:
    calls = passes(np.random.default_rng(1), 300_000, 256)
    began = time.process_time()
    training_thread._inside_another(calls)
    assert time.process_time() - began < 4


def test_who_has_the_turn_is_the_same_however_many_times_are_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = crowd(12, 50)
    whole = turns.pieces(threads, WINDOW_S)
    monkeypatch.setattr(turns, "_BLOCK", 7)
    parts = turns.pieces(threads, WINDOW_S)
    assert len(whole.tid) > 100
    assert all(np.array_equal(getattr(whole, name), getattr(parts, name)) for name in ("start_s", "end_s", "tid"))
