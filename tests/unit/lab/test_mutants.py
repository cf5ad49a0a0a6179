"""What breaks in the rooms that security rests on is noticed: a sample in every run, all of it by scripts/mutants."""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit import rooms
from testkit.clones import REPOSITORY, Clone, cloned
from testkit.equivalent import EQUIVALENT, why_equivalent
from testkit.mutants import Mutant, mutants_of
from testkit.mutation import noticed_by, survivors
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


@pytest.fixture(scope="module")
def clone() -> Iterator[Clone]:
    with cloned() as made:
        yield made


# What survived a review, by hand: what is written in its place, and the tests that must notice.
CONFINED, LIMITS = "tests/unit/probes/test_confined.py", "tests/unit/observer/test_apart_limits.py"
BY_HAND = {
    "a refused call is allowed": (
        "probes/confine/calls.py", '"getrandom": (318, 278),', '"getrandom": (318, 278), "socketpair": (53, 199),', CONFINED),
    "an allowed call is refused": ("probes/confine/calls.py", '"pread64": (17, 67), ', "", CONFINED),
    "the arguments of a call are not looked at": ("probes/confine/seccomp.py", '        "ioctl": [', '        "": [', CONFINED),
    "new rights may be had": ("probes/confine/credentials.py", "_NO_NEW_PRIVS, 1,", "_NO_NEW_PRIVS, 0,", CONFINED),
    "memory is not hidden": ("observer/apart/confined.py", "    credentials.hide_memory()\n", "", LIMITS),
    "whoever hides memory does not": ("probes/confine/credentials.py", "prctl(_PR_SET_DUMPABLE, 0,", "prctl(_PR_SET_DUMPABLE, 1,", LIMITS),
    "a process may write into the kernel's log": (
        "probes/host/kmsg.py", "    if priority >> 3:", "    if False:", "tests/unit/sweep/test_kernel_events.py"),
}  # fmt: skip


@ROOT
@pytest.mark.parametrize("what", BY_HAND)
def test_what_survived_a_review_is_noticed(clone: Clone, what: str) -> None:
    file, written, instead, tests = BY_HAND[what]
    whole = (REPOSITORY / file).read_bytes()
    begin = whole.index(written.encode())
    one = Mutant(file, 1, 1, what, begin, begin + len(written.encode()), instead, "")
    assert noticed_by(clone, one, whole, [tests], 1_000_000_000 + 2 * list(BY_HAND).index(what))


@ROOT
def test_what_breaks_is_noticed_in_a_sample_that_changes_by_the_day() -> None:
    """One room a day, all of it by `scripts/mutants`."""
    day = int(time.time() // 86400)
    room = sorted(ROOMS)[day % len(ROOMS)]
    assert survivors(room, sample=2, seed=str(day), quick=True) == []
