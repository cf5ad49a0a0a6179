"""What breaks in the rooms that security rests on is noticed: a sample in every run, all of it by scripts/mutants."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import pytest
from testkit import rooms
from testkit.clones import REPOSITORY
from testkit.equivalent import EQUIVALENT, why_equivalent
from testkit.fast import PYTEST
from testkit.mutants import mutants_of
from testkit.rooms import ROOMS, Room

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


ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="rights are given up by who has them")


@pytest.mark.parametrize("room", ROOMS)
def test_each_can_be_read_and_what_is_called_equivalent_is_one_of_them(room: str) -> None:
    found = Room.read(room)
    mutants = found.mutants()
    for one in mutants:
        ast.parse(one.applied(found.files[one.file]))
    same = [one for one in mutants if why_equivalent(one, found.files[one.file])]
    assert len(same) == sum(file in found.files for file, _, _ in EQUIVALENT)


def test_what_was_found_counts_until_the_file_or_the_test_that_noticed_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rooms, "KEPT", tmp_path)
    room = Room("r", {"x.py": TEXT.encode()}, {"a.py": b"def test(): ...", "b.py": b""}, {"mutants": {}})
    one, other, *_ = room.mutants()
    room.note(one, "a.py::test")
    room.note(other, "")
    assert (room.verdict(one), room.verdict(other)) == ("a.py::test", "")
    room.tests["b.py"] = b"# more"
    assert (room.verdict(one), room.verdict(other)) == ("a.py::test", None)
    room.tests["a.py"] = b"def test(): pass"
    assert room.verdict(one) is None
    room.note(one, "a.py::test")
    room.files["x.py"] += b"# more"
    assert room.verdict(one) is None


@ROOT
def test_what_survived_a_review_and_a_sample_of_the_day_are_noticed() -> None:
    """In a session of its own: in one that has imported the originals, mutants are not met."""
    by_hand = Path(__file__).with_name("broken_by_hand.py")
    command = [*PYTEST, "-q", "-p", "no:cacheprovider", by_hand]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
