"""Somebody sets the clock, or the host sleeps, while it is observed: the window is as long as it should be, and says so."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankscope.observer import recorder
from rankscope.observer.finish import changes, last, windows
from rankscope.observer.live.observation import Observation
from rankscope.probes.base.clocks import Clocks, age_order, clock_notes, is_ahead, is_older, read_clocks

HOUR_S = 3600.0
NS = 1_000_000_000


class _SetClocks:
    """The clocks of a host, as the kernel gives them; `step_s` and `sleep_s` are added from the given call on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step_s: float, sleep_s: float = 0.0, after: int = 1) -> None:
        self.real: Callable[[int], int] = time.clock_gettime_ns
        self.step_ns, self.sleep_ns, self.calls, self.after = int(step_s * NS), int(sleep_s * NS), 0, after
        monkeypatch.setattr(time, "clock_gettime_ns", self.read)
        monkeypatch.setattr(time, "time", lambda: self.read(time.CLOCK_REALTIME) / NS)
        monkeypatch.setattr(time, "time_ns", lambda: self.read(time.CLOCK_REALTIME))

    def read(self, clock: int) -> int:
        self.calls += 1
        changed = self.calls > self.after
        more = {time.CLOCK_REALTIME: self.step_ns + self.sleep_ns, time.CLOCK_BOOTTIME: self.sleep_ns}.get(clock, 0)
        return self.real(clock) + (more if changed else 0)


def observation() -> Observation:
    """One that has nothing to observe."""
    probes: Any = SimpleNamespace(
        events=SimpleNamespace(drain=lambda: ()), calls=SimpleNamespace(enforce_budget=lambda _: None), notes=[],
        room=lambda _: 8192,
    )  # fmt: skip
    nothing: Any = SimpleNamespace(sample=lambda: None)
    return Observation((), probes, {}, nothing, nothing, None, nothing)  # type: ignore[arg-type]


@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
def test_a_clock_that_is_set_makes_no_window_longer_or_shorter(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    # GIVEN a clock that is set by an hour as soon as the window has begun
    running = observation()
    until = time.monotonic() + 0.6
    _SetClocks(monkeypatch, step_s)
    began = time.perf_counter()
    said: list[str] = []
    running.run_until(until, said.append)
    assert 0.5 < time.perf_counter() - began < 2


@pytest.mark.parametrize(("step_s", "sleep_s", "words"), [
    (HOUR_S, 0.0, ["set by +3600.000 s"]), (-HOUR_S, 0.0, ["set by -3600.000 s"]), (0.0, 0.0, []), (0.002, 0.0, []),
    (0.0, 61.0, ["suspended for 61.000 s"]), (-1.0, 61.0, ["set by -1.000 s", "suspended for 61.000 s"]),
])  # fmt: skip
def test_what_happened_to_the_clocks_is_a_note(
    monkeypatch: pytest.MonkeyPatch, step_s: float, sleep_s: float, words: list[str]
) -> None:
    before = read_clocks()
    _SetClocks(monkeypatch, step_s, sleep_s, after=0)
    notes = clock_notes(before, read_clocks())
    assert len(notes) == len(words) and all(word in note for word, note in zip(words, notes, strict=True))


def test_the_real_clocks_of_this_host_run_together() -> None:
    before = read_clocks()
    time.sleep(0.2)
    assert clock_notes(before, read_clocks()) == ()


def test_clocks_that_only_slew_are_no_note() -> None:
    # NTP corrects a clock by at most 500 ppm, and CLOCK_MONOTONIC with it.
    assert clock_notes(Clocks(0, 0, 0), Clocks(20 * NS + 7000, 20 * NS, 20 * NS)) == ()


def test_a_moment_to_come_is_the_oldest_and_not_fresh_until_it_has_come() -> None:
    now = 1e9
    assert not is_ahead(now + 30, now) and is_ahead(now + 90, now)
    moments = [now - 5, now + 10, now + HOUR_S, now - HOUR_S, now + 2 * HOUR_S]
    assert sorted(moments, key=lambda at: age_order(at, now)) == [
        now + HOUR_S, now + 2 * HOUR_S, now - HOUR_S, now - 5, now + 10,
    ]  # fmt: skip
    assert [is_older(at, 600.0, now) for at in (now - 601, now - 599, now, now + 599, now + 601)] == [
        True, False, False, False, True,
    ]  # fmt: skip
    assert not is_older(now + 30, 1.0, now), "clocks of file servers"


@pytest.mark.skipif(os.geteuid() != 0, reason="recording needs root")
@pytest.mark.parametrize("step_s", [-HOUR_S, HOUR_S])
def test_a_window_during_which_the_clock_is_set_says_so(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    # GIVEN a host with nothing to observe, whose clock is set while the window runs
    running, closed = observation(), []
    idle = SimpleNamespace(
        start=lambda: None, begin=lambda *_: None, close=lambda: None, sample=lambda: None, interfaces={}
    )
    running.hardware = running.gauges = running.flows = cast(Any, idle)
    running.probes = cast(
        Any, SimpleNamespace(**vars(running.probes), remarks=(), rest=lambda: None, close=lambda: None)
    )
    real = time.clock_gettime_ns

    def set_the_clock(_: object, window_s: float, hz: int) -> None:
        _SetClocks(monkeypatch, step_s, after=20)  # once the window's begin has been read

    nobody = SimpleNamespace(ranks=(), gone=(), has_all_of=lambda jobs: False)
    monkeypatch.setattr(recorder, "find_ranks", lambda *_, **__: nobody)
    monkeypatch.setattr(recorder, "choose", lambda census, options: ())
    monkeypatch.setattr(changes, "with_changes", lambda windows, before, after: windows)
    monkeypatch.setattr(recorder.observation, "begin", lambda ranks, **more: running)
    monkeypatch.setattr(Observation, "totals", lambda self: None)
    monkeypatch.setattr(Observation, "start_fallback", set_the_clock)
    monkeypatch.setattr(last, "read_last", lambda _running, _before, start_ns, _hz: start_ns)
    monkeypatch.setattr(windows, "windows_from", lambda *given: closed.append((*given, [*given[0].notes])) or [])
    # WHEN a window of half a second is recorded
    began = time.perf_counter()
    recorder.observe(recorder.RecordOptions(window_s=0.5, align_s=0.5), lambda _: None)
    # THEN it is as long as it should be, begins when it was agreed, and says what happened
    assert 0.8 < time.perf_counter() - began < 5
    (_, _, start_ns, start, notes) = closed[0]
    assert abs(start * 2 - round(start * 2)) < 0.2 and abs(start - real(time.CLOCK_REALTIME) / NS) < 5
    assert abs(start_ns - real(time.CLOCK_MONOTONIC)) < 5 * NS
    assert [note for note in notes if f"set by {step_s:+.3f} s" in note]
    # and it is said of this window only
    assert not running.notes
