"""What the confined process holds, and what it may not have done for it: each limit by itself, with all else that is asked in order."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confined_work import Say, said

from rankscope.observer.apart import broker, confined, devices, memory_cap, run, wire
from rankscope.observer.apart.broker import Broker
from rankscope.observer.apart.reading import Reading
from rankscope.observer.apart.windows import windows_of
from rankscope.observer.live import limits
from rankscope.probes.confine import credentials
from rankscope.probes.host import procfs
from rankscope.unwinder.walk import pyspy

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="rights are given up by who has them")
_PR_GET_DUMPABLE = 3


def test_nothing_that_the_command_has_open_is_open_in_it(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    low = os.open(tmp_path / "lock", os.O_RDWR)
    high = fcntl.fcntl(low, fcntl.F_DUPFD, 900)

    def tell(say: Say) -> None:
        for one in sorted(Path("/proc/self/fd").iterdir(), key=lambda path: int(path.name)):
            with contextlib.suppress(OSError):  # that of the list itself
                say(str(one.readlink()))

    try:
        lines = said(tell)
    finally:
        os.close(low)
        os.close(high)
    assert lines[:3] == ["/dev/null"] * 3
    assert lines[3:] and all(line.startswith("socket:") for line in lines[3:]), lines


def test_nobody_takes_from_it_what_it_read_and_no_program_could_get_more_rights_than_it_has() -> None:
    def tell(say: Say) -> None:
        (bounds,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapBnd")]
        say(bounds.split()[1])
        say(str(resource.getrlimit(resource.RLIMIT_CORE)))
        say(str(ctypes.CDLL(None).prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0)))
        say(repr(signal.getsignal(signal.SIGINT)))

    bounds, *others = said(tell)
    assert int(bounds, 16) & ~credentials.mask((*confined.KEPT, credentials.CAP_BPF)) == 0
    assert others == ["(0, 0)", "0", repr(signal.SIG_IGN)]  # Ctrl-C is for the command, which ends it in order


def test_a_signal_that_ends_it_ends_it_whatever_the_command_does_with_it() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert said(lambda say: say(repr(signal.getsignal(signal.SIGTERM)))) == [repr(signal.SIG_DFL)]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_was_loaded_before_is_not_looked_through_for_garbage() -> None:
    gc.unfreeze()
    try:
        (frozen,) = said(lambda say: say(str(gc.get_freeze_count())))
    finally:
        gc.freeze()  # as the session has it
    assert int(frozen) > 1000


FAILS = """
import sys
from rankscope.observer.apart.windows import windows_of
def fail(say):
    raise ValueError("odd")
try:
    windows_of(fail, print, verbose=sys.argv[1] == "verbose")
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("how", "to", "printed"), [("verbose", "pipe", True), ("quiet", "pipe", False), ("verbose", "/dev/full", False)]
)
def test_where_it_failed_is_printed_to_who_wants_to_know_and_why_is_told_in_any_case(
    how: str, to: str, printed: bool
) -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-c", FAILS, how], stdout=subprocess.PIPE, stderr=full if to == "/dev/full" else subprocess.PIPE, check=True
        )  # fmt: skip
    assert done.stdout == b"odd\n" and (b"in fail" in (done.stderr or b"")) == printed


def test_whoever_started_it_is_gone_before_it_began_and_so_is_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined.os, "getppid", lambda: 1)
    with pytest.raises(run.ObserverEnded, match="without a word"):
        said(lambda say: say("at work"))


def test_where_its_calls_cannot_be_filtered_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: bytes) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(credentials, "filter_calls", refuse)
    monkeypatch.setattr(devices, "present", list)
    assert said(lambda say: say("at work")) == [
        "the observer's system calls are not filtered: [Errno 22] Invalid argument", "at work",
    ]  # fmt: skip


