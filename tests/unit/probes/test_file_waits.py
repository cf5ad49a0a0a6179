"""What is waited for while files of targets are read counts against the user for whose sake it was, and against nobody else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rankscope.probes.mapped import waits
from rankscope.probes.mapped.waits import DEADLINE_S, MOST_HANGS, SLOW_MOST_S, Waits

DISK = "fd:00"
ONE, OTHER = "user 1", "user 2"


def test_a_file_system_that_kept_one_user_waiting_is_asked_again_for_another() -> None:
    """He may have done something to a file of his own: made a hole in it that takes the kernel seconds, say."""
    waited = Waits()
    waited.came(DISK, 0.001, ONE)
    waited.did_not_come(DISK, DEADLINE_S, ONE)
    assert "does not answer" in waited.why_not(DISK, ONE)
    assert waited.why_not(DISK, OTHER) == ""
    waited.did_not_come(DISK, DEADLINE_S, OTHER)
    assert "does not answer" in waited.why_not(DISK, OTHER)


def test_slow_answers_for_the_sake_of_one_user_are_his() -> None:
    waited = Waits()
    for _ in range(int(SLOW_MOST_S / 1.5) + 1):
        waited.came(DISK, 1.5, ONE)
    assert "does not answer" in waited.why_not(DISK, ONE)
    assert waited.why_not(DISK, OTHER) == ""


def test_one_users_dead_file_systems_keep_no_unknown_one_of_others_from_being_asked() -> None:
    waited = Waits()
    waited.came("known", 0.001, ONE)
    for number in range(MOST_HANGS):
        assert waited.why_not(f"dead {number}", ONE) == ""
        waited.did_not_come(f"dead {number}", DEADLINE_S, ONE)
    assert "too many" in waited.why_not("unknown", ONE)
    assert waited.why_not("known", ONE) == waited.why_not("unknown", OTHER) == ""


def test_all_together_cost_so_much_and_each_user_a_little_beyond() -> None:
    waited, cost = Waits(), 0.0
    for user in range(20):
        for number in range(10):
            if not waited.why_not(f"dead {user} {number}", f"user {user}"):
                waited.did_not_come(f"dead {user} {number}", DEADLINE_S, f"user {user}")
                cost += DEADLINE_S
    assert cost <= MOST_HANGS * DEADLINE_S + 20 * 2 * DEADLINE_S


def test_processes_that_let_go_slowly_use_up_what_their_user_has(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(waits, "time", SimpleNamespace(monotonic=lambda: now[0]))
    waited, seconds = Waits(), 0.0
    while waited.may_find(ONE):
        waited.found(1.9, ONE)
        seconds += 1.9
        assert seconds < 20
    assert waited.may_find(OTHER)
    assert waited.why_not(DISK, ONE) == ""  # what is open already is read on
    now[0] = 3601.0
    assert waited.may_find(ONE)


def test_healthy_processes_cost_nothing_however_many_there_are() -> None:
    waited = Waits()
    for _ in range(100_000):
        waited.found(0.2, ONE)
    assert waited.may_find(ONE)
