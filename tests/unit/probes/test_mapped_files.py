"""The files of a target are the inodes that it has mapped: not what lies at their paths now, and nobody waits for them."""

from __future__ import annotations

import mmap
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from rankscope.probes.elf.exports import find_names
from rankscope.probes.host.maps import Mapping, read_maps
from rankscope.probes.mapped import file as mapped_file
from rankscope.probes.mapped import reader
from rankscope.probes.mapped.file import open_mapped
from rankscope.probes.mapped.reader import READER, FileNotRead, _Child
from rankscope.probes.mapped.waits import SLOW_MOST_S

CONTENT = b"\x7fELF the file that is mapped\n" * 100


@pytest.fixture
def mapped(tmp_path: Path) -> Iterator[Callable[[Path], Mapping]]:
    """Maps a file into this process; returns the line of maps."""
    held: list[mmap.mmap] = []

    def hold(path: Path) -> Mapping:
        with path.open("rb") as file:
            held.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
        return next(one for one in read_maps(os.getpid()) if one.path == str(path))

    yield hold
    for one in held:
        one.close()


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "liba.so"
    path.write_bytes(CONTENT)
    return path


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link_to_a_secret(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/shadow")


def _other_file(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"another file")


@pytest.mark.parametrize("swap", [_fifo, _link_to_a_secret, _other_file, Path.unlink])
def test_whatever_lies_at_its_path_now_the_file_that_is_mapped_is_read(
    swap: Callable[[Path], None], mapped: Callable[[Path], Mapping], library: Path
) -> None:
    mapping = mapped(library)
    swap(library)
    began = time.monotonic()
    with open_mapped(os.getpid(), mapping) as file:
        assert file.pread(1 << 20, 0) == CONTENT
        assert file.path.read_bytes() == CONTENT if os.access(file.path, os.R_OK) else True
    assert time.monotonic() - began < 1


def test_a_file_without_a_name_is_read(mapped: Callable[[Path], Mapping]) -> None:
    descriptor = os.memfd_create("library")
    os.write(descriptor, CONTENT)
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ):
        (mapping,) = read_maps(os.getpid(), wanted=lambda path: path == "/memfd:library")
        with open_mapped(os.getpid(), mapping) as file:
            assert file.pread(100, 7) == CONTENT[7:107]
    os.close(descriptor)


def test_another_file_that_was_mapped_in_its_place_is_refused(
    mapped: Callable[[Path], Mapping], library: Path, tmp_path: Path
) -> None:
    other = tmp_path / "libb.so"
    other.write_bytes(CONTENT)
    mapping, taken = mapped(library), mapped(other)
    with pytest.raises(FileNotRead, match="another file is mapped"):
        open_mapped(os.getpid(), replace(mapping, start=taken.start, end=taken.end))


def test_a_device_that_is_mapped_is_not_opened(tmp_path: Path) -> None:
    """Opening a device may do something; what it is, is known before."""
    device = tmp_path / "libdevice.so"
    os.mknod(device, 0o600 | 0o020000, os.makedev(1, 5))  # as /dev/zero
    with device.open("r+b") as file:
        try:
            held = mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_PRIVATE)
        except OSError:
            pytest.skip("this place allows no devices")
    (mapping,) = read_maps(os.getpid(), wanted=lambda path: path == str(device))
    with pytest.raises(FileNotRead, match="not a regular file"):
        open_mapped(os.getpid(), mapping)
    held.close()


@pytest.mark.parametrize("text", ["00:zz", "", "123456789ab:0", "-1:0"])
def test_devices_that_make_no_sense_are_refused(text: str, mapped: Callable[[Path], Mapping], library: Path) -> None:
    with pytest.raises(FileNotRead):
        open_mapped(os.getpid(), replace(mapped(library), device=text))


def test_a_process_that_has_ended_has_no_files(mapped: Callable[[Path], Mapping], library: Path) -> None:
    with pytest.raises(FileNotRead):
        open_mapped(2**22 + 5, mapped(library))


def test_absurd_places_are_refused_and_the_file_can_still_be_read(
    mapped: Callable[[Path], Mapping], library: Path
) -> None:
    with open_mapped(os.getpid(), mapped(library)) as file:
        for size, at in ((1, -1), (1, 1 << 63), (1, 1 << 64)):
            with pytest.raises(FileNotRead):
                file.pread(size, at)
        assert file.pread(4, 1 << 40) == b""
        assert file.pread(4, 0) == b"\x7fELF"


def test_a_file_is_read_up_to_a_budget(
    mapped: Callable[[Path], Mapping], library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_file, "BUDGET_BYTES", 1000)
    with open_mapped(os.getpid(), mapped(library)) as file:
        assert len(file.pread(900, 0)) == 900
        with pytest.raises(FileNotRead, match="more than"):
            file.pread(101, 0)


