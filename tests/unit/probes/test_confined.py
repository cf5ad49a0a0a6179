"""The filter of system calls allows what a list by hand of the kernel's calls says, and a real kernel refuses all others."""

from __future__ import annotations

import errno
import os
import platform
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kernel_calls import ABSENT_FROM, ALLOWED, CHECKED, NUMBERS, REFUSED

from rankscope.probes.confine import credentials, seccomp

ALLOW, EPERM, ENOSYS, KILL, ASK = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS, 0x80000000, 0x7FC00000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}


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
        elif operation == 0x54:
            held &= value
        else:
            met = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[operation]
            at += if_true if met else if_false


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("writing", [True, False])
def test_each_call_of_the_kernels_table_is_allowed_or_refused_as_the_list_by_hand_says(writing: bool) -> None:
    program = seccomp.program(writing=writing, machine="x86_64")
    assert set(ALLOWED) | set(CHECKED) | set(REFUSED) == set(NUMBERS)
    assert {name for name in NUMBERS if answer(program, "x86_64", NUMBERS[name]) == ALLOW} >= set(ALLOWED)
    came = {name: answer(program, "x86_64", NUMBERS[name]) for name in REFUSED}
    assert came == {name: ENOSYS if NUMBERS[name] >= ABSENT_FROM else EPERM for name in REFUSED}
    unknown = {number for number in range(1 << 12) if number not in NUMBERS.values()}
    assert {answer(program, "x86_64", number) for number in unknown} == {EPERM, ENOSYS}
    assert {answer(program, "x86_64", number) for number in unknown if number >= ABSENT_FROM} == {ENOSYS}


def test_the_other_machine_is_allowed_the_same_calls() -> None:
    """By the names of its own table; where it has no such call, none."""
    program = seccomp.program(writing=False, machine="aarch64")
    known = _numbers_of("aarch64")
    allowed = {name for name, number in known.items() if answer(program, "aarch64", number) == ALLOW}
    assert allowed - set(CHECKED) == set(ALLOWED) & set(known)
    listed = {number for number in range(1 << 12) if answer(program, "aarch64", number) == ALLOW}
    assert {known[name] for name in allowed} == listed


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


def test_the_older_call_opens_what_the_newer_one_does() -> None:
    for asks in ({"writing": True}, {"writing": False}, {"writing": False, "asking": True}):
        program = seccomp.program(machine="x86_64", **asks)
        for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY, os.O_RDONLY | os.O_CREAT, os.O_RDWR | os.O_TRUNC):
            by_open, by_openat = answer(program, "x86_64", 2, 0, flags), answer(program, "x86_64", 257, 0, 0, flags)
            assert by_open == by_openat and (flags != os.O_RDONLY or by_open == ALLOW)


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


def test_questions_are_asked_of_descriptors_and_orders_are_not_given(machine: str) -> None:
    ioctl, fcntl, prctl = (pair[COLUMN[machine]] for pair in ((16, 29), (72, 25), (157, 167)))
    rm_control, notify, loop, kvm, fault, console = 0xC020462A, 0xC0502100, 0x4C82, 0xAE01, 0xAA00, 0x4601
    asked = {
        (writing, listening): [
            answer(seccomp.program(writing=writing, listening=listening, machine=machine), machine, ioctl, 3, request)
            for request in (0x5401, 0x8946, rm_control, notify, loop, kvm, fault, console, 0x5412, 0x541C)
        ]
        for writing, listening in ((False, False), (True, False), (True, True))
    }
    no = [EPERM] * 6
    assert asked == {
        (False, False): [ALLOW, ALLOW, EPERM, EPERM, *no],
        (True, False): [ALLOW, ALLOW, ALLOW, EPERM, *no],
        (True, True): [ALLOW, ALLOW, ALLOW, ALLOW, *no],
    }
    asking = seccomp.program(writing=False, asking=True, machine=machine)
    assert [answer(asking, machine, ioctl, 3, one) for one in (rm_control, notify, 0xC020642A)] == [ALLOW, EPERM, EPERM]
    program = seccomp.program(writing=False, machine=machine)
    assert {one for one in range(2048) if answer(program, machine, fcntl, 3, one) == ALLOW} == {
        0,
        1,
        2,
        3,
        4,
        1030,
        1034,
    }
    assert {one for one in range(256) if answer(program, machine, prctl, one) == ALLOW} == {
        3,
        15,
        16,
    }  # a thread's name


