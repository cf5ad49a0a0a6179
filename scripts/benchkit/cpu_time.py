"""CPU time of what a bench started."""

from __future__ import annotations

import resource


def children_cpu_s() -> float:
    """CPU seconds of all children that have ended, theirs included. The kernel adds them up; psutil could only poll."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
