"""Measurements that others published, with the answer they gave. Read where they lie; skipped, with a reason, elsewhere."""

from __future__ import annotations

import time
from pathlib import Path

import published
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest

from rankscope.diagnose.infer.solve.judge_steps_file import judge_file
from rankscope.diagnose.infer.verdict.contract import Verdict

DATA = Path(__file__).resolve().parents[5] / "shared" / "data"

pytestmark = pytest.mark.skipif(
    not (DATA / "straggler-AR.parquet").exists(), reason="published timings are not beside the project (../shared/data)"
)


def verdict(case: str, folder: Path, summed: bool = True, without: tuple[str, ...] = (), csv: bool = False) -> Verdict:
    target = folder / f"{case}.parquet"
    published.convert(DATA / f"straggler-{case}.parquet", target, summed)
    table = pq.read_table(target).drop_columns(list(without))
    if csv:
        target = target.with_suffix(".csv")
        pcsv.write_csv(table, target)
    else:
        pq.write_table(table, target)
    return judge_file(target)


def test_ar_is_rank_0s_compute_with_the_published_gain(tmp_path: Path) -> None:
    found = verdict("AR", tmp_path)
    assert (found.status, found.exit_code, len(found.suspects)) == ("fault", 1, 1)
    suspect = found.suspects[0]
    assert (suspect.ranks, suspect.component) == ((0,), "gpu")
    assert suspect.function is not None and suspect.function.name.endswith("-compute")
    # Without it the job is published to be 1.97 times as fast: half a step is lost.
    assert 1 / (1 - suspect.lost_percent / 100) == pytest.approx(1.97, rel=0.10)
    assert found.slowdown_percent == pytest.approx(97, rel=0.15)


@pytest.mark.parametrize("without", [(), ("role",), ("count",), ("waits",), ("role", "count", "waits")])
def test_ar_needs_no_optional_column(without: tuple[str, ...], tmp_path: Path) -> None:
    found = verdict("AR", tmp_path, without=without, csv=True)
    assert [(suspect.ranks, suspect.component) for suspect in found.suspects] == [((0,), "gpu")]
    assert 1 / (1 - found.suspects[0].lost_percent / 100) == pytest.approx(1.97, rel=0.12)


@pytest.mark.parametrize("without", [(), ("role",), ("count",), ("waits",), ("role", "count", "waits")])
def test_st_is_an_imbalance_by_design_and_nobodys_fault(without: tuple[str, ...], tmp_path: Path) -> None:
    found = verdict("ST", tmp_path, without=without)
    assert (found.status, found.exit_code) == ("imbalance", 1)
    assert [(s.component, s.cause, s.ranks) for s in found.suspects] == [("workload", "stage-imbalance", (6, 7))]
    assert 5 < found.suspects[0].lost_percent < 30


def test_every_single_operation_is_read_in_seconds(tmp_path: Path) -> None:
    begun = time.monotonic()
    found = verdict("AR", tmp_path, summed=False, csv=True)  # 117,216 rows
    assert time.monotonic() - begun < 5
    assert found.suspects[0].ranks == (0,)


def test_the_answers_do_not_hang_on_whether_clipping_is_counted_as_communication(tmp_path: Path) -> None:
    # Clipping reduces a norm over all ranks, so part of it is waiting; the data's README.md counts it as work.
    verdicts = []
    for case in ("AR", "ST"):
        published.convert(DATA / f"straggler-{case}.parquet", tmp_path / case, True, published.COMMUNICATION + "|clip")
        verdicts.append(judge_file(tmp_path / case))
    assert [(v.status, v.suspects[0].ranks) for v in verdicts] == [("fault", (0,)), ("imbalance", (6, 7))]
