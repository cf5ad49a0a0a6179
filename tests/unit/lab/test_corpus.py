"""Kept cases of every lab become cases of one corpus, are counted, and are held to what was good before."""

from __future__ import annotations

import json
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from builders import Job, build, columns
from labcases import AUGMENT, FOREIGN, HEALTHY, PYTHON, UNEVEN, result, suspect, verdict

from corpuskit import archive, causes, files, judging, tables
from corpuskit.case import Case, Place
from corpuskit.cli import main
from corpuskit.from_labs import Recording, cases, doubt, unsteady, usual_s
from corpuskit.judging import Answer, answer
from corpuskit.paths import Replacements
from corpuskit.truth import Truths
from labkit.machine.shell import LabError
from labkit.result_file import plain
from rankscope.diagnose.face.cli.report import report
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.solve.notes.rhythm import LATER_PART
from rankscope.observer.window.folder import find_windows, read_window

RECORDED = Path(__file__).parents[2] / "data" / "window-1"
SLOW = Case(
    "a", "python-slow-strong-1", "faults", "lab", "python-slow", "strong", 1, 8, 4, PYTHON, 0.16, 0.24, True, "", "", ()
)
HEALTHY_CASE = replace(SLOW, name="none-strong-1", fault="none", truth=HEALTHY, during_s=0.16)


def kept_by_the_lab_of_faults(folder: Path) -> Path:
    """As `scripts/lab --keep` leaves it, with a baseline."""
    place = folder / "python-slow-strong-1"
    shutil.copytree(RECORDED / "gil-hog", place / "windows/case/gil-hog")
    shutil.copytree(RECORDED / "cpu-hog", place / "windows/baseline/cpu-hog")
    (place / "result.json").write_text(json.dumps(plain(result("python-slow", PYTHON, verdict("healthy")))))
    return folder


def kept_by_the_lab_of_jobs(folder: Path, verdict_text: str = "", **measured: float) -> Path:
    place = folder / "ddp-slow-python-1"
    shutil.copytree(RECORDED / "gil-hog", place / "window/gil-hog")
    truth = plain(replace(PYTHON, function="random_crop"))
    found = {
        "case": {"row": "ddp", "fault": "slow-python", "seed": 1, "window_s": 10.0}, "outcome": "first", "said": "",
        "truth": truth, "ranks": None, "before_s": 0.05, "job_s": 0.055, "verdict": verdict_text, **measured,
    }  # fmt: skip
    (place / "result.json").write_text(json.dumps(found))
    for rank in range(2):
        # Every second step takes twice as long: the median does not see it, the mean does.
        steps = [(1_700_000_000 + 0.075 * at, 0.05 * (1 + at % 2)) for at in range(400)]
        lines = [f"{rank} {at} {wall} {wall} {seconds} {40 + rank} 7" for at, (wall, seconds) in enumerate(steps)]
        (place / f"rank{rank}.lines").write_text("\n".join([*lines, ""]))
    return folder


def test_a_kept_case_comes_back_from_the_archive_with_its_windows(tmp_path: Path) -> None:
    kept = kept_by_the_lab_of_faults(tmp_path / "lab-out")
    found = list(cases(kept, Recording("a", quiet=False, code="c0de"), tmp_path / "new", Replacements(())))
    archive.pack(tmp_path / "a.tar.xz", found, tmp_path / "new")
    with archive.opened([tmp_path / "a.tar.xz"]) as corpus:
        assert archive.cases_in(tmp_path / "a.tar.xz") == list(corpus.cases)
        (case,) = corpus.cases
        assert case == found[0]
        assert (case.key, case.kind, case.job) == ("a/python-slow-strong-1", "faults/python-slow", "lab")
        assert (case.truth, case.quiet, case.code) == (PYTHON, False, "c0de")
        assert case.lost_s == pytest.approx(0.08)
        (window,), (baseline,) = corpus.windows(case), corpus.baseline(case)
        assert read_window(window) == read_window(RECORDED / "gil-hog")
        assert read_window(baseline) == read_window(RECORDED / "cpu-hog")