def answers_take(seconds: float, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """From now on, of a clock of their own, which is returned."""
    now, ask_at_once = [0.0], _Child.ask

    def ask(child: _Child, request: bytes, passed: int | None = None) -> tuple[tuple[int, ...], list[int]]:
        now[0] += seconds
        return ask_at_once(child, request, passed)

    monkeypatch.setattr(reader, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(_Child, "ask", ask)
    return now


def test_a_file_whose_bytes_come_slowly_is_read_for_some_seconds(
    mapped: Callable[[Path], Mapping], library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer comes in time, and there are hundreds."""
    monkeypatch.setattr(mapped_file, "BUDGET_S", 10.0)
    with open_mapped(os.getpid(), mapped(library)) as file:
        now = answers_take(1.5, monkeypatch)
        with pytest.raises(FileNotRead, match="too slowly"):
            for at in range(100):
                assert file.pread(4, at) == CONTENT[at : at + 4]
        assert now[0] <= 10.0 + 2 * 1.5


def test_slow_files_without_number_are_read_until_their_file_system_counts_as_one_that_does_not_answer(
    mapped: Callable[[Path], Mapping], library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = mapped(library)
    READER.close()
    now = answers_take(1.5, monkeypatch)
    with pytest.raises(FileNotRead, match="does not answer"):
        for _ in range(100):
            with open_mapped(os.getpid(), mapping) as file:
                assert file.pread(4, 0) == b"\x7fELF"
    assert now[0] <= SLOW_MOST_S + 2 * 1.5
    READER.close()
    with open_mapped(os.getpid(), mapping) as file:
        assert file.pread(4, 0) == b"\x7fELF"


def test_whose_a_process_is_is_asked_while_nobody_waits_for_the_answer(
    mapped: Callable[[Path], Mapping], library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks it may be kept by that process, and left behind for as long as that lasts: with the lock nothing would be read any more."""
    held: list[bool] = []

    def whose(pid: int, root: Path) -> str:
        held.append(READER._lock.locked())
        return "user 1"

    monkeypatch.setattr(reader, "whose", whose)
    reader._owner.cache_clear()
    with open_mapped(os.getpid(), mapped(library)) as file:
        assert file.pread(4, 0) == b"\x7fELF"
    reader._owner.cache_clear()
    assert held == [False]


def test_a_child_that_was_killed_is_replaced_and_open_files_stay_open(
    mapped: Callable[[Path], Mapping], library: Path
) -> None:
    with open_mapped(os.getpid(), mapped(library)) as file:
        assert file.pread(4, 0) == b"\x7fELF"
        assert READER._child is not None
        os.kill(READER._child.pid, 9)
        with pytest.raises(FileNotRead, match="ended"):
            file.pread(4, 0)
        assert file.pread(4, 0) == b"\x7fELF"


def test_a_child_starts_whatever_descriptors_are_free(mapped: Callable[[Path], Mapping], library: Path) -> None:
    """What is handed over must not land on what is still to be handed over."""
    mapping = mapped(library)
    for free in range(3, 16):
        READER.close()
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
        os.close(held.pop(free % len(held)))
        with open_mapped(os.getpid(), mapping) as file:
            assert file.pread(4, 0) == b"\x7fELF"
        for descriptor in held:
            os.close(descriptor)


def test_the_child_holds_nothing_of_ours_and_ends_with_us(mapped: Callable[[Path], Mapping], library: Path) -> None:
    with library.open("rb") as ours, open_mapped(os.getpid(), mapped(library)) as file:
        os.set_inheritable(ours.fileno(), True)
        READER.close()
        file.pread(1, 0)
        assert READER._child is not None
        pid = READER._child.pid
        held = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}  # noqa: PTH115, PTH208
        assert {name for name in held if not name.startswith(("socket:", "/memfd:rankscope", "/dev/null"))} == {
            str(library)  # the file that it reads
        }
    READER.close()
    end = time.monotonic() + 5
    while Path(f"/proc/{pid}/stat").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_functions_of_a_library_that_was_replaced_by_a_fifo_are_found(
    mapped: Callable[[Path], Mapping], tmp_path: Path
) -> None:
    (tmp_path / "a.c").write_text("int rs_mapped_function(void) { return 3; }\n")
    library = tmp_path / "liba.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "a.c"], check=True)
    mapping = mapped(library)
    _fifo(library)
    with open_mapped(os.getpid(), mapping) as file:
        assert [one.name for one in find_names(file, ["rs_mapped_function"])["rs_mapped_function"]] == [
            "rs_mapped_function"
        ]
