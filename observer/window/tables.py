"""Tables of a window: build them from rows, write and read Parquet, always by the schema."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rankscope.observer.window.pages import Footer, check_pages, read_footer
from rankscope.observer.window.rows import ROWS, Row
from rankscope.observer.window.schema import NOTHING, TABLES
from rankscope.probes.base.folders import read_plain
from rankscope.probes.base.text import printable

# For one table of one host. An hour of 64 ranks with ten steps and a hundred collectives a second
# has 23 million rows of steps and collectives; a window of 20 s has some thousands.
MOST_ROWS = 30_000_000
MOST_BYTES = 1 << 30
# For one window. An observer records at most 1.5 million events (a step and a collective need one
# each at least) and 20,000 stacks.
ROWS_MOST = {
    "ranks": 4096, "steps": 1 << 21, "patterns": 1 << 19, "stacks": 1 << 20, "pauses": 1 << 17, "collectives": 1 << 21,
    "flows": 1 << 19, "counters": 1 << 19,
}  # fmt: skip
MOST_FILE_BYTES = 256 << 20  # on disk; 9 KB per rank is usual
_FOOTER_LIMITS = {"thrift_string_size_limit": 1 << 20, "thrift_container_size_limit": 1 << 16}
_LARGE_BYTES = 1 << 20  # for smaller files, threads take longer than reading
_LONGEST_TEXT = 4096  # per cell: a path is no longer
LONGEST_TEXT_BYTES = _LONGEST_TEXT * 4  # encoded
_LEAST_CELL_BYTES = 4  # of most columns; a few bytes of a page may represent any number of them
# frames, a power of two: a stack is written in 4 KB of text, which is some 270 of the shortest
_DEEPEST_STACK = 1024
SMALL, QUICK = 19, 1  # compression levels: for a stored file, for one that is read at once


def table_of(name: str, rows: Sequence[Row]) -> pa.Table:
    """Build the table `name` from rows; whole numbers are clipped to the range of their column.

    TypeError where a row belongs to another table.
    """
    if not all(isinstance(row, ROWS[name]) for row in rows):
        raise TypeError(f"a row of the table {name} must be a {ROWS[name].__name__}")
    schema = TABLES[name]
    columns = []
    for field in schema:
        values = list(map(attrgetter(field.name), rows))
        if pa.types.is_floating(field.type):
            values = [None if value is None else float(value) for value in values]
        elif not pa.types.is_integer(field.type) and not pa.types.is_boolean(field.type):
            values = list(map(_shown, values))
        try:
            columns.append(pa.array(values, field.type))
        except (pa.ArrowInvalid, OverflowError):
            columns.append(pa.array(_within(values, field.type), field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def _within(values: Sequence[Any], kind: pa.DataType) -> list[Any]:
    """Clip whole numbers to the range of their column; return others unchanged.

    Some numbers are a rank's claims, or sums of them: one rank's absurd claim must not exclude the
    others from the window.
    """
    if not pa.types.is_integer(kind):
        return list(values)
    low = -(1 << kind.bit_width - 1) if pa.types.is_signed_integer(kind) else 0
    high = low + (1 << kind.bit_width) - 1
    return [None if value is None else min(max(int(value), low), high) for value in values]


@lru_cache(maxsize=4096)
def _text(value: str) -> str:
    """Make a text printable, of at most `_LONGEST_TEXT` characters; cached."""
    return printable(value, _LONGEST_TEXT)


def _shown(value: Any) -> Any:
    """Make a text, or each in a tuple, printable, so that readers need not; other values are unchanged."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, tuple):
        return tuple(_shown(one) for one in value)
    return value


def write_table(table: pa.Table, file: IO[bytes], level: int = SMALL) -> None:
    """Write a table as Parquet, half as large as by default (measured, 9 KB per rank of a 10 s window).

    The Arrow schema is left out of the file; the reader casts to the schema it knows. `level`: of
    compression.
    """
    encodings = {}
    for column in table.schema:
        if pa.types.is_floating(column.type):
            encodings[column.name] = "BYTE_STREAM_SPLIT"
        elif pa.types.is_integer(column.type):
            encodings[column.name] = "DELTA_BINARY_PACKED"
    words = [
        column.name for column in table.schema if column.name not in encodings and not pa.types.is_list(column.type)
    ]
    pq.write_table(
        table,
        file,
        compression="zstd",
        compression_level=level,
        write_statistics=False,
        store_schema=False,
        use_dictionary=words,
        column_encoding=encodings,
    )


def read_table(path: Path, schema: pa.Schema) -> pa.Table:
    """Read a table from a file, with the file's dictionaries for label columns of `schema`. Raises
    OSError, ValueError.
    """
    return table_in(read_plain(path, MOST_FILE_BYTES), schema)


def table_in(data: bytes, schema: pa.Schema) -> pa.Table:
    """Read a table from a Parquet file's content, after checking its size; text columns keep their dictionaries.

    From memory, since the file may change between check and read. Raises ValueError,
    ArrowException.
    """
    words = {field.name for field in schema if pa.types.is_dictionary(field.type) or pa.types.is_string(field.type)}
    check(data, words)
    with pq.ParquetFile(pa.BufferReader(data), **_FOOTER_LIMITS) as file:
        there = [
            field.name for field in file.schema_arrow if field.name in words and not pa.types.is_nested(field.type)
        ]
        known = file.metadata
    with pq.ParquetFile(pa.BufferReader(data), metadata=known, read_dictionary=there) as file:
        table = file.read(use_threads=len(data) > _LARGE_BYTES)
    # later readers do not check again: indices beyond a dictionary, invalid text
    table.validate(full=True)
    _check_words(table)
    return table


