"""A launcher gives each run another name: its past is found by what it runs, and never another user's or another program's."""

from __future__ import annotations

from pathlib import Path

import builders
import pyarrow as pa
import pytest
from builders import Job, build, said

from rankscope.diagnose.infer.past.auto_baseline import choose
from rankscope.diagnose.infer.past.history import History
from rankscope.diagnose.infer.past.runs import as_same_run, combined
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.observer.window.folder import Window
from rankscope.probes.base.errors import BadData

NOW = 1_760_000_000.0


def run_named(name: str, start: float, runs: str = "a1", job: Job | None = None, **more: object) -> Window:
    """A window of a job of this name, whose ranks run what `runs` stands for."""
    job = job or Job(ranks=3, steps=40, name=name, start=start, **more)  # type: ignore[arg-type]
    job.ranks_columns = {rank: {"run": runs} for rank in range(3)}
    return build(job)[0]


def slow(name: str, start: float, runs: str = "a1") -> Window:
    """All ranks take 0.2 s longer than their past."""
    more = {rank: [(builders.BUSY, 0.2)] for rank in range(3)}
    return run_named(name, start, runs, Job(ranks=3, steps=40, name=name, start=start, extra=more))


def past(history: History, *windows: Window) -> None:
    for window in windows:
        history.add(window, diagnose([window]))


def judged(history: History, window: Window) -> Verdict:
    return diagnose([window], history=history)


def test_the_healthy_windows_of_the_newest_earlier_run_are_its_past(tmp_path: Path) -> None:
    history = History(tmp_path)
    past(history, *(run_named(f"run-{number}", NOW - 100 * number) for number in (3, 2, 1)))
    verdict = judged(history, slow("run-0", NOW))
    assert verdict.status == "fault" and verdict.suspects[0].scope == "all", said(verdict)
    assert any("1 earlier windows of earlier runs of this job" in note.text for note in verdict.notes)
    assert choose(history, [slow("run-0", NOW)], "run-0").names == (history.entries("run-1")[0].name,)


@pytest.mark.parametrize("runs", ["b2", ""])
def test_what_runs_another_program_or_an_unknown_one_has_no_past_here(tmp_path: Path, runs: str) -> None:
    history = History(tmp_path)
    past(history, run_named("run-1", NOW - 100))
    assert judged(history, slow("run-0", NOW, runs)).status == "healthy"


def test_its_own_past_comes_before_that_of_earlier_runs(tmp_path: Path) -> None:
    history = History(tmp_path)
    past(history, run_named("run-1", NOW - 200), slow("run-0", NOW - 100))
    assert judged(history, slow("run-0", NOW)).status == "healthy"


def test_a_given_baseline_of_an_earlier_run_is_taken(tmp_path: Path) -> None:
    now = slow("run-0", NOW)
    assert diagnose([now], [run_named("run-1", NOW - 100)]).status == "fault"
    two = [run_named("run-1", NOW - 100), run_named("other", NOW - 100, "b2")]
    assert diagnose([now], two).status == "fault"
    unknown = [run_named("run-1", NOW - 100, "")]  # as in bundles
    for refused in (unknown, [run_named("other", NOW - 100, "b2")], [*two[:1], run_named("run-2", NOW - 100)]):
        with pytest.raises(BadData, match="another job"):
            diagnose([now], refused)
    assert as_same_run(two, [now], "other") == two


def test_what_is_not_known_of_all_ranks_is_not_known() -> None:
    assert combined(["a", "a", "b"]) == combined(["b", "a"]) != combined(["a"])
    assert combined([]) == combined(["a", ""]) == ""


def test_windows_without_the_column_have_no_run() -> None:
    window = build(Job(ranks=2, steps=9))[0]
    assert isinstance(window.ranks, pa.Table) and set(window.ranks["run"].to_pylist()) == {""}
