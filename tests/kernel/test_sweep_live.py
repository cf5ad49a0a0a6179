"""The sweep beside real trouble: a mount whose server never answers, and a real syslog socket."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from installed import RANKSCOPE

_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def sweep(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One sweep of a host that keeps its state in this folder, without a pause before the second look at what is critical, for which
    nothing needs to have lasted for long."""
    config = folder / "sweep.toml"
    config.write_text('[sweep]\nconfirm_s = 0\n\n[check."fs.stuck"]\ncritical_s = 0\n')
    command = [RANKSCOPE, "sweep", "--config", str(config), "--state", str(folder / "state"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def silent_mount(tmp_path: Path) -> Iterator[Path]:
    """A FUSE file system whose server was asked to mount and then says nothing, like a file server that is gone."""
    place = tmp_path / "gone"
    place.mkdir()
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    assert _libc.mount(b"server:/data", str(place).encode(), b"fuse", 0, options) == 0, os.strerror(ctypes.get_errno())
    yield place
    os.close(server)  # fails every request that hangs
    _libc.umount2(str(place).encode(), _MNT_DETACH)


def test_a_mount_that_does_not_answer_twice_is_critical_and_holds_nothing_up(
    silent_mount: Path, tmp_path: Path
) -> None:
    first = sweep(tmp_path, "--json", "--only", "fs.stuck,disk.full")
    assert first.returncode == 1, first.stdout + first.stderr  # it may be load
    began = time.monotonic()
    done = sweep(tmp_path, "--json", "--only", "fs.stuck,disk.full")
    assert time.monotonic() - began < 8
    assert done.returncode == 2, done.stdout + done.stderr
    findings = [finding for finding in json.loads(done.stdout)["findings"] if finding["state"] == "critical"]
    assert [(finding["id"], finding["instance"]) for finding in findings] == [("fs.stuck", str(silent_mount))]
    assert "server:/data hangs" in findings[0]["why"]


def test_what_is_wrong_goes_to_the_hosts_own_log(silent_mount: Path, tmp_path: Path) -> None:
    log = Path("/dev/log")
    sweep(tmp_path, "--only", "fs.stuck")  # what does not answer twice is critical
    if log.exists():  # somebody's syslog listens there: then only that the sweep can talk to it is seen
        assert sweep(tmp_path, "--syslog", "--only", "fs.stuck").returncode == 2
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(log))
        try:
            listening.settimeout(10)
            assert sweep(tmp_path, "--syslog", "--only", "fs.stuck").returncode == 2
            lines = [listening.recv(4096).decode() for _ in range(2)]
        finally:
            log.unlink()
    assert any("fs.stuck" in line and str(silent_mount) in line for line in lines)
    assert all("rankscope[" in line for line in lines)
