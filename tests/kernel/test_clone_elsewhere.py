"""A clone that only root can enter, below root's home and with spaces in its name: its command, its unit and its tests work from there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import small_rank

pytestmark = pytest.mark.apart  # its tests start the service, which sees every job of its host

REPOSITORY = Path(__file__).parents[2]
PORT = 29_777
# What runs as another user, and the unit that hides root's home.
TESTS = (
    "tests/kernel/test_watch_unit.py",
    "tests/unit/diagnose/watch/test_watchdog.py",
    "tests/unit/observer/test_apart.py::test_it_reads_what_observing_needs",
)
LARGE = ("torch", "torchgen", "functorch", "nvidia", "triton")


@pytest.fixture(scope="module")
def clone() -> Iterator[Path]:
    """The files of this clone, and its `.venv` as scripts/setup makes it; packages are links to those here, without PyTorch."""
    with tempfile.TemporaryDirectory(prefix="rankscope only for root ", dir=Path.home()) as folder:
        place = Path(folder) / "rank scope"
        place.mkdir()
        tracked = subprocess.run(
            ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=REPOSITORY, capture_output=True, check=True
        ).stdout.split(b"\0")
        present = [name.decode() for name in tracked if name and (REPOSITORY / name.decode()).exists()]
        subprocess.run(["cp", "-r", "--parents", *present, str(place)], cwd=REPOSITORY, check=True)
        python = f"{sys.base_exec_prefix}/bin/python3"
        made = [python, "-m", "venv", "--system-site-packages", "--without-pip", ".venv"]
        subprocess.run(made, cwd=place, check=True)
        here = Path(sysconfig.get_path("purelib"))
        there = place / ".venv" / here.relative_to(sys.prefix)
        packages = [one for one in here.iterdir() if not one.name.startswith(("__editable__", "rankscope-", *LARGE))]
        linked = subprocess.run(["cp", "-al", *packages, there], stderr=subprocess.DEVNULL, check=False)
        if linked.returncode:  # another file system
            subprocess.run(["cp", "-a", *packages, there], check=True)
        pip = [".venv/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, "--no-index", "--no-deps", "--no-build-isolation", "-e", "."], cwd=place, check=True)
        yield place


def _said(clone: Path, *words: str | Path, codes: tuple[int, ...] = (0,)) -> str:
    """What the clone's own command prints where nothing can be run in /tmp. AssertionError where it ends with another code, or a trace."""
    sealed = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o noexec,mode=1777 none /tmp && exec "$@"', "sh"]
    command = [*sealed, clone / ".venv/bin/rankscope", *words]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in codes and "Traceback" not in done.stderr, done.stdout + done.stderr
    return done.stdout


def test_a_clone_that_only_root_can_enter_observes_also_where_nothing_runs_in_tmp(clone: Path, tmp_path: Path) -> None:
    out = clone.parent / "windows"
    with small_rank.running(tmp_path, port=PORT) as rank:
        required = [one for one in json.loads(_said(clone, "doctor", "--json"))["findings"] if one["required"]]
        assert required and all(one["ok"] for one in required)
        said = _said(clone, "record", "--window", "1.5", "--pid", str(rank), "--out", out, "--json")
        assert [window["ranks"] for window in json.loads(said)] == [1]
    verdict = json.loads(_said(clone, "diagnose", out, "--json", codes=(0, 3)))
    assert verdict["ranks"] == [0] and str(clone) not in str(verdict)


def test_tests_say_at_once_that_nothing_runs_in_tmp() -> None:
    sealed = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o noexec none /tmp && exec "$@"', "sh"]
    environment = {name: value for name, value in os.environ.items() if name != "TMPDIR"}
    done = subprocess.run(
        [*sealed, REPOSITORY / "scripts/test"], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (69, "")
    (line,) = done.stderr.splitlines()
    assert "TMPDIR=/var/tmp scripts/test" in line


def test_what_runs_without_root_and_the_unit_work_from_there(clone: Path) -> None:
    done = subprocess.run(
        [".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--max-suite-reruns", "2", *TESTS],
        cwd=clone, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert "skipped" not in done.stdout
