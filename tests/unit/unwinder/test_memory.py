"""Reading a process's memory: what is there, what is not, and what is no more."""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.unwinder.errors import TargetGone, UnreadableMemory
from rankscope.unwinder.interpreter.memory import READ_CAP_BYTES, ProcessMemory, read_i32, read_u8, read_u32, read_u64


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", "input()"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    yield process
    process.kill()
    process.communicate()


def test_numbers_of_each_width_are_read() -> None:
    buffer = ctypes.create_string_buffer(bytes([0xFE, 0xFF, 0xFF, 0xFF, 1, 2, 3, 4]), 8)
    address = ctypes.addressof(buffer)
    with ProcessMemory(os.getpid()) as memory:
        assert read_u8(memory, address) == 0xFE
        assert read_u32(memory, address) == 0xFFFF_FFFE
        assert read_i32(memory, address) == -2
        assert read_u64(memory, address) == 0x0403_0201_FFFF_FFFE


@pytest.mark.parametrize(
    ("address", "size"),
    [(0, 8), (8, 8), (-8, 8), (1 << 63, 8), ((1 << 64) - 8, 8), (4096, 0), (4096, -1), (4096, READ_CAP_BYTES + 1)],
)
def test_impossible_reads_are_refused(address: int, size: int) -> None:
    with ProcessMemory(os.getpid()) as memory, pytest.raises(UnreadableMemory):
        memory.read(address, size)


@given(address=st.integers(-(1 << 65), 1 << 65), size=st.integers(-10, 1 << 40))
def test_any_read_gives_bytes_or_one_known_error(address: int, size: int) -> None:
    with ProcessMemory(os.getpid()) as memory, contextlib.suppress(UnreadableMemory):
        assert len(memory.read(address, size)) == size


def test_a_process_that_ended_is_gone(sleeper: subprocess.Popen[bytes]) -> None:
    # GIVEN memory opened while the process lived
    with ProcessMemory(sleeper.pid) as memory:
        assert memory.alive()
        # WHEN it ends and is reaped
        sleeper.kill()
        sleeper.wait()
        # THEN
        with pytest.raises(TargetGone):
            memory.read(0x40_0000, 8)
        assert not memory.alive()
    with pytest.raises(TargetGone):
        ProcessMemory(sleeper.pid)


def test_a_pid_of_another_start_time_is_another_process(sleeper: subprocess.Popen[bytes]) -> None:
    with ProcessMemory(sleeper.pid) as memory:
        started = memory.start_ticks
    with pytest.raises(TargetGone, match="another process"):
        ProcessMemory(sleeper.pid, start_ticks=started - 1)


def test_no_descriptor_is_left_behind() -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        with ProcessMemory(os.getpid()):
            pass
        with pytest.raises(TargetGone):
            ProcessMemory(os.getpid(), start_ticks=1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
