"""A real window of a real job whose hosts keep their GPUs idle: what is wasted is told, with the place."""

from __future__ import annotations

from pathlib import Path

import pytest
from plain_gpu_job import PlainJob

from labkit.gpu.sim.sim import CACHE, build
from rankscope.diagnose.infer.solve.judge import diagnose

pytestmark = pytest.mark.alone  # each of two ranks wants a CPU of its own

IDLE = {
    "launch-bound": (("--layers", "4000", "--compute-ms", "10"), "Kernel.launch"),
    # 20 waits in the forward pass: after each the GPU idles for the millisecond that the host needs for the next
    # layer, however fast the machine is. Without them the host would be ahead by 0.3 ms more with each layer.
    "synchronised": (
        ("--layers", "20", "--layer-host-ms", "1", "--compute-ms", "80", "--check-every", "1"),
        "Stream.synchronize",
    ),
}


@pytest.mark.parametrize("cause", IDLE)
def test_hosts_that_keep_their_gpus_idle_are_told_with_the_place(cause: str, tmp_path: Path) -> None:
    arguments, place = IDLE[cause]
    build(CACHE)
    # Samples so small that to make them is no waste.
    with PlainJob(tmp_path, 2, (*arguments, "--gradient-mb", "10", "--batch-mb", "10"), 1 << 16) as job:
        window, _ = job.window(8.0)  # launches are located every 6 s
    verdict = diagnose([window])
    assert verdict.status == "inefficient", (verdict.status, verdict.suspects, verdict.notes)
    first = verdict.suspects[0]
    assert (first.component, first.cause, first.ranks) == ("gpu", cause, (0, 1))
    assert first.function is not None and first.function.name == place
