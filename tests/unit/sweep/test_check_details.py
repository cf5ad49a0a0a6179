"""What each check says in its other cases: where the host lacks what it looks at, below and above its limits, and with several devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sweep_trees import (
    CPU,
    IB,
    NET,
    NOW_S,
    TORCHRUN,
    UPTIME_S,
    host,
    ib,
    look,
    look_all,
    nic,
    pci_device,
    process,
    twice,
    with_gpus,
)

from rankscope.probes.gpu.nvml import Gpu, GpuProcess, NvLink

GPU = Gpu(0, uuid="GPU-a", bus="00000000:3b:00.0", name="H100")
TWIN = replace(GPU, index=1, uuid="GPU-b", bus="00000000:5e:00.0")

Found = dict[str, str]  # state by instance


def found(root: Path, identifier: str, **settings: float) -> Found:
    return {one.instance: one.state for one in look(root, identifier, **settings)}


NOT_HERE = {
    "cpu.governor": "no cpufreq", "cpu.throttle": "do not count throttling", "cpu.offline": "does not list CPUs",
    "disk.slow": "block devices", "ib.errors": "no InfiniBand", "ib.flap": "no InfiniBand", "ib.port": "no InfiniBand",
    "mem.ecc": "no EDAC driver", "net.errors": "no physical network interface", "net.link": "no physical network interface",
    "net.speed": "no physical interface reports", "pcie.aer": "no PCI device counts errors", "pcie.link": "no GPU, NIC or NVMe",
}  # fmt: skip
UNREADABLE = {
    "cpu.steal": "/proc/stat cannot be read", "mem.oom": "/proc/vmstat cannot be read",
    "mem.pressure": "neither /proc/pressure/memory nor /proc/meminfo", "disk.errors": "/dev/kmsg", "os.kmsg": "/dev/kmsg",
}  # fmt: skip
DUMB_GPUS = {
    "gpu.clock": "no GPU tells its clocks", "gpu.ecc": "no GPU", "gpu.recovery": "recommends nothing", "gpu.remap": "no GPU remaps",
    "gpu.throttle": "no GPU tells why", "nvlink.down": "no NVLink is in use", "nvlink.errors": "no NVLink that counts errors",
}  # fmt: skip


@pytest.mark.parametrize("identifier", NOT_HERE)
def test_a_check_of_what_a_host_does_not_have_says_so(tmp_path: Path, identifier: str) -> None:
    done = look_all(tmp_path, identifier)
    assert done.findings == () and NOT_HERE[identifier] in done.skipped[0][1]


@pytest.mark.parametrize("identifier", UNREADABLE)
def test_what_cannot_be_read_is_unknown(tmp_path: Path, identifier: str) -> None:
    (one,) = look(tmp_path, identifier)
    assert one.state == "unknown" and UNREADABLE[identifier] in one.why


@pytest.mark.parametrize("identifier", DUMB_GPUS)
def test_a_check_of_what_no_gpu_tells_says_so(tmp_path: Path, identifier: str) -> None:
    done = look_all(with_gpus(host(tmp_path), Gpu(0, uuid="GPU-a")), identifier)
    assert done.findings == () and DUMB_GPUS[identifier] in done.skipped[0][1]


def cpu(number: int, governor: str = "performance", driver: str = "acpi-cpufreq", most: str = "2000") -> dict[str, str]:
    base = f"{CPU}/cpu{number}/cpufreq"
    return {f"{base}/scaling_governor": governor, f"{base}/scaling_driver": driver, f"{base}/scaling_max_freq": most,
            f"{base}/cpuinfo_max_freq": "2000"}  # fmt: skip


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (cpu(0), "performance on 1"),
        ({**cpu(0, "powersave"), **cpu(1)}, "1 CPUs stay at their lowest clock"),
        (cpu(0, "userspace"), "1 CPUs stay at their lowest clock"),
        *((cpu(0, "powersave", driver), "powersave on 1") for driver in ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")),
        ({**cpu(0, most="1799"), **cpu(1)}, "clock of cpu0 and 0 others is capped"),
        (cpu(0, most="1801"), "performance on 1"),
        ({**cpu(0), **cpu(1, "schedutil")}, "some CPUs differ"),
    ],
)  # fmt: skip
def test_governors_and_clocks_of_cpus(tmp_path: Path, files: dict[str, str], said: str) -> None:
    (one,) = look(host(tmp_path, files), "cpu.governor")
    assert said in (one.why or str(one.value)) and (one.state == "ok") == (not one.why)


def test_the_hottest_cpu_is_named(tmp_path: Path) -> None:
    counts = {(0, "core"): "1", (0, "package"): "1", (1, "core"): "1"}
    name = "{}/cpu{}/thermal_throttle/{}_throttle_count"
    host(tmp_path, {name.format(CPU, *key): count for key, count in counts.items()})
    (one,) = twice(tmp_path, "cpu.throttle", {name.format(CPU, 0, "package"): "41", name.format(CPU, 1, "core"): "12"})
    assert (one.state, one.value) == ("warning", 40.0) and "cpu0 (package)" in one.why


def test_a_few_throttling_events_are_none(tmp_path: Path) -> None:
    path = f"{CPU}/cpu0/thermal_throttle/core_throttle_count"
    assert twice(host(tmp_path, {path: "1"}), "cpu.throttle", {path: "11"})[0].state == "ok"


def stolen(steal: int) -> dict[str, str]:
    return {"proc/stat": f"cpu  1000 0 1000 {101000 - steal} 0 0 0 {steal} 0 0\n"}


@pytest.mark.parametrize(("steal", "state"), [(90, "ok"), (110, "warning")])
def test_stolen_time_is_a_share_of_all_time_since_the_last_sweep(tmp_path: Path, steal: int, state: str) -> None:
    (one,) = twice(host(tmp_path), "cpu.steal", stolen(steal))
    assert (one.state, one.value) == (state, steal / 10)


def disk(name: str, requests: int, milliseconds: int) -> str:
    return f"   8  0 {name} {requests} 0 800 {milliseconds} 0 0 0 0 0 0 0\n"


@pytest.mark.parametrize(
    ("before", "after", "files", "said"),
    [
        (disk("sda", 0, 0), disk("sda", 100, 9900), {}, {"sda": "ok"}),
        (disk("sda", 0, 0), disk("sda", 100, 10100), {}, {"sda": "warning"}),
        (disk("sda", 0, 0), disk("sda", 99, 99000), {}, {"sda": "ok"}),  # too few to say
        (disk("sda", 0, 0), disk("sda", 100, 90000), {"sys/block/sda/queue/rotational": "1"}, {"sda": "ok"}),
        (disk("sda", 0, 0), disk("sda", 100, 101000), {"sys/block/sda/queue/rotational": "1"}, {"sda": "warning"}),
        (disk("sda1", 0, 0), disk("sda1", 100, 90000), {"sys/class/block/sda1/partition": "1"}, {}),
        *((disk(name, 0, 0), disk(name, 100, 90000), {}, {}) for name in ("loop0", "dm-1", "md0", "zram0", "sr0")),
    ],
)  # fmt: skip
def test_disks_that_answer_slowly(tmp_path: Path, before: str, after: str, files: dict[str, str], said: Found) -> None:
    host(tmp_path, {"proc/diskstats": before, **files})
    assert {one.instance: one.state for one in twice(tmp_path, "disk.slow", {"proc/diskstats": after})} == said


@pytest.mark.parametrize(
    ("files", "change", "said"),
    [
        ({"sys/block/sda/device/ioerr_cnt": "0x1"}, {"sys/block/sda/device/ioerr_cnt": "0xb"}, {"": "ok"}),
        ({"sys/block/sda/device/ioerr_cnt": "0x1"}, {"sys/block/sda/device/ioerr_cnt": "0xc"}, {"sda": "warning"}),
        ({"sys/block/md0/md/degraded": "0"}, {"sys/block/md0/md/degraded": "1"}, {"md0": "warning"}),
        ({"sys/block/sda/md/degraded": "0"}, {"sys/block/sda/md/degraded": "1"}, {"": "ok"}),
        ({"sys/class/nvme/nvme0/state": "live"}, {"sys/class/nvme/nvme0/state": "new"}, {"": "ok"}),
    ],
)  # fmt: skip
def test_disks_controllers_and_arrays(
    tmp_path: Path, files: dict[str, str], change: dict[str, str], said: Found
) -> None:
    host(tmp_path, files)
    assert {one.instance: one.state for one in twice(tmp_path, "disk.errors", change)} == said


def test_a_disk_that_is_bad_is_named_where_the_log_cannot_be_read(tmp_path: Path) -> None:
    host(tmp_path, {"sys/block/md0/md/degraded": "1"})
    (tmp_path / "dev/kmsg").unlink()
    assert found(tmp_path, "disk.errors") == {"md0": "warning"}


def test_errors_of_disks_in_the_log_are_counted_by_disk_and_for_a_day(tmp_path: Path) -> None:
    text = "I/O error, dev {}, sector 7 op 0x0:(READ)"
    lines = [(UPTIME_S - 90_000, "sdc"), (UPTIME_S - 80_000, "sda"), (UPTIME_S, "sda"), (UPTIME_S, "sdb")]
    log = "".join(f"3,1,{int(seconds * 1e6)},-;{text.format(disk)}\n" for seconds, disk in lines)
    said = look(host(tmp_path, {"dev/kmsg": log}), "disk.errors")
    assert {(one.instance, one.value) for one in said} == {("sda", 2.0), ("sdb", 1.0)}
    assert {one.since_s for one in said if one.instance == "sda"} == {NOW_S - 80_000}


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 19 kB\n"}, "warning"),
        ({"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 21 kB\n"}, "ok"),
    ],
)
def test_memory_that_is_left(tmp_path: Path, files: dict[str, str], state: str) -> None:
    assert found(host(tmp_path, files), "mem.pressure")["available"] == state


@pytest.mark.parametrize(("seconds", "state"), [(71, "ok"), (73, "warning")])
def test_time_in_which_all_wait_for_memory(tmp_path: Path, seconds: int, state: str) -> None:
    full = f"some avg10=0 total=0\nfull avg10=0 total={seconds * 1_000_000}\n"
    said = twice(host(tmp_path), "mem.pressure", {"proc/pressure/memory": full})
    assert {one.state for one in said if not one.instance} == {state}


LOW = {"proc/sys/fs/file-nr": "91 0 100\n", "proc/loadavg": "0.0 0.0 0.0 1/91 4\n"}


def test_limits_that_are_nearly_reached(tmp_path: Path) -> None:
    host(tmp_path, {**LOW, "proc/sys/kernel/pid_max": "100\n", "proc/sys/kernel/threads-max": "102\n"})
    assert found(tmp_path, "os.limits") == {"file handles": "warning", "pid_max": "warning", "threads-max": "ok"}


@pytest.mark.parametrize(
    ("limit", "there", "said"),
    [("65536", True, {"memlock": "warning"}), ("65536", False, {}), ("unlimited", True, {}), ("2000000000", True, {})],
)
def test_a_rank_that_cannot_pin_its_buffers(tmp_path: Path, limit: str, there: bool, said: Found) -> None:
    line = f"Max stack size  8388608  unlimited  bytes\nMax locked memory  {limit}  {limit}  bytes\n"
    port = ib("mlx5_0") if there else {}
    host(tmp_path, {**port, **process(13, "S", 5, environ=TORCHRUN), "proc/13/limits": line})
    assert {name: state for name, state in found(tmp_path, "os.limits").items() if name == "memlock"} == said


@pytest.mark.parametrize(
    ("clock", "files", "state", "said"),
    [
        ("status=0x2001 maxerror_us=1000 offset_us=90000", {}, "ok", ""),
        ("status=0x2001 maxerror_us=1000 offset_us=-110000", {}, "warning", "do not match"),
        ("status=0x2001 maxerror_us=1000 offset_us=1100000", {}, "critical", "do not match"),
        *(("status=0x0040 maxerror_us=16000000 offset_us=0", process(9, "S", 1, name), "warning", f"{name} runs")
          for name in ("chronyd", "ntpd", "systemd-timesyn", "openntpd", "ptp4l", "phc2sys", "ntpd-rs")),
        ("status=0x0040 maxerror_us=16000000 offset_us=0", {"proc/cpuinfo": "flags : fpu\n"}, "warning", "no time service"),
    ],
)  # fmt: skip
def test_clocks(tmp_path: Path, clock: str, files: dict[str, str], state: str, said: str) -> None:
    (one,) = look(host(tmp_path, {"adjtimex": f"{clock}\n", **files}), "os.clock-sync")
    assert one.state == state and said in (one.why or "")


def test_a_virtual_machine_without_a_time_service_keeps_its_hypervisors_clock(tmp_path: Path) -> None:
    done = look_all(host(tmp_path, {"adjtimex": "status=0x0040 maxerror_us=16000000 offset_us=0\n"}), "os.clock-sync")
    assert done.findings == () and "hypervisor" in done.skipped[0][1]


@pytest.mark.parametrize(
    ("identifier", "gpu", "settings", "said"),
    [
        ("gpu.clock", replace(TWIN, sm_clock_max_mhz=1900), {}, {"gpu0": "ok", "gpu1": "warning"}),
        ("gpu.clock", replace(TWIN, sm_clock_max_mhz=1970), {}, {"gpu0": "ok", "gpu1": "ok"}),
        ("gpu.clock", replace(TWIN, sm_clock_max_mhz=1000, name="L4"), {}, {"gpu0": "ok", "gpu1": "ok"}),
        ("gpu.ecc", replace(TWIN, ecc_enabled=False), {}, {"gpu0": "ok", "gpu1": "warning"}),
        ("gpu.throttle", replace(TWIN, throttle_reasons=0x08), {}, {"gpu0": "ok", "gpu1": "critical"}),
        ("gpu.throttle", replace(TWIN, throttle_reasons=0x80), {}, {"gpu0": "ok", "gpu1": "critical"}),
        ("gpu.throttle", replace(TWIN, throttle_reasons=0x20), {}, {"gpu0": "ok", "gpu1": "warning"}),
        ("gpu.throttle", replace(TWIN, throttle_reasons=4, power_limit_w=660.0, power_default_w=700.0), {},
         {"gpu0": "ok", "gpu1": "warning"}),
        ("gpu.throttle", replace(TWIN, throttle_reasons=4, power_limit_w=670.0, power_default_w=700.0), {},
         {"gpu0": "ok", "gpu1": "ok"}),
        ("gpu.remap", replace(TWIN, remap_failed=False, remap_pending=True), {}, {"gpu0": "ok", "gpu1": "warning"}),
        ("gpu.remap", replace(TWIN, retired_pending=True), {}, {"gpu0": "ok", "gpu1": "warning"}),
        ("nvlink.down", replace(TWIN, links=(NvLink(0, True, 0),)), {}, {"gpu0": "ok", "gpu1": "critical"}),
        ("nvlink.down", replace(TWIN, name="L4", links=()), {}, {"gpu0": "ok"}),
    ],
)  # fmt: skip
def test_a_gpu_among_others(tmp_path: Path, identifier: str, gpu: Gpu, settings: dict[str, float], said: Found) -> None:
    well = replace(GPU, sm_clock_max_mhz=1980, ecc_enabled=True, ecc_uncorrected=0, ecc_corrected=0, throttle_reasons=0,
                   remap_failed=False, remap_pending=False, links=(NvLink(0, True, 0), NvLink(1, True, 0)))  # fmt: skip
    assert found(with_gpus(host(tmp_path), well, gpu), identifier, **settings) == said


def test_processes_on_a_jobs_gpu(tmp_path: Path) -> None:
    """The job's own, a monitor's, a small one, one that has ended, and another; a GPU without a job is nobody's business."""
    names = {7: "python", 11: "miner", 13: "nv-hostengine", 15: "small", 19: "miner"}
    files = {name: text for pid, comm in names.items() for name, text in process(pid, "R", 5, comm).items()}
    files["proc/7/environ"] = TORCHRUN
    used = {7: 10**9, 11: 257 * 10**6, 13: 10**9, 15: 255 * 10**6, 17: 10**9}
    busy = replace(GPU, processes=tuple(GpuProcess(pid, size) for pid, size in used.items()))
    with_gpus(host(tmp_path, files), busy, replace(TWIN, processes=(GpuProcess(19, 10**9),)))
    assert found(tmp_path, "gpu.foreign-process") == {"gpu0 miner (11)": "warning"}


