"""What one process did not let us read of a file, or what a file was before, is said of no other that maps it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from rankscope.observer.apart.run import ObserverEnded
from rankscope.observer.watch import pulse
from rankscope.observer.watch.pulse import Pulse
from rankscope.probes.calls import probe
from rankscope.probes.calls.probe import CallProbe, Library, MappedLibraries, mapped_libraries
from rankscope.probes.host.maps import read_maps
from rankscope.unwinder.names.native import NativeNames

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="opens files through map_files")

ALLREDUCE = "_ZN4gloo9allreduceERNS_16AllreduceOptionsE"
LOADS = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(flush=True); sys.stdin.read()"


class Module:
    """Remembers where it was to attach."""

    def __init__(self) -> None:
        self.attached: list[tuple[str, tuple[int, ...]]] = []

    def attach_uprobes(self, program: str, _: object, offsets: Any, **__: object) -> tuple[int, ...]:
        self.attached.append((program, tuple(offsets)))
        return (1,)

    def release(self, _: object) -> None:
        """Nothing is held."""


def build(path: Path, before: str = "") -> None:
    """A library with a function that is listened to, behind others."""
    text = f"{before} int {ALLREDUCE}(int n) {{ return n + 1; }}"
    made = path.with_suffix(".new")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", made, "-xc", "-"], input=text, text=True, check=True)
    if path.exists():
        path.write_bytes(made.read_bytes())  # the same inode, as the next file may get that of one that is gone
    else:
        made.rename(path)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libtorch_cpu.so"
    build(path)
    return path


class Processes:
    """They map the library until they are ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self) -> Library:
        one = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(LOADS), self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.running.append(one)
        assert one.stdout is not None and one.stdout.readline()
        (found,) = mapped_libraries(one.pid, ("libtorch_cpu",))
        return found

    def end(self) -> None:
        for one in self.running:
            one.kill()
            one.communicate()
        self.running.clear()


@pytest.fixture
def processes(library: Path) -> Iterator[Processes]:
    some = Processes(library)
    yield some
    some.end()


def listening() -> Pulse:
    return Pulse(cast(Any, Module()), cast(Any, None))


def entered(heard: Pulse) -> list[int]:
    (program, offsets), *_ = cast(Module, heard.module).attached
    assert program.startswith("rs_enter")
    return list(offsets)


def test_the_service_puts_no_probe_where_functions_of_an_earlier_file_were(processes: Processes) -> None:
    """In the middle of an instruction a probe kills the process."""
    heard = listening()
    old = processes.start()
    assert heard.listen(old.pid)
    before = entered(heard)
    heard._links.clear()  # as `keep` does, when the job has ended
    cast(Module, heard.module).attached.clear()
    processes.end()
    build(processes.path, before="".join(f"int more_{n}(int n) {{ return n * {n + 3}; }}" for n in range(9)))
    new = processes.start()
    assert new.key == old.key
    assert heard.listen(new.pid)
    (function,) = pulse._find(new).of_row.values()
    assert entered(heard) == list(function.offsets) != before


def test_a_file_that_was_changed_by_name_alone_is_looked_into_once_more_and_attached(processes: Processes) -> None:
    heard = listening()
    one = processes.start()
    heard._functions_in(one)
    processes.path.rename(processes.path.with_name("libtorch_cpu.so.2"))
    assert heard.listen(one.pid) and entered(heard)


@pytest.mark.parametrize("watched", ["by the service", "in a window"])
def test_a_library_whose_first_process_ends_as_it_is_looked_at_is_found_through_the_next(
    processes: Processes, monkeypatch: pytest.MonkeyPatch, watched: str
) -> None:
    first, second = processes.start(), processes.start()
    ended = processes.running.pop(0)
    ended.kill()
    ended.communicate()
    if watched == "by the service":
        heard = listening()
        assert (heard._functions_in(first, "user 1"), len(heard._functions_in(second, "user 2"))) == ({}, 1)
        return
    known = probe.libraries_of
    monkeypatch.setattr(
        probe,
        "libraries_of",
        lambda pid, *more: MappedLibraries((first,)) if pid == first.pid else known(pid, *more),
    )
    module = Module()
    calls = CallProbe(cast(Any, module))
    calls.watch([first.pid, second.pid])
    assert module.attached and not any("not timed" in note for note in calls.notes)
    # and where no process gives it, that is said once
    calls = CallProbe(cast(Any, Module()))
    calls.watch([first.pid])
    assert [note for note in calls.notes if "not timed" in note] == [calls.notes[0]]


def test_a_look_that_ends_is_not_made_again_for_the_same_user_and_is_for_others(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, looks = processes.start(), []

    def ends(*_: Any, **__: Any) -> Any:
        looks.append(1)
        raise ObserverEnded("it went on for too long")

    monkeypatch.setattr(pulse, "look", ends)
    heard = listening()
    assert [heard._functions_in(found, "user 1") for _ in range(3)] == [{}, {}, {}] and len(looks) == 1
    monkeypatch.undo()
    assert heard._functions_in(found, "user 1") == {}
    assert len(heard._functions_in(found, "user 2")) == 1
    assert len(heard._functions_in(found, "user 1")) == 1, "by now it is known what is in it"


def test_names_in_a_library_are_told_of_the_next_process_where_one_has_ended(processes: Processes) -> None:
    first, second = processes.start(), processes.start()
    (line,) = (one for one in read_maps(second.pid) if one.path == str(processes.path) and "x" in one.perms)
    ended = processes.running.pop(0)
    ended.kill()
    ended.communicate()
    names = NativeNames()
    assert len(names._table(first.pid, line).starts) == 0
    assert len(names._table(second.pid, line).starts) > 0
    names.close()
