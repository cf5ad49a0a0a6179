"""CPUs report no machine-check errors.

Reads the MCE line of /proc/interrupts (growth since the last sweep, CPU by CPU: those that are off are not in it) and hardware
errors in the kernel's log since boot.
An uncorrected error in the log is critical until the host was rebooted; growth is critical in the sweep that sees it and a warning
after it; corrected errors are a warning for `hours`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from rankscope.diagnose.severity import CRITICAL, OK
from rankscope.diagnose.sweep.context import Context
from rankscope.diagnose.sweep.finding import Finding
from rankscope.diagnose.sweep.readings.kernel_events import MCE, logged_events, recent, unix_time
from rankscope.probes.host.procfs import proc_path, read_file

ID = "cpu.mce"
SETTINGS = {"hours": 24.0}


def run(context: Context) -> Iterator[Finding]:
    """Yield machine-check errors, from the counters' growth and from the kernel's log; ok if there are none.

    From the log the critical ones, or else those of the last `hours`, as one finding.
    """
    exceptions = parse_exceptions(read_file(proc_path(context.root, "interrupts"), 16 << 20))
    grown = sum(context.grown(cpu, count).amount for cpu, count in exceptions.items())
    if grown:
        yield context.critical(
            "/proc/interrupts", grown, unit="exceptions", expected="no machine check since the last sweep",
            why="the CPU reported a hardware error", action="Read the record (rasdaemon, mcelog); have the hardware inspected.",
            lasts=True,
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
    if not grown:
        yield context.ok("/proc/interrupts, /dev/kmsg", 0.0, unit="records")


def parse_exceptions(data: bytes) -> dict[str, int]:
    """Parse the number of machine-check exceptions by CPU from /proc/interrupts; {} without such a line. Never raises."""
    lines = data.split(b"\n")
    cpus = [word.decode("ascii", "replace") for word in lines[0].split() if word.startswith(b"CPU")]
    for line in lines:
        words = line.split()
        if words and words[0] == b"MCE:":
            counts = itertools.takewhile(bytes.isdigit, words[1:])
            names = itertools.chain(cpus, (f"CPU{number}" for number in itertools.count(len(cpus))))
            return {cpu: int(count) for cpu, count in zip(names, counts, strict=False) if len(count) < 19}
    return {}