def check(data: bytes, words: Collection[str]) -> None:
    """Check that a Parquet file takes no more memory than a table may, before unpacking. Raises
    ValueError.

    Judged by its footer and its pages. `words`: columns that are read with their dictionaries.
    """
    raw = io.BytesIO(data)
    footer = read_footer(raw)
    _check_footer(footer)
    check_pages(raw, footer, MOST_BYTES, words)


def _check_footer(footer: Footer) -> None:
    """Check rows, values and unpacked bytes of all columns as claimed; pages.py checks the real
    sizes.
    """
    size = sum(max(chunk.unpacked_bytes, chunk.values * _LEAST_CELL_BYTES) for chunk in footer.chunks)
    if footer.rows < 0 or footer.most_rows > MOST_ROWS or size > MOST_BYTES:
        raise ValueError(f"{footer.most_rows} rows of {size >> 20} MB: more than a window may have")


def check_rows(name: str, rows: int) -> None:
    """Raise ValueError where a table of a window has more rows than any observer writes."""
    if rows > ROWS_MOST[name]:
        raise ValueError(f"{rows} rows of {name}: more than a window may have")


def check_texts(table: pa.Table) -> None:
    """Raise ValueError where a text is longer than any observer writes, which would cost its
    readers per row.
    """
    for column in table.columns:
        for part in column.chunks:
            words = _words_of(part)
            # Mostly the sum of all is below the limit for one, which the buffer's size shows at
            # once.
            if words is None or (data := words.buffers()[2]) is None or data.size <= LONGEST_TEXT_BYTES:
                continue
            ends = np.frombuffer(words.buffers()[1], np.int32)[words.offset : words.offset + len(words) + 1]
            if int(np.diff(ends).max(initial=0)) > LONGEST_TEXT_BYTES:
                raise ValueError("a text that is longer than a window may have")


def _words_of(part: pa.Array) -> pa.Array | None:
    """Return the texts of a column, its dictionary or its lists; None where it has none."""
    if pa.types.is_dictionary(part.type):
        part = part.dictionary
    elif pa.types.is_list(part.type):
        part = part.values
    return part if pa.types.is_string(part.type) and len(part) else None


def _check_words(table: pa.Table) -> None:
    """Check the size of label columns as written out, since a long word may occur in every row.
    Raises ValueError.
    """
    parts = [part for column in table.columns for part in column.chunks if pa.types.is_dictionary(part.type)]
    # no word is longer than all of them
    if sum(len(part) * part.dictionary.nbytes for part in parts) <= MOST_BYTES:
        return
    import pyarrow.compute as pc  # here, as it is rarely needed: 20 ms

    size = 0
    for part in parts:
        if len(part.dictionary):
            lengths = pc.fill_null(pc.binary_length(part.dictionary), 0).to_numpy(zero_copy_only=False)
            used = part.indices.drop_null().to_numpy(zero_copy_only=False)
            size += int(lengths[used].sum(dtype=np.int64))
    if size > MOST_BYTES:
        raise ValueError(f"{size >> 20} MB of text: more than a window may have")


def with_absent(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Add the columns of `schema` that the table lacks, if they have a default (`absent`) for older windows."""
    for column in schema:
        said = (column.metadata or {}).get(b"absent")
        if said is not None and column.name not in table.column_names:
            text = None if said == NOTHING.encode() else said.decode()
            value = pa.scalar(text, pa.string()).cast(column.type)
            table = table.append_column(column.name, pa.repeat(value, table.num_rows))
    return table


def cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Select the columns of `schema`, in its order and types. KeyError where one is missing,
    ArrowException otherwise.
    """
    columns = []
    for column in schema:
        data = table.column(column.name)
        encode = pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(data.type)
        data = data.dictionary_encode() if encode else data
        columns.append(data if data.type == column.type else data.cast(column.type))
    return pa.Table.from_arrays(columns, schema=schema)


def check_stacks(patterns: pa.Table, stacks: pa.Table) -> None:
    """Raise ValueError unless every pattern's stack is a row of `stacks`, and callers come before
    callees.
    """
    parent = np.asarray(stacks["parent"].to_numpy(), dtype=np.int64)
    if ((parent < -1) | (parent >= np.arange(len(parent)))).any():
        raise ValueError("a caller that is not before its callees")
    _check_depth(parent)
    leaf = np.asarray(patterns["stack"].to_numpy(), dtype=np.int64)
    if ((leaf < -1) | (leaf >= len(parent))).any():
        raise ValueError("a pattern with a stack that is not there")


def _check_depth(parent: npt.NDArray[np.int64]) -> None:
    """Raise ValueError where a stack is too deep; each iteration doubles the number of callers
    followed.
    """
    if len(parent) <= _DEEPEST_STACK:
        return
    above = parent
    for _ in range(_DEEPEST_STACK.bit_length() - 1):
        above = np.where(above >= 0, above[above], -1)
    if (above >= 0).any():
        raise ValueError("a stack that is deeper than any")
