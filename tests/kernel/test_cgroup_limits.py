"""A real CPU quota throttles a real process, and the cgroup reader says how much, on a cgroup or on its parent."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankscope.probes.host.cgroup import cgroup_delta, sample_cgroup
from rankscope.probes.host.mounts import read_mounts

QUOTA_CPUS = 0.2


@pytest.fixture
def quota() -> Iterator[Path]:
    """A cgroup with a quota of 0.2 CPUs, and a child without one: the folder of the child."""
    mounts = read_mounts().mounts
    old = [
        mount.mount_point for mount in mounts if mount.fs_type == "cgroup" and "cpu" in mount.super_options.split(",")
    ]
    new = [mount.mount_point for mount in mounts if mount.fs_type == "cgroup2"]
    parent = Path((old or new)[0]) / f"rankscope-test-{os.getpid()}"
    child = parent / "inner"
    if not old:
        with contextlib.suppress(OSError):
            (parent.parent / "cgroup.subtree_control").write_text("+cpu")
    child.mkdir(parents=True)
    try:
        if old:
            (parent / "cpu.cfs_quota_us").write_text(str(int(QUOTA_CPUS * 100_000)))
        else:
            (parent / "cpu.max").write_text(f"{int(QUOTA_CPUS * 100_000)} 100000")
        yield child
    finally:
        for folder in (child, parent):
            for _ in range(50):
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                time.sleep(0.1)


def test_throttling_is_found_on_the_parent_that_has_the_quota(quota: Path) -> None:
    spin = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        (quota / "cgroup.procs").write_text(str(spin.pid))
        before = sample_cgroup(spin.pid)
        begin = time.monotonic()
        time.sleep(1.3)
        delta = cgroup_delta(before, sample_cgroup(spin.pid))
        took = time.monotonic() - begin
    finally:
        spin.kill()
        spin.wait()

    assert delta.tightest_cpu is not None
    assert delta.tightest_cpu.quota_cpus == pytest.approx(QUOTA_CPUS)
    assert delta.tightest_cpu.path.endswith(f"rankscope-test-{os.getpid()}")
    assert delta.cpu[0].path.endswith("/inner")
    assert delta.cpu[0].quota_cpus is None
    assert 8 <= delta.throttled_periods <= 14
    assert delta.throttled_s == pytest.approx(took * (1 - QUOTA_CPUS), rel=0.35)
