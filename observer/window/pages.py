"""What a Parquet file says of its own size, read before it is unpacked: its footer, and its pages, as a footer may tell less than is there.

Each page has a header in Thrift's compact protocol, of which the first three fields are its kind, its unpacked and its packed
size (parquet.thrift, PageHeader). The readers of Arrow make room for what a header says. Pages follow one another in the column's
part of the file; the header is skipped over field by field, as it has no length.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

_MOST_HEADER_BYTES = 1 << 16
_MOST_PAGES = 1 << 18  # of a file: at 20,000 rows each 200 million rows of ten columns have 100,000
_MOST_FIELDS = 100  # of a page header with all inside of it, and of a struct of a footer: parquet.thrift names 24, 17
_MOST_PARTS = 1 << 22  # of a footer, which take some 100 bytes each: a column of a group has 35 fields and elements
_MOST_FOOTER_BYTES = 64 << 20  # of a table some 200 KB; that of an object in a store has the manifests of its windows
_DEEPEST = 8
_DICTIONARY = 2  # enum PageType
_BOOL_TRUE, _BOOL_FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


# What kind of elements the lists of a footer have (parquet.thrift), and of what struct they or a field are. Arrow does not look at the kind
# that a list says it has; so one that says another is refused, or what we read and what Arrow reads would differ.
_LISTS = {
    ("file", 2): _STRUCT, ("file", 4): _STRUCT, ("file", 5): _STRUCT, ("file", 7): _STRUCT, ("group", 1): _STRUCT, ("group", 4): _STRUCT,
    ("chunk", 2): _I32, ("chunk", 3): _BINARY, ("chunk", 8): _STRUCT, ("chunk", 13): _STRUCT,
}  # fmt: skip
_STRUCTS = {("file", 4): "group", ("group", 1): "column", ("column", 3): "chunk"}


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column of one group of rows, as the footer tells it. Places are in the file."""

    name: str
    values: int
    unpacked_bytes: int
    packed_bytes: int
    pages_at: int
    dictionary_at: int  # 0 where there is none


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file says that it holds."""

    rows: int
    chunks: tuple[Chunk, ...]
    most_rows: int  # that a reader makes of it: readers go by the groups and their values, whatever `rows` is


def read_footer(file: Any) -> Footer:
    """Of a file that is opened for reading bytes. ValueError where there is none, OSError.

    By ourselves: what pyarrow tells of a column it makes first, and where the footer contradicts itself that ends the process.
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
    """ValueError where the pages of a file, opened for reading bytes, unpack to more than `most_bytes`, or are none. OSError.

    Columns other than `words` are read without their dictionaries: there each value may be all that the dictionary holds.
    """
    size = pages = taken = 0
    there = file.seek(0, 2)
    for chunk in footer.chunks:
        at = chunk.dictionary_at if 0 < chunk.dictionary_at < chunk.pages_at else chunk.pages_at
        end = at + chunk.packed_bytes if chunk.values else 0  # of no values no page is read
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
            if pages > _MOST_PAGES or taken > there:  # of pages that columns share each would be looked at once more
                raise ValueError("absurdly many pages")


def page_sizes(data: bytes) -> tuple[int, int, int, int]:
    """(kind, unpacked bytes, packed bytes, length of the header) of the page whose header `data` begins with. ValueError."""
    reader = _Compact(data, _MOST_FIELDS)
    numbers = reader.struct(0)
    unpacked, packed = numbers.get(2, -1), numbers.get(3, -1)
    if unpacked < 0 or packed < 0:
        raise ValueError("a page without a size")
    return numbers.get(1, 0), unpacked, packed, reader.at


class _Compact:
    """Skips over values of Thrift's compact protocol; of a struct it keeps the 32-bit numbers. `most`: what there may be inside."""

    def __init__(self, data: bytes, most: int) -> None:
        self.data, self.at, self.left = data, 0, most

    def byte(self) -> int:
        at = self.at
        if at >= len(self.data):
            raise ValueError("a page header that does not end")
        self.at = at + 1
        return self.data[at]

    def varint(self) -> int:
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
        """ValueError where there is more inside than there may be."""
        self.left -= count
        if self.left < 0:
            raise ValueError("a header of absurdly many parts")

    def number(self, head: int, before: int) -> tuple[int, int]:
        """Kind and number of the field that begins with `head`: the step from the field before it, or its number, zigzag."""
        step = head >> 4
        return head & 15, before + step if step else self.zigzag()

    def zigzag(self) -> int:
        raw = self.varint()
        return (raw >> 1) ^ -(raw & 1)

    def struct(self, depth: int) -> dict[int, int]:
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
        """A struct of a footer with all that is in it, by number and kind of field: Arrow passes over a field of another kind."""
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
            if head & 15 in (_BOOL_TRUE, _BOOL_FALSE):  # a field of these lies in its head; here each is a byte
                self.at += count
                return
            self.spend(count)
            for _ in range(count):
                self.skip(head & 15, depth + 1)
        elif kind not in (_BOOL_TRUE, _BOOL_FALSE):  # maps: page headers have none
            raise ValueError("a page header that is none")
