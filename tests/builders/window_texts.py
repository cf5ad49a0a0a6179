"""Every text that a folder of windows holds, as whoever opens its files reads it."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq


def texts_of(folder: Path) -> list[str]:
    """Values and metadata of all tables, and the text of all other files."""
    found: list[str] = []
    for file in sorted(one for one in folder.rglob("*") if one.is_file()):
        if file.suffix == ".parquet":
            table = pq.read_table(file)
            found += [f"{name}: {value}" for name in table.column_names for value in table[name].to_pylist()]
            found += [f"{key!r}: {value!r}" for key, value in (table.schema.metadata or {}).items()]
        else:
            found.append(file.read_text(encoding="utf-8"))
    return found
