"""A verdict on terminals of any width: no word is cut, long names lose their middle, words of ours are explained; help and completion."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from dataclasses import replace

import builders
import pytest
from builders import Job, build

from rankscope.diagnose.face.cli.host import doctor
from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.face.cli.report import print_report, report
from rankscope.diagnose.face.cli.shell import plain_help
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.text import short
from rankscope.observer import doctor as doctor_of_host

LONG = "TransformerEncoderLayerWithRelativePositionalAttentionAndDropout.compute_the_whole_attention_matrix_at_once"


def slow(name: str = LONG) -> Verdict:
    work = builders.Work("python", name, 0, 56, file=f"/srv/job/{name}.py")
    return diagnose(
        build(
            Job(
                extra={3: [(work, 0.08)]},
                hosts=2,
                name="pretraining-of-a-very-large-language-model-in-many-stages-2026",
            )
        )
    )


VERDICTS = {"long names": slow(), "link": diagnose(build(builders.slow_link(1, 0.1))), "hang": diagnose(build(builders.stopped(5))),
            "healthy": diagnose(build(Job())), "unknown": diagnose(build(Job(steps=3)))}  # fmt: skip


@pytest.mark.parametrize("width", [40, 57, 80, 120, 200])
@pytest.mark.parametrize("case", VERDICTS)
def test_a_report_fits_every_terminal_and_cuts_no_word(case: str, width: int) -> None:
    verdict = VERDICTS[case]
    lines = list(report(verdict, width=width))
    assert max(map(len, lines)) <= width
    words = " ".join(report(verdict, width=10_000)).split()
    for word in " ".join(lines).split():
        begin, cut, end = word.partition("…")
        assert word in words or (cut and len(begin) >= 9 and len(end) >= 9), word


@pytest.mark.parametrize("width", range(40, 120))
def test_no_line_ends_between_a_number_and_its_unit(width: int) -> None:
    for verdict in VERDICTS.values():
        lines = list(report(verdict, width=width))
        assert not [line for line in lines if re.match(r"\s*(s|ms|%|MB/s)\b", line)], lines
        assert max(map(len, lines)) <= width


def test_the_middle_of_a_long_name_is_left_out_and_verbose_has_all_of_it() -> None:
    verdict = VERDICTS["long names"]
    first = " ".join(report(verdict)).partition(" costs ")[0]
    assert short(LONG, 60) in first and LONG not in first
    assert LONG in "".join("".join(report(verdict, verbose=True)).split())


@pytest.mark.parametrize(("text", "most", "shown"), [
    ("augment", 7, "augment"), ("augmentation", 7, "aug…ion"), ("augmentation", 6, "aug…on"),
    ("ab\x1bcd", 20, "ab\\x1bcd"), ("abc", 1, "…"),
])  # fmt: skip
def test_a_name_keeps_its_beginning_and_its_end(text: str, most: int, shown: str) -> None:
    assert short(text, most) == shown and len(shown) <= most


def test_words_of_ours_are_explained_where_they_first_appear_and_there_only() -> None:
    verdict = diagnose(build(builders.slow_python(3, 0.08)))
    twice = replace(verdict, suspects=verdict.suspects * 2)
    said = " ".join(" ".join(report(twice, verbose=True)).split())
    assert said.count("own time (not waiting for others): ") == 1 and said.count("own time: ") == 1, said
    assert said.count("(who comes last waits least)") == 1
    assert said.index("own time (not") < said.index("own time: ")


def test_a_verdict_is_as_wide_as_the_terminal_and_eighty_columns_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for columns, least, most in (("40", 30, 40), ("20", 30, 40), ("150", 90, 150), ("900", 90, 200)):
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setenv("NO_COLOR", "1")
        out, pipe = Terminal(), io.StringIO()
        print_report(VERDICTS["long names"], out)
        print_report(VERDICTS["long names"], pipe)
        assert least <= max(map(len, out.getvalue().splitlines())) <= most
        assert 70 <= max(map(len, pipe.getvalue().splitlines())) <= 80


def test_an_error_breaks_no_word_on_a_terminal_and_is_one_line_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    assert run(["diagnose", "/nowhere/at/all"]) == 65
    monkeypatch.setattr(sys, "stderr", piped := io.StringIO())
    assert run(["diagnose", "/nowhere/at/all"]) == 65
    assert len(piped.getvalue().splitlines()) == 1 and len(shown.getvalue().splitlines()) > 1
    assert shown.getvalue().split() == piped.getvalue().split() and max(map(len, shown.getvalue().splitlines())) <= 40


def test_help_begins_with_what_is_wanted_most_often(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    said = capsys.readouterr().out
    assert "Most often, as root on a host of the job:  rankscope diagnose" in said
    listed = said[said.index("Commands:") :]
    assert "..." not in listed, "every line of the list says all it has to say"
    commands = listed.split()
    assert commands[1] == "diagnose" and commands.index("doctor") > commands.index("report")


@pytest.mark.parametrize("command", ["", "prune", "watch", "diagnose"])
def test_help_fits_a_narrow_terminal_and_names_arguments_as_people_do(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plain_help, "width_of", lambda _: 40)
    assert run([*command.split(), "--help"]) == 0
    said = capsys.readouterr().out
    assert (
        max(map(len, said.splitlines())) <= 41
        and "<" not in said.replace("<=", "")
        and "..." not in said.split("\n\n", 1)[1]
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    said = capsys.readouterr().out
    assert "_RANKSCOPE_COMPLETE" in said and "rankscope" in said


def test_an_unknown_shell_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "cmd"]) == 64
    assert "bash, zsh, fish" in capsys.readouterr().err


@pytest.mark.parametrize(("line", "wanted"), [("rankscope di", "diagnose"), ("rankscope diagnose --ht", "--html")])
def test_a_shell_that_asks_is_told_how_the_line_may_go_on(line: str, wanted: str) -> None:
    asked = {"_RANKSCOPE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    code = "import sys; sys.argv[0] = 'rankscope'; from rankscope.diagnose.face.cli.start import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [wanted], done


@pytest.mark.parametrize("width", [40, 80, 120])
def test_what_the_doctor_found_fits_every_terminal_with_whole_names(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    detail = "/sys/kernel/btf/vmlinux: No such file or directory, nor any other under /sys/kernel"
    remedy = "The kernel needs CONFIG_DEBUG_INFO_BTF=y for this probe."
    found = [
        doctor_of_host.Requirement("pressure stall information", None, detail, "", required=False),
        doctor_of_host.Requirement("kernel types (BTF)", False, detail, remedy, required=True),
    ]
    monkeypatch.setattr(doctor_of_host, "examine", lambda _: found)
    monkeypatch.setattr(doctor, "width_of", lambda _: width)
    assert run(["doctor"]) == 69
    lines = capsys.readouterr().out.splitlines()
    findings = lines[: lines.index("")]
    assert max(map(len, findings)) <= width
    assert findings[0].startswith("unknown pressure stall information")
    said = " ".join(" ".join(findings).split())
    assert said.count(detail) == 2 and f"-> {remedy}" in said