def test_whether_maps_can_be_read_is_tried_with_no_more_than_it_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever is not root, too, and still has all that it came with."""

    class Trial:
        def __init__(self) -> None:
            self.map_fd, self.tried_with = os.dup(0), -1

        def __getitem__(self, _: object) -> None:
            self.tried_with = credentials.effective()

    trial: Any = Trial()
    monkeypatch.setattr(confined.os, "geteuid", lambda: 1000)
    lines: list[str] = []
    work = lambda client: client.tell("say", text=str(trial.tried_with))  # noqa: E731
    run.run(work, Reading(), lambda *_: False, lines.append, trial=trial, longest_s=10)
    os.close(trial.map_fd)
    assert lines[-1] == str(credentials.mask(confined.KEPT))


def test_devices_of_all_makers_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"nvidiactl", "nvidia0", "nvidia-caps/nvidia-cap1", "kfd", "dri/renderD128"}
    for name in (*names, "zero", "nvidia-uvm"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(devices, "FOLDER", tmp_path)
    assert {str(path.relative_to(tmp_path)) for path in devices.present()} == names


def test_it_ends_with_its_work_and_does_nothing_that_the_command_does_afterwards() -> None:
    command, went_on = os.getpid(), mmap.mmap(-1, 4096)  # both write to it
    try:
        assert windows_of(lambda _: [], lambda _: None) == []
    finally:
        if os.getpid() != command:
            went_on[0] = 1
    assert went_on[0] == 0


def test_where_it_cannot_be_killed_it_ends_as_its_socket_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int, _number: int) -> None:
        raise PermissionError(1, "not permitted")

    def fail(*_: object) -> bool:
        raise RuntimeError("odd")

    monkeypatch.setattr(run.os, "kill", refuse)
    services = Reading()
    with pytest.raises(RuntimeError, match="odd"):
        run.run(lambda client: client.ask("x"), services, fail, lambda _: None, longest_s=10)
    with pytest.raises(ChildProcessError):
        os.waitpid(services.served, os.WNOHANG)


def test_what_was_done_for_it_is_undone_also_where_the_command_fails() -> None:
    undone: list[str] = []

    class Noting(Reading):
        def close(self) -> None:
            undone.append("closed")
            super().close()

    def fail(*_: object) -> bool:
        raise RuntimeError("odd")

    with pytest.raises(RuntimeError, match="odd"):
        run.run(lambda client: client.ask("x"), Noting(), fail, lambda _: None, longest_s=10)
    assert undone == ["closed"]


def test_nothing_of_it_stays_open_in_the_command() -> None:
    held = os.listdir("/proc/self/fd")  # noqa: PTH208
    assert said(lambda say: say("at work")) == ["at work"]
    assert os.listdir("/proc/self/fd") == held  # noqa: PTH208


def test_where_it_must_stay_root_its_memory_is_hidden_none_the_less(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(user: int, groups: list[int]) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(credentials, "become", refuse)  # which hides it, too
    assert said(lambda say: say(str(ctypes.CDLL(None).prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0))))[-1] == "0"


def test_what_it_says_is_told_as_far_as_a_line_goes() -> None:
    (line,) = said(lambda say: say("x" * 100_000))
    assert len(line) <= 401


def test_groups_of_devices_are_kept_but_never_roots(tmp_path: Path) -> None:
    nodes = [tmp_path / name for name in ("roots", "of video", "open")]
    for device, group, mode in zip(nodes, (0, 44, 45), (0o660, 0o660, 0o666), strict=True):
        device.touch()
        os.chown(device, 0, group)
        device.chmod(mode)
    assert devices.groups(nodes) == [44]


def test_descriptors_that_come_with_what_it_says_are_not_kept() -> None:
    ours, theirs = wire.pair()
    with ours, theirs:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for what in ("say", "nonsense", "done"):
            wire.send(theirs, {"what": what}, [0] * 100)
        run._serve(ours, Reading(), lambda *_: False, lambda _: None, time.monotonic() + 10)
        assert len(list(Path("/proc/self/fd").iterdir())) == before


# --- what is asked of the process that has the rights


class Attached:
    """Probes that are loaded, and only note what is attached."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[int]]] = []
        self.held: set[int] = set()

    def attach_functions(self, function: str, _path: Path, places: list[int], *_: object, **__: object) -> list[int]:
        self.asked.append((function, places))
        return [7]

    def close(self) -> None:
        pass


@pytest.fixture
def loaded() -> Iterator[tuple[Broker, Attached, int]]:
    probes, handed = Attached(), os.open(os.devnull, os.O_RDONLY)
    yield Broker(served=os.getpid(), module=cast(Any, probes)), probes, handed
    os.close(handed)


GOOD: dict[str, Any] = {"function": "rs_enter_0", "offsets": [1], "on_return": False}


