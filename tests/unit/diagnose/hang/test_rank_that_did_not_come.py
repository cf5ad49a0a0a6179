"""All ranks but one wait in a collective: the one is told by the user's function in which it is, and by what it waits for there."""

from __future__ import annotations

import pytest
from builders import columns
from starting import LOAD, starting

from rankscope.diagnose.face.cli.report import report
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.observer.window.stacks import StackFrame

SOCKET = StackFrame("SocketIO.readinto", "/usr/lib/python3.11/socket.py", 691)
BARRIER = (
    "collective",
    "barrier",
    "gloo",
    (StackFrame("barrier", "/opt/venv/lib/python3.11/site-packages/torch/d.py", 9),),
    0.99,
)


@pytest.mark.parametrize("at, cause, words", [
    (("sync", "recv", "a socket to 10.0.0.7:443", (LOAD, SOCKET), 0.98), "deadlock",
     "waits in load_checkpoint (utils.py:12), in its call of SocketIO.readinto, for a socket to 10.0.0.7:443 (recv)"),
    (("io", "file lock", "/cache/a.lock, held by python (pid 77)", (LOAD,), 0.98), "deadlock",
     "waits in load_checkpoint (utils.py:12) for a file lock, /cache/a.lock, held by python (pid 77)"),
    (("python", "spin", "", (LOAD,), 0.98), "spinning", "computes in load_checkpoint (utils.py:12)"),
])  # fmt: skip
def test_the_rank_that_is_waited_for_is_told_by_where_it_is(
    at: tuple[str, str, str, tuple[StackFrame, ...], float], cause: str, words: str
) -> None:
    # GIVEN a job before its first step: rank 0 is elsewhere, the others wait for it in a barrier
    window = starting([at, BARRIER, BARRIER, BARRIER])
    waits = [0.0, 20.0, 20.0, 20.0]
    rows = [
        row | {"last_progress_s": None, "in_collective_s": wait}
        for row, wait in zip(window.ranks.to_pylist(), waits, strict=True)
    ]

    verdict = diagnose([columns(window, "ranks", rows)])

    first = verdict.suspects[0]
    assert (verdict.status, first.ranks, first.cause) == ("hang", (0,), cause)
    assert first.function is not None and (first.function.name, first.function.line) == ("load_checkpoint", 12)
    assert [one.value for one in first.evidence if one.measure == "where it is"] == [words]
    assert "load_checkpoint (utils.py:12)" in next(iter(report(verdict)))


@pytest.mark.parametrize("came_s, status", [(0.0, "hang"), (1.3, "unknown"), (19.9, "hang")])
def test_who_came_a_moment_ago_is_not_who_is_waited_for(came_s: float, status: str) -> None:
    # GIVEN ranks that were kept from their CPUs for most of the window, so that no step ended, and one that came at its end
    window = starting([("python", "spin", "", (LOAD,), 0.98) if came_s < 1 else BARRIER, BARRIER, BARRIER, BARRIER])
    rows = [
        row | {"last_progress_s": None, "in_collective_s": wait}
        for row, wait in zip(window.ranks.to_pylist(), [came_s, 20.0, 20.0, 20.0], strict=True)
    ]
    verdict = diagnose([columns(window, "ranks", rows)])
    assert verdict.status == status
    assert all(suspect.cause == "spinning" for suspect in verdict.suspects)
