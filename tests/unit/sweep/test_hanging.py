"""What hangs, and for how long: a host that is slow, or waits for a file server that starts again, is no broken one."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sweep_trees import NOW_S, NV, UPTIME_S, host, look, look_all, process, put, remember, state_of

from rankscope.diagnose.sweep.checks import fs_stuck, os_zombie_gpu
from rankscope.diagnose.sweep.context import Context, Unreadable
from rankscope.diagnose.sweep.readings import filesystems
from rankscope.diagnose.sweep.readings import hanging as hanging_reading
from rankscope.diagnose.sweep.readings.filesystems import Usage, mounts, usages
from rankscope.diagnose.sweep.readings.kernel_events import recent, unix_time
from rankscope.diagnose.sweep.readings.kernel_stacks import Held

NFS = "21 1 0:40 / /data rw - nfs4 filer:/x rw\n"
RPC = "[<0>] rpc_wait_bit_killable+0x1e/0x90 [sunrpc]\n"
BEGINS_LATE = "import time; time.sleep(20)"
BEGINS_AND_WAITS = "print('begun', flush=True); import time; time.sleep(20)"
BEGINS_AND_ENDS = "print('begun', flush=True)"


def silent_mounts(monkeypatch: pytest.MonkeyPatch, waits: str = "") -> None:
    monkeypatch.setattr(
        fs_stuck, "usages", lambda context, _: [Usage(mount, False, waits=waits) for mount in mounts(context)]
    )


@pytest.fixture(params=["mount", "process"])
def hanging(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host on which a mount of a file server, or a process in a driver, hangs."""
    if request.param == "mount":
        silent_mounts(monkeypatch)
        return host(tmp_path, {"proc/self/mountinfo": NFS})
    monkeypatch.setattr(fs_stuck, "usages", lambda context, _: ())
    return host(tmp_path, {**process(11, "D", 1, "cp"), "proc/11/stack": RPC})


def test_what_hangs_is_critical_when_it_has_for_a_while(hanging: Path) -> None:
    seen = look_all(hanging, "fs.stuck", wait_s=0.01)
    # sweeps before and after jobs: a file server that hands over to another is not away for ever
    for seconds, state in ((2, "warning"), (15, "warning"), (119, "warning"), (121, "critical"), (600, "critical")):
        seen = look_all(hanging, "fs.stuck", remember(seen), NOW_S + seconds, wait_s=0.01)
        assert state_of(seen.findings) == state, seconds
        assert seen.findings[0].since_s == NOW_S


def test_a_clock_that_is_set_makes_nothing_hang_longer(hanging: Path) -> None:
    seen = remember(look_all(hanging, "fs.stuck", wait_s=0.01))
    put(hanging, {"proc/uptime": f"{UPTIME_S + 15} 1.0\n"})
    assert state_of(look(hanging, "fs.stuck", seen, NOW_S + 86400, wait_s=0.01)) == "warning"
    put(hanging, {"proc/uptime": f"{UPTIME_S + 300} 1.0\n"})
    assert state_of(look(hanging, "fs.stuck", seen, NOW_S - 86400, wait_s=0.01)) == "critical"


def test_what_hung_in_another_boot_does_not_count(hanging: Path) -> None:
    seen = remember(look_all(hanging, "fs.stuck", wait_s=0.01))
    put(hanging, {"proc/sys/kernel/random/boot_id": "boot-two\n"})
    assert state_of(look(hanging, "fs.stuck", seen, NOW_S + 300, wait_s=0.01)) == "warning"


def test_what_a_suspended_host_slept_through_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN this host, suspended for a day between two sweeps a minute apart: /proc/uptime goes on meanwhile, the kernel's log does not
    clock = [1000.0]
    monkeypatch.setattr(hanging_reading, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    before, after = (
        Context("fs.stuck", {}, now_s=NOW_S + slept, uptime_s=UPTIME_S + slept, boot="b") for slept in (0.0, 90_060.0)
    )
    word = hanging_reading.since(before, 0.0)
    clock[0] += 60
    assert hanging_reading.lasting_s(after, word) == 60.0
    assert recent(after, 1000.0, 24.0) and unix_time(after, 1000.0) == after.now_s - 60


@pytest.mark.parametrize(("waits", "state"), [("", "warning"), ("a disk", "critical")])
def test_a_local_file_system_that_does_not_answer_is_critical_only_by_what_the_kernel_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: str, state: str
) -> None:
    silent_mounts(monkeypatch, waits)
    seen = remember(look_all(host(tmp_path), "fs.stuck", wait_s=0.01))
    (found,) = look(tmp_path, "fs.stuck", seen, NOW_S + 300, wait_s=0.01)
    assert (found.instance, found.state) == ("/", state) and waits in found.why


