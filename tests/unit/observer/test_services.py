"""What the process that has the rights does when it is asked in order: each request is done once, with what was asked for, and ended."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankscope.observer.apart import broker as brokers
from rankscope.observer.apart import reading, wire
from rankscope.observer.apart.broker import Broker
from rankscope.observer.live.kernel_probes import LoadedProbes
from rankscope.probes.bpf.compiler.compiled import MapShape
from rankscope.probes.bpf.functions.walks import Withdrawn
from rankscope.probes.bpf.module import ProgramCost, Refused
from rankscope.probes.mapped.reader import READER

SHAPE = MapShape("rs_threads", 1, 4, 8, 16, 0, "int", "long")
LOAD: dict[str, Any] = {"what": "load", "hz": 99, "ranks": 2, "processes": 3, "threads": 4, "verbose": False}
ATTACH: dict[str, Any] = {"what": "attach", "function": "rs_enter_0", "offsets": [16], "on_return": False}


class Probes:
    """Probes that are loaded, and note what becomes of them."""

    def __init__(self) -> None:
        self.held: set[int] = set()
        self.remarks, self.may_rest = ["the compiler ran"], False
        self.maps = {"rs_threads": SimpleNamespace(shape=SHAPE, map_fd=0)}
        self.done: list[tuple[Any, ...]] = []

    def attach_functions(self, function: str, _path: Path, places: list[int], *_: object, **more: object) -> list[int]:
        self.done.append((function, places, more["on_return"], more["place"]))
        return [7]

    def release(self, links: Sequence[int]) -> None:
        self.held -= set(links)

    def withdrawn(self) -> Withdrawn:
        return Withdrawn((7,), "by many")

    def rest(self) -> None:
        self.done.append(("rest",))

    def wake(self) -> tuple[Refused, ...]:
        return (Refused("rs_enter_0", "gone"),)

    def costs(self) -> tuple[ProgramCost, ...]:
        return (ProgramCost("rs_enter_0", 5, 700),)

    def close(self) -> None:
        self.done.append(("closed",))


@pytest.fixture
def probes() -> Probes:
    return Probes()


@pytest.fixture
def broker(probes: Probes) -> Broker:
    return Broker(served=os.getpid(), module=cast(Any, probes))


@pytest.fixture
def file() -> Any:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def loads(probes: Probes, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """With what the probes are loaded."""
    asked: list[dict[str, Any]] = []

    def load(**numbers: Any) -> LoadedProbes:
        asked.append(numbers)
        return LoadedProbes(cast(Any, probes), 4096, ("a note",), (Refused("rs_leave_1", "no room"),))

    monkeypatch.setattr(brokers.kernel_probes, "load_module", load)
    return asked


def test_probes_are_loaded_as_asked_and_their_maps_handed_over(loads: list[dict[str, Any]], probes: Probes) -> None:
    broker = Broker(root=Path("/a"))
    answer, handed = broker.answer(LOAD, ())
    os.close(handed[0])
    assert loads == [{"hz": 99, "ranks": 2, "processes": 3, "threads": 4, "root": Path("/a"), "verbose": False}]
    assert len(handed) == 1 and broker.module is cast(Any, probes) and probes.may_rest is False
    assert answer["maps"][0]["name"] == "rs_threads"
    assert (answer["ring_bytes"], answer["notes"], answer["remarks"]) == (4096, ["a note"], ["the compiler ran"])
    assert answer["refused"] == [{"program": "rs_leave_1", "reason": "no room"}]


def test_probes_may_rest_where_somebody_gives_orders(loads: list[dict[str, Any]], probes: Probes) -> None:
    os.close(Broker(orders=lambda _: {}).answer(LOAD, ())[1][0])
    assert probes.may_rest and len(loads) == 1


@pytest.mark.parametrize("name", ["hz", "ranks", "processes", "threads"])
@pytest.mark.parametrize("value", [-1, 1 << 24, "1", True])
def test_nothing_is_loaded_for_numbers_that_cannot_be(loads: list[dict[str, Any]], name: str, value: object) -> None:
    with pytest.raises(ValueError, match="no such"):
        Broker().answer({**LOAD, name: value}, ())
    assert loads == []


@pytest.mark.parametrize("function", ["rs_enter_0", "rs_leave_3", "rs_call_site", "rs_launch_site_2"])
def test_programs_that_are_for_it_are_attached_and_released(
    broker: Broker, probes: Probes, file: int, function: str
) -> None:
    answer, _ = broker.answer({**ATTACH, "function": function, "on_return": True, "place": 5}, (file,))
    assert (answer, probes.done, probes.held) == ({"links": [7]}, [(function, [16], True, 5)], {7})
    broker.answer({"what": "release", "links": [7]}, ())
    assert probes.held == set()


def test_what_read_a_file_to_attach_to_it_does_not_stay(
    broker: Broker, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(type(READER), "close", lambda _: closed.append(True))
    broker.answer(ATTACH, (file,))
    assert closed == [True]


def test_what_is_known_of_probes_is_answered(broker: Broker) -> None:
    assert broker.answer({"what": "withdrawn"}, ()) == ({"links": [7], "by": "by many"}, ())
    assert broker.answer({"what": "wake"}, ()) == ({"refused": [{"program": "rs_enter_0", "reason": "gone"}]}, ())
    assert broker.answer({"what": "costs"}, ()) == ({"costs": [["rs_enter_0", 5, 700]]}, ())


def test_probes_that_rest_are_detached_and_memory_is_given_back(broker: Broker, probes: Probes) -> None:
    circle: Any = Probes()
    circle.itself = circle
    left = weakref.ref(circle)
    gc.disable()
    try:
        del circle
        broker.answer({"what": "rest"}, ())
        assert probes.done == [("rest",)] and left() is None
    finally:
        gc.enable()


def test_orders_are_waited_for_where_somebody_gives_them(broker: Broker) -> None:
    with pytest.raises(ValueError, match="nobody gives orders"):
        broker.answer({"what": "order"}, ())
    assert Broker(served=9, orders=lambda pid: {"of": pid}).answer({"what": "order"}, ()) == ({"of": 9}, ())


@pytest.mark.parametrize("value", ["1", None, True, -0.5, float("nan")])
def test_what_is_no_length_of_time_is_refused(value: object) -> None:
    asked = {"what": "priority", "tid": os.getpid(), "nice": 0, "yields_s": value}
    with pytest.raises(ValueError, match="no such time"):
        Broker(served=os.getpid()).answer(asked, ())


@pytest.mark.parametrize("how", ["unload", "close"])
def test_probes_are_detached_once_and_nothing_is_loaded_then(broker: Broker, probes: Probes, how: str) -> None:
    broker.answer({"what": "unload"}, ()) if how == "unload" else broker.close()
    broker.close()
    assert probes.done == [("closed",)] and broker.module is None
    with pytest.raises(ValueError, match="nothing is loaded"):
        broker.answer({"what": "rest"}, ())


@pytest.mark.parametrize("pid", [0, -1, 1 << 31, 41.0, True])
def test_nothing_is_started_on_what_is_no_process(broker: Broker, monkeypatch: pytest.MonkeyPatch, pid: object) -> None:
    started: list[object] = []
    monkeypatch.setattr(brokers.pyspy, "start", lambda *asked: started.append(asked))
    asked = {"what": "pyspy_start", "pid": pid, "duration_s": 2, "rate_hz": 19, "idle": True}
    with pytest.raises(ValueError, match="no such process"):
        broker.answer(asked, ())
    assert started == []


def test_what_samples_beside_is_started_once_for_a_process_and_ended(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[Any, ...]] = []
    read, write = os.pipe()

    def start(*how: Any) -> SimpleNamespace:
        started.append(how)
        return SimpleNamespace(ended=lambda: True, end=lambda: (3, (write,)))

    monkeypatch.setattr(brokers.pyspy, "start", start)
    asked = {"what": "pyspy_start", "pid": 41, "duration_s": 2, "rate_hz": 19, "idle": True}
    broker.answer(asked, ())
    with pytest.raises(ValueError, match="sampled already"):
        broker.answer(asked, ())
    assert started == [(41, 2.0, 19, True)]
    assert broker.answer({"what": "pyspy_ended", "pid": 41}, ()) == ({"ended": True}, ())
    assert broker.answer({"what": "pyspy_end", "pid": 41}, ()) == ({"code": 3}, (write,))
    broker.answer(asked, ())
    broker.close()  # what nobody asked for
    with pytest.raises(OSError):
        os.fstat(write)
    os.close(read)


def test_all_that_was_started_for_it_is_ended_and_nothing_twice(
    broker: Broker, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number may be another process's by then."""
    ended: list[tuple[int, bool]] = []
    numbers = iter((31, 32, 33))
    monkeypatch.setattr(
        reading.reader, "start_child", lambda: (next(numbers), SimpleNamespace(detach=lambda: os.dup(0)), os.dup(0))
    )
    monkeypatch.setattr(reading.reader, "end_child", lambda pid, kill: ended.append((pid, kill)))
    monkeypatch.setattr(reading.devices, "start", lambda _: 34)
    samplings: list[int] = []
    monkeypatch.setattr(brokers.pyspy, "start", lambda *_: SimpleNamespace(end=lambda: (samplings.append(1) or 0, ())))
    for _ in range(3):
        wire.close_all(broker.answer({"what": "reader"}, ())[1])
    broker.answer({"what": "open_devices"}, (file,))
    with pytest.raises(ValueError, match="already"):
        broker.answer({"what": "open_devices"}, (file,))
    broker.answer({"what": "pyspy_start", "pid": 41, "duration_s": 2, "rate_hz": 19, "idle": True}, ())
    for _ in range(2):
        broker.answer({"what": "end_reader", "pid": 32, "kill": False}, ())
    assert ended == [(32, False)]
    for _ in range(2):
        broker.close()
    assert sorted(ended) == [(31, True), (32, False), (33, True), (34, True)] and samplings == [1]


def test_a_file_in_memory_that_cannot_be_written_is_not_left_open() -> None:
    def fail(_: object) -> None:
        raise MemoryError

    before = os.listdir("/proc/self/fd")  # noqa: PTH208
    with pytest.raises(MemoryError):
        wire.file_in_memory("x", fail)
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208


def test_the_name_of_a_processs_host_is_told(broker: Broker) -> None:
    assert broker.answer({"what": "uts_name", "pid": os.getpid()}, ()) == ({"name": os.uname().nodename}, ())
