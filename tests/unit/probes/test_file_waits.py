"""What is waited for while files of targets are read counts against the user for whose sake it was, and against nobody else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rankscope.probes.mapped import waits
from rankscope.probes.mapped.waits import DEADLINE_S, MOST_HANGS, SLOW_MOST_S, Waits

DISK = "fd:00"


def one() -> str:
    return "user 1"


def other() -> str:
    return "user 2"


def nobody_is_asked() -> str:
    raise AssertionError("it costs more to ask whose it is than it is worth")


def test_a_file_system_that_kept_one_user_waiting_is_asked_again_for_another() -> None:
    """He may have done something to a file of his own: made a hole in it that takes the kernel seconds, say."""
    waited = Waits()
    waited.came(DISK, 0.001, nobody_is_asked)
    waited.did_not_come(DISK, DEADLINE_S, one)
    assert "does not answer" in waited.why_not(DISK, one)
    assert waited.why_not(DISK, other) == ""
    waited.did_not_come(DISK, DEADLINE_S, other)
    assert "does not answer" in waited.why_not(DISK, other)


def test_slow_answers_for_the_sake_of_one_user_are_his() -> None:
    waited = Waits()
    for _ in range(int(SLOW_MOST_S / 1.5) + 1):
        waited.came(DISK, 1.5, one)
    assert "does not answer" in waited.why_not(DISK, one)
    assert waited.why_not(DISK, other) == ""


def test_one_users_dead_file_systems_keep_no_unknown_one_of_others_from_being_asked() -> None:
    waited = Waits()
    waited.came("known", 0.001, nobody_is_asked)
    for number in range(MOST_HANGS):
        assert waited.why_not(f"dead {number}", one) == ""
        waited.did_not_come(f"dead {number}", DEADLINE_S, one)
    assert "too many" in waited.why_not("unknown", one)
    assert waited.why_not("known", one) == waited.why_not("unknown", other) == ""


def test_all_together_cost_so_much_and_each_user_a_little_beyond() -> None:
    waited, cost = Waits(), 0.0
    for user in range(20):
        for number in range(10):
            if not waited.why_not(f"dead {user} {number}", lambda user=user: f"user {user}"):  # type: ignore[misc]
                waited.did_not_come(f"dead {user} {number}", DEADLINE_S, lambda user=user: f"user {user}")  # type: ignore[misc]
                cost += DEADLINE_S
    assert cost <= MOST_HANGS * DEADLINE_S + 20 * 2 * DEADLINE_S


def test_processes_that_let_go_slowly_use_up_what_their_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic=lambda: now[0]))
    waited, seconds = Waits(), 0.0
    while waited.may_find(one):
        waited.found(1.9, one)
        seconds += 1.9
        assert seconds < 20
    assert waited.may_find(other)
    assert waited.why_not(DISK, one) == ""  # what is open already is read on
    now[0] = 3601.0
    assert waited.may_find(one)


def test_healthy_processes_cost_nothing_however_many_there_are() -> None:
    waited = Waits()
    for _ in range(100_000):
        waited.found(0.2, nobody_is_asked)
    assert waited.may_find(nobody_is_asked)
