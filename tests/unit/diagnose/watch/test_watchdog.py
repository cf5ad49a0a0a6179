"""A service tells who watches over it that it lives, with every beat; and it is not a stranger to its own looks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from rankscope.diagnose.service.service import Service, WatchOptions
from rankscope.diagnose.service.tell import watchdog
from rankscope.observer.apart import presence
from rankscope.observer.apart.presence import present

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="observers are root's")


@pytest.mark.parametrize("abstract", [False, True])
def test_each_beat_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool) -> None:
    place = f"@rankscope-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    beats: list[int] = []
    monkeypatch.setattr(Service, "beat", lambda self: beats.append(1))
    service = Service(
        cast(Any, SimpleNamespace(close=lambda: None)), cast(Any, None), WatchOptions(tmp_path), lambda _: None, print, cast(Any, None)
    )  # fmt: skip
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + place[1:] if abstract else place)
        listening.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", place)
        service.run(lambda _: {signal.SIGTERM})
        assert beats == [1]
        assert [listening.recv(64) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]
        with pytest.raises(BlockingIOError):
            listening.recv(64)


def test_where_nobody_listens_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    watchdog.tell(watchdog.ALIVE)
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent/socket")
    watchdog.tell(watchdog.ALIVE)


def test_a_file_tells_by_its_age_that_the_service_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = tmp_path / "alive"
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    monkeypatch.setenv("RANKSCOPE_ALIVE", str(alive))
    watchdog.tell(watchdog.READY)
    assert not alive.exists(), "it has done nothing yet"
    watchdog.tell(watchdog.ALIVE)
    os.utime(alive, (0, 0))
    watchdog.tell(watchdog.ALIVE)
    assert alive.stat().st_mtime > 0 and alive.stat().st_mode & 0o777 == 0o600
    alive.unlink()
    alive.symlink_to(tmp_path / "elsewhere")
    watchdog.tell(watchdog.ALIVE)
    assert not (tmp_path / "elsewhere").exists()


HOLD = """
import os
import sys
from rankscope.observer.apart.presence import present
if len(sys.argv) > 1:
    os.setuid(int(sys.argv[1]))
with present():
    print("here", flush=True)
    sys.stdin.readline()
"""
HOLD_AND_FORK = """
import os
import time
from rankscope.observer.apart.presence import present
with present():
    with present():
        pass
    if (child := os.fork()) == 0:
        time.sleep(60)
        os._exit(0)
    os.write(1, f"here\\n{child}\\n".encode())
    time.sleep(60)
"""
USERS_NAMES = """
import contextlib
import os
import socket
import sys
os.setuid(int(sys.argv[1]))
held = [socket.socket(socket.AF_UNIX) for _ in range(8)]
for number, one in enumerate(held):
    with contextlib.suppress(OSError):  # somebody holds it already
        one.bind(f"\\0rankscope-observer-{number}")
        one.listen()
print("here", flush=True)
sys.stdin.readline()
"""
ASK = """
from rankscope.observer.apart.presence import present
with present() as others:
    print([one.pid for one in others])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="observers are root's")
def test_a_second_observer_hears_of_the_first_until_it_ends_and_of_no_ancestor() -> None:
    first = subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None and first.stdout.readline() == "here\n"
    with present() as others:
        mine = [one for one in others if one.pid == first.pid]
        assert len(mine) == 1 and f"pid {first.pid} (python" in mine[0].text() and "UTC" in mine[0].text()
        asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
        assert str(first.pid) in asked.stdout and str(os.getpid()) not in asked.stdout
    first.kill()
    first.communicate()
    with present() as others:
        assert first.pid not in [one.pid for one in others]


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is needed")
def test_a_name_that_another_user_holds_is_no_observer() -> None:
    stranger = _holding(HOLD, "65534")
    with present() as others:
        assert stranger.pid not in [one.pid for one in others]
    _end(stranger)


