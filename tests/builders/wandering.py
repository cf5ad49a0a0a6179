"""Windows whose noise wanders from step to step."""

from __future__ import annotations

import numpy as np
from builders import Job, build, columns

from rankscope.observer.window.folder import Window


def wandering(job: Job, sd: float | np.ndarray, rho: float) -> Window:
    """The job's only window with own times multiplied by exp(AR(1)), of all ranks alike or each of its own sd; patterns stay."""
    window, rng = build(job)[0], np.random.default_rng(job.seed + 5)
    drift = np.zeros((job.ranks, job.steps))
    for step in range(job.steps):
        before = drift[:, step - 1] if step else np.zeros(job.ranks)
        drift[:, step] = rho * before + rng.normal(0, sd * np.sqrt(1 - rho**2), job.ranks)
    rows = window.steps.to_pylist()
    own = np.zeros((job.ranks, job.steps))
    transfer = np.full(job.steps, np.inf)
    for row in rows:
        own[row["rank"], row["step"]] = row["own_s"] * np.exp(drift[row["rank"], row["step"]])
        transfer[row["step"]] = min(transfer[row["step"]], row["wait_s"])
    total = own.max(axis=0) + transfer
    start = np.concatenate(([0.0], np.cumsum(total)[:-1]))
    for row in rows:
        mine = own[row["rank"], row["step"]]
        row |= {
            "own_s": mine,
            "seconds": total[row["step"]],
            "wait_s": total[row["step"]] - mine,
            "start_s": start[row["step"]],
        }
    return columns(window, "steps", rows)