def test_the_lost_time_of_an_ordinary_job_is_in_its_own_lines(tmp_path: Path) -> None:
    text = json.dumps({**json.loads(verdict("fault")), "window": {
        "start": "2023-11-14T22:13:22Z", "end": "2023-11-14T22:13:32Z"}})  # fmt: skip
    kept = kept_by_the_lab_of_jobs(tmp_path / "lab-out", text)
    (case,) = cases(kept, Recording("a", quiet=True, code="c0de"), tmp_path / "new", Replacements(()))
    assert (case.kind, case.job, case.dose) == ("jobs/slow-python", "ddp", "strong")
    assert case.lost_s == pytest.approx(0.025, rel=0.05)
    assert case.place is not None
    assert (case.place.file, case.place.first < case.place.last) == ("ddp.py", True)
    assert case.sides_s == ()


@pytest.mark.parametrize(("after_s", "lost_s"), [(0.062, 0.014), (0.06 / 1.04, 0.0162), (0.064, None)])
def test_a_job_that_drifts_is_compared_with_what_it_was_before_and_after(
    tmp_path: Path, after_s: float, lost_s: float | None
) -> None:
    # GIVEN steps of 75 ms in the window, 60 before, and others after
    text = json.dumps({**json.loads(verdict("fault")), "window": {
        "start": "2023-11-14T22:13:22Z", "end": "2023-11-14T22:13:32Z"}})  # fmt: skip
    kept = kept_by_the_lab_of_jobs(tmp_path / "lab-out", text, healthy_before_s=0.06, healthy_after_s=after_s)
    (case,) = cases(kept, Recording("a", quiet=True, code="c0de"), tmp_path / "new", Replacements(()))
    # THEN the lost time is told by both; where they are more than 5 % apart there is none
    assert (case.sides_s, case.two_sided, case.dose) == ((0.06, after_s), True, "weak")
    assert case.lost_s == pytest.approx(lost_s, abs=0.0006) if lost_s else case.lost_s is None
    assert case.unsteady == ("" if lost_s else "its step was 60 ms before and 64 ms after")
    # AND the archive keeps both
    archive.pack(tmp_path / "a.tar.xz", [case], tmp_path / "new")
    with archive.opened([tmp_path / "a.tar.xz"]) as corpus:
        assert list(corpus.cases) == [case]


def test_paths_of_the_machine_that_recorded_are_replaced_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = kept_by_the_lab_of_faults(tmp_path / "lab-out")
    manifest = kept / "python-slow-strong-1/windows/case/gil-hog/window.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**content, "notes": ["no source of /home/me/train/job.py"]}))
    target = tmp_path / "a.tar.xz"
    assert main(["add", str(target), str(kept), "--code", "c0de"]) == 64
    assert "/home" in capsys.readouterr().err
    assert not target.exists()
    assert main(["add", str(target), str(kept), "--code", "c0de", "--replace", "/home/me=/srv"]) == 0
    with archive.opened([target]) as corpus:
        assert read_window(corpus.windows(corpus.cases[0])[0]).manifest.notes == ("no source of /srv/train/job.py",)


def test_adding_twice_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = kept_by_the_lab_of_faults(tmp_path / "lab-out")
    target = tmp_path / "a.tar.xz"
    for _ in range(2):
        assert main(["add", str(target), str(kept), "--code", "c0de"]) == 0
        before = target.read_bytes()
    assert target.read_bytes() == before
    assert "1 cases (1 before)" in capsys.readouterr().out


