"""Read columns of a table as numpy arrays or texts, with substitutes for nulls; repetitive texts as codes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankscope.probes.base.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Labels:
    """A text column: one code per row, and the texts of the codes."""

    codes: Ints
    values: tuple[str, ...]

    def code(self, text: str) -> int:
        """Return the code of `text`; -1 if it does not occur."""
        try:
            return self.values.index(text)
        except ValueError:
            return -1

    def among(self, rows: Ints, texts: Collection[str]) -> Bools:
        """Tell of each of these rows whether it has one of these texts."""
        known = np.array([text in texts for text in (*self.values, None)], dtype=bool)  # code -1: none
        return np.asarray(known[self.codes[rows]], dtype=bool)

    def at(self, row: int) -> str:
        """Return the text of a row."""
        return self.values[int(self.codes[row])]


def ints(table: pa.Table, name: str) -> Ints:
    """Read whole numbers; -1 for null."""
    column = table[name]
    if (
        pa.types.is_signed_integer(column.type) and not column.null_count
    ):  # nearly all; a cast of Arrow's takes ten times as long
        return np.asarray(column.to_numpy(), dtype=np.int64)
    column = _as(column, pa.int64())
    return np.asarray((pc.fill_null(column, -1) if column.null_count else column).to_numpy(), dtype=np.int64)


def floats(table: pa.Table, name: str) -> Floats:
    """Read numbers; NaN for null."""
    column = table[name]
    if pa.types.is_floating(column.type) and not column.null_count:
        return np.asarray(column.to_numpy(), dtype=np.float64)
    column = _as(column, pa.float64())
    return np.asarray(
        (pc.fill_null(column, float("nan")) if column.null_count else column).to_numpy(), dtype=np.float64
    )


def _as(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Cast a column to the wanted type, unless it has it."""
    return column if column.type == wanted else column.cast(wanted)


def texts(table: pa.Table, name: str) -> tuple[str, ...]:
    """Read texts; '' for null."""
    return tuple(value if value is not None else "" for value in table[name].to_pylist())


def labels(table: pa.Table, name: str) -> Labels:
    """Read a repetitive text column; '' for null. Existing dictionaries are reused."""
    column = table[name]
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    if column.num_chunks > 1:
        column = column.unify_dictionaries()
    values = column.chunk(0).dictionary.to_pylist() if column.num_chunks else []
    indices = [
        (chunk.indices.fill_null(-1) if chunk.indices.null_count else chunk.indices).to_numpy(zero_copy_only=False)
        for chunk in column.chunks
    ]
    codes = np.concatenate(indices, dtype=np.int64) if indices else np.empty(0, np.int64)
    known = dict.fromkeys(values)
    if len(known) == len(values) and None not in known:  # one code for each, as they are
        codes[codes < 0] = values.index("") if "" in known else len(values)
        return Labels(codes, tuple(values) if "" in known else (*values, ""))
    # The writer of the file decides on its dictionary: it may contain a text twice, or null.
    place: dict[str, int] = {}
    number = np.array([place.setdefault(value or "", len(place)) for value in [*values, None]], dtype=np.int64)
    return Labels(number[codes], tuple(place))


def equals(table: pa.Table, name: str, text: str) -> Bools:
    """Tell which rows equal `text`; nulls do not."""
    column = labels(table, name)
    return np.asarray((column.codes == column.code(text)) & table[name].is_valid().to_numpy(), dtype=bool)
