"""Machines to emulate: the emulator with its options, the packages' suffix, and the root that the guest runs on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from labkit.machine.shell import REPOSITORY


@dataclass(frozen=True, slots=True)
class Architecture:
    """One kind of machine. `repository` and `python` are paths as the guest sees them, below `root`."""

    name: str  # as `uname -m` prints it
    debian: str  # as the distribution names it: suffix of kernel packages
    emulator: str  # the program
    emulator_package: str
    machine: tuple[str, ...]  # options of the emulator
    console: str  # the kernel's name of the first serial port
    root: Path = Path("/")
    busybox: Path = Path("/bin/busybox")  # a static one of this architecture, on this host
    repository: Path = REPOSITORY
    python: Path = REPOSITORY / ".venv/bin/python"

    @property
    def is_of_host(self) -> bool:
        """Whether the guest has this host's root, and so this clone as it is."""
        return self.root == Path("/")

    @property
    def python_on_host(self) -> Path:
        """The guest's interpreter, as this host sees it."""
        return self.root / self.python.relative_to("/")


X86_64 = Architecture(
    "x86_64",
    "amd64",
    "qemu-system-x86_64",
    "qemu-system-x86",
    ("-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "4G"),
    "ttyS0",
)
_ROOT = Path("/var/cache/rankscope/kernels/aarch64/root")  # arm_root.py makes it
_CLONE = Path("/opt/rankscope")
AARCH64 = Architecture(
    "aarch64",
    "arm64",
    "qemu-system-aarch64",
    "qemu-system-arm",
    # The emulator's own kind of pointer authentication takes a tenth of the time that the architecture's takes.
    # Vectors of any length (SVE) are slow to emulate, and libraries prefer them.
    (
        "-M",
        "virt",
        "-accel",
        "tcg,thread=multi",
        "-cpu",
        "max,sve=off,sme=off,pauth-impdef=on",
        "-smp",
        "2",
        "-m",
        "4G",
    ),
    "ttyAMA0",
    root=_ROOT,
    busybox=_ROOT / "bin/busybox",
    repository=_CLONE,
    python=_CLONE / ".venv/bin/python",
)
ARCHITECTURES: dict[str, Architecture] = {one.name: one for one in (X86_64, AARCH64)}
