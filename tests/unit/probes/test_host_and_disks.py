"""The host's counters, on recorded trees: complete ones, and ones of kernels that have less."""

from __future__ import annotations

from pathlib import Path

import pytest
from hardware_trees import put
from hypothesis import given
from hypothesis import strategies as st

from rankscope.probes.host.cpu_memory import host_delta, parse_cpu_times, parse_vmstat, sample_host
from rankscope.probes.host.disks import disk_deltas, parse_diskstats, sample_disks
from rankscope.probes.host.procfs import TICKS_PER_S


def _host(root: Path, factor: int) -> Path:
    return put(root, {
        "proc/stat": f"cpu  {700 * factor} 1 {200 * factor} 5 6 7 {31 * factor} {17 * factor} 0 0\n"
                     f"cpu0 {700 * factor} 1 {200 * factor} 5 6 7 {31 * factor} {17 * factor} 0 0\nintr 1 2 3\n",
        "proc/pressure/cpu": f"some avg10=0.00 avg60=0.00 avg300=0.00 total={1_300_000 * factor}\n",
        "proc/pressure/memory": f"some avg10=0.00 total={23 * factor}\nfull avg10=0.00 total=19\n",
        "proc/vmstat": f"nr_free 1\npgmajfault {11 * factor}\noom_kill 1\npswpin 2\npswpout {3 * factor}\npgscan_direct 7\n",
        "proc/loadavg": "1.50 0.50 0.10 3/900 12345\n",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq": "2400000\n",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3500000\n",
    })  # fmt: skip


def test_growth_of_the_hosts_counters(tmp_path: Path) -> None:
    before = sample_host(_host(tmp_path / "a", 1))
    after = sample_host(_host(tmp_path / "b", 3))

    delta = host_delta(before, after)

    assert delta.total is not None
    assert delta.total.busy_s == pytest.approx((1400 + 400 + 62) / TICKS_PER_S)
    assert delta.cpus[0].softirq_s == pytest.approx(62 / TICKS_PER_S)
    assert delta.cpus[0].steal_s == pytest.approx(34 / TICKS_PER_S)
    assert {p.resource: p.some_s for p in delta.pressures} == pytest.approx({"cpu": 2.6, "memory": 46e-6})
    assert delta.vm is not None and (delta.vm.major_faults, delta.vm.swapped_out_pages, delta.vm.oom_kills) == (
        22,
        6,
        0,
    )
    assert (after.load_1m, after.runnable) == (1.5, 3)
    assert (after.clocks[0].current_hz, after.clocks[0].max_hz) == (2.4e9, 3.5e9)
    assert any("io pressure" in missing for missing in after.missing)


def test_counters_that_fall_count_as_nothing(tmp_path: Path) -> None:
    delta = host_delta(sample_host(_host(tmp_path / "a", 3)), sample_host(_host(tmp_path / "b", 1)))
    assert delta.total is not None and delta.total.user_s == 0
    assert delta.pressures[0].some_s == 0


def test_a_host_without_anything_says_what_is_missing(tmp_path: Path) -> None:
    sample = sample_host(tmp_path)
    assert (sample.total, sample.cpus, sample.vm, sample.pressures) == (None, (), None, ())
    assert len(sample.missing) == 7


def test_an_old_kernel_without_steal_reads_as_zero() -> None:
    total, cpus = parse_cpu_times(b"cpu  10 20 30 40\ncpu0 10 20 30 40\ncpufoo 1\ncpu1\n")
    assert total is not None and total.steal_s == 0 and total.user_s == 10 / TICKS_PER_S
    assert len(cpus) == 1


DISKSTATS = """   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0
 259       0 nvme0n1 {reads} 0 {sectors} 500 7 0 16 20 1 {busy} 520 0 0 0 0 0 0
 254       0 old 1 2 3
 bad line
"""


def test_growth_of_a_disk(tmp_path: Path) -> None:
    a = sample_disks(put(tmp_path / "a", {"proc/diskstats": DISKSTATS.format(reads=100, sectors=800, busy=90)}))
    b = sample_disks(put(tmp_path / "b", {"proc/diskstats": DISKSTATS.format(reads=113, sectors=904, busy=137)}))

    (disk,) = disk_deltas(a, b)

    assert (disk.device, disk.reads, disk.read_bytes, disk.writes, disk.in_flight) == ("nvme0n1", 13, 104 * 512, 0, 1)
    assert disk.busy_s == pytest.approx(0.047)


def test_no_disks_is_a_reason(tmp_path: Path) -> None:
    assert sample_disks(tmp_path).missing


@given(st.binary(max_size=400))
def test_no_bytes_make_the_parsers_fail(data: bytes) -> None:
    parse_cpu_times(b"cpu" + data)
    parse_vmstat(data)
    parse_diskstats(data)
