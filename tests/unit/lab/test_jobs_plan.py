"""Every row of the table of jobs can be started, and what is slow in it is slow by what was ordered, when it was ordered."""

from __future__ import annotations

import ast
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from labkit import verdicts
from labkit.jobs import cli, faults, launch, machine, rows, run, score
from labkit.jobs.cases import Case, Result
from labkit.jobs.faults import ALL, SlowPython
from labkit.jobs.launch import JobEnded
from labkit.jobs.lines import Line
from labkit.jobs.rows import TABLE, Row
from labkit.jobs.run import _in_background
from labkit.machine.shell import LabError
from labkit.result_file import restored
from labkit.verdicts import FAILED

PROGRAMS = Path(rows.__file__).parent / rows.PROGRAMS


@pytest.mark.parametrize("row", TABLE, ids=[row.name for row in TABLE])
def test_a_row_fits_its_program(row: Row) -> None:
    program = PROGRAMS / row.script
    source = program.read_text()
    for function in (row.function, row.loader):
        assert score.span_of(program, function)
        assert f'knobs.slow["{function}"]()' in source
    assert 2 <= row.ranks <= 4
    assert row.script in row.command
    command = row.command.format(ranks=row.ranks, port=29700, out="/x")
    assert "{" not in command
    assert "/x" in command


def test_programs_know_nothing_of_the_observer() -> None:
    for program in PROGRAMS.rglob("*.py"):
        if program.name != "knobs.py":
            assert str(program.relative_to(PROGRAMS)) in {row.script for row in TABLE}
            names = [node for node in ast.walk(ast.parse(program.read_text())) if isinstance(node, ast.Import)]
            assert not any(
                "rankscope" in alias.name or "labkit" in alias.name for node in names for alias in node.names
            )


def test_faults_fit_their_rows() -> None:
    every = cli.cases_of("all", "all", 1, 10.0)
    assert len(set(every)) == len(every)
    assert [case.fault for case in every if case.row == "deepspeed-builds"] == ["building"]
    assert {case.fault for case in every if case.row == "ddp"} == set(ALL) - {"building"}
    assert cli.cases_of("ray,ddp", "stopped", 2, 5.0) == [
        Case("ddp", "stopped", 2, 5.0),
        Case("ray", "stopped", 2, 5.0),
    ]
    with pytest.raises(LabError, match="no such job: nonsense"):
        cli.cases_of("nonsense", "all", 1, 10.0)


def test_slow_functions_are_slow_by_what_was_ordered(tmp_path: Path) -> None:
    script = f"""
import sys, time, json
sys.path.insert(0, {str(PROGRAMS)!r})
import knobs
from pathlib import Path
out = Path({str(tmp_path)!r})
knobs.begin(out, 0)
for manner in ("busy", "compress", "library", "sleep"):
    (out / "rank0.control").write_text(json.dumps({{"function": "f", "manner": manner, "seconds": 0.05}}))
    knobs.step(1)
    began = time.monotonic()
    knobs.slow["f"]()
    took = time.monotonic() - began
    began = time.monotonic()
    knobs.slow["g"]()
    assert time.monotonic() - began < 0.01
    assert 0.02 < took < 0.5, (manner, took)
    time.sleep(0.05)
(out / "rank0.control").unlink()
knobs.step(2)
assert knobs.slow["f"] is bool
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
    words = [line.split() for line in (tmp_path / "rank0.lines").read_text().splitlines()]
    assert [row[:2] for row in words] == [["0", "1"]] * 4 + [["0", "2"]]
    assert all(len(row) == 7 for row in words)


@pytest.mark.parametrize("manner", ["busy", "compress"])
def test_a_thread_beside_the_steps_is_busy_once_it_is_ordered_to_be(tmp_path: Path, manner: str) -> None:
    script = f"""