def test_a_case_is_unpacked_as_windows_that_can_be_diagnosed(tmp_path: Path) -> None:
    kept = kept_by_the_lab_of_faults(tmp_path / "lab-out")
    assert main(["add", str(tmp_path / "a.tar.xz"), str(kept), "--code", "c0de"]) == 0
    assert main(["get", "slow-strong", str(tmp_path / "got"), "--archives", str(tmp_path)]) == 0
    place = tmp_path / "got/a/python-slow-strong-1/windows"
    assert [read_window(one).manifest for one in find_windows(place / "case")] == [
        read_window(RECORDED / "gil-hog").manifest
    ]
    assert len(find_windows(place / "baseline")) == 1
    assert main(["get", "no-such-case", str(tmp_path / "got"), "--archives", str(tmp_path)]) == 64


def test_texts_for_a_stranger_are_what_a_terminal_shows_and_tell_nothing_of_the_truth(tmp_path: Path) -> None:
    kept = kept_by_the_lab_of_faults(tmp_path / "lab-out")
    assert main(["add", str(tmp_path / "a.tar.xz"), str(kept), "--code", "c0de"]) == 0
    assert main(["texts", str(tmp_path / "read"), "--seed", "7", "--archives", str(tmp_path)]) == 0
    (text,) = (tmp_path / "read").iterdir()
    shown = diagnose([read_window(RECORDED / "gil-hog")], [read_window(RECORDED / "cpu-hog")])
    assert (text.name, text.read_text().splitlines()) == ("01.txt", list(report(shown)))
    assert json.loads((tmp_path / "read-truth.json").read_text())["01"]["case"] == "a/python-slow-strong-1"
    # or of the tables that were recorded, earlier windows among them
    assert main(["texts", str(tmp_path / "read"), "--seed", "7", "--archives", str(tmp_path), "--tables"]) == 0
    said = text.read_text()
    for line in (
        "steps: rank 1: ",
        "patterns: rank 0: training python ",
        "counters: ",
        "flows: rank 0",
        "EARLIER WINDOW 1",
    ):
        assert line in said
    assert shown.suspects[0].says not in said


def test_what_is_no_archive_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "a.tar.xz").write_text("no")
    with pytest.raises(LabError, match="no archive"):
        archive.cases_in(tmp_path / "a.tar.xz")
    with pytest.raises(LabError, match="no archive"), archive.opened([tmp_path / "a.tar.xz"]):
        pass


@pytest.mark.parametrize(
    ("case", "usual", "doubtful"),
    [
        (SLOW, None, False),
        (replace(SLOW, during_s=0.165), None, True),  # the fault did not reach the job
        (replace(SLOW, during_s=0.165), 0.12, False),  # it did: other work ran beside the job before
        (replace(HEALTHY_CASE, during_s=0.2), None, True),  # somebody else slowed the healthy job
        (HEALTHY_CASE, 0.16, False),
    ],
)
def test_a_truth_that_the_jobs_own_steps_contradict_is_doubtful(
    case: Case, usual: float | None, doubtful: bool
) -> None:
    assert bool(doubt(case, usual)) == doubtful


def test_a_job_that_was_slow_before_the_fault_does_not_tell_what_was_lost() -> None:
    assert unsteady(SLOW, 0.15) == ""
    slow_before = replace(SLOW, healthy_s=0.22, during_s=0.3)
    assert unsteady(slow_before, 0.16) == "its step before was 220 ms, of the same job at other times 160 ms"
    assert replace(slow_before, unsteady="it was").lost_s is None


def test_the_usual_step_of_a_job_is_told_by_the_cases_that_it_served() -> None:
    case = replace(SLOW, lab="jobs", job="ddp")
    served = [replace(case, healthy_s=healthy_s) for healthy_s in (0.11, 0.1, 0.2)]
    assert usual_s(case, [*served, replace(case, seed=2, healthy_s=0.01)]) == 0.1
    assert usual_s(case, served[:2]) is None
    assert usual_s(SLOW, [replace(SLOW, healthy_s=0.1)] * 3) is None
    assert usual_s(replace(case, sides_s=(0.2, 0.21)), served) is None  # it is known of that very time


