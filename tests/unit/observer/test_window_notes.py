"""Notes of a window: what could not be seen, once for all whom it is said of."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankscope.observer.finish.windows import _notes, of_ranks
from rankscope.observer.live import process_watch
from rankscope.observer.thread.functions import NO_STACK
from rankscope.probes.host import procfs
from rankscope.unwinder.errors import NotPython
from rankscope.unwinder.walk.stack import KernelStack, RawFrame


def test_what_is_said_of_many_ranks_is_said_once() -> None:
    said = dict.fromkeys((*range(40), 42), "no calls") | {40: "", 41: "nothing repeats"}
    assert list(of_ranks(said)) == ["ranks 0-39, 42: no calls", "rank 41: nothing repeats"]
    scattered = dict.fromkeys(range(0, 64, 2), "no calls")
    assert list(of_ranks(scattered)) == ["ranks 0, 2, 4, 6, 8, 10, 12, 14, …: no calls"]
    assert list(of_ranks({0: "", 1: ""})) == []


def test_of_a_storm_of_short_processes_one_note_says_that_they_were_too_short() -> None:
    def process(pid: int, label: str, gone: bool) -> process_watch.ProcessWatch:
        return process_watch.ProcessWatch(pid, 7, label, None, f"process {pid}: no such process", gone=gone)

    some = [process(7, process_watch.TRAINING, gone=True), process(8, process_watch.LOADER, gone=False)]
    some += [process(pid, process_watch.LOADER, gone=True) for pid in range(100, 160)]
    nothing = SimpleNamespace(notes=[], calls=SimpleNamespace(notes=[]))
    running: Any = SimpleNamespace(
        notes=[], fallback=None, probes=nothing, gauges=nothing, flows=nothing, servers=nothing, processes={one.pid: one for one in some},
        losses=lambda _: (), users=lambda: lambda _: "user 1",
    )  # fmt: skip
    assert _notes(running, (), frozenset((7,)), frozenset(("user 1",))) == (
        "no Python stacks of pid 7: process 7: no such process",
        "no Python stacks of pid 8: process 8: no such process",
        "no Python stacks of 60 processes that ended soon, pid 100 among them: process 100: no such process",
    )


@pytest.mark.parametrize(("label", "missed"), [(process_watch.TRAINING, True), (process_watch.LOADER, False)])
def test_stacks_of_what_is_no_python_are_missed_of_ranks_alone(
    label: str, missed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that MPI starts below a rank has none."""

    def no_python(pid: int, root: Path) -> Any:
        raise NotPython("no Python runtime in /usr/bin/orted")

    monkeypatch.setattr(process_watch, "find_interpreter", no_python)
    probes: Any = SimpleNamespace(set_thread=lambda *_: None, watch_process=lambda *_: None)
    process = process_watch.watch(1, 1, label, probes)
    assert bool(process.reason) == missed and process.interpreter is None


@pytest.mark.parametrize(
    "error", [struct.error("argument out of range"), ValueError("x"), OverflowError("x"), IndexError("x")]
)
def test_a_process_whose_memory_breaks_what_reads_it_is_without_stacks_and_ends_nobody_elses_window(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Any:
        raise error

    probes: Any = SimpleNamespace(set_thread=lambda *_: None, watch_process=lambda *_: None)
    monkeypatch.setattr(process_watch, "find_interpreter", broken)
    process = process_watch.watch(1, 1, process_watch.TRAINING, probes)
    assert process.interpreter is None and str(error) in process.reason
    there: Any = object()
    process.interpreter, process.memory, process.threads = there, SimpleNamespace(close=lambda: None), {1: 8}  # type: ignore[assignment]
    process.symbols = SimpleNamespace(resolve=broken)  # type: ignore[assignment]
    monkeypatch.setattr(process_watch, "walk_blocked", lambda *_: KernelStack((RawFrame(8, 0),)))
    monkeypatch.setattr(process_watch, "list_threads", broken)
    assert process.name_stack(KernelStack((RawFrame(8, 0),))) == NO_STACK
    assert process.blocked_stack(1) == NO_STACK
    process.start_ticks = procfs.start_ticks(1)
    process.refresh(probes)
