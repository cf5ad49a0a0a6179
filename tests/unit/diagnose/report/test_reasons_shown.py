"""A terminal shows the three strongest reasons of a suspect, what each of them is, and how sure it is; -v has all of them."""

from __future__ import annotations

from dataclasses import replace

import builders
import pytest
from builders import Job, build

from rankscope.diagnose.face.cli.report import report
from rankscope.diagnose.face.report.words import evidence_line, sureness
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, GUESS, NO_COUNTER, ORDERED, SEEN
from rankscope.diagnose.infer.causes.hypothesis import sureness as sure_of
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.advice import action_of
from rankscope.diagnose.infer.verdict.contract import (
    AGAINST,
    DETAIL,
    GUESSED,
    LIKELY,
    LIMIT,
    RULED_OUT,
    WITHOUT,
    WITNESSED,
    Evidence,
    Suspect,
)
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.infer.verdict.phrases import readable
from rankscope.diagnose.infer.verdict.reasons import reasons_of
from rankscope.diagnose.infer.verdict.sentence import headline

OWN = Evidence("steps", "own time", 0.4, 0.3, "s/step", 7)
CLOCK = Evidence("nvml", "SM clock of gpu4", 1.98, 1.98, "GHz", 7, RULED_OUT)
QUOTA = Evidence("cgroup", "cpu quota", 0.5, None, "CPUs", role=LIMIT)
LESS = Evidence("steps", "step", 0.4, 0.3, "s", role=WITHOUT)
RIVAL = Evidence(f"{AGAINST}functions", "python/gc would explain", 0.08, None, "s/step")


def suspect(*evidence: Evidence) -> Suspect:
    return Suspect("gpu", "slow", "node-1", (), (4,), None, 0.1, 25.0, 0.9, None, evidence, "Look there.")


@pytest.mark.parametrize(
    "weak",
    [
        replace(OWN, measure="as its peers", value=0.303),
        replace(OWN, measure="a zero", value=0.0, expected=0.0),
        replace(OWN, measure="little beside the cost", value=0.004, expected=0.0),
        replace(OWN, measure="less than a percent", value=0.3, expected=0.007, unit="%"),
        replace(OWN, role=DETAIL),
        LESS,
    ],
)
def test_what_shows_no_difference_is_no_reason_on_a_terminal(weak: Evidence) -> None:
    one = suspect(weak, OWN)
    assert reasons_of(one).because == (OWN,)
    assert reasons_of(one, whole=True).because == (weak, OWN)


def test_three_reasons_are_shown_and_a_line_is_not_repeated() -> None:
    more = [replace(OWN, measure=f"reason {number}") for number in range(5)]
    one = suspect(more[0], replace(more[0], source="other"), *more[1:])
    assert reasons_of(one).because == tuple(more[:3])


def test_limits_what_is_ruled_out_and_rivals_have_their_own_words() -> None:
    found = reasons_of(suspect(OWN, CLOCK, QUOTA, RIVAL, replace(RIVAL, value=0.02)))
    assert (found.because, found.ruled_out, found.limits, found.against) == ((OWN,), (CLOCK,), (QUOTA,), (RIVAL,))
    assert evidence_line(LESS) == "step: 0.400 s; without it 0.300 s"
    assert evidence_line(replace(LESS, role=LIMIT)) == "step: 0.400 s; limit 0.300 s"
    assert evidence_line(Evidence("sysfs", "links lost", 1.0, 0.0, "events")) == "links lost: 1 event"


def test_how_sure_is_a_word_by_the_evidence_and_the_number_is_for_v() -> None:
    words = [sure_of(support) for support in (ORDERED, CONVICTED, SEEN, NO_COUNTER, GUESS)]
    assert words == [WITNESSED, WITNESSED, LIKELY, LIKELY, GUESSED]
    assert sureness(suspect(OWN)) == "likely: it shows in what the ranks do; no counter tells why"
    assert sureness(suspect(replace(CLOCK, value=1.0, role="because"))).startswith("likely: a counter fits")
    assert sureness(suspect(OWN), True).startswith("likely (90 %): ")


def test_a_job_whose_rank_has_ended_is_dead_for_people_and_a_hang_for_programs() -> None:
    hang = diagnose(build(builders.stopped(5)))
    assert hang.word == "HANG" and headline(hang).startswith("HANG  Rank 5 ")
    dead = replace(hang, suspects=(replace(hang.suspects[0], cause="exited"),))
    assert (dead.word, dead.status, dead.exit_code) == ("DEAD", "hang", 2)
    assert next(iter(report(dead))).startswith("DEAD  Rank 5 ")


@pytest.mark.parametrize("code", NoteCode)
def test_an_open_question_comes_with_what_would_settle_it(code: NoteCode) -> None:
    unknown = diagnose(build(Job(steps=3)))
    for status in ("unknown", "hang"):
        open_one = replace(unknown, status=status, notes=(Note(code, "of something"),))
        assert action_of(open_one).endswith((".", "?"))
        assert any(line.startswith("  do  ") for line in report(open_one))
    assert action_of(replace(unknown, status="healthy")) == ""


def test_a_mount_is_named_as_one() -> None:
    assert readable("read on / (ext4 254:0)") == "read on the file system on / (ext4, device 254:0)"
    assert readable("load (a.py:3) of /data/x (train 7)") == "load (a.py:3) of /data/x (train 7)"
