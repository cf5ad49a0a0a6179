"""`-` for a file is standard output where a command makes one file, and refused elsewhere: no file is called so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import builders
import pytest
import typer.main
from builders import build

from rankscope.diagnose.face.cli.main import app, run
from rankscope.diagnose.face.cli.shell import dash
from rankscope.observer.window.bundle import read_bundle
from rankscope.observer.window.folder import write_window

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
REQUIRED = {
    "report": ["DIR", "--html", "p"], "export": ["DIR", "--to", "csv", "--out", "p"], "bundle": ["DIR", "--out", "p"],
    "record": ["--out", "p"], "prune": ["DIR", "--older-than", "1"],
}  # fmt: skip


def places() -> Iterator[tuple[str, str]]:
    for command, one in COMMANDS.items():
        for option in one.params:
            if option.param_type_name == "option" and option.metavar in dash.PATHS:
                yield command, option.opts[0]


@pytest.fixture
def windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for window in build(builders.slow_python(3, 0.08, hosts=2)):
        write_window(window, tmp_path / "DIR")
    monkeypatch.chdir(tmp_path)
    return "DIR"


@pytest.mark.parametrize(("command", "option"), sorted({*places()} - {*dash.WRITES}))
def test_elsewhere_it_is_refused_and_nothing_is_made(
    command: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = REQUIRED.get(command, [])
    at = words.index(option) if option in words else len(words)
    assert run([command, *words[:at], option, "-", *words[at + 2 :]]) == 64
    told = capsys.readouterr()
    assert f"{command} {option} takes a path and not -" in told.err and told.out == ""
    assert list(tmp_path.iterdir()) == []


def test_every_command_that_writes_there_exists() -> None:
    assert {*dash.WRITES} <= {*places()}


def test_a_page_an_export_and_a_bundle_go_through_a_pipe(
    windows: str, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert run(["report", windows, "--html", "-"]) == 1
    page = capfdbinary.readouterr()
    assert page.out.startswith(b"<!doctype html>") and page.out.rstrip().endswith(b"</html>") and b"Rank 3" in page.err
    assert run(["export", windows, "--to", "csv", "--out", "-"]) == 0
    table = capfdbinary.readouterr()
    assert table.out.startswith(b"rank,step,function,kind,seconds") and b"csv of 8 ranks" in table.err
    assert run(["bundle", windows, "--out", "-"]) == 0
    (tmp_path / "case").write_bytes(capfdbinary.readouterr().out)
    assert len(read_bundle(tmp_path / "case").windows) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["DIR", "case"]


@pytest.mark.parametrize("words", ["report DIR --html -", "export DIR --to csv --out -", "bundle DIR --out -"])
def test_with_json_there_is_no_room_for_it(words: str, windows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words.split(), "--json"]) == 64
    assert "--json prints to standard output" in capsys.readouterr().err
