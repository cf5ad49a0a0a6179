"""Kernels to boot, and which of the archive's packages each of them is. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kernel:
    """A series of kernels: the newest package of it in `suite`. `series` is empty for the newest of all."""

    name: str
    suite: str
    series: str


KERNELS = (
    Kernel("5.10", "bullseye", "5.10"),
    Kernel("6.1", "bookworm", "6.1"),
    Kernel("6.12", "trixie", "6.12"),
    Kernel("newest", "trixie-backports", ""),
)
IN_EVERY_RUN = ("5.10", "6.1")  # of .ci/run


def newest(kernel: Kernel, packages: Iterable[str], debian: str) -> str | None:
    """Select the newest plain package of the series (no cloud, rt or debug flavour); None if there is none."""
    pattern = re.compile(rf"linux-image-(\d+\.\d+[^-]*(?:-\d+)?)-{re.escape(debian)}")
    found = {name: match[1] for name in packages if (match := pattern.fullmatch(name))}
    wanted = {
        name: release for name, release in found.items() if f"{release}.".startswith(f"{kernel.series}.".lstrip("."))
    }
    return max(wanted, key=lambda name: _numbers(wanted[name]), default=None)


def parts(depends: str) -> list[str]:
    """Select the packages that hold the parts of a split kernel, from its Depends line."""
    names = (clause.split("|")[0].split("(")[0].strip() for clause in depends.split(","))
    return [name for name in names if name.startswith(("linux-base-", "linux-binary-", "linux-modules-"))]


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release))
