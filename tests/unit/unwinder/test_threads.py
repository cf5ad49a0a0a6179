"""Pairing thread states with thread ids, over built memory and a made /proc."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import pytest
from images import Image, layout

from rankscope.unwinder.errors import TargetGone
from rankscope.unwinder.interpreter.find import Interpreter
from rankscope.unwinder.interpreter.offsets import ABSENT
from rankscope.unwinder.interpreter.threads import ThreadPairs, list_threads

PID = 700
RUNTIME = 0x5000_0000


@dataclass
class Process:
    """A process of `minor` whose threads are given as (tid seen inside, tid in the C library's record)."""

    interpreter: Interpreter
    image: Image
    states: list[int]  # oldest first


def build(minor: int, threads: list[tuple[int, int]], tid_place: int = 720) -> Process:
    offsets, image = layout(minor), Image()
    image.write(RUNTIME, bytes(1024))
    main_interpreter = image.new(8192)
    image.u64(RUNTIME + offsets.runtime_interpreters_head, main_interpreter)
    states, following = [], 0
    for index, (native, recorded) in enumerate(threads):
        pthread = image.new(1024)
        image.write(pthread + tid_place, struct.pack("<I", recorded))
        state = image.new(400)
        image.u64(state + offsets.tstate_next, following)
        image.u64(state + offsets.tstate_interp, main_interpreter)
        image.u64(state + offsets.tstate_thread_id, pthread)
        if offsets.tstate_native_thread_id != ABSENT:
            image.u64(state + offsets.tstate_native_thread_id, native)
        if index == 0 and offsets.runtime_main_thread != ABSENT:
            image.u64(RUNTIME + offsets.runtime_main_thread, pthread)
        states.append(state)
        following = state
    image.u64(main_interpreter + offsets.interpreter_threads_head, following)
    interpreter = Interpreter(
        pid=PID,
        start_ticks=1,
        version=(3, minor),
        version_hex=0,
        runtime_address=RUNTIME,
        offsets=offsets,
        build="shared",
        free_threaded=False,
        path="",
        how="built",
        none_address=0,
        code_type_address=0,
        gil_address=0,
        gil_bytes=0,
    )
    return Process(interpreter, image, states)


def proc(folder: Path, tids: dict[int, str]) -> Path:
    """host tid -> NSpid; the process's own is that of PID."""
    base = folder / f"proc/{PID}"
    for place, spid in ((base, tids[PID]), *((base / f"task/{tid}", spid) for tid, spid in tids.items())):
        place.mkdir(parents=True, exist_ok=True)
        (place / "status").write_text(f"Name:\tx\nTgid:\t{PID}\nNSpid:\t{spid}\n")
    return folder


@pytest.mark.parametrize("minor", [8, 9, 10, 11, 12, 13, 14, 15])
def test_threads_are_paired_on_the_host(tmp_path: Path, minor: int) -> None:
    process = build(minor, [(700, 700), (701, 701), (702, 702)])
    root = proc(tmp_path, {700: "700", 701: "701", 702: "702", 703: "703"})
    threads = list_threads(process.interpreter, process.image, root)
    assert [thread.host_tid for thread in threads] == [700, 701, 702]
    assert [thread.tstate_address for thread in threads] == process.states


@pytest.mark.parametrize("minor", [8, 9, 10, 11, 12, 13, 14, 15])
def test_threads_are_paired_through_pid_namespaces(tmp_path: Path, minor: int) -> None:
    # GIVEN a container two namespaces deep whose inner ids are other threads' host ids
    process = build(minor, [(1, 1), (701, 701), (700, 700)])
    root = proc(tmp_path, {700: "700 20 1", 701: "701 21 700", 702: "702 22 701"})
    threads = list_threads(process.interpreter, process.image, root)
    assert [(thread.host_tid, thread.inner_tid) for thread in threads] == [(700, 1), (702, 701), (701, 700)]


@pytest.mark.parametrize("place", [720, 208, 48, 56, 500])
def test_the_tid_is_found_in_the_record_of_any_c_library(tmp_path: Path, place: int) -> None:
    process = build(8, [(0, 700), (0, 701), (0, 702)], place)
    root = proc(tmp_path, {700: "700", 701: "701", 702: "702"})
    threads = list_threads(process.interpreter, process.image, root)
    assert [thread.host_tid for thread in threads] == [700, 701, 702]


def test_the_state_of_a_thread_that_died_spoils_nothing(tmp_path: Path) -> None:
    process = build(8, [(0, 700), (0, 99), (0, 702)])
    root = proc(tmp_path, {700: "700", 701: "701", 702: "702"})
    threads = list_threads(process.interpreter, process.image, root)
    assert [thread.host_tid for thread in threads] == [700, 0, 702]


@pytest.mark.parametrize("minor", [11, 13])
def test_a_native_id_from_before_a_fork_is_not_believed(tmp_path: Path, minor: int) -> None:
    process = build(minor, [(650, 700), (651, 701)])
    root = proc(tmp_path, {700: "700", 701: "701"})
    threads = list_threads(process.interpreter, process.image, root)
    assert [thread.host_tid for thread in threads] == [700, 701]


@pytest.mark.parametrize("minor", [8, 12])
def test_a_list_that_is_a_ring_ends(tmp_path: Path, minor: int) -> None:
    process = build(minor, [(700, 700), (701, 701)])
    process.image.u64(process.states[0] + process.interpreter.offsets.tstate_next, process.states[1])
    process.image.u64(
        int.from_bytes(process.image.read(RUNTIME + process.interpreter.offsets.runtime_interpreters_head, 8), "little")
        + process.interpreter.offsets.interpreter_next,
        process.states[0],
    )
    root = proc(tmp_path, {700: "700", 701: "701"})
    threads = list_threads(process.interpreter, process.image, root)
    assert [thread.host_tid for thread in threads] == [700, 701]


def test_new_threads_are_found_with_remembered_pairs(tmp_path: Path) -> None:
    process = build(11, [(1, 1), (2, 2)])
    pairs = ThreadPairs()
    root = proc(tmp_path, {700: "700 1"})
    assert [t.host_tid for t in list_threads(process.interpreter, process.image, root, pairs)] == [700, 0]
    proc(tmp_path, {700: "700 1", 701: "701 2"})
    assert [t.host_tid for t in list_threads(process.interpreter, process.image, root, pairs)] == [700, 701]


def test_a_process_without_proc_entry_is_gone(tmp_path: Path) -> None:
    process = build(11, [(700, 700)])
    with pytest.raises(TargetGone):
        list_threads(process.interpreter, process.image, tmp_path)
