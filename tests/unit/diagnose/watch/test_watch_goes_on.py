"""What this host refuses for a while, as any user can bring about, ends no service for good; hooks wait for their turn."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankscope.diagnose.face.cli.service import watch
from rankscope.diagnose.service import service
from rankscope.diagnose.service.limits import NotNow, OverBudget
from rankscope.diagnose.service.place import AlreadyWatching, WatchPlace
from rankscope.diagnose.service.service import Service, WatchOptions
from rankscope.diagnose.service.tell import hooks, owed
from rankscope.diagnose.service.tell.hooks import WAITING_MOST, Hooks
from rankscope.diagnose.service.tell.owed import Drains, key_of
from rankscope.probes.bpf.compiler.compiled import BpfUnavailable


def refusal(number: int = errno.EAGAIN) -> OSError:
    return OSError(number, os.strerror(number))


def a_service(folder: Path, said: list[str]) -> Service:
    tier0 = SimpleNamespace(close=lambda: None)
    return Service(
        cast(Any, tier0), cast(Any, None), WatchOptions(folder), lambda _: None, said.append, cast(Any, None)
    )


@pytest.mark.parametrize("error", [refusal(), refusal(errno.E2BIG), MemoryError()], ids=["processes", "map", "memory"])
def test_a_round_that_the_host_refuses_is_said_once_and_the_next_ones_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    rounds: list[int] = []

    def beat(_: Service) -> None:
        rounds.append(1)
        if len(rounds) < 20:
            raise error

    monkeypatch.setattr(Service, "beat", beat)
    monkeypatch.setattr(service, "BEAT_S", 0.0)
    complaints: list[str] = []
    one = a_service(tmp_path, complaints)
    one.run(lambda _: {signal.SIGTERM} if len(rounds) == 30 else frozenset())
    assert (len(rounds), one.put_off, len(complaints)) == (30, 19, 1)


def test_a_service_that_can_do_nothing_for_minutes_is_started_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def beat(_: Service) -> None:
        raise refusal()

    monkeypatch.setattr(Service, "beat", beat)
    monkeypatch.setattr(service, "BEAT_S", 0.0)
    with pytest.raises(NotNow):
        a_service(tmp_path, []).run(lambda _: frozenset())


def test_a_service_over_its_budget_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def beat(_: Service) -> None:
        raise OverBudget("too much")

    monkeypatch.setattr(Service, "beat", beat)
    with pytest.raises(OverBudget):
        a_service(tmp_path, []).run(lambda _: frozenset())


def missing(cause: OSError) -> BpfUnavailable:
    error = BpfUnavailable("no map")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("error", [refusal(), refusal(errno.ENFILE), MemoryError(), missing(refusal(errno.ENOMEM))])
def test_what_is_refused_as_it_starts_is_no_missing_feature(error: Exception) -> None:
    with pytest.raises(NotNow), watch._for_now():
        raise error


@pytest.mark.parametrize("error", [refusal(errno.EPERM), missing(refusal(errno.EINVAL)), ValueError("a mistake")])
def test_what_stays_as_it_is_is_told_as_it_was(error: Exception) -> None:
    with pytest.raises(type(error)), watch._for_now():
        raise error


def test_a_second_service_is_not_started_again(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    place = WatchPlace(tmp_path)
    with place.held(), pytest.raises(AlreadyWatching), place.held(), watch._for_now():
        pass
    assert AlreadyWatching.exit_code == 69


# --- hooks


class Started(Hooks):
    """Hooks that run until they are told to end."""

    def __init__(self) -> None:
        super().__init__("/hook")
        self.begun: list[dict[str, Any]] = []
        self.refuses = False

    def _start(self, told: hooks._Told) -> None:
        if self.refuses:
            raise refusal()
        self.begun.append(told.content)
        self._running.add(len(self.begun))

    def reap(self) -> None:
        pass

    def end(self) -> str:
        self._running.clear()
        return self.tend()


def alarm(number: int, job: str = "job") -> dict[str, Any]:
    return {"kind": "alarm", "job": job, "number": number}


DRAIN = {"kind": "hardware", "job": None, "drain_reason": "rankscope: nic/down mlx5_3", "drain_host": "a"}


def test_a_crowd_of_alarms_swallows_no_drain() -> None:
    one = Started()
    said = [one.tell(alarm(number), "warning") for number in range(1000)]
    assert len(one.begun) == 3 and len([note for note in said if note]) == 1
    assert one.tell(DRAIN, "critical") == "" and one.begun[-1] == DRAIN, "a place is kept for it"
    more = [{**DRAIN, "drain_reason": f"rankscope: gpu/lost gpu{number}"} for number in range(3)]
    assert [one.tell(each, "critical") for each in more] == [""] * 3
    one.end()
    assert one.begun[4:7] == more, "and then they are first"


def test_hooks_wait_for_their_turn_in_order() -> None:
    one = Started()
    for number in range(10):
        one.tell(alarm(number), "warning")
    for _ in range(4):
        one.end()
    assert [each["number"] for each in one.begun] == list(range(10)) and one.close() == ""


def test_of_too_many_events_those_of_the_job_with_most_are_let_go() -> None:
    one = Started()
    for number in range(500):
        one.tell(alarm(number, "crowd"), "warning")
    one.tell(alarm(0, "another"), "warning")
    assert "64 events" in one.close()
    for _ in range(WAITING_MOST):
        one.end()
    assert [each["number"] for each in one.begun if each["job"] == "another"] == [0]


def test_a_crowd_of_jobs_of_one_user_takes_no_hook_from_another() -> None:
    one = Started()
    for number in range(500):
        one.tell(alarm(0, f"crowd {number}"), "warning", "user 2000")
    one.tell(alarm(0, "ours"), "warning", "user 1000")
    one.end()
    assert one.begun[3]["job"] == "ours", "the next one"


def test_a_hook_for_which_there_is_no_process_is_started_later() -> None:
    one = Started()
    one.refuses = True
    assert "not now" in one.tell(DRAIN, "critical")
    assert [one.tend() for _ in range(10)] == [""] * 10, "said once"
    one.refuses = False
    assert one.tend() == "" and one.begun == [DRAIN]


def test_a_fork_that_is_refused_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fork() -> int:
        raise refusal()

    monkeypatch.setattr(os, "fork", fork)
    assert "not now (Resource temporarily unavailable)" in Hooks("/hook").tell(DRAIN, "critical")


def test_without_a_hook_nothing_waits() -> None:
    none = Hooks("")
    assert none.tell(DRAIN, "critical") == none.tend() == none.close() == ""


# --- drains that no hook has taken


ERRORS = {
    "kind": "hardware",
    "job": None,
    "state": "critical",
    "drain_reason": "rankscope: memory/ecc-errors mc0",
    "drain_host": "a",
}
SLOW_PORT = {
    "kind": "verdict",
    "job": "job",
    "alarm": "slower",
    "drain_reason": "rankscope: nic/speed-degraded x",
    "drain_host": "a",
}


class Clock:
    """Of the drains that are owed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        patch.setattr(owed, "clock", lambda: self.now_s)

    def told(self, drains: Drains, seconds: float) -> list[float]:
        """When each try is, in so long; each of them fails."""
        began, when = self.now_s, []
        while self.now_s < began + seconds:
            self.now_s += 10.0
            for one in drains.due():
                when.append(self.now_s - began)
                drains.ended(one.key, well=False)
        return when


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def until_still(one: Hooks, calls: Path, seconds: float = 0.5) -> int:
    """Rounds of a service, until its hook was not called for so long; how often it was."""
    count, last = 0, time.monotonic()
    while time.monotonic() - last < seconds:
        assert one.tend() == ""
        time.sleep(0.01)
        if calls.exists() and calls.read_text().count("x") > count:
            count, last = calls.read_text().count("x"), time.monotonic()
    return count


