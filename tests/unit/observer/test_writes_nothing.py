"""The process that observes opens nothing to write, whoever may write to it; what GPUs' libraries open is opened for it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from confined_work import Say, opened, said, tried, tried_inside

from rankscope.observer.apart import devices
from rankscope.observer.apart.look import look
from rankscope.observer.apart.windows import windows_of
from rankscope.observer.window.folder import Window
from rankscope.probes.confine import credentials
from rankscope.probes.mapped.reader import READER

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="rights are given up by who has them")
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.shmat.restype, _LIBC.shmat.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)

VICTIM = """
import ctypes, mmap, os
own = os.memfd_create("mine")
os.ftruncate(own, 4096)
shared = [mmap.mmap(own, 4096), mmap.mmap(-1, 4096, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)]
for one in shared: one[:9] = b"as it was"
print(own, ctypes.addressof(ctypes.c_char.from_buffer(shared[1])), flush=True)
input()
print([bytes(one[:9]) for one in shared], flush=True)
"""


@pytest.fixture(params=["without GPUs", "with GPUs"])
def gpus(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of devices of a host."""
    folder = tmp_path / "dev"
    folder.mkdir()
    folder.chmod(0o755)
    if request.param == "with GPUs":
        for name in ("nvidiactl", "nvidia0", "zero"):
            os.mknod(folder / name, 0o666 | 0o020000, os.makedev(1, 5))  # as /dev/zero
            (folder / name).chmod(0o666)
        try:
            opened(str(folder / "nvidia0"), os.O_RDWR)
        except OSError:
            pytest.skip("this place allows no devices")
    monkeypatch.setattr(devices, "FOLDER", folder)
    return folder


def _write(path: str) -> None:
    descriptor = os.open(path, os.O_RDWR)
    os.write(descriptor, b"OWNED")
    os.close(descriptor)


def _write_to_anonymous_memory(pid: int, place: int) -> None:
    """By the descriptor that the child which opens files of targets hands back."""
    line = next(one for one in Path(f"/proc/{pid}/maps").read_text().splitlines() if one.startswith(f"{place:x}-"))
    span, _, _, device, inode, *_ = line.split()
    opened = READER.open(f"/proc/{pid}/map_files/{span}", device, int(inode))
    _write(f"/proc/self/fd/{opened.descriptor}")


def _use_shared(segment: int) -> None:
    if _LIBC.shmat(segment, None, 0) == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "shmat")


@pytest.fixture
def segment() -> Iterator[int]:
    """Memory of System V that everybody may write to."""
    made = int(_LIBC.shmget(0, 4096, 0o1666))
    assert made >= 0
    yield made
    _LIBC.shmctl(made, 0, None)


