"""What somebody put a stopwatch around, as a table of timings, and what may be wrong with the file itself.

parts      every part of the step by itself: what a tracer or a profiler of devices writes
coarse     forward, backward, synchronisation and optimizer, as a training loop times them: each contains what it waits for
waiting    the same, and the file says of all that it waits
unsaid     the same, and the file says of nothing that it waits, but of collectives by their kind
two        computing and communication, one number each
calls      communication alone
work       what contains no waiting, alone
iteration  the whole step and the communication in it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from benchkit.timings.job import Trace
from rankscope.probes.base.arrays import Bools, Floats

Part = tuple[str, str, tuple[str, ...], bool | None]  # name, kind, parts of the job in it, whether it waits

_PIECES = {"load": ("io", False), "forward": ("gpu", False), "backward": ("gpu", False), "optimizer": ("gpu", False)}
_NAMES = {
    "forward.shards": "all_reduce_forward", "backward.shards": "all_reduce_backward", "recv_forward": "recv_forward",
    "recv_backward": "recv_backward", "replicas": "grad_all_reduce", "norm": "norm_all_reduce",
}  # fmt: skip
_STAYS = tuple(_NAMES)


def parts(trace: Trace) -> list[Part]:
    own: list[Part] = [(name, kind, (name,), waits) for name, (kind, waits) in _PIECES.items()]
    return own + [(label, "collective", (name,), True) for name, label in _NAMES.items() if trace.parts[name].any()]


def coarse(trace: Trace) -> list[Part]:
    inside = ("forward.shards", "recv_forward"), ("backward.shards", "recv_backward")
    waits = [any(trace.parts[name].any() for name in names) for names in inside]
    return [
        ("data", "io", ("load",), False),
        ("forward", "gpu", ("forward", *inside[0]), waits[0]),
        ("backward", "gpu", ("backward", *inside[1]), waits[1]),
        ("sync", "collective", ("replicas", "norm"), True),
        ("step", "gpu", ("optimizer",), False),
    ]


def waiting(trace: Trace) -> list[Part]:
    return [(name, kind, inside, True) for name, kind, inside, _ in coarse(trace)]


def unsaid(trace: Trace) -> list[Part]:
    return [(name, kind, inside, None) for name, kind, inside, _ in coarse(trace)]


def two(trace: Trace) -> list[Part]:
    own = ("load", "forward", "backward", "optimizer")
    return [("compute", "gpu", own, False), ("communication", "collective", _STAYS, True)]


def calls(trace: Trace) -> list[Part]:
    return [part for part in parts(trace) if part[3]]


def work(trace: Trace) -> list[Part]:
    return [part for part in parts(trace) if not part[3]]


def iteration(trace: Trace) -> list[Part]:
    return [("iteration", "python", ("*",), True), ("communication", "collective", _STAYS, True)]


VIEWS: dict[str, Callable[[Trace], list[Part]]] = {
    "parts": parts, "coarse": coarse, "waiting": waiting, "unsaid": unsaid, "two": two, "calls": calls, "work": work,
    "iteration": iteration,
}  # fmt: skip


def seconds_of(trace: Trace, part: Part) -> Floats:
    """Ranks x steps."""
    if part[2] == ("*",):
        return trace.step
    return np.asarray(np.sum([trace.parts[name] for name in part[2]], axis=0), dtype=np.float64)


def table(
    trace: Trace, view: str, roles: bool, hosts: bool = True, kept: Bools | None = None, first: int = 0
) -> pa.Table:
    """The file, one row per rank, step and part. `kept`: ranks x steps that are in it; `first`: the first step's number."""
    shape = trace.step.shape
    rank, step = (index.reshape(-1) for index in np.indices(shape))
    inside = np.ones(shape[0] * shape[1], dtype=bool) if kept is None else kept.reshape(-1)
    columns: dict[str, list[Any]] = {"rank": [], "step": [], "function": [], "kind": [], "seconds": [], "waits": []}
    for part in VIEWS[view](trace):
        name, kind, _, waits = part
        took = seconds_of(trace, part).reshape(-1)
        chosen = np.flatnonzero(inside & (took > 0))
        columns["rank"].append(rank[chosen])
        columns["step"].append(step[chosen] + first)
        columns["seconds"].append(took[chosen])
        columns["function"] += [name] * len(chosen)
        columns["kind"] += [kind] * len(chosen)
        columns["waits"] += [waits] * len(chosen)
    data: dict[str, Any] = {name: np.concatenate(columns[name]) for name in ("rank", "step", "seconds")}
    data |= {name: columns[name] for name in ("function", "kind")}
    if None not in columns["waits"]:
        data["waits"] = columns["waits"]
    if roles and trace.layout.stages > 1:
        stage = trace.layout.stage()
        data["role"] = [f"stage-{stage[each]}" for each in data["rank"]]
    if hosts:
        host = trace.layout.host()
        data["host"] = [f"node{host[each]}" for each in data["rank"]]
    return pa.table(data)
