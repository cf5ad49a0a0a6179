"""Whether GPUs can be opened by another process is tried before anything is filtered, and who opens them has no rights but that."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from rankscope.observer.apart import devices
from rankscope.probes.confine import credentials, seccomp

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="rights are given up by who has them")


@pytest.fixture
def filtered(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The filters that would have been installed; each takes a moment."""
    asked: list[bytes] = []

    def install(program: bytes) -> int:
        time.sleep(0.05)
        asked.append(program)
        return os.open(os.devnull, os.O_RDONLY)

    monkeypatch.setattr(credentials, "filter_and_listen", install)
    monkeypatch.setattr(devices.opener, "can_add", lambda _: True)
    return asked


def test_what_can_be_tried_is_tried_once_and_then_done(filtered: list[bytes]) -> None:
    held = os.listdir("/proc/self/fd")  # noqa: PTH208
    os.close(devices.listen())
    assert filtered == [seccomp.allow_all(), seccomp.program(writing=False, asking=True)]
    assert os.listdir("/proc/self/fd") == held  # noqa: PTH208


def test_where_the_kernel_cannot_be_asked_nothing_is_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def refuse(program: bytes) -> int:
        time.sleep(0.05)
        asked.append(program)
        raise OSError(errno.EBUSY, "busy")

    monkeypatch.setattr(credentials, "filter_and_listen", refuse)
    with pytest.raises(OSError, match="busy"):
        devices.listen()
    assert asked == [seccomp.allow_all()]


def test_where_the_kernel_cannot_hand_devices_over_nothing_is_filtered(
    filtered: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices.opener, "can_add", lambda _: False)
    held = os.listdir("/proc/self/fd")  # noqa: PTH208
    with pytest.raises(OSError, match="cannot pass opened devices"):
        devices.listen()
    assert filtered == [seccomp.allow_all()] and os.listdir("/proc/self/fd") == held  # noqa: PTH208


def test_where_no_thread_can_be_had_nothing_is_filtered(filtered: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="no thread"):
        devices.listen()
    assert filtered == []


def test_a_kernel_that_does_not_know_the_request_cannot_hand_devices_over() -> None:
    with open(os.devnull, "rb") as no_listener:  # noqa: PTH123
        assert not devices.opener.can_add(no_listener.fileno())


def test_who_opens_gpus_may_look_into_a_process_and_do_nothing_else() -> None:
    held = os.listdir("/proc/self/fd")  # noqa: PTH208
    listener, end = os.pipe()
    os.set_inheritable(end, True)  # as what others have opened may be
    nohup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who started the tests may ignore it, and a child with them
    pid = devices.start(listener)
    signal.signal(signal.SIGHUP, nohup)
    os.close(listener)
    try:
        deadline, status = time.monotonic() + 10, ""
        while (
            len(list(Path(f"/proc/{pid}/fd").iterdir())) > 4 or "Seccomp:\t2" not in status
        ) and time.monotonic() < deadline:
            time.sleep(0.02)
            status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.partition(":\t")[::2] for line in status.splitlines())
        assert (fields["Seccomp"], fields["NoNewPrivs"]) == ("2", "1")
        # A terminal that is closed, and Ctrl-C, are for the command.
        assert int(fields["SigIgn"], 16) & 0b11 == 0b11
        assert sorted(path.name for path in Path(f"/proc/{pid}/fd").iterdir()) == ["0", "1", "2", "3"]
        assert int(fields["CapPrm"], 16) == credentials.mask((credentials.CAP_SYS_PTRACE,))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(end)
    assert os.listdir("/proc/self/fd") == held  # noqa: PTH208
