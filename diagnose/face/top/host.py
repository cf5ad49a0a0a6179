"""The host's counters over a few seconds, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from rankscope.diagnose import limits
from rankscope.diagnose.face.top.snapshot import CounterNow
from rankscope.diagnose.text import clean, seconds
from rankscope.observer.window.rows import CounterRow

# Names of host-wide counters: shares of all CPUs, and of wall time.
_OF_CPUS = {"cpu.busy_s": "CPU", "cpu.steal_s": "stolen by the hypervisor", "cpu.softirq_s": "interrupts"}
_OF_TIME = {
    "psi.cpu.some_s": "CPU pressure", "psi.memory.some_s": "memory pressure", "psi.io.some_s": "I/O pressure",
}  # fmt: skip
# Absent on a healthy host: growth is shown for any device.
_EVENTS = {
    "memory.oom_kills": "killed for want of memory", "memory.swapped_in_pages": "pages swapped in",
    "memory.direct_reclaim_pages": "pages freed in need", "gpu.ecc_uncorrected": "GPU memory errors",
    "nvlink.errors": "NVLink errors", "pcie.replays": "PCIe replays", "nic.link_downed": "links down",
    "nic.tx_errors": "send errors", "nic.rx_errors": "receive errors", "nic.symbol_errors": "symbol errors",
}  # fmt: skip
_TIMES = {"cpu.throttled_s": "held back by a CPU quota"}


def counters_now(rows: Iterable[CounterRow], window_s: float) -> tuple[CounterNow, ...]:
    """Format CPU use, then all other counters of the host that are not negligible.

    `rows`: counters of a window or interval of `window_s` seconds.
    """
    table = list(rows)
    cpus_s = next((row.limit for row in table if row.name == "cpu.busy_s" and row.limit), 0.0)
    found = []
    for names, whole_s in ((_OF_CPUS, cpus_s), (_OF_TIME, window_s)):
        for name, words in names.items():
            value = sum(row.value for row in table if row.name == name and row.scope == "host" and not row.instance)
            share = value / whole_s if whole_s else 0.0
            if share >= limits.NOTHING or (name == "cpu.busy_s" and whole_s):
                found.append(CounterNow(words, f"{100 * min(share, 1.0):.0f} %"))
    for name, words in _EVENTS.items():
        count = sum(row.value for row in table if row.name == name)
        if count > 0:
            found.append(CounterNow(words, f"{count:.0f}", sick=True))
    for name, words in _TIMES.items():
        if (taken_s := _once(table, name)) > 0:
            found.append(CounterNow(words, seconds(taken_s), sick=True))
    found += [CounterNow(f"{clean(row.instance, 20)} Xid", row.name.rpartition(".")[2], sick=True)
              for row in table if row.name.startswith("gpu.xid.") and row.value > 0]  # fmt: skip
    return tuple(found)


def _once(table: list[CounterRow], name: str) -> float:
    """Sum a counter over its instances (control groups), as several ranks of one report the same time."""
    groups = {row.instance: row.value for row in table if row.name == name}
    return sum(groups.values())
