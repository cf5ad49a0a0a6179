"""What opens GPUs for a confined process ends with who started it, also where nobody tells it that the confined one has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

# On kernels up to about 6.11 the listener is silent until who was asked for is waited for: here, as somebody behind it lives on.
_COMMAND = """
import os, signal, socket, time
from rankscope.observer.apart import devices
ours, theirs = socket.socketpair()
confined = os.fork()
if confined == 0:
    os.setsid()
    socket.send_fds(theirs, [b"!"], [devices.listen()])
    time.sleep(60)
    os._exit(0)
_, (listener,), _, _ = socket.recv_fds(ours, 1, 1)
opener = devices.start(listener)
os.close(listener)
print(confined, opener, flush=True)
signal.pause()
"""


def _runs(pid: int) -> bool:
    """Whether it has not ended, waited for or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def test_what_opens_gpus_ends_with_a_command_that_is_killed_though_who_can_ask_lives_on() -> None:
    with subprocess.Popen([sys.executable, "-c", _COMMAND], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        confined, opener = map(int, command.stdout.readline().split())
        try:
            time.sleep(0.5)
            assert _runs(opener)
            command.kill()
            command.wait()
            deadline = time.monotonic() + 10
            while _runs(opener) and time.monotonic() < deadline:
                time.sleep(0.05)
            assert _runs(confined) and not _runs(opener)
        finally:
            command.kill()
            for pid in (confined, opener):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
