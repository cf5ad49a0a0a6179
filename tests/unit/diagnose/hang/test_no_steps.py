"""A job that makes no steps: the verdict says in which function its ranks are, what they wait for and for how long."""

from __future__ import annotations

import pytest
from builders import TRAIN, columns
from starting import BATON, LOAD, starting

from rankscope.diagnose.face.export.formats import FORMATS
from rankscope.diagnose.face.report.build import report_of
from rankscope.diagnose.face.report.render import render
from rankscope.diagnose.face.top import draw
from rankscope.diagnose.face.top.from_windows import Scene
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.observer.window.folder import Window
from rankscope.observer.window.stacks import StackFrame


def reason(window: Window) -> str:
    verdict = diagnose([window])
    assert (verdict.status, verdict.exit_code, verdict.suspects) == ("unknown", 3, ())
    return verdict.notes[0].text


def test_ranks_that_all_wait_for_a_lock_are_told_together() -> None:
    lock = ("io", "file lock", "", (LOAD,), 0.99)
    text = reason(starting([lock] * 4))
    assert (
        text
        == "no step was seen: all 4 ranks wait in load_checkpoint (utils.py:12) for a file lock, for the whole window"
    )


@pytest.mark.parametrize(
    ("age_s", "said"),
    [
        (35.0, "the job was started 35 s before"),
        (840.0, "14 min before"),
        (30_000.0, "8.3 h before"),
        (3e5, "3.5 days before"),
    ],
)
def test_it_is_said_how_long_ago_the_job_was_started(age_s: float, said: str) -> None:
    window = starting([("io", "file lock", "", (LOAD,), 0.99)] * 2)
    window = columns(window, "ranks", [row | {"age_s": age_s} for row in window.ranks.to_pylist()])
    assert reason(window).endswith(f"for the whole window; {said}" if "the job" in said else said)


def test_a_job_that_ended_before_its_first_step_is_not_asked_for_a_longer_window() -> None:
    window = starting([("io", "read", "", (LOAD,), 0.2)] * 2)
    ended = {"state": "exited", "ended_s": 1.0, "exit_status": 0}
    text = reason(columns(window, "ranks", [row | ended for row in window.ranks.to_pylist()]))
    assert text == "the job ended while it was observed, before a step was complete"


def test_the_rank_that_is_elsewhere_is_told_apart() -> None:
    waits = ("python", "", "sleep", (LOAD, BATON), 0.98)
    builds = ("sync", "wait child", "", (StackFrame("build", TRAIN, 31),), 0.7)
    text = reason(starting([builds, waits, waits]))
    assert (
        "ranks 1, 2 sleep in load_checkpoint (utils.py:12), in its call of FileBaton.wait, for the whole window" in text
    )
    assert "rank 0 waits in build (train.py:31) for a child process, for 70 % of the window" in text


@pytest.mark.parametrize(
    ("kind", "name", "detail", "words"),
    [
        (
            "io",
            "read",
            "/data (ext4 254:1)",
            "wait in load_checkpoint (utils.py:12) for files (read, /data (ext4 254:1))",
        ),
        (
            "io",
            "file lock",
            "/c/a.lock",
            "wait in load_checkpoint (utils.py:12) for a file lock, /c/a.lock, for the whole window",
        ),
        (
            "sync",
            "wait child",
            "child ninja",
            "wait in load_checkpoint (utils.py:12) for child ninja, for the",
        ),
        ("sync", "read", "a socket", "wait in load_checkpoint (utils.py:12) for a socket (read)"),
        ("sync", "read", "a pipe, child nvcc", "for child nvcc (a pipe)"),
        ("sync", "poll", "a socket to 10.0.0.7:443", "(utils.py:12) for a socket to 10.0.0.7:443 (poll)"),
        ("sync", "recv", "", "wait in load_checkpoint (utils.py:12) for a socket (recv)"),
        ("sync", "futex", "", "wait in load_checkpoint (utils.py:12) for another thread or process (futex)"),
        ("collective", "barrier", "gloo", "wait in load_checkpoint (utils.py:12) for other ranks (barrier)"),
        (
            "python",
            "load_checkpoint",
            "",
            "compute in load_checkpoint (utils.py:12), for the whole window; if a step takes longer than that, "
            "record a longer window (--window)",
        ),
    ],
)
def test_what_is_waited_for_is_said(kind: str, name: str, detail: str, words: str) -> None:
    assert words in reason(starting([(kind, name, detail, (LOAD,), 0.99)] * 2))


def test_without_a_step_there_is_a_page_every_export_and_a_live_view_all_the_same() -> None:
    window = starting([("io", "file lock", "", (LOAD,), 0.99)] * 4)
    fleet = gather([window])
    page = render(report_of(fleet, diagnose([window])))
    assert "no step was seen" in page and "load_checkpoint" in page and "Where the ranks are" in page
    assert {name: bool(make(fleet)) for name, make in FORMATS.items()} == dict.fromkeys(FORMATS, True)
    lines = [line.text for line in draw.lines(Scene("here").take(window), 80, 24)]
    assert any("step not seen yet" in line for line in lines)
    assert sum("99 % file lock in load_checkpoint" in line or "99 % file lo" in line for line in lines) == 4


SIMULATE = StackFrame("simulate", TRAIN, 44)
ASLEEP, COMPUTING = ("python", "", "sleep", (SIMULATE,), 0.97), ("python", "simulate", "", (SIMULATE,), 0.97)
FOR_RANKS = ("collective", "allreduce", "gloo", (LOAD,), 0.99)
IN_A_LIBRARY = ("python", "", "sleep", (LOAD, BATON), 0.98)


@pytest.mark.parametrize(
    ("ranks", "advised"),
    [
        ([ASLEEP, ASLEEP], True),  # a simulator, a robot: it may take minutes
        ([COMPUTING, FOR_RANKS], True),  # one works on its step, the other waits for it
        ([IN_A_LIBRARY, FOR_RANKS], False),
        ([FOR_RANKS, FOR_RANKS], False),
        ([("io", "file lock", "", (LOAD,), 0.99), COMPUTING], False),
    ],
)
def test_a_longer_window_is_advised_where_somebody_is_at_work_and_nobody_is_held(
    ranks: list[tuple[str, str, str, tuple[StackFrame, ...], float]], advised: bool
) -> None:
    assert ("record a longer window" in reason(starting(ranks))) == advised
