"""Answers to agents are bounded, marked and clean: whatever the document, its text and its lists."""

from __future__ import annotations

import json
import math
from typing import Any

import promised
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from rankscope.diagnose.face.mcp import contracts, tools
from rankscope.diagnose.face.mcp.bounded import DOCUMENTS_MOST, LEAST, Expired, Kept, fit, size_of, tidy
from rankscope.diagnose.face.mcp.envelope import Answer, as_text, packed, packed_rest
from rankscope.diagnose.face.mcp.worker import calls

MOST = 8192
values = st.recursive(
    st.one_of(st.none(), st.integers(-9, 9), st.floats(), st.text(max_size=40)),
    lambda inner: st.one_of(st.lists(inner, max_size=60), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=400,
)


def rest_of(cursor: str, kept: Kept) -> list[Any]:
    """All further items of a list, asked for one answer after the other."""
    found: list[Any] = []
    while cursor:
        more = packed_rest(cursor, kept, MOST)
        assert size_of(more) <= MOST
        found += more["data"]["items"]
        cursor = more["left_out"][0]["cursor"] if more["left_out"] else ""
    return found


@given(values)
@settings(max_examples=150, deadline=None)
def test_a_document_of_any_shape_fits_and_what_is_cut_is_counted(content: Any) -> None:
    whole = tidy({"some": content})
    part = fit(whole, 2000)
    assert size_of(part.content) <= 2000
    if not part.cuts:
        assert part.content == whole
    for cut in part.cuts:
        shown, all_of_it = part.content, whole
        for key in cut.part.split("/")[1:]:
            key = key.replace("~1", "/").replace("~0", "~")  # noqa: PLW2901
            shown, all_of_it = (one[int(key)] if isinstance(one, list) else one[key] for one in (shown, all_of_it))
        assert (len(shown), len(all_of_it)) == (cut.given, cut.of)


def test_the_rest_of_a_list_is_given_until_it_is_forgotten() -> None:
    kept = Kept()
    content = {"a/b": [{"number": number, "text": "x" * 50} for number in range(1000)], "few": [1, 2, 3]}
    answer = packed("some", Answer(content), kept, MOST)
    [cut] = answer["left_out"]
    assert size_of(answer) <= MOST and cut["part"] == "/a~1b" and answer["data"]["few"] == [1, 2, 3]
    assert [*answer["data"]["a/b"], *rest_of(cut["cursor"], kept)] == content["a/b"]
    for _ in range(DOCUMENTS_MOST):
        packed("some", Answer(content), kept, MOST)
    for wrong in (cut["cursor"], "", ":::", "x:1:/few", cut["cursor"] + "/0", f"{next(iter(kept.documents))}:-1:/few"):
        with pytest.raises(Expired):
            packed_rest(wrong, kept, MOST)


def test_a_tree_as_deep_as_stacks_are_is_given_in_part_and_still_fits_its_schema() -> None:
    tree: dict[str, Any] = {"function": "leaf", "file": "", "line": 0, "ranks": "0", "missing": "", "children": []}
    for depth in range(200):
        tree = {**tree, "function": f"f{depth}", "children": [tree]}
    kept = Kept()
    answer = packed("diagnose", Answer({"stacks": tree}), kept, 1 << 20)
    [cut] = answer["left_out"]
    assert (cut["given"], cut["of"]) == (0, 1) and len(rest_of(cut["cursor"], kept)) == 1
    schema = contracts.of_tool("verdict")
    frame = Draft202012Validator({"$ref": "#/$defs/verdict.frame", "$defs": schema["$defs"]})
    assert frame.is_valid(answer["data"]["stacks"])


@given(st.text(max_size=300), st.text(max_size=300))
@settings(max_examples=100, deadline=None)
def test_no_text_closes_the_fence_or_steers_a_terminal(name: str, value: str) -> None:
    answer = packed("some", Answer({name: [value, math.inf]}, (value,)), Kept(), MOST)
    first, opening, inside, closing = as_text(answer).split("\n")
    assert first == answer["untrusted"] and opening[1:] == closing[2:] and opening not in inside
    assert "<" not in inside and inside.isprintable() and json.loads(inside) == answer


def test_schemas_of_answers_are_whole_and_take_lists_that_were_cut() -> None:
    for tool in tools.ALL:
        Draft202012Validator.check_schema(tool.input_schema)
        schema = tool.output_schema
        Draft202012Validator.check_schema(schema)
        targets = {one["$ref"] for one in _objects(schema) if isinstance(one.get("$ref"), str)}
        assert all(one.startswith("#/$defs/") and one[8:] in schema["$defs"] for one in targets), tool.name
        assert all(
            one.get("minItems", 0) <= LEAST for one in _objects(schema) if isinstance(one.get("minItems", 0), int)
        )
    assert {tool.name for tool in tools.ALL} == {*calls(), "more"}


def _objects(content: Any) -> list[dict[str, Any]]:
    inner = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    found = [one for each in inner for one in _objects(each)]
    return [content, *found] if isinstance(content, dict) else found


def test_the_schema_of_an_answer_says_of_its_document_what_the_command_s_says() -> None:
    schema = contracts.of_tool("causes")
    mine = Draft202012Validator({**schema["properties"]["data"], "$defs": schema["$defs"]})
    good = {"schema": "rankscope.causes/1", "cases": 1, "causes": [], "named_by_nothing": []}
    assert mine.is_valid(good) == promised.allows("causes", good) is False  # at least one cause
    from rankscope.diagnose.face.documents.causes import as_object

    assert mine.is_valid(as_object()) and promised.allows("causes", as_object())
    assert not mine.is_valid(as_object() | {"cases": "many"})
