"""Synthetic fleets: windows that a job with a known fault would leave behind, consistent in all their tables.

A step of a rank is a list of functions with mean seconds; noise is lognormal per rank, step and function, with a
persistent factor per rank and rare long stalls, as on a busy host. Collectives end together:

T(s) = max over ranks of own(r, s) + transfer(s),  wait(r, s) = T(s) - own(r, s) + left(r, s) - left(r, s - 1)

What the model of the diagnoser does not assume is in them too: ranks leave a collective at moments of their own, left(r, s); the noise of
a host wanders from step to step and all its ranks share it; a part of the transfer is hidden behind own work, another one in each step.
A job whose noise is 0 has none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.model.excess import Differences, strength
from rankscope.diagnose.infer.verdict.contract import Suspect, Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.folder import Window
from rankscope.observer.window.manifest import WINDOW_SCHEMA, Manifest
from rankscope.observer.window.rows import ROWS, StepRow
from rankscope.observer.window.schema import BY_LAUNCHES, TABLES
from rankscope.observer.window.stacks import StackFrame, StackTree
from rankscope.observer.window.tables import table_of

TRAIN = "/srv/job/train.py"
TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
ROOT = (StackFrame("<module>", TRAIN, 1), StackFrame("main", TRAIN, 140), StackFrame("train", TRAIN, 98))


@dataclass(frozen=True)
class Work:
    """One function of the step: its identity and its mean seconds."""

    kind: str
    name: str
    seconds: float
    line: int = 0
    file: str = TRAIN
    detail: str = ""
    caller: str = ""
    frames: tuple[StackFrame, ...] = ()
    native: str = ""
    kernel: tuple[float | None, str] = (None, "")  # share of it that is in the kernel, and for what
    growth_s: float | None = None
    holder: tuple[str, str, int, str] = ("", "", 0, "")  # of the GIL: name, file, line, thread

    @property
    def stack(self) -> tuple[StackFrame, ...]:
        return (*ROOT, *self.frames, StackFrame(self.caller or self.name, self.file, self.line))


STEP = (
    Work("io", "read", 0.006, 40, detail="/data (ext4 254:1)", caller="Shard.load_batch"),
    Work("python", "tokenize", 0.004, 50),
    Work("python", "augment", 0.040, 56),
    Work("python", "build_mask", 0.003, 68),
    Work("python", "collate", 0.005, 74),
    Work(
        "python",
        "Linear.forward",
        0.018,
        130,
        f"{TORCH}/nn/modules/linear.py",
        frames=(StackFrame("Classifier.forward", TRAIN, 110),),
    ),
    Work("python", "device_wait", 0.080, 81, detail="sleep"),
    Work("python", "_engine_run_backward", 0.030, 820, f"{TORCH}/autograd/graph.py"),
    Work("python", "SGD.step", 0.008, 96, f"{TORCH}/optim/sgd.py"),
    Work("python", "Metrics.log_metrics", 0.002, 92),
    Work("sched", "ready", 0.004, 56, detail="queue", caller="augment"),
)


@dataclass
class Job:
    """A job to build windows of. `extra[rank]` is what a rank does besides, as (work, seconds per step)."""

    ranks: int = 8
    hosts: int = 1
    steps: int = 70
    noise: float = 0.05
    spread: float = 0.01  # persistent difference between healthy ranks
    stalls: float = 0.01  # share of rank-steps with a stall of 20 ms on average
    seed: int = 0
    window_s: float = 20.0
    start: float = 1_760_000_000.0
    name: str = "job-a"
    transfer_s: float = 0.04
    leaving_s: float = 0.0005  # mean time after the end of a collective at which a rank leaves it
    wander: float = 0.01  # standard deviation of what all ranks of a host share, correlated from step to step
    hidden: float = 0.3  # at most this share of a step's transfer goes on while ranks work already
    namespaces: int = 1  # node names per observed host
    extra: dict[int, list[tuple[Work, float]]] = field(default_factory=dict)
    scale: dict[int, float] = field(default_factory=dict)  # factor on every Python function of a rank
    onset: float = 0.0  # share of the steps that are healthy before extra begins
    slow_links: dict[str, float] = field(default_factory=dict)  # address → factor on its rate, both ways
    sent_bytes: float = 12e6  # per step and flow
    link_rate: float = 400e6
    ranks_columns: dict[int, dict[str, Any]] = field(default_factory=dict)
    counters: list[dict[str, Any]] = field(default_factory=list)
    read_bytes: dict[int, float] = field(default_factory=dict)  # per step, from files

    def node(self, rank: int) -> int:
        return rank * self.hosts * self.namespaces // self.ranks

    def address(self, rank: int) -> str:
        return f"198.18.0.{10 + self.node(rank)}"


def build(job: Job) -> list[Window]:
    """One window per observed host."""
    rng = np.random.default_rng(job.seed)
    works = list(STEP)
    seconds = np.empty((job.ranks, job.steps, 0))
    persistent = np.exp(rng.normal(0, job.spread, (job.ranks, 1)))
    columns = []
    for work in STEP:
        factor = np.array([job.scale.get(rank, 1.0) if work.detail != "sleep" else 1.0 for rank in range(job.ranks)])
        sleeping = 0.2 if work.detail == "sleep" else 1.0
        noise = np.exp(rng.normal(0, max(job.noise, 1e-9) * 2 * sleeping, (job.ranks, job.steps)))
        columns.append(work.seconds * factor[:, None] * persistent * noise)
    stalled = rng.random((job.ranks, job.steps)) < job.stalls
    columns[-1] = columns[-1] + stalled * rng.exponential(0.02, (job.ranks, job.steps))
    first = int(job.onset * job.steps)
    for rank, extras in job.extra.items():
        for work, each in extras:
            more = np.zeros((job.ranks, job.steps))
            more[rank, first:] = each * np.exp(rng.normal(0, job.noise, job.steps - first))
            works.append(work)
            columns.append(more)
    seconds = np.stack(columns, axis=2)
    seconds = seconds * _wandering(job)[:, :, None]
    own = seconds.sum(axis=2)
    slowest_link = min(job.slow_links.values(), default=1.0)
    base = job.sent_bytes / job.link_rate
    transfer = (job.transfer_s + base / slowest_link - base) * np.exp(rng.normal(0, 2 * job.noise, job.steps))
    total, wait, start = _lengths(job, own, transfer)
    by_host: dict[int, list[int]] = {}
    for rank in range(job.ranks):
        by_host.setdefault(rank * job.hosts // job.ranks, []).append(rank)
    return [_window(job, host, ranks, works, seconds, own, wait, total, start, rng) for host, ranks in by_host.items()]


def _wandering(job: Job) -> Any:
    """Ranks x steps: the factor on all work of a host, x(s) = 0.8 x(s - 1) + noise."""
    rng = np.random.default_rng((job.seed, 1))
    wander = job.wander if job.noise else 0.0
    shocks = rng.normal(0, 0.6 * wander, (job.hosts, job.steps))  # 0.6² = 1 - 0.8²
    shared = np.zeros_like(shocks)
    for step in range(job.steps):
        shared[:, step] = (0.8 * shared[:, step - 1] if step else 0.0) + shocks[:, step]
    return np.exp(shared)[np.arange(job.ranks) * job.hosts // job.ranks]


def _lengths(job: Job, own: Any, transfer: Any) -> tuple[Any, Any, Any]:
    """Ranks x steps: how long a rank's step is, what it stays in collectives, and when it begins."""
    rng = np.random.default_rng((job.seed, 2))
    seen = transfer * (1 - rng.uniform(0, job.hidden if job.noise else 0.0, job.steps))
    length = own.max(axis=0) + seen
    left = rng.exponential(job.leaving_s, own.shape) if job.noise and job.leaving_s else np.zeros(own.shape)
    left = np.minimum(left, 0.5 * seen.min())
    before = np.concatenate([np.zeros((job.ranks, 1)), left[:, :-1]], axis=1)
    total = length[None, :] + left - before
    start = np.concatenate([[0.0], np.cumsum(length)[:-1]])[None, :] + before
    return total, total - own, start


