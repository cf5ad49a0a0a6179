"""The history of windows: what is kept survives writers that are killed, and `--baseline auto` finds the healthy past."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import stat
import time
from dataclasses import replace
from pathlib import Path

import builders
import pytest
from builders import Job, build, codes, said

from rankscope.diagnose.face.cli.keep_history import remember
from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.face.cli.report import report
from rankscope.diagnose.infer.past.auto_baseline import MOST, choose
from rankscope.diagnose.infer.past.history import History
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.folder import Window, write_window
from rankscope.probes.base.errors import OutputFailed

NOW = 1_760_000_000.0


def small(start: float = NOW, ranks: int = 3, **more: object) -> Window:
    return build(Job(ranks=ranks, steps=23, start=start, **more))[0]  # type: ignore[arg-type]


def healthy_past(history: History, count: int = 7, **more: object) -> None:
    for index in range(count):
        assert remember(history, [small(NOW - 1000 * (count - index), seed=index, **more)]) == ()


def test_what_was_kept_is_read_back_with_its_verdict(tmp_path: Path) -> None:
    history = History(tmp_path / "history")
    window = small()
    entry = history.add(window, diagnose([window]))
    assert history.entries() == (entry,)
    assert (entry.job, entry.host, entry.ranks, entry.steps, entry.status) == ("job-a", "node-0", 3, 23, "healthy")
    assert 0.2 < entry.step_p50 < 0.4
    kept = history.window(entry)
    assert kept is not None and kept.steps.equals(window.steps)


def test_only_root_can_read_it(tmp_path: Path) -> None:
    history = History(tmp_path / "deep" / "history")
    remember(history, [small()])
    assert stat.S_IMODE(history.folder.stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in history.folder.rglob("*") if path.is_file())


def test_entries_are_found_by_job_and_host(tmp_path: Path) -> None:
    history = History(tmp_path)
    remember(history, [small(), small(name="other"), *build(Job(ranks=4, hosts=2, steps=7))])
    assert len(history.entries()) == 4
    assert {entry.job for entry in history.entries("other")} == {"other"}
    assert [entry.ranks for entry in history.entries("job-a", "node-1")] == [2]


def test_windows_of_one_name_are_all_kept(tmp_path: Path) -> None:
    history = History(tmp_path)
    remember(history, [small(), small(), small()])
    assert len({entry.name for entry in history.entries()}) == 3


def test_the_oldest_go_when_there_is_no_room(tmp_path: Path) -> None:
    size = History(tmp_path / "one").add(small(), diagnose([small()])).bytes
    history = History(tmp_path / "history", cap_bytes=int(3.5 * size))
    healthy_past(history)
    entries = history.entries()
    assert [entry.start for entry in entries] == [NOW - 3000, NOW - 2000, NOW - 1000]
    assert len(list((history.folder / "windows").iterdir())) == 3


def test_windows_of_a_clock_that_was_ahead_drive_out_none_of_now(tmp_path: Path) -> None:
    size = History(tmp_path / "one").add(small(), diagnose([small()])).bytes
    history = History(tmp_path / "history", cap_bytes=int(3.5 * size))
    now = time.time()
    for ahead in range(3):
        assert remember(history, [small(now + 86400 + ahead)]) == ()
    for at in range(4):
        assert remember(history, [small(now - 1000 + at)]) == ()
    assert [entry.start for entry in history.entries()] == [now - 999, now - 998, now - 997]


def test_one_window_is_kept_however_little_room_there_is(tmp_path: Path) -> None:
    history = History(tmp_path, cap_bytes=1)
    remember(history, [small(NOW - 50), small(NOW)])
    assert [entry.start for entry in history.entries()] == [NOW]


@pytest.mark.parametrize("damage", ["lost", "empty", "truncated", "foreign", "folder"])
def test_a_damaged_index_is_rebuilt_from_the_windows(tmp_path: Path, damage: str) -> None:
    history = History(tmp_path)
    healthy_past(history, 3)
    index = tmp_path / "index.parquet"
    content = index.read_bytes()
    index.unlink()
    if damage == "folder":
        index.mkdir()
        (index / "x").write_text("x")
    elif damage != "lost":
        index.write_bytes({"empty": b"", "truncated": content[:200], "foreign": b"PAR1" * 9}[damage])
    assert len(history.entries()) == 3
    if damage != "folder":
        remember(history, [small()])
        assert len(history.entries()) == 4


def test_windows_that_vanish_or_rot_are_skipped(tmp_path: Path) -> None:
    history = History(tmp_path)
    healthy_past(history, 3)
    first, second, third = history.entries()
    shutil.rmtree(tmp_path / "windows" / first.name)
    (tmp_path / "windows" / second.name / "steps.parquet").write_bytes(b"rot")
    assert choose(history, [small()], "job-a").names == (third.name,)
    remember(history, [small(NOW - 1)])
    assert first.name not in {entry.name for entry in history.entries()}


def test_a_folder_that_is_none_costs_nothing_but_a_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file")
    assert history.entries() == ()
    with pytest.raises(OutputFailed):
        history.prepare()
    (trouble,) = remember(history, [small()])
    assert "not kept" in trouble and "\n" not in trouble


def _write_for_ever(folder: Path, seed: int) -> None:
    history = History(folder)
    for index in range(10_000):
        remember(history, [small(NOW + 100 * index + seed, ranks=2, seed=seed)])


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    # GIVEN three processes that add windows to one history; they are killed in the middle of it
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_for_ever, args=(tmp_path, seed), daemon=True) for seed in range(3)]
    for writer in writers:
        writer.start()
    until = time.monotonic() + 20
    while time.monotonic() < until and len(History(tmp_path).entries()) < 11:
        time.sleep(0.05)
    for writer in writers:
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()

    # WHEN somebody else comes
    history = History(tmp_path)
    before = history.entries()
    remember(history, [small(NOW - 1)])

    # THEN every window is whole and in the index, and nothing is left behind
    entries = history.entries()
    assert len(before) >= 11 and {entry.name for entry in before} <= {entry.name for entry in entries}
    assert {path.name for path in (tmp_path / "windows").iterdir()} == {entry.name for entry in entries}
    assert all(history.window(entry) is not None for entry in entries)
    assert not list(tmp_path.glob(".partial-*"))


# ---- --baseline auto ---------------------------------------------------------------------------------------------------


def judged(history: History, *windows: Window) -> Verdict:
    return diagnose(windows, history=history)


def slow_everywhere() -> Window:
    return small(extra={rank: [(builders.BUSY, 0.08)] for rank in range(3)})


def test_all_ranks_slower_is_seen_against_the_healthy_past(tmp_path: Path) -> None:
    history = History(tmp_path)
    healthy_past(history)
    verdict = judged(history, slow_everywhere())
    assert [(s.cause, s.function.name if s.function else "") for s in verdict.suspects] == [
        ("slow-everywhere", "augment")
    ]
    assert verdict.baseline is not None and verdict.baseline.source == "history"
    assert len(verdict.baseline.used) == MOST and "node-0" in verdict.baseline.used[0]
    assert '"source": "history"' in to_json(verdict)
    assert "5 earlier windows of this job on node-0" in said(verdict, NoteCode.BASELINE_CHOSEN)
    assert any("baseline" in line for line in report(verdict))


def test_the_newest_healthy_windows_are_taken(tmp_path: Path) -> None:
    history = History(tmp_path)
    healthy_past(history)
    chosen = choose(history, [small()], "job-a")
    assert [window.manifest.start for window in chosen.windows] == [NOW - 1000 * age for age in range(1, MOST + 1)]


@pytest.mark.parametrize(
    "past",
    [
        {"extra": {1: [(builders.BUSY, 0.1)]}},  # judged faulty
        {"name": "other"},
        {"ranks": 4},
        {"ranks_columns": {0: {"role": "actor"}}},
        {"steps": 3},
    ],
)
def test_windows_of_a_fault_or_of_others_are_no_baseline(tmp_path: Path, past: dict[str, object]) -> None:
    history = History(tmp_path)
    remember(history, build(Job(**{"ranks": 3, "steps": 23, "start": NOW - 100, **past})))  # type: ignore[arg-type]
    assert len(history.entries()) == 1
    verdict = judged(history, slow_everywhere())
    assert verdict.baseline is None and verdict.status == "healthy"
    assert NoteCode.BASELINE_NONE in codes(verdict)


def test_windows_of_the_same_time_or_later_are_no_baseline(tmp_path: Path) -> None:
    history = History(tmp_path)
    remember(history, [small(), small(NOW + 5), small(NOW - 5), small(NOW + 500)])
    assert choose(history, [small()], "job-a").windows == ()


def test_an_unnoticed_slow_down_does_not_become_normal(tmp_path: Path) -> None:
    # GIVEN a job that was fast, and then slow everywhere, which nobody noticed
    history = History(tmp_path)
    healthy_past(history)
    for index in range(5):
        window = build(Job(ranks=3, steps=23, start=NOW - 500 + 50 * index, seed=40 + index,
                           extra={rank: [(builders.BUSY, 0.08)] for rank in range(3)}))  # fmt: skip
        remember(history, window)
    # THEN it is still a slow-down
    verdict = judged(history, slow_everywhere())
    assert [suspect.cause for suspect in verdict.suspects] == ["slow-everywhere"]
    assert "5 healthy but slower ones were left out" in said(verdict, NoteCode.BASELINE_CHOSEN)


def test_a_single_rank_is_judged_by_its_own_past(tmp_path: Path) -> None:
    history = History(tmp_path)
    remember(history, [small(NOW - 100, ranks=1)])
    verdict = judged(history, small(ranks=1, extra={0: [(builders.READ, 0.08)]}))
    assert [suspect.cause for suspect in verdict.suspects] == ["slow-read"]


def test_each_host_gets_windows_of_its_own(tmp_path: Path) -> None:
    history = History(tmp_path)
    remember(history, [*build(Job(ranks=4, hosts=2, steps=23, start=NOW - 100))])
    verdict = judged(history, *build(Job(ranks=4, hosts=2, steps=23)))
    assert verdict.baseline is not None and (verdict.baseline.windows, verdict.baseline.ranks) == (2, 4)


def test_a_baseline_with_other_code_is_said(tmp_path: Path) -> None:
    history = History(tmp_path)
    remember(history, [small(NOW - 100)])
    window = small()
    rows = [
        row | {"file": "/new/train.py", "stack": -1, "name": f"new_{row['name']}"}
        for row in window.patterns.to_pylist()
    ]
    verdict = judged(history, builders.columns(window, "patterns", rows))
    assert NoteCode.CODE_CHANGED in codes(verdict)


def test_the_command_line_finds_its_baseline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "history"
    healthy_past(History(store), 2)
    write_window(slow_everywhere(), tmp_path / "now")
    assert run(["diagnose", str(tmp_path / "now")]) == 0
    assert run(["diagnose", str(tmp_path / "now"), "--baseline", "auto", "--history", str(store)]) == 1
    assert "workload/slow-everywhere" in capsys.readouterr().out
    # AND windows that were recorded elsewhere are not added to this host's history
    assert len(History(store).entries()) == 2


def test_without_a_history_the_verdict_stands_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_window(small(), tmp_path / "now")
    assert run(["diagnose", str(tmp_path / "now"), "--baseline", "auto", "--history", str(tmp_path / "none")]) == 0
    assert "no baseline" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


def test_auto_and_a_folder_make_no_sense_together(tmp_path: Path) -> None:
    assert run(["diagnose", str(tmp_path), "--baseline", "auto", "--baseline", str(tmp_path)]) == 64


def owned(uid: int) -> dict[str, object]:
    return {"ranks_columns": {rank: {"owner": uid} for rank in range(3)}}


def test_what_another_user_ran_under_the_jobs_name_is_not_its_past(tmp_path: Path) -> None:
    """Or anybody could say what is normal: run something slow under the name of a job, and have its next run called healthy."""
    history = History(tmp_path)
    healthy_past(history, 3, **owned(1666))
    window = small(**owned(1000))
    assert choose(history, [window], "job-a").windows == ()
    healthy_past(history, 3, **owned(1000))
    chosen = choose(history, [window], "job-a")
    assert {each["owner"] for one in chosen.windows for each in one.ranks.to_pylist()} == {1000}
    assert len(chosen.windows) == 3


@pytest.mark.parametrize(("past", "now"), [(-1, 1000), (1666, -1)])
def test_windows_of_nobody_are_no_users_past_and_nobody_has_a_users(tmp_path: Path, past: int, now: int) -> None:
    history = History(tmp_path)
    healthy_past(history, 3, **owned(past))
    assert choose(history, [small(**owned(now))], "job-a").windows == ()


def test_the_windows_of_one_user_drive_out_no_past_of_another(tmp_path: Path) -> None:
    size = History(tmp_path / "one").add(small(**owned(1000)), diagnose([small(**owned(1000))])).bytes
    history = History(tmp_path / "history", cap_bytes=int(8.5 * size))
    healthy_past(history, 3, **owned(1000))
    # WHEN somebody else's jobs are looked at again and again, under many names
    for at in range(20):
        assert remember(history, [small(NOW + at, name=f"job-{at}", **owned(1666))]) == ()
    # THEN the first one's windows are there, and the newest of the other's
    entries = history.entries()
    assert [entry.owner for entry in entries] == [1000] * 3 + [1666] * 5
    assert entries[-1].job == "job-19"


def test_a_rank_that_another_user_claims_on_another_host_is_left_out() -> None:
    ours = build(Job(ranks=4, steps=23, start=NOW, ranks_columns={rank: {"owner": 1000} for rank in range(4)}))
    theirs = build(Job(ranks=1, steps=23, start=NOW, ranks_columns={0: {"owner": 1666}}))[0]
    theirs = replace(theirs, manifest=replace(theirs.manifest, host="elsewhere"))
    verdict = diagnose([theirs, *ours])
    assert verdict.ranks == (0, 1, 2, 3)
    assert "elsewhere" not in verdict.hosts
    assert NoteCode.OTHER_USERS in codes(verdict)
