"""A rank's kernels or copies take longer: the counter that explains it names the cause, one that does not acquits."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import first, said
from hardware_builders import (
    BYTES_PER_STEP,
    CAP_W,
    CLOCK_HZ,
    COPY_S,
    KERNEL_S,
    NIC_HZ,
    NUMBERS,
    PCIE_HZ,
    TRANSFER_S,
    Machine,
    gpu,
    named,
    pci,
)

from rankscope.diagnose.face.cli.report import report
from rankscope.diagnose.infer.causes.causes import CAUSES
from rankscope.diagnose.infer.causes.host import gpu_users
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.model.evidence.event_words import event_words
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.diagnose.infer.verdict.sentence import sentence_of

SLOW = 0.65  # of the speed
CLOCK = SLOW * 0.97 * CLOCK_HZ


def foreign(rank: int, active: float | None = 0.35, memory: float = 20e9) -> list[dict[str, Any]]:
    who = {"scope": "gpu", "instance": gpu(rank), "comm": "mine-coins", "pid": 4242, "rank": rank, "kind": "gauge"}
    rows = [{**who, "name": "gpu.foreign_memory_bytes", "value": memory}]
    return rows + ([] if active is None else [{**who, "name": "gpu.foreign_active", "value": active}])


def xid(rank: int, number: int, count: float = 1.0) -> dict[str, Any]:
    return {"scope": "gpu", "instance": gpu(rank), "rank": rank, "name": f"gpu.xid.{number}", "value": count}


def throttled(rank: int, reason: str, **more: float) -> dict[str, Any]:
    counters = {(rank, "gpu.sm_clock_hz"): CLOCK, (rank, f"gpu.throttle.{reason}_s"): 18.0}
    return {"kernels": {rank: 1 / SLOW}, "counters": {**counters, **{(rank, f"gpu.{k}"): v for k, v in more.items()}}}


# fault: (component, cause, instance or None for the GPU, what the machine looks like)
FAULTS: dict[str, tuple[str, str, Any]] = {
    "hot": ("gpu", "throttled-thermal", lambda r: throttled(r, "hw_thermal", temperature_c=88.0)),
    "hot, by software": ("gpu", "throttled-thermal", lambda r: throttled(r, "sw_thermal", temperature_c=86.0)),
    "power cap bit": ("gpu", "throttled-power", lambda r: throttled(r, "power_cap", power_w=CAP_W)),
    "power brake": ("gpu", "throttled-power", lambda r: throttled(r, "power_brake")),
    "hardware slow-down, hot": ("gpu", "throttled-thermal", lambda r: throttled(r, "hw_slowdown", temperature_c=86.0)),
    "hardware slow-down, cool": ("gpu", "throttled-power", lambda r: throttled(r, "hw_slowdown")),
    "lowered power cap": ("gpu", "throttled-power",
        lambda r: {"kernels": {r: 1 / SLOW}, "counters": {(r, "gpu.sm_clock_hz"): CLOCK, (r, "gpu.power_cap_w"): 0.5 * CAP_W}}),
    "application clocks": ("gpu", "clock-low", lambda r: throttled(r, "app_clocks")),
    "locked clock, no reason": ("gpu", "clock-low", lambda r: {"kernels": {r: 1 / SLOW}, "counters": {(r, "gpu.sm_clock_hz"): CLOCK}}),
    "corrected errors storm": ("gpu", "ecc-errors", lambda r: {"kernels": {r: 1.4}, "counters": {(r, "gpu.ecc_corrected"): 900.0}}),
    "uncorrected error": ("gpu", "ecc-errors", lambda r: {"kernels": {r: 1.4}, "counters": {(r, "gpu.ecc_uncorrected"): 1.0}}),
    "memory Xid": ("gpu", "ecc-errors", lambda r: {"kernels": {r: 1.4}, "more": [xid(r, 92)]}),
    "hardware Xid": ("gpu", "xid", lambda r: {"kernels": {r: 1.4}, "more": [xid(r, 119)]}),
    "Xid, and nothing holds the clock down": ("gpu", "xid",
        lambda r: {"kernels": {r: 1 / SLOW}, "counters": {(r, "gpu.sm_clock_hz"): CLOCK}, "more": [xid(r, 62, 6.0)]}),
    "Xid, and heat holds the clock down": ("gpu", "throttled-thermal",
        lambda r: {**throttled(r, "hw_thermal"), "more": [xid(r, 63)]}),
    "another process": ("gpu", "contended", lambda r: {"kernels": {r: 1 / 0.65}, "more": foreign(r)}),
    "another process, use not measured": ("gpu", "contended",
        lambda r: {"kernels": {r: 1.4}, "more": foreign(r, None), "without": ("gpu.foreign_active",)}),
    "nothing reported": ("gpu", "slow", lambda r: {"kernels": {r: 1.4}}),
    "PCIe at a quarter of its width": ("pcie", "link-degraded", lambda r: {"copies": {r: 4.0}, "counters": {(r, "pcie.width"): 4.0}}),
    "PCIe three generations down": ("pcie", "link-degraded", lambda r: {"copies": {r: 4.0}, "counters": {(r, "pcie.speed_gts"): 8.0}}),
    "PCIe replays": ("pcie", "errors", lambda r: {"copies": {r: 3.0}, "counters": {(r, "pcie.replays"): 5e4}}),
    "PCIe AER": ("pcie", "errors", lambda r: {"copies": {r: 3.0}, "counters": {(r, "pcie.aer_nonfatal"): 3.0}}),
    "slow copies, nothing reported": ("pcie", "slow", lambda r: {"copies": {r: 3.0}}),
}  # fmt: skip


@pytest.mark.parametrize("ranks", NUMBERS)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_cause_and_the_device_are_named(fault: str, ranks: int) -> None:
    # GIVEN one rank of which kernels or copies take longer, with or without a counter that says why
    component, cause, machine = FAULTS[fault]
    culprit = ranks - 1 - ranks % 5 % 2
    # WHEN it is judged
    verdict = Machine(ranks=ranks, seed=ranks, **machine(culprit)).verdict()
    # THEN component, cause, rank and device come first and alone
    suspect = first(verdict)
    assert (verdict.status, suspect.component, suspect.cause, suspect.ranks) == (
        "fault",
        component,
        cause,
        (culprit,),
    ), verdict.notes
    assert len(verdict.suspects) == 1
    if (component, cause) != ("pcie", "slow"):
        assert suspect.instance.startswith(gpu(culprit) if component == "gpu" else pci(culprit))
    assert cause in CAUSES[component] and suspect.action and len(suspect.evidence) >= 3
    assert all(len(line) <= 80 for line in report(verdict))


@pytest.mark.parametrize("more", [1.0, 1.1, 1.4])
def test_kernels_that_grow_with_what_the_gpu_reads_are_an_imbalance(more: float) -> None:
    # GIVEN kernels that take 40 % longer, and a GPU that reads as much as its peers, a little more, or 40 % more
    verdict = Machine(kernels={3: 1.4}, counters={(3, "pcie.rx_bytes"): more * 45e9}).verdict()
    expected = ("workload", "data-imbalance") if more == 1.4 else ("gpu", "slow")
    assert (first(verdict).component, first(verdict).cause) == expected
    assert verdict.status == ("imbalance" if more == 1.4 else "fault")


def test_a_counter_of_the_gpu_beats_what_it_reads() -> None:
    machine = throttled(3, "hw_thermal")
    machine["counters"][3, "pcie.rx_bytes"] = 60e9
    assert first(Machine(**machine).verdict()).cause == "throttled-thermal"


@pytest.mark.parametrize("seed", range(3))
def test_a_counter_that_convicts_is_surer_than_behaviour_alone(seed: int) -> None:
    convicted = first(Machine(seed=seed, **throttled(2, "hw_thermal")).verdict())
    alone = first(Machine(seed=seed, kernels={2: 1 / SLOW}).verdict())
    assert convicted.confidence > alone.confidence
    measures = {evidence.measure for evidence in convicted.evidence}
    assert any("the counter explains" in measure for measure in measures) and any(
        "SM clock" in measure for measure in measures
    )


# ---- what acquits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "everywhere",
    [
        {"gpu.throttle.power_cap_s": 18.0}, {"gpu.throttle.hw_thermal_s": 18.0}, {"gpu.sm_clock_hz": CLOCK},
        {"gpu.ecc_corrected": 900.0}, {"gpu.power_cap_w": 0.5 * CAP_W}, {"gpu.foreign_active": 0.3},
    ],
    ids=lambda each: next(iter(each)),
)  # fmt: skip
def test_what_the_peers_have_as_much_acquits_the_device(everywhere: dict[str, float]) -> None:
    # GIVEN a slow GPU, and a counter that moved on every GPU alike
    verdict = Machine(kernels={5: 1.4}, everywhere=everywhere).verdict()
    # THEN the GPU is slow and nobody knows why; who uses all of them costs all ranks alike
    assert named(verdict)[0] == ("gpu", "slow", "gpu5", (5,))
    shared = [("gpu", "contended")] if "gpu.foreign_active" in everywhere else []
    assert [(one.component, one.cause) for one in verdict.suspects if one.scope != "rank"] == shared
    assert len(verdict.suspects) == 1 + len(shared)


def test_a_process_on_a_gpu_counts_once_however_many_ranks_use_that_gpu() -> None:
    both = [row | {"rank": rank} for rank in (0, 1) for row in foreign(0, 0.3)]
    another = [{**foreign(0, 0.2)[1], "comm": "mine-more", "pid": 4243}]
    fleet = gather(Machine(more=[*both, *another], without=("gpu.foreign_active",)).windows())
    share = gpu_users._share(fleet, fleet.counters.rows("gpu.foreign_active"))
    assert share.tolist() == pytest.approx([0.5] + [0.0] * 7)


def test_gpus_that_are_shared_on_several_hosts_are_told_of_all_ranks() -> None:
    verdict = Machine(ranks=16, everywhere={"gpu.foreign_active": 0.3}).verdict()
    assert [(one.component, one.cause, one.scope, one.host) for one in verdict.suspects] == [
        ("gpu", "contended", "all", "")
    ]
    assert sentence_of(verdict).startswith("All 16 ranks: somebody else uses the GPU as well, which costs ")


@pytest.mark.parametrize("everywhere", [{"pcie.width": 4.0}, {"pcie.replays": 5e4}, {"pcie.aer_correctable": 5e4}],
                         ids=lambda each: next(iter(each)))  # fmt: skip
def test_a_link_like_everybodys_is_not_why_copies_are_slow(everywhere: dict[str, float]) -> None:
    verdict = Machine(copies={5: 3.0}, everywhere=everywhere).verdict()
    assert [(s.component, s.cause, s.ranks) for s in verdict.suspects] == [("pcie", "slow", (5,))]


def test_a_clock_that_explains_little_of_the_excess_is_not_the_cause() -> None:
    # GIVEN kernels that take 60 % longer on a GPU whose clock is 6 % lower
    machine = Machine(kernels={5: 1.6}, counters={(5, "gpu.sm_clock_hz"): 0.94 * 0.97 * CLOCK_HZ})
    suspect = first(machine.verdict())
    # THEN the clock is shown and does not convict
    assert (suspect.component, suspect.cause) == ("gpu", "slow")
    assert any("SM clock" in evidence.measure for evidence in suspect.evidence)


def test_a_bit_without_a_lower_clock_is_not_the_cause() -> None:
    machine = Machine(kernels={5: 1.4}, counters={(5, "gpu.throttle.power_cap_s"): 19.0})
    assert named(machine.verdict()) == [("gpu", "slow", "gpu5", (5,))]


def test_an_xid_that_user_code_causes_is_no_cause() -> None:
    assert named(Machine(kernels={5: 1.4}, more=[xid(5, 31, 3.0)]).verdict()) == [("gpu", "slow", "gpu5", (5,))]


def test_a_monitor_on_the_gpu_is_no_neighbour() -> None:
    machine = Machine(kernels={5: 1.4}, more=foreign(5, None, 3e8), without=("gpu.foreign_active",))
    assert named(machine.verdict()) == [("gpu", "slow", "gpu5", (5,))]


MOVED: dict[str, dict[tuple[int, str], float]] = {
    "replays": {(3, "pcie.replays"): 5e4}, "narrow PCIe link": {(3, "pcie.width"): 4.0},
    "corrected errors": {(3, "gpu.ecc_corrected"): 900.0}, "flap": {(3, "nic.link_downed"): 1.0},
    "CRC errors": {(3, "nic.crc_errors"): 900.0}, "slow NIC speed": {(3, "nic.speed_hz"): 12.5e9},
    "NVLink down": {(3, "nvlink.links_down"): 4.0}, "NVLink errors": {(3, "nvlink.errors"): 900.0},
    "low clock": {(3, "gpu.sm_clock_hz"): CLOCK},
}  # fmt: skip


@pytest.mark.parametrize("what", MOVED)
def test_a_counter_that_moved_while_nobody_waits_is_a_note(what: str) -> None:
    for seed in range(3):
        verdict = Machine(seed=seed, counters=MOVED[what]).verdict()
        assert (verdict.status, verdict.suspects) == ("healthy", ()), named(verdict)
        (name,) = {name for _, name in MOVED[what]}
        assert event_words(name) in said(verdict, NoteCode.COUNTER_IDLE) and "rank 3" in said(
            verdict, NoteCode.COUNTER_IDLE
        ), verdict.notes


def test_what_all_machines_share_is_said_once() -> None:
    verdict = Machine(everywhere={"gpu.sm_clock_hz": 0.6 * CLOCK_HZ}).verdict()
    assert verdict.status == "healthy"
    assert "60 % of its limit on 8 of 8" in said(verdict, NoteCode.ALL_LOW)


# ---- what is missing ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 8, 97])
def test_without_any_counter_the_gpu_is_slow(ranks: int) -> None:
    verdict = Machine(ranks=ranks, kernels={1: 1.4}, blind=tuple(range(ranks))).verdict()
    assert named(verdict) == [("gpu", "slow", "gpu1", (1,))]


@pytest.mark.parametrize("blind", [(0, 2, 4, 6), (1, 3, 5, 7)])
def test_half_the_hosts_without_counters(blind: tuple[int, ...]) -> None:
    # GIVEN a throttled GPU on a host that is read, or on one that is not
    suspect = first(Machine(blind=blind, **throttled(3, "hw_thermal")).verdict())
    assert (suspect.component, suspect.ranks) == ("gpu", (3,))
    assert suspect.cause == ("slow" if 3 in blind else "throttled-thermal")


def test_nobody_else_reports_a_clock() -> None:
    # GIVEN that only the culprit has counters: it is compared with its own limit
    verdict = Machine(blind=(0, 1, 2, 4, 5, 6, 7), **throttled(3, "sw_thermal")).verdict()
    assert named(verdict) == [("gpu", "throttled-thermal", "gpu3", (3,))]


def test_a_clock_that_is_not_reported_leaves_the_bit() -> None:
    verdict = Machine(without=("gpu.sm_clock_hz",), **throttled(3, "hw_thermal")).verdict()
    assert named(verdict) == [("gpu", "throttled-thermal", "gpu3", (3,))]


def test_values_that_are_no_numbers_are_missing() -> None:
    nan = float("nan")
    counters = {
        (3, name): nan for name in ("gpu.sm_clock_hz", "gpu.throttle.hw_thermal_s", "gpu.ecc_corrected", "pcie.width")
    }
    assert named(Machine(kernels={3: 1.4}, counters=counters).verdict()) == [("gpu", "slow", "gpu3", (3,))]


def test_gpus_of_two_models_are_compared_with_their_own_kind() -> None:
    # GIVEN GPUs 0-3 of a model with a lower clock, one of them throttled, with roles that say which are peers
    slow = {(rank, "gpu.sm_clock_hz"): 1.41e9 * 0.97 for rank in range(4)}
    machine = Machine(kernels={6: 1.3}, counters=slow)
    assert named(machine.verdict()) == [("gpu", "slow", "gpu6", (6,))]


def test_two_gpus_with_different_faults_are_both_named() -> None:
    one, other = throttled(1, "hw_thermal"), {(6, "gpu.ecc_corrected"): 900.0}
    machine = Machine(kernels={1: 1.6, 6: 1.5}, counters={**one["counters"], **other})
    assert {(s.cause, s.ranks) for s in machine.verdict().suspects} == {
        ("throttled-thermal", (1,)),
        ("ecc-errors", (6,)),
    }


def test_a_fault_that_begins_in_the_window_still_convicts() -> None:
    # GIVEN kernels that are long in half of the steps, and a mean clock that says so
    machine = Machine(
        counters={(3, "gpu.sm_clock_hz"): 0.97 * CLOCK_HZ * (1 + SLOW) / 2, (3, "gpu.throttle.hw_thermal_s"): 9.0}
    )
    machine.kernels[3] = 1 + 0.5 * (1 / SLOW - 1)
    assert named(machine.verdict()) == [("gpu", "throttled-thermal", "gpu3", (3,))]


def test_pcie_that_delays_copies_nobody_times() -> None:
    # GIVEN a rank whose code waits for its GPU longer than on peers, and copies that crawl over two lanes
    machine = Machine(
        counters={(3, "pcie.width"): 2.0, (3, "pcie.burst_hz"): 0.1 * PCIE_HZ}, works={3: [(builders.ASLEEP, 0.12)]}
    )
    assert named(machine.verdict())[0] == ("pcie", "link-degraded", pci(3), (3,))


def test_a_link_that_delays_copies_and_the_transfer_costs_both() -> None:
    # GIVEN a PCIe link at a quarter of its width: copies over it take four times as long, and what its NIC
    # sends takes all of the transfer
    slow = {(3, "pcie.width"): 4.0, (3, "pcie.burst_hz"): 0.2 * PCIE_HZ, (3, "nic.burst_hz"): 0.2 * NIC_HZ}
    sending_s = BYTES_PER_STEP / (0.2 * NIC_HZ)
    machine = Machine(copies={3: 4.0}, transfer=sending_s / TRANSFER_S, counters=slow)
    # WHEN it is judged
    verdict = machine.verdict()
    # THEN it is one suspect, and the rate that tells of the transfer is evidence
    assert named(verdict) == [("pcie", "link-degraded", pci(3), (3,))]
    suspect = first(verdict)
    assert [each.value for each in suspect.evidence if "while moving" in each.measure] == pytest.approx([0.2 * NIC_HZ])
    # AND it costs what the same copies cost beside an innocent NIC, and three quarters of the transfer
    copies = first(Machine(copies={3: 4.0}, counters={(3, "pcie.width"): 4.0}).verdict())
    assert copies.lost_seconds_per_step == pytest.approx(3 * COPY_S, rel=0.25)
    assert suspect.lost_seconds_per_step - copies.lost_seconds_per_step == pytest.approx(0.75 * sending_s, rel=0.2)


def test_a_narrow_link_that_cannot_explain_the_excess_leaves_the_function() -> None:
    machine = Machine(
        counters={(3, "pcie.width"): 8.0, (3, "pcie.burst_hz"): 0.4 * PCIE_HZ}, works={3: [(builders.BUSY, 0.2)]}
    )
    suspect = first(machine.verdict())
    assert (suspect.component, suspect.cause) == ("python", "slow-function")


def test_a_host_whose_gpus_are_all_hot_is_one_suspect_that_names_them() -> None:
    # GIVEN four of eight GPUs held down by heat
    counters: dict[tuple[int, str], float] = {}
    for rank in range(4, 8):
        counters |= throttled(rank, "hw_thermal")["counters"]
    machine = Machine(kernels=dict.fromkeys(range(4, 8), 1 / SLOW), counters=counters)
    (suspect,) = machine.verdict().suspects
    assert (suspect.cause, suspect.ranks) == ("throttled-thermal", (4, 5, 6, 7))
    assert sorted(suspect.instance.split(", ")) == ["gpu4", "gpu5", "gpu6", "gpu7"]


def test_what_else_the_accused_gpus_report_is_no_note_of_its_own() -> None:
    # GIVEN two hot GPUs, or one that a stranger computes on; all of them report an Xid that user code causes
    hot = throttled(4, "hw_thermal")["counters"] | throttled(5, "hw_thermal")["counters"]
    xids = {rank: xid(rank, 13) for rank in (4, 5, 6)}
    for machine, slow in (
        (Machine(kernels={4: 1 / SLOW, 5: 1 / SLOW}, counters=hot, more=[xids[4], xids[5]]), (4, 5)),
        (Machine(kernels={6: 1 / SLOW}, more=[*foreign(6), xids[6]]), (6,)),
    ):
        verdict = machine.verdict()
        # WHEN they are the suspect
        assert first(verdict).ranks == slow
        # THEN nobody is told of their Xids as of idle devices'
        assert not [note for note in verdict.notes if note.code == NoteCode.XID]


def test_kernels_that_only_one_rank_waits_for_in_a_function_of_its_own_are_that_function_and_no_slow_gpu() -> None:
    # GIVEN a rank that waits for its GPU in a function in which nobody else does
    extra = builders.Work("gpu", "kernels", 0.0, 71, detail="cudaDeviceSynchronize", caller="extra_products")
    verdict = diagnose(builders.build(builders.Job(ranks=6, extra={2: [(extra, 0.06)]})))
    suspect = first(verdict)
    assert (verdict.status, suspect.component, suspect.cause, suspect.ranks) == (
        "fault",
        "python",
        "blocking-call",
        (2,),
    )
    assert suspect.function is not None and (suspect.function.name, suspect.function.line) == ("extra_products", 71)
    assert suspect.lost_seconds_per_step == pytest.approx(0.06, rel=0.2)


@pytest.mark.parametrize(("met", "named"), [(0.33, True), (0.15, False)])
def test_copies_of_one_function_are_named_by_the_calls_that_samples_met(met: float, named: bool) -> None:
    # GIVEN a rank that copies in a function of its own what nobody else does, in calls so short that few of them have a stack
    copy = builders.Work("memory", "host to device", 0.0, detail="cudaMemcpyAsync", file="")
    of_function = builders.Work("memory", "host to device", 0.0, 81, detail="cudaMemcpyAsync", caller="upload_volume")
    extra = {rank: [(copy, 0.001)] for rank in range(4)}
    extra[3] = [(copy, 0.001 + 0.06 * (1 - met)), (of_function, 0.06 * met)]
    [window] = builders.build(builders.Job(ranks=4, extra=extra))
    rows = window.patterns.to_pylist()
    for row in rows:
        if row["kind"] == "memory":
            row.update(bytes=int(2e10 * row["per_step_s"] * 70), **({} if row["caller"] else {"stack": -1, "file": ""}))
    # WHEN it is judged
    suspect = first(diagnose([builders.columns(window, "patterns", rows)]))
    # THEN that function is named for all of them, where samples met enough
    assert suspect.ranks == (3,) and suspect.lost_seconds_per_step == pytest.approx(0.06, rel=0.2)
    if named:
        assert (suspect.component, suspect.cause) == ("python", "blocking-call")
        assert suspect.function is not None and suspect.function.name == "upload_volume"
        assert "time in upload_volume, with calls too short for a stack (68 % of it)" in [
            each.measure for each in suspect.evidence
        ]
    else:
        assert (suspect.component, suspect.cause) == ("workload", "data-imbalance")


@pytest.mark.parametrize("on", [4, 3])
def test_a_stranger_on_the_gpus_of_all_ranks_is_named_without_a_baseline(on: int) -> None:
    # GIVEN kernels of which 30 % of the time went to another process, on all GPUs or on all but one
    taken = dict.fromkeys(range(on), 1 / 0.7)
    more = [row for rank in range(on) for row in foreign(rank, 0.3)]
    verdict = Machine(ranks=4, kernels=taken, more=more).verdict()
    everybody = [one for one in verdict.suspects if one.scope in ("host", "all")]
    assert bool(everybody) == (on == 4)
    for one in everybody:
        assert (one.component, one.cause, one.ranks) == ("gpu", "contended", (0, 1, 2, 3))
        assert "mine-coins" in one.action
        assert one.lost_seconds_per_step == pytest.approx(KERNEL_S * (1 / 0.7 - 1), rel=0.25)
