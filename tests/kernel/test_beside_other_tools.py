"""Functions that another tool probes as well, with another reference counter: as bcc's Python programs do by mistake."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankscope.observer.apart.windows import windows_of
from rankscope.observer.window.folder import Window
from rankscope.probes.base import rights
from rankscope.probes.base.errors import RankscopeError
from rankscope.probes.bpf import loader, ring
from rankscope.probes.bpf.functions import uprobes
from rankscope.probes.bpf.module import Module
from rankscope.probes.calls import probe as calls
from rankscope.probes.calls.probe import CallProbe
from rankscope.probes.calls.programs import programs
from rankscope.probes.calls.table import CallRow
from rankscope.probes.elf.exports import file_offsets, find_names
from rankscope.probes.elf.local import LocalFile

pytestmark = pytest.mark.beside

Start = Callable[..., "subprocess.Popen[str]"]
RING_PAGES = 64
IN_THE_HEADER = 6  # what bcc 0.26 was seen to name: a place in the ELF header, which no process maps writable
LIBRARY = """
#include <unistd.h>
short rs_lab_counter = 7;
int rs_lab_call(int n) { usleep(1000); return n + rs_lab_counter; }
"""
TABLE = (
    CallRow("librslab", "rs_lab_call", "call", "wait", 1),
    CallRow("librsfree", "rs_lab_call", "free", "wait", 1),
)
CALLER = """
    import ctypes, sys
    libraries = [ctypes.CDLL(name) for name in sys.argv[1:3]]
    print("ready", flush=True); sys.stdin.readline()
    for i in range(int(sys.argv[3])): [library.rs_lab_call(i) for library in libraries]
    sys.stdin.readline()
"""
OTHER_TOOL = """
#include "kernel.bpf.h"
BPF_ARRAY(other_count, u64, 1);
int other_tool(struct pt_regs *ctx)
{
	int zero = 0;
	u64 *count = other_count.lookup(&zero);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 0;
}
"""


class OtherTool:
    """Counts the calls of `rs_lab_call` of a library, as a tool that gives its probe a reference counter."""

    def __init__(self, folder: Path) -> None:
        source = folder / "other.bpf.c"
        source.write_text(OTHER_TOOL)
        self.module = loader.load([source])
        self.links: tuple[int, ...] = ()

    def attach(self, library: Path, counter: int, how: Callable[..., tuple[int, ...]]) -> None:
        kind = uprobes.TRACE_UPROBE_MULTI if how is uprobes.attach_many else -1
        program = self.module.program("other_tool", attach_type=kind)
        offset = find_names(LocalFile(library), ["rs_lab_call"])["rs_lab_call"][0].offset
        self.links = how(program.fd, library, (offset,), counters={offset: counter})

    def counted(self) -> int:
        return int(self.module.maps["other_count"][ctypes.c_int(0)].value)

    def detach(self) -> None:
        links, self.links = self.links, ()
        for link in links:
            os.close(link)


@pytest.fixture
def other(tmp_path: Path) -> Iterator[OtherTool]:
    tool = OtherTool(tmp_path)
    yield tool
    tool.detach()
    tool.module.close()


@pytest.fixture
def ours() -> Iterator[Module]:
    module = loader.load([calls.SOURCE], defines={"RS_RING_PAGES": RING_PAGES}, generated=programs(TABLE))
    yield module
    module.close()


@pytest.fixture
def libraries(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "lab.c").write_text(LIBRARY)
    for name in ("librslab.so.1", "librsfree.so.1"):
        subprocess.run(["cc", "-shared", "-fPIC", "-O0", "-o", tmp_path / name, tmp_path / "lab.c"], check=True)
    return tmp_path / "librslab.so.1", tmp_path / "librsfree.so.1"


def _in_memory(pid: int, library: Path, offset: int) -> int:
    """The 16-bit number that a process has at this place of a library."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, _, begin, *_, name = line.split()
        low, high = (int(part, 16) for part in span.split("-"))
        if name == str(library) and int(begin, 16) <= offset < int(begin, 16) + high - low:
            place = low + offset - int(begin, 16)  # the last mapping of a page is the one that was laid over others
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        return int.from_bytes(os.pread(memory.fileno(), 2, place), "little")


def _counter(library: Path) -> int:
    """Where rs_lab_counter is in the file."""
    names = subprocess.run(["nm", library], check=True, capture_output=True, text=True).stdout.splitlines()
    address = next(int(line.split()[0], 16) for line in names if line.endswith(" rs_lab_counter"))
    return file_offsets(LocalFile(library), [address])[-1]