@pytest.mark.parametrize("script", [BEGINS_LATE, BEGINS_AND_ENDS])
def test_a_program_of_ours_that_does_not_come_to_asking_speaks_against_no_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    # GIVEN a host that has no time or no memory for it, and more to ask than fits into a pipe
    monkeypatch.setattr(filesystems, "_START_S", 0.2 if script == BEGINS_LATE else 10.0)
    monkeypatch.setattr(filesystems, "_SCRIPT", script)
    lines = "".join(
        f"{number} 1 0:{number} / /{'x' * 1000}/{number} rw - nfs4 filer:/{number} rw\n" for number in range(2, 300)
    )
    host(tmp_path, {"proc/self/mountinfo": lines})
    began = time.monotonic()
    assert [(one.state, one.instance) for one in look(tmp_path, "fs.stuck", wait_s=0.01)] == [("unknown", "")]
    assert time.monotonic() - began < 3


def test_patience_with_a_mount_begins_when_the_program_that_asks_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN a program that begins later than a mount may take to answer, by a clock on which every wait for it takes so long
    clock, takes = [0.0], [0.7, 0.5, 0.5]

    def ready(*of: Any) -> tuple[list[Any], list[Any], list[Any]]:
        *streams, limit_s = of
        needed = takes.pop(0)
        clock[0] += min(needed, limit_s)
        return ([], [], []) if limit_s < needed else select.select(*streams, 60.0)

    monkeypatch.setattr(filesystems, "select", SimpleNamespace(select=ready))
    monkeypatch.setattr(filesystems, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(filesystems, "_START_S", 10.0)
    host(tmp_path)
    assert [usage.answered for usage in usages(Context("fs.stuck", {}, tmp_path), 0.6)] == [True]


def test_what_our_program_waits_for_is_seen_before_it_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystems, "_SCRIPT", BEGINS_AND_WAITS)
    monkeypatch.setattr(
        filesystems, "held", lambda pid: Held("a disk" if Path(f"/proc/{pid}/stat").exists() else "", True)
    )
    (found,) = usages(Context("fs.stuck", {}, host(tmp_path)), 0.1)
    assert not found.answered and found.waits == "a disk"


def test_where_one_mount_hangs_the_next_child_that_does_not_begin_hides_it_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Callable[[tuple[filesystems.Mount, ...]], list[Usage]]] = [lambda wanted: [Usage(wanted[0], False)]]

    def ask(_: object, wanted: tuple[filesystems.Mount, ...], __: float) -> list[Usage]:
        if not answers:
            raise Unreadable("late")
        return answers.pop()(wanted)

    monkeypatch.setattr(filesystems, "_ask_child", ask)
    host(tmp_path, {"proc/self/mountinfo": NFS + NFS.replace("0:40", "0:41").replace("/data", "/more")})
    found = usages(Context("fs.stuck", {}, tmp_path))
    assert [(usage.mount.mount_point, usage.answered) for usage in found] == [("/data", False)]


def test_mounts_in_memory_push_no_disk_and_no_file_server_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN more mounts of pods than are looked at, before the host's own
    monkeypatch.setattr(filesystems, "MAX_MOUNTS", 8)
    pods = "".join(f"{100 + one} 1 0:{100 + one} / /pod/{one} rw - tmpfs tmpfs rw\n" for one in range(40))
    others = "300 1 0:300 / /pod/layer rw - overlay overlay rw\n301 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
    host(tmp_path, {"proc/self/mountinfo": f"{pods}{others}{NFS}"})
    found = [mount.mount_point for mount in mounts(Context("disk.full", {}, tmp_path))]
    assert len(found) == 8 and {*found[:2]} == {"/", "/data"} and "/pod/layer" in found
    # THEN it is said once how many are not
    monkeypatch.setattr(fs_stuck, "usages", lambda context, _: ())
    unknown = [one for one in look(tmp_path, "fs.stuck", wait_s=0.01) if one.state == "unknown"]
    assert [(one.instance, one.why.split()[0]) for one in unknown] == [("mounts", "35")]


