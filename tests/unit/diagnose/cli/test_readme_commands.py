"""What documents for operators show can be typed, and does what they say. What needs a live job: tests/lab/test_readme.py."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import builders
import documents
import pytest
import typer.main
from builders import build
from documents import OPERATORS, README, REPOSITORY
from stored import send

from rankscope.diagnose.face.cli.main import app, run
from rankscope.observer.window.folder import write_window

FLEETS, EVIDENCE, SECURITY = (REPOSITORY / f".github/{name}.md" for name in ("FLEETS", "EVIDENCE", "SECURITY"))
KITS = {
    "scripts/bench": ("benchkit.__main__",), "scripts/corpus": ("corpuskit.cli",), "scripts/kernels": ("kernelkit.cli",),
    "scripts/lab": ("labkit.cli",), "scripts/soak": ("campaignkit.cli", "soak"),
}  # fmt: skip
SCRIPT = re.compile(r"(?:^    |`)(scripts/[a-z]+)(?=[ `\n])([^`#\n|]*)", re.MULTILINE)
# What else an operator is shown, whose options are not ours: their files and units are looked at. Helm's: test_chart.py.
OTHERS = {
    "apt", "cd", "dnf", "done", "for", "git", "helm", "journalctl", "kubectl", "ln", "rm", "skopeo", "systemctl", "wait",
}  # fmt: skip


def taken(command: Sequence[str]) -> None:
    """Have the command line take these words. Raises where a command, an option or a number of arguments is wrong."""
    name, *rest = command
    typer.main.get_command(app).commands[name].make_context(name, rest)  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", OPERATORS, ids=lambda place: str(place.name))
def test_every_command_that_operators_are_shown_takes_these_options(place: Path) -> None:
    shown = documents.of_rankscope(place.read_text())
    assert len(shown) > 5
    for command in shown:
        taken(command)


def test_each_command_of_the_readme_is_run_by_a_test_and_not_only_read() -> None:
    """A new command needs one: here where it needs no live job, else in tests/lab/test_readme.py."""
    shown = {command[0] for command in documents.of_rankscope(README.read_text())}
    assert shown == {*documents.LIVE, *documents.STORED, *documents.SERVED}


def test_the_demo_of_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (demo,) = documents.of_rankscope(documents.section(README.read_text(), "The demo"))
    began = time.monotonic()
    assert run(demo) == 0
    assert "next     rankscope doctor" in capsys.readouterr().out and time.monotonic() - began < 5


@pytest.mark.parametrize(
    "words", ["diagnose DIR --no-such", "diagnoze DIR", "export DIR --to csv", "watch --windows-per-hour many", "prune"]
)
def test_a_command_with_an_unknown_option_a_missing_one_or_a_bad_value_is_no_command(words: str) -> None:
    (command,) = documents.of_rankscope(f"Type it:\n\n    sudo .venv/bin/rankscope {words}   # so\n")
    with pytest.raises(Exception, match=r"."):
        taken(command)


@pytest.mark.parametrize("place", OPERATORS, ids=lambda place: str(place.name))
def test_options_that_stand_alone_in_a_text_are_some_command_s(place: Path) -> None:
    group = typer.main.get_command(app)
    known = {each for one in group.commands.values() for option in one.params for each in option.opts}  # type: ignore[attr-defined]
    prose = re.findall(r"`(-[^`]+)`", place.read_text())
    assert [said for said in prose if said.split()[0] not in known] == []


@pytest.mark.parametrize("place", OPERATORS, ids=lambda place: str(place.name))
def test_programs_of_others_are_given_files_and_units_that_are_there(place: Path) -> None:
    for program, *words in documents.commands(place.read_text()):
        name = program.partition("=")[2] or program  # Prolog=/opt/…
        if name.rpartition("/")[2] == "rankscope" or name in OTHERS:
            units = [word for word in words if re.match(r"rankscope-(watch|guard|sweep)", word)]
            folder = REPOSITORY / "scripts/deploy/systemd"
            assert [unit for unit in units if not list(folder.glob(f"{unit}*"))] == []
        else:
            assert (REPOSITORY / name.removeprefix("/opt/rankscope/")).is_file(), name


def test_pages_exports_and_bundles_are_made_as_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for window in build(builders.slow_python(3, 0.08, hosts=2)):
        write_window(window, tmp_path / "DIR")
    monkeypatch.chdir(tmp_path)
    table = documents.of_rankscope(documents.section(README.read_text(), "Use"))
    typed = [command for command in table if command[0] in ("report", "export", "bundle")]
    assert len(typed) == 3
    for command in [*typed, ["diagnose", "case.rankscope"]]:
        code = run(command)
        assert code == (1 if command[0] in ("report", "diagnose") else 0), (command, capsys.readouterr().err)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["DIR", "case.rankscope", "page.html", "stacks.json"]


def test_windows_of_all_hosts_are_judged_together_and_against_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, job in (("DIR…", builders.slow_python(3, 0.08, hosts=2)), ("EARLIER", builders.Job(hosts=2))):
        for window in build(job):
            write_window(window, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    together = ["diagnose", "DIR…"]
    assert together in documents.of_rankscope(documents.section(README.read_text(), "Use"))
    for command in (together, [*together, "--baseline", "EARLIER"]):
        assert run(command) == 1
        assert capsys.readouterr().out.startswith("FAULT  Rank 3 on node-0: ")


def test_a_store_is_judged_tidied_and_remembered_as_is_said_of_fleets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o700)
    store = (tmp_path / "store").as_uri()
    send(store, *build(builders.slow_python(3, 0.08, hosts=2, start=time.time() - 300)))
    typed = [command for command in documents.of_rankscope(FLEETS.read_text()) if "s3://bucket/windows" in command]
    assert [command[0] for command in typed] == ["record", "diagnose", "prune", "compact", "reputation"]
    for command in typed[1:]:
        words = [word.replace("s3://bucket/windows", store) for word in command]
        words += ["--keep", str(tmp_path / "kept.sqlite")] if words[0] == "reputation" else []
        code = {"diagnose": 1, "reputation": 3}.get(words[0], 0)  # two hosts are too few peers to vote
        assert run(words) == code, (command, capsys.readouterr().err)


def test_the_completion_of_the_readme_is_a_script_that_bash_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert "source <(rankscope completion bash)" in README.read_text()
    assert run(["completion", "bash"]) == 0
    done = subprocess.run(["bash", "-n"], input=capsys.readouterr().out, text=True, capture_output=True, check=False)
    assert done.returncode == 0 and done.stderr == ""


def help_of(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What a script says of itself: one of our kits is asked here, without a process of its own."""
    script, *words = name.split()
    if script not in KITS:
        return subprocess.run(
            [REPOSITORY / script, *words, "--help"], capture_output=True, text=True, check=True
        ).stdout
    module, *kind = KITS[script]
    assert f"begin {module.partition('.')[0]}" in (REPOSITORY / script).read_text()
    monkeypatch.setattr(sys, "argv", [script, *kind, *words, "--help"])
    with pytest.raises(SystemExit, match="0"):
        importlib.import_module(module).main()
    return capsys.readouterr().out


