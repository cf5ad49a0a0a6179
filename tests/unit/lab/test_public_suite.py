"""The suite of public reports: what is right, what a price is held against, and that each kind has its program."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

import labkit.public
from labkit import verdicts
from labkit.public import table
from labkit.public.cases import Case, Price, Result
from labkit.public.kinds import KINDS
from labkit.public.run import PROGRAMS
from labkit.public.score import judged, mean_step_s, middle, prices
from labkit.told import names

LINES = [[(10.0, 1.0), (11.0, 0.1), (12.0, 0.3)], [(11.0, 0.2), (13.0, 9.0)]]


def verdict(status: str, *suspects: tuple[str, str, list[int], float]) -> str:
    return json.dumps({
        "schema": "rankscope.verdict/1", "status": status,
        "suspects": [
            {"component": component, "cause": cause, "ranks": ranks, "function": None, "lost_percent": lost,
             "waste": status == "inefficient"}
            for component, cause, ranks, lost in suspects
        ],
    })  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "fault", "said", "outcome"),
    [
        ("pinned", True, verdict("inefficient", ("cpu", "affinity", [0, 1], 36.0)), verdicts.FIRST),
        ("pinned", True, verdict("inefficient", ("cpu", "oversubscribed", [0, 1], 36.0)), verdicts.WRONG),
        ("pinned", True, verdict("fault", ("cpu", "affinity", [0], 36.0)), verdicts.WRONG),
        ("pinned", True, verdict("healthy"), verdicts.SILENT),
        ("pinned", False, verdict("healthy"), verdicts.FIRST),
        ("pinned", False, verdict("inefficient", ("cpu", "affinity", [0, 1], 9.0)), verdicts.WRONG),
        ("pinned", False, verdict("unknown"), verdicts.SILENT),
        ("one-recompiles", True, verdict("fault", ("python", "recompile", [2], 80.0)), verdicts.FIRST),
        ("one-recompiles", True, verdict("fault", ("python", "recompile", [1], 80.0)), verdicts.WRONG),
        ("evaluates", True, verdict("healthy"), verdicts.FIRST),
        ("evaluates", True, verdict("inefficient", ("python", "pause", [0, 1], 6.0)), verdicts.WRONG),
        ("pinned", True, "nothing", verdicts.FAILED),
    ],
)
def test_the_first_suspect_is_right_or_not(kind: str, fault: bool, said: str, outcome: str) -> None:
    assert judged(Case(kind, 1, fault), said, 0.1).outcome == outcome


def test_a_price_is_held_against_the_healthy_variants_before_and_after_it() -> None:
    def healthy(kind: str, seed: int, step_s: float | None) -> Result:
        return Result(Case(kind, seed, False), verdicts.FIRST, "healthy", step_s)

    fault = judged(Case("pinned", 1, True), verdict("inefficient", ("cpu", "affinity", [0, 1], 36.0)), 0.1)
    assert fault.told_percent == 36.0
    ran = [
        healthy("pinned", 0, 0.01),
        healthy("pinned", 1, 0.05),
        fault,
        healthy("pinned", 2, 0.07),
        healthy("pinned", 3, 0.01),
    ]
    (near,), (far,) = prices(ran)["pinned"], prices(ran[:3])["pinned"]
    assert (near.told, near.true, near.right) == (36.0, pytest.approx(40), True)
    assert (far.true, far.right) == (pytest.approx(50), False)
    others = [healthy("threads", 1, 0.05), fault, healthy("pinned", 2, None)]
    assert not prices(others) and not prices([])


def test_the_price_of_a_kind_is_the_median_over_its_seeds() -> None:
    assert middle([Price(48.0, 20.0), Price(46.0, 49.0), Price(50.0, 51.0)]) == Price(48.0, 49.0)


def test_what_grows_and_what_was_not_named_has_no_price() -> None:
    said = verdict("inefficient", ("python", "slow-function", [0, 1], 36.0))
    assert judged(Case("grows", 1, True), said, 0.1).told_percent is None
    assert judged(Case("pinned", 1, True), said, 0.1).told_percent is None
    assert judged(Case("pinned", 1, False), verdict("healthy"), 0.1).told_percent is None


def test_steps_are_those_that_ended_in_the_window_on_all_ranks() -> None:
    assert mean_step_s(LINES, 10.5, 12.5) == pytest.approx(0.2)
    assert mean_step_s(LINES, 11.5, 12.5) is None and mean_step_s([], 0.0, 1.0) is None


def test_the_table_counts_both_variants_and_all_must_be_well() -> None:
    good = [
        Result(Case("pinned", 1, False), verdicts.FIRST, "healthy", 0.05),
        Result(Case("pinned", 1, True), verdicts.FIRST, "cpu/affinity", 0.1, 48.0),
    ]
    text = "\n".join(table.table(good))
    assert table.good_enough(good) and "at fault  1/1" in text and "price     1/1" in text and "healthy   1/1" in text
    for wrong in (
        Result(Case("pinned", 2, False), verdicts.WRONG, "fault", 0.05),
        Result(Case("pinned", 2, True), verdicts.SILENT, "healthy", 0.1),
        Result(Case("pinned", 2, True), verdicts.FIRST, "cpu/affinity", 0.1, 20.0),
    ):
        assert not table.good_enough([*good, wrong])
    assert "price 48 %" in table.case_line(good[1]) and any(
        line.split()[3:6] == ["1/1", "48", "50"] for line in table.table(good)
    )


def test_each_kind_has_a_program_that_knows_its_word() -> None:
    for kind in KINDS.values():
        source = (PROGRAMS / f"{kind.program}.py").read_text()
        words = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
        assert kind.word in words or kind.word in source.split('"""')[1], kind.name
        assert kind.truth.status == "healthy" or kind.truth.causes
    programs = {path.stem for path in PROGRAMS.glob("*.py")} - {"pace"}
    assert programs == {kind.program for kind in KINDS.values()}
    assert Path(labkit.public.__file__).with_name("README.md").exists()


def test_kinds_are_chosen_by_name() -> None:
    assert names("kind", "threads,pinned", list(KINDS)) == ["pinned", "threads"] and names(
        "kind", "all", list(KINDS)
    ) == list(KINDS)
    with pytest.raises(Exception, match="no such kind: nothing"):
        names("kind", "pinned,nothing", list(KINDS))