@pytest.mark.parametrize(("event", "expected"), [(ERRORS, 3), (alarm(1), 1)], ids=["a drain", "an alarm"])
def test_a_drain_that_a_hook_did_not_take_is_told_again_until_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: dict[str, Any], expected: int
) -> None:
    # GIVEN a hook that fails twice: three nodes are drained already
    monkeypatch.setattr(owed, "AGAIN_S", 0.02)
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\necho x >> {tmp_path}/calls; [ $(wc -l < {tmp_path}/calls) -ge 3 ]\n")
    hook.chmod(0o755)
    one = Hooks(str(hook))
    assert one.tell({**event, "host": "a"}, "critical") == ""
    assert until_still(one, tmp_path / "calls") == expected and one.close() == ""


def test_the_pauses_between_two_tries_grow_and_after_a_day_there_is_none(clock: Clock) -> None:
    drains = Drains()
    drains.owe(ERRORS, "critical", "")
    assert drains.due() == [], "not before its hook has ended"
    drains.ended(key_of(ERRORS), well=False)
    assert clock.told(drains, 4000.0) == [60.0, 180.0, 420.0, 900.0, 1860.0, 3780.0]
    assert len(clock.told(drains, 3 * owed.OWED_S)) in (22, 23, 24) and len(drains) == 0