def test_every_script_that_documents_show_is_there_and_knows_its_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    helps: dict[str, str] = {}
    for script, rest in SCRIPT.findall("\n".join(place.read_text() for place in (*OPERATORS, EVIDENCE, SECURITY))):
        path = REPOSITORY / script
        assert path.exists(), script
        wanted = re.findall(r"--[a-z][a-z-]*", rest)
        if not wanted or path.is_dir():
            continue
        name = f"{script} {rest.split()[0]}" if script in ("scripts/bench", "scripts/corpus") else script
        if name not in helps:
            helps[name] = help_of(name, monkeypatch, capsys)
        assert [option for option in wanted if option not in helps[name]] == [], (name, rest)


def test_every_file_that_documents_name_is_there_and_the_pictures_are_small() -> None:
    text = "\n".join(place.read_text() for place in (*OPERATORS, EVIDENCE, SECURITY))
    named = re.findall(r"`((?:tests|scripts|probes|observer|unwinder|diagnose)/[\w/.-]+)`", text)
    pictures = re.findall(r"(?:src|srcset)=\"([^\"]+)\"", README.read_text())
    assert len(named) > 10 and len(pictures) == 2
    assert [name for name in (*named, *pictures) if not (REPOSITORY / name).exists()] == []
    for picture in pictures:
        content = (REPOSITORY / picture).read_bytes()
        assert content.startswith(b"\x89PNG") and len(content) <= 200_000
