"""A user who maps a page of the observed library very often stalls no fork, neither as probes are put in nor as they are taken out.

All mappers are processes of another user, end with the test whatever becomes of it, and by themselves after a minute.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from campaignkit.chaos.job import build_program
from campaignkit.chaos.users import MOST_MAPPINGS, forks
from rankscope.probes.bpf import loader
from rankscope.probes.bpf.functions import uprobes, walks
from rankscope.probes.bpf.functions.uprobes import TRACE_UPROBE_MULTI
from rankscope.probes.bpf.module import Module
from rankscope.probes.calls import probe as calls
from rankscope.probes.calls.probe import CallProbe
from rankscope.probes.calls.programs import programs
from rankscope.probes.calls.table import CallRow

pytestmark = pytest.mark.beside

TABLE = (CallRow("librslab", "rs_lab_call", "call", "wait", 1), CallRow("librslab", "rs_lab_more", "more", "wait", 1))
LIBRARY = "".join(
    f"__attribute__((aligned(4096))) int rs_lab_{name}(int n) {{ return n + 3; }}\n" for name in ("call", "more")
)
LONGEST_S = 0.1
BUSY = 20  # times as long, beside other work on the same CPUs: the kernel waits for the lock of each process, who waits for a CPU


@pytest.fixture
def module() -> Iterator[Module]:
    loaded = loader.load([calls.SOURCE], defines={"RS_RING_PAGES": 64}, generated=programs(TABLE))
    yield loaded
    loaded.close()


class Place:
    """A folder with the library and both programs, and the mappers that run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.library, self.started = folder, folder / "librslab.so", list[subprocess.Popen[str]]()
        folder.chmod(0o755)
        for program in ("mapper", "forker"):
            build_program(f"{program}.c", folder / program)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", self.library, "-xc", "-"], input=LIBRARY, text=True, check=True)
        lines = subprocess.run(["nm", "-D", self.library], capture_output=True, text=True, check=True).stdout.split(
            "\n"
        )
        # Where a function is in the file is where it is in memory, in a library as small as this.
        self.offsets = [int(line.split()[0], 16) for line in lines if " rs_lab_" in line]

    def start(self, processes: int, times: int, page: int) -> list[subprocess.Popen[str]]:
        """Mappers that may still be at it."""
        command = [str(self.folder / "mapper"), str(self.library), str(page), str(times), "60"]
        started = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True, user=65534, group=65534)
            for _ in range(processes)
        ]
        self.started += started
        return started

    def mapped(self, processes: int, times: int, page: int) -> list[subprocess.Popen[str]]:
        """Mappers that are done."""
        started = self.start(processes, times, page)
        for one in started:
            assert one.stdout is not None and one.stdout.readline() == "ready\n"
        return started

    @contextlib.contextmanager
    def forking(self) -> Iterator[list[float]]:
        """How long the longest fork took meanwhile, in seconds, once it is over."""
        found: list[float] = []
        with forks(self.folder) as probing:
            yield found
            found.append(probing.longest_s())

    def end(self) -> None:
        for one in self.started:
            one.kill()
        for one in self.started:
            one.wait()
        shutil.rmtree(self.folder)


@pytest.fixture
def place() -> Iterator[Place]:
    made = Place(Path(tempfile.mkdtemp()))
    yield made
    made.end()


def test_a_probe_in_a_page_that_is_mapped_too_often_is_left_out(module: Module, place: Place) -> None:
    # GIVEN a library of which somebody maps a page very often
    pid = place.mapped(4, MOST_MAPPINGS, place.offsets[0])[0].pid
    probe = CallProbe(module, TABLE)
    with place.forking() as longest:
        # WHEN its functions are to be timed
        probe.watch([pid])
    print(f"longest fork {longest[0]:.3f} s")
    # THEN it is said once, with the user, and forks went on
    assert not probe.rows_attached()
    (note,) = probe.notes
    assert "by user 65534, 6000" in note
    assert longest[0] < LONGEST_S * BUSY


def test_a_refused_page_is_not_tried_again_while_it_is_mapped_so_often(module: Module, place: Place) -> None:
    # GIVEN a library that was refused, after a trial that told what it took
    mappers = place.mapped(1, MOST_MAPPINGS, place.offsets[0])
    first = CallProbe(module, TABLE)
    first.watch([mappers[0].pid])
    assert any("visiting all mappings took" in note for note in first.notes)
    # WHEN another observer of this process looks at it
    second = CallProbe(module, TABLE)
    second.watch([mappers[0].pid])
    # THEN it is refused by what the mappings show, without a trial
    (note,) = second.notes
    assert "by user 65534, 6000" in note and "visiting" not in note and not second.rows_attached()
    # and tried again when nobody maps it so often any more
    for one in mappers:
        one.kill()
        one.wait()
    (calm,) = place.mapped(1, 1, place.offsets[0])
    third = CallProbe(module, TABLE)
    third.watch([calm.pid])
    assert third.rows_attached() == {0, 1} and not third.notes


