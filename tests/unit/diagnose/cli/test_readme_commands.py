"""What the README says can be typed does what it says. What needs a live job: tests/lab/test_readme.py."""

from __future__ import annotations

import importlib
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import builders
import pytest
import typer.main
from builders import build
from stored import send

from rankscope.diagnose.face.cli.main import app, run
from rankscope.observer.window.folder import write_window

REPOSITORY = Path(__file__).resolve().parents[4]
README = REPOSITORY / "README.md"
TYPED = re.compile(r"^    \.venv/bin/rankscope (.*?)\s*(?:#.*)?$", re.MULTILINE)
NAMED = re.compile(r"`rankscope ([^`]+)`")
KITS = {
    "scripts/bench": ("benchkit.__main__",), "scripts/corpus": ("corpuskit.cli",), "scripts/kernels": ("kernelkit.cli",),
    "scripts/lab": ("labkit.cli",), "scripts/soak": ("campaignkit.cli", "soak"),
}  # fmt: skip
SCRIPT = re.compile(r"(?:^    |`)(scripts/[a-z]+)(?=[ `\n])([^`#\n|]*)", re.MULTILINE)


def section(title: str) -> str:
    found = re.search(rf"^##+ {re.escape(title)}\n(.*?)^#", README.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


def commands(text: str) -> list[str]:
    return [*TYPED.findall(text), *NAMED.findall(text)]


def test_every_command_of_the_readme_takes_these_options() -> None:
    group = typer.main.get_command(app)
    told = commands(README.read_text())
    assert len(told) > 20
    for command in told:
        name, *rest = shlex.split(command)
        one = group.commands[name]  # type: ignore[attr-defined]
        if rest or command in TYPED.findall(README.read_text()):
            one.make_context(name, rest)


def test_pages_exports_and_bundles_are_made_as_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for window in build(builders.slow_python(3, 0.08, hosts=2)):
        write_window(window, tmp_path / "DIR")
    monkeypatch.chdir(tmp_path)
    typed = TYPED.findall(section("A page, other tools, somebody else"))
    assert len(typed) == 5
    for command in typed:
        code = run(shlex.split(command))
        assert code == (1 if command.startswith(("report", "diagnose")) else 0), (command, capsys.readouterr().err)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "DIR",
        "again.html",
        "case.rankscope",
        "page.html",
        "stacks.json",
    ]


def test_windows_of_all_hosts_are_judged_together_and_against_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, job in (("DIR…", builders.slow_python(3, 0.08, hosts=2)), ("EARLIER", builders.Job(hosts=2))):
        for window in build(job):
            write_window(window, tmp_path / folder)
    monkeypatch.chdir(tmp_path)
    typed = [command for command in TYPED.findall(section("Use it")) if command.startswith("diagnose DIR")]
    assert typed == ["diagnose DIR…"]
    for command in (*typed, "diagnose DIR… --baseline EARLIER"):
        assert run(shlex.split(command)) == 1
        assert capsys.readouterr().out.startswith("FAULT  rank 3 on node-0: ")


def test_a_store_is_judged_tidied_and_remembered_as_the_readme_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o700)
    store = (tmp_path / "store").as_uri()
    send(store, *build(builders.slow_python(3, 0.08, hosts=2, start=time.time() - 300)))
    typed = TYPED.findall(section("Many hosts"))
    assert [command.split()[0] for command in typed] == ["record", "diagnose", "prune", "compact", "reputation"]
    for command in typed[1:]:
        words = shlex.split(command.replace("s3://bucket/windows", store))
        words += ["--keep", str(tmp_path / "kept.sqlite")] if words[0] == "reputation" else []
        code = {"diagnose": 1, "reputation": 3}.get(words[0], 0)  # two hosts are too few peers to vote
        assert run(words) == code, (command, capsys.readouterr().err)


def test_the_completion_of_the_readme_is_a_script_that_bash_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert "source <(.venv/bin/rankscope completion bash)" in README.read_text()
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


def test_every_script_of_the_readme_is_there_and_knows_its_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    helps: dict[str, str] = {}
    for script, rest in SCRIPT.findall(README.read_text()):
        path = REPOSITORY / script
        assert path.exists(), script
        wanted = re.findall(r"--[a-z][a-z-]*", rest)
        if not wanted or path.is_dir():
            continue
        name = f"{script} {rest.split()[0]}" if script in ("scripts/bench", "scripts/corpus") else script
        if name not in helps:
            helps[name] = help_of(name, monkeypatch, capsys)
        assert [option for option in wanted if option not in helps[name]] == [], (name, rest)


def test_every_file_that_the_readme_names_is_there_and_its_pictures_are_small() -> None:
    text = README.read_text()
    named = re.findall(r"`((?:tests|scripts|probes|observer|unwinder|diagnose)/[\w/.-]+)`", text)
    pictures = re.findall(r"(?:src|srcset)=\"([^\"]+)\"", text)
    assert len(named) > 10 and len(pictures) == 2
    assert [name for name in (*named, *pictures) if not (REPOSITORY / name).exists()] == []
    for picture in pictures:
        content = (REPOSITORY / picture).read_bytes()
        assert content.startswith(b"\x89PNG") and len(content) <= 200_000
