"""`--steps FILE`: anybody's timings, good and bad, end in a verdict, in `unknown` with a reason, or in one clear line."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from builders import codes, said
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.face.cli.report import report
from rankscope.diagnose.infer.fleet.timings.steps_file import check
from rankscope.diagnose.infer.solve.judge_steps_file import judge_file, judge_timings
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.probes.base.errors import BadData

RECORDED = Path(__file__).resolve().parents[3] / "data/window-1"
WORK = {"forward": ("gpu", 0.050), "backward": ("gpu", 0.090), "load": ("io", 0.020), "step": ("python", 0.030)}


def rows(
    ranks: int = 8,
    steps: int = 23,
    noise: float = 0.03,
    seed: int = 1,
    slow: dict[tuple[int, str], float] | None = None,
) -> list[dict[str, Any]]:
    """A synchronous job: everybody waits in `allreduce` for the slowest. `slow`: factor by rank and function."""
    rng = np.random.default_rng(seed)
    result = []
    for step in range(steps):
        own = {}
        for rank in range(ranks):
            for name, (kind, seconds) in WORK.items():
                value = seconds * (slow or {}).get((rank, name), 1.0) * float(np.exp(rng.normal(0, noise)))
                result.append({"rank": rank, "step": step, "function": name, "kind": kind, "seconds": value})
                own[rank] = own.get(rank, 0.0) + value
        for rank in range(ranks):
            stay = max(own.values()) - own[rank] + 0.02
            result.append({"rank": rank, "step": step, "function": "allreduce", "kind": "collective", "seconds": stay})
    return result


SLOW = {(5, "backward"): 2.0}


def judged(given_rows: list[dict[str, Any]]) -> Verdict:
    return judge_timings(check(pa.Table.from_pylist(given_rows), "file"), "job")


def named(verdict: Verdict) -> list[tuple[str, str, tuple[int, ...], str]]:
    return [(s.component, s.cause, s.ranks, s.function.name if s.function else "") for s in verdict.suspects]


GUILTY = [("gpu", "slow", (5,), "backward")]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "tsv"])
def test_a_slow_rank_is_named_from_any_format(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / f"timings.{suffix}"
    table = pa.Table.from_pylist(rows(slow=SLOW))
    if suffix == "parquet":
        pq.write_table(table, file)
    else:
        pcsv.write_csv(table, file, pcsv.WriteOptions(delimiter="\t" if suffix == "tsv" else ","))
    assert run(["diagnose", "--steps", str(file), "--json"]) == 1
    verdict = json.loads(capsys.readouterr().out)
    suspect = verdict["suspects"][0]
    assert (suspect["component"], suspect["ranks"], suspect["function"]["name"]) == ("gpu", [5], "backward")
    assert suspect["lost_percent"] == pytest.approx(100 * 0.09 / 0.30, rel=0.2)
    assert suspect["since"] is None and verdict["window"] == {"start": None, "end": None}


def test_a_name_in_the_first_line_of_a_csv_file_may_hold_the_separator(tmp_path: Path) -> None:
    file = tmp_path / "timings.csv"
    table = pa.Table.from_pylist([{'"note", free': "a", **row} for row in rows(slow=SLOW)])
    pcsv.write_csv(table, file)
    assert file.read_text().startswith('"""note"", free",')
    assert run(["diagnose", "--steps", str(file), "--json"]) == 1


@pytest.mark.parametrize(
    ("function", "component"), [("forward", "gpu"), ("load", "storage"), ("step", "python")]
)  # fmt: skip
def test_the_kind_says_the_component(function: str, component: str) -> None:
    verdict = judged(rows(slow={(2, function): 4.0}))
    assert [(s.component, s.ranks) for s in verdict.suspects] == [(component, (2,))]
    assert verdict.suspects[0].function is not None and verdict.suspects[0].function.name == function


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_accused_in_a_healthy_file(ranks: int, seed: int) -> None:
    verdict = judged(rows(ranks=ranks, noise=0.15, seed=seed))
    assert (verdict.status, verdict.exit_code) == ("healthy", 0)


def test_the_same_steps_in_microseconds_are_judged_the_same() -> None:
    short = [row | {"seconds": row["seconds"] / 1e4} for row in rows(slow=SLOW)]
    assert named(judged(short)) == GUILTY


def test_a_collective_that_contains_no_waiting_is_the_ranks_own_time() -> None:
    more = rows()
    for row in list(more):
        if row["function"] == "allreduce":
            own = 0.15 if row["rank"] == 3 else 0.05
            more.append(row | {"function": "transfer", "seconds": own, "waits": False})
            row["seconds"] += 0.15 - own
    for row in more:
        row.setdefault("waits", row["kind"] == "collective")
    assert named(judged(more)) == [("network", "slow-link", (3,), "transfer")]


