"""Whether a job has begun to train; a start takes long, and is no hang.

forming(r)  = the training thread of rank r waits inside a function that connects the ranks of a job
              with each other
exchanged   = most bytes that a TCP connection between two ranks has carried since it was opened;
              unknown in windows of older observers
unbegun     = no rank ended a step, a collective or a backward pass in the window, and either every
              rank that waits for others is forming, or exchanged is known and at most
              HANDSHAKE_BYTES
starting    = unbegun, and the oldest process of the job is younger than limits.START_SECONDS

Without evidence (shared memory, RDMA, NVLink) a job counts as begun.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rankscope.diagnose import limits
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.observer.window.stacks import StackFrame
from rankscope.probes.base.arrays import Bools

_C10D = "torch/distributed/distributed_c10d.py"
# Functions that return when all ranks of the job have come: (end of the file's path, qualified
# name; '' any).
_FORMING = (
    (_C10D, "init_process_group"),
    ("torch/distributed/rendezvous.py", ""),
    ("jax/_src/distributed.py", "initialize"),
    ("jax/_src/distributed.py", "State.initialize"),
)
# Above what addresses, handshakes and a store carry while a small job starts (figures:
# diagnose/measured.md).
HANDSHAKE_BYTES = 1 << 16


def group_call(frames: Sequence[StackFrame]) -> str:
    """Name of the outermost function on a stack that waits for other ranks of a group; '' without one."""
    calls = (frame.name for frame in frames if frame.file.endswith(_C10D) and "<locals>" not in frame.name)
    return forming_call(frames) or next(calls, "")


def forming_call(frames: Sequence[StackFrame]) -> str:
    """Name of the outermost function on a stack that connects the ranks; '' without one."""
    for frame in frames:
        if any(frame.file.endswith(file) and name in ("", frame.name) for file, name in _FORMING):
            return frame.name
    return ""


def is_starting(fleet: Fleet) -> bool:
    """Whether the job has not begun to train and is too young for that to be a hang."""
    age_s = fleet.ranks.age_s
    if age_s is None or not np.isfinite(age_s).any():
        return False
    return float(np.nanmax(age_s)) + fleet.seconds < limits.START_SECONDS and is_unbegun(fleet)


def is_unbegun(fleet: Fleet) -> bool:
    """Return whether no step or collective has ended yet and the ranks still connect; False without evidence.

    Evidence: every waiting rank is in a function that connects ranks, or connections between ranks
    are known to have carried at most HANDSHAKE_BYTES each.
    """
    ranks = fleet.ranks
    if fleet.timed or fleet.steps.count or np.isfinite(ranks.last_progress_s).any():
        return False
    waiting = np.flatnonzero(ranks.in_collective_s > 0)
    forming = _forming(fleet)
    if len(waiting) and forming[waiting].all():
        return True
    known = fleet.flows.exchanged_bytes
    known = known[np.isfinite(known)] if known is not None else np.empty(0)
    return bool(len(known) and known.max() <= HANDSHAKE_BYTES)


def _forming(fleet: Fleet) -> Bools:
    """Mask of ranks whose training thread is mostly inside a function that connects the ranks."""
    table = fleet.patterns
    rows = np.flatnonzero(
        (table.thread.codes == table.thread.code("training")) & (table.share > 0) & (table.stack.codes >= 0)
    )
    codes, which = np.unique(table.stack.codes[rows], return_inverse=True)
    forms = np.array([bool(forming_call(table.stack.of(int(code)))) for code in codes], dtype=bool)
    count, share = len(fleet.ranks), table.share[rows]
    inside = np.bincount(table.rank[rows], share * forms[which.reshape(-1)], count)
    return np.asarray(inside > limits.HOLDS_LEAST * np.bincount(table.rank[rows], share, count), dtype=np.bool_)
