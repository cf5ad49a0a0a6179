"""What of ours the kernel holds: programs, maps and links of BPF, and probes by name."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.bpf.syscalls import call

_NEXT_ID = {"program": 11, "map": 12, "link": 31}  # enum bpf_cmd
_PROBES = Path("/sys/kernel/tracing/uprobe_events")


@dataclass(frozen=True, slots=True)
class Held:
    """(kind, number) of everything that is loaded, whoever loaded it, and the lines of the tracing file."""

    objects: frozenset[tuple[str, int]]
    probes: str

    def beyond(self, before: Held) -> list[str]:
        """What was not there before."""
        more = [f"{kind} {number}" for kind, number in sorted(self.objects - before.objects)]
        return more + (["uprobe_events"] if self.probes != before.probes else [])


def held() -> Held:
    """Now. OSError without the right to ask."""
    found = set()
    for kind, command in _NEXT_ID.items():
        number = 0
        while True:
            request = ctypes.create_string_buffer(number.to_bytes(4, "little"), 16)
            try:
                call(command, request)
            except FileNotFoundError:
                break
            number = int.from_bytes(request.raw[4:8], "little")
            found.add((kind, number))
    return Held(frozenset(found), _PROBES.read_text() if _PROBES.exists() else "")


def left(before: Held, seconds: float = 10.0) -> list[str]:
    """What is still there after a while: the kernel takes programs away in the background."""
    end = time.monotonic() + seconds
    while (more := held().beyond(before)) and time.monotonic() < end:
        time.sleep(0.1)
    return more
