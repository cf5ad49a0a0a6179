"""The filter of system calls refuses what it should, on both machines, and the numbers in it are the kernel's."""

from __future__ import annotations

import errno
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from rankscope.probes.confine import credentials, seccomp

ALLOW, EPERM, ENOSYS, KILL, ASK = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS, 0x80000000, 0x7FC00000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
# Since which kernel headers of a distribution have them is not the point: only those that are there are compared.
READING = {"write": (1, 64), "pread64": (17, 67), "mmap": (9, 222), "futex": (202, 98), "recvmsg": (47, 212), "sendmsg": (46, 211),
           "memfd_create": (319, 279), "socketpair": (53, 199), "readlinkat": (267, 78), "newfstatat": (262, 79), "tgkill": (234, 131),
           "exit_group": (231, 94), "ftruncate": (77, 46), "setpriority": (141, 140), "prctl": (157, 167)}  # fmt: skip


def answer(program: bytes, machine: str, number: int, *arguments: int) -> int:
    """What the filter answers to a call: the classic BPF machine, as far as the filter uses it."""
    padded = (*arguments, 0, 0, 0, 0, 0, 0)[:6]
    data = struct.pack("<IIQ6Q", number, ARCHITECTURES[machine], 0, *padded)
    held, at = 0, 0
    while True:
        operation, if_true, if_false, value = struct.unpack_from("<HBBI", program, 8 * at)
        at += 1
        if operation == 0x20:
            (held,) = struct.unpack_from("<I", data, value)
        elif operation == 0x06:
            return int(value)
        else:
            met = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[operation]
            at += if_true if met else if_false


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("writing", [True, False])
def test_every_call_of_the_list_is_refused_and_reading_is_not(machine: str, writing: bool) -> None:
    program = seccomp.program(writing=writing, machine=machine)
    for name, numbers in seccomp.REFUSED.items():
        if number := numbers[COLUMN[machine]]:
            assert answer(program, machine, number) == EPERM, name
    for name, numbers in seccomp.ABSENT.items():
        assert answer(program, machine, numbers[COLUMN[machine]]) == ENOSYS, name
    for name, numbers in READING.items():
        assert answer(program, machine, numbers[COLUMN[machine]]) == ALLOW, name


def test_another_machines_calls_end_the_process() -> None:
    assert answer(seccomp.program(writing=True, machine="x86_64"), "aarch64", 63) == KILL
    assert answer(seccomp.program(writing=True, machine="x86_64"), "x86_64", 0x40000000 + 63) == EPERM  # x32
    with pytest.raises(ValueError, match="not known"):
        seccomp.program(writing=True, machine="riscv64")


@pytest.mark.parametrize(
    ("flags", "writing", "reading"),
    [(os.O_RDONLY | os.O_CLOEXEC, ALLOW, ALLOW), (os.O_RDONLY | os.O_NONBLOCK, ALLOW, ALLOW), (os.O_RDWR, ALLOW, EPERM),
     (os.O_WRONLY, EPERM, EPERM), (os.O_RDWR | os.O_CREAT, EPERM, EPERM), (os.O_RDWR | os.O_TRUNC, EPERM, EPERM),
     (os.O_RDWR | os.O_TMPFILE, EPERM, EPERM)],
)  # fmt: skip
def test_files_are_opened_to_read(machine: str, flags: int, writing: int, reading: int) -> None:
    openat = (257, 56)[COLUMN[machine]]
    assert answer(seccomp.program(writing=True, machine=machine), machine, openat, 0, 0, flags) == writing
    assert answer(seccomp.program(writing=False, machine=machine), machine, openat, 0, 0, flags) == reading


def test_another_process_is_asked_of_what_is_opened_to_read_and_write_and_of_nothing_else(machine: str) -> None:
    program = seccomp.program(writing=False, asking=True, machine=machine)
    openat = (257, 56)[COLUMN[machine]]
    flags = (os.O_RDWR | os.O_CLOEXEC, os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT, os.O_RDWR | os.O_TRUNC)
    assert [answer(program, machine, openat, 0, 0, one) for one in flags] == [ASK, ALLOW, EPERM, EPERM, EPERM]
    # Nobody puts another listener before that one, who would let everything be opened.
    assert answer(program, machine, (317, 277)[COLUMN[machine]]) == EPERM


def test_threads_may_be_started_and_processes_may_not(machine: str) -> None:
    program, clone = seccomp.program(writing=True, machine=machine), (56, 220)[COLUMN[machine]]
    assert answer(program, machine, clone, 0x3D0F00) == ALLOW  # what C libraries ask for a thread
    assert answer(program, machine, clone, 0x1200011) == EPERM  # and for fork()
    assert answer(program, machine, clone, 0x10000000) == EPERM  # CLONE_NEWUSER


def test_maps_may_be_used_and_nothing_loaded(machine: str) -> None:
    program, bpf = seccomp.program(writing=True, machine=machine), (321, 280)[COLUMN[machine]]
    allowed = {command for command in range(40) if answer(program, machine, bpf, command) == ALLOW}
    assert allowed == {1, 2, 3, 4, 15, 24}
    ioctl = (16, 29)[COLUMN[machine]]
    assert [answer(program, machine, ioctl, 0, request) for request in (0x5412, 0x541C, 0x5401)] == [
        EPERM,
        EPERM,
        ALLOW,
    ]


def test_the_numbers_are_those_of_the_kernels_headers(machine: str) -> None:
    header = next((Path(path) for path in HEADERS[machine] if Path(path).exists()), None)
    if header is None:
        pytest.skip("no kernel headers for programs here")
    text = header.read_text()
    known = {
        name: int(number) for name, number in re.findall(r"#define __NR3?2?6?4?_?(\w+) (\d+)$", text, re.MULTILINE)
    }
    table = {**seccomp.REFUSED, **seccomp.ABSENT, **READING}
    compared = 0
    for name, numbers in table.items():
        number = numbers[COLUMN[machine]]
        if name in known and number:
            assert known[name] == number, name
            compared += 1
        elif name in known:
            raise AssertionError(f"{name} has a number here, {known[name]}")
    assert compared > 80


@pytest.mark.skipif(os.geteuid() != 0, reason="rights are given up by who has them")
def test_a_program_that_starts_confined_has_the_capabilities_that_it_was_left_and_no_calls(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os\n"
        "print(next(line for line in open('/proc/self/status') if line.startswith('CapPrm')).split()[1])\n"
        "for what in (os.fork, lambda: open('/dev/null', 'r+'), lambda: os.kill(os.getppid(), 9)):\n"
        "    try:\n        what()\n    except PermissionError as error:\n        print(error.errno)\n"
    )
    keep = credentials.mask((credentials.CAP_SYS_PTRACE,))
    calls = seccomp.program(writing=False).hex()
    done = subprocess.run(
        [sys.executable, "-I", "-S", credentials.__file__, f"{keep:x}", calls, str(program)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == [f"{keep:016x}", "1", "1", "1"], done.stderr