def _holding(program: str = HOLD, *user: str) -> subprocess.Popen[str]:
    """Start a program that becomes `user`, if one is given, once it has imported what it needs."""
    started = subprocess.Popen(
        [sys.executable, "-c", program, *user], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None and started.stdout.readline() == "here\n"
    return started


def _end(*started: subprocess.Popen[str]) -> None:
    for one in started:
        one.kill()
        one.communicate()


@ROOT_ONLY
def test_an_observer_is_seen_however_often_it_was_asked_after_and_whatever_names_a_user_holds() -> None:
    user = _holding(USERS_NAMES, "65534")
    first = _holding()
    held = os.listdir("/proc/self/fd")  # noqa: PTH208
    for _ in range(150):
        with present() as others:
            pass
    assert os.listdir("/proc/self/fd") == held  # noqa: PTH208
    assert first.pid in [one.pid for one in others] and user.pid not in [one.pid for one in others]
    _end(first, user)


@ROOT_ONLY
def test_a_place_goes_with_who_holds_it_though_a_child_of_its_lives_and_stays_though_it_looks_again() -> None:
    first = _holding(HOLD_AND_FORK)
    file = presence.FOLDER / "places"
    assert file.stat().st_mode & 0o777 == 0o600 and file.stat().st_size == 0
    with present() as others:
        assert first.pid in [one.pid for one in others]
    first.kill()
    first.wait()
    assert first.stdout is not None
    child = int(first.stdout.readline())
    with present() as others:
        assert not {first.pid, child} & {one.pid for one in others}
    os.kill(child, signal.SIGKILL)
    first.communicate()
    assert [path.name for path in presence.FOLDER.iterdir()] == ["places"]


@ROOT_ONLY
def test_an_observer_without_a_number_here_is_told_all_the_same() -> None:
    first = _holding()
    ask = ASK.replace("one.pid", "one.text()")
    alone = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", ask]
    asked = subprocess.run(alone, capture_output=True, text=True, check=True)
    _end(first)
    assert "in another container" in asked.stdout


@ROOT_ONLY
def test_where_others_could_hold_places_or_there_is_no_run_that_is_said_and_nobody_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    said: list[str] = []
    held = os.listdir("/proc/self/fd")  # noqa: PTH208
    for spoil in (
        lambda run: None,
        lambda run: (run / "a").mkdir(parents=True, mode=0o777) or (run / "a").chmod(0o777),
        lambda run: (run / "a/b").mkdir(parents=True) or os.chown(run / "a/b", 65534, 65534),
        lambda run: (run / "a/b").mkdir(parents=True) or (run / "a/b/places").write_text(""),
        lambda run: (run / "a/b").mkdir(parents=True) or (run / "a/b/places").symlink_to("/etc/passwd"),
        lambda run: (run / "a/b").mkdir(parents=True) or os.mkfifo(run / "a/b/places", 0o600),
    ):
        run = tmp_path / f"run{len(said)}"
        monkeypatch.setattr(presence, "FOLDER", run / "a/b")
        spoil(run)
        before = len(said)
        with present(said.append) as others:
            assert others == ()
        assert len(said) == before + 1 and "it is unknown" in said[-1], spoil
    assert not (tmp_path / "run0").exists()
    assert os.listdir("/proc/self/fd") == held  # noqa: PTH208


def test_the_pods_probe_takes_a_moment_to_come_for_no_sign_of_life(tmp_path: Path) -> None:
    """A service that hangs as its clock is set back would else pass for alive until the old hour has come again."""
    manifest = Path(__file__).parents[4] / "scripts/deploy/kubernetes/watch-daemonset.yaml"
    container, _ = yaml.safe_load(manifest.read_text())["spec"]["template"]["spec"]["containers"]
    command = container["livenessProbe"]["exec"]["command"]
    alive = tmp_path / "watch"
    alive.touch()
    lives = {}
    for age_s in (-3600, -30, 0, 60, 600):
        os.utime(alive, (time.time() - age_s,) * 2)
        asked = [word.replace("/alive/watch", str(alive)) for word in command]
        lives[age_s] = subprocess.run(asked, check=False).returncode == 0
    assert lives == {-3600: False, -30: True, 0: True, 60: True, 600: False}