@pytest.mark.parametrize("processes", [256, 2_112])  # 64 ranks with 32 workers each
def test_a_host_where_hundreds_of_processes_map_the_library_is_observed(
    module: Module, place: Place, processes: int
) -> None:
    first, *_ = place.mapped(processes, 1, place.offsets[0])
    probe = CallProbe(module, TABLE)
    with place.forking() as longest:
        probe.watch([first.pid])
        module.close()
        time.sleep(0.5)
    print(f"{processes} processes map it: longest fork {longest[0]:.3f} s")
    assert longest[0] < LONGEST_S * BUSY
    assert not probe.notes and probe.rows_attached() == {0, 1}


def test_a_page_that_is_mapped_ever_more_often_loses_its_probe_in_time(module: Module, place: Place) -> None:
    # GIVEN probes in a library that few map
    first, *_ = place.mapped(1, 1, place.offsets[0])
    probe = CallProbe(module, TABLE)
    probe.watch([first.pid])
    assert probe.rows_attached() == {0, 1}
    probe.enforce_budget(1)
    # WHEN somebody maps it more and more often
    with place.forking() as longest:
        for one in place.start(4, MOST_MAPPINGS, place.offsets[0]):
            assert one.stdout is not None and one.stdout.readline() == "ready\n"
        time.sleep(walks.LOOKS_EVERY_S)
        probe.enforce_budget(1)
        module.close()
        time.sleep(0.5)  # a child of it takes out what is left
    print(f"mapped ever more often: longest fork {longest[0]:.3f} s")
    # THEN it is said, and forks went on
    assert not probe.rows_attached()
    assert any("are no longer timed: a page" in note for note in probe.notes)
    assert longest[0] < LONGEST_S * BUSY


def test_what_is_allowed_follows_from_what_a_visit_costs(module: Module, place: Place) -> None:
    """The limit of a trial is where forks would wait for `LONGEST_S`."""
    times = 4_000
    place.mapped(2, times, place.offsets[0])
    program = module.program("rs_enter_0", attach_type=TRACE_UPROBE_MULTI)
    trial_s, real_s = [], []
    for found, pid in ((trial_s, 1), (real_s, 0)) * 5:
        began_s = time.thread_time()
        links = uprobes.attach_many(program.fd, place.library, place.offsets[:1], pid=pid)
        found.append(time.thread_time() - began_s)
        module.held.update(links)
        module.release(links)
    trial_us, real_us = (one / times / 2 * 1e6 for one in (median(trial_s), median(real_s)))
    print(f"a mapping costs a trial {trial_us:.2f} us, a probe {real_us:.2f} us, in the median")
    assert walks.TRIAL_MOST_S / median(trial_s) * median(real_s) < LONGEST_S


def test_the_prober_tells_waiting_for_probes_from_all_else_that_a_fork_takes(module: Module, place: Place) -> None:
    place.mapped(2, 20_000, place.offsets[0])
    program = module.program("rs_enter_0", attach_type=TRACE_UPROBE_MULTI)
    with forks(place.folder) as probing:
        time.sleep(0.5)
        assert probing.longest_s() > 0
        assert probing.by_probes_s == 0
        began_s = time.monotonic()
        links = uprobes.attach_many(program.fd, place.library, place.offsets[:1])
        took_s = time.monotonic() - began_s
        longest_s = probing.longest_s()
        assert 0.005 < probing.by_probes_s <= longest_s + 0.01
        assert longest_s < took_s + 0.01
        module.held.update(links)
        module.release(links)


def test_a_slow_cpu_is_no_page_that_is_mapped_often(
    module: Module, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in emulation, where a trial took 12 ms of CPU whatever it visited."""
    attach_many, calls = uprobes.attach_many, []

    def slowly(program_fd: int, path: Path, offsets: Sequence[int], **named: Any) -> tuple[int, ...]:
        until_s = time.thread_time() + 3 * walks.TRIAL_MOST_S
        while time.thread_time() < until_s:
            pass
        calls.append(path)
        return attach_many(program_fd, path, offsets, **named)

    monkeypatch.setattr(uprobes, "attach_many", slowly)
    first, *_ = place.mapped(1, 1, place.offsets[0])
    probe = CallProbe(module, TABLE)
    probe.watch([first.pid])
    assert calls
    assert probe.notes == []
    assert probe.rows_attached() == {0, 1}
    # A page that is mapped often is refused all the same.
    place.mapped(4, MOST_MAPPINGS, place.offsets[0])
    program = module.program("rs_enter_0", attach_type=TRACE_UPROBE_MULTI)
    trials = walks.Trials()
    with pytest.raises(uprobes.MappedTooOften):
        trials.need_few(program.fd, place.library, place.offsets[:1], {})
    trials.close()
