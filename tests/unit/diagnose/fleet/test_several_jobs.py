"""Several jobs on a host: each gets its verdict, the worst comes first, and none hides behind another."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import builders
import pytest
from builders import Job, build

from rankscope.diagnose import budgets
from rankscope.diagnose.face.cli import diagnose as command
from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.face.documents import verdicts
from rankscope.diagnose.infer.fleet import roll_call
from rankscope.diagnose.infer.fleet.sources import Loaded
from rankscope.diagnose.infer.past.history import History
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.observer.window.folder import Window, write_window


def titled(window: Window, title: str) -> Window:
    rows = [row | {"title": title} for row in window.ranks.to_pylist()]
    changed = builders.columns(window, "ranks", rows)
    return replace(changed, manifest=replace(changed.manifest, jobs=(rows[0]["job"],)))


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """A healthy job of 8 ranks, and one of 4 with a slow function."""
    folder = tmp_path / "both"
    for job, title in (
        (Job(name="job-a"), "pretrain.py"),
        (builders.slow_python(3, 0.08, ranks=4, name="job-b"), "tune.py"),
    ):
        for window in build(job):
            write_window(titled(window, title), folder)
    return folder


def test_each_job_gets_its_report_and_the_first_line_says_how_each_is(
    both: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["diagnose", str(both)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 JOBS  FAULT tune.py; HEALTHY pretrain.py"
    heads = [line for line in lines if line.startswith(("FAULT  ", "HEALTHY  "))]
    assert [head.split()[0] for head in heads] == ["FAULT", "HEALTHY"]
    assert [line.split()[1] for line in lines if line.startswith("  job ")] == ["tune.py,", "pretrain.py,"]
    assert all(len(line) <= 80 for line in lines)


def test_the_json_is_the_worst_verdict_with_the_others_in_it(both: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", str(both), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["job"]) == ("fault", "job-b")
    assert [(other["status"], other["job"]) for other in found["other_jobs"]] == [("healthy", "job-a")]


@pytest.fixture
def absurd(monkeypatch: pytest.MonkeyPatch) -> list[Window]:
    """A job of which a host claims far more ranks than there are steps, and little room."""
    monkeypatch.setattr(budgets, "CELLS_MOST", 10_000)
    window = titled(build(Job(name="job-c"))[0], "claim.py")
    return [window, builders.claimed(window, 400)]


def test_a_job_that_cannot_be_judged_is_told_so_and_keeps_no_verdict_of_another_back(
    both: Path, absurd: list[Window], capsys: pytest.CaptureFixture[str]
) -> None:
    for window in absurd:
        write_window(window, both)
    assert run(["diagnose", str(both), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    each = {one["job"]: one for one in (found, *found["other_jobs"])}
    assert {job: one["status"] for job, one in each.items()} == {
        "job-a": "healthy",
        "job-b": "fault",
        "job-c": "unknown",
    }
    refused = each["job-c"]
    assert "400 ranks are claimed" in refused["notes"][0] and "a shorter window" in refused["notes"][0]
    assert (refused["ranks"], refused["hosts"]) == (list(range(400)), ["liar", "node-0"])


def test_a_page_is_on_a_job_that_could_be_judged(
    absurd: list[Window], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for window in [*absurd, titled(build(Job(name="job-a"))[0], "pretrain.py")]:
        write_window(window, tmp_path / "two")
    assert run(["report", str(tmp_path / "two"), "--html", str(tmp_path / "page.html")]) == 3
    assert capsys.readouterr().out.startswith("UNKNOWN  This cannot be judged: 400 ranks are claimed")
    page = (tmp_path / "page.html").read_text()
    assert "pretrain.py" in page and "400 ranks are claimed" in page


def test_what_was_observed_of_a_job_that_cannot_be_judged_is_kept(
    absurd: list[Window], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "observe_until_told", lambda *given: (absurd, given[-1](absurd)))
    assert run(["diagnose", "--out", str(tmp_path / "out"), "--history", str(tmp_path / "history")]) == 3
    assert capsys.readouterr().out.startswith("UNKNOWN  This cannot be judged: 400 ranks are claimed")
    assert len(list((tmp_path / "out").iterdir())) == 2
    kept = [json.loads(path.read_text()) for path in (tmp_path / "history" / "windows").glob("*/verdict.json")]
    assert kept and {(one["job"], one["status"]) for one in kept} == {("job-c", "unknown")}


def test_a_baseline_of_none_of_the_jobs_is_refused_as_ever(
    both: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for window in build(Job(name="other", start=1_750_000_000.0)):
        write_window(window, tmp_path / "earlier")
    assert run(["diagnose", str(both), "--baseline", str(tmp_path / "earlier")]) == 65
    assert "another job" in capsys.readouterr().err


def test_of_too_many_jobs_the_largest_are_judged_and_the_others_told(
    both: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(roll_call, "JOBS_MOST", 1)
    assert run(["diagnose", str(both), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["job"] == "job-a" and not found.get("other_jobs")
    assert "2 jobs were seen; the 1 with most ranks are judged, name another with --job: tune.py" in found["notes"]
    # One that is named is judged, however small it is.
    assert run(["diagnose", str(both), "--job", "tune.py"]) == 1
    assert "--job" not in capsys.readouterr().out


def test_a_window_full_of_jobs_is_put_together_for_few_of_them(
    both: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = build(Job(name="job-a"))[0]
    rows = window.ranks.to_pylist()
    many = [row | {"job": f"{row['job']}-{number}"} for number in range(300) for row in rows]
    crowded = builders.columns(window, "ranks", many)
    asked: list[str | None] = []
    verdict = diagnose([window])

    def judged(_: object, __: object, job: str | None, *___: object) -> Verdict:
        asked.append(job)
        return replace(verdict, job=job or "")

    monkeypatch.setattr(verdicts.judge, "diagnose", judged)
    assert len(verdicts.judge_all(Loaded((crowded,), ()), (), None, None, ())) == budgets.JOBS_MOST == len(asked)


@pytest.mark.parametrize("wanted, code", [("pretrain.py", 0), ("tune", 1), ("job-a", 0), ("job-", 1)])
def test_a_job_is_meant_by_its_title_or_its_name(both: Path, wanted: str, code: int) -> None:
    assert run(["diagnose", str(both), "--job", wanted]) == code


def test_a_job_that_is_not_there_is_answered_with_the_names_that_are(
    both: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["diagnose", str(both), "--job", "nobody"]) == 65
    assert "jobs seen: pretrain.py, tune.py" in capsys.readouterr().err


def test_two_runs_of_one_script_are_told_apart_by_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("job-a", "job-b"):
        for window in build(Job(name=name, ranks=4)):
            write_window(titled(window, "train.py"), tmp_path)
    assert run(["diagnose", str(tmp_path), "--job", "train.py"]) == 0
    assert capsys.readouterr().out.startswith("2 JOBS  HEALTHY train.py [job-a]; HEALTHY train.py [job-b]")


def test_a_baseline_of_one_job_serves_that_one(both: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for window in build(Job(name="job-a", seed=3, start=1_750_000_000.0)):
        write_window(window, tmp_path / "earlier")
    assert run(["diagnose", str(both), "--baseline", str(tmp_path / "earlier"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["baseline"] is None and any("without it" in note for note in found["notes"])
    assert found["other_jobs"][0]["baseline"]["windows"] == 1


def test_the_history_keeps_the_verdict_of_each_job(both: Path, tmp_path: Path) -> None:
    from rankscope.diagnose.face.cli.keep_history import remember
    from rankscope.diagnose.infer.fleet.sources import load

    windows = load((both,)).windows
    store = History(tmp_path / "history")
    assert remember(store, windows, [diagnose(windows, job=job) for job in ("job-a", "job-b")]) == ()
    kept = sorted((tmp_path / "history" / "windows").glob("*/verdict.json"))
    said = {(one["job"], one["status"]) for one in (json.loads(path.read_text()) for path in kept)}
    assert said == {("job-a", "healthy"), ("job-b", "fault")}
