"""Tier 0 without a kernel: which function marks a job's steps, steps out of its calls, the black box."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from rankscope.observer.watch import blackbox
from rankscope.observer.watch.blackbox import BlackBox, frozen_in, lines_of
from rankscope.observer.watch.marker import MARKERS, Calls, StepMarker, choose
from rankscope.observer.watch.ranks import RankPulse
from rankscope.probes.base.arrays import Floats
from rankscope.probes.calls.row import BACKWARD, COLLECTIVE
from rankscope.probes.calls.table import UPDATE

ROW = {row.name + row.family: place for place, row in enumerate(MARKERS)}
UPDATES, PASSES = ROW[f"{UPDATE}gloo"], next(place for place, row in enumerate(MARKERS) if row.role == BACKWARD)
ALLREDUCE, BROADCAST = ROW["allreducempi"], ROW["broadcastmpi"]


def calls(*of_rows: tuple[int, Floats, float]) -> Calls:
    """Row, ends, stay."""
    row = np.concatenate([np.full(len(end_s), number) for number, end_s, _ in of_rows]).astype(np.int64)
    end_s = np.concatenate([end_s for _, end_s, _ in of_rows])
    stay_s = np.concatenate([np.full(len(end_s), stay) for _, end_s, stay in of_rows])
    order = np.argsort(end_s)
    return Calls(row[order], (end_s - stay_s)[order], end_s[order])


def every(period_s: float, count: int, first_s: float = 0.0, noise: float = 0.0) -> Floats:
    uneven = np.random.default_rng(1).normal(0, noise * period_s, count) if noise else np.zeros(count)
    return np.asarray(first_s + period_s * np.arange(count) + uneven, dtype=np.float64)


def test_an_update_marks_the_steps_before_all_else() -> None:
    found = choose(
        calls((UPDATES, every(0.1, 30), 0.01), (PASSES, every(0.1, 30, 0.001), 0.05), (ALLREDUCE, every(0.3, 10), 0.01))
    )
    assert found is not None
    assert (found.row, found.per_step, found.waits) == (UPDATES, 1, True)
    assert found.hz == pytest.approx(10.0)


def test_without_updates_the_backward_pass_does_and_is_no_waiting() -> None:
    found = choose(calls((PASSES, every(0.1, 30), 0.05)))
    assert found is not None
    assert (found.row, found.waits) == (PASSES, False)


def test_passes_of_one_optimiser_step_count_together() -> None:
    """Three passes close together, then the optimiser."""
    ends = np.concatenate([every(0.05, 3, first) for first in every(0.3, 20)])
    found = choose(calls((PASSES, ends, 0.04)))
    assert found is not None
    assert found.per_step == 3


def test_where_only_collectives_tell_the_rarest_of_every_step_is_kept() -> None:
    many = np.concatenate([every(0.01, 4, first) for first in every(0.2, 30)])
    found = choose(calls((ALLREDUCE, many, 0.002), (BROADCAST, every(0.2, 30, 0.06), 0.002)))
    assert found is not None
    assert (found.row, found.per_step) == (BROADCAST, 1)
    assert MARKERS[found.row].role == COLLECTIVE


def test_too_few_calls_mark_nothing() -> None:
    assert choose(calls((UPDATES, every(0.1, 5), 0.01))) is None


def pulse(per_step: int) -> RankPulse:
    rank = RankPulse(cast(Any, SimpleNamespace(pid=1)), 0.0, 0.0)
    rank.begin(StepMarker(UPDATES, per_step, 10.0, waits=True))
    return rank


def test_steps_end_with_calls_in_whatever_portions_they_come() -> None:
    whole = calls((UPDATES, every(0.1, 31), 0.02))
    rank = pulse(3)
    seconds = []
    for at in range(0, 31, 4):
        part = Calls(whole.row[at : at + 4], whole.start_s[at : at + 4], whole.end_s[at : at + 4])
        seconds += rank.take(part).seconds.tolist()
    assert seconds == pytest.approx([0.3] * 10)
    assert rank.usual_s == pytest.approx(0.3)
    assert rank.recent[-1][2] == pytest.approx(0.06)
    assert rank.last_s == pytest.approx(3.0)


def test_the_black_box_keeps_the_last_minutes_and_no_more(tmp_path: Path) -> None:
    box = BlackBox(tmp_path)
    for at in range(0, 3600, 5):
        box.append({"time": at, "job": "job"}, float(at))
    kept = [line["time"] for line in lines_of(tmp_path / "ring")]
    assert kept == list(range(3600 - 720, 3600, 5))
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / "ring").iterdir())


def test_a_service_that_comes_back_goes_on_with_the_ring(tmp_path: Path) -> None:
    import time

    now = time.time()
    BlackBox(tmp_path).append({"time": now}, now)
    BlackBox(tmp_path).append({"time": now + 0.001}, now)
    assert len(list(lines_of(tmp_path / "ring"))) == 2


def test_what_is_frozen_stays_as_it_was_and_cut_lines_are_left_out(tmp_path: Path) -> None:
    box = BlackBox(tmp_path)
    box.append({"time": 1.0, "job": "job"}, 1.0)
    with (tmp_path / "ring" / "0.jsonl").open("ab") as file:
        file.write(b'{"time": 2.0, "jo')
    frozen = box.freeze("torch-host:29500", {"words": "rank 1 killed"}, 100.0)
    box.append({"time": 3.0}, 3.0)
    box.add(frozen, "verdict.json", b"{}")
    assert [line["time"] for line in lines_of(frozen)] == [1.0]
    assert frozen_in(tmp_path) == [frozen]
    assert sorted(path.name for path in frozen.iterdir()) == ["0.jsonl", "verdict.json", "why.json"]


def test_only_so_much_stays_frozen(tmp_path: Path) -> None:
    box = BlackBox(tmp_path)
    for at in range(blackbox.FROZEN_MOST + 5):
        box.freeze("job", {}, at * 100.0)
    names = [path.name for path in frozen_in(tmp_path)]
    assert len(names) == blackbox.FROZEN_MOST
    assert names[-1].startswith("19700101T0033")


def test_the_dying_jobs_of_one_user_drive_out_no_evidence_of_others(tmp_path: Path) -> None:
    box = BlackBox(tmp_path)
    hang = box.freeze("a hang", {}, 0.0, "user 1000")
    for at in range(1, 100):
        box.freeze(f"fake {at}", {}, at * 100.0, "user 2000")
    assert hang in frozen_in(tmp_path) and len(frozen_in(tmp_path)) == blackbox.FROZEN_MOST
    another = box.freeze("one more", {}, 1e6, "user 3000")
    assert {hang, another} <= set(frozen_in(tmp_path))


def test_of_one_user_a_job_that_dies_again_and_again_drives_out_its_own_first(tmp_path: Path) -> None:
    box = BlackBox(tmp_path)
    hang = box.freeze("a hang", {}, 0.0, "user 1000")
    for at in range(1, 100):
        box.freeze("restarted", {}, at * 100.0, "user 1000")
    assert hang in frozen_in(tmp_path)
    assert sum("restarted" in path.name for path in frozen_in(tmp_path)) == blackbox.FROZEN_MOST - 1


def test_large_evidence_of_one_user_drives_out_his_own_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blackbox, "FROZEN_BYTES", 5000)
    box = BlackBox(tmp_path)
    hang = box.freeze("a hang", {"words": "x" * 1000}, 0.0, "user 1000")
    large = [box.freeze("job", {"words": "x" * 3000}, at * 100.0, "user 2000") for at in range(1, 5)]
    assert frozen_in(tmp_path) == [hang, large[-1]]


def test_one_file_of_the_ring_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blackbox, "FILE_BYTES", 1000)
    box = BlackBox(tmp_path)
    for _ in range(100):
        box.append({"time": 1.0, "text": "x" * 50}, 1.0)
    assert (tmp_path / "ring" / "0.jsonl").stat().st_size <= 1000
    assert box.lost_lines > 0
