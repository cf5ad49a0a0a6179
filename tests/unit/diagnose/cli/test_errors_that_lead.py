"""An error says what to do about itself, not about another one; and what nobody knows is no good news."""

from __future__ import annotations

import json
import os
from pathlib import Path

import builders
import printed
import pytest
from builders import build

from rankscope.diagnose.face.cli import causes
from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.observer import doctor
from rankscope.observer.doctor import Requirement


@pytest.mark.parametrize(
    ("arguments", "code", "remedy"),
    [
        (["diagnose", "{}/none"], 65, "Check the path."),
        (["sweep", "{}/none"], 65, "Check the path."),
        (["diagnose", "--steps", "{}/none"], 65, "Give a Parquet or CSV file of timings"),
        (["diagnose", "--steps", "{}/words"], 65, "Give a Parquet or CSV file of timings"),
        (["export", "{}/none", "--to", "foo", "--out", "{}/out"], 64, "See `rankscope export --help`."),
        (["completion", "tcsh"], 64, "See `rankscope completion --help`."),
        (["blackbox", "--state", "{}/none"], 69, "Give the --state of `rankscope watch`"),
        (["blackbox", "xyz", "--state", "{}"], 64, "See `rankscope blackbox --help`."),
    ],
)
def test_the_remedy_is_one_for_this_error(
    tmp_path: Path, arguments: list[str], code: int, remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "words").write_text("root:x:0\n")
    assert run([one.format(tmp_path) for one in arguments]) == code
    told = capsys.readouterr().err
    assert remedy in told and "Record the window again" not in told and "COMMAND" not in told


@pytest.mark.parametrize("command", ["top", "watch", "trigger"])
def test_where_root_alone_will_do_no_capability_is_asked_for(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert run([command]) == 77
    told = capsys.readouterr().err
    assert told.endswith("Run as root.\n") and "CAP_" not in told


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (PermissionError(13, "Permission denied", "/var/lib/x"), 77, "/var/lib/x: permission denied. Run as root."),
        (OSError(28, "No space left on device"), 69, "No space left on device. Free space."),
        (OSError("odd"), 69, "odd"),
    ],
)
def test_an_error_of_the_system_is_told_without_its_number(
    error: OSError, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**_: object) -> int:
        raise error

    monkeypatch.setattr(causes, "run", fails)
    assert run(["causes"]) == code
    assert capsys.readouterr().err == f"rankscope: {said}\n"


def test_a_store_that_cannot_be_read_is_not_told_of_a_spool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only what is recorded waits in one."""
    there = "s3://bucket/x?endpoint_override=127.0.0.1:9&scheme=http"
    assert run(["diagnose", there]) == 69
    told = capsys.readouterr().err
    assert "Check its address" in told and "spool" not in told and "next one" not in told


def test_a_user_without_the_right_to_make_a_map_is_told_to_ask_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    for refusal in (PermissionError(1, "Operation not permitted"), ValueError("not allowed to raise maximum limit")):

        def refuse(error: Exception = refusal) -> bool:
            raise error

        monkeypatch.setattr(doctor.tables, "has_rings", refuse)
        (kernel,) = [one for one in doctor.examine() if one.name == "kernel"]
        assert (kernel.ok, kernel.remedy, kernel.required) == (
            None,
            "Ask as root.",
            True,
        ) and "limit" not in kernel.detail


def test_a_reputation_of_nothing_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o700)
    assert run(["reputation", "--keep", str(tmp_path / "book")]) == 3
    assert capsys.readouterr().out.startswith("unknown:")


def test_what_is_well_has_no_remedy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    well = Requirement("kernel", True, "6.18", "Ask as root.", True)
    monkeypatch.setattr(
        doctor, "examine", lambda root: (well, Requirement("tracefs", False, "not there", "Mount it.", False))
    )
    assert run(["doctor", "-v"]) == 0
    told = capsys.readouterr().out
    assert "Ask as root" not in told and "-> Mount it." in told
    assert [one["remedy"] for one in printed.said("doctor", "--json")["findings"]] == ["", "Mount it."]


def test_a_verdict_has_what_programs_need_in_place_of_words() -> None:
    verdict = diagnose(build(builders.hogged(3, 0.08)))
    told = json.loads(to_json(verdict))
    assert told["steps"] == 70 and told["title"] == verdict.title
    assert told["note_codes"] == [note.code.value for note in verdict.notes] and len(told["notes"]) == len(
        told["note_codes"]
    )
    for suspect, seen in zip(told["suspects"], verdict.suspects, strict=True):
        assert [one["name"] for one in suspect["instances"]] == [one.name for one in seen.instances][
            : len(suspect["instances"])
        ]
        assert bool(suspect["instances"]) == bool(suspect["instance"])
