"""Every GPU check, from a recorded NVML reading, in its ok and its bad form; and the reader itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from sweep_trees import (
    CHECKS,
    NOW_S,
    UPTIME_S,
    host,
    look,
    look_all,
    pci_device,
    process,
    put,
    remember,
    state_of,
    twice,
    with_gpus,
)

from rankscope.diagnose.sweep.context import Earlier
from rankscope.probes.gpu.nvml import Gpu, GpuProcess, NvLink, NvmlReading, from_json, read_gpus, to_json

GPU = Gpu(
    0, uuid="GPU-a", bus="00000000:3b:00.0", name="H100", temperature_c=40, power_limit_w=700.0, power_default_w=700.0,
    sm_clock_max_mhz=1980, throttle_reasons=1, ecc_enabled=True, ecc_corrected=7, ecc_uncorrected=2, remap_uncorrected=1,
    remap_pending=False, remap_failed=False, recovery_action=0, links=(NvLink(0, True, 11), NvLink(1, True, 13)),
    processes=(GpuProcess(7, 10**9),),
)  # fmt: skip
BAD = {
    "gpu.ecc": (replace(GPU, ecc_uncorrected=3), "critical"),
    "gpu.clock": (replace(GPU, sm_clock_app_mhz=1200, sm_clock_app_default_mhz=1980), "warning"),
    "gpu.throttle": (replace(GPU, throttle_reasons=0x40), "critical"),
    "gpu.remap": (replace(GPU, remap_failed=True), "critical"),
    "gpu.lost": (Gpu(0, lost=True), "critical"),
    "gpu.recovery": (replace(GPU, recovery_action=2), "critical"),
    "nvlink.down": (replace(GPU, links=(NvLink(0, True, 11), NvLink(1, False, 13))), "critical"),
    "nvlink.errors": (replace(GPU, links=(NvLink(0, True, 1009), NvLink(1, True, 13))), "warning"),
}
ALL_GPU = sorted([*BAD, "gpu.xid", "gpu.foreign-process", "os.zombie-gpu"])


@pytest.mark.parametrize("identifier", BAD)
def test_a_sick_gpu_is_found_and_a_healthy_one_is_not(tmp_path: Path, identifier: str) -> None:
    bad, expected = BAD[identifier]
    with_gpus(host(tmp_path, pci_device("0000:3b:00.0", "gpu")), GPU)
    assert state_of(twice(tmp_path, identifier, {})) == "ok"
    host(tmp_path)
    found = twice(tmp_path, identifier, {"nvml.json": to_json(NvmlReading("570.1", (bad,)))})
    assert state_of(found) == expected
    assert all(one.expected and one.why and one.action for one in found if one.state == expected)


@pytest.mark.parametrize("identifier", ALL_GPU)
def test_without_nvidia_hardware_nothing_is_claimed(tmp_path: Path, identifier: str) -> None:
    done = look_all(host(tmp_path), identifier)
    assert not done.findings and done.skipped[0][0] == identifier


@pytest.mark.parametrize("identifier", ALL_GPU)
def test_fields_that_are_not_supported_are_no_findings(tmp_path: Path, identifier: str) -> None:
    with_gpus(host(tmp_path), Gpu(0, uuid="GPU-a"))
    assert state_of(look(tmp_path, identifier)) in ("", "ok")


@pytest.mark.parametrize(
    ("number", "expected"),
    [(79, "critical"), (13, "warning"), (48, "critical"), (997, "warning"),
     # What any process can do to its own channel: a broken push buffer, method or stream
     (32, "warning"), (65, "warning"), (68, "warning"), (69, "warning")],
)  # fmt: skip
def test_xids_have_their_severity(tmp_path: Path, number: int, expected: str) -> None:
    with_gpus(host(tmp_path), GPU)
    assert state_of(look(tmp_path, "gpu.xid")) == "ok"
    text = f"NVRM: Xid (PCI:0000:3b:00): {number}, pid=7, name=python"
    put(tmp_path, {"dev/kmsg": f"4,1,{int(UPTIME_S * 1e6)},-;{text}\n"})
    found = look(tmp_path, "gpu.xid")
    assert (found[0].state, found[0].instance) == (expected, "0000:3b:00")


def test_a_foreign_process_on_a_job_s_gpu_is_found(tmp_path: Path) -> None:
    job = "RANK=0\0LOCAL_RANK=0\0TORCHELASTIC_RUN_ID=x\0"
    files = {**process(7, "R", 5, environ=job), **process(11, "R", 1, "miner"), **process(13, "R", 1, "dcgmi")}
    with_gpus(host(tmp_path, files), GPU)
    assert state_of(look(tmp_path, "gpu.foreign-process")) == "ok"
    crowd = replace(GPU, processes=tuple(GpuProcess(pid, 10**9) for pid in (7, 11, 13)))
    with_gpus(tmp_path, crowd)
    found = look(tmp_path, "gpu.foreign-process")
    assert [one.instance for one in found] == ["gpu0 miner (11)"]


def test_a_dead_process_that_the_driver_holds_is_found(tmp_path: Path) -> None:
    with_gpus(host(tmp_path, process(7, "Z", 1)), GPU)
    (tmp_path / "proc/7/task/7").mkdir(parents=True)
    assert state_of(look(tmp_path, "os.zombie-gpu", wait_s=0.0)) == "ok"
    put(tmp_path, {"proc/7/task/8/stat": process(8, "D", 1)["proc/8/stat"],
                   "proc/7/task/8/stack": "[<0>] uvm_va_space_destroy+0x1/0x2 [nvidia_uvm]\n"})  # fmt: skip
    seen = remember(look_all(tmp_path, "os.zombie-gpu", wait_s=0.0))
    assert state_of(look(tmp_path, "os.zombie-gpu", seen, NOW_S + 121, wait_s=0.0)) == "critical"


def test_a_gpu_that_vanished_from_the_bus_is_missed(tmp_path: Path) -> None:
    with_gpus(host(tmp_path), GPU, replace(GPU, index=1, uuid="GPU-b"))
    earlier = remember(look_all(tmp_path, "gpu.lost"))
    with_gpus(tmp_path, GPU)
    assert state_of(look(tmp_path, "gpu.lost", earlier)) == "critical"


def test_a_library_that_does_not_work_is_unknown_not_healthy(tmp_path: Path) -> None:
    with_gpus(host(tmp_path), GPU)
    put(tmp_path, {"nvml.json": '{"absent": "NVML: Driver Not Loaded"}'})
    assert state_of(look(tmp_path, "gpu.ecc")) == "unknown"


@pytest.mark.parametrize("identifier", ["gpu.ecc", "gpu.remap"])
def test_a_count_that_cannot_be_read_for_once_has_not_grown_since(tmp_path: Path, identifier: str) -> None:
    with_gpus(host(tmp_path), GPU)
    known = remember(look_all(tmp_path, identifier))
    with_gpus(tmp_path, replace(GPU, ecc_corrected=None, ecc_uncorrected=None, remap_uncorrected=None))
    unread = look_all(tmp_path, identifier, known)
    with_gpus(tmp_path, GPU)
    assert state_of(look(tmp_path, identifier, remember(unread))) == "ok"
    assert state_of(unread.findings) == ("unknown" if identifier == "gpu.ecc" else "ok")


def test_a_gpu_whose_ecc_mode_cannot_be_read_is_not_left_out(tmp_path: Path) -> None:
    # GIVEN two GPUs of which one says nothing of its ECC for a moment
    other = replace(GPU, index=1, uuid="GPU-b")
    dark = replace(other, ecc_enabled=None, ecc_uncorrected=None, ecc_corrected=None)
    with_gpus(host(tmp_path), GPU, other)
    known = remember(look_all(tmp_path, "gpu.ecc"))
    with_gpus(tmp_path, GPU, dark)
    found = look_all(tmp_path, "gpu.ecc", known)
    # THEN that is said, and its counters stay as they were
    assert {(one.instance, one.state) for one in found.findings} == {("gpu0", "ok"), ("gpu1", "unknown")}
    assert ("gpu.ecc", "GPU-b.uncorrected") in found.unread
    # and where only the mode cannot be read its count is judged
    with_gpus(tmp_path, GPU, replace(other, ecc_enabled=None, ecc_uncorrected=5))
    assert [one.value for one in look(tmp_path, "gpu.ecc", known) if one.state == "critical"] == [3.0]


@pytest.mark.parametrize("identifier", ["gpu.recovery", "gpu.remap", "gpu.throttle"])
def test_a_gpu_that_says_no_more_what_it_said_is_not_called_well(tmp_path: Path, identifier: str) -> None:
    other = replace(GPU, index=1, uuid="GPU-b")
    with_gpus(host(tmp_path), GPU, other)
    known = remember(look_all(tmp_path, identifier))
    dark = replace(other, recovery_action=None, remap_failed=None, remap_pending=None, throttle_reasons=None)
    with_gpus(tmp_path, GPU, dark)
    for _ in range(2):
        found = look_all(tmp_path, identifier, known)
        assert {(one.instance, one.state) for one in found.findings} == {("gpu0", "ok"), ("gpu1", "unknown")}
        known = remember(found)


def test_a_gpu_that_says_it_no_more_since_another_boot_is_unknown_for_a_day(tmp_path: Path) -> None:
    other = replace(GPU, index=1, uuid="GPU-b")
    with_gpus(host(tmp_path), GPU, other)
    seen = look_all(tmp_path, "gpu.recovery")
    with_gpus(tmp_path, GPU, replace(other, recovery_action=None))
    for days, boot, expected in ((3.0, "", "unknown"), (3.5, "boot-two", "ok"), (3.6, "boot-two", "ok")):
        if boot:
            put(tmp_path, {"proc/sys/kernel/random/boot_id": f"{boot}\n"})
        seen = look_all(tmp_path, "gpu.recovery", remember(seen), NOW_S + days * 86400)
        assert state_of(seen.findings) == expected
    # and where an earlier version kept no time, from now on
    known = Earlier(words={("gpu.recovery", "tells GPU-b"): "yes"})
    seen = look_all(tmp_path, "gpu.recovery", known, NOW_S + 4 * 86400)
    put(tmp_path, {"proc/sys/kernel/random/boot_id": "boot-three\n"})
    for days, expected in ((4.5, "unknown"), (5.5, "ok")):
        assert state_of(look(tmp_path, "gpu.recovery", remember(seen), NOW_S + days * 86400)) == expected


def test_a_gpu_that_the_driver_lists_and_says_nothing_of_is_not_called_well(tmp_path: Path) -> None:
    with_gpus(host(tmp_path), GPU, Gpu(1))
    assert {(one.instance, one.state) for one in look(tmp_path, "gpu.lost")} == {("gpu1", "unknown")}


@pytest.mark.parametrize(("driver", "state"), [("vfio-pci", "ok"), ("nvidia", "critical")])
def test_a_gpu_that_a_virtual_machine_was_given_is_not_missed(tmp_path: Path, driver: str, state: str) -> None:
    other = replace(GPU, index=1, uuid="GPU-b", bus="00000000:5e:00.0")
    with_gpus(host(tmp_path, {**pci_device("0000:3b:00.0", "gpu"), **pci_device("0000:5e:00.0", "gpu")}), GPU, other)
    known = remember(look_all(tmp_path, "gpu.lost"))
    with_gpus(tmp_path, GPU)
    (tmp_path / "sys/bus/pci/drivers" / driver).mkdir(parents=True)
    (tmp_path / "sys/bus/pci/devices/0000:5e:00.0/driver").symlink_to(f"../../drivers/{driver}")
    for _ in range(2):
        done = look_all(tmp_path, "gpu.lost", known)
        assert state_of(done.findings) == state
        known = remember(done)


def test_a_driver_that_is_loaded_anew_has_a_while_to(tmp_path: Path) -> None:
    with_gpus(host(tmp_path), GPU)
    seen = look_all(tmp_path, "gpu.lost")
    (tmp_path / "proc/driver/nvidia/version").unlink()
    for seconds, expected in ((10, "warning"), (100, "warning"), (131, "critical")):
        seen = look_all(tmp_path, "gpu.lost", remember(seen), NOW_S + seconds)
        assert [(one.state, "not loaded" in one.why) for one in seen.findings] == [(expected, True)]
    with_gpus(tmp_path, GPU)
    assert state_of(look(tmp_path, "gpu.lost", remember(seen), NOW_S + 140)) == "ok"


def test_a_reading_survives_recording() -> None:
    reading = NvmlReading("570.1", (GPU, Gpu(1, lost=True)))
    assert from_json(to_json(reading).encode()) == reading


class NotSupported(Exception):
    """What pynvml raises for most things on some GPUs."""


def _library(**functions: object) -> SimpleNamespace:
    base = {
        "nvmlInit": lambda: None, "nvmlShutdown": lambda: None, "nvmlDeviceGetCount": lambda: 1,
        "nvmlSystemGetDriverVersion": lambda: "570.1", "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: b"GPU-a",
    }  # fmt: skip
    return SimpleNamespace(**{**base, **functions})


def test_everything_a_library_does_not_support_is_absent() -> None:
    def refuse(*_: object) -> None:
        raise NotSupported("Not Supported")

    reading = read_gpus(library=_library(nvmlDeviceGetTotalEccErrors=refuse, nvmlDeviceGetRemappedRows=refuse))
    assert reading.gpus == (Gpu(0, uuid="GPU-a"),)


def test_a_library_that_cannot_start_says_why() -> None:
    def refuse() -> None:
        raise NotSupported("Driver/library version mismatch")

    assert "different versions" in read_gpus(library=_library(nvmlInit=refuse)).absent


def test_every_check_of_the_issue_is_here() -> None:
    wanted = """gpu.xid gpu.ecc gpu.clock gpu.throttle gpu.remap gpu.lost gpu.recovery gpu.foreign-process nvlink.down nvlink.errors
    pcie.link pcie.aer net.link net.speed net.errors ib.port ib.errors ib.flap cpu.throttle cpu.governor cpu.steal cpu.offline cpu.mce
    mem.pressure mem.oom mem.ecc disk.full disk.readonly disk.errors disk.slow fs.stuck os.zombie-gpu os.clock-sync os.kmsg os.limits
    driver.versions job.orphans"""
    assert sorted(CHECKS) == sorted(wanted.split())
    assert all(len(check.explanation) > 100 and len(check.title) <= 58 for check in CHECKS.values())
