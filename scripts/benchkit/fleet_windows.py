"""Windows of a synthetic fleet as its hosts would write them: 8 ranks x 60 functions x 30 steps, and what a host's counters say.

Noise lies on each function, a part of it lasting, and 1 % of the rank-steps have a stall. A culprit
loses 10-60 % of a step of the fleet without culprits. Of scope

rank, host          one function, all GPU functions, reads or the run queue; of a host all ranks are held in the run queue
rack, filesystem    all GPUs of three hosts are slow; all reads of three others
link, switch, rail  adapters have 30-60 % of their peers' rate, and count why: one, of bad symbols; those of three hosts, or those of one
                    name on all hosts, of packets that were lost
all                 one function of all ranks, longer than in the fleet without culprits, the baseline
lengths             nobody's fault: in each step an eighth of the ranks, others each time, have longer sequences
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from rankscope.diagnose.infer.fleet.large.topology import Group
from rankscope.observer.window.folder import Window
from rankscope.observer.window.manifest import WINDOW_SCHEMA, Manifest
from rankscope.observer.window.schema import TABLES
from rankscope.probes.base.arrays import Floats, Ints

RANKS, FUNCTIONS, STEPS, STEP_S = 8, 60, 30, 1.0  # ranks of a host
IN_GROUP = 3  # hosts in a rack, behind a switch, on a file system
TRANSFER_S = 0.6  # of each step; a slow adapter makes it longer
NIC_HZ = 50e9
START = 1_790_000_000.0
KINDS = ("python", "gpu", "memory", "collective", "io", "sync", "sched")
OF_FUNCTION = np.array([0] * 48 + [1] * 8 + [4] * 2 + [6] + [3])
COMPONENT = {"function": "python", "device": "gpu", "read": "storage", "queue": "cpu"}
FAULTS = {"function": 0, "device": 1, "read": 4, "queue": 6}
OF_SCOPE = {"host": "queue", "rack": "device", "filesystem": "read", "all": "function"}
GROUPS = ("rack", "switch", "filesystem")
SLOW_LINKS = {"link": "nic", "switch": "network", "rail": "network"}  # scopes, and what is to be named


@dataclass(frozen=True, slots=True)
class Planted:
    """One culprit: its scope, its ranks, the component that is to be named; of a group, its name."""

    scope: str
    ranks: tuple[int, ...]
    component: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What all ranks do: seconds by rank and function, own time by rank and step, the length of each step, the rate of each rank's adapter
    over what it should be, and whether that comes with bad symbols (1) or lost packets (2)."""

    seconds: Floats
    own: Floats
    total: Floats
    rate: Floats
    errors: Ints
    planted: tuple[Planted, ...]

    @property
    def hosts(self) -> int:
        return len(self.own) // RANKS

    def of_hosts(self, first: int, last: int) -> Plan:
        """A part, without who is planted."""
        rows = slice(first * RANKS, last * RANKS)
        return Plan(self.seconds[rows], self.own[rows], self.total, self.rate[rows], self.errors[rows], ())


