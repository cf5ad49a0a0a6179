"""What can be seen on a host is found out by a child; where no verdict can be had no alarm is looked at."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankscope.diagnose.service.alarms import Alarm, AlarmKind
from rankscope.diagnose.service.events import Event
from rankscope.diagnose.service.looks import trial
from rankscope.diagnose.service.looks.trial import Found, Trial
from rankscope.diagnose.service.service import Service, WatchOptions


def _found(one: Trial) -> Found:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if (found := one.done()) is not None:
            return found
        time.sleep(0.01)
    raise AssertionError("the child did not end")


def test_what_the_child_found_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"blind": "no samples", "missing": ["no samples", "no file calls"]}
    monkeypatch.setattr(trial, "_try", lambda result: os.write(result, json.dumps(said).encode()))
    one = Trial()
    one.begin()
    assert _found(one) == Found("no samples", ("no samples", "no file calls"))
    assert one.done() is None


def test_a_child_that_ends_without_a_word_takes_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_try", lambda _: os._exit(1))
    one = Trial()
    one.begin()
    assert _found(one) == Found()


@pytest.mark.parametrize(("blind", "looks"), [("", True), ("no samples", False)])
def test_where_no_verdict_can_be_had_alarms_are_said_and_not_looked_at(tmp_path: Path, blind: str, looks: bool) -> None:
    said: list[Event] = []
    tier0 = SimpleNamespace(close=lambda: None, of_job=lambda _: ("a rank",))
    nothing: Any = None
    service = Service(cast(Any, tier0), nothing, WatchOptions(tmp_path), said.append, lambda _: None, nothing)
    service.trial = cast(Any, SimpleNamespace(done=lambda: Found(blind, (blind,) if blind else ())))
    service._hear_trial(1.0)
    job: Any = SimpleNamespace(
        raised=lambda _: None, refused=None, allowance=SimpleNamespace(allows=lambda *_, **__: ""), troubles={}
    )
    service._looking.alarm(job, Alarm(AlarmKind.SILENT, "job", 1.0, "no step for 9 s"), 1.0)
    assert said[-1].kind == "alarm" and said[-1].details["window"] is looks
    assert bool([one for one in said if one.kind == "note" and "no verdict can be had" in one.words]) is not looks
