"""Names of the slots of `rs_counters`, the event counts of the programs in the kernel, summed over
CPUs.

The names are those of enum rs_counter in common.bpf.h, in its order
(tests/unit/probes/test_c_mirrors.py compares them).
"""

from __future__ import annotations

COUNTERS = (
    "ring_full", "thread_map_full", "call_map_full", "call_unmatched", "file_map_full", "file_no_device", "taker_map_full",
    "stack_map_full", "walk_ok", "walk_no_frame", "walk_stale", "walk_failed", "walk_truncated", "negative_time", "short",
    "walk_disturbed", "call_site_map_full", "arrival_unseen", "leaving_unseen", "wake_unseen",
    "call_share_full", "taker_new", "thread_share_full",
)  # fmt: skip
# Counters of events that were not observed; the others count events that are no loss.
LOSSES = frozenset(COUNTERS) - {
    "walk_ok", "short", "call_unmatched", "walk_no_frame", "arrival_unseen", "wake_unseen", "taker_new",
}  # fmt: skip
# enum rs_process_role: values of the map rs_targets for each watched process.
RANK, MEMBER = 1, 2
