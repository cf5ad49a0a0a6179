"""Hand-made /proc, /sys and /dev trees: a healthy host, to which a test adds what it is about."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rankscope.diagnose.sweep.config import Config
from rankscope.diagnose.sweep.context import Earlier, Reading
from rankscope.diagnose.sweep.engine import Sweep, sweep
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.registry import all_checks
from rankscope.probes.gpu.nvml import Gpu, NvmlReading, to_json

DEPLOY = Path(__file__).parents[2] / "scripts" / "deploy"
SWEPT = {"host": "node-7", "summary": {"state": "critical"}, "findings": [{"id": "gpu.xid", "state": "critical"}]}


NOW_S, UPTIME_S, BOOT = 1_800_000_000.0, 100_000.0, "boot-one"
HOUR_S = 3600.0
CPU, EDAC = "sys/devices/system/cpu", "sys/devices/system/edac/mc/mc0"
IB, NET = "sys/class/infiniband/mlx5_0/ports/1", "sys/class/net/eth0"
NV = "[<0>] nvidia_ioctl+0x1/0x2 [nvidia]\n"  # a stack in the driver
TORCHRUN = "RANK=3\0LOCAL_RANK=3\0WORLD_SIZE=8\0TORCHELASTIC_RUN_ID=none\0MASTER_PORT=29501\0"
MOVES = " 1.00\n"  # an uptime that goes on with the clock
CHECKS = {check.id: check for check in all_checks()}


def program(path: Path, text: str, mode: int = 0o755) -> Path:
    """A program of the shell."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(mode)
    return path


