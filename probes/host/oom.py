"""Parse out-of-memory kills from the kernel's log (mm/oom_kill.c: dump_oom_victim, __oom_kill_process).

In: records of the log. Out: pid, as the first PID namespace numbers it, name, when, whether a control
group's limit was met or the host's memory, and the control group and user, from the line before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rankscope.probes.host.kmsg import KernelMessage

_KILLED = re.compile(r"^(Memory cgroup out|Out) of memory: Killed process (\d{1,10}) \((.{0,64}?)\)")
# A name has 15 characters of its user's choice at most, a path more: so pid and user are read at the end.
_CHOSEN = re.compile(
    r"^oom-kill:constraint=CONSTRAINT_.{0,4000}?,task_memcg=(/.{0,4096}),task=.{0,15},pid=(\d{1,10}),uid=(-?\d{1,10})$"
)


@dataclass(frozen=True, slots=True)
class MemoryKill:
    """One kill. `limited`: its control group was at its limit; else the host had no memory left.

    `time_s`: seconds since boot, without time in suspend; `cgroup`: '' and `user`: None where the log does not tell.
    """

    pid: int
    limited: bool
    name: str = ""
    time_s: float = 0.0
    cgroup: str = ""
    user: int | None = None

    @property
    def words(self) -> str:
        """Sentence that says whether the control group was at its limit, or the host had no memory left."""
        return f"out of memory: {'its control group is at its limit' if self.limited else 'the host has none left'}"


def memory_kills(messages: Iterable[KernelMessage]) -> tuple[MemoryKill, ...]:
    """Parse the kills among kernel messages, in order. Never raises."""
    found, chosen = [], dict[int, tuple[str, int]]()
    for message in messages:
        if (line := _CHOSEN.match(message.text)) is not None:
            chosen[int(line[2])] = line[1], int(line[3]) & 0xFFFFFFFF  # printed as a signed number
        elif (line := _KILLED.match(message.text)) is not None:
            pid = int(line[2])
            cgroup, user = chosen.pop(pid, ("", None))
            found.append(MemoryKill(pid, line[1].startswith("Memory"), line[3], message.time_s, cgroup, user))
    return tuple(found)
