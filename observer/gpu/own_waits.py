"""Separate waits for a rank's own kernels from waits in collectives, where GPU activity does not. Pure.

Until a rank has put the first collective of a step on a stream, its GPU has nothing to run but what
the rank itself launched: a thread that waits for it then waits for kernels of its own, not for
other ranks. So, of the waits that begin in step s,

    own(w) = start(w) < the first collective of s put on a stream by any thread of the process

Where s has none, nothing is known (collectives in a CUDA graph are not seen), and after it the wait
may be for the collective. Own waits count as computing of the GPU (`gpu` 'kernels', by waiting
function): they are in the steps' own time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rankscope.observer.steps.found import FoundSteps
from rankscope.observer.thread import timeline
from rankscope.observer.thread.functions import FunctionKey
from rankscope.observer.thread.samples import Words
from rankscope.observer.thread.timeline import Timeline
from rankscope.observer.window.schema import KERNELS
from rankscope.probes.base.arrays import Bools, Floats


def mark_own_waits(line: Timeline, words: Words, enqueued_s: Floats, steps: FoundSteps) -> tuple[Timeline, Words]:
    """Mark waits for the rank's own kernels as KERNELS, in the timeline and its names; return both.

    `enqueued_s`: when collectives were put on streams.
    """
    waiting = line.kind == timeline.GPU_WAIT
    scopes, first = np.unique(line.device[waiting], return_index=True)
    own = scopes[_before_collectives(line.start_s[waiting][first], np.sort(enqueued_s), steps)]
    if not len(own):
        return line, words
    functions = list(words.device)
    for scope in own.tolist():
        functions[scope] = FunctionKey("gpu", KERNELS, detail=functions[scope].detail, resource="gpu")
    kind = np.where(waiting & np.isin(line.device, own), timeline.KERNELS, line.kind)
    return replace(line, kind=kind), replace(words, device=functions)


def _before_collectives(start_s: Floats, enqueued_s: Floats, steps: FoundSteps) -> Bools:
    """Tell which of these times lie in a step before its first collective; False in steps without any.

    `enqueued_s`: when collectives were put on streams, in order.
    """
    at = steps.index(start_s)
    begin = steps.edge_s[np.maximum(at, 0)] if steps.count else start_s
    end = steps.edge_s[np.maximum(at, 0) + 1] if steps.count else start_s
    following = np.append(enqueued_s, np.inf)[np.searchsorted(enqueued_s, begin)]
    before: Bools = (at >= 0) & (following < end) & (start_s < following)
    return before
