"""Questions of agents to a window's table: rows, conditions, order and groups, and none that makes no sense."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankscope.diagnose.face.mcp import tables, tools
from rankscope.diagnose.face.mcp.of_windows import describe, rows
from rankscope.diagnose.face.mcp.places import Places
from rankscope.diagnose.face.mcp.tables import BadQuestion, select
from rankscope.observer.window.folder import read_window
from rankscope.observer.window.schema import TABLES

RECORDED = Path(__file__).resolve().parents[3] / "data/window-1"
WINDOW = read_window(RECORDED / "gil-hog")
PLACES = Places((RECORDED,), RECORDED / "none", RECORDED / "none")


def test_rows_are_those_that_pass_every_condition_in_order() -> None:
    all_rows = WINDOW.patterns.to_pylist()
    where = [{"column": "rank", "op": "eq", "value": 0}, {"column": "kind", "op": "ne", "value": "sync"},
             {"column": "total_s", "op": "gt", "value": 0.01}, {"column": "name", "op": "contains", "value": "e"}]  # fmt: skip
    wanted = [
        row
        for row in all_rows
        if row["rank"] == 0 and row["kind"] != "sync" and row["total_s"] > 0.01 and "e" in row["name"]
    ]
    wanted.sort(key=lambda row: -row["total_s"])
    asked = {"columns": ["name", "total_s"], "where": where, "order_by": "total_s", "descending": True, "limit": 2}
    first, second = (select(WINDOW.patterns, {**asked, "offset": offset}) for offset in (0, 2))
    assert (
        first["matching"] == len(wanted) > 4 and first["next_offset"] == 2 and first["columns"] == ["name", "total_s"]
    )
    assert [row[0] for row in first["rows"] + second["rows"]] == [row["name"] for row in wanted[:4]]
    assert first["rows"][0][1] == pytest.approx(wanted[0]["total_s"])
    assert select(WINDOW.patterns, {"offset": 10**8})["rows"] == []


def test_groups_add_up_to_the_table() -> None:
    asked: dict[str, Any] = {"group_by": ["rank"], "totals": [{"column": "seconds", "how": how} for how in tools.HOW]}
    found = select(WINDOW.steps, {**asked, "order_by": "rank"})
    for row in found["rows"]:
        one = dict(zip(found["columns"], row, strict=True))
        mine = [each["seconds"] for each in WINDOW.steps.to_pylist() if each["rank"] == one["rank"]]
        assert one["seconds_count"] == len(mine) and one["seconds_sum"] == pytest.approx(sum(mine), rel=1e-5)
        assert (one["seconds_min"], one["seconds_max"]) == pytest.approx((min(mine), max(mine)), rel=1e-5)
    assert sum(row[1] for row in select(WINDOW.patterns, {"group_by": ["kind"]})["rows"]) == WINDOW.patterns.num_rows


def test_null_is_asked_for_by_name() -> None:
    column = {"column": "exit_status", "value": None}
    gone, there = (select(WINDOW.ranks, {"where": [{**column, "op": op}]})["matching"] for op in ("ne", "eq"))
    assert (gone, there) == (0, WINDOW.ranks.num_rows)
    with pytest.raises(BadQuestion):
        select(WINDOW.ranks, {"where": [{**column, "op": "lt"}]})


@pytest.mark.parametrize(
    "question",
    [
        {"columns": ["no_such"]},
        {"order_by": "__import__('os')"},
        {"order_by": "gpus"},
        {"where": [{"column": "rank", "op": "eq", "value": "0"}]},
        {"where": [{"column": "host", "op": "lt", "value": 3}]},
        {"where": [{"column": "rank", "op": "contains", "value": 3}]},
        {"where": [{"column": "gpus", "op": "eq", "value": "gpu0"}]},
        {"where": [{"column": "rank", "op": "eq", "value": 10**30}]},
        {"where": [{"column": "guessed", "op": "eq", "value": 1}]},
        {"totals": [{"column": "pid", "how": "sum"}]},
        {"group_by": ["host"], "totals": [{"column": "host", "how": "sum"}]},
        {"group_by": ["gpus"]},
    ],
)
def test_a_question_that_makes_no_sense_is_refused_in_one_line(question: dict[str, Any]) -> None:
    with pytest.raises(BadQuestion) as said:
        select(WINDOW.ranks, question)
    assert "\n" not in str(said.value) and len(str(said.value)) < 300


def test_every_table_and_column_is_described_and_can_be_asked() -> None:
    assert tuple(TABLES) == tools.TABLES
    told = describe(PLACES, {"window": "gil-hog"}).data["tables"]
    assert [one["table"] for one in told] == list(TABLES)
    assert all(column["about"] for one in told for column in one["columns"])
    for name in TABLES:
        answer = rows(PLACES, {"window": "gil-hog", "table": name, "limit": 3}).data
        assert answer["matching"] == getattr(WINDOW, name).num_rows
        assert answer["columns"] == [one["name"] for one in tables.columns_of(name)][: tools.COLUMNS_MOST]
