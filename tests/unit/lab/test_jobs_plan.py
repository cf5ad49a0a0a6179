"""Every row of the table of jobs can be started, and its programs have the functions that are to be slow."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from labkit import verdicts
from labkit.jobs import cli, faults, launch, machine, rows, run, score
from labkit.jobs.cases import Case, from_json
from labkit.jobs.faults import ALL
from labkit.jobs.lines import Line
from labkit.jobs.rows import TABLE, Row
from labkit.machine.shell import LabError

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
    assert from_json(kept).sides_s == slow.sides_s


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
