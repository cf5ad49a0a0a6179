"""Compiling the emulated libraries, once per content of the sources."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from labkit.machine.shell import LabError, run

SOURCES = Path(__file__).resolve().parent
_FLAGS = ("-O2", "-Wall", "-Wextra", "-std=c11", "-pthread")
_CORE = "libgpusim.so"
_KERNELS = "libjobkernels.so"
_KEEP_S = 86_400.0
_LIBRARIES = {
    "libcudart.so.12": ("cudart.c",),
    "libnccl.so.2": ("nccl.c",),
    "libnvidia-ml.so.1": ("nvml.c", "nvml_health.c", "nvml_links.c", "nvml_metrics.c", "nvml_users.c"),
}


@dataclass(frozen=True, slots=True)
class LibraryFolder:
    """Folder with the libraries, gpusimd and gpusim-enter."""

    path: Path

    @property
    def core(self) -> Path:
        return self.path / _CORE

    @property
    def daemon(self) -> Path:
        return self.path / "gpusimd"

    @property
    def enter(self) -> Path:
        return self.path / "gpusim-enter"


def build(folder: Path) -> LibraryFolder:
    """Compile into a folder below `folder` named by the sources' content; nothing is done where it exists. About 4 s. Raises LabError."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / _digest()
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.is_dir():
            temporary = Path(tempfile.mkdtemp(dir=folder))
            try:
                _compile(temporary)
                temporary.chmod(0o755)
                temporary.rename(made)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
            _remove_old(folder)
    return LibraryFolder(made)


def _remove_old(folder: Path) -> None:
    """Libraries of other sources that nobody can be starting jobs with any more."""
    for other in folder.iterdir():
        if other.is_dir() and time.time() - other.stat().st_mtime > _KEEP_S:
            shutil.rmtree(other, ignore_errors=True)


def _digest() -> str:
    content = hashlib.sha256(repr((_FLAGS, _LIBRARIES, _KERNELS)).encode())
    for source in sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h")]):
        content.update(source.name.encode() + b"\0" + source.read_bytes())
    return content.hexdigest()[:16]


def _compile(folder: Path) -> None:
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise LabError("no C compiler", "Run scripts/setup --lab.")
    origin = ("-L", folder, "-lgpusim", "-Wl,-rpath,$ORIGIN")

    def library(name: str, sources: tuple[str, ...], *more: str | Path) -> None:
        files = [SOURCES / source for source in sources]
        run(compiler, *_FLAGS, "-fPIC", "-shared", f"-Wl,-soname,{name}", "-o", folder / name, *files, *more)

    library(_CORE, ("state.c", "physics.c", "control.c", "stream.c"))
    for name, sources in _LIBRARIES.items():
        library(name, sources, *origin)
        (folder / name.rsplit(".", 1)[0]).symlink_to(name)
    library(_KERNELS, ("kernels.c",), "-L", folder, "-lcudart", "-Wl,-rpath,$ORIGIN", "-s")
    run(compiler, *_FLAGS, "-o", folder / "gpusimd", SOURCES / "daemon.c", *origin)
    run(compiler, *_FLAGS, "-o", folder / "gpusim-enter", SOURCES / "enter.c")
