"""Parse out-of-memory kills from the kernel's log (mm/oom_kill.c, __oom_kill_process).

In: records of the log. Out: pid, as the first PID namespace numbers it, and whether a control
group's limit was met or the host's memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rankscope.probes.host.kmsg import KernelMessage

_KILLED = re.compile(r"^(Memory cgroup out|Out) of memory: Killed process (\d{1,10}) \(")


@dataclass(frozen=True, slots=True)
class MemoryKill:
    """One kill. `limited`: its control group was at its limit; else the host had no memory left."""

    pid: int
    limited: bool

    @property
    def words(self) -> str:
        return f"out of memory: {'its control group is at its limit' if self.limited else 'the host has none left'}"


def memory_kills(messages: Iterable[KernelMessage]) -> tuple[MemoryKill, ...]:
    """Parse the kills among kernel messages, in order. Never raises."""
    found = (_KILLED.match(message.text) for message in messages)
    return tuple(MemoryKill(int(match[2]), match[1].startswith("Memory")) for match in found if match)
