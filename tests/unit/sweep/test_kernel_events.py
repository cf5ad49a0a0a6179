"""Lines as kernels write them, and what they are taken for."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from without_root import PYTHON

from rankscope.diagnose.severity import CRITICAL
from rankscope.diagnose.sweep.readings.kernel_events import PATTERNS, events
from rankscope.probes.gpu.xid import logged_xids
from rankscope.probes.host.kmsg import KernelMessage, following, parse_record

LINES = [
    ("watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [python:7]", "soft-lockup", "CPU#3"),
    ("watchdog: Watchdog detected hard LOCKUP on cpu 3", "hard-lockup", "cpu 3"),
    ("rcu: INFO: rcu_sched self-detected stall on CPU", "rcu-stall", ""),
    ("rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:", "rcu-stall", ""),
    ("INFO: task kworker/u8:1:77 blocked for more than 120 seconds.", "hung-task", "kworker/u8:1"),
    ("Kernel panic - not syncing: Fatal exception", "panic", ""),
    ("BUG: unable to handle page fault for address: ffff", "oops", ""),
    ("BUG: kernel NULL pointer dereference, address: 0000000000000008", "oops", ""),
    ("Oops: 0000 [#1] PREEMPT SMP PTI", "oops", ""),
    ("Oops: Oops: 0002 [#2] PREEMPT(voluntary) SMP NOPTI", "oops", ""),
    ("general protection fault, probably for non-canonical address 0xdead: 0000 [#1] PREEMPT SMP", "oops", ""),
    ("Oops: general protection fault, probably for non-canonical address 0xdead: 0000 [#1] SMP", "oops", ""),
    ("general protection fault: 0000 [#1] SMP NOPTI", "oops", ""),
    ("invalid opcode: 0000 [#1] SMP NOPTI", "oops", ""),
    ("kernel BUG at mm/slub.c:305!", "oops", ""),
    ("Internal error: Oops: 0000000096000004 [#1] SMP", "oops", ""),
    ("Unable to handle kernel NULL pointer dereference at virtual address 0000000000000008", "oops", ""),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 7", "hard-lockup", "cpu 7"),
    ("watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 7", "hard-lockup", "cpu 7"),
    ("VFS: file-max limit 100 reached", "file-table-full", ""),
    ("Out of memory: Killed process 7 (python) total-vm:1kB", "oom-kill", "python"),
    ("Memory cgroup out of memory: Killed process 7 (python) total-vm:1kB", "oom-kill", "python"),
    ("blk_update_request: I/O error, dev sda, sector 7", "io-error", "sda"),
    ("I/O error, dev nvme0n1, sector 0 op 0x0:(READ) flags 0x80700", "io-error", "nvme0n1"),
    ("critical medium error, dev sdb, sector 7 op 0x0:(READ)", "io-error", "sdb"),
    ("Buffer I/O error on dev sda1, logical block 7, async page read", "buffer-io-error", "sda1"),
    ("Buffer I/O error on device sda1, logical block 15378", "buffer-io-error", "sda1"),
    ("nvme nvme0: I/O 7 QID 1 timeout, aborting", "nvme-timeout", "nvme0"),
    ("nvme nvme0: I/O tag 7 (1007) opcode 0x2 (I/O Cmd) QID 1 timeout, aborting req_op:READ(0)", "nvme-timeout", "nvme0"),
    ("nvme nvme0: Removing after probe failure status: -19", "nvme-lost", "nvme0"),
    ("md/raid1:md0: Disk failure on sda1, disabling device.", "raid-failure", "md0"),
    ("EXT4-fs error (device sda1): ext4_find_entry:1455: inode #2: comm ls: reading directory", "fs-error", "sda1"),
    ("XFS (sda1): Corruption of in-memory data detected.  Shutting down filesystem", "fs-error", "sda1"),
    ("XFS (dm-1): Metadata corruption detected at xfs_agf_read_verify+0xd1/0x110 [xfs], xfs_agf block 0x1", "fs-error", "dm-1"),
    ("XFS (sda1): Log I/O Error (0x2) detected at xlog_ioend_work+0x5c/0x70 [xfs].  Shutting down filesystem.", "fs-error", "sda1"),
    ("XFS (sda1): Filesystem has been shut down due to log error (0x2).", "fs-error", "sda1"),
    ("EXT4-fs (sda1): Remounting filesystem read-only", "remounted-readonly", "sda1"),
    ("BTRFS info (device sda1 state E): forced readonly", "remounted-readonly", "sda1"),
    ("LustreError: 167-0: fs-OST0001-osc-ffff: This client was evicted by fs-OST0001; in progress operations", "lustre-evicted",
     "fs-OST0001;"),
    ("mlx5_core 0000:3b:00.0: poll_health:721:(pid 0): device's health compromised - reached miss count", "mlx5-health", "0000:3b:00.0"),
    ("mlx5_core 0000:3b:00.0: poll_health:800:(pid 0): Fatal error 3 detected", "mlx5-health", "0000:3b:00.0"),
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
    "EXT4-fs error (device loop3): ext4_find_entry:1455: inode #2: comm ls: reading directory",  # whoever may attach it made it
    "I/O error, dev loop7, sector 0 op 0x0:(READ) flags 0x80700",
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


@pytest.mark.parametrize("facility", [0, 1, 3, 23])
def test_only_what_the_kernel_wrote_is_read(facility: int) -> None:
    """What a process writes into /dev/kmsg has the facility of users."""
    feigned = parse_record(f"{facility << 3 | 4},7,11000000,-;NVRM: Xid (PCI:0000:3b:00): 79".encode())
    assert (feigned is None) == (facility != 0)


# Lines that begin with the name of a process, of 15 bytes at most, and lines with a file's name in them: both are chosen by
# whoever starts the program. NAME and FILE stand for them.
FROM_USERS = [
    "NAME[7]: segfault at 0 ip 0000555a sp 00007ffd error 6 in FILE[115b,555a+1000] likely on CPU 0 (core 0, socket 0)",
    "traps: NAME[7] general protection fault ip:7f sp:7f error:0 in FILE[7f+1000]",
    "NAME[7] trap invalid opcode ip:7f sp:7f error:0 in FILE[7f+1000]",
    "NAME invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "NAME: page allocation failure: order:4, mode:0x40dc0(GFP_KERNEL|__GFP_COMP|__GFP_ZERO), nodemask=(null)",
    "NAME (7): /proc/7/oom_adj is deprecated, please use /proc/7/oom_score_adj instead.",
    "NAME (7) used greatest stack depth: 11 bytes left",
    "process 'FILE' started with executable stack",
    'overlayfs: unrecognized mount option "FILE" or missing value',
    "Code: FILE",
]


def feigned(name: str, file: str) -> list[str]:
    """Every line that a user without root can have written with these names."""
    return [line.replace("NAME", name[:15]).replace("FILE", file) for line in FROM_USERS]


@pytest.mark.parametrize("line", [line for line, name, _ in LINES if name != "nccl-segfault"])
def test_names_that_a_user_chose_are_not_taken_for_an_event(line: str) -> None:
    wrong = []
    for cut in range(16):
        for said in (*feigned(line[:cut], line[cut:]), *feigned(line[:cut], line), *feigned(line[:cut], ": " + line)):
            wrong += [(said, event.name) for event in events([KernelMessage(0, 1, 7.0, said)])]
    assert wrong == []


def test_names_that_a_user_chose_are_no_xid() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus."
    assert [xid.number for xid in logged_xids([KernelMessage(3, 1, 7.0, line)])] == [79]
    said = [one for cut in range(16) for file in (line, line[cut:]) for one in feigned(line[:cut], file)]
    assert logged_xids(KernelMessage(0, 1, 7.0, one) for one in said) == ()


@given(st.sampled_from(LINES), st.text(max_size=15), st.integers(0, 15), st.integers(0, 60))
def test_no_name_of_a_process_is_critical(line: tuple[str, str, str], name: str, cut: int, start: int) -> None:
    for said in feigned(line[0][:cut] + name, "/" + line[0][start:]):
        assert all(event.state != CRITICAL for event in events([KernelMessage(0, 1, 7.0, said)]))


CRASH = """
import ctypes, resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
ctypes.CDLL(None).prctl(15, b"Oops: 0000 [#1]", 0, 0, 0)
ctypes.string_at(0)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to read the log and to give root up")
def test_a_program_with_the_name_of_an_oops_that_crashes_is_no_oops() -> None:
    # GIVEN a program without root, whose name is how the kernel's own report of a crash begins
    with following() as fresh:
        crashed = subprocess.run([*PYTHON, "-c", CRASH], user=65534, group=65534, extra_groups=[], cwd="/", check=False)
        lines = [message for message in fresh() if message.text.startswith("Oops: 0000 [#1]")]
    # THEN the kernel has written a line that begins so, and it means nothing
    assert crashed.returncode == -11
    if not lines:
        pytest.skip("this kernel does not log crashes (debug.exception-trace)")
    assert events(lines) == ()
