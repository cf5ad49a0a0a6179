"""Windows of version 1, two that were recorded and one that is made up, say the same in the columns of today."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankscope.observer.window import upgrade
from rankscope.observer.window.folder import Window, find_windows, read_window, write_window
from rankscope.observer.window.manifest import FIRST_SAMPLING_HZ, FIRST_SCHEMA, WINDOW_SCHEMA, Loss, Manifest
from rankscope.observer.window.schema import TABLES, YOUNGER

RECORDED = Path(__file__).parents[3] / "data/window-1"


def texts(window: Window) -> list[str]:
    """The stacks of the patterns as version 1 wrote them."""
    nodes = window.stacks.to_pylist()

    def text(node: int) -> str:
        if node < 0:
            return ""
        frame = nodes[node]
        above = text(frame["parent"])
        return f"{above}{';' if above else ''}{frame['name']} ({frame['file']}:{frame['line']})"

    return [text(node) for node in window.patterns["stack"].to_pylist()]


def told(row: dict[str, object]) -> object:
    """The detail as version 1 wrote it."""
    if not row["holder_thread"]:
        return row["detail"]
    place = f"{row['holder_name']} ({row['holder_file']}:{row['holder_line']}) on " if row["holder_name"] else ""
    return f"held by {place}{row['holder_thread']}"


@pytest.mark.parametrize("folder", find_windows(RECORDED), ids=lambda folder: folder.name)
def test_nothing_of_a_recorded_window_is_lost(folder: Path) -> None:
    window = read_window(folder)
    assert (window.manifest.schema, window.manifest.sampling_hz) == (WINDOW_SCHEMA, FIRST_SAMPLING_HZ)
    before = pq.read_table(folder / "patterns.parquet")
    assert texts(window) == before["stack"].to_pylist()
    assert [told(row) for row in window.patterns.to_pylist()] == before["detail"].to_pylist()
    counters = pq.read_table(folder / "counters.parquet").to_pylist()
    for old, new in zip(counters, window.counters.to_pylist(), strict=True):
        process = f"{new['comm']} ({new['pid']})" if new["pid"] >= 0 else ""
        assert old["instance"] == new["instance"] + process
        assert {**old, "instance": ""} == {**{name: new[name] for name in old}, "instance": ""}
    flows = pq.read_table(folder / "flows.parquet").to_pylist()
    assert window.flows.to_pylist() == [{**row, "carried_bytes": None} for row in flows]
    steps = pq.read_table(folder / "steps.parquet").to_pylist()
    assert window.steps.to_pylist() == [{**row, "asked_s": 0.0} for row in steps]
    for name in set(TABLES) - YOUNGER - {"patterns", "stacks", "counters", "ranks", "flows", "steps"}:
        assert getattr(window, name).to_pylist() == pq.read_table(folder / f"{name}.parquet").to_pylist()


def test_the_recorded_windows_hold_what_had_to_be_read() -> None:
    hog = read_window(RECORDED / "gil-hog").patterns.to_pylist()
    assert ("JSONEncoder.iterencode", "encoder.py", 205) in {
        (row["holder_name"], row["holder_file"], row["holder_line"]) for row in hog
    }
    taken = read_window(RECORDED / "cpu-hog").counters.to_pylist()
    assert sum(row["comm"] == "node-scanner" and row["pid"] > 0 for row in taken) >= 3


def test_an_old_window_is_kept_as_one_of_today(tmp_path: Path) -> None:
    window = read_window(RECORDED / "gil-hog")
    again = read_window(write_window(window, tmp_path))
    assert again.manifest == window.manifest
    assert all(getattr(again, name).to_pylist() == getattr(window, name).to_pylist() for name in TABLES)


def first_version(**changed: list[object]) -> dict[str, pa.Table]:
    """Tables of version 1: those of a recorded window, the first row of one of them changed."""
    tables = {}
    for name, schema in upgrade.TABLES.items():
        rows = pq.read_table(RECORDED / "gil-hog" / f"{name}.parquet").to_pylist()
        for table, row in changed.items():
            if table == name:
                rows = [rows[0] | row]  # type: ignore[operator]
        held = [
            field for field in schema if not rows or field.name in rows[0]
        ]  # a column of later versions was not there
        columns = {field.name: pa.array([row[field.name] for row in rows], field.type) for field in held}
        tables[name] = pa.table(columns, pa.schema(held))
    return tables


MANIFEST = Manifest(FIRST_SCHEMA, "node-0", 0.0, 10.0, ("job",), "0.1.0")


@pytest.mark.parametrize(
    ("said", "frames"),
    [
        ("", []),
        ("main (/a b/t.py:1);f (x).g (/a.py:27)", [("main", "/a b/t.py", 1), ("f (x).g", "/a.py", 27)]),
        ("f (/a (1).py:27)", [("f (/a", "1).py", 27)]),  # the name ends at the last ' ('
        ("rain.py:9);main (/t.py:1)", [("rain.py:9)", "", 0), ("main", "/t.py", 1)]),
        (";;", []),
        ("f (t.py:12345678901)", [("f", "t.py", 123456789)]),
    ],
)
def test_stacks_that_are_odd(said: str, frames: list[tuple[str, str, int]]) -> None:
    _, tables = upgrade.upgrade(MANIFEST, first_version(patterns={"stack": said}))  # type: ignore[arg-type]
    rows = tables["stacks"].to_pylist()
    assert [(row["name"], row["file"], row["line"]) for row in rows] == frames
    assert tables["patterns"]["stack"].to_pylist() == [len(frames) - 1]


def test_of_a_stack_that_is_absurdly_deep_what_was_called_last_is_kept() -> None:
    said = ";".join(f"f{at}" for at in range(3000))
    _, tables = upgrade.upgrade(MANIFEST, first_version(patterns={"stack": said}))  # type: ignore[arg-type]
    names = tables["stacks"]["name"].to_pylist()
    assert (len(names), names[-1]) == (upgrade._DEEPEST, "f2999")


def test_a_short_text_does_not_become_a_tree_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "_MOST_FRAMES", 100)
    tables = first_version(patterns={"stack": ";".join("a" * 101)})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="more than a window may have"):
        upgrade.upgrade(MANIFEST, tables)


def test_a_text_that_says_many_times_who_held_the_lock_is_read_in_little_memory() -> None:
    said = "held by hog (job.py" + ":7) on " * 10_000 + "loader"
    upgrade._holder(said[-100:])
    tracemalloc.start()
    try:
        assert upgrade._holder(said)[3] == "loader"
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "said", "instance", "comm", "pid"),
    [
        ("cpu.taken_s", "kworker/0:1 (x) (77)", "", "kworker/0:1 (x)", 77),
        ("cpu.taken_s", "no number", "", "no number", -1),
        ("gpu.foreign_active", "gpu2 by mine by night (4242)", "gpu2", "mine by night", 4242),
        ("gpu.foreign_active", "gpu2", "gpu2", "", -1),
        ("disk.reads", "vda (1)", "vda (1)", "", -1),
    ],
)
def test_processes_that_are_odd(name: str, said: str, instance: str, comm: str, pid: int) -> None:
    row = {"name": name, "instance": said}
    _, tables = upgrade.upgrade(MANIFEST, first_version(counters=row))  # type: ignore[arg-type]
    found = tables["counters"].to_pylist()[0]
    assert (found["instance"], found["comm"], found["pid"]) == (instance, comm, pid)


def test_events_that_every_rank_said_the_host_lost_are_one_loss_of_the_host() -> None:
    tables = first_version(ranks={"lost_events": 7})  # type: ignore[arg-type]
    manifest, _ = upgrade.upgrade(MANIFEST, tables)
    assert manifest.losses == (Loss("bpf", "ring_full", 7),)
    said = replace(MANIFEST, losses=(Loss("bpf", "ring_full", 7),))
    assert upgrade.upgrade(said, tables)[0].losses == said.losses