@pytest.mark.parametrize(
    ("drain", "event", "expected"),
    [
        (DRAIN, {"kind": "hardware", "state": "ok", "component": "nic", "cause": "down", "instance": "mlx5_3"}, 0),
        (DRAIN, {"kind": "hardware", "state": "ok", "component": "nic", "cause": "down", "instance": "mlx5_4"}, 1),
        (DRAIN, {"kind": "hardware", "state": "warning", "component": "nic", "cause": "down", "instance": "mlx5_3"}, 1),
        (SLOW_PORT, {"kind": "over", "state": "ok", "job": "job", "alarm": "slower"}, 0),
        (SLOW_PORT, {"kind": "over", "state": "ok", "job": "another", "alarm": "slower"}, 1),
        (ERRORS, {"kind": "over", "state": "ok", "job": None, "alarm": None}, 1),
    ],
)
def test_what_is_over_is_told_to_no_hook_again(
    clock: Clock, drain: dict[str, Any], event: dict[str, Any], expected: int
) -> None:
    one = Started()
    one.tell(drain, "critical")
    one._owed.ended(key_of(drain), well=False)
    one.over(event)
    clock.now_s += 60.0
    one.end()
    assert len(one.begun) == 1 + expected
    # AND nothing of it waits for its turn, nor is it owed when a hook that was told of it fails
    one._waiting.append(hooks._Told(drain, "critical", "", again=True))
    one.over(event)
    one._owed.ended(key_of(drain), well=False)
    assert len(one._waiting) == len(one._owed) == expected


def test_a_service_that_is_started_again_owes_what_cannot_be_over(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    kept, xid = tmp_path / "owed.json", {**ERRORS, "drain_reason": "rankscope: gpu/xid 0000:3b:00.0 79"}
    first = Drains(kept)
    for drain in (ERRORS, DRAIN, SLOW_PORT, xid):
        first.owe(drain, "critical", "")
    assert Drains(None).due() == [] and [one.content for one in Drains(kept).due()] == [ERRORS, xid]
    first.ended(key_of(xid), well=True)
    assert [one.content for one in Drains(kept).due()] == [ERRORS]
    # AND not a day later, nor after a boot, nor what others could have written
    with monkeypatch.context() as patch:
        patch.setattr(owed, "_boot", lambda: "another")
        assert len(Drains(kept)) == 0
    kept.chmod(0o666)
    assert len(Drains(kept)) == 0
    kept.chmod(0o600)
    clock.now_s += owed.OWED_S
    assert len(Drains(kept)) == 0
    kept.write_text("[[[")
    assert len(Drains(kept)) == 0


def test_no_user_s_drains_drive_out_another_s(clock: Clock) -> None:
    drains = Drains()
    lost = [
        drains.owe({**SLOW_PORT, "drain_reason": f"rankscope: nic/down x{number}"}, "critical", "user 2000")
        for number in range(50)
    ]
    assert lost == [0] * owed.MOST + [1] * (50 - owed.MOST)
    drains.owe(ERRORS, "critical", "")
    assert key_of(ERRORS) in drains and len(drains) == owed.MOST
