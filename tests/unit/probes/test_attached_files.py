"""Which files of a row that is called too often go first."""

from __future__ import annotations

from rankscope.probes.calls.attached import FileKey, Row, first_to_go

SHARED, OWN, OTHER = ("8:1", 1), ("8:1", 2), ("8:1", 3)


def _row(*files: FileKey) -> Row:
    return Row({file: [file[1]] for file in files}, {}, set(files))


def test_what_one_process_has_for_itself_goes_before_what_many_share() -> None:
    row, mapped_by = _row(SHARED, OWN), {SHARED: {1, 2, 3}, OWN: {4}}
    assert first_to_go(row, mapped_by) == (OWN,)
    assert row.take([OWN]) == (2,)
    assert row.share(mapped_by) == 3 / 4
    assert first_to_go(row, mapped_by) == (SHARED,)


def test_files_that_are_alike_go_together() -> None:
    row = _row(SHARED, OWN, OTHER)
    assert set(first_to_go(row, {SHARED: {1}, OWN: {2}, OTHER: {3}})) == {SHARED, OWN, OTHER}
    assert set(first_to_go(row, {})) == {SHARED, OWN, OTHER}
    assert _row(SHARED).share({SHARED: {1}}) == 1.0


def test_thousands_of_files_are_gone_in_a_few_turns() -> None:
    """The job pays for each turn."""
    files = [("8:1", number) for number in range(4096)]
    row, mapped_by = _row(SHARED, *files[4:]), {file: {7} for file in files} | {SHARED: {1, 2}}
    turns = 0
    while SHARED in row.links:
        row.take(first_to_go(row, mapped_by))
        turns += 1
    assert turns <= 14
