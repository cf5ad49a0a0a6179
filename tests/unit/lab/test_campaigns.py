"""One runner of campaigns: results add up for one source, what is stale is told and ends a report with 1, a run does what is left."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from campaignkit import cli, results
from campaignkit.campaign import Judged, Keep
from campaignkit.results import RECORDED, Result, add, by_day, current, forget, merged, read, stale, write
from labkit.machine.shell import LabError

ONE = Result("x", "a", "2026-01-01", "abc", "s1", 5.0, {"cpu_s": 1.5}, {"slowest_s": 0.1}, {"slower": [1.0]})


class Fake:
    """A campaign of two cases, of each of which three are wanted."""

    name, epilog, lacking_code = "fake", "", 0

    def __init__(self) -> None:
        self.digests = {"a": "s1", "b": "s1"}
        self.asked: list[dict[str, float]] = []
        self.problems: tuple[str, ...] = ()
        self.source = "s1"

    def cases(self) -> Mapping[str, str]:
        return {"a": "first", "b": "second"}

    def options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--most", type=float, default=3.0)

    def wanted(self, args: argparse.Namespace) -> float:
        return float(args.most)

    def sources(self, cases: Sequence[str]) -> Mapping[str, str]:
        return {case: self.digests[case] for case in cases}

    def run(self, left: Mapping[str, float], digests: Mapping[str, str], args: argparse.Namespace, keep: Keep) -> None:
        self.asked.append(dict(left))
        for case, done in left.items():
            keep(Result("fake", case, "2026-01-02", "abc", self.source, args.most - done, problems=self.problems))

    def table(self, found: Mapping[str, Result]) -> list[str]:
        return [f"{case} {row.count:g}" for case, row in found.items()]

    def judge(self, found: Mapping[str, Result], args: argparse.Namespace) -> Judged:
        return Judged()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(cli, "_campaign", lambda _: made)
    return made


def test_rows_of_one_case_and_source_add_up() -> None:
    both = merged(
        ONE,
        replace(
            ONE,
            day="2026-01-02",
            commit="def",
            sums={"cpu_s": 2.0},
            most={"slowest_s": 0.05, "mb": 3.0},
            problems=("bad",),
        ),
    )
    assert (both.day, both.commit, both.count) == ("2026-01-02", "def", 10.0)
    assert (both.sums, both.most) == ({"cpu_s": 3.5}, {"slowest_s": 0.1, "mb": 3.0})
    assert both.series == {"slower": [1.0, 1.0]} and both.problems == ("bad",)


def test_a_file_keeps_a_row_for_each_day_and_commit_and_none_that_is_stale_beside_a_new_one(tmp_path: Path) -> None:
    file = tmp_path / "deep/results.jsonl"
    assert read(file) == []
    for row in (ONE, ONE, replace(ONE, commit="def"), replace(ONE, case="b", source="old")):
        add(file, row)
    assert [(row.case, row.commit, row.count) for row in read(file)] == [
        ("a", "abc", 10.0),
        ("a", "def", 5.0),
        ("b", "abc", 5.0),
    ]
    assert len(file.read_text().splitlines()) == 3, "a row a line, so that files merge"
    assert current(read(file), "x", {"a": "s1", "b": "s1"}).keys() == {"a"}
    assert [row.case for row in stale(read(file), "x", {"a": "s1", "b": "s1"})] == ["b"]
    assert [row.case for row in stale(read(file), "x", {"b": "old"})] == ["a", "a"], "a case that is no more"
    lines = by_day(read(file), "x", {"a": "s1", "b": "s1"})
    assert lines[1].split() == ["2026-01-01", "abc", "2", "1", "0", "15"]
    add(file, replace(ONE, case="b", source="s1", count=1.0))
    assert [(row.case, row.count) for row in read(file) if row.case == "b"] == [("b", 1.0)]
    forget(file, "x", ["a"])
    assert [row.case for row in read(file)] == ["b"]
    file.write_text("{}\n")
    with pytest.raises(LabError, match="holds no results"):
        read(file)


def test_a_run_does_what_is_left_and_goes_on_where_it_ended(fake: Fake, tmp_path: Path) -> None:
    file = ["--results", str(tmp_path / "r.jsonl")]
    assert cli.main(["fake", "--only", "a", "--most", "2", *file]) == 0
    assert cli.main(["fake", *file]) == 0
    assert cli.main(["fake", *file]) == 0
    assert fake.asked == [{"a": 0.0}, {"a": 2.0, "b": 0.0}]
    assert cli.main(["fake", "--table", *file]) == 0
    fake.digests["b"] = "s2"
    fake.source = "s2"
    assert cli.main(["fake", "--only", "b", *file]) == 0
    assert fake.asked[-1] == {"b": 0.0}, "its sources changed"


def test_what_is_stale_or_too_little_ends_a_table_with_one_and_is_named(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "r.jsonl"
    for mode in ("--table", "--report"):
        write(file, [replace(ONE, campaign="fake", case=case, count=3.0) for case in "ab"])
        fake.digests["b"] = "s1"
        asked = ["fake", mode, "--results", str(file)]
        assert cli.main(asked) == 0
        fake.digests["b"] = "s2"
        assert cli.main(asked) == 1
        said = capsys.readouterr().out
        assert (
            "stale, the sources of 1 cases have changed since: b" in said
            and "fewer than 3 of 1 of 2 cases: b 0" in said
        )
        write(file, [replace(ONE, campaign="fake", count=3.0)])
        fake.digests["b"] = "s1"
        assert cli.main(asked) == 1
        assert cli.main([*asked, "--only", "a"]) == 0


def test_problems_end_a_run_with_one_until_it_is_made_again(
    fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.problems = ("took 18 s",)
    file = ["--results", str(tmp_path / "r.jsonl")]
    assert cli.main(["fake", *file]) == 1
    assert "  a: took 18 s" in capsys.readouterr().out
    fake.problems = ()
    assert cli.main(["fake", *file]) == 1
    assert len(fake.asked) == 1, "a bad case is not run anew by itself"
    assert cli.main(["fake", "--again", *file]) == 0
    assert cli.main(["fake", "--fresh", *file]) == 0
    assert len(fake.asked) == 3


def test_a_result_of_sources_that_changed_meanwhile_is_not_kept(fake: Fake, tmp_path: Path) -> None:
    fake.source = "changed"
    assert cli.main(["fake", "--results", str(tmp_path / "r.jsonl")]) == 69
    assert read(tmp_path / "r.jsonl") == []


def test_record_and_report_are_of_the_committed_file(fake: Fake) -> None:
    for option in ("--record", "--report"):
        assert cli._arguments(fake, [option]).results == RECORDED
    assert cli._arguments(fake, []).results == results.LOCAL / "results.jsonl"


def test_the_committed_file_can_be_read_and_is_small() -> None:
    rows = read(RECORDED)
    assert {row.campaign for row in rows} <= {"fuzz", "chaos", "soak"} and len(rows) > 30
    assert all(row.day and row.count > 0 for row in rows)
    assert RECORDED.stat().st_size < 500_000
    assert [json.loads(line)["case"] for line in RECORDED.read_text().splitlines()] == [
        row.case for row in sorted(rows, key=lambda row: (row.campaign, row.case, row.day, row.commit))
    ]


def test_what_is_no_campaign_is_wrong_usage() -> None:
    with pytest.raises(SystemExit, match="64"):
        cli.main(["none"])
