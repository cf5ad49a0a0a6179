"""A pid names a process of one host: ranks of other hosts may have the pid of a stranger, or of a rank here."""

from __future__ import annotations

import numpy as np
import pytest
from builders import build, first, hogged

from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.model.evidence.job_processes import rank_of_process, ranks_named
from rankscope.diagnose.infer.solve.judge import diagnose

SLOW, HOG = 1, 777


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_stranger_with_the_pid_of_a_rank_of_another_host_stays_a_stranger(hosts: int) -> None:
    job = hogged(SLOW, 0.12, ranks=8, hosts=hosts)
    # GIVEN the last rank, on the last host, that has by chance the pid of the program that takes the CPU from rank 1
    job.ranks_columns = {7: {"pid": HOG}} if hosts > 1 else {}
    suspect = first(diagnose(build(job)))
    # THEN that program is named all the same
    assert (suspect.component, suspect.cause, suspect.ranks) == ("cpu", "contended", (SLOW,))
    assert f"compress-logs (2 processes: {HOG}, {HOG + 1})" in suspect.action


def test_processes_are_ranks_of_the_job_on_their_own_host_only() -> None:
    job = hogged(SLOW, 0.12, ranks=8, hosts=2)
    job.ranks_columns = {7: {"pid": HOG}}
    job.counters.append({"rank": 7, "name": "cpu.taken_s", "comm": "python", "pid": 4006, "value": 0.5})
    job.counters.append({"rank": 7, "name": "cpu.taken_s", "comm": "gone", "pid": -1, "value": 0.5})
    fleet = gather(build(job))
    rows = fleet.counters.rows("cpu.taken_s")
    table = fleet.counters.table
    found = {
        (int(table.rank[row]), int(table.pid[row])): int(of)
        for row, of in zip(rows, rank_of_process(fleet, rows), strict=True)
    }
    assert found[SLOW, HOG] == -1 and found[SLOW, 4000] == 0 and found[7, 4006] == 6 and found[7, -1] == -1
    counters = [fleet.counters.at(int(row)) for row in rows]
    here, there = fleet.ranks.observed_on[SLOW], fleet.ranks.observed_on[7]
    assert ranks_named(fleet, counters) == {(here, 4000): 0, (there, 4006): 6, (there, HOG): 7}
    assert rank_of_process(fleet, np.empty(0, np.int64)).tolist() == []
