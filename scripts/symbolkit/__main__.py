"""Writes tests/data/symbols: the functions of real libraries that rows of the call table could mean.

Downloads are kept in a cache folder. Nothing of a downloaded package is run or installed: a wheel is read as a zip file, a
Debian package is unpacked by dpkg-deb.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rankscope.probes.calls.table import CALL_TABLE
from rankscope.probes.elf.exports import find_functions
from rankscope.probes.elf.local import LocalFile
from rankscope.probes.elf.reader import DYNSYM, FUNCTION_TYPES, ElfFile
from symbolkit import kernels

DATA = Path(__file__).resolve().parents[2] / "tests" / "data" / "symbols"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rankscope" / "symbols"


@dataclass(frozen=True, slots=True)
class Source:
    """A package of a registry in several versions. `library` begins the name of the file in it that matters."""

    package: str
    library: str
    versions: tuple[str, ...]
    small: bool = False
    debian: bool = False  # else of PyPI


SOURCES = (
    Source("nvidia-cuda-runtime-cu12", "libcudart.so", ("12.1.105", "12.4.127", "12.9.79"), small=True),
    Source("nvidia-cuda-runtime", "libcudart.so", ("13.0.96", "13.5.37"), small=True),
    Source("openmpi", "libmpi.so", ("4.1.8", "5.0.11"), small=True),
    Source("mpich", "libmpi.so", ("3.4.3", "4.0.3", "4.3.2", "5.0.2"), small=True),
    Source("libopenmpi3", "libmpi.so", ("",), small=True, debian=True),
    Source("libmpich12", "libmpich.so", ("",), small=True, debian=True),
    Source("nvidia-nccl-cu12", "libnccl.so", ("2.18.3", "2.23.4", "2.28.9")),
    Source("oneccl", "libccl.so", ("2021.14.0", "2022.2.0")),
    Source("jaxlib", "xla_extension.so", ("0.4.38",)),
    Source("jaxlib", "libjax_common.so", ("0.6.2", "0.10.2")),
    Source("paddlepaddle", "libpaddle.so", ("2.6.2", "3.0.0", "3.3.1")),
)


def main() -> int:
    """0; 1 with --check where a kept file differs from what the library has."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--small", action="store_true", help="only packages of a few megabytes")
    parser.add_argument("--check", action="store_true", help="compare with the kept files and write nothing")
    parser.add_argument(
        "--kernels", nargs="*", type=Path, metavar="FILE", help="print how many GPU kernels of libraries are named"
    )
    options = parser.parse_args()
    if options.kernels is not None:
        return kernels.main(options.kernels)
    DATA.mkdir(parents=True, exist_ok=True)
    differ = 0
    for source in SOURCES:
        for version in source.versions if source.small or not options.small else ():
            try:
                name, text = describe(source, version)
            except (OSError, subprocess.CalledProcessError, LookupError) as error:
                why = "the registry did not give it" if isinstance(error, subprocess.CalledProcessError) else error
                print(f"{source.package} {version}: not to be had: {why}", file=sys.stderr)
                continue
            if options.check and not (DATA / name).exists():
                print(f"{name}: a version that is not kept")
            elif options.check:
                same = (DATA / name).read_text() == text
                differ += not same
                print(f"{name}: {'as kept' if same else 'DIFFERS'}")
            else:
                (DATA / name).write_text(text)
                print(name)
    return 1 if differ else 0


def describe(source: Source, version: str) -> tuple[str, str]:
    """Name and text of the file for one version of a package: a line of what it is, then sorted names."""
    package = next(iter(_kept(source, version)), None) or _download(source, version)
    if source.debian:
        version = package.name.split("_")[1]
    with tempfile.TemporaryDirectory() as folder:
        library = _unpack(package, source.library, Path(folder))
        count, names = functions(library)
        head = f"{library.name} of {source.package} {version}: {count} functions exported\n"
    return f"{source.package}-{version}.txt", head + "".join(f"{name}\n" for name in names)


def functions(library: Path) -> tuple[int, list[str]]:
    """How many functions a library exports, and the names of those that begin like a row for it, exported or local."""
    rows = [row for row in CALL_TABLE if row.libraries and library.name.startswith(row.libraries)]
    starts = tuple({prefix for row in rows for prefix in row.prefixes})
    exported = set(_exported(library))
    local = {one.name for found in find_functions(LocalFile(library), starts).values() for one in found}
    return len(exported), sorted({name for name in exported if name.startswith(starts)} | local)


def _exported(library: Path) -> Iterator[str]:
    elf = ElfFile(LocalFile(library))
    for table in elf.symbol_sections(DYNSYM):
        rows, text = elf.symbols(table), elf.names(table)
        for row in rows[(rows["section"] != 0) & (rows["value"] != 0)]:
            if int(row["info"]) & 15 in FUNCTION_TYPES:
                yield text[int(row["name"]) : text.find(b"\0", int(row["name"]))].decode("ascii", "replace")


def _kept(source: Source, version: str) -> list[Path]:
    stem = source.package if source.debian else source.package.replace("-", "_")
    return sorted(CACHE.glob(f"{stem}_*.deb" if source.debian else f"{stem}-{version}-*.whl"))


def _download(source: Source, version: str) -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    if source.debian:
        command = ["apt-get", "download", "-q", source.package]
    else:
        command = [
            sys.executable, "-I", "-m", "pip", "download", "-q", "--retries", "0", "--timeout", "20", "--no-deps",
            "--only-binary", ":all:", "-d", str(CACHE), f"{source.package}=={version}",
        ]  # fmt: skip
    subprocess.run(command, check=True, cwd=CACHE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return _kept(source, version)[-1]


def _unpack(package: Path, library: str, folder: Path) -> Path:
    """The library's file; of links to it, the file."""
    if package.suffix == ".deb":
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
        found = [path for path in folder.rglob(f"{library}*") if path.is_file() and not path.is_symlink()]
    else:
        with zipfile.ZipFile(package) as wheel:
            names = [name for name in wheel.namelist() if Path(name).name.startswith(library)]
            found = [Path(wheel.extract(name, folder)) for name in names]
    if not found:
        raise LookupError(f"no {library} in {package.name}")
    return max(found, key=lambda path: path.stat().st_size)


if __name__ == "__main__":
    sys.exit(main())