def judged(case: Case, text: str) -> tuple[Case, Answer]:
    return case, answer(case, text)


def points(case: Case, found: Answer, *others: tuple[Case, Answer]) -> float | None:
    return Truths([(case, found), *others]).points(case, found)


def test_lost_time_is_compared_in_points_of_the_step_where_the_culprit_comes_first() -> None:
    sure = verdict("fault", {**AUGMENT, "lost_seconds_per_step": 0.068})
    assert points(*judged(SLOW, sure)) == pytest.approx(-5.0)
    assert points(*judged(SLOW, verdict("fault", FOREIGN))) is None
    assert points(*judged(replace(SLOW, doubt="it may be"), sure)) is None
    beside = suspect("workload", "stage-imbalance", (3,), lost_seconds_per_step=0.1)
    both = verdict("fault", {**AUGMENT, "lost_seconds_per_step": 0.068}, beside)
    assert points(*judged(SLOW, both)) == pytest.approx(-5.0)


def test_lost_time_is_of_the_steps_in_the_window_however_many_are_one_of_the_jobs_own() -> None:
    # GIVEN a step of 160 ms that became one of 240
    case, answer = judged(SLOW, verdict("fault", {**AUGMENT, "lost_seconds_per_step": 0.1}))
    assert points(case, replace(answer, step_s=0.26)) == pytest.approx(0.0)
    assert points(case, replace(answer, step_s=0.03, lost_s=0.01)) == pytest.approx(0.0)


def test_where_only_the_later_part_of_the_window_was_judged_the_truth_is_of_its_steps() -> None:
    # GIVEN a healthy step of 160 ms, 200 in the whole window, 240 in the part that is judged
    told = {**AUGMENT, "lost_seconds_per_step": 0.08, "lost_percent": 100 * 0.08 / 0.24}
    whole, part = verdict("fault", told), json.loads(verdict("fault", told))
    part["notes"] = [f"steps became longer in the window, from 0.160 s to 0.240 s: {LATER_PART}"]
    found = {text: answer(SLOW, text, 0.0, 0.2, 0.2) for text in (whole, json.dumps(part))}
    assert [points(SLOW, each) for each in found.values()] == pytest.approx([100 * 0.04 / 0.2, 0.0])


ORDINARY = replace(SLOW, lab="jobs", job="ddp")
ALONE = replace(ORDINARY, name="ddp-quiet-1", fault="quiet", truth=HEALTHY, healthy_s=0.15, during_s=0.165)


def windows(case: Case, step_s: float, median_s: float) -> tuple[Case, Answer]:
    return case, Answer(case.key, "first", "", step_s=step_s, median_s=median_s)


def test_a_healthy_step_that_is_a_median_is_made_a_mean_by_windows_in_which_nothing_was_done() -> None:
    # GIVEN a job of which every tenth step is twice as long: its mean is 1.1 times its median
    alone = windows(ALONE, 0.165, 0.15)
    case, found = judged(ORDINARY, verdict("fault", {**AUGMENT, "lost_seconds_per_step": 0.064}))
    # THEN of a mean of 240 ms 176 were there without the fault
    assert points(case, replace(found, step_s=0.24), alone) == pytest.approx(0.0, abs=1e-6)
    # AND a job that was never left alone is taken to be as the others are; a mean stays what it is
    assert points(replace(case, job="other"), replace(found, step_s=0.24), alone) == pytest.approx(0.0, abs=1e-6)
    two_sided = replace(case, sides_s=(0.16, 0.16))
    assert points(two_sided, replace(found, step_s=0.24), alone) == pytest.approx(-100 * 0.016 / 0.24)


