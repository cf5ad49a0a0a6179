"""Line numbers against what the interpreters themselves say, and against noise."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from images import layout
from pythons import KNOWN

from rankscope.unwinder.interpreter.offsets import LineTable
from rankscope.unwinder.names.linetable import line_at

DUMP = Path(__file__).parent / "dump_line_tables.py"


@pytest.mark.parametrize("minor", KNOWN)
def test_every_line_of_the_standard_library_agrees(minor: int) -> None:
    # GIVEN some code units of each code object of every 7th module, with their lines
    command = [KNOWN[minor], str(DUMP), "7", "24"]
    output = subprocess.run(command, capture_output=True, check=True, timeout=120).stdout
    kind = layout(minor).line_table
    units, wrong = 0, []
    # WHEN
    for row in output.splitlines():
        table, first_line, expected = json.loads(row)
        data = bytes.fromhex(table)
        for unit, line in expected:
            units += 1
            if line_at(kind, data, first_line, unit) != line:
                wrong.append((row[:80], unit, line, line_at(kind, data, first_line, unit)))
    # THEN
    assert units > 5_000
    assert wrong == []


def test_a_frame_that_has_not_begun_is_on_its_first_line() -> None:
    assert line_at(LineTable.LOCATIONS, b"", 42, -1) == 42


def test_code_15_leaves_the_running_line_as_it_was() -> None:
    # GIVEN one unit on line 11, one without a line, one on the line after
    table = bytes([0x80 | 11 << 3, 0, 0, 0x80 | 15 << 3, 0x80 | 11 << 3, 0, 0])
    assert [line_at(LineTable.LOCATIONS, table, 10, unit) for unit in range(4)] == [11, None, 12, None]


def test_3_10_marks_bytes_without_a_line() -> None:
    table = bytes([4, 1, 2, 0x80, 2, 1])
    assert [line_at(LineTable.LINES, table, 10, unit) for unit in range(5)] == [11, 11, None, 12, None]


@given(
    kind=st.sampled_from(LineTable),
    table=st.binary(max_size=2000),
    first_line=st.integers(-(1 << 31), (1 << 31) - 1),
    lasti=st.integers(-1, 1 << 26),
)
def test_any_table_gives_a_line_or_none(kind: LineTable, table: bytes, first_line: int, lasti: int) -> None:
    line = line_at(kind, table, first_line, lasti)
    assert line is None or lasti < 0 or 0 <= line < 1 << 31
