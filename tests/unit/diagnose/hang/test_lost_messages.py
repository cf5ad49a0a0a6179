"""Every rank waits in a collective, and nobody is missing: the link on which data stays unacknowledged is named, or nobody."""

from __future__ import annotations

from typing import Any

import builders
import pytest
from builders import Job, build, said

from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode

SILENT_S = 7.9
RANKS = {"last_progress_s": SILENT_S + 0.1, "in_collective_s": SILENT_S}
NODES = 4


def standing(
    stuck: dict[tuple[int, int], float],
    loses: dict[tuple[int, int], float] | None = None,
    nodes: int = NODES,
    closed_window: bool = False,
    again: int = 4096,
    beyond: str = "",
    acknowledged: bool = True,
) -> Verdict:
    """A ring that stands still. `stuck`: pairs of nodes with the seconds for which data was unacknowledged; `beyond`: an
    address without ranks here that rank 0 sends to as well."""
    job = Job(ranks=2 * nodes, namespaces=nodes, ranks_columns={rank: dict(RANKS) for rank in range(2 * nodes)})
    (window,) = build(job)
    flows = window.flows.to_pylist()
    for row in flows:
        source, peer = (int(row[end].split(":")[0].rsplit(".", 1)[1]) - 10 for end in ("local", "peer"))
        share = (loses or {}).get((source, peer), 0.0)
        row["retransmitted_bytes"] = int(row["sent_bytes"] * share)
        if (source, peer) in stuck and row["sent_bytes"] > 1e6:
            row["busy_s"] += stuck[source, peer]
            row["retransmitted_bytes"] += again
            row["sent_bytes"] = row["sent_bytes"] if acknowledged else 0
            row["rwnd_limited_s"] = stuck[source, peer] if closed_window else 0.0
    if beyond:
        far = {"peer": f"{beyond}:4001", "busy_s": SILENT_S, "retransmitted_bytes": again, "sent_bytes": 64}
        flows.append({**flows[0], **far})
    return diagnose([builders.columns(window, "flows", flows)])


@pytest.mark.parametrize("node", range(NODES))
def test_the_host_that_is_cut_off_is_named(node: int) -> None:
    verdict = standing({((node - 1) % NODES, node): 9.1, (node, (node + 1) % NODES): 8.3})
    (suspect,) = verdict.suspects
    assert (verdict.status, verdict.exit_code) == ("hang", 2)
    assert (suspect.component, suspect.cause, suspect.host) == ("network", "loss", f"lab-host-{node}")
    assert suspect.ranks == (2 * node, 2 * node + 1)
    assert suspect.confidence >= 0.8
    assert suspect.lost_percent == 100.0


def test_a_host_is_named_whose_kernel_acknowledges_nothing_though_no_try_to_send_again_fell_into_the_window() -> None:
    both = [(2, 1), (1, 2), (2, 3), (3, 2)]
    verdict = standing(dict.fromkeys(both, 8.1), again=0, acknowledged=False)
    (suspect,) = verdict.suspects
    assert (suspect.cause, suspect.host) == ("loss", "lab-host-2")


@pytest.mark.parametrize("bad", [1, 2], ids=["the sender", "the receiver"])
def test_of_one_stuck_pair_the_end_that_loses_elsewhere_is_named(bad: int) -> None:
    loses = {((bad - 1) % NODES, bad): 0.043, (bad, (bad + 1) % NODES): 0.067}
    verdict = standing({(1, 2): 8.3}, loses)
    (suspect,) = verdict.suspects
    assert suspect.host == f"lab-host-{bad}" and suspect.confidence >= 0.8


@pytest.mark.parametrize(("nodes", "peer"), [(2, 0), (4, 2)])
def test_where_nothing_tells_the_ends_apart_the_path_is_named_and_the_verdict_is_not_sure(
    nodes: int, peer: int
) -> None:
    verdict = standing({(1, peer): 8.3}, nodes=nodes)
    (suspect,) = verdict.suspects
    assert suspect.component == "network" and suspect.confidence < 0.6
    assert f"between 198.18.0.11 and 198.18.0.1{peer}" in suspect.action


@pytest.mark.parametrize(
    "how",
    [{"stuck": {}}, {"stuck": {(1, 2): 2.3}}, {"stuck": {(1, 2): 8.3}, "closed_window": True},
     {"stuck": {(1, 2): 8.3}, "again": 0}],
    ids=["nothing", "for a while", "the receiver does not read", "nothing sent again"],
)  # fmt: skip
def test_without_data_that_is_sent_again_through_the_silence_nobody_is_named(how: dict[str, object]) -> None:
    verdict = standing(**how)  # type: ignore[arg-type]
    assert verdict.status == "hang" and not verdict.suspects


def test_a_peer_that_was_not_observed_is_a_note() -> None:
    verdict = standing({}, beyond="203.0.113.7")
    assert not verdict.suspects
    assert "203.0.113.7" in said(verdict, NoteCode.UNACKNOWLEDGED)


def older(stuck_s: float, beta: float = 0.99, kind: str = "sync") -> Verdict:
    """A job that stood still before the window began: each rank sleeps, nobody sees in what; a host is cut off for `stuck_s`."""
    (window,) = build(Job(ranks=2 * NODES, namespaces=NODES))
    ranks = [row | {"last_progress_s": None, "in_collective_s": 0.0} for row in window.ranks.to_pylist()]
    first = {row["rank"]: row for row in window.patterns.to_pylist() if row["thread"] == "training"}
    waits = [
        row | {"kind": kind, "name": "futex", "detail": "", "beta": beta, "per_step_s": None} for row in first.values()
    ]
    flows = window.flows.to_pylist()
    for row in flows:
        if any(row[end].startswith("198.18.0.12:") for end in ("local", "peer")) and row["sent_bytes"] > 1e6:
            row["busy_s"], row["rwnd_limited_s"] = stuck_s, 0.0
            row["retransmitted_bytes"] += 4096
    for name, rows in (("steps", []), ("collectives", []), ("ranks", ranks), ("patterns", waits), ("flows", flows)):
        window = builders.columns(window, name, rows)
    return diagnose([window])


def test_a_host_that_was_cut_off_before_the_window_is_named_though_nobody_knows_what_is_waited_for() -> None:
    verdict = older(19.9)
    (suspect,) = verdict.suspects
    assert (verdict.status, suspect.component, suspect.cause) == ("hang", "network", "loss")
    assert suspect.host == "lab-host-2"


@pytest.mark.parametrize(
    "how", [(3.0,), (19.9, 0.5), (19.9, 0.99, "python")], ids=["for a while", "in part", "at work"]
)
def test_without_steps_a_link_is_named_only_where_all_wait_for_it_all_the_while(how: tuple[Any, ...]) -> None:
    assert not older(*how).suspects
