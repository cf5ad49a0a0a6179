"""Numbers of aarch64's system calls are translated into x86-64's: both the kernel's own, as far as its headers are here."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from rankscope.observer.thread import syscalls
from rankscope.probes.base import system_calls
from rankscope.probes.sched.probe import GIL_WAIT

HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
TABLES = (
    syscalls.SLEEP_CALLS, syscalls.SELECT_CALLS, syscalls.THREAD_CALLS, syscalls.SYNC_CALLS, syscalls.SOCKET_CALLS, syscalls.FILE_CALLS,
)  # fmt: skip
ALSO_CALLED = {"fstatat": "newfstatat", "sync_file_range2": "sync_file_range"}  # the same numbers


def _numbers(machine: str) -> dict[str, int]:
    place = next((Path(path) for path in HEADERS[machine] if Path(path).exists()), None)
    if place is None:
        pytest.skip(f"no kernel headers of {machine} here")
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)", place.read_text("utf-8"), re.MULTILINE)
    return {
        ALSO_CALLED.get(name, name): int(number) for name, number in found if name != "syscalls"
    }  # how many there are


def test_every_call_that_has_a_word_is_the_call_of_that_name_on_the_other_machine() -> None:
    here, there = _numbers("x86_64"), _numbers("aarch64")
    names = {number: name for name, number in here.items()}
    for number in {number for table in TABLES for number in table}:
        if names[number] in there:
            assert system_calls.known(there[names[number]], "aarch64") == number, names[number]


def test_no_call_is_taken_for_another_one() -> None:
    here, there = _numbers("x86_64"), _numbers("aarch64")
    names = {number: name for name, number in here.items()}
    for name, number in there.items():
        known = system_calls.known(number, "aarch64")
        assert names.get(known, name) == name and system_calls.shown(known) in (known, number)


def test_an_array_is_translated_as_each_number_and_what_is_no_number_stays() -> None:
    numbers = np.array([98, 115, 63, 222, 5, 441, 0x7FFF, GIL_WAIT, syscalls.NO_SYSCALL], dtype=np.uint16)
    known = system_calls.known_as(numbers, "aarch64")
    assert known.tolist() == [system_calls.known(int(one), "aarch64") for one in numbers[:6]] + numbers[6:].tolist()
    assert system_calls.known_as(numbers, "x86_64").tolist() == numbers.tolist()
    assert system_calls.are_others("aarch64") and not system_calls.are_others("x86_64")
    assert [syscalls.reason(int(one), 1) for one in known[:6]] == [
        "futex",
        "sleep",
        "read",
        "mmap",
        "system call 5",
        "epoll",
    ]
