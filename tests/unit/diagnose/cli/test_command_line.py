"""The command line: exit codes and one-line errors."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import MagicMock

import builders
import pytest
from builders import Job, build

from rankscope.diagnose.face.cli.host import doctor
from rankscope.diagnose.face.cli.main import run
from rankscope.observer import recorder
from rankscope.observer.census.found import RankCensus
from rankscope.observer.finish import last
from rankscope.observer.finish import windows as finish
from rankscope.observer.window.folder import read_window, write_window


@pytest.fixture
def faulty(tmp_path: Path) -> Path:
    for window in build(builders.slow_python(3, 0.08, hosts=2)):
        write_window(window, tmp_path / "faulty")
    return tmp_path / "faulty"


@pytest.mark.parametrize(
    "arguments",
    [
        ["diagnose", "--nonsense"],
        ["bogus"],
        ["record"],
        ["diagnose", "--window", "x"],
        ["diagnose", "--window", "0"],
        [],
    ],
)
def test_wrong_usage_is_64(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 64
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["diagnose", "--help"]])
def test_asking_is_0(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    assert "rankscope" in capsys.readouterr().out.lower() or arguments[-1] == "--help"


def test_a_folder_of_windows_is_diagnosed(faulty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", str(faulty), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["suspects"][0]["ranks"] == [3]


def test_single_window_folders_are_diagnosed_together(faulty: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diagnose", *map(str, sorted(faulty.iterdir()))]) == 1
    assert capsys.readouterr().out.startswith("FAULT  Rank 3 on node-0: augment (train.py:56) takes longer there")


def test_a_baseline_of_another_job_is_65(faulty: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for window in build(Job(name="other")):
        write_window(window, tmp_path / "other")
    assert run(["diagnose", str(faulty), "--baseline", str(tmp_path / "other")]) == 65
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "foreign", "file"])
def test_unusable_folders_are_65_in_one_line(faulty: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    window = sorted(faulty.iterdir())[0]
    target = window
    if damage == "missing":
        target = faulty / "nothing"
    elif damage == "empty":
        target = faulty / "hollow"
        target.mkdir()
    elif damage == "truncated":
        table = window / "steps.parquet"
        table.write_bytes(table.read_bytes()[:100])
    elif damage == "foreign":
        (window / "window.json").write_text('{"schema": "else/1"}')
    else:
        target = window / "window.json"
    assert run(["diagnose", str(target)]) == 65
    err = capsys.readouterr().err
    assert err.startswith("rankscope: ") and err.count("\n") == 1


def test_pids_and_folders_together_make_no_sense(faulty: Path) -> None:
    assert run(["diagnose", str(faulty), "--pid", "1"]) == 64


def test_record_says_where_each_window_lies_though_one_name_begins_like_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # GIVEN a host with two jobs, and an observation that is over at once
    (window,) = build(builders.slow_python(3, 0.08))
    jobs = ["torch-a:2950", "torch-a:29500"]
    windows = [replace(window, manifest=replace(window.manifest, jobs=(job,))) for job in jobs]
    monkeypatch.setattr(recorder.os, "geteuid", lambda: 0)
    monkeypatch.setattr(recorder, "find_ranks", lambda *_, **__: RankCensus((), (), ()))
    ranks = tuple(MagicMock(**{"identity.job": job}) for job in jobs)
    monkeypatch.setattr(recorder, "choose", lambda *_: ranks)
    monkeypatch.setattr(recorder.observation, "begin", MagicMock())
    monkeypatch.setattr(last, "read_last", lambda *_: None)
    monkeypatch.setattr(finish, "windows_from", lambda *_: windows)
    # THEN the folder that is printed for a job holds the window of that job
    assert run(["record", "--out", str(tmp_path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [one["jobs"] for one in said] == [[job] for job in jobs]
    assert [read_window(Path(one["folder"])).manifest.jobs for one in said] == [(job,) for job in jobs]


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (OSError(errno.ENOSPC, "No space left on device"), "Free space"),
        (MemoryError(), "ulimit -v"),
        (ImportError("libscipy_openblas.so: failed to map segment from shared object"), "ulimit -v"),
    ],
)
def test_what_the_host_lacks_is_missing_and_not_bad_data(
    error: Exception, remedy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "run", MagicMock(side_effect=error))
    assert run(["doctor"]) == 69
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("rankscope: ") and remedy in line


@pytest.mark.parametrize("addresses_mb", [190, 215, 240])
def test_little_memory_keeps_no_command_waiting_for_ever(addresses_mb: int) -> None:
    """The OpenBLAS that comes with scipy did, for the memory of its second thread."""
    limit = addresses_mb << 20
    text = "from rankscope.diagnose.face.cli import start; start.spare_threads(); import numpy, scipy.special"
    done = subprocess.run(
        [sys.executable, "-c", text], timeout=60, check=False, capture_output=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )  # fmt: skip
    assert done.returncode in (0, 1)


def test_no_command_starts_threads_for_linear_algebra() -> None:
    text = (
        "from rankscope.diagnose.face.cli import start; start.spare_threads(); import numpy, scipy.special, os; "
        "print(len(os.listdir('/proc/self/task')))"
    )
    bare = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", text], timeout=60, check=True, capture_output=True, text=True, env=bare
    )
    assert done.stdout == "1\n"


@pytest.mark.parametrize(("limit_bytes", "code"), [(resource.RLIM_INFINITY, 70), (1 << 60, 69)])
def test_a_library_that_fails_without_a_word_lacks_memory_where_that_is_limited(
    limit_bytes: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "run", MagicMock(side_effect=SystemError("error return without exception set")))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit_bytes, limit_bytes))
    assert run(["doctor"]) == code


def test_a_command_does_not_load_pandas_though_it_is_installed(tmp_path: Path) -> None:
    # GIVEN a pandas that says when it is loaded
    (tmp_path / "pandas.py").write_text("print('pandas was loaded')\n")
    file = tmp_path / "timings.csv"
    lines = [f"{rank},{step},f,gpu,{1 + 0.001 * (rank + step)}" for rank in range(4) for step in range(12)]
    file.write_text("\n".join(["rank,step,function,kind,seconds", *lines, ""]))
    # WHEN a command makes tables
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv[1:] = ['diagnose', '--steps', {str(file)!r}]; "
        "from rankscope.diagnose.face.cli.start import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    # THEN it is not
    assert "HEALTHY" in done.stdout and "pandas" not in done.stdout + done.stderr, (done.stdout, done.stderr)


def test_nobody_looks_for_cycles_while_a_command_loads_and_no_store_is_loaded_for_a_folder(tmp_path: Path) -> None:
    script = (
        "import gc, sys\n"
        "from rankscope.diagnose.face.cli import start\n"
        "passes = []\n"
        "gc.callbacks.append(lambda phase, _: passes.append(phase))\n"
        f"sys.argv = ['rankscope', 'record', '--out', {str(tmp_path / 'out')!r}, '--pid', '1']\n"
        "try:\n"
        "    start.main()\n"
        "except SystemExit as end:\n"
        "    assert end.code in (3, 77), end.code\n"
        "assert 'rankscope.observer.finish.windows' in sys.modules and gc.isenabled()\n"
        "assert 'rankscope.observer.window.store.objects' not in sys.modules\n"
        "print(passes.count('start'))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20
