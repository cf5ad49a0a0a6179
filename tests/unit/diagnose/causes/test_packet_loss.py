"""Lost packets leave the median step as it is: tails and what was sent again accuse a link, one without the other nobody."""

from __future__ import annotations

import builders
import pytest
from builders import Job, build

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.observer.window.folder import Window

STALL_S = 0.21  # a retransmission timeout


def lossy(
    loses: dict[tuple[int, int], float],
    every: int = 5,
    again: int = 1,
    everywhere: float = 0.0,
    ahead: tuple[int, ...] = (),
    **more: object,
) -> Window:
    """A job in which packets from node to node get lost with this share, and every `every`-th step waits for one.

    `ahead`: ranks that have all of their packets then, and wait in the step after it.
    """
    window = build(Job(**{"ranks": 8, "namespaces": 4, **more}))[0]  # type: ignore[arg-type]
    flows, steps = window.flows.to_pylist(), window.steps.to_pylist()
    for row in flows:
        source, peer = (int(row[end].split(":")[0].rsplit(".", 1)[1]) - 10 for end in ("local", "peer"))
        row["retransmitted_bytes"] = int(row["sent_bytes"] * loses.get((source, peer), everywhere))
    for row in steps:
        if every and (row["step"] - (row["rank"] in ahead)) % every == every - 1:
            row["seconds"] += again * STALL_S
            row["wait_s"] += again * STALL_S
    return builders.columns(builders.columns(window, "flows", flows), "steps", steps)


def of(node: int, share: float = 0.047) -> dict[tuple[int, int], float]:
    """What goes into and out of one node of four in a ring gets lost."""
    return {((node - 1) % 4, node): share, (node, (node + 1) % 4): 0.9 * share}


def network(verdict: Verdict) -> list[str]:
    return [suspect.cause for suspect in verdict.suspects if suspect.component == "network"]


@pytest.mark.parametrize("node", range(4))
@pytest.mark.parametrize("share", [0.013, 0.047])
def test_the_host_whose_pairs_lose_is_named(node: int, share: float) -> None:
    verdict = diagnose([lossy(of(node, share), seed=node)])
    (suspect,) = verdict.suspects
    assert (verdict.status, suspect.component, suspect.cause) == ("fault", "network", "loss")
    assert (suspect.host, suspect.ranks) == (f"lab-host-{node}", (2 * node, 2 * node + 1))
    assert suspect.lost_seconds_per_step == pytest.approx(STALL_S / 5, rel=0.2)


def test_in_a_ring_of_three_each_end_of_a_bad_pair_has_another_pair() -> None:
    # GIVEN 0 > 1 > 2 > 0, and what goes into 2 and out of it gets lost
    verdict = diagnose([lossy({(1, 2): 0.049, (2, 0): 0.045}, ranks=6, namespaces=3)])
    assert [(suspect.cause, suspect.ranks) for suspect in verdict.suspects] == [("loss", (4, 5))]


@pytest.mark.parametrize("ahead", [(0,), (1, 5, 6), (3, 4, 5, 6, 7)])
def test_it_is_the_same_where_some_ranks_wait_in_the_next_step(ahead: tuple[int, ...]) -> None:
    verdict = diagnose([lossy(of(2), ahead=ahead)])
    assert [(suspect.cause, suspect.ranks) for suspect in verdict.suspects] == [("loss", (4, 5))]
    assert verdict.suspects[0].lost_seconds_per_step == pytest.approx(STALL_S / 5, rel=0.2)


def test_what_is_sent_again_at_once_costs_nothing() -> None:
    assert diagnose([lossy(of(2), every=0)]).status == "healthy"


def test_two_long_steps_are_an_accident() -> None:
    assert not network(diagnose([lossy(of(2), every=31)]))


def test_long_transfers_without_loss_accuse_no_link() -> None:
    assert not network(diagnose([lossy({})]))


@pytest.mark.parametrize("everywhere", [0.0013, 0.03])
def test_a_network_in_which_all_pairs_lose_alike_has_no_bad_end(everywhere: float) -> None:
    assert not network(diagnose([lossy({}, everywhere=everywhere)]))


def test_of_two_hosts_nobody_can_say_which_loses() -> None:
    window = lossy({(0, 1): 0.05}, ranks=4, namespaces=2)
    assert not network(diagnose([window]))


@pytest.mark.parametrize("loses", [of(2), {(1, 2): 0.047}])
def test_a_shaper_that_drops_is_a_slow_link(loses: dict[tuple[int, int], float]) -> None:
    """Also where only what is sent to it gets lost."""
    shapers = [
        {"scope": "nic", "rank": rank, "instance": "eth0", "name": "qdisc.rate_limit", "kind": "gauge", "unit": "bytes/s",
         "value": 1e8 if rank in (4, 5) else 1e9}
        for rank in range(8)
    ]  # fmt: skip
    verdict = diagnose([lossy(loses, counters=shapers)])
    assert [(suspect.cause, suspect.ranks) for suspect in verdict.suspects] == [("slow-link", (4, 5))]


def test_a_shaper_by_which_a_link_is_slow_and_loses_is_one_suspect() -> None:
    job = builders.slow_link(2, 0.1)
    window = lossy({(1, 2): 0.047}, counters=job.counters, slow_links=job.slow_links)
    verdict = diagnose([window])
    assert [(suspect.cause, suspect.ranks) for suspect in verdict.suspects] == [("slow-link", (4, 5))]
