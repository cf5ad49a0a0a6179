"""Keys of `rankscope top`: what they sort and show; none is echoed; and the terminal is as it was, however the program ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from typing import IO, Any

import pytest

from rankscope.diagnose.face.top import draw
from rankscope.diagnose.face.top.snapshot import JobNow, RankNow, Snapshot
from rankscope.diagnose.face.top.view import View

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
# One draws until it is told to end; one fails.
PROGRAM = """
import sys, time
from rankscope.diagnose.face.cli.start import end_when_asked
from rankscope.diagnose.face.top.screen import screen
from rankscope.diagnose.face.top.snapshot import JobNow, RankNow, Snapshot
end_when_asked()
ranks = tuple(RankNow(n, step_s=0.1 * (n + 1), parts=(0.1 * n, 0, 0, 0, 1 - 0.1 * n)) for n in range(3))
code = 0
try:
    with screen() as (show, say):
        say("loading probes")
        show(Snapshot(0.0, "node-1", "a test", (JobNow("train.py", ranks),)))
        if sys.argv[1:] == ["fails"]:
            raise RuntimeError("odd")
        time.sleep(60)
except KeyboardInterrupt:
    code = 7
except RuntimeError:
    code = 8
sys.exit(code)
"""

# The shell of it: gives it the terminal, as the foreground, and says how it does.
LEADER = """
import fcntl, os, signal, sys, termios
report = int(sys.argv[1])
fcntl.ioctl(1, termios.TIOCSCTTY, 0)
pid = os.fork()
if pid == 0:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(1, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-c", *sys.argv[2:]])
os.write(report, b"%d\\n" % pid)
while True:
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.write(report, b"stopped\\n")
        continue
    os.write(report, b"%d\\n" % os.waitstatus_to_exitcode(status))
    break
signal.pause()
"""


def pressed(keys: str) -> View:
    return reduce(View.after, keys, View())


def ranks(*numbers: tuple[int, float | None, float]) -> tuple[RankNow, ...]:
    """Ranks by number, step and share of it that they work."""
    return tuple(RankNow(number, step_s=step, parts=(own, 0, 0, 0, 1 - own)) for number, step, own in numbers)


FOUR = ranks((0, 0.2, 0.5), (1, 0.4, 0.1), (2, None, 0.5), (3, 0.4, 0.9))


@pytest.mark.parametrize(
    ("keys", "order"),
    [("", [0, 1, 2, 3]), ("r", [3, 2, 1, 0]), ("s", [1, 3, 0, 2]), ("ss", [0, 1, 3, 2]), ("w", [3, 0, 1, 2]), ("o", [1, 0, 3, 2]),
     ("oo", [3, 0, 1, 2]), ("sr", [0, 1, 2, 3]), ("sxyz", [1, 3, 0, 2])],
)  # fmt: skip
def test_a_key_sorts_and_again_turns_round_and_what_is_not_known_comes_last(keys: str, order: list[int]) -> None:
    assert [rank.number for rank in pressed(keys).order(FOUR)] == order


def test_h_shows_the_keys_and_any_key_goes_back_and_q_ends() -> None:
    assert pressed("h").help and pressed("?").help and not pressed("hs").help and pressed("hs").column == "rank"
    assert pressed("q").ended and pressed("hq").ended and not pressed("hxs").ended
    for width in (40, 80, 200):
        told = "\n".join(line.text for line in draw.help_lines(width, draw.ASCII))
        assert all(re.search(rf"^  {re.escape(key)} ", told, re.MULTILINE) for key in ("q", "h ?", "r", "s", "w", "o"))
        assert all(len(line) <= width for line in told.splitlines())


def test_the_table_is_drawn_as_it_is_sorted_and_says_by_what() -> None:
    snapshot = Snapshot(0.0, "node-1", "a test", (JobNow("train.py", FOUR),))

    def drawn(view: View | None) -> list[str]:
        return [line.text for line in draw.lines(snapshot, 100, 30, draw.ASCII, view)]

    def numbers(lines: list[str]) -> list[int]:
        return [int(found[1]) for line in lines if (found := re.match(r" {4}(\d) ", line))]

    assert numbers(drawn(None)) == numbers(drawn(View())) == [0, 1, 2, 3]
    assert "h: help, q: quit" in " ".join(drawn(View())) and "h: help" not in " ".join(drawn(None))
    by_step = drawn(pressed("s"))
    assert numbers(by_step) == [1, 3, 0, 2] and any("stepv" in line for line in by_step)
    assert any("step^" in line for line in drawn(pressed("ss"))) and not any("rank^" in line for line in drawn(View()))
    # of more ranks than there is room for those that come first
    many = Snapshot(0.0, "h", "s", (JobNow("t", ranks(*((n, 0.001 * n, 0.5) for n in range(96)))),))
    longest = [line.text for line in draw.lines(many, 100, 20, draw.ASCII, pressed("s"))]
    assert any(line.startswith("   95 ") for line in longest) and any(line.endswith(" more") for line in longest)


# ---- on a terminal -------------------------------------------------------------------------------------------------------


@dataclass
class Running:
    """A program on a terminal of its own, in the foreground of a shell."""

    ours: int
    theirs: int
    report: IO[str]
    before: list[Any]
    pid: int
    drawn: bytes = b""
    _seen: int = field(default=0)

    def ended(self) -> int | str:
        """Wait until it ends or stops; return its exit code, or 'stopped'."""
        assert select.select([self.report], [], [], 20.0)[0]
        word = self.report.readline().strip()
        return word if word == "stopped" else int(word)

    def until(self, words: str, seconds: float = 20.0) -> str:
        """Read what it draws until these words are among what is new; return the new."""
        deadline = time.monotonic() + seconds
        while words not in (new := ESCAPES.sub("", self.drawn[self._seen :].decode(errors="replace"))):
            assert time.monotonic() < deadline, (words, new)
            if select.select([self.ours], [], [], 0.2)[0]:
                self.drawn += os.read(self.ours, 1 << 16)
        self._seen = len(self.drawn)
        return new

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def is_given_back(self, seconds: float = 10.0) -> bool:
        """Whether the terminal echoes again, with its own screen and the cursor, within some seconds."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([self.ours], [], [], 0.1)[0]:
                self.drawn += os.read(self.ours, 1 << 16)
            left = self.drawn.rfind(b"\x1b[?1049l") > self.drawn.rfind(b"\x1b[?1049h") >= 0
            shown = self.drawn.rfind(b"\x1b[?25h") > self.drawn.rfind(b"\x1b[?25l")
            if left and shown and termios.tcgetattr(self.theirs) == self.before:
                return True
        return False


@contextlib.contextmanager
def running(*arguments: str, keys: bool = True) -> Iterator[Running]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    before = termios.tcgetattr(theirs)
    reads, writes = os.pipe()
    leader = subprocess.Popen(
        [sys.executable, "-c", LEADER, str(writes), PROGRAM, *arguments], stdin=theirs if keys else subprocess.DEVNULL, stdout=theirs,
        stderr=theirs, env={**os.environ, "TERM": "xterm-256color"}, start_new_session=True, pass_fds=[writes],
    )  # fmt: skip
    os.close(writes)
    with os.fdopen(reads, buffering=1) as report:
        pid = int(report.readline())
        try:
            yield Running(ours, theirs, report, before, pid)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            leader.kill()
            leader.wait()
            os.close(ours)
            os.close(theirs)


def test_keys_work_at_once_and_none_is_echoed() -> None:
    with running() as top:
        top.until("h: help")
        assert not termios.tcgetattr(top.theirs)[3] & termios.ECHO
        top.type("x\x1b[A")  # an arrow and a letter that mean nothing
        top.type("s")
        told = top.until("step▼")
        assert "x" not in told.replace("train.py", "").replace("x ", "") and "[A" not in told
        top.type("h")
        assert "sort by rank" in top.until("the same key again")
        top.type("z")
        top.until("step▼")
        top.type("q")
        assert top.ended() == 7  # as by Ctrl-C
        assert top.is_given_back()


@pytest.mark.parametrize(
    ("end", "code"), [(signal.SIGTERM, 7), (signal.SIGINT, 7), (signal.SIGHUP, 7), (signal.SIGKILL, -9)]
)
def test_however_it_is_ended_the_terminal_is_as_it_was(end: signal.Signals, code: int) -> None:
    with running() as top:
        top.until("h: help")
        os.kill(top.pid, end)
        assert top.ended() == code
        assert top.is_given_back()


def test_so_it_is_where_it_fails() -> None:
    with running("fails") as top:
        assert top.ended() == 8
        assert top.is_given_back()


def test_it_can_be_stopped_and_goes_on() -> None:
    with running() as top:
        top.until("h: help")
        top.type("\x1a")  # Ctrl-Z
        assert top.ended() == "stopped" and top.is_given_back()
        os.kill(top.pid, signal.SIGCONT)
        top.until("h: help")
        top.type("s")
        top.until("step▼")


def test_it_works_where_standard_input_is_no_terminal() -> None:
    with running(keys=False) as top:
        top.until("train.py")
        assert termios.tcgetattr(top.theirs) == top.before  # nobody's keys
        os.kill(top.pid, signal.SIGTERM)
        assert top.ended() == 7 and top.is_given_back()
