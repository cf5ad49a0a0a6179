"""The samplers on the emulated machine, through the real pynvml: each counter at least once, what is not supported, what dies."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from simsupport import REPOSITORY, Machine, ranks, start, told

pytestmark = pytest.mark.beside(ranks=False)

PROGRAM = """
import pickle, sys, time
from rankscope.probes.gpu.sampler import GpuSampler
from rankscope.probes.ports.sampler import PortSampler
from rankscope.probes.pci.sampler import PcieSampler
samplers = GpuSampler(activity_hz=29.0, status_hz=7.0), PortSampler(series_hz=7.0, burst_every_s=0.7), PcieSampler(hz=7.0)
for sampler in samplers:
    sampler.start()
time.sleep(1.0)
print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic()
found = [sampler.stop(3.0) for sampler in samplers], time.monotonic() - began
sys.stdout.buffer.write(pickle.dumps(found))
"""


LISTENING = """
import pickle, sys, time
from rankscope.probes.gpu.sampler import GpuSampler
sampler = GpuSampler(activity_hz=29.0)
sampler.listen()
time.sleep(1.0)
print("ready", flush=True)
if sys.stdin.readline() == "start\\n":
    sampler.start()
    time.sleep(0.5)
began = time.monotonic()
found = sampler.stop(3.0), time.monotonic() - began
sys.stdout.buffer.write(pickle.dumps(found))
"""


@dataclass
class Window:
    """What the samplers saw between `open` and `close`, in a process of their own."""

    machine: Machine

    def __enter__(self) -> Window:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        command = self.machine.observer_command([sys.executable, "-c", textwrap.dedent(PROGRAM)])
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None and self.process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.process.kill()
        out, _rest = self.process.communicate(b"\n", timeout=60)
        if kind is None:
            (self.gpu, self.nic, self.pci), self.stop_s = pickle.loads(out)
            self.growth = self.gpu.growth
            self.ports = {one.growth.name: one for one in self.nic.ports}
            self.devices = {one.address: one for one in self.pci.devices}


@pytest.fixture(scope="module")
def shared_machine() -> Iterator[Machine]:
    folder = Path(f"/dev/shm/gpusim-sampler-{os.getpid()}")
    with Machine(folder, gpus=3, per_host=3).start() as machine:
        yield machine
        for leftover in folder.glob("state.*"):
            leftover.unlink(missing_ok=True)


@pytest.fixture
def machine(shared_machine: Machine) -> Iterator[Machine]:
    yield shared_machine
    for index in range(shared_machine.gpus):
        shared_machine.gpu(index).set(
            clock_hz=1980e6, throttle_reasons=0, power_cap_w=700, lost=False, gpm_supported=1, delay_s=0, foreign_share=0,
            foreign_pid=0, foreign_memory_bytes=0, nvlink_active=0x3FFFF, nvlink_error_hz=0, pcie_gen=5, pcie_width=16,
            pcie_replay_hz=0, ecc_corrected_hz=0,
        )  # fmt: skip
        shared_machine.nic(index).set(
            state=1, width=4, speed_hz=50e9, symbol_error_hz=0, crc_error_hz=0, retransmit_hz=0, out_of_sequence_hz=0,
            pause_hz=0, cnp_hz=0, flapping_hz=0,
        )  # fmt: skip


def test_a_healthy_machine_shows_every_column_and_no_growth_of_errors(machine: Machine) -> None:
    with Window(machine) as window:
        time.sleep(0.5)
    first = window.gpu.samples[0]
    assert (first.source, first.bus, first.name) == ("gpm", "0000:18:00.0", "NVIDIA H100 80GB HBM3")
    assert (
        len(first.time_ns) > 23
        and (first.interval_ns > 0).all()
        and (np.diff(first.time_ns) == first.interval_ns[1:]).all()
    )
    for name in ("kernel_active", "sm_active", "tensor_active", "dram_active", "pcie_tx_hz", "nvlink_rx_hz", "sm_clock_hz",
                 "memory_clock_hz", "power_w", "temperature_c"):  # fmt: skip
        assert np.isfinite(getattr(first, name)).all(), name
    growth = window.growth[1]
    assert (growth.ecc_corrected, growth.ecc_uncorrected, growth.rows_remapped, growth.pcie_replays) == (0, 0, 0, 0)
    assert (growth.links_down, growth.nvlink_errors, growth.xids, growth.lost, len(growth.links)) == (
        0,
        0,
        (),
        False,
        18,
    )
    gpu = growth.last
    assert (gpu.pcie_gen, gpu.pcie_gen_max, gpu.pcie_width, gpu.pcie_width_max, gpu.sm_clock_max_mhz) == (
        5,
        5,
        16,
        16,
        1980,
    )
    assert (gpu.memory_clock_mhz, gpu.power_limit_w, gpu.link_speed_mbps) == (2619, 700, 26562)
    assert gpu.slowdown_c is not None and 80 < gpu.slowdown_c < 100
    assert window.gpu.driver_version and window.gpu.missing == () and window.gpu.cpu_s > 0


def test_activity_of_a_running_gpu_is_measured(machine: Machine) -> None:
    program = """
    one = stream()
    until = time.monotonic() + 4
    tell(ok=1)
    while time.monotonic() < until:
        kernel(0.05, one)
        assert rt.cudaStreamSynchronize(one) == 0
        time.sleep(0.05)
    """
    process = start(machine, 0, program)
    told(process)
    with Window(machine) as window:
        time.sleep(1.5)
    process.kill()
    process.communicate()
    busy, idle = window.gpu.samples[0], window.gpu.samples[1]
    assert 0.2 < busy.kernel_active.mean() < 0.8 and idle.kernel_active.max() == 0
    assert busy.sm_active.max() <= 1 and 0 < busy.sm_active.mean() < busy.kernel_active.mean()
    assert busy.power_w.mean() > idle.power_w.mean() + 29
    assert [use.pid for use in window.growth[0].processes] == [process.pid]


def test_each_fault_of_a_gpu_is_in_its_counter(machine: Machine) -> None:
    with Window(machine) as window:
        machine.gpu(0).set(clock_hz=900e6, throttle_reasons=0x48, power_cap_w=450, ecc_corrected_hz=200, ecc_uncorrected=3,
                           rows_remapped=2, retired_pages=5, remap_pending=1, recovery_action=2, xid=94)  # fmt: skip
        machine.gpu(1).set(pcie_replay_hz=300, nvlink_active=0x3FFEF, nvlink_error_hz=500, xid=79)
        machine.gpu(2).set(foreign_share=0.4, foreign_pid=os.getpid(), foreign_memory_bytes=7e9)
        time.sleep(1.5)
    sick, linked, shared = window.growth
    assert sick.ecc_corrected > 101 and (sick.ecc_uncorrected, sick.rows_remapped, sick.retired_pages) == (3, 2, 5)
    assert (sick.last.remap_pending, sick.last.recovery_action, sick.last.power_limit_w) == (True, 2, 450)
    assert [xid.number for xid in sick.xids] == [94] and [xid.number for xid in linked.xids] == [79]
    assert linked.pcie_replays > 101 and linked.nvlink_errors > 101
    assert linked.links_down == 1 and [link.link for link in linked.links if link.fell] == [4]
    (use,) = shared.processes
    assert (use.pid, use.memory_bytes) == (os.getpid(), 7_000_000_000) and 0.1 < use.active < 0.5
    # The machine rests: the idle bit is set too.
    assert {1, 0x49} <= set(window.gpu.samples[0].throttle_reasons.tolist())


@pytest.mark.parametrize("order", [b"start\n", b"stop\n"])
def test_what_a_gpu_reports_before_the_sampling_begins_is_kept_apart(machine: Machine, order: bytes) -> None:
    command = machine.observer_command([sys.executable, "-c", LISTENING])
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        machine.gpu(1).set(xid=79)
        seen, stop_s = pickle.loads(process.communicate(order, timeout=60)[0])
    assert stop_s < 1 and not seen.missing
    if order == b"stop\n":  # no window began
        assert seen.growth == () and seen.samples == ()
        return
    assert [[xid.number for xid in growth.earlier_xids] for growth in seen.growth] == [[], [79], []]
    assert not any(growth.xids for growth in seen.growth) and len(seen.samples[1].time_ns) > 5


def test_each_fault_of_a_port_and_a_slot_is_in_its_counter(machine: Machine) -> None:
    with Window(machine) as window:
        machine.nic(0).set(
            symbol_error_hz=200, crc_error_hz=200, retransmit_hz=200, out_of_sequence_hz=200, pause_hz=200, cnp_hz=200
        )
        machine.nic(1).set(state=0)
        machine.nic(2).set(width=1, flapping_hz=3)
        machine.gpu(2).set(pcie_width=8, pcie_gen=3, pcie_replay_hz=300)
        time.sleep(1.5)
    sick, down, slow = (window.ports[f"mlx5_{index}"].growth for index in range(3))
    errors = sick.errors
    for name in ("symbol_errors", "crc_errors", "retransmits", "out_of_sequence", "pause", "cnp"):
        assert getattr(errors, name) > 101, name
    assert (sick.down_readings, sick.first.speed_hz, sick.first.width, sick.pci) == (0, 50e9, 4, "0000:19:00.0")
    assert down.down_readings >= 3 and down.changes == 1
    assert (slow.speed_hz, slow.width) == (12.5e9, 1) and slow.errors.link_downed >= 2
    link = window.devices["0000:3a:00.0"]
    assert (link.width_limit, link.width_least, link.speed_limit_gts) == (16, 8, 32.0) and link.correctable > 101
    assert window.pci.tree.nearest_nics("0000:3a:00.0") == ("mlx5_2",)


def test_a_burst_shows_how_a_collective_moves(machine: Machine) -> None:
    program = """
    comm = communicator(rank, size, "burst")
    until = time.monotonic() + 5
    one = stream()
    while time.monotonic() < until:
        all_reduce(comm, 1 << 28, one)
        assert rt.cudaStreamSynchronize(one) == 0
    """
    with Machine(machine.folder.with_name(f"gpusim-burst-{os.getpid()}"), gpus=2, per_host=1) as pair:
        with ranks(pair, range(2), program), Window(pair) as window:
            time.sleep(1.9)
        for leftover in pair.folder.glob("state.*"):
            leftover.unlink(missing_ok=True)
    port = window.ports["mlx5_0"]
    assert port.growth.tx_bytes > 10**9 and port.series.tx_bytes[-1] > port.series.tx_bytes[0]
    burst = max(port.bursts, key=lambda one: len(one.time_ns))
    assert len(burst.time_ns) > 41 and burst.tx_bytes[-1] > burst.tx_bytes[0]


def test_without_gpm_the_older_measures_stand_in(machine: Machine) -> None:
    for index in range(machine.gpus):
        machine.gpu(index).set(gpm_supported=0)
    with Window(machine) as window:
        time.sleep(0.5)
    first = window.gpu.samples[0]
    assert first.source == "power" and np.isfinite(first.sm_active).all() and np.isnan(first.tensor_active).all()
    assert "no GPM" in window.gpu.missing[0]


def test_a_gpu_that_falls_off_the_bus_ends_its_series_and_spares_the_others(machine: Machine) -> None:
    with Window(machine) as window:
        machine.gpu(1).set(ecc_corrected_hz=1000)
        time.sleep(0.7)
        machine.gpu(1).set(lost=True, xid=79)
        time.sleep(0.7)
    lost, well = window.growth[1], window.growth[2]
    assert lost.lost and lost.lost_ns > 0 and lost.ecc_corrected > 101 and lost.first is not None
    assert [xid.number for xid in lost.xids] == [79] and not well.lost
    assert len(window.gpu.samples[1].time_ns) < len(window.gpu.samples[2].time_ns)


def test_a_driver_that_hangs_does_not_hang_the_observer(machine: Machine) -> None:
    with Window(machine) as window:
        machine.gpu(0).set(delay_s=29)
        time.sleep(0.5)
    assert window.stop_s < 13 and any("no answer" in line and "gpu0" in line for line in window.gpu.missing)
    assert len(window.gpu.samples[2].time_ns) > 13 and len(window.ports) >= 3


@pytest.mark.parametrize("hidden", [
    "nvmlDeviceGetFieldValues", "nvmlDeviceGetPcieReplayCounter", "nvmlDeviceGetTotalEccErrors", "nvmlEventSetCreate",
    "nvmlGpmSampleAlloc", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetClockInfo",
])  # fmt: skip
def test_a_library_that_lacks_a_function_lacks_only_what_it_tells(machine: Machine, hidden: str) -> None:
    program = f"""
    import pynvml, pickle, sys, time
    def refuse(*_): raise pynvml.NVMLError(3)
    pynvml.{hidden} = refuse
    from rankscope.probes.gpu.sampler import GpuSampler
    sampler = GpuSampler(activity_hz=29.0)
    sampler.start()
    time.sleep(0.7)
    sys.stdout.buffer.write(pickle.dumps(sampler.stop()))
    """
    command = machine.observer_command([sys.executable, "-c", textwrap.dedent(program)])
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, check=True, timeout=60
    )
    found: Any = pickle.loads(done.stdout)
    assert len(found.samples) == 3 and len(found.samples[0].time_ns) > 7 and np.isfinite(found.samples[0].power_w).all()
    assert found.growth[0].last.temperature_c is not None
