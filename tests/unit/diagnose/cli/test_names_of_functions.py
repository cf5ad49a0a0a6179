"""The user's own function is named: not what it holds, not the library below it; and who calls it is told."""

from __future__ import annotations

import time

import builders
import pytest
from builders import ROOT, TRAIN, Job, Work, build, columns

from rankscope.diagnose.infer.fleet.enclosing import holder_name, holder_of
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Suspect
from rankscope.observer.window.folder import Window
from rankscope.observer.window.stacks import StackFrame
from rankscope.observer.window.users_code import users_code

CROP = StackFrame("random_crop", TRAIN, 12)
BUSY = StackFrame("busy", TRAIN, 3)
PACKAGE = "/opt/venv/lib/python3.11/site-packages/crops/train.py"
RE = "/usr/lib/python3.11/re/__init__.py"


def suspect_of(windows: list[Window]) -> Suspect:
    verdict = diagnose(windows)
    assert verdict.suspects, (verdict.status, verdict.notes)
    return verdict.suspects[0]


def named(suspect: Suspect) -> tuple[str, str, int]:
    assert suspect.function is not None
    return suspect.function.name, suspect.function.file, suspect.function.line


def told(suspect: Suspect, measure: str) -> str:
    return "; ".join(str(each.value) for each in suspect.evidence if measure in each.measure)


@pytest.mark.parametrize("name", ["busy.<locals>.<genexpr>", "busy.<locals>.<lambda>", "<genexpr>", "<listcomp>"])
def test_what_has_no_name_belongs_to_the_function_that_holds_it(name: str) -> None:
    # GIVEN a rank that spends its time in a generator of a function, by the names of CPython 3.11 and before
    work = Work("python", name, 0, 5, frames=(CROP, BUSY))

    # WHEN it is diagnosed
    suspect = suspect_of(build(Job(extra={3: [(work, 0.08)]})))

    # THEN the function is named by its own first line, with who calls it
    assert suspect.ranks == (3,)
    assert named(suspect) == ("busy", TRAIN, 3)
    assert told(suspect, "called by") == "train → random_crop → busy"


def test_a_lambda_that_a_library_calls_is_its_holders() -> None:
    name = "random_crop.<locals>.<lambda>"
    work = Work("python", name, 0, 14, frames=(CROP, StackFrame("sub", RE, 186)))
    assert named(suspect_of(build(Job(extra={3: [(work, 0.08)]})))) == ("random_crop", TRAIN, 12)


def test_a_helper_that_is_fast_elsewhere_is_its_callers() -> None:
    # GIVEN a helper that all ranks call from one function, and one rank from another for long
    usual = Work("python", "busy", 0, 3, frames=(StackFrame("normalise", TRAIN, 30),))
    work = Work("python", "busy", 0, 3, frames=(CROP,))
    extra = {rank: [(usual, 0.01)] for rank in range(8)}
    extra[3] = [(usual, 0.01), (work, 0.08)]

    # WHEN it is diagnosed
    suspect = suspect_of(build(Job(extra=extra)))

    # THEN the function is named that calls it for so long
    assert named(suspect) == ("random_crop", TRAIN, 12)
    assert "busy" in told(suspect, "deepest frame")


def test_a_helper_that_is_slow_wherever_it_is_called_is_named_itself() -> None:
    callers = [StackFrame("normalise", TRAIN, 30), CROP]
    extra = {rank: [(Work("python", "busy", 0, 3, frames=(each,)), 0.005) for each in callers] for rank in range(8)}
    extra[3] = [(Work("python", "busy", 0, 3, frames=(each,)), 0.05) for each in callers]
    assert named(suspect_of(build(Job(extra=extra)))) == ("busy", TRAIN, 3)


