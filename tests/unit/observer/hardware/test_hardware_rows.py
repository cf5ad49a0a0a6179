"""What the samplers saw becomes rows with the names that the diagnoser knows, each with the rank that uses the device."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from rankscope.observer.census.owners import Foreign, Owners, nearest_ports
from rankscope.observer.gpu.levels import find_levels
from rankscope.observer.tables.hardware_rows import counter_rows, pcie_limit_hz, port_use
from rankscope.observer.tables.job import series_of
from rankscope.observer.tables.reading import HardwareReading
from rankscope.observer.window.counter_names import COUNTER_NAMES
from rankscope.probes.gpu.model import Gpu
from rankscope.probes.gpu.series import GpuGrowth, GpuRecording, GpuSamples, LinkGrowth, ProcessUse, Xid, throttle_times
from rankscope.probes.pci.devices import AerCounters, PciDevice, PciLink
from rankscope.probes.pci.sampler import PcieGrowth, PcieRecording
from rankscope.probes.pci.tree import PcieNode, PcieTree
from rankscope.probes.ports.model import (
    INFINIBAND,
    NicRecording,
    Port,
    PortErrors,
    PortGrowth,
    PortRecording,
    PortSamples,
)

COUNT = 97
BUS = "0000:3b:00.0"
NIC_BUS, BRIDGE = "0000:3c:00.0", "0000:3a:00.0"
SPEED_HZ = 50e9
GPU = Gpu(
    2, uuid="GPU-aa", bus=BUS, slowdown_c=87, power_limit_w=500.0, power_default_w=700.0, sm_clock_max_mhz=1980,
    memory_clock_max_mhz=2619, remap_pending=False, remap_failed=False, recovery_action=0, pcie_gen_max=5, pcie_width_max=16,
    link_speed_mbps=25000,
)  # fmt: skip


def samples(index: int = 2, source: str = "gpm", **columns: Any) -> GpuSamples:
    """A GPU that computes in 2 of 3 samples, throttled in the last 13."""
    ones = np.ones(COUNT)
    kernel = np.where(np.arange(COUNT) % 3 < 2, 1.0, 0.0)
    reasons = np.zeros(COUNT, np.int64)
    reasons[-13:] = 0x40
    values: dict[str, Any] = {
        "time_ns": (np.arange(COUNT) + 1) * 100_000_000, "interval_ns": np.full(COUNT, 100_000_000),
        "kernel_active": kernel, "sm_active": kernel * 0.9, "tensor_active": kernel * 0.6, "dram_active": kernel * 0.5,
        "pcie_tx_hz": 0 * ones, "pcie_rx_hz": 2e9 * ones, "nvlink_tx_hz": np.where(kernel > 0, 90e9, 0.0), "nvlink_rx_hz": 0 * ones,
        "sm_clock_hz": np.where(kernel > 0, 1.2e9, 0.3e9), "memory_clock_hz": 2.6e9 * ones, "power_w": 450 * ones,
        "temperature_c": 88 * ones, "throttle_reasons": reasons,
    }  # fmt: skip
    return GpuSamples(index, f"GPU-{index}", BUS, "H100", source, **(values | columns))


def growth(index: int = 2, **more: Any) -> GpuGrowth:
    values: dict[str, Any] = {
        "first": GPU, "last": GPU, "latest": GPU, "ecc_corrected": 7, "ecc_uncorrected": 0, "rows_remapped": 0,
        "pcie_replays": 3, "links": tuple(_link(number) for number in range(4)),
        "processes": (ProcessUse(701, 9 << 30, 0.5, 5), ProcessUse(999, 1 << 30, 0.3, 5)),
    }  # fmt: skip
    return GpuGrowth(index, f"GPU-{index}", BUS, "H100", 9.7, **(values | more))


def _link(number: int, down: bool = False, errors: int = 0) -> LinkGrowth:
    return LinkGrowth(number, not down, down, False, errors, 0, 0)


def port(rates: Iterable[float] = (), **more: Any) -> PortRecording:
    """A port of 50 GB/s with one burst at 1 kHz."""
    one = Port(
        "mlx5_3", "mlx5_3", 1, INFINIBAND, NIC_BUS, True, "ACTIVE", SPEED_HZ, SPEED_HZ, 4, 4, 0, 0, PortErrors(), (),
    )  # fmt: skip
    moved = np.concatenate(([0], np.cumsum(np.array(list(rates)) * SPEED_HZ * 1e-3)))
    burst = PortSamples(
        "mlx5_3", "mlx5_3", 1, NIC_BUS, np.arange(len(moved), dtype=np.int64) * 1_000_000, moved.astype(np.int64),
        moved.astype(np.int64),
    )  # fmt: skip
    values: dict[str, Any] = {
        "first": one, "last": one, "tx_bytes": 10**9, "rx_bytes": 10**9, "errors": PortErrors(symbol_errors=11, retransmits=0),
        "speed_hz": SPEED_HZ, "width": 4, "readings": 20, "down_readings": 0, "changes": 0,
    }  # fmt: skip
    grown = PortGrowth("mlx5_3", "mlx5_3", 1, NIC_BUS, 19.0, **(values | more))
    return PortRecording(grown, burst, (burst,) if len(moved) > 1 else ())


def pci(address: str, kind: str, **more: Any) -> PcieGrowth:
    values: dict[str, Any] = {
        "speed_gts": 32.0, "speed_limit_gts": 32.0, "width": 16, "width_limit": 16, "width_least": 16,
        "correctable": 0, "nonfatal": 0, "fatal": 0,
    }  # fmt: skip
    return PcieGrowth(address, kind, 0, 19.0, **(values | more))


def reading(**parts: Any) -> HardwareReading:
    values: dict[str, Any] = {
        "gpus": GpuRecording((samples(),), (growth(),)),
        "nics": NicRecording((port([0.9] * 53),)),
        "links": PcieRecording((pci(BUS, "gpu"), pci(NIC_BUS, "nic", ports=("mlx5_3",)), pci(BRIDGE, "bridge", below=(BUS, NIC_BUS)))),
        "owners": Owners({701: (2,)}, {701: ("mlx5_3",)}, (Foreign(2, 999, "miner", 1 << 30, 0.3),)),
    }  # fmt: skip
    return HardwareReading(**(values | parts))


def rows_of(
    seen: HardwareReading, numbers: dict[int, int] | None = None, **more: Any
) -> dict[tuple[str, str], dict[str, Any]]:
    rows = counter_rows(seen, more.get("others", frozenset()), frozenset(), numbers or {701: 5}, {2: 0.9}, {2: 41e9})
    keyed = {(row.instance, row.name): asdict(row) for row in rows}
    assert len(keyed) == len(rows), "a counter of an instance occurs twice"
    return keyed


def test_every_name_is_documented_and_every_row_is_of_a_known_kind() -> None:
    documented = " ".join([*COUNTER_NAMES, *COUNTER_NAMES.values()])
    for (_, name), row in rows_of(reading()).items():
        stem = next((one for one in ("gpu.throttle", "gpu.xid") if name.startswith(one)), name)
        assert stem in documented, name
        assert row["kind"] in ("delta", "gauge") and row["scope"] in ("gpu", "nvlink", "pcie", "nic")
        assert row["rank"] == 5, name
        assert np.isfinite(row["value"])


def test_a_clock_is_its_mean_while_the_gpu_works_against_what_it_may_be() -> None:
    clock = rows_of(reading())["gpu2", "gpu.sm_clock_hz"]
    assert (clock["value"], clock["limit"], clock["minimum"]) == (pytest.approx(1.2e9), 1980e6, pytest.approx(1.2e9))


def test_throttling_is_counted_in_seconds_by_reason() -> None:
    rows = rows_of(reading())
    assert rows["gpu2", "gpu.throttle.hw_thermal_s"]["value"] == pytest.approx(1.3)
    assert rows["gpu2", "gpu.throttle.power_cap_s"]["value"] == 0
    assert not any("idle" in name for _, name in rows)


def test_levels_carry_what_is_allowed() -> None:
    rows = rows_of(reading())
    assert (rows["gpu2", "gpu.power_w"]["value"], rows["gpu2", "gpu.power_w"]["limit"]) == (450, 500)
    assert (rows["gpu2", "gpu.power_cap_w"]["value"], rows["gpu2", "gpu.power_cap_w"]["limit"]) == (500, 700)
    assert rows["gpu2", "gpu.temperature_c"]["limit"] == 87
    assert rows["gpu2", "gpu.sm_active"]["value"] == pytest.approx(0.9 * 65 / 97)
    assert rows["gpu2", "gpu.sm_active_computing"]["value"] == 0.9


def test_errors_xids_and_a_lost_gpu() -> None:
    xids = (Xid(79, 1), Xid(63, 2), Xid(79, 3))
    rows = rows_of(reading(gpus=GpuRecording((samples(),), (growth(xids=xids, lost=True),))))
    assert rows["gpu2", "gpu.ecc_corrected"]["value"] == 7
    assert (rows["gpu2", "gpu.xid.79"]["value"], rows["gpu2", "gpu.xid.63"]["value"]) == (2, 1)
    assert rows["gpu2", "gpu.lost"]["value"] == 1
    assert ("gpu2", "gpu.lost") not in rows_of(reading())


def test_a_gpu_that_tells_nothing_has_few_rows_and_no_false_ones() -> None:
    silent = GpuGrowth(2, "", "", "", 0.0, None, None, lost=True)
    assert {name for _, name in rows_of(reading(gpus=GpuRecording((), (silent,)))) if name.startswith("gpu.")} == {
        "gpu.lost", "gpu.sm_active_computing", "gpu.foreign_memory_bytes", "gpu.foreign_active",
    }  # fmt: skip


def test_guesses_from_power_are_not_given_out_as_sm_activity() -> None:
    old = samples(source="power", tensor_active=np.full(COUNT, np.nan))
    rows = rows_of(reading(gpus=GpuRecording((old,), (growth(),))))
    assert ("gpu2", "gpu.sm_active") not in rows and ("gpu2", "gpu.tensor_active") not in rows
    assert ("gpu2", "gpu.kernel_active") in rows
    series = series_of(old, 0, 9.7)
    assert np.isnan(series.sm_active).all()
    assert find_levels([series]).measure in ("power", "")


def test_who_else_is_on_the_gpu() -> None:
    rows = rows_of(reading())
    memory, active = rows["gpu2", "gpu.foreign_memory_bytes"], rows["gpu2", "gpu.foreign_active"]
    assert (memory["value"], memory["comm"], memory["pid"]) == (1 << 30, "miner", 999)
    assert (active["comm"], active["pid"]) == ("miner", 999)
    assert active["value"] == pytest.approx(0.3)


def test_links_that_are_down_and_their_errors() -> None:
    links = (_link(0), _link(1, down=True), _link(2, errors=13))
    rows = rows_of(reading(gpus=GpuRecording((samples(),), (growth(links=links),))))
    down = rows["gpu2", "nvlink.links_down"]
    assert (down["value"], down["limit"]) == (1, 3)
    assert rows["gpu2", "nvlink.errors"]["value"] == 13
    assert rows["gpu2", "nvlink.burst_hz"]["value"] == pytest.approx(90e9, rel=0.01)
    assert rows["gpu2", "nvlink.burst_hz"]["limit"] == 75e9
    assert rows["gpu2", "nvlink.tx_bytes"]["value"] == pytest.approx(90e9 * 0.1 * 65)


def test_a_gpu_without_any_link_has_lost_them_only_if_others_of_its_kind_have_theirs() -> None:
    dark = tuple(LinkGrowth(number, False, False, False, 0, 0, 0) for number in range(5))
    lost = growth(links=dark)
    alone = rows_of(reading(gpus=GpuRecording((samples(),), (lost,))))
    assert alone["gpu2", "nvlink.links_down"]["value"] == 0
    neighbour = growth(index=3, links=tuple(_link(number) for number in range(5)))
    beside = rows_of(reading(gpus=GpuRecording((samples(),), (lost, neighbour))))
    assert (beside["gpu2", "nvlink.links_down"]["value"], beside["gpu2", "nvlink.links_down"]["limit"]) == (5, 5)


def test_pci_links_belong_to_the_one_rank_below_them() -> None:
    rows = rows_of(reading())
    assert rows[BUS, "pcie.replays"]["value"] == 3
    assert rows[BUS, "pcie.burst_hz"]["value"] == 41e9 and rows[BUS, "pcie.burst_hz"]["limit"] == pytest.approx(
        63e9, rel=0.01
    )
    assert pcie_limit_hz(growth()) == pytest.approx(63e9, rel=0.01)
    assert rows[BUS, "pcie.rx_bytes"]["value"] == pytest.approx(2e9 * 9.7)
    assert rows[BRIDGE, "pcie.speed_gts"]["rank"] == 5
    two = Owners({701: (2,), 702: (3,)}, {701: ("mlx5_3",), 702: ("mlx5_4",)})
    other, disk = "0000:4b:00.0", "0000:5b:00.0"
    devices = (
        pci(BUS, "gpu"), pci(other, "gpu"), pci(disk, "nvme"), pci(BRIDGE, "bridge", below=(BUS, other)),
        pci("0000:4a:00.0", "bridge", below=("0000:4c:00.0",)),
    )  # fmt: skip
    shared = replace(
        reading(),
        owners=two,
        gpus=GpuRecording((samples(),), (growth(), replace(growth(3), bus=other))),
        links=PcieRecording(devices),
    )
    rows = rows_of(shared, {701: 5, 702: 6})
    assert {rows[at, "pcie.speed_gts"]["rank"] for at in (BUS, other)} == {5, 6}
    assert rows[BRIDGE, "pcie.speed_gts"]["rank"] == -1, "it serves both"
    assert rows[disk, "pcie.speed_gts"]["rank"] == -1, "everybody may read from a disk"
    assert ("0000:4a:00.0", "pcie.speed_gts") not in rows, "nobody of the job uses what is below it"


def test_lanes_lost_during_the_window_show_as_the_minimum() -> None:
    links = PcieRecording((pci(BUS, "gpu", width_least=8),))
    width = rows_of(reading(links=links))[BUS, "pcie.width"]
    assert (width["value"], width["minimum"], width["limit"]) == (16, 8, 16)


def test_a_port_that_went_down_and_runs_slower_than_it_can() -> None:
    seen = reading(nics=NicRecording((port([], speed_hz=12.5e9, down_readings=4),)))
    rows = rows_of(seen)
    assert (rows["mlx5_3", "nic.speed_hz"]["value"], rows["mlx5_3", "nic.speed_hz"]["limit"]) == (12.5e9, SPEED_HZ)
    assert (rows["mlx5_3", "nic.state"]["value"], rows["mlx5_3", "nic.state"]["minimum"]) == (pytest.approx(0.8), 0)
    assert rows["mlx5_3", "nic.symbol_errors"]["value"] == 11
    assert ("mlx5_3", "nic.crc_errors") not in rows, "what the port does not count has no row"
    assert ("mlx5_3", "nic.burst_hz") not in rows


def test_a_slow_port_is_low_and_flat_and_its_peers_burst() -> None:
    slow, peers = port([0.0] * 31 + [0.25] * 80 + [0.0] * 29), port([0.0] * 7 + [0.9, 0, 0, 0] * 20)
    low, high = port_use(slow), port_use(peers)
    assert low is not None and high is not None
    assert low.mu == pytest.approx(0.25, abs=0.01) and high.mu == pytest.approx(0.225, abs=0.03)
    assert low.sigma < 0.05 and high.sigma > 0.3
    assert (low.moving, high.moving) == (pytest.approx(0.25), pytest.approx(0.9))
    rows = rows_of(reading(nics=NicRecording((slow,))))
    assert rows["mlx5_3", "nic.burst_hz"]["value"] == pytest.approx(0.25 * SPEED_HZ)
    assert rows["mlx5_3", "nic.collective_sigma"]["value"] < 0.05


def test_readings_that_catch_up_with_late_ones_make_no_bursts() -> None:
    """The card's counter moves once a millisecond; every seventh reading is 4 ms late, the next come at once."""
    at, times = 0, []
    for number in range(301):
        at += 5_000_000 if number % 7 == 0 else 30_000 if number % 7 < 4 else 1_000_000
        times.append(at)
    moved = np.array([time // 1_000_000 for time in times]) * int(0.25 * SPEED_HZ * 1e-3)
    late = port([0.25])
    burst = replace(late.bursts[0], time_ns=np.array(times), tx_bytes=moved, rx_bytes=moved)
    use = port_use(replace(late, bursts=(burst,)))
    assert use is not None
    assert (use.mu, use.sigma) == (pytest.approx(0.25, rel=0.05), pytest.approx(0, abs=0.05))


def test_devices_of_other_jobs_are_left_out() -> None:
    rows = rows_of(reading(owners=Owners()), {701: 5}, others=frozenset({2}))
    assert not any(instance in ("gpu2", BUS) for instance, _ in rows)


def test_a_healthy_gpu_that_nobody_of_the_job_uses_is_left_out_and_a_lost_one_is_not() -> None:
    assert not any(instance == "gpu2" for instance, _ in rows_of(reading(owners=Owners())))
    lost = reading(owners=Owners(), gpus=GpuRecording((), (growth(lost=True),)))
    rows = counter_rows(lost, frozenset(), frozenset(), {701: 5}, {}, {})
    assert {row.rank for row in rows if row.name == "gpu.lost"} == {-1}


def test_nearest_ports_are_shared_out_among_gpus_that_are_equally_near() -> None:
    def node(address: str, kind: str, ports: tuple[str, ...] = ()) -> PcieNode:
        link = PciLink(32.0, 16)
        device = PciDevice(address, 0, 0, 0, "", link, link, AerCounters(0, 0, 0))
        return PcieNode(device, kind, 0, "pci0000:3a", (BRIDGE,), ports, bool(ports))

    tree = PcieTree(
        (
            node(BUS, "gpu"),
            node("0000:4b:00.0", "gpu"),
            node(NIC_BUS, "nic", ("mlx5_3",)),
            node("0000:4c:00.0", "nic", ("mlx5_4",)),
        )
    )
    gpus = GpuRecording((), (growth(2), replace(growth(3), bus="0000:4b:00.0")))
    assert nearest_ports({701: (2,), 702: (3,)}, gpus, tree) == {701: ("mlx5_3",), 702: ("mlx5_4",)}


def test_a_gpu_that_was_throttled_all_the_time_was_so_for_no_longer_than_the_window() -> None:
    """Sampling begins before the window and ends after it; a sample over an edge counts with the part that lies inside."""
    always = samples(throttle_reasons=np.full(COUNT, 0x40))
    edge_ns = (COUNT - 2) * 100_000_000
    reading = HardwareReading(gpus=GpuRecording(samples=(always,))).within(150_000_000, edge_ns)
    (inside,) = reading.gpus.samples
    times = {one.reason: one.throttled_s for one in throttle_times(inside)}
    assert times["hw_thermal"] == pytest.approx((edge_ns - 150_000_000) / 1e9)
    assert len(inside.time_ns) == COUNT - 3 == len(inside.power_w)
    assert inside.time_ns[-1] == edge_ns and inside.index == always.index
