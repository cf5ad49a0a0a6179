"""A process that observes, taken hold of, hands no file of root's to a local user, and steers no device that it can only read."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confined_work import Say, said, tried

from rankscope.observer.apart.windows import windows_of
from rankscope.observer.window.folder import Window
from rankscope.probes.confine import credentials

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="rights are given up by who has them")
_LIBC = ctypes.CDLL(None, use_errno=True)
_EPERM = str(errno.EPERM)
_SETXATTRAT, _SETXATTR, _IO_URING_SETUP, _USERFAULTFD = 463, 188, 425, 323
_LOOP_CTL_GET_FREE, _KVM_CREATE_VM, _USERFAULTFD_IOC_NEW, _NEWEST = 0x4C82, 0xAE01, 0xAA00, 1 << 10

_WAITS = """
import os, socket, sys
mine = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
mine.bind("\\0" + sys.argv[1])
mine.settimeout(float(sys.argv[2]))
print("bound", flush=True)
try:
    _, files, _, _ = socket.recv_fds(mine, 16, 1)
    print(os.pread(files[0], 64, 0) if files else "no file")
except TimeoutError:
    print("nothing came")
"""


@pytest.fixture
def waits() -> Iterator[Callable[[float], tuple[bytes, subprocess.Popen[str]]]]:
    """A program of a local user's that waits for files at an address: both."""
    started: list[subprocess.Popen[str]] = []

    def start(for_s: float) -> tuple[bytes, subprocess.Popen[str]]:
        name = f"rankscope-test-{os.getpid()}-{time.monotonic_ns()}"
        # The interpreter itself: a folder that only root may enter hides that of the tests.
        command = [os.path.realpath(sys.executable), "-I", "-S", "-c", _WAITS, name, str(for_s)]
        program = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, user=65534, group=65534, cwd="/")
        started.append(program)
        assert program.stdout is not None and program.stdout.readline() == "bound\n"
        return b"\0" + name.encode(), program

    yield start
    for program in started:
        program.kill()
        program.wait()
        assert program.stdout is not None
        program.stdout.close()


def _hand_over(end: socket.socket, file: str, address: bytes) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    end.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", descriptor))], 0, address)


def _through_a_pair(file: str, address: bytes) -> None:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with one, other:
        _hand_over(one, file, address)