@pytest.mark.parametrize(
    ("others", "doubt"),
    [
        ([], "nothing tells how the job's healthy steps drift"),
        ([windows(replace(ALONE, archive="b"), 0.15, 0.15)], "nothing tells how the job's healthy steps drift"),
        ([windows(ALONE, 0.151, 0.151)], ""),  # nothing was done, and steps became 0.7 % longer: a median of 0.4 points of the slow step
        ([windows(ALONE, 0.155, 0.155)], "the job's healthy step is not known to 5 points"),  # 3 %: one in twenty is 6 points off
        ([windows(replace(ORDINARY, name=name, healthy_s=0.2), 0.24, 0.24) for name in "xy"],
         "the job's healthy step is not known to 5 points"),  # 160 ms, 200 and 200 again
        ([windows(replace(ORDINARY, name=name, healthy_s=0.162), 0.24, 0.24) for name in "xy"], ""),  # 1.2 %, and none
    ],
)  # fmt: skip
def test_a_truth_that_drifts_by_more_than_the_tolerance_is_not_known(
    others: list[tuple[Case, Answer]], doubt: str
) -> None:
    found = windows(ORDINARY, 0.24, 0.24)
    lost = Truths([found, *others]).lost(*found)
    assert lost is not None
    assert lost.doubt == doubt


def test_whether_the_truth_is_known_depends_on_no_verdict() -> None:
    others = [windows(ALONE, 0.17, 0.17), windows(replace(ORDINARY, name="x", healthy_s=0.2), 0.24, 0.24)]
    case, right = judged(ORDINARY, verdict("fault", AUGMENT))
    lost = [Truths([(case, each), *others]).lost(case, each) for each in (
        replace(right, step_s=0.24), replace(right, step_s=0.24, lost_s=0.0, right=False, outcome="silent"),
    )]  # fmt: skip
    assert lost[0] == lost[1]


def test_all_lost_times_are_counted_and_those_of_which_the_truth_is_known() -> None:
    sure = verdict("fault", {**AUGMENT, "lost_seconds_per_step": 0.08})
    far = replace(ORDINARY, name="far", job="other")
    shown = list(tables.lost_table([judged(far, sure), judged(ORDINARY, sure), windows(ALONE, 0.151, 0.151)]))
    # THEN what is not known stays in, and is told apart with its reason
    assert [line.split()[1] for line in shown if line.startswith("all")] == ["2"]
    assert [line.split()[-3] for line in shown if line.startswith("all")] == ["1"]
    assert "  not known: 1, nothing tells how the job's healthy steps drift" in shown
    # AND how it is where the truth is known better: 1.3 points are more than a quarter of 5
    assert [line for line in shown if line.startswith("  known to")] == [
        "  known to 2.5 points: 1, of them 100 % within 5"
    ]


def test_the_healthy_step_of_a_case_is_that_of_all_whose_jobs_are_alike() -> None:
    # GIVEN five faults of one run in the same job, which measure its healthy step each anew, and one in a job with loader workers
    faults, healthy_s = (
        ("python-slow", "gc-storm", "cpu-hog", "reniced", "page-faults"),
        (0.15, 0.17, 0.16, 0.152, 0.168),
    )
    alike = [
        replace(SLOW, name=f"{fault}-strong-1", fault=fault, healthy_s=each)
        for fault, each in zip(faults, healthy_s, strict=True)
    ]
    other = replace(SLOW, name="few-workers-strong-1", fault="few-workers", healthy_s=0.12)
    truths = Truths([windows(case, 0.24, 0.24) for case in (*alike, other)])
    # THEN the truth of all of them is from the mean, known as well as five measurements tell it
    lost = [truths.lost(*windows(case, 0.24, 0.24)) for case in alike]
    assert [one.seconds for one in lost if one] == pytest.approx([0.08] * 5)
    spread = statistics.stdev(healthy_s) / 0.16
    assert lost[0] is not None and lost[0].error == pytest.approx(100 * 1.96 * spread / 5**0.5 * 0.16 / 0.24)
    # AND of a job of its own from its own, known as well as one does
    alone = truths.lost(*windows(other, 0.24, 0.24))
    assert alone is not None and alone.seconds == pytest.approx(0.12)
    assert alone.error == pytest.approx(100 * 1.96 * spread * 0.12 / 0.24)


