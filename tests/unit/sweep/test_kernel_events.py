"""Lines as kernels write them, and what they are taken for."""

from __future__ import annotations

import pytest

from rankscope.diagnose.sweep.readings.kernel_events import PATTERNS, events
from rankscope.probes.host.kmsg import KernelMessage, parse_record

LINES = [
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [python:7]", "soft-lockup", "CPU#3"),
    ("watchdog: Watchdog detected hard LOCKUP on cpu 3", "hard-lockup", "cpu 3"),
    ("rcu: INFO: rcu_sched self-detected stall on CPU", "rcu-stall", ""),
    ("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", "rcu-stall", ""),
    ("INFO: task kworker/u8:1:77 blocked for more than 120 seconds.", "hung-task", "kworker/u8:1"),
    ("Kernel panic - not syncing: Fatal exception", "panic", ""),
    ("BUG: unable to handle page fault for address: ffff", "oops", ""),
    ("VFS: file-max limit 100 reached", "file-table-full", ""),
    ("Out of memory: Killed process 7 (python) total-vm:1kB", "oom-kill", "python"),
    ("Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB", "oom-kill", "python"),
    ("blk_update_request: I/O error, dev sda, sector 7", "io-error", "sda"),
    ("I/O error, dev nvme0n1, sector 0 op 0x0:(READ) flags 0x80700", "io-error", "nvme0n1"),
    ("critical medium error, dev sdb, sector 7 op 0x0:(READ)", "io-error", "sdb"),
    ("Buffer I/O error on dev sda1, logical block 7, async page read", "buffer-io-error", "sda1"),
    ("nvme nvme0: I/O 7 QID 1 timeout, aborting", "nvme-timeout", "nvme0"),
    ("nvme nvme0: I/O tag 7 (1007) opcode 0x2 (I/O Cmd) QID 1 timeout, aborting req_op:READ(0)", "nvme-timeout", "nvme0"),
    ("nvme nvme0: Removing after probe failure status: -19", "nvme-lost", "nvme0"),
    ("md/raid1:md0: Disk failure on sda1, disabling device.", "raid-failure", "md0"),
    ("EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory", "fs-error", "sda1"),
    ("XFS (sda1): Corruption of in-memory data detected.  Shutting down filesystem", "fs-error", "sda1"),
    ("EXT4-fs (sda1): Remounting filesystem read-only", "remounted-readonly", "sda1"),
    ("mce: [Hardware Error]: Machine check events logged", "hardware-error", ""),
    ("{1}[Hardware Error]: event severity: fatal", "uncorrected-error", ""),
    ("mlx5_core 0000:3b:00.0: mlx5_pcie_event:301:(pid 1): Detected insufficient power on the PCIe slot (27W).", "mlx5-power",
     "0000:3b:00.0"),
    ("nfs: server filer not responding, still trying", "nfs-timeout", "filer"),
    ("python[7]: segfault at 0 ip 0 sp 0 error 4 in libnccl.so.2[7f00+1000]", "nccl-segfault", "libnccl.so.2"),
]  # fmt: skip
HARMLESS = [
    "Linux version 6.1.0 (gcc) #1 SMP",
    "blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ)",
    "Buffer I/O error on dev sr0, logical block 0, async page read",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: errors=remount-ro",
    "mce: CPU0: Thermal monitoring enabled (TM1)",
    "nvme nvme0: 8/0/0 default/read/poll queues",
    "RCU restricting CPUs from NR_CPUS=8192 to nr_cpu_ids=2.",
    "MCE: In-kernel MCE decoding enabled.",
    "NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.",
]


@pytest.mark.parametrize(("text", "name", "instance"), LINES)
def test_a_line_is_taken_for_what_it_is(text: str, name: str, instance: str) -> None:
    (event,) = events([KernelMessage(3, 1, 7.0, text)])
    assert (event.name, event.instance) == (name, instance) and event.action


@pytest.mark.parametrize("text", HARMLESS)
def test_lines_of_a_healthy_boot_mean_nothing(text: str) -> None:
    assert events([KernelMessage(6, 1, 7.0, text)]) == ()


def test_most_kinds_of_event_have_an_example() -> None:
    assert len({pattern.name for pattern in PATTERNS} - {name for _, name, _ in LINES}) <= 3


def test_a_record_with_continuation_lines_is_its_first_line() -> None:
    record = parse_record(b"6,7,11000000,-;nvme nvme0: x\n SUBSYSTEM=nvme\n")
    assert record == KernelMessage(6, 7, 11.0, "nvme nvme0: x")
