"""A look that stands by, of which the process that was to observe ends: no alarm is left to the dead."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankscope.diagnose.service.alarms import Alarm, AlarmKind
from rankscope.diagnose.service.looks import prepared
from rankscope.diagnose.service.looks.look import Wanted
from rankscope.diagnose.service.looks.prepared import Prepared, Standby
from rankscope.observer import recorder
from rankscope.probes.base.errors import UsageError

_LONGEST_S = 10.0


def _child(then: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        then()
        os._exit(0)
    return pid


def _killed_beside_another(_: Any, orders: Callable[[int], object], __: Any, say: Callable[[str], None]) -> None:
    """In place of who observes: killed, while another child of whoever has the rights lives on, as warden.py does."""
    warden = _child(lambda: time.sleep(_LONGEST_S))
    try:
        say(recorder.STANDING_BY)
        observer = _child(signal.pause)
        os.kill(observer, signal.SIGKILL)
        os.waitid(os.P_PID, observer, os.WEXITED | os.WNOWAIT)
        orders(observer)
    finally:
        os.kill(warden, signal.SIGKILL)


@pytest.fixture
def stands(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], Prepared]]:
    """What stands by, and looks so often whether who observes lives."""
    made: list[Prepared] = []

    def loads(*_: Any) -> Any:
        raise UsageError("it loads by itself")

    monkeypatch.setattr(recorder, "stand_by", _killed_beside_another)
    monkeypatch.setattr(recorder, "record", loads)

    def stand(looks_every_s: float) -> Prepared:
        monkeypatch.setattr(prepared, "_LOOKS_EVERY_S", looks_every_s)
        made.append(prepared._prepare("job", frozenset((1,))))
        return made[0]

    yield stand
    made[0]._line.close()


def _until(done: Callable[[], object]) -> object:
    deadline = time.monotonic() + _LONGEST_S / 2
    while not (found := done()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found


def test_what_stands_by_ends_with_who_was_to_observe_whoever_else_lives(
    stands: Callable[[float], Prepared],
) -> None:
    standing = stands(0.2)
    assert _until(lambda: standing.is_ready)
    assert _until(lambda: standing.has_ended)
    os.close(standing._result)


def test_an_alarm_that_comes_before_its_death_is_noticed_is_looked_at_all_the_same(
    stands: Callable[[float], Prepared], tmp_path: Path
) -> None:
    begun = stands(60.0).begin(Wanted(Alarm(AlarmKind.SLOWER, "job", 0.0, "slower"), 5.0, tmp_path))
    assert begun is not None
    seen: Any = _until(begun.done)
    assert seen.trouble == "it loads by itself"


def test_ranks_whose_look_ended_by_itself_get_none_again_whatever_those_of_other_jobs_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    def ended(job: str, pids: frozenset[int]) -> Any:
        made.append(job)
        return SimpleNamespace(job=job, pids=pids, has_ended=True, close=lambda: None)

    monkeypatch.setattr(prepared, "_prepare", ended)
    standby, small, large = Standby(), frozenset((1,)), frozenset((2, 3))
    for jobs in ({"small": small}, {"small": small, "large": large}, {"small": small}):
        for _ in range(3):
            standby.keep(jobs)
    assert made == ["small", "large"]
    assert standby.is_refused(small) and standby.is_refused(large) and not standby.is_refused(frozenset((1, 2)))


def test_a_child_that_runs_lives_and_one_that_has_ended_or_is_gone_does_not() -> None:
    running = _child(signal.pause)
    try:
        assert prepared._lives(running)
    finally:
        os.kill(running, signal.SIGKILL)
    os.waitid(os.P_PID, running, os.WEXITED | os.WNOWAIT)
    assert not prepared._lives(running)
    os.waitpid(running, 0)
    assert not prepared._lives(running)