def put(root: Path, files: dict[str, str]) -> None:
    """Write files below a root; the folders are made."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def host(root: Path, files: dict[str, str] | None = None) -> Path:
    """A small healthy virtual machine."""
    put(
        root,
        {
            "proc/uptime": f"{UPTIME_S}{MOVES}",
            "proc/sys/kernel/random/boot_id": f"{BOOT}\n",
            "proc/sys/kernel/hostname": "node-7\n",
            "proc/sys/kernel/osrelease": "6.1.0\n",
            "proc/stat": "cpu  1000 0 1000 100000 0 0 0 0 0 0\ncpu0 1000 0 1000 100000 0 0 0 0 0 0\n",
            "proc/vmstat": "oom_kill 0\n",
            "proc/pressure/memory": "some avg10=0 total=0\nfull avg10=0 total=0\n",
            "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 900 kB\n",
            "proc/interrupts": "           CPU0\nMCE:          0   Machine check exceptions\n",
            "proc/loadavg": "0.0 0.0 0.0 1/200 4\n",
            "proc/sys/kernel/pid_max": "32768\n",
            "proc/sys/kernel/threads-max": "100000\n",
            "proc/sys/fs/file-nr": "1000 0 100000\n",
            "proc/cpuinfo": "flags : fpu hypervisor\n",
            "proc/self/mountinfo": "21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n",
            "proc/diskstats": "   8  0 sda 100 0 800 50 100 0 800 50 0 100 100\n",
            "sys/devices/system/cpu/present": "0-3\n",
            "sys/devices/system/cpu/online": "0-3\n",
            "dev/kmsg": "6,1,1000,-;Linux version 6.1.0\n",
            "adjtimex": "status=0x2001 maxerror_us=1000 offset_us=12\n",
        },
    )
    put(root, files or {})
    return root


def remember(done: Sweep) -> Earlier:
    """What the store would hand to the next sweep."""
    return Earlier(
        {(check, key): Reading(value, done.time_s, done.uptime_s, done.boot) for check, key, value in done.counters},
        {(check, key): word for check, key, word in done.words},
    )


def look(
    root: Path, identifier: str, earlier: Earlier | None = None, now_s: float = NOW_S, **settings: float
) -> tuple[Finding, ...]:
    """The findings of one check."""
    return look_all(root, identifier, earlier, now_s, **settings).findings


def look_all(
    root: Path, identifier: str, earlier: Earlier | None = None, now_s: float = NOW_S, **settings: float
) -> Sweep:
    """A sweep of one check. The host has been up for as much longer as it is later, unless the test says for how long."""
    uptime = root / "proc/uptime"
    if now_s != NOW_S and uptime.read_text().endswith(MOVES):
        uptime.write_text(f"{UPTIME_S + now_s - NOW_S}{MOVES}")
    config = Config(overrides={identifier: settings})
    return sweep([CHECKS[identifier]], config, earlier or Earlier(), root, now_s)


def twice(root: Path, identifier: str, change: dict[str, str], **settings: float) -> tuple[Finding, ...]:
    """The findings of the second of two sweeps, an hour apart, with files changed in between."""
    earlier = remember(look_all(root, identifier, **settings))
    put(root, {"proc/uptime": f"{UPTIME_S + HOUR_S} 1.0\n", **change})
    return look(root, identifier, earlier, NOW_S + HOUR_S, **settings)


def state_of(findings: tuple[Finding, ...]) -> str:
    """The worst state; '' if there are no findings."""
    order = ("ok", "unknown", "warning", "critical")
    return max((finding.state for finding in findings), key=order.index, default="")


def with_gpus(root: Path, *gpus: Gpu) -> Path:
    """The NVIDIA driver and a recorded NVML reading."""
    put(root, {"proc/driver/nvidia/version": "NVRM version\n", "sys/module/nvidia/version": "570.1\n"})
    put(root, {"nvml.json": to_json(NvmlReading("570.1", gpus))})
    return root


def pci_device(
    address: str, kind: str, speed: str = "16.0 GT/s PCIe", width: str = "16", **more: str
) -> dict[str, str]:
    """Files of one PCI device."""
    base = f"sys/bus/pci/devices/{address}"
    code = {"gpu": "0x030200", "nic": "0x020000", "nvme": "0x010802"}[kind]
    return {
        f"{base}/class": code,
        f"{base}/vendor": "0x10de" if kind == "gpu" else "0x15b3",
        f"{base}/device": "0x2330",
        f"{base}/current_link_speed": speed,
        f"{base}/current_link_width": width,
        f"{base}/max_link_speed": "16.0 GT/s PCIe",
        f"{base}/max_link_width": "16",
        **{f"{base}/{name}": text for name, text in more.items()},
    }


def nic(name: str, **more: str) -> dict[str, str]:
    """Files of one physical interface that is up."""
    base = f"sys/class/net/{name}"
    files = {
        "operstate": "up", "carrier": "1", "flags": "0x1003", "speed": "100000", "duplex": "full", "carrier_down_count": "1",
        "device/vendor": "0x15b3", "device/device": "0x1021", "statistics/rx_packets": "1000000",
        "statistics/tx_packets": "1000000", "statistics/rx_errors": "0", "statistics/rx_crc_errors": "0",
    }  # fmt: skip
    return {f"{base}/{key}": text for key, text in {**files, **more}.items()}


def ib(
    device: str, port_state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)", **counters: str
) -> dict[str, str]:
    """Files of one InfiniBand device with one port."""
    base = f"sys/class/infiniband/{device}"
    physical = "5: LinkUp" if "ACTIVE" in port_state else "2: Polling"
    counts = {"link_downed": "3", "symbol_error": "7", "port_rcv_errors": "0", **counters}
    return {
        f"{base}/fw_ver": "28.39.1002", f"{base}/board_id": "MT_1",
        f"{base}/ports/1/state": port_state, f"{base}/ports/1/phys_state": physical, f"{base}/ports/1/rate": rate,
        f"{base}/ports/1/link_layer": "InfiniBand",
        **{f"{base}/ports/1/counters/{name}": text for name, text in counts.items()},
    }  # fmt: skip


CARD = "sys/devices/pci0000:00/0000:3b:00.0"


def card(root: Path) -> None:
    """The RoCE port mlx5_0 and the interface eth0 of one PCI function, as sysfs links them."""
    put(root, {**ib("mlx5_0"), f"{IB}/link_layer": "Ethernet\n", **nic("eth0"), f"{CARD}/config": "\x15\xb3"})
    put(root, {"sys/bus/pci/drivers/vfio-pci/x": "", f"{NET}/dev_port": "0\n"})
    put(root, {"sys/bus/pci/drivers/mlx5_core/x": "", f"{CARD}/vendor": "0x15b3", f"{CARD}/device": "0x1021"})
    (root / CARD / "driver").symlink_to("../../../bus/pci/drivers/mlx5_core")
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    (root / "sys/bus/pci/devices/0000:3b:00.0").symlink_to("../../../devices/pci0000:00/0000:3b:00.0")
    (root / "sys/class/infiniband/mlx5_0/device").symlink_to("../../../devices/pci0000:00/0000:3b:00.0")
    shutil.rmtree(root / "sys/class/net/eth0/device")
    (root / "sys/class/net/eth0/device").symlink_to("../../../devices/pci0000:00/0000:3b:00.0")


def no_link(root: Path, how: str) -> None:
    """As drivers of RoCE show it: all but the interface is the same, whether it is switched off or its cable pulled."""
    put(root, {f"{IB}/state": "1: DOWN\n", f"{IB}/phys_state": "3: Disabled\n", f"{NET}/operstate": "down\n"})
    if how == "in a pod":
        shutil.rmtree(root / NET)
    elif how == "switched off":
        put(root, {f"{NET}/flags": "0x1002\n", f"{NET}/carrier": ""})
    else:
        put(root, {f"{NET}/flags": "0x1003\n", f"{NET}/carrier": "0\n"})
    if how == "its bond is switched off":
        put(root, {f"{NET}/master/flags": "0x1402\n", f"{NET}/master/bonding/mode": "802.3ad 4\n"})


def without(root: Path) -> None:
    """Port and interface are gone."""
    for folder in ("infiniband/mlx5_0", "net/eth0"):
        if (root / f"sys/class/{folder}").exists():
            shutil.rmtree(root / f"sys/class/{folder}")


def process(
    pid: int, state: str, ppid: int, comm: str = "python", environ: str = "", start: int = 100
) -> dict[str, str]:
    """Files of one process."""
    rest = " ".join(["0"] * 13)
    return {
        f"proc/{pid}/stat": f"{pid} ({comm}) {state} {ppid} {pid} {pid} {rest} 1 0 {start} " + " ".join(["0"] * 20),
        f"proc/{pid}/status": f"Name:\t{comm}\nTgid:\t{pid}\nvoluntary_ctxt_switches:\t7\n",
        f"proc/{pid}/environ": environ,
        f"proc/{pid}/comm": comm,
    }


def killed_as_it_renames(write: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that writes and is gone before what it wrote has its name."""

    def killed(*_: object, **__: object) -> None:
        os._exit(9)

    if not (child := os.fork()):
        try:
            monkeypatch.setattr(os, "rename", killed)
            write()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
