"""The diagnoser's numbers can be moved, and fitted without a kind, and the corpus says what that changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from labcases import AUGMENT, HEALTHY, PYTHON, verdict

from corpuskit import tables
from corpuskit.archive import Corpus, archives, opened
from corpuskit.case import Case
from corpuskit.cli import main
from corpuskit.judging import Answer, Judge, Judges, answer, judges
from corpuskit.numbers import constants, fits, left_out, moved
from corpuskit.numbers.constants import Constant
from corpuskit.numbers.overrides import Overrides, replaced
from labkit.machine.shell import LabError

FLOOR = "rankscope.diagnose.limits:EFFECT_SHARE"
FLOORS = (FLOOR,)
CASE = Case("a", "one", "faults", "lab", "python-slow", "strong", 1, 8, 4, PYTHON, 0.16, 0.24, True, "", "", ())


@pytest.fixture(scope="module")
def few_archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two: to unpack all of them takes seconds."""
    folder = tmp_path_factory.mktemp("archives")
    for name in ("lab-31-32", "programs-1"):
        (found,) = [path for path in archives() if path.name.startswith(f"{name}.")]
        (folder / found.name).symlink_to(found)
    return folder


@pytest.fixture(scope="module")
def bench(few_archives: Path) -> Iterator[tuple[Corpus, Judges]]:
    with opened(archives(few_archives)) as corpus, judges(corpus, 2) as judge:
        yield corpus, judge


def test_a_replaced_constant_is_new_wherever_the_module_uses_it() -> None:
    source = "A: float = 1\nB = 2 * A\ndef f(x=A):\n    return x\n_C = 5\n"
    found: dict[str, object] = {}
    exec(compile(replaced(source, {"A": 3.5, "_C": (1, 2)}), "module", "exec"), found)
    assert (found["A"], found["B"], found["f"](), found["_C"]) == (3.5, 7.0, 3.5, (1, 2))  # type: ignore[operator]
    with pytest.raises(KeyError):
        replaced(source, {"f": 1})


def test_a_moved_constant_changes_verdicts_and_the_next_judging_is_as_before(bench: tuple[Corpus, Judges]) -> None:
    corpus, judge = bench
    wanted = [case for case in corpus.cases if case.fault == "lock-held"]
    assert wanted
    usual = judge(wanted)
    blind = judge(wanted, dict.fromkeys(FLOORS, 10.0))
    again = judge(wanted)
    assert {one.outcome for one in usual} == {"first"}
    assert not any(one.accused for one in blind)
    assert [one.verdict for one in again] == [one.verdict for one in usual]


def test_another_diagnoser_judges_in_the_shadow_of_todays(bench: tuple[Corpus, Judges]) -> None:
    corpus, judge = bench
    wanted = [case for case in corpus.cases if case.fault == "lock-held"]
    with judges(corpus, 1, "test_corpus_numbers:nobody") as shadow:
        assert [one.said for one in shadow(wanted)] == ["healthy: nobody"] * len(wanted)
    assert {one.outcome for one in judge(wanted)} == {"first"}


def nobody(windows: Sequence[object], baseline: Sequence[object]) -> object:
    """A diagnoser for which all is well."""
    from rankscope.diagnose.solve.judge import diagnose

    return replace(diagnose(windows), status="healthy", suspects=())  # type: ignore[arg-type]


def test_moves_name_the_verdicts_that_change(bench: tuple[Corpus, Judges]) -> None:
    corpus, judge = bench
    wanted = [case for case in corpus.cases if case.fault == "lock-held"]
    floor = next(one for one in constants.all_constants() if one.key == FLOOR)
    least = next(one for one in constants.all_constants() if one.key.endswith("limits:EFFECT_SECONDS"))
    found = list(moved.moves(corpus, wanted, [(floor, 1.0001), (least, 1e6)], judge))
    assert {one.key: len(one.changed) for one in found} == {floor.key: 0, least.key: len(wanted)}
    assert all(one.worse == len(one.changed) for one in found)


def test_the_commands_print_what_changes(
    few_archives: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--archives", str(few_archives), "--only", "lock-held", "--processes", "1"]
    assert main(["left-out", "--by", "job", "--fits", "calibration", *few]) == 0
    assert "all strong faults" in capsys.readouterr().out
    floor = ["move", "--constants", "limits:CLOCK_NOTE_S", "--json", str(tmp_path / "moved.json"), *few]
    assert main([*floor, "--seconds", "1e-9"]) == 0
    assert "2 moves left" in capsys.readouterr().out
    assert main(floor) == 0
    assert "all moves judged" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "moved.json").read_text())["moves"]) == 2


def test_moves_are_not_mixed_with_those_of_other_code(tmp_path: Path) -> None:
    one = moved.Move(FLOOR, 1.3, 0.065, 4, (("a/one", "first, fault", "silent, healthy"),))
    moved.write(tmp_path / "moved.json", "these", [one])
    assert moved.read(tmp_path / "moved.json", "these") == [one]
    assert moved.read(tmp_path / "none.json", "these") == []
    with pytest.raises(LabError, match="other cases or other code"):
        moved.read(tmp_path / "moved.json", "those")


