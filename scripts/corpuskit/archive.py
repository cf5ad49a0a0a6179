"""Archives of the corpus: `cases.json` and the windows of the cases, as small as they get.

The Parquet files in a window are plain and not compressed, and files of one table lie together: xz finds what windows have in
common. Measured on 51 windows of the fault lab: 10.4 KB each, 14.5 KB as the observer wrote them. Windows are kept once,
under a digest of what is in them: a baseline serves many cases.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from corpuskit.case import Case, from_json
from corpuskit.paths import Replacements
from labkit.machine.shell import EXIT_USAGE, REPOSITORY, LabError

HOME = REPOSITORY / "tests" / "data" / "windows"
SUFFIX = ".tar.xz"
CASES = "cases.json"
WINDOWS = "windows"
_MANIFEST = "window.json"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Archives that are unpacked below `folder`, each under its name."""

    folder: Path
    cases: tuple[Case, ...]

    def windows(self, case: Case) -> list[Path]:
        return [self.folder / case.archive / WINDOWS / one for one in case.windows]

    def baseline(self, case: Case) -> list[Path]:
        return [self.folder / case.archive / WINDOWS / one for one in case.baseline]


def archives(home: Path = HOME) -> list[Path]:
    return sorted(home.glob(f"*{SUFFIX}"))


@contextmanager
def opened(places: Sequence[Path]) -> Iterator[Corpus]:
    """Unpacked for as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="corpus-") as folder:
        cases: list[Case] = []
        for place in places:
            cases += unpack(place, Path(folder) / name_of(place))
        yield Corpus(Path(folder), tuple(cases))


def name_of(place: Path) -> str:
    return place.name.removesuffix(SUFFIX)


def unpack(place: Path, into: Path) -> list[Case]:
    """The cases of an archive, whose files lie below `into` then. LabError where it is none."""
    with _archive(place), tarfile.open(place) as packed:
        members = [member for member in packed.getmembers() if member.isfile() and _inside(member.name)]
        into.mkdir(parents=True)
        packed.extractall(into, members)
        return _cases((into / CASES).read_bytes(), place)


def cases_in(place: Path) -> list[Case]:
    """The cases of an archive, without its windows: they stand first in it. LabError where it is none."""
    with _archive(place), tarfile.open(place, "r|*") as packed:
        for member in packed:
            if member.name == CASES and (told := packed.extractfile(member)) is not None:
                return _cases(told.read(), place)
        raise ValueError(f"no {CASES}")


@contextmanager
def _archive(place: Path) -> Iterator[None]:
    """What goes wrong while one is read means that it is none."""
    try:
        yield
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError, ValueError, TypeError, KeyError) as error:
        raise LabError(f"{place} is no archive of the corpus: {error}", exit_code=EXIT_USAGE) from None


def _cases(told: bytes, place: Path) -> list[Case]:
    return [from_json(item, name_of(place)) for item in json.loads(told)]


def _inside(name: str) -> bool:
    return not name.startswith("/") and ".." not in Path(name).parts


def pack(place: Path, cases: Iterable[Case], folder: Path) -> None:
    """Write an archive of these cases, with the windows of theirs that lie below `folder`. In one piece."""
    chosen = sorted(cases, key=lambda case: case.name)
    needed = {one for case in chosen for one in (*case.windows, *case.baseline)}
    files = [path for one in sorted(needed) for path in sorted((folder / WINDOWS / one).iterdir())]
    files.sort(key=lambda path: path.name)
    text = json.dumps([case.as_json() for case in chosen], indent=0)
    draft = place.with_name(place.name + ".draft")
    with (
        lzma.open(draft, "wb", preset=9 | lzma.PRESET_EXTREME) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        _put(archive, CASES, text.encode())
        for path in files:
            _put(archive, f"{WINDOWS}/{path.parent.name}/{path.name}", path.read_bytes())
    draft.rename(place)


def _put(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)  # owner, mode and time are nobody's business
    entry.size = len(data)
    archive.addfile(entry, io.BytesIO(data))


def keep_window(source: Path, folder: Path, replacements: Replacements) -> str:
    """Put a window below `folder`, with the paths of this machine replaced; its identity there."""
    files = {_MANIFEST: replacements.in_text((source / _MANIFEST).read_text()).encode()}
    for path in sorted(source.glob("*.parquet")):
        files[path.name] = _plain(replacements.in_table(pq.read_table(path)))
    digest = hashlib.sha256()
    for name, data in files.items():
        digest.update(f"{name} {len(data)} ".encode() + data)
    identity = digest.hexdigest()[:12]
    target = folder / WINDOWS / identity
    target.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (target / name).write_bytes(data)
    return identity


def _plain(table: pa.Table) -> bytes:
    """A Parquet file without any packing of its own."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="none", use_dictionary=False, write_statistics=False, store_schema=False)
    return buffer.getvalue()