def _window(job: Job, host: int, ranks: list[int], works: list[Work], seconds: Any, own: Any, wait: Any, total: Any,
            start: Any, rng: np.random.Generator) -> Window:  # fmt: skip
    steps: list[StepRow] = []
    patterns = []
    tree = StackTree()
    of_kind = {kind: [i for i, work in enumerate(works) if work.kind == kind] for kind in ("io", "sched", "sync")}
    figures = (start, total, own, wait, *(seconds[:, :, index].sum(axis=2) for index in of_kind.values()))
    means = np.ascontiguousarray(seconds.transpose(0, 2, 1)).mean(axis=2).tolist()
    for rank in ranks:
        of_rank = zip(*(each[rank].tolist() for each in figures), strict=True)
        steps += [StepRow(rank, step, *of_step) for step, of_step in enumerate(of_rank)]
        for index, work in enumerate(works):
            mean = means[rank][index]
            if mean <= 0:
                continue
            if work.kind == "python" and work.detail == "":
                mean *= float(np.exp(rng.normal(0, 1 / np.sqrt(max(mean * job.steps * 99, 1)))))  # sampling at 99 Hz
            patterns.append(_pattern(rank, work, mean, job, tree))
        waiting = Work("collective", "allreduce", 0, 820, f"{TORCH}/autograd/graph.py", "gloo", "_engine_run_backward")
        patterns.append(_pattern(rank, waiting, float(wait[rank].mean()), job, tree))
    tables: dict[str, list[dict[str, Any]]] = {
        "ranks": [_rank(job, rank, host, float(total[rank].mean())) for rank in ranks],
        "patterns": patterns,
        "pauses": [],
        "collectives": [],
        "flows": [row for rank in ranks for row in _flows(job, rank, rng)],
        "counters": [_counter(**row) for row in job.counters if row.get("rank", -1) in (-1, *ranks)],
    }
    manifest = Manifest(WINDOW_SCHEMA, f"node-{host}", job.start, job.window_s, (job.name,), "0.1.0")
    made = {name: table_of(name, [ROWS[name](**row) for row in rows]) for name, rows in tables.items()}
    return Window(manifest, steps=table_of("steps", steps), stacks=table_of("stacks", tree.rows()), **made)


