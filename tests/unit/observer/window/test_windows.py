"""Window folders are whole or absent, and whatever is wrong with one is said in one line."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rankscope.observer.window.folder import Window, find_windows, read_window, write_window
from rankscope.observer.window.manifest import WINDOW_SCHEMA, Loss, Manifest
from rankscope.observer.window.rows import ROWS, CollectiveRow, CounterRow, PauseRow, StackRow
from rankscope.observer.window.schema import TABLES
from rankscope.observer.window.tables import table_of
from rankscope.probes.base.errors import BadData, OutputFailed


def a_window() -> Window:
    manifest = Manifest(
        WINDOW_SCHEMA, "../höst name", 1.7e9, 20.0, ("job",), "0.1", ("note",), (Loss("bpf", "ring_full", 7),)
    )
    tables = {name: table_of(name, []) for name in TABLES}
    tables["counters"] = table_of("counters", [CounterRow("host", name="cpu.steal_s", value=0.5)])
    return Window(manifest, **tables)


@pytest.mark.parametrize("table", TABLES)
def test_rows_are_the_schema(table: str) -> None:
    assert [field.name for field in fields(ROWS[table])] == TABLES[table].names


def test_a_row_of_another_table_is_refused() -> None:
    with pytest.raises(TypeError, match="StepRow"):
        table_of("steps", [StackRow(-1, "main", "/job/train.py", 1)])


def test_the_sampling_rate_is_written_down(tmp_path: Path) -> None:
    window = replace(a_window(), manifest=replace(a_window().manifest, sampling_hz=199.0))
    assert read_window(write_window(window, tmp_path)).manifest.sampling_hz == 199.0


def test_a_window_reads_back_as_it_was_written(tmp_path: Path) -> None:
    folder = write_window(a_window(), tmp_path / "out")
    back = read_window(folder)
    assert back.manifest == a_window().manifest
    assert back.counters.to_pylist() == a_window().counters.to_pylist()
    assert find_windows(tmp_path / "out") == (folder,)


def test_a_window_is_private_and_stays_where_it_was_put(tmp_path: Path) -> None:
    folder = write_window(a_window(), tmp_path / "out")
    assert folder.parent == tmp_path / "out"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}


def test_the_same_window_twice_gives_two_folders(tmp_path: Path) -> None:
    assert write_window(a_window(), tmp_path) != write_window(a_window(), tmp_path)


def test_a_place_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("not a folder")
    with pytest.raises(OutputFailed, match="cannot write"):
        write_window(a_window(), place / "out")


def _truncate(folder: Path) -> None:
    table = folder / "patterns.parquet"
    table.write_bytes(table.read_bytes()[:-100])


def _foreign(folder: Path) -> None:
    (folder / "window.json").write_text('{"schema": "another/1"}')


def _not_json(folder: Path) -> None:
    text = (folder / "window.json").read_text()
    (folder / "window.json").write_text(text[: len(text) // 2])


def _missing_table(folder: Path) -> None:
    (folder / "steps.parquet").unlink()


def _caller_below(folder: Path) -> None:
    table = table_of("stacks", [StackRow(0, "a", "a.py", 1)])
    pq.write_table(table, folder / "stacks.parquet")
    content = json.loads((folder / "window.json").read_text())
    content["rows"]["stacks"] = 1
    (folder / "window.json").write_text(json.dumps(content))


def _sampled_never(folder: Path) -> None:
    content = json.loads((folder / "window.json").read_text())
    (folder / "window.json").write_text(json.dumps({**content, "sampling_hz": 0}))


def _missing_column(folder: Path) -> None:
    table = pq.read_table(folder / "steps.parquet")
    pq.write_table(table.drop_columns(["own_s"]), folder / "steps.parquet")


def _row_count(folder: Path) -> None:
    content = json.loads((folder / "window.json").read_text())
    content["rows"]["counters"] = 2
    (folder / "window.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    "damage",
    [_truncate, _foreign, _not_json, _missing_table, _missing_column, _row_count, _caller_below, _sampled_never],
)
def test_a_damaged_window_is_refused_in_one_line(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    folder = write_window(a_window(), tmp_path)
    damage(folder)
    with pytest.raises(BadData) as caught:
        read_window(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_window_that_is_older_than_a_table_has_none_of_its_rows(tmp_path: Path) -> None:
    # GIVEN a window as it was written before there was the table `pauses`
    folder = write_window(a_window(), tmp_path)
    (folder / "pauses.parquet").unlink()
    content = json.loads((folder / "window.json").read_text())
    del content["rows"]["pauses"]
    (folder / "window.json").write_text(json.dumps(content))

    # WHEN it is read, THEN it is like one in which nothing paused, and the others are not asked for less
    assert read_window(folder).pauses.num_rows == 0
    assert read_window(folder).pauses.schema == TABLES["pauses"]


def test_a_window_that_has_lost_a_younger_table_is_refused(tmp_path: Path) -> None:
    folder = write_window(a_window(), tmp_path)
    (folder / "pauses.parquet").unlink()
    with pytest.raises(BadData, match=r"pauses\.parquet cannot be read"):
        read_window(folder)


def test_the_steps_of_a_pause_read_back(tmp_path: Path) -> None:
    row = PauseRow(2, "evaluate", "/srv/train.py", 61, "", False, 3, 0.6, 0.2, 0.21, 0.01, (99, 199, 299))
    window = replace(a_window(), pauses=table_of("pauses", [row]))
    (back,) = read_window(write_window(window, tmp_path)).pauses.to_pylist()
    assert (back["name"], back["steps"]) == ("evaluate", [99, 199, 299])


def test_a_folder_without_windows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="holds no window"):
        find_windows(tmp_path)


def test_a_number_that_its_column_has_no_room_for_is_the_largest_that_it_has() -> None:
    rows = [
        CollectiveRow(rank, 0, 0, 0, "allreduce", 0.1, size)
        for rank, size in ((1, 7), (1 << 40, 1 << 70), (-(1 << 40), 0))
    ]
    table = table_of("collectives", rows)
    assert table["rank"].to_pylist() == [1, (1 << 31) - 1, -(1 << 31)]
    assert table["bytes"].to_pylist() == [7, (1 << 63) - 1, 0]
