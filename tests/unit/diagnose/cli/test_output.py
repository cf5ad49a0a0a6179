"""Tables and progress: whole in a pipe, fitted to a terminal, without colours where they are not wanted."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
import time

import pytest

from rankscope.diagnose.face.cli import output
from rankscope.diagnose.face.cli.output import patience, print_table, progress, tell

REASON = "it has no training library mapped, " + "or nothing says which rank it is " * 4
HEADS, ROWS = ["PROCESS", "PID", "WHY"], [["python3", "4711", REASON], ["a\x1b[2Jb", "12", "[bold]short[/bold]"]]
_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_pipe_gets_every_row_on_a_line_of_its_own_and_nothing_cut() -> None:
    out = io.StringIO()
    print_table(HEADS, ROWS, out)
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["PROCESS", "python3"]
    assert lines[1].endswith(REASON.strip())
    assert lines[2].endswith("[bold]short[/bold]") and "\x1b" not in out.getvalue()


def test_a_terminal_folds_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    print_table(HEADS, ROWS, out)
    lines = [_STYLE.sub("", line) for line in out.getvalue().splitlines()]
    assert max(map(len, lines)) <= 60
    assert "\x1b" not in "".join(lines)
    shown = "".join(line[line.index("it has") if "it has" in line else 0 :] for line in lines)
    assert "".join(REASON.split()) in "".join(shown.split())
    assert "[bold]short[/bold]" in "".join(lines)


def test_no_color_means_no_escape_sequences_in_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    print_table(HEADS, ROWS, out)
    assert not re.search(r"\x1b\[3[0-9]", out.getvalue())


def test_progress_is_plain_lines_where_nobody_looks_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress() as say:
        say("2 ranks found")
        say("observing \x1b[2J")
    assert capsys.readouterr().err == "2 ranks found\nobserving \\x1b[2J\n"


def test_progress_on_a_terminal_is_gone_at_the_end_and_leaves_stdout_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress() as say:
        say("observing [red]20 s[/red] to go " + "x" * 300)
        print("a result")
    assert capsys.readouterr().out == "a result\n"
    assert "observing [red]20 s[/red] to go" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K")


def busy(seconds: float) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        pass


def test_what_takes_long_is_said_once_in_a_pipe_and_what_is_short_never(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with patience("reading windows"):
        busy(0.02)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(output, "_PATIENCE_S", 0.02)
    with patience("reading windows") as say:
        busy(0.06)
        say("judging \x1b[2J")
    busy(0.06)
    assert capsys.readouterr().err == "reading windows …\n"
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_what_takes_long_is_a_line_with_its_seconds_on_a_terminal_and_gone_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(output, "_PATIENCE_S", 0.02)
    with pytest.raises(ValueError, match="broken"), patience("reading \x1b[2J"):
        busy(0.06)
        raise ValueError("broken")
    assert terminal.getvalue() == "\r   0 s  reading \\x1b[2J\x1b[K\r\x1b[K"


def test_what_takes_long_never_fills_more_than_a_line_of_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(output, "_PATIENCE_S", 0.02)
    with patience("looking at this host, its kernel and all of its libraries"):
        busy(0.06)
    shown = terminal.getvalue().split("\x1b[K")[0]
    assert re.match(r"\r +\d s  looking at", shown) and len(shown) <= 40


def test_who_reads_a_pipe_is_not_told_where_cron_would_make_a_mail_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output, "_PATIENCE_S", 0.02)
    with patience("checking this host", lines=False):
        busy(0.06)
    assert capsys.readouterr().err == ""


def test_a_cell_that_is_folded_parts_words_behind_their_signs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    print_table(["CAUSE", "BY"], [["gpu/throttled-thermal", "clock below the peers', thermal bit"]], out)
    assert [line.split("  ")[0].split(" ")[0] for line in out.getvalue().splitlines()] == [
        "CAUSE",
        "gpu/throttled-",
        "thermal",
    ]


def test_a_sentence_is_wrapped_on_a_terminal_and_one_line_in_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "the page is in /a/folder/with/a/name/that/is/longer/than/a/line/page.html, 0.3 s ago"
    tell(said)
    assert capsys.readouterr().out == f"{said}\n"
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stdout", shown := Terminal())
    tell(said, "  ")
    lines = shown.getvalue().splitlines()
    assert lines[0] == "the page is in" and lines[1].endswith("/page.html,") and lines[2:] == ["  0.3 s ago"]


def test_help_and_a_verdict_do_not_wait_for_what_only_a_terminal_needs() -> None:
    code = (
        "import sys, rankscope.diagnose.face.cli.main, rankscope.diagnose.face.cli.diagnose; "
        "print([name for name in sys.modules if name.startswith('rich')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
