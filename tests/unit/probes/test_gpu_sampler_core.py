"""What becomes of GPU samples and readings: columns, growth, and fallbacks; and samplers of hardware that hangs."""

from __future__ import annotations

import math
import struct
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.probes.gpu.gpm import METRICS, GpmSample
from rankscope.probes.gpu.model import Gpu, GpuProcess, NvLink, pci_address
from rankscope.probes.gpu.nvml_fields import field_value
from rankscope.probes.gpu.sampler import GpuSampler
from rankscope.probes.gpu.series import Row, Xid, growth_of, power_proxy, samples_of, throttle_times
from rankscope.probes.sampling.thread import Sampler, within

S = 10**9
GPU = Gpu(
    3, uuid="GPU-a", bus="00000000:3b:00.0", name="H100", power_default_w=700.0, temperature_c=41, ecc_corrected=5,
    ecc_uncorrected=0, remap_corrected=1, remap_uncorrected=0, pcie_replays=2**32 - 3, memory_temperature_c=50,
    nvlink_tx_bytes=1000, pcie_tx_bytes=100, links=(NvLink(0, True, 6, 1, 2, 3), NvLink(1, True, None)),
)  # fmt: skip


def _row(
    at_s: float, gpm: GpmSample | None = None, power: float = 100.0, reasons: float = 0.0, kernel: float = math.nan
) -> Row:
    return Row(int(at_s * S), S // 10, gpm, kernel, 0.25, 1.98e9, 2.6e9, power, reasons)


def _gpm(kernel: float, sm: float) -> GpmSample:
    """As the driver writes it: per metric its number, an error, the value, 24 bytes of text."""
    told = {"kernel_active": kernel, "sm_active": sm, "tensor_active": 0.5, "dram_active": 0.25, "pcie_tx_hz": 1e9,
            "pcie_rx_hz": 2e9, "nvlink_rx_hz": 3e9, "sm_occupancy": 0.1}  # fmt: skip
    rows = [
        struct.pack("<IId24x", number, name not in told, told.get(name, 7.0) / factor)
        for name, (number, factor) in METRICS.items()
    ]
    return GpmSample(0, S // 10, b"".join(rows))


def test_gpm_samples_become_columns() -> None:
    rows = [_row(0.1 * place, _gpm(1.0, 0.1 * place), reasons=8.0 if place > 4 else 0.0) for place in range(1, 8)]
    found = samples_of(3, rows, [(0, GPU), (S // 2, replace(GPU, temperature_c=43))])
    assert (found.source, found.uuid, found.bus, found.name, found.index) == ("gpm", "GPU-a", "0000:3b:00.0", "H100", 3)
    assert found.sm_active.tolist() == pytest.approx([0.1 * place for place in range(1, 8)])
    assert found.temperature_c.tolist() == [41, 41, 41, 41, 43, 43, 43]
    assert set(found.nvlink_tx_hz) == {0.0} and found.nvlink_rx_hz.tolist() == pytest.approx([3e9] * 7)
    seconds = {one.reason: one.throttled_s for one in throttle_times(found)}
    assert seconds.pop("hw_slowdown") == pytest.approx(0.3) and set(seconds.values()) == {0.0}


def test_samples_that_the_driver_was_not_asked_about_are_left_out() -> None:
    rows = [_row(0.1, _gpm(1.0, 0.5)), _row(0.2, _gpm(1.0, 0.7)), _row(0.3, GpmSample(0, S // 10), power=7.0)]
    found = samples_of(3, rows, [(0, GPU)])
    assert found.source == "gpm" and found.sm_active.tolist() == pytest.approx([0.5, 0.7])
    assert found.power_w.tolist() == [100.0] * 2 == [100.0] * len(found.time_ns)
    never = samples_of(3, rows[2:], [(0, GPU)])
    assert np.isnan(never.sm_active).all() and never.power_w.tolist() == [7.0]


def test_link_errors_count_whichever_readings_told_them() -> None:
    quiet, worse = (NvLink(0, True, 0, 0, 0, 0),), (NvLink(0, True, 5, 5, 0, 0),)
    told = [quiet, quiet, worse, worse, worse]
    (link,) = growth_of(3, [(place * S, replace(GPU, links=links)) for place, links in enumerate(told)], (), 0).links
    assert (link.crc, link.replay, link.down, link.fell) == (5, 0, False, False)
    (still,) = growth_of(3, [(0, replace(GPU, links=quiet)), (S, replace(GPU, links=quiet))], (), 0).links
    assert still.crc == 0
    (once,) = growth_of(3, [(0, replace(GPU, links=quiet))], (), 0).links
    assert once.crc is None


def test_without_gpm_power_stands_in_and_byte_counters_give_rates() -> None:
    rows = [_row(0.5, kernel=1.0, power=700.0), _row(1.5, kernel=1.0, power=100.0), _row(1.9, kernel=0.0, power=100.0)]
    readings = [(0, GPU), (S, replace(GPU, nvlink_tx_bytes=4000)), (2 * S, replace(GPU, nvlink_tx_bytes=1500))]
    found = samples_of(3, rows, readings)
    assert found.source == "power"
    assert found.sm_active.tolist() == [1.0, 0.0, 0.0] and found.kernel_active.tolist() == [1.0, 1.0, 0.0]
    assert found.nvlink_tx_hz.tolist() == [3000.0, 0.0, 0.0] and np.isnan(found.tensor_active).all()


def test_a_gpu_that_tells_nothing_has_empty_columns() -> None:
    row = Row(S, S // 10, None, *[math.nan] * 6)
    found = samples_of(0, [row], [(0, Gpu(0))])
    assert found.source == "" and found.throttle_reasons.tolist() == [-1] and throttle_times(found) == ()
    assert all(
        np.isnan(getattr(found, name)).all() for name in ("kernel_active", "sm_active", "power_w", "temperature_c")
    )
    assert samples_of(0, [], []).time_ns.size == 0


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1500) | st.just(math.nan)), max_size=31), st.floats(1, 1000))
def test_the_power_proxy_is_between_nothing_and_kernel_activity(
    pairs: list[tuple[float, float]], default: float
) -> None:
    kernel, power = (np.array([pair[place] for pair in pairs], float) for place in (0, 1))
    proxy = power_proxy(kernel, power, default)
    told = np.isfinite(power)
    assert np.isnan(proxy[~told]).all() and (proxy[told] >= 0).all() and (proxy[told] <= kernel[told] + 1e-12).all()


def test_growth_survives_wraps_resets_and_missing_values() -> None:
    readings = [
        (0, GPU),
        (S, replace(GPU, pcie_replays=4, ecc_corrected=12, remap_uncorrected=1, bus=None, name=None)),
        (2 * S, replace(GPU, pcie_replays=4, ecc_corrected=2, memory_temperature_c=None, bus=None, name=None)),
        (3 * S, replace(GPU, pcie_replays=None, ecc_corrected=13, pcie_tx_bytes=None, memory_temperature_c=61)),
    ]
    found = growth_of(3, readings, (Xid(79, 7),), 0)
    assert (found.pcie_replays, found.ecc_corrected, found.ecc_uncorrected) == (7, 7 + 11, 0)
    assert (found.rows_remapped, found.retired_pages, found.memory_temperature_c) == (1, None, 61.0)
    assert found.seconds == 3.0 and found.last is readings[3][1] and found.first is GPU and found.xids[0].number == 79


def test_links_that_fall_and_links_that_were_never_wired() -> None:
    broken = replace(GPU, links=(NvLink(0, True, 9, 1, 2, 6), NvLink(1, False, None)))
    found = growth_of(3, [(0, GPU), (S, broken), (2 * S, broken)], (), 0)
    assert [(link.down, link.fell, link.errors) for link in found.links] == [(False, False, 3), (True, True, None)]
    assert (found.links_down, found.nvlink_errors) == (1, 3)
    bare = replace(GPU, links=(NvLink(0, False, None), NvLink(1, False, None)))
    assert growth_of(3, [(0, bare), (S, bare)], (), 0).links_down == 0
    assert growth_of(3, [(0, replace(GPU, links=()))], (), 0).links_down is None


def test_who_else_used_the_gpu() -> None:
    def with_processes(*processes: GpuProcess) -> Gpu:
        return replace(GPU, processes=processes)

    readings = [
        (0, with_processes(GpuProcess(7, 100, 99.0))),
        (1, with_processes(GpuProcess(7, 300, 80.0), GpuProcess(11, 17, None))),
        (2, with_processes(GpuProcess(7, 200, 40.0), GpuProcess(11, None, 30.0))),
    ]
    uses = {use.pid: use for use in growth_of(3, readings, (), 0).processes}
    assert (uses[7].memory_bytes, uses[7].active, uses[7].seen) == (300, pytest.approx(0.6), 3)
    assert (uses[11].memory_bytes, uses[11].active, uses[11].seen) == (17, pytest.approx(0.15), 2)
    silent = growth_of(3, [(0, with_processes(GpuProcess(7, 1)))], (), 0).processes[0]
    assert silent.active is None


def test_a_gpu_that_never_answered_has_no_growth() -> None:
    found = growth_of(5, [], (), 17)
    assert (found.lost, found.lost_ns, found.first, found.ecc_corrected, found.seconds) == (True, 17, None, None, 0.0)


@pytest.mark.parametrize(
    ("bus", "address"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("10000000:01:00.0", "10000000:01:00.0"),
        (None, ""),
    ],
)
def test_bus_addresses_as_sysfs_writes_them(bus: str | None, address: str) -> None:
    assert pci_address(bus) == address


@pytest.mark.parametrize(
    ("kind", "form", "value"),
    [
        (0, "<d", 2.5),
        (1, "<Ixxxx", 2**32 - 1),
        (2, "<Q", 2**63),
        (3, "<Q", 7),
        (4, "<q", -5),
        (5, "<ixxxx", -7),
        (6, "<H6x", 65535),
    ],
)
def test_every_type_of_a_field_value(kind: int, form: str, value: float) -> None:
    assert field_value(kind, struct.unpack("<Q", struct.pack(form, value))[0]) == value


@given(st.integers(0, 20), st.integers(0, 2**64 - 1))
def test_any_field_value_is_a_number_or_nothing(kind: int, bits: int) -> None:
    value = field_value(kind, bits)
    assert value is None or math.isfinite(value)


class _Hangs(Sampler):
    """Hardware that stops answering at its third reading."""

    def __init__(self) -> None:
        super().__init__("hanging")
        self.readings = 0
        self.answer = threading.Event()

    def stop(self) -> list[str]:
        self._finish(0.2)
        return self._missing

    def _tick(self, due_ns: int) -> int:
        self.readings += 1
        if self.readings == 3:
            self._doing = "the third reading"
            self.answer.wait(29)
        return due_ns + 1_000_000


def test_a_reading_that_hangs_is_left_behind_and_said() -> None:
    sampler = _Hangs()
    sampler.start()
    time.sleep(0.2)
    began = time.monotonic()
    missing = sampler.stop()
    assert time.monotonic() - began < 2 and sampler.stuck
    assert sampler.readings == 3 and "the third reading" in missing[0]
    sampler.answer.set()


def test_a_call_that_hangs_times_out_and_one_that_fails_says_why() -> None:
    answer = threading.Event()
    with pytest.raises(TimeoutError):
        within(0.1, lambda: answer.wait(29))
    answer.set()
    assert within(29, lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        within(29, lambda: 1 // 0)


def test_without_the_library_nothing_is_recorded_and_it_is_said() -> None:
    class Broken:
        @staticmethod
        def nvmlInit() -> None:
            raise OSError("Driver Not Loaded")

    sampler = GpuSampler(library=Broken())
    sampler.start()
    found = sampler.stop()
    assert found.samples == () and "Driver Not Loaded" in found.missing[0]
    assert GpuSampler().stop().growth == ()
