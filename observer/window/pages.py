"""Read a Parquet file's true size before unpacking it: from its footer, and its pages, which may exceed it.

Each page has a header in Thrift's compact protocol, of which the first three fields are its kind,
its unpacked and its packed size (parquet.thrift, PageHeader). Arrow's readers allocate what a
header claims. Pages follow one another in the column's part of the file; the header is skipped
field by field, as it has no length.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

_MOST_HEADER_BYTES = 1 << 16
_MOST_PAGES = 1 << 18  # per file: at 20,000 rows each 200 million rows of ten columns have 100,000
# of a page header with its content, and of a struct of a footer: parquet.thrift has 24, 17
_MOST_FIELDS = 100
# of a footer, which take some 100 bytes each: a column of a group has 35 fields and elements
_MOST_PARTS = 1 << 22
# a table has some 200 KB; that of an object in a store has the manifests of its windows
_MOST_FOOTER_BYTES = 64 << 20
_DEEPEST = 8
_DICTIONARY = 2  # enum PageType
_BOOL_TRUE, _BOOL_FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


# Element types of lists in a footer (parquet.thrift), and the struct that they or a field contain.
# Arrow ignores the element type that a list claims; so a list that claims another is rejected, or
# we and Arrow would read different things.
_LISTS = {
    ("file", 2): _STRUCT, ("file", 4): _STRUCT, ("file", 5): _STRUCT, ("file", 7): _STRUCT, ("group", 1): _STRUCT, ("group", 4): _STRUCT,
    ("chunk", 2): _I32, ("chunk", 3): _BINARY, ("chunk", 8): _STRUCT, ("chunk", 13): _STRUCT,
}  # fmt: skip
_STRUCTS = {("file", 4): "group", ("group", 1): "column", ("column", 3): "chunk"}


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column of one group of rows, according to the footer. Positions are in the file."""

    name: str
    values: int
    unpacked_bytes: int
    packed_bytes: int
    pages_at: int
    dictionary_at: int  # 0 where there is none


@dataclass(frozen=True, slots=True)
class Footer:
    """The content of a file according to its footer."""

    rows: int
    chunks: tuple[Chunk, ...]
    # rows that a reader creates: readers use the groups and their values, whatever `rows` is
    most_rows: int


def read_footer(file: Any) -> Footer:
    """Read the footer of a file opened for reading bytes. Raises ValueError where there is none,
    OSError.

    With our own parser: pyarrow first builds what it reports of a column, and on contradictory
    footers it aborts the process.
    """
    size = file.seek(0, 2)
    file.seek(max(0, size - 8))
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if end[4:] != b"PAR1" or not 0 < length <= min(size - 8, _MOST_FOOTER_BYTES):
        raise ValueError("no Parquet file, or not whole")
    file.seek(size - 8 - length)
    said = _Compact(file.read(length), _MOST_PARTS).whole("file", 0)
    chunks = []
    in_groups, of_column = 0, dict[int, int]()
    for group in said.get((4, _LIST), ()):
        rows = group.get((3, _I64), 0)
        if rows < 0:
            raise ValueError("less than no rows")
        in_groups += rows
        for place, column in enumerate(group.get((1, _LIST), ())):
            chunk = column.get((3, _STRUCT), {})
            try:
                values, unpacked, packed, pages_at = (chunk[field, _I64] for field in (5, 6, 7, 9))
                name = b".".join(chunk[3, _LIST]).decode("utf-8", "replace")
            except KeyError:
                raise ValueError("a column that does not say how large it is") from None
            if values < 0 or packed < 0:
                raise ValueError("a column of less than nothing")
            of_column[place] = of_column.get(place, 0) + values
            chunks.append(Chunk(name, values, unpacked, packed, pages_at, chunk.get((11, _I64), 0)))
    rows = said.get((3, _I64), -1)
    return Footer(rows, tuple(chunks), max(rows, in_groups, *of_column.values()))


def check_pages(file: Any, footer: Footer, most_bytes: int, words: Collection[str]) -> None:
    """Check that the pages of a file unpack to at most `most_bytes`. Raises ValueError, OSError.

    Columns other than `words` are read without their dictionaries: there each value may be as long
    as all of the dictionary.
    """
    size = pages = taken = 0
    there = file.seek(0, 2)
    for chunk in footer.chunks:
        at = chunk.dictionary_at if 0 < chunk.dictionary_at < chunk.pages_at else chunk.pages_at
        end = at + chunk.packed_bytes if chunk.values else 0  # no page is read for no values
        while at < end:
            if at < 0:
                raise ValueError("a page before the file")
            file.seek(at)
            kind, unpacked, packed, header = page_sizes(file.read(_MOST_HEADER_BYTES))
            written_out = kind == _DICTIONARY and chunk.name not in words
            size += unpacked * (max(chunk.values, 1) if written_out else 1)
            at += header + packed
            pages, taken = pages + 1, taken + header + packed
            if size > most_bytes:
                raise ValueError(f"pages of more than {most_bytes >> 20} MB: more than a window may have")
            # columns that share pages would have each checked again
            if pages > _MOST_PAGES or taken > there:
                raise ValueError("absurdly many pages")


