"""systemd that runs a unit for real where it is not the first process: a manager of root's, in a control group and mounts of its own.

It applies what a unit asks for: capabilities, call filter, private and read-only files, devices, notification, watchdog. It moves
the processes that it finds in its root control group; in a namespace these are its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SYSTEMD = Path("/lib/systemd/systemd")
_GROUPS = Path("/sys/fs/cgroup")
# What the first process makes on a host with systemd, and a file system that it mounts there.
_START = """
echo $$ >{group}/cgroup.procs
exec unshare --mount --cgroup sh -c '
mount -t cgroup2 none /sys/fs/cgroup
mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing
mount -t tmpfs none /run
mkdir -p /run/systemd/system /run/systemd/inaccessible/dir /run/rankscope/observers
cd /run/systemd/inaccessible && touch reg && mkfifo fifo && mknod chr c 0 0 && mknod blk b 0 0 && chmod 0 * && cd /
exec {systemd} --user --log-target=null'
"""


@dataclass(frozen=True, slots=True)
class Manager:
    """`folder`: below it lie `state`, `cache` and `units`. Not below /tmp or /home: units see those not."""

    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        names = {
            "RUNTIME_DIR": "run",
            "STATE_HOME": "state",
            "CONFIG_HOME": "state",
            "CACHE_HOME": "cache",
            "DATA_HOME": "data",
        }
        places = {f"XDG_{name}": str(self.folder / folder) for name, folder in names.items()}
        return os.environ | places | {"SYSTEMD_UNIT_PATH": str(self.folder / "units")}

    def control(self, *words: str, timeout_s: float = 90.0) -> str:
        """`systemctl`, and what it printed. AssertionError where it failed."""
        done = subprocess.run(
            ["systemctl", "--user", "--no-pager", *words],
            env=self.environment, capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@contextlib.contextmanager
def running() -> Iterator[Manager]:
    """A manager without units but those put into its folder; all that it started is gone afterwards."""
    unified = _GROUPS / "unified"
    folder = Path(tempfile.mkdtemp(prefix="rankscope-trial-", dir="/var/lib"))
    group = (unified if unified.is_dir() else _GROUPS) / folder.name
    group.mkdir()
    manager = Manager(folder)
    for name in ("run", "state", "cache", "data", "units"):
        (folder / name).mkdir(mode=0o700)
    for target in ("default", "basic"):
        (folder / f"units/{target}.target").write_text("[Unit]\nDescription=trial\n")
    script = _START.format(group=group, systemd=SYSTEMD)
    try:
        with subprocess.Popen(
            ["sh", "-c", script], env=manager.environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            try:
                deadline = time.monotonic() + 20
                while not (folder / "run/systemd/private").exists():
                    assert process.poll() is None and time.monotonic() < deadline, "systemd does not start"
                    time.sleep(0.05)
                yield manager
            finally:
                _kill_all(group)
    finally:
        for one in sorted(group.rglob("*"), reverse=True):
            if one.is_dir():
                one.rmdir()
        group.rmdir()
        shutil.rmtree(folder)


def _kill_all(group: Path) -> None:
    (group / "cgroup.kill").write_text("1")
    deadline = time.monotonic() + 20
    while "populated 1" in (group / "cgroup.events").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
