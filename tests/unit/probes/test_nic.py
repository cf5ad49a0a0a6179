"""Network ports: how they are read, how their counters grow, and bursts, on recorded trees that change under way."""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import pytest
from hardware_trees import ethernet, ib, pci, put
from hypothesis import given
from hypothesis import strategies as st

from rankscope.probes.network.ethtool import best_mode_hz
from rankscope.probes.ports.model import ERROR_NAMES, Port, PortErrors
from rankscope.probes.ports.reader import errors_of, parse_rate, read_ports
from rankscope.probes.ports.sampler import PortSampler, growth_of
from rankscope.probes.sampling.growth import cumulative, growth, total_growth

GBIT = 1e9 / 8


def _cards(root: Path) -> Path:
    """An InfiniBand card, a RoCE card with its interface, an Ethernet card, a virtual interface."""
    ib(root, "mlx5_0", pci(root, "pci0000:00/0000:01:00.0", "0x020700"))
    roce = pci(root, "pci0000:00/0000:02:00.0", "0x020000")
    ib(root, "mlx5_10", roce, "100 Gb/sec (2X HDR)", link_layer="Ethernet")
    ethernet(root, "eth7", roce)
    ethernet(root, "eth0", pci(root, "pci0000:00/0000:03:00.0", "0x020000"))
    ethernet(root, "veth3", None)
    return root


def test_every_port_is_found_once_with_its_card(tmp_path: Path) -> None:
    found = {port.name: (port.kind, port.pci, port.interfaces) for port in read_ports(_cards(tmp_path))}
    assert found == {
        "mlx5_0": ("infiniband", "0000:01:00.0", ()),
        "mlx5_10": ("roce", "0000:02:00.0", ("eth7",)),
        "eth0": ("ethernet", "0000:03:00.0", ("eth0",)),
    }


def test_each_counter_is_read_in_its_unit(tmp_path: Path) -> None:
    first, *_, last = read_ports(_cards(tmp_path))
    assert (first.tx_bytes, first.rx_bytes) == (4 * 1009, 4 * 2003)
    assert (first.speed_hz, first.width, first.up, first.state) == (400 * GBIT, 4, True, "ACTIVE")
    assert first.errors == PortErrors(
        symbol_errors=7,
        link_downed=3,
        crc_errors=11 + 2 + 5,
        retransmits=13 + 17 + 0 + 1,
        out_of_sequence=19,
        cnp=23 + 29,
    )
    assert (last.tx_bytes, last.rx_bytes, last.speed_hz, last.up) == (101, 103, 100 * GBIT, True)
    assert last.errors == PortErrors(link_downed=2, crc_errors=31)


@pytest.mark.parametrize(
    ("files", "name", "expected"),
    [
        ({"hw_counters/tx_bytes": "17", "hw_counters/rx_bytes": "19"}, "tx_bytes", 17),
        ({"counters/port_xmit_data": "N/A (no PMA)"}, "tx_bytes", None),
        ({"state": "1: DOWN"}, "up", False),
        ({"rate": "garbage"}, "speed_hz", 0.0),
    ],
)
def test_a_port_that_counts_differently(tmp_path: Path, files: dict[str, str], name: str, expected: object) -> None:
    put(tmp_path, {f"sys/class/infiniband/efa_0/ports/1/{file}": text for file, text in files.items()})
    assert getattr(read_ports(tmp_path)[0], name) == expected


def test_every_counter_is_known_by_its_own_name_to_whoever_reads_once(tmp_path: Path) -> None:
    """What the sweep reads: the devices alone, without their interfaces."""
    put(
        _cards(tmp_path),
        {"sys/class/infiniband/mlx5_0/board_id": "MT_0001", "sys/class/infiniband/mlx5_0/ports/1/counters/n": "-"},
    )
    first, second = read_ports(tmp_path, interfaces=False)
    assert (first.number, first.board, first.physical, first.rate_gbps) == ("mlx5_0/1", "MT_0001", "LinkUp", 400.0)
    assert {name: first.count(name) for name in ("symbol_error", "np_cnp_sent", "n", "absent")} == {
        "symbol_error": 7, "np_cnp_sent": 23, "n": None, "absent": None,
    }  # fmt: skip
    assert (second.number, second.interfaces, second.board) == ("mlx5_10/1", (), "")


