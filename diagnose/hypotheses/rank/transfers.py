"""Transfers that are known to contain no waiting (timings that somebody else measured): the rank's own path is slow.

Convicts: such time above the peers'. Acquits: none above the peers'. There are no counters beside timings.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.hypotheses.hypothesis import Hypothesis
from rankscope.diagnose.hypotheses.rank.case import Case
from rankscope.diagnose.hypotheses.rank.device import device_time, slow
from rankscope.diagnose.hypotheses.registry import cause
from rankscope.diagnose.model.waits import TRANSFER


@cause("network", "slow-link", witness="transfers longer than the peers'",
       action="Look at the links of this rank: speed, errors, congestion.")  # fmt: skip
def judge(case: Case) -> Iterator[Hypothesis]:
    """One charge if the rank's transfers take longer than its peers'."""
    device = device_time(case, "collective", TRANSFER)
    if device is not None:
        yield slow(case, device, "network", "slow-link")
