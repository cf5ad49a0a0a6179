"""Give hosts of one name that are several machines distinct names in a fleet, `localhost~3f2a`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rankscope.observer.window.manifest import Manifest

_SHOWN = 4  # characters of the machine id; all of it where that is ambiguous


def rename_hosts(manifests: Sequence[Manifest]) -> tuple[Manifest, ...]:
    """Rename hosts where one name stands for several machines; unknown machines are unchanged."""
    machines: dict[str, set[str]] = {}
    for about in manifests:
        if about.machine:
            machines.setdefault(about.host, set()).add(about.machine)
    return tuple(
        replace(about, host=f"{about.host}~{_short(about.machine, mine)}")
        if about.machine and len(mine := machines[about.host]) > 1
        else about
        for about in manifests
    )


def plain_name(about: Manifest) -> str:
    """Return the host's own name, without what `rename_hosts` appended."""
    for tail in (f"~{about.machine}", f"~{about.machine[:_SHOWN]}"):
        if about.machine and about.host.endswith(tail):
            return about.host.removesuffix(tail)
    return about.host


def _short(machine: str, all_of_them: set[str]) -> str:
    """Return the first `_SHOWN` characters of a machine id, or all where those are ambiguous among `all_of_them`."""
    enough = len({each[:_SHOWN] for each in all_of_them}) == len(all_of_them)
    return machine[:_SHOWN] if enough else machine
