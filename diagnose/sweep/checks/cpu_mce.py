"""CPUs report no machine-check errors.

Reads the MCE line of /proc/interrupts (growth since the last sweep) and hardware errors in the kernel's log since boot.
An uncorrected error is critical until the host was rebooted; corrected ones are a warning for `hours`.
"""

from __future__ import annotations

from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL, OK
from rankscope.diagnose.sweep.context import Context
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.kernel_events import MCE, logged_events, recent, unix_time
from rankscope.probes.host.procfs import proc_path, read_file

ID = "cpu.mce"
SETTINGS = {"hours": 24.0}


def run(context: Context) -> Iterator[Finding]:
    exceptions = parse_exceptions(read_file(proc_path(context.root, "interrupts"), 16 << 20))
    if exceptions is not None and (grown := context.grown("exceptions", exceptions)).amount:
        yield context.critical(
            "/proc/interrupts", grown.amount, unit="exceptions", expected="no machine check since the last sweep",
            why="the CPU reported a hardware error", action="Read the record (rasdaemon, mcelog); have the hardware inspected.",
        )  # fmt: skip
    errors = [event for event in logged_events(context) if event.family == MCE]
    for state in (CRITICAL, OK):
        found = [
            event for event in errors
            if (event.state == CRITICAL) == (state == CRITICAL)
            and (state == CRITICAL or recent(context, event.time_s, context.number("hours")))
        ]  # fmt: skip
        if found:
            last = found[-1]
            yield context.bad(
                last.state, "/dev/kmsg", float(len(found)), unit="records", expected="none", why=last.text,
                action=last.action, since_s=unix_time(context, found[0].time_s),
            )  # fmt: skip
            return
    yield context.ok("/proc/interrupts, /dev/kmsg", 0.0, unit="records")


def parse_exceptions(data: bytes) -> int | None:
    """Machine-check exceptions of all CPUs; None where the architecture has no such line. Never raises."""
    for line in data.split(b"\n"):
        words = line.split()
        if words and words[0] == b"MCE:":
            return sum(int(word) for word in words[1:] if word.isdigit() and len(word) < 19)
    return None
