"""Limits bind wherever in the hierarchy they are set: version 1, version 2, both, and seen from inside a container."""

from __future__ import annotations

from pathlib import Path

import pytest
from hardware_trees import put
from hypothesis import given
from hypothesis import strategies as st

from rankscope.probes.host import cgroup
from rankscope.probes.host.cgroup import (
    cgroup_delta,
    parse_cpu_max,
    parse_entries,
    parse_io_max,
    sample_cgroup,
    sample_cgroups,
)

V1_MOUNTS = """32 31 0:29 {root} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
38 31 0:35 {root} /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio
34 31 0:31 {root} /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "41 31 0:38 {root} /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"


def _v1(root: Path, throttled: int = 11, mount_root: str = "/") -> Path:
    base = "sys/fs/cgroup"
    return put(root, {
        "proc/self/mountinfo": V1_MOUNTS.format(root=mount_root),
        "proc/42/cgroup": "9:memory:/job/rank\n8:cpu,cpuacct:/job/rank\n7:blkio:/job\n6:cpuset:/\n0::/\n",
        f"{base}/cpu,cpuacct/job/rank/cpu.cfs_quota_us": "-1\n",
        f"{base}/cpu,cpuacct/job/rank/cpu.cfs_period_us": "100000\n",
        f"{base}/cpu,cpuacct/job/rank/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
        f"{base}/cpu,cpuacct/job/cpu.cfs_quota_us": "150000\n",
        f"{base}/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        f"{base}/cpu,cpuacct/job/cpu.stat": f"nr_periods 97\nnr_throttled {throttled}\nthrottled_time {throttled * 1300000000}\n",
        f"{base}/cpu,cpuacct/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
        f"{base}/memory/job/memory.limit_in_bytes": "1073741824\n",
        f"{base}/memory/job/memory.usage_in_bytes": "1000\n",
        f"{base}/memory/job/memory.failcnt": "5\n",
        f"{base}/memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        f"{base}/memory/job/rank/memory.limit_in_bytes": "9223372036854771712\n",
        f"{base}/blkio/job/blkio.throttle.read_bps_device": "8:0 1048576\n8:16 2097152\n",
        f"{base}/blkio/job/blkio.throttle.write_iops_device": "8:0 23\n",
        f"{base}/cpuset/cpuset.effective_cpus": "0-3\n",
    })  # fmt: skip


def test_version_1_walks_up_to_the_quota(tmp_path: Path) -> None:
    sample = sample_cgroup(42, _v1(tmp_path))

    assert [level.path for level in sample.cpu] == ["/job/rank", "/job", "/"]
    assert sample.tightest_cpu is not None
    assert (sample.tightest_cpu.path, sample.tightest_cpu.quota_cpus, sample.tightest_cpu.period_s) == (
        "/job",
        1.5,
        0.1,
    )
    assert (sample.throttled_periods, sample.throttled_s) == (11, pytest.approx(14.3))
    memory = sample.tightest_memory
    assert memory is not None
    assert (memory.limit_bytes, memory.limit_hits, memory.oom_kills) == (2**30, 5, 2)
    limits = [(limit.device, limit.read_bytes_hz, limit.write_ops_hz) for limit in sample.io]
    assert limits == [("8:0", 1048576, 23), ("8:16", 2097152, None)]
    assert (sample.cpuset, sample.path, sample.missing) == ("0-3", "/job/rank", ())


def test_growth_of_throttling(tmp_path: Path) -> None:
    delta = cgroup_delta(sample_cgroup(42, _v1(tmp_path / "a", 11)), sample_cgroup(42, _v1(tmp_path / "b", 24)))
    assert (delta.throttled_periods, delta.throttled_s) == (13, pytest.approx(16.9))
    assert delta.tightest_memory is not None and delta.tightest_memory.oom_kills == 0


def test_version_2_walks_up_to_the_tightest(tmp_path: Path) -> None:
    pod = "sys/fs/cgroup/kubepods/pod1"
    sample = sample_cgroup(42, put(tmp_path, {
        "proc/self/mountinfo": V2_MOUNTS.format(root="/"),
        "proc/42/cgroup": "0::/kubepods/pod1/c1\n",
        f"{pod}/c1/cpu.max": "400000 100000\n",
        f"{pod}/c1/cpu.stat": "usage_usec 1\nnr_periods 31\nnr_throttled 7\nthrottled_usec 2900000\n",
        f"{pod}/c1/memory.max": "max\n",
        f"{pod}/c1/memory.current": "77\n",
        f"{pod}/c1/memory.events": "low 0\nhigh 3\nmax 4\noom 1\noom_kill 1\n",
        f"{pod}/c1/io.max": "8:16 rbps=2097152 wbps=max riops=max wiops=120\n",
        f"{pod}/c1/cpuset.cpus.effective": "2-5\n",
        f"{pod}/cpu.max": "100000 50000\n",
        f"{pod}/cpu.stat": "nr_periods 31\nnr_throttled 5\nthrottled_usec 1700000\n",
        f"{pod}/memory.max": "4096\n",
        "sys/fs/cgroup/cpu.stat": "usage_usec 99\n",
    }))  # fmt: skip

    assert sample.tightest_cpu is not None and sample.tightest_cpu.path == "/kubepods/pod1"
    assert sample.tightest_cpu.quota_cpus == 2.0
    assert sample.throttled_s == pytest.approx(4.6)
    assert (sample.memory[0].high_hits, sample.memory[0].limit_hits, sample.memory[0].usage_bytes) == (3, 4, 77)
    assert sample.tightest_memory is not None and sample.tightest_memory.limit_bytes == 4096
    assert (sample.io[0].read_bytes_hz, sample.io[0].write_bytes_hz, sample.io[0].write_ops_hz) == (2097152, None, 120)
    assert sample.cpuset == "2-5"


def test_a_hierarchy_that_is_mounted_from_below_its_root(tmp_path: Path) -> None:
    # A container of version 1 without cgroup namespace: /docker/x is mounted, and paths are told from the host's root.
    tree = _v1(tmp_path, mount_root="/docker/x")
    (tree / "proc/42/cgroup").write_text("8:cpu,cpuacct:/docker/x/job/rank\n")

    sample = sample_cgroup(42, tree)

    assert [level.path for level in sample.cpu] == ["/docker/x/job/rank", "/docker/x/job", "/docker/x"]
    assert sample.tightest_cpu is not None and sample.tightest_cpu.quota_cpus == 1.5


@pytest.mark.parametrize("path", ["/../../other", "/..", "/../x/../../y"])
def test_a_cgroup_outside_of_the_observers_namespace_is_a_reason(tmp_path: Path, path: str) -> None:
    sample = sample_cgroup(
        42, put(tmp_path, {"proc/self/mountinfo": V2_MOUNTS.format(root="/"), "proc/42/cgroup": f"0::{path}\n"})
    )
    assert sample.cpu == ()
    assert "outside" in sample.missing[0]


def test_a_path_above_the_namespace_is_found_under_a_mount_from_above(tmp_path: Path) -> None:
    sample = sample_cgroup(42, put(tmp_path, {
        "proc/self/mountinfo": V2_MOUNTS.format(root="/../.."),
        "proc/42/cgroup": "0::/../../other\n",
        "sys/fs/cgroup/other/cpu.max": "50000 100000\n",
    }))  # fmt: skip
    assert sample.tightest_cpu is not None and sample.tightest_cpu.quota_cpus == 0.5


def test_an_ended_process_and_a_host_without_cgroups_are_reasons(tmp_path: Path) -> None:
    assert "no such process" in sample_cgroup(42, tmp_path).missing[0]
    tree = put(tmp_path, {"proc/self/mountinfo": "", "proc/42/cgroup": "0::/x\n"})
    assert all("not mounted" in missing for missing in sample_cgroup(42, tree).missing)


@given(st.binary(max_size=300), st.text(max_size=100))
def test_no_bytes_make_the_parsers_fail(data: bytes, text: str) -> None:
    parse_entries(data)
    parse_cpu_max(text)
    parse_io_max("/", text)


def test_a_group_that_several_processes_are_in_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = _v1(tmp_path)
    entries = (root / "proc/42/cgroup").read_text()
    put(root, {"proc/43/cgroup": entries, "proc/44/cgroup": entries.replace("/job/rank", "/job")})
    alone = {pid: sample_cgroup(pid, root) for pid in (42, 43, 44)}
    read: list[str] = []
    usual = cgroup.read_file
    monkeypatch.setattr(cgroup, "read_file", lambda path, cap: read.append(path) or usual(path, cap))
    together = sample_cgroups((42, 43, 44, 45), root)
    assert [path for path in read if path.endswith("/job/rank/cpu.stat")] == [
        f"{root}/sys/fs/cgroup/cpu,cpuacct/job/rank/cpu.stat"
    ]
    for pid, sample in alone.items():
        assert (together[pid].pid, together[pid].cpu, together[pid].memory) == (pid, sample.cpu, sample.memory)
    assert together[45].missing and not together[45].cpu
