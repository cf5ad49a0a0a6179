"""`rankscope causes`: the table of hypotheses is whole, true to its files, and printed within 80 columns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankscope.diagnose import hypotheses
from rankscope.diagnose.cli.main import run
from rankscope.diagnose.hypotheses import causes
from rankscope.diagnose.verdict.contract import CAUSES, SCOPES

ROOM = Path(hypotheses.__file__).parent
HELD = Path(__file__).parents[3] / "data/windows/table.json"


def test_every_row_is_in_the_contract_and_there_once() -> None:
    assert len({row.key for row in causes.TABLE}) == len(causes.TABLE)
    for row in causes.TABLE:
        assert row.cause in CAUSES[row.component] and row.scope in SCOPES, row


@pytest.mark.parametrize("row", causes.TABLE, ids=lambda row: "-".join(row.key))
def test_the_file_that_a_row_names_tells_of_it(row: causes.Cause) -> None:
    source = (ROOM / row.told_by).read_text()
    assert f'"{row.cause}"' in source, row
    assert source.startswith('"""')


def test_the_counts_are_of_rows_that_exist_and_of_the_whole_corpus() -> None:
    """Written by scripts/corpus judge --hold, together with the table that the corpus is held to."""
    found, cases = causes.counted()
    assert set(found) <= causes.KNOWN
    assert all(each.right + each.wrong > 0 for each in found.values())
    assert 100 < sum(each.right + each.wrong for each in found.values()) <= cases
    kinds = json.loads(HELD.read_text())["kinds"].values()
    assert cases == sum(count["cases"] for doses in kinds for count in doses.values())


def test_the_table_fits_eighty_columns_and_names_what_nothing_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["causes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= 80 for line in lines), max(lines, key=len)
    assert lines[0].split() == ["CAUSE", "SCOPE", "RIGHT", "BY"]
    assert [line.split()[0] for line in lines[1 : len(causes.TABLE) + 1]] == [
        f"{row.component}/{row.cause}" for row in causes.TABLE
    ]
    assert any("cpu/numa-remote" in line for line in lines[len(causes.TABLE) + 1 :])


def test_the_json_has_every_row_with_its_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["causes", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schema"] == "rankscope.causes/1"
    rows = {(row["component"], row["cause"], row["scope"]): row for row in said["causes"]}
    assert set(rows) == causes.KNOWN
    found, _ = causes.counted()
    assert {key: (row["right"], row["wrong"]) for key, row in rows.items() if row["right"] + row["wrong"]} == {
        key: (each.right, each.wrong) for key, each in found.items()
    }
    assert not {f"{component}/{cause}" for component, cause, _ in rows} & set(said["named_by_nothing"])
