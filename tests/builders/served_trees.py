"""/proc trees of a host with mounts of NFS and Lustre, as their clients write them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_OTHERS = "device proc mounted on /proc with fstype proc\ndevice /dev/vda1 mounted on / with fstype ext4\n"


@dataclass(frozen=True)
class Nfs:
    """One mount: reads and writes so far, milliseconds of all, requests that were sent twice."""

    server: str
    address: str
    point: str
    minor: int
    reads: int = 0
    read_ms: int = 0
    writes: int = 0
    write_ms: int = 0
    twice: int = 0


@dataclass(frozen=True)
class Ost:
    """One target of the file system scratch."""

    number: int
    node: str
    reads: int = 0
    read_us: int = 0
    in_flight: int = 0
    state: str = "FULL"


def mountstats(mounts: list[Nfs]) -> str:
    """The file, of a kernel with version 1.1 of the statistics."""
    return _OTHERS + "".join(
        f"device {one.server}:/export/data mounted on {one.point} with fstype nfs4 statvers=1.1\n"
        f"\topts:\trw,vers=4.2,rsize=1048576,wsize=1048576,proto=tcp,timeo=600,retrans=2,sec=sys,clientaddr=10.0.0.99,local_lock=none,addr={one.address}\n"
        "\tage:\t86400\n\timpl_id:\tname='',domain='',date='0,0'\n\tcaps:\tcaps=0xfffbc0bf,wtmult=512,dtsize=1048576,bsize=0,namlen=255\n"
        "\tsec:\tflavor=1,pseudoflavor=1\n\tevents:\t10 20 30 40 50 60 70 80 90 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
        "\tbytes:\t1000 2000 0 0 1000 2000 1 1\n\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)\n"
        "\txprt:\ttcp 0 0 1 0 0 100 100 0 100 0 2 5 5\n\tper-op statistics\n\t        NULL: 1 1 0 44 24 0 0 0 0\n"
        f"\t        READ: {one.reads} {one.reads + one.twice} 0 {200 * one.reads} {4096 * one.reads} 3 {one.read_ms} {one.read_ms} 0\n"
        f"\t       WRITE: {one.writes} {one.writes} 0 {4096 * one.writes} {120 * one.writes} 1 {one.write_ms} {one.write_ms} 0\n"
        "\t      COMMIT: 0 0 0 0 0 0 0 0 0\n\t     GETATTR: 7 7 0 1 1 0 2 2 0\n\n"
        for one in mounts
    )  # fmt: skip


def write_tree(root: Path, mounts: list[Nfs], osts: list[Ost] = [], lustre_minor: int = 90) -> None:  # noqa: B006
    """Write the tree of pid 1; again with other numbers for a later moment."""
    proc = root / "proc/1"
    (proc / "ns").mkdir(parents=True, exist_ok=True)
    (proc / "mountstats").write_text(mountstats(mounts))
    lines = ["22 1 254:1 / / rw - ext4 /dev/vda1 rw"]
    lines += [
        f"{30 + one.minor} 22 0:{one.minor} / {one.point} rw - nfs4 {one.server}:/export/data rw,addr={one.address}"
        for one in mounts
    ]
    if osts:
        lines.append(f"99 22 0:{lustre_minor} / /scratch rw - lustre 10.0.0.1@tcp:10.0.0.2@tcp:/scratch rw")
    (proc / "mountinfo").write_text("\n".join(lines) + "\n")
    for one in osts:
        name = f"scratch-OST{one.number:04x}-osc-ffff8800b6a1c000"
        folder, state = root / "sys/kernel/debug/lustre/osc" / name, root / "proc/fs/lustre/osc" / name
        folder.mkdir(parents=True, exist_ok=True)
        state.mkdir(parents=True, exist_ok=True)
        (folder / "stats").write_text(
            "snapshot_time             1709258426.123456789 secs.nsecs\nreq_active                10 samples [reqs] 1 4 19 41\n"
            f"read_bytes                {one.reads} samples [bytes] 4096 1048576 {one.reads << 20}\n"
            f"ost_read                  {one.reads} samples [usec] 100 90000 {one.read_us} {one.read_us**2}\n"
        )
        (state / "import").write_text(
            f"import:\n    name: {name}\n    target: scratch-OST{one.number:04x}_UUID\n    state: {one.state}\n"
            "    connect_flags: [ write_grant, server_lock ]\n    connection:\n"
            f"       failover_nids: [ {one.node}, 10.0.0.200@tcp ]\n       current_connection: {one.node}\n       connection_attempts: 1\n"
            f"    rpcs:\n       inflight: {one.in_flight}\n       unregistering: 0\n       timeouts: 0\n       avg_waittime: 5432 usec\n"
        )
