"""Transfers without waiting, as external timings have them: the rank's own path is slow.

Evidence for: such time above the peers'. Timings have no counters.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.infer.causes.hypothesis import Hypothesis
from rankscope.diagnose.infer.causes.rank.case import Case
from rankscope.diagnose.infer.causes.rank.device import device_time, slow
from rankscope.diagnose.infer.causes.registry import cause
from rankscope.diagnose.infer.model.waits import TRANSFER


@cause("network", "slow-link", witness="transfers longer than the peers'",
       action="Look at the links of this rank: speed, errors, congestion.")  # fmt: skip
def judge(case: Case) -> Iterator[Hypothesis]:
    """Propose network/slow-link if the rank's transfers take longer than its peers'."""
    device = device_time(case, "collective", TRANSFER)
    if device is not None:
        yield slow(case, device, "network", "slow-link")
