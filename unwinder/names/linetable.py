"""From a place in the bytecode to a line number, for the three formats that CPython has used. Pure functions.

All take the table's bytes, the first line of the code object and `lasti` in code units of two bytes, and return a line or None
(no line belongs there). They never raise: a table cut short or forged gives None or a wrong line, in time linear in its length.
Formats: Objects/lnotab_notes.txt (3.8-3.10), Objects/locations.md (3.11+).
"""

from __future__ import annotations

from rankscope.unwinder.interpreter.offsets import LineTable

_LINE_END = 1 << 31


def line_at(kind: LineTable, table: bytes, first_line: int, lasti: int) -> int | None:
    """The line of code unit `lasti`. A frame that has not begun (-1) is on the first line."""
    if lasti < 0:
        return first_line
    if kind is LineTable.LNOTAB:
        line = _lnotab(table, first_line, 2 * lasti)
    elif kind is LineTable.LINES:
        line = _lines(table, first_line, 2 * lasti)
    else:
        line = _locations(table, first_line, lasti)
    return line if line is not None and 0 <= line < _LINE_END else None


def _lnotab(table: bytes, line: int, address: int) -> int | None:
    """3.8, 3.9: pairs of (bytes to advance, lines to add); a pair takes effect where it begins."""
    at = 0
    for index in range(0, len(table) - 1, 2):
        at += table[index]
        if at > address:
            break
        line += _signed(table[index + 1])
    return line


def _lines(table: bytes, line: int, address: int) -> int | None:
    """3.10: pairs of (bytes that the entry covers, lines to add first); -128 means that the bytes have no line."""
    end = 0
    for index in range(0, len(table) - 1, 2):
        end += table[index]
        step = _signed(table[index + 1])
        if step != -128:
            line += step
        if address < end:
            return None if step == -128 else line
    return None


def _locations(table: bytes, line: int, unit: int) -> int | None:
    """3.11+: entries of a head byte (1, code, units - 1) and a few bytes more that depend on the code."""
    end, index, length = 0, 0, len(table)
    while index < length:
        head = table[index]
        index += 1
        code = head >> 3 & 15
        end += (head & 7) + 1
        if code <= 9:  # short: no change of line, one byte of columns
            index += 1
        elif code <= 12:  # one line: 0, 1 or 2 lines on, two bytes of columns
            line += code - 10
            index += 2
        elif code != 15:
            step, index = _signed_varint(table, index)
            line += step
            if code == 14:  # long: end line and both columns
                for _ in range(3):
                    _, index = _varint(table, index)
        if unit < end:
            # Code 15 has no line, yet leaves the running line as it was.
            return None if code == 15 else line
    return None


def _signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def _varint(table: bytes, index: int) -> tuple[int, int]:
    """Six bits a byte, least significant first; bit 6 says that more follow. At most 30 bits, as a C int holds."""
    value = shift = 0
    while index < len(table):
        byte = table[index]
        index += 1
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64 or shift > 36:
            break
    return value, index


def _signed_varint(table: bytes, index: int) -> tuple[int, int]:
    value, index = _varint(table, index)
    return (-(value >> 1) if value & 1 else value >> 1), index