# ---- bad rows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -0.5, 1e9, None])
def test_bad_rows_are_counted_and_the_verdict_stands(bad: float | None) -> None:
    damaged = rows(slow=SLOW)
    for row in damaged[::37]:
        row["seconds"] = bad
    verdict = judged(damaged)
    assert named(verdict) == GUILTY
    assert f"{len(damaged[::37])} of {len(damaged)} rows" in said(verdict, NoteCode.ROWS_UNUSABLE)


def test_a_step_that_lost_a_row_makes_nobody_else_look_slow() -> None:
    # GIVEN two ranks, and half of rank 0's longest rows are no number
    damaged = rows(ranks=2)
    for row in damaged:
        if row["rank"] == 0 and row["function"] == "backward" and row["step"] % 2:
            row["seconds"] = float("nan")
    assert judged(damaged).status == "healthy"


def test_a_function_that_is_mostly_unusable_is_left_out_of_every_rank() -> None:
    damaged = rows(slow=SLOW)
    for index, row in enumerate(damaged):
        if row["function"] == "load" and index % 3:
            row["seconds"] = float("nan")
    verdict = judged(damaged)
    assert named(verdict) == GUILTY and "load" in said(verdict, NoteCode.FUNCTIONS_UNUSABLE)


def test_duplicated_rows_count_once() -> None:
    twice = rows()
    twice += [dict(row) for row in twice if row["rank"] == 5]
    verdict = judged(twice)
    assert verdict.status == "healthy" and NoteCode.ROWS_TWICE in codes(verdict)


def test_a_rank_reported_by_two_sources_counts_once() -> None:
    twice = rows()
    twice += [row | {"seconds": row["seconds"] * 1.01} for row in twice if row["rank"] == 5]
    verdict = judged(twice)
    assert verdict.status == "healthy" and NoteCode.STEPS_TWICE in codes(verdict)


def test_several_executions_in_a_step_add_up() -> None:
    halves = []
    for row in rows(slow=SLOW):
        part = row["seconds"] / 2
        halves += [row | {"seconds": part}, row | {"seconds": part}]
    verdict = judged(halves)
    assert named(verdict) == GUILTY and NoteCode.ROWS_TWICE not in codes(verdict)


def test_missing_ranks_and_steps_are_noted() -> None:
    damaged = [row for row in rows(slow=SLOW) if row["rank"] != 2 and not (row["rank"] == 4 and row["step"] < 7)]
    verdict = judged(damaged)
    assert named(verdict) == GUILTY
    assert "1 ranks between 0 and 7" in said(verdict, NoteCode.RANKS_MISSING)
    assert said(verdict, NoteCode.STEPS_MISSING).startswith("7 of")


def test_unequal_stretches_are_judged_where_they_overlap() -> None:
    damaged = [
        row for row in rows(slow=SLOW, steps=41) if (row["step"] < 30) == (row["rank"] < 4) or 10 <= row["step"] < 30
    ]
    verdict = judged(damaged)
    assert verdict.suspects and verdict.suspects[0].ranks == (5,)


def test_ranks_without_a_common_step_are_unknown() -> None:
    damaged = [row | {"step": row["step"] + 1000 * row["rank"]} for row in rows(slow=SLOW)]
    verdict = judged(damaged)
    assert (verdict.status, verdict.exit_code) == ("unknown", 3)


@pytest.mark.parametrize(("kept", "reason"), [({"rank": 0}, "one rank"), ({"step": 3}, "only 1 complete step (of")])
def test_one_rank_or_one_step_is_unknown(kept: dict[str, int], reason: str) -> None:
    few = [row for row in rows(slow=SLOW) if all(row[key] == value for key, value in kept.items())]
    verdict = judged(few)
    assert verdict.status == "unknown" and reason in verdict.notes[0].text and "--window" not in verdict.notes[0].text


def test_roles_of_one_rank_have_no_peers() -> None:
    verdict = judged([row | {"role": f"stage {row['rank']}"} for row in rows(ranks=4)])
    assert verdict.status == "unknown" and verdict.notes[0].code is NoteCode.NO_PEERS


def test_a_kind_that_is_none_is_left_out_and_an_alias_is_read() -> None:
    odd = rows(slow=SLOW)
    odd += [row | {"function": "mystery", "kind": "flux", "seconds": 5.0} for row in odd if row["rank"] == 1]
    odd = [row | {"kind": "cuda"} if row["kind"] == "gpu" else row for row in odd]
    verdict = judged(odd)
    assert named(verdict) == GUILTY and "of an unknown kind" in said(verdict, NoteCode.ROWS_UNUSABLE)


def test_lines_of_another_length_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "timings.csv"
    pcsv.write_csv(pa.Table.from_pylist(rows(slow=SLOW)), file)
    file.write_text(file.read_text() + "0,1,2\n" * 3)
    verdict = judge_file(file)
    assert named(verdict) == GUILTY and "3 lines" in said(verdict, NoteCode.ROWS_UNUSABLE)


