"""Calls that will never return, in maps that are made by hand: they go, and who lost them may have others."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankscope.probes.bpf.functions.walks import Withdrawn
from rankscope.probes.calls import in_progress, probe
from rankscope.probes.calls.probe import CallProbe


class Key(ctypes.Structure):
    _fields_ = (("tid", ctypes.c_uint32), ("scope", ctypes.c_uint32))


class Entry(ctypes.Structure):
    _fields_ = (("tgid", ctypes.c_uint32), ("row", ctypes.c_uint32))


class Map:
    """A hash in the kernel: what is read is a copy, and keys are as good as their bytes."""

    def __init__(self) -> None:
        self.held: dict[bytes, tuple[Any, Any]] = {}

    def __setitem__(self, key: Any, leaf: Any) -> None:
        self.held[bytes(key)] = key, leaf

    def __delitem__(self, key: Any) -> None:
        del self.held[bytes(key)]

    def items(self) -> list[tuple[Any, Any]]:
        return [*self.held.values()]

    def keys(self) -> list[Any]:
        return [key for key, _ in self.items()]


class Kernel(dict[str, Map]):
    """The maps, and /proc beside them."""

    def __init__(self, root: Path) -> None:
        super().__init__({name: Map() for name in ("rs_targets", "rs_calls", "rs_calls_open")})
        self.root = root

    def watch(self, tgid: int) -> None:
        self["rs_targets"][ctypes.c_uint32(tgid)] = ctypes.c_uint32(1)

    def enter(self, tgid: int, tid: int, row: int, *, ends: bool = False) -> None:
        self["rs_calls"][Key(tid, row)] = Entry(tgid, row)
        self["rs_calls_open"][ctypes.c_uint32(tgid)] = ctypes.c_int64(self.numbers().get(tgid, 0) + 1)
        if not ends:
            (self.root / f"proc/{tgid}/task/{tid}").mkdir(parents=True, exist_ok=True)

    def numbers(self) -> dict[int, int]:
        return {int(key.value): int(leaf.value) for key, leaf in self["rs_calls_open"].items()}

    def calls(self) -> list[tuple[int, int]]:
        return [(int(key.tid), int(entry.row)) for key, entry in self["rs_calls"].items()]


def test_calls_of_threads_that_ended_in_them_go_and_all_others_stay(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    kernel.watch(10)
    kernel.watch(20)
    kernel.enter(10, 11, 3)
    for tid in range(100, 150):
        kernel.enter(10, tid, 3, ends=True)
    kernel.enter(20, 20, 3)
    assert in_progress.take_out_ended(kernel, tmp_path) == 50
    assert kernel.calls() == [(11, 3), (20, 3)]
    assert kernel.numbers() == {10: 1, 20: 1}
    assert in_progress.take_out_ended(kernel, tmp_path) == 0


def test_what_a_process_left_that_is_watched_no_more_goes(tmp_path: Path) -> None:
    """Its number may be another's, whose threads are there."""
    kernel = Kernel(tmp_path)
    kernel.enter(10, 10, 3)
    kernel.enter(10, 11, 4)
    assert in_progress.take_out_ended(kernel, tmp_path) == 2
    assert (kernel.calls(), kernel.numbers()) == ([], {})


def test_a_window_lets_go_of_what_ended_processes_left_while_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or those that come and go below one rank would fill the map, each with its own share of it."""
    kernel, now = Kernel(tmp_path), [0.0]
    kernel["rs_call_hits"] = Map()
    kernel.watch(20)
    kernel.enter(20, 20, 3, ends=True)
    calls = CallProbe(cast(Any, SimpleNamespace(maps=kernel, withdrawn=Withdrawn)))
    monkeypatch.setattr(probe.time, "monotonic", lambda: now[0])
    for second in range(45):
        now[0] = float(second)
        for tid in range(5):
            kernel.enter(1000 + second, 100_000 + 5 * second + tid, 3)
        calls.enforce_budget(1)
        assert len(kernel.calls()) <= 1 + 5 * 11
    assert (20, 3) in kernel.calls()


def test_calls_of_a_row_that_is_let_go_are_not_counted_any_longer(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path)
    for row in (3, 4, 5):
        kernel.enter(10, 10, row)
    kernel.enter(20, 20, 4)
    assert in_progress.take_out(kernel, lambda call: call.row == 4) == 2
    assert kernel.calls() == [(10, 3), (10, 5)]
    assert kernel.numbers() == {10: 2}


CALLER, STACK, TOP = 0x5555_1234, 0x2000, 0x1F00
SIGNED = 0x2A << 48 | CALLER  # as pointer authentication keeps it


@pytest.mark.parametrize(
    ("machine", "at", "word", "ended"),
    [
        ("x86_64", STACK, CALLER, False), ("x86_64", STACK, CALLER + 4, True), ("x86_64", TOP, CALLER, True),
        ("aarch64", STACK - 8, CALLER, False), ("aarch64", TOP, SIGNED, False), ("aarch64", STACK, CALLER, True),
        ("aarch64", TOP - 8, CALLER, True),
    ],
)  # fmt: skip
def test_a_call_ended_by_exception_where_its_return_address_is_on_the_stack_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, at: int, word: int, ended: bool
) -> None:
    monkeypatch.setattr(in_progress.platform, "machine", lambda: machine)
    place = tmp_path / "proc/7"
    place.mkdir(parents=True)
    memory = bytearray(2 * STACK)
    memory[at : at + 8] = word.to_bytes(8, "little")
    (place / "mem").write_bytes(memory)
    (place / "syscall").write_text(f"98 0x1 0x80 0x0 0x0 0x0 0x0 {TOP:#x} 0x7f00\n")
    assert in_progress.ended_by_exception(7, STACK, CALLER, tmp_path) is ended
    (place / "syscall").write_text("running\n")
    (place / "mem").unlink()
    assert not in_progress.ended_by_exception(7, STACK, CALLER, tmp_path)
