"""A rank waits in reads of a network file system: the verdict names the server. Rows as the observer itself writes them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from builders import Job, Work, build, columns
from served_trees import Nfs, Ost, write_tree

from rankscope.diagnose.infer.causes.rank.servers import Server, blamed
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Suspect
from rankscope.observer.live.gauges import Gauges

DATA = "/data (nfs4 0:53)"


def rows(
    root: Path, before: list[Nfs], after: list[Nfs], osts: tuple[list[Ost], list[Ost]] = ([], [])
) -> list[dict[str, object]]:
    """What the gauges say of servers between two moments."""
    write_tree(root, before, osts[0])
    gauges = Gauges((), root)
    gauges.begin()
    write_tree(root, after, osts[1])
    return [asdict(row) for row in gauges.host_rows() if row.scope == "storage"]


def slow_reads(rows: list[dict[str, object]], detail: str = DATA) -> Suspect:
    read = Work("io", "read", 0, 40, detail=detail, caller="Shard.load_batch")
    (suspect,) = diagnose(build(Job(extra={2: [(read, 0.1)]}, counters=rows, window_s=20.0))).suspects
    assert (suspect.component, suspect.cause, suspect.ranks) == ("storage", "slow-read", (2,))
    return suspect


def told(suspect: Suspect) -> dict[str, object]:
    return {one.measure: (one.value, one.expected) for one in suspect.evidence if one.source == "storage"}


def test_of_two_nfs_servers_the_slow_one_is_named_in_evidence_and_advice(tmp_path: Path) -> None:
    fast, slow = Nfs("nas2", "10.0.0.6", "/home", 54), Nfs("nas1", "10.0.0.5", "/data", 53)
    seen = rows(
        tmp_path,
        [fast, slow],
        [Nfs("nas2", "10.0.0.6", "/home", 54, 500, 1000), Nfs("nas1", "10.0.0.5", "/data", 53, 100, 12_000, twice=3)],
    )
    suspect = slow_reads(seen)
    name = "NFS server nas1 (10.0.0.5)"
    assert told(suspect) == {
        "served by": (name, None),
        f"{name} answers a read after": (pytest.approx(0.12), pytest.approx(0.002)),
        f"requests sent to {name} again": (3.0, 0.0),
    }
    assert f"{name} answers a read in 120 ms, others in 2 ms" in suspect.action
    assert "nfsiostat 1 /data" in suspect.action
    assert "nas2" not in suspect.action
    assert suspect.confidence > slow_reads([]).confidence


def test_a_server_that_is_as_fast_as_others_is_named_and_not_blamed(tmp_path: Path) -> None:
    pair = [Nfs("nas2", "10.0.0.6", "/home", 54, 500, 1000), Nfs("nas1", "10.0.0.5", "/data", 53, 500, 1100)]
    suspect = slow_reads(
        rows(tmp_path, [Nfs("nas2", "10.0.0.6", "/home", 54), Nfs("nas1", "10.0.0.5", "/data", 53)], pair)
    )
    assert "They are served by NFS server nas1 (10.0.0.5)" in suspect.action
    assert suspect.confidence == slow_reads([]).confidence


def test_one_slow_target_of_a_lustre_file_system_is_named_with_its_node(tmp_path: Path) -> None:
    osts = [Ost(number, f"10.0.0.{number}@tcp", 100, 100 * 3_000) for number in range(1, 9)]
    late = [Ost(one.number, one.node, 200, 200 * 3_000 if one.number != 5 else 100 * 250_000) for one in osts]
    suspect = slow_reads(rows(tmp_path, [], [], (osts, late)), "/scratch (lustre 0:90)")
    name = "OST scratch-OST0005 at 10.0.0.5@tcp"
    assert told(suspect)["served by"] == (name, None)
    assert f"{name} answers a read in 247 ms, others in 3 ms" in suspect.action
    assert "lctl get_param osc.*OST0005*.stats" in suspect.action
    alike = slow_reads(
        rows(tmp_path / "b", [], [], (osts, [Ost(one.number, one.node, 200, 200 * 3_000) for one in osts])),
        "/scratch (lustre 0:90)",
    )
    assert told(alike) == {}  # nobody stands out of eight


def test_files_of_another_mount_are_no_servers_business(tmp_path: Path) -> None:
    seen = rows(tmp_path, [Nfs("nas1", "10.0.0.5", "/data", 53)], [Nfs("nas1", "10.0.0.5", "/data", 53, 100, 12_000)])
    assert told(slow_reads(seen, "/ (ext4 254:1)")) == {}


def test_a_server_that_is_slow_for_this_host_alone_sends_to_the_network_and_not_to_the_server() -> None:
    here = Server("NFS server nas1", DATA, "0:53", 100, 12.0)
    there = Server("NFS server nas1", "/data (nfs4 0:61)", "0:61", 100, 0.2)
    found = blamed([here], DATA, [there])
    assert found is not None
    assert (found.is_slow, found.only_here, found.others_s) == (True, True, 0.002)
    silent = blamed([Server("NFS server nas1", DATA, "0:53")], DATA)
    assert silent is not None
    assert (silent.server.name, silent.is_slow) == ("NFS server nas1", False)


def test_a_file_that_never_answers_is_told_with_its_server_by_its_path() -> None:
    servers = [Server("NFS server nas1", DATA, "0:53"), Server("NFS server nas2", "/data/old (nfs4 0:54)", "0:54")]
    named = [blamed(servers, path) for path in ("/data/part-1.bin", "/data/old/part-1.bin", "/database/x")]
    assert [one and one.server.name for one in named] == ["NFS server nas1", "NFS server nas2", None]


def waiting_for(detail: str, flows: list[dict[str, Any]]) -> Suspect:
    """A rank that waits in recv, with connections besides those of the job."""
    wait = Work("sync", "recv", 0, 40, detail=detail, caller="Client.get")
    (window,) = build(Job(extra={2: [(wait, 0.1)]}))
    flow = window.flows.to_pylist()[0]
    more = [flow | {"retransmitted_bytes": 0, "sent_bytes": 20_000, "received_bytes": 90 << 20} | one for one in flows]
    (suspect,) = diagnose([columns(window, "flows", [*window.flows.to_pylist(), *more])]).suspects
    assert (suspect.component, suspect.cause, suspect.ranks) == ("python", "blocking-call", (2,))
    return suspect


@pytest.mark.parametrize("detail", ["a socket to 10.9.0.7:443", ""])
def test_a_wait_for_an_object_store_names_its_host(detail: str) -> None:
    flows = [{"rank": rank, "peer": "10.9.0.7:443", "rtt_s": 0.080 if rank == 2 else 0.001} for rank in range(4)]
    suspect = waiting_for(detail, flows)
    seen = {one.measure: (one.value, one.expected) for one in suspect.evidence if one.source == "connections"}
    assert seen["its data comes from"] == ("10.9.0.7", None)
    assert seen["received from 10.9.0.7"] == (float(90 << 20), None)
    assert seen["round trip to 10.9.0.7"] == (pytest.approx(0.08), pytest.approx(0.001))
    assert "waits for answers from 10.9.0.7" in suspect.action


def test_neither_a_rank_nor_a_logger_is_an_object_store() -> None:
    logger = [{"rank": 2, "peer": "10.9.0.8:5000", "received_bytes": 30_000}]
    two = [{"rank": 2, "peer": "10.9.0.7:443"}, {"rank": 2, "peer": "10.9.0.8:443"}]
    for detail, flows in (
        ("", logger),
        ("", two),
        ("a socket to 198.18.0.10:29500", []),
        ("a socket to 127.0.0.1:80", []),
    ):
        assert not [one for one in waiting_for(detail, flows).evidence if one.source == "connections"]