def plan(hosts: int, noise: float, seed: int, culprits: Mapping[str, int]) -> Plan:
    """`culprits`: how many of each scope."""
    rng = np.random.default_rng(seed)
    ranks = hosts * RANKS
    share = 1 / (rng.permutation(FUNCTIONS - 1) + 2.0)
    mean = np.append(STEP_S * share / share.sum(), 0.0)
    lasting = (noise**2 / STEPS + noise**2 / 16) ** 0.5
    seconds = mean * np.exp(rng.normal(0, 0.01, (ranks, 1))) * np.exp(rng.normal(0, lasting, (ranks, FUNCTIONS)))
    of_step = noise * float((mean**2).sum() ** 0.5 / mean.sum())
    wander = np.exp(rng.normal(0, of_step, (ranks, STEPS)))
    stalls = (rng.random((ranks, STEPS)) < 0.01) * rng.exponential(0.08 * STEP_S, (ranks, STEPS))
    usual_s = float(np.median((seconds.sum(axis=1)[:, None] * wander + stalls).max(axis=0))) + TRANSFER_S
    rate, errors = np.ones(ranks), np.zeros(ranks, dtype=np.int64)
    planted = []
    places = rng.choice(
        hosts // IN_GROUP, sum(culprits.values()), replace=False
    ).tolist()  # no culprit is beside another
    for scope in [name for name, count in culprits.items() for _ in range(count)]:
        group = places.pop()
        rows = _rows(scope, group, ranks, rng)
        if scope in SLOW_LINKS:
            rate[rows] = rng.uniform(0.3, 0.6)
            errors[rows] = 1 if scope == "link" else 2
            name = f"mlx5_{rows[0] % RANKS}" if scope == "rail" else group_name(scope, group)
            planted.append(Planted(scope, tuple(rows.tolist()), SLOW_LINKS[scope], name))
            continue
        if scope == "lengths":
            stalls += (rng.random((ranks, STEPS)) < 1 / 8) * usual_s * rng.uniform(0.1, 0.6)
            planted.append(Planted(scope, tuple(rows.tolist()), "workload"))
            continue
        fault = OF_SCOPE.get(scope) or str(rng.choice(list(FAULTS)))
        lost = usual_s * float(np.exp(rng.uniform(np.log(0.10), np.log(0.6))))
        where = np.flatnonzero(FAULTS[fault] == OF_FUNCTION)
        if fault == "device":
            seconds[np.ix_(rows, where)] *= 1 + lost / mean[where].sum()
        else:
            seconds[rows, int(rng.choice(where))] += lost
        component = "workload" if scope == "all" else COMPONENT[fault]
        planted.append(Planted(scope, tuple(rows.tolist()), component, group_name(scope, group)))
    own = seconds.sum(axis=1)[:, None] * wander + stalls
    total = own.max(axis=0) + TRANSFER_S
    seconds[:, -1] = (total[None, :] - own).mean(axis=1)
    return Plan(seconds.astype(np.float32), own.astype(np.float32), total, rate, errors, tuple(planted))


def _rows(scope: str, group: int, ranks: int, rng: np.random.Generator) -> Ints:
    """The ranks of a culprit."""
    first = group * IN_GROUP * RANKS
    if scope in ("all", "lengths"):
        return np.arange(ranks)
    if scope == "rail":
        return np.arange(int(rng.integers(RANKS)), ranks, RANKS)
    if scope in ("rank", "link"):
        return np.array([first + int(rng.integers(RANKS))])
    return np.arange(first, first + (IN_GROUP if scope in GROUPS else 1) * RANKS)


def host_name(host: int) -> str:
    return f"node-{host:06d}"


def group_name(kind: str, number: int) -> str:
    return f"{kind}-{number}" if kind in GROUPS else ""