def _go(process: subprocess.Popen[str], module: Module) -> ring.Events:
    events = ring.Ring(module.maps["rs_events"].map_fd, RING_PAGES * 4096)
    module.maps["rs_targets"][ctypes.c_uint32(process.pid)] = ctypes.c_uint32(1)
    process.communicate("go\n\n", timeout=60)
    drained = events.drain()
    events.close()
    found: ring.Events = drained[drained["type"] == ring.CALL]
    return found


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("how", [uprobes.attach_many, uprobes.attach_each])
def test_calls_are_timed_beside_another_tool_and_it_goes_on_counting(
    program: Start,
    ours: Module,
    other: OtherTool,
    libraries: tuple[Path, Path],
    how: Callable[..., tuple[int, ...]],
    at_once: bool,
) -> None:
    process = program(CALLER, *map(str, libraries), "29")
    ours.at_once = at_once
    before = _in_memory(process.pid, libraries[0], IN_THE_HEADER)
    other.attach(libraries[0], IN_THE_HEADER, how)
    probe = CallProbe(ours, TABLE)
    probe.watch([process.pid])
    assert (probe.notes, probe.rows_attached(), ours.at_once) == ([], frozenset({0, 1}), at_once)
    assert _in_memory(process.pid, libraries[0], IN_THE_HEADER) == before
    events = _go(process, ours)
    assert [int((events["what"] == row).sum()) for row in (0, 1)] == [29, 29]
    assert other.counted() == 29


def test_a_counter_in_the_jobs_data_is_left_alone_and_a_note_says_what_is_missing(
    program: Start, ours: Module, other: OtherTool, libraries: tuple[Path, Path]
) -> None:
    process = program(CALLER, *map(str, libraries), "31")
    counter = _counter(libraries[0])
    assert _in_memory(process.pid, libraries[0], counter) == 7
    other.attach(libraries[0], counter, uprobes.attach_many)
    assert _in_memory(process.pid, libraries[0], counter) == 8  # the other tool's doing
    probe = CallProbe(ours, TABLE)
    began = time.monotonic()
    probe.watch([process.pid])
    assert time.monotonic() - began < 2.0
    assert len(probe.notes) == 1
    assert probe.notes[0].startswith("call in librslab.so.1 is not timed: another tool has a probe there")
    assert (probe.rows_attached(), ours.at_once) == (frozenset({1}), True)
    assert _in_memory(process.pid, libraries[0], counter) == 8
    events = _go(process, ours)
    assert [int((events["what"] == row).sum()) for row in (0, 1)] == [0, 31]


def test_a_tool_that_is_about_to_end_is_waited_for(
    program: Start, ours: Module, other: OtherTool, libraries: tuple[Path, Path]
) -> None:
    process = program(CALLER, *map(str, libraries), "23")
    other.attach(libraries[0], _counter(libraries[0]), uprobes.attach_many)
    leaving = threading.Timer(0.1, other.detach)
    leaving.start()
    probe = CallProbe(ours, TABLE)
    probe.watch([process.pid])
    leaving.join()
    assert probe.notes == []
    events = _go(process, ours)
    assert [int((events["what"] == row).sum()) for row in (0, 1)] == [23, 23]


def asked_by_the_confined_process(library: Path, **more: object) -> list[str]:
    """What comes of its request to attach to `rs_lab_call` of this library, and of another with `more` in it."""

    def work(say: Callable[[str], None]) -> list[Window]:
        asked = rights.delegate()
        assert asked is not None
        asked.ask("load", hz=19, ranks=1, processes=1, threads=4, verbose=False)
        place = find_names(LocalFile(library), ["rs_lab_call"])["rs_lab_call"][0].offset
        file = os.open(library, os.O_RDONLY)
        for details in ({}, {"counters": [[place, more["counter"]]]}) if more else ({},):
            try:
                answer, _ = asked.ask(
                    "attach", (file,), function="rs_enter_0", offsets=[place], on_return=False, **details
                )
                say(f"{len(answer['links'])} attached")
                asked.ask("release", links=answer["links"])
            except (RankscopeError, TypeError, OSError) as error:
                say(type(error).__name__)
        return []

    said: list[str] = []
    assert windows_of(work, said.append) == []
    return said


def test_the_process_that_observes_has_nothing_written_to_a_jobs_data(
    program: Start, libraries: tuple[Path, Path]
) -> None:
    """It may be in somebody's hands, and no kernel asks what a number is that it takes for a counter."""
    process, counter = program(CALLER, *map(str, libraries), "1"), _counter(libraries[0])
    seen = threading.Event()
    most = 7

    def look() -> None:
        nonlocal most
        while not seen.wait(0.001):
            most = max(most, _in_memory(process.pid, libraries[0], counter))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        assert asked_by_the_confined_process(libraries[0], counter=counter) == ["1 attached", "TypeError"]
    finally:
        seen.set()
        looking.join()
    assert most == 7


@pytest.mark.parametrize(("of_the_job", "came"), [(False, "1 attached"), (True, "PlaceTaken")])
def test_the_process_that_attaches_for_it_finds_the_other_tools_counter_itself(
    program: Start, other: OtherTool, libraries: tuple[Path, Path], of_the_job: bool, came: str
) -> None:
    process, counter = program(CALLER, *map(str, libraries), "1"), _counter(libraries[0])
    other.attach(libraries[0], counter if of_the_job else IN_THE_HEADER, uprobes.attach_many)
    assert asked_by_the_confined_process(libraries[0]) == [came]
    assert _in_memory(process.pid, libraries[0], counter) == 7 + of_the_job  # the other tool's doing
