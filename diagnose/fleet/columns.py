"""One column of a Parquet table as numpy or text, with what stands for a value that is absent."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankscope.diagnose.fleet.labels import Labels
from rankscope.probes.arrays import Floats, Ints


def ints(table: pa.Table, name: str) -> Ints:
    """Whole numbers; -1 where there is none."""
    column = pc.fill_null(table[name].cast(pa.int64()), -1)
    return np.asarray(column.to_numpy(), dtype=np.int64)


def floats(table: pa.Table, name: str) -> Floats:
    """Numbers; NaN where there is none."""
    column = table[name].cast(pa.float64())
    return np.asarray(pc.fill_null(column, float("nan")).to_numpy(), dtype=np.float64)


def texts(table: pa.Table, name: str) -> tuple[str, ...]:
    """Texts; '' where there is none."""
    return tuple(value if value is not None else "" for value in table[name].to_pylist())


def labels(table: pa.Table, name: str) -> Labels:
    """Texts of which few are different; '' where there is none. Dictionaries are taken as they are."""
    column = table[name]
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    column = column.unify_dictionaries()
    values = column.chunk(0).dictionary.to_pylist() if column.num_chunks else []
    indices = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in column.chunks]
    codes = np.concatenate(indices).astype(np.int64) if indices else np.empty(0, np.int64)
    # Whoever wrote the file decides what its dictionary holds: a text twice, or null.
    place: dict[str, int] = {}
    number = np.array([place.setdefault(value or "", len(place)) for value in [*values, None]], dtype=np.int64)
    return Labels(number[codes], tuple(place))
