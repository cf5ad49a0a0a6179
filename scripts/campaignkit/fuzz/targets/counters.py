"""Files of /proc and /sys with counters and limits, and the trees of control groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from campaignkit.fuzz.target import Target, chosen_by_first_byte, swapped
from rankscope.probes.host import block_devices, cgroup, clock_sync, cpu_memory, disks
from rankscope.probes.network.interfaces import parse_net_dev
from rankscope.probes.pci.devices import parse_aer, parse_speed, parse_width
from rankscope.probes.ports.reader import parse_rate

_MOUNTED = b"30 29 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n31 29 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuset\n"
_FILES = (
    "cpu.max",
    "cpu.stat",
    "memory.max",
    "memory.events",
    "io.max",
    "cpuset.cpus.effective",
    "cpu.cfs_quota_us",
    "cpu.cfs_period_us",
)
_END = b"\xff"


def _cgroup(data: bytes) -> None:
    """/proc/PID/cgroup, then one file after the other."""
    parts = data.split(_END)
    files = {"/proc/7/cgroup": parts[0], "/proc/self/mountinfo": _MOUNTED}
    by_name = dict(zip(_FILES, parts[1:], strict=False))

    def read_file(path: str, cap: int) -> bytes:
        found = files.get(path, by_name.get(path.rpartition("/")[2]))
        if found is None:
            raise FileNotFoundError(path)
        return found[:cap]

    with swapped(cgroup, "read_file", read_file):
        sample = cgroup.sample_cgroup(7, Path("/"))
    again = cgroup.cgroup_delta(sample, sample)
    for one in (sample, again):
        one.tightest_cpu, one.tightest_memory, one.throttled_s, one.throttled_periods  # noqa: B018


_TREE = _END.join((
    b"0::/job/rank0\n", b"200000 100000\n", b"usage_usec 7\nnr_periods 9\nnr_throttled 3\nthrottled_usec 77\n", b"1048576\n",
    b"low 0\nhigh 1\nmax 2\noom 0\noom_kill 1\n", b"8:16 rbps=2097152 wbps=max riops=max wiops=120\n", b"0-3\n",
))  # fmt: skip
_OLD_TREE = _END.join(
    (
        b"3:cpu,cpuset:/a\n2:memory:/b\n0::/c\n",
        b"",
        b"throttled_time 9\n",
        b"",
        b"",
        b"",
        b"0\n",
        b"50000\n",
        b"100000\n",
    )
)


def _of_text(parse: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: parse(data.decode("utf-8", "replace"))


_PARSERS: tuple[Callable[[bytes], object], ...] = (
    cpu_memory.parse_cpu_times, lambda data: cpu_memory.parse_pressure("cpu", data), cpu_memory.parse_vmstat, disks.parse_diskstats,
    parse_net_dev, _of_text(clock_sync.parse_recorded), _of_text(parse_rate), _of_text(parse_speed), _of_text(parse_width),
    _of_text(parse_aer), _of_text(block_devices.number_in),
)  # fmt: skip


def _seeds() -> list[bytes]:
    files = ("stat", "pressure/cpu", "vmstat", "diskstats", "net/dev")
    own = [
        bytes((number,)) + Path(f"/proc/{name}").read_bytes()[:1000]
        for number, name in enumerate(files)
        if Path(f"/proc/{name}").exists()
    ]
    more = (
        b"status=0x2001 maxerror_us=7 offset_us=-3",
        b"100 Gb/sec (4X EDR)",
        b"16.0 GT/s PCIe",
        b"16",
        b"TOTAL_ERR_COR 7\n",
        b"/d (ext4 254:1)",
    )
    return [*own, *(bytes((number,)) + one for number, one in enumerate(more, 5))]


TARGETS = (
    Target(
        "counters",
        "counters of /proc and /sys: CPU, memory, disks, interfaces, ports, PCIe",
        chosen_by_first_byte(*_PARSERS),
        _seeds,
        raises=(ValueError,),
        words=(b"9" * 400, b"9" * 4400, b" ", b"\n", b"cpu", b"total=", b"some ", b":", b"1:1", b"e9", b"."),
    ),
    Target(
        "cgroup",
        "control groups and their limits",
        _cgroup,
        lambda: [_TREE, _OLD_TREE],
        longest_bytes=8192,
        words=(
            b"\xff",
            b"9" * 400,
            b"9" * 4400,
            b"max",
            b"0::/",
            b"/..",
            b"/a",
            b" ",
            b"\n",
            b"nr_throttled ",
            b"rbps=",
            b"8:0 ",
        ),
    ),
)
