"""`rankscope top`: what is shown of windows and of the service's ring, on terminals of any size; nothing of a name steers a terminal."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import Job, build
from hostile import hostile

from rankscope.diagnose import budgets
from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.face.cli.start import end_when_asked
from rankscope.diagnose.face.top import draw, from_watch
from rankscope.diagnose.face.top.from_windows import LOOKS, Scene
from rankscope.diagnose.face.top.host import counters_now
from rankscope.diagnose.face.top.snapshot import OTHERS, PARTS, CounterNow, JobNow, RankNow, Snapshot, SuspectNow
from rankscope.observer import recorder
from rankscope.observer.watch.blackbox import BlackBox, latest_lines
from rankscope.observer.window.rows import CounterRow
from rankscope.probes.base.errors import NoRanks

NOW = 1_760_000_000.0


def seen(job: Job) -> Snapshot:
    (window,) = build(job)
    return Scene("windows of 5 s").take(window)


def ring(**more: Any) -> list[dict[str, Any]]:
    """Three lines of the service about a job of two ranks, rank 1 of which waits least."""
    ranks = [
        {"rank": 0, "pid": 10, "silent_s": 0.1, "steps_s": [0.2, 0.21], "waited": 0.6},
        {"rank": 1, "pid": 11, "silent_s": 0.1, "steps_s": [0.2, 0.21], "waited": 0.1},
    ]
    about = {"job": "torch-a:29500", "title": "train.py", "usual_s": 0.15, "named": "", "troubles": []}
    return [{"time": NOW - 10 + 5 * each, **about, "ranks": ranks, **more} for each in range(3)]


def test_lines_of_a_clock_that_was_ahead_are_not_shown_as_those_of_now() -> None:
    ahead = [{**line, "time": line["time"] + 3600, "title": "ahead"} for line in ring()]
    (job,) = from_watch.snapshot_of([*ring(), *ahead], (), "host", NOW).jobs
    assert job.title == "train.py"
    assert from_watch.snapshot_of(ahead, (), "host", NOW).jobs == ()


# ---- from windows --------------------------------------------------------------------------------------------------------


def test_a_slow_rank_is_marked_with_what_it_works_on_and_waits_least() -> None:
    (job,) = seen(builders.slow_python(3, 0.08)).jobs
    accused = [rank for rank in job.ranks if rank.accused]
    assert [rank.number for rank in accused] == [3] and "augment" in accused[0].most
    assert job.status == "fault" and job.suspects[0].words.startswith("Rank 3 on node-0: augment (train.py:56)")
    assert min(job.ranks, key=lambda rank: rank.parts[OTHERS]).number == 3
    assert all(sum(rank.parts) == pytest.approx(1, abs=0.05) for rank in job.ranks)
    assert len(job.steps_s) > 5 and job.ranks[0].step_s == pytest.approx(job.steps_s[-1], rel=0.2)


def test_a_job_of_whose_window_nothing_can_be_made_is_shown_beside_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "CELLS_MOST", 10_000)
    scene = Scene("windows of 5 s")
    scene.take(build(Job())[0])
    window = build(Job(name="claim"))[0]
    rows = window.ranks.to_pylist()
    more = [{**rows[0], "rank": number, "pid": number} for number in range(8, 400)]
    snapshot = scene.take(builders.columns(window, "ranks", [*rows, *more]))
    honest, claim = snapshot.jobs
    assert (honest.status, claim.status) == ("healthy", "unknown")
    assert "400 ranks are claimed" in claim.remark
    assert "claim: no ranks  UNKNOWN" in [line.text for line in draw.lines(snapshot, 80, 40)]


def test_a_suspect_forms_over_looks_and_stays_for_a_while_after_it_was_seen_last() -> None:
    scene = Scene("")
    (slow,), (well,) = build(builders.slow_python(3, 0.08)), build(Job())
    told = [scene.take(window).jobs[0].suspects for window in (well, slow, slow, well)]
    assert [len(suspects) for suspects in told] == [0, 1, 1, 1]
    assert [(one.seen, one.looks, one.now) for suspects in told[1:] for one in suspects] == [
        (1, 2, True), (2, 3, True), (2, 4, False),
    ]  # fmt: skip
    for _ in range(LOOKS):
        last = scene.take(well)
    assert last.jobs[0].suspects == ()


def test_a_job_that_has_gone_is_not_shown_any_more() -> None:
    scene = Scene("")
    (one,), (other,) = build(Job(name="one")), build(Job(name="other"))
    scene.take(one)
    assert len(scene.take(other).jobs) == 2
    (late,) = build(Job(name="other", start=NOW + 500))
    assert [job.title for job in scene.take(late).jobs] == [scene.latest["other"][1].title]
    assert list(scene.courses) == ["other"]


def test_a_window_without_a_step_says_so_and_shows_where_the_time_goes_all_the_same() -> None:
    snapshot = seen(builders.stopped(5))
    (job,) = snapshot.jobs
    assert job.status == "hang" and any(rank.state for rank in job.ranks)
    assert all(len(line.text) <= 60 for line in draw.lines(snapshot, 60, 40))


# ---- from the service ----------------------------------------------------------------------------------------------------


def test_the_ring_of_the_service_tells_steps_waiting_and_who_is_named() -> None:
    named = "FAULT python/slow-function augment (job.py:82) on rank 1: 0.058 s/step lost"
    snapshot = from_watch.snapshot_of(ring(named=named, troubles=["slower"]), (), "node-3", NOW)
    (job,) = snapshot.jobs
    assert (job.title, job.usual_s, job.status) == ("train.py", 0.15, "fault")
    assert job.steps_s == (0.2, 0.21) * 3 and [one.words for one in job.suspects] == [named]
    assert [rank.parts[OTHERS] for rank in job.ranks] == [0.6, 0.1]
    assert [rank.state for rank in job.ranks] == ["", ""]


def test_a_rank_that_is_silent_for_longer_than_the_service_bears_is_said_to_be() -> None:
    ranks = [{"rank": 0, "silent_s": 9.0, "steps_s": []}, {"rank": 1, "silent_s": 9.0, "steps_s": [], "stopped": True}]
    (job,) = from_watch.snapshot_of(ring(ranks=ranks), (), "node-3", NOW).jobs
    assert [rank.state for rank in job.ranks] == ["silent for 9.0 s", "stopped"]
    (patient,) = from_watch.snapshot_of(ring(ranks=ranks, usual_s=4.0), (), "node-3", NOW).jobs
    assert patient.ranks[0].state == "", "its steps last 4 s"


@pytest.mark.parametrize("line", [
    {"time": NOW}, {"time": NOW, "job": 5, "ranks": []}, {"time": NOW, "job": "a", "ranks": "no"},
    {"time": NOW, "job": "a", "ranks": [5, {"rank": "x"}, {"rank": 1, "steps_s": ["a", float("nan")], "waited": "b"}]},
])  # fmt: skip
def test_lines_that_are_not_the_services_do_no_harm(line: dict[str, Any]) -> None:
    snapshot = from_watch.snapshot_of([line], (), "node-3", NOW)
    assert [rank.number for job in snapshot.jobs for rank in job.ranks] in ([], [1])
    draw.lines(snapshot, 80, 24)


def test_a_job_of_which_nothing_was_written_for_a_while_is_gone() -> None:
    assert from_watch.snapshot_of(ring(), (), "node-3", NOW + 20).jobs == ()


def test_the_latest_lines_are_the_end_of_the_ring_without_what_is_cut_off(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    box = BlackBox(tmp_path / "box")
    for number in range(3):
        box.append({"time": NOW + 200 * number, "job": str(number)}, NOW + 200 * number)
    newest = max((tmp_path / "box/ring").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    with newest.open("a") as file:
        file.write('{"time": 5, "job"')
    assert [line["job"] for line in latest_lines(box.folder)] == ["1", "2"]
    assert latest_lines(tmp_path / "nothing") == []


# ---- lines ---------------------------------------------------------------------------------------------------------------


def many(count: int) -> Snapshot:
    ranks = tuple(
        RankNow(each, step_s=0.262, parts=(0.1 + 0.4 * (each == 70), 0.05, 0.05, 0.0, 0.8 - 0.4 * (each == 70)),
                most="12 % compute_the_whole_attention_matrix_at_once", place="modelling_of_something_long.py:1044",
                accused=each == 70)
        for each in range(count)
    )  # fmt: skip
    suspect = SuspectNow(
        "rank 70 on node-3: python/slow-function augment (job.py:82) costs 0.1 s of each 0.3 s step", 3, 4
    )
    job = JobNow("pretraining-of-a-very-large-model", ranks, (0.1, 0.2, 0.3) * 40, 0.158, "fault", (suspect,))
    return Snapshot(NOW, "node-3", "windows of 5 s, observed here", (job,), (CounterNow("CPU", "93 %"),))


@pytest.mark.parametrize("width", [10, 40, 57, 80, 120, 200, 500])
@pytest.mark.parametrize("height", [10, 24, 60])
def test_everything_fits_the_terminal_and_the_accused_are_shown(width: int, height: int) -> None:
    told = draw.lines(many(96), width, height)
    assert max(len(line.text) for line in told) <= min(max(width, 40), 200)
    if height >= 24:
        assert len(told) <= height
    rows = [line for line in told if line.text.lstrip().startswith("70 ")]
    assert len(rows) == 1 and rows[0].tone == "bad" and rows[0].text.endswith("◄")
    assert any("more, which wait longer" in line.text for line in told)


def test_a_bar_has_a_character_for_each_share_and_fills_its_room() -> None:
    snapshot = Snapshot(NOW, "h", "s", (JobNow("j", (RankNow(0, step_s=0.2, parts=(0.5, 0.0, 0.25, 0.0, 0.25)),)),))
    (row,) = [line.text for line in draw.lines(snapshot, 120, 24) if line.text.startswith("    0 ")]
    bar = row[6:].split("  ")[0]
    assert set(bar) <= set("█▒· ") and bar.count("█") == pytest.approx(2 * bar.count("▒"), abs=2)
    assert "0.100 s" in row and "0.050 s" in row, "what it works and waits, in seconds of a step"


def test_a_sparkline_begins_at_nothing_so_that_twice_as_high_is_twice_as_long() -> None:
    assert draw.sparkline([1, 1, 2], 10, draw.Glyphs()) == "▅▅█"
    assert draw.sparkline([], 10, draw.Glyphs()) == "" and draw.sparkline([0.0], 10, draw.Glyphs()) == ""
    assert len(draw.sparkline(range(1, 100), 10, draw.Glyphs())) == 10


def test_a_terminal_that_knows_no_other_characters_gets_ascii() -> None:
    told = "\n".join(line.text for line in draw.lines(many(96), 80, 24, draw.ASCII))
    told.encode("ascii")
    assert all(f"{sign} {part}" in " ".join(told.split()) for sign, part in zip(draw.ASCII.parts, PARTS, strict=True))


def test_nothing_of_a_hostile_name_reaches_the_terminal_as_it_is() -> None:
    (window,) = hostile(Job())
    snapshot = Scene("").take(window)
    for text in (*(line.text for line in draw.lines(snapshot, 200, 60)), *draw.plain(snapshot)):
        assert text.isprintable(), repr(text)


def test_where_there_is_no_terminal_each_update_is_a_few_lines() -> None:
    told = draw.plain(many(8))
    assert len(told) == 3 and "8 ranks, step 0.2" in told[0] and told[1].endswith("[3 of the last 4 looks]")
    assert draw.plain(Snapshot(NOW, "h", "s"))[0].endswith("no training process here")


# ---- the host ------------------------------------------------------------------------------------------------------------


def test_the_host_says_how_busy_it_is_and_what_a_well_host_has_none_of() -> None:
    rows = [
        CounterRow("host", name="cpu.busy_s", value=9.0, limit=10.0), CounterRow("host", name="cpu.steal_s", value=0.01),
        CounterRow("host", name="psi.memory.some_s", value=1.0), CounterRow("host", name="memory.oom_kills", value=2),
        CounterRow("cgroup", "/a", rank=0, name="cpu.throttled_s", value=1.5),
        CounterRow("cgroup", "/a", rank=1, name="cpu.throttled_s", value=1.5),
        CounterRow("gpu", "gpu2", name="gpu.xid.79", value=1),
    ]  # fmt: skip
    told = [(one.name, one.amount, one.sick) for one in counters_now(rows, 5.0)]
    assert told == [
        ("CPU", "90 %", False), ("memory pressure", "20 %", False), ("killed for want of memory", "2", True),
        ("held back by a CPU quota", "1.5 s", True), ("gpu2 Xid", "79", True),
    ]  # fmt: skip
    assert counters_now([], 5.0) == ()


def test_an_update_is_json_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    from rankscope.diagnose.face.cli.service.top import _print_json

    _print_json(Snapshot(NOW, "h\x1b[2J", "s", (JobNow("j", (RankNow(0, step_s=float("nan")),)),)))
    said = json.loads(capsys.readouterr().out)
    assert said["jobs"][0]["ranks"][0]["step_s"] is None and "\x1b" not in said["host"]


# ---- the command ---------------------------------------------------------------------------------------------------------


def test_without_root_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert run(["top", "--updates", "1"]) == 77
    assert "needs root" in capsys.readouterr().err


def test_who_wants_a_number_of_updates_is_told_where_there_is_no_rank(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def nobody(*_: object) -> None:
        raise NoRanks("no training process found on this host")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(recorder, "follow", nobody)
    assert run(["top", "--updates", "1", "--state", str(tmp_path / "none")]) == NoRanks.exit_code
    assert "no training process found" in capsys.readouterr().err


def test_an_update_is_a_moment_however_many_jobs_are_on_the_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    windows = [build(replace(Job(), name=name))[0] for name in ("one", "two")]
    looks: list[int] = []

    def follow(_: object, most_s: float, take: Callable[[Sequence[object]], None], say: object) -> None:
        for number in range(5):
            looks.append(number)
            take(windows)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(recorder, "follow", follow)
    assert run(["top", "--updates", "2", "--json", "--state", str(tmp_path / "none")]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert looks == [0, 1]
    assert [len(one["jobs"]) for one in told] == [2, 2]


def test_the_probes_are_loaded_anew_when_their_time_is_over_and_sigterm_ends_it_well(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[int] = []
    (window,) = build(builders.slow_python(3, 0.08))

    def follow(_: object, most_s: float, take: Callable[[Sequence[object]], None], say: object) -> None:
        begun.append(int(most_s))
        take([window])
        if len(begun) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(recorder, "follow", follow)
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    end_when_asked()
    try:
        assert run(["top", "--state", str(tmp_path / "none")]) == 0
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert begun == [600, 600]
    assert capsys.readouterr().out.count("waits least") == 2