def test_a_library_function_is_detail_even_below_a_function_in_which_all_spend_time() -> None:
    # GIVEN a library function that only one rank calls, from the training loop itself
    work = Work("python", "sub", 0, 186, RE)

    # WHEN it is diagnosed
    suspect = suspect_of(build(Job(extra={3: [(work, 0.08)]})))

    # THEN the user's function is named, and the seconds told are those of the library function
    assert named(suspect) == ("train", TRAIN, 98)
    assert "sub" in told(suspect, "deepest frame")
    assert any(each.measure == "time in sub, called from train" and each.expected == 0 for each in suspect.evidence)


def test_the_functions_of_a_job_that_is_installed_as_a_package_are_the_users() -> None:
    # GIVEN a job of which all lies in site-packages, and a library function below the slow one
    work = Work("python", "sub", 0, 186, RE, frames=(CROP,))
    windows = []
    for window in build(Job(extra={3: [(work, 0.08)]})):
        moved = window
        for table in ("stacks", "patterns"):
            rows = [row | {"file": row["file"].replace(TRAIN, PACKAGE)} for row in getattr(window, table).to_pylist()]
            moved = columns(moved, table, rows)
        windows.append(moved)

    # WHEN it is diagnosed
    suspect = suspect_of(windows)

    # THEN the job's function is named
    assert named(suspect) == ("random_crop", PACKAGE, 12)


def test_what_starts_a_program_is_not_what_it_starts() -> None:
    main = StackFrame("main", PACKAGE, 140)
    started = users_code([((StackFrame("<module>", "/opt/venv/bin/crops", 1), main), 1.0)])
    assert started.has(PACKAGE) and not started.has(f"{builders.TORCH}/nn/modules/linear.py")
    script = users_code([((*ROOT, main), 1.0)])
    assert script.has(TRAIN) and not script.has(PACKAGE)


@pytest.mark.parametrize(
    ("frame", "callers", "holder"),
    [
        (StackFrame("<lambda>", TRAIN, 9), ROOT[:1], StackFrame("<lambda>", TRAIN, 9)),
        (StackFrame("<genexpr>", TRAIN, 9), ROOT[:1], ROOT[0]),
        (StackFrame("<genexpr>", "/srv/other.py", 9), ROOT, StackFrame("<genexpr>", "/srv/other.py", 9)),
        (StackFrame("f.<locals>.<genexpr>", TRAIN, 9), ROOT, StackFrame("f", TRAIN, 9)),
        (StackFrame("f.<locals>.<genexpr>.<lambda>", TRAIN, 9), (), StackFrame("f", TRAIN, 7)),
        (StackFrame("f.<locals>.g", TRAIN, 9), ROOT, StackFrame("f.<locals>.g", TRAIN, 9)),
    ],
)
def test_holders(frame: StackFrame, callers: tuple[StackFrame, ...], holder: StackFrame) -> None:
    lines = {} if callers else {("f", TRAIN): 7}
    assert holder_of(frame, callers, lines) == holder


@pytest.mark.parametrize(
    ("name", "holder"),
    [("<genexpr>", ""), (".<genexpr>", ""), ("f.<genexpr>", "f"), ("f.<locals>.g<lambda>", "f"), ("<locals>.<lambda>", "<locals>"),
     ("f.<locals>.<locals>.<lambda>", "f.<locals>"), ("f", "f")],
)  # fmt: skip
def test_holders_by_qualified_names(name: str, holder: str) -> None:
    assert holder_name(name) == holder


def test_a_name_of_nothing_but_lambdas_is_read_once() -> None:
    began = time.process_time()
    assert holder_name("f" + ".<lambda>" * 120_000) == "f"
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("native", "state"),
    [("sgemm_kernel", "computing, mostly in sgemm_kernel"), ("_PyEval_EvalFrameDefault", "computing")],
)
def test_the_native_function_in_which_the_time_goes_is_told(native: str, state: str) -> None:
    work = Work("python", "random_crop", 0, 12, native=native)
    suspect = suspect_of(build(Job(extra={3: [(work, 0.08)]})))
    assert named(suspect) == ("random_crop", TRAIN, 12)
    assert told(suspect, "state in it") == state