FILES_OWN = {0x5401, 0x5421, 0x5450, 0x5451, 0x8946, 0xB701, 0xB704}


def test_of_all_requests_to_files_sockets_and_namespaces_these_are_allowed(machine: str) -> None:
    ioctl, program = (16, 29)[COLUMN[machine]], seccomp.program(writing=False, machine=machine)
    requests = [kind << 8 | number for kind in (0x46, 0x54, 0x89, 0xB7) for number in range(256)]
    assert {one for one in requests if answer(program, machine, ioctl, 3, one) == ALLOW} == FILES_OWN


def test_of_all_kinds_of_requests_to_devices_those_to_gpus_are_allowed(machine: str) -> None:
    ioctl, program = (16, 29)[COLUMN[machine]], seccomp.program(writing=True, machine=machine)
    requests = [direction << 30 | 0x200000 | kind << 8 | 0x2A for direction in range(4) for kind in range(256)]
    assert [one for one in requests if answer(program, machine, ioctl, 3, one) == ALLOW] == [0xC020462A]


def test_nothing_is_sent_to_an_address_and_no_limit_set(machine: str) -> None:
    program = seccomp.program(writing=True, machine=machine)
    sendto, prlimit = (pair[COLUMN[machine]] for pair in ((44, 206), (302, 261)))
    addresses = (0, 1 << 12, 1 << 40)
    assert [answer(program, machine, sendto, 3, 9, 9, 0, one, 16) for one in addresses] == [ALLOW, EPERM, EPERM]
    assert [answer(program, machine, prlimit, 0, 7, one, 9) for one in addresses] == [ALLOW, EPERM, EPERM]
    assert answer(program, machine, prlimit, 1, 7, 0, 9) == EPERM


def _numbers_of(machine: str) -> dict[str, int]:
    """The kernel's, from its headers for programs."""
    header = next((Path(path) for path in HEADERS[machine] if Path(path).exists()), None)
    if header is None:
        pytest.skip("no kernel headers for programs here")
    found = re.findall(r"#define __NR3?2?6?4?_?(\w+) (\d+)$", header.read_text(), re.MULTILINE)
    return {{"fstatat": "newfstatat"}.get(name, name): int(number) for name, number in found if name != "syscalls"}


def test_the_numbers_of_the_list_by_hand_are_those_of_the_kernels_headers() -> None:
    known = _numbers_of("x86_64")
    assert {name: NUMBERS.get(name) for name in known} == known and len(known) > 300


def test_the_numbers_by_which_rights_are_given_up_are_the_kernels() -> None:
    """arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h."""
    assert {"x86_64": NUMBERS["capset"], "aarch64": 91} == credentials._SYS_CAPSET
    assert {"x86_64": NUMBERS["seccomp"], "aarch64": 277} == credentials._SYS_SECCOMP


def test_the_numbers_of_capabilities_are_the_kernels() -> None:
    """include/uapi/linux/capability.h."""
    ours = {name: number for name, number in vars(credentials).items() if name.startswith("CAP_")}
    assert ours == {
        "CAP_DAC_READ_SEARCH": 2, "CAP_SYS_PTRACE": 19, "CAP_SYS_ADMIN": 21, "CAP_BPF": 39, "CAP_CHECKPOINT_RESTORE": 40,
    }  # fmt: skip


@pytest.mark.parametrize("install", [credentials.filter_calls, credentials.filter_and_listen])
def test_a_filter_that_the_kernel_refuses_is_an_error(install: Callable[[bytes], object]) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        install(b"")


