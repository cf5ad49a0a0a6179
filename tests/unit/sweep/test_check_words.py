"""What a finding says in each of its forms: words, units, what to do. An operator acts on these, at night."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from sweep_trees import (
    CPU,
    IB,
    NOW_S,
    TORCHRUN,
    UPTIME_S,
    host,
    ib,
    look,
    look_all,
    nic,
    process,
    put,
    remember,
    twice,
    with_gpus,
)

from rankscope.diagnose.sweep.checks import disk_full, disk_readonly, gpu_foreign_process, job_orphans
from rankscope.diagnose.sweep.context import Context
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.filesystems import Usage
from rankscope.diagnose.sweep.readings.training import Launched
from rankscope.probes.gpu.nvml import Gpu, GpuProcess
from rankscope.probes.host.mounts import Mount

GPU = Gpu(0, uuid="GPU-a", bus="00000000:3b:00.0", name="H100")


def logged(text: str, age_s: float) -> dict[str, str]:
    return {"dev/kmsg": f"3,1,{int((UPTIME_S - age_s) * 1e6)},-;{text}\n"}


@pytest.mark.parametrize(("age_s", "state"), [(23.9 * 3600, "warning"), (24.1 * 3600, "ok")])
def test_a_corrected_error_of_a_cpu_is_told_for_a_day(tmp_path: Path, age_s: float, state: str) -> None:
    text = "mce: [Hardware Error]: Machine check events logged"
    (one,) = look(host(tmp_path, logged(text, age_s)), "cpu.mce")
    assert (one.state, one.value) == (state, 1.0 if state == "warning" else 0.0)


def test_a_cpu_that_went_off_and_one_that_never_was_on_are_told_apart(tmp_path: Path) -> None:
    (never,) = look(host(tmp_path, {f"{CPU}/online": "0-2\n"}), "cpu.offline")
    assert (never.state, never.why) == ("warning", "CPU 3 is there, but not in use")
    put(tmp_path, {f"{CPU}/online": "0-3\n"})
    (lost,) = twice(tmp_path, "cpu.offline", {f"{CPU}/online": "0-1\n"})
    assert (lost.state, lost.why) == ("critical", "CPU 2, 3 was online in an earlier sweep")


@pytest.mark.parametrize(
    ("files", "said"), [({}, ""), ({f"{CPU}/online": "0-1\n", f"{CPU}/smt/control": "off\n"}, "SMT is off")]
)
def test_of_cpus_that_are_off_on_purpose_it_is_said_why(tmp_path: Path, files: dict[str, str], said: str) -> None:
    (one,) = look(host(tmp_path, files), "cpu.offline")
    assert (one.state, one.why) == ("ok", said)


def disk(used_percent: float, inodes_percent: float, options: str = "rw") -> Usage:
    mount = Mount(30, 1, 8, 16, "/", "/data", options, "ext4", "/dev/sdb", options)
    return Usage(mount, True, total_bytes=10**12, free_bytes=5 * 10**9, used_percent=used_percent,
                 inodes_percent=inodes_percent)  # fmt: skip


def full(usage: Usage) -> Finding:
    return disk_full.judge(Context("disk.full", disk_full.SETTINGS), usage)


def test_a_disk_that_is_full_of_bytes_or_of_files() -> None:
    by_bytes, by_files, both = full(disk(97.04, 20.0)), full(disk(50.0, 99.0)), full(disk(97.0, 99.0))
    assert (by_bytes.state, by_bytes.value, by_bytes.unit, by_bytes.why) == ("warning", 97.0, "%", "5.0 GB left")
    assert (by_files.state, by_files.value, by_files.unit, by_files.why) == (
        "warning",
        99.0,
        "% of inodes",
        "no room for more files",
    )
    assert (both.unit, both.why) == ("%", "5.0 GB left")
    assert [one.state for one in (full(disk(50.0, 20.0)), full(disk(97.0, 20.0, "ro")))] == ["ok", "ok"]


NOWHERE = {"disk.full": "no file system with a size", "disk.readonly": "no file system on a device"}


@pytest.mark.parametrize("identifier", NOWHERE)
def test_where_there_is_no_file_system_it_is_said(tmp_path: Path, identifier: str) -> None:
    done = look_all(host(tmp_path, {"proc/self/mountinfo": "21 1 0:5 / /proc rw - proc proc rw\n"}), identifier)
    assert done.findings == () and NOWHERE[identifier] in done.skipped[0][1]


READ_ONLY = {"proc/self/mountinfo": "21 1 8:1 / / ro,relatime - ext4 /dev/sda1 ro\n"}


def test_what_to_do_with_a_file_system_that_became_read_only(tmp_path: Path) -> None:
    (asked,) = twice(host(tmp_path), "disk.readonly", READ_ONLY)
    assert (asked.state, asked.action) == ("warning", "Find out who remounted it, and why; then mount -o remount,rw.")
    (on_purpose,) = look(tmp_path, "disk.readonly")
    assert (on_purpose.state, on_purpose.value) == ("ok", "read-only")
    put(tmp_path, {"proc/self/mountinfo": "21 1 8:1 / / rw - ext4 /dev/sda1 rw,shutdown\n"})
    (broken,) = look(tmp_path, "disk.readonly")
    assert (broken.state, broken.action) == ("critical", "Drain the host; check the disk, then fsck and remount.")
    put(tmp_path, {"proc/self/mountinfo": "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n"})
    assert look(tmp_path, "disk.readonly")[0].value == "writable"
    assert disk_readonly.SETTINGS == {}


def test_versions_are_those_that_the_host_tells(tmp_path: Path) -> None:
    with_gpus(
        host(tmp_path, {**nic("eth0"), **nic("eth1"), **ib("mlx5_0")}),
        replace(GPU, vbios="96.00"),
        replace(GPU, index=1),
    )
    (tmp_path / "sys/bus/pci/drivers/mlx5_core").mkdir(parents=True)
    (tmp_path / "sys/class/net/eth0/device/driver").symlink_to("../../../../bus/pci/drivers/mlx5_core")
    told = {one.instance: one.value for one in look(tmp_path, "driver.versions")}
    assert told == {
        "kernel": "6.1.0", "driver of eth0": "mlx5_core", "firmware of mlx5_0": "28.39.1002", "nvidia module": "570.1",
        "VBIOS of gpu0": "96.00",
    }  # fmt: skip


@pytest.mark.parametrize("comm", gpu_foreign_process.SETTINGS["known"])
def test_no_monitor_is_a_stranger_on_a_gpu(tmp_path: Path, comm: str) -> None:
    files = {**process(7, "R", 5), "proc/7/environ": TORCHRUN, **process(11, "R", 5, f"{comm}d")}
    with_gpus(host(tmp_path, files), replace(GPU, processes=(GpuProcess(7, 10**9), GpuProcess(11, 10**9))))
    assert [one.state for one in look(tmp_path, "gpu.foreign-process")] == ["ok"]


def test_monitors_of_gpus_are_these() -> None:
    assert gpu_foreign_process.SETTINGS["known"] == (
        "dcgm",
        "nv-hostengine",
        "nvidia-smi",
        "nvidia-persistenced",
        "nvidia-cuda-mps",
    )


def test_without_gpus_or_without_the_right_nothing_is_said_of_processes_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = look_all(with_gpus(host(tmp_path)), "gpu.foreign-process")
    assert done.findings == () and "no GPU" in done.skipped[0][1]
    with_gpus(host(tmp_path, process(7, "R", 5)), GPU)
    monkeypatch.setattr(gpu_foreign_process, "claims", lambda *_: Launched((), 3))
    (one,) = look(tmp_path, "gpu.foreign-process")
    assert one.state == "unknown" and "3 processes could not be looked at" in one.why


def test_of_gpus_that_are_missing_it_is_said_which_or_who_says_so(tmp_path: Path) -> None:
    with_gpus(host(tmp_path), GPU)
    (one,) = look(tmp_path, "gpu.lost", count=2)
    assert (one.state, one.why, one.expected) == ("critical", "an earlier sweep, or the setting, has more", "2 GPUs")
    assert one.action.startswith("Drain the host and power-cycle it")
    bus = "sys/bus/pci/devices/0000:5e:00.0"
    put(tmp_path, {f"{bus}/class": "0x030200", f"{bus}/vendor": "0x10de", f"{bus}/device": "0x2330"})
    (one,) = look(tmp_path, "gpu.lost", count=2)
    assert one.why == "missing: 0000:5e:00.0"


def test_a_library_that_does_not_work_tells_of_no_gpu(tmp_path: Path) -> None:
    with_gpus(host(tmp_path), GPU)
    put(tmp_path, {"nvml.json": '{"absent": "NVML: Driver Not Loaded"}'})
    assert [(one.state, one.why) for one in look(tmp_path, "gpu.lost")] == [("unknown", "NVML: Driver Not Loaded")]


def test_a_driver_that_is_not_loaded_is_to_be_loaded(tmp_path: Path) -> None:
    with_gpus(host(tmp_path), GPU)
    seen = remember(look_all(tmp_path, "gpu.lost"))
    (tmp_path / "proc/driver/nvidia/version").unlink()
    (one,) = look(tmp_path, "gpu.lost", seen, NOW_S + 10)
    assert one.why == "the NVIDIA driver is not loaded; an earlier sweep, or the setting, has more"
    assert one.action.startswith("Load it (modprobe nvidia)")


@pytest.mark.parametrize(("temperature", "said"), [(91, "the GPU is too hot at 91 °C"), (None, "the GPU is too hot")])
def test_how_hot_a_gpu_is_said_where_it_tells(tmp_path: Path, temperature: int | None, said: str) -> None:
    with_gpus(host(tmp_path), replace(GPU, throttle_reasons=0x20, temperature_c=temperature))
    assert [one.why for one in look(tmp_path, "gpu.throttle")] == [said]


@pytest.mark.parametrize(
    ("name", "unit"),
    [("symbol_error", "symbol errors/h"), ("port_rcv_errors", "errors/h"), ("out_of_sequence", "retransmissions/h")],
)
def test_what_a_port_counts_is_named(tmp_path: Path, name: str, unit: str) -> None:
    path = f"{IB}/{'hw_counters' if name == 'out_of_sequence' else 'counters'}/{name}"
    host(tmp_path, {**ib("mlx5_0"), path: "7"})
    (one,) = twice(tmp_path, "ib.errors", {path: "20007"})
    limit = one.expected.removeprefix("at most ")
    assert (one.unit, one.value) == (unit, 20000.0) and limit.partition(" ")[2] == f"{unit.removesuffix('/h')} an hour"


CHOSEN = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg="
POD = "12345678-1234-1234-1234-123456789abc"


@pytest.mark.parametrize(
    ("group", "job"),
    [
        ("/slurm/uid_0/job_77/step_0", "Slurm job 77, "),
        (f"/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{'a' * 64}.scope", f"pod {POD}, "),
        (f"/system.slice/docker-{'b' * 64}.scope", f"container {'b' * 12}, "),
        ("/user.slice", ""),
    ],
)
def test_who_was_killed_for_lack_of_memory_is_said_with_job_group_and_time(
    tmp_path: Path, group: str, job: str
) -> None:
    at = int(UPTIME_S * 1e6)
    lines = (
        f"6,1,{at},-;{CHOSEN}{group},task=python,pid=7,uid=1000",
        f"3,2,{at},-;Memory cgroup out of memory: Killed process 7 (python) total-vm:1",
    )
    killed = {"proc/vmstat": "oom_kill 2\n", "dev/kmsg": "\n".join(lines) + "\n"}
    (named,) = twice(host(tmp_path), "mem.oom", killed)
    clock = time.strftime("%H:%M:%S", time.localtime(NOW_S))
    assert named.why.startswith(f"killed: python (pid 7, {job}user 1000, at {clock}, at the limit of {group[:30]}")
    assert "a higher memory limit" in named.action


def test_who_was_killed_is_said_as_far_as_the_log_can_be_read(tmp_path: Path) -> None:
    line = f"3,1,{int(UPTIME_S * 1e6)},-;Out of memory: Killed process 7 (python) total-vm:1\n"
    (bare,) = twice(host(tmp_path / "bare"), "mem.oom", {"proc/vmstat": "oom_kill 2\n", "dev/kmsg": line})
    assert bare.why.startswith("killed: python (pid 7, at ") and "more memory or a higher limit" in bare.action
    assert "limit" not in bare.why
    (within,) = twice(
        host(tmp_path / "group"),
        "mem.oom",
        {"proc/vmstat": "oom_kill 2\n", "dev/kmsg": line.replace("Out of memory", "Memory cgroup out of memory")},
    )
    assert within.why.endswith(", at its cgroup's limit)") and "a higher memory limit" in within.action
    (unnamed,) = twice(host(tmp_path / "other"), "mem.oom", {"proc/vmstat": "oom_kill 2\n"})
    assert unnamed.why == "processes were killed for lack of memory"


def test_without_the_right_to_look_no_process_is_called_left_over_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_orphans, "claims", lambda *_: Launched((), 3))
    (one,) = look(host(tmp_path), "job.orphans")
    assert one.state == "unknown" and "3 processes could not be looked at" in one.why