def page_sizes(data: bytes) -> tuple[int, int, int, int]:
    """Parse (kind, unpacked bytes, packed bytes, header length) of the page header at the begin of
    `data`.

    Raises ValueError.
    """
    reader = _Compact(data, _MOST_FIELDS)
    numbers = reader.struct(0)
    unpacked, packed = numbers.get(2, -1), numbers.get(3, -1)
    if unpacked < 0 or packed < 0:
        raise ValueError("a page without a size")
    return numbers.get(1, 0), unpacked, packed, reader.at


class _Compact:
    """A reader of Thrift's compact protocol that skips values; of a struct it returns the 32-bit
    numbers.

    `most`: limit of the number of parts.
    """

    def __init__(self, data: bytes, most: int) -> None:
        self.data, self.at, self.left = data, 0, most

    def byte(self) -> int:
        """Read one byte. Raises ValueError at the end."""
        at = self.at
        if at >= len(self.data):
            raise ValueError("a page header that does not end")
        self.at = at + 1
        return self.data[at]

    def varint(self) -> int:
        """Read an unsigned number of variable length. Raises ValueError where it does not end."""
        data, at = self.data, self.at
        if at < len(data) and data[at] < 0x80:  # most are one byte, and a footer has hundreds
            self.at = at + 1
            return data[at]
        value = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise ValueError("a number that does not end")

    def spend(self, count: int) -> None:
        """Count parts read; ValueError where there are more than allowed."""
        self.left -= count
        if self.left < 0:
            raise ValueError("a header of absurdly many parts")

    def number(self, head: int, before: int) -> tuple[int, int]:
        """Decode (kind, number) of the field that begins with the byte `head`.

        The number is a delta to that of the field before, `before`, or follows as a zigzag number.
        """
        step = head >> 4
        return head & 15, before + step if step else self.zigzag()

    def zigzag(self) -> int:
        """Read a signed number, zigzag-encoded. Raises ValueError."""
        raw = self.varint()
        return (raw >> 1) ^ -(raw & 1)

    def struct(self, depth: int) -> dict[int, int]:
        """Read a struct and skip its values, except 32-bit numbers at depth 0: return those by field number."""
        found: dict[int, int] = {}
        field = 0
        while head := self.byte():
            kind, field = self.number(head, field)
            self.spend(1)
            if kind == _I32 and depth == 0:
                found[field] = self.zigzag()
            else:
                self.skip(kind, depth)
        return found

    def whole(self, name: str, depth: int) -> dict[tuple[int, int], Any]:
        """Parse a struct of a footer completely, by (number, kind) of field, as Arrow skips fields of another kind.

        `name`: which struct, as in `_LISTS`; '' for others. Raises ValueError.
        """
        if depth > _DEEPEST:
            raise ValueError("a footer that is too deep")
        self.spend(1)
        found: dict[tuple[int, int], Any] = {}
        field = 0
        for _ in range(_MOST_FIELDS):
            head = self.byte()
            if not head:
                self.spend(len(found))
                return found
            kind, step = head & 15, head >> 4
            field = field + step if step else self.zigzag()
            at = self.at
            if _I16 <= kind <= _I64 and at < len(self.data) and self.data[at] < 0x80:  # most of them
                self.at = at + 1
                found[field, kind] = (self.data[at] >> 1) ^ -(self.data[at] & 1)
            else:
                found[field, kind] = self._value(kind, name, field, depth)
        raise ValueError("a struct of absurdly many fields")

    def _value(self, kind: int, name: str, field: int, depth: int) -> Any:
        """Read a field's value: number, bytes, struct or list; of other kinds whether it is true. Raises ValueError.

        `name`, `field`: the struct that contains it and its number there, which decide on what it
        may contain.
        """
        if _I16 <= kind <= _I64:
            raw = self.varint()
            if raw >> 64:
                raise ValueError("a number of more than 64 bits")
            return (raw >> 1) ^ -(raw & 1)
        if kind == _BINARY:
            size = self.varint()
            self.at += size
            if self.at > len(self.data):
                raise ValueError("text that does not end")
            return self.data[self.at - size : self.at]
        if kind == _STRUCT:
            return self.whole(_STRUCTS.get((name, field), ""), depth + 1)
        if kind == _LIST:
            head = self.byte()
            element, count = head & 15, self.varint() if head >> 4 == 15 else head >> 4
            wanted = _LISTS.get((name, field))
            if count > len(self.data) - self.at or not (
                element == wanted or (wanted is None and element in (_I16, _I32, _I64))
            ):
                raise ValueError("a list that is none of a footer")
            if element == _STRUCT:
                of = _STRUCTS.get((name, field), "")
                return [self.whole(of, depth + 1) for _ in range(count)]
            self.spend(count)
            return [self._value(element, name, field, depth) for _ in range(count)]
        self.skip(kind, depth)
        return kind == _BOOL_TRUE

    def skip(self, kind: int, depth: int) -> None:
        """Skip one value of this kind. Raises ValueError where it does not end, or is nested too deep."""
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
            if count > len(self.data) - self.at:  # each takes a byte at least
                raise ValueError("a list that does not end")
            # as fields these are encoded in the head; as elements each is a byte
            if head & 15 in (_BOOL_TRUE, _BOOL_FALSE):
                self.at += count
                return
            self.spend(count)
            for _ in range(count):
                self.skip(head & 15, depth + 1)
        elif kind not in (_BOOL_TRUE, _BOOL_FALSE):  # maps: page headers have none
            raise ValueError("a page header that is none")
