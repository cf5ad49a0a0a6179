"""Manual pages: one for each command, rendered without a complaint, with all that --help says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer.main

from rankscope.diagnose.face.cli.main import app
from rankscope.diagnose.face.cli.shell import man

PAGES = man.pages("1.2.3", "2026-01-02")
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def rendered(place: Path) -> str:
    done = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", str(place)],
        env={**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MAN_KEEP_FORMATTING": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return re.sub(r".\x08|\x1b\[[0-9;]*m", "", done.stdout)


def test_every_command_has_a_page_and_the_program_names_them_all() -> None:
    assert set(PAGES) == {"rankscope.1", *(f"rankscope-{name}.1" for name in COMMANDS)}
    assert all(f"rankscope\\-{name}" in PAGES["rankscope.1"] for name in COMMANDS)
    for word in ("own time", "stay", "waits least", "EXIT STATUS"):
        assert word in PAGES["rankscope.1"]


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_has_every_option_and_no_line_that_nobody_can_read(name: str) -> None:
    command = COMMANDS.get(name.removeprefix("rankscope-").removesuffix(".1"))
    shown = [each for each in command.params if not getattr(each, "hidden", False)] if command else []
    options = [option for each in shown for option in each.opts if option.startswith("--")]
    assert [option for option in options if option.replace("-", r"\-") not in PAGES[name]] == []
    assert max(map(len, PAGES[name].splitlines())) <= 90
    assert "<float" not in PAGES[name] and "<str" not in PAGES[name] and "list[" not in PAGES[name]


def test_a_synopsis_says_what_may_be_left_out_and_what_may_come_again() -> None:
    for name, shown in (("diagnose", r"[\fIDIR\fR]..."), ("report", r"\fIDIR\fR..."), ("completion", r"\fISHELL\fR")):
        assert f"\n{shown}\n" in PAGES[f"rankscope-{name}.1"], name


@pytest.mark.skipif(shutil.which("man") is None or shutil.which("groff") is None, reason="needs man and groff")
@pytest.mark.parametrize("name", ["rankscope.1", "rankscope-diagnose.1", "rankscope-top.1", "rankscope-sweep.1"])
def test_man_renders_it_without_a_warning(name: str, tmp_path: Path) -> None:
    place = tmp_path / name
    place.write_text(PAGES[name])
    said = rendered(place)
    assert "NAME" in said and "OPTIONS" in said and "2026-01-02" in said


@pytest.mark.parametrize(("said", "written"), [
    ("--json", r"\-\-json"), (".SH no heading", r"\&.SH no heading"), ("'tis", r"\&'tis"), (r"a\b", r"a\eb"), ("DIR…", "DIR..."),
])  # fmt: skip
def test_nothing_of_a_text_is_taken_for_a_request(said: str, written: str) -> None:
    assert man.text(said) == written
