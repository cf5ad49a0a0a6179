"""Ports over several sweeps: what was seen is known until it is seen otherwise, and what is said of each."""

from __future__ import annotations

from pathlib import Path

import pytest
from sweep_trees import NOW_S, host, ib, look, look_all, nic, remember, state_of, twice
from test_host_checks import CARD, IB, NET, PORTS, card, no_link, without


@pytest.mark.parametrize("identifier", PORTS)
def test_a_port_that_returns_without_a_link_has_lost_it(tmp_path: Path, identifier: str) -> None:
    card(host(tmp_path))
    known = look_all(tmp_path, identifier)
    (tmp_path / "sys/class").rename(tmp_path / "away")
    gone = look_all(tmp_path, identifier, remember(known), NOW_S + 300)
    (tmp_path / "away").rename(tmp_path / "sys/class")
    no_link(tmp_path, "cable")
    assert state_of(look(tmp_path, identifier, remember(gone), NOW_S + 600)) == "critical"


@pytest.mark.parametrize("identifier", PORTS)
def test_a_lost_link_stays_lost_and_the_port_is_missed_when_it_goes_too(tmp_path: Path, identifier: str) -> None:
    card(host(tmp_path))
    seen = look_all(tmp_path, identifier)
    no_link(tmp_path, "cable")
    for seconds in (300, 600):
        seen = look_all(tmp_path, identifier, remember(seen), NOW_S + seconds)
        assert state_of(seen.findings) == "critical"
    without(tmp_path)
    gone = look(tmp_path, identifier, remember(seen), NOW_S + 900)
    assert [(one.state, one.value) for one in gone] == [("warning", "absent")]


@pytest.mark.parametrize("identifier", PORTS)
def test_a_port_that_never_had_a_link_loses_none(tmp_path: Path, identifier: str) -> None:
    card(host(tmp_path))
    no_link(tmp_path, "cable")
    seen = look_all(tmp_path, identifier)
    for seconds in (300, 600):
        assert state_of(seen.findings) == "ok"
        seen = look_all(tmp_path, identifier, remember(seen), NOW_S + seconds)


@pytest.mark.parametrize(
    ("identifier", "virtual", "said"),
    [
        ("ib.port", False, "the port is lost"),
        ("ib.port", True, "the link of a virtual function is lost"),
        ("net.link", False, "the link is lost"),
        ("net.link", True, "the link of a virtual function is lost"),
    ],
)
def test_whose_link_is_lost_is_said(tmp_path: Path, identifier: str, virtual: bool, said: str) -> None:
    card(host(tmp_path))
    if virtual:
        (tmp_path / CARD / "physfn").mkdir()
    known = remember(look_all(tmp_path, identifier))
    no_link(tmp_path, "cable")
    assert [one.why for one in look(tmp_path, identifier, known, NOW_S + 300)] == [said]


OFF = {f"{IB}/state": "1: DOWN\n", f"{IB}/phys_state": "3: Disabled\n"}


def test_who_may_have_switched_a_port_off_is_said(tmp_path: Path) -> None:
    (infiniband,) = twice(host(tmp_path, ib("mlx5_0")), "ib.port", OFF)
    assert infiniband.why == "somebody switched it off"
    (roce,) = twice(host(tmp_path, {**ib("mlx5_0"), f"{IB}/link_layer": "Ethernet"}), "ib.port", OFF)
    assert roce.why == "somebody switched it off, or its interface is in another namespace or switched off"


def test_of_ports_that_are_wanted_it_is_said_how_many_are_switched_off(tmp_path: Path) -> None:
    found = twice(host(tmp_path, ib("mlx5_0")), "ib.port", OFF, ports=1.0)
    assert [one.why for one in found if one.unit] == ["fewer ports than this host should have; 1 are switched off"]
    (none,) = look(host(tmp_path / "other"), "ib.port", ports=1.0)
    assert none.why == "fewer ports than this host should have"


@pytest.mark.parametrize(
    ("change", "why", "action"),
    [
        ({"rx_errors": "900"}, "900 errors since the last sweep", "Check cable and transceiver."),
        ({"rx_errors": "900", "rx_crc_errors": "700"}, "900 errors, 700 of them CRC since the last sweep", "Check cable and transceiver."),
        ({"rx_dropped": "90000"}, "90000 drops since the last sweep", "Raise ring buffers; check who floods it."),
        ({"rx_dropped": "90000", "rx_crc_errors": "1"}, "90000 drops since the last sweep", "Raise ring buffers; check who floods it."),
    ],
)  # fmt: skip
def test_what_an_interface_loses_is_said(tmp_path: Path, change: dict[str, str], why: str, action: str) -> None:
    host(
        tmp_path,
        nic("eth0", **{"statistics/rx_dropped": "0", "statistics/tx_errors": "0", "statistics/tx_dropped": "0"}),
    )
    after = {f"{NET}/statistics/{name}": text for name, text in {"rx_packets": "2000000", **change}.items()}
    (one,) = twice(tmp_path, "net.errors", after)
    assert (one.why, one.action) == (why, action)


@pytest.mark.parametrize(
    ("settings", "said"), [({}, "100000 Mbit/s (an equal card)"), ({"mbps": 50000.0}, "50000 Mbit/s (its setting)")]
)
def test_why_a_speed_is_expected_is_said(tmp_path: Path, settings: dict[str, float], said: str) -> None:
    host(tmp_path, {**nic("eth0"), **nic("eth1", speed="25000")})
    slow = [one for one in look(tmp_path, "net.speed", **settings) if one.state == "warning"]
    assert [one.expected for one in slow] == [said]
    host(tmp_path / "alone", nic("eth0"))
    (before,) = twice(tmp_path / "alone", "net.speed", {f"{NET}/speed": "25000"})
    assert before.expected == "100000 Mbit/s (an earlier sweep)"
