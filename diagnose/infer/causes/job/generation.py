"""Servers of a run that make its iterations longer: one is slower than the others, or their work is uneven.

slow server   answers take it longer, as a whole and per byte, than the others of its program
              (model/servers.py); a server that always gets the longest prompts of a batch looks
              the same, so the advice asks for that; lost = of the time in which it alone was asked, at most what it
              would gain at their pace
uneven work   the servers are as fast as each other, and in each round of generation some are idle
              until the last has answered: rounds(any asked) - mean over servers(asked), as the
              observer measures it by round

All ranks wait for both: the scope is all of them. Uneven work is by design (lengths of sequences,
how requests are divided), never a fault of a server.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rankscope.diagnose import limits
from rankscope.diagnose.infer.causes.hypothesis import NO_COUNTER, SEEN, Hypothesis
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.causes.rows import Clear, Row, Taken
from rankscope.diagnose.infer.causes.whole_job import WholeJob
from rankscope.diagnose.infer.model.servers import RunServer, SlowServer, rounds_of, servers_of, slowest
from rankscope.diagnose.infer.verdict.contract import Evidence

_SLOW_SHARE = limits.ALONE_SHARE  # of its time, by which a server must exceed the others
_CLEAR_Z = 4.0  # beyond which a slow server explains the rounds, and they are not called uneven


@cause("process", "slow-server", scope="all", witness="answers slower, per byte too",
       says="^the server {instance|of the run} answers more slowly than the others")  # fmt: skip
@cause("workload", "uneven-generation", scope="all", witness="servers idle until the last answers",
       says="^the servers' work is uneven: some are idle until the longest sequences are generated",
       action="In each round some servers wait for the longest sequences: divide prompts by their expected length, "
       "limit lengths, or train on what has come (asynchronous generation).")  # fmt: skip
def generation(job: WholeJob) -> Iterator[Row]:
    """Propose the slow server of a run, or else the uneven work of its servers."""
    servers = [one for one in servers_of(job.fleet) if one.generates]
    if len(servers) < 2 or job.fleet.seconds <= 0:
        return
    worst = slowest(servers)
    per_step = job.scene.step_s / job.fleet.seconds
    if worst is not None and worst.share >= _SLOW_SHARE and worst.z >= _CLEAR_Z:
        yield _slow(job, worst, len(servers), per_step)
    else:
        yield from _uneven(job, servers, per_step)


def _slow(job: WholeJob, worst: SlowServer, looked_at: int, per_step: float) -> Row:
    """Return the row of process/slow-server, the slowest of `looked_at` servers.

    `per_step`: step over window, which turns seconds of the window into seconds per step.
    """
    one = worst.server
    lost_s = min(one.alone_s, worst.share * one.asked_s) * per_step
    pace, answer = one.pace, one.answer_s
    assert pace is not None and answer is not None
    evidence = [
        Evidence(
            "network", "time per kilobyte of its answers", 1e3 * pace.middle, 1e3 * worst.usual_pace, "s", worst.others
        ),
        Evidence("network", "time of an answer", answer.middle, worst.usual_answer_s, "s", worst.others),
        Evidence(
            "network", "time in which only this server was asked", 100 * one.alone_s / job.fleet.seconds, None, "%"
        ),
    ]
    if math.isfinite(one.queue_s):
        share = 100 * one.queue_s / job.fleet.seconds
        evidence.append(Evidence("scheduler", "its threads ready but not running", share, None, "% of the window"))
    found = Hypothesis(
        scope="all", component="process", cause="slow-server", rows=(), lost_s=float("nan"), support=NO_COUNTER,
        evidence=tuple(evidence), host=one.host, instance=one.address, comm=one.program, pid=one.pid,
        action=f"Look at {one.program or 'the server'} (pid {one.pid}) at {one.address} on {one.host}: what else uses its GPU and "
        "CPUs, how its code and settings differ from the other servers', and whether its prompts are longer than theirs.",
    )  # fmt: skip
    return Row(found, Taken(lost_s), Clear(worst.z, looked_at=looked_at))


def _uneven(job: WholeJob, servers: Sequence[RunServer], per_step: float) -> Iterator[Row]:
    """Yield the row of workload/uneven-generation if servers idle in rounds for 10 % of the step or more.

    `per_step`: step over window, which turns seconds of the window into seconds per step.
    """
    rounds = rounds_of(job.fleet)
    if rounds is None or rounds.count < limits.STEPS_LEAST:
        return
    lost_s = rounds.uneven_s * per_step
    floor_s = limits.SCALE_FLOOR * rounds.mean_s
    error = 1.25 * max(rounds.spread.high - rounds.spread.low, 0.0) / 1.35 / math.sqrt(rounds.count)
    z = rounds.spread.middle / max(math.hypot(error, floor_s), 1e-12)
    if lost_s < limits.ALONE_SHARE * job.scene.step_s or z <= 0:
        return
    evidence = (
        Evidence("network", "a server is idle in a round of generation, median", rounds.spread.middle, None, "s"),
        Evidence("network", "a round of generation, mean", rounds.mean_s, None, "s"),
        Evidence("network", "servers that are asked", float(len(servers)), None, ""),
    )
    found = Hypothesis(
        scope="all", component="workload", cause="uneven-generation", rows=tuple(range(len(job.fleet.ranks))),
        lost_s=float("nan"), support=SEEN,
        evidence=evidence,
    )  # fmt: skip
    yield Row(found, Taken(lost_s), Clear(z))
