"""Windows whose noise wanders from step to step."""

from __future__ import annotations

import numpy as np
from builders import Job, build, own_of, retimed

from rankscope.observer.window.folder import Window


def wandering(job: Job, sd: float | np.ndarray, rho: float) -> Window:
    """The job's only window with own times multiplied by exp(AR(1)), of all ranks alike or each of its own sd; patterns stay."""
    window, rng = build(job)[0], np.random.default_rng(job.seed + 5)
    drift = np.zeros((job.ranks, job.steps))
    for step in range(job.steps):
        before = drift[:, step - 1] if step else np.zeros(job.ranks)
        drift[:, step] = rho * before + rng.normal(0, sd * np.sqrt(1 - rho**2), job.ranks)
    return retimed(window, own_of(window) * np.exp(drift))
