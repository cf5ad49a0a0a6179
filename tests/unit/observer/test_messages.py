"""Messages between the command and the confined process: as large as they may be, no descriptor stays behind, an end is told as one."""

from __future__ import annotations

import os
import socket

import pytest
from builders import Job, build

from rankscope.observer.apart import windows, wire
from rankscope.observer.live import limits
from rankscope.probes.base.errors import BadData


def open_files() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_a_message_of_the_largest_size_passes_at_once() -> None:
    one, other = wire.pair()
    with one, other:
        one.setblocking(False)
        wire.send(one, {"text": "x" * ((1 << 20) - 20)})
        assert len(wire.receive(other)[0]["text"]) == (1 << 20) - 20


def test_that_the_other_process_has_ended_is_told_as_that_to_who_sends_and_to_who_receives() -> None:
    one, other = wire.pair()
    other.close()
    with one, pytest.raises(wire.Ended):
        wire.send(one, {})


def test_who_is_cut_off_while_it_waits_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reset:
        def recvmsg(self, *_: object) -> None:
            raise ConnectionResetError

    with pytest.raises(wire.Ended):
        wire.receive(Reset())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [ValueError, TypeError])
def test_an_error_of_the_language_is_raised_as_what_it_was(kind: type[Exception]) -> None:
    raised = wire.raised(wire.describe(kind("said")))
    assert type(raised) is kind and str(raised) == "said"


def test_descriptors_that_come_with_an_error_are_closed() -> None:
    one, other = wire.pair()
    with one, other:
        before = open_files()
        with open("/dev/null") as file:  # noqa: PTH123
            wire.send(other, wire.describe(ValueError("said")), [file.fileno(), file.fileno()])
        with pytest.raises(ValueError, match="said"):
            wire.Client(one).ask("anything")
        assert open_files() == before


def test_the_files_of_a_window_are_not_kept_by_who_sent_it() -> None:
    one, other = wire.pair()
    with one, other:
        before = open_files()
        windows._tell(wire.Client(one), build(Job())[0])
        assert open_files() == before
        told, handed = wire.receive(other)
        assert len(handed) == len(told["files"]) > 1
        wire.close_all(handed)


def test_no_more_windows_are_taken_than_a_host_has_jobs() -> None:
    window = build(Job())[0]
    taken = [window] * (limits.JOBS - 1)
    windows._add(taken, window)
    assert len(taken) == limits.JOBS
    with pytest.raises(BadData):
        windows._add(taken, window)
    assert len(taken) == limits.JOBS


def test_a_pair_of_sockets_is_nobody_elses() -> None:
    one, other = wire.pair()
    with one, other:
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_SEQPACKET
        assert not (os.get_inheritable(one.fileno()) or os.get_inheritable(other.fileno()))