def test_a_port_of_several_on_one_function_goes_by_its_own_interface(tmp_path: Path) -> None:
    # GIVEN a function with two ports, and the representor of a virtual function, all without a carrier
    card = pci(tmp_path, "pci0000:00/0000:02:00.0", "0x020000")
    down = {"state": "1: DOWN", "phys_state": "3: Disabled", "link_layer": "Ethernet"}
    ib(tmp_path, "mlx4_0", card, **down)
    put(tmp_path, {f"sys/class/infiniband/mlx4_0/ports/2/{name}": text for name, text in down.items()})
    ethernet(tmp_path, "eth0", card, dev_port="0", flags="0x1002", carrier="", phys_port_name="p0")
    ethernet(tmp_path, "eth1", card, dev_port="1", flags="0x1003", carrier="0", phys_port_name="p1")
    ethernet(tmp_path, "eth2", card, dev_port="0", flags="0x1003", carrier="0", phys_port_name="pf0vf0")
    for name in ("eth0", "eth1", "eth2"):
        (card / "net" / name).mkdir(parents=True)
    assert [(port.number, port.off) for port in read_ports(tmp_path)] == [("mlx4_0/1", True), ("mlx4_0/2", False)]


def test_the_only_interface_of_an_only_port_is_its_own_however_its_driver_numbers_it(tmp_path: Path) -> None:
    # GIVEN the second function of a card whose driver counts the card's ports, with a representor, and the cable pulled
    card = pci(tmp_path, "pci0000:00/0000:3b:00.1", "0x020000")
    ib(tmp_path, "bnxt_re1", card, state="1: DOWN", phys_state="3: Disabled", link_layer="Ethernet")
    ethernet(tmp_path, "eth1", card, dev_port="1", flags="0x1003", carrier="0")
    ethernet(tmp_path, "eth2", card, dev_port="1", flags="0x1003", carrier="0", phys_port_name="pf1vf0")
    for name in ("eth1", "eth2"):
        (card / "net" / name).mkdir(parents=True)
    assert [port.off for port in read_ports(tmp_path, interfaces=False)] == [False]


def test_a_port_whose_interface_is_in_a_pod_does_not_go_by_that_of_the_other_port(tmp_path: Path) -> None:
    card = pci(tmp_path, "pci0000:00/0000:02:00.0", "0x020000")
    down = {"state": "1: DOWN", "phys_state": "3: Disabled", "link_layer": "Ethernet"}
    ib(tmp_path, "mlx4_0", card, **down)
    put(tmp_path, {f"sys/class/infiniband/mlx4_0/ports/2/{name}": text for name, text in down.items()})
    ethernet(tmp_path, "eth1", card, dev_port="1", flags="0x1003", carrier="0")
    (card / "net/eth1").mkdir(parents=True)
    assert [port.off for port in read_ports(tmp_path, interfaces=False)] == [True, False]


def test_a_host_without_network_cards_has_no_ports(tmp_path: Path) -> None:
    assert read_ports(tmp_path) == ()


@given(st.text(max_size=60))
def test_any_rate_text_is_a_speed_or_nothing(text: str) -> None:
    speed, width = parse_rate(text)
    assert speed >= 0 and (width is None or 0 < width < 100)


@pytest.mark.parametrize(
    ("text", "gbps", "width"),
    [
        ("100 Gb/sec (4X EDR)", 100, 4),
        ("2.5 Gb/sec (1X SDR)", 2.5, 1),
        ("25 Gb/sec", 25, None),
        ("800 Gb/sec (4X XDR)", 800, 4),
    ],
)
def test_rates_as_the_kernel_writes_them(text: str, gbps: float, width: int | None) -> None:
    assert parse_rate(text) == (gbps * GBIT, width)


@pytest.mark.parametrize(
    ("bits", "gbps"), [((), 0), ((5,), 1), ((5, 36), 100), ((31, 80), 200), ((13, 14, 49), 0), ((116,), 800)]
)
def test_the_best_mode_of_a_card(bits: tuple[int, ...], gbps: float) -> None:
    mask = [sum(1 << bit % 32 for bit in bits if bit // 32 == word) for word in range(4)]
    assert best_mode_hz(mask) == gbps * GBIT


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**30 - 1))
def test_a_32_bit_counter_that_wraps_keeps_its_growth(before: int, step: int) -> None:
    after = (before + step) % 2**32
    assert growth(before, after) == (step if after >= before or before >= 3 * 2**30 else 0)


@given(st.lists(st.integers(0, 2**63), min_size=1, max_size=23))
def test_growth_never_is_negative_and_a_series_never_falls(values: list[int]) -> None:
    line = cumulative(values)
    assert all(before <= after for before, after in itertools.pairwise(line))
    assert len(values) == 1 or total_growth(values) == line[-1] - line[0] >= 0


