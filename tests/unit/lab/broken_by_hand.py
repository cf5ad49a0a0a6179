"""Deliberate breakages that tests must notice: some by hand, and a sample of the day. test_mutants.py runs it in a session of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from testkit.clones import REPOSITORY, Clone, cloned
from testkit.mutants import Mutant
from testkit.mutation import noticed_by, survivors
from testkit.rooms import ROOMS


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


@pytest.mark.parametrize("what", BY_HAND)
def test_what_survived_a_review_is_noticed(clone: Clone, what: str) -> None:
    file, written, instead, tests = BY_HAND[what]
    whole = (REPOSITORY / file).read_bytes()
    begin = whole.index(written.encode())
    one = Mutant(file, 1, 1, what, begin, begin + len(written.encode()), instead, "")
    assert noticed_by(clone, one, whole, [tests], 1_000_000_000 + 2 * list(BY_HAND).index(what))


def test_what_breaks_is_noticed_in_a_sample_that_changes_by_the_day() -> None:
    """One room a day, all of it by `scripts/mutants`."""
    day = int(time.time() // 86400)
    room = sorted(ROOMS)[day % len(ROOMS)]
    assert survivors(room, sample=2, seed=str(day), quick=True) == []
