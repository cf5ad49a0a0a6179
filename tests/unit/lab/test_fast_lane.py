"""`scripts/test --fast`: which tests it runs, how it deals them, and that it says what it leaves out."""

from __future__ import annotations

import os
from pathlib import Path

from testkit import fast


def test_most_unit_tests_run_and_none_of_them_asks_for_more_than_python() -> None:
    runs, left = fast.chosen()
    assert {*runs, *left} == set(fast.UNIT.rglob("test_*.py")) and len(runs) > len(left)
    names = {str(path.relative_to(fast.REPOSITORY)) for path in runs}
    assert {*fast.QUICK} <= names and not names & {*fast.LONG}
    asking = {name for name in names if fast.ASKS_FOR_MORE.search((fast.REPOSITORY / name).read_text())}
    assert asking == {*fast.QUICK}
    assert all((fast.REPOSITORY / name).exists() for name in (*fast.QUICK, *fast.LONG))


def test_sessions_get_each_file_once_and_about_as_much(tmp_path: Path) -> None:
    files = [tmp_path / str(number) for number in range(11)]
    for number, path in enumerate(files):
        path.write_text("x" * number)
    dealt = fast.shares(files, 2)
    assert sorted(path for names in dealt for path in names) == sorted(files)
    sizes = [sum(path.stat().st_size for path in names) for names in dealt]
    assert max(sizes) - min(sizes) <= 10
    assert fast.shares(files[:1], 2) == [files[:1]]  # no session without a file: it would run everything


def test_what_is_left_out_is_said() -> None:
    said = fast.left_out([Path("test_one.py")])
    assert said.startswith("left out: 1 files") and "tests/kernel" in said and "mypy" in said


def test_the_script_needs_no_root_and_sets_nothing_up() -> None:
    lines = (fast.REPOSITORY / "scripts/test").read_text().splitlines()
    first = next(at for at, line in enumerate(lines) if "--fast ]]" in line)
    assert first < next(at for at, line in enumerate(lines) if line.startswith("scripts/setup"))
    assert os.access(fast.REPOSITORY / "scripts/test", os.X_OK)
