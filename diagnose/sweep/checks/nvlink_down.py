"""All NVLinks are up.

Reads the state of each link from NVML. Expected are as many as a sibling of the same name has, or as an earlier sweep saw. A GPU
with fewer is critical: collectives go around it or take PCIe. GPUs without NVLink are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, NotApplicable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.gpus import gpus, name_of

ID = "nvlink.down"
SETTINGS: dict[str, float] = {}


def run(context: Context) -> Iterator[Finding]:
    """Yield one finding per GPU: critical if fewer NVLinks are up than a sibling has or an earlier sweep saw, else ok.

    Raises NotApplicable if no NVLink is in use.
    """
    everything = gpus(context)
    active = {gpu.index: sum(link.active for link in gpu.links) for gpu in everything}
    judged = 0
    for gpu in everything:
        now = active[gpu.index]
        siblings = max(active[other.index] for other in everything if other.name == gpu.name)
        word = context.recall(f"{gpu.uuid}") or "0"
        expected = max(siblings, int(word) if word.isdigit() else 0)
        if not expected:
            continue  # no links on this host: a single GPU, or none connected
        judged += 1
        context.keep(f"{gpu.uuid}", str(expected))
        if now < expected:
            down = ", ".join(str(link.link) for link in gpu.links if not link.active)
            yield context.critical(
                "NVML", float(now), unit="links up", instance=name_of(gpu), expected=f"{expected} links up",
                why=f"links {down} are down" if down else "links are missing",
                action="Drain the host and reset the GPUs; check bridge or switch (nvidia-smi nvlink -s).",
            )  # fmt: skip
        else:
            yield context.ok("NVML", float(now), unit="links up", instance=name_of(gpu))
    if not judged:
        raise NotApplicable("no NVLink is in use")
