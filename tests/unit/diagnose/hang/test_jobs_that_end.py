"""A job that is told to end in the window is no hang; a rank that ends by itself, and takes the others with it, is one."""

from __future__ import annotations

import signal

import pytest
from builders import Job, build

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode

RANKS = 4


def ended(*statuses: int | None) -> Verdict:
    """The verdict on a job whose ranks end with these wait statuses in the last second, the first of them first."""
    columns = {
        rank: {"state": "exited", "ended_s": 19.0 + 0.1 * rank, "exit_status": status, "last_progress_s": 1.0}
        for rank, status in enumerate(statuses)
        if status is not None
    }
    return diagnose(build(Job(ranks=RANKS, ranks_columns=columns)))


def note(verdict: Verdict) -> str:
    return next(each.text for each in verdict.notes if each.code is NoteCode.RANKS_ENDED)


@pytest.mark.parametrize("statuses, said", [
    ([signal.SIGTERM] * RANKS, "SIGTERM"),
    ([128 + signal.SIGTERM << 8] * RANKS, "SIGTERM"),  # as a shell or a handler says it
    ([signal.SIGINT, signal.SIGTERM, signal.SIGTERM, signal.SIGTERM], "SIGINT, SIGTERM"),
])  # fmt: skip
def test_a_job_that_is_told_to_end_is_no_hang_and_a_note_says_so(statuses: list[int], said: str) -> None:
    verdict = ended(*statuses)
    assert (verdict.status, verdict.suspects) == ("healthy", ())
    assert note(verdict) == f"ranks 0-3 ended in the window: all of them were told to end ({said})"


@pytest.mark.parametrize("statuses", [
    [signal.SIGKILL, signal.SIGTERM, signal.SIGTERM, signal.SIGTERM],
    [1 << 8, signal.SIGTERM, signal.SIGTERM, signal.SIGTERM],
    [signal.SIGTERM, None, None, None],
])  # fmt: skip
def test_a_rank_that_ends_by_itself_is_named_first(statuses: list[int | None]) -> None:
    verdict = ended(*statuses)
    assert (verdict.status, verdict.exit_code) == ("hang", 2)
    assert (verdict.suspects[0].cause, verdict.suspects[0].ranks) == ("exited", (0,))
    others = verdict.suspects[0].evidence[0]
    assert (others.expected, others.peers) == ("running" if None in statuses else "ended later", RANKS - 1)
    assert "told to end" not in note(verdict)


def test_nobody_is_sent_to_a_log_that_a_killed_rank_could_not_write() -> None:
    killed, failed = (ended(status, None, None, None).suspects[0].action for status in (signal.SIGKILL, 1 << 8))
    assert killed.startswith("Find who sent SIGKILL to process ") and "See the log" not in killed
    assert failed.startswith("See the log of the rank on ")


def test_a_job_that_comes_to_its_end_is_no_hang() -> None:
    verdict = ended(0, 0, 0, 0)
    assert (verdict.status, note(verdict)) == ("healthy", "ranks 0-3 ended in the window")
