"""Paths of the machine that recorded a window, replaced by paths that say nothing of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

# Roots that are the same on every machine, and those that replace the others.
PUBLIC = frozenset({
    "usr", "bin", "sbin", "lib", "lib64", "etc", "proc", "sys", "dev", "run", "var", "opt", "srv", "mnt", "memfd", "system.slice",
    "user.slice", "init.scope",
})  # fmt: skip
_PATH = re.compile(r"(?<![\w./:-])/([\w.-]+)/[\w./-]+\.py\b")


@dataclass(slots=True)
class Replacements:
    """What is replaced by what. `strange`: roots of Python files that were met and that nobody replaced."""

    pairs: tuple[tuple[str, str], ...]
    strange: set[str] = field(default_factory=set)

    def in_text(self, text: str) -> str:
        for old, new in self.pairs:
            text = text.replace(old, new)
        self.strange |= {root for root in _PATH.findall(text) if root not in PUBLIC}
        return text

    def in_table(self, table: pa.Table) -> pa.Table:
        """The same table with replaced text in all of its columns."""
        for at, column in enumerate(table.schema):
            if pa.types.is_string(column.type) or pa.types.is_list(column.type):
                values = [self._in_value(value) for value in table.column(at).to_pylist()]
                table = table.set_column(at, column, pa.array(values, column.type))
        return table

    def _in_value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.in_text(value)
        return [self._in_value(one) for one in value] if isinstance(value, list) else value
