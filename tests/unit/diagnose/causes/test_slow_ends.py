"""A host whose link carries two fifths: no single pair is slow enough to be accused, all of them together are."""

from __future__ import annotations

import builders
import numpy as np
import pytest
from builders import Job, build

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.observer.window.folder import Window

NODES = 4


def ring(
    slower: dict[tuple[int, int], float], swollen: dict[tuple[int, int], float], noise: float = 0.1, seed: int = 0
) -> Window:
    """Four hosts in a ring; pairs (source, destination) with their factor on the rate and on the round trip. A transfer of 0.1 s."""
    rng = np.random.default_rng(seed)
    window = build(Job(ranks=8, namespaces=NODES, transfer_s=0.1, sent_bytes=12e6, seed=seed))[0]
    flows = window.flows.to_pylist()
    for row in flows:
        source, peer = (int(row[end].split(":")[0].rsplit(".", 1)[1]) - 10 for end in ("local", "peer"))
        pair = source, peer
        if row["sent_bytes"] > 1e6 and source != peer:
            rate = 4e8 * slower.get(pair, 1.0) * float(np.exp(rng.normal(0, noise)))
            row["busy_s"] = row["sent_bytes"] / rate
            row["rtt_s"] = 0.005 * swollen.get(pair, 1.0) * float(np.exp(rng.normal(0, noise)))
    return builders.columns(window, "flows", flows)


def around(node: int, factor: float) -> dict[tuple[int, int], float]:
    return {((node - 1) % NODES, node): factor, (node, (node + 1) % NODES): factor}


@pytest.mark.parametrize("node", range(NODES))
@pytest.mark.parametrize("seed", range(3))
def test_a_host_whose_pairs_are_all_slow_and_queue_is_named(node: int, seed: int) -> None:
    verdict = diagnose([ring(around(node, 0.4), around(node, 4.0), seed=seed)])
    assert [(s.component, s.cause, s.host) for s in verdict.suspects] == [("network", "slow-link", f"lab-host-{node}")]
    assert verdict.suspects[0].ranks == (2 * node, 2 * node + 1)
    assert any(
        e.measure == f"198.18.0.{10 + node} slow" and e.value == "both ways" for e in verdict.suspects[0].evidence
    )


@pytest.mark.parametrize(
    ("slower", "swollen"),
    [
        (around(1, 0.4), {}),  # slow by itself: nothing queues
        ({}, around(1, 4.0)),  # queues that cost no rate
        ({(1, 2): 0.4}, {(1, 2): 4.0}),  # one way only: a cell, and not slow enough
        (around(1, 0.8), around(1, 4.0)),
        (around(1, 0.4), around(3, 4.0)),
    ],
)
def test_what_is_less_than_a_whole_row_and_column_needs_a_slower_pair(
    slower: dict[tuple[int, int], float], swollen: dict[tuple[int, int], float]
) -> None:
    assert diagnose([ring(slower, swollen)]).status == "healthy"


@pytest.mark.parametrize("seed", range(5))
def test_one_pair_that_is_fast_by_chance_is_not_what_the_others_are_held_against(seed: int) -> None:
    # GIVEN pairs that are all slow, but one: of the two that are apart from any pair one is that one
    alike = {(node, (node + 1) % NODES): 0.25 for node in range(NODES)}
    assert diagnose([ring(alike | {(2, 3): 1.6}, {}, seed=seed)]).status == "healthy"


@pytest.mark.parametrize("seed", range(13))
def test_rates_and_round_trips_that_spread_accuse_no_host(seed: int) -> None:
    assert diagnose([ring({}, {}, noise=0.3, seed=seed)]).status == "healthy"


@pytest.mark.parametrize(("factor", "accused"), [(0.15, False), (0.05, True)])
def test_two_ways_of_one_path_may_differ_by_what_they_carry(factor: float, accused: bool) -> None:
    # Activations one way and gradients the other, in small messages that wait for delayed acknowledgements.
    (window,) = build(Job(ranks=4, namespaces=2, transfer_s=0.2))
    flows = window.flows.to_pylist()
    for row in flows:
        if row["sent_bytes"] > 1e6 and row["local"].split(":")[0] != row["peer"].split(":")[0]:
            forth = row["local"].startswith("198.18.0.10:")
            row["busy_s"] = row["sent_bytes"] / (4e8 * (factor if forth else 1.0))
            row["rtt_s"] = 0.005 * (2 if forth else 1)
    verdict = diagnose([builders.columns(window, "flows", flows)])
    assert bool(verdict.suspects) is accused, verdict


@pytest.mark.parametrize("seed", range(3))
def test_a_transfer_is_left_where_a_slow_pair_sends_for_longer_than_the_ranks_wait(seed: int) -> None:
    # GIVEN a pair that is ten times slower and sends for 0.3 s of each step; the ranks stay in collectives for 0.1 s, for most of what is
    # sent goes out while they still compute
    verdict = diagnose([ring({(1, 2): 0.1}, {(1, 2): 10.0}, noise=0.0, seed=seed)])
    (link,) = verdict.suspects
    assert (link.component, link.cause) == ("network", "slow-link")
    # THEN a tenth of the transfer is left, as much as the others need
    transfer_s = next(e.value for e in link.evidence if e.measure.startswith("transfer"))
    assert link.lost_seconds_per_step == pytest.approx(0.9 * float(transfer_s), rel=0.02)


def test_what_a_slow_link_takes_in_every_fourth_step_costs_as_much_as_the_same_in_each() -> None:
    window = build(builders.slow_link(2, 0.1, steps=60))[0]
    rows, least_s = window.steps.to_pylist(), dict[int, float]()
    for row in rows:
        least_s[row["step"]] = min(least_s.get(row["step"], row["wait_s"]), row["wait_s"])
    for row in rows:  # local steps, and a mean of all weights now and then
        more_s = least_s[row["step"]] * (3 if row["step"] % 4 == 3 else -1)
        row["wait_s"] += more_s
        row["seconds"] += more_s
    (each,), (now_and_then,) = (diagnose([one]).suspects for one in (window, builders.columns(window, "steps", rows)))
    assert now_and_then.cause == "slow-link"
    assert now_and_then.lost_seconds_per_step == pytest.approx(each.lost_seconds_per_step, rel=0.05)
