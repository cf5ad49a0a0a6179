"""Whatever ends `rankscope watch`, its probes end with it, and the next one starts."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from installed import RANKSCOPE
from programs import left_after, loaded, programs_of


def start(folder: Path) -> subprocess.Popen[str]:
    """A service that watches."""
    service = subprocess.Popen(
        [RANKSCOPE, "watch", "--json", "--state", folder / "state", "--history", folder / "history"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert service.stdout is not None
    assert json.loads(service.stdout.readline())["kind"] == "started"
    return service


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 0), (signal.SIGINT, 0)])
def test_a_service_that_ends_leaves_no_program_and_the_next_one_starts(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    tmp_path.chmod(0o700)
    service = start(tmp_path)
    programs = programs_of(service.pid)
    assert len(loaded(programs)) >= 1
    service.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        service.wait(1.5)
    service.send_signal(number)
    assert service.wait(20) == code
    assert left_after(programs) == set()
    again = start(tmp_path)
    again.kill()
    again.wait()


def test_a_second_service_is_refused_in_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    service = start(tmp_path)
    try:
        second = subprocess.run(
            [RANKSCOPE, "watch", "--state", tmp_path / "state"], capture_output=True, text=True, timeout=60, check=False
        )
    finally:
        service.kill()
        service.wait()
    assert second.returncode == 69
    assert len(second.stderr.splitlines()) == 1
    assert "another rankscope watch" in second.stderr
