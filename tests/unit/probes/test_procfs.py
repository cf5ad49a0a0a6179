"""Process files are read whatever they hold: they come from other people's processes."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.probes.host import procfs
from rankscope.probes.host.maps import mapped_files, parse_mapped_files
from rankscope.probes.host.mounts import Mounts, parse_mountinfo, unescape
from rankscope.probes.host.namespaces import host_name, namespaces, node_name

STAT = (
    b"4242 (a) R 1 (b c) S 1 4242 4242 0 -1 4194560 9 0 13 0 250 50 0 0 20 0 7 0 98765 1000 10 18446744073709551615 "
    + b"0 " * 13
    + b"3 0 0 0\n"
)


def test_a_name_with_brackets_and_spaces_does_not_confuse_stat() -> None:
    stat = procfs.parse_stat(STAT)
    assert (stat.pid, stat.comm, stat.state, stat.ppid) == (4242, "a) R 1 (b c", "S", 1)
    assert (stat.threads, stat.start_ticks, stat.major_faults, stat.processor) == (7, 98765, 13, 3)
    assert stat.user_s == pytest.approx(250 / procfs.TICKS_PER_S)
    assert stat.start_s == pytest.approx(98765 / procfs.TICKS_PER_S)


def test_status_of_a_process_in_two_pid_namespaces() -> None:
    data = (
        b"Name:\tpy\tthon\nState:\tT (stopped)\nTgid:\t900\nPPid:\t7\nUid:\t1000\t0\t0\t0\n"
        b"NSpid:\t900\t31\t1\nVmRSS:\t  12 kB\nCpus_allowed_list:\t0-1,4\n"
    )
    status = procfs.parse_status(data)
    assert (status.tgid, status.inner_pid, status.uid, status.state) == (900, 1, 1000, "T")
    assert (status.cpus_allowed, status.rss_bytes) == ("0-1,4", 12288)


def test_the_own_process_reads_the_same_by_every_way() -> None:
    pid = os.getpid()
    assert procfs.read_stat(pid).ppid == procfs.read_status(pid).ppid == os.getppid()
    assert pid in procfs.threads(pid)
    assert pid in procfs.pids()
    assert any("libc.so.6" in path for path in mapped_files(pid))
    assert not any("libnothing-of-that-name" in path for path in mapped_files(pid))
    assert procfs.parse_cpu_list(procfs.cpus_allowed(pid)) == os.sched_getaffinity(0)
    assert namespaces(pid).missing == ()
    assert node_name(pid) == host_name()


def test_the_first_of_a_repeated_variable_counts() -> None:
    assert procfs.parse_environ(b"A=1\0A=2\0B\0=x\0C=\0D=a=b\0") == {"A": "1", "C": "", "D": "a=b"}


def test_a_huge_environment_is_cut(tmp_path: Path) -> None:
    folder = tmp_path / "proc/7"
    folder.mkdir(parents=True)
    (folder / "environ").write_bytes(b"RANK=3\0" + b"X" * (4 << 20))
    assert len(procfs.read_environ_bytes(7, tmp_path)) == procfs.ENVIRON_CAP
    assert procfs.read_environ(7, tmp_path)["RANK"] == "3"


def test_arguments_keep_their_empty_ones() -> None:
    assert procfs.parse_cmdline(b"python\0\0-u\0") == ("python", "", "-u")
    assert procfs.parse_cmdline(b"") == ()


def test_deleted_libraries_keep_their_path() -> None:
    data = b"7f-80 r-xp 0 fe:00 1   /lib/libtorch cpu.so (deleted)\n7f-80 r-xp 0 fe:00 1   /lib/a.so\n7f-80 rw-p 0 00:00 0 [heap]\n"
    assert parse_mapped_files(data) == ("/lib/libtorch cpu.so", "/lib/a.so")


def test_an_ended_process_has_a_reason() -> None:
    with pytest.raises(OSError) as caught:
        procfs.read_stat(2**22 + 1)
    assert procfs.reason(caught.value) == "no such process or file"
    assert len(namespaces(2**22 + 1).missing) == 7


@given(st.binary(max_size=500))
def test_no_bytes_can_do_more_than_be_refused(data: bytes) -> None:
    for parse in (procfs.parse_stat, procfs.parse_status):
        try:
            parse(data)
        except ValueError:
            continue
    procfs.parse_environ(data)
    procfs.parse_cmdline(data)
    parse_mapped_files(data)
    parse_mountinfo(data)


@given(st.binary(max_size=15), st.integers(1, 2**22))
def test_any_name_survives_stat(name: bytes, pid: int) -> None:
    stat = procfs.parse_stat(b"%d (%b) " % (pid, name) + b"R 1 " + b"5 " * 40)
    assert (stat.pid, stat.comm, stat.state) == (pid, name.decode("utf-8", "replace"), "R")


@pytest.mark.parametrize("text", ["x", "3-1", "0-99999999", "-1", "0-65536", "0-65535,0", "²"])
def test_a_list_of_cpus_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        procfs.parse_cpu_list(text)


def test_a_list_that_names_all_cpus_again_and_again_is_refused_at_the_second_time() -> None:
    began = time.process_time()
    with pytest.raises(ValueError):
        procfs.parse_cpu_list("0-65535," * 5000)
    assert time.process_time() - began < 0.2


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=8))
def test_ranges_of_cpus_hold_what_the_list_names(named: list[tuple[int, int]]) -> None:
    text = ",".join(f"{first}-{first + more}" for first, more in named)
    ranges = procfs.cpu_ranges(text)
    cpus = [cpu for each in ranges for cpu in each]
    assert cpus == sorted({cpu for first, more in named for cpu in range(first, first + more + 1)})
    assert all(before.stop < after.start for before, after in itertools.pairwise(ranges))
    assert procfs.parse_cpu_list(text) == set(cpus)


MOUNTINFO = rb"""22 27 0:21 / /proc rw - proc proc rw
27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard
40 27 254:0 /home/user/data /mnt/my\040data rw - ext4 /dev/vda rw
41 27 0:55 / /mnt/nfs rw - nfs4 10.0.0.9:/export\011x rw,vers=4.2
42 27 8:16 /sub /mnt/only rw - xfs /dev/sdb rw
43 27 8:16 /sub /mnt/nfs rw - xfs /dev/sdb rw
this is not a mount
"""


def test_mounts_are_found_by_device_and_by_path() -> None:
    mounts = Mounts(parse_mountinfo(MOUNTINFO))
    assert len(mounts.mounts) == 6
    whole = mounts.by_device(254, 0)
    assert whole is not None and (whole.mount_point, whole.fs_type) == ("/", "ext4")
    part = mounts.by_device(8, 16)
    assert part is not None and part.mount_point in ("/mnt/only", "/mnt/nfs")
    assert mounts.by_device(1, 1) is None
    bound = mounts.by_path("/mnt/my data/shard-1")
    assert bound is not None and bound.root == "/home/user/data"
    over = mounts.by_path("/mnt/nfs/x")
    assert over is not None and over.fs_type == "xfs"  # mounted over it later
    beside = mounts.by_path("/mnt/nfsx")
    assert beside is not None and beside.mount_point == "/"


def test_escapes_are_undone() -> None:
    assert unescape(rb"10.0.0.9:/a\011b\134c\040") == "10.0.0.9:/a\tb\\c "
