"""Files of timings as others write them: what contains waiting, what contains everything, jobs that change, hosts that are missing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import said
from hypothesis import given, settings
from hypothesis import strategies as st

from benchkit.timings import bench, faults
from benchkit.timings.files import table
from benchkit.timings.job import Layout, Noise, Plan, Trace, simulate
from rankscope.diagnose.infer.fleet.timings import steps_file
from rankscope.diagnose.infer.fleet.timings.steps_file import check, read_timings
from rankscope.diagnose.infer.solve.judge_steps_file import judge_timings
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.probes.base.arrays import Bools
from rankscope.probes.base.errors import BadData

DATA, SHARDS = Layout("data", replicas=16), Layout("shards", shards=4, replicas=4, batches=2)


def verdict(rows: pa.Table) -> Verdict:
    return judge_timings(check(rows, "file"), "job")


def traced(layout: Layout, steps: int = 40, seed: int = 1, slow: tuple[int, ...] = (), by: float = 1.5) -> Trace:
    """The job with these ranks slow in all of their steps."""
    plan = Plan.nothing(layout, steps)
    plan.speed[list(slow)] *= by
    return simulate(layout, plan, Noise(), np.random.default_rng(seed))


def accused(found: Verdict) -> set[int]:
    return {rank for suspect in found.suspects for rank in suspect.ranks} if found.status == "fault" else set()


# ---- many files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", faults.KINDS)
def test_nothing_visible_is_called_healthy_and_no_healthy_job_is_accused(kind: str) -> None:
    chosen = [case for case in bench.cases() if case.kind == kind][::4]
    for each in map(bench.judged, chosen):
        assert not (each.outcome == bench.HEALTHY and each.seen), each
        assert each.outcome != bench.WRONG or kind not in (
            "healthy",
            "device",
            "two devices",
            "host",
            "input",
            "between",
        ), each


@settings(max_examples=40, deadline=None)
@given(
    ranks=st.integers(3, 12),
    steps=st.integers(10, 40),
    late=st.floats(0.08, 3.0),
    kinds=st.sampled_from(["gpu", "python", "collective"]),
    waits=st.sampled_from([True, None]),
    seed=st.integers(0, 1000),
)
def test_never_healthy_where_somebody_is_visibly_waited_for(
    ranks: int, steps: int, late: float, kinds: str, waits: bool | None, seed: int
) -> None:
    # GIVEN ranks that stay in a collective for one of them, in every step, and a column that all ranks spend as long in
    rng = np.random.default_rng(seed)
    who, shared = int(rng.integers(ranks)), 0.1
    rows: list[dict[str, Any]] = []
    for step in range(steps):
        more = late * shared * float(np.exp(rng.normal(0, 0.1)))
        for rank in range(ranks):
            work, stay = shared * float(np.exp(rng.normal(0, 0.003))), 0.002 + (0.0 if rank == who else more)
            rows.append({"rank": rank, "step": step, "function": "a", "kind": kinds, "seconds": work, "waits": waits})
            rows.append(
                {"rank": rank, "step": step, "function": "b", "kind": "collective", "seconds": stay, "waits": True}
            )
    # WHEN it is judged
    found = verdict(pa.Table.from_pylist(rows))
    # THEN that rank is accused, or nobody can tell why; and nobody else is accused
    assert found.status in ("fault", "unknown"), (found.status, found.notes)
    assert accused(found) <= {who}


# ---- what columns mean -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["waiting", "coarse", "iteration", "calls", "two", "parts"])
def test_a_slow_rank_is_named_whatever_was_timed(view: str) -> None:
    found = verdict(table(traced(DATA, slow=(5,)), view, True))
    assert accused(found) == {5}, (found.status, found.notes)


def test_where_columns_contain_waiting_within_a_group_the_group_is_named_and_not_the_network() -> None:
    # GIVEN shards that wait for one another inside of forward and backward, and one of them slow from the middle on
    plan = Plan.nothing(SHARDS, 40)
    plan.speed[6, 18:] *= 1.5
    trace = simulate(SHARDS, plan, Noise(), np.random.default_rng(2))
    # WHEN the file says of these that they contain waiting
    found = verdict(table(trace, "coarse", True))
    # THEN its group is accused
    assert found.status == "fault" and 6 in accused(found) <= {4, 5, 6, 7}, (found.suspects, found.notes)
    assert said(found, NoteCode.MIXED_AS_WORK)


def test_a_column_that_contains_the_others_makes_no_step_twice_as_long() -> None:
    trace = traced(DATA)
    found = verdict(table(trace, "iteration", True))
    assert found.status == "healthy" and found.step_seconds.p50 == pytest.approx(float(np.median(trace.step)), rel=0.02)
    assert "iteration contains the other columns" in said(found, NoteCode.WHOLE_STEP)


# ---- when ------------------------------------------------------------------------------------------------------------


def slow_in(steps: slice, who: tuple[int, ...], by: float, count: int = 60) -> pa.Table:
    plan = Plan.nothing(DATA, count)
    for rank in who:
        plan.speed[rank, steps] *= by
    return table(simulate(DATA, plan, Noise(), np.random.default_rng(3)), "parts", True)


@pytest.mark.parametrize("who", [(2,), (2, 9), (4, 5, 6, 7)])
def test_ranks_that_are_slow_in_the_same_few_steps_are_all_named(who: tuple[int, ...]) -> None:
    found = verdict(slow_in(slice(7, None, 10), who, 3.0))
    assert accused(found) == set(who), (found.status, found.notes)


def test_a_quiet_rank_that_is_slow_for_some_steps_is_named() -> None:
    # Its usual noise is so small that a clip of a few of it would hide the episode.
    found = verdict(slow_in(slice(24, 39), (3,), 1.5))
    assert accused(found) == {3}, (found.status, found.notes)
    assert said(found, NoteCode.STRETCH)


# ---- jobs and files that change --------------------------------------------------------------------------------------


def halved(slow: tuple[int, ...] = ()) -> pa.Table:
    """16 ranks for 30 steps, then 8 of them, which do twice the work."""
    first = table(traced(DATA, 30, slow=slow), "parts", True)
    later = Plan.nothing(Layout("data", replicas=8), 20)
    later.speed[:] *= 2
    later.speed[[rank for rank in slow if rank < 8]] *= 1.5
    second = simulate(Layout("data", replicas=8), later, Noise(), np.random.default_rng(4))
    return pa.concat_tables([first, table(second, "parts", True, first=30)])


def test_a_job_that_goes_on_with_half_of_its_ranks_is_not_slow() -> None:
    found = verdict(halved())
    assert found.status == "healthy" and len(found.ranks) == 16 and found.steps == 30, (found.suspects, found.notes)
    assert "16 in 30 steps, 8 in 20 steps" in said(found, NoteCode.WORLD_CHANGED)


def test_a_slow_rank_of_a_job_that_changed_is_named() -> None:
    assert accused(verdict(halved((6,)))) == {6}


def test_ranks_numbered_on_each_host_anew_are_told_apart() -> None:
    rows = table(traced(DATA, slow=(6,)), "parts", True)
    local = pa.array(np.asarray(rows["rank"]) % 4)
    found = verdict(rows.set_column(rows.column_names.index("rank"), "rank", local))
    assert len(found.ranks) == 16 and accused(found) == {6}, found.notes
    assert said(found, NoteCode.LOCAL_NUMBERS)


def test_one_rank_that_two_hosts_report_counts_once() -> None:
    rows = table(traced(DATA, slow=(6,)), "parts", True)
    again = rows.filter(pa.compute.equal(rows["rank"], 3))
    again = again.set_column(again.column_names.index("host"), "host", pa.array(["node9"] * len(again)))
    found = verdict(pa.concat_tables([rows, again]))
    assert len(found.ranks) == 16 and accused(found) == {6}, found.notes


def kept(trace: Trace, ranks: Bools) -> pa.Table:
    return table(trace, "parts", True, kept=np.repeat(ranks[:, None], trace.step.shape[1], axis=1))


@pytest.mark.parametrize("hosts", [(0, 2), (0, 3)])
def test_with_half_of_the_hosts_missing_a_slow_rank_among_the_rest_is_named(hosts: tuple[int, ...]) -> None:
    found = verdict(kept(traced(DATA, slow=(2,)), np.isin(DATA.host(), hosts)))
    assert accused(found) == {2}, (found.status, found.notes)


def test_where_the_slow_rank_is_on_a_missing_host_it_is_unknown_and_not_healthy() -> None:
    found = verdict(kept(traced(DATA, slow=(6,), by=2.5), np.isin(DATA.host(), (0, 2, 3))))
    assert found.status == "unknown" and "they may wait for one of these" in said(found, NoteCode.WAITED_FOR), (
        found.notes
    )


def test_warm_up_steps_and_lost_rows_hide_nobody() -> None:
    plan = Plan.nothing(DATA, 40)
    plan.speed[:, :3] *= np.array([8.0, 3.0, 1.5])
    plan.speed[9] *= 1.3
    trace = simulate(DATA, plan, replace(Noise(), stalls=0.002), np.random.default_rng(5))
    there = np.random.default_rng(6).random(trace.step.shape) > 0.05
    assert accused(verdict(table(trace, "two", True, kept=there))) == {9}


def test_a_file_of_lines_that_are_none_takes_no_time(tmp_path: Path) -> None:
    path = tmp_path / "lines.csv"
    path.write_text("rank,step,function,kind,seconds\n" + "a\n" * 3_000_000)
    began = time.process_time()
    with pytest.raises(BadData):
        read_timings(path)
    assert time.process_time() - began < 12


def test_rows_of_all_groups_of_a_file_count_whatever_its_footer_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = pa.table(
        {
            "rank": [0] * 1000,
            "step": range(1000),
            "function": ["f"] * 1000,
            "kind": ["python"] * 1000,
            "seconds": [0.1] * 1000,
        }
    )
    pq.write_table(rows, tmp_path / "timings.parquet", row_group_size=200, store_schema=False)
    whole = (tmp_path / "timings.parquet").read_bytes()
    begins = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    forged = whole[begins:].replace(b"\x16\xd0\x0f\x19", b"\x16\x82\x00\x19")  # a thousand rows, one row
    assert forged != whole[begins:]
    (tmp_path / "timings.parquet").write_bytes(whole[:begins] + forged)
    monkeypatch.setattr(steps_file, "ROWS_MOST", 500)
    with pytest.raises(BadData, match="1000 rows are too many"):
        read_timings(tmp_path / "timings.parquet")
