"""Convert bytecode positions to line numbers, for the three formats that CPython has used. Pure.

All take the table's bytes, the first line of the code object and `lasti` in code units of two
bytes, and return a line or None (no line belongs there). They never raise: a table cut short or
forged gives None or a wrong line, in time linear in its length. Formats: Objects/lnotab_notes.txt
(3.8-3.10), Objects/locations.md (3.11+).
"""

from __future__ import annotations

from rankscope.unwinder.interpreter.offsets import LineTable

_LINE_END = 1 << 31


def line_at(kind: LineTable, table: bytes, first_line: int, lasti: int) -> int | None:
    """Return the line of code unit `lasti`; the first line for a frame that has not begun (-1).

    `table`: of the format `kind`. None where no line belongs there, or the table is broken.
    """
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
    """Return the line of byte `address` in an lnotab table (3.8, 3.9); never None. `line`: the first line.

    Pairs of (bytes to advance, lines to add); a pair takes effect where it begins.
    """
    at = 0
    for index in range(0, len(table) - 1, 2):
        at += table[index]
        if at > address:
            break
        line += _signed(table[index + 1])
    return line


def _lines(table: bytes, line: int, address: int) -> int | None:
    """Return the line of byte `address` in a PEP 626 table (3.10); None without one. `line`: the first line.

    Pairs of (bytes that the entry covers, lines to add first); -128 means that the bytes have no
    line.
    """
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
    """Return the line of code unit `unit` in a location table (3.11+); None without one. `line`: the first line.

    Entries of a head byte (1, code, units - 1) and a few more bytes that depend on the code.
    """
    end, index, length = 0, 0, len(table)
    while index < length:
        head = table[index]
        index += 1
        code = head >> 3 & 15
        end += (head & 7) + 1
        if code <= 9:  # short form: same line, one byte of columns
            index += 1
        elif code <= 12:  # one-line form: 0, 1 or 2 lines on, two bytes of columns
            line += code - 10
            index += 2
        elif code != 15:
            step, index = _signed_varint(table, index)
            line += step
            if code == 14:  # long form: end line and both columns
                for _ in range(3):
                    _, index = _varint(table, index)
        if unit < end:
            # Code 15 has no line, but the running line remains unchanged.
            return None if code == 15 else line
    return None


def _signed(byte: int) -> int:
    """Convert a byte, 0 to 255, to a signed 8-bit integer."""
    return byte - 256 if byte > 127 else byte


def _varint(table: bytes, index: int) -> tuple[int, int]:
    """Decode the varint at `index`; return its value and the index after it.

    Six bits a byte, least significant first, bit 6 if more follow; ends after 7 bytes or with the table.
    """
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
    """Decode the signed varint at `index`; return its value and the index after it.

    As `_varint`, with the sign in the lowest bit.
    """
    value, index = _varint(table, index)
    return (-(value >> 1) if value & 1 else value >> 1), index
