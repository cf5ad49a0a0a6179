"""What is called too often in one file goes there, and stays for those who map others."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rankscope.probes.bpf.functions.walks import Withdrawn
from rankscope.probes.calls import in_progress, probe
from rankscope.probes.calls.attached import PLACES_EACH, PLACES_FREELY, FileKey, Places, Row, too_often
from rankscope.probes.calls.probe import CallProbe
from rankscope.probes.calls.row import MAX_PLACES, MAX_ROWS

SHARED, OWN, OTHER = ("8:1", 1), ("8:1", 2), ("8:1", 3)
VICTIMS = {1, 2, 3, 4, 5, 6, 7, 8}


def _row(*files: FileKey) -> Row:
    return Row({file: [file[1]] for file in files}, {}, set(files), {file: file[1] for file in files})


def test_what_one_process_has_for_itself_goes_before_what_many_share() -> None:
    row, mapped_by = _row(SHARED, OWN), {SHARED: {1, 2, 3}, OWN: {4}}
    parts = row.parts(mapped_by)
    assert parts == {1: pytest.approx(3 / 4), 2: 1 / 4}
    assert too_often({1: 300.0, 2: 900.0}, parts, 1000.0) == (2,)
    assert row.take(row.in_places((2,))) == (2,)
    assert row.parts(mapped_by) == {1: pytest.approx(3 / 4)}
    assert too_often({1: 700.0}, row.parts(mapped_by), 1000.0) == ()
    assert too_often({1: 800.0}, row.parts(mapped_by), 1000.0) == (1,)


def test_nobody_makes_his_part_larger_by_mapping_many_files() -> None:
    row, mapped_by = _row(SHARED, OWN, OTHER), {SHARED: {1}, OWN: {2}, OTHER: {2}}
    assert row.parts(mapped_by) == {1: 0.5, 2: 0.25, 3: 0.25}
    assert too_often({1: 500.0, 2: 400.0, 3: 400.0}, row.parts(mapped_by), 1000.0) == (2, 3)
    assert too_often({1: 400.0, 2: 400.0, 3: 200.0}, row.parts(mapped_by), 1000.0) == (), "all together are within it"
    assert too_often({1: 700.0, 2: 400.0, 3: 0.0}, row.parts(mapped_by), 1000.0) == (2,), "the one that is most beyond"


def test_thousands_of_files_are_gone_at_once() -> None:
    """The job pays for each turn."""
    files = [("8:1", number) for number in range(4, 4096)]
    row, mapped_by = _row(SHARED, *files), {file: {7} for file in files} | {SHARED: {1, 2}}
    calls = {file[1]: 100.0 for file in files} | {1: 1.0}
    assert set(row.in_places(too_often(calls, row.parts(mapped_by), 30.0))) == set(files)


def test_nobodys_many_files_take_the_places_of_others() -> None:
    places = Places()
    taken = [places.take(0, lambda: "user 1666") for _ in range(2 * PLACES_FREELY)]
    assert taken == [*range(MAX_ROWS, MAX_ROWS + PLACES_FREELY), *[0] * PLACES_FREELY], "then that of the row, for all"
    assert places.take(0, lambda: "user 1000") == MAX_ROWS + PLACES_FREELY
    for user in range(2000, 2100):
        for _ in range(2 * PLACES_EACH):
            places.take(1, lambda user=user: f"user {user}")  # type: ignore[misc]
    assert places.take(1, lambda: "user 1000") == 1, "that of the row, as there is none"
    assert MAX_PLACES - MAX_ROWS >= PLACES_FREELY + 4 * PLACES_EACH


class Turns:
    """A row in a file of the victims' and one of somebody else's; calls are counted as the kernel does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, theirs: set[int]) -> None:
        self.hits = {place: SimpleNamespace(watched=0, others=0) for place in range(MAX_PLACES)}
        self.processes = len(VICTIMS | theirs)
        self._now = 0.0
        hits = self.hits

        class Counted:
            def __getitem__(self, key: ctypes.c_int) -> list[object]:
                return [hits[key.value], SimpleNamespace(watched=0, others=0)]

        module = SimpleNamespace(
            maps={"rs_call_hits": Counted()}, release=lambda _: None, before_close=[], withdrawn=Withdrawn
        )
        monkeypatch.setattr(in_progress, "take_out", lambda *_: 0)
        monkeypatch.setattr(probe.time, "monotonic", lambda: self._now)
        self.probe = CallProbe(cast(Any, module))
        both = {SHARED: [1], OWN: [2]}
        self.probe._rows = {0: Row(both, {SHARED: [11], OWN: [12]}, set(both), {SHARED: 1000, OWN: 1001})}
        self.probe._exported = {0}
        self.probe._mapped_by = {SHARED: VICTIMS, OWN: theirs}
        self.probe.enforce_budget(self.processes)

    def second(self, shared: int = 0, own: int = 0, others: int = 0) -> None:
        """So many calls: in watched processes, of each file, and of the second one in a process that nobody watches."""
        self._now += 1.0
        self.hits[1000].watched += shared
        self.hits[1001].watched += own
        self.hits[1001].others += others
        self.probe.enforce_budget(self.processes)

    @property
    def attached(self) -> tuple[set[FileKey], set[FileKey]]:
        """And where it is told where they are called from."""
        row = self.probe._rows.get(0, Row())
        return set(row.links), set(row.sites)


@pytest.mark.parametrize("theirs", [{100}, set(range(100, 108)), set(range(100, 109)), set(range(100, 200))])
@pytest.mark.parametrize(("own", "others"), [(200_000, 0), (0, 200_000), (200_000, 200_000)])
def test_who_calls_his_own_file_too_often_takes_the_row_from_nobody_else(
    monkeypatch: pytest.MonkeyPatch, theirs: set[int], own: int, others: int
) -> None:
    turns = Turns(monkeypatch, theirs)
    for _ in range(3):
        turns.second(shared=2000, own=own, others=others)
    assert turns.attached == ({SHARED}, {SHARED})
    assert len(turns.probe.notes) == 1
    assert "no longer timed in 1 files of 2" in turns.probe.notes[0]


def test_nor_what_is_told_of_where_others_call_it(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch, {100})
    turns.second(shared=2000, own=3000)
    assert turns.attached == ({SHARED, OWN}, {SHARED})
    turns.second(shared=2000, own=3000)
    assert turns.attached == ({SHARED, OWN}, {SHARED})
    assert len(turns.probe.notes) == 1 and "in 1 files of 2" in turns.probe.notes[0]


def test_what_all_call_too_often_goes_from_all(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(monkeypatch, {100})
    turns.second(shared=9000, own=1100)
    assert turns.attached == (set(), set())
    assert not turns.probe.rows_attached()
    turns.second(shared=9000, own=9000)
    assert len(turns.probe.notes) == 1