@pytest.mark.parametrize(
    ("files", "change", "settings", "said"),
    [
        ({}, {"statistics/rx_errors": "10", "statistics/rx_packets": "2000000"}, {}, "ok"),
        ({}, {"statistics/rx_errors": "9", "statistics/rx_packets": "1000001"}, {}, "ok"),  # few, of few packets
        ({}, {"statistics/rx_errors": "11", "statistics/rx_packets": "2000000"}, {}, "warning"),
        ({}, {"statistics/tx_errors": "30", "statistics/rx_packets": "2000000"}, {}, "warning"),
        ({"statistics/rx_dropped": "0"}, {"statistics/rx_dropped": "9000", "statistics/rx_packets": "2000000"}, {}, "ok"),
        ({"statistics/rx_dropped": "0"}, {"statistics/rx_dropped": "11000", "statistics/rx_packets": "2000000"}, {}, "warning"),
    ],
)  # fmt: skip
def test_errors_and_drops_are_a_share_of_packets(
    tmp_path: Path, files: dict[str, str], change: dict[str, str], settings: dict[str, float], said: str
) -> None:
    host(tmp_path, nic("eth0", **{"statistics/tx_errors": "0", **files}))
    after = {f"{NET}/{name}": text for name, text in change.items()}
    assert [one.state for one in twice(tmp_path, "net.errors", after, **settings)] == [said]


