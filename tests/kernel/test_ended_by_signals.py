"""SIGTERM and SIGHUP end a command as Ctrl-C does: with a word, and with everything removed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import small_rank
from installed import RANKSCOPE
from programs import left_after, programs_of

_WAYS = {
    "record": ("record", "--window", "30", "--pid", "RANK", "--out", "OUT"),
    "diagnose": ("diagnose", "--window", "30", "--pid", "RANK", "--no-history"),
}


def _groups(pid: int) -> list[Path]:
    return list(Path("/sys/fs/cgroup").rglob(f"rankscope-{pid}-*"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("way", _WAYS)
def test_it_says_that_it_was_ended_and_leaves_nothing(tmp_path: Path, way: str, number: signal.Signals) -> None:
    with small_rank.running(tmp_path, port=29844) as rank:
        names = {"RANK": str(rank), "OUT": str(tmp_path / "out")}
        usual = ("env", "--default-signal=HUP")  # the tests may run under nohup
        command = [*usual, RANKSCOPE, *(names.get(word, word) for word in _WAYS[way])]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as started:
            assert started.stderr is not None
            assert any("observing " in line for line in started.stderr)
            held, children = programs_of(started.pid), [one.pid for one in psutil.Process(started.pid).children()]
            assert held and children
            started.send_signal(number)
            said = started.stderr.read()
            assert started.wait(20) == 130
        assert said.splitlines()[-1] == "rankscope: interrupted; nothing was left behind"
        assert psutil.pid_exists(rank)
    assert _groups(started.pid) == [] and left_after(held) == set()
    deadline = time.monotonic() + 5  # those that were let go end by themselves
    while any(map(psutil.pid_exists, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in children if psutil.pid_exists(pid)] == []
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


def test_what_is_to_outlive_a_terminal_does() -> None:
    """nohup: SIGHUP is ignored, and stays so; a fork has the usual answers to both."""
    program = (
        "import os, signal, sys\n"
        "from rankscope.diagnose.face.cli import start\n"
        "start.end_when_asked()\n"
        "print(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, callable(signal.getsignal(signal.SIGTERM)), flush=True)\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "try:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "except KeyboardInterrupt:\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    print('once', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert done.stdout.split() == ["True", "True", "True", "once"], done.stderr
