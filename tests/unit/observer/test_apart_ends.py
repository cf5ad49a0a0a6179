"""How the process that observes ends, in its own time or not, and the windows of several moments that it hands over before."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence

import pytest
from confined_work import Say, window

from rankscope.observer.apart import run
from rankscope.observer.apart.reading import Reading
from rankscope.observer.apart.run import ObserverEnded
from rankscope.observer.apart.windows import each_moment, windows_of
from rankscope.observer.apart.wire import Client
from rankscope.observer.window.folder import Window

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="rights are given up by who has them")


def test_one_that_is_stopped_is_killed_and_buried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_QUIET_S", 2)
    pids: list[int] = []

    def wait(say: Say) -> list[Window]:
        say(str(os.getpid()))
        time.sleep(60)
        return []

    def stop(said: str) -> None:
        pids.append(int(said))
        os.kill(pids[-1], signal.SIGSTOP)

    with pytest.raises(ObserverEnded, match="sent nothing for 2 s"):
        windows_of(wait, stop)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_one_that_ends_in_its_own_time_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_EXITS_S", 2.0)

    def leave(say: Say) -> list[Window]:
        os.closerange(3, 1024)  # its end of the conversation too
        time.sleep(0.2)
        os._exit(0)

    with pytest.raises(ObserverEnded, match="ended without a word"):
        windows_of(leave, lambda _: None)


def test_one_that_never_reads_its_answers_is_ended() -> None:
    def ask_on(client: Client) -> None:
        while True:
            client.tell("nothing that is known")

    with pytest.raises(ObserverEnded, match="does not read its answers"):
        run.run(ask_on, Reading(), lambda *_: False, lambda _: None, longest_s=60)


def test_windows_of_one_moment_come_together_and_moments_in_their_order() -> None:
    def observe(say: Say) -> Iterator[Sequence[Window]]:
        yield [window("one"), window("two")]
        yield []
        yield [window("three")]

    taken: list[list[str]] = []
    each_moment(observe, lambda found: taken.append([note for one in found for note in one.manifest.notes]), print)
    assert taken == [["one", "two"], [], ["three"]]