def _said_by(work: Callable[[], object]) -> str:
    """What a child says, which may give its rights up."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.dup2(write, 1)
            os.write(1, repr(work()).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        text = said.read()
    os.waitpid(pid, 0)
    return text


@pytest.mark.skipif(os.geteuid() != 0, reason="rights are given up by who has them")
def test_another_user_has_his_groups_and_no_others() -> None:
    def become() -> object:
        os.setgroups([7, 8])
        credentials.become(65534, (44,))
        return os.getresuid(), os.getresgid(), os.getgroups()

    assert _said_by(become) == repr(((65534,) * 3, (65534,) * 3, [44]))


@pytest.mark.skipif(os.geteuid() != 0, reason="rights are given up by who has them")
def test_a_program_that_another_user_becomes_has_what_is_passed_on() -> None:
    kept = credentials.mask((credentials.CAP_SYS_PTRACE, credentials.CAP_DAC_READ_SEARCH))
    passed_on = credentials.mask((credentials.CAP_SYS_PTRACE,))

    def become() -> None:
        credentials.become(65534)
        credentials.set_capabilities(kept, passed_on=passed_on)
        os.execv("/bin/cat", ["cat", "/proc/self/status"])

    assert f"CapEff:\t{passed_on:016x}\n" in _said_by(become)


_TRIES = """
import ctypes, os, signal, sys
from rankscope.probes.confine import credentials, seccomp
refused, absent, numbers = 0x50000 | 201, 0x50000 | 202, list(map(int, sys.argv[1].split(",")))
program = bytearray(seccomp.program(writing=False))
for at in range(0, len(program), 8):  # other errors than the kernel's own, to see that it is the filter which answers
    if program[at] == 0x06:
        value = int.from_bytes(program[at + 4 : at + 8], "little")
        told = {0x50000 | 1: refused, 0x50000 | 38: absent}.get(value, value)
        program[at + 4 : at + 8] = told.to_bytes(4, "little")
libc = ctypes.CDLL(None, use_errno=True)
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
signal.alarm(30)
credentials.no_new_rights()
credentials.filter_calls(bytes(program))
me, came = os.getpid(), []
for number in numbers:
    result = libc.syscall(number, 0, 0, 0, 0, 0, 0)
    if os.getpid() != me:
        os._exit(0)
    came.append(f"{number}:{ctypes.get_errno() if result == -1 else 0}")
os.write(1, " ".join(came).encode())
os._exit(0)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the list by hand is of x86-64")
def test_a_real_kernel_refuses_each_of_them() -> None:
    free = [number for number in range(1 << 10) if number not in NUMBERS.values()]
    numbers = sorted([NUMBERS[name] for name in REFUSED] + free)
    done = subprocess.run(
        [sys.executable, "-c", _TRIES, ",".join(map(str, numbers))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    came = dict(tuple(map(int, one.split(":"))) for one in done.stdout.split())
    assert came == {number: 202 if number >= ABSENT_FROM else 201 for number in numbers}, done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="rights are given up by who has them")
def test_a_program_that_starts_confined_has_the_capabilities_that_it_was_left_and_no_calls(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os\n"
        "import resource\n"
        "for name in ('CapPrm', 'CapBnd'):\n"
        "    print(next(line for line in open('/proc/self/status') if line.startswith(name)).split()[1])\n"
        "print(*resource.getrlimit(resource.RLIMIT_CORE))\n"
        "for what in (os.fork, lambda: open('/dev/null', 'r+'), lambda: os.kill(os.getppid(), 9)):\n"
        "    try:\n        what()\n    except PermissionError as error:\n        print(error.errno)\n"
    )
    keep = credentials.mask((credentials.CAP_SYS_PTRACE,))
    calls = seccomp.program(writing=False).hex()
    done = subprocess.run(
        [sys.executable, "-I", "-S", credentials.__file__, f"{keep:x}", calls, str(program)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == [f"{keep:016x}", f"{keep:016x}", "0", "0", "1", "1", "1"], done.stderr
