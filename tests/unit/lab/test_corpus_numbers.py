"""The diagnoser's numbers can be moved, and the corpus says what that changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from corpuskit import moved
from corpuskit.archive import Corpus, archives, opened
from corpuskit.cli import main
from corpuskit.judging import Judges, judges, replaced
from corpuskit.moved import Constant

FLOOR = "rankscope.diagnose.limits:EFFECT_SHARE"


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
    blind = judge(wanted, {FLOOR: 10.0})
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
    from rankscope.diagnose.infer.solve.judge import diagnose

    return replace(diagnose(windows), status="healthy", suspects=())  # type: ignore[arg-type]


def test_moves_name_the_verdicts_that_change(bench: tuple[Corpus, Judges]) -> None:
    corpus, judge = bench
    wanted = [case for case in corpus.cases if case.fault == "lock-held"]
    least = "rankscope.diagnose.limits:EFFECT_SECONDS"
    found = {one.key: one for one in moved.moves(corpus, wanted, [(FLOOR, 0.0500001), (least, 1e6)], judge)}
    assert {key: len(one.changed) for key, one in found.items()} == {FLOOR: 0, least: len(wanted)}
    assert found[least].worse == len(wanted)
    assert found[least].changed[0][1].startswith("first, fault: ")


def test_the_commands_print_what_changes(few_archives: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--archives", str(few_archives), "--only", "lock-held", "--processes", "1"]
    assert main(["move", "--constants", "limits:CLOCK_NOTE_S", "--by", "0.5", *few]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said] == ["constant", "limits:CLOCK_NOTE_S", "limits:CLOCK_NOTE_S"]
    assert main(["calibrate", *few]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(" of them right") and second.startswith("POINTS = ((0.0, ")


def test_constants_are_numbers_with_names_in_capitals() -> None:
    source = "A = 0.5\n_B = 1 << 20\nC = 50e-6 / 2\nD = True\nE = 'x'\nF = A * 2\ng = 3\nH = (1, 2)\nI = -4\n"
    found = {one.key: one for one in moved.constants(source, "m")}
    assert {key: one.value for key, one in found.items()} == {"m:A": 0.5, "m:_B": 1 << 20, "m:C": 25e-6, "m:I": -4}
    assert [found[key].whole for key in found] == [False, True, False, True]


@pytest.mark.parametrize(
    ("value", "factor", "expected"), [(3, 1.3, 4), (3, 0.7, 2), (64, 1.3, 83), (64, 0.7, 45), (1, 0.7, 0)]
)
def test_a_whole_number_stays_whole_and_moves(value: int, factor: float, expected: int) -> None:
    assert Constant("m:A", value, True).moved(factor) == expected


def test_every_threshold_of_the_table_is_found() -> None:
    names = [one.key for one in moved.all_constants()]
    assert names[0] == FLOOR
    assert len(names) == len(set(names))
    assert not [name for name in names if ".cli" in name or ".sweep" in name]
