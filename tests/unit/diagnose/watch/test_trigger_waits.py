"""`rankscope trigger --wait` prints the verdict of the look that it asked for, and ends with its exit code."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import builders
import promised
import pytest
from builders import build

from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.service import events, place
from rankscope.diagnose.service.alarms import Alarm, AlarmKind
from rankscope.diagnose.service.events import Event
from rankscope.diagnose.service.looks.look import Seen
from rankscope.diagnose.service.place import WatchPlace
from rankscope.diagnose.service.tell.answers import Answers

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    tmp_path.chmod(0o700)
    return tmp_path / "state"


def asked(job: str, why_not: str = "") -> Event:
    return events.of_alarm(Alarm(AlarmKind.ASKED, job, 0.0, "somebody asked for a look"), time.time(), why_not)


def judged(job: str, made: builders.Job, took_s: float = 0.1, kind: AlarmKind = AlarmKind.ASKED) -> Event:
    verdict = json.loads(to_json(diagnose(build(made))))
    seen = Seen(Alarm(kind, job, 0.0, "slower"), verdict, "", 0.0, took_s)
    return events.of_look(seen, time.time())


def answer(folder: Path, *said: Callable[[], Event]) -> Iterator[None]:
    """A service that logs these events once it has been asked."""
    watched = WatchPlace(folder)

    def serve() -> None:
        until = time.monotonic() + 20
        while not watched.asked() and time.monotonic() < until:
            time.sleep(0.02)
        for one in said:
            watched.log(one().as_json("node-1"))

    with watched.held():
        watched.log(Event("started", time.time(), "watching").as_json("node-1"))
        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


HEALTHY, SLOW, HUNG = builders.Job(), builders.slow_python(3, 0.08), builders.stopped(5)


@pytest.mark.parametrize(
    ("said", "code", "printed"),
    [
        ([lambda: asked("a"), lambda: judged("a", SLOW)], 1, ["a: "]),
        ([lambda: asked("a"), lambda: asked("b"), lambda: judged("b", HEALTHY), lambda: judged("a", HUNG)], 2, ["b: ", "a: "]),
        # a look of before does not answer; one at an alarm that came first does
        ([lambda: asked("a"), lambda: judged("a", HUNG, 60.0, AlarmKind.SLOWER), lambda: judged("a", HEALTHY, 0.0, AlarmKind.SLOWER)], 0,
         ["a: "]),
        # nor does one of another job that came before the service had read the request
        ([lambda: judged("b", HUNG, 0.0, AlarmKind.SLOWER), lambda: asked("a"), lambda: judged("a", HEALTHY)], 0, ["a: "]),
        ([lambda: asked("a", "no rank is left to look at")], 3, ["a: somebody asked for a look; no window: no rank is left"]),
        ([lambda: asked("a"), lambda: Event("gone", time.time(), "no rank of it is left here", "a")], 3, ["a: no rank of it is left"]),
        ([lambda: Event("note", time.time(), "asked to look at x, and there is no such job")], 3, ["there is no such job"]),
    ],
)  # fmt: skip
def test_it_prints_what_was_answered_and_ends_with_the_worst(
    folder: Path, capsys: Captured, said: list[Callable[[], Event]], code: int, printed: list[str]
) -> None:
    for _ in answer(folder, *said):
        assert run(["trigger", "--state", str(folder), "--wait", "--at-most", "20"]) == code
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(printed) and all(want in line for want, line in zip(printed, lines, strict=True)), lines


def test_as_json_it_is_the_line_of_the_log(folder: Path, capsys: Captured) -> None:
    for _ in answer(folder, lambda: asked("a"), lambda: judged("a", SLOW)):
        assert run(["trigger", "--state", str(folder), "--wait", "--json"]) == 1
    (told,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert promised.complaints("watch", told) == [] and told["verdict"]["status"] == "fault"
    assert told == json.loads((folder / "events.jsonl").read_text().splitlines()[-1])


def test_a_log_that_is_begun_anew_meanwhile_is_read_on(
    folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "LOG_BYTES", 4000)
    many = [lambda: Event("note", time.time(), "x" * 300)] * 12
    for _ in answer(folder, lambda: asked("a"), *many, lambda: judged("a", HEALTHY)):
        assert run(["trigger", "--state", str(folder), "--wait", "--at-most", "20"]) == 0
    assert (folder / "events.jsonl.1").exists() and " a: " in capsys.readouterr().out


def test_without_an_answer_it_is_unknown_and_says_where_the_log_is(folder: Path, capsys: Captured) -> None:
    for _ in answer(folder, lambda: asked("a")):
        assert run(["trigger", "--state", str(folder), "--wait", "--at-most", "1"]) == 3
    told = capsys.readouterr().err
    assert "no verdict within 1.0 s" in told and str(folder / "events.jsonl") in told
    for _ in answer(folder, lambda: Event("ended", time.time(), "no longer watching")):
        assert run(["trigger", "--state", str(folder), "--wait"]) == 3
    assert "the service has ended" in capsys.readouterr().err
    for _ in answer(folder):
        assert run(["trigger", "--state", str(folder)]) == 0
    told = capsys.readouterr().err
    assert f"{folder}/events.jsonl" in told and "journalctl -u rankscope-watch" in told


def test_who_is_not_root_is_told_so_and_nothing_is_made(
    folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["trigger", "--state", str(folder)]) == 69  # nobody watches
    assert run(["trigger", "--state", str(folder), "--json"]) == 64
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert run(["trigger", "--state", str(folder)]) == 77
    assert "Run as root." in capsys.readouterr().err and not folder.exists()


def test_events_that_are_no_answers_are_not() -> None:
    answers = Answers(time.time())
    strange: list[dict[str, Any]] = [
        {},
        {"kind": "verdict"},
        {"kind": "verdict", "took_s": "x", "time": 7},
        {"kind": "note"},
    ]
    assert not any(answers.hear(event) for event in strange) and not answers.done and answers.code == 3