@pytest.mark.parametrize(("ratios", "observed"), [((1.02, 1.04, 1.06), 1.04), ((1.02, 1.06), 1.0)])
def test_what_observing_costs_is_no_faults(ratios: tuple[float, ...], observed: float) -> None:
    # GIVEN windows of the healthy job, from before a fault, in which steps are longer than those that nobody observes
    names = ("python-slow-strong-1", "gc-storm-strong-1", "cpu-hog-strong-1")
    cases = [replace(SLOW, name=name, fault=name.removesuffix("-strong-1"), healthy_s=0.16) for name in names]
    judged_cases = [windows(case, 0.24, 0.24) for case in cases]
    for at, ratio in enumerate(ratios):
        case, found = judged_cases[at]
        judged_cases[at] = replace(case, baseline=(f"w{at}",)), replace(found, earlier_s=0.16 * ratio)
    truths = Truths([*judged_cases, judged_cases[0]])  # AND one of these serves two cases
    assert truths.observed == ({8: [pytest.approx(1.04)]} if observed > 1 else {})
    # THEN with three of them all healthy steps are as long as they say, known as well as they agree
    lost = truths.lost(*judged_cases[2])
    assert lost is not None and lost.seconds == pytest.approx(0.24 - 0.16 * observed)
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if observed > 1 else 0.0
    assert lost.error == pytest.approx(100 * 1.96 * error * 0.16 * observed / 0.24)


def test_programs_and_runs_are_no_alike_jobs() -> None:
    names = ("python-slow-strong-1", "gc-storm-strong-1", "cpu-hog-strong-1")
    mine = [replace(SLOW, name=name, fault=name.removesuffix("-strong-1"), healthy_s=0.16) for name in names]
    others = [replace(one, name=f"{one.name}-speech", healthy_s=0.3) for one in mine]
    others += [replace(one, archive="later", healthy_s=0.4) for one in mine]
    truths = Truths([windows(case, 0.24, 0.24) for case in (*mine, *others)])
    found = truths.lost(*windows(mine[0], 0.24, 0.24))
    assert found is not None and found.seconds == pytest.approx(0.08)


def test_a_function_of_the_right_name_must_stand_on_its_lines() -> None:
    case = replace(SLOW, place=Place("job.py", 10, 20))
    elsewhere, there = (
        {**AUGMENT, "function": {"kind": "python", "name": "augment", "file": "/a/job.py", "line": line}}
        for line in (9, 12)
    )
    assert not judged(case, verdict("fault", elsewhere))[1].right
    assert judged(case, verdict("fault", there))[1].right


def test_accusations_in_healthy_and_imbalanced_windows_are_counted() -> None:
    uneven = replace(SLOW, truth=UNEVEN)
    found = [
        judged(HEALTHY_CASE, verdict("fault", FOREIGN)), judged(HEALTHY_CASE, verdict("unknown")),
        judged(uneven, verdict("fault", AUGMENT)), judged(uneven, verdict("imbalance", FOREIGN)),
        judged(SLOW, verdict("fault", FOREIGN)),
    ]  # fmt: skip
    assert [case.truth.status for case, _ in tables.innocent_accused(found)] == ["healthy", "imbalance"]


def test_of_a_case_beside_other_work_what_is_left_by_design_is_no_fault() -> None:
    case = replace(SLOW, quiet=False, truth=UNEVEN)
    stranger, uneven = suspect("cpu", "contended", (1,)), suspect("workload", "stage-imbalance", (3,))
    found = judged(case, verdict("fault", stranger, uneven))[1]
    assert found.said.startswith("imbalance") and not found.accused
    assert judged(case, verdict("fault", stranger))[1].said.startswith("healthy")
    assert judged(case, verdict("fault", stranger, AUGMENT))[1].said.startswith("fault")


