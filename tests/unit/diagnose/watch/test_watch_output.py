"""What the service says and keeps: lines, metrics, its folder."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankscope.diagnose.face.cli.service import watch
from rankscope.diagnose.service import events, place
from rankscope.diagnose.service.alarms import Alarm, AlarmKind, Relief
from rankscope.diagnose.service.looks.look import Seen, window_s
from rankscope.diagnose.service.place import AlreadyWatching, WatchPlace
from rankscope.diagnose.service.tell import lines
from rankscope.diagnose.service.tell.metrics import JobState, RankState, ServiceState, as_prometheus
from rankscope.diagnose.severity import CRITICAL, OK, WARNING

ALARM = Alarm(AlarmKind.SLOWER, "job", 10.0, "0.104 → 0.154 s/step")
VERDICT = {
    "status": "fault",
    "suspects": [
        {
            "component": "python", "cause": "slow-function", "instance": "", "ranks": [1], "lost_seconds_per_step": 0.0502,
            "function": {"kind": "python", "name": "tokenize", "file": "/job/train.py", "line": 14},
        }
    ],
    "notes": [],
}  # fmt: skip


def test_a_verdict_is_one_line() -> None:
    said = "Rank 1 on node-0: tokenize (train.py:14) takes longer there, which costs 0.050 s (python/slow-function)"
    event = events.of_look(Seen(ALARM, {**VERDICT, "summary": said}, "", 11.0), 0.0)
    assert event.words == f"FAULT {said}"
    # AND one of a host with an older version, which has no sentence
    assert events.of_look(Seen(ALARM, VERDICT, "", 11.0), 0.0).words == "FAULT python/slow-function on rank 1"
    dead = {
        **VERDICT,
        "status": "hang",
        "suspects": [{**VERDICT["suspects"][0], "component": "process", "cause": "exited"}],
    }
    assert events.of_look(Seen(ALARM, dead, "", 11.0), 0.0).words.startswith("DEAD ")
    assert event.state == WARNING


def test_a_hang_is_critical_and_nobody_is_well() -> None:
    hang = {**VERDICT, "status": "hang"}
    nobody = {"status": "healthy", "suspects": [], "notes": []}
    assert events.of_look(Seen(ALARM, hang, "", 11.0), 0.0).state == CRITICAL
    assert events.of_look(Seen(ALARM, nobody, "", 11.0), 0.0).state == OK


def test_a_look_that_failed_says_why() -> None:
    assert "no rank" in events.of_look(Seen(ALARM, None, "no rank here", None), 0.0).words


def test_relief_says_what_was_regained_and_who_it_was() -> None:
    relief = Relief(AlarmKind.SLOWER, "job", 10.0, 40.0, "0.154 → 0.104 s/step", 0.154, 0.104)
    event = events.of_relief(relief, 40.0, 10.0, "tokenize")
    assert event.words.startswith("regained 0.050 s/step: 0.154 → 0.104 s/step, since ")
    assert event.words.endswith("it was tokenize")


def test_an_event_is_valid_json_whatever_a_job_is_called() -> None:
    content = events.Event("alarm", 0.0, "x\x1b[31m", "job\n\x00").as_json("host")
    assert "\x1b" not in json.dumps(content, allow_nan=False)
    assert content["time"] == "1970-01-01T00:00:00.000Z"


@pytest.mark.parametrize(("step_s", "seconds"), [(None, 5.0), (0.1, 5.0), (1.0, 20.0), (30.0, 60.0)])
def test_a_window_holds_twenty_steps_within_reason(step_s: float | None, seconds: float) -> None:
    assert window_s(step_s, standstill=False) == seconds


def test_of_a_job_that_stands_still_a_short_window_is_enough_however_long_its_steps_are() -> None:
    assert window_s(30.0, standstill=True) == window_s(None, standstill=True) == 4.0


def test_metrics_have_no_value_where_nobody_knows_and_no_label_that_breaks_out() -> None:
    rank = RankState(0, up=True, stopped=False, silent_s=0.5, waited_share=float("nan"))
    job = JobState(
        'a"b\n', [rank], float("nan"), 0.1, 7, slow=True, hung=False, named=False, alarms={"slower": 2}, windows=1, lost_s=0.0
    )  # fmt: skip
    text = as_prometheus([job], ServiceState(1.5, 1 << 20, 0.1, 0))
    assert "rankscope_job_step_seconds" not in text
    assert 'rankscope_job_alarms_total{training_job="a\\"b\\\\n",kind="slower"} 2' in text
    assert all(line.startswith(("#", "rankscope_")) for line in text.splitlines())
    assert (
        len(
            {line for line in text.splitlines() if not line.startswith("#") and "rank=" not in line and 'job="' in line}
        )
        <= 12
    )


def test_one_service_holds_the_folder(tmp_path: Path) -> None:
    one = WatchPlace(tmp_path / "watch")
    with one.held():
        assert one.is_held()
        with pytest.raises(AlreadyWatching), one.held():
            pass
    assert not one.is_held()


def test_requests_are_heard_once(tmp_path: Path) -> None:
    one = WatchPlace(tmp_path / "watch")
    assert one.asked() == ()
    one.ask("job")
    one.ask("")
    assert sorted(one.asked()) == ["", "job"]
    assert one.asked() == ()


def test_a_request_that_cannot_be_removed_is_not_heard_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    one = WatchPlace(tmp_path / "watch")
    one.ask("job")
    with monkeypatch.context() as disk:
        disk.setattr(os, "unlink", read_only)
        assert one.asked() == ()
    assert one.asked() == ("job",)


def test_a_request_whose_writer_was_killed_does_not_stay_for_ever(tmp_path: Path) -> None:
    one = WatchPlace(tmp_path / "watch")
    one.ask("job")
    for age_s, name in ((3600, ".old"), (0, ".new"), (-3600, ".ahead")):
        (one.folder / "trigger" / name).write_text("x")
        os.utime(one.folder / "trigger" / name, (time.time() - age_s,) * 2)
    assert one.asked() == ("job",)
    assert [path.name for path in (one.folder / "trigger").iterdir()] == [".new"]


def test_the_log_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "LOG_BYTES", 200)
    one = WatchPlace(tmp_path / "watch")
    for number in range(50):
        one.log({"number": number, "text": "x" * 30})
    files = sorted(path.name for path in one.folder.iterdir())
    assert files == ["events.jsonl", "events.jsonl.1"]
    assert all((one.folder / name).stat().st_size <= 200 for name in files)
    last = (one.folder / "events.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["number"] == 49
    assert (one.folder / "events.jsonl").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("kind", ["a pipe", "a socket"])
def test_a_journal_that_does_not_read_keeps_the_service_neither_from_its_log_nor_from_its_hook(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    # GIVEN a reader of stdout that has stopped
    monkeypatch.setattr(lines, "PATIENCE_S", 0.2)
    monkeypatch.setattr(watch, "_STDOUT", lines.Lines())
    ours, theirs = os.pipe() if kind == "a pipe" else (end.detach() for end in socket.socketpair())
    told: list[dict[str, Any]] = []
    hook = SimpleNamespace(tell=lambda content, *_: told.append(content) or "", over=lambda _: None)
    speaker = watch._Speaker(WatchPlace(tmp_path / "watch"), cast(Any, hook), as_json=False)
    event = events.Event("hardware", 0.0, "x" * 300, state=CRITICAL)
    took = []
    with os.fdopen(theirs, "w") as stream, os.fdopen(ours, "rb", buffering=0) as reader:
        monkeypatch.setattr(sys, "stdout", stream)
        # WHEN more is said than it takes THEN one line waits for it, and no other one
        for _ in range(3000):
            began = time.monotonic()
            speaker.say(event)
            took.append(time.monotonic() - began)
        assert sum(each > 0.15 for each in took) == 1 and max(took) < 2
        assert len(told) == len((tmp_path / "watch/events.jsonl").read_text().splitlines()) == 3000
        # AND once it reads again it has whole lines, and is told how many it has not
        got = os.read(reader.fileno(), 1 << 22)
        speaker.say(event)
        speaker.say(event)
        got += os.read(reader.fileno(), 1 << 22)
    whole = [line for line in got.decode().splitlines() if len(line) == len(event.line)]
    missed = re.findall(r"rankscope: (\d+) lines before this one were not read", capsys.readouterr().err)
    assert len(missed) == 1 and len(whole) + int(missed[0]) == 3002 and int(missed[0]) > 1000
