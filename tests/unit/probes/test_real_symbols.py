"""The call table against the names that real libraries export (tests/data/symbols, written by scripts/symbols)."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from rankscope.probes.calls.row import CallRow
from rankscope.probes.calls.table import CALL_TABLE

FOLDER = Path(__file__).parents[2] / "data" / "symbols"
FILES = sorted(FOLDER.glob("*.txt"))

# Functions that these packages are known not to have, each before the version in which it came (None: it never did).
SINCE: dict[str, dict[str, tuple[int, ...] | None]] = {
    "nccl": {"ncclAlltoAll": (2, 28), "ncclGather": (2, 28), "ncclScatter": (2, 28)},
    "jaxlib": {
        row.symbol: (0, 5) for row in CALL_TABLE if row.family == "xla" and row.name in ("broadcast", "send", "recv")
    },
}
ELSEWHERE = {"nccl": ("ncclAllToAll", "ncclAllToAllv")}  # RCCL's spellings
# Large counts (MPI-4): MPICH has them since 4.0, Open MPI 5 not yet.
LARGE_COUNTS = {"mpich": (4, 0), "openmpi": None}


@functools.cache
def library_in(path: Path) -> tuple[str, tuple[int, ...], frozenset[str]]:
    head, *names = path.read_text().splitlines()
    library, package, version = re.fullmatch(r"(\S+) of (\S+) (\S+): \d+ functions exported", head).groups()  # type: ignore[union-attr]
    assert names == sorted(set(names)) and path.name == f"{package}-{version}.txt"
    return library, tuple(int(number) for number in re.findall(r"\d+", version)[:2]), frozenset(names)


def rows_of(library: str) -> list[CallRow]:
    return [row for row in CALL_TABLE if row.libraries and library.startswith(row.libraries)]


def kind_of(path: Path) -> str:
    return next((kind for kind in ("nccl", "mpich", "openmpi", "jaxlib") if kind in path.name), "")


def is_known_absent(row: CallRow, kind: str, version: tuple[int, ...]) -> bool:
    if row.symbol in ELSEWHERE.get(kind, ()):
        return True
    large = row.family == "mpi" and row.symbol.endswith("_c")
    since = LARGE_COUNTS[kind] if large else SINCE.get(kind, {}).get(row.symbol, ())
    return since is None or version < since


def has(row: CallRow, names: frozenset[str]) -> bool:
    return bool(names & set(row.names)) if row.whole else any(name.startswith(row.prefixes) for name in names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_row_names_a_function_that_the_library_has_unless_it_is_known_not_to(path: Path) -> None:
    library, version, names = library_in(path)
    kind = kind_of(path)
    rows = rows_of(library)
    assert rows
    absent = {row.symbol for row in rows if not has(row, names)}
    assert absent == {row.symbol for row in rows if is_known_absent(row, kind, version)}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_flavour_of_a_whole_name_is_timed(path: Path) -> None:
    """cudaMemcpyAsync_ptsz is a function of its own, and so is MPI_Allreduce_c: what is not asked for is not seen."""
    library, _, names = library_in(path)
    rows = [row for row in rows_of(library) if row.whole]
    asked = {name for row in rows for name in row.names}
    flavours = {
        f"{row.symbol}{tail}" for row in rows for tail in ("_v2", "_v3", "_ptsz", "_ptds", "_v2_ptsz", "_v2_ptds", "_c")
    }
    assert not (names & flavours) - asked


def test_at_least_three_versions_of_each_family_are_kept() -> None:
    versions: dict[str, set[tuple[int, ...]]] = {}
    for path in FILES:
        library, version, _ = library_in(path)
        for family in {row.family for row in rows_of(library)}:
            versions.setdefault(family, set()).add(version)
    assert {family: len(found) >= 3 for family, found in versions.items()} == {
        "cuda": True, "nccl": True, "mpi": True, "ccl": False, "xla": True, "paddle": True, "paddle-reducer": True,
    }  # fmt: skip
