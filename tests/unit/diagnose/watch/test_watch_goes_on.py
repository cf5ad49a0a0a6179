"""What this host refuses for a while, as any user can bring about, ends no service for good; hooks wait for their turn."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankscope.diagnose.cli.service import watch
from rankscope.diagnose.watch import service
from rankscope.diagnose.watch.limits import NotNow, OverBudget
from rankscope.diagnose.watch.place import AlreadyWatching, WatchPlace
from rankscope.diagnose.watch.service import Service, WatchOptions
from rankscope.diagnose.watch.tell import hooks
from rankscope.diagnose.watch.tell.hooks import WAITING_MOST, Hooks
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
