"""How fast this machine is, as it is now: what code may cost is told in so many times a piece of work that is always the same.

Seconds say little: the same core takes twice as long for the same work when others share it, or on another day. What a clock ends,
a budget or a deadline, stays in seconds.
"""

from __future__ import annotations

import time


def pace_s() -> float:
    """CPU seconds of a fixed piece of work: 0.2 s on a usual core."""
    began = time.thread_time()
    sum(number * number for number in range(3_000_000))
    return time.thread_time() - began