def test_constants_are_numbers_with_names_in_capitals() -> None:
    source = "A = 0.5\n_B = 1 << 20\nC = 50e-6 / 2\nD = True\nE = 'x'\nF = A * 2\ng = 3\nH = (1, 2)\nI = -4\n"
    found = {one.key: one for one in constants.constants(source, "m")}
    assert {key: one.value for key, one in found.items()} == {"m:A": 0.5, "m:_B": 1 << 20, "m:C": 25e-6, "m:I": -4}
    assert [found[key].whole for key in found] == [False, True, False, True]


@pytest.mark.parametrize(
    ("value", "factor", "expected"), [(3, 1.3, 4), (3, 0.7, 2), (64, 1.3, 83), (64, 0.7, 45), (1, 0.7, 0)]
)
def test_a_whole_number_stays_whole_and_moves(value: int, factor: float, expected: int) -> None:
    assert Constant("m:A", value, True, 1).moved(factor) == expected


def test_every_threshold_of_the_table_is_found() -> None:
    names = [one.key for one in constants.all_constants()]
    assert names[0] == FLOOR
    assert len(names) == len(set(names))
    assert not [name for name in names if ".cli" in name or ".sweep" in name]


def test_what_a_verdict_depends_on_is_found_and_moved_by_its_name() -> None:
    names = [one.key.partition(".diagnose.")[2] for one in constants.of_inference()]
    assert "limits:SCORE_LEAST" in names and "stats.robust:CLIP" in names
    assert not [name for name in names if name.startswith("budgets:")]


class OneThreshold:
    """A diagnoser of one number: accuses where its case's step is so much longer than before."""

    def __init__(self) -> None:
        self.judged: list[tuple[str, float]] = []

    def __call__(self, cases: Sequence[Case], numbers: Overrides | None = None) -> list[Answer]:
        least = (numbers or {}).get("m:LEAST", 0.0)
        self.judged += [(case.name, least) for case in cases]
        return [
            answer(case, verdict("fault", AUGMENT) if longer(case) > least else verdict("healthy")) for case in cases
        ]


def longer(case: Case) -> float:
    assert case.healthy_s and case.during_s
    return case.during_s / case.healthy_s - 1


def largest_innocent(cases: Sequence[Case], judge: object) -> Overrides:
    return {"m:LEAST": max((longer(case) for case in cases if not case.guilty), default=0.0)}


def test_a_later_fit_sees_cases_judged_by_what_the_earlier_one_fitted() -> None:
    judge = OneThreshold()

    def counts(cases: Sequence[Case], judge: Judge) -> Overrides:
        return {"m:ACCUSED": sum(one.accused for one in judge(cases))}

    def nobody_below_one(cases: Sequence[Case], judge: Judge) -> Overrides:
        return {"m:LEAST": 1.0}

    left_out.left_out(
        [CASE, replace(CASE, name="two", fault="b")], judge, [nobody_below_one, counts], lambda case: case.fault
    )
    assert ("one", 1.0) in judge.judged
    assert ("one", 0.0) not in judge.judged


class Scores:
    """A diagnoser that accuses where the score, by the name of the case, reaches the threshold."""

    def __call__(self, cases: Sequence[Case], numbers: Overrides | None = None) -> list[Answer]:
        least = (numbers or {})["rankscope.diagnose.limits:SCORE_LEAST"]
        accused = [float(case.name) >= least for case in cases]
        said = [verdict("fault", AUGMENT) if each else verdict("healthy") for each in accused]
        return [answer(case, text) for case, text in zip(cases, said, strict=True)]


@pytest.mark.parametrize(
    ("innocent", "guilty", "expected"),
    [
        ([1.0], [30.0, 40.0], 6.4),  # any would do: the middle
        ([8.0], [30.0, 14.0], 12.7),  # above the innocent, below the guilty
        ([30.0], [40.0], 25.5),  # whatever it is, somebody innocent is accused: the highest
    ],
)
def test_the_score_is_fitted_between_the_innocent_and_the_guilty(
    innocent: list[float], guilty: list[float], expected: float
) -> None:
    cases = [replace(CASE, name=str(score), truth=HEALTHY) for score in innocent]
    cases += [replace(CASE, name=str(score)) for score in guilty]
    assert fits.score_threshold(cases, Scores()) == {"rankscope.diagnose.limits:SCORE_LEAST": expected}


def test_what_is_left_out_is_judged_with_what_was_fitted_without_it() -> None:
    quiet = replace(CASE, name="quiet", fault="none", truth=HEALTHY, during_s=0.16)
    noisy = replace(CASE, name="noisy", fault="noisy", truth=HEALTHY, during_s=0.2)
    judge = OneThreshold()
    together, apart, found = left_out.left_out([CASE, quiet, noisy], judge, [largest_innocent], lambda case: case.fault)
    assert tables.innocent_accused(together) == []
    assert [case.name for case, _ in tables.innocent_accused(apart)] == ["noisy"]
    assert len(judge.judged) == len(set(judge.judged))
    lines = list(left_out.table(together, apart, found, lambda case: case.fault))
    assert "m:LEAST: 0.25 on all, 0 to 0.25 without a group" in lines
    assert next(line.split() for line in lines if line.startswith("noisy")) == ["noisy", "1", "1", "0", "100.0"]
