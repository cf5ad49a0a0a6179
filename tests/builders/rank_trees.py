"""Handmade /proc trees: one call per process, in the formats of Linux 6.18."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HOST_NET, HOST_UTS = 4026531833, 4026531838
TORCH = (
    "/usr/lib/python3.11/lib-dynload/_json.cpython-311-x86_64-linux-gnu.so",
    "/venv/lib/python3.11/site-packages/torch/lib/libtorch_cpu.so",
    "/venv/lib/python3.11/site-packages/torch/lib/libc10.so",
    "/venv/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2",
)
PLAIN = ("/usr/lib/x86_64-linux-gnu/libc.so.6",)


@dataclass
class Tree:
    """A host with a /proc that can be filled process by process."""

    root: Path
    clock: int = 1000
    tcp: list[str] = field(default_factory=list)
    inode: int = 70000

    def __post_init__(self) -> None:
        self._write("sys/kernel/hostname", b"node-7\n")
        self.process(1, 0, "systemd", ["/sbin/init"], mapped=PLAIN, exe="/usr/lib/systemd/systemd")
        (self.root / "proc/self").symlink_to("1")

    def _write(self, name: str, data: bytes) -> None:
        path = self.root / "proc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def process(
        self,
        pid: int,
        parent: int,
        comm: str,
        cmdline: Sequence[str],
        environ: Mapping[str, str] | bytes = b"",
        mapped: Sequence[str] = TORCH,
        exe: str = "/usr/bin/python3.11",
        state: str = "S",
        cgroup: str = "/user.slice",
        nspid: Sequence[int] = (),
        net: int = HOST_NET,
        uts: int = HOST_UTS,
        uid: int = 0,
    ) -> int:
        self.clock += 1
        fields = [state, parent, pid, pid, *[0] * 15, self.clock, *[0] * 32]
        self._write(f"{pid}/stat", f"{pid} ({comm}) {' '.join(map(str, fields))}\n".encode())
        inner = " ".join(map(str, [pid, *nspid]))
        self._write(
            f"{pid}/status",
            f"Name:\t{comm}\nState:\t{state} (x)\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t{parent}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
            f"NSpid:\t{inner}\nThreads:\t1\nCpus_allowed_list:\t0-3,8\n".encode(),
        )
        if not isinstance(environ, bytes):
            environ = b"".join(f"{key}={value}".encode() + b"\0" for key, value in environ.items())
        self._write(f"{pid}/environ", environ)
        self._write(f"{pid}/cmdline", b"".join(argument.encode() + b"\0" for argument in cmdline))
        self._write(f"{pid}/comm", comm.encode() + b"\n")
        maps = "".join(f"7f00{n:08x}-7f01{n:08x} r-xp 00000000 fe:00 {n}   {path}\n" for n, path in enumerate(mapped))
        self._write(f"{pid}/maps", b"55a0-55a1 rw-p 00000000 00:00 0    [heap]\n" + maps.encode())
        self._write(f"{pid}/cgroup", f"0::{cgroup}\n".encode())
        folder = self.root / "proc" / str(pid)
        (folder / "exe").symlink_to(exe)
        (folder / "ns").mkdir()
        for kind, inode in (("net", net), ("uts", uts)):
            (folder / "ns" / kind).symlink_to(f"{kind}:[{inode}]")
        (folder / "fd").mkdir()
        (folder / "fd/0").symlink_to("/dev/null")
        (folder / "net").mkdir()
        return pid

    def connect(self, one: int, other: int, port: int, address: str = "0100007F") -> None:
        """A TCP connection between two processes."""
        ends = (f"{address}:{port:04X}", f"{address}:{port + 10000:04X}")
        for pid, (local, peer) in ((one, ends), (other, ends[::-1])):
            self.inode += 1
            self.hold(pid, self.inode)
            self.tcp.append(
                f"   0: {local} {peer} 01 00000000:00000000 00:00000000 00000000  0  0 {self.inode} 1 0 20 4 30 10 -1\n"
            )
        for folder in (self.root / "proc").glob("[0-9]*/net"):
            (folder / "tcp").write_text("  sl  local_address rem_address   st tx_queue …\n" + "".join(self.tcp))

    def serve(self, server: int, port: int, clients: Sequence[int], address: str = "0100007F") -> None:
        """Connections of clients to one port of a process; it may be a client of itself."""
        for number, client in enumerate(clients):
            here, there = f"{address}:{port:04X}", f"{address}:{port + 20000 + 97 * client % 9000 + number:04X}"
            for pid, (local, peer) in ((server, (here, there)), (client, (there, here))):
                self.inode += 1
                self.hold(pid, self.inode)
                self.tcp.append(f"   0: {local} {peer} 01 0:0 00:0 0  0  0 {self.inode} 1 0 20 4 30 10 -1\n")
        for folder in (self.root / "proc").glob("[0-9]*/net"):
            (folder / "tcp").write_text("  sl  local_address rem_address   st tx_queue …\n" + "".join(self.tcp))

    def hold(self, pid: int, inode: int) -> None:
        """An open socket."""
        self.hold_as(pid, len(list((self.root / f"proc/{pid}/fd").iterdir())), inode)

    def hold_as(self, pid: int, descriptor: int, inode: int) -> None:
        """The same, by that number."""
        (self.root / f"proc/{pid}/fd/{descriptor}").symlink_to(f"socket:[{inode}]")


def torchrun(rank: int, local: int, world: int = 4, master: str = "10.0.0.1", run: str = "none") -> dict[str, str]:
    """What torchrun gives its workers."""
    return {
        "PATH": "/usr/bin",
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "MASTER_ADDR": master,
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RUN_ID": run,
    }