def test_calibration_counts_per_tenth_how_many_were_right() -> None:
    found = [judged(SLOW, verdict("fault", {**AUGMENT, "confidence": sure})) for sure in (0.91, 0.99, 1.0)]
    found += [judged(SLOW, verdict("fault", {**FOREIGN, "confidence": 0.95})), judged(HEALTHY_CASE, verdict("healthy"))]
    assert tables.calibration(found) == [tables.Tenth(0.9, 4, pytest.approx(0.9625), 0.75)]


def test_a_kind_that_is_judged_worse_than_before_is_named(tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    good = [judged(SLOW, verdict("fault", AUGMENT)), judged(HEALTHY_CASE, verdict("healthy"))]
    files.hold(good, table)
    assert list(files.fallen(good, table)) == []
    assert list(files.fallen([*good, judged(replace(SLOW, fault="new"), verdict("healthy"))], table)) == []
    worse = [judged(SLOW, verdict("fault", FOREIGN)), judged(HEALTHY_CASE, verdict("fault", FOREIGN))]
    assert list(files.fallen(worse, table)) == [
        "faults/none, strong: first 1 → 0",
        "faults/none, strong: wrong 0 → 1",
        "faults/python-slow, strong: first 1 → 0",
        "faults/python-slow, strong: wrong 0 → 1",
        "healthy and imbalanced windows accused: 0 → 1",
    ]
    assert "faults/none, strong: cases 1 → 0" in list(files.fallen(good[:1], table))


def test_how_often_each_row_was_named_first_and_right_is_counted(tmp_path: Path) -> None:
    augment, foreign = {**AUGMENT, "scope": "rank"}, {**FOREIGN, "component": "gpu", "scope": "rank"}
    uneven = {**foreign, "component": "workload", "cause": "data-imbalance"}
    found = [
        judged(SLOW, verdict("fault", augment)), judged(SLOW, verdict("fault", augment, foreign)),
        judged(SLOW, verdict("fault", foreign)), judged(HEALTHY_CASE, verdict("healthy")),
        judged(replace(SLOW, truth=UNEVEN), verdict("imbalance", uneven)),
        judged(SLOW, verdict("imbalance", uneven)),
    ]  # fmt: skip
    causes.write(found, tmp_path / "counted.json")
    content = json.loads((tmp_path / "counted.json").read_text())
    assert content["cases"] == len(found)
    assert [(row["component"], row["right"], row["wrong"]) for row in content["causes"]] == [
        ("gpu", 0, 1), ("python", 2, 0), ("workload", 1, 1),
    ]  # fmt: skip


def test_two_judgings_are_compared_case_by_case(tmp_path: Path) -> None:
    other = replace(SLOW, name="other")
    files.write(tmp_path / "a", [judged(SLOW, verdict("fault", AUGMENT)), judged(other, verdict("healthy"))])
    files.write(tmp_path / "b", [judged(SLOW, verdict("healthy")), judged(other, verdict("fault", AUGMENT))])
    before, after = files.read(tmp_path / "a"), files.read(tmp_path / "b")
    lines, good = files.compared(before, after)
    assert not good
    assert [line.split(":")[0] for line in lines] == ["worse", "better", "2 cases in both"]
    assert files.compared(before, before) == (["2 cases in both: 0 better, 0 worse"], True)


def test_a_rank_of_which_several_steps_are_told_for_one_is_no_measure_of_the_steps() -> None:
    # GIVEN a window in which one rank shows four steps for each of the job's
    (window,) = build(Job(ranks=3))
    rows = window.steps.to_pylist()
    usual = judging.step_seconds([window])
    short = [dict(row, seconds=row["seconds"] / 4) for row in rows if row["rank"] == 2]
    others = [row for row in rows if row["rank"] != 2]
    assert judging.step_seconds([columns(window, "steps", [*others, *short * 4])]) == pytest.approx(usual, rel=0.02)