@pytest.mark.parametrize(
    ("eth1", "settings", "said"),
    [
        ({}, {}, {"eth0": "ok", "eth1": "ok"}),
        ({"speed": "25000"}, {}, {"eth0": "ok", "eth1": "warning"}),
        ({"speed": "25000", "device/device": "0x1017"}, {}, {"eth0": "ok", "eth1": "ok"}),
        ({"speed": "25000"}, {"mbps": 20000.0}, {"eth0": "ok", "eth1": "ok"}),
        ({}, {"mbps": 200000.0}, {"eth0": "warning", "eth1": "warning"}),
        ({"duplex": "half"}, {}, {"eth0": "ok", "eth1": "warning"}),
        ({"speed": "25000", "operstate": "down"}, {}, {"eth0": "ok"}),
    ],
)  # fmt: skip
def test_speeds_of_interfaces(tmp_path: Path, eth1: dict[str, str], settings: dict[str, float], said: Found) -> None:
    assert found(host(tmp_path, {**nic("eth0"), **nic("eth1", **eth1)}), "net.speed", **settings) == said


@pytest.mark.parametrize(("after", "state"), [("1", "ok"), ("2", "warning")])
def test_a_link_that_went_and_came_back(tmp_path: Path, after: str, state: str) -> None:
    host(tmp_path, nic("eth0"))
    assert [one.state for one in twice(tmp_path, "net.link", {f"{NET}/carrier_down_count": after})] == [state]


