"""What breaks in the rooms that security rests on is noticed: a sample in every run, all of it by scripts/mutants."""

from __future__ import annotations

import ast
import os

import pytest
from testkit.mutants import mutants_of
from testkit.mutation import REPOSITORY, ROOMS, survivors

TEXT = """
TABLE = {"a": (1, 2)}
def f(x: int) -> str:
    if x > 1:
        g(x)
    raise ValueError(x)
"""


def test_a_mutant_is_one_thing_that_is_broken() -> None:
    whole = TEXT.encode()
    broken = {one.what: one.applied(whole).decode() for one in mutants_of("x.py", TEXT)}
    assert {what: len(set(TEXT.splitlines()) ^ set(text.splitlines())) for what, text in broken.items()} == {
        "turned round: x > 1": 2, "left out: g(x)": 2, "left out: raise ValueError(x)": 2,
        'row left out: "a": (1, 2)': 2, "row left out: 1": 2, "row left out: 2": 2,
    }  # fmt: skip
    assert "if (not (x > 1)):" in broken["turned round: x > 1"] and "{**{}}" in broken['row left out: "a": (1, 2)']


@pytest.mark.parametrize("room", ROOMS)
def test_each_can_be_read(room: str) -> None:
    for file in REPOSITORY.glob(ROOMS[room][0]):
        whole = file.read_bytes()
        for one in mutants_of(file.name, whole.decode()):
            ast.parse(one.applied(whole))


@pytest.mark.skipif(os.geteuid() != 0, reason="rights are given up by who has them")
@pytest.mark.parametrize(
    ("room", "only"),
    [("confine", '"ioctl": (16'), ("confine", "PR_SET_NO_NEW_PRIVS, 1"), ("apart", "credentials.hide_memory()")],
)  # fmt: skip
def test_what_survived_once_is_noticed(room: str, only: str) -> None:
    assert survivors(room, only=only) == []