def test_it_writes_to_nothing_that_everybody_may_write_to(gpus: Path, segment: int, tmp_path: Path) -> None:
    """It reaches what no other user would: the descriptors of processes, and what lies in closed folders."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    file, pipe = closed / "file", closed / "pipe"
    file.write_text("as it was")
    os.mkfifo(pipe)
    for one in (file, pipe):
        one.chmod(0o666)
    reads = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    command = [sys.executable, "-c", VICTIM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as victim:
        assert victim.stdout is not None
        own, place = map(int, victim.stdout.readline().split())
        came = tried(
            {
                "memory in a file": lambda: _write(f"/proc/{victim.pid}/fd/{own}"),
                "anonymous memory": lambda: _write_to_anonymous_memory(victim.pid, place),
                "a file": lambda: _write(str(file)),
                "a pipe": lambda: _write(str(pipe)),
                "a time": lambda: os.utime(file),
                "memory of System V": lambda: _use_shared(segment),
            }
        )
        assert came == dict.fromkeys(came, str(errno.EPERM)) and len(came) == 6
        assert victim.communicate("\n")[0] == str([b"as it was"] * 2) + "\n"
    assert file.read_text() == "as it was"
    assert os.read(reads, 10) == b""
    os.close(reads)


@pytest.mark.parametrize("gpus", ["with GPUs"], indirect=True)
def test_devices_of_gpus_are_opened_for_it_and_nothing_beside_them(gpus: Path, tmp_path: Path) -> None:
    (gpus / "nvidia1").write_text("as it was")
    (gpus / "nvidia2").symlink_to(gpus / "nvidia1")
    (gpus / "nvidia3").symlink_to(gpus / "zero")
    for one in (gpus / "nvidia1", gpus):
        one.chmod(0o777)

    def use(name: str) -> None:
        descriptor = os.open(gpus / name, os.O_RDWR | os.O_CLOEXEC)
        assert os.read(descriptor, 2) == bytes(2) and os.write(descriptor, b"ab") == 2
        assert os.get_inheritable(descriptor) is False
        os.close(descriptor)

    names = (
        "nvidiactl",
        "nvidia0",
        "zero",
        "nvidia1",
        "nvidia2",
        "nvidia3",
        "nvidia4",
        "../dev/nvidia0",
        "nvidia0/../zero",
    )
    children = {child.pid for child in psutil.Process().children()}
    came = tried({name: lambda name=name: use(name) for name in names})  # type: ignore[misc]
    assert [came.pop(name) for name in ("nvidiactl", "nvidia0")] == ["done"] * 2
    assert came.pop("nvidia4") == str(errno.ENOENT)
    assert came == dict.fromkeys(came, str(errno.EPERM))
    assert (gpus / "nvidia1").read_text() == "as it was"
    end = time.monotonic() + 5
    while any(
        child.status() != psutil.STATUS_ZOMBIE for child in psutil.Process().children() if child.pid not in children
    ):
        assert time.monotonic() < end
        time.sleep(0.02)


def _open_at(place: int) -> None:
    if _LIBC.openat(-100, ctypes.c_void_p(place), os.O_RDWR) < 0:
        raise OSError(ctypes.get_errno(), "openat")


@pytest.mark.parametrize("gpus", ["with GPUs"], indirect=True)
def test_a_name_that_lies_nowhere_ends_nothing(gpus: Path) -> None:
    places = {f"{place:x}": lambda place=place: _open_at(place) for place in (0, 1 << 46, (1 << 64) - 16)}  # type: ignore[misc]
    came = tried({**places, "afterwards": lambda: opened(str(gpus / "nvidia0"), os.O_RDWR)})
    assert came.pop("afterwards") == "done"
    assert set(came.values()) <= {str(errno.EPERM), str(errno.EIO), str(errno.EFAULT)}


@pytest.mark.parametrize("gpus", ["with GPUs"], indirect=True)
def test_where_the_kernel_cannot_be_asked_it_says_so_and_gpus_are_seen(
    gpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(program: bytes) -> int:
        raise OSError(errno.EBUSY, "busy")

    monkeypatch.setattr(credentials, "filter_and_listen", refuse)
    lines = said(lambda say: say(tried_inside(lambda: opened(str(gpus / "nvidia0"), os.O_RDWR))))
    assert len(lines) == 2 and "may open files for writing" in lines[0] and lines[1] == "done"


@pytest.mark.parametrize("gpus", ["with GPUs"], indirect=True)
def test_it_does_not_hold_what_would_let_it_answer_for_whoever_opens_gpus(gpus: Path) -> None:
    def tell(say: Say) -> None:
        for one in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # that of the list itself
                say(str(one.readlink()))

    assert {line.partition(":")[0] for line in said(tell)} == {"/dev/null", "socket"}


@pytest.mark.parametrize("gpus", ["with GPUs"], indirect=True)
def test_who_opens_gpus_keeps_none_open(gpus: Path) -> None:
    counts: list[int] = []

    def work(say: Say) -> list[Window]:
        for _ in range(20):
            opened(str(gpus / "nvidia0"), os.O_RDWR)
        say("opened")
        time.sleep(1)  # whoever opens them ends with this process
        return []

    def count(_: str) -> None:
        for child in psutil.Process().children():
            if child.status() != psutil.STATUS_ZOMBIE and any("opener.py" in word for word in child.cmdline()):
                counts.append(child.num_fds())

    windows_of(work, count)
    assert counts == [4]


@pytest.mark.parametrize("gpus", ["with GPUs"], indirect=True)
def test_where_nobody_opens_gpus_for_it_that_is_said(gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> int:
        raise OSError(errno.EAGAIN, "no process to be had")

    monkeypatch.setattr(devices, "start", refuse)
    assert said(lambda say: say("at work")) == [
        "the observer cannot open GPUs: [Errno 11] no process to be had", "at work",
    ]  # fmt: skip


def test_files_that_stand_for_devices_are_opened_like_these(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an emulated machine, which whoever runs the command names."""
    stands, other, link = tmp_path / "state", tmp_path / "other", tmp_path / "link"
    for one in (stands, other):
        one.touch()
        one.chmod(0o666)
    link.symlink_to(other)
    monkeypatch.setenv("RANKSCOPE_DEVICES", f"{stands}:{link}")
    came = tried({one.name: lambda one=one: _write(str(one)) for one in (stands, other, link)})  # type: ignore[misc]
    assert came == {"state": "done", "other": str(errno.EPERM), "link": str(errno.ELOOP)}
    assert (stands.read_text(), other.read_text()) == ("OWNED", "")


@dataclass(frozen=True, slots=True)
class Came:
    of_it: str


@pytest.mark.parametrize("gpus", ["with GPUs"], indirect=True)
@pytest.mark.parametrize(("asks", "came"), [(True, "done"), (False, str(errno.EPERM))])
def test_a_look_that_asks_no_gpu_has_none_opened(gpus: Path, asks: bool, came: str) -> None:
    """Nor pays for what would open it."""
    found = look(lambda: Came(tried_inside(lambda: opened(str(gpus / "nvidia0"), os.O_RDWR))), Came, gpus=asks)
    assert found == Came(came)
