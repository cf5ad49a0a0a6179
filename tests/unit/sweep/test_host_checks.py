"""Every host-side check, from a hand-made tree, in its ok and its bad form."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from sweep_trees import (
    CARD,
    CHECKS,
    CPU,
    EDAC,
    IB,
    NET,
    NOW_S,
    TORCHRUN,
    UPTIME_S,
    card,
    host,
    ib,
    look,
    look_all,
    nic,
    no_link,
    pci_device,
    process,
    put,
    remember,
    state_of,
    twice,
    without,
)

KMSG = "dev/kmsg"


def line(text: str, seconds: float = UPTIME_S, priority: int = 3) -> str:
    return f"{priority},17,{int(seconds * 1e6)},-;{text}\n"


PORT = "sys/bus/pci/devices/0000:3b:00.0"
# check: (what the host has besides, what is changed for the bad form, the bad state)
BY_CHANGE: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "pcie.link": (pci_device("0000:3b:00.0", "nic"), {f"{PORT}/current_link_width": "8"}, "warning"),
    "pcie.aer": (
        pci_device("0000:3b:00.0", "nic", aer_dev_correctable="TOTAL_ERR_COR 71", aer_dev_fatal="TOTAL_ERR_FATAL 0"),
        {f"{PORT}/aer_dev_fatal": "TOTAL_ERR_FATAL 1"},
        "critical",
    ),
    "net.link": (nic("eth0"), {f"{NET}/operstate": "down", f"{NET}/carrier": "0"}, "critical"),
    "net.speed": (nic("eth0"), {f"{NET}/speed": "25000"}, "warning"),
    "net.errors": (nic("eth0"), {f"{NET}/statistics/rx_errors": "997", f"{NET}/statistics/rx_packets": "2000000"}, "warning"),
    "ib.port": (ib("mlx5_0"), {f"{IB}/state": "1: DOWN", f"{IB}/phys_state": "2: Polling"}, "critical"),
    "ib.errors": (ib("mlx5_0"), {f"{IB}/counters/symbol_error": "1009"}, "warning"),
    "ib.flap": (ib("mlx5_0"), {f"{IB}/counters/link_downed": "4"}, "warning"),
    "cpu.throttle": (
        {f"{CPU}/cpu0/thermal_throttle/core_throttle_count": "1000"},
        {f"{CPU}/cpu0/thermal_throttle/core_throttle_count": "1097"},
        "warning",
    ),
    "cpu.governor": (
        {f"{CPU}/cpu0/cpufreq/scaling_governor": "performance", f"{CPU}/cpu0/cpufreq/scaling_driver": "acpi-cpufreq"},
        {f"{CPU}/cpu0/cpufreq/scaling_governor": "powersave"},
        "warning",
    ),
    "cpu.steal": ({}, {"proc/stat": "cpu  2000 0 1000 100000 0 0 0 1000 0 0\n"}, "warning"),
    "cpu.offline": ({}, {f"{CPU}/online": "0-2\n"}, "critical"),
    "cpu.mce": ({}, {"proc/interrupts": "MCE:          2   Machine check exceptions\n"}, "critical"),
    "mem.pressure": ({}, {"proc/pressure/memory": "some total=900000000\nfull total=900000000\n"}, "warning"),
    "mem.oom": ({}, {"proc/vmstat": "oom_kill 2\n", KMSG: line("Out of memory: Killed process 7 (python) total-vm:1")}, "warning"),
    "mem.ecc": ({f"{EDAC}/ce_count": "7", f"{EDAC}/ue_count": "0"}, {f"{EDAC}/ue_count": "1"}, "critical"),
    "disk.readonly": (
        {"sys/fs/ext4/sda1/errors_count": "0\n"},
        {"proc/self/mountinfo": "21 1 8:1 / / ro,relatime - ext4 /dev/sda1 ro\n", "sys/fs/ext4/sda1/errors_count": "3\n"},
        "critical",
    ),
    "disk.errors": ({}, {KMSG: line("I/O error, dev sda, sector 7 op 0x0:(READ)")}, "warning"),
    "disk.slow": ({}, {"proc/diskstats": "   8  0 sda 200 0 1600 90050 100 0 800 50 0 100 100\n"}, "warning"),
    "os.clock-sync": (
        {}, {"adjtimex": "status=0x0040 maxerror_us=16000000 offset_us=0\n", "proc/cpuinfo": "flags : fpu\n"}, "warning"
    ),
    "os.kmsg": ({}, {KMSG: line("watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [python:7]")}, "critical"),
    "os.limits": ({}, {"proc/sys/fs/file-nr": "95000 0 100000\n"}, "warning"),
}  # fmt: skip


@pytest.mark.parametrize("identifier", BY_CHANGE)
def test_a_change_since_the_last_sweep_is_found(tmp_path: Path, identifier: str) -> None:
    # GIVEN a host on which the check has something to look at
    more, change, expected = BY_CHANGE[identifier]
    host(tmp_path, more)
    assert state_of(look(tmp_path, identifier)) == "ok"
    # WHEN nothing changes, it stays ok
    assert state_of(twice(tmp_path, identifier, {})) == "ok"
    # THEN a change is bad, and everything is said
    host(tmp_path, more)
    found = twice(tmp_path, identifier, change)
    assert state_of(found) == expected
    bad = next(finding for finding in found if finding.state == expected)
    assert bad.read and bad.value is not None and bad.expected and bad.why and bad.action


def test_a_lifetime_total_alone_is_never_bad(tmp_path: Path) -> None:
    # GIVEN a host whose counters are high, but seen for the first time
    host(tmp_path, {**ib("mlx5_0", link_downed="97", symbol_error="100003"), **nic("eth0", **{"statistics/rx_errors": "9973"}),
                    **pci_device("0000:3b:00.0", "nic", aer_dev_fatal="TOTAL_ERR_FATAL 11"),
                    f"{EDAC}/ce_count": "1009", f"{EDAC}/ue_count": "13", "proc/vmstat": "oom_kill 17\n"})  # fmt: skip
    for identifier in ("ib.flap", "ib.errors", "net.errors", "pcie.aer", "mem.ecc", "mem.oom"):
        assert state_of(look(tmp_path, identifier)) == "ok", identifier


def test_a_counter_that_began_anew_counts_from_zero(tmp_path: Path) -> None:
    host(tmp_path, {f"{EDAC}/ce_count": "0", f"{EDAC}/ue_count": "7"})
    found = twice(tmp_path, "mem.ecc", {f"{EDAC}/ue_count": "2"})
    assert found[0].state == "critical" and found[0].value == 2.0


def test_after_a_reboot_counters_count_from_the_boot(tmp_path: Path) -> None:
    host(tmp_path, {f"{EDAC}/ce_count": "0", f"{EDAC}/ue_count": "7"})
    change = {"proc/sys/kernel/random/boot_id": "boot-two\n", "proc/uptime": "600.0 1.0\n"}
    assert twice(tmp_path, "mem.ecc", {**change, f"{EDAC}/ue_count": "0"})[0].state == "ok"


def test_a_full_disk_is_found_and_an_empty_one_not(tmp_path: Path) -> None:
    # The real file system under the tree is asked; the thresholds decide.
    host(tmp_path)
    assert state_of(look(tmp_path, "disk.full", warning_percent=100.0, critical_percent=100.0)) == "ok"
    full = look(tmp_path, "disk.full", warning_percent=0.0, critical_percent=100.0, free_gb=1e9)
    assert state_of(full) == "warning" and full[0].unit == "%"


RPC = "[<0>] rpc_wait_bit_killable+0x1e/0x90 [sunrpc]\n[<0>] nfs4_proc_getattr+0x70/0x110 [nfsv4]\n"


def test_a_process_that_hangs_in_the_kernel_is_found(tmp_path: Path) -> None:
    host(tmp_path, process(7, "S", 1))
    assert state_of(look(tmp_path, "fs.stuck", wait_s=0.01)) == "ok"
    put(tmp_path, {**process(11, "D", 1, "cp"), **process(13, "D", 2, "kworker/0:1"), "proc/11/stack": RPC})
    done = look_all(tmp_path, "fs.stuck", wait_s=0.01)
    assert [(one.state, one.instance) for one in done.findings] == [("warning", "cp (11)")]
    # WHEN the next sweep sees it still THEN it is critical, and since when is said
    again = look(tmp_path, "fs.stuck", remember(done), done.time_s + 300, wait_s=0.01)
    assert again[0].state == "critical" and again[0].since_s == done.time_s and "NFS" in again[0].why


def test_a_rank_without_launcher_is_left_over(tmp_path: Path) -> None:
    host(
        tmp_path,
        {
            **process(7, "S", 5, "torchrun"),
            **process(11, "S", 7, environ=TORCHRUN),
            **process(13, "S", 1, environ=TORCHRUN),
        },
    )
    # A daemon of a job that still runs is nobody's business.
    assert state_of(look(tmp_path, "job.orphans")) == "ok"
    for name in ("stat", "status", "environ", "comm"):
        (tmp_path / f"proc/11/{name}").unlink()
    found = look(tmp_path, "job.orphans")
    assert [(one.state, one.instance) for one in found] == [("warning", "python (13)")]


def test_versions_are_told_and_a_mismatch_is_critical(tmp_path: Path) -> None:
    host(tmp_path, {**ib("mlx5_0")})
    found = look(tmp_path, "driver.versions")
    assert {(one.instance, one.value) for one in found} >= {("kernel", "6.1.0"), ("firmware of mlx5_0", "28.39.1002")}
    put(tmp_path, {"proc/driver/nvidia/version": "x", "sys/module/nvidia/version": "570.1\n",
                   "nvml.json": '{"driver_version": "550.2", "gpus": []}'})  # fmt: skip
    assert state_of(look(tmp_path, "driver.versions")) == "critical"


def test_what_user_space_writes_into_the_log_is_not_believed(tmp_path: Path) -> None:
    host(tmp_path, {KMSG: line("Kernel panic - not syncing: feigned", priority=12)})
    assert state_of(look(tmp_path, "os.kmsg")) == "ok"


def test_old_log_lines_are_forgotten_except_what_needs_a_reboot(tmp_path: Path) -> None:
    old = line("INFO: task cp:7 blocked for more than 120 seconds.", 7.0)
    host(tmp_path, {KMSG: old})
    assert state_of(look(tmp_path, "os.kmsg")) == "ok"
    put(tmp_path, {KMSG: old + line("watchdog: BUG: soft lockup - CPU#3 stuck for 23s!", 7.0)})
    assert state_of(look(tmp_path, "os.kmsg")) == "critical"


def test_a_crowd_of_lines_that_name_what_users_chose_hides_no_other_line(tmp_path: Path) -> None:
    crowd = "".join(line(f"INFO: task cp{number}:7 blocked for more than 120 seconds.") for number in range(600))
    host(tmp_path, {KMSG: crowd + line("nfs: server filer not responding, still trying")})
    assert "nfs-timeout filer" in [one.instance for one in look(tmp_path, "os.kmsg")]


def test_links_nobody_saw_are_nobody_s_fault(tmp_path: Path) -> None:
    host(tmp_path, {**nic("eth0", operstate="down", carrier="0"), **ib("mlx5_0", "1: DOWN")})
    assert state_of(look(tmp_path, "net.link")) == "ok"
    assert state_of(look(tmp_path, "ib.port")) == "ok"
    # THEN a port whose equal is active is missed
    put(tmp_path, ib("mlx5_1"))
    assert state_of(look(tmp_path, "ib.port")) == "warning"


def test_an_idle_gpu_may_lower_its_link_speed_but_not_its_width(tmp_path: Path) -> None:
    host(tmp_path, pci_device("0000:3b:00.0", "gpu", speed="2.5 GT/s PCIe"))
    assert state_of(look(tmp_path, "pcie.link")) == "ok"
    put(tmp_path, {f"{PORT}/current_link_width": "4"})
    assert state_of(look(tmp_path, "pcie.link")) == "critical"


def test_absurd_values_are_no_findings_against_anybody(tmp_path: Path) -> None:
    host(tmp_path, {**nic("eth0", speed="-1", **{"statistics/rx_errors": "x" * 99}), **ib("mlx5_0", rate="nonsense", symbol_error="-7"),
                    f"{EDAC}/ce_count": "9" * 40, f"{EDAC}/ue_count": "", **pci_device("0000:3b:00.0", "nic", speed="Unknown", width="255"),
                    "proc/sys/fs/file-nr": "\0\0", "proc/vmstat": "oom_kill -1\n", "proc/interrupts": "MCE: z\n"})  # fmt: skip
    for identifier in CHECKS:
        assert state_of(look(tmp_path, identifier, **({"wait_s": 0.0} if identifier == "fs.stuck" else {}))) in (
            "",
            "ok",
        ), identifier


def test_a_mount_that_a_sandbox_made_read_only_is_no_fault(tmp_path: Path) -> None:
    # systemd's ProtectSystem: the mount is read-only, the file system is not
    host(tmp_path, {"etc/fstab": "/dev/sda1 / ext4 rw 0 1\n"})
    sandboxed = {"proc/self/mountinfo": "21 1 8:1 / / ro,relatime - ext4 /dev/sda1 rw\n"}
    assert state_of(twice(tmp_path, "disk.readonly", sandboxed)) == "ok"


def test_a_count_that_cannot_be_read_for_once_has_not_grown_since(tmp_path: Path) -> None:
    # GIVEN a DIMM and a device with errors of long ago, and a link that went once
    counts = {
        f"{EDAC}/ue_count": "3",
        f"{EDAC}/ce_count": "3000",
        f"{PORT}/aer_dev_fatal": "TOTAL_ERR_FATAL 3",
        f"{NET}/carrier_down_count": "3",
    }
    files = {
        **pci_device("0000:3b:00.0", "nic", aer_dev_correctable="TOTAL_ERR_COR 7"),
        **nic("eth0"),
    }
    host(tmp_path, {**files, **counts})
    for identifier in ("mem.ecc", "pcie.aer", "net.link"):
        put(tmp_path, counts)
        known = remember(look_all(tmp_path, identifier))
        # WHEN they cannot be read in one sweep, and can in the next
        put(tmp_path, dict.fromkeys(counts, ""))
        unread = look_all(tmp_path, identifier, known)
        put(tmp_path, counts)
        again = look(tmp_path, identifier, remember(unread))
        # THEN nothing has grown, and what is not known is not called well
        assert state_of(again) == "ok", identifier
        assert state_of(unread.findings) == ("unknown" if identifier == "mem.ecc" else "ok"), identifier


def test_errors_that_cannot_be_counted_are_not_called_none(tmp_path: Path) -> None:
    # GIVEN a DIMM of which only the corrected errors can be read, and a device of which nothing can
    host(tmp_path, {f"{EDAC}/ue_count": "3", f"{EDAC}/ce_count": "0"})
    assert state_of(twice(tmp_path, "mem.ecc", {f"{EDAC}/ue_count": "-"})) == "unknown"
    put(tmp_path, pci_device("0000:3b:00.0", "nic", aer_dev_fatal="TOTAL_ERR_FATAL 3"))
    assert state_of(twice(tmp_path, "pcie.aer", {f"{PORT}/aer_dev_fatal": ""})) == "unknown"


COUNTED = {
    "mem.ecc": ({f"{EDAC}/ue_count": "3", f"{EDAC}/ce_count": "0"}, {f"{EDAC}/ue_count": "-", f"{EDAC}/ce_count": "-"}),
    "pcie.aer": (pci_device("0000:3b:00.0", "nic", aer_dev_fatal="TOTAL_ERR_FATAL 3"), {f"{PORT}/aer_dev_fatal": ""}),
    "ib.flap": (ib("mlx5_0"), {f"{IB}/counters/link_downed": "-"}),
}


@pytest.mark.parametrize("identifier", COUNTED)
def test_what_counts_no_more_since_another_boot_is_unknown_for_a_day(tmp_path: Path, identifier: str) -> None:
    files, unread = COUNTED[identifier]
    known = remember(look_all(host(tmp_path, files), identifier))
    # GIVEN a count that cannot be read any more THEN that is said for as long as the host is up
    put(tmp_path, unread)
    assert state_of(look(tmp_path, identifier, known, NOW_S + 200_000)) == "unknown"
    # and from then on for a day since it could be: firmware or a driver may count no more
    put(tmp_path, {"proc/sys/kernel/random/boot_id": "boot-two\n"})
    assert state_of(look(tmp_path, identifier, known, NOW_S + 80_000)) == "unknown"
    done = look_all(tmp_path, identifier, known, NOW_S + 200_000)
    assert state_of(done.findings) in ("", "ok") and not done.unread
    # WHEN it counts again THEN all of this boot is new
    put(tmp_path, files)
    assert state_of(look(tmp_path, identifier, known, NOW_S + 200_001)) in ("critical", "warning")


def test_dimms_of_the_same_label_are_two(tmp_path: Path) -> None:
    # GIVEN a board that calls all its DIMMs the same, one of which had errors long ago
    host(tmp_path, {f"{EDAC}/ue_count": "3", f"{EDAC}/ce_count": "0"})
    for name, errors in (("dimm0", "3"), ("dimm1", "0")):
        put(tmp_path, {f"{EDAC}/{name}/dimm_label": "unknown memory", f"{EDAC}/{name}/dimm_ce_count": "0",
                       f"{EDAC}/{name}/dimm_ue_count": errors})  # fmt: skip
    assert state_of(twice(tmp_path, "mem.ecc", {})) == "ok"
    found = twice(tmp_path, "mem.ecc", {f"{EDAC}/dimm1/dimm_ue_count": "1", f"{EDAC}/ue_count": "4"})
    assert [one.instance for one in found if one.state == "critical"] == ["mc0/unknown memory (dimm1)"]


EXT4 = "sys/fs/ext4/sda1"


@pytest.mark.parametrize(("count", "state"), [("3", "warning"), ("4", "critical"), ("1", "critical")])
def test_old_errors_of_a_file_system_that_an_operator_makes_read_only_are_no_news(
    tmp_path: Path, count: str, state: str
) -> None:
    # GIVEN one with errors of long ago, which ext4 counts until it is repaired
    host(tmp_path, {f"{EXT4}/errors_count": "3\n"})
    read_only = {"proc/self/mountinfo": "21 1 8:1 / / ro,relatime - ext4 /dev/sda1 ro\n", f"{EXT4}/errors_count": count}
    known = remember(look_all(tmp_path, "disk.readonly"))
    put(tmp_path, read_only)
    for _ in range(2):
        done = look_all(tmp_path, "disk.readonly", known)
        assert state_of(done.findings) == state
        known = remember(done)


@pytest.mark.parametrize(("ago_s", "state"), [(2 * UPTIME_S, "warning"), (60.0, "critical")])
def test_where_nobody_saw_a_file_system_writable_errors_of_this_boot_count(
    tmp_path: Path, ago_s: float, state: str
) -> None:
    host(tmp_path, {"etc/fstab": "/dev/sda1 / ext4 rw 0 1\n", f"{EXT4}/errors_count": "3\n",
                    f"{EXT4}/last_error_time": f"{NOW_S - ago_s:.0f}\n",
                    "proc/self/mountinfo": "21 1 8:1 / / ro,relatime - ext4 /dev/sda1 ro\n"})  # fmt: skip
    assert state_of(look(tmp_path, "disk.readonly")) == state


@pytest.mark.parametrize(("state", "first"), [("connecting", "warning"), ("dead", "critical")])
def test_a_controller_that_connects_anew_has_a_while_to(tmp_path: Path, state: str, first: str) -> None:
    # GIVEN one whose target starts again, or that an operator resets
    host(tmp_path, {"sys/class/nvme/nvme0/state": f"{state}\n"})
    seen = look_all(tmp_path, "disk.errors")
    for seconds, expected in ((0, first), (100, first), (121, "critical")):
        seen = look_all(tmp_path, "disk.errors", remember(seen), NOW_S + seconds)
        assert state_of(seen.findings) == expected
    put(tmp_path, {"sys/class/nvme/nvme0/state": "live\n"})
    assert state_of(look(tmp_path, "disk.errors", remember(seen), NOW_S + 200)) == "ok"


def test_a_controller_that_goes_from_one_state_to_another_has_its_while_once(tmp_path: Path) -> None:
    seen = look_all(host(tmp_path), "disk.errors")
    for seconds, state, expected in ((0, "resetting", "warning"), (100, "connecting", "warning"),
                                     (121, "resetting", "critical")):  # fmt: skip
        put(tmp_path, {"sys/class/nvme/nvme0/state": f"{state}\n"})
        seen = look_all(tmp_path, "disk.errors", remember(seen), NOW_S + seconds)
        assert state_of(seen.findings) == expected


SMT = f"{CPU}/smt/control"


@pytest.mark.parametrize(("control", "state"), [("off", "ok"), ("forceoff", "ok"), ("2", "ok"), ("on", "critical")])
def test_cpus_that_are_off_as_smt_was_switched_off_are_not_lost(tmp_path: Path, control: str, state: str) -> None:
    host(tmp_path, {SMT: "on\n"})
    found = twice(tmp_path, "cpu.offline", {SMT: f"{control}\n", f"{CPU}/online": "0-1\n"})
    assert state_of(found) == state


def test_cpus_that_come_back_bring_no_machine_checks_along(tmp_path: Path) -> None:
    # GIVEN a CPU that reported errors long ago
    table = "           CPU0       CPU1\nMCE:          2          5   Machine check exceptions\n"
    host(tmp_path, {"proc/interrupts": table})
    known = remember(look_all(tmp_path, "cpu.mce"))
    # WHEN it is switched off, and on again
    put(tmp_path, {"proc/interrupts": "           CPU0\nMCE:          2   Machine check exceptions\n"})
    off = look_all(tmp_path, "cpu.mce", known)
    put(tmp_path, {"proc/interrupts": table})
    on = look_all(tmp_path, "cpu.mce", remember(off))
    assert state_of(off.findings) == state_of(on.findings) == "ok"
    # THEN only what is new counts, whichever others are there
    put(tmp_path, {"proc/interrupts": "           CPU1\nMCE:          6   Machine check exceptions\n"})
    (found,) = look(tmp_path, "cpu.mce", remember(on))
    assert (found.state, found.value) == ("critical", 1.0)


LOSS = {"switched off": "ok", "in a pod": "ok", "its bond is switched off": "ok", "cable": "critical"}


@pytest.mark.parametrize("how", LOSS)
def test_a_roce_port_is_lost_only_where_its_interface_is_switched_on_and_here(tmp_path: Path, how: str) -> None:
    card(host(tmp_path))
    known = look_all(tmp_path, "ib.port")
    no_link(tmp_path, how)
    down = look_all(tmp_path, "ib.port", remember(known), NOW_S + 300)
    assert [(one.state, one.instance) for one in down.findings] == [(LOSS[how], "mlx5_0/1")]
    # WHEN it is switched on later, and there is no cable in it THEN that is no loss; how fast it was is still known
    if how == "switched off":
        no_link(tmp_path, "cable")
        assert state_of(look(tmp_path, "ib.port", remember(down), NOW_S + 600)) == "ok"
        put(tmp_path, ib("mlx5_0", rate="100 Gb/sec (4X EDR)"))
        assert state_of(look(tmp_path, "ib.port", remember(down), NOW_S + 600)) == "warning"


def test_an_infiniband_port_that_somebody_switched_off_is_not_lost(tmp_path: Path) -> None:
    host(tmp_path, ib("mlx5_0"))
    off = {f"{IB}/state": "1: DOWN\n", f"{IB}/phys_state": "3: Disabled\n"}
    assert state_of(twice(tmp_path, "ib.port", off)) == "ok"
    # and speaks against nobody where a number of ports is set
    assert state_of(twice(tmp_path, "ib.port", off, ports=1.0)) == "warning"


def test_a_port_that_waits_for_its_subnet_manager_has_a_while_to(tmp_path: Path) -> None:
    # GIVEN a driver that was loaded anew
    host(tmp_path, ib("mlx5_0"))
    seen = look_all(tmp_path, "ib.port")
    put(tmp_path, {f"{IB}/state": "2: INIT\n"})
    for seconds, state in ((10, "warning"), (100, "warning"), (131, "critical")):
        seen = look_all(tmp_path, "ib.port", remember(seen), NOW_S + seconds)
        assert state_of(seen.findings) == state


@pytest.mark.parametrize("identifier", ["ib.port", "net.link"])
def test_the_link_of_a_virtual_function_is_not_the_host_s_to_lose(tmp_path: Path, identifier: str) -> None:
    card(host(tmp_path))
    (tmp_path / CARD / "physfn").mkdir()
    known = remember(look_all(tmp_path, identifier))
    no_link(tmp_path, "cable")
    assert state_of(look(tmp_path, identifier, known, NOW_S + 300)) == "warning"


@pytest.mark.parametrize(("how", "state"), [("", "critical"), ("in a pod", "warning"), ("switched off", "warning")])
def test_a_roce_port_that_a_pod_switches_off_and_on_drains_nobody(tmp_path: Path, how: str, state: str) -> None:
    card(host(tmp_path))
    known = remember(look_all(tmp_path, "ib.flap"))
    if how:
        no_link(tmp_path, how)
    put(tmp_path, {f"{IB}/counters/link_downed": "9"})
    assert state_of(look(tmp_path, "ib.flap", known, NOW_S + 300)) == state


@pytest.mark.parametrize("identifier", ["ib.flap", "ib.port", "net.link"])
def test_another_card_under_the_name_of_one_has_lost_nothing(tmp_path: Path, identifier: str) -> None:
    # GIVEN a driver that was loaded anew, and gives names in another order
    card(host(tmp_path))
    known = remember(look_all(tmp_path, identifier))
    no_link(tmp_path, "cable")
    other = "sys/devices/pci0000:00/0000:5e:00.0"
    put(tmp_path, {f"{IB}/counters/link_downed": "9", f"{other}/vendor": "0x15b3"})
    for name in ("infiniband/mlx5_0", "net/eth0"):
        (tmp_path / f"sys/class/{name}/device").unlink()
        (tmp_path / f"sys/class/{name}/device").symlink_to("../../../devices/pci0000:00/0000:5e:00.0")
    assert state_of(look(tmp_path, identifier, known, NOW_S + 300)) == "ok"


def test_losses_that_cannot_be_counted_are_not_called_none(tmp_path: Path) -> None:
    host(tmp_path, ib("mlx5_0"))
    assert state_of(twice(tmp_path, "ib.flap", {f"{IB}/counters/link_downed": "N/A (no PMA)"})) == "unknown"


def test_an_interface_that_waits_for_its_authentication_has_a_link(tmp_path: Path) -> None:
    host(tmp_path, nic("eth0"))
    assert state_of(twice(tmp_path, "net.link", {f"{NET}/operstate": "dormant\n"})) == "ok"


PORTS = {"ib.port": "mlx5_0/1", "net.link": "eth0"}


@pytest.mark.parametrize("identifier", PORTS)
def test_a_port_that_is_not_there_any_more_is_missed_for_a_day(tmp_path: Path, identifier: str) -> None:
    card(host(tmp_path))
    known = look_all(tmp_path, identifier)
    assert state_of(known.findings) == "ok"
    # WHEN it is the only one and disappears, its card still being there
    without(tmp_path)
    gone = look_all(tmp_path, identifier, remember(known), NOW_S + 300)
    # THEN that is said, for a day
    assert [(one.state, one.instance) for one in gone.findings] == [("warning", PORTS[identifier])]
    assert "driver mlx5_core" in gone.findings[0].why
    later = look_all(tmp_path, identifier, remember(gone), NOW_S + 80_000)
    assert state_of(later.findings) == "warning"
    assert state_of(look(tmp_path, identifier, remember(later), NOW_S + 87_000)) == ""


@pytest.mark.parametrize("identifier", PORTS)
def test_a_card_that_does_not_answer_any_more_is_critical_after_a_while(tmp_path: Path, identifier: str) -> None:
    card(host(tmp_path))
    known = look_all(tmp_path, identifier)
    without(tmp_path)
    (tmp_path / CARD / "config").write_bytes(b"\xff" * 64)
    # A card whose firmware begins anew reads so too.
    early = look_all(tmp_path, identifier, remember(known), NOW_S + 300)
    assert state_of(early.findings) == "warning"
    assert state_of(look(tmp_path, identifier, remember(early), NOW_S + 330)) == "warning"
    assert state_of(look(tmp_path, identifier, remember(early), NOW_S + 600)) == "critical"


@pytest.mark.parametrize("identifier", PORTS)
@pytest.mark.parametrize("how", ["virtual function", "virtual machine", "another name"])
def test_a_port_that_was_given_away_is_not_missed(tmp_path: Path, identifier: str, how: str) -> None:
    card(host(tmp_path))
    if how == "virtual function":
        (tmp_path / CARD / "physfn").mkdir()
    known = remember(look_all(tmp_path, identifier))
    without(tmp_path)
    if how == "virtual machine":
        (tmp_path / CARD / "driver").unlink()
        (tmp_path / CARD / "driver").symlink_to("../../../bus/pci/drivers/vfio-pci")
    elif how == "another name":
        put(tmp_path, {**ib("rocep59s0"), **nic("ens3")})
        shutil.rmtree(tmp_path / "sys/class/net/ens3/device")
        for name in ("infiniband/rocep59s0", "net/ens3"):
            (tmp_path / f"sys/class/{name}/device").symlink_to("../../../devices/pci0000:00/0000:3b:00.0")
    assert state_of(look(tmp_path, identifier, known, NOW_S + 300)) in ("", "ok")


def test_an_interface_in_the_namespace_of_a_pod_is_not_missed(tmp_path: Path) -> None:
    card(host(tmp_path))
    (tmp_path / CARD / "infiniband/mlx5_0").mkdir(parents=True)  # which is seen in all namespaces
    known = remember(look_all(tmp_path, "net.link"))
    without(tmp_path)
    assert state_of(look(tmp_path, "net.link", known, NOW_S + 300)) == ""


def test_fewer_ports_than_the_setting_are_critical_where_there_are_none(tmp_path: Path) -> None:
    assert state_of(look(host(tmp_path), "ib.port", ports=2.0)) == "critical"


def test_ports_that_nobody_uses_excuse_none_that_is_lost(tmp_path: Path) -> None:
    # GIVEN two ports, of which one is to be active, and the other was never so and is switched off
    unused = {
        f"{IB.replace('mlx5_0', 'mlx5_1')}/{name}": text
        for name, text in (("state", "1: DOWN"), ("phys_state", "3: Disabled"))
    }
    host(tmp_path, {**ib("mlx5_0"), **ib("mlx5_1"), **unused})
    lost = {f"{IB}/state": "1: DOWN\n", f"{IB}/phys_state": "2: Polling\n"}
    known = remember(look_all(tmp_path, "ib.port", ports=1.0))
    put(tmp_path, lost)
    found = look(tmp_path, "ib.port", known, NOW_S + 300, ports=1.0)
    # THEN the setting is broken, by itself too: without what earlier sweeps saw
    assert [one.state for one in found if one.unit == "active ports"] == ["critical"]
    assert state_of(look(tmp_path, "ib.port", ports=1.0)) == "critical"


HEALTH = "mlx5_core 0000:3b:00.0: poll_health:800:(pid 0): Fatal error 3 detected"


def test_a_network_card_s_fatal_error_is_critical_and_a_virtual_function_s_is_not(tmp_path: Path) -> None:
    # SR-IOV that is switched off makes the driver call its virtual functions dead, which then leave the bus
    host(tmp_path, {KMSG: line(HEALTH)})
    assert state_of(look(tmp_path, "os.kmsg")) == "warning"
    put(tmp_path, pci_device("0000:3b:00.0", "nic"))
    assert state_of(look(tmp_path, "os.kmsg")) == "critical"
    (tmp_path / PORT / "physfn").mkdir()
    assert state_of(look(tmp_path, "os.kmsg")) == "warning"