import sys, time, json, threading
sys.path.insert(0, {str(PROGRAMS)!r})
import knobs
from pathlib import Path
out = Path({str(tmp_path)!r})
knobs.begin(out, 0)
knobs.step(1)
assert threading.active_count() == 1
(out / "rank0.control").write_text(json.dumps({{"function": "export", "manner": {manner!r}, "seconds": 0.1}}))
time.sleep(0.05)
before = time.process_time() - time.thread_time()
knobs.step(2)
knobs.step(3)
assert threading.active_count() == 2
until = time.monotonic() + 30
while time.process_time() - time.thread_time() - before < 0.05:
    assert time.monotonic() < until
    time.sleep(0.05)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_many_short_sleeps_take_as_long_as_they_are_told_to() -> None:
    script = f"""
import sys, time
sys.path.insert(0, {str(PROGRAMS)!r})
import knobs
slept = []
time.sleep = slept.append
added = knobs.slowness("sleep", 0.00003)
for _ in range(3200):
    added()
assert abs(sum(slept) - 0.096) < 0.002, sum(slept)
assert min(slept) > 0.0015
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_what_is_not_installed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKSCOPE_JOBS", str(tmp_path))
    with pytest.raises(LabError, match="scripts/setup --jobs"), launch.Job(rows.BY_NAME["ddp"], 1):
        pass


class EndedJob(launch.Job):
    """Trains, and is gone when it is to be hurt."""

    def __enter__(self) -> launch.Job:
        return self

    def wait_until_steady(self) -> None:
        pass

    def ended(self) -> bool:
        return True

    def stop(self) -> None:
        pass


def test_a_job_that_ends_at_once_fails_its_cases_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "Job", EndedJob)
    asked = cli.cases_of("ddp,ray", "healthy,stopped", 1, 10.0)
    results = list(run.run_cases(asked, lambda *_: None, keep=False))
    assert [result.case for result in results] == asked
    assert {result.outcome for result in results} == {verdicts.FAILED}


class DriftingJob(launch.Job):
    """Two ranks that train, but not while one is ordered to be slow; each time it is undone their steps take 2 ms longer."""

    step_s = 0.05
    ordered = False

    def __enter__(self) -> launch.Job:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.group = self.folder  # of no processes
        return self

    def wait_until_steady(self) -> None:
        pass

    def ended(self) -> bool:
        return False

    def order(self, rank: int, orders: dict[str, object] | None) -> None:
        if self.ordered and orders is None:
            self.step_s += 0.002
        self.ordered = orders is not None

    def recent(self, seconds: float) -> list[list[Line]]:
        line = Line(0, 1, 0.0, 0.0, self.step_s, 1, 1)
        return [[] if self.ordered else [line], [line, replace(line, seconds=4 * self.step_s), line]]

    def stop(self) -> None:
        pass


def test_a_healthy_step_is_measured_before_a_fault_and_after_it_was_undone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # GIVEN cases of one job, one of them last that is of no measure
    monkeypatch.setattr(machine, "FOLDER", tmp_path / "running")
    monkeypatch.setattr(run, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(run, "Job", DriftingJob)
    for place, name in ((run, "BEFORE_S"), (run, "SIDE_S"), (run, "USED_UP_S"), (faults, "TUNING_S")):
        monkeypatch.setattr(place, name, 0.0)
    asked = cli.cases_of("ddp", "slow-python,slow-loader,stopped", 1, 10.0)
    slow, late, stopped = run.run_cases(asked, lambda *_: None, keep=False)
    # THEN each has a side before and one after, and what is after one is before the next
    assert slow.sides_s == pytest.approx((0.0875, 0.091))
    assert late.sides_s == pytest.approx((0.091, 0.0945))
    assert stopped.healthy_after_s is None
    # AND a fault is dosed by the median
    assert [result.before_s for result in (slow, late, stopped)] == pytest.approx([0.05, 0.052, 0.054])
    # AND what is kept tells both sides
    kept = json.loads((tmp_path / "kept/jobs/ddp-slow-python-1/result.json").read_text())
    assert restored(Result, kept).sides_s == slow.sides_s


def test_the_reaper_ends_with_the_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed, the lab leaves its folder behind; the reaper removes it."""
    folder = tmp_path / "rsjobs"
    folder.mkdir()
    scripts = Path(machine.__file__).parents[2]
    code = f"import os, sys; sys.path.insert(0, {str(scripts)!r}); from labkit.jobs import machine\n"
    code += "with machine.reaper(): os.kill(os.getpid(), 9)"
    monkeypatch.setenv("RANKSCOPE_LAB_DIR", str(tmp_path))
    monkeypatch.setenv("RANKSCOPE_JOBS_PREFIX", "rsjobtest-")
    subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    subprocess.run(
        ["sh", "-c", f"for i in $(seq 100); do [ -e {folder} ] || exit 0; sleep 0.1; done; exit 1"], check=True
    )


def test_the_installer_is_sound_and_setup_offers_it() -> None:
    installer = PROGRAMS.parent / "install.sh"
    setup = PROGRAMS.parents[2] / "setup"
    for script in (installer, setup):
        subprocess.run(["bash", "-n", script], check=True)
    assert "--jobs" in subprocess.run([setup, "--help"], capture_output=True, text=True, check=True).stdout
    for version in ("3.10", "3.12", "3.13"):
        assert f"boxed-{version}" in {row.name for row in TABLE}
        assert version in installer.read_text().partition("others=(")[2].partition(")")[0].split()


