"""The commands beside a job that the lab did not write, and everything an operator can do wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from labsupport import REPOSITORY, RunningJob, begun, rankscope

pytestmark = pytest.mark.beside

Torchrun = Callable[..., RunningJob]
STATUSES = {"healthy", "fault", "imbalance", "hang", "unknown"}


def test_a_job_that_the_lab_did_not_start_gets_a_valid_verdict_with_the_slow_function(torchrun: Torchrun) -> None:
    job = torchrun("60", "1")
    done = rankscope("diagnose", "--no-history", "--json", "--window", "8", "--job", job.name)
    verdict = json.loads(done.stdout)
    assert verdict["schema"] == "rankscope.verdict/1"
    assert verdict["status"] == "fault", done.stdout
    first = verdict["suspects"][0]
    assert (first["component"], first["ranks"], first["function"]["name"]) == ("python", [1], "tokenize")
    assert 0.03 < first["lost_seconds_per_step"] < 0.09
    assert done.returncode == 1
    assert all("Traceback" not in text for text in (done.stdout, done.stderr))


def test_a_window_that_cannot_tell_is_followed_by_a_longer_one_and_an_interrupt_gives_what_was_told_before(
    torchrun: Torchrun, tmp_path: Path
) -> None:
    # GIVEN a job of two or three steps in the window that is asked for
    job = torchrun("90", "1", "0.5")
    ended = []
    for interrupted in (True, False):
        # WHEN it did not tell, and somebody has no time, or has
        out = str(tmp_path / str(interrupted))
        words = ["diagnose", "--no-history", "--json", "--window", "2", "--job", job.name, "--out", out]
        observer = begun(*words, once="observing for another")
        if interrupted:
            observer.send_signal(signal.SIGINT)
        said, _ = observer.communicate(timeout=120)
        ended.append((observer.returncode, json.loads(said)))
    # THEN there is what was told before, and what a longer one tells
    (code, before), (longer_code, longer) = ended
    assert (code, before["status"]) == (3, "unknown"), before
    assert (longer_code, longer["status"]) == (1, "fault"), longer
    assert longer["suspects"][0]["function"]["name"] == "tokenize"
    assert any(note.startswith("a window of 2.0 s before did not tell") for note in longer["notes"]), longer
    # AND the window that told it is kept, and tells the same
    for interrupted, verdict in ((True, before), (False, longer)):
        assert len(list((tmp_path / str(interrupted)).iterdir())) == 1
        again = json.loads(rankscope("diagnose", str(tmp_path / str(interrupted)), "--json").stdout)
        assert (again["status"], again["suspects"]) == (verdict["status"], verdict["suspects"])


@pytest.mark.parametrize("when", ["observing ", "to go"], ids=["before the window", "in the window"])
def test_a_rank_that_dies_is_named(torchrun: Torchrun, when: str) -> None:
    job = torchrun("60")
    victim = job.ranks()[1]
    # Windows begin after the probes are loaded: only the observer knows when.
    observer = begun("diagnose", "--no-history", "--json", "--window", "8", "--job", job.name, once=when)
    threading.Timer(0.0 if when == "observing " else 3.0, os.kill, (victim, signal.SIGKILL)).start()
    said, _ = observer.communicate(timeout=120)
    verdict = json.loads(said)
    assert (observer.returncode, verdict["status"]) == (2, "hang"), said
    first = verdict["suspects"][0]
    assert (first["component"], first["cause"], first["ranks"]) == ("process", "exited", [1])
    assert any(evidence["value"] == "SIGKILL" for evidence in first["evidence"])


def test_an_interrupt_ends_in_one_line_and_leaves_no_window(healthy_job: RunningJob, tmp_path: Path) -> None:
    job = healthy_job
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        observer = begun("record", "--out", str(tmp_path), "--window", "30", "--job", job.name)
        observer.send_signal(number)
        _, said = observer.communicate(timeout=30)
        assert observer.returncode == code
        assert "Traceback" not in said
        assert list(tmp_path.iterdir()) == []
    assert job.launcher.poll() is None


def test_a_full_disk_is_said_before_the_window_and_leaves_nothing(healthy_job: RunningJob, tmp_path: Path) -> None:
    job = healthy_job
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k,mode=700", "tmpfs", place], check=True)
    try:
        began = time.monotonic()
        done = rankscope("record", "--out", str(place), "--window", "20", "--job", job.name)
        assert done.returncode == 69
        assert "No space left" in done.stderr
        assert len(done.stderr.strip().splitlines()) <= 3
        assert time.monotonic() - began < 15
        assert list(place.iterdir()) == []
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (("diagnose", "--pid", "1"), 3, "pid 1 is not a rank"),
        (("record", "--out", "OUT", "--job", "no-such-job"), 3, "no"),
        (("record", "--out", "/tmp"), 69, "others can write"),
        (("record", "--out", "/tmp", "--window", "0"), 64, "window"),
        (("diagnose", "--out", "/tmp"), 69, "others can write"),
        (("diagnose", "--out", "OUT", "/usr"), 64, "--out"),
        (("diagnose", "/nonexistent"), 65, "there is no /nonexistent"),
        (("diagnose", "/usr"), 65, "no window"),
        (("frobnicate",), 64, "frobnicate"),
        (("record",), 64, "--out"),
    ],
)
def test_what_cannot_be_done_ends_in_one_clear_line(
    arguments: tuple[str, ...], code: int, word: str, tmp_path: Path
) -> None:
    done = rankscope(*(str(tmp_path) if argument == "OUT" else argument for argument in arguments))
    assert done.returncode == code, done.stderr
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_without_root_the_missing_right_is_named() -> None:
    # All that the command needs is loaded before: the clone may lie where other users cannot read it.
    code = (
        "import os, sys, rankscope.diagnose.face.cli.main, rankscope.diagnose.face.cli.record, rankscope.observer.recorder; "
        "rankscope.diagnose.face.cli.main.run(['record', '--help']); rankscope.observer.recorder.know_tables(); os.seteuid(65534); "
        "sys.argv = ['rankscope', 'record', '--out', '/tmp/rankscope-none']; rankscope.diagnose.face.cli.main.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 77
    assert "root" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_window_and_a_foreign_baseline_are_bad_data(healthy_job: RunningJob, tmp_path: Path) -> None:
    done = rankscope("record", "--out", str(tmp_path), "--window", "3", "--job", healthy_job.name)
    assert done.returncode == 0, done.stderr
    foreign = rankscope("diagnose", str(tmp_path), "--baseline", str(REPOSITORY / "tests/data/window-1/gil-hog"))
    assert foreign.returncode == 65
    assert "job" in foreign.stderr
    (folder,) = tmp_path.iterdir()
    table = folder / "steps.parquet"
    table.write_bytes(table.read_bytes()[:-40])
    damaged = rankscope("diagnose", str(tmp_path))
    assert damaged.returncode == 65
    assert "steps.parquet" in damaged.stderr
