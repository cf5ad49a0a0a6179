"""Nobody waits without end for what a process says of itself, and one that keeps its readers waiting hides no other."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rankscope.probes.base import patience
from rankscope.probes.base.patience import Silent, ask, is_silent, mark_silent, patiently

NOBODY = 4_000_000  # numbers of processes that are not there
Hang = Callable[[], bytes]


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    patience._silent.clear()
    patience._owners.clear()
    yield
    patience._silent.clear()
    patience._owners.clear()


@pytest.fixture
def hang() -> Iterator[Hang]:
    """A call that comes back when the test is over, as a read of a process that holds a lock would."""
    out, into = os.pipe()
    yield lambda: os.read(out, 1)
    os.close(into)
    os.close(out)


def test_what_a_process_answers_comes_back_and_so_does_what_goes_wrong() -> None:
    assert ask(os.getpid(), lambda: 7) == 7
    with pytest.raises(FileNotFoundError):
        ask(NOBODY, os.open, "/proc/nobody", os.O_RDONLY)
    assert patiently(lambda: 8) == 8


def test_a_process_that_does_not_answer_keeps_nobody_waiting(hang: Hang) -> None:
    began = time.monotonic()
    with pytest.raises(Silent):
        ask(NOBODY, hang)
    assert time.monotonic() - began < 2 * patience.DEADLINE_S
    with pytest.raises(Silent):  # at once: it is known
        ask(NOBODY, lambda: 1)
    assert time.monotonic() - began < 2 * patience.DEADLINE_S
    assert is_silent(NOBODY)
    assert ask(NOBODY + 1, lambda: 1) == 1


def test_work_goes_on_with_the_next_process(hang: Hang) -> None:
    calls = {1: lambda: b"one", 2: hang, 3: lambda: b"three"}
    found: dict[int, bytes] = {}
    left = [1, 2, 3]

    def work() -> str:
        while left:
            found[left[0]] = b"silent"
            try:
                number = left.pop(0)
                found[number] = ask(NOBODY + number, calls[number])
            except Silent:
                pass
        return "done"

    assert patiently(work) == "done"
    assert found == {1: b"one", 2: b"silent", 3: b"three"}


def test_many_that_do_not_answer_cost_two_seconds_in_all(hang: Hang) -> None:
    began = time.monotonic()
    for number in range(20):
        with pytest.raises(Silent):
            ask(NOBODY + number, hang)
    assert time.monotonic() - began < 4 * patience.DEADLINE_S


def test_what_comes_back_late_does_nothing_more() -> None:
    out, into = os.pipe()
    done: list[int] = []

    def work() -> None:
        ask(NOBODY, os.read, out, 1)
        done.append(threading.get_ident())

    with pytest.raises(Silent):
        patiently(work)
    worker = patience._silent[NOBODY]
    assert isinstance(worker, threading.Thread)
    os.write(into, b"x")
    worker.join(5)
    assert not worker.is_alive()
    assert not done
    assert not is_silent(NOBODY)  # it answers again
    patiently(work) if os.write(into, b"x") else None
    assert len(done) == 1
    os.close(into)
    os.close(out)


def test_one_user_does_not_use_up_the_patience_that_others_need(hang: Hang, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "_owner", lambda pid: "1001" if pid < NOBODY + 1000 else "1002")
    monkeypatch.setattr(patience, "_EACH", 2)
    for number in range(2):
        with pytest.raises(Silent):
            ask(NOBODY + number, hang)
    with pytest.raises(Silent):
        ask(NOBODY + 3, lambda: 1)
    assert ask(NOBODY + 1000, lambda: 1) == 1


def test_a_word_of_somebody_else_counts_for_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    mark_silent([NOBODY])
    with pytest.raises(Silent):
        ask(NOBODY, lambda: 1)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + patience._MARK_S + 1)
    assert ask(NOBODY, lambda: 1) == 1


def test_a_fork_asks_on_threads_of_its_own() -> None:
    assert ask(os.getpid(), lambda: 1) == 1
    child = os.fork()
    if child == 0:
        os._exit(0 if ask(os.getppid(), lambda: 1) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_read_costs_little() -> None:
    own = os.getpid()

    def many() -> float:
        began = time.process_time()
        for _ in range(20_000):
            ask(own, int)
        return (time.process_time() - began) / 20_000

    assert min(patiently(many) for _ in range(5)) < 5e-6  # about 0.5 µs where nothing else runs


def test_who_only_waits_for_a_processor_or_for_us_is_not_taken_for_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host with ten times the work a read may take a second by the clock, and the kernel keeps nobody."""
    monkeypatch.setattr(patience, "DEADLINE_S", 0.1)
    ours = threading.Lock()
    ours.acquire()
    threading.Timer(0.6, ours.release).start()
    assert ask(NOBODY, ours.acquire) is True
    assert not is_silent(NOBODY)


def test_who_has_answered_again_shortens_no_later_deadline() -> None:
    out, into = os.pipe()
    with pytest.raises(Silent):
        ask(NOBODY, os.read, out, 1)
    worker = patience._silent[NOBODY]
    os.write(into, b"x")
    assert isinstance(worker, threading.Thread)
    worker.join(5)
    assert patience.silent() == ()
    os.close(into)
    os.close(out)
