"""The table of hypotheses: what can be named at all, whom it touches, and what shows it. `rankscope causes` prints it.

A suspect that is not in this table is a mistake of the program (hypothesis.py asks); what several hosts have that share something
becomes scope group (group/). How often each was right in the corpus:
counted.json, which `scripts/corpus judge --hold` writes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rankscope.observer.sources import ESSENTIAL, Source

COUNTED = Path(__file__).with_name("counted.json")
SCHEMA = "rankscope.causes/1"


@dataclass(frozen=True, slots=True)
class Cause:
    """One row. `witness`: what shows it, in the few words that a line has room for. `told_by`: the file whose header has it in full.
    `rests_on`: the sources of a window without one of which it is not named."""

    component: str
    cause: str
    scope: str
    witness: str
    told_by: str
    rests_on: frozenset[Source] = frozenset(ESSENTIAL)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.component, self.cause, self.scope


@dataclass(frozen=True, slots=True)
class Counted:
    """How often it was named first in the corpus, and was right or wrong."""

    right: int = 0
    wrong: int = 0


def _rows(
    component: str,
    more: tuple[Source, ...],
    *rows: tuple[str, str, str, str] | tuple[str, str, str, str, tuple[Source, ...]],
) -> tuple[Cause, ...]:
    """Rows of a component, with the sources that they rest on besides the essential ones: `more`, or those of the row itself."""
    found = []
    for row in rows:
        own = row[4] if len(row) == 5 else more
        found.append(Cause(component, *row[:4], frozenset({*ESSENTIAL, *own})))
    return tuple(found)


TABLE: tuple[Cause, ...] = (
    *_rows(
        "gpu", (Source.GPU,),
        ("throttled-thermal", "rank", "clock below the peers', thermal bit", "rank/gpu.py"),
        ("throttled-power", "rank", "clock below peers', power bit, cap", "rank/gpu.py"),
        ("clock-low", "rank", "clock below the peers'", "rank/gpu.py"),
        ("ecc-errors", "rank", "memory errors that the peers lack", "rank/gpu.py"),
        ("xid", "rank", "the driver's Xid", "rank/gpu.py"),
        ("lost", "rank", "the GPU does not answer, or its Xid", "hang/failed_hardware.py"),
        ("contended", "rank", "another process uses the GPU", "rank/gpu.py"),
        ("contended", "host", "the same, on the GPUs of all ranks", "host/gpu_users.py"),
        ("slow", "rank", "kernels longer than the peers'", "rank/gpu.py"),
    ),
    *_rows(
        "nvlink", (Source.GPU,),
        ("down", "link", "links down that the peers have", "link/nvlink.py"),
        ("errors", "link", "link errors that the peers lack", "link/nvlink.py"),
        ("slow", "link", "rate below the peers' while moving", "link/slow_ports.py"),
    ),
    *_rows(
        "pcie", (Source.PORTS,),
        ("link-degraded", "rank", "width or speed below the peers'", "rank/pcie.py"),
        ("link-degraded", "link", "the same, above a port or GPU", "link/slow_ports.py"),
        ("errors", "rank", "replays or AER that the peers lack", "rank/pcie.py"),
        ("errors", "link", "the same, above a port or GPU", "link/slow_ports.py"),
        ("slow", "rank", "copies longer than the peers'", "rank/pcie.py", (Source.CALLS,)),
    ),
    *_rows(
        "nic", (Source.PORTS,),
        ("down", "link", "port down, for a while or always", "link/nic.py"),
        ("down", "rank", "a hang, and the port is down", "hang/failed_hardware.py"),
        ("speed-degraded", "link", "speed or width below the peers'", "link/nic.py"),
        ("errors", "link", "symbol or CRC errors", "link/nic.py"),
        ("slow", "link", "pause frames", "link/nic.py"),
    ),
    *_rows(
        "network", (),
        ("slow-link", "link", "rate of flows, ports or messages", "link/slow_flows.py", (Source.FLOWS,)),
        ("slow-link", "rank", "transfers longer than the peers'", "rank/transfers.py"),
        ("slow-link", "all", "transfer longer than in the baseline", "job/slow_everywhere.py"),
        ("loss", "link", "steps wait for what is sent again", "link/packet_loss.py", (Source.FLOWS,)),
    ),
    *_rows(
        "cpu", (),
        ("contended", "rank", "run queue, and who ran meanwhile", "rank/cpu.py"),
        ("contended", "host", "the same, of strangers, on all ranks", "host/strangers.py"),
        ("contended", "all", "run queue grew since the baseline", "job/slow_everywhere.py"),
        ("quota", "rank", "throttled time of its control group", "rank/cpu.py", (Source.HOST,)),
        ("quota", "all", "the same on most ranks, or it grew", "job/quotas_of_all.py", (Source.HOST,)),
        ("affinity", "rank", "ranks of the job on the same CPUs", "rank/cpu.py"),
        ("irq", "rank", "interrupts on the rank's CPUs", "rank/interrupts.py", (Source.HOST,)),
        ("steal", "rank", "steal time, and nobody else ran", "rank/cpu.py", (Source.HOST,)),
    ),
    *_rows(
        "memory", (Source.HOST,),
        ("reclaim", "rank", "waiting for pages, at its limit", "rank/memory.py"),
        ("swap", "rank", "waiting for pages, from swap", "rank/memory.py"),
        ("oom-kill", "rank", "a hang: killed, its group's count", "hang/processes.py"),
        ("page-faults", "rank", "function in the kernel, minor faults", "rank/memory.py"),
    ),
    *_rows(
        "storage", (Source.FILE_CALLS,),
        ("slow-read", "rank", "time in reads", "rank/storage.py"),
        ("slow-write", "rank", "time in writes", "rank/storage.py"),
        ("stalled", "rank", "a hang: one file call does not end", "hang/absent.py"),
        ("slow-read", "all", "time in reads since the baseline", "job/slow_everywhere.py"),
        ("slow-write", "all", "time in writes since the baseline", "job/slow_everywhere.py"),
    ),
    *_rows(
        "python", (),
        ("slow-function", "rank", "stacks: one function has the excess", "rank/python.py"),
        ("slow-function", "all", "stacks: it varies, in turn on all", "job/moving_work.py"),
        ("blocking-call", "rank", "the same, asleep or waiting", "rank/python.py"),
        ("blocking-call", "all", "the same, in turn on all ranks", "job/moving_work.py"),
        ("gc", "rank", "stacks: time in garbage collection", "rank/python.py", (Source.CALLS,)),
        ("gc", "all", "the same, in turn on all ranks", "job/moving_work.py", (Source.CALLS,)),
        ("gil", "rank", "waiting for the GIL, and its holder", "rank/threads.py"),
        ("lock", "rank", "waiting for another thread", "rank/python.py"),
        ("dataloader", "rank", "waiting for the next batch", "rank/python.py"),
    ),
    *_rows(
        "process", (),
        ("stopped", "rank", "state T", "rank/process.py"),
        ("exited", "rank", "it ended first, or is no process", "hang/processes.py"),
        ("deadlock", "rank", "others wait, it waits elsewhere", "hang/absent.py"),
        ("spinning", "rank", "others wait, it computes", "hang/absent.py"),
        ("missing-collective", "rank", "NCCL's account, dumps, other stacks", "hang/processes.py"),
    ),
    *_rows(
        "workload", (),
        ("stage-imbalance", "role", "own time of one role, others wait", "job/heavy_stage.py"),
        ("data-imbalance", "rank", "all functions alike, or so before", "rank/workload.py"),
        ("data-imbalance", "all", "late in turn, by work", "job/moving_work.py"),
        ("slow-everywhere", "all", "what grew since the baseline", "job/slow_everywhere.py"),
    ),
)  # fmt: skip

KNOWN = frozenset(row.key for row in TABLE)


def rests_on(component: str, cause: str, scope: str) -> frozenset[Source]:
    """The sources that a cause rests on. What hosts of a group share (scope group) rests on what it does elsewhere."""
    mine = [row for row in TABLE if (row.component, row.cause) == (component, cause)]
    exact = [row for row in mine if row.scope == scope]
    return frozenset.intersection(*(row.rests_on for row in exact or mine))


def unseen_without(sources: frozenset[Source]) -> tuple[Cause, ...]:
    """The causes that are not named where these sources are missing."""
    return tuple(row for row in TABLE if row.rests_on & sources)


def counted() -> tuple[dict[tuple[str, str, str], Counted], int]:
    """Row → how often it was right, and of how many recorded windows."""
    content = json.loads(COUNTED.read_text())
    found = {
        (item["component"], item["cause"], item["scope"]): Counted(item["right"], item["wrong"])
        for item in content["causes"]
    }
    return found, int(content["cases"])