def test_no_local_user_gets_a_file_of_roots_from_it(
    tmp_path: Path, waits: Callable[[float], tuple[bytes, subprocess.Popen[str]]]
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of root's")
    secret.chmod(0o600)
    address, program = waits(5.0)
    came = tried(
        {
            "a pair": lambda: _through_a_pair(str(secret), address),
            "a socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
        }
    )
    assert came == dict.fromkeys(("a pair", "a socket"), _EPERM)
    assert program.communicate()[0] == "nothing came\n"


def test_the_sockets_that_it_holds_know_no_address() -> None:
    """SOCK_SEQPACKET: the kernel sends to the other end, whatever address is said. The first is to the command."""

    def look(say: Say) -> None:
        for link in Path("/proc/self/fd").iterdir():
            try:
                one = socket.socket(fileno=os.dup(int(link.name)))
            except OSError:
                continue  # no socket, or that folder
            with one:
                say(f"{one.family.name} {one.type.name}")

    assert said(look) == ["AF_UNIX SOCK_SEQPACKET"]


def test_where_a_file_can_be_handed_over_that_user_has_it(
    tmp_path: Path, waits: Callable[[float], tuple[bytes, subprocess.Popen[str]]]
) -> None:
    """The attack works from a process that is not confined: what is tested above is the confinement."""
    (tmp_path / "secret").write_text("of root's")
    address, program = waits(20.0)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        _hand_over(ours, str(tmp_path / "secret"), address)
    assert program.communicate()[0] == 'b"of root\'s"\n'


def _call(number: int, *arguments: object) -> None:
    if _LIBC.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")


def _order(device: str, request: int) -> None:
    """To a device that it opens to read; where this host has none, to another one, which would not know it."""
    descriptor = os.open(device if Path(device).exists() else "/dev/null", os.O_RDONLY)
    try:
        fcntl.ioctl(descriptor, request, 0)
    finally:
        os.close(descriptor)


def test_devices_that_it_opens_to_read_do_nothing_for_it() -> None:
    came = tried(
        {
            "a loop device": lambda: _order("/dev/loop-control", _LOOP_CTL_GET_FREE),
            "a virtual machine": lambda: _order("/dev/kvm", _KVM_CREATE_VM),
            "faults": lambda: _order("/dev/userfaultfd", _USERFAULTFD_IOC_NEW),
            "a GPU's": lambda: _order("/dev/null", 0xC020462A),
        }
    )
    assert came == dict.fromkeys(came, _EPERM)


def test_what_the_kernel_learnt_since_is_not_there_for_it(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    file.chmod(0o666)
    value = ctypes.create_string_buffer(b"x")
    arguments = ctypes.create_string_buffer(struct.pack("=QII", ctypes.addressof(value), 1, 0))
    name, attribute = str(file).encode(), b"user.rankscope"
    came = tried(
        {
            "setxattrat": lambda: _call(_SETXATTRAT, -100, name, 0, attribute, arguments, ctypes.c_size_t(16)),
            "io_uring_setup": lambda: _call(_IO_URING_SETUP, 1, None),
            "the next": lambda: _call(_NEWEST),
            "setxattr": lambda: _call(_SETXATTR, name, attribute, b"x", 1, 0),
            "userfaultfd": lambda: _call(_USERFAULTFD, 0),
        }
    )
    absent = str(errno.ENOSYS)
    assert list(came.values()) == [absent, absent, absent, _EPERM, _EPERM]
    assert os.listxattr(file) == []


def test_it_locks_no_file_and_steers_no_other_observer(tmp_path: Path) -> None:
    """Another one is the same user."""
    file = tmp_path / "file"
    file.write_text("as it was")
    with subprocess.Popen(["sleep", "60"], user=credentials.NOBODYS_USER, group=credentials.NOBODYS_USER) as other:
        came = tried(
            {
                "a lock": lambda: _locked(str(file), fcntl.flock, fcntl.LOCK_EX),
                "a lock to read": lambda: _locked(str(file), fcntl.lockf, fcntl.LOCK_SH),
                "a lease": lambda: _locked(str(file), fcntl.fcntl, fcntl.F_SETLEASE, fcntl.F_RDLCK),
                "a signal": lambda: _call(234, other.pid, other.pid, signal.SIGTERM),
                "its limits": lambda: _limited(other.pid),
                "its CPUs": lambda: os.sched_setaffinity(other.pid, {0}),
                "its place": lambda: os.setpriority(os.PRIO_PROCESS, other.pid, 19),
                "to be looked into": lambda: _call(157, 4, 1, 0, 0, 0),
                "to outlive the command": lambda: _call(157, 1, 0, 0, 0, 0),
            }
        )
        assert came == dict.fromkeys(came, _EPERM)
        assert other.poll() is None and os.getpriority(os.PRIO_PROCESS, other.pid) == os.getpriority(os.PRIO_PROCESS, 0)
        other.kill()


def _locked(file: str, how: Callable[..., object], *what: int) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        how(descriptor, *what)
    finally:
        os.close(descriptor)


def _limited(pid: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (8, 8))


def test_nobody_of_its_user_looks_into_it() -> None:
    """Two observers at the same time have one user."""
    other = (
        "import ctypes, os, sys\n"
        f"os.setresgid(*[{credentials.NOBODYS_USER}] * 3); os.setresuid(*[{credentials.NOBODYS_USER}] * 3)\n"
        "try:\n    open(f'/proc/{sys.argv[1]}/mem', 'rb'); print('open')\n"
        "except PermissionError:\n    print('closed')\n"
    )
    looked: list[str] = []

    def see(pid: str) -> None:
        command = [sys.executable, "-I", "-S", "-c", other, pid]
        looked.append(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())

    def run(say: Say) -> list[Window]:
        say(str(os.getpid()))
        time.sleep(1.0)
        return []

    windows_of(run, see)
    assert looked == ["closed"]