GOOD = "rank,step,function,kind,seconds\n0,0,f,gpu,0.1\n"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b"PAR1",
        b"PAR1" + b"\x00" * 100,
        b"\x00\x01\x02" * 100,
        b"hello",
        b"rank,step\n1,2\n",
        b"rank,step,function,kind,seconds\n",
        b"rank,step,function,kind,seconds\n,,,,\n",
        b"rank,step,function,kind,seconds\nx,y,z,gpu,w\n",
        b"rank,step,function,kind,seconds\n0,0,f,gpu,nan\n1,0,f,gpu,-1\n",
        b"rank,step,function,kind,seconds\n\xff\xfe,0,f,gpu,1\n",
        b"rank;step\tfunction,kind,seconds\n",
    ],
)
def test_unusable_files_are_65_in_one_line(content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "timings.csv"
    file.write_bytes(content)
    assert run(["diagnose", "--steps", str(file)]) == 65
    err = capsys.readouterr().err
    assert err.startswith("rankscope: ") and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize("path", ["nothing.csv", "."])
def test_a_file_that_is_none_is_65(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", "--steps", str(tmp_path / path)]) == 65
    assert capsys.readouterr().err.count("\n") == 1


def test_steps_and_folders_together_make_no_sense(tmp_path: Path) -> None:
    file = tmp_path / "timings.csv"
    file.write_text(GOOD)
    assert run(["diagnose", "--steps", str(file), str(tmp_path)]) == 64
    assert run(["diagnose", "--steps", str(file), "--baseline", str(tmp_path)]) == 64


def test_parquet_with_lists_where_numbers_belong_is_bad_data(tmp_path: Path) -> None:
    file = tmp_path / "timings.parquet"
    pq.write_table(pa.table({"rank": [[0]], "step": [0], "function": ["f"], "kind": ["gpu"], "seconds": [0.1]}), file)
    with pytest.raises(BadData, match="rank"):
        judge_file(file)


CELLS = st.one_of(
    st.none(), st.integers(-3, 12).map(str), st.floats(width=32).map(str), st.sampled_from(["gpu", "io", "f", "g", "", "nan", "é"])
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(cells=st.lists(st.tuples(CELLS, CELLS, CELLS, st.sampled_from(["gpu", "collective", "x", None]), CELLS, CELLS), max_size=40),
       extra=st.sampled_from(["role", "host", "count", "waits"]))  # fmt: skip
def test_any_cells_end_in_a_verdict_or_in_bad_data(cells: list[tuple[str | None, ...]], extra: str) -> None:
    names = ("rank", "step", "function", "kind", "seconds", extra)
    table = pa.table({name: pa.array([row[index] for row in cells], pa.string()) for index, name in enumerate(names)})
    try:
        verdict = judge_timings(check(table, "file"), "job")
    except BadData as error:
        assert "\n" not in str(error)
        return
    assert json.loads(to_json(verdict))["schema"] == "rankscope.verdict/1"
    assert all(len(line) <= 80 for line in report(verdict))


@pytest.mark.parametrize("option", [["--steps"], ["--topology"], ["--baseline"], []], ids=str)
def test_what_is_no_file_is_one_line_and_never_waited_for(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A FIFO into which nobody writes."""
    os.mkfifo(tmp_path / "fifo")
    recorded = [str(RECORDED / "gil-hog")] if option and option != ["--steps"] else []
    before = signal.signal(signal.SIGALRM, _waited)
    signal.alarm(60)
    try:
        assert run(["diagnose", *recorded, *option, str(tmp_path / "fifo")]) == 65
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def _waited(*_: object) -> None:
    raise AssertionError("it waits")


def test_absurdly_large_files_are_refused_before_they_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sparse = tmp_path / "sparse.csv"
    sparse.write_text("rank,step,function,kind,seconds\n" + "0,0,forward,gpu,0.1\n" * 4000)
    os.truncate(sparse, 1 << 40)
    words = tmp_path / "words.parquet"
    many, zeros = 2_000_000, pa.array(np.zeros(2_000_000, dtype=np.int32))
    long = pa.DictionaryArray.from_arrays(zeros, pa.array(["x" * (1 << 20)]))
    kind = pa.DictionaryArray.from_arrays(zeros, pa.array(["gpu"]))
    columns = {"rank": zeros, "step": zeros, "function": long, "kind": kind, "seconds": pa.array(np.ones(many))}
    pq.write_table(pa.table(columns), words, store_schema=False)
    assert words.stat().st_size < 4 << 20
    for path in (sparse, words):
        assert run(["diagnose", "--steps", str(path)]) == 65
        said = capsys.readouterr().err.strip()
        assert len(said.splitlines()) == 1 and ("too many" in said or "absurdly long" in said), said
