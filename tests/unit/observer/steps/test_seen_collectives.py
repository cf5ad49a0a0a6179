"""What can be seen of a job's collectives is known from the libraries that its ranks map."""

from __future__ import annotations

import mmap
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from rankscope.observer.census.collectives import seen_collectives
from rankscope.observer.census.found import FoundRank
from rankscope.probes.host.maps import read_maps

NONE = "not visible: waiting for other ranks cannot be separated from own time"


def mapped_as(path: Path) -> str:
    """Device and inode of a file, as maps tells them."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        found = next(one for one in read_maps(os.getpid()) if one.path == str(path))
    return f"{found.device} {found.inode}"


def rank(root: Path, pid: int, job: str, *libraries: tuple[str, str]) -> FoundRank:
    """A rank that maps these libraries: name and C text of each."""
    lines = []
    for number, (name, text) in enumerate(libraries):
        path = root / "lib" / str(pid) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        (root / "a.c").write_text(text)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, root / "a.c"], check=True)
        span = f"7f0000{number:02x}0000-7f0000{number:02x}1000"
        lines.append(f"{span} r-xp 00000000 {mapped_as(path)}  /lib/{name}\n")
        link = root / "proc" / str(pid) / "map_files" / span
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    (root / "proc" / str(pid)).mkdir(parents=True, exist_ok=True)
    (root / "proc" / str(pid) / "maps").write_text("".join(lines))
    return cast(FoundRank, SimpleNamespace(pid=pid, identity=SimpleNamespace(job=job)))


def test_each_job_has_its_libraries(tmp_path: Path) -> None:
    ranks = [
        rank(tmp_path, 41, "a", ("libmpi.so.40", "int MPI_Allreduce(void) { return 0; }")),
        rank(tmp_path, 42, "a", ("libtorch_cpu.so", "int _ZN4gloo9allreduceERKi(void) { return 0; }")),
        rank(tmp_path, 43, "b", ("libjax_common.so", "int PyInit_x(void) { return 0; }")),
        rank(tmp_path, 44, "c"),
        rank(tmp_path, 45, "d", ("libc.so.6", "int MPI_Allreduce(void) { return 0; }")),
    ]
    assert {one.job: one.text for one in seen_collectives(ranks, tmp_path)} == {
        "a": "gloo in libtorch_cpu.so; mpi in libmpi.so.40",
        "b": "not seen in libjax_common.so, which exports no functions",
        "c": NONE,
        "d": NONE,
    }


def test_broken_files_and_ended_processes_are_not_seen(tmp_path: Path) -> None:
    broken = rank(tmp_path, 41, "a", ("libmpi.so.40", "int MPI_Allreduce(void) { return 0; }"))
    (tmp_path / "lib/41/libmpi.so.40").write_bytes(b"\x7fELF nonsense")
    ended = cast(FoundRank, SimpleNamespace(pid=99, identity=SimpleNamespace(job="e")))
    assert [one.text for one in seen_collectives([broken, ended], tmp_path)] == [
        "not seen in libmpi.so.40, which exports no functions", NONE,
    ]  # fmt: skip
