"""What the pages of a Parquet file say of their own size, read before they are unpacked: a footer may tell less than is there.

Each page has a header in Thrift's compact protocol, of which the first three fields are its kind, its unpacked and its packed
size (parquet.thrift, PageHeader). The readers of Arrow make room for what a header says. Pages follow one another in the column's
part of the file; the header is skipped over field by field, as it has no length.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

_MOST_HEADER_BYTES = 1 << 16
_MOST_PAGES = 1 << 16
_DEEPEST = 8
_DICTIONARY = 2  # enum PageType
_BOOL_TRUE, _BOOL_FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


def check_pages(file: Any, footer: Any, most_bytes: int, words: Collection[str]) -> None:
    """ValueError where the pages of a file, opened for reading bytes, unpack to more than `most_bytes`, or are none. OSError.

    Columns other than `words` are read without their dictionaries: there each value may be all that the dictionary holds.
    """
    size = 0
    for group in range(footer.num_row_groups):
        columns = footer.row_group(group)
        for place in range(columns.num_columns):
            column = columns.column(place)
            at = column.data_page_offset
            if column.dictionary_page_offset is not None and 0 < column.dictionary_page_offset < at:
                at = column.dictionary_page_offset
            end = at + column.total_compressed_size if column.num_values else 0  # of no values no page is read
            for _ in range(_MOST_PAGES):
                if at >= end:
                    break
                file.seek(at)
                kind, unpacked, packed, header = page_sizes(file.read(_MOST_HEADER_BYTES))
                written_out = kind == _DICTIONARY and column.path_in_schema not in words
                size += unpacked * (max(column.num_values, 1) if written_out else 1)
                at += header + packed
                if size > most_bytes:
                    raise ValueError(f"pages of more than {most_bytes >> 20} MB: more than a window may have")
            else:
                raise ValueError("absurdly many pages")


def page_sizes(data: bytes) -> tuple[int, int, int, int]:
    """(kind, unpacked bytes, packed bytes, length of the header) of the page whose header `data` begins with. ValueError."""
    reader = _Compact(data)
    numbers = reader.struct(0)
    unpacked, packed = numbers.get(2, -1), numbers.get(3, -1)
    if unpacked < 0 or packed < 0:
        raise ValueError("a page without a size")
    return numbers.get(1, 0), unpacked, packed, reader.at


class _Compact:
    """Skips over values of Thrift's compact protocol; of a struct it keeps the 32-bit numbers."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        if self.at >= len(self.data):
            raise ValueError("a page header that does not end")
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number that does not end")

    def struct(self, depth: int) -> dict[int, int]:
        found: dict[int, int] = {}
        field = 0
        while head := self.byte():
            kind, step = head & 15, head >> 4
            if step:
                field += step
            else:
                raw = self.varint()
                field = (raw >> 1) ^ -(raw & 1)
            if kind == _I32 and depth == 0:
                raw = self.varint()
                found[field] = (raw >> 1) ^ -(raw & 1)
            else:
                self.skip(kind, depth)
        return found

    def skip(self, kind: int, depth: int) -> None:
        if depth > _DEEPEST:
            raise ValueError("a page header that is too deep")
        if kind in (_I16, _I32, _I64):
            self.varint()
        elif kind in (_BYTE, _DOUBLE, _BINARY):
            size = {_BYTE: 1, _DOUBLE: 8}.get(kind) or self.varint()
            self.at += size
        elif kind == _STRUCT:
            self.struct(depth + 1)
        elif kind in (_LIST, _SET):
            head = self.byte()
            count = self.varint() if head >> 4 == 15 else head >> 4
            for _ in range(min(count, len(self.data))):
                self.skip(head & 15, depth + 1)
        elif kind not in (_BOOL_TRUE, _BOOL_FALSE):  # maps: page headers have none
            raise ValueError("a page header that is none")
