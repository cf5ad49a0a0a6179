"""What a command has left in the kernel: programs, maps and links of BPF, probes by name, control groups.

Others use the same kernel meanwhile. So what is looked for is what came while the command ran and no living process holds: by a descriptor
of its own, by a probe whose program it is, or as a map of such a program. What a command left is held by nobody, or by its own processes.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.bpf.syscalls import call

Object = tuple[str, int]  # kind, number
_NEXT_ID = {"program": 11, "map": 12, "link": 31}  # enum bpf_cmd
_PROGRAM_BY_ID, _INFO, _TASK_FD_QUERY = 13, 15, 20
_INFO_BYTES, _MAPS_AT, _MOST_MAPS = 232, 52, 256  # struct bpf_prog_info: nr_map_ids, and the address for them at 56
_PROBES = Path("/sys/kernel/tracing/uprobe_events")
_GROUPS = Path("/sys/fs/cgroup")
_PATIENCE_S = 10.0  # the kernel takes programs away in the background


@dataclass(frozen=True, slots=True)
class Held:
    """(kind, number) of everything that is loaded, whoever loaded it, and the lines of the tracing file."""

    objects: frozenset[Object]
    probes: frozenset[str]

    def beyond(self, before: Held) -> Held:
        """What was not there before."""
        return Held(self.objects - before.objects, self.probes - before.probes)

    def both(self, other: Held) -> Held:
        return Held(self.objects & other.objects, self.probes & other.probes)

    def words(self) -> list[str]:
        return [f"{kind} {number}" for kind, number in sorted(self.objects)] + (
            ["uprobe_events"] if self.probes else []
        )


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
    lines = _PROBES.read_text().splitlines() if _PROBES.exists() else []
    return Held(frozenset(found), frozenset(lines))


def left(before: Held, session: int, patience_s: float = _PATIENCE_S) -> list[str]:
    """What came since `before` and stays, though all processes of the command (of `session`) have ended. What others load from now on is
    not looked at."""
    more = held().beyond(before)
    end, pause = time.monotonic() + patience_s, 0.01
    while more.objects or more.probes:
        ours = Held(more.objects - in_use(), frozenset(line for line in more.probes if not _of_the_living(line)))
        if not (ours.objects or ours.probes):
            break
        if time.monotonic() > end:
            return [*ours.words(), *groups(session)]
        time.sleep(pause)
        pause = min(2 * pause, 0.2)
        more = held().both(ours)
    return groups(session)


def groups(pid: int) -> list[str]:
    """Control groups for the memory of that command."""
    return [f"control group {folder.name}" for folder in _GROUPS.glob(f"**/rankscope-{pid}-*") if folder.is_dir()]


def in_use() -> set[Object]:
    """What living processes hold."""
    found: set[Object] = set()
    for pid, descriptor, what in _descriptors():
        with contextlib.suppress(OSError, ValueError):
            if "perf_event" in what:
                found.add(("program", _program_of(pid, descriptor)))
            elif "bpf" in what:
                found |= set(_told(Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text()))
    for kind, number in tuple(found):
        if kind == "program":
            with contextlib.suppress(OSError):
                found |= {("map", one) for one in _maps_of(number)}
    return found


def _descriptors() -> Iterator[tuple[int, int, str]]:
    """(pid, descriptor, what it is) of all that is no file."""
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdigit():
            with contextlib.suppress(OSError):
                for descriptor in os.listdir(f"/proc/{name}/fd"):  # noqa: PTH208
                    with contextlib.suppress(OSError):
                        what = os.readlink(f"/proc/{name}/fd/{descriptor}")  # noqa: PTH115
                        if what.startswith("anon_inode:"):
                            yield int(name), int(descriptor), what


def _told(text: str) -> Iterator[Object]:
    """Of a line in fdinfo: prog_id, map_id, link_id."""
    for short, number in re.findall(r"^(prog|map|link)_id:\s*(\d+)", text, re.MULTILINE):
        yield {"prog": "program", "map": "map", "link": "link"}[short], int(number)


def _program_of(pid: int, descriptor: int) -> int:
    """The program of a probe that was opened as a perf event. OSError where it has none."""
    request = ctypes.create_string_buffer(pid.to_bytes(4, "little") + descriptor.to_bytes(4, "little"), 48)
    call(_TASK_FD_QUERY, request)
    return int.from_bytes(request.raw[24:28], "little")


def _maps_of(program: int) -> list[int]:
    descriptor = call(_PROGRAM_BY_ID, ctypes.create_string_buffer(program.to_bytes(4, "little"), 16))
    try:
        maps = (ctypes.c_uint32 * _MOST_MAPS)()
        asked = bytes(_MAPS_AT) + _MOST_MAPS.to_bytes(4, "little") + ctypes.addressof(maps).to_bytes(8, "little")
        info = ctypes.create_string_buffer(asked, _INFO_BYTES)
        numbers = descriptor.to_bytes(4, "little") + _INFO_BYTES.to_bytes(4, "little")
        request = ctypes.create_string_buffer(numbers + ctypes.addressof(info).to_bytes(8, "little"), 16)
        call(_INFO, request)
        return list(maps[: min(int.from_bytes(info.raw[_MAPS_AT : _MAPS_AT + 4], "little"), _MOST_MAPS)])
    finally:
        os.close(descriptor)


def _of_the_living(line: str) -> bool:
    """Whether a probe by name says, as bcc's do, whose it is, and that one lives."""
    said = re.search(r"_bcc_(\d+)\b", line)
    return said is not None and Path(f"/proc/{said[1]}").exists()