def _pattern(rank: int, work: Work, mean: float, job: Job, tree: StackTree) -> dict[str, Any]:
    return {"rank": rank, "thread": "training", "kind": work.kind, "name": work.name, "file": work.file, "line": work.line,
            "detail": work.detail, "caller": work.caller if work.kind != "python" else "", "stack": tree.add(work.stack),
            **dict(zip(("holder_name", "holder_file", "holder_line", "holder_thread"), work.holder, strict=True)), "native": work.native,
            "growth_s": work.growth_s, "kernel_share": work.kernel[0], "kernel_for": work.kernel[1],
            "beta": mean * job.steps / job.window_s, "mu": 1.0, "sigma": 0.0, "resource": "cpu", "count": job.steps,
            "total_s": mean * job.steps, "p50_s": mean, "p99_s": 1.2 * mean, "max_s": 1.3 * mean, "per_step_s": mean,
            "per_step_sd_s": 0.1 * mean,
            "bytes": int(job.read_bytes.get(rank, 0.0) * job.steps) if work.name == "read" else 0}  # fmt: skip


def _rank(job: Job, rank: int, host: int, step_s: float) -> dict[str, Any]:
    node = f"node-{host}" if job.namespaces == 1 else f"lab-host-{job.node(rank)}"
    return {"job": job.name, "rank": rank, "local_rank": rank, "world_size": job.ranks, "local_world_size": 0,
            "guessed": False, "title": "", "age_s": None, "role": "", "host": f"node-{host}",
            "node": node, "container": "", "pid": 4000 + rank, "inner_pid": 4000 + rank, "netns": 100 + job.node(rank),
            "addresses": [job.address(rank)], "gpus": [], "nics": ["eth0"], "cpus": "0-1", "python": "3.11.2",
            "command": "python train.py", "state": "running", "stopped_s": 0.0, "last_progress_s": step_s / 2,
            "in_collective_s": 0.0, "ended_s": None, "exit_status": None, "training_thread": 4000 + rank,
            "stack_source": "bpf", "samples": 1980, "failed_samples": 0, "owner": -1,
            **job.ranks_columns.get(rank, {})}  # fmt: skip


