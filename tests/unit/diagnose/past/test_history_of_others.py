"""A history that others could have written says nothing of what is normal, keeps nobody waiting, and leads nowhere else."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from builders import Job, build, said

from rankscope.diagnose.infer.past.history import History
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.folder import Window

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")


def window(start: float = 1.76e9) -> Window:
    return build(Job(ranks=4, start=start))[0]


@pytest.fixture
def history(tmp_path: Path) -> History:
    tmp_path.chmod(0o700)
    kept = History(tmp_path / "history")
    for number in range(3):
        earlier = window(1.75e9 + 1000 * number)
        kept.add(earlier, diagnose([earlier]))
    assert diagnose([window()], history=kept).baseline is not None
    return kept


@ROOT_ONLY
@pytest.mark.parametrize("where", [".", "windows"])
@pytest.mark.parametrize("how", ["another's", "open to others"])
def test_one_that_others_can_write_is_not_believed(history: History, where: str, how: str) -> None:
    place = history.folder / where
    if how == "another's":
        os.chown(place, 65534, 65534)
    else:
        place.chmod(0o777)
    verdict = diagnose([window()], history=history)
    assert verdict.baseline is None
    assert "not believed" in said(verdict, NoteCode.BASELINE_NONE)


def test_a_verdict_that_is_a_fifo_keeps_nobody_waiting(history: History) -> None:
    folder = next(path for path in (history.folder / "windows").iterdir())
    (folder / "verdict.json").unlink()
    os.mkfifo(folder / "verdict.json")
    (history.folder / "index.parquet").unlink()
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(len(history.entries())), daemon=True)
    thread.start()
    thread.join(10)
    assert found == [2]


def test_a_name_in_the_index_leads_nowhere_else(history: History, tmp_path: Path) -> None:
    [index] = history.folder.glob("*.parquet")
    outside = tmp_path / "outside"
    next(path for path in (history.folder / "windows").iterdir()).rename(outside)
    table = pq.read_table(index)
    rows = table.to_pylist()
    rows[0]["name"] = "../../outside"
    rows[1]["name"] = ".."
    pq.write_table(table.from_pylist(rows, table.schema), index)
    assert [entry.name for entry in history.entries()] == [rows[2]["name"]]