def test_growth_needs_two_values() -> None:
    assert [total_growth(values) for values in ([], [7], [None, 7, None], [7, None, 11])] == [None, None, None, 4]


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 100)))
def test_the_first_group_that_counts_is_summed(counts: dict[str, int]) -> None:
    found = errors_of({"pause": (("a", "b"), ("c",))}, counts)
    first = counts.get("a", 0) + counts.get("b", 0) if {"a", "b"} & set(counts) else counts.get("c")
    assert found["pause"] == first and set(found) == set(ERROR_NAMES)


def _port(up: bool, speed: float, errors: int, tx: int, kind: str = "infiniband") -> Port:
    return Port("mlx5_0", "mlx5_0", 1 if kind == "infiniband" else 0, kind, "", up, "", speed, 0.0, 4, None, tx, 0,
                PortErrors(link_downed=errors))  # fmt: skip


def test_a_flapping_port_and_a_counter_that_is_reset() -> None:
    readings = [
        (place * 10**9, _port(up, speed, errors, tx))
        for place, (up, speed, errors, tx) in enumerate(
            [(True, 50.0, 5, 100), (False, 50.0, 6, 100), (True, 12.5, 6, 130), (True, 50.0, 0, 7), (True, 50.0, 2, 11)]
        )
    ]
    found = growth_of(readings, [PortErrors(pause=3), PortErrors(pause=10)])
    assert (found.errors.link_downed, found.errors.pause, found.tx_bytes) == (1 + 2, 7, 30 + 4)
    assert (found.speed_hz, found.readings, found.down_readings, found.changes, found.seconds) == (12.5, 5, 1, 2, 4.0)


def test_a_drivers_own_count_stands_in_for_an_interface_and_adds_to_a_device() -> None:
    statistics = [PortErrors(link_downed=1), PortErrors(link_downed=8)]
    for kind, expected in (("infiniband", 2 + 7), ("ethernet", 2)):
        readings = [(0, _port(True, 1.0, 3, 0, kind)), (1, _port(True, 1.0, 5, 0, kind))]
        assert growth_of(readings, statistics).errors.link_downed == expected


def _send(port: Path, seconds: float) -> int:
    """Have its counter of sent words grow by 1 GB every 10 ms; its value at the end."""
    deadline, words = time.monotonic() + seconds, 0
    with (port / "counters/port_xmit_data").open("r+") as file:
        while time.monotonic() < deadline:
            words += 250_000_000
            file.seek(0)
            file.write(f"{words}\n")
            file.flush()
            time.sleep(0.01)
    return words


def test_a_series_and_a_burst_when_bytes_move(tmp_path: Path) -> None:
    port = ib(tmp_path, "mlx5_0", None, counters__port_xmit_data="0")
    sampler = PortSampler(series_hz=7.0, burst_hz=200.0, burst_s=0.2, burst_every_s=0.3, root=tmp_path)
    sampler.start()
    words = _send(port, 1.9)
    found = sampler.stop().ports[0]
    assert found.growth.tx_bytes == 4 * words - (found.growth.first.tx_bytes or 0)
    assert found.series.tx_bytes[-1] == 4 * words
    assert found.growth.readings >= 7 and len(found.bursts) >= 2
    # The last one may be cut short by the end of the window.
    assert all(len(burst.time_ns) > 7 and burst.tx_bytes[-1] > burst.tx_bytes[0] for burst in found.bursts[:-1])


@pytest.mark.parametrize(("words_before", "bursts"), [(10**9, 3), (1000, 1)])
def test_a_busy_port_that_was_silent_in_a_burst_gets_two_more_at_once(
    tmp_path: Path, words_before: int, bursts: int
) -> None:
    port = ib(tmp_path, "mlx5_0", None, counters__port_xmit_data="0")
    before = ib(tmp_path, "mlx5_1", None, counters__port_xmit_data="0")
    sampler = PortSampler(series_hz=7.0, burst_hz=200.0, burst_s=0.05, burst_every_s=11.0, root=tmp_path)
    sampler.start()
    time.sleep(0.3)
    (before / "counters/port_xmit_data").write_text(f"{words_before}\n")
    _send(port, 2.3)
    assert [len(each.bursts) for each in sampler.stop().ports] == [bursts, bursts]


def test_without_traffic_no_burst_is_taken_unless_asked_for(tmp_path: Path) -> None:
    ib(tmp_path, "mlx5_0", None)
    sampler = PortSampler(burst_s=0.1, burst_every_s=0.2, root=tmp_path)
    sampler.start()
    time.sleep(0.5)
    sampler.burst()
    time.sleep(0.3)
    assert len(sampler.stop().ports[0].bursts) == 1


def test_a_host_without_ports_says_so(tmp_path: Path) -> None:
    sampler = PortSampler(root=tmp_path)
    sampler.start()
    found = sampler.stop()
    assert found.ports == () and "no physical ones" in found.missing[0]
