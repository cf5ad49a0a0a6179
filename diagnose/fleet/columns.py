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
    """Texts of which few are different; '' where there is none."""
    column = pc.fill_null(table[name], "").combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.string())
    encoded = column.dictionary_encode()
    codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
    return Labels(codes, tuple(encoded.dictionary.to_pylist()))