def test_mounts_are_asked_before_processes_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a user whose processes keep whoever reads of them waiting
    told: list[str] = []
    silent_mounts(monkeypatch)

    def waits(*_: object) -> list[object]:
        told.append("processes")
        return []

    monkeypatch.setattr(fs_stuck, "_uninterruptible", waits)
    host(tmp_path, {"proc/self/mountinfo": NFS})
    context = Context("fs.stuck", fs_stuck.SETTINGS, tmp_path, NOW_S, UPTIME_S)
    first = next(iter(fs_stuck.run(context)))
    assert first.instance == "/data" and told == []


def test_mounts_that_hang_leave_time_for_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN mounts that take all the time that there is
    began = threading.Event()
    beside: list[bool] = []

    def slowly(context: Context, _: float) -> list[Usage]:
        beside.append(began.wait(2.0))
        return [Usage(mount, False) for mount in mounts(context)]

    real = fs_stuck._uninterruptible

    def looks(*of: Any) -> Any:
        began.set()
        return real(*of)

    monkeypatch.setattr(fs_stuck, "usages", slowly)
    monkeypatch.setattr(fs_stuck, "_uninterruptible", looks)
    host(tmp_path, {"proc/self/mountinfo": NFS, **process(11, "D", 1, "cp")})
    # THEN processes are looked at meanwhile
    found = look(tmp_path, "fs.stuck", patience_s=0.05, wait_s=0.01)
    assert beside == [True] and [one.instance for one in found] == ["/data", "cp (11)"]


def test_processes_that_keep_the_first_look_waiting_keep_no_mount_from_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, kept = threading.Event(), threading.Event()

    def never(*_: object) -> list[object]:
        looking.set()
        kept.wait(60)
        return []

    def slowly(context: Context, _: float) -> list[Usage]:
        looking.wait(10)
        return [Usage(mount, False) for mount in mounts(context)]

    monkeypatch.setattr(fs_stuck, "usages", slowly)
    monkeypatch.setattr(fs_stuck, "_uninterruptible", never)
    host(tmp_path, {"proc/self/mountinfo": NFS})
    context = Context("fs.stuck", {**fs_stuck.SETTINGS, "patience_s": 0.01}, tmp_path, NOW_S, UPTIME_S)
    findings = fs_stuck.run(context)
    assert next(findings).instance == "/data" and looking.is_set()
    kept.set()
    assert list(findings) == []


def test_where_no_thread_is_to_be_had_processes_are_looked_at_after_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused(threading.Thread):
        def start(self) -> None:
            if self.name == "first-look":
                raise RuntimeError("can't start new thread")
            super().start()

    monkeypatch.setattr(fs_stuck, "usages", lambda context, _: ())
    monkeypatch.setattr(fs_stuck, "threading", SimpleNamespace(Thread=Refused, Event=threading.Event))
    host(tmp_path, process(11, "D", 1, "cp"))
    assert [one.instance for one in look(tmp_path, "fs.stuck", wait_s=0.01)] == ["cp (11)"]


def test_a_crowd_in_state_d_does_not_keep_the_driver_s_victims_from_being_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN many processes of one user, and one of another with a higher number that the driver keeps
    host(tmp_path, {"proc/driver/nvidia/version": "NVRM version\n"})
    for pid in (*range(100, 140), 900):
        files = process(pid, "D", 1)
        stat, user = files[f"proc/{pid}/stat"], 1001 if pid == 900 else 1000
        put(
            tmp_path,
            {**files, f"proc/{pid}/task/{pid}/stat": stat, f"proc/{pid}/task/{pid}/stack": NV if pid == 900 else ""},
        )
        put(
            tmp_path,
            {f"proc/{pid}/status": f"Tgid:\t{pid}\nUid:\t{user}\t{user}\n", f"proc/{pid}/task/{pid}/wchan": "0"},
        )
    looked: list[int] = []
    real = os_zombie_gpu.held

    def slowly(pid: int, tid: int | None, root: Path) -> Held:
        looked.append(pid)  # each costs a second of this clock
        return real(pid, tid, root)

    # WHEN there is time for some of them
    monkeypatch.setattr(os_zombie_gpu, "held", slowly)
    monkeypatch.setattr(os_zombie_gpu, "_STACKS_S", 5.0)
    monkeypatch.setattr(os_zombie_gpu, "time", SimpleNamespace(sleep=time.sleep, monotonic=lambda: float(len(looked))))
    seen = remember(look_all(tmp_path, "os.zombie-gpu", wait_s=0.0))
    looked.clear()
    found = look(tmp_path, "os.zombie-gpu", seen, NOW_S + 300, wait_s=0.0)
    # THEN the other user's turn comes in time, and it is said that there are more
    assert len(looked) == 6 and looked[1] == 900
    assert [(one.state, one.instance) for one in found] == [("critical", "python (900)"), ("unknown", "")]


