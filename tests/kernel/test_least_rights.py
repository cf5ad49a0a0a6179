"""What observes has two capabilities and holds no program; what attaches holds them; and a second observer hears of the first."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import small_rank
from installed import RANKSCOPE
from programs import left_after, programs_of

from rankscope.observer.apart import confined
from rankscope.probes.confine import credentials


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _children(pid: int) -> dict[int, dict[str, str]]:
    return {child.pid: _status(child.pid) for child in psutil.Process(pid).children()}


def _record(rank: int, out: Path, seconds: int) -> subprocess.Popen[str]:
    command = [RANKSCOPE, "record", "--window", str(seconds), "--pid", str(rank), "--out", out]
    return subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_who_observes_has_two_capabilities_and_who_attaches_holds_the_programs(tmp_path: Path) -> None:
    with small_rank.running(tmp_path) as rank:
        command = _record(rank, tmp_path / "out", 4)
        assert command.stderr is not None
        assert any("observing " in line for line in command.stderr)
        children = _children(command.pid)
        (observer,) = [
            pid for pid, status in children.items() if status["Uid"].split()[0] == str(credentials.NOBODYS_USER)
        ]
        (guard,) = [pid for pid in children if "warden.py" in " ".join(psutil.Process(pid).cmdline())]
        assert int(children[guard]["CapPrm"], 16).bit_count() == 4 and children[guard]["NoNewPrivs"] == "1"
        del children[guard]
        opens_gpus = [pid for pid in children if "opener.py" in " ".join(psutil.Process(pid).cmdline())]
        (reader,) = [pid for pid in children if pid not in (observer, *opens_gpus)]
        assert int(children[observer]["CapPrm"], 16) == credentials.mask(confined.KEPT)
        assert int(children[reader]["CapPrm"], 16).bit_count() == 3
        assert [int(children[pid]["CapPrm"], 16).bit_count() for pid in opens_gpus] == [1] * len(opens_gpus)
        for status in children.values():
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        # It goes first while the window lasts, though it may not say so itself.
        deadline = time.monotonic() + 3
        while psutil.Process(observer).nice() != -10 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert psutil.Process(observer).nice() == -10
        held = programs_of(command.pid)
        assert len(held) > 20 and programs_of(observer) == set() == programs_of(reader)
        # A second one is told who is at work already.
        second = _record(rank, tmp_path / "second", 1)
        _, said = second.communicate(timeout=60)
        assert f"another observer runs on this host, and also slows down the jobs: pid {command.pid} (" in said
        assert second.returncode == 0, said
        _, said = command.communicate(timeout=60)
        assert command.returncode == 0 and f"pid {second.pid} (" not in said, said
    assert left_after(held) == set()
    assert not psutil.pid_exists(observer) and list((tmp_path / "out").iterdir())


def test_when_the_observing_process_is_killed_the_command_says_so_in_one_line_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    with small_rank.running(tmp_path) as rank:
        command = _record(rank, tmp_path / "out", 30)
        assert command.stderr is not None
        assert any("observing " in line for line in command.stderr)
        held = programs_of(command.pid)
        (observer,) = [
            pid
            for pid, status in _children(command.pid).items()
            if status["Uid"].split()[0] == str(credentials.NOBODYS_USER)
        ]
        began = time.monotonic()
        os.kill(observer, 9)
        _, said = command.communicate(timeout=30)
        assert command.returncode == 69 and time.monotonic() - began < 5
        lines = [line for line in said.splitlines() if line.startswith("rankscope:")]
        assert len(lines) == 1 and "the observing process ended by SIGKILL" in lines[0]
        assert list((tmp_path / "out").iterdir()) == []
        assert psutil.pid_exists(rank)
    assert left_after(held) == set()


_PREPARED = """
import sys
from rankscope.observer.recorder import Order, RecordOptions, stand_by
def orders(_):
    sys.stdin.read()
    return Order(0.5)
stand_by(RecordOptions(pids=(int(sys.argv[1]),)), orders, print, lambda _: None)
"""
_WAYS = {
    "record": [str(RANKSCOPE), "record", "--window", "30", "--pid", "RANK", "--out", "OUT"],
    "diagnose": [str(RANKSCOPE), "diagnose", "--window", "30", "--pid", "RANK"],
    "top": [str(RANKSCOPE), "top", "--state", "OUT"],
    "prepared by the service": [sys.executable, "-c", _PREPARED, "RANK"],
}


def _descriptors(pid: int) -> int:
    (line,) = [
        line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max open files")
    ]
    return int(line.split()[3])


@pytest.mark.parametrize("way", _WAYS)
def test_whoever_observes_dies_before_a_rank_and_may_open_many_files(tmp_path: Path, way: str) -> None:
    with small_rank.running(tmp_path) as rank:
        command = [{"RANK": str(rank), "OUT": str(tmp_path / "out")}.get(word, word) for word in _WAYS[way]]
        usual = (
            'echo 0 >/proc/self/oom_score_adj && ulimit -Sn 1000 && exec "$@"'  # tests that record have changed ours
        )
        with (
            (tmp_path / "said").open("w") as said,
            subprocess.Popen(
                ["/bin/sh", "-c", usual, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
            ) as started,
        ):
            try:
                deadline = time.monotonic() + 30
                while len(held := programs_of(started.pid)) < 20 and time.monotonic() < deadline:
                    assert started.poll() is None, (tmp_path / "said").read_text()
                    time.sleep(0.05)
                everybody = [started.pid, *_children(started.pid)]
                assert len(held) >= 20 and len(everybody) >= 2
                scores = {int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in everybody}
                assert scores == {1000}
                most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]  # who may raise that one gets more
                assert min(map(_descriptors, everybody)) >= min(65536, most) > 1000
            finally:
                started.terminate()
    assert left_after(held) == set()
