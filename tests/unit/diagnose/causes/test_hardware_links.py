"""The transfer is long: the port that is low and flat is named, with what its counters say; a healthy one never is."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import first
from hardware_builders import BYTES_PER_STEP, NIC_HZ, NUMBERS, NVLINK_HZ, Machine, gpu, named, nic, pci

from rankscope.diagnose.face.cli.report import report

RATE = 0.25  # of its peers'
SLOW_NIC = 0.8 * NIC_HZ * RATE
SLOW_NVLINK = BYTES_PER_STEP / 0.3  # so slow that it is what the ring waits for


def of_nic(rank: int, **counters: float) -> dict[tuple[int, str], float]:
    return {(rank, "nic.burst_hz"): SLOW_NIC, (rank, "nic.collective_sigma"): 0.04} | {
        (rank, f"nic.{name}"): value for name, value in counters.items()
    }


def of_nvlink(rank: int, **counters: float) -> dict[tuple[int, str], float]:
    return {(rank, "nvlink.burst_hz"): SLOW_NVLINK, (rank, "nvlink.collective_sigma"): 0.04} | {
        (rank, f"nvlink.{name}"): value for name, value in counters.items()
    }


FAULTS: dict[str, tuple[str, str, Any]] = {
    "NIC at a quarter of its speed": ("nic", "speed-degraded", lambda r: of_nic(r, speed_hz=NIC_HZ / 4)),
    "NIC with one lane": ("nic", "speed-degraded", lambda r: of_nic(r, speed_hz=NIC_HZ / 4, width=1.0)),
    "symbol errors": ("nic", "errors", lambda r: of_nic(r, symbol_errors=900.0)),
    "CRC errors and retransmissions": ("nic", "errors", lambda r: of_nic(r, crc_errors=900.0, retransmits=5000.0)),
    "pauses": ("nic", "slow", lambda r: of_nic(r, pause=9e4)),
    "loss in the network": ("network", "loss", lambda r: of_nic(r, retransmits=5000.0, out_of_sequence=5000.0)),
    "nothing reported": ("network", "slow-link", of_nic),
    "NIC behind a narrow PCIe link": ("pcie", "link-degraded", lambda r: of_nic(r) | {(r, "pcie.width"): 4.0}),
    "NIC behind a PCIe link that errs": ("pcie", "errors", lambda r: of_nic(r) | {(r, "pcie.replays"): 5e4}),
    "NVLinks down": ("nvlink", "down", lambda r: of_nvlink(r, links_down=12.0)),
    "NVLink errors": ("nvlink", "errors", lambda r: of_nvlink(r, errors=900.0)),
    "NVLink slow": ("nvlink", "slow", of_nvlink),
}  # fmt: skip
INSTANCES = {"nic": nic, "network": nic, "nvlink": gpu, "pcie": pci}


@pytest.mark.parametrize("ranks", NUMBERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_slow_port_is_named_and_no_rank_is_odd(fault: str, ranks: int) -> None:
    # GIVEN a ring that one port holds up, so that every rank stays long in collectives
    component, cause, counters = FAULTS[fault]
    culprit = ranks - 1
    machine = Machine(ranks=ranks, seed=ranks, transfer=1 / RATE, counters=counters(culprit))
    # WHEN it is judged
    verdict = machine.verdict()
    # THEN the port is named, alone, and costs no more than the transfer
    assert named(verdict) == [(component, cause, INSTANCES[component](culprit), (culprit,))], verdict.notes
    suspect = first(verdict)
    assert verdict.status == "fault" and suspect.function is None
    assert 0.05 < suspect.lost_seconds_per_step < 0.4 and suspect.confidence > 0.4
    assert suspect.action and all(len(line) <= 80 for line in report(verdict))


@pytest.mark.parametrize("ranks", NUMBERS)
def test_a_port_that_flaps_is_down(ranks: int) -> None:
    # GIVEN a NIC that was down for a tenth of the window, several times, and is as fast as its peers while it is up
    counters = {(1, "nic.state"): 0.9, (1, "nic.link_downed"): 7.0}
    verdict = Machine(ranks=ranks, transfer=1.5, counters=counters).verdict()
    assert named(verdict) == [("nic", "down", nic(1), (1,))]


def test_a_flap_that_no_state_sample_saw_is_seen_in_the_steps() -> None:
    # GIVEN a NIC that lost its link 9 times, and 12 of 45 steps that took half a second longer in collectives
    windows = Machine(counters={(1, "nic.link_downed"): 9.0}).windows()
    rows = windows[0].steps.to_pylist()
    for row in rows:
        if row["step"] % 4 == 1:
            row["seconds"] += 0.5
            row["wait_s"] += 0.5
    verdict = builders_verdict(windows[0], rows)
    assert named(verdict) == [("nic", "down", nic(1), (1,))]


def builders_verdict(window: Any, rows: list[dict[str, Any]]) -> Any:
    from rankscope.diagnose.infer.solve.judge import diagnose

    return diagnose([builders.columns(window, "steps", rows)])


@pytest.mark.parametrize("ranks", [8, 97])
def test_a_port_that_never_was_up_costs_what_another_one_carries(ranks: int) -> None:
    counters = {(1, "nic.state"): 0.0, (1, "nic.tx_bytes"): 0.0, (1, "nic.rx_bytes"): 0.0, (1, "nic.burst_hz"): float("nan"),
                (2, "nic.tx_bytes"): 2 * BYTES_PER_STEP * 45}  # fmt: skip
    assert named(Machine(ranks=ranks, transfer=2.0, counters=counters).verdict()) == [("nic", "down", nic(1), (1,))]
    # AND nothing, where nobody carries more
    del counters[2, "nic.tx_bytes"]
    assert not Machine(ranks=ranks, counters=counters).verdict().suspects


def test_two_slow_ports_share_what_the_slowest_costs() -> None:
    counters = {**of_nic(2, speed_hz=NIC_HZ / 4), **of_nic(5, crc_errors=900.0), (5, "nic.burst_hz"): 1.5 * SLOW_NIC}
    verdict = Machine(transfer=1 / RATE, counters=counters).verdict()
    assert {(s.component, s.cause, s.ranks) for s in verdict.suspects} == {
        ("nic", "speed-degraded", (2,)),
        ("nic", "errors", (5,)),
    }
    assert sum(s.lost_seconds_per_step for s in verdict.suspects) < 0.32
    assert verdict.suspects[0].ranks == (2,)


def test_a_slow_rank_and_a_slow_port_are_both_named() -> None:
    verdict = Machine(transfer=1 / RATE, kernels={6: 1.5}, counters=of_nic(2, speed_hz=NIC_HZ / 4)).verdict()
    assert {(s.component, s.ranks) for s in verdict.suspects} == {("gpu", (6,)), ("nic", (2,))}


def test_rates_that_nobody_measured_are_taken_from_the_speed() -> None:
    machine = Machine(transfer=1 / RATE, counters={(3, "nic.speed_hz"): NIC_HZ / 4},
                      without=("nic.burst", "nic.collective", "nvlink.burst"))  # fmt: skip
    suspect = first(machine.verdict())
    assert (suspect.component, suspect.cause, suspect.ranks) == ("nic", "speed-degraded", (3,))
    assert suspect.confidence < first(Machine(transfer=4, counters=of_nic(3, speed_hz=NIC_HZ / 4)).verdict()).confidence


def test_pcie_between_gpus_is_judged_where_there_is_no_other_way() -> None:
    counters = {(3, "pcie.width"): 2.0, (3, "pcie.burst_hz"): 5e9, (3, "pcie.rx_bytes"): 2e9 * 45}
    machine = Machine(transfer=4.0, counters=counters, without=("nic.", "nvlink."))
    assert named(machine.verdict()) == [("pcie", "link-degraded", pci(3), (3,))]
    # AND not where NICs and NVLinks move the job's data, as fast as ever
    assert not Machine(transfer=4.0, counters=counters).verdict().suspects


# ---- what acquits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "everywhere",
    [
        {"nic.speed_hz": NIC_HZ / 4, "nic.burst_hz": SLOW_NIC}, {"nic.symbol_errors": 900.0}, {"nic.retransmits": 9e3},
        {"nic.link_downed": 3.0}, {"nic.state": 0.9}, {"nvlink.links_down": 6.0}, {"nvlink.errors": 900.0}, {"pcie.width": 4.0},
    ],
    ids=lambda each: next(iter(each)),
)  # fmt: skip
def test_what_moved_on_all_ports_accuses_none(everywhere: dict[str, float]) -> None:
    for ranks in (2, 8):
        verdict = Machine(ranks=ranks, transfer=4.0, everywhere=everywhere).verdict()
        assert (verdict.status, verdict.suspects) == ("healthy", ()), named(verdict)


@pytest.mark.parametrize(
    "name", ["nic.symbol_errors", "nic.crc_errors", "nic.retransmits", "nic.pause", "nvlink.errors"]
)
def test_errors_on_a_port_as_fast_as_its_peers_accuse_nobody(name: str) -> None:
    verdict = Machine(transfer=4.0, counters={(3, name): 5e4}).verdict()
    assert not verdict.suspects


def test_a_slow_port_that_moves_little_is_not_what_the_transfer_waits_for() -> None:
    counters = of_nic(3) | {(3, "nic.tx_bytes"): 1e9, (3, "nic.rx_bytes"): 1e9}
    assert not Machine(transfer=4.0, counters=counters).verdict().suspects


def test_a_port_that_bursts_more_than_its_peers_is_not_limited_by_its_link() -> None:
    assert not Machine(transfer=4.0, counters=of_nic(3) | {(3, "nic.collective_sigma"): 0.45}).verdict().suspects


def test_a_short_transfer_is_nobodys_problem() -> None:
    assert not Machine(transfer=0.2, counters=of_nic(3, speed_hz=NIC_HZ / 4)).verdict().suspects


@pytest.mark.parametrize("ranks", [8, 97])
def test_ports_of_two_speeds_are_compared_with_their_own_kind(ranks: int) -> None:
    # GIVEN a third of the NICs of a model with a quarter of the speed, as fast as they can
    slow = range(0, ranks, 3)
    machine = Machine(
        ranks=ranks, transfer=4.0, limits={(r, "nic.speed_hz"): NIC_HZ / 4 for r in slow},
        counters={(r, "nic.burst_hz"): SLOW_NIC for r in slow} | {(r, "nic.speed_hz"): NIC_HZ / 4 for r in slow},
    )  # fmt: skip
    assert not machine.verdict().suspects


@pytest.mark.parametrize("ranks", [8, 97])
def test_a_port_that_does_not_say_what_it_could_do_is_compared_with_all(ranks: int) -> None:
    # GIVEN InfiniBand, where the only speed that is told is the present one
    machine = Machine(
        ranks=ranks, transfer=4.0, counters=of_nic(3, speed_hz=NIC_HZ / 4), limits={(3, "nic.speed_hz"): NIC_HZ / 4}
    )
    verdict = machine.verdict()
    assert named(verdict) == [("nic", "speed-degraded", nic(3), (3,))]
    assert not any("capability" in evidence.measure for evidence in first(verdict).evidence)


def test_a_port_that_several_ranks_share_belongs_to_all_of_them() -> None:
    # GIVEN one NIC for two ranks each, whose counters are nobody's
    columns = {rank: {"nics": ["eth0", nic(rank - rank % 2)]} for rank in range(8)}
    without_odd = {(rank, "nic.tx_bytes"): float("nan") for rank in (1, 3, 5, 7)}
    machine = Machine(
        transfer=4.0, counters=of_nic(2, speed_hz=NIC_HZ / 4) | without_odd, columns=columns, of_nobody=("nic.",)
    )
    assert named(machine.verdict()) == [("nic", "speed-degraded", nic(2), (2, 3))]


def test_two_ports_as_slow_as_each_other_are_the_ends_of_one_link() -> None:
    counters = of_nic(1) | of_nic(5)
    verdict = Machine(transfer=4.0, counters=counters).verdict()
    assert [(s.component, s.cause, s.ranks) for s in verdict.suspects] == [("network", "slow-link", (1, 5))]


def test_a_port_that_is_a_little_slow_and_flat_beside_bursts() -> None:
    low, many = {(3, "nic.burst_hz"): 0.7 * 0.8 * NIC_HZ}, {"nic.tx_bytes": 45 * 16e9}
    assert not Machine(transfer=6.0, counters=low, everywhere=many).verdict().suspects
    verdict = Machine(transfer=6.0, counters=low | {(3, "nic.collective_sigma"): 0.05}, everywhere=many).verdict()
    assert named(verdict) == [("network", "slow-link", nic(3), (3,))]


@pytest.mark.parametrize(
    ("name", "value", "cause"), [("nvlink.links_down", 14.0, "down"), ("nvlink.errors", 900.0, "errors")]
)
def test_an_nvlink_whose_rate_does_not_show_it_is_told_by_the_waiting_of_nics(
    name: str, value: float, cause: str
) -> None:
    # GIVEN rates of NVLink that are alike, being means over many steps of the ring, and NICs that burst and wait
    waiting = {"nic.collective_mu": 0.3}
    assert named(Machine(transfer=4.0, counters={(3, name): value}, everywhere=waiting).verdict()) == [
        ("nvlink", cause, "gpu3", (3,))
    ]
    # AND where NICs move all the time, it is felt by nobody
    assert not Machine(transfer=4.0, counters={(3, name): value}).verdict().suspects
    # AND neither where the peers have as many
    assert not Machine(transfer=4.0, everywhere={name: value, **waiting}).verdict().suspects


def test_an_nvlink_in_a_job_without_nics_is_told_by_the_bytes() -> None:
    # GIVEN links that need a few milliseconds for the bytes of a step, and collectives of 0.4 s
    machine = Machine(transfer=4.0, counters={(3, "nvlink.links_down"): 14.0}, without=("nic.",))
    assert named(machine.verdict()) == [("nvlink", "down", "gpu3", (3,))]
    # AND bytes that need as long
    machine.everywhere = {"nvlink.tx_bytes": 0.4 * 0.8 * NVLINK_HZ * 45}
    assert not machine.verdict().suspects


def test_a_port_that_flaps_and_is_slow_costs_both() -> None:
    counters = {(1, "nic.state"): 0.99, (1, "nic.link_downed"): 5.0} | of_nic(1)
    verdict = Machine(transfer=4.0, counters=counters).verdict()
    assert named(verdict) == [("nic", "down", nic(1), (1,))] and first(verdict).lost_seconds_per_step > 0.1


def test_interfaces_of_tcp_flows_are_judged_by_their_flows() -> None:
    # GIVEN eth0, which carries the job's TCP connections, with a low rate and nothing wrong by its flows
    row = {"scope": "nic", "instance": "eth0", "kind": "gauge"}
    more = [{**row, "rank": r, "name": "nic.burst_hz", "value": 1e8 if r == 3 else 1e9} for r in range(8)]
    more += [{**row, "rank": r, "name": "nic.tx_bytes", "kind": "delta", "value": 9e10} for r in range(8)]
    machine = Machine(transfer=4.0, more=more, without=("nic.", "nvlink."), job={"namespaces": 8})
    assert not machine.verdict().suspects


def test_half_the_ports_without_counters() -> None:
    verdict = Machine(transfer=4.0, counters=of_nic(3, speed_hz=NIC_HZ / 4), blind=(0, 1, 2, 5)).verdict()
    assert named(verdict) == [("nic", "speed-degraded", nic(3), (3,))]
    assert not Machine(transfer=4.0, blind=(0, 1, 2, 5)).verdict().suspects


SILENT = (
    "nic.burst_hz",
    "nic.collective_mu",
    "nic.tx_bytes",
    "nic.rx_bytes",
)  # so that the speed alone says what a port costs


def test_a_speed_that_is_nothing_beside_its_peers_is_still_a_share_of_theirs() -> None:
    # GIVEN speeds that no port has, of which one by the other is less than any number
    speeds = {(rank, "nic.speed_hz"): 1e-18 if rank == 3 else 8e307 for rank in range(8)}
    verdict = Machine(transfer=4.0, counters=speeds, without=SILENT).verdict()
    assert named(verdict) == [("nic", "speed-degraded", nic(3), (3,))] and first(verdict).lost_seconds_per_step < 1


def test_a_port_that_could_be_endlessly_fast_is_not_below_its_speed() -> None:
    machine = Machine(ranks=2, transfer=4.0, limits={(1, "nic.speed_hz"): float("inf")}, without=SILENT)
    assert ("nic", "speed-degraded", nic(1), (1,)) not in named(machine.verdict())