FORKED = """
import json, os, sys, time
sys.path.insert(0, sys.argv[1])
import knobs
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
knobs.begin(sys.argv[2], 0)
control = knobs.slow.control
for number, seconds in enumerate((0.001, 0.002)):
    control.write_text(json.dumps({"function": "export", "manner": "busy", "seconds": seconds}))
    os.utime(control, ns=(number + 1, number + 1))
    knobs.step(number)
    time.sleep(0.03)
worker = os.fork()  # as a loader's: it follows the same file, and exports nothing
if worker:
    os._exit(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
os.utime(control, ns=(9, 9))
knobs.slow.look()
os._exit(0)
"""


def ended(source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", source, str(PROGRAMS), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def test_a_forked_rank_exports_as_often_as_it_is_ordered_and_its_workers_do_not(tmp_path: Path) -> None:
    done = ended(FORKED, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


STARTED_ANEW = """
import json, subprocess, sys
sys.path.insert(0, sys.argv[1])
import knobs
if len(sys.argv) == 4:  # as a loader worker by spawn: it knows of its rank nothing but the environment
    knobs.slow["decode"]()
    print(knobs.slow._function)
    sys.exit()
knobs.begin(sys.argv[2], 0)
knobs.slow.control.write_text(json.dumps({"function": "decode", "manner": "sleep", "seconds": 0.001}))
sys.exit(subprocess.run([sys.executable, "-c", open(sys.argv[2] + "/source").read(), *sys.argv[1:3], "worker"]).returncode)
"""


def test_workers_that_are_started_anew_follow_their_rank(tmp_path: Path) -> None:
    (tmp_path / "source").write_text(STARTED_ANEW)
    done = ended(STARTED_ANEW, tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == ("decode\n", "", 0)


USUAL_S, SLOW_S = 0.03, 0.04


def made(steps: int, step_s: float) -> list[list[Line]]:
    return [
        [Line(rank, step, step * step_s, step * step_s, step_s, 40, 7) for step in range(steps)] for rank in range(2)
    ]


def pace(looks: Iterator[list[list[Line]]], monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    job = SimpleNamespace(row=SimpleNamespace(ranks=2, victims=()), recent=lambda _: next(looks))
    return SlowPython(cast(Any, job), random.Random(1), USUAL_S).pace_s()


def test_the_few_quick_steps_after_an_evaluation_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([made(0, USUAL_S), made(5, USUAL_S), made(60, SLOW_S)])
    assert pace(looks, monkeypatch) == pytest.approx(SLOW_S)


def test_batches_that_come_three_at_a_time_are_late_together(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN steps of 90, 3 and 3 ms: 32 on average
    seconds = [3 * USUAL_S if step % 3 == 0 else USUAL_S / 10 for step in range(91)]
    ends = list(itertools.accumulate(seconds))
    steps = [
        [Line(rank, step, ends[step], ends[step], seconds[step], 40, 7) for step in range(91)] for rank in range(2)
    ]
    assert pace(iter([steps]), monkeypatch) == pytest.approx(0.032, abs=0.001)


def test_an_evaluation_in_the_seconds_of_one_step_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated = [[*of_rank, Line(0, 60, 3.0, 3.0, 2.5, 40, 7)] for of_rank in made(5, USUAL_S)]
    looks = iter([evaluated, made(60, SLOW_S)])
    assert pace(looks, monkeypatch) == pytest.approx(SLOW_S)


def test_a_rank_that_makes_no_step_for_long_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    never: list[list[Line]] = made(0, USUAL_S)
    with pytest.raises(JobEnded):
        pace(itertools.repeat(never), monkeypatch)


OBSERVER = """
import sys, time
from pathlib import Path
print("2 ranks found; loading kernel probes", file=sys.stderr, flush=True)
time.sleep(0.4)
Path(sys.argv[1]).touch()
print("observing, 20 s to go", file=sys.stderr, flush=True)
time.sleep(0.2)
print("done" if Path(sys.argv[1]).exists() else "")
"""


def test_the_block_begins_with_the_window_and_gets_the_answer(tmp_path: Path) -> None:
    began = tmp_path / "began"
    with _in_background([sys.executable, "-c", OBSERVER, str(began)]) as answer:
        assert began.exists()
        assert answer == []
    assert answer == ["", "", "done\n"]


def test_an_observer_that_gives_up_before_its_window_is_a_failure_and_holds_nobody_up() -> None:
    since = time.monotonic()
    with _in_background([sys.executable, "-c", "import sys; sys.stderr.write('no kernel\\n'); sys.exit(69)"]) as answer:
        pass
    assert answer[:2] == [FAILED, "exit code 69: no kernel"]
    assert time.monotonic() - since < 10