@pytest.mark.parametrize(
    "wrong",
    [{"function": "rs_sample"}, {"function": "kprobe"}, {"function": 7}, {"offsets": []}, {"offsets": [-1]}, {"offsets": ["/etc"]},
     {"offsets": [True]}, {"offsets": [1] * 65537}, {"counters": [[1, 1]] * 65537}, {"counters": [[1, -1]]}],
    ids=lambda wrong: repr(wrong)[:40],
)  # fmt: skip
def test_only_programs_that_are_for_it_are_attached_at_places_that_can_be(
    loaded: tuple[Broker, Attached, int], wrong: dict[str, Any]
) -> None:
    asked, probes, handed = loaded
    with pytest.raises((ValueError, TypeError)):
        asked.answer({"what": "attach", **GOOD, **wrong}, (handed,))
    assert probes.asked == []
    assert asked.answer({"what": "attach", **GOOD}, (handed,))[0] == {"links": [7]}
    assert probes.asked == [("rs_enter_0", [1])]


def test_probes_are_loaded_once(loaded: tuple[Broker, Attached, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def load(**_: object) -> object:
        raise AssertionError("loaded again")

    monkeypatch.setattr(broker.kernel_probes, "load_module", load)
    with pytest.raises(ValueError, match="already"):
        loaded[0].answer({"what": "load", "hz": 99, "ranks": 1, "processes": 1, "threads": 1, "verbose": False}, ())


def test_a_process_that_was_not_started_for_it_is_not_ended() -> None:
    with subprocess.Popen(["sleep", "60"]) as others:
        try:
            assert Reading(served=os.getpid()).answer({"what": "end_reader", "pid": others.pid, "kill": True}, ()) == (
                {},
                (),
            )
            with pytest.raises(subprocess.TimeoutExpired):
                others.wait(0.1)
        finally:
            others.kill()


def test_only_so_many_processes_are_sampled_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspy, "start", lambda *_: SimpleNamespace(end=lambda: (0, ())))
    ours = Broker(served=os.getpid())
    for pid in range(1, limits.SAMPLED_MOST + 1):
        ours.answer({"what": "pyspy_start", "pid": pid, "duration_s": 1, "rate_hz": 19, "idle": False}, ())
    with pytest.raises(ValueError, match="too many"):
        ours.answer({"what": "pyspy_start", "pid": 999, "duration_s": 1, "rate_hz": 19, "idle": False}, ())
    ours.close()


# --- the limit of memory, where others have groups too


def test_a_group_is_removed_when_its_command_has_ended_and_not_before(tmp_path: Path) -> None:
    ticks = procfs.start_ticks(os.getpid())
    ours, before_ours, of_nobody = (
        tmp_path / f"rankscope-{name}"
        for name in (f"{os.getpid()}-{ticks}", f"{os.getpid()}-{ticks + 1}", "999999999-1")
    )
    for folder in (ours, before_ours, of_nobody):
        folder.mkdir()
    memory_cap._remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == [ours]


def test_what_is_limited_is_not_swapped_out_instead(tmp_path: Path) -> None:
    for version, swap, most in (
        (1, "memory.memsw.limit_in_bytes", str(64 << 20)),
        (2, "memory.swap.max", "0"),
    ):
        memory_cap._limit(memory_cap.MemoryCap(tmp_path, version), 64 << 20)
        assert (tmp_path / swap).read_text() == most


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """It stands for the only control group of this host; no limit is set."""
    monkeypatch.setattr(memory_cap.cgroup, "memory_folders", lambda _: (2, [str(tmp_path)]))
    monkeypatch.setattr(memory_cap.cgroup, "sample_cgroup", lambda _: SimpleNamespace(tightest_memory=None))
    return tmp_path


def test_a_group_is_made_with_its_limit_and_abandoned_ones_are_removed(folder: Path) -> None:
    (folder / "rankscope-999999999-1").mkdir()
    made = memory_cap.make(64 << 20)
    assert made is not None and list(folder.iterdir()) == [made.folder]
    assert (made.folder / "memory.max").read_text() == str(64 << 20)


def test_a_group_whose_limit_cannot_be_set_is_not_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr(memory_cap, "_limit", refuse)
    assert memory_cap.make(64 << 20) is None and list(folder.iterdir()) == []


@pytest.mark.parametrize(("limit_bytes", "made"), [(32 << 20, False), (64 << 20, False), (128 << 20, True)])
def test_no_group_is_made_below_a_limit_that_is_as_low(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limit_bytes: int, made: bool
) -> None:
    limited = SimpleNamespace(tightest_memory=SimpleNamespace(limit_bytes=limit_bytes))
    monkeypatch.setattr(memory_cap.cgroup, "sample_cgroup", lambda _: limited)
    assert (memory_cap.make(64 << 20) is not None) == made