def in_driver(tmp_path: Path, state: str) -> Path:
    """A rank whose second thread is in the driver; the first too, or it has ended."""
    stat, thread = process(11, state, 1)["proc/11/stat"], process(12, "D", 1)["proc/12/stat"]
    files = {
        "proc/11/task/11/stat": stat,
        "proc/11/task/11/stack": NV,
        "proc/11/task/12/stat": thread,
        "proc/11/task/12/stack": NV,
    }
    host(tmp_path, {"proc/driver/nvidia/version": "NVRM version\n", **process(11, state, 1), **files})
    ran(tmp_path, 11, 7)
    ran(tmp_path, 12, 7)
    return tmp_path


def ran(root: Path, tid: int, times: int) -> None:
    place = "proc/11/status" if tid == 11 else f"proc/11/task/{tid}/status"
    put(root, {place: f"voluntary_ctxt_switches:\t{times}\nnonvoluntary_ctxt_switches:\t0\n"})


@pytest.mark.parametrize("state", ["D", "Z"])
def test_who_is_in_the_nvidia_driver_hangs_when_it_has_not_run_for_a_while(tmp_path: Path, state: str) -> None:
    seen = look_all(in_driver(tmp_path, state), "os.zombie-gpu", wait_s=0.01)
    for seconds, expected in ((2, "warning"), (119, "warning"), (121, "critical"), (600, "critical")):
        seen = look_all(tmp_path, "os.zombie-gpu", remember(seen), NOW_S + seconds, wait_s=0.01)
        assert [(one.state, one.since_s) for one in seen.findings] == [(expected, NOW_S)], seconds
    # WHEN one of its threads runs, the other hangs as before
    ran(tmp_path, 11, 8)
    seen = look_all(tmp_path, "os.zombie-gpu", remember(seen), NOW_S + 700, wait_s=0.01)
    assert state_of(seen.findings) == "critical"
    ran(tmp_path, 12, 8)
    seen = look_all(tmp_path, "os.zombie-gpu", remember(seen), NOW_S + 750, wait_s=0.01)
    assert state_of(seen.findings) == "warning"


def test_who_runs_in_the_nvidia_driver_does_not_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # GIVEN a rank that opens its GPUs, or gives memory back: in state D whenever it is looked at, and running in between
    in_driver(tmp_path, "D")

    def waits(_: float) -> None:
        ran(tmp_path, 11, 8)
        ran(tmp_path, 12, 9)

    monkeypatch.setattr(os_zombie_gpu, "time", SimpleNamespace(sleep=waits, monotonic=time.monotonic))
    assert state_of(look(tmp_path, "os.zombie-gpu")) == "ok"


@pytest.mark.parametrize(("state", "what"), [("D", "it hangs"), ("Z", "it died, but a thread of it hangs")])
def test_what_hangs_in_the_driver_and_what_to_do_is_said(tmp_path: Path, state: str, what: str) -> None:
    seen = look_all(in_driver(tmp_path, state), "os.zombie-gpu", wait_s=0.01)
    (first,) = seen.findings
    assert (first.why, first.action.partition(":")[0]) == (f"{what} in the NVIDIA driver", "Look again in 120 s")
    (later,) = look(tmp_path, "os.zombie-gpu", remember(seen), NOW_S + 121, wait_s=0.01)
    assert later.why == f"{what} in the NVIDIA driver, and has not run for 121 s"
    assert later.action == "Drain the host; reset the GPU or reboot."


def test_of_a_zombie_whose_threads_cannot_be_looked_into_that_is_said(tmp_path: Path) -> None:
    in_driver(tmp_path, "Z")
    put(tmp_path, {"proc/11/task/12/stack": "", "proc/11/task/12/wchan": "0"})
    (one,) = look(tmp_path, "os.zombie-gpu", wait_s=0.01)
    assert (one.state, one.why) == ("warning", "it died, but a thread of it hangs; in what may not be seen")
    assert one.action == "Look at the stack as root: the driver, or something else?"