COUNTERS = {
    "symbol_error": 120, "port_rcv_errors": 10, "local_link_integrity_errors": 10, "excessive_buffer_overrun_errors": 10,
    "port_rcv_remote_physical_errors": 10, "link_error_recovery": 10,
}  # fmt: skip
HARDWARE = {
    "rx_icrc_encapsulated": 10,
    "out_of_sequence": 10_000,
    "local_ack_timeout_err": 10_000,
    "packet_seq_err": 10_000,
}


@pytest.mark.parametrize(("name", "most"), [*COUNTERS.items(), *HARDWARE.items()])
def test_damaged_and_repeated_packets_have_a_limit_an_hour(tmp_path: Path, name: str, most: int) -> None:
    path = f"{IB}/{'counters' if name in COUNTERS else 'hw_counters'}/{name}"
    for more, state in ((0, "ok"), (1, "warning")):
        host(tmp_path, {**ib("mlx5_0"), path: "7"})
        (one,) = twice(tmp_path, "ib.errors", {path: f"{7 + most + more}"})
        assert one.state == state


@pytest.mark.parametrize(("after", "state"), [("TOTAL_ERR_COR 171", "ok"), ("TOTAL_ERR_COR 172", "warning")])
def test_corrected_errors_of_a_device_have_a_limit_an_hour(tmp_path: Path, after: str, state: str) -> None:
    base = "sys/bus/pci/devices/0000:3b:00.0"
    host(tmp_path, pci_device("0000:3b:00.0", "nic", aer_dev_correctable="TOTAL_ERR_COR 71"))
    assert [one.state for one in twice(tmp_path, "pcie.aer", {f"{base}/aer_dev_correctable": after})] == [state]


def test_a_transfer_that_failed_and_was_not_fatal_is_a_warning(tmp_path: Path) -> None:
    base = "sys/bus/pci/devices/0000:3b:00.0"
    host(tmp_path, pci_device("0000:3b:00.0", "nic", aer_dev_nonfatal="TOTAL_ERR_NONFATAL 0"))
    assert [one.state for one in twice(tmp_path, "pcie.aer", {f"{base}/aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 1"})] == [
        "warning"
    ]


@pytest.mark.parametrize(
    ("change", "state", "why"),
    [
        ({}, "ok", ""),
        ({"current_link_speed": "8.0 GT/s PCIe"}, "warning", "50 % of its bandwidth; it was 16 GT/s x16 before"),
        ({"current_link_speed": "8.0 GT/s PCIe", "current_link_width": "8"}, "critical", "25 %"),
    ],
)
def test_links_of_devices(tmp_path: Path, change: dict[str, str], state: str, why: str) -> None:
    base = "sys/bus/pci/devices/0000:3b:00.0"
    host(tmp_path, pci_device("0000:3b:00.0", "nic"))
    (one,) = twice(tmp_path, "pcie.link", {f"{base}/{name}": text for name, text in change.items()})
    assert one.state == state and why in (one.why or "")
