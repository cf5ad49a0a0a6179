"""Whose GPU: by NVML's processes, else by what the rank was given, else by what it has open."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankscope.observer.census.owners import Owners, find_owners, read_hints, several_devices
from rankscope.probes.gpu.model import Gpu, GpuProcess
from rankscope.probes.gpu.nvml import NvmlReading, to_json
from rankscope.probes.gpu.series import GpuGrowth, GpuRecording, ProcessUse
from rankscope.probes.pci.tree import EMPTY

GIB = 1 << 30


def rank(number: int, pid: int, job: str = "job", local: int = -1, owner: int = 1000) -> Any:
    identity = SimpleNamespace(rank=number, local_rank=local, job=job)
    return SimpleNamespace(
        pid=pid,
        identity=identity,
        owner=owner,
        cgroup="",
        libraries=SimpleNamespace(framework="jax", cuda="libcuda.so.1", cudart="", nccl=""),
    )


def gpus(*processes: tuple[ProcessUse, ...]) -> GpuRecording:
    return GpuRecording(
        (),
        tuple(
            GpuGrowth(index, f"GPU-{index}{index}{index}", "", "", 9.0, None, None, processes=found)
            for index, found in enumerate(processes)
        ),
    )


@pytest.fixture
def host(tmp_path: Path) -> Path:
    return tmp_path


def process(root: Path, pid: int, ppid: int = 1, comm: str = "python", **environ: str) -> None:
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "stat").write_text(f"{pid} ({comm}) S {ppid} " + " ".join(["1"] * 48))
    (folder / "comm").write_text(f"{comm}\n")
    (folder / "environ").write_bytes(b"\0".join(f"{name}={value}".encode() for name, value in environ.items()))


def use(pid: int, memory_bytes: int | None = 40 * GIB) -> ProcessUse:
    return ProcessUse(pid, memory_bytes, 0.5, 3)


def owners_of(ranks: list[Any], seen: GpuRecording, root: Path) -> Owners:
    return find_owners(ranks, seen, EMPTY, read_hints(ranks, root), root)


def test_the_gpu_on_which_a_rank_holds_its_memory_is_its_own(host: Path) -> None:
    """Rank 1 left half a gigabyte on the first GPU, as ranks do; a child of rank 0 holds its memory."""
    for pid, ppid in ((701, 1), (702, 1), (711, 701)):
        process(host, pid, ppid)
    found = owners_of([rank(0, 701), rank(1, 702)], gpus((use(711), use(702, GIB // 2)), (use(702),), ()), host)
    assert found.gpus == {701: (0,), 702: (1,)}
    assert found.foreign == (), "another rank of the same job is not foreign"
    assert (found.gpu_pid(1), found.gpu_pid(2)) == (702, None)


def test_a_rank_may_have_several(host: Path) -> None:
    process(host, 701)
    assert owners_of([rank(0, 701)], gpus((use(701),), (use(701, 30 * GIB),)), host).gpus == {701: (0, 1)}


@pytest.mark.parametrize(
    ("visible", "local", "expected"),
    [
        ("2", 0, (2,)),
        ("0,1,2", 1, (1,)),
        ("GPU-111", -1, (1,)),
        ("7", 0, ()),
        ("0,1", -1, ()),
        ("", 0, ()),
        ("x,%s", 1, ()),
    ],
)
def test_what_the_rank_was_given_counts_where_nvml_shows_no_processes(
    host: Path, visible: str, local: int, expected: tuple[int, ...]
) -> None:
    process(host, 701, CUDA_VISIBLE_DEVICES=visible)
    found = owners_of([rank(3, 701, local=local)], gpus((), (), ()), host)
    assert found.gpus == ({701: expected} if expected else {})
    assert bool(found.notes) == (not expected)


def test_the_one_device_that_it_has_open_is_the_last_resort(host: Path) -> None:
    process(host, 701)
    process(host, 702)
    for pid, devices in ((701, ("nvidiactl", "nvidia-uvm", "nvidia2")), (702, ("nvidia0", "nvidia1"))):
        for number, device in enumerate(devices):
            (host / "proc" / str(pid) / "fd" / str(number)).symlink_to(f"/dev/{device}")
    found = owners_of([rank(0, 701), rank(1, 702)], gpus((), (), ()), host)
    assert found.gpus == {701: (2,)}
    assert "rank 1: it is unknown which GPU it uses" in found.notes[702]


def test_others_on_a_ranks_gpu_are_named_without_believing_their_names(host: Path) -> None:
    process(host, 701)
    process(host, 801)
    process(host, 999, comm="mi\x1b[31mner")
    seen = gpus((use(701), use(999, 3 * GIB), use(801, GIB), use(555, None)), (use(999),))
    found = owners_of([rank(0, 701), rank(0, 801, job="other")], seen, host)
    assert {(one.gpu, one.pid) for one in found.foreign} >= {(0, 999), (0, 801), (0, 555)}
    named = {one.pid: one.comm for one in found.foreign}
    assert named[999] == "mi\\x1b[31mner" and named[555] == "?"
    assert not any(one.gpu == 1 for one in found.of({701}).foreign)


def test_a_rank_that_ended_with_its_gpu_is_known_from_before(host: Path) -> None:
    process(host, 701, CUDA_VISIBLE_DEVICES="1")
    ranks = [rank(4, 701)]
    hints = read_hints(ranks, host)
    shutil.rmtree(host / "proc" / "701")
    assert find_owners(ranks, gpus((), ()), EMPTY, hints, host).gpus == {701: (1,)}


def test_ranks_that_use_no_gpu_get_no_note(host: Path) -> None:
    process(host, 701)
    plain = rank(0, 701)
    plain.libraries = SimpleNamespace(cuda="", cudart="", nccl="")
    assert not owners_of([plain], gpus(()), host).notes


def test_one_process_that_drives_several_devices_is_told(host: Path) -> None:
    # GIVEN a process on four GPUs, one on a GPU of its own that left a little on the first, and one of XLA on the CPU
    process(host, 701)
    process(host, 702)
    process(host, 703, XLA_FLAGS="--xla_cpu_foo=1 --xla_force_host_platform_device_count=8")
    process(host, 704, XLA_FLAGS="--xla_force_host_platform_device_count=1")
    big = tuple(Gpu(index, processes=(GpuProcess(701, 40 * GIB), GpuProcess(702, GIB // 2))) for index in range(4))
    own = Gpu(4, processes=(GpuProcess(702, 40 * GIB),))
    (host / "nvml.json").write_text(to_json(NvmlReading("1", (*big, own))))

    found = several_devices([rank(number, 701 + number) for number in range(4)], host)

    assert found == {701: "GPUs 0, 1, 2, 3", 703: "8 devices of XLA"}


def test_devices_are_not_asked_for_where_no_rank_uses_one(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankscope.observer.census.owners.read_gpus", pytest.fail)
    one = rank(0, 701)
    one.libraries.cuda = ""
    assert several_devices([one], host) == {}


def test_who_merely_says_so_owns_no_gpu_on_which_another_user_has_his_memory(host: Path) -> None:
    for pid in (701, 801, 802, 803):
        process(host, pid, CUDA_VISIBLE_DEVICES="0")
    process(host, 804)
    (host / "proc/804/fd/3").symlink_to("/dev/nvidia0")
    ranks = [
        rank(0, 801, job="a job", owner=1666), rank(1, 804, job="a job", owner=1666), rank(0, 701, owner=1000),
        rank(0, 802, job="beside", owner=1000),
    ]  # fmt: skip
    found = owners_of(ranks, gpus((use(701),), ()), host)
    assert found.gpus == {701: (0,), 802: (0,)}
    assert set(found.notes) == {801, 804}
    assert owners_of(ranks[:1], gpus((), ()), host).gpus == {801: (0,)}, "where nobody holds it, what is said counts"


def test_of_two_jobs_on_a_gpu_each_sees_the_other_and_none_itself(host: Path) -> None:
    for pid in (701, 702, 801):
        process(host, pid)
    ranks = [rank(0, 801, job="a job", owner=1666), rank(0, 701), rank(1, 702)]
    found = owners_of(ranks, gpus((use(701), use(702), use(801))), host)
    assert [one.pid for one in found.of({701, 702}).foreign] == [801]
    assert [one.pid for one in found.of({801}).foreign] == [701, 702]
