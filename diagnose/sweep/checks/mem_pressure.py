"""Nobody waits for memory.

Reads /proc/pressure/memory ("full": all tasks of the host were stalled at once) as a share of the time since the last sweep, and
MemAvailable as a share of MemTotal in /proc/meminfo. A host that reclaims or swaps stops its ranks for milliseconds to
seconds at random moments. Never critical: any user's program can use memory up.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.sweep.context import Context, Unreadable
from rankscope.diagnose.sweep.finding import Finding
from rankscope.probes.host.cpu_memory import sample_host

ID = "mem.pressure"
SETTINGS = {"warning_percent": 2.0, "available_percent": 2.0}
_ACTION = "See what uses the memory (ps --sort=-rss, tmpfs, page cache of the job); give it less or the host more."


def run(context: Context) -> Iterator[Finding]:
    """Yield the share of time in which all tasks waited for memory, and the memory available; bad ones are warnings.

    Raises Unreadable if neither can be read.
    """
    host = context.shared.get("host", lambda: sample_host(context.root, clocks=False))
    meminfo = _meminfo(context.text("proc/meminfo") or "")
    memory = next((pressure for pressure in host.pressures if pressure.resource == "memory"), None)
    if memory is None and "MemAvailable" not in meminfo:
        raise Unreadable("neither /proc/pressure/memory nor /proc/meminfo can be read", "Boot with psi=1.")
    if memory is not None:
        percent = round(100 * context.grown("full_s", memory.full_s).share, 2)
        yield context.judged(
            percent, context.number("warning_percent"), float("inf"), "/proc/pressure/memory",
            unit="%", what="time with all tasks stalled since the last sweep",
            why="tasks wait for memory to be reclaimed or swapped in", action=_ACTION,
        )  # fmt: skip
    total = meminfo.get("MemTotal", 0)
    if total and "MemAvailable" in meminfo:
        available = round(100 * meminfo["MemAvailable"] / total, 2)
        if available < context.number("available_percent"):
            yield context.warning(
                "/proc/meminfo", available, unit="%", expected=f"at least {context.number('available_percent'):g} % available",
                why="the next allocation may kill a process", action=_ACTION, instance="available",
            )  # fmt: skip
        else:
            yield context.ok("/proc/meminfo", available, unit="%", instance="available")


def _meminfo(text: str) -> dict[str, int]:
    """Parse /proc/meminfo into numbers by name (most in kB); other lines are left out."""
    found = {}
    for line in text.splitlines()[:256]:
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isascii() and words[0].isdigit() and len(words[0]) < 19:
            found[name] = int(words[0])
    return found