def _flows(job: Job, rank: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    """The ring's flow to the next rank, and a quiet one to the store."""
    following = (rank + 1) % job.ranks
    sender, receiver = job.address(rank), job.address(following)
    factor = min(job.slow_links.get(sender, 1.0), job.slow_links.get(receiver, 1.0)) if sender != receiver else 1.0
    speed = job.link_rate * factor * float(np.exp(rng.normal(0, 0.3))) * (1.0 if sender != receiver else 5.0)
    sent = int(job.sent_bytes * job.steps)
    swollen = 20.0 if factor < 0.6 else 3.0
    common = {"interface": "eth0", "received_bytes": sent, "rwnd_limited_s": 0.0, "sndbuf_limited_s": 0.0,
              "min_rtt_s": 0.0001, "delivery_rate_hz": speed}  # fmt: skip
    return [
        {"rank": rank, "local": f"{sender}:{40000 + rank}", "peer": f"{receiver}:{30000 + following}", "sent_bytes": sent,
         "retransmitted_bytes": 0, "busy_s": sent / speed, "rtt_s": 0.0001 * swollen, **common},
        {"rank": rank, "local": f"{sender}:{50000 + rank}", "peer": "198.18.0.10:29500", "sent_bytes": 2000,
         "retransmitted_bytes": 0, "busy_s": 0.5, "rtt_s": 0.0001, **common},
    ]  # fmt: skip


def _counter(**row: Any) -> dict[str, Any]:
    return {"scope": "rank", "instance": "", "comm": "", "pid": -1, "rank": -1, "unit": "s", "kind": "delta",
            "minimum": None, "maximum": None, "limit": None, **row}  # fmt: skip


def with_gpu_functions(window: Window, parts: Sequence[tuple[str, str, int, float]]) -> Window:
    """The same with GPU functions on each rank that has a row `kernels`: (kernel, place, its line, share of that row)."""
    rows = window.patterns.to_pylist()
    for whole in [row for row in rows if (row["kind"], row["name"]) == ("gpu", "kernels")]:
        for kernel, place, line, share in parts:
            seconds = {name: whole[name] * share for name in ("beta", "total_s", "per_step_s")}
            named = {"name": kernel, "caller": place, "file": TRAIN, "line": line, "detail": BY_LAUNCHES}
            rows.append(whole | seconds | named | {"thread": "gpu", "stack": -1})
    return columns(window, "patterns", rows)


def with_gpu_waits(window: Window, place: str, line: int, per_step: float, seconds: float) -> Window:
    """The same where each rank waits so often in each step for its GPU, at this place, for so many seconds in all."""
    rows = window.patterns.to_pylist()
    steps = int(window.steps.column("step").to_numpy().max()) + 1
    for row in [row for row in rows if (row["kind"], row["name"], row["thread"]) == ("gpu", "kernels", "training")]:
        waits = {
            "kind": "sync",
            "name": "cudaStreamSynchronize",
            "caller": place,
            "file": TRAIN,
            "line": line,
            "detail": "",
        }
        times = {"beta": 0.0, "total_s": seconds * steps, "per_step_s": seconds, "count": int(per_step * steps)}
        rows.append(row | waits | times | {"thread": "gpu", "stack": -1})
    return columns(window, "patterns", rows)


def columns(window: Window, name: str, rows: list[Mapping[str, Any]]) -> Window:
    """The same window with another table."""
    tables = {each: getattr(window, each) for each in TABLES}
    tables[name] = table_of(name, [ROWS[name](**row) for row in rows])
    return Window(window.manifest, **tables)


def own_of(window: Window) -> np.ndarray:
    """Own time by rank and step."""
    steps = window.steps
    shape = (steps.column("rank").to_numpy().max() + 1, steps.column("step").to_numpy().max() + 1)
    own = np.zeros(shape)
    own[steps.column("rank").to_numpy(), steps.column("step").to_numpy()] = steps.column("own_s").to_numpy()
    return own


def retimed(window: Window, own: np.ndarray, total: np.ndarray | None = None, **more: np.ndarray) -> Window:
    """The window with other own times (ranks x steps) in steps of other lengths, whose rest the ranks wait.

    total: None ends a step as long after its last rank as it ended before. more: seconds that are added to other columns.
    """
    rows = window.steps.to_pylist()
    if total is None:
        transfer = np.full(own.shape[1], np.inf)
        for row in rows:
            transfer[row["step"]] = min(transfer[row["step"]], row["wait_s"])
        total = own.max(axis=0) + transfer
    start = np.concatenate(([0.0], np.cumsum(total)[:-1]))
    for row in rows:
        at, step = (row["rank"], row["step"]), row["step"]
        row |= {"own_s": own[at], "seconds": total[step], "wait_s": total[step] - own[at], "start_s": start[step]}
        row |= {name: row[name] + seconds[at] for name, seconds in more.items()}
    return columns(window, "steps", rows)


def stalled(window: Window, rank: int, steps: Collection[int], seconds: float) -> Window:
    """The window in which one rank works so much longer in these steps, while the others wait for it."""
    rows = window.steps.to_pylist()
    for row in rows:
        if row["step"] in steps:
            row["seconds"] += seconds
            row["own_s" if row["rank"] == rank else "wait_s"] += seconds
    return columns(window, "steps", rows)


def first(verdict: Verdict) -> Suspect:
    """The first suspect; who expects one is shown the notes of a verdict without any."""
    assert verdict.suspects, (verdict.status, verdict.notes)
    return verdict.suspects[0]


def codes(verdict: Verdict) -> list[NoteCode]:
    """What the notes of a verdict are about."""
    return [note.code for note in verdict.notes]


def claimed(window: Window, ranks: int) -> Window:
    """What another host sends that claims ranks of the same job up to this number, and shows a step of none."""
    like = window.ranks.to_pylist()[0]
    numbers = range(window.ranks.num_rows, ranks)
    liar = replace(window, manifest=replace(window.manifest, host="liar"))
    for table in ("steps", "patterns", "flows", "counters", "collectives"):
        liar = columns(liar, table, [])
    return columns(liar, "ranks", [{**like, "rank": number, "pid": number} for number in numbers])


def said(verdict: Verdict, code: NoteCode) -> str:
    """The texts of a verdict's notes of one kind, one a line."""
    return "\n".join(note.text for note in verdict.notes if note.code is code)


# ---- faults with a known answer --------------------------------------------------------------------------------------

BUSY = Work("python", "augment", 0, 56)
ASLEEP = Work("python", "collate", 0, 74, detail="sleep")
QUEUE = Work("sched", "ready", 0, 56, detail="queue", caller="augment")
THROTTLED = Work("sched", "ready", 0, 56, detail="throttled", caller="augment")
READ = Work("io", "read", 0, 40, detail="/data (ext4 254:1)", caller="Shard.load_batch")


def slow_python(rank: int, seconds: float, work: Work = BUSY, **more: Any) -> Job:
    return Job(extra={rank: [(work, seconds)]}, **more)


def hogged(rank: int, seconds: float, **more: Any) -> Job:
    job = Job(extra={rank: [(QUEUE, seconds)]}, scale={rank: 1.05}, **more)
    taken = seconds * job.steps * (1 - job.onset)
    job.counters += [
        {"rank": rank, "name": "cpu.taken_s", "comm": "compress-logs", "pid": 777, "value": 0.7 * taken},
        {"rank": rank, "name": "cpu.taken_s", "comm": "compress-logs", "pid": 778, "value": 0.3 * taken},
        {"rank": rank, "name": "cpu.taken_s", "comm": "python", "pid": 4000, "value": 0.05 * taken},
    ]
    return job


def throttled(rank: int, seconds: float, **more: Any) -> Job:
    job = Job(extra={rank: [(THROTTLED, 0.8 * seconds), (QUEUE, 0.2 * seconds)]}, scale={rank: 1.05}, **more)
    job.counters += [
        {"scope": "cgroup", "rank": each, "instance": f"/job/rank{each}", "name": "cpu.throttled_s", "limit": 0.4,
         "value": seconds * job.steps * (1 - job.onset) if each == rank else 0.0}
        for each in range(job.ranks)
    ]  # fmt: skip
    return job


def slow_read(rank: int, seconds: float, **more: Any) -> Job:
    job = Job(extra={rank: [(READ, seconds)]}, **more)
    job.counters.append({"scope": "cgroup", "rank": rank, "instance": "254:0 read", "name": "disk.throttled", "kind": "gauge",
                         "unit": "bytes/s", "value": 5e6, "limit": 5e6})  # fmt: skip
    return job


def slow_link(node: int, factor: float, shaper: bool = True, **more: Any) -> Job:
    job = Job(**{"ranks": 8, "namespaces": 4, "slow_links": {f"198.18.0.{10 + node}": factor}, **more})
    if shaper:
        job.counters += [
            {"scope": "nic", "rank": rank, "instance": "eth0", "name": "qdisc.rate_limit", "kind": "gauge", "unit": "bytes/s",
             "value": job.link_rate * (factor if job.node(rank) == node else 1.0)}
            for rank in range(job.ranks)
        ]  # fmt: skip
    return job


def stopped(rank: int, **more: Any) -> Job:
    job = Job(**more)
    for each in range(job.ranks):
        job.ranks_columns[each] = {"last_progress_s": 8.0, "in_collective_s": 7.9}
    job.ranks_columns[rank] = {"state": "stopped", "stopped_s": 8.1, "last_progress_s": 8.2}
    return job


def sure(found: Differences) -> list[int]:
    """Rows whose steps alone would have them accused, whatever the reason."""
    return np.flatnonzero(strength(found) >= limits.SCORE_LEAST + np.log(len(found.z))).tolist()
