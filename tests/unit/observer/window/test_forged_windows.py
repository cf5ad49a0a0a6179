"""A window that no observer can have written is refused in one line where it comes in: as a folder, an object, or its summary."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rankscope.diagnose.infer.fleet.sources import load
from rankscope.observer.window import manifest, tables
from rankscope.observer.window.folder import Window, read_window, write_window
from rankscope.observer.window.manifest import WINDOW_SCHEMA, Loss, Manifest
from rankscope.observer.window.rows import StackRow
from rankscope.observer.window.schema import TABLES
from rankscope.observer.window.store import container, objects
from rankscope.observer.window.store.keys import key_of
from rankscope.observer.window.store.place import open_store
from rankscope.observer.window.store.summary import WANTED
from rankscope.observer.window.tables import check_stacks, table_of
from rankscope.probes.base.errors import BadData

MANIFEST = Manifest(WINDOW_SCHEMA, "host", 1.7e9, 20.0, ("job",), "0.1", losses=(Loss("bpf", "ring_full", 7),))
OF_OBJECTS: tuple[Callable[[bytes], object], ...] = (
    container.decode,
    container.decode_summary,
    lambda data: container.decode_parts(data, WANTED),
)


def a_window(**changed: pa.Table) -> Window:
    return Window(MANIFEST, **({name: schema.empty_table() for name, schema in TABLES.items()} | changed))


def rows(table: str, count: int, **columns: Any) -> pa.Table:
    """A table of equal rows; where nothing is said they say nothing."""
    nothing: dict[str, Any] = {}
    for field in TABLES[table]:
        kind = field.type
        text = pa.types.is_string(kind) or pa.types.is_dictionary(kind)
        number: Any = False if pa.types.is_boolean(kind) else 0
        nothing[field.name] = "" if text else [] if pa.types.is_list(kind) else number
    row = nothing | columns
    arrays = [pa.array([row[field.name]] * count, field.type) for field in TABLES[table]]
    return pa.Table.from_arrays(arrays, schema=TABLES[table])


def refused_as_a_folder(window: Window, into: Path, said: str) -> None:
    folder = write_window(window, into)
    with pytest.raises(BadData, match=said) as caught:
        read_window(folder)
    assert "\n" not in str(caught.value)


# ---- times and counts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("start", value) for value in (math.nan, math.inf, -1.0, 1e20, 1e300, 253_402_214_400.0)),
        *(("seconds", value) for value in (math.nan, math.inf, 0.0, -1.0, 86_401.0)),
    ],
)
def test_a_window_of_a_time_that_no_clock_shows_is_refused(name: str, value: float, tmp_path: Path) -> None:
    folder = write_window(a_window(), tmp_path)
    content = json.loads((folder / "window.json").read_text())
    (folder / "window.json").write_text(json.dumps({**content, name: value}))
    with pytest.raises(BadData, match="a window"):
        read_window(folder)
    there = open_store((tmp_path / "store").as_uri())
    objects.put(there, key_of(MANIFEST), container.encode([a_window()]))
    forged = container.encode([replace(a_window(), manifest=replace(MANIFEST, **{name: value}))])
    for read in OF_OBJECTS:
        with pytest.raises(BadData):
            read(forged)
    objects.put(there, key_of(replace(MANIFEST, host="other")), forged)
    assert [window.manifest for window in load([(tmp_path / "store").as_uri()]).windows] == [MANIFEST]


@pytest.mark.parametrize("start", [0.0, 253_402_214_399.0])
def test_any_time_that_a_clock_may_show_is_read(start: float, tmp_path: Path) -> None:
    window = replace(a_window(), manifest=replace(MANIFEST, start=start))
    assert read_window(write_window(window, tmp_path)).manifest.start == start


def test_counts_of_thousands_of_digits_can_be_summed_and_printed() -> None:
    content = manifest.to_json(MANIFEST, {"steps": 3})
    content["losses"] = [
        {"source": "bpf", "name": "ring_full", "count": count} for count in (10**4299, 10**4299, -(10**4299), 7)
    ]
    content["costs"] = [{"program": "p", "run_count": 10**4299, "run_time_ns": 10**4299}]
    found, counted = manifest.from_json(content)
    assert [loss.count for loss in found.losses] == [(1 << 63) - 1, (1 << 63) - 1, 0, 7]
    assert str(sum(loss.count for loss in found.losses))
    assert (found.costs[0].run_count, found.costs[0].run_time_ns) == ((1 << 63) - 1, (1 << 63) - 1)
    assert counted == {"steps": 3}


# ---- rows ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TABLES)
def test_a_table_with_more_rows_than_any_observer_writes_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"parent": -1} if name == "stacks" else {"stack": -1} if name == "patterns" else {}
    window = a_window(**{name: rows(name, 4, **columns)})
    data = container.encode([window])
    assert getattr(container.decode(data)[0], name).num_rows == 4
    monkeypatch.setitem(tables.ROWS_MOST, name, 3)
    refused_as_a_folder(window, tmp_path, f"4 rows of {name}: more than a window may have")
    with pytest.raises(BadData, match=f"4 rows of {name}"):
        container.decode(data)
    for read in OF_OBJECTS[1:] if name == "ranks" else ():
        with pytest.raises(BadData, match="4 rows of ranks"):
            read(data)


def test_what_a_host_of_64_ranks_writes_in_an_hour_is_far_from_refused() -> None:
    hour = {"ranks": 64, "steps": 64 * 3600, "patterns": 64 * 1000, "stacks": 20_000, "pauses": 64 * 100, "collectives": 1_500_000,
            "flows": 64 * 500, "counters": 64 * 500}  # fmt: skip
    for name, count in hour.items():
        tables.check_rows(name, count)


# ---- text ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "column"), [("ranks", "title"), ("patterns", "name"), ("ranks", "nics")])
def test_a_text_that_is_longer_than_any_observer_writes_is_refused(name: str, column: str, tmp_path: Path) -> None:
    def saying(text: str) -> Window:
        said: dict[str, Any] = {column: [text] if column == "nics" else text}
        return a_window(**{name: rows(name, 2, **said, **({"stack": -1} if name == "patterns" else {}))})

    longest = saying("𝄞" * 4096)
    assert getattr(read_window(write_window(longest, tmp_path)), name).num_rows == 2
    assert container.decode(container.encode([longest]))
    refused_as_a_folder(saying("x" * 20_000), tmp_path, "a text that is longer")
    forged = container.encode([saying("x" * 20_000)])
    for read in OF_OBJECTS if column == "title" else OF_OBJECTS[:1]:
        with pytest.raises(BadData, match="a text that is longer"):
            read(forged)


def test_texts_of_a_part_of_a_table_are_measured_by_themselves() -> None:
    long = pa.array(["x" * 20_000, "short", "y" * 20_000])
    tables.check_texts(pa.table({"title": long[1:2]}))
    for part in (long[:2], long[1:], long.dictionary_encode()):
        with pytest.raises(ValueError, match="a text that is longer"):
            tables.check_texts(pa.table({"title": part}))


# ---- stacks -------------------------------------------------------------------------------------------------------------


def chain(deep: int) -> pa.Table:
    """A stack beside many short ones, so that rows are no measure of it."""
    short = [StackRow(-1, "main", "/job/train.py", 1)] * 1500
    return table_of("stacks", [*short, *(StackRow(1499 + at, "f", "/job/f.py", 1) for at in range(deep - 1))])


def test_a_stack_that_is_deeper_than_any_is_refused(tmp_path: Path) -> None:
    check_stacks(TABLES["patterns"].empty_table(), chain(1024))
    with pytest.raises(ValueError, match="deeper than any"):
        check_stacks(TABLES["patterns"].empty_table(), chain(1025))
    refused_as_a_folder(a_window(stacks=chain(1025)), tmp_path, "deeper than any")
    with pytest.raises(BadData, match="deeper than any"):
        container.decode(container.encode([a_window(stacks=chain(1025))]))
