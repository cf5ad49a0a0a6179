"""Tables of a window: from rows, to a Parquet file, and back, always by the schema."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankscope.observer.window.pages import Footer, check_pages, read_footer
from rankscope.observer.window.rows import ROWS, Row
from rankscope.observer.window.schema import NOTHING, TABLES
from rankscope.probes.host.folders import read_plain
from rankscope.probes.text import printable

# Of one table of one host. An hour of 64 ranks with ten steps and a hundred collectives a second has 23 million rows of steps and
# collectives; a window of 20 s has some thousands.
MOST_ROWS = 30_000_000
MOST_BYTES = 1 << 30
MOST_FILE_BYTES = 256 << 20  # on disk; 9 KB per rank is usual
_FOOTER_LIMITS = {"thrift_string_size_limit": 1 << 20, "thrift_container_size_limit": 1 << 16}
_LARGE_BYTES = 1 << 20  # of a smaller file it takes longer to hand its columns to threads than to read them
_LONGEST_TEXT = 4096  # of one cell: a path is no longer
SMALL, QUICK = 19, 1  # levels of compression: for a file that is kept, for one that is read at once


def table_of(name: str, rows: Sequence[Row]) -> pa.Table:
    """Rows as the table `name`; a whole number that its column has no room for is the largest or least that it has.

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
    """Whole numbers brought into the range of their column. Some are what a rank says, or sums of that: one rank that says too much of
    itself keeps no other out of the window. Raises what it met where that was not it."""
    if not pa.types.is_integer(kind):
        return list(values)
    low = -(1 << kind.bit_width - 1) if pa.types.is_signed_integer(kind) else 0
    high = low + (1 << kind.bit_width) - 1
    return [None if value is None else min(max(int(value), low), high) for value in values]


@lru_cache(maxsize=4096)
def _text(value: str) -> str:
    return printable(value, _LONGEST_TEXT)


def _shown(value: Any) -> Any:
    """Text of targets is in windows as it may be printed, whatever the reader of it forgot."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, tuple):
        return tuple(_shown(one) for one in value)
    return value


def write_table(table: pa.Table, file: IO[bytes], level: int = SMALL) -> None:
    """As Parquet, small: half of what the defaults give (measured, 9 KB per rank of a 10 s window), because windows are kept for long.

    The Arrow schema is left out of the file; the reader casts to the schema it knows.
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
    """The table as it lies there; the columns that `schema` has as labels keep the dictionaries of the file. OSError, ValueError."""
    return table_in(read_plain(path, MOST_FILE_BYTES), schema)


def table_in(data: bytes, schema: pa.Schema) -> pa.Table:
    """The same of a file's content. What was checked is what is read: from memory, as another may write the file meanwhile."""
    words = {field.name for field in schema if pa.types.is_dictionary(field.type) or pa.types.is_string(field.type)}
    check(data, words)
    with pq.ParquetFile(pa.BufferReader(data), **_FOOTER_LIMITS) as file:
        there = [
            field.name for field in file.schema_arrow if field.name in words and not pa.types.is_nested(field.type)
        ]
        known = file.metadata
    with pq.ParquetFile(pa.BufferReader(data), metadata=known, read_dictionary=there) as file:
        table = file.read(use_threads=len(data) > _LARGE_BYTES)
    table.validate(full=True)  # no reader of it looks again: words beyond the end of a dictionary, text that is none
    _check_words(table)
    return table


def check(data: bytes, words: Collection[str]) -> None:
    """ValueError where a Parquet file would take more memory than a table may: by what its footer and its pages say, before anything
    is unpacked. `words`: columns that are read with their dictionaries."""
    raw = io.BytesIO(data)
    footer = read_footer(raw)
    _check_footer(footer)
    check_pages(raw, footer, MOST_BYTES, words)


def _check_footer(footer: Footer) -> None:
    """Rows, values and unpacked bytes of all columns. What pages hold beyond that is not believed but looked at: pages.py."""
    values = max((chunk.values for chunk in footer.chunks), default=0)
    size = sum(max(chunk.unpacked_bytes, 0) for chunk in footer.chunks)
    if not 0 <= footer.rows <= MOST_ROWS or values > MOST_ROWS or size > MOST_BYTES:
        raise ValueError(f"{footer.rows} rows of {size >> 20} MB: more than a window may have")


def _check_words(table: pa.Table) -> None:
    """A long word in a dictionary may stand in every row: how long the column is when it is written out, before it is."""
    parts = [part for column in table.columns for part in column.chunks if pa.types.is_dictionary(part.type)]
    if sum(len(part) * part.dictionary.nbytes for part in parts) <= MOST_BYTES:  # no word is longer than all of them
        return
    import pyarrow.compute as pc  # here, as few have a use for it: 20 ms

    size = 0
    for part in parts:
        if len(part.dictionary):
            lengths = pc.fill_null(pc.binary_length(part.dictionary), 0).to_numpy(zero_copy_only=False)
            used = part.indices.drop_null().to_numpy(zero_copy_only=False)
            size += int(lengths[used].sum(dtype=np.int64))
    if size > MOST_BYTES:
        raise ValueError(f"{size >> 20} MB of text: more than a window may have")


def with_absent(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the columns that it lacks because they are younger than it; those without a value for that stay lacking."""
    for column in schema:
        said = (column.metadata or {}).get(b"absent")
        if said is not None and column.name not in table.column_names:
            text = None if said == NOTHING.encode() else said.decode()
            value = pa.scalar(text, pa.string()).cast(column.type)
            table = table.append_column(column.name, pa.repeat(value, table.num_rows))
    return table


def cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of `schema`, in its order and types. KeyError where one is missing, ArrowException where one does not fit."""
    columns = []
    for column in schema:
        data = table.column(column.name)
        encode = pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(data.type)
        data = data.dictionary_encode() if encode else data
        columns.append(data if data.type == column.type else data.cast(column.type))
    return pa.Table.from_arrays(columns, schema=schema)


def check_stacks(patterns: pa.Table, stacks: pa.Table) -> None:
    """ValueError unless every pattern's stack is a row of `stacks`, and every caller there stands before whom it calls."""
    parent = np.asarray(stacks["parent"].to_numpy(), dtype=np.int64)
    if ((parent < -1) | (parent >= np.arange(len(parent)))).any():
        raise ValueError("a caller that does not stand before whom it calls")
    leaf = np.asarray(patterns["stack"].to_numpy(), dtype=np.int64)
    if ((leaf < -1) | (leaf >= len(parent))).any():
        raise ValueError("a pattern with a stack that is not there")
