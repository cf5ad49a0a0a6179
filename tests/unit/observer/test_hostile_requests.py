"""Whatever the confined process says is a refusal or an answer: it never ends the command, and what makes no sense is not done."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from inspect import signature
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankscope.observer.apart import broker as brokers
from rankscope.observer.apart import plain, run, wire
from rankscope.observer.apart.broker import Broker
from rankscope.probes.base.errors import BadData
from rankscope.probes.bpf.functions.walks import Withdrawn

HUGE = 10**400
NUMBERS = st.one_of(
    st.integers(-5, 5), st.sampled_from([HUGE, -HUGE, 1 << 31, 1 << 62, 1 << 64, 0.5, 1e308, float("inf"), float("nan"), -0.0])
)  # fmt: skip
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.sampled_from(["rs_enter_0", "rs_call_site"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=8,
)
SERVICES = sorted(Broker.SERVICES)


@dataclass(frozen=True, slots=True)
class Seen:
    seconds: float


@pytest.fixture(scope="module", autouse=True)
def done() -> Iterator[list[str]]:
    """What would have been done: nothing really is."""
    found: list[str] = []

    def noted(name: str, answer: object) -> Callable[..., object]:
        def do(*_: object, **__: object) -> object:
            found.append(name)
            return answer() if callable(answer) else answer

        return do

    def ends() -> SimpleNamespace:
        return SimpleNamespace(end=lambda: (0, ()), ended=lambda: True)

    def child() -> tuple[int, socket.socket, int]:
        return -1, socket.socket(), os.dup(0)

    with ExitStack() as held:
        for where, name, answer in (
            (brokers.pyspy, "start", ends), (brokers.kernel_probes, "load_module", _refuse), (brokers.ras, "fetch", b"{}"),
            (brokers.netlink, "open_netlink", socket.socket), (brokers.kmsg, "open_log", lambda: os.dup(0)),
            (brokers.os, "setpriority", None), (brokers, "give_back", None),
        ):  # fmt: skip
            held.enter_context(mock.patch.object(where, name, noted(name, answer)))
        held.enter_context(mock.patch("rankscope.observer.apart.reading.reader.start_child", noted("reader", child)))
        held.enter_context(mock.patch("rankscope.observer.apart.reading.reader.end_child", noted("end_reader", None)))
        held.enter_context(mock.patch("rankscope.observer.apart.reading.namespaces.uts_name", noted("uts_name", "x")))
        held.enter_context(mock.patch("rankscope.observer.apart.reading.devices.start", noted("opener", 7)))
        attached = SimpleNamespace(
            attach_functions=noted("attach", ()), release=noted("release", None), rest=noted("rest", None), wake=noted("wake", ()),
            costs=noted("costs", ()), close=lambda: None, held=set(), withdrawn=Withdrawn,
        )  # fmt: skip
        held.enter_context(mock.patch.object(Broker, "_loaded", lambda _: attached))
        yield found


def _refuse() -> None:
    raise PermissionError(1, "not here")


def as_sent(asked: dict[str, Any]) -> dict[str, Any]:
    """The request as it comes out of the wire."""
    found = json.loads(json.dumps(asked))
    assert isinstance(found, dict)
    return found


def answered(asked: dict[str, Any], handed: tuple[int, ...] = (0,)) -> str:
    """Of what kind the answer is."""
    services = Broker(served=os.getpid(), orders=lambda _: {})
    try:
        _, sent = services.answer(as_sent(asked), handed)
        wire.close_all(sent)
        return "done"
    except run.REFUSALS as error:
        wire.describe(error)
        return type(error).__name__
    finally:
        services.close()


@pytest.mark.parametrize("what", SERVICES)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_arguments_of_any_request_are_more_than_refused(what: str, data: st.DataObject) -> None:
    names = list(signature(Broker.SERVICES[what]).parameters)[2:]
    asked = {
        name: data.draw(st.one_of(NUMBERS, VALUES), name) for name in names if data.draw(st.integers(0, 9), "left out")
    }
    if data.draw(st.integers(0, 9), "one too many") == 0:
        asked[data.draw(st.sampled_from(["self", "_", "handed", "more"]))] = 1
    handed = tuple(os.open(os.devnull, os.O_RDONLY) for _ in range(data.draw(st.integers(0, 2), "descriptors")))
    try:
        answered({"what": what, **asked}, handed)
    finally:
        wire.close_all(handed)


@pytest.mark.parametrize(
    "asked",
    [{"what": "pyspy_start", "pid": 7, "duration_s": HUGE, "rate_hz": HUGE, "idle": True},
     {"what": "pyspy_start", "pid": 7, "duration_s": float("nan"), "rate_hz": 19, "idle": True},
     {"what": "pyspy_start", "pid": 7, "duration_s": "1", "rate_hz": 19, "idle": True},
     {"what": "priority", "tid": os.getpid(), "nice": HUGE, "yields_s": HUGE},
     {"what": "load", "hz": HUGE, "ranks": 1, "processes": 1, "threads": 1, "verbose": False},
     {"what": "attach", "function": "rs_enter_0", "offsets": [HUGE], "on_return": False},
     {"what": "attach", "function": "rs_sample", "offsets": [16], "on_return": False},
     {"what": "release", "links": [HUGE]}, {"what": "uts_name", "pid": HUGE}, {"what": "uts_name", "pid": 0}, {"what": "ras", "pid": 1.5},
     {"what": "socket", "pid": -1, "protocol": 4}, {"what": ["reader"]}],
    ids=lambda asked: str(asked["what"]),
)  # fmt: skip
def test_what_makes_no_sense_is_not_done(asked: dict[str, Any], done: list[str]) -> None:
    done.clear()
    assert answered(asked) != "done"
    assert done == []


def test_a_time_without_end_lasts_as_long_as_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    lasted: list[float] = []

    def start(pid: int, seconds: float, *_: object) -> SimpleNamespace:
        lasted.append(seconds)
        return SimpleNamespace(end=lambda: (0, ()))

    monkeypatch.setattr(brokers.pyspy, "start", start)
    answered({"what": "pyspy_start", "pid": 7, "duration_s": HUGE, "rate_hz": 19, "idle": True})
    assert lasted == [3600.0]


def served(says: Callable[[socket.socket], None], services: run.Services | None = None) -> list[str]:
    """What the command hears of a process that says this."""
    ours, theirs = wire.pair()
    lines: list[str] = []
    with ours, theirs:
        says(theirs)
        wire.send(theirs, {"what": "done"})
        run._serve(ours, services or Broker(served=os.getpid()), lambda *_: False, lines.append, float("inf"))
    return lines


def test_nothing_that_it_says_ends_the_command() -> None:
    def says(channel: socket.socket) -> None:
        deep: list[Any] = []
        for _ in range(400):
            deep = [deep]
        for one in (deep, HUGE, {"a": deep}, None):
            wire.send(channel, {"what": "say", "text": one})
            wire.send(channel, {"what": one})
            wire.send(channel, {"what": "pyspy_start", "pid": one, "duration_s": one, "rate_hz": one, "idle": one})

    assert served(says) == [""] * 4


def test_an_answer_that_no_message_holds_is_an_error_to_who_asked() -> None:
    class Much:
        served = 0

        def answer(self, *_: object) -> run.Answer:
            return {"much": "x" * (2 << 20)}, ()

        def close(self) -> None: ...

    ours, theirs = wire.pair()
    with ours, theirs:
        run._answer(ours, Much(), {"what": "x"}, ())
        assert wire.receive(theirs)[0]["error"] == "ValueError"


@pytest.mark.parametrize(
    "error",
    [BadData("x"), PermissionError(1, "x"), ValueError("x"), TypeError("x"), KeyError("x"), IndexError("x"), ZeroDivisionError("x"),
     AttributeError("x"), RuntimeError("x"), struct.error("x")],
    ids=lambda one: type(one).__name__,
)  # fmt: skip
def test_whatever_a_request_brings_about_is_an_answer(error: Exception) -> None:
    class Fails:
        served = 0

        def answer(self, *_: object) -> run.Answer:
            raise error

        def close(self) -> None: ...

    ours, theirs = wire.pair()
    with ours, theirs:
        run._answer(ours, Fails(), {"what": "x"}, ())
        assert wire.receive(theirs)[0]["error"] == type(error).__name__


@pytest.mark.parametrize(
    "told", [{"error": HUGE, "text": [[]]}, {"error": "OSError", "number": HUGE, "text": {}}, {}], ids=str
)
def test_an_error_that_is_none_is_still_one(told: dict[str, Any]) -> None:
    assert isinstance(wire.raised(as_sent(told)), Exception)


def test_a_number_that_no_float_holds_is_bad_data() -> None:
    with pytest.raises(BadData):
        plain.unpack(Seen, f"[{HUGE}]".encode())
