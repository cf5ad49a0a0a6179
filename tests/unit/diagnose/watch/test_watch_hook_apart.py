"""What waits for a hook of the service is a process of its own: it holds nothing that the service has open, and ends when it is told to."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.diagnose.service.tell.hooks import Hooks

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a hook must be root's")


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[int]:
    """The process that waits for a hook, which has begun; the service has a file open and looks at SIGTERM when it has time."""
    hook = tmp_path / "hook"
    hook.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/begun.part\nmv {tmp_path}/begun.part {tmp_path}/begun\nexec sleep 30\n"
    )
    hook.chmod(0o755)
    told: list[int] = []
    usual = signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    hooks = Hooks(str(hook))
    with (tmp_path / "lock").open("w"):
        try:
            assert hooks.tell({"host": "h", "kind": "alarm"}, "critical") == ""
            (pid,) = hooks._running
            until = time.monotonic() + 10
            while not (tmp_path / "begun").exists() and time.monotonic() < until:
                time.sleep(0.01)
            yield pid
        finally:
            signal.signal(signal.SIGTERM, usual)
            hooks.reap()
            for left in hooks._running:
                os.kill(left, signal.SIGKILL)
                os.waitpid(left, 0)
            if (tmp_path / "begun").exists():
                os.kill(int((tmp_path / "begun").read_text()), signal.SIGKILL)


def test_it_holds_nothing_that_the_service_has_open(waiting: int, tmp_path: Path) -> None:
    held = [str(one.readlink()) for one in Path(f"/proc/{waiting}/fd").iterdir()]
    assert held and str(tmp_path / "lock") not in held


def test_it_ends_when_it_is_told_to(waiting: int) -> None:
    os.kill(waiting, signal.SIGTERM)
    until = time.monotonic() + 5
    while Path(f"/proc/{waiting}/stat").read_text().rpartition(") ")[2][0] != "Z" and time.monotonic() < until:
        time.sleep(0.01)
    assert Path(f"/proc/{waiting}/stat").read_text().rpartition(") ")[2][0] == "Z"
