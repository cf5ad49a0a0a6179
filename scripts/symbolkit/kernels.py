"""Prints how many GPU kernels of real libraries are found and named: scripts/symbols --kernels [FILE …].

Each library is read by a process of its own, so that its peak of memory is its own. Wheels are downloaded one at a time,
and removed afterwards: some have a gigabyte.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from labkit.machine.shell import module
from rankscope.probes.elf.local import LocalFile
from rankscope.probes.elf.reader import ElfFile, NotElf
from rankscope.unwinder.gpu.defined import defined_kernels
from rankscope.unwinder.gpu.short import short
from rankscope.unwinder.gpu.stubs import kernel_table, name_of

_LEAST_BYTES = 64 << 10  # smaller files of a wheel hold no kernels


@dataclass(frozen=True, slots=True)
class Wheel:
    """A package with GPU kernels, of PyPI. `libraries`: prefixes of the names of the files that are read."""

    package: str
    version: str
    libraries: tuple[str, ...]


WHEELS = (
    Wheel("torch", "2.5.1", ("libtorch_cuda",)),
    Wheel("torch", "2.9.1", ("libtorch_cuda",)),
    Wheel("torch", "2.14.1", ("libtorch_cuda",)),
    Wheel("nvidia-cublas-cu12", "12.8.4.1", ("libcublas",)),
    Wheel("nvidia-nccl-cu12", "2.28.9", ("libnccl",)),
    Wheel("triton", "3.5.1", ("ptxas", "libtriton")),
)


@dataclass(frozen=True, slots=True)
class Found:
    """What was found in one library.

    `defined`: kernels in its fat binaries; `functions`: host functions of kernels; `named`: kernels of `defined` with a host
    function; `readable`: of all kernels those whose name could be shortened. Seconds of CPU: to find the host functions, and
    to read all that is defined. `peak_bytes`: memory that this took, beyond the program itself.
    """

    library: str
    file_bytes: int
    how: str
    defined: int
    functions: int
    named: int
    readable: int
    kernels: int
    unread: int
    find_s: float
    define_s: float
    find_peak_bytes: int
    peak_bytes: int


def measure(path: Path) -> Found:
    """Read one library. Raises NotElf, OSError."""
    began_bytes, began_s = _peak_bytes(), time.process_time()
    elf = ElfFile(LocalFile(path))
    table = kernel_table(elf)
    find_s, find_bytes = time.process_time() - began_s, _peak_bytes()
    began_s = time.process_time()
    defined = defined_kernels(elf)
    define_s, define_bytes = time.process_time() - began_s, _peak_bytes()
    names = {name_of(elf, int(at)) for at in table.stubs.names_at}
    every = names | defined.kernels
    return Found(
        path.name, path.stat().st_size, table.how, len(defined.kernels), len(table.stubs.functions), len(names & defined.kernels),
        sum(not short(name).startswith("_Z") for name in every), len(every), sum(defined.unread.values()), find_s, define_s,
        find_bytes - began_bytes, define_bytes - began_bytes,
    )  # fmt: skip


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main(files: Sequence[Path]) -> int:
    """Print the table of these files, or of the known wheels; 1 where less than 95 % of some library's kernels are named."""
    print(
        f"{'library':<34}{'MB':>6}{'kernels':>9}{'functions':>10}{'named':>8}{'short':>8}{'CPU s':>14}{'peak MB':>10}"
    )
    worst = 1.0
    for title, path in _given(files) if files else _downloaded():
        said = subprocess.run(module("symbolkit.kernels", str(path)), capture_output=True, text=True, check=False)
        if said.returncode:
            print(f"{title:<34}{said.stderr.strip().rpartition(chr(10))[2]}")
            continue
        found = Found(**json.loads(said.stdout))
        worst = min(worst, _share(found.readable, found.kernels), _share(found.named, found.defined))
        print(_line(title, found), flush=True)
    return 0 if worst >= 0.95 else 1


def _line(title: str, one: Found) -> str:
    named = f"{_share(one.named, one.defined):.1%}" if one.functions else "-"
    seconds = f"{one.find_s:.2f} + {one.define_s:.2f}"
    peak = f"{one.find_peak_bytes >> 20} / {one.peak_bytes >> 20}"
    unread = f"  {one.unread} containers unread" if one.unread else ""
    return (
        f"{title:<34}{one.file_bytes >> 20:>6}{one.defined:>9}{one.functions:>10}{named:>8}"
        f"{_share(one.readable, one.kernels):>8.1%}{seconds:>14}{peak:>10}{unread}"
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _given(files: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    for path in files:
        yield path.name, path


def _downloaded() -> Iterator[tuple[str, Path]]:
    """Yield the libraries of each wheel, one wheel at a time."""
    for wheel in WHEELS:
        with tempfile.TemporaryDirectory() as folder:
            command = [
                sys.executable, "-I", "-m", "pip", "download", "-q", "--retries", "0", "--no-deps", "--only-binary", ":all:", "-d",
                folder, f"{wheel.package}=={wheel.version}",
            ]  # fmt: skip
            if subprocess.run(command, check=False, capture_output=True).returncode:
                print(f"{wheel.package} {wheel.version}: the registry did not give it")
                continue
            (package,) = Path(folder).glob("*.whl")
            for path in _libraries(package, wheel.libraries, Path(folder)):
                yield f"{path.name.partition('.so')[0]} {wheel.version}", path
                path.unlink()


def _libraries(package: Path, wanted: tuple[str, ...], folder: Path) -> Iterator[Path]:
    """Yield the files of a wheel that are wanted, unpacked one at a time."""
    with zipfile.ZipFile(package) as wheel:
        for one in wheel.infolist():
            if Path(one.filename).name.startswith(wanted) and one.file_size >= _LEAST_BYTES:
                yield Path(wheel.extract(one, folder))


if __name__ == "__main__":
    try:
        print(json.dumps(asdict(measure(Path(sys.argv[1])))))
    except (NotElf, OSError) as error:
        sys.exit(str(error))
