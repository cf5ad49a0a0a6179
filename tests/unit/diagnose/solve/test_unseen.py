"""Without the evidence, no verdict: a source that was not there silences what rests on it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import Job, build, slow_python, slow_read, stopped

from rankscope.diagnose.infer.causes.causes import TABLE
from rankscope.diagnose.infer.solve.enough import further_s
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.sources import ESSENTIAL, Seen, Source, SourceState, states
from rankscope.observer.window.folder import Window

WHY = "rs_sample is not attached: Permission denied"


def _lacking(window: Window, source: Source, seen: Seen = Seen.NOT) -> Window:
    return replace(window, manifest=replace(window.manifest, sources=states([SourceState(source, seen, WHY)])))


def _without(job: Job, source: Source, seen: Seen = Seen.NOT) -> Verdict:
    return diagnose([_lacking(window, source, seen) for window in build(job)])


@pytest.mark.parametrize("source", ESSENTIAL)
@pytest.mark.parametrize("job", [Job(), slow_python(2, 0.05), stopped(1)], ids=["healthy", "slow", "stopped"])
def test_without_an_essential_source_the_first_line_says_what_was_missing(source: Source, job: Job) -> None:
    verdict = _without(job, source)
    assert (verdict.status, verdict.suspects) == ("unknown", ())
    assert verdict.notes[0].code is NoteCode.UNSEEN
    assert WHY in verdict.notes[0].text and "doctor" in verdict.notes[0].text
    assert further_s(verdict) is None, "a longer window would tell as little"


@pytest.mark.parametrize("source", ESSENTIAL)
def test_a_part_of_a_source_can_be_relied_on(source: Source) -> None:
    assert _without(slow_python(2, 0.05), source, Seen.PART).suspects[0].ranks == (2,)


@pytest.mark.parametrize(
    ("job", "status", "ranks"), [(Job(hosts=2), "unknown", []), (slow_python(2, 0.05, hosts=2), "fault", [(2,)])]
)
def test_a_host_that_lacks_something_beside_others_is_left_out(
    job: Job, status: str, ranks: list[tuple[int, ...]]
) -> None:
    first, second = build(job)
    verdict = diagnose([first, _lacking(second, Source.SAMPLES)])
    assert (verdict.status, [one.ranks for one in verdict.suspects]) == (status, ranks)
    (said,) = [note.text for note in verdict.notes if note.code is NoteCode.UNSEEN]
    assert "node-1" in said and "node-0" not in said
    assert status == "fault" or verdict.notes[0].code is NoteCode.UNSEEN


def test_a_suspect_that_rests_on_a_missing_source_is_left_out() -> None:
    whole = diagnose(build(slow_read(1, 0.05)))
    assert [(one.component, one.ranks) for one in whole.suspects] == [("storage", (1,))]
    verdict = _without(slow_read(1, 0.05), Source.FILE_CALLS)
    assert (verdict.status, verdict.suspects) == ("unknown", ())
    assert verdict.notes[0].code is NoteCode.UNSEEN and "file calls" in verdict.notes[0].text


def test_what_rests_on_something_else_is_named_and_the_rest_is_said() -> None:
    verdict = _without(slow_python(2, 0.05), Source.FLOWS)
    assert verdict.suspects[0].ranks == (2,)
    assert "network/slow-link" in next(note.text for note in verdict.notes if note.code is NoteCode.UNSEEN_PART)


@pytest.mark.parametrize("source", [Source.FLOWS, Source.FILE_CALLS, Source.EXITS])
def test_a_job_is_not_healthy_where_a_source_was_missing(source: Source) -> None:
    verdict = _without(Job(), source)
    assert verdict.status == "unknown"
    assert verdict.notes[0].code is NoteCode.UNSEEN_PART


def test_earlier_windows_in_which_something_was_missing_are_no_baseline() -> None:
    earlier = [_lacking(window, Source.COLLECTIVES) for window in build(Job())]
    verdict = diagnose(build(Job(seed=2)), earlier)
    assert verdict.baseline is None
    assert any(note.code is NoteCode.BASELINE_NONE for note in verdict.notes)


def test_every_cause_rests_on_what_nothing_is_judged_without() -> None:
    assert all(row.rests_on >= frozenset(ESSENTIAL) for row in TABLE)
