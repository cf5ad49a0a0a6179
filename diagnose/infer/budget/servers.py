"""Time in which ranks wait for servers of the run, and the stages of their iterations.

Waits of a training thread for a socket or another thread are, up to the time in which a server had
a request of the rank unanswered (`asked_s` of its steps), waits for servers. They are divided among
generation and transfers to servers as these divide the servers' time, and among the servers as they
were asked alone or together.

Stages: the loop is the lowest function of the user's that nearly all of a rank's time passes
through; the stages are what it calls.
"""

from __future__ import annotations

import numpy as np

from rankscope.diagnose import budgets, limits
from rankscope.diagnose.infer.budget.labels import Label
from rankscope.diagnose.infer.budget.spent import CODE, Spent
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.infer.model.servers import RunServer, servers_of
from rankscope.diagnose.infer.verdict.budget import Kind, Stage
from rankscope.diagnose.infer.verdict.function import Function
from rankscope.diagnose.stats.robust import mean_of_known
from rankscope.observer.window.stacks import StackFrame

_WAITS = ("futex", "poll", "recv", "select", "epoll", "read", "connect", "send", "semaphore")
_NEARLY_ALL = 0.9  # of a rank's time passes through its training loop


def with_servers(fleet: Fleet, spent: Spent) -> Spent:
    """Move waits for servers from LOCKS to new rows of kinds GENERATION and SERVERS; unchanged without servers."""
    asked_s = fleet.steps.asked_s
    servers = [one for one in servers_of(fleet) if one.generates] if asked_s is not None else []
    if asked_s is None or not servers:
        return spent
    table = fleet.patterns
    waits = np.isin(table.name.codes[spent.rows], [table.name.code(name) for name in _WAITS])
    rows = np.flatnonzero(waits & (spent.kind == CODE[Kind.LOCKS]))
    wait_s = np.bincount(spent.rank[rows], spent.seconds[rows], len(spent.length_s))
    wanted_s = np.nan_to_num(mean_of_known(asked_s))
    share = np.clip(np.divide(wanted_s, wait_s, out=np.zeros(len(wait_s)), where=wait_s > 0), 0.0, 1.0)
    moved_s = spent.seconds[rows] * share[spent.rank[rows]]
    for kind, label, part in _parts(servers):
        labels = spent.labels if label in spent.labels else (*spent.labels, label)
        number = np.full(len(rows), labels.index(label), dtype=np.int64)
        spent = spent.with_parts(rows, part * moved_s, CODE[kind], number, labels)
    return spent


def _parts(servers: list[RunServer]) -> list[tuple[Kind, Label, float]]:
    """Return (kind, label, part of the waits) for these servers and their kinds; the parts add up to 1."""
    weights: dict[tuple[Kind, str], float] = {}
    for kind, name in ((Kind.GENERATION, "asked_s"), (Kind.SERVERS, "transfer_s")):
        longest_s = max(np.nan_to_num(getattr(one, name)) for one in servers)
        total_s = sum(np.nan_to_num(getattr(one, name)) for one in servers)
        for one in servers:
            part = np.nan_to_num(getattr(one, name)) / total_s * longest_s if total_s > 0 else 0.0
            weights[kind, one.words] = weights.get((kind, one.words), 0.0) + float(part)
    total = sum(weights.values())
    return [(kind, (words, None), each / total) for (kind, words), each in weights.items() if each > 0]


def stages_of(fleet: Fleet, spent: Spent) -> tuple[Stage, ...]:
    """Return the stages of an iteration of the ranks that ask servers, largest first; () without such ranks or a loop.

    A stage is a function that the training loop calls, in seconds per step, mean over these ranks;
    a last one without a function is the rest of the step.
    """
    asked_s = fleet.steps.asked_s
    asking = np.flatnonzero(np.nan_to_num(mean_of_known(asked_s)) > 0) if asked_s is not None else np.empty(0)
    mine = np.flatnonzero(np.isin(spent.rank, asking))
    stack = fleet.patterns.stack
    paths = {code: stack.of(code) for code in np.unique(stack.codes[spent.rows[mine]]).tolist() if code >= 0}
    seconds: dict[int, float] = {}
    for row in mine.tolist():
        code = int(stack.codes[spent.rows[row]])
        seconds[code] = seconds.get(code, 0.0) + float(spent.seconds[row]) / len(asking)
    whole_s = sum(each for code, each in seconds.items() if code in paths)
    loop = _loop(paths, seconds, whole_s, spent)
    if not loop:
        return ()
    found: dict[StackFrame, float] = {}
    for code, path in paths.items():
        if tuple(path[: len(loop)]) == loop and len(path) > len(loop):
            below = path[len(loop)]
            found[below] = found.get(below, 0.0) + seconds[code]
    stages = sorted(found.items(), key=lambda each: -each[1])[: budgets.SHOWN]
    length_s = float(spent.length_s[asking].mean())
    rest_s = max(length_s - sum(each for _, each in stages), 0.0)
    named = [Stage(Function("python", frame.name, frame.file, frame.line), each) for frame, each in stages]
    return (*named, Stage(None, rest_s)) if rest_s >= limits.NOTHING * length_s else tuple(named)


def _loop(
    paths: dict[int, list[StackFrame]], seconds: dict[int, float], whole_s: float, spent: Spent
) -> tuple[StackFrame, ...]:
    """Return the frames down to the training loop: the lowest user's function with nearly all time; () without one.

    `paths`: frames of the stacks by code; `seconds`: of each code; `whole_s`: the sum over `paths`.
    """
    prefix: tuple[StackFrame, ...] = ()
    loop: tuple[StackFrame, ...] = ()
    while whole_s > 0:
        through: dict[StackFrame, float] = {}
        for code, path in paths.items():
            if len(path) > len(prefix) and tuple(path[: len(prefix)]) == prefix:
                below = path[len(prefix)]
                through[below] = through.get(below, 0.0) + seconds[code]
        frame = max(through, key=lambda each: through[each], default=None)
        if frame is None or through[frame] < _NEARLY_ALL * whole_s:
            return loop
        prefix = (*prefix, frame)
        if spent.frames.is_users(frame):
            loop = prefix
    return loop
