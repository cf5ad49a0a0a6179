"""Texts of a column as codes: whoever wrote the file decides what its dictionary holds."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rankscope.observer.window.store.columns import labels


@pytest.mark.parametrize("words", [["b", "a"], ["b", "", "a"], ["b", "a", "b"], ["b", None, "a"], ["", None], []])
@pytest.mark.parametrize("absent", [False, True])
def test_each_row_says_its_text_and_nothing_is_the_empty_one(words: list[str | None], absent: bool) -> None:
    rows = [*range(len(words)), *range(len(words))][::-1] + [None] * absent
    column = pa.DictionaryArray.from_arrays(pa.array(rows, pa.int32()), pa.array(words, pa.string()))
    found = labels(pa.table({"name": column}), "name")
    assert [found.at(row) for row in range(len(rows))] == [
        "" if row is None or words[row] is None else words[row] for row in rows
    ]
    assert len(set(found.values)) == len(found.values)
    assert "" in found.values
