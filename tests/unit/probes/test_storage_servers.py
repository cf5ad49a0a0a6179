"""Servers of files: mountstats and Lustre's files as their clients write them, and as nobody would."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_trees import Nfs, Ost, mountstats, write_tree

from rankscope.probes.servers.lustre import OstCounts, parse_import, parse_stats, target_of
from rankscope.probes.servers.nfs import parse_mountstats
from rankscope.probes.servers.sample import grown_servers, sample_servers

COUNT = st.integers(0, 1 << 40)


@given(COUNT, COUNT, COUNT, COUNT, st.integers(0, 1000))
def test_what_the_kernel_counts_is_read_whatever_the_numbers(
    reads: int, read_ms: int, writes: int, write_ms: int, twice: int
) -> None:
    mounts = [
        Nfs("nas1", "10.0.0.5", "/data", 53, reads, read_ms, writes, write_ms, twice),
        Nfs("fe80::1", "fe80::1", "/b\\040c", 54),
    ]
    one, other = parse_mountstats(mountstats(mounts).replace("device fe80::1:", "device [fe80::1]:").encode())
    assert (one.server, one.address, one.mount_point) == ("nas1", "10.0.0.5", "/data")
    assert (one.reads, one.writes, one.retransmits) == (reads, writes, twice)
    assert (one.read_s, one.write_s) == pytest.approx((read_ms / 1e3, write_ms / 1e3))
    assert (other.server, other.mount_point, other.reads) == ("fe80::1", "/b c", 0)


@given(st.binary(max_size=300), st.integers(0, 3000))
def test_spoilt_files_give_what_is_whole_and_no_error(noise: bytes, cut: int) -> None:
    good = mountstats([Nfs("nas1", "10.0.0.5", "/data", 53, 12345, 67890)]).encode()
    for one in parse_mountstats(noise + b"\n" + good[:cut]):
        assert one.reads in (0, 12345)  # never a number that was cut
    parse_stats(noise)
    parse_import(noise)
    assert target_of(noise.decode("latin-1")) is None


def test_a_lustre_target_is_named_with_the_node_that_serves_it_now(tmp_path: Path) -> None:
    nfs = [Nfs("nas1", "10.0.0.5", "/data", 53, 10, 100), Nfs("10.0.0.6", "10.0.0.6", "/home", 54)]
    write_tree(
        tmp_path, nfs, [Ost(3, "10.0.0.7@tcp", 10, 1000), Ost(4, "10.0.0.8@o2ib", 10, 1000), Ost(5, "10.0.0.8@o2ib")]
    )
    before = sample_servers((), tmp_path)
    nfs[0] = Nfs("nas1", "10.0.0.5", "/data", 53, 30, 2100, twice=4)
    write_tree(
        tmp_path,
        nfs,
        [Ost(3, "10.0.0.9@tcp", 20, 5_001_000), Ost(4, "10.0.0.8@o2ib", 10, 1000, 7), Ost(5, "10.0.0.8@o2ib")],
    )
    grown = {one.words: one for one in grown_servers(before, sample_servers((), tmp_path), tmp_path)}
    slow = grown["OST scratch-OST0003 at 10.0.0.9@tcp for /scratch (lustre 0:90)"]
    assert (slow.reads, slow.read_s) == (10, 5.0)
    assert grown["OST scratch-OST0004 at 10.0.0.8@o2ib for /scratch (lustre 0:90)"].in_flight == 7
    data = grown["NFS server nas1 (10.0.0.5) for /data (nfs4 0:53)"]
    assert (data.reads, data.read_s, data.retransmits) == (20, pytest.approx(2.0), 4)
    assert grown["NFS server 10.0.0.6 for /home (nfs4 0:54)"].reads == 0
    assert len(grown) == 4  # a target that did nothing is not told


def test_a_host_without_such_mounts_has_no_servers(tmp_path: Path) -> None:
    assert sample_servers((1, 2), tmp_path).served == {}
    assert parse_stats(b"ost_read 3 samples [usec] 1 2\n") == OstCounts()
