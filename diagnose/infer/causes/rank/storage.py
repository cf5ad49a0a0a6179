"""Storage: the training thread waits in file calls; for loader workers see python.py.

Evidence for: time in reads or writes above the peers', and an I/O throttle on the rank's control
group, or the disk below the files busy for 0.9 of the window, or the server of the files (NFS,
Lustre) answering later than others (servers.py). Evidence against: no I/O time above
the peers'; waiting for pages where memory is short (memory.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import CONVICTED, NO_COUNTER, SEEN, Hypothesis
from rankscope.diagnose.infer.causes.rank import memory, servers
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.model.functions import FunctionExcess
from rankscope.diagnose.infer.verdict.contract import LIMIT, Evidence
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.text import rate
from rankscope.observer.sources import Source
from rankscope.probes.host.block_devices import number_in

_WRITES = (
    "write",
    "pwrite",
    "writev",
    "pwritev",
    "fsync",
    "fdatasync",
    "sync",
    "msync",
    "sendfile",
    "truncate",
    "close",
)
_WRITING = re.compile(r"write|save|checkpoint|ckpt|dump|flush|upload", re.IGNORECASE)


@cause("storage", "slow-read", witness="time in reads", rests_on=[Source.FILE_CALLS],
       says="reading from {place|files} is slow")  # fmt: skip
@cause("storage", "slow-write", witness="time in writes", rests_on=[Source.FILE_CALLS],
       says="writing to {place|files} is slow")  # fmt: skip
def judge(case: Case) -> Iterator[Hypothesis]:
    """Propose storage/slow-read and storage/slow-write for the training thread's file calls."""
    reclaimed = memory.FAULT if memory.pressure(case) is not None else None
    for writing in (False, True):
        functions = [
            f for f in case.functions if f.kind == "io" and f.name != reclaimed and is_write(f.name) == writing
        ]
        excess = sum(f.excess_s for f in functions)
        if not functions and not writing and case.io_excess_s > 0 and not case.functions:
            yield case.charge("storage", "slow-read", case.io_excess_s, NO_COUNTER,
                         (Evidence("files", "time in I/O", case.io_excess_s, 0.0, "s/step", len(case.peers)),),
                         "Look at the disks and mounts of this host (iostat -x 1).")  # fmt: skip
        elif excess > 0 and functions:
            yield _charge(case, writing, functions, excess)


def is_write(name: str) -> bool:
    """Whether a file call, or a user's function by its name, writes."""
    return name in _WRITES or name.rstrip("0123456789v") in _WRITES or _WRITING.search(name) is not None


def _charge(case: Case, writing: bool, functions: list[FunctionExcess], excess: float) -> Hypothesis:
    """Return slow-write (`writing`) or slow-read for file calls that take `excess` seconds per step too long.

    A throttle, a busy disk or a slow server is added as a witness.
    """
    worst = max(functions, key=lambda f: f.excess_s)
    own, expected = sum(f.own_s for f in functions), sum(f.peers_s for f in functions)
    evidence = [
        Evidence(
            "files",
            f"{worst.name} on {worst.detail or 'unknown mount'}",
            own,
            expected,
            "s/step",
            len(case.peers),
        )
    ]
    place = case.profiles.locate(case.rank, case.beside, ("io",), 0.0)
    file, line, caller = worst.file, worst.line, worst.caller
    if place is not None and place.function.kind == "python":
        file, line, caller = place.function.file, place.function.line, place.function.name
    if caller:
        evidence.append(Evidence("stacks", "called by", caller, None, ""))
    hardware = tuple(_hardware(case, worst.detail, "read" if writing else "write"))
    evidence.extend(hardware)
    server = servers.server_of(case.fleet, case.rank, worst.detail, writing)
    if server is not None:
        evidence.extend(servers.evidence_of(server, writing))
    convicted = bool(hardware) or (server is not None and server.is_slow)
    support = CONVICTED if convicted else SEEN if expected < 0.2 * own else NO_COUNTER
    verb = "writes to" if writing else "reads from"
    where = (
        "raise or remove the I/O limit of its control group (io.max, blkio.throttle.*)."
        if any(one.role == LIMIT for one in hardware)
        else "look at I/O limits of its control group, the disk and the mount."
    )
    return case.charge(
        component="storage",
        cause="slow-write" if writing else "slow-read",
        lost_s=excess,
        support=support,
        evidence=tuple(evidence),
        action=f"{verb.capitalize()} {worst.detail or 'its files'} are slow for this rank"
        + (f": {where}" if server is None else f". {servers.action_of(server, writing)}"),
        instance=worst.detail,
        function=Function("io", worst.name, file, line),
    )


def _hardware(case: Case, detail: str, other_way: str) -> Iterator[Evidence]:
    """Yield evidence of I/O throttles on the rank's control group, and of the busy disk below the files.

    `detail`: the mount or file that names the disk; `other_way`: the direction ("read" or "write")
    whose throttles are left out.
    """
    for counter in case.counters("disk.throttled"):
        if counter.value > 0 and not counter.instance.endswith(other_way):
            yield Evidence("cgroup", f"I/O throttle on {counter.instance}", rate(counter.value), None, "", role=LIMIT)
    window, device = case.fleet.seconds, number_in(detail)
    for counter in case.host_counters("disk.busy_s"):
        if device and number_in(counter.instance) == device and counter.value >= limits.NEARLY_ALL * window:
            yield Evidence(
                "disk", f"{counter.instance} busy", min(counter.value / window, 1.0), None, "share of the window"
            )