def groups(hosts: int) -> tuple[Group, ...]:
    """Which hosts are in one rack, behind one switch, on one file system."""
    names = [host_name(number) for number in range(hosts)]
    return tuple(
        Group(kind, group_name(kind, first // IN_GROUP), frozenset(names[first : first + IN_GROUP]))
        for kind in GROUPS
        for first in range(0, hosts, IN_GROUP)
    )  # fmt: skip


def window_of(part: Plan, place: int, first_host: int, hosts: int) -> Window:
    """The window of one host: of the part the `place`-th, of the fleet `first_host + place`."""
    host = first_host + place
    name = host_name(host)
    rng = np.random.default_rng(host)
    rows = slice(place * RANKS, (place + 1) * RANKS)
    number = np.arange(host * RANKS, (host + 1) * RANKS)
    world, length = hosts * RANKS, float(part.total.sum())
    own, seconds = part.own[rows], part.seconds[rows]
    tables = {
        "ranks": _ranks(name, number, world),
        "steps": _steps(number, own, part.total, seconds),
        "patterns": _patterns(number, seconds, length),
        "stacks": _stacks(),
        "collectives": _collectives(number, own, part.total),
        "flows": _flows(host, hosts, number, rng),
        "counters": _counters(number, part.rate[rows], part.errors[rows], length, rng),
        "pauses": _table("pauses", 0, {}),
    }
    manifest = Manifest(
        WINDOW_SCHEMA, name, START + float(rng.normal(0, 0.002)), length + 1.0, ("synthetic",), "bench", sampling_hz=99.0
    )  # fmt: skip
    return Window(manifest, **tables)


def _ranks(host: str, number: Ints, world: int) -> pa.Table:
    count = len(number)
    return _table(
        "ranks", count,
        {
            "job": "synthetic", "rank": number, "local_rank": np.arange(count), "world_size": world, "local_world_size": count,
            "host": host, "node": host, "pid": 4000 + np.arange(count), "inner_pid": 4000 + np.arange(count), "netns": 4026531840,
            "gpus": [[f"gpu{at}"] for at in range(count)], "nics": [[f"mlx5_{at}"] for at in range(count)], "cpus": "0-95",
            "python": "3.12.3", "command": "python train.py --config large.yaml", "title": "train.py", "age_s": 86400.0,
            "state": "running", "last_progress_s": 0.1, "training_thread": 4000 + np.arange(count), "stack_source": "bpf",
            "samples": 3000, "owner": 1000,
        },
    )  # fmt: skip


def _steps(number: Ints, own: Floats, total: Floats, seconds: Floats) -> pa.Table:
    count = len(number)
    start = np.cumsum(total) - total
    every = {
        kind: np.repeat(seconds[:, KINDS.index(kind) == OF_FUNCTION].sum(axis=1), STEPS) for kind in ("io", "sched")
    }
    return _table(
        "steps", count * STEPS,
        {
            "rank": np.repeat(number, STEPS), "step": np.tile(np.arange(STEPS), count), "start_s": np.tile(start, count),
            "seconds": np.tile(total, count), "own_s": own.reshape(-1), "wait_s": (total[None, :] - own).reshape(-1),
            "io_s": every["io"], "sched_s": every["sched"], "sync_s": 0.0,
        },
    )  # fmt: skip


def _patterns(number: Ints, seconds: Floats, length: float) -> pa.Table:
    count = len(number)
    of = np.tile(OF_FUNCTION, count)
    per_step = seconds.reshape(-1)
    names = np.tile(np.array([f"f{at}" for at in range(FUNCTIONS - 1)] + ["allreduce"]), count)
    python = of == 0
    return _table(
        "patterns", count * FUNCTIONS,
        {
            "rank": np.repeat(number, FUNCTIONS), "thread": "training", "kind": np.array(KINDS)[of], "name": names,
            "file": np.where(python, "/job/f.py", ""), "line": np.where(python, np.tile(np.arange(FUNCTIONS) + 1, count), 0),
            "caller": np.where(python, "", "step"), "stack": np.where(python, np.tile(np.arange(FUNCTIONS) + 2, count), 1),
            "beta": per_step * STEPS / length, "resource": np.where(of == 1, "gpu", np.where(of == 3, "nic", "cpu")),
            "count": STEPS, "total_s": per_step * STEPS, "p50_s": per_step, "p99_s": per_step * 1.1, "max_s": per_step * 1.2,
            "per_step_s": per_step, "per_step_sd_s": per_step * 0.05, "bytes": np.where(of == 3, STEPS * 10**9, 0),
        },
    )  # fmt: skip


def _stacks() -> pa.Table:
    names = ["main", "step", *(f"f{at}" for at in range(FUNCTIONS))]
    return _table(
        "stacks", len(names),
        {
            "parent": np.array([-1, 0, *[1] * FUNCTIONS]), "name": np.array(names),
            "file": np.array(["/job/train.py"] * 2 + ["/job/f.py"] * FUNCTIONS),
            "line": np.array([1, 9, *range(1, FUNCTIONS + 1)]),
        },
    )  # fmt: skip


def _collectives(number: Ints, own: Floats, total: Floats) -> pa.Table:
    count = len(number)
    return _table(
        "collectives", count * STEPS,
        {
            "rank": np.repeat(number, STEPS), "sequence": np.tile(np.arange(STEPS), count), "step": np.tile(np.arange(STEPS), count),
            "slot": 0, "op": "allreduce", "stay_s": (total[None, :] - own).reshape(-1), "bytes": 10**9,
        },
    )  # fmt: skip


def _flows(host: int, hosts: int, number: Ints, rng: np.random.Generator) -> pa.Table:
    count, after = len(number), (host + 1) % hosts
    busy = rng.normal(1.0, 0.02, count)
    return _table(
        "flows", count,
        {
            "rank": number, "local": np.array([f"{_address(host)}:{40000 + at}" for at in range(count)]),
            "peer": np.array([f"{_address(after)}:{50000 + at}" for at in range(count)]), "interface": "bond0",
            "sent_bytes": 25 * 10**9, "received_bytes": 25 * 10**9, "busy_s": busy, "rtt_s": 4e-5, "min_rtt_s": 2e-5,
            "delivery_rate_hz": 25e9,
        },
    )  # fmt: skip


def _address(host: int) -> str:
    return f"10.{host >> 16 & 255}.{host >> 8 & 255}.{host & 255}"


def _counters(number: Ints, rate: Floats, errors: Ints, length: float, rng: np.random.Generator) -> pa.Table:
    """What a host of eight GPUs and eight adapters says. A counter that names an error counts a few in health."""
    ranks = len(number)

    def near(value: float, spread: float) -> Floats:
        return value * np.exp(rng.normal(0, spread, ranks))

    lost = np.where(errors == 2, 50 * length, 0.0)
    rows = [
        *(("gpu", name, "level", "gauge", rng.normal(60.0, 1.0, ranks).round(1), None) for name in (
            "gpu.sm_percent", "gpu.memory_percent", "gpu.sm_clock_hz", "gpu.temperature_c", "gpu.power_w")),
        ("nic", "nic.speed_hz", "level", "gauge", np.full(ranks, NIC_HZ), NIC_HZ),
        ("nic", "nic.burst_hz", "level", "gauge", near(0.8 * NIC_HZ, 0.05) * rate, NIC_HZ),
        ("nic", "nic.tx_bytes", "bytes", "delta", near(0.9 * TRANSFER_S * 0.8 * NIC_HZ * STEPS, 0.01), None),
        ("nic", "nic.symbol_errors", "events", "delta", rng.poisson(0.3, ranks) + np.where(errors == 1, 50 * length, 0.0), None),
        ("nic", "nic.retransmits", "events", "delta", rng.poisson(3, ranks) + lost, None),
        ("nic", "nic.out_of_sequence", "events", "delta", rng.poisson(3, ranks) + lost, None),
    ]  # fmt: skip
    values = np.concatenate([row[4] for row in rows])
    names = {"gpu": [f"gpu{at}" for at in range(ranks)], "nic": [f"mlx5_{at}" for at in range(ranks)]}
    return _table(
        "counters", len(values),
        {
            "scope": np.repeat([row[0] for row in rows], ranks), "instance": np.concatenate([names[row[0]] for row in rows]), "pid": -1,
            "rank": np.tile(number, len(rows)), "name": np.repeat([row[1] for row in rows], ranks),
            "unit": np.repeat([row[2] for row in rows], ranks), "kind": np.repeat([row[3] for row in rows], ranks),
            "value": values, "minimum": values, "maximum": values,
            "limit": pa.array(np.repeat([row[5] or np.nan for row in rows], ranks), from_pandas=True),
        },
    )  # fmt: skip


def _table(name: str, rows: int, columns: Mapping[str, Any]) -> pa.Table:
    """A table of the schema; what is not said is nothing: '', 0, none."""
    arrays = []
    for field in TABLES[name]:
        values: Any = columns.get(field.name)
        if values is None:
            values = _nothing(field, rows)
        elif not isinstance(values, np.ndarray | list | pa.Array):
            values = pa.repeat(pa.scalar(values), rows)
        array = values if isinstance(values, pa.Array) else pa.array(values)
        if pa.types.is_dictionary(field.type):
            array = array.cast(pa.string()).dictionary_encode()
        arrays.append(array.cast(field.type))
    return pa.Table.from_arrays(arrays, schema=TABLES[name])


def _nothing(field: pa.Field, rows: int) -> Any:
    if field.nullable:
        return pa.nulls(rows, field.type)
    if pa.types.is_list(field.type):
        return [[] for _ in range(rows)]
    if pa.types.is_string(field.type) or pa.types.is_dictionary(field.type):
        return pa.repeat(pa.scalar(""), rows)
    return pa.repeat(pa.scalar(0), rows)
