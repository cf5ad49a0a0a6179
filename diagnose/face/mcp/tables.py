"""Select rows of one table of a window: conditions, columns, order, groups. Pure; no text of a question is ever run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rankscope.diagnose.face.mcp.tools import COLUMNS_MOST
from rankscope.diagnose.text import clean
from rankscope.observer.window.schema import TABLES
from rankscope.probes.base.errors import UsageError

ITEMS_MOST = 16  # of a value that is a list
_COMPARE: Mapping[str, Callable[..., Any]] = {
    "eq": pc.equal, "ne": pc.not_equal, "lt": pc.less, "le": pc.less_equal, "gt": pc.greater, "ge": pc.greater_equal,
}  # fmt: skip


class BadQuestion(UsageError):
    """A question to a table that makes no sense."""

    help = "The tool `tables` says which columns there are, and of which type."


def columns_of(name: str) -> list[dict[str, str]]:
    """Describe the columns of a table: name, type, unit, and what they mean."""
    found = []
    for column in TABLES[name]:
        said = {key.decode(): value.decode() for key, value in (column.metadata or {}).items()}
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        found.append(
            {"name": column.name, "type": str(kind), "unit": said.get("unit", ""), "about": said.get("doc", "")}
        )
    return found


def select(table: pa.Table, question: Mapping[str, Any]) -> dict[str, Any]:
    """Select rows of a table; `question`: the arguments of the tool `rows`. Raises BadQuestion."""
    try:
        return _selected(_plain(table), question)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadQuestion(f"the table cannot be asked that: {clean(first, 200)}") from error


def _selected(table: pa.Table, question: Mapping[str, Any]) -> dict[str, Any]:
    """Select rows of a decoded table, as `select`. Raises BadQuestion and errors of Arrow."""
    for condition in question.get("where", ()):
        table = table.filter(_mask(table, condition))
    if "totals" in question and "group_by" not in question:
        raise BadQuestion("totals need group_by")
    if "group_by" in question:
        table = _grouped(table, question["group_by"], question.get("totals", ()))
    if order := question.get("order_by"):
        table = _sorted(table, order, bool(question.get("descending")))
    if "columns" in question:
        table = table.select([_known(table, name) for name in question["columns"]])
    elif table.num_columns > COLUMNS_MOST:
        table = table.select(table.column_names[:COLUMNS_MOST])
    offset, limit = int(question.get("offset", 0)), int(question.get("limit", 50))
    part = table.slice(offset, limit)
    after = offset + part.num_rows
    return {
        "columns": part.column_names,
        "matching": table.num_rows,
        "offset": offset,
        "rows": [[_value(row[name]) for name in part.column_names] for row in part.to_pylist()],
        "next_offset": after if after < table.num_rows else None,
    }


def _plain(table: pa.Table) -> pa.Table:
    """Decode dictionary-encoded columns, which cannot be compared as they are."""
    for at, column in enumerate(table.schema):
        if pa.types.is_dictionary(column.type):
            table = table.set_column(at, column.name, pc.cast(table.column(at), column.type.value_type))
    return table


def _known(table: pa.Table, name: str) -> str:
    """Return the name of a column as it is. Raises BadQuestion if the table has none of that name."""
    if name not in table.column_names:
        raise BadQuestion(f"there is no column {clean(name, 60)}")
    return name


def _mask(table: pa.Table, condition: Mapping[str, Any]) -> Any:
    """Return which rows meet a condition; nulls do only where null is asked for, or with `ne` something else.

    Raises BadQuestion if column, operator and value do not go together.
    """
    column, op, value = table[_known(table, condition["column"])], condition["op"], condition["value"]
    if pa.types.is_list(column.type):
        raise BadQuestion(f"{condition['column']} is a list: no condition can be put on it")
    if value is None:
        if op not in ("eq", "ne"):
            raise BadQuestion("null can only be asked for with eq and ne")
        return pc.is_null(column) if op == "eq" else pc.is_valid(column)
    if pa.types.is_string(column.type) != isinstance(value, str) or pa.types.is_boolean(column.type) != isinstance(
        value, bool
    ):
        raise BadQuestion(f"{condition['column']} is of type {column.type}, and {clean(str(value), 60)!r} is not")
    if op == "contains":
        if not isinstance(value, str):
            raise BadQuestion("contains is for texts")
        return pc.fill_null(pc.match_substring(column, value), False)
    return pc.fill_null(_COMPARE[op](column, value), op == "ne")


def _grouped(table: pa.Table, keys: Sequence[str], totals: Sequence[Mapping[str, str]]) -> pa.Table:
    """Return one row per combination of `keys`, with these totals (none: the count). Raises BadQuestion."""
    for name in (*keys, *(one["column"] for one in totals)):
        if pa.types.is_list(table[_known(table, name)].type):
            raise BadQuestion(f"{name} is a list: it cannot be grouped")
    wanted = [(one["column"], one["how"]) for one in totals] or [(keys[0], "count")]
    return table.group_by(list(dict.fromkeys(keys)), use_threads=False).aggregate(list(dict.fromkeys(wanted)))


def _sorted(table: pa.Table, order: str, descending: bool) -> pa.Table:
    """Sort a table by a column. Raises BadQuestion if that is a list."""
    if pa.types.is_list(table[_known(table, order)].type):
        raise BadQuestion(f"{order} is a list: nothing can be ordered by it")
    return table.sort_by([(order, "descending" if descending else "ascending")])


def _value(value: Any) -> Any:
    """Round a number to seven digits, and cut a list to `ITEMS_MOST`."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, list):
        return [_value(one) for one in value[:ITEMS_MOST]]
    return value
